/*
 * fit.c: from a way to run a step (how many pieces, recompute or not) to a packed plan, and the choice among ways.
 *
 *   train       pieces of ceil(batch / K) samples; what does not divide is one smaller piece in a phase of its own
 *   last batch  the same pieces, when the number of samples is known and does not divide by the batch
 *   validation, prediction: one phase each, at the asked size; halved until it fits where that is allowed
 *   sequences of several lengths: all of these but prediction once more for each shorter one, in the same pieces
 *
 * All phases share the variables at the bottom of the arena, so each has (limit - fixed - variables) to itself.
 */
#include "plan/fit/fit.h"

#include "base/error.h"
#include "plan/fit/fit_orders.h"
#include "plan/recompute/bounds.h"

#include <stdlib.h>
#include <string.h>

const char *mf_phase_name(mf_phase_role role)
{
    static const char *const names[] = {"training",   "training (rest)",   "last batch", "last batch (rest)",
                                        "validation", "validation (rest)", "prediction"};
    return (unsigned)role < sizeof names / sizeof *names ? names[role] : "?";
}

const char *mf_numerics_name(mf_numerics numerics)
{
    static const char *const names[] = {"bitwise", "reordered", "changed"};
    return (unsigned)numerics < 3 ? names[numerics] : "?";
}

void mf_plan_options_default(mf_plan_options *options)
{
    *options = (mf_plan_options){.batch = 32, .with_validation = true, .with_prediction = true};
}

void mf_plan_destroy(mf_plan *plan)
{
    if (!plan)
        return;
    for (uint32_t p = 0; !plan->owns_graphs && p < plan->phase_count; p++)
        if (plan->phases[p].held)
            --*plan->phases[p].held;
    for (uint32_t p = 0; plan->owns_graphs && p < plan->phase_count; p++) {
        bool shared = false; /* two phases may run one graph */
        for (uint32_t q = 0; q < p; q++)
            shared |= plan->phases[q].graph == plan->phases[p].graph;
        if (!shared)
            mf_graph_destroy(plan->phases[p].graph);
    }
    const memfit_host *host = plan->arena.host;
    mf_arena_destroy(&plan->arena);
    mf_host_free(host, plan, sizeof *plan);
}

/* ---- the graphs already lowered --------------------------------------------------------------------------- */

void mf_fitter_init(mf_fitter *fitter, const memfit_host *host, const mf_graph_source *source,
                    const mf_plan_options *options, const mf_cost_source *cost)
{
    *fitter = (mf_fitter){.host = host, .source = source, .options = *options};
    if (!cost)
        return;
    uint64_t limit = options->limit_bytes, fixed = options->fixed_bytes;
    fitter->within = *cost;
    fitter->within.room_bytes = limit > fixed && !fitter->options.least_workspace ? limit - fixed : limit ? 1 : 0;
    fitter->cost = &fitter->within;
}

static void entry_free(const memfit_host *host, mf_fit_entry *entry)
{
    mf_fit_order_free(host, entry->order); /* shares what it can with the graph's own */
    mf_fit_order_free(host, entry->own);
    if (!entry->given_away)
        mf_graph_destroy(entry->graph);
    mf_host_free(host, entry, sizeof *entry);
}

void mf_fitter_free(mf_fitter *fitter)
{
    while (fitter->entries) {
        mf_fit_entry *entry = fitter->entries;
        fitter->entries = entry->next;
        entry_free(fitter->host, entry);
    }
    while (fitter->facts) {
        mf_fit_facts *facts = fitter->facts;
        fitter->facts = facts->next;
        mf_host_free(fitter->host, facts, sizeof *facts);
    }
    for (int i = 0; i < 4; i++)
        mf_host_free(fitter->host, fitter->reordered[i], (fitter->reordered_count[i] + 1) * sizeof(uint32_t));
}

static uint64_t graph_bytes(const mf_graph *g)
{
    return g->arena.bytes + g->op_capacity * sizeof *g->ops + g->tensor_capacity * sizeof *g->tensors +
           g->storage_capacity * sizeof *g->storages + g->variable_capacity * sizeof *g->variables +
           g->layer_capacity * sizeof *g->layers;
}

/* Frees what was used longest ago, when there is much. A deep model's graph is megabytes, and a search for the right
 * number of pieces looks at dozens: what is known of them stays in the facts. */
static bool free_oldest(mf_fitter *fitter, uint32_t always_kept, uint64_t kept_bytes)
{
    bool any = false;
    uint64_t bytes = 0;
    uint32_t kept = 0;
    for (mf_fit_entry **at = &fitter->entries; *at;) {
        mf_fit_entry *entry = *at;
        bytes += graph_bytes(entry->graph) + mf_fit_orders_bytes(entry);
        if (entry->held || kept++ < always_kept || bytes <= kept_bytes || mf_fit_orders_needed(fitter, entry)) {
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        entry_free(fitter->host, entry);
        any = true;
    }
    return any;
}

bool mf_fitter_trim(mf_fitter *fitter)
{
    return free_oldest(fitter, 0, 0);
}

memfit_status mf_fitter_entry(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, mf_fit_entry **out,
                              memfit_error *err)
{
    return mf_fitter_entry_chunked(fitter, mode, batch, accumulate, 1, out, err);
}

static uint32_t real_chunks(const mf_fitter *fitter, mf_mode mode, uint32_t chunks)
{
    return mode == MF_MODE_PREDICT || !fitter->source->make_chunked || chunks < 1 ? 1 : chunks;
}

static const mf_fit_facts *find_facts(const mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate,
                                      uint32_t chunks)
{
    for (const mf_fit_facts *f = fitter->facts; f; f = f->next)
        if (f->mode == mode && f->batch == batch && f->accumulate == accumulate && f->chunks == chunks &&
            f->length == fitter->length)
            return f;
    return NULL;
}

static memfit_status note_facts(mf_fitter *fitter, const mf_fit_entry *entry, memfit_error *err)
{
    if (find_facts(fitter, entry->mode, entry->batch, entry->accumulate, entry->chunks))
        return MEMFIT_OK;
    mf_fit_facts *facts = mf_host_zalloc(fitter->host, sizeof *facts);
    if (!facts)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    mf_bounds bounds;
    mf_bounds_make(entry->order->flow, &bounds);
    *facts = (mf_fit_facts){.mode = entry->mode,
                            .batch = entry->batch,
                            .length = entry->length,
                            .accumulate = entry->accumulate,
                            .chunks = entry->chunks,
                            .chunks_made = entry->graph->chunks > 1 ? entry->graph->chunks : 1,
                            .variables_end = entry->variables_end,
                            .kept_bytes = entry->order->keep.peak,
                            .working_set_bytes = bounds.working_set_bytes,
                            .save_set_bytes = bounds.save_set_bytes,
                            .time_us = entry->order->keep.time_us,
                            .once_us = entry->order->keep.once_us,
                            .logits_bytes = entry->graph->logits_bytes,
                            .pieces_change = entry->graph->uses_batch_norm,
                            .next = fitter->facts};
    fitter->facts = facts;
    return MEMFIT_OK;
}

static memfit_status entry_make(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, uint32_t chunks,
                                mf_fit_entry **out, memfit_error *err)
{
    const mf_graph_source *source = fitter->source;
    mf_fit_entry *entry = mf_host_zalloc(fitter->host, sizeof *entry);
    if (!entry)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to plan");
    entry->mode = mode;
    entry->batch = batch;
    entry->accumulate = accumulate;
    entry->chunks = chunks;
    entry->length = fitter->length;
    if (source->set_length)
        source->set_length(source->ctx, fitter->length);
    memfit_status status =
        chunks > 1
            ? source->make_chunked(source->ctx, fitter->host, mode, batch, accumulate, chunks, &entry->graph, err)
            : source->make(source->ctx, fitter->host, mode, batch, accumulate, &entry->graph, err);
    mf_group_taker groups = fitter->cost ? fitter->cost->groups : (mf_group_taker){0};
    if (fitter->options.least_workspace)
        groups.late_updates = false;
    if (status == MEMFIT_OK && (groups.takes || groups.attends || groups.narrow_feeds))
        status = mf_graph_group(entry->graph, &groups, err);
    if (status == MEMFIT_OK)
        status = mf_fit_orders_make(fitter, entry, err);
    if (status == MEMFIT_OK) {
        entry->variables_end = mf_variables_bytes(entry->graph, fitter->cost, fitter->options.offload);
        status = note_facts(fitter, entry, err);
    }
    if (status != MEMFIT_OK) {
        entry_free(fitter->host, entry);
        return status;
    }
    entry->next = fitter->entries;
    fitter->entries = entry;
    *out = entry;
    return MEMFIT_OK;
}

memfit_status mf_fitter_entry_chunked(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, uint32_t chunks,
                                      mf_fit_entry **out, memfit_error *err)
{
    chunks = real_chunks(fitter, mode, chunks);
    for (mf_fit_entry **at = &fitter->entries; *at; at = &(*at)->next) {
        mf_fit_entry *e = *at;
        if (e->mode == mode && e->batch == batch && e->accumulate == accumulate && e->chunks == chunks &&
            e->length == fitter->length) {
            *at = e->next; /* to the front */
            e->next = fitter->entries;
            *out = fitter->entries = e;
            return MEMFIT_OK;
        }
    }
    free_oldest(fitter, MF_FIT_LAST_KEPT, MF_FIT_KEPT_BYTES);
    memfit_status status = entry_make(fitter, mode, batch, accumulate, chunks, out, err);
    /* A host with a limit: once more, with nothing but what must be there. */
    if (status == MEMFIT_NO_HOST_MEMORY && free_oldest(fitter, 1, 0))
        status = entry_make(fitter, mode, batch, accumulate, chunks, out, err);
    return status;
}

memfit_status mf_fitter_facts(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, uint32_t chunks,
                              const mf_fit_facts **facts, memfit_error *err)
{
    chunks = real_chunks(fitter, mode, chunks);
    mf_fit_entry *entry;
    memfit_status status = MEMFIT_OK;
    *facts = find_facts(fitter, mode, batch, accumulate, chunks);
    if (!*facts)
        status = mf_fitter_entry_chunked(fitter, mode, batch, accumulate, chunks, &entry, err);
    if (status == MEMFIT_OK && !*facts)
        *facts = find_facts(fitter, mode, batch, accumulate, chunks);
    return status;
}

/* ---- one phase -------------------------------------------------------------------------------------------- */

/* Places the phase within `room` bytes above the variables (0: no limit), recomputing where that is allowed and
 * needed. Packing may end above the sum it was given; then the next lower stop of that order has its turn, so that the
 * fastest stop that packs within the room is found, whatever the room is. After some in vain the sum is lowered by more
 * and more of the excess: some sums pack badly one after another (seen: MobileNetV2 refused at 66.2 MiB that trains at
 * 66.1). */
static memfit_status place_entry(mf_fitter *fitter, mf_plan *plan, mf_fit_entry *entry, uint64_t room, bool recompute,
                                 bool thorough, mf_phase *phase, memfit_error *err)
{
    enum { ROUNDS = 16, ONE_BY_ONE = 8 };
    mf_fit_order *order = entry->order, *packed = NULL;
    uint64_t packed_load = 0;
    memfit_status status = MEMFIT_OK;
    phase->graph = entry->graph;
    phase->batch = entry->batch;
    if (!recompute || !room || order->keep.peak <= room) {
        status = mf_place_phase(plan, order->flow, &order->keep, room, thorough, phase, err);
        if (status != MEMFIT_OK || !recompute || !room || phase->bytes - plan->variables_end <= room)
            return status;
    }
    uint64_t budgets[2] = {room, room};
    for (int round = 0; round < ROUNDS && status == MEMFIT_OK; round++) {
        bool fits;
        status = mf_fit_orders_within(fitter, entry, budgets, &order, &fits, err);
        if (status == MEMFIT_OK && order == packed && order->tradeoff->sequence.peak == packed_load)
            break; /* nothing is lower: this one was packed in the round before */
        if (status == MEMFIT_OK) {
            phase->placed_count = 0;
            status = mf_place_phase(plan, order->flow, &order->tradeoff->sequence, room, thorough, phase, err);
        }
        uint64_t height = phase->bytes - plan->variables_end, excess = height - room;
        if (status != MEMFIT_OK || height <= room || !fits)
            break;
        uint64_t *budget = &budgets[order != entry->order], load = order->tradeoff->sequence.peak;
        *budget = load - 1;
        packed = order;
        packed_load = load;
        if (round >= ONE_BY_ONE) {
            excess <<= round - ONE_BY_ONE;
            *budget = excess < *budget ? *budget - excess : 0;
        }
    }
    return status;
}

/* ---- one way ---------------------------------------------------------------------------------------------- */

typedef struct attempt {
    mf_fitter *fitter;
    const mf_way *way;
    mf_plan *plan;
    uint64_t room; /* above the variables; 0: no limit */
    memfit_error *err;
} attempt;

static memfit_status add_phase(attempt *a, mf_phase_role role, mf_mode mode, int64_t batch, int64_t repeat)
{
    if (batch < 1 || repeat < 1)
        return MEMFIT_OK;
    mf_fit_entry *entry;
    bool accumulate = mode == MF_MODE_TRAIN && a->plan->pieces > 1;
    memfit_status status = mf_fitter_entry_chunked(a->fitter, mode, batch, accumulate, a->way->chunks, &entry, a->err);
    if (status != MEMFIT_OK)
        return status;
    mf_phase *phase = &a->plan->phases[a->plan->phase_count];
    *phase = (mf_phase){.role = role, .repeat = repeat, .length = a->fitter->length};
    bool train = mode == MF_MODE_TRAIN;
    status = place_entry(a->fitter, a->plan, entry, a->room, a->way->recompute && train, train && !a->way->train_only,
                         phase, a->err);
    if (status == MEMFIT_OK) {
        phase->held = &entry->held;
        entry->held++;
        a->plan->phase_count++;
    }
    return status;
}

/* The phases from this one on are not part of the plan after all. */
static void drop_phases(mf_plan *plan, uint32_t from)
{
    while (plan->phase_count > from)
        --*plan->phases[--plan->phase_count].held;
}

/* A batch of `whole` samples in the plan's pieces. */
static memfit_status add_pieces(attempt *a, mf_phase_role role, mf_phase_role rest_role, int64_t piece, int64_t whole)
{
    int64_t repeat = whole / piece, rest = whole % piece;
    memfit_status status = add_phase(a, role, MF_MODE_TRAIN, piece, repeat);
    if (status == MEMFIT_OK)
        status = add_phase(a, rest_role, MF_MODE_TRAIN, rest, 1);
    return status;
}

/* Does validation or prediction of this size fit by its sum of live bytes? */
static memfit_status forward_fits(attempt *a, mf_mode mode, int64_t size, bool *fits)
{
    const mf_fit_facts *facts;
    memfit_status status = mf_fitter_facts(a->fitter, mode, size, false, a->way->chunks, &facts, a->err);
    if (status == MEMFIT_OK)
        *fits = facts->kept_bytes <= a->room;
    return status;
}

/* Validation or prediction: at the asked size, or in the largest halves that fit; then one phase for each remainder
 * that a whole batch, or the last batch of `samples`, leaves. */
static memfit_status add_forward(attempt *a, mf_phase_role role, mf_mode mode, int64_t batch, int64_t samples)
{
    int64_t size = batch;
    bool split = a->way->split_validation && a->room, fits = !split;
    while (!fits && size > 1) {
        memfit_status status = forward_fits(a, mode, size, &fits);
        if (status != MEMFIT_OK)
            return status;
        if (!fits)
            size = (size + 1) / 2;
    }
    for (;;) {
        memfit_status status = add_phase(a, role, mode, size, batch / size);
        if (status != MEMFIT_OK)
            return status;
        const mf_phase *phase = &a->plan->phases[a->plan->phase_count - 1];
        if (!split || size == 1 || phase->bytes - a->plan->variables_end <= a->room)
            break;
        drop_phases(a->plan, a->plan->phase_count - 1);
        size = (size + 1) / 2;
    }
    if (a->fitter->options.validation_batch || a->fitter->options.only != MF_MODE_TRAIN)
        a->plan->validation_split |= size < batch; /* a size nobody asked for is the planner's to choose */
    mf_phase_role rest_role = role == MF_PHASE_VALIDATE ? MF_PHASE_VALIDATE_REST : role;
    int64_t rest = batch % size, last = samples > 0 ? samples % batch % size : 0;
    memfit_status status = add_phase(a, rest_role, mode, rest, 1);
    if (status == MEMFIT_OK && last != rest)
        status = add_phase(a, rest_role, mode, last, 1);
    return status;
}

/* Prediction has no chunks: its results are the whole logits. Where that alone is too much, for one sample, the plan is
 * one for training. */
static memfit_status add_prediction(attempt *a, int64_t batch)
{
    uint32_t before = a->plan->phase_count;
    memfit_status status = add_forward(a, MF_PHASE_PREDICT, MF_MODE_PREDICT, batch, 0);
    const mf_phase *phase = &a->plan->phases[before];
    if (status != MEMFIT_OK || !a->room || a->way->chunks < 2 || phase->batch > 1 ||
        phase->bytes - a->plan->variables_end <= a->room)
        return status;
    a->plan->unpredicted_bytes = a->plan->fixed_bytes + phase->bytes;
    drop_phases(a->plan, before);
    return MEMFIT_OK;
}

/* The last batch of an epoch, of so many samples. */
static memfit_status add_last(attempt *a, int64_t piece, int64_t samples)
{
    return samples ? add_pieces(a, MF_PHASE_LAST_BATCH, MF_PHASE_LAST_REST, piece < samples ? piece : samples, samples)
                   : MEMFIT_OK;
}

static memfit_status add_phases_of_length(attempt *a, int64_t piece)
{
    const mf_plan_options *o = &a->fitter->options;
    if (o->only == MF_MODE_EVALUATE)
        return add_forward(a, MF_PHASE_VALIDATE, o->only, a->plan->batch, o->samples);
    if (o->only == MF_MODE_PREDICT)
        return add_forward(a, MF_PHASE_PREDICT, o->only, a->plan->batch, o->samples);
    memfit_status status = add_pieces(a, MF_PHASE_TRAIN, MF_PHASE_TRAIN_REST, piece, a->plan->batch);
    if (status != MEMFIT_OK || a->way->train_only)
        return status;
    int64_t last = o->samples > 0 ? o->samples % a->plan->batch : 0;
    int64_t first_last = o->samples_left > 0 ? o->samples_left % a->plan->batch : 0;
    status = add_last(a, piece, last);
    if (status == MEMFIT_OK && first_last != last)
        status = add_last(a, piece, first_last);
    int64_t validation = o->validation_batch ? o->validation_batch : a->plan->batch;
    if (status == MEMFIT_OK && o->with_validation)
        status = add_forward(a, MF_PHASE_VALIDATE, MF_MODE_EVALUATE, validation, o->validation_samples);
    if (status == MEMFIT_OK && o->with_prediction && a->fitter->length == 0)
        status = add_prediction(a, validation);
    return status;
}

static memfit_status add_phases(attempt *a, int64_t piece)
{
    mf_fitter *fitter = a->fitter;
    memfit_status status = add_phases_of_length(a, piece);
    while (status == MEMFIT_OK && !a->way->train_only && ++fitter->length < fitter->options.lengths)
        status = add_phases_of_length(a, piece);
    fitter->length = 0;
    if (fitter->source->set_length)
        fitter->source->set_length(fitter->source->ctx, 0);
    return status;
}

static void sum_up(mf_plan *plan, const mf_way *way, bool batch_norm, uint64_t start_bytes)
{
    plan->arena_bytes = plan->variables_end;
    plan->recomputed_ops = 0;
    plan->time_us = 0;
    for (uint32_t p = 0; p < plan->phase_count; p++) {
        const mf_phase *phase = &plan->phases[p];
        if (phase->bytes > plan->arena_bytes)
            plan->arena_bytes = phase->bytes;
        if (p && (phase->length || (phase->role != MF_PHASE_TRAIN && phase->role != MF_PHASE_TRAIN_REST)))
            continue; /* the first phase is the step, whatever the mode */
        plan->recomputed_ops += phase->recomputed;
        plan->time_us += phase->time_us * (double)phase->repeat;
        if (p == 0)
            plan->time_us += phase->once_us;
    }
    if (plan->fixed_bytes + plan->arena_bytes < start_bytes)
        plan->fixed_bytes = start_bytes - plan->arena_bytes;
    plan->peak_bytes = plan->fixed_bytes + plan->arena_bytes;
    plan->fits = !way->limit_bytes || plan->peak_bytes <= way->limit_bytes;
    plan->numerics = plan->pieces > 1 ? (batch_norm ? MF_CHANGED : MF_REORDERED) : MF_BITWISE;
    if ((plan->validation_split || plan->chunks > 1) && plan->numerics == MF_BITWISE)
        plan->numerics = MF_REORDERED;
    for (uint32_t i = 0; i < plan->phase_count; i++)
        if (plan->phases[i].numerics > plan->numerics)
            plan->numerics = plan->phases[i].numerics;
}

/* What streaming the offloaded slots adds to a step. Updates that come as soon as their gradients are final have the
 * backward pass, two thirds of a step, to hide it behind; those that wait for the end have nothing. */
static double offload_us(const mf_plan *plan, const mf_graph *graph)
{
    const double bytes_per_us = 25e3; /* a card's link, each way: PCIe 4 x16; an H200 has twice that */
    double took = (double)plan->offloaded_bytes / bytes_per_us;
    double hidden = graph->accumulate || graph->needs_loss_scale ? 0 : plan->time_us * 2 / 3;
    return took > hidden ? took - hidden : 0;
}

uint64_t mf_fitter_chunk_cost(const mf_fitter *fitter, uint32_t chunks)
{
    enum { CHUNK_SHAPES = 4 }; /* the first of each shape is compiled */
    return chunks > 1 ? (chunks + CHUNK_SHAPES) * fitter->options.chunk_bytes : 0;
}

memfit_status mf_fitter_try(mf_fitter *fitter, const mf_way *way, mf_plan **out, memfit_error *err)
{
    int64_t k = way->pieces < 1 || fitter->options.only != MF_MODE_TRAIN ? 1
                : way->pieces > way->batch                               ? way->batch
                                                                         : way->pieces;
    int64_t piece = (way->batch + k - 1) / k;
    enum { MOST_PHASES = 16 }; /* of a length */
    const uint32_t lengths = fitter->options.lengths > 1 ? fitter->options.lengths : 1;
    mf_plan *plan = mf_host_zalloc(fitter->host, sizeof *plan);
    if (!plan)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a plan");
    mf_arena_init(&plan->arena, fitter->host);
    plan->batch = way->batch;
    plan->pieces = (way->batch + piece - 1) / piece;
    plan->fixed_bytes = fitter->options.fixed_bytes + (way->batch % piece ? fitter->options.rest_bytes : 0);
    plan->phases = MF_NEW_ARRAY(&plan->arena, mf_phase, MOST_PHASES * lengths);
    mf_fit_entry *entry = NULL;
    bool changes = false;
    memfit_status status = plan->phases ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a plan");
    if (status == MEMFIT_OK)
        status =
            mf_fitter_entry_chunked(fitter, fitter->options.only, piece, plan->pieces > 1, way->chunks, &entry, err);
    if (status == MEMFIT_OK) {
        changes = entry->graph->uses_batch_norm;
        plan->chunks = entry->graph->chunks > 1 ? entry->graph->chunks : 1;
        plan->fixed_bytes += mf_fitter_chunk_cost(fitter, plan->chunks);
    }
    if (status == MEMFIT_OK)
        status = mf_place_variables(plan, entry->graph, fitter->cost, fitter->options.offload, err);
    if (status == MEMFIT_OK) {
        uint64_t taken = plan->fixed_bytes + plan->variables_end;
        attempt a = {fitter, way, plan, 0, err};
        if (way->limit_bytes)
            a.room = way->limit_bytes > taken ? way->limit_bytes - taken : 1;
        status = add_phases(&a, piece);
    }
    if (status != MEMFIT_OK) {
        mf_plan_destroy(plan);
        return status;
    }
    sum_up(plan, way, changes, fitter->options.start_bytes);
    plan->time_us += offload_us(plan, entry->graph);
    *out = plan;
    return MEMFIT_OK;
}

void mf_fitter_give(mf_fitter *fitter, mf_plan *plan)
{
    for (uint32_t p = 0; p < plan->phase_count; p++)
        for (mf_fit_entry *e = fitter->entries; e; e = e->next)
            if (e->graph == plan->phases[p].graph)
                e->given_away = true;
    plan->owns_graphs = true;
}
