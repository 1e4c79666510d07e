/* eager_loss.c: losses and optimizers as Keras's torch backend computes them (see eager.h). L is the bytes of the
 * predictions in float32, P the bytes of all trainable parameters. */
#include "plan/frameworks/eager.h"

/* ---- losses ---- */

static bool cross_entropy(mf_loss f)
{
    return f == MF_LOSS_SCCE || f == MF_LOSS_SCCE_LOGITS || f == MF_LOSS_CCE || f == MF_LOSS_CCE_LOGITS;
}

static bool takes_logits(mf_loss f)
{
    return f == MF_LOSS_SCCE_LOGITS || f == MF_LOSS_CCE_LOGITS || f == MF_LOSS_BCE_LOGITS;
}

static uint64_t loss_bytes(const mf_eager *e, const mf_op *op)
{
    return mf_shape_count(&e->graph->tensors[op->in[0]].shape) * 4;
}

static void saved_copy(mf_eager *e, uint64_t bytes)
{
    uint32_t block = mf_eager_take(e, bytes);
    mf_eager_save(e, block);
    mf_tape_drop(e->tape, block);
}

/* The graph has logits where the model ends in softmax or sigmoid: that function ran in the last layer, whose result
 * stays to the end of the step as y_pred, with the logits as its attribute _keras_logits. */
static void end_of_model(mf_eager *e, const mf_op *op)
{
    uint32_t x = op->in[0];
    if (!takes_logits(op->attr.loss.function) || !e->probabilities)
        return;
    uint32_t maker = e->graph->tensors[x].producer;
    if (maker != MF_NONE && e->graph->ops[maker].kind == MF_OP_CAST) /* in 16 bits, then made wide */
        saved_copy(e, mf_eager_bytes(e, e->graph->ops[maker].in[0]));
    uint32_t block = mf_eager_take(e, mf_eager_bytes(e, x));
    mf_eager_save(e, block);
    mf_tape_drop(e->tape, e->prediction);
    e->prediction = block;
}

void mf_eager_loss_forward(mf_eager *e, const mf_op *op)
{
    uint64_t n = loss_bytes(e, op);
    mf_loss f = op->attr.loss.function;
    end_of_model(e, op);
    if (cross_entropy(f) && e->probabilities) { /* divided by their sum, clipped, logarithm, chosen */
        bool copied = e->graph->tensors[op->in[0]].shape.rank > 2;
        saved_copy(e, n);
        saved_copy(e, n);
        uint32_t logs = mf_eager_take(e, n);
        if (copied)
            saved_copy(e, n);
        else
            mf_eager_save(e, logs);
        mf_tape_drop(e->tape, logs);
    } else if (cross_entropy(f)) { /* log_softmax */
        saved_copy(e, n);
    } else if (f == MF_LOSS_BCE || f == MF_LOSS_BCE_LOGITS) {
        for (int i = 0; i < 4; i++)
            saved_copy(e, n);
        mf_eager_touch(e, n);
    } else { /* a difference, kept, and a function of it */
        saved_copy(e, n);
        mf_eager_touch(e, n);
    }
}

/* The last block saved is needed no more. */
static void forget_last(mf_eager *e)
{
    mf_eager_node *node = &e->nodes[e->op];
    if (node->saved_count)
        mf_tape_drop(e->tape, node->saved[--node->saved_count]);
}

static uint32_t cross_entropy_backward(mf_eager *e, uint64_t n)
{
    uint32_t chosen = mf_eager_take(e, n);
    forget_last(e);
    uint32_t logs = mf_eager_take(e, n);
    mf_tape_drop(e->tape, chosen);
    forget_last(e);
    uint32_t low = mf_eager_take(e, n / 4), high = mf_eager_take(e, n / 4), clipped = mf_eager_take(e, n);
    mf_tape_drop(e->tape, low);
    mf_tape_drop(e->tape, high);
    mf_tape_drop(e->tape, logs);
    forget_last(e);
    uint32_t part[4];
    for (int i = 0; i < 4; i++)
        part[i] = mf_eager_take(e, n);
    for (int i = 1; i < 4; i++)
        mf_tape_drop(e->tape, part[i]);
    mf_tape_drop(e->tape, clipped);
    uint32_t sum = mf_eager_take(e, n);
    mf_tape_drop(e->tape, part[0]);
    return sum;
}

void mf_eager_loss_backward(mf_eager *e, const mf_op *op)
{
    uint64_t n = loss_bytes(e, op);
    uint32_t x = op->in[0], slope;
    mf_loss f = op->attr.loss.function;
    if (!e->needs[x])
        return;
    if (cross_entropy(f) && e->probabilities) {
        slope = cross_entropy_backward(e, n);
    } else {
        uint32_t first = mf_eager_take(e, n), second = mf_eager_take(e, n);
        uint32_t third =
            f == MF_LOSS_MSE ? mf_eager_take(e, n) : MF_NONE; /* of x^2: x^1, twice that, and the product */
        slope = mf_eager_take(e, n);
        mf_tape_drop(e->tape, first);
        mf_tape_drop(e->tape, second);
        mf_tape_drop(e->tape, third);
        if (f == MF_LOSS_MSE || f == MF_LOSS_MAE) { /* of y_true - y_pred, so negative */
            uint32_t negative = mf_eager_take(e, n);
            mf_tape_drop(e->tape, slope);
            slope = negative;
        }
    }
    if (takes_logits(f) && e->probabilities) { /* softmax's or sigmoid's */
        mf_eager_give_new(e, x);
        if (cross_entropy(f)) /* softmax's gradient times its result */
            mf_eager_touch(e, n);
        mf_tape_drop(e->tape, slope);
    } else if (mf_eager_bytes(e, x) < n) { /* cast back */
        mf_eager_give_new(e, x);
        mf_tape_drop(e->tape, slope);
    } else {
        mf_eager_give(e, x, slope);
    }
}

/* ---- optimizers ---- */

/* A list with a tensor the size of each trainable parameter, as torch._foreach_ functions make them. */
static uint32_t *take_list(mf_eager *e)
{
    const mf_graph *g = e->graph;
    uint32_t *list = MF_NEW_ARRAY(&e->scratch, uint32_t, g->variable_count + 1);
    for (uint32_t v = 0; list && v < g->variable_count; v++) {
        const mf_variable *x = &g->variables[v];
        bool trained = x->role == MF_VAR_PARAMETER && x->trainable;
        list[v] = trained ? mf_tape_take(e->tape, mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype),
                                         MEMFIT_KIND_OPTIMIZER, x->layer)
                          : MF_NONE;
    }
    if (!list)
        e->tape->failed = true;
    return list;
}

static void drop_list(mf_eager *e, const uint32_t *list)
{
    for (uint32_t v = 0; list && v < e->graph->variable_count; v++)
        mf_tape_drop(e->tape, list[v]);
}

/* Lists that an update holds at once at its most: research in keras/src/backend/torch/optimizers. */
static int lists_of(mf_optimizer optimizer, bool momentum)
{
    switch (optimizer) {
    case MF_OPTIMIZER_SGD:
        return momentum ? 1 : 0;
    case MF_OPTIMIZER_LION:
        return 2;
    case MF_OPTIMIZER_ADADELTA:
        return 4;
    case MF_OPTIMIZER_ADAFACTOR:
    case MF_OPTIMIZER_FTRL:
    case MF_OPTIMIZER_LAMB:
        return -1; /* one variable after the other */
    default:
        return 3;
    }
}

static void update_one_by_one(mf_eager *e)
{
    const mf_graph *g = e->graph;
    for (uint32_t v = 0; v < g->variable_count; v++) {
        const mf_variable *x = &g->variables[v];
        if (x->role != MF_VAR_PARAMETER || !x->trainable)
            continue;
        uint32_t part[4];
        for (int i = 0; i < 4; i++)
            part[i] = mf_tape_take(e->tape, mf_shape_count(&x->shape) * mf_dtype_bytes(x->dtype), MEMFIT_KIND_OPTIMIZER,
                                   x->layer);
        for (int i = 0; i < 4; i++)
            mf_tape_drop(e->tape, part[i]);
    }
}

static bool has_momentum(const mf_graph *g)
{
    for (uint32_t v = 0; v < g->variable_count; v++)
        if (g->variables[v].role == MF_VAR_SLOT)
            return true;
    return false;
}

void mf_eager_update(mf_eager *e)
{
    int count = lists_of(e->graph->optimizer, has_momentum(e->graph));
    uint32_t *lists[5] = {0};
    uint32_t *unscaled = e->graph->needs_loss_scale ? take_list(e) : NULL;
    if (count < 0)
        update_one_by_one(e);
    for (int i = 0; i < count; i++)
        lists[i] = take_list(e);
    for (int i = 0; i < count; i++)
        drop_list(e, lists[i]);
    drop_list(e, unscaled);
}
