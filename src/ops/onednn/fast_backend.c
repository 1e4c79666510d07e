/*
 * fast_backend.c: the CPU backend: oneDNN for convolution and products, own kernels for the rest, the reference
 * operations for what neither has.
 *
 *   operation --16-bit operands?--> converted copies around the float32 kernel, part by part   (fast_wide.c)
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

/* ---- the table -------------------------------------------------------------------------------------------- */

static memfit_status fast_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                memfit_error *err)
{
    fast_backend *b = (fast_backend *)backend;
    fast_kernel k = {.backend = b, .graph = graph, .op = &graph->ops[op]};
    if (k.op->kind == MF_OP_ASSUMED) {
        *cost = (mf_cost){.supported = false};
        return MEMFIT_OK;
    }
    if (fast_wide_wanted(&k))
        return fast_wide_query(&k, cost, err);
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
    fast_wide_release(k);
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
    if (fast_wide_wanted(k)) {
        status = fast_wide_prepare(k, err);
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
    if (k->wide || k->wide_norm)
        return fast_wide_run(k, operands, scalars, err);
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
bool fast_relu_follows(const mf_graph *graph, const mf_op *op, const mf_op *next)
{
    return (op->kind == MF_OP_CONV || op->kind == MF_OP_MATMUL) && !op->accumulate && next->kind == MF_OP_UNARY &&
           next->attr.unary.function == MF_UNARY_RELU && next->in[0] == op->out[0] &&
           graph->tensors[next->in[0]].dtype == MF_F32 && graph->tensors[next->out[0]].dtype == MF_F32;
}

static bool fast_absorb(mf_backend *backend, mf_kernel *kernel, const mf_graph *graph, uint32_t next)
{
    (void)backend;
    fast_kernel *k = (fast_kernel *)kernel;
    bool fits = k->rule && k->dnn && !k->relu && fast_relu_follows(graph, k->op, &graph->ops[next]);
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

enum { PART_BYTES = 2 << 20 }; /* small beside any batch, and stays in the caches */

memfit_status mf_onednn_create(const memfit_host *host, unsigned threads, mf_backend **backend, memfit_error *err)
{
    fast_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the backend");
    b->base = (mf_backend){&fast_table, host, threads ? threads : mf_os_cpu_count()};
    b->k = mf_kernels();
    b->part_bytes = PART_BYTES;
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
