/*
 * pages.c: the physical side of a pool: handles of one page or several (handles.c), mapped or spare.
 *
 *     create -> spare -> mapped -> idle -> (taken out) -> spare -> mapped elsewhere
 *                 |                                         |
 *                 +--------------- release <----------------+
 *
 * When pages are missing behind a chosen place they come, in this order, from
 *   1. spare handles;
 *   2. new ones, while the pool holds no more than its peak use (and options.slack of it): memory that is surely wanted;
 *   3. if time for moving pages is left (moves.c): idle pages elsewhere; with several streams pages in the holes of any that
 *      it is past with; pages in the asking stream's own holes;
 *   4. new ones, up to the limit;
 *   5. at the limit: idle pages elsewhere, whatever it costs.
 * So a workload that would move pages all the time grows instead until it need not, and one that moves a few now and then
 * stays small; no constant depends on the workload.
 * Before anything is done it is known whether it will suffice, the device's own refusal apart.
 *
 * Failure: a handle that could not be mapped is spare again; pages that were mapped before the failure stay, idle,
 * where they are. What is live and what is reserved is as before. If even the way back fails, the handle is put on the
 * list of the unclean, and the way back is tried again before the next mapping and at the end.
 */
#include "pool/calls.h"
#include "pool/handles.h"
#include "pool/moves.h"
#include "pool/page_bits.h"
#include "pool/pages.h"
#include "pool/repeat.h"

#include "base/error.h"

enum { MOST_PART = 10 }; /* of the bytes in use: so much more may be held when no time is left for moving pages */

bool mf_pages_init(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    p->bytes = pool->options.page_bytes;
    p->shift = (uint64_t)__builtin_ctzll(p->bytes);
    p->move_credit_us = MF_MOVE_FIRST * MF_MOVE_WINDOW / MF_MOVE_SHARE;
    p->from_seats = true;
    p->credit_at_us = mf_device_now_us(pool->device);
    mf_handles_init(p, pool->options.bulk_bytes / p->bytes);
    return true;
}

uint64_t mf_pages_idle(const memfit_pool *pool)
{
    return pool->pages.idle_count + pool->pages.spare_count;
}

uint64_t mf_pages_limit(const memfit_pool *pool)
{
    uint64_t fixed = mf_fixed_bytes(pool);
    return pool->limit_bytes > fixed ? (pool->limit_bytes - fixed) / pool->pages.bytes : 0;
}

uint64_t mf_pages_loose(const memfit_pool *pool)
{
    const mf_pages *p = &pool->pages;
    uint64_t loose = mf_pages_idle(pool);
    for (uint64_t i = 0; p->tiers > 1 && i < p->top; i++) {
        const mf_handle *h = mf_bit(p->mapped, i) ? p->handle[i] : NULL;
        if (!h || h->page != i || h->pages == 1)
            continue;
        uint64_t idle = mf_bits_count_idle(pool, i, i + h->pages);
        loose -= idle < h->pages ? idle : 0;
    }
    return loose;
}

memfit_status mf_pool_open_to(memfit_pool *pool, mf_device *other, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    if (!device->table->open_to) /* plain memory: the driver's own calls serve it */
        return MEMFIT_OK;
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    status = device->table->open_to(device, other, err);
    for (uint64_t i = 0, end; i < p->top && !status; i = end) { /* what is mapped already */
        for (end = i + 1; end < p->top && mf_bit(p->mapped, i) && mf_bit(p->mapped, end); end++) {}
        if (mf_bit(p->mapped, i))
            status = device->table->access(device, pool->range + (i << p->shift), (end - i) << p->shift, err);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- gathering ---------------------------------------------------------------------------------------------- */

/* How much more than the bytes in use the pool may hold rather than move pages: now, with so much of the time for it spent. */
static uint64_t slack_of(const memfit_pool *pool, uint64_t use, double spent)
{
    double slack = pool->options.slack, most = 1.0 / MOST_PART;
    return (uint64_t)((double)use * (slack > 0 && slack < most ? slack + spent * (most - slack) : slack));
}

/* Pages the pool may hold before it moves some rather than make new ones. */
static uint64_t easy_pages(memfit_pool *pool, uint64_t request)
{
    uint64_t use = pool->total.now + request;
    if (use < pool->total.peak)
        use = pool->total.peak;
    uint64_t easy = use + slack_of(pool, use, mf_moves_spent(pool)), most = use + slack_of(pool, use, 1);
    uint64_t planned = mf_repeat_pages(pool) << pool->pages.shift; /* what a plan's places take: then none need move */
    planned = planned < most ? planned : most;
    return (easy > planned ? easy : planned) / pool->pages.bytes;
}

uint64_t mf_pages_easily(const memfit_pool *pool)
{
    return (pool->total.peak + slack_of(pool, pool->total.peak, 0)) >> pool->pages.shift;
}

bool mf_pages_easy(memfit_pool *pool, uint64_t start, uint64_t bytes)
{
    return pool->pages.reserved + mf_pages_missing(pool, start, bytes) <= easy_pages(pool, bytes);
}

bool mf_pages_in_slack(const memfit_pool *pool, uint64_t start, uint64_t bytes)
{
    uint64_t use = pool->total.now + bytes < pool->total.peak ? pool->total.peak : pool->total.now + bytes;
    uint64_t most = (use + slack_of(pool, use, 1)) >> pool->pages.shift;
    return pool->pages.reserved + mf_pages_missing(pool, start, bytes) <= most;
}

static uint64_t up_to(uint64_t want, uint64_t ceiling, uint64_t have)
{
    uint64_t room = ceiling > have ? ceiling - have : 0;
    return want < room ? want : room;
}

void mf_pages_give_back_made(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    while (p->made_now && p->spare_count) {
        uint64_t before = p->reserved;
        if (!mf_handle_release(pool))
            return;
        uint64_t gone = before - p->reserved;
        p->made_now -= gone < p->made_now ? gone : p->made_now;
    }
}

/* Makes up to `more` pages, while no more than `ceiling` are reserved. False: it was refused before. */
static bool make(memfit_pool *pool, uint64_t more, uint64_t ceiling, uint64_t first, uint64_t past)
{
    uint64_t count = up_to(more, ceiling, pool->pages.reserved);
    return !count || mf_handles_make(pool, count, first, past) == count;
}

static uint64_t still_missing(const memfit_pool *pool, uint64_t missing)
{
    return missing > pool->pages.spare_count ? missing - pool->pages.spare_count : 0;
}

/* How many pages may be reserved before pressure is to be relieved. */
static uint64_t soft_pages(const memfit_pool *pool, uint64_t limit, bool grow_soft)
{
    if (!pool->soft_limit_bytes || grow_soft)
        return limit;
    uint64_t soft = mf_limit_room(pool, pool->soft_limit_bytes) / pool->pages.bytes;
    return soft < limit ? soft : limit;
}

/* Sees to it that `missing` pages are spare. */
static memfit_status gather(memfit_pool *pool, uint64_t missing, mf_block **hole, uint64_t start, uint64_t bytes,
                            unsigned lane, mf_growth growth)
{
    mf_pages *p = &pool->pages;
    uint64_t first = start >> p->shift, past = ((start + bytes - 1) >> p->shift) + 1;
    uint64_t limit = mf_pages_limit(pool), soft = soft_pages(pool, limit, growth == MF_GROW_TO_LIMIT);
    missing -= mf_shadows_switch(pool, first, past);
    if (!missing)
        return MEMFIT_OK;
    uint64_t elsewhere = p->idle_count - mf_bits_count_idle(pool, first, past);
    uint64_t room = limit > p->reserved ? limit - p->reserved : 0;
    if (p->spare_count + room + elsewhere < missing)
        return mf_pages_refuse(pool, MF_REFUSED_LIMIT, missing);
    uint64_t easy = easy_pages(pool, bytes), more = still_missing(pool, missing);
    bool refused = false, waits = false;
    if (more)
        refused = !make(pool, more, easy < soft ? easy : soft, first, past);
    if ((more = still_missing(pool, missing)) && elsewhere && mf_moves_allowed(pool))
        waits = !mf_moves_idle(pool, more, first, past, false);
    if ((more = still_missing(pool, missing)) && pool->multi && mf_moves_allowed(pool))
        mf_moves_past(pool, more, first, past);
    if ((more = still_missing(pool, missing)) && lane && mf_moves_allowed(pool))
        missing -= mf_moves_own(pool, hole, lane, more, start, bytes);
    if ((more = still_missing(pool, missing)) && growth == MF_GROW_NOT)
        return mf_pages_refuse(pool, MF_REFUSED_NOT, more);
    if ((more = still_missing(pool, missing)) && !refused)
        refused = !make(pool, more, soft, first, past);
    if ((more = still_missing(pool, missing)) && elsewhere) /* no more to be had: it moves what it can */
        waits = !mf_moves_idle(pool, more, first, past, true);
    if (!(more = still_missing(pool, missing)))
        return MEMFIT_OK;
    if (!refused && soft < limit && up_to(more, soft, p->reserved) < more)
        return mf_pages_refuse(pool, MF_REFUSED_NOT, more); /* asks for pressure to be relieved first */
    if (waits)
        return mf_pages_refuse(pool, MF_REFUSED_STREAM, more);
    if (!refused)
        mf_pages_refuse(pool, MF_REFUSED_LIMIT, more); /* pages were idle but could not be taken out */
    pool->refused_pages = missing;
    return MEMFIT_OUT_OF_MEMORY;
}

static memfit_status map_missing(memfit_pool *pool, uint64_t first, uint64_t past, uint64_t missing)
{
    const mf_pages *p = &pool->pages;
    memfit_status status = MEMFIT_OK;
    for (uint64_t i = first, end; i < past && !status; i = end + 1) {
        for (end = i; end < past && !mf_bit(p->mapped, end); end++) {}
        if (end > i)
            status = mf_handles_map(pool, i, end, &pool->refused_by);
    }
    if (status && pool->refusal == MF_REFUSED_NOT)
        mf_pages_refuse(pool, MF_REFUSED_DEVICE, missing);
    return status;
}

memfit_status mf_pages_back(memfit_pool *pool, mf_block **hole, uint64_t start, uint64_t bytes, unsigned lane,
                            mf_growth growth, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t missing = mf_pages_missing(pool, start, bytes);
    if (!missing)
        return MEMFIT_OK;
    if (pool->device->plain) /* all there is was mapped at the beginning */
        return mf_pages_refuse(pool, MF_REFUSED_LIMIT, missing);
    uint64_t first = start >> p->shift, past = ((start + bytes - 1) >> p->shift) + 1;
    if (!mf_bits_cover(pool, past))
        return mf_pages_refuse(pool, MF_REFUSED_HOST, missing), MEMFIT_NO_HOST_MEMORY;
    if (!mf_handles_clean(pool))
        return mf_pages_refuse(pool, MF_REFUSED_DEVICE, missing), MEMFIT_DEVICE;
    mf_moves_look(pool);
    uint64_t began = mf_device_now_us(pool->device);
    p->making_us = 0;
    memfit_status status = gather(pool, missing, hole, start, bytes, lane, growth);
    uint64_t gathered = mf_device_now_us(pool->device) - p->making_us;
    if (!status)
        status = map_missing(pool, first, past, missing);
    /* Making pages, and mapping those that were made, is not moving them. */
    uint64_t mapping = mf_device_now_us(pool->device) - p->making_us - gathered;
    uint64_t moved = pool->remapped_now < missing ? pool->remapped_now : missing;
    mf_moves_charge(pool, gathered - began + mapping * moved / missing);
    if (!status && pool->remapped_now) {
        pool->remaps++;
        pool->remapped_pages += pool->remapped_now;
    }
    if (status && err)
        *err = pool->refused_by;
    return status;
}

/* ---- giving back, taking all -------------------------------------------------------------------------------- */

uint64_t mf_pages_trim(memfit_pool *pool, uint64_t keep)
{
    mf_pages *p = &pool->pages;
    uint64_t before = p->reserved;
    if (pool->device->plain) /* it is back only when the pool ends */
        return 0;
    mf_handles_clean(pool);
    if (p->reserved > keep && p->shadow_count && mf_pages_settled(pool))
        mf_shadows_clear(pool, 0, UINT64_MAX);
    while (p->reserved > keep) {
        if (!p->spare_count && (!p->idle_count || !mf_pages_settled(pool) ||
                                !mf_pages_recycle(pool, p->reserved - keep, 0, 0, UINT64_MAX, true)))
            break;
        if (!mf_handle_release(pool))
            break;
    }
    return before - p->reserved;
}

/* Maps every spare page behind the last one, where they lie idle until wanted. */
static memfit_status park(memfit_pool *pool, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t first = (pool->tail->start + p->bytes - 1) >> p->shift;
    if (first < p->top)
        first = p->top;
    uint64_t past = first + p->spare_count;
    if (past == first)
        return MEMFIT_OK;
    if (past > pool->range_bytes >> p->shift || !mf_bits_cover(pool, past) || !mf_handles_clean(pool))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for the table of pages", pool->name);
    memfit_status status = mf_handles_map(pool, first, past, err);
    if (status)
        return status;
    mf_pages_set_idle(pool, first, past);
    for (uint64_t i = first; i < past; i++)
        p->freed[i] = 0; /* nobody used it yet */
    return MEMFIT_OK;
}

memfit_status mf_pages_fill(memfit_pool *pool, memfit_error *err)
{
    mf_pages *p = &pool->pages;
    uint64_t limit = mf_pages_limit(pool), more = limit > p->reserved ? limit - p->reserved : 0;
    p->made_now = 0;
    uint64_t made = mf_handles_make(pool, more, p->covered, p->covered + more);
    memfit_status status = MEMFIT_OK;
    if (made < more)
        status = mf_fail(err, pool->refusal == MF_REFUSED_HOST ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OUT_OF_MEMORY,
                         "pool %s: preallocation: %llu of %llu pages of %llu KiB could be had%s%s", pool->name,
                         (unsigned long long)(p->reserved), (unsigned long long)limit,
                         (unsigned long long)(p->bytes >> 10), pool->refusal == MF_REFUSED_BUDGET ? "" : ": ",
                         pool->refusal == MF_REFUSED_BUDGET ? "; other pools on this device have the rest"
                                                            : pool->refused_by.message);
    else
        status = park(pool, err);
    if (status)
        mf_pages_give_back_made(pool);
    return status;
}

/* What was idle all the time since the last purge is given back. No page carries a date: the fewest idle pages seen in
 * the interval are as many as nobody needed. What the pool may hold beside what was needed stays, the slack and up to a tenth:
 * steps came to rest with it, and would move pages until it is made again. */
void mf_pages_purge(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (pool->policy != MEMFIT_POLICY_GROWTH || pool->purge_us == UINT64_MAX)
        return;
    uint64_t now = mf_device_now_us(pool->device);
    if (now < p->purge_at_us)
        return;
    uint64_t idle = mf_pages_idle(pool), unused = p->low_idle < idle ? p->low_idle : idle;
    uint64_t keep = p->reserved - unused;
    keep += slack_of(pool, keep << p->shift, 1) >> p->shift;
    if (keep > p->reserved)
        keep = p->reserved;
    if (pool->options.keep_idle && keep < pool->soft_limit_bytes / p->bytes)
        keep = pool->soft_limit_bytes / p->bytes;
    if (p->purge_at_us && keep < p->reserved)
        mf_pages_trim(pool, keep);
    p->low_idle = mf_pages_idle(pool);
    p->purge_at_us = now + pool->purge_us;
}

void mf_pages_end(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (p->reserved && !mf_fence_settled(pool)) /* rather lose memory than take it from work that still runs */
        mf_handles_abandon(p);
    mf_shadows_end(pool);
    mf_handles_clean(pool);
    for (uint64_t i = 0; i < p->top;) { /* unmap all, live or not, in long runs */
        if (!mf_bit(p->mapped, i)) {
            i++;
            continue;
        }
        uint64_t past = i;
        while (past < p->top && mf_bit(p->mapped, past))
            past++;
        if (!mf_pages_unmap(pool, i, past) &&
            !mf_pages_unmap(pool, i, past)) /* once more: a passing fault must not leak */
            break;
        i = past;
    }
    while (mf_handle_release(pool) || mf_handle_release(pool)) {}
    mf_host_free(pool->host, p->mapped, mf_bits_bytes(p->covered));
}
