/*
 * kind_reduce.c: reductions and softmax; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

memfit_status mf_shape_reduce(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || (t->op->attr.reduce.axes >> x->shape.rank))
        return mf_rule_bad(t, "an axis is out of range");
    mf_shape y = {0};
    for (uint32_t i = 0; i < x->shape.rank; i++)
        if (!(t->op->attr.reduce.axes >> i & 1))
            y.dim[y.rank++] = x->shape.dim[i];
        else if (t->op->attr.reduce.keep)
            y.dim[y.rank++] = 1;
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_reduce_grad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 1);
    if (mf_rule_need(t, 3))
        return mf_rule_need(t, 3);
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_softmax(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || t->op->attr.softmax.axis >= x->shape.rank)
        return mf_rule_bad(t, "axis out of range");
    if (t->op->attr.softmax.causal && (x->shape.rank < 2 || t->op->attr.softmax.axis != x->shape.rank - 1))
        return mf_rule_bad(t, "causal needs queries and keys as last axes");
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

void mf_gradient_reduce(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]), x = op->in[0];
    mf_shape shape = mf_g_shape(w->b, x), kept = shape;
    double count = 1;
    for (uint32_t i = 0; i < shape.rank; i++)
        if (op->attr.reduce.axes >> i & 1) {
            kept.dim[i] = 1;
            count *= (double)shape.dim[i];
        }
    mf_reduce function = op->attr.reduce.function;
    if (function == MF_REDUCE_SUM || function == MF_REDUCE_MEAN) {
        bool mean = function == MF_REDUCE_MEAN;
        bool same = mf_shape_equal(&shape, &kept);
        uint32_t dx = mf_g_broadcast(w->b, mf_g_view(w->b, dy, kept), shape, mean ? 1 / count : 1);
        if (same)
            mf_backward_pass(w, x, dx);
        else
            mf_backward_give(w, x, dx);
        return;
    }
    uint32_t in[3] = {dy, x, op->out[0]};
    mf_backward_give(w, x, mf_g_op(w->b, MF_OP_REDUCE_GRAD, &op->attr, 3, in, 1, NULL, NULL));
}

void mf_gradient_softmax(mf_backward *w, const mf_op *op)
{
    uint32_t in[2] = {mf_backward_of(w, op->out[0]), op->out[0]};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_SOFTMAX_GRAD, &op->attr, 2, in, 1, NULL, NULL));
}
