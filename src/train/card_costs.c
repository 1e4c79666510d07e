/* card_costs.c: see card_costs.h. */
#include "train/card_costs.h"

#include "ops/cuda/cubin_cache.h"
#include "train/footprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t mf_maker_hash(const char *text, uint64_t more)
{
    uint64_t hash = 0xCBF29CE484222325u ^ more;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    return hash ? hash : 1;
}

bool mf_times_path(const mf_backend *backend, char *path, size_t room)
{
    const char *given = getenv("MEMFIT_TIMES");
    if (!backend->made_by[0] || (given && strcmp(given, "off") == 0))
        return false;
    if (given && *given)
        return (size_t)snprintf(path, room, "%s", given) < room;
    mf_cubin_cache cache;
    mf_cubin_cache_open(&cache);
    return cache.folder[0] && (size_t)snprintf(path, room, "%s/times-%016llx", cache.folder,
                                               (unsigned long long)mf_maker_hash(backend->made_by, 0)) < room;
}

memfit_status mf_times_take(const memfit_host *host, mf_backend *backend, mf_method_times **times,
                            mf_timed_source *timed, mf_cost_source *cost, memfit_error *err)
{
    char path[1200];
    const char *given = getenv("MEMFIT_TIMES");
    if (!mf_times_path(backend, path, sizeof path))
        return MEMFIT_OK;
    memfit_status status = mf_method_times_read(host, path, backend->made_by, times, err);
    if (status != MEMFIT_OK)
        return given && *given ? status : MEMFIT_OK;
    backend->wide_menus = true;
    *timed = (mf_timed_source){.inner = *cost, .times = *times};
    mf_timed_cost_source(timed, cost);
    return MEMFIT_OK;
}

memfit_status mf_card_costs_open(const memfit_host *host, const char *name, mf_card_costs *costs, memfit_error *err)
{
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    *costs = (mf_card_costs){0};
    options.host = host;
    memfit_status status = memfit_device_open(name, &options, &costs->device, err);
    if (status == MEMFIT_OK)
        status = mf_cuda_create(host, costs->device, &costs->backend, err);
    if (status != MEMFIT_OK)
        return status;
    mf_backend_cost_source(costs->backend, &costs->cost);
    return mf_times_take(host, costs->backend, &costs->times, &costs->timed, &costs->cost, err);
}

void mf_card_costs_close(mf_card_costs *costs)
{
    mf_method_times_destroy(costs->times);
    if (costs->backend)
        costs->backend->table->destroy(costs->backend);
    if (costs->device)
        costs->device->table->destroy(costs->device);
    *costs = (mf_card_costs){0};
}

static memfit_status count_steps(const mf_card_costs *costs, const memfit_host *host, const mf_graph_source *source,
                                 mf_mode mode, int64_t batch, uint64_t *steps, memfit_error *err)
{
    mf_graph *graph = NULL;
    memfit_status status = source->make(source->ctx, host, mode, batch, false, &graph, err);
    if (status == MEMFIT_OK)
        status = mf_graph_group(graph, &costs->backend->groups, err);
    *steps += status == MEMFIT_OK ? graph->op_count : 0;
    mf_graph_destroy(graph);
    return status;
}

memfit_status mf_card_costs_fixed(const mf_card_costs *costs, const memfit_host *host, const mf_graph_source *source,
                                  int64_t batch, bool rest, bool validation, uint64_t *bytes, memfit_error *err)
{
    const mf_footprint *f = &mf_footprint_device;
    uint64_t steps = 0;
    memfit_status status = count_steps(costs, host, source, MF_MODE_TRAIN, batch, &steps, err);
    steps *= rest ? 2 : 1;
    if (status == MEMFIT_OK && validation)
        status = count_steps(costs, host, source, MF_MODE_EVALUATE, batch, &steps, err);
    if (status == MEMFIT_OK)
        *bytes = f->sample(costs->device) + mf_footprint_card_bytes(steps) + f->error();
    return status;
}

uint64_t mf_card_costs_most(const mf_card_costs *costs)
{
    return mf_footprint_most(&mf_footprint_device, costs->device);
}
