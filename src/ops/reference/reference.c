/*
 * reference.c: the reference backend: plain C for every kind.
 *
 *   operands (any stored type) --convert--> float or double --kernel--> float or double --convert or add--> operands
 *
 * An operation computes in double when one of its operands is float64, else in float with sums in double. Copies made
 * by conversion, outputs that are added to, and a kernel's own scratch lie in the workspace, whose size `query` tells:
 *
 *   workspace  [ converted inputs | converted or accumulated outputs | scratch ]   each part aligned to 64 bytes
 *
 * The backend has no state: it may be shared by threads, each with kernels of its own.
 */
#include "ops/reference/reference.h"

#include "graph/augment.h"

#include "base/error.h"

#include <string.h>

typedef struct ref_kernel {
    mf_backend *backend; /* first, as ops.h asks */
    const mf_ref_row *row;
    mf_ref_function function;
    mf_dtype compute;
    mf_ref_call call;
    uint64_t bytes; /* of this allocation */
} ref_kernel;

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

static bool bit(uint32_t mask, uint32_t i)
{
    return i < 32 && (mask >> i & 1) != 0;
}

static mf_dtype compute_type(const mf_ref_row *row, const mf_graph *graph, const mf_op *op)
{
    for (uint32_t i = 0; i < op->in_count; i++)
        if (op->in[i] != MF_NONE && !bit(row->raw_in, i) && graph->tensors[op->in[i]].dtype == MF_F64)
            return MF_F64;
    for (uint32_t i = 0; i < op->out_count; i++)
        if (op->out[i] != MF_NONE && !bit(row->raw_out, i) && graph->tensors[op->out[i]].dtype == MF_F64)
            return MF_F64;
    return MF_F32;
}

/* Bytes of the copy an operand needs; 0 when the kernel may use it where it lies. */
static uint64_t copy_bytes(const mf_graph *graph, uint32_t tensor, mf_dtype compute, bool raw, bool added)
{
    if (tensor == MF_NONE || raw)
        return 0;
    const mf_tensor *t = &graph->tensors[tensor];
    if (t->dtype == compute && !added)
        return 0;
    return align64(mf_shape_count(&t->shape) * mf_dtype_bytes(compute));
}

/* Outputs that lie in a variable are added to, and those of kinds with one. */
static bool is_added(const mf_graph *graph, const mf_op *op, uint32_t output)
{
    if (!op->accumulate || op->out[output] == MF_NONE)
        return false;
    if (op->out_count == 1)
        return true;
    const mf_tensor *t = &graph->tensors[op->out[output]];
    return t->variable != MF_NONE || graph->storages[t->storage].variable != MF_NONE;
}

static uint64_t workspace_bytes(const mf_ref_row *row, const mf_graph *graph, const mf_op *op)
{
    mf_dtype compute = compute_type(row, graph, op);
    uint64_t bytes = row->scratch_bytes ? align64(row->scratch_bytes(graph, op)) : 0;
    for (uint32_t i = 0; i < op->in_count; i++)
        bytes += copy_bytes(graph, op->in[i], compute, bit(row->raw_in, i), false);
    for (uint32_t i = 0; i < op->out_count; i++)
        bytes += copy_bytes(graph, op->out[i], compute, bit(row->raw_out, i), is_added(graph, op, i));
    return bytes;
}

static memfit_status check_operands(const mf_ref_row *row, const mf_graph *graph, const mf_op *op, memfit_error *err)
{
    const char *name = graph->layers && op->layer < graph->layer_count ? graph->layers[op->layer].name : "?";
    for (uint32_t i = 0; i < row->in_least; i++)
        if (i >= op->in_count || (op->in[i] == MF_NONE && !bit(row->optional_in, i)))
            return mf_fail(err, MEMFIT_INTERNAL, "%s: operation of kind %d lacks input %u", name, (int)op->kind, i);
    for (uint32_t i = 0; i < row->out_least; i++)
        if (i >= op->out_count || (op->out[i] == MF_NONE && !bit(row->optional_out, i)))
            return mf_fail(err, MEMFIT_INTERNAL, "%s: operation of kind %d lacks output %u", name, (int)op->kind, i);
    return MEMFIT_OK;
}

static memfit_status find_row(const mf_graph *graph, uint32_t op, const mf_ref_row **row, memfit_error *err)
{
    if (op >= graph->op_count)
        return mf_fail(err, MEMFIT_INTERNAL, "operation %u of %u", op, graph->op_count);
    if (graph->ops[op].kind == MF_OP_GROUP)
        return mf_fail(err, MEMFIT_INTERNAL, "operation %u is a group, which this backend never took", op);
    *row = mf_ref_row_of(graph->ops[op].kind);
    if (!*row)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "an assumed layer cannot run: what it computes is not known\nplan with it, or replace it by "
                       "layers that memfit knows");
    if (graph->ops[op].kind == MF_OP_AUGMENT && graph->ops[op].attr.augment.function >= MF_AUGMENT_COUNT)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "layer '%s': this augmentation can be planned but not run",
                       graph->layers[graph->ops[op].layer].name);
    return check_operands(*row, graph, &graph->ops[op], err);
}

static memfit_status reference_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                     memfit_error *err)
{
    (void)backend;
    const mf_ref_row *row;
    memfit_status status = find_row(graph, op, &row, err);
    if (status == MEMFIT_UNSUPPORTED) {
        *cost = (mf_cost){.supported = false};
        return MEMFIT_OK;
    }
    if (status)
        return status;
    const mf_op *o = &graph->ops[op];
    double elements = 0, flops = 0;
    for (uint32_t i = 0; i < o->in_count + o->out_count; i++) {
        uint32_t t = i < o->in_count ? o->in[i] : o->out[i - o->in_count];
        elements += t == MF_NONE ? 0 : (double)mf_shape_count(&graph->tensors[t].shape);
    }
    if (o->kind == MF_OP_MATMUL || o->kind == MF_OP_CONV || o->kind == MF_OP_CONV_GRAD_DATA ||
        o->kind == MF_OP_CONV_GRAD_WEIGHTS) /* multiply-adds are at most the product of the operands' sizes / batch */
        flops = elements * 64;
    *cost = mf_cost_one(workspace_bytes(row, graph, o), 0.1 + elements * 2e-3 + flops * 1e-3);
    cost->reference = true;
    return MEMFIT_OK;
}

static void bind(mf_ref_arg *args, const uint32_t *ids, uint32_t count, const mf_graph *graph)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] == MF_NONE)
            continue;
        const mf_tensor *t = &graph->tensors[ids[i]];
        args[i] = (mf_ref_arg){.dtype = t->dtype, .shape = &t->shape, .count = mf_shape_count(&t->shape)};
    }
}

static memfit_status reference_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                                       mf_kernel **kernel, memfit_error *err)
{
    (void)method;
    const mf_ref_row *row;
    memfit_status status = find_row(graph, op, &row, err);
    if (status)
        return status;
    const mf_op *o = &graph->ops[op];
    uint64_t bytes = sizeof(ref_kernel) + (o->in_count + o->out_count) * sizeof(mf_ref_arg);
    ref_kernel *k = mf_host_zalloc(backend->host, bytes);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for an operation of the reference backend");
    k->backend = backend;
    k->row = row;
    k->compute = compute_type(row, graph, o);
    k->function = k->compute == MF_F64 ? row->f64 : row->f32;
    k->bytes = bytes;
    k->call = (mf_ref_call){.op = o, .graph = graph, .in_count = o->in_count, .out_count = o->out_count};
    k->call.in = (mf_ref_arg *)(k + 1);
    k->call.out = k->call.in + o->in_count;
    bind(k->call.in, o->in, o->in_count, graph);
    bind(k->call.out, o->out, o->out_count, graph);
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

/* Adds or converts what the kernel left in the workspace into the real output. */
static void deliver(mf_dtype compute, const mf_ref_arg *temporary, mf_dtype dtype, void *out, bool added)
{
    if (!added) {
        mf_ref_convert(dtype, out, compute, temporary->data, temporary->count);
        return;
    }
    for (uint64_t i = 0; i < temporary->count; i++)
        mf_ref_store(dtype, out, i, mf_ref_load(dtype, out, i) + mf_ref_load(compute, temporary->data, i));
}

static memfit_status reference_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                                   mf_stream stream, memfit_error *err)
{
    (void)stream;
    ref_kernel *k = (ref_kernel *)kernel;
    mf_ref_call *call = &k->call;
    const mf_op *op = call->op;
    const mf_graph *graph = call->graph;
    unsigned char *next = operands->workspace;
    for (uint32_t i = 0; i < call->in_count; i++) {
        mf_ref_arg *arg = &call->in[i];
        arg->data = op->in[i] == MF_NONE ? NULL : operands->in[i];
        uint64_t bytes = arg->data ? copy_bytes(graph, op->in[i], k->compute, bit(k->row->raw_in, i), false) : 0;
        if (bytes) {
            mf_ref_convert(k->compute, next, arg->dtype, arg->data, arg->count);
            arg->data = next;
            next += bytes;
        }
    }
    for (uint32_t i = 0; i < call->out_count; i++) {
        mf_ref_arg *arg = &call->out[i];
        arg->data = op->out[i] == MF_NONE ? NULL : operands->out[i];
        uint64_t bytes =
            arg->data ? copy_bytes(graph, op->out[i], k->compute, bit(k->row->raw_out, i), is_added(graph, op, i)) : 0;
        if (bytes) {
            arg->data = next;
            next += bytes;
        }
    }
    call->scratch = (double *)(void *)next;
    call->scalars = scalars;
    call->recomputed = operands->recomputed;
    memfit_status status = k->function(call, err);
    for (uint32_t i = 0; status == MEMFIT_OK && i < call->out_count; i++)
        if (call->out[i].data && call->out[i].data != operands->out[i])
            deliver(k->compute, &call->out[i], call->out[i].dtype, operands->out[i], is_added(graph, op, i));
    return status;
}

static void reference_release(mf_backend *backend, mf_kernel *kernel)
{
    if (kernel)
        mf_host_free(backend->host, kernel, ((ref_kernel *)kernel)->bytes);
}

static void reference_destroy(mf_backend *backend)
{
    if (backend)
        mf_host_free(backend->host, backend, sizeof *backend);
}

static const mf_backend_table reference_table = {
    .name = "reference",
    .destroy = reference_destroy,
    .query = reference_query,
    .prepare = reference_prepare,
    .run = reference_run,
    .release = reference_release,
    .end_step = mf_scalars_end_step,
};

memfit_status mf_reference_create(const memfit_host *host, mf_backend **backend, memfit_error *err)
{
    mf_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the reference backend");
    *b = (mf_backend){.table = &reference_table, .host = host, .threads = 1};
    *backend = b;
    return MEMFIT_OK;
}

static memfit_status source_query(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    mf_backend *backend = ctx;
    return backend->table->query(backend, graph, op, cost, err);
}

void mf_backend_cost_source(mf_backend *backend, mf_cost_source *source)
{
    *source = (mf_cost_source){.ctx = backend,
                               .query = source_query,
                               .groups = backend->groups,
                               .alignment = backend->alignment ? backend->alignment : 64};
}
