/*
 * kind_move.c: kinds that move or select elements: views, casts, transposes, slices, pads, concatenation, gathers,
 * resizing; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

memfit_status mf_shape_given(mf_typing *t)
{
    if (!mf_rule_given(t))
        return mf_rule_bad(t, "the shape must be given");
    for (uint32_t i = 0; i < t->out[0].shape.rank; i++)
        if (t->out[0].shape.dim[i] < 0)
            return mf_rule_bad(t, "dimension %u is not known", i);
    return MEMFIT_OK;
}

memfit_status mf_shape_view(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !mf_rule_given(t))
        return mf_rule_bad(t, "needs an operand and a shape");
    const mf_shape *y = &t->out[0].shape;
    bool fits = mf_shape_count(&x->shape) == mf_shape_count(y);
    if (t->op->attr.view.rows) {
        int64_t first = t->op->attr.view.first;
        fits = y->rank == x->shape.rank && y->rank && first >= 0 && y->dim[0] >= 0 && first <= x->shape.dim[0] &&
               y->dim[0] <= x->shape.dim[0] - first;
        for (uint32_t i = 1; fits && i < y->rank; i++)
            fits = y->dim[i] == x->shape.dim[i];
    }
    if (!fits) {
        char a[128], b[128];
        return mf_rule_bad(t, "%s cannot be seen as %s", mf_shape_format(&x->shape, a, sizeof a),
                           mf_shape_format(&t->out[0].shape, b, sizeof b));
    }
    return x->dtype == t->out[0].dtype ? MEMFIT_OK : mf_rule_bad(t, "a view keeps the type");
}

memfit_status mf_shape_cast(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    return mf_rule_give(t, 0, t->out[0].dtype, &x->shape);
}

memfit_status mf_shape_transpose(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    mf_shape y = {.rank = x->shape.rank};
    uint32_t seen = 0;
    for (uint32_t i = 0; i < y.rank; i++) {
        uint32_t from = t->op->attr.transpose.perm[i];
        if (from >= y.rank || (seen >> from & 1))
            return mf_rule_bad(t, "not a permutation");
        seen |= 1u << from;
        y.dim[i] = x->shape.dim[from];
    }
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_slice(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !mf_rule_given(t) || t->out[0].shape.rank != x->shape.rank)
        return mf_rule_bad(t, "needs an operand and sizes of its rank");
    for (uint32_t i = 0; i < x->shape.rank; i++) {
        int64_t begin = t->op->attr.slice.begin[i], stride = t->op->attr.slice.stride[i];
        int64_t size = t->out[0].shape.dim[i], last;
        if (size < 0 || stride == 0 || __builtin_mul_overflow(size - 1, stride, &last) ||
            __builtin_add_overflow(begin, last, &last))
            return mf_rule_bad(t, "axis %u: size %lld, stride %lld", i, (long long)size, (long long)stride);
        if (size && (begin < 0 || begin >= x->shape.dim[i] || last < 0 || last >= x->shape.dim[i]))
            return mf_rule_bad(t, "axis %u: from %lld to %lld is outside of %lld", i, (long long)begin, (long long)last,
                               (long long)x->shape.dim[i]);
    }
    return mf_rule_give(t, 0, x->dtype, &t->out[0].shape);
}

memfit_status mf_shape_pad(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x)
        return mf_rule_need(t, 1);
    mf_shape y = x->shape;
    for (uint32_t i = 0; i < y.rank; i++) {
        int64_t before = t->op->attr.pad.before[i], after = t->op->attr.pad.after[i];
        int64_t between = t->op->attr.pad.between[i];
        if (before < 0 || after < 0 || between < 0 || before > INT32_MAX || after > INT32_MAX || between > INT32_MAX)
            return mf_rule_bad(t, "axis %u: padding %lld, %lld", i, (long long)before, (long long)after);
        y.dim[i] += before + after + (y.dim[i] > 0 ? between * (y.dim[i] - 1) : 0);
    }
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_concat(mf_typing *t)
{
    uint32_t axis = t->op->attr.concat.axis;
    const mf_tensor *first = mf_rule_in(t, 0);
    if (!first || axis >= first->shape.rank)
        return mf_rule_bad(t, "axis %u of rank %u", axis, first ? first->shape.rank : 0);
    mf_shape y = first->shape;
    for (uint32_t k = 1; k < t->op->in_count; k++) {
        const mf_tensor *x = mf_rule_in(t, k);
        if (!x || x->shape.rank != y.rank || x->dtype != first->dtype)
            return mf_rule_bad(t, "operand %u differs in rank or type", k);
        for (uint32_t i = 0; i < y.rank; i++)
            if (i != axis && x->shape.dim[i] != y.dim[i]) {
                char a[128], b[128];
                return mf_rule_bad(t, "operand %u is %s, the first %s", k, mf_shape_format(&x->shape, a, sizeof a),
                                   mf_shape_format(&first->shape, b, sizeof b));
            }
        y.dim[axis] += x->shape.dim[axis];
    }
    return mf_rule_give(t, 0, first->dtype, &y);
}

memfit_status mf_shape_broadcast(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !mf_rule_given(t) || x->shape.rank != t->out[0].shape.rank)
        return mf_rule_bad(t, "needs an operand and a shape of its rank");
    for (uint32_t i = 0; i < x->shape.rank; i++)
        if (x->shape.dim[i] != 1 && x->shape.dim[i] != t->out[0].shape.dim[i])
            return mf_rule_bad(t, "axis %u is neither 1 nor equal", i);
    return mf_rule_give(t, 0, x->dtype, &t->out[0].shape);
}

memfit_status mf_shape_gather(mf_typing *t)
{
    const mf_tensor *table = mf_rule_in(t, 0), *indices = mf_rule_in(t, 1);
    if (!table || !indices || !table->shape.rank)
        return mf_rule_bad(t, "needs a table and indices");
    mf_shape y = indices->shape;
    if (y.rank + table->shape.rank - 1 > MF_MOST_DIMS)
        return mf_rule_bad(t, "rank over %d", MF_MOST_DIMS);
    for (uint32_t i = 1; i < table->shape.rank; i++)
        y.dim[y.rank++] = table->shape.dim[i];
    return mf_rule_give(t, 0, table->dtype, &y);
}

memfit_status mf_shape_gather_grad(mf_typing *t)
{
    const mf_tensor *indices = mf_rule_in(t, 0), *dy = mf_rule_in(t, 1);
    if (!indices || !dy || !mf_rule_given(t))
        return mf_rule_bad(t, "needs indices, a gradient and the table's shape");
    const mf_shape *table = &t->out[0].shape;
    if (!table->rank || dy->shape.rank != indices->shape.rank + table->rank - 1)
        return mf_rule_bad(t, "ranks do not go together");
    return mf_rule_give(t, 0, dy->dtype, table);
}

memfit_status mf_shape_resize(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0);
    if (!x || !mf_rule_given(t) || x->shape.rank != 4 || t->out[0].shape.rank != 4)
        return mf_rule_bad(t, "needs images (N, H, W, C)");
    mf_shape y = t->out[0].shape;
    y.dim[0] = x->shape.dim[0];
    y.dim[3] = x->shape.dim[3];
    return mf_rule_give(t, 0, x->dtype, &y);
}

void mf_gradient_view(mf_backward *w, const mf_op *op)
{
    uint32_t dx = mf_g_view(w->b, mf_backward_of(w, op->out[0]), mf_g_shape(w->b, op->in[0]));
    if (w->owned[op->out[0]])
        mf_backward_give(w, op->in[0], dx);
    else
        mf_backward_pass(w, op->in[0], dx);
}

void mf_gradient_cast(mf_backward *w, const mf_op *op)
{
    mf_backward_give(w, op->in[0], mf_g_cast(w->b, mf_backward_of(w, op->out[0]), mf_g_dtype(w->b, op->in[0])));
}

void mf_gradient_transpose(mf_backward *w, const mf_op *op)
{
    uint32_t perm[MF_MOST_DIMS] = {0};
    for (uint32_t i = 0; i < mf_g_shape(w->b, op->in[0]).rank; i++)
        perm[op->attr.transpose.perm[i]] = i;
    mf_backward_give(w, op->in[0], mf_g_transpose(w->b, mf_backward_of(w, op->out[0]), perm));
}

/* Zeros where nothing was taken. An axis taken backwards is turned round first. */
void mf_gradient_slice(mf_backward *w, const mf_op *op)
{
    mf_shape x = mf_g_shape(w->b, op->in[0]), y = mf_g_shape(w->b, op->out[0]);
    int64_t begin[MF_MOST_DIMS] = {0}, step[MF_MOST_DIMS], before[MF_MOST_DIMS], after[MF_MOST_DIMS],
            between[MF_MOST_DIMS];
    bool turn = false;
    for (uint32_t i = 0; i < x.rank; i++) {
        int64_t stride = op->attr.slice.stride[i], first = op->attr.slice.begin[i];
        step[i] = stride < 0 ? -1 : 1;
        begin[i] = stride < 0 ? y.dim[i] - 1 : 0;
        turn |= stride < 0;
        if (stride < 0) {
            first += (y.dim[i] - 1) * stride;
            stride = -stride;
        }
        before[i] = first;
        between[i] = stride - 1;
        after[i] = x.dim[i] - first - (y.dim[i] - 1) * stride - 1;
    }
    uint32_t dy = mf_backward_of(w, op->out[0]);
    if (turn)
        dy = mf_g_slice(w->b, dy, begin, y.dim, step);
    mf_backward_give(w, op->in[0], mf_g_pad(w->b, dy, before, after, between, 0, 0));
}

void mf_gradient_pad(mf_backward *w, const mf_op *op)
{
    if (op->attr.pad.mode != 0) {
        mf_build_fail(w->b, MEMFIT_UNSUPPORTED, "layer '%s': padding by reflection or repetition has no gradient here",
                      w->b->graph->layers[op->layer].name);
        return;
    }
    int64_t stride[MF_MOST_DIMS];
    mf_shape x = mf_g_shape(w->b, op->in[0]);
    for (uint32_t i = 0; i < x.rank; i++)
        stride[i] = op->attr.pad.between[i] + 1;
    uint32_t dx = mf_g_slice(w->b, mf_backward_of(w, op->out[0]), op->attr.pad.before, x.dim, stride);
    mf_backward_give(w, op->in[0], dx);
}

void mf_gradient_concat(mf_backward *w, const mf_op *op)
{
    int64_t begin[MF_MOST_DIMS] = {0};
    for (uint32_t k = 0; k < op->in_count; k++) {
        mf_shape x = mf_g_shape(w->b, op->in[k]);
        if (mf_backward_wants(w, op->in[k]))
            mf_backward_give(w, op->in[k], mf_g_slice(w->b, mf_backward_of(w, op->out[0]), begin, x.dim, NULL));
        begin[op->attr.concat.axis] += x.dim[op->attr.concat.axis];
    }
}

void mf_gradient_broadcast(mf_backward *w, const mf_op *op)
{
    double scale = op->attr.broadcast.scale;
    mf_shape from = mf_g_shape(w->b, op->in[0]), to = mf_g_shape(w->b, op->out[0]);
    uint32_t axes = 0;
    for (uint32_t i = 0; i < from.rank; i++)
        axes |= from.dim[i] != to.dim[i] ? 1u << i : 0;
    uint32_t dx = mf_g_reduce(w->b, MF_REDUCE_SUM, mf_backward_of(w, op->out[0]), axes, true);
    mf_backward_give(w, op->in[0], mf_g_unary(w->b, MF_UNARY_AFFINE, scale, 0, dx));
}

void mf_gradient_gather(mf_backward *w, const mf_op *op)
{
    mf_typed table = {.dtype = mf_g_dtype(w->b, op->in[0]), .shape = mf_g_shape(w->b, op->in[0])};
    uint32_t in[2] = {op->in[1], mf_backward_of(w, op->out[0])};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_GATHER_GRAD, NULL, 2, in, 1, &table, NULL));
}

void mf_gradient_resize(mf_backward *w, const mf_op *op)
{
    mf_typed x = {.dtype = mf_g_dtype(w->b, op->in[0]), .shape = mf_g_shape(w->b, op->in[0])};
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_RESIZE_GRAD, &op->attr, 1, &dy, 1, &x, NULL));
}

/* An assumed layer passes gradients of its inputs' shapes on; they cost what the assumption says again. */
void mf_gradient_assumed(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]);
    for (uint32_t k = 0; k < op->in_count; k++)
        if (mf_backward_wants(w, op->in[k]))
            mf_backward_give(w, op->in[k],
                             mf_g_assumed(w->b, 1, &dy, mf_g_dtype(w->b, op->in[k]), mf_g_shape(w->b, op->in[k]),
                                          op->attr.assumed.bytes));
}

/* Augmentation stands before the first trainable layer: a gradient that gets here is a model memfit cannot train. */
void mf_gradient_augment(mf_backward *w, const mf_op *op)
{
    mf_build_fail(w->b, MEMFIT_UNSUPPORTED, "layer '%s' augments what a trainable layer made: it has no gradient here",
                  w->b->graph->layers[op->layer].name);
}
