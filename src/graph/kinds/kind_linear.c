/*
 * kind_linear.c: products and convolutions; shapes, then gradients. Weights come before data, so that the data may go
 * as soon as the weight gradient is there.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

/* Bias: one dimension, the result's last. */
static bool bias_fits(const mf_typing *t, uint32_t i, int64_t channels)
{
    const mf_tensor *bias = mf_rule_in(t, i);
    return !bias || (bias->shape.rank == 1 && bias->shape.dim[0] == channels);
}

memfit_status mf_shape_matmul(mf_typing *t)
{
    const mf_tensor *a = mf_rule_in(t, 0), *b = mf_rule_in(t, 1);
    if (!a || !b || a->shape.rank < 2 || b->shape.rank < 2)
        return mf_rule_bad(t, "needs two operands of rank 2 or more");
    bool ta = t->op->attr.matmul.trans_a, tb = t->op->attr.matmul.trans_b;
    uint32_t ra = a->shape.rank, rb = b->shape.rank;
    int64_t m = a->shape.dim[ra - (ta ? 1 : 2)], k = a->shape.dim[ra - (ta ? 2 : 1)];
    int64_t k2 = b->shape.dim[rb - (tb ? 1 : 2)], n = b->shape.dim[rb - (tb ? 2 : 1)];
    char ta_text[128], tb_text[128];
    if (k != k2 || a->dtype != b->dtype)
        return mf_rule_bad(t, "%s%s times %s%s", mf_shape_format(&a->shape, ta_text, sizeof ta_text), ta ? "'" : "",
                           mf_shape_format(&b->shape, tb_text, sizeof tb_text), tb ? "'" : "");
    if (rb != ra && (rb != 2 || ta))
        return mf_rule_bad(t, "batches of rank %u and %u", ra, rb);
    for (uint32_t i = 0; rb == ra && i + 2 < ra; i++)
        if (a->shape.dim[i] != b->shape.dim[i])
            return mf_rule_bad(t, "batches differ on axis %u", i);
    if (!bias_fits(t, 2, n))
        return mf_rule_bad(t, "the bias is no vector of %lld", (long long)n);
    mf_shape c = a->shape;
    c.dim[ra - 2] = m;
    c.dim[ra - 1] = n;
    return mf_rule_give(t, 0, a->dtype, &c);
}

/* The shape of y for x and w under a window; false with a message when they do not go together. */
static memfit_status conv_shape(mf_typing *t, const mf_shape *x, const mf_shape *w, mf_shape *y)
{
    const mf_window *window = &t->op->attr.window;
    uint32_t d = window->dims;
    if (d < 1 || d > 3 || x->rank != d + 2 || w->rank != d + 2)
        return mf_rule_bad(t, "%u spatial dimensions, ranks %u and %u", d, x->rank, w->rank);
    if (window->groups < 1 || x->dim[d + 1] != w->dim[d] * window->groups || w->dim[d + 1] % window->groups)
        return mf_rule_bad(t, "%lld channels, a kernel for %lld, %lld groups", (long long)x->dim[d + 1],
                           (long long)w->dim[d], (long long)window->groups);
    *y = *x;
    for (uint32_t i = 0; i < d; i++) {
        if (window->kernel[i] != w->dim[i] || window->stride[i] < 1 || window->dilation[i] < 1 ||
            window->before[i] < 0 || window->after[i] < 0)
            return mf_rule_bad(t, "axis %u: bad window", i);
        y->dim[i + 1] = mf_window_out(window, i, x->dim[i + 1]);
        if (y->dim[i + 1] < 1)
            return mf_rule_bad(t, "the input has %lld positions on axis %u, too few for a kernel of %lld",
                               (long long)x->dim[i + 1], i + 1, (long long)window->kernel[i]);
    }
    y->dim[d + 1] = w->dim[d + 1];
    return MEMFIT_OK;
}

memfit_status mf_shape_conv(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0), *w = mf_rule_in(t, 1);
    if (!x || !w)
        return mf_rule_need(t, 2);
    mf_shape y;
    memfit_status s = conv_shape(t, &x->shape, &w->shape, &y);
    if (s)
        return s;
    if (!bias_fits(t, 2, y.dim[y.rank - 1]) || x->dtype != w->dtype)
        return mf_rule_bad(t, "bias or type does not fit");
    return mf_rule_give(t, 0, x->dtype, &y);
}

memfit_status mf_shape_conv_grad_data(mf_typing *t)
{
    const mf_tensor *dy = mf_rule_in(t, 0), *w = mf_rule_in(t, 1);
    if (!dy || !w || !mf_rule_given(t))
        return mf_rule_bad(t, "needs a gradient, a kernel and the shape of the result");
    mf_shape y;
    memfit_status s = conv_shape(t, &t->out[0].shape, &w->shape, &y);
    if (s)
        return s;
    if (!mf_shape_equal(&y, &dy->shape)) {
        char a[128], b[128];
        return mf_rule_bad(t, "the window makes %s, not %s", mf_shape_format(&y, a, sizeof a),
                           mf_shape_format(&dy->shape, b, sizeof b));
    }
    if (!bias_fits(t, 2, t->out[0].shape.dim[y.rank - 1]))
        return mf_rule_bad(t, "the bias does not fit");
    return mf_rule_give(t, 0, dy->dtype, &t->out[0].shape);
}

memfit_status mf_shape_conv_grad_weights(mf_typing *t)
{
    const mf_tensor *x = mf_rule_in(t, 0), *dy = mf_rule_in(t, 1);
    if (!x || !dy || !mf_rule_given(t))
        return mf_rule_bad(t, "needs input, gradient and the kernel's shape");
    mf_shape y;
    memfit_status s = conv_shape(t, &x->shape, &t->out[0].shape, &y);
    if (s)
        return s;
    if (!mf_shape_equal(&y, &dy->shape))
        return mf_rule_bad(t, "the gradient's shape is not that of the output");
    s = mf_rule_give(t, 0, x->dtype, &t->out[0].shape);
    return s ? s : mf_rule_give(t, 1, x->dtype, &(mf_shape){.rank = 1, .dim = {y.dim[y.rank - 1]}});
}

/* ---- linear ---- */

static uint32_t flat(mf_build *b, uint32_t x)
{
    mf_shape s = mf_g_shape(b, x);
    if (s.rank < 1)
        return x;
    int64_t last = s.dim[s.rank - 1], rows = 1;
    for (uint32_t i = 0; i + 1 < s.rank; i++)
        rows *= s.dim[i];
    return mf_g_view(b, x, (mf_shape){.rank = 2, .dim = {rows, last}});
}

static uint32_t matmul_gradient_b(mf_build *b, const mf_op *op, uint32_t dc)
{
    bool ta = op->attr.matmul.trans_a, tb = op->attr.matmul.trans_b;
    double scale = op->attr.matmul.scale;
    uint32_t a = op->in[0];
    if (mf_g_shape(b, op->in[1]).rank == 2 && mf_g_shape(b, a).rank > 2) {
        a = flat(b, a);
        dc = flat(b, dc);
    }
    return tb ? mf_g_matmul(b, dc, a, MF_NONE, true, ta, scale) : mf_g_matmul(b, a, dc, MF_NONE, !ta, false, scale);
}

static uint32_t matmul_gradient_a(mf_build *b, const mf_op *op, uint32_t dc)
{
    bool ta = op->attr.matmul.trans_a, tb = op->attr.matmul.trans_b;
    double scale = op->attr.matmul.scale;
    return ta ? mf_g_matmul(b, op->in[1], dc, MF_NONE, tb, true, scale)
              : mf_g_matmul(b, dc, op->in[1], MF_NONE, false, !tb, scale);
}

static uint32_t all_but_last(mf_build *b, uint32_t x)
{
    uint32_t rank = mf_g_shape(b, x).rank;
    return rank ? (1u << (rank - 1)) - 1 : 0;
}

static void bias_gradient(mf_backward *w, uint32_t bias, uint32_t dy)
{
    if (mf_backward_wants(w, bias))
        mf_backward_give(w, bias, mf_g_reduce(w->b, MF_REDUCE_SUM, dy, all_but_last(w->b, dy), false));
}

void mf_gradient_matmul(mf_backward *w, const mf_op *op)
{
    uint32_t dc = mf_backward_of(w, op->out[0]);
    if (mf_backward_wants(w, op->in[1]))
        mf_backward_give(w, op->in[1], matmul_gradient_b(w->b, op, dc));
    bias_gradient(w, op->in[2], dc);
    if (mf_backward_wants(w, op->in[0]))
        mf_backward_give(w, op->in[0], matmul_gradient_a(w->b, op, dc));
}

/* The concatenation of channels that only this convolution reads; MF_NONE when its input is none. */
static uint32_t concat_before(const mf_backward *w, const mf_op *op)
{
    const mf_graph *g = w->b->graph;
    uint32_t x = op->in[0], from = g->tensors[x].producer;
    bool is = from != MF_NONE && g->ops[from].kind == MF_OP_CONCAT && w->readers[x] == 1 &&
              op->attr.window.groups == 1 && g->ops[from].attr.concat.axis + 1 == g->tensors[x].shape.rank &&
              g->ops[from].in_count > 1;
    return is && !w->b->plain ? from : MF_NONE;
}

/*
 * A convolution over a concatenation is a sum of convolutions, one for each part, and its gradients fall apart
 * likewise: the weight gradient of a part's channels reads that part alone, and the data gradient of a part is made
 * from its channels of the kernel. So backward needs neither the concatenation nor a gradient of it with slices: the
 * parts are there, as a rule, for their own sakes (the skips of a U-Net).
 */
static void conv_by_parts(mf_backward *w, const mf_op *op, const mf_op *concat)
{
    uint32_t kernel = op->in[1], bias = op->in[2], dy = mf_backward_of(w, op->out[0]), db = MF_NONE;
    const mf_window *window = &op->attr.window;
    mf_shape shape = mf_g_shape(w->b, kernel);
    uint32_t axis = shape.rank - 2, *parts = MF_NEW_ARRAY(&w->b->graph->arena, uint32_t, concat->in_count);
    if (!parts) {
        mf_build_fail(w->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the backward pass");
        return;
    }
    bool weights = mf_backward_wants(w, kernel);
    /* Over pieces the bias gradient adds to what is there and a part's weight gradient does not: no library does both.
     */
    bool with_bias = mf_backward_wants(w, bias) && !w->accumulator;
    for (uint32_t k = 0; weights && k < concat->in_count; k++) {
        mf_shape part = mf_g_shape(w->b, concat->in[k]);
        shape.dim[axis] = part.dim[part.rank - 1];
        parts[k] = mf_g_conv_grad_weights(w->b, concat->in[k], dy, window, shape, k == 0 && with_bias ? &db : NULL);
    }
    if (weights)
        mf_backward_give(w, kernel, mf_g_concat(w->b, concat->in_count, parts, axis));
    if (weights && with_bias)
        mf_backward_give(w, bias, db);
    else
        bias_gradient(w, bias, dy);
    int64_t begin[MF_MOST_DIMS] = {0};
    for (uint32_t k = 0; k < concat->in_count; k++) {
        mf_shape part = mf_g_shape(w->b, concat->in[k]);
        shape.dim[axis] = part.dim[part.rank - 1];
        if (mf_backward_wants(w, concat->in[k])) {
            uint32_t own = mf_g_slice(w->b, kernel, begin, shape.dim, NULL);
            mf_backward_give(w, concat->in[k], mf_g_conv_grad_data(w->b, dy, own, MF_NONE, window, part));
        }
        begin[axis] += shape.dim[axis];
    }
}

void mf_gradient_conv(mf_backward *w, const mf_op *op)
{
    uint32_t x = op->in[0], kernel = op->in[1], bias = op->in[2], dy = mf_backward_of(w, op->out[0]);
    const mf_window *window = &op->attr.window;
    uint32_t from = concat_before(w, op);
    if (from != MF_NONE) {
        mf_op concat = w->b->graph->ops[from]; /* a copy: the array moves as it grows */
        conv_by_parts(w, op, &concat);
        return;
    }
    if (mf_backward_wants(w, kernel)) {
        uint32_t db = MF_NONE;
        uint32_t dw = mf_g_conv_grad_weights(w->b, x, dy, window, mf_g_shape(w->b, kernel),
                                             mf_backward_wants(w, bias) ? &db : NULL);
        mf_backward_give(w, kernel, dw);
        mf_backward_give(w, bias, db);
    } else
        bias_gradient(w, bias, dy);
    if (mf_backward_wants(w, x))
        mf_backward_give(w, x, mf_g_conv_grad_data(w->b, dy, kernel, MF_NONE, window, mf_g_shape(w->b, x)));
}

/* y = the data gradient of a convolution: its own gradients are that convolution, and the weight gradient with the
 * roles of input and output exchanged. */
void mf_gradient_conv_transposed(mf_backward *w, const mf_op *op)
{
    uint32_t x = op->in[0], kernel = op->in[1], dy = mf_backward_of(w, op->out[0]);
    const mf_window *window = &op->attr.window;
    if (mf_backward_wants(w, kernel))
        mf_backward_give(w, kernel, mf_g_conv_grad_weights(w->b, dy, x, window, mf_g_shape(w->b, kernel), NULL));
    bias_gradient(w, op->in[2], dy);
    if (mf_backward_wants(w, x))
        mf_backward_give(w, x, mf_g_conv(w->b, dy, kernel, MF_NONE, window));
}
