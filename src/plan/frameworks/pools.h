/*
 * pools.h: models of the allocators under the frameworks, run over a tape. What is returned is what the process takes
 * from the card for tensors: segments and regions, holes included.
 */
#ifndef MF_PLAN_POOLS_H
#define MF_PLAN_POOLS_H

#include "plan/frameworks/tape.h"

typedef enum {
    MF_POOL_CACHING,    /* PyTorch: two pools of segments, blocks split and merged inside a segment */
    MF_POOL_EXPANDABLE, /* PyTorch with expandable_segments: pages of 2 and 20 MiB mapped into one range a pool */
    MF_POOL_BFC,        /* TensorFlow and JAX: regions that double, best fit, chunks in bins */
    MF_POOL_ONEDNN,     /* TensorFlow on a CPU: BFC for what is not small; the small come from the system, uncounted */
} mf_pool_model;

typedef struct mf_pool_result {
    uint64_t reserved_bytes; /* the most the pool held */
    uint64_t live_bytes;     /* the most that was handed out, what was not split off included */
    uint64_t small_bytes;    /* the most that came from the system beside the pool */
    bool failed;             /* it did not get by with `limit_bytes` */
} mf_pool_result;

/* limit_bytes 0: none. With a limit PyTorch's pool gives unused segments back before it fails, as the real one does. */
memfit_status mf_pool_run(const mf_tape *tape, mf_pool_model model, uint64_t limit_bytes, mf_pool_result *result,
                          memfit_error *err);
/* The smallest limit under which the tape runs to its end, within 1 MiB or a thousandth. */
memfit_status mf_pool_least(const mf_tape *tape, mf_pool_model model, uint64_t *bytes, memfit_error *err);

/* What the pool holds when guessed workspaces are a little larger or smaller than the rule says, one size always by the
 * same: the least, the middle and the most of several such tapes. A workspace that just misses a hole makes the pool grow
 * by all of it, so a small error may matter much. */
typedef struct mf_pool_spread {
    uint64_t low_bytes, middle_bytes, high_bytes;
} mf_pool_spread;
memfit_status mf_pool_vary(const mf_tape *tape, mf_pool_model model, mf_pool_spread *spread, memfit_error *err);
/* The same for a batch a little smaller and larger: holes of 5 to 16 % of live bytes lie side by side there. `alone` is the
 * tape's own result. */
memfit_status mf_pool_near(const mf_tape *tape, mf_pool_model model, const mf_pool_result *alone,
                           mf_pool_spread *spread, memfit_error *err);

#endif
