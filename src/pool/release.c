/*
 * release.c: a free that this thread's cache could not take (hot.c): under the lock, on any stream, of a block that may
 * not be one. Everything that can be wrong with it is said here.
 */
#include "pool/blocks.h"
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/lanes.h"
#include "pool/ledger.h"
#include "pool/pages.h"
#include "pool/repeat.h"
#include "pool/slab.h"

#include "base/error.h"

static memfit_status not_mine(memfit_pool *pool, memfit_address address, memfit_error *err)
{
    unsigned long long at = address;
    memfit_status status = MEMFIT_OK;
    mf_device *device = pool->device;
    pthread_mutex_lock(&device->lock);
    for (memfit_pool *p = device->pools; p; p = p->next)
        if (p != pool && address - p->range < p->range_bytes)
            status = mf_fail(err, MEMFIT_MISUSE, "pool %s: free of %#llx, which belongs to pool %s", pool->name, at,
                             p->name);
    pthread_mutex_unlock(&device->lock);
    if (status)
        return status;
    return mf_fail(err, MEMFIT_MISUSE, "pool %s: free of %#llx, which is no address of this pool", pool->name, at);
}

/* Why an address inside the range cannot be freed; pool->lock held. */
static memfit_status no_block(memfit_pool *pool, memfit_address address, memfit_error *err)
{
    memfit_block_info block = MEMFIT_BLOCK_INFO;
    unsigned long long at = address;
    if (mf_pool_find_locked(pool, address, &block) && block.address != address)
        return mf_fail(err, MEMFIT_MISUSE, "pool %s: free of %#llx, which lies %llu bytes inside the block at %#llx",
                       pool->name, at, at - (unsigned long long)block.address, (unsigned long long)block.address);
    return mf_fail(err, MEMFIT_MISUSE,
                   "pool %s: free of %#llx, which is no live block: freed twice, or never allocated", pool->name, at);
}

/* Is the guard behind the block as we left it? */
static memfit_status check_guard(memfit_pool *pool, memfit_address address, uint64_t asked, uint32_t owner,
                                 memfit_stream stream, memfit_error *err)
{
    mf_device *device = pool->device;
    unsigned char guard[MF_GUARD];
    if (!pool->debug || device->hollow)
        return MEMFIT_OK;
    memfit_status status = device->table->copy_out(device, guard, address + asked, MF_GUARD, stream, err);
    if (!status)
        status = device->table->stream_sync(device, stream, err);
    device->table->fill(device, address, MF_POISON_OLD, asked, stream, NULL);
    for (unsigned i = 0; i < MF_GUARD && !status; i++)
        if (guard[i] != MF_GUARD_BYTE)
            return mf_fail(
                err, MEMFIT_MISUSE,
                "pool %s: byte %u behind the block at %#llx (%llu bytes, owner %s) was overwritten\nThe block "
                "is freed all the same",
                pool->name, i, (unsigned long long)address, (unsigned long long)asked, mf_owner_at(pool, owner)->name);
    return status;
}

/* Another thread may be freeing the same slot or block without the lock; only one of the two can have it. */
static memfit_status free_slot(memfit_pool *pool, mf_slot_ref ref, uint64_t word, unsigned lane, memfit_error *err)
{
    uint64_t live = word;
    if (!atomic_compare_exchange_strong_explicit(mf_slot_word(ref.slab, ref.index), &live, 0, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return no_block(pool, pool->range + mf_slot_offset(ref), err);
    bool held = false;
    memfit_status status = MEMFIT_OK;
    if (pool->fence.used_count)
        status = mf_fence_hold_slot(pool, ref.slab, ref.index, lane, &held, err);
    bool waits = !status && !held && lane && ref.slab->lane != lane;
    if (waits)
        status = mf_lane_wait_slot(pool, lane, ref, err);
    if (status) {
        mf_slot_store(ref.slab, ref.index, word);
        return status;
    }
    mf_ledger_sub(pool, MF_SLOT_OWNER(word), MF_SLOT_ASKED(word));
    if (held || waits)
        return MEMFIT_OK;
    if (lane)
        pool->lane[lane]->clock.serial++;
    mf_slab_give(pool, ref);
    return MEMFIT_OK;
}

/* Nobody can find the block any more. */
static void retire(memfit_pool *pool, mf_block *block, bool held)
{
    mf_repeat_gone(pool, block, held);
    mf_table_remove(pool, block);
    atomic_store_explicit(&block->word, 0, memory_order_relaxed);
    pool->block_bytes -= block->bytes;
}

void mf_block_give(memfit_pool *pool, mf_block *block, unsigned lane)
{
    retire(pool, block, false);
    mf_block_drop(pool, block, lane, lane ? ++pool->lane[lane]->clock.serial : 0);
}

/* Frees the half of this thread's full magazine, so that the next frees are quick again. */
static void spill(memfit_pool *pool, unsigned size_class)
{
    mf_cache *cache = atomic_load(&pool->cached) ? mf_cache_mine(pool) : NULL;
    if (!cache)
        return;
    mf_cache_enter(pool, cache);
    mf_magazine *m = &cache->magazine[size_class];
    if (m->count == m->most)
        while (m->count > m->most / 2)
            mf_slab_give(pool, mf_slot_of(pool, &m->item[--m->count]));
    mf_cache_leave(cache);
}

/* What begins at an offset and is to be freed. */
typedef struct found {
    bool any;
    mf_block *block; /* or a slot */
    mf_slot_ref ref;
    uint64_t word; /* of the slot */
    uint64_t asked;
    uint32_t owner;
} found;

static found find(memfit_pool *pool, uint64_t offset)
{
    found f = {0};
    uintptr_t cell = mf_cell_load(pool, offset);
    if (cell) {
        f.any = mf_slot_at(cell, offset, &f.ref);
        f.word = f.any ? mf_slot_load(f.ref.slab, f.ref.index) : 0;
        f.any = f.word & MF_SLOT_LIVE;
        f.owner = MF_SLOT_OWNER(f.word);
        f.asked = MF_SLOT_ASKED(f.word);
    } else if ((f.block = mf_table_find(pool, offset)) && mf_block_live(f.block)) {
        uint64_t tag = mf_block_tag(f.block);
        f.any = true;
        f.owner = MF_TAG_OWNER(tag);
        f.asked = f.block->bytes - MF_TAG_REST(tag);
    }
    return f;
}

static memfit_status free_block(memfit_pool *pool, const found *f, unsigned lane, memfit_error *err)
{
    uint64_t live = f->block->start | MF_WORD_LIVE;
    if (!atomic_compare_exchange_strong_explicit(&f->block->word, &live, 0, memory_order_acq_rel, memory_order_relaxed))
        return no_block(pool, pool->range + f->block->start, err);
    bool held = false;
    if (pool->fence.used_count) {
        memfit_status status = mf_fence_hold_block(pool, f->block, lane, &held, err);
        if (status) {
            atomic_store_explicit(&f->block->word, f->block->start | MF_WORD_LIVE, memory_order_release);
            return status;
        }
    }
    mf_ledger_sub(pool, f->owner, f->asked);
    if (!held) {
        mf_block_give(pool, f->block, lane);
        return MEMFIT_OK;
    }
    retire(pool, f->block, true);
    f->block->state = MF_HELD;
    return MEMFIT_OK;
}

/* What was handed out to a CUDA graph goes back to it, whatever stream it is freed on. */
static memfit_status lane_of(memfit_pool *pool, const found *f, mf_stream stream, unsigned *lane, memfit_error *err)
{
    unsigned own = f->block ? (unsigned)f->block->lane : f->ref.slab->lane;
    if (!mf_fence_is_graph(pool, own))
        return mf_lane_of(pool, stream, lane, err);
    *lane = own;
    return MEMFIT_OK;
}

memfit_status mf_pool_release(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    uint64_t offset = address - pool->range;
    if (offset >= pool->range_bytes)
        return not_mine(pool, address, err);
    pthread_mutex_lock(&pool->lock);
    unsigned lane = 0;
    found f = find(pool, offset);
    mf_cache_settle(pool, f.owner);
    memfit_status status = f.any ? lane_of(pool, &f, stream, &lane, err) : no_block(pool, address, err);
    memfit_status guard = status ? MEMFIT_OK : check_guard(pool, address, f.asked, f.owner, stream, err);
    if (!status && f.block) {
        status = free_block(pool, &f, lane, err);
    } else if (!status) {
        spill(pool, f.ref.slab->size_class);
        status = free_slot(pool, f.ref, f.word, lane, err);
    }
    if (!status) {
        if (pool->pages.reserved > mf_pages_limit(pool)) /* the limit was lowered below use */
            mf_pages_trim(pool, mf_pages_limit(pool));
        mf_pool_now_and_then(pool);
        mf_pool_tell(pool, &(mf_pool_event){MF_POOL_FREE, f.owner, stream, address, f.asked});
    }
    pthread_mutex_unlock(&pool->lock);
    return status ? status : guard;
}
