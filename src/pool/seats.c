/*
 * seats.c: the blocks of a step, all of their lives known, are put one by one into the lowest or the tightest gap among those
 * they meet, in five ways. The one that takes the fewest pages wins: a gap that nobody
 * uses costs addresses only.
 *
 * Pages / live peak, recorded on a card: segmentation 0.98 (inputs come on other streams), GPT-2 1.00, two models by turns
 * 1.01, sound of six lengths 0.996, a generator and a discriminator by turns 1.055.
 */
#include "pool/seats.h"

#include <stdlib.h>

enum { LONG = 2048 }; /* packed in one way only: the time grows with the square, 4 ms for 990 requests in one way */

typedef enum way { BY_SIZE, BY_AREA, BY_LIFE, BY_SIZE_TIGHT, BY_AREA_TIGHT, WAYS } way;

static uint64_t bytes_of(const mf_want *w)
{
    return (uint64_t)w->units * MF_UNIT;
}

/* Does one of the two come while the other lives? What outlives the step is there when the next begins, as if that were of
 * the same kind. */
static bool meet(const mf_packing *p, uint32_t a, uint32_t b)
{
    uint32_t behind = b >= a ? b - a : b + p->count - a;
    return behind < p->wants[a].life || (p->count - behind) % p->count < p->wants[b].life;
}

static void put_claim(mf_claim *claims, size_t *count, mf_claim one)
{
    size_t i = (*count)++;
    for (; i && claims[i - 1].start > one.start; i--)
        claims[i] = claims[i - 1];
    claims[i] = one;
}

/* Puts one into the lowest gap that is long enough, or the tightest; claims are in the order of their starts. */
static uint64_t seat(mf_packing *p, uint32_t index, uint64_t low, size_t *count, bool tight)
{
    uint64_t bytes = bytes_of(&p->wants[index]), tightest = UINT64_MAX, start = 0;
    for (size_t i = 0; i < *count; i++) {
        const mf_claim *c = &p->claims[i];
        if (c->end <= low || (c->want != MF_NOBODY && !meet(p, index, c->want)))
            continue;
        if (c->start >= low + bytes && c->start - low < tightest) {
            tightest = c->start - low;
            start = low;
            if (!tight)
                break;
        }
        low = c->end;
    }
    if (tightest == UINT64_MAX)
        start = low;
    put_claim(p->claims, count, (mf_claim){start, start + bytes, index});
    return start;
}

static int heavier_first(const void *a, const void *b)
{
    const mf_rank *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    if (x->life != y->life)
        return x->life > y->life ? -1 : 1;
    return x->want < y->want ? -1 : 1;
}

static uint64_t weight(const mf_want *w, way how)
{
    if (how == BY_LIFE)
        return (uint64_t)w->life << 32 | w->units;
    return how == BY_SIZE || how == BY_SIZE_TIGHT ? w->units : (uint64_t)w->units * w->life;
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
            put_claim(p->claims, &kept, (mf_claim){w->start, w->start + bytes_of(w), i});
        if (w->other != MF_NO_SEAT)
            put_claim(p->claims, &kept, (mf_claim){w->other, w->other + bytes_of(w), i});
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

/* Returns how many claims there are then. */
static size_t pack_one_way(mf_packing *p, way how, size_t claimed)
{
    size_t ranked = 0, count = claim_given(p, claimed);
    bool tight = how == BY_SIZE_TIGHT || how == BY_AREA_TIGHT;
    for (uint32_t i = p->fixed; i < p->count; i++)
        if (p->wants[i].start != MF_NO_SEAT)
            p->ranks[ranked++] = (mf_rank){weight(&p->wants[i], how), p->wants[i].life, i};
    qsort(p->ranks, ranked, sizeof *p->ranks, heavier_first);
    for (size_t i = 0; i < ranked; i++) {
        uint32_t index = p->ranks[i].want;
        mf_want *w = &p->wants[index];
        w->start = seat(p, index, p->from, &count, tight);
        w->other = w->life > p->count ? seat(p, index, p->from, &count, tight) : MF_NO_SEAT;
    }
    measure(p, count);
    return count;
}

void mf_seats_pack(mf_packing *p)
{
    uint64_t fewest = UINT64_MAX;
    way first = p->count > LONG ? BY_AREA_TIGHT : BY_SIZE, best = first, last = first;
    for (uint32_t i = 0; i < p->count; i++) {
        mf_want *w = &p->wants[i];
        if (!mf_want_seated(w) || (!p->again && w->life > p->count - i))
            w->start = w->other = MF_NO_SEAT;
        else if (i >= p->fixed)
            w->start = 0;
    }
    for (way w = first; w < WAYS; w++) {
        p->claimed = pack_one_way(p, w, p->claimed);
        best = p->pages < fewest ? w : best;
        fewest = p->pages < fewest ? p->pages : fewest;
        last = w;
    }
    if (best != last)
        p->claimed = pack_one_way(p, best, p->claimed);
}
