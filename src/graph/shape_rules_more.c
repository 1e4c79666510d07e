/* shape_rules_more.c: shape rules of windows, normalization, recurrence, losses and state. */
#include "graph/shape_rules.h"

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

/* Statistics are float32, or double where the data is. */
static mf_dtype statistic_type(mf_dtype dtype)
{
    return dtype == MF_F64 ? MF_F64 : MF_F32;
}

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
        s = mf_rule_give(t, i, statistic_type(x->dtype), &vector);
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
        s = mf_rule_give(t, i, statistic_type(x->dtype), &vector);
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
        s = mf_rule_give(t, i, statistic_type(x->dtype), &statistics);
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
        s = mf_rule_give(t, i, statistic_type(x->dtype), &vector);
    return s;
}

/* gates per unit in z and in the saved gates */
static void rnn_gates(mf_op_kind kind, int64_t *z, int64_t *saved)
{
    *z = kind == MF_OP_LSTM || kind == MF_OP_LSTM_GRAD ? 4 : kind == MF_OP_GRU || kind == MF_OP_GRU_GRAD ? 3 : 1;
    *saved = *z == 1 ? 0 : 4;
}

memfit_status mf_shape_rnn(mf_typing *t)
{
    const mf_tensor *z = mf_rule_in(t, 0), *u = mf_rule_in(t, 1);
    int64_t gates, saved;
    rnn_gates(t->op->kind, &gates, &saved);
    if (!z || !u || z->shape.rank != 3 || u->shape.rank != 2 || u->shape.dim[1] != gates * u->shape.dim[0] ||
        z->shape.dim[2] != u->shape.dim[1])
        return mf_rule_bad(t, "needs z (N, T, %lld*units) and u (units, %lld*units)", (long long)gates,
                           (long long)gates);
    int64_t n = z->shape.dim[0], steps = z->shape.dim[1], units = u->shape.dim[0];
    mf_shape sequence = {.rank = 3, .dim = {n, steps, units}}, last = {.rank = 2, .dim = {n, units}};
    mf_shape kept = {.rank = 3, .dim = {n, steps, saved * units}};
    memfit_status s = mf_rule_give(t, 0, z->dtype, &sequence);
    if (t->op->kind == MF_OP_SIMPLE_RNN)
        return s ? s : mf_rule_give(t, 1, z->dtype, &last);
    if (!s)
        s = mf_rule_give(t, 1, z->dtype, &kept);
    if (t->op->kind == MF_OP_GRU)
        return s ? s : mf_rule_give(t, 2, z->dtype, &last);
    if (!s)
        s = mf_rule_give(t, 2, z->dtype, &sequence);
    for (uint32_t i = 3; i < 5 && !s; i++)
        s = mf_rule_give(t, i, z->dtype, &last);
    return s;
}

memfit_status mf_shape_rnn_grad(mf_typing *t)
{
    uint32_t u_at = t->op->kind == MF_OP_LSTM_GRAD ? 4 : t->op->kind == MF_OP_GRU_GRAD ? 3 : 2;
    const mf_tensor *h = mf_rule_in(t, 1), *u = mf_rule_in(t, u_at);
    int64_t gates, saved;
    rnn_gates(t->op->kind, &gates, &saved);
    if (!h || !u || h->shape.rank != 3 || u->shape.rank != 2)
        return mf_rule_bad(t, "needs h and u");
    int64_t n = h->shape.dim[0], units = u->shape.dim[0];
    mf_shape dz = {.rank = 3, .dim = {n, h->shape.dim[1], gates * units}}, state = {.rank = 2, .dim = {n, units}};
    memfit_status s = mf_rule_give(t, 0, h->dtype, &dz);
    if (!s)
        s = mf_rule_give(t, 1, u->dtype, &u->shape);
    if (!s && t->op->kind == MF_OP_GRU_GRAD)
        s = mf_rule_give(t, 2, u->dtype, &(mf_shape){.rank = 1, .dim = {gates * units}});
    else if (!s)
        s = mf_rule_give(t, 2, h->dtype, &state);
    return s || t->op->out_count < 4 ? s : mf_rule_give(t, 3, h->dtype, &state);
}

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
    return mf_rule_give(t, 0, statistic_type(x->dtype), &(mf_shape){.rank = 0});
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
