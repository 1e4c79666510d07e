/*
 * lower_order.c: the order in which Keras 3 runs the calls of a model (keras/src/ops/function.py, map_graph).
 *
 * A call's depth is its distance from the outputs, at least that of the calls of the same layer seen before it. Keras
 * runs the deepest calls first, those of one depth in the order in which it met them while it assigned depths. Results
 * do not depend on that, with one exception: who still finds a mask that MultiHeadAttention takes off (lower.c).
 */
#include "model/lower/lower_inner.h"

typedef struct ordering {
    const mf_model *model;
    const uint32_t *first; /* by layer: number of its first call */
    uint32_t *layer;       /* by call */
    uint32_t *next;        /* by call: arguments looked at; MF_NONE: not begun */
    uint32_t *found;       /* calls, each behind those it reads */
    uint32_t *stack, *depth, *layer_depth;
    uint32_t *met; /* calls in the order in which they got a depth */
    uint32_t found_count, met_count;
} ordering;

static bool make(ordering *o, mf_arena *arena, uint32_t calls)
{
    uint32_t **arrays[] = {&o->layer, &o->next, &o->found, &o->stack, &o->depth, &o->met};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (!(*arrays[i] = MF_NEW_ARRAY(arena, uint32_t, calls + 1)))
            return false;
    if (!(o->layer_depth = MF_NEW_ARRAY(arena, uint32_t, o->model->layer_count + 1)))
        return false;
    for (uint32_t i = 0; i < o->model->layer_count; i++)
        for (uint32_t k = 0; k < o->model->layers[i].call_count; k++)
            o->layer[o->first[i] + k] = i;
    for (uint32_t i = 0; i < calls; i++)
        o->next[i] = o->depth[i] = MF_NONE;
    return true;
}

static const mf_call *call_of(const ordering *o, uint32_t id)
{
    uint32_t layer = o->layer[id];
    return &o->model->layers[layer].calls[id - o->first[layer]];
}

/* The call that makes this tensor, or MF_NONE: constants, and what damaged files refer to (the walk refuses those). */
static uint32_t maker(const ordering *o, uint32_t layer, uint32_t call)
{
    bool exists = layer < o->model->layer_count && call < o->model->layers[layer].call_count;
    return exists ? o->first[layer] + call : MF_NONE;
}

static void find(ordering *o, uint32_t id)
{
    uint32_t depth = 0;
    if (id == MF_NONE || o->next[id] != MF_NONE)
        return;
    o->stack[depth++] = id;
    o->next[id] = 0;
    while (depth) {
        uint32_t at = o->stack[depth - 1];
        const mf_call *call = call_of(o, at);
        if (o->next[at] == call->arg_count) {
            o->found[o->found_count++] = at;
            depth--;
            continue;
        }
        const mf_call_arg *arg = &call->args[o->next[at]++];
        uint32_t before = maker(o, arg->layer, arg->call);
        if (before != MF_NONE && o->next[before] == MF_NONE) {
            o->next[before] = 0;
            o->stack[depth++] = before;
        }
    }
}

static void at_least(ordering *o, uint32_t id, uint32_t depth)
{
    if (o->depth[id] == MF_NONE)
        o->met[o->met_count++] = id;
    if (o->depth[id] == MF_NONE || o->depth[id] < depth)
        o->depth[id] = depth;
}

bool mf_keras_ranks(mf_arena *arena, const mf_model *model, const uint32_t *first, uint32_t calls, uint32_t *rank)
{
    ordering o = {.model = model, .first = first};
    if (!make(&o, arena, calls))
        return false;
    for (uint32_t i = 0; i < model->output_count; i++)
        find(&o, maker(&o, model->outputs[i].layer, model->outputs[i].call));
    uint32_t deepest = 0, next = 0;
    for (uint32_t i = o.found_count; i-- > 0;) {
        uint32_t id = o.found[i], *layer = &o.layer_depth[o.layer[id]];
        const mf_call *call = call_of(&o, id);
        at_least(&o, id, *layer);
        *layer = o.depth[id];
        deepest = *layer > deepest ? *layer : deepest;
        for (uint32_t k = 0; k < call->arg_count; k++) {
            uint32_t before = maker(&o, call->args[k].layer, call->args[k].call);
            if (before != MF_NONE)
                at_least(&o, before, *layer + 1);
        }
    }
    for (uint32_t i = 0; i < calls; i++)
        rank[i] = MF_NONE;
    /* A stable sort by depth, the deepest first: how many are as deep, where they begin, their places. */
    uint32_t *begin = MF_NEW_ARRAY(arena, uint32_t, (size_t)deepest + 2);
    if (!begin)
        return false;
    for (uint32_t i = 0; i < o.met_count; i++)
        if (o.depth[o.met[i]] <= deepest)
            begin[o.depth[o.met[i]]]++;
    for (uint32_t d = deepest + 1; d-- > 0;) {
        uint32_t count = begin[d];
        begin[d] = next;
        next += count;
    }
    for (uint32_t i = 0; i < o.met_count; i++)
        if (o.depth[o.met[i]] <= deepest)
            rank[o.met[i]] = begin[o.depth[o.met[i]]]++;
    return true;
}
