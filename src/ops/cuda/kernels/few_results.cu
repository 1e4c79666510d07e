/*
 * few_results.cu: convolutions that see one cell (1 x 1) and make at most a few channels of it, as the last layer of a
 * segmentation does, and their gradients: one pass over the many channels, at which a library's tiles are mostly empty.
 *
 *     a thread has WV of the C channels side by side, with their part of the filters in registers; LANES of them a cell
 *     k0       forward: lanes' sums are joined in shared memory; data: each lane writes its channels
 *     few0     weights: sums of its channels over all cells of the block; the bias's gradient beside them
 *     fewjoin  joins what the blocks left, in a fixed order
 */
#include "program.cuh"
static constexpr mf_ref_window w = WINDOW;
static constexpr idx C = (idx)w.in_channels, S = (idx)w.out_channels;
static constexpr idx CELLS = (idx)(w.batch * w.out[0] * w.out[1] * w.out[2]);
static constexpr int VECTORS = (int)(C / WV), LANES = VECTORS <= BLOCK ? VECTORS : 1, SLOTS = BLOCK / LANES, EACH_CELL = 4;
#ifdef MF_SHIM
#define UNROLLED
#else
#define UNROLLED _Pragma("unroll")
#endif

static inline void load_filters(const args &a, int v, float (&f)[WV][S])
{
    UNROLLED for (int n = 0; n < WV * (int)S; n++) f[n / (int)S][n % (int)S] =
        (float)load_one<in_dtype[1]>(a.in[1], (idx)v * WV * S + n);
}

#if defined(KIND_CONV)
ENTRY k0(args a)
{
    __shared__ float part[EACH_CELL][S][BLOCK];
    const int lane = (int)threadIdx.x % LANES, slot = (int)threadIdx.x / LANES;
    const idx first = (idx)blockIdx.x * SLOTS * EACH_CELL;
    float sum[EACH_CELL][S] = {};
    for (int v = lane; v < VECTORS && slot < SLOTS; v += LANES) {
        float f[WV][S];
        load_filters(a, v, f);
        UNROLLED for (int e = 0; e < EACH_CELL; e++)
        {
            idx cell = first + e * SLOTS + slot;
            real x[WV] = {};
            if (cell < CELLS)
                load_vector<in_dtype[0]>(x, a.in[0], cell * C + v * WV);
            UNROLLED for (int n = 0; n < (int)S; n++) EACH_OF(WV) sum[e][n] += (float)x[k] * f[k][n];
        }
    }
    UNROLLED for (int n = 0; n < EACH_CELL * (int)S; n++) part[n / (int)S][n % (int)S][threadIdx.x] = sum[n / (int)S][n % (int)S];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < EACH_CELL * SLOTS * (int)S; i += BLOCK) {
        int n = i % (int)S, at = i / (int)S;
        float total = HAS_BIAS ? (float)load_one<in_dtype[HAS_BIAS ? 2 : 0]>(a.in[HAS_BIAS ? 2 : 0], n) : 0;
        for (int l = 0; l < LANES; l++)
            total += part[at / SLOTS][n][at % SLOTS * LANES + l];
        if (first + at < CELLS)
            store_one<out_dtype[0], out_adds[0]>(a.out[0], (first + at) * S + n, (real)total);
    }
}
#elif defined(KIND_CONV_GRAD_DATA)
ENTRY k0(args a)
{
    const int lane = (int)threadIdx.x % LANES, slot = (int)threadIdx.x / LANES;
    const idx first = (idx)blockIdx.x * SLOTS * EACH_CELL;
    for (int v = lane; v < VECTORS && slot < SLOTS; v += LANES) {
        float f[WV][S];
        load_filters(a, v, f);
        UNROLLED for (int e = 0; e < EACH_CELL; e++)
        {
            idx cell = first + e * SLOTS + slot;
            if (cell >= CELLS)
                continue;
            real dx[WV] = {};
            UNROLLED for (int n = 0; n < (int)S; n++)
            {
                float dy = (float)load_one<in_dtype[0]>(a.in[0], cell * S + n);
                EACH_OF(WV) dx[k] += (real)(dy * f[k][n]);
            }
            store_vector<out_dtype[0], out_adds[0]>(a.out[0], cell * C + v * WV, dx);
        }
    }
}
#else
static constexpr idx SUMS = C * S + S; /* of all channels, then of the bias */

ENTRY few0(args a)
{
    __shared__ float part[BLOCK];
    const int lane = (int)threadIdx.x % LANES, slot = (int)threadIdx.x / LANES;
    double *left = (double *)((char *)a.workspace + FEW_AT) + (idx)blockIdx.x * SUMS;
    for (int v = lane; v < VECTORS; v += LANES) {
        float sum[WV + 1][S] = {};
#ifndef MF_SHIM
#pragma unroll 4
#endif
        for (idx cell = (idx)blockIdx.x * SLOTS + slot; slot < SLOTS && cell < CELLS; cell += (idx)FEW_BLOCKS * SLOTS)
        {
            real x[WV];
            load_vector<in_dtype[0]>(x, a.in[0], cell * C + v * WV);
            UNROLLED for (int n = 0; n < (int)S; n++)
            {
                float dy = (float)load_one<in_dtype[1]>(a.in[1], cell * S + n);
                EACH_OF(WV) sum[k][n] += (float)x[k] * dy;
                sum[WV][n] += dy;
            }
        }
        UNROLLED for (int n = 0; n < (WV + 1) * (int)S; n++)
        {
            __syncthreads();
            part[threadIdx.x] = sum[n / (int)S][n % (int)S];
            for (int all = SLOTS, half = (SLOTS + 1) / 2; all > 1; all = half, half = (half + 1) / 2) {
                __syncthreads();
                if (slot < half && slot + half < all)
                    part[threadIdx.x] += part[threadIdx.x + half * LANES];
            }
            if (slot == 0 && n < WV * (int)S)
                left[(idx)v * WV * S + n] = (double)part[threadIdx.x];
            else if (slot == 0 && v == 0)
                left[C * S + n - WV * (int)S] = (double)part[threadIdx.x];
        }
    }
}

ENTRY fewjoin(args a)
{
    constexpr int lanes = BLOCK / FEW_JOIN;
    __shared__ double part[BLOCK];
    idx j = (idx)blockIdx.x * FEW_JOIN + (idx)threadIdx.x % FEW_JOIN, lane = (idx)threadIdx.x / FEW_JOIN;
    double sum = 0;
    for (idx b = lane; b < (idx)FEW_BLOCKS && j < SUMS; b += lanes)
        sum += ((const double *)((char *)a.workspace + FEW_AT))[b * SUMS + j];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int rows = lanes / 2; rows > 0; rows /= 2) {
        if (lane < rows)
            part[threadIdx.x] += part[threadIdx.x + rows * FEW_JOIN];
        __syncthreads();
    }
    if (lane == 0 && j < C * S)
        store_one<out_dtype[0], out_adds[0]>(a.out[0], j, (real)part[threadIdx.x]);
    else if (HAS_BIAS && lane == 0 && j < SUMS)
        store_one<out_dtype[HAS_BIAS], out_adds[HAS_BIAS]>(a.out[HAS_BIAS], j - C * S, (real)part[threadIdx.x]);
}
#endif
