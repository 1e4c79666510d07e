/*
 * results.h: what steps leave in the device's memory, and how the host reads it: loss, iteration, loss scale (the
 * device's part of mf_run_scalars) and the metrics' states.
 *
 *   device ── scalars, metrics ── copy, in the order of the stream ──> host memory the device may write ──> trainer.state
 *
 * Asking never waits: the host takes an answer when it has arrived, some steps later. Where the host reaches the
 * device's memory it has always arrived. Some models cannot wait: float16 may skip a step, and where the next step's
 * rate or group depends on that, the host reads each step before the next begins.
 */
#ifndef MF_TRAIN_RESULTS_H
#define MF_TRAIN_RESULTS_H

#include "train/trainer.h"

/* Takes host memory for the whole run; called with every plan. */
memfit_status mf_results_create(mf_trainer *t, memfit_error *err);
void mf_results_destroy(mf_trainer *t);

/* trainer.state to the device, when a run, an epoch or another plan begins. */
memfit_status mf_results_put(mf_trainer *t, memfit_error *err);
/* The device's scalars to trainer.state: waits for all that was queued, the only wait of an epoch. DIVERGED when a loss was
 * not finite. */
memfit_status mf_results_get(mf_trainer *t, memfit_error *err);

/* After a step: counts it, and asks for its results when none are on their way. *fresh: results have arrived since the
 * last call, of this step or an earlier one: trainer.state and the metrics are as of that one. DIVERGED as above. */
memfit_status mf_results_after_step(mf_trainer *t, bool *fresh, memfit_error *err);

/* The metrics' values: as last arrived within an epoch, else as they stand (`now`: waits, but for right after mf_results_get). */
double mf_results_metric(const mf_trainer *t, uint32_t metric, bool now);

#endif
