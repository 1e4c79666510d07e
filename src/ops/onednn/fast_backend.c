/*
 * fast_backend.c: the CPU backend: oneDNN for convolution and products, own kernels for the rest, the reference
 * operations for what neither has.
 *
 *   operation --16-bit operands?--> converted copies in workspace around the float32 kernel   (storage formats)
 *             --rule serves?------> rule                                                       (fast)
 *             --otherwise---------> reference                                                  (cost.reference)
 *
 * Kernels hold pointers into their graph, which must outlive them. Threads: one caller at a time; kernels use an OpenMP
 * team of the backend's size. Denormals are flushed in every thread of the team: they cost a hundredfold and carry
 * nothing in training.
 */
#include "ops/onednn/fast.h"

#include "base/error.h"
#include "base/os.h"

#include <omp.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

const fast_rule *fast_rule_of(mf_op_kind kind)
{
    switch (kind) {
    case MF_OP_INPUT:
    case MF_OP_VIEW:
        return &fast_nothing;
    case MF_OP_CAST:
        return &fast_cast;
    case MF_OP_FILL:
        return &fast_fill;
    case MF_OP_TRANSPOSE:
        return &fast_transpose;
    case MF_OP_SLICE:
        return &fast_slice;
    case MF_OP_PAD:
        return &fast_pad;
    case MF_OP_CONCAT:
        return &fast_concat;
    case MF_OP_BROADCAST:
        return &fast_broadcast;
    case MF_OP_GATHER:
        return &fast_gather;
    case MF_OP_GATHER_GRAD:
        return &fast_gather_grad;
    case MF_OP_MATMUL:
        return &fast_matmul;
    case MF_OP_CONV:
        return &fast_conv;
    case MF_OP_CONV_GRAD_DATA:
        return &fast_conv_grad_data;
    case MF_OP_CONV_GRAD_WEIGHTS:
        return &fast_conv_grad_weights;
    case MF_OP_UNARY:
        return &fast_unary;
    case MF_OP_UNARY_GRAD:
        return &fast_unary_grad;
    case MF_OP_MASK:
        return &fast_mask;
    case MF_OP_MASK_GRAD:
        return &fast_mask_grad;
    case MF_OP_BINARY:
        return &fast_binary;
    case MF_OP_SUM_N:
        return &fast_sum_n;
    case MF_OP_REDUCE:
        return &fast_reduce;
    case MF_OP_SOFTMAX:
        return &fast_softmax;
    case MF_OP_SOFTMAX_GRAD:
        return &fast_softmax_grad;
    case MF_OP_POOL_MAX:
        return &fast_pool_max;
    case MF_OP_POOL_MAX_GRAD:
        return &fast_pool_max_grad;
    case MF_OP_POOL_AVG:
        return &fast_pool_avg;
    case MF_OP_POOL_AVG_GRAD:
        return &fast_pool_avg_grad;
    case MF_OP_BATCH_NORM:
        return &fast_batch_norm;
    case MF_OP_BATCH_NORM_GRAD:
        return &fast_batch_norm_grad;
    case MF_OP_BATCH_NORM_INFER:
        return &fast_batch_norm_infer;
    case MF_OP_BATCH_NORM_INFER_GRAD:
        return &fast_batch_norm_infer_grad;
    case MF_OP_MOVING_AVERAGE:
        return &fast_moving_average;
    case MF_OP_LAYER_NORM:
        return &fast_layer_norm;
    case MF_OP_LAYER_NORM_GRAD:
        return &fast_layer_norm_grad;
    case MF_OP_LOSS:
        return &fast_loss;
    case MF_OP_LOSS_GRAD:
        return &fast_loss_grad;
    case MF_OP_UPDATE:
        return &fast_update;
    case MF_OP_DROPOUT:
        return &fast_dropout;
    case MF_OP_LSTM:
        return &fast_lstm;
    case MF_OP_LSTM_GRAD:
        return &fast_lstm_grad;
    case MF_OP_GRU:
        return &fast_gru;
    case MF_OP_GRU_GRAD:
        return &fast_gru_grad;
    case MF_OP_SIMPLE_RNN:
        return &fast_simple_rnn;
    case MF_OP_SIMPLE_RNN_GRAD:
        return &fast_simple_rnn_grad;
    case MF_OP_CHECK_FINITE:
        return &fast_check_finite;
    case MF_OP_REGULARIZE:
        return &fast_regularize;
    case MF_OP_SQUARE_SUM:
        return &fast_square_sum;
    default:
        return NULL;
    }
}

/* ---- 16-bit operands -------------------------------------------------------------------------------------- */

/* A graph of this one operation with float32 in place of the 16-bit types, and where each operand's copy lies. */
typedef struct fast_wide {
    mf_graph graph;
    mf_op op;
    mf_tensor *tensors;
    uint32_t *ids;
    uint64_t *offset; /* of the copy in workspace; UINT64_MAX: used where it is */
    void **pointers;
    uint32_t count;
    uint64_t copies_bytes, inner_bytes, bytes; /* bytes: of this allocation */
    mf_kernel *kernel;
} fast_wide;

static bool is_half(mf_dtype t)
{
    return t == MF_F16 || t == MF_BF16;
}

static bool wants_wide(const fast_kernel *k)
{
    if (k->op->kind == MF_OP_CAST || k->op->kind == MF_OP_VIEW || k->op->kind == MF_OP_INPUT ||
        k->op->kind == MF_OP_TRANSPOSE || k->op->kind == MF_OP_SLICE || k->op->kind == MF_OP_CONCAT)
        return false;
    for (uint32_t i = 0; i < k->op->in_count; i++)
        if (fast_in(k, i) && is_half(fast_in(k, i)->dtype))
            return true;
    for (uint32_t i = 0; i < k->op->out_count; i++)
        if (fast_out(k, i) && is_half(fast_out(k, i)->dtype))
            return true;
    return false;
}

static memfit_status make_wide(fast_kernel *k, fast_wide **made, memfit_error *err)
{
    uint32_t n = k->op->in_count + k->op->out_count;
    uint64_t bytes = sizeof(fast_wide) + n * (sizeof(mf_tensor) + sizeof(uint32_t) + sizeof(uint64_t) + sizeof(void *));
    fast_wide *w = mf_host_zalloc(k->backend->base.host, bytes);
    if (!w)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    w->bytes = bytes;
    w->count = n;
    w->tensors = (mf_tensor *)(w + 1);
    w->offset = (uint64_t *)(w->tensors + n);
    w->pointers = (void **)(w->offset + n);
    w->ids = (uint32_t *)(w->pointers + n);
    uint64_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = i < k->op->in_count ? k->op->in[i] : k->op->out[i - k->op->in_count];
        w->offset[i] = UINT64_MAX;
        w->ids[i] = id == MF_NONE ? MF_NONE : i;
        if (id == MF_NONE)
            continue;
        w->tensors[i] = k->graph->tensors[id];
        if (!is_half(w->tensors[i].dtype))
            continue;
        w->tensors[i].dtype = MF_F32;
        for (uint32_t j = 0; j < i; j++) { /* in place: one copy for both */
            uint32_t other = j < k->op->in_count ? k->op->in[j] : k->op->out[j - k->op->in_count];
            if (other == id)
                w->offset[i] = w->offset[j];
        }
        if (w->offset[i] == UINT64_MAX) {
            w->offset[i] = at;
            at += (mf_shape_count(&w->tensors[i].shape) * 4 + 63) & ~63ull;
        }
    }
    w->copies_bytes = at;
    w->op = *k->op;
    w->op.in = w->ids;
    w->op.out = w->ids + k->op->in_count;
    w->graph = *k->graph;
    w->graph.tensors = w->tensors;
    w->graph.tensor_count = n;
    w->graph.ops = &w->op;
    w->graph.op_count = 1;
    *made = w;
    return MEMFIT_OK;
}

static memfit_status run_wide(fast_kernel *k, const mf_operands *o, const mf_run_scalars *s, memfit_error *err)
{
    fast_wide *w = k->wide;
    uint32_t ins = k->op->in_count;
    unsigned char *space = o->workspace;
    const mf_kernel_table *t = k->backend->k;
    for (uint32_t i = 0; i < w->count; i++) {
        const mf_tensor *real = i < ins ? fast_in(k, i) : fast_out(k, i - ins);
        void *p = i < ins ? o->in[i] : o->out[i - ins];
        w->pointers[i] = real ? p : NULL;
        if (w->offset[i] == UINT64_MAX || !real)
            continue;
        w->pointers[i] = space + w->offset[i];
        if (i < ins || fast_adds(k, i - ins))
            t->cast(real->dtype, p, MF_F32, w->pointers[i], fast_count(real), fast_threads(k));
    }
    mf_operands inner = {w->pointers, w->pointers + ins, space + w->copies_bytes};
    memfit_status status = k->backend->base.table->run(w->kernel, &inner, s, err);
    for (uint32_t i = ins; i < w->count && status == MEMFIT_OK; i++) {
        const mf_tensor *real = fast_out(k, i - ins);
        if (real && w->offset[i] != UINT64_MAX)
            t->cast(MF_F32, w->pointers[i], real->dtype, o->out[i - ins], fast_count(real), fast_threads(k));
    }
    return status;
}

/* ---- the table -------------------------------------------------------------------------------------------- */

static memfit_status fast_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                memfit_error *err);

static memfit_status query_wide(fast_kernel *k, mf_cost *cost, memfit_error *err)
{
    fast_wide *w;
    memfit_status status = make_wide(k, &w, err);
    if (status != MEMFIT_OK)
        return status;
    status = fast_query(&k->backend->base, &w->graph, 0, cost, err);
    if (status == MEMFIT_OK) {
        cost->workspace_bytes += w->copies_bytes;
        cost->time_us += fast_copies_us(k->backend, w->copies_bytes / 2 * 3); /* 2 bytes read, 4 written, or back */
    }
    mf_host_free(k->backend->base.host, w, w->bytes);
    return status;
}

static memfit_status fast_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                memfit_error *err)
{
    fast_backend *b = (fast_backend *)backend;
    fast_kernel k = {.backend = b, .graph = graph, .op = &graph->ops[op]};
    if (k.op->kind == MF_OP_ASSUMED) {
        *cost = (mf_cost){.supported = false};
        return MEMFIT_OK;
    }
    if (wants_wide(&k))
        return query_wide(&k, cost, err);
    const fast_rule *rule = fast_rule_of(k.op->kind);
    uint64_t workspace = 0;
    memfit_status status = rule ? rule->bind(&k, false, &workspace, err) : fast_no(err);
    if (status == MEMFIT_OK) {
        *cost = (mf_cost){.supported = true,
                          .deterministic = true,
                          .workspace_bytes = workspace,
                          .time_us = rule == &fast_nothing ? 0 : fast_estimate_us(&k, false)};
        return MEMFIT_OK;
    }
    if (status != MEMFIT_UNSUPPORTED)
        return status;
    status = b->reference->table->query(b->reference, graph, op, cost, err);
    if (status == MEMFIT_OK && cost->supported)
        cost->time_us = fast_estimate_us(&k, true);
    return status;
}

static void fast_release(mf_backend *backend, mf_kernel *kernel)
{
    fast_kernel *k = (fast_kernel *)kernel;
    if (!k)
        return;
    mf_dnn_destroy(k->dnn);
    mf_dnn_destroy(k->dnn2);
    if (k->reference)
        k->backend->reference->table->release(k->backend->reference, k->reference);
    if (k->wide) {
        fast_release(backend, k->wide->kernel);
        mf_host_free(backend->host, k->wide, k->wide->bytes);
    }
    mf_host_free(backend->host, k, sizeof *k);
}

static memfit_status fast_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_kernel **kernel,
                                  memfit_error *err)
{
    fast_backend *b = (fast_backend *)backend;
    fast_kernel *k = mf_host_zalloc(backend->host, sizeof *k);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    k->backend = b;
    k->graph = graph;
    k->op = &graph->ops[op];
    memfit_status status;
    if (wants_wide(k)) {
        status = make_wide(k, &k->wide, err);
        if (status == MEMFIT_OK)
            status = fast_prepare(backend, &k->wide->graph, 0, &k->wide->kernel, err);
    } else {
        uint64_t workspace;
        k->rule = fast_rule_of(k->op->kind);
        status = k->rule ? k->rule->bind(k, true, &workspace, err) : fast_no(err);
        if (status == MEMFIT_UNSUPPORTED) {
            k->rule = NULL;
            status = b->reference->table->prepare(b->reference, graph, op, &k->reference, err);
        }
    }
    if (status != MEMFIT_OK) {
        fast_release(backend, (mf_kernel *)k);
        return status;
    }
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

static memfit_status fast_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                              memfit_error *err)
{
    fast_kernel *k = (fast_kernel *)kernel;
    if (k->rule)
        return k->rule->run(k, operands, scalars, err);
    if (k->wide)
        return run_wide(k, operands, scalars, err);
    return k->backend->reference->table->run(k->reference, operands, scalars, err);
}

static void fast_destroy(mf_backend *backend)
{
    if (!backend)
        return;
    fast_backend *b = (fast_backend *)backend;
    mf_dnn_engine_destroy(b->engine);
    if (b->reference)
        b->reference->table->destroy(b->reference);
    mf_host_free(backend->host, b, sizeof *b);
}

/* A relu behind a convolution or product is one of its post-ops: a pass over the result less. */
static bool fast_absorb(mf_backend *backend, mf_kernel *kernel, const mf_graph *graph, uint32_t next)
{
    (void)backend;
    fast_kernel *k = (fast_kernel *)kernel;
    const mf_op *op = &graph->ops[next];
    bool fits = (k->rule == &fast_conv || k->rule == &fast_matmul) && k->dnn && !k->relu && !fast_adds(k, 0) &&
                op->kind == MF_OP_UNARY && op->attr.unary.function == MF_UNARY_RELU && op->in[0] == k->op->out[0] &&
                graph->tensors[op->in[0]].dtype == MF_F32 && graph->tensors[op->out[0]].dtype == MF_F32;
    uint64_t before, after;
    memfit_error err;
    if (!fits || k->rule->bind(k, false, &before, &err) != MEMFIT_OK)
        return false;
    mf_dnn *alone = k->dnn;
    k->relu = true;
    if (k->rule->bind(k, false, &after, &err) == MEMFIT_OK && after <= before &&
        k->rule->bind(k, true, &after, &err) == MEMFIT_OK) {
        mf_dnn_destroy(alone);
        return true;
    }
    k->dnn = alone;
    k->relu = false;
    return false;
}

static const mf_backend_table fast_table = {"onednn", fast_destroy, fast_query, fast_prepare,
                                            fast_run, fast_release, fast_absorb};

/* Denormals are zero, in and out, in every thread of the team. */
static void flush_denormals(unsigned threads)
{
#if defined(__SSE2__)
#pragma omp parallel num_threads(threads)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#else
    (void)threads;
#endif
}

memfit_status mf_onednn_create(const memfit_host *host, unsigned threads, mf_backend **backend, memfit_error *err)
{
    fast_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the backend");
    b->base = (mf_backend){&fast_table, host, threads ? threads : mf_os_cpu_count()};
    b->k = mf_kernels();
    memfit_status status = mf_dnn_engine_create(host, &b->engine, err);
    if (status == MEMFIT_OK)
        status = mf_reference_create(host, &b->reference, err);
    if (status != MEMFIT_OK) {
        fast_destroy(&b->base);
        return status;
    }
    omp_set_dynamic(0);
    omp_set_num_threads((int)b->base.threads);
    flush_denormals(b->base.threads);
    *backend = &b->base;
    return MEMFIT_OK;
}
