/*
 * lower_inner.h: what the functions that lower one layer class are written with.
 *
 * Each class has one function, found in the table of lower_table.c. It reads the layer's configuration, asks for
 * weights in the order Keras stores them, appends operations, and leaves its results in c->out. Inputs have been cast
 * to the layer's compute type; a failure is sticky in c->b.
 */
#ifndef MF_MODEL_LOWER_INNER_H
#define MF_MODEL_LOWER_INNER_H

#include "graph/build.h"
#include "graph/passes/optimizer.h"
#include "model/lower/lower.h"

typedef struct mf_scope mf_scope; /* one nested model: numbers of its layers */

/* A result whose size is penalized in the loss. */
typedef struct mf_activity {
    const struct mf_activity *next;
    uint32_t tensor;
    double l1, l2;
} mf_activity;

typedef struct mf_lowering {
    mf_build b;
    const mf_lower_options *options;
    const mf_model *root;
    mf_arena scratch;         /* dies with the lowering */
    mf_scope *last_scope;     /* of the layers numbered so far */
    uint32_t *first_variable; /* by graph layer: its first variable, MF_NONE before its first call */
    uint32_t *output_masks;   /* by output of the model: the mask that goes with it (N, T), or MF_NONE */
    uint32_t feeds_in;
    uint32_t calls;   /* lowered so far */
    uint32_t metrics; /* of the compile settings, so far */
    bool keras2;
    const mf_activity *activities;
    bool float16; /* some layer computes in float16 with float32 weights: losses are scaled */
} mf_lowering;

typedef struct mf_layer_call {
    mf_lowering *lo;
    mf_build *b;
    const mf_layer *layer;
    const mf_json *config;
    const mf_call *call;
    uint32_t graph_layer;
    mf_dtype compute, variable; /* types of the layer's policy */
    bool trainable;
    bool training; /* dropout acts, batch normalization uses the batch */
    const uint32_t *in;
    const uint32_t *in_masks; /* of each input: the mask that goes with it, or MF_NONE */
    const char *const *names; /* keyword of each input, or NULL */
    uint32_t in_count;
    uint32_t out[8];
    uint32_t out_count;
    uint32_t mask;         /* given in the call, else of the first input, or MF_NONE */
    uint32_t second_mask;  /* attention: of the values, when given in the call */
    bool mask_given;       /* in the call */
    uint32_t out_masks[8]; /* go with the results; [0] is `mask` before the call of layers that pass masks on */
    const char *prefix;    /* of stored paths: "", "cell/", "forward_layer/cell/" */
    mf_scope *inner;       /* of the model inside a wrapper, or NULL */
    bool no_penalty;       /* its activity regularizer is not heard */
    uint32_t weights;      /* asked for so far in this call */
    uint32_t paths;        /* next number under prefix + "vars/" */
} mf_layer_call;

typedef void mf_layer_rule(mf_layer_call *c);

typedef enum {
    MF_CLASS_PASSES_MASK = 1, /* the input's mask goes with the output */
    MF_CLASS_KEEPS_TYPES = 2, /* inputs are not cast to the compute type */
    MF_CLASS_NO_AUTOCAST = 8, /* nor floats from one width to another: indices would become other indices */
    MF_CLASS_TAKES_MASKS = 4, /* whoever reads its inputs later finds no masks on them */
} mf_class_flags;

typedef struct mf_class_row {
    const char *name;
    mf_layer_rule *rule;
    unsigned flags;
    const char *how; /* for docs/layers.md */
} mf_class_row;
const mf_class_row *mf_class_find(const char *name);
const mf_class_row *mf_class_table(uint32_t *count);
/* Operation nodes: Add, Multiply, GetItem ... of keras.ops. */
const mf_class_row *mf_operation_find(const char *name);
extern const mf_class_row mf_operation_rows[];
extern const uint32_t mf_operation_row_count;
const mf_class_row *mf_shape_operation_find(const char *name);
const mf_class_row *mf_shape_operation_table(uint32_t *count);

/* ---- lower.c ---- */
/* Runs a layer's rule on given inputs: used for wrapped layers too. The call's in, names, config ... are set. */
void mf_lower_layer(mf_layer_call *c);
uint32_t mf_lower_unsupported(mf_layer_call *c, const char *what);
/* Fails, naming the key, when the layer's configuration asks for something its rule would drop. */
bool mf_lower_keys(mf_layer_call *c);
/* Lowers a nested model on given inputs. */
void mf_lower_nested(mf_layer_call *c, const mf_model *model, mf_scope *scope);
/* The input has another number of dimensions than the class needs. Returns false. */
bool mf_lower_wrong_rank(mf_layer_call *c, mf_shape input, uint32_t needed);

/* lower_order.c: by call (first[layer] + call), its place in Keras's order; MF_NONE for what no output needs. False on
 * lack of memory. */
bool mf_keras_ranks(mf_arena *arena, const mf_model *model, const uint32_t *first, uint32_t calls, uint32_t *rank);
mf_dtype mf_policy_compute(mf_lowering *lo, const char *policy, mf_dtype *variable);

/* ---- the caller's options, lower_options.c ---- */
memfit_status mf_check_lower_options(const mf_lower_options *options, memfit_error *err);
/* A size or an assumption that nothing took would be silently dropped. */
void mf_check_dims_used(mf_lowering *lo);
void mf_check_assumptions_used(mf_lowering *lo);

/* ---- masks, lower_mask.c: U8 tensors, 0 where a step is left out ---- */
/* Masks go with the values of calls, not with tensors: a layer that drops the mask may well give its input back. */
void mf_masks_none(uint32_t masks[8]);
/* A tensor of any type as a mask. */
uint32_t mf_mask_truth(mf_build *b, uint32_t x);
/* What elementwise merging makes of its inputs' masks: a step counts where any of them says so; MF_NONE when one of the
 * inputs has none. */
uint32_t mf_mask_merged(mf_layer_call *c);
/* What concatenation makes of them: an input without a mask counts everywhere. */
uint32_t mf_mask_concatenated(mf_layer_call *c, uint32_t axis);
/* A mask with axes of 1 behind its own, up to `rank`. */
uint32_t mf_mask_expanded(mf_layer_call *c, uint32_t mask, uint32_t rank);

/* ---- lower_weights.c ---- */
typedef struct mf_weight_spec {
    const char *name;        /* "kernel" */
    const char *initializer; /* key in the config, or NULL */
    const char *otherwise;   /* initializer when the config names none: "glorot_uniform"; NULL: `initial` */
    const char *regularizer; /* key in the config, or NULL */
    double initial;
    bool frozen;  /* a statistic: never trained */
    bool keep;    /* do not cast to the compute type */
    bool integer; /* an int32 */
} mf_weight_spec;
/* The next weight of this layer, as a tensor in the compute type. Makes the variable at the layer's first call. */
uint32_t mf_weight(mf_layer_call *c, const mf_weight_spec *spec, mf_shape shape);
/* A weight as it is stored, for a layer nobody knows. */
uint32_t mf_stored_weight(mf_layer_call *c, const mf_stored *stored);
/* The common ones: kernel_initializer, bias_initializer ... */
uint32_t mf_kernel_weight(mf_layer_call *c, mf_shape shape);
uint32_t mf_bias_weight(mf_layer_call *c, int64_t count); /* MF_NONE when use_bias is false */
/* A constant from the configuration: a number or nested lists of numbers, as a variable of role CONSTANT in the compute
 * type. */
uint32_t mf_constant(mf_layer_call *c, const mf_json *value);
uint32_t mf_random_key(mf_layer_call *c); /* numbered alike in every mode */

/* ---- configuration ---- */
mf_shape mf_shape1(int64_t a);
mf_shape mf_shape2(int64_t a, int64_t b);
mf_shape mf_shape3(int64_t a, int64_t b, int64_t c);
mf_shape mf_shape4(int64_t a, int64_t b, int64_t c, int64_t d);
/* "strides": 2 or [2, 2] into `count` numbers; false when it is neither. */
bool mf_config_ints(const mf_json *config, const char *key, uint32_t count, int64_t fallback, int64_t *values);
/* An axis that may be negative; MF_NONE when out of range. */
uint32_t mf_axis(int64_t axis, uint32_t rank);
/* Name of a function or object: "relu", {"class_name": "function", "config": "relu"}, {"class_name": "ReLU"}; NULL for
 * null. */
const char *mf_config_name(const mf_json *value);
/* Channels last and back, when data_format is channels_first. */
uint32_t mf_channels_last(mf_layer_call *c, uint32_t x);
uint32_t mf_channels_back(mf_layer_call *c, uint32_t y);

/* ---- einsum, lower_einsum.c ---- */
/* Two operands by numpy's rules; an ellipsis stands for the leading axes. */
uint32_t mf_einsum(mf_layer_call *c, const char *equation, uint32_t x, uint32_t y);

/* ---- activations, lower_activation.c ---- */
/* Appends the activation a config value names (null: none). */
uint32_t mf_activation(mf_layer_call *c, const mf_json *spec, uint32_t x);
uint32_t mf_activation_named(mf_layer_call *c, const char *name, uint32_t x);
/* A plain unary function by name, for recurrent layers; false when the name is none. */
bool mf_activation_unary(const mf_lowering *lo, const char *name, mf_unary *function);

/* ---- losses and compile settings, lower_loss.c ---- */
void mf_lower_compile(mf_lowering *lo);

/* ---- classes ---- */
mf_layer_rule mf_lower_input, mf_lower_dense, mf_lower_einsum_dense, mf_lower_embedding, mf_lower_activation_layer,
    mf_lower_identity, mf_lower_masking, mf_lower_relu, mf_lower_leaky_relu, mf_lower_elu, mf_lower_prelu,
    mf_lower_softmax, mf_lower_thresholded_relu;
mf_layer_rule mf_lower_conv, mf_lower_depthwise_conv, mf_lower_separable_conv, mf_lower_conv_transpose,
    mf_lower_max_pool, mf_lower_average_pool, mf_lower_global_average, mf_lower_global_max;
mf_layer_rule mf_lower_batch_norm, mf_lower_layer_norm, mf_lower_group_norm, mf_lower_unit_norm;
mf_layer_rule mf_lower_dropout, mf_lower_spatial_dropout, mf_lower_gaussian_noise, mf_lower_gaussian_dropout,
    mf_lower_alpha_dropout;
mf_layer_rule mf_lower_flatten, mf_lower_reshape, mf_lower_permute, mf_lower_repeat_vector, mf_lower_zero_padding,
    mf_lower_cropping, mf_lower_up_sampling;
mf_layer_rule mf_lower_add, mf_lower_average, mf_lower_subtract, mf_lower_multiply, mf_lower_maximum, mf_lower_minimum,
    mf_lower_concatenate, mf_lower_dot;
mf_layer_rule mf_lower_rescaling, mf_lower_normalization, mf_lower_custom_scale, mf_lower_layer_scale,
    mf_lower_stochastic_depth;
mf_layer_rule mf_lower_lstm, mf_lower_gru, mf_lower_simple_rnn, mf_lower_rnn, mf_lower_bidirectional,
    mf_lower_time_distributed;
mf_layer_rule mf_lower_multi_head_attention, mf_lower_attention, mf_lower_additive_attention;
mf_layer_rule mf_lower_augment, mf_lower_random_crop, mf_lower_resizing, mf_lower_center_crop;
uint32_t mf_interpolation(const char *name); /* number of a resize method, or MF_NONE */

/* l1 and l2 of a regularizer's configuration; false, and nothing written, when there is none or it is not known. */
bool mf_read_regularizer(mf_layer_call *c, const mf_json *value, double *l1_factor, double *l2_factor);
/* Remembers the results of a layer with an activity regularizer; adds the penalties of all to the loss. */
void mf_activity_note(mf_layer_call *c);
void mf_activity_losses(mf_lowering *lo);
/* The results that will be penalized. */
uint32_t mf_activity_tensors(mf_lowering *lo, uint32_t **tensors);

#endif
