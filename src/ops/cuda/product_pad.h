/*
 * product_pad.h: products of 16-bit matrices whose rows are no multiple of 16 bytes long take the library several times as
 * long (GPT-2's 50,257 words). For large ones it pays to copy such matrices into the workspace with rows filled up to that,
 * and the result out of it:
 *
 *     workspace  [ a | b | c, each only where its rows need it | the library's own ]
 */
#ifndef MF_OPS_CUDA_PRODUCT_PAD_H
#define MF_OPS_CUDA_PRODUCT_PAD_H

#include "graph/graph.h"

enum { CUDA_LEAST_PADDED = 1 << 20 }; /* multiplications, for rows to be filled up */

typedef struct cuda_padding {
    int64_t rows[3], from[3], to[3]; /* of a, b, c: rows, their length and that with padding; equal: where it lies */
    uint64_t at[3], bytes;           /* places in the workspace, all of them */
} cuda_padding;

/* False: nothing to gain, or not this way. */
bool cuda_padding_of(const mf_graph *graph, const mf_op *op, cuda_padding *pad);

#endif
