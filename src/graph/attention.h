/* attention.h: the sizes of an ATTENTION or ATTENTION_GRAD, whatever the order of its axes. */
#ifndef MF_GRAPH_ATTENTION_H
#define MF_GRAPH_ATTENTION_H

#include "graph/graph.h"

enum { MF_ATTENTION_MASKS = 3 };

typedef struct mf_attention_shape {
    int64_t batch, heads, queries, keys, depth, values; /* N, H, T, S, D, E */
} mf_attention_shape;

/* False where q, k and v do not go together. */
bool mf_attention_shape_of(const mf_graph *graph, const mf_op *op, mf_attention_shape *shape);
/* Where element 0 of (sample, head, step) lies in a tensor of `steps` steps and `width` numbers each. */
static inline int64_t mf_attention_row(const mf_attention_shape *s, bool steps_first, int64_t steps, int64_t width,
                                       int64_t sample, int64_t head, int64_t step)
{
    return (steps_first ? (sample * steps + step) * s->heads + head : (sample * s->heads + head) * steps + step) *
           width;
}
/* Masks are read by these strides over (N, H, T, S); 0 along broadcast axes. */
void mf_attention_mask_strides(const mf_attention_shape *s, const mf_shape *mask, int64_t stride[4]);

#endif
