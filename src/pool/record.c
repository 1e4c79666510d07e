/*
 * record.c: a pool's events into a recorder. The recorder keeps the table from this pool's owners to its own names, so
 * that an event costs a look-up and a store; an owner's name is handed over with its first event.
 */
#include "base/error.h"
#include "trace/trace.h"
#include "pool/state.h"

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

memfit_status memfit_pool_record(memfit_pool *pool, memfit_recorder *recorder, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    if (recorder && recorder->user && recorder->user != pool)
        status = mf_fail(err, MEMFIT_CONFLICT, "this recorder records another pool already");
    else if (recorder)
        recorder->user = pool;
    pthread_mutex_unlock(&pool->lock);
    if (!status)
        mf_pool_set_hook(pool, recorder ? record : NULL, recorder);
    return status;
}
