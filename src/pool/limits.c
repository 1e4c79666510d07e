/*
 * limits.c: what can be changed while a pool is in use: limit, soft limit, policy, purge delay, slack; giving memory
 * back; the functions called when memory is short. A call that is refused leaves everything as it was.
 *
 * The limit is on physical memory and includes the device's fixed cost, which the oldest pool of a device pays. A slice
 * (a logical device) takes its whole limit out of the device's budget when it is made; other pools take each page out
 * of it as they make it. So no pool can use what was set aside for a slice, whether the slice uses it or not.
 */
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/lanes.h"
#include "pool/pages.h"

#include "base/error.h"
#include "base/text.h"

uint64_t mf_fixed_bytes(const memfit_pool *pool)
{
    return pool->pays_fixed ? atomic_load_explicit(&pool->device->fixed_bytes, memory_order_relaxed) : 0;
}

uint64_t mf_limit_room(const memfit_pool *pool, uint64_t limit_bytes)
{
    uint64_t fixed = mf_fixed_bytes(pool);
    return limit_bytes > fixed ? limit_bytes - fixed : 0;
}

/* ---- the limit ---------------------------------------------------------------------------------------------- */

memfit_status mf_limit_sane(mf_device *device, uint64_t limit_bytes, uint64_t fixed, uint64_t page, memfit_error *err)
{
    uint64_t total, free_bytes;
    memfit_status status = device->table->memory(device, &total, &free_bytes, err);
    if (status)
        return status;
    char a[24], b[24], c[24];
    memfit_size_format(limit_bytes, a, sizeof a);
    memfit_size_format(total, b, sizeof b);
    if (limit_bytes > total)
        return mf_fail(err, MEMFIT_INVALID,
                       "limit %llu bytes (%s) is above the device's memory of %s\nA limit is in bytes: was it meant in "
                       "another unit? At most %llu",
                       (unsigned long long)limit_bytes, a, b, (unsigned long long)total);
    memfit_size_format(fixed, c, sizeof c);
    memfit_size_format(page, b, sizeof b);
    if (limit_bytes < page)
        return mf_fail(err, MEMFIT_INVALID,
                       "limit %llu bytes (%s) is less than one page of %s\nA limit is in bytes: were megabytes meant? "
                       "That would be %lluMiB",
                       (unsigned long long)limit_bytes, a, b, (unsigned long long)limit_bytes);
    if (limit_bytes < fixed + page)
        return mf_fail(err, MEMFIT_OUT_OF_MEMORY,
                       "limit %s: the fixed cost of the device alone (context, libraries) is %s\nThe limit covers the "
                       "whole process: at least %llu bytes are needed",
                       a, c, (unsigned long long)(fixed + page));
    return MEMFIT_OK;
}

memfit_status mf_soft_limit_sane(const memfit_pool *pool, memfit_policy policy, uint64_t soft_limit_bytes,
                                 memfit_error *err)
{
    if (soft_limit_bytes && policy == MEMFIT_POLICY_PREALLOCATE)
        return mf_fail(err, MEMFIT_CONFLICT,
                       "pool %s: preallocate takes everything up to the limit at once, so a soft limit below it has no "
                       "meaning\nUse growth with a soft limit%s",
                       pool->name,
                       pool->device->plain ? "; on this device, whose driver cannot remap memory, there is none" : "");
    if (soft_limit_bytes > pool->limit_bytes)
        return mf_fail(err, MEMFIT_CONFLICT, "pool %s: the soft limit %llu is above the limit %llu", pool->name,
                       (unsigned long long)soft_limit_bytes, (unsigned long long)pool->limit_bytes);
    return MEMFIT_OK;
}

/* A slice's share of the device's budget follows its limit. */
static memfit_status move_slice(memfit_pool *pool, uint64_t limit_bytes, memfit_error *err)
{
    mf_budget *budget = &pool->device->budget;
    uint64_t was = pool->share_bytes, is = mf_limit_room(pool, limit_bytes);
    if (!pool->options.slice || is == was)
        return MEMFIT_OK;
    if (is < was) {
        pool->share_bytes = is;
        mf_budget_give(budget, was - is);
        atomic_fetch_sub(&budget->slices_bytes, was - is);
        return MEMFIT_OK;
    }
    if (!mf_budget_take(budget, is - was))
        return mf_fail(err, MEMFIT_CONFLICT,
                       "pool %s: %llu more bytes cannot be set aside: the other pools on this device have them",
                       pool->name, (unsigned long long)(is - was));
    pool->share_bytes = is;
    atomic_fetch_add(&budget->slices_bytes, is - was);
    return MEMFIT_OK;
}

static memfit_status with_figures(memfit_pool *pool, uint64_t limit_bytes, uint64_t lowest, memfit_error *err)
{
    if (err) {
        err->requested_bytes = limit_bytes;
        err->limit_bytes = lowest;
        err->in_use_bytes = pool->total.now;
        err->reserved_bytes = pool->pages.reserved * pool->pages.bytes;
    }
    return MEMFIT_CONFLICT;
}

static memfit_status too_low(memfit_pool *pool, uint64_t limit_bytes, uint64_t lowest, memfit_error *err)
{
    char a[24], b[24];
    mf_fail(err, MEMFIT_CONFLICT,
            "pool %s: limit %s is below what live blocks need now; the lowest possible is %s (%llu bytes)\nFree "
            "blocks first, or lower it for later requests (when_freed)",
            pool->name, memfit_size_format(limit_bytes, a, sizeof a), memfit_size_format(lowest, b, sizeof b),
            (unsigned long long)lowest);
    return with_figures(pool, limit_bytes, lowest, err);
}

/* Idle pages were there, but not all could be given back: the device refused, or a stream may still use them and is not
 * waited for. Under preallocate those that went are taken again. */
static memfit_status stuck(memfit_pool *pool, uint64_t limit_bytes, uint64_t gone, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    char a[24], b[24];
    uint64_t lowest = mf_fixed_bytes(pool) + p->reserved * p->bytes;
    if (pool->policy == MEMFIT_POLICY_PREALLOCATE && !mf_pages_fill(pool, NULL))
        gone = 0;
    memfit_size_format(limit_bytes, a, sizeof a);
    memfit_size_format(lowest, b, sizeof b);
    if (gone)
        mf_fail(
            err, MEMFIT_CONFLICT,
            "pool %s: limit %s: idle pages cannot be given back just now; %s (%llu bytes) is possible\nThe limit is "
            "as it was; %llu bytes of idle pages were given back. Try again, or use when_freed",
            pool->name, a, b, (unsigned long long)lowest, (unsigned long long)(gone * p->bytes));
    else
        mf_fail(
            err, MEMFIT_CONFLICT,
            "pool %s: limit %s: idle pages cannot be given back just now; %s (%llu bytes) is possible\nEverything is "
            "as it was. Try again, or use when_freed",
            pool->name, a, b, (unsigned long long)lowest);
    return with_figures(pool, limit_bytes, lowest, err);
}

static memfit_status lower(memfit_pool *pool, uint64_t limit_bytes, bool when_freed, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t pages = mf_limit_room(pool, limit_bytes) / p->bytes;
    if (p->reserved > pages) {
        mf_caches_reclaim(pool);
        mf_lanes_poll(pool, true);
        if (!pool->options.no_stream_wait)
            mf_lanes_wait(pool);
    }
    uint64_t held = p->reserved - mf_pages_loose(pool);
    if (held > pages && !when_freed)
        return too_low(pool, limit_bytes, mf_fixed_bytes(pool) + held * p->bytes, err);
    uint64_t gone = mf_pages_trim(pool, pages);
    if (p->reserved > pages && !when_freed)
        return stuck(pool, limit_bytes, gone, err);
    move_slice(pool, limit_bytes, NULL);
    pool->limit_bytes = limit_bytes;
    if (p->reserved > pages) { /* what is freed from now on goes back at once */
        mf_pool_decide_keeping(pool);
        mf_caches_settle(pool);
    }
    if (pool->soft_limit_bytes > limit_bytes)
        pool->soft_limit_bytes = limit_bytes;
    return MEMFIT_OK;
}

static memfit_status higher(memfit_pool *pool, uint64_t limit_bytes, memfit_error *err)
{
    uint64_t was = pool->limit_bytes;
    memfit_status status = move_slice(pool, limit_bytes, err);
    if (status)
        return status;
    pool->limit_bytes = limit_bytes;
    if (pool->policy == MEMFIT_POLICY_PREALLOCATE) {
        mf_caches_settle(pool);
        status = mf_pages_fill(pool, err);
    }
    if (status) {
        move_slice(pool, was, NULL);
        pool->limit_bytes = was;
    }
    return status;
}

/* On a device that cannot map, a pool's memory is one piece from its beginning to its end. */
static memfit_status in_one_piece(const memfit_pool *pool, const char *what, memfit_error *err)
{
    return mf_fail(
        err, MEMFIT_UNSUPPORTED,
        "pool %s: %s cannot change on this device: its driver cannot remap memory (no VMM)\nMake a new pool, "
        "or use a driver of CUDA 10.2 or newer",
        pool->name, what);
}

static memfit_status set_limit(memfit_pool *pool, uint64_t limit_bytes, bool when_freed, memfit_error *err)
{
    memfit_status status = mf_limit_sane(pool->device, limit_bytes, mf_fixed_bytes(pool), pool->pages.bytes, err);
    if (!status && pool->device->plain)
        status = in_one_piece(pool, "the limit", err);
    if (!status)
        status = limit_bytes < pool->limit_bytes ? lower(pool, limit_bytes, when_freed, err)
                                                 : higher(pool, limit_bytes, err);
    return status;
}

memfit_status memfit_pool_set_limit(memfit_pool *pool, uint64_t limit_bytes, bool when_freed, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    status = set_limit(pool, limit_bytes, when_freed, err);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_set_limit_fraction(memfit_pool *pool, double fraction, bool when_freed, memfit_error *err)
{
    uint64_t total, free_bytes;
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    status = mf_fraction_sane(fraction, err);
    if (!status)
        status = pool->device->table->memory(pool->device, &total, &free_bytes, err);
    if (!status)
        status = set_limit(pool, (uint64_t)((double)total * fraction), when_freed, err);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_set_soft_limit(memfit_pool *pool, uint64_t soft_limit_bytes, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    status = mf_soft_limit_sane(pool, pool->policy, soft_limit_bytes, err);
    if (!status)
        pool->soft_limit_bytes = soft_limit_bytes;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_set_policy(memfit_pool *pool, memfit_policy policy, memfit_error *err)
{
    if (policy != MEMFIT_POLICY_GROWTH && policy != MEMFIT_POLICY_PREALLOCATE)
        return mf_fail(err, MEMFIT_INVALID, "pool policy %d: there is no such policy", (int)policy);
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    if (policy == MEMFIT_POLICY_PREALLOCATE) {
        status = mf_soft_limit_sane(pool, policy, pool->soft_limit_bytes, err);
        if (!status)
            status = mf_pages_fill(pool, err);
    } else if (pool->device->plain) {
        status = in_one_piece(pool, "the policy", err);
    }
    if (!status && pool->policy != policy) {
        pool->policy = policy;
        pool->pages.low_idle = mf_pages_idle(pool);
        pool->pages.purge_at_us = 0;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_set_purge(memfit_pool *pool, uint64_t purge_ms, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    pool->purge_us = purge_ms > UINT64_MAX / 1000 / 2 ? UINT64_MAX : purge_ms * 1000;
    mf_caches_settle(pool);
    pool->pages.low_idle = mf_pages_idle(pool);
    pool->pages.purge_at_us = 0;
    mf_pages_purge(pool);
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

memfit_status memfit_pool_set_keep_idle(memfit_pool *pool, bool keep_idle, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    pool->options.keep_idle = keep_idle;
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

memfit_status memfit_pool_set_slack(memfit_pool *pool, double slack, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    status = mf_slack_sane(slack, err);
    if (!status)
        pool->options.slack = slack;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- giving back -------------------------------------------------------------------------------------------- */

memfit_status memfit_pool_trim(memfit_pool *pool, uint64_t keep_bytes, uint64_t *released_bytes, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    if (pool->policy == MEMFIT_POLICY_PREALLOCATE) {
        status = mf_fail(err, MEMFIT_CONFLICT,
                         "pool %s: trim under the policy preallocate\nSet the policy to growth, or lower the limit",
                         pool->name);
    } else {
        mf_caches_reclaim(pool);
        mf_lanes_poll(pool, true);
        uint64_t page = pool->pages.bytes, keep = keep_bytes / page + (keep_bytes % page != 0);
        uint64_t gone = mf_pages_trim(pool, keep);
        if (released_bytes)
            *released_bytes = gone * pool->pages.bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_poll(memfit_pool *pool, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_caches_settle(pool);
    mf_lanes_poll(pool, true);
    mf_pages_purge(pool);
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

memfit_status memfit_pool_flush_thread(memfit_pool *pool, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_cache *cache = mf_cache_mine(pool);
    if (cache) {
        mf_cache_enter(pool, cache);
        mf_cache_flush(pool, cache, NULL);
        mf_cache_leave(cache);
    }
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

/* ---- pressure ----------------------------------------------------------------------------------------------- */

memfit_status memfit_pool_on_pressure(memfit_pool *pool, memfit_pressure_fn fn, void *ctx, memfit_error *err)
{
    if (!fn)
        return mf_fail(err, MEMFIT_INVALID, "pool pressure: NULL");
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    if (pool->pressure_count == MF_PRESSURES)
        status = mf_fail(err, MEMFIT_INVALID, "pool %s: at most %d pressure functions", pool->name, MF_PRESSURES);
    else
        pool->pressure[pool->pressure_count++] = (mf_pressure){fn, ctx};
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_off_pressure(memfit_pool *pool, memfit_pressure_fn fn, void *ctx, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    unsigned i = 0;
    while (i < pool->pressure_count && (pool->pressure[i].fn != fn || pool->pressure[i].ctx != ctx))
        i++;
    if (i == pool->pressure_count)
        status = mf_fail(err, MEMFIT_INVALID, "pool %s: no such pressure function", pool->name);
    else
        for (pool->pressure_count--; i < pool->pressure_count; i++)
            pool->pressure[i] = pool->pressure[i + 1];
    pthread_mutex_unlock(&pool->lock);
    return status;
}

bool mf_pressure_call(memfit_pool *pool, uint64_t wanted, bool hard)
{
    mf_pressure list[MF_PRESSURES];
    unsigned count = pool->pressure_count;
    for (unsigned i = 0; i < count; i++)
        list[i] = pool->pressure[i];
    bool any = false;
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < count; i++)
        any |= list[i].fn(list[i].ctx, pool, wanted, hard) != 0;
    pthread_mutex_lock(&pool->lock);
    return any;
}
