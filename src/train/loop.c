/*
 * loop.c: the training loop with Keras's semantics: epochs, shuffling, running means, validation at the end of each
 * epoch, callbacks. Everything it needs is taken before the first step (run.h); a step allocates nothing.
 *
 * Resuming: the state block says epoch, position and iteration; the order of an epoch and every random number follow
 * from the seed and these, so a resumed run does what the undisturbed one would have done, bit for bit.
 */
#include "train/run.h"

#include "base/error.h"
#include "base/os.h"
#include "train/results.h"
#include "train/train_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLATEAU_DELTA 1e-4

/* ---- what goes to disk while running ------------------------------------------------------------------------ */

/* A full disk must not cost the training: note it, go on, and fail at the end of the call. */
static void go_on_without(mf_run *r, const memfit_error *failed, const char *what)
{
    r->late = *failed;
    mf_log_write(&r->trainer.log, MF_LOG_WARNING, "%s; training goes on %s", failed->message, what);
}

static bool write_checkpoint(mf_run *r)
{
    memfit_error failed;
    bool written = mf_checkpoint_write(r->checkpoint, r->trainer.options->checkpoint, true, &failed) == MEMFIT_OK;
    if (!written)
        go_on_without(r, &failed, "without this checkpoint");
    else
        r->kept_at = r->trainer.state.steps;
    return written;
}

static bool write_best(mf_run *r)
{
    memfit_error failed;
    bool written = mf_checkpoint_write(r->checkpoint, r->trainer.options->out, false, &failed) == MEMFIT_OK;
    if (!written)
        go_on_without(r, &failed, "without keeping these weights");
    else
        r->trainer.state.kept_file = mf_os_file_fingerprint(r->trainer.options->out);
    return written;
}

static void write_logs(mf_run *r)
{
    memfit_error failed;
    if (mf_events_epoch(r->events, &r->event, &failed) == MEMFIT_OK)
        return;
    mf_events_destroy(r->events);
    r->events = NULL;
    r->logs_failed = true;
    go_on_without(r, &failed, "without logs");
}

/* Completes the trace, whatever ended the run. */
static void close_trace(mf_run *r)
{
    if (!r->trace)
        return;
    memfit_error failed;
    mf_run_trace_end(r->trace);
    if (mf_run_trace_close(r->trace, &failed) != MEMFIT_OK)
        r->late = failed;
}

/* Checks before hours are spent that these files can be written. */
static memfit_status can_be_written(const char *path, memfit_error *err)
{
    return path ? mf_os_raw_probe(path, err) : MEMFIT_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

/* A card's figures come from NVML, which allocates; that does not count as a step's allocation. */
static uint64_t sample(mf_run *r)
{
    const memfit_train_options *o = r->trainer.options;
    bool apart = !r->trainer.footprint->host && o->allocation_count;
    uint64_t before = apart ? o->allocation_count(o->ctx) : 0, now = mf_trainer_sample(&r->trainer);
    r->allocations_between += apart ? o->allocation_count(o->ctx) - before : 0;
    return now;
}

static void tell(mf_run *r, bool epoch_end, double step_seconds)
{
    mf_trainer *t = &r->trainer;
    uint64_t now = mf_os_now_us();
    if (now - r->last_sample_us >= t->footprint->every_us || epoch_end) {
        r->memory_now = sample(r);
        r->last_sample_us = now;
    }
    int64_t batches = (t->train_samples + t->plan->batch - 1) / t->plan->batch;
    r->event =
        (memfit_train_event){.size = sizeof(memfit_train_event),
                             .epoch = (int64_t)t->state.epoch,
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
                             .limit_bytes = t->limit_bytes,
                             .planned_bytes = t->fixed_bytes + t->plan->arena_bytes};
    if (t->options->progress)
        t->options->progress(t->options->ctx, &r->event);
}

/* use_ema: weights become their averages. */
static void take_averages(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    for (uint32_t v = 0; v < g->variable_count; v++)
        if (g->variables[v].role == MF_VAR_EMA)
            mf_state_copy(t, v, g->variables[v].parameter);
}

/* Keras's ema_overwrite_frequency counts groups of accumulated steps, the one that is open as a whole. */
static bool is_averages_turn(const mf_trainer *t, uint64_t iteration)
{
    uint64_t every = mf_trainer_graph(t)->average_every, group = mf_trainer_graph(t)->accumulation_steps;
    return every && (iteration / (group ? group : 1) + 1) % every == 0;
}

/* A sample that cannot be made fails before the step begins; a checkpoint keeps the steps until here. */
static memfit_status wait_for_input(mf_run *r, int64_t count, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    memfit_status status = mf_feeder_wait(t->feeder, (int64_t)t->state.position, count, err);
    if (status != MEMFIT_OK && t->state.steps && t->options->checkpoint && write_checkpoint(r) && err) {
        size_t n = strlen(err->hint);
        snprintf(err->hint + n, sizeof err->hint - n, "%safter %llu steps; --resume %.200s goes on from here",
                 n ? "; " : "", (unsigned long long)t->state.steps, t->options->checkpoint);
    }
    return status;
}

static memfit_status one_step(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    int64_t left = t->train_samples - (int64_t)t->state.position;
    int64_t count = left < t->plan->batch ? left : t->plan->batch;
    mf_run_clock clock = mf_run_clock_start(r);
    uint64_t iteration = t->state.iteration;
    mf_run_trace_mark(r->trace, MF_RUN_STEP);
    if (t->options->prefetch > 0)
        mf_feeder_read_ahead(t->feeder, (int64_t)t->state.position + count, t->options->prefetch * t->plan->batch);
    memfit_status status = wait_for_input(r, count, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_trainer_batch(t, false, (int64_t)t->state.position, count, err);
    if (status == MEMFIT_INTERRUPTED)
        return mf_fail(err, status, "stopped before the first step was done\n%s",
                       t->options->resume ? "the checkpoint is as it was" : "");
    if (status != MEMFIT_OK)
        return status;
    t->stepped = true;
    bool fresh;
    status = mf_results_after_step(t, &fresh, err);
    if (status != MEMFIT_OK)
        return status;
    double took = mf_run_clock_stop(r, clock, count);
    status = mf_run_clock_read(r, false, err);
    if (status != MEMFIT_OK)
        return status;
    if (t->state.iteration != iteration && is_averages_turn(t, iteration))
        take_averages(t);
    if (fresh)
        mf_run_gather(r, r->values, false);
    t->state.step_in_epoch++;
    t->state.position += (uint64_t)count;
    if (r->first_step_seconds == 0)
        r->first_step_seconds = (double)(mf_os_now_us() - r->began_us) * 1e-6;
    tell(r, false, took * 1e-6);
    return MEMFIT_OK;
}

/* The caller wants to stop: writes the checkpoint, if there is one. */
static memfit_status interrupted(mf_run *r, memfit_error *err)
{
    const memfit_train_options *o = r->trainer.options;
    unsigned long long steps = r->trainer.state.steps;
    if (!o->checkpoint || !write_checkpoint(r))
        return mf_fail(err, MEMFIT_INTERRUPTED,
                       "stopped after %llu steps, nothing kept\n--checkpoint FILE keeps what is done", steps);
    return mf_fail(err, MEMFIT_INTERRUPTED, "stopped after %llu steps\n--resume %s goes on from here", steps,
                   o->checkpoint);
}

/* Drops the samples kept in memory first; if that suffices, the plan stays. */
static memfit_status go_below(mf_run *r, uint64_t limit, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    mf_trainer_drop_cache(t);
    if (t->fixed_bytes + t->plan->arena_bytes > limit)
        return mf_run_replan(r, limit, err);
    t->limit_bytes = limit;
    t->measured_peak = 0;
    return mf_trainer_take_cache(t, err);
}

/* Asks the caller, between steps and between batches of validation: should it stop, has the limit changed? */
static memfit_status obey(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    if (o->stop && o->stop(o->ctx))
        return interrupted(r, err);
    uint64_t limit = o->limit ? o->limit(o->ctx) : 0;
    if (limit && limit < t->limit_bytes && t->fixed_bytes + t->plan->arena_bytes > limit) {
        uint64_t before = o->allocation_count ? o->allocation_count(o->ctx) : 0;
        mf_run_in_steps(r, false);
        memfit_status status = go_below(r, limit, err);
        mf_run_in_steps(r, true);
        if (o->allocation_count) /* planning again is not part of a step */
            r->allocations_between += o->allocation_count(o->ctx) - before;
        return status;
    }
    if (limit && limit < t->limit_bytes)
        t->limit_bytes = limit; /* the present plan fits it */
    return MEMFIT_OK;
}

static memfit_status validate(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    if (t->validation_samples == 0)
        return MEMFIT_OK;
    if (t->kept_metrics)
        mf_checkpoint_keep_metrics(t);
    t->validating = true;
    mf_trainer_clear_metrics(t);
    mf_run_trace_mark(r->trace, MF_RUN_VALIDATION);
    int64_t batch = t->validation_batch;
    t->state.seen_sum = t->state.seen_weight = 0;
    memfit_status begun = mf_results_put(t, err);
    if (begun != MEMFIT_OK)
        return begun;
    for (int64_t at = 0; at < t->validation_samples; at += batch) {
        int64_t count = t->validation_samples - at < batch ? t->validation_samples - at : batch;
        memfit_status status = obey(r, err);
        if (status == MEMFIT_OK)
            status = mf_trainer_batch(t, true, at, count, err);
        if (status != MEMFIT_OK)
            return status;
    }
    memfit_status status = mf_results_get(t, err);
    if (status != MEMFIT_OK)
        return status;
    t->validating = false;
    r->has_validation = true;
    r->val_loss = t->state.seen_sum / (double)t->validation_samples;
    mf_run_gather(r, r->val_values, true);
    return MEMFIT_OK;
}

/* Early stopping, plateau, best weights; Keras's rules with its defaults of min_delta: 0, but for the plateau. */
static void after_epoch(mf_run *r)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    double watched = r->has_validation          ? r->val_loss
                     : t->state.loss_weight > 0 ? t->state.loss_sum / t->state.loss_weight
                                                : INFINITY;
    if (o->keep_best && o->out && watched < t->state.kept && write_best(r))
        t->state.kept = watched; /* after a failed write the next better one is written */
    if (watched < t->state.best) {
        t->state.waited = 0;
        t->state.best = watched;
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
}

static memfit_status finish_epoch(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    /* Cut short by a number of steps: the resumed run does the rest of the epoch. */
    bool whole = t->state.position >= (uint64_t)t->train_samples;
    bool save = t->options->checkpoint && t->options->save_freq == 0;
    memfit_status status = mf_results_get(t, err); /* an epoch's figures include all its steps */
    if (status == MEMFIT_OK)
        status = mf_run_clock_read(r, true, err);
    if (status != MEMFIT_OK)
        return status;
    mf_run_gather(r, r->values, true);
    if (save && !whole)
        write_checkpoint(r);
    status = validate(r, err);
    if (status == MEMFIT_OK) {
        tell(r, true, 0);
        write_logs(r);
        after_epoch(r);
    }
    t->feeder->check = false;
    if (t->validation_feeder)
        t->validation_feeder->check = false;
    if (status != MEMFIT_OK)
        return status;
    t->state.epoch++;
    t->state.position = t->state.step_in_epoch = 0;
    if (save && whole)
        write_checkpoint(r);
    return MEMFIT_OK;
}

static memfit_status between_steps(mf_run *r, memfit_error *err)
{
    const memfit_train_options *o = r->trainer.options;
    if (o->checkpoint && o->save_freq > 0 && r->trainer.state.steps % (uint64_t)o->save_freq == 0)
        write_checkpoint(r);
    return obey(r, err);
}

static memfit_status all_epochs(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    memfit_status status = MEMFIT_OK;
    r->stop = o->steps && t->state.steps >= (uint64_t)o->steps;
    if (o->resume && (r->stop || t->state.epoch >= (uint64_t)o->epochs))
        mf_log_write(&t->log, MF_LOG_WARNING,
                     "nothing is left of --%s %lld: %s has done as many; the number counts from the beginning, and a "
                     "larger one goes on",
                     r->stop ? "steps" : "epochs", (long long)(r->stop ? o->steps : o->epochs), o->resume);
    while (status == MEMFIT_OK && !r->stop && t->state.epoch < (uint64_t)o->epochs) {
        mf_feeder_shuffle(t->feeder, t->state.seed, t->state.epoch);
        mf_feeder_begin_steps(t->feeder, t->state.seed, t->state.iteration, (int64_t)t->state.position, t->plan->batch);
        r->epoch_began_us = mf_os_now_us();
        mf_run_trace_mark(r->trace, MF_RUN_EPOCH);
        if (t->state.position == 0) {
            mf_trainer_clear_metrics(t);
            t->state.loss_sum = t->state.loss_weight = 0;
        }
        status = mf_results_put(t, err);
        if (status == MEMFIT_OK)
            status = mf_step_clock_epoch(&r->steps, err);
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

/* The best weights of the resumed run count only if --out still holds them, byte for byte as they were written.
 * Otherwise the end of the first epoch replaces the file. */
static void find_best(mf_run *r)
{
    mf_trainer *t = &r->trainer;
    const memfit_train_options *o = t->options;
    if (!o->keep_best || !o->out || !o->resume)
        return;
    if (t->state.kept < INFINITY && t->state.kept_file == mf_os_file_fingerprint(o->out))
        return;
    t->state.kept = INFINITY;
    if (t->state.best < INFINITY)
        mf_log_write(&t->log, MF_LOG_WARNING,
                     "the best weights so far are not in %s: from here on the best that follow go there", o->out);
}

/* Writes the trained model. If the disk is full, it goes to the folder for temporary files, and err says so; not for
 * pipes and devices. */
static memfit_status save_out(mf_run *r, memfit_error *err)
{
    const char *out = r->trainer.options->out, *slash = strrchr(out, '/');
    char path[512];
    memfit_error own, failed;
    err = err ? err : &own;
    memfit_status status = mf_checkpoint_write(r->checkpoint, out, false, err);
    if (status != MEMFIT_IO || mf_os_is_stream(out) || !mf_os_temporary_folder(path, sizeof path))
        return status; /* a folder of its own, so that nobody else can have put a link there */
    size_t n = strlen(path);
    int m = snprintf(path + n, sizeof path - n, "/%s", slash ? slash + 1 : out);
    if (m < (int)(sizeof path - n) && mf_checkpoint_write(r->checkpoint, path, false, &failed) == MEMFIT_OK) {
        snprintf(err->hint, sizeof err->hint, "the trained model is in %.400s; what was there before is unchanged",
                 path);
        return status;
    }
    path[n] = 0;
    mf_os_remove_folder(path);
    return status;
}

/* The device failed, and the training since the last file is lost: says where that file is. */
static void say_what_is_kept(const mf_run *r, memfit_error *err)
{
    const memfit_train_options *o = r->trainer.options;
    if (!err || !r->trainer.stepped)
        return;
    size_t n = strlen(err->hint);
    const char *line = n ? "; " : "";
    if (r->kept_at)
        snprintf(err->hint + n, sizeof err->hint - n, "%sthe first %llu steps are in %.160s: --resume goes on from it",
                 line, (unsigned long long)r->kept_at, o->checkpoint);
    else if (o->resume)
        snprintf(err->hint + n, sizeof err->hint - n, "%s%.160s is as it was: --resume goes on from it again", line,
                 o->resume);
    else
        snprintf(err->hint + n, sizeof err->hint - n, "%swith --checkpoint FILE what was learned would be kept%s", line,
                 o->checkpoint ? "; --save-freq N writes it more often" : "");
}

/* ---- all of it -------------------------------------------------------------------------------------------- */

static memfit_status train(const memfit_train_options *options, memfit_train_result *result, memfit_error *err)
{
    mf_run *r;
    memfit_status status = mf_run_create(options, &r, err);
    if (status != MEMFIT_OK)
        return status;
    status = can_be_written(options->out, err);
    if (status == MEMFIT_OK)
        status = can_be_written(options->checkpoint, err);
    if (status == MEMFIT_OK)
        status = mf_run_start(r, options, MF_MODE_TRAIN, err);
    if (status == MEMFIT_OK) {
        find_best(r);
        mf_run_in_steps(r, true);
        uint64_t before = options->allocation_count ? options->allocation_count(options->ctx) : 0;
        status = all_epochs(r, err);
        uint64_t after = options->allocation_count ? options->allocation_count(options->ctx) : 0;
        mf_run_in_steps(r, false);
        if (status == MEMFIT_DEVICE)
            say_what_is_kept(r, err);
        if (status == MEMFIT_OK)
            take_averages(&r->trainer); /* as fit() does at its end */
        if (status == MEMFIT_OK && options->out && !(options->keep_best && r->trainer.state.kept < INFINITY))
            status = save_out(r, err);
        if (status == MEMFIT_OK) {
            mf_run_result(r, result);
            if (options->allocation_count)
                result->allocations_in_steps = (int64_t)(after - before - r->allocations_between);
        }
        close_trace(r);
        if (status == MEMFIT_OK)
            status = mf_run_kept_limit(r, err);
        if (status == MEMFIT_OK && r->late.code != MEMFIT_OK) {
            status = r->late.code;
            if (err)
                *err = r->late;
        }
    }
    mf_run_destroy(r, options->host);
    return status;
}

memfit_status memfit_train(const memfit_train_options *given, memfit_train_result *result, memfit_error *err)
{
    return mf_run_call(given, result, train, err);
}
