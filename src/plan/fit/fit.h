/*
 * fit.h: trying plans. A fitter keeps the graphs it has lowered, one for each (mode, batch, accumulate, chunks), so
 * that many plans of one model can be tried cheaply; each try is a real, packed plan.
 */
#ifndef MF_PLAN_FIT_H
#define MF_PLAN_FIT_H

#include "plan/fit/plan_place.h"
#include "plan/recompute/recompute.h"

/* One order of a graph's operations, and what is known of it. */
typedef struct mf_fit_order {
    mf_flow *flow;
    mf_sequence keep;      /* everything kept */
    mf_tradeoff *tradeoff; /* what recomputation can do; made when first asked */
} mf_fit_order;

/* What is known of a graph; stays when the graph itself is freed. */
typedef struct mf_fit_facts {
    mf_mode mode;
    int64_t batch;
    uint32_t length; /* as in mf_phase */
    bool accumulate;
    uint32_t chunks;                            /* asked for */
    uint32_t chunks_made;                       /* how many there are */
    uint64_t variables_end;                     /* of its variables */
    uint64_t kept_bytes;                        /* the sum of live bytes with everything kept, above the variables */
    uint64_t working_set_bytes, save_set_bytes; /* bounds.h */
    double time_us, once_us;                    /* everything kept */
    uint64_t logits_bytes;
    bool pieces_change; /* pieces of the batch are other mathematics */
    struct mf_fit_facts *next;
} mf_fit_facts;

typedef struct mf_fit_entry {
    mf_mode mode;
    int64_t batch;
    uint32_t length; /* as in mf_phase */
    bool accumulate;
    uint32_t chunks; /* asked for; graph->chunks has how many there are */
    mf_graph *graph;
    mf_fit_order *order;       /* the one that needs least with everything kept */
    mf_fit_order *own;         /* the graph's own, where that is another; else NULL */
    uint64_t variables_end;    /* of this graph's variables */
    bool given_away;           /* the graph belongs to a plan now */
    uint32_t held;             /* phases of plans that need the graph */
    struct mf_fit_entry *next; /* used longer ago */
} mf_fit_entry;

typedef struct mf_fitter {
    const memfit_host *host;
    const mf_graph_source *source;
    const mf_cost_source *cost; /* the one below, or NULL */
    mf_cost_source within;      /* the limit */
    mf_plan_options options;
    uint32_t length;       /* of the graphs asked for now */
    mf_fit_entry *entries; /* those used last come first; some are freed when there are many */
    mf_fit_facts *facts;
    /* Without and with accumulation, then the same in chunks: the first order found that is not the graph's own; other
     * batches take it over. */
    uint32_t *reordered[4], reordered_count[4];
} mf_fitter;

enum { MF_MOST_CHUNKS = 64 };
/* Graphs that no plan holds are kept up to so many bytes, at least the last three. */
enum { MF_FIT_KEPT_BYTES = 32 << 20, MF_FIT_LAST_KEPT = 3 };

/* One way to run the step. */
typedef struct mf_way {
    int64_t batch, pieces;
    uint32_t chunks; /* of the last layer and its loss; 0 or 1: whole */
    bool recompute;
    bool split_validation; /* in pieces that fit, when it does not */
    bool train_only;       /* leave validation, prediction and the last batch out */
    uint64_t limit_bytes;  /* of the whole process; 0: none */
} mf_way;

void mf_fitter_init(mf_fitter *fitter, const memfit_host *host, const mf_graph_source *source,
                    const mf_plan_options *options, const mf_cost_source *cost);
void mf_fitter_free(mf_fitter *fitter);
/* Frees every graph that no plan holds; was there one? */
bool mf_fitter_trim(mf_fitter *fitter);
memfit_status mf_fitter_entry(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, mf_fit_entry **entry,
                              memfit_error *err);
/* The same in chunks; what cannot be chunked, predictions among it, is whole. An entry is good until three others were
 * asked for, and as long as a plan holds it. */
memfit_status mf_fitter_entry_chunked(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, uint32_t chunks,
                                      mf_fit_entry **entry, memfit_error *err);
/* What is known of a graph, which is made if nothing is. Good as long as the fitter. */
memfit_status mf_fitter_facts(mf_fitter *fitter, mf_mode mode, int64_t batch, bool accumulate, uint32_t chunks,
                              const mf_fit_facts **facts, memfit_error *err);
/* Builds the plan of one way, whether it fits or not (plan->fits says). Its graphs stay the fitter's: destroy the plan
 * before the fitter, or give the graphs to it. */
memfit_status mf_fitter_try(mf_fitter *fitter, const mf_way *way, mf_plan **plan, memfit_error *err);
/* The fastest way that fits `batch` into the limit. *plan is the smallest found when none does. */
memfit_status mf_fitter_best(mf_fitter *fitter, int64_t batch, uint64_t limit_bytes, mf_plan **plan, memfit_error *err);
/* No plan of any way that mf_fitter_best may choose for `batch`, at any limit, needs less. */
memfit_status mf_fitter_bound(mf_fitter *fitter, int64_t batch, uint64_t *bytes, memfit_error *err);
/* The fastest plan in chunks that fits, or the smallest when none does; NULL when chunks cannot help. */
memfit_status mf_fitter_chunks(mf_fitter *fitter, int64_t batch, uint64_t limit_bytes, mf_plan **plan,
                               memfit_error *err);
/* The fastest plan in two or more pieces that fits, or the smallest when none does. *plan may be NULL (batch 1). */
memfit_status mf_fitter_pieces(mf_fitter *fitter, int64_t batch, uint64_t limit_bytes, mf_plan **plan,
                               memfit_error *err);
/* Does a batch fit in one piece? Built and packed, unless the sum of live bytes alone is too much. */
memfit_status mf_fitter_fits(mf_fitter *fitter, int64_t batch, bool recompute, uint32_t chunks, uint64_t limit_bytes,
                             bool *fits, memfit_error *err);
/* The largest batch that fits in one piece: *batch fits, *batch + 1 was tried and does not. 0 when none does. `near` is
 * where to begin to look. */
memfit_status mf_fitter_largest(mf_fitter *fitter, bool recompute, int64_t near, uint64_t limit_bytes, int64_t *batch,
                                memfit_error *err);
/* The most chunks worth trying for this graph (those that make what they divide small beside the rest), 1 when chunks
 * cannot help or are not allowed. */
uint32_t mf_fitter_most_chunks(const mf_fitter *fitter, const mf_fit_facts *whole);
/* The same with the last layer in chunks. */
memfit_status mf_fitter_largest_chunked(mf_fitter *fitter, bool recompute, uint32_t chunks, int64_t near,
                                        uint64_t limit_bytes, int64_t *batch, memfit_error *err);
/* What so many chunks add to the fixed cost. */
uint64_t mf_fitter_chunk_cost(const mf_fitter *fitter, uint32_t chunks);
/* May the planner split the batch? */
bool mf_fitter_may_split(const mf_fitter *fitter, const mf_fit_facts *whole);
/* The plan owns its graphs from now on; the fitter can only be freed after this. */
void mf_fitter_give(mf_fitter *fitter, mf_plan *plan);

#endif
