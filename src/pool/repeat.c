/*
 * repeat.c: a program does a few kinds of steps again and again: training, with batches of some sizes, on two models by
 * turns, a test now and then. Each kind asks for the same sizes in the same order every time. The main stream's requests
 * are noted, with one stream once pages have been missing, with several always. A kind is packed as a
 * whole (step_kinds.c, seats.c), and from then on its blocks go to their places, whatever kind came before.
 *
 *     in use       /\  /\      /\    /\  /\      /\
 *                 /  \/  \    /  \  /  \/  \    /  \
 *     ___________/        \__/    \/        \__/    \___     a step ends where the use is as low as ever (and rose before)
 *                  kind A      B       A         B
 *
 * Which kind it is shows only as it goes on: every known kind that began with the same sizes may be it. So a kind is packed
 * with the seats of the longest beginning that it shares with another as they are, and all that are in question say the
 * same place.
 *
 * A long step whose kind is known ends where that did. A loop that draws the next batch before it gives the last one back is as
 * low as ever only when the larger of the two is gone, which says nothing: there the step begins with the batch.
 *
 * What lives on (parameters, the next batch) and what another stream still used when it was freed goes above all seats, or
 * apart (apart.c), and so does who finds its seat taken, unless the pool had to grow for it. What outlives its step has a
 * seat where the next step is of the same kind. A kind whose seats are taken time after time is packed anew, around what
 * came to stay there, and so is one that was packed before it was known that the next is alike. The pool may hold what the
 * seats take, so that no page moves. With several streams they are waited for once when a kind first goes to new places.
 *
 * With one stream the tape ends when no page was missing and no kind was known for as many requests as it holds: it is
 * random access to 640 KiB for every block that goes, a quarter more time for a pair of random sizes.
 *
 * Rises that come in the same order three times are one step if they leave much for the next (a generator and a discriminator
 * a tenth) or go on moving pages for what they leave (two models by turns, each its batch): then what crosses from one to
 * the next has its place, too.
 *
 * A kind is packed only if it needs to be: if the pool had to grow in it, or moving pages took more than its share of the
 * time. On sim, whose clock is a model, the same calls get the same addresses.
 *
 * Tried and dropped: a request goes where it went the last time the same ones came before it, without packing (a generator and a
 * discriminator 1.25 instead of 1.07); the last requests must be three equal periods (sound of six lengths has none: 1.26).
 */
#include "pool/apart.h"
#include "pool/blocks.h"
#include "pool/step_kinds.h"
#include "pool/lanes.h"
#include "pool/moves.h"
#include "pool/pages.h"
#include "pool/repeat.h"

#include "base/error.h"

enum {
    SHORTEST = 32,
    LONGEST = 8192,
    SEARCH_EVERY = 64, /* at least; */
    SEARCH_PART = 16,  /* of what is on the tape */
    TIMES = 3,         /* the use was as low, and rose between */
    LOW_PART = 256,    /* of the range: as low */
    RISE_PART = 8,     /* it rose */
    LONG = 128,       /* requests; a step as long need not rise as much: on a batch of few small pictures it does not */
    REPLACES = 8,     /* requests for the next batch, before the last one is given back */
    TOP_PART = 16,    /* as high as ever */
    LEAVES_PART = 32, /* much is left, a long step rose */
    BAD_TIMES = 4,
    RESTLESS = 8,
    MOST_RESTLESS = 16, /* steps, until it may hold most */
    CALM = 4,
    REST = 10,       /* steps at rest spend no more than one part in so many of what moving pages may cost */
    NEW_KINDS = 8,   /* are packed when first seen; as many as a quarter of those that come again, too */
    GROUP = 4,       /* rises */
    MOST_BROKEN = 3, /* times that others came between steps that were one */
    SMALL_PAGES = 4,
};
_Static_assert(MF_RISES > 3 * GROUP, "three of them are seen");

static uint64_t rise_at(const mf_repeat *r, unsigned back)
{
    return back < r->rises ? r->rise[(r->rises - 1 - back) % MF_RISES] : 0;
}

static uint64_t known(const mf_repeat *r)
{
    return r->count - r->first < MF_TAPE ? r->count - r->first : MF_TAPE;
}

void mf_repeat_begin(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    if (!r) {
        r = pool->repeat = mf_host_zalloc(pool->host, sizeof *r);
        if (!r)
            return;
        pool->host_bytes += sizeof *r;
        r->count = r->first = r->needed = r->grew = r->searched = r->begun = r->before_began = r->rose = pool->noted;
        r->group = r->left = 1; /* blocks may carry numbers of an earlier tape */
    }
    r->lane = mf_apart_main(pool);
}

void mf_repeat_needed(memfit_pool *pool, bool grows)
{
    mf_repeat_begin(pool);
    mf_repeat *r = pool->repeat;
    if (r) {
        r->needed = r->count;
        r->grew = grows ? r->count : r->grew;
    }
}

void mf_repeat_end(memfit_pool *pool)
{
    if (!pool->repeat)
        return;
    for (unsigned i = 0; i < MF_KINDS; i++)
        mf_kind_drop(pool, &pool->repeat->kinds[i]);
    pool->noted = pool->repeat->count;
    mf_host_free(pool->host, pool->repeat, sizeof *pool->repeat);
    pool->host_bytes -= sizeof *pool->repeat;
    pool->repeat = NULL;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

/* Over the last `length` requests: do steps rise and fall between two levels? */
static bool levels(mf_repeat *r, uint64_t length, uint32_t top)
{
    uint32_t low = UINT32_MAX, high = 0, times = 0;
    for (uint64_t i = r->count - length; i < r->count; i++) {
        const mf_note *n = mf_note_at(r, i);
        low = n->before < low ? n->before : low;
        high = n->live > high ? n->live : high;
    }
    uint32_t range = high - low;
    if (high < top - top / TOP_PART || range < RISE_PART)
        return false;
    bool risen = false;
    for (uint64_t i = r->count - length; i < r->count; i++) {
        const mf_note *n = mf_note_at(r, i);
        times += risen && n->before <= low + range / LOW_PART;
        risen = n->live > low + range / RISE_PART || (risen && n->before > low + range / LOW_PART);
    }
    if (times < TIMES)
        return false;
    r->low = low;
    r->high = high;
    return true;
}

/* In the shortest time that shows it: parameters and states are made in the first steps. */
static void search(mf_repeat *r)
{
    uint64_t all = known(r);
    uint32_t top = 0;
    if (r->count - r->searched < (all / SEARCH_PART > SEARCH_EVERY ? all / SEARCH_PART : SEARCH_EVERY))
        return;
    bool comes = r->ended > r->searched; /* it is known, and steps end */
    r->searched = r->count;
    for (uint64_t i = r->count - all; i < r->count && !comes; i++)
        top = mf_note_at(r, i)->live > top ? mf_note_at(r, i)->live : top;
    for (uint64_t length = SEARCH_EVERY; !comes && length < 2 * all; length *= 2)
        if (levels(r, length < all ? length : all, top))
            break;
}

/* Does a step leave much for the next one? */
static bool leaves_much(const mf_repeat *r, const mf_kind *k)
{
    uint64_t leaves = 0;
    for (uint32_t i = 0; i < k->count; i++)
        leaves += !k->wants[i].life || k->wants[i].life > k->count - i ? k->wants[i].units : 0;
    return leaves * MF_UNIT / MF_LIVE_UNIT > (r->high - r->low) / LEAVES_PART;
}

/* May steps that leave little be one? Not where others came between time after time, nor with several streams: there the
 * next batch lies apart. */
static bool may_join(const memfit_pool *pool)
{
    return pool->repeat->regular && !pool->multi && pool->repeat->broken < MOST_BROKEN;
}

/* Steps that come in the same order are one, whose order of blocks is known to the end, if they leave much for the next or, packed
 * by themselves, go on moving pages for that. How many rises that is: twice as many where something outlives the next, too (the
 * batch that is given up only when the next is there), which has two places then; if they leave little only where they
 * take too much otherwise. */
static unsigned group_of(const memfit_pool *pool, const mf_kind *k)
{
    const mf_repeat *r = pool->repeat;
    bool much = r->regular && leaves_much(r, k), moves = may_join(pool) && k->packed && mf_kind_crosses(k);
    bool large = may_join(pool) && k->again && k->pages > mf_pages_easily(pool);
    if (!much && !moves && !large)
        return 1;
    uint64_t length = r->rose_at[(r->rises - 1) % MF_RISES] - r->rose_at[(r->rises - 1 - r->regular) % MF_RISES];
    return (much || large) && mf_kind_outlives(k, length) ? 2 * r->regular : r->regular;
}

static void regroup(memfit_pool *pool, unsigned group)
{
    mf_repeat *r = pool->repeat;
    for (unsigned i = 0; i < MF_KINDS && group > 1; i++) /* its parts are not kinds any more */
        mf_kind_drop(pool, &r->kinds[i]);
    r->group = group;
    r->left = 1;
    r->seen_whole = false;
}

/* A group is found: the last but one of it, whose blocks have had their ends, is on the tape. */
static void learn_group(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    unsigned g = r->group;
    if (r->rises < 2 * g + 1 || 2 * g >= MF_RISES)
        return;
    for (unsigned i = 0; i < g; i++)
        if (rise_at(r, i) != rise_at(r, i + g))
            return;
    uint64_t begun = r->rose_at[(r->rises - 1 - 2 * g) % MF_RISES], end = r->rose_at[(r->rises - 1 - g) % MF_RISES];
    bool known_whole = end - begun <= LONGEST && r->count - begun <= MF_TAPE;
    mf_kind *k = known_whole ? mf_kind_add(pool, begun, (uint32_t)(end - begun)) : NULL;
    if (!k)
        return;
    mf_kind_learn(r, k, begun);
    mf_kind_pack(pool, k);
}

/* What moving pages took since then, and the waits for those that were moved. Whether the device had work meanwhile does not
 * matter: the lead that the program loses is what it lives on when its next kernels are short. */
static uint64_t spent_since(const memfit_pool *pool, mf_spent since)
{
    return pool->moving_us - since.moving_us + pool->waited_us - since.waited_us;
}

/* Is that no more than it may be in the long run? (VGG16 and SqueezeNet by turns waited 8 ms in every other step, moved no page,
 * were not packed, and took 9 % more time.) */
static bool cheap(const memfit_pool *pool, mf_spent since)
{
    return spent_since(pool, since) * MF_MOVE_SHARE <= mf_device_now_us(pool->device) - since.us;
}

/* And no more than a tenth of that? (ViT and Wide ResNet by turns waited 8 times in every step for 5 pages, and took 2 % more time
 * than without.) */
static bool at_rest(const memfit_pool *pool, mf_spent since)
{
    return spent_since(pool, since) * MF_MOVE_SHARE * REST <= mf_device_now_us(pool->device) - since.us;
}

/* Steps that are packed, and still move pages, from one stream's places to another's or between what lives on and seats: rather hold
 * some more. With one stream not in the first steps, which there is plenty of time for, nor when another kind just got its places:
 * it takes pages from the rest once. (Three models by turns on pictures of four sizes held 1.048; 1.006 without those.) */
static void judge(memfit_pool *pool, const mf_kind *it)
{
    mf_repeat *r = pool->repeat;
    bool moved = pool->multi ? !cheap(pool, r->begun_at) : !at_rest(pool, r->begun_at) && !mf_moves_plenty(pool);
    bool dear = it && it->packed && moved, learning = !pool->multi && r->steps - r->newest < CALM;
    r->calm = dear ? 0 : r->calm + 1;
    if (dear && !learning)
        r->restless++;
    else if (r->calm >= CALM)
        r->restless = 0;
    r->before_at = r->begun_at;
    r->begun_at = (mf_spent){mf_device_now_us(pool->device), pool->moving_us, pool->waited_us};
}

/* Is it to be packed? Not if it went well by itself: the pool did not grow, and moving pages took little; it would only be
 * moved. Nor if it leaves much for whatever comes next: that lies in the way of any other kind. */
static bool worth_packing(const memfit_pool *pool, const mf_kind *it, uint64_t begun)
{
    const mf_repeat *r = pool->repeat;
    if (it->packed) /* again, if it turned out that the next is alike: what outlives it moves pages as long as it has no place */
        return it->bad >= BAD_TIMES || ((mf_repeat_next_alike(r) || may_join(pool)) && !it->again &&
                                        mf_kind_crosses(it) && !at_rest(pool, r->begun_at));
    bool much = leaves_much(r, it), slow = it->count > LONGEST / 2; /* to pack */
    bool early = r->steps < 4 * r->again + NEW_KINDS && !much && !slow;
    if ((r->grew < begun && cheap(pool, r->before_at)) || (much && !r->regular))
        return false;
    return early || it->seen > 1;
}

/* Which kinds can it be, now that this is a request of it? */
static void narrow(mf_repeat *r, uint64_t request, uint32_t units)
{
    uint64_t index = request - r->begun;
    for (uint64_t maybe = r->maybe; maybe; maybe &= maybe - 1) {
        unsigned i = (unsigned)__builtin_ctzll(maybe);
        const mf_kind *k = &r->kinds[i];
        if (index >= k->count || k->wants[index].units != units)
            r->maybe &= ~(UINT64_C(1) << i);
    }
}

/* A step ends before a request. The one before it is learnt from: what it left for this one has had its end. */
static void end_step(memfit_pool *pool, uint64_t end)
{
    mf_repeat *r = pool->repeat;
    uint64_t begun = r->before_began, count = r->begun - begun;
    mf_kind *it = count && count <= LONGEST && r->count - begun <= MF_TAPE ? mf_kind_of(r, begun, count) : NULL;
    r->steps++;
    bool whole =
        r->seen_whole && r->before_low <= r->low + (r->high - r->low) / LOW_PART; /* it was as low as it is now */
    r->seen_whole = r->ended != 0;
    if (!it && count && count <= LONGEST && r->count - begun <= MF_TAPE && whole)
        it = mf_kind_add(pool, begun, (uint32_t)count);
    if (it) {
        mf_kind_learn(r, it, begun);
        bool wants_it = worth_packing(pool, it, begun);
        if (wants_it && group_of(pool, it) <= r->group)
            mf_kind_pack(pool, it);
        unsigned group = wants_it ? group_of(pool, it) : 1;
        if (group > r->group) {
            regroup(pool, group);
            learn_group(pool);
        }
    }
    judge(pool, it);
    r->before_began = r->begun;
    r->before_low = r->began_low;
    r->began_low = r->low;
    r->ended = r->begun = end;
    r->strewn = 0;
    r->maybe = 0;
    for (unsigned i = 0; i < MF_KINDS; i++)
        r->maybe |= (uint64_t)(r->kinds[i].wants != NULL) << i;
    for (uint64_t i = end; i < r->count; i++)
        narrow(r, i, mf_note_at(r, i)->units);
}

/* ---- rises ---------------------------------------------------------------------------------------------------- */

static bool is_group(const mf_repeat *r, unsigned length)
{
    for (unsigned i = 0; i < 2 * length; i++)
        if (!rise_at(r, i) || rise_at(r, i) != rise_at(r, i + length))
            return false;
    return true;
}

/* The use has risen and fallen once more. Several rises that come again and again in the same order are one step: what one
 * of them leaves for the next has its place in the whole. */
static void end_rise(memfit_pool *pool, uint64_t end)
{
    mf_repeat *r = pool->repeat;
    uint64_t hash = 1;
    for (uint64_t i = r->rose; i < end && r->count - r->rose <= MF_TAPE; i++)
        hash = (hash ^ mf_note_at(r, i)->units) * UINT64_C(0x9e3779b97f4a7c15) >> 1 | 1;
    r->rose = end;
    r->rose_at[r->rises % MF_RISES] = end;
    r->rise[r->rises++ % MF_RISES] = hash;
    unsigned group = 1;
    while (group <= GROUP && !is_group(r, group))
        group++;
    r->regular = group <= GROUP ? group : 0;
    if (r->group > 1 && rise_at(r, 0) != rise_at(r, r->group)) {
        regroup(pool, 1);
        r->broken++;
    }
    if (--r->left == 0) {
        end_step(pool, end);
        r->left = r->group;
    }
    r->risen = false;
}

/* Has a kind that is followed come to its end? */
static bool is_whole(const mf_repeat *r)
{
    uint64_t count = r->count - r->begun;
    for (uint64_t maybe = count >= LONG && r->left == 1 ? r->maybe : 0; maybe; maybe &= maybe - 1)
        if (r->kinds[__builtin_ctzll(maybe)].count == count)
            return true;
    return false;
}

/* The use is as low as ever: with which request did the next step begin? A loop that draws the next batch before it gives the
 * last one back asks for some blocks first, of which the first that is still there is the batch. Where a step ends must not
 * depend on which of the two is larger, or batches of 16 sizes made hundreds of kinds, of which most came once. */
static uint64_t next_began(mf_repeat *r)
{
    if (r->count - r->begun < LONG)
        return r->count;
    uint64_t began = r->count;
    uint32_t lowest = r->low + (r->high - r->low) / LEAVES_PART;
    for (uint64_t i = r->count - REPLACES; i < r->count; i++) {
        const mf_note *n = mf_note_at(r, i);
        began = n->before < lowest ? i : began;
        lowest = n->before < lowest ? n->before : lowest;
        if (!n->life)
            return began;
    }
    return r->count;
}

/* A request comes: does a step end before it, and which kinds can this one be? */
static void arrive(memfit_pool *pool, uint32_t units)
{
    mf_repeat *r = pool->repeat;
    if (r->arrived == r->count + 1)
        return;
    r->arrived = r->count + 1;
    search(r);
    uint32_t before = (uint32_t)(r->in_use / MF_LIVE_UNIT), range = r->high - r->low;
    for (unsigned i = 0; i < MF_KINDS && r->high && before + range / RISE_PART < r->low; i++)
        mf_kind_drop(pool, &r->kinds[i]); /* what seats were packed around is gone: another part begins */
    if (r->high && r->risen && before <= r->low + range / RISE_PART && r->count - r->rose >= SHORTEST) {
        if (is_whole(r))
            end_rise(pool, r->count);
        else if (before <= r->low + range / LOW_PART)
            end_rise(pool, next_began(r));
    }
    narrow(r, r->count, units);
}

/* ---- following a kind ----------------------------------------------------------------------------------------- */

/* The kind whose seats are followed; NULL: none. */
static mf_kind *followed(mf_repeat *r)
{
    for (uint64_t maybe = r->maybe; maybe; maybe &= maybe - 1)
        if (r->kinds[__builtin_ctzll(maybe)].packed)
            return &r->kinds[__builtin_ctzll(maybe)];
    return NULL;
}

static bool is_free(const mf_block *b, unsigned lane)
{
    return b && b->state == MF_HOLE && (!b->lane || b->lane == lane);
}

/* The hole at a seat: with several streams there may be some side by side, of the stream and of nobody. */
static mf_block *hole_at(memfit_pool *pool, const mf_want *s, uint64_t start, uint64_t bytes)
{
    unsigned lane = pool->repeat->lane;
    mf_block *b = s->near == MF_NO_SEAT ? NULL : mf_table_find(pool, s->near);
    if (!b)
        b = pool->first;
    while (b && b->start > start) /* it was near another seat, before the step was packed anew */
        b = b->before;
    while (b && b->start + b->bytes <= start)
        b = b->after;
    if (!is_free(b, lane))
        return NULL;
    mf_block *last = b;
    while (last->start + last->bytes < start + bytes && is_free(last->after, lane))
        last = last->after;
    uint64_t end = last->start + last->bytes;
    if (end < start + bytes || (last == pool->tail && end == start + bytes))
        return NULL;
    if (b == last)
        return b;
    uint64_t past = mf_round_up(start + bytes, pool->pages.bytes);
    return mf_blocks_reserve(pool, 2) ? mf_holes_join(pool, b, last, lane, past - last->start) : NULL;
}

/* At its seat, or at the other one. */
static mf_block *hole_for(memfit_pool *pool, const mf_want *s, uint64_t bytes, uint64_t *start)
{
    mf_block *hole = hole_at(pool, s, *start = s->start, bytes);
    if (!hole && s->other != MF_NO_SEAT)
        hole = hole_at(pool, s, *start = s->other, bytes);
    return hole;
}

/* With several streams most of what is free waits for one, and blocks could go nowhere but to new pages. */
static void come_to_rest(memfit_pool *pool)
{
    uint64_t began = mf_device_now_us(pool->device);
    mf_lanes_poll(pool, true);
    if (!pool->options.no_stream_wait)
        mf_lanes_wait(pool);
    mf_moves_charge(pool, mf_device_now_us(pool->device) - began);
}

/* Beside what steps take: a batch that lives on, a result. */
static bool is_small(const memfit_pool *pool, uint64_t bytes)
{
    const mf_repeat *r = pool->repeat;
    uint64_t part = (uint64_t)(r->high - r->low) * MF_LIVE_UNIT / LOW_PART;
    part = part < SMALL_PAGES * pool->pages.bytes ? part : SMALL_PAGES * pool->pages.bytes;
    return bytes < (part > pool->pages.bytes ? part : pool->pages.bytes);
}

/* A kind that is not packed came so before, and gave the block back before its end. */
static bool goes_with_its_step(const mf_repeat *r)
{
    if (!r->maybe)
        return false;
    const mf_kind *k = &r->kinds[__builtin_ctzll(r->maybe)];
    uint64_t index = r->count - r->begun;
    return mf_want_seated(&k->wants[index]) && k->wants[index].life <= k->count - index;
}

/* With one stream, has an unknown step taken enough pages for small blocks above all places? (Swin-S between two other models took 780
 * in each of its steps, and the next model took them back.) */
static bool strews(const memfit_pool *pool)
{
    const mf_repeat *r = pool->repeat;
    return !pool->multi && r->strewn * pool->pages.bytes > (uint64_t)(r->high - r->low) * MF_LIVE_UNIT / LOW_PART;
}

mf_block *mf_repeat_above(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, uint64_t *start)
{
    return mf_apart(pool, pool->multi ? pool->apart : pool->repeat->top, bytes, alignment, lane, start);
}

mf_seat mf_repeat_next(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block **hole,
                       uint64_t *start)
{
    mf_repeat *r = pool->repeat;
    if (lane != r->lane)
        return MF_SEAT_NONE;
    if (!pool->multi && r->count - r->needed > MF_TAPE) { /* all has been well for long */
        mf_repeat_end(pool);
        return MF_SEAT_NONE;
    }
    arrive(pool, (uint32_t)(bytes / MF_UNIT));
    mf_kind *k = followed(r);
    if (alignment > MF_UNIT || (!k && (!r->top || !is_small(pool, bytes))))
        return MF_SEAT_NONE;
    if (!k) { /* it is not known how long it stays, and it would cut seats */
        *hole = mf_apart(pool, pool->multi ? pool->apart : r->top, bytes, alignment, lane, start);
        uint64_t missing = *hole ? mf_pages_missing(pool, *start, bytes) : 0;
        if (!*hole || (missing && (goes_with_its_step(r) || strews(pool))))
            return MF_SEAT_NONE;
        r->strewn += missing;
        return MF_SEAT_ABOVE;
    }
    r->needed = r->count;
    const mf_want *s = &k->wants[r->count - r->begun];
    bool seated = s->start != MF_NO_SEAT;
    if (k->fresh && pool->multi && seated && mf_pages_missing(pool, s->start, bytes)) {
        k->fresh = false;
        come_to_rest(pool);
    }
    *hole = seated ? hole_for(pool, s, bytes, start) : NULL;
    if (!*hole && seated && pool->multi && mf_lanes_poll_for(pool, lane)) /* what others had there is past, perhaps */
        *hole = hole_for(pool, s, bytes, start);
    if (*hole)
        return MF_SEAT;
    *hole = mf_apart(pool, pool->multi ? pool->apart : r->top, bytes, alignment, lane, start);
    return !*hole ? MF_SEAT_NONE : s->held ? MF_SEAT_APART : MF_SEAT_ABOVE;
}

void mf_repeat_put(memfit_pool *pool, mf_block *block, unsigned lane)
{
    mf_repeat *r = pool->repeat;
    if (lane != r->lane)
        return;
    arrive(pool, (uint32_t)(block->bytes / MF_UNIT));
    mf_kind *k = followed(r);
    mf_want *s = k ? &k->wants[r->count - r->begun] : NULL;
    if (s && (s->start == block->start || s->other == block->start)) {
        const mf_block *below = block->before;
        while (below && below->state != MF_LIVE)
            below = below->before;
        s->near = below && s->other == MF_NO_SEAT ? below->start : MF_NO_SEAT;
    } else if (s) {
        k->missed += s->start != MF_NO_SEAT;
    }
    uint32_t before = (uint32_t)(r->in_use / MF_LIVE_UNIT);
    r->in_use += block->bytes;
    uint32_t live = (uint32_t)(r->in_use / MF_LIVE_UNIT);
    *mf_note_at(r, r->count) = (mf_note){(uint32_t)(block->bytes / MF_UNIT), 0, live, before, false};
    r->low = before < r->low ? before : r->low;
    r->high = r->high && live > r->high ? live : r->high;
    uint32_t rise = (r->high - r->low) / (r->count - r->rose < LONG ? RISE_PART : LEAVES_PART);
    r->risen = r->risen || live > r->low + rise;
    block->serial = ++r->count & MF_SERIAL_MOST;
}

void mf_repeat_end_of(memfit_pool *pool, const mf_block *block, bool held)
{
    mf_repeat *r = pool->repeat;
    if (block->serial <= r->first)
        return;
    r->in_use -= block->bytes;
    if (r->count - (block->serial - 1) > MF_TAPE)
        return;
    mf_note *n = mf_note_at(r, block->serial - 1);
    n->life = (uint32_t)(r->count - (block->serial - 1));
    n->held = held;
}

/* ---- what others ask ------------------------------------------------------------------------------------------ */

double mf_repeat_restless(const memfit_pool *pool)
{
    unsigned restless = pool->repeat ? pool->repeat->restless : 0;
    unsigned beyond = restless < RESTLESS ? 0 : restless - RESTLESS + 1;
    return beyond < MOST_RESTLESS ? (double)beyond / MOST_RESTLESS : 1.0;
}

bool mf_repeat_check(memfit_pool *pool, memfit_error *err)
{
    mf_repeat *r = pool->repeat;
    if (!r)
        return true;
    for (mf_block *b = pool->first; b; b = b->after)
        if (b->state == MF_LIVE && b->serial > r->count)
            return mf_fail(err, MEMFIT_INTERNAL, "check: a block is request %llu of %llu on the tape",
                           (unsigned long long)b->serial, (unsigned long long)r->count),
                   false;
    for (unsigned i = 0; i < MF_KINDS; i++)
        if (!mf_kind_check(pool, &r->kinds[i], err))
            return false;
    return true;
}
