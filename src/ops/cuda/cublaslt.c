/*
 * cublaslt.c: see cublaslt.h. The library counts columns first; a row-major c = a b is its c' = b' a', so b is its first
 * factor and a its second, and nothing is transposed in memory.
 *
 *     method's identity   CUDA_PRODUCT, compute (0 the type's own, 1 TF32), which bound on the workspace, rows filled up
 *                         (product_pad.h)
 *
 * An algorithm is the first of the library's own list for these shapes, types, alignments and that bound: the same
 * question has the same answer, so that prepare finds what query named.
 */
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/product_pad.h"

#include "base/error.h"

#include <string.h>

enum {
    OP_T = 1,
    R_32F = 0,
    R_64F = 1,
    R_16F = 2,
    R_16BF = 14,
    COMPUTE_32F = 68,
    COMPUTE_64F = 70,
    COMPUTE_TF32 = 77,
    DESC_TRANSA = 3,
    DESC_TRANSB = 4,
    DESC_EPILOGUE = 7,
    DESC_BIAS_POINTER = 8,
    DESC_BIAS_TYPE = 26,
    LAYOUT_BATCH = 5,
    LAYOUT_STRIDE = 6,
    EPILOGUE_BIAS = 4,
    PREF_WORKSPACE = 1,
    PREF_REDUCTION = 3,
    PREF_ALIGN_A = 5,
    REDUCTION_IN_ORDER = 6, /* compute or output type, never in place */
};
static const uint64_t bounds[] = {UINT64_C(32) << 20, UINT64_C(4) << 20, 0};
enum { BOUNDS = 3 };

typedef struct lt_algorithm {
    uint64_t data[8];
} lt_algorithm;
typedef struct lt_result {
    lt_algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_result;
typedef void *lt_handle;

struct mf_cublaslt {
    const memfit_host *host;
    mf_cuda_card card;
    mf_library library;
    lt_handle handle;
    int (*create)(lt_handle *handle);
    int (*destroy)(lt_handle handle);
    size_t (*version)(void);
    int (*matmul)(lt_handle handle, lt_handle desc, const void *alpha, const void *a, lt_handle la, const void *b,
                  lt_handle lb, const void *beta, const void *c, lt_handle lc, void *d, lt_handle ld,
                  const lt_algorithm *algorithm, void *workspace, size_t bytes, cu_stream stream);
    int (*desc_create)(lt_handle *desc, int compute, int scale);
    int (*desc_destroy)(lt_handle desc);
    int (*desc_set)(lt_handle desc, int attribute, const void *value, size_t bytes);
    int (*layout_create)(lt_handle *layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
    int (*layout_destroy)(lt_handle layout);
    int (*layout_set)(lt_handle layout, int attribute, const void *value, size_t bytes);
    int (*pref_create)(lt_handle *pref);
    int (*pref_destroy)(lt_handle pref);
    int (*pref_set)(lt_handle pref, int attribute, const void *value, size_t bytes);
    int (*heuristic)(lt_handle handle, lt_handle desc, lt_handle a, lt_handle b, lt_handle c, lt_handle d,
                     lt_handle pref, int wanted, lt_result *results, int *found);
};

typedef struct product {
    int64_t m, n, k, batch;
    bool ta, tb, a_shared, b_shared, bias, adds;
    int a, b, c, bias_type; /* the library's types */
    uint32_t align[3];
    double scale;
    int64_t row[3]; /* lengths of a's, b's and c's rows in memory */
    bool slow;      /* 16 bits, and rows are no multiple of 16 bytes */
} product;

typedef struct product_call {
    cuda_call base;
    mf_cublaslt *lt;
    lt_handle desc, a, b, c;
    lt_algorithm algorithm;
    size_t workspace;
    bool wide, bias;
    double alpha, beta;
    float alpha32, beta32;
    product of; /* for what is said when it is refused */
    bool padded;
    cuda_padding padding;
} product_call;

memfit_status mf_cublaslt_open(const memfit_host *host, const mf_cuda_card *card, mf_cublaslt **out, memfit_error *err)
{
    mf_cublaslt *lt = mf_host_zalloc(host, sizeof *lt);
    if (!lt)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for cuBLASLt");
    lt->host = host;
    lt->card = *card;
    memfit_status status = mf_library_open(mf_finder_default(), MF_LIBRARY_CUBLASLT, 0, &lt->library, err);
    const mf_symbol symbols[] = {{"cublasLtCreate", &lt->create, true},
                                 {"cublasLtDestroy", &lt->destroy, true},
                                 {"cublasLtMatmul", &lt->matmul, true},
                                 {"cublasLtGetVersion", &lt->version, true},
                                 {"cublasLtMatmulDescCreate", &lt->desc_create, true},
                                 {"cublasLtMatmulDescDestroy", &lt->desc_destroy, true},
                                 {"cublasLtMatmulDescSetAttribute", &lt->desc_set, true},
                                 {"cublasLtMatrixLayoutCreate", &lt->layout_create, true},
                                 {"cublasLtMatrixLayoutDestroy", &lt->layout_destroy, true},
                                 {"cublasLtMatrixLayoutSetAttribute", &lt->layout_set, true},
                                 {"cublasLtMatmulPreferenceCreate", &lt->pref_create, true},
                                 {"cublasLtMatmulPreferenceDestroy", &lt->pref_destroy, true},
                                 {"cublasLtMatmulPreferenceSetAttribute", &lt->pref_set, true},
                                 {"cublasLtMatmulAlgoGetHeuristic", &lt->heuristic, true}};
    if (status == MEMFIT_OK)
        status = mf_library_resolve(&lt->library, symbols, sizeof symbols / sizeof *symbols, err);
    mf_cuda_call call;
    if (status == MEMFIT_OK)
        status = mf_cuda_enter(card, &call, err);
    if (status == MEMFIT_OK) {
        int code = lt->create(&lt->handle);
        mf_cuda_leave(card, call);
        if (code != 0)
            status = mf_fail(err, MEMFIT_DEVICE, "%s could not be started (%d)", lt->library.path, code);
    }
    if (status) {
        mf_host_free(host, lt, sizeof *lt);
        return status;
    }
    *out = lt;
    return MEMFIT_OK;
}

size_t mf_cublaslt_version(const mf_cublaslt *lt)
{
    return lt->version();
}

void mf_cublaslt_close(mf_cublaslt *lt)
{
    mf_cuda_call call;
    if (!lt)
        return;
    if (mf_cuda_enter(&lt->card, &call, NULL) == MEMFIT_OK) {
        lt->destroy(lt->handle);
        mf_cuda_leave(&lt->card, call);
    }
    mf_host_free(lt->host, lt, sizeof *lt);
}

/* ---- what is multiplied ---- */

static int type_of(mf_dtype dtype)
{
    return dtype == MF_F32 ? R_32F : dtype == MF_F64 ? R_64F : dtype == MF_F16 ? R_16F : dtype == MF_BF16 ? R_16BF : -1;
}

/* Storages begin at multiples of 256; a view may begin anywhere in one. */
static uint32_t alignment_of(const mf_tensor *t)
{
    uint32_t align = 256;
    while (t->offset % align)
        align /= 2;
    return align;
}

static bool describe(const mf_graph *g, const mf_op *op, product *p)
{
    const mf_tensor *a = &g->tensors[op->in[0]], *b = &g->tensors[op->in[1]], *c = &g->tensors[op->out[0]];
    const mf_tensor *bias = op->in_count > 2 && op->in[2] != MF_NONE ? &g->tensors[op->in[2]] : NULL;
    const mf_shape *sa = &a->shape, *sb = &b->shape;
    *p = (product){.ta = op->attr.matmul.trans_a, .tb = op->attr.matmul.trans_b, .scale = op->attr.matmul.scale};
    int64_t a_rows = sa->rank > 1 ? sa->dim[sa->rank - 2] : 1, a_cols = sa->dim[sa->rank - 1];
    int64_t b_rows = sb->rank > 1 ? sb->dim[sb->rank - 2] : 1, b_cols = sb->dim[sb->rank - 1];
    p->m = p->ta ? a_cols : a_rows;
    p->k = p->ta ? a_rows : a_cols;
    p->n = p->tb ? b_rows : b_cols;
    /* a single number: the library was seen to give another one where it adds to it (13.1 on an H200) */
    if (p->m <= 0 || p->n <= 0 || p->k <= 0 || mf_shape_count(&c->shape) == 1)
        return false;
    p->batch = (int64_t)mf_shape_count(&c->shape) / (p->m * p->n);
    if (sb->rank <= 2 && !p->ta) { /* one matrix serves all batches: one tall product */
        p->m *= p->batch;
        p->batch = 1;
    }
    p->a_shared = (int64_t)mf_shape_count(sa) <= p->m * p->k;
    p->b_shared = (int64_t)mf_shape_count(sb) <= p->k * p->n;
    p->a = type_of(a->dtype);
    p->b = type_of(b->dtype);
    p->c = type_of(c->dtype);
    p->bias = bias != NULL;
    p->bias_type = bias ? type_of(bias->dtype) : p->c;
    p->adds = op->accumulate;
    p->align[0] = alignment_of(b);
    p->align[1] = alignment_of(a);
    p->align[2] = alignment_of(c);
    p->row[0] = p->ta ? p->m : p->k;
    p->row[1] = p->tb ? p->k : p->n;
    p->row[2] = p->n;
    p->slow = (p->a == R_16BF || p->a == R_16F) && (p->row[0] % 8 || p->row[1] % 8 || p->row[2] % 8);
    return p->batch > 0 && p->a >= 0 && p->a == p->b && (p->c == p->a || (p->c == R_32F && p->a != R_64F)) &&
           p->bias_type == p->c && !(p->bias && p->adds);
}

/* The product of what lies in the workspace with longer rows: their ends are zeros, and where all factors have them they
 * are multiplied too. Bias and adding are left to the copy back. */
static void take_padding(product *p, const cuda_padding *pad)
{
    for (int i = 0; i < 3; i++) {
        p->row[i] = pad->to[i];
        if (pad->to[i] != pad->from[i])
            p->align[i == 2 ? 2 : 1 - i] = 256;
    }
    if (!p->ta && p->tb)
        p->k = pad->to[0];
    if (!p->tb)
        p->n = pad->to[1];
    if (pad->to[2] != pad->from[2])
        p->bias = p->adds = false;
}

/* May it run that way? Where the result lies in place, its rows must be as long as the product's. */
static bool can_pad(const mf_graph *g, const mf_op *op, const product *p, cuda_padding *pad)
{
    return p->slow && p->batch == 1 && cuda_padding_of(g, op, pad) && (p->tb || pad->to[2] == pad->to[1]) &&
           (p->ta || !p->tb || pad->to[0] == pad->to[1]);
}

/* ---- descriptors ---- */

static void destroy_call(product_call *q)
{
    mf_cublaslt *lt = q->lt;
    if (q->desc)
        lt->desc_destroy(q->desc);
    if (q->a)
        lt->layout_destroy(q->a);
    if (q->b)
        lt->layout_destroy(q->b);
    if (q->c)
        lt->layout_destroy(q->c);
    mf_host_free(lt->host, q, sizeof *q);
}

static int set_batch(mf_cublaslt *lt, lt_handle layout, int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    int code = lt->layout_set(layout, LAYOUT_BATCH, &count, sizeof count);
    return code ? code : lt->layout_set(layout, LAYOUT_STRIDE, &stride, sizeof stride);
}

static int make_descriptors(product_call *q, const product *p, bool tf32)
{
    mf_cublaslt *lt = q->lt;
    int transposed = OP_T, epilogue = EPILOGUE_BIAS;
    int compute = p->a == R_64F ? COMPUTE_64F : tf32 ? COMPUTE_TF32 : COMPUTE_32F;
    int code = lt->desc_create(&q->desc, compute, p->a == R_64F ? R_64F : R_32F);
    if (!code && p->tb)
        code = lt->desc_set(q->desc, DESC_TRANSA, &transposed, sizeof transposed);
    if (!code && p->ta)
        code = lt->desc_set(q->desc, DESC_TRANSB, &transposed, sizeof transposed);
    if (!code && p->bias)
        code = lt->desc_set(q->desc, DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!code && p->bias)
        code = lt->desc_set(q->desc, DESC_BIAS_TYPE, &p->bias_type, sizeof p->bias_type);
    uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    if (!code)
        code = lt->layout_create(&q->a, p->b, p->tb ? k : n, p->tb ? n : k, p->row[1]);
    if (!code)
        code = lt->layout_create(&q->b, p->a, p->ta ? m : k, p->ta ? k : m, p->row[0]);
    if (!code)
        code = lt->layout_create(&q->c, p->c, n, m, p->row[2]);
    if (!code && p->batch > 1) {
        code = set_batch(lt, q->a, p->batch, p->b_shared ? 0 : p->k * p->n);
        if (!code)
            code = set_batch(lt, q->b, p->batch, p->a_shared ? 0 : p->m * p->k);
        if (!code)
            code = set_batch(lt, q->c, p->batch, p->m * p->n);
    }
    q->wide = p->a == R_64F;
    q->bias = p->bias;
    q->alpha = p->scale;
    q->beta = p->adds;
    q->alpha32 = (float)q->alpha;
    q->beta32 = (float)q->beta;
    q->of = *p;
    return code;
}

static int choose(product_call *q, const product *p, uint64_t bound)
{
    mf_cublaslt *lt = q->lt;
    lt_handle pref = NULL;
    uint32_t reduction = REDUCTION_IN_ORDER;
    lt_result result;
    int found = 0, code = lt->pref_create(&pref);
    if (code)
        return code;
    code = lt->pref_set(pref, PREF_WORKSPACE, &bound, sizeof bound);
    if (!code)
        code = lt->pref_set(pref, PREF_REDUCTION, &reduction, sizeof reduction);
    const uint32_t align[4] = {p->align[0], p->align[1], p->align[2], p->align[2]};
    for (int i = 0; i < 4 && !code; i++)
        code = lt->pref_set(pref, PREF_ALIGN_A + i, &align[i], sizeof align[i]);
    memset(&result, 0, sizeof result);
    if (!code)
        code = lt->heuristic(lt->handle, q->desc, q->a, q->b, q->c, q->c, pref, 1, &result, &found);
    lt->pref_destroy(pref);
    if (!code && (found < 1 || result.state != 0))
        code = -1;
    q->algorithm = result.algorithm;
    q->workspace = result.workspace;
    return code;
}

static memfit_status refused(const product_call *q, int code, const void *workspace, memfit_error *err)
{
    const product *p = &q->of;
    return mf_fail(
        err, MEMFIT_DEVICE,
        "cuBLASLt refused a product (%d): %lld x %lld x %lld%s%s, %lld of them%s%s, types %d to %d, workspace "
        "%llu bytes at %p",
        code, (long long)p->m, (long long)p->k, (long long)p->n, p->ta ? ", the first turned" : "",
        p->tb ? ", the second turned" : "", (long long)p->batch, p->bias ? ", with a bias" : "",
        p->adds ? ", added" : "", p->a, p->c, (unsigned long long)q->workspace, workspace);
}

static memfit_status run_product(cuda_call *call, void *const *in, void *const *out, void *workspace, mf_stream stream,
                                 memfit_error *err)
{
    product_call *q = (product_call *)call;
    mf_cublaslt *lt = q->lt;
    mf_cuda_call state;
    memfit_status status = mf_cuda_enter(&lt->card, &state, err);
    if (status)
        return status;
    void *x[3] = {in[0], in[1], out[0]};
    for (int i = 0; i < 3 && q->padded; i++)
        if (q->padding.to[i] != q->padding.from[i])
            x[i] = (char *)workspace + q->padding.at[i];
    if (q->padded)
        workspace = (char *)workspace + q->padding.bytes;
    if (!q->workspace)
        workspace = NULL; /* where none was planned the address is none: the library looks at it all the same */
    int code = q->bias ? lt->desc_set(q->desc, DESC_BIAS_POINTER, &in[2], sizeof in[2]) : 0;
    if (!code)
        code = lt->matmul(lt->handle, q->desc, q->wide ? (const void *)&q->alpha : &q->alpha32, x[1], q->a, x[0], q->b,
                          q->wide ? (const void *)&q->beta : &q->beta32, x[2], q->c, x[2], q->c, &q->algorithm,
                          workspace, q->workspace, (cu_stream)(uintptr_t)stream);
    mf_cuda_leave(&lt->card, state);
    return code ? refused(q, code, workspace, err) : MEMFIT_OK;
}

static void release_product(cuda_call *call)
{
    destroy_call((product_call *)call);
}

/* OK with *out NULL where the library has no way. */
static memfit_status make_call(mf_cublaslt *lt, const product *p, bool tf32, uint64_t bound, product_call **out,
                               memfit_error *err)
{
    *out = NULL;
    product_call *q = mf_host_zalloc(lt->host, sizeof *q);
    if (!q)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a product");
    q->base = (cuda_call){.run = run_product, .release = release_product};
    q->lt = lt;
    mf_cuda_call state;
    memfit_status status = mf_cuda_enter(&lt->card, &state, err);
    int code = status ? -1 : make_descriptors(q, p, tf32);
    if (!code)
        code = choose(q, p, bound);
    if (status == MEMFIT_OK)
        mf_cuda_leave(&lt->card, state);
    if (code)
        destroy_call(q);
    else
        *out = q;
    return status;
}

static double time_of(const product *p, bool tf32)
{
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch;
    return 3 + flops / (p->slow ? 1.2e8 : p->a == R_16BF || p->a == R_16F ? 5e8 : tf32 ? 2.5e8 : 4e7);
}

/* One more way where rows can be filled up. */
static memfit_status add_padded(mf_cublaslt *lt, const product *plain, const cuda_padding *pad, mf_cost *cost,
                                memfit_error *err)
{
    product p = *plain;
    product_call *q;
    take_padding(&p, pad);
    p.slow = false;
    memfit_status status = make_call(lt, &p, false, bounds[0], &q, err);
    if (status || !q)
        return status;
    cost->methods[cost->method_count++] = (mf_method){.id = {CUDA_PRODUCT, 0, 0, 1},
                                                      .workspace_bytes = pad->bytes + q->workspace,
                                                      .time_us = time_of(&p, false) + 6 + (double)pad->bytes / 1.2e6,
                                                      .deterministic = true,
                                                      .numerics = MF_REORDERED};
    destroy_call(q);
    return MEMFIT_OK;
}

memfit_status mf_cublaslt_methods(mf_cublaslt *lt, const mf_graph *graph, const mf_op *op, mf_cost *cost,
                                  memfit_error *err)
{
    product p;
    if (!describe(graph, op, &p))
        return MEMFIT_OK;
    uint64_t before = UINT64_MAX;
    for (unsigned tf32 = 0; tf32 < (p.a == R_32F ? 2u : 1u); tf32++, before = UINT64_MAX)
        for (unsigned i = 0; i < BOUNDS && cost->method_count < MF_PLAIN_METHODS - 1; i++) {
            product_call *q;
            memfit_status status = make_call(lt, &p, tf32, bounds[i], &q, err);
            if (status)
                return status;
            if (!q)
                continue;
            if (q->workspace < before)
                cost->methods[cost->method_count++] =
                    (mf_method){.id = {CUDA_PRODUCT, (unsigned char)tf32, (unsigned char)i},
                                .workspace_bytes = q->workspace,
                                .time_us = time_of(&p, tf32) * (1 + 0.01 * i),
                                .deterministic = true,
                                .numerics = tf32                 ? MF_CHANGED
                                            : cost->method_count ? MF_REORDERED
                                                                 : MF_BITWISE};
            before = q->workspace;
            destroy_call(q);
        }
    cuda_padding pad;
    bool pads = cost->method_count && cost->method_count < MF_PLAIN_METHODS - 1 && can_pad(graph, op, &p, &pad);
    return pads ? add_padded(lt, &p, &pad, cost, err) : MEMFIT_OK;
}

memfit_status mf_cublaslt_call(mf_cublaslt *lt, const mf_graph *graph, const mf_op *op, const mf_method *method,
                               cuda_call **call, memfit_error *err)
{
    product p;
    product_call *q = NULL;
    if (!describe(graph, op, &p) || method->id[2] >= BOUNDS)
        return mf_fail(err, MEMFIT_INTERNAL, "a product's method is of another product");
    cuda_padding pad = {0};
    if (method->id[3] && !can_pad(graph, op, &p, &pad))
        return mf_fail(err, MEMFIT_INTERNAL, "a product's method is of another product");
    if (method->id[3])
        take_padding(&p, &pad);
    memfit_status status = make_call(lt, &p, method->id[1] == 1, bounds[method->id[2]], &q, err);
    if (status)
        return status;
    if (!q || pad.bytes + q->workspace > method->workspace_bytes) {
        if (q)
            destroy_call(q);
        return mf_fail(err, MEMFIT_DEVICE, "cuBLASLt answers differently than when the plan was made");
    }
    q->padded = method->id[3] != 0;
    q->padding = pad;
    *call = &q->base;
    return MEMFIT_OK;
}
