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
 * With several streams an idle page is safe for all (lanes.c). There a stream's own pages, in the holes of its lane, can
 * be moved so; the shadow goes by the clock of that lane.
 */
#include "pool/page_bits.h"
#include "pool/pages.h"

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

/* All that the device is past with as far as pages stamped `age` go. */
static bool is_past(const memfit_pool *pool, const struct mf_shadow *s, uint64_t age)
{
    if (s->lane)
        return pool->lane[s->lane]->clock.safe >= s->serial;
    for (uint64_t i = s->page; i < s->page + s->handle->pages; i++)
        if (pool->pages.freed[i] > age)
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
        if (s->page + s->handle->pages != low || !is_past(pool, s, age))
            break;
        low = s->page;
    }
    if (pool->device->table->unmap(pool->device, pool->range + (low << p->shift), (end - low) << p->shift,
                                   &pool->refused_by))
        return false;
    for (unsigned k = i; k < next; k++)
        p->shadow[k].handle->shadows--;
    mf_bits_set_shadow(pool, low, end, false);
    memmove(p->shadow + i, p->shadow + next, (p->shadow_count - next) * sizeof *p->shadow);
    p->shadow_count -= next - i;
    return true;
}

/* What is past goes; false: not all that lies at [first, last) could be undone. */
static bool sweep(memfit_pool *pool, uint64_t first, uint64_t last)
{
    mf_pages *p = &pool->pages;
    uint64_t age = mf_pages_past(pool), looked = 0;
    bool clear = true;
    for (unsigned i = 0; i < p->shadow_count;) {
        const struct mf_shadow *s = &p->shadow[i];
        if (s->lane && !(looked >> s->lane & 1)) {
            mf_clock_record(pool, &pool->lane[s->lane]->clock);
            mf_clock_look(pool, &pool->lane[s->lane]->clock);
            looked |= UINT64_C(1) << s->lane;
        }
        if (is_past(pool, s, age) && undo(pool, i, age))
            continue;
        clear = clear && !(s->page < last && s->page + s->handle->pages > first);
        i++;
    }
    return clear;
}
_Static_assert(MF_LANES <= 64, "a bit a lane");

void mf_shadows_sweep(memfit_pool *pool)
{
    if (pool->pages.shadow_count)
        sweep(pool, 0, 0);
}

bool mf_shadow_room(memfit_pool *pool)
{
    if (pool->pages.shadow_count == MF_SHADOWS)
        mf_shadows_sweep(pool);
    return pool->pages.shadow_count < MF_SHADOWS;
}

void mf_shadow_add(memfit_pool *pool, mf_handle *handle, uint64_t page, unsigned lane, uint64_t serial)
{
    mf_pages *p = &pool->pages;
    p->shadow[p->shadow_count++] = (struct mf_shadow){page, handle, serial, lane};
    handle->shadows++;
    mf_bits_set_shadow(pool, page, page + handle->pages, true);
}

bool mf_shadow_leave(memfit_pool *pool, mf_handle *handle)
{
    if (unused(pool) || !pool->device->table->event_sync || !mf_shadow_room(pool))
        return false;
    mf_clock_record(pool, home_clock(pool)); /* so that nobody need wait for more than this */
    mf_shadow_add(pool, handle, handle->page, 0, 0);
    return true;
}

/* The first at [first, end); NULL: none. */
static const struct mf_shadow *one_over(const memfit_pool *pool, uint64_t first, uint64_t end)
{
    const mf_pages *p = &pool->pages;
    for (unsigned i = 0; i < p->shadow_count; i++)
        if (p->shadow[i].page < end && p->shadow[i].page + p->shadow[i].handle->pages > first)
            return &p->shadow[i];
    return NULL;
}

bool mf_shadows_clear(memfit_pool *pool, uint64_t first, uint64_t end)
{
    while (pool->pages.shadow_count && !sweep(pool, first, end)) {
        const struct mf_shadow *s = one_over(pool, first, end);
        if (s->lane && pool->lane[s->lane]->clock.safe >= s->serial) /* it is past, but cannot be undone */
            return false;
        if (!(s->lane ? mf_clock_wait(pool, &pool->lane[s->lane]->clock, s->serial) : mf_pages_wait(pool)))
            return false;
    }
    return true;
}

void mf_shadows_forget_lane(memfit_pool *pool, unsigned lane)
{
    mf_pages *p = &pool->pages;
    for (unsigned i = 0; i < p->shadow_count; i++) {
        struct mf_shadow *s = &p->shadow[i];
        if (s->lane != lane)
            continue;
        s->lane = 0;
        for (uint64_t k = s->page; k < s->page + s->handle->pages; k++)
            p->freed[k] = 0;
    }
    mf_shadows_sweep(pool);
}

/* Everything on the device is past: the second stream comes, or the pool ends. */
bool mf_shadows_end(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    for (unsigned tries = 0; tries < 2; tries++) /* once more: a passing fault must not leak */
        for (unsigned i = 0; i < p->shadow_count;) {
            p->shadow[i].lane = 0;
            i += !undo(pool, i, UINT64_MAX);
        }
    return !p->shadow_count;
}
