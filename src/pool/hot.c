/*
 * hot.c: the two calls everything is for, as far as they need no lock: a request that this thread's cache can meet, and
 * a free that it can take. Both leave to request.c and release.c whatever is out of the ordinary: another stream, an
 * alignment, an empty or full cache, a pointer that is no block.
 *
 * A pair has one locked instruction: two threads that free the same block at the same instant are told apart. What is
 * rare is in functions of its own that are jumped to, so that the rest saves no registers.
 */
#include "pool/blocks.h"
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/ledger.h"
#include "pool/slab.h"

#include "base/error.h"

#define HOT  static inline __attribute__((always_inline))
#define RARE static __attribute__((noinline))

/* ---- a thread's part of the ledger ---------------------------------------------------------------------------- */

/* Only the cache's thread changes it, inside the cache; others read it without. */
HOT int64_t tally_add(mf_tally *t, uint64_t bytes)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed) + (int64_t)bytes;
    atomic_store_explicit(&t->now, now, memory_order_relaxed);
    if (now > atomic_load_explicit(&t->top, memory_order_relaxed))
        atomic_store_explicit(&t->top, now, memory_order_relaxed);
    return now;
}

HOT void tally_sub(mf_tally *t, uint64_t bytes)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed) - (int64_t)bytes;
    atomic_store_explicit(&t->now, now, memory_order_relaxed);
}

HOT void count(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* True: it has risen so far that it must be folded. */
HOT bool note_alloc(mf_cache *cache, uint32_t owner, uint64_t bytes)
{
    mf_owner_tally *t = &cache->owner[owner];
    count(&t->allocations);
    int64_t drift = tally_add(&t->bytes, bytes);
    tally_add(&cache->kind[t->kind], bytes);
    int64_t in_all = tally_add(&cache->total, bytes);
    return drift > MF_DRIFT || in_all > MF_DRIFT;
}

HOT void note_free(mf_cache *cache, uint32_t owner, uint64_t bytes)
{
    mf_owner_tally *t = &cache->owner[owner];
    count(&t->frees);
    tally_sub(&t->bytes, bytes);
    tally_sub(&cache->kind[t->kind], bytes);
    tally_sub(&cache->total, bytes);
}

HOT bool has_hook(memfit_pool *pool)
{
    return atomic_load_explicit(&pool->hook, memory_order_relaxed) != NULL;
}

/* ---- allocating --------------------------------------------------------------------------------------------- */

HOT bool take_slot(memfit_pool *pool, mf_cache *cache, uint64_t bytes, memfit_owner owner, memfit_address *address)
{
    mf_magazine *m = &cache->magazine[pool->class_of[(bytes + MF_UNIT - 1 + !bytes) / MF_UNIT]];
    if (!m->count)
        return false;
    mf_at_hand *item = &m->item[--m->count];
    atomic_store_explicit(item->word, mf_slot_live(pool, owner, bytes), memory_order_relaxed);
    *address = pool->range + item->offset;
    return true;
}

/* The block freed last of exactly this size. */
HOT bool take_kept(memfit_pool *pool, mf_cache *cache, uint64_t bytes, memfit_owner owner, memfit_address *address)
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
    *address = pool->range + block->start; /* first: once it is live anybody may free it, by mistake */
    mf_block_hand_out(pool, block, owner, bytes);
    return true;
}

/* What is left to do for a request that was met, now and then. */
RARE memfit_status alloc_more(memfit_pool *pool, mf_cache *cache, uint64_t bytes, memfit_owner owner,
                              memfit_stream stream, memfit_address address)
{
    if (atomic_load_explicit(&cache->owner[owner].bytes.now, memory_order_relaxed) > MF_DRIFT ||
        atomic_load_explicit(&cache->total.now, memory_order_relaxed) > MF_DRIFT) {
        pthread_mutex_lock(&pool->lock);
        mf_cache_enter(pool, cache);
        mf_ledger_fold_one(pool, cache, owner);
        mf_cache_leave(cache);
        pthread_mutex_unlock(&pool->lock);
    }
    bool inside = mf_cache_enter(pool, cache);
    if (!inside)
        pthread_mutex_lock(&pool->lock);
    mf_pool_tell(pool, &(mf_pool_event){MF_POOL_ALLOC, owner, stream, address, bytes});
    if (inside)
        mf_cache_leave(cache);
    else
        pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

/* From this thread's cache. False: the long way, where everything is looked at that was not here. */
HOT bool alloc_cached(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_stream stream,
                      memfit_address *address, mf_cache **more)
{
    if (!mf_pass(pool, stream) || !address)
        return false;
    mf_cache *cache = mf_cache_peek(pool);
    if (!cache || !mf_cache_enter(pool, cache))
        return false;
    if (owner >= cache->owner_known || !(bytes <= MF_SMALL_MOST ? take_slot(pool, cache, bytes, owner, address)
                                                                : take_kept(pool, cache, bytes, owner, address))) {
        mf_cache_leave(cache);
        return false;
    }
    *more = note_alloc(cache, owner, bytes) || has_hook(pool) ? cache : NULL;
    mf_cache_leave(cache);
    return true;
}

/* The first time this thread meets the pool, or an owner. */
static void meet(memfit_pool *pool, memfit_owner owner)
{
    mf_cache *cache = NULL;
    if (atomic_load_explicit(&pool->cached, memory_order_relaxed) && !(cache = mf_cache_peek(pool)))
        cache = mf_cache_attach(pool);
    if (!cache || owner < cache->owner_known)
        return;
    pthread_mutex_lock(&pool->lock);
    mf_cache_meet_owners(pool, cache);
    pthread_mutex_unlock(&pool->lock);
}

RARE memfit_status alloc_slow(memfit_pool *pool, uint64_t bytes, uint64_t alignment, memfit_owner owner,
                              memfit_stream stream, bool runs, memfit_address *address, memfit_error *err)
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
    if (bytes > MF_SMALL_MOST)
        mf_bins_warm(&pool->lane[0]->bins, bytes + MF_UNIT - 1);
    meet(pool, owner);
    return mf_pool_request(pool, &(mf_request){bytes, alignment, owner, stream, runs}, address, err);
}

RARE memfit_status alloc_plain(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_address *address,
                               memfit_error *err)
{
    return alloc_slow(pool, bytes, 0, owner, 0, false, address, err);
}

memfit_status memfit_pool_alloc_on(memfit_pool *pool, uint64_t bytes, uint64_t alignment, memfit_owner owner,
                                   memfit_stream stream, memfit_address *address, memfit_error *err)
{
    mf_cache *more;
    if (alignment > MF_UNIT || alignment & (alignment - 1) || !alloc_cached(pool, bytes, owner, stream, address, &more))
        return alloc_slow(pool, bytes, alignment, owner, stream, false, address, err);
    return more ? alloc_more(pool, more, bytes, owner, stream, *address) : MEMFIT_OK;
}

memfit_status mf_pool_alloc_running(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_stream stream,
                                    memfit_address *address, memfit_error *err)
{
    mf_cache *more;
    if (!alloc_cached(pool, bytes, owner, stream, address, &more))
        return alloc_slow(pool, bytes, 0, owner, stream, true, address, err);
    return more ? alloc_more(pool, more, bytes, owner, stream, *address) : MEMFIT_OK;
}

memfit_status memfit_pool_alloc(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_address *address,
                                memfit_error *err)
{
    mf_cache *more;
    if (!alloc_cached(pool, bytes, owner, 0, address, &more))
        return alloc_plain(pool, bytes, owner, address, err);
    return more ? alloc_more(pool, more, bytes, owner, 0, *address) : MEMFIT_OK;
}

/* ---- freeing ------------------------------------------------------------------------------------------------ */

HOT bool put_slot(memfit_pool *pool, mf_cache *cache, uintptr_t cell, mf_slot_ref ref, uint64_t offset, uint32_t *owner,
                  uint64_t *asked)
{
    mf_magazine *m = &cache->magazine[mf_cell_class(cell)];
    _Atomic uint64_t *at = mf_slot_word(ref.slab, ref.index);
    uint64_t word = atomic_load_explicit(at, memory_order_relaxed);
    *owner = MF_SLOT_OWNER(word);
    *asked = MF_SLOT_ASKED(word);
    if (!(word & MF_SLOT_LIVE) || m->count == m->most || *owner >= cache->owner_known ||
        !atomic_compare_exchange_strong_explicit(at, &word, 0, memory_order_acq_rel, memory_order_relaxed))
        return false;
    if (mf_cell_load(pool, offset) != cell) { /* it was free, and its slab's record is another's since we looked */
        atomic_store_explicit(at, word, memory_order_release);
        return false;
    }
    m->item[m->count++] = (mf_at_hand){at, offset};
    return true;
}

HOT bool put_kept(memfit_pool *pool, mf_cache *cache, uint64_t offset, uint32_t *owner, uint64_t *asked)
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
    if (block->bytes <= MF_SMALL_MOST || *owner >= cache->owner_known) {
        atomic_store_explicit(&block->word, offset | MF_WORD_LIVE, memory_order_release);
        return false;
    }
    cache->kept[n] = (mf_kept){block->bytes, block};
    atomic_store_explicit(&cache->kept_count, n + 1, memory_order_relaxed);
    return true;
}

/* Inside the cache still: nobody can have the block again before it is told. */
RARE memfit_status free_told(memfit_pool *pool, mf_cache *cache, const mf_pool_event *event)
{
    mf_pool_tell(pool, event);
    mf_cache_leave(cache);
    return MEMFIT_OK;
}

RARE memfit_status free_slow(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    if (!pool || atomic_load_explicit(&pool->magic, memory_order_acquire) != MF_POOL_ALIVE)
        return mf_pool_no_pool(pool, err);
    meet(pool, 0);
    return mf_pool_release(pool, address, stream, err);
}

/* Into this thread's cache, or the long way. */
HOT memfit_status free_any(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    if (!mf_pass(pool, stream))
        return free_slow(pool, address, stream, err);
    uint64_t offset = address - pool->range;
    if (offset >= pool->range_bytes)
        return free_slow(pool, address, stream, err);
    uintptr_t cell = mf_cell_load(pool, offset);
    mf_slot_ref ref = {0};
    mf_cache *cache = mf_cache_peek(pool);
    if (!cache || (cell ? !mf_slot_at(cell, offset, &ref) : offset % MF_UNIT) || !mf_cache_enter(pool, cache))
        return free_slow(pool, address, stream, err);
    uint32_t owner;
    uint64_t asked;
    /* Once more: a second stream may have come meanwhile, and emptied the caches. */
    if (!mf_pass(pool, stream) || !(cell ? put_slot(pool, cache, cell, ref, offset, &owner, &asked)
                                         : put_kept(pool, cache, offset, &owner, &asked))) {
        mf_cache_leave(cache);
        return free_slow(pool, address, stream, err);
    }
    note_free(cache, owner, asked);
    if (has_hook(pool))
        return free_told(pool, cache, &(mf_pool_event){MF_POOL_FREE, owner, stream, address, asked});
    mf_cache_leave(cache);
    return MEMFIT_OK;
}

memfit_status memfit_pool_free_on(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    return free_any(pool, address, stream, err);
}

memfit_status memfit_pool_free(memfit_pool *pool, memfit_address address, memfit_error *err)
{
    return free_any(pool, address, 0, err);
}
