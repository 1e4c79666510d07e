/*
 * kind_pointwise.c: unary and binary functions, sums, masks, PReLU, dropout; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

memfit_status mf_shape_same(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || mf_rule_need(t, mf_kind(t->op->kind)->min_in))
        return mf_rule_need(t, mf_kind(t->op->kind)->min_in);
    for (uint32_t i = 1; i < t->op->in_count; i++) {
        const mf_tensor *other = mf_rule_in(t, i);
        if (other && !mf_shape_equal(&x->shape, &other->shape))
            return mf_rule_bad(t, "operands differ in shape");
    }
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

bool mf_shape_broadcasts(const mf_shape *a, const mf_shape *b, mf_shape *out)
{
    const mf_shape *longer = a->rank >= b->rank ? a : b, *shorter = a->rank >= b->rank ? b : a;
    uint32_t skip = longer->rank - shorter->rank;
    *out = *longer;
    for (uint32_t i = 0; i < shorter->rank; i++) {
        int64_t p = longer->dim[i + skip], q = shorter->dim[i];
        if (p != q && p != 1 && q != 1)
            return false;
        out->dim[i + skip] = p == 1 ? q : p;
    }
    return true;
}

memfit_status mf_shape_binary(mf_typing *t)
{
    const mf_tensor *a = mf_rule_in(t, 0), *b = mf_rule_in(t, 1);
    if (!a || !b)
        return mf_rule_need(t, 2);
    mf_shape y;
    if (a->dtype != b->dtype || !mf_shape_broadcasts(&a->shape, &b->shape, &y)) {
        char p[128], q[128];
        return mf_rule_bad(t, "%s %s with %s %s", mf_dtype_name(a->dtype), mf_shape_format(&a->shape, p, sizeof p),
                           mf_dtype_name(b->dtype), mf_shape_format(&b->shape, q, sizeof q));
    }
    return mf_rule_give(t, 0, a->dtype, &y);
}

memfit_status mf_shape_binary_grad(mf_typing *t)
{
    const mf_tensor *dy = mf_rule_in(t, 0), *a = mf_rule_in(t, 1), *b = mf_rule_in(t, 2);
    mf_shape y;
    if (!dy || !a || !b || !mf_shape_broadcasts(&a->shape, &b->shape, &y) || !mf_shape_equal(&y, &dy->shape))
        return mf_rule_bad(t, "operands do not go together");
    return mf_rule_give(t, 0, dy->dtype, &dy->shape);
}

memfit_status mf_shape_compare(mf_typing *t)
{
    const mf_tensor *a = mf_rule_in(t, 0), *b = mf_rule_in(t, 1);
    if (!a)
        return mf_rule_need(t, 1);
    mf_shape y = a->shape;
    if (b && (a->dtype != b->dtype || !mf_shape_broadcasts(&a->shape, &b->shape, &y)))
        return mf_rule_bad(t, "operands do not go together");
    return mf_rule_give(t, 0, MF_U8, &y);
}

/* The type is that of a or b; when both are numbers it is given. */
memfit_status mf_shape_select(mf_typing *t)
{
    const mf_tensor *mask = mf_rule_in(t, 0), *a = mf_rule_in(t, 1), *b = mf_rule_in(t, 2);
    if (!mask)
        return mf_rule_need(t, 1);
    mf_shape y = mask->shape, wide;
    mf_dtype dtype = a ? a->dtype : b ? b->dtype : t->out[0].dtype;
    bool fits = mask->dtype == MF_U8 && (!a || mf_shape_broadcasts(&y, &a->shape, &wide));
    if (fits && a)
        y = wide;
    fits = fits && (!b || (b->dtype == dtype && mf_shape_broadcasts(&y, &b->shape, &wide)));
    if (fits && b)
        y = wide;
    if (!fits || (t->op->attr.select.causal && y.rank < 2))
        return mf_rule_bad(t, "mask and values do not go together");
    return mf_rule_give(t, 0, dtype, &y);
}

memfit_status mf_shape_sum_n(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    for (uint32_t i = 0; i < t->op->in_count; i++) {
        const mf_tensor *other = mf_rule_in(t, i);
        if (!x || !other || !mf_shape_equal(&x->shape, &other->shape) || x->dtype != other->dtype)
            return mf_rule_bad(t, "operand %u differs", i);
    }
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_prelu(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0), *alpha = mf_rule_in(t, 1);
    if (!x || !alpha || alpha->shape.rank + 1 != x->shape.rank)
        return mf_rule_bad(t, "alpha has the input's dimensions without the batch");
    for (uint32_t i = 0; i < alpha->shape.rank; i++)
        if (alpha->shape.dim[i] != 1 && alpha->shape.dim[i] != x->shape.dim[i + 1])
            return mf_rule_bad(t, "alpha's axis %u does not fit", i);
    return mf_rule_give(t, 0, x->dtype, &x->shape);
}

memfit_status mf_shape_prelu_grad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 1), *alpha = mf_rule_in(t, 2);
    if (mf_rule_need(t, 3))
        return mf_rule_need(t, 3);
    memfit_status s = mf_rule_give(t, 0, x->dtype, &x->shape);
    return s ? s : mf_rule_give(t, 1, alpha->dtype, &alpha->shape);
}

/* ---- masks ---- */

static mf_shape bits_of(const mf_tensor *x)
{
    return (mf_shape){.rank = 1, .dim = {((int64_t)mf_shape_count(&x->shape) + 7) / 8}};
}

memfit_status mf_shape_mask(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    mf_unary f = t->op->attr.unary.function;
    if (!x || (f != MF_UNARY_RELU && f != MF_UNARY_RELU6))
        return mf_rule_bad(t, "needs an input and RELU or RELU6");
    mf_shape bits = bits_of(x);
    return mf_rule_give(t, 0, MF_U8, &bits);
}

memfit_status mf_shape_mask_grad(mf_typing *t)
{
    const mf_tensor *dy = mf_rule_in(t, 0), *bits = mf_rule_in(t, 1);
    if (!dy || !bits)
        return mf_rule_need(t, 2);
    mf_shape wanted = bits_of(dy);
    if (bits->dtype != MF_U8 || !mf_shape_equal(&bits->shape, &wanted))
        return mf_rule_bad(t, "the mask is not of the gradient's size");
    return mf_rule_give(t, 0, dy->dtype, &dy->shape);
}

/* ---- pointwise ---- */

void mf_gradient_unary(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_attr attr = op->attr;
    if (w->sloped[op->out[0]]) { /* the pooling behind it did that already */
        mf_backward_give(w, op->in[0], dy);
        return;
    }
    switch (attr.unary.function) {
    case MF_UNARY_LINEAR:
        mf_backward_pass(w, op->in[0], dy);
        return;
    case MF_UNARY_SIGN:
    case MF_UNARY_FLOOR:
        return;
    case MF_UNARY_AFFINE:
        if (attr.unary.alpha == 1) { /* dy itself, which others may read */
            mf_backward_pass(w, op->in[0], dy);
            return;
        }
        mf_backward_give(w, op->in[0], mf_g_unary(w->b, MF_UNARY_AFFINE, attr.unary.alpha, 0, dy));
        return;
    case MF_UNARY_NEG:
        mf_backward_give(w, op->in[0], mf_g_unary(w->b, MF_UNARY_NEG, 0, 0, dy));
        return;
    default:
        break;
    }
    attr.unary.from_output = mf_unary_from_output(attr.unary.function);
    uint32_t in[2] = {dy, attr.unary.from_output ? op->out[0] : op->in[0]};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_UNARY_GRAD, &attr, 2, in, 1, NULL, NULL));
}

static uint32_t binary_gradient(mf_backward *w, const mf_op *op, uint32_t side, uint32_t dy, bool *own)
{
    uint32_t other = op->in[1 - side];
    *own = true;
    switch (op->attr.binary.function) {
    case MF_ADD:
        *own = false;
        return dy;
    case MF_SUB:
        *own = side == 1;
        return side ? mf_g_unary(w->b, MF_UNARY_NEG, 0, 0, dy) : dy;
    case MF_MUL:
        return mf_g_binary(w->b, MF_MUL, dy, other);
    default:
        break;
    }
    mf_attr attr = {.binary = {.function = op->attr.binary.function, .side = side}};
    return mf_g_op(w->b, MF_OP_BINARY_GRAD, &attr, 3, (uint32_t[]){dy, op->in[0], op->in[1]}, 1, NULL, NULL);
}

void mf_gradient_binary(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]);
    for (uint32_t k = 2; k-- > 0;) /* second first: parameters are usually there */
        if (mf_backward_wants(w, op->in[k])) {
            bool own;
            uint32_t part = binary_gradient(w, op, k, dy, &own);
            mf_backward_reduce(w, op->in[k], part, own);
        }
}

void mf_gradient_select(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]);
    for (uint32_t k = 3; k-- > 1;) {
        if (!mf_backward_wants(w, op->in[k]))
            continue;
        mf_attr attr = {.select = {.causal = op->attr.select.causal}}; /* 0 where the other one was taken */
        uint32_t in[3] = {op->in[0], k == 1 ? dy : MF_NONE, k == 2 ? dy : MF_NONE};
        mf_backward_reduce(w, op->in[k], mf_g_op(w->b, MF_OP_SELECT, &attr, 3, in, 1, NULL, NULL), true);
    }
}

void mf_gradient_sum_n(mf_backward *w, const mf_op *op)
{
    for (uint32_t k = 0; k < op->in_count; k++)
        mf_backward_pass(w, op->in[k], mf_backward_of(w, op->out[0]));
}

void mf_gradient_dropout(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_DROPOUT, &op->attr, 1, &dy, 1, NULL, NULL));
}

void mf_gradient_prelu(mf_backward *w, const mf_op *op)
{
    uint32_t in[3] = {mf_backward_of(w, op->out[0]), op->in[0], op->in[1]}, out[2];
    mf_typed types[2] = {mf_typed_when(mf_backward_wants(w, op->in[0])),
                         mf_typed_when(mf_backward_wants(w, op->in[1]))};
    mf_g_op(w->b, MF_OP_PRELU_GRAD, NULL, 3, in, 2, types, out);
    mf_backward_give(w, op->in[1], out[1]);
    mf_backward_give(w, op->in[0], out[0]);
}
