/* batching.c: see batching.h. */
#include "batching.h"

#include "base/error.h"
#include "ops/cuda/many.h"

uint64_t batched_kernels;

typedef struct batching_backend {
    mf_backend base;
    mf_backend *inner;
    char keys[3];
} batching_backend;

typedef struct batching_kernel {
    batching_backend *backend;
    mf_kernel *inner;
    const void *key;
} batching_kernel;

static memfit_status batching_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                                    memfit_error *err)
{
    mf_backend *inner = ((batching_backend *)backend)->inner;
    return inner->table->query(inner, graph, op, cost, err);
}

/* Those of the CUDA backend, and on every other operation all that could be. */
static const void *key_of(const batching_backend *b, const mf_graph *graph, uint32_t op)
{
    const mf_op *o = &graph->ops[op];
    mf_op_kind kind = o->kind;
    bool taken =
        op % 2 ? kind == MF_OP_UPDATE || kind == MF_OP_MOVING_AVERAGE || kind == MF_OP_CAST : cuda_many_takes(graph, o);
    return taken ? &b->keys[kind == MF_OP_UPDATE ? 0 : kind == MF_OP_CAST ? 1 : 2] : NULL;
}

static memfit_status batching_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                                      mf_kernel **kernel, memfit_error *err)
{
    batching_backend *b = (batching_backend *)backend;
    batching_kernel *k = mf_host_zalloc(NULL, sizeof *k);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory");
    *k = (batching_kernel){.backend = b, .key = key_of(b, graph, op)};
    memfit_status status = b->inner->table->prepare(b->inner, graph, op, method, &k->inner, err);
    if (status) {
        mf_host_free(NULL, k, sizeof *k);
        return status;
    }
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

static memfit_status batching_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                                  mf_stream stream, memfit_error *err)
{
    batching_kernel *k = (batching_kernel *)kernel;
    return k->backend->inner->table->run(k->inner, operands, scalars, stream, err);
}

static const void *batching_batch(mf_kernel *kernel)
{
    return ((batching_kernel *)kernel)->key;
}

static memfit_status batching_run_batch(mf_kernel *const *kernels, const mf_operands *const *operands, uint32_t count,
                                        const mf_run_scalars *scalars, mf_stream stream, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = count; i-- > 0 && status == MEMFIT_OK;)
        status = batching_run(kernels[i], operands[i], scalars, stream, err);
    batched_kernels += count > 1 ? count : 0;
    return status;
}

static void batching_release(mf_backend *backend, mf_kernel *kernel)
{
    mf_backend *inner = ((batching_backend *)backend)->inner;
    batching_kernel *k = (batching_kernel *)kernel;
    if (!k)
        return;
    inner->table->release(inner, k->inner);
    mf_host_free(NULL, k, sizeof *k);
}

static void batching_destroy(mf_backend *backend)
{
    mf_host_free(NULL, backend, sizeof(batching_backend));
}

memfit_status batching_create(mf_backend *inner, mf_backend **backend, memfit_error *err)
{
    static const mf_backend_table table = {.name = "batching",
                                           .destroy = batching_destroy,
                                           .query = batching_query,
                                           .prepare = batching_prepare,
                                           .run = batching_run,
                                           .batch = batching_batch,
                                           .run_batch = batching_run_batch,
                                           .release = batching_release,
                                           .end_step = mf_scalars_end_step};
    batching_backend *b = mf_host_zalloc(NULL, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a backend");
    b->base = *inner;
    b->base.table = &table;
    b->inner = inner;
    *backend = &b->base;
    return MEMFIT_OK;
}
