/*
 * kernels_pointwise.c: functions of one and two arrays, copies through index walks.
 *
 * One switch outside, one vectorised loop inside: the macros below write the loop for each function.
 */
#include "ops/cpu/kernels/kernels_isa.h"

#define EACH(expression)                                                                                               \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                            \
        {                                                                                                              \
            const float v = x[i];                                                                                      \
            y[i] = (expression);                                                                                       \
        }                                                                                                              \
    } while (0)

static const float selu_scale = 1.05070098f, selu_alpha = 1.67326324f;

static void unary_part(const mf_k_unary *k, const float *x, float *y, int64_t n)
{
    const float alpha = k->alpha, beta = k->beta;
    switch (k->function) {
    case MF_UNARY_LINEAR:
        EACH(v);
        break;
    case MF_UNARY_RELU:
        EACH(v > 0 ? v : 0);
        break;
    case MF_UNARY_RELU6:
        EACH(v > 6 ? 6 : v > 0 ? v : 0);
        break;
    case MF_UNARY_LEAKY_RELU:
        EACH(v > 0 ? v : alpha * v);
        break;
    case MF_UNARY_ELU:
        EACH(v > 0 ? v : alpha * (mf_k_exp(v) - 1.0f));
        break;
    case MF_UNARY_SELU:
        EACH(selu_scale * (v > 0 ? v : selu_alpha * (mf_k_exp(v) - 1.0f)));
        break;
    case MF_UNARY_SIGMOID:
        EACH(mf_k_sigmoid(v));
        break;
    case MF_UNARY_HARD_SIGMOID:
        EACH(v >= 3 ? 1 : v <= -3 ? 0 : (v + 3) * (1.0f / 6));
        break;
    case MF_UNARY_TANH:
        EACH(mf_k_tanh(v));
        break;
    case MF_UNARY_SOFTPLUS:
        EACH(mf_k_softplus(v));
        break;
    case MF_UNARY_SOFTSIGN:
        EACH(v / (1.0f + fabsf(v)));
        break;
    case MF_UNARY_SILU:
        EACH(v * mf_k_sigmoid(v));
        break;
    case MF_UNARY_HARD_SILU:
        EACH(v * (v >= 3 ? 1 : v <= -3 ? 0 : (v + 3) * (1.0f / 6)));
        break;
    case MF_UNARY_GELU:
        EACH(0.5f * v * (1.0f + mf_k_erf(v * 0.707106781f)));
        break;
    case MF_UNARY_GELU_TANH:
        EACH(0.5f * v * (1.0f + mf_k_tanh(0.797884561f * (v + 0.044715f * v * v * v))));
        break;
    case MF_UNARY_EXP:
        EACH(mf_k_exp(v));
        break;
    case MF_UNARY_LOG:
        EACH(mf_k_log(v));
        break;
    case MF_UNARY_SQRT:
        EACH(sqrtf(v));
        break;
    case MF_UNARY_RSQRT:
        EACH(1.0f / sqrtf(v));
        break;
    case MF_UNARY_SQUARE:
        EACH(v * v);
        break;
    case MF_UNARY_ABS:
        EACH(fabsf(v));
        break;
    case MF_UNARY_NEG:
        EACH(-v);
        break;
    case MF_UNARY_RECIPROCAL:
        EACH(1.0f / v);
        break;
    case MF_UNARY_AFFINE:
        EACH(alpha * v + beta);
        break;
    default:
        break;
    }
}

void MF_K(unary)(const mf_k_unary *k, const float *x, float *y, int64_t n, int threads)
{
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
        unary_part(k, x + r.from, y + r.from, r.to - r.from);
    }
}

#define GRAD(expression)                                                                                               \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                            \
        {                                                                                                              \
            const float v = s[i];                                                                                      \
            dx[i] = dy[i] * (expression);                                                                              \
        }                                                                                                              \
    } while (0)

/* s is the function's output */
static void grad_of_output(const mf_k_unary *k, const float *dy, const float *s, float *dx, int64_t n)
{
    const float alpha = k->alpha;
    switch (k->function) {
    case MF_UNARY_LINEAR:
        GRAD(((void)v, 1.0f));
        break;
    case MF_UNARY_RELU:
        GRAD(v > 0 ? 1.0f : 0.0f);
        break;
    case MF_UNARY_RELU6:
        GRAD(v > 0 && v < 6 ? 1.0f : 0.0f);
        break;
    case MF_UNARY_LEAKY_RELU:
        GRAD(v > 0 ? 1.0f : alpha);
        break;
    case MF_UNARY_ELU:
        GRAD(v > 0 ? 1.0f : v + alpha);
        break;
    case MF_UNARY_SELU:
        GRAD(v > 0 ? selu_scale : v + selu_scale * selu_alpha);
        break;
    case MF_UNARY_SIGMOID:
        GRAD(v * (1.0f - v));
        break;
    case MF_UNARY_HARD_SIGMOID:
        GRAD(v > 0 && v < 1 ? 1.0f / 6 : 0.0f);
        break;
    case MF_UNARY_TANH:
        GRAD(1.0f - v * v);
        break;
    case MF_UNARY_EXP:
        GRAD(v);
        break;
    case MF_UNARY_SQRT:
        GRAD(0.5f / v);
        break;
    case MF_UNARY_RSQRT:
        GRAD(-0.5f * v * v * v);
        break;
    case MF_UNARY_RECIPROCAL:
        GRAD(-v * v);
        break;
    default:
        break;
    }
}

static inline float gelu_slope(float v)
{
    return 0.5f * (1.0f + mf_k_erf(v * 0.707106781f)) + v * 0.398942280f * mf_k_exp(-0.5f * v * v);
}

static inline float gelu_tanh_slope(float v)
{
    float u = mf_k_tanh(0.797884561f * (v + 0.044715f * v * v * v));
    return 0.5f * (1.0f + u) + 0.5f * v * (1.0f - u * u) * 0.797884561f * (1.0f + 0.134145f * v * v);
}

static inline float silu_slope(float v)
{
    float g = mf_k_sigmoid(v);
    return g * (1.0f + v * (1.0f - g));
}

static inline float sigmoid_slope(float v)
{
    float g = mf_k_sigmoid(v);
    return g * (1.0f - g);
}

static inline float tanh_slope(float v)
{
    float g = mf_k_tanh(v);
    return 1.0f - g * g;
}

static inline float softsign_slope(float v)
{
    float u = 1.0f + fabsf(v);
    return 1.0f / (u * u);
}

/* s is the function's input */
static void grad_of_input(const mf_k_unary *k, const float *dy, const float *s, float *dx, int64_t n)
{
    const float alpha = k->alpha;
    switch (k->function) {
    case MF_UNARY_SIGMOID:
        GRAD(sigmoid_slope(v));
        break;
    case MF_UNARY_TANH:
        GRAD(tanh_slope(v));
        break;
    case MF_UNARY_ELU:
        GRAD(v > 0 ? 1.0f : alpha * mf_k_exp(v));
        break;
    case MF_UNARY_SELU:
        GRAD(selu_scale * (v > 0 ? 1.0f : selu_alpha * mf_k_exp(v)));
        break;
    case MF_UNARY_HARD_SIGMOID:
        GRAD(v > -3 && v < 3 ? 1.0f / 6 : 0.0f);
        break;
    case MF_UNARY_SOFTPLUS:
        GRAD(mf_k_sigmoid(v));
        break;
    case MF_UNARY_SOFTSIGN:
        GRAD(softsign_slope(v));
        break;
    case MF_UNARY_SILU:
        GRAD(silu_slope(v));
        break;
    case MF_UNARY_HARD_SILU:
        GRAD(v <= -3 ? 0.0f : v >= 3 ? 1.0f : (2 * v + 3) * (1.0f / 6));
        break;
    case MF_UNARY_GELU:
        GRAD(gelu_slope(v));
        break;
    case MF_UNARY_GELU_TANH:
        GRAD(gelu_tanh_slope(v));
        break;
    case MF_UNARY_EXP:
        GRAD(mf_k_exp(v));
        break;
    case MF_UNARY_LOG:
        GRAD(1.0f / v);
        break;
    case MF_UNARY_SQRT:
        GRAD(0.5f / sqrtf(v));
        break;
    case MF_UNARY_SQUARE:
        GRAD(2.0f * v);
        break;
    case MF_UNARY_ABS:
        GRAD(v > 0 ? 1.0f : v < 0 ? -1.0f : 0.0f);
        break;
    case MF_UNARY_NEG:
        GRAD(((void)v, -1.0f));
        break;
    case MF_UNARY_RECIPROCAL:
        GRAD(-1.0f / (v * v));
        break;
    case MF_UNARY_AFFINE:
        GRAD(((void)v, alpha));
        break;
    default: /* the piecewise linear ones: the sign says it all, from either side */
        grad_of_output(k, dy, s, dx, n);
        break;
    }
}

void MF_K(unary_grad)(const mf_k_unary *k, const float *dy, const float *s, float *dx, int64_t n, int threads)
{
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
        if (k->from_output)
            grad_of_output(k, dy + r.from, s + r.from, dx + r.from, r.to - r.from);
        else
            grad_of_input(k, dy + r.from, s + r.from, dx + r.from, r.to - r.from);
    }
}

/* ---- masks: eight numbers to a byte ----------------------------------------------------------------------- */

static inline uint8_t positive_byte(const float *x)
{
    unsigned bits = 0;
    for (int k = 0; k < 8; k++)
        bits |= (unsigned)(x[k] > 0) << k;
    return (uint8_t)bits;
}

void MF_K(mask)(mf_unary f, const float *x, uint8_t *bits, int64_t n, int threads)
{
    const bool six = f == MF_UNARY_RELU6;
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
        for (int64_t i = r.from; i < r.to; i += 8) {
            int64_t count = r.to - i < 8 ? r.to - i : 8;
            if (six || count < 8) {
                unsigned all = 0;
                for (int64_t k = 0; k < count; k++)
                    all |= (unsigned)(x[i + k] > 0 && (!six || x[i + k] < 6)) << k;
                bits[i / 8] = (uint8_t)all;
            } else {
                bits[i / 8] = positive_byte(x + i);
            }
        }
    }
}

void MF_K(mask_grad)(const float *dy, const uint8_t *bits, float *dx, int64_t n, int threads)
{
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
        for (int64_t i = r.from; i < r.to; i += 8) {
            unsigned all = bits[i / 8];
            int64_t count = r.to - i < 8 ? r.to - i : 8;
            for (int64_t k = 0; k < count; k++)
                dx[i + k] = dy[i + k] * (float)(all >> k & 1);
        }
    }
}

/* ---- walks ------------------------------------------------------------------------------------------------ */

/* The place of row `row` (all dimensions but the last) in each operand. */
static inline void place(const mf_k_walk *w, int64_t row, uint32_t operands, int64_t *at)
{
    for (uint32_t o = 0; o < operands; o++)
        at[o] = 0;
    for (uint32_t d = w->rank - 1; d-- > 0;) {
        int64_t i = row % w->size[d];
        row /= w->size[d];
        for (uint32_t o = 0; o < operands; o++)
            at[o] += i * w->step[o][d];
    }
}

static inline int64_t walk_rows(const mf_k_walk *w)
{
    int64_t rows = 1;
    for (uint32_t d = 0; d + 1 < w->rank; d++)
        rows *= w->size[d];
    return rows;
}

#define PAIR(expression)                                                                                               \
    do {                                                                                                               \
        if (sa == 1 && sb == 1) {                                                                                      \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                        \
            {                                                                                                          \
                const float p = a[i], q = b[i];                                                                        \
                y[i] = (expression);                                                                                   \
            }                                                                                                          \
        } else if (sa == 1 && sb == 0) {                                                                               \
            const float q = b[0];                                                                                      \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                        \
            {                                                                                                          \
                const float p = a[i];                                                                                  \
                y[i] = (expression);                                                                                   \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const float p = a[i * sa], q = b[i * sb];                                                              \
                y[i] = (expression);                                                                                   \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

static void binary_row(mf_binary f, const float *a, int64_t sa, const float *b, int64_t sb, float *y, int64_t n)
{
    switch (f) {
    case MF_ADD:
        PAIR(p + q);
        break;
    case MF_SUB:
        PAIR(p - q);
        break;
    case MF_MUL:
        PAIR(p * q);
        break;
    case MF_DIV:
        PAIR(p / q);
        break;
    case MF_MAX:
        PAIR(p > q || p != p ? p : q); /* NaN passes, from either side */
        break;
    case MF_MIN:
        PAIR(p < q || p != p ? p : q);
        break;
    case MF_SQUARED_DIFFERENCE:
        PAIR((p - q) * (p - q));
        break;
    case MF_POW:
        PAIR(powf(p, q));
        break;
    }
}

void MF_K(binary)(mf_binary f, const mf_k_walk *w, const float *a, const float *b, float *y, int threads)
{
    int64_t rows = walk_rows(w), n = w->size[w->rank - 1];
    const int64_t sa = w->step[1][w->rank - 1], sb = w->step[2][w->rank - 1];
    if (rows == 1) {
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
        {
            mf_k_range r = mf_k_share(n, 64);
            binary_row(f, a + r.from * sa, sa, b + r.from * sb, sb, y + r.from, r.to - r.from);
        }
        return;
    }
#pragma omp parallel num_threads(threads) if (rows * n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t row = r.from; row < r.to; row++) {
            int64_t at[3];
            place(w, row, 3, at);
            binary_row(f, a + at[1], sa, b + at[2], sb, y + at[0], n);
        }
    }
}

void MF_K(broadcast)(const mf_k_walk *w, float scale, const float *x, float *y, int threads)
{
    int64_t rows = walk_rows(w), n = w->size[w->rank - 1];
    const int64_t sx = w->step[1][w->rank - 1];
#pragma omp parallel num_threads(threads) if (rows * n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t row = r.from; row < r.to; row++) {
            int64_t at[2];
            place(w, row, 2, at);
            const float *from = x + at[1];
            float *to = y + at[0];
            if (sx == 0) {
                const float v = scale * from[0];
#pragma omp simd
                for (int64_t i = 0; i < n; i++)
                    to[i] = v;
            } else {
                for (int64_t i = 0; i < n; i++)
                    to[i] = scale * from[i * sx];
            }
        }
    }
}

static void copy_row4(const uint32_t *x, int64_t sx, uint32_t *y, int64_t sy, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i * sy] = x[i * sx];
}

static void copy_row(const unsigned char *x, int64_t sx, unsigned char *y, int64_t sy, int64_t n, size_t e)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(y + i * sy * (int64_t)e, x + i * sx * (int64_t)e, e);
}

/* Copies element by element through the walk: transposition, slices, padding's inside, concatenation's parts. When the
 * inner dimension is contiguous on both sides a row is one memcpy. */
void MF_K(copy)(const mf_k_walk *w, size_t e, const void *x, void *y, int threads)
{
    int64_t rows = walk_rows(w), n = w->size[w->rank - 1];
    const int64_t sy = w->step[0][w->rank - 1], sx = w->step[1][w->rank - 1];
#pragma omp parallel num_threads(threads) if (rows * n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t row = r.from; row < r.to; row++) {
            int64_t at[2];
            place(w, row, 2, at);
            unsigned char *to = (unsigned char *)y + at[0] * (int64_t)e;
            const unsigned char *from = (const unsigned char *)x + at[1] * (int64_t)e;
            if (sx == 1 && sy == 1)
                memcpy(to, from, (size_t)n * e);
            else if (e == 4)
                copy_row4((const uint32_t *)(const void *)from, sx, (uint32_t *)(void *)to, sy, n);
            else
                copy_row(from, sx, to, sy, n, e);
        }
    }
}

void MF_K(sum_n)(const float *const *x, uint32_t count, float *y, int64_t n, bool add, int threads)
{
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
        for (int64_t block = r.from; block < r.to; block += 2048) {
            int64_t end = block + 2048 < r.to ? block + 2048 : r.to;
            uint32_t j = 0;
            if (!add && count >= 2) {
                const float *a = x[0], *b = x[1];
#pragma omp simd
                for (int64_t i = block; i < end; i++)
                    y[i] = a[i] + b[i];
                j = 2;
            } else if (!add) {
                if (y != x[0])
                    memcpy(y + block, x[0] + block, (size_t)(end - block) * sizeof *y);
                j = 1;
            }
            for (; j < count; j++) {
                const float *a = x[j];
#pragma omp simd
                for (int64_t i = block; i < end; i++)
                    y[i] += a[i];
            }
        }
    }
}

void MF_K(fill)(float *y, float value, int64_t n, int threads)
{
#pragma omp parallel num_threads(threads) if (n > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(n, 64);
#pragma omp simd
        for (int64_t i = r.from; i < r.to; i++)
            y[i] = value;
    }
}
