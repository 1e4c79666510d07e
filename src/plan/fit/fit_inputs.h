/*
 * fit_inputs.h: a plan that leaves room for inputs beside it. Where the host cannot write a device's memory, inputs come
 * through memory of the device besides the arena: a set of them (those of one piece) while the piece before is at work, or
 * the whole training set, which then is sent once. Without room for either the device waits while the host makes them anew,
 * which takes longer than a few more pieces or operations run again; but not longer than many.
 */
#ifndef MF_PLAN_FIT_INPUTS_H
#define MF_PLAN_FIT_INPUTS_H

#include "plan/plan.h"

/* Samples smaller than this are not kept: copying them one by one is no gain. */
enum { MF_LEAST_KEPT_BYTES = 64 << 10 };

/* Bytes beside this plan, with what else comes there: *set for one set of inputs, *kept for `samples` of them and a set.
 * 0 where it is no gain; a plan is worth changing for either only where *set is. */
void mf_plan_inputs(const mf_plan *plan, int64_t samples, uint64_t *set, uint64_t *kept);
/* Is `other`, which leaves room, good enough to be taken in place of `plan`? */
bool mf_plan_may_replace(const mf_plan *plan, const mf_plan *other);

#endif
