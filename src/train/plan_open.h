/* plan_open.h: what the planner's glue shares with training. */
#ifndef MF_TRAIN_PLAN_OPEN_H
#define MF_TRAIN_PLAN_OPEN_H

#include "memfit/plan.h"

/* The fixed cost of a CPU process before its arena, estimated; training measures its own. */
uint64_t mf_cpu_fixed_bytes(unsigned threads);

#endif
