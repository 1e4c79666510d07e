/*
 * run_begin.c: the begin of a run and its result. See run.h.
 *
 * The limit, when none is given: what is available to the process, less 32 MiB for others, or the polite limit of its
 * cgroup if that is lower.
 */
#include "train/run.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/os.h"
#include "data/sample_cache.h"
#include "train/results.h"
#include "train/train_state.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LONG_STEP_US = 100 };

memfit_status mf_run_call(const memfit_train_options *given, memfit_train_result *result, mf_run_work *work,
                          memfit_error *err)
{
    memfit_train_options options = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result out = MEMFIT_TRAIN_RESULT;
    memfit_status status = mf_abi_check(result, "MEMFIT_TRAIN_RESULT", err);
    if (status == MEMFIT_OK && !given)
        status = mf_fail(err, MEMFIT_INVALID, "no options: a model and data are needed");
    if (status == MEMFIT_OK)
        status = mf_abi_read(&options, given, "MEMFIT_TRAIN_OPTIONS", err);
    if (status == MEMFIT_OK)
        status = work(&options, &out, err);
    if (status == MEMFIT_OK)
        mf_abi_write(result, &out, sizeof out);
    return status;
}

/* ---- making ready ----------------------------------------------------------------------------------------- */

memfit_status mf_run_take(void *ctx, mf_trainer *t, memfit_error *err)
{
    mf_run *r = ctx;
    t->ready_us = mf_os_now_us();
    memfit_status clock = r->steps.device ? MEMFIT_OK : mf_step_clock_create(&r->steps, t->device, t->stream, err);
    if (clock != MEMFIT_OK)
        return clock;
    mf_checkpoint_destroy(r->checkpoint);
    r->checkpoint = NULL;
    if (t->mode == MF_MODE_TRAIN && (t->options->out || t->options->checkpoint)) {
        memfit_status status = mf_checkpoint_create(t, &r->checkpoint, err);
        if (status == MEMFIT_OK)
            status = mf_checkpoint_metrics_place(t, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (r->trace) {
        memfit_status status = mf_run_trace_prepare(r->trace, t, err);
        if (status != MEMFIT_OK)
            return status;
    }
    if (!r->events && !r->logs_failed && t->mode == MF_MODE_TRAIN)
        return mf_events_create(t->host, t->options->log_csv, t->options->tensorboard, &r->events, err);
    return MEMFIT_OK;
}

/* Opens files that the run replaces or appends to: only now, when nothing can refuse the run any more. */
static memfit_status open_logs(mf_run *r, memfit_error *err)
{
    const mf_trainer *t = &r->trainer;
    int64_t resumed = !t->options->resume ? -1 : t->resumed.known ? (int64_t)t->resumed.epoch : INT64_MAX;
    memfit_status status = mf_events_open(r->events, resumed, err);
    return status == MEMFIT_OK && r->trace ? mf_run_trace_open(r->trace, err) : status;
}

static uint64_t chosen_limit(const mf_trainer *t)
{
    const memfit_train_options *o = t->options;
    return o->memory_bytes ? o->memory_bytes : mf_footprint_most(t->footprint, t->device);
}

static void first_state(mf_trainer *t)
{
    t->state = (struct mf_train_state){.seed = t->options->seed,
                                       .loss_scale = mf_trainer_graph(t)->needs_loss_scale ? 32768 : 1,
                                       .best = INFINITY,
                                       .plateau_best = INFINITY,
                                       .kept = INFINITY,
                                       .rate_factor = 1};
    const mf_graph *g = mf_trainer_graph(t);
    const mf_json *scaling;
    mf_keras_optimizer(t->model->compile, &scaling);
    if (g->needs_loss_scale && !g->optimizer_given && mf_json_get_number(scaling, "initial_scale", 0) >= 1)
        t->state.loss_scale = mf_json_get_number(scaling, "initial_scale", 0);
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
    if (!t->rate_given && t->schedule.kind == MF_RATE_CONSTANT && rate && rate->dtype == MF_F32 &&
        rate->shape.rank == 0) {
        float v;
        memcpy(&v, rate->data, 4);
        t->rate_stored = v > 0;
        if (t->rate_stored) /* reduced by a plateau; a checkpoint has the factor, and the rate it began with */
            t->schedule.initial = t->resumed.rate > 0 ? t->resumed.rate : (double)v;
    }
}

/* Operations of a step whose method adds in no fixed order. */
static uint32_t nondeterministic_ops(const mf_trainer *t)
{
    uint32_t count = 0;
    const mf_phase *phase = &t->plan->phases[0];
    for (uint32_t i = 0; i < phase->step_count; i++)
        count += phase->steps[i].method && !phase->steps[i].method->deterministic;
    return count;
}

static void say_order(mf_trainer *t)
{
    uint32_t count = nondeterministic_ops(t);
    if (count)
        mf_log_write(&t->log, MF_LOG_NOTE,
                     "%u operation%s in no fixed order: the same run again%s gives other bits (reordered)", count,
                     count == 1 ? " adds" : "s add", t->options->resume ? ", or without a stop," : "");
    else if (!t->footprint->host)
        mf_log_write(&t->log, MF_LOG_NOTE, "--allow-nondeterministic changes nothing: every method has a fixed order");
}

/* Plans: with everything that was tried before the last one. */
static void say_start(mf_trainer *t, uint64_t began_us)
{
    const uint64_t at[] = {began_us, t->opened_us, t->planned_us, t->ready_us, t->recording_us, mf_os_now_us()};
    double s[6];
    for (int i = 1; i < 6; i++)
        s[i] = at[i] > at[i - 1] ? (double)(at[i] - at[i - 1]) * 1e-6 : 0;
    mf_log_write(&t->log, MF_LOG_DETAIL,
                 "start: %.2f s: files and device %.2f, plans %.2f, kernels %.2f, their first runs %.2f, records and "
                 "weights %.2f",
                 (double)(at[5] - at[0]) * 1e-6, s[1], s[2], s[3], s[4], s[5]);
}

static void say_once(mf_trainer *t)
{
    const mf_graph *g = mf_trainer_graph(t);
    if (t->mode == MF_MODE_TRAIN && !t->options->out && !t->options->checkpoint)
        mf_log_write(&t->log, MF_LOG_NOTE,
                     "without --out FILE.keras or --checkpoint FILE nothing of this training is kept");
    if (g->optimizer_assumed && t->mode == MF_MODE_TRAIN)
        mf_log_write(&t->log, MF_LOG_WARNING, "the file names no optimizer: %s is assumed", g->optimizer_name);
    if (g->loss_assumed && t->mode != MF_MODE_PREDICT)
        mf_log_write(&t->log, MF_LOG_WARNING, "the file names no loss: %s is assumed", g->loss_name);
    uint64_t trained = 0;
    for (uint32_t i = 0; i < g->layer_count; i++)
        trained += g->layers[i].trainable_count;
    if (!trained && t->mode == MF_MODE_TRAIN)
        mf_log_write(&t->log, MF_LOG_WARNING,
                     "no weight will be trained: every layer is frozen (trainable = False) or has none");
    const int64_t classes = mf_feeder_classes(g);
    if (classes > 1 && t->class_count > classes)
        mf_log_write(&t->log, MF_LOG_WARNING, "%s weighs label %lld, which no sample has: the labels are 0 to %lld",
                     t->options->class_weight, (long long)t->class_count - 1, (long long)classes - 1);
    if (g->ignored_metrics)
        mf_log_write(&t->log, MF_LOG_WARNING, "not computed: the metrics %s", g->ignored_metrics);
    uint32_t metrics = 0;
    for (uint32_t v = 0; v < g->variable_count; v++)
        metrics += g->variables[v].role == MF_VAR_METRIC;
    if (metrics > t->metric_count)
        mf_log_write(&t->log, MF_LOG_NOTE, "%u of the model's %u metrics are shown", t->metric_count, metrics);
    if (t->metrics_left_out)
        mf_log_write(&t->log, MF_LOG_NOTE, "the first %u metrics are shown, %u are not", t->metric_count,
                     t->metrics_left_out);
    if (t->plan->pieces > 1)
        mf_log_write(&t->log, MF_LOG_NOTE, "each batch of %lld runs in %lld micro-batches (%s)",
                     (long long)t->plan->batch, (long long)t->plan->pieces, mf_numerics_name(t->plan->numerics));
    if (t->plan->chunks > 1)
        mf_log_write(&t->log, MF_LOG_NOTE, "the last layer and its loss run in %u chunks (%s)", t->plan->chunks,
                     mf_numerics_name(t->plan->numerics));
    else if (g->whole_why && t->mode == MF_MODE_TRAIN && t->plan->numerics != MF_BITWISE)
        mf_log_write(&t->log, MF_LOG_DETAIL, "the last layer and its loss run whole: %s", g->whole_why);
    if (t->plan->recomputed_ops)
        mf_log_write(&t->log, MF_LOG_NOTE, "%u operations are computed twice instead of kept (same result)",
                     t->plan->recomputed_ops);
    if (t->options->allow_nondeterministic)
        say_order(t);
    char text[24];
    if (t->plan->offloaded_bytes)
        mf_log_write(&t->log, MF_LOG_NOTE, "%s of the optimizer's state are in host memory (same result)",
                     memfit_size_format(t->plan->offloaded_bytes, text, sizeof text));
    else if (t->options->offload && t->device->reachable && strcmp(t->options->offload, "off") != 0)
        mf_log_write(&t->log, MF_LOG_NOTE, "--offload is about cards: on cpu all state is in the host's memory");
    if (t->backend->note[0])
        mf_log_write(&t->log, MF_LOG_NOTE, "%s", t->backend->note);
    if (mf_executor_reference_ops(t->executor))
        mf_log_write(&t->log, MF_LOG_DETAIL, "%u operations run on the slow reference kernels: %s",
                     mf_executor_reference_ops(t->executor), mf_executor_reference_name(t->executor));
}

void mf_run_name_metrics(mf_run *r)
{
    for (uint32_t i = 0; i < r->trainer.metric_count; i++)
        r->names[i] = r->trainer.metrics[i].name;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* A name without what looks like its ending: "a.b/trained" and "trained.h5" give "trained" in their folders. */
static size_t stem_length(const char *path)
{
    size_t n = strlen(path);
    return n > 3 && ends_in(path, ".h5") ? n - 3 : n > 5 && ends_in(path, ".hdf5") ? n - 5 : n;
}

/* Keras 3 reads few archives of Keras 2, whoever wrote them last: tells the user before it happens. */
static void say_old_form(const mf_trainer *t)
{
    const char *version = t->model->keras_version;
    if (t->model->container == MF_CONTAINER_KERAS_ZIP && version && (*version == '1' || *version == '2') &&
        version[1] == '.')
        mf_log_write(&t->log, MF_LOG_NOTE,
                     "the model was saved by Keras %.20s and goes back in that form: what reads the original reads it "
                     "(tf_keras; Keras 3 often does not)",
                     version);
}

/* A file goes back in the form it came in, and Keras goes by its name: refuses a wrong name before hours are spent. */
static memfit_status check_out_name(const mf_trainer *t, memfit_error *err)
{
    const char *out = t->options->out;
    bool hdf5 = t->model->container == MF_CONTAINER_HDF5;
    if (!out || t->mode != MF_MODE_TRAIN)
        return MEMFIT_OK;
    say_old_form(t);
    mf_os_place place; /* what counts is the name of the file itself: /dev/stdout may be any */
    const char *name = mf_os_find_place(out, &place) ? place.path : out;
    bool good = hdf5 ? ends_in(name, ".h5") || ends_in(name, ".hdf5") : ends_in(name, ".keras");
    if (good || place.type == MF_PLACE_OTHER)
        return MEMFIT_OK;
    if (!hdf5)
        return mf_fail(err, MEMFIT_INVALID,
                       "--out %.200s: this model is written in the .keras format, which Keras reads under no other "
                       "name\nend the name in .keras: --out %.*s.keras",
                       out, (int)stem_length(out), out);
    if (!ends_in(out, ".keras") || !ends_in(t->options->model, ".keras"))
        return mf_fail(err, MEMFIT_INVALID,
                       "--out %.200s: the model came as .h5 and goes back so, and Keras does not read that under this "
                       "name\nend the name in .h5, or load the model in Keras and save it as .keras first",
                       out);
    mf_log_write(&t->log, MF_LOG_WARNING,
                 "the model came as HDF5, whatever its name, and goes back so: Keras 3 reads %s when it is renamed to "
                 "end in .h5",
                 out);
    return MEMFIT_OK;
}

/* A limit is the whole process's, and so is what is measured: two runs would count each other's memory as their own. */
static atomic_flag in_use = ATOMIC_FLAG_INIT;

memfit_status mf_run_create(const memfit_train_options *options, mf_run **run, memfit_error *err)
{
    if (atomic_flag_test_and_set(&in_use))
        return mf_fail(err, MEMFIT_CONFLICT,
                       "another training, evaluation or prediction runs in this process\n"
                       "let it end first, or start a process for each: a limit bounds a whole process");
    *run = mf_host_zalloc(options->host, sizeof **run);
    if (*run)
        return MEMFIT_OK;
    atomic_flag_clear(&in_use);
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to start");
}

memfit_status mf_run_start(mf_run *r, const memfit_train_options *options, mf_mode mode, memfit_error *err)
{
    r->began_us = mf_os_now_us();
    mf_trainer *t = &r->trainer;
    memfit_status status = mf_run_guard(options, mode, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_trainer_open(t, options, mode, err);
    t->opened_us = mf_os_now_us();
    if (status == MEMFIT_OK)
        status = check_out_name(t, err);
    if (status == MEMFIT_OK)
        status = mf_trainer_say_precision(t, err);
    if (mf_trainer_was_refused(t, status)) /* admission then says what is missing */
        status = MEMFIT_OK;
    if (status == MEMFIT_OK && options->trace) {
        status = mf_run_trace_create(t->host, options->trace, &r->trace, err);
        t->step = mf_run_trace_step;
        t->step_ctx = r->trace;
    }
    if (status == MEMFIT_OK)
        status = mf_trainer_admit(t, chosen_limit(t), mf_run_take, r, err);
    if (status == MEMFIT_DOES_NOT_FIT && t->resumed.pieces) {
        t->resumed.pieces = t->resumed.chunks = 0;
        status = mf_trainer_admit(t, chosen_limit(t), mf_run_take, r, err);
        if (status == MEMFIT_OK)
            mf_log_write(&t->log, MF_LOG_WARNING,
                         "the limit is lower than before: other micro-batches, and rounding differs");
    }
    t->resumed.pieces = t->resumed.chunks = 0;
    if (status == MEMFIT_INTERRUPTED)
        return mf_fail(err, status, "stopped before the first step");
    if (status != MEMFIT_OK)
        return status;
    status = mf_state_initialize(t, err);
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
        mf_run_gather(r, r->values, true); /* it may be the end of an epoch that is resumed: no step would */
    }
    status = mf_results_put(t, err); /* there may be no step to do, and a file to write */
    if (status != MEMFIT_OK)
        return status;
    status = open_logs(r, err);
    if (status != MEMFIT_OK)
        return status;
    if (t->feeder)
        t->feeder->check = true;
    if (t->validation_feeder)
        t->validation_feeder->check = true;
    mf_run_name_metrics(r);
    say_once(t);
    say_start(t, r->began_us);
    mf_trainer_sample(t);
    if (r->trace)
        mf_run_trace_begin(r->trace, t);
    return MEMFIT_OK;
}

void mf_run_destroy(mf_run *r, const memfit_host *host)
{
    mf_run_trace_destroy(r->trace);
    mf_checkpoint_destroy(r->checkpoint);
    mf_events_destroy(r->events);
    mf_step_clock_destroy(&r->steps);
    mf_trainer_close(&r->trainer);
    mf_host_free(host, r, sizeof *r);
    atomic_flag_clear(&in_use);
}

/* ---- results ---------------------------------------------------------------------------------------------- */

void mf_run_gather(mf_run *r, double *values, bool now)
{
    for (uint32_t i = 0; i < r->trainer.metric_count; i++)
        values[i] = mf_results_metric(&r->trainer, i, now);
}

void mf_run_in_steps(const mf_run *r, bool running)
{
    if (r->trainer.options->in_steps)
        r->trainer.options->in_steps(r->trainer.options->ctx, running);
}

/* Asking for the processor time costs a microsecond or two: too much for steps that take ten. */
mf_run_clock mf_run_clock_start(const mf_run *r)
{
    uint32_t last = (r->time_next + MF_RUN_MOST_TIMES - 1) % MF_RUN_MOST_TIMES;
    bool is_long = r->time_count && r->times[last] >= LONG_STEP_US;
    return (mf_run_clock){.wall_ns = mf_os_now_ns(), .cpu_ns = is_long ? mf_os_cpu_ns() : 0};
}

static void keep_time(mf_run *r, double us, float cpu_us)
{
    r->training_us += us;
    r->times[r->time_next] = (float)us;
    r->cpu_times[r->time_next] = cpu_us;
    r->time_next = (r->time_next + 1) % MF_RUN_MOST_TIMES;
    r->time_count += r->time_count < MF_RUN_MOST_TIMES;
}

double mf_run_clock_stop(mf_run *r, mf_run_clock clock, int64_t samples)
{
    double took_us = (double)(mf_os_now_ns() - clock.wall_ns) * 1e-3; /* the steps of small models take ten */
    r->steps_timed++;
    r->samples_done += samples;
    if (!r->steps.device)
        keep_time(r, took_us, clock.cpu_ns ? (float)(mf_os_cpu_ns() - clock.cpu_ns) * 1e-3f : 0);
    return took_us;
}

static void step_took(void *ctx, double us)
{
    keep_time(ctx, us, 0);
}

memfit_status mf_run_clock_read(mf_run *r, bool rest, memfit_error *err)
{
    return rest ? mf_step_clock_rest(&r->steps, step_took, r, err) : mf_step_clock_step(&r->steps, step_took, r, err);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The median of the times that were taken; the others are 0 and sort to the front. */
static double median_ms(float *times, uint32_t count)
{
    qsort(times, count, sizeof *times, by_value);
    uint32_t first = 0;
    while (first < count && times[first] == 0)
        first++;
    return first < count ? (double)times[first + (count - first) / 2] * 1e-3 : 0;
}

memfit_status mf_run_kept_limit(mf_run *r, memfit_error *err)
{
    mf_trainer *t = &r->trainer;
    const char *out = t->options->out;
    char measured[24], limit[24], planned[24];
    mf_trainer_sample(t);
    if (t->measured_peak <= t->limit_bytes)
        return MEMFIT_OK;
    memfit_status status = mf_fail(
        err, MEMFIT_INTERNAL,
        "the limit was not held: the process took %s (%llu bytes), the limit is %s (%llu bytes), %s were planned\n%s%s",
        memfit_size_format(t->measured_peak, measured, sizeof measured), (unsigned long long)t->measured_peak,
        memfit_size_format(t->limit_bytes, limit, sizeof limit), (unsigned long long)t->limit_bytes,
        memfit_size_format(t->fixed_bytes + t->plan->arena_bytes, planned, sizeof planned),
        out ? "the results are right and in " : "the results are right", out ? out : "");
    if (err) {
        err->requested_bytes = t->measured_peak;
        err->limit_bytes = t->limit_bytes;
    }
    return status;
}

void mf_run_result(mf_run *r, memfit_train_result *out)
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
                                 .loss_chunks = t->plan->chunks,
                                 .offloaded_bytes = t->plan->offloaded_bytes,
                                 .recomputed_ops = t->plan->recomputed_ops,
                                 .reference_ops = mf_executor_reference_ops(t->executor),
                                 .numerics = mf_numerics_name(t->plan->numerics),
                                 .nondeterministic_ops = nondeterministic_ops(t),
                                 .planned_step_ms = t->plan->time_us * 1e-3,
                                 .first_step_seconds = r->first_step_seconds,
                                 .replans = r->replans,
                                 .answer_ms = (double)t->answer_us * 1e-3,
                                 .replan_ms = (double)r->replan_us * 1e-3,
                                 .stopped_early = r->stopped_early};
    snprintf(out->made_by, sizeof out->made_by, "%s", t->backend->made_by[0] ? t->backend->made_by : "cpu");
    for (uint32_t i = 0; i < t->metric_count; i++) {
        snprintf(out->metric_names[i], sizeof out->metric_names[i], "%s", t->metrics[i].name);
        out->metrics[i] = r->values[i];
        out->val_metrics[i] = r->val_values[i];
    }
    /* The first step has cold caches; the median ignores it. */
    out->step_ms = median_ms(r->times, r->time_count);
    out->step_cpu_ms = median_ms(r->cpu_times, r->time_count);
    if (r->training_us > 0)
        out->samples_per_second = (double)r->samples_done / (r->training_us * 1e-6);
    if (t->ring) {
        mf_ring_times times = mf_ring_read_times(t->ring);
        int64_t steps = r->steps_timed > 0 ? r->steps_timed : 1;
        out->input_wait_ms = (double)times.wait_ns * 1e-6 / (double)steps;
        out->input_share = r->training_us > 0 ? fmin((double)times.wait_ns * 1e-3 / r->training_us, 1) : 0;
        out->decode_ms = times.made ? (double)times.make_ns * 1e-6 / (double)times.made : 0;
        out->workers = mf_ring_workers(t->ring);
        out->worker_layers = t->front_layers;
        out->input_bytes = mf_ring_bytes(t->ring);
        out->skipped = times.skipped;
        const mf_source *sources[2] = {t->source, t->validation_source};
        for (int i = 0; i < 2; i++) {
            mf_cache_counts c = mf_cache_read_counts(sources[i]);
            out->cache_found += c.found;
            out->cache_refused += c.refused;
            out->cache_samples += c.memory_samples;
            out->cache_bytes += c.memory_bytes;
        }
    }
}
