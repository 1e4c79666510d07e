/*
 * pool.c: making and ending a pool, and the two calls everything is for.
 *
 * A request takes the first way that works:
 *   1. this thread's magazine (small sizes, one stream): no lock anyone else wants
 *   2. a slab or a hole, under the lock
 *   3. after taking back all threads' magazines and whatever other streams are done with
 *   4. after waiting for the streams that still hold memory
 *   5. after other pools on the device gave back idle pages
 *   6. after the program's own pressure functions freed something
 *   7. otherwise it fails, and explain.c says why
 *
 * Destroyed pools leave their shell behind (16 of them a device), so that using one is told, not undefined.
 */
#include "pool/state.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

enum { SHELLS_KEPT = 16, RANGE_TIMES = 16, POLL_EVERY = 64, DRIFT = 65536, GUARD = 256 };
enum { POISON_NEW = 0xcd, POISON_OLD = 0xdd, GUARD_BYTE = 0xfd };

/* ---- life --------------------------------------------------------------------------------------------------- */

memfit_status mf_pool_no_pool(memfit_pool *pool, memfit_error *err)
{
    if (!pool)
        return mf_fail(err, MEMFIT_INVALID, "pool: NULL");
    if (atomic_load(&pool->magic) == MF_POOL_DEAD)
        return mf_fail(err, MEMFIT_MISUSE, "pool %s: used after it was destroyed", pool->name);
    return mf_fail(err, MEMFIT_MISUSE, "pool: this is no pool");
}

static void free_shells(mf_device *device)
{
    while (device->dead_pools) {
        memfit_pool *pool = device->dead_pools;
        device->dead_pools = pool->next;
        mf_host_free(device->host, pool, sizeof *pool);
    }
}

/* A new shell, or the oldest of the dead when there are enough of them. */
static memfit_pool *new_shell(mf_device *device)
{
    memfit_pool **last = &device->dead_pools, *pool = NULL;
    unsigned count = 0;
    pthread_mutex_lock(&device->lock);
    for (; *last && (*last)->next; last = &(*last)->next)
        count++;
    if (count >= SHELLS_KEPT) {
        pool = *last;
        *last = NULL;
    }
    device->free_pools = free_shells;
    pthread_mutex_unlock(&device->lock);
    if (!pool)
        return mf_host_zalloc(device->host, sizeof *pool);
    memset(pool, 0, sizeof *pool);
    return pool;
}

static void bury(mf_device *device, memfit_pool *pool)
{
    pthread_mutex_lock(&device->lock);
    pool->next = device->dead_pools;
    device->dead_pools = pool;
    pthread_mutex_unlock(&device->lock);
}

/* Adds the pool to the device's list, decides who pays the fixed cost, sets the limit and a slice's share aside. */
static memfit_status join_device(memfit_pool *pool, memfit_error *err)
{
    mf_device *device = pool->device;
    uint64_t total, free_bytes;
    memfit_status status = device->table->memory(device, &total, &free_bytes, err);
    if (status)
        return status;
    pthread_mutex_lock(&device->lock);
    uint64_t fixed = device->fixed_bytes;
    bool pays = true;
    for (memfit_pool *p = device->pools; p; p = p->next)
        pays = pays && !p->pays_fixed;
    pool->pays_fixed = pays;
    atomic_store(&device->budget.room_bytes, total > fixed ? total - fixed : 0);
    pool->limit_bytes = pool->options.limit_bytes ? pool->options.limit_bytes : free_bytes + (pays ? fixed : 0);
    status = mf_limit_sane(device, pool->limit_bytes, pays ? fixed : 0, pool->options.page_bytes, err);
    uint64_t share = mf_limit_room(pool, pool->limit_bytes);
    if (!status && pool->options.slice && !mf_budget_take(&device->budget, share)) {
        uint64_t taken = atomic_load(&device->budget.taken_bytes), room = atomic_load(&device->budget.room_bytes);
        status = mf_fail(err, MEMFIT_CONFLICT,
                         "pool %s: a slice of %llu bytes does not fit: %llu of the device's %llu are left to set aside",
                         pool->name, (unsigned long long)pool->limit_bytes,
                         (unsigned long long)(room > taken ? room - taken : 0), (unsigned long long)room);
    }
    if (!status) {
        if (pool->options.slice)
            atomic_fetch_add(&device->budget.slices_bytes, share);
        memfit_pool **last = &device->pools;
        while (*last) {
            pool->previous = *last;
            last = &(*last)->next;
        }
        *last = pool;
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

static void leave_device(memfit_pool *pool)
{
    mf_device *device = pool->device;
    pthread_mutex_lock(&device->lock);
    if (pool->options.slice) {
        uint64_t share = mf_limit_room(pool, pool->limit_bytes);
        mf_budget_give(&device->budget, share);
        atomic_fetch_sub(&device->budget.slices_bytes, share);
    }
    if (pool->previous)
        pool->previous->next = pool->next;
    else
        device->pools = pool->next;
    if (pool->next)
        pool->next->previous = pool->previous;
    memfit_pool *heir = device->pools; /* the oldest that is left pays from now on, if it is no slice */
    while (heir && heir->options.slice)
        heir = heir->next;
    if (pool->pays_fixed && heir)
        heir->pays_fixed = true;
    pthread_mutex_unlock(&device->lock);
}

/* A device that cannot map: the range is the memory, as much as the limit leaves beside the fixed cost, and a page of
 * addresses behind it with nothing there, so that the tail has no end here either (pages.c refuses it). */
static memfit_status reserve_plain(memfit_pool *pool, memfit_error *err)
{
    uint64_t page = pool->options.page_bytes, least = mf_fixed_bytes(pool) + 2 * page;
    for (;;) {
        uint64_t bytes = mf_limit_room(pool, pool->limit_bytes) / page * page;
        memfit_status status = pool->device->table->reserve(pool->device, bytes, page, &pool->range, err);
        if (!status)
            pool->range_bytes = bytes + page;
        if (!status)
            return MEMFIT_OK;
        uint64_t less = pool->limit_bytes / 64 + page; /* nobody asked for this much: take what is really there */
        if (status != MEMFIT_OUT_OF_MEMORY || pool->options.limit_bytes || pool->limit_bytes < least + less)
            return status;
        pool->limit_bytes -= less;
    }
}

static memfit_status reserve_range(memfit_pool *pool, memfit_error *err)
{
    mf_device *device = pool->device;
    uint64_t page = pool->options.page_bytes, total, free_bytes;
    memfit_status status = device->table->memory(device, &total, &free_bytes, err);
    if (status)
        return status;
    if (device->plain)
        return reserve_plain(pool, err);
    uint64_t times = total < UINT64_C(1) << 54 ? RANGE_TIMES : 2;
    do { /* a system that is short of addresses gives fewer */
        pool->range_bytes = mf_round_up(total * times + page, page);
        status = device->table->reserve(device, pool->range_bytes, page, &pool->range, err);
        times /= 2;
    } while (status && status != MEMFIT_NO_HOST_MEMORY && times > 1);
    if (status)
        pool->range_bytes = 0;
    return status;
}

static void end(memfit_pool *pool, bool joined)
{
    if (pool->have_key)
        pthread_key_delete(pool->key);
    mf_explain_end(pool);
    mf_trace_file_end(pool);
    if (pool->lane_count)
        mf_lanes_end(pool);
    mf_pages_end(pool);
    uint64_t range = pool->range_bytes ? pool->range_bytes - (pool->device->plain ? pool->options.page_bytes : 0) : 0;
    if (range && pool->device->table->unreserve(pool->device, pool->range, range, NULL))
        pool->device->table->unreserve(pool->device, pool->range, range, NULL);
    if (joined)
        leave_device(pool);
    mf_caches_end(pool);
    mf_ledger_end(pool);
    for (uint64_t i = 0; pool->leaf && i <= pool->range_bytes >> MF_LEAF_SHIFT; i++)
        mf_host_free(pool->host, atomic_load(&pool->leaf[i]), MF_LEAF_CELLS * sizeof(uintptr_t));
    mf_host_free(pool->host, pool->leaf, ((size_t)(pool->range_bytes >> MF_LEAF_SHIFT) + 1) * sizeof *pool->leaf);
    mf_host_free(pool->host, pool->table, pool->table_size * sizeof *pool->table);
    mf_arena_destroy(&pool->arena);
    pthread_mutex_destroy(&pool->lock);
}

static memfit_status begin(memfit_pool *pool, bool *joined, memfit_error *err)
{
    memfit_status status = join_device(pool, err);
    if (status)
        return status;
    *joined = true;
    status = reserve_range(pool, err);
    if (!status)
        status = mf_lanes_init(pool, err);
    if (!status && (!mf_blocks_init(pool) || !mf_pages_init(pool)))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory", pool->name);
    if (!status)
        status = mf_ledger_init(pool, err);
    if (!status)
        status = mf_explain_init(pool, err);
    if (status)
        return status;
    if (!pool->options.no_thread_caches && !pool->debug && !pthread_key_create(&pool->key, mf_cache_detach)) {
        pool->have_key = true;
        atomic_store(&pool->cached, true);
    }
    if (pool->policy == MEMFIT_POLICY_PREALLOCATE) {
        status = mf_pages_fill(pool, err);
        while (status == MEMFIT_OUT_OF_MEMORY && !pool->options.limit_bytes) {
            /* nobody asked for this much: take what is really there */
            uint64_t less = pool->limit_bytes / 64 + pool->pages.bytes;
            if (pool->limit_bytes <= less + mf_fixed_bytes(pool) + pool->pages.bytes)
                break;
            pool->limit_bytes -= less;
            status = mf_pages_fill(pool, err);
        }
    }
    return status;
}

memfit_status memfit_pool_create(memfit_device *device, const memfit_pool_options *given, memfit_pool **out,
                                 memfit_error *err)
{
    if (!device || !out)
        return mf_fail(err, MEMFIT_INVALID, "pool: %s is NULL", device ? "the place for the result" : "the device");
    memfit_pool_options options;
    memfit_status status = mf_settings_take(device, given, &options, err);
    if (status)
        return status;
    memfit_pool *pool = new_shell(device);
    if (!pool)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no host memory");
    if (pthread_mutex_init(&pool->lock, NULL)) {
        mf_host_free(device->host, pool, sizeof *pool);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no lock to be had");
    }
    pool->device = device;
    pool->options = options;
    pool->host = options.host ? options.host : device->host;
    mf_arena_init(&pool->arena, pool->host);
    snprintf(pool->name, sizeof pool->name, "%s", options.name ? options.name : "pool");
    pool->options.name = pool->name;
    pool->policy = device->plain ? MEMFIT_POLICY_PREALLOCATE : options.policy;
    pool->soft_limit_bytes = options.soft_limit_bytes;
    pool->purge_us = options.purge_ms > UINT64_MAX / 2000 ? UINT64_MAX : options.purge_ms * 1000;
    pool->debug = options.debug;
    pool->span_bytes = options.page_bytes < UINT64_C(2) << 20 ? options.page_bytes : UINT64_C(2) << 20;
    mf_classes_init(pool);
    bool joined = false;
    status = begin(pool, &joined, err);
    if (status) {
        end(pool, joined);
        mf_host_free(device->host, pool, sizeof *pool);
        return status;
    }
    atomic_store(&pool->magic, MF_POOL_ALIVE);
    status = mf_trace_file_begin(pool, err);
    if (status)
        memfit_pool_destroy(pool);
    else
        *out = pool;
    return status;
}

void memfit_pool_destroy(memfit_pool *pool)
{
    if (!pool || atomic_load(&pool->magic) != MF_POOL_ALIVE)
        return;
    pthread_mutex_lock(&pool->lock);
    mf_ledger_report_leaks(pool);
    atomic_store(&pool->magic, MF_POOL_DEAD);
    pthread_mutex_unlock(&pool->lock);
    mf_device *device = pool->device;
    end(pool, true);
    bury(device, pool);
}

memfit_device *mf_pool_device(memfit_pool *pool)
{
    return pool->device;
}

void mf_pool_set_hook(memfit_pool *pool, mf_pool_hook hook, void *ctx)
{
    pool->hook = hook;
    pool->hook_ctx = ctx;
}

/* ---- a thread's part of the ledger ---------------------------------------------------------------------------- */

/* Only the cache's thread changes it, under the cache's lock; others read it without. */
static inline int64_t tally_add(mf_tally *t, uint64_t bytes)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed) + (int64_t)bytes;
    atomic_store_explicit(&t->now, now, memory_order_relaxed);
    if (now > atomic_load_explicit(&t->top, memory_order_relaxed))
        atomic_store_explicit(&t->top, now, memory_order_relaxed);
    uint64_t n = atomic_load_explicit(&t->allocations, memory_order_relaxed);
    atomic_store_explicit(&t->allocations, n + 1, memory_order_relaxed);
    return now;
}

static inline int64_t tally_sub(mf_tally *t, uint64_t bytes)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed) - (int64_t)bytes;
    atomic_store_explicit(&t->now, now, memory_order_relaxed);
    uint64_t n = atomic_load_explicit(&t->frees, memory_order_relaxed);
    atomic_store_explicit(&t->frees, n + 1, memory_order_relaxed);
    return now;
}

static inline bool drifted(int64_t now)
{
    return now > DRIFT || now < -DRIFT;
}

static void fold_drift(memfit_pool *pool, mf_cache *cache, uint32_t owner)
{
    pthread_mutex_lock(&pool->lock);
    mf_cache_lock(cache);
    mf_ledger_fold_one(pool, cache, owner);
    mf_cache_unlock(cache);
    pthread_mutex_unlock(&pool->lock);
}

/* Before the pool's own accounts of an owner change: what this thread did before must be in them. */
static void fold_mine(memfit_pool *pool, uint32_t owner)
{
    mf_cache *cache = pool->have_key ? pthread_getspecific(pool->key) : NULL;
    if (!cache)
        return;
    mf_cache_lock(cache);
    mf_ledger_fold_one(pool, cache, owner);
    mf_cache_unlock(cache);
}

static inline uint64_t slot_word(const memfit_pool *pool, uint32_t owner, uint64_t asked)
{
    uint64_t mark = atomic_load_explicit(&pool->marks, memory_order_relaxed);
    if (mark > MF_SLOT_MARK_MOST)
        mark = MF_SLOT_MARK_MOST;
    return MF_SLOT_LIVE | mark << MF_SLOT_MARK_SHIFT | (uint64_t)owner << 17 | asked;
}

static inline memfit_address slot_address(const memfit_pool *pool, mf_slot_ref ref)
{
    return pool->range + ref.slab->start + (uint64_t)ref.index * ref.slab->slot_bytes;
}

/* ---- allocating --------------------------------------------------------------------------------------------- */

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
    mf_cache *cache = pool->have_key && atomic_load(&pool->cached) ? pthread_getspecific(pool->key) : NULL;
    if (!cache)
        return;
    mf_cache_lock(cache);
    mf_magazine *m = &cache->magazine[size_class];
    mf_slot_ref ref;
    while (m->count < m->most / 2 && pool->lane[0]->partial[size_class] &&
           mf_slab_take(pool, size_class, 0, false, &ref, NULL))
        m->item[m->count++] = ref;
    mf_cache_unlock(cache);
}

static bool attempt_small(memfit_pool *pool, const mf_request *r, unsigned size_class, unsigned lane, bool grow_soft,
                          memfit_address *out, memfit_error *err)
{
    mf_slot_ref ref;
    if (!mf_slab_take(pool, size_class, lane, grow_soft, &ref, err))
        return false;
    atomic_store_explicit(&ref.slab->slot[ref.index], slot_word(pool, r->owner, r->bytes), memory_order_relaxed);
    *out = slot_address(pool, ref);
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
    block->asked = r->bytes;
    block->mark = atomic_load_explicit(&pool->marks, memory_order_relaxed);
    block->owner = (uint16_t)r->owner;
    block->lane = (uint8_t)lane;
    mf_table_add(pool, block);
    pool->block_bytes += block->bytes;
    *out = pool->range + block->start;
    return true;
}

static bool attempt(memfit_pool *pool, const mf_request *r, unsigned lane, bool grow_soft, memfit_address *out,
                    memfit_error *err)
{
    uint64_t bytes = r->bytes + (pool->debug ? GUARD : 0);
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
        default:
            *grow_soft = true;
            ++*step;
            return *step < 20 && pool->pressure_count && mf_pressure_call(pool, wanted, true);
        }
    }
}

static void now_and_then(memfit_pool *pool)
{
    if (++pool->central_calls % POLL_EVERY)
        return;
    if (pool->multi)
        mf_lanes_poll(pool, false);
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
            if (pool->refusal == MF_REFUSED_NOT)
                mf_pressure_call(pool, pool->refused_pages * pool->pages.bytes, false);
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
    device->table->fill(device, address, POISON_NEW, r->bytes, r->stream, NULL);
    device->table->fill(device, address + r->bytes, GUARD_BYTE, GUARD, r->stream, NULL);
}

static memfit_status alloc_central(memfit_pool *pool, const mf_request *r, memfit_address *address, memfit_error *err)
{
    pthread_mutex_lock(&pool->lock);
    unsigned lane;
    memfit_address found;
    memfit_status status = mf_lane_of(pool, r->stream, &lane, err);
    if (!status && !search(pool, r, lane, &found, err)) {
        pool->failures++;
        status = mf_pool_explain_failure(pool, r, err);
        if (pool->hook)
            pool->hook(pool->hook_ctx, &(mf_pool_event){MF_POOL_FAIL, r->owner, r->stream, 0, r->bytes});
    }
    if (!status) {
        fold_mine(pool, r->owner);
        mf_ledger_add(pool, r->owner, r->bytes);
        *address = found;
        if (pool->debug)
            poison(pool, r, found);
        now_and_then(pool);
        if (pool->hook)
            pool->hook(pool->hook_ctx, &(mf_pool_event){MF_POOL_ALLOC, r->owner, r->stream, found, r->bytes});
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* From this thread's magazine. False: the long way. */
static inline bool alloc_cached(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_stream stream,
                                memfit_address *address)
{
    if (bytes > MF_SMALL_MOST || !atomic_load_explicit(&pool->cached, memory_order_relaxed) ||
        stream != atomic_load_explicit(&pool->home, memory_order_relaxed))
        return false;
    mf_cache *cache = mf_cache_get(pool);
    if (!cache)
        return false;
    mf_magazine *m = &cache->magazine[pool->class_of[(bytes + MF_UNIT - 1 + !bytes) / MF_UNIT]];
    mf_cache_lock(cache);
    if (!m->count || owner >= cache->owner_capacity) {
        mf_cache_unlock(cache);
        return false;
    }
    mf_slot_ref ref = m->item[--m->count];
    atomic_store_explicit(&ref.slab->slot[ref.index], slot_word(pool, owner, bytes), memory_order_relaxed);
    int64_t drift = tally_add(&cache->owner[owner], bytes);
    tally_add(&cache->kind[mf_owner_at(pool, owner)->kind], bytes);
    tally_add(&cache->total, bytes);
    mf_cache_unlock(cache);
    *address = slot_address(pool, ref);
    if (drifted(drift))
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
    if (bytes <= MF_SMALL_MOST)
        meet_owner(pool, owner);
    mf_request request = {bytes, alignment, owner, stream};
    return alloc_central(pool, &request, address, err);
}

memfit_status memfit_pool_alloc(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_address *address,
                                memfit_error *err)
{
    return memfit_pool_alloc_on(pool, bytes, 0, owner, 0, address, err);
}

/* ---- freeing ------------------------------------------------------------------------------------------------ */

/* The slot an address is the beginning of; false: none. */
static inline bool slot_at(const memfit_pool *pool, uintptr_t cell, uint64_t offset, mf_slot_ref *ref)
{
    (void)pool;
    mf_slab *slab = (mf_slab *)(cell & ~(uintptr_t)1);
    uint64_t inside = offset - slab->start;
    uint32_t index = mf_slab_index(slab, inside);
    *ref = (mf_slot_ref){slab, index};
    return index < slab->slots && (uint64_t)index * slab->slot_bytes == inside;
}

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
    memfit_block_info block;
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
    unsigned char guard[GUARD];
    if (!pool->debug || device->hollow)
        return MEMFIT_OK;
    memfit_status status = device->table->copy_out(device, guard, address + asked, GUARD, stream, err);
    if (!status)
        status = device->table->stream_sync(device, stream, err);
    device->table->fill(device, address, POISON_OLD, asked, stream, NULL);
    for (unsigned i = 0; i < GUARD && !status; i++)
        if (guard[i] != GUARD_BYTE)
            return mf_fail(
                err, MEMFIT_MISUSE,
                "pool %s: byte %u behind the block at %#llx (%llu bytes, owner %s) was overwritten\nThe block "
                "is freed all the same",
                pool->name, i, (unsigned long long)address, (unsigned long long)asked, mf_owner_at(pool, owner)->name);
    return status;
}

static memfit_status free_slot(memfit_pool *pool, mf_slot_ref ref, uint64_t word, unsigned lane, memfit_error *err)
{
    if (lane && ref.slab->lane != lane) {
        memfit_status status = mf_lane_wait_slot(pool, lane, ref, err);
        if (status)
            return status;
        pool->lane[lane]->serial++;
        pool->lane[lane]->slot_waits[pool->lane[lane]->slot_wait_count - 1].serial = pool->lane[lane]->serial;
    }
    atomic_store_explicit(&ref.slab->slot[ref.index], 0, memory_order_relaxed);
    uint32_t owner = MF_SLOT_OWNER(word);
    fold_mine(pool, owner);
    mf_ledger_sub(pool, owner, MF_SLOT_ASKED(word));
    if (!lane || ref.slab->lane == lane) {
        if (lane)
            pool->lane[lane]->serial++;
        mf_slab_give(pool, ref);
    }
    return MEMFIT_OK;
}

static void free_block(memfit_pool *pool, mf_block *block, unsigned lane)
{
    mf_table_remove(pool, block);
    fold_mine(pool, block->owner);
    mf_ledger_sub(pool, block->owner, block->asked);
    pool->block_bytes -= block->bytes;
    mf_block_drop(pool, block, lane, lane ? ++pool->lane[lane]->serial : 0);
}

/* Frees the half of this thread's full magazine, so that the next frees are quick again. */
static void spill(memfit_pool *pool, unsigned size_class)
{
    mf_cache *cache = pool->have_key && atomic_load(&pool->cached) ? pthread_getspecific(pool->key) : NULL;
    if (!cache)
        return;
    mf_cache_lock(cache);
    mf_magazine *m = &cache->magazine[size_class];
    if (m->count == m->most)
        while (m->count > m->most / 2)
            mf_slab_give(pool, m->item[--m->count]);
    mf_cache_unlock(cache);
}

static memfit_status free_central(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    uint64_t offset = address - pool->range;
    if (offset >= pool->range_bytes)
        return not_mine(pool, address, err);
    pthread_mutex_lock(&pool->lock);
    uintptr_t cell = mf_cell_load(pool, offset);
    mf_block *block = NULL;
    mf_slot_ref ref = {0};
    uint64_t word = 0, asked = 0;
    uint32_t owner = 0;
    unsigned lane = 0;
    bool found = false;
    if (cell & 1) {
        found = slot_at(pool, cell, offset, &ref);
        word = found ? atomic_load_explicit(&ref.slab->slot[ref.index], memory_order_relaxed) : 0;
        found = word & MF_SLOT_LIVE;
        owner = MF_SLOT_OWNER(word);
        asked = MF_SLOT_ASKED(word);
    } else if ((block = mf_table_find(pool, offset))) {
        found = true;
        owner = block->owner;
        asked = block->asked;
    }
    memfit_status status = found ? mf_lane_of(pool, stream, &lane, err) : no_block(pool, address, err);
    memfit_status guard = status ? MEMFIT_OK : check_guard(pool, address, asked, owner, stream, err);
    if (!status && (cell & 1)) {
        spill(pool, ref.slab->size_class);
        status = free_slot(pool, ref, word, lane, err);
    } else if (!status) {
        free_block(pool, block, lane);
    }
    if (!status) {
        if (pool->pages.reserved > mf_pages_limit(pool)) /* the limit was lowered below use */
            mf_pages_trim(pool, mf_pages_limit(pool));
        now_and_then(pool);
        if (pool->hook)
            pool->hook(pool->hook_ctx, &(mf_pool_event){MF_POOL_FREE, owner, stream, address, asked});
    }
    pthread_mutex_unlock(&pool->lock);
    return status ? status : guard;
}

static inline bool free_cached(memfit_pool *pool, memfit_address address, memfit_stream stream)
{
    uint64_t offset = address - pool->range;
    if (offset >= pool->range_bytes || !atomic_load_explicit(&pool->cached, memory_order_relaxed) ||
        stream != atomic_load_explicit(&pool->home, memory_order_relaxed))
        return false;
    uintptr_t cell = mf_cell_load(pool, offset);
    mf_slot_ref ref;
    if (!(cell & 1) || !slot_at(pool, cell, offset, &ref))
        return false;
    mf_cache *cache = mf_cache_get(pool);
    if (!cache)
        return false;
    mf_cache_lock(cache);
    mf_magazine *m = &cache->magazine[ref.slab->size_class];
    uint64_t word = atomic_load_explicit(&ref.slab->slot[ref.index], memory_order_relaxed);
    uint32_t owner = MF_SLOT_OWNER(word);
    uint64_t asked = MF_SLOT_ASKED(word);
    if (!(word & MF_SLOT_LIVE) || m->count == m->most || owner >= cache->owner_capacity ||
        !atomic_load_explicit(&pool->cached, memory_order_relaxed)) {
        mf_cache_unlock(cache);
        return false;
    }
    atomic_store_explicit(&ref.slab->slot[ref.index], 0, memory_order_relaxed);
    m->item[m->count++] = ref;
    int64_t drift = tally_sub(&cache->owner[owner], asked);
    tally_sub(&cache->kind[mf_owner_at(pool, owner)->kind], asked);
    tally_sub(&cache->total, asked);
    if (pool->hook) /* before anyone can have the slot again */
        pool->hook(pool->hook_ctx, &(mf_pool_event){MF_POOL_FREE, owner, stream, address, asked});
    mf_cache_unlock(cache);
    if (drifted(drift))
        fold_drift(pool, cache, owner);
    return true;
}

memfit_status memfit_pool_free_on(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    if (!pool || atomic_load_explicit(&pool->magic, memory_order_acquire) != MF_POOL_ALIVE)
        return mf_pool_no_pool(pool, err);
    if (free_cached(pool, address, stream))
        return MEMFIT_OK;
    return free_central(pool, address, stream, err);
}

memfit_status memfit_pool_free(memfit_pool *pool, memfit_address address, memfit_error *err)
{
    return memfit_pool_free_on(pool, address, 0, err);
}
