/*
 * trace_file.c: MEMFIT_TRACE=FILE makes a pool record to that file from its first block to its last. A second pool on
 * the same device takes FILE.2, and so on.
 */
#include "pool/state.h"

#include "base/error.h"
#include "memfit/trace.h"

#include <stdio.h>
#include <stdlib.h>

static unsigned tracing_pools(memfit_pool *pool)
{
    unsigned n = 0;
    pthread_mutex_lock(&pool->device->lock);
    for (memfit_pool *p = pool->device->pools; p; p = p->next)
        n += p->trace_file != NULL;
    pthread_mutex_unlock(&pool->device->lock);
    return n;
}

memfit_status mf_trace_file_begin(memfit_pool *pool, memfit_error *err)
{
    const char *path = pool->options.ignore_environment ? NULL : getenv("MEMFIT_TRACE");
    if (!path || !*path)
        return MEMFIT_OK;
    char numbered[4096];
    unsigned before = tracing_pools(pool);
    if (snprintf(numbered, sizeof numbered, before ? "%s.%u" : "%s", path, before + 1) >= (int)sizeof numbered)
        return mf_fail(err, MEMFIT_INVALID, "MEMFIT_TRACE: the path is too long");
    memfit_recorder_options options = MEMFIT_RECORDER_OPTIONS;
    options.host = pool->host;
    options.path = numbered;
    memfit_recorder *recorder;
    memfit_status status = memfit_recorder_create(&options, &recorder, err);
    if (status)
        return mf_error_prefix(err, status, "MEMFIT_TRACE=%s", path);
    status = memfit_pool_record(pool, recorder, err);
    if (status)
        memfit_recorder_destroy(recorder);
    else
        pool->trace_file = recorder;
    return status;
}

void mf_trace_file_end(memfit_pool *pool)
{
    if (!pool->trace_file)
        return;
    mf_pool_set_hook(pool, NULL, NULL);
    memfit_recorder_destroy(pool->trace_file);
    pool->trace_file = NULL;
}
