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
 * And most pages that moved are wanted again where they were: the next step is like the last. So old mappings are kept,
 * past or not, until their addresses are wanted for another page or there are too many; a page that is idle where it is
 * now and wanted where it was is there already, without any call.
 *
 * There is room for 2,048 of them. When a move finds none left, and pages that the device is not past, it waits for the
 * oldest event as long as the device has more to do behind it: the program loses some of its lead, the device nothing. (It
 * grew instead, by all of the slack, where the device was 100 ms behind.) So does a block whose seat is under one.
 *
 * Events are recorded, and pages stamped, only while pages are being moved: the first move finds none and leaves
 * shadows, the next 2,048 frees are stamped.
 *
 * With several streams an idle page is safe for all (lanes.c). There a stream's own pages, in the holes of its lane, can
 * be moved so; the shadow goes by the clock of that lane.
 */
#include "pool/handles.h"
#include "pool/moves.h"
#include "pool/page_bits.h"
#include "pool/pages.h"

#include <string.h>

enum { EVERY = 64, FOR_FREES = 2048 };

static bool unused(const memfit_pool *pool)
{
    return pool->multi || atomic_load_explicit(&pool->home, memory_order_relaxed) == MF_NO_STREAM;
}

mf_clock *mf_pages_clock(memfit_pool *pool)
{
    mf_clock *clock = &pool->lane[0]->clock;
    clock->stream = pool->home;
    clock->serial = pool->frees_central;
    return clock;
}

void mf_pages_note_free(memfit_pool *pool)
{
    if (mf_pages_stamped(pool) && pool->frees_central - pool->lane[0]->clock.recorded >= EVERY && !unused(pool))
        mf_clock_record(pool, mf_pages_clock(pool));
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
    mf_clock *clock = mf_pages_clock(pool);
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
    mf_clock *clock = mf_pages_clock(pool);
    if (clock->safe == clock->serial)
        return false;
    return mf_clock_wait_next(pool, clock);
}

bool mf_pages_wait_some(memfit_pool *pool)
{
    if (unused(pool) || mf_clock_queued_us(mf_pages_clock(pool)) < MF_QUEUED_US)
        return false;
    mf_moves_look(pool);
    uint64_t began = mf_device_now_us(pool->device);
    if (!mf_pages_wait(pool))
        return false;
    uint64_t waited = mf_device_now_us(pool->device) - began;
    pool->pages.making_us += waited; /* the device was at work meanwhile: no time for moving pages, only owed */
    pool->waited_us += waited;
    mf_moves_owe(pool, waited);
    return true;
}

bool mf_pages_settled(memfit_pool *pool)
{
    if (unused(pool))
        return true;
    mf_clock *clock = mf_pages_clock(pool);
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

static void set_alias(memfit_pool *pool, unsigned i, bool on)
{
    mf_pages *p = &pool->pages;
    const struct mf_shadow *s = &p->shadow[i];
    for (uint64_t page = s->page; page < s->page + s->handle->pages; page++)
        p->alias[page] = on ? (uint16_t)(i + 1) : 0;
    mf_bits_set_shadow(pool, s->page, s->page + s->handle->pages, on);
}
_Static_assert(MF_SHADOWS < UINT16_MAX, "an alias is an index and one");

/* The record goes; the last takes its place. */
static void drop_shadow(memfit_pool *pool, unsigned i)
{
    mf_pages *p = &pool->pages;
    set_alias(pool, i, false);
    p->shadow[i].handle->shadows--;
    if (i != --p->shadow_count) {
        p->shadow[i] = p->shadow[p->shadow_count];
        set_alias(pool, i, true);
    }
}

static const struct mf_shadow *past_shadow_at(const memfit_pool *pool, uint64_t page)
{
    const mf_pages *p = &pool->pages;
    const struct mf_shadow *s = page < p->covered && p->alias[page] ? &p->shadow[p->alias[page] - 1] : NULL;
    return s && is_past(pool, s, p->past_age) ? s : NULL;
}

/* Undoes shadow i and those beside it that are past. False: it failed. */
static bool undo(memfit_pool *pool, unsigned i)
{
    mf_pages *p = &pool->pages;
    uint64_t low = p->shadow[i].page, end = low + p->shadow[i].handle->pages;
    const struct mf_shadow *s;
    while (low && (s = past_shadow_at(pool, low - 1)))
        low = s->page;
    while ((s = past_shadow_at(pool, end)))
        end = s->page + s->handle->pages;
    if (pool->device->table->unmap(pool->device, pool->range + (low << p->shift), (end - low) << p->shift,
                                   &pool->refused_by))
        return false;
    for (uint64_t page = low, next; page < end; page = next) {
        next = page + p->shadow[p->alias[page] - 1].handle->pages;
        drop_shadow(pool, p->alias[page] - 1u);
    }
    return true;
}

void mf_shadows_look(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    if (!p->shadow_count)
        return;
    p->past_age = mf_pages_past(pool);
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && !pool->lane[i]->graph) {
            mf_clock_record(pool, &pool->lane[i]->clock);
            mf_clock_look(pool, &pool->lane[i]->clock);
        }
}

/* What is past at [first, last) goes; false: not all could be undone. */
static bool sweep(memfit_pool *pool, uint64_t first, uint64_t last)
{
    mf_pages *p = &pool->pages;
    bool clear = true;
    mf_shadows_look(pool);
    for (unsigned i = 0; i < p->shadow_count;) {
        const struct mf_shadow *s = &p->shadow[i];
        if (s->page >= last || s->page + s->handle->pages <= first) {
            i++;
            continue;
        }
        if (is_past(pool, s, p->past_age) && undo(pool, i)) {
            i = 0; /* others went with it, those that could not be undone before among them, and the last took their places */
            clear = true;
            continue;
        }
        clear = false;
        i++;
    }
    return clear;
}

/* ---- old mappings that are new again ------------------------------------------------------------------------- */

/* Can the page be had at its old place [first, past) without any call? All of its handle must be idle where it is. */
static bool can_switch(const memfit_pool *pool, const struct mf_shadow *s, uint64_t first, uint64_t past)
{
    const mf_handle *h = s->handle;
    return h->mapped && s->page >= first && s->page + h->pages <= past &&
           !(h->page < past && h->page + h->pages > first) &&
           mf_bits_count_idle(pool, h->page, h->page + h->pages) == h->pages;
}

/* Counts no further than to `most`, nor beyond the first page that is to be waited for if that is given. */
static uint64_t needs_up_to(const memfit_pool *pool, uint64_t first, uint64_t past, uint64_t most, bool *wait)
{
    const mf_pages *p = &pool->pages;
    uint64_t needs = mf_bits_bare(pool, first << p->shift, (past - first) << p->shift);
    *wait = false;
    for (uint64_t page, below = past;
         needs < most && (page = mf_bits_highest_shadow(pool, first, below)) != MF_BEYOND;) {
        const struct mf_shadow *s = &p->shadow[p->alias[page] - 1];
        below = s->page > first ? s->page : first; /* all of an old mapping is shadowed */
        if (can_switch(pool, s, first, past))
            continue;
        needs += page + 1 - below;
        *wait = *wait || !is_past(pool, s, p->past_age);
        if (*wait && most != UINT64_MAX)
            break;
    }
    return needs;
}

uint64_t mf_shadows_needs(const memfit_pool *pool, uint64_t first, uint64_t past, bool *wait)
{
    return needs_up_to(pool, first, past, UINT64_MAX, wait);
}

uint64_t mf_shadows_fewer(const memfit_pool *pool, uint64_t first, uint64_t past, uint64_t than)
{
    bool wait;
    uint64_t needs = needs_up_to(pool, first, past, than, &wait);
    return wait || needs > than ? than : needs;
}

uint64_t mf_shadows_switch(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    uint64_t got = 0;
    if (!p->shadow_count || (!unused(pool) && !mf_clock_record(pool, mf_pages_clock(pool))))
        return 0;
    mf_shadows_look(pool);
    for (uint64_t page = first; page < past && page < p->covered; page++) {
        unsigned i = p->alias[page];
        if (!i-- || !can_switch(pool, &p->shadow[i], first, past))
            continue;
        struct mf_shadow *s = &p->shadow[i];
        uint64_t old = s->handle->page;
        set_alias(pool, i, false);
        mf_pages_clear_idle(pool, old, old + s->handle->pages);
        mf_handle_forget_mapping(pool, old, old + s->handle->pages);
        mf_handle_note_mapped(pool, s->handle, s->page);
        *s = (struct mf_shadow){.page = old, .handle = s->handle};
        set_alias(pool, i, true);
        got += s->handle->pages;
    }
    return got;
}

uint64_t mf_beyond_shadows(const memfit_pool *pool, const mf_block *hole)
{
    const mf_pages *p = &pool->pages;
    uint64_t end = (hole->start + hole->bytes) >> p->shift, first = hole->start >> p->shift, below = end;
    for (uint64_t page; (page = mf_bits_highest_shadow(pool, first, below)) != MF_BEYOND;) {
        const struct mf_shadow *s = &p->shadow[p->alias[page] - 1];
        uint64_t past = s->page + s->handle->pages;
        if (past <= end) /* else it goes on behind the hole */
            return past << p->shift;
        below = s->page;
    }
    return hole->start;
}

void mf_shadows_sweep(memfit_pool *pool, uint64_t first, uint64_t past)
{
    if (pool->pages.shadow_count)
        sweep(pool, first, past);
}

bool mf_shadow_room(memfit_pool *pool)
{
    if (pool->pages.shadow_count == MF_SHADOWS)
        mf_shadows_sweep(pool, 0, UINT64_MAX);
    return pool->pages.shadow_count < MF_SHADOWS;
}

void mf_shadow_add(memfit_pool *pool, mf_handle *handle, uint64_t page, unsigned lane, uint64_t serial)
{
    mf_pages *p = &pool->pages;
    p->shadow[p->shadow_count++] = (struct mf_shadow){page, handle, serial, lane};
    handle->shadows++;
    set_alias(pool, p->shadow_count - 1, true);
}

bool mf_shadow_leave(memfit_pool *pool, mf_handle *handle)
{
    if (unused(pool) || !pool->device->table->event_sync || !mf_shadow_room(pool))
        return false;
    mf_clock_record(pool, mf_pages_clock(pool)); /* so that nobody need wait for more than this */
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
    mf_shadows_sweep(pool, 0, UINT64_MAX);
}

/* Everything on the device is past: the second stream comes, or the pool ends. */
bool mf_shadows_end(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    for (unsigned i = 0; i < p->shadow_count; i++)
        p->shadow[i].lane = 0;
    for (unsigned tries = 0; tries < 2; tries++) /* once more: a passing fault must not leak */
        for (unsigned i = 0; i < p->shadow_count;) {
            p->past_age = UINT64_MAX;
            i += !undo(pool, i);
        }
    return !p->shadow_count;
}
