/*
 * thin.cu: products of a few rows and a few columns over a very long axis: a last layer behind a large picture, and its
 * gradients. They are one pass over memory, at which a library's tiles are mostly empty. With R rows, S columns, L long:
 *
 *     THIN_SUM     y (R x S) = x (R x L) w (L x S)      blocks have parts of L, warps rows; thinjoin joins the parts in order
 *     THIN_SPREAD  x (R x L) = y (R x S) w' (S x L)     a thread has EACH_L places of L: its part of w in registers
 *     THIN_OUTER   w (L x S) = x' (L x R) y (R x S)     the same, with sums in registers
 */
#include "program.cuh"
enum { R = THIN_R, S = THIN_S, LANES = BLOCK < 32 ? BLOCK : 32, WARPS = BLOCK / LANES, EACH_L = 4 };
enum { S4 = (S + 3) / 4, EACH_R = 4, PART = 256, GROUPS = (R + WARPS * EACH_R - 1) / (WARPS * EACH_R) };
static constexpr idx L = (idx)THIN_L;

#ifdef MF_SHIM
#define UNROLLED
#else
#define UNROLLED _Pragma("unroll")
#endif

struct alignas(16) four {
    float v[4];
};

#ifdef THIN_SUM
ENTRY thin(args a)
{
    __shared__ float w[PART][S], part[BLOCK];
    const int lane = (int)threadIdx.x % LANES, warp = (int)threadIdx.x / LANES;
    for (int g = 0; g < GROUPS; g++) {
        float sum[EACH_R][S] = {};
        const int first = (g * WARPS + warp) * EACH_R;
        for (idx from = (idx)blockIdx.x * PART; from < L; from += (idx)THIN_BLOCKS * PART) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < PART * S; i += BLOCK)
                w[i / S][i % S] = from * S + i < L * S ? (float)load_one<in_dtype[1]>(a.in[1], from * S + i) : 0;
            __syncthreads();
            for (int at = lane; at < PART; at += LANES) {
                float x[EACH_R];
                EACH_OF(EACH_R)
                x[k] = from + at < L && first + k < R ? (float)load_one<in_dtype[0]>(a.in[0], (first + k) * L + from + at) : 0;
                UNROLLED for (int n = 0; n < S; n++)
                {
                    float f = w[at][n];
                    EACH_OF(EACH_R) sum[k][n] += x[k] * f;
                }
            }
        }
        double *left = (double *)((char *)a.workspace + THIN_AT) + (idx)blockIdx.x * R * S;
        UNROLLED for (int i = 0; i < EACH_R; i++)
            UNROLLED for (int n = 0; n < S; n++)
            {
                __syncthreads();
                part[threadIdx.x] = sum[i][n];
                for (int far = LANES / 2; far > 0; far /= 2) {
                    __syncthreads();
                    if (lane < far)
                        part[threadIdx.x] += part[threadIdx.x + far];
                }
                if (lane == 0 && first + i < R)
                    left[(first + i) * S + n] = (double)part[threadIdx.x];
            }
    }
}

ENTRY thinjoin(args a)
{
    __shared__ double part[BLOCK];
    const idx j = (idx)blockIdx.x;
    double sum = 0;
    for (idx b = (idx)threadIdx.x; b < (idx)THIN_BLOCKS; b += BLOCK)
        sum += ((const double *)((char *)a.workspace + THIN_AT))[b * R * S + j];
    part[threadIdx.x] = sum;
    for (int far = BLOCK / 2; far > 0; far /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < far)
            part[threadIdx.x] += part[threadIdx.x + far];
    }
    if (threadIdx.x == 0) {
        real v = (real)(attr.matmul.scale * part[0]);
        store_one<out_dtype[0], out_adds[0]>(a.out[0], j, in_here[2] ? v + load_one<in_dtype[2]>(a.in[2], j % S) : v);
    }
}

#else
/* y with rows filled up to whole vectors. */
static inline void take_rows(const args &a, four (*to)[S4])
{
    for (int i = (int)threadIdx.x; i < R * S4 * 4; i += BLOCK) {
        int n = i % (S4 * 4);
        to[i / (S4 * 4)][n / 4].v[n % 4] = n < S ? (float)load_one<in_dtype[Y_IN]>(a.in[Y_IN], i / (S4 * 4) * S + n) : 0;
    }
    __syncthreads();
}

static inline idx place(int j)
{
    return ((idx)blockIdx.x * EACH_L + j) * BLOCK + (idx)threadIdx.x;
}

static inline void row_of(float (&y)[S4 * 4], const four *row)
{
    EACH_OF(S4 * 4) y[k] = row[k / 4].v[k % 4];
}
#endif

#ifdef THIN_SPREAD
ENTRY thin(args a)
{
    __shared__ four rows[R][S4];
    float w[EACH_L][S];
    take_rows(a, rows);
    UNROLLED for (int j = 0; j < EACH_L; j++)
        EACH_OF(S)
    w[j][k] = place(j) < L ? (float)(attr.matmul.scale * load_one<in_dtype[1]>(a.in[1], place(j) * S + k)) : 0;
    for (int r = 0; r < R; r++) {
        float y[S4 * 4];
        row_of(y, rows[r]);
        UNROLLED for (int j = 0; j < EACH_L; j++) {
            float v = 0;
            EACH_OF(S) v += y[k] * w[j][k];
            if (place(j) < L)
                store_one<out_dtype[0], out_adds[0]>(a.out[0], r * L + place(j), (real)v);
        }
    }
}
#endif

#ifdef THIN_OUTER
ENTRY thin(args a)
{
    __shared__ four rows[R][S4];
    float sum[EACH_L][S] = {};
    take_rows(a, rows);
#ifndef MF_SHIM
#pragma unroll 4
#endif
    for (int r = 0; r < R; r++) {
        float y[S4 * 4];
        row_of(y, rows[r]);
        UNROLLED for (int j = 0; j < EACH_L; j++) {
            float x = place(j) < L ? (float)load_one<in_dtype[0]>(a.in[0], r * L + place(j)) : 0;
            EACH_OF(S) sum[j][k] += x * y[k];
        }
    }
    UNROLLED for (int j = 0; j < EACH_L; j++)
        if (place(j) < L)
            EACH_OF(S)
    store_one<out_dtype[0], out_adds[0]>(a.out[0], place(j) * S + k, (real)(attr.matmul.scale * sum[j][k]));
}
#endif
