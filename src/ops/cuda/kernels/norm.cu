/* norm.cu: batch, layer and group normalization. Statistics first, then what lies element by element: y may lie over x
 * and dx over dy. */
#include "reduce.cuh"

#if defined(KIND_BATCH_NORM)
/* Count, mean and sum of squared differences, joined as Chan, Golub and LeVeque do: no cancellation. */
struct moments : plain_sums<moments, 3> {
    REDUCTION(moments, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double v = get<0>(a, g * OUT + j), d = v - s[1];
        s[0] += 1;
        s[1] += d / s[0];
        s[2] += d * (v - s[1]);
    }
    static inline void merge(double *s, const double *o)
    {
        double n = s[0] + o[0], d = o[1] - s[1];
        if (o[0] == 0)
            return;
        s[1] += d * o[0] / n;
        s[2] += o[2] + d * d * s[0] * o[0] / n;
        s[0] = n;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        set<1>(a, j, s[1]);
        set<2>(a, j, s[2] / s[0]);
    }
};
REDUCTION_KERNELS(moments, 0)
#endif

#if defined(KIND_BATCH_NORM) || defined(KIND_BATCH_NORM_INFER)
ENTRY k0(args a)
{
    constexpr idx channels = (idx)CHANNELS;
    idx i = THREAD, c = i % channels;
    if (i >= (idx)in_count(0))
        return;
#if defined(KIND_BATCH_NORM)
    double mean = kept<1>(a, c), variance = kept<2>(a, c);
#else
    double mean = get<3>(a, c), variance = get<4>(a, c);
#endif
    double factor = get_or<1>(a, c, 1) / sqrt(variance + attr.norm.epsilon);
    double v = (get<0>(a, i) - mean) * factor + get_or<2>(a, c, 0);
    put<0>(a, i, mf_unary_value(attr.norm.activation, 0, 0, v));
}

#elif defined(KIND_BATCH_NORM_GRAD) || defined(KIND_BATCH_NORM_INFER_GRAD)
static inline double rstd_of(const args &a, idx c)
{
    return 1 / sqrt(get<3>(a, c) + attr.norm.epsilon);
}

struct slopes : plain_sums<slopes, 2> {
    REDUCTION(slopes, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double d = get<0>(a, g * OUT + j);
        s[0] += d;
        s[1] += d * (get<1>(a, g * OUT + j) - get<2>(a, j)) * rstd_of(a, j);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[2 * j] = s[0];
        kept_sums(a)[2 * j + 1] = s[1];
        if (out_here[1])
            put<1>(a, j, s[1]);
        if (out_here[2])
            put<2>(a, j, s[0]);
    }
};
REDUCTION_KERNELS(slopes, 0)

ENTRY k0(args a)
{
    constexpr idx channels = (idx)CHANNELS;
    constexpr double rows = (double)R0_GONE;
    idx i = THREAD, c = i % channels;
    if (i >= (idx)in_count(1))
        return;
    double rstd = rstd_of(a, c), d = get<0>(a, i), xh = (get<1>(a, i) - get<2>(a, c)) * rstd;
#if defined(KIND_BATCH_NORM_GRAD)
    d -= (kept_sums(a)[2 * c] + xh * kept_sums(a)[2 * c + 1]) / rows;
#endif
    put<0>(a, i, get_or<4>(a, c, 1) * rstd * d);
}

#elif defined(KIND_LAYER_NORM)
ENTRY k0(args a) /* one block a set */
{
    constexpr norms::norm_sets n = {SETS, POSITIONS, WIDTH, PER_SAMPLE, STEP, ENTRIES};
    constexpr double count = (double)(n.positions * n.width);
    idx set_number = (idx)blockIdx.x;
    idx start = (idx)norms::set_start(&n, set_number), entry = (idx)norms::set_entry(&n, set_number);
    double mean = 0, square = 0;
    if (!attr.norm.rms) {
        for (idx e = (idx)threadIdx.x; e < (idx)(n.positions * n.width); e += BLOCK)
            mean += get<0>(a, start + e / (idx)n.width * (idx)n.position_step + e % (idx)n.width);
        mean = block_sum(mean) / count;
    }
    for (idx e = (idx)threadIdx.x; e < (idx)(n.positions * n.width); e += BLOCK) {
        double d = get<0>(a, start + e / (idx)n.width * (idx)n.position_step + e % (idx)n.width) - mean;
        square += d * d;
    }
    double rstd = 1 / sqrt(block_sum(square) / count + attr.norm.epsilon);
    for (idx e = (idx)threadIdx.x; e < (idx)(n.positions * n.width); e += BLOCK) {
        idx c = e % (idx)n.width, i = start + e / (idx)n.width * (idx)n.position_step + c;
        put<0>(a, i, (get<0>(a, i) - mean) * rstd * get_or<1>(a, entry + c, 1) + get_or<2>(a, entry + c, 0));
    }
    if (threadIdx.x == 0) {
        if (out_here[1])
            set<1>(a, set_number, mean);
        if (out_here[2])
            set<2>(a, set_number, rstd);
    }
}

#elif defined(KIND_LAYER_NORM_GRAD)
static constexpr norms::norm_sets n = {SETS, POSITIONS, WIDTH, PER_SAMPLE, STEP, ENTRIES};

/* dgamma and dbeta: entries are columns, sets (and positions of a group) are rows. */
struct slopes : plain_sums<slopes, 2> {
    REDUCTION(slopes, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        idx i = g * OUT + j, owner = g;
        if (attr.norm.groups > 0)
            owner = g / (idx)n.positions * (idx)n.per_sample + j / (idx)n.width;
        double d = get<0>(a, i);
        s[0] += d * (get<1>(a, i) - get_or<2>(a, owner, 0)) * get<3>(a, owner);
        s[1] += d;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        if (out_here[1])
            put<1>(a, j, s[0]);
        if (out_here[2])
            put<2>(a, j, s[1]);
    }
};
REDUCTION_KERNELS(slopes, 0)

ENTRY k0(args a) /* dx: one block a set, behind the sums */
{
    constexpr double count = (double)(n.positions * n.width);
    idx set_number = (idx)blockIdx.x, start = (idx)norms::set_start(&n, set_number);
    idx entry = (idx)norms::set_entry(&n, set_number);
    double mean = get_or<2>(a, set_number, 0), rstd = get<3>(a, set_number), sum = 0, product = 0;
    for (idx e = (idx)threadIdx.x; e < (idx)(n.positions * n.width); e += BLOCK) {
        idx c = e % (idx)n.width, i = start + e / (idx)n.width * (idx)n.position_step + c;
        double xh = (get<1>(a, i) - mean) * rstd, g = get<0>(a, i) * get_or<4>(a, entry + c, 1);
        sum += g;
        product += g * xh;
    }
    sum = block_sum(sum);
    product = block_sum(product);
    for (idx e = (idx)threadIdx.x; e < (idx)(n.positions * n.width); e += BLOCK) {
        idx c = e % (idx)n.width, i = start + e / (idx)n.width * (idx)n.position_step + c;
        double xh = (get<1>(a, i) - mean) * rstd, g = get<0>(a, i) * get_or<4>(a, entry + c, 1);
        put<0>(a, i, rstd * (g - (attr.norm.rms ? 0 : sum / count) - xh * product / count));
    }
}
#endif
