/* recompute_inner.h: what the parts of the search share. Only for recompute*.c. */
#ifndef MF_PLAN_RECOMPUTE_INNER_H
#define MF_PLAN_RECOMPUTE_INNER_H

#include "base/error.h"
#include "plan/recompute/recompute.h"

typedef struct mf_drop_candidate {
    uint32_t use, cell;
    double us_per_byte;
} mf_drop_candidate;

/* What a gap can be set to: all combinations of the first three bits, the third one for ever after. The first three are
 * the ones that matter most. */
enum { MF_COMMON_VALUES = 3, MF_VALUES = 8 };
extern const uint8_t mf_drop_values[MF_VALUES];

static inline memfit_status mf_search_no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the search for recomputations");
}

static inline uint32_t mf_search_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

/* recompute.c: builds the sequence of the present choice; paths; stops. */
memfit_status mf_search_measure(mf_tradeoff *t, memfit_error *err);
memfit_status mf_path_begin(mf_tradeoff *t, memfit_error *err);
memfit_status mf_path_add(mf_tradeoff *t, uint32_t use, uint8_t drop, memfit_error *err);
void mf_path_apply(mf_tradeoff *t, uint32_t path, uint32_t length);
/* A new path that begins as the way to this stop; the choice is the stop's. */
memfit_status mf_path_from(mf_tradeoff *t, mf_stop from, memfit_error *err);
/* Remembers the present state as a stop of the last path, unless a stop is as small and as fast already. */
memfit_status mf_stop_add(mf_tradeoff *t, memfit_error *err);

/* recompute_search.c: from everything kept to as little as possible, and the rungs between. */
memfit_status mf_search_all(mf_tradeoff *t, memfit_error *err);
/* How far the loads stand above the rung: the sum of squares over all runs. */
double mf_search_excess(const mf_sequence *q, uint64_t rung);

/* recompute_seeds.c: other places to begin from, once the gaps are listed. */
memfit_status mf_search_segments(mf_tradeoff *t, memfit_error *err);
memfit_status mf_search_cut(mf_tradeoff *t, uint64_t rung, mf_stop *seed, memfit_error *err);
memfit_status mf_search_small(mf_tradeoff *t, memfit_error *err);
memfit_status mf_search_wander(mf_tradeoff *t, mf_stop from, uint64_t rung, uint32_t steps, memfit_error *err);

#endif
