/*
 * conv_pool.h: groups around a maximum pooling behind a convolution of few input channels (kernels/conv_pool.cu):
 *
 *     forward     CONV, POOL_MAX, [UNARY: RELU or RELU6]
 *     gradient    [UNARY_GRAD of those, from the output], POOL_MAX_GRAD, CONV_GRAD_WEIGHTS
 *
 * The tensor between convolution and pooling, four times as large as what the pooling makes, has no storage. Plain multiplies
 * and adds in float32 (conv_pool.cu); the matrix units where everything has 16 bits (conv_pool_tiles.cu).
 */
#ifndef MF_OPS_CUDA_CONV_POOL_H
#define MF_OPS_CUDA_CONV_POOL_H

#include "ops/cuda/cuda_spec.h"

/* mf_group_taker.takes: these, or these with what follows them in the graph, are such a group. */
bool cuda_conv_pool_takes(const mf_graph *graph, const uint32_t *ops, uint32_t count);
/* mf_group_taker.whole: nothing is missing. True for every chain that is none of these. */
bool cuda_conv_pool_is_whole(const mf_graph *graph, const uint32_t *ops, uint32_t count);
/* The only operation that touches what `op` makes; MF_NONE where there are others. */
uint32_t cuda_only_reader(const mf_graph *graph, uint32_t op, uint32_t made);
/* The spec of such a group; false: it is none, and nothing has been said. */
bool cuda_conv_pool_spec(cuda_spec *spec);

#endif
