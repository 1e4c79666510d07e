/* cpu_train.c: rules for losses, updates, gradient clipping and scaling. */
#include "ops/cpu/cpu_ops.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* ---- losses ----------------------------------------------------------------------------------------------- */

static memfit_status bind_loss(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *p = cpu_in(k, 0), *t = cpu_in(k, 1), *w = cpu_in(k, 2);
    const mf_shape *s = &p->shape;
    mf_loss f = k->op->attr.loss.function;
    bool sparse = f == MF_LOSS_SCCE_LOGITS;
    bool known = sparse || f == MF_LOSS_CCE_LOGITS || f == MF_LOSS_BCE_LOGITS || f == MF_LOSS_MSE || f == MF_LOSS_MAE ||
                 f == MF_LOSS_HUBER;
    if (!known || p->dtype != MF_F32 || (!sparse && t->dtype != MF_F32) || (w && w->dtype != MF_F32) ||
        !cpu_out(k, 0) || cpu_out(k, 0)->dtype != MF_F32)
        return cpu_no(err);
    if (t->dtype == MF_F64 || t->dtype == MF_F16 || t->dtype == MF_BF16 || t->dtype == MF_U64 || t->dtype == MF_U32)
        return cpu_no(err);
    int64_t columns = s->rank > 1 ? s->dim[s->rank - 1] : 1, rows = columns ? cpu_count(p) / columns : 0;
    if (rows == 0 || cpu_count(t) != (sparse ? rows : rows * columns))
        return cpu_no(err);
    int64_t per_weight = w ? rows / cpu_count(w) : rows;
    k->u.loss.loss = (mf_k_loss){.function = f,
                                 .rows = rows,
                                 .columns = columns,
                                 .rows_per_sample = per_weight ? per_weight : 1,
                                 .delta = k->op->attr.loss.delta,
                                 .label_smoothing = k->op->attr.loss.label_smoothing,
                                 .target_type = t->dtype};
    k->u.loss.rows_per_sample = k->op->attr.loss.rows_per_sample ? k->op->attr.loss.rows_per_sample : rows / s->dim[0];
    *workspace = 0;
    return MEMFIT_OK;
}

static double loss_factor(const cpu_kernel *k, const mf_run_scalars *s, double weight)
{
    double divisor = k->op->attr.loss.reduction == 0   ? s->batch_samples * (double)k->u.loss.rows_per_sample
                     : k->op->attr.loss.reduction == 2 ? s->weight_sum
                                                       : 1;
    return divisor == 0 ? 0 : weight / divisor;
}

static memfit_status run_loss(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    if (o->recomputed)
        return MEMFIT_OK;
    mf_k_loss *l = &k->u.loss.loss;
    const uint32_t slot = k->op->attr.loss.slot;
    const double weight = k->op->attr.loss.weight;
    l->factor = loss_factor(k, s, slot ? 1 : weight);
    double value = k->backend->k->loss(l, o->in[0], o->in[1], cpu_in(k, 2) ? o->in[2] : NULL, cpu_threads(k));
    if (isnan(value) && l->function == MF_LOSS_SCCE_LOGITS)
        for (int64_t i = 0; i < l->rows; i++) {
            double v = l->target_type == MF_I64   ? (double)((const int64_t *)o->in[1])[i]
                       : l->target_type == MF_I32 ? (double)((const int32_t *)o->in[1])[i]
                       : l->target_type == MF_U8  ? (double)((const uint8_t *)o->in[1])[i]
                       : l->target_type == MF_F32 ? (double)((const float *)o->in[1])[i]
                                                  : 0;
            if (!(v >= 0 && v < (double)l->columns))
                return mf_fail(err, MEMFIT_DAMAGED,
                               "label %g is out of range: the model has %lld classes, 0 to %lld\n"
                               "labels count from 0; look at the targets, or at the last layer's size",
                               v, (long long)l->columns, (long long)l->columns - 1);
        }
    const float *before = o->in[3];
    float *after = o->out[0];
    if (slot) { /* Keras shows the loss of an output without its weight */
        after[slot] = (float)((double)before[slot] + value);
        value *= weight;
    }
    *after = (float)((double)*before + value);
    return MEMFIT_OK;
}

static memfit_status run_loss_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    mf_k_loss *l = &k->u.loss.loss;
    l->factor = loss_factor(k, s, k->op->attr.loss.weight);
    k->backend->k->loss_grad(l, o->in[0], o->in[1], cpu_in(k, 2) ? o->in[2] : NULL,
                             s->loss_scale == 0 ? 1 : s->loss_scale, o->out[0], cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_loss = {bind_loss, run_loss};
const cpu_rule cpu_loss_grad = {bind_loss, run_loss_grad};

/* ---- metrics ---------------------------------------------------------------------------------------------- */

static bool is_label_type(mf_dtype t)
{
    return t == MF_I64 || t == MF_I32 || t == MF_I16 || t == MF_I8 || t == MF_U16 || t == MF_U8 || t == MF_F32;
}

/* The state is float32, and there is a target for each row or prediction; anything else is left to the reference. */
static memfit_status bind_metric(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_tensor *p = cpu_in(k, 0), *t = cpu_in(k, 1), *w = cpu_in(k, 2), *state = cpu_out(k, 0);
    const mf_metric_attr *a = &k->op->attr.metric;
    const mf_shape *s = &p->shape;
    bool sparse = a->function == MF_METRIC_SPARSE_CATEGORICAL_ACCURACY || a->function == MF_METRIC_SPARSE_TOP_K;
    if (a->function == MF_METRIC_LOSS_VALUE || p->dtype != MF_F32 || !t || (w && w->dtype != MF_F32) ||
        state->dtype != MF_F32 || cpu_in(k, 3)->dtype != MF_F32 || k->op->accumulate ||
        !(sparse ? is_label_type(t->dtype) : t->dtype == MF_F32))
        return cpu_no(err);
    int64_t columns = s->rank > 1 ? s->dim[s->rank - 1] : 1, rows = columns ? cpu_count(p) / columns : 0;
    if (rows == 0 || cpu_count(t) != (sparse ? rows : rows * columns) || (w && rows % cpu_count(w)))
        return cpu_no(err);
    k->u.metric = (mf_k_metric){.function = a->function,
                                .rows = rows,
                                .columns = columns,
                                .rows_per_weight = w ? rows / cpu_count(w) : rows,
                                .threshold = a->threshold,
                                .k = a->k ? a->k : 5,
                                .target_type = t->dtype};
    *workspace = a->function == MF_METRIC_AUC ? mf_k_auc_doubles(cpu_count(state) / 4) * sizeof(double) : 0;
    return MEMFIT_OK;
}

static memfit_status run_metric(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    const mf_k_metric *m = &k->u.metric;
    const float *weight = cpu_in(k, 2) ? o->in[2] : NULL;
    int64_t n = cpu_count(cpu_out(k, 0));
    float *state = o->out[0];
    if (o->in[3] != o->out[0])
        memmove(state, o->in[3], (size_t)n * sizeof *state);
    if (m->function == MF_METRIC_AUC) {
        k->backend->k->auc(m, o->in[0], o->in[1], weight, n / 4, o->workspace, state, cpu_threads(k));
        return MEMFIT_OK;
    }
    double added[2] = {0};
    k->backend->k->metric(m, o->in[0], o->in[1], weight, added, cpu_threads(k));
    for (int i = 0; i < 2 && i < n; i++)
        state[i] = (float)((double)state[i] + added[i]);
    return MEMFIT_OK;
}

const cpu_rule cpu_metric = {bind_metric, run_metric};

/* ---- updates ---------------------------------------------------------------------------------------------- */

static memfit_status bind_update(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    mf_optimizer f = k->op->attr.update.optimizer;
    if (!cpu_all_float(k) || k->op->out_count > 4 ||
        !(f == MF_OPTIMIZER_SGD || f == MF_OPTIMIZER_ADAM || f == MF_OPTIMIZER_ADAMW || f == MF_OPTIMIZER_RMSPROP ||
          f == MF_OPTIMIZER_LION))
        return cpu_no(err);
    for (uint32_t i = 1; i < k->op->out_count; i++)
        if (cpu_count(cpu_out(k, i)) != cpu_count(cpu_out(k, 0)))
            return cpu_no(err);
    k->u.point.n = cpu_count(cpu_out(k, 0));
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_update(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    uint32_t slots = k->op->out_count - 1;
    if (cpu_in(k, 2 + slots) && *(const float *)o->in[2 + slots] != 0)
        return MEMFIT_OK;
    mf_k_update u = {k->op->attr.update, (double)(float)s->learning_rate, s->iteration};
    float *at[3] = {0};
    for (uint32_t i = 0; i < slots && i < 3; i++)
        at[i] = o->out[1 + i];
    k->backend->k->update(&u, o->out[0], o->in[1], at, k->u.point.n, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_update = {bind_update, run_update};

/* ---- clipping and scaling ----------------------------------------------------------------------------------- */

static memfit_status bind_whole(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (!cpu_all_float(k))
        return cpu_no(err);
    k->u.point.n = cpu_in(k, 0) ? cpu_count(cpu_in(k, 0)) : 0;
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_square_sum(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    double total = 0;
    for (uint32_t i = 0; i < k->op->in_count; i++)
        if (cpu_in(k, i))
            total += k->backend->k->square_sum(o->in[i], cpu_count(cpu_in(k, i)), cpu_threads(k));
    *(float *)o->out[0] = (float)total;
    return MEMFIT_OK;
}

const cpu_rule cpu_square_sum = {bind_whole, run_square_sum};

/* In norm, in value, or in both; from the norm of all gradients, where it is given. */
static memfit_status run_clip(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    bool global = k->op->kind == MF_OP_CLIP_GLOBAL;
    double limit = k->op->attr.clip.norm, value = global ? 0 : k->op->attr.clip.value, factor = 1;
    if (limit > 0) {
        double square = global ? (double)*(const float *)o->in[1]
                               : k->backend->k->square_sum(o->in[0], k->u.point.n, cpu_threads(k));
        factor = limit / fmax(sqrt(square), limit);
    }
    k->backend->k->clip(o->in[0], o->out[0], (float)factor, (float)value, k->u.point.n, cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status bind_clip(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    return cpu_adds(k, 0) ? cpu_no(err) : bind_whole(k, create, workspace, err);
}

const cpu_rule cpu_clip = {bind_clip, run_clip}, cpu_clip_global = {bind_clip, run_clip};

static memfit_status run_regularize(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    double scale = s->loss_scale == 0 ? 1 : s->loss_scale;
    float *out = cpu_out(k, 0) ? o->out[0] : NULL;
    double penalty =
        k->backend->k->regularize(k->op->attr.regularize.l1, k->op->attr.regularize.l2, scale, o->in[0],
                                  out && cpu_in(k, 1) ? o->in[1] : NULL, out, k->u.point.n, cpu_threads(k));
    *(float *)o->out[1] = (float)((double)*(const float *)o->in[2] + penalty);
    return MEMFIT_OK;
}

const cpu_rule cpu_regularize = {bind_whole, run_regularize};

/* grad /= loss scale; the flag is set when a value is not finite. */
static memfit_status run_check_finite(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    float scale = (float)(1 / mf_scalars_unscale(s));
    if (!k->backend->k->unscale(o->in[0], scale, k->u.point.n, cpu_threads(k)))
        *(float *)o->out[0] = 1;
    return MEMFIT_OK;
}

const cpu_rule cpu_check_finite = {bind_whole, run_check_finite};

/* ---- dropout ---------------------------------------------------------------------------------------------- */

static memfit_status bind_dropout(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_shape *s = &cpu_out(k, 0)->shape;
    if (!cpu_all_float(k) || cpu_adds(k, 0) || k->op->attr.random.shared_axes || s->rank < 1 || s->dim[0] < 1)
        return cpu_no(err);
    k->u.rows.rows = s->dim[0];
    k->u.rows.c = cpu_count(cpu_out(k, 0)) / s->dim[0];
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_dropout(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)err;
    mf_k_random r = {s->seed, s->step, s->first_sample, k->op->attr.random.key};
    k->backend->k->dropout(&r, k->op->attr.random.rate, o->in[0], o->out[0], k->u.rows.rows, k->u.rows.c,
                           cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_dropout = {bind_dropout, run_dropout};
