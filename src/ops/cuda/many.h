/*
 * many.h: operations of which one launch runs as many as there are: updates by SGD and Adam, moving averages, casts of weights
 * (kernels/many.cu). Their text has no shapes, so that a model needs few of them; sizes and addresses are the launch's argument.
 */
#ifndef MF_OPS_CUDA_MANY_H
#define MF_OPS_CUDA_MANY_H

#include "ops/cuda/cuda_spec.h"

enum { CUDA_MANY = 84, CUDA_MANY_EACH = 8 }; /* tensors of a launch: its argument has 4 KiB; elements of a thread */

/* In many.cu as the text that cuda_many_head writes. */
typedef struct cuda_many_tensor {
    void *at[5]; /* UPDATE: parameter, gradient, slots, flag; MOVING_AVERAGE: value, state; CAST: from, to */
    int32_t elements, first; /* its first block */
} cuda_many_tensor;

typedef struct cuda_many_args {
    const mf_run_scalars *s;
    int32_t count, unused;
    cuda_many_tensor one[CUDA_MANY];
} cuda_many_args;

bool cuda_many_takes(const mf_graph *graph, const mf_op *op);
/* The spec of such an operation. */
void cuda_many_spec(cuda_spec *spec);
/* The operation's tensor in a launch's argument, its first block not set. */
void cuda_many_tensor_of(const mf_op *op, uint64_t elements, const mf_operands *operands, cuda_many_tensor *tensor);
uint32_t cuda_many_blocks(uint64_t elements, unsigned block);

#endif
