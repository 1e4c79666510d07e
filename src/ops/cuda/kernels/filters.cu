/*
 * filters.cu: what stands around a library's convolution: filters into the library's order (output channel, position,
 * input channel) and type, and its gradient back out of it, added where the operation adds; the bias; the bias's gradient
 * (program.cu).
 */
static constexpr mf_ref_window w = WINDOW;
static constexpr idx POSITIONS = (idx)(w.kernel[0] * w.kernel[1] * w.kernel[2]);
static constexpr idx IN = (idx)(w.in_channels / w.groups), OUT_CHANNELS = (idx)w.out_channels;

/* Ours is a matrix of ROWS x OUT_CHANNELS, the library's the same turned around. A block turns TILE x TILE of it in shared
 * memory, so that both sides are read and written side by side. */
static constexpr idx ROWS = POSITIONS * IN;
static constexpr idx ACROSS = (OUT_CHANNELS + TILE - 1) / TILE;
#ifdef MF_SHIM
#define EACH_IN_TILE for (int e = (int)threadIdx.x; e < TILE * TILE; e += BLOCK)
#else
#define EACH_IN_TILE _Pragma("unroll") for (int e = (int)threadIdx.x; e < TILE * TILE; e += BLOCK)
#endif

#if defined(KIND_CONV_GRAD_WEIGHTS)
ENTRY from_library(args a)
{
    __shared__ float tile[TILE][TILE + 1];
    idx row = (idx)blockIdx.x / ACROSS * TILE, column = (idx)blockIdx.x % ACROSS * TILE;
    EACH_IN_TILE
    {
        idx k = column + e / TILE, r = row + e % TILE;
        if (k < OUT_CHANNELS && r < ROWS)
            tile[e / TILE][e % TILE] = (float)mf_ref_load(in_dtype[0], (char *)a.workspace + FILTER_AT, (uint64_t)(k * ROWS + r));
    }
    __syncthreads();
    EACH_IN_TILE
    {
        idx r = row + e / TILE, k = column + e % TILE;
        if (k < OUT_CHANNELS && r < ROWS)
            put<0>(a, r * OUT_CHANNELS + k, (double)tile[e % TILE][e / TILE]);
    }
}
#else
ENTRY to_library(args a)
{
    __shared__ float tile[TILE][TILE + 1];
    idx row = (idx)blockIdx.x / ACROSS * TILE, column = (idx)blockIdx.x % ACROSS * TILE;
    EACH_IN_TILE
    {
        idx r = row + e / TILE, k = column + e % TILE;
        if (k < OUT_CHANNELS && r < ROWS)
            tile[e / TILE][e % TILE] = (float)get<1>(a, r * OUT_CHANNELS + k);
    }
    __syncthreads();
    EACH_IN_TILE
    {
        idx k = column + e / TILE, r = row + e % TILE;
        if (k < OUT_CHANNELS && r < ROWS)
            mf_ref_store(in_dtype[0], (char *)a.workspace + FILTER_AT, (uint64_t)(k * ROWS + r), (double)tile[e % TILE][e / TILE]);
    }
}

#ifdef V
/* V channels a thread, in place. */
ENTRY add_bias(args a)
{
    idx i = THREAD * V, c = i % (idx)out_shape[0].dim[out_shape[0].rank - 1];
    if (i >= (idx)out_count(0))
        return;
    real y[V], bias[V];
    load_vector<out_dtype[0]>(y, a.out[0], i);
    load_vector<in_dtype[2]>(bias, a.in[2], c);
    EACH y[k] += bias[k];
    store_vector<out_dtype[0], false>(a.out[0], i, y);
}
#endif
#endif

#ifdef HAS_SUMS
#include "program.cu"
#endif
