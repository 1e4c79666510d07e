/*
 * gemm_pack.h: a block of a product's operand laid out for the inner loop: panels of `wide` rows, each panel step by step
 * along k, rows behind the last filled with zeros.
 *
 *     to[panel][k][row in panel]
 *
 * Every function is inlined with a constant width, so that its innermost loops are straight code.
 */
#ifndef MF_OPS_GEMM_PACK_H
#define MF_OPS_GEMM_PACK_H

#include "ops/cpu/kernels/gemm.h"
#include "ops/cpu/kernels/kernels_isa.h"

#define PACK_INLINE static inline __attribute__((always_inline))

enum { PACK_MOST = 32 }; /* rows of a panel */

static const float pack_zeros[MF_K_GEMM_K];

/* Place or tap number i of a grid, as coordinates; the return value is what is left over (the sample). */
static inline int64_t pack_split(int64_t i, const int64_t *grid, int64_t *at)
{
    for (int d = 2; d >= 0; d--) {
        at[d] = i % grid[d];
        i /= grid[d];
    }
    return i;
}

static inline void pack_next(const int64_t *grid, int64_t *at, int64_t *sample)
{
    for (int d = 2; d >= 0; d--) {
        if (++at[d] < grid[d])
            return;
        at[d] = 0;
    }
    ++*sample;
}

/* The pixel that a place sees with a tap, or NULL in the padding. */
static inline const float *pack_pixel(const mf_k_windows *w, const float *x, int64_t sample, const int64_t *place,
                                      const int64_t *tap)
{
    int64_t at = sample;
    for (int d = 0; d < 3; d++) {
        int64_t i = place[d] * w->step[d] + w->first[d] + tap[d] * w->by[d];
        if (i < 0 || i >= w->size[d])
            return NULL;
        at = at * w->size[d] + i;
    }
    return x + at * w->pixel;
}

typedef float pack_four __attribute__((vector_size(16), aligned(4)));
typedef int32_t pack_order __attribute__((vector_size(16)));

/* Four rows, four steps: turned in registers. */
PACK_INLINE void pack_square(const float *const *row, int64_t k, int wide, float *to)
{
    pack_four a = *(const pack_four *)(const void *)(row[0] + k), b = *(const pack_four *)(const void *)(row[1] + k);
    pack_four c = *(const pack_four *)(const void *)(row[2] + k), d = *(const pack_four *)(const void *)(row[3] + k);
    pack_four ab = __builtin_shuffle(a, b, (pack_order){0, 4, 1, 5}),
              cd = __builtin_shuffle(c, d, (pack_order){0, 4, 1, 5});
    pack_four AB = __builtin_shuffle(a, b, (pack_order){2, 6, 3, 7}),
              CD = __builtin_shuffle(c, d, (pack_order){2, 6, 3, 7});
    *(pack_four *)(void *)to = __builtin_shuffle(ab, cd, (pack_order){0, 1, 4, 5});
    *(pack_four *)(void *)(to + wide) = __builtin_shuffle(ab, cd, (pack_order){2, 3, 6, 7});
    *(pack_four *)(void *)(to + 2 * wide) = __builtin_shuffle(AB, CD, (pack_order){0, 1, 4, 5});
    *(pack_four *)(void *)(to + 3 * wide) = __builtin_shuffle(AB, CD, (pack_order){2, 3, 6, 7});
}

/* Rows that lie apart, each with n values in a line. */
PACK_INLINE void pack_rows(const float *const *row, int64_t n, int wide, float *to)
{
    int64_t k = 0;
    for (; k + 4 <= n; k += 4) {
        float *at = to + k * wide;
#pragma GCC unroll 8
        for (int i = 0; i + 4 <= wide; i += 4)
            pack_square(row + i, k, wide, at + i);
#pragma GCC unroll 4
        for (int i = wide / 4 * 4; i < wide; i++)
            for (int e = 0; e < 4; e++)
                at[e * wide + i] = row[i][k + e];
    }
    for (; k < n; k++)
        for (int i = 0; i < wide; i++)
            to[k * wide + i] = row[i][k];
}

PACK_INLINE void pack_plain(const mf_k_source *s, const float *x, int64_t i, int rows, int64_t k, int64_t n, int wide,
                            float *to)
{
    x += i * s->i_step + k * s->k_step;
    if (s->i_step == 1 && rows == wide) {
        for (int64_t j = 0; j < n; j++)
            memcpy(to + j * wide, x + j * s->k_step, (size_t)wide * sizeof *to);
    } else if (s->i_step == 1) {
        memset(to, 0, (size_t)(n * wide) * sizeof *to);
        for (int64_t j = 0; j < n; j++)
            for (int r = 0; r < rows; r++)
                to[j * wide + r] = x[j * s->k_step + r];
    } else {
        const float *row[PACK_MOST];
        for (int r = 0; r < wide; r++)
            row[r] = r < rows ? x + r * s->i_step : pack_zeros;
        pack_rows(row, n, wide, to);
    }
}

/* What a place sees with the first tap, and whether all its taps lie inside the image. */
typedef struct pack_window {
    int64_t at[3];
    const float *pixel; /* may lie outside */
    bool inside;
} pack_window;

static inline pack_window pack_window_of(const mf_k_windows *w, const float *x, int64_t sample, const int64_t *place)
{
    pack_window v = {.inside = true};
    int64_t at = sample;
    for (int d = 0; d < 3; d++) {
        int64_t first = place[d] * w->step[d] + w->first[d], last = first + (w->taps[d] - 1) * w->by[d];
        v.at[d] = first;
        v.inside &= first >= 0 && first < w->size[d] && last >= 0 && last < w->size[d];
        at = at * w->size[d] + first;
    }
    v.pixel = x + at * w->pixel;
    return v;
}

PACK_INLINE void pack_places(const mf_k_source *s, const float *x, int64_t i, int rows, int64_t k, int64_t n, int wide,
                             float *to)
{
    const mf_k_windows *w = &s->w;
    pack_window window[PACK_MOST];
    int64_t place[3], sample = pack_split(i, w->places, place), tap[3];
    for (int r = 0; r < rows; r++, pack_next(w->places, place, &sample))
        window[r] = pack_window_of(w, x, sample, place);
    for (int64_t end = k + n, run; k < end; k += run, to += run * wide) {
        int64_t channel = k % w->channels, shift[3], offset = 0;
        pack_split(k / w->channels, w->taps, tap);
        run = w->channels - channel < end - k ? w->channels - channel : end - k;
        for (int d = 0; d < 3; d++) {
            shift[d] = tap[d] * w->by[d];
            offset = offset * w->size[d] + shift[d];
        }
        const float *row[PACK_MOST];
        for (int r = 0; r < wide; r++) {
            bool sees = r < rows;
            for (int d = 0; sees && !window[r].inside && d < 3; d++)
                sees = (uint64_t)(window[r].at[d] + shift[d]) < (uint64_t)w->size[d];
            row[r] = sees ? window[r].pixel + offset * w->pixel + channel : pack_zeros;
        }
        pack_rows(row, run, wide, to);
    }
}

PACK_INLINE void pack_taps(const mf_k_source *s, const float *x, int64_t i, int rows, int64_t k, int64_t n, int wide,
                           float *to)
{
    for (int r = 0, run; r < wide; r += run) {
        if (r >= rows) {
            for (int64_t j = 0; j < n; j++)
                for (int e = r; e < wide; e++)
                    to[j * wide + e] = 0;
            return;
        }
        int64_t channel = (i + r) % s->w.channels, tap[3], place[3], left = s->w.channels - channel;
        pack_split((i + r) / s->w.channels, s->w.taps, tap);
        int64_t sample = pack_split(k, s->w.places, place);
        run = left < rows - r ? (int)left : rows - r;
        for (int64_t j = 0; j < n; j++, pack_next(s->w.places, place, &sample)) {
            const float *pixel = pack_pixel(&s->w, x, sample, place, tap), *from = pixel ? pixel + channel : pack_zeros;
            if (run == wide)
                memcpy(to + j * wide, from, (size_t)wide * sizeof *to);
            else
                for (int e = 0; e < run; e++)
                    to[j * wide + r + e] = from[e];
        }
    }
}

PACK_INLINE void pack_weights(const mf_k_source *s, const float *x, int64_t i, int rows, int64_t k, int64_t n, int wide,
                              float *to)
{
    for (int64_t end = k + n, run; k < end; k += run, to += run * wide) {
        int64_t channel = k % s->w.channels, tap[3], at = 0;
        pack_split(k / s->w.channels, s->w.taps, tap);
        run = s->w.channels - channel < end - k ? s->w.channels - channel : end - k;
        for (int d = 0; d < 3; d++)
            at = at * s->w.size[d] + s->w.first[d] + tap[d] * s->w.by[d];
        const float *row[PACK_MOST], *from = x + at * s->w.pixel + i * s->i_step + channel;
        for (int r = 0; r < wide; r++)
            row[r] = r < rows ? from + r * s->i_step : pack_zeros;
        pack_rows(row, run, wide, to);
    }
}

/* Rows [i, i + count), steps [k, k + n) of the source. */
PACK_INLINE void pack_block(const mf_k_source *s, const float *x, int64_t i, int64_t count, int64_t k, int64_t n,
                            int wide, float *to)
{
    for (int64_t end = i + count; i < end; i += wide, to += n * wide) {
        int rows = end - i < wide ? (int)(end - i) : wide;
        switch (s->kind) {
        case MF_K_PLAIN:
            pack_plain(s, x, i, rows, k, n, wide, to);
            break;
        case MF_K_PLACES:
            pack_places(s, x, i, rows, k, n, wide, to);
            break;
        case MF_K_TAPS:
            pack_taps(s, x, i, rows, k, n, wide, to);
            break;
        case MF_K_WEIGHTS:
            pack_weights(s, x, i, rows, k, n, wide, to);
            break;
        }
    }
}

#endif
