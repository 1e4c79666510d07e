/*
 * kind_norm.c: batch and layer normalization; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

static memfit_status vectors_fit(mf_typing *t, uint32_t first, uint32_t last, int64_t channels)
{
    for (uint32_t i = first; i <= last; i++) {
        const mf_tensor *v = mf_rule_in(t, i);
        if (v && (v->shape.rank != 1 || v->shape.dim[0] != channels))
            return mf_rule_bad(t, "operand %u is no vector of %lld", i, (long long)channels);
    }
    return MEMFIT_OK;
}

memfit_status mf_shape_batch_norm(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || x->shape.rank < 1)
        return mf_rule_need(t, 1);
    mf_shape vector = {.rank = 1, .dim = {x->shape.dim[x->shape.rank - 1]}};
    memfit_status s = vectors_fit(t, 1, 2, vector.dim[0]);
    if (!s)
        s = mf_rule_give(t, 0, x->dtype, &x->shape);
    for (uint32_t i = 1; i < 3 && !s; i++)
        s = mf_rule_give(t, i, mf_rule_statistic(x->dtype), &vector);
    return s;
}

memfit_status mf_shape_batch_norm_infer(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || x->shape.rank < 1 || !mf_rule_in(t, 3) || !mf_rule_in(t, 4))
        return mf_rule_bad(t, "an operand is missing");
    memfit_status s = vectors_fit(t, 1, 4, x->shape.dim[x->shape.rank - 1]);
    return s ? s : mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_batch_norm_grad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 1);
    if (mf_rule_need(t, 4))
        return mf_rule_need(t, 4);
    mf_shape vector = {.rank = 1, .dim = {x->shape.dim[x->shape.rank - 1]}};
    memfit_status s = mf_rule_give(t, 0, x->dtype, &x->shape);
    for (uint32_t i = 1; i < 3 && !s; i++)
        s = mf_rule_give(t, i, mf_rule_statistic(x->dtype), &vector);
    return s;
}

/* Gamma and beta have the normalized trailing axes; with groups, the channels. */
static memfit_status layer_norm_vectors(mf_typing *t, const mf_shape *x, mf_shape *vector)
{
    uint32_t axes = t->op->attr.norm.groups ? 1 : t->op->attr.norm.axes;
    if (axes < 1 || axes > x->rank ||
        (t->op->attr.norm.groups && (x->rank < 2 || x->dim[x->rank - 1] % t->op->attr.norm.groups)))
        return mf_rule_bad(t, "%u axes, %u groups on rank %u", axes, t->op->attr.norm.groups, x->rank);
    *vector = (mf_shape){.rank = axes};
    for (uint32_t i = 0; i < axes; i++)
        vector->dim[i] = x->dim[x->rank - axes + i];
    return MEMFIT_OK;
}

memfit_status mf_shape_layer_norm(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    mf_shape vector;
    if (!x)
        return mf_rule_need(t, 1);
    memfit_status s = layer_norm_vectors(t, &x->shape, &vector);
    for (uint32_t i = 1; i < 3 && !s; i++)
        if (mf_rule_in(t, i) && !mf_shape_equal(&mf_rule_in(t, i)->shape, &vector))
            s = mf_rule_bad(t, "operand %u does not have the normalized axes", i);
    if (s)
        return s;
    mf_shape statistics = {.rank = x->shape.rank - vector.rank};
    for (uint32_t i = 0; i < statistics.rank; i++)
        statistics.dim[i] = x->shape.dim[i];
    if (t->op->attr.norm.groups)
        statistics = (mf_shape){.rank = 2, .dim = {x->shape.dim[0], t->op->attr.norm.groups}};
    s = mf_rule_give(t, 0, x->dtype, &x->shape);
    for (uint32_t i = 1; i < 3 && !s; i++)
        s = mf_rule_give(t, i, mf_rule_statistic(x->dtype), &statistics);
    return s;
}

memfit_status mf_shape_layer_norm_grad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 1);
    mf_shape vector;
    if (!mf_rule_in(t, 0) || !x || !mf_rule_in(t, 3))
        return mf_rule_bad(t, "an operand is missing");
    memfit_status s = layer_norm_vectors(t, &x->shape, &vector);
    if (!s)
        s = mf_rule_give(t, 0, x->dtype, &x->shape);
    for (uint32_t i = 1; i < 3 && !s; i++)
        s = mf_rule_give(t, i, mf_rule_statistic(x->dtype), &vector);
    return s;
}

/* dy, x, two statistics, gamma -> dx, dgamma, dbeta; the same operands for all three kinds. */
static void norm_gradient(mf_backward *w, const mf_op *op, mf_op_kind kind, uint32_t first, uint32_t second)
{
    uint32_t x = op->in[0], gamma = op->in[1], beta = op->in[2], out[3];
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_attr attr = op->attr;
    if (attr.norm.activation != MF_UNARY_LINEAR && !w->sloped[op->out[0]]) {
        mf_attr slope = {.unary = {.function = attr.norm.activation, .from_output = true}};
        dy = mf_g_op(w->b, MF_OP_UNARY_GRAD, &slope, 2, (uint32_t[]){dy, op->out[0]}, 1, NULL, NULL);
    }
    attr.norm.activation = MF_UNARY_LINEAR;
    uint32_t in[5] = {dy, x, first, second, gamma};
    mf_typed types[3] = {mf_typed_when(mf_backward_wants(w, x)), mf_typed_when(mf_backward_wants(w, gamma)),
                         mf_typed_when(mf_backward_wants(w, beta))};
    mf_g_op(w->b, kind, &attr, 5, in, 3, types, out);
    mf_backward_give(w, gamma, out[1]);
    mf_backward_give(w, beta, out[2]);
    mf_backward_give(w, x, out[0]);
}

void mf_gradient_batch_norm(mf_backward *w, const mf_op *op)
{
    norm_gradient(w, op, MF_OP_BATCH_NORM_GRAD, op->out[1], op->out[2]);
}

void mf_gradient_batch_norm_infer(mf_backward *w, const mf_op *op)
{
    norm_gradient(w, op, MF_OP_BATCH_NORM_INFER_GRAD, op->in[3], op->in[4]);
}

void mf_gradient_layer_norm(mf_backward *w, const mf_op *op)
{
    norm_gradient(w, op, MF_OP_LAYER_NORM_GRAD, op->out[1], op->out[2]);
}
