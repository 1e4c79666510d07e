/*
 * conv_pool.cuh: what both ways of convolution with pooling share (conv_pool.cu, conv_pool_tiles.cu): the window, places of
 * pooled cells, the largest of four, and how blocks' sums of the filters' gradient are joined.
 */
#ifndef MF_CONV_POOL_CUH
#define MF_CONV_POOL_CUH
#include "program.cuh"
static constexpr mf_ref_window w = WINDOW;
static constexpr idx CIN = (idx)w.in_channels, COUT = (idx)w.out_channels, KW = (idx)w.kernel[2], KH = (idx)w.kernel[1], S = (idx)w.stride[2];
static constexpr int SEG = SEGMENT, M = (int)(KH * KW * CIN);
static constexpr idx PARTS = ((idx)POOLED_W + SEG - 1) / SEG;
#ifdef MF_SHIM
#define UNROLLED
#else
#define UNROLLED _Pragma("unroll")
#endif

struct tile {
    idx n, row, first; /* image, pooled row, first pooled cell */
};

static inline idx pooled_at(const tile &t, idx cell, idx c)
{
    return ((t.n * (idx)POOLED_H + t.row) * (idx)POOLED_W + cell) * COUT + c;
}

#ifdef FORWARD
/* As the convolution's result would be stored: so are ties what they are there. */
static inline float as_stored(float v)
{
    return (float)widen<Y_DTYPE>(narrow<Y_DTYPE>((real)v));
}

static inline float activated(float v)
{
    return ACTIVATION && v < 0 ? 0 : ACTIVATION == 6 && v > 6 ? 6 : v;
}

/* The largest of four, by rows, and its number. */
static inline float largest(float a, float b, float c, float d, int &winner)
{
    const float all[4] = {as_stored(a), as_stored(b), as_stored(c), as_stored(d)};
    float best = all[0];
    winner = 0;
    UNROLLED for (int q = 1; q < 4; q++)
    {
        if (all[q] > best || (all[q] != all[q] && best == best)) {
            best = all[q];
            winner = q;
        }
    }
    return best;
}
#else
ENTRY pooljoin(args a)
{
    constexpr int lanes = BLOCK / POOL_JOIN;
    __shared__ double part[BLOCK];
    idx j = (idx)blockIdx.x * POOL_JOIN + (idx)threadIdx.x % POOL_JOIN, lane = (idx)threadIdx.x / POOL_JOIN;
    double sum = 0;
    for (idx b = lane; b < (idx)POOL_BLOCKS && j < (M + 1) * COUT; b += lanes)
        sum += ((const double *)((char *)a.workspace + POOL_AT))[b * (M + 1) * COUT + j];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int rows = lanes / 2; rows > 0; rows /= 2) {
        if (lane < rows)
            part[threadIdx.x] += part[threadIdx.x + rows * POOL_JOIN];
        __syncthreads();
    }
    if (lane == 0 && j < M * COUT)
        store_one<out_dtype[F_OUT], F_ADDS>(a.out[F_OUT], j, (real)part[threadIdx.x]);
    else if (HAS_BIAS && lane == 0 && j < (M + 1) * COUT)
        store_one<out_dtype[B_OUT], B_ADDS>(a.out[B_OUT], j - M * COUT, (real)part[threadIdx.x]);
}
#endif
#endif
