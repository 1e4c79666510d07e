/*
 * cost.h: what the planner asks of a backend: by which methods can it run this operation, each with how much workspace, in
 * what time? Plans are made from the answers alone, so a card that is not there can be planned for from a table.
 *
 *   query ──> menu of methods ──> the planner takes one ──> the plan's step keeps it ──> prepare gets it
 *
 * No clock: times are the backend's table or the rank of a library's own heuristics, so the same question has the same
 * answer every time, and a plan made again is the same plan.
 */
#ifndef MF_PLAN_COST_H
#define MF_PLAN_COST_H

#include "graph/group.h"

typedef enum { MF_BITWISE, MF_REORDERED, MF_CHANGED } mf_numerics;
const char *mf_numerics_name(mf_numerics numerics);

/* A menu that nobody times has MF_PLAIN_METHODS at most: what stands behind them only a clock can rank. */
enum { MF_MOST_METHODS = 64, MF_PLAIN_METHODS = 8, MF_METHOD_ID_BYTES = 64 };

/* One method to run an operation: a library's engine and its settings, an own kernel. */
typedef struct mf_method {
    unsigned char
        id[MF_METHOD_ID_BYTES]; /* the backend's own: engine and knobs, an algorithm. All else must not read it */
    uint64_t workspace_bytes;
    uint64_t reserve_bytes; /* beside the arena, for as long as its kernel exists */
    double time_us;
    bool deterministic;
    mf_numerics numerics; /* against the first method of the menu */
} mf_method;

typedef struct mf_cost {
    bool supported;        /* false: no methods */
    bool reference;        /* runs, but on the slow reference operations */
    uint32_t method_count; /* at least one where it is supported; the backend's own preference first */
    mf_method methods[MF_MOST_METHODS];
} mf_cost;

/* Which methods may be taken at all. */
typedef struct mf_method_rules {
    bool allow_nondeterministic;
    bool allow_changed; /* methods whose mathematics differ from the first one's (TF32) */
} mf_method_rules;

/* The fastest method of the menu that the rules allow and whose workspace fits `room`; where none fits, the one with the
 * least workspace. Of equals the first. Where the rules allow none, they are not heard: an operation must run somehow,
 * and `deterministic` says how. Returns its index; the menu must have one method or more. */
uint32_t mf_cost_choose(const mf_cost *cost, mf_method_rules rules, uint64_t room);
/* A menu of one. */
mf_cost mf_cost_one(uint64_t workspace_bytes, double time_us);
/* The same where it is wanted; places of further methods are left as they are. */
void mf_cost_set_one(mf_cost *cost, uint64_t workspace_bytes, double time_us);

typedef struct mf_cost_source {
    void *ctx;
    /* Descriptors only: nothing is created that would stay. */
    memfit_status (*query)(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err);
    /* Bytes a variable takes in this backend's own layout (NULL: its plain size). */
    uint64_t (*variable_bytes)(void *ctx, const mf_graph *graph, uint32_t variable);
    uint64_t alignment;    /* of every tensor: 64 on cpu, 256 on cuda */
    mf_group_taker groups; /* which operations it runs as one; takes == NULL: none */
    mf_method_rules rules;
    uint64_t room_bytes; /* of the arena: a method whose workspace does not fit beside variables and operands is not
                            taken where there is a smaller one; 0: all fit */
} mf_cost_source;

#endif
