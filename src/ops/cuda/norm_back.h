/*
 * norm_back.h: the gradient of a layer normalization in one pass over its operands, alone or as a group with what a residual network
 * puts behind it (kernels/norm_back.cu):
 *
 *     LAYER_NORM_GRAD, [SUM_N or BINARY: dx and at most two others added, [REDUCE of that over all rows: the gradient of the bias before it]]
 */
#ifndef MF_OPS_CUDA_NORM_BACK_H
#define MF_OPS_CUDA_NORM_BACK_H

#include "ops/cuda/cuda_spec.h"

/* mf_group_taker.takes */
bool cuda_norm_back_takes(const mf_graph *graph, const uint32_t *ops, uint32_t count);
/* The spec of such a group, or of the gradient alone; false: it is none that this kernel takes, and nothing has been said. */
bool cuda_norm_back_spec(cuda_spec *spec);

#endif
