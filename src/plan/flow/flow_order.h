/* flow_order.h: the order of independent operations. */
#ifndef MF_PLAN_FLOW_ORDER_H
#define MF_PLAN_FLOW_ORDER_H

#include "plan/flow/flow.h"

/* Fills `order` (flow->order_count) with an order of the same operations that may need less memory. */
memfit_status mf_flow_order_greedy(const memfit_host *host, const mf_flow *flow, uint32_t *order, memfit_error *err);
/* Does `order` (flow->order_count operations) give every operation what it gets in the flow's own order? */
memfit_status mf_flow_order_holds(const memfit_host *host, const mf_flow *flow, const uint32_t *order, bool *holds,
                                  memfit_error *err);

#endif
