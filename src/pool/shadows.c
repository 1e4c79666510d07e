/*
 * shadows.c: which idle pages the device is past with while a pool has seen one stream only, and the old mappings of
 * pages that were taken before that.
 *
 *     frees     1 2 3 ... 64 65 ... 128 129 ... 192 ...     counted as they come (pool->frees_central)
 *     events              e1        e2          e3          behind every 64th, in the stream (fence.c)
 *     pages     stamped with the count when they became idle
 *
 * Once e2 is done every page stamped 128 or less can be unmapped without waiting. When none is old enough the oldest
 * event is waited for, not the stream: what is queued behind it goes on running, so the device does not fall idle.
 * (Waiting for the stream instead cost ResNet50 in PyTorch 15 % of its step, twelve times a step.)
 *
 * Better still, most moves need no wait at all. Work queued from now on comes after all that may still touch the page,
 * so it can be mapped at its new place at once, beside the old one. The old mapping stays as a shadow until the device
 * is past it, and only who wants those very addresses again has to wait. (Not on devices without event_sync: there
 * nothing is ever pending, and a page mapped twice would be counted twice.) A handle with a shadow is not released.
 *
 * Events are recorded, and pages stamped, only while pages are being moved: the first move finds none and leaves
 * shadows, the next 2,048 frees are stamped.
 *
 * With several streams this is not asked: there an idle page is safe for all (lanes.c).
 */
#include "pool/state.h"

#include <string.h>

enum { EVERY = 64, FOR_FREES = 2048 };

static bool unused(const memfit_pool *pool)
{
    return pool->multi || atomic_load_explicit(&pool->home, memory_order_relaxed) == MF_NO_STREAM;
}

/* The clock of the only stream. */
static mf_clock *home_clock(memfit_pool *pool)
{
    mf_clock *clock = &pool->lane[0]->clock;
    clock->stream = pool->home;
    clock->serial = pool->frees_central;
    return clock;
}

void mf_pages_note_free(memfit_pool *pool)
{
    if (mf_pages_stamped(pool) && pool->frees_central - pool->lane[0]->clock.recorded >= EVERY && !unused(pool))
        mf_clock_record(pool, home_clock(pool));
}

/* Pages that became idle while nothing was stamped have old stamps, or none. */
static void stamp_all(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    for (uint64_t w = 0; w * 64 < p->top; w++)
        for (uint64_t bits = p->idle[w]; bits; bits &= bits - 1)
            p->freed[w * 64 + (uint64_t)__builtin_ctzll(bits)] = pool->frees_central;
}

uint64_t mf_pages_past(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (unused(pool))
        return UINT64_MAX;
    mf_clock *clock = home_clock(pool);
    if (clock->safe == clock->serial)
        return UINT64_MAX;
    if (!mf_pages_stamped(pool))
        stamp_all(pool);
    p->stamp_until = pool->frees_central + FOR_FREES;
    if (pool->options.no_stream_wait)
        mf_clock_record(pool, clock);
    mf_clock_look(pool, clock);
    return clock->safe;
}

bool mf_pages_wait(memfit_pool *pool)
{
    if (unused(pool))
        return false;
    mf_clock *clock = home_clock(pool);
    if (clock->safe == clock->serial)
        return false;
    return mf_clock_wait(pool, clock, clock->waiting_count ? clock->waiting[0].serial : clock->serial);
}

bool mf_pages_settled(memfit_pool *pool)
{
    if (unused(pool))
        return true;
    mf_clock *clock = home_clock(pool);
    if (clock->safe == clock->serial)
        return true;
    if (!pool->options.no_stream_wait)
        return mf_clock_wait(pool, clock, clock->serial);
    mf_clock_record(pool, clock);
    mf_clock_look(pool, clock);
    return clock->safe == clock->serial;
}

/* ---- shadows ------------------------------------------------------------------------------------------------ */

bool mf_shadow_leave(memfit_pool *pool, mf_handle *handle)
{
    mf_pages *p = &pool->pages;
    if (unused(pool) || !pool->device->table->event_sync || p->shadow_count == MF_SHADOWS)
        return false;
    mf_clock_record(pool, home_clock(pool)); /* so that nobody need wait for more than this */
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
    unsigned next = i + 1;
    for (; next < p->shadow_count; next++) {
        const struct mf_shadow *s = &p->shadow[next];
        if (s->page + s->handle->pages != low || !is_past(p, s, age))
            break;
        low = s->page;
    }
    if (pool->device->table->unmap(pool->device, pool->range + (low << p->shift), (end - low) << p->shift,
                                   &pool->refused_by))
        return false;
    for (unsigned k = i; k < next; k++)
        p->shadow[k].handle->shadows--;
    memmove(p->shadow + i, p->shadow + next, (p->shadow_count - next) * sizeof *p->shadow);
    p->shadow_count -= next - i;
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

bool mf_shadows_clear(memfit_pool *pool, uint64_t first, uint64_t end)
{
    if (!pool->pages.shadow_count)
        return true;
    while (!sweep(pool, first, end, mf_pages_past(pool)))
        if (!mf_pages_wait(pool))
            return false;
    return true;
}

/* Everything on the device is past: the second stream comes, or the pool ends. */
bool mf_shadows_end(memfit_pool *pool)
{
    return sweep(pool, 0, UINT64_MAX, UINT64_MAX) ||
           sweep(pool, 0, UINT64_MAX, UINT64_MAX); /* once more: a passing fault must not leak */
}
