/*
 * eager_ops.c: what each operation allocates in Keras's torch backend, forward and backward. One pair of short scripts a
 * family; the table at the end of each direction says which kind has which. n is the bytes of the first input.
 */
#include "base/bytes.h"
#include "plan/frameworks/eager.h"

/* ---- small helpers ---- */

uint64_t mf_eager_elements(const mf_eager *e, uint32_t tensor)
{
    return mf_shape_count(&e->graph->tensors[tensor].shape);
}

bool mf_eager_half(const mf_eager *e, uint32_t tensor)
{
    mf_dtype d = e->graph->tensors[tensor].dtype;
    return d == MF_F16 || d == MF_BF16;
}

/* One position, or one channel: channels first and last are the same bytes. */
bool mf_eager_layout_free(const mf_eager *e, uint32_t tensor)
{
    const mf_shape *s = &e->graph->tensors[tensor].shape;
    if (s->rank < 3)
        return true;
    uint64_t positions = 1;
    for (uint32_t d = 1; d + 1 < s->rank; d++)
        positions *= (uint64_t)s->dim[d];
    return positions == 1 || s->dim[s->rank - 1] == 1;
}

void mf_eager_set_new(mf_eager *e, uint32_t tensor, bool first)
{
    if (tensor == MF_NONE)
        return;
    mf_eager_set(e, tensor, mf_eager_take(e, mf_eager_bytes(e, tensor)));
    e->first[tensor] = first;
}

void mf_eager_add_bias(mf_eager *e, uint32_t bias, uint32_t y, uint32_t *block)
{
    if (bias == MF_NONE)
        return;
    uint32_t sum = mf_eager_take(e, mf_eager_bytes(e, y));
    mf_tape_drop(e->tape, *block);
    *block = sum;
}

/* The output takes the input's block. */
static void set_same(mf_eager *e, uint32_t out, uint32_t in)
{
    mf_tape_hold(e->tape, e->value[in]);
    mf_eager_set(e, out, e->value[in]);
    e->first[out] = e->first[in];
}

static void layer_norm_forward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0];
    uint64_t n = mf_eager_elements(e, x) * 4;
    if (mf_eager_half(e, x)) { /* on a float32 copy, into a float32 result */
        uint32_t wide = mf_eager_take(e, n);
        uint32_t result = mf_eager_take(e, n);
        mf_eager_save(e, wide);
        mf_tape_drop(e->tape, wide);
        mf_eager_set_new(e, op->out[0], e->first[x]);
        mf_tape_drop(e->tape, result);
    } else {
        mf_eager_save(e, e->value[x]);
        mf_eager_set_new(e, op->out[0], e->first[x]);
    }
    for (uint32_t k = 1; k < op->out_count; k++) {
        mf_eager_set_new(e, op->out[k], false);
        if (op->out[k] != MF_NONE)
            mf_eager_save(e, e->value[op->out[k]]);
    }
}

static void all_new(mf_eager *e, const mf_op *op);

static void layer_norm_backward(mf_eager *e, const mf_op *op)
{
    uint64_t n = mf_eager_half(e, op->in[0]) ? mf_eager_elements(e, op->in[0]) * 4 : 0;
    uint32_t dy = mf_eager_take(e, n), dx = mf_eager_take(e, n);
    all_new(e, op);
    mf_tape_drop(e->tape, dy);
    mf_tape_drop(e->tape, dx);
}

static void all_new(mf_eager *e, const mf_op *op)
{
    for (uint32_t k = 0; k < op->in_count; k++)
        mf_eager_give_new(e, op->in[k]);
}

/* ---- products ---- */

static uint32_t heads_copy(mf_eager *e, uint32_t tensor)
{
    uint32_t block = mf_eager_take(e, mf_eager_bytes(e, tensor));
    mf_eager_save(e, block);
    mf_tape_drop(e->tape, block);
    return block;
}

/* scaled_dot_product_attention: contiguous query, key and value are kept, the result, and a number a row. */
static void attention_forward(mf_eager *e, const mf_op *op, const mf_op *scores)
{
    const uint32_t heads[3] = {scores->in[0], scores->in[1], op->in[1]};
    for (int i = 0; i < 3; i++) {
        e->heads[i] = e->value[heads[i]];
        mf_tape_hold(e->tape, e->heads[i]);
    }
    for (int i = 0; i < 3; i++)
        heads_copy(e, heads[i]);
    for (int i = 0; i < 2; i++) { /* the value goes with this operation, which reads it */
        mf_tape_drop(e->tape, e->value[heads[i]]);
        mf_eager_set(e, heads[i], MF_NONE);
    }
    mf_eager_set_new(e, op->out[0], false);
    mf_eager_save(e, e->value[op->out[0]]);
    uint32_t rows =
        mf_eager_take(e, mf_eager_elements(e, op->in[0]) / (uint64_t)e->graph->tensors[op->in[0]].shape.dim[3] * 4);
    mf_eager_save(e, rows);
    mf_tape_drop(e->tape, rows);
}

static const mf_op *scores_of(const mf_eager *e)
{
    uint64_t kept = e->nodes[e->op].kept;
    return kept ? &e->graph->ops[kept - 1] : NULL;
}

static void matmul_forward(mf_eager *e, const mf_op *op)
{
    const mf_op *scores = scores_of(e);
    if (scores) {
        attention_forward(e, op, scores);
        return;
    }
    uint32_t y = op->out[0], out = mf_eager_take(e, mf_eager_bytes(e, y));
    mf_eager_use_blas(e, false);
    mf_eager_save(e, e->value[op->in[0]]);
    mf_eager_save(e, e->value[op->in[1]]);
    mf_eager_add_bias(e, op->in_count > 2 ? op->in[2] : MF_NONE, y, &out);
    mf_eager_set(e, y, out);
    e->first[y] = 0;
}

static uint64_t power_below(uint64_t n)
{
    uint64_t p = 1;
    while (p * 2 <= n)
        p *= 2;
    return p;
}

/* What PyTorch's sum over rows takes for the parts that its blocks make (aten/src/ATen/native/cuda/Reduce.cuh): a bias's
 * gradient. The number of processors is an H200's; large cards have about as many. */
static uint64_t sum_bytes(uint64_t rows, uint64_t columns)
{
    enum { PROCESSORS = 132, THREADS = 2048, BLOCK = 512, FEW = 16, MANY = 256 };
    uint64_t vector = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1, across = columns / vector;
    if (!rows || !columns)
        return 0;
    uint64_t width = power_below(across) < 32 ? power_below(across) : 32, height = BLOCK / vector / width;
    height = power_below(rows) < height ? power_below(rows) : height;
    uint64_t each = (rows + height - 1) / height, grid = (across + width - 1) / width;
    if (each < MANY)
        return 0;
    uint64_t room = (PROCESSORS * (THREADS / (width * height)) + grid - 1) / grid;
    uint64_t parts = (each + FEW - 1) / FEW < room ? (each + FEW - 1) / FEW : room;
    if (parts < (each + MANY - 1) / MANY)
        parts = (each + MANY - 1) / MANY;
    return parts > 1 ? 4 * columns * parts * width * vector : 0;
}

/* What attention's backward adds the query's gradient up in. float32: the kernel for every card keeps a tile of 64 by 64
 * numbers and a lock for each block of rows (aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h;
 * to the byte in five programs' streams). 16 bits: flash attention, whole in float32, rows in blocks of 128. */
static uint64_t attention_sums(const mf_eager *e, const mf_op *op)
{
    enum { TILE = 64, LOCKED_TILE = TILE * TILE * 4 + 16, FLASH_ROWS = 128, FLASH_WIDTH = 32 };
    const mf_shape *scores = &e->graph->tensors[op->in[0]].shape;
    uint64_t heads = (uint64_t)scores->dim[0] * (uint64_t)scores->dim[1], rows = (uint64_t)scores->dim[2];
    if (!heads || !rows)
        return 0;
    uint64_t width = mf_eager_elements(e, op->out[0]) / (heads * rows);
    if (mf_eager_bytes(e, op->out[0]) == 4 * mf_eager_elements(e, op->out[0]))
        return heads * ((rows + TILE - 1) / TILE) * ((width + TILE - 1) / TILE) * LOCKED_TILE;
    return heads * mf_round_up(rows, FLASH_ROWS) * (mf_round_up(width, FLASH_WIDTH) + 1) * 4;
}

static void matmul_backward(mf_eager *e, const mf_op *op)
{
    const mf_op *scores = scores_of(e);
    if (scores) {
        mf_eager_give_new(e, scores->in[0]);
        mf_eager_give_new(e, scores->in[1]);
        mf_eager_give_new(e, op->in[1]);
        mf_eager_workspace(e, attention_sums(e, op));
        return;
    }
    mf_eager_use_blas(e, true);
    if (op->in_count > 2 && op->in[2] != MF_NONE) {
        uint64_t columns = mf_eager_elements(e, op->in[2]);
        mf_eager_give_new(e, op->in[2]);
        if (e->needs[op->in[2]])
            mf_eager_workspace(e, sum_bytes(mf_eager_elements(e, op->out[0]) / columns, columns));
    }
    mf_eager_give_new(e, op->in[1]);
    mf_eager_give_new(e, op->in[0]);
}

/* ---- pointwise ---- */

/* Which end of a function autograd keeps. */
static bool keeps_output(mf_unary f)
{
    switch (f) {
    case MF_UNARY_RELU:
    case MF_UNARY_SIGMOID:
    case MF_UNARY_TANH:
    case MF_UNARY_EXP:
    case MF_UNARY_SQRT:
    case MF_UNARY_RSQRT:
    case MF_UNARY_RECIPROCAL:
    case MF_UNARY_ELU:
    case MF_UNARY_SELU:
        return true;
    default:
        return false;
    }
}

static bool keeps_nothing(mf_unary f)
{
    return f == MF_UNARY_AFFINE || f == MF_UNARY_NEG || f == MF_UNARY_LINEAR;
}

static void unary_forward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0], y = op->out[0];
    mf_unary f = op->attr.unary.function;
    if (f == MF_UNARY_LINEAR) {
        set_same(e, y, x);
        return;
    }
    if (f == MF_UNARY_AFFINE && op->attr.unary.beta != 0) /* times, then plus */
        mf_eager_touch(e, mf_eager_bytes(e, y));
    mf_eager_set_new(e, y, e->first[x]);
    if (!keeps_nothing(f))
        mf_eager_save(e, e->value[keeps_output(f) ? y : x]);
}

static void unary_backward(mf_eager *e, const mf_op *op)
{
    if (op->attr.unary.function == MF_UNARY_LINEAR)
        mf_eager_pass(e, op->out[0], op->in[0]);
    else
        mf_eager_give_new(e, op->in[0]);
}

static void binary_forward(mf_eager *e, const mf_op *op)
{
    mf_eager_set_new(e, op->out[0], e->first[op->in[0]]);
    if (op->attr.binary.function == MF_ADD || op->attr.binary.function == MF_SUB)
        return;
    mf_eager_save(e, e->value[op->in[0]]);
    mf_eager_save(e, e->value[op->in[1]]);
}

/* A gradient for each side; a smaller side's is made in the result's size and summed. */
static void binary_backward(mf_eager *e, const mf_op *op)
{
    uint32_t y = op->out[0];
    bool sum = op->attr.binary.function == MF_ADD || op->attr.binary.function == MF_SUB;
    for (uint32_t k = 0; k < 2; k++) {
        uint32_t x = op->in[k];
        if (!e->needs[x])
            continue;
        bool same = mf_eager_elements(e, x) == mf_eager_elements(e, y);
        if (sum && same && !(k && op->attr.binary.function == MF_SUB)) {
            mf_eager_pass(e, y, x);
            continue;
        }
        uint32_t whole = !same && !sum ? mf_eager_take(e, mf_eager_bytes(e, y)) : MF_NONE;
        mf_eager_give_new(e, x);
        mf_tape_drop(e->tape, whole);
    }
}

static void sum_forward(mf_eager *e, const mf_op *op)
{
    uint32_t y = op->out[0], block = MF_NONE;
    for (uint32_t k = 1; k < op->in_count; k++) {
        uint32_t next = mf_eager_take(e, mf_eager_bytes(e, y));
        mf_tape_drop(e->tape, block);
        block = next;
    }
    mf_eager_set(e, y, block);
    e->first[y] = e->first[op->in[0]];
}

static void pass_all(mf_eager *e, const mf_op *op)
{
    for (uint32_t k = 0; k < op->in_count; k++)
        mf_eager_pass(e, op->out[0], op->in[k]);
}

static void softmax_forward(mf_eager *e, const mf_op *op)
{
    mf_eager_set_new(e, op->out[0], false);
    mf_eager_save(e, e->value[op->out[0]]);
}

/* The gradient times the result is a tensor of its own (aten/src/ATen/native/cuda/SoftMax.cu). */
static void softmax_backward(mf_eager *e, const mf_op *op)
{
    mf_eager_give_new(e, op->in[0]);
    mf_eager_touch(e, mf_eager_bytes(e, op->out[0]));
}

static void dropout_forward(mf_eager *e, const mf_op *op)
{
    uint32_t mask = mf_eager_take(e, mf_eager_elements(e, op->in[0])); /* made first */
    mf_eager_set_new(e, op->out[0], e->first[op->in[0]]);
    mf_eager_save(e, mask);
    mf_tape_drop(e->tape, mask);
}

/* ---- structure ---- */

/* In 16 bits cuDNN's attention writes in the query's order, heads outside: merging them is a copy. In float32 the kernel
 * for every card writes heads inside. */
static bool heads_outside(const mf_eager *e, uint32_t tensor)
{
    uint32_t maker = e->graph->tensors[tensor].producer;
    return maker != MF_NONE && e->graph->ops[maker].kind == MF_OP_MATMUL && e->nodes[maker].kept &&
           mf_eager_half(e, tensor);
}

/* Rows and channels merged: a layout with channels first must be copied before. */
static void view_forward(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0], y = op->out[0];
    if (!e->first[x] || mf_eager_layout_free(e, x)) {
        set_same(e, y, x);
        e->first[y] = 0;
    } else {
        mf_eager_set_new(e, y, false);
    }
}

static void new_forward(mf_eager *e, const mf_op *op)
{
    for (uint32_t k = 0; k < op->out_count; k++)
        mf_eager_set_new(e, op->out[k], false);
}

static void new_keeping_layout(mf_eager *e, const mf_op *op)
{
    for (uint32_t k = 0; k < op->out_count; k++)
        mf_eager_set_new(e, op->out[k], op->in_count && op->in[0] != MF_NONE && e->first[op->in[0]]);
}

/* Whatever has no script: results are new, inputs are saved. */
static void unknown_forward(mf_eager *e, const mf_op *op)
{
    for (uint32_t k = 0; k < op->in_count; k++)
        if (op->in[k] != MF_NONE && e->needs[op->in[k]])
            mf_eager_save(e, e->value[op->in[k]]);
    new_forward(e, op);
    for (uint32_t k = 0; k < op->out_count; k++)
        if (op->out[k] != MF_NONE && e->needs[op->out[k]])
            mf_eager_save(e, e->value[op->out[k]]);
}

void mf_eager_forward(mf_eager *e, const mf_op *op)
{
    if (mf_eager_images_forward(e, op) || mf_eager_recurrent_forward(e, op))
        return;
    switch (op->kind) {
    case MF_OP_LAYER_NORM:
        layer_norm_forward(e, op);
        break;
    case MF_OP_MATMUL:
        matmul_forward(e, op);
        break;
    case MF_OP_UNARY:
        unary_forward(e, op);
        break;
    case MF_OP_BINARY:
        binary_forward(e, op);
        break;
    case MF_OP_SUM_N:
        sum_forward(e, op);
        break;
    case MF_OP_SOFTMAX:
        softmax_forward(e, op);
        break;
    case MF_OP_DROPOUT:
        dropout_forward(e, op);
        break;
    case MF_OP_VIEW:
        view_forward(e, op);
        break;
    case MF_OP_TRANSPOSE:
    case MF_OP_SLICE:
        set_same(e, op->out[0], op->in[0]);
        e->first[op->out[0]] = heads_outside(e, op->in[0]);
        break;
    case MF_OP_CONCAT:
    case MF_OP_PAD:
    case MF_OP_CAST:
        new_keeping_layout(e, op);
        break;
    case MF_OP_INPUT:
    case MF_OP_REDUCE:
    case MF_OP_GATHER:
    case MF_OP_RESIZE:
    case MF_OP_BROADCAST:
    case MF_OP_FILL:
    case MF_OP_RANDOM:
    case MF_OP_COMPARE:
        new_forward(e, op);
        break;
    case MF_OP_MOVING_AVERAGE:
        break;
    default:
        unknown_forward(e, op);
    }
}

void mf_eager_backward(mf_eager *e, const mf_op *op)
{
    if (mf_eager_images_backward(e, op) || mf_eager_recurrent_backward(e, op))
        return;
    switch (op->kind) {
    case MF_OP_LAYER_NORM:
        layer_norm_backward(e, op);
        break;
    case MF_OP_MATMUL:
        matmul_backward(e, op);
        break;
    case MF_OP_UNARY:
        unary_backward(e, op);
        break;
    case MF_OP_BINARY:
        binary_backward(e, op);
        break;
    case MF_OP_SOFTMAX:
        softmax_backward(e, op);
        break;
    case MF_OP_SUM_N:
    case MF_OP_CONCAT:
    case MF_OP_VIEW:
    case MF_OP_TRANSPOSE:
        pass_all(e, op);
        break;
    default:
        all_new(e, op);
    }
}
