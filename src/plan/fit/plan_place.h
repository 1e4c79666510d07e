/* plan_place.h: from sequences to a placed phase, and from placed phases to a plan. */
#ifndef MF_PLAN_PLAN_PLACE_H
#define MF_PLAN_PLAN_PLACE_H

#include "plan/flow/flow.h"

/* Places every variable of the graph at the bottom of the arena; sets variable_*, variables_end, alignment. */
memfit_status mf_place_variables(mf_plan *plan, const mf_graph *graph, const mf_cost_source *cost, bool offload,
                                 memfit_error *err);

/* The bytes variables take: what mf_place_variables would use. */
uint64_t mf_variables_bytes(const mf_graph *graph, const mf_cost_source *cost, bool offload);
/* Is this one of the variables that offload keeps in host memory? */
bool mf_variable_is_offloaded(const mf_graph *graph, uint32_t variable);

/* Packs a sequence above the plan's variables: fills the phase (all but role, batch, repeat and graph). `room` is what
 * there is above the variables (0: no limit); a packing within it is good enough unless `thorough`. */
memfit_status mf_place_phase(mf_plan *plan, const mf_flow *flow, const mf_sequence *sequence, uint64_t room,
                             bool thorough, mf_phase *phase, memfit_error *err);

#endif
