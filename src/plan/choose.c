/*
 * choose.c: which way to run the step.
 *
 *   as asked                        one piece, nothing recomputed
 *   recomputation       bitwise     one piece
 *   pieces              reordered   the largest pieces that fit; fewer pieces with recomputation where that is faster
 *
 * The first class with a plan that fits wins; within it the fastest. But identical bits are not worth any price: where
 * recomputation is dear and pieces are more than a tenth faster, pieces win, or a little more memory would make
 * training slower (seen: a U-Net at 20 MB in pieces, 72 ms; at 21 MB with 48 operations computed again, 90 ms). Under
 * trainable BatchNormalization pieces are other mathematics, so that class is closed unless it is allowed (or the
 * number of pieces was given outright).
 */
#include "base/error.h"
#include "base/text.h"
#include "plan/bounds.h"
#include "plan/fit.h"

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

static memfit_status try_one(mf_fitter *fitter, int64_t batch, int64_t pieces, bool recompute, uint64_t limit,
                             mf_plan **best, memfit_error *err)
{
    mf_way way = {
        .batch = batch, .pieces = pieces, .recompute = recompute, .split_validation = limit != 0, .limit_bytes = limit};
    mf_plan *plan;
    memfit_status status = mf_fitter_try(fitter, &way, &plan, err);
    if (status == MEMFIT_OK)
        keep_better(best, plan);
    return status;
}

/* Does a piece of this size fit by its sum of live bytes, everything kept? */
static memfit_status piece_fits(mf_fitter *fitter, int64_t piece, uint64_t limit, bool *fits, memfit_error *err)
{
    mf_fit_entry *entry;
    memfit_status status = mf_fitter_entry(fitter, MF_MODE_TRAIN, piece, true, &entry, err);
    if (status == MEMFIT_OK)
        *fits = fitter->options.fixed_bytes + entry->variables_end + entry->order->keep.peak <= limit;
    return status;
}

/* The largest piece that fits with everything kept, 0 if none: doubling, then halving the interval. */
static memfit_status largest_piece(mf_fitter *fitter, int64_t most, uint64_t limit, int64_t *piece, memfit_error *err)
{
    bool fits;
    int64_t good = 0, bad = most + 1;
    memfit_status status = MEMFIT_OK;
    for (int64_t n = 1; n <= most && status == MEMFIT_OK; n *= 2) {
        status = piece_fits(fitter, n, limit, &fits, err);
        if (status == MEMFIT_OK && !fits) {
            bad = n;
            break;
        }
        good = n;
    }
    while (status == MEMFIT_OK && bad - good > 1) {
        int64_t middle = good + (bad - good) / 2;
        status = piece_fits(fitter, middle, limit, &fits, err);
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

static memfit_status try_pieces(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **best, memfit_error *err)
{
    bool recompute = fitter->options.recompute == MF_RECOMPUTE_AUTO;
    int64_t piece;
    memfit_status status = largest_piece(fitter, (batch + 1) / 2, limit, &piece, err);
    if (status != MEMFIT_OK)
        return status;
    int64_t kept = piece ? (batch + piece - 1) / piece : batch; /* pieces with everything kept */
    for (int64_t size = piece; size >= 1 && status == MEMFIT_OK; size--) {
        /* packing may need a little more than the sum: then one sample less */
        kept = (batch + size - 1) / size;
        status = try_one(fitter, batch, kept, false, limit, best, err);
        if (status != MEMFIT_OK || (*best && (*best)->fits))
            break;
    }
    int64_t even = even_pieces(batch, kept);
    if (status == MEMFIT_OK && even != kept)
        status = try_one(fitter, batch, even, false, limit, best, err);
    if (!recompute)
        return status;
    /* Fewer pieces compute more again: the first number that fits is seldom the fastest (seen: a U-Net in 4 pieces with
     * 67 operations computed again, where 8 pieces with 3 are a quarter faster). On, as long as it gets faster. */
    bool all = *best && (*best)->fits;
    for (int64_t k = kept > 2 ? (kept + 1) / 2 : 2; k <= kept && status == MEMFIT_OK; k = k + (k + 1) / 2) {
        double before = *best && (*best)->fits ? (*best)->time_us : 0;
        status = try_one(fitter, batch, even_pieces(batch, k), true, limit, best, err);
        if (status == MEMFIT_OK && !all && before > 0 && (*best)->time_us >= before)
            break;
    }
    if (status == MEMFIT_OK && !(*best && (*best)->fits))
        status = try_one(fitter, batch, batch, true, limit, best, err);
    return status;
}

memfit_status mf_fitter_pieces(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    mf_plan *best = NULL;
    memfit_status status = batch > 1 ? try_pieces(fitter, batch, limit, &best, err) : MEMFIT_OK;
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

enum { DEAR_PERCENT = 110 };

/* *best recomputes and fits. Pieces in its place, if it is dear and they are not. */
static memfit_status compare_pieces(mf_fitter *fitter, int64_t batch, uint64_t limit, double kept_us, mf_plan **best,
                                    memfit_error *err)
{
    if ((*best)->time_us * 100 <= kept_us * DEAR_PERCENT)
        return MEMFIT_OK;
    mf_plan *pieces = NULL;
    memfit_status status = mf_fitter_pieces(fitter, batch, limit, &pieces, err);
    if (status != MEMFIT_OK || !pieces)
        return status;
    if (pieces->fits && (*best)->time_us * 100 > pieces->time_us * DEAR_PERCENT) {
        mf_plan_destroy(*best);
        *best = pieces;
    } else {
        mf_plan_destroy(pieces);
    }
    return MEMFIT_OK;
}

memfit_status mf_fitter_best(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    bool recompute = o->recompute == MF_RECOMPUTE_AUTO;
    mf_plan *best = NULL;
    int64_t pieces = o->pieces > 1 ? o->pieces : 1;
    memfit_status status = try_one(fitter, batch, pieces, false, limit, &best, err);
    if (status == MEMFIT_OK && o->only != MF_MODE_TRAIN) {
        *out = best;
        return MEMFIT_OK;
    }
    double kept_us = status == MEMFIT_OK ? best->time_us : 0;
    if (status == MEMFIT_OK && !best->fits && recompute)
        status = try_one(fitter, batch, pieces, true, limit, &best, err);
    bool split = status == MEMFIT_OK && batch > 1 && mf_fitter_may_split(fitter, best->phases[0].graph);
    if (split && !best->fits)
        status = try_pieces(fitter, batch, limit, &best, err);
    else if (split)
        status = compare_pieces(fitter, batch, limit, kept_us, &best, err);
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
    memfit_status status = mf_fitter_entry(fitter, o->only, nearest->phases[0].batch, nearest->pieces > 1, &entry, err);
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
