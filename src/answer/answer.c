/*
 * answer.c: one question, one answer. Order of work:
 *
 *   as asked  ->  the plan returned  ->  who holds the bytes at its peak  ->  bounds  ->  largest batch  -> suggestions
 *
 * The breakdown is taken at the run with the largest sum of live bytes in the phase that needs the largest arena. What
 * the arena has beyond that sum (alignment, and the gap packing left) is `padding`, so the parts sum to the peak.
 */
#include "answer/answer.h"

#include "base/error.h"
#include "base/os.h"
#include "plan/fit/fit_inputs.h"
#include "plan/fit/fit_orders.h"
#include "answer/plan_picture.h"
#include "answer/suggest.h"
#include "train/precision.h"

#include <stdlib.h>
#include <string.h>

/* ---- who holds the bytes ---------------------------------------------------------------------------------- */

static memfit_kind shown_kind(memfit_kind kind)
{
    return kind == MEMFIT_KIND_OTHER ? MEMFIT_KIND_PARAMETERS : kind; /* metric state, counters: a few bytes */
}

static bool live_at(const mf_placed *p, uint32_t step)
{
    return p->first <= step && step <= p->last && !(p->handed_on && p->last == step);
}

static const char *phase_word(uint8_t phase)
{
    static const char *const words[] = {"forward", "loss", "backward", "update"};
    return phase < 4 ? words[phase] : "?";
}

/* Adds up by kind, and by (layer, kind) into `sums`. */
static void add_bytes(mf_answer *answer, uint64_t *sums, uint32_t layer, memfit_kind kind, uint64_t bytes)
{
    answer->breakdown[shown_kind(kind)] += bytes;
    sums[layer * MEMFIT_KIND_COUNT + kind] += bytes;
}

static void find_owners(mf_answer *answer, const mf_graph *graph, uint64_t *sums)
{
    for (answer->owner_count = 0; answer->owner_count < MF_OWNERS;) {
        size_t best = 0;
        for (size_t i = 0; i < (size_t)graph->layer_count * MEMFIT_KIND_COUNT; i++)
            if (sums[i] > sums[best])
                best = i;
        if (!sums[best])
            break;
        const mf_graph_layer *layer = &graph->layers[best / MEMFIT_KIND_COUNT];
        answer->owners[answer->owner_count++] =
            (mf_owner){layer->name, layer->class_name, (memfit_kind)(best % MEMFIT_KIND_COUNT), sums[best]};
        sums[best] = 0;
    }
}

static memfit_status explain_peak(mf_answer *answer, memfit_error *err)
{
    const mf_plan *plan = answer->plan;
    uint32_t top = 0;
    for (uint32_t p = 1; p < plan->phase_count; p++)
        if (plan->phases[p].bytes > plan->phases[top].bytes)
            top = p;
    answer->peak_phase = top;
    const mf_phase *phase = &plan->phases[top];
    const mf_graph *graph = phase->graph, *names = plan->phases[0].graph;
    uint64_t *sums = MF_NEW_ARRAY(&answer->arena, uint64_t,
                                  (size_t)(graph->layer_count + names->layer_count + 1) * MEMFIT_KIND_COUNT);
    if (!sums)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to explain the plan");
    uint64_t total = 0;
    for (uint32_t i = 0; i < phase->placed_count; i++) {
        const mf_placed *p = &phase->placed[i];
        if (!live_at(p, phase->peak_step))
            continue;
        add_bytes(answer, sums, p->layer < graph->layer_count ? p->layer : 0, p->kind, p->bytes);
        total += p->bytes;
    }
    for (uint32_t v = 0; v < plan->variable_count; v++) { /* layers are numbered alike in all graphs of a model */
        uint32_t layer = names->variables[v].layer < graph->layer_count ? names->variables[v].layer : 0;
        add_bytes(answer, sums, layer, plan->variable_kinds[v], plan->variable_bytes[v]);
        total += plan->variable_bytes[v];
        answer->variable_bytes += plan->variable_bytes[v];
    }
    answer->breakdown[MEMFIT_KIND_PADDING] += plan->arena_bytes - total;
    answer->breakdown[MEMFIT_KIND_FIXED] = plan->fixed_bytes;
    find_owners(answer, graph, sums);
    const mf_op *op = phase->step_count ? &graph->ops[phase->steps[phase->peak_step].op] : NULL;
    if (op)
        snprintf(answer->peak_at, sizeof answer->peak_at, "%s of layer %s (%s%s, %s)", mf_kind_name(op->kind),
                 graph->layers[op->layer].name, phase_word(op->phase),
                 phase->steps[phase->peak_step].recomputed ? ", recomputed" : "", mf_phase_name(phase->role));
    return MEMFIT_OK;
}

static memfit_status list_layers(mf_answer *answer, memfit_error *err)
{
    const mf_plan *plan = answer->plan;
    const mf_phase *phase = &plan->phases[0];
    const mf_graph *graph = phase->graph;
    uint32_t backward = 0;
    while (backward < phase->step_count && graph->ops[phase->steps[backward].op].phase != MF_BACKWARD)
        backward++;
    answer->layers = MF_NEW_ARRAY(&answer->arena, mf_layer_row, graph->layer_count + 1);
    if (!answer->layers)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the list of layers");
    answer->layer_count = graph->layer_count;
    for (uint32_t i = 0; i < graph->layer_count; i++)
        answer->layers[i] = (mf_layer_row){.name = mf_arena_strdup(&answer->arena, graph->layers[i].name),
                                           .class_name = mf_arena_strdup(&answer->arena, graph->layers[i].class_name),
                                           .output_shape = graph->layers[i].output_shape,
                                           .parameter_count = graph->layers[i].parameter_count};
    for (uint32_t v = 0; v < graph->variable_count; v++)
        if (graph->variables[v].role == MF_VAR_PARAMETER || graph->variables[v].role == MF_VAR_STATISTIC) {
            answer->layers[graph->variables[v].layer].parameter_bytes += plan->variable_bytes[v];
            answer->parameter_count += mf_shape_count(&graph->variables[v].shape);
        }
    for (uint32_t i = 0; i < phase->placed_count && backward < phase->step_count; i++) {
        const mf_placed *p = &phase->placed[i];
        if (p->first < backward && p->last >= backward && p->storage != MF_NONE && p->layer < answer->layer_count)
            answer->layers[p->layer].saved_bytes += p->bytes;
    }
    return MEMFIT_OK;
}

/* Every assumption the plan rests on, from the graph that was planned. */
static memfit_status list_assumed(mf_answer *answer, memfit_error *err)
{
    const mf_graph *graph = answer->plan->phases[0].graph;
    uint32_t count = 0;
    for (uint32_t i = 0; i < graph->op_count; i++)
        count += graph->ops[i].kind == MF_OP_ASSUMED && graph->ops[i].phase == MF_FORWARD;
    answer->assumed = MF_NEW_ARRAY(&answer->arena, mf_assumed_layer, count + 1);
    if (!answer->assumed)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the list of assumptions");
    for (uint32_t i = 0; i < graph->op_count; i++) {
        const mf_op *op = &graph->ops[i];
        if (op->kind != MF_OP_ASSUMED || op->phase != MF_FORWARD)
            continue;
        const mf_layer_row *row = &answer->layers[op->layer];
        answer->assumed[answer->assumed_count++] = (mf_assumed_layer){.name = row->name,
                                                                      .class_name = row->class_name,
                                                                      .output_shape = graph->tensors[op->out[0]].shape,
                                                                      .bytes = op->attr.assumed.bytes,
                                                                      .parameter_bytes = row->parameter_bytes};
    }
    return MEMFIT_OK;
}

/* ---- bounds ----------------------------------------------------------------------------------------------- */

static memfit_status add_bounds(mf_answer *answer, mf_fitter *fitter, memfit_error *err)
{
    const mf_plan *plan = answer->plan;
    const mf_plan_options *o = &fitter->options;
    mf_fit_entry *entry;
    memfit_status status = mf_fitter_entry_chunked(fitter, MF_MODE_TRAIN, plan->phases[0].batch, plan->pieces > 1,
                                                   plan->chunks, &entry, err);
    if (status != MEMFIT_OK)
        return status;
    mf_bounds bounds;
    mf_bounds_make(entry->order->flow, &bounds);
    uint64_t taken = plan->fixed_bytes + plan->variables_end, load = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        if (plan->phases[p].load_bytes > load)
            load = plan->phases[p].load_bytes;
    answer->packing_bound_bytes = taken + load;
    answer->save_set_bound_bytes = taken + bounds.save_set_bytes;
    answer->recompute_bound = 1;
    if (o->limit_bytes > taken) {
        double extra;
        status = mf_fit_orders_bound(fitter, entry, o->limit_bytes - taken, 20000, &extra, err);
        if (status == MEMFIT_OK && bounds.keep_us > 0)
            answer->recompute_bound = 1 + extra / bounds.keep_us;
    }
    return status == MEMFIT_OK ? mf_fitter_bound(fitter, o->batch, &answer->lower_bound_bytes, err) : status;
}

/* What a piece of this size needs at the least: parts of the last layer counted as small as they get. */
static memfit_status bound_piece(mf_fitter *fitter, int64_t piece, mf_fit_entry **entry, mf_bounds *bounds,
                                 uint64_t *least, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    const mf_fit_facts *facts;
    memfit_status status = mf_fitter_facts(fitter, MF_MODE_TRAIN, piece, piece < o->batch, 1, &facts, err);
    if (status == MEMFIT_OK && mf_fitter_most_chunks(fitter, facts) < 2)
        status = mf_fitter_entry(fitter, MF_MODE_TRAIN, piece, piece < o->batch, entry, err);
    else if (status == MEMFIT_OK)
        status = mf_fitter_entry_chunked(fitter, MF_MODE_TRAIN, piece, piece < o->batch,
                                         o->chunks ? o->chunks : MF_MOST_CHUNKS, entry, err);
    if (status != MEMFIT_OK)
        return status;
    mf_bounds_make((*entry)->order->flow, bounds);
    bool saved = o->recompute == MF_RECOMPUTE_OFF && bounds->save_set_bytes > bounds->working_set_bytes;
    *least = (*entry)->variables_end + (saved ? bounds->save_set_bytes : bounds->working_set_bytes);
    return MEMFIT_OK;
}

/* Nothing fits: why not? The bound at the smallest piece the options allow, or at the whole batch, which needs no
 * accumulators, where that is lower. */
static memfit_status find_obstacle(mf_answer *answer, mf_fitter *fitter, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    const mf_fit_facts *facts;
    memfit_status status = mf_fitter_facts(fitter, MF_MODE_TRAIN, o->batch, false, 1, &facts, err);
    if (status != MEMFIT_OK)
        return status;
    bool split = mf_fitter_may_split(fitter, facts);
    int64_t piece = split ? 1 : o->pieces > 1 ? (o->batch + o->pieces - 1) / o->pieces : o->batch;
    mf_fit_entry *entry;
    mf_bounds bounds, whole_bounds;
    uint64_t least, whole_least = UINT64_MAX;
    mf_fit_entry *whole;
    status = bound_piece(fitter, piece, &entry, &bounds, &least, err);
    if (status == MEMFIT_OK && split && piece < o->batch)
        status = bound_piece(fitter, o->batch, &whole, &whole_bounds, &whole_least, err);
    if (status != MEMFIT_OK)
        return status;
    if (whole_least < least) {
        piece = o->batch;
        entry = whole;
        bounds = whole_bounds;
    }
    bool saved = o->recompute == MF_RECOMPUTE_OFF && bounds.save_set_bytes > bounds.working_set_bytes;
    uint64_t above = saved ? bounds.save_set_bytes : bounds.working_set_bytes;
    uint64_t taken = o->fixed_bytes + entry->variables_end;
    answer->least_bytes = taken + above;
    char a[24], b[24], c[24], limit[24];
    memfit_size_format(o->limit_bytes, limit, sizeof limit);
    memfit_size_format(taken, a, sizeof a);
    memfit_size_format(above, b, sizeof b);
    memfit_size_format(answer->least_bytes, c, sizeof c);
    const mf_op *op = bounds.working_set_op == MF_NONE ? NULL : &entry->graph->ops[bounds.working_set_op];
    const char *samples = piece == 1 ? "one sample" : piece == o->batch ? "the whole batch" : "a micro-batch";
    if (o->fixed_bytes > o->limit_bytes)
        snprintf(answer->obstacle, sizeof answer->obstacle,
                 "the fixed cost of the device alone is more than the limit of %s", limit);
    else if (taken > o->limit_bytes)
        snprintf(answer->obstacle, sizeof answer->obstacle,
                 "what must be there at all times (parameters, optimizer state%s, fixed cost) is %s; the limit is %s",
                 piece < o->batch ? ", gradient accumulators" : "", a, limit);
    else if (answer->least_bytes > o->limit_bytes && !saved && op)
        snprintf(answer->obstacle, sizeof answer->obstacle,
                 "%s of layer %s alone needs %s for %s, beside %s that are there at all times: %s; the limit is %s",
                 mf_kind_name(op->kind), entry->graph->layers[op->layer].name, b, samples, a, c, limit);
    else if (answer->least_bytes > o->limit_bytes)
        snprintf(answer->obstacle, sizeof answer->obstacle,
                 "without recomputation, backward needs %s kept for %s, beside %s that are there at all times: %s; the "
                 "limit is %s",
                 b, samples, a, c, limit);
    else
        snprintf(answer->obstacle, sizeof answer->obstacle,
                 "no plan was found; the bound for %s is %s, which does not rule one out", samples, c);
    return MEMFIT_OK;
}

/* ---- the curve -------------------------------------------------------------------------------------------- */

/* Budgets from the least that was reached to what was asked, evenly. Lower ones first: a plan that fits less also fits
 * more, so a larger budget takes the better of the two. */
static memfit_status make_curve(mf_answer *answer, mf_fitter *fitter, uint32_t points, double whole_us,
                                memfit_error *err)
{
    const mf_fit_facts *facts;
    int64_t batch = fitter->options.batch;
    memfit_status status = mf_fitter_facts(fitter, MF_MODE_TRAIN, batch, false, 1, &facts, err);
    mf_way least = {.batch = batch, .pieces = 1, .recompute = true, .train_only = true, .limit_bytes = 1};
    mf_plan *plan = NULL;
    if (status == MEMFIT_OK && fitter->options.recompute == MF_RECOMPUTE_AUTO)
        status = mf_fitter_try(fitter, &least, &plan, err);
    if (status != MEMFIT_OK)
        return status;
    uint64_t high = answer->as_asked_peak_bytes, low = plan ? plan->peak_bytes : high / 4;
    mf_plan_destroy(plan);
    if (mf_fitter_may_split(fitter, facts) && low > high / 4)
        low = high / 4;
    answer->curve = MF_NEW_ARRAY(&answer->arena, mf_curve_point, points + 1);
    if (!answer->curve)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the curve");
    for (uint32_t i = 0; i < points && status == MEMFIT_OK; i++) {
        mf_curve_point *point = &answer->curve[i];
        uint64_t budget = points < 2 ? high : low + (high - low) / (points - 1) * i;
        if (i + 1 == points)
            budget = high;
        status = mf_fitter_best(fitter, batch, budget, &plan, err);
        if (status != MEMFIT_OK)
            break;
        *point = (mf_curve_point){budget,
                                  plan->peak_bytes,
                                  whole_us > 0 ? plan->time_us / whole_us : 1,
                                  plan->pieces,
                                  plan->recomputed_ops,
                                  plan->chunks,
                                  plan->numerics,
                                  plan->fits};
        mf_plan_destroy(plan);
        if (i && point[-1].fits && (!point->fits || point[-1].slowdown < point->slowdown)) {
            uint64_t asked = point->budget_bytes;
            *point = point[-1];
            point->budget_bytes = asked;
        }
        answer->curve_count++;
    }
    return status;
}

/* ---- the whole -------------------------------------------------------------------------------------------- */

static memfit_status best_within(void *ctx, uint64_t limit, mf_plan **plan, memfit_error *err)
{
    mf_fitter *fitter = ctx;
    return mf_fitter_best(fitter, fitter->options.batch, limit, plan, err);
}

static memfit_status find_plan(mf_answer *answer, mf_fitter *fitter, memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    mf_way way = {.batch = o->batch, .pieces = 1, .limit_bytes = o->limit_bytes};
    memfit_status status = mf_fitter_try(fitter, &way, &answer->plan, err);
    if (status != MEMFIT_OK)
        return status;
    answer->as_asked_fits = answer->plan->fits;
    answer->as_asked_peak_bytes = answer->plan->peak_bytes;
    if (!answer->plan->fits || o->pieces > 1 || o->chunks > 1) {
        answer->as_asked_live = MF_NEW_ARRAY(&answer->arena, uint64_t, MF_ANSWER_CURVE);
        if (answer->as_asked_live) /* without it the page has one picture less */
            answer->as_asked_columns =
                mf_picture_totals(answer->arena.host, answer->plan, &answer->plan->phases[0], answer->as_asked_live);
        mf_plan_destroy(answer->plan);
        answer->plan = NULL;
        status = mf_fitter_best(fitter, o->batch, o->limit_bytes, &answer->plan, err);
    }
    if (status == MEMFIT_OK && answer->plan->fits)
        status = mf_plan_leave_room(o, best_within, fitter, &answer->plan, err);
    if (status == MEMFIT_OK)
        answer->fits = answer->plan->fits;
    return status;
}

static memfit_status compare_precision(mf_answer *answer, const mf_fitter *fitter, const mf_question *question,
                                       double whole_us, memfit_error *err)
{
    mf_model_graphs graphs = {question->model, question->lower};
    const char *precision = mf_precision_in_use(&graphs);
    if (!precision)
        return MEMFIT_OK;
    mf_as_asked wide;
    memfit_status status =
        mf_precision_plan(fitter->host, &graphs, "float32", &question->plan, &question->cost, &wide, err);
    if (status == MEMFIT_OK) {
        answer->precision = precision;
        answer->float32_peak_bytes = wide.peak_bytes;
        answer->precision_slowdown = wide.time_us > 0 ? whole_us / wide.time_us : 1;
    }
    return status == MEMFIT_NO_HOST_MEMORY ? status : MEMFIT_OK;
}

/* The largest batch once more with the last layer in chunks, where those help. */
static memfit_status find_chunked_batch(mf_answer *answer, mf_fitter *fitter, const mf_fit_facts *whole,
                                        memfit_error *err)
{
    const mf_plan_options *o = &fitter->options;
    uint32_t most = mf_fitter_most_chunks(fitter, whole);
    int64_t batch, near = 2 * answer->max_batch > o->batch ? 2 * answer->max_batch : o->batch;
    answer->max_batch_chunks = 1;
    if (most < 2 || answer->max_batch >= 1 << 24)
        return MEMFIT_OK;
    bool recompute = o->recompute == MF_RECOMPUTE_AUTO;
    memfit_status status = mf_fitter_largest_chunked(fitter, recompute, most, near, o->limit_bytes, &batch, err);
    if (status == MEMFIT_OK && batch > answer->max_batch) {
        answer->max_batch = batch;
        answer->max_batch_chunks = most;
    }
    return status;
}

static memfit_status work_out(mf_answer *answer, mf_fitter *fitter, const mf_question *question, memfit_error *err)
{
    const mf_plan_options *o = &question->plan;
    memfit_status status = find_plan(answer, fitter, err);
    const mf_fit_facts *whole = NULL;
    if (status == MEMFIT_OK)
        status = mf_fitter_facts(fitter, MF_MODE_TRAIN, o->batch, false, 1, &whole, err);
    if (status != MEMFIT_OK)
        return status;
    answer->plan->unconstrained_time_us = whole->time_us + whole->once_us;
    double whole_us = answer->plan->unconstrained_time_us;
    answer->slowdown = whole_us > 0 ? answer->plan->time_us / whole_us : 1;
    const mf_graph *graph = answer->plan->phases[0].graph;
    answer->optimizer = mf_arena_strdup(&answer->arena, graph->optimizer_name ? graph->optimizer_name : "none");
    answer->loss = mf_arena_strdup(&answer->arena, graph->loss_name ? graph->loss_name : "none");
    answer->optimizer_assumed = graph->optimizer_assumed;
    answer->loss_assumed = graph->loss_assumed;
    status = mf_plan_check(answer->plan, err);
    if (status == MEMFIT_OK)
        status = compare_precision(answer, fitter, question, whole_us, err);
    if (status == MEMFIT_OK)
        status = explain_peak(answer, err);
    if (status == MEMFIT_OK)
        status = list_layers(answer, err);
    if (status == MEMFIT_OK)
        status = list_assumed(answer, err);
    if (status == MEMFIT_OK)
        status = add_bounds(answer, fitter, err);
    if (status == MEMFIT_OK && !answer->fits)
        status = find_obstacle(answer, fitter, err);
    if (status == MEMFIT_OK && question->want_max_batch && o->limit_bytes) {
        status = mf_fitter_largest(fitter, false, o->batch, o->limit_bytes, &answer->max_batch_as_asked, err);
        answer->max_batch = answer->max_batch_as_asked;
        if (status == MEMFIT_OK && o->recompute == MF_RECOMPUTE_AUTO)
            status = mf_fitter_largest(fitter, true, 2 * answer->max_batch_as_asked, o->limit_bytes, &answer->max_batch,
                                       err);
        if (status == MEMFIT_OK)
            status = find_chunked_batch(answer, fitter, whole, err);
    }
    bool other = !answer->as_asked_fits || o->pieces > 1 || o->chunks > 1;
    if (status == MEMFIT_OK && question->want_suggestions && other)
        status = mf_suggest(answer, fitter, question, err);
    if (status == MEMFIT_OK)
        status = mf_in_framework_make(answer->arena.host, question->model, &question->lower, o->batch,
                                      &question->framework, question->want_max_batch, &answer->framework, err);
    if (status == MEMFIT_OK && question->curve_points)
        status = make_curve(answer, fitter, question->curve_points, whole_us, err);
    return status;
}

memfit_status mf_answer_make(const memfit_host *host, const mf_question *question, mf_answer **out, memfit_error *err)
{
    if (question->plan.batch < 1)
        return mf_fail(err, MEMFIT_INVALID, "batch %lld: must be at least 1", (long long)question->plan.batch);
    uint64_t begin = mf_os_now_us();
    mf_answer *answer = mf_host_zalloc(host, sizeof *answer);
    if (!answer)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for an answer");
    mf_arena_init(&answer->arena, host);
    mf_model_graphs graphs = {question->model, question->lower};
    mf_graph_source source;
    mf_fitter fitter;
    mf_model_graph_source(&graphs, &source);
    mf_fitter_init(&fitter, host, &source, &question->plan, &question->cost);
    memfit_status status = work_out(answer, &fitter, question, err);
    if (status == MEMFIT_OK)
        mf_fitter_give(&fitter, answer->plan);
    else {
        mf_plan_destroy(answer->plan);
        answer->plan = NULL;
    }
    mf_fitter_free(&fitter);
    if (status != MEMFIT_OK) {
        mf_answer_destroy(answer);
        return status;
    }
    answer->seconds = (double)(mf_os_now_us() - begin) / 1e6;
    *out = answer;
    return MEMFIT_OK;
}

void mf_answer_destroy(mf_answer *answer)
{
    if (!answer)
        return;
    const memfit_host *host = answer->arena.host;
    mf_plan_destroy(answer->plan);
    mf_arena_destroy(&answer->arena);
    mf_host_free(host, answer, sizeof *answer);
}
