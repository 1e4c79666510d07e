/*
 * cpu_rnn.c: LSTM, GRU and simple RNN as one matrix product a step and one pointwise kernel; in the backward pass the
 * gradient of the recurrent weights is a single product over all steps. The library's own recurrent primitive is not
 * used: it keeps five to six times the gates, and as much again in scratch.
 *
 *   forward workspace   [ h | c | zu | masks | part | product's own ]
 *   gradient workspace  [ dh | dc | d | h before, all steps | d, all steps (GRU) | masks | part | products' own ]
 *
 * h and c are the states of the running step (c of an LSTM only), zu is h times the recurrent matrix.
 *
 * Going back the product adds to dh, where the pointwise kernel left what does not pass through it: a masked sample's
 * gradient, the GRU's share of the state kept.
 *
 * By gate: with recurrent dropout each gate reads the state under a mask of its own, and a GRU that resets first reads
 * another state for its candidate. Then each gate has its product, on its columns of the recurrent matrix where they
 * lie; `part` is the state as the gate reads it, or the gradient of that. Masks are drawn once a run by the dropout
 * kernel, the numbers of the reference operations.
 *
 * Left to the reference operations: activations other than tanh, sigmoid, hard sigmoid, relu and linear.
 */
#include "ops/cpu/cpu_product.h"

#include "base/error.h"

#include <string.h>

/* Where a kind has its operands; MF_NONE: it has no such. */
typedef struct rnn_places {
    uint32_t gates; /* how many, in z and in the recurrent matrix */
    uint32_t u, bias, h0, c0, mask, dh_last, dc_last;
    uint32_t h, gates_in, c; /* gradient only */
} rnn_places;

static rnn_places places_of(mf_op_kind kind)
{
    const uint32_t none = MF_NONE;
    switch (kind) {
    case MF_OP_LSTM:
        return (rnn_places){4, 1, none, 2, 3, 4, none, none, none, none, none};
    case MF_OP_LSTM_GRAD:
        return (rnn_places){4, 4, none, 5, 6, 7, 8, 9, 1, 2, 3};
    case MF_OP_GRU:
        return (rnn_places){3, 1, 2, 3, none, 4, none, none, none, none, none};
    case MF_OP_GRU_GRAD:
        return (rnn_places){3, 3, 4, 5, none, 6, 7, none, 1, 2, none};
    case MF_OP_SIMPLE_RNN:
        return (rnn_places){1, 1, none, 2, none, 3, none, none, none, none, none};
    default:
        return (rnn_places){1, 2, none, 3, none, 4, 5, none, 1, none, none};
    }
}

static uint64_t round64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

static int64_t time_of(const cpu_kernel *k, int64_t s)
{
    return k->op->attr.rnn.backwards ? k->u.rnn.t - 1 - s : s;
}

static void *operand_of(const cpu_kernel *k, const mf_operands *o, uint32_t i)
{
    return cpu_in(k, i) ? o->in[i] : NULL;
}

static bool resets_first(const cpu_kernel *k)
{
    return places_of(k->op->kind).gates == 3 && !k->op->attr.rnn.reset_after;
}

static mf_k_rnn shape_of(const cpu_kernel *k)
{
    int64_t u = k->u.rnn.u, t = k->u.rnn.t, gates = places_of(k->op->kind).gates;
    return (mf_k_rnn){.batch = k->u.rnn.n,
                      .units = u,
                      .z_step = t * gates * u,
                      .gate_step = t * 4 * u,
                      .h_step = t * u,
                      .mask_step = t,
                      .reset_first = resets_first(k),
                      .act = k->op->attr.rnn.activation,
                      .gate = k->op->attr.rnn.recurrent_activation};
}

/* Everything float32 but the mask, which is bytes. */
static bool usual_types(const cpu_kernel *k, uint32_t mask)
{
    for (uint32_t i = 0; i < k->op->in_count + k->op->out_count; i++) {
        const mf_tensor *t = i < k->op->in_count ? cpu_in(k, i) : cpu_out(k, i - k->op->in_count);
        if (t && t->dtype != (i == mask ? MF_U8 : MF_F32))
            return false;
    }
    return true;
}

static bool is_known(mf_unary f)
{
    return f == MF_UNARY_TANH || f == MF_UNARY_SIGMOID || f == MF_UNARY_RELU || f == MF_UNARY_LINEAR ||
           f == MF_UNARY_HARD_SIGMOID || f == MF_UNARY_HARD_SIGMOID_FIFTH;
}

static bool usual(cpu_kernel *k, const rnn_places *at, const mf_tensor *sequence)
{
    const mf_tensor *u = cpu_in(k, at->u);
    mf_unary act = k->op->attr.rnn.activation;
    if (!sequence || !u || !usual_types(k, at->mask) || sequence->shape.rank != 3 || u->shape.rank != 2 ||
        u->shape.dim[1] != at->gates * u->shape.dim[0])
        return false;
    if (at->gates == 1 && act != MF_UNARY_TANH && act != MF_UNARY_RELU && act != MF_UNARY_LINEAR)
        return false;
    if (at->gates > 1 && (!is_known(act) || !is_known(k->op->attr.rnn.recurrent_activation)))
        return false;
    if (resets_first(k) && cpu_in(k, at->bias))
        return false;
    k->u.rnn.n = sequence->shape.dim[0];
    k->u.rnn.t = sequence->shape.dim[1];
    k->u.rnn.u = u->shape.dim[0];
    k->u.rnn.state = round64((uint64_t)(k->u.rnn.n * k->u.rnn.u) * 4);
    k->u.rnn.zu = round64((uint64_t)(k->u.rnn.n * k->u.rnn.u * at->gates) * 4);
    k->u.rnn.by_gate = k->op->attr.rnn.recurrent_dropout > 0 || resets_first(k);
    k->u.rnn.masks = k->op->attr.rnn.recurrent_dropout > 0 ? k->u.rnn.zu : 0;
    k->u.rnn.part = k->u.rnn.by_gate ? k->u.rnn.state : 0;
    return true;
}

/* One mask for each gate and sample, [samples][gates * units]; NULL: none. */
static float *draw_masks(const cpu_kernel *k, float *masks, const mf_run_scalars *s)
{
    int64_t width = k->u.rnn.u * places_of(k->op->kind).gates;
    if (!k->u.rnn.masks)
        return NULL;
    mf_k_random r = {s->seed, s->step, s->first_sample, k->op->attr.rnn.key};
    for (int64_t i = 0; i < k->u.rnn.n * width; i++)
        masks[i] = 1;
    k->backend->k->dropout(&r, k->op->attr.rnn.recurrent_dropout, masks, masks, k->u.rnn.n, width, cpu_threads(k));
    return masks;
}

/* to = or += from under the gate's mask; rows are `repeat` for each sample. */
static void under_mask(const cpu_kernel *k, const float *masks, int64_t gate, int64_t repeat, const float *from,
                       bool add, float *to)
{
    int64_t u = k->u.rnn.u, width = u * places_of(k->op->kind).gates;
    for (int64_t row = 0; row < k->u.rnn.n * repeat; row++) {
        const float *mask = masks ? masks + row / repeat * width + gate * u : NULL, *x = from + row * u;
        float *y = to + row * u;
        for (int64_t j = 0; j < u; j++)
            y[j] = (add ? y[j] : 0) + (mask ? x[j] * mask[j] : x[j]);
    }
}

static void start_state(const void *from, float *to, uint64_t bytes)
{
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

/* ---- forward ------------------------------------------------------------------------------------------------- */

static memfit_status bind_forward(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    rnn_places at = places_of(k->op->kind);
    if (!usual(k, &at, cpu_in(k, 0)))
        return cpu_no(err);
    uint64_t own;
    mf_dnn_matmul mm = {.batch_a = 1,
                        .batch_b = 1,
                        .m = k->u.rnn.n,
                        .n = k->u.rnn.by_gate ? k->u.rnn.u : at.gates * k->u.rnn.u,
                        .k = k->u.rnn.u,
                        .bias = cpu_in(k, at.bias) != NULL,
                        .scale = 1,
                        .row_b = at.gates * k->u.rnn.u,
                        .row_c = at.gates * k->u.rnn.u};
    memfit_status status = cpu_product_matmul(k->backend, &mm, create ? &k->product : NULL, &own, err);
    *workspace = 2 * k->u.rnn.state + k->u.rnn.zu + k->u.rnn.masks + k->u.rnn.part + own;
    return status;
}

/* The places of a forward workspace. */
typedef struct forward_space {
    float *h, *c, *zu, *masks, *part;
    void *own;
} forward_space;

static forward_space forward_space_of(const cpu_kernel *k, void *workspace)
{
    unsigned char *w = workspace;
    uint64_t zu = 2 * k->u.rnn.state, masks = zu + k->u.rnn.zu, part = masks + k->u.rnn.masks;
    return (forward_space){(float *)(void *)w,          (float *)(void *)(w + k->u.rnn.state),
                           (float *)(void *)(w + zu),   (float *)(void *)(w + masks),
                           (float *)(void *)(w + part), w + part + k->u.rnn.part};
}

/* zu = h u + bias. */
static memfit_status product(const cpu_kernel *k, const mf_operands *o, const rnn_places *at, const forward_space *w,
                             const mf_k_rnn *shape, const float *z, memfit_error *err)
{
    float *u = o->in[at->u], *bias = operand_of(k, o, at->bias);
    memfit_status status = MEMFIT_OK;
    if (!k->u.rnn.by_gate)
        return cpu_product_run(k->product, (void *[4]){w->h, u, bias ? bias : w->zu, w->zu}, w->own, err);
    for (int64_t g = 0; g < at->gates && status == MEMFIT_OK; g++) {
        int64_t first = g * k->u.rnn.u;
        float *zu = w->zu + first;
        if (shape->reset_first && g == 2)
            k->backend->k->gru_reset(shape, z, w->zu, w->h, w->part, cpu_threads(k));
        under_mask(k, w->masks, g, 1, shape->reset_first && g == 2 ? w->part : w->h, false, w->part);
        status =
            cpu_product_run(k->product, (void *[4]){w->part, u + first, bias ? bias + first : zu, zu}, w->own, err);
    }
    return status;
}

static memfit_status run_forward(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    rnn_places at = places_of(k->op->kind);
    forward_space w = forward_space_of(k, o->workspace);
    float *h = w.h, *c = w.c, *zu = w.zu;
    const unsigned char *mask = operand_of(k, o, at.mask);
    uint64_t bytes = (uint64_t)(k->u.rnn.n * k->u.rnn.u) * 4;
    int64_t u = k->u.rnn.u, gates = at.gates;
    int threads = cpu_threads(k);
    const mf_kernel_table *kt = k->backend->k;
    mf_k_rnn shape = shape_of(k);
    w.masks = draw_masks(k, w.masks, s);
    start_state(operand_of(k, o, at.h0), h, bytes);
    start_state(operand_of(k, o, at.c0), c, bytes);
    float *h_out = cpu_out(k, 0) ? o->out[0] : NULL;
    float *kept = gates > 1 && cpu_out(k, 1) ? o->out[1] : NULL,
          *c_out = gates == 4 && cpu_out(k, 2) ? o->out[2] : NULL;
    for (int64_t i = 0; i < k->u.rnn.t; i++) {
        int64_t t = time_of(k, i);
        const float *z = (const float *)o->in[0] + t * gates * u;
        memfit_status status = product(k, o, &at, &w, &shape, z, err);
        if (status != MEMFIT_OK)
            return status;
        float *h_t = h_out ? h_out + t * u : NULL, *g_t = kept ? kept + t * 4 * u : NULL;
        shape.mask = mask ? mask + t : NULL;
        if (gates == 4)
            kt->lstm_step(&shape, z, zu, h, c, h_t, g_t, c_out ? c_out + t * u : NULL, threads);
        else if (gates == 3)
            kt->gru_step(&shape, z, zu, h, h_t, g_t, threads);
        else
            kt->rnn_step(&shape, k->op->attr.rnn.activation, z, zu, h, h_t, threads);
    }
    uint32_t last = gates == 4 ? 3 : gates == 3 ? 2 : 1;
    if (cpu_out(k, last))
        memcpy(o->out[last], h, bytes);
    if (gates == 4 && cpu_out(k, 4))
        memcpy(o->out[4], c, bytes);
    return MEMFIT_OK;
}

const cpu_rule cpu_lstm = {bind_forward, run_forward};
const cpu_rule cpu_gru = {bind_forward, run_forward};
const cpu_rule cpu_simple_rnn = {bind_forward, run_forward};

/* ---- gradient ------------------------------------------------------------------------------------------------ */

static memfit_status bind_grad(cpu_kernel *k, bool create, uint64_t *workspace, memfit_error *err)
{
    rnn_places at = places_of(k->op->kind);
    const mf_tensor *h = cpu_in(k, at.h);
    if ((at.gates > 1 && !cpu_in(k, at.gates_in)) || (at.gates == 4 && !cpu_in(k, at.c)) || cpu_adds(k, 0) ||
        !usual(k, &at, h))
        return cpu_no(err);
    int64_t n = k->u.rnn.n, t = k->u.rnn.t, units = k->u.rnn.u, width = at.gates * units;
    k->u.rnn.dz = cpu_out(k, 1) ? round64((uint64_t)(n * t * units) * 4) : 0;
    bool wants_all = at.gates == 3 && !resets_first(k) && (cpu_out(k, 1) || cpu_out(k, 2));
    k->u.rnn.all = wants_all ? round64((uint64_t)(n * t * width) * 4) : 0;
    uint64_t back, weights = 0;
    mf_dnn_matmul mm = {.batch_a = 1,
                        .batch_b = 1,
                        .m = n,
                        .n = units,
                        .k = k->u.rnn.by_gate ? units : width,
                        .trans_b = true,
                        .accumulate = !k->u.rnn.by_gate,
                        .scale = 1,
                        .row_a = width,
                        .row_b = width};
    memfit_status status = cpu_product_matmul(k->backend, &mm, create ? &k->product : NULL, &back, err);
    mm = (mf_dnn_matmul){.batch_a = 1,
                         .batch_b = 1,
                         .m = units,
                         .n = k->u.rnn.by_gate ? units : width,
                         .k = n * t,
                         .trans_a = true,
                         .accumulate = cpu_adds(k, 1),
                         .scale = 1,
                         .row_b = width,
                         .row_c = width};
    if (status == MEMFIT_OK && cpu_out(k, 1))
        status = cpu_product_matmul(k->backend, &mm, create ? &k->product2 : NULL, &weights, err);
    if (status != MEMFIT_OK)
        return status;
    *workspace = 2 * k->u.rnn.state + k->u.rnn.zu + k->u.rnn.dz + k->u.rnn.all + k->u.rnn.masks + k->u.rnn.part +
                 (back > weights ? back : weights);
    return MEMFIT_OK;
}

/* The state before each step, at that step's own place in time. */
static void states_before(const cpu_kernel *k, const float *h, const float *h0, float *out)
{
    int64_t u = k->u.rnn.u, t = k->u.rnn.t;
    for (int64_t n = 0; n < k->u.rnn.n; n++)
        for (int64_t i = 0; i < t; i++) {
            float *to = out + (n * t + time_of(k, i)) * u;
            if (i > 0)
                memcpy(to, h + (n * t + time_of(k, i - 1)) * u, (size_t)u * 4);
            else
                start_state(h0 ? h0 + n * u : NULL, to, (uint64_t)u * 4);
        }
}

/* The places of a gradient's workspace. */
typedef struct grad_space {
    float *dh, *dc, *d, *before, *all, *masks, *part;
    void *own;
} grad_space;

static grad_space space_of(const cpu_kernel *k, void *workspace)
{
    unsigned char *w = workspace;
    uint64_t state = k->u.rnn.state, d = 2 * state, before = d + k->u.rnn.zu, all = before + k->u.rnn.dz;
    uint64_t masks = all + k->u.rnn.all, part = masks + k->u.rnn.masks;
    return (grad_space){(float *)(void *)w,          (float *)(void *)(w + state),
                        (float *)(void *)(w + d),    (float *)(void *)(w + before),
                        (float *)(void *)(w + all),  (float *)(void *)(w + masks),
                        (float *)(void *)(w + part), w + part + k->u.rnn.part};
}

/* One step back: dh and dc from this step's state to what does not pass through the product, d for the product. */
static void step_back(const cpu_kernel *k, const mf_operands *o, const rnn_places *at, const grad_space *g,
                      mf_k_rnn *shape, int64_t i)
{
    int64_t u = k->u.rnn.u, t = time_of(k, i), from = i > 0 ? time_of(k, i - 1) * u : 0;
    int threads = cpu_threads(k);
    const mf_kernel_table *kt = k->backend->k;
    const unsigned char *mask = operand_of(k, o, at->mask);
    const float *dh_out = operand_of(k, o, 0), *h = o->in[at->h];
    const float *h0 = operand_of(k, o, at->h0), *c0 = operand_of(k, o, at->c0);
    float *dz = (float *)o->out[0] + t * at->gates * u;
    shape->mask = mask ? mask + t : NULL;
    dh_out = dh_out ? dh_out + t * u : NULL;
    if (at->gates == 4) {
        const float *c = o->in[at->c], *gates = o->in[at->gates_in];
        kt->lstm_back(shape, dh_out, gates + t * 4 * u, c + t * u, i > 0 ? c + from : c0, i > 0 ? shape->h_step : u,
                      g->dh, g->dc, g->d, dz, threads);
    } else if (at->gates == 3) {
        const float *gates = o->in[at->gates_in];
        kt->gru_back(shape, dh_out, gates + t * 4 * u, i > 0 ? h + from : h0, i > 0 ? shape->h_step : u, g->dh, g->d,
                     k->u.rnn.all ? g->all + t * 3 * u : NULL, dz, threads);
    } else {
        kt->rnn_back(shape, k->op->attr.rnn.activation, dh_out, h + t * u, g->dh, g->d, dz, threads);
    }
}

/* dh += d u^T; the candidate of a GRU that resets first comes before the gates, since the reset gate's part of d
 * follows from it. */
static memfit_status product_back(const cpu_kernel *k, const mf_operands *o, const rnn_places *at, const grad_space *g,
                                  const mf_k_rnn *shape, int64_t i, memfit_error *err)
{
    float *u = o->in[at->u];
    memfit_status status = MEMFIT_OK;
    if (!k->u.rnn.by_gate)
        return cpu_product_run(k->product, (void *[3]){g->d, u, g->dh}, g->own, err);
    for (int64_t gate = at->gates; gate-- > 0 && status == MEMFIT_OK;) {
        int64_t units = k->u.rnn.u, first = gate * units, t = time_of(k, i);
        status = cpu_product_run(k->product, (void *[3]){g->d + first, u + first, g->part}, g->own, err);
        if (!shape->reset_first || gate < 2) {
            under_mask(k, g->masks, gate, 1, g->part, true, g->dh);
            continue;
        }
        const float *h0 = operand_of(k, o, at->h0), *h = o->in[at->h], *gates = o->in[at->gates_in];
        under_mask(k, g->masks, gate, 1, g->part, false, g->part);
        k->backend->k->gru_reset_back(shape, gates + t * 4 * units, i > 0 ? h + time_of(k, i - 1) * units : h0,
                                      i > 0 ? shape->h_step : units, g->part, g->dh, g->d,
                                      (float *)o->out[0] + t * 3 * units, cpu_threads(k));
    }
    return status;
}

/* du = the states before, as each gate read them, times d; over all steps at once. */
static memfit_status product_weights(const cpu_kernel *k, const mf_operands *o, const rnn_places *at,
                                     const grad_space *g, memfit_error *err)
{
    float *d = k->u.rnn.all ? g->all : o->out[0], *du = o->out[1], *h0 = operand_of(k, o, at->h0);
    int64_t units = k->u.rnn.u, rows = k->u.rnn.n * k->u.rnn.t;
    memfit_status status = MEMFIT_OK;
    for (int64_t gate = 0; gate < (k->u.rnn.by_gate ? at->gates : 1) && status == MEMFIT_OK; gate++) {
        states_before(k, o->in[at->h], h0, g->before);
        if (gate == 2 && resets_first(k))
            for (int64_t i = 0; i < rows * units; i++)
                g->before[i] *= ((const float *)o->in[at->gates_in])[i / units * 4 * units + units + i % units];
        if (g->masks)
            under_mask(k, g->masks, gate, k->u.rnn.t, g->before, false, g->before);
        status = cpu_product_run(k->product2, (void *[3]){g->before, d + gate * units, du + gate * units}, g->own, err);
    }
    return status;
}

static void sum_rows(const float *rows, int64_t count, int64_t width, bool add, float *out)
{
    if (!add)
        memset(out, 0, (size_t)width * sizeof *out);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++)
            out[j] += rows[i * width + j];
}

static memfit_status run_grad(cpu_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    rnn_places at = places_of(k->op->kind);
    grad_space g = space_of(k, o->workspace);
    g.masks = draw_masks(k, g.masks, s);
    uint64_t bytes = (uint64_t)(k->u.rnn.n * k->u.rnn.u) * 4;
    mf_k_rnn shape = shape_of(k);
    start_state(operand_of(k, o, at.dh_last), g.dh, bytes);
    start_state(operand_of(k, o, at.dc_last), g.dc, bytes);
    for (int64_t i = k->u.rnn.t; i-- > 0;) {
        step_back(k, o, &at, &g, &shape, i);
        memfit_status status = product_back(k, o, &at, &g, &shape, i, err);
        if (status != MEMFIT_OK)
            return status;
    }
    uint32_t dh0 = at.gates == 3 ? 3 : 2;
    if (cpu_out(k, dh0))
        memcpy(o->out[dh0], g.dh, bytes);
    if (at.gates == 4 && cpu_out(k, 3))
        memcpy(o->out[3], g.dc, bytes);
    if (at.gates == 3 && cpu_out(k, 2))
        sum_rows(g.all, k->u.rnn.n * k->u.rnn.t, 3 * k->u.rnn.u, cpu_adds(k, 2), o->out[2]);
    return cpu_out(k, 1) ? product_weights(k, o, &at, &g, err) : MEMFIT_OK;
}

const cpu_rule cpu_lstm_grad = {bind_grad, run_grad};
const cpu_rule cpu_gru_grad = {bind_grad, run_grad};
const cpu_rule cpu_simple_rnn_grad = {bind_grad, run_grad};
