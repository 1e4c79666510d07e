/*
 * overwrite.c: see overwrite.h.
 *
 * Why a kind stands in the table:
 *
 *   by element   result i is made from element i of the operand and from nothing else of it, so it is not needed any
 *                more. Holds only while no axis is repeated: an operand of another shape is read again later
 *   by set       softmax and layer normalization work set by set (a row, a group): every sum over a set is taken before
 *                its first result is written, and no set is read for another's results
 *   in turn      a sum of many takes one operand after another: the first is used up when the second begins, the others
 *                are read after results were written, and so is the first if it is there twice
 *   in passes    batch normalization and its gradient sum over all rows first; the last pass goes by element
 *
 * A group writes an output when the member that makes it runs: every member that reads the operand must have run before,
 * or be that one and may overwrite it. Backends that run a group in passes read what they overwrite by element.
 *
 * A kind that moves numbers (transposing, slicing, padding, windows, products, recurrences) writes where others are
 * still read and is not there. The first output only: sums and statistics have bytes of their own.
 */
#include "plan/fit/overwrite.h"

#include "graph/group.h"

typedef enum { NEVER, BY_ELEMENT, BY_SET, IN_TURN, IN_PASSES } manner;

static manner manner_of(mf_op_kind kind, uint32_t in)
{
    switch (kind) {
    case MF_OP_CAST:
    case MF_OP_UNARY:
    case MF_OP_DROPOUT:
    case MF_OP_MASK_GRAD:        /* dy; the bits are no numbers of this shape */
    case MF_OP_PRELU:            /* x */
    case MF_OP_PRELU_GRAD:       /* dy, which dalpha's sums read in the same turn */
    case MF_OP_BATCH_NORM_INFER: /* x */
        return in == 0 ? BY_ELEMENT : NEVER;
    case MF_OP_UNARY_GRAD:
    case MF_OP_BINARY:
        return BY_ELEMENT;
    case MF_OP_SELECT: /* either value */
        return in > 0 ? BY_ELEMENT : NEVER;
    case MF_OP_SUM_N:
        return in == 0 ? IN_TURN : NEVER;
    case MF_OP_BINARY_GRAD: /* dy */
        return in == 0 ? BY_ELEMENT : NEVER;
    case MF_OP_SOFTMAX:
    case MF_OP_SOFTMAX_GRAD: /* dy */
    case MF_OP_LAYER_NORM:
    case MF_OP_LAYER_NORM_GRAD: /* dy */
    case MF_OP_LOSS_GRAD:       /* the prediction: the loss of a row is over its last axis */
        return in == 0 ? BY_SET : NEVER;
    case MF_OP_BATCH_NORM:
    case MF_OP_BATCH_NORM_GRAD:       /* dy */
    case MF_OP_BATCH_NORM_INFER_GRAD: /* dy */
        return in == 0 ? IN_PASSES : NEVER;
    default:
        return NEVER;
    }
}

static bool group_may(const mf_graph *graph, const mf_op *op, uint32_t out, uint32_t in)
{
    const mf_graph *inner = &op->attr.group->inner;
    const mf_tensor *from = &graph->tensors[op->in[in]], *to = &graph->tensors[op->out[out]];
    if (!mf_shape_equal(&from->shape, &to->shape) || from->dtype != to->dtype)
        return false;
    for (uint32_t i = 0; i < op->in_count; i++)
        if (i != in && op->in[i] != MF_NONE && graph->tensors[op->in[i]].storage == from->storage)
            return false;
    bool written = false;
    for (uint32_t m = 0; m < inner->op_count; m++) {
        const mf_op *member = &inner->ops[m];
        uint32_t at = MF_NONE;
        for (uint32_t k = 0; k < member->out_count; k++)
            at = member->out[k] == op->in_count + out ? k : at;
        for (uint32_t k = 0; k < member->in_count; k++)
            if (member->in[k] == in && (written || (at != MF_NONE && !mf_may_overwrite(inner, member, at, k))))
                return false;
        written |= at != MF_NONE;
    }
    return written;
}

bool mf_may_overwrite(const mf_graph *graph, const mf_op *op, uint32_t out, uint32_t in)
{
    if (op->kind == MF_OP_GROUP)
        return group_may(graph, op, out, in);
    manner how = out == 0 ? manner_of(op->kind, in) : NEVER;
    if (how == NEVER)
        return false;
    const mf_tensor *from = &graph->tensors[op->in[in]], *to = &graph->tensors[op->out[out]];
    if (!mf_shape_equal(&from->shape, &to->shape) || mf_dtype_bytes(from->dtype) != mf_dtype_bytes(to->dtype))
        return false;
    for (uint32_t i = 0; i < op->in_count;
         i++) /* what else lies in these bytes is read in the same turn, or not at all */
        if (i != in && op->in[i] != MF_NONE && graph->tensors[op->in[i]].storage == from->storage &&
            (how != BY_ELEMENT || manner_of(op->kind, i) != BY_ELEMENT ||
             graph->tensors[op->in[i]].offset != from->offset ||
             !mf_shape_equal(&graph->tensors[op->in[i]].shape, &to->shape)))
            return false;
    return true;
}
