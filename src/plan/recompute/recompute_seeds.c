/*
 * recompute_seeds.c: other places to begin a search from.
 *
 *   segments   checkpoints at narrow places and everything between them recomputed, as people do by hand
 *   small      few gaps: all choices, as far as that is not too many; then annealing from the stops found
 */
#include "plan/recompute/bounds.h"
#include "plan/recompute/recompute_inner.h"

#include <math.h>
#include <string.h>

/* ---- segments --------------------------------------------------------------------------------------------- */

/* Bytes that cross each forward position: made before or there, read by forward operations after it. What backward does
 * not read again is dead soon, so a cut there would keep nothing: it counts as very wide (a layer's product before its
 * activation, say). */
static memfit_status find_crossings(const mf_tradeoff *t, mf_arena *arena, uint32_t forward, uint64_t **crossing,
                                    memfit_error *err)
{
    const mf_flow *flow = t->flow;
    const uint64_t very_wide = UINT64_C(1) << 46;
    uint64_t *at = MF_NEW_ARRAY(arena, uint64_t, forward + 1);
    uint8_t *kept = MF_NEW_ARRAY(arena, uint8_t, flow->cell_count + 1);
    if (!at || !kept)
        return mf_search_no_memory(err);
    for (uint32_t i = 0; i < t->gap_count; i++)
        kept[t->gaps[i].cell] = 1;
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        uint32_t first = MF_NONE, last = 0;
        for (uint32_t k = flow->use_at[c]; k < flow->use_at[c + 1] && flow->uses[k] < forward; k++) {
            first = first == MF_NONE ? flow->uses[k] : first;
            last = flow->uses[k];
        }
        if (first == MF_NONE || flow->cells[c].variable != MF_NONE)
            continue;
        uint64_t width = flow->cells[c].bytes + (flow->cells[c].repeatable && !kept[c] ? very_wide : 0);
        at[first] += width;
        at[last] -= width;
    }
    for (uint32_t p = 1; p < forward; p++)
        at[p] += at[p - 1];
    *crossing = at;
    return MEMFIT_OK;
}

/* Does cell c cross position p in the forward part? */
static bool crosses(const mf_flow *flow, uint32_t c, uint32_t p, uint32_t forward)
{
    bool before = false;
    for (uint32_t k = flow->use_at[c]; k < flow->use_at[c + 1] && flow->uses[k] < forward; k++) {
        if (flow->uses[k] > p)
            return before;
        before = true;
    }
    return false;
}

/* Drops everything but what crosses the cuts: a cut wherever the droppable bytes since the last one reach `size`, at
 * the narrowest place before that. `keep` marks makers whose outputs stay. */
static memfit_status cut_segments(mf_tradeoff *t, uint64_t size, uint32_t forward, const uint64_t *crossing,
                                  const uint64_t *made, uint8_t *keep, memfit_error *err)
{
    const mf_flow *flow = t->flow;
    memset(keep, 0, flow->graph->op_count);
    for (uint32_t start = 0, p = 0; p < forward;) {
        uint64_t bytes = 0;
        uint32_t best = MF_NONE;
        for (p = start; p < forward; p++) {
            bytes += made[p];
            if (bytes > size && best != MF_NONE)
                break;
            if (best == MF_NONE || crossing[p] <= crossing[best])
                best = p;
        }
        if (p >= forward)
            break;
        for (uint32_t i = 0; i < t->gap_count; i++)
            if (crosses(flow, t->gaps[i].cell, best, forward))
                keep[flow->cells[t->gaps[i].cell].maker] = 1;
        start = best + 1;
    }
    memset(t->choice.drop, 0, flow->use_at[flow->cell_count]);
    memfit_status status = mf_path_begin(t, err);
    for (uint32_t i = 0; i < t->gap_count && status == MEMFIT_OK; i++)
        if (t->gaps[i].main && !keep[flow->cells[t->gaps[i].cell].maker]) {
            t->choice.drop[t->gaps[i].use] = MF_DROP;
            status = mf_path_add(t, t->gaps[i].use, MF_DROP, err);
        }
    return status;
}

/* The classical way: checkpoints at narrow places, everything between them recomputed, for segments of many sizes. */
memfit_status mf_search_segments(mf_tradeoff *t, memfit_error *err)
{
    enum { SIZES = 24 };
    const mf_flow *flow = t->flow;
    uint32_t forward = 0;
    while (forward < flow->order_count && flow->graph->ops[flow->order[forward]].phase != MF_BACKWARD)
        forward++;
    uint64_t *crossing = NULL, *made = MF_NEW_ARRAY(&t->arena, uint64_t, forward + 1), whole = 0;
    uint8_t *keep = MF_NEW_ARRAY(&t->arena, uint8_t, flow->graph->op_count + 1);
    memfit_status status =
        made && keep ? find_crossings(t, &t->arena, forward, &crossing, err) : mf_search_no_memory(err);
    if (status != MEMFIT_OK)
        return status;
    for (uint32_t i = 0; i < t->gap_count; i++) {
        const mf_cell *cell = &flow->cells[t->gaps[i].cell];
        uint32_t p = flow->position[cell->maker];
        if (p < forward && t->gaps[i].main) {
            made[p] += cell->bytes;
            whole += cell->bytes;
        }
    }
    for (uint64_t size = whole, i = 0; i < SIZES && status == MEMFIT_OK && t->work < t->most_work;
         i++, size = size * 4 / 5) {
        status = cut_segments(t, size, forward, crossing, made, keep, err);
        if (status == MEMFIT_OK)
            status = mf_search_measure(t, err);
        if (status == MEMFIT_OK && t->sequence.valid)
            status = mf_stop_add(t, err);
    }
    return status;
}

/* ---- cuts ------------------------------------------------------------------------------------------------- */

/* The selection that costs least at the fullest moment alone (bound_cut.c); what overflows elsewhere is mended by
 * whoever goes on. */
memfit_status mf_search_cut(mf_tradeoff *t, uint64_t rung, mf_stop *seed, memfit_error *err)
{
    const mf_flow *flow = t->flow;
    uint32_t at;
    size_t bytes = flow->cell_count + 1;
    uint8_t *kept = mf_host_zalloc(t->host, bytes);
    if (!kept)
        return mf_search_no_memory(err);
    memfit_status status = mf_bounds_keep(t->host, flow, rung, 64, kept, &at, err);
    if (status == MEMFIT_OK)
        status = mf_path_begin(t, err);
    for (uint32_t i = 0; i < t->gap_count && status == MEMFIT_OK && at != MF_NONE; i++) {
        uint32_t use = t->gaps[i].use;
        if (flow->uses[use] < at && flow->uses[use + 1] > at && !kept[t->gaps[i].cell])
            status = mf_path_add(t, use, MF_DROP, err);
    }
    if (status == MEMFIT_OK)
        *seed = (mf_stop){.path = (uint32_t)t->path_count - 1, .length = (uint32_t)t->paths[t->path_count - 1].count};
    mf_host_free(t->host, kept, bytes);
    return status;
}

/* ---- small graphs ----------------------------------------------------------------------------------------- */

/* The largest base in which the numbers of this many digits are not more than `most`; at least 2. */
static uint8_t most_digits(uint32_t count, uint64_t most)
{
    for (uint8_t base = MF_VALUES; base > 2; base--) {
        uint64_t numbers = 1;
        for (uint32_t i = 0; i < count && numbers <= most; i++)
            numbers *= base;
        if (numbers <= most)
            return base;
    }
    return 2;
}

/* Where there are few gaps, everything is tried: as many values of each as is not too much. Counting with that many
 * digits, so that few gaps change from one number to the next; the path keeps all changes, and a stop is again a prefix
 * of it. Few gaps may lie in many operations, most of them of layers that are not trained: the work is counted. */
memfit_status mf_search_small(mf_tradeoff *t, memfit_error *err)
{
    enum { MOST = 13, MOST_TRIES = 10000 };
    const mf_gap *gaps[MOST];
    uint32_t count = 0, mains = 0;
    for (uint32_t i = 0; i < t->gap_count; i++)
        mains += t->gaps[i].main;
    if (mains > MOST)
        return MEMFIT_OK;
    for (uint32_t i = 0; i < t->gap_count; i++)
        if (t->gap_count <= MOST || t->gaps[i].main)
            gaps[count++] = &t->gaps[i];
    uint8_t digit_of[MOST] = {0}, digits = count ? most_digits(count, MOST_TRIES) : 0;
    memfit_status status = mf_path_begin(t, err);
    mf_path_apply(t, (uint32_t)t->path_count - 1, 0);
    for (uint32_t digit = 0; digit < count && status == MEMFIT_OK && t->work < t->most_work;) {
        for (digit = 0; digit < count && status == MEMFIT_OK; digit++) { /* count one up */
            digit_of[digit] = (uint8_t)((digit_of[digit] + 1) % digits);
            uint8_t drop = t->choice.drop[gaps[digit]->use] = mf_drop_values[digit_of[digit]];
            status = mf_path_add(t, gaps[digit]->use, drop, err);
            if (digit_of[digit])
                break;
        }
        if (digit < count && status == MEMFIT_OK)
            status = mf_search_measure(t, err);
        if (digit < count && status == MEMFIT_OK && t->sequence.valid)
            status = mf_stop_add(t, err);
    }
    return status;
}

/* Small graphs once more: from a stop through worse choices to better ones (annealing). A step changes one to three
 * gaps and is taken when it is better, or with a chance that falls with the harm and with time. */
memfit_status mf_search_wander(mf_tradeoff *t, mf_stop from, uint64_t rung, uint32_t steps, memfit_error *err)
{
    uint64_t random = 0xd1342543de82ef95ull * (t->path_count + 1);
    memfit_status status = mf_path_from(t, from, err);
    if (status != MEMFIT_OK)
        return status;
    double unit = t->stops[0].time_us, now = from.time_us / unit;
    for (uint32_t step = 0; step < steps && status == MEMFIT_OK && t->work < t->most_work; step++) {
        double heat = 0.08 * (1 - (double)step / steps) + 0.002;
        uint32_t n = 1 + mf_search_random(&random) % 3;
        uint32_t use[3];
        uint8_t old[3];
        for (uint32_t i = 0; i < n; i++) {
            use[i] = t->gaps[mf_search_random(&random) % t->gap_count].use;
            old[i] = t->choice.drop[use[i]];
            t->choice.drop[use[i]] = mf_drop_values[mf_search_random(&random) % MF_VALUES];
        }
        status = mf_search_measure(t, err);
        double next = t->sequence.time_us / unit + 2 * sqrt(mf_search_excess(&t->sequence, rung)) / (double)rung;
        double chance = (double)mf_search_random(&random) / 2147483648.0;
        if (status == MEMFIT_OK && t->sequence.valid && (next <= now || chance < exp((now - next) / heat))) {
            now = next;
            for (uint32_t i = 0; i < n && status == MEMFIT_OK; i++)
                status = mf_path_add(t, use[i], t->choice.drop[use[i]], err);
            if (status == MEMFIT_OK)
                status = mf_stop_add(t, err);
        } else {
            for (uint32_t i = n; i-- > 0;)
                t->choice.drop[use[i]] = old[i];
        }
    }
    return status;
}
