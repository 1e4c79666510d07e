/*
 * fast_rnn.c: LSTM as one matrix product a step and one pointwise kernel; in the backward pass the gradient of the
 * recurrent weights is a single product over all steps. The library's own recurrent primitive is not used: it keeps
 * five to six times the gates, and as much again in scratch.
 *
 *   forward workspace   [ h | c | zu | product's own ]            states of the running step, h u
 *   gradient workspace  [ dh | dc | d | h before, all steps | products' own ]
 *
 * Masks and activations other than tanh and sigmoid are left to the reference operations.
 */
#include "ops/onednn/fast.h"

#include "base/error.h"

#include <string.h>

static uint64_t round64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

static int64_t time_of(const fast_kernel *k, int64_t s)
{
    return k->op->attr.rnn.backwards ? k->u.rnn.t - 1 - s : s;
}

static mf_k_lstm shape_of(const fast_kernel *k)
{
    int64_t u = k->u.rnn.u, t = k->u.rnn.t;
    return (mf_k_lstm){.batch = k->u.rnn.n, .units = u, .z_step = t * 4 * u, .h_step = t * u};
}

static bool usual(const fast_kernel *k, const mf_tensor *z, const mf_tensor *u, const mf_tensor *mask)
{
    return fast_all_float(k) && !mask && z->shape.rank == 3 && u->shape.rank == 2 &&
           k->op->attr.rnn.activation == MF_UNARY_TANH && k->op->attr.rnn.recurrent_activation == MF_UNARY_SIGMOID &&
           k->op->attr.rnn.recurrent_dropout == 0;
}

static memfit_status bind_lstm(fast_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    const mf_tensor *z = fast_in(k, 0), *u = fast_in(k, 1);
    if (fast_in(k, 4) || !usual(k, z, u, NULL))
        return fast_no(err);
    k->u.rnn.n = z->shape.dim[0];
    k->u.rnn.t = z->shape.dim[1];
    k->u.rnn.u = u->shape.dim[0];
    uint64_t state = round64((uint64_t)(k->u.rnn.n * k->u.rnn.u) * 4), own;
    k->u.rnn.state = state;
    k->u.rnn.zu = round64((uint64_t)(k->u.rnn.n * k->u.rnn.u) * 16);
    mf_dnn_matmul mm = {
        .batch_a = 1, .batch_b = 1, .m = k->u.rnn.n, .n = 4 * k->u.rnn.u, .k = k->u.rnn.u, .scale = 1, .dtype = MF_F32};
    memfit_status status = mf_dnn_matmul_make(k->backend->engine, &mm, create ? &k->dnn : NULL, &own, err);
    *workspace = 2 * state + k->u.rnn.zu + own;
    return status;
}

static void start_state(const mf_tensor *given, const void *from, float *to, uint64_t bytes)
{
    if (given)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

static memfit_status run_lstm(fast_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    unsigned char *w = o->workspace;
    float *h = (float *)(void *)w, *c = (float *)(void *)(w + k->u.rnn.state);
    float *zu = (float *)(void *)(w + 2 * k->u.rnn.state);
    void *own = w + 2 * k->u.rnn.state + k->u.rnn.zu;
    uint64_t bytes = (uint64_t)(k->u.rnn.n * k->u.rnn.u) * 4;
    int64_t u = k->u.rnn.u;
    mf_k_lstm shape = shape_of(k);
    start_state(fast_in(k, 2), o->in[2], h, bytes);
    start_state(fast_in(k, 3), o->in[3], c, bytes);
    for (int64_t i = 0; i < k->u.rnn.t; i++) {
        int64_t t = time_of(k, i);
        void *operands[3] = {h, o->in[1], zu};
        memfit_status status = mf_dnn_run(k->dnn, operands, own, err);
        if (status != MEMFIT_OK)
            return status;
        k->backend->k->lstm_step(&shape, (const float *)o->in[0] + t * 4 * u, zu, h, c,
                                 fast_out(k, 0) ? (float *)o->out[0] + t * u : NULL,
                                 fast_out(k, 1) ? (float *)o->out[1] + t * 4 * u : NULL,
                                 fast_out(k, 2) ? (float *)o->out[2] + t * u : NULL, fast_threads(k));
    }
    if (fast_out(k, 3))
        memcpy(o->out[3], h, bytes);
    if (fast_out(k, 4))
        memcpy(o->out[4], c, bytes);
    return MEMFIT_OK;
}

const fast_rule fast_lstm = {bind_lstm, run_lstm};

static memfit_status bind_lstm_grad(fast_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    const mf_tensor *gates = fast_in(k, 2), *u = fast_in(k, 4);
    if (fast_in(k, 7) || !gates || !u || !fast_in(k, 1) || !fast_in(k, 3) || !usual(k, gates, u, NULL) ||
        fast_adds(k, 0))
        return fast_no(err);
    k->u.rnn.n = gates->shape.dim[0];
    k->u.rnn.t = gates->shape.dim[1];
    k->u.rnn.u = u->shape.dim[0];
    int64_t n = k->u.rnn.n, t = k->u.rnn.t, units = k->u.rnn.u;
    k->u.rnn.state = round64((uint64_t)(n * units) * 4);
    k->u.rnn.zu = round64((uint64_t)(n * units) * 16);
    k->u.rnn.dz = fast_out(k, 1) ? round64((uint64_t)(n * t * units) * 4) : 0;
    uint64_t back, weights = 0;
    mf_dnn_matmul mm = {
        .batch_a = 1, .batch_b = 1, .m = n, .n = units, .k = 4 * units, .trans_b = true, .scale = 1, .dtype = MF_F32};
    memfit_status status = mf_dnn_matmul_make(k->backend->engine, &mm, create ? &k->dnn : NULL, &back, err);
    mm = (mf_dnn_matmul){.batch_a = 1,
                         .batch_b = 1,
                         .m = units,
                         .n = 4 * units,
                         .k = n * t,
                         .trans_a = true,
                         .accumulate = fast_adds(k, 1),
                         .scale = 1,
                         .dtype = MF_F32};
    if (status == MEMFIT_OK && fast_out(k, 1))
        status = mf_dnn_matmul_make(k->backend->engine, &mm, create ? &k->dnn2 : NULL, &weights, err);
    *workspace = 2 * k->u.rnn.state + k->u.rnn.zu + k->u.rnn.dz + (back > weights ? back : weights);
    return status;
}

/* The state before each step, at that step's own place in time. */
static void states_before(const fast_kernel *k, const float *h, const float *h0, float *out)
{
    int64_t u = k->u.rnn.u, t = k->u.rnn.t;
    for (int64_t n = 0; n < k->u.rnn.n; n++)
        for (int64_t i = 0; i < t; i++) {
            float *to = out + (n * t + time_of(k, i)) * u;
            if (i > 0)
                memcpy(to, h + (n * t + time_of(k, i - 1)) * u, (size_t)u * 4);
            else
                start_state(h0 ? fast_in(k, 5) : NULL, h0 ? h0 + n * u : NULL, to, (uint64_t)u * 4);
        }
}

static memfit_status run_lstm_grad(fast_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    (void)s;
    unsigned char *w = o->workspace;
    float *dh = (float *)(void *)w, *dc = (float *)(void *)(w + k->u.rnn.state);
    float *d = (float *)(void *)(w + 2 * k->u.rnn.state);
    float *before = (float *)(void *)(w + 2 * k->u.rnn.state + k->u.rnn.zu);
    void *own = w + 2 * k->u.rnn.state + k->u.rnn.zu + k->u.rnn.dz;
    uint64_t bytes = (uint64_t)(k->u.rnn.n * k->u.rnn.u) * 4;
    int64_t u = k->u.rnn.u;
    mf_k_lstm shape = shape_of(k);
    const float *c = o->in[3], *gates = o->in[2], *c0 = fast_in(k, 6) ? o->in[6] : NULL;
    start_state(fast_in(k, 8), fast_in(k, 8) ? o->in[8] : NULL, dh, bytes);
    start_state(fast_in(k, 9), fast_in(k, 9) ? o->in[9] : NULL, dc, bytes);
    for (int64_t i = k->u.rnn.t; i-- > 0;) {
        int64_t t = time_of(k, i);
        const float *c_before = i > 0 ? c + time_of(k, i - 1) * u : c0;
        k->backend->k->lstm_back(&shape, fast_in(k, 0) ? (const float *)o->in[0] + t * u : NULL, gates + t * 4 * u,
                                 c + t * u, c_before, i > 0 ? shape.h_step : u, dh, dc, d,
                                 (float *)o->out[0] + t * 4 * u, fast_threads(k));
        void *operands[3] = {d, o->in[4], dh};
        memfit_status status = mf_dnn_run(k->dnn, operands, own, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (fast_out(k, 2))
        memcpy(o->out[2], dh, bytes);
    if (fast_out(k, 3))
        memcpy(o->out[3], dc, bytes);
    if (!fast_out(k, 1))
        return MEMFIT_OK;
    states_before(k, o->in[1], fast_in(k, 5) ? o->in[5] : NULL, before);
    void *operands[3] = {before, o->out[0], o->out[1]};
    return mf_dnn_run(k->dnn2, operands, own, err);
}

const fast_rule fast_lstm_grad = {bind_lstm_grad, run_lstm_grad};
