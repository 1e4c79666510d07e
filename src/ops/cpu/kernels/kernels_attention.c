/*
 * kernels_attention.c: attention and its gradient, a block of queries at a time. The scores of a block against all keys
 * lie in workspace, small enough for the second-level cache; nothing of the size of all scores exists.
 *
 *     forward, a block                            backward, a block
 *     s = q k'               (rows, keys)          s = q k'              dw = dy v'
 *     e = exp(scale * (s - greatest)), kept       w = exp(scale * s - lse), kept  ds = scale * p * (dw * kept - dy.y)
 *     y = e v / sum of e    lse = greatest        dv += w' dy      dk += ds' q      dq = ds k
 *                                 + log(sum)
 *
 * Threads take blocks (forward) or heads (backward, which adds to keys and values in the order of the blocks); with fewer
 * heads than threads all of them work on the same block. Either way equal calls give equal bits.
 */
#include "ops/cpu/kernels/kernels_isa.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One head at work: where its rows begin, and workspace. */
typedef struct head {
    const mf_k_attention *a;
    const float *q, *k, *v;
    int64_t sample, number;
    int64_t depth_step, value_step; /* from step to step */
    float *s, *dw, *space;
    float *kept;  /* a row of dropout's factors for each of `threads` */
    uint8_t *off; /* a row of masked pairs, likewise */
    int threads;
} head;

static int64_t first_row(const mf_k_attention *a, const head *h, int64_t steps, int64_t width)
{
    return mf_attention_row(&a->shape, a->steps_first, steps, width, h->sample, h->number, 0);
}

static void begin(head *h, const mf_k_attention *a, const float *q, const float *k, const float *v, int64_t at,
                  float *space)
{
    const mf_attention_shape *s = &a->shape;
    int64_t row = mf_k_attention_row(a);
    *h = (head){.a = a,
                .sample = at / s->heads,
                .number = at % s->heads,
                .depth_step = a->steps_first ? s->heads * s->depth : s->depth,
                .value_step = a->steps_first ? s->heads * s->values : s->values,
                .threads = a->inner};
    h->q = q + first_row(a, h, s->queries, s->depth);
    h->k = k + first_row(a, h, s->keys, s->depth);
    h->v = v + first_row(a, h, s->keys, s->values);
    h->s = space;
    h->dw = h->s + a->rows * row;
    h->kept = h->dw + (a->backward ? a->rows * row : 0);
    h->off = (uint8_t *)(h->kept + a->inner * row);
    h->space = h->kept + a->inner * (row + row / 4);
}

/* c (m, n) = a b', or added to c; a's element (i, k) lies at i * ai + k * ak. */
static void product(const head *h, int64_t m, int64_t n, int64_t k, const float *a, int64_t ai, int64_t ak,
                    const float *b, int64_t bi, int64_t bk, float *c, int64_t c_row, bool add)
{
    mf_k_gemm g = {.batch = 1,
                   .m = m,
                   .n = n,
                   .k = k,
                   .a = {.kind = MF_K_PLAIN, .i_step = ai, .k_step = ak},
                   .b = {.kind = MF_K_PLAIN, .i_step = bi, .k_step = bk},
                   .c_row = c_row,
                   .scale = 1,
                   .accumulate = add};
    mf_k_gemm_divide(&g, h->threads);
    MF_K(gemm)(&g, a, b, NULL, c, h->space, h->threads);
}

/* Keys that query t looks at. */
static int64_t visible(const mf_k_attention *a, int64_t t)
{
    return a->causal == 1 ? least(t + 1, a->shape.keys) : a->shape.keys;
}

/* Which of query t's pairs are masked; false: none can be. */
static bool mask_row(const head *h, int64_t t, int64_t seen, uint8_t *off)
{
    const mf_k_attention *a = h->a;
    bool any = a->causal == 2;
    for (int64_t j = 0; a->causal == 2 && j < seen; j++)
        off[j] = j > t;
    for (int i = 0; i < MF_ATTENTION_MASKS; i++) {
        if (!a->mask[i])
            continue;
        const int64_t *stride = a->mask_stride[i];
        const uint8_t *m = a->mask[i] + h->sample * stride[0] + h->number * stride[1] + t * stride[2];
        if (!any)
            memset(off, 0, (size_t)seen);
        any = true;
        if (stride[3] == 0 && !m[0])
            memset(off, 1, (size_t)seen);
        else if (stride[3] != 0)
#pragma omp simd
            for (int64_t j = 0; j < seen; j++)
                off[j] |= m[j] == 0;
    }
    return any;
}

static bool all_off(const uint8_t *off, int64_t n)
{
    uint8_t on = 0;
#pragma omp simd reduction(| : on)
    for (int64_t j = 0; j < n; j++)
        on |= !off[j];
    return !on;
}

static void draw_row(const head *h, int64_t t, int64_t n, float *kept)
{
    const mf_k_attention *a = h->a;
    uint64_t first = (uint64_t)((h->number * a->shape.queries + t) * a->shape.keys);
    MF_K(kept)(&a->random, a->rate, (uint64_t)h->sample, first, kept, n);
}

/* ---- forward ---- */

/* Scores of query t become weights, but for their sum, which is returned. */
static float weigh(const head *h, int64_t t, float *x, float *lse, float *kept, uint8_t *off)
{
    const mf_k_attention *a = h->a;
    const int64_t seen = visible(a, t);
    const float scale = (float)a->scale, otherwise = (float)a->masked;
    bool masks = mask_row(h, t, seen, off);
    float m = -INFINITY, sum = 0;
    if (masks)
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] = off[j] ? otherwise : scale * x[j];
    else
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] *= scale;
#pragma omp simd reduction(max : m)
    for (int64_t j = 0; j < seen; j++)
        m = x[j] > m ? x[j] : m;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < seen; j++) {
        float e = mf_k_exp(x[j] - m);
        x[j] = e;
        sum += e;
    }
    if (masks && a->zeroed)
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] = off[j] ? 0.0f : x[j];
    if (a->rate > 0) {
        draw_row(h, t, seen, kept);
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] *= kept[j];
    }
    if (lse)
        *lse = masks && all_off(off, seen) ? INFINITY : m + logf(sum);
    return sum;
}

static void forward_block(const head *h, float *y, float *lse, int64_t t0)
{
    const mf_k_attention *a = h->a;
    const mf_attention_shape *s = &a->shape;
    const int64_t rows = least(a->rows, s->queries - t0), wide = visible(a, t0 + rows - 1), row = mf_k_attention_row(a);
    product(h, rows, wide, s->depth, h->q + t0 * h->depth_step, h->depth_step, 1, h->k, h->depth_step, 1, h->s, row,
            false);
    float sums[MF_K_ATTENTION_ROWS];
#pragma omp parallel num_threads(h->threads) if (h->threads > 1)
    {
        const int thread = omp_get_thread_num();
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            float *x = h->s + i * row;
            sums[i] = weigh(h, t0 + i, x, lse ? lse + t0 + i : NULL, h->kept + thread * row, h->off + thread * row);
            for (int64_t j = visible(a, t0 + i); j < wide; j++)
                x[j] = 0;
        }
    }
    product(h, rows, s->values, wide, h->s, row, 1, h->v, 1, h->value_step, y + t0 * h->value_step, h->value_step,
            false);
    for (int64_t i = 0; i < rows; i++) {
        float *to = y + (t0 + i) * h->value_step;
        const float scale = 1.0f / sums[i];
#pragma omp simd
        for (int64_t e = 0; e < s->values; e++)
            to[e] *= scale;
    }
}

void MF_K(attention)(const mf_k_attention *a, const float *q, const float *k, const float *v, float *y, float *lse,
                     float *space, int threads)
{
    const mf_attention_shape *s = &a->shape;
    const int64_t heads = s->batch * s->heads, blocks = (s->queries + a->rows - 1) / a->rows;
    const int outer = a->inner > 1 ? 1 : threads;
#pragma omp parallel num_threads(outer) if (outer > 1)
    {
        float *own = space + (uint64_t)omp_get_thread_num() * a->floats;
        mf_k_range r = mf_k_share(heads * blocks, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            head h;
            begin(&h, a, q, k, v, i / blocks, own);
            forward_block(&h, y + first_row(a, &h, s->queries, s->values), lse ? lse + i / blocks * s->queries : NULL,
                          i % blocks * a->rows);
        }
    }
}

/* ---- backward ---- */

/* Of query t: its scores become the weights that values were summed by, `dw` the scores' slopes. */
static void slopes(const head *h, int64_t t, float *x, float *dw, float lse, float whole, float *kept, uint8_t *off)
{
    const mf_k_attention *a = h->a;
    const int64_t seen = visible(a, t);
    const float scale = (float)a->scale, otherwise = (float)a->masked, equal = 1.0f / (float)seen;
    bool masks = mask_row(h, t, seen, off), flat = isinf(lse);
    if (masks)
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] = flat ? equal : mf_k_exp((off[j] ? otherwise : scale * x[j]) - lse);
    else
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            x[j] = mf_k_exp(scale * x[j] - lse);
    if (a->rate > 0) {
        draw_row(h, t, seen, kept);
#pragma omp simd
        for (int64_t j = 0; j < seen; j++) {
            dw[j] = scale * x[j] * (dw[j] * kept[j] - whole);
            x[j] *= kept[j];
        }
    } else {
#pragma omp simd
        for (int64_t j = 0; j < seen; j++)
            dw[j] = scale * x[j] * (dw[j] - whole);
    }
    if (masks)
#pragma omp simd
        for (int64_t j = 0; j < seen; j++) {
            dw[j] = off[j] ? 0.0f : dw[j];
            x[j] = off[j] && a->zeroed ? 0.0f : x[j];
        }
}

typedef struct back {
    const float *dy, *y, *lse; /* of this head */
    float *dq, *dk, *dv;       /* NULL: not asked for */
} back;

static void back_block(const head *h, const back *b, int64_t t0)
{
    const mf_k_attention *a = h->a;
    const mf_attention_shape *s = &a->shape;
    const int64_t rows = least(a->rows, s->queries - t0), wide = visible(a, t0 + rows - 1), row = mf_k_attention_row(a);
    const float *q = h->q + t0 * h->depth_step, *dy = b->dy + t0 * h->value_step, *y = b->y + t0 * h->value_step;
    product(h, rows, wide, s->depth, q, h->depth_step, 1, h->k, h->depth_step, 1, h->s, row, false);
    product(h, rows, wide, s->values, dy, h->value_step, 1, h->v, h->value_step, 1, h->dw, row, false);
#pragma omp parallel num_threads(h->threads) if (h->threads > 1)
    {
        const int thread = omp_get_thread_num();
        mf_k_range r = mf_k_share(rows, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            float whole = 0;
#pragma omp simd reduction(+ : whole)
            for (int64_t e = 0; e < s->values; e++)
                whole += dy[i * h->value_step + e] * y[i * h->value_step + e];
            slopes(h, t0 + i, h->s + i * row, h->dw + i * row, b->lse[t0 + i], whole, h->kept + thread * row,
                   h->off + thread * row);
            for (int64_t j = visible(a, t0 + i); j < wide; j++)
                h->s[i * row + j] = h->dw[i * row + j] = 0;
        }
    }
    if (b->dv)
        product(h, wide, s->values, rows, h->s, 1, row, dy, 1, h->value_step, b->dv, h->value_step, true);
    if (b->dk)
        product(h, wide, s->depth, rows, h->dw, 1, row, q, 1, h->depth_step, b->dk, h->depth_step, true);
    if (b->dq)
        product(h, rows, s->depth, wide, h->dw, row, 1, h->k, 1, h->depth_step, b->dq + t0 * h->depth_step,
                h->depth_step, false);
}

static void clear(float *x, int64_t rows, int64_t step, int64_t width)
{
    for (int64_t i = 0; x && i < rows; i++)
        memset(x + i * step, 0, (size_t)width * sizeof *x);
}

void MF_K(attention_grad)(const mf_k_attention *a, const mf_k_attention_back *o, float *space, int threads)
{
    const mf_attention_shape *s = &a->shape;
    const int outer = a->inner > 1 ? 1 : threads;
#pragma omp parallel num_threads(outer) if (outer > 1)
    {
        float *own = space + (uint64_t)omp_get_thread_num() * a->floats;
        mf_k_range r = mf_k_share(s->batch * s->heads, 1);
        for (int64_t i = r.from; i < r.to; i++) {
            head h;
            begin(&h, a, o->q, o->k, o->v, i, own);
            const int64_t at_y = first_row(a, &h, s->queries, s->values);
            back b = {.dy = o->dy + at_y,
                      .y = o->y + at_y,
                      .lse = o->lse + i * s->queries,
                      .dq = o->dq ? o->dq + first_row(a, &h, s->queries, s->depth) : NULL,
                      .dk = o->dk ? o->dk + first_row(a, &h, s->keys, s->depth) : NULL,
                      .dv = o->dv ? o->dv + first_row(a, &h, s->keys, s->values) : NULL};
            clear(b.dk, s->keys, h.depth_step, s->depth);
            clear(b.dv, s->keys, h.value_step, s->values);
            for (int64_t t = 0; t < s->queries; t += a->rows)
                back_block(&h, &b, t);
        }
    }
}
