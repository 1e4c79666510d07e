/*
 * recompute.h: what can be dropped and computed again, cheapest first. Recomputation is bitwise: the same operations on
 * the same bytes.
 *
 * The search knows nothing of a budget: it walks from "everything kept" to "as little as possible" and remembers every
 * stop (bytes, time). A budget then takes the fastest stop below it. So a larger budget can never give a slower plan.
 */
#ifndef MF_PLAN_RECOMPUTE_H
#define MF_PLAN_RECOMPUTE_H

#include "plan/flow/flow.h"

/* A change to a choice: what becomes of the cell after this use. */
typedef struct mf_toggle {
    uint32_t use;
    uint8_t drop; /* MF_KEEP, MF_DROP ... */
} mf_toggle;

/* A use after which a cell could be dropped. */
typedef struct mf_gap {
    uint32_t cell, use;
    bool main; /* the longest of its cell: as a rule from forward to backward */
    double us; /* its maker's time */
} mf_gap;

/* A list of changes, begun from "everything kept". */
typedef struct mf_path {
    mf_toggle *toggles;
    size_t count, capacity;
} mf_path;

/* A stop: the choice after the first `length` changes of a path. */
typedef struct mf_stop {
    uint64_t load; /* 0: not measured yet (stops taken over from another batch) */
    double time_us;
    uint32_t path, length;
} mf_stop;

typedef struct mf_tradeoff {
    mf_arena arena;
    const memfit_host *host;
    const mf_flow *flow;
    mf_path *paths;
    size_t path_count, path_capacity;
    mf_stop *stops; /* loads fall, times rise: none is both larger and slower than another */
    size_t stop_count, stop_capacity;
    mf_sequence sequence;
    mf_choice choice;
    const struct mf_tradeoff *searched; /* whose paths the stops are of; NULL: its own */
    uint64_t work, most_work; /* runs looked at: the search ends by work, never by the clock, so that plans repeat */
    void *candidates;
    size_t candidate_capacity;
    mf_gap *gaps; /* what can be dropped at all */
    uint32_t gap_count;
} mf_tradeoff;

/* Runs the search may look at, over all sequences: a tenth of a second or so; and when an answer is waited for. */
enum { MF_SEARCH_WORK = 3750000, MF_SEARCH_QUICK = 300000 };

memfit_status mf_tradeoff_create(const memfit_host *host, const mf_flow *flow, uint64_t work, mf_tradeoff **tradeoff,
                                 memfit_error *err);
/* The same for another batch of the same model: the stops of `searched`, measured on this flow when they are asked for,
 * without a search. `searched` must outlive it. NULL in *tradeoff when the graphs differ in more than sizes. */
memfit_status mf_tradeoff_derive(const memfit_host *host, const mf_flow *flow, const mf_tradeoff *searched,
                                 mf_tradeoff **tradeoff, memfit_error *err);
void mf_tradeoff_destroy(mf_tradeoff *tradeoff);

/* Leaves in tradeoff->choice and tradeoff->sequence the fastest stop with a load of at most `budget`. *fits is false
 * when even the lowest stop is more; then it is that one. */
memfit_status mf_tradeoff_fit(mf_tradeoff *tradeoff, uint64_t budget, bool *fits, memfit_error *err);

/* The load of the lowest stop. */
memfit_status mf_tradeoff_lowest(mf_tradeoff *tradeoff, uint64_t *load, memfit_error *err);

#endif
