/*
 * eager_recurrent.c: LSTM and GRU in Keras's torch backend (see eager.h): one call of cuDNN, which takes the input of the
 * layer, multiplies by the kernel itself and keeps the gates of all steps in a buffer of its own. In the graph that is the
 * product before the recurrent operation and that operation; the product is `inside`.
 */
#include "plan/frameworks/eager.h"

/*
 * What cuDNN 9.19 asks for (cudnnGetRNNTempSpaceSizes), within half a percent of 8,000 answers of the library itself
 * (bench/frameworks/recurrent_sizes.c asks it without a card) and within 8 bytes of the one that was recorded on a card.
 * Two algorithms: the standard one, and a persistent one with several times the workspace. PyTorch chooses
 * (ATen/native/cudnn/RNN.cpp): persistent for few units, for more of them forwards than backwards, and in float16 for small
 * batches. In bfloat16 cuDNN runs the standard one whatever it is told.
 *
 * In numbers of one sequence: of all steps `steps` times the units, or the input; beside them `few` times the units.
 */
typedef struct buffers {
    uint64_t gates, steps, few;               /* forwards: gates of at most 256 steps; the input once */
    uint64_t back_steps, back_few, back_wide; /* backwards: the input twice; the wider of input and units */
} buffers;

enum { OF_A_DIRECTION = 8 << 20, SOME_STEPS = 256, SMALL_FORWARD = 192, SMALL_BACKWARD = 128, BESIDE = 256 };

static const buffers of_lstm[2][2] = {{{4, 1, 10, 3, 11, 1}, {0, 14, 24, 6, 26, 4}},
                                      {{0, 21, 8, 15, 12, 1}, {0, 30, 18, 18, 26, 4}}}; /* [persistent][both ways] */
static const buffers of_gru[2][2] = {{{3, 1, 5, 3, 5, 1}, {0, 12, 14, 6, 14, 4}},
                                     {{0, 18, 6, 17, 6, 1}, {0, 24, 14, 20, 14, 4}}};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

uint64_t mf_recurrent_workspace(const mf_recurrent_call *c, bool persistent)
{
    const buffers *x = &(c->lstm ? of_lstm : of_gru)[persistent && c->dtype != MF_BF16][c->both];
    uint64_t units = c->steps * c->units, input = c->steps * c->input, bytes = mf_dtype_bytes(c->dtype);
    uint64_t ways = c->both ? 2 : 1, gates = c->lstm ? 4 : 3, matrices = gates * c->units * (c->input + c->units);
    uint64_t some = c->steps < SOME_STEPS ? units : SOME_STEPS * c->units;
    uint64_t forwards = x->gates * some + x->steps * units + input + x->few * c->units;
    uint64_t backwards =
        x->back_steps * units + 2 * input + x->back_wide * larger(units, input) + x->back_few * c->units;
    return ways * (OF_A_DIRECTION + matrices * bytes) + c->batch * (larger(forwards, backwards) * bytes + 8) + BESIDE;
}

uint64_t mf_recurrent_reserve(const mf_recurrent_call *c)
{
    return c->steps * c->batch * c->units * mf_dtype_bytes(c->dtype) * (c->lstm ? 5 : 6) * (c->both ? 2 : 1) + BESIDE;
}

bool mf_recurrent_persistent(const mf_recurrent_call *c, bool backward)
{
    if (c->units <= (backward ? SMALL_BACKWARD : SMALL_FORWARD))
        return true;
    return c->dtype == MF_F16 && c->lstm && !c->both && c->units <= 1024 && c->units % 128 == 0 &&
           c->input % 128 == 0 && c->batch % 8 == 0 && c->batch <= 128; /* of cards with 98 processors and more */
}

static bool recurrent(mf_op_kind kind)
{
    return kind == MF_OP_LSTM || kind == MF_OP_GRU;
}

uint32_t mf_recurrent_behind_views(const mf_graph *g, uint32_t tensor)
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
    uint32_t product = g->tensors[mf_recurrent_behind_views(g, op->in[0])].producer;
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
    uint64_t state;   /* of one step: the hidden one, and an LSTM's cell */
    uint32_t states;
    uint64_t workspace, reserve;
} call;

/* States are as large as one step, but held from the layer's call to its backward: above 1 MiB they lie among the large blocks,
 * and one of them in the segment of a workspace that was freed keeps the next workspace out of it. */
static void take_states(mf_eager *e, const call *c, uint32_t blocks[2])
{
    blocks[0] = mf_eager_take(e, c->state);
    blocks[1] = c->states > 1 ? mf_eager_take(e, c->state) : MF_NONE;
}

static void drop_states(mf_eager *e, const uint32_t blocks[2])
{
    mf_tape_drop(e->tape, blocks[0]);
    mf_tape_drop(e->tape, blocks[1]);
}

/* Bidirectional: Keras hands both directions to cuDNN in one call. Here each has its own part of it; the workspace is the
 * whole, and no two of them are alive at once. */
static bool both_ways(const mf_graph *g, const mf_op *op)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        found += g->ops[i].kind == op->kind && g->ops[i].layer == op->layer;
    return found == 2;
}

static bool find_call(const mf_eager *e, const mf_op *op, bool backward, call *c)
{
    uint64_t kept = e->nodes[e->op].kept;
    if (!kept)
        return false;
    const mf_graph *g = e->graph;
    const mf_shape *u = &g->tensors[op->in[1]].shape, *z = &g->tensors[op->in[0]].shape;
    uint64_t units = (uint64_t)u->dim[0], columns = (uint64_t)u->dim[u->rank - 1], gates = units ? columns / units : 0;
    if (!gates)
        return false;
    mf_dtype dtype = g->tensors[op->in[0]].dtype;
    c->product = &g->ops[kept - 1];
    c->x = mf_recurrent_behind_views(g, c->product->in[0]);
    const mf_shape *x = &g->tensors[c->x].shape;
    uint32_t maker = g->tensors[c->x].producer;
    c->turned = maker != MF_NONE && recurrent(g->ops[maker].kind);
    c->one = mf_eager_elements(e, op->in[0]) / gates * mf_dtype_bytes(dtype);
    c->weights = (mf_eager_elements(e, c->product->in[1]) + units * columns + 2 * columns) * mf_dtype_bytes(dtype);
    mf_recurrent_call whole = {.lstm = op->kind == MF_OP_LSTM,
                               .both = both_ways(g, op),
                               .batch = (uint64_t)z->dim[0],
                               .steps = (uint64_t)z->dim[1],
                               .input = (uint64_t)x->dim[x->rank - 1],
                               .units = units,
                               .dtype = dtype};
    c->state = whole.batch * units * mf_dtype_bytes(dtype);
    c->states = whole.lstm ? 2 : 1;
    c->workspace = mf_recurrent_workspace(&whole, mf_recurrent_persistent(&whole, backward));
    whole.both = false;
    c->reserve = mf_recurrent_reserve(&whole);
    return true;
}

bool mf_eager_recurrent_forward(mf_eager *e, const mf_op *op)
{
    call c;
    if (!recurrent(op->kind) || !find_call(e, op, false, &c))
        return false;
    uint32_t first[2], after[2]; /* states: zeros, and the last ones, which nobody wants */
    take_states(e, &c, first);
    uint32_t weights = mf_eager_take(e, c.weights);
    uint32_t turned = mf_eager_take(e, c.turned ? 0 : mf_eager_bytes(e, c.x)); /* step by step */
    uint32_t y = mf_eager_take(e, c.one);
    take_states(e, &c, after);
    uint32_t packed = mf_eager_take(e, c.weights);
    uint32_t passing = mf_eager_take(e, c.workspace), reserve = mf_eager_take(e, c.reserve);
    if (e->workspace_most < c.workspace)
        e->workspace_most = c.workspace;
    const uint32_t saved[] = {e->value[c.x], weights, packed, first[0], first[1], y, reserve};
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++)
        if (saved[i] != MF_NONE)
            mf_eager_save(e, saved[i]);
    mf_tape_drop(e->tape, passing);
    mf_tape_drop(e->tape, turned);
    drop_states(e, after);
    drop_states(e, first);
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
    if (!recurrent(op->kind) || !find_call(e, op, true, &c))
        return false;
    uint32_t whole = MF_NONE, turned = MF_NONE, of_after[2], of_first[2];
    bool among_zeros =
        op->out[0] == MF_NONE || e->grad[op->out[0]] == MF_NONE; /* only the last step's output has one */
    if (among_zeros)
        whole = mf_eager_take(e, c.one);
    take_states(e, &c, of_after); /* zeros */
    uint32_t x = mf_eager_take(e, c.turned ? 0 : mf_eager_bytes(e, c.x));
    if (among_zeros)
        turned = mf_eager_take(e, c.one);
    uint32_t dx = mf_eager_take(e, mf_eager_bytes(e, c.x));
    take_states(e, &c, of_first);
    mf_eager_workspace(e, c.workspace);
    mf_tape_drop(e->tape, turned);
    mf_tape_drop(e->tape, x);
    x = mf_eager_take(e, c.turned ? 0 : mf_eager_bytes(e, c.x)); /* once more, for the weights */
    uint32_t weights = mf_eager_take(e, c.weights);
    mf_eager_workspace(e, c.workspace);
    mf_tape_drop(e->tape, x);
    drop_states(e, of_first);
    drop_states(e, of_after);
    mf_tape_drop(e->tape, whole);
    mf_eager_give_new(e, c.product->in[1]);
    mf_eager_give_new(e, op->in[1]);
    for (uint32_t k = 2; k < c.product->in_count; k++)
        mf_eager_give_new(e, c.product->in[k]);
    mf_tape_drop(e->tape, weights);
    mf_eager_give(e, c.x, dx);
    return true;
}
