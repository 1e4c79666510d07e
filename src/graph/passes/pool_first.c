/*
 * pool_first.c: an activation between an operation and a maximum pooling moves behind the pooling.
 *
 *     x -> relu -> z -> pool_max -> y, winners            x -> pool_max -> z', winners -> relu -> y
 *
 * The largest of what RELU or RELU6 made is what they make of the largest, to the bit. Winners may differ only among places
 * that are equal behind the activation and not before it: where it is flat, so that no gradient goes there. What it saves is
 * one pass over the large tensor, forward, and its bytes.
 */
#include "graph/passes/pool_first.h"

#include "graph/passes/touched.h"

static bool is_plain(const mf_op *op, mf_op_kind kind)
{
    return op->kind == kind && !op->accumulate && !op->chunked && op->when == MF_ALWAYS;
}

static bool is_output(const mf_graph *g, uint32_t storage)
{
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE && g->tensors[g->outputs[i]].storage == storage)
            return true;
    return false;
}

/* The activation that alone stands before this pooling; MF_NONE. */
static uint32_t activation_before(const mf_graph *g, const uint32_t *touched, uint32_t pool)
{
    const mf_op *op = &g->ops[pool];
    if (!is_plain(op, MF_OP_POOL_MAX))
        return MF_NONE;
    const mf_tensor *z = &g->tensors[op->in[0]], *y = &g->tensors[op->out[0]];
    uint32_t from = z->producer;
    if (from == MF_NONE || from >= pool || !is_plain(&g->ops[from], MF_OP_UNARY) || touched[z->storage] != 2 ||
        is_output(g, z->storage))
        return MF_NONE;
    const mf_op *f = &g->ops[from];
    const mf_tensor *x = &g->tensors[f->in[0]];
    bool flat = f->attr.unary.function == MF_UNARY_RELU || f->attr.unary.function == MF_UNARY_RELU6;
    bool own = g->storages[z->storage].variable == MF_NONE && g->storages[y->storage].variable == MF_NONE &&
               z->offset == 0 && y->offset == 0 && f->phase == op->phase;
    return flat && own && x->dtype == z->dtype && z->dtype == y->dtype &&
                   mf_shape_count(&y->shape) * 2 <= mf_shape_count(&z->shape)
               ? from
               : MF_NONE;
}

/* Each takes the other's place; z becomes what the pooling makes. */
static void exchange(mf_graph *g, uint32_t first, uint32_t second)
{
    mf_op f = g->ops[first], pool = g->ops[second];
    uint32_t x = f.in[0], z = f.out[0], y = pool.out[0];
    pool.in[0] = x;
    pool.out[0] = z;
    f.in[0] = z;
    f.out[0] = y;
    g->ops[first] = pool;
    g->ops[second] = f;
    g->tensors[z].shape = g->tensors[y].shape;
    g->storages[g->tensors[z].storage].bytes = g->storages[g->tensors[y].storage].bytes;
    g->tensors[y].producer = second;
    for (uint32_t i = 1; i < pool.out_count; i++)
        if (pool.out[i] != MF_NONE)
            g->tensors[pool.out[i]].producer = first;
}

bool mf_graph_pool_first(mf_graph *g)
{
    const uint32_t *touched = mf_graph_touched(g);
    if (!touched)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        uint32_t before = activation_before(g, touched, i);
        if (before != MF_NONE)
            exchange(g, before, i);
    }
    return true;
}
