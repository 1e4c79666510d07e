/* calls.h: what the files behind the public calls give each other. */
#ifndef MF_POOL_CALLS_H
#define MF_POOL_CALLS_H

#include "pool/state.h"

/* ---- request.c, release.c: the ways with pool->lock ---- */
memfit_status mf_pool_request(memfit_pool *pool, const mf_request *request, memfit_address *address, memfit_error *err);
memfit_status mf_pool_release(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err);
void mf_block_give(memfit_pool *pool, mf_block *block, unsigned lane); /* it is nobody's any more: a hole again */
void mf_pool_now_and_then(memfit_pool *pool);
void mf_pool_decide_keeping(memfit_pool *pool);
/* What the debug mode puts into memory, and how much of it behind a block. */
enum { MF_POISON_NEW = 0xcd, MF_POISON_OLD = 0xdd, MF_GUARD_BYTE = 0xfd, MF_GUARD = 256 };

/* ---- limits.c ---- */
uint64_t mf_fixed_bytes(const memfit_pool *pool);
uint64_t mf_limit_room(const memfit_pool *pool, uint64_t limit_bytes); /* what a limit leaves beside the fixed cost */
/* A limit that makes sense on this device: not above it, not below the fixed cost and a page. */
memfit_status mf_limit_sane(mf_device *device, uint64_t limit_bytes, uint64_t fixed, uint64_t page, memfit_error *err);
/* A soft limit that makes sense beside this policy and the pool's limit. */
memfit_status mf_soft_limit_sane(const memfit_pool *pool, memfit_policy policy, uint64_t soft_limit_bytes,
                                 memfit_error *err);
/* Calls the pressure functions without the lock; true when any freed something. */
bool mf_pressure_call(memfit_pool *pool, uint64_t wanted, bool hard);

/* ---- settings.c ---- */
/* Takes the caller's options, fills in what MEMFIT_* say, resolves fractions. */
memfit_status mf_settings_take(memfit_device *device, const memfit_pool_options *given, memfit_pool_options *options,
                               memfit_error *err);
memfit_status mf_fraction_sane(double fraction, memfit_error *err);
memfit_status mf_slack_sane(double slack, memfit_error *err);

/* ---- explain.c ---- */
/* Fills *err and returns its status. pool->lock held; nothing may be allocated. */
memfit_status mf_pool_explain_failure(memfit_pool *pool, const mf_request *request, memfit_error *err);
memfit_status mf_explain_init(memfit_pool *pool, memfit_error *err); /* sets memory aside for it */
void mf_explain_end(memfit_pool *pool);

/* ---- record.c ---- */
memfit_status mf_trace_file_begin(memfit_pool *pool, memfit_error *err);
void mf_trace_file_end(memfit_pool *pool);

/* ---- walk.c ---- */
static inline void mf_pool_tell(memfit_pool *pool, const mf_pool_event *event) /* under the lock, or inside a cache */
{
    mf_pool_hook hook = atomic_load_explicit(&pool->hook, memory_order_acquire);
    if (hook)
        hook(pool->hook_ctx, event);
}
bool mf_pool_find_locked(memfit_pool *pool, memfit_address address, memfit_block_info *block);

static inline memfit_status mf_pool_enter(memfit_pool *pool, memfit_error *err);
memfit_status mf_pool_no_pool(memfit_pool *pool, memfit_error *err);
static inline memfit_status mf_pool_enter(memfit_pool *pool, memfit_error *err)
{
    if (!pool || atomic_load_explicit(&pool->magic, memory_order_acquire) != MF_POOL_ALIVE)
        return mf_pool_no_pool(pool, err);
    pthread_mutex_lock(&pool->lock);
    return MEMFIT_OK;
}

#endif
