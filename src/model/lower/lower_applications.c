/* lower_applications.c: layers that keras.applications brings along, and the input scaling its models begin with. */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

/* One number, or a list that goes along the last axis. */
static uint32_t by_number_or_list(mf_layer_call *c, const mf_json *value, double fallback, mf_binary function,
                                  uint32_t x)
{
    if (value && value->type == MF_JSON_OBJECT)
        value = mf_json_get(mf_json_get(value, "config"), "value");
    if (!value || value->type == MF_JSON_NUMBER || value->type == MF_JSON_NULL) {
        double number = mf_json_number(value, fallback);
        return function == MF_MUL ? mf_g_unary(c->b, MF_UNARY_AFFINE, number, 0, x)
                                  : mf_g_unary(c->b, MF_UNARY_AFFINE, 1, number, x);
    }
    return mf_g_binary(c->b, function, x, mf_constant(c, value));
}

void mf_lower_rescaling(mf_layer_call *c)
{
    const mf_json *scale = mf_json_get(c->config, "scale"), *offset = mf_json_get(c->config, "offset");
    if (scale && scale->type == MF_JSON_NUMBER && (!offset || offset->type == MF_JSON_NUMBER)) {
        one(c, mf_g_unary(c->b, MF_UNARY_AFFINE, scale->number, mf_json_number(offset, 0), c->in[0]));
        return;
    }
    one(c, by_number_or_list(c, offset, 0, MF_ADD, by_number_or_list(c, scale, 1, MF_MUL, c->in[0])));
}

/* (x - mean) / max(sqrt(variance), epsilon), with statistics stored or given in the configuration. */
/* Given numbers, one for each place of the axes that are kept apart; a single one serves all. */
static uint32_t along_axes(mf_layer_call *c, uint32_t x, const mf_shape *kept, const mf_shape *broadcast)
{
    mf_shape s = mf_g_shape(c->b, x);
    return mf_shape_equal(&s, kept) ? mf_g_view(c->b, x, *broadcast) : x;
}

void mf_lower_normalization(mf_layer_call *c)
{
    static const mf_weight_spec mean_spec = {.name = "mean", .frozen = true};
    static const mf_weight_spec variance_spec = {.name = "variance", .initial = 1, .frozen = true};
    static const mf_weight_spec count_spec = {.name = "count", .frozen = true, .keep = true, .integer = true};
    mf_shape x = mf_g_shape(c->b, c->in[0]), kept = {0}, broadcast = x;
    const mf_json *axis = mf_json_get(c->config, "axis");
    uint32_t keep = 0;
    if (axis && axis->type == MF_JSON_ARRAY) {
        for (size_t i = 0; i < axis->count; i++) {
            uint32_t a = mf_axis(mf_json_integer(mf_json_at(axis, i), -1), x.rank);
            keep |= a == MF_NONE ? 0 : 1u << a;
        }
    } else if (!axis || axis->type == MF_JSON_NUMBER) {
        uint32_t a = mf_axis(mf_json_integer(axis, -1), x.rank);
        keep |= a == MF_NONE ? 0 : 1u << a;
    }
    for (uint32_t i = 0; i < x.rank; i++)
        if (keep >> i & 1)
            kept.dim[kept.rank++] = x.dim[i];
        else
            broadcast.dim[i] = 1;
    const mf_json *given = mf_json_get(c->config, "mean");
    uint32_t mean, variance;
    if (!mf_json_is_null(given)) {
        mean = along_axes(c, mf_constant(c, given), &kept, &broadcast);
        variance = along_axes(c, mf_constant(c, mf_json_get(c->config, "variance")), &kept, &broadcast);
    } else {
        mean = mf_g_view(c->b, mf_weight(c, &mean_spec, kept), broadcast);
        variance = mf_g_view(c->b, mf_weight(c, &variance_spec, kept), broadcast);
        mf_weight(c, &count_spec, (mf_shape){0});
    }
    uint32_t deviation = mf_g_unary(c->b, MF_UNARY_CLIP, 1e-7, 3e38, mf_g_unary(c->b, MF_UNARY_SQRT, 0, 0, variance));
    if (mf_json_get_bool(c->config, "invert", false))
        one(c, mf_g_binary(c->b, MF_ADD, mf_g_binary(c->b, MF_MUL, c->in[0], deviation), mean));
    else
        one(c, mf_g_binary(c->b, MF_DIV, mf_g_binary(c->b, MF_SUB, c->in[0], mean), deviation));
}

/* InceptionResNetV2: a + scale * b. */
void mf_lower_custom_scale(mf_layer_call *c)
{
    if (c->in_count != 2) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' needs two inputs", c->layer->name);
        return;
    }
    uint32_t scaled = mf_g_unary(c->b, MF_UNARY_AFFINE, mf_json_get_number(c->config, "scale", 1), 0, c->in[1]);
    one(c, mf_g_binary(c->b, MF_ADD, c->in[0], scaled));
}

/* ConvNeXt: x * gamma. */
void mf_lower_layer_scale(mf_layer_call *c)
{
    mf_shape x = mf_g_shape(c->b, c->in[0]);
    int64_t width = mf_json_get_integer(c->config, "projection_dim", x.rank ? x.dim[x.rank - 1] : 0);
    mf_weight_spec spec = {.name = "gamma", .initial = mf_json_get_number(c->config, "init_values", 1e-6)};
    one(c, mf_g_binary(c->b, MF_MUL, c->in[0], mf_weight(c, &spec, mf_shape1(width))));
}

/* ConvNeXt: whole samples are dropped, which is dropout with one draw a sample. */
void mf_lower_stochastic_depth(mf_layer_call *c)
{
    uint32_t key = mf_random_key(c), rank = mf_g_shape(c->b, c->in[0]).rank;
    double rate = mf_json_get_number(c->config, "drop_path_rate", 0);
    uint32_t shared = rank ? ((1u << rank) - 1) & ~1u : 0;
    one(c, c->training ? mf_g_dropout(c->b, c->in[0], rate, key, shared) : c->in[0]);
}
