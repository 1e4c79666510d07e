/*
 * kind_pool.c: pooling; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

static memfit_status pooled(mf_typing *t, const mf_shape *x, mf_shape *y)
{
    const mf_window *window = &t->op->attr.window;
    if (window->dims < 1 || window->dims > 3 || x->rank != window->dims + 2)
        return mf_rule_bad(t, "%u spatial dimensions, rank %u", window->dims, x->rank);
    *y = *x;
    for (uint32_t i = 0; i < window->dims; i++) {
        y->dim[i + 1] = mf_window_out(window, i, x->dim[i + 1]);
        if (y->dim[i + 1] < 1)
            return mf_rule_bad(t, "the input has %lld positions on axis %u, too few for a window of %lld",
                               (long long)x->dim[i + 1], i + 1, (long long)window->kernel[i]);
    }
    return MEMFIT_OK;
}

memfit_status mf_shape_pool(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    mf_shape y;
    if (!x)
        return mf_rule_need(t, 1);
    memfit_status s = pooled(t, &x->shape, &y);
    if (s)
        return s;
    int64_t cells = 1;
    for (uint32_t i = 0; i < t->op->attr.window.dims; i++)
        cells *= t->op->attr.window.kernel[i];
    s = mf_rule_give(t, 0, x->dtype, &y);
    return s ? s : mf_rule_give(t, 1, cells <= 255 ? MF_U8 : MF_I32, &y);
}

memfit_status mf_shape_pool_grad(mf_typing *t)
{
    const mf_tensor *dy = mf_rule_in(t, 0);
    mf_shape y;
    if (!dy || t->out[0].shape.rank == MF_NONE)
        return mf_rule_bad(t, "needs a gradient and the input's shape");
    memfit_status s = pooled(t, &t->out[0].shape, &y);
    if (s)
        return s;
    if (!mf_shape_equal(&y, &dy->shape))
        return mf_rule_bad(t, "the gradient's shape is not that of the output");
    return mf_rule_give(t, 0, dy->dtype, &t->out[0].shape);
}

/* The activation right before a maximum pooling, when nothing else reads what it makes: RELU or RELU6, alone or as part
 * of a normalization, with zeros padded round it or not. *tensor is what it makes; LINEAR when there is none. */
static mf_unary activation_before(const mf_backward *w, uint32_t x, uint32_t *tensor)
{
    const mf_graph *g = w->b->graph;
    uint32_t from = g->tensors[x].producer;
    if (w->readers[x] == 1 && from != MF_NONE && g->ops[from].kind == MF_OP_PAD && g->ops[from].attr.pad.mode == 0 &&
        g->ops[from].attr.pad.value == 0) {
        x = g->ops[from].in[0];
        from = g->tensors[x].producer;
    }
    if (w->readers[x] != 1 || from == MF_NONE || from >= w->op_count || g->ops[from].out[0] != x)
        return MF_UNARY_LINEAR;
    const mf_op *op = &g->ops[from];
    bool norm = op->kind == MF_OP_BATCH_NORM || op->kind == MF_OP_BATCH_NORM_INFER;
    mf_unary f = op->kind == MF_OP_UNARY ? op->attr.unary.function : norm ? op->attr.norm.activation : MF_UNARY_LINEAR;
    *tensor = x;
    return f == MF_UNARY_RELU || f == MF_UNARY_RELU6 ? f : MF_UNARY_LINEAR;
}

/*
 * A pooled activation: the slope of RELU at a window's winner is known from the pooled value, which is the winner's
 * own, and everyone else's gradient is zero anyway. So the slope can be applied to the few pooled gradients before they
 * are spread, and what the activation made, the largest result of many networks, is not needed by backward at all.
 */
static uint32_t slope_first(mf_backward *w, const mf_op *op, uint32_t dy)
{
    uint32_t made = MF_NONE, y = op->out[0];
    mf_unary f = w->b->plain ? MF_UNARY_LINEAR : activation_before(w, op->in[0], &made);
    mf_shape large = mf_g_shape(w->b, op->in[0]), small = mf_g_shape(w->b, y);
    if (f == MF_UNARY_LINEAR || mf_shape_count(&small) * 2 > mf_shape_count(&large))
        return dy;
    w->sloped[made] = 1;
    mf_attr attr = {.unary = {.function = f, .from_output = true}};
    return mf_g_op(w->b, MF_OP_UNARY_GRAD, &attr, 2, (uint32_t[]){dy, y}, 1, NULL, NULL);
}

void mf_gradient_pool_max(mf_backward *w, const mf_op *op)
{
    mf_typed x = {.dtype = mf_g_dtype(w->b, op->in[0]), .shape = mf_g_shape(w->b, op->in[0])};
    uint32_t in[2] = {slope_first(w, op, mf_backward_of(w, op->out[0])), op->out[1]};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_POOL_MAX_GRAD, &op->attr, 2, in, 1, &x, NULL));
}

void mf_gradient_pool_avg(mf_backward *w, const mf_op *op)
{
    mf_typed x = {.dtype = mf_g_dtype(w->b, op->in[0]), .shape = mf_g_shape(w->b, op->in[0])};
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_POOL_AVG_GRAD, &op->attr, 1, &dy, 1, &x, NULL));
}
