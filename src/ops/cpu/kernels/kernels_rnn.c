/*
 * kernels_rnn.c: the pointwise part of one step of LSTM, GRU (the reset after or before its product) and simple RNN,
 * for all samples. Gates are kept after their activations in Keras's order: i, f, g, o; z, r, candidate, recurrent part
 * of the candidate. Activations: tanh, sigmoid, hard sigmoid (both of Keras's), relu and linear (others go to the
 * reference operations); the rows of the usual pairs are compiled for these, so that they vectorise.
 *
 * Going back, `dh` comes with the gradient of the step's state and leaves with the part of the gradient of the state
 * before that does not pass through the product; the product of `d` with the recurrent matrix is added by the caller. A
 * masked sample hands its state on, and its gradient back.
 */
#include "ops/cpu/kernels/kernels_isa.h"

static inline bool kept(const mf_k_rnn *k, int64_t n)
{
    return !k->mask || k->mask[n * k->mask_step];
}

static inline void put(float *to, const float *from, int64_t count)
{
    if (to)
        memcpy(to, from, (size_t)count * sizeof *to);
}

static inline void clear(float *to, int64_t count)
{
    if (to)
        memset(to, 0, (size_t)count * sizeof *to);
}

static inline float between(float x)
{
    return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x;
}

static inline float act_of(mf_unary f, float x)
{
    return f == MF_UNARY_TANH                 ? mf_k_tanh(x)
           : f == MF_UNARY_SIGMOID            ? mf_k_sigmoid(x)
           : f == MF_UNARY_RELU               ? (x > 0.0f ? x : 0.0f)
           : f == MF_UNARY_HARD_SIGMOID       ? between(x * (1.0f / 6) + 0.5f)
           : f == MF_UNARY_HARD_SIGMOID_FIFTH ? between(0.2f * x + 0.5f)
                                              : x;
}

/* By the value y. */
static inline float slope_of(mf_unary f, float y)
{
    return f == MF_UNARY_TANH                 ? 1.0f - y * y
           : f == MF_UNARY_SIGMOID            ? y * (1.0f - y)
           : f == MF_UNARY_RELU               ? (y > 0.0f ? 1.0f : 0.0f)
           : f == MF_UNARY_HARD_SIGMOID       ? (y > 0.0f && y < 1.0f ? 1.0f / 6 : 0.0f)
           : f == MF_UNARY_HARD_SIGMOID_FIFTH ? (y > 0.0f && y < 1.0f ? 0.2f : 0.0f)
                                              : 1.0f;
}

#define ROW static inline __attribute__((always_inline)) void

/* Calls row(act, gate, ...) with constants where the pair is a usual one. */
#define WITH_FUNCTIONS(row, ...)                                                                                       \
    (k->act == MF_UNARY_TANH && k->gate == MF_UNARY_SIGMOID   ? row(MF_UNARY_TANH, MF_UNARY_SIGMOID, __VA_ARGS__)      \
     : k->act == MF_UNARY_RELU && k->gate == MF_UNARY_SIGMOID ? row(MF_UNARY_RELU, MF_UNARY_SIGMOID, __VA_ARGS__)      \
     : k->act == MF_UNARY_TANH && k->gate == MF_UNARY_HARD_SIGMOID_FIFTH                                               \
         ? row(MF_UNARY_TANH, MF_UNARY_HARD_SIGMOID_FIFTH, __VA_ARGS__)                                                \
         : row(k->act, k->gate, __VA_ARGS__))

/* ---- LSTM ---------------------------------------------------------------------------------------------------- */

ROW lstm_row(mf_unary act, mf_unary gate, int64_t u, const float *z, const float *zu, float *h, float *c,
             float *kept_to)
{
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        float i = act_of(gate, z[j] + zu[j]), f = act_of(gate, z[u + j] + zu[u + j]);
        float g = act_of(act, z[2 * u + j] + zu[2 * u + j]), o = act_of(gate, z[3 * u + j] + zu[3 * u + j]);
        float cell = f * c[j] + i * g;
        c[j] = cell;
        h[j] = o * act_of(act, cell);
        if (kept_to) {
            kept_to[j] = i;
            kept_to[u + j] = f;
            kept_to[2 * u + j] = g;
            kept_to[3 * u + j] = o;
        }
    }
}

void MF_K(lstm_step)(const mf_k_rnn *k, const float *z, const float *zu, float *h, float *c, float *h_out, float *gates,
                     float *c_out, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *zn = z + n * k->z_step, *un = zu + n * 4 * u;
            float *hn = h + n * u, *cn = c + n * u;
            float *go = gates ? gates + n * k->gate_step : NULL;
            if (kept(k, n))
                WITH_FUNCTIONS(lstm_row, u, zn, un, hn, cn, go);
            else
                clear(go, 4 * u);
            put(h_out ? h_out + n * k->h_step : NULL, hn, u);
            put(c_out ? c_out + n * k->h_step : NULL, cn, u);
        }
    }
}

ROW lstm_row_back(mf_unary act, mf_unary gate, int64_t u, const float *gates, const float *c, const float *c_before,
                  float *dh, float *dc, float *d)
{
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        float i = gates[j], f = gates[u + j], g = gates[2 * u + j], o = gates[3 * u + j], a = act_of(act, c[j]);
        float dcj = dc[j] + dh[j] * o * slope_of(act, a);
        d[j] = dcj * g * slope_of(gate, i);
        d[u + j] = dcj * (c_before ? c_before[j] : 0.0f) * slope_of(gate, f);
        d[2 * u + j] = dcj * i * slope_of(act, g);
        d[3 * u + j] = dh[j] * a * slope_of(gate, o);
        dc[j] = dcj * f;
        dh[j] = 0.0f;
    }
}

/* dh, dc: of this step's state; on return dc is of the state before. d receives the gradients before the activations.
 */
void MF_K(lstm_back)(const mf_k_rnn *k, const float *dh_out, const float *gates, const float *c, const float *c_before,
                     int64_t c_before_step, float *dh, float *dc, float *d, float *dz, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *g4 = gates + n * k->gate_step, *cn = c + n * k->h_step;
            const float *cb = c_before ? c_before + n * c_before_step : NULL;
            const float *dho = dh_out ? dh_out + n * k->h_step : NULL;
            float *dhn = dh + n * u, *dcn = dc + n * u, *dn = d + n * 4 * u;
            for (int64_t j = 0; dho && j < u; j++)
                dhn[j] += dho[j];
            if (kept(k, n))
                WITH_FUNCTIONS(lstm_row_back, u, g4, cn, cb, dhn, dcn, dn);
            else
                clear(dn, 4 * u);
            put(dz + n * k->z_step, dn, 4 * u);
        }
    }
}

/* ---- GRU ----------------------------------------------------------------------------------------------------- */

ROW gru_row(mf_unary act, mf_unary gate, bool first, int64_t u, const float *z, const float *zu, float *h,
            float *kept_to)
{
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        float update = act_of(gate, z[j] + zu[j]), reset = act_of(gate, z[u + j] + zu[u + j]);
        float rest = zu[2 * u + j], candidate = act_of(act, z[2 * u + j] + (first ? rest : reset * rest));
        h[j] = update * h[j] + (1.0f - update) * candidate;
        if (kept_to) {
            kept_to[j] = update;
            kept_to[u + j] = reset;
            kept_to[2 * u + j] = candidate;
            kept_to[3 * u + j] = rest;
        }
    }
}

void MF_K(gru_step)(const mf_k_rnn *k, const float *z, const float *zu, float *h, float *h_out, float *gates,
                    int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *zn = z + n * k->z_step, *un = zu + n * 3 * u;
            float *hn = h + n * u, *go = gates ? gates + n * k->gate_step : NULL;
            if (!kept(k, n))
                clear(go, 4 * u);
            else if (k->reset_first) /* a constant: a choice within the row would keep it from vectors */
                WITH_FUNCTIONS(gru_row, true, u, zn, un, hn, go);
            else
                WITH_FUNCTIONS(gru_row, false, u, zn, un, hn, go);
            put(h_out ? h_out + n * k->h_step : NULL, hn, u);
        }
    }
}

ROW gru_row_back(mf_unary act, mf_unary gate, bool first, int64_t u, const float *gates, const float *h_before,
                 float *dh, float *d, float *dz)
{
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        float update = gates[j], reset = gates[u + j], candidate = gates[2 * u + j], rest = gates[3 * u + j];
        float da = dh[j] * ((h_before ? h_before[j] : 0.0f) - candidate) * slope_of(gate, update);
        float dc = dh[j] * (1.0f - update) * slope_of(act, candidate);
        float dr = dc * rest * slope_of(gate, reset);
        d[j] = dz[j] = da;
        d[u + j] = dz[u + j] = dr;
        d[2 * u + j] = first ? dc : dc * reset;
        dz[2 * u + j] = dc;
        dh[j] *= update;
    }
}

/* d and d_all (which may be NULL): gradients of what the product gave; dz: of what came from the input. With the reset
 * first those of the reset gate are not known yet: gru_reset_back puts them there. */
void MF_K(gru_back)(const mf_k_rnn *k, const float *dh_out, const float *gates, const float *h_before,
                    int64_t h_before_step, float *dh, float *d, float *d_all, float *dz, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *g4 = gates + n * k->gate_step;
            const float *hb = h_before ? h_before + n * h_before_step : NULL;
            const float *dho = dh_out ? dh_out + n * k->h_step : NULL;
            float *dhn = dh + n * u, *dn = d + n * 3 * u, *dzn = dz + n * k->z_step;
            for (int64_t j = 0; dho && j < u; j++)
                dhn[j] += dho[j];
            if (!kept(k, n)) {
                clear(dn, 3 * u);
                clear(dzn, 3 * u);
            } else if (k->reset_first) {
                WITH_FUNCTIONS(gru_row_back, true, u, g4, hb, dhn, dn, dzn);
            } else {
                WITH_FUNCTIONS(gru_row_back, false, u, g4, hb, dhn, dn, dzn);
            }
            put(d_all ? d_all + n * k->z_step : NULL, dn, 3 * u);
        }
    }
}

ROW reset_row(mf_unary gate, int64_t u, const float *z, const float *zu, const float *h, float *out)
{
#pragma omp simd
    for (int64_t j = 0; j < u; j++)
        out[j] = h[j] * act_of(gate, z[j] + zu[j]);
}

/* The reset first: out is what the candidate's product reads, the state times the reset gate. */
void MF_K(gru_reset)(const mf_k_rnn *k, const float *z, const float *zu, const float *h, float *out, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *zn = z + n * k->z_step + u, *un = zu + n * 3 * u + u, *hn = h + n * u;
            float *on = out + n * u;
            if (k->gate == MF_UNARY_SIGMOID)
                reset_row(MF_UNARY_SIGMOID, u, zn, un, hn, on);
            else
                reset_row(k->gate, u, zn, un, hn, on);
        }
    }
}

ROW reset_row_back(mf_unary gate, int64_t u, const float *reset, const float *h_before, const float *part, float *dh,
                   float *d, float *dz)
{
#pragma omp simd
    for (int64_t j = 0; j < u; j++) {
        d[j] = dz[j] = part[j] * (h_before ? h_before[j] : 0.0f) * slope_of(gate, reset[j]);
        dh[j] += part[j] * reset[j];
    }
}

/* part: gradient of the state times the reset gate. Adds to dh; d and dz receive the reset gate's. */
void MF_K(gru_reset_back)(const mf_k_rnn *k, const float *gates, const float *h_before, int64_t h_before_step,
                          const float *part, float *dh, float *d, float *dz, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *reset = gates + n * k->gate_step + u, *pn = part + n * u;
            const float *hb = h_before ? h_before + n * h_before_step : NULL;
            float *dhn = dh + n * u, *dn = d + n * 3 * u + u, *dzn = dz + n * k->z_step + u;
            if (k->gate == MF_UNARY_SIGMOID)
                reset_row_back(MF_UNARY_SIGMOID, u, reset, hb, pn, dhn, dn, dzn);
            else
                reset_row_back(k->gate, u, reset, hb, pn, dhn, dn, dzn);
        }
    }
}

/* ---- simple RNN ---------------------------------------------------------------------------------------------- */

void MF_K(rnn_step)(const mf_k_rnn *k, mf_unary function, const float *z, const float *zu, float *h, float *h_out,
                    int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *zn = z + n * k->z_step, *un = zu + n * u;
            float *hn = h + n * u;
            if (kept(k, n) && function == MF_UNARY_TANH) {
#pragma omp simd
                for (int64_t j = 0; j < u; j++)
                    hn[j] = mf_k_tanh(zn[j] + un[j]);
            } else if (kept(k, n)) {
                for (int64_t j = 0; j < u; j++) {
                    float x = zn[j] + un[j];
                    hn[j] = function == MF_UNARY_RELU ? (x > 0.0f ? x : 0.0f) : x;
                }
            }
            put(h_out ? h_out + n * k->h_step : NULL, hn, u);
        }
    }
}

void MF_K(rnn_back)(const mf_k_rnn *k, mf_unary function, const float *dh_out, const float *h, float *dh, float *d,
                    float *dz, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *hn = h + n * k->h_step, *dho = dh_out ? dh_out + n * k->h_step : NULL;
            float *dhn = dh + n * u, *dn = d + n * u;
            for (int64_t j = 0; dho && j < u; j++)
                dhn[j] += dho[j];
            if (kept(k, n)) {
                for (int64_t j = 0; j < u; j++) {
                    float slope = 1.0f;
                    if (function == MF_UNARY_TANH)
                        slope = 1.0f - hn[j] * hn[j];
                    else if (function == MF_UNARY_RELU)
                        slope = hn[j] > 0.0f ? 1.0f : 0.0f;
                    dn[j] = dhn[j] * slope;
                    dhn[j] = 0.0f;
                }
            } else {
                clear(dn, u);
            }
            put(dz + n * k->z_step, dn, u);
        }
    }
}
