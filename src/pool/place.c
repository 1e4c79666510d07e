/*
 * place.c: where a block goes. Where a plan wants it (repeat.c); what is not of the main stream, away from it (apart.c).
 * Otherwise in this order, until one will do:
 *   1. the best fit over the holes, whether or not there is memory behind them, the tail when no hole will do;
 *   2. if that needs pages, and memory may be given for time (options.slack) or the device would have to be waited for:
 *      the place that needs the fewest pages and no wait, at the start of a hole; if the pool may not simply grow, also
 *      further up in it (texts that grow: 1.012 of the live bytes instead of 1.069). With several streams always, and
 *      also across holes side by side, of the asking stream's lane and of nobody. With one stream the device is waited
 *      for, as long as it has more to do behind that, if 16 pages fewer are needed then: what a long text left is the
 *      place for the next one (replayed: 1.013 of the live bytes instead of 1.027);
 *   3. with several streams, the same once more after other streams' memory that they are done with has become free, and has
 *      been waited for, as long as the program keeps a third of its lead (more of that only where the pool would come to hold
 *      more than a tenth beside its use: ResNet34 lost 1.7 ms of its 35 ms steps to such waits);
 *   4. the place, of all, that needs the fewest pages that are in use nowhere, at both ends of every hole;
 *   5. that one, with new pages.
 * A seat of a plan may grow before other places are tried; with one stream, while there is plenty of time for moving pages,
 * after them: what the pool grows by in the first steps it keeps.
 * Pages that are missing are put there (pages.c); before 5. the pool does not grow beyond its peak in use.
 *
 * Measured over seven training traces with 2 MiB pages: physical per live byte at the peak at most 1.0037. Why best fit
 * works: training asks for the same sizes in the same order, so a hole that kept its exact size is filled exactly again,
 * and holes at the peak are few. Splitting happens always. Why 2. helps: on a card whose streams are behind, a page moved
 * away is missed in the next step; fewest pages first leaves 14 moves of 1206 on ResNet50, 10 of 334 on GPT-2 (with a
 * slack of 1 %), and holds 1 % more where blocks are hardly longer than a page.
 *
 * At the tail a request never needs more pages than its bytes fill. So at the limit a request fails only if the pages
 * that hold a live byte, and its own, are more than the limit allows.
 *
 * Tried and dropped: lowest address first (1.09), best fit among backed holes first (1.0475 on one trace), exact fits
 * first and then backed ones (1.0077), weighing missing pages against bytes left over (no better than plain best fit),
 * large blocks from the other end (no gain).
 */
#include "pool/apart.h"
#include "pool/blocks.h"
#include "pool/cache.h"
#include "pool/lanes.h"
#include "pool/moves.h"
#include "pool/page_bits.h"
#include "pool/pages.h"
#include "pool/repeat.h"

#include "base/error.h"

/* Alignment is of addresses, not of offsets: the range itself is aligned to a page only. */
static uint64_t align_up(const memfit_pool *pool, uint64_t offset, uint64_t alignment)
{
    uint64_t base = pool->range & (alignment - 1);
    return ((offset + base + alignment - 1) & ~(alignment - 1)) - base;
}

static uint64_t align_down(const memfit_pool *pool, uint64_t offset, uint64_t alignment)
{
    uint64_t base = pool->range & (alignment - 1), aligned = (offset + base) & ~(alignment - 1);
    return aligned < base ? MF_BEYOND : aligned - base;
}

static mf_block *choose(memfit_pool *pool, uint64_t want, unsigned lane)
{
    mf_block *hole = mf_bins_fit(&pool->lane[0]->bins, want);
    if (lane) {
        mf_block *own = mf_bins_fit(&pool->lane[lane]->bins, want);
        if (own && (!hole || own->bytes <= hole->bytes))
            hole = own;
    }
    if (!hole && pool->tail->bytes > want)
        hole = pool->tail;
    return hole;
}

static mf_block *find_hole(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, uint64_t *start)
{
    mf_block *hole;
    if (alignment > MF_UNIT && (hole = choose(pool, bytes, lane))) { /* one that happens to lie right */
        *start = align_up(pool, hole->start, alignment);
        if (*start - hole->start <= hole->bytes - bytes && hole != pool->tail)
            return hole;
    }
    hole = choose(pool, alignment > MF_UNIT ? bytes + alignment - MF_UNIT : bytes, lane);
    *start = hole ? align_up(pool, hole->start, alignment) : 0;
    return hole;
}

/* How many pages are missing at a place, but for those that are there as soon as they are wanted. *wait: old mappings of
 * others would have to be undone first, and the device waited for. */
static uint64_t needs(const memfit_pool *pool, uint64_t start, uint64_t bytes, bool *wait)
{
    uint64_t shift = pool->pages.shift, first = start >> shift, past = ((start + bytes - 1) >> shift) + 1;
    uint64_t missing = mf_pages_missing(pool, start, bytes);
    *wait = false;
    return !missing || !mf_shadows_over(pool, first, past) ? missing : mf_shadows_needs(pool, first, past, wait);
}

static bool must_wait(const memfit_pool *pool, uint64_t start, uint64_t bytes)
{
    bool wait;
    needs(pool, start, bytes, &wait);
    return wait;
}

typedef struct spot {
    mf_block *hole;
    uint64_t start;
    uint64_t pages; /* that would no longer be idle, or have to come */
} spot;

static void consider(memfit_pool *pool, spot *best, mf_block *hole, uint64_t start, uint64_t bytes, bool no_wait)
{
    if (start < hole->start || start - hole->start > hole->bytes || bytes > hole->bytes - (start - hole->start) ||
        (hole == pool->tail && start + bytes > mf_tail_most(pool)))
        return;
    uint64_t shift = pool->pages.shift, first = start >> shift, past = ((start + bytes - 1) >> shift) + 1;
    uint64_t pages;
    if (hole->lane) {
        pages = mf_pages_missing(pool, start, bytes);
    } else { /* those that lie wholly in the hole */
        uint64_t end = hole->start + hole->bytes;
        pages = past - first;
        if (first << shift < hole->start)
            pages--;
        if (past << shift > end && (past - 1 > first || first << shift >= hole->start))
            pages--;
    }
    if ((!best->hole || pages < best->pages) && !(no_wait && must_wait(pool, start, bytes)))
        *best = (spot){hole, start, pages};
}

/* The place, of all, that needs the fewest pages. */
static spot least(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, bool no_wait)
{
    spot best = {0};
    for (mf_block *b = pool->first; b; b = b->after) {
        if (b->state != MF_HOLE || b->bytes < bytes || (b->lane && b->lane != lane) ||
            (no_wait && mf_is_apart(pool, b)))
            continue;
        consider(pool, &best, b, align_up(pool, b->start, alignment), bytes, no_wait);
        if (b != pool->tail)
            consider(pool, &best, b, align_down(pool, b->start + b->bytes - bytes, alignment), bytes, no_wait);
        uint64_t whole = alignment > pool->pages.bytes ? alignment : pool->pages.bytes;
        consider(pool, &best, b, align_up(pool, b->start, whole), bytes, no_wait);
    }
    return best;
}

/* Where the last page of a hole that is mapped ends, as an offset; the hole's start: none is. */
static uint64_t mapped_end(const memfit_pool *pool, const mf_block *hole)
{
    uint64_t shift = pool->pages.shift;
    uint64_t page = mf_bits_highest_mapped(pool, hole->start >> shift, (hole->start + hole->bytes) >> shift);
    uint64_t end = page == MF_BEYOND ? 0 : (page + 1) << shift;
    return end > hole->start ? end : hole->start;
}

/* A place further up in a hole that needs fewer pages than `pages`, and no wait; returns how many then. With several
 * streams only what takes half of the hole is cut out of it: most of what is missing later could not be moved there. */
static uint64_t further_up(const memfit_pool *pool, const mf_block *hole, uint64_t bytes, uint64_t alignment,
                           uint64_t pages, uint64_t *start, bool *wait)
{
    uint64_t page = pool->pages.bytes, mapped = mapped_end(pool, hole), end = hole->start + hole->bytes;
    if (pool->multi && bytes < (mapped - hole->start) / 2)
        return pages;
    if (pool->multi || end > pool->pages.top << pool->pages.shift) /* a hole without end, perhaps */
        end = mapped;
    if (hole == pool->tail && end > mf_tail_most(pool))
        end = mf_tail_most(pool);
    uint64_t shift = pool->pages.shift, bare = 0, slid = MF_BEYOND, count = (bytes + page - 1) >> shift;
    for (uint64_t at = mf_round_up(hole->start + 1, page); pages && at + bytes <= end; at += page) {
        uint64_t from = align_up(pool, at, alignment), first = from >> shift;
        if (first == slid + 1)
            bare += mf_bit_bare(&pool->pages, first + count - 1) - mf_bit_bare(&pool->pages, slid);
        else
            bare = mf_bits_bare(pool, from, bytes);
        slid = first;
        if (bare >= pages) /* as many at least would have to come */
            continue;
        uint64_t needed = from + bytes <= end ? mf_shadows_fewer(pool, first, first + count, pages) : pages;
        if (needed >= pages)
            continue;
        pages = needed;
        *start = from;
        *wait = false;
    }
    return pages;
}

/* A hole that is large enough: is the place in it better? Of equal ones the lowest is. */
static void weigh(memfit_pool *pool, spot *best, mf_block *b, uint64_t bytes, uint64_t alignment, bool no_wait)
{
    if (best->hole && !best->pages && b->bytes > best->hole->bytes)
        return;
    uint64_t start = align_up(pool, b->start, alignment);
    if (no_wait && must_wait(pool, start, bytes))
        start = align_up(pool, mf_beyond_shadows(pool, b), alignment);
    if (start - b->start > b->bytes - bytes || (b == pool->tail && start - b->start == b->bytes - bytes))
        return;
    bool wait;
    uint64_t pages = needs(pool, start, bytes, &wait);
    if (pages && !mf_pages_easy(pool, start, bytes))
        pages = further_up(pool, b, bytes, alignment, pages, &start, &wait);
    if (best->hole && (pages > best->pages || (pages == best->pages && b->bytes > best->hole->bytes)))
        return;
    if (best->hole && pages == best->pages && b->bytes == best->hole->bytes && b->start > best->hole->start)
        return;
    if (!wait || !no_wait)
        *best = (spot){b, start, pages};
}

/* Of the places (that need no wait) the one with the fewest missing pages, then the smallest. */
static spot fewest(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, bool no_wait)
{
    spot best = {0};
    for (unsigned own = 0; own <= (lane != 0); own++) { /* nobody's holes, the lane's */
        const mf_bins *bins = &pool->lane[own ? lane : 0]->bins;
        for (mf_block *b = NULL; (b = mf_bins_next(bins, b, bytes));)
            weigh(pool, &best, b, bytes, alignment, no_wait);
    }
    if (pool->tail->bytes >= bytes && !(mf_is_apart(pool, pool->tail) && best.hole))
        weigh(pool, &best, pool->tail, bytes, alignment, no_wait);
    return best;
}

/* Holes side by side, of this lane and of nobody, that together are a place with fewer pages missing than `most`. */
typedef struct run {
    mf_block *first, *last;
    uint64_t missing;
} run;

static run side_by_side(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, uint64_t most)
{
    run best = {.missing = most};
    uint64_t least_bytes = 0;
    for (mf_block *b = pool->first, *last; b; b = last->after) {
        last = b;
        if (b->state != MF_HOLE || (b->lane && b->lane != lane) || mf_is_apart(pool, b))
            continue;
        while (last->after && !mf_is_apart(pool, last->after) && last->after->state == MF_HOLE &&
               (!last->after->lane || last->after->lane == lane))
            last = last->after;
        uint64_t start = align_up(pool, b->start, alignment), end = last->start + last->bytes;
        if (start > end || end - start < bytes || (last == pool->tail && end - start == bytes))
            continue;
        bool wait;
        uint64_t missing = needs(pool, start, bytes, &wait);
        bool better = missing < best.missing || (best.first && missing == best.missing && end - b->start < least_bytes);
        if (!better || wait)
            continue;
        best = (run){b, last, missing};
        least_bytes = end - b->start;
    }
    return best;
}

/* A place in several holes side by side when that needs fewer pages. */
static mf_block *across_holes(memfit_pool *pool, mf_block *hole, uint64_t bytes, uint64_t alignment, unsigned lane,
                              uint64_t *start)
{
    bool wait;
    uint64_t missing = hole ? needs(pool, *start, bytes, &wait) : UINT64_MAX;
    run r = missing ? side_by_side(pool, bytes, alignment, lane, missing) : (run){0};
    if (!r.first || (r.first == r.last && r.first == pool->tail) || !mf_blocks_reserve(pool, 2))
        return hole;
    *start = align_up(pool, r.first->start, alignment);
    if (r.first == r.last)
        return r.first;
    uint64_t end = mf_round_up(*start + bytes, pool->pages.bytes);
    while (r.last != r.first && r.last->start >= end) /* no more of them than are wanted */
        r.last = r.last->before;
    if (r.first == r.last)
        return r.first;
    return mf_holes_join(pool, r.first, r.last, lane, end - r.last->start);
}

/* Pages that came before others could not: they lie in the hole, idle. */
static void leave_idle(memfit_pool *pool, const mf_block *hole, uint64_t start, uint64_t bytes)
{
    uint64_t shift = pool->pages.shift, page = pool->pages.bytes;
    uint64_t first = (hole->start + page - 1) >> shift, past = (hole->start + hole->bytes) >> shift;
    uint64_t last = (start + bytes + page - 1) >> shift;
    first = first < start >> shift ? start >> shift : first;
    past = past < last ? past : last;
    if (!hole->lane && first < past)
        mf_pages_set_idle(pool, first, past);
}

typedef struct wish {
    uint64_t bytes, alignment;
    unsigned lane;
    mf_block_state state;
    memfit_error *err;
    mf_block *hole; /* where it is tried now */
    uint64_t start;
    bool aside;     /* of another stream than the main one (apart.c) */
    bool unplanned; /* what a plan (repeat.c) says does not matter any more */
    mf_seat seat;   /* what it said last */
} wish;

/* Old mappings lie over a seat, and the device is not past them: it is waited for, as long as it has more to do behind that.
 * Anywhere else the block would take the pages of other seats. */
static bool seat_is_free(memfit_pool *pool, const wish *w)
{
    bool wait = must_wait(pool, w->start, w->bytes);
    while (wait && mf_pages_wait_some(pool)) {
        mf_shadows_look(pool);
        wait = must_wait(pool, w->start, w->bytes);
    }
    return !wait;
}

/* The place that needs the fewest pages and no wait; that it needs none the device is waited for where that saves enough. */
static spot soon(memfit_pool *pool, const wish *w)
{
    enum { WORTH = 16 }; /* pages */
    spot now = fewest(pool, w->bytes, w->alignment, w->lane, true);
    while (!pool->multi && pool->pages.shadow_count && (!now.hole || now.pages > WORTH)) {
        spot later = fewest(pool, w->bytes, w->alignment, w->lane, false);
        if (!later.hole || (now.hole && later.pages + WORTH > now.pages) || !mf_pages_wait_some(pool))
            break;
        mf_shadows_look(pool);
        now = fewest(pool, w->bytes, w->alignment, w->lane, true);
    }
    return now;
}

/* A place for a span in no page that a seat lies in: it stays for as long as anything small in it does, and in a seat it would be in
 * the way in every step, and elsewhere again when the step was packed anew. One that is there already, or the lowest. */
static mf_seat beside_seats(memfit_pool *pool, wish *w)
{
    w->hole = NULL;
    for (mf_block *b = pool->first; b; b = b->after) {
        if (b->state != MF_HOLE || (b->lane && b->lane != w->lane) || mf_is_apart(pool, b))
            continue;
        uint64_t end = b->start + b->bytes - (b == pool->tail), mapped = mapped_end(pool, b);
        for (uint64_t at = align_up(pool, b->start, w->alignment); at + w->bytes <= end; at += w->alignment) {
            if (mf_repeat_seats(pool, at >> pool->pages.shift))
                continue;
            bool there = !mf_pages_missing(pool, at, w->bytes);
            if (!there && w->hole && at >= mapped) /* none further up is */
                break;
            if (!there && (w->hole || must_wait(pool, at, w->bytes)))
                continue;
            w->hole = b;
            w->start = at;
            if (there)
                return MF_SEAT_ABOVE;
        }
    }
    return w->hole ? MF_SEAT_ABOVE : MF_SEAT_NONE;
}

/* What a plan says. */
static mf_seat planned(memfit_pool *pool, wish *w)
{
    if (!pool->repeat || w->unplanned)
        return MF_SEAT_NONE;
    if (w->state == MF_LIVE)
        return mf_repeat_next(pool, w->bytes, w->alignment, w->lane, &w->hole, &w->start);
    return mf_repeat_plans(pool) && !w->aside ? beside_seats(pool, w) : MF_SEAT_NONE;
}

/* The best place for now: best fit, if it needs no pages. Otherwise, if memory may be given for time (options.slack) or
 * the device would have to be waited for, the one that needs the fewest pages and no wait. */
static void look(memfit_pool *pool, wish *w)
{
    w->seat = planned(pool, w);
    if (w->seat == MF_SEAT && !seat_is_free(pool, w)) {
        w->hole =
            mf_repeat_above(pool, w->bytes, w->alignment, w->lane, &w->start); /* the next time the place is there */
        w->seat = w->hole ? MF_SEAT_ABOVE : MF_SEAT_NONE;
    }
    if (w->seat == MF_SEAT_NONE && w->aside &&
        (w->hole = mf_apart(pool, pool->apart, w->bytes, w->alignment, w->lane, &w->start)))
        w->seat = MF_SEAT_APART;
    if (w->seat != MF_SEAT_NONE)
        return;
    w->hole = find_hole(pool, w->bytes, w->alignment, w->lane, &w->start);
    if (w->hole && !mf_pages_missing(pool, w->start, w->bytes))
        return;
    mf_moves_tidy(pool);
    if (pool->multi)
        w->hole = across_holes(pool, w->hole, w->bytes, w->alignment, w->lane, &w->start);
    bool wait = false;
    if (!w->hole || (needs(pool, w->start, w->bytes, &wait) && (pool->options.slack > 0 || wait))) {
        spot other = soon(pool, w);
        w->hole = other.hole ? other.hole : w->hole;
        w->start = other.hole ? other.start : w->start;
    }
}

/* Records, a way to find it, and pages for [start, start + bytes) in the hole. */
static memfit_status attempt(memfit_pool *pool, wish *w, mf_growth growth)
{
    if (!w->hole) {
        pool->refusal = MF_REFUSED_ADDRESS;
        return MEMFIT_OUT_OF_MEMORY;
    }
    bool findable = w->state == MF_SPAN ? mf_cells_reserve(pool, w->start, w->bytes) : mf_table_reserve(pool);
    if (!findable || !mf_blocks_reserve(pool, 4)) {
        pool->refusal = MF_REFUSED_HOST;
        return MEMFIT_NO_HOST_MEMORY;
    }
    pool->pages.invest = w->seat == MF_SEAT;
    memfit_status status = mf_pages_back(pool, &w->hole, w->start, w->bytes, w->lane, growth, w->err);
    pool->pages.invest = false;
    if (status)
        leave_idle(pool, w->hole, w->start, w->bytes);
    return status;
}

static bool has_seat(const wish *w)
{
    return w->seat == MF_SEAT || w->seat == MF_SEAT_ABOVE;
}

/* At its seat the pool may grow up to all the slack there can be: then no page need move there any more. */
static memfit_status grow_seat(memfit_pool *pool, wish *w)
{
    return has_seat(w) && mf_pages_in_slack(pool, w->start, w->bytes) ? attempt(pool, w, MF_GROW_TO_SOFT)
                                                                      : MEMFIT_OUT_OF_MEMORY;
}

/* The place that needs the fewest pages of all. */
static memfit_status with_fewest(memfit_pool *pool, wish *w)
{
    spot other = least(pool, w->bytes, w->alignment, w->lane, true);
    if (!other.hole || (other.hole == w->hole && other.start == w->start))
        return MEMFIT_OUT_OF_MEMORY;
    w->start = other.start;
    w->hole = other.hole;
    return attempt(pool, w, MF_GROW_NOT);
}

/* How much work must be left behind what is waited for, so that the device does not fall idle: a third of the lead. */
static uint64_t lead_to_keep(const memfit_pool *pool)
{
    enum { KEEP_PART = 3 };
    uint64_t keep = mf_lanes_lead_us(pool) / KEEP_PART;
    return keep > MF_QUEUED_US ? keep : MF_QUEUED_US;
}

/* Until a stream is a bit further, with so much to do behind that; then the best place anew. */
static bool wait_some(memfit_pool *pool, wish *w, uint64_t keep_us, uint64_t *waited_us)
{
    uint64_t began = mf_device_now_us(pool->device);
    if (!mf_lanes_wait_some(pool, keep_us))
        return false;
    *waited_us += mf_device_now_us(pool->device) - began;
    mf_lanes_poll_for(pool, w->lane);
    look(pool, w);
    return true;
}

/* Has there been as much in use before? */
static bool was_enough(const memfit_pool *pool, const wish *w)
{
    return pool->options.slack > 0 && w->hole && pool->total.now + w->bytes < pool->total.peak;
}

/* What a side stream asks for is most often what it had, and comes back to it when the streams that used it are past with it. When
 * the pool holds all it may rather than move pages, and would go on moving some in every step, that is waited for first, as long as
 * the program keeps a part of its lead. (Sound that is made pictures of on a side stream, three batches ahead of a ResNet34: the
 * lead was two batches more, and a tenth of the time went into moving 90 pages a step to them and back.) */
static void await_own(memfit_pool *pool, wish *w)
{
    if (!mf_fence_holds(pool, w->lane))
        return;
    uint64_t waited_us = 0, keep_us = lead_to_keep(pool);
    while (was_enough(pool, w) && !mf_pages_in_slack(pool, w->start, w->bytes) &&
           mf_pages_missing(pool, w->start, w->bytes) && mf_fence_holds(pool, w->lane) &&
           wait_some(pool, w, keep_us, &waited_us)) {}
    if (waited_us)
        mf_moves_owe(pool, waited_us);
}

/* Before the pool grows: what other streams are done with, then the place that needs the fewest pages of all. What is
 * taken from other streams they may have to make anew, so what the stream has itself comes first. A seat may grow before
 * other places are tried; with one stream, while there is plenty of time for moving pages, after them. */
static memfit_status without_growth(memfit_pool *pool, wish *w)
{
    if (w->aside)
        await_own(pool, w);
    memfit_status status = attempt(pool, w, MF_GROW_NOT);
    if (status == MEMFIT_OUT_OF_MEMORY && pool->multi) {
        mf_lanes_poll_for(pool, w->lane);
        look(pool, w);
        status = attempt(pool, w, MF_GROW_NOT);
    }
    bool seated = has_seat(w), last = !pool->multi && mf_moves_plenty(pool);
    if (status == MEMFIT_OUT_OF_MEMORY && !last)
        status = grow_seat(pool, w);
    if (status == MEMFIT_OUT_OF_MEMORY && seated) {
        w->unplanned = true;
        look(pool, w);
        status = attempt(pool, w, MF_GROW_NOT);
    }
    if (status == MEMFIT_OUT_OF_MEMORY && w->seat != MF_SEAT_APART)
        status = with_fewest(pool, w);
    if (status == MEMFIT_OUT_OF_MEMORY && seated && last) {
        w->unplanned = false;
        look(pool, w);
        status = grow_seat(pool, w);
    }
    return status;
}

/* Before it grows beyond all slack it waits for old mappings where there are pages: they are behind work of earlier, and
 * the device has more to do meanwhile. Otherwise a stream that is far behind could make it grow at fresh addresses all
 * the time. */
static void rather_wait(memfit_pool *pool, wish *w)
{
    bool wait;
    if (!pool->pages.shadow_count || w->seat == MF_SEAT_APART ||
        (w->hole && mf_pages_in_slack(pool, w->start, w->bytes)))
        return;
    spot other = fewest(pool, w->bytes, w->alignment, w->lane, false);
    if (!other.hole || (w->hole && other.pages >= needs(pool, w->start, w->bytes, &wait)))
        return;
    w->hole = other.hole;
    w->start = other.start;
}

/* Before it grows beyond the slack it waits for memory that streams are not past with: in-flight inputs of a side stream are many
 * when the program runs far ahead of the device. The device has work all the while, so nothing is lost by it but some of the
 * program's lead: most of that only before it grows beyond all slack there can be, and while there is time that may be lost. */
static memfit_status wait_for_others(memfit_pool *pool, wish *w)
{
    memfit_status status = MEMFIT_OUT_OF_MEMORY;
    uint64_t waited_us = 0, keep_us = lead_to_keep(pool);
    for (unsigned deep = 0; deep < 2 && status == MEMFIT_OUT_OF_MEMORY; deep++) {
        if (deep && (!w->hole || mf_pages_in_slack(pool, w->start, w->bytes) || !mf_moves_allowed(pool)))
            break;
        while (status == MEMFIT_OUT_OF_MEMORY && was_enough(pool, w) && !mf_pages_easy(pool, w->start, w->bytes) &&
               wait_some(pool, w, deep ? MF_QUEUED_US : keep_us, &waited_us))
            status = attempt(pool, w, MF_GROW_NOT);
    }
    if (waited_us)
        mf_moves_owe(pool, waited_us);
    return status;
}

/* It was refused. At the limit the place that needs the fewest pages decides, whatever it costs. */
static memfit_status at_the_limit(memfit_pool *pool, wish *w, mf_growth growth)
{
    mf_refusal why = pool->refusal;
    memfit_status status = MEMFIT_OUT_OF_MEMORY;
    spot other = least(pool, w->bytes, w->alignment, w->lane, false);
    if (other.hole && (other.hole != w->hole || other.start != w->start)) {
        w->hole = other.hole;
        w->start = other.start;
        status = attempt(pool, w, growth);
    }
    if (status && other.hole)
        pool->refused_pages = other.pages;
    if (status && why != MF_REFUSED_LIMIT && pool->refusal == MF_REFUSED_LIMIT && why != MF_REFUSED_ADDRESS)
        pool->refusal = why;
    return status;
}

mf_block *mf_place(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block_state state,
                   bool grow_soft, memfit_error *err)
{
    wish w = {bytes, alignment, lane, state, err};
    w.aside = mf_apart_is_aside(pool, bytes, lane);
    mf_growth growth = grow_soft ? MF_GROW_TO_LIMIT : MF_GROW_TO_SOFT;
    pool->refusal = MF_REFUSED_NOT;
    pool->refused_pages = (bytes + pool->pages.bytes - 1) >> pool->pages.shift;
    pool->pages.made_now = pool->remapped_now = 0;
    if (bytes > pool->range_bytes || alignment > pool->range_bytes) {
        pool->refusal = MF_REFUSED_LIMIT;
        return NULL;
    }
    /* What threads keep may be the better place: GPT-2, whose backward pass has its own thread, 1.010 instead of 1.038. */
    if (bytes >= pool->pages.bytes && mf_caches_keep(pool))
        mf_caches_settle(pool);
    look(pool, &w);
    if (w.hole && mf_caches_keep(pool) && mf_pages_missing(pool, w.start, bytes) && mf_caches_settle(pool))
        look(pool, &w); /* what threads keep comes first */
    mf_table_warm(pool, w.start);
    memfit_status status = without_growth(pool, &w);
    if (status == MEMFIT_OUT_OF_MEMORY || pool->remapped_now)
        mf_repeat_needed(pool, status == MEMFIT_OUT_OF_MEMORY);
    if (status == MEMFIT_OUT_OF_MEMORY && pool->multi)
        status = wait_for_others(pool, &w);
    if (status == MEMFIT_OUT_OF_MEMORY) {
        rather_wait(pool, &w);
        pool->refusal = MF_REFUSED_NOT;
        status = attempt(pool, &w, growth);
    }
    if (status == MEMFIT_OUT_OF_MEMORY && pool->refusal != MF_REFUSED_NOT)
        status = at_the_limit(pool, &w, growth);
    if (!status) {
        mf_block *block = mf_block_cut(pool, w.hole, w.start, bytes, state);
        if (state == MF_LIVE)
            mf_repeat_note(pool, block, lane);
        return block;
    }
    mf_pages_give_back_made(pool);
    return NULL;
}
