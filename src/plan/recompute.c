/*
 * recompute.c: the search for what to drop.
 *
 * Downhill: look at the run with the largest load; among the cells that lie idle there, drop the one whose return costs
 * least time per byte (its maker, and the dead ancestors its maker would need), and see what the whole sequence makes
 * of it. Every sequence is built and measured in full, so a drop that only moves the peak elsewhere is seen and taken
 * back. This is the peak-priority rule of compilers, with exact measurement in place of an estimate.
 *
 * Uphill: a drop that paid at some peak may have become needless after later ones. From a ladder of stops, each drop is
 * tried back in, dearest first, and stays in when the load does not rise above the rung.
 *
 * What was tried and dropped: choosing by estimated change of the peak without building the sequence (wrong too often
 * where ancestors must be revived); one combined score with staleness as online methods use (no better here, since the
 * whole future is known).
 */
#include "plan/recompute.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Runs the search may look at, over all sequences: about a third of a second. */
#define MOST_WORK 30000000ull

typedef struct candidate {
    uint32_t cell, drop;
    double us_per_byte;
} candidate;

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the search for recomputations");
}

static memfit_status measure(mf_tradeoff *t, memfit_error *err)
{
    memfit_status status = mf_sequence_build(&t->sequence, t->flow, &t->choice, err);
    t->work += t->sequence.run_count;
    return status;
}

/* ---- paths and stops -------------------------------------------------------------------------------------- */

static memfit_status path_begin(mf_tradeoff *t, memfit_error *err)
{
    if (!mf_grow(t->host, &t->paths, &t->path_capacity, t->path_count, sizeof *t->paths))
        return no_memory(err);
    t->paths[t->path_count++] = (mf_path){0};
    return MEMFIT_OK;
}

static memfit_status path_add(mf_tradeoff *t, uint32_t cell, uint32_t drop, memfit_error *err)
{
    mf_path *path = &t->paths[t->path_count - 1];
    if (!mf_grow(t->host, &path->toggles, &path->capacity, path->count, sizeof *path->toggles))
        return no_memory(err);
    path->toggles[path->count++] = (mf_toggle){cell, drop};
    return MEMFIT_OK;
}

static void path_apply(mf_tradeoff *t, uint32_t path, uint32_t length)
{
    memset(t->choice.drop, 0, t->flow->cell_count * sizeof *t->choice.drop);
    for (uint32_t i = 0; i < length; i++)
        t->choice.drop[t->paths[path].toggles[i].cell] = t->paths[path].toggles[i].drop;
}

/* Remembers the present state as a stop of the last path, unless a stop is as small and as fast already. */
static memfit_status stop_add(mf_tradeoff *t, memfit_error *err)
{
    mf_stop stop = {t->sequence.peak, t->sequence.time_us, (uint32_t)t->path_count - 1,
                    (uint32_t)t->paths[t->path_count - 1].count};
    size_t at = 0;
    while (at < t->stop_count && t->stops[at].load > stop.load)
        at++;
    /* stops[at] and those after it have at most this load */
    for (size_t i = at; i < t->stop_count; i++)
        if (t->stops[i].time_us <= stop.time_us)
            return MEMFIT_OK;
    if (!mf_grow(t->host, &t->stops, &t->stop_capacity, t->stop_count, sizeof *t->stops))
        return no_memory(err);
    size_t from = at; /* stops before it with at least its time are beaten */
    while (from > 0 && t->stops[from - 1].time_us >= stop.time_us)
        from--;
    if (at < t->stop_count && t->stops[at].load == stop.load)
        at++;
    memmove(t->stops + from + 1, t->stops + at, (t->stop_count - at) * sizeof *t->stops);
    t->stops[from] = stop;
    t->stop_count = t->stop_count - (at - from) + 1;
    return MEMFIT_OK;
}

/* ---- downhill --------------------------------------------------------------------------------------------- */

/* Time to bring cell c back at base position `when`: its maker and all ancestors that are dead by then. `mark` holds
 * `stamp` for makers already counted. */
static double revive_us(const mf_flow *flow, uint32_t c, uint32_t when, uint32_t *mark, uint32_t stamp, int depth)
{
    uint32_t maker = flow->cells[c].maker;
    if (mark[maker] == stamp)
        return 0;
    mark[maker] = stamp;
    double us = flow->time_us[maker];
    for (uint32_t i = flow->read_at[maker]; i < flow->read_at[maker + 1] && depth < 64; i++) {
        uint32_t r = flow->reads[i];
        if (flow->cells[r].repeatable && flow->uses[flow->use_at[r + 1] - 1] < when)
            us += revive_us(flow, r, when, mark, stamp, depth + 1);
    }
    return us;
}

static int by_price(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->us_per_byte != y->us_per_byte)
        return x->us_per_byte < y->us_per_byte ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

/* Cells that lie idle at run `at` and could be dropped there, cheapest first. */
static memfit_status find_candidates(mf_tradeoff *t, uint32_t at, const uint8_t *refused, uint32_t *mark,
                                     uint32_t *stamp, size_t *count, memfit_error *err)
{
    const mf_flow *flow = t->flow;
    const mf_sequence *q = &t->sequence;
    uint32_t base = q->runs[at].base;
    *count = 0;
    for (uint32_t i = 0; i < q->life_count; i++) {
        const mf_life *life = &q->lives[i];
        uint32_t c = life->cell;
        if (life->birth >= at || life->death <= at || !flow->cells[c].repeatable || t->choice.drop[c] || refused[c] ||
            flow->cells[c].lasts || !flow->cells[c].bytes)
            continue;
        uint32_t k = flow->use_at[c], end = flow->use_at[c + 1];
        while (k < end && flow->uses[k] < base)
            k++;
        if (k == flow->use_at[c] || k == end || flow->uses[k] == base)
            continue; /* not made yet, done with, or in use right here */
        if (!mf_grow(t->host, &t->candidates, &t->candidate_capacity, *count, sizeof(candidate)))
            return no_memory(err);
        double us = revive_us(flow, c, flow->uses[k], mark, ++*stamp, 0);
        ((candidate *)t->candidates)[(*count)++] =
            (candidate){c, flow->uses[k - 1] + 1, us / (double)flow->cells[c].bytes};
    }
    qsort(t->candidates, *count, sizeof(candidate), by_price);
    return MEMFIT_OK;
}

/* One move: drops the cheapest candidate whose sequence is no higher than before. *moved says whether one was found. */
static memfit_status move_down(mf_tradeoff *t, uint8_t *refused, uint32_t *mark, uint32_t *stamp, bool *moved,
                               memfit_error *err)
{
    uint64_t before = t->sequence.peak;
    uint32_t at = t->sequence.peak_at;
    uint64_t at_before = t->sequence.load[at];
    size_t count;
    memfit_status status = find_candidates(t, at, refused, mark, stamp, &count, err);
    *moved = false;
    (void)at_before;
    for (size_t i = 0; i < count && status == MEMFIT_OK && t->work < MOST_WORK; i++) {
        candidate c = ((candidate *)t->candidates)[i];
        t->choice.drop[c.cell] = c.drop;
        status = measure(t, err);
        if (status != MEMFIT_OK)
            break;
        if (t->sequence.valid && t->sequence.peak <= before) {
            *moved = true;
            return path_add(t, c.cell, c.drop, err);
        }
        t->choice.drop[c.cell] = 0;
        refused[c.cell] = 1;
    }
    return status;
}

static memfit_status go_down(mf_tradeoff *t, memfit_error *err)
{
    uint8_t *refused = MF_NEW_ARRAY(&t->arena, uint8_t, t->flow->cell_count);
    uint32_t *mark = MF_NEW_ARRAY(&t->arena, uint32_t, t->flow->graph->op_count);
    uint32_t stamp = 0;
    if (!refused || !mark)
        return no_memory(err);
    memfit_status status = path_begin(t, err);
    if (status == MEMFIT_OK)
        status = measure(t, err);
    if (status == MEMFIT_OK)
        status = stop_add(t, err);
    uint64_t refused_at = t->sequence.peak;
    bool moved = true;
    while (moved && status == MEMFIT_OK && t->work < MOST_WORK) {
        status = move_down(t, refused, mark, &stamp, &moved, err);
        if (status == MEMFIT_OK && moved)
            status = stop_add(t, err);
        if (moved && t->sequence.peak < refused_at - refused_at / 50) { /* what did not help then may help now */
            memset(refused, 0, t->flow->cell_count);
            refused_at = t->sequence.peak;
        }
    }
    return status;
}

/* ---- uphill ----------------------------------------------------------------------------------------------- */

typedef struct dropped {
    uint32_t cell;
    double us;
} dropped;

static int by_time(const void *a, const void *b)
{
    const dropped *x = a, *y = b;
    if (x->us != y->us)
        return x->us > y->us ? -1 : 1;
    return x->cell < y->cell ? -1 : x->cell > y->cell;
}

/* From a stop of some path: takes back, dearest first, each drop that the rung does not need. */
static memfit_status climb(mf_tradeoff *t, mf_stop from, uint64_t rung, memfit_error *err)
{
    const mf_path source = t->paths[from.path];
    memfit_status status = path_begin(t, err);
    for (uint32_t i = 0; i < from.length && status == MEMFIT_OK; i++)
        status = path_add(t, source.toggles[i].cell, source.toggles[i].drop, err);
    if (status != MEMFIT_OK)
        return status;
    path_apply(t, (uint32_t)t->path_count - 1, from.length);
    size_t count = 0;
    for (uint32_t c = 0; c < t->flow->cell_count; c++)
        if (t->choice.drop[c]) {
            if (!mf_grow(t->host, &t->candidates, &t->candidate_capacity, count, sizeof(candidate)))
                return no_memory(err);
            ((dropped *)t->candidates)[count++] = (dropped){c, t->flow->time_us[t->flow->cells[c].maker]};
        }
    qsort(t->candidates, count, sizeof(dropped), by_time);
    bool changed = false;
    for (size_t i = 0; i < count && status == MEMFIT_OK && t->work < MOST_WORK; i++) {
        uint32_t c = ((dropped *)t->candidates)[i].cell, drop = t->choice.drop[c];
        t->choice.drop[c] = 0;
        status = measure(t, err);
        if (status != MEMFIT_OK)
            break;
        if (t->sequence.valid && t->sequence.peak <= rung) {
            changed = true;
            status = path_add(t, c, 0, err);
            if (status == MEMFIT_OK)
                status = stop_add(t, err);
        } else {
            t->choice.drop[c] = drop;
        }
    }
    if (!changed)
        t->path_count--, mf_host_free(t->host, t->paths[t->path_count].toggles,
                                      t->paths[t->path_count].capacity * sizeof(mf_toggle));
    return status;
}

static memfit_status go_up(mf_tradeoff *t, memfit_error *err)
{
    enum { RUNGS = 24 };
    memfit_status status = MEMFIT_OK;
    uint64_t high = t->stops[0].load, low = t->stops[t->stop_count - 1].load;
    for (int i = RUNGS; i > 0 && status == MEMFIT_OK && t->work < MOST_WORK; i--) {
        uint64_t rung = low + (high - low) / RUNGS * (uint64_t)(RUNGS - i);
        size_t s = 0;
        while (s + 1 < t->stop_count && t->stops[s].load > rung)
            s++;
        status = climb(t, t->stops[s], rung, err);
    }
    return status;
}

/* ---- small graphs ----------------------------------------------------------------------------------------- */

/* Where few cells can be dropped at all, every subset is tried (in Gray-code order: one change a step). The path keeps
 * all changes, so a stop is again a prefix of it. */
static memfit_status try_all(mf_tradeoff *t, memfit_error *err)
{
    enum { MOST = 13 };
    const mf_flow *flow = t->flow;
    mf_toggle cells[MOST];
    uint32_t count = 0;
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        uint32_t gap = 1, at = MF_NONE;
        for (uint32_t k = flow->use_at[c]; k + 1 < flow->use_at[c + 1]; k++)
            if (flow->uses[k + 1] - flow->uses[k] > gap) {
                gap = flow->uses[k + 1] - flow->uses[k];
                at = flow->uses[k];
            }
        if (!flow->cells[c].repeatable || at == MF_NONE || flow->cells[c].lasts)
            continue;
        if (count == MOST)
            return MEMFIT_OK;
        cells[count++] = (mf_toggle){c, at + 1};
    }
    memfit_status status = path_begin(t, err);
    path_apply(t, (uint32_t)t->path_count - 1, 0);
    for (uint32_t i = 1; i < 1u << count && status == MEMFIT_OK; i++) {
        mf_toggle cell = cells[__builtin_ctz(i)];
        uint32_t drop = t->choice.drop[cell.cell] ? 0 : cell.drop;
        t->choice.drop[cell.cell] = drop;
        status = path_add(t, cell.cell, drop, err);
        if (status == MEMFIT_OK)
            status = measure(t, err);
        if (status == MEMFIT_OK && t->sequence.valid)
            status = stop_add(t, err);
    }
    return status;
}

/* ---- the object ------------------------------------------------------------------------------------------- */

static memfit_status tradeoff_begin(const memfit_host *host, const mf_flow *flow, mf_tradeoff **out, memfit_error *err)
{
    _Static_assert(sizeof(dropped) <= sizeof(candidate), "one scratch list serves both");
    mf_tradeoff *t = mf_host_zalloc(host, sizeof *t);
    if (!t)
        return no_memory(err);
    mf_arena_init(&t->arena, host);
    t->host = host;
    t->flow = flow;
    memfit_status status = mf_choice_make(&t->arena, flow, &t->choice, err);
    if (status == MEMFIT_OK)
        status = mf_sequence_init(&t->sequence, host, flow, err);
    if (status != MEMFIT_OK) {
        mf_tradeoff_destroy(t);
        return status;
    }
    *out = t;
    return MEMFIT_OK;
}

memfit_status mf_tradeoff_create(const memfit_host *host, const mf_flow *flow, mf_tradeoff **out, memfit_error *err)
{
    mf_tradeoff *t;
    memfit_status status = tradeoff_begin(host, flow, &t, err);
    if (status != MEMFIT_OK)
        return status;
    status = go_down(t, err);
    if (status == MEMFIT_OK)
        status = go_up(t, err);
    if (status == MEMFIT_OK)
        status = try_all(t, err);
    if (status != MEMFIT_OK) {
        mf_tradeoff_destroy(t);
        return status;
    }
    *out = t;
    return MEMFIT_OK;
}

memfit_status mf_tradeoff_derive(const memfit_host *host, const mf_flow *flow, const mf_tradeoff *searched,
                                 mf_tradeoff **out, memfit_error *err)
{
    *out = NULL;
    if (flow->order_count != searched->flow->order_count || flow->cell_count != searched->flow->cell_count)
        return MEMFIT_OK;
    mf_tradeoff *t;
    memfit_status status = tradeoff_begin(host, flow, &t, err);
    if (status != MEMFIT_OK)
        return status;
    for (size_t s = 0; s < searched->stop_count && status == MEMFIT_OK; s++) {
        const mf_path *path = &searched->paths[searched->stops[s].path];
        status = path_begin(t, err);
        for (uint32_t i = 0; i < searched->stops[s].length && status == MEMFIT_OK; i++)
            status = path_add(t, path->toggles[i].cell, path->toggles[i].drop, err);
        if (status != MEMFIT_OK)
            break;
        path_apply(t, (uint32_t)s, searched->stops[s].length);
        status = measure(t, err);
        if (status == MEMFIT_OK && t->sequence.valid)
            status = stop_add(t, err);
    }
    if (status != MEMFIT_OK) {
        mf_tradeoff_destroy(t);
        return status;
    }
    *out = t;
    return MEMFIT_OK;
}

void mf_tradeoff_destroy(mf_tradeoff *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->path_count; i++)
        mf_host_free(t->host, t->paths[i].toggles, t->paths[i].capacity * sizeof(mf_toggle));
    mf_host_free(t->host, t->paths, t->path_capacity * sizeof *t->paths);
    mf_host_free(t->host, t->stops, t->stop_capacity * sizeof *t->stops);
    mf_host_free(t->host, t->candidates, t->candidate_capacity * sizeof(candidate));
    mf_sequence_free(&t->sequence);
    mf_arena_destroy(&t->arena);
    mf_host_free(t->host, t, sizeof *t);
}

memfit_status mf_tradeoff_fit(mf_tradeoff *t, uint64_t budget, bool *fits, memfit_error *err)
{
    size_t s = 0; /* loads fall and times rise: the first that is low enough is the fastest */
    while (s + 1 < t->stop_count && t->stops[s].load > budget)
        s++;
    *fits = t->stops[s].load <= budget;
    path_apply(t, t->stops[s].path, t->stops[s].length);
    return measure(t, err);
}
