/*
 * kinds.c: the one table of operation kinds. Adding a kind is one line of MF_OP_LIST in graph.h, one row here, one
 * shape rule and one gradient rule; docs/operations.md is generated from this table.
 *
 * A row says which output may take which input's bytes (in place, decided by the planner when the input dies there),
 * whether the operation may run again with the same result (recomputable), whether it can add into a gradient variable
 * (accumulates), which outputs vanish when nobody reads them, and how many operands there are.
 */
#include "graph/group.h"
#include "graph/kinds/kinds.h"

#define MANY 1000000u
#define NO   MF_NONE

/* in place: none, or input i over output o */
#define KEEP        .inplace_in = NO, .inplace_out = NO
#define OVER(i, o)  .inplace_in = (i), .inplace_out = (o)
#define IN(a, b)    .min_in = (a), .max_in = (b)
#define OUT(a, b)   .min_out = (a), .max_out = (b)
#define AGAIN       .recomputable = true
#define STATE       .must_alias = true
#define POINTWISE   .pointwise = true
#define ADDS        .accumulates = true
#define OPTIONAL(m) .optional_outs = (m)

static const mf_kind_rules kinds[MF_OP_COUNT] = {
    [MF_OP_INPUT] = {{KEEP, IN(0, 0), OUT(1, 1)}, mf_shape_given, NULL, "a leaf"},
    [MF_OP_VIEW] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_view, mf_gradient_view},
    [MF_OP_CAST] = {{OVER(0, 0), IN(1, 1), OUT(1, 1), AGAIN, POINTWISE, ADDS}, mf_shape_cast, mf_gradient_cast},
    [MF_OP_FILL] = {{KEEP, IN(0, 0), OUT(1, 1), AGAIN}, mf_shape_given, NULL, "a constant"},
    [MF_OP_TRANSPOSE] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_transpose, mf_gradient_transpose},
    [MF_OP_SLICE] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_slice, mf_gradient_slice},
    [MF_OP_PAD] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_pad, mf_gradient_pad},
    [MF_OP_CONCAT] = {{KEEP, IN(1, MANY), OUT(1, 1), AGAIN}, mf_shape_concat, mf_gradient_concat},
    [MF_OP_BROADCAST] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_broadcast, mf_gradient_broadcast},
    [MF_OP_GATHER] = {{KEEP, IN(2, 2), OUT(1, 1), AGAIN}, mf_shape_gather, mf_gradient_gather},
    [MF_OP_GATHER_GRAD] = {{KEEP, IN(2, 2), OUT(1, 1), ADDS}, mf_shape_gather_grad, NULL, "second order"},
    [MF_OP_RESIZE] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_resize, mf_gradient_resize},
    [MF_OP_RESIZE_GRAD] = {{KEEP, IN(1, 1), OUT(1, 1)}, mf_shape_resize, NULL, "second order"},
    [MF_OP_ASSUMED] = {{KEEP, IN(0, MANY), OUT(1, 1)}, mf_shape_given, mf_gradient_assumed},

    [MF_OP_MATMUL] = {{KEEP, IN(2, 3), OUT(1, 1), AGAIN, ADDS}, mf_shape_matmul, mf_gradient_matmul},
    [MF_OP_CONV] = {{KEEP, IN(2, 3), OUT(1, 1), AGAIN}, mf_shape_conv, mf_gradient_conv},
    [MF_OP_CONV_GRAD_DATA] = {{KEEP, IN(2, 3), OUT(1, 1), AGAIN}, mf_shape_conv_grad_data, mf_gradient_conv_transposed},
    [MF_OP_CONV_GRAD_WEIGHTS] = {{KEEP, IN(2, 2), OUT(1, 2), ADDS, OPTIONAL(2)},
                                 mf_shape_conv_grad_weights,
                                 NULL,
                                 "second order"},

    [MF_OP_UNARY] = {{OVER(0, 0), IN(1, 1), OUT(1, 1), AGAIN, POINTWISE}, mf_shape_same, mf_gradient_unary},
    [MF_OP_UNARY_GRAD] = {{OVER(0, 0), IN(2, 2), OUT(1, 1), POINTWISE}, mf_shape_same, NULL, "second order"},
    [MF_OP_MASK] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_mask, NULL, "bits are constants"},
    [MF_OP_MASK_GRAD] = {{OVER(0, 0), IN(2, 2), OUT(1, 1), POINTWISE}, mf_shape_mask_grad, NULL, "second order"},
    [MF_OP_BINARY] = {{OVER(0, 0), IN(2, 2), OUT(1, 1), AGAIN, POINTWISE, ADDS}, mf_shape_binary, mf_gradient_binary},
    [MF_OP_BINARY_GRAD] = {{OVER(0, 0), IN(3, 3), OUT(1, 1), POINTWISE}, mf_shape_binary_grad, NULL, "second order"},
    [MF_OP_COMPARE] = {{KEEP, IN(1, 2), OUT(1, 1), AGAIN}, mf_shape_compare, NULL, "truth is a constant"},
    [MF_OP_SELECT] = {{OVER(1, 0), IN(3, 3), OUT(1, 1), AGAIN}, mf_shape_select, mf_gradient_select},
    [MF_OP_SUM_N] = {{OVER(0, 0), IN(1, MANY), OUT(1, 1), AGAIN}, mf_shape_sum_n, mf_gradient_sum_n},
    [MF_OP_REDUCE] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN, ADDS}, mf_shape_reduce, mf_gradient_reduce},
    [MF_OP_REDUCE_GRAD] = {{KEEP, IN(3, 3), OUT(1, 1)}, mf_shape_reduce_grad, NULL, "second order"},
    [MF_OP_SOFTMAX] = {{OVER(0, 0), IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_softmax, mf_gradient_softmax},
    [MF_OP_SOFTMAX_GRAD] = {{OVER(0, 0), IN(2, 2), OUT(1, 1)}, mf_shape_same, NULL, "second order"},
    [MF_OP_PRELU] = {{OVER(0, 0), IN(2, 2), OUT(1, 1), AGAIN}, mf_shape_prelu, mf_gradient_prelu},
    [MF_OP_PRELU_GRAD] = {{OVER(0, 0), IN(3, 3), OUT(2, 2), ADDS, OPTIONAL(3)},
                          mf_shape_prelu_grad,
                          NULL,
                          "second order"},
    [MF_OP_RANDOM] = {{KEEP, IN(0, 0), OUT(1, 1), AGAIN}, mf_shape_given, NULL, "random numbers are constants"},
    [MF_OP_DROPOUT] = {{OVER(0, 0), IN(1, 1), OUT(1, 1), AGAIN, POINTWISE}, mf_shape_same, mf_gradient_dropout},

    [MF_OP_POOL_MAX] = {{KEEP, IN(1, 1), OUT(2, 2), AGAIN, OPTIONAL(2)}, mf_shape_pool, mf_gradient_pool_max},
    [MF_OP_POOL_MAX_GRAD] = {{KEEP, IN(2, 2), OUT(1, 1)}, mf_shape_pool_grad, NULL, "second order"},
    [MF_OP_POOL_AVG] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_pool, mf_gradient_pool_avg},
    [MF_OP_POOL_AVG_GRAD] = {{KEEP, IN(1, 1), OUT(1, 1)}, mf_shape_pool_grad, NULL, "second order"},

    [MF_OP_BATCH_NORM] = {{OVER(0, 0), IN(3, 3), OUT(3, 3), AGAIN}, mf_shape_batch_norm, mf_gradient_batch_norm},
    [MF_OP_BATCH_NORM_GRAD] = {{OVER(0, 0), IN(5, 5), OUT(3, 3), ADDS, OPTIONAL(7)},
                               mf_shape_batch_norm_grad,
                               NULL,
                               "second order"},
    [MF_OP_BATCH_NORM_INFER] = {{OVER(0, 0), IN(5, 5), OUT(1, 1), AGAIN, POINTWISE},
                                mf_shape_batch_norm_infer,
                                mf_gradient_batch_norm_infer},
    [MF_OP_BATCH_NORM_INFER_GRAD] = {{OVER(0, 0), IN(5, 5), OUT(3, 3), ADDS, OPTIONAL(7)},
                                     mf_shape_batch_norm_grad,
                                     NULL,
                                     "second order"},
    [MF_OP_MOVING_AVERAGE] = {{OVER(1, 0), IN(2, 2), OUT(1, 1), STATE}, mf_shape_in_place, NULL, "state"},
    [MF_OP_LAYER_NORM] = {{OVER(0, 0), IN(3, 3), OUT(3, 3), AGAIN, OPTIONAL(6)},
                          mf_shape_layer_norm,
                          mf_gradient_layer_norm},
    [MF_OP_LAYER_NORM_GRAD] = {{OVER(0, 0), IN(5, 5), OUT(3, 3), ADDS, OPTIONAL(7)},
                               mf_shape_layer_norm_grad,
                               NULL,
                               "second order"},

    [MF_OP_ATTENTION] = {{KEEP, IN(6, 6), OUT(2, 2), AGAIN, OPTIONAL(2)},
                         mf_shape_attention,
                         NULL,
                         "made after the backward pass"},
    [MF_OP_ATTENTION_GRAD] = {{KEEP, IN(9, 9), OUT(3, 3), OPTIONAL(7)}, mf_shape_attention_grad, NULL, "second order"},

    [MF_OP_LSTM] = {{KEEP, IN(5, 5), OUT(5, 5), AGAIN, OPTIONAL(31)}, mf_shape_rnn, mf_gradient_lstm},
    [MF_OP_LSTM_GRAD] = {{KEEP, IN(10, 10), OUT(4, 4), OPTIONAL(14)}, mf_shape_rnn_grad, NULL, "second order"},
    [MF_OP_GRU] = {{KEEP, IN(5, 5), OUT(3, 3), AGAIN, OPTIONAL(7)}, mf_shape_rnn, mf_gradient_gru},
    [MF_OP_GRU_GRAD] = {{KEEP, IN(8, 8), OUT(4, 4), OPTIONAL(14)}, mf_shape_rnn_grad, NULL, "second order"},
    [MF_OP_SIMPLE_RNN] = {{KEEP, IN(4, 4), OUT(2, 2), AGAIN, OPTIONAL(3)}, mf_shape_rnn, mf_gradient_simple_rnn},
    [MF_OP_SIMPLE_RNN_GRAD] = {{KEEP, IN(6, 6), OUT(3, 3), OPTIONAL(6)}, mf_shape_rnn_grad, NULL, "second order"},

    [MF_OP_LOSS] = {{OVER(3, 0), IN(4, 4), OUT(1, 1), STATE}, mf_shape_in_place, mf_gradient_loss},
    [MF_OP_LOSS_GRAD] = {{OVER(0, 0), IN(3, 3), OUT(1, 1)}, mf_shape_loss_grad, NULL, "second order"},
    [MF_OP_METRIC] = {{OVER(3, 0), IN(4, 4), OUT(1, 1), STATE}, mf_shape_in_place, NULL, "state"},
    [MF_OP_REGULARIZE] = {{OVER(1, 0), IN(3, 3), OUT(2, 2), STATE}, mf_shape_in_place, NULL, "has its own"},

    [MF_OP_CLIP] = {{OVER(0, 0), IN(1, 1), OUT(1, 1), STATE}, mf_shape_in_place, NULL, "update"},
    [MF_OP_SQUARE_SUM] = {{KEEP, IN(1, MANY), OUT(1, 1)}, mf_shape_square_sum, NULL, "update"},
    [MF_OP_CLIP_GLOBAL] = {{OVER(0, 0), IN(2, 2), OUT(1, 1), STATE}, mf_shape_in_place, NULL, "update"},
    [MF_OP_CHECK_FINITE] = {{OVER(1, 0), IN(2, 2), OUT(2, 2), STATE}, mf_shape_in_place, NULL, "update"},
    [MF_OP_UPDATE] = {{OVER(0, 0), IN(2, 8), OUT(1, 5), STATE}, mf_shape_in_place, NULL, "update"},
    [MF_OP_EMA] = {{OVER(1, 0), IN(2, 3), OUT(1, 1), STATE}, mf_shape_in_place, NULL, "update"},
    [MF_OP_AUGMENT] = {{KEEP, IN(1, 1), OUT(1, 1), AGAIN}, mf_shape_given, mf_gradient_augment},
    [MF_OP_GROUP] = {{KEEP, IN(0, MANY), OUT(1, MANY)}, mf_shape_group, NULL, "made after the backward pass"},
};

static const struct {
    const char *name, *operands;
} texts[MF_OP_COUNT] = {
#define X(id, text, operands_text) {text, operands_text},
    MF_OP_LIST(X)
#undef X
};

const mf_kind_rules *mf_kind_rules_of(mf_op_kind kind)
{
    return (unsigned)kind < MF_OP_COUNT ? &kinds[kind] : NULL;
}

const mf_kind_row *mf_kind(mf_op_kind kind)
{
    return (unsigned)kind < MF_OP_COUNT ? &kinds[kind].row : NULL;
}

bool mf_op_recomputable(const mf_op *op)
{
    return op->kind == MF_OP_GROUP ? op->attr.group->recomputable : mf_kind(op->kind)->recomputable;
}

uint32_t mf_op_inplace_in(const mf_op *op)
{
    return op->kind == MF_OP_GROUP ? op->attr.group->inplace_in : mf_kind(op->kind)->inplace_in;
}

uint32_t mf_op_inplace_out(const mf_op *op)
{
    return op->kind == MF_OP_GROUP ? op->attr.group->inplace_out : mf_kind(op->kind)->inplace_out;
}

const char *mf_kind_name(mf_op_kind kind)
{
    return (unsigned)kind < MF_OP_COUNT ? texts[kind].name : "?";
}

const char *mf_kind_operands(mf_op_kind kind)
{
    return (unsigned)kind < MF_OP_COUNT ? texts[kind].operands : "?";
}

bool mf_unary_from_output(mf_unary function)
{
    switch (function) {
    case MF_UNARY_RELU:
    case MF_UNARY_RELU6:
    case MF_UNARY_LEAKY_RELU:
    case MF_UNARY_ELU:
    case MF_UNARY_SELU:
    case MF_UNARY_CELU:
    case MF_UNARY_SIGMOID:
    case MF_UNARY_HARD_SIGMOID:
    case MF_UNARY_HARD_SIGMOID_FIFTH:
    case MF_UNARY_TANH:
    case MF_UNARY_HARD_TANH:
    case MF_UNARY_SOFTSIGN:
    case MF_UNARY_EXP:
    case MF_UNARY_SQRT:
    case MF_UNARY_RSQRT:
    case MF_UNARY_RECIPROCAL:
    case MF_UNARY_CLIP:
    case MF_UNARY_SOFT_SHRINK:
    case MF_UNARY_HARD_SHRINK:
        return true;
    default:
        return false;
    }
}
