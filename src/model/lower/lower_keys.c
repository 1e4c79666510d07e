/*
 * lower_keys.c: nothing in a configuration is dropped in silence.
 *
 * A rule reads the keys it knows and would not notice one that it does not: a file of a newer Keras, or an option
 * nobody thought of, would then be planned and trained as something else. So every class has its keys in one table, and
 * a configuration is held against it before its rule runs:
 *
 *     units            obeyed: the rule reads it
 *     seed:            harmless: any value; neither bytes nor results on one device depend on it (the seed of a layer:
 *                      memfit's random numbers are its own, docs/numerics.md)
 *     renorm=false     fixed: this value, or one of a|b, or null; anything else is refused by name
 *     reduction!sum|   likewise, but null is refused too
 *
 * A key that is not there is refused unless it says nothing (null, false, an empty list or object).
 * tests/fixtures/config_keys.json holds the keys of real Keras (tools/make_key_fixtures.py); the test of this table
 * reads it.
 */
#include "model/lower/lower_keys.h"

#include "model/lower/lower_compile.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
    const char *classes; /* space separated */
    const char *keys;
} row;

#define ACTIVATED "activation use_bias "
#define KERNEL    "kernel_initializer kernel_regularizer kernel_constraint "
#define BIAS      "bias_initializer bias_regularizer bias_constraint "
#define DEPTHWISE "depthwise_initializer depthwise_regularizer depthwise_constraint depth_multiplier "
#define POINTWISE "pointwise_initializer pointwise_regularizer pointwise_constraint "
#define WINDOW    "kernel_size strides padding data_format dilation_rate "
#define NORM                                                                                                           \
    "axis epsilon center scale beta_initializer beta_regularizer beta_constraint gamma_initializer gamma_regularizer " \
    "gamma_constraint "
#define CELL                                                                                                           \
    "units activation use_bias " KERNEL BIAS "recurrent_initializer recurrent_regularizer recurrent_constraint "       \
    "dropout recurrent_dropout seed: implementation: "
#define RECURRENT "return_sequences return_state go_backwards stateful unroll: time_major=false zero_output_for_mask "
#define IMAGES    "data_format seed: "
#define DRAWN                                                                                                          \
    IMAGES "factor value_range height_factor width_factor x_factor y_factor interpolation fill_mode fill_value "
#define PLANNED                                                                                                        \
    IMAGES "factor: value_range: interpolation: fill_mode: fill_value: scale: brightness_factor: contrast_factor: "    \
           "hue_factor: saturation_factor: kernel_size: sigma: bins: addition_factor: threshold_factor: num_chains: "  \
           "chain_depth: all_ops: alpha: num_ops: "

static const row layers[] = {
    /* of every layer; batch_input_shape and the like are read where a model has no InputLayer */
    {"*", "name: trainable dtype autocast: batch_shape batch_input_shape input_shape: activity_regularizer"},
    {"InputLayer", "input_dtype: input_tensor= sparse=false ragged=false optional=false type_spec="},
    {"Dense", "units " ACTIVATED KERNEL BIAS "lora_rank= lora_alpha: quantization_mode= quantization_config="},
    {"EinsumDense", "equation output_shape activation bias_axes " KERNEL BIAS
                    "lora_rank= lora_alpha: quantization_mode= quantization_config= gptq_unpacked_column_size="},
    {"Embedding", "input_dim output_dim embeddings_initializer embeddings_regularizer embeddings_constraint mask_zero "
                  "input_length: lora_rank= lora_alpha: quantization_mode= quantization_config= sparse: weights="},
    {"Masking", "mask_value"},
    {"ActivityRegularization", "l1 l2"},
    {"Identity Add Subtract Multiply Average Maximum Minimum", ""},
    {"Activation", "activation"},
    {"ReLU", "max_value negative_slope threshold"},
    {"LeakyReLU", "negative_slope alpha"},
    {"ELU", "alpha"},
    {"PReLU", "alpha_initializer alpha_regularizer alpha_constraint shared_axes"},
    {"ThresholdedReLU", "theta"},
    {"Softmax UnitNormalization Concatenate", "axis"},
    {"Conv1D Conv2D Conv3D", "rank: filters groups " WINDOW ACTIVATED KERNEL BIAS "lora_rank= lora_alpha:"},
    {"DepthwiseConv1D DepthwiseConv2D", "rank: groups: filters: " WINDOW ACTIVATED DEPTHWISE BIAS
                                        "kernel_initializer: kernel_regularizer= kernel_constraint="},
    {"SeparableConv1D SeparableConv2D", "rank: filters groups: " WINDOW ACTIVATED DEPTHWISE POINTWISE BIAS
                                        "kernel_initializer: kernel_regularizer= kernel_constraint="},
    {"Conv1DTranspose Conv2DTranspose Conv3DTranspose",
     "rank: filters groups=1 output_padding " WINDOW ACTIVATED KERNEL BIAS},
    {"MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D",
     "pool_size strides padding data_format"},
    {"GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D "
     "GlobalMaxPooling3D",
     "data_format keepdims"},
    /* synchronized: one device is all there is. The other two matter only with renorm. */
    {"BatchNormalization",
     NORM "momentum moving_mean_initializer moving_variance_initializer synchronized: renorm=false renorm_clipping: "
          "renorm_momentum: fused: virtual_batch_size= adjustment="},
    {"LayerNormalization", NORM "rms_scaling"},
    {"RMSNormalization", "axis epsilon"},
    {"GroupNormalization", NORM "groups"},
    {"Dropout AlphaDropout", "rate noise_shape seed:"},
    {"SpatialDropout1D SpatialDropout2D SpatialDropout3D", "rate data_format seed: noise_shape="},
    {"GaussianDropout", "rate seed:"},
    {"GaussianNoise", "stddev seed:"},
    {"Flatten", "data_format"},
    {"Reshape", "target_shape"},
    {"Permute", "dims"},
    {"RepeatVector", "n"},
    {"ZeroPadding1D ZeroPadding2D ZeroPadding3D", "padding data_format"},
    {"Cropping1D Cropping2D Cropping3D", "cropping data_format"},
    {"UpSampling1D UpSampling2D UpSampling3D", "size data_format interpolation"},
    {"Dot", "axes normalize"},
    {"LSTM LSTMCell", CELL RECURRENT "recurrent_activation unit_forget_bias"},
    {"GRU GRUCell", CELL RECURRENT "recurrent_activation reset_after"},
    {"SimpleRNN SimpleRNNCell", CELL RECURRENT},
    {"RNN", RECURRENT "cell"},
    {"Bidirectional", "layer backward_layer merge_mode weights="},
    {"TimeDistributed", "layer"},
    {"MultiHeadAttention",
     "num_heads key_dim value_dim dropout use_bias output_shape attention_axes=1 " KERNEL BIAS
     "seed: flash_attention: sliding_window= use_gate=false query_shape: key_shape: value_shape:"},
    {"GroupQueryAttention",
     "head_dim num_query_heads num_key_value_heads dropout use_bias " KERNEL BIAS
     "seed: flash_attention: sliding_window= use_gate=false query_shape: key_shape: value_shape:"},
    {"Attention", "use_scale score_mode dropout causal seed:"},
    {"AdditiveAttention", "use_scale dropout causal seed:"},
    {"Rescaling", "scale offset"},
    {"Normalization", "axis mean variance invert"},
    {"CustomScaleLayer", "scale"},
    {"LayerScale", "init_values projection_dim"},
    {"StochasticDepth", "drop_path_rate"},
    {"Resizing", "height width interpolation crop_to_aspect_ratio pad_to_aspect_ratio fill_mode=constant fill_value "
                 "data_format antialias=false"},
    {"CenterCrop RandomCrop", "height width " IMAGES},
    {"RandomFlip", "mode " IMAGES},
    {"RandomRotation RandomZoom RandomTranslation RandomShear RandomContrast RandomBrightness RandomGrayscale "
     "RandomInvert",
     DRAWN},
    /* planned, not run: only their shape counts */
    {"RandomHue RandomSaturation RandomColorJitter RandomColorDegeneration RandomPosterization RandomSharpness "
     "RandomGaussianBlur RandomErasing RandomPerspective RandomElasticTransform AutoContrast Equalization Solarization "
     "AugMix RandAugment",
     PLANNED},
};

/* Names as mf_plain_name writes them. */
static const row losses[] = {
    {"*", "name: dtype: fn: reduction!sum_over_batch_size|mean|sum|mean_with_sample_weight|auto"},
    {"mse meansquarederror mae meanabsoluteerror mape meanabsolutepercentageerror msle meansquaredlogarithmicerror "
     "logcosh poisson kldivergence kld kl kullbackleiblerdivergence hinge squaredhinge categoricalhinge",
     ""},
    {"huber huberloss", "delta"},
    {"cosinesimilarity", "axis=-1"},
    {"binarycrossentropy bce categoricalcrossentropy cce", "from_logits label_smoothing axis=-1"},
    {"sparsecategoricalcrossentropy scce", "from_logits ignore_class axis=-1"},
    {"binaryfocalcrossentropy", "from_logits label_smoothing apply_class_balancing alpha gamma axis=-1"},
    {"categoricalfocalcrossentropy", "from_logits label_smoothing alpha gamma axis=-1"},
};

/* A loss scale factor multiplies the loss and is divided out of the gradients again. */
static const row optimizers[] = {
    {"*", "name: learning_rate weight_decay clipnorm global_clipnorm clipvalue use_ema ema_momentum "
          "ema_overwrite_frequency loss_scale_factor: gradient_accumulation_steps jit_compile: is_legacy_optimizer: "
          "decay=0"},
    {"sgd", "momentum nesterov"},
    {"rmsprop", "rho momentum epsilon centered"},
    {"adam", "beta_1 beta_2 epsilon amsgrad"},
    {"adamw", "beta_1 beta_2 epsilon amsgrad"},
    {"nadam adamax lamb", "beta_1 beta_2 epsilon"},
    {"adagrad", "initial_accumulator_value epsilon"},
    {"adadelta", "rho epsilon"},
    {"adafactor", "beta_2_decay epsilon_1 epsilon_2 clip_threshold relative_step"},
    {"lion", "beta_1 beta_2"},
    {"ftrl", "learning_rate_power initial_accumulator_value l1_regularization_strength l2_regularization_strength "
             "l2_shrinkage_regularization_strength beta"},
};

static const row metrics[] = {
    {"*", "name: dtype: fn:"},
    {"accuracy acc categoricalaccuracy sparsecategoricalaccuracy mae meanabsoluteerror mse meansquarederror rmse "
     "rootmeansquarederror",
     ""},
    {"binaryaccuracy", "threshold"},
    {"topkcategoricalaccuracy sparsetopkcategoricalaccuracy", "k from_sorted_ids=false"},
    {"precision recall", "thresholds class_id= top_k="},
    {"auc", "num_thresholds=200 curve=ROC|roc summation_method=interpolation thresholds= multi_label=false num_labels= "
            "label_weights= from_logits=false"},
};

static const struct {
    const row *rows;
    size_t count;
} tables[] = {{layers, sizeof layers / sizeof *layers},
              {losses, sizeof losses / sizeof *losses},
              {optimizers, sizeof optimizers / sizeof *optimizers},
              {metrics, sizeof metrics / sizeof *metrics}};

/* The word of a list that is `name`, up to its mark or the next blank; NULL when there is none. */
static const char *find_word(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p && *p;) { /* the hottest loop of a lowering: most words differ in their first letter */
        if (*p == *name && strncmp(p, name, n) == 0 && strchr(" :=!", p[n])) /* the end of the list is among them */
            return p;
        p = strchr(p, ' ');
        p = p ? p + 1 : NULL;
    }
    return NULL;
}

static const char *find_key(mf_key_part part, const char *plain, const char *key)
{
    for (size_t i = 0; i < tables[part].count; i++) {
        const row *r = &tables[part].rows[i];
        const char *word = r->classes[0] == '*' || find_word(r->classes, plain) ? find_word(r->keys, key) : NULL;
        if (word)
            return word;
    }
    return NULL;
}

static const char *plain_class(mf_key_part part, const char *class_name, char *text, size_t bytes)
{
    if (part == MF_KEYS_LAYER)
        snprintf(text, bytes, "%s", class_name);
    else
        mf_plain_name(class_name, text, bytes);
    return text;
}

bool mf_keys_known(mf_key_part part, const char *class_name)
{
    char plain[64];
    plain_class(part, class_name, plain, sizeof plain);
    for (size_t i = 1; i < tables[part].count; i++)
        if (find_word(tables[part].rows[i].classes, plain))
            return true;
    return false;
}

mf_key_rule mf_key_rule_of(mf_key_part part, const char *class_name, const char *key)
{
    char plain[64];
    const char *word = find_key(part, plain_class(part, class_name, plain, sizeof plain), key);
    if (!word)
        return MF_KEY_UNKNOWN;
    switch (word[strcspn(word, " :=!")]) {
    case ':':
        return MF_KEY_HARMLESS;
    case '=':
    case '!':
        return MF_KEY_FIXED;
    default:
        return MF_KEY_OBEYED;
    }
}

static bool says_nothing(const mf_json *value)
{
    return value->type == MF_JSON_NULL || (value->type == MF_JSON_BOOL && !value->boolean) ||
           ((value->type == MF_JSON_ARRAY || value->type == MF_JSON_OBJECT) && !value->first);
}

/* Is the value one of "a|b|c", up to a blank? A list of one counts as what it holds. */
static bool is_among(const mf_json *value, const char *list)
{
    char text[64];
    if (value->type == MF_JSON_ARRAY && value->count == 1)
        value = value->first;
    if (value->type == MF_JSON_STRING)
        snprintf(text, sizeof text, "%s", value->string);
    else if (value->type == MF_JSON_BOOL)
        snprintf(text, sizeof text, "%s", value->boolean ? "true" : "false");
    else if (value->type == MF_JSON_NUMBER)
        snprintf(text, sizeof text, "%g", value->number);
    else
        return false;
    for (const char *p = list;;) {
        size_t length = strcspn(p, "| ");
        if (length && strlen(text) == length && strncmp(p, text, length) == 0)
            return true;
        if (p[length] != '|')
            return false;
        p += length + 1;
    }
}

static bool is_allowed(const mf_json *value, const char *word)
{
    if (!word)
        return says_nothing(value);
    const char *mark = word + strcspn(word, " :=!");
    if (*mark == '=')
        return value->type == MF_JSON_NULL || is_among(value, mark + 1);
    return *mark != '!' || is_among(value, mark + 1);
}

const mf_json *mf_dropped_key(mf_key_part part, const char *class_name, const mf_json *config)
{
    char plain[64];
    if (!config || config->type != MF_JSON_OBJECT || !mf_keys_known(part, class_name))
        return NULL;
    plain_class(part, class_name, plain, sizeof plain);
    for (const mf_json *entry = config->first; entry; entry = entry->next)
        if (!is_allowed(entry, find_key(part, plain, entry->key)))
            return entry;
    return NULL;
}

const char *mf_key_text(const mf_json *entry, char *text, size_t bytes)
{
    switch (entry->type) {
    case MF_JSON_STRING:
        snprintf(text, bytes, "%.60s = \"%.60s\"", entry->key, entry->string);
        break;
    case MF_JSON_BOOL:
        snprintf(text, bytes, "%.60s = %s", entry->key, entry->boolean ? "true" : "false");
        break;
    case MF_JSON_NUMBER:
        snprintf(text, bytes, "%.60s = %g", entry->key, entry->number);
        break;
    case MF_JSON_NULL:
        snprintf(text, bytes, "%.60s = null", entry->key);
        break;
    default: {
        const char *name = mf_json_get_string(entry, "class_name", NULL);
        snprintf(text, bytes, "%.60s = %.60s", entry->key,
                 name                           ? name
                 : entry->type == MF_JSON_ARRAY ? "[...]"
                                                : "{...}");
    }
    }
    return text;
}
