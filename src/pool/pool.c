/*
 * pool.c: making and ending a pool. The two calls everything is for are in hot.c (what takes no lock), request.c and
 * release.c (what does).
 *
 * Destroyed pools leave their shell behind (16 of them a device), so that using one is told, not undefined.
 */
#include "pool/state.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

enum { SHELLS_KEPT = 16, RANGE_TIMES = 16 };

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
    if (!status)
        status = mf_soft_limit_sane(pool, pool->policy, pool->soft_limit_bytes, err);
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
    mf_pages_end(pool);
    if (pool->lane_count)
        mf_lanes_end(pool);
    mf_fence_end(pool);
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
    mf_tables_end(pool);
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
    mf_caches_init(pool);
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
    atomic_store(&pool->pass, 0);
    pthread_mutex_unlock(&pool->lock);
    mf_device *device = pool->device;
    end(pool, true);
    bury(device, pool);
}

void mf_pool_set_hook(memfit_pool *pool, mf_pool_hook hook, void *ctx)
{
    pool->hook = hook;
    pool->hook_ctx = ctx;
}
