/* bound_cut.h: the least recomputation that one full moment of a step forces. */
#ifndef MF_PLAN_BOUND_CUT_H
#define MF_PLAN_BOUND_CUT_H

#include "plan/flow.h"

/* While the operation at base position `at` runs for the first time, no more than `room` bytes are there. No plan of
 * this order spends less than *extra_us on recomputation from then on; INFINITY when none can have so little there.
 * More `branches` (at least 1) give a better bound. */
memfit_status mf_bound_cut(const memfit_host *host, const mf_flow *flow, uint32_t at, uint64_t room, uint32_t branches,
                           double *extra_us, memfit_error *err);

#endif
