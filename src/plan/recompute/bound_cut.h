/* bound_cut.h: the least recomputation that one full moment of a step forces. */
#ifndef MF_PLAN_BOUND_CUT_H
#define MF_PLAN_BOUND_CUT_H

#include "plan/flow/flow.h"

/* From the first run of the operation at base position `at` to that of the one at `until` (MF_NONE: to the end). */
typedef struct mf_stretch {
    uint32_t at, until;
} mf_stretch;

/* While the window's first operation runs, no more than `room` bytes are there. No plan of this order spends less than
 * *extra_us on recomputation within the window; INFINITY when none can have so little there. More `branches` (at least
 * 1) give a better bound. `kept`, which may be NULL, gets 1 for each cell of the best selection found to lie there. */
memfit_status mf_bound_cut(const memfit_host *host, const mf_flow *flow, mf_stretch window, uint64_t room,
                           uint32_t branches, double *extra_us, uint8_t *kept, memfit_error *err);

#endif
