/* overwrite.h: which operation may write over which of its operands. This is the checker's own statement, derived from
 * what the operations compute; every backend must obey it (tests/ops/test_ops_overwrite.c runs each line of it). The
 * planner has its rule from the table of kinds; neither reads the other's. */
#ifndef MF_PLAN_OVERWRITE_H
#define MF_PLAN_OVERWRITE_H

#include "graph/graph.h"

/* May output `out` lie on input `in`, from the same first byte, when both are storages of their own? */
bool mf_may_overwrite(const mf_graph *graph, const mf_op *op, uint32_t out, uint32_t in);

#endif
