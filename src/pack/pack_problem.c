/*
 * pack_problem.c: from buffers to a problem: checks, units, sections, loads, bounds.
 *
 * Bounds. Any packing is at least as high as the load of any section. Where all buffers share one alignment, sizes are
 * rounded up to it (the padding under the next buffer can be used by nobody), and only the topmost buffer of a section
 * may leave its padding out of the height: so a section's rounded load less the largest padding is a bound as well.
 * Fixed buffers bound the height by their ends.
 *
 * Whole-life buffers. In any packing a buffer that lives through its whole component can be cut out, everything above
 * it moved down by its size, and put back at the bottom: nothing is lost by fixing those at the bottom first. With
 * mixed alignments the move could break an alignment, so there it is only a preference of some orders.
 */
#include "pack/pack_internal.h"

#include "base/error.h"

#include <string.h>

void mf_pack_sort(mf_pack_pair *pairs, mf_pack_pair *scratch, size_t count)
{
    if (count < 48) { /* insertion: the planner's small cases */
        for (size_t i = 1; i < count; i++) {
            mf_pack_pair p = pairs[i];
            size_t j = i;
            for (; j > 0 && pairs[j - 1].key > p.key; j--)
                pairs[j] = pairs[j - 1];
            pairs[j] = p;
        }
        return;
    }
    uint64_t all_or = 0, all_and = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        all_or |= pairs[i].key;
        all_and &= pairs[i].key;
    }
    mf_pack_pair *from = pairs, *to = scratch;
    for (unsigned shift = 0; shift < 64; shift += 8) {
        if ((((all_or ^ all_and) >> shift) & 255) == 0)
            continue; /* all alike in this byte */
        size_t start[257] = {0};
        for (size_t i = 0; i < count; i++)
            start[((from[i].key >> shift) & 255) + 1]++;
        for (unsigned i = 0; i < 256; i++)
            start[i + 1] += start[i];
        for (size_t i = 0; i < count; i++)
            to[start[(from[i].key >> shift) & 255]++] = from[i];
        mf_pack_pair *t = from;
        from = to;
        to = t;
    }
    if (from != pairs)
        memcpy(pairs, from, count * sizeof *pairs);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static uint64_t alignment_of(const mf_pack_buffer *b)
{
    return b->alignment ? b->alignment : 1;
}

static bool is_item(const mf_pack_buffer *b)
{
    return b->size > 0 && b->lower < b->upper;
}

/* Nothing below may overflow: ends of all buffers stacked, alignments included, stay under 2^62. */
static memfit_status check_buffers(const mf_pack_buffer *buffers, size_t count, memfit_error *err)
{
    const uint64_t most = UINT64_C(1) << 62;
    uint64_t sum = 0;
    if (count >= UINT32_MAX / 4)
        return mf_fail(err, MEMFIT_INVALID, "%zu buffers: more than the packer can number", count);
    for (size_t i = 0; i < count; i++) {
        const mf_pack_buffer *b = &buffers[i];
        if (b->lower > b->upper)
            return mf_fail(err, MEMFIT_INVALID, "buffer %zu: it ends at %lld, before it begins at %lld", i,
                           (long long)b->upper, (long long)b->lower);
        if (b->lower < -(INT64_MAX / 4) || b->upper > INT64_MAX / 4)
            return mf_fail(err, MEMFIT_INVALID, "buffer %zu: a time is out of range", i);
        if (b->size >= most || alignment_of(b) >= most || (b->fixed && b->offset >= most) ||
            (sum += b->size + alignment_of(b) + (b->fixed ? b->offset : 0)) >= most)
            return mf_fail(err, MEMFIT_INVALID, "buffer %zu: the sizes together pass 2^62 bytes", i);
        if (b->fixed && b->offset % alignment_of(b))
            return mf_fail(err, MEMFIT_INVALID, "buffer %zu: its fixed offset %llu is not a multiple of %llu", i,
                           (unsigned long long)b->offset, (unsigned long long)b->alignment);
    }
    return MEMFIT_OK;
}

/* Sizes in units: rounded to the alignment where all share one. */
static void choose_unit(mf_pack_problem *p)
{
    uint64_t common = 0, unit = 0;
    bool one_alignment = true;
    for (size_t i = 0; i < p->buffer_count; i++) {
        const mf_pack_buffer *b = &p->buffers[i];
        if (!is_item(b))
            continue;
        one_alignment = one_alignment && (common == 0 || common == alignment_of(b)) && !b->fixed;
        common = alignment_of(b);
        p->any_fixed = p->any_fixed || b->fixed;
    }
    for (size_t i = 0; i < p->buffer_count; i++) {
        const mf_pack_buffer *b = &p->buffers[i];
        if (!is_item(b))
            continue;
        uint64_t rounded = one_alignment ? (b->size + common - 1) / common * common : b->size;
        if (rounded - b->size > p->pad_most)
            p->pad_most = rounded - b->size;
        unit = gcd(unit, rounded);
        if (!one_alignment) {
            unit = gcd(unit, alignment_of(b));
            unit = gcd(unit, b->fixed ? b->offset : 0);
        }
    }
    p->unit = unit ? unit : 1;
    for (size_t i = 0; i < p->count; i++) {
        mf_pack_item *it = &p->items[i];
        const mf_pack_buffer *b = &p->buffers[it->source];
        it->size = (one_alignment ? (b->size + common - 1) / common * common : b->size) / p->unit;
        it->align = one_alignment ? 1 : alignment_of(b) / p->unit;
        p->any_align = p->any_align || it->align > 1;
        it->fixed = b->fixed;
        it->offset = b->fixed ? b->offset / p->unit : 0;
    }
}

static uint64_t time_key(int64_t t)
{
    return (uint64_t)t + (UINT64_C(1) << 63);
}

/* Items by birth, and their sections: a section opens at the first birth after a death. */
static void make_sections(mf_pack_problem *p, mf_pack_pair *births, mf_pack_pair *deaths, mf_pack_pair *scratch)
{
    size_t n = 0;
    for (size_t i = 0; i < p->buffer_count; i++)
        if (is_item(&p->buffers[i]))
            births[n++] = (mf_pack_pair){time_key(p->buffers[i].lower), (uint32_t)i};
    mf_pack_sort(births, scratch, n);
    for (size_t i = 0; i < n; i++) {
        const mf_pack_buffer *b = &p->buffers[births[i].value];
        p->items[i].source = births[i].value;
        p->items[i].life = (uint64_t)(b->upper - b->lower);
        deaths[i] = (mf_pack_pair){time_key(b->upper), (uint32_t)i};
    }
    p->count = n;
    mf_pack_sort(deaths, scratch, n);
    size_t d = 0, sections = 0;
    bool after_death = true;
    for (size_t i = 0; i < n; i++) {
        for (; d < n && deaths[d].key <= births[i].key; d++) {
            p->items[deaths[d].value].s1 = (uint32_t)sections;
            after_death = true;
        }
        sections += after_death;
        after_death = false;
        p->items[i].s0 = (uint32_t)(sections - 1);
    }
    for (; d < n; d++)
        p->items[deaths[d].value].s1 = (uint32_t)sections;
    p->sections = sections;
}

/* Marks whole-life items: component borders are where no item crosses from one section to the next. */
static void mark_whole(mf_pack_problem *p, uint64_t *crossing, uint32_t *component)
{
    memset(crossing, 0, (p->sections + 1) * sizeof *crossing);
    for (size_t i = 0; i < p->count; i++) { /* crosses borders s0+1 .. s1-1 */
        crossing[p->items[i].s0 + 1]++;
        crossing[p->items[i].s1]--;
    }
    for (size_t s = 1; s <= p->sections; s++)
        crossing[s] += crossing[s - 1];
    for (size_t s = 0, first = 0; s < p->sections; s++) {
        if (s && !crossing[s])
            first = s;
        component[s] = (uint32_t)first;
    }
    for (size_t i = 0; i < p->count; i++) {
        mf_pack_item *it = &p->items[i];
        it->whole = component[it->s0] == it->s0 && (it->s1 == p->sections || component[it->s1] == it->s1);
    }
}

/* Loads by section and the bounds. */
static memfit_status make_bounds(mf_pack_problem *p, memfit_error *err)
{
    uint64_t *raw = MF_NEW_ARRAY(&p->arena, uint64_t, p->sections + 1);
    if (!raw)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", p->count);
    for (size_t i = 0; i < p->count; i++) {
        const mf_pack_item *it = &p->items[i];
        uint64_t size = p->buffers[it->source].size;
        raw[it->s0] += size;
        raw[it->s1] -= size;
        p->load[it->s0] += it->size;
        p->load[it->s1] -= it->size;
        if (it->fixed && it->offset + it->size > p->bound)
            p->bound = it->offset + it->size;
    }
    p->bound_bytes = p->bound * p->unit;
    for (size_t s = 0; s < p->sections; s++) {
        if (s) {
            raw[s] += raw[s - 1];
            p->load[s] += p->load[s - 1];
        }
        if (p->load[s] > p->bound)
            p->bound = p->load[s];
        if (raw[s] > p->max_load)
            p->max_load = raw[s];
    }
    if (p->max_load > p->bound_bytes)
        p->bound_bytes = p->max_load;
    if (p->bound * p->unit - p->pad_most > p->bound_bytes)
        p->bound_bytes = p->bound * p->unit - p->pad_most;
    return MEMFIT_OK;
}

/* The largest load each item crosses, by a tree of maxima: leaf s is tree[sections + s]. */
static void fill_crossed(mf_pack_problem *p, uint64_t *tree)
{
    size_t m = p->sections;
    memcpy(tree + m, p->load, m * sizeof *tree);
    for (size_t i = m; i-- > 1;)
        tree[i] = tree[2 * i] > tree[2 * i + 1] ? tree[2 * i] : tree[2 * i + 1];
    for (size_t i = 0; i < p->count; i++) {
        uint64_t most = 0;
        for (size_t low = p->items[i].s0 + m, high = p->items[i].s1 + m; low < high; low /= 2, high /= 2) {
            if (low & 1) {
                most = tree[low] > most ? tree[low] : most;
                low++;
            }
            if (high & 1) {
                high--;
                most = tree[high] > most ? tree[high] : most;
            }
        }
        p->items[i].crossed = most;
    }
}

memfit_status mf_pack_problem_init(mf_pack_problem *p, const memfit_host *host, const mf_pack_buffer *buffers,
                                   size_t count, memfit_error *err)
{
    *p = (mf_pack_problem){.host = host, .buffers = buffers, .buffer_count = count};
    memfit_status status = check_buffers(buffers, count, err);
    if (status)
        return status;
    mf_arena_init(&p->arena, host);
    mf_arena temporary;
    mf_arena_init(&temporary, host);
    mf_pack_pair *births = MF_NEW_ARRAY(&temporary, mf_pack_pair, count);
    mf_pack_pair *deaths = MF_NEW_ARRAY(&temporary, mf_pack_pair, count);
    mf_pack_pair *scratch = MF_NEW_ARRAY(&temporary, mf_pack_pair, count);
    uint32_t *component = MF_NEW_ARRAY(&temporary, uint32_t, count + 1);
    uint64_t *tree = MF_NEW_ARRAY(&temporary, uint64_t, 2 * count + 2);
    p->items = MF_NEW_ARRAY(&p->arena, mf_pack_item, count);
    p->load = MF_NEW_ARRAY(&p->arena, uint64_t, count + 1);
    if (!births || !deaths || !scratch || !component || !tree || !p->items || !p->load) {
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", count);
        goto done;
    }
    make_sections(p, births, deaths, scratch);
    mark_whole(p, p->load, component);
    memset(p->load, 0, (count + 1) * sizeof *p->load);
    choose_unit(p);
    status = make_bounds(p, err);
    if (!status)
        fill_crossed(p, tree);
done:
    mf_arena_destroy(&temporary);
    if (status)
        mf_arena_destroy(&p->arena);
    return status;
}

void mf_pack_problem_destroy(mf_pack_problem *p)
{
    mf_arena_destroy(&p->arena);
}

uint64_t mf_pack_problem_height(const mf_pack_problem *p, const uint64_t *offsets)
{
    uint64_t height = 0;
    for (size_t i = 0; i < p->count; i++) {
        uint64_t end = offsets[i] * p->unit + p->buffers[p->items[i].source].size;
        height = end > height ? end : height;
    }
    return height;
}

memfit_status mf_pack_max_load(const memfit_host *host, const mf_pack_buffer *buffers, size_t count, uint64_t *load,
                               memfit_error *err)
{
    mf_pack_problem p;
    memfit_status status = mf_pack_problem_init(&p, host, buffers, count, err);
    if (status)
        return status;
    *load = p.max_load;
    mf_pack_problem_destroy(&p);
    return MEMFIT_OK;
}
