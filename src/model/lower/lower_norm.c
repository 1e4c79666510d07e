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

/* A vector of one number for each index of `axis`, to be broadcast. */
static uint32_t along(mf_layer_call *c, uint32_t vector, uint32_t axis, uint32_t rank)
{
    mf_shape s = {.rank = rank};
    if (vector == MF_NONE)
        return MF_NONE;
    for (uint32_t i = 0; i < rank; i++)
        s.dim[i] = i == axis ? mf_g_shape(c->b, vector).dim[0] : 1;
    return mf_g_view(c->b, vector, s);
}

/* Steps under a mask do not count for mean and variance, which are divided by the number of the others (and 1e-7, as
 * in Keras); all steps are normalized. */
static uint32_t masked_batch_norm(mf_layer_call *c, uint32_t x, uint32_t gamma, uint32_t beta, uint32_t axis,
                                  double epsilon, uint32_t *mean, uint32_t *variance)
{
    mf_build *b = c->b;
    mf_shape shape = mf_g_shape(b, x), vector = mf_shape1(shape.dim[axis]);
    uint32_t axes = ((1u << shape.rank) - 1) & ~(1u << axis);
    uint32_t mask = mf_mask_expanded(c, mf_mask_truth(b, c->mask), shape.rank);
    uint32_t ones = mf_g_broadcast(b, mf_g_cast(b, mask, mf_g_dtype(b, x)), shape, 1);
    uint32_t count = mf_g_unary(b, MF_UNARY_AFFINE, 1, 1e-7, mf_g_reduce(b, MF_REDUCE_SUM, ones, axes, true));
    uint32_t sum = mf_g_reduce(b, MF_REDUCE_SUM, mf_g_keep(b, mask, x, 0, false), axes, true);
    uint32_t m = mf_g_binary(b, MF_DIV, sum, count), centred = mf_g_binary(b, MF_SUB, x, m);
    uint32_t square = mf_g_unary(b, MF_UNARY_SQUARE, 0, 0, mf_g_keep(b, mask, centred, 0, false));
    uint32_t v = mf_g_binary(b, MF_DIV, mf_g_reduce(b, MF_REDUCE_SUM, square, axes, true), count);
    uint32_t scale = mf_g_unary(b, MF_UNARY_RSQRT, 0, 0, mf_g_unary(b, MF_UNARY_AFFINE, 1, epsilon, v));
    uint32_t y = mf_g_binary(b, MF_MUL, centred, scale);
    if (gamma != MF_NONE)
        y = mf_g_binary(b, MF_MUL, y, along(c, gamma, axis, shape.rank));
    if (beta != MF_NONE)
        y = mf_g_binary(b, MF_ADD, y, along(c, beta, axis, shape.rank));
    *mean = mf_g_view(b, m, vector);
    *variance = mf_g_view(b, v, vector);
    return y;
}

/* A mask of another rank than all axes but the last is refused, as Keras refuses it. */
static bool mask_fits(mf_layer_call *c, uint32_t rank)
{
    if (c->mask == MF_NONE || mf_g_shape(c->b, c->mask).rank + 1 == rank)
        return true;
    mf_lower_unsupported(c, "its mask must have one dimension less than its input");
    return false;
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
    uint32_t x = up_data(c, c->in[0]), batch_mean, batch_variance;
    if (!mask_fits(c, shape.rank))
        return;
    if (c->training && c->trainable && c->mask != MF_NONE) {
        y = masked_batch_norm(c, up(c, x), gamma, beta, axis, epsilon, &batch_mean, &batch_variance);
        mf_g_moving_average(c->b, batch_mean, mean, momentum);
        mf_g_moving_average(c->b, batch_variance, variance, momentum);
        c->b->graph->uses_batch_norm = true;
        one(c, mf_g_cast(c->b, y, c->compute));
        return;
    }
    x = axis_last(c, x, axis, false);
    if (c->training && c->trainable) {
        y = mf_g_batch_norm(c->b, x, gamma, beta, epsilon, &batch_mean, &batch_variance);
        mf_g_moving_average(c->b, batch_mean, mean, momentum);
        mf_g_moving_average(c->b, batch_variance, variance, momentum);
        c->b->graph->uses_batch_norm = true;
    } else
        y = mf_g_batch_norm_infer(c->b, x, gamma, beta, up(c, mean), up(c, variance), epsilon);
    one(c, mf_g_cast(c->b, axis_last(c, y, axis, true), c->compute));
}

/* The axes of a layer or RMS normalization, in Keras's order: as numbers, so that negative ones come first. */
typedef struct norm_axes {
    uint32_t count, axis[MF_MOST_DIMS], bits;
    bool trailing; /* the last ones, in their natural order */
} norm_axes;

static bool read_axes(mf_layer_call *c, uint32_t rank, norm_axes *a)
{
    const mf_json *value = mf_json_get(c->config, "axis");
    int64_t number[MF_MOST_DIMS] = {mf_json_integer(value, -1)};
    bool list = value && value->type == MF_JSON_ARRAY, fits = true;
    *a = (norm_axes){.count = list ? (uint32_t)value->count : 1, .trailing = true};
    if (a->count < 1 || a->count > rank)
        fits = false;
    for (uint32_t i = 0; fits && list && i < a->count; i++) {
        int64_t n = mf_json_integer(mf_json_at(value, i), INT64_MAX);
        uint32_t k = i;
        for (; k > 0 && number[k - 1] > n; k--)
            number[k] = number[k - 1];
        number[k] = n;
    }
    for (uint32_t i = 0; fits && i < a->count; i++) {
        a->axis[i] = mf_axis(number[i], rank);
        fits = a->axis[i] != MF_NONE && !(a->bits >> a->axis[i] & 1);
        if (fits)
            a->bits |= 1u << a->axis[i];
        a->trailing &= a->axis[i] == rank - a->count + i;
    }
    if (!fits)
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axis is out of range", c->layer->name);
    return fits;
}

/* gamma or beta over the axes they belong to: Keras reshapes them, it does not transpose. */
static uint32_t spread(mf_layer_call *c, uint32_t weight, const norm_axes *a, const mf_shape *x)
{
    mf_shape s = {.rank = x->rank};
    if (weight == MF_NONE)
        return MF_NONE;
    for (uint32_t i = 0; i < x->rank; i++)
        s.dim[i] = a->bits >> i & 1 ? x->dim[i] : 1;
    return mf_g_view(c->b, weight, s);
}

/* Any axes, by single operations. `centre`: the mean is taken off; `square`: mean of squares in place of the variance.
 * rms_scaling divides by the deviation and leaves the mean where it is. */
static uint32_t norm_by_parts(mf_layer_call *c, uint32_t x, uint32_t axes, double epsilon, bool centre, bool square)
{
    mf_build *b = c->b;
    uint32_t centred = square ? x : mf_g_binary(b, MF_SUB, x, mf_g_reduce(b, MF_REDUCE_MEAN, x, axes, true));
    uint32_t v = mf_g_reduce(b, MF_REDUCE_MEAN, mf_g_unary(b, MF_UNARY_SQUARE, 0, 0, centred), axes, true);
    v = mf_g_unary(b, MF_UNARY_RSQRT, 0, 0, mf_g_unary(b, MF_UNARY_AFFINE, 1, epsilon, v));
    return mf_g_binary(b, MF_MUL, centre ? centred : x, v);
}

void mf_lower_layer_norm(mf_layer_call *c)
{
    mf_shape shape = mf_g_shape(c->b, c->in[0]);
    bool rms = strcmp(c->layer->class_name, "RMSNormalization") == 0;
    bool deviation = mf_json_get_bool(c->config, "rms_scaling", false);
    double epsilon = mf_json_get_number(c->config, "epsilon", rms ? 1e-6 : 1e-3);
    norm_axes a;
    if (!read_axes(c, shape.rank, &a))
        return;
    mf_shape vector = {.rank = a.count};
    for (uint32_t i = 0; i < a.count; i++)
        vector.dim[i] = shape.dim[a.axis[i]];
    bool scale = rms || deviation || mf_json_get_bool(c->config, "scale", true);
    bool center = !rms && !deviation && mf_json_get_bool(c->config, "center", true);
    mf_weight_spec named = gamma_spec;
    named.name = rms ? "scale" : "gamma";
    uint32_t gamma = scale ? up(c, mf_weight(c, &named, vector)) : MF_NONE;
    uint32_t beta = center ? up(c, mf_weight(c, &beta_spec, vector)) : MF_NONE, y;
    if (a.trailing && !deviation)
        y = mf_g_layer_norm(c->b, up_data(c, c->in[0]), gamma, beta, epsilon, a.count, 0, rms);
    else {
        y = norm_by_parts(c, up(c, c->in[0]), a.bits, epsilon, !rms && !deviation, rms);
        if (gamma != MF_NONE) /* RMSNormalization aligns its scale at the right, whatever the axes */
            y = mf_g_binary(c->b, MF_MUL, y, rms ? gamma : spread(c, gamma, &a, &shape));
        if (beta != MF_NONE)
            y = mf_g_binary(c->b, MF_ADD, y, spread(c, beta, &a, &shape));
    }
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
