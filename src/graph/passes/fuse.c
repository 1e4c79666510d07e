/*
 * fuse.c: an activation that only follows a batch normalization becomes part of it.
 *
 *     x -> batch_norm -> y -> relu -> z          x -> batch_norm (activation relu) -> z
 *
 * The values are the same bits: the normalization ends with the very numbers the activation would have begun with. What
 * it saves is one pass over memory, forward and, above all, whenever z is dropped and computed again: recomputing z is
 * the cheapest recomputation most networks have, and this halves its price.
 *
 * Runs between the forward and the backward pass: gradient rules see the merged operation.
 */
#include "graph/build.h"

#include <string.h>

static bool is_output(const mf_graph *g, uint32_t tensor)
{
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] == tensor)
            return true;
    return false;
}

/* The normalization this operation could be merged into; MF_NONE when it must stay. */
static uint32_t host_of(const mf_graph *g, const mf_op *op, const uint32_t *readers, const uint32_t *number)
{
    if (op->kind != MF_OP_UNARY || op->in[0] == MF_NONE ||
        (op->attr.unary.function != MF_UNARY_RELU && op->attr.unary.function != MF_UNARY_RELU6))
        return MF_NONE;
    uint32_t from = g->tensors[op->in[0]].producer;
    if (from == MF_NONE || readers[op->in[0]] != 1 || is_output(g, op->in[0]) || is_output(g, op->out[0]) ||
        g->tensors[op->in[0]].dtype != g->tensors[op->out[0]].dtype)
        return MF_NONE;
    const mf_op *norm = &g->ops[number[from]];
    bool fits = (norm->kind == MF_OP_BATCH_NORM || norm->kind == MF_OP_BATCH_NORM_INFER) && norm->out[0] == op->in[0] &&
                norm->attr.norm.activation == MF_UNARY_LINEAR;
    return fits ? number[from] : MF_NONE;
}

/* What looked at the activation's bytes looks at the normalization's. */
static void move_views(mf_graph *g, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < g->tensor_count; i++)
        if (g->tensors[i].storage == from)
            g->tensors[i].storage = to;
}

void mf_g_fuse(mf_build *b)
{
    mf_graph *g = b->graph;
    if (!mf_build_ok(b))
        return;
    uint32_t *readers = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1);
    uint32_t *now = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1);
    uint32_t *number = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1);
    if (!readers || !now || !number) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the step graph");
        return;
    }
    for (uint32_t i = 0; i < g->tensor_count; i++)
        now[i] = i;
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] != MF_NONE)
                readers[g->ops[i].in[k]]++;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->op_count; i++) { /* readers come after what they read, so one pass renames all */
        mf_op op = g->ops[i];
        uint32_t host = host_of(g, &op, readers, number);
        number[i] = kept;
        if (host != MF_NONE) {
            g->ops[host].attr.norm.activation = op.attr.unary.function;
            g->storages[g->tensors[op.in[0]].storage].layer = op.layer; /* who asks for it, owns it */
            now[op.out[0]] = op.in[0];
            move_views(g, g->tensors[op.out[0]].storage, g->tensors[op.in[0]].storage);
            continue;
        }
        for (uint32_t k = 0; k < op.in_count; k++)
            if (op.in[k] != MF_NONE)
                op.in[k] = now[op.in[k]];
        g->ops[kept++] = op;
    }
    for (uint32_t i = 0; i < g->tensor_count; i++)
        if (g->tensors[i].producer != MF_NONE)
            g->tensors[i].producer = number[g->tensors[i].producer];
    g->op_count = kept;
}
