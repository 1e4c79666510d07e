/*
 * cost.h: what the planner asks of a backend: can it run this operation, with how much workspace, in what time? Plans
 * are made from the answers alone, so a card that is not there can be planned for from a table.
 */
#ifndef MF_PLAN_COST_H
#define MF_PLAN_COST_H

#include "graph/graph.h"

typedef struct mf_cost {
    bool supported;
    bool reference; /* runs, but on the slow reference operations */
    bool deterministic;
    uint64_t workspace_bytes;
    double time_us;
} mf_cost;

typedef struct mf_cost_source {
    void *ctx;
    /* Descriptors only: nothing is created that would stay. */
    memfit_status (*query)(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err);
    /* Bytes a variable takes in this backend's own layout (NULL: its plain size). */
    uint64_t (*variable_bytes)(void *ctx, const mf_graph *graph, uint32_t variable);
    uint64_t alignment; /* of every tensor: 64 on cpu, 256 on cuda */
} mf_cost_source;

#endif
