/* kinds.h: the inside of the table of operation kinds: what a row holds beyond mf_kind_row. */
#ifndef MF_GRAPH_KINDS_H
#define MF_GRAPH_KINDS_H

#include "graph/build.h"

/* What a shape rule sees: the operation with its inputs in place, and the outputs as far as they are known. It fills
 * what is unknown (rank MF_NONE) and refuses what does not follow. */
typedef struct mf_typing {
    const mf_graph *graph;
    const mf_op *op;
    mf_typed *out;
    memfit_error *err;
} mf_typing;
typedef memfit_status mf_shape_rule(mf_typing *t);

/* What a gradient rule sees: a copy of the forward operation; mf_backward_* in gradient.h do the rest. */
typedef struct mf_backward mf_backward;
typedef void mf_gradient_rule(mf_backward *w, const mf_op *op);

typedef struct mf_kind_rules {
    mf_kind_row row;
    mf_shape_rule *shape;
    mf_gradient_rule *gradient; /* NULL: no gradient flows through */
    const char *no_gradient;    /* then: why */
} mf_kind_rules;
const mf_kind_rules *mf_kind_rules_of(mf_op_kind kind);

/* shape rules, by family in kind_*.c */
mf_shape_rule mf_shape_given, mf_shape_view, mf_shape_cast, mf_shape_transpose, mf_shape_slice, mf_shape_pad,
    mf_shape_concat, mf_shape_broadcast, mf_shape_gather, mf_shape_gather_grad, mf_shape_resize, mf_shape_matmul,
    mf_shape_conv, mf_shape_conv_grad_data, mf_shape_conv_grad_weights, mf_shape_same, mf_shape_mask,
    mf_shape_mask_grad, mf_shape_binary, mf_shape_binary_grad, mf_shape_compare, mf_shape_select, mf_shape_sum_n,
    mf_shape_reduce, mf_shape_reduce_grad, mf_shape_softmax, mf_shape_prelu, mf_shape_prelu_grad, mf_shape_pool,
    mf_shape_pool_grad, mf_shape_batch_norm, mf_shape_batch_norm_grad, mf_shape_batch_norm_infer, mf_shape_layer_norm,
    mf_shape_layer_norm_grad, mf_shape_rnn, mf_shape_rnn_grad, mf_shape_loss_grad, mf_shape_in_place,
    mf_shape_square_sum, mf_shape_group, mf_shape_attention, mf_shape_attention_grad;

/* gradient rules, beside them */
mf_gradient_rule mf_gradient_view, mf_gradient_cast, mf_gradient_transpose, mf_gradient_slice, mf_gradient_pad,
    mf_gradient_concat, mf_gradient_broadcast, mf_gradient_gather, mf_gradient_resize, mf_gradient_matmul,
    mf_gradient_conv, mf_gradient_conv_transposed, mf_gradient_unary, mf_gradient_binary, mf_gradient_select,
    mf_gradient_sum_n, mf_gradient_reduce, mf_gradient_softmax, mf_gradient_prelu, mf_gradient_dropout,
    mf_gradient_pool_max, mf_gradient_pool_avg, mf_gradient_batch_norm, mf_gradient_batch_norm_infer,
    mf_gradient_layer_norm, mf_gradient_lstm, mf_gradient_gru, mf_gradient_simple_rnn, mf_gradient_loss,
    mf_gradient_assumed, mf_gradient_augment;

/* Whether a unary function's gradient is computed from its output rather than its input. */
bool mf_unary_from_output(mf_unary function);

/* The shape two operands broadcast to, numpy's way; false when they do not. */
bool mf_shape_broadcasts(const mf_shape *a, const mf_shape *b, mf_shape *out);

#endif
