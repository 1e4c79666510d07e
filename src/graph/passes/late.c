/*
 * late.c: updates wait for each other, so that a device can run many by one launch.
 *
 *     dw3  update3  dx3  dw2  update2  dx2  dw1  update1          dw3  dx3  dw2  dx2  dw1  update3  update2  update1
 *
 * An update stands where its gradient is final, which frees the gradient's bytes at once. On a card a launch takes as long as
 * updating a small tensor: here updates are held back until their gradients have MOST_HELD bytes, or until an operation wants what
 * one of them touches. That much a plan may take more, where gradients are large and everything else is small: under a limit that
 * leaves nothing else training plans once more without (mf_plan_options.least_workspace).
 */
#include "graph/passes/late.h"

enum { MOST_HELD = 16 << 20, WRITTEN = 1, READ = 2 };

typedef struct waiting {
    mf_graph *g;
    uint32_t *order, count; /* operations in their new order */
    uint32_t *held, held_count;
    uint64_t held_bytes;
    uint8_t *touched; /* by storage: what those who wait do with it */
} waiting;

static uint32_t storage_of(const waiting *w, const mf_op *op, uint32_t operand)
{
    uint32_t t = operand < op->in_count ? op->in[operand] : op->out[operand - op->in_count];
    return t == MF_NONE ? MF_NONE : w->g->tensors[t].storage;
}

static bool waits(const waiting *w, const mf_op *op)
{
    return op->kind == MF_OP_UPDATE && !op->chunked && op->in[1] != MF_NONE &&
           w->g->storages[w->g->tensors[op->in[1]].storage].variable == MF_NONE;
}

static bool meets(const waiting *w, const mf_op *op)
{
    for (uint32_t k = 0; w->held_count && k < op->in_count + op->out_count; k++) {
        uint32_t s = storage_of(w, op, k);
        if (s != MF_NONE && (w->touched[s] & WRITTEN || (w->touched[s] && k >= op->in_count && op->kind != MF_OP_VIEW)))
            return true;
    }
    return false;
}

static void mark(const waiting *w, const mf_op *op, bool held)
{
    for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
        uint32_t s = storage_of(w, op, k);
        if (s != MF_NONE)
            w->touched[s] = held ? (uint8_t)(w->touched[s] | (k < op->in_count ? READ : WRITTEN)) : 0;
    }
}

static void let_go(waiting *w)
{
    for (uint32_t i = 0; i < w->held_count; i++) {
        w->order[w->count++] = w->held[i];
        mark(w, &w->g->ops[w->held[i]], false);
    }
    w->held_count = 0;
    w->held_bytes = 0;
}

static void find_order(waiting *w)
{
    for (uint32_t i = 0; i < w->g->op_count; i++) {
        const mf_op *op = &w->g->ops[i];
        if (meets(w, op))
            let_go(w);
        if (!waits(w, op)) {
            w->order[w->count++] = i;
            continue;
        }
        w->held[w->held_count++] = i;
        w->held_bytes += w->g->storages[w->g->tensors[op->in[1]].storage].bytes;
        mark(w, op, true);
        if (w->held_bytes > MOST_HELD)
            let_go(w);
    }
    let_go(w);
}

bool mf_graph_late_updates(mf_graph *g)
{
    waiting w = {.g = g,
                 .order = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1),
                 .held = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1),
                 .touched = MF_NEW_ARRAY(&g->arena, uint8_t, g->storage_count + 1)};
    if (!w.order || !w.held || !w.touched)
        return false;
    find_order(&w);
    mf_op *ops = mf_host_alloc(g->arena.host, (g->op_count + 1) * sizeof *ops);
    if (!ops)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        ops[i] = g->ops[w.order[i]];
        w.held[w.order[i]] = i; /* from here on: the new number of an operation */
    }
    mf_host_free(g->arena.host, g->ops, g->op_capacity * sizeof *ops);
    g->ops = ops;
    g->op_capacity = g->op_count + 1;
    for (uint32_t t = 0; t < g->tensor_count; t++)
        if (g->tensors[t].producer != MF_NONE)
            g->tensors[t].producer = w.held[g->tensors[t].producer];
    return true;
}
