/*
 * slopes.c: the slope of an activation behind a batch normalization, from what was normalized in place of the result.
 *
 *     dy, z -> relu_grad -> d;   d, x, mean, variance -> batch_norm_grad -> dx
 *     x, mean, variance -> batch_norm_infer (activation relu) -> z';   dy, z' -> relu_grad -> d;   d, x ... -> batch_norm_grad -> dx
 *
 * The gradient of the normalization reads x anyway, and z' is z: as one kernel (group.h) the three read one large tensor less, in
 * each of two passes. Only where the backend makes one kernel of them and of nothing more: z' must not come to be stored.
 */
#include "graph/passes/slopes.h"

#include "graph/passes/touched.h"

#include <string.h>

static bool is_plain(const mf_op *op, mf_op_kind kind)
{
    return op->kind == kind && !op->accumulate && !op->chunked && op->when == MF_ALWAYS;
}

/* The normalization with this activation whose result is `z`; MF_NONE. */
static uint32_t norm_of(const mf_graph *g, uint32_t z, mf_unary function)
{
    uint32_t from = z == MF_NONE ? MF_NONE : g->tensors[z].producer;
    if (from == MF_NONE || !is_plain(&g->ops[from], MF_OP_BATCH_NORM))
        return MF_NONE;
    const mf_op *norm = &g->ops[from];
    return norm->out[0] == z && norm->attr.norm.activation == function && function != MF_UNARY_LINEAR &&
                   norm->out[1] != MF_NONE && norm->out[2] != MF_NONE
               ? from
               : MF_NONE;
}

/* The gradient of that normalization, which alone reads `d`; MF_NONE. */
static uint32_t reader_of(const mf_graph *g, const uint32_t *touched, uint32_t after, uint32_t d, const mf_op *norm)
{
    enum { NEAR = 8 }; /* operations behind: gradients come one after the other */
    if (touched[g->tensors[d].storage] != 2)
        return MF_NONE;
    for (uint32_t i = after + 1; i < g->op_count && i <= after + NEAR; i++) {
        const mf_op *op = &g->ops[i];
        if (is_plain(op, MF_OP_BATCH_NORM_GRAD) && op->in[0] == d && op->in[1] == norm->in[0] &&
            op->in[2] == norm->out[1] && op->in[3] == norm->out[2])
            return i;
    }
    return MF_NONE;
}

/* Would its gradient be joined with what makes it? Then it would not wait for z'. */
static bool is_joined_before(const mf_graph *g, const mf_group_taker *taker, uint32_t slope)
{
    uint32_t from = g->tensors[g->ops[slope].in[0]].producer;
    return from != MF_NONE && from < slope && taker->takes(taker->ctx, g, (uint32_t[]){from, slope}, 2);
}

/* Which normalization's x serves this operation; MF_NONE: none does. */
static uint32_t serves(const mf_graph *g, const mf_group_taker *taker, const uint32_t *touched, uint32_t slope)
{
    const mf_op *op = &g->ops[slope];
    if (!is_plain(op, MF_OP_UNARY_GRAD) || !op->attr.unary.from_output)
        return MF_NONE;
    uint32_t norm = norm_of(g, op->in[1], op->attr.unary.function);
    uint32_t reader = norm == MF_NONE ? MF_NONE : reader_of(g, touched, slope, op->out[0], &g->ops[norm]);
    return reader != MF_NONE && taker->takes(taker->ctx, g, (uint32_t[]){slope, reader}, 2) &&
                   !is_joined_before(g, taker, slope)
               ? norm
               : MF_NONE;
}

/* z', and the operation that makes it; `slope` reads it from now on. There is room for both. */
static bool add(mf_graph *g, mf_op *slope, const mf_op *norm, mf_op *infer)
{
    uint32_t *ids = MF_NEW_ARRAY(&g->arena, uint32_t, 6), z = g->tensor_count, s = g->storage_count;
    if (!ids)
        return false;
    g->storages[s] = g->storages[g->tensors[slope->in[1]].storage];
    g->tensors[z] = g->tensors[slope->in[1]];
    g->tensors[z].storage = s;
    g->tensor_count++;
    g->storage_count++;
    memcpy(ids, (uint32_t[]){norm->in[0], norm->in[1], norm->in[2], norm->out[1], norm->out[2], z}, 6 * sizeof *ids);
    slope->in[1] = z;
    *infer = (mf_op){.kind = MF_OP_BATCH_NORM_INFER,
                     .phase = slope->phase,
                     .when = slope->when,
                     .layer = norm->layer,
                     .in = ids,
                     .out = ids + 5,
                     .in_count = 5,
                     .out_count = 1,
                     .attr = norm->attr};
    return true;
}

/* From the last operation to the first: each goes to its new place, and before it what it needs. `norm` becomes that place. */
static bool add_all(mf_graph *g, uint32_t *norm, uint32_t more)
{
    uint32_t old = g->op_count, tensors = g->tensor_count, at = old + more;
    for (uint32_t i = old; i-- > 0;) {
        uint32_t from = norm[i];
        g->ops[--at] = g->ops[i];
        norm[i] = at;
        if (from != MF_NONE && !add(g, &g->ops[at], &g->ops[from], &g->ops[at - 1]))
            return false;
        at -= from != MF_NONE;
    }
    g->op_count = old + more;
    for (uint32_t t = 0; t < tensors; t++)
        if (g->tensors[t].producer != MF_NONE)
            g->tensors[t].producer = norm[g->tensors[t].producer];
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_BATCH_NORM_INFER && g->ops[i].out[0] >= tensors)
            g->tensors[g->ops[i].out[0]].producer = i;
    return true;
}

bool mf_graph_slopes(mf_graph *g, const mf_group_taker *taker)
{
    const memfit_host *host = g->arena.host;
    const uint32_t *touched = mf_graph_touched(g);
    uint32_t *norm = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1), more = 0;
    if (!touched || !norm)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        norm[i] = serves(g, taker, touched, i);
        more += norm[i] != MF_NONE;
    }
    return more == 0 ||
           (mf_grow(host, &g->ops, &g->op_capacity, g->op_count + more, sizeof *g->ops) &&
            mf_grow(host, &g->tensors, &g->tensor_capacity, g->tensor_count + more, sizeof *g->tensors) &&
            mf_grow(host, &g->storages, &g->storage_capacity, g->storage_count + more, sizeof *g->storages) &&
            add_all(g, norm, more));
}
