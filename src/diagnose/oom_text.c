/* oom_text.c: see oom_text.h. */
#include "diagnose/oom_text.h"

#include "base/error.h"
#include "base/memory.h"
#include "file/gzip.h"

#define MOST_UNPACKED (UINT64_C(256) << 20)

static memfit_status replace(mf_oom_text *t, void *made, size_t made_bytes, size_t used)
{
    mf_host_free(t->host, t->made, t->made_bytes);
    t->made = made;
    t->made_bytes = made_bytes;
    t->data = made;
    t->bytes = used;
    return MEMFIT_OK;
}

static memfit_status unpack(mf_oom_text *t, memfit_error *err)
{
    uint64_t bytes = 0;
    memfit_status status = mf_gzip_unpack(t->host, t->data, t->bytes, "the log", NULL, 0, &bytes, err);
    if (status)
        return status;
    if (!bytes)
        return mf_fail(err, MEMFIT_DAMAGED, "the log is empty");
    if (bytes > MOST_UNPACKED)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "the log is packed, and holds more than 256 MiB\npass the last part of it: zcat LOG | tail -c "
                       "100M | memfit explain -");
    unsigned char *out = mf_host_alloc(t->host, (size_t)bytes);
    if (!out)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to unpack the log");
    uint64_t again = 0;
    status = mf_gzip_unpack(t->host, t->data, t->bytes, "the log", out, bytes, &again, err);
    if (status) {
        mf_host_free(t->host, out, (size_t)bytes);
        return status;
    }
    return replace(t, out, (size_t)bytes, (size_t)again);
}

/* 0: no UTF-16; 1: the low byte comes first; 2: the high one. By its mark, else by the letters, which leave every other
 * byte empty. */
static int utf16_order(const unsigned char *d, size_t n)
{
    if (n < 4)
        return 0;
    if (d[0] == 0xFF && d[1] == 0xFE)
        return 1;
    if (d[0] == 0xFE && d[1] == 0xFF)
        return 2;
    size_t look = n < 4096 ? n : 4096, empty[2] = {0, 0};
    for (size_t i = 0; i < look; i++)
        empty[i & 1] += d[i] == 0;
    if (empty[1] * 5 >= look * 2 && empty[0] * 50 < look)
        return 1;
    return empty[0] * 5 >= look * 2 && empty[1] * 50 < look ? 2 : 0;
}

/* Two bytes become at most three; what is beyond the first plane becomes its two halves' bytes, which no reader knows. */
static memfit_status narrow(mf_oom_text *t, int order, memfit_error *err)
{
    const unsigned char *d = t->data;
    size_t room = t->bytes / 2 * 3 + 1, n = 0;
    if (room > MOST_UNPACKED)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "the log is UTF-16 of more than 170 MiB\npass the last part of it: tail -c 100M");
    unsigned char *out = mf_host_alloc(t->host, room);
    if (!out)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the text of the log");
    for (size_t i = 0; i + 1 < t->bytes; i += 2) {
        unsigned c = order == 1 ? d[i] | (unsigned)d[i + 1] << 8 : d[i + 1] | (unsigned)d[i] << 8;
        if (c < 0x80) {
            out[n++] = (unsigned char)c;
        } else if (c < 0x800) {
            out[n++] = (unsigned char)(0xC0 | c >> 6);
            out[n++] = (unsigned char)(0x80 | (c & 0x3F));
        } else {
            out[n++] = (unsigned char)(0xE0 | c >> 12);
            out[n++] = (unsigned char)(0x80 | (c >> 6 & 0x3F));
            out[n++] = (unsigned char)(0x80 | (c & 0x3F));
        }
    }
    return replace(t, out, room, n);
}

memfit_status mf_oom_text_open(const memfit_host *host, const void *data, size_t bytes, mf_oom_text *text,
                               memfit_error *err)
{
    const unsigned char *d = data;
    *text = (mf_oom_text){.data = data, .bytes = bytes, .host = host};
    memfit_status status = MEMFIT_OK;
    if (bytes >= 18 && d[0] == 0x1F && d[1] == 0x8B)
        status = unpack(text, err);
    int order = status ? 0 : utf16_order(text->data, text->bytes);
    if (order)
        status = narrow(text, order, err);
    if (status)
        mf_oom_text_close(text);
    return status;
}

void mf_oom_text_close(mf_oom_text *text)
{
    mf_host_free(text->host, text->made, text->made_bytes);
    *text = (mf_oom_text){0};
}
