/*
 * step_clock.h: how long steps take where the host queues them and goes on. An event of the device marks the end of
 * each step; the host reads it when it is done. A step's time runs from the end of the one before to its own end, so it
 * includes what the device waited for (inputs). The first step of an epoch counts from the start of the epoch.
 */
#ifndef MF_TRAIN_STEP_CLOCK_H
#define MF_TRAIN_STEP_CLOCK_H

#include "device/device.h"

enum { MF_STEP_CLOCK_MARKS = 16 };

typedef struct mf_step_clock {
    mf_device *device; /* NULL: the host's clock serves */
    mf_stream stream;
    mf_event marks[MF_STEP_CLOCK_MARKS];
    bool begins[MF_STEP_CLOCK_MARKS]; /* an epoch, not the end of a step */
    uint32_t first, count;            /* marks whose time is not read yet, behind the one read last */
} mf_step_clock;

typedef void mf_step_took(void *ctx, double us);

/* Where the device keeps no time, or its work is done when it is queued, nothing is made. */
memfit_status mf_step_clock_create(mf_step_clock *clock, mf_device *device, mf_stream stream, memfit_error *err);
void mf_step_clock_destroy(mf_step_clock *clock);
memfit_status mf_step_clock_epoch(mf_step_clock *clock, memfit_error *err);
/* A step is queued. Tells `took` of every step whose time is known by now; waits only when all marks are in use. */
memfit_status mf_step_clock_step(mf_step_clock *clock, mf_step_took *took, void *ctx, memfit_error *err);
/* All steps are done: tells the rest. */
memfit_status mf_step_clock_rest(mf_step_clock *clock, mf_step_took *took, void *ctx, memfit_error *err);

#endif
