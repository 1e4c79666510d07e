/*
 * profile.h: where the time of a step goes: each operation between two events of the device. MEMFIT_PROFILE=1 turns it
 * on (docs/settings.md). It profiles the first runs of each phase: it queues their operations one by one and waits for
 * each, so that the figures say what the operations themselves take. Then the run goes on like any other. Without the
 * variable none of this exists.
 */
#ifndef MF_TRAIN_PROFILE_H
#define MF_TRAIN_PROFILE_H

#include "plan/plan.h"

#include "device/device.h"

#include <stdio.h>

typedef struct mf_profile mf_profile;

/* *profile is NULL, and all is well, where it is not asked for or the device keeps no time. The plan must outlive it. */
memfit_status mf_profile_create(const memfit_host *host, mf_device *device, mf_stream stream, const mf_plan *plan,
                                mf_profile **profile, memfit_error *err);
/* Prints what was seen to `to` (NULL: nowhere) and ends it. */
void mf_profile_destroy(mf_profile *profile, FILE *to);
/* Is the next run of this phase one that is looked at? */
bool mf_profile_wants(const mf_profile *profile, uint32_t phase);
/* Between step `step` - 1 and step `step` of a piece; the last call of a piece has the number of its steps. */
memfit_status mf_profile_mark(mf_profile *profile, uint32_t step, memfit_error *err);
/* The piece is queued: waits for it and adds its times to those of the phase. */
memfit_status mf_profile_take(mf_profile *profile, uint32_t phase, memfit_error *err);

#endif
