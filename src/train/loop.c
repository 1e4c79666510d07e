/*
 * loop.c: the training loop with Keras's semantics: epochs, shuffling, running means, validation at the end of each
 * epoch, callbacks. Everything it needs is taken before the first step (struct run); a step allocates nothing.
 *
 * Resuming: the state block says epoch, position and iteration; the order of an epoch and every random number follow
 * from the seed and these, so a resumed run does what the undisturbed one would have done, bit for bit.
 *
 * A limit that is lowered while running: the variables go to an unlinked temporary file (not to memory, there is none
 * to spare), the arena is given back, the next plan is made for the new limit, and the variables return. Checked
 * between steps, so what continues is the last finished step.
 */
#include "train/checkpoint.h"
#include "train/events.h"
#include "train/run_trace.h"
#include "train/trainer.h"

#include "base/error.h"
#include "base/os.h"
#include "model/initialize.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TIMES = 4096, SAMPLE_EVERY_US = 5000 };
#define PLATEAU_DELTA 1e-4

typedef struct run {
    mf_trainer trainer;
    mf_checkpoint *checkpoint;
    mf_events *events;
    mf_run_trace *trace;
    memfit_train_event event;
    const char *names[MEMFIT_MOST_METRICS];
    double values[MEMFIT_MOST_METRICS], val_values[MEMFIT_MOST_METRICS];
    uint64_t began_us, epoch_began_us, last_sample_us;
    double training_us;
    uint64_t memory_now;
    uint64_t allocations_between; /* made outside steps: another plan */
    int64_t samples_done;
    double times[MOST_TIMES];
    uint32_t time_count, time_next;
    double first_step_seconds;
    int64_t replans;
    uint64_t replan_us; /* the longest change of plan */
    bool stop, stopped_early, has_validation;
    double val_loss;
    memfit_error late; /* code not OK: a log or checkpoint could not be written; training went on */
} run;

void memfit_train_options_default(memfit_train_options *options)
{
    *options = (memfit_train_options){.size = sizeof *options, .batch = 32, .epochs = 1};
}

/* ---- making ready ----------------------------------------------------------------------------------------- */

static memfit_status take_for_run(void *ctx, mf_trainer *t, memfit_error *err)
{
    run *r = ctx;
    mf_checkpoint_destroy(r->checkpoint);
    r->checkpoint = NULL;
    if (t->mode == MF_MODE_TRAIN && (t->options->out || t->options->checkpoint)) {
        memfit_status status = mf_checkpoint_create(t, &r->checkpoint, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (r->trace) {
        memfit_status status = mf_run_trace_prepare(r->trace, t, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (!r->events && t->mode == MF_MODE_TRAIN)
        return mf_events_create(t->host, t->options->log_csv, t->options->tensorboard, t->options->resume != NULL,
                                &r->events, err);
    return MEMFIT_OK;
}

static memfit_status first_values(mf_trainer *t, memfit_error *err)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t i = 0; i < g->variable_count; i++) {
        void *out = mf_executor_variable(t->executor, i);
        memfit_status status = out ? mf_variable_initialize(t->host, g, i, t->options->seed, out, err) : MEMFIT_OK;
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}

static uint64_t chosen_limit(const memfit_train_options *o)
{
    mf_os_memory m = {0};
    mf_os_process_memory(&m, NULL);
    uint64_t most = mf_os_available_memory() + m.rss_anon + m.rss_shmem;
    most = most > (64u << 20) ? most - (32u << 20) : most;
    uint64_t polite = mf_os_soft_limit();
    return o->memory_bytes ? o->memory_bytes : most < polite ? most : polite;
}

static void first_state(mf_trainer *t)
{
    t->state = (struct mf_train_state){.seed = t->options->seed,
                                       .loss_scale = mf_trainer_graph(t)->needs_loss_scale ? 32768 : 1,
                                       .best = INFINITY,
                                       .plateau_best = INFINITY,
                                       .rate_factor = 1};
    const mf_graph *g = mf_trainer_graph(t);
    const mf_stored *outer =
        g->needs_loss_scale && t->model->outer_optimizer_count >= 4 ? t->model->outer_optimizer : NULL;
    if (outer && outer[2].dtype == MF_I64 && outer[2].bytes == 8 && outer[3].dtype == MF_F32 && outer[3].bytes == 4) {
        float scale;
        memcpy(&t->state.good_steps, outer[2].data, 8);
        memcpy(&scale, outer[3].data, 4);
        if (scale >= 1 && isfinite(scale))
            t->state.loss_scale = (double)scale;
    }
    const mf_stored *stored = g->optimizer_stored ? &t->model->optimizer[0] : NULL;
    if (stored && mf_shape_count(&stored->shape) == 1 && (stored->dtype == MF_I64 || stored->dtype == MF_I32)) {
        int64_t iteration = 0;
        memcpy(&iteration, stored->data, stored->dtype == MF_I64 ? 8 : 4);
        t->state.iteration = iteration > 0 ? (uint64_t)iteration : 0;
    }
    const mf_stored *rate = g->optimizer_stored && g->keeps_rate ? &t->model->optimizer[1] : NULL;
    if (t->options->learning_rate == 0 && t->schedule.kind == MF_RATE_CONSTANT && rate && rate->dtype == MF_F32 &&
        rate->shape.rank == 0) {
        float v;
        memcpy(&v, rate->data, 4);
        if (v > 0)
            t->schedule.initial = (double)v;
    }
}

static void say_once(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    if (g->optimizer_assumed && t->mode == MF_MODE_TRAIN)
        mf_log_write(&t->log, MF_LOG_NOTE, "the file names no optimizer: %s is assumed", g->optimizer_name);
    if (g->loss_assumed && t->mode != MF_MODE_PREDICT)
        mf_log_write(&t->log, MF_LOG_NOTE, "the file names no loss: %s is assumed", g->loss_name);
    if (g->ignored_metrics)
        mf_log_write(&t->log, MF_LOG_NOTE, "not computed: the metrics %s", g->ignored_metrics);
    if (t->plan->pieces > 1)
        mf_log_write(&t->log, MF_LOG_NOTE, "each batch of %lld runs in %lld pieces (%s)", (long long)t->plan->batch,
                     (long long)t->plan->pieces, mf_numerics_name(t->plan->numerics));
    if (t->plan->recomputed_ops)
        mf_log_write(&t->log, MF_LOG_NOTE, "%u operations are computed twice instead of kept (same result)",
                     t->plan->recomputed_ops);
    if (mf_executor_reference_ops(t->executor))
        mf_log_write(&t->log, MF_LOG_DETAIL, "%u operations run on the slow reference kernels (%s, ...)",
                     mf_executor_reference_ops(t->executor), mf_executor_reference_name(t->executor));
}

/* Names live in a plan's graph: asked for again with every plan. */
static void name_metrics(run *r)
{
    for (uint32_t i = 0; i < r->trainer.metric_count; i++)
        r->names[i] = r->trainer.metrics[i].name;
}

static memfit_status start(run *r, const memfit_train_options *options, mf_mode mode, memfit_error *err)
{
    r->began_us = mf_os_now_us();
    mf_trainer *t = &r->trainer;
    memfit_status status = mf_trainer_open(t, options, mode, err);
    if (status == MEMFIT_OK && options->trace) {
        status = mf_run_trace_create(t->host, options->trace, &r->trace, err);
        t->step = mf_run_trace_step;
        t->step_ctx = r->trace;
    }
    if (status == MEMFIT_OK && options->resume && mode == MF_MODE_TRAIN)
        t->resumed_pieces = mf_checkpoint_pieces(t);
    if (status == MEMFIT_OK)
        status = mf_trainer_admit(t, chosen_limit(options), take_for_run, r, err);
    if (status == MEMFIT_DOES_NOT_FIT && t->resumed_pieces) {
        t->resumed_pieces = 0;
        status = mf_trainer_admit(t, chosen_limit(options), take_for_run, r, err);
        if (status == MEMFIT_OK)
            mf_log_write(&t->log, MF_LOG_NOTE,
                         "other pieces than before: the limit is lower, and sums round otherwise");
    }
    t->resumed_pieces = 0;
    if (status != MEMFIT_OK)
        return status;
    status = first_values(t, err);
    if (status != MEMFIT_OK)
        return status;
    first_state(t);
    if (options->resume && mode == MF_MODE_TRAIN) {
        status = mf_checkpoint_restore(t, err);
        if (status == MEMFIT_NOT_FOUND)
            return mf_fail(err, MEMFIT_DAMAGED,
                           "%s is a model, not a checkpoint\nto train on from it, give it as the "
                           "model",
                           options->resume);
        if (status != MEMFIT_OK)
            return status;
    }
    if (t->feeder)
        t->feeder->check = true;
    if (t->validation_feeder)
        t->validation_feeder->check = true;
    name_metrics(r);
    say_once(t);
    mf_trainer_sample(t);
    if (r->trace)
        mf_run_trace_begin(r->trace, t);
    return MEMFIT_OK;
}

static void end(run *r)
{
    mf_run_trace_destroy(r->trace);
    mf_checkpoint_destroy(r->checkpoint);
    mf_events_destroy(r->events);
    mf_trainer_close(&r->trainer);
}

/* ---- another plan while running ----------------------------------------------------------------------------- */

/* Copies every variable to or from `space`, in order of their numbers. Plans of one model may differ in which gradients
 * are variables: those are dead between steps and skipped (but not within Keras's own accumulation). */
static void move_variables(mf_trainer *t, unsigned char *space, bool out)
{
    const mf_graph *g = mf_trainer_graph(t);
    uint64_t at = 0;
    for (uint32_t v = 0; v < g->variable_count; v++) {
        void *p = mf_executor_variable(t->executor, v);
        uint64_t bytes = mf_shape_count(&g->variables[v].shape) * mf_dtype_bytes(g->variables[v].dtype);
        if (g->variables[v].role == MF_VAR_GRADIENT && !g->accumulation_steps)
            continue;
        if (p && out)
            memcpy(space + at, p, bytes);
        else if (p)
            memcpy(p, space + at, bytes);
        at += bytes;
    }
}

static uint64_t movable_bytes(const mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    uint64_t n = 0;
    for (uint32_t v = 0; v < g->variable_count; v++)
        n += mf_shape_count(&g->variables[v].shape) * mf_dtype_bytes(g->variables[v].dtype);
    return n;
}

/* The limit cannot be kept: what was learned is saved (when a checkpoint is asked for), and err says where. */
static memfit_status stop_for_limit(run *r, uint64_t limit, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const char *path = t->options->checkpoint;
    char text[24];
    memfit_status status = err->code;
    memfit_error failed;
    mf_error_prefix(err, status, "the limit was lowered to %s after step %llu",
                    memfit_size_format(limit, text, sizeof text), (unsigned long long)t->state.steps);
    if (!path)
        snprintf(err->hint, sizeof err->hint, "with --checkpoint FILE the weights would have been kept");
    else if (t->executor && r->checkpoint && mf_checkpoint_write(r->checkpoint, path, true, &failed) == MEMFIT_OK)
        snprintf(err->hint, sizeof err->hint,
                 "all %llu steps are in %.160s: --resume goes on from it, given more memory",
                 (unsigned long long)t->state.steps, path);
    else
        snprintf(err->hint, sizeof err->hint, "the last whole checkpoint is %.160s", path);
    return status;
}

/* Gives the arena back and goes on in another plan, or, when that fails after all, returns to the old one. */
static memfit_status change_plan(run *r, uint64_t limit, unsigned char *space, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    struct mf_train_state state = t->state;
    uint64_t old_limit = t->limit_bytes;
    move_variables(t, space, true);
    if (r->trace)
        mf_run_trace_end(r->trace);
    mf_checkpoint_destroy(r->checkpoint);
    r->checkpoint = NULL;
    mf_trainer_withdraw(t);
    memfit_status status = mf_trainer_admit(t, limit, take_for_run, r, err);
    if (status != MEMFIT_OK) {
        memfit_error ignored;
        mf_checkpoint_destroy(r->checkpoint);
        r->checkpoint = NULL;
        mf_trainer_withdraw(t);
        if (mf_trainer_admit(t, old_limit, take_for_run, r, &ignored) != MEMFIT_OK)
            mf_trainer_withdraw(t);
    }
    if (t->executor) {
        move_variables(t, space, false);
        t->state = state;
        name_metrics(r);
        if (r->trace)
            mf_run_trace_begin(r->trace, t);
    }
    return status;
}

static memfit_status replan(run *r, uint64_t limit, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    unsigned char *space;
    uint64_t bytes = movable_bytes(t);
    memfit_error own;
    err = err ? err : &own;
    t->refused_us = mf_os_now_us();
    uint64_t began = t->refused_us;
    /* Asked while the old plan stands: a refusal costs nothing. */
    memfit_status status = mf_trainer_prepare(t, limit, err);
    if (status == MEMFIT_OK)
        status = mf_os_spool_map(bytes, &space, err);
    if (status != MEMFIT_OK)
        return stop_for_limit(r, limit, err);
    status = change_plan(r, limit, space, err);
    mf_os_spool_unmap(space, bytes);
    if (status != MEMFIT_OK)
        return stop_for_limit(r, limit, err);
    r->replans++;
    uint64_t took = mf_os_now_us() - began;
    r->replan_us = took > r->replan_us ? took : r->replan_us;
    char text[24];
    mf_log_write(&t->log, MF_LOG_NOTE, "the limit is now %s: going on in %lld pieces, %u operations recomputed",
                 memfit_size_format(limit, text, sizeof text), (long long)t->plan->pieces, t->plan->recomputed_ops);
    return MEMFIT_OK;
}

/* ---- what goes to disk while running ------------------------------------------------------------------------ */

/* A full disk must not cost what was learned: it is said, training goes on, and the call fails at its end. */
static void go_on_without(run *r, const memfit_error *failed, const char *what)
{
    r->late = *failed;
    mf_log_write(&r->trainer.log, MF_LOG_NOTE, "%s; training goes on %s", failed->message, what);
}

static void write_checkpoint(run *r)
{
    memfit_error failed;
    if (mf_checkpoint_write(r->checkpoint, r->trainer.options->checkpoint, true, &failed) != MEMFIT_OK)
        go_on_without(r, &failed, "without this checkpoint");
}

static void write_logs(run *r)
{
    memfit_error failed;
    if (mf_events_epoch(r->events, &r->event, &failed) == MEMFIT_OK)
        return;
    mf_events_destroy(r->events);
    r->events = NULL;
    go_on_without(r, &failed, "without logs");
}

/* Whatever ended the run, its trace is complete. */
static void close_trace(run *r)
{
    if (!r->trace)
        return;
    memfit_error failed;
    mf_run_trace_end(r->trace);
    if (mf_run_trace_close(r->trace, &failed) != MEMFIT_OK)
        r->late = failed;
}

/* Before hours are spent: can these files be written at all? */
static memfit_status can_be_written(const char *path, memfit_error *err)
{
    mf_rawfile probe;
    memfit_status status = path ? mf_os_raw_open(&probe, path, err) : MEMFIT_OK;
    if (path && status == MEMFIT_OK)
        mf_os_raw_abandon(&probe);
    return status;
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

static void gather_metrics(run *r, double *values)
{
    for (uint32_t i = 0; i < r->trainer.metric_count; i++)
        values[i] = mf_trainer_metric(&r->trainer, i);
}

static void tell(run *r, bool epoch_end, double step_seconds)
{
    mf_trainer *t = &r->trainer;
    uint64_t now = mf_os_now_us();
    if (now - r->last_sample_us >= SAMPLE_EVERY_US || epoch_end) {
        r->memory_now = mf_trainer_sample(t);
        r->last_sample_us = now;
    }
    if (!epoch_end) /* then the states may hold validation already */
        gather_metrics(r, r->values);
    int64_t batches = (t->train_samples + t->plan->batch - 1) / t->plan->batch;
    r->event =
        (memfit_train_event){.epoch = (int64_t)t->state.epoch,
                             .epochs = t->options->epochs,
                             .step = (int64_t)t->state.step_in_epoch,
                             .steps = batches,
                             .iteration = t->state.iteration,
                             .epoch_end = epoch_end,
                             .seconds = (double)(now - r->epoch_began_us) * 1e-6,
                             .step_seconds = step_seconds,
                             .loss = t->state.loss_weight > 0 ? t->state.loss_sum / t->state.loss_weight : 0,
                             .metric_count = t->metric_count,
                             .metric_names = r->names,
                             .metrics = r->values,
                             .validated = epoch_end && r->has_validation,
                             .val_loss = r->val_loss,
                             .val_metrics = r->val_values,
                             .learning_rate = mf_schedule_at(&t->schedule, t->state.iteration) * t->state.rate_factor,
                             .memory_bytes = r->memory_now,
                             .limit_bytes = t->limit_bytes};
    if (t->options->progress)
        t->options->progress(t->options->ctx, &r->event);
}

/* Dynamic loss scaling: halve on overflow (the update was skipped), double after 2000 good steps. */
static bool step_counted(mf_trainer *t)
{
    if (t->flag_variable == MF_NONE)
        return true;
    const float *flag = mf_executor_variable(t->executor, t->flag_variable);
    if (flag && *flag != 0) {
        t->state.loss_scale = fmax(t->state.loss_scale / 2, 1);
        t->state.good_steps = 0;
        return false;
    }
    if (++t->state.good_steps >= 2000) {
        t->state.loss_scale *= 2;
        t->state.good_steps = 0;
    }
    return true;
}

/* use_ema: weights become their averages. */
static void take_averages(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t v = 0; v < g->variable_count; v++) {
        const mf_variable *average = &g->variables[v];
        void *from = average->role == MF_VAR_EMA ? mf_executor_variable(t->executor, v) : NULL;
        void *to = from ? mf_executor_variable(t->executor, average->parameter) : NULL;
        if (to)
            memcpy(to, from, mf_shape_count(&average->shape) * mf_dtype_bytes(average->dtype));
    }
}

static memfit_status one_step(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    int64_t left = t->train_samples - (int64_t)t->state.position;
    int64_t count = left < t->plan->batch ? left : t->plan->batch;
    uint64_t before = mf_os_now_ns();
    double loss;
    mf_run_trace_mark(r->trace, MF_RUN_STEP);
    memfit_status status = mf_trainer_batch(t, false, (int64_t)t->state.position, count, &loss, err);
    if (status != MEMFIT_OK)
        return status;
    bool counted = step_counted(t);
    if (isnan(loss) || isinf(loss)) {
        if (counted)
            return mf_fail(err, MEMFIT_DIVERGED,
                           "the loss is %g at step %llu: training has diverged\n"
                           "lower the learning rate, or clip gradients (clipnorm in the model's optimizer)",
                           loss, (unsigned long long)t->state.steps + 1);
    } else {
        t->state.loss_sum += loss * (double)count;
        t->state.loss_weight += (double)count;
    }
    double took = (double)(mf_os_now_ns() - before) * 1e-3; /* us; the steps of small models take ten */
    r->training_us += took;
    r->samples_done += count;
    r->times[r->time_next] = took;
    r->time_next = (r->time_next + 1) % MOST_TIMES;
    if (r->time_count < MOST_TIMES)
        r->time_count++;
    t->state.iteration += counted;
    if (mf_trainer_graph(t)->average_every && t->state.iteration % mf_trainer_graph(t)->average_every == 0 && counted)
        take_averages(t);
    t->state.steps++;
    t->state.step_in_epoch++;
    t->state.position += (uint64_t)count;
    if (r->first_step_seconds == 0)
        r->first_step_seconds = (double)(mf_os_now_us() - r->began_us) * 1e-6;
    tell(r, false, took * 1e-6);
    return MEMFIT_OK;
}

static memfit_status validate(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    if (t->validation_samples == 0)
        return MEMFIT_OK;
    mf_trainer_clear_metrics(t);
    mf_run_trace_mark(r->trace, MF_RUN_VALIDATION);
    int64_t batch = t->validation_batch;
    double sum = 0;
    for (int64_t at = 0; at < t->validation_samples; at += batch) {
        int64_t count = t->validation_samples - at < batch ? t->validation_samples - at : batch;
        double loss;
        memfit_status status = mf_trainer_batch(t, true, at, count, &loss, err);
        if (status != MEMFIT_OK)
            return status;
        sum += loss * (double)count;
    }
    r->has_validation = true;
    r->val_loss = sum / (double)t->validation_samples;
    gather_metrics(r, r->val_values);
    return MEMFIT_OK;
}

/* Early stopping, plateau, best weights; Keras's rules with its defaults of min_delta: 0, but for the plateau. */
static memfit_status after_epoch(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    double watched = r->has_validation          ? r->val_loss
                     : t->state.loss_weight > 0 ? t->state.loss_sum / t->state.loss_weight
                                                : INFINITY;
    bool better = watched < t->state.best;
    if (better) {
        t->state.best = watched;
        t->state.waited = 0;
        if (o->keep_best && o->out) {
            memfit_status status = mf_checkpoint_write(r->checkpoint, o->out, false, err);
            if (status != MEMFIT_OK)
                return status;
        }
    } else if (o->early_stopping && ++t->state.waited >= (uint64_t)o->early_stopping) {
        r->stop = r->stopped_early = true;
    }
    if (watched < t->state.plateau_best - PLATEAU_DELTA) {
        t->state.plateau_best = watched;
        t->state.plateau_waited = 0;
    } else if (o->reduce_on_plateau && ++t->state.plateau_waited >= (uint64_t)o->reduce_on_plateau) {
        t->state.rate_factor *= 0.1;
        t->state.plateau_waited = 0;
    }
    return MEMFIT_OK;
}

static memfit_status finish_epoch(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    memfit_status status = validate(r, err);
    if (status == MEMFIT_OK) {
        tell(r, true, 0);
        write_logs(r);
    }
    if (status == MEMFIT_OK)
        status = after_epoch(r, err);
    t->feeder->check = false;
    if (t->validation_feeder)
        t->validation_feeder->check = false;
    if (status != MEMFIT_OK)
        return status;
    t->state.epoch++;
    t->state.position = t->state.step_in_epoch = 0;
    if (t->options->checkpoint && t->options->save_freq == 0)
        write_checkpoint(r);
    return MEMFIT_OK;
}

static memfit_status between_steps(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    if (o->checkpoint && o->save_freq > 0 && t->state.steps % (uint64_t)o->save_freq == 0)
        write_checkpoint(r);
    uint64_t limit = o->limit ? o->limit(o->ctx) : 0;
    if (limit && limit < t->limit_bytes && t->fixed_bytes + t->plan->arena_bytes > limit) {
        uint64_t before = o->allocation_count ? o->allocation_count() : 0;
        memfit_status status = replan(r, limit, err);
        if (o->allocation_count) /* planning anew is no step */
            r->allocations_between += o->allocation_count() - before;
        return status;
    }
    if (limit && limit < t->limit_bytes)
        t->limit_bytes = limit; /* the plan holds it as it is */
    return MEMFIT_OK;
}

static memfit_status all_epochs(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    memfit_status status = MEMFIT_OK;
    while (status == MEMFIT_OK && !r->stop && t->state.epoch < (uint64_t)o->epochs) {
        mf_feeder_shuffle(t->feeder, t->state.seed, t->state.epoch);
        r->epoch_began_us = mf_os_now_us();
        mf_run_trace_mark(r->trace, MF_RUN_EPOCH);
        if (t->state.position == 0) {
            mf_trainer_clear_metrics(t);
            t->state.loss_sum = t->state.loss_weight = 0;
        }
        while (status == MEMFIT_OK && t->state.position < (uint64_t)t->train_samples && !r->stop) {
            status = one_step(r, err);
            if (status == MEMFIT_OK)
                status = between_steps(r, err);
            r->stop = r->stop || (o->steps && t->state.steps >= (uint64_t)o->steps);
        }
        if (status == MEMFIT_OK)
            status = finish_epoch(r, err);
    }
    return status;
}

/* ---- results ---------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill_result(run *r, memfit_train_result *out)
{
    mf_trainer *t = &r->trainer;
    mf_trainer_sample(t);
    *out = (memfit_train_result){.planned_peak_bytes = t->fixed_bytes + t->plan->arena_bytes,
                                 .measured_peak_bytes = t->measured_peak,
                                 .arena_bytes = t->plan->arena_bytes,
                                 .arena_used_bytes = mf_trainer_used(t),
                                 .fixed_bytes = t->fixed_bytes,
                                 .limit_bytes = t->limit_bytes,
                                 .allocations_in_steps = -1,
                                 .steps = (int64_t)t->state.steps,
                                 .epochs = (int64_t)t->state.epoch,
                                 .loss = t->state.loss_weight > 0 ? t->state.loss_sum / t->state.loss_weight : 0,
                                 .val_loss = r->val_loss,
                                 .has_validation = r->has_validation,
                                 .metric_count = t->metric_count,
                                 .batch = t->plan->batch,
                                 .pieces = t->plan->pieces,
                                 .recomputed_ops = t->plan->recomputed_ops,
                                 .reference_ops = mf_executor_reference_ops(t->executor),
                                 .numerics = mf_numerics_name(t->plan->numerics),
                                 .planned_step_ms = t->plan->time_us * 1e-3,
                                 .first_step_seconds = r->first_step_seconds,
                                 .replans = r->replans,
                                 .answer_ms = (double)t->answer_us * 1e-3,
                                 .replan_ms = (double)r->replan_us * 1e-3,
                                 .stopped_early = r->stopped_early};
    for (uint32_t i = 0; i < t->metric_count; i++) {
        snprintf(out->metric_names[i], sizeof out->metric_names[i], "%s", t->metrics[i].name);
        out->metrics[i] = r->values[i];
        out->val_metrics[i] = r->val_values[i];
    }
    /* The first step pays for cold caches; the median does not care. */
    qsort(r->times, r->time_count, sizeof *r->times, by_value);
    if (r->time_count)
        out->step_ms = r->times[r->time_count / 2] * 1e-3;
    if (r->training_us > 0)
        out->samples_per_second = (double)r->samples_done / (r->training_us * 1e-6);
}

memfit_status memfit_train(const memfit_train_options *options, memfit_train_result *result, memfit_error *err)
{
    if (!options || options->size != sizeof *options || !result)
        return mf_fail(err, MEMFIT_MISUSE, "the options were not made by memfit_train_options_default");
    run *r = mf_host_zalloc(options->host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to start");
    memfit_status status = can_be_written(options->out, err);
    if (status == MEMFIT_OK)
        status = can_be_written(options->checkpoint, err);
    if (status == MEMFIT_OK)
        status = start(r, options, MF_MODE_TRAIN, err);
    if (status == MEMFIT_OK) {
        uint64_t before = options->allocation_count ? options->allocation_count() : 0;
        status = all_epochs(r, err);
        uint64_t after = options->allocation_count ? options->allocation_count() : 0;
        if (status == MEMFIT_OK)
            take_averages(&r->trainer); /* as fit() does at its end */
        if (status == MEMFIT_OK && options->out && !(options->keep_best && r->trainer.state.best < INFINITY))
            status = mf_checkpoint_write(r->checkpoint, options->out, false, err);
        if (status == MEMFIT_OK) {
            fill_result(r, result);
            if (options->allocation_count)
                result->allocations_in_steps = (int64_t)(after - before - r->allocations_between);
        }
        close_trace(r);
        if (status == MEMFIT_OK && r->late.code != MEMFIT_OK) {
            status = r->late.code;
            if (err)
                *err = r->late;
        }
    }
    end(r);
    mf_host_free(options->host, r, sizeof *r);
    return status;
}

/* ---- evaluate and predict ----------------------------------------------------------------------------------- */

static memfit_status walk_data(run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    double sum = 0;
    for (int64_t at = 0; at < t->train_samples;) {
        int64_t left = t->train_samples - at, batch = t->batch, count = left < batch ? left : batch;
        uint64_t before = mf_os_now_us();
        double loss;
        memfit_status status = mf_trainer_batch(t, false, at, count, &loss, err);
        if (status != MEMFIT_OK)
            return status;
        r->times[r->time_next] = (double)(mf_os_now_us() - before);
        r->training_us += (double)(mf_os_now_us() - before);
        r->time_next = (r->time_next + 1) % MOST_TIMES;
        r->time_count += r->time_count < MOST_TIMES;
        sum += loss * (double)count;
        at += count;
        r->samples_done += count;
        t->state.steps++;
        mf_trainer_sample(t);
    }
    t->state.loss_sum = sum;
    t->state.loss_weight = (double)t->train_samples;
    gather_metrics(r, r->values);
    return MEMFIT_OK;
}

static memfit_status forward_only(const memfit_train_options *options, mf_mode mode, memfit_train_result *result,
                                  memfit_status (*begin)(void *ctx, mf_trainer *t, memfit_error *err),
                                  memfit_status (*after_piece)(void *ctx, uint32_t phase, memfit_error *err), void *ctx,
                                  memfit_error *err)
{
    if (!options || options->size != sizeof *options || !result)
        return mf_fail(err, MEMFIT_MISUSE, "the options were not made by memfit_train_options_default");
    run *r = mf_host_zalloc(options->host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to start");
    memfit_status status = start(r, options, mode, err);
    if (status == MEMFIT_OK && begin)
        status = begin(ctx, &r->trainer, err);
    if (status == MEMFIT_OK) {
        uint64_t before = options->allocation_count ? options->allocation_count() : 0;
        mf_trainer_clear_metrics(&r->trainer);
        r->trainer.after_piece = after_piece;
        r->trainer.after_ctx = ctx;
        status = walk_data(r, err);
        uint64_t after = options->allocation_count ? options->allocation_count() : 0;
        if (status == MEMFIT_OK) {
            fill_result(r, result);
            if (options->allocation_count)
                result->allocations_in_steps = (int64_t)(after - before);
        }
    }
    end(r);
    mf_host_free(options->host, r, sizeof *r);
    return status;
}

memfit_status memfit_evaluate(const memfit_train_options *options, memfit_train_result *result, memfit_error *err)
{
    return forward_only(options, MF_MODE_EVALUATE, result, NULL, NULL, NULL, err);
}

typedef struct prediction {
    mf_trainer *trainer;
    mf_outfile out;
    bool open;
} prediction;

/* A .npy header for all samples, padded so that the data begins at a multiple of 64. */
static memfit_status begin_file(void *ctx, mf_trainer *t, memfit_error *err)
{
    prediction *p = ctx;
    p->trainer = t;
    if (!t->options->out)
        return MEMFIT_OK;
    memfit_status status = mf_os_out_open(&p->out, t->options->out, err);
    if (status != MEMFIT_OK)
        return status;
    p->open = true;
    const mf_graph *g = mf_trainer_graph(t);
    const mf_tensor *y = &g->tensors[g->outputs[0]];
    char head[256];
    int n = snprintf(head, sizeof head, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld,",
                     (long long)t->train_samples);
    for (uint32_t d = 1; d < y->shape.rank; d++)
        n += snprintf(head + n, sizeof head - (size_t)n, "%s %lld", d > 1 ? "," : "", (long long)y->shape.dim[d]);
    n += snprintf(head + n, sizeof head - (size_t)n, "), }");
    int length = (10 + n + 1 + 63) / 64 * 64 - 10;
    unsigned char magic[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
    fwrite(magic, 1, 10, p->out.file);
    fprintf(p->out.file, "%s%*s\n", head, length - n - 1, "");
    return MEMFIT_OK;
}

static memfit_status write_piece(void *ctx, uint32_t phase, memfit_error *err)
{
    prediction *p = ctx;
    if (!p->open)
        return MEMFIT_OK;
    const mf_graph *g = p->trainer->plan->phases[phase].graph;
    const mf_tensor *y = &g->tensors[g->outputs[0]];
    const void *data = mf_executor_tensor(p->trainer->executor, phase, g->outputs[0]);
    size_t bytes = mf_shape_count(&y->shape) * mf_dtype_bytes(y->dtype);
    if (!data || y->dtype != MF_F32)
        return mf_fail(err, MEMFIT_INTERNAL, "the model's output is not there as float32");
    if (fwrite(data, 1, bytes, p->out.file) != bytes)
        return mf_fail(err, MEMFIT_IO, "cannot write %s: %s\nwhat was there before is unchanged",
                       p->trainer->options->out, strerror(errno));
    return MEMFIT_OK;
}

memfit_status memfit_predict(const memfit_train_options *options, memfit_train_result *result, memfit_error *err)
{
    prediction p = {0};
    memfit_status status = forward_only(options, MF_MODE_PREDICT, result, begin_file, write_piece, &p, err);
    if (p.open && status == MEMFIT_OK)
        return mf_os_out_commit(&p.out, err);
    if (p.open)
        mf_os_out_abandon(&p.out);
    return status;
}
