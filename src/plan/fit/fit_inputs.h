/*
 * fit_inputs.h: a plan that leaves room for inputs beside it. Where the host cannot write a device's memory, inputs
 * pass through device memory beside the arena: one set (the inputs of one piece) while the piece before runs, or the
 * whole training set, which is then sent once. Without room for either, the device waits while the host makes inputs
 * anew. That takes longer than a few more pieces or recomputed operations would, but not longer than many.
 */
#ifndef MF_PLAN_FIT_INPUTS_H
#define MF_PLAN_FIT_INPUTS_H

#include "plan/plan.h"

/* Samples smaller than this are not kept: copying them one by one is no gain. */
enum { MF_LEAST_KEPT_BYTES = 64 << 10 };

/* Bytes beside this plan for a set of inputs and, unless 0, so many samples that stay, with what else comes there; 0 where
 * that is no gain. */
uint64_t mf_plan_input_bytes(const mf_plan *plan, int64_t samples);
/* Is a set so large that a plan is worth changing for it? */
bool mf_plan_sends_much(const mf_plan *plan);

/* Makes the fastest plan within a limit. */
typedef memfit_status (*mf_plan_within)(void *ctx, uint64_t limit_bytes, mf_plan **plan, memfit_error *err);
/* A plan that leaves room for inputs, in the place of *plan where that is a good one. */
memfit_status mf_plan_leave_room(const mf_plan_options *options, mf_plan_within make, void *ctx, mf_plan **plan,
                                 memfit_error *err);

#endif
