/*
 * pack.h: a block of a product's operand laid out for the inner loop: panels of `wide` rows, each panel step by step
 * along k, rows behind the last filled with zeros.
 *
 *     to[panel][k][row in panel]
 *
 * Every function is inlined with a constant width, so that its innermost loops are straight code.
 */
#ifndef MF_OPS_PACK_H
#define MF_OPS_PACK_H

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

/* Rows that lie apart, each with n values in a line. */
PACK_INLINE void pack_rows(const float *const *row, int64_t n, int wide, float *to)
{
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 32
        for (int i = 0; i < wide; i++)
            to[k * wide + i] = row[i][k];
    }
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

PACK_INLINE void pack_places(const mf_k_source *s, const float *x, int64_t i, int rows, int64_t k, int64_t n, int wide,
                             float *to)
{
    int64_t place[PACK_MOST][3], sample[PACK_MOST], tap[3];
    sample[0] = pack_split(i, s->w.places, place[0]);
    for (int r = 1; r < rows; r++) {
        memcpy(place[r], place[r - 1], sizeof place[r]);
        sample[r] = sample[r - 1];
        pack_next(s->w.places, place[r], &sample[r]);
    }
    for (int64_t end = k + n, run; k < end; k += run, to += run * wide) {
        int64_t channel = k % s->w.channels;
        pack_split(k / s->w.channels, s->w.taps, tap);
        run = s->w.channels - channel < end - k ? s->w.channels - channel : end - k;
        const float *row[PACK_MOST];
        for (int r = 0; r < wide; r++) {
            const float *pixel = r < rows ? pack_pixel(&s->w, x, sample[r], place[r], tap) : NULL;
            row[r] = pixel ? pixel + channel : pack_zeros;
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
