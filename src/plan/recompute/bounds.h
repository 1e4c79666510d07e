/* bounds.h: what no plan can beat, and by how much a plan misses it. Everything is above the variables. */
#ifndef MF_PLAN_BOUNDS_H
#define MF_PLAN_BOUNDS_H

#include "plan/flow/flow.h"

typedef struct mf_bounds {
    uint64_t working_set_bytes; /* any order, any recomputation: operands and workspace of the hungriest operation */
    uint32_t working_set_op;
    uint64_t save_set_bytes; /* without recomputation: what backward needs and forward makes, all of it at the loss */
    double keep_us;          /* time of one run of every operation */
} mf_bounds;

void mf_bounds_make(const mf_flow *flow, mf_bounds *bounds);

/* With `room` bytes above the variables: no plan of this order that fits spends less time on recomputation than
 * *extra_us. Why that is so: bounds.c. `effort` buys a better bound: 1 is the quickest, 10^6 some tenths of a second.
 */
memfit_status mf_bounds_recompute(const memfit_host *host, const mf_flow *flow, uint64_t room, uint64_t effort,
                                  double *extra_us, memfit_error *err);

/* What to keep at the fullest moment, so that least is made again: kept[cell] is 1 for cells that lie there while the
 * operation at base position *at runs. MF_NONE: everything fits. */
memfit_status mf_bounds_keep(const memfit_host *host, const mf_flow *flow, uint64_t room, uint32_t branches,
                             uint8_t *kept, uint32_t *at, memfit_error *err);

#endif
