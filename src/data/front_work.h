/*
 * front_work.h: what workers do to samples that they have made, before a step gets them: the operations that were taken out of
 * the step graph (graph/front.h), with the very kernels the step would have used, a sample at a time and one thread each.
 *
 *   made sample --> input --op--> turn 0 --op--> turn 1 --op--> ... --> slot of the ring
 *
 * A front is made once; each worker has a hand of its own: kernels, the buffers between them, their workspace.
 */
#ifndef MF_DATA_FRONT_WORK_H
#define MF_DATA_FRONT_WORK_H

#include "graph/front.h"
#include "ops/ops.h"

typedef struct mf_front_kit mf_front_kit;
typedef struct mf_front_hand mf_front_hand;

/* Copies what it needs of the graph's. `backend` is of one thread, since a worker is one, and outlives the kit. */
memfit_status mf_front_kit_create(const memfit_host *host, const mf_front *front, mf_backend *backend,
                                  mf_front_kit **kit, memfit_error *err);
void mf_front_kit_destroy(mf_front_kit *kit);          /* after its hands */
uint64_t mf_front_out_bytes(const mf_front_kit *kit);  /* of a sample that is done */
uint64_t mf_front_hand_bytes(const mf_front_kit *kit); /* but for the kernels' own few hundred */

memfit_status mf_front_hand_create(const mf_front_kit *kit, mf_front_hand **hand, memfit_error *err);
void mf_front_hand_destroy(mf_front_hand *hand);
void *mf_front_input(mf_front_hand *hand); /* where the sample goes that is worked on */
/* The sample of place `place` in the batch of step `step`, into out. Allocates nothing from its second call on. */
memfit_status mf_front_work(mf_front_hand *hand, uint64_t seed, uint64_t step, uint64_t place, void *out,
                            memfit_error *err);

#endif
