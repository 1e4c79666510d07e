/* fuzz_tfrecord.c: any bytes as records, and any bytes as an Example: what is accepted lies inside them. Check sums of lengths
 * are made right first, where the first byte says so: no chance finds one. */
#include "file/gzip.h"
#include "file/tfrecord.h"

#include <stdlib.h>
#include <string.h>

static void inside(const unsigned char *data, size_t bytes, const unsigned char *p, uint64_t n)
{
    if (n && (p < data || n > bytes || (size_t)(p - data) > bytes - n))
        abort();
}

typedef struct whole {
    const unsigned char *data;
    size_t bytes;
} whole;

static bool use(void *ctx, const mf_feature *f)
{
    const whole *w = ctx;
    float floats[8];
    int64_t ints[8];
    const unsigned char *text = NULL;
    uint64_t bytes = 0;
    inside(w->data, w->bytes, (const unsigned char *)f->name, f->name_bytes);
    inside(w->data, w->bytes, f->list, f->list_bytes);
    int64_t count = mf_feature_count(f);
    if (mf_feature_bytes(f, &text, &bytes))
        inside(w->data, w->bytes, text, bytes);
    if (count > 0 && count <= 8 && f->kind == MF_FEATURE_FLOAT && !mf_feature_floats(f, floats, (uint64_t)count))
        abort();
    if (count > 0 && count <= 8 && f->kind == MF_FEATURE_INT && !mf_feature_ints(f, ints, (uint64_t)count))
        abort();
    return true;
}

static void mend_lengths(unsigned char *p, size_t bytes)
{
    for (size_t at = 0; at + 16 <= bytes;) {
        uint64_t length = p[at] % 64;
        memset(p + at, 0, 8);
        p[at] = (unsigned char)length;
        uint32_t crc = mf_crc32c(p + at, 8);
        crc = (crc >> 15 | crc << 17) + 0xa282ead8u;
        memcpy(p + at + 8, &crc, 4);
        at += 16 + length;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes)
        return 0;
    size_t n = bytes - 1;
    unsigned char *copy = malloc(n + 1);
    memcpy(copy, data + 1, n);
    unsigned char *exact = malloc(n ? n : 1); /* reading past its end is seen */
    if (data[0] & 1)
        mend_lengths(copy, n);
    memcpy(exact, copy, n);
    whole w = {exact, n};
    if (data[0] & 2) {
        for (uint64_t at = 0; at < n;) {
            mf_tfrecord record;
            memfit_error err = {0};
            if (mf_tfrecord_at(exact, n, at, data[0] & 4, "f", &record, &err) != MEMFIT_OK) {
                if (!err.message[0])
                    abort();
                break;
            }
            inside(exact, n, record.data, record.bytes);
            if (record.next <= at)
                abort();
            mf_example_walk(record.data, record.bytes, use, &w);
            mf_example_is_sequence(record.data, record.bytes);
            at = record.next;
        }
    } else if (data[0] & 8) {
        unsigned char out[256];
        uint64_t got = 0;
        memfit_error err = {0};
        mf_gzip_unpack(NULL, exact, n, "f", out, sizeof out, &got, &err);
        mf_gzip_unpack(NULL, exact, n, "f", NULL, 0, &got, &err);
    } else {
        mf_example_walk(exact, n, use, &w);
    }
    free(copy);
    free(exact);
    return 0;
}
