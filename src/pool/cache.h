/* cache.h: cache.c: what threads have of their own. */
#ifndef MF_POOL_CACHE_H
#define MF_POOL_CACHE_H

#include "pool/state.h"

void mf_caches_init(memfit_pool *pool);
mf_cache *mf_cache_attach(memfit_pool *pool); /* this thread's first; NULL: none to be had */
void mf_cache_detach(void *cache);
void mf_cache_meet_owners(memfit_pool *pool, mf_cache *cache); /* tallies for all there are; pool->lock held */
mf_cache *mf_cache_find(memfit_pool *pool);                    /* this thread's, or NULL */
/* This thread's, if it was among the last to be looked for in its place of the table; otherwise NULL. A cache that says
 * it is this thread's is: only this thread says so, and it takes it back when it ends. */
static inline mf_cache *mf_cache_peek(memfit_pool *pool)
{
    uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
    uint64_t at = (thread >> 6) * 0x9e3779b97f4a7c15u >> (64 - 6);
    _Static_assert(MF_CACHE_AT == 1 << 6, "the shift above");
    mf_cache *cache = atomic_load_explicit(&pool->cache_at[at], memory_order_acquire);
    return cache && atomic_load_explicit(&cache->thread, memory_order_relaxed) == thread ? cache : NULL;
}
static inline mf_cache *mf_cache_mine(memfit_pool *pool) /* or NULL */
{
    mf_cache *cache = mf_cache_peek(pool);
    return cache ? cache : mf_cache_find(pool);
}
/* By its own thread. False: someone else wants it; take pool->lock instead. With pool->lock held it never is. */
static inline bool mf_cache_enter(const memfit_pool *pool, mf_cache *cache)
{
    atomic_store_explicit(&cache->busy, true, memory_order_relaxed);
    if (pool->fenced)
        atomic_thread_fence(memory_order_seq_cst);
    else
        atomic_signal_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&cache->wanted, memory_order_acquire))
        return true;
    atomic_store_explicit(&cache->busy, false, memory_order_release);
    return false;
}
static inline void mf_cache_leave(mf_cache *cache)
{
    atomic_store_explicit(&cache->busy, false, memory_order_release);
}
/* All of the following: pool->lock held. */
void mf_cache_settle(memfit_pool *pool,
                     uint32_t owner);         /* this thread's: gives back blocks, folds this owner's tallies */
bool mf_caches_keep(const memfit_pool *pool); /* does any thread keep a block? A hint */
bool mf_caches_settle(memfit_pool *pool);     /* gives back every thread's kept blocks; false: there were none */
void mf_caches_reclaim(memfit_pool *pool);    /* and the magazines, and folds everything */
void mf_caches_each(memfit_pool *pool, void (*fn)(memfit_pool *pool, mf_cache *cache, void *ctx), void *ctx);
uint64_t mf_caches_bytes(memfit_pool *pool); /* of slots */
/* When the pool is dead: caches go, but for those of threads that have not ended; they go with the shell. */
void mf_caches_drop_idle(memfit_pool *pool);
void mf_caches_end(memfit_pool *pool, const memfit_host *host);
void mf_cache_flush(memfit_pool *pool, mf_cache *cache, void *unused); /* inside it */

#endif
