/* eager_images.c: convolutions, pooling and batch normalization in Keras's torch backend (see eager.h). */
#include "plan/frameworks/eager.h"

static bool padded(const mf_window *w)
{
    for (uint32_t d = 0; d < w->dims; d++)
        if (w->before[d] != w->after[d])
            return true;
    return false;
}

/* Bytes of an input that was padded by hand, since both sides differ. */
static uint64_t padded_bytes(const mf_eager *e, const mf_window *w, uint32_t x)
{
    const mf_tensor *t = &e->graph->tensors[x];
    uint64_t n = (uint64_t)t->shape.dim[0] * (uint64_t)t->shape.dim[t->shape.rank - 1] * mf_dtype_bytes(t->dtype);
    for (uint32_t d = 0; d < w->dims; d++)
        n *= (uint64_t)(t->shape.dim[d + 1] + w->before[d] + w->after[d]);
    return n;
}

/* ---- convolutions ---- */

/* The input as cuDNN gets it: channels first by a copy, then back to channels last by another (planes and volumes; a
 * sequence keeps the first copy), then padded. Returns a block that the caller holds. */
static uint32_t convolution_input(mf_eager *e, const mf_window *w, uint32_t x, bool back)
{
    uint64_t n = mf_eager_bytes(e, x);
    uint32_t block = e->value[x];
    mf_tape_hold(e->tape, block);
    if (!mf_eager_layout_free(e, x)) {
        for (int copy = 0; copy < 2; copy++) {
            if (copy == 0 ? e->first[x] : !back)
                continue;
            uint32_t next = mf_eager_take(e, n);
            mf_tape_drop(e->tape, block);
            block = next;
        }
    }
    if (padded(w)) {
        uint32_t next = mf_eager_take(e, padded_bytes(e, w, x));
        mf_tape_drop(e->tape, block);
        block = next;
    }
    return block;
}

static void conv_forward(mf_eager *e, const mf_op *op)
{
    const mf_window *w = &op->attr.window;
    uint32_t x = op->in[0], k = op->in[1], y = op->out[0];
    uint32_t block = convolution_input(e, w, x, w->dims > 1);
    uint32_t kernel = mf_eager_take(e, mf_eager_bytes(e, k));
    uint32_t out = mf_eager_take(e, mf_eager_bytes(e, y));
    e->nodes[e->op].kept = padded(w) ? padded_bytes(e, w, x) : 0;
    mf_eager_save(e, block);
    mf_eager_save(e, kernel);
    mf_tape_drop(e->tape, block);
    mf_tape_drop(e->tape, kernel);
    mf_eager_add_bias(e, op->in_count > 2 ? op->in[2] : MF_NONE, y, &out);
    mf_eager_set(e, y, out);
    e->first[y] = w->dims == 1;
}

static void conv_backward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0], k = op->in[1];
    uint64_t by_hand = e->nodes[e->op].kept;
    if (op->in_count > 2)
        mf_eager_give_new(e, op->in[2]);
    uint32_t dx = e->needs[x] ? mf_eager_take(e, by_hand ? by_hand : mf_eager_bytes(e, x)) : MF_NONE;
    uint32_t dk = mf_eager_take(e, mf_eager_bytes(e, k));
    mf_eager_give_new(e, k); /* in the parameter's own order of axes */
    mf_tape_drop(e->tape, dk);
    if (by_hand && dx != MF_NONE) {
        uint32_t cut = mf_eager_take(e, mf_eager_bytes(e, x));
        mf_tape_drop(e->tape, dx);
        dx = cut;
    }
    if (dx != MF_NONE)
        mf_eager_give(e, x, dx);
}

enum { PARTIAL_SUMS = 4 << 20, HALF_SUMS = 3 << 20 }; /* as seen in float32 and in 16 bits */

/* Transposed: the whole result, then a part of it as a view, then the bias. */
static uint64_t whole_transposed(const mf_eager *e, const mf_op *op)
{
    const mf_window *w = &op->attr.window;
    const mf_tensor *x = &e->graph->tensors[op->in[0]], *y = &e->graph->tensors[op->out[0]];
    uint64_t n = (uint64_t)y->shape.dim[0] * (uint64_t)y->shape.dim[y->shape.rank - 1] * mf_dtype_bytes(y->dtype);
    for (uint32_t d = 0; d < w->dims; d++)
        n *= (uint64_t)((x->shape.dim[d + 1] - 1) * w->stride[d] + (w->kernel[d] - 1) * w->dilation[d] + 1);
    return n;
}

/* The few channels of pictures, in small windows, are read as they lie (as in python/memfit/_trace.py). */
static bool makes_picture(const mf_eager *e, const mf_op *op)
{
    const mf_shape *y = &e->graph->tensors[op->out[0]].shape;
    return y->dim[y->rank - 1] < 4 && op->attr.window.kernel[0] <= 4;
}

/* cuDNN's kernels read and write channels last, and here nobody has turned the tensors: it copies them, as in
 * python/memfit/_trace.py, and adds parts of a kernel's gradient up in some more. */
static uint64_t turned_inside(const mf_eager *e, const mf_op *op)
{
    const mf_tensor *y = &e->graph->tensors[op->out[0]];
    uint64_t whole = whole_transposed(e, op), channels = (uint64_t)y->shape.dim[y->shape.rank - 1];
    if (mf_dtype_bytes(y->dtype) == 2 && channels < 4) /* those of pictures are filled up to 16 bytes */
        whole = whole / channels * 8;
    return mf_eager_bytes(e, op->in[0]) + whole + mf_eager_bytes(e, op->in[1]);
}

static void transposed_forward(mf_eager *e, const mf_op *op)
{
    static const mf_window none = {0};
    uint32_t y = op->out[0];
    uint32_t block = convolution_input(e, &none, op->in[0], false);
    uint32_t out = mf_eager_take(e, whole_transposed(e, op));
    mf_eager_workspace(e, turned_inside(e, op));
    mf_eager_save(e, block);
    mf_eager_save(e, e->value[op->in[1]]);
    mf_tape_drop(e->tape, block);
    mf_eager_add_bias(e, op->in_count > 2 ? op->in[2] : MF_NONE, y, &out);
    mf_eager_set(e, y, out);
    e->first[y] = 1;
}

static void transposed_backward(mf_eager *e, const mf_op *op)
{
    uint64_t whole = whole_transposed(e, op);
    if (op->in_count > 2)
        mf_eager_give_new(e, op->in[2]);
    uint64_t part = mf_eager_bytes(e, op->out[0]);
    uint32_t dy = MF_NONE;
    if (whole > part) { /* filled up again, one side after the other */
        uint32_t side = mf_eager_take(e, part + (whole - part) / 2);
        mf_tape_drop(e->tape, e->grad[op->out[0]]);
        e->grad[op->out[0]] = MF_NONE;
        dy = mf_eager_take(e, whole);
        mf_tape_drop(e->tape, side);
    }
    bool half = mf_eager_half(e, op->in[0]), picture = makes_picture(e, op);
    mf_eager_give_new(e, op->in[0]);
    mf_eager_workspace(e, e->needs[op->in[0]] && half && !picture ? turned_inside(e, op) : 0);
    mf_eager_give_new(e, op->in[1]);
    mf_eager_workspace(e, picture && !half ? 0 : turned_inside(e, op) + (half ? HALF_SUMS : PARTIAL_SUMS));
    mf_tape_drop(e->tape, dy);
}

/* ---- windows ---- */

static void pool_forward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0], y = op->out[0];
    uint32_t block = convolution_input(e, &op->attr.window, x, false);
    uint32_t out = mf_eager_take(e, mf_eager_bytes(e, y));
    mf_eager_save(e, block);
    mf_tape_drop(e->tape, block);
    if (op->kind == MF_OP_POOL_MAX) {
        uint32_t index = mf_eager_take(e, mf_eager_elements(e, y) * 8);
        mf_eager_save(e, index);
        mf_tape_drop(e->tape, index);
    }
    e->nodes[e->op].kept = padded(&op->attr.window) ? padded_bytes(e, &op->attr.window, x) : 0;
    mf_eager_set(e, y, out);
    e->first[y] = 1;
}

static void pool_backward(mf_eager *e, const mf_op *op)
{
    uint64_t by_hand = e->nodes[e->op].kept;
    uint32_t whole = by_hand ? mf_eager_take(e, by_hand) : MF_NONE;
    mf_eager_give_new(e, op->in[0]);
    mf_tape_drop(e->tape, whole);
}

/* ---- normalization ---- */

/* x is squared, averaged and dropped; x - mean is scaled and shifted in place, its unscaled copy saved. In 16 bits all
 * of that happens on a float32 copy of x. */
static void batch_norm_forward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0], y = op->out[0];
    uint64_t n = mf_eager_elements(e, x) * 4;
    bool short_form = mf_eager_half(e, x);
    uint32_t wide = short_form ? mf_eager_take(e, n) : e->value[x];
    if (op->kind == MF_OP_BATCH_NORM) {
        mf_eager_save(e, wide);
        mf_eager_touch(e, n);
    }
    uint32_t out = mf_eager_take(e, n);
    if (op->kind == MF_OP_BATCH_NORM || (op->in[1] != MF_NONE && e->needs[op->in[1]])) {
        uint32_t centred = mf_eager_take(e, n);
        mf_eager_save(e, centred);
        mf_tape_drop(e->tape, centred);
    }
    if (short_form) {
        uint32_t result = mf_eager_take(e, n / 2);
        mf_tape_drop(e->tape, out);
        mf_tape_drop(e->tape, wide);
        out = result;
    }
    mf_eager_set(e, y, out);
    e->first[y] = e->first[x];
    for (uint32_t k = 1; k < op->out_count; k++)
        mf_eager_set_new(e, op->out[k], false);
}

static void batch_norm_backward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0];
    uint64_t n = mf_eager_elements(e, x) * 4;
    bool short_form = mf_eager_half(e, x);
    uint32_t dy = short_form ? mf_eager_take(e, n) : MF_NONE;
    if (short_form) { /* what came back in 16 bits goes with its float32 copy made */
        mf_tape_drop(e->tape, e->grad[op->out[0]]);
        e->grad[op->out[0]] = MF_NONE;
    }
    if (op->in[2] != MF_NONE)
        mf_eager_give_new(e, op->in[2]);
    uint32_t scaled = mf_eager_take(e, n);
    mf_eager_touch(e, n); /* times the saved copy, summed for gamma and the variance */
    if (op->in[1] != MF_NONE)
        mf_eager_give_new(e, op->in[1]);
    mf_eager_node *node = &e->nodes[e->op];
    if (node->saved_count > 1) { /* the centred copy */
        mf_tape_drop(e->tape, node->saved[node->saved_count - 1]);
        node->saved_count--;
    }
    mf_tape_drop(e->tape, dy);
    if (!short_form) {
        mf_tape_drop(e->tape, e->grad[op->out[0]]);
        e->grad[op->out[0]] = MF_NONE;
    }
    uint32_t dx = scaled;
    if (op->kind == MF_OP_BATCH_NORM) {
        mf_eager_touch(e, n); /* minus, for the mean */
        uint32_t spread = mf_eager_take(e, n), power = mf_eager_take(e, n), twice = mf_eager_take(e, n);
        uint32_t product = mf_eager_take(e, n);
        mf_tape_drop(e->tape, twice);
        mf_tape_drop(e->tape, power);
        mf_tape_drop(e->tape, spread);
        uint32_t sum = mf_eager_take(e, n);
        mf_tape_drop(e->tape, product);
        mf_tape_drop(e->tape, scaled);
        uint32_t mean = mf_eager_take(e, n);
        dx = mf_eager_take(e, n);
        mf_tape_drop(e->tape, mean);
        mf_tape_drop(e->tape, sum);
    }
    if (short_form) {
        uint32_t narrow = mf_eager_take(e, n / 2);
        mf_tape_drop(e->tape, dx);
        dx = narrow;
    }
    mf_eager_give(e, x, dx);
}

bool mf_eager_images_forward(mf_eager *e, const mf_op *op)
{
    switch (op->kind) {
    case MF_OP_CONV:
        conv_forward(e, op);
        return true;
    case MF_OP_CONV_GRAD_DATA:
        transposed_forward(e, op);
        return true;
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_AVG:
        pool_forward(e, op);
        return true;
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_INFER:
        batch_norm_forward(e, op);
        return true;
    default:
        return false;
    }
}

bool mf_eager_images_backward(mf_eager *e, const mf_op *op)
{
    switch (op->kind) {
    case MF_OP_CONV:
        conv_backward(e, op);
        return true;
    case MF_OP_CONV_GRAD_DATA:
        transposed_backward(e, op);
        return true;
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_AVG:
        pool_backward(e, op);
        return true;
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_INFER:
        batch_norm_backward(e, op);
        return true;
    default:
        return false;
    }
}
