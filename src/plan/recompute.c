/*
 * recompute.c: the search for what to drop.
 *
 * Downhill: look at the run with the largest load; among the cells that lie idle there, drop the one whose return costs
 * least time per byte (its maker, and the dead ancestors its maker would need), and see what the whole sequence makes
 * of it. Every sequence is built and measured in full, so a drop that only moves the peak elsewhere is seen and taken
 * back. This is the peak-priority rule of compilers, with exact measurement in place of an estimate.
 *
 * Across: downhill ends where no single drop helps, often because a whole stretch comes back at once; then keeping
 * something again in the middle of it is what lowers the peak. So from there, and from a ladder of rungs between the
 * lowest stop and everything kept, single changes either way and then random pairs are tried: above the rung what
 * lowers the peak is kept, below it what saves time.
 *
 * What was tried and dropped: choosing by estimated change of the peak without building the sequence (wrong too often
 * where ancestors must be revived); one combined score with staleness as online methods use (no better here, since the
 * whole future is known).
 */
#include "plan/recompute.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Runs the search may look at, over all sequences: a tenth of a second or so. */
#define MOST_WORK 3000000ull

typedef struct candidate {
    uint32_t use;
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

static memfit_status path_add(mf_tradeoff *t, uint32_t use, uint8_t drop, memfit_error *err)
{
    mf_path *path = &t->paths[t->path_count - 1];
    if (!mf_grow(t->host, &path->toggles, &path->capacity, path->count, sizeof *path->toggles))
        return no_memory(err);
    path->toggles[path->count++] = (mf_toggle){use, drop};
    return MEMFIT_OK;
}

static void path_apply(mf_tradeoff *t, uint32_t path, uint32_t length)
{
    const mf_path *p = &(t->searched ? t->searched : t)->paths[path];
    memset(t->choice.drop, 0, t->flow->use_at[t->flow->cell_count]);
    for (uint32_t i = 0; i < length; i++)
        t->choice.drop[p->toggles[i].use] = p->toggles[i].drop;
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
    return x->use < y->use ? -1 : x->use > y->use;
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
        if (life->birth >= at || life->death <= at || !flow->cells[c].repeatable || flow->cells[c].lasts ||
            !flow->cells[c].bytes)
            continue;
        uint32_t k = flow->use_at[c], end = flow->use_at[c + 1];
        while (k < end && flow->uses[k] < base)
            k++;
        if (k == flow->use_at[c] || k == end || flow->uses[k] == base)
            continue; /* not made yet, done with, or in use right here */
        if (t->choice.drop[k - 1] || refused[k - 1])
            continue;
        if (!mf_grow(t->host, &t->candidates, &t->candidate_capacity, *count, sizeof(candidate)))
            return no_memory(err);
        double us = revive_us(flow, c, flow->uses[k], mark, ++*stamp, 0);
        ((candidate *)t->candidates)[(*count)++] = (candidate){k - 1, us / (double)flow->cells[c].bytes};
    }
    if (*count)
        qsort(t->candidates, *count, sizeof(candidate), by_price);
    return MEMFIT_OK;
}

/* One move: drops the cheapest candidate whose sequence is no higher than before. *moved says whether one was found. */
static memfit_status move_down(mf_tradeoff *t, uint8_t *refused, uint32_t *mark, uint32_t *stamp, bool *moved,
                               memfit_error *err)
{
    uint64_t before = t->sequence.peak;
    size_t count;
    memfit_status status = find_candidates(t, t->sequence.peak_at, refused, mark, stamp, &count, err);
    *moved = false;
    for (size_t i = 0; i < count && status == MEMFIT_OK && t->work < MOST_WORK; i++) {
        uint32_t use = ((candidate *)t->candidates)[i].use;
        t->choice.drop[use] = 1;
        status = measure(t, err);
        if (status != MEMFIT_OK)
            break;
        if (t->sequence.valid && t->sequence.peak <= before) {
            *moved = true;
            return path_add(t, use, MF_DROP, err);
        }
        t->choice.drop[use] = 0;
        refused[use] = 1;
    }
    return status;
}

static memfit_status go_down(mf_tradeoff *t, memfit_error *err)
{
    uint8_t *refused = MF_NEW_ARRAY(&t->arena, uint8_t, t->flow->use_at[t->flow->cell_count] + 1);
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
            memset(refused, 0, t->flow->use_at[t->flow->cell_count]);
            refused_at = t->sequence.peak;
        }
    }
    return status;
}

/* ---- across ----------------------------------------------------------------------------------------------- */

static double maker_us(const mf_flow *flow, const mf_gap *gap)
{
    return flow->time_us[flow->cells[gap->cell].maker];
}

/* All gaps between uses, those of dear makers first. */
static memfit_status list_gaps(mf_tradeoff *t, memfit_error *err)
{
    const mf_flow *flow = t->flow;
    t->gaps = MF_NEW_ARRAY(&t->arena, mf_gap, flow->use_at[flow->cell_count] + 1);
    if (!t->gaps)
        return no_memory(err);
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        if (!flow->cells[c].repeatable || flow->cells[c].lasts || !flow->cells[c].bytes)
            continue;
        uint32_t longest = MF_NONE, length = 1;
        for (uint32_t k = flow->use_at[c]; k + 1 < flow->use_at[c + 1]; k++) {
            if (flow->uses[k + 1] - flow->uses[k] < 2)
                continue;
            if (flow->uses[k + 1] - flow->uses[k] > length) {
                length = flow->uses[k + 1] - flow->uses[k];
                longest = t->gap_count;
            }
            t->gaps[t->gap_count++] = (mf_gap){c, k, false};
        }
        if (longest != MF_NONE)
            t->gaps[longest].main = true;
    }
    for (uint32_t i = 1; i < t->gap_count; i++) { /* insertion: a few hundred, and cells of a layer stand together */
        mf_gap gap = t->gaps[i];
        uint32_t j = i;
        for (; j && maker_us(flow, &t->gaps[j - 1]) < maker_us(flow, &gap); j--)
            t->gaps[j] = t->gaps[j - 1];
        t->gaps[j] = gap;
    }
    return MEMFIT_OK;
}

typedef struct standing {
    double excess; /* how far the loads stand above the rung: the sum of squares over all runs */
    double time_us;
    uint64_t load;
} standing;

/* The peak alone would be blind: with two peaks alike, lowering one of them changes nothing. */
static double excess(const mf_sequence *q, uint64_t rung)
{
    double sum = 0;
    for (uint32_t r = 0; r < q->run_count && q->peak > rung; r++)
        if (q->load[r] > rung) {
            double above = (double)(q->load[r] - rung);
            sum += above * above;
        }
    return sum;
}

/* Better for a rung: less above it, then faster. */
static bool is_better(const mf_sequence *q, const standing *now, uint64_t rung, standing *next)
{
    if (!q->valid)
        return false;
    *next = (standing){excess(q, rung), q->time_us, q->peak};
    if (next->excess != now->excess)
        return next->excess < now->excess;
    return next->time_us < now->time_us || (next->time_us == now->time_us && next->load < now->load);
}

enum { MOST_CHANGES = 16 };

/* What a gap can be set to: all combinations of the first three bits, the third one for ever after. The first three are
 * the ones that matter most. */
static const uint8_t values[] = {MF_KEEP, MF_DROP, MF_DROP_AGAIN, MF_DROP_LATER, MF_DROP_TWICE, 0xfc, 2, 0xfd};
enum { COMMON_VALUES = 3, VALUES = 8 };

/* Gives some gaps other values at once; keeps that when it is better for the rung. */
static memfit_status try_changes(mf_tradeoff *t, const mf_gap *const *gaps, const uint8_t *to, uint32_t count,
                                 uint64_t rung, standing *now, bool *kept, memfit_error *err)
{
    uint8_t *drop = t->choice.drop, old[MOST_CHANGES];
    bool same = true;
    for (uint32_t i = 0; i < count; i++) {
        old[i] = drop[gaps[i]->use];
        drop[gaps[i]->use] = to[i];
        same &= old[i] == to[i];
    }
    standing next;
    *kept = false;
    memfit_status status = same ? MEMFIT_OK : measure(t, err);
    if (!same && status == MEMFIT_OK)
        *kept = is_better(&t->sequence, now, rung, &next);
    if (!*kept) {
        for (uint32_t i = count; i-- > 0;)
            drop[gaps[i]->use] = old[i];
        return status;
    }
    *now = next;
    for (uint32_t i = 0; i < count && status == MEMFIT_OK; i++)
        status = path_add(t, gaps[i]->use, drop[gaps[i]->use], err);
    if (status == MEMFIT_OK)
        status = stop_add(t, err);
    return status;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

/* A small graph: every value of every gap is worth a look. */
static bool is_small(const mf_tradeoff *t)
{
    return t->gap_count <= 20;
}

/* One sweep over all gaps: each turned over alone, and the longest ones together with those of the other outputs of
 * their maker, which come back together anyway. */
static memfit_status sweep(mf_tradeoff *t, uint64_t rung, uint64_t end, standing *now, bool *any, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    bool kept;
    *any = false;
    for (uint32_t i = 0; i < t->gap_count && status == MEMFIT_OK && t->work < end; i++) {
        const mf_gap *group[MOST_CHANGES] = {&t->gaps[i]};
        uint32_t maker = t->flow->cells[group[0]->cell].maker, n = 1;
        for (uint32_t v = 0; v < (is_small(t) ? VALUES : COMMON_VALUES) && status == MEMFIT_OK; v++) {
            status = try_changes(t, group, &values[v], 1, rung, now, &kept, err);
            *any |= kept;
        }
        if (!group[0]->main)
            continue;
        for (uint32_t j = i + 1; j < t->gap_count && n < 4; j++) { /* equal times stand together */
            if (maker_us(t->flow, &t->gaps[j]) < maker_us(t->flow, group[0]))
                break;
            if (t->gaps[j].main && t->flow->cells[t->gaps[j].cell].maker == maker)
                group[n++] = &t->gaps[j];
        }
        for (uint32_t v = 0; n > 1 && v < 2 && status == MEMFIT_OK; v++) {
            uint8_t to[MOST_CHANGES];
            memset(to, values[v], sizeof to);
            status = try_changes(t, group, to, n, rung, now, &kept, err);
            *any |= kept;
        }
    }
    return status;
}

/* Two or three gaps, anywhere, and other values for them. */
static uint32_t pick_some(const mf_tradeoff *t, uint64_t *random, const mf_gap **group, uint8_t *to)
{
    uint32_t n = 2 + next_random(random) % 2;
    for (uint32_t i = 0; i < n; i++) {
        group[i] = &t->gaps[next_random(random) % t->gap_count];
        uint32_t v = next_random(random) % (2 * VALUES); /* half the time between keeping and dropping */
        to[i] = v < VALUES ? values[v] : t->choice.drop[group[i]->use] == MF_KEEP ? MF_DROP : MF_KEEP;
        for (uint32_t j = 0; j < i; j++)
            if (group[i] == group[j])
                return 0;
    }
    return n;
}

/* The dropped ones among the gaps of a stretch of makers, all to one value: what comes back together goes together. */
static uint32_t pick_stretch(const mf_tradeoff *t, uint64_t *random, const mf_gap **group, uint8_t *to)
{
    uint32_t forward = 1, n = 0, from, length;
    for (uint32_t i = 0; i < t->gap_count; i++) {
        uint32_t p = t->flow->position[t->flow->cells[t->gaps[i].cell].maker];
        forward = p >= forward ? p + 1 : forward;
    }
    from = next_random(random) % forward;
    length = 2 + next_random(random) % (forward < 32 ? forward : 32);
    uint8_t value = values[next_random(random) % VALUES];
    for (uint32_t i = 0; i < t->gap_count && n < MOST_CHANGES; i++) {
        uint32_t p = t->flow->position[t->flow->cells[t->gaps[i].cell].maker];
        if (p < from || p >= from + length || t->choice.drop[t->gaps[i].use] == MF_KEEP)
            continue;
        group[n] = &t->gaps[i];
        to[n++] = value;
    }
    return n;
}

/* From a stop towards a rung: sweeps until none helps, then two or three gaps at random. Ends with its share of the
 * work. */
static memfit_status go_across(mf_tradeoff *t, mf_stop from, uint64_t rung, uint64_t work, memfit_error *err)
{
    const mf_path source = t->paths[from.path];
    uint64_t end = t->work + work, random = 0x9e3779b97f4a7c15ull * t->path_count;
    memfit_status status = path_begin(t, err);
    for (uint32_t i = 0; i < from.length && status == MEMFIT_OK; i++)
        status = path_add(t, source.toggles[i].use, source.toggles[i].drop, err);
    if (status != MEMFIT_OK)
        return status;
    path_apply(t, (uint32_t)t->path_count - 1, from.length);
    status = measure(t, err);
    standing now = {excess(&t->sequence, rung), t->sequence.time_us, t->sequence.peak};
    uint32_t count = t->gap_count;
    bool any = true;
    while (any && status == MEMFIT_OK && t->work < end)
        status = sweep(t, rung, end, &now, &any, err);
    uint32_t patience = 16 * count;
    for (uint32_t idle = 0; idle < patience && count > 2 && status == MEMFIT_OK && t->work < end; idle++) {
        const mf_gap *group[MOST_CHANGES];
        uint8_t to[MOST_CHANGES];
        uint32_t n = next_random(&random) % 4 ? pick_some(t, &random, group, to) : pick_stretch(t, &random, group, to);
        if (!n)
            continue;
        status = try_changes(t, group, to, n, rung, &now, &any, err);
        if (any) {
            idle = 0;
            while (any && status == MEMFIT_OK && t->work < end)
                status = sweep(t, rung, end, &now, &any, err);
        }
    }
    return status;
}

/* ---- segments --------------------------------------------------------------------------------------------- */

/* Bytes that cross each forward position: made before or there, read by forward operations after it. */
static memfit_status find_crossings(const mf_tradeoff *t, mf_arena *arena, uint32_t forward, uint64_t **crossing,
                                    memfit_error *err)
{
    const mf_flow *flow = t->flow;
    uint64_t *at = MF_NEW_ARRAY(arena, uint64_t, forward + 1);
    if (!at)
        return no_memory(err);
    for (uint32_t c = 0; c < flow->cell_count; c++) {
        uint32_t first = MF_NONE, last = 0;
        for (uint32_t k = flow->use_at[c]; k < flow->use_at[c + 1] && flow->uses[k] < forward; k++) {
            first = first == MF_NONE ? flow->uses[k] : first;
            last = flow->uses[k];
        }
        if (first == MF_NONE || flow->cells[c].variable != MF_NONE)
            continue;
        at[first] += flow->cells[c].bytes;
        at[last] -= flow->cells[c].bytes;
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
    memfit_status status = path_begin(t, err);
    for (uint32_t i = 0; i < t->gap_count && status == MEMFIT_OK; i++)
        if (t->gaps[i].main && !keep[flow->cells[t->gaps[i].cell].maker]) {
            t->choice.drop[t->gaps[i].use] = MF_DROP;
            status = path_add(t, t->gaps[i].use, MF_DROP, err);
        }
    return status;
}

/* The classical way: checkpoints at narrow places, everything between them recomputed, for segments of many sizes. */
static memfit_status try_segments(mf_tradeoff *t, memfit_error *err)
{
    enum { SIZES = 24 };
    const mf_flow *flow = t->flow;
    uint32_t forward = 0;
    while (forward < flow->order_count && flow->graph->ops[flow->order[forward]].phase != MF_BACKWARD)
        forward++;
    uint64_t *crossing = NULL, *made = MF_NEW_ARRAY(&t->arena, uint64_t, forward + 1), whole = 0;
    uint8_t *keep = MF_NEW_ARRAY(&t->arena, uint8_t, flow->graph->op_count + 1);
    memfit_status status = made && keep ? find_crossings(t, &t->arena, forward, &crossing, err) : no_memory(err);
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
    for (uint64_t size = whole, i = 0; i < SIZES && status == MEMFIT_OK && t->work < MOST_WORK;
         i++, size = size * 4 / 5) {
        status = cut_segments(t, size, forward, crossing, made, keep, err);
        if (status == MEMFIT_OK)
            status = measure(t, err);
        if (status == MEMFIT_OK && t->sequence.valid)
            status = stop_add(t, err);
    }
    return status;
}

/* ---- small graphs ----------------------------------------------------------------------------------------- */

/* The largest base in which the numbers of this many digits are not more than `most`; at least 2. */
static uint8_t most_digits(uint32_t count, uint64_t most)
{
    for (uint8_t base = VALUES; base > 2; base--) {
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
 * of it. */
static memfit_status try_all(mf_tradeoff *t, memfit_error *err)
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
    memfit_status status = path_begin(t, err);
    path_apply(t, (uint32_t)t->path_count - 1, 0);
    for (uint32_t digit = 0; digit < count && status == MEMFIT_OK;) {
        for (digit = 0; digit < count && status == MEMFIT_OK; digit++) { /* count one up */
            digit_of[digit] = (uint8_t)((digit_of[digit] + 1) % digits);
            uint8_t drop = t->choice.drop[gaps[digit]->use] = values[digit_of[digit]];
            status = path_add(t, gaps[digit]->use, drop, err);
            if (digit_of[digit])
                break;
        }
        if (digit < count && status == MEMFIT_OK)
            status = measure(t, err);
        if (digit < count && status == MEMFIT_OK && t->sequence.valid)
            status = stop_add(t, err);
    }
    return status;
}

/* Small graphs once more: from a stop through worse choices to better ones (annealing). A step changes one to three
 * gaps and is taken when it is better, or with a chance that falls with the harm and with time. */
static memfit_status wander(mf_tradeoff *t, mf_stop from, uint64_t rung, uint32_t steps, memfit_error *err)
{
    const mf_path source = t->paths[from.path];
    uint64_t random = 0xd1342543de82ef95ull * (t->path_count + 1);
    memfit_status status = path_begin(t, err);
    for (uint32_t i = 0; i < from.length && status == MEMFIT_OK; i++)
        status = path_add(t, source.toggles[i].use, source.toggles[i].drop, err);
    if (status != MEMFIT_OK)
        return status;
    path_apply(t, (uint32_t)t->path_count - 1, from.length);
    double unit = t->stops[0].time_us, now = from.time_us / unit;
    for (uint32_t step = 0; step < steps && status == MEMFIT_OK && t->work < MOST_WORK; step++) {
        double heat = 0.08 * (1 - (double)step / steps) + 0.002;
        uint32_t n = 1 + next_random(&random) % 3;
        uint32_t use[3];
        uint8_t old[3];
        for (uint32_t i = 0; i < n; i++) {
            use[i] = t->gaps[next_random(&random) % t->gap_count].use;
            old[i] = t->choice.drop[use[i]];
            t->choice.drop[use[i]] = values[next_random(&random) % VALUES];
        }
        status = measure(t, err);
        double next = t->sequence.time_us / unit + 2 * sqrt(excess(&t->sequence, rung)) / (double)rung;
        double chance = (double)next_random(&random) / 2147483648.0;
        if (status == MEMFIT_OK && t->sequence.valid && (next <= now || chance < exp((now - next) / heat))) {
            now = next;
            for (uint32_t i = 0; i < n && status == MEMFIT_OK; i++)
                status = path_add(t, use[i], t->choice.drop[use[i]], err);
            if (status == MEMFIT_OK)
                status = stop_add(t, err);
        } else {
            for (uint32_t i = n; i-- > 0;)
                t->choice.drop[use[i]] = old[i];
        }
    }
    return status;
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

/* First as low as it goes, some part at a time; then a ladder of rungs from there to everything kept. */
static memfit_status climb_ladder(mf_tradeoff *t, memfit_error *err)
{
    enum { RUNGS = 12 };
    memfit_status status = list_gaps(t, err);
    if (status == MEMFIT_OK)
        status = try_segments(t, err);
    if (status == MEMFIT_OK)
        status = try_all(t, err);
    static const uint64_t parts[] = {20, 8, 40}; /* another target is another way down */
    uint64_t end = t->work < MOST_WORK ? t->work + (MOST_WORK - t->work) / 2 : 0;
    for (uint32_t round = 0, stuck = 0; stuck < 3 && status == MEMFIT_OK && t->work < end; round++) {
        mf_stop lowest = t->stops[t->stop_count - 1];
        status = go_across(t, lowest, lowest.load - lowest.load / parts[round % 3], (end - t->work) / 5, err);
        stuck = t->stops[t->stop_count - 1].load < lowest.load - lowest.load / 100 ? 0 : stuck + 1;
    }
    uint64_t high = t->stops[0].load, low = t->stops[t->stop_count - 1].load;
    for (uint64_t i = 0; i < RUNGS && status == MEMFIT_OK && t->work < MOST_WORK; i++) {
        uint64_t rung = low + (high - low) / RUNGS * i;
        size_t s = 0;
        while (s + 1 < t->stop_count && t->stops[s].load > rung)
            s++;
        status = go_across(t, t->stops[s], rung, (MOST_WORK - t->work) / (RUNGS - i), err);
    }
    for (size_t n = is_small(t) && t->gap_count > 4 ? 2 * t->stop_count : 0;
         n-- > 0 && status == MEMFIT_OK && t->work < MOST_WORK;) {
        size_t s = n % t->stop_count;
        status = wander(t, t->stops[s], t->stops[s].load, 3500, err);
    }
    return status;
}

/* ---- the object ------------------------------------------------------------------------------------------- */

static memfit_status tradeoff_begin(const memfit_host *host, const mf_flow *flow, mf_tradeoff **out, memfit_error *err)
{
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
    mf_tradeoff *t = NULL;
    memfit_status status = tradeoff_begin(host, flow, &t, err);
    if (status != MEMFIT_OK)
        return status;
    status = go_down(t, err);
    if (status == MEMFIT_OK)
        status = climb_ladder(t, err);
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
    path_apply(t, t->stops[s].path, t->stops[s].length);
    memfit_status status = measure(t, err);
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
    if (flow->order_count != searched->flow->order_count || flow->cell_count != searched->flow->cell_count)
        return MEMFIT_OK;
    mf_tradeoff *t = NULL;
    memfit_status status = tradeoff_begin(host, flow, &t, err);
    if (status != MEMFIT_OK)
        return status;
    t->searched = searched;
    t->stops = mf_host_alloc(host, searched->stop_count * sizeof *t->stops);
    if (!t->stops) {
        mf_tradeoff_destroy(t);
        return no_memory(err);
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
    mf_host_free(t->host, t->candidates, t->candidate_capacity * sizeof(candidate));
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
