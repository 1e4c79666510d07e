/*
 * bias_sums.c: the gradient of a convolution's bias is the sum of its slopes over all cells. Where the backend sums them as it makes
 * them, that sum is an operation of its own, and the slopes are not read again for it.
 *
 *     dz, z -> relu_grad -> dy;   x, dy -> conv_grad_weights -> dw, db
 *     dz, z -> relu_grad -> dy -> reduce -> db;   x, dy -> conv_grad_weights -> dw
 */
#include "graph/passes/bias_sums.h"

/* Fills `sum` with the operation that makes db of this gradient; false: it has none, or its slopes are not made here. */
static bool sum_of(mf_graph *g, const mf_op *op, uint32_t *ids, mf_op *sum)
{
    if (op->kind != MF_OP_CONV_GRAD_WEIGHTS || op->chunked || op->out_count < 2 || op->out[0] == MF_NONE ||
        op->out[1] == MF_NONE)
        return false;
    const mf_tensor *dy = &g->tensors[op->in[1]], *db = &g->tensors[op->out[1]];
    if (dy->producer == MF_NONE || dy->shape.rank < 2)
        return false;
    /* of several outputs only variables are added to */
    bool variable = db->variable != MF_NONE || g->storages[db->storage].variable != MF_NONE;
    ids[0] = op->in[1];
    ids[1] = op->out[1];
    *sum = (mf_op){.kind = MF_OP_REDUCE,
                   .phase = op->phase,
                   .when = op->when,
                   .accumulate = op->accumulate && variable,
                   .layer = op->layer,
                   .in = ids,
                   .out = ids + 1,
                   .in_count = 1,
                   .out_count = 1,
                   .attr = {.reduce = {.function = MF_REDUCE_SUM, .axes = (1u << (dy->shape.rank - 1)) - 1}}};
    return true;
}

/* Does the backend make one kernel of it and of what makes the slopes? There is room for it behind the last operation. */
static bool is_better_apart(mf_graph *g, const mf_group_taker *taker, uint32_t i)
{
    uint32_t ids[2], from;
    if (!sum_of(g, &g->ops[i], ids, &g->ops[g->op_count]))
        return false;
    from = g->tensors[ids[0]].producer;
    const mf_op *maker = &g->ops[from];
    return from < i && maker->phase == g->ops[i].phase && maker->when == g->ops[i].when && !maker->chunked &&
           taker->takes(taker->ctx, g, (uint32_t[]){from, g->op_count}, 2);
}

/* From the last operation to the first: each goes to its new place, and before it its sum. `place` becomes that place. */
static bool add_all(mf_graph *g, uint32_t *place, uint32_t more)
{
    uint32_t old = g->op_count, at = old + more;
    for (uint32_t i = old; i-- > 0;) {
        bool adds = place[i] != 0;
        mf_op *op = &g->ops[--at];
        *op = g->ops[i];
        place[i] = at;
        if (!adds)
            continue;
        uint32_t *ids = MF_NEW_ARRAY(&g->arena, uint32_t, 2);
        if (!ids || !sum_of(g, op, ids, &g->ops[--at]))
            return false;
        op->out[1] = MF_NONE;
    }
    g->op_count = old + more;
    for (uint32_t t = 0; t < g->tensor_count; t++)
        if (g->tensors[t].producer != MF_NONE)
            g->tensors[t].producer = place[g->tensors[t].producer];
    for (uint32_t i = 0; i + 1 < g->op_count; i++) /* not of variables: those come from outside */
        if (g->ops[i].kind == MF_OP_REDUCE && g->ops[i + 1].kind == MF_OP_CONV_GRAD_WEIGHTS &&
            g->tensors[g->ops[i].out[0]].producer == i + 1)
            g->tensors[g->ops[i].out[0]].producer = i;
    return true;
}

bool mf_graph_bias_sums(mf_graph *g, const mf_group_taker *taker)
{
    uint32_t *place = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1), more = 0, convolutions = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        convolutions += g->ops[i].kind == MF_OP_CONV_GRAD_WEIGHTS;
    if (!place || !mf_grow(g->arena.host, &g->ops, &g->op_capacity, g->op_count + convolutions, sizeof *g->ops))
        return false;
    for (uint32_t i = 0; convolutions && i < g->op_count; i++) {
        place[i] = is_better_apart(g, taker, i);
        more += place[i];
    }
    return more == 0 || add_all(g, place, more);
}
