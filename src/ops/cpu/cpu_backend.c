/*
 * cpu_backend.c: the CPU backend: oneDNN for convolution and products, own kernels for the rest, the reference
 * operations for what neither has.
 *
 *   operation --16-bit operands?--> converted copies around the float32 kernel, part by part   (cpu_wide.c)
 *             --rule serves?------> rule                                                       (fast)
 *             --otherwise---------> reference, in a part for each thread where it divides      (cost.reference)
 *
 * Kernels hold pointers into their graph, which must outlive them. Threads: one caller at a time; kernels use an OpenMP
 * team of the backend's size. Whoever runs many of them does so inside mf_team_enter (ops/team.h).
 */
#include "ops/cpu/cpu_product.h"

#include "base/error.h"
#include "base/os.h"

#include <string.h>

static const cpu_rule *const rules[MF_OP_COUNT] = {
    [MF_OP_INPUT] = &cpu_nothing,
    [MF_OP_VIEW] = &cpu_nothing,
    [MF_OP_CAST] = &cpu_cast,
    [MF_OP_FILL] = &cpu_fill,
    [MF_OP_TRANSPOSE] = &cpu_transpose,
    [MF_OP_SLICE] = &cpu_slice,
    [MF_OP_PAD] = &cpu_pad,
    [MF_OP_CONCAT] = &cpu_concat,
    [MF_OP_BROADCAST] = &cpu_broadcast,
    [MF_OP_GATHER] = &cpu_gather,
    [MF_OP_GATHER_GRAD] = &cpu_gather_grad,
    [MF_OP_MATMUL] = &cpu_matmul,
    [MF_OP_CONV] = &cpu_conv,
    [MF_OP_CONV_GRAD_DATA] = &cpu_conv_grad_data,
    [MF_OP_CONV_GRAD_WEIGHTS] = &cpu_conv_grad_weights,
    [MF_OP_UNARY] = &cpu_unary,
    [MF_OP_UNARY_GRAD] = &cpu_unary_grad,
    [MF_OP_MASK] = &cpu_mask,
    [MF_OP_MASK_GRAD] = &cpu_mask_grad,
    [MF_OP_BINARY] = &cpu_binary,
    [MF_OP_COMPARE] = &cpu_compare,
    [MF_OP_SELECT] = &cpu_select,
    [MF_OP_SUM_N] = &cpu_sum_n,
    [MF_OP_REDUCE] = &cpu_reduce,
    [MF_OP_SOFTMAX] = &cpu_softmax,
    [MF_OP_SOFTMAX_GRAD] = &cpu_softmax_grad,
    [MF_OP_ATTENTION] = &cpu_attention,
    [MF_OP_ATTENTION_GRAD] = &cpu_attention_grad,
    [MF_OP_POOL_MAX] = &cpu_pool_max,
    [MF_OP_POOL_MAX_GRAD] = &cpu_pool_max_grad,
    [MF_OP_POOL_AVG] = &cpu_pool_avg,
    [MF_OP_POOL_AVG_GRAD] = &cpu_pool_avg_grad,
    [MF_OP_BATCH_NORM] = &cpu_batch_norm,
    [MF_OP_BATCH_NORM_GRAD] = &cpu_batch_norm_grad,
    [MF_OP_BATCH_NORM_INFER] = &cpu_batch_norm_infer,
    [MF_OP_BATCH_NORM_INFER_GRAD] = &cpu_batch_norm_infer_grad,
    [MF_OP_MOVING_AVERAGE] = &cpu_moving_average,
    [MF_OP_LAYER_NORM] = &cpu_layer_norm,
    [MF_OP_LAYER_NORM_GRAD] = &cpu_layer_norm_grad,
    [MF_OP_LOSS] = &cpu_loss,
    [MF_OP_LOSS_GRAD] = &cpu_loss_grad,
    [MF_OP_UPDATE] = &cpu_update,
    [MF_OP_DROPOUT] = &cpu_dropout,
    [MF_OP_LSTM] = &cpu_lstm,
    [MF_OP_LSTM_GRAD] = &cpu_lstm_grad,
    [MF_OP_GRU] = &cpu_gru,
    [MF_OP_GRU_GRAD] = &cpu_gru_grad,
    [MF_OP_SIMPLE_RNN] = &cpu_simple_rnn,
    [MF_OP_SIMPLE_RNN_GRAD] = &cpu_simple_rnn_grad,
    [MF_OP_CHECK_FINITE] = &cpu_check_finite,
    [MF_OP_REGULARIZE] = &cpu_regularize,
    [MF_OP_SQUARE_SUM] = &cpu_square_sum,
    [MF_OP_CLIP] = &cpu_clip,
    [MF_OP_CLIP_GLOBAL] = &cpu_clip_global,
    [MF_OP_METRIC] = &cpu_metric,
};

const cpu_rule *cpu_rule_of(mf_op_kind kind)
{
    return (unsigned)kind < MF_OP_COUNT ? rules[kind] : NULL;
}

/* ---- the table -------------------------------------------------------------------------------------------- */

static memfit_status cpu_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                               memfit_error *err)
{
    cpu_backend *b = (cpu_backend *)backend;
    cpu_kernel k = {.backend = b, .graph = graph, .op = &graph->ops[op]};
    if (k.op->kind == MF_OP_ASSUMED) {
        *cost = (mf_cost){.supported = false};
        return MEMFIT_OK;
    }
    if (cpu_wide_wanted(&k))
        return cpu_wide_query(&k, cost, err);
    const cpu_rule *rule = cpu_rule_of(k.op->kind);
    uint64_t workspace = 0;
    memfit_status status = rule ? rule->bind(&k, false, &workspace, err) : cpu_no(err);
    if (status == MEMFIT_OK) {
        *cost = mf_cost_one(workspace, rule == &cpu_nothing ? 0 : cpu_estimate_us(&k, false));
        return MEMFIT_OK;
    }
    if (status != MEMFIT_UNSUPPORTED)
        return status;
    status = b->reference->table->query(b->reference, graph, op, cost, err);
    if (status != MEMFIT_OK || !cost->supported)
        return status;
    bool shared;
    cost->methods[0].time_us = cpu_estimate_us(&k, true);
    return cpu_shared_query(&k, &shared, &cost->methods[0].workspace_bytes, err);
}

static void cpu_release(mf_backend *backend, mf_kernel *kernel)
{
    cpu_kernel *k = (cpu_kernel *)kernel;
    if (!k)
        return;
    cpu_product_destroy(k->product);
    cpu_product_destroy(k->product2);
    if (k->reference)
        k->backend->reference->table->release(k->backend->reference, k->reference);
    cpu_shared_release(k);
    cpu_wide_release(k);
    mf_host_free(backend->host, k, sizeof *k);
}

static memfit_status cpu_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                                 mf_kernel **kernel, memfit_error *err)
{
    (void)method; /* there is only one */
    cpu_backend *b = (cpu_backend *)backend;
    cpu_kernel *k = mf_host_zalloc(backend->host, sizeof *k);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    k->backend = b;
    k->graph = graph;
    k->op = &graph->ops[op];
    memfit_status status;
    if (cpu_wide_wanted(k)) {
        status = cpu_wide_prepare(k, err);
    } else {
        uint64_t workspace;
        k->rule = cpu_rule_of(k->op->kind);
        status = k->rule ? k->rule->bind(k, true, &workspace, err) : cpu_no(err);
        if (status == MEMFIT_UNSUPPORTED) {
            k->rule = NULL;
            bool shared;
            status = cpu_shared_prepare(k, &shared, err);
            if (status == MEMFIT_OK && !shared)
                status = b->reference->table->prepare(b->reference, graph, op, NULL, &k->reference, err);
        }
    }
    if (status != MEMFIT_OK) {
        cpu_release(backend, (mf_kernel *)k);
        return status;
    }
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

static memfit_status cpu_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                             mf_stream stream, memfit_error *err)
{
    cpu_kernel *k = (cpu_kernel *)kernel;
    if (k->rule)
        return k->rule->run(k, operands, scalars, err);
    if (k->wide || k->wide_norm)
        return cpu_wide_run(k, operands, scalars, err);
    if (k->shared)
        return cpu_shared_run(k, operands, scalars, err);
    return k->backend->reference->table->run(k->reference, operands, scalars, stream, err);
}

static void cpu_destroy(mf_backend *backend)
{
    if (!backend)
        return;
    cpu_backend *b = (cpu_backend *)backend;
    mf_dnn_engine_destroy(b->engine);
    if (b->reference)
        b->reference->table->destroy(b->reference);
    mf_host_free(backend->host, b, sizeof *b);
}

/* A relu behind a convolution or product is one of its post-ops: a pass over the result less. */
bool cpu_relu_follows(const mf_graph *graph, const mf_op *op, const mf_op *next)
{
    return (op->kind == MF_OP_CONV || op->kind == MF_OP_MATMUL) && !op->accumulate && next->kind == MF_OP_UNARY &&
           next->attr.unary.function == MF_UNARY_RELU && next->in[0] == op->out[0] &&
           graph->tensors[next->in[0]].dtype == MF_F32 && graph->tensors[next->out[0]].dtype == MF_F32;
}

static bool cpu_absorb(mf_backend *backend, mf_kernel *kernel, const mf_graph *graph, uint32_t next)
{
    (void)backend;
    cpu_kernel *k = (cpu_kernel *)kernel;
    bool fits = k->rule && k->product && !k->relu && cpu_relu_follows(graph, k->op, &graph->ops[next]);
    uint64_t before, after;
    memfit_error err;
    if (!fits || k->rule->bind(k, false, &before, &err) != MEMFIT_OK)
        return false;
    cpu_product *alone = k->product;
    k->relu = true;
    if (k->rule->bind(k, false, &after, &err) == MEMFIT_OK && after <= before &&
        k->rule->bind(k, true, &after, &err) == MEMFIT_OK) {
        cpu_product_destroy(alone);
        return true;
    }
    k->product = alone;
    k->relu = false;
    return false;
}

static const mf_backend_table cpu_table = {.name = "cpu",
                                           .destroy = cpu_destroy,
                                           .query = cpu_query,
                                           .prepare = cpu_prepare,
                                           .run = cpu_run,
                                           .release = cpu_release,
                                           .end_step = mf_scalars_end_step,
                                           .absorb = cpu_absorb};

enum { PART_BYTES = 2 << 20 }; /* small beside any batch, and stays in the caches */

memfit_status mf_cpu_create(const memfit_host *host, unsigned threads, mf_backend **backend, memfit_error *err)
{
    memfit_status status = mf_kernels_check(err);
    if (status != MEMFIT_OK)
        return status;
    cpu_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the backend");
    b->base = (mf_backend){.table = &cpu_table,
                           .host = host,
                           .threads = threads ? threads : mf_os_cpu_count(),
                           .groups = {.attends = cpu_attends}};
    b->k = mf_kernels();
    b->part_bytes = PART_BYTES;
    b->share_from = MF_K_GRAIN / 4;
    status = mf_dnn_engine_create(host, b->base.threads, mf_kernels_wanted(), &b->engine, err);
    if (status == MEMFIT_OK)
        status = mf_reference_create(host, &b->reference, err);
    if (status != MEMFIT_OK) {
        cpu_destroy(&b->base);
        return status;
    }
    *backend = &b->base;
    return MEMFIT_OK;
}
