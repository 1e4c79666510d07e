/*
 * hot.c: the two calls everything is for, as far as they need no lock: a request that this thread's cache can meet, and
 * a free that it can take. Both leave to request.c and release.c whatever is out of the ordinary: another stream, an
 * alignment, an empty or full cache, a pointer that is no block.
 *
 * A pair costs about 40 loads and stores, no locked instruction for a slot and one for a block (two threads that free
 * the same block at the same instant are told apart; with slots they are not).
 */
#include "pool/state.h"

#include "base/error.h"

/* ---- a thread's part of the ledger ---------------------------------------------------------------------------- */

/* Only the cache's thread changes it, inside the cache; others read it without. */
static inline int64_t tally_add(mf_tally *t, uint64_t bytes)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed) + (int64_t)bytes;
    atomic_store_explicit(&t->now, now, memory_order_relaxed);
    if (now > atomic_load_explicit(&t->top, memory_order_relaxed))
        atomic_store_explicit(&t->top, now, memory_order_relaxed);
    return now;
}

static inline void tally_sub(mf_tally *t, uint64_t bytes)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed) - (int64_t)bytes;
    atomic_store_explicit(&t->now, now, memory_order_relaxed);
}

static inline void count(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* True: it has risen so far that it must be folded. */
static inline bool note_alloc(const memfit_pool *pool, mf_cache *cache, uint32_t owner, uint64_t bytes)
{
    mf_owner_tally *t = &cache->owner[owner];
    count(&t->allocations);
    int64_t drift = tally_add(&t->bytes, bytes);
    tally_add(&cache->kind[mf_owner_at(pool, owner)->kind], bytes);
    int64_t in_all = tally_add(&cache->total, bytes);
    return drift > MF_DRIFT || in_all > MF_DRIFT;
}

static inline void note_free(const memfit_pool *pool, mf_cache *cache, uint32_t owner, uint64_t bytes)
{
    mf_owner_tally *t = &cache->owner[owner];
    count(&t->frees);
    tally_sub(&t->bytes, bytes);
    tally_sub(&cache->kind[mf_owner_at(pool, owner)->kind], bytes);
    tally_sub(&cache->total, bytes);
}

static void fold_drift(memfit_pool *pool, mf_cache *cache, uint32_t owner)
{
    pthread_mutex_lock(&pool->lock);
    mf_cache_enter(pool, cache);
    mf_ledger_fold_one(pool, cache, owner);
    mf_cache_leave(cache);
    pthread_mutex_unlock(&pool->lock);
}

/* ---- allocating --------------------------------------------------------------------------------------------- */

static inline bool take_slot(memfit_pool *pool, mf_cache *cache, uint64_t bytes, memfit_owner owner,
                             memfit_address *address)
{
    mf_magazine *m = &cache->magazine[pool->class_of[(bytes + MF_UNIT - 1 + !bytes) / MF_UNIT]];
    if (!m->count)
        return false;
    mf_slot_ref ref = m->item[--m->count];
    mf_slot_store(ref.slab, ref.index, mf_slot_live(pool, owner, bytes));
    *address = mf_slot_address(pool, ref);
    return true;
}

/* The block freed last of exactly this size. */
static inline bool take_kept(memfit_pool *pool, mf_cache *cache, uint64_t bytes, memfit_owner owner,
                             memfit_address *address)
{
    uint64_t need = (bytes + MF_UNIT - 1) & ~(uint64_t)(MF_UNIT - 1);
    uint32_t n = atomic_load_explicit(&cache->kept_count, memory_order_relaxed), i = n;
    do {
        if (!i--)
            return false;
    } while (cache->kept[i].bytes != need);
    mf_block *block = cache->kept[i].block;
    for (n--; i < n; i++)
        cache->kept[i] = cache->kept[i + 1];
    atomic_store_explicit(&cache->kept_count, n, memory_order_relaxed);
    mf_block_hand_out(pool, block, owner, bytes);
    *address = pool->range + block->start;
    return true;
}

/* From this thread's cache. False: the long way. */
static inline bool alloc_cached(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_stream stream,
                                memfit_address *address)
{
    if (!atomic_load_explicit(&pool->cached, memory_order_relaxed) ||
        stream != atomic_load_explicit(&pool->home, memory_order_relaxed))
        return false;
    mf_cache *cache = mf_cache_get(pool);
    if (!cache || !mf_cache_enter(pool, cache))
        return false;
    if (owner >= cache->owner_capacity || !(bytes <= MF_SMALL_MOST ? take_slot(pool, cache, bytes, owner, address)
                                                                   : take_kept(pool, cache, bytes, owner, address))) {
        mf_cache_leave(cache);
        return false;
    }
    bool drifted = note_alloc(pool, cache, owner, bytes);
    mf_cache_leave(cache);
    if (drifted)
        fold_drift(pool, cache, owner);
    if (pool->hook)
        pool->hook(pool->hook_ctx, &(mf_pool_event){MF_POOL_ALLOC, owner, stream, *address, bytes});
    return true;
}

/* The first time this thread meets an owner. */
static void meet_owner(memfit_pool *pool, memfit_owner owner)
{
    mf_cache *cache = atomic_load(&pool->cached) ? mf_cache_get(pool) : NULL;
    if (!cache || owner < cache->owner_capacity)
        return;
    pthread_mutex_lock(&pool->lock);
    mf_cache_grow_owners(pool, cache, owner);
    pthread_mutex_unlock(&pool->lock);
}

static memfit_status check_request(memfit_pool *pool, uint64_t alignment, memfit_owner owner, memfit_address *address,
                                   memfit_error *err)
{
    if (!pool || atomic_load_explicit(&pool->magic, memory_order_acquire) != MF_POOL_ALIVE)
        return mf_pool_no_pool(pool, err);
    if (!address)
        return mf_fail(err, MEMFIT_INVALID, "pool %s: no place for the address", pool->name);
    if (owner >= atomic_load_explicit(&pool->owner_count, memory_order_acquire))
        return mf_fail(err, MEMFIT_INVALID, "pool %s: no owner %u\nOwners come from memfit_pool_owner of this pool",
                       pool->name, owner);
    if (alignment & (alignment - 1))
        return mf_fail(err, MEMFIT_INVALID, "pool %s: alignment %llu is not a power of two", pool->name,
                       (unsigned long long)alignment);
    return MEMFIT_OK;
}

memfit_status memfit_pool_alloc_on(memfit_pool *pool, uint64_t bytes, uint64_t alignment, memfit_owner owner,
                                   memfit_stream stream, memfit_address *address, memfit_error *err)
{
    memfit_status status = check_request(pool, alignment, owner, address, err);
    if (status)
        return status;
    if (alignment <= MF_UNIT && alloc_cached(pool, bytes, owner, stream, address))
        return MEMFIT_OK;
    meet_owner(pool, owner);
    mf_request request = {bytes, alignment, owner, stream};
    return mf_pool_request(pool, &request, address, err);
}

memfit_status memfit_pool_alloc(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_address *address,
                                memfit_error *err)
{
    return memfit_pool_alloc_on(pool, bytes, 0, owner, 0, address, err);
}

/* ---- freeing ------------------------------------------------------------------------------------------------ */

static inline bool put_slot(memfit_pool *pool, mf_cache *cache, mf_slot_ref ref, uint32_t *owner, uint64_t *asked)
{
    mf_magazine *m = &cache->magazine[ref.slab->size_class];
    uint64_t word = mf_slot_load(ref.slab, ref.index);
    *owner = MF_SLOT_OWNER(word);
    *asked = MF_SLOT_ASKED(word);
    if (!(word & MF_SLOT_LIVE) || m->count == m->most || *owner >= cache->owner_capacity ||
        !atomic_load_explicit(&pool->cached, memory_order_relaxed))
        return false;
    mf_slot_store(ref.slab, ref.index, 0);
    m->item[m->count++] = ref;
    return true;
}

static inline bool put_kept(memfit_pool *pool, mf_cache *cache, uint64_t offset, uint32_t *owner, uint64_t *asked)
{
    uint32_t n = atomic_load_explicit(&cache->kept_count, memory_order_relaxed);
    if (n == MF_KEPT || !atomic_load_explicit(&pool->keeps, memory_order_relaxed))
        return false;
    mf_block *block = mf_table_peek(pool, offset);
    uint64_t live = offset | MF_WORD_LIVE;
    if (!block || !atomic_compare_exchange_strong_explicit(&block->word, &live, offset | MF_WORD_KEPT,
                                                           memory_order_acq_rel, memory_order_relaxed))
        return false;
    uint64_t tag = mf_block_tag(block);
    *owner = MF_TAG_OWNER(tag);
    *asked = block->bytes - MF_TAG_REST(tag);
    if (block->bytes <= MF_SMALL_MOST || *owner >= cache->owner_capacity) {
        atomic_store_explicit(&block->word, offset | MF_WORD_LIVE, memory_order_release);
        return false;
    }
    cache->kept[n] = (mf_kept){block->bytes, block};
    atomic_store_explicit(&cache->kept_count, n + 1, memory_order_relaxed);
    return true;
}

/* Into this thread's cache. False: the long way. */
static inline bool free_cached(memfit_pool *pool, memfit_address address, memfit_stream stream)
{
    uint64_t offset = address - pool->range;
    if (offset >= pool->range_bytes || !atomic_load_explicit(&pool->cached, memory_order_relaxed) ||
        stream != atomic_load_explicit(&pool->home, memory_order_relaxed))
        return false;
    uintptr_t cell = mf_cell_load(pool, offset);
    mf_slot_ref ref = {0};
    if (cell ? !mf_slot_at(cell, offset, &ref) : offset % MF_UNIT)
        return false;
    mf_cache *cache = mf_cache_get(pool);
    if (!cache || !mf_cache_enter(pool, cache))
        return false;
    uint32_t owner;
    uint64_t asked;
    bool put = cell ? put_slot(pool, cache, ref, &owner, &asked) : put_kept(pool, cache, offset, &owner, &asked);
    if (put) {
        note_free(pool, cache, owner, asked);
        if (pool->hook) /* before anyone can have it again */
            pool->hook(pool->hook_ctx, &(mf_pool_event){MF_POOL_FREE, owner, stream, address, asked});
    }
    mf_cache_leave(cache);
    return put;
}

memfit_status memfit_pool_free_on(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    if (!pool || atomic_load_explicit(&pool->magic, memory_order_acquire) != MF_POOL_ALIVE)
        return mf_pool_no_pool(pool, err);
    if (free_cached(pool, address, stream))
        return MEMFIT_OK;
    return mf_pool_release(pool, address, stream, err);
}

memfit_status memfit_pool_free(memfit_pool *pool, memfit_address address, memfit_error *err)
{
    return memfit_pool_free_on(pool, address, 0, err);
}
