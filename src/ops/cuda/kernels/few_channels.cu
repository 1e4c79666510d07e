/*
 * few_channels.cu: gradients of filters where the input has few channels: a library pads these channels in its workspace,
 * or takes long. dw[m][n] is a sum over output cells, m a tap and an input channel, n an output channel.
 *
 *     a block       takes stretches of CELLS output cells of a row, with the input they see, into shared memory;
 *                   MG x NG threads have TM x TN sums each in registers, KG such sets share a stretch's cells
 *     at the end    the sets are added up, each block leaves what it has in the workspace, and fewjoin joins it
 */
#include "program.cuh"
static constexpr mf_ref_window w = WINDOW;
static constexpr idx CIN = (idx)w.in_channels, COUT = (idx)w.out_channels, KW = (idx)w.kernel[2], KH = (idx)w.kernel[1];
static constexpr int M = (int)(KH * KW * CIN), MG = (M + TM - 1) / TM, NG = (int)((COUT + TN - 1) / TN), KG = BLOCK / (MG * NG);
static constexpr int SPAN = (int)(((CELLS - 1) * w.stride[2] + (KW - 1) * w.dilation[2] + 1) * CIN), NPAD = NG * TN;
static constexpr idx PARTS = ((idx)w.out[2] + CELLS - 1) / CELLS, STRETCHES = (idx)(w.batch * w.out[1]) * PARTS;

/* The stretch's slopes and the rows of input it sees; zeros outside. */
static inline void take_stretch(const args &a, idx stretch, real (*dy)[NPAD], real (*x)[SPAN])
{
    idx first = stretch % PARTS * CELLS, h = stretch / PARTS % (idx)w.out[1], n = stretch / (PARTS * (idx)w.out[1]);
    for (idx i = (idx)threadIdx.x; i < CELLS * NPAD; i += BLOCK) {
        idx c = i % NPAD, o = first + i / NPAD;
        dy[i / NPAD][c] = c < COUT && o < (idx)w.out[2]
                              ? load_one<in_dtype[1]>(a.in[1], ((n * (idx)w.out[1] + h) * (idx)w.out[2] + o) * COUT + c)
                              : 0;
    }
    for (idx i = (idx)threadIdx.x; i < KH * SPAN; i += BLOCK) {
        idx row = h * (idx)w.stride[1] - (idx)w.before[1] + i / SPAN * (idx)w.dilation[1];
        idx column = first * (idx)w.stride[2] - (idx)w.before[2] + i % SPAN / CIN;
        x[i / SPAN][i % SPAN] =
            row >= 0 && row < (idx)w.in[1] && column >= 0 && column < (idx)w.in[2]
                ? load_one<in_dtype[0]>(a.in[0], ((n * (idx)w.in[1] + row) * (idx)w.in[2] + column) * CIN + i % SPAN % CIN)
                : 0;
    }
}

ENTRY few0(args a)
{
    __shared__ real dy[CELLS][NPAD];
    __shared__ real x[KH][SPAN];
    int t = (int)threadIdx.x, n = t % NG, m = t / NG % MG, set = t / (NG * MG);
    real sum[TM][TN] = {};
    const real *seen[TM];
#ifndef MF_SHIM
#pragma unroll
#endif
    for (int i = 0; i < TM; i++) {
        int tap = m * TM + i < M ? m * TM + i : 0;
        seen[i] = &x[tap / (int)(KW * CIN)][tap / (int)CIN % (int)KW * (int)(w.dilation[2] * CIN) + tap % (int)CIN];
    }
    for (idx stretch = (idx)blockIdx.x; stretch < STRETCHES; stretch += (idx)FEW_BLOCKS) {
        __syncthreads();
        take_stretch(a, stretch, dy, x);
        __syncthreads();
        for (int c = set; c < CELLS && set < KG; c += KG) {
            real d[TN];
            for (int j = 0; j < TN; j++)
                d[j] = dy[c][n * TN + j];
#ifndef MF_SHIM
#pragma unroll
#endif
            for (int i = 0; i < TM; i++) {
                real v = seen[i][c * (int)(w.stride[2] * CIN)];
                for (int j = 0; j < TN; j++)
                    sum[i][j] += v * d[j];
            }
        }
    }
    /* the sets, one after the other, through shared memory */
    __shared__ real joined[M][NPAD];
    for (int k = 0; k < KG; k++) {
        __syncthreads();
        for (int i = 0; i < TM && set == k; i++)
            for (int j = 0; j < TN && m * TM + i < M; j++)
                joined[m * TM + i][n * TN + j] = sum[i][j] + (k ? joined[m * TM + i][n * TN + j] : 0);
    }
    __syncthreads();
    for (idx i = (idx)threadIdx.x; i < M * COUT; i += BLOCK)
        ((double *)((char *)a.workspace + FEW_AT))[(idx)blockIdx.x * M * COUT + i] = (double)joined[i / COUT][i % COUT];
}

ENTRY fewjoin(args a)
{
    constexpr int lanes = BLOCK / FEW_JOIN;
    __shared__ double part[BLOCK];
    idx j = (idx)blockIdx.x * FEW_JOIN + (idx)threadIdx.x % FEW_JOIN, lane = (idx)threadIdx.x / FEW_JOIN;
    double sum = 0;
    for (idx s = lane; s < (idx)FEW_BLOCKS && j < M * COUT; s += lanes)
        sum += ((const double *)((char *)a.workspace + FEW_AT))[s * M * COUT + j];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int rows = lanes / 2; rows > 0; rows /= 2) {
        if (lane < rows)
            part[threadIdx.x] += part[threadIdx.x + rows * FEW_JOIN];
        __syncthreads();
    }
    if (lane == 0 && j < M * COUT)
        store_one<out_dtype[0], out_adds[0]>(a.out[0], j, (real)part[threadIdx.x]);
}
#ifdef HAS_SUMS
#include "program.cu"
#endif
