/* pack_improve.h: from the best greedy packing to a better one, quickly. Private to the pack_*.c files. */
#ifndef MF_PACK_PACK_IMPROVE_H
#define MF_PACK_PACK_IMPROVE_H

#include "pack/pack_internal.h"

/* Lowers greedy's best until the goal (bytes), the deadline, or the end of its means. */
memfit_status mf_pack_improve(mf_pack_greedy *greedy, uint64_t goal_bytes, mf_pack_pace *pace, bool *improved,
                              memfit_error *err);

#endif
