/*
 * run_trace.h: memory over time while a plan runs, as a trace (memfit/trace.h): the fixed cost, the arena, every
 * variable for the whole run, every tensor and workspace from the step that makes it to the step that needs it last.
 */
#ifndef MF_TRAIN_RUN_TRACE_H
#define MF_TRAIN_RUN_TRACE_H

#include "train/trainer.h"

typedef struct mf_run_trace mf_run_trace;

/* Nothing is opened yet: `path` must outlive the trace. */
memfit_status mf_run_trace_create(const memfit_host *host, const char *path, mf_run_trace **trace, memfit_error *err);
/* A plan is being admitted: looks up names and takes memory for lists, before the fixed cost is measured. */
memfit_status mf_run_trace_prepare(mf_run_trace *trace, const mf_trainer *t, memfit_error *err);
/* The first plan is admitted: opens the file. */
memfit_status mf_run_trace_open(mf_run_trace *trace, memfit_error *err);
/* From here on steps are recorded; begins with what lives as long as the plan. */
void mf_run_trace_begin(mf_run_trace *trace, const mf_trainer *t);
/* The plan is given up: all of it goes. */
void mf_run_trace_end(mf_run_trace *trace);
typedef enum { MF_RUN_EPOCH, MF_RUN_STEP, MF_RUN_VALIDATION } mf_run_mark;
void mf_run_trace_mark(mf_run_trace *trace, mf_run_mark mark); /* NULL: nothing happens */
/* For mf_executor_options.step. */
void mf_run_trace_step(void *trace, uint32_t phase, uint32_t step, bool begins);
/* Completes the file. IO when anything of it could not be written. */
memfit_status mf_run_trace_close(mf_run_trace *trace, memfit_error *err);
void mf_run_trace_destroy(mf_run_trace *trace);

#endif
