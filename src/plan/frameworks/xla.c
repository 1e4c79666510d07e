/* xla.c: see xla.h. Two passes over the operations: which tensors are stored, then how long each of them lives. */
#include "plan/frameworks/xla.h"

#include "base/error.h"

typedef struct xla_step {
    const mf_graph *graph;
    mf_arena scratch;
    uint8_t *stored;   /* by tensor */
    uint32_t *readers; /* by tensor: operations that read it */
    uint32_t *forward_readers;
    uint32_t *backward_reader; /* by tensor: the last of them in backward, 0: none */
    uint32_t *transposed;      /* by layer: its transposed convolution and 1, 0: none */
    uint32_t *reader;          /* by tensor: the last of them */
    uint8_t *heavy_reader;     /* by tensor: one of them is a library call */
    uint8_t *summed;           /* by tensor: one of them sums it in one kernel */
    uint32_t *last;            /* by storage: the last operation that needs its bytes */
    uint32_t *mark;            /* by tensor: the operation that last walked over it */
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

/* A sum over at most this many rows is one kernel; over more XLA cuts it in two (a warp times the tile of a sum over
 * columns: xla/service/gpu/reduction_utils.cc). What one kernel sums and others read too is stored; what two sum is a
 * formula for each of them. */
enum { ROWS_AT_ONCE = 4096 };

static bool sums_at_once(const mf_graph *g, const mf_op *op)
{
    if (op->kind != MF_OP_REDUCE || op->phase != MF_FORWARD)
        return false;
    uint64_t in = mf_shape_count(&g->tensors[op->in[0]].shape), out = mf_shape_count(&g->tensors[op->out[0]].shape);
    return out && in / out > 1 && in / out <= ROWS_AT_ONCE;
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

/* Max pooling is a window over a formula, like a sum. Only where ReLU alone is pooled the zeros that ReLU compares with
 * are those that backward scatters into: they are stored from the beginning, twice, as backward writes to one of them.
 * Here the pooled tensor and what keep_beside adds stand for the two. */
static bool pools_relu(const xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    if (op->kind != MF_OP_POOL_MAX)
        return false;
    uint32_t x = op->in[0], maker = g->tensors[x].producer;
    return maker != MF_NONE && g->ops[maker].kind == MF_OP_UNARY &&
           g->ops[maker].attr.unary.function == MF_UNARY_RELU && s->forward_readers[x] == 1;
}

static void count_readers(xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        if (g->ops[i].kind == MF_OP_CONV_GRAD_DATA && g->ops[i].phase == MF_FORWARD)
            s->transposed[g->ops[i].layer] = i + 1;
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] != MF_NONE) {
                s->readers[g->ops[i].in[k]]++;
                s->forward_readers[g->ops[i].in[k]] += g->ops[i].phase == MF_FORWARD;
                s->reader[g->ops[i].in[k]] = i;
                if (g->ops[i].phase == MF_BACKWARD && g->ops[i].kind != MF_OP_UPDATE)
                    s->backward_reader[g->ops[i].in[k]] = i;
            }
    }
}

static void decide(xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        for (uint32_t k = 0; k < op->in_count; k++) {
            if (op->in[k] == MF_NONE)
                continue;
            s->summed[op->in[k]] |= sums_at_once(g, op);
            s->heavy_reader[op->in[k]] |= heavy(op) && (op->kind != MF_OP_POOL_MAX || pools_relu(s, op));
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
            bool summed = s->summed[t] && s->readers[t] > 2; /* forward, and again in backward */
            s->stored[t] = variable || heavy(op) || reduces(op) || s->heavy_reader[t] || wide || summed || k > 0;
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

/* A kernel's gradient that is larger than what it is made of waits until backward has ended, when memory is free again
 * (XLA orders operations by what they free); its update follows at once. */
static bool waits(const xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    uint64_t made_of = 0;
    if (op->phase != MF_BACKWARD || (op->kind != MF_OP_MATMUL && op->kind != MF_OP_CONV_GRAD_WEIGHTS))
        return false;
    uint32_t out = op->out[0], last = s->reader[out];
    for (uint32_t k = 0; k < op->in_count; k++)
        made_of += op->in[k] == MF_NONE ? 0 : bytes_of(g, op->in[k]);
    return s->readers[out] == 1 && g->ops[last].kind == MF_OP_UPDATE && bytes_of(g, out) > made_of;
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
                need(s, op->in[k], waits(s, op) ? g->op_count - 1 : i);
        /* max pooling looks at its input again, and ReLU's slope is that of its input */
        bool pooling = op->kind == MF_OP_POOL_MAX_GRAD,
             slope = op->kind == MF_OP_UNARY_GRAD && op->attr.unary.from_output;
        uint32_t maker = pooling || slope ? g->tensors[op->in[1]].producer : MF_NONE;
        if (works && maker != MF_NONE)
            need(s, g->ops[maker].in[0], i);
    }
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
    return mf_shape_count(x) / (uint64_t)x->dim[x->rank - 1] <= ROWS_AT_ONCE;
}

/* Normalized parts that were put side by side (DenseNet): backward would have to put them together again to know where
 * ReLU let through, so a byte an element is kept. */
static bool mask_is_kept(const xla_step *s, const mf_op *op)
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
static void keep_kernel(xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t kernel = op->in[1], until = s->backward_reader[kernel];
    if (g->tensors[kernel].variable == MF_NONE)
        return;
    until = until < at ? at : until;
    s->change[at] += (int64_t)bytes_of(g, kernel);
    s->change[until + 1] -= (int64_t)bytes_of(g, kernel);
}

/* The gradient of a transposed convolution's kernel is a convolution whose kernel is the input, spread by the stride:
 * that, the result's gradient and cuDNN's copies of both. 0 for others. */
static uint64_t spread_bytes(const xla_step *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    if (op->kind != MF_OP_CONV_GRAD_WEIGHTS || !s->transposed[op->layer])
        return 0;
    const mf_op *forward = &g->ops[s->transposed[op->layer] - 1];
    const mf_window *w = &forward->attr.window;
    const mf_tensor *x = &g->tensors[forward->in[0]];
    uint64_t n = (uint64_t)x->shape.dim[0] * (uint64_t)x->shape.dim[x->shape.rank - 1] * mf_dtype_bytes(x->dtype);
    for (uint32_t d = 0; d < w->dims; d++)
        n *= (uint64_t)((x->shape.dim[d + 1] - 1) * w->stride[d] + 1);
    return 2 * (n + bytes_of(g, forward->out[0]));
}

/* What an operation keeps that no tensor of the graph stands for: a pooling's copy of its input in its own layout, an
 * activation's costly part, a softmax's exponentials (in float32: in 16 bits they were not seen). It goes with the
 * tensor that the backward operation reads. */
static void keep_beside(xla_step *s, const mf_op *op, uint32_t at)
{
    const mf_graph *g = s->graph;
    uint32_t with = MF_NONE;
    uint64_t part = 1;
    if (pools_relu(s, op) || centred_is_kept(g, op) || (op->kind == MF_OP_UNARY && expensive(op->attr.unary.function)))
        with = op->in[0];
    else if (op->kind == MF_OP_SOFTMAX && g->tensors[op->out[0]].dtype == MF_F32)
        with = op->out[0];
    else if (mask_is_kept(s, op)) {
        with = op->out[0];
        part = mf_dtype_bytes(g->tensors[with].dtype);
    }
    if (with == MF_NONE)
        return;
    uint32_t until = op->kind == MF_OP_BATCH_NORM ? s->reader[with] : s->last[g->tensors[with].storage];
    int64_t bytes = (int64_t)(bytes_of(g, with) / part);
    s->change[at] += bytes;
    s->change[(until == MF_NONE || until < at ? at : until) + 1] -= bytes;
}

static uint64_t peak(xla_step *s, uint64_t blas_bytes, mf_xla_memory *memory)
{
    const mf_graph *g = s->graph;
    uint64_t afterwards = 0;
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
            if (waits(s, op)) {
                n += op->kind == MF_OP_MATMUL ? blas_bytes : 0;
                afterwards = n > afterwards ? n : afterwards;
                continue;
            }
            uint32_t end = last == MF_NONE || last < i ? i : last;
            s->change[i] += (int64_t)n;
            s->change[end + 1] -= (int64_t)n;
            if (k == 0 && op->phase == MF_FORWARD && op->kind != MF_OP_BATCH_NORM)
                keep_beside(s, op, i);
        }
        if (op->kind == MF_OP_BATCH_NORM)
            keep_beside(s, op, i);
        if (op->kind == MF_OP_CONV && op->phase == MF_FORWARD)
            keep_kernel(s, op, i);
        int64_t spread = (int64_t)spread_bytes(s, op);
        s->change[i] += spread;
        s->change[i + 1] -= spread;
    }
    int64_t now = 0, most = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        now += s->change[i];
        if (now > most)
            most = now;
    }
    int64_t end = now + (int64_t)afterwards;
    return (uint64_t)(end > most ? end : most);
}

memfit_status mf_xla_run(const memfit_host *host, const mf_graph *g, uint64_t blas_bytes, bool fused_attention,
                         mf_xla_memory *memory, memfit_error *err)
{
    xla_step s = {.graph = g};
    mf_arena_init(&s.scratch, host);
    s.stored = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.readers = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.forward_readers = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.backward_reader = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.transposed = MF_NEW_ARRAY(&s.scratch, uint32_t, g->layer_count + 1);
    s.reader = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    s.heavy_reader = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.summed = MF_NEW_ARRAY(&s.scratch, uint8_t, g->tensor_count + 1);
    s.mark = MF_NEW_ARRAY(&s.scratch, uint32_t, g->tensor_count + 1);
    size_t edges = 1;
    for (uint32_t i = 0; i < g->op_count; i++)
        edges += g->ops[i].in_count;
    s.stack = MF_NEW_ARRAY(&s.scratch, uint32_t, edges + 1);
    s.last = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.change = MF_NEW_ARRAY(&s.scratch, int64_t, g->op_count + 2);
    bool ok = s.stored && s.readers && s.forward_readers && s.backward_reader && s.transposed && s.reader &&
              s.heavy_reader && s.summed && s.mark && s.stack && s.last && s.change;
    *memory = (mf_xla_memory){0};
    if (ok) {
        for (uint32_t i = 0; i < g->storage_count; i++)
            s.last[i] = MF_NONE;
        for (uint32_t v = 0; v < g->variable_count; v++) {
            const mf_variable *x = &g->variables[v];
            if (x->role != MF_VAR_GRADIENT && x->role != MF_VAR_LOSS)
                memory->variable_bytes += (mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype) + 255) / 256 * 256;
        }
        count_readers(&s);
        decide(&s);
        if (fused_attention)
            fuse_attention(&s);
        live(&s);
        memory->temp_bytes = peak(&s, blas_bytes, memory);
    }
    mf_arena_destroy(&s.scratch);
    return ok ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a step");
}
