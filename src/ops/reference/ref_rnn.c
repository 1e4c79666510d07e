/*
 * ref_rnn.c: the recurrent part of LSTM, GRU and simple RNN, forward and back through time. The input projection is
 * done before (z), so a sample's walk through time is: products with the recurrent matrix, activations, new state.
 * Samples are independent: each is walked alone, its state kept in double; the gradient of the recurrent matrix is
 * summed in double over all samples and steps.
 *
 * A step s works on time t = s, or T - 1 - s when time runs backwards. Masked steps hand the state on.
 *
 * Recurrent dropout: what a gate's product reads of the state is multiplied by that gate's mask, drawn once for a
 * sample and used at all its steps; the state itself stays whole. Masks follow from the counters, so that the gradient
 * draws the same ones again.
 */
#include "ops/reference/draw.h"
#include "ops/reference/reference.h"

#include "base/error.h"

#include <string.h>

static uint32_t recurrent_input(mf_op_kind kind)
{
    switch (kind) {
    case MF_OP_LSTM_GRAD:
        return 4;
    case MF_OP_GRU_GRAD:
        return 3;
    case MF_OP_SIMPLE_RNN_GRAD:
        return 2;
    default:
        return 1;
    }
}

uint64_t mf_ref_rnn_scratch(const mf_graph *graph, const mf_op *op)
{
    const mf_shape *u = &graph->tensors[op->in[recurrent_input(op->kind)]].shape;
    uint64_t units = (uint64_t)u->dim[0], width = (uint64_t)u->dim[1];
    uint64_t masks = op->attr.rnn.recurrent_dropout > 0 ? width : 0;
    return (units * width + 4 * width + 8 * units + masks) * sizeof(double);
}

/* Shapes and switches of one call. */
typedef struct rnn {
    int64_t batch, time, units, width; /* width: gates * units */
    bool backwards, reset_after;
    mf_unary act, rec;
    double *mask; /* by gate and unit, of this sample's state; NULL: whole */
} rnn;

static rnn rnn_of(const mf_ref_call *call)
{
    const mf_attr *attr = &call->op->attr;
    uint32_t u = recurrent_input(call->op->kind);
    const mf_shape *z = u == 1 ? call->in[0].shape : call->in[1].shape; /* backward: h tells batch and time */
    uint64_t units = (uint64_t)call->in[u].shape->dim[0], width = (uint64_t)call->in[u].shape->dim[1];
    double *behind = (double *)call->scratch + units * width + 4 * width + 8 * units;
    return (rnn){.mask = attr->rnn.recurrent_dropout > 0 ? behind : NULL,
                 .batch = z->dim[0],
                 .time = z->dim[1],
                 .units = call->in[u].shape->dim[0],
                 .width = call->in[u].shape->dim[1],
                 .backwards = attr->rnn.backwards,
                 .reset_after = attr->rnn.reset_after,
                 .act = attr->rnn.activation,
                 .rec = attr->rnn.recurrent_activation};
}

static int64_t time_of(const rnn *r, int64_t step)
{
    return r->backwards ? r->time - 1 - step : step;
}

static void *optional(const mf_ref_arg *args, uint32_t count, uint32_t i)
{
    return i < count ? args[i].data : NULL;
}

static bool is_masked(const mf_ref_call *call, uint32_t mask, int64_t cell)
{
    return mask < call->in_count && call->in[mask].data &&
           mf_ref_load_int(call->in[mask].dtype, call->in[mask].data, (uint64_t)cell) == 0;
}

static void draw_mask(const rnn *r, const mf_ref_call *call, int64_t sample)
{
    double rate = call->op->attr.rnn.recurrent_dropout;
    mf_draw draw;
    if (!r->mask)
        return;
    mf_draw_begin(&draw, call->scalars, call->op->attr.rnn.key, call->scalars->first_sample + (uint64_t)sample);
    for (int64_t i = 0; i < r->width; i++)
        r->mask[i] = rate < 1 && mf_draw_uniform(&draw, (uint64_t)i) >= rate ? 1 / (1 - rate) : 0;
}

static double activate(mf_unary f, double x)
{
    return mf_unary_value(f, mf_unary_default_alpha(f), 0, x);
}

/* Slope of an activation whose value is y. */
static double slope(mf_unary f, double y)
{
    return mf_unary_slope(f, mf_unary_default_alpha(f), 0, true, y);
}

static memfit_status check_slopes(const rnn *r, bool gated, memfit_error *err)
{
    if (!mf_unary_slope_by_output(r->act) || (gated && !mf_unary_slope_by_output(r->rec)))
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "a recurrent layer with this activation cannot be trained: its slope does not follow from its "
                       "value\nuse tanh, sigmoid, relu, elu, selu, softplus, hard_sigmoid or linear");
    return MEMFIT_OK;
}

#define REF_DOUBLE 0
#include "ops/reference/rnn_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/rnn_body.h"
