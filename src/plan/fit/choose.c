/*
 * choose.c: which way to run the step.
 *
 *     as asked                     one piece, nothing recomputed
 *     recomputation    bitwise     one piece
 *     chunks           reordered   of the last layer and its loss, where the logits are a good part of all bytes:
 *                                  as few as fit; with recomputation when none do
 *     pieces           reordered   the largest pieces that fit, or smaller ones where those are faster; fewer
 *                                  pieces with recomputation where that is; with chunks as well where those help
 *
 * The first class with a plan that fits wins; within it the fastest. But identical bits are not worth any price: where
 * recomputation is dear and pieces are more than a tenth faster, pieces win, or a little more memory would make
 * training slower (seen: a U-Net at 20 MB in pieces, 72 ms; at 21 MB with 48 operations computed again, 90 ms). Under
 * trainable BatchNormalization pieces are other mathematics, so that class is closed unless it is allowed (or the
 * number of pieces was given outright).
 */
#include "base/error.h"
#include "base/text.h"
#include "plan/recompute/bounds.h"
#include "plan/fit/fit.h"

/* Keeps the better of two plans: one that fits before one that does not, then the faster. */
static void keep_better(mf_plan **best, mf_plan *plan)
{
    if (!*best || (plan->fits && !(*best)->fits) ||
        (plan->fits == (*best)->fits && plan->fits && plan->time_us < (*best)->time_us) ||
        (!plan->fits && !(*best)->fits && plan->peak_bytes < (*best)->peak_bytes)) {
        mf_plan_destroy(*best);
        *best = plan;
    } else {
        mf_plan_destroy(plan);
    }
}

static memfit_status try_one(mf_fitter *fitter, int64_t batch, int64_t pieces, uint32_t chunks, bool recompute,
                             uint64_t limit, mf_plan **best, memfit_error *err)
{
    mf_way way = {.batch = batch,
                  .pieces = pieces,
                  .chunks = chunks,
                  .recompute = recompute,
                  .split_validation = limit != 0,
                  .limit_bytes = limit};
    mf_plan *plan;
    memfit_status status = mf_fitter_try(fitter, &way, &plan, err);
    if (status == MEMFIT_OK)
        keep_better(best, plan);
    return status;
}

/* ---- chunks of the last layer ----------------------------------------------------------------------------- */

/* A chunk is eight operations in every plan that is tried, about 100 KiB of them, whatever its logits: below
 * LEAST_CHUNK_BYTES it is not worth that (seen: planning took more than the 5 MiB a small network was given). */
enum { LEAST_SHARE = 20, SMALL_SHARE = 16, FEW_CHUNKS = 8, LEAST_CHUNK_BYTES = 256 << 10 };

/* A power of two, as all numbers that are tried. */
static uint32_t worth_chunks(const mf_graph *whole)
{
    uint32_t chunks = 1;
    while (chunks < MF_MOST_CHUNKS && whole->logits_bytes / (2 * chunks) >= LEAST_CHUNK_BYTES)
        chunks *= 2;
    return chunks;
}

uint32_t mf_fitter_most_chunks(const mf_fitter *fitter, const mf_fit_entry *whole)
{
    uint64_t logits = whole->graph->logits_bytes, all = whole->order->keep.peak, rest;
    if (fitter->options.chunks == 1 || !fitter->source->make_chunked || !logits || logits < all / LEAST_SHARE)
        return 1;
    if (fitter->options.chunks > 1)
        return fitter->options.chunks;
    rest = all > logits ? all - logits : 1;
    uint32_t chunks = 4, worth = worth_chunks(whole->graph);
    while (chunks < worth && logits / chunks > rest / SMALL_SHARE)
        chunks *= 2;
    return chunks <= worth ? chunks : 1;
}

/* The fewest chunks that fit with everything kept. Where those are many, or none do, also fewer with recomputation. */
static memfit_status try_chunks(mf_fitter *fitter, int64_t batch, uint32_t most, uint64_t limit, mf_plan **best,
                                memfit_error *err)
{
    mf_fit_entry *whole;
    memfit_status status = mf_fitter_entry(fitter, MF_MODE_TRAIN, batch, false, &whole, err);
    if (status != MEMFIT_OK || most < 2)
        return status;
    const uint32_t given = fitter->options.chunks > 1 ? fitter->options.chunks : 0;
    const uint32_t first = given ? given : 2, last = given ? given : worth_chunks(whole->graph);
    uint32_t found = 0;
    for (uint32_t k = first; k <= last && !found; k *= 2) {
        mf_fit_entry *entry;
        status = mf_fitter_entry_chunked(fitter, MF_MODE_TRAIN, batch, false, k, &entry, err);
        if (status != MEMFIT_OK)
            return status;
        bool fits = fitter->options.fixed_bytes + entry->variables_end + entry->order->keep.peak <= limit;
        if (fits || k == last)
            status = try_one(fitter, batch, 1, k, false, limit, best, err);
        if (status != MEMFIT_OK || entry->graph->chunks < k) /* no more rows */
            break;
        if (*best && (*best)->fits)
            found = k;
    }
    if (fitter->options.recompute == MF_RECOMPUTE_OFF || (found && found <= FEW_CHUNKS))
        return status;
    const uint32_t few = last < FEW_CHUNKS ? last : FEW_CHUNKS, tries[] = {given ? given : few, most, last};
    for (uint32_t i = 0; i < (given ? 1 : 3) && status == MEMFIT_OK; i++) {
        bool fits = *best && (*best)->fits;
        if ((i && tries[i] <= tries[i - 1]) || (i == 2 && fits) || (found && tries[i] >= found))
            continue;
        status = try_one(fitter, batch, 1, tries[i], true, limit, best, err);
    }
    return status;
}

memfit_status mf_fitter_chunks(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    mf_plan *best = NULL;
    mf_fit_entry *whole;
    memfit_status status = mf_fitter_entry(fitter, MF_MODE_TRAIN, batch, false, &whole, err);
    if (status == MEMFIT_OK)
        status = try_chunks(fitter, batch, mf_fitter_most_chunks(fitter, whole), limit, &best, err);
    if (status != MEMFIT_OK)
        mf_plan_destroy(best);
    else
        *out = best;
    return status;
}

/* ---- pieces of the batch ---------------------------------------------------------------------------------- */

/* Does a piece of this size fit by its sum of live bytes, everything kept? */
static memfit_status piece_fits(mf_fitter *fitter, int64_t piece, uint32_t chunks, uint64_t limit, bool *fits,
                                memfit_error *err)
{
    mf_fit_entry *entry;
    memfit_status status = mf_fitter_entry_chunked(fitter, MF_MODE_TRAIN, piece, true, chunks, &entry, err);
    if (status == MEMFIT_OK)
        *fits = fitter->options.fixed_bytes + entry->variables_end + entry->order->keep.peak <= limit;
    return status;
}

/* The largest piece that fits with everything kept, 0 if none: doubling, then halving the interval. */
static memfit_status largest_piece(mf_fitter *fitter, int64_t most, uint32_t chunks, uint64_t limit, int64_t *piece,
                                   memfit_error *err)
{
    bool fits;
    int64_t good = 0, bad = most + 1;
    memfit_status status = MEMFIT_OK;
    for (int64_t n = 1; n <= most && status == MEMFIT_OK; n *= 2) {
        status = piece_fits(fitter, n, chunks, limit, &fits, err);
        if (status == MEMFIT_OK && !fits) {
            bad = n;
            break;
        }
        good = n;
    }
    while (status == MEMFIT_OK && bad - good > 1) {
        int64_t middle = good + (bad - good) / 2;
        status = piece_fits(fitter, middle, chunks, limit, &fits, err);
        if (status == MEMFIT_OK)
            *(fits ? &good : &bad) = middle;
    }
    *piece = good;
    return status;
}

/* The next number of pieces that divides the batch evenly, when it is not much more. */
static int64_t even_pieces(int64_t batch, int64_t pieces)
{
    for (int64_t k = pieces; k <= batch && k <= pieces + pieces / 2 + 1; k++)
        if (batch % k == 0)
            return k;
    return pieces;
}

/* Smaller pieces than needed, as long as they get faster: they stay in the caches. */
static memfit_status try_smaller(mf_fitter *fitter, int64_t batch, int64_t pieces, uint32_t chunks, uint64_t limit,
                                 mf_plan **best, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    for (int64_t k = 2 * pieces; k <= batch && *best && (*best)->fits && status == MEMFIT_OK; k *= 2) {
        double before = (*best)->time_us;
        status = try_one(fitter, batch, even_pieces(batch, k), chunks, false, limit, best, err);
        if (status == MEMFIT_OK && (*best)->time_us >= before)
            break;
    }
    return status;
}

static memfit_status try_pieces(mf_fitter *fitter, int64_t batch, uint32_t chunks, uint64_t limit, mf_plan **best,
                                memfit_error *err)
{
    bool recompute = fitter->options.recompute == MF_RECOMPUTE_AUTO;
    int64_t piece;
    memfit_status status = largest_piece(fitter, (batch + 1) / 2, chunks, limit, &piece, err);
    if (status != MEMFIT_OK)
        return status;
    int64_t kept = piece ? (batch + piece - 1) / piece : batch; /* pieces with everything kept */
    for (int64_t size = piece; size >= 1 && status == MEMFIT_OK; size--) {
        /* packing may need a little more than the sum: then one sample less */
        kept = (batch + size - 1) / size;
        status = try_one(fitter, batch, kept, chunks, false, limit, best, err);
        if (status != MEMFIT_OK || (*best && (*best)->fits))
            break;
    }
    int64_t even = even_pieces(batch, kept);
    if (status == MEMFIT_OK && even != kept)
        status = try_one(fitter, batch, even, chunks, false, limit, best, err);
    if (status == MEMFIT_OK)
        status = try_smaller(fitter, batch, even, chunks, limit, best, err);
    if (!recompute)
        return status;
    /* Fewer pieces compute more again: the first number that fits is seldom the fastest (seen: a U-Net in 4 pieces with
     * 67 operations computed again, where 8 pieces with 3 are a quarter faster). On, as long as it gets faster. */
    bool all = *best && (*best)->fits;
    for (int64_t k = kept > 2 ? (kept + 1) / 2 : 2; k <= kept && status == MEMFIT_OK; k = k + (k + 1) / 2) {
        double before = *best && (*best)->fits ? (*best)->time_us : 0;
        status = try_one(fitter, batch, even_pieces(batch, k), chunks, true, limit, best, err);
        if (status == MEMFIT_OK && !all && before > 0 && (*best)->time_us >= before)
            break;
    }
    if (status == MEMFIT_OK && !(*best && (*best)->fits))
        status = try_one(fitter, batch, batch, chunks, true, limit, best, err);
    return status;
}

memfit_status mf_fitter_pieces(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    mf_plan *best = NULL;
    memfit_status status = batch > 1 ? try_pieces(fitter, batch, 1, limit, &best, err) : MEMFIT_OK;
    if (status != MEMFIT_OK)
        mf_plan_destroy(best);
    else
        *out = best;
    return status;
}

bool mf_fitter_may_split(const mf_fitter *fitter, const mf_graph *graph)
{
    return fitter->options.pieces == 0 && (fitter->options.allow_changed || !graph->uses_batch_norm);
}

/* ---- the choice ------------------------------------------------------------------------------------------- */

enum { DEAR_PERCENT = 110, CHEAP_PERCENT = 102 };

static bool costs_more(const mf_plan *plan, double than_us, int percent)
{
    return plan->time_us * 100 > than_us * percent;
}

/* Ways that sum in another order: chunks of the last layer, pieces, and both where neither is enough. */
static memfit_status try_reordered(mf_fitter *fitter, int64_t batch, uint32_t most, bool split, uint64_t limit,
                                   double kept_us, mf_plan **best, memfit_error *err)
{
    const uint32_t given = fitter->options.chunks > 1 ? fitter->options.chunks : 1;
    const bool pieces_first = split && fitter->options.quick; /* chunks make larger graphs, which take longer to plan */
    memfit_status status = pieces_first ? try_pieces(fitter, batch, given, limit, best, err) : MEMFIT_OK;
    if (status != MEMFIT_OK || (pieces_first && *best && (*best)->fits))
        return status;
    if (most > 1)
        status = try_chunks(fitter, batch, most, limit, best, err);
    if (status != MEMFIT_OK || !split || (*best && (*best)->fits && !costs_more(*best, kept_us, CHEAP_PERCENT)))
        return status;
    if (!pieces_first)
        status = try_pieces(fitter, batch, given, limit, best, err);
    bool good = *best && (*best)->fits && !costs_more(*best, kept_us, DEAR_PERCENT);
    if (status == MEMFIT_OK && most > given && !good)
        status = try_pieces(fitter, batch, most, limit, best, err);
    return status;
}

/* *best recomputes and fits. Chunks or pieces in its place, if it is dear and they are not. */
static memfit_status compare_reordered(mf_fitter *fitter, int64_t batch, uint32_t most, bool split, uint64_t limit,
                                       double kept_us, mf_plan **best, memfit_error *err)
{
    if (!costs_more(*best, kept_us, DEAR_PERCENT))
        return MEMFIT_OK;
    mf_plan *other = NULL;
    memfit_status status = try_reordered(fitter, batch, most, split, limit, kept_us, &other, err);
    if (status == MEMFIT_OK && other && other->fits && costs_more(*best, other->time_us, DEAR_PERCENT)) {
        mf_plan_destroy(*best);
        *best = other;
    } else {
        mf_plan_destroy(other);
    }
    return status;
}

/* Evaluation of a sample that does not fit by itself. */
static memfit_status evaluate_in_chunks(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **best,
                                        memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    bool may = fitter->options.only == MF_MODE_EVALUATE && fitter->options.chunks == 0;
    uint32_t last = may ? worth_chunks((*best)->phases[0].graph) : 0;
    for (uint32_t chunks = 4; chunks <= last && !(*best)->fits && status == MEMFIT_OK; chunks *= 4)
        status = try_one(fitter, batch, 1, chunks, false, limit, best, err);
    return status;
}

memfit_status mf_fitter_best(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    bool recompute = o->recompute == MF_RECOMPUTE_AUTO, train = o->only == MF_MODE_TRAIN;
    mf_plan *best = NULL;
    mf_fit_entry *whole = NULL;
    int64_t pieces = o->pieces > 1 ? o->pieces : 1;
    uint32_t given = o->chunks > 1 ? o->chunks : 1, most = 1;
    memfit_status status = try_one(fitter, batch, pieces, given, false, limit, &best, err);
    if (status == MEMFIT_OK && !train)
        status = evaluate_in_chunks(fitter, batch, limit, &best, err);
    double kept_us = status == MEMFIT_OK ? best->time_us : 0;
    if (status == MEMFIT_OK && train && !best->fits && recompute)
        status = try_one(fitter, batch, pieces, given, true, limit, &best, err);
    if (status == MEMFIT_OK && train)
        status = mf_fitter_entry(fitter, MF_MODE_TRAIN, batch, false, &whole, err);
    if (status == MEMFIT_OK && train) {
        bool split = batch > 1 && mf_fitter_may_split(fitter, best->phases[0].graph);
        most = o->chunks > 1 ? 1 : mf_fitter_most_chunks(fitter, whole); /* given: it was tried above */
        if (pieces > 1 && !best->fits && most > 1)
            status = try_one(fitter, batch, pieces, most, recompute, limit, &best, err);
        else if (pieces == 1 && !best->fits)
            status = try_reordered(fitter, batch, most, split, limit, kept_us, &best, err);
        else if (pieces == 1)
            status = compare_reordered(fitter, batch, most, split, limit, kept_us, &best, err);
    }
    if (status != MEMFIT_OK) {
        mf_plan_destroy(best);
        return status;
    }
    *out = best;
    return MEMFIT_OK;
}

/* ---- the one call ----------------------------------------------------------------------------------------- */

static memfit_status does_not_fit(mf_fitter *fitter, const mf_plan *nearest, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    mf_fit_entry *entry;
    memfit_status status = mf_fitter_entry_chunked(fitter, o->only, nearest->phases[0].batch, nearest->pieces > 1,
                                                   nearest->chunks, &entry, err);
    if (status != MEMFIT_OK)
        return status;
    mf_bounds bounds;
    mf_bounds_make(entry->order->flow, &bounds);
    char need[24], limit[24];
    mf_format_need(nearest->peak_bytes, need, sizeof need);
    memfit_size_format(o->limit_bytes, limit, sizeof limit);
    const mf_op *op = bounds.working_set_op == MF_NONE ? NULL : &entry->graph->ops[bounds.working_set_op];
    status = mf_fail(err, MEMFIT_DOES_NOT_FIT,
                     "batch %lld does not fit: the smallest plan found needs %s, the limit is %s%s%s",
                     (long long)o->batch, need, limit, op ? "; the hungriest operation is in layer " : "",
                     op ? entry->graph->layers[op->layer].name : "");
    if (err) {
        err->requested_bytes = nearest->peak_bytes;
        err->limit_bytes = o->limit_bytes;
    }
    return status;
}

memfit_status mf_plan_make(const memfit_host *host, const mf_graph_source *source, const mf_plan_options *options,
                           const mf_cost_source *cost, mf_plan **out, memfit_error *err)
{
    if (options->batch < 1)
        return mf_fail(err, MEMFIT_INVALID, "batch %lld: must be at least 1", (long long)options->batch);
    mf_fitter fitter;
    mf_plan *plan = NULL;
    mf_fitter_init(&fitter, host, source, options, cost);
    memfit_status status = mf_fitter_best(&fitter, options->batch, options->limit_bytes, &plan, err);
    if (status == MEMFIT_OK && !plan->fits)
        status = does_not_fit(&fitter, plan, err);
    if (status == MEMFIT_OK) {
        mf_fit_entry *whole;
        status = mf_fitter_entry(&fitter, options->only, options->batch, false, &whole, err);
        if (status == MEMFIT_OK)
            plan->unconstrained_time_us = whole->order->keep.time_us + whole->order->keep.once_us;
    }
    if (status == MEMFIT_OK)
        status = mf_plan_check(plan, err);
    if (status == MEMFIT_OK)
        mf_fitter_give(&fitter, plan);
    else
        mf_plan_destroy(plan);
    mf_fitter_free(&fitter);
    if (status == MEMFIT_OK)
        *out = plan;
    return status;
}
