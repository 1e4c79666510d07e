/* interpret.c: see interpret.h. All storages lie in one block, each at a multiple of 64 bytes, followed by the
 * workspace of the operation that needs most. */
#include "ops/interpret.h"

#include "base/error.h"
#include "ops/reference/reference.h"

#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FORBID(p, n) ASAN_POISON_MEMORY_REGION((p), (n))
#define ALLOW(p, n)  ASAN_UNPOISON_MEMORY_REGION((p), (n))
#else
#define FORBID(p, n) ((void)(p))
#define ALLOW(p, n)  ((void)(p))
#endif

enum { GAP = 64 };

struct mf_interpreter {
    const memfit_host *host;
    const mf_graph *graph;
    mf_backend *backend;
    mf_kernel **kernels;
    uint64_t *offsets;    /* by storage */
    uint64_t *workspaces; /* by operation, bytes */
    unsigned char *block, *base;
    uint64_t block_bytes, workspace_offset;
    void **operands; /* room for the operation with most */
    uint32_t operand_count;
};

static uint64_t align64(uint64_t bytes)
{
    return (bytes + 63) & ~UINT64_C(63);
}

void mf_interpret_destroy(mf_interpreter *it)
{
    if (!it)
        return;
    for (uint32_t i = 0; it->kernels && i < it->graph->op_count; i++)
        if (it->kernels[i])
            it->backend->table->release(it->backend, it->kernels[i]);
    mf_host_free(it->host, it->kernels, it->graph->op_count * sizeof *it->kernels);
    mf_host_free(it->host, it->offsets, it->graph->storage_count * sizeof *it->offsets);
    mf_host_free(it->host, it->workspaces, it->graph->op_count * sizeof *it->workspaces);
    if (it->block)
        ALLOW(it->block, it->block_bytes);
    mf_host_free(it->host, it->block, it->block_bytes);
    mf_host_free(it->host, it->operands, it->operand_count * sizeof *it->operands);
    mf_host_free(it->host, it, sizeof *it);
}

static memfit_status prepare_all(mf_interpreter *it, uint64_t *workspace, memfit_error *err)
{
    const mf_graph *g = it->graph;
    for (uint32_t i = 0; i < g->op_count; i++) {
        mf_cost cost = {0};
        memfit_status status = it->backend->table->query(it->backend, g, i, &cost, err);
        if (status == MEMFIT_OK)
            status = it->backend->table->prepare(it->backend, g, i, NULL, &it->kernels[i], err);
        if (status)
            return status;
        it->workspaces[i] = cost.methods[0].workspace_bytes;
        *workspace = it->workspaces[i] > *workspace ? it->workspaces[i] : *workspace;
    }
    return MEMFIT_OK;
}

static memfit_status make_block(mf_interpreter *it, uint64_t workspace, memfit_error *err)
{
    const mf_graph *g = it->graph;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->storage_count; i++) {
        it->offsets[i] = bytes;
        bytes += align64(g->storages[i].bytes) + GAP;
    }
    it->workspace_offset = bytes;
    it->block_bytes = bytes + align64(workspace) + GAP + 64;
    it->block = mf_host_alloc(it->host, it->block_bytes);
    if (!it->block)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for the tensors of a graph");
    it->base = (unsigned char *)align64((uint64_t)(uintptr_t)it->block);
    FORBID(it->block, it->block_bytes);
    for (uint32_t i = 0; i < g->storage_count; i++) {
        ALLOW(it->base + it->offsets[i], g->storages[i].bytes);
        memset(it->base + it->offsets[i], g->storages[i].variable == MF_NONE ? 0xff : 0, g->storages[i].bytes);
    }
    return MEMFIT_OK;
}

memfit_status mf_interpret_create(const memfit_host *host, const mf_graph *graph, mf_backend *backend,
                                  mf_interpreter **interpreter, memfit_error *err)
{
    mf_interpreter *it = mf_host_zalloc(host, sizeof *it);
    if (!it)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for an interpreter");
    *it = (mf_interpreter){.host = host, .graph = graph, .backend = backend};
    for (uint32_t i = 0; i < graph->op_count; i++) {
        uint32_t n = graph->ops[i].in_count + graph->ops[i].out_count;
        it->operand_count = n > it->operand_count ? n : it->operand_count;
    }
    it->kernels = mf_host_zalloc(host, graph->op_count * sizeof *it->kernels);
    it->workspaces = mf_host_zalloc(host, graph->op_count * sizeof *it->workspaces);
    it->offsets = mf_host_zalloc(host, graph->storage_count * sizeof *it->offsets);
    it->operands = mf_host_zalloc(host, it->operand_count * sizeof *it->operands);
    memfit_status status = MEMFIT_OK;
    uint64_t workspace = 0;
    if ((!it->kernels && graph->op_count) || (!it->workspaces && graph->op_count) ||
        (!it->offsets && graph->storage_count) || (!it->operands && it->operand_count))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for an interpreter");
    if (status == MEMFIT_OK)
        status = prepare_all(it, &workspace, err);
    if (status == MEMFIT_OK)
        status = make_block(it, workspace, err);
    if (status) {
        mf_interpret_destroy(it);
        return status;
    }
    *interpreter = it;
    return MEMFIT_OK;
}

void *mf_interpret_data(mf_interpreter *it, uint32_t tensor)
{
    const mf_tensor *t = &it->graph->tensors[tensor];
    return it->base + it->offsets[t->storage] + t->offset;
}

memfit_status mf_interpret_start(mf_interpreter *it, memfit_error *err)
{
    for (uint32_t i = 0; i < it->graph->variable_count; i++) {
        const mf_variable *v = &it->graph->variables[i];
        if (v->tensor == MF_NONE)
            continue;
        const mf_tensor *t = &it->graph->tensors[v->tensor];
        const mf_stored *stored = v->stored;
        uint64_t count = mf_shape_count(&t->shape);
        void *data = mf_interpret_data(it, v->tensor);
        if (stored && stored->bytes != count * mf_dtype_bytes(stored->dtype))
            return mf_fail(err, MEMFIT_DAMAGED, "%s: %llu bytes are stored for %llu values", v->name,
                           (unsigned long long)stored->bytes, (unsigned long long)count);
        for (uint64_t j = 0; j < count; j++) {
            union {
                double align;
                char bytes[8];
            } one = {.align = 0}; /* stored bytes may lie anywhere: not aligned */
            uint64_t size = stored ? mf_dtype_bytes(stored->dtype) : 0;
            if (stored)
                memcpy(one.bytes, (const char *)stored->data + j * size, size);
            mf_ref_store(t->dtype, data, j, stored ? mf_ref_load(stored->dtype, one.bytes, 0) : v->initial);
        }
    }
    return MEMFIT_OK;
}

static memfit_status run_one(mf_interpreter *it, uint32_t index, const mf_run_scalars *scalars, memfit_error *err)
{
    const mf_op *op = &it->graph->ops[index];
    mf_operands operands = {
        .in = it->operands, .out = it->operands + op->in_count, .workspace = it->base + it->workspace_offset};
    for (uint32_t i = 0; i < op->in_count; i++)
        operands.in[i] = op->in[i] == MF_NONE ? NULL : mf_interpret_data(it, op->in[i]);
    for (uint32_t i = 0; i < op->out_count; i++)
        operands.out[i] = op->out[i] == MF_NONE ? NULL : mf_interpret_data(it, op->out[i]);
    ALLOW(operands.workspace, it->workspaces[index]);
    memfit_status status = it->backend->table->run(it->kernels[index], &operands, scalars, 0, err);
    FORBID(operands.workspace, it->workspaces[index]);
    if (status && op->layer < it->graph->layer_count)
        mf_error_prefix(err, status, "%s", it->graph->layers[op->layer].name);
    return status;
}

memfit_status mf_interpret_run(mf_interpreter *it, const mf_run_scalars *scalars, bool first_piece, bool last_piece,
                               memfit_error *err)
{
    for (uint32_t i = 0; i < it->graph->op_count; i++) {
        uint8_t when = it->graph->ops[i].when;
        if ((when == MF_FIRST_PIECE && !first_piece) || (when == MF_LAST_PIECE && !last_piece))
            continue;
        memfit_status status = run_one(it, i, scalars, err);
        if (status)
            return status;
    }
    return MEMFIT_OK;
}

memfit_status mf_interpret_run_phase(mf_interpreter *it, const mf_run_scalars *scalars, mf_op_phase phase,
                                     memfit_error *err)
{
    for (uint32_t i = 0; i < it->graph->op_count; i++) {
        memfit_status status = it->graph->ops[i].phase == phase ? run_one(it, i, scalars, err) : MEMFIT_OK;
        if (status)
            return status;
    }
    return MEMFIT_OK;
}

mf_run_scalars mf_interpret_scalars(const mf_graph *graph, double learning_rate)
{
    return (mf_run_scalars){.seed = 1,
                            .batch_samples = (double)graph->batch,
                            .weight_sum = (double)graph->batch,
                            .learning_rate = learning_rate,
                            .loss_scale = 1};
}

static uint64_t widening(mf_dtype dtype)
{
    return dtype == MF_F32 ? 2 : dtype == MF_F16 || dtype == MF_BF16 ? 4 : 1;
}

void mf_graph_widen(mf_graph *graph)
{
    /* Each storage by its first float tensor: all tensors of a storage have types of one size. */
    for (uint32_t s = 0; s < graph->storage_count; s++) {
        uint64_t factor = 1;
        for (uint32_t i = 0; i < graph->tensor_count && factor == 1; i++)
            if (graph->tensors[i].storage == s)
                factor = widening(graph->tensors[i].dtype);
        graph->storages[s].bytes *= factor;
    }
    for (uint32_t i = 0; i < graph->tensor_count; i++) {
        mf_tensor *t = &graph->tensors[i];
        t->offset *= widening(t->dtype);
        t->dtype = widening(t->dtype) > 1 ? MF_F64 : t->dtype;
    }
    for (uint32_t i = 0; i < graph->variable_count; i++)
        if (widening(graph->variables[i].dtype) > 1)
            graph->variables[i].dtype = MF_F64;
}
