/*
 * kernels_wgrad.c: the weight gradient of a convolution three columns wide with a step of one, in two dimensions.
 *
 *     dw[r][s][i][o] += x[n, h + r, w + s, i] * dy[n, h, w, o]          over all samples n, rows h, columns w
 *
 * A run keeps one block of dw in registers: the three columns s of one row r, two inputs, 64 outputs (or four and 32),
 * 24 sums. Along some rows of dy each pixel then takes four loads of dy, six of single values of x and 24 products, all
 * from the first-level cache:
 *
 *     for each sample, group of about 128 pixels, row r of the kernel:         x and dy of the group stay in the cache
 *         for each 64 outputs, pair of inputs of this thread:                  a run, added to dw at its end
 *
 * Columns and rows in the padding are left out, not multiplied by zero. The threads share out inputs and outputs, not
 * samples: nothing is summed twice, no workspace is needed, and neither the number of threads nor pieces of a batch
 * change a bit of the sum (as long as the group's size is the same, which depends on the width alone).
 *
 * Measured on two cores (AVX-512, peak 231 GFLOP/s), ms: 256x32x32, 64 to 64: 87, oneDNN 2.6.3: 108; 256x16x16, 64 to
 * 128 and 128 to 128: 41 and 80, 51 and 92. Tried and dropped: x packed by pairs of inputs (the packing costs more than
 * whole cache lines bring), groups of 32 pixels (sums are written too often), fetching sums ahead. Each thread reads
 * all of dy: for more than MF_K_THREE_THREADS nothing was measured and the library is left to it.
 */
#include "ops/cpu/kernels/kernels_isa.h"

#if defined(__AVX512F__)

typedef float vector __attribute__((vector_size(64), aligned(4)));

enum { LANES = 16, COLUMNS = 3, GROUP = 128 };

/* What a run walks over: `left` and `right` say whether the first and the last column lack a tap. */
typedef struct walk {
    const float *x, *dy;
    int64_t x_step, x_row, dy_step, dy_row, rows, columns;
    bool left, right;
} walk;

/* One pixel: taps `from` to `to` of the row; x is at the first of them. Pointers and values of x are made opaque to the
 * compiler: it would keep values from one pixel to the next, for which there are no registers. */
#define PIXEL(INPUTS, VECTORS, from, to)                                                                               \
    do {                                                                                                               \
        __asm__("" : "+r"(x), "+r"(dy));                                                                               \
        vector d[VECTORS];                                                                                             \
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) d[v] =                                               \
            *(const vector *)(const void *)(dy + v * LANES);                                                           \
        _Pragma("GCC unroll 3") for (int t = from; t < to; t++)                                                        \
            _Pragma("GCC unroll 4") for (int i = 0; i < INPUTS; i++)                                                   \
        {                                                                                                              \
            vector b = x[(t - from) * k->x_step + i] - (vector){0};                                                    \
            __asm__("" : "+v"(b));                                                                                     \
            _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) s[t][i][v] += b * d[v];                          \
        }                                                                                                              \
    } while (0)

#define RUN_OF(name, INPUTS, VECTORS)                                                                                  \
    static void name(const walk *k, float *dw, int64_t tap_step, int64_t in_step)                                      \
    {                                                                                                                  \
        vector s[COLUMNS][INPUTS][VECTORS] = {{{{0}}}};                                                                \
        for (int64_t h = 0; h < k->rows; h++) {                                                                        \
            const float *x = k->x + h * k->x_row, *dy = k->dy + h * k->dy_row;                                         \
            if (k->left) {                                                                                             \
                PIXEL(INPUTS, VECTORS, 1, 3);                                                                          \
                dy += k->dy_step;                                                                                      \
            }                                                                                                          \
            for (int64_t w = k->left + k->right; w < k->columns; w++, x += k->x_step, dy += k->dy_step)                \
                PIXEL(INPUTS, VECTORS, 0, 3);                                                                          \
            if (k->right)                                                                                              \
                PIXEL(INPUTS, VECTORS, 0, 2);                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 3") for (int t = 0; t < COLUMNS; t++)                                                      \
                _Pragma("GCC unroll 4") for (int i = 0; i < INPUTS; i++)                                               \
                    _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) *                                        \
            (vector *)(void *)(dw + t * tap_step + i * in_step + v * LANES) += s[t][i][v];                             \
    }

RUN_OF(run_of_64, 2, 4)
RUN_OF(run_of_32, 4, 2)

/* The shape of a block, and the blocks of the calling thread: unit u is block u / across of the inputs and u % across
 * of the outputs. */
typedef struct share {
    int64_t inputs, outputs, across, from, to;
} share;

static share share_of(const mf_k_conv *k)
{
    share s = {.inputs = 2, .outputs = 64};
    if (k->out_channels % 64 != 0)
        s = (share){.inputs = 4, .outputs = 32};
    s.across = k->out_channels / s.outputs;
    mf_k_range r = mf_k_share(k->channels / s.inputs * s.across, 1);
    s.from = r.from, s.to = r.to;
    return s;
}

/* Blocks of inputs that the share has for the block `o` of outputs. */
static mf_k_range inputs_of(const share *s, int64_t o)
{
    return (mf_k_range){(s->from - o + s->across - 1) / s->across, (s->to - o + s->across - 1) / s->across};
}

static void clear(const mf_k_conv *k, const share *s, float *dw, float *db)
{
    for (int64_t o = 0; o < s->across; o++) {
        mf_k_range blocks = inputs_of(s, o);
        for (int64_t t = 0; t < k->kernel[0] * COLUMNS; t++)
            for (int64_t i = blocks.from * s->inputs; i < blocks.to * s->inputs; i++)
                memset(dw + (t * k->channels + i) * k->out_channels + o * s->outputs, 0,
                       (size_t)s->outputs * sizeof *dw);
        if (db && blocks.from == 0 && blocks.to > 0)
            memset(db + o * s->outputs, 0, (size_t)s->outputs * sizeof *db);
    }
}

static void add_bias(const float *dy, int64_t step, int64_t pixels, int64_t outputs, float *db)
{
    for (int64_t o = 0; o < outputs; o += 2 * LANES) {
        vector a = {0}, b = {0};
        for (int64_t p = 0; p < pixels; p++) {
            a += *(const vector *)(const void *)(dy + p * step + o);
            b += *(const vector *)(const void *)(dy + p * step + o + LANES);
        }
        *(vector *)(void *)(db + o) += a;
        *(vector *)(void *)(db + o + LANES) += b;
    }
}

/* What the next group reads is asked for while this one is computed, some pixels before each run. */
typedef struct ahead {
    const float *x, *dy;
    int64_t x_from, x_to; /* the inputs of this share */
    int64_t pixel, pixels, run, runs;
} ahead;

static void fetch_ahead(const mf_k_conv *k, ahead *a)
{
    a->run++;
    for (; a->pixel * a->runs < a->pixels * a->run; a->pixel++) {
        for (int64_t i = a->x_from; i < a->x_to; i += LANES)
            __builtin_prefetch(a->x + a->pixel * k->channels + i, 0, 2);
        for (int64_t o = 0; o < k->out_channels; o += LANES)
            __builtin_prefetch(a->dy + a->pixel * k->out_channels + o, 0, 2);
    }
}

/* The group behind the rows up to `end` of a sample; none behind the last. */
static ahead ahead_of(const mf_k_conv *k, const share *s, const float *x, const float *dy, int64_t end, int64_t group,
                      bool last)
{
    int64_t row = end + k->kernel[0] - 1 - k->before[0], left = k->out[0] - end + (last ? 0 : k->out[0]);
    left = left < group ? left : group;
    row = last && row + left > k->in[0] ? k->in[0] - left : row; /* stays inside x */
    int64_t first = s->from / s->across, behind = (s->to + s->across - 1) / s->across;
    return (ahead){.x = row >= 0 ? x + row * k->in[1] * k->channels : x,
                   .dy = dy + end * k->out[1] * k->out_channels,
                   .x_from = first * s->inputs,
                   .x_to = behind * s->inputs,
                   .pixels = left * (k->out[1] < k->in[1] ? k->out[1] : k->in[1]),
                   .runs = (s->to - s->from) * k->kernel[0]};
}

/* One row r of the kernel under the rows [from, to) of a sample's output. */
static void kernel_row(const mf_k_conv *k, const share *s, const float *x, const float *dy, int64_t r, int64_t from,
                       int64_t to, float *dw, ahead *next)
{
    int64_t shift = r - k->before[0], wide = k->out_channels;
    from = from + shift < 0 ? -shift : from;
    to = to + shift > k->in[0] ? k->in[0] - shift : to;
    if (from >= to)
        return;
    walk w = {.x_step = k->channels,
              .x_row = k->in[1] * k->channels,
              .dy_step = wide,
              .dy_row = k->out[1] * wide,
              .rows = to - from,
              .columns = k->out[1],
              .left = k->before[1] == 1,
              .right = k->out[1] + COLUMNS - 1 - k->before[1] > k->in[1]};
    for (int64_t o = 0; o < s->across; o++) {
        mf_k_range blocks = inputs_of(s, o);
        w.dy = dy + from * w.dy_row + o * s->outputs;
        for (int64_t i = blocks.from * s->inputs; i < blocks.to * s->inputs; i += s->inputs) {
            float *sum = dw + (r * COLUMNS * k->channels + i) * wide + o * s->outputs;
            w.x = x + (from + shift) * w.x_row + i;
            fetch_ahead(k, next);
            (s->outputs == 64 ? run_of_64 : run_of_32)(&w, sum, k->channels * wide, wide);
        }
    }
}

/* All samples, group by group: every sum is over the same pixels in the same order in any share. */
static void share_grad(const mf_k_conv *k, const share *s, const float *x, const float *dy, float *dw, float *db)
{
    int64_t group = (GROUP + k->out[1] - 1) / k->out[1], wide = k->out_channels;
    for (int64_t n = 0; n < k->batch; n++, x += k->in[0] * k->in[1] * k->channels, dy += k->out[0] * k->out[1] * wide)
        for (int64_t h = 0; h < k->out[0]; h += group) {
            int64_t end = h + group < k->out[0] ? h + group : k->out[0];
            ahead next = ahead_of(k, s, x, dy, end, group, n + 1 == k->batch);
            for (int64_t r = 0; r < k->kernel[0]; r++)
                kernel_row(k, s, x, dy, r, h, end, dw, &next);
            for (int64_t o = 0; db && o < s->across; o++)
                if (s->from <= o && s->to > o) /* has the first input of these outputs */
                    add_bias(dy + h * k->out[1] * wide + o * s->outputs, wide, (end - h) * k->out[1], s->outputs,
                             db + o * s->outputs);
        }
}

#endif

void MF_K(three_grad)(const mf_k_conv *k, const float *x, const float *dy, float *dw, float *db, bool add, int threads)
{
#if defined(__AVX512F__)
#pragma omp parallel num_threads(threads)
    {
        share s = share_of(k);
        if (!add)
            clear(k, &s, dw, db);
        share_grad(k, &s, x, dy, dw, db);
    }
#else
    (void)k, (void)x, (void)dy, (void)dw, (void)db, (void)add, (void)threads;
#endif
}
