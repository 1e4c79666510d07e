/*
 * run_device.c: which device a run's arena lies in, whose backend does its operations, and how its memory is measured. The
 * rest of this folder asks none of this again.
 */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "base/words.h"
#include "ops/cpu/dnn/onednn.h"
#include "ops/cuda/cubin_cache.h"
#include "train/card_costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MEMFIT_FAR=1, for tests: the cpu's memory as a device whose addresses the host cannot follow. */
static memfit_status open_far(mf_trainer *t, memfit_error *err)
{
    mf_backend *far = NULL;
    memfit_status status = mf_device_open_far(t->host, &t->device, err);
    if (status == MEMFIT_OK)
        status = mf_far_create(t->host, t->device, t->backend, &far, err);
    if (status == MEMFIT_OK)
        t->backend = far;
    return status;
}

static memfit_status open_cpu(mf_trainer *t, memfit_error *err)
{
    const char *far = getenv("MEMFIT_FAR");
    t->device = mf_device_near();
    t->footprint = &mf_footprint_cpu;
    memfit_status status = mf_cpu_create(t->host, t->options->threads, &t->backend, err);
    if (status == MEMFIT_OK && far && strcmp(far, "1") == 0)
        status = open_far(t, err);
    if (status == MEMFIT_OK && !mf_dnn_compiles())
        mf_log_write(&t->log, MF_LOG_NOTE, "this build has no oneDNN: own kernels serve");
    return status;
}

/* A card that is not there is the machine's lack, not that of a file that was named. */
static memfit_status of_the_machine(memfit_status status, memfit_error *err)
{
    if (status != MEMFIT_NOT_FOUND)
        return status;
    if (err)
        err->code = MEMFIT_DEVICE;
    return MEMFIT_DEVICE;
}

/* Without a cache every start compiles anew, which may take half a minute: whoever did not ask for that should know. */
static void say_where_kernels_go(mf_trainer *t)
{
    mf_cubin_cache cache;
    mf_cubin_cache_open(&cache);
    if (cache.why[0])
        mf_log_write(
            &t->log, MF_LOG_NOTE,
            "compiled kernels are not kept, each start compiles them anew: %s (MEMFIT_CACHE=FOLDER names another)",
            cache.why);
}

static memfit_status open_cuda(mf_trainer *t, memfit_error *err)
{
    mf_device *device = NULL;
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.host = t->host;
    memfit_status status = memfit_device_open(t->options->device, &options, &device, err);
    if (status != MEMFIT_OK)
        return of_the_machine(status, err);
    t->device = device;
    t->footprint = &mf_footprint_device;
    uint64_t limit = t->options->memory_bytes, fixed = device->fixed_bytes;
    char has[24], is[24];
    if (limit && fixed >= limit) {
        status = mf_fail(
            err, MEMFIT_DOES_NOT_FIT,
            "the context on %s takes %s before any tensor, the limit is %s\nname a larger one with --memory",
            t->options->device, memfit_size_format(fixed, has, sizeof has), memfit_size_format(limit, is, sizeof is));
        if (err) {
            err->requested_bytes = fixed;
            err->limit_bytes = limit;
        }
        return status;
    }
    status = device->table->stream_create(device, &t->stream, err);
    if (status == MEMFIT_OK)
        status = mf_cuda_create(t->host, device, &t->backend, err);
    if (status == MEMFIT_OK)
        say_where_kernels_go(t);
    return of_the_machine(status, err);
}

static uint64_t maker_of(const mf_trainer *t)
{
    const char *maker = t->backend->made_by;
    uint64_t hash = mf_maker_hash(*maker ? maker : "cpu", t->times ? mf_method_times_hash(t->times) : 0);
    if (*maker && t->options->allow_nondeterministic)
        hash = ~hash;                 /* not by the same methods */
    return (hash | 2) & ~UINT64_C(1); /* a checkpoint has another use for the last bit */
}

bool mf_trainer_times_path(const mf_trainer *t, char *path, size_t room)
{
    return mf_times_path(t->backend, path, room);
}

static memfit_status take_times(mf_trainer *t, memfit_error *err)
{
    char path[1200];
    memfit_status status = mf_times_take(t->host, t->backend, &t->times, &t->timed, &t->cost, err);
    if (t->times && mf_times_path(t->backend, path, sizeof path))
        mf_log_write(&t->log, MF_LOG_DETAIL, "methods are chosen by the times in %s", path);
    return status;
}

memfit_status mf_trainer_open_device(mf_trainer *t, memfit_error *err)
{
    const char *name = t->options->device;
    memfit_status status;
    if (!name || mf_words_cpu(name))
        status = open_cpu(t, err);
    else if (mf_words_card(name))
        status = open_cuda(t, err);
    else
        status = mf_fail(err, MEMFIT_INVALID, "device \"%s\": must be cpu, cuda or cuda:I", name);
    if (status != MEMFIT_OK)
        return status;
    /* A card's backend has no threads of its own: those that read data are as many as asked for. */
    mf_team_enter(&t->team, t->footprint->host    ? t->backend->threads
                            : t->options->threads ? t->options->threads
                                                  : mf_os_cpu_count());
    t->backend->loose_menus = t->options->allow_nondeterministic;
    mf_backend_cost_source(t->backend, &t->cost);
    status = take_times(t, err);
    if (status != MEMFIT_OK)
        return status;
    t->made_by = maker_of(t);
    if (t->backend->made_by[0])
        mf_log_write(&t->log, MF_LOG_DETAIL, "computed by %s", t->backend->made_by);
    t->cost.rules.allow_nondeterministic = t->options->allow_nondeterministic;
    t->cost.rules.allow_changed = t->options->tf32 || t->options->allow_changed_numerics; /* TF32 */
    return MEMFIT_OK;
}

void mf_trainer_close_device(mf_trainer *t)
{
    mf_method_times_destroy(t->times);
    if (t->backend)
        t->backend->table->destroy(t->backend);
    if (t->device && t->stream)
        t->device->table->stream_destroy(t->device, t->stream, NULL);
    if (t->device)
        t->device->table->destroy(t->device);
    mf_team_leave(&t->team);
}
