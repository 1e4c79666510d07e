/*
 * apart.c: blocks that are not to lie among the main stream's.
 *
 *     addresses   |-- the main stream's blocks, holes --|   ...nothing...   |-- other streams' blocks --| tail
 *                                                  twice the pool's limit  ^ from here
 *
 * A side stream's input is small and its end depends on how far the device is. Among the main stream's blocks it would cut
 * the hole that the main stream's largest request is to have again in the next step, in another place every time. So it
 * lies apart, beyond all addresses that the limit can fill. Addresses cost nothing; pages go from one side to the other as everywhere.
 */
#include "pool/apart.h"
#include "pool/pages.h"
#include "pool/repeat.h"

enum { LONG = 16384 }; /* requests */

unsigned mf_apart_main(const memfit_pool *pool)
{
    for (unsigned i = 1; pool->multi && i < pool->lane_count; i++)
        if (pool->lane[i]->used && !pool->lane[i]->graph && pool->lane[i]->clock.stream == pool->main)
            return i;
    return 0;
}

/* The main stream is the first one, until another has asked for more over a long time. */
static void choose_main(memfit_pool *pool)
{
    unsigned main = mf_apart_main(pool), most = main;
    for (unsigned i = 1; i < pool->lane_count; i++) {
        const mf_lane *lane = pool->lane[i];
        if (lane->used && !lane->graph && (!most || lane->asked > pool->lane[most]->asked))
            most = i;
    }
    for (unsigned i = 1; i < pool->lane_count; i++)
        pool->lane[i]->asked = 0;
    pool->asked = 0;
    if (most == main || !most)
        return;
    pool->main = pool->lane[most]->clock.stream;
    mf_repeat_end(pool);
    mf_repeat_begin(pool);
}

bool mf_apart_is_aside(memfit_pool *pool, uint64_t bytes, unsigned lane)
{
    if (!pool->multi || pool->lane[lane]->graph || pool->apart == MF_BEYOND)
        return false;
    pool->lane[lane]->asked += bytes;
    if (++pool->asked == LONG)
        choose_main(pool);
    return pool->lane[lane]->clock.stream != pool->main;
}

void mf_apart_begin(memfit_pool *pool)
{
    const mf_pages *p = &pool->pages;
    pool->main = pool->home;
    if (pool->device->plain) /* its addresses are its memory */
        return;
    uint64_t half = pool->range_bytes / 2, from = pool->limit_bytes < half / 2 ? 2 * pool->limit_bytes : half;
    uint64_t reached = p->top << p->shift > pool->tail->start ? p->top << p->shift : pool->tail->start;
    pool->apart = mf_round_up(from > reached ? from : reached, p->bytes);
}

/* How many pages are missing there; one that is to be waited for counts as all. */
static uint64_t missing_at(const memfit_pool *pool, uint64_t start, uint64_t bytes)
{
    uint64_t shift = pool->pages.shift, first = start >> shift, past = ((start + bytes - 1) >> shift) + 1;
    if (!mf_shadows_over(pool, first, past))
        return mf_pages_missing(pool, start, bytes);
    bool wait;
    uint64_t missing = mf_shadows_needs(pool, first, past, &wait);
    return wait ? past - first + 2 : missing;
}

/* The one with the fewest pages missing, then the smallest, then the lowest. */
mf_block *mf_apart(memfit_pool *pool, uint64_t from, uint64_t bytes, uint64_t alignment, unsigned lane, uint64_t *start)
{
    uint64_t fewest = UINT64_MAX;
    mf_block *best = NULL;
    for (mf_block *b = pool->tail; b && b->start + b->bytes > from; b = b->before) {
        uint64_t begin = b->start < from ? from : b->start;
        if (b == pool->tail && missing_at(pool, begin, bytes) > (bytes >> pool->pages.shift) + 2) /* it would wait */
            begin = mf_beyond_shadows(pool, b) > begin ? mf_beyond_shadows(pool, b) : begin;
        begin += -(pool->range + begin) & (alignment - 1);
        if (b->state != MF_HOLE || (b->lane && b->lane != lane) || begin - b->start > b->bytes ||
            b->bytes - (begin - b->start) < bytes + (b == pool->tail))
            continue;
        uint64_t missing = missing_at(pool, begin, bytes);
        if (best && (missing > fewest || (missing == fewest && b->bytes > best->bytes)))
            continue;
        best = b;
        fewest = missing;
        *start = begin;
    }
    return best;
}
