/*
 * pools.c: see pools.h. One mechanism with three sets of rules:
 *
 *                caching                    expandable                BFC with growth
 *   rounding     512                        512                       256
 *   pools        small (<= 1 MiB), large    the same                  one
 *   a segment    2 MiB; 20 MiB up to        pages of 2 or 20 MiB at   doubles from 2 MiB until the
 *                10 MiB; else next 2 MiB    the end of one range      request fits
 *   split        small: 512 are left;       512 are left              twice the request, or 128 MiB
 *                large: more than 1 MiB                               are left
 *   when full    unused segments go back    unused pages at the end   unused regions go back
 *
 * oneDNN's is BFC for requests of 256 KiB and more.
 *
 * A segment is a list of chunks by address; free neighbours are always merged. A request takes the smallest free chunk
 * that holds it, the lowest of equals. Sources: c10/cuda/CUDACachingAllocator.cpp, xla/tsl/framework/bfc_allocator.cc.
 */
#include "plan/frameworks/pools.h"
#include "base/bytes.h"

#include "base/error.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

typedef struct chunk {
    uint64_t bytes;
    uint64_t address;        /* orders chunks; segments are given rising addresses */
    uint32_t previous, next; /* in the segment */
    uint32_t pool;
    bool free, used; /* used: this slot of the table holds a chunk */
} chunk;

/* A free chunk, in its pool's lists of holes: one for each power of two, the smallest first, of equals the one that lies
 * first. */
typedef struct hole {
    uint64_t bytes, address;
    uint32_t chunk;
} hole;

enum { BINS = 64 };

typedef struct hole_list {
    hole *items;
    size_t count, capacity;
} hole_list;

typedef struct pool_state {
    const mf_tape *tape;
    mf_pool_model model;
    uint64_t limit, reserved, most, live, live_most, small, small_most, next_address, region;
    chunk *chunks;
    size_t count, capacity;
    hole_list holes[2][BINS]; /* by pool and size: the free chunks */
    uint32_t *of_block;       /* tape block -> chunk */
    uint32_t range_end[2];    /* expandable: the last chunk of each pool's range */
    uint32_t spare;           /* a slot that may be used again, or MF_NONE */
    bool no_memory;
} pool_state;

static uint32_t new_chunk(pool_state *s, chunk c)
{
    uint32_t slot = s->spare;
    if (slot != MF_NONE) {
        s->spare = s->chunks[slot].next;
    } else {
        if (!mf_grow(s->tape->host, &s->chunks, &s->capacity, s->count, sizeof *s->chunks)) {
            s->no_memory = true;
            return MF_NONE;
        }
        slot = (uint32_t)s->count++;
    }
    c.used = true;
    s->chunks[slot] = c;
    return slot;
}

static void drop_chunk(pool_state *s, uint32_t slot)
{
    s->chunks[slot] = (chunk){.next = s->spare};
    s->spare = slot;
}

/* ---- holes ---- */

/* The first hole that is not before one of these bytes at this address. */
static size_t find_hole(const hole_list *list, uint64_t bytes, uint64_t address)
{
    size_t low = 0, high = list->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const hole *h = &list->items[middle];
        if (h->bytes < bytes || (h->bytes == bytes && h->address < address))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t bin_of(uint64_t bytes)
{
    return bytes ? 63 - (uint32_t)__builtin_clzll(bytes) : 0;
}

static void add_hole(pool_state *s, uint32_t c)
{
    const chunk *x = &s->chunks[c];
    hole_list *list = &s->holes[x->pool][bin_of(x->bytes)];
    if (!mf_grow(s->tape->host, &list->items, &list->capacity, list->count, sizeof *list->items)) {
        s->no_memory = true;
        return;
    }
    size_t at = find_hole(list, x->bytes, x->address);
    memmove(&list->items[at + 1], &list->items[at], (list->count - at) * sizeof *list->items);
    list->items[at] = (hole){.bytes = x->bytes, .address = x->address, .chunk = c};
    list->count++;
}

/* Of a chunk that is free and listed with the bytes it has. */
static void remove_hole(pool_state *s, uint32_t c)
{
    const chunk *x = &s->chunks[c];
    hole_list *list = &s->holes[x->pool][bin_of(x->bytes)];
    size_t at = find_hole(list, x->bytes, x->address);
    if (at == list->count || list->items[at].chunk != c)
        return; /* it never got there: no memory */
    list->count--;
    memmove(&list->items[at], &list->items[at + 1], (list->count - at) * sizeof *list->items);
}

static uint32_t best_fit(const pool_state *s, uint32_t pool, uint64_t bytes)
{
    uint32_t bin = bin_of(bytes);
    const hole_list *list = &s->holes[pool][bin];
    size_t at = find_hole(list, bytes, 0);
    if (at < list->count)
        return list->items[at].chunk;
    while (++bin < BINS) /* every hole there is larger */
        if (s->holes[pool][bin].count)
            return s->holes[pool][bin].items[0].chunk;
    return MF_NONE;
}

/* ---- segments ---- */

/* Gives back what is wholly unused; true when anything was. */
static bool trim(pool_state *s)
{
    bool some = false;
    for (size_t i = 0; i < s->count; i++) {
        chunk *c = &s->chunks[i];
        if (!c->used || !c->free || c->previous != MF_NONE || c->next != MF_NONE)
            continue;
        if (s->model == MF_POOL_EXPANDABLE)
            s->range_end[c->pool] = MF_NONE;
        s->reserved -= c->bytes;
        remove_hole(s, (uint32_t)i);
        drop_chunk(s, (uint32_t)i);
        some = true;
    }
    for (int p = 0; s->model == MF_POOL_EXPANDABLE && p < 2; p++) { /* whole pages at the end of the range */
        uint64_t page = p ? 20 * MIB : 2 * MIB;
        uint32_t end = s->range_end[p];
        if (end == MF_NONE || !s->chunks[end].free || s->chunks[end].bytes < page)
            continue;
        uint64_t back = s->chunks[end].bytes / page * page;
        s->reserved -= back;
        remove_hole(s, end);
        s->chunks[end].bytes -= back;
        if (s->chunks[end].bytes) {
            add_hole(s, end);
        } else {
            s->range_end[p] = s->chunks[end].previous;
            s->chunks[s->range_end[p]].next = MF_NONE;
            drop_chunk(s, end);
        }
        some = true;
    }
    return some;
}

static bool reserve(pool_state *s, uint64_t bytes)
{
    if (s->limit && s->reserved + bytes > s->limit && !trim(s))
        return false;
    if (s->limit && s->reserved + bytes > s->limit)
        return false;
    s->reserved += bytes;
    if (s->reserved > s->most)
        s->most = s->reserved;
    return true;
}

/* More pages at the end of a pool's range, joined to what is free there. */
static uint32_t extend_range(pool_state *s, uint32_t pool, uint64_t bytes)
{
    uint64_t page = pool ? 20 * MIB : 2 * MIB;
    uint32_t end = s->range_end[pool];
    uint64_t there = end != MF_NONE && s->chunks[end].free ? s->chunks[end].bytes : 0;
    uint64_t more = mf_round_up(bytes - there, page);
    if (!reserve(s, more))
        return MF_NONE;
    end = s->range_end[pool]; /* trimming may have moved it */
    if (end != MF_NONE && s->chunks[end].free) {
        remove_hole(s, end);
        s->chunks[end].bytes += more;
        add_hole(s, end);
        return s->chunks[end].bytes >= bytes ? end : extend_range(s, pool, bytes);
    }
    uint64_t address = end == MF_NONE ? (uint64_t)(pool + 1) << 50 : s->chunks[end].address + s->chunks[end].bytes;
    uint32_t c = new_chunk(
        s, (chunk){.bytes = more, .address = address, .previous = end, .next = MF_NONE, .pool = pool, .free = true});
    if (c == MF_NONE)
        return c;
    if (end != MF_NONE)
        s->chunks[end].next = c;
    s->range_end[pool] = c;
    add_hole(s, c);
    return s->chunks[c].bytes >= bytes ? c : extend_range(s, pool, bytes);
}

static uint64_t segment_bytes(pool_state *s, uint32_t pool, uint64_t bytes)
{
    if (s->model == MF_POOL_CACHING)
        return !pool ? 2 * MIB : bytes < 10 * MIB ? 20 * MIB : mf_round_up(bytes, 2 * MIB);
    bool grown = false;
    while (s->region < bytes) {
        s->region *= 2;
        grown = true;
    }
    uint64_t size = s->region;
    if (!grown)
        s->region *= 2;
    if (s->limit && s->reserved + size > s->limit) /* takes what is left where that is enough */
        size = s->limit > s->reserved + bytes ? s->limit - s->reserved : mf_round_up(bytes, 2 * MIB);
    return size;
}

static uint32_t new_segment(pool_state *s, uint32_t pool, uint64_t bytes)
{
    if (s->model == MF_POOL_EXPANDABLE)
        return extend_range(s, pool, bytes);
    uint64_t size = segment_bytes(s, pool, bytes);
    if (!reserve(s, size))
        return MF_NONE;
    s->next_address += size + MIB;
    uint32_t c = new_chunk(s, (chunk){.bytes = size,
                                      .address = s->next_address - size,
                                      .previous = MF_NONE,
                                      .next = MF_NONE,
                                      .pool = pool,
                                      .free = true});
    if (c != MF_NONE)
        add_hole(s, c);
    return c;
}

/* ---- requests ---- */

static bool is_bfc(const pool_state *s)
{
    return s->model == MF_POOL_BFC || s->model == MF_POOL_ONEDNN;
}

enum { ONEDNN_SMALL = 262144 };

/* A request that does not come from the pool. */
static bool take_small(pool_state *s, uint32_t block)
{
    uint64_t bytes = s->tape->blocks[block].bytes;
    if (s->model != MF_POOL_ONEDNN || bytes >= ONEDNN_SMALL)
        return false;
    s->of_block[block] = MF_NONE;
    s->small += bytes;
    if (s->small > s->small_most)
        s->small_most = s->small;
    return true;
}

static bool splits(const pool_state *s, uint32_t pool, uint64_t have, uint64_t bytes)
{
    if (is_bfc(s))
        return have >= 2 * bytes || have - bytes >= 128 * MIB;
    if (s->model == MF_POOL_EXPANDABLE || !pool)
        return have - bytes >= 512;
    return have - bytes > MIB;
}

static bool take(pool_state *s, uint32_t block)
{
    if (take_small(s, block))
        return true;
    uint64_t bytes = mf_round_up(s->tape->blocks[block].bytes, is_bfc(s) ? 256 : 512);
    uint32_t pool = !is_bfc(s) && bytes > MIB, c = best_fit(s, pool, bytes);
    if (c == MF_NONE)
        c = new_segment(s, pool, bytes);
    if (c == MF_NONE)
        return false;
    remove_hole(s, c);
    uint64_t have = s->chunks[c].bytes;
    if (splits(s, pool, have, bytes)) {
        uint32_t rest = new_chunk(s, (chunk){.bytes = have - bytes,
                                             .address = s->chunks[c].address + bytes,
                                             .previous = c,
                                             .next = s->chunks[c].next,
                                             .pool = pool,
                                             .free = true});
        if (rest == MF_NONE)
            return false;
        if (s->chunks[c].next != MF_NONE)
            s->chunks[s->chunks[c].next].previous = rest;
        else if (s->model == MF_POOL_EXPANDABLE)
            s->range_end[pool] = rest;
        s->chunks[c].next = rest;
        s->chunks[c].bytes = bytes;
        add_hole(s, rest);
    }
    s->chunks[c].free = false;
    s->live += s->chunks[c].bytes;
    if (s->live > s->live_most)
        s->live_most = s->live;
    s->of_block[block] = c;
    return true;
}

/* A chunk that is in no list takes the free one behind it. */
static void absorb(pool_state *s, uint32_t c, uint32_t behind)
{
    s->chunks[c].bytes += s->chunks[behind].bytes;
    s->chunks[c].next = s->chunks[behind].next;
    if (s->chunks[c].next != MF_NONE)
        s->chunks[s->chunks[c].next].previous = c;
    else if (s->model == MF_POOL_EXPANDABLE)
        s->range_end[s->chunks[c].pool] = c;
    drop_chunk(s, behind);
}

static void give_back(pool_state *s, uint32_t block)
{
    uint32_t c = s->of_block[block];
    if (c == MF_NONE) {
        s->small -= s->tape->blocks[block].bytes;
        return;
    }
    uint32_t behind = s->chunks[c].next, before = s->chunks[c].previous;
    s->chunks[c].free = true;
    s->live -= s->chunks[c].bytes;
    if (behind != MF_NONE && s->chunks[behind].free) {
        remove_hole(s, behind);
        absorb(s, c, behind);
    }
    if (before != MF_NONE && s->chunks[before].free) {
        remove_hole(s, before);
        absorb(s, before, c);
        c = before;
    }
    add_hole(s, c);
}

memfit_status mf_pool_run(const mf_tape *tape, mf_pool_model model, uint64_t limit_bytes, mf_pool_result *result,
                          memfit_error *err)
{
    pool_state s = {.tape = tape,
                    .model = model,
                    .limit = limit_bytes,
                    .region = 2 * MIB,
                    .spare = MF_NONE,
                    .range_end = {MF_NONE, MF_NONE}};
    bool failed = false;
    s.of_block = mf_host_alloc(tape->host, (tape->block_count + 1) * sizeof *s.of_block);
    for (size_t i = 0; s.of_block && i < tape->event_count && !failed && !s.no_memory; i++) {
        if (tape->events[i] & 1)
            give_back(&s, tape->events[i] / 2);
        else
            failed = !take(&s, tape->events[i] / 2);
    }
    bool no_memory = !s.of_block || s.no_memory;
    mf_host_free(tape->host, s.chunks, s.capacity * sizeof *s.chunks);
    for (int p = 0; p < 2; p++)
        for (int b = 0; b < BINS; b++)
            mf_host_free(tape->host, s.holes[p][b].items, s.holes[p][b].capacity * sizeof *s.holes[p][b].items);
    mf_host_free(tape->host, s.of_block, (tape->block_count + 1) * sizeof *s.of_block);
    if (no_memory)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to model an allocator");
    *result = (mf_pool_result){
        .reserved_bytes = s.most, .live_bytes = s.live_most, .small_bytes = s.small_most, .failed = failed};
    return MEMFIT_OK;
}

memfit_status mf_pool_least(const mf_tape *tape, mf_pool_model model, uint64_t *bytes, memfit_error *err)
{
    mf_pool_result r;
    memfit_status status = mf_pool_run(tape, model, 0, &r, err);
    uint64_t low = tape->peak_bytes, high = r.reserved_bytes, near = low / 1024 > MIB ? low / 1024 : MIB;
    while (status == MEMFIT_OK && high > low + near) {
        uint64_t middle = low + (high - low) / 2;
        status = mf_pool_run(tape, model, middle, &r, err);
        if (status == MEMFIT_OK && r.failed)
            low = middle;
        else
            high = middle;
    }
    if (status == MEMFIT_OK)
        *bytes = high;
    return status;
}
