/* update.cu: regularizers, clipping, the check of float16 gradients, optimizers. Slots and parameters change in place. */
#include "reduce.cuh"

#if defined(KIND_REGULARIZE)
struct penalty : plain_sums<penalty, 1> {
    REDUCTION(penalty, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double v = get<0>(a, g);
        s[0] += attr.regularize.l1 * fabs(v) + attr.regularize.l2 * v * v;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        set<1>(a, 0, get<2>(a, 0) + s[0]);
    }
};
REDUCTION_KERNELS(penalty, 0)
ENTRY k0(args a)
{
    idx i = THREAD;
    if (i >= (idx)in_count(0))
        return;
    double v = get<0>(a, i), scale = a.s->loss_scale == 0 ? 1 : a.s->loss_scale;
    set<0>(a, i, get<1>(a, i) + scale * (attr.regularize.l1 * ((v > 0) - (v < 0)) + 2 * attr.regularize.l2 * v));
}

#elif defined(KIND_CLIP)
struct squares : plain_sums<squares, 1> {
    REDUCTION(squares, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double v = get<0>(a, g);
        s[0] += v * v;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[0] = s[0];
    }
};
REDUCTION_KERNELS(squares, 0)
ENTRY k0(args a)
{
    idx i = THREAD;
    if (i >= (idx)in_count(0))
        return;
    constexpr double value = attr.clip.value, limit = attr.clip.norm;
    double v = get<0>(a, i) * (limit > 0 ? limit / fmax(sqrt(kept_sums(a)[0]), limit) : 1);
    set<0>(a, i, value > 0 ? (v < -value ? -value : v > value ? value : v) : v);
}

#elif defined(KIND_SQUARE_SUM)
struct squares : plain_sums<squares, 1> {
    REDUCTION(squares, 0)
    static inline void range(const args &a, double *s, idx j, idx first, idx step)
    {
        for (int k = 0; k < NI; k++)
            for (idx i = first; i < (idx)counts[k]; i += step) {
                double v = (double)(real)mf_ref_load((mf_dtype)dtypes[k], a.in[k], (uint64_t)i);
                s[0] += v * v;
            }
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        put<0>(a, 0, s[0]);
    }
};
REDUCTION_KERNELS(squares, 0)

#elif defined(KIND_CHECK_FINITE)
struct bad : plain_sums<bad, 1> {
    REDUCTION(bad, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double v = get<0>(a, g);
        s[0] += v - v != 0; /* NaN or infinite */
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        set<0>(a, 0, get<1>(a, 0) != 0 || s[0] > 0);
    }
};
REDUCTION_KERNELS(bad, 0)
ENTRY k0(args a)
{
    idx i = THREAD;
    double scale = (a.s->loss_scale == 0 ? 1 : a.s->loss_scale) * (double)(a.s->group_steps ? a.s->group_steps : 1);
    if (i < (idx)in_count(0))
        set<1>(a, i, get<0>(a, i) / scale);
}

#elif defined(KIND_UPDATE)
#if REAL_IS_DOUBLE
#define RULE(name) updates::name##_f64
#else
#define RULE(name) updates::name##_f32
#endif
static constexpr mf_optimizer F = attr.update.optimizer;

static inline bool skipped(const args &a)
{
    return in_here[FLAG] && get<FLAG>(a, 0) != 0;
}

/* The rule's constants of this step; `op` holds the attributes and must outlive it. */
static inline RULE(rule) rule_now(const args &a, mf_op *op)
{
    mf_ref_call call = {};
    op->attr = attr;
    call.op = op;
    call.scalars = a.s;
    return RULE(rule_of)(&call);
}

static inline double decayed(const args &a, idx i, const RULE(rule) & r)
{
    double w = get<0>(a, i);
    return attr.update.has_weight_decay ? (double)(real)(w - w * attr.update.weight_decay * r.rate) : w;
}

#if UPDATE_LAMB
/* Moments first, with the sums of squares of parameter and direction; then the step. */
static inline double direction(const args &a, idx i, const RULE(rule) & r)
{
    double c1 = (double)(real)(1 - r.power_1), c2 = (double)(real)(1 - r.power_2);
    return kept<1>(a, i) / c1 / (sqrt(kept<2>(a, i) / c2) + attr.update.epsilon);
}
ENTRY k0(args a)
{
    idx i = THREAD;
    mf_op op;
    if (i >= (idx)in_count(0) || skipped(a))
        return;
    RULE(rule) r = rule_now(a, &op);
    real m = (real)get<2>(a, i), v = (real)get<3>(a, i), *s[4] = {&m, &v};
    set<0>(a, i, decayed(a, i, r));
    RULE(moments)(&r, get<1>(a, i), s);
    set<1>(a, i, (double)m);
    set<2>(a, i, (double)v);
}
struct norms2 : plain_sums<norms2, 2> {
    REDUCTION(norms2, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        mf_op op;
        RULE(rule) r = rule_now(a, &op);
        double w = kept<0>(a, g), d = direction(a, g, r);
        s[0] += w * w;
        s[1] += d * d;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[0] = s[0] > 0 && s[1] > 0 ? sqrt(s[0] / s[1]) : 1;
    }
};
REDUCTION_KERNELS(norms2, 0)
ENTRY k1(args a)
{
    idx i = THREAD;
    mf_op op;
    if (i >= (idx)in_count(0) || skipped(a))
        return;
    RULE(rule) r = rule_now(a, &op);
    set<0>(a, i, kept<0>(a, i) - kept_sums(a)[0] * r.rate * direction(a, i, r));
}

#elif UPDATE_ADAFACTOR
/* MATRIX: the last two axes (MATRIX_M, MATRIX_N) have their second moments as means of rows and columns. */
static inline double beta_now(const RULE(rule) & r)
{
    return 1 - RULE(power)(r.t, attr.update.beta_2);
}
#if MATRIX
struct row_means : plain_sums<row_means, 1> {
    REDUCTION(row_means, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double v = get<1>(a, j * GONE + g);
        s[0] += v * v + attr.update.epsilon;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        mf_op op;
        RULE(rule) r = rule_now(a, &op);
        double beta = beta_now(r);
        if (!skipped(a))
            set<1>(a, j, beta * get<2>(a, j) + (1 - beta) * s[0] / (double)GONE);
    }
};
REDUCTION_KERNELS(row_means, 0)
struct column_means : plain_sums<column_means, 1> {
    REDUCTION(column_means, 1)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double v = get<1>(a, j / (idx)MATRIX_N * (idx)(MATRIX_M * MATRIX_N) + g * (idx)MATRIX_N + j % (idx)MATRIX_N);
        s[0] += v * v + attr.update.epsilon;
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        mf_op op;
        RULE(rule) r = rule_now(a, &op);
        double beta = beta_now(r);
        if (!skipped(a))
            set<2>(a, j, beta * get<3>(a, j) + (1 - beta) * s[0] / (double)GONE);
    }
};
REDUCTION_KERNELS(column_means, 1)
struct matrix_means : plain_sums<matrix_means, 1> { /* sum of the row means of each matrix */
    REDUCTION(matrix_means, 2)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        s[0] += kept<1>(a, j * (idx)MATRIX_M + g);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[2 + j] = s[0];
    }
};
REDUCTION_KERNELS(matrix_means, 2)
#endif
ENTRY k0(args a) /* decay, and the second moment */
{
    idx i = THREAD;
    mf_op op;
    if (i >= (idx)in_count(0) || skipped(a))
        return;
    RULE(rule) r = rule_now(a, &op);
    set<0>(a, i, decayed(a, i, r));
#if MATRIX
    idx k = i / (idx)(MATRIX_M * MATRIX_N), row = i / (idx)MATRIX_N, column = k * (idx)MATRIX_N + i % (idx)MATRIX_N;
    set<3>(a, i, kept<1>(a, row) / (kept_sums(a)[2 + k] / (double)MATRIX_M) * kept<2>(a, column));
#else
    double beta = beta_now(r), g = get<1>(a, i);
    set<3>(a, i, beta * get<4>(a, i) + (1 - beta) * (g * g + attr.update.epsilon));
#endif
}
struct norms2 : plain_sums<norms2, 2> {
    REDUCTION(norms2, 3)
    static inline void take(const args &a, double *s, idx j, idx i)
    {
        double w = kept<0>(a, i), g = get<1>(a, i);
        s[0] += w * w;
        s[1] += g == 0 ? 0 : g * g / kept<3>(a, i);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[0] = s[0];
        kept_sums(a)[1] = s[1];
    }
};
REDUCTION_KERNELS(norms2, 3)
ENTRY k1(args a)
{
    idx i = THREAD;
    mf_op op;
    if (i >= (idx)in_count(0) || skipped(a))
        return;
    RULE(rule) r = rule_now(a, &op);
    constexpr double count = (double)in_count(0);
    double root = 1 / sqrt(r.t), rate = attr.update.relative_step != 0 ? fmin(r.rate, root) : r.rate;
    double alpha = fmax(attr.update.epsilon_2, sqrt(kept_sums(a)[0] / count)) * fmin(rate, root);
    double clip = fmax(1, sqrt(kept_sums(a)[1] / count) / attr.update.clip_threshold), g = get<1>(a, i);
    if (g != 0)
        set<0>(a, i, kept<0>(a, i) - alpha * g / sqrt(kept<3>(a, i)) / clip);
}

#else
template <int J> static inline void slot_in(const args &a, idx i, real *slot, real **s)
{
    if (J < SLOTS && out_here[1 + J] && out_count(1 + J) == in_count(0)) {
        *slot = (real)get<2 + J>(a, i);
        *s = slot;
    }
}
template <int J> static inline void slot_out(const args &a, idx i, real slot, real *s)
{
    if (J < SLOTS && s)
        set<1 + J>(a, i, (double)slot);
}
static inline void element(const args &a, idx i, const RULE(rule) & r)
{
    real slot[4] = {}, *s[4] = {};
    slot_in<0>(a, i, &slot[0], &s[0]);
    slot_in<1>(a, i, &slot[1], &s[1]);
    slot_in<2>(a, i, &slot[2], &s[2]);
    slot_in<3>(a, i, &slot[3], &s[3]);
    set<0>(a, i, RULE(one_element)(&r, decayed(a, i, r), get<1>(a, i), s));
    slot_out<0>(a, i, slot[0], s[0]);
    slot_out<1>(a, i, slot[1], s[1]);
    slot_out<2>(a, i, slot[2], s[2]);
    slot_out<3>(a, i, slot[3], s[3]);
    if (F == MF_OPTIMIZER_NADAM && SLOTS > 2 && i == 0)
        set<3>(a, 0, r.product);
}

/* A thread has several elements: the step's constants, powers among them, are made once for them. */
ENTRY k0(args a)
{
    mf_op op;
    idx first = (idx)blockIdx.x * (BLOCK * ELEMENTS) + (idx)threadIdx.x;
    if (first >= (idx)in_count(0) || skipped(a))
        return;
    RULE(rule) r = rule_now(a, &op);
#ifndef MF_SHIM
#pragma unroll
#endif
    for (int k = 0; k < ELEMENTS; k++)
        if (first + k * BLOCK < (idx)in_count(0))
            element(a, first + k * BLOCK, r);
}
#endif
#endif
