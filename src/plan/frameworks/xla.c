/* xla.c: see xla.h. Two passes over the operations: which tensors are stored, then how long each of them lives. */
#include "plan/frameworks/xla.h"

#include "base/error.h"

typedef struct xla_step {
    const mf_graph *graph;
    mf_arena scratch;
    uint8_t *stored;       /* by tensor */
    uint32_t *readers;     /* by tensor: operations that read it */
    uint8_t *heavy_reader; /* by tensor: one of them is a library call */
    uint32_t *last;        /* by storage: the last operation that needs its bytes */
    uint32_t *mark;        /* by tensor: the operation that last walked over it */
    uint32_t *stack;
    int64_t *change; /* by operation: bytes that appear before it */
} xla_step;

/* Library calls, and what XLA does not fuse into its readers. */
static bool heavy(const mf_op *op)
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

static bool reduces(const mf_op *op)
{
    return op->kind == MF_OP_REDUCE || op->kind == MF_OP_LOSS || op->kind == MF_OP_METRIC;
}

static uint64_t bytes_of(const mf_graph *g, uint32_t t)
{
    return mf_shape_count(&g->tensors[t].shape) * mf_dtype_bytes(g->tensors[t].dtype);
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

static void decide(xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        for (uint32_t k = 0; k < op->in_count; k++) {
            if (op->in[k] == MF_NONE)
                continue;
            s->readers[op->in[k]]++;
            s->heavy_reader[op->in[k]] |= heavy(op);
        }
    }
    for (uint32_t i = g->op_count; i-- > 0;) { /* a view's reader reads what it views */
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_VIEW)
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
            s->stored[t] = variable || heavy(op) || reduces(op) || s->heavy_reader[t] || wide || k > 0;
            if (op->kind == MF_OP_VIEW)
                s->stored[t] = s->stored[op->in[0]];
            if (op->kind == MF_OP_POOL_MAX && k == 1)
                s->stored[t] = 0;
        }
    }
}

/* Scores are looked at through a mask. */
static bool masked(const mf_graph *g, const mf_op *softmax)
{
    uint32_t maker = g->tensors[softmax->in[0]].producer;
    while (maker != MF_NONE && g->ops[maker].kind == MF_OP_VIEW)
        maker = g->tensors[g->ops[maker].in[0]].producer;
    return softmax->attr.softmax.causal || (maker != MF_NONE && g->ops[maker].kind == MF_OP_SELECT);
}

/* Attention in 16 bits without a mask is one call of cuDNN under JAX: scores and what they become are there neither
 * forward nor backward. All tensors of the layer that have the softmax's shape are such. */
static void fuse_attention(xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t p = 0; p < g->op_count; p++) {
        const mf_op *softmax = &g->ops[p];
        if (softmax->kind != MF_OP_SOFTMAX || softmax->phase != MF_FORWARD)
            continue;
        const mf_tensor *scores = &g->tensors[softmax->out[0]];
        if (scores->shape.rank != 4 || mf_dtype_bytes(scores->dtype) != 2 || masked(g, softmax))
            continue;
        for (uint32_t i = 0; i < g->op_count; i++)
            for (uint32_t k = 0; g->ops[i].layer == softmax->layer && k < g->ops[i].out_count; k++) {
                uint32_t t = g->ops[i].out[k];
                if (t != MF_NONE && mf_shape_equal(&g->tensors[t].shape, &scores->shape))
                    s->stored[t] = 0;
            }
    }
}

/* Operation `at` needs the stored tensors that t is made of. */
static void need(xla_step *s, uint32_t t, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t depth = 0;
    s->stack[depth++] = t;
    while (depth) {
        t = s->stack[--depth];
        if (s->mark[t] == at + 1)
            continue;
        s->mark[t] = at + 1;
        uint32_t storage = g->tensors[t].storage, maker = g->tensors[t].producer;
        if (s->stored[t] || maker == MF_NONE) {
            if (s->last[storage] == MF_NONE || s->last[storage] < at)
                s->last[storage] = at;
            continue;
        }
        const mf_op *op = &g->ops[maker];
        for (uint32_t k = 0; k < op->in_count; k++) {
            uint32_t x = op->in[k];
            if (k == 1 && op->kind == MF_OP_UNARY_GRAD && op->attr.unary.from_output &&
                g->tensors[x].producer != MF_NONE)
                x = g->ops[g->tensors[x].producer].in[0];
            if (x != MF_NONE)
                s->stack[depth++] = x;
        }
    }
}

static void live(xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        bool virtual = op->out_count == 1 && op->out[0] != MF_NONE && !s->stored[op->out[0]];
        bool works = (heavy(op) && !virtual) || reduces(op) || op->kind == MF_OP_UPDATE;
        for (uint32_t k = 0; k < op->out_count; k++)
            works |= op->out[k] != MF_NONE && s->stored[op->out[k]];
        for (uint32_t k = 0; works && op->kind != MF_OP_VIEW && k < op->in_count; k++)
            if (op->in[k] != MF_NONE)
                need(s, op->in[k], i);
        /* max pooling looks at its input again, and ReLU's slope is that of its input */
        bool pooling = op->kind == MF_OP_POOL_MAX_GRAD,
             slope = op->kind == MF_OP_UNARY_GRAD && op->attr.unary.from_output;
        uint32_t maker = pooling || slope ? g->tensors[op->in[1]].producer : MF_NONE;
        if (works && maker != MF_NONE)
            need(s, g->ops[maker].in[0], i);
    }
}

/* exp, erf and the like are not computed twice: what they make is kept for backward beside input and result. */
static bool expensive(mf_unary f)
{
    return f == MF_UNARY_GELU || f == MF_UNARY_GELU_TANH || f == MF_UNARY_SILU || f == MF_UNARY_MISH ||
           f == MF_UNARY_SOFTPLUS || f == MF_UNARY_ELU || f == MF_UNARY_SELU;
}

/* What an operation keeps that no tensor of the graph stands for: a pooling's copy of its input in its own layout, an
 * activation's costly part, a softmax's exponentials (in float32: in 16 bits they were not seen). It goes with the
 * tensor that the backward operation reads. */
static void keep_beside(xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t with = MF_NONE;
    if (op->kind == MF_OP_POOL_MAX || (op->kind == MF_OP_UNARY && expensive(op->attr.unary.function)))
        with = op->in[0];
    else if (op->kind == MF_OP_SOFTMAX && g->tensors[op->out[0]].dtype == MF_F32)
        with = op->out[0];
    if (with == MF_NONE)
        return;
    uint32_t until = s->last[g->tensors[with].storage];
    int64_t bytes = (int64_t)bytes_of(g, with);
    s->change[at] += bytes;
    s->change[(until == MF_NONE || until < at ? at : until) + 1] -= bytes;
}

static uint64_t peak(xla_step *s, uint64_t blas_bytes, mf_xla_memory *memory)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_MATMUL && s->stored[op->out[0]]) {
            memory->workspace_bytes = blas_bytes;
            s->change[i] += (int64_t)blas_bytes;
            s->change[i + 1] -= (int64_t)blas_bytes;
        }
        for (uint32_t k = 0; k < op->out_count; k++) {
            uint32_t t = op->out[k];
            if (t == MF_NONE || !s->stored[t] || op->kind == MF_OP_VIEW || g->tensors[t].producer != i ||
                g->storages[g->tensors[t].storage].variable != MF_NONE)
                continue;
            uint32_t storage = g->tensors[t].storage, last = s->last[storage];
            uint64_t n = (bytes_of(g, t) + 255) / 256 * 256;
            if (op->kind == MF_OP_INPUT) {
                memory->input_bytes += n;
                continue;
            }
            uint32_t end = last == MF_NONE || last < i ? i : last;
            s->change[i] += (int64_t)n;
            s->change[end + 1] -= (int64_t)n;
            if (k == 0 && op->phase == MF_FORWARD)
                keep_beside(s, op, i);
        }
    }
    int64_t now = 0, most = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        now += s->change[i];
        if (now > most)
            most = now;
    }
    return (uint64_t)most;
}

memfit_status mf_xla_run(const memfit_host *host, const mf_graph *g, uint64_t blas_bytes, bool fused_attention,
                         mf_xla_memory *memory, memfit_error *err)
{
    xla_step s = {.graph = g};
    mf_arena_init(&s.scratch, host);
    s.stored = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.readers = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.heavy_reader = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.mark = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    size_t edges = 1;
    for (uint32_t i = 0; i < g->op_count; i++)
        edges += g->ops[i].in_count;
    s.stack = MF_NEW_ARRAY(&s.scratch, uint32_t, edges + 1);
    s.last = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.change = MF_NEW_ARRAY(&s.scratch, int64_t, g->op_count + 2);
    bool ok = s.stored && s.readers && s.heavy_reader && s.mark && s.stack && s.last && s.change;
    *memory = (mf_xla_memory){0};
    if (ok) {
        for (uint32_t i = 0; i < g->storage_count; i++)
            s.last[i] = MF_NONE;
        for (uint32_t v = 0; v < g->variable_count; v++) {
            const mf_variable *x = &g->variables[v];
            if (x->role != MF_VAR_GRADIENT && x->role != MF_VAR_LOSS)
                memory->variable_bytes += (mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype) + 255) / 256 * 256;
        }
        decide(&s);
        if (fused_attention)
            fuse_attention(&s);
        live(&s);
        memory->temp_bytes = peak(&s, blas_bytes, memory);
    }
    mf_arena_destroy(&s.scratch);
    return ok ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a step");
}
