/* rnn_body.h: see ref_rnn.c. */
#include "ops/reference/real.h"

/* out[j] += sum_k v[k] * u[k][first + j], v under each gate's mask */
static void FN(times)(const rnn *r, const double *v, const REAL *u, int64_t first, int64_t count, double *out)
{
    for (int64_t g = first; g < first + count; g += r->units)
        for (int64_t k = 0; k < r->units; k++) {
            const REAL *row = u + k * r->width + g;
            double vk = r->mask ? v[k] * r->mask[g + k] : v[k];
            for (int64_t j = 0; j < r->units; j++)
                out[g - first + j] += vk * (double)row[j];
        }
}

/* out[k] += sum_j u[k][first + j] * d[j]; du[k][first + j] += v[k] * d[j]; both under each gate's mask */
static void FN(times_back)(const rnn *r, const double *v, const double *d, const REAL *u, int64_t first, int64_t count,
                           double *out, double *du)
{
    for (int64_t g = first; g < first + count; g += r->units)
        for (int64_t k = 0; k < r->units; k++) {
            const REAL *row = u + k * r->width + g;
            double *drow = du + k * r->width + g, sum = 0, keep = r->mask ? r->mask[g + k] : 1;
            for (int64_t j = 0; j < r->units; j++) {
                sum += (double)row[j] * d[g - first + j];
                drow[j] += keep * v[k] * d[g - first + j];
            }
            out[k] += keep * sum;
        }
}

static void FN(load)(const REAL *from, int64_t n, double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = from ? (double)from[i] : 0;
}

static void FN(keep)(const double *from, int64_t n, REAL *to)
{
    for (int64_t i = 0; to && i < n; i++)
        to[i] = (REAL)from[i];
}

static inline REAL *FN(row)(void *data, int64_t row, int64_t width)
{
    return data ? (REAL *)data + row * width : NULL;
}

/* ---- LSTM ---- */
static void FN(lstm_step)(const rnn *r, const REAL *z, const REAL *u, double *h, double *c, double *gate)
{
    int64_t n = r->units;
    FN(load)(z, 4 * n, gate);
    FN(times)(r, h, u, 0, 4 * n, gate);
    for (int64_t j = 0; j < n; j++) {
        gate[j] = activate(r->rec, gate[j]);
        gate[n + j] = activate(r->rec, gate[n + j]);
        gate[2 * n + j] = activate(r->act, gate[2 * n + j]);
        gate[3 * n + j] = activate(r->rec, gate[3 * n + j]);
        c[j] = gate[n + j] * c[j] + gate[j] * gate[2 * n + j];
        h[j] = gate[3 * n + j] * activate(r->act, c[j]);
    }
}

KERNEL(lstm)
{
    (void)err;
    rnn r = rnn_of(call);
    int64_t n = r.units;
    double *h = call->scratch, *c = h + n, *gate = c + n;
    const REAL *u = call->in[1].data;
    void *hs = optional(call->out, call->out_count, 0), *gates = optional(call->out, call->out_count, 1);
    void *cs = optional(call->out, call->out_count, 2), *h_last = optional(call->out, call->out_count, 3);
    void *c_last = optional(call->out, call->out_count, 4);
    for (int64_t b = 0; b < r.batch; b++) {
        draw_mask(&r, call, b);
        FN(load)(FN(row)(optional(call->in, call->in_count, 2), b, n), n, h);
        FN(load)(FN(row)(optional(call->in, call->in_count, 3), b, n), n, c);
        for (int64_t s = 0; s < r.time; s++) {
            int64_t cell = b * r.time + time_of(&r, s);
            if (is_masked(call, 4, cell))
                memset(gate, 0, (uint64_t)(4 * n) * sizeof *gate);
            else
                FN(lstm_step)(&r, (const REAL *)call->in[0].data + cell * r.width, u, h, c, gate);
            FN(keep)(h, n, FN(row)(hs, cell, n));
            FN(keep)(gate, 4 * n, FN(row)(gates, cell, 4 * n));
            FN(keep)(c, n, FN(row)(cs, cell, n));
        }
        FN(keep)(h, n, FN(row)(h_last, b, n));
        FN(keep)(c, n, FN(row)(c_last, b, n));
    }
    return MEMFIT_OK;
}

/* dh, dc: gradients of this step's state; on return those of the state before. d: gradients before the activations. */
static void FN(lstm_back_step)(const rnn *r, const REAL *gate, const REAL *c, const double *h_before,
                               const double *c_before, const REAL *u, double *dh, double *dc, double *d, double *du)
{
    int64_t n = r->units;
    for (int64_t j = 0; j < n; j++) {
        double i = (double)gate[j], f = (double)gate[n + j], g = (double)gate[2 * n + j], o = (double)gate[3 * n + j];
        double ct = (double)c[j], a = activate(r->act, ct);
        double dcj = dc[j] + dh[j] * o * mf_unary_slope(r->act, mf_unary_default_alpha(r->act), 0, false, ct);
        d[j] = dcj * g * slope(r->rec, i);
        d[n + j] = dcj * c_before[j] * slope(r->rec, f);
        d[2 * n + j] = dcj * i * slope(r->act, g);
        d[3 * n + j] = dh[j] * a * slope(r->rec, o);
        dc[j] = dcj * f;
        dh[j] = 0;
    }
    FN(times_back)(r, h_before, d, u, 0, 4 * n, dh, du);
}

/* The state before step s: what step s - 1 left, or the initial one. */
static void FN(state_before)(const rnn *r, const REAL *states, const REAL *initial, int64_t b, int64_t s, double *out)
{
    int64_t n = r->units;
    if (s > 0)
        FN(load)(states + (b * r->time + time_of(r, s - 1)) * n, n, out);
    else
        FN(load)(initial ? initial + b * n : NULL, n, out);
}

static void FN(add)(const REAL *from, int64_t n, double *to)
{
    for (int64_t i = 0; from && i < n; i++)
        to[i] += (double)from[i];
}

KERNEL(lstm_grad)
{
    rnn r = rnn_of(call);
    memfit_status status = check_slopes(&r, true, err);
    if (status)
        return status;
    int64_t n = r.units;
    double *du = call->scratch, *dh = du + n * r.width, *dc = dh + n, *hb = dc + n, *cb = hb + n, *d = cb + n;
    memset(du, 0, (uint64_t)(n * r.width) * sizeof *du);
    const REAL *h0 = optional(call->in, call->in_count, 5), *c0 = optional(call->in, call->in_count, 6);
    void *dz = call->out[0].data;
    for (int64_t b = 0; b < r.batch; b++) {
        draw_mask(&r, call, b);
        FN(load)(FN(row)(optional(call->in, call->in_count, 8), b, n), n, dh);
        FN(load)(FN(row)(optional(call->in, call->in_count, 9), b, n), n, dc);
        for (int64_t s = r.time; s-- > 0;) {
            int64_t cell = b * r.time + time_of(&r, s);
            FN(add)(FN(row)(call->in[0].data, cell, n), n, dh);
            if (is_masked(call, 7, cell))
                memset(d, 0, (uint64_t)(4 * n) * sizeof *d);
            else {
                FN(state_before)(&r, call->in[1].data, h0, b, s, hb);
                FN(state_before)(&r, call->in[3].data, c0, b, s, cb);
                FN(lstm_back_step)
                (&r, FN(row)(call->in[2].data, cell, 4 * n), FN(row)(call->in[3].data, cell, n), hb, cb,
                 call->in[4].data, dh, dc, d, du);
            }
            FN(keep)(d, 4 * n, FN(row)(dz, cell, 4 * n));
        }
        FN(keep)(dh, n, FN(row)(optional(call->out, call->out_count, 2), b, n));
        FN(keep)(dc, n, FN(row)(optional(call->out, call->out_count, 3), b, n));
    }
    FN(keep)(du, n * r.width, optional(call->out, call->out_count, 1));
    return MEMFIT_OK;
}

/* ---- GRU ---- */
/* gate: z, r, candidate, recurrent part of the candidate. */
static void FN(gru_step)(const rnn *r, const REAL *z, const REAL *u, const REAL *bias, double *h, double *gate)
{
    int64_t n = r->units;
    double *rest = gate + 3 * n, *before = gate + 4 * n; /* before: r * h, when the reset comes first */
    FN(load)(bias, 3 * n, gate);
    memcpy(rest, gate + 2 * n, (uint64_t)n * sizeof *gate);
    FN(times)(r, h, u, 0, 2 * n, gate);
    for (int64_t j = 0; j < 2 * n; j++)
        gate[j] = activate(r->rec, gate[j] + (double)z[j]);
    for (int64_t j = 0; j < n; j++)
        before[j] = r->reset_after ? h[j] : gate[n + j] * h[j];
    FN(times)(r, before, u, 2 * n, n, rest);
    for (int64_t j = 0; j < n; j++) {
        gate[2 * n + j] = activate(r->act, (double)z[2 * n + j] + (r->reset_after ? gate[n + j] : 1) * rest[j]);
        h[j] = gate[j] * h[j] + (1 - gate[j]) * gate[2 * n + j];
    }
}

KERNEL(gru)
{
    (void)err;
    rnn r = rnn_of(call);
    int64_t n = r.units;
    double *h = call->scratch, *gate = h + n;
    void *hs = optional(call->out, call->out_count, 0), *gates = optional(call->out, call->out_count, 1);
    void *h_last = optional(call->out, call->out_count, 2);
    for (int64_t b = 0; b < r.batch; b++) {
        draw_mask(&r, call, b);
        FN(load)(FN(row)(optional(call->in, call->in_count, 3), b, n), n, h);
        for (int64_t s = 0; s < r.time; s++) {
            int64_t cell = b * r.time + time_of(&r, s);
            if (is_masked(call, 4, cell))
                memset(gate, 0, (uint64_t)(4 * n) * sizeof *gate);
            else
                FN(gru_step)
            (&r, (const REAL *)call->in[0].data + cell * r.width, call->in[1].data,
             optional(call->in, call->in_count, 2), h, gate);
            FN(keep)(h, n, FN(row)(hs, cell, n));
            FN(keep)(gate, 4 * n, FN(row)(gates, cell, 4 * n));
        }
        FN(keep)(h, n, FN(row)(h_last, b, n));
    }
    return MEMFIT_OK;
}

/* d: gradients before the activations (3n), then of the recurrent part (n), then of r * h (n). */
static void FN(gru_back_step)(const rnn *r, const REAL *gate, const double *h, const REAL *u, double *dh, double *d,
                              double *du)
{
    int64_t n = r->units;
    double *drest = d + 3 * n, *dreset = d + 4 * n, *v = d + 5 * n;
    for (int64_t j = 0; j < n; j++) {
        double z = (double)gate[j], reset = (double)gate[n + j], candidate = (double)gate[2 * n + j];
        d[j] = dh[j] * (h[j] - candidate) * slope(r->rec, z);
        d[2 * n + j] = dh[j] * (1 - z) * slope(r->act, candidate);
        drest[j] = d[2 * n + j] * (r->reset_after ? reset : 1);
        v[j] = r->reset_after ? h[j] : reset * h[j];
        dreset[j] = 0;
        dh[j] *= z;
    }
    FN(times_back)(r, v, drest, u, 2 * n, n, dreset, du);
    for (int64_t j = 0; j < n; j++) {
        double reset = (double)gate[n + j], rest = (double)gate[3 * n + j];
        d[n + j] = (r->reset_after ? d[2 * n + j] * rest : dreset[j] * h[j]) * slope(r->rec, reset);
        dh[j] += r->reset_after ? dreset[j] : dreset[j] * reset;
    }
    FN(times_back)(r, h, d, u, 0, 2 * n, dh, du);
}

KERNEL(gru_grad)
{
    rnn r = rnn_of(call);
    memfit_status status = check_slopes(&r, true, err);
    if (status)
        return status;
    int64_t n = r.units;
    double *du = call->scratch, *dbias = du + n * r.width, *dh = dbias + 3 * n, *hb = dh + n, *d = hb + n;
    memset(du, 0, (uint64_t)(n * r.width + 3 * n) * sizeof *du);
    for (int64_t b = 0; b < r.batch; b++) {
        draw_mask(&r, call, b);
        FN(load)(FN(row)(optional(call->in, call->in_count, 7), b, n), n, dh);
        for (int64_t s = r.time; s-- > 0;) {
            int64_t cell = b * r.time + time_of(&r, s);
            FN(add)(FN(row)(call->in[0].data, cell, n), n, dh);
            if (is_masked(call, 6, cell))
                memset(d, 0, (uint64_t)(4 * n) * sizeof *d);
            else {
                FN(state_before)(&r, call->in[1].data, optional(call->in, call->in_count, 5), b, s, hb);
                FN(gru_back_step)(&r, FN(row)(call->in[2].data, cell, 4 * n), hb, call->in[3].data, dh, d, du);
            }
            for (int64_t j = 0; j < 3 * n; j++)
                dbias[j] += j < 2 * n ? d[j] : d[n + j];
            FN(keep)(d, 3 * n, FN(row)(call->out[0].data, cell, 3 * n));
        }
        FN(keep)(dh, n, FN(row)(optional(call->out, call->out_count, 3), b, n));
    }
    FN(keep)(du, n * r.width, optional(call->out, call->out_count, 1));
    FN(keep)(dbias, 3 * n, optional(call->out, call->out_count, 2));
    return MEMFIT_OK;
}

/* ---- simple RNN ---- */
KERNEL(simple_rnn)
{
    (void)err;
    rnn r = rnn_of(call);
    int64_t n = r.units;
    double *h = call->scratch, *next = h + n;
    void *hs = optional(call->out, call->out_count, 0), *h_last = optional(call->out, call->out_count, 1);
    for (int64_t b = 0; b < r.batch; b++) {
        draw_mask(&r, call, b);
        FN(load)(FN(row)(optional(call->in, call->in_count, 2), b, n), n, h);
        for (int64_t s = 0; s < r.time; s++) {
            int64_t cell = b * r.time + time_of(&r, s);
            if (!is_masked(call, 3, cell)) {
                FN(load)((const REAL *)call->in[0].data + cell * n, n, next);
                FN(times)(&r, h, call->in[1].data, 0, n, next);
                for (int64_t j = 0; j < n; j++)
                    h[j] = activate(r.act, next[j]);
            }
            FN(keep)(h, n, FN(row)(hs, cell, n));
        }
        FN(keep)(h, n, FN(row)(h_last, b, n));
    }
    return MEMFIT_OK;
}

KERNEL(simple_rnn_grad)
{
    rnn r = rnn_of(call);
    memfit_status status = check_slopes(&r, false, err);
    if (status)
        return status;
    int64_t n = r.units;
    double *du = call->scratch, *dh = du + n * r.width, *hb = dh + n, *d = hb + n;
    memset(du, 0, (uint64_t)(n * r.width) * sizeof *du);
    for (int64_t b = 0; b < r.batch; b++) {
        draw_mask(&r, call, b);
        FN(load)(FN(row)(optional(call->in, call->in_count, 5), b, n), n, dh);
        for (int64_t s = r.time; s-- > 0;) {
            int64_t cell = b * r.time + time_of(&r, s);
            const REAL *h = FN(row)(call->in[1].data, cell, n);
            bool masked = is_masked(call, 4, cell);
            FN(add)(FN(row)(call->in[0].data, cell, n), n, dh);
            for (int64_t j = 0; j < n; j++) {
                d[j] = masked ? 0 : dh[j] * slope(r.act, (double)h[j]);
                dh[j] = masked ? dh[j] : 0;
            }
            if (!masked) {
                FN(state_before)(&r, call->in[1].data, optional(call->in, call->in_count, 3), b, s, hb);
                FN(times_back)(&r, hb, d, call->in[2].data, 0, n, dh, du);
            }
            FN(keep)(d, n, FN(row)(call->out[0].data, cell, n));
        }
        FN(keep)(dh, n, FN(row)(optional(call->out, call->out_count, 2), b, n));
    }
    FN(keep)(du, n * r.width, optional(call->out, call->out_count, 1));
    return MEMFIT_OK;
}
