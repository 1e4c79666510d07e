/*
 * lower_values.c: what the values of configuration keys must be. Rules read a value and fall back to Keras's default
 * when the key is not there; a value of the wrong type or size would be taken for the default in silence, so every
 * layer's configuration is looked at first. Keras itself refuses such a layer, so the file is damaged.
 */
#include "model/lower/lower_keys.h"

#include <stdio.h>
#include <string.h>

typedef enum { TRUTH, NUMBER, RATE, SIZE, SIZES, NAME } value_type;

typedef struct value_row {
    const char *key;
    value_type type;
    const char *classes; /* words their names begin with, or NULL: all */
    const char *names;   /* of NAME: what is allowed, in blanks */
} value_row;

static const value_row rows[] = {
    {"use_bias", TRUTH, NULL, NULL},
    {"return_sequences", TRUTH, NULL, NULL},
    {"return_state", TRUTH, NULL, NULL},
    {"go_backwards", TRUTH, NULL, NULL},
    {"stateful", TRUTH, NULL, NULL},
    {"zero_output_for_mask", TRUTH, NULL, NULL},
    {"reset_after", TRUTH, NULL, NULL},
    {"unit_forget_bias", TRUTH, NULL, NULL},
    {"mask_zero", TRUTH, NULL, NULL},
    {"center", TRUTH, NULL, NULL},
    {"scale", TRUTH, " BatchNormalization LayerNormalization GroupNormalization ", NULL},
    {"rms_scaling", TRUTH, NULL, NULL},
    {"keepdims", TRUTH, NULL, NULL},
    {"normalize", TRUTH, NULL, NULL},
    {"use_scale", TRUTH, NULL, NULL},
    {"invert", TRUTH, NULL, NULL},
    {"crop_to_aspect_ratio", TRUTH, NULL, NULL},
    {"pad_to_aspect_ratio", TRUTH, NULL, NULL},
    {"rate", RATE, NULL, NULL},
    {"dropout", RATE, NULL, NULL},
    {"recurrent_dropout", RATE, NULL, NULL},
    {"drop_path_rate", RATE, NULL, NULL},
    {"stddev", NUMBER, NULL, NULL},
    {"momentum", NUMBER, NULL, NULL},
    {"epsilon", NUMBER, NULL, NULL},
    {"threshold", NUMBER, NULL, NULL},
    {"theta", NUMBER, NULL, NULL},
    {"negative_slope", NUMBER, NULL, NULL},
    {"max_value", NUMBER, NULL, NULL},
    {"mask_value", NUMBER, NULL, NULL},
    {"units", SIZE, NULL, NULL},
    {"filters", SIZE,
     " Conv1D Conv2D Conv3D SeparableConv1D SeparableConv2D Conv1DTranspose Conv2DTranspose "
     "Conv3DTranspose ",
     NULL},
    {"groups", SIZE, " Conv1D Conv2D Conv3D ", NULL},
    {"depth_multiplier", SIZE, NULL, NULL},
    {"input_dim", SIZE, " Embedding ", NULL},
    {"output_dim", SIZE, " Embedding ", NULL},
    {"n", SIZE, " RepeatVector ", NULL},
    {"num_heads", SIZE, NULL, NULL},
    {"num_query_heads", SIZE, NULL, NULL},
    {"num_key_value_heads", SIZE, NULL, NULL},
    {"head_dim", SIZE, NULL, NULL},
    {"key_dim", SIZE, NULL, NULL},
    {"value_dim", SIZE, NULL, NULL},
    {"height", SIZE, NULL, NULL},
    {"width", SIZE, NULL, NULL},
    {"kernel_size", SIZES, NULL, NULL},
    {"strides", SIZES, NULL, NULL},
    {"dilation_rate", SIZES, NULL, NULL},
    {"pool_size", SIZES, NULL, NULL},
    {"size", SIZES, NULL, NULL},
    {"data_format", NAME, NULL, " channels_last channels_first "},
    {"padding", NAME,
     " Conv1D Conv2D Conv3D DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D "
     "Conv1DTranspose Conv2DTranspose Conv3DTranspose MaxPooling1D MaxPooling2D MaxPooling3D "
     "AveragePooling1D AveragePooling2D AveragePooling3D ",
     " valid same causal "},
    {"merge_mode", NAME, NULL, " concat sum mul ave "},
    {"score_mode", NAME, NULL, " dot concat "},
};

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if (p[-1] == ' ' && p[n] == ' ')
            return true;
    return false;
}

static bool is_size(const mf_json *value)
{
    int64_t n = mf_json_integer(value, 0);
    return value->type == MF_JSON_NUMBER && n >= 1 && n <= INT32_MAX;
}

static bool is_right(const value_row *row, const mf_json *value)
{
    switch (row->type) {
    case TRUTH: /* some writers say 0 and 1 */
        return value->type == MF_JSON_BOOL ||
               (value->type == MF_JSON_NUMBER && (value->number == 0 || value->number == 1));
    case NUMBER:
        return value->type == MF_JSON_NUMBER;
    case RATE:
        return value->type == MF_JSON_NUMBER && value->number >= 0 && value->number <= 1;
    case SIZE:
        return is_size(value);
    case SIZES:
        for (const mf_json *v = value->type == MF_JSON_ARRAY ? value->first : NULL; v; v = v->next)
            if (!is_size(v))
                return false;
        return value->type == MF_JSON_ARRAY || is_size(value);
    case NAME:
        return value->type == MF_JSON_STRING && value->string[0] && has_word(row->names, value->string);
    }
    return false;
}

static void describe(const value_row *row, char *text, size_t bytes)
{
    static const char *const what[] = {"must be true or false", "must be a number", "must be a number from 0 to 1",
                                       "must be a whole number from 1 to 2147483647",
                                       "must be whole numbers from 1 to 2147483647"};
    if (row->type != NAME)
        snprintf(text, bytes, "%s", what[row->type]);
    else
        snprintf(text, bytes, "must be one of%.*s", (int)strlen(row->names) - 1, row->names);
}

const mf_json *mf_wrong_value(const char *class_name, const mf_json *config, char *what, size_t bytes)
{
    if (!config || config->type != MF_JSON_OBJECT)
        return NULL;
    for (const mf_json *entry = config->first; entry; entry = entry->next)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            if (entry->type == MF_JSON_NULL || strcmp(rows[i].key, entry->key) != 0 ||
                (rows[i].classes && !has_word(rows[i].classes, class_name)) || is_right(&rows[i], entry))
                continue;
            describe(&rows[i], what, bytes);
            return entry;
        }
    return NULL;
}
