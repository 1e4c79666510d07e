/* batch.c: one batch on an admitted plan, piece by piece; what of the arena it used. */
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "train/train_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- measuring -------------------------------------------------------------------------------------------- */

uint64_t mf_trainer_sample(mf_trainer *t)
{
    uint64_t now = t->footprint->sample(t->device);
    if (now > t->measured_peak)
        t->measured_peak = now;
    return now;
}

uint64_t mf_trainer_used(const mf_trainer *t)
{
    uint64_t used = 0;
    for (uint32_t v = 0; v < t->plan->variable_count; v++) {
        uint64_t at = t->plan->variable_offsets[v];
        if (at == MF_NO_OFFSET)
            continue;
        uint64_t end = at + t->plan->variable_bytes[v];
        if (end > used && mf_reserve_changed(&t->arena, at, end))
            used = end;
    }
    for (uint32_t p = 0; p < t->plan->phase_count; p++) {
        const mf_phase *phase = &t->plan->phases[p];
        for (uint32_t i = 0; i < phase->placed_count; i++) {
            uint64_t end = phase->placed[i].offset + phase->placed[i].bytes;
            if (end > used && mf_reserve_changed(&t->arena, phase->placed[i].offset, end))
                used = end;
        }
    }
    /* A range reaches to the next multiple of the alignment: no other tensor can begin before. */
    uint64_t a = t->plan->alignment ? t->plan->alignment : 1;
    used = (used + a - 1) / a * a;
    return used > t->plan->arena_bytes ? t->plan->arena_bytes : used;
}

void mf_trainer_clear_metrics(mf_trainer *t)
{
    for (uint32_t i = 0; i < t->metric_count; i++)
        mf_state_clear(t, t->metrics[i].variable);
}

/* ---- metrics ---------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const mf_metric_view *)a)->name, ((const mf_metric_view *)b)->name);
}

void mf_trainer_find_metrics(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    uint32_t all = 0;
    t->metric_count = 0;
    for (uint32_t i = 0; i < g->variable_count; i++) {
        const mf_variable *v = &g->variables[i];
        all += v->role == MF_VAR_METRIC;
        if (v->role == MF_VAR_METRIC && t->metric_count < MEMFIT_MOST_METRICS)
            t->metrics[t->metric_count++] = (mf_metric_view){v->name, i, v->metric};
        if (v->role == MF_VAR_CONTROL && g->needs_loss_scale)
            t->flag_variable = i;
    }
    t->metrics_left_out = all - t->metric_count;
    qsort(t->metrics, t->metric_count, sizeof *t->metrics, by_name);
}

/* ---- one batch -------------------------------------------------------------------------------------------- */

typedef struct filling {
    mf_feeder *feeder;
    int64_t position, count;
} filling;

static int64_t sample_of(void *ctx, int64_t index)
{
    const filling *f = ctx;
    return mf_feeder_sample(f->feeder, f->position + index) - f->feeder->first;
}

static memfit_status fill_samples(void *ctx, uint32_t feed, int64_t index, int64_t count, void *to, memfit_error *err)
{
    const filling *f = ctx;
    return mf_feeder_fill(f->feeder, feed, f->position + index, count, to, err);
}

static memfit_status fill_feed(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    filling *f = ctx;
    return mf_feeder_fill(f->feeder, feed, f->position, f->count, address, err);
}

/* The largest phase of these roles that is not larger than what is left; -1 when there is none. */
static int next_phase(const mf_plan *plan, uint32_t roles, uint32_t length, int64_t left)
{
    int best = -1;
    for (uint32_t p = 0; p < plan->phase_count; p++)
        if ((roles >> plan->phases[p].role & 1) && plan->phases[p].length == length && plan->phases[p].batch <= left &&
            (best < 0 || plan->phases[p].batch > plan->phases[best].batch))
            best = (int)p;
    return best;
}

static uint32_t roles_for(const mf_trainer *t, bool validate, int64_t count)
{
    if (t->mode == MF_MODE_PREDICT)
        return 1u << MF_PHASE_PREDICT;
    if (validate || t->mode == MF_MODE_EVALUATE)
        return 1u << MF_PHASE_VALIDATE | 1u << MF_PHASE_VALIDATE_REST;
    if (count == t->plan->batch)
        return 1u << MF_PHASE_TRAIN | 1u << MF_PHASE_TRAIN_REST;
    return 1u << MF_PHASE_LAST_BATCH | 1u << MF_PHASE_LAST_REST;
}

/* After an update accumulators are zero, as Keras's are: a file may be written at any step of a group. */
static void clear_gradients(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t i = 0; i < g->variable_count; i++)
        if (g->variables[i].role == MF_VAR_GRADIENT)
            mf_state_clear(t, i);
}

/* Of the samples of a piece: equal where they are the same, in the same order. 0 where they are made anew each time. */
static uint64_t key_of(const mf_feeder *f, int64_t position, int64_t count)
{
    uint64_t hash = 0xCBF29CE484222325u ^ (uint64_t)(uintptr_t)f;
    if (f->made_links || f->check)
        return 0;
    for (int64_t i = 0; i < count; i++)
        hash = (hash ^ (uint64_t)mf_feeder_sample(f, position + i)) * 0x9E3779B97F4A7C15u;
    return (hash ^ (uint64_t)count) | 1;
}

/* The pieces of a batch of `count`, one after the other: which phase, and the first and the last of them. */
static int next_piece(const mf_trainer *t, uint32_t roles, uint32_t length, int64_t done, int64_t count,
                      mf_piece *piece)
{
    int p = next_phase(t->plan, roles, length, count - done);
    piece->first = done == 0;
    piece->last = p >= 0 && done + t->plan->phases[p].batch == count;
    return p;
}

static memfit_status record_length(mf_trainer *t, bool validate, uint32_t length, int64_t count, memfit_error *err)
{
    uint64_t group = mf_trainer_graph(t)->accumulation_steps;
    bool groups = group > 1 && t->mode == MF_MODE_TRAIN;
    uint32_t roles = roles_for(t, validate, count);
    memfit_status status = MEMFIT_OK;
    for (int64_t done = 0; done < count && status == MEMFIT_OK;) {
        mf_piece piece = {0};
        int p = next_piece(t, roles, length, done, count, &piece);
        if (p < 0)
            return MEMFIT_OK; /* running it says so */
        for (unsigned in_group = 0; in_group < (groups ? 4 : 1) && status == MEMFIT_OK; in_group++) {
            piece.continues = in_group & 1;
            piece.holds = in_group & 2;
            status = mf_executor_record(t->executor, (uint32_t)p, piece, err);
        }
        done += t->plan->phases[p].batch;
    }
    return status;
}

static memfit_status record_batch(mf_trainer *t, bool validate, int64_t count, memfit_error *err)
{
    memfit_status status = record_length(t, validate, 0, count, err);
    for (uint32_t i = 1; i < t->graphs.length_count && status == MEMFIT_OK; i++)
        status = record_length(t, validate, i, count, err);
    return status;
}

memfit_status mf_trainer_record(mf_trainer *t, memfit_error *err)
{
    t->recording_us = mf_os_now_us();
    if (!mf_executor_records(t->executor))
        return MEMFIT_OK;
    int64_t last = t->train_samples % t->plan->batch, held = t->validation_samples, batch = t->validation_batch;
    bool validates = t->mode == MF_MODE_TRAIN && held > 0 && batch > 0;
    memfit_status status = record_batch(t, false, t->plan->batch, err);
    if (status == MEMFIT_OK && last)
        status = record_batch(t, false, last, err);
    if (status == MEMFIT_OK && validates)
        status = record_batch(t, true, batch < held ? batch : held, err);
    if (status == MEMFIT_OK && validates && held > batch && held % batch)
        status = record_batch(t, true, held % batch, err);
    return status;
}

memfit_status mf_trainer_batch(mf_trainer *t, bool validate, int64_t position, int64_t count, memfit_error *err)
{
    mf_feeder *feeder = validate ? t->validation_feeder : t->feeder;
    uint64_t group = mf_trainer_graph(t)->accumulation_steps, iteration = t->state.iteration;
    group = group && t->mode == MF_MODE_TRAIN ? group : 1;
    memfit_status status = mf_source_still_whole(feeder->source, err);
    if (status != MEMFIT_OK)
        return status;
    const uint32_t roles = roles_for(t, validate, count), length = mf_feeder_choose_length(feeder, position, count);
    mf_run_scalars s = {.seed = t->state.seed,
                        .batch_samples = (double)count,
                        .weight_sum = mf_feeder_weight_sum(feeder, position, count),
                        .learning_rate = mf_schedule_at(&t->schedule, t->state.iteration) * t->state.rate_factor,
                        .group_steps = group};
    mf_piece piece = {.continues = iteration % group != 0, .holds = (iteration + 1) % group != 0};
    for (int64_t done = 0; done < count;) {
        int p = next_piece(t, roles, length, done, count, &piece);
        if (p < 0)
            return mf_fail(err, MEMFIT_INTERNAL, "the plan has no phase for %lld of a batch of %lld samples",
                           (long long)(count - done), (long long)count);
        int64_t batch = t->plan->phases[p].batch;
        filling f = {feeder, position + done, batch};
        s.first_sample = (uint64_t)done;
        if (done)
            status = mf_source_still_whole(feeder->source, err);
        const mf_sample_feed samples = {&f, batch, sample_of, fill_samples};
        mf_executor_set_samples(t->executor, feeder == t->feeder && !validate ? &samples : NULL);
        mf_executor_set_key(t->executor, t->slot_bytes ? key_of(feeder, f.position, batch) : 0);
        if (status == MEMFIT_OK)
            status = mf_executor_run(t->executor, (uint32_t)p, &s, piece, fill_feed, &f, err);
        mf_executor_set_samples(t->executor, NULL);
        if (status == MEMFIT_OK && t->after_piece)
            status = t->after_piece(t->after_ctx, (uint32_t)p, err);
        if (status != MEMFIT_OK)
            return status;
        done += batch;
    }
    if (group > 1 && !piece.holds && !validate)
        clear_gradients(t);
    return MEMFIT_OK;
}
