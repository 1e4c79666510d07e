/*
 * plan.h: the result of planning: which operation runs when, and where every tensor lies. The executor needs nothing
 * else.
 *
 *   arena   [ variables | phase bytes ............................. ]
 *             placed once  each phase packs its own tensors here; what a phase leaves dies at its end
 *
 * A phase is one graph with its step list. Training in pieces runs the train phase `pieces` times a step, then (for a
 * batch that does not divide) the remainder phase; operations with when = FIRST_PIECE or LAST_PIECE run in that piece
 * only.
 */
#ifndef MF_PLAN_PLAN_H
#define MF_PLAN_PLAN_H

#include "graph/graph.h"
#include "model/lower.h"

/* ---- cost source: what backends tell the planner ---- */
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

/* ---- the plan ---- */
#define MF_NO_OFFSET UINT64_MAX

typedef struct mf_step {
    uint32_t op;
    bool recomputed;   /* not the first run of this operation: no side effects */
    uint64_t *offsets; /* arena offset of each input, then of each output; MF_NO_OFFSET for absent ones */
    uint64_t workspace_offset, workspace_bytes;
} mf_step;

typedef enum {
    MF_PHASE_TRAIN,
    MF_PHASE_TRAIN_REST,
    MF_PHASE_LAST_BATCH,
    MF_PHASE_LAST_REST,
    MF_PHASE_VALIDATE,
    MF_PHASE_VALIDATE_REST,
    MF_PHASE_PREDICT
} mf_phase_role;

typedef struct mf_phase {
    mf_phase_role role;
    mf_graph *graph;
    int64_t batch;  /* samples a run of this phase takes */
    int64_t repeat; /* runs a step: pieces of this size */
    mf_step *steps;
    uint32_t step_count;
    uint64_t bytes; /* end of the highest tensor: the arena this phase needs */
} mf_phase;

typedef enum { MF_BITWISE, MF_REORDERED, MF_CHANGED } mf_numerics;

typedef struct mf_plan {
    mf_arena arena;
    mf_phase *phases;
    uint32_t phase_count;
    uint64_t *variable_offsets; /* by variable number */
    uint64_t *variable_bytes;
    uint32_t variable_count;
    uint64_t arena_bytes, fixed_bytes, peak_bytes;
    int64_t batch, pieces;
    uint32_t recomputed_ops;
    mf_numerics numerics;
    double time_us, unconstrained_time_us; /* of one step, estimated */
} mf_plan;

void mf_plan_destroy(mf_plan *plan);
/* Independent of the planner: no two live tensors overlap, every reader finds what it needs, alignment, in-place rules,
 * update order, sums. */
memfit_status mf_plan_check(const mf_plan *plan, memfit_error *err);

#endif
