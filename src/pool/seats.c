/*
 * seats.c: the blocks of a step, all of their lives known, are put one by one into the lowest or the tightest gap among those
 * they meet, in eight ways. Where none is close to what the fullest moment needs, each is tried again: the one that ends highest
 * goes before all others, and they are packed once more, as long as that takes fewer pages. The way that takes the fewest wins (a
 * gap that nobody uses costs addresses only), and in the end goes on so until some rounds in a row gained nothing.
 *
 * All of it ends as soon as a packing is close, or when so much work is done: a step of 570 requests that is close in the first
 * way takes 0.3 ms, one of 4,100 13 ms (the time grows with the square), one of 900 that never is 10 ms. (It was 21 to 33 ms for a
 * step of 900 on an H200, and charged as moving.)
 *
 * Pages / live peak, recorded on a card: segmentation 0.98 (inputs come on other streams), GPT-2 1.00, two models by turns
 * 1.01, sound of six lengths 0.996, a denoising network 1.00 (1.03 without the ways that begin with what lives at the
 * fullest moment), a generator and a discriminator by turns 1.055.
 */
#include "pool/seats.h"

#include <stdlib.h>
#include <string.h>

typedef enum key { SIZE, AREA, LIFE } key;

typedef struct way {
    key by;
    bool loaded; /* those that live when most is in use first, then by the key */
    bool tight;  /* into the tightest gap, not the lowest */
} way;

static const way ways[] = {{SIZE, false, false}, {AREA, false, false}, {LIFE, false, false}, {SIZE, false, true},
                           {LIFE, true, false},  {AREA, true, false},  {SIZE, true, true},   {AREA, false, true}};
enum {
    WAYS = sizeof ways / sizeof *ways,
    PATIENCE = WAYS,     /* rounds that gain nothing, before the best way is left as it is */
    ENOUGH_PART = 128,   /* above what the fullest moment needs */
    MOST_WORK = 1 << 22, /* claims looked at before no further way or round is begun */
};

static uint64_t bytes_of(const mf_want *w)
{
    return (uint64_t)w->units * MF_UNIT;
}

/* Does one of the two come while the other lives? What outlives the step is there when the next begins, as if that were of
 * the same kind. */
static bool meet(uint32_t count, uint32_t a, uint32_t life, const mf_claim *c)
{
    uint32_t behind = c->want >= a ? c->want - a : c->want + count - a;
    return behind < life || (behind ? count - behind : 0) < c->life;
}

static void put_claim(mf_claim *claims, size_t *count, mf_claim one)
{
    size_t low = 0, high = *count; /* behind those that begin there or lower */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (claims[middle].start > one.start)
            high = middle;
        else
            low = middle + 1;
    }
    memmove(claims + low + 1, claims + low, (*count - low) * sizeof *claims);
    claims[low] = one;
    ++*count;
}

/* Puts one into the lowest gap that is long enough, or the tightest; claims are in the order of their starts. */
static uint64_t seat(mf_packing *p, uint32_t index, uint64_t low, size_t *count, bool tight)
{
    uint64_t bytes = bytes_of(&p->wants[index]), tightest = UINT64_MAX, start = 0;
    uint32_t life = p->wants[index].life, steps = p->count;
    for (const mf_claim *c = p->claims, *past = c + *count; c < past; c++) {
        if (c->end <= low || (c->want != MF_NOBODY && !meet(steps, index, life, c)))
            continue;
        if (c->start >= low + bytes && c->start - low < tightest) {
            tightest = c->start - low;
            start = low;
            if (!tight)
                break;
        }
        low = c->end;
    }
    p->work += *count;
    if (tightest == UINT64_MAX)
        start = low;
    put_claim(p->claims, count, (mf_claim){start, start + bytes, index, life});
    return start;
}

static int heavier_first(const void *a, const void *b)
{
    const mf_rank *x = a, *y = b;
    if (x->load != y->load)
        return x->load > y->load ? -1 : 1;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    if (x->life != y->life)
        return x->life > y->life ? -1 : 1;
    return x->want < y->want ? -1 : 1;
}

static uint64_t weight(const mf_want *w, key by)
{
    if (by == LIFE)
        return (uint64_t)w->life << 32 | w->units;
    return by == SIZE ? w->units : (uint64_t)w->units * w->life;
}

/* How much is in use at each request, and of each block the most while it lives. What outlives the step counts at its
 * beginning, too. */
static void weigh_loads(mf_packing *p)
{
    uint64_t *load = p->loads, *most = p->loads + p->count;
    for (uint32_t i = 0; i < p->count; i++)
        load[i] = most[i] = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < p->count; i++) {
            const mf_want *w = &p->wants[i];
            uint32_t lives = w->start == MF_NO_SEAT ? 0 : w->life < p->count ? w->life : p->count;
            for (uint32_t k = 0, at = i; k < lives; k++, at = at + 1 < p->count ? at + 1 : 0)
                if (!pass)
                    load[at] += w->units;
                else if (load[at] > most[i])
                    most[i] = load[at];
        }
}

/* Those that are not to be placed any more: what stays, and the beginning that another kind has, too. */
static size_t claim_given(mf_packing *p, size_t claimed)
{
    size_t kept = 0;
    for (size_t i = 0; i < claimed; i++) /* of the last way, only those that stay */
        if (p->claims[i].want == MF_NOBODY)
            p->claims[kept++] = p->claims[i];
    for (uint32_t i = 0; i < p->fixed; i++) {
        const mf_want *w = &p->wants[i];
        if (w->start != MF_NO_SEAT)
            put_claim(p->claims, &kept, (mf_claim){w->start, w->start + bytes_of(w), i, w->life});
        if (w->other != MF_NO_SEAT)
            put_claim(p->claims, &kept, (mf_claim){w->other, w->other + bytes_of(w), i, w->life});
    }
    return kept;
}

static void measure(mf_packing *p, size_t claimed)
{
    uint64_t past = 0;
    p->pages = p->top = 0;
    for (size_t i = 0; i < claimed; i++) {
        const mf_claim *c = &p->claims[i];
        uint64_t first = c->start >> p->shift, end = ((c->end - 1) >> p->shift) + 1;
        first = first < past ? past : first;
        p->pages += end > first ? end - first : 0;
        past = end > past ? end : past;
        p->top = c->want != MF_NOBODY && c->end > p->top ? c->end : p->top;
    }
}

/* In the order of the ranks. Returns how many claims there are then. */
static size_t seat_all(mf_packing *p, const way *how, size_t ranked, size_t claimed)
{
    size_t count = claim_given(p, claimed);
    for (size_t i = 0; i < ranked; i++) {
        uint32_t index = p->ranks[i].want;
        mf_want *w = &p->wants[index];
        w->start = seat(p, index, p->from, &count, how->tight);
        w->other = w->life > p->count ? seat(p, index, p->from, &count, how->tight) : MF_NO_SEAT;
    }
    measure(p, count);
    return count;
}

/* The one that ends highest becomes the first. */
static void promote(mf_packing *p, size_t ranked)
{
    size_t highest = 0;
    uint64_t top = 0;
    for (size_t i = 0; i < ranked; i++) {
        const mf_want *w = &p->wants[p->ranks[i].want];
        uint64_t start = w->other != MF_NO_SEAT && w->other > w->start ? w->other : w->start;
        highest = start + bytes_of(w) > top ? i : highest;
        top = start + bytes_of(w) > top ? start + bytes_of(w) : top;
    }
    mf_rank first = p->ranks[highest];
    memmove(p->ranks + 1, p->ranks, highest * sizeof *p->ranks);
    p->ranks[0] = first;
}

/* The best so far. */
typedef struct best {
    uint64_t pages, top;
    unsigned way;
    uint64_t least; /* what the fullest moment needs beside what stays */
} best;

/* Seats are kept behind the loads: in the first place those of the best way so far, in the second those of another packing. */
static void keep(mf_packing *p, unsigned place)
{
    uint64_t *kept = p->loads + (2 + 2 * place) * (size_t)p->count;
    for (uint32_t i = 0; i < p->count; i++) {
        kept[2 * i] = p->wants[i].start;
        kept[2 * i + 1] = p->wants[i].other;
    }
}

static void take_kept(mf_packing *p, unsigned place)
{
    const uint64_t *kept = p->loads + (2 + 2 * place) * (size_t)p->count;
    for (uint32_t i = 0; i < p->count; i++) {
        p->wants[i].start = kept[2 * i];
        p->wants[i].other = kept[2 * i + 1];
    }
}

void mf_seats_keep(mf_packing *p)
{
    keep(p, 1);
}

void mf_seats_take_kept(mf_packing *p)
{
    take_kept(p, 1);
}

static void keep_best(mf_packing *p, unsigned w, best *b)
{
    if (p->pages >= b->pages)
        return;
    *b = (best){p->pages, p->top, w, b->least};
    keep(p, 0);
}

static void take_best(mf_packing *p, const best *b)
{
    take_kept(p, 0);
    p->pages = b->pages;
    p->top = b->top;
}

/* Is it close enough to what the fullest moment needs? */
static bool enough(const mf_packing *p, const best *b)
{
    return b->pages <= b->least + b->least / ENOUGH_PART || p->work >= p->most_work;
}

/* Until so many rounds in a row took no fewer pages. */
static void pack_one_way(mf_packing *p, unsigned w, unsigned patience, best *b)
{
    const way *how = &ways[w];
    size_t ranked = 0;
    for (uint32_t i = p->fixed; i < p->count; i++)
        if (p->wants[i].start != MF_NO_SEAT)
            p->ranks[ranked++] =
                (mf_rank){how->loaded ? p->loads[p->count + i] : 0, weight(&p->wants[i], how->by), p->wants[i].life, i};
    qsort(p->ranks, ranked, sizeof *p->ranks, heavier_first);
    p->claimed = seat_all(p, how, ranked, p->claimed);
    keep_best(p, w, b);
    uint64_t fewest = p->pages;
    for (unsigned left = patience; left && !enough(p, b); left--) {
        promote(p, ranked);
        p->claimed = seat_all(p, how, ranked, p->claimed);
        keep_best(p, w, b);
        left = p->pages < fewest ? patience + 1 : left;
        fewest = p->pages < fewest ? p->pages : fewest;
    }
}

static best begin(mf_packing *p)
{
    uint64_t shortest = UINT64_MAX;
    for (uint32_t i = 0; i < p->count; i++) {
        mf_want *w = &p->wants[i];
        if (!mf_want_seated(w) || (!p->again && w->life > p->count - i))
            w->start = w->other = MF_NO_SEAT;
        else if (i >= p->fixed)
            w->start = 0;
        shortest = bytes_of(w) < shortest ? bytes_of(w) : shortest;
    }
    weigh_loads(p);
    uint64_t most = 0, page = UINT64_C(1) << p->shift;
    for (uint32_t i = 0; i < p->count; i++)
        most = p->loads[i] > most ? p->loads[i] : most;
    size_t stay = 0;
    for (size_t i = 0; i < p->claimed; i++) { /* those with a gap between them that nothing fits are one */
        const mf_claim *c = &p->claims[i];
        if (c->want == MF_NOBODY && stay && c->start < p->claims[stay - 1].end + shortest)
            p->claims[stay - 1].end = c->end;
        else if (c->want == MF_NOBODY)
            p->claims[stay++] = *c;
    }
    p->claimed = stay;
    measure(p, stay);
    p->least = p->pages + (most * MF_UNIT + page - 1) / page;
    return (best){.pages = UINT64_MAX, .least = p->least};
}

void mf_seats_pack(mf_packing *p)
{
    best b = begin(p);
    p->most_work = p->work + MOST_WORK;
    for (unsigned w = 0; w < WAYS && !enough(p, &b); w++)
        pack_one_way(p, w, 0, &b);
    for (unsigned w = 0; w < WAYS && !enough(p, &b); w++)
        pack_one_way(p, w, 1, &b);
    if (!enough(p, &b))
        pack_one_way(p, b.way, PATIENCE, &b);
    take_best(p, &b);
}
