/*
 * fuse.c: an activation that only follows a batch normalization becomes part of it.
 *
 *     x -> batch_norm -> y -> relu -> z          x -> batch_norm (activation relu) -> z
 *
 * The values are the same bits: the normalization ends with the very numbers the activation would have begun with. What
 * it saves is one pass over memory, forward and, above all, whenever z is dropped and computed again: recomputing z is
 * the cheapest recomputation most networks have, and this halves its price.
 *
 * Runs between the forward and the backward pass: gradient rules see the merged operation. z keeps its number: whoever
 * has noted it finds it. y is gone, so a normalization whose own result is asked for later is left alone.
 */
#include "graph/build.h"

typedef struct fusion {
    mf_graph *graph;
    uint32_t *readers; /* by tensor: operations, outputs and those who ask for it later */
} fusion;

static bool count_readers(fusion *f, uint32_t kept_count, const uint32_t *kept)
{
    mf_graph *g = f->graph;
    f->readers = MF_NEW_ARRAY(&g->arena, uint32_t, g->tensor_count + 1);
    if (!f->readers)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] != MF_NONE)
                f->readers[g->ops[i].in[k]]++;
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE)
            f->readers[g->outputs[i]]++;
    for (uint32_t i = 0; i < kept_count; i++)
        if (kept[i] != MF_NONE)
            f->readers[kept[i]]++;
    return true;
}

/* The normalization this operation could be merged into; NULL when it must stay. */
static mf_op *host_of(const fusion *f, const mf_op *op)
{
    mf_graph *g = f->graph;
    if (op->kind != MF_OP_UNARY || op->in[0] == MF_NONE ||
        (op->attr.unary.function != MF_UNARY_RELU && op->attr.unary.function != MF_UNARY_RELU6))
        return NULL;
    uint32_t from = g->tensors[op->in[0]].producer;
    if (from == MF_NONE || f->readers[op->in[0]] != 1 || g->tensors[op->in[0]].dtype != g->tensors[op->out[0]].dtype)
        return NULL;
    mf_op *norm = &g->ops[from];
    bool fits = (norm->kind == MF_OP_BATCH_NORM || norm->kind == MF_OP_BATCH_NORM_INFER) && norm->out[0] == op->in[0] &&
                norm->attr.norm.activation == MF_UNARY_LINEAR;
    return fits ? norm : NULL;
}

void mf_g_fuse(mf_build *b, uint32_t kept_count, const uint32_t *kept)
{
    if (!mf_build_ok(b))
        return;
    fusion f = {.graph = b->graph};
    mf_graph *g = b->graph;
    if (!count_readers(&f, kept_count, kept)) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the step graph");
        return;
    }
    uint32_t left = 0;
    for (uint32_t i = 0; i < g->op_count; i++) { /* what is before i has its final number already */
        mf_op op = g->ops[i];
        mf_op *host = host_of(&f, &op);
        if (host) {
            host->attr.norm.activation = op.attr.unary.function;
            host->out[0] = op.out[0];
            g->tensors[op.out[0]].producer = (uint32_t)(host - g->ops);
            g->tensors[op.in[0]].producer = MF_NONE;
            continue;
        }
        for (uint32_t k = 0; k < op.out_count; k++)
            if (op.out[k] != MF_NONE && g->tensors[op.out[k]].producer == i)
                g->tensors[op.out[k]].producer = left;
        g->ops[left++] = op;
    }
    g->op_count = left;
}
