/*
 * eager_recurrent.c: LSTM and GRU in Keras's torch backend (see eager.h): one call of cuDNN, which takes the input of the
 * layer, multiplies by the kernel itself and keeps the gates of all steps in a buffer of its own. In the graph that is the
 * product before the recurrent operation and that operation; the product is `inside`. Sizes of cuDNN's buffers were read
 * from the allocator's stream of four programs on an H200, within 1 %.
 */
#include "plan/frameworks/eager.h"

enum { OF_A_UNIT = 36000 }; /* of cuDNN's workspace, beside what grows with the batch: 35,000 to 38,000 in six layers */

static bool recurrent(mf_op_kind kind)
{
    return kind == MF_OP_LSTM || kind == MF_OP_GRU;
}

/* The tensor that this one is a view of. */
static uint32_t behind_views(const mf_graph *g, uint32_t tensor)
{
    uint32_t maker = g->tensors[tensor].producer;
    while (maker != MF_NONE && g->ops[maker].kind == MF_OP_VIEW) {
        tensor = g->ops[maker].in[0];
        maker = g->tensors[tensor].producer;
    }
    return tensor;
}

void mf_eager_find_recurrent(mf_eager *e, uint32_t i)
{
    const mf_graph *g = e->graph;
    const mf_op *op = &g->ops[i];
    uint32_t mask = op->in_count - 1; /* with one, Keras runs step by step */
    if (!recurrent(op->kind) || op->in[mask] != MF_NONE)
        return;
    uint32_t product = g->tensors[behind_views(g, op->in[0])].producer;
    if (product == MF_NONE || g->ops[product].kind != MF_OP_MATMUL || g->ops[product].layer != op->layer)
        return;
    e->inside[product] = 1;
    e->nodes[i].kept = (uint64_t)product + 1;
}

typedef struct call {
    const mf_op *product;
    uint32_t x;       /* the layer's input */
    bool turned;      /* it lies step by step already: another recurrent layer made it */
    uint64_t one;     /* bytes of the outputs of all steps */
    uint64_t weights; /* of both kernels and both biases */
    uint64_t workspace, reserve;
} call;

static bool find_call(const mf_eager *e, const mf_op *op, call *c)
{
    uint64_t kept = e->nodes[e->op].kept;
    if (!kept)
        return false;
    const mf_graph *g = e->graph;
    const mf_shape *u = &g->tensors[op->in[1]].shape;
    uint64_t units = (uint64_t)u->dim[0], columns = (uint64_t)u->dim[u->rank - 1], gates = units ? columns / units : 0;
    if (!gates)
        return false;
    uint64_t bytes = mf_dtype_bytes(g->tensors[op->in[0]].dtype);
    c->product = &g->ops[kept - 1];
    c->x = behind_views(g, c->product->in[0]);
    uint32_t maker = g->tensors[c->x].producer;
    c->turned = maker != MF_NONE && recurrent(g->ops[maker].kind);
    c->one = mf_eager_elements(e, op->in[0]) / gates * bytes;
    c->weights = (mf_eager_elements(e, c->product->in[1]) + units * columns + 2 * columns) * bytes;
    c->workspace = c->weights + c->one * (gates + 1) + mf_eager_bytes(e, c->x) + units * OF_A_UNIT;
    c->reserve = c->one * (gates + 1);
    return true;
}

bool mf_eager_recurrent_forward(mf_eager *e, const mf_op *op)
{
    call c;
    if (!recurrent(op->kind) || !find_call(e, op, &c))
        return false;
    uint32_t turned = mf_eager_take(e, c.turned ? 0 : mf_eager_bytes(e, c.x)); /* step by step */
    uint32_t weights = mf_eager_take(e, c.weights), packed = mf_eager_take(e, c.weights);
    uint32_t y = mf_eager_take(e, c.one);
    uint32_t passing = mf_eager_take(e, c.workspace), reserve = mf_eager_take(e, c.reserve);
    if (e->workspace_most < c.workspace)
        e->workspace_most = c.workspace;
    const uint32_t saved[] = {e->value[c.x], weights, packed, y, reserve};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
        mf_eager_save(e, saved[i]);
    mf_tape_drop(e->tape, passing);
    mf_tape_drop(e->tape, turned);
    mf_tape_drop(e->tape, weights);
    mf_tape_drop(e->tape, packed);
    mf_tape_drop(e->tape, reserve);
    uint32_t last = op->kind == MF_OP_LSTM ? 3 : 2; /* of the last step: a view */
    for (uint32_t k = 0; k < op->out_count; k++)
        if (op->out[k] != MF_NONE && (k == 0 || k == last)) {
            mf_tape_hold(e->tape, y);
            mf_eager_set(e, op->out[k], y);
            e->first[op->out[k]] = 0;
        }
    mf_tape_drop(e->tape, y);
    return true;
}

bool mf_eager_recurrent_backward(mf_eager *e, const mf_op *op)
{
    call c;
    if (!recurrent(op->kind) || !find_call(e, op, &c))
        return false;
    uint32_t whole = MF_NONE, turned = MF_NONE;
    if (op->out[0] == MF_NONE ||
        e->grad[op->out[0]] == MF_NONE) { /* only the last step's output has one: among zeros */
        whole = mf_eager_take(e, c.one);
        turned = mf_eager_take(e, c.one);
    }
    uint32_t x = mf_eager_take(e, c.turned ? 0 : mf_eager_bytes(e, c.x)), dx = mf_eager_take(e, mf_eager_bytes(e, c.x));
    mf_eager_workspace(e, c.workspace);
    uint32_t weights = mf_eager_take(e, c.weights);
    mf_eager_workspace(e, c.workspace);
    mf_eager_give_new(e, c.product->in[1]);
    mf_eager_give_new(e, op->in[1]);
    for (uint32_t k = 2; k < c.product->in_count; k++)
        mf_eager_give_new(e, c.product->in[k]);
    mf_tape_drop(e->tape, weights);
    mf_tape_drop(e->tape, x);
    mf_tape_drop(e->tape, turned);
    mf_tape_drop(e->tape, whole);
    mf_eager_give(e, c.x, dx);
    return true;
}
