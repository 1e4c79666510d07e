/*
 * kernels_train.c: losses and their gradients, optimizer updates, gradient scaling. Formulas are Keras's on the
 * TensorFlow back end: losses behind softmax and sigmoid take logits, Adam's epsilon stands outside the bias
 * correction.
 */
#include "ops/cpu/kernels/kernels_isa.h"

/* ---- losses ----------------------------------------------------------------------------------------------- */

static float log_sum_exp(const float *x, int64_t c)
{
    float m = x[0], sum = 0;
#pragma omp simd reduction(max : m)
    for (int64_t j = 0; j < c; j++)
        m = x[j] > m ? x[j] : m;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < c; j++)
        sum += mf_k_exp(x[j] - m);
    return m + logf(sum);
}

static float pointwise_loss(const mf_k_loss *k, const float *p, const float *t)
{
    const int64_t c = k->columns;
    const float keep = 1.0f - (float)k->label_smoothing, rest = 0.5f * (float)k->label_smoothing;
    const float delta = (float)k->delta;
    float s = 0;
    if (k->function == MF_LOSS_MSE) {
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < c; j++)
            s += (p[j] - t[j]) * (p[j] - t[j]);
    } else if (k->function == MF_LOSS_MAE) {
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < c; j++)
            s += fabsf(p[j] - t[j]);
    } else if (k->function == MF_LOSS_HUBER) {
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < c; j++) {
            float e = fabsf(p[j] - t[j]);
            s += e <= delta ? 0.5f * e * e : delta * e - 0.5f * delta * delta;
        }
    } else { /* binary cross-entropy of logits */
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < c; j++)
            s += mf_k_softplus(p[j]) - p[j] * (t[j] * keep + rest);
    }
    return s / (float)c;
}

static float categorical_loss(const mf_k_loss *k, const float *p, const float *t)
{
    const int64_t c = k->columns;
    const float keep = 1.0f - (float)k->label_smoothing, rest = (float)k->label_smoothing / (float)c;
    const float l = log_sum_exp(p, c);
    float s = 0;
#pragma omp simd reduction(+ : s)
    for (int64_t j = 0; j < c; j++)
        s += (t[j] * keep + rest) * (l - p[j]);
    return s;
}

static double row_loss(const mf_k_loss *k, const float *p, const void *t, int64_t i)
{
    const int64_t c = k->columns;
    if (k->function == MF_LOSS_SCCE_LOGITS) {
        int64_t j = mf_k_label(k->target_type, t, i);
        return (double)(j >= 0 && j < c ? log_sum_exp(p + i * c, c) - p[i * c + j] : NAN);
    }
    if (k->function == MF_LOSS_CCE_LOGITS)
        return (double)categorical_loss(k, p + i * c, (const float *)t + i * c);
    return (double)pointwise_loss(k, p + i * c, (const float *)t + i * c);
}

double MF_K(loss)(const mf_k_loss *k, const float *p, const void *t, const float *weight, int threads)
{
    double total = 0, part[MF_K_BLOCKS] = {0};
#pragma omp parallel for num_threads(threads) schedule(static) if (k->rows * k->columns > MF_K_GRAIN / 4)
    for (int b = 0; b < MF_K_BLOCKS; b++) {
        mf_k_range r = mf_k_block(k->rows, b);
        for (int64_t i = r.from; i < r.to; i++) {
            double row = row_loss(k, p, t, i);
            part[b] += weight ? row * (double)weight[i / k->rows_per_sample] : row;
        }
    }
    for (int b = 0; b < MF_K_BLOCKS; b++)
        total += part[b];
    return total * k->factor;
}

static void pointwise_loss_grad(const mf_k_loss *k, const float *p, const float *t, float w, float *d)
{
    const int64_t c = k->columns;
    const float keep = 1.0f - (float)k->label_smoothing, rest = 0.5f * (float)k->label_smoothing;
    const float delta = (float)k->delta;
    w /= (float)c;
    if (k->function == MF_LOSS_MSE) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            d[j] = 2.0f * w * (p[j] - t[j]);
    } else if (k->function == MF_LOSS_MAE) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            d[j] = p[j] > t[j] ? w : p[j] < t[j] ? -w : 0.0f;
    } else if (k->function == MF_LOSS_HUBER) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++) {
            float e = p[j] - t[j];
            d[j] = w * (e > delta ? delta : e < -delta ? -delta : e);
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            d[j] = w * (mf_k_sigmoid(p[j]) - (t[j] * keep + rest));
    }
}

/* Softmax of p minus the targets, whatever they sum to: as TensorFlow does it. */
static void categorical_loss_grad(const mf_k_loss *k, const float *p, const float *t, int64_t hot, float w, float *d)
{
    const int64_t c = k->columns;
    const float l = log_sum_exp(p, c);
    if (!t) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            d[j] = w * mf_k_exp(p[j] - l);
        if (hot >= 0 && hot < c)
            d[hot] -= w;
        return;
    }
    const float keep = 1.0f - (float)k->label_smoothing, rest = (float)k->label_smoothing / (float)c;
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        d[j] = w * (mf_k_exp(p[j] - l) - (t[j] * keep + rest));
}

void MF_K(loss_grad)(const mf_k_loss *k, const float *p, const void *t, const float *weight, double scale, float *dp,
                     int threads)
{
    const int64_t c = k->columns;
#pragma omp parallel num_threads(threads) if (k->rows * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(k->rows, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            double f = k->factor * scale * (weight ? (double)weight[i / k->rows_per_sample] : 1.0);
            if (k->function == MF_LOSS_SCCE_LOGITS)
                categorical_loss_grad(k, p + i * c, NULL, mf_k_label(k->target_type, t, i), (float)f, dp + i * c);
            else if (k->function == MF_LOSS_CCE_LOGITS)
                categorical_loss_grad(k, p + i * c, (const float *)t + i * c, -1, (float)f, dp + i * c);
            else
                pointwise_loss_grad(k, p + i * c, (const float *)t + i * c, (float)f, dp + i * c);
        }
    }
}

/* ---- updates ---------------------------------------------------------------------------------------------- */

static void adam(const mf_k_update *k, float *w, const float *g, float *m, float *v, float *top, int64_t n)
{
    const mf_update_attr *a = &k->attr;
    const double t = (double)k->iteration + 1;
    const float alpha = (float)(k->learning_rate * sqrt(1 - pow(a->beta_2, t)) / (1 - pow(a->beta_1, t)));
    const float c1 = (float)(1 - a->beta_1), c2 = (float)(1 - a->beta_2), e = (float)a->epsilon;
    if (top) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            m[i] += (g[i] - m[i]) * c1;
            v[i] += (g[i] * g[i] - v[i]) * c2;
            top[i] = v[i] > top[i] ? v[i] : top[i];
            w[i] -= alpha * m[i] / (sqrtf(top[i]) + e);
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        m[i] += (g[i] - m[i]) * c1;
        v[i] += (g[i] * g[i] - v[i]) * c2;
        w[i] -= alpha * m[i] / (sqrtf(v[i]) + e);
    }
}

static void sgd(const mf_k_update *k, float *w, const float *g, float *m, int64_t n)
{
    const float lr = (float)k->learning_rate, mu = (float)k->attr.momentum;
    if (!m) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            w[i] -= lr * g[i];
    } else if (k->attr.nesterov) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            m[i] = mu * m[i] - lr * g[i];
            w[i] += mu * m[i] - lr * g[i];
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            m[i] = mu * m[i] - lr * g[i];
            w[i] += m[i];
        }
    }
}

static void rmsprop(const mf_k_update *k, float *w, const float *g, float *v, float *mom, float *mean, int64_t n)
{
    const float lr = (float)k->learning_rate, rho = (float)k->attr.rho, e = (float)k->attr.epsilon;
    const float mu = (float)k->attr.momentum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        v[i] = rho * v[i] + (1 - rho) * g[i] * g[i];
        float d = v[i] + e;
        if (mean) {
            mean[i] = rho * mean[i] + (1 - rho) * g[i];
            d -= mean[i] * mean[i];
        }
        float step = lr * g[i] / sqrtf(d);
        if (mom) {
            mom[i] = mu * mom[i] + step;
            step = mom[i];
        }
        w[i] -= step;
    }
}

static void lion(const mf_k_update *k, float *w, const float *g, float *m, int64_t n)
{
    const float lr = (float)k->learning_rate, b1 = (float)k->attr.beta_1, b2 = (float)k->attr.beta_2;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float c = m[i] * b1 + g[i] * (1 - b1);
        w[i] -= c > 0 ? lr : c < 0 ? -lr : 0.0f;
        m[i] = m[i] * b2 + g[i] * (1 - b2);
    }
}

static void update_part(const mf_k_update *k, float *w, const float *g, float *const *slots, int64_t from, int64_t n)
{
    float *s[3] = {0};
    for (int i = 0; i < 3; i++)
        s[i] = slots[i] ? slots[i] + from : NULL;
    w += from;
    g += from;
    if (k->attr.has_weight_decay) {
        const float decay = (float)(k->attr.weight_decay * k->learning_rate);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            w[i] -= w[i] * decay;
    }
    switch (k->attr.optimizer) {
    case MF_OPTIMIZER_ADAM:
    case MF_OPTIMIZER_ADAMW:
        adam(k, w, g, s[0], s[1], s[2], n);
        break;
    case MF_OPTIMIZER_SGD:
        sgd(k, w, g, s[0], n);
        break;
    case MF_OPTIMIZER_RMSPROP: {
        bool has_momentum = k->attr.momentum > 0;
        rmsprop(k, w, g, s[0], has_momentum ? s[1] : NULL, k->attr.centered ? s[has_momentum ? 2 : 1] : NULL, n);
        break;
    }
    case MF_OPTIMIZER_LION:
        lion(k, w, g, s[0], n);
        break;
    default:
        break;
    }
}

void MF_K(update)(const mf_k_update *k, float *w, const float *g, float *const *slots, int64_t n, int threads)
{
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
        for (int64_t at = r.from; at < r.to; at += 4096)
            update_part(k, w, g, slots, at, r.to - at < 4096 ? r.to - at : 4096);
    }
}

void MF_K(moving_average)(float *state, const float *value, float momentum, int64_t n)
{
    const float rest = 1.0f - momentum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        state[i] = state[i] * momentum + value[i] * rest;
}

/* ---- gradients as a whole --------------------------------------------------------------------------------- */

/* Sums within 4096 values are float's, beyond double's. */
static double square_sum_of(const float *x, int64_t n)
{
    double total = 0;
    for (int64_t at = 0; at < n; at += 4096) {
        int64_t end = at + 4096 < n ? at + 4096 : n;
        float s = 0;
#pragma omp simd reduction(+ : s)
        for (int64_t i = at; i < end; i++)
            s += x[i] * x[i];
        total += (double)s;
    }
    return total;
}

double MF_K(square_sum)(const float *x, int64_t n, int threads)
{
    double total = 0, part[MF_K_BLOCKS];
#pragma omp parallel for num_threads(threads) schedule(static) if (n > MF_K_GRAIN)
    for (int b = 0; b < MF_K_BLOCKS; b++) {
        mf_k_range r = mf_k_block(n, b);
        part[b] = square_sum_of(x + r.from, r.to - r.from);
    }
    for (int b = 0; b < MF_K_BLOCKS; b++)
        total += part[b];
    return total;
}

typedef struct penalty {
    double l1, l2;
    float slope_1, slope_2;
} penalty;

static double regularize_of(const penalty *k, const float *w, const float *grad, float *out, int64_t n)
{
    double total = 0;
    for (int64_t at = 0; at < n; at += 4096) {
        int64_t end = at + 4096 < n ? at + 4096 : n;
        float sizes = 0, squares = 0;
#pragma omp simd reduction(+ : sizes, squares)
        for (int64_t i = at; i < end; i++) {
            sizes += w[i] < 0.0f ? -w[i] : w[i];
            squares += w[i] * w[i];
        }
        total += k->l1 * (double)sizes + k->l2 * (double)squares;
        if (!grad)
            continue;
#pragma omp simd
        for (int64_t i = at; i < end; i++) {
            float sign = w[i] > 0.0f ? 1.0f : w[i] < 0.0f ? -1.0f : 0.0f;
            out[i] = grad[i] + k->slope_1 * sign + k->slope_2 * w[i];
        }
    }
    return total;
}

/* The penalty; grad (which may be NULL) with the penalty's gradient, times `scale`, goes to out. */
double MF_K(regularize)(double l1, double l2, double scale, const float *w, const float *grad, float *out, int64_t n,
                        int threads)
{
    const penalty k = {l1, l2, (float)(scale * l1), (float)(scale * 2 * l2)};
    double total = 0, part[MF_K_BLOCKS];
#pragma omp parallel for num_threads(threads) schedule(static) if (n > MF_K_GRAIN)
    for (int b = 0; b < MF_K_BLOCKS; b++) {
        mf_k_range r = mf_k_block(n, b);
        part[b] = regularize_of(&k, w + r.from, grad ? grad + r.from : NULL, out ? out + r.from : NULL, r.to - r.from);
    }
    for (int b = 0; b < MF_K_BLOCKS; b++)
        total += part[b];
    return total;
}

void MF_K(clip)(const float *x, float *y, float factor, float limit, int64_t n, int threads)
{
    const float most = limit > 0 ? limit : INFINITY;
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
#pragma omp simd
        for (int64_t i = r.from; i < r.to; i++) {
            float v = x[i] * factor;
            y[i] = v > most ? most : v < -most ? -most : v;
        }
    }
}

/* x *= factor; false when any value is not finite */
bool MF_K(unscale)(float *x, float factor, int64_t n, int threads)
{
    int bad = 0;
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN) reduction(| : bad)
    {
        mf_k_range r = mf_k_share(n, 64);
        int mine = 0;
#pragma omp simd reduction(| : mine)
        for (int64_t i = r.from; i < r.to; i++) {
            x[i] *= factor;
            mine |= (mf_k_float_bits(x[i]) & 0x7f800000) == 0x7f800000;
        }
        bad |= mine;
    }
    return !bad;
}
