/* picture_bmp.c: uncompressed BMP of 8 (palette or greys), 24 and 32 bits a pixel. Rows are stored bottom up: each is read
 * where it lies. */
#include "file/picture.h"

#include "base/error.h"

#include <string.h>

static uint32_t little(const unsigned char *p, int n)
{
    uint32_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

typedef struct bmp {
    uint32_t width, height, bits, colours;
    uint64_t pixels; /* where they begin */
    bool top_down;
    unsigned char palette[256][4];
} bmp;

static memfit_status read_header(const mf_picture_job *job, bmp *b, memfit_error *err)
{
    unsigned char h[54];
    mf_picture_input *in = job->in;
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, h, sizeof h))
        return mf_picture_cut_off(job, err);
    uint32_t header = little(h + 14, 4), packing = little(h + 30, 4);
    int32_t high = (int32_t)little(h + 22, 4);
    b->pixels = little(h + 10, 4);
    b->width = little(h + 18, 4);
    b->top_down = high < 0;
    b->height = high < 0 ? (uint32_t)0 - (uint32_t)high : (uint32_t)high;
    b->bits = little(h + 28, 2);
    b->colours = little(h + 46, 4);
    if (header < 40 || (b->bits != 8 && b->bits != 24 && b->bits != 32) || (packing != 0 && packing != 3))
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s: a BMP of %u bits a pixel, packing %u; 8, 24 and 32 bits, unpacked, are read\n"
                       "save it as PNG",
                       in->name, b->bits, packing);
    memfit_status status = mf_picture_check_size(in, b->width, b->height, err);
    if (status != MEMFIT_OK || b->bits != 8)
        return status;
    b->colours = b->colours && b->colours <= 256 ? b->colours : 256;
    if (!mf_picture_seek(in, 14 + (uint64_t)header) || !mf_picture_read(in, b->palette, (uint64_t)b->colours * 4))
        return mf_picture_cut_off(job, err);
    return MEMFIT_OK;
}

static void convert(const bmp *b, const unsigned char *in, unsigned char *out, uint32_t channels)
{
    const uint32_t step = b->bits / 8;
    for (uint32_t x = 0; x < b->width; x++, in += step, out += channels) {
        const unsigned char *bgr = step == 1 ? b->palette[*in] : in;
        if (channels == 1) {
            out[0] = (unsigned char)((bgr[2] * 299 + bgr[1] * 587 + bgr[0] * 114 + 500) / 1000);
            continue;
        }
        out[0] = bgr[2];
        out[1] = bgr[1];
        out[2] = bgr[0];
        if (channels == 4)
            out[3] = step == 4 ? in[3] : 255;
    }
}

memfit_status mf_bmp_decode(const mf_picture_job *job, memfit_error *err)
{
    bmp b = {0};
    memfit_status status = read_header(job, &b, err);
    if (status == MEMFIT_OK)
        status = job->sink->begin(job->sink->ctx, b.width, b.height, job->room, err);
    if (status != MEMFIT_OK)
        return status;
    const uint64_t row_bytes = ((uint64_t)b.width * b.bits / 8 + 3) & ~(uint64_t)3;
    unsigned char *in = mf_room_take(job->room, row_bytes);
    unsigned char *out = in ? mf_room_take(job->room, (uint64_t)b.width * job->channels) : NULL;
    if (!out)
        return mf_picture_no_room(job, err);
    for (uint32_t y = 0; y < b.height; y++) {
        uint64_t at = b.pixels + row_bytes * (b.top_down ? y : b.height - 1 - y);
        if (!mf_picture_seek(job->in, at) || !mf_picture_read(job->in, in, row_bytes))
            return mf_picture_cut_off(job, err);
        convert(&b, in, out, job->channels);
        job->sink->row(job->sink->ctx, out);
    }
    return MEMFIT_OK;
}
