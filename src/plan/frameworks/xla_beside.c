/*
 * xla_beside.c: what a step takes that no tensor of the graph stands for: padded inputs, kernels in cuDNN's order, zeros
 * to scatter into, masks, parts of activations that are too costly to compute twice, workspaces. Each was found in
 * programs that XLA compiled for the card (bench/frameworks/compile_for_card.py).
 */
#include "plan/frameworks/xla_step.h"

void mf_xla_hold(mf_xla_step *s, uint64_t bytes, uint32_t from, uint32_t until)
{
    s->change[from] += (int64_t)bytes;
    s->change[(until < from ? from : until) + 1] -= (int64_t)bytes;
}

/* What is made forward for backward; short of memory it is made again. */
static void keep(mf_xla_step *s, uint64_t bytes, uint32_t from, uint32_t until)
{
    mf_xla_hold(s, bytes, from, s->recomputes ? from : until);
}

/* erf, tanh and log are not computed twice: what they make is kept for backward beside input and result. exp and
 * division are cheap enough (SiLU, ELU). */
static bool expensive(mf_unary f)
{
    return f == MF_UNARY_GELU || f == MF_UNARY_GELU_TANH || f == MF_UNARY_MISH || f == MF_UNARY_SOFTPLUS;
}

/* What was centred for the variance, read again in backward. */
static bool centred_is_kept(const mf_graph *g, const mf_op *op)
{
    if (op->kind != MF_OP_BATCH_NORM)
        return false;
    const mf_shape *x = &g->tensors[op->in[0]].shape;
    return mf_shape_count(x) / (uint64_t)x->dim[x->rank - 1] <= MF_XLA_ROWS_AT_ONCE;
}

/* Normalized parts that were put side by side (DenseNet): backward would have to put them together again to know where
 * ReLU let through, so a byte an element is kept. */
static bool mask_is_kept(const mf_xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    uint32_t norm =
        op->kind == MF_OP_UNARY && op->attr.unary.function == MF_UNARY_RELU ? g->tensors[op->in[0]].producer : MF_NONE;
    if (norm == MF_NONE || g->ops[norm].kind != MF_OP_BATCH_NORM || centred_is_kept(g, &g->ops[norm]))
        return false;
    uint32_t x = g->ops[norm].in[0], maker = g->tensors[x].producer;
    return maker != MF_NONE && g->ops[maker].kind == MF_OP_CONCAT && !s->stored[x];
}

/* cuDNN reads kernels in another order: a copy of each float32 one lives from its convolution to the gradient of that
 * one's input. (In 16 bits the kernel is a copy anyway.) */
static void keep_kernel(mf_xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t kernel = op->in[1], until = s->backward_reader[kernel];
    if (g->tensors[kernel].variable == MF_NONE)
        return;
    keep(s, mf_xla_bytes(g, kernel), at, until);
}

static uint64_t padded_bytes(const mf_graph *g, const mf_op *op)
{
    const mf_window *w = &op->attr.window;
    const mf_shape *x = &g->tensors[op->in[0]].shape;
    uint64_t n = (uint64_t)x->dim[0] * (uint64_t)x->dim[x->rank - 1] * mf_dtype_bytes(g->tensors[op->in[0]].dtype);
    for (uint32_t d = 0; d < w->dims; d++)
        n *= (uint64_t)(x->dim[d + 1] + w->before[d] + w->after[d]);
    return n;
}

/* The gradient of a transposed convolution's kernel is a convolution whose kernel is the input, spread by the stride (by
 * cuDNN itself where both sides are padded alike): that and the result's gradient. 0 for others. */
static uint64_t spread_bytes(const mf_xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    if (op->kind != MF_OP_CONV_GRAD_WEIGHTS || !s->transposed[op->layer])
        return 0;
    const mf_op *forward = &g->ops[s->transposed[op->layer] - 1];
    const mf_window *w = &forward->attr.window;
    const mf_tensor *x = &g->tensors[forward->in[0]];
    uint64_t n = (uint64_t)x->shape.dim[0] * (uint64_t)x->shape.dim[x->shape.rank - 1] * mf_dtype_bytes(x->dtype);
    for (uint32_t d = 0; d < w->dims; d++)
        n *= (uint64_t)(mf_xla_lopsided(w) ? (x->shape.dim[d + 1] - 1) * w->stride[d] + 1 : x->shape.dim[d + 1]);
    return n + mf_xla_bytes(g, forward->out[0]);
}

/* cuDNN's workspace for it is copies of both. In float32 the quickest for a kernel as large as an image works on their
 * transforms, of twice the next power of two, or of one and a half times it (within 5 % of seven on an H200); tuning
 * takes that where there is room. XLA leaves these to the end, when all else is gone. */
static int64_t transformed(int64_t side)
{
    int64_t n = 16;
    while (n < side)
        n = n % 3 ? n / 2 * 3 : n / 3 * 4;
    return 2 * n;
}

static uint64_t transforms_bytes(const mf_graph *g, const mf_op *forward)
{
    const mf_window *w = &forward->attr.window;
    const mf_shape *x = &g->tensors[forward->in[0]].shape, *y = &g->tensors[forward->out[0]].shape;
    uint64_t planes = (uint64_t)x->dim[0] * (uint64_t)(x->dim[x->rank - 1] + y->dim[y->rank - 1]), n = 8;
    for (uint32_t d = 0; d < w->dims; d++) {
        int64_t side = transformed((x->dim[d + 1] - 1) * w->stride[d] + w->kernel[d]);
        n *= (uint64_t)(d + 1 == w->dims ? side / 2 + 1 : side);
    }
    return planes * n;
}

/* What is taken at the end; the rest is taken at once. */
static uint64_t hold_spread(mf_xla_step *s, const mf_op *op, uint32_t at, const mf_xla_card *card,
                            mf_xla_memory *memory)
{
    const mf_graph *g = s->graph;
    uint64_t n = spread_bytes(s, op);
    if (!n)
        return 0;
    const mf_op *forward = &g->ops[s->transposed[op->layer] - 1];
    bool large = mf_dtype_bytes(g->tensors[forward->in[0]].dtype) == 4 && mf_xla_lopsided(&forward->attr.window);
    memory->could_do_with_less |= large && card->roomy;
    if (large && card->roomy)
        return 2 * n + transforms_bytes(g, forward);
    mf_xla_hold(s, 2 * n, at, at);
    return 0;
}

/* Which of dropout's elements were kept: a byte each, until backward has used it. */
static void keep_mask(mf_xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    const mf_shape *x = &g->tensors[op->in[0]].shape;
    uint64_t n = 1;
    for (uint32_t d = 0; d < x->rank; d++)
        n *= op->attr.random.shared_axes >> d & 1 ? 1 : (uint64_t)x->dim[d];
    if (s->dropped[op->layer])
        keep(s, n, at, s->dropped[op->layer] - 1);
}

/* What an operation keeps that no tensor of the graph stands for: a pooling's copy of its input in its own layout, an
 * activation's costly part, a softmax's exponentials (in float32: in 16 bits they were not seen). It goes with the
 * tensor that the backward operation reads. */
static void keep_beside(mf_xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t with = MF_NONE;
    uint64_t part = 1;
    if (mf_xla_pools_relu(s, op) || centred_is_kept(g, op) ||
        (op->kind == MF_OP_UNARY && expensive(op->attr.unary.function)))
        with = op->in[0];
    else if (op->kind == MF_OP_SOFTMAX && g->tensors[op->out[0]].dtype == MF_F32)
        with = op->out[0];
    else if (mask_is_kept(s, op)) {
        with = op->out[0];
        part = mf_dtype_bytes(g->tensors[with].dtype);
    }
    if (with == MF_NONE)
        return;
    bool centred = op->kind == MF_OP_BATCH_NORM; /* statistics are float32 whatever the policy */
    uint32_t until = centred ? s->reader[with] : s->last[g->tensors[with].storage];
    uint64_t bytes = centred ? mf_shape_count(&g->tensors[with].shape) * 4 : mf_xla_bytes(g, with) / part;
    if (op->kind == MF_OP_UNARY && g->tensors[with].shape.rank > 2 && expensive(op->attr.unary.function) &&
        mf_dtype_bytes(g->tensors[with].dtype) == 2)
        bytes *= 2; /* in 16 bits half of the input, too, where products read the result in another shape */
    keep(s, bytes, at, until == MF_NONE ? at : until);
}

static uint64_t least_side(const mf_graph *g, const mf_op *op)
{
    const mf_shape *b = &g->tensors[op->in[1]].shape, *c = &g->tensors[op->out[0]].shape;
    uint64_t columns = (uint64_t)c->dim[c->rank - 1], sums = mf_xla_sum_length(g, op);
    uint64_t rows = b->rank == 2 ? mf_shape_count(c) / columns : (uint64_t)c->dim[c->rank - 2];
    uint64_t least = rows < columns ? rows : columns;
    return least < sums ? least : sums;
}

/* Of those that are cut, tuned programs had cuBLAS's in two parts and XLA's in four. */
enum { BLAS_SIDE = 64, BLAS_SIDE_16 = 256, BLAS_PARTS = 2 };

bool mf_xla_calls_blas(const mf_graph *g, const mf_op *op)
{
    if (op->kind != MF_OP_MATMUL)
        return false;
    bool half = mf_dtype_bytes(g->tensors[op->out[0]].dtype) == 2;
    return least_side(g, op) >= (half ? BLAS_SIDE_16 : BLAS_SIDE) && mf_xla_parts(g, op) <= BLAS_PARTS;
}

static int64_t cells(const mf_window *w)
{
    int64_t n = 1;
    for (uint32_t d = 0; d < w->dims; d++)
        n *= w->kernel[d];
    return n;
}

/* The maxima are looked for again, each with its place on every axis as a 32-bit number: when they are needed, or, where
 * others read what was pooled, at the end of forward, when that may go. */
static void hold_places(mf_xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    const mf_shape *y = &g->tensors[op->in[0]].shape;
    uint32_t maker = g->tensors[op->in[1]].producer;
    bool shared = maker != MF_NONE && s->forward_readers[g->ops[maker].in[0]] > 1;
    mf_xla_hold(s, mf_shape_count(y) * 4 * y->rank, shared && s->turn < at && !s->recomputes ? s->turn : at, at);
    mf_xla_hold(s, mf_shape_count(y) * 4, at, at);
}

/* The first operation of forward that stores more than `bytes`. XLA takes what adds least of all that could be done next:
 * what needs no input comes before the first that adds more. */
static uint32_t first_larger(const mf_xla_step *s, uint64_t bytes)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < s->turn; i++)
        for (uint32_t k = 0; g->ops[i].kind != MF_OP_INPUT && g->ops[i].kind != MF_OP_VIEW && k < g->ops[i].out_count;
             k++)
            if (g->ops[i].out[k] != MF_NONE && s->stored[g->ops[i].out[k]] && mf_xla_bytes(g, g->ops[i].out[k]) > bytes)
                return i;
    return MF_NONE;
}

/* A stored ReLU of that shape, whose zeros are the same ones. */
static uint32_t relu_alike(const mf_xla_step *s, uint32_t t)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < s->turn; i++)
        if (g->ops[i].kind == MF_OP_UNARY && g->ops[i].attr.unary.function == MF_UNARY_RELU &&
            s->stored[g->ops[i].out[0]] && g->tensors[g->ops[i].out[0]].dtype == g->tensors[t].dtype &&
            mf_shape_equal(&g->tensors[g->ops[i].out[0]].shape, &g->tensors[t].shape))
            return i;
    return MF_NONE;
}

/* Gradients of maxima are scattered into zeros, or into what other readers of the pooled tensor send back, where there are
 * any. Such zeros are as large as the padded input; a ReLU's come into being with it, and a copy that is written to. In 16
 * bits another of XLA's orders wins, in which copy and zeros come just before they are needed. */
static void hold_zeros(mf_xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t maker = g->tensors[op->in[1]].producer;
    if (maker == MF_NONE || s->forward_readers[g->ops[maker].in[0]] != 1 || mf_xla_pools_relu(s, &g->ops[maker]))
        return;
    const mf_window *w = &op->attr.window;
    uint32_t pooled = g->ops[maker].in[0], alike = MF_NONE;
    bool padded = false;
    for (uint32_t d = 0; d < w->dims; d++)
        padded |= w->before[d] > 0;
    uint64_t bytes = padded ? padded_bytes(g, &g->ops[maker]) : mf_xla_bytes(g, pooled);
    if (!padded)
        alike = relu_alike(s, pooled);
    bool half = mf_dtype_bytes(g->tensors[pooled].dtype) == 2;
    uint32_t from = alike != MF_NONE || half ? alike : first_larger(s, bytes);
    if (from != MF_NONE)
        keep(s, bytes * (alike != MF_NONE && !half ? 2 : 1), from, at - 1);
}

/* Keras's cross-entropy takes probabilities in float32, and so is what comes back for them; the logits' gradient is then
 * written over the logits. Only where a row all but fills a power of two (8000 of 8192, not 7200) softmax's gradient is one
 * kernel, which computes them. */
static bool one_kernel(uint64_t columns)
{
    uint64_t filled = 4096;
    while (filled < columns)
        filled *= 2;
    return columns > 4096 && columns * 16 > filled * 15;
}

static void hold_probabilities(mf_xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    const mf_tensor *y = &g->tensors[op->out[0]];
    uint32_t cast = s->reader[op->out[0]];
    uint64_t columns = (uint64_t)y->shape.dim[y->shape.rank - 1], n = mf_shape_count(&y->shape);
    if ((op->attr.loss.function != MF_LOSS_SCCE_LOGITS && op->attr.loss.function != MF_LOSS_CCE_LOGITS) ||
        s->readers[op->out[0]] != 1 || g->ops[cast].kind != MF_OP_CAST || s->stored[op->out[0]])
        return;
    if (!one_kernel(columns))
        mf_xla_hold(s, n * 4 - mf_xla_bytes(g, g->ops[cast].out[0]), at, cast);
}

static void hold_workspace(mf_xla_step *s, const mf_op *op, uint32_t at, uint64_t blas_bytes)
{
    mf_xla_hold(s, blas_bytes, at, at);
    for (uint32_t k = 0; k < 2; k++)
        if (mf_xla_relu_within(s, op, op->in[k]) && !s->stored[op->in[k]])
            mf_xla_hold(s, mf_xla_bytes(s->graph, op->in[k]), at, at);
}

uint64_t mf_xla_beside(mf_xla_step *s, uint32_t at, const mf_xla_card *card, mf_xla_memory *memory)
{
    const mf_graph *g = s->graph;
    const mf_op *op = &g->ops[at];
    bool called = op->layer != MF_NONE && s->called[op->layer];
    if (called && op->kind == MF_OP_LSTM)
        mf_xla_hold_call(s, at, memory);
    if (!called && op->kind == MF_OP_MATMUL && s->stored[op->out[0]] && !s->waits[at]) {
        bool blas = mf_xla_calls_blas(g, op);
        mf_xla_hold(s, mf_xla_split_bytes(s, at, blas ? card->blas_bytes : 0), at, at);
        if (blas)
            hold_workspace(s, op, at, card->blas_bytes);
    }
    if (!called && op->kind == MF_OP_MATMUL) {
        memory->products = true;
        if (mf_xla_calls_blas(g, op) && memory->workspace_bytes < card->blas_bytes)
            memory->workspace_bytes = card->blas_bytes;
    }
    if (op->kind == MF_OP_LOSS_GRAD)
        hold_probabilities(s, op, at);
    uint64_t at_the_end = hold_spread(s, op, at, card, memory);
    if (op->kind == MF_OP_POOL_MAX_GRAD && cells(&op->attr.window) > 1) {
        hold_places(s, op, at);
        hold_zeros(s, op, at);
    }
    if (op->phase != MF_FORWARD)
        return at_the_end;
    if (op->kind == MF_OP_BATCH_NORM || (op->out_count && op->out[0] != MF_NONE && s->stored[op->out[0]]))
        keep_beside(s, op, at);
    if (op->kind == MF_OP_CONV)
        keep_kernel(s, op, at);
    if (mf_xla_pads_first(op))
        keep(s, padded_bytes(g, op), at, s->backward_reader[op->in[0]]);
    if (op->kind == MF_OP_DROPOUT)
        keep_mask(s, op, at);
    return at_the_end;
}
