/*
 * narrow_feeds.c: an input of float32 that is only read to be made bfloat16 arrives as bfloat16.
 *
 *     x (f32) -> cast -> y (bf16) -> conv ...            y (bf16) -> conv ...
 *
 * Whoever fills the feed converts each number as it copies it, rounding as the cast would: the same bits, half of them to send
 * and to keep. Not for float16, in which a number may be no number any more: the cast is where that is seen to (loss scaling).
 * It is done for backends whose memory inputs must be sent to.
 */
#include "graph/passes/narrow_feeds.h"

#include "graph/passes/touched.h"

static bool is_output(const mf_graph *g, uint32_t storage)
{
    for (uint32_t i = 0; i < g->output_count; i++)
        if (g->outputs[i] != MF_NONE && g->tensors[g->outputs[i]].storage == storage)
            return true;
    return false;
}

static bool is_own(const mf_graph *g, uint32_t tensor)
{
    const mf_tensor *t = &g->tensors[tensor];
    return t->offset == 0 && g->storages[t->storage].variable == MF_NONE && !is_output(g, t->storage);
}

/* The input operation and the one cast that reads it. */
static bool find_pair(const mf_graph *g, uint32_t wide, uint32_t *input, uint32_t *cast)
{
    *input = *cast = MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_INPUT && op->out[0] == wide)
            *input = i;
        else if (op->kind == MF_OP_CAST && op->in[0] == wide)
            *cast = i;
    }
    return *input != MF_NONE && *cast != MF_NONE && *input < *cast;
}

static void narrow_one(mf_graph *g, const uint32_t *touched, mf_feed *feed, uint8_t *gone)
{
    uint32_t wide = feed->tensor, input, cast;
    if (feed->front || g->tensors[wide].dtype != MF_F32 || touched[g->tensors[wide].storage] != 2 || !is_own(g, wide) ||
        !find_pair(g, wide, &input, &cast) || gone[cast])
        return;
    const mf_op *op = &g->ops[cast];
    uint32_t narrow = op->out[0];
    if (g->tensors[narrow].dtype != MF_BF16 || !is_own(g, narrow) || op->accumulate || op->chunked ||
        op->when != g->ops[input].when)
        return;
    g->ops[input].out[0] = feed->tensor = narrow;
    g->tensors[narrow].producer = input;
    g->storages[g->tensors[narrow].storage].kind = g->storages[g->tensors[wide].storage].kind;
    gone[cast] = 1;
}

bool mf_graph_narrow_feeds(mf_graph *g, uint8_t *gone)
{
    const uint32_t *touched = mf_graph_touched(g);
    if (!touched)
        return false;
    for (uint32_t i = 0; i < g->feed_count; i++)
        narrow_one(g, touched, &g->feeds[i], gone);
    return true;
}
