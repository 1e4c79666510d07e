/*
 * recompute.c: what the search for recomputations remembers, and how to ask for it.
 *
 *   path    a list of changes that starts from "everything kept"
 *   stop    the choice after the first so many changes of a path, with its load and time; no stop is both larger and
 *           slower than another, so a budget takes the first that is low enough
 *
 * A model is searched once; another batch takes its stops over and measures them anew (derive). The search itself is in
 * recompute_search.c and recompute_seeds.c.
 */
#include "plan/recompute/recompute_inner.h"

#include <stdlib.h>
#include <string.h>

const uint8_t mf_drop_values[MF_VALUES] = {MF_KEEP, MF_DROP, MF_DROP_AGAIN, MF_DROP_LATER, MF_DROP_TWICE,
                                           0xfc,    2,       0xfd};

memfit_status mf_search_measure(mf_tradeoff *t, memfit_error *err)
{
    memfit_status status = mf_sequence_build(&t->sequence, t->flow, &t->choice, err);
    t->work += t->sequence.run_count;
    return status;
}

/* ---- paths and stops -------------------------------------------------------------------------------------- */

memfit_status mf_path_begin(mf_tradeoff *t, memfit_error *err)
{
    if (!mf_grow(t->host, &t->paths, &t->path_capacity, t->path_count, sizeof *t->paths))
        return mf_search_no_memory(err);
    t->paths[t->path_count++] = (mf_path){0};
    return MEMFIT_OK;
}

memfit_status mf_path_add(mf_tradeoff *t, uint32_t use, uint8_t drop, memfit_error *err)
{
    mf_path *path = &t->paths[t->path_count - 1];
    if (!mf_grow(t->host, &path->toggles, &path->capacity, path->count, sizeof *path->toggles))
        return mf_search_no_memory(err);
    path->toggles[path->count++] = (mf_toggle){use, drop};
    return MEMFIT_OK;
}

void mf_path_apply(mf_tradeoff *t, uint32_t path, uint32_t length)
{
    const mf_path *p = &(t->searched ? t->searched : t)->paths[path];
    memset(t->choice.drop, 0, t->flow->use_at[t->flow->cell_count]);
    for (uint32_t i = 0; i < length; i++)
        t->choice.drop[p->toggles[i].use] = p->toggles[i].drop;
}

memfit_status mf_stop_add(mf_tradeoff *t, memfit_error *err)
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
        return mf_search_no_memory(err);
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

memfit_status mf_path_from(mf_tradeoff *t, mf_stop from, memfit_error *err)
{
    memfit_status status = mf_path_begin(t, err);
    for (uint32_t i = 0; i < from.length && status == MEMFIT_OK; i++)
        status = mf_path_add(t, t->paths[from.path].toggles[i].use, t->paths[from.path].toggles[i].drop, err);
    if (status == MEMFIT_OK)
        mf_path_apply(t, (uint32_t)t->path_count - 1, from.length);
    return status;
}

/* ---- the object ------------------------------------------------------------------------------------------- */

static memfit_status tradeoff_begin(const memfit_host *host, const mf_flow *flow, mf_tradeoff **out, memfit_error *err)
{
    mf_tradeoff *t = mf_host_zalloc(host, sizeof *t);
    if (!t)
        return mf_search_no_memory(err);
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

memfit_status mf_tradeoff_create(const memfit_host *host, const mf_flow *flow, uint64_t work, mf_tradeoff **out,
                                 memfit_error *err)
{
    mf_tradeoff *t = NULL;
    memfit_status status = tradeoff_begin(host, flow, &t, err);
    if (status != MEMFIT_OK)
        return status;
    t->most_work = work;
    status = mf_search_all(t, err);
    if (status != MEMFIT_OK) {
        mf_tradeoff_destroy(t);
        return status;
    }
    *out = t;
    return MEMFIT_OK;
}

/* Puts a stop into choice and sequence, and knows its load afterwards. A stop that is not valid on this flow (its graph
 * differs after all) counts as endless. */
static memfit_status stop_take(mf_tradeoff *t, size_t s, memfit_error *err)
{
    mf_path_apply(t, t->stops[s].path, t->stops[s].length);
    memfit_status status = mf_search_measure(t, err);
    if (status == MEMFIT_OK) {
        t->stops[s].load = t->sequence.valid ? t->sequence.peak : UINT64_MAX;
        t->stops[s].time_us = t->sequence.time_us;
    }
    return status;
}

static memfit_status stop_load(mf_tradeoff *t, size_t s, uint64_t *load, memfit_error *err)
{
    memfit_status status = t->stops[s].load ? MEMFIT_OK : stop_take(t, s, err);
    *load = t->stops[s].load;
    return status;
}

static int by_load(const void *a, const void *b)
{
    const mf_stop *x = a, *y = b;
    if (x->load != y->load)
        return x->load > y->load ? -1 : 1;
    return x->time_us > y->time_us ? -1 : x->time_us < y->time_us;
}

/* At another batch the order of the stops may differ a little (what does not grow with the batch weighs less). Where
 * that costs little, all are measured and put in order again; else the order of the search is trusted. */
static memfit_status sort_stops(mf_tradeoff *t, memfit_error *err)
{
    if ((uint64_t)t->stop_count * t->flow->order_count > 150000)
        return MEMFIT_OK;
    for (size_t i = 0; i < t->stop_count; i++) {
        memfit_status status = stop_take(t, i, err);
        if (status != MEMFIT_OK)
            return status;
    }
    qsort(t->stops, t->stop_count, sizeof *t->stops, by_load);
    size_t kept = 0; /* from the lowest up: each must be faster than all below it */
    for (size_t i = t->stop_count; i-- > 0;)
        if (!kept || t->stops[i].time_us < t->stops[t->stop_count - kept].time_us)
            t->stops[t->stop_count - ++kept] = t->stops[i];
    memmove(t->stops, t->stops + (t->stop_count - kept), kept * sizeof *t->stops);
    t->stop_count = kept;
    return MEMFIT_OK;
}

memfit_status mf_tradeoff_derive(const memfit_host *host, const mf_flow *flow, const mf_tradeoff *searched,
                                 mf_tradeoff **out, memfit_error *err)
{
    *out = NULL;
    if (flow->order_count != searched->flow->order_count || flow->cell_count != searched->flow->cell_count ||
        flow->use_at[flow->cell_count] != searched->flow->use_at[flow->cell_count])
        return MEMFIT_OK;
    mf_tradeoff *t = NULL;
    memfit_status status = tradeoff_begin(host, flow, &t, err);
    if (status != MEMFIT_OK)
        return status;
    t->searched = searched;
    t->stops = mf_host_alloc(host, searched->stop_count * sizeof *t->stops);
    if (!t->stops) {
        mf_tradeoff_destroy(t);
        return mf_search_no_memory(err);
    }
    t->stop_count = t->stop_capacity = searched->stop_count;
    memcpy(t->stops, searched->stops, searched->stop_count * sizeof *t->stops);
    for (size_t i = 0; i < t->stop_count; i++)
        t->stops[i].load = 0;
    status = sort_stops(t, err);
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
    mf_host_free(t->host, t->candidates, t->candidate_capacity * sizeof(mf_drop_candidate));
    mf_sequence_free(&t->sequence);
    mf_arena_destroy(&t->arena);
    mf_host_free(t->host, t, sizeof *t);
}

/* Loads fall and times rise: the first stop that is low enough is the fastest. */
memfit_status mf_tradeoff_fit(mf_tradeoff *t, uint64_t budget, bool *fits, memfit_error *err)
{
    size_t low = 0, high = t->stop_count - 1;
    uint64_t load;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        memfit_status status = stop_load(t, middle, &load, err);
        if (status != MEMFIT_OK)
            return status;
        if (load <= budget)
            high = middle;
        else
            low = middle + 1;
    }
    memfit_status status = stop_take(t, low, err);
    *fits = status == MEMFIT_OK && t->stops[low].load <= budget;
    return status;
}

memfit_status mf_tradeoff_lowest(mf_tradeoff *t, uint64_t *load, memfit_error *err)
{
    return stop_load(t, t->stop_count - 1, load, err);
}
