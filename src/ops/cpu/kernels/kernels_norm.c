/*
 * kernels_norm.c: reductions, softmax, batch and layer normalization.
 *
 * Sums over many rows are taken in float within a block of 128 rows and added up in double across blocks, so that the
 * error does not grow with the batch. Batch statistics use one pass over the data with every value shifted by the first
 * row's, which keeps E[x^2] - E[x]^2 from cancelling when the mean is large.
 *
 * A maximum or minimum over a NaN is NaN, as in TensorFlow and the reference operations.
 */
#include "ops/cpu/kernels/kernels_isa.h"

enum { BLOCK_ROWS = 128, BLOCK_COLUMNS = 512 };

/* ---- reductions ------------------------------------------------------------------------------------------- */

static float reduce_run(mf_reduce f, const float *x, int64_t r)
{
    if (f == MF_REDUCE_MAX || f == MF_REDUCE_MIN) {
        float m = x[0];
        int nan = 0;
        if (f == MF_REDUCE_MAX) {
#pragma omp simd reduction(max : m) reduction(| : nan)
            for (int64_t i = 0; i < r; i++) {
                m = x[i] > m ? x[i] : m;
                nan |= x[i] != x[i];
            }
        } else {
#pragma omp simd reduction(min : m) reduction(| : nan)
            for (int64_t i = 0; i < r; i++) {
                m = x[i] < m ? x[i] : m;
                nan |= x[i] != x[i];
            }
        }
        return nan ? NAN : m;
    }
    double total = 0;
    for (int64_t at = 0; at < r; at += 4096) {
        int64_t end = at + 4096 < r ? at + 4096 : r;
        float s = 0;
#pragma omp simd reduction(+ : s)
        for (int64_t i = at; i < end; i++)
            s += x[i];
        total += (double)s;
    }
    return (float)(f == MF_REDUCE_MEAN ? total / (double)r : total);
}

/* y[c] of rows [0, r) of x[r][c], for columns [c0, c1) */
static void reduce_columns(mf_reduce f, const float *x, float *y, int64_t r, int64_t c, int64_t c0, int64_t c1)
{
    double sum[BLOCK_COLUMNS];
    float part[BLOCK_COLUMNS];
    for (int64_t b = c0; b < c1; b += BLOCK_COLUMNS) {
        int64_t n = c1 - b < BLOCK_COLUMNS ? c1 - b : BLOCK_COLUMNS;
        if (f == MF_REDUCE_MAX || f == MF_REDUCE_MIN) {
            memcpy(part, x + b, (size_t)n * 4);
            for (int64_t i = 1; i < r; i++) {
                const float *row = x + i * c + b;
                if (f == MF_REDUCE_MAX) {
#pragma omp simd
                    for (int64_t j = 0; j < n; j++)
                        part[j] = row[j] > part[j] || row[j] != row[j] ? row[j] : part[j];
                } else {
#pragma omp simd
                    for (int64_t j = 0; j < n; j++)
                        part[j] = row[j] < part[j] || row[j] != row[j] ? row[j] : part[j];
                }
            }
            memcpy(y + b, part, (size_t)n * 4);
            continue;
        }
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t i = 0; i < r; i += BLOCK_ROWS) {
            int64_t end = i + BLOCK_ROWS < r ? i + BLOCK_ROWS : r;
            memset(part, 0, (size_t)n * sizeof *part);
            for (int64_t k = i; k < end; k++) {
                const float *row = x + k * c + b;
#pragma omp simd
                for (int64_t j = 0; j < n; j++)
                    part[j] += row[j];
            }
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                sum[j] += (double)part[j];
        }
        const double scale = f == MF_REDUCE_MEAN ? 1.0 / (double)r : 1.0;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            y[b + j] = (float)(sum[j] * scale);
    }
}

static void combine(mf_reduce f, float *y, const float *part, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        y[j] = f == MF_REDUCE_MAX   ? (part[j] > y[j] || part[j] != part[j] ? part[j] : y[j])
               : f == MF_REDUCE_MIN ? (part[j] < y[j] || part[j] != part[j] ? part[j] : y[j])
                                    : y[j] + part[j];
}

void MF_K(reduce)(mf_reduce f, const float *x, float *y, int64_t a, int64_t r, int64_t c, bool add, float *workspace,
                  int threads)
{
    if (c == 1) {
#pragma omp parallel num_threads(threads) if (a * r > MF_K_GRAIN)
        {
            mf_k_range s = mf_k_share(a, 1);
            for (int64_t i = s.from; i < s.to; i++) {
                float v = reduce_run(f, x + i * r, r);
                y[i] = add ? y[i] + v : v;
            }
        }
        return;
    }
    if (a >= threads && !add) {
#pragma omp parallel num_threads(threads) if (a * r * c > MF_K_GRAIN)
        {
            mf_k_range s = mf_k_share(a, 1);
            for (int64_t i = s.from; i < s.to; i++)
                reduce_columns(f, x + i * r * c, y + i * c, r, c, 0, c);
        }
        return;
    }
    /* Few outputs: each thread takes rows into its own part, then the parts are added in thread order. */
    const mf_reduce inner = f == MF_REDUCE_MEAN ? MF_REDUCE_SUM : f;
    for (int64_t i = 0; i < a; i++) {
        const float *xi = x + i * r * c;
        int used = 1;
#pragma omp parallel num_threads(threads) if (r * c > MF_K_GRAIN && r >= threads)
        {
            mf_k_range s = mf_k_share(r, 1);
            reduce_columns(inner, xi + s.from * c, workspace + omp_get_thread_num() * c, s.to - s.from, c, 0, c);
#pragma omp single
            used = omp_get_num_threads();
        }
        for (int t = 1; t < used; t++)
            combine(inner, workspace, workspace + t * c, c);
        const float scale = f == MF_REDUCE_MEAN ? 1.0f / (float)r : 1.0f;
        for (int64_t j = 0; j < c; j++)
            y[i * c + j] = (add ? y[i * c + j] : 0.0f) + workspace[j] * scale;
    }
}

/* ---- softmax ---------------------------------------------------------------------------------------------- */

static void softmax_row(const float *x, float *y, int64_t c, int64_t seen, bool log_form)
{
    float m = x[0];
#pragma omp simd reduction(max : m)
    for (int64_t j = 0; j < seen; j++)
        m = x[j] > m ? x[j] : m;
    float sum = 0;
    if (log_form) {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < seen; j++)
            sum += mf_k_exp(x[j] - m);
        const float l = m + logf(sum);
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            y[j] = x[j] - l;
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < seen; j++) {
            float e = mf_k_exp(x[j] - m);
            y[j] = e;
            sum += e;
        }
        const float scale = 1.0f / sum;
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            y[j] *= scale;
    }
    for (int64_t j = seen; j < c; j++)
        y[j] = 0;
}

/* causal > 0 is the number of queries: row i of them sees keys 0..i */
void MF_K(softmax)(const float *x, float *y, int64_t rows, int64_t c, bool log_form, int64_t causal, int threads)
{
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN / 4)
    {
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            int64_t seen = causal ? i % causal + 1 : c;
            softmax_row(x + i * c, y + i * c, c, seen < c ? seen : c, log_form);
        }
    }
}

void MF_K(softmax_grad)(const float *dy, const float *y, float *dx, int64_t rows, int64_t c, bool log_form, int threads)
{
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN / 4)
    {
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            const float *g = dy + i * c, *p = y + i * c;
            float *d = dx + i * c;
            float s = 0;
            if (log_form) {
#pragma omp simd reduction(+ : s)
                for (int64_t j = 0; j < c; j++)
                    s += g[j];
#pragma omp simd
                for (int64_t j = 0; j < c; j++)
                    d[j] = g[j] - mf_k_exp(p[j]) * s;
            } else {
#pragma omp simd reduction(+ : s)
                for (int64_t j = 0; j < c; j++)
                    s += g[j] * p[j];
#pragma omp simd
                for (int64_t j = 0; j < c; j++)
                    d[j] = p[j] * (g[j] - s);
            }
        }
    }
}

/* ---- batch normalization ---------------------------------------------------------------------------------- */

/* Sums of (x - shift) and (x - shift)^2 over rows [from, to), added to sum[0..c) and sum[c..2c). */
static void shifted_sums(const float *x, const float *shift, int64_t from, int64_t to, int64_t c, double *sum)
{
    float s1[BLOCK_COLUMNS], s2[BLOCK_COLUMNS];
    memset(sum, 0, (size_t)c * 2 * sizeof *sum);
    for (int64_t b = 0; b < c; b += BLOCK_COLUMNS) {
        int64_t n = c - b < BLOCK_COLUMNS ? c - b : BLOCK_COLUMNS;
        for (int64_t i = from; i < to; i += BLOCK_ROWS) {
            int64_t end = i + BLOCK_ROWS < to ? i + BLOCK_ROWS : to;
            memset(s1, 0, (size_t)n * 4);
            memset(s2, 0, (size_t)n * 4);
            for (int64_t k = i; k < end; k++) {
                const float *row = x + k * c + b, *sh = shift + b;
#pragma omp simd
                for (int64_t j = 0; j < n; j++) {
                    float d = row[j] - sh[j];
                    s1[j] += d;
                    s2[j] += d * d;
                }
            }
            for (int64_t j = 0; j < n; j++) {
                sum[b + j] += (double)s1[j];
                sum[c + b + j] += (double)s2[j];
            }
        }
    }
}

/* y = x * a + b by column, through the activation: LINEAR, RELU or RELU6 */
static void scale_shift(const float *x, const float *a, const float *b, float *y, int64_t rows, int64_t c,
                        mf_unary activation)
{
    if (activation != MF_UNARY_LINEAR) {
        const float most = activation == MF_UNARY_RELU6 ? 6.0f : INFINITY;
        for (int64_t i = 0; i < rows; i++) {
            const float *row = x + i * c;
            float *out = y + i * c;
#pragma omp simd
            for (int64_t j = 0; j < c; j++) {
                const float v = row[j] * a[j] + b[j];
                out[j] = v > most ? most : v > 0 ? v : 0;
            }
        }
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        const float *row = x + i * c;
        float *out = y + i * c;
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            out[j] = row[j] * a[j] + b[j];
    }
}

void MF_K(batch_norm_apply)(const float *x, const float *gamma, const float *beta, const float *mean,
                            const float *variance, float *y, int64_t rows, int64_t c, double epsilon,
                            mf_unary activation, float *workspace, int threads)
{
    float *a = workspace, *b = workspace + c;
    for (int64_t j = 0; j < c; j++) {
        a[j] = (gamma ? gamma[j] : 1.0f) / sqrtf(variance[j] + (float)epsilon);
        b[j] = (beta ? beta[j] : 0.0f) - mean[j] * a[j];
    }
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        scale_shift(x + r.from * c, a, b, y + r.from * c, r.to - r.from, c, activation);
    }
}

void MF_K(batch_norm)(const float *x, const float *gamma, const float *beta, float *y, float *mean, float *variance,
                      int64_t rows, int64_t c, double epsilon, mf_unary activation, void *workspace, int threads)
{
    double *sums = workspace;
    float *tail = (float *)(sums + (int64_t)threads * 2 * c);
    int used = 1;
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        shifted_sums(x, x, r.from, r.to, c, sums + (int64_t)omp_get_thread_num() * 2 * c);
#pragma omp single
        used = omp_get_num_threads();
    }
    for (int64_t j = 0; j < c; j++) {
        double s1 = 0, s2 = 0;
        for (int t = 0; t < used; t++) {
            s1 += sums[(int64_t)t * 2 * c + j];
            s2 += sums[(int64_t)t * 2 * c + c + j];
        }
        double m = s1 / (double)rows, v = s2 / (double)rows - m * m;
        mean[j] = (float)((double)x[j] + m);
        variance[j] = (float)(v > 0 ? v : 0);
    }
    MF_K(batch_norm_apply)(x, gamma, beta, mean, variance, y, rows, c, epsilon, activation, tail, threads);
}

/* Sums of dy and dy * (x - mean) over rows [from, to). */
static void gradient_sums(const float *dy, const float *x, const float *mean, int64_t from, int64_t to, int64_t c,
                          double *sum)
{
    float s1[BLOCK_COLUMNS], s2[BLOCK_COLUMNS];
    memset(sum, 0, (size_t)c * 2 * sizeof *sum);
    for (int64_t b = 0; b < c; b += BLOCK_COLUMNS) {
        int64_t n = c - b < BLOCK_COLUMNS ? c - b : BLOCK_COLUMNS;
        for (int64_t i = from; i < to; i += BLOCK_ROWS) {
            int64_t end = i + BLOCK_ROWS < to ? i + BLOCK_ROWS : to;
            memset(s1, 0, (size_t)n * 4);
            memset(s2, 0, (size_t)n * 4);
            for (int64_t k = i; k < end; k++) {
                const float *g = dy + k * c + b, *row = x + k * c + b, *m = mean + b;
#pragma omp simd
                for (int64_t j = 0; j < n; j++) {
                    s1[j] += g[j];
                    s2[j] += g[j] * (row[j] - m[j]);
                }
            }
            for (int64_t j = 0; j < n; j++) {
                sum[b + j] += (double)s1[j];
                sum[c + b + j] += (double)s2[j];
            }
        }
    }
}

/* dx = a*dy + b*x + d by column */
static void combine_grad(const float *dy, const float *x, const float *a, const float *b, const float *d, float *dx,
                         int64_t rows, int64_t c)
{
    for (int64_t i = 0; i < rows; i++) {
        const float *g = dy + i * c, *row = x + i * c;
        float *out = dx + i * c;
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            out[j] = a[j] * g[j] + b[j] * row[j] + d[j];
    }
}

/*
 * dbeta = sum dy; dgamma = r * sum dy (x - mean); with r = 1/sqrt(var + eps), N rows:
 * dx = gamma r (dy - dbeta/N - (x - mean) r^2 sum dy(x - mean) / N), or gamma r dy when the statistics are frozen.
 */
void MF_K(batch_norm_grad)(const float *dy, const float *x, const float *mean, const float *variance,
                           const float *gamma, float *dx, float *dgamma, float *dbeta, int64_t rows, int64_t c,
                           double epsilon, bool frozen, const bool add[2], void *workspace, int threads)
{
    double *sums = workspace;
    float *a = (float *)(sums + (int64_t)threads * 2 * c), *b = a + c, *d = b + c;
    int used = 1;
    if (!frozen || dgamma || dbeta) {
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN)
        {
            mf_k_range r = mf_k_share(rows, 1);
            gradient_sums(dy, x, mean, r.from, r.to, c, sums + (int64_t)omp_get_thread_num() * 2 * c);
#pragma omp single
            used = omp_get_num_threads();
        }
    } else {
        memset(sums, 0, (size_t)c * 2 * sizeof *sums);
    }
    for (int64_t j = 0; j < c; j++) {
        double s1 = 0, s2 = 0;
        for (int t = 0; t < used; t++) {
            s1 += sums[(int64_t)t * 2 * c + j];
            s2 += sums[(int64_t)t * 2 * c + c + j];
        }
        double r = 1.0 / sqrt((double)variance[j] + epsilon), g = gamma ? (double)gamma[j] : 1.0;
        if (dgamma)
            dgamma[j] = (add[0] ? dgamma[j] : 0.0f) + (float)(s2 * r);
        if (dbeta)
            dbeta[j] = (add[1] ? dbeta[j] : 0.0f) + (float)s1;
        double n = (double)rows;
        a[j] = (float)(g * r);
        b[j] = (float)(frozen ? 0 : -g * r * r * r * s2 / n);
        d[j] = (float)(frozen ? 0 : -g * r * s1 / n + g * r * r * r * s2 / n * (double)mean[j]);
    }
    if (!dx)
        return;
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        combine_grad(dy + r.from * c, x + r.from * c, a, b, d, dx + r.from * c, r.to - r.from, c);
    }
}

/* ---- layer normalization ---------------------------------------------------------------------------------- */

static void layer_norm_row(const float *x, const float *gamma, const float *beta, float *y, float *mean, float *rstd,
                           int64_t c, double epsilon, bool rms)
{
    float m = 0, v = 0;
    if (!rms) {
        float s = 0;
#pragma omp simd reduction(+ : s)
        for (int64_t j = 0; j < c; j++)
            s += x[j];
        m = s / (float)c;
    }
#pragma omp simd reduction(+ : v)
    for (int64_t j = 0; j < c; j++)
        v += (x[j] - m) * (x[j] - m);
    const float r = 1.0f / sqrtf(v / (float)c + (float)epsilon);
    if (gamma && beta) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            y[j] = (x[j] - m) * r * gamma[j] + beta[j];
    } else {
        for (int64_t j = 0; j < c; j++)
            y[j] = (x[j] - m) * r * (gamma ? gamma[j] : 1.0f) + (beta ? beta[j] : 0.0f);
    }
    if (mean)
        *mean = m;
    if (rstd)
        *rstd = r;
}

void MF_K(layer_norm)(const float *x, const float *gamma, const float *beta, float *y, float *mean, float *rstd,
                      int64_t rows, int64_t c, double epsilon, bool rms, int threads)
{
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t i = r.from; i < r.to; i++)
            layer_norm_row(x + i * c, gamma, beta, y + i * c, mean ? mean + i : NULL, rstd ? rstd + i : NULL, c,
                           epsilon, rms);
    }
}

static void layer_norm_grad_row(const float *dy, const float *x, float m, float r, const float *gamma, float *dx,
                                float *dg, float *db, int64_t c, bool rms)
{
    float s1 = 0, s2 = 0;
    if (gamma) {
#pragma omp simd reduction(+ : s1, s2)
        for (int64_t j = 0; j < c; j++) {
            float g = dy[j] * gamma[j], u = (x[j] - m) * r;
            s1 += g;
            s2 += g * u;
        }
    } else {
#pragma omp simd reduction(+ : s1, s2)
        for (int64_t j = 0; j < c; j++) {
            float g = dy[j], u = (x[j] - m) * r;
            s1 += g;
            s2 += g * u;
        }
    }
    const float a = rms ? 0 : s1 / (float)c, b = s2 / (float)c;
    /* The parameters' part first: dx may take dy's place. */
    if (dg) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            dg[j] += dy[j] * (x[j] - m) * r;
    }
    if (db) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            db[j] += dy[j];
    }
    if (dx) {
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            dx[j] = r * (dy[j] * (gamma ? gamma[j] : 1.0f) - a - (x[j] - m) * r * b);
    }
}

/* workspace: threads * 2 * c floats */
void MF_K(layer_norm_grad)(const float *dy, const float *x, const float *mean, const float *rstd, const float *gamma,
                           float *dx, float *dgamma, float *dbeta, int64_t rows, int64_t c, bool rms, const bool add[2],
                           float *workspace, int threads)
{
    int used = 1;
#pragma omp parallel num_threads(threads) if (rows * c > MF_K_GRAIN)
    {
        mf_k_range r = mf_k_share(rows, 1);
        float *dg = workspace + (int64_t)omp_get_thread_num() * 2 * c, *db = dg + c;
        memset(dg, 0, (size_t)c * 2 * sizeof *dg);
        for (int64_t i = r.from; i < r.to; i++)
            layer_norm_grad_row(dy + i * c, x + i * c, mean ? mean[i] : 0, rstd[i], gamma, dx ? dx + i * c : NULL,
                                dgamma ? dg : NULL, dbeta ? db : NULL, c, rms);
#pragma omp single
        used = omp_get_num_threads();
    }
    for (int64_t j = 0; j < c; j++) {
        double g = 0, b = 0;
        for (int t = 0; t < used; t++) {
            g += (double)workspace[(int64_t)t * 2 * c + j];
            b += (double)workspace[(int64_t)t * 2 * c + c + j];
        }
        if (dgamma)
            dgamma[j] = (add[0] ? dgamma[j] : 0.0f) + (float)g;
        if (dbeta)
            dbeta[j] = (add[1] ? dbeta[j] : 0.0f) + (float)b;
    }
}
