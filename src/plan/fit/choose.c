/*
 * choose.c: which way to run the step.
 *
 *     as asked                     one piece, nothing recomputed: taken whenever it fits
 *     recomputation    bitwise     one piece
 *     chunks           reordered   of the last layer and its loss, where the logits are a good part of all bytes
 *     pieces           reordered   of the batch; with chunks as well
 *
 * First list the ways: which numbers of pieces and chunks are worth a look depends on the model and the batch, never on
 * the limit. Each way has a time with everything kept, and recomputation only adds to it. So fit the ways into the
 * limit, fastest first, and stop where the next one could not be faster even if it kept everything: the result is the
 * fastest plan of all ways that fit. Two promises follow by construction. A plan for more memory is never slower (what
 * fits less memory fits more). And no limit's plan is below the least bound over the list.
 *
 * Between plans of one time, identical bits decide, then the smaller number of pieces. Nothing counts as faster than
 * the step as asked. Under trainable BatchNormalization pieces are other mathematics: they are on the list only if that
 * is allowed, or if the number of pieces was given.
 */
#include "base/error.h"
#include "base/text.h"
#include "plan/fit/fit.h"
#include "plan/fit/fit_inputs.h"
#include "plan/fit/fit_orders.h"
#include "plan/recompute/bounds.h"

#include <stdlib.h>

/* ---- the list of ways ------------------------------------------------------------------------------------- */

typedef struct option {
    int64_t pieces;
    uint32_t chunks, chunks_made;               /* asked for; there are */
    double kept_us;                             /* with everything kept: recomputation only adds to it */
    bool recompute;                             /* worth a search for what to compute again */
    uint64_t taken_bytes;                       /* fixed cost and variables */
    uint64_t kept_bytes;                        /* above those, everything kept */
    uint64_t working_set_bytes, save_set_bytes; /* above those: bounds with and without recomputation */
} option;

enum { MOST_OPTIONS = 96 };

typedef struct choosing {
    mf_fitter *fitter;
    int64_t batch;
    uint64_t limit;
    double asked_us; /* of the step as asked */
    option options[MOST_OPTIONS];
    uint32_t count;
    bool may_skip, skipped; /* ways that the host has no memory to look at */
    mf_plan *best;
} choosing;

/* A host with a limit has no memory to look at a way. What can be done without goes, a plan that does not fit among it;
 * is it worth another try? */
static bool make_room(choosing *c, memfit_status status)
{
    if (status != MEMFIT_NO_HOST_MEMORY || !c->may_skip)
        return false;
    if (c->best && !c->best->fits) {
        mf_plan_destroy(c->best);
        c->best = NULL;
    }
    return mf_fitter_trim(c->fitter);
}

/* Another way may need less memory to be looked at, and any plan that fits is better than none. */
static memfit_status or_skip(choosing *c, memfit_status status)
{
    if (status != MEMFIT_NO_HOST_MEMORY || !c->may_skip)
        return status;
    c->skipped = true;
    return MEMFIT_OK;
}

/* A chunk is eight operations in every plan that is tried, about 100 KiB of them, whatever its logits: below
 * LEAST_CHUNK_BYTES it is not worth that (seen: planning took more than the 5 MiB a small network was given). */
enum { LEAST_SHARE = 20, SMALL_SHARE = 16, LEAST_CHUNK_BYTES = 256 << 10 };

/* A power of two, as all numbers that are tried. */
static uint32_t worth_chunks(uint64_t logits_bytes)
{
    uint32_t chunks = 1;
    while (chunks < MF_MOST_CHUNKS && logits_bytes / (2 * chunks) >= LEAST_CHUNK_BYTES)
        chunks *= 2;
    return chunks;
}

uint32_t mf_fitter_most_chunks(const mf_fitter *fitter, const mf_fit_facts *whole)
{
    uint64_t logits = whole->logits_bytes, all = whole->kept_bytes, rest;
    if (fitter->options.chunks == 1 || !fitter->source->make_chunked || !logits || logits < all / LEAST_SHARE)
        return 1;
    if (fitter->options.chunks > 1)
        return fitter->options.chunks;
    rest = all > logits ? all - logits : 1;
    uint32_t chunks = 4, worth = worth_chunks(logits);
    while (chunks < worth && logits / chunks > rest / SMALL_SHARE)
        chunks *= 2;
    return chunks <= worth ? chunks : 1;
}

bool mf_fitter_may_split(const mf_fitter *fitter, const mf_fit_facts *whole)
{
    return fitter->options.pieces == 0 && (fitter->options.allow_changed || !whole->pieces_change);
}

static memfit_status add_option(choosing *c, int64_t pieces, uint32_t chunks, bool recompute, memfit_error *err)
{
    const mf_plan_options *o = &c->fitter->options;
    int64_t piece = (c->batch + pieces - 1) / pieces;
    const mf_fit_facts *f;
    pieces = (c->batch + piece - 1) / piece;
    if (c->count == MOST_OPTIONS)
        return MEMFIT_OK;
    memfit_status status = mf_fitter_facts(c->fitter, MF_MODE_TRAIN, piece, pieces > 1, chunks, &f, err);
    if (make_room(c, status))
        status = mf_fitter_facts(c->fitter, MF_MODE_TRAIN, piece, pieces > 1, chunks, &f, err);
    if (status != MEMFIT_OK)
        return or_skip(c, status);
    for (uint32_t i = 0; i < c->count; i++)
        if (c->options[i].pieces == pieces && c->options[i].chunks_made == f->chunks_made)
            return MEMFIT_OK;
    c->options[c->count++] = (option){.pieces = pieces,
                                      .chunks = chunks,
                                      .chunks_made = f->chunks_made,
                                      .recompute = recompute && o->recompute == MF_RECOMPUTE_AUTO,
                                      .kept_us = f->time_us * (double)(c->batch / piece) + f->once_us,
                                      .taken_bytes = o->fixed_bytes + (c->batch % piece ? o->rest_bytes : 0) +
                                                     mf_fitter_chunk_cost(c->fitter, f->chunks_made) + f->variables_end,
                                      .kept_bytes = f->kept_bytes,
                                      .working_set_bytes = f->working_set_bytes,
                                      .save_set_bytes = f->save_set_bytes};
    return MEMFIT_OK;
}

/* One number of pieces: whole, or in the chunks that were asked for or are worth it. A graph in other chunks is another
 * graph, with a search of its own: only a few numbers of them are worth one. */
static memfit_status add_chunked(choosing *c, int64_t pieces, uint32_t most, uint32_t worth, memfit_error *err)
{
    enum { FEW_CHUNKS = 8 };
    const uint32_t given = c->fitter->options.chunks;
    if (given > 1)
        return add_option(c, pieces, given, true, err);
    memfit_status status = add_option(c, pieces, 1, true, err);
    if (most < 2)
        return status;
    for (uint32_t k = 2; k <= worth && status == MEMFIT_OK; k *= 2)
        if (k == most || !c->fitter->options.quick)
            status = add_option(c, pieces, k, k == FEW_CHUNKS || k == most || k == worth, err);
    return status;
}

/* So many pieces: whole, or in chunks that make the logits small. */
static memfit_status add_of_pieces(choosing *c, int64_t pieces, uint32_t most, memfit_error *err)
{
    const uint32_t given = c->fitter->options.chunks;
    memfit_status status = given > 1 ? MEMFIT_OK : add_option(c, pieces, 1, true, err);
    return status == MEMFIT_OK && most > 1 ? add_option(c, pieces, most, true, err) : status;
}

/* The next number of pieces that divides the batch evenly, when it is not much more. */
static int64_t even_pieces(int64_t batch, int64_t pieces)
{
    for (int64_t k = pieces; k <= batch && k <= pieces + pieces / 2 + 1; k++)
        if (batch % k == 0)
            return k;
    return pieces;
}

/* Numbers of pieces half an octave apart: 2, 3, 4, 6, 8, ..., and the next ones that divide the batch. */
static memfit_status add_pieces(choosing *c, uint32_t most, memfit_error *err)
{
    const bool quick = c->fitter->options.quick;
    memfit_status status = MEMFIT_OK;
    for (int64_t k = 2, step = 1; k < c->batch && status == MEMFIT_OK; k += step) {
        status = add_of_pieces(c, even_pieces(c->batch, k), most, err);
        if (status == MEMFIT_OK && !quick)
            status = add_of_pieces(c, k, most, err);
        step = quick ? k : (k & (k - 1)) == 0 ? k / 2 : k / 3; /* 2, 3, 4, 6, 8, 12 */
    }
    return status == MEMFIT_OK && c->batch > 1 ? add_of_pieces(c, c->batch, most, err) : status;
}

static int by_time(const void *a, const void *b)
{
    const option *x = a, *y = b;
    if (x->kept_us != y->kept_us)
        return x->kept_us < y->kept_us ? -1 : 1;
    if (x->pieces != y->pieces)
        return x->pieces < y->pieces ? -1 : 1;
    return x->chunks < y->chunks ? -1 : x->chunks > y->chunks;
}

enum { CHUNKS = 1, PIECES = 2 }; /* which ways to list: the whole batch, in chunks or not; pieces of it */

static memfit_status list_options(choosing *c, int which, memfit_error *err)
{
    const mf_plan_options *o = &c->fitter->options;
    const mf_fit_facts *whole;
    memfit_status status = mf_fitter_facts(c->fitter, MF_MODE_TRAIN, c->batch, false, 1, &whole, err);
    if (status != MEMFIT_OK)
        return status;
    uint32_t most = mf_fitter_most_chunks(c->fitter, whole);
    uint32_t worth = o->chunks > 1 || most < 2 ? most : worth_chunks(whole->logits_bytes);
    if (o->pieces > 1)
        status = add_of_pieces(c, o->pieces < c->batch ? o->pieces : c->batch, most, err);
    else if (which & CHUNKS)
        status = add_chunked(c, 1, most, worth, err);
    if (status == MEMFIT_OK && which & PIECES && mf_fitter_may_split(c->fitter, whole))
        status = add_pieces(c, which & CHUNKS || o->chunks > 1 ? most : 1, err);
    qsort(c->options, c->count, sizeof *c->options, by_time);
    return status;
}

memfit_status mf_fitter_bound(mf_fitter *fitter, int64_t batch, uint64_t *bytes, memfit_error *err)
{
    choosing c = {.fitter = fitter, .batch = batch};
    memfit_status status = list_options(&c, CHUNKS | PIECES, err);
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < c.count; i++) {
        const option *o = &c.options[i];
        bool saved = !o->recompute && o->save_set_bytes > o->working_set_bytes;
        uint64_t bound = o->taken_bytes + (saved ? o->save_set_bytes : o->working_set_bytes);
        least = bound < least ? bound : least;
    }
    if (status == MEMFIT_OK)
        *bytes = least;
    return status;
}

/* ---- the choice ------------------------------------------------------------------------------------------- */

static bool is_better(const choosing *c, const mf_plan *a, const mf_plan *b)
{
    if (a->fits != b->fits)
        return a->fits;
    if (!a->fits)
        return a->peak_bytes < b->peak_bytes;
    double x = a->time_us > c->asked_us ? a->time_us : c->asked_us;
    double y = b->time_us > c->asked_us ? b->time_us : c->asked_us;
    if (x != y)
        return x < y;
    return a->numerics != b->numerics ? a->numerics < b->numerics : a->pieces < b->pieces;
}

static memfit_status try_way(choosing *c, int64_t pieces, uint32_t chunks, bool recompute, memfit_error *err)
{
    mf_way way = {.batch = c->batch,
                  .pieces = pieces,
                  .chunks = chunks,
                  .recompute = recompute,
                  .split_validation = c->limit != 0,
                  .limit_bytes = c->limit};
    mf_plan *plan;
    memfit_status status = mf_fitter_try(c->fitter, &way, &plan, err);
    if (status != MEMFIT_OK)
        return status;
    if (!c->best || is_better(c, plan, c->best)) {
        mf_plan_destroy(c->best);
        c->best = plan;
    } else {
        mf_plan_destroy(plan);
    }
    return MEMFIT_OK;
}

/* The least sum of live bytes this way can have; where even the hungriest operation is too much, that. */
static memfit_status least_bytes(choosing *c, const option *o, uint64_t *bytes, memfit_error *err)
{
    uint64_t load = o->kept_bytes;
    mf_fit_entry *entry;
    memfit_status status = MEMFIT_OK;
    if (o->recompute && o->taken_bytes + o->working_set_bytes > c->limit)
        load = o->working_set_bytes;
    else if (o->recompute && o->taken_bytes + load > c->limit) {
        status = mf_fitter_entry_chunked(c->fitter, MF_MODE_TRAIN, (c->batch + o->pieces - 1) / o->pieces,
                                         o->pieces > 1, o->chunks, &entry, err);
        if (status == MEMFIT_OK)
            status = mf_fit_orders_lowest(c->fitter, entry, false, &load, err);
    }
    *bytes = o->taken_bytes + load;
    return status;
}

/* One of the listed ways: a plan of it, if that can fit; else the least it takes. */
static memfit_status look_at(choosing *c, const option *o, uint64_t *bytes, memfit_error *err)
{
    memfit_status status = least_bytes(c, o, bytes, err);
    return status == MEMFIT_OK && *bytes <= c->limit ? try_way(c, o->pieces, o->chunks, o->recompute, err) : status;
}

/* The fastest of the listed ways that fits; the smallest plan found when none does. */
static memfit_status choose(choosing *c, memfit_error *err)
{
    const option *smallest = NULL, *finest = NULL;
    uint64_t smallest_bytes = UINT64_MAX;
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; i < c->count && status == MEMFIT_OK; i++) {
        const option *o = &c->options[i];
        finest = !finest || o->pieces > finest->pieces ? o : finest;
        double soonest = o->kept_us > c->asked_us ? o->kept_us : c->asked_us;
        if (c->best && c->best->fits &&
            (soonest > c->best->time_us || (soonest == c->best->time_us && c->best->numerics == MF_BITWISE)))
            break;
        uint64_t bytes = 0;
        status = look_at(c, o, &bytes, err);
        if (make_room(c, status))
            status = look_at(c, o, &bytes, err);
        if (status == MEMFIT_OK && bytes > c->limit && bytes < smallest_bytes) {
            smallest = o;
            smallest_bytes = bytes;
        }
        /* The search for what to compute again takes most. */
        if (status == MEMFIT_NO_HOST_MEMORY && c->may_skip && o->recompute &&
            o->taken_bytes + o->kept_bytes <= c->limit)
            status = try_way(c, o->pieces, o->chunks, false, err);
        status = or_skip(c, status);
    }
    const bool found = c->best && c->best->fits;
    if (status != MEMFIT_OK || found || c->skipped)
        return status == MEMFIT_OK && !found ? mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan") : status;
    if (smallest && (!c->best || smallest_bytes < c->best->peak_bytes))
        status = try_way(c, smallest->pieces, smallest->chunks, smallest->recompute, err);
    if (status == MEMFIT_OK && finest && finest != smallest && !(c->best && c->best->fits))
        status = try_way(c, finest->pieces, finest->chunks, finest->recompute, err);
    return status;
}

/* Evaluation of a sample that does not fit by itself. */
static memfit_status evaluate_in_chunks(choosing *c, memfit_error *err)
{
    const mf_plan_options *o = &c->fitter->options;
    memfit_status status = MEMFIT_OK;
    bool may = o->only == MF_MODE_EVALUATE && o->chunks == 0;
    uint32_t last = may ? worth_chunks(c->best->phases[0].graph->logits_bytes) : 0;
    for (uint32_t chunks = 4; chunks <= last && !c->best->fits && status == MEMFIT_OK; chunks *= 4)
        status = try_way(c, 1, chunks, false, err);
    return status;
}

static memfit_status hand_over(choosing *c, memfit_status status, mf_plan **out)
{
    if (status == MEMFIT_OK)
        *out = c->best;
    else
        mf_plan_destroy(c->best);
    return status;
}

/* The step as asked, and what it takes: known from its graph where there is no room to pack it, and where it cannot fit. */
static memfit_status try_as_asked(choosing *c, memfit_error *err)
{
    const mf_plan_options *o = &c->fitter->options;
    const mf_fit_facts *whole;
    const int64_t pieces = o->pieces > 1 ? o->pieces : 1;
    const uint32_t chunks = o->chunks > 1 ? o->chunks : 1;
    if (c->limit && o->only == MF_MODE_TRAIN && pieces == 1 && chunks == 1 &&
        mf_fitter_facts(c->fitter, MF_MODE_TRAIN, c->batch, false, 1, &whole, err) == MEMFIT_OK &&
        o->fixed_bytes + whole->variables_end + whole->kept_bytes > c->limit) {
        c->asked_us = whole->time_us + whole->once_us;
        return MEMFIT_OK;
    }
    memfit_status status = try_way(c, pieces, chunks, false, err);
    if (make_room(c, status))
        status = try_way(c, pieces, chunks, false, err);
    if (status == MEMFIT_OK) {
        c->asked_us = c->best->time_us;
        return MEMFIT_OK;
    }
    if (!c->may_skip || mf_fitter_facts(c->fitter, MF_MODE_TRAIN, c->batch, false, 1, &whole, err) != MEMFIT_OK)
        return status;
    c->asked_us = whole->time_us + whole->once_us;
    return or_skip(c, status);
}

memfit_status mf_fitter_best(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    const bool trains = fitter->options.only == MF_MODE_TRAIN;
    choosing c = {
        .fitter = fitter, .batch = batch, .limit = limit, .may_skip = trains && limit && fitter->options.pass_over};
    memfit_status status = try_as_asked(&c, err);
    if (status == MEMFIT_OK && !trains)
        return hand_over(&c, evaluate_in_chunks(&c, err), out);
    if (status != MEMFIT_OK || (c.best && c.best->fits))
        return hand_over(&c, status, out);
    status = list_options(&c, CHUNKS | PIECES, err);
    if (status == MEMFIT_OK)
        status = choose(&c, err);
    return hand_over(&c, status, out);
}

memfit_status mf_fitter_chunks(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    choosing c = {.fitter = fitter, .batch = batch, .limit = limit};
    memfit_status status = list_options(&c, CHUNKS, err);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c.count; i++)
        if (c.options[i].chunks_made > 1)
            c.options[kept++] = c.options[i];
    c.count = kept;
    if (status == MEMFIT_OK)
        status = choose(&c, err);
    return hand_over(&c, status, out);
}

memfit_status mf_fitter_pieces(mf_fitter *fitter, int64_t batch, uint64_t limit, mf_plan **out, memfit_error *err)
{
    choosing c = {.fitter = fitter, .batch = batch, .limit = limit};
    memfit_status status = list_options(&c, PIECES, err);
    if (status == MEMFIT_OK)
        status = choose(&c, err);
    return hand_over(&c, status, out);
}

/* ---- the one call ----------------------------------------------------------------------------------------- */

/* What would be enough: tried, from the smallest plan found up to the step as asked. */
static memfit_status find_need(mf_fitter *fitter, uint64_t smallest, uint64_t *need, memfit_error *err)
{
    enum { TRIES = 4 };
    mf_plan *plan = NULL;
    memfit_status status = MEMFIT_OK;
    *need = smallest;
    for (int i = 0; i <= TRIES && status == MEMFIT_OK; i++) {
        status = mf_fitter_best(fitter, fitter->options.batch, i < TRIES ? *need : 0, &plan, err);
        if (status != MEMFIT_OK)
            break;
        bool fits = plan->fits;
        uint64_t more = *need + *need / 32;
        if (i == TRIES || (!fits && plan->peak_bytes > more))
            *need = plan->peak_bytes;
        else if (!fits)
            *need = more;
        mf_plan_destroy(plan);
        if (fits)
            break;
    }
    return status;
}

static memfit_status does_not_fit(mf_fitter *fitter, const mf_plan *nearest, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    uint64_t enough;
    mf_fit_entry *entry;
    memfit_status status = mf_fitter_entry_chunked(fitter, o->only, nearest->phases[0].batch, nearest->pieces > 1,
                                                   nearest->chunks, &entry, err);
    if (status != MEMFIT_OK)
        return status;
    mf_bounds bounds;
    mf_bounds_make(entry->order->flow, &bounds);
    const mf_op *op = bounds.working_set_op == MF_NONE ? NULL : &entry->graph->ops[bounds.working_set_op];
    char need[24], limit[24], layer[96] = "";
    if (op)
        snprintf(layer, sizeof layer, "; the hungriest operation is in layer %.60s",
                 entry->graph->layers[op->layer].name);
    status = find_need(fitter, nearest->peak_bytes, &enough, err);
    if (status != MEMFIT_OK)
        return status;
    mf_format_need(enough, need, sizeof need);
    memfit_size_format(o->limit_bytes, limit, sizeof limit);
    status = mf_fail(err, MEMFIT_DOES_NOT_FIT,
                     "batch %lld does not fit: the smallest plan found needs %s, the limit is %s%s",
                     (long long)o->batch, need, limit, layer);
    if (err) {
        err->requested_bytes = enough;
        err->limit_bytes = o->limit_bytes;
    }
    return status;
}

static memfit_status make_plan(const memfit_host *host, const mf_graph_source *source, const mf_plan_options *options,
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
        const mf_fit_facts *whole;
        status = mf_fitter_facts(&fitter, options->only, options->batch, false, 1, &whole, err);
        if (status == MEMFIT_OK)
            plan->unconstrained_time_us = whole->time_us + whole->once_us;
    }
    if (status == MEMFIT_OK)
        mf_fitter_give(&fitter, plan);
    else
        mf_plan_destroy(plan);
    mf_fitter_free(&fitter); /* before the check, which needs memory too */
    if (status != MEMFIT_OK)
        return status;
    status = mf_plan_check(plan, err);
    if (status != MEMFIT_OK)
        mf_plan_destroy(plan);
    if (status == MEMFIT_OK)
        *out = plan;
    return status;
}

typedef struct making {
    const memfit_host *host;
    const mf_graph_source *source;
    const mf_plan_options *options;
    const mf_cost_source *cost;
} making;

static memfit_status make_within(void *ctx, uint64_t limit, mf_plan **plan, memfit_error *err)
{
    const making *m = ctx;
    mf_plan_options options = *m->options;
    options.limit_bytes = limit;
    return make_plan(m->host, m->source, &options, m->cost, plan, err);
}

memfit_status mf_plan_make(const memfit_host *host, const mf_graph_source *source, const mf_plan_options *options,
                           const mf_cost_source *cost, mf_plan **out, memfit_error *err)
{
    making m = {host, source, options, cost};
    memfit_error failed; /* what is there fits: a better one that cannot be made is no failure */
    memfit_status status = make_plan(host, source, options, cost, out, err);
    if (status == MEMFIT_OK)
        mf_plan_leave_room(options, make_within, &m, out, &failed);
    return status;
}
