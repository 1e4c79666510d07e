/*
 * eager_garbage.c: tensors that nobody uses and Python still holds. Keras's torch backend walks the arguments of a layer
 * with torch.utils._pytree, whose recursive helper is a closure in its own cell: a cycle, and the walk's `is_leaf` in it
 * holds what was walked. So the input of a model, and those of a layer that is called with several, live until the
 * collector runs, which is when 700 objects more were made than freed. That comes many times in a large model's forward
 * pass, never in a backward pass, and not even once a step in a small one.
 *
 * When it runs is chance: in a large model everything is found as late as it can be, in a small one the collector has turns
 * from several beginnings, and many of them in a long training (eager.c). What is in use while it runs counts as old, and the
 * old is looked at every tenth time only: such a layer's inputs stay for steps.
 *
 * Objects that a layer leaves were counted with the collector off (gc.get_count(), Keras 3.15 on Python 3.11): a convolution
 * leaves 72, two tensors that are added 197, most layers 15, a step 118 beside them (30 are counted as layers here). What is
 * freed after a turn counts against the next, so about 840 are left between two: then a model of four layers holds four
 * inputs at most and one of seven three, as in 60 steps that were watched.
 */
#include "plan/frameworks/eager.h"

enum { COLLECTED_AT = 840, OLD_AT = 8400, OF_A_LAYER = 15, OF_INPUTS = 100, OF_AN_INPUT = 41, OF_A_STEP = 88 };

/* Beside those of every layer. */
static uint64_t left_by(const mf_graph *g, const mf_op *op)
{
    if (op->kind == MF_OP_CONV || op->kind == MF_OP_CONV_GRAD_DATA ||
        (op->kind == MF_OP_SOFTMAX && g->tensors[op->out[0]].shape.rank == 4)) /* of attention */
        return 57;
    return op->kind == MF_OP_BATCH_NORM || op->kind == MF_OP_DROPOUT ? 14 : 0;
}

static void made(mf_eager *e, uint64_t objects)
{
    mf_eager_garbage *x = &e->garbage;
    x->objects += objects;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->count; i++)
        if (x->until[i] <= x->objects) {
            mf_tape_drop(e->tape, x->block[i]);
        } else {
            x->block[kept] = x->block[i];
            x->until[kept++] = x->until[i];
        }
    x->count = kept;
}

/* Until the collector comes, which is whenever so many objects more were made. */
static void add(mf_eager *e, uint32_t block, uint64_t objects)
{
    mf_eager_garbage *x = &e->garbage;
    if (block == MF_NONE || x->count == MF_EAGER_HELD)
        return;
    mf_tape_hold(e->tape, block);
    x->block[x->count] = block;
    x->until[x->count++] = x->late ? x->objects + objects : (x->objects / objects + 1) * objects;
}

void mf_eager_garbage_layer(mf_eager *e)
{
    made(e, OF_A_LAYER);
}

void mf_eager_garbage_step(mf_eager *e)
{
    made(e, OF_A_STEP);
}

static bool from_elsewhere(const mf_eager *e, const mf_op *op, uint32_t tensor)
{
    const mf_graph *g = e->graph;
    if (tensor == MF_NONE || g->tensors[tensor].variable != MF_NONE || g->tensors[tensor].producer == MF_NONE)
        return false;
    return g->ops[g->tensors[tensor].producer].layer != op->layer;
}

void mf_eager_garbage_inputs(mf_eager *e, const mf_op *op)
{
    if (op->kind == MF_OP_INPUT) {
        add(e, e->value[op->out[0]], COLLECTED_AT);
        return;
    }
    uint32_t inputs = 0;
    for (uint32_t k = 0; k < op->in_count; k++)
        inputs += from_elsewhere(e, op, op->in[k]);
    if (inputs < 2) {
        made(e, left_by(e->graph, op));
        return;
    }
    uint64_t before = e->garbage.objects, after = before + OF_INPUTS + (uint64_t)inputs * OF_AN_INPUT;
    bool in_use = before / COLLECTED_AT != after / COLLECTED_AT;
    for (uint32_t k = 0; k < op->in_count; k++)
        if (from_elsewhere(e, op, op->in[k]))
            add(e, e->value[op->in[k]], in_use ? OLD_AT : COLLECTED_AT);
    made(e, after - before);
}
