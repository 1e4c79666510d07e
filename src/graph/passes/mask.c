/*
 * mask.c: an activation that backward needs only for its slope is kept as one bit for each number.
 *
 *     conv -> relu -> z -> pad             backward of relu reads z: 32 bits for one that matters
 *                     |
 *                     +--> mask -> bits    backward reads the bits; z goes as soon as it is copied
 *
 * The products are the same bits as before: dy * 1 or dy * 0, and reading the bits in place of z pays for writing them.
 * It is done where nothing else in the backward pass reads z. A convolution behind the activation does (its weight
 * gradient), so plain chains gain nothing, nor does U-Net, whose weight gradients read the parts of a concatenation.
 * What is copied before it is used gains: padded (MobileNet: an eighth of what it keeps), joined and read elsewhere
 * (Inception), averaged, resized. Maximum pooling right behind an activation needs neither (gradient_rules_more.c),
 * and dropout draws its mask again from its key.
 *
 * Runs after the backward pass, when all readers are known.
 */
#include "graph/build.h"

#include <string.h>

/* Readers in the backward part or after it, by storage. */
static uint32_t *count_late_readers(mf_graph *g)
{
    uint32_t *late = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1);
    for (uint32_t i = 0; late && i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count && g->ops[i].phase >= MF_BACKWARD; k++)
            if (g->ops[i].in[k] != MF_NONE && g->ops[i].kind != MF_OP_VIEW)
                late[g->tensors[g->ops[i].in[k]].storage]++;
    return late;
}

/* May the mask stand in for what this operation reads? */
static bool is_slope_only(const mf_graph *g, const mf_op *op, const uint32_t *late, uint64_t least)
{
    if (op->kind != MF_OP_UNARY_GRAD || !op->attr.unary.from_output ||
        (op->attr.unary.function != MF_UNARY_RELU && op->attr.unary.function != MF_UNARY_RELU6))
        return false;
    const mf_tensor *z = &g->tensors[op->in[1]];
    return z->variable == MF_NONE && late[z->storage] == 1 && z->producer != MF_NONE &&
           g->ops[z->producer].phase == MF_FORWARD && mf_shape_count(&z->shape) >= least;
}

/* Puts the masks, which stand at the end from `first` on, behind the operations whose results they read. */
static void put_in_order(mf_graph *g, uint32_t first, uint32_t *number, mf_op *ops)
{
    uint32_t made = 0;
    for (uint32_t i = 0; i < first; i++) {
        ops[made] = g->ops[i];
        number[i] = made++;
        for (uint32_t m = first; m < g->op_count; m++)
            if (g->tensors[g->ops[m].in[0]].producer == i) {
                ops[made] = g->ops[m];
                number[m] = made++;
            }
    }
    memcpy(g->ops, ops, made * sizeof *ops);
    for (uint32_t i = 0; i < g->tensor_count; i++)
        if (g->tensors[i].producer != MF_NONE)
            g->tensors[i].producer = number[g->tensors[i].producer];
}

void mf_g_mask(mf_build *b, uint64_t least)
{
    mf_graph *g = b->graph;
    if (!mf_build_ok(b))
        return;
    uint32_t first = g->op_count, *late = count_late_readers(g);
    for (uint32_t i = 0; late && i < first && mf_build_ok(b); i++) {
        if (!is_slope_only(g, &g->ops[i], late, least))
            continue;
        uint32_t z = g->ops[i].in[1];
        mf_attr attr = g->ops[i].attr;
        b->phase = MF_FORWARD;
        b->layer = g->ops[g->tensors[z].producer].layer;
        uint32_t bits = mf_g_op(b, MF_OP_MASK, &attr, 1, &z, 1, NULL, NULL);
        g->ops[i].kind = MF_OP_MASK_GRAD; /* the array may have moved */
        g->ops[i].in[1] = bits;
    }
    uint32_t *number = MF_NEW_ARRAY(&g->arena, uint32_t, g->op_count + 1);
    mf_op *ops = MF_NEW_ARRAY(&g->arena, mf_op, g->op_count + 1);
    if (!late || !number || !ops)
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the step graph");
    if (mf_build_ok(b) && g->op_count > first)
        put_in_order(g, first, number, ops);
}
