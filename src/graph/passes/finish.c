/*
 * finish.c: from a builder to a graph: dead operations vanish, outputs nobody reads become MF_NONE where the kind
 * allows it, and operations, tensors and storages are numbered without gaps.
 *
 * Alive is what writes a variable, an input, and whatever those read, from the last operation to the first. Storages
 * carry the mark, so that an in-place change (clipping a gradient) stays when a later operation reads what it changed;
 * views carry it themselves, so that an unread view of a live storage goes.
 */
#include "graph/build.h"

#include "base/error.h"
#include "graph/kinds/kinds.h"

void mf_graph_destroy(mf_graph *graph)
{
    if (!graph)
        return;
    mf_arena arena = graph->arena;
    const memfit_host *host = arena.host;
    mf_host_free(host, graph->ops, graph->op_capacity * sizeof *graph->ops);
    mf_host_free(host, graph->tensors, graph->tensor_capacity * sizeof *graph->tensors);
    mf_host_free(host, graph->storages, graph->storage_capacity * sizeof *graph->storages);
    mf_host_free(host, graph->variables, graph->variable_capacity * sizeof *graph->variables);
    mf_host_free(host, graph->layers, graph->layer_capacity * sizeof *graph->layers);
    mf_host_free(host, graph->feeds, graph->feed_capacity * sizeof *graph->feeds);
    mf_host_free(host, graph, sizeof *graph);
    mf_arena_destroy(&arena);
}

typedef struct marks {
    uint8_t *op, *tensor, *storage; /* alive; for tensors: read, or kept */
    uint32_t *new_op, *new_tensor, *new_storage;
} marks;

static bool marks_make(marks *m, mf_graph *g)
{
    m->op = MF_NEW_ARRAY(&g->arena, uint8_t, g->op_count + 1);
    m->tensor = MF_NEW_ARRAY(&g->arena, uint8_t, g->tensor_count + 1);
    m->storage = MF_NEW_ARRAY(&g->arena, uint8_t, g->storage_count + 1);
    m->new_op = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1);
    m->new_tensor = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1);
    m->new_storage = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1);
    return m->op && m->tensor && m->storage && m->new_op && m->new_tensor && m->new_storage;
}

static void keep(marks *m, const mf_graph *g, uint32_t tensor)
{
    if (tensor < g->tensor_count) {
        m->tensor[tensor] = 1;
        m->storage[g->tensors[tensor].storage] = 1;
    }
}

static bool alive(const marks *m, const mf_graph *g, const mf_op *op)
{
    if (op->kind == MF_OP_INPUT)
        return true;
    if (op->kind == MF_OP_VIEW)
        return m->tensor[op->out[0]];
    for (uint32_t k = 0; k < op->out_count; k++) {
        if (op->out[k] == MF_NONE)
            continue;
        const mf_tensor *t = &g->tensors[op->out[k]];
        if (m->storage[t->storage] || g->storages[t->storage].variable != MF_NONE)
            return true;
    }
    return false;
}

static void mark(marks *m, mf_graph *g)
{
    for (uint32_t i = g->op_count; i-- > 0;) {
        mf_op *op = &g->ops[i];
        if (!alive(m, g, op))
            continue;
        m->op[i] = 1;
        for (uint32_t k = 0; k < op->in_count; k++)
            keep(m, g, op->in[k]);
        uint32_t optional = mf_kind(op->kind)->optional_outs;
        for (uint32_t k = 0; k < op->out_count; k++) {
            uint32_t t = op->out[k];
            if (t == MF_NONE)
                continue;
            bool state = g->storages[g->tensors[t].storage].variable != MF_NONE;
            if ((optional >> k & 1) && !m->tensor[t] && !state)
                op->out[k] = MF_NONE;
            else
                keep(m, g, t);
        }
    }
}

/* ---- numbering without gaps ---- */

static uint32_t renumber(uint32_t count, const uint8_t *alive_marks, uint32_t *numbers)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; i++)
        numbers[i] = alive_marks[i] ? next++ : MF_NONE;
    return next;
}

static void move_tensor(uint32_t *id, const marks *m)
{
    if (*id != MF_NONE)
        *id = m->new_tensor[*id];
}

static void compact(marks *m, mf_graph *g)
{
    uint32_t ops = renumber(g->op_count, m->op, m->new_op);
    uint32_t tensors = renumber(g->tensor_count, m->tensor, m->new_tensor);
    uint32_t storages = renumber(g->storage_count, m->storage, m->new_storage);
    for (uint32_t i = 0; i < g->op_count; i++) {
        if (!m->op[i])
            continue;
        mf_op *op = &g->ops[m->new_op[i]];
        *op = g->ops[i];
        for (uint32_t k = 0; k < op->in_count + op->out_count; k++) /* one array: in, then out */
            move_tensor(&op->in[k], m);
    }
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        if (!m->tensor[i])
            continue;
        mf_tensor *t = &g->tensors[m->new_tensor[i]];
        *t = g->tensors[i];
        t->storage = m->new_storage[t->storage];
        if (t->producer != MF_NONE)
            t->producer = m->new_op[t->producer];
    }
    for (uint32_t i = 0; i < g->storage_count; i++)
        if (m->storage[i])
            g->storages[m->new_storage[i]] = g->storages[i];
    for (uint32_t i = 0; i < g->variable_count; i++)
        move_tensor(&g->variables[i].tensor, m);
    for (uint32_t i = 0; i < g->feed_count; i++)
        move_tensor(&g->feeds[i].tensor, m);
    for (uint32_t i = 0; i < g->output_count; i++)
        move_tensor(&g->outputs[i], m);
    g->op_count = ops;
    g->tensor_count = tensors;
    g->storage_count = storages;
}

memfit_status mf_build_end_keeping(mf_build *b, uint32_t root_count, uint32_t *roots, mf_graph **graph)
{
    marks m;
    mf_graph *g = b->graph;
    if (mf_build_ok(b) && !marks_make(&m, g))
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the step graph");
    if (!mf_build_ok(b)) {
        mf_graph_destroy(g);
        b->graph = NULL;
        return b->status;
    }
    if (g->mode == MF_MODE_PREDICT)
        for (uint32_t i = 0; i < g->output_count; i++)
            keep(&m, g, g->outputs[i]);
    for (uint32_t i = 0; i < root_count; i++)
        keep(&m, g, roots[i]);
    mark(&m, g);
    compact(&m, g);
    for (uint32_t i = 0; i < root_count; i++)
        move_tensor(&roots[i], &m);
    b->graph = NULL;
    b->status = mf_graph_check(g, b->err);
    if (!mf_build_ok(b)) {
        mf_graph_destroy(g);
        return b->status;
    }
    *graph = g;
    return MEMFIT_OK;
}

memfit_status mf_build_end(mf_build *b, mf_graph **graph)
{
    return mf_build_end_keeping(b, 0, NULL, graph);
}
