/*
 * narrow.c: losses read predictions in 16 bits where only they read them as float32.
 *
 *     y (bf16) -> cast -> z (f32) -> loss              y (bf16) -> loss
 *                            └-----> loss_grad -> dz (f32) -> cast -> dy (bf16)       y -> loss_grad -> dy (bf16)
 *
 * The numbers are the same: every backend computes losses in float32 or more from whatever type it reads, a cast up is
 * exact, and a slope is rounded once on its way to 16 bits as before. What it saves is two tensors of float32 as large as
 * the predictions: for a language model the largest of the step. It is done for backends that ask for it, with groups.
 */
#include "graph/passes/narrow.h"

#include "graph/kinds/kinds.h"

typedef struct narrowing {
    mf_graph *g;
    uint32_t *touched, *last; /* by storage: how many operations touch it, the last that writes it */
    uint8_t *gone;
} narrowing;

static bool is_narrow(mf_dtype dtype)
{
    return dtype == MF_BF16 || dtype == MF_F16;
}

static bool is_output(const mf_graph *g, uint32_t tensor)
{
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE && g->tensors[g->outputs[i]].storage == g->tensors[tensor].storage)
            return true;
    return false;
}

static bool is_plain_cast(const mf_op *op)
{
    return op->kind == MF_OP_CAST && !op->accumulate && !op->chunked && op->when == MF_ALWAYS;
}

/* The cast that alone reads a loss's slopes; MF_NONE. */
static uint32_t cast_behind(const narrowing *n, uint32_t loss_grad, mf_dtype dtype)
{
    const mf_graph *g = n->g;
    uint32_t slopes = g->ops[loss_grad].out[0];
    if (n->touched[g->tensors[slopes].storage] != 2 || is_output(g, slopes))
        return MF_NONE;
    for (uint32_t i = loss_grad + 1; i < g->op_count; i++)
        if (!n->gone[i] && is_plain_cast(&g->ops[i]) && g->ops[i].in[0] == slopes)
            return g->tensors[g->ops[i].out[0]].dtype == dtype ? i : MF_NONE;
    return MF_NONE;
}

/* Operations that read the float32 tensor as predictions, or MF_NONE in `readers`' place when anything else does. */
static uint32_t find_readers(const narrowing *n, uint32_t cast, uint32_t *readers, uint32_t most)
{
    const mf_graph *g = n->g;
    uint32_t wide = g->ops[cast].out[0], found = 0;
    for (uint32_t i = cast + 1; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        bool reads = (op->kind == MF_OP_LOSS || op->kind == MF_OP_LOSS_GRAD) && op->in[0] == wide && !op->chunked;
        for (uint32_t k = 1; k < op->in_count; k++)
            reads &= op->in[k] != wide;
        if (reads && found < most)
            readers[found++] = i;
    }
    /* the cast and these are all that touch it */
    return n->touched[g->tensors[wide].storage] == found + 1 ? found : 0;
}

static void narrow_one(narrowing *n, uint32_t cast)
{
    enum { MOST = 8 };
    mf_graph *g = n->g;
    uint32_t readers[MOST], behind[MOST], from = g->ops[cast].in[0], wide = g->ops[cast].out[0];
    if (!is_narrow(g->tensors[from].dtype) || g->tensors[wide].dtype != MF_F32 || is_output(g, wide) ||
        g->storages[g->tensors[wide].storage].variable != MF_NONE ||
        g->storages[g->tensors[from].storage].variable != MF_NONE || n->last[g->tensors[from].storage] > cast)
        return;
    uint32_t count = find_readers(n, cast, readers, MOST);
    for (uint32_t i = 0; i < count; i++) {
        behind[i] = MF_NONE;
        if (g->ops[readers[i]].kind == MF_OP_LOSS_GRAD) {
            behind[i] = cast_behind(n, readers[i], g->tensors[from].dtype);
            if (behind[i] == MF_NONE)
                return;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        g->ops[readers[i]].in[0] = from;
        if (behind[i] == MF_NONE)
            continue;
        uint32_t slopes = g->ops[behind[i]].out[0];
        g->ops[readers[i]].out[0] = slopes;
        g->tensors[slopes].producer = readers[i];
        n->gone[behind[i]] = 1;
    }
    n->gone[cast] = count > 0;
}

bool mf_graph_narrow(mf_graph *g, uint8_t *gone)
{
    narrowing n = {.g = g, .gone = gone};
    n.touched = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1);
    n.last = MF_NEW_ARRAY(&g->arena, uint32_t, g->storage_count + 1);
    if (!n.touched || !n.last)
        return false;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
            uint32_t t = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
            if (t == MF_NONE)
                continue;
            n.touched[g->tensors[t].storage]++;
            if (k >= op->in_count && op->kind != MF_OP_VIEW)
                n.last[g->tensors[t].storage] = i;
        }
    }
    for (uint32_t i = 0; i < g->op_count; i++)
        if (is_plain_cast(&g->ops[i]) && !gone[i])
            narrow_one(&n, i);
    return true;
}
