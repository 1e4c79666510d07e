/* pack_solve.h: many searches on a problem, by several threads. Private to the pack_*.c files. */
#ifndef MF_PACK_PACK_SOLVE_H
#define MF_PACK_PACK_SOLVE_H

#include "pack/pack_search.h"

/* Parts of more items than this are not searched: a workspace grows with the square of it (4,000: 128 MB of addresses,
 * touched as deep as the search goes). */
enum { MF_PACK_SEARCH_MOST = 4000, MF_PACK_SEARCH_MOST_QUICK = 1000 };

typedef struct mf_pack_solve_options {
    uint64_t capacity;  /* units; 0: as low as possible */
    mf_pack_pace *pace; /* when to stop; by work only with one thread */
    unsigned threads;   /* at least 1 */
    uint64_t seed;
    size_t items_most;   /* larger parts are left as they are */
    unsigned known_bits; /* of each thread's memory of failures */
    bool (*progress)(void *ctx, uint64_t height, uint64_t bound, uint64_t nodes); /* units; may be NULL */
    void *progress_ctx;
} mf_pack_solve_options;

typedef struct mf_pack_solution {
    uint64_t bound; /* units */
    uint64_t nodes;
    bool improved; /* `best` was changed */
} mf_pack_solution;

/* Improves `best` (offsets in units by item, a packing) until it is late, the capacity or a proof. */
memfit_status mf_pack_solve(const mf_pack_problem *problem, const mf_pack_solve_options *options, uint64_t *best,
                            mf_pack_solution *solution, memfit_error *err);

#endif
