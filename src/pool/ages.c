/*
 * ages.c: which idle pages the device is past with, while a pool has seen one stream only.
 *
 *     frees     1 2 3 ... 64 65 ... 128 129 ... 192 ...     counted as they come (pool->frees_central)
 *     marks               e1        e2          e3          an event behind every 64th, in the stream
 *     pages     stamped with the count when they became idle
 *
 * Once e2 is done every page stamped 128 or less can be unmapped without waiting. When none is old enough the oldest
 * mark is waited for, not the stream: what is queued behind it goes on running, so the device does not fall idle.
 * (Waiting for the stream instead cost ResNet50 in PyTorch 15 % of its step, twelve times a step.)
 *
 * Better still, most moves need no wait at all. Work queued from now on comes after all that may still touch the page,
 * so it can be mapped at its new place at once, beside the old one. The old mapping stays as a shadow until the device
 * is past it, and only who wants those very addresses again has to wait. (Not on devices without event_sync: there
 * nothing is ever pending, and a page mapped twice would be counted twice.) A handle with a shadow is not released.
 *
 * Marks are made, and pages stamped, only while pages are being moved: the first move finds none and leaves shadows,
 * the next 2,048 frees are marked. (Every 16th of the next 16,384: no fewer waits in any workload, and where a step has
 * 500 frees and every 16th step moves a page, 0.2 ms of each step.) When all marks are in flight the newest is recorded
 * anew, further behind.
 *
 * With several streams this is not asked: there an idle page is safe for all (lanes.c).
 */
#include "pool/state.h"

#include <string.h>

enum { EVERY = 64, FOR_FREES = 2048 };

static bool unused(const memfit_pool *pool)
{
    return pool->multi || atomic_load_explicit(&pool->home, memory_order_relaxed) == UINT64_MAX;
}

static void forget(mf_pages *p, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        p->spare_marks[p->spare_mark_count++] = p->mark[i].event;
    p->mark_count -= count;
    memmove(p->mark, p->mark + count, p->mark_count * sizeof *p->mark);
}

static void put_mark(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    mf_event event;
    if (p->mark_count == MF_MARKS)
        event = p->mark[--p->mark_count].event;
    else if (p->spare_mark_count)
        event = p->spare_marks[--p->spare_mark_count];
    else if (device->table->event_create(device, &event, NULL))
        return;
    if (device->table->event_record(device, event, pool->home, NULL)) {
        p->spare_marks[p->spare_mark_count++] = event;
        return;
    }
    p->mark[p->mark_count++] = (mf_waiting){event, pool->frees_central};
    p->marked = pool->frees_central;
}

void mf_ages_note(memfit_pool *pool)
{
    if (mf_ages_marks(pool) && pool->frees_central - pool->pages.marked >= EVERY && !unused(pool))
        put_mark(pool);
}

/* Marks are of one stream, so those that are done come first. */
static void look_at_marks(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    unsigned low = 0, high = p->mark_count; /* the first `low` are done, those from `high` on are not */
    while (low < high) {
        unsigned middle = (low + high) / 2;
        bool done = false;
        if (pool->device->table->event_done(pool->device, p->mark[middle].event, &done, NULL) || !done)
            high = middle;
        else
            low = middle + 1;
    }
    if (!low)
        return;
    if (p->mark[low - 1].serial > p->synced_frees)
        p->synced_frees = p->mark[low - 1].serial;
    forget(p, low);
}

/* Pages that became idle while nothing was marked have old stamps, or none. */
static void stamp_all(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    for (uint64_t w = 0; w * 64 < p->top; w++)
        for (uint64_t bits = p->idle[w]; bits; bits &= bits - 1)
            p->freed[w * 64 + (uint64_t)__builtin_ctzll(bits)] = pool->frees_central;
}

uint64_t mf_ages_past(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (unused(pool) || p->synced_frees == pool->frees_central)
        return UINT64_MAX;
    if (!mf_ages_marks(pool))
        stamp_all(pool);
    p->mark_until = pool->frees_central + FOR_FREES;
    if (pool->options.no_stream_wait && p->marked != pool->frees_central)
        put_mark(pool);
    look_at_marks(pool);
    return p->synced_frees;
}

bool mf_ages_wait(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    if (unused(pool) || p->synced_frees == pool->frees_central || pool->options.no_stream_wait)
        return false;
    pool->stream_waits++;
    if (p->mark_count && device->table->event_sync && !device->table->event_sync(device, p->mark[0].event, NULL)) {
        if (p->mark[0].serial > p->synced_frees)
            p->synced_frees = p->mark[0].serial;
        forget(p, 1);
        return true;
    }
    if (device->table->stream_sync(device, pool->home, NULL))
        return false;
    p->synced_frees = pool->frees_central;
    forget(p, p->mark_count);
    return true;
}

/* ---- shadows ------------------------------------------------------------------------------------------------ */

bool mf_ages_shadow(memfit_pool *pool, mf_handle *handle)
{
    mf_pages *p = &pool->pages;
    if (unused(pool) || !pool->device->table->event_sync || p->shadow_count == MF_SHADOWS)
        return false;
    if (p->marked != pool->frees_central) /* so that nobody need wait for more than this */
        put_mark(pool);
    p->shadow[p->shadow_count++] = (struct mf_shadow){handle->page, handle};
    handle->shadows++;
    return true;
}

static bool is_past(const mf_pages *p, const struct mf_shadow *s, uint64_t age)
{
    for (uint64_t i = s->page; i < s->page + s->handle->pages; i++)
        if (p->freed[i] > age)
            return false;
    return true;
}

/* Undoes shadow i and those after it in the list that lie side by side below it and are past. False: it failed. */
static bool undo(memfit_pool *pool, unsigned i, uint64_t age)
{
    mf_pages *p = &pool->pages;
    uint64_t low = p->shadow[i].page, end = low + p->shadow[i].handle->pages;
    unsigned past = i + 1;
    for (; past < p->shadow_count; past++) {
        const struct mf_shadow *s = &p->shadow[past];
        if (s->page + s->handle->pages != low || !is_past(p, s, age))
            break;
        low = s->page;
    }
    if (pool->device->table->unmap(pool->device, pool->range + (low << p->shift), (end - low) << p->shift,
                                   &pool->refused_by))
        return false;
    for (unsigned k = i; k < past; k++)
        p->shadow[k].handle->shadows--;
    memmove(p->shadow + i, p->shadow + past, (p->shadow_count - past) * sizeof *p->shadow);
    p->shadow_count -= past - i;
    return true;
}

/* What is past; false: not all that lies at [first, last) could be undone. */
static bool sweep(memfit_pool *pool, uint64_t first, uint64_t last, uint64_t age)
{
    mf_pages *p = &pool->pages;
    bool clear = true;
    for (unsigned i = 0; i < p->shadow_count;) {
        const struct mf_shadow *s = &p->shadow[i];
        if (is_past(p, s, age) && undo(pool, i, age))
            continue;
        clear = clear && !(s->page < last && s->page + s->handle->pages > first);
        i++;
    }
    return clear;
}

bool mf_ages_settle(memfit_pool *pool, uint64_t first, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    if (!p->shadow_count)
        return true;
    if (pool->multi) { /* they are of the time of one stream: wait for it, and they are gone for good */
        pool->stream_waits++;
        if (pool->device->table->stream_sync(pool->device, pool->home, &pool->refused_by))
            return false;
        return sweep(pool, first, past, UINT64_MAX);
    }
    while (!sweep(pool, first, past, mf_ages_past(pool)))
        if (!mf_ages_wait(pool))
            return false;
    return true;
}

void mf_ages_end(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (!sweep(pool, 0, UINT64_MAX, UINT64_MAX))
        sweep(pool, 0, UINT64_MAX, UINT64_MAX); /* once more: a passing fault must not leak */
    forget(p, p->mark_count);
    while (p->spare_mark_count)
        pool->device->table->event_destroy(pool->device, p->spare_marks[--p->spare_mark_count], NULL);
}
