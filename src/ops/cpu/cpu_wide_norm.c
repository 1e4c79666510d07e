/*
 * cpu_wide_norm.c: batch normalization of 16-bit data, in parts. Its statistics need every row before any is
 * normalized, so that there are two passes, each widening a part of the rows at a time:
 *
 *     forward    1  mean and variance of each part, put together       2  normalize
 *     gradient   1  sums of dy and of dy * (x - mean) / deviation       2  dx = a*dy + b*x + d by column
 *
 *   workspace   [ a part of x | of dy | sums (double) | vectors of a column each | the float32 kernels' own ]
 *
 * Statistics of parts are put together in double by Chan's rule, which loses nothing where means lie far from zero:
 *     M2 = M2a + M2b + (mean_b - mean_a)^2 * na * nb / (na + nb).
 * Every part is widened twice, which is what this costs; whole copies of ResNet50's first layer at batch 8 would take
 * 51 MB, and 77 MB backward.
 */
#include "ops/cpu/cpu_ops.h"

#include <math.h>
#include <string.h>

enum { VECTORS = 8 }; /* of a column each */

typedef struct norm_work {
    int64_t rows, c, part;
    uint64_t dy, sums, vectors, kernel, bytes; /* where they begin in workspace; x begins it */
    bool grad;
} norm_work;

static norm_work work_of(const cpu_kernel *k)
{
    norm_work w = {.grad = k->op->kind == MF_OP_BATCH_NORM_GRAD};
    const mf_shape *x = &cpu_in(k, w.grad ? 1 : 0)->shape;
    w.c = x->dim[x->rank - 1];
    w.rows = w.c ? (int64_t)mf_shape_count(x) / w.c : 0;
    if (w.rows == 0)
        return w;
    int64_t row = w.c * (int64_t)sizeof(float) * (w.grad ? 2 : 1);
    int64_t part = ((int64_t)k->backend->part_bytes + row - 1) / row;
    int64_t parts = (w.rows + part - 1) / part;
    w.part = (w.rows + parts - 1) / parts;
    uint64_t copy = ((uint64_t)(w.part * w.c) * sizeof(float) + 63) & ~63ull, column = (uint64_t)w.c;
    w.dy = copy;
    w.sums = copy * (w.grad ? 2 : 1);
    w.vectors = w.sums + column * 2 * sizeof(double);
    w.kernel = (w.vectors + column * VECTORS * sizeof(float) + 63) & ~63ull;
    w.bytes = w.kernel + column * (k->backend->base.threads * 2 * sizeof(double) + 3 * sizeof(float));
    return w;
}

bool cpu_wide_norm_serves(const cpu_kernel *k)
{
    bool grad = k->op->kind == MF_OP_BATCH_NORM_GRAD;
    if (!grad && k->op->kind != MF_OP_BATCH_NORM)
        return false;
    for (uint32_t i = 0; i < k->op->in_count + k->op->out_count; i++) {
        const mf_tensor *t = i < k->op->in_count ? cpu_in(k, i) : cpu_out(k, i - k->op->in_count);
        if (t && t->dtype != MF_F32 && !cpu_is_half(t->dtype))
            return false;
    }
    const mf_tensor *x = cpu_in(k, grad ? 1 : 0);
    if (x->shape.rank < 2 || !cpu_is_half(x->dtype) || (grad && (!cpu_is_half(cpu_in(k, 0)->dtype) || cpu_adds(k, 0))))
        return false;
    if (!grad && !(cpu_out(k, 0) && cpu_out(k, 1) && cpu_out(k, 2)))
        return false;
    norm_work w = work_of(k);
    return w.part < w.rows;
}

void cpu_wide_norm_query(const cpu_kernel *k, mf_cost *cost)
{
    norm_work w = work_of(k);
    uint64_t once = (uint64_t)(w.rows * w.c) * (sizeof(float) + 2) * (w.grad ? 2 : 1);
    *cost = mf_cost_one(w.bytes, 2 * cpu_estimate_us(k, false) + 2 * cpu_copies_us(k->backend, once));
}

/* ---- running ---------------------------------------------------------------------------------------------- */

typedef struct norm_run {
    const cpu_kernel *k;
    const mf_operands *o;
    norm_work w;
    unsigned char *space;
    double *sum[2];
    float *vector[VECTORS];
} norm_run;

static void *kernel_space(const norm_run *r)
{
    return r->space + r->w.kernel;
}

/* Rows from `first` on, widened at the given place in workspace. */
static float *widen(const norm_run *r, uint32_t input, uint64_t at, int64_t first, int64_t n)
{
    float *copy = (float *)(r->space + at);
    const uint16_t *from = (const uint16_t *)r->o->in[input] + first * r->w.c;
    r->k->backend->k->cast(cpu_in(r->k, input)->dtype, from, MF_F32, copy, n * r->w.c, cpu_threads(r->k));
    return copy;
}

static void put(const norm_run *r, uint32_t output, const float *from, int64_t first, int64_t n)
{
    mf_dtype type = cpu_out(r->k, output)->dtype;
    char *to = (char *)r->o->out[output] + (uint64_t)first * mf_dtype_bytes(type);
    if (type == MF_F32)
        memcpy(to, from, (size_t)n * sizeof(float));
    else
        r->k->backend->k->cast(MF_F32, from, type, to, n, cpu_threads(r->k));
}

/* A vector of columns as float32; NULL where there is none. */
static const float *columns(const norm_run *r, uint32_t input, float *copy)
{
    const mf_tensor *t = cpu_in(r->k, input);
    if (!t || t->dtype == MF_F32)
        return t ? r->o->in[input] : NULL;
    r->k->backend->k->cast(t->dtype, r->o->in[input], MF_F32, copy, r->w.c, 1);
    return copy;
}

static void add_statistics(const norm_run *r, const float *mean, const float *variance, int64_t before, int64_t n)
{
    double all = (double)(before + n), share = (double)n / all, cross = (double)before * share;
    for (int64_t j = 0; j < r->w.c; j++) {
        double apart = (double)mean[j] - r->sum[0][j];
        r->sum[0][j] += apart * share;
        r->sum[1][j] += (double)variance[j] * (double)n + apart * apart * cross;
    }
}

static void forward(const norm_run *r)
{
    const mf_kernel_table *t = r->k->backend->k;
    double epsilon = r->k->op->attr.norm.epsilon;
    float *mean = r->vector[0], *variance = r->vector[1];
    const float *gamma = columns(r, 1, r->vector[2]), *beta = columns(r, 2, r->vector[3]);
    int64_t c = r->w.c, n;
    for (int64_t first = 0; first < r->w.rows; first += n) {
        n = r->w.rows - first < r->w.part ? r->w.rows - first : r->w.part;
        float *x = widen(r, 0, 0, first, n);
        t->batch_norm(x, NULL, NULL, x, mean, variance, n, c, epsilon, MF_UNARY_LINEAR, kernel_space(r),
                      cpu_threads(r->k));
        add_statistics(r, mean, variance, first, n);
    }
    for (int64_t j = 0; j < c; j++) {
        mean[j] = (float)r->sum[0][j];
        variance[j] = (float)(r->sum[1][j] / (double)r->w.rows);
    }
    for (int64_t first = 0; first < r->w.rows; first += n) {
        n = r->w.rows - first < r->w.part ? r->w.rows - first : r->w.part;
        float *x = widen(r, 0, 0, first, n);
        t->batch_norm_apply(x, gamma, beta, mean, variance, x, n, c, epsilon, r->k->op->attr.norm.activation,
                            kernel_space(r), cpu_threads(r->k));
        put(r, 0, x, first * c, n * c);
    }
    put(r, 1, mean, 0, c);
    put(r, 2, variance, 0, c);
}

/* dy = a*dy + b*x + d by column */
static void combine(float *dy, const float *x, const float *const *factor, int64_t rows, int64_t c, int threads)
{
    const float *a = factor[0], *b = factor[1], *d = factor[2];
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        float *g = dy + i * c;
        const float *row = x + i * c;
#pragma omp simd
        for (int64_t j = 0; j < c; j++)
            g[j] = a[j] * g[j] + b[j] * row[j] + d[j];
    }
}

static void put_sum(const norm_run *r, uint32_t output, const double *sum)
{
    const mf_tensor *t = cpu_out(r->k, output);
    float *v = r->vector[0];
    if (!t)
        return;
    bool adds = cpu_adds(r->k, output);
    if (adds && t->dtype == MF_F32)
        memcpy(v, r->o->out[output], (size_t)r->w.c * sizeof(float));
    else if (adds)
        r->k->backend->k->cast(t->dtype, r->o->out[output], MF_F32, v, r->w.c, 1);
    for (int64_t j = 0; j < r->w.c; j++)
        v[j] = (adds ? v[j] : 0.0f) + (float)sum[j];
    put(r, output, v, 0, r->w.c);
}

static void backward(const norm_run *r)
{
    const mf_kernel_table *t = r->k->backend->k;
    double epsilon = r->k->op->attr.norm.epsilon, all = (double)r->w.rows;
    float *part_gamma = r->vector[0], *part_beta = r->vector[1], *a = r->vector[5], *b = r->vector[6],
          *d = r->vector[7];
    const float *mean = columns(r, 2, r->vector[2]), *variance = columns(r, 3, r->vector[3]);
    const float *gamma = columns(r, 4, r->vector[4]);
    int64_t c = r->w.c, n;
    for (int64_t first = 0; first < r->w.rows; first += n) {
        n = r->w.rows - first < r->w.part ? r->w.rows - first : r->w.part;
        float *dy = widen(r, 0, r->w.dy, first, n), *x = widen(r, 1, 0, first, n);
        t->batch_norm_grad(dy, x, mean, variance, gamma, NULL, part_gamma, part_beta, n, c, epsilon, true,
                           (const bool[2]){false, false}, kernel_space(r), cpu_threads(r->k));
        for (int64_t j = 0; j < c; j++) {
            r->sum[0][j] += (double)part_gamma[j];
            r->sum[1][j] += (double)part_beta[j];
        }
    }
    for (int64_t j = 0; j < c; j++) {
        double s = 1 / sqrt((double)variance[j] + epsilon), g = gamma ? (double)gamma[j] : 1;
        a[j] = (float)(g * s);
        b[j] = (float)(-g * s * s * r->sum[0][j] / all);
        d[j] = (float)(-g * s * r->sum[1][j] / all + g * s * s * r->sum[0][j] / all * (double)mean[j]);
    }
    for (int64_t first = 0; first < r->w.rows && cpu_out(r->k, 0); first += n) {
        n = r->w.rows - first < r->w.part ? r->w.rows - first : r->w.part;
        float *dy = widen(r, 0, r->w.dy, first, n), *x = widen(r, 1, 0, first, n);
        combine(dy, x, (const float *const[]){a, b, d}, n, c, cpu_threads(r->k));
        put(r, 0, dy, first * c, n * c);
    }
    put_sum(r, 1, r->sum[0]);
    put_sum(r, 2, r->sum[1]);
}

void cpu_wide_norm_run(const cpu_kernel *k, const mf_operands *o)
{
    norm_run r = {.k = k, .o = o, .w = work_of(k), .space = o->workspace};
    for (int i = 0; i < 2; i++)
        r.sum[i] = (double *)(r.space + r.w.sums) + i * r.w.c;
    for (int i = 0; i < VECTORS; i++)
        r.vector[i] = (float *)(r.space + r.w.vectors) + i * r.w.c;
    memset(r.sum[0], 0, (size_t)r.w.c * 2 * sizeof(double));
    (r.w.grad ? backward : forward)(&r);
}
