/* front_work.c: see front_work.h. */
#include "data/front_work.h"

#include "base/error.h"

#include <string.h>

struct mf_front_kit {
    const memfit_host *host;
    mf_arena arena;
    mf_backend *backend;
    mf_graph graph;                            /* the operations, for one sample */
    uint64_t sample_bytes[2], workspace_bytes; /* of the input, of the largest result between; of the largest need */
    uint64_t out_bytes;
};

struct mf_front_hand {
    const mf_front_kit *kit;
    mf_kernel **kernels;
    unsigned char *bytes; /* input, two results in turns, workspace */
};

static uint64_t round64(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

static uint64_t tensor_bytes(const mf_tensor *t)
{
    return mf_shape_count(&t->shape) * mf_dtype_bytes(t->dtype);
}

/* ---- the kit ---------------------------------------------------------------------------------------------- */

/* Tensor i is the input of operation i, and the result of the one before. */
static bool copy_graph(mf_front_kit *k, const mf_front *front)
{
    mf_graph *g = &k->graph;
    const uint32_t n = front->count;
    g->batch = 1;
    g->op_count = n;
    g->tensor_count = g->storage_count = n + 1;
    g->layer_count = 1;
    g->ops = MF_NEW_ARRAY(&k->arena, mf_op, n);
    g->tensors = MF_NEW_ARRAY(&k->arena, mf_tensor, n + 1);
    g->storages = MF_NEW_ARRAY(&k->arena, mf_storage, n + 1);
    g->layers = MF_NEW_ARRAY(&k->arena, mf_graph_layer, 1);
    uint32_t *ids = MF_NEW_ARRAY(&k->arena, uint32_t, 2 * n);
    if (!g->ops || !g->tensors || !g->storages || !g->layers || !ids)
        return false;
    g->layers[0] = (mf_graph_layer){.name = "(in workers)", .class_name = ""};
    for (uint32_t i = 0; i <= n; i++) {
        mf_tensor *t = &g->tensors[i];
        *t = (mf_tensor){.dtype = i ? front->steps[i - 1].dtype : front->dtype,
                         .shape = i ? front->steps[i - 1].shape : front->shape,
                         .storage = i,
                         .producer = i ? i - 1 : MF_NONE,
                         .variable = MF_NONE};
        t->shape.dim[0] = 1;
        g->storages[i] = (mf_storage){.bytes = tensor_bytes(t), .variable = MF_NONE};
    }
    for (uint32_t i = 0; i < n; i++) {
        ids[2 * i] = i;
        ids[2 * i + 1] = i + 1;
        g->ops[i] = (mf_op){.kind = front->steps[i].kind,
                            .in = &ids[2 * i],
                            .out = &ids[2 * i + 1],
                            .in_count = 1,
                            .out_count = 1,
                            .attr = front->steps[i].attr};
    }
    return true;
}

static memfit_status measure(mf_front_kit *k, memfit_error *err)
{
    const mf_graph *g = &k->graph;
    k->out_bytes = tensor_bytes(&g->tensors[g->op_count]);
    k->sample_bytes[0] = round64(tensor_bytes(&g->tensors[0]));
    for (uint32_t i = 0; i < g->op_count; i++) {
        const uint64_t between = i ? round64(tensor_bytes(&g->tensors[i])) : 0;
        mf_cost cost;
        memfit_status status = k->backend->table->query(k->backend, g, i, &cost, err);
        if (status != MEMFIT_OK)
            return status;
        if (!cost.supported)
            return mf_fail(err, MEMFIT_INTERNAL, "workers cannot do operation %u of the model's front", i);
        k->sample_bytes[1] = between > k->sample_bytes[1] ? between : k->sample_bytes[1];
        if (cost.methods[0].workspace_bytes > k->workspace_bytes)
            k->workspace_bytes = cost.methods[0].workspace_bytes;
    }
    return MEMFIT_OK;
}

memfit_status mf_front_kit_create(const memfit_host *host, const mf_front *front, mf_backend *backend,
                                  mf_front_kit **kit, memfit_error *err)
{
    mf_front_kit *k = mf_host_zalloc(host, sizeof *k);
    if (!k)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the layers that workers do");
    k->host = host;
    k->backend = backend;
    mf_arena_init(&k->arena, host);
    memfit_status status = copy_graph(k, front)
                               ? measure(k, err)
                               : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the layers that workers do");
    if (status != MEMFIT_OK) {
        mf_front_kit_destroy(k);
        return status;
    }
    *kit = k;
    return MEMFIT_OK;
}

void mf_front_kit_destroy(mf_front_kit *k)
{
    if (!k)
        return;
    mf_arena_destroy(&k->arena);
    mf_host_free(k->host, k, sizeof *k);
}

uint64_t mf_front_out_bytes(const mf_front_kit *k)
{
    return k->out_bytes;
}

/* ---- a worker's hand -------------------------------------------------------------------------------------- */

static uint64_t buffer_bytes(const mf_front_kit *k)
{
    return k->sample_bytes[0] + 2 * k->sample_bytes[1] + round64(k->workspace_bytes) + 64;
}

uint64_t mf_front_hand_bytes(const mf_front_kit *k)
{
    return sizeof(mf_front_hand) + k->graph.op_count * sizeof(mf_kernel *) + buffer_bytes(k);
}

memfit_status mf_front_hand_create(const mf_front_kit *k, mf_front_hand **hand, memfit_error *err)
{
    mf_front_hand *h = mf_host_zalloc(k->host, sizeof *h);
    if (!h)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the layers that workers do");
    h->kit = k;
    h->kernels = mf_host_zalloc(k->host, k->graph.op_count * sizeof *h->kernels);
    h->bytes = mf_host_alloc(k->host, buffer_bytes(k));
    memfit_status status = h->kernels && h->bytes
                               ? MEMFIT_OK
                               : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the layers that workers do");
    for (uint32_t i = 0; i < k->graph.op_count && status == MEMFIT_OK; i++)
        status = k->backend->table->prepare(k->backend, &k->graph, i, NULL, &h->kernels[i], err);
    if (status != MEMFIT_OK) {
        mf_front_hand_destroy(h);
        return status;
    }
    memset(h->bytes, 0, buffer_bytes(k)); /* resident: the fixed cost is measured after this */
    *hand = h;
    return MEMFIT_OK;
}

void mf_front_hand_destroy(mf_front_hand *h)
{
    if (!h)
        return;
    const mf_front_kit *k = h->kit;
    for (uint32_t i = 0; h->kernels && i < k->graph.op_count; i++)
        if (h->kernels[i])
            k->backend->table->release(k->backend, h->kernels[i]);
    mf_host_free(k->host, h->kernels, k->graph.op_count * sizeof *h->kernels);
    mf_host_free(k->host, h->bytes, buffer_bytes(k));
    mf_host_free(k->host, h, sizeof *h);
}

static unsigned char *aligned(mf_front_hand *h)
{
    return (unsigned char *)(((uintptr_t)h->bytes + 63) & ~(uintptr_t)63);
}

void *mf_front_input(mf_front_hand *h)
{
    return aligned(h);
}

memfit_status mf_front_work(mf_front_hand *h, uint64_t seed, uint64_t step, uint64_t place, void *out,
                            memfit_error *err)
{
    const mf_front_kit *k = h->kit;
    const mf_run_scalars scalars = {
        .seed = seed, .step = step, .first_sample = place, .batch_samples = 1, .weight_sum = 1, .loss_scale = 1};
    unsigned char *turns = aligned(h) + k->sample_bytes[0];
    void *from = aligned(h);
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < k->graph.op_count && status == MEMFIT_OK; i++) {
        void *to = i + 1 == k->graph.op_count ? out : turns + (i & 1) * k->sample_bytes[1];
        const mf_operands operands = {&from, &to, turns + 2 * k->sample_bytes[1], false};
        status = k->backend->table->run(h->kernels[i], &operands, &scalars, 0, err);
        from = to;
    }
    return status;
}
