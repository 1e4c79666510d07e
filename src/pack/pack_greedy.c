/*
 * pack_greedy.c: one pass of a greedy packer: buffers in a given order, each into the best (or first) gap.
 *
 * What is placed is kept ordered by offset in blocks of at most 64:
 *
 *     block 0: offsets 0..4k    mask 1111111111111111      a block's mask has a bit for every stretch of time that
 *     block 1: offsets 4k..9k   mask 1111100000000011      one of its buffers touches: a block that shares no bit
 *     block 2: ...                                         with the buffer to be placed is skipped whole
 *
 * A placement walks the blocks upwards, keeps the highest end met so far among colliding buffers, and looks at the gap
 * below each next one. Cost: O(blocks + colliding) a placement; 18,692 buffers took 40 to 190 ms an order, depending
 * on the order. Insertion moves at most 64 entries; a full block is split.
 */
#include "pack/pack_internal.h"

#include "base/error.h"

#include <string.h>

enum { SHELF_MOST = 64 };

struct mf_pack_shelf {
    uint64_t mask;
    uint32_t count;
    uint32_t s0[SHELF_MOST], s1[SHELF_MOST];
    uint64_t begin[SHELF_MOST], end[SHELF_MOST];
};

memfit_status mf_pack_greedy_init(mf_pack_greedy *g, const mf_pack_problem *problem, mf_arena *arena, memfit_error *err)
{
    size_t n = problem->count, blocks = n / (SHELF_MOST / 2) + 2;
    *g = (mf_pack_greedy){.problem = problem, .best_height = UINT64_MAX, .best_bytes = UINT64_MAX};
    while (problem->sections && ((problem->sections - 1) >> g->shift) > 63) /* the last section has a bit too */
        g->shift++;
    g->blocks = MF_NEW_ARRAY(arena, mf_pack_shelf *, blocks);
    g->spare = MF_NEW_ARRAY(arena, mf_pack_shelf *, blocks);
    g->order = MF_NEW_ARRAY(arena, uint32_t, n);
    g->offsets = MF_NEW_ARRAY(arena, uint64_t, n);
    g->best = MF_NEW_ARRAY(arena, uint64_t, n);
    g->pairs = MF_NEW_ARRAY(arena, mf_pack_pair, n);
    g->scratch = MF_NEW_ARRAY(arena, mf_pack_pair, n);
    mf_pack_shelf *shelves = MF_NEW_ARRAY(arena, mf_pack_shelf, blocks);
    if (!g->blocks || !g->spare || !g->order || !g->offsets || !g->best || !g->pairs || !g->scratch || !shelves)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", n);
    for (size_t i = 0; i < blocks; i++)
        g->spare[i] = &shelves[i];
    g->spare_count = blocks;
    return MEMFIT_OK;
}

static uint64_t time_mask(const mf_pack_greedy *g, const mf_pack_item *it)
{
    uint32_t low = it->s0 >> g->shift, high = (it->s1 - 1) >> g->shift;
    return (UINT64_MAX >> (63 - (high - low))) << low;
}

static void insert(mf_pack_greedy *g, const mf_pack_item *it, uint64_t offset)
{
    /* The last block that begins at or below the offset. */
    size_t low = 0, high = g->block_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (g->blocks[middle]->begin[0] <= offset)
            low = middle;
        else
            high = middle;
    }
    mf_pack_shelf *b = g->blocks[low];
    if (b->count == SHELF_MOST) { /* split: the upper half to a new block behind it */
        mf_pack_shelf *up = g->spare[--g->spare_count];
        const uint32_t half = SHELF_MOST / 2;
        memcpy(up->s0, b->s0 + half, half * sizeof *b->s0);
        memcpy(up->s1, b->s1 + half, half * sizeof *b->s1);
        memcpy(up->begin, b->begin + half, half * sizeof *b->begin);
        memcpy(up->end, b->end + half, half * sizeof *b->end);
        up->count = b->count = half;
        up->mask = b->mask;
        memmove(g->blocks + low + 2, g->blocks + low + 1, (g->block_count - low - 1) * sizeof *g->blocks);
        g->blocks[low + 1] = up;
        g->block_count++;
        if (up->begin[0] <= offset)
            b = up;
    }
    uint32_t at = b->count;
    for (; at > 0 && b->begin[at - 1] > offset; at--) {
        b->s0[at] = b->s0[at - 1];
        b->s1[at] = b->s1[at - 1];
        b->begin[at] = b->begin[at - 1];
        b->end[at] = b->end[at - 1];
    }
    b->s0[at] = it->s0;
    b->s1[at] = it->s1;
    b->begin[at] = offset;
    b->end[at] = offset + it->size;
    b->count++;
    b->mask |= time_mask(g, it);
}

static inline uint64_t align_up(uint64_t x, uint64_t align)
{
    return align <= 1 ? x : (x + align - 1) / align * align;
}

/* The lowest (first fit) or tightest (best fit) gap among the colliding buffers; the top counts as the widest. */
static uint64_t find_gap(mf_pack_greedy *g, const mf_pack_item *it, bool best_fit)
{
    const uint32_t s0 = it->s0, s1 = it->s1;
    const uint64_t mask = time_mask(g, it);
    uint64_t top = 0, best = MF_PACK_NOWHERE, best_gap = UINT64_MAX;
    g->work += g->block_count;
    for (size_t k = 0; k < g->block_count; k++) {
        const mf_pack_shelf *b = g->blocks[k];
        if (!(b->mask & mask))
            continue;
        g->work += b->count;
        for (uint32_t i = 0; i < b->count; i++) {
            if (b->s0[i] >= s1 || b->s1[i] <= s0)
                continue;
            if (b->begin[i] >= top + it->size) {
                uint64_t at = align_up(top, it->align), gap = b->begin[i] - top;
                if (at + it->size <= b->begin[i] && gap < best_gap) {
                    if (!best_fit || gap == it->size)
                        return at;
                    best = at;
                    best_gap = gap;
                }
            }
            if (b->end[i] > top)
                top = b->end[i];
        }
    }
    return best != MF_PACK_NOWHERE ? best : align_up(top, it->align);
}

bool mf_pack_greedy_keep(mf_pack_greedy *g, uint64_t height)
{
    /* Compared in bytes: of two packings as high in units one may end in a padding. */
    if (height > g->best_height)
        return false;
    uint64_t bytes = mf_pack_problem_height(g->problem, g->offsets);
    if (bytes >= g->best_bytes)
        return false;
    g->best_bytes = bytes;
    g->best_height = height;
    memcpy(g->best, g->offsets, g->problem->count * sizeof *g->best);
    return true;
}

static bool is_given(const mf_pack_greedy *g, size_t i)
{
    return g->problem->items[i].fixed || (g->pinned && g->pinned[i] != MF_PACK_NOWHERE);
}

uint64_t mf_pack_greedy_pass(mf_pack_greedy *g, bool best_fit, uint64_t give_up)
{
    const mf_pack_problem *p = g->problem;
    while (g->block_count)
        g->spare[g->spare_count++] = g->blocks[--g->block_count];
    g->blocks[0] = g->spare[--g->spare_count];
    g->blocks[0]->count = 0;
    g->blocks[0]->mask = 0;
    g->block_count = 1;
    uint64_t height = 0;
    for (size_t i = 0; (p->any_fixed || g->pinned) && i < p->count; i++) {
        const mf_pack_item *it = &p->items[i];
        if (!is_given(g, i))
            continue;
        g->offsets[i] = it->fixed ? it->offset : g->pinned[i];
        insert(g, it, g->offsets[i]);
        height = g->offsets[i] + it->size > height ? g->offsets[i] + it->size : height;
    }
    for (size_t k = 0; k < p->count; k++) {
        uint32_t i = g->order[k];
        const mf_pack_item *it = &p->items[i];
        if (is_given(g, i))
            continue;
        uint64_t at = find_gap(g, it, best_fit);
        g->offsets[i] = at;
        if (at + it->size > height) {
            height = at + it->size;
            if (height > give_up)
                return UINT64_MAX;
        }
        insert(g, it, at);
        g->work += SHELF_MOST;
    }
    mf_pack_greedy_keep(g, height);
    return height;
}

/* ---- orders ---- */

static uint64_t area_of(const mf_pack_item *it)
{
    double area = (double)it->size * (double)it->life;
    return area < 1e18 ? (uint64_t)area : (uint64_t)1000000000000000000 + (uint64_t)(area / 1e18);
}

static uint64_t first_key(const mf_pack_item *it, mf_pack_order order, size_t sections)
{
    switch (order) {
    case MF_PACK_BY_SIZE:
    case MF_PACK_BY_LOAD_SIZE:
        return it->size;
    case MF_PACK_BY_LIFE:
    case MF_PACK_BY_LOAD:
        return it->life;
    case MF_PACK_BY_AREA:
    case MF_PACK_BY_LOAD_AREA:
        return area_of(it);
    case MF_PACK_BY_BIRTH:
        return sections - it->s0;
    case MF_PACK_BY_DEATH:
    default:
        return it->s1;
    }
}

/* Sorted by several keys, the least first: each sort is stable. Ties end in larger size, then longer life. */
void mf_pack_greedy_sort(mf_pack_greedy *g, mf_pack_order order, bool whole_first)
{
    const mf_pack_problem *p = g->problem;
    size_t n = p->count;
    g->work += 64 * n;
    for (size_t i = 0; i < n; i++) {
        uint64_t tie = order == MF_PACK_BY_SIZE || order == MF_PACK_BY_LOAD_SIZE ? p->items[i].life : p->items[i].size;
        g->pairs[i] = (mf_pack_pair){~tie, (uint32_t)i};
    }
    mf_pack_sort(g->pairs, g->scratch, n);
    for (size_t i = 0; i < n; i++)
        g->pairs[i].key = ~first_key(&p->items[g->pairs[i].value], order, p->sections);
    mf_pack_sort(g->pairs, g->scratch, n);
    if (order == MF_PACK_BY_LOAD || order == MF_PACK_BY_LOAD_SIZE || order == MF_PACK_BY_LOAD_AREA) {
        for (size_t i = 0; i < n; i++)
            g->pairs[i].key = ~p->items[g->pairs[i].value].crossed;
        mf_pack_sort(g->pairs, g->scratch, n);
    }
    if (whole_first) {
        for (size_t i = 0; i < n; i++)
            g->pairs[i].key = !p->items[g->pairs[i].value].whole;
        mf_pack_sort(g->pairs, g->scratch, n);
    }
    for (size_t i = 0; i < n; i++)
        g->order[i] = g->pairs[i].value;
}
