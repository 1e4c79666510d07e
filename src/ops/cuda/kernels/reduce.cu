/* reduce.cu: REDUCE and its gradient, and gradients of broadcast operands. */
#include "reduce.cuh"

#if defined(KIND_REDUCE)
struct hook : plain_sums<hook, 1> {
    REDUCTION(hook, 0)
    static constexpr mf_reduce F = attr.reduce.function;
    static inline void zero(double *s)
    {
        s[0] = F == MF_REDUCE_PROD ? 1 : F == MF_REDUCE_MAX ? -INFINITY : F == MF_REDUCE_MIN ? INFINITY : 0;
    }
    static inline void join(double *s, double v)
    {
        if (F == MF_REDUCE_PROD)
            s[0] *= v;
        else if (F == MF_REDUCE_MAX)
            s[0] = v > s[0] || v != v ? v : s[0];
        else if (F == MF_REDUCE_MIN)
            s[0] = v < s[0] || v != v ? v : s[0];
        else
            s[0] += v;
    }
    static inline void merge(double *s, const double *other)
    {
        join(s, other[0]);
    }
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        constexpr walk kept = part_walk(in_shape[0], attr.reduce.axes, false);
        constexpr walk gone = part_walk(in_shape[0], attr.reduce.axes, true);
        double v = get<0>(a, walk_at(kept, j) + walk_at(gone, g));
        join(s, F == MF_REDUCE_L2 ? v * v : v);
    }
    /* Several reads under way at once. */
    static inline void range(const args &a, double *s, idx j, idx first, idx step)
    {
#ifndef MF_SHIM
#pragma unroll 8
#endif
        for (idx g = first; g < GONE; g += step)
            take(a, s, j, g);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<0>(a, j, F == MF_REDUCE_MEAN && GONE > 0 ? s[0] / (double)GONE : F == MF_REDUCE_L2 ? sqrt(s[0]) : s[0]);
    }
};
REDUCTION_KERNELS(hook, 0)

#elif defined(KIND_REDUCE_GRAD)
/* One block a group: what equals the result, how many zeros, the product of the rest; then each element's slope. */
ENTRY k0(args a)
{
    constexpr walk kept = part_walk(in_shape[1], attr.reduce.axes, false);
    constexpr walk gone = part_walk(in_shape[1], attr.reduce.axes, true);
    constexpr mf_reduce F = attr.reduce.function;
    idx j = (idx)blockIdx.x, first = walk_at(kept, j);
    double y = get<2>(a, j), dy = get<0>(a, j), ties = 0, zeros = 0, others = 1;
    for (idx g = (idx)threadIdx.x; g < (idx)GROUP; g += BLOCK) {
        double v = get<1>(a, first + walk_at(gone, g));
        ties += v == y;
        zeros += v == 0;
        others *= v == 0 ? 1 : v;
    }
    ties = block_sum(ties);
    zeros = block_sum(zeros);
    others = block_combine(others, [](double p, double q) { return p * q; });
    for (idx g = (idx)threadIdx.x; g < (idx)GROUP; g += BLOCK) {
        idx i = first + walk_at(gone, g);
        double v = get<1>(a, i), slope;
        if (F == MF_REDUCE_MAX || F == MF_REDUCE_MIN)
            slope = v == y ? 1 / ties : 0;
        else if (F == MF_REDUCE_PROD)
            slope = zeros == 0 ? others / v : zeros == 1 && v == 0 ? others : 0;
        else if (F == MF_REDUCE_L2)
            slope = y > 0 ? v / y : 0;
        else
            slope = F == MF_REDUCE_MEAN ? 1 / (double)GROUP : 1;
        put<0>(a, i, dy * slope);
    }
}

#elif defined(KIND_BINARY_GRAD)
/* dy's axes along which the output is one are summed. */
struct hook : plain_sums<hook, 1> {
    REDUCTION(hook, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        constexpr walk kept = part_walk(in_shape[0], AXES, false), gone = part_walk(in_shape[0], AXES, true);
        constexpr walk wa = broadcast_walk(in_shape[0], in_shape[1]), wb = broadcast_walk(in_shape[0], in_shape[2]);
        idx i = walk_at(kept, j) + walk_at(gone, g);
        s[0] += get<0>(a, i) * binary_slope(attr.binary.function, attr.binary.side, get<1>(a, walk_at(wa, i)),
                                            get<2>(a, walk_at(wb, i)));
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<0>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(hook, 0)

#elif defined(KIND_PRELU_GRAD)
struct hook : plain_sums<hook, 1> {
    REDUCTION(hook, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        constexpr walk kept = part_walk(in_shape[1], AXES, false), gone = part_walk(in_shape[1], AXES, true);
        idx i = walk_at(kept, j) + walk_at(gone, g);
        double x = get<1>(a, i);
        if (x < 0)
            s[0] += get<0>(a, i) * x;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<1>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(hook, 0)

ENTRY k0(args a) /* behind the sums: dx may lie over dy */
{
    constexpr walk w = broadcast_walk(in_shape[1], in_shape[2]);
    idx i = THREAD;
    if (i >= (idx)in_count(1))
        return;
    double d = get<0>(a, i);
    put<0>(a, i, get<1>(a, i) > 0 ? d : (double)((real)get<2>(a, walk_at(w, i)) * (real)d));
}
#endif
