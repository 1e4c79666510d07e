/* loss.cu: losses, their gradients, metrics. A row (all axes but the last) is a thread's: the reference's own text says
 * what it is worth. */
#include "reduce.cuh"

/* The call as the reference's functions want to see it. */
struct call_view {
    mf_op op;
    mf_ref_arg in[4];
    mf_ref_call call;
    inline call_view(const args &a)
    {
        op.kind = (mf_op_kind)0;
        op.attr = attr;
        for (int k = 0; k < 4; k++) {
            in[k].data.p = in_here[k] ? a.in[k] : 0;
            in[k].dtype = in_dtype[k];
            in[k].shape = &in_shape[k];
            in[k].count = (uint64_t)in_count(k);
        }
        call.op = &op;
        call.graph = 0;
        call.in = in;
        call.out = in;
        call.in_count = NI;
        call.out_count = NO;
        call.scalars = a.s;
        call.scratch = 0;
    }
};

static constexpr idx CLASSES = in_shape[0].rank > 1 ? (idx)in_shape[0].dim[in_shape[0].rank - 1] : 1;
static constexpr idx ROW_COUNT = CLASSES > 0 ? (idx)in_count(0) / CLASSES : 0;

static inline double row_weight(const args &a, idx row)
{
    constexpr idx each = in_here[2] && in_count(2) > 0 ? ROW_COUNT / (idx)in_count(2) : 1;
    return in_here[2] ? get<2>(a, row / each) : 1;
}

#if defined(KIND_LOSS) || defined(KIND_LOSS_GRAD)
static constexpr mf_loss F = attr.loss.function;
static constexpr bool HINGES = F == MF_LOSS_HINGE || F == MF_LOSS_SQUARED_HINGE;
static constexpr bool SPARSE = F == MF_LOSS_SCCE || F == MF_LOSS_SCCE_LOGITS;

#if HINGE
/* Are all targets 0 or 1? */
struct binary : plain_sums<binary, 1> {
    REDUCTION(binary, 1)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        double t = get_raw<1>(a, g);
        s[0] += !(t == 0 || t == 1);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        kept_sums(a)[0] = s[0];
    }
};
REDUCTION_KERNELS(binary, 1)
#endif

/* The value of a row; its slopes times factor go to `slope` where that is not 0. */
static inline double row_value_of(const args &a, idx row, double factor, void *slope)
{
    mf_loss_row r = {};
    r.function = F;
    r.alpha = attr.loss.alpha;
    r.gamma = attr.loss.gamma;
    r.delta = attr.loss.delta;
    r.smoothing = attr.loss.label_smoothing;
    r.balanced = attr.loss.balanced;
    r.one_less = sizeof(real) == 8 ? 1 - 1e-7 : (double)(float)(1 - 1e-7);
    r.n = CLASSES;
    r.dtype = in_dtype[0];
    r.prediction = a.in[0];
    r.target_dtype = in_dtype[1];
    r.target = a.in[1];
    r.start = (int64_t)row * CLASSES;
    r.first = SPARSE ? (int64_t)row : r.start;
    r.factor = factor;
    r.slope = slope;
    r.slope_dtype = out_dtype[0];
#if HINGE
    r.binary_targets = kept_sums(a)[0] == 0;
#endif
    if (SPARSE) {
        r.label = get_int<1>(a, row);
        if (r.label < 0 || r.label >= CLASSES) { /* a label the model does not have: the loss says so */
            for (idx j = 0; slope && j < CLASSES; j++)
                mf_loss_slope(&r, j, NAN);
            return NAN;
        }
    }
    return mf_loss_row_value(&r);
}

#if ROW_A_BLOCK
static inline real exp_of(real x)
{
#if REAL_IS_DOUBLE
    return exp(x);
#else
    return expf(x);
#endif
}

/* f(j, x) of a row's logits, whose results are stored where STORES. Rows in 16 bits begin anywhere: eight elements at a time
 * from the first place that allows it. */
template <bool STORES, class F> static inline void over_row(const args &a, idx start, F f)
{
#if WIDE_ROWS
    constexpr mf_dtype D = in_dtype[0];
    idx lead = (8 - start % 8) % 8, vectors, tail;
    lead = lead < CLASSES ? lead : CLASSES;
    vectors = (CLASSES - lead) / 8;
    tail = lead + 8 * vectors;
    for (idx i = (idx)threadIdx.x; i < lead + CLASSES - tail; i += BLOCK) {
        idx j = i < lead ? i : i - lead + tail;
        real r = f(j, load_one<D>(a.in[0], start + j));
        if (STORES)
            store_one<D, false>(a.out[0], start + j, r);
    }
    for (idx i = (idx)threadIdx.x; i < vectors; i += BLOCK) {
        idx j = lead + 8 * i;
        real x[8];
        load_vector<D>(x, a.in[0], start + j);
        for (int k = 0; k < 8; k++)
            x[k] = f(j + k, x[k]);
        if (STORES)
            store_vector<D, false>(a.out[0], start + j, x);
    }
#else
    for (idx j = (idx)threadIdx.x; j < CLASSES; j += BLOCK) {
        real r = f(j, (real)get<0>(a, start + j));
        if (STORES)
            mf_ref_store(out_dtype[0], a.out[0], (uint64_t)(start + j), (double)r);
    }
#endif
}

/* Cross-entropy from logits over many classes: one block a row. The same formulas as losses::sparse_logits and
 * losses::categorical_logits. */
template <bool SLOPES> static inline double row_by_block(const args &a, idx row, double factor)
{
    idx start = row * CLASSES;
    real most = -INFINITY, sum = 0; /* of exp(x - most), in one pass */
    double value = 0;
    over_row<false>(a, start, [&](idx, real x) {
        real e = exp_of(x > most ? most - x : x - most);
        bool more = x > most;
        sum = more ? sum * e + 1 : x == -INFINITY ? sum : sum + e;
        most = more ? x : most;
        return x;
    });
    double highest = block_combine((double)most, [](double p, double q) { return fmax(p, q); });
    double parts = sum == 0 ? 0 : (double)sum * exp((double)most - highest);
    double log_sum = highest + log(block_sum(parts));
    real shift = (real)log_sum;
    int64_t label = SPARSE ? get_int<1>(a, row) : 0;
    if (SPARSE && (label < 0 || label >= CLASSES)) { /* a label the model does not have: the loss says so */
        value = NAN;
        factor = NAN;
    } else if (SPARSE && !SLOPES && threadIdx.x == 0)
        value = log_sum - get<0>(a, start + (idx)label);
    if (SLOPES || !SPARSE)
        over_row<SLOPES>(a, start, [&](idx j, real x) {
            double t;
            if (SPARSE)
                t = j == label;
            else
                t = get_raw<1>(a, start + j) * (1 - attr.loss.label_smoothing) +
                    attr.loss.label_smoothing / (double)CLASSES;
            if (!SPARSE)
                value -= t != 0 ? t * ((double)x - log_sum) : 0;
            return SLOPES ? (exp_of(x - shift) - (real)t) * (real)factor : x;
        });
    return SLOPES ? 0 : block_sum(value);
}
#endif

#if defined(KIND_LOSS)
#if ROW_A_BLOCK
ENTRY rows(args a)
{
    double value = row_by_block<false>(a, (idx)blockIdx.x, 0);
    if (threadIdx.x == 0)
        kept_sums(a)[blockIdx.x] = value;
}
#endif
struct total : plain_sums<total, 1> {
    REDUCTION(total, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
#if ROW_A_BLOCK
        s[0] += row_weight(a, g) * kept_sums(a)[g];
#else
        s[0] += row_weight(a, g) * row_value_of(a, g, 0, 0);
#endif
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        call_view v(a);
        if (attr.loss.slot)
            set<0>(a, (idx)attr.loss.slot, get<3>(a, (idx)attr.loss.slot) + batches::loss_factor(&v.call, 1) * s[0]);
        set<0>(a, 0, get<3>(a, 0) + batches::loss_factor(&v.call, attr.loss.weight) * s[0]);
    }
};
REDUCTION_KERNELS(total, 0)
#else
/* The same for all rows, and the reference's view of a call is hundreds of bytes: one thread of a block has it. */
static inline double common_factor(const args &a)
{
    __shared__ double factor;
    if (threadIdx.x == 0) {
        call_view v(a);
        factor = batches::loss_factor(&v.call, attr.loss.weight) * (a.s->loss_scale == 0 ? 1 : a.s->loss_scale);
    }
    __syncthreads();
    return factor;
}

ENTRY k0(args a)
{
    idx row = ROW_A_BLOCK ? (idx)blockIdx.x : THREAD;
    double common = common_factor(a);
    if (row >= ROW_COUNT)
        return;
    double factor = common * row_weight(a, row);
#if ROW_A_BLOCK
    row_by_block<true>(a, row, factor);
#else
    row_value_of(a, row, factor, a.out[0]);
#endif
}
#endif

#elif defined(KIND_METRIC)
static constexpr mf_metric F = attr.metric.function;

#if METRIC_AUC
/* Each cell of the table (4, thresholds) is a sum of its own. */
struct added : plain_sums<added, 1> {
    REDUCTION(added, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        constexpr idx thresholds = (idx)out_count(0) / 4;
        idx i = j % thresholds;
        double at = i == 0 ? -1e-7 : i == thresholds - 1 ? 1 + 1e-7 : (double)i / (double)(thresholds - 1);
        bool says = get<0>(a, g) > (double)(real)at, is = get_raw<1>(a, g) != 0;
        if ((says ? (is ? 0 : 1) : (is ? 3 : 2)) == j / thresholds)
            s[0] += row_weight(a, g / CLASSES);
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        set<0>(a, j, get<3>(a, j) + s[0]);
    }
};
#else
struct added : plain_sums<added, 2> {
    REDUCTION(added, 0)
    static inline void take(const args &a, double *s, idx j, idx g)
    {
        call_view v(a);
        batches::metric_view m = {};
        m.call = &v.call;
        m.dtype = in_dtype[0];
        m.n = CLASSES;
        m.rows = ROW_COUNT;
        m.state = s;
        double w = row_weight(a, g);
        if (F == MF_METRIC_LOSS_VALUE) {
            double value = get<0>(a, (idx)attr.metric.k);
            bool counts = value - value == 0;
            s[0] += counts ? value : 0;
            s[1] += counts;
        } else if (F == MF_METRIC_PRECISION || F == MF_METRIC_RECALL)
            batches::confusion(&m, g, w);
        else {
            double values = F == MF_METRIC_METRIC_RMSE || F == MF_METRIC_BINARY_ACCURACY ? (double)CLASSES : 1;
            s[0] += w * values * batches::row_value(&m, g);
            s[1] += w * values;
        }
    }
    static inline void finish(const args &a, idx j, const double *s)
    {
        for (idx k = 0; k < 2 && k < (idx)out_count(0); k++)
            set<0>(a, k, get<3>(a, k) + s[k]);
    }
};
#endif
REDUCTION_KERNELS(added, 0)
#endif
