/* picture.c: what all pictures share: telling them apart, reading their bytes, the room, headers. See picture.h. */
#include "file/picture.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/os.h"

#include <string.h>

struct mf_picture_decoder {
    const memfit_host *host;
    mf_jpeg *jpeg;
};

/* ---- room ------------------------------------------------------------------------------------------------- */

void *mf_room_take(mf_room *room, uint64_t bytes)
{
    const uint64_t at = (room->used + 63) & ~(uint64_t)63;
    if (bytes > UINT64_MAX / 2 || at + bytes > room->bytes) {
        room->refused = bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 : at + bytes;
        return NULL;
    }
    room->used = at + bytes;
    if (room->used > room->peak)
        room->peak = room->used;
    return room->base + at;
}

memfit_status mf_picture_no_room(const mf_picture_job *job, memfit_error *err)
{
    char need[24], has[24];
    memfit_status status =
        mf_fail(err, MEMFIT_OUT_OF_MEMORY,
                "%s: decoding it needs at least %s, a worker has %s\n"
                "--decode-memory SIZE gives each worker more; or save the picture smaller, or not progressive",
                job->in->name, memfit_size_format(job->room->refused, need, sizeof need),
                memfit_size_format(job->room->bytes, has, sizeof has));
    if (err) {
        err->requested_bytes = job->room->refused;
        err->limit_bytes = job->room->bytes;
    }
    return status;
}

memfit_status mf_picture_cut_off(const mf_picture_job *job, memfit_error *err)
{
    return mf_fail(err, MEMFIT_DAMAGED, "%s is cut off at byte %llu\ncopy or make it again", job->in->name,
                   (unsigned long long)job->in->at);
}

memfit_status mf_picture_check_size(const mf_picture_input *in, uint64_t width, uint64_t height, memfit_error *err)
{
    if (!width || !height)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: a picture of %llu x %llu pixels", in->name, (unsigned long long)width,
                       (unsigned long long)height);
    if (width >= MF_PICTURE_MOST_SIDE || height >= MF_PICTURE_MOST_SIDE || width * height > (uint64_t)1 << 29)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s claims %llu x %llu pixels: more than a picture for training has\n"
                       "pictures of up to 2^29 pixels and 65,535 a side are read; make it smaller, or take it out",
                       in->name, (unsigned long long)width, (unsigned long long)height);
    return MEMFIT_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------ */

uint64_t mf_picture_next(mf_picture_input *in, const unsigned char **bytes)
{
    if (in->descriptor < 0) {
        uint64_t n = in->at < in->bytes ? in->bytes - in->at : 0;
        *bytes = in->data + in->at;
        in->at += n;
        return n;
    }
    in->buffer_begin = in->at;
    in->bytes = mf_os_read_at(in->descriptor, in->buffer, MF_PICTURE_BUFFER_BYTES, in->at);
    *bytes = in->buffer;
    in->at += in->bytes;
    return in->bytes;
}

bool mf_picture_seek(mf_picture_input *in, uint64_t at)
{
    in->at = at;
    return in->descriptor >= 0 || at <= in->bytes;
}

/* From the buffer where it has them: formats are read in small parts. */
bool mf_picture_read(mf_picture_input *in, void *out, uint64_t count)
{
    unsigned char *to = out;
    if (in->descriptor < 0) {
        if (in->at > in->bytes || count > in->bytes - in->at)
            return false;
        memcpy(to, in->data + in->at, count);
        in->at += count;
        return true;
    }
    while (count) {
        uint64_t end = in->buffer_begin + in->bytes; /* of what the buffer holds */
        if (in->at < in->buffer_begin || in->at >= end) {
            in->buffer_begin = in->at;
            in->bytes = mf_os_read_at(in->descriptor, in->buffer, MF_PICTURE_BUFFER_BYTES, in->at);
            if (!in->bytes)
                return false;
            continue;
        }
        uint64_t n = end - in->at < count ? end - in->at : count;
        memcpy(to, in->buffer + (in->at - in->buffer_begin), n);
        in->at += n;
        to += n;
        count -= n;
    }
    return true;
}

mf_picture_kind mf_picture_sniff(const unsigned char *d, uint64_t n)
{
    if (n >= 3 && d[0] == 0xff && d[1] == 0xd8 && d[2] == 0xff)
        return MF_PICTURE_JPEG;
    if (n >= 8 && memcmp(d, "\x89PNG\r\n\x1a\n", 8) == 0)
        return MF_PICTURE_PNG;
    if (n >= 6 && (memcmp(d, "GIF87a", 6) == 0 || memcmp(d, "GIF89a", 6) == 0))
        return MF_PICTURE_GIF;
    if (n >= 14 && d[0] == 'B' && d[1] == 'M')
        return MF_PICTURE_BMP;
    if (n >= 12 && memcmp(d, "RIFF", 4) == 0 && memcmp(d + 8, "WEBP", 4) == 0)
        return MF_PICTURE_WEBP;
    return MF_PICTURE_UNKNOWN;
}

const char *mf_picture_kind_name(mf_picture_kind kind)
{
    static const char *const names[] = {"unknown", "JPEG", "PNG", "BMP", "GIF", "WebP"};
    return names[kind];
}

bool mf_picture_has(mf_picture_kind kind)
{
    switch (kind) {
    case MF_PICTURE_BMP:
    case MF_PICTURE_GIF:
        return true;
#ifdef MF_HAVE_JPEG
    case MF_PICTURE_JPEG:
        return true;
#endif
#ifdef MF_HAVE_PNG
    case MF_PICTURE_PNG:
        return true;
#endif
#ifdef MF_HAVE_WEBP
    case MF_PICTURE_WEBP:
        return true;
#endif
    default:
        return false;
    }
}

static memfit_status not_built(const char *name, mf_picture_kind kind, memfit_error *err)
{
    switch (kind) {
    case MF_PICTURE_JPEG:
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s is a JPEG, and this memfit was built without libjpeg\n"
                       "install libjpeg-dev (Debian) and build again",
                       name);
    case MF_PICTURE_PNG:
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s is a PNG, and this memfit was built without libpng\n"
                       "install libpng-dev (Debian) and build again",
                       name);
    case MF_PICTURE_WEBP:
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s is a WebP picture, and this memfit was built without libwebp\n"
                       "install libwebp-dev (Debian; its libwebp.a is needed) and build again, or save it as PNG",
                       name);
    default:
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s is not a picture: neither JPEG, PNG, BMP, GIF nor WebP by its first bytes", name);
    }
}

/* ---- headers ---------------------------------------------------------------------------------------------- */

static uint32_t big(const unsigned char *p, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static uint32_t little(const unsigned char *p, int n)
{
    uint32_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* The frame's segment: what comes before it may be 64 KiB each, an EXIF thumbnail, a colour profile in parts. */
static bool look_jpeg(mf_picture_input *in, mf_picture_head *head)
{
    unsigned char m[2], size[2], f[6], part[3];
    uint64_t blocks = 0, across = 1;
    if (!mf_picture_seek(in, 2))
        return false;
    for (int i = 0; i < 1000; i++) {
        if (!mf_picture_read(in, m, 2) || m[0] != 0xff)
            return false;
        while (m[1] == 0xff)
            if (!mf_picture_read(in, m + 1, 1))
                return false;
        if (m[1] == 0x01 || (m[1] >= 0xd0 && m[1] <= 0xd7))
            continue;
        if (!mf_picture_read(in, size, 2) || big(size, 2) < 2)
            return false;
        bool frame = m[1] >= 0xc0 && m[1] <= 0xcf && m[1] != 0xc4 && m[1] != 0xc8 && m[1] != 0xcc;
        if (m[1] == 0xda || m[1] == 0xd9)
            return false;
        if (!frame) {
            mf_picture_seek(in, in->at + big(size, 2) - 2);
            continue;
        }
        if (!mf_picture_read(in, f, 6))
            return false;
        head->height = big(f + 1, 2);
        head->width = big(f + 3, 2);
        head->channels = f[5];
        head->whole = m[1] == 0xc2 || m[1] == 0xc6 || m[1] == 0xca || m[1] == 0xce;
        for (uint32_t c = 0; c < head->channels; c++) {
            if (!mf_picture_read(in, part, 3))
                return false;
            uint64_t h = part[1] >> 4, v = part[1] & 15;
            blocks += h * v;
            across = h * v > across ? h * v : across;
        }
        /* Blocks of 64 coefficients of 2 bytes; parts that are coarser have fewer, the largest one all. */
        uint64_t most = blocks < 64 ? (blocks + across - 1) / across : 4;
        uint64_t wide = (head->width + 63) / 8 + 8, high = (head->height + 63) / 8 + 8;
        head->room_bytes += head->whole ? wide * high * 128 * (most < 4 ? most : 4) : 0;
        head->room_bytes += (uint64_t)head->width * 1024 + (256 << 10);
        return true;
    }
    return false;
}

static bool look_png(mf_picture_input *in, mf_picture_head *head)
{
    unsigned char h[29];
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, h, sizeof h) || memcmp(h + 12, "IHDR", 4) != 0)
        return false;
    static const uint32_t channels[8] = {1, 0, 3, 1, 2, 0, 4, 0};
    head->width = big(h + 16, 4);
    head->height = big(h + 20, 4);
    head->channels = channels[h[25] & 7];
    head->whole = h[28] == 1;
    head->room_bytes += (uint64_t)head->width * 8 * 4 + (256 << 10);
    head->room_bytes += head->whole ? (uint64_t)head->width * head->height * 4 + (uint64_t)head->height * 8 : 0;
    return true;
}

static bool look_bmp(mf_picture_input *in, mf_picture_head *head)
{
    unsigned char h[30];
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, h, sizeof h))
        return false;
    int32_t high = (int32_t)little(h + 22, 4);
    head->width = little(h + 18, 4);
    head->height = high < 0 ? (uint32_t)0 - (uint32_t)high : (uint32_t)high;
    head->channels = little(h + 28, 2) / 8;
    head->room_bytes += (uint64_t)head->width * 8 + 4096;
    return true;
}

static bool look_gif(mf_picture_input *in, mf_picture_head *head)
{
    unsigned char h[10];
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, h, sizeof h))
        return false;
    head->width = little(h + 6, 2);
    head->height = little(h + 8, 2);
    head->channels = 3;
    head->whole = true;
    head->room_bytes += (uint64_t)head->width * head->height + (uint64_t)head->width * 4 + (64 << 10);
    return true;
}

/* Of the first chunk, or of the whole where there are several. A lossless picture holds its pixels beside the result, and
 * tables that grow with its detail; which of the two an extended file has is told by a later chunk. */
static bool look_webp(mf_picture_input *in, mf_picture_head *head)
{
    unsigned char h[30];
    bool lossless = true;
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, h, sizeof h))
        return false;
    head->channels = 3;
    head->whole = true;
    if (memcmp(h + 12, "VP8X", 4) == 0) {
        head->width = little(h + 24, 3) + 1;
        head->height = little(h + 27, 3) + 1;
    } else if (memcmp(h + 12, "VP8L", 4) == 0) {
        head->width = (little(h + 21, 4) & 0x3fff) + 1;
        head->height = (little(h + 21, 4) >> 14 & 0x3fff) + 1;
    } else {
        lossless = false;
        head->width = little(h + 26, 2) & 0x3fff;
        head->height = little(h + 28, 2) & 0x3fff;
    }
    const uint64_t pixels = (uint64_t)head->width * head->height;
    head->room_bytes += little(h + 4, 4) + pixels * 4 + (uint64_t)head->width * 1024 + (512 << 10);
    head->room_bytes += lossless ? pixels * 6 + (2 << 20) : 0;
    return true;
}

memfit_status mf_picture_look(mf_picture_input *in, mf_picture_head *head, memfit_error *err)
{
    unsigned char first[16] = {0};
    *head = (mf_picture_head){.kind = MF_PICTURE_UNKNOWN};
    mf_picture_seek(in, 0);
    uint64_t n = 0;
    while (n < sizeof first && mf_picture_read(in, first + n, 1))
        n++;
    head->kind = mf_picture_sniff(first, n);
    bool good = false;
    switch (head->kind) {
    case MF_PICTURE_JPEG:
        good = look_jpeg(in, head);
        break;
    case MF_PICTURE_PNG:
        good = look_png(in, head);
        break;
    case MF_PICTURE_BMP:
        good = look_bmp(in, head);
        break;
    case MF_PICTURE_GIF:
        good = look_gif(in, head);
        break;
    case MF_PICTURE_WEBP:
        good = look_webp(in, head);
        break;
    default:
        return n ? not_built(in->name, head->kind, err) : mf_fail(err, MEMFIT_DAMAGED, "%s is empty", in->name);
    }
    mf_picture_seek(in, 0);
    if (!good)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: the header of this %s is damaged", in->name,
                       mf_picture_kind_name(head->kind));
    return mf_picture_check_size(in, head->width, head->height, err);
}

/* ---- decoding --------------------------------------------------------------------------------------------- */

memfit_status mf_picture_decoder_create(const memfit_host *host, mf_picture_decoder **decoder, memfit_error *err)
{
    mf_picture_decoder *d = mf_host_zalloc(host, sizeof *d);
    if (!d)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to decode pictures");
    d->host = host;
    memfit_status status = mf_picture_has(MF_PICTURE_JPEG) ? mf_jpeg_create(host, &d->jpeg, err) : MEMFIT_OK;
    if (status != MEMFIT_OK) {
        mf_host_free(host, d, sizeof *d);
        return status;
    }
    *decoder = d;
    return MEMFIT_OK;
}

void mf_picture_decoder_destroy(mf_picture_decoder *d)
{
    if (!d)
        return;
    mf_jpeg_destroy(d->jpeg);
    mf_host_free(d->host, d, sizeof *d);
}

memfit_status mf_picture_decode(mf_picture_decoder *d, mf_picture_input *in, uint32_t channels, mf_picture_size least,
                                mf_room *room, const mf_picture_sink *sink, memfit_error *err)
{
    mf_picture_head head;
    mf_picture_job job = {in, channels, least, room, sink};
    memfit_status status = mf_picture_look(in, &head, err);
    if (status != MEMFIT_OK)
        return status;
    if (!mf_picture_has(head.kind))
        return not_built(in->name, head.kind, err);
    room->refused = 0;
    switch (head.kind) {
    case MF_PICTURE_JPEG:
        return mf_jpeg_decode(d->jpeg, &job, err);
    case MF_PICTURE_PNG:
        return mf_png_decode(&job, err);
    case MF_PICTURE_BMP:
        return mf_bmp_decode(&job, err);
    case MF_PICTURE_WEBP:
        return mf_webp_decode(&job, err);
    default:
        return mf_gif_decode(&job, err);
    }
}
