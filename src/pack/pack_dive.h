/* pack_dive.h: the skyline heuristic for problems of any size. Private to the pack_*.c files. */
#ifndef MF_PACK_PACK_DIVE_H
#define MF_PACK_PACK_DIVE_H

#include "pack/pack_internal.h"

typedef struct mf_pack_dive mf_pack_dive;

/* *dive is NULL, without an error, where diving is not possible: fixed buffers, or lifetimes so long that the table of
 * who lives when would pass `MF_PACK_DIVE_MOST` entries. */
enum { MF_PACK_DIVE_MOST = 8 << 20 };
memfit_status mf_pack_dive_init(mf_pack_dive **dive, const mf_pack_problem *problem, mf_arena *arena,
                                memfit_error *err);

/* `order` ranks the items (first tried first); `tightest`: the valley with the least slack first, else the lowest one.
 * Aims at `target` and gives up at `give_up` (units) or when it is late: UINT64_MAX then, otherwise the height. */
uint64_t mf_pack_dive_run(mf_pack_dive *dive, const uint32_t *order, bool tightest, uint64_t target, uint64_t give_up,
                          mf_pack_pace *pace, uint64_t *offsets);

#endif
