/*
 * pack_check.c: is this a packing? The validator shares no code and no idea with the solvers.
 *
 * It plays the lifetimes as events in time, deaths before births at the same moment, over a tree of addresses: the
 * leaves are the stretches between consecutive offsets and ends of buffers. A birth asks whether any part of its range
 * is held, then holds it; a death lets it go. Since live ranges must not overlap, a range is held at the same nodes
 * until it is let go, and nothing needs to be pushed down the tree. O(n log n).
 *
 *             [ held below: 1 ]
 *         [ held by b: whole ]   [ free ]
 *       [ . ]   [ . ]          [ . ]  [ . ]
 */
#include "pack/pack.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

typedef struct checker {
    const mf_pack_buffer *buffers;
    uint64_t *address; /* sorted, distinct */
    size_t leaves;     /* address count - 1, rounded up to a power of two */
    uint32_t *holder;  /* by node: 1 + the buffer that holds all of it, or 0 */
    uint32_t *below;   /* by node: how many nodes under it are held */
} checker;

static bool is_live(const mf_pack_buffer *b)
{
    return b->size > 0 && b->lower < b->upper;
}

/* 1 + a buffer that holds a part of [low, high), or 0. `node` covers [from, to). */
static uint32_t find_holder(const checker *c, size_t node, size_t from, size_t to, size_t low, size_t high)
{
    if (high <= from || to <= low || (!c->holder[node] && !c->below[node]))
        return 0;
    if (c->holder[node])
        return c->holder[node];
    size_t middle = (from + to) / 2;
    uint32_t left = find_holder(c, 2 * node, from, middle, low, high);
    return left ? left : find_holder(c, 2 * node + 1, middle, to, low, high);
}

static uint32_t hold(checker *c, size_t node, size_t from, size_t to, size_t low, size_t high, uint32_t who)
{
    if (high <= from || to <= low)
        return 0;
    if (low <= from && to <= high) {
        c->holder[node] = who;
        return 1;
    }
    size_t middle = (from + to) / 2;
    uint32_t nodes =
        hold(c, 2 * node, from, middle, low, high, who) + hold(c, 2 * node + 1, middle, to, low, high, who);
    c->below[node] += who ? nodes : (uint32_t)0 - nodes;
    return nodes;
}

static size_t leaf_of(const checker *c, size_t count, uint64_t address)
{
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (c->address[middle] <= address)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A plain heap sort by keys, then values: no memory, and not the sort the solvers use. */
static void sift(uint64_t *keys, uint64_t *values, size_t root, size_t count)
{
    for (size_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count &&
            (keys[child + 1] > keys[child] || (keys[child + 1] == keys[child] && values[child + 1] > values[child])))
            child++;
        if (keys[root] > keys[child] || (keys[root] == keys[child] && values[root] >= values[child]))
            return;
        uint64_t k = keys[root], v = values[root];
        keys[root] = keys[child];
        values[root] = values[child];
        keys[child] = k;
        values[child] = v;
    }
}

static void heap_sort(uint64_t *keys, uint64_t *values, size_t count)
{
    for (size_t i = count / 2; i-- > 0;)
        sift(keys, values, i, count);
    for (size_t end = count; end-- > 1;) {
        uint64_t k = keys[0], v = values[0];
        keys[0] = keys[end];
        values[0] = values[end];
        keys[end] = k;
        values[end] = v;
        sift(keys, values, 0, end);
    }
}

static memfit_status check_each(const mf_pack_buffer *buffers, size_t count, uint64_t capacity, uint64_t *height,
                                memfit_error *err)
{
    *height = 0;
    for (size_t i = 0; i < count; i++) {
        const mf_pack_buffer *b = &buffers[i];
        if (!is_live(b))
            continue;
        if (b->alignment > 1 && b->offset % b->alignment)
            return mf_fail(err, MEMFIT_INVALID, "buffer %zu: offset %llu is not a multiple of its alignment %llu", i,
                           (unsigned long long)b->offset, (unsigned long long)b->alignment);
        uint64_t end;
        if (__builtin_add_overflow(b->offset, b->size, &end) || (capacity && end > capacity))
            return mf_fail(err, MEMFIT_INVALID, "buffer %zu: offset %llu and size %llu pass the capacity %llu", i,
                           (unsigned long long)b->offset, (unsigned long long)b->size, (unsigned long long)capacity);
        *height = end > *height ? end : *height;
    }
    return MEMFIT_OK;
}

/* Events sorted by time; at one time deaths (even) come before births (odd). */
static memfit_status play(checker *c, size_t addresses, const uint64_t *events, size_t event_count, memfit_error *err)
{
    for (size_t e = 0; e < event_count; e++) {
        bool birth = events[e] >> 63;
        uint32_t i = (uint32_t)events[e];
        const mf_pack_buffer *b = &c->buffers[i];
        size_t low = leaf_of(c, addresses, b->offset), high = leaf_of(c, addresses, b->offset + b->size);
        uint32_t other = birth ? find_holder(c, 1, 0, c->leaves, low, high) : 0;
        if (other) {
            const mf_pack_buffer *o = &c->buffers[other - 1];
            return mf_fail(
                err, MEMFIT_INVALID, "buffers %u and %u overlap: [%llu, %llu) and [%llu, %llu), both live at time %lld",
                other - 1, i, (unsigned long long)o->offset, (unsigned long long)(o->offset + o->size),
                (unsigned long long)b->offset, (unsigned long long)(b->offset + b->size), (long long)b->lower);
        }
        hold(c, 1, 0, c->leaves, low, high, birth ? i + 1 : 0);
    }
    return MEMFIT_OK;
}

memfit_status mf_pack_check(const memfit_host *host, const mf_pack_buffer *buffers, size_t count, uint64_t capacity,
                            uint64_t *height, memfit_error *err)
{
    uint64_t highest;
    memfit_status status = check_each(buffers, count, capacity, &highest, err);
    if (status)
        return status;
    mf_arena arena;
    mf_arena_init(&arena, host);
    checker c = {.buffers = buffers};
    uint64_t *times = MF_NEW_ARRAY(&arena, uint64_t, 2 * count), *events = MF_NEW_ARRAY(&arena, uint64_t, 2 * count);
    c.address = MF_NEW_ARRAY(&arena, uint64_t, 2 * count + 1);
    if (!times || !events || !c.address)
        goto no_memory;
    size_t event_count = 0;
    for (size_t i = 0; i < count; i++)
        if (is_live(&buffers[i])) {
            c.address[event_count] = buffers[i].offset;
            events[event_count++] = buffers[i].offset; /* values are not needed here */
            c.address[event_count] = buffers[i].offset + buffers[i].size;
            events[event_count++] = 0;
        }
    heap_sort(c.address, events, event_count);
    size_t addresses = 0;
    for (size_t i = 0; i < event_count; i++)
        if (!addresses || c.address[addresses - 1] != c.address[i])
            c.address[addresses++] = c.address[i];
    for (c.leaves = 1; c.leaves + 1 < addresses;)
        c.leaves *= 2;
    c.holder = MF_NEW_ARRAY(&arena, uint32_t, 2 * c.leaves);
    c.below = MF_NEW_ARRAY(&arena, uint32_t, 2 * c.leaves);
    if (!c.holder || !c.below)
        goto no_memory;
    event_count = 0;
    for (size_t i = 0; i < count; i++)
        if (is_live(&buffers[i])) {
            times[event_count] = (uint64_t)buffers[i].lower ^ (UINT64_C(1) << 63);
            events[event_count++] = i | UINT64_C(1) << 63;
            times[event_count] = (uint64_t)buffers[i].upper ^ (UINT64_C(1) << 63);
            events[event_count++] = i;
        }
    heap_sort(times, events, event_count);
    status = play(&c, addresses, events, event_count, err);
    mf_arena_destroy(&arena);
    if (!status && height)
        *height = highest;
    return status;
no_memory:
    mf_arena_destroy(&arena);
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "checking %zu buffers: the host is out of memory", count);
}

memfit_status memfit_pack_validate(const memfit_pack_buffer *buffers, size_t count, uint64_t capacity, uint64_t *height,
                                   memfit_error *err)
{
    return mf_pack_check(NULL, buffers, count, capacity, height, err);
}
