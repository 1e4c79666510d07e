/* batching.h: a backend of the host's memory that says which kernels may run as one, as the CUDA backend does (many.h). */
#ifndef MF_TESTS_OPS_BATCHING_H
#define MF_TESTS_OPS_BATCHING_H

#include "ops/ops.h"

/* Over `inner`, which stays the caller's and must have no `absorb`. Kernels of a batch run from the last to the first, so that
 * one that touches what another writes is seen; batched_kernels counts those that ran with others. */
memfit_status batching_create(mf_backend *inner, mf_backend **backend, memfit_error *err);
extern uint64_t batched_kernels;

#endif
