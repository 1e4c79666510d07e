/* xla_store.c: which tensors of a step XLA stores; the others are formulas over those. See xla.h. */
#include "plan/frameworks/xla_step.h"

bool mf_xla_heavy(const mf_op *op)
{
    switch (op->kind) {
    case MF_OP_CONV:
    case MF_OP_CONV_GRAD_DATA:
    case MF_OP_CONV_GRAD_WEIGHTS:
    case MF_OP_MATMUL:
    case MF_OP_POOL_MAX:
    case MF_OP_POOL_MAX_GRAD:
    case MF_OP_POOL_AVG:
    case MF_OP_POOL_AVG_GRAD:
    case MF_OP_GATHER:
    case MF_OP_GATHER_GRAD:
    case MF_OP_LSTM:
    case MF_OP_LSTM_GRAD:
    case MF_OP_GRU:
    case MF_OP_GRU_GRAD:
    case MF_OP_SIMPLE_RNN:
    case MF_OP_SIMPLE_RNN_GRAD:
    case MF_OP_RESIZE:
    case MF_OP_RESIZE_GRAD:
    case MF_OP_ASSUMED:
    case MF_OP_INPUT:
        return true;
    default:
        return false;
    }
}

bool mf_xla_reduces(const mf_op *op)
{
    return op->kind == MF_OP_REDUCE || op->kind == MF_OP_LOSS || op->kind == MF_OP_METRIC;
}

uint64_t mf_xla_bytes(const mf_graph *g, uint32_t t)
{
    return mf_shape_count(&g->tensors[t].shape) * mf_dtype_bytes(g->tensors[t].dtype);
}

static bool sums_at_once(const mf_graph *g, const mf_op *op)
{
    if (op->kind != MF_OP_REDUCE || op->phase != MF_FORWARD)
        return false;
    uint64_t in = mf_shape_count(&g->tensors[op->in[0]].shape), out = mf_shape_count(&g->tensors[op->out[0]].shape);
    return out && in / out > 1 && in / out <= MF_XLA_ROWS_AT_ONCE;
}

/* Inputs as large as the result: what a formula would have to read again. */
static uint32_t wide_inputs(const mf_graph *g, const mf_op *op, uint32_t out)
{
    uint32_t count = 0;
    uint64_t n = mf_shape_count(&g->tensors[out].shape);
    for (uint32_t k = 0; k < op->in_count; k++)
        count += op->in[k] != MF_NONE && mf_shape_count(&g->tensors[op->in[k]].shape) * 2 > n;
    return count;
}

bool mf_xla_pools_relu(const mf_xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    if (op->kind != MF_OP_POOL_MAX)
        return false;
    uint32_t x = op->in[0], maker = g->tensors[x].producer;
    return maker != MF_NONE && g->ops[maker].kind == MF_OP_UNARY &&
           g->ops[maker].attr.unary.function == MF_UNARY_RELU && s->forward_readers[x] == 1;
}

bool mf_xla_relu_within(const mf_xla_step *s, const mf_op *op, uint32_t t)
{
    const mf_graph *g = s->graph;
    uint32_t maker = g->tensors[t].producer;
    return op->kind == MF_OP_MATMUL && maker != MF_NONE && g->ops[maker].kind == MF_OP_UNARY &&
           g->ops[maker].attr.unary.function == MF_UNARY_RELU &&
           (mf_dtype_bytes(g->tensors[t].dtype) == 2 || !mf_xla_calls_blas(g, op));
}

bool mf_xla_lopsided(const mf_window *w)
{
    bool odd = false;
    for (uint32_t d = 0; d < w->dims; d++)
        odd |= w->before[d] != w->after[d];
    return odd;
}

bool mf_xla_pads_first(const mf_op *op)
{
    return (op->kind == MF_OP_CONV || op->kind == MF_OP_CONV_GRAD_WEIGHTS) && mf_xla_lopsided(&op->attr.window);
}

/* Zeros alike on both sides that convolutions alone read are theirs to add. */
static bool folds(const mf_xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    if (op->kind != MF_OP_PAD || op->attr.pad.mode != 0 || op->attr.pad.value != 0)
        return false;
    uint32_t rank = g->tensors[op->out[0]].shape.rank;
    for (uint32_t d = 0; d < rank; d++)
        if (op->attr.pad.before[d] != op->attr.pad.after[d] || op->attr.pad.between[d])
            return false;
    return s->convolved[op->out[0]] == s->readers[op->out[0]];
}

static void decide(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        for (uint32_t k = 0; k < op->in_count; k++) {
            if (op->in[k] == MF_NONE)
                continue;
            s->summed[op->in[k]] |= sums_at_once(g, op);
            s->convolved[op->in[k]] += k == 0 && (op->kind == MF_OP_CONV || op->kind == MF_OP_CONV_GRAD_WEIGHTS);
            s->heavy_reader[op->in[k]] |= mf_xla_heavy(op) &&
                                          (op->kind != MF_OP_POOL_MAX || mf_xla_pools_relu(s, op)) &&
                                          !mf_xla_relu_within(s, op, op->in[k]) && !(k == 0 && mf_xla_pads_first(op));
        }
    }
    for (uint32_t i = g->op_count; i-- > 0;) { /* a view's reader reads what it views */
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_VIEW || folds(s, op))
            s->heavy_reader[op->in[0]] |= s->heavy_reader[op->out[0]];
    }
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        for (uint32_t k = 0; k < op->out_count; k++) {
            uint32_t t = op->out[k];
            if (t == MF_NONE)
                continue;
            bool variable = g->tensors[t].variable != MF_NONE;
            bool wide = wide_inputs(g, op, t) > 1 && s->readers[t] > 1;
            bool summed = s->summed[t] && s->readers[t] > 2; /* forward, and again in backward */
            s->stored[t] =
                variable || mf_xla_heavy(op) || mf_xla_reduces(op) || s->heavy_reader[t] || wide || summed || k > 0;
            if (op->kind == MF_OP_VIEW)
                s->stored[t] = s->stored[op->in[0]];
            if ((op->kind == MF_OP_POOL_MAX && k == 1) || folds(s, op) || mf_xla_inside_call(s, op, k))
                s->stored[t] = 0;
        }
    }
}

/* Attention in 16 bits is one call of cuDNN under JAX, with a mask or without: scores and what they become are there neither
 * forward nor backward. All tensors of the layer that have the softmax's shape are such. */
static void fuse_attention(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t p = 0; p < g->op_count; p++) {
        const mf_op *softmax = &g->ops[p];
        if (softmax->kind != MF_OP_SOFTMAX || softmax->phase != MF_FORWARD)
            continue;
        const mf_tensor *scores = &g->tensors[softmax->out[0]];
        if (scores->shape.rank != 4 || mf_dtype_bytes(scores->dtype) != 2)
            continue;
        for (uint32_t i = 0; i < g->op_count; i++)
            for (uint32_t k = 0; g->ops[i].layer == softmax->layer && k < g->ops[i].out_count; k++) {
                uint32_t t = g->ops[i].out[k];
                if (t != MF_NONE && mf_shape_equal(&g->tensors[t].shape, &scores->shape))
                    s->stored[t] = 0;
            }
    }
}

/* Products are XLA's kernels or cuBLAS's, as tuning finds; here they are XLA's, which can be computed again. */
static bool by_library(const mf_op *op)
{
    return mf_xla_heavy(op) && op->kind != MF_OP_MATMUL;
}

/* Whether all that t is made of is there in backward. */
static bool made_of_kept(const mf_xla_step *s, uint32_t t)
{
    const mf_graph *g = s->graph;
    uint32_t stack[64], depth = 0;
    stack[depth++] = t;
    while (depth) {
        uint32_t at = stack[--depth], maker = g->tensors[at].producer;
        if (at != t && (s->stored[at] || maker == MF_NONE)) {
            if (s->again[at])
                return false;
            continue;
        }
        for (uint32_t k = 0; k < g->ops[maker].in_count; k++) {
            if (depth == sizeof stack / sizeof *stack)
                return false;
            if (g->ops[maker].in[k] != MF_NONE)
                stack[depth++] = g->ops[maker].in[k];
        }
    }
    return true;
}

static void choose_again(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i <= s->turn && i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        uint32_t t = op->out_count ? op->out[0] : MF_NONE;
        if (t == MF_NONE || !s->stored[t] || by_library(op) || g->tensors[t].variable != MF_NONE)
            continue;
        s->again[t] = op->kind == MF_OP_VIEW ? s->again[op->in[0]] : made_of_kept(s, t);
    }
}

void mf_xla_decide(mf_xla_step *s, const mf_xla_card *card)
{
    if (card->library_lstm)
        mf_xla_find_calls(s);
    decide(s);
    if (card->fused_attention)
        fuse_attention(s);
    if (s->recomputes)
        choose_again(s);
}
