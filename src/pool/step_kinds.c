/*
 * step_kinds.c: kinds of steps: the sizes they ask for and how long each block lived, and where their blocks go (seats.c).
 */
#include "pool/blocks.h"
#include "pool/step_kinds.h"
#include "pool/moves.h"
#include "pool/pages.h"
#include "pool/repeat.h"

#include "base/error.h"

enum {
    ALL_WANTS = 65536,  /* requests of all kinds */
    BETTER_PART = 128,  /* fewer pages */
    FAR_PART = 32,      /* more than the largest of them takes: kinds share too little */
    LOOKS_PER_US = 500, /* packing, where the clock is a model */
};

/* The pages that seats lie in. Without host memory none is known: pages are taken from seats, too. */
static void mark_seats(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    uint64_t shift = pool->pages.shift, pages = (r->top >> shift) + 1;
    mf_host_free(pool->host, r->seats, (r->seat_pages + 63) / 64 * sizeof *r->seats);
    pool->host_bytes -= (r->seat_pages + 63) / 64 * sizeof *r->seats;
    r->seats = r->top ? mf_host_zalloc(pool->host, (pages + 63) / 64 * sizeof *r->seats) : NULL;
    r->seat_pages = r->seats ? pages : 0;
    pool->host_bytes += (r->seat_pages + 63) / 64 * sizeof *r->seats;
    for (unsigned i = 0; r->seats && i < MF_KINDS; i++)
        for (uint32_t j = 0; r->kinds[i].packed && j < r->kinds[i].count; j++) {
            const mf_want *w = &r->kinds[i].wants[j];
            uint64_t end = w->start + (uint64_t)w->units * MF_UNIT;
            for (uint64_t k = w->start >> shift; w->start != MF_NO_SEAT && k <= (end - 1) >> shift; k++)
                r->seats[k / 64] |= UINT64_C(1) << (k % 64);
        }
}

static void set_top(memfit_pool *pool)
{
    mf_repeat *r = pool->repeat;
    r->top = r->pages = 0;
    for (unsigned i = 0; i < MF_KINDS; i++) {
        const mf_kind *k = &r->kinds[i];
        r->top = k->packed && k->top > r->top ? k->top : r->top;
        r->pages = k->packed && k->pages > r->pages ? k->pages : r->pages;
    }
    mark_seats(pool);
}

void mf_kind_drop(memfit_pool *pool, mf_kind *k)
{
    mf_repeat *r = pool->repeat;
    mf_host_free(pool->host, k->wants, k->count * sizeof *k->wants);
    pool->host_bytes -= k->count * sizeof *k->wants;
    r->all_wants -= k->count;
    r->maybe &= ~(UINT64_C(1) << (k - r->kinds));
    bool packed = k->packed;
    *k = (mf_kind){0};
    if (packed)
        set_top(pool);
}

static mf_kind *room_for(memfit_pool *pool, uint32_t count)
{
    mf_repeat *r = pool->repeat;
    for (;;) {
        mf_kind *none = NULL, *oldest = NULL;
        for (unsigned i = 0; i < MF_KINDS; i++) {
            mf_kind *k = &r->kinds[i];
            if (!k->wants)
                none = k;
            else if (!oldest || k->used < oldest->used)
                oldest = k;
        }
        if (none && r->all_wants + count <= ALL_WANTS)
            return none;
        mf_kind_drop(pool, oldest);
    }
}

mf_kind *mf_kind_add(memfit_pool *pool, uint64_t begun, uint32_t count)
{
    mf_repeat *r = pool->repeat;
    mf_kind *k = room_for(pool, count);
    mf_want *wants = mf_host_zalloc(pool->host, count * sizeof *wants);
    if (!wants)
        return NULL;
    pool->host_bytes += count * sizeof *wants;
    r->all_wants += count;
    for (uint32_t i = 0; i < count; i++) {
        const mf_note *n = mf_note_at(r, begun + i);
        wants[i] = (mf_want){MF_NO_SEAT, MF_NO_SEAT, MF_NO_SEAT, n->units, n->life, n->held};
    }
    *k = (mf_kind){.wants = wants, .count = count, .used = r->steps};
    return k;
}

/* The lives it had this time. What lives longer than thought may be in the way. */
void mf_kind_learn(mf_repeat *r, mf_kind *k, uint64_t begun)
{
    bool longer = false;
    for (uint32_t i = 0; i < k->count; i++) {
        const mf_note *n = mf_note_at(r, begun + i);
        mf_want *w = &k->wants[i];
        bool was = mf_want_seated(w);
        w->held = w->held || n->held;
        w->life = !n->life || !w->life ? 0 : n->life > w->life ? n->life : w->life;
        longer = longer || was != mf_want_seated(w);
    }
    r->again += k->seen > 0;
    k->seen++;
    k->used = r->steps;
    k->bad = k->missed || longer ? k->bad + 1 : 0;
    k->missed = 0;
}

/* Live blocks and spans that are not of the step that has just ended, nor of the one before. */
static bool stays(const mf_repeat *r, const mf_block *b, uint32_t count)
{
    if (b->state == MF_SPAN)
        return true;
    if (b->state != MF_LIVE || b->lane != r->lane) /* what other streams have goes, and comes back apart */
        return false;
    return !b->serial || r->count - (b->serial - 1) > 2 * (uint64_t)count;
}

static size_t claim_those_that_stay(memfit_pool *pool, uint32_t wants, mf_claim *claims)
{
    size_t count = 0;
    for (mf_block *b = pool->first; b && !mf_is_apart(pool, b); b = b->after)
        if (stays(pool->repeat, b, wants)) {
            if (claims)
                claims[count] = (mf_claim){b->start, b->start + b->bytes, MF_NOBODY, 0};
            count++;
        }
    return count;
}

/* Takes over the seats of the longest beginning that a packed kind has, too; returns how long that is. */
static uint32_t share_beginning(mf_repeat *r, mf_kind *k)
{
    uint32_t longest = 0;
    const mf_kind *with = NULL;
    for (unsigned i = 0; i < MF_KINDS; i++) {
        const mf_kind *o = &r->kinds[i];
        uint32_t same = 0;
        while (o != k && o->packed && same < o->count && same < k->count &&
               o->wants[same].units == k->wants[same].units)
            same++;
        with = same > longest ? o : with;
        longest = same > longest ? same : longest;
    }
    for (uint32_t i = 0; i < longest; i++)
        k->wants[i].start = with->wants[i].start, k->wants[i].other = with->wants[i].other;
    return longest;
}

static void unmark(mf_repeat *r, uint64_t start, uint64_t bytes, unsigned shift)
{
    for (uint64_t i = start >> shift; i < r->seat_pages && i <= (start + bytes - 1) >> shift; i++)
        r->seats[i / 64] &= ~(UINT64_C(1) << (i % 64));
}

/* Pages that seats of other kinds lie in, and nothing of this packing does: they would have to move from one to the other in every
 * step, or be there twice. What is marked is only these from now on; when the kind has its places all are marked anew. */
static uint64_t keep_others(mf_repeat *r, const mf_packing *p)
{
    uint64_t count = 0;
    for (size_t i = 0; i < p->claimed; i++)
        if (p->claims[i].want == MF_NOBODY)
            unmark(r, p->claims[i].start, p->claims[i].end - p->claims[i].start, p->shift);
    for (uint32_t i = 0; i < p->count; i++) {
        const mf_want *w = &p->wants[i];
        if (w->start != MF_NO_SEAT)
            unmark(r, w->start, (uint64_t)w->units * MF_UNIT, p->shift);
        if (w->other != MF_NO_SEAT)
            unmark(r, w->other, (uint64_t)w->units * MF_UNIT, p->shift);
    }
    for (uint64_t i = 0; i < (r->seat_pages + 63) / 64; i++)
        count += (uint64_t)__builtin_popcountll(r->seats[i]);
    return count;
}

/* What the largest of the kinds takes, with all among what stays, or above it. */
static uint64_t most_at(const mf_repeat *r, bool above)
{
    uint64_t most = 0;
    for (unsigned i = 0; i < MF_KINDS; i++)
        most = r->kinds[i].pages_at[above] > most ? r->kinds[i].pages_at[above] : most;
    return most;
}

/* Among what stays, or above all of it: there it is packed better, and gaps that nobody uses cost addresses only. It is the
 * same for all kinds, so that they share their pages, and where the largest of them takes the fewest. (When each kind decided as it was
 * packed, training and a test that wanted different places moved all of their pages in every test: a tenth of the time.) Among what
 * stays, a kind of few large blocks finds no room where one of many small ones does, and they share little: what both take counts
 * then. (RegNet and a network of convolutions over texts by turns, each close to the least, took 3,619 pages together and moved
 * 500 in every step; 1.10 of the live bytes, and above all that stays 1.02.) */
static void pack_somewhere(mf_repeat *r, mf_kind *k, mf_packing *p)
{
    uint64_t above = p->claimed ? mf_round_up(p->claims[p->claimed - 1].end, UINT64_C(1) << p->shift) : 0;
    uint64_t here = r->from, there = r->from ? 0 : above, other;
    p->from = here;
    p->fixed = share_beginning(r, k);
    mf_seats_pack(p);
    uint64_t was_there = k->pages_at[!here]; /* it may have been worse there than it is here */
    k->pages_at[0] = k->pages_at[1] = 0;
    uint64_t enough = most_at(r, here != 0), together = p->pages + keep_others(r, p);
    enough = enough > p->least ? enough : p->least;
    bool far = together > enough + enough / FAR_PART;
    k->pages_at[here != 0] = far ? together : p->pages;
    k->pages_at[!here] = was_there > p->pages ? was_there : p->pages;
    k->pages = p->pages;
    k->top = p->top;
    if (p->pages <= p->least + p->least / BETTER_PART && !far)
        return; /* it cannot be much better elsewhere */
    mf_seats_keep(p);
    p->from = there;
    p->fixed = 0;
    mf_seats_pack(p);
    k->pages_at[!here] = p->pages;
    other = most_at(r, !here);
    if (other + other / BETTER_PART >= most_at(r, here != 0)) {
        mf_seats_take_kept(p);
        return;
    }
    for (unsigned i = 0; i < MF_KINDS; i++)
        r->kinds[i].packed = false;
    r->from = there;
    k->top = p->top;
    k->pages = p->pages;
}

/* Does it take more than the pool holds and may hold, while there is time for moving pages? Without slack it never holds more for it. */
static bool too_large(memfit_pool *pool, uint64_t pages)
{
    return pool->options.slack > 0 && pages > mf_pages_easily(pool) && pages > pool->pages.reserved &&
           mf_moves_plenty(pool);
}

bool mf_kind_crosses(const mf_kind *k)
{
    for (uint32_t i = 0; i < k->count; i++)
        if (mf_want_seated(&k->wants[i]) && k->wants[i].life > k->count - i)
            return true;
    return false;
}

bool mf_kind_outlives(const mf_kind *k, uint64_t requests)
{
    for (uint32_t i = 0; i < k->count; i++)
        if (mf_want_seated(&k->wants[i]) && k->wants[i].life > requests)
            return true;
    return false;
}

void mf_kind_pack(memfit_pool *pool, mf_kind *k)
{
    mf_repeat *r = pool->repeat;
    if (r->count - r->needed > MF_TAPE) /* all is well */
        return;
    if (!k->packed && k->pages && too_large(pool, k->pages)) /* as it was when last packed */
        return;
    uint64_t began = mf_device_now_us(pool->device); /* packing takes time, too */
    size_t stay = claim_those_that_stay(pool, k->count, NULL), most = stay + 2 * (size_t)k->count;
    mf_claim *claims = mf_host_zalloc(pool->host, most * sizeof *claims);
    mf_rank *ranks = mf_host_zalloc(pool->host, k->count * sizeof *ranks);
    uint64_t *loads = mf_host_zalloc(pool->host, MF_SEAT_LOADS * (size_t)k->count * sizeof *loads);
    bool was = k->packed;
    k->packed = false;
    set_top(pool); /* of the others */
    if (claims && ranks && loads) {
        claim_those_that_stay(pool, k->count, claims);
        mf_packing p = {.wants = k->wants,
                        .count = k->count,
                        .again = mf_repeat_next_alike(r),
                        .shift = (unsigned)pool->pages.shift,
                        .claims = claims,
                        .claimed = stay,
                        .ranks = ranks,
                        .loads = loads};
        pack_somewhere(r, k, &p);
        if (pool->device->table->advance_us) /* a model's clock */
            pool->device->table->advance_us(pool->device, p.work / LOOKS_PER_US);
        k->packed = k->fresh = !too_large(pool, k->pages);
        if (k->packed && !was)
            r->newest = r->steps;
        k->bad = 0;
        k->again = p.again;
    }
    set_top(pool);
    mf_host_free(pool->host, claims, most * sizeof *claims);
    mf_host_free(pool->host, ranks, k->count * sizeof *ranks);
    mf_host_free(pool->host, loads, MF_SEAT_LOADS * (size_t)k->count * sizeof *loads);
    mf_moves_charge(pool, mf_device_now_us(pool->device) - began);
}

mf_kind *mf_kind_of(mf_repeat *r, uint64_t begun, uint64_t count)
{
    for (unsigned i = 0; i < MF_KINDS; i++) {
        mf_kind *k = &r->kinds[i];
        uint32_t same = 0;
        while (k->count == count && same < count && k->wants[same].units == mf_note_at(r, begun + same)->units)
            same++;
        if (k->wants && same == count)
            return k;
    }
    return NULL;
}

bool mf_kind_check(const memfit_pool *pool, const mf_kind *k, memfit_error *err)
{
    for (uint32_t i = 0; k->packed && i < k->count; i++) {
        const mf_want *s = &k->wants[i];
        uint64_t bytes = (uint64_t)s->units * MF_UNIT;
        if (s->start == MF_NO_SEAT)
            continue;
        if (!bytes || s->start + bytes > pool->range_bytes)
            return mf_fail(err, MEMFIT_INTERNAL, "check: seat %u of a step is out of range", i), false;
    }
    return true;
}

/* ---- what others ask ------------------------------------------------------------------------------------------ */

uint64_t mf_repeat_pages(const memfit_pool *pool)
{
    return pool->repeat ? pool->repeat->pages : 0;
}

bool mf_repeat_seats(const memfit_pool *pool, uint64_t page)
{
    const mf_repeat *r = pool->repeat;
    return r && page < r->seat_pages && r->seats[page / 64] >> (page % 64) & 1;
}

bool mf_repeat_plans(const memfit_pool *pool)
{
    return mf_repeat_pages(pool) != 0;
}

unsigned mf_repeat_kinds(const memfit_pool *pool)
{
    unsigned count = 0;
    for (unsigned i = 0; pool->repeat && i < MF_KINDS; i++)
        count += pool->repeat->kinds[i].packed;
    return count;
}
