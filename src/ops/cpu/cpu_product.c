/*
 * cpu_product.c: a convolution or matrix product, made once for its shape: oneDNN's where it has an implementation that
 * takes no memory of its own, otherwise own kernels (kernels/gemm.h). The answer depends on shape, threads and
 * instruction set alone, so asking and making agree.
 */
#include "ops/cpu/cpu_product.h"

#include "base/error.h"

#include <stddef.h>

struct cpu_product {
    const memfit_host *host;
    uint64_t bytes;
    mf_dnn *dnn; /* NULL: own kernels; the rest is there for them alone */
    const mf_kernel_table *k;
    int threads;
    bool is_conv;
    union {
        mf_dnn_conv conv;
        mf_k_gemm gemm;
    };
};

static uint64_t round64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* ---- convolutions as products ------------------------------------------------------------------------------ */

/* Dimension d of three; those in front are ones where there are fewer. */
static int64_t at(const mf_dnn_conv *c, const int64_t *values, int d, int64_t otherwise)
{
    int i = d - (3 - c->dims);
    return i < 0 ? otherwise : values[i];
}

static bool is_depthwise(const mf_dnn_conv *c)
{
    return c->groups > 1 && c->groups == c->in_channels && c->groups == c->out_channels;
}

static mf_k_depthwise depthwise_of(const mf_dnn_conv *c)
{
    mf_k_depthwise k = {.batch = c->batch, .channels = c->in_channels};
    for (int d = 0; d < 3; d++) {
        k.in[d] = at(c, c->in, d, 1);
        k.out[d] = at(c, c->out, d, 1);
        k.kernel[d] = at(c, c->kernel, d, 1);
        k.stride[d] = at(c, c->stride, d, 1);
        k.dilation[d] = at(c, c->dilation, d, 1);
        k.before[d] = at(c, c->before, d, 0);
    }
    return k;
}

static int64_t count3(const int64_t *n)
{
    return n[0] * n[1] * n[2];
}

/* The windows of x under the places of y. */
static mf_k_windows windows_of(const mf_dnn_conv *c)
{
    mf_k_windows w = {.channels = c->in_channels / c->groups, .pixel = c->in_channels};
    for (int d = 0; d < 3; d++) {
        w.size[d] = at(c, c->in, d, 1);
        w.places[d] = at(c, c->out, d, 1);
        w.taps[d] = at(c, c->kernel, d, 1);
        w.step[d] = at(c, c->stride, d, 1);
        w.first[d] = -at(c, c->before, d, 0);
        w.by[d] = at(c, c->dilation, d, 1);
    }
    return w;
}

static mf_k_gemm forward_of(const mf_dnn_conv *c)
{
    int64_t ig = c->in_channels / c->groups, og = c->out_channels / c->groups;
    mf_k_windows w = windows_of(c);
    return (mf_k_gemm){.batch = c->groups,
                       .m = c->batch * count3(w.places),
                       .n = og,
                       .k = count3(w.taps) * ig,
                       .a = {.kind = MF_K_PLACES, .batch_step = ig, .w = w},
                       .b = {.kind = MF_K_PLAIN, .i_step = 1, .k_step = c->out_channels, .batch_step = og},
                       .c_row = c->out_channels,
                       .c_batch = og,
                       .bias_batch = og,
                       .scale = 1,
                       .bias = c->bias,
                       .relu = c->relu};
}

static mf_k_gemm grad_weights_of(const mf_dnn_conv *c)
{
    int64_t ig = c->in_channels / c->groups, og = c->out_channels / c->groups;
    mf_k_windows w = windows_of(c);
    return (mf_k_gemm){.batch = c->groups,
                       .m = count3(w.taps) * ig,
                       .n = og,
                       .k = c->batch * count3(w.places),
                       .a = {.kind = MF_K_TAPS, .batch_step = ig, .w = w},
                       .b = {.kind = MF_K_PLAIN, .i_step = 1, .k_step = c->out_channels, .batch_step = og},
                       .c_row = c->out_channels,
                       .c_batch = og,
                       .scale = 1,
                       .accumulate = c->accumulate};
}

/* The taps that places with remainder r see: t = tap + j * apart, j < taps; they meet y at place + first + j * by. */
typedef struct phase {
    int64_t places, taps, tap, apart, first, by;
} phase;

/* The greatest common divisor. */
static int64_t common(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static phase phase_of(const mf_dnn_conv *c, int d, int64_t r)
{
    int64_t s = at(c, c->stride, d, 1), dilation = at(c, c->dilation, d, 1), taps = at(c, c->kernel, d, 1);
    int64_t size = at(c, c->in, d, 1), reach = r + at(c, c->before, d, 0);
    phase p = {.places = size > r ? (size - r + s - 1) / s : 0, .apart = s / common(s, dilation)};
    while (p.tap < taps && p.tap < p.apart && (reach - p.tap * dilation) % s)
        p.tap++;
    if (p.tap >= taps || p.tap >= p.apart)
        return p; /* none: these places get nothing */
    p.taps = (taps - p.tap + p.apart - 1) / p.apart;
    p.first = (reach - p.tap * dilation) / s;
    p.by = -(p.apart * dilation / s);
    return p;
}

/* The data gradient of the places with remainders r; false when there are none. */
static bool grad_data_of(const mf_dnn_conv *c, const int64_t *r, mf_k_gemm *g)
{
    int64_t ig = c->in_channels / c->groups, og = c->out_channels / c->groups;
    *g = (mf_k_gemm){.batch = c->groups,
                     .n = ig,
                     .a = {.kind = MF_K_PLACES, .batch_step = og},
                     .b = {.kind = MF_K_WEIGHTS, .i_step = c->out_channels, .k_step = 1, .batch_step = og},
                     .c_row = c->in_channels,
                     .c_batch = ig,
                     .scattered = true,
                     .scale = 1};
    g->a.w.channels = g->b.w.channels = og;
    g->a.w.pixel = c->out_channels;
    g->b.w.pixel = ig * c->out_channels;
    for (int d = 0; d < 3; d++) {
        phase p = phase_of(c, d, r[d]);
        g->a.w.size[d] = at(c, c->out, d, 1);
        g->a.w.places[d] = g->rows.places[d] = p.places;
        g->a.w.taps[d] = g->b.w.taps[d] = p.taps;
        g->a.w.step[d] = 1;
        g->a.w.first[d] = p.first;
        g->a.w.by[d] = p.by;
        g->b.w.size[d] = at(c, c->kernel, d, 1);
        g->b.w.first[d] = p.tap;
        g->b.w.by[d] = p.apart;
        g->rows.size[d] = at(c, c->in, d, 1);
        g->rows.first[d] = r[d];
        g->rows.step[d] = at(c, c->stride, d, 1);
    }
    g->m = c->batch * count3(g->rows.places);
    g->k = count3(g->a.w.taps) * og;
    return g->m > 0;
}

/* The next remainders; false behind the last. */
static bool next_phase(const mf_dnn_conv *c, int64_t *r)
{
    for (int d = 2; d >= 0; d--) {
        if (++r[d] < at(c, c->stride, d, 1) && r[d] < at(c, c->in, d, 1))
            return true;
        r[d] = 0;
    }
    return false;
}

/* ---- workspace --------------------------------------------------------------------------------------------- */

static uint64_t gemm_bytes(mf_k_gemm *g, int threads)
{
    mf_k_gemm_divide(g, threads);
    return round64(mf_k_gemm_floats(g) * sizeof(float));
}

static uint64_t conv_bytes(const mf_dnn_conv *c, int threads)
{
    mf_k_gemm g;
    uint64_t most = 0;
    if (c->direction == MF_DNN_FORWARD) {
        g = forward_of(c);
        return is_depthwise(c) ? 0 : gemm_bytes(&g, threads);
    }
    if (c->direction == MF_DNN_GRAD_WEIGHTS) {
        g = grad_weights_of(c);
        uint64_t bias = c->bias ? 4 * mf_k_reduce_floats(1, g.k, c->out_channels, c->accumulate, threads) : 0;
        most = is_depthwise(c) ? 0 : gemm_bytes(&g, threads);
        return most > bias ? most : round64(bias);
    }
    int64_t r[3] = {0};
    do {
        uint64_t bytes = !is_depthwise(c) && grad_data_of(c, r, &g) ? gemm_bytes(&g, threads) : 0;
        most = bytes > most ? bytes : most;
    } while (next_phase(c, r));
    return most;
}

/* ---- which kernels ----------------------------------------------------------------------------------------- */

bool cpu_conv_of(const mf_window *w, const mf_shape *x, const mf_shape *y, mf_dnn_direction direction, mf_dnn_conv *c)
{
    if (x->rank != w->dims + 2 || y->rank != x->rank || w->dims < 1 || w->dims > 3)
        return false;
    *c = (mf_dnn_conv){.direction = direction,
                       .dims = (int)w->dims,
                       .batch = x->dim[0],
                       .in_channels = x->dim[w->dims + 1],
                       .out_channels = y->dim[w->dims + 1],
                       .groups = w->groups ? w->groups : 1};
    for (uint32_t i = 0; i < w->dims; i++) {
        c->in[i] = x->dim[1 + i];
        c->out[i] = y->dim[1 + i];
        c->kernel[i] = w->kernel[i];
        c->stride[i] = w->stride[i];
        c->dilation[i] = w->dilation[i];
        c->before[i] = w->before[i];
        c->after[i] = w->after[i];
    }
    return true;
}

/* Along one dimension with taps apart, or with much padding, own kernels are as quick as the library's or quicker (0.4 to 1.0
 * of the time at 64 to 4,096 columns of 16 to 256 channels) and keep nothing; the library (2.6) takes 3 KiB for each column
 * of a row only to say how it would do it: 6 MiB at 2,048. */
bool cpu_conv_is_own(const mf_dnn_conv *c)
{
    enum { MUCH_PADDING = 8 };
    return c->dims == 1 && (c->dilation[0] > 1 || c->before[0] >= MUCH_PADDING || c->after[0] >= MUCH_PADDING);
}

/* ---- making ------------------------------------------------------------------------------------------------ */

static memfit_status make(const cpu_backend *b, mf_dnn *dnn, const mf_dnn_conv *conv, const mf_k_gemm *gemm,
                          cpu_product **made, memfit_error *err)
{
    uint64_t bytes = dnn ? offsetof(cpu_product, k) : sizeof(cpu_product);
    cpu_product *p = mf_host_zalloc(b->base.host, bytes);
    if (!p) {
        mf_dnn_destroy(dnn);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    }
    p->host = b->base.host;
    p->bytes = bytes;
    p->dnn = dnn;
    *made = p;
    if (dnn)
        return MEMFIT_OK;
    p->k = b->k;
    p->threads = (int)b->base.threads;
    p->is_conv = conv != NULL;
    if (conv)
        p->conv = *conv;
    else
        p->gemm = *gemm;
    return MEMFIT_OK;
}

memfit_status cpu_product_conv(const cpu_backend *b, const mf_dnn_conv *conv, cpu_product **made, uint64_t *workspace,
                               memfit_error *err)
{
    mf_dnn *dnn = NULL;
    memfit_status status = cpu_conv_is_own(conv)
                               ? MEMFIT_UNSUPPORTED
                               : mf_dnn_conv_make(b->engine, conv, made ? &dnn : NULL, workspace, err);
    if (status == MEMFIT_UNSUPPORTED) {
        *workspace = conv_bytes(conv, (int)b->base.threads);
        status = MEMFIT_OK;
    }
    return status == MEMFIT_OK && made ? make(b, dnn, conv, NULL, made, err) : status;
}

static mf_k_gemm gemm_of(const mf_dnn_matmul *mm)
{
    int64_t row_a = mm->row_a ? mm->row_a : mm->trans_a ? mm->m : mm->k;
    int64_t row_b = mm->row_b ? mm->row_b : mm->trans_b ? mm->k : mm->n;
    mf_k_gemm g = {.batch = mm->batch_a > mm->batch_b ? mm->batch_a : mm->batch_b,
                   .m = mm->m,
                   .n = mm->n,
                   .k = mm->k,
                   .c_row = mm->row_c ? mm->row_c : mm->n,
                   .c_batch = mm->m * mm->n,
                   .scale = (float)mm->scale,
                   .bias = mm->bias,
                   .accumulate = mm->accumulate,
                   .relu = mm->relu};
    g.a = (mf_k_source){.kind = MF_K_PLAIN,
                        .i_step = mm->trans_a ? 1 : row_a,
                        .k_step = mm->trans_a ? row_a : 1,
                        .batch_step = mm->batch_a > 1 ? mm->m * mm->k : 0};
    g.b = (mf_k_source){.kind = MF_K_PLAIN,
                        .i_step = mm->trans_b ? row_b : 1,
                        .k_step = mm->trans_b ? 1 : row_b,
                        .batch_step = mm->batch_b > 1 ? mm->k * mm->n : 0};
    return g;
}

memfit_status cpu_product_matmul(const cpu_backend *b, const mf_dnn_matmul *mm, cpu_product **made, uint64_t *workspace,
                                 memfit_error *err)
{
    mf_dnn *dnn = NULL;
    mf_k_gemm g = gemm_of(mm);
    memfit_status status = mf_dnn_matmul_make(b->engine, mm, made ? &dnn : NULL, workspace, err);
    if (status == MEMFIT_UNSUPPORTED) {
        *workspace = gemm_bytes(&g, (int)b->base.threads);
        status = MEMFIT_OK;
    }
    return status == MEMFIT_OK && made ? make(b, dnn, NULL, &g, made, err) : status;
}

void cpu_product_destroy(cpu_product *p)
{
    if (!p)
        return;
    mf_dnn_destroy(p->dnn);
    mf_host_free(p->host, p, p->bytes);
}

/* ---- running ----------------------------------------------------------------------------------------------- */

static void run_gemm(const cpu_product *p, mf_k_gemm g, const float *a, const float *b, const float *bias, float *c,
                     void *workspace)
{
    mf_k_gemm_divide(&g, p->threads);
    p->k->gemm(&g, a, b, bias, c, workspace, p->threads);
}

static void run_depthwise(const cpu_product *p, void *const *o)
{
    const mf_dnn_conv *c = &p->conv;
    mf_k_depthwise k = depthwise_of(c);
    if (c->direction == MF_DNN_FORWARD)
        p->k->depthwise(&k, false, o[0], o[1], c->bias ? o[2] : NULL, c->relu, o[c->bias ? 3 : 2], p->threads);
    else if (c->direction == MF_DNN_GRAD_DATA)
        p->k->depthwise(&k, true, o[0], o[1], NULL, false, o[2], p->threads);
    else
        p->k->depthwise_weights(&k, o[0], o[1], c->accumulate, o[2], p->threads);
}

static void run_conv(const cpu_product *p, void *const *o, void *workspace)
{
    const mf_dnn_conv *c = &p->conv;
    if (is_depthwise(c)) {
        run_depthwise(p, o);
    } else if (c->direction == MF_DNN_FORWARD) {
        run_gemm(p, forward_of(c), o[0], o[1], c->bias ? o[2] : NULL, o[c->bias ? 3 : 2], workspace);
    } else if (c->direction == MF_DNN_GRAD_WEIGHTS) {
        run_gemm(p, grad_weights_of(c), o[0], o[1], NULL, o[2], workspace);
    } else {
        mf_k_gemm g;
        int64_t r[3] = {0};
        do {
            if (grad_data_of(c, r, &g))
                run_gemm(p, g, o[0], o[1], NULL, o[2], workspace);
        } while (next_phase(c, r));
    }
    if (c->direction == MF_DNN_GRAD_WEIGHTS && c->bias) {
        int64_t places = c->batch;
        for (int d = 0; d < c->dims; d++)
            places *= c->out[d];
        p->k->reduce(MF_REDUCE_SUM, o[1], o[3], 1, places, c->out_channels, c->accumulate, workspace, p->threads);
    }
}

memfit_status cpu_product_run(cpu_product *p, void *const *operands, void *workspace, memfit_error *err)
{
    if (p->dnn)
        return mf_dnn_run(p->dnn, operands, workspace, err);
    if (p->is_conv)
        run_conv(p, operands, workspace);
    else
        p->k->gemm(&p->gemm, operands[0], operands[1], p->gemm.bias ? operands[2] : NULL,
                   operands[p->gemm.bias ? 3 : 2], workspace, p->threads);
    return MEMFIT_OK;
}
