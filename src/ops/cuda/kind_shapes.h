/* kind_shapes.h: for the files that choose kernels by kind: an operation's shapes, and the families that stand in a file of
 * their own (kinds_linear.c). */
#ifndef MF_OPS_CUDA_KIND_SHAPES_H
#define MF_OPS_CUDA_KIND_SHAPES_H

#include "ops/cuda/cuda_spec.h"

static inline const mf_shape *in_shape(const cuda_spec *s, uint32_t i)
{
    return &s->graph->tensors[s->op->in[i]].shape;
}

static inline const mf_shape *out_shape(const cuda_spec *s, uint32_t i)
{
    return &s->graph->tensors[s->op->out[i]].shape;
}

static inline uint64_t in_count(const cuda_spec *s, uint32_t i)
{
    return mf_shape_count(in_shape(s, i));
}

static inline uint64_t out_count(const cuda_spec *s, uint32_t i)
{
    return mf_shape_count(out_shape(s, i));
}

static inline bool has_in(const cuda_spec *s, uint32_t i)
{
    return i < s->op->in_count && s->op->in[i] != MF_NONE;
}

static inline bool has_out(const cuda_spec *s, uint32_t i)
{
    return i < s->op->out_count && s->op->out[i] != MF_NONE;
}

memfit_status cuda_windows(cuda_spec *s);
struct mf_ref_window;
void cuda_say_window(cuda_spec *s, const struct mf_ref_window *w);
/* Channels side by side that one thread has; 1 where memory does not allow more. */
unsigned cuda_channel_width(const cuda_spec *s, uint64_t channels, unsigned most);
bool cuda_window_is_apart(const mf_graph *graph, const mf_op *op);
memfit_status cuda_product(cuda_spec *s, memfit_error *err);
memfit_status cuda_recurrent(cuda_spec *s);
/* kinds_attention.c; `attends`: mf_group_taker.attends */
memfit_status cuda_attention(cuda_spec *s);
bool cuda_attends(void *ctx, const mf_graph *graph, const mf_op *attention);
/* kinds_rows.c: false: not of this family, and nothing has been said. */
bool cuda_rows(cuda_spec *s);

#endif
