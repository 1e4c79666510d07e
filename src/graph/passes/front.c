/*
 * front.c: takes leading random operations out of a graph (graph/front.h). Runs between the forward and the backward pass.
 *
 * The last of them, T's producer, and the input exchange their results: the input then fills T, and the operations between
 * are read by nobody and vanish when the graph is finished. So T keeps its number and its readers need no change.
 */
#include "graph/build.h"
#include "graph/front.h"

#include "graph/augment.h"

typedef struct search {
    mf_graph *graph;
    uint32_t *readers; /* by tensor: operations, outputs and those who ask for it later */
    uint32_t *reader;  /* by tensor: the last operation that reads it */
} search;

static bool find_readers(search *s, uint32_t kept_count, const uint32_t *kept)
{
    mf_graph *g = s->graph;
    s->readers = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1);
    s->reader = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1);
    if (!s->readers || !s->reader)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] != MF_NONE) {
                s->readers[g->ops[i].in[k]]++;
                s->reader[g->ops[i].in[k]] = i;
            }
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE)
            s->readers[g->outputs[i]]++;
    for (uint32_t i = 0; i < kept_count; i++)
        if (kept[i] != MF_NONE)
            s->readers[kept[i]]++;
    return true;
}

static bool can_go(const mf_op *op)
{
    return op->kind == MF_OP_CAST || (op->kind == MF_OP_UNARY && op->attr.unary.function == MF_UNARY_AFFINE) ||
           (op->kind == MF_OP_AUGMENT && op->attr.augment.function < MF_AUGMENT_COUNT);
}

/* Operations from a tensor on that nothing else reads, up to the last random one; 0: there is none. */
static uint32_t chain_length(const search *s, uint32_t tensor)
{
    const mf_graph *g = s->graph;
    uint32_t length = 0;
    for (uint32_t n = 1; s->readers[tensor] == 1 && can_go(&g->ops[s->reader[tensor]]); n++) {
        const mf_op *op = &g->ops[s->reader[tensor]];
        length = op->kind == MF_OP_AUGMENT ? n : length;
        tensor = op->out[0];
    }
    return length;
}

static mf_front *take(mf_graph *g, const search *s, uint32_t tensor, uint32_t count, uint32_t *last)
{
    mf_front *front = mf_arena_alloc(&g->arena, sizeof *front + count * sizeof *front->steps);
    if (!front)
        return NULL;
    front->dtype = g->tensors[tensor].dtype;
    front->shape = g->tensors[tensor].shape;
    front->count = count;
    for (uint32_t i = 0; i < count; i++) {
        *last = s->reader[tensor];
        const mf_op *op = &g->ops[*last];
        tensor = op->out[0];
        front->steps[i] = (mf_front_step){op->kind, op->attr, g->tensors[tensor].dtype, g->tensors[tensor].shape};
    }
    return front;
}

void mf_g_front(mf_build *b, uint32_t kept_count, const uint32_t *kept)
{
    if (!mf_build_ok(b))
        return;
    mf_graph *g = b->graph;
    search s = {.graph = g};
    bool room = find_readers(&s, kept_count, kept);
    for (uint32_t i = 0; room && i < g->feed_count; i++) {
        const uint32_t x = g->feeds[i].tensor, input = g->tensors[x].producer;
        const uint32_t count = g->feeds[i].role == 0 && input != MF_NONE ? chain_length(&s, x) : 0;
        uint32_t last = MF_NONE;
        if (!count)
            continue;
        mf_front *front = take(g, &s, x, count, &last);
        room = front != NULL;
        if (!room)
            break;
        const uint32_t result = g->ops[last].out[0];
        mf_storage *filled = &g->storages[g->tensors[result].storage];
        filled->kind = MEMFIT_KIND_INPUTS;
        filled->layer = g->ops[input].layer;
        g->tensors[result].name = g->tensors[x].name;
        g->tensors[result].producer = input;
        g->tensors[x].producer = last;
        g->ops[input].out[0] = result;
        g->ops[last].out[0] = x;
        g->feeds[i].tensor = result;
        g->feeds[i].front = front;
        return; /* one input's: others stay in the graph */
    }
    if (!room)
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the step graph");
}
