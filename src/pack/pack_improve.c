/*
 * pack_improve.c: better than greedy in milliseconds: the peak first, the rest into what it leaves.
 *
 *     load                     Most sections are far below the peak, and what lives only there fits in many ways. So
 *       |        /\   peak     the buffers that cross a section of at least 9/10 of the bound are packed by dives
 *       |  90% -/--\---/\--    (pack_dive.c), as if they were alone; they stay, and the others are put around them by
 *       |  ____/    \_/  \__   the greedy orders. If that does not reach the bound, the same with 7/10, then all.
 *       +------------------
 *
 * On a step of 18,692 buffers the first level holds 1,139 of them.
 *
 * A dive costs by who lives beside whom, and small gradients that wait for their update live beside everything. Where
 * they are most of that, all three levels are tried without the buffers below 1/8192 of the bound first, with as much
 * room left above as those need: on NASNetMobile's step (3,691 buffers) a dive then looks at 444 buffers, not 1,597,
 * and takes a seventieth of the work.
 */
#include "pack/pack_improve.h"

#include "pack/pack_dive.h"

#include "base/error.h"

#include <string.h>

typedef struct improver {
    mf_pack_greedy *all; /* of the whole problem: holds the best packing */
    uint64_t goal_bytes;
    mf_pack_pace *pace;
    bool improved;
} improver;

typedef struct level { /* the buffers that cross a high section, as a problem of their own */
    mf_arena arena;
    mf_pack_buffer *buffers;
    uint32_t *item; /* by buffer: its number in the whole problem */
    size_t count;
    mf_pack_problem problem;
    bool has_problem;
    mf_pack_greedy greedy;
    mf_pack_dive *dive;
    uint64_t *pinned; /* by item of the whole problem */
} level;

static void end_level(level *l)
{
    if (l->has_problem)
        mf_pack_problem_destroy(&l->problem);
    mf_arena_destroy(&l->arena);
}

/* Is this item of the level that begins at this part of the bound and leaves out what is below `least` units? */
static bool belongs(const mf_pack_problem *p, size_t item, double part, uint64_t least)
{
    return (double)p->items[item].crossed >= part * (double)p->bound && p->items[item].size >= least;
}

static memfit_status begin_level(level *l, const mf_pack_problem *p, double part, uint64_t least, memfit_error *err)
{
    *l = (level){0};
    mf_arena_init(&l->arena, p->host);
    l->buffers = MF_NEW_ARRAY(&l->arena, mf_pack_buffer, p->count);
    l->item = MF_NEW_ARRAY(&l->arena, uint32_t, p->count);
    l->pinned = MF_NEW_ARRAY(&l->arena, uint64_t, p->count);
    if (!l->buffers || !l->item || !l->pinned)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", p->count);
    for (size_t i = 0; i < p->count; i++)
        if (belongs(p, i, part, least)) {
            l->item[l->count] = (uint32_t)i;
            l->buffers[l->count++] = p->buffers[p->items[i].source];
        }
    memfit_status status = mf_pack_problem_init(&l->problem, p->host, l->buffers, l->count, err);
    if (status)
        return status;
    l->has_problem = true;
    if ((status = mf_pack_greedy_init(&l->greedy, &l->problem, &l->arena, err)))
        return status;
    return mf_pack_dive_init(&l->dive, &l->problem, &l->arena, err);
}

static bool is_done(const improver *v)
{
    return v->all->best_bytes <= v->goal_bytes || mf_pack_is_late(v->pace);
}

/* Puts the other buffers around a packing of the level's, in several orders until one reaches `enough`. */
static void fill(improver *v, level *l, uint64_t enough)
{
    static const struct {
        mf_pack_order order;
        bool best_fit;
    } passes[] = {
        {MF_PACK_BY_SIZE, true}, {MF_PACK_BY_LOAD_SIZE, true}, {MF_PACK_BY_AREA, false},
        {MF_PACK_BY_LIFE, true}, {MF_PACK_BY_BIRTH, true},     {MF_PACK_BY_LOAD_AREA, true},
    };
    mf_pack_greedy *g = v->all;
    const mf_pack_problem *p = g->problem;
    for (size_t i = 0; i < p->count; i++)
        l->pinned[i] = MF_PACK_NOWHERE;
    for (size_t i = 0; i < l->problem.count; i++)
        l->pinned[l->item[l->problem.items[i].source]] = l->greedy.offsets[i] * l->problem.unit / p->unit;
    g->pinned = l->pinned;
    for (size_t i = 0; i < sizeof passes / sizeof *passes && g->best_bytes > enough; i++) {
        if (mf_pack_is_late(v->pace))
            break;
        uint64_t before = g->best_bytes, worked = g->work;
        mf_pack_greedy_sort(g, passes[i].order, true);
        mf_pack_greedy_pass(g, passes[i].best_fit, g->best_height - !p->pad_most);
        v->pace->work += g->work - worked;
        v->improved = v->improved || g->best_bytes < before;
        if (l->count == p->count)
            break; /* nothing to put around */
    }
    g->pinned = NULL;
}

/* `small_bytes`: what those below `least` need at most at one time, on top of the others. Without them a dive is cheap,
 * so it aims at the bound and not only at the goal, and so do the orders that put the rest around it. */
static memfit_status run_level(improver *v, double part, uint64_t least, uint64_t small_bytes, memfit_error *err)
{
    static const struct {
        mf_pack_order order;
        bool tightest;
    } dives[] = {
        {MF_PACK_BY_LOAD, true},      {MF_PACK_BY_SIZE, true},  {MF_PACK_BY_LOAD, false}, {MF_PACK_BY_SIZE, false},
        {MF_PACK_BY_LOAD_AREA, true}, {MF_PACK_BY_AREA, false}, {MF_PACK_BY_DEATH, true}, {MF_PACK_BY_BIRTH, true},
    };
    const mf_pack_problem *p = v->all->problem;
    level l;
    memfit_status status = begin_level(&l, p, part, least, err);
    const uint64_t enough = least ? p->bound_bytes : v->goal_bytes;
    uint64_t target = status || enough < small_bytes ? 0 : (enough - small_bytes) / l.problem.unit;
    if (!status && target < l.problem.bound)
        target = l.problem.bound;
    for (size_t i = 0; !status && l.dive && i < sizeof dives / sizeof *dives && !is_done(v); i++) {
        uint64_t give_up =
            v->all->best_bytes == UINT64_MAX ? INT64_MAX : v->all->best_height * p->unit / l.problem.unit;
        mf_pack_greedy_sort(&l.greedy, dives[i].order, false);
        uint64_t height =
            mf_pack_dive_run(l.dive, l.greedy.order, dives[i].tightest, target, give_up, v->pace, l.greedy.offsets);
        if (height < UINT64_MAX)
            fill(v, &l, enough);
        if (height <= target && i > 0)
            break; /* the peak is solved and the rest does not go around it: a larger level */
    }
    end_level(&l);
    return status;
}

/* The largest sum of live buffers below `least`, in bytes; and do they make up most of what a dive looks at? */
static memfit_status measure_small(const mf_pack_problem *p, uint64_t least, uint64_t *bytes, bool *many,
                                   memfit_error *err)
{
    uint64_t all = 0, small = 0, most = 0, sum = 0;
    size_t size = (p->sections + 1) * sizeof(uint64_t);
    uint64_t *change = mf_host_zalloc(p->host, size);
    if (!change)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing %zu buffers: the host is out of memory", p->count);
    for (size_t i = 0; i < p->count; i++) {
        const mf_pack_item *it = &p->items[i];
        all += it->s1 - it->s0;
        if (it->size >= least)
            continue;
        small += it->s1 - it->s0;
        change[it->s0] += it->size;
        change[it->s1] -= it->size; /* modulo 2^64: the sums are right */
    }
    for (size_t s = 0; s < p->sections; s++) {
        sum += change[s];
        most = sum > most ? sum : most;
    }
    mf_host_free(p->host, change, size);
    *bytes = most * p->unit;
    *many = small > all / 2;
    return MEMFIT_OK;
}

static memfit_status run_levels(improver *v, uint64_t least, uint64_t small_bytes, memfit_error *err)
{
    static const double parts[] = {0.9, 0.7, 0};
    const mf_pack_problem *p = v->all->problem;
    size_t before = 0;
    memfit_status status = MEMFIT_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !status && !is_done(v); i++) {
        size_t count = 0;
        for (size_t k = 0; k < p->count; k++)
            count += belongs(p, k, parts[i], least);
        if (count > before)
            status = run_level(v, parts[i], least, small_bytes, err);
        before = count;
    }
    return status;
}

memfit_status mf_pack_improve(mf_pack_greedy *greedy, uint64_t goal_bytes, mf_pack_pace *pace, bool *improved,
                              memfit_error *err)
{
    enum { SMALL = 8192 }; /* parts of the bound */
    const mf_pack_problem *p = greedy->problem;
    improver v = {greedy, goal_bytes, pace, false};
    *improved = false;
    if (p->any_fixed)
        return MEMFIT_OK;
    uint64_t least = p->bound / SMALL, small_bytes = 0;
    bool many = false;
    memfit_status status = measure_small(p, least, &small_bytes, &many, err);
    if (!status && many)
        status = run_levels(&v, least, small_bytes, err);
    if (!status)
        status = run_levels(&v, 0, 0, err);
    *improved = v.improved;
    return status;
}
