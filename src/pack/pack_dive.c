/*
 * pack_dive.c: one path through the exact search's tree, for any number of buffers.
 *
 * The first path that the search of pack_search.c takes is nearly always good on the graphs of real training steps, and
 * mostly optimal. A dive walks such a path without keeping what is needed to come back, and pays only for what changes:
 *
 *   - who lives in a section is a list per section; placed buffers drop out of it when it is next read;
 *   - a section has a witness, a buffer that lies on its floor; only when that one is placed or raised is the floor
 *     computed again;
 *   - the valleys are kept per block of 64 sections, and only blocks that looked at a changed floor look again.
 *
 * One step looks ahead: if the buffer on the floor makes some section pass the target, it is raised instead, as in the
 * search's right branch; if that fails too, the target gives way to the lesser of the two. So a dive always ends in a
 * packing, unless the target has reached what is already known.
 *
 * Invariants between steps: at(j) is at least the floor of every section of j; floor(s) is the least at of the unplaced
 * items of s, or EMPTY; need(s) is the sum of their sizes.
 */
#include "pack/pack_dive.h"

#include "base/error.h"

#include <string.h>

#define EMPTY (INT64_MAX / 4)

enum { BLOCK = 64 };

typedef struct block { /* the best valley that begins in a block of sections */
    int32_t section;   /* -1: none */
    int32_t left, right;
    int32_t reach; /* it looked at floors below this section */
    bool stale;
    int64_t first, second; /* its score: less is better */
} block;

typedef struct change {
    uint32_t item;
    int64_t at;
} change;

typedef struct floor_change {
    uint32_t section, witness;
    int64_t floor;
} floor_change;

struct mf_pack_dive {
    const mf_pack_problem *problem;
    int32_t sections, blocks;
    int64_t *at, *floor, *need;
    int64_t *size;
    uint32_t *rank;
    bool *placed;
    uint32_t *live_begin, *live_count, *live; /* by section: unplaced items, and stale entries of placed ones */
    uint32_t *live_all;                       /* as at the beginning */
    uint32_t *birth_begin;                    /* by section: the first item born there */
    block *block_of;
    uint32_t *dirty; /* sections whose floor is to be computed again */
    uint32_t dirty_count;
    uint32_t *stamp, stamp_now;
    uint32_t *witness; /* by section: an unplaced item whose at is the floor */
    change *log;       /* for taking a step back */
    uint32_t log_count;
    floor_change *floor_log;
    uint32_t floor_log_count;
    bool tightest;
    int64_t target;
    uint64_t work; /* since it was last asked */
};

memfit_status mf_pack_dive_init(mf_pack_dive **result, const mf_pack_problem *p, mf_arena *arena, memfit_error *err)
{
    uint64_t entries = 0;
    *result = NULL;
    for (size_t i = 0; i < p->count; i++)
        entries += p->items[i].s1 - p->items[i].s0;
    if (p->any_fixed || entries > MF_PACK_DIVE_MOST || p->count == 0)
        return MEMFIT_OK;
    size_t n = p->count, m = p->sections;
    mf_pack_dive *d = MF_NEW(arena, mf_pack_dive);
    if (!d)
        goto no_memory;
    d->problem = p;
    d->stamp_now = 1;
    d->sections = (int32_t)m;
    d->blocks = (int32_t)((m + BLOCK - 1) / BLOCK);
    d->at = MF_NEW_ARRAY(arena, int64_t, n);
    d->size = MF_NEW_ARRAY(arena, int64_t, n);
    d->floor = MF_NEW_ARRAY(arena, int64_t, m + 1);
    d->need = MF_NEW_ARRAY(arena, int64_t, m + 1);
    d->rank = MF_NEW_ARRAY(arena, uint32_t, n);
    d->placed = MF_NEW_ARRAY(arena, bool, n);
    d->live_begin = MF_NEW_ARRAY(arena, uint32_t, m + 1);
    d->live_count = MF_NEW_ARRAY(arena, uint32_t, m);
    d->birth_begin = MF_NEW_ARRAY(arena, uint32_t, m + 1);
    d->live = MF_NEW_ARRAY(arena, uint32_t, entries);
    d->live_all = MF_NEW_ARRAY(arena, uint32_t, entries);
    d->block_of = MF_NEW_ARRAY(arena, block, d->blocks);
    d->dirty = MF_NEW_ARRAY(arena, uint32_t, m);
    d->stamp = MF_NEW_ARRAY(arena, uint32_t, m);
    d->log = MF_NEW_ARRAY(arena, change, n);
    d->witness = MF_NEW_ARRAY(arena, uint32_t, m);
    d->floor_log = MF_NEW_ARRAY(arena, floor_change, 2 * m);
    if (!d->at || !d->size || !d->floor || !d->need || !d->rank || !d->placed || !d->live_begin || !d->live_count ||
        !d->birth_begin || !d->live || !d->live_all || !d->block_of || !d->dirty || !d->stamp || !d->log ||
        !d->witness || !d->floor_log)
        goto no_memory;
    for (size_t i = 0; i < n; i++) {
        d->size[i] = (int64_t)p->items[i].size;
        for (uint32_t s = p->items[i].s0; s < p->items[i].s1; s++)
            d->live_begin[s + 1]++;
        d->birth_begin[p->items[i].s0 + 1]++;
    }
    for (size_t s = 0; s < m; s++) {
        d->live_begin[s + 1] += d->live_begin[s];
        d->birth_begin[s + 1] += d->birth_begin[s];
    }
    for (size_t i = 0; i < n; i++)
        for (uint32_t s = p->items[i].s0; s < p->items[i].s1; s++)
            d->live_all[d->live_begin[s] + d->live_count[s]++] = (uint32_t)i;
    *result = d;
    return MEMFIT_OK;
no_memory:
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", p->count);
}

static void start(mf_pack_dive *d, const uint32_t *order, bool tightest, uint64_t target)
{
    const mf_pack_problem *p = d->problem;
    d->work = p->count + p->sections + d->live_begin[p->sections] / 4;
    memset(d->at, 0, p->count * sizeof *d->at);
    memset(d->placed, 0, p->count * sizeof *d->placed);
    memset(d->floor, 0, p->sections * sizeof *d->floor);
    memcpy(d->live, d->live_all, d->live_begin[p->sections] * sizeof *d->live);
    for (size_t s = 0; s < p->sections; s++) {
        d->live_count[s] = d->live_begin[s + 1] - d->live_begin[s];
        d->need[s] = (int64_t)p->load[s];
        d->witness[s] = d->live[d->live_begin[s]];
    }
    for (size_t k = 0; k < p->count; k++)
        d->rank[order[k]] = (uint32_t)k;
    for (int32_t b = 0; b < d->blocks; b++)
        d->block_of[b].stale = true;
    d->tightest = tightest;
    d->target = (int64_t)target;
}

/* ---- valleys ---- */

static void look(mf_pack_dive *d, int32_t number)
{
    block *b = &d->block_of[number];
    *b = (block){.section = -1};
    int32_t from = number * BLOCK, to = from + BLOCK < d->sections ? from + BLOCK : d->sections, end;
    for (int32_t s = from; s < to; s = end) {
        const int64_t low = d->floor[s];
        int32_t tight = s;
        for (end = s + 1; end < d->sections && d->floor[end] == low; end++)
            tight = d->need[end] > d->need[tight] ? end : tight;
        b->reach = end + 1;
        d->work += (uint64_t)(end - s);
        if (low == EMPTY || (s > 0 && d->floor[s - 1] <= low) || (end < d->sections && d->floor[end] < low))
            continue; /* as high a section before it: the run began in an earlier block */
        int64_t slack = -low - d->need[tight];
        int64_t first = d->tightest ? slack : low, second = d->tightest ? low : slack;
        if (b->section < 0 || first < b->first || (first == b->first && second < b->second)) {
            b->section = tight;
            b->left = s;
            b->right = end;
            b->first = first;
            b->second = second;
        }
    }
}

static const block *best_valley(mf_pack_dive *d)
{
    const block *best = NULL;
    d->work += (uint64_t)d->blocks;
    for (int32_t i = 0; i < d->blocks; i++) {
        block *b = &d->block_of[i];
        if (b->stale)
            look(d, i);
        if (b->section >= 0 &&
            (!best || b->first < best->first || (b->first == best->first && b->second < best->second)))
            best = b;
    }
    return best;
}

static void mark_stale(mf_pack_dive *d, int32_t section)
{
    int32_t own = section / BLOCK;
    d->block_of[own].stale = true;
    for (int32_t i = own - 1; i >= 0 && (d->block_of[i].stale || d->block_of[i].reach > section); i--)
        d->block_of[i].stale = true; /* a run that came this far; if this block's did not, no earlier one's did */
    if (section + 1 < d->sections)
        d->block_of[(section + 1) / BLOCK].stale = true;
}

/* ---- floors ---- */

static void dirty_section(mf_pack_dive *d, uint32_t s)
{
    if (d->stamp[s] != d->stamp_now) {
        d->stamp[s] = d->stamp_now;
        d->dirty[d->dirty_count++] = s;
    }
}

/* Computes dirty floors; returns the greatest floor + need among them. No floor falls, and inside `current`, just
 * placed, none is below `top`: an item that lies there ends the reading of a list. What was placed in earlier steps is
 * dropped from a list on the way. */
static int64_t settle(mf_pack_dive *d, uint32_t current, int64_t top)
{
    int64_t most = 0;
    uint32_t s0 = 0, s1 = 0;
    if (current != UINT32_MAX && d->placed[current]) {
        s0 = d->problem->items[current].s0;
        s1 = d->problem->items[current].s1;
    }
    for (uint32_t i = 0; i < d->dirty_count; i++) {
        uint32_t s = d->dirty[i], *live = d->live + d->live_begin[s], witness = UINT32_MAX;
        int64_t low = EMPTY, least = s >= s0 && s < s1 ? top : d->floor[s];
        for (uint32_t k = 0; k < d->live_count[s] && low > least;) {
            uint32_t j = live[k];
            if (d->placed[j] && j != current) {
                live[k] = live[--d->live_count[s]];
                continue;
            }
            k++;
            if (d->placed[j] || d->at[j] >= low)
                continue;
            low = d->at[j];
            witness = j;
        }
        d->work += 8 + d->live_count[s];
        d->floor_log[d->floor_log_count++] = (floor_change){s, d->witness[s], d->floor[s]};
        d->witness[s] = witness;
        d->floor[s] = low;
        mark_stale(d, (int32_t)s);
        if (low != EMPTY && low + d->need[s] > most)
            most = low + d->need[s];
    }
    d->dirty_count = 0;
    d->stamp_now++;
    return most;
}

static int64_t align_up(int64_t x, uint64_t align)
{
    return align <= 1 ? x : (x + (int64_t)align - 1) / (int64_t)align * (int64_t)align;
}

/* Moves an unplaced item up; the floors it bore witness to are dirty. */
static void raise_to(mf_pack_dive *d, uint32_t j, int64_t at)
{
    const mf_pack_item *it = &d->problem->items[j];
    at = align_up(at, it->align);
    d->work += it->s1 - it->s0;
    d->log[d->log_count++] = (change){j, d->at[j]};
    for (uint32_t s = it->s0; s < it->s1; s++)
        if (d->witness[s] == j)
            dirty_section(d, s);
    d->at[j] = at;
}

/* Puts j on its floor; returns the height that is needed now at least. */
static int64_t place(mf_pack_dive *d, uint32_t j)
{
    const mf_pack_item *it = &d->problem->items[j];
    int64_t top = d->at[j] + d->size[j];
    d->placed[j] = true;
    d->work += it->s1 - it->s0 + d->live_count[it->s0];
    for (uint32_t s = it->s0; s < it->s1; s++) {
        d->need[s] -= d->size[j];
        dirty_section(d, s);
    }
    const uint32_t *live = d->live + d->live_begin[it->s0];
    for (uint32_t k = 0; k < d->live_count[it->s0]; k++)
        if (!d->placed[live[k]] && d->at[live[k]] < top)
            raise_to(d, live[k], top);
    for (uint32_t k = d->birth_begin[it->s0 + 1]; k < d->birth_begin[it->s1]; k++)
        if (!d->placed[k] && d->at[k] < top)
            raise_to(d, k, top);
    int64_t most = settle(d, j, top);
    return most > top ? most : top;
}

/* Takes back what was logged, and the placing of j if it is placed. */
static void take_back(mf_pack_dive *d, uint32_t j)
{
    const mf_pack_item *it = &d->problem->items[j];
    while (d->log_count) {
        change c = d->log[--d->log_count];
        d->at[c.item] = c.at;
    }
    while (d->floor_log_count) {
        floor_change c = d->floor_log[--d->floor_log_count];
        d->floor[c.section] = c.floor;
        d->witness[c.section] = c.witness;
        mark_stale(d, (int32_t)c.section);
    }
    if (d->placed[j]) {
        d->placed[j] = false;
        for (uint32_t s = it->s0; s < it->s1; s++)
            d->need[s] += d->size[j];
    }
}

/* The least end of an unplaced item that j could rest on. */
static int64_t least_rest(const mf_pack_dive *d, uint32_t j)
{
    const mf_pack_item *it = &d->problem->items[j];
    int64_t least = EMPTY;
    const uint32_t *live = d->live + d->live_begin[it->s0];
    for (uint32_t k = 0; k < d->live_count[it->s0]; k++)
        if (live[k] != j && !d->placed[live[k]] && d->at[live[k]] + d->size[live[k]] < least)
            least = d->at[live[k]] + d->size[live[k]];
    for (uint32_t k = d->birth_begin[it->s0 + 1]; k < d->birth_begin[it->s1]; k++)
        if (!d->placed[k] && d->at[k] + d->size[k] < least)
            least = d->at[k] + d->size[k];
    return least;
}

static uint32_t choose(const mf_pack_dive *d, const block *v, bool *spans)
{
    uint32_t best = UINT32_MAX;
    const uint32_t *live = d->live + d->live_begin[v->section];
    *spans = false;
    for (uint32_t k = 0; k < d->live_count[v->section]; k++) {
        uint32_t j = live[k];
        if (d->placed[j] || d->at[j] != d->floor[v->section])
            continue;
        const mf_pack_item *it = &d->problem->items[j];
        bool span = (int32_t)it->s0 == v->left && (int32_t)it->s1 == v->right;
        if (best == UINT32_MAX || (span && !*spans) || (span == *spans && d->rank[j] < d->rank[best])) {
            best = j;
            *spans = span;
        }
    }
    return best;
}

/* One step: one item placed or raised. Returns 1 for placed. */
static unsigned step(mf_pack_dive *d, uint64_t *offsets)
{
    block v = *best_valley(d);
    bool spans;
    uint32_t j = choose(d, &v, &spans);
    int64_t was = d->at[j];
    d->log_count = d->floor_log_count = 0;
    int64_t placed_need = place(d, j);
    offsets[j] = (uint64_t)was;
    if (placed_need <= d->target)
        return 1;
    take_back(d, j);
    int64_t up = least_rest(d, j), raised_need = EMPTY;
    if (spans && !d->problem->any_align) {
        int64_t a = v.left > 0 ? d->floor[v.left - 1] : EMPTY;
        int64_t b = v.right < d->sections ? d->floor[v.right] : EMPTY;
        up = up > (a < b ? a : b) ? up : (a < b ? a : b);
    }
    if (up < EMPTY) {
        raise_to(d, j, up);
        raised_need = settle(d, UINT32_MAX, 0);
        raised_need = raised_need > d->at[j] + d->size[j] ? raised_need : d->at[j] + d->size[j];
    }
    if (raised_need < placed_need) {
        d->target = raised_need > d->target ? raised_need : d->target;
        return 0;
    }
    take_back(d, j);
    place(d, j);
    d->target = placed_need;
    return 1;
}

uint64_t mf_pack_dive_run(mf_pack_dive *d, const uint32_t *order, bool tightest, uint64_t target, uint64_t give_up,
                          mf_pack_pace *pace, uint64_t *offsets)
{
    const mf_pack_problem *p = d->problem;
    start(d, order, tightest, target);
    uint64_t steps = 0;
    for (size_t placed = 0; placed < p->count;) {
        placed += step(d, offsets);
        pace->work += d->work;
        d->work = 0;
        if (d->target >= (int64_t)give_up || ((++steps & 63) == 0 && mf_pack_is_late(pace)))
            return UINT64_MAX;
    }
    uint64_t height = 0;
    for (size_t i = 0; i < p->count; i++)
        height = offsets[i] + p->items[i].size > height ? offsets[i] + p->items[i].size : height;
    return height;
}
