/*
 * xla_rnn.c: an LSTM of Keras on JAX is one call of cuDNN forward and one backward (jax.experimental.rnn) where it has
 * cuDNN's activations and a bias, no mask and no dropout of its state, and is float32 (in 16 bits that call fails, and with
 * it the step: here it is the loop then). In the graph that is the product before the recurrent operation, the operation,
 * and in backward the products with what it sends back; none of what passes between them is stored.
 *
 * cuDNN's buffers are those of eager_recurrent.c, of the standard algorithm. JAX takes their sizes, which are bytes, for
 * numbers of float32: it asks for four times as much. (One step on an H200: 553 MB, compiled with these sizes 561.)
 */
#include "plan/frameworks/eager.h"
#include "plan/frameworks/xla_step.h"

enum { FLOATS_FOR_BYTES = 4 };

/* The product with the layer's input; MF_NONE where it is no call. */
static uint32_t input_product(const mf_graph *g, const mf_op *op)
{
    uint32_t product = op->kind == MF_OP_LSTM ? g->tensors[mf_recurrent_behind_views(g, op->in[0])].producer : MF_NONE;
    if (product == MF_NONE || g->ops[product].kind != MF_OP_MATMUL || g->ops[product].layer != op->layer)
        return MF_NONE;
    const mf_op *p = &g->ops[product];
    bool bias = p->in_count > 2 && p->in[2] != MF_NONE, mask = op->in[op->in_count - 1] != MF_NONE;
    bool plain = op->attr.rnn.activation == MF_UNARY_TANH && op->attr.rnn.recurrent_activation == MF_UNARY_SIGMOID &&
                 op->attr.rnn.recurrent_dropout <= 0;
    bool kept = op->out_count > 2 && op->out[0] != MF_NONE && op->out[1] != MF_NONE;
    return bias && plain && kept && !mask && g->tensors[op->in[0]].dtype == MF_F32 ? product : MF_NONE;
}

void mf_xla_find_calls(mf_xla_step *s)
{
    const mf_graph *g = s->graph;
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].layer != MF_NONE && input_product(g, &g->ops[i]) != MF_NONE)
            s->called[g->ops[i].layer] = 1;
}

bool mf_xla_inside_call(const mf_xla_step *s, const mf_op *op, uint32_t k)
{
    if (op->layer == MF_NONE || !s->called[op->layer])
        return false;
    return op->kind == MF_OP_LSTM        ? k == 1 || k == 2
           : op->kind == MF_OP_LSTM_GRAD ? k == 0
                                         : op->kind == MF_OP_MATMUL && op->phase == MF_FORWARD;
}

void mf_xla_hold_call(mf_xla_step *s, uint32_t at, mf_xla_memory *memory)
{
    const mf_graph *g = s->graph;
    const mf_op *op = &g->ops[at];
    uint32_t product = input_product(g, op), back = s->backward_reader[op->out[1]];
    if (product == MF_NONE)
        return;
    const mf_shape *z = &g->tensors[op->in[0]].shape, *kernel = &g->tensors[g->ops[product].in[1]].shape;
    uint64_t units = (uint64_t)g->tensors[op->in[1]].shape.dim[0];
    uint64_t one = mf_xla_bytes(g, op->out[0]), x = mf_xla_bytes(g, g->ops[product].in[0]);
    uint64_t weights = mf_xla_bytes(g, g->ops[product].in[1]) + mf_xla_bytes(g, op->in[1]) + 2 * units * 4 * 4;
    mf_recurrent_call call = {.lstm = true,
                              .batch = (uint64_t)z->dim[0],
                              .steps = (uint64_t)z->dim[1],
                              .input = (uint64_t)kernel->dim[0],
                              .units = units,
                              .dtype = MF_F32};
    uint64_t workspace = FLOATS_FOR_BYTES * mf_recurrent_workspace(&call, false);
    if (memory->workspace_bytes < workspace)
        memory->workspace_bytes = workspace;
    mf_xla_hold(s, workspace, at, at);
    if (back <= at)
        return;
    mf_xla_hold(s, FLOATS_FOR_BYTES * mf_recurrent_reserve(&call) + weights, at, back);
    uint64_t among_zeros = g->ops[back].in[0] == MF_NONE ? one : 0; /* the last step's gradient, for all steps */
    mf_xla_hold(s, workspace + weights + among_zeros + x, back, back);
}
