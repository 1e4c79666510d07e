/* gradient_rules_more.c: gradients of windows, normalization, recurrence and losses. */
#include "graph/gradient.h"

#define UNKNOWN ((mf_typed){.shape = {.rank = MF_NONE}})

static mf_typed when(bool wanted)
{
    mf_typed t = UNKNOWN;
    t.absent = !wanted;
    return t;
}

void mf_gradient_prelu(mf_backward *w, const mf_op *op)
{
    uint32_t in[3] = {mf_backward_of(w, op->out[0]), op->in[0], op->in[1]}, out[2];
    mf_typed types[2] = {when(mf_backward_wants(w, op->in[0])), when(mf_backward_wants(w, op->in[1]))};
    mf_g_op(w->b, MF_OP_PRELU_GRAD, NULL, 3, in, 2, types, out);
    mf_backward_give(w, op->in[1], out[1]);
    mf_backward_give(w, op->in[0], out[0]);
}

/* The activation right before a maximum pooling, when nothing else reads what it makes: RELU or RELU6, alone or as part
 * of a normalization, with zeros padded round it or not. *tensor is what it makes; LINEAR when there is none. */
static mf_unary activation_before(const mf_backward *w, uint32_t x, uint32_t *tensor)
{
    const mf_graph *g = w->b->graph;
    uint32_t from = g->tensors[x].producer;
    if (w->readers[x] == 1 && from != MF_NONE && g->ops[from].kind == MF_OP_PAD && g->ops[from].attr.pad.mode == 0 &&
        g->ops[from].attr.pad.value == 0) {
        x = g->ops[from].in[0];
        from = g->tensors[x].producer;
    }
    if (w->readers[x] != 1 || from == MF_NONE || from >= w->op_count || g->ops[from].out[0] != x)
        return MF_UNARY_LINEAR;
    const mf_op *op = &g->ops[from];
    bool norm = op->kind == MF_OP_BATCH_NORM || op->kind == MF_OP_BATCH_NORM_INFER;
    mf_unary f = op->kind == MF_OP_UNARY ? op->attr.unary.function : norm ? op->attr.norm.activation : MF_UNARY_LINEAR;
    *tensor = x;
    return f == MF_UNARY_RELU || f == MF_UNARY_RELU6 ? f : MF_UNARY_LINEAR;
}

/*
 * A pooled activation: the slope of RELU at a window's winner is known from the pooled value, which is the winner's
 * own, and everyone else's gradient is zero anyway. So the slope can be applied to the few pooled gradients before they
 * are spread, and what the activation made, the largest result of many networks, is not needed by backward at all.
 */
static uint32_t slope_first(mf_backward *w, const mf_op *op, uint32_t dy)
{
    uint32_t made = MF_NONE, y = op->out[0];
    mf_unary f = w->b->plain ? MF_UNARY_LINEAR : activation_before(w, op->in[0], &made);
    mf_shape large = mf_g_shape(w->b, op->in[0]), small = mf_g_shape(w->b, y);
    if (f == MF_UNARY_LINEAR || mf_shape_count(&small) * 2 > mf_shape_count(&large))
        return dy;
    w->sloped[made] = 1;
    mf_attr attr = {.unary = {.function = f, .from_output = true}};
    return mf_g_op(w->b, MF_OP_UNARY_GRAD, &attr, 2, (uint32_t[]){dy, y}, 1, NULL, NULL);
}

void mf_gradient_pool_max(mf_backward *w, const mf_op *op)
{
    mf_typed x = {.dtype = mf_g_dtype(w->b, op->in[0]), .shape = mf_g_shape(w->b, op->in[0])};
    uint32_t in[2] = {slope_first(w, op, mf_backward_of(w, op->out[0])), op->out[1]};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_POOL_MAX_GRAD, &op->attr, 2, in, 1, &x, NULL));
}

void mf_gradient_pool_avg(mf_backward *w, const mf_op *op)
{
    mf_typed x = {.dtype = mf_g_dtype(w->b, op->in[0]), .shape = mf_g_shape(w->b, op->in[0])};
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_POOL_AVG_GRAD, &op->attr, 1, &dy, 1, &x, NULL));
}

/* dy, x, two statistics, gamma -> dx, dgamma, dbeta; the same operands for all three kinds. */
static void norm_gradient(mf_backward *w, const mf_op *op, mf_op_kind kind, uint32_t first, uint32_t second)
{
    uint32_t x = op->in[0], gamma = op->in[1], beta = op->in[2], out[3];
    uint32_t dy = mf_backward_of(w, op->out[0]);
    mf_attr attr = op->attr;
    if (attr.norm.activation != MF_UNARY_LINEAR && !w->sloped[op->out[0]]) {
        mf_attr slope = {.unary = {.function = attr.norm.activation, .from_output = true}};
        dy = mf_g_op(w->b, MF_OP_UNARY_GRAD, &slope, 2, (uint32_t[]){dy, op->out[0]}, 1, NULL, NULL);
    }
    attr.norm.activation = MF_UNARY_LINEAR;
    uint32_t in[5] = {dy, x, first, second, gamma};
    mf_typed types[3] = {when(mf_backward_wants(w, x)), when(mf_backward_wants(w, gamma)),
                         when(mf_backward_wants(w, beta))};
    mf_g_op(w->b, kind, &attr, 5, in, 3, types, out);
    mf_backward_give(w, gamma, out[1]);
    mf_backward_give(w, beta, out[2]);
    mf_backward_give(w, x, out[0]);
}

void mf_gradient_batch_norm(mf_backward *w, const mf_op *op)
{
    norm_gradient(w, op, MF_OP_BATCH_NORM_GRAD, op->out[1], op->out[2]);
}

void mf_gradient_batch_norm_infer(mf_backward *w, const mf_op *op)
{
    norm_gradient(w, op, MF_OP_BATCH_NORM_INFER_GRAD, op->in[3], op->in[4]);
}

void mf_gradient_layer_norm(mf_backward *w, const mf_op *op)
{
    norm_gradient(w, op, MF_OP_LAYER_NORM_GRAD, op->out[1], op->out[2]);
}

/* ---- recurrent ---- */

/* Of its steps a recurrent layer keeps values, not what the activations were given: their slopes must follow from
 * these. */
static void check_slopes(mf_backward *w, const mf_op *op)
{
    mf_graph *g = w->b->graph;
    const mf_unary f[2] = {op->attr.rnn.activation, op->attr.rnn.recurrent_activation};
    for (int i = 0; i < (op->kind == MF_OP_SIMPLE_RNN ? 1 : 2); i++)
        if (!mf_unary_from_output(f[i]) && f[i] != MF_UNARY_LINEAR && f[i] != MF_UNARY_SOFTPLUS) {
            g->left_out = mf_arena_printf(&g->arena,
                                          "a recurrent layer (%s) with an activation other than tanh, sigmoid, relu, "
                                          "elu, selu, softplus, hard_sigmoid or linear",
                                          op->layer < g->layer_count ? g->layers[op->layer].name : "?");
            if (!g->left_out)
                mf_build_fail(w->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the gradients");
        }
}

void mf_gradient_lstm(mf_backward *w, const mf_op *op)
{
    check_slopes(w, op);
    uint32_t h0 = op->in[2], c0 = op->in[3], out[4];
    uint32_t in[10] = {mf_backward_of(w, op->out[0]),
                       op->out[0],
                       op->out[1],
                       op->out[2],
                       op->in[1],
                       h0,
                       c0,
                       op->in[4],
                       mf_backward_of(w, op->out[3]),
                       mf_backward_of(w, op->out[4])};
    mf_typed types[4] = {UNKNOWN, when(mf_backward_wants(w, op->in[1])), when(mf_backward_wants(w, h0)),
                         when(mf_backward_wants(w, c0))};
    mf_g_op(w->b, MF_OP_LSTM_GRAD, &op->attr, 10, in, 4, types, out);
    mf_backward_give(w, op->in[1], out[1]);
    mf_backward_give(w, h0, out[2]);
    mf_backward_give(w, c0, out[3]);
    mf_backward_give(w, op->in[0], out[0]);
}

void mf_gradient_gru(mf_backward *w, const mf_op *op)
{
    check_slopes(w, op);
    uint32_t u = op->in[1], bias = op->in[2], h0 = op->in[3], out[4];
    uint32_t in[8] = {mf_backward_of(w, op->out[0]), op->out[0], op->out[1], u, bias, h0, op->in[4],
                      mf_backward_of(w, op->out[2])};
    mf_typed types[4] = {UNKNOWN, when(mf_backward_wants(w, u)), when(mf_backward_wants(w, bias)),
                         when(mf_backward_wants(w, h0))};
    mf_g_op(w->b, MF_OP_GRU_GRAD, &op->attr, 8, in, 4, types, out);
    mf_backward_give(w, u, out[1]);
    mf_backward_give(w, bias, out[2]);
    mf_backward_give(w, h0, out[3]);
    mf_backward_give(w, op->in[0], out[0]);
}

void mf_gradient_simple_rnn(mf_backward *w, const mf_op *op)
{
    check_slopes(w, op);
    uint32_t u = op->in[1], h0 = op->in[2], out[3];
    uint32_t in[6] = {mf_backward_of(w, op->out[0]), op->out[0], u, h0, op->in[3], mf_backward_of(w, op->out[1])};
    mf_typed types[3] = {UNKNOWN, when(mf_backward_wants(w, u)), when(mf_backward_wants(w, h0))};
    mf_g_op(w->b, MF_OP_SIMPLE_RNN_GRAD, &op->attr, 6, in, 3, types, out);
    mf_backward_give(w, u, out[1]);
    mf_backward_give(w, h0, out[2]);
    mf_backward_give(w, op->in[0], out[0]);
}

/* ---- losses: where the backward pass begins ---- */

void mf_gradient_loss(mf_backward *w, const mf_op *op)
{
    uint32_t in[3] = {op->in[0], op->in[1], op->in[2]};
    mf_backward_give(w, op->in[0], mf_g_op(w->b, MF_OP_LOSS_GRAD, &op->attr, 3, in, 1, NULL, NULL));
}
