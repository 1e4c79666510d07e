/*
 * request.c: a request that this thread's cache could not meet (hot.c). It takes the first way that works:
 *   1. a slab or a hole, under the lock
 *   2. after taking back all threads' caches and whatever other streams are done with
 *   3. after waiting for the streams that still hold memory
 *   4. after other pools on the device gave back idle pages
 *   5. after the program's own pressure functions freed something
 *   6. otherwise it fails, and explain.c says why
 */
#include "pool/blocks.h"
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/lanes.h"
#include "pool/ledger.h"
#include "pool/moves.h"
#include "pool/pages.h"
#include "pool/repeat.h"
#include "pool/slab.h"

#include "base/error.h"

enum { POLL_EVERY = 64, QUIET = 16384, SETTLES_OFTEN = POLL_EVERY / 16 };

/* The class for a small request; MF_CLASSES: not small. */
static unsigned small_class(const memfit_pool *pool, uint64_t bytes, uint64_t alignment)
{
    if (alignment > MF_UNIT) { /* slots of a power of two lie at multiples of it */
        uint64_t size = alignment;
        while (size < bytes && size <= MF_SMALL_MOST)
            size *= 2;
        bytes = size;
    }
    if (bytes > MF_SMALL_MOST)
        return MF_CLASSES;
    return pool->class_of[(bytes + MF_UNIT - 1 + !bytes) / MF_UNIT];
}

/* Fills the magazine to a half with slots that are there already; makes no slab for it. */
static void refill(memfit_pool *pool, unsigned size_class)
{
    mf_cache *cache = atomic_load(&pool->cached) ? mf_cache_mine(pool) : NULL;
    if (!cache)
        return;
    mf_cache_enter(pool, cache);
    mf_magazine *m = &cache->magazine[size_class];
    mf_slot_ref ref;
    while (m->count < m->most / 2 && pool->lane[0]->partial[size_class] &&
           mf_slab_take(pool, size_class, 0, false, &ref, NULL))
        m->item[m->count++] = (mf_at_hand){mf_slot_word(ref.slab, ref.index), mf_slot_offset(ref)};
    mf_cache_leave(cache);
}

static bool attempt_small(memfit_pool *pool, const mf_request *r, unsigned size_class, unsigned lane, bool grow_soft,
                          memfit_address *out, memfit_error *err)
{
    mf_slot_ref ref;
    if (!mf_slab_take(pool, size_class, lane, grow_soft, &ref, err))
        return false;
    mf_slot_store(ref.slab, ref.index, mf_slot_live(pool, r->owner, r->bytes));
    *out = pool->range + mf_slot_offset(ref);
    refill(pool, size_class);
    return true;
}

static bool attempt_block(memfit_pool *pool, const mf_request *r, uint64_t bytes, unsigned lane, bool grow_soft,
                          memfit_address *out, memfit_error *err)
{
    uint64_t alignment = r->alignment > MF_UNIT ? r->alignment : MF_UNIT;
    while (bytes <= MF_SMALL_MOST && alignment < bytes) /* small, but there is no slab: it must lie in one page */
        alignment *= 2;
    bytes += !bytes;
    mf_block *block = mf_place(pool, mf_round_up(bytes, MF_UNIT), alignment, lane, MF_LIVE, grow_soft, err);
    if (!block)
        return false;
    block->lane = (uint8_t)lane;
    mf_block_hand_out(pool, block, r->owner, r->bytes);
    mf_table_add(pool, block);
    pool->block_bytes += block->bytes;
    *out = pool->range + block->start;
    return true;
}

static bool attempt(memfit_pool *pool, const mf_request *r, unsigned lane, bool grow_soft, memfit_address *out,
                    memfit_error *err)
{
    uint64_t bytes = r->bytes + (pool->debug ? MF_GUARD : 0);
    if (r->bytes > pool->range_bytes) {
        pool->refusal = MF_REFUSED_LIMIT;
        pool->refused_pages = r->bytes / pool->pages.bytes;
        return false;
    }
    unsigned size_class = small_class(pool, bytes, r->alignment);
    if (size_class < MF_CLASSES && attempt_small(pool, r, size_class, lane, grow_soft, out, err))
        return true;
    if (size_class < MF_CLASSES && (pool->refusal == MF_REFUSED_NOT || pool->refusal == MF_REFUSED_HOST))
        return false;
    return attempt_block(pool, r, bytes, lane, grow_soft, out, err);
}

/* Idle pages of other pools on this device go back to it. The lock is let go meanwhile: no pool waits for another while
 * it holds its own. */
static void trim_others(memfit_pool *pool, uint64_t bytes)
{
    mf_device *device = pool->device;
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_lock(&device->lock);
    for (memfit_pool *p = device->pools; p && bytes; p = p->next) {
        if (p == pool || p->options.slice || pthread_mutex_trylock(&p->lock))
            continue;
        if (p->policy == MEMFIT_POLICY_GROWTH) {
            mf_caches_reclaim(p);
            uint64_t want = (bytes + p->pages.bytes - 1) / p->pages.bytes;
            uint64_t gone = mf_pages_trim(p, p->pages.reserved > want ? p->pages.reserved - want : 0);
            bytes -= gone * p->pages.bytes < bytes ? gone * p->pages.bytes : bytes;
        }
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&device->lock);
    pthread_mutex_lock(&pool->lock);
}

/* What was freed meanwhile, by whatever thread on whatever stream. */
static void take_back(memfit_pool *pool)
{
    mf_caches_reclaim(pool);
    mf_lanes_poll(pool, true);
    if (!pool->options.no_stream_wait)
        mf_lanes_wait(pool);
}

/* What can still be done before giving up; false: nothing. *step is where we are. */
static bool relieve(memfit_pool *pool, const mf_request *r, unsigned *step, bool *grow_soft)
{
    uint64_t wanted = pool->refused_pages * pool->pages.bytes;
    for (;; (*step)++) {
        switch (*step) {
        case 0:
            mf_caches_reclaim(pool);
            mf_lanes_poll(pool, true);
            ++*step;
            return true;
        case 1:
            if (!pool->options.no_stream_wait && mf_lanes_wait(pool)) {
                ++*step;
                return true;
            }
            break;
        case 2:
            if (pool->refusal == MF_REFUSED_BUDGET || pool->refusal == MF_REFUSED_DEVICE) {
                trim_others(pool, wanted ? wanted : r->bytes);
                ++*step;
                return true;
            }
            break;
        default: /* a callback that says it freed nothing is not called again, but looked after: others free, too */
            *grow_soft = true;
            if (*step >= 20 || !pool->pressure_count)
                return false;
            *step = mf_pressure_call(pool, wanted, true) ? *step + 1 : 20;
            take_back(pool);
            return true;
        }
    }
}

static bool purge_is_due(const memfit_pool *pool)
{
    return pool->policy == MEMFIT_POLICY_GROWTH && pool->purge_us != UINT64_MAX &&
           mf_device_now_us(pool->device) >= pool->pages.purge_at_us;
}

/* Pages, since we last looked. */
static bool has_moved(const memfit_pool *pool)
{
    return pool->remaps != pool->remaps_seen || (pool->repeat && !pool->remaps_at);
}

/* Threads keep blocks unless the pool is above its limit or has moved pages of late: then each block must go back to where
 * the next one is best placed. (ResNet50 of the traces moves pages 64 times instead of 17 if threads keep blocks
 * meanwhile.) Nor where they have to give them back time and again: two threads that ask for large blocks by turns, as a forward
 * and a backward pass do, would make each other pass a barrier, some microseconds each time, for every few blocks. */
void mf_pool_decide_keeping(memfit_pool *pool)
{
    bool often = pool->settles > SETTLES_OFTEN;
    if (!(pool->central_calls % POLL_EVERY))
        pool->settles = 0;
    if (has_moved(pool) || often) {
        pool->remaps_seen = pool->remaps;
        pool->remaps_at = pool->central_calls + 1;
    }
    bool quiet = !pool->remaps_at || pool->central_calls > pool->remaps_at + QUIET;
    bool keeps = atomic_load_explicit(&pool->cached, memory_order_relaxed) && quiet && !mf_repeat_plans(pool) &&
                 pool->pages.reserved <= mf_pages_limit(pool);
    if (keeps != atomic_load_explicit(&pool->keeps, memory_order_relaxed))
        atomic_store(&pool->keeps, keeps);
}

void mf_pool_now_and_then(memfit_pool *pool)
{
    pool->central_calls++;
    if (pool->central_calls % POLL_EVERY && !has_moved(pool))
        return;
    mf_pool_decide_keeping(pool);
    if (pool->central_calls % POLL_EVERY)
        return;
    if (mf_clock_asks(pool))
        mf_moves_look(pool);
    if (pool->multi)
        mf_lanes_look(pool);
    if (!purge_is_due(pool))
        return;
    if (pool->multi)
        mf_lanes_poll(pool, true);
    mf_caches_settle(pool);
    mf_pages_purge(pool);
}

static bool search(memfit_pool *pool, const mf_request *r, unsigned lane, memfit_address *out, memfit_error *err)
{
    unsigned step = 0;
    bool grow_soft = false;
    for (;;) {
        if (attempt(pool, r, lane, grow_soft, out, err))
            return true;
        if (pool->refusal == MF_REFUSED_HOST)
            return false;
        if (pool->refusal == MF_REFUSED_NOT && !grow_soft) { /* the soft limit: relieve, then pass it */
            mf_caches_reclaim(pool);
            mf_lanes_poll(pool, true);
            if (attempt(pool, r, lane, false, out, err))
                return true;
            if (pool->refusal == MF_REFUSED_NOT && pool->pressure_count) {
                mf_pressure_call(pool, pool->refused_pages * pool->pages.bytes, false);
                mf_caches_reclaim(pool);
                mf_lanes_poll(pool, true);
                if (attempt(pool, r, lane, false, out, err))
                    return true;
            }
            grow_soft = true;
            continue;
        }
        if (!relieve(pool, r, &step, &grow_soft))
            return false;
    }
}

static void poison(memfit_pool *pool, const mf_request *r, memfit_address address)
{
    mf_device *device = pool->device;
    if (device->hollow)
        return;
    device->table->fill(device, address, MF_POISON_NEW, r->bytes, r->stream, NULL);
    device->table->fill(device, address + r->bytes, MF_GUARD_BYTE, MF_GUARD, r->stream, NULL);
}

memfit_status mf_pool_request(memfit_pool *pool, const mf_request *r, memfit_address *address, memfit_error *err)
{
    pthread_mutex_lock(&pool->lock);
    mf_moves_asked(pool);
    mf_cache_settle(pool, r->owner);
    unsigned lane;
    memfit_address found;
    memfit_status status = r->runs && !pool->fence.open_graphs /* none was announced since it was asked */
                               ? mf_lane_of(pool, r->stream, &lane, err)
                               : mf_fence_lane(pool, r->stream, &lane, err);
    if (!status && !search(pool, r, lane, &found, err)) {
        pool->failures++;
        status = mf_pool_explain_failure(pool, r, err);
        mf_pool_tell(pool, &(mf_pool_event){MF_POOL_FAIL, r->owner, r->stream, 0, r->bytes});
    }
    if (!status) {
        mf_ledger_add(pool, r->owner, r->bytes);
        *address = found;
        if (pool->debug)
            poison(pool, r, found);
        mf_pool_now_and_then(pool);
        mf_pool_tell(pool, &(mf_pool_event){MF_POOL_ALLOC, r->owner, r->stream, found, r->bytes});
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}
