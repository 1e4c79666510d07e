/*
 * place.c: where a block goes. Best fit over the holes, whether or not there is memory behind them, the tail only when
 * no hole will do; then the pages that are missing are put behind it (pages.c).
 *
 * Measured over seven training traces with 2 MiB pages: physical per live byte at the peak at most 1.0045, at most 1.2
 * % of the events move pages. Why it works: training asks for the same sizes in the same order, so a hole that kept its
 * exact size is filled exactly again, and holes at the peak are few. Splitting happens always.
 *
 * When the pages for the best fit cannot be had, every hole is looked at for the place that needs the fewest, at both
 * of its ends. At the tail a request never needs more pages than its bytes fill. So a request fails only if the pages
 * that hold a live byte, and its own, are more than the limit allows.
 *
 * Tried and dropped: lowest address first (1.09), best fit among backed holes first (1.0475 on one trace), exact fits
 * first and then backed ones (1.0077), weighing missing pages against bytes left over (no better than plain best fit),
 * large blocks from the other end (no gain).
 */
#include "pool/state.h"

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

typedef struct spot {
    mf_block *hole;
    uint64_t start;
    uint64_t pages; /* that would no longer be idle, or have to come */
} spot;

static void consider(memfit_pool *pool, spot *best, mf_block *hole, uint64_t start, uint64_t bytes)
{
    if (start < hole->start || start - hole->start > hole->bytes || bytes > hole->bytes - (start - hole->start) ||
        (hole == pool->tail && bytes == hole->bytes))
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
    if (!best->hole || pages < best->pages)
        *best = (spot){hole, start, pages};
}

/* The place, of all, that needs the fewest pages. */
static spot least(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane)
{
    spot best = {0};
    for (mf_block *b = pool->first; b; b = b->after) {
        if (b->state != MF_HOLE || b->bytes < bytes || (b->lane && b->lane != lane))
            continue;
        consider(pool, &best, b, align_up(pool, b->start, alignment), bytes);
        if (b != pool->tail)
            consider(pool, &best, b, align_down(pool, b->start + b->bytes - bytes, alignment), bytes);
        uint64_t whole = alignment > pool->pages.bytes ? alignment : pool->pages.bytes;
        consider(pool, &best, b, align_up(pool, b->start, whole), bytes);
    }
    return best;
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

/* Records, a way to find it, and pages for [start, start + bytes) in a hole. */
static memfit_status prepare(memfit_pool *pool, const mf_block *hole, uint64_t start, uint64_t bytes,
                             mf_block_state state, bool grow_soft, memfit_error *err)
{
    bool findable = state == MF_SPAN ? mf_cells_reserve(pool, start, bytes) : mf_table_reserve(pool);
    if (!findable || !mf_blocks_reserve(pool, 2)) {
        pool->refusal = MF_REFUSED_HOST;
        return MEMFIT_NO_HOST_MEMORY;
    }
    memfit_status status = mf_pages_back(pool, start, bytes, grow_soft, err);
    if (status)
        leave_idle(pool, hole, start, bytes);
    return status;
}

mf_block *mf_place(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block_state state,
                   bool grow_soft, memfit_error *err)
{
    pool->refusal = MF_REFUSED_NOT;
    pool->refused_pages = (bytes + pool->pages.bytes - 1) >> pool->pages.shift;
    if (bytes > pool->range_bytes || alignment > pool->range_bytes) {
        pool->refusal = MF_REFUSED_LIMIT;
        return NULL;
    }
    uint64_t start = 0;
    mf_block *hole = find_hole(pool, bytes, alignment, lane, &start);
    if (hole && mf_caches_keep(pool) && mf_pages_missing(pool, start, bytes) && mf_caches_settle(pool))
        /* what threads keep comes first */
        hole = find_hole(pool, bytes, alignment, lane, &start);
    if (hole && pool->multi && mf_pages_missing(pool, start, bytes) && mf_lanes_poll(pool, true))
        /* so does what other streams are done with */
        hole = find_hole(pool, bytes, alignment, lane, &start);
    memfit_status status = MEMFIT_OUT_OF_MEMORY;
    mf_table_warm(pool, start);
    if (hole)
        status = prepare(pool, hole, start, bytes, state, grow_soft, err);
    else
        pool->refusal = MF_REFUSED_ADDRESS;
    if (status == MEMFIT_OUT_OF_MEMORY && pool->refusal != MF_REFUSED_NOT) {
        mf_refusal why = pool->refusal;
        spot other = least(pool, bytes, alignment, lane);
        if (other.hole && (other.hole != hole || other.start != start)) {
            hole = other.hole;
            start = other.start;
            status = prepare(pool, hole, start, bytes, state, grow_soft, err);
        }
        if (status && other.hole)
            pool->refused_pages = other.pages;
        if (status && why != MF_REFUSED_LIMIT && pool->refusal == MF_REFUSED_LIMIT && why != MF_REFUSED_ADDRESS)
            pool->refusal = why;
    }
    if (status)
        return NULL;
    return mf_block_cut(pool, hole, start, bytes, state);
}
