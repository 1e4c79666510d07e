/*
 * moves.c: pages from where nothing is live to where they are wanted, and what that may cost.
 *
 * Which ones: idle pages (safe for all streams), first those the device is past with, then others, which stay mapped
 * where they are for a while (shadows.c); from the highest address down: the top of the range is the last resort of
 * placement, so what is idle there is the least likely to be wanted where it is. (From the lowest address up: five times
 * as many moves; from the smallest hole up: four times; the longest idle first: half as many again.) With several
 * streams also pages in the holes of the asking stream's own lane: work queued on it from now on comes after all that
 * may still touch them. Such a page is put only where all of it is that lane's, so that no other stream gets a part.
 * Before that, pages in the holes of any stream that this stream is past with: a hole is as young as its youngest byte, but
 * each page carries the serial of the last block that was freed on it (page_bits.c). Those need no old mapping.
 *
 * What it may cost: one part in a hundred of the elapsed time over any ten seconds, by the device's clock, while
 * there is room to grow instead; at the beginning twice as much at once, for what is learnt in the first steps serves
 * all the others, and what the pool grows by in them it holds as long. Time is lost when the device waits for it.
 * While the program is ahead of the device, what it spends here is only owed: it is lost when the device falls idle
 * before it is past what was queued by then, and no more of it than the device was idle. Once the device is past that and
 * has more to do, nothing is owed any more: if it falls idle later, that is the program's own pace. (A program that is
 * stopped by a full queue catches up at no cost; counted until the device fell idle at last, 241 ms were lost in a replay
 * of answers to letters in which the device had waited 41.) Where the pool waits for the device, that is owed, too. What
 * became of each time by itself the events tell, in order, however late they are asked (clock.c). (In a replay with pauses
 * all that was owed counted as lost in the next pause: growing caches held 1.09 of the live bytes instead of 1.006.) Nor does a
 * program earn in a pause what it may lose: of the time between two requests no more than 100 ms count. (Where three programs
 * went by turns on a card, each lost up to three times its part of the time it was at work.)
 *
 *     program   ...queue a   |move|   queue b   |wait for a|   queue c ...
 *     device        ...  a ........................ a  b ........ b  c ...       nothing is lost
 *
 * Where events keep no time it is known from above how long the device was idle: the time between two looks, less what
 * was still to do at the first (nothing, if what was queued before the first is not done at the second).
 *
 * The first half of what may be lost is spent freely. Of the second half: the more of it is spent, the more the pool may
 * hold beyond its peak in use (options.slack, then up to a tenth of the bytes in use). So a workload that goes on
 * moving pages comes to rest where it need not, rather than run out of time and grow at random.
 *
 * While there is plenty, a planned place grows last (place.c). That ends with the first 20 ms of moving, too, noticed or not:
 * ended by what was lost alone, ResNet50 moved seven times a step for 200 steps in which the device never waited.
 */
#include "pool/blocks.h"
#include "pool/handles.h"
#include "pool/moves.h"
#include "pool/page_bits.h"
#include "pool/pages.h"
#include "pool/repeat.h"

/* ---- idle pages --------------------------------------------------------------------------------------------- */

/* Whole handles at [first, past) become spare. */
static void take_out(memfit_pool *pool, uint64_t first, uint64_t past)
{
    for (uint64_t i = first; i < past; i++)
        if (pool->pages.handle[i]->page == i)
            mf_handle_put_spare(pool, pool->pages.handle[i]);
    mf_handle_forget_mapping(pool, first, past);
}

bool mf_pages_unmap(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    if (pool->device->table->unmap(pool->device, pool->range + (first << p->shift), (past - first) << p->shift,
                                   &pool->refused_by))
        return false;
    mf_pages_clear_idle(pool, first, past);
    take_out(pool, first, past);
    return true;
}

/* Has a step its place there, and are pages to be taken elsewhere? */
static bool kept_for_steps(const memfit_pool *pool, const mf_handle *h)
{
    return !pool->pages.from_seats && mf_repeat_seats(pool, h->page);
}

/* Can the whole handle be taken out, when pages stamped `past` or lower can? */
static bool ready(const memfit_pool *pool, const mf_handle *h, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    if (kept_for_steps(pool, h))
        return false;
    for (uint64_t i = h->page; i < h->page + h->pages; i++)
        if (p->freed[i] > past)
            return false;
    return h->pages == 1 || mf_bits_count_idle(pool, h->page, h->page + h->pages) == h->pages;
}

uint64_t mf_pages_recycle(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to, uint64_t age, bool more)
{
    mf_pages *p = &pool->pages;
    uint64_t got = 0, below = p->covered;
    while (got < want) {
        uint64_t last = mf_bits_highest_idle(pool, below);
        if (last == MF_BEYOND)
            break;
        if (last >= from && last < to) {
            below = from;
            continue;
        }
        mf_handle *h = p->handle[last];
        uint64_t first = h->page;
        below = first;
        if (!ready(pool, h, age) || (!more && h->pages > want - got) || (first < to && first + h->pages > from))
            continue;
        uint64_t past = first + h->pages;
        while (h->pages == 1 && past - first < want - got && first && !(first - 1 >= from && first - 1 < to) &&
               mf_bit(p->idle, first - 1) && p->handle[first - 1]->pages == 1 && ready(pool, p->handle[first - 1], age))
            first--;
        below = first;
        if (!mf_pages_unmap(pool, first, past))
            break;
        got += past - first;
    }
    return got;
}

/* Takes idle pages that are not past yet, from the highest down; they stay mapped where they are, as shadows, and are
 * spare. Returns how many; `more` as above. *left: there are others, but they cannot have shadows. */
static uint64_t borrow(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to, bool more, bool *left)
{
    mf_pages *p = &pool->pages;
    uint64_t got = 0, below = p->covered;
    while (got < want) {
        uint64_t page = mf_bits_highest_idle(pool, below);
        if (page == MF_BEYOND)
            break;
        mf_handle *h = p->handle[page];
        uint64_t first = h->page, past = first + h->pages;
        below = page >= from && page < to ? from : first;
        if ((first < to && past > from) || (!more && h->pages > want - got) || !ready(pool, h, UINT64_MAX))
            continue;
        if (!mf_shadow_leave(pool, h)) {
            *left = true;
            break;
        }
        mf_pages_clear_idle(pool, first, past);
        take_out(pool, first, past);
        got += past - first;
    }
    return got;
}

bool mf_moves_idle(memfit_pool *pool, uint64_t want, uint64_t first, uint64_t past, bool must)
{
    uint64_t got = 0;
    bool left;
    do {
        uint64_t age = mf_pages_past(pool);
        left = false;
        for (int pass = mf_repeat_plans(pool) ? 0 : 2; pass < 4 && got < want; pass++) {
            bool more = pass % 2; /* a bulk handle is broken only when it must be */
            pool->pages.from_seats = pass > 1;
            got += mf_pages_recycle(pool, want - got, first, past, age, more);
            if (got < want && age != UINT64_MAX && (must || !more))
                got += borrow(pool, want - got, first, past, more, &left);
        }
        pool->pages.from_seats = true;
    } while (got < want && left && (must ? mf_pages_wait(pool) : mf_pages_wait_some(pool)));
    pool->remapped_now += got;
    return got >= want || !left;
}

/* ---- pages in the holes of streams ---------------------------------------------------------------------------- */

/* Can the whole handle be taken out of the hole: all of it lies in it, and its stream is past it? */
static bool past_in_hole(const memfit_pool *pool, const mf_block *hole, const mf_handle *h)
{
    const mf_pages *p = &pool->pages;
    uint64_t low = (hole->start + p->bytes - 1) >> p->shift, high = (hole->start + hole->bytes) >> p->shift;
    if (h->page < low || h->page + h->pages > high || kept_for_steps(pool, h))
        return false;
    for (uint64_t i = h->page; i < h->page + h->pages; i++)
        if (!mf_page_past(pool, i, hole->lane))
            return false;
    return true;
}

/* From the highest page of a hole down, but for those of [from, to). */
static uint64_t take_past(memfit_pool *pool, const mf_block *hole, uint64_t want, uint64_t from, uint64_t to)
{
    const mf_pages *p = &pool->pages;
    uint64_t low = (hole->start + p->bytes - 1) >> p->shift, page = (hole->start + hole->bytes) >> p->shift, got = 0;
    page = page < p->top ? page : p->top;
    while (page > low && got < want) {
        const mf_handle *h = mf_bit(p->mapped, page - 1) ? p->handle[page - 1] : NULL;
        if (!h || h->pages > want - got || (h->page < to && h->page + h->pages > from) ||
            !past_in_hole(pool, hole, h)) {
            page = h && h->page < page ? h->page : page - 1;
            continue;
        }
        uint64_t past = h->page + h->pages, first = h->page;
        while (first > low && past - first < want - got && !(first - 1 >= from && first - 1 < to) &&
               mf_bit(p->mapped, first - 1) && p->handle[first - 1]->pages == 1 &&
               past_in_hole(pool, hole, p->handle[first - 1]))
            first--;
        if (!mf_pages_unmap(pool, first, past))
            break;
        got += past - first;
        page = first;
    }
    return got;
}

uint64_t mf_moves_past(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to)
{
    uint64_t got = 0;
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && !pool->lane[i]->graph)
            mf_clock_look(pool, &pool->lane[i]->clock);
    for (int pass = mf_repeat_plans(pool) ? 0 : 2; pass < 4; pass++) {
        pool->pages.from_seats = pass > 1;
        for (const mf_block *b = pool->tail; b && got < want; b = b->before)
            if (b->state == MF_HOLE && b->lane && !pool->lane[b->lane]->graph && mf_is_apart(pool, b) == pass % 2)
                got += take_past(pool, b, want - got, from, to);
    }
    pool->pages.from_seats = true;
    pool->remapped_now += got;
    return got;
}

/* ---- the asking stream's own pages -------------------------------------------------------------------------- */

typedef struct target {
    uint64_t first, past; /* the place */
    uint64_t from;        /* the lowest page of it that may be filled so; */
    uint64_t at;          /* those from here on are there */
} target;

/* By a page, or by the old mapping of one. */
static bool taken(const mf_pages *p, uint64_t page)
{
    return mf_bit(p->mapped, page) || mf_bit(p->shadowed, page);
}

/* Where the last `pages` of a gap begin; MF_BEYOND: there is no gap so long. */
static uint64_t next_gap(const mf_pages *p, target *t, uint32_t pages)
{
    while (t->at > t->from && taken(p, t->at - 1))
        t->at--;
    uint64_t low = t->at;
    while (low > t->from && t->at - low < pages && !taken(p, low - 1))
        low--;
    return t->at - low == pages ? low : MF_BEYOND;
}

/* Maps a handle at a second place, and lets the first go when its stream is past it. */
static bool carry(memfit_pool *pool, mf_handle *h, uint64_t to, unsigned lane, uint64_t serial)
{
    mf_pages *p = &pool->pages;
    mf_device *device = pool->device;
    mf_address address = pool->range + (to << p->shift);
    uint64_t bytes = h->pages * p->bytes, first = h->page;
    if (!mf_shadow_room(pool) || device->table->map(device, address, bytes, h->physical, &pool->refused_by))
        return false;
    if (device->table->access(device, address, bytes, &pool->refused_by)) {
        if (device->table->unmap(device, address, bytes, NULL))
            mf_shadow_add(pool, h, to, lane, pool->lane[lane]->clock.serial); /* it is tried again */
        return false;
    }
    mf_shadow_add(pool, h, first, lane, serial);
    mf_handle_forget_mapping(pool, first, first + h->pages);
    mf_handle_note_mapped(pool, h, to);
    mf_pages_stamp(pool, to << p->shift, (to + h->pages) << p->shift, lane, pool->lane[lane]->clock.serial);
    return true;
}

/* The highest handle below a page that lies in a hole wholly, has no more than `want` pages and none of the place. NULL:
 * none. */
static mf_handle *next_donor(const memfit_pool *pool, const mf_block *hole, uint64_t below, uint64_t want,
                             const target *t)
{
    const mf_pages *p = &pool->pages;
    uint64_t low = (hole->start + p->bytes - 1) >> p->shift, page = (hole->start + hole->bytes) >> p->shift;
    page = page < p->top ? page : p->top;
    for (page = page < below ? page : below; page > low; page--) {
        mf_handle *h = mf_bit(p->mapped, page - 1) ? p->handle[page - 1] : NULL;
        if (h && h->page >= low && h->page + h->pages <= page && h->pages <= want && !kept_for_steps(pool, h) &&
            !(h->page < t->past && h->page + h->pages > t->first))
            return h;
    }
    return NULL;
}

static bool any_donor(const memfit_pool *pool, unsigned lane, uint64_t want, const target *t)
{
    for (const mf_block *b = pool->tail; b; b = b->before)
        if (b->state == MF_HOLE && b->lane == lane && next_donor(pool, b, MF_BEYOND, want, t))
            return true;
    return false;
}

/* From one hole, from its highest page down. Returns how many. */
static uint64_t carry_from(memfit_pool *pool, const mf_block *hole, unsigned lane, uint64_t want, target *t)
{
    uint64_t got = 0, below = MF_BEYOND;
    mf_handle *h;
    while (got < want && (h = next_donor(pool, hole, below, want - got, t))) {
        uint64_t to = next_gap(&pool->pages, t, h->pages);
        below = h->page;
        if (to == MF_BEYOND)
            continue;
        if (!carry(pool, h, to, lane, hole->serial))
            break;
        got += h->pages;
    }
    return got;
}

/* The pages that the place lies in become the lane's own, as far as the hole goes. */
static mf_block *claim(memfit_pool *pool, mf_block *hole, unsigned lane, const target *t)
{
    uint64_t from = t->first << pool->pages.shift, to = t->past << pool->pages.shift;
    uint64_t end = hole->start + hole->bytes;
    from = from < hole->start ? hole->start : from;
    to = to < end ? to : end;
    if (!hole->lane)
        return mf_hole_claim(pool, hole, from, to - from, lane);
    hole->serial =
        pool->lane[lane]->clock.serial & MF_SERIAL_MOST; /* what is left of it waits for the pages' old use */
    return hole;
}

uint64_t mf_moves_own(memfit_pool *pool, mf_block **hole, unsigned lane, uint64_t want, uint64_t start, uint64_t bytes)
{
    const mf_pages *p = &pool->pages;
    uint64_t low = ((*hole)->start + p->bytes - 1) >> p->shift, got = 0;
    uint64_t high = ((*hole)->start + (*hole)->bytes) >> p->shift;
    target t = {.first = start >> p->shift, .past = ((start + bytes - 1) >> p->shift) + 1};
    t.from = low > t.first ? low : t.first;
    t.at = high < t.past ? high : t.past;
    if (!pool->device->table->event_sync || mf_fence_is_graph(pool, lane) || t.at <= t.from ||
        !any_donor(pool, lane, want, &t) ||
        !mf_clock_record(pool, &pool->lane[lane]->clock)) /* so that nobody need wait for more than this */
        return 0;
    *hole = claim(pool, *hole, lane, &t);
    if (mf_shadows_over(pool, t.from, t.at)) /* those that are past are in the way of nothing but this */
        mf_shadows_sweep(pool, t.from, t.at);
    for (int pass = mf_repeat_plans(pool) ? 0 : 1; pass < 2; pass++) {
        pool->pages.from_seats = pass;
        for (const mf_block *b = pool->tail; b && got < want && t.at > t.from; b = b->before)
            if (b->state == MF_HOLE && b->lane == lane)
                got += carry_from(pool, b, lane, want - got, &t);
    }
    pool->pages.from_seats = true;
    pool->remapped_now += got;
    return got;
}

/* ---- what it may cost --------------------------------------------------------------------------------------- */

enum { CREDIT = MF_MOVE_WINDOW / MF_MOVE_SHARE, KEPT = MF_SHADOWS - 48 /* old mappings: room for the next moves */ };

/* A hundredth of the time that went by. What there is more at the beginning does not come again. */
static void earn(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    uint64_t now = mf_device_now_us(pool->device);
    int64_t more = (int64_t)((now - p->credit_at_us) / MF_MOVE_SHARE), room = CREDIT - p->move_credit_us;
    p->credit_at_us = now - (now - p->credit_at_us) % MF_MOVE_SHARE;
    if (room > 0)
        p->move_credit_us += more < room ? more : room;
}

/* What a program may lose is a part of the time it is at work: in a pause nothing is earned. */
void mf_moves_asked(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    uint64_t now = mf_device_now_us(pool->device), passed = now - p->asked_at_us, unearned = now - p->credit_at_us;
    uint64_t pause = passed > MF_MOVE_PAUSE ? passed - MF_MOVE_PAUSE : 0;
    p->credit_at_us += pause < unearned ? pause : unearned;
    p->asked_at_us = now;
}

bool mf_moves_allowed(memfit_pool *pool)
{
    earn(pool);
    return pool->pages.move_credit_us > (pool->pages.invest ? -CREDIT : 0);
}

bool mf_moves_plenty(const memfit_pool *pool)
{
    return pool->pages.move_credit_us > MF_MOVE_FIRST * CREDIT / 4 * 3 && pool->moving_us < MF_MOVE_EARLY;
}

double mf_moves_spent(const memfit_pool *pool)
{
    int64_t left = pool->pages.move_credit_us, half = CREDIT / 2;
    double spent = left < 0 ? 1.0 : left > half ? 0.0 : 1.0 - (double)left / (double)half;
    double restless = mf_repeat_restless(pool);
    return spent > restless ? spent : restless;
}

void mf_moves_look(memfit_pool *pool)
{
    mf_pages *p = &pool->pages;
    uint64_t lead = mf_fence_lead_us(pool), now = mf_device_now_us(pool->device), passed = now - p->looked_us;
    if (!mf_fence_keeps_time(pool)) { /* not more than it was not behind */
        uint64_t idle = lead < passed && p->lead_us < passed ? passed - p->lead_us : 0;
        p->lost_now_us = p->owed_us < idle ? p->owed_us : idle;
        p->owed_us -= p->lost_now_us;
        if (lead && now - lead > p->owed_at_us) /* what it is at was queued after that, and it was not idle between */
            p->owed_us = 0;
    }
    earn(pool);
    p->move_credit_us -= (int64_t)p->lost_now_us;
    pool->lost_us += p->lost_now_us;
    p->lost_now_us = 0;
    p->lead_us = lead;
    p->looked_us = now;
}

void mf_moves_owe(memfit_pool *pool, uint64_t us)
{
    mf_pages *p = &pool->pages;
    p->owed_all_us += us;
    p->owed_us += us;
    if (p->owed_us > CREDIT) /* no device is further behind than that */
        p->owed_us = CREDIT;
    p->owed_at_us = mf_device_now_us(pool->device);
    mf_moves_look(pool);
}

void mf_moves_charge(memfit_pool *pool, uint64_t us)
{
    pool->moving_us += us;
    mf_moves_owe(pool, us);
}

void mf_moves_tidy(memfit_pool *pool)
{
    if (pool->pages.shadow_count <= KEPT)
        return mf_shadows_look(pool);
    uint64_t began = mf_device_now_us(pool->device);
    mf_moves_look(pool);
    mf_shadows_sweep(pool, 0, UINT64_MAX);
    mf_moves_charge(pool, mf_device_now_us(pool->device) - began);
}
