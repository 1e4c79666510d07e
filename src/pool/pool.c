/*
 * pool.c: making and ending a pool. The two calls everything is for are in hot.c (what takes no lock), request.c and
 * release.c (what does).
 *
 * A pool is shown to others when it is whole, and hidden before anything of it goes.
 *
 * Destroyed pools leave their shell behind (16 of them a device), so that using one is told, not undefined; and so that a
 * thread that ends at that moment, and wants to give its cache back, finds that there is nobody to take it.
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
#include "base/os.h"

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
    if (!atomic_load(&pool->magic) && pool->born == MF_POOL_ALIVE)
        return mf_fail(
            err, MEMFIT_MISUSE,
            "pool: made before fork, and it stays with the parent\nOpen a device and make a pool in the child");
    return mf_fail(err, MEMFIT_MISUSE, "pool: this is no pool");
}

/* A shell begins at a page, and its first page, with what every call looks at first, is empty in a child of fork: there
 * the pool is gone, without any call having run. */
static size_t shell_bytes(void)
{
    return sizeof(memfit_pool) + 2 * mf_os_page_bytes();
}

static memfit_pool *make_shell(mf_device *device)
{
    size_t page = mf_os_page_bytes();
    void *memory = mf_host_zalloc(device->host, shell_bytes());
    if (!memory)
        return NULL;
    memfit_pool *pool = (memfit_pool *)(((uintptr_t)memory + page - 1) & ~(uintptr_t)(page - 1));
    pool->shell_memory = memory;
    mf_os_empty_in_child(pool, page, true);
    return pool;
}

static void free_shell(mf_device *device, memfit_pool *pool)
{
    mf_caches_end(pool, device->host);
    mf_os_empty_in_child(pool, mf_os_page_bytes(), false);
    mf_host_free(device->host, pool->shell_memory, shell_bytes());
}

static void free_shells(mf_device *device)
{
    while (device->dead_pools) {
        memfit_pool *pool = device->dead_pools;
        device->dead_pools = pool->next;
        pthread_mutex_destroy(&pool->lock);
        free_shell(device, pool);
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
        return make_shell(device);
    mf_caches_end(pool, device->host);
    pthread_mutex_destroy(&pool->lock);
    void *memory = pool->shell_memory;
    memset(pool, 0, sizeof *pool);
    pool->shell_memory = memory;
    return pool;
}

static void bury(mf_device *device, memfit_pool *pool)
{
    pthread_mutex_lock(&device->lock);
    pool->next = device->dead_pools;
    device->dead_pools = pool;
    pthread_mutex_unlock(&device->lock);
}

/* Decides who pays the fixed cost, sets the limit and a slice's share aside. Nobody sees the pool yet. */
static memfit_status join_device(memfit_pool *pool, memfit_error *err)
{
    mf_device *device = pool->device;
    uint64_t total, free_bytes;
    memfit_status status = device->table->memory(device, &total, &free_bytes, err);
    if (status)
        return status;
    pthread_mutex_lock(&device->lock);
    uint64_t fixed = device->fixed_bytes;
    bool pays = !device->payer;
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
        device->pool_count++;
        if (pays)
            device->payer = pool;
        if (pool->options.slice) {
            pool->share_bytes = share;
            atomic_fetch_add(&device->budget.slices_bytes, share);
        }
    }
    pthread_mutex_unlock(&device->lock);
    return status;
}

/* Adds the pool, now whole, to the device's list: other pools may ask it for memory from here on. */
static void show(memfit_pool *pool)
{
    mf_device *device = pool->device;
    pthread_mutex_lock(&device->lock);
    memfit_pool **last = &device->pools;
    while (*last) {
        pool->previous = *last;
        last = &(*last)->next;
    }
    *last = pool;
    pool->shown = true;
    pthread_mutex_unlock(&device->lock);
}

/* Takes it from the list, before anything of it goes. Who looks at listed pools holds the device's lock all the while,
 * so nobody does any more when this returns. */
static void hide(memfit_pool *pool)
{
    mf_device *device = pool->device;
    pthread_mutex_lock(&device->lock);
    if (pool->shown && pool->previous)
        pool->previous->next = pool->next;
    else if (pool->shown)
        device->pools = pool->next;
    if (pool->shown && pool->next)
        pool->next->previous = pool->previous;
    pool->shown = false;
    pool->next = pool->previous = NULL;
    pthread_mutex_unlock(&device->lock);
}

static void leave_device(memfit_pool *pool)
{
    mf_device *device = pool->device;
    pthread_mutex_lock(&device->lock);
    device->pool_count--;
    mf_budget_give(&device->budget, pool->share_bytes);
    atomic_fetch_sub(&device->budget.slices_bytes, pool->share_bytes);
    memfit_pool *heir = device->pools; /* the oldest that is left pays from now on, if it is no slice */
    while (heir && heir->options.slice)
        heir = heir->next;
    if (device->payer == pool) {
        device->payer = heir;
        if (heir)
            heir->pays_fixed = true;
    }
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
    mf_repeat_end(pool);
    mf_pages_end(pool);
    if (pool->lane_count)
        mf_lanes_end(pool);
    mf_fence_end(pool);
    uint64_t range = pool->range_bytes ? pool->range_bytes - (pool->device->plain ? pool->options.page_bytes : 0) : 0;
    if (range && pool->device->table->unreserve(pool->device, pool->range, range, NULL))
        pool->device->table->unreserve(pool->device, pool->range, range, NULL);
    if (joined)
        leave_device(pool);
    mf_ledger_end(pool);
    for (uint64_t i = 0; pool->leaf && i <= pool->range_bytes >> MF_LEAF_SHIFT; i++)
        mf_host_free(pool->host, atomic_load(&pool->leaf[i]), MF_LEAF_CELLS * sizeof(uintptr_t));
    mf_host_free(pool->host, pool->leaf, ((size_t)(pool->range_bytes >> MF_LEAF_SHIFT) + 1) * sizeof *pool->leaf);
    mf_tables_end(pool);
    mf_arena_destroy(&pool->arena);
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
    if (mf_device_of_parent(device))
        return mf_fail(
            err, MEMFIT_MISUSE,
            "pool: the device %s was opened before fork, and stays with the parent\nOpen a device in the child",
            device->opened_as);
    memfit_pool_options options;
    memfit_status status = mf_settings_take(device, given, &options, err);
    if (status)
        return status;
    memfit_pool *pool = new_shell(device);
    if (!pool)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no host memory");
    if (pthread_mutex_init(&pool->lock, NULL)) {
        free_shell(device, pool);
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
        pthread_mutex_destroy(&pool->lock);
        free_shell(device, pool);
        return status;
    }
    pool->born = MF_POOL_ALIVE;
    atomic_store(&pool->magic, MF_POOL_ALIVE);
    status = mf_trace_file_begin(pool, err);
    if (status) {
        memfit_pool_destroy(pool);
        return status;
    }
    show(pool);
    *out = pool;
    return MEMFIT_OK;
}

void memfit_pool_destroy(memfit_pool *pool)
{
    if (!pool || atomic_load(&pool->magic) != MF_POOL_ALIVE)
        return;
    mf_device *device = pool->device;
    hide(pool);
    mf_ledger_report_leaks(pool);
    pthread_mutex_lock(&pool->lock);
    pool->born = MF_POOL_DEAD;
    atomic_store(&pool->magic, MF_POOL_DEAD);
    atomic_store(&pool->pass, 0);
    pthread_mutex_unlock(&pool->lock);
    end(pool, true);
    mf_caches_drop_idle(pool);
    bury(device, pool);
}
