/* plan_open.h: what the planner's glue shares with training. */
#ifndef MF_TRAIN_PLAN_OPEN_H
#define MF_TRAIN_PLAN_OPEN_H

#include "memfit/plan.h"
#include "model/model.h"

enum { MF_CPU_FIXED_MARGIN_PERCENT = 30 };
/* The fixed cost of a CPU process besides its arena, estimated; training measures its own. */
uint64_t mf_cpu_fixed_bytes(unsigned threads, const mf_model *model);

#endif
