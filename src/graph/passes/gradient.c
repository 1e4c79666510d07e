/*
 * gradient.c: the backward pass over any graph; rules per kind are in gradient_rules.c.
 *
 * With accumulators (pieces of a batch) a parameter's gradient lives in a variable. A part that was made for the
 * parameter alone by a kind that can add to its output does so directly: the part's storage becomes the variable's
 * ("adopted"). Any other part is added by one BINARY in place. What was tried and dropped: adding with SUM_N at the
 * end, which keeps every part alive until the last arrives.
 */
#include "graph/kinds/gradient.h"

static void add_part(mf_backward *w, uint32_t tensor, uint32_t part, bool own);

static bool differentiable(const mf_tensor *t)
{
    return t->dtype == MF_F32 || t->dtype == MF_F64 || t->dtype == MF_F16 || t->dtype == MF_BF16;
}

/* Forward: a tensor is wanted when its operation has a gradient and reads something wanted. */
static void spread_wanted(mf_backward *w)
{
    const mf_graph *g = w->b->graph;
    for (uint32_t i = 0; i < w->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (!mf_kind_rules_of(op->kind)->gradient || mf_kind(op->kind)->must_alias)
            continue;
        bool any = false;
        for (uint32_t k = 0; k < op->in_count && !any; k++)
            any = op->in[k] != MF_NONE && w->wanted[op->in[k]];
        for (uint32_t k = 0; any && k < op->out_count; k++)
            if (op->out[k] != MF_NONE && differentiable(&g->tensors[op->out[k]]))
                w->wanted[op->out[k]] = 1;
    }
}

bool mf_backward_begin(mf_backward *w, mf_build *b, uint32_t wanted_count, const uint32_t *wanted)
{
    mf_graph *g = b->graph;
    if (!mf_build_ok(b))
        return false;
    *w = (mf_backward){.b = b, .op_count = g->op_count, .tensor_count = g->tensor_count};
    w->gradient = MF_NEW_ARRAY(&g->arena, uint32_t, w->tensor_count + 1);
    w->wanted = MF_NEW_ARRAY(&g->arena, uint8_t, w->tensor_count + 1);
    w->owned = MF_NEW_ARRAY(&g->arena, uint8_t, w->tensor_count + 1);
    w->sloped = MF_NEW_ARRAY(&g->arena, uint8_t, w->tensor_count + 1);
    w->readers = MF_NEW_ARRAY(&g->arena, uint32_t, w->tensor_count + 1);
    if (!w->gradient || !w->wanted || !w->owned || !w->sloped || !w->readers) {
        mf_build_fail(b, MEMFIT_NO_HOST_MEMORY, "no host memory for the backward pass");
        return false;
    }
    for (uint32_t i = 0; i < w->tensor_count; i++)
        w->gradient[i] = MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++)
        for (uint32_t k = 0; k < g->ops[i].in_count; k++)
            if (g->ops[i].in[k] != MF_NONE)
                w->readers[g->ops[i].in[k]]++;
    for (uint32_t i = 0; i < wanted_count; i++)
        if (wanted[i] < w->tensor_count)
            w->wanted[wanted[i]] = 1;
    spread_wanted(w);
    return true;
}

/* Has this operation anything to do in the backward pass? */
static bool takes_part(const mf_backward *w, const mf_op *op)
{
    bool in = false, out = op->kind == MF_OP_LOSS;
    for (uint32_t k = 0; k < op->in_count && !in; k++)
        in = mf_backward_wants(w, op->in[k]);
    for (uint32_t k = 0; k < op->out_count && !out; k++)
        out = mf_backward_of(w, op->out[k]) != MF_NONE;
    return in && out && mf_kind_rules_of(op->kind)->gradient;
}

void mf_backward_run(mf_backward *w)
{
    mf_build *b = w->b;
    for (uint32_t i = w->op_count; i-- > 0 && mf_build_ok(b);) {
        mf_op op = b->graph->ops[i]; /* a copy: the array moves as it grows */
        b->layer = op.layer;
        b->phase = MF_BACKWARD;
        if (takes_part(w, &op))
            mf_kind_rules_of(op.kind)->gradient(w, &op);
        if (w->after && mf_build_ok(b))
            w->after(w->ctx, w, i);
    }
}

/* ---- summing ---- */

/* The operation that really wrote a tensor: views are looked through. */
static uint32_t writer(const mf_graph *g, uint32_t tensor)
{
    uint32_t op = g->tensors[tensor].producer;
    while (op != MF_NONE && g->ops[op].kind == MF_OP_VIEW)
        op = g->tensors[g->ops[op].in[0]].producer;
    return op;
}

/* Lets the writer of `part` add into the accumulator's storage. False when it cannot. */
static bool adopt(mf_backward *w, uint32_t part, uint32_t accumulator)
{
    mf_graph *g = w->b->graph;
    uint32_t op = writer(g, part), storage = g->tensors[part].storage;
    const mf_tensor *acc = &g->tensors[accumulator];
    if (op == MF_NONE || op < w->op_count || !mf_kind(g->ops[op].kind)->accumulates ||
        g->storages[storage].variable != MF_NONE || g->tensors[part].dtype != acc->dtype)
        return false;
    for (uint32_t i = g->tensor_count; i-- > w->tensor_count;)
        if (g->tensors[i].storage == storage) {
            g->tensors[i].storage = acc->storage;
            g->tensors[i].variable = acc->variable;
            if (g->tensors[i].producer == op)
                break;
        }
    g->ops[op].accumulate = true;
    return true;
}

static void accumulate(mf_backward *w, uint32_t tensor, uint32_t part, bool own)
{
    uint32_t acc = w->accumulator[tensor];
    if (!own || !adopt(w, part, acc)) {
        mf_attr attr = {.binary = {.function = MF_ADD}};
        mf_g_op_in_place(w->b, MF_OP_BINARY, &attr, 2, (uint32_t[]){acc, part}, 1, &acc);
    }
    w->gradient[tensor] = acc;
    w->owned[tensor] = 1;
}

static void add_part(mf_backward *w, uint32_t tensor, uint32_t part, bool own)
{
    if (part == MF_NONE || !mf_backward_wants(w, tensor) || !mf_build_ok(w->b))
        return;
    if (w->accumulator && w->accumulator[tensor] != MF_NONE) {
        accumulate(w, tensor, part, own);
        return;
    }
    uint32_t before = w->gradient[tensor];
    w->gradient[tensor] = before == MF_NONE ? part : mf_g_binary(w->b, MF_ADD, before, part);
    w->owned[tensor] = before == MF_NONE ? own : 1;
}

void mf_backward_give(mf_backward *w, uint32_t tensor, uint32_t part)
{
    add_part(w, tensor, part, true);
}

void mf_backward_pass(mf_backward *w, uint32_t tensor, uint32_t part)
{
    add_part(w, tensor, part, false);
}

void mf_backward_reduce(mf_backward *w, uint32_t tensor, uint32_t part, bool own)
{
    if (part == MF_NONE || !mf_backward_wants(w, tensor) || !mf_build_ok(w->b))
        return;
    mf_shape from = mf_g_shape(w->b, part), to = mf_g_shape(w->b, tensor);
    uint32_t axes = 0, skip = from.rank - to.rank;
    for (uint32_t i = 0; i < from.rank; i++)
        if (i < skip || (to.dim[i - skip] == 1 && from.dim[i] != 1))
            axes |= 1u << i;
    if (axes) {
        part = mf_g_reduce(w->b, MF_REDUCE_SUM, part, axes, false);
        own = true;
    }
    add_part(w, tensor, mf_g_view(w->b, part, to), own);
}

void mf_g_backward(mf_build *b, uint32_t count, const uint32_t *y, const uint32_t *dy, uint32_t wanted_count,
                   const uint32_t *wanted, uint32_t *gradients)
{
    mf_backward w;
    uint8_t phase = b->phase;
    uint32_t layer = b->layer;
    for (uint32_t i = 0; i < wanted_count; i++)
        gradients[i] = MF_NONE;
    if (!mf_backward_begin(&w, b, wanted_count, wanted))
        return;
    for (uint32_t i = 0; i < count; i++)
        mf_backward_pass(&w, y[i], dy[i]);
    mf_backward_run(&w);
    for (uint32_t i = 0; i < wanted_count; i++)
        gradients[i] = mf_backward_of(&w, wanted[i]);
    b->phase = phase;
    b->layer = layer;
}
