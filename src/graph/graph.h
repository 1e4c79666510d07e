/*
 * graph.h: one training (or evaluation, or prediction) step as data: tensors, storages, operations in a valid order.
 *
 *   storage   a range of bytes that lives and dies as one; has a kind, an owner (layer) and a size
 *   tensor    dtype + shape over a storage at a byte offset; several tensors may view one storage (VIEW operations)
 *   operation kind + attributes + inputs + outputs; every kind is one row of the table in kinds.c (shape rule, gradient
 *             rule, what may run in place, cost), its attributes one member of the union below
 *   variable  a tensor that outlives the step: parameters, optimizer slots, statistics, metric state, accumulators.
 *             Variables are numbered alike in every graph built from one model, whatever the batch or the mode: a plan
 *             places variable v once and all its phases use it there.
 *
 * A graph is built for one concrete batch (a piece of the asked batch, when it is split). Operations come in a natural
 * valid order: forward, loss, backward (weight gradients before data gradients), each update as soon as its gradient is
 * final. The planner may reorder, repeat (recompute) and place, but never changes an operation.
 *
 * Gradient splitting: CONV and MATMUL have separate gradients for weights and data. Bias gradients come with the weight
 * gradient of CONV (second output) and as REDUCE for MATMUL.
 *
 * With `accumulate`, parameter gradients are variables (kind GRADIENTS): operations that produce them carry
 * op.accumulate = true: outputs that lie in a variable are added to (output += result), all others are overwritten.
 * FILL operations with when = FIRST_PIECE clear them, and updates have when = LAST_PIECE. A graph without pieces runs
 * both: one piece is the first and the last. Only kinds whose row says `accumulates` carry the flag. On a kind with one
 * output the flag adds to that output wherever it lies: sums over chunks of rows (chunk.h).
 *
 * A VIEW with attr.view.rows is some of its input's rows (first axis), at an offset in the same storage. Operations
 * that write one write a part of a storage: FILL has written all of it before.
 *
 * Variables not used in a graph (slots when predicting, gradients without accumulation) are in the list all the same,
 * with tensor == MF_NONE: they have a number, a type and a shape, and no bytes there.
 *
 * Operations that change a tensor in place (rows with must_alias: updates, clipping, loss, metrics, moving averages)
 * name the same tensor as input and output; `producer` is the operation that first wrote it. Such a write keeps its
 * place among all readers and writers of that storage.
 *
 * What operands mean, where the list below leaves it open:
 *
 *   BROADCAST, BINARY, COMPARE, SELECT, PRELU
 *                align shapes at the right, as numpy; a reduced axis must be there with size 1 (VIEW first)
 *   COMPARE      as IEEE says: nothing is equal to, less or greater than NaN
 *   SELECT       copies: what is not taken may be NaN or infinite. Without a or b: the numbers of attr.select
 *   SLICE        y[i] = x[begin + i*stride]; a negative stride runs backwards. PAD never crops
 *   TRANSPOSE    y.dim[i] = x.dim[perm[i]]
 *   GATHER       table is (V, D...); indices of any integer or float type; out of range is an error, never undefined
 *   MATMUL       c = scale * (a' b') + bias; batches are the leading axes of c; a factor of rank 2 serves all of them
 *   CONV         depthwise: groups = in channels, w is (k..., 1, in*multiplier), output c*multiplier + m
 *   UNARY        alpha, beta: LEAKY_RELU slope; ELU, CELU alpha; CLIP least, greatest; SOFT_SHRINK, HARD_SHRINK
 *                threshold; THRESHOLD threshold, value below; SQUAREPLUS b; AFFINE; POW. RELU6 is 6, RELU plain
 *   REDUCE       L2 is sqrt(sum of squares); its gradient, as that of max, min and prod, is REDUCE_GRAD
 *   POOL_MAX     index: the winner's place in its window (row-major, the first of equals), U8 for windows of up to
 *                255 cells, else I32
 *   BATCH_NORM   variance is biased (divided by n), without epsilon
 *   LAYER_NORM   mean and rstd have x's leading axes; with groups they are (N, groups), gamma and beta (C).
 *                rms: rstd = 1/sqrt(mean(x^2) + epsilon)
 *   ATTENTION    y = dropout(softmax(scale * q k')) v for each head, without a matrix of scores in memory; lse is the
 *                logarithm of each row's sum, all that the gradient needs beside y (infinite where a query's every pair
 *                is masked: its weights are equal). q is (N, H, T, D), k (N, H, S, D),
 *                v (N, H, S, E), y (N, H, T, E); with steps_first H and T (or S) are exchanged; of rank 3: one head.
 *                Masks (U8) broadcast to (N, H, T, S): where one is 0 the score is attr.attention.masked, the draws
 *                of dropout are those of a tensor of that shape
 *   LSTM         gates are i, f, c, o after their activations
 *   GRU          gates are z, r, candidate, recurrent part of the candidate (reset_after: h U_h + bias; else
 *                (r*h) U_h); bias_u (3u) belongs to U and is there with reset_after
 *   DROPOUT      keeps where u >= rate, y = x / (1 - rate); u = (word >> 8) * 2^-24 of mf_philox. A RANDOM bernoulli
 *                is that mask as 0 and 1. The index within a sample counts only axes that are not shared
 *   LOSS         the value of a sample is the mean (cross-entropies: sum) over the last axis; LOSS_GRAD is times
 *                loss_scale, as is what REGULARIZE adds to a gradient; CHECK_FINITE divides it out
 *   METRIC       state: two numbers, total and count (means, accuracies, RMSE: squares, LOSS_VALUE: pred is the loss,
 *                each batch counts 1); PRECISION true and false positives, RECALL true positives and false negatives;
 *                AUC (4, thresholds): true positives, false positives, true negatives, false negatives
 *   UPDATE       weight decay first (param -= param*decay*rate), then the rule; slots in the order of files
 *
 * Recurrent kinds: h has every step's state at its own time index, whichever way time runs; masked steps repeat the
 * state before; h_last is the state after the last step done. mask is (N,T) in U8, 0 where a step is left out.
 */
#ifndef MF_GRAPH_GRAPH_H
#define MF_GRAPH_GRAPH_H

#include "base/memory.h"
#include "base/tensor.h"

/* X(NAME, "name", inputs and outputs). [x] is optional: MF_NONE in its place. */
#define MF_OP_LIST(X)                                                                                                  \
    /* structure */                                                                                                    \
    X(INPUT, "input", "-> x (model input or target; filled by the executor)")                                          \
    X(VIEW, "view", "x -> y (same storage, another shape, or some of its rows)")                                       \
    X(CAST, "cast", "x -> y")                                                                                          \
    X(FILL, "fill", "-> y (constant attr.fill.value)")                                                                 \
    X(TRANSPOSE, "transpose", "x -> y")                                                                                \
    X(SLICE, "slice", "x -> y (begin, stride)")                                                                        \
    X(PAD, "pad", "x -> y (before, after, between: zeros or value, or reflect/symmetric/edge)")                        \
    X(CONCAT, "concat", "x... -> y")                                                                                   \
    X(BROADCAST, "broadcast", "x -> y (times attr.broadcast.scale)")                                                   \
    X(GATHER, "gather", "table, indices -> y")                                                                         \
    X(GATHER_GRAD, "gather_grad", "indices, dy -> dtable")                                                             \
    X(RESIZE, "resize", "x -> y")                                                                                      \
    X(RESIZE_GRAD, "resize_grad", "dy -> dx")                                                                          \
    X(ASSUMED, "assumed", "x... -> y (an unknown layer under a stated assumption; cannot run)")                        \
    /* linear */                                                                                                       \
    X(MATMUL, "matmul", "a, b, [bias] -> c (batched; b of rank 2 serves all batches)")                                 \
    X(CONV, "conv", "x, w, [bias] -> y (w is k..., in/groups, out)")                                                   \
    X(CONV_GRAD_DATA, "conv_grad_data", "dy, w, [bias] -> dx (also the transposed convolution, then with bias)")       \
    X(CONV_GRAD_WEIGHTS, "conv_grad_weights", "x, dy -> dw, [db]")                                                     \
    /* pointwise */                                                                                                    \
    X(UNARY, "unary", "x -> y")                                                                                        \
    X(UNARY_GRAD, "unary_grad", "dy, x or y (attr.unary.from_output) -> dx")                                           \
    X(MASK, "mask", "x -> bits (where the slope of attr.unary.function, RELU or RELU6, is not 0; 8 to a byte)")        \
    X(MASK_GRAD, "mask_grad", "dy, bits -> dx")                                                                        \
    X(BINARY, "binary", "a, b -> y (broadcasting)")                                                                    \
    X(BINARY_GRAD, "binary_grad",                                                                                      \
      "dy, a, b -> da or db (attr.binary.side) in dy's shape: max, min, pow, div, sq. diff")                           \
    X(COMPARE, "compare", "a, [b] -> y (U8: 1 where it is true; without b: with attr.compare.value; broadcasting)")    \
    X(SELECT, "select", "mask, [a], [b] -> y (a where the mask is not 0, else b; broadcasting)")                       \
    X(SUM_N, "sum_n", "x... -> y")                                                                                     \
    X(REDUCE, "reduce", "x -> y")                                                                                      \
    X(REDUCE_GRAD, "reduce_grad", "dy, x, y -> dx (max, min, prod; sum and mean use BROADCAST)")                       \
    X(SOFTMAX, "softmax", "x -> y")                                                                                    \
    X(SOFTMAX_GRAD, "softmax_grad", "dy, y -> dx")                                                                     \
    X(PRELU, "prelu", "x, alpha -> y")                                                                                 \
    X(PRELU_GRAD, "prelu_grad", "dy, x, alpha -> [dx], [dalpha]")                                                      \
    X(RANDOM, "random", "-> y (uniform, normal, bernoulli: keyed by seed, layer, step, sample)")                       \
    X(DROPOUT, "dropout", "x -> y (its own gradient, with the same key)")                                              \
    /* windows */                                                                                                      \
    X(POOL_MAX, "pool_max", "x -> y, [index]")                                                                         \
    X(POOL_MAX_GRAD, "pool_max_grad", "dy, index -> dx")                                                               \
    X(POOL_AVG, "pool_avg", "x -> y")                                                                                  \
    X(POOL_AVG_GRAD, "pool_avg_grad", "dy -> dx")                                                                      \
    /* normalization over the last axis (batch) or trailing axes (layer), channels last */                             \
    X(BATCH_NORM, "batch_norm", "x, [gamma], [beta] -> y, mean, variance")                                             \
    X(BATCH_NORM_GRAD, "batch_norm_grad", "dy, x, mean, variance, [gamma] -> [dx], [dgamma], [dbeta]")                 \
    X(BATCH_NORM_INFER, "batch_norm_infer", "x, [gamma], [beta], mean, variance -> y")                                 \
    X(BATCH_NORM_INFER_GRAD, "batch_norm_infer_grad", "dy, x, mean, variance, [gamma] -> [dx], [dgamma], [dbeta]")     \
    X(MOVING_AVERAGE, "moving_average", "value, state -> state (in place: state = m*state + (1-m)*value)")             \
    X(LAYER_NORM, "layer_norm", "x, [gamma], [beta] -> y, [mean], rstd")                                               \
    X(LAYER_NORM_GRAD, "layer_norm_grad", "dy, x, [mean], rstd, [gamma] -> [dx], [dgamma], [dbeta]")                   \
    /* made by passes/attend.c of products and a softmax */                                                            \
    X(ATTENTION, "attention", "q, k, v, [mask], [mask], [mask] -> y, [lse] (N,H,T)")                                   \
    X(ATTENTION_GRAD, "attention_grad", "dy, q, k, v, y, lse, [mask], [mask], [mask] -> [dq], [dk], [dv]")             \
    /* recurrent: the input projection is a MATMUL before; z is (N, T, gates*units) */                                 \
    X(LSTM, "lstm",                                                                                                    \
      "z, u, [h0], [c0], [mask] -> [h] (N,T,units), [gates] (N,T,4u), [c] (N,T,units), [h_last] (N,units), [c_last]")  \
    X(LSTM_GRAD, "lstm_grad",                                                                                          \
      "[dh] (N,T,units), h, gates, c, u, [h0], [c0], [mask], [dh_last], [dc_last] -> dz, [du], [dh0], [dc0]")          \
    X(GRU, "gru",                                                                                                      \
      "z, u, [bias_u], [h0], [mask] -> [h], [gates] (N,T,4u: z,r,h and the recurrent part of h), [h_last]")            \
    X(GRU_GRAD, "gru_grad", "[dh], h, gates, u, [bias_u], [h0], [mask], [dh_last] -> dz, [du], [dbias_u], [dh0]")      \
    X(SIMPLE_RNN, "simple_rnn", "z, u, [h0], [mask] -> [h], [h_last]")                                                 \
    X(SIMPLE_RNN_GRAD, "simple_rnn_grad", "[dh], h, u, [h0], [mask], [dh_last] -> dz, [du], [dh0]")                    \
    /* loss, metrics: `loss` is a variable that is added to: the sum, then each of several outputs' own */             \
    X(LOSS, "loss", "pred, target, [sample_weight], loss -> loss (in place: += this piece's part)")                    \
    X(LOSS_GRAD, "loss_grad", "pred, target, [sample_weight] -> dpred")                                                \
    X(METRIC, "metric", "pred, target, [sample_weight], state -> state (in place)")                                    \
    X(REGULARIZE, "regularize", "w, [grad], loss -> [grad], loss (in place)")                                          \
    /* the update */                                                                                                   \
    X(CLIP, "clip", "grad -> grad (in place: by value or by this tensor's norm)")                                      \
    X(SQUARE_SUM, "square_sum", "x... -> scalar (for the global norm)")                                                \
    X(CLIP_GLOBAL, "clip_global", "grad, square_sum -> grad (in place)")                                               \
    X(CHECK_FINITE, "check_finite",                                                                                    \
      "grad, flag -> flag, grad (in place: grad /= loss_scale; flag = 1 when not finite)")                             \
    X(UPDATE, "update",                                                                                                \
      "param, grad, slots..., [flag] -> param, slots... (in place; nothing when flag is there and set)")               \
    X(EMA, "ema", "param, average, [flag] -> average (in place; nothing when flag is there and set)")                  \
    X(AUGMENT, "augment", "x -> y (the Random* layers; only before the first trainable layer)")                        \
    X(GROUP, "group", "x... -> y... (several operations run as one: group.h)")

typedef enum mf_op_kind {
#define X(name, text, operands) MF_OP_##name,
    MF_OP_LIST(X)
#undef X
        MF_OP_COUNT
} mf_op_kind;

/* clang-format off */
#define MF_UNARY_LIST(X)                                                                                               \
    X(LINEAR) X(RELU) X(LEAKY_RELU) X(ELU) X(SELU) X(CELU) X(SIGMOID) X(HARD_SIGMOID) X(TANH) X(HARD_TANH)             \
    X(SOFTPLUS) X(SOFTSIGN) X(SILU) X(HARD_SILU) X(GELU) X(GELU_TANH) X(MISH) X(EXP) X(LOG) X(LOG_SIGMOID)             \
    X(SQRT) X(RSQRT) X(SQUARE) X(ABS) X(NEG) X(RECIPROCAL) X(CLIP) X(TANH_SHRINK) X(SOFT_SHRINK) X(HARD_SHRINK)        \
    X(SQUAREPLUS) X(SPARSE_PLUS) X(THRESHOLD) X(SPARSE_SIGMOID) X(SIN) X(COS) X(AFFINE) /* alpha*x + beta */           \
    X(POW) /* x^alpha */ X(RELU6) X(SIGN) X(FLOOR) X(ERF) X(HARD_SIGMOID_FIFTH) X(LOG1P) X(EXPM1)
/* clang-format on */

typedef enum mf_unary {
#define X(name) MF_UNARY_##name,
    MF_UNARY_LIST(X)
#undef X
        MF_UNARY_COUNT
} mf_unary;

typedef enum { MF_ADD, MF_SUB, MF_MUL, MF_DIV, MF_MAX, MF_MIN, MF_POW, MF_SQUARED_DIFFERENCE } mf_binary;
typedef enum { MF_EQUAL, MF_NOT_EQUAL, MF_LESS, MF_LESS_EQUAL, MF_GREATER, MF_GREATER_EQUAL } mf_compare;
typedef enum { MF_REDUCE_SUM, MF_REDUCE_MEAN, MF_REDUCE_MAX, MF_REDUCE_MIN, MF_REDUCE_PROD, MF_REDUCE_L2 } mf_reduce;

/* clang-format off */
#define MF_LOSS_LIST(X)                                                                                                \
    X(MSE, "mean_squared_error") X(MAE, "mean_absolute_error") X(MAPE, "mean_absolute_percentage_error")               \
    X(MSLE, "mean_squared_logarithmic_error") X(HUBER, "huber") X(LOG_COSH, "log_cosh") X(POISSON, "poisson")          \
    X(KL, "kl_divergence") X(HINGE, "hinge") X(SQUARED_HINGE, "squared_hinge")                                         \
    X(CATEGORICAL_HINGE, "categorical_hinge") X(BCE, "binary_crossentropy")                                            \
    X(BCE_LOGITS, "binary_crossentropy(logits)") X(CCE, "categorical_crossentropy")                                    \
    X(CCE_LOGITS, "categorical_crossentropy(logits)") X(SCCE, "sparse_categorical_crossentropy")                       \
    X(SCCE_LOGITS, "sparse_categorical_crossentropy(logits)") X(BINARY_FOCAL, "binary_focal_crossentropy")             \
    X(CATEGORICAL_FOCAL, "categorical_focal_crossentropy") X(COSINE, "cosine_similarity")
/* clang-format on */

typedef enum mf_loss {
#define X(name, text) MF_LOSS_##name,
    MF_LOSS_LIST(X)
#undef X
        MF_LOSS_COUNT
} mf_loss;

/* clang-format off */
#define MF_METRIC_LIST(X)                                                                                              \
    X(BINARY_ACCURACY, "binary_accuracy") X(CATEGORICAL_ACCURACY, "categorical_accuracy")                              \
    X(SPARSE_CATEGORICAL_ACCURACY, "sparse_categorical_accuracy") X(TOP_K, "top_k_categorical_accuracy")               \
    X(SPARSE_TOP_K, "sparse_top_k_categorical_accuracy") X(PRECISION, "precision") X(RECALL, "recall")                 \
    X(METRIC_MAE, "mae") X(METRIC_MSE, "mse") X(METRIC_RMSE, "root_mean_squared_error") X(AUC, "auc")                  \
    X(LOSS_VALUE, "loss")
/* clang-format on */

typedef enum mf_metric {
#define X(name, text) MF_METRIC_##name,
    MF_METRIC_LIST(X)
#undef X
        MF_METRIC_COUNT
} mf_metric;

/* clang-format off */
#define MF_OPTIMIZER_LIST(X)                                                                                           \
    X(SGD, "sgd") X(RMSPROP, "rmsprop") X(ADAM, "adam") X(ADAMW, "adamw") X(NADAM, "nadam") X(ADAMAX, "adamax")        \
    X(ADAGRAD, "adagrad") X(ADADELTA, "adadelta") X(ADAFACTOR, "adafactor") X(LION, "lion") X(FTRL, "ftrl")            \
    X(LAMB, "lamb")
/* clang-format on */

typedef enum mf_optimizer {
#define X(name, text) MF_OPTIMIZER_##name,
    MF_OPTIMIZER_LIST(X)
#undef X
        MF_OPTIMIZER_COUNT
} mf_optimizer;

typedef struct mf_window { /* convolution and pooling; 1 to 3 spatial dimensions, in order */
    uint32_t dims;
    int64_t kernel[3], stride[3], dilation[3], before[3], after[3]; /* padding */
    int64_t groups;
    bool count_padding; /* average pooling: else it divides by the real cells only */
} mf_window;

typedef struct mf_update_attr {
    mf_optimizer optimizer;
    double momentum, rho, beta_1, beta_2, epsilon, weight_decay, l1, l2, l2_shrinkage, learning_rate_power, initial;
    double relative_step, clip_threshold, epsilon_2; /* adafactor; its epsilon_1 is `epsilon`, beta_2_decay `beta_2` */
    double beta;                                     /* ftrl */
    bool nesterov, centered, amsgrad, has_weight_decay;
} mf_update_attr;

/* State: (total, count) for means; (true positives, false positives) for precision, (true positives, false negatives)
 * for recall; for AUC (4, 200): true positives, false positives, true negatives, false negatives at 200 thresholds. */
typedef struct mf_metric_attr {
    mf_metric function;
    double threshold;
    uint32_t k;      /* LOSS_VALUE: which element of the loss */
    uint32_t output; /* which model output it belongs to */
    bool weighted;   /* by the sample weights, where there are any */
} mf_metric_attr;

typedef union mf_attr {
    mf_window window;
    struct {
        bool rows; /* y is x's rows from `first` on; else all of x */
        int64_t first;
    } view;
    struct {
        bool trans_a, trans_b;
        double scale; /* of the product; 1 normally */
    } matmul;
    struct {
        mf_unary function;
        double alpha, beta;
        bool from_output;
    } unary;
    struct {
        mf_binary function;
        uint32_t side; /* BINARY_GRAD: 0 gives da, 1 gives db */
    } binary;
    struct {
        mf_compare function;
        double value; /* in place of b */
    } compare;
    struct {
        double yes, no; /* in place of a and b */
        bool causal;    /* also no where the last index is greater than the one before it */
    } select;
    struct {
        mf_reduce function;
        uint32_t axes; /* bit mask */
        bool keep;
    } reduce;
    struct {
        double scale;
    } broadcast;
    struct {
        double value;
    } fill;
    struct {
        uint32_t axis;
        bool log;
        bool causal; /* the last two axes are query and key: keys after the query count for nothing */
        bool sparse; /* sparsemax */
    } softmax;
    struct {
        double scale, masked; /* of q k'; what masks put in place of a score */
        double rate;          /* of dropout on the weights; 0: none */
        uint32_t key;         /* of its draws */
        uint32_t causal;      /* keys after the query: 1 count for nothing, 2 are as masked ones */
        bool zeroed;          /* masked pairs get no weight, even in rows where nothing else is */
        bool steps_first;     /* (N, T, H, D) rather than (N, H, T, D) */
    } attention;
    struct {
        uint32_t perm[MF_MOST_DIMS];
    } transpose;
    struct {
        int64_t begin[MF_MOST_DIMS], stride[MF_MOST_DIMS]; /* the size is the output's shape */
    } slice;
    struct {
        int64_t before[MF_MOST_DIMS], after[MF_MOST_DIMS], between[MF_MOST_DIMS];
        double value;
        uint32_t mode; /* 0 constant, 1 reflect, 2 symmetric, 3 edge */
    } pad;
    struct {
        uint32_t axis;
    } concat;
    struct {
        double epsilon;
        uint32_t axes;       /* layer norm: number of trailing axes */
        uint32_t groups;     /* > 0: group normalization over (positions, channels/groups) of each sample */
        bool rms;            /* no mean subtraction */
        mf_unary activation; /* batch norm: of the result, in the same pass: RELU or RELU6 (fuse.c); LINEAR: none */
    } norm;
    struct {
        double momentum;
    } moving;
    struct {
        double rate, mean, scale; /* dropout rate; uniform [mean, scale); normal mean, deviation */
        uint32_t distribution;    /* RANDOM: 0 uniform, 1 normal, 2 bernoulli(rate), 3 truncated normal */
        uint32_t key;             /* which random layer: part of the generator's key */
        uint32_t shared_axes; /* bit mask of axes (never 0, the batch, unless noise_shape says so) that share a draw */
    } random;
    struct {
        bool backwards, reset_after, sequences;
        mf_unary activation, recurrent_activation;
        double recurrent_dropout; /* > 0: of the state, one draw a sample for all steps; backends may refuse */
        uint32_t key;
    } rnn;
    struct {
        uint32_t method; /* 0 nearest, 1 bilinear, 2 bicubic, 3 area, 4 lanczos3 */
        bool align_corners, half_pixel;
    } resize;
    struct {
        mf_loss function;
        double weight;       /* loss_weights */
        double delta;        /* huber */
        double alpha, gamma; /* focal */
        double label_smoothing;
        uint32_t axis;
        uint32_t reduction; /* 0 sum / elements of the whole batch, 1 sum, 2 sum / sum of the batch's sample weights */
        bool balanced;      /* focal: alpha weighs the classes */
        /* A chunk of a batch's rows: the rows a sample has, and which row of the batch is the first here. 0: the whole
         * batch, whose shape says it. */
        int64_t rows_per_sample, first_row;
        uint32_t slot; /* the value goes, unweighted, to this element of `loss` too; 0: only to the sum */
    } loss;
    mf_metric_attr metric;
    struct {
        double l1, l2;
    } regularize;
    struct {
        double value; /* clip to +-value when > 0 */
        double norm;  /* clip to this norm when > 0 */
    } clip;
    mf_update_attr update;
    struct {
        double momentum;
    } ema;
    struct {
        uint32_t function; /* flip, rotation, zoom, translation, contrast, brightness, crop ...: see augment.h */
        double a[8];
        uint32_t key;
    } augment;
    struct {
        uint64_t bytes; /* extra memory the assumption states */
    } assumed;
    const struct mf_group *group; /* group.h */
} mf_attr;

typedef enum { MF_FORWARD, MF_LOSS_PHASE, MF_BACKWARD, MF_UPDATE_PHASE } mf_op_phase;
typedef enum { MF_ALWAYS, MF_FIRST_PIECE, MF_LAST_PIECE } mf_when;

typedef struct mf_op {
    mf_op_kind kind;
    uint8_t phase;      /* mf_op_phase */
    uint8_t when;       /* mf_when */
    bool accumulate;    /* outputs are added to, not overwritten */
    bool chunked;       /* part of the loop over chunks of rows (chunk.h): those keep their order */
    uint32_t layer;     /* index into graph->layers */
    uint32_t *in, *out; /* tensor ids; MF_NONE for an absent optional one */
    uint32_t in_count, out_count;
    mf_attr attr;
} mf_op;

typedef struct mf_tensor {
    const char *name;
    mf_dtype dtype;
    mf_shape shape;
    uint32_t storage;
    uint64_t offset;   /* bytes within the storage */
    uint32_t producer; /* operation that first writes it; MF_NONE for variables that come from outside */
    uint32_t variable; /* index into graph->variables, or MF_NONE */
} mf_tensor;

typedef struct mf_storage {
    uint64_t bytes;
    memfit_kind kind;
    uint32_t layer;
    uint32_t variable; /* or MF_NONE: lives only inside the step */
} mf_storage;

typedef enum {
    MF_VAR_PARAMETER,
    MF_VAR_STATISTIC,
    MF_VAR_SLOT,
    MF_VAR_GRADIENT,
    MF_VAR_EMA,
    MF_VAR_METRIC,
    MF_VAR_LOSS,
    MF_VAR_CONTROL,
    MF_VAR_CONSTANT /* from the configuration; `stored` has its values; never written */
} mf_var_role;

typedef enum {
    MF_CONSTRAINT_NONE,
    MF_CONSTRAINT_NORM, /* the norm over `axes` is brought to `rate` of the way into low..high */
    MF_CONSTRAINT_UNIT_NORM,
    MF_CONSTRAINT_NON_NEGATIVE
} mf_constraint_kind;

typedef struct mf_constraint {
    mf_constraint_kind kind;
    uint32_t axes; /* bits: the axes a norm is taken over */
    double low, high, rate;
} mf_constraint;

/* Numbers a variable begins with, as a file holds them. `path` is relative to its layer: "vars/0", "cell/vars/1". */
typedef struct mf_stored {
    const char *path;
    mf_dtype dtype;
    mf_shape shape;
    const void *data; /* raw little-endian bytes in the mapping or the arena; not aligned */
    uint64_t bytes;
} mf_stored;

typedef struct mf_variable {
    const char *name; /* "conv2d/kernel", "conv2d/kernel/adam_m" */
    const char *path; /* of stored weights relative to the layer: "vars/0" */
    mf_var_role role;
    memfit_kind kind;
    bool trainable;
    uint32_t layer; /* index into graph->layers */
    mf_dtype dtype;
    mf_shape shape;
    uint32_t tensor;         /* in this graph; MF_NONE when it is not used here */
    uint32_t parameter;      /* slots, gradients, EMA: which variable they belong to; else MF_NONE */
    uint32_t slot;           /* slots: which of the optimizer's (0 = m, 1 = v ...) */
    const mf_stored *stored; /* its initial value, or NULL */
    const void *initializer; /* const mf_json * from the layer's config, or NULL: zeros (ones for variances, gammas: see
                                name) */
    double initial;          /* value when neither is there */
    mf_metric_attr metric;   /* role METRIC: what it is the state of */
    double l1, l2;           /* regularizer of a parameter: l1*sum|w| + l2*sum(w^2); 0: none */
    mf_constraint constraint; /* on a parameter, after its update */
} mf_variable;

typedef struct mf_graph_layer {
    const char *name; /* unique path: "block1/conv" for nested models */
    const char *class_name;
    mf_shape output_shape; /* with dim[0] = batch */
    uint64_t parameter_count, trainable_count;
} mf_graph_layer;

typedef enum { MF_MODE_TRAIN, MF_MODE_EVALUATE, MF_MODE_PREDICT } mf_mode;

/* Inputs, then targets and sample weights: what the executor fills before each piece. */
typedef struct mf_feed {
    const char *name;
    uint32_t tensor;
    uint32_t role;                /* 0 input, 1 target, 2 sample weight */
    uint32_t index;               /* which input or output of the model */
    const struct mf_front *front; /* what is done to samples before they get here (front.h); NULL: nothing */
} mf_feed;

typedef struct mf_graph {
    mf_arena arena;
    mf_mode mode;
    int64_t batch;
    bool accumulate;
    mf_op *ops;
    uint32_t op_count;
    mf_tensor *tensors;
    uint32_t tensor_count;
    mf_storage *storages;
    uint32_t storage_count;
    mf_variable *variables;
    uint32_t variable_count;
    mf_graph_layer *layers; /* [0] is the step itself: "(step)" */
    uint32_t layer_count;
    mf_feed *feeds;
    uint32_t feed_count;
    /* Tensors of the model's outputs, as the user sees them (probabilities, not logits). Always there when predicting;
     * MF_NONE in the other modes when neither loss nor metric reads it. */
    uint32_t *outputs;
    uint32_t output_count;
    uint32_t loss_variable; /* MF_NONE when predicting */
    mf_optimizer optimizer;
    const char *optimizer_name, *loss_name; /* as chosen; `assumed` when neither file nor option named one */
    bool optimizer_assumed, loss_assumed;
    const char *ignored_metrics; /* names of metrics in the file that are not computed, or NULL */
    /* What the file asks of training and the step leaves out (own constraints, activity regularizers), or NULL. Such
     * a step can be planned, since they take no memory, but must not be run as if it were complete. */
    const char *left_out;
    bool uses_batch_norm;  /* trainable BatchNormalization, or a masked loss: pieces change the mathematics */
    bool needs_loss_scale; /* mixed_float16 */
    bool global_clip;
    /* The last layer and its loss, chunk.h: the bytes of the logits that chunks divide (0: there is no such end, and
     * whole_why says why not), how many rows they have, and in how many chunks they are here (1: whole). */
    uint64_t logits_bytes;
    int64_t logits_rows;
    uint32_t chunks;
    const char *whole_why;
    uint32_t accumulation_steps; /* of the optimizer, 0 without: that many steps make one update, and
                                    `accumulate` is then always set in training; CHECK_FINITE divides by it too */
    uint32_t average_every;      /* 0 without: after so many steps weights become averages */
    bool optimizer_given;        /* not the file's (by option, or assumed): its settings are the usual ones */
    bool optimizer_stored;       /* its state was found in the file, iteration count included */
    bool keeps_rate;             /* the learning rate is one of the optimizer's stored arrays */
    size_t op_capacity, tensor_capacity, storage_capacity, variable_capacity, layer_capacity, feed_capacity;
} mf_graph;

void mf_graph_destroy(mf_graph *graph);
/* Walks every invariant: ids in range, shapes obey the kind's rule, producers before readers, updates after every
 * reader. */
memfit_status mf_graph_check(const mf_graph *graph, memfit_error *err);

/* The row of a kind. */
typedef struct mf_kind_row {
    uint32_t inplace_in, inplace_out; /* this output may take this input's bytes when it is the last reader; MF_NONE */
    bool must_alias;                  /* in place always (updates, accumulating state) */
    bool recomputable;                /* may run again with the same result and no side effect */
    bool pointwise;
    bool accumulates;       /* may carry op.accumulate */
    uint32_t optional_outs; /* bit mask: outputs that become MF_NONE when nobody reads them */
    uint32_t min_in, max_in, min_out, max_out;
} mf_kind_row;
const mf_kind_row *mf_kind(mf_op_kind kind);
/* What a row says of its kind, of one operation: a group's answer is its members'. */
bool mf_op_recomputable(const mf_op *op);
uint32_t mf_op_inplace_in(const mf_op *op);
uint32_t mf_op_inplace_out(const mf_op *op);
const char *mf_kind_name(mf_op_kind kind);
const char *mf_kind_operands(mf_op_kind kind); /* "x, w, [bias] -> y ..." */

/* Work of one operation: floating-point operations, bytes read and written. */
void mf_op_cost(const mf_graph *graph, const mf_op *op, double *flops, double *bytes);

#endif
