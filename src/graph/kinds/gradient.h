/*
 * gradient.h: the backward pass. Forward operations are walked from last to first; each kind's rule turns the gradients
 * of its outputs into those of its inputs. What a tensor gets from several readers is summed as it arrives, in the
 * order of arrival: the graph fixes the order of every sum.
 */
#ifndef MF_GRAPH_GRADIENT_H
#define MF_GRAPH_GRADIENT_H

#include "graph/kinds/kinds.h"

struct mf_backward {
    mf_build *b;
    uint32_t op_count, tensor_count; /* of the forward part */
    uint32_t *gradient;              /* by forward tensor: the sum so far, or MF_NONE */
    uint8_t *wanted;                 /* by forward tensor: it depends on something that is wanted */
    uint8_t *owned;                  /* by forward tensor: nothing else reads the tensor in gradient[] */
    uint32_t *readers;               /* by forward tensor: forward operations that read it */
    uint8_t *sloped;                 /* by forward tensor: its gradient went through the activation that made it */
    uint32_t *accumulator;           /* by forward tensor: the gradient variable's tensor to add to; NULL: none */
    /* Called after the rule of each forward operation (also of those without): what comes before it in time is not
     * done yet, everything after it is. */
    void (*after)(void *ctx, mf_backward *w, uint32_t op);
    void *ctx;
};

/* Sets up for everything appended so far. `wanted` tensors are those whose gradients are asked for. */
bool mf_backward_begin(mf_backward *w, mf_build *b, uint32_t wanted_count, const uint32_t *wanted);
void mf_backward_run(mf_backward *w);

/* ---- for rules ---- */
/* An output of a gradient operation whose shape its rule finds; absent unless wanted. */
static inline mf_typed mf_typed_when(bool wanted)
{
    return (mf_typed){.shape = {.rank = MF_NONE}, .absent = !wanted};
}
static inline bool mf_backward_wants(const mf_backward *w, uint32_t tensor)
{
    return tensor != MF_NONE && tensor < w->tensor_count && w->wanted[tensor];
}
static inline uint32_t mf_backward_of(const mf_backward *w, uint32_t tensor)
{
    return tensor == MF_NONE || tensor >= w->tensor_count ? MF_NONE : w->gradient[tensor];
}
/* Adds a part of the gradient of `tensor`. `give`: the part was made for this alone; `pass`: others may read it too. */
void mf_backward_give(mf_backward *w, uint32_t tensor, uint32_t part);
void mf_backward_pass(mf_backward *w, uint32_t tensor, uint32_t part);
/* Sums `part` over the axes along which `tensor` was broadcast, then gives or passes it. */
void mf_backward_reduce(mf_backward *w, uint32_t tensor, uint32_t part, bool own);

#endif
