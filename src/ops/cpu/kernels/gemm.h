/*
 * gemm.h: own matrix products, and convolutions as products whose operands are read where they lie.
 *
 *     c[i][j] = [relu of] scale * sum over k of a[i][k] * b[j][k]   [+ bias[j]] [+ c[i][j]]
 *
 * An operand is a source: it says where element (i, k) lies. A convolution's windows are never written out; the packing
 * that every fast product does anyway reads them from the image:
 *
 *     forward           a = windows of x      (place, tap and channel)    b = weights
 *     weight gradient   a = the same, turned  (tap and channel, place)    b = dy
 *     data gradient     a = windows of dy                                 b = weights, channels exchanged
 *
 * With a stride s the data gradient is s products in each dimension: the places of x with one remainder by s see the
 * same taps, with windows that move by one.
 *
 * Threads: a product is divided into parts_batch * parts_m * parts_n * parts_k parts, by shape and thread count alone.
 * Parts along k write sums of their own, which are added in the order of the parts. So equal calls give equal bits.
 */
#ifndef MF_OPS_GEMM_H
#define MF_OPS_GEMM_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MF_K_GEMM_M = 72,  /* rows of a packed at a time; a multiple of every set's tile */
    MF_K_GEMM_N = 256, /* columns of b packed at a time, likewise */
    MF_K_GEMM_K = 256, /* products summed before a tile is written */
    MF_K_GEMM_TILE_M = 12,
    MF_K_GEMM_TILE_N = 32,
};

/* Windows over an image (batch, size..., channels): place q of dimension d sees, with tap t, q * step + first + t * by.
 * Three dimensions, ones where there are fewer. */
typedef struct mf_k_windows {
    int64_t size[3], places[3], taps[3], step[3], first[3], by[3];
    int64_t channels; /* read of each pixel */
    int64_t pixel;    /* elements from pixel to pixel */
} mf_k_windows;

typedef enum {
    MF_K_PLAIN,   /* i * i_step + k * k_step; one of the steps is 1 */
    MF_K_PLACES,  /* i is a place, k a tap and channel of windows */
    MF_K_TAPS,    /* i is a tap and channel, k a place */
    MF_K_WEIGHTS, /* i a channel in, k a tap and channel out: (first + tap * by) in each dimension of `size` taps */
} mf_k_source_kind;

typedef struct mf_k_source {
    mf_k_source_kind kind;
    int64_t i_step, k_step, batch_step;
    mf_k_windows w;
} mf_k_source;

typedef struct mf_k_gemm {
    int64_t batch, m, n, k;
    mf_k_source a, b;
    int64_t c_row, c_batch, bias_batch;
    bool scattered; /* rows of c are places of an image: first + step * place in each dimension of `size` */
    mf_k_windows rows;
    float scale;
    bool bias, accumulate, relu;
    int64_t parts_batch, parts_m, parts_n, parts_k; /* by mf_k_gemm_divide */
} mf_k_gemm;

/* Chooses the parts for a number of threads. */
void mf_k_gemm_divide(mf_k_gemm *g, int threads);
/* Floats of workspace for what was chosen. */
uint64_t mf_k_gemm_floats(const mf_k_gemm *g);
/* Of these what one part packs, and of that the beginning, for b. */
uint64_t mf_k_gemm_part_floats(const mf_k_gemm *g);
uint64_t mf_k_gemm_packed_b_floats(const mf_k_gemm *g);

static inline int64_t mf_k_gemm_parts(const mf_k_gemm *g)
{
    return g->parts_batch * g->parts_m * g->parts_n * g->parts_k;
}

/* Depthwise: every channel with taps of its own, weights (taps, channels). */
typedef struct mf_k_depthwise {
    int64_t batch, channels, in[3], out[3], kernel[3], stride[3], dilation[3], before[3];
} mf_k_depthwise;

#endif
