/* resize.c: see resize.h. */
#include "data/resize.h"

#include "base/error.h"

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Where position `i` of `to` lies between two of `from`; as TensorFlow computes it, in float32. */
static void place(uint32_t i, uint32_t from, uint32_t to, uint32_t *low, uint32_t *high, float *share)
{
    const float scale = (float)from / (float)to;
    const float at = ((float)i + 0.5f) * scale - 0.5f, whole = floorf(at);
    const float up = ceilf(at), last = (float)(from - 1);
    *low = whole > 0 ? (uint32_t)whole : 0;
    *high = (uint32_t)(up < last ? (up > 0 ? up : 0) : last);
    *share = at - whole;
}

uint64_t mf_resize_room_bytes(uint32_t width, uint32_t channels)
{
    return (uint64_t)width * (3 * sizeof(uint32_t) + 2 * sizeof(float) * channels) + 5 * 64;
}

static memfit_status begin(void *ctx, uint32_t width, uint32_t height, mf_room *room, memfit_error *err)
{
    mf_resize *r = ctx;
    const size_t n = (size_t)r->width * r->channels;
    r->from_width = width;
    r->from_height = height;
    r->next_in = r->next_out = 0;
    r->held[0] = r->held[1] = -1;
    r->low = mf_room_take(room, r->width * sizeof *r->low);
    r->high = mf_room_take(room, r->width * sizeof *r->high);
    r->share = mf_room_take(room, r->width * sizeof *r->share);
    r->rows[0] = mf_room_take(room, n * sizeof(float));
    r->rows[1] = mf_room_take(room, n * sizeof(float));
    if (!r->low || !r->high || !r->share || !r->rows[0] || !r->rows[1])
        return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "a worker has too little memory to resize a picture to a width of %u",
                       r->width);
    for (uint32_t x = 0; x < r->width; x++) {
        place(x, width, r->width, &r->low[x], &r->high[x], &r->share[x]);
        r->low[x] *= r->channels;
        r->high[x] *= r->channels;
    }
    return MEMFIT_OK;
}

/* The columns that can be done four values at a time, of which the fourth is the next column's: those before the last
 * pixel of the row and of the result. The same operations in the same order, so the same bits. How many those are. */
static uint32_t sideways_four(const mf_resize *r, const unsigned char *row, float *out)
{
    uint32_t x = 0;
#ifdef __SSE2__
    const uint32_t end = r->from_width * 3;
    const __m128i zero = _mm_setzero_si128();
    for (; x + 1 < r->width && r->high[x] + 4 <= end && r->low[x] + 4 <= end; x++) {
        int32_t low, high;
        memcpy(&low, row + r->low[x], sizeof low);
        memcpy(&high, row + r->high[x], sizeof high);
        const __m128i a = _mm_unpacklo_epi8(_mm_cvtsi32_si128(low), zero);
        const __m128i b = _mm_unpacklo_epi8(_mm_cvtsi32_si128(high), zero);
        const __m128 fa = _mm_cvtepi32_ps(_mm_unpacklo_epi16(a, zero)),
                     fb = _mm_cvtepi32_ps(_mm_unpacklo_epi16(b, zero));
        _mm_storeu_ps(out + 3 * (size_t)x, _mm_add_ps(fa, _mm_mul_ps(_mm_sub_ps(fb, fa), _mm_set1_ps(r->share[x]))));
    }
#else
    (void)r, (void)row, (void)out;
#endif
    return x;
}

static void sideways(const mf_resize *r, const unsigned char *row, float *out)
{
    const uint32_t channels = r->channels;
    if (channels == 3) {
        uint32_t x = sideways_four(r, row, out);
        for (out += 3 * (size_t)x; x < r->width; x++, out += 3) {
            const unsigned char *a = row + r->low[x], *b = row + r->high[x];
            const float s = r->share[x];
            const float a0 = (float)a[0], a1 = (float)a[1], a2 = (float)a[2];
            out[0] = a0 + ((float)b[0] - a0) * s;
            out[1] = a1 + ((float)b[1] - a1) * s;
            out[2] = a2 + ((float)b[2] - a2) * s;
        }
        return;
    }
    for (uint32_t x = 0; x < r->width; x++)
        for (uint32_t c = 0; c < channels; c++) {
            const float a = (float)row[r->low[x] + c], b = (float)row[r->high[x] + c];
            *out++ = a + (b - a) * r->share[x];
        }
}

static void mix(const mf_resize *r, const float *restrict top, const float *restrict bottom, float share)
{
    const size_t n = (size_t)r->width * r->channels;
    if (r->dtype == MF_F32) {
        float *restrict out = (float *)r->out + n * r->next_out;
        for (size_t i = 0; i < n; i++)
            out[i] = top[i] + (bottom[i] - top[i]) * share;
    } else {
        unsigned char *restrict out = (unsigned char *)r->out + n * r->next_out;
        for (size_t i = 0; i < n; i++)
            out[i] = (unsigned char)(top[i] + (bottom[i] - top[i]) * share + 0.5f);
    }
}

static void copy_row(mf_resize *r, const unsigned char *row)
{
    const size_t n = (size_t)r->width * r->channels;
    if (r->dtype == MF_U8) {
        memcpy((unsigned char *)r->out + n * r->next_out, row, n);
    } else {
        float *restrict out = (float *)r->out + n * r->next_out;
        for (size_t i = 0; i < n; i++)
            out[i] = (float)row[i];
    }
    r->next_out++;
}

static void take_row(void *ctx, const unsigned char *row)
{
    mf_resize *r = ctx;
    const uint32_t y = r->next_in++;
    if (r->from_width == r->width && r->from_height == r->height) {
        if (r->next_out < r->height)
            copy_row(r, row);
        return;
    }
    bool done = false; /* this row sideways */
    while (r->next_out < r->height) {
        uint32_t low, high;
        float share;
        place(r->next_out, r->from_height, r->height, &low, &high, &share);
        if (y < low)
            return; /* no row of the result needs it */
        if (!done) {
            /* Kept instead of the older one: rows come in order, so the newer is the last one that can still be a low. */
            int i = r->held[0] <= r->held[1] ? 0 : 1;
            sideways(r, row, r->rows[i]);
            r->held[i] = y;
            done = true;
        }
        if (y < high)
            return;
        mix(r, r->rows[r->held[0] == low ? 0 : 1], r->rows[r->held[0] == high ? 0 : 1], share);
        r->next_out++;
    }
}

bool mf_resize_is_whole(const mf_resize *r)
{
    return r->next_out == r->height;
}

mf_picture_sink mf_resize_sink(mf_resize *r)
{
    return (mf_picture_sink){r, begin, take_row};
}
