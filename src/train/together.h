/*
 * together.h: steps of a phase that are run as one. A network of many layers has hundreds of steps of a few microseconds each,
 * moving averages, casts of weights, updates; a device that can run many of them by one launch (mf_backend_table.batch) saves
 * the rest. The plan stays as it is: a step may run later, or earlier, as long as no step that it passes touches its bytes.
 *
 *     plan     cast 1  conv 1  norm 1  average 1  cast 2  conv 2  norm 2  average 2 ...   update 2  ...  update 1
 *     runs     [cast 1, cast 2, ...]  conv 1  norm 1  conv 2  norm 2 ...   [average 1, average 2, ...]  [update 2, update 1]
 *
 * Casts go back to the first place where their results' bytes are free, everything else waits until its bytes are wanted.
 */
#ifndef MF_TRAIN_TOGETHER_H
#define MF_TRAIN_TOGETHER_H

#include "plan/plan.h"

typedef struct mf_together {
    uint32_t *steps;     /* every step of the phase once, in the order in which they run */
    uint32_t *ends;      /* by part: where in `steps` it ends; the steps of a part are run as one */
    uint32_t part_count; /* 0: nothing runs together, steps are run in the plan's order */
} mf_together;

/* `keys`, by step: equal ones may run as one; NULL: by itself. Lists come from `arena`. */
memfit_status mf_together_make(mf_arena *arena, const mf_phase *phase, const void *const *keys, mf_together *together,
                               memfit_error *err);

#endif
