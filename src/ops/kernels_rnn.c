/*
 * kernels_rnn.c: the pointwise part of one LSTM step, for all samples. Gates are kept after their activations in
 * Keras's order i, f, g, o; tanh and sigmoid only (others go to the reference operations).
 */
#include "ops/kernels_isa.h"

void MF_K(lstm_step)(const mf_k_lstm *k, const float *z, const float *zu, float *h, float *c, float *h_out,
                     float *gates, float *c_out, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *zn = z + n * k->z_step, *un = zu + n * 4 * u;
            float *hn = h + n * u, *cn = c + n * u;
            float *ho = h_out ? h_out + n * k->h_step : NULL, *co = c_out ? c_out + n * k->h_step : NULL;
            float *go = gates ? gates + n * k->z_step : NULL;
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
            if (ho)
                memcpy(ho, hn, (size_t)u * sizeof *hn);
            if (co)
                memcpy(co, cn, (size_t)u * sizeof *cn);
        }
    }
}

/* dh, dc: of this step's state; on return dc is of the state before. d receives the gradients before the activations.
 */
void MF_K(lstm_back)(const mf_k_lstm *k, const float *dh_out, const float *gates, const float *c, const float *c_before,
                     int64_t c_before_step, const float *dh, float *dc, float *d, float *dz, int threads)
{
    const int64_t u = k->units;
#pragma omp parallel num_threads(threads) if (k->batch * u > MF_K_GRAIN / 8)
    {
        mf_k_range r = mf_k_share(k->batch, 1);
        for (int64_t n = r.from; n < r.to; n++) {
            const float *g4 = gates + n * k->z_step, *cn = c + n * k->h_step, *dhn = dh + n * u;
            const float *cb = c_before ? c_before + n * c_before_step : NULL;
            const float *dho = dh_out ? dh_out + n * k->h_step : NULL;
            float *dcn = dc + n * u, *dn = d + n * 4 * u;
#pragma omp simd
            for (int64_t j = 0; j < u; j++) {
                float i = g4[j], f = g4[u + j], g = g4[2 * u + j], o = g4[3 * u + j], a = mf_k_tanh(cn[j]);
                float dhj = dhn[j] + (dho ? dho[j] : 0.0f);
                float dcj = dcn[j] + dhj * o * (1.0f - a * a);
                dn[j] = dcj * g * i * (1.0f - i);
                dn[u + j] = dcj * (cb ? cb[j] : 0.0f) * f * (1.0f - f);
                dn[2 * u + j] = dcj * i * (1.0f - g * g);
                dn[3 * u + j] = dhj * a * o * (1.0f - o);
                dcn[j] = dcj * f;
            }
            memcpy(dz + n * k->z_step, dn, (size_t)(4 * u) * sizeof *dn);
        }
    }
}
