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
#include "graph/graph_source.h"
#include "plan/cost.h"

/* ---- the plan ---- */
#define MF_NO_OFFSET UINT64_MAX

typedef struct mf_step {
    uint32_t op;
    bool recomputed;   /* not the first run of this operation: no side effects */
    uint64_t *offsets; /* arena offset of each input, then of each output; MF_NO_OFFSET for absent ones */
    uint64_t workspace_offset, workspace_bytes;
    const mf_method *method; /* the operation's, for prepare; NULL: the backend has only one */
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

/* One stay of a storage in the arena, for explaining and checking: live from step `first` to step `last`, both
 * included. */
typedef struct mf_placed {
    uint32_t storage; /* MF_NONE: a workspace */
    uint32_t first, last;
    uint64_t offset, bytes;
    memfit_kind kind;
    uint32_t layer;
    bool handed_on; /* its bytes become the next one's in place at `last`: count it there once */
} mf_placed;

typedef struct mf_phase {
    mf_phase_role role;
    mf_graph *graph; /* owned by the plan */
    int64_t batch;   /* samples a run of this phase takes */
    uint32_t length; /* number of its sequences' length; 0: the longest, or all have one */
    int64_t repeat;  /* runs a step: pieces of this size */
    mf_step *steps;
    uint32_t step_count;
    uint64_t bytes; /* end of the highest tensor: the arena this phase needs */
    mf_placed *placed;
    uint32_t placed_count;
    uint64_t load_bytes; /* largest sum of live bytes, variables not counted: no packing of these steps is lower */
    uint32_t peak_step;  /* where that is */
    uint32_t recomputed;
    double time_us, once_us; /* estimated: of the steps of every piece; of those of the first or last piece only */
    mf_numerics numerics;    /* of its methods against those that would be taken with room for all */
    uint32_t *held;          /* while the graph is the planner's: counts the phases that need it; else NULL */
} mf_phase;

const char *mf_phase_name(mf_phase_role role); /* "training", "validation", ... */

/*
 * Offload: the optimizer's slots live in host memory. The arena has two windows instead; each operation that reads slots
 * (an update) has those of its parameter in one of them while it runs, so that the next one's arrive and the last one's
 * leave meanwhile:
 *
 *     window 1   | update 0 | leave, arrive | update 2 |
 *     window 2            arrive | update 1 | leave, arrive | update 3 |
 *
 * Slots of one window have overlapping places; plan->variable_offsets is where each is while its update runs.
 */
enum { MF_WINDOWS = 2 };

typedef struct mf_plan {
    mf_arena arena;
    mf_phase *phases;
    uint32_t phase_count;
    uint64_t *variable_offsets; /* by variable number */
    uint64_t *variable_bytes;
    memfit_kind *variable_kinds;
    uint8_t *variable_windows; /* by variable number: 0 where it lies in the arena, else the window it comes through */
    uint32_t variable_count;
    uint64_t offloaded_bytes;          /* of variables that live in host memory */
    uint64_t windows[MF_WINDOWS];      /* offsets, */
    uint64_t window_bytes[MF_WINDOWS]; /* and sizes; 0 without offload */
    bool fits;                         /* peak_bytes within the limit it was made for */
    bool owns_graphs;
    bool validation_split;  /* validation or prediction runs in smaller batches than asked, to fit */
    uint64_t variables_end; /* phases pack above this */
    uint64_t alignment;
    uint64_t arena_bytes, fixed_bytes, peak_bytes;
    uint64_t unpredicted_bytes; /* > 0: training fits, predicting one sample does not and is left out; it needs this */
    int64_t batch, pieces;
    uint32_t chunks; /* of the last layer and its loss (graph/passes/chunk.h); 1: whole */
    uint32_t recomputed_ops;
    mf_numerics numerics;
    double time_us, unconstrained_time_us; /* of one step, estimated */
} mf_plan;

/* ---- making one ---- */
typedef enum { MF_RECOMPUTE_AUTO, MF_RECOMPUTE_OFF } mf_recompute;

typedef struct mf_plan_options {
    int64_t batch;  /* asked; at least 1 */
    int64_t pieces; /* 0: as many as needed; 1: do not split; K: exactly K */
    mf_recompute recompute;
    uint32_t chunks;      /* of the last layer and its loss; 0: as many as needed; 1: whole; K: K, where it can be */
    bool allow_changed;   /* pieces under trainable BatchNormalization may be chosen */
    bool pass_over;       /* ways that the host has no memory to look at, where another fits */
    bool least_workspace; /* of each operation's methods the one with the least, whatever its time; no update waits */
    int64_t validation_batch; /* 0: as `batch` */
    uint32_t lengths; /* of sequences: so many, each with phases of its own, from the longest; 0: all have one */
    bool with_validation, with_prediction;
    mf_mode only;               /* MF_MODE_EVALUATE or MF_MODE_PREDICT: that phase alone, `batch` samples at a time */
    int64_t samples;            /* of the training set, when known: plans the last partial batch; 0: unknown */
    int64_t samples_left;       /* of the first epoch, when it is gone on with: its last batch may be another; 0: all */
    int64_t validation_samples; /* likewise; with `only`, samples counts */
    uint64_t limit_bytes;       /* of the whole process; 0: no limit */
    uint64_t fixed_bytes;       /* what the process takes besides the arena */
    uint64_t start_bytes; /* what it takes in all before there is an arena: no plan takes less. What an arena leaves of
                             that counts as fixed; 0: little */
    uint64_t rest_bytes;  /* and more, when pieces leave a rest: a graph of its own */
    uint64_t chunk_bytes; /* and more for each chunk: its kernels */
    bool offload;         /* the optimizer's slots live in host memory (see mf_plan) */
    bool inputs_beside;   /* inputs come through memory of the device beside the arena: leave room (fit_inputs.h) */
    int64_t kept_samples; /* with it: of the training set, where all of it may stay there; 0: it may not */
    bool quick;           /* somebody waits: search a tenth as long for what to recompute */
} mf_plan_options;

void mf_plan_options_default(mf_plan_options *options);

/* The fastest plan within the limit: as asked if that fits, else by recomputation, with the last layer in chunks, with
 * the batch in pieces, or all of it. A plan for more memory is never slower.
 * DOES_NOT_FIT names the operation that stands in the way; err->requested_bytes is a limit that was tried and is
 * enough. */
memfit_status mf_plan_make(const memfit_host *host, const mf_graph_source *source, const mf_plan_options *options,
                           const mf_cost_source *cost, mf_plan **plan, memfit_error *err);
void mf_plan_destroy(mf_plan *plan);
/* Independent of the planner: no two live tensors overlap, every reader finds what it needs, alignment, in-place rules,
 * update order, sums. */
memfit_status mf_plan_check(const mf_plan *plan, memfit_error *err);

#endif
