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
    return (uint64_t)width * (2 * sizeof(uint32_t) + 3 * sizeof(float) * channels) + 5 * 64;
}

/* Columns whose right pixel is beside the left one, or does not count, and whose pair can be read as 8 bytes: all but a few at
 * both ends. */
static bool is_inner(const mf_resize *r, uint32_t x)
{
    bool beside = r->high[x] == r->low[x] + 3 || (r->high[x] == r->low[x] && r->share[3 * x] == 0);
    return r->channels == 3 && beside && r->low[x] + 8 <= r->from_width * 3;
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
    r->share = mf_room_take(room, n * sizeof *r->share);
    r->rows[0] = mf_room_take(room, n * sizeof(float));
    r->rows[1] = mf_room_take(room, n * sizeof(float));
    if (!r->low || !r->high || !r->share || !r->rows[0] || !r->rows[1]) {
        mf_fail(err, MEMFIT_OUT_OF_MEMORY,
                "a worker has too little memory to resize a picture to a width of %u\n"
                "--decode-memory SIZE gives each worker more",
                r->width);
        if (err)
            err->requested_bytes = room->refused;
        return MEMFIT_OUT_OF_MEMORY;
    }
    for (uint32_t x = 0; x < r->width; x++) {
        float share;
        place(x, width, r->width, &r->low[x], &r->high[x], &share);
        r->low[x] *= r->channels;
        r->high[x] *= r->channels;
        for (uint32_t c = 0; c < r->channels; c++)
            r->share[x * r->channels + c] = share;
    }
    for (r->inner = 0; r->inner < r->width && !is_inner(r, r->inner);)
        r->inner++;
    for (r->outer = r->inner; r->outer < r->width && is_inner(r, r->outer);)
        r->outer++;
    r->fast = mf_resize_avx2();
    return MEMFIT_OK;
}

/* Columns from x to before `end`. */
static void sideways_plain(const mf_resize *r, const unsigned char *row, uint32_t x, uint32_t end, float *out)
{
    const uint32_t channels = r->channels;
    for (; x < end; x++) {
        const unsigned char *left = row + r->low[x], *right = row + r->high[x];
        for (uint32_t c = 0; c < channels; c++) {
            const float a = (float)left[c], b = (float)right[c];
            out[x * channels + c] = a + (b - a) * r->share[x * channels + c];
        }
    }
}

/* Four values at a time, of which the fourth is the next column's and is written again: all but the row's last column. How
 * far it came. */
static uint32_t sideways_four(const mf_resize *r, const unsigned char *row, uint32_t x, float *out)
{
#ifdef __SSE2__
    const __m128i zero = _mm_setzero_si128();
    for (; x < r->outer && x + 1 < r->width; x++) {
        int32_t low, high;
        memcpy(&low, row + r->low[x], sizeof low);
        memcpy(&high, row + r->low[x] + 3, sizeof high);
        const __m128i a = _mm_unpacklo_epi8(_mm_cvtsi32_si128(low), zero);
        const __m128i b = _mm_unpacklo_epi8(_mm_cvtsi32_si128(high), zero);
        const __m128 fa = _mm_cvtepi32_ps(_mm_unpacklo_epi16(a, zero)),
                     fb = _mm_cvtepi32_ps(_mm_unpacklo_epi16(b, zero));
        const __m128 share = _mm_set1_ps(r->share[3 * (size_t)x]);
        _mm_storeu_ps(out + 3 * (size_t)x, _mm_add_ps(fa, _mm_mul_ps(_mm_sub_ps(fb, fa), share)));
    }
#else
    (void)r, (void)row, (void)out;
#endif
    return x;
}

static void sideways(const mf_resize *r, const unsigned char *row, float *out)
{
    uint32_t x = r->inner;
    sideways_plain(r, row, 0, x, out);
    if (r->fast)
        r->fast->sideways(row, r->low, r->share, &x, r->outer, out);
    x = sideways_four(r, row, x, out);
    sideways_plain(r, row, x, r->width, out);
}

static void mix(const mf_resize *r, const float *restrict top, const float *restrict bottom, float share)
{
    const size_t n = (size_t)r->width * r->channels;
    float *restrict values = (float *)r->out + n * r->next_out;
    unsigned char *restrict bytes = (unsigned char *)r->out + n * r->next_out;
    if (r->fast && r->dtype == MF_F32)
        r->fast->mix(top, bottom, share, n, values);
    else if (r->fast)
        r->fast->round(top, bottom, share, n, bytes);
    else if (r->dtype == MF_F32)
        for (size_t i = 0; i < n; i++)
            values[i] = top[i] + (bottom[i] - top[i]) * share;
    else
        for (size_t i = 0; i < n; i++)
            bytes[i] = (unsigned char)(top[i] + (bottom[i] - top[i]) * share + 0.5f);
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
