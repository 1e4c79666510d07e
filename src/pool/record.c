/*
 * record.c: a pool's events into a recorder, which the program gives (memfit_pool_record) or MEMFIT_TRACE=FILE asks for:
 * then a pool records from its first block to its last, a second pool on the same device to FILE.2, and so on.
 *
 * The recorder keeps the table from this pool's owners to its own names, so that an event costs a look-up and a store; an
 * owner's name is handed over with its first event. Events are told under the pool's lock or inside a thread's cache; so
 * when the hook is gone and every cache has been seized once, nobody is inside the recorder any more.
 */
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/ledger.h"

#include "base/error.h"
#include "memfit/trace.h"
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint8_t stream_number(memfit_recorder *r, mf_stream stream)
{
    if (!stream)
        return 0;
    for (unsigned i = 1; i < 256; i++) {
        uint64_t none = 0;
        uint64_t known = __atomic_load_n(&r->user_streams[i], __ATOMIC_RELAXED);
        if (known == stream)
            return (uint8_t)i;
        if (!known &&
            __atomic_compare_exchange_n(&r->user_streams[i], &none, stream, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return (uint8_t)i;
        if (!known && none == stream)
            return (uint8_t)i;
    }
    return 255; /* more streams than numbers: the last ones share theirs */
}

static uint32_t owner_name(memfit_recorder *r, uint32_t owner)
{
    uint32_t name = __atomic_load_n(&r->user_names[owner], __ATOMIC_RELAXED);
    if (name || !owner)
        return name;
    name = memfit_recorder_name(r, mf_owner_at(r->user, owner)->name);
    __atomic_store_n(&r->user_names[owner], name, __ATOMIC_RELAXED);
    return name;
}

static void record(void *ctx, const mf_pool_event *event)
{
    static const uint8_t ops[] = {[MF_POOL_ALLOC] = MEMFIT_EVENT_ALLOC,   [MF_POOL_FREE] = MEMFIT_EVENT_FREE,
                                  [MF_POOL_FAIL] = MEMFIT_EVENT_FAIL,     [MF_POOL_MAP] = MEMFIT_EVENT_MAP,
                                  [MF_POOL_RELEASE] = MEMFIT_EVENT_UNMAP, [MF_POOL_MARK] = MEMFIT_EVENT_MARK};
    memfit_recorder *r = ctx;
    const memfit_pool *pool = r->user;
    uint32_t owner = event->owner & (MF_TRACE_USER_NAMES - 1);
    mf_trace_put(r, (memfit_event_op)ops[event->op], event->address, event->bytes, mf_owner_at(pool, owner)->kind,
                 owner_name(r, owner), stream_number(r, event->stream));
}

static void pass_by(memfit_pool *pool, mf_cache *cache, void *unused)
{
    (void)pool, (void)cache, (void)unused;
}

/* Sets the hook, or takes it away; when this returns nobody is inside the old one. pool->lock held. */
static void set_hook(memfit_pool *pool, mf_pool_hook hook, void *ctx)
{
    atomic_store(&pool->hook, (mf_pool_hook)NULL);
    mf_caches_each(pool, pass_by, NULL);
    pool->hook_ctx = ctx;
    atomic_store(&pool->hook, hook);
}

void mf_pool_set_hook(memfit_pool *pool, mf_pool_hook hook, void *ctx)
{
    pthread_mutex_lock(&pool->lock);
    set_hook(pool, hook, ctx);
    pthread_mutex_unlock(&pool->lock);
}

/* It serves nobody, and knows no names and streams of the pool it served. */
static void retire(memfit_recorder *r)
{
    r->user = NULL;
    memset(r->user_names, 0, MF_TRACE_USER_NAMES * sizeof *r->user_names);
    memset(r->user_streams, 0, sizeof r->user_streams);
}

memfit_status memfit_pool_record(memfit_pool *pool, memfit_recorder *recorder, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    memfit_recorder *old = atomic_load(&pool->hook) == record ? pool->hook_ctx : NULL;
    if (recorder && recorder->user && recorder->user != pool) {
        status = mf_fail(err, MEMFIT_CONFLICT, "this recorder records another pool already");
    } else if (recorder != old) {
        if (recorder) /* before the first event */
            recorder->user = pool;
        set_hook(pool, recorder ? record : NULL, recorder);
        if (old)
            retire(old);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- MEMFIT_TRACE ------------------------------------------------------------------------------------------------ */

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
