/* gradient_rules.c: gradients of structure, linear and pointwise kinds. Weights come before data, so that the data may
 * go as soon as the weight gradient is there. */
#include "graph/gradient.h"

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

void mf_gradient_sum_n(mf_backward *w, const mf_op *op)
{
    for (uint32_t k = 0; k < op->in_count; k++)
        mf_backward_pass(w, op->in[k], mf_backward_of(w, op->out[0]));
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

void mf_gradient_dropout(mf_backward *w, const mf_op *op)
{
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_DROPOUT, &op->attr, 1, &dy, 1, NULL, NULL));
}
