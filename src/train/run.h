/*
 * run.h: one call of memfit_train, memfit_evaluate or memfit_predict from its start to its end, as the files of this
 * folder that carry it out share it:
 *
 *   run_begin.c   opens model and data, gets a plan admitted, gives the variables their first values; the result
 *   loop.c        memfit_train: epochs, steps, validation, callbacks
 *   replan.c      another plan while running, when the limit is lowered
 *   forward.c     memfit_evaluate and memfit_predict
 */
#ifndef MF_TRAIN_RUN_H
#define MF_TRAIN_RUN_H

#include "train/checkpoint.h"
#include "train/epoch_log.h"
#include "train/run_trace.h"
#include "train/step_clock.h"
#include "train/trainer.h"

enum { MF_RUN_MOST_TIMES = 4096 };

typedef struct mf_run {
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
    int64_t samples_done, steps_timed;
    float times[MF_RUN_MOST_TIMES], cpu_times[MF_RUN_MOST_TIMES]; /* us, of the last steps */
    uint32_t time_count, time_next;
    mf_step_clock steps; /* where the host does not wait for them */
    double first_step_seconds;
    int64_t replans;
    uint64_t replan_us; /* the longest change of plan */
    uint64_t kept_at;   /* steps that the last checkpoint of this run holds; 0: none was written */
    bool stop, stopped_early, has_validation, logs_failed;
    double val_loss;
    memfit_error late; /* code not OK: a log or checkpoint could not be written; training went on */
} mf_run;

/* One public call: reads the caller's options, which may be another version's, and hands its result back. */
typedef memfit_status mf_run_work(const memfit_train_options *options, memfit_train_result *result, memfit_error *err);
memfit_status mf_run_call(const memfit_train_options *given, memfit_train_result *result, mf_run_work *work,
                          memfit_error *err);
/* The process's one run; CONFLICT when there is one already. */
memfit_status mf_run_create(const memfit_train_options *options, mf_run **run, memfit_error *err);
void mf_run_destroy(mf_run *r, const memfit_host *host);
/* No output of a run is one of its inputs, or another output: INVALID, and nothing is opened yet. */
memfit_status mf_run_guard(const memfit_train_options *options, mf_mode mode, memfit_error *err);
/* The same for a file whose name only the model tells; one that is there must be an array. */
memfit_status mf_run_guard_array(const memfit_train_options *options, const char *path, memfit_error *err);
/* Everything a run needs is there afterwards, at its place: nothing is allocated until it ends. */
memfit_status mf_run_start(mf_run *r, const memfit_train_options *options, mf_mode mode, memfit_error *err);
/* Called by the admission of each plan: what needs host memory for the whole run takes it. ctx is the run. */
memfit_status mf_run_take(void *ctx, mf_trainer *t, memfit_error *err);
/* Names live in a plan's graph: asked for again with every plan. */
void mf_run_name_metrics(mf_run *r);
void mf_run_gather(mf_run *r, double *values, bool now); /* the metrics' values: as they stand, or as last seen */
/* Says whether steps run. */
void mf_run_in_steps(const mf_run *r, bool running);
/* A stop watch for one batch: wall and processor time. */
typedef struct mf_run_clock {
    uint64_t wall_ns, cpu_ns;
} mf_run_clock;
mf_run_clock mf_run_clock_start(const mf_run *r);
double mf_run_clock_stop(mf_run *r, mf_run_clock clock, int64_t samples); /* microseconds of the host's wall time */
/* Whatever is known by now of the steps that a device does on its own; all of them where `rest` is set. */
memfit_status mf_run_clock_read(mf_run *r, bool rest, memfit_error *err);
void mf_run_result(mf_run *r, memfit_train_result *out);
/* At the end, with the files written: INTERNAL with the figures when the process was seen above its limit. */
memfit_status mf_run_kept_limit(mf_run *r, memfit_error *err);
/* Goes on in a plan for `limit`, from the last finished step; or DOES_NOT_FIT with the explanation, after a checkpoint
 * was written (when one was asked for). */
memfit_status mf_run_replan(mf_run *r, uint64_t limit, memfit_error *err);

#endif
