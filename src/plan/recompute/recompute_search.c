/*
 * recompute_search.c: the search for what to drop.
 *
 * Downhill: look at the run with the largest load; among the cells that lie idle there, drop the one whose return costs
 * least time per byte (its maker, and the dead ancestors its maker would need), and build the whole sequence. Every
 * sequence is built and measured in full, so a drop that only moves the peak elsewhere is seen and taken back. This is
 * the peak-priority rule of compilers, with exact measurement instead of an estimate.
 *
 * Across: downhill ends where no single drop helps, often because a whole stretch comes back at once; then keeping
 * something in the middle of it lowers the peak. So from there, and from a ladder of rungs between the lowest stop and
 * everything kept, try single changes either way and then random pairs: above the rung keep what lowers the peak, below
 * it what saves time.
 *
 * Where the bound is far: between two stops every budget pays the time of the lower one. Where that is farthest above
 * the bound, the search starts once more, just below the upper one, with what the bound would keep at the fullest
 * moment. U-Net at half its memory: 5.2 % of the step instead of 6.9 %, which is the best there is to a hundredth.
 *
 * Tried and dropped: choosing by the estimated change of the peak without building the sequence (wrong too often where
 * ancestors must be revived); one combined score with staleness as online methods use (no better here, since the whole
 * future is known).
 */
#include "plan/recompute/bounds.h"
#include "plan/recompute/recompute_inner.h"

#include <stdlib.h>
#include <string.h>

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
    const mf_drop_candidate *x = a, *y = b;
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
        if (!mf_grow(t->host, &t->candidates, &t->candidate_capacity, *count, sizeof(mf_drop_candidate)))
            return mf_search_no_memory(err);
        double us = revive_us(flow, c, flow->uses[k], mark, ++*stamp, 0);
        ((mf_drop_candidate *)t->candidates)[(*count)++] =
            (mf_drop_candidate){k - 1, c, us / (double)flow->cells[c].bytes};
    }
    if (*count)
        qsort(t->candidates, *count, sizeof(mf_drop_candidate), by_price);
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
    for (size_t i = 0; i < count && status == MEMFIT_OK && t->work < t->most_work; i++) {
        uint32_t use = ((mf_drop_candidate *)t->candidates)[i].use;
        t->choice.drop[use] = 1;
        status = mf_search_measure(t, err);
        if (status != MEMFIT_OK)
            break;
        if (t->sequence.valid && t->sequence.peak <= before) {
            *moved = true;
            return mf_path_add(t, use, MF_DROP, err);
        }
        t->choice.drop[use] = 0;
        refused[use] = 1;
    }
    return status;
}

/* A path that keeps everything, so far. */
static memfit_status begin_kept(mf_tradeoff *t, memfit_error *err)
{
    memfit_status status = mf_path_begin(t, err);
    if (status != MEMFIT_OK)
        return status;
    mf_path_apply(t, (uint32_t)t->path_count - 1, 0);
    status = mf_search_measure(t, err);
    return status == MEMFIT_OK ? mf_stop_add(t, err) : status;
}

static memfit_status go_down(mf_tradeoff *t, uint64_t end, memfit_error *err)
{
    uint8_t *refused = MF_NEW_ARRAY(&t->arena, uint8_t, t->flow->use_at[t->flow->cell_count] + 1);
    uint32_t *mark = MF_NEW_ARRAY(&t->arena, uint32_t, t->flow->graph->op_count);
    uint32_t stamp = 0;
    if (!refused || !mark)
        return mf_search_no_memory(err);
    memfit_status status = begin_kept(t, err);
    uint64_t refused_at = t->sequence.peak;
    bool moved = true;
    while (moved && status == MEMFIT_OK && t->work < end) {
        status = move_down(t, refused, mark, &stamp, &moved, err);
        if (status == MEMFIT_OK && moved)
            status = mf_stop_add(t, err);
        if (moved && t->sequence.peak < refused_at - refused_at / 50) { /* what did not help then may help now */
            memset(refused, 0, t->flow->use_at[t->flow->cell_count]);
            refused_at = t->sequence.peak;
        }
    }
    return status;
}

/* ---- across ----------------------------------------------------------------------------------------------- */

static int by_maker(const void *a, const void *b)
{
    const mf_gap *x = a, *y = b;
    if (x->us != y->us)
        return x->us > y->us ? -1 : 1;
    return x->use < y->use ? -1 : x->use > y->use;
}

/* All gaps between uses, those of dear makers first. */
static memfit_status list_gaps(mf_tradeoff *t, memfit_error *err)
{
    const mf_flow *flow = t->flow;
    t->gaps = MF_NEW_ARRAY(&t->arena, mf_gap, flow->use_at[flow->cell_count] + 1);
    if (!t->gaps)
        return mf_search_no_memory(err);
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
            t->gaps[t->gap_count++] = (mf_gap){c, k, false, flow->time_us[flow->cells[c].maker]};
        }
        if (longest != MF_NONE)
            t->gaps[longest].main = true;
    }
    if (t->gap_count)
        qsort(t->gaps, t->gap_count, sizeof *t->gaps, by_maker);
    return MEMFIT_OK;
}

typedef struct standing {
    double excess; /* how far the loads stand above the rung: the sum of squares over all runs */
    double time_us;
    uint64_t load;
} standing;

/* The peak alone would be blind: with two peaks alike, lowering one of them changes nothing. */
double mf_search_excess(const mf_sequence *q, uint64_t rung)
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
    *next = (standing){mf_search_excess(q, rung), q->time_us, q->peak};
    if (next->excess != now->excess)
        return next->excess < now->excess;
    return next->time_us < now->time_us || (next->time_us == now->time_us && next->load < now->load);
}

enum { MOST_CHANGES = 16 };

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
    memfit_status status = same ? MEMFIT_OK : mf_search_measure(t, err);
    if (!same && status == MEMFIT_OK)
        *kept = is_better(&t->sequence, now, rung, &next);
    if (!*kept) {
        for (uint32_t i = count; i-- > 0;)
            drop[gaps[i]->use] = old[i];
        return status;
    }
    *now = next;
    for (uint32_t i = 0; i < count && status == MEMFIT_OK; i++)
        status = mf_path_add(t, gaps[i]->use, drop[gaps[i]->use], err);
    if (status == MEMFIT_OK)
        status = mf_stop_add(t, err);
    return status;
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
        for (uint32_t v = 0; v < (is_small(t) ? MF_VALUES : MF_COMMON_VALUES) && status == MEMFIT_OK; v++) {
            status = try_changes(t, group, &mf_drop_values[v], 1, rung, now, &kept, err);
            *any |= kept;
        }
        if (!group[0]->main)
            continue;
        for (uint32_t j = i + 1; j < t->gap_count && n < 4; j++) { /* equal times stand together */
            if (t->gaps[j].us < group[0]->us)
                break;
            if (t->gaps[j].main && t->flow->cells[t->gaps[j].cell].maker == maker)
                group[n++] = &t->gaps[j];
        }
        for (uint32_t v = 0; n > 1 && v < 2 && status == MEMFIT_OK; v++) {
            uint8_t to[MOST_CHANGES];
            memset(to, mf_drop_values[v], sizeof to);
            status = try_changes(t, group, to, n, rung, now, &kept, err);
            *any |= kept;
        }
    }
    return status;
}

/* Two or three gaps, anywhere, and other values for them. */
static uint32_t pick_some(const mf_tradeoff *t, uint64_t *random, const mf_gap **group, uint8_t *to)
{
    uint32_t n = 2 + mf_search_random(random) % 2;
    for (uint32_t i = 0; i < n; i++) {
        group[i] = &t->gaps[mf_search_random(random) % t->gap_count];
        uint32_t v = mf_search_random(random) % (2 * MF_VALUES); /* half the time between keeping and dropping */
        to[i] = v < MF_VALUES ? mf_drop_values[v] : t->choice.drop[group[i]->use] == MF_KEEP ? MF_DROP : MF_KEEP;
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
    from = mf_search_random(random) % forward;
    length = 2 + mf_search_random(random) % (forward < 32 ? forward : 32);
    uint8_t value = mf_drop_values[mf_search_random(random) % MF_VALUES];
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
static memfit_status go_across(mf_tradeoff *t, mf_stop from, uint64_t rung, uint64_t work, uint32_t patience,
                               memfit_error *err)
{
    uint64_t end = t->work + work, random = 0x9e3779b97f4a7c15ull * t->path_count;
    memfit_status status = mf_path_from(t, from, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_search_measure(t, err);
    standing now = {mf_search_excess(&t->sequence, rung), t->sequence.time_us, t->sequence.peak};
    uint32_t count = t->gap_count;
    bool any = true;
    while (any && status == MEMFIT_OK && t->work < end)
        status = sweep(t, rung, end, &now, &any, err);
    for (uint32_t idle = 0; idle < patience && count > 2 && status == MEMFIT_OK && t->work < end; idle++) {
        const mf_gap *group[MOST_CHANGES];
        uint8_t to[MOST_CHANGES];
        uint32_t n =
            mf_search_random(&random) % 4 ? pick_some(t, &random, group, to) : pick_stretch(t, &random, group, to);
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

/* ---- between ---------------------------------------------------------------------------------------------- */

/* From a stop towards the next lower one, by cells that are smaller than the step between them. */
static memfit_status fill_step(mf_tradeoff *t, mf_stop from, mf_stop to, uint8_t *refused, uint32_t *mark,
                               uint32_t *stamp, memfit_error *err)
{
    memfit_status status = mf_path_from(t, from, err);
    if (status == MEMFIT_OK)
        status = mf_search_measure(t, err);
    memset(refused, 0, t->flow->use_at[t->flow->cell_count]);
    for (bool moved = true; moved && status == MEMFIT_OK && t->work < t->most_work;) {
        size_t count;
        uint64_t before = t->sequence.peak;
        moved = false;
        status = find_candidates(t, t->sequence.peak_at, refused, mark, stamp, &count, err);
        for (size_t i = 0; i < count && !moved && status == MEMFIT_OK; i++) {
            const mf_drop_candidate *next = (mf_drop_candidate *)t->candidates + i;
            uint32_t use = next->use;
            if (t->flow->cells[next->cell].bytes >= before - to.load)
                continue;
            t->choice.drop[use] = MF_DROP;
            status = mf_search_measure(t, err);
            moved = status == MEMFIT_OK && t->sequence.valid && t->sequence.peak < before &&
                    t->sequence.peak > to.load && t->sequence.time_us < to.time_us;
            if (moved) {
                status = mf_path_add(t, use, MF_DROP, err);
                if (status == MEMFIT_OK)
                    status = mf_stop_add(t, err);
            } else {
                t->choice.drop[use] = MF_KEEP;
                refused[use] = 1;
            }
        }
    }
    return status;
}

/* Large cells go early where they are as cheap by the byte as small ones, and leave wide steps between stops. */
static memfit_status fill_steps(mf_tradeoff *t, memfit_error *err)
{
    size_t count = t->stop_count;
    mf_stop *stops = MF_NEW_ARRAY(&t->arena, mf_stop, count);
    uint8_t *refused = MF_NEW_ARRAY(&t->arena, uint8_t, t->flow->use_at[t->flow->cell_count] + 1);
    uint32_t *mark = MF_NEW_ARRAY(&t->arena, uint32_t, t->flow->graph->op_count), stamp = 0;
    if (!stops || !refused || !mark)
        return mf_search_no_memory(err);
    memcpy(stops, t->stops, count * sizeof *stops);
    memfit_status status = MEMFIT_OK;
    for (size_t i = 0; i + 1 < count && status == MEMFIT_OK && t->work < t->most_work; i++)
        if (stops[i].load - stops[i + 1].load > stops[0].load / 100)
            status = fill_step(t, stops[i], stops[i + 1], refused, mark, &stamp, err);
    return status;
}

/* ---- where the bound is far ------------------------------------------------------------------------------- */

/* Just below a stop: what one moment forces there, and whether it was tried. */
typedef struct near_stop {
    uint64_t load;
    double bound_us;
    bool tried;
} near_stop;

typedef struct far_search {
    near_stop *known;
    uint32_t count, capacity;
    uint64_t price; /* of a bound, in runs */
    uint64_t end;   /* of the work */
} far_search;

/* What is known of the place just below this stop. */
static memfit_status look_below(mf_tradeoff *t, far_search *far, uint64_t load, near_stop **place, memfit_error *err)
{
    *place = NULL;
    for (uint32_t i = 0; i < far->count; i++)
        if (far->known[i].load == load)
            *place = &far->known[i];
    if (*place || far->count == far->capacity || t->work + far->price > far->end)
        return MEMFIT_OK;
    near_stop *new = &far->known[far->count];
    *new = (near_stop){.load = load};
    t->work += far->price;
    memfit_status status = mf_bounds_recompute(t->host, t->flow, load - 1, 1, &new->bound_us, err);
    if (status == MEMFIT_OK) {
        far->count++;
        *place = new;
    }
    return status;
}

/* Between a stop and the next lower one every budget pays the time of the lower. Where is the area between that and the
 * bound largest? */
static memfit_status find_farthest(mf_tradeoff *t, far_search *far, near_stop **farthest, memfit_error *err)
{
    const double keep = t->stops[0].time_us;
    double most = 0;
    memfit_status status = MEMFIT_OK;
    *farthest = NULL;
    for (size_t i = 0; i + 1 < t->stop_count && status == MEMFIT_OK; i++) {
        near_stop *place;
        status = look_below(t, far, t->stops[i].load, &place, err);
        if (status != MEMFIT_OK || !place || place->tried)
            continue;
        double above = t->stops[i + 1].time_us - keep - place->bound_us;
        double area = above / (place->bound_us + keep / 100) * (double)(t->stops[i].load - t->stops[i + 1].load);
        if (above > 0.02 * (t->stops[i + 1].time_us - keep) && area > most) {
            most = area;
            *farthest = place;
        }
    }
    return status;
}

/* Begins with what the bound would keep at the fullest moment, in the place where the bound is farthest. Only where
 * bounds are cheap: their price grows with the square of the graph. */
static memfit_status go_where_far(mf_tradeoff *t, uint64_t work, memfit_error *err)
{
    enum { PLACES = 512, SHARE = 250000 };
    const uint64_t ops = t->flow->order_count;
    far_search far = {.capacity = PLACES, .price = ops * ops / 2, .end = t->work + work};
    if (16 * far.price > work)
        return MEMFIT_OK;
    far.known = MF_NEW_ARRAY(&t->arena, near_stop, PLACES);
    if (!far.known)
        return mf_search_no_memory(err);
    for (near_stop *place;;) {
        mf_stop seed;
        memfit_status status = find_farthest(t, &far, &place, err);
        if (status != MEMFIT_OK || !place || t->work >= far.end)
            return status;
        place->tried = true;
        t->work += far.price;
        status = mf_search_cut(t, place->load - 1, &seed, err);
        uint64_t left = far.end - t->work;
        if (status == MEMFIT_OK)
            status = go_across(t, seed, place->load - 1, left < SHARE ? left : SHARE, 0, err);
        if (status != MEMFIT_OK)
            return status;
    }
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

static memfit_status list_and_cut(mf_tradeoff *t, memfit_error *err)
{
    memfit_status status = list_gaps(t, err);
    return status == MEMFIT_OK ? mf_search_segments(t, err) : status;
}

/* First as low as it goes, some part at a time; then a ladder of rungs from there to everything kept. A fifth of the
 * work is left for the steps between stops; where the bound is far, half as much again is spent. */
static memfit_status climb_ladder(mf_tradeoff *t, memfit_error *err)
{
    const uint64_t most = t->most_work;
    t->most_work = most - most / 5;
    enum { RUNGS = 12 };
    memfit_status status = t->gaps ? MEMFIT_OK : list_and_cut(t, err);
    if (status == MEMFIT_OK)
        status = mf_search_small(t, err);
    static const uint64_t parts[] = {20, 8, 40}; /* another target is another way down */
    uint64_t end = t->work < t->most_work ? t->work + (t->most_work - t->work) / 2 : 0;
    for (uint32_t round = 0, stuck = 0; stuck < 3 && status == MEMFIT_OK && t->work < end; round++) {
        mf_stop lowest = t->stops[t->stop_count - 1];
        status = go_across(t, lowest, lowest.load - lowest.load / parts[round % 3], (end - t->work) / 5,
                           16 * t->gap_count, err);
        stuck = t->stops[t->stop_count - 1].load < lowest.load - lowest.load / 100 ? 0 : stuck + 1;
    }
    uint64_t high = t->stops[0].load, low = t->stops[t->stop_count - 1].load;
    for (uint64_t i = 0; i < RUNGS && status == MEMFIT_OK && t->work < t->most_work; i++) {
        uint64_t rung = low + (high - low) / RUNGS * i;
        size_t s = 0;
        while (s + 1 < t->stop_count && t->stops[s].load > rung)
            s++;
        status = go_across(t, t->stops[s], rung, (t->most_work - t->work) / (RUNGS - i), 16 * t->gap_count, err);
    }
    const uint64_t before = t->work;
    if (status == MEMFIT_OK && !is_small(t))
        status = go_where_far(t, most / 2, err);
    const uint64_t more = t->work - before;
    t->most_work += more;
    for (size_t n = is_small(t) && t->gap_count > 4 ? 2 * t->stop_count : 0;
         n-- > 0 && status == MEMFIT_OK && t->work < t->most_work;) {
        size_t s = n % t->stop_count;
        status = mf_search_wander(t, t->stops[s], t->stops[s].load, 3500, err);
    }
    t->most_work = most + more;
    return status == MEMFIT_OK ? fill_steps(t, err) : status;
}

/* Where the work is spent before one drop after another gets anywhere, segments come first: they reach far down in a
 * few sequences (1,000 small layers: 51 MiB of activations kept are 6 MiB in segments, and 27 one by one). */
memfit_status mf_search_all(mf_tradeoff *t, memfit_error *err)
{
    enum { FEW_SEQUENCES = 1000 };
    bool large = t->most_work / (t->flow->order_count + 1) < FEW_SEQUENCES;
    memfit_status status = large ? begin_kept(t, err) : MEMFIT_OK;
    if (status == MEMFIT_OK && large)
        status = list_and_cut(t, err);
    uint64_t end = large && t->work < t->most_work ? t->work + (t->most_work - t->work) / 2 : t->most_work;
    if (status == MEMFIT_OK)
        status = go_down(t, end, err);
    return status == MEMFIT_OK ? climb_ladder(t, err) : status;
}
