/*
 * sums.c: the gradient of a bias is a sum over the rows of a matrix, which is a view of a tensor of more axes. It reads that tensor
 * itself here, so that it can be one kernel with what makes the tensor (group.h).
 *
 *     dy -> gelu_grad -> d (N, T, C) -> view (N T, C) -> reduce (0) -> db        dy -> gelu_grad -> d (N, T, C) -> reduce (0, 1) -> db
 */
#include "graph/passes/sums.h"

/* A sum or mean over every axis but the last, which are no longer there. */
static bool sums_rows(const mf_graph *g, const mf_op *op)
{
    if (op->kind != MF_OP_REDUCE || op->attr.reduce.keep || op->in[0] == MF_NONE ||
        (op->attr.reduce.function != MF_REDUCE_SUM && op->attr.reduce.function != MF_REDUCE_MEAN))
        return false;
    uint32_t rank = g->tensors[op->in[0]].shape.rank;
    return rank >= 2 && op->attr.reduce.axes == (1u << (rank - 1)) - 1;
}

/* What this tensor is a view of, with the same rows; MF_NONE. */
static uint32_t seen_by(const mf_graph *g, uint32_t tensor)
{
    uint32_t from = g->tensors[tensor].producer;
    if (from == MF_NONE || g->ops[from].kind != MF_OP_VIEW || g->ops[from].attr.view.rows)
        return MF_NONE;
    const mf_shape *x = &g->tensors[g->ops[from].in[0]].shape, *y = &g->tensors[tensor].shape;
    return x->rank >= 2 && x->dim[x->rank - 1] == y->dim[y->rank - 1] ? g->ops[from].in[0] : MF_NONE;
}

void mf_graph_whole_sums(mf_graph *g)
{
    for (uint32_t i = 0; i < g->op_count; i++) {
        mf_op *op = &g->ops[i];
        for (uint32_t x; sums_rows(g, op) && (x = seen_by(g, op->in[0])) != MF_NONE;) {
            op->in[0] = x;
            op->attr.reduce.axes = (1u << (g->tensors[x].shape.rank - 1)) - 1;
        }
    }
}
