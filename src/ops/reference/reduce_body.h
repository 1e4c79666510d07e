/* reduce_body.h: see ref_reduce.c. */
#include "ops/reference/real.h"

static double FN(reduce_one)(mf_reduce function, const REAL *x, const split_shape *s)
{
    int64_t at[MF_MOST_DIMS] = {0};
    double sum = function == MF_REDUCE_PROD  ? 1
                 : function == MF_REDUCE_MAX ? -INFINITY
                 : function == MF_REDUCE_MIN ? INFINITY
                                             : 0;
    if (s->gone_count == 0)
        return sum;
    do {
        double v = (double)x[mf_ref_dot(at, s->gone_stride, s->gone.rank)];
        switch (function) {
        case MF_REDUCE_SUM:
        case MF_REDUCE_MEAN:
            sum += v;
            break;
        case MF_REDUCE_L2:
            sum += v * v;
            break;
        case MF_REDUCE_PROD:
            sum *= v;
            break;
        case MF_REDUCE_MAX:
            sum = v > sum || v != v ? v : sum;
            break;
        case MF_REDUCE_MIN:
            sum = v < sum || v != v ? v : sum;
            break;
        }
    } while (mf_ref_next(&s->gone, at));
    return function == MF_REDUCE_MEAN ? sum / (double)s->gone_count : function == MF_REDUCE_L2 ? sqrt(sum) : sum;
}

/* The columns of a matrix: leading axes reduced, trailing ones kept; row by row, so that memory is read in order. */
static bool FN(reduce_columns)(mf_reduce function, const mf_ref_arg *x, uint32_t axes, REAL *y)
{
    uint32_t lead = 0;
    while (lead < x->shape->rank && (axes >> lead & 1))
        lead++;
    if (lead == 0 || axes >> lead != 0 || (function != MF_REDUCE_SUM && function != MF_REDUCE_MEAN))
        return false;
    int64_t rows = mf_ref_span(x->shape, 0, lead), columns = mf_ref_span(x->shape, lead, x->shape->rank);
    double scale = function == MF_REDUCE_MEAN ? 1 / (double)rows : 1;
    for (int64_t j0 = 0; j0 < columns; j0 += 64) {
        int64_t width = columns - j0 < 64 ? columns - j0 : 64;
        double sum[64] = {0};
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < width; j++)
                sum[j] += (double)((const REAL *)x->data)[i * columns + j0 + j];
        for (int64_t j = 0; j < width; j++)
            y[j0 + j] = (REAL)(sum[j] * scale);
    }
    return true;
}

KERNEL(reduce)
{
    (void)err;
    mf_reduce function = call->op->attr.reduce.function;
    REAL *y = call->out[0].data;
    if (FN(reduce_columns)(function, &call->in[0], call->op->attr.reduce.axes, y))
        return MEMFIT_OK;
    split_shape s;
    split(call->in[0].shape, call->op->attr.reduce.axes, &s);
    int64_t at[MF_MOST_DIMS] = {0};
    for (uint64_t i = 0; i < call->out[0].count; i++, mf_ref_next(&s.kept, at))
        y[i] = (REAL)FN(reduce_one)(function,
                                    (const REAL *)call->in[0].data + mf_ref_dot(at, s.kept_stride, s.kept.rank), &s);
    return MEMFIT_OK;
}

/* Gradients of one reduced group: `x` and `dx` are its first elements. */
static void FN(reduce_back)(mf_reduce function, const REAL *x, double y, double dy, const split_shape *s, REAL *dx)
{
    int64_t at[MF_MOST_DIMS] = {0};
    double ties = 0, zeros = 0, others = 1; /* product of what is not zero */
    do {
        double v = (double)x[mf_ref_dot(at, s->gone_stride, s->gone.rank)];
        ties += v == y;
        zeros += v == 0;
        others *= v == 0 ? 1 : v;
    } while (mf_ref_next(&s->gone, at));
    do {
        int64_t i = mf_ref_dot(at, s->gone_stride, s->gone.rank);
        double v = (double)x[i], slope = 0;
        if (function == MF_REDUCE_MAX || function == MF_REDUCE_MIN)
            slope = v == y ? 1 / ties : 0;
        else if (function == MF_REDUCE_PROD)
            slope = zeros == 0 ? others / v : zeros == 1 && v == 0 ? others : 0;
        else if (function == MF_REDUCE_L2)
            slope = y > 0 ? v / y : 0;
        else
            slope = function == MF_REDUCE_MEAN ? 1 / (double)s->gone_count : 1;
        dx[i] = (REAL)(dy * slope);
    } while (mf_ref_next(&s->gone, at));
}

KERNEL(reduce_grad)
{
    (void)err;
    const REAL *dy = call->in[0].data, *x = call->in[1].data, *y = call->in[2].data;
    split_shape s;
    split(call->in[1].shape, call->op->attr.reduce.axes, &s);
    int64_t at[MF_MOST_DIMS] = {0};
    for (uint64_t i = 0; s.gone_count > 0 && i < call->in[0].count; i++, mf_ref_next(&s.kept, at)) {
        int64_t first = mf_ref_dot(at, s.kept_stride, s.kept.rank);
        FN(reduce_back)
        (call->op->attr.reduce.function, x + first, (double)y[i], (double)dy[i], &s, (REAL *)call->out[0].data + first);
    }
    return MEMFIT_OK;
}

/* How many of the n entries of this row count: all, or under causal the keys up to the query. */
static int64_t FN(visible)(const mf_ref_call *call, around_axis a, int64_t row)
{
    if (!call->op->attr.softmax.causal)
        return a.n;
    const mf_shape *shape = call->out[0].shape;
    int64_t queries = shape->rank > 1 ? shape->dim[shape->rank - 2] : 1;
    int64_t n = row % queries + 1;
    return n < a.n ? n : a.n;
}

/* sparsemax: the projection of x on the simplex, p = max(x - tau, 0). tau by bisection-free rounds of Michelot: drop
 * what falls below the threshold of the rest until nothing does; exact after at most n rounds. */
static double FN(sparse_threshold)(const REAL *x, int64_t n, int64_t step)
{
    double tau = -INFINITY;
    for (int64_t round = 0; round <= n; round++) {
        double sum = 0, count = 0;
        for (int64_t i = 0; i < n; i++)
            if ((double)x[i * step] > tau) {
                sum += (double)x[i * step];
                count++;
            }
        double next = (sum - 1) / count;
        if (next <= tau)
            break;
        tau = next;
    }
    return tau;
}

static void FN(softmax_row)(const mf_attr *attr, const REAL *x, int64_t n, int64_t visible, int64_t step, REAL *y)
{
    if (attr->softmax.sparse) {
        double tau = FN(sparse_threshold)(x, n, step);
        for (int64_t i = 0; i < n; i++)
            y[i * step] = (double)x[i * step] < tau ? 0 : (REAL)((double)x[i * step] - tau); /* NaN passes */
        return;
    }
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < visible; i++)
        most = fmax(most, (double)x[i * step]);
    for (int64_t i = 0; i < visible; i++)
        sum += exp((double)x[i * step] - most);
    double log_sum = log(sum);
    for (int64_t i = 0; i < visible; i++) {
        double v = (double)x[i * step] - most;
        y[i * step] = (REAL)(attr->softmax.log ? v - log_sum : exp(v) / sum);
    }
    for (int64_t i = visible; i < n; i++)
        y[i * step] = attr->softmax.log ? (REAL)-INFINITY : 0;
}

KERNEL(softmax)
{
    (void)err;
    around_axis a = around(call->in[0].shape, call->op->attr.softmax.axis);
    for (int64_t o = 0; o < a.outer; o++)
        for (int64_t i = 0; i < a.inner; i++)
            FN(softmax_row)
    (&call->op->attr, (const REAL *)call->in[0].data + o * a.n * a.inner + i, a.n, FN(visible)(call, a, o), a.inner,
     (REAL *)call->out[0].data + o * a.n * a.inner + i);
    return MEMFIT_OK;
}

static void FN(softmax_back_row)(const mf_attr *attr, const REAL *dy, const REAL *y, int64_t n, int64_t step, REAL *dx)
{
    double sum = 0, support = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)dy[i * step], v = (double)y[i * step];
        sum += attr->softmax.log ? d : attr->softmax.sparse ? (v > 0 ? d : 0) : d * v;
        support += v > 0;
    }
    for (int64_t i = 0; i < n; i++) {
        double d = (double)dy[i * step], v = (double)y[i * step];
        if (attr->softmax.log)
            d -= exp(v) * sum;
        else if (attr->softmax.sparse)
            d = v > 0 ? d - sum / support : 0;
        else
            d = v * (d - sum);
        dx[i * step] = (REAL)d;
    }
}

KERNEL(softmax_grad)
{
    (void)err;
    around_axis a = around(call->in[0].shape, call->op->attr.softmax.axis);
    for (int64_t o = 0; o < a.outer; o++)
        for (int64_t i = 0; i < a.inner; i++) {
            int64_t first = o * a.n * a.inner + i;
            FN(softmax_back_row)
            (&call->op->attr, (const REAL *)call->in[0].data + first, (const REAL *)call->in[1].data + first, a.n,
             a.inner, (REAL *)call->out[0].data + first);
        }
    return MEMFIT_OK;
}
