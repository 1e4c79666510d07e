/* cpu_fixed.h: what a process on the CPU takes beside its arena. */
#ifndef MF_OPS_CPU_FIXED_H
#define MF_OPS_CPU_FIXED_H

#include "plan/plan.h"

enum { MF_CPU_FIXED_MARGIN_PERCENT = 30 };
/* Private memory that a process keeps for running a graph, beside its arena: its steps, and what the backend compiles
 * for distinct shapes. Fitted to what 48 trainings of eight models measured, from above; training measures its own. */
uint64_t mf_cpu_graph_bytes(const mf_graph *graph);
/* The process and its threads, and a graph each for the mode, its last batch (data seldom divides by the batch) and
 * validation, from above. graph_bytes: of the first and of validation. */
memfit_status mf_cpu_fixed_bytes(const mf_graph_source *source, const memfit_host *host, mf_mode mode, int64_t batch,
                                 unsigned threads, uint64_t graph_bytes[2], uint64_t *fixed, memfit_error *err);

#endif
