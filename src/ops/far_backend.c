/*
 * far_backend.c: a backend of the host's memory, run on the far device (device/far.c). It alone knows where that
 * device's bytes really are: every address it is given is moved by one constant before the inner backend sees it. What
 * follows an address without passing here, on either side, traps.
 */
#include "ops/ops.h"

#include "base/error.h"

typedef struct far_backend {
    mf_backend base;
    mf_backend *inner;
    mf_device *device;
    uint64_t shift;
} far_backend;

typedef struct far_kernel {
    far_backend *backend;
    mf_kernel *inner;
    uint32_t in_count, out_count;
    void *at[]; /* of inputs, then outputs */
} far_kernel;

static uint64_t kernel_bytes(uint32_t operands)
{
    return sizeof(far_kernel) + operands * sizeof(void *);
}

static void far_destroy(mf_backend *backend)
{
    if (!backend)
        return;
    far_backend *b = (far_backend *)backend;
    b->inner->table->destroy(b->inner);
    mf_host_free(backend->host, b, sizeof *b);
}

static memfit_status far_query(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost,
                               memfit_error *err)
{
    mf_backend *inner = ((far_backend *)backend)->inner;
    return inner->table->query(inner, graph, op, cost, err);
}

static memfit_status far_prepare(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                                 mf_kernel **kernel, memfit_error *err)
{
    far_backend *b = (far_backend *)backend;
    const mf_op *o = &graph->ops[op];
    uint64_t bytes = kernel_bytes(o->in_count + o->out_count);
    far_kernel *k = mf_host_zalloc(backend->host, bytes);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a kernel");
    *k = (far_kernel){.backend = b, .in_count = o->in_count, .out_count = o->out_count};
    memfit_status status = b->inner->table->prepare(b->inner, graph, op, method, &k->inner, err);
    if (status != MEMFIT_OK) {
        mf_host_free(backend->host, k, bytes);
        return status;
    }
    *kernel = (mf_kernel *)k;
    return MEMFIT_OK;
}

static void far_release(mf_backend *backend, mf_kernel *kernel)
{
    far_backend *b = (far_backend *)backend;
    far_kernel *k = (far_kernel *)kernel;
    if (!k)
        return;
    b->inner->table->release(b->inner, k->inner);
    mf_host_free(backend->host, k, kernel_bytes(k->in_count + k->out_count));
}

static void *moved(const far_backend *b, const void *address)
{
    return address ? (void *)((uintptr_t)address + b->shift) : NULL;
}

/* Operands stay where they are for as long as what is recorded of them may be launched. */
typedef struct kept_run {
    far_kernel *kernel;
    const mf_operands *operands;
    const mf_run_scalars *scalars;
} kept_run;

static memfit_status run_now(mf_device *device, const void *with, mf_stream stream, memfit_error *err)
{
    const kept_run *run = with;
    far_kernel *k = run->kernel;
    const far_backend *b = k->backend;
    const mf_operands *operands = run->operands;
    (void)device;
    for (uint32_t i = 0; i < k->in_count; i++)
        k->at[i] = moved(b, operands->in[i]);
    for (uint32_t i = 0; i < k->out_count; i++)
        k->at[k->in_count + i] = moved(b, operands->out[i]);
    mf_operands own = {k->at, k->at + k->in_count, moved(b, operands->workspace), operands->recomputed};
    return b->inner->table->run(k->inner, &own, moved(b, run->scalars), stream, err);
}

static memfit_status far_run(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                             mf_stream stream, memfit_error *err)
{
    mf_device *device = ((far_kernel *)kernel)->backend->device;
    kept_run run = {(far_kernel *)kernel, operands, scalars};
    return mf_device_far_keep(device, run_now, &run, sizeof run) ? MEMFIT_OK : run_now(device, &run, stream, err);
}

typedef struct kept_end {
    const far_backend *backend;
    mf_step_end end;
} kept_end;

static memfit_status end_now(mf_device *device, const void *with, mf_stream stream, memfit_error *err)
{
    const far_backend *b = ((const kept_end *)with)->backend;
    const mf_step_end *end = &((const kept_end *)with)->end;
    (void)device;
    mf_step_end own = {.scalars = moved(b, end->scalars),
                       .loss = moved(b, end->loss),
                       .overflow = moved(b, end->overflow),
                       .learns = end->learns};
    return b->inner->table->end_step(b->inner, &own, stream, err);
}

static memfit_status far_end_step(mf_backend *backend, const mf_step_end *end, mf_stream stream, memfit_error *err)
{
    mf_device *device = ((far_backend *)backend)->device;
    kept_end kept = {(far_backend *)backend, *end};
    return mf_device_far_keep(device, end_now, &kept, sizeof kept) ? MEMFIT_OK : end_now(device, &kept, stream, err);
}

static bool far_absorb(mf_backend *backend, mf_kernel *kernel, const mf_graph *graph, uint32_t next)
{
    mf_backend *inner = ((far_backend *)backend)->inner;
    return inner->table->absorb && inner->table->absorb(inner, ((far_kernel *)kernel)->inner, graph, next);
}

static const mf_backend_table far_table = {.name = "far",
                                           .destroy = far_destroy,
                                           .query = far_query,
                                           .prepare = far_prepare,
                                           .run = far_run,
                                           .release = far_release,
                                           .end_step = far_end_step,
                                           .absorb = far_absorb};

memfit_status mf_far_create(const memfit_host *host, mf_device *device, mf_backend *inner, mf_backend **backend,
                            memfit_error *err)
{
    far_backend *b = mf_host_zalloc(host, sizeof *b);
    if (!b)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the backend");
    *b = (far_backend){.base = {.table = &far_table,
                                .host = host,
                                .threads = inner->threads,
                                .alignment = inner->alignment,
                                .groups = inner->groups},
                       .inner = inner,
                       .device = device,
                       .shift = mf_device_far_shift(device)};
    b->base.groups.narrow_feeds = true; /* as a card: what is sent is small */
    *backend = &b->base;
    return MEMFIT_OK;
}
