/*
 * lower_norm.c: normalization layers. Keras computes them in float32 whatever the compute type: inputs are cast up and
 * results back. BATCH_NORM and LAYER_NORM do that themselves, number by number, so that 16-bit data stays as it is:
 * what backward keeps of it is half as large, and the bits are the same.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

static const mf_weight_spec gamma_spec = {.name = "gamma",
                                          .initializer = "gamma_initializer",
                                          .regularizer = "gamma_regularizer",
                                          .initial = 1,
                                          .keep = true};
static const mf_weight_spec beta_spec = {
    .name = "beta", .initializer = "beta_initializer", .regularizer = "beta_regularizer", .keep = true};
static const mf_weight_spec mean_spec = {
    .name = "moving_mean", .initializer = "moving_mean_initializer", .frozen = true, .keep = true};
static const mf_weight_spec variance_spec = {.name = "moving_variance",
                                             .initializer = "moving_variance_initializer",
                                             .initial = 1,
                                             .frozen = true,
                                             .keep = true};

static mf_dtype inner_type(const mf_layer_call *c)
{
    return c->compute == MF_F64 ? MF_F64 : MF_F32;
}

static uint32_t up(mf_layer_call *c, uint32_t x)
{
    return x == MF_NONE ? MF_NONE : mf_g_cast(c->b, x, inner_type(c));
}

/* Data of a kind that computes in float32 whatever it is given. */
static uint32_t up_data(mf_layer_call *c, uint32_t x)
{
    mf_dtype type = mf_g_dtype(c->b, x);
    return type == c->compute && (type == MF_F16 || type == MF_BF16) ? x : up(c, x);
}

/* Moves an axis to the end, or back from there. */
static uint32_t axis_last(mf_layer_call *c, uint32_t x, uint32_t axis, bool back)
{
    uint32_t rank = mf_g_shape(c->b, x).rank, perm[MF_MOST_DIMS] = {0}, n = 0;
    if (axis + 1 == rank)
        return x;
    if (back) {
        for (uint32_t i = 0; i < rank; i++)
            perm[i] = i < axis ? i : i == axis ? rank - 1 : i - 1;
    } else {
        for (uint32_t i = 0; i < rank; i++)
            if (i != axis)
                perm[n++] = i;
        perm[n] = axis;
    }
    return mf_g_transpose(c->b, x, perm);
}

static int64_t single_axis(const mf_json *config, int64_t fallback)
{
    const mf_json *axis = mf_json_get(config, "axis");
    if (axis && axis->type == MF_JSON_ARRAY)
        axis = mf_json_at(axis, 0);
    return mf_json_integer(axis, fallback);
}

void mf_lower_batch_norm(mf_layer_call *c)
{
    mf_shape shape = mf_g_shape(c->b, c->in[0]);
    uint32_t axis = mf_axis(single_axis(c->config, -1), shape.rank);
    double epsilon = mf_json_get_number(c->config, "epsilon", 1e-3);
    double momentum = mf_json_get_number(c->config, "momentum", 0.99);
    if (axis == MF_NONE) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axis is out of range", c->layer->name);
        return;
    }
    mf_shape vector = mf_shape1(shape.dim[axis]);
    bool scale = mf_json_get_bool(c->config, "scale", true), center = mf_json_get_bool(c->config, "center", true);
    uint32_t gamma = scale ? up(c, mf_weight(c, &gamma_spec, vector)) : MF_NONE;
    uint32_t beta = center ? up(c, mf_weight(c, &beta_spec, vector)) : MF_NONE;
    uint32_t mean = mf_weight(c, &mean_spec, vector), variance = mf_weight(c, &variance_spec, vector), y;
    uint32_t x = axis_last(c, up_data(c, c->in[0]), axis, false);
    if (c->training && c->trainable) {
        uint32_t batch_mean, batch_variance;
        y = mf_g_batch_norm(c->b, x, gamma, beta, epsilon, &batch_mean, &batch_variance);
        mf_g_moving_average(c->b, batch_mean, mean, momentum);
        mf_g_moving_average(c->b, batch_variance, variance, momentum);
        c->b->graph->uses_batch_norm = true;
    } else
        y = mf_g_batch_norm_infer(c->b, x, gamma, beta, up(c, mean), up(c, variance), epsilon);
    one(c, mf_g_cast(c->b, axis_last(c, y, axis, true), c->compute));
}

/* Trailing axes that are normalized; 0 when the axes are not the last ones. */
static uint32_t trailing_axes(const mf_json *config, uint32_t rank)
{
    const mf_json *axis = mf_json_get(config, "axis");
    uint32_t mask = 0, count = 0;
    if (!axis || axis->type != MF_JSON_ARRAY) {
        uint32_t a = mf_axis(mf_json_integer(axis, -1), rank);
        mask = a == MF_NONE ? 0 : 1u << a;
    } else
        for (size_t i = 0; i < axis->count; i++) {
            uint32_t a = mf_axis(mf_json_integer(mf_json_at(axis, i), -1), rank);
            mask |= a == MF_NONE ? 0 : 1u << a;
        }
    for (uint32_t i = rank; i-- > 0 && (mask >> i & 1);)
        count++;
    return mask == (((1u << count) - 1) << (rank - count)) ? count : 0;
}

void mf_lower_layer_norm(mf_layer_call *c)
{
    mf_shape shape = mf_g_shape(c->b, c->in[0]);
    double epsilon = mf_json_get_number(c->config, "epsilon", 1e-3);
    bool rms = strcmp(c->layer->class_name, "RMSNormalization") == 0;
    if (rms)
        epsilon = mf_json_get_number(c->config, "epsilon", 1e-6);
    bool rms_scaling = mf_json_get_bool(c->config, "rms_scaling", false);
    uint32_t axes = trailing_axes(c->config, shape.rank), axis = MF_NONE;
    if (!axes && shape.rank) { /* one axis that is not the last: transposed */
        const mf_json *value = mf_json_get(c->config, "axis");
        if (value && value->type == MF_JSON_ARRAY && value->count != 1) {
            mf_lower_unsupported(c, "axes that are not the last ones");
            return;
        }
        axis = mf_axis(single_axis(c->config, -1), shape.rank);
        axes = 1;
    }
    if (!axes || (axis == MF_NONE && axes > shape.rank)) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axis is out of range", c->layer->name);
        return;
    }
    mf_shape vector = {.rank = axes};
    for (uint32_t i = 0; i < axes; i++)
        vector.dim[i] = axis != MF_NONE ? shape.dim[axis] : shape.dim[shape.rank - axes + i];
    bool scale = rms || rms_scaling || mf_json_get_bool(c->config, "scale", true);
    bool center = !rms && !rms_scaling && mf_json_get_bool(c->config, "center", true);
    mf_weight_spec named = gamma_spec;
    named.name = rms ? "scale" : "gamma";
    uint32_t gamma = scale ? up(c, mf_weight(c, &named, vector)) : MF_NONE;
    uint32_t beta = center ? up(c, mf_weight(c, &beta_spec, vector)) : MF_NONE;
    uint32_t x = up_data(c, c->in[0]);
    if (axis != MF_NONE)
        x = axis_last(c, x, axis, false);
    uint32_t y = mf_g_layer_norm(c->b, x, gamma, beta, epsilon, axes, 0, rms || rms_scaling);
    if (axis != MF_NONE)
        y = axis_last(c, y, axis, true);
    one(c, mf_g_cast(c->b, y, c->compute));
}

void mf_lower_group_norm(mf_layer_call *c)
{
    mf_shape shape = mf_g_shape(c->b, c->in[0]);
    uint32_t axis = mf_axis(single_axis(c->config, -1), shape.rank);
    int64_t groups = mf_json_get_integer(c->config, "groups", 32);
    if (axis == MF_NONE || axis == 0) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axis is out of range", c->layer->name);
        return;
    }
    if (groups == -1)
        groups = shape.dim[axis];
    if (groups < 1 || groups > shape.dim[axis] || shape.dim[axis] % groups) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %lld groups of %lld channels", c->layer->name,
                      (long long)groups, (long long)shape.dim[axis]);
        return;
    }
    mf_shape vector = mf_shape1(shape.dim[axis]);
    uint32_t gamma = mf_json_get_bool(c->config, "scale", true) ? up(c, mf_weight(c, &gamma_spec, vector)) : MF_NONE;
    uint32_t beta = mf_json_get_bool(c->config, "center", true) ? up(c, mf_weight(c, &beta_spec, vector)) : MF_NONE;
    uint32_t x = axis_last(c, up_data(c, c->in[0]), axis, false);
    uint32_t y = mf_g_layer_norm(c->b, x, gamma, beta, mf_json_get_number(c->config, "epsilon", 1e-3), 1,
                                 (uint32_t)groups, false);
    one(c, mf_g_cast(c->b, axis_last(c, y, axis, true), c->compute));
}

/* x / sqrt(max(sum x^2, 1e-12)) */
void mf_lower_unit_norm(mf_layer_call *c)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, axes = 0;
    const mf_json *axis = mf_json_get(c->config, "axis");
    for (size_t i = 0; axis && axis->type == MF_JSON_ARRAY && i < axis->count; i++) {
        uint32_t a = mf_axis(mf_json_integer(mf_json_at(axis, i), -1), rank);
        axes |= a == MF_NONE ? 0 : 1u << a;
    }
    if (!axes) {
        uint32_t a = mf_axis(single_axis(c->config, -1), rank);
        axes = a == MF_NONE ? 0 : 1u << a;
    }
    uint32_t x = up(c, c->in[0]);
    uint32_t sum = mf_g_reduce(c->b, MF_REDUCE_SUM, mf_g_unary(c->b, MF_UNARY_SQUARE, 0, 0, x), axes, true);
    sum = mf_g_unary(c->b, MF_UNARY_CLIP, 1e-12, 3e38, sum);
    uint32_t y = mf_g_binary(c->b, MF_MUL, x, mf_g_unary(c->b, MF_UNARY_RSQRT, 0, 0, sum));
    one(c, mf_g_cast(c->b, y, c->compute));
}
