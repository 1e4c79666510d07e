/*
 * pool_act.h: groups of a maximum pooling and the activation behind it (passes/pool_first.c puts it there), and of their
 * gradients: the pooled tensor is written and read once less each way.
 *
 *     forward     POOL_MAX, UNARY: RELU or RELU6
 *     gradient    UNARY_GRAD of those, from the output, POOL_MAX_GRAD
 */
#ifndef MF_OPS_CUDA_POOL_ACT_H
#define MF_OPS_CUDA_POOL_ACT_H

#include "ops/cuda/cuda_spec.h"

/* mf_group_taker.takes: these, or the first of them with what follows it, are such a group. */
bool cuda_pool_act_takes(const mf_graph *graph, const uint32_t *ops, uint32_t count);
/* The spec of such a group; false: it is none, and nothing has been said. */
bool cuda_pool_act_spec(cuda_spec *spec);

#endif
