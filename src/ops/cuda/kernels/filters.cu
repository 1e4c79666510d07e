/*
 * filters.cu: what stands around a library's convolution: filters into the library's order (output channel, position,
 * input channel) and type, and its gradient back out of it, added where the operation adds; the bias; the bias's gradient
 * (program.cu).
 */
static constexpr mf_ref_window w = WINDOW;
static constexpr idx POSITIONS = (idx)(w.kernel[0] * w.kernel[1] * w.kernel[2]);
static constexpr idx IN = (idx)(w.in_channels / w.groups), OUT_CHANNELS = (idx)w.out_channels;

/* Where filter element i of the library's order stands in ours. */
static inline idx ours(idx i)
{
    idx c = i % IN, position = i / IN % POSITIONS, k = i / (IN * POSITIONS);
    return (position * IN + c) * OUT_CHANNELS + k;
}

#if defined(KIND_CONV_GRAD_WEIGHTS)
ENTRY from_library(args a)
{
    idx i = THREAD;
    if (i < (idx)out_count(0))
        put<0>(a, ours(i), mf_ref_load(in_dtype[0], (char *)a.workspace + FILTER_AT, (uint64_t)i));
}
#else
ENTRY to_library(args a)
{
    idx i = THREAD;
    if (i < (idx)in_count(1))
        mf_ref_store(in_dtype[0], (char *)a.workspace + FILTER_AT, (uint64_t)i, get<1>(a, ours(i)));
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
