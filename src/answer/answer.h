/*
 * answer.h: will it fit? Everything `memfit plan` says about one model on one device: the plan, what was asked against
 * what is returned, who holds the bytes at the peak, bounds, the largest batch, and the changes that would help. Every
 * figure comes from a plan that was built and packed.
 */
#ifndef MF_ANSWER_ANSWER_H
#define MF_ANSWER_ANSWER_H

#include "answer/in_framework.h"
#include "plan/recompute/bounds.h"
#include "plan/plan.h"
#include "model/lower/model_graphs.h"

typedef struct mf_question {
    const mf_model *model;
    mf_lower_options lower;
    mf_plan_options plan; /* limit and fixed cost in here */
    mf_cost_source cost;
    const char *device; /* "cpu", "GeForce RTX 3080 10GB" */
    const char *basis;  /* "table", "queried", "measured" */
    bool want_suggestions, want_max_batch;
    uint32_t curve_points; /* 0: no curve */
    mf_framework_question framework;
} mf_question;

typedef struct mf_suggestion {
    char change[160];
    uint64_t peak_bytes;
    double slowdown;
    mf_numerics numerics;
    bool fits;
} mf_suggestion;

enum { MF_MOST_SUGGESTIONS = 12, MF_OWNERS = 5, MF_ANSWER_CURVE = 400 };

typedef struct mf_owner {
    const char *layer, *class_name;
    memfit_kind kind;
    uint64_t bytes;
} mf_owner;

typedef struct mf_layer_row {
    const char *name, *class_name;
    mf_shape output_shape;
    uint64_t parameter_count, parameter_bytes;
    uint64_t saved_bytes; /* kept from forward to backward in the plan returned */
} mf_layer_row;

/* A layer memfit does not know, planned as --assume states it. */
typedef struct mf_assumed_layer {
    const char *name, *class_name;
    mf_shape output_shape;    /* with the batch first */
    uint64_t bytes;           /* taken beside inputs and outputs */
    uint64_t parameter_bytes; /* of what the file stores for it */
} mf_assumed_layer;

typedef struct mf_curve_point {
    uint64_t budget_bytes, peak_bytes;
    double slowdown;
    int64_t pieces;
    uint32_t recomputed, chunks;
    mf_numerics numerics;
    bool fits;
} mf_curve_point;

typedef struct mf_answer {
    mf_arena arena;
    mf_plan *plan;             /* the one returned; when nothing fits, the smallest that was found */
    mf_in_framework framework; /* the same in somebody else's program; all else here is about memfit */
    bool fits;
    bool as_asked_fits;
    uint64_t as_asked_peak_bytes;
    /* Bytes in use over the operations of the step as asked, the highest of each column; 0 columns: the plan is that step. */
    uint64_t *as_asked_live;
    uint32_t as_asked_columns;
    /* A step in 16 bits, as asked, against the same in float32; peak 0: it is none, or float32 cannot be planned. */
    const char *precision;
    uint64_t float32_peak_bytes;
    double precision_slowdown;             /* its time over float32's */
    uint64_t breakdown[MEMFIT_KIND_COUNT]; /* at the peak; sums to plan->peak_bytes */
    uint32_t peak_phase;                   /* index into plan->phases */
    char peak_at[200];
    /* Bounds of the step as the plan returned splits it, fixed cost and variables included. */
    uint64_t lower_bound_bytes;    /* no plan with these pieces is below */
    uint64_t packing_bound_bytes;  /* no packing of these steps is below */
    uint64_t save_set_bound_bytes; /* no plan with these pieces and without recomputation is below */
    double recompute_bound;        /* slowdown no recomputation in this room can beat; 1 when none is needed */
    /* The least any allowed plan can need: the bound at the smallest piece. What stands in the way when nothing fits.
     */
    uint64_t least_bytes;
    uint64_t variable_bytes;
    char obstacle[300];
    int64_t max_batch;          /* in one piece, recomputing where allowed; the next one was tried and does not fit */
    int64_t max_batch_as_asked; /* in one piece, nothing recomputed */
    uint32_t max_batch_chunks;  /* of the last layer in the plan for max_batch; 1: whole */
    double slowdown;
    mf_suggestion suggestions[MF_MOST_SUGGESTIONS];
    uint32_t suggestion_count;
    mf_owner owners[MF_OWNERS];
    uint32_t owner_count;
    mf_layer_row *layers;
    uint32_t layer_count;
    uint64_t parameter_count;
    mf_curve_point *curve;
    uint32_t curve_count;
    const char *optimizer, *loss;
    bool optimizer_assumed, loss_assumed;
    mf_assumed_layer *assumed;
    uint32_t assumed_count;
    double seconds;
} mf_answer;

memfit_status mf_answer_make(const memfit_host *host, const mf_question *question, mf_answer **answer,
                             memfit_error *err);
void mf_answer_destroy(mf_answer *answer);

#endif
