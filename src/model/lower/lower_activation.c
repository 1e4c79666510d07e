/* lower_activation.c: activation functions, as arguments of other layers and as layers. */
#include "base/error.h"
#include "graph/kinds/kinds.h"
#include "model/lower/lower_inner.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    mf_unary function;
    double alpha, beta;
} functions[] = {
    {"linear", MF_UNARY_LINEAR, 0, 0},
    {"relu", MF_UNARY_RELU, 0, 0},
    {"relu6", MF_UNARY_RELU6, 0, 0},
    {"leaky_relu", MF_UNARY_LEAKY_RELU, 0.2, 0},
    {"elu", MF_UNARY_ELU, 1, 0},
    {"selu", MF_UNARY_SELU, 0, 0},
    {"celu", MF_UNARY_CELU, 1, 0},
    {"sigmoid", MF_UNARY_SIGMOID, 0, 0},
    {"hard_sigmoid", MF_UNARY_HARD_SIGMOID, 0, 0},
    {"tanh", MF_UNARY_TANH, 0, 0},
    {"hard_tanh", MF_UNARY_HARD_TANH, 0, 0},
    {"softplus", MF_UNARY_SOFTPLUS, 0, 0},
    {"softsign", MF_UNARY_SOFTSIGN, 0, 0},
    {"silu", MF_UNARY_SILU, 0, 0},
    {"swish", MF_UNARY_SILU, 0, 0},
    {"hard_silu", MF_UNARY_HARD_SILU, 0, 0},
    {"hard_swish", MF_UNARY_HARD_SILU, 0, 0},
    {"gelu", MF_UNARY_GELU, 0, 0},
    {"mish", MF_UNARY_MISH, 0, 0},
    {"exponential", MF_UNARY_EXP, 0, 0},
    {"log_sigmoid", MF_UNARY_LOG_SIGMOID, 0, 0},
    {"tanh_shrink", MF_UNARY_TANH_SHRINK, 0, 0},
    {"soft_shrink", MF_UNARY_SOFT_SHRINK, 0.5, 0},
    {"hard_shrink", MF_UNARY_HARD_SHRINK, 0.5, 0},
    {"squareplus", MF_UNARY_SQUAREPLUS, 4, 0},
    {"sparse_plus", MF_UNARY_SPARSE_PLUS, 0, 0},
    {"threshold", MF_UNARY_THRESHOLD, 0, 0},
};

static const mf_unary none = MF_UNARY_COUNT;

static mf_unary find(const mf_lowering *lo, const char *name, double *alpha, double *beta)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0) {
            *alpha = functions[i].alpha;
            *beta = functions[i].beta;
            if (functions[i].function == MF_UNARY_HARD_SIGMOID && lo->keras2)
                return MF_UNARY_HARD_SIGMOID_FIFTH;
            return functions[i].function;
        }
    return none;
}

bool mf_activation_unary(const mf_lowering *lo, const char *name, mf_unary *function)
{
    double alpha, beta;
    *function = find(lo, name ? name : "linear", &alpha, &beta);
    return *function != none;
}

/* Half of the last axis gates the other half. */
static uint32_t glu(mf_layer_call *c, uint32_t x)
{
    mf_shape shape = mf_g_shape(c->b, x), half = shape;
    if (!shape.rank || shape.dim[shape.rank - 1] % 2)
        return mf_build_fail(c->b, MEMFIT_INVALID, "layer '%s': glu needs an even last dimension", c->layer->name);
    int64_t begin[MF_MOST_DIMS] = {0};
    half.dim[shape.rank - 1] /= 2;
    uint32_t value = mf_g_slice(c->b, x, begin, half.dim, NULL);
    begin[shape.rank - 1] = half.dim[shape.rank - 1];
    uint32_t gate = mf_g_slice(c->b, x, begin, half.dim, NULL);
    return mf_g_binary(c->b, MF_MUL, value, mf_g_unary(c->b, MF_UNARY_SIGMOID, 0, 0, gate));
}

uint32_t mf_activation_named(mf_layer_call *c, const char *name, uint32_t x)
{
    double alpha = 0, beta = 0;
    uint32_t rank = mf_g_shape(c->b, x).rank, last = rank ? rank - 1 : 0;
    if (!name)
        return x;
    mf_unary function = find(c->lo, name, &alpha, &beta);
    if (function != none)
        return mf_g_unary(c->b, function, alpha, beta, x);
    if (strcmp(name, "softmax") == 0 || strcmp(name, "log_softmax") == 0)
        return mf_g_softmax(c->b, x, last, name[0] == 'l');
    if (strcmp(name, "sparsemax") == 0)
        return mf_g_sparsemax(c->b, x, last);
    if (strcmp(name, "glu") == 0)
        return glu(c, x);
    if (strcmp(name, "sparse_sigmoid") == 0) /* clip(0.5 (x + 1), 0, 1) */
        return mf_g_unary(c->b, MF_UNARY_CLIP, 0, 1, mf_g_unary(c->b, MF_UNARY_AFFINE, 0.5, 0.5, x));
    return mf_build_fail(
        c->b, MEMFIT_UNSUPPORTED,
        "layer '%s': activation '%s' is not known\nmemfit plan --assume %s=SHAPE[:BYTES] plans with it; "
        "SHAPE is what the layer makes, without the batch",
        c->layer->name, name, c->layer->name);
}

uint32_t mf_activation(mf_layer_call *c, const mf_json *spec, uint32_t x)
{
    static const char *const classes[] = {"ReLU", "LeakyReLU", "ELU", "Softmax", "PReLU"};
    const char *name = mf_config_name(spec);
    for (size_t i = 0; name && i < sizeof classes / sizeof *classes; i++)
        if (spec->type == MF_JSON_OBJECT && strcmp(name, classes[i]) == 0) { /* a layer as an activation */
            mf_layer inner = *c->layer;
            mf_layer_call call = *c;
            inner.class_name = name;
            inner.config = mf_json_get(spec, "config");
            inner.is_operation = false;
            call.layer = &inner;
            call.config = inner.config;
            call.in = &x;
            call.in_masks = &(uint32_t){MF_NONE};
            call.in_count = 1;
            call.mask = MF_NONE;
            mf_lower_layer(&call);
            c->weights = call.weights;
            return call.out[0];
        }
    return mf_activation_named(c, name, x);
}

/* ---- layers ---- */

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

void mf_lower_activation_layer(mf_layer_call *c)
{
    one(c, mf_activation(c, mf_json_get(c->config, "activation"), c->in[0]));
}

/* ReLU(max_value, negative_slope, threshold). */
static uint32_t general_relu(mf_layer_call *c, uint32_t x, double slope, double most, double threshold)
{
    mf_build *b = c->b;
    if (threshold != 0) { /* x above the threshold, slope * (x - threshold) below */
        uint32_t above = mf_g_unary(b, MF_UNARY_THRESHOLD, threshold, 0, x);
        if (slope != 0) {
            uint32_t below = mf_g_unary(b, MF_UNARY_RELU, 0, 0, mf_g_unary(b, MF_UNARY_AFFINE, -1, threshold, x));
            above = mf_g_binary(b, MF_ADD, above, mf_g_unary(b, MF_UNARY_AFFINE, -slope, 0, below));
        }
        return isinf(most) ? above : mf_g_unary(b, MF_UNARY_CLIP, -INFINITY, most, above);
    }
    if (slope != 0) {
        uint32_t y = mf_g_unary(b, MF_UNARY_LEAKY_RELU, slope, 0, x);
        return isinf(most) ? y : mf_g_unary(b, MF_UNARY_CLIP, -INFINITY, most, y);
    }
    if (isinf(most))
        return mf_g_unary(b, MF_UNARY_RELU, 0, 0, x);
    return most == 6 ? mf_g_unary(b, MF_UNARY_RELU6, 0, 0, x) : mf_g_unary(b, MF_UNARY_CLIP, 0, most, x);
}

void mf_lower_relu(mf_layer_call *c)
{
    double most = mf_json_is_null(mf_json_get(c->config, "max_value"))
                      ? INFINITY
                      : mf_json_get_number(c->config, "max_value", INFINITY);
    one(c, general_relu(c, c->in[0], mf_json_get_number(c->config, "negative_slope", 0), most,
                        mf_json_get_number(c->config, "threshold", 0)));
}

void mf_lower_thresholded_relu(mf_layer_call *c)
{
    one(c, mf_g_unary(c->b, MF_UNARY_THRESHOLD, mf_json_get_number(c->config, "theta", 1), 0, c->in[0]));
}

void mf_lower_leaky_relu(mf_layer_call *c)
{
    double slope = mf_json_get_number(c->config, "negative_slope", mf_json_get_number(c->config, "alpha", 0.3));
    one(c, mf_g_unary(c->b, MF_UNARY_LEAKY_RELU, slope, 0, c->in[0]));
}

void mf_lower_elu(mf_layer_call *c)
{
    one(c, mf_g_unary(c->b, MF_UNARY_ELU, mf_json_get_number(c->config, "alpha", 1), 0, c->in[0]));
}

void mf_lower_prelu(mf_layer_call *c)
{
    static const mf_weight_spec spec = {
        .name = "alpha", .initializer = "alpha_initializer", .regularizer = "alpha_regularizer"};
    mf_shape x = mf_g_shape(c->b, c->in[0]), alpha = {.rank = x.rank ? x.rank - 1 : 0};
    for (uint32_t i = 0; i < alpha.rank; i++)
        alpha.dim[i] = x.dim[i + 1];
    const mf_json *shared = mf_json_get(c->config, "shared_axes");
    for (size_t i = 0; shared && i < shared->count; i++) {
        int64_t axis = mf_json_integer(mf_json_at(shared, i), 0);
        if (axis >= 1 && axis <= alpha.rank)
            alpha.dim[axis - 1] = 1;
    }
    one(c, mf_g_prelu(c->b, c->in[0], mf_weight(c, &spec, alpha)));
}

/* Several axes side by side are one. */
static uint32_t softmax_over(mf_layer_call *c, uint32_t x, uint32_t first, uint32_t count)
{
    mf_shape s = mf_g_shape(c->b, x), flat = {.rank = s.rank - count + 1};
    for (uint32_t i = 0; i < flat.rank; i++)
        flat.dim[i] = i <= first ? s.dim[i] : s.dim[i + count - 1];
    for (uint32_t i = 1; i < count; i++)
        flat.dim[first] *= s.dim[first + i];
    return mf_g_view(c->b, mf_g_softmax(c->b, mf_g_view(c->b, x, flat), first, false), s);
}

static bool softmax_axes(mf_layer_call *c, uint32_t rank, uint32_t *first, uint32_t *count)
{
    const mf_json *axis = mf_json_get(c->config, "axis");
    bool list = axis && axis->type == MF_JSON_ARRAY;
    uint32_t bits = 0;
    *count = list ? (uint32_t)axis->count : 1;
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t a = mf_axis(mf_json_integer(list ? mf_json_at(axis, i) : axis, axis ? INT64_MAX : -1), rank);
        if (a == MF_NONE || (bits >> a & 1)) {
            mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axis is out of range", c->layer->name);
            return false;
        }
        bits |= 1u << a;
    }
    *first = bits ? (uint32_t)__builtin_ctz(bits) : 0;
    if (bits && bits >> *first == (1u << *count) - 1)
        return true;
    mf_lower_unsupported(c, "softmax over axes that are not side by side");
    return false;
}

/* A mask is aligned at the right; what it leaves out is 0 in the result. */
void mf_lower_softmax(mf_layer_call *c)
{
    mf_shape s = mf_g_shape(c->b, c->in[0]), wide;
    uint32_t first, count, x = c->in[0], mask = mf_mask_truth(c->b, c->mask);
    if (!softmax_axes(c, s.rank, &first, &count))
        return;
    mf_shape m = mf_g_shape(c->b, mask);
    if (mask != MF_NONE && (m.rank > s.rank || !mf_shape_broadcasts(&s, &m, &wide) || !mf_shape_equal(&wide, &s))) {
        mf_lower_unsupported(c, "its mask does not go with its input");
        return;
    }
    if (mask != MF_NONE)
        x = mf_g_keep(c->b, mask, x, mf_g_dtype(c->b, x) == MF_F16 ? -3e4 : -1e9, false);
    x = softmax_over(c, x, first, count);
    one(c, mask == MF_NONE ? x : mf_g_keep(c->b, mask, x, 0, false));
}
