/*
 * kernels_rnn.c: the pointwise part of one step of LSTM, GRU (reset after the product, Keras's default) and simple RNN,
 * for all samples. Gates are kept after their activations in Keras's order: i, f, g, o; z, r, candidate, recurrent part
 * of the candidate. tanh and sigmoid for the gated ones (others go to the reference operations).
 *
 * Going back, `dh` comes with the gradient of the step's state and leaves with the part of the gradient of the state
 * before that does not pass through the product; the product of `d` with the recurrent matrix is added by the caller. A
 * masked sample hands its state on, and its gradient back.
 */
#include "ops/kernels_isa.h"

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

/* ---- LSTM ---------------------------------------------------------------------------------------------------- */

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
            if (kept(k, n)) {
#pragma omp simd
                for (int64_t j = 0; j < u; j++) {
                    float i = mf_k_sigmoid(zn[j] + un[j]), f = mf_k_sigmoid(zn[u + j] + un[u + j]);
                    float g = mf_k_tanh(zn[2 * u + j] + un[2 * u + j]), o = mf_k_sigmoid(zn[3 * u + j] + un[3 * u + j]);
                    float cell = f * cn[j] + i * g;
                    cn[j] = cell;
                    hn[j] = o * mf_k_tanh(cell);
                    if (go) {
                        go[j] = i;
                        go[u + j] = f;
                        go[2 * u + j] = g;
                        go[3 * u + j] = o;
                    }
                }
            } else {
                clear(go, 4 * u);
            }
            put(h_out ? h_out + n * k->h_step : NULL, hn, u);
            put(c_out ? c_out + n * k->h_step : NULL, cn, u);
        }
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
            if (kept(k, n)) {
#pragma omp simd
                for (int64_t j = 0; j < u; j++) {
                    float i = g4[j], f = g4[u + j], g = g4[2 * u + j], o = g4[3 * u + j], a = mf_k_tanh(cn[j]);
                    float dcj = dcn[j] + dhn[j] * o * (1.0f - a * a);
                    dn[j] = dcj * g * i * (1.0f - i);
                    dn[u + j] = dcj * (cb ? cb[j] : 0.0f) * f * (1.0f - f);
                    dn[2 * u + j] = dcj * i * (1.0f - g * g);
                    dn[3 * u + j] = dhn[j] * a * o * (1.0f - o);
                    dcn[j] = dcj * f;
                    dhn[j] = 0.0f;
                }
            } else {
                clear(dn, 4 * u);
            }
            put(dz + n * k->z_step, dn, 4 * u);
        }
    }
}

/* ---- GRU ----------------------------------------------------------------------------------------------------- */

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
            if (kept(k, n)) {
#pragma omp simd
                for (int64_t j = 0; j < u; j++) {
                    float update = mf_k_sigmoid(zn[j] + un[j]), reset = mf_k_sigmoid(zn[u + j] + un[u + j]);
                    float rest = un[2 * u + j], candidate = mf_k_tanh(zn[2 * u + j] + reset * rest);
                    hn[j] = update * hn[j] + (1.0f - update) * candidate;
                    if (go) {
                        go[j] = update;
                        go[u + j] = reset;
                        go[2 * u + j] = candidate;
                        go[3 * u + j] = rest;
                    }
                }
            } else {
                clear(go, 4 * u);
            }
            put(h_out ? h_out + n * k->h_step : NULL, hn, u);
        }
    }
}

/* d and d_all (which may be NULL): gradients of what the product gave; dz: of what came from the input. */
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
            if (kept(k, n)) {
#pragma omp simd
                for (int64_t j = 0; j < u; j++) {
                    float update = g4[j], reset = g4[u + j], candidate = g4[2 * u + j], rest = g4[3 * u + j];
                    float da = dhn[j] * ((hb ? hb[j] : 0.0f) - candidate) * update * (1.0f - update);
                    float dc = dhn[j] * (1.0f - update) * (1.0f - candidate * candidate);
                    float dr = dc * rest * reset * (1.0f - reset);
                    dn[j] = dzn[j] = da;
                    dn[u + j] = dzn[u + j] = dr;
                    dn[2 * u + j] = dc * reset;
                    dzn[2 * u + j] = dc;
                    dhn[j] *= update;
                }
            } else {
                clear(dn, 3 * u);
                clear(dzn, 3 * u);
            }
            put(d_all ? d_all + n * k->z_step : NULL, dn, 3 * u);
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
