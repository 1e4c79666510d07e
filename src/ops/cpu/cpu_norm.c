/* cpu_norm.c: rules for reductions, softmax, pooling and normalization. */
#include "ops/cpu/cpu_ops.h"

#include "base/error.h"

static int64_t span(const mf_shape *s, uint32_t from, uint32_t to)
{
    int64_t n = 1;
    for (uint32_t d = from; d < to; d++)
        n *= s->dim[d];
    return n;
}

/* ---- reductions: the reduced axes must stand together --------------------------------------------------------- */

static memfit_status bind_reduce(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_shape *x = &cpu_in(k, 0)->shape;
    uint32_t axes = k->op->attr.reduce.axes, first = 0, last;
    mf_reduce f = k->op->attr.reduce.function;
    if (!cpu_all_float(k) || f == MF_REDUCE_PROD || f == MF_REDUCE_L2)
        return cpu_no(err);
    while (first < x->rank && !(axes >> first & 1))
        first++;
    last = first;
    while (last < x->rank && ((axes >> last & 1) || x->dim[last] == 1))
        last++;
    for (uint32_t d = last; d < x->rank; d++)
        if (axes >> d & 1)
            return cpu_no(err);
    k->u.reduce.a = span(x, 0, first);
    k->u.reduce.r = span(x, first, last);
    k->u.reduce.c = span(x, last, x->rank);
    k->u.reduce.function = f;
    if (k->u.reduce.r == 0 || (cpu_adds(k, 0) && f != MF_REDUCE_SUM && f != MF_REDUCE_MEAN))
        return cpu_no(err);
    *workspace = mf_k_reduce_floats(k->u.reduce.a, k->u.reduce.r, k->u.reduce.c, cpu_adds(k, 0), cpu_threads(k)) * 4;
    return MEMFIT_OK;
}

static memfit_status run_reduce(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->reduce(k->u.reduce.function, o->in[0], o->out[0], k->u.reduce.a, k->u.reduce.r, k->u.reduce.c,
                          cpu_adds(k, 0), o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_reduce = {bind_reduce, run_reduce};

/* ---- softmax over the last axis ----------------------------------------------------------------------------- */

static memfit_status bind_softmax(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    const mf_shape *x = &cpu_out(k, 0)->shape;
    bool last = x->rank && (k->op->attr.softmax.axis == x->rank - 1);
    if (!cpu_all_float(k) || !last || cpu_adds(k, 0) || k->op->attr.softmax.sparse ||
        (k->op->attr.softmax.causal && (x->rank < 2 || k->op->attr.softmax.log)))
        return cpu_no(err);
    k->u.rows.c = x->dim[x->rank - 1];
    k->u.rows.rows = span(x, 0, x->rank - 1);
    k->u.rows.causal = k->op->attr.softmax.causal ? x->dim[x->rank - 2] : 0;
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_softmax(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->softmax(o->in[0], o->out[0], k->u.rows.rows, k->u.rows.c, k->op->attr.softmax.log, k->u.rows.causal,
                           cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status run_softmax_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->softmax_grad(o->in[0], o->in[1], o->out[0], k->u.rows.rows, k->u.rows.c, k->op->attr.softmax.log,
                                cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_softmax = {bind_softmax, run_softmax};
const cpu_rule cpu_softmax_grad = {bind_softmax, run_softmax_grad};

/* ---- pooling ---------------------------------------------------------------------------------------------- */

static bool describe_window(const cpu_kernel *k, const mf_tensor *x, const mf_tensor *y, mf_k_window *w)
{
    const mf_window *a = &k->op->attr.window;
    if (x->dtype != MF_F32 || y->dtype != MF_F32 || a->dims < 1 || a->dims > 3 || x->shape.rank != a->dims + 2)
        return false;
    *w = (mf_k_window){.batch = x->shape.dim[0],
                       .channels = x->shape.dim[a->dims + 1],
                       .count_padding = a->count_padding,
                       .in = {1, 1, 1},
                       .out = {1, 1, 1},
                       .kernel = {1, 1, 1},
                       .stride = {1, 1, 1},
                       .dilation = {1, 1, 1}};
    for (uint32_t i = 0; i < a->dims; i++) {
        uint32_t d = 3 - a->dims + i;
        w->in[d] = x->shape.dim[1 + i];
        w->out[d] = y->shape.dim[1 + i];
        w->kernel[d] = a->kernel[i];
        w->stride[d] = a->stride[i];
        w->dilation[d] = a->dilation[i] ? a->dilation[i] : 1;
        w->before[d] = a->before[i];
    }
    return true;
}

static memfit_status bind_pool(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    bool grad = k->op->kind == MF_OP_POOL_MAX_GRAD || k->op->kind == MF_OP_POOL_AVG_GRAD;
    const mf_tensor *x = grad ? cpu_out(k, 0) : cpu_in(k, 0), *y = grad ? cpu_in(k, 0) : cpu_out(k, 0);
    const mf_tensor *index = k->op->kind == MF_OP_POOL_MAX        ? cpu_out(k, 1)
                             : k->op->kind == MF_OP_POOL_MAX_GRAD ? cpu_in(k, 1)
                                                                  : NULL;
    mf_k_window *w = &k->u.window;
    if (cpu_adds(k, 0) || !x || !y || !describe_window(k, x, y, w) || (index && index->dtype != MF_U8))
        return cpu_no(err);
    if (index && w->kernel[0] * w->kernel[1] * w->kernel[2] > 255)
        return cpu_no(err);
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_pool(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    const mf_kernel_table *t = k->backend->k;
    switch (k->op->kind) {
    case MF_OP_POOL_MAX:
        t->pool_max(&k->u.window, o->in[0], o->out[0], cpu_out(k, 1) ? o->out[1] : NULL, cpu_threads(k));
        break;
    case MF_OP_POOL_MAX_GRAD:
        t->pool_max_grad(&k->u.window, o->in[0], o->in[1], o->out[0], cpu_threads(k));
        break;
    case MF_OP_POOL_AVG:
        t->pool_avg(&k->u.window, o->in[0], o->out[0], cpu_threads(k));
        break;
    default:
        t->pool_avg_grad(&k->u.window, o->in[0], o->out[0], cpu_threads(k));
        break;
    }
    return MEMFIT_OK;
}

const cpu_rule cpu_pool_max = {bind_pool, run_pool}, cpu_pool_max_grad = {bind_pool, run_pool};
const cpu_rule cpu_pool_avg = {bind_pool, run_pool}, cpu_pool_avg_grad = {bind_pool, run_pool};

/* ---- batch normalization ------------------------------------------------------------------------------------ */

static memfit_status bind_batch_norm(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    bool grad = k->op->kind == MF_OP_BATCH_NORM_GRAD || k->op->kind == MF_OP_BATCH_NORM_INFER_GRAD;
    const mf_shape *x = &cpu_in(k, grad ? 1 : 0)->shape;
    if (!cpu_all_float(k) || x->rank < 2 || (grad && cpu_adds(k, 0)) ||
        (k->op->kind == MF_OP_BATCH_NORM && !(cpu_out(k, 1) && cpu_out(k, 2))))
        return cpu_no(err);
    k->u.rows.c = x->dim[x->rank - 1];
    k->u.rows.rows = span(x, 0, x->rank - 1);
    *workspace = (uint64_t)k->u.rows.c * (k->backend->base.threads * 2 * 8 + 3 * 4);
    return MEMFIT_OK;
}

static memfit_status run_batch_norm(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->batch_norm(o->in[0], cpu_in(k, 1) ? o->in[1] : NULL, cpu_in(k, 2) ? o->in[2] : NULL, o->out[0],
                              o->out[1], o->out[2], k->u.rows.rows, k->u.rows.c, k->op->attr.norm.epsilon,
                              k->op->attr.norm.activation, o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status run_batch_norm_infer(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s,
                                          memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->batch_norm_apply(o->in[0], cpu_in(k, 1) ? o->in[1] : NULL, cpu_in(k, 2) ? o->in[2] : NULL, o->in[3],
                                    o->in[4], o->out[0], k->u.rows.rows, k->u.rows.c, k->op->attr.norm.epsilon,
                                    k->op->attr.norm.activation, o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status run_batch_norm_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s,
                                         memfit_error *err)
{
    (void)s;
    (void)err;
    const bool add[2] = {cpu_adds(k, 1), cpu_adds(k, 2)};
    k->backend->k->batch_norm_grad(
        o->in[0], o->in[1], o->in[2], o->in[3], cpu_in(k, 4) ? o->in[4] : NULL, cpu_out(k, 0) ? o->out[0] : NULL,
        cpu_out(k, 1) ? o->out[1] : NULL, cpu_out(k, 2) ? o->out[2] : NULL, k->u.rows.rows, k->u.rows.c,
        k->op->attr.norm.epsilon, k->op->kind == MF_OP_BATCH_NORM_INFER_GRAD, add, o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_batch_norm = {bind_batch_norm, run_batch_norm};
const cpu_rule cpu_batch_norm_infer = {bind_batch_norm, run_batch_norm_infer};
const cpu_rule cpu_batch_norm_grad = {bind_batch_norm, run_batch_norm_grad};
const cpu_rule cpu_batch_norm_infer_grad = {bind_batch_norm, run_batch_norm_grad};

/* ---- layer normalization ------------------------------------------------------------------------------------ */

static memfit_status bind_layer_norm(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    bool grad = k->op->kind == MF_OP_LAYER_NORM_GRAD;
    const mf_shape *x = &cpu_in(k, grad ? 1 : 0)->shape;
    uint32_t axes = k->op->attr.norm.axes;
    if (!cpu_all_float(k) || k->op->attr.norm.groups || axes < 1 || axes >= x->rank || (grad && cpu_adds(k, 0)))
        return cpu_no(err);
    k->u.rows.rows = span(x, 0, x->rank - axes);
    k->u.rows.c = span(x, x->rank - axes, x->rank);
    const mf_tensor *gamma = cpu_in(k, grad ? 4 : 1);
    if (gamma && cpu_count(gamma) != k->u.rows.c)
        return cpu_no(err);
    *workspace = grad ? (uint64_t)k->u.rows.c * k->backend->base.threads * 2 * 4 : 0;
    return MEMFIT_OK;
}

static memfit_status run_layer_norm(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    (void)err;
    k->backend->k->layer_norm(o->in[0], cpu_in(k, 1) ? o->in[1] : NULL, cpu_in(k, 2) ? o->in[2] : NULL, o->out[0],
                              cpu_out(k, 1) ? o->out[1] : NULL, cpu_out(k, 2) ? o->out[2] : NULL, k->u.rows.rows,
                              k->u.rows.c, k->op->attr.norm.epsilon, k->op->attr.norm.rms, cpu_threads(k));
    return MEMFIT_OK;
}

static memfit_status run_layer_norm_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s,
                                         memfit_error *err)
{
    (void)s;
    (void)err;
    const bool add[2] = {cpu_adds(k, 1), cpu_adds(k, 2)};
    k->backend->k->layer_norm_grad(o->in[0], o->in[1], cpu_in(k, 2) ? o->in[2] : NULL, o->in[3],
                                   cpu_in(k, 4) ? o->in[4] : NULL, cpu_out(k, 0) ? o->out[0] : NULL,
                                   cpu_out(k, 1) ? o->out[1] : NULL, cpu_out(k, 2) ? o->out[2] : NULL, k->u.rows.rows,
                                   k->u.rows.c, k->op->attr.norm.rms, add, o->workspace, cpu_threads(k));
    return MEMFIT_OK;
}

const cpu_rule cpu_layer_norm = {bind_layer_norm, run_layer_norm};
const cpu_rule cpu_layer_norm_grad = {bind_layer_norm, run_layer_norm_grad};

/* The moving average must not move again when the layer is recomputed. */
static memfit_status bind_moving(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    (void)create;
    if (!cpu_all_float(k))
        return cpu_no(err);
    k->u.rows.c = cpu_count(cpu_out(k, 0));
    *workspace = 0;
    return MEMFIT_OK;
}

static memfit_status run_moving(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s, (void)err;
    if (!o->recomputed)
        k->backend->k->moving_average(o->out[0], o->in[0], (float)k->op->attr.moving.momentum, k->u.rows.c);
    return MEMFIT_OK;
}

const cpu_rule cpu_moving_average = {bind_moving, run_moving};
