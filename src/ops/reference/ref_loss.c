/*
 * ref_loss.c: losses, metrics and regularizers over a batch.
 *
 * A loss has one value per row (all axes but the last); values are weighted by sample weights (one a sample, or one a
 * row) and divided as attr.loss.reduction says, always by the whole batch's figures from the scalars, so that pieces
 * add up to the batch.
 */
#include "ops/reference/loss_value.h"

#include "base/error.h"

#include <math.h>

static bool is_sparse(mf_loss function)
{
    return function == MF_LOSS_SCCE || function == MF_LOSS_SCCE_LOGITS;
}

/* How many values a sample has: by the shape, unless this is a chunk of a batch's rows. */
static int64_t rows_per_sample(const mf_ref_call *call)
{
    const mf_shape *shape = call->in[0].shape;
    int64_t stated = call->op->attr.loss.rows_per_sample;
    return stated ? stated : shape->rank > 1 ? mf_ref_span(shape, 1, shape->rank - 1) : 1;
}

static memfit_status loss_walk(mf_ref_call *call, mf_dtype dtype, double factor, void *slope, double *value,
                               memfit_error *err)
{
    const mf_attr *attr = &call->op->attr;
    static const mf_ref_arg none = {0};
    const mf_ref_arg *pred = &call->in[0], *target = &call->in[1], *weight = call->in_count > 2 ? &call->in[2] : &none;
    mf_loss_row row = {.function = attr->loss.function,
                       .alpha = attr->loss.alpha,
                       .gamma = attr->loss.gamma,
                       .delta = attr->loss.delta,
                       .smoothing = attr->loss.label_smoothing,
                       .balanced = attr->loss.balanced,
                       .binary_targets = true,
                       .one_less = dtype == MF_F64 ? 1 - 1e-7 : (double)(float)(1 - 1e-7),
                       .n = pred->shape->rank > 1 ? pred->shape->dim[pred->shape->rank - 1] : 1,
                       .dtype = dtype,
                       .target_dtype = target->dtype,
                       .target = target->data};
    int64_t rows = row.n > 0 ? (int64_t)pred->count / row.n : 0;
    if ((int64_t)target->count != (is_sparse(row.function) ? rows : (int64_t)pred->count))
        return mf_fail(err, MEMFIT_INVALID, "targets have %llu values where the predictions need %lld",
                       (unsigned long long)target->count,
                       (long long)(is_sparse(row.function) ? rows : (int64_t)pred->count));
    if (row.function == MF_LOSS_HINGE || row.function == MF_LOSS_SQUARED_HINGE)
        for (uint64_t i = 0; row.binary_targets && i < target->count; i++) {
            double t = mf_ref_load(target->dtype, target->data, i);
            row.binary_targets = t == 0 || t == 1;
        }
    uint64_t size = mf_dtype_bytes(dtype);
    int64_t rows_per_weight = weight->data && weight->count > 0 ? rows / (int64_t)weight->count : rows;
    for (int64_t i = 0; i < rows; i++) {
        double w = weight->data ? mf_ref_load(dtype, weight->data, (uint64_t)(i / rows_per_weight)) : 1;
        row.prediction = (const char *)pred->data + (uint64_t)(i * row.n) * size;
        row.slope = slope ? (char *)slope + (uint64_t)(i * row.n) * size : NULL;
        row.first = is_sparse(row.function) ? i : i * row.n;
        row.factor = factor * w;
        if (is_sparse(row.function)) {
            row.label = mf_ref_load_int(target->dtype, target->data, (uint64_t)i);
            if (row.label < 0 || row.label >= row.n)
                return mf_fail(err, MEMFIT_DAMAGED, "label %lld of sample %lld: the model has classes 0 to %lld",
                               (long long)row.label,
                               (long long)(call->scalars->first_sample +
                                           (uint64_t)((attr->loss.first_row + i) / rows_per_sample(call))),
                               (long long)row.n - 1);
        }
        *value += w * mf_loss_row_value(&row);
    }
    return MEMFIT_OK;
}

/* What a value is multiplied by: the loss weight (or 1) over the denominator. */
static double loss_factor(const mf_ref_call *call, double weight)
{
    const mf_attr *attr = &call->op->attr;
    double divisor = attr->loss.reduction == 0   ? call->scalars->batch_samples * (double)rows_per_sample(call)
                     : attr->loss.reduction == 2 ? call->scalars->weight_sum
                                                 : 1;
    return divisor == 0 ? 0 : weight / divisor;
}

/* ---- metrics ---- */
typedef struct metric_view {
    const mf_ref_call *call;
    mf_dtype dtype; /* of predictions */
    int64_t n, rows;
    double *state; /* what is added, up to four numbers */
} metric_view;

static double metric_prediction(const metric_view *m, int64_t row, int64_t j)
{
    return mf_ref_load(m->dtype, m->call->in[0].data, (uint64_t)(row * m->n + j));
}

static double metric_target(const metric_view *m, int64_t index)
{
    return mf_ref_load(m->call->in[1].dtype, m->call->in[1].data, (uint64_t)index);
}

static int64_t best_prediction(const metric_view *m, int64_t row)
{
    int64_t best = 0;
    for (int64_t j = 1; j < m->n; j++)
        if (metric_prediction(m, row, j) > metric_prediction(m, row, best))
            best = j;
    return best;
}

/* The true class of a row: the label, or the place of the greatest entry of a one-hot row. */
static int64_t true_class(const metric_view *m, int64_t row)
{
    mf_metric f = m->call->op->attr.metric.function;
    if (f == MF_METRIC_SPARSE_CATEGORICAL_ACCURACY || f == MF_METRIC_SPARSE_TOP_K)
        return mf_ref_load_int(m->call->in[1].dtype, m->call->in[1].data, (uint64_t)row);
    int64_t best = 0;
    for (int64_t j = 1; j < m->n; j++)
        if (metric_target(m, row * m->n + j) > metric_target(m, row * m->n + best))
            best = j;
    return best;
}

/* Whether the true class is among the k greatest: ties count for it, as in TensorFlow's in_top_k. */
static bool in_top_k(const metric_view *m, int64_t row, int64_t label, uint32_t k)
{
    if (label < 0 || label >= m->n)
        return false;
    uint32_t above = 0;
    for (int64_t j = 0; j < m->n; j++)
        above += metric_prediction(m, row, j) > metric_prediction(m, row, label);
    return above < k;
}

/* The metric's value for one row (accuracies, mae, mse): what is averaged. */
static double row_value(const metric_view *m, int64_t row)
{
    const mf_attr *attr = &m->call->op->attr;
    double sum = 0;
    switch (attr->metric.function) {
    case MF_METRIC_CATEGORICAL_ACCURACY:
    case MF_METRIC_SPARSE_CATEGORICAL_ACCURACY:
        return best_prediction(m, row) == true_class(m, row);
    case MF_METRIC_TOP_K:
    case MF_METRIC_SPARSE_TOP_K:
        return in_top_k(m, row, true_class(m, row), attr->metric.k ? attr->metric.k : 5);
    default:
        break;
    }
    for (int64_t j = 0; j < m->n; j++) {
        double p = metric_prediction(m, row, j), t = metric_target(m, row * m->n + j);
        if (attr->metric.function == MF_METRIC_BINARY_ACCURACY)
            sum += (p > attr->metric.threshold) == (t != 0) && (t == 0 || t == 1);
        else if (attr->metric.function == MF_METRIC_METRIC_MAE)
            sum += fabs(p - t);
        else
            sum += (p - t) * (p - t);
    }
    return sum / (double)m->n;
}

static void confusion(const metric_view *m, int64_t row, double w)
{
    const mf_attr *attr = &m->call->op->attr;
    for (int64_t j = 0; j < m->n; j++) {
        bool says = metric_prediction(m, row, j) > attr->metric.threshold, is = metric_target(m, row * m->n + j) != 0;
        if (says && is)
            m->state[0] += w;
        else if (attr->metric.function == MF_METRIC_PRECISION ? says : is)
            m->state[1] += w;
    }
}

/* Thresholds as Keras spaces them: -1e-7, then i / (count - 1), then 1 + 1e-7. */
static void auc_row(const metric_view *m, int64_t row, double w, mf_ref_arg *out, mf_dtype dtype)
{
    int64_t thresholds = (int64_t)out->count / 4;
    for (int64_t j = 0; j < m->n; j++) {
        double p = metric_prediction(m, row, j);
        bool is = metric_target(m, row * m->n + j) != 0;
        for (int64_t i = 0; i < thresholds; i++) {
            double at = i == 0 ? -1e-7 : i == thresholds - 1 ? 1 + 1e-7 : (double)i / (double)(thresholds - 1);
            bool says = p > (dtype == MF_F64 ? at : (double)(float)at);
            uint64_t cell = (uint64_t)((says ? (is ? 0 : 1) : (is ? 3 : 2)) * thresholds + i);
            mf_ref_store(dtype, out->data, cell, mf_ref_load(dtype, out->data, cell) + w);
        }
    }
}

static void metric_walk(mf_ref_call *call, mf_dtype dtype, double added[4])
{
    const mf_attr *attr = &call->op->attr;
    const mf_ref_arg *pred = &call->in[0], *weight = &call->in[2];
    mf_metric f = attr->metric.function;
    metric_view m = {.call = call, .dtype = dtype, .state = added};
    m.n = pred->shape->rank > 1 ? pred->shape->dim[pred->shape->rank - 1] : 1;
    m.rows = m.n > 0 ? (int64_t)pred->count / m.n : 0;
    if (f == MF_METRIC_LOSS_VALUE) { /* pred is the loss of the whole batch; every batch counts alike, as in Keras */
        double value = mf_ref_load(dtype, pred->data, attr->metric.k);
        bool counts = isfinite(value); /* a step of float16 that overflowed is left out, as it is of the loss */
        added[0] = counts ? value : 0;
        added[1] = counts;
        return;
    }
    int64_t rows_per_weight = weight->data && weight->count > 0 ? m.rows / (int64_t)weight->count : m.rows;
    for (int64_t i = 0; i < m.rows; i++) {
        double w = weight->data ? mf_ref_load(dtype, weight->data, (uint64_t)(i / rows_per_weight)) : 1;
        if (f == MF_METRIC_PRECISION || f == MF_METRIC_RECALL)
            confusion(&m, i, w);
        else if (f == MF_METRIC_AUC)
            auc_row(&m, i, w, &call->out[0], dtype);
        else {
            double values = f == MF_METRIC_METRIC_RMSE || f == MF_METRIC_BINARY_ACCURACY ? (double)m.n : 1;
            added[0] += w * values * row_value(&m, i);
            added[1] += w * values;
        }
    }
}

#define REF_DOUBLE 0
#include "ops/reference/loss_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/loss_body.h"
