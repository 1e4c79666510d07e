/*
 * kind_attention.c: attention without a matrix of scores, and its gradient; shapes.
 */
#include "graph/attention.h"
#include "graph/kinds/shape_rules.h"

/* q, k, v begin at this operand. */
static uint32_t first_of(const mf_op *op)
{
    return op->kind == MF_OP_ATTENTION ? 0 : 1;
}

static bool sizes(const mf_graph *g, uint32_t tensor, bool steps_first, int64_t out[4])
{
    if (tensor == MF_NONE)
        return false;
    const mf_shape *s = &g->tensors[tensor].shape;
    if (s->rank != 3 && s->rank != 4)
        return false;
    bool one = s->rank == 3;
    out[0] = s->dim[0];
    out[1] = one ? 1 : s->dim[steps_first ? 2 : 1];
    out[2] = one ? s->dim[1] : s->dim[steps_first ? 1 : 2];
    out[3] = s->dim[s->rank - 1];
    return true;
}

bool mf_attention_shape_of(const mf_graph *g, const mf_op *op, mf_attention_shape *shape)
{
    int64_t q[4], k[4], v[4];
    uint32_t at = first_of(op);
    bool steps_first = op->attr.attention.steps_first;
    if (op->in_count < at + 3 || !sizes(g, op->in[at], steps_first, q) || !sizes(g, op->in[at + 1], steps_first, k) ||
        !sizes(g, op->in[at + 2], steps_first, v))
        return false;
    const mf_tensor *t = g->tensors;
    uint32_t rank = t[op->in[at]].shape.rank;
    *shape = (mf_attention_shape){q[0], q[1], q[2], k[2], q[3], v[3]};
    return rank == t[op->in[at + 1]].shape.rank && rank == t[op->in[at + 2]].shape.rank &&
           t[op->in[at]].dtype == t[op->in[at + 1]].dtype && t[op->in[at]].dtype == t[op->in[at + 2]].dtype &&
           k[0] == q[0] && v[0] == q[0] && k[1] == q[1] && v[1] == q[1] && v[2] == k[2] && k[3] == q[3];
}

void mf_attention_mask_strides(const mf_attention_shape *s, const mf_shape *mask, int64_t stride[4])
{
    (void)s;
    int64_t step = 1;
    uint32_t rank = mask->rank;
    for (int i = 0; i < 4; i++)
        stride[i] = 0;
    for (uint32_t i = 0; i < rank && i < 4; i++) {
        int64_t n = mask->dim[rank - 1 - i];
        uint32_t axis = 3 - i;
        if (rank == 3 && i == 2)
            axis = 0; /* (N, T, S): one head */
        stride[axis] = n == 1 ? 0 : step;
        step *= n;
    }
}

/* A mask has the rank of the scores, and each axis as long as theirs, or 1. */
static memfit_status check_masks(mf_typing *t, const mf_attention_shape *s, uint32_t rank, uint32_t first)
{
    const int64_t four[4] = {s->batch, s->heads, s->queries, s->keys}, three[3] = {s->batch, s->queries, s->keys};
    const int64_t *whole = rank == 3 ? three : four;
    for (uint32_t i = first; i < first + MF_ATTENTION_MASKS; i++) {
        const mf_tensor *m = mf_rule_in(t, i);
        if (!m)
            continue;
        bool fits = m->dtype == MF_U8 && m->shape.rank == rank;
        for (uint32_t d = 0; fits && d < rank; d++)
            fits = m->shape.dim[d] == 1 || m->shape.dim[d] == whole[d];
        if (!fits)
            return mf_rule_bad(t, "a mask does not fit the scores");
    }
    return MEMFIT_OK;
}

memfit_status mf_shape_attention(mf_typing *t)
{
    mf_attention_shape s;
    memfit_status status = mf_rule_need(t, 3);
    if (status)
        return status;
    if (!mf_attention_shape_of(t->graph, t->op, &s))
        return mf_rule_bad(t, "queries, keys and values do not go together");
    const mf_tensor *q = mf_rule_in(t, 0);
    mf_shape y = q->shape, lse = mf_shape_make(3, (int64_t[]){s.batch, s.heads, s.queries});
    y.dim[y.rank - 1] = s.values;
    status = check_masks(t, &s, q->shape.rank, 3);
    if (!status)
        status = mf_rule_give(t, 0, q->dtype, &y);
    return status ? status : mf_rule_give(t, 1, mf_rule_statistic(q->dtype), &lse);
}

memfit_status mf_shape_attention_grad(mf_typing *t)
{
    mf_attention_shape s;
    memfit_status status = mf_rule_need(t, 6);
    if (status)
        return status;
    if (!mf_attention_shape_of(t->graph, t->op, &s))
        return mf_rule_bad(t, "queries, keys and values do not go together");
    const mf_tensor *dy = mf_rule_in(t, 0), *y = mf_rule_in(t, 4), *lse = mf_rule_in(t, 5);
    mf_shape want = mf_shape_make(3, (int64_t[]){s.batch, s.heads, s.queries}), rows = mf_rule_in(t, 1)->shape;
    rows.dim[rows.rank - 1] = s.values;
    if (!mf_shape_equal(&dy->shape, &rows) || !mf_shape_equal(&y->shape, &rows) || !mf_shape_equal(&lse->shape, &want))
        return mf_rule_bad(t, "the result, its gradient or the rows' sums have other shapes");
    status = check_masks(t, &s, rows.rank, 6);
    for (uint32_t i = 0; i < 3 && !status; i++)
        status = mf_rule_give(t, i, dy->dtype, &mf_rule_in(t, 1 + i)->shape);
    return status;
}
