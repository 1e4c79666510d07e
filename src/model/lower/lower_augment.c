/*
 * lower_augment.c: image augmentation and resizing. The Random* layers act when training only and have no gradient:
 * they stand before the first trainable layer. Each becomes one AUGMENT operation; graph/augment.h lists what its
 * parameters mean.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"
#include "graph/augment.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

static const struct {
    const char *name;
    mf_augment function;
} classes[] = {{"RandomFlip", MF_AUGMENT_FLIP},
               {"RandomRotation", MF_AUGMENT_ROTATION},
               {"RandomZoom", MF_AUGMENT_ZOOM},
               {"RandomTranslation", MF_AUGMENT_TRANSLATION},
               {"RandomShear", MF_AUGMENT_SHEAR},
               {"RandomContrast", MF_AUGMENT_CONTRAST},
               {"RandomBrightness", MF_AUGMENT_BRIGHTNESS},
               {"RandomGrayscale", MF_AUGMENT_GRAYSCALE},
               {"RandomInvert", MF_AUGMENT_INVERT}};

/* A factor is [least, most], or one number f that means [centre - f, centre + f]. */
static void factor(const mf_json *config, const char *key, double centre, double *range)
{
    const mf_json *value = mf_json_get(config, key);
    if (value && value->type == MF_JSON_ARRAY) {
        range[0] = mf_json_number(mf_json_at(value, 0), 0);
        range[1] = mf_json_number(mf_json_at(value, 1), 0);
        return;
    }
    double f = mf_json_number(value, 0);
    range[0] = centre - f;
    range[1] = centre + f;
}

static void value_range(const mf_json *config, double *range)
{
    const mf_json *value = mf_json_get(config, "value_range");
    range[0] = mf_json_number(mf_json_at(value, 0), 0);
    range[1] = mf_json_number(mf_json_at(value, 1), 255);
}

/* a[5], a[6], a[7]: what lies outside, the constant, the interpolation. */
static void outside(const mf_json *config, double *a)
{
    static const char *const modes[] = {"reflect", "wrap", "constant", "nearest"};
    const char *mode = mf_json_get_string(config, "fill_mode", "reflect");
    for (unsigned i = 0; i < 4; i++)
        if (strcmp(mode, modes[i]) == 0)
            a[5] = i;
    a[6] = mf_json_get_number(config, "fill_value", 0);
    a[7] = strcmp(mf_json_get_string(config, "interpolation", "bilinear"), "nearest") == 0;
}

static void parameters(const mf_json *config, mf_augment function, double *a)
{
    const char *mode = mf_json_get_string(config, "mode", "horizontal_and_vertical");
    switch (function) {
    case MF_AUGMENT_FLIP:
        a[0] = (strstr(mode, "horizontal") ? 1 : 0) + (strstr(mode, "vertical") ? 2 : 0);
        break;
    case MF_AUGMENT_ROTATION:
        factor(config, "factor", 0, a);
        outside(config, a);
        break;
    case MF_AUGMENT_ZOOM:
    case MF_AUGMENT_TRANSLATION:
        factor(config, "height_factor", 0, a);
        factor(config, "width_factor", 0, a + 2);
        a[4] = !mf_json_is_null(mf_json_get(config, "width_factor"));
        outside(config, a);
        break;
    case MF_AUGMENT_SHEAR:
        factor(config, "x_factor", 0, a);
        factor(config, "y_factor", 0, a + 2);
        outside(config, a);
        break;
    case MF_AUGMENT_CONTRAST:
        factor(config, "factor", 0, a); /* one number f or [lower, upper]: both lie around 1 */
        a[0] =
            1 - (mf_json_get(config, "factor") && mf_json_get(config, "factor")->type == MF_JSON_ARRAY ? a[0] : a[1]);
        a[1] = 1 + a[1];
        value_range(config, a + 2);
        break;
    case MF_AUGMENT_BRIGHTNESS:
        factor(config, "factor", 0, a);
        value_range(config, a + 2);
        break;
    case MF_AUGMENT_GRAYSCALE:
    case MF_AUGMENT_INVERT: {
        const mf_json *value = mf_json_get(config, "factor");
        a[0] = mf_json_number(value && value->type == MF_JSON_ARRAY ? mf_json_at(value, 1) : value, 0.5);
        value_range(config, a + 2);
        break;
    }
    default:
        break;
    }
}

static uint32_t augment(mf_layer_call *c, mf_augment function, uint32_t x, mf_shape shape, uint32_t key)
{
    mf_attr attr = {.augment = {.function = function, .key = key}};
    mf_typed type = {.dtype = mf_g_dtype(c->b, x), .shape = shape};
    parameters(c->config, function, attr.augment.a);
    return mf_g_op(c->b, MF_OP_AUGMENT, &attr, 1, &x, 1, &type, NULL);
}

void mf_lower_augment(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c), x = mf_channels_last(c, c->in[0]);
    mf_shape shape = mf_g_shape(c->b, x);
    mf_augment function = MF_AUGMENT_OTHER;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].name, c->layer->class_name) == 0)
            function = classes[i].function;
    bool always = strncmp(c->layer->class_name, "Random", 6) != 0;
    if (shape.rank != 4) {
        mf_lower_unsupported(c, "needs images (batch, height, width, channels)");
        return;
    }
    one(c, c->training || always ? mf_channels_back(c, augment(c, function, x, shape, key)) : c->in[0]);
}

/* ---- sizes ---- */

static bool target_size(mf_layer_call *c, uint32_t x, int64_t *height, int64_t *width)
{
    *height = mf_json_get_integer(c->config, "height", 0);
    *width = mf_json_get_integer(c->config, "width", 0);
    if (mf_g_shape(c->b, x).rank == 4 && *height > 0 && *width > 0 && *height < INT32_MAX && *width < INT32_MAX)
        return true;
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' needs images, a height and a width", c->layer->name);
    return false;
}

static uint32_t crop(mf_layer_call *c, uint32_t x, int64_t height, int64_t width)
{
    mf_shape s = mf_g_shape(c->b, x);
    int64_t begin[4] = {0, (s.dim[1] - height) / 2, (s.dim[2] - width) / 2, 0};
    int64_t size[4] = {s.dim[0], height, width, s.dim[3]};
    return mf_g_slice(c->b, x, begin, size, NULL);
}

/* The largest part of the target's proportions, from the middle. */
static uint32_t crop_to_ratio(mf_layer_call *c, uint32_t x, int64_t height, int64_t width)
{
    mf_shape s = mf_g_shape(c->b, x);
    int64_t h = s.dim[2] * height / width, w = s.dim[1] * width / height;
    h = h < s.dim[1] ? h : s.dim[1];
    w = w < s.dim[2] ? w : s.dim[2];
    return crop(c, x, h > 0 ? h : 1, w > 0 ? w : 1);
}

static uint32_t pad_to_ratio(mf_layer_call *c, uint32_t x, int64_t height, int64_t width)
{
    mf_shape s = mf_g_shape(c->b, x);
    int64_t h = s.dim[2] * height / width, w = s.dim[1] * width / height;
    int64_t more_h = h > s.dim[1] ? h - s.dim[1] : 0, more_w = w > s.dim[2] ? w - s.dim[2] : 0;
    int64_t both[4] = {0, more_h / 2, more_w / 2, 0}; /* an odd one is left out, as in Keras */
    return mf_g_pad(c->b, x, both, both, NULL, mf_json_get_number(c->config, "fill_value", 0), 0);
}

void mf_lower_resizing(mf_layer_call *c)
{
    uint32_t x = mf_channels_last(c, c->in[0]);
    uint32_t method = mf_interpolation(mf_json_get_string(c->config, "interpolation", "bilinear"));
    int64_t height, width;
    if (!mf_build_ok(c->b) || !target_size(c, x, &height, &width))
        return;
    if (method == MF_NONE) {
        mf_lower_unsupported(c, "this interpolation is not known");
        return;
    }
    if (mf_json_get_bool(c->config, "crop_to_aspect_ratio", false))
        x = crop_to_ratio(c, x, height, width);
    if (mf_json_get_bool(c->config, "pad_to_aspect_ratio", false))
        x = pad_to_ratio(c, x, height, width);
    one(c, mf_channels_back(c, mf_g_resize(c->b, x, height, width, method, false, true)));
}

/* Images smaller than the target are resized instead. */
void mf_lower_center_crop(mf_layer_call *c)
{
    uint32_t x = mf_channels_last(c, c->in[0]);
    mf_shape s = mf_g_shape(c->b, x);
    int64_t height, width;
    if (!mf_build_ok(c->b) || !target_size(c, x, &height, &width))
        return;
    if (s.dim[1] >= height && s.dim[2] >= width)
        x = crop(c, x, height, width);
    else
        x = mf_g_resize(c->b, crop_to_ratio(c, x, height, width), height, width, 1, false, true);
    one(c, mf_channels_back(c, x));
}

void mf_lower_random_crop(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c), x = mf_channels_last(c, c->in[0]);
    mf_shape s = mf_g_shape(c->b, x);
    int64_t height, width;
    if (!mf_build_ok(c->b) || !target_size(c, x, &height, &width))
        return;
    if (c->training && s.dim[1] >= height && s.dim[2] >= width) {
        mf_shape y = mf_shape4(s.dim[0], height, width, s.dim[3]);
        one(c, mf_channels_back(c, augment(c, MF_AUGMENT_CROP, x, y, key)));
        return;
    }
    one(c, mf_channels_back(c, mf_g_resize(c->b, crop_to_ratio(c, x, height, width), height, width, 1, false, true)));
}
