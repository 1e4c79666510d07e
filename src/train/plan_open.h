/* plan_open.h: what the planner's glue shares with training. */
#ifndef MF_TRAIN_PLAN_OPEN_H
#define MF_TRAIN_PLAN_OPEN_H

#include "memfit/plan.h"
#include "graph/graph.h"

enum {
    MF_CPU_FIXED_MARGIN_PERCENT = 30,
    MF_CPU_PROCESS_BYTES = 1344 << 10,
    MF_CPU_THREAD_BYTES = 224 << 10,
};
/* Private memory that a process keeps for running a graph, beside its arena: its steps, and what the backend compiles
 * for distinct shapes. Fitted to what 48 trainings of eight models measured, from above; training measures its own. */
uint64_t mf_cpu_graph_bytes(const mf_graph *graph);

#endif
