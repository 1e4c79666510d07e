/*
 * kind_train.c: losses and updates; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

memfit_status mf_shape_loss_grad(mf_typing *t)
{
    const mf_tensor *pred = mf_rule_in(t, 0);
    if (!pred || !mf_rule_in(t, 1))
        return mf_rule_need(t, 2);
    return mf_rule_give(t, 0, pred->dtype, &pred->shape);
}

memfit_status mf_shape_in_place(mf_typing *t)
{
    for (uint32_t o = 0; o < t->op->out_count; o++) {
        bool named = t->op->out[o] == MF_NONE;
        for (uint32_t i = 0; i < t->op->in_count; i++)
            named |= t->op->in[i] == t->op->out[o];
        if (!named)
            return mf_rule_bad(t, "output %u is not among the inputs", o);
    }
    return MEMFIT_OK;
}

memfit_status mf_shape_square_sum(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    return mf_rule_give(t, 0, mf_rule_statistic(x->dtype), &(mf_shape){.rank = 0});
}

/* ---- losses: where the backward pass begins ---- */

void mf_gradient_loss(mf_backward *w, const mf_op *op)
{
    uint32_t in[3] = {op->in[0], op->in[1], op->in[2]};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_LOSS_GRAD, &op->attr, 3, in, 1, NULL, NULL));
}
