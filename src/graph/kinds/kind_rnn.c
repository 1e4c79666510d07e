/*
 * kind_rnn.c: recurrent kinds; shapes, then gradients.
 */
#include "graph/kinds/gradient.h"
#include "graph/kinds/shape_rules.h"

/* gates per unit in z and in the saved gates */
static void rnn_gates(mf_op_kind kind, int64_t *z, int64_t *saved)
{
    *z = kind == MF_OP_LSTM || kind == MF_OP_LSTM_GRAD ? 4 : kind == MF_OP_GRU || kind == MF_OP_GRU_GRAD ? 3 : 1;
    *saved = *z == 1 ? 0 : 4;
}

/* An operand that may be absent must have this shape. */
static memfit_status check_operand(const mf_typing *t, uint32_t i, const char *name, const mf_shape *shape)
{
    const mf_tensor *x = mf_rule_in(t, i);
    char found[128], wanted[128];
    if (!x || mf_shape_equal(&x->shape, shape))
        return MEMFIT_OK;
    return mf_rule_bad(t, "%s is %s and must be %s", name, mf_shape_format(&x->shape, found, sizeof found),
                       mf_shape_format(shape, wanted, sizeof wanted));
}

/* States, mask and the recurrent bias, wherever the kind has them. */
static memfit_status check_operands(const mf_typing *t, const mf_shape *state, int64_t steps, int64_t gates)
{
    bool lstm = t->op->kind == MF_OP_LSTM, gru = t->op->kind == MF_OP_GRU;
    uint32_t h0 = gru ? 3 : 2, mask_at = lstm || gru ? 4 : 3;
    mf_shape mask = {.rank = 2, .dim = {state->dim[0], steps}};
    mf_shape bias = {.rank = 1, .dim = {gates * state->dim[1]}};
    memfit_status s = check_operand(t, h0, "the initial state", state);
    if (!s && lstm)
        s = check_operand(t, 3, "the initial cell", state);
    if (!s && gru)
        s = check_operand(t, 2, "the recurrent bias", &bias);
    if (!s)
        s = check_operand(t, mask_at, "the mask", &mask);
    const mf_tensor *m = mf_rule_in(t, mask_at);
    return !s && m && m->dtype != MF_U8 ? mf_rule_bad(t, "the mask is not of bytes") : s;
}

memfit_status mf_shape_rnn(mf_typing *t)
{
    const mf_tensor *z = mf_rule_in(t, 0), *u = mf_rule_in(t, 1);
    int64_t gates, saved;
    rnn_gates(t->op->kind, &gates, &saved);
    if (!z || !u || z->shape.rank != 3 || u->shape.rank != 2 || u->shape.dim[1] != gates * u->shape.dim[0] ||
        z->shape.dim[2] != u->shape.dim[1])
        return mf_rule_bad(t, "needs z (N, T, %lld*units) and u (units, %lld*units)", (long long)gates,
                           (long long)gates);
    int64_t n = z->shape.dim[0], steps = z->shape.dim[1], units = u->shape.dim[0];
    mf_shape sequence = {.rank = 3, .dim = {n, steps, units}}, last = {.rank = 2, .dim = {n, units}};
    mf_shape kept = {.rank = 3, .dim = {n, steps, saved * units}};
    memfit_status s = check_operands(t, &last, steps, gates);
    if (!s)
        s = mf_rule_give(t, 0, z->dtype, &sequence);
    if (t->op->kind == MF_OP_SIMPLE_RNN)
        return s ? s : mf_rule_give(t, 1, z->dtype, &last);
    if (!s)
        s = mf_rule_give(t, 1, z->dtype, &kept);
    if (t->op->kind == MF_OP_GRU)
        return s ? s : mf_rule_give(t, 2, z->dtype, &last);
    if (!s)
        s = mf_rule_give(t, 2, z->dtype, &sequence);
    for (uint32_t i = 3; i < 5 && !s; i++)
        s = mf_rule_give(t, i, z->dtype, &last);
    return s;
}

memfit_status mf_shape_rnn_grad(mf_typing *t)
{
    uint32_t u_at = t->op->kind == MF_OP_LSTM_GRAD ? 4 : t->op->kind == MF_OP_GRU_GRAD ? 3 : 2;
    const mf_tensor *h = mf_rule_in(t, 1), *u = mf_rule_in(t, u_at);
    int64_t gates, saved;
    rnn_gates(t->op->kind, &gates, &saved);
    if (!h || !u || h->shape.rank != 3 || u->shape.rank != 2)
        return mf_rule_bad(t, "needs h and u");
    int64_t n = h->shape.dim[0], units = u->shape.dim[0];
    mf_shape dz = {.rank = 3, .dim = {n, h->shape.dim[1], gates * units}}, state = {.rank = 2, .dim = {n, units}};
    memfit_status s = mf_rule_give(t, 0, h->dtype, &dz);
    if (!s)
        s = mf_rule_give(t, 1, u->dtype, &u->shape);
    if (!s && t->op->kind == MF_OP_GRU_GRAD)
        s = mf_rule_give(t, 2, u->dtype, &(mf_shape){.rank = 1, .dim = {gates * units}});
    else if (!s)
        s = mf_rule_give(t, 2, h->dtype, &state);
    return s || t->op->out_count < 4 ? s : mf_rule_give(t, 3, h->dtype, &state);
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
    mf_typed types[4] = {mf_typed_when(true), mf_typed_when(mf_backward_wants(w, op->in[1])),
                         mf_typed_when(mf_backward_wants(w, h0)), mf_typed_when(mf_backward_wants(w, c0))};
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
    mf_typed types[4] = {mf_typed_when(true), mf_typed_when(mf_backward_wants(w, u)),
                         mf_typed_when(mf_backward_wants(w, bias)), mf_typed_when(mf_backward_wants(w, h0))};
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
    mf_typed types[3] = {mf_typed_when(true), mf_typed_when(mf_backward_wants(w, u)),
                         mf_typed_when(mf_backward_wants(w, h0))};
    mf_g_op(w->b, MF_OP_SIMPLE_RNN_GRAD, &op->attr, 6, in, 3, types, out);
    mf_backward_give(w, u, out[1]);
    mf_backward_give(w, h0, out[2]);
    mf_backward_give(w, op->in[0], out[0]);
}
