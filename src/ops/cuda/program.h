/*
 * program.h: operations that go through their operands element by element as one kernel: chains of pointwise work with at
 * most one sum over all rows of a channel (batch normalization, its gradient, a bias's gradient). A group of them, or a
 * single one, becomes text: values are read once, pass between members in registers and are written where somebody else
 * reads them.
 *
 *     domain: rows x channels, the shape of every whole operand       a thread has `width` elements side by side
 *
 *     with a sum:   sums0  reads, computes what is summed, adds it up over rows; SPLITS blocks share a channel's rows
 *                   join0  joins what the blocks left, in a fixed order and in double, and finishes a channel's numbers
 *                   k0     reads and computes again, now with the sums, and writes, the last rows first
 *                   late0  joins what k0 added up of its results: a bias's gradient behind that of a normalization
 *     without:      k0
 *
 * A thread fetches two or four rows before it computes the first: the card's memory is as quick as reads are under way.
 *
 * Numbers are float32 between members (float64 where an operand is): members in 16 bits are not rounded on the way.
 */
#ifndef MF_OPS_CUDA_PROGRAM_H
#define MF_OPS_CUDA_PROGRAM_H

#include "graph/group.h"
#include "ops/cuda/cuda_spec.h"

typedef struct cuda_program {
    const mf_graph *graph;
    const mf_op *ops[MF_GROUP_MOST];
    uint32_t count;
    mf_shape domain;
    uint64_t elements, channels, rows;
    uint32_t sum;    /* the member that sums; MF_NONE */
    uint32_t late;   /* the REDUCE of what follows from that sum; MF_NONE */
    bool by_channel; /* an operand or a result has one element a channel */
    unsigned width;
} cuda_program;

/* Can these operations, in this order, be one kernel? */
bool cuda_program_of(const mf_graph *graph, const mf_op *const *ops, uint32_t count, cuda_program *p);
/* The spec of a group, or of a single operation of such a kind; false: it is none, and nothing has been said. */
bool cuda_program_spec(cuda_spec *s);
/* Defines and launches of program.cu for `numbers` sums a channel (0: none), k0 where it writes, and late0 behind it. */
void cuda_say_columns(cuda_spec *s, uint64_t rows, uint64_t channels, unsigned width, unsigned numbers, bool writes,
                      bool late);
/* Beside other kernels of an operation: output `out` is the sum of input `in` over everything but its last axis. */
void cuda_program_column_sums(cuda_spec *s, uint32_t in, uint32_t out);
/* mf_group_taker.takes */
bool cuda_program_takes(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count);

#endif
