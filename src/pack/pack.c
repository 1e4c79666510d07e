/*
 * pack.c: who calls whom: bound, greedy portfolio, improvement, exact search; the best of them written back.
 */
#include "pack/pack_improve.h"
#include "pack/pack_solve.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/os.h"

#include <string.h>

static memfit_status check_options(const mf_pack_options *o, memfit_error *err)
{
    if ((unsigned)o->effort > MEMFIT_PACK_EXACT)
        return mf_fail(err, MEMFIT_INVALID, "packing effort %d is not known", (int)o->effort);
    return MEMFIT_OK;
}

/* Fixed buffers must not collide among themselves: the validator knows how to say which do. */
static memfit_status check_fixed(const mf_pack_problem *p, memfit_error *err)
{
    if (!p->any_fixed)
        return MEMFIT_OK;
    mf_arena arena;
    mf_arena_init(&arena, p->host);
    mf_pack_buffer *copy = MF_NEW_ARRAY(&arena, mf_pack_buffer, p->buffer_count);
    memfit_status status = copy ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "packing: the host is out of memory");
    if (!status) {
        memcpy(copy, p->buffers, p->buffer_count * sizeof *copy);
        for (size_t i = 0; i < p->buffer_count; i++)
            if (!copy[i].fixed)
                copy[i].size = 0;
        status = mf_pack_check(p->host, copy, p->buffer_count, 0, NULL, err);
        if (status == MEMFIT_INVALID)
            mf_error_prefix(err, status, "fixed buffers");
    }
    mf_arena_destroy(&arena);
    return status;
}

/* The orders. The first two are the yardstick of others (inference runtimes; caching allocators), unchanged, so that
 * the result is never worse than theirs. */
static const struct {
    mf_pack_order order;
    bool best_fit, whole_first;
} passes[] = {
    {MF_PACK_BY_SIZE, true, false},     {MF_PACK_BY_BIRTH, true, false},     {MF_PACK_BY_LOAD_AREA, false, true},
    {MF_PACK_BY_LOAD, true, true},                                      /* so far: before the dives */
    {MF_PACK_BY_LOAD_SIZE, true, true}, {MF_PACK_BY_AREA, false, true}, /* so far: quick */
    {MF_PACK_BY_LIFE, true, true},      {MF_PACK_BY_DEATH, true, true},      {MF_PACK_BY_SIZE, true, true},
    {MF_PACK_BY_LOAD_AREA, true, true}, {MF_PACK_BY_AREA, true, true},       {MF_PACK_BY_LIFE, false, true},
    {MF_PACK_BY_SIZE, false, true},     {MF_PACK_BY_BIRTH, false, true},     {MF_PACK_BY_DEATH, false, true},
    {MF_PACK_BY_LOAD, false, true},     {MF_PACK_BY_LOAD_SIZE, false, true}, {MF_PACK_BY_BIRTH, true, true},
};
enum { YARDSTICKS = 2, CHEAPEST = 2, FIRST = 4, QUICK = 6, ALL = sizeof passes / sizeof *passes };

/* Late or not, the yardsticks are run; without a clock the quick ones too, so that more effort never packs higher than
 * less (dives may have taken all the work there was). */
static void run_passes(mf_pack_greedy *g, size_t from, size_t to, uint64_t goal_bytes, mf_pack_pace *pace)
{
    const size_t always = pace && pace->deadline_us ? YARDSTICKS : QUICK;
    for (size_t i = from; i < to && g->best_bytes > goal_bytes; i++) {
        if (i >= always && pace && mf_pack_is_late(pace))
            return;
        uint64_t worked = g->work;
        mf_pack_greedy_sort(g, passes[i].order, passes[i].whole_first);
        mf_pack_greedy_pass(g, passes[i].best_fit, g->best_height - !g->problem->pad_most);
        if (pace)
            pace->work += g->work - worked;
    }
}

static void write_offsets(const mf_pack_problem *p, mf_pack_buffer *buffers, const uint64_t *offsets)
{
    for (size_t i = 0; i < p->buffer_count; i++)
        if (!buffers[i].fixed)
            buffers[i].offset = 0;
    for (size_t i = 0; i < p->count; i++)
        buffers[p->items[i].source].offset = offsets[i] * p->unit;
}

typedef struct teller { /* progress in units, told in bytes */
    const mf_pack_options *options;
    uint64_t unit, start;
} teller;

static bool tell(void *ctx, uint64_t height, uint64_t bound, uint64_t nodes)
{
    const teller *t = ctx;
    memfit_pack_progress progress = {.height = height * t->unit, .bound = bound * t->unit, .nodes = nodes};
    progress.seconds = (double)(mf_os_now_us() - t->start) * 1e-6;
    return t->options->progress(t->options->progress_ctx, &progress);
}

/* With more buffers than this the dives come before all greedy orders but the cheapest: those then are the slower
 * part. */
enum { LARGE = 2000 };

static memfit_status dive(mf_pack_greedy *g, uint64_t goal, mf_pack_pace *pace, mf_pack_result *result,
                          memfit_error *err)
{
    bool improved = false;
    memfit_status status = mf_pack_improve(g, goal, pace, &improved, err);
    if (improved)
        result->method = "improved";
    return status;
}

static void run_orders(mf_pack_greedy *g, size_t from, size_t to, uint64_t goal, mf_pack_pace *pace,
                       mf_pack_result *result)
{
    uint64_t before = g->best_bytes;
    run_passes(g, from, to, goal, pace);
    if (g->best_bytes < before)
        result->method = "greedy";
}

static memfit_status search(const mf_pack_problem *p, const mf_pack_options *o, uint64_t start, mf_pack_pace *pace,
                            mf_pack_greedy *g, mf_pack_result *result, memfit_error *err)
{
    teller t = {o, p->unit, start};
    bool exact = o->effort == MEMFIT_PACK_EXACT;
    unsigned threads = exact ? (o->threads ? o->threads : mf_os_cpu_count()) : 1;
    mf_pack_solve_options so = {
        .capacity = o->capacity / p->unit,
        .pace = pace,
        .threads = threads < 1   ? 1
                   : threads > 8 ? 8
                                 : threads,
        .seed = o->seed,
        .items_most = exact ? MF_PACK_SEARCH_MOST : MF_PACK_SEARCH_MOST_QUICK,
        .known_bits = exact ? 19 : 14,
        .progress = exact && o->progress ? tell : NULL,
        .progress_ctx = &t,
    };
    mf_pack_solution solution;
    memfit_status status = mf_pack_solve(p, &so, g->best, &solution, err);
    if (status)
        return status;
    result->nodes = solution.nodes;
    if (solution.improved) {
        g->best_bytes = mf_pack_problem_height(p, g->best);
        result->method = "search";
    }
    if (solution.bound > p->bound && solution.bound * p->unit - p->pad_most > result->bound)
        result->bound = solution.bound * p->unit - p->pad_most;
    return MEMFIT_OK;
}

/* All stages, each only while the goal is not reached. */
static memfit_status run_stages(const mf_pack_problem *p, const mf_pack_options *o, uint64_t start, mf_pack_greedy *g,
                                mf_pack_result *result, memfit_error *err)
{
    const bool large = p->count > LARGE;
    uint64_t goal = o->capacity > p->bound_bytes ? o->capacity : p->bound_bytes;
    mf_pack_pace pace = {.most = UINT64_MAX};
    if (o->time_limit_us || o->effort == MEMFIT_PACK_EXACT)
        pace.deadline_us = start + (o->time_limit_us ? o->time_limit_us : 60000000);
    else
        pace.most = 20000000 + 30000 * (uint64_t)p->count;
    memfit_status status = MEMFIT_OK;
    run_orders(g, CHEAPEST, CHEAPEST + 1, goal, NULL, result);
    if (o->effort == MEMFIT_PACK_QUICK) {
        run_orders(g, 0, QUICK, goal, NULL, result);
        return MEMFIT_OK;
    }
    if (large && g->best_bytes > goal && (status = dive(g, goal, &pace, result, err)))
        return status;
    run_orders(g, 0, FIRST, goal, &pace, result);
    if (g->best_bytes > goal && !large && (status = dive(g, goal, &pace, result, err)))
        return status;
    run_orders(g, FIRST, ALL, goal, &pace, result);
    return g->best_bytes > goal ? search(p, o, start, &pace, g, result, err) : MEMFIT_OK;
}

memfit_status mf_pack(const memfit_host *host, mf_pack_buffer *buffers, size_t count, const mf_pack_options *options,
                      mf_pack_result *result, memfit_error *err)
{
    uint64_t start = mf_os_now_us();
    const mf_pack_options defaults = MEMFIT_PACK_OPTIONS;
    const mf_pack_options *o = options ? options : &defaults;
    memfit_status status = check_options(o, err);
    if (status)
        return status;
    mf_pack_problem p;
    if ((status = mf_pack_problem_init(&p, host, buffers, count, err)))
        return status;
    mf_pack_greedy g;
    if ((status = check_fixed(&p, err)) || (status = mf_pack_greedy_init(&g, &p, &p.arena, err)))
        goto done;
    mf_pack_result r = {.max_load = p.max_load, .bound = p.bound_bytes, .method = "greedy"};
    if (p.count && (status = run_stages(&p, o, start, &g, &r, err)))
        goto done;
    write_offsets(&p, buffers, g.best);
    r.height = p.count ? g.best_bytes : 0;
    r.solved = !o->capacity || r.height <= o->capacity;
    r.optimal = r.height <= r.bound;
    r.impossible = o->capacity && o->capacity < r.bound;
    r.seconds = (double)(mf_os_now_us() - start) * 1e-6;
    *result = r;
done:
    mf_pack_problem_destroy(&p);
    return status;
}

memfit_status memfit_pack(memfit_pack_buffer *buffers, size_t count, const memfit_pack_options *options,
                          memfit_pack_result *result, memfit_error *err)
{
    memfit_pack_options o = MEMFIT_PACK_OPTIONS;
    memfit_pack_result r = MEMFIT_PACK_RESULT;
    memfit_status status = mf_abi_check(result, "MEMFIT_PACK_RESULT", err);
    if (!status)
        status = mf_abi_read(&o, options, "MEMFIT_PACK_OPTIONS", err);
    if (!status)
        status = mf_pack(o.host, buffers, count, &o, &r, err);
    if (!status)
        mf_abi_write(result, &r, sizeof r);
    return status;
}

memfit_status mf_pack_one(const memfit_host *host, mf_pack_buffer *buffers, size_t count, mf_pack_order order,
                          bool best_fit, uint64_t *height, memfit_error *err)
{
    mf_pack_problem p;
    memfit_status status = mf_pack_problem_init(&p, host, buffers, count, err);
    if (status)
        return status;
    mf_pack_greedy g;
    if ((status = check_fixed(&p, err)) || (status = mf_pack_greedy_init(&g, &p, &p.arena, err)))
        goto done;
    mf_pack_greedy_sort(&g, order, false);
    mf_pack_greedy_pass(&g, best_fit, UINT64_MAX - 1);
    *height = g.best_bytes;
    write_offsets(&p, buffers, g.best);
done:
    mf_pack_problem_destroy(&p);
    return status;
}
