/*
 * flow.h: a step graph as the planner sees it, and what a choice of recomputations makes of it.
 *
 *   flow       the graph boiled down: a base order of operations, and for each operation the storages it touches.
 *              Views vanish, storages that must alias are one ("cell"), variables are apart.
 *   choice     for each use of a cell: keep it for the next one, or drop it and recompute it then.
 *   sequence   the list of runs a choice leads to: the base order with recomputations put in as late as possible.
 *              From the list alone follow the lives of all cells: a life begins when the cell is written anew and
 *              ends with its last use before that happens again.
 *
 * Making a sequence is linear in the graph and allocates nothing, so a search can afford thousands of them.
 */
#ifndef MF_PLAN_FLOW_H
#define MF_PLAN_FLOW_H

#include "plan/plan.h"

typedef struct mf_cell {
    uint64_t bytes;      /* rounded up to the alignment */
    uint64_t raw;        /* as the graph has it */
    uint32_t variable;   /* or MF_NONE */
    uint32_t maker;      /* the operation that writes it; MF_NONE when several do */
    uint32_t last_write; /* base position of the last operation that writes it */
    bool repeatable;     /* its maker may run again */
    bool lasts;          /* lives to the end of the phase: a prediction's result */
    memfit_kind kind;
    uint32_t layer;
} mf_cell;

typedef struct mf_flow {
    mf_arena arena;
    const mf_graph *graph;
    uint64_t alignment;
    uint32_t *order; /* base order: operations that do something, inputs first */
    uint32_t order_count;
    uint32_t *position; /* of an operation in the base order; MF_NONE for views */
    mf_cell *cells;     /* by storage; only roots are in use */
    uint32_t *root;     /* storage -> the cell it belongs to */
    uint32_t cell_count;
    /* By operation: cells read, cells written (distinct, no variables), variables touched. */
    uint32_t *read_at, *reads, *write_at, *writes, *var_at, *vars;
    uint32_t *swap_in, *swap_out; /* by operation: this cell's bytes may become that one's; MF_NONE */
    uint32_t *use_at, *uses;      /* by cell: base positions that touch it, ascending */
    uint64_t *workspace;          /* by operation, rounded up */
    double *time_us;
    bool *once;           /* by operation: not in every piece */
    mf_method **method;   /* by operation: the one chosen, NULL where there is no choice; NULL: there is none at all */
    mf_numerics numerics; /* of the methods against those that would be taken with room for all */
    uint32_t input_count; /* the first so many of the base order are INPUT operations */
} mf_flow;

/* In `vars`: the operation writes the variable. */
#define MF_FLOW_WRITES 0x80000000u

/* The flow keeps pointers into the graph. NULL `cost`: no workspaces, every operation takes a microsecond. */
memfit_status mf_flow_create(const memfit_host *host, const mf_graph *graph, const mf_cost_source *cost, mf_flow **flow,
                             memfit_error *err);
void mf_flow_destroy(mf_flow *flow);

/* Does operation o read or write cell c? */
bool mf_flow_touches(const mf_flow *flow, uint32_t o, uint32_t c);

/* The same operations in another order (flow_order.h), which must hold. What does not depend on the order is shared:
 * `flow` must outlive it. */
memfit_status mf_flow_reorder(const memfit_host *host, const mf_flow *flow, const uint32_t *order, mf_flow **reordered,
                              memfit_error *err);

/* By use (an index into flow->uses): what becomes of the cell until the next one? Meanwhile other cells may be
 * recomputed from it: it serves. Bit 0 says whether it is dropped after the use, bit k whether after it served the k-th
 * time (bit 7: and ever after). What is dropped comes back when it is to serve or to be used. */
enum {
    MF_KEEP = 0,
    MF_DROP = 1,          /* once back, it stays */
    MF_DROP_TWICE = 3,    /* stays when it comes back for the second time */
    MF_DROP_LATER = 0xfe, /* stays to serve first */
    MF_DROP_AGAIN = 0xff  /* never stays */
};
typedef struct mf_choice {
    uint8_t *drop;
} mf_choice;

typedef struct mf_life {
    uint32_t cell;
    uint32_t birth, death; /* runs, both included */
    uint32_t buffer;       /* lives that pass their bytes on in place share one: the first life's number */
    bool handed_on;        /* the next life of its buffer begins with the run it ends with */
} mf_life;

typedef struct mf_run {
    uint32_t op;
    uint32_t base;  /* the base position this run belongs to */
    bool again;     /* a recomputation */
    uint32_t touch; /* index into touches: lives of the operation's reads, then of its writes */
} mf_run;

typedef struct mf_sequence {
    const memfit_host *host;
    mf_run *runs;
    uint32_t run_count;
    mf_life *lives;
    uint32_t life_count;
    uint32_t *touches;
    uint32_t touch_count;
    uint64_t *load; /* by run: bytes live, workspace included, variables not */
    uint64_t peak;
    uint32_t peak_at;
    double time_us;       /* of all runs that happen in every piece */
    double once_us;       /* of those that happen in the first or the last piece only */
    uint32_t again_count; /* recomputations */
    bool valid;           /* false: a recomputation would read an updated parameter */
    size_t run_capacity, life_capacity, touch_capacity;
    uint32_t *current; /* scratch, by cell: the life it has now */
    uint8_t *present;
    uint32_t *used;    /* by cell: how many of its base uses are over */
    uint8_t *served;   /* by cell: how often it served since the last */
    uint32_t *counted; /* by cell: 1 + the base position it served last */
    uint32_t *updated; /* by variable: 1 + base position of its last writer so far */
    uint32_t *stack, *temporary;
    uint32_t temporary_count;
    size_t stack_capacity, temporary_capacity, load_capacity;
    uint32_t cell_count, variable_count;
} mf_sequence;

memfit_status mf_sequence_init(mf_sequence *sequence, const memfit_host *host, const mf_flow *flow, memfit_error *err);
void mf_sequence_free(mf_sequence *sequence);
/* NULL choice: keep everything. Fails only for lack of host memory. */
memfit_status mf_sequence_build(mf_sequence *sequence, const mf_flow *flow, const mf_choice *choice, memfit_error *err);

/* A choice that keeps everything, in `arena`. */
memfit_status mf_choice_make(mf_arena *arena, const mf_flow *flow, mf_choice *choice, memfit_error *err);

#endif
