/*
 * repeat.c: a training step asks for the same sizes in the same order as the one before. The main stream's requests are
 * noted, with one stream once pages have been missing, with several always. When three periods of them are the same, the
 * blocks of a period are packed as a whole, and from then on each goes to its place.
 *
 *     tape      ... | period | period | period | now          sizes, and how long each block lived, counted in requests
 *     turn      one period, or two when a block outlives the next one of its kind (the input batch does)
 *     seats     where the requests of a turn go, each to a gap among those it meets: three ways, the lowest wins
 *
 * The plan is followed from the request at which least is in use, with several streams after waiting for them once: then few
 * seats are taken. What does not repeat (parameters, slabs, blocks older than a turn) stays where it is and is packed
 * around. Who finds its seat taken goes above all seats, so that it takes nobody else's, unless the pool had to grow for
 * it; so does a block that another stream still used when it was freed, which ends when that stream gets so far
 * (apart.c). A request of another size ends the plan; the tape goes on, so that the next one can be found. The pool may
 * hold what the seats take, so that no page moves.
 *
 * With one stream the tape ends when no page was missing, and no plan was at work, for as many requests as it holds: it is
 * random access to 256 KiB for every block that goes, a tenth of the time of a pair of random sizes.
 *
 * All depends on the order of requests alone, not on time: the same calls get the same addresses.
 *
 * A period is believed only if it leaves nothing behind, ends with as much in use as it began with and reaches the
 * highest use on the tape: a model's equal layers repeat, too, and so do its parameters while they are made. (Two periods
 * instead of three: a generator and a discriminator by turns hold 1.09 of their live bytes instead of 1.065.)
 *
 * Highest seat / live peak, recorded on a card: segmentation 1.000, GPT-2 1.000, a small CNN 1.012, a generator and a
 * discriminator by turns 1.055; without a plan, as far as moving pages may go: 1.16, 1.007, 1.08, 1.04 to 1.23.
 *
 * Tried and dropped: a request goes where it went the last time the same ones came before it, without packing (the
 * same two models 1.25, and no fewer moves: addresses come to rest, but not the pages behind them).
 */
#include "pool/apart.h"
#include "pool/blocks.h"
#include "pool/lanes.h"
#include "pool/moves.h"
#include "pool/pages.h"
#include "pool/repeat.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum {
    TAPE = 16384, /* requests remembered, a power of two */
    SHORTEST = 32,
    LONGEST = 4096,
    TRY_EVERY = 256,  /* at least */
    TRY_PART = 16,    /* of what is on the tape */
    LONG_TURN = 2048, /* packed in one way only: the time grows with the square, 12 ms for 990 requests in three ways */
    LIVE_UNIT = 65536,
    BAD_TURNS = 4, /* in the first ones many seats are still taken */
};
#define NO_SEAT UINT64_MAX

typedef struct note { /* a request on the tape */
    uint32_t units;   /* MF_UNITs */
    uint32_t life;    /* requests made while it lived, and itself; 0: it lives */
    uint32_t live;    /* LIVE_UNITs of this tape's blocks in use with it */
    bool held;        /* when it was freed another stream still used it */
} note;

typedef struct seat {
    uint64_t start;
    uint64_t near; /* where the nearest block below began, when it was last taken; NO_SEAT: not known */
    uint32_t units, life;
    bool apart;
} seat;

typedef struct claim { /* while packing: addresses, and whose they are */
    uint64_t start, end;
    uint32_t seat; /* NOBODY: of something that stays */
} claim;
#define NOBODY UINT32_MAX

struct mf_repeat {
    unsigned lane;            /* whose requests */
    uint64_t in_use;          /* bytes of blocks on the tape */
    uint64_t count;           /* requests noted, by this tape and those before it */
    uint64_t first;           /* the first on this tape */
    uint64_t needed;          /* the count when pages were last missing, or the last plan ended */
    uint64_t tried, next_try; /* when a period was last looked for, and will be again */
    uint32_t period, turn;
    uint64_t top;    /* where the highest seat ends */
    uint64_t base;   /* the request of seat 0 */
    uint64_t judged; /* when it is next seen whether the plan is of use */
    uint64_t begins; /* the request it is followed from: where least is in use, so that few seats are taken */
    uint32_t missed; /* seats that were taken, in the turn at work */
    uint32_t bad;    /* turns in a row with many such */
    seat *seats;     /* `turn` of them; NULL: no plan */
    uint32_t seats_capacity;
    note tape[TAPE];
};

static note *at(mf_repeat *r, uint64_t request)
{
    return &r->tape[request & (TAPE - 1)];
}

/* The longer there was no period, the longer until one is looked for again: shapes that change every step have none. */
static uint64_t next_try(const mf_repeat *r)
{
    uint64_t noted = r->count - r->first, known = noted < TAPE ? noted : TAPE;
    return r->count + (known / TRY_PART > TRY_EVERY ? known / TRY_PART : TRY_EVERY);
}

void mf_repeat_begin(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    if (!r) {
        r = pool->repeat = mf_host_zalloc(pool->host, sizeof *r);
        if (!r)
            return;
        pool->host_bytes += sizeof *r;
        r->count = r->first = r->needed = pool->noted; /* blocks may carry numbers of an earlier tape */
        r->next_try = pool->noted + TRY_EVERY;
    }
    r->lane = mf_apart_main(pool);
}

void mf_repeat_needed(memfit_pool *pool)
{
    mf_repeat_begin(pool);
    mf_repeat *r = pool->repeat;
    if (!r)
        return;
    r->needed = r->count;
    if (r->next_try > r->tried + SHORTEST)
        r->next_try = r->tried + SHORTEST;
}

static void end_plan(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    mf_host_free(pool->host, r->seats, r->seats_capacity * sizeof *r->seats);
    pool->host_bytes -= r->seats_capacity * sizeof *r->seats;
    r->seats = NULL;
    r->seats_capacity = 0;
    r->next_try = next_try(r);
    r->needed = r->count;
}

void mf_repeat_end(memfit_pool *pool)
{
    if (!pool->repeat)
        return;
    end_plan(pool);
    pool->noted = pool->repeat->count;
    mf_host_free(pool->host, pool->repeat, sizeof *pool->repeat);
    pool->host_bytes -= sizeof *pool->repeat;
    pool->repeat = NULL;
}

/* ---- the period --------------------------------------------------------------------------------------------- */

static uint32_t highest(mf_repeat *r, uint64_t from)
{
    uint32_t most = 0;
    for (uint64_t i = from; i < r->count; i++)
        if (at(r, i)->live > most)
            most = at(r, i)->live;
    return most;
}

static uint32_t apart(uint32_t a, uint32_t b)
{
    return a > b ? a - b : b - a;
}

/* Does the tape end with three periods of this length? *top_known: the highest use on it, 0 until it is asked for. */
static bool has_period(mf_repeat *r, uint32_t p, uint64_t known, uint32_t *top_known)
{
    uint64_t last = r->count - 1;
    for (uint64_t i = 0; i < UINT64_C(2) * p; i++)
        if (at(r, last - i)->units != at(r, last - i - p)->units)
            return false;
    if (!*top_known)
        *top_known = highest(r, r->count - known);
    uint32_t top = *top_known;
    uint64_t left = 0; /* of the period before the last: hardly a block lives on */
    for (uint64_t i = 0; i < p; i++)
        left += !at(r, last - p - i)->life;
    return left <= p / 64 && apart(at(r, last)->live, at(r, last - p)->live) <= top / 64 &&
           highest(r, r->count - p) >= top - top / 16;
}

/* The shortest; 0: none. */
static uint32_t find_period(mf_repeat *r)
{
    uint64_t noted = r->count - r->first, known = noted < TAPE ? noted : TAPE;
    uint32_t top = 0;
    for (uint32_t p = SHORTEST; p <= LONGEST && UINT64_C(3) * p <= known; p++)
        if (has_period(r, p, known, &top))
            return p;
    return 0;
}

/* ---- packing ------------------------------------------------------------------------------------------------ */

/* Does one of the two come while the other lives? */
static bool meet(const seat *seats, uint32_t turn, uint32_t a, uint32_t b)
{
    uint32_t behind = b >= a ? b - a : b + turn - a;
    return behind < seats[a].life || (turn - behind) % turn < seats[b].life;
}

/* Live blocks and spans that are not of the turn: they stay. */
static bool stays(const mf_repeat *r, const mf_block *b)
{
    if (b->state == MF_SPAN)
        return true;
    if (b->state != MF_LIVE || b->lane != r->lane) /* what other streams have goes, and comes back apart */
        return false;
    if (!b->serial || r->count - (b->serial - 1) > r->turn)
        return true;
    return r->seats[(b->serial - 1 - r->base) % r->turn].start == NO_SEAT;
}

static size_t claim_those_that_stay(memfit_pool *pool, claim *claims)
{
    size_t count = 0;
    for (mf_block *b = pool->first; b; b = b->after)
        if (stays(pool->repeat, b)) {
            if (claims)
                claims[count] = (claim){b->start, b->start + b->bytes, NOBODY};
            count++;
        }
    return count;
}

typedef enum way { BY_SIZE, BY_AREA, BY_AREA_TIGHT, WAYS } way;

/* Puts one seat into the lowest gap that is long enough, or the tightest; claims are in the order of their starts. */
static uint64_t take_seat(mf_repeat *r, uint32_t index, claim *claims, size_t *count, bool tight)
{
    uint64_t bytes = (uint64_t)r->seats[index].units * MF_UNIT, low = 0, tightest = UINT64_MAX, start = 0;
    for (size_t i = 0; i < *count; i++) {
        if (claims[i].end <= low || (claims[i].seat != NOBODY && !meet(r->seats, r->turn, index, claims[i].seat)))
            continue;
        if (claims[i].start >= low + bytes && claims[i].start - low < tightest) {
            tightest = claims[i].start - low;
            start = low;
            if (!tight)
                break;
        }
        low = claims[i].end;
    }
    if (tightest == UINT64_MAX)
        start = low;
    r->seats[index].start = start;
    size_t i = *count;
    for (; i && claims[i - 1].start > start; i--)
        claims[i] = claims[i - 1];
    claims[i] = (claim){start, start + bytes, index};
    ++*count;
    return start + bytes;
}

typedef struct rank {
    uint64_t weight;
    uint32_t life, seat;
} rank;

static int heavier_first(const void *a, const void *b)
{
    const rank *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    if (x->life != y->life)
        return x->life > y->life ? -1 : 1;
    return x->seat < y->seat ? -1 : 1;
}

/* Packs in one way; returns the end of the highest seat. */
static uint64_t pack_one_way(memfit_pool *pool, way how, claim *claims, rank *ranks)
{
    mf_repeat *r = pool->repeat;
    size_t count = claim_those_that_stay(pool, claims), seated = 0;
    uint64_t top = 0;
    for (uint32_t i = 0; i < r->turn; i++) {
        const seat *s = &r->seats[i];
        if (s->start != NO_SEAT)
            ranks[seated++] = (rank){how == BY_SIZE ? s->units : (uint64_t)s->units * s->life, s->life, i};
    }
    qsort(ranks, seated, sizeof *ranks, heavier_first);
    for (size_t i = 0; i < seated; i++) {
        uint64_t end = take_seat(r, ranks[i].seat, claims, &count, how == BY_AREA_TIGHT);
        top = end > top ? end : top;
    }
    return top;
}

static bool pack(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    size_t most = claim_those_that_stay(pool, NULL) + r->turn;
    claim *claims = mf_host_zalloc(pool->host, most * sizeof *claims);
    rank *ranks = mf_host_zalloc(pool->host, r->turn * sizeof *ranks);
    bool room = claims && ranks;
    uint64_t lowest = UINT64_MAX;
    way first = r->turn > LONG_TURN ? BY_AREA_TIGHT : BY_SIZE, best = first, last = first;
    for (way w = first; room && w < WAYS; w++) {
        uint64_t top = pack_one_way(pool, w, claims, ranks);
        best = top < lowest ? w : best;
        lowest = top < lowest ? top : lowest;
        last = w;
    }
    if (room && best != last)
        pack_one_way(pool, best, claims, ranks);
    mf_host_free(pool->host, claims, most * sizeof *claims);
    mf_host_free(pool->host, ranks, r->turn * sizeof *ranks);
    return room;
}

/* The next request at which as little is in use as at any of the turn. */
static uint64_t lowest_point(mf_repeat *r)
{
    uint32_t low = 0;
    for (uint32_t i = 1; i < r->turn; i++)
        if (at(r, r->base + i)->live < at(r, r->base + low)->live)
            low = i;
    uint64_t now = (r->count - r->base) % r->turn;
    return r->count + (low + r->turn - now) % r->turn;
}

/* The requests of a turn, with the lives they had. Those that live on, or longer than a turn, have no seat. */
static void fill_seats(mf_repeat *r)
{
    for (uint32_t i = 0; i < r->turn; i++) {
        const note *n = at(r, r->base + i);
        bool seated = n->life && n->life <= r->turn && !n->held;
        r->seats[i] = (seat){seated ? 0 : NO_SEAT, NO_SEAT, n->units, n->life, n->held};
    }
}

static void make_plan(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    r->tried = r->count;
    r->next_try = next_try(r);
    if (r->count - r->needed > 2 * (uint64_t)LONGEST || !mf_moves_allowed(pool)) /* all is well, or no time is left */
        return;
    uint64_t began = mf_device_now_us(pool->device); /* packing takes time, too */
    r->period = find_period(r);
    if (!r->period || r->count - r->needed > 2 * (uint64_t)r->period) /* or it repeats, and all is well as it is */
        return;
    r->turn = r->period;
    for (uint64_t i = r->count - 2 * (uint64_t)r->period; i < r->count - r->period; i++)
        if (at(r, i)->life > r->period)
            r->turn = 2 * r->period;
    r->base = r->count - r->period - r->turn;
    r->seats = mf_host_zalloc(pool->host, r->turn * sizeof *r->seats);
    if (!r->seats)
        return;
    r->seats_capacity = r->turn;
    pool->host_bytes += r->turn * sizeof *r->seats;
    fill_seats(r);
    if (!pack(pool))
        end_plan(pool);
    mf_repeat_turn(pool, &r->top);
    r->begins = lowest_point(r);
    r->judged = r->begins + r->turn;
    r->missed = 0;
    r->bad = 0;
    mf_moves_charge(pool, mf_device_now_us(pool->device) - began);
}

/* ---- following it ------------------------------------------------------------------------------------------- */

static bool is_free(const mf_block *b, unsigned lane)
{
    return b && b->state == MF_HOLE && (!b->lane || b->lane == lane);
}

/* The hole at a seat: with several streams there may be some side by side, of the stream and of nobody. */
static mf_block *hole_at(memfit_pool *pool, const seat *s, uint64_t bytes)
{
    unsigned lane = pool->repeat->lane;
    mf_block *b = s->near == NO_SEAT ? NULL : mf_table_find(pool, s->near);
    if (!b)
        b = pool->first;
    while (b && b->start + b->bytes <= s->start)
        b = b->after;
    if (!is_free(b, lane) || b->start > s->start)
        return NULL;
    mf_block *last = b;
    while (last->start + last->bytes < s->start + bytes && is_free(last->after, lane))
        last = last->after;
    uint64_t end = last->start + last->bytes;
    if (end < s->start + bytes || (last == pool->tail && end == s->start + bytes))
        return NULL;
    if (b == last)
        return b;
    uint64_t past = mf_round_up(s->start + bytes, pool->pages.bytes);
    return mf_blocks_reserve(pool, 2) ? mf_holes_join(pool, b, last, lane, past - last->start) : NULL;
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

mf_seat mf_repeat_next(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block **hole,
                       uint64_t *start)
{
    mf_repeat *r = pool->repeat;
    if (!r->seats && !pool->multi && r->count - r->needed > TAPE) { /* all has been well for long */
        mf_repeat_end(pool);
        return MF_SEAT_NONE;
    }
    if (lane == r->lane && !r->seats && r->count >= r->next_try)
        make_plan(pool);
    if (!r->seats)
        return MF_SEAT_NONE;
    const seat *s = &r->seats[(r->count - r->base) % r->turn];
    if (lane == r->lane && s->units != bytes / MF_UNIT) {
        end_plan(pool);
        return MF_SEAT_NONE;
    }
    if (lane != r->lane)
        return MF_SEAT_NONE;
    if ((s->start == NO_SEAT && !s->apart) || alignment > MF_UNIT || r->count < r->begins)
        return MF_SEAT_NONE;
    if (r->count == r->begins && pool->multi)
        come_to_rest(pool);
    *start = s->start;
    *hole = s->apart ? NULL : hole_at(pool, s, bytes);
    if (!*hole && !s->apart && pool->multi &&
        mf_lanes_poll_for(pool, lane)) /* what others had there is past, perhaps */
        *hole = hole_at(pool, s, bytes);
    if (*hole)
        return MF_SEAT;
    *hole = mf_apart(pool, pool->multi ? pool->apart : r->top, bytes, alignment, lane, start);
    return !*hole ? MF_SEAT_NONE : s->apart ? MF_SEAT_APART : MF_SEAT_ABOVE;
}

/* Seats that are taken turn after turn: something came to stay there, and is packed around the next time. */
static void judge(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    if (r->count < r->judged)
        return;
    r->bad = r->missed ? r->bad + 1 : 0;
    r->missed = 0;
    r->judged = r->count + r->turn;
    if (r->bad < BAD_TURNS)
        return;
    end_plan(pool);
    r->next_try = r->count + r->turn;
}

void mf_repeat_put(memfit_pool *pool, mf_block *block, unsigned lane)
{
    mf_repeat *r = pool->repeat;
    if (lane != r->lane)
        return;
    if (r->seats) {
        seat *s = &r->seats[(r->count - r->base) % r->turn];
        const mf_block *below = block->before;
        while (below && below->state != MF_LIVE)
            below = below->before;
        if (s->start == block->start)
            s->near = below ? below->start : NO_SEAT;
        else
            r->missed += s->start != NO_SEAT && r->count >= r->begins;
        judge(pool);
    }
    r->in_use += block->bytes;
    *at(r, r->count) = (note){(uint32_t)(block->bytes / MF_UNIT), 0, (uint32_t)(r->in_use / LIVE_UNIT), false};
    block->serial = ++r->count & MF_SERIAL_MOST;
}

void mf_repeat_end_of(memfit_pool *pool, const mf_block *block, bool held)
{
    mf_repeat *r = pool->repeat;
    if (block->serial <= r->first)
        return;
    r->in_use -= block->bytes;
    if (r->count - (block->serial - 1) > TAPE)
        return;
    note *n = at(r, block->serial - 1);
    n->life = (uint32_t)(r->count - (block->serial - 1));
    n->held = held;
}

uint64_t mf_repeat_top(const memfit_pool *pool)
{
    return mf_repeat_plans(pool) ? pool->repeat->top : 0;
}

bool mf_repeat_plans(const memfit_pool *pool)
{
    return pool->repeat && pool->repeat->seats;
}

uint32_t mf_repeat_turn(const memfit_pool *pool, uint64_t *top)
{
    const mf_repeat *r = pool->repeat;
    *top = 0;
    if (!mf_repeat_plans(pool))
        return 0;
    for (uint32_t i = 0; i < r->turn; i++) {
        uint64_t end = r->seats[i].start == NO_SEAT ? 0 : r->seats[i].start + (uint64_t)r->seats[i].units * MF_UNIT;
        *top = end > *top ? end : *top;
    }
    return r->turn;
}

bool mf_repeat_check(memfit_pool *pool, memfit_error *err)
{
    enum { ALL_PAIRS = 256 }; /* beyond, every seat is held against its neighbours in time only */
    mf_repeat *r = pool->repeat;
    if (!r)
        return true;
    for (mf_block *b = pool->first; b; b = b->after)
        if (b->state == MF_LIVE && b->serial > r->count)
            return mf_fail(err, MEMFIT_INTERNAL, "check: a block is request %llu of %llu on the tape",
                           (unsigned long long)b->serial, (unsigned long long)r->count),
                   false;
    for (uint32_t i = 0; r->seats && i < r->turn; i++) {
        const seat *s = &r->seats[i];
        uint64_t bytes = (uint64_t)s->units * MF_UNIT;
        if (s->start == NO_SEAT)
            continue;
        if (!bytes || s->start + bytes > pool->range_bytes || !s->life || s->life > r->turn)
            return mf_fail(err, MEMFIT_INTERNAL, "check: seat %u of the plan is out of range", i), false;
        for (uint32_t k = 1; k < r->turn && k <= ALL_PAIRS; k++) {
            const seat *t = &r->seats[(i + k) % r->turn];
            if (t->start != NO_SEAT && s->start < t->start + (uint64_t)t->units * MF_UNIT &&
                t->start < s->start + bytes && meet(r->seats, r->turn, i, (i + k) % r->turn))
                return mf_fail(err, MEMFIT_INTERNAL, "check: seats %u and %u of the plan meet", i, (i + k) % r->turn),
                       false;
        }
    }
    return true;
}
