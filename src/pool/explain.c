/*
 * explain.c: what happens when a request has failed: the survey, the cause, the actions, the error.
 *
 * Called with the pool's lock held, after everything the pool itself can do was done: caches reclaimed, streams polled
 * and waited for, pressure functions called, idle pages moved. Works in memory taken when the pool was created; the
 * last explanation stays there for memfit_pool_explain. Other pools' numbers are read only if their locks are free.
 */
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/explain.h"
#include "pool/ledger.h"
#include "pool/pages.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

memfit_status mf_explain_init(memfit_pool *pool, memfit_error *err)
{
    pool->explain = mf_host_zalloc(pool->host, sizeof(mf_explain));
    if (!pool->explain)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for what explains failures", pool->name);
    pool->host_bytes += sizeof(mf_explain);
    return MEMFIT_OK;
}

void mf_explain_end(memfit_pool *pool)
{
    mf_host_free(pool->host, pool->explain, sizeof(mf_explain));
    pool->explain = NULL;
}

/* ---- facts ------------------------------------------------------------------------------------------------ */

static void copy_text(char *to, size_t room, const char *from)
{
    mf_utf8_copy(to, room, from);
}

/* Has the lane's stream something still to do? A graph's memory waits for ever. */
static bool is_behind(memfit_pool *pool, mf_lane *lane)
{
    if (!lane->used || lane->graph)
        return lane->used && lane->pending_bytes;
    mf_clock_record(pool, &lane->clock);
    mf_clock_look(pool, &lane->clock);
    return lane->clock.safe < lane->clock.serial;
}

/* What the request comes down to: a block; a small one, too, takes a block when there is no slot for it. */
static void read_request(memfit_pool *pool, mf_explain *ex, const mf_request *request)
{
    ex->request = *request;
    uint64_t bytes = request->bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 : request->bytes;
    ex->need_bytes = mf_round_up(bytes + (pool->debug ? MF_UNIT : 0), MF_UNIT);
    if (ex->need_bytes < MF_SMALL_MOST)
        ex->need_bytes = MF_SMALL_MOST;
    ex->need_alignment = request->alignment > MF_UNIT ? request->alignment : MF_UNIT;
    ex->lane = 0;
    for (unsigned i = 1; pool->multi && i < pool->lane_count; i++)
        if (pool->lane[i]->used && !pool->lane[i]->graph && pool->lane[i]->clock.stream == request->stream)
            ex->lane = i;
    ex->behind = 0;
    for (unsigned i = 1; i < pool->lane_count; i++)
        ex->behind |= (uint64_t)is_behind(pool, pool->lane[i]) << i;
}

static void read_other_pools(memfit_pool *pool, mf_explain *ex)
{
    memfit_explanation *e = &ex->last;
    if (pthread_mutex_trylock(&pool->device->lock))
        return;
    for (memfit_pool *other = pool->device->pools; other; other = other->next) {
        if (other == pool || pthread_mutex_trylock(&other->lock))
            continue;
        mf_caches_reclaim(other); /* as a request does before it takes from another pool */
        uint64_t reserved = other->pages.reserved * other->pages.bytes;
        uint64_t room = mf_limit_room(other, other->limit_bytes);
        e->other_pools_bytes += reserved;
        if (other->options.slice && room > reserved)
            e->set_aside_bytes += room - reserved;
        uint64_t held = reserved - mf_pages_idle(other) * other->pages.bytes;
        uint64_t lost = held > other->total.now ? held - other->total.now : 0;
        ex->rounding += lost;
        ex->rounding_shared += other->options.slice ? 0 : lost;
        /* These the pool takes itself when it grows. */
        if (!other->options.slice && other->policy == MEMFIT_POLICY_GROWTH && pool->policy == MEMFIT_POLICY_GROWTH)
            ex->free_bytes += mf_pages_idle(other) * other->pages.bytes;
        pthread_mutex_unlock(&other->lock);
    }
    pthread_mutex_unlock(&pool->device->lock);
}

static void read_device(memfit_pool *pool, mf_explain *ex)
{
    memfit_explanation *e = &ex->last;
    mf_device *device = pool->device;
    uint64_t page = pool->pages.bytes, total = 0, free_bytes = 0;
    if (device->table->memory(device, &total, &free_bytes, NULL))
        total = free_bytes = 0;
    e->device_bytes = total;
    e->device_free_bytes = free_bytes;
    copy_text(e->device, sizeof e->device, device->opened_as[0] ? device->opened_as : device->name);
    ex->free_bytes = free_bytes;
    ex->rounding = ex->rounding_shared = 0;
    read_other_pools(pool, ex);
    uint64_t ours = pool->pages.reserved * page + e->other_pools_bytes +
                    atomic_load_explicit(&device->fixed_bytes, memory_order_relaxed);
    e->others_bytes = total > free_bytes + ours ? total - free_bytes - ours : 0;
    uint64_t bytes = 0;
    if (e->others_bytes >= page && device->table->others &&
        device->table->others(device, &e->other_process, &bytes, 1) == 0)
        e->other_process[0] = 0;
    uint64_t room = atomic_load_explicit(&device->budget.room_bytes, memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&device->budget.taken_bytes, memory_order_relaxed);
    ex->aside_bytes = room == UINT64_MAX ? UINT64_MAX / 2 : room > taken ? room - taken : 0;
    taken -= ex->free_bytes - free_bytes < taken ? ex->free_bytes - free_bytes : taken;
    ex->budget_room = room == UINT64_MAX ? MF_BEYOND : room > taken ? (room - taken) / page : 0;
    ex->device_total = total / page;
    ex->device_free = ex->free_bytes / page;
}

static void read_pool(memfit_pool *pool, mf_explain *ex)
{
    memfit_explanation *e = &ex->last;
    uint64_t page = pool->pages.bytes;
    memcpy(e->pool, pool->name, sizeof e->pool);
    e->policy = pool->policy;
    e->page_bytes = page;
    e->limit_bytes = pool->limit_bytes;
    e->fixed_bytes = mf_fixed_bytes(pool);
    e->in_use_bytes = pool->total.now;
    e->reserved_bytes = pool->pages.reserved * page;
    e->live_pages_bytes = ex->now.live_pages * page;
    e->idle_bytes = mf_pages_idle(pool) * page;
    e->pending_bytes = (ex->now.used_pages - ex->now.live_pages) * page;
    e->pinned_bytes =
        e->live_pages_bytes - (ex->now.taken_bytes < e->live_pages_bytes ? ex->now.taken_bytes : e->live_pages_bytes);
    e->small_pages_bytes = ex->now.small_pages * page;
    e->small_live_bytes = ex->now.small_live_bytes;
    e->largest_hole_bytes = ex->now.largest_hole;
    e->available_bytes = ex->now.fit_bytes;
    e->needed_bytes = ex->now.place_pages == MF_BEYOND ? 0 : ex->now.place_pages * page;
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        e->kind_bytes[k] = pool->kind[k].now;
    e->owners_in_all = ex->now.owners;
    for (unsigned i = 0; i < ex->now.top_count && i < MEMFIT_EXPLANATION_OWNERS; i++) {
        const mf_owner *owner = mf_owner_at(pool, ex->now.top[i].owner);
        memfit_owner_info *info = &e->owners[e->owner_count++];
        info->owner = ex->now.top[i].owner;
        info->kind = owner->kind;
        memcpy(info->name, owner->name, sizeof info->name);
        info->bytes = owner->account.now;
        info->peak_bytes = owner->account.peak;
        info->allocations = owner->account.allocations;
        info->blocks = owner->account.allocations - owner->account.frees;
        info->grown_marks = owner->grown;
    }
}

static void read_asker(memfit_pool *pool, mf_explain *ex)
{
    memfit_explanation *e = &ex->last;
    e->request_bytes = ex->request.bytes;
    e->request_alignment = ex->request.alignment;
    e->request_owner = ex->request.owner;
    e->request_stream = ex->request.stream;
    if (ex->request.owner < atomic_load_explicit(&pool->owner_count, memory_order_acquire)) {
        const mf_owner *owner = mf_owner_at(pool, ex->request.owner);
        e->request_kind = owner->kind;
        memcpy(e->request_name, owner->name, sizeof e->request_name);
    }
}

static void make_base(memfit_pool *pool, mf_explain *ex)
{
    mf_trial *t = &ex->base;
    *t = (mf_trial){.limit = mf_pages_limit(pool),
                    .used = ex->now.used_pages,
                    .place = ex->now.place_pages,
                    .reserved = pool->pages.reserved,
                    .spare = pool->pages.spare_count,
                    .missing = ex->now.missing_pages};
    t->device = pool->options.slice || ex->budget_room > ex->device_free ? ex->device_free : ex->budget_room;
    t->stuck = pool->refusal == MF_REFUSED_STREAM;
    if (pool->refusal == MF_REFUSED_DEVICE && mf_trial_fits(t)) { /* it said it had them, and would not give them */
        uint64_t wanted = t->used + t->place;
        t->device = wanted > t->reserved ? wanted - t->reserved - 1 : 0;
        ex->device_free = t->device < ex->device_free ? t->device : ex->device_free;
    }
}

/* ---- the error -------------------------------------------------------------------------------------------- */

static void fill_error(const memfit_explanation *e, memfit_error *err)
{
    char asked[24], in_use[24], limit[24], action[400] = "";
    if (!err)
        return;
    if (e->action_count)
        mf_action_sentence(e, &e->actions[0], action, sizeof action);
    mf_fail(err, MEMFIT_OUT_OF_MEMORY, "pool %s: no %s for %s \"%s\": %s (limit %s, in use %s)\n%s", e->pool,
            memfit_size_format(e->request_bytes, asked, sizeof asked), memfit_kind_name(e->request_kind),
            e->request_name, memfit_cause_name(e->cause), memfit_size_format(e->limit_bytes, limit, sizeof limit),
            memfit_size_format(e->in_use_bytes, in_use, sizeof in_use), action);
    err->cause = e->cause;
    err->requested_bytes = e->request_bytes;
    err->limit_bytes = e->limit_bytes;
    err->in_use_bytes = e->in_use_bytes;
    err->reserved_bytes = e->reserved_bytes;
    err->largest_free_bytes = e->available_bytes;
    for (unsigned i = 0; i < e->owner_count && i < MEMFIT_ERROR_HOLDERS; i++) {
        copy_text(err->holders[i].name, sizeof err->holders[i].name, e->owners[i].name);
        err->holders[i].kind = e->owners[i].kind;
        err->holders[i].bytes = e->owners[i].bytes;
    }
}

memfit_status mf_pool_explain_failure(memfit_pool *pool, const mf_request *request, memfit_error *err)
{
    mf_explain *ex = pool->explain;
    if (pool->refusal == MF_REFUSED_HOST)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for its own records", pool->name);
    uint64_t failure = ex->last.failure + 1;
    memset(&ex->last, 0, sizeof ex->last);
    ex->last.failure = failure;
    mf_ledger_fold_all(pool);
    read_request(pool, ex, request);
    read_device(pool, ex);
    uint64_t limit = mf_pages_limit(pool), held = pool->pages.reserved - mf_pages_idle(pool);
    uint64_t room = limit > held ? limit - held : 0;
    uint64_t from_device = pool->options.slice || ex->budget_room > ex->device_free ? ex->device_free : ex->budget_room;
    if (room > mf_pages_idle(pool) + from_device)
        room = mf_pages_idle(pool) + from_device;
    mf_survey_take(pool, ex, &(mf_without){.owner = MF_NOBODY}, room, &ex->now);
    make_base(pool, ex);
    read_pool(pool, ex);
    read_asker(pool, ex);
    ex->last.cause = mf_explain_cause(pool, ex);
    mf_explain_actions(pool, ex);
    fill_error(&ex->last, err);
    if (err && pool->device->plain && ex->base.used + ex->now.place_pages <= ex->base.limit)
        snprintf(err->hint, sizeof err->hint,
                 "enough is free, but not in one range, and this driver cannot move memory (no VMM): a driver of CUDA "
                 "10.2 or newer can");
    return MEMFIT_OUT_OF_MEMORY;
}

/* ---- for the caller --------------------------------------------------------------------------------------- */

const char *memfit_action_name(memfit_action_kind kind)
{
    static const char *const names[] = {
#define X(name, text) text,
        MEMFIT_ACTION_LIST(X)
#undef X
    };
    return (unsigned)kind < MEMFIT_ACTION_COUNT ? names[kind] : "?";
}

memfit_status memfit_pool_explain(memfit_pool *pool, memfit_explanation *explanation, memfit_error *err)
{
    memfit_status status = mf_abi_check(explanation, "MEMFIT_EXPLANATION", err);
    if (!status)
        status = mf_pool_enter(pool, err);
    if (status)
        return status;
    const mf_explain *ex = pool->explain;
    if (ex->last.failure)
        mf_abi_write(explanation, &ex->last, sizeof ex->last);
    else
        status = mf_fail(err, MEMFIT_NOT_FOUND, "pool %s: no request has failed", pool->name);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

memfit_status memfit_pool_each_survivor(memfit_pool *pool, bool (*fn)(void *ctx, const memfit_block_info *block),
                                        void *ctx, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_survey_each_survivor(pool, pool->explain, fn, ctx);
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}
