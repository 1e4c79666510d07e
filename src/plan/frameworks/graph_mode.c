/* graph_mode.c: see graph_mode.h. A storage of the graph is a block of the tape, held by those who have still to read it. */
#include "plan/frameworks/graph_mode.h"

#include "base/error.h"

#include <string.h>

typedef struct graph_mode {
    const mf_graph *graph;
    mf_tape *tape;
    mf_arena scratch;
    uint32_t *block;       /* by storage, MF_NONE while it has none */
    uint32_t *reads;       /* by storage: operations that read it */
    uint32_t *left;        /* by storage: those still to come in this step */
    uint32_t *update;      /* by operation: the update that its result makes possible, or MF_NONE */
    uint32_t *last;        /* by layer: its last backward operation */
    uint32_t *kept;        /* by layer: a block that its backward operations need, MF_NONE */
    uint32_t ending[2];    /* what an earlier update still holds */
    uint64_t ending_bytes; /* each of them */
    uint32_t ending_age;   /* products and convolutions that ran since */
} graph_mode;

static uint64_t bytes_of(const mf_graph *g, uint32_t t)
{
    return mf_shape_count(&g->tensors[t].shape) * mf_dtype_bytes(g->tensors[t].dtype);
}

static bool is_variable(const mf_graph *g, uint32_t t)
{
    uint32_t v = g->storages[g->tensors[t].storage].variable;
    return v != MF_NONE && g->variables[v].role != MF_VAR_GRADIENT;
}

static uint32_t take(graph_mode *s, const mf_op *op, uint64_t bytes)
{
    return mf_tape_take(s->tape, bytes, MEMFIT_KIND_ACTIVATIONS, op->layer);
}

/* ---- what is known before ---- */

static bool updates(const mf_op *op)
{
    return op->kind == MF_OP_UPDATE || op->kind == MF_OP_EMA;
}

static void look(graph_mode *s)
{
    const mf_graph *g = s->graph;
    uint32_t *writer = s->left; /* by storage, for a moment */
    memset(writer, 0xFF, g->storage_count * sizeof *writer);
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        s->update[i] = MF_NONE;
        if (op->kind == MF_OP_UPDATE) {
            uint32_t by = writer[g->tensors[op->in[1]].storage];
            s->update[by == MF_NONE ? i : by] = i;
            continue;
        }
        for (uint32_t k = 0; k < op->in_count && !updates(op); k++)
            if (op->in[k] != MF_NONE && op->kind != MF_OP_VIEW)
                s->reads[g->tensors[op->in[k]].storage]++;
        for (uint32_t k = 0; k < op->out_count; k++)
            if (op->out[k] != MF_NONE)
                writer[g->tensors[op->out[k]].storage] = i;
        if (op->phase == MF_BACKWARD)
            s->last[op->layer] = i;
    }
    for (uint32_t t = 0; t < g->storage_count; t++)
        s->block[t] = MF_NONE;
    for (uint32_t l = 0; l < g->layer_count; l++)
        s->kept[l] = MF_NONE;
    s->ending[0] = s->ending[1] = MF_NONE;
}

/* ---- an operation ---- */

/* A pointwise result takes over the bytes of an input that has as many and goes with this operation. */
static bool forwards(graph_mode *s, const mf_op *op, uint32_t out)
{
    const mf_graph *g = s->graph;
    if (!mf_kind(op->kind)->pointwise && op->kind != MF_OP_SOFTMAX && op->kind != MF_OP_SUM_N)
        return false;
    for (uint32_t k = 0; k < op->in_count; k++) {
        uint32_t t = op->in[k];
        if (t == MF_NONE || is_variable(g, t) || bytes_of(g, t) != bytes_of(g, out))
            continue;
        uint32_t from = g->tensors[t].storage, maker = g->tensors[t].producer;
        if (s->left[from] != 1 || s->block[from] == MF_NONE || (maker != MF_NONE && g->ops[maker].kind == MF_OP_INPUT))
            continue;
        s->block[g->tensors[out].storage] = s->block[from];
        s->block[from] = MF_NONE;
        return true;
    }
    return false;
}

/* Tensors of the result's size that an operation makes on its way, since it is several in TensorFlow. */
static uint32_t passing(const mf_op *op)
{
    switch (op->kind) {
    case MF_OP_BATCH_NORM:
    case MF_OP_LAYER_NORM:
    case MF_OP_DROPOUT:
        return 1;
    case MF_OP_BATCH_NORM_GRAD:
    case MF_OP_LAYER_NORM_GRAD:
        return 2;
    case MF_OP_SOFTMAX_GRAD:
        return 1;
    default:
        return 0;
    }
}

/* Bytes kept for backward that the graph's own backward operations do not read. */
static uint64_t kept_bytes(const mf_graph *g, const mf_op *op)
{
    if (op->phase != MF_FORWARD || !op->out_count)
        return 0;
    uint64_t n = bytes_of(g, op->out[0]);
    if (op->kind == MF_OP_LAYER_NORM)
        return n;
    if (op->kind == MF_OP_DROPOUT)
        return mf_shape_count(&g->tensors[op->out[0]].shape); /* where it let through, a byte each */
    if (op->kind == MF_OP_UNARY &&
        (op->attr.unary.function == MF_UNARY_GELU || op->attr.unary.function == MF_UNARY_GELU_TANH))
        return 2 * n; /* parts of the slope, worked out ahead */
    if (op->kind == MF_OP_UNARY && op->attr.unary.function == MF_UNARY_HARD_SILU)
        return 2 * n; /* the ramp, and a sixth of it */
    return 0;
}

static void drop_storage(graph_mode *s, uint32_t storage)
{
    mf_tape_drop(s->tape, s->block[storage]);
    s->block[storage] = MF_NONE;
}

static void end_update(graph_mode *s)
{
    for (int k = 0; k < 2; k++) {
        mf_tape_drop(s->tape, s->ending[k]);
        s->ending[k] = MF_NONE;
    }
    s->ending_bytes = 0;
}

/* Adam's square with the gradient; then, when that is gone, root and product. A large one takes its time: another thread
 * goes on with backward, up to the next one that is not much smaller. */
static void run_update(graph_mode *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    uint64_t n = bytes_of(g, op->in[0]);
    bool slots = op->out_count > 1, next = n >= s->ending_bytes / 4;
    uint32_t square = take(s, op, n);
    if (next)
        end_update(s);
    mf_tape_drop(s->tape, square);
    drop_storage(s, g->tensors[op->in[1]].storage);
    if (slots && next) {
        s->ending[0] = take(s, op, n);
        s->ending[1] = take(s, op, n);
        s->ending_bytes = n;
        s->ending_age = 0;
    }
}

enum { UPDATE_LASTS = 4 }; /* products and convolutions */

static void grow_older(graph_mode *s, const mf_op *op)
{
    bool heavy = op->kind == MF_OP_MATMUL || op->kind == MF_OP_CONV_GRAD_DATA || op->kind == MF_OP_CONV_GRAD_WEIGHTS;
    if (heavy && ++s->ending_age > UPDATE_LASTS)
        end_update(s);
}

static void take_results(graph_mode *s, const mf_op *op)
{
    const mf_graph *g = s->graph;
    for (uint32_t k = 0; k < op->out_count; k++) {
        uint32_t t = op->out[k];
        if (t == MF_NONE || is_variable(g, t))
            continue;
        uint32_t storage = g->tensors[t].storage;
        if (s->block[storage] != MF_NONE || (k == 0 && forwards(s, op, t)))
            continue;
        uint64_t n = bytes_of(g, t);
        if (op->kind == MF_OP_POOL_MAX && k == 1)
            n = mf_shape_count(&g->tensors[t].shape); /* a byte says which */
        s->block[storage] = take(s, op, n);
    }
}

static void run(graph_mode *s, uint32_t i)
{
    const mf_graph *g = s->graph;
    const mf_op *op = &g->ops[i];
    if (updates(op) || op->kind == MF_OP_VIEW || op->kind == MF_OP_INPUT)
        return;
    take_results(s, op);
    uint64_t n = op->out_count && op->out[0] != MF_NONE ? bytes_of(g, op->out[0]) : 0;
    uint32_t way[2] = {MF_NONE, MF_NONE};
    for (uint32_t k = 0; k < passing(op); k++)
        way[k] = take(s, op, n);
    for (uint32_t k = 0; k < 2; k++)
        mf_tape_drop(s->tape, way[k]);
    uint64_t kept = kept_bytes(g, op);
    if (kept && s->kept[op->layer] == MF_NONE)
        s->kept[op->layer] = take(s, op, kept);
    for (uint32_t k = 0; k < op->in_count; k++) {
        if (op->in[k] == MF_NONE)
            continue;
        uint32_t storage = g->tensors[op->in[k]].storage;
        if (s->left[storage] && --s->left[storage] == 0 && !is_variable(g, op->in[k]))
            drop_storage(s, storage);
    }
    if (s->last[op->layer] == i) {
        mf_tape_drop(s->tape, s->kept[op->layer]);
        s->kept[op->layer] = MF_NONE;
    }
    grow_older(s, op);
    if (s->update[i] != MF_NONE)
        run_update(s, &g->ops[s->update[i]]);
    for (uint32_t k = 0; k < op->out_count; k++)
        if (op->out[k] != MF_NONE && !is_variable(g, op->out[k]) && !s->left[g->tensors[op->out[k]].storage])
            drop_storage(s, g->tensors[op->out[k]].storage);
}

/* ---- the whole ---- */

static void take_variables(graph_mode *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t v = 0; v < g->variable_count; v++) {
        const mf_variable *x = &g->variables[v];
        if (x->role == MF_VAR_GRADIENT || x->role == MF_VAR_LOSS)
            continue;
        uint64_t n = mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype);
        uint32_t random = x->role == MF_VAR_PARAMETER ? mf_tape_take(s->tape, n, x->kind, x->layer) : MF_NONE;
        mf_tape_take(s->tape, n, x->kind, x->layer); /* scaled from the random numbers, which go */
        mf_tape_drop(s->tape, random);
    }
}

static void step(graph_mode *s)
{
    const mf_graph *g = s->graph;
    memcpy(s->left, s->reads, g->storage_count * sizeof *s->left);
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_INPUT)
            s->block[g->tensors[g->ops[i].out[0]].storage] =
                mf_tape_take(s->tape, bytes_of(g, g->ops[i].out[0]), MEMFIT_KIND_INPUTS, g->ops[i].layer);
    for (uint32_t i = 0; i < g->op_count; i++)
        run(s, i);
    for (uint32_t t = 0; t < g->storage_count; t++)
        drop_storage(s, t);
    end_update(s);
}

memfit_status mf_graph_mode_run(const memfit_host *host, const mf_graph *g, mf_tape *tape, memfit_error *err)
{
    graph_mode s = {.graph = g, .tape = tape};
    mf_arena_init(&s.scratch, host);
    s.block = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.reads = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.left = MF_NEW_ARRAY(&s.scratch, uint32_t, g->storage_count + 1);
    s.update = MF_NEW_ARRAY(&s.scratch, uint32_t, g->op_count + 1);
    s.last = MF_NEW_ARRAY(&s.scratch, uint32_t, g->layer_count + 1);
    s.kept = MF_NEW_ARRAY(&s.scratch, uint32_t, g->layer_count + 1);
    bool ok = s.block && s.reads && s.left && s.update && s.last && s.kept;
    if (ok) {
        look(&s);
        take_variables(&s);
        for (uint32_t i = 0; i < g->op_count; i++) /* the next batch, read ahead */
            if (g->ops[i].kind == MF_OP_INPUT)
                mf_tape_take(tape, bytes_of(g, g->ops[i].out[0]), MEMFIT_KIND_INPUTS, g->ops[i].layer);
        step(&s);
        step(&s);
    }
    mf_arena_destroy(&s.scratch);
    return ok && !tape->failed ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a step");
}
