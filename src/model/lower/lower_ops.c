/*
 * lower_ops.c: nodes of a functional model that are operations, not layers: x + y, keras.ops.relu(x), x[:, 0]. Their
 * settings are in the configuration, their operands (tensors and constants) in the call.
 */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

/* Argument i of the call: a tensor, or a constant. */
typedef struct operand {
    uint32_t tensor;
    const mf_json *constant;
} operand;

static operand argument(const mf_layer_call *c, uint32_t i)
{
    operand none = {MF_NONE, NULL};
    uint32_t tensors = 0;
    if (!c->call || i >= c->call->arg_count)
        return none;
    for (uint32_t k = 0; k < i; k++)
        tensors += c->call->args[k].layer != MF_NONE;
    if (c->call->args[i].layer == MF_NONE)
        return (operand){MF_NONE, c->call->args[i].constant};
    return (operand){tensors < c->in_count ? c->in[tensors] : MF_NONE, NULL};
}

static bool is_number(operand o)
{
    return o.tensor == MF_NONE && o.constant &&
           (o.constant->type == MF_JSON_NUMBER || o.constant->type == MF_JSON_BOOL);
}

static double number_of(operand o)
{
    return o.constant->type == MF_JSON_BOOL ? o.constant->boolean : o.constant->number;
}

/* ---- two operands ---- */

static uint32_t with_number(mf_build *b, mf_binary function, uint32_t x, double n, bool number_first)
{
    switch (function) {
    case MF_ADD:
        return mf_g_unary(b, MF_UNARY_AFFINE, 1, n, x);
    case MF_SUB:
        return mf_g_unary(b, MF_UNARY_AFFINE, number_first ? -1 : 1, number_first ? n : -n, x);
    case MF_MUL:
        return mf_g_unary(b, MF_UNARY_AFFINE, n, 0, x);
    case MF_DIV:
        return number_first ? mf_g_unary(b, MF_UNARY_AFFINE, n, 0, mf_g_unary(b, MF_UNARY_RECIPROCAL, 0, 0, x))
                            : mf_g_unary(b, MF_UNARY_AFFINE, 1 / n, 0, x);
    case MF_MAX:
        return mf_g_unary(b, MF_UNARY_CLIP, n, INFINITY, x);
    case MF_MIN:
        return mf_g_unary(b, MF_UNARY_CLIP, -INFINITY, n, x);
    case MF_POW:
        if (number_first) /* n^x = exp(x log n) */
            return mf_g_unary(b, MF_UNARY_EXP, 0, 0, mf_g_unary(b, MF_UNARY_AFFINE, log(n), 0, x));
        return n == 2     ? mf_g_unary(b, MF_UNARY_SQUARE, 0, 0, x)
               : n == 0.5 ? mf_g_unary(b, MF_UNARY_SQRT, 0, 0, x)
                          : mf_g_unary(b, MF_UNARY_POW, n, 0, x);
    default:
        return mf_g_unary(b, MF_UNARY_SQUARE, 0, 0, mf_g_unary(b, MF_UNARY_AFFINE, 1, -n, x));
    }
}

static void binary(mf_layer_call *c, mf_binary function)
{
    operand a = argument(c, 0), z = argument(c, 1);
    if (a.tensor == MF_NONE && z.tensor == MF_NONE) {
        mf_lower_unsupported(c, "it has no tensor to work on");
        return;
    }
    if (is_number(a) || is_number(z)) {
        bool first = is_number(a);
        one(c, with_number(c->b, function, first ? z.tensor : a.tensor, number_of(first ? a : z), first));
        return;
    }
    uint32_t x = a.tensor != MF_NONE ? a.tensor : mf_constant(c, a.constant);
    uint32_t y = z.tensor != MF_NONE ? z.tensor : mf_constant(c, z.constant);
    one(c, mf_g_binary(c->b, function, x, y));
}

#define BINARY(name, function)                                                                                         \
    static void name(mf_layer_call *c)                                                                                 \
    {                                                                                                                  \
        binary(c, function);                                                                                           \
    }
BINARY(op_add, MF_ADD)
BINARY(op_subtract, MF_SUB)
BINARY(op_multiply, MF_MUL)
BINARY(op_divide, MF_DIV)
BINARY(op_maximum, MF_MAX)
BINARY(op_minimum, MF_MIN)
BINARY(op_power, MF_POW)
BINARY(op_squared_difference, MF_SQUARED_DIFFERENCE)

static void op_matmul(mf_layer_call *c)
{
    operand a = argument(c, 0), z = argument(c, 1);
    mf_shape x = mf_g_shape(c->b, a.tensor), y = mf_g_shape(c->b, z.tensor);
    if (a.tensor == MF_NONE || z.tensor == MF_NONE || x.rank < 2 || y.rank < 2) {
        mf_lower_unsupported(c, "needs two tensors of rank 2 or more");
        return;
    }
    one(c, mf_g_matmul(c->b, a.tensor, z.tensor, MF_NONE, false, false, 1));
}

static void op_einsum(mf_layer_call *c)
{
    if (c->in_count != 2) {
        mf_lower_unsupported(c, "einsum of other than two tensors");
        return;
    }
    one(c, mf_einsum(c, mf_json_get_string(c->config, "subscripts", ""), c->in[0], c->in[1]));
}

/* ---- one operand ---- */

static const struct {
    const char *name;
    mf_unary function;
    double alpha, beta;
} unaries[] = {
    {"Negative", MF_UNARY_NEG, 0, 0},
    {"Abs", MF_UNARY_ABS, 0, 0},
    {"Absolute", MF_UNARY_ABS, 0, 0},
    {"Square", MF_UNARY_SQUARE, 0, 0},
    {"Sqrt", MF_UNARY_SQRT, 0, 0},
    {"Rsqrt", MF_UNARY_RSQRT, 0, 0},
    {"Exp", MF_UNARY_EXP, 0, 0},
    {"Log", MF_UNARY_LOG, 0, 0},
    {"Sin", MF_UNARY_SIN, 0, 0},
    {"Cos", MF_UNARY_COS, 0, 0},
    {"Tanh", MF_UNARY_TANH, 0, 0},
    {"Sign", MF_UNARY_SIGN, 0, 0},
    {"Floor", MF_UNARY_FLOOR, 0, 0},
    {"Reciprocal", MF_UNARY_RECIPROCAL, 0, 0},
    {"Erf", MF_UNARY_ERF, 0, 0},
    {"Relu", MF_UNARY_RELU, 0, 0},
    {"Relu6", MF_UNARY_RELU6, 0, 0},
    {"Sigmoid", MF_UNARY_SIGMOID, 0, 0},
    {"HardSigmoid", MF_UNARY_HARD_SIGMOID, 0, 0},
    {"Softplus", MF_UNARY_SOFTPLUS, 0, 0},
    {"Softsign", MF_UNARY_SOFTSIGN, 0, 0},
    {"Silu", MF_UNARY_SILU, 0, 0},
    {"Swish", MF_UNARY_SILU, 0, 0},
    {"HardSilu", MF_UNARY_HARD_SILU, 0, 0},
    {"HardSwish", MF_UNARY_HARD_SILU, 0, 0},
    {"HardTanh", MF_UNARY_HARD_TANH, 0, 0},
    {"LogSigmoid", MF_UNARY_LOG_SIGMOID, 0, 0},
    {"Mish", MF_UNARY_MISH, 0, 0},
    {"Selu", MF_UNARY_SELU, 0, 0},
    {"TanhShrink", MF_UNARY_TANH_SHRINK, 0, 0},
    {"SparsePlus", MF_UNARY_SPARSE_PLUS, 0, 0},
};

static void op_unary(mf_layer_call *c)
{
    for (size_t i = 0; i < sizeof unaries / sizeof *unaries; i++)
        if (strcmp(unaries[i].name, c->layer->class_name) == 0 && c->in_count)
            one(c, mf_g_unary(c->b, unaries[i].function, unaries[i].alpha, unaries[i].beta, c->in[0]));
}

static void op_gelu(mf_layer_call *c)
{
    bool approximate = mf_json_get_bool(c->config, "approximate", false);
    one(c, mf_g_unary(c->b, approximate ? MF_UNARY_GELU_TANH : MF_UNARY_GELU, 0, 0, c->in[0]));
}

static void op_leaky_relu(mf_layer_call *c)
{
    one(c, mf_g_unary(c->b, MF_UNARY_LEAKY_RELU, mf_json_get_number(c->config, "negative_slope", 0.2), 0, c->in[0]));
}

static void op_elu(mf_layer_call *c)
{
    bool celu = strcmp(c->layer->class_name, "Celu") == 0;
    one(c,
        mf_g_unary(c->b, celu ? MF_UNARY_CELU : MF_UNARY_ELU, mf_json_get_number(c->config, "alpha", 1), 0, c->in[0]));
}

static void op_clip(mf_layer_call *c)
{
    one(c, mf_g_unary(c->b, MF_UNARY_CLIP, mf_json_get_number(c->config, "x_min", -INFINITY),
                      mf_json_get_number(c->config, "x_max", INFINITY), c->in[0]));
}

static void op_log1p(mf_layer_call *c)
{
    one(c, mf_g_unary(c->b, MF_UNARY_LOG, 0, 0, mf_g_unary(c->b, MF_UNARY_AFFINE, 1, 1, c->in[0])));
}

static void op_softmax(mf_layer_call *c)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, axis = mf_axis(mf_json_get_integer(c->config, "axis", -1), rank);
    bool log = strcmp(c->layer->class_name, "LogSoftmax") == 0;
    if (axis == MF_NONE) {
        mf_lower_unsupported(c, "softmax over several axes");
        return;
    }
    one(c, mf_g_softmax(c->b, c->in[0], axis, log));
}

static void op_cast(mf_layer_call *c)
{
    mf_dtype dtype = c->compute;
    const char *name = mf_config_name(mf_json_get(c->config, "dtype"));
    const mf_json *object = mf_json_get(c->config, "dtype");
    if (object && object->type == MF_JSON_OBJECT)
        name = mf_json_get_string(mf_json_get(object, "config"), "name", name);
    if (name)
        mf_dtype_parse(name, &dtype);
    one(c, mf_g_cast(c->b, c->in[0], dtype));
}

/* ---- reductions ---- */

/* axis: null (all), a number or a list, as a bit mask. */
static uint32_t axes_of(const mf_json *axis, uint32_t rank)
{
    uint32_t axes = 0;
    if (mf_json_is_null(axis))
        return (1u << rank) - 1;
    if (axis->type == MF_JSON_NUMBER) {
        uint32_t a = mf_axis(mf_json_integer(axis, INT64_MAX), rank);
        return a == MF_NONE ? 0 : 1u << a;
    }
    for (const mf_json *v = axis->first; v; v = v->next) {
        uint32_t a = mf_axis(mf_json_integer(v, 0), rank);
        axes |= a == MF_NONE ? 0 : 1u << a;
    }
    return axes;
}

static void op_reduce(mf_layer_call *c)
{
    static const struct {
        const char *name;
        mf_reduce function;
    } reductions[] = {{"Mean", MF_REDUCE_MEAN}, {"Sum", MF_REDUCE_SUM}, {"Max", MF_REDUCE_MAX},
                      {"Amax", MF_REDUCE_MAX},  {"Min", MF_REDUCE_MIN}, {"Amin", MF_REDUCE_MIN},
                      {"Prod", MF_REDUCE_PROD}, {"Norm", MF_REDUCE_L2}};
    uint32_t axes = axes_of(mf_json_get(c->config, "axis"), mf_g_shape(c->b, c->in[0]).rank);
    const mf_json *order = mf_json_get(c->config, "ord");
    if (!mf_json_is_null(order) && mf_json_integer(order, 2) != 2) {
        mf_lower_unsupported(c, "a norm other than 2");
        return;
    }
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
        if (strcmp(reductions[i].name, c->layer->class_name) == 0)
            one(c, mf_g_reduce(c->b, reductions[i].function, c->in[0], axes,
                               mf_json_get_bool(c->config, "keepdims", false)));
}

/* mean of squared differences from the mean */
static void op_variance(mf_layer_call *c)
{
    uint32_t axes = axes_of(mf_json_get(c->config, "axis"), mf_g_shape(c->b, c->in[0]).rank);
    uint32_t centred = mf_g_binary(c->b, MF_SUB, c->in[0], mf_g_reduce(c->b, MF_REDUCE_MEAN, c->in[0], axes, true));
    uint32_t y = mf_g_reduce(c->b, MF_REDUCE_MEAN, mf_g_unary(c->b, MF_UNARY_SQUARE, 0, 0, centred), axes,
                             mf_json_get_bool(c->config, "keepdims", false));
    one(c, strcmp(c->layer->class_name, "Std") == 0 ? mf_g_unary(c->b, MF_UNARY_SQRT, 0, 0, y) : y);
}

/* ---- truth: comparisons give 0 or 1 in U8 ---- */

static uint32_t as_f32(mf_layer_call *c, uint32_t x)
{
    return mf_g_cast(c->b, x, MF_F32);
}

/* x - y in float32, for tensors and numbers. */
static uint32_t difference(mf_layer_call *c)
{
    operand a = argument(c, 0), z = argument(c, 1);
    if (is_number(z) && a.tensor != MF_NONE)
        return mf_g_unary(c->b, MF_UNARY_AFFINE, 1, -number_of(z), as_f32(c, a.tensor));
    if (is_number(a) && z.tensor != MF_NONE)
        return mf_g_unary(c->b, MF_UNARY_AFFINE, -1, number_of(a), as_f32(c, z.tensor));
    if (a.tensor == MF_NONE || z.tensor == MF_NONE)
        return mf_lower_unsupported(c, "a comparison with other than tensors and numbers");
    return mf_g_binary(c->b, MF_SUB, as_f32(c, a.tensor), as_f32(c, z.tensor));
}

static void op_compare(mf_layer_call *c)
{
    const char *name = c->layer->class_name;
    bool equality = strstr(name, "Equal") && name[0] != 'G' && name[0] != 'L';
    bool less = name[0] == 'L', opposite = strcmp(name, "Equal") == 0;
    uint32_t d = difference(c);
    if (!equality && strstr(name, "Equal")) { /* a >= b is not a < b */
        less = !less;
        opposite = true;
    }
    if (equality)
        d = mf_g_unary(c->b, MF_UNARY_ABS, 0, 0, d);
    else
        d = mf_g_unary(c->b, MF_UNARY_RELU, 0, 0, less ? mf_g_unary(c->b, MF_UNARY_NEG, 0, 0, d) : d);
    d = mf_g_unary(c->b, MF_UNARY_SIGN, 0, 0, d);
    one(c, mf_g_cast(c->b, opposite ? mf_g_unary(c->b, MF_UNARY_AFFINE, -1, 1, d) : d, MF_U8));
}

static void op_logical(mf_layer_call *c)
{
    bool no = strcmp(c->layer->class_name, "LogicalNot") == 0, both = strcmp(c->layer->class_name, "LogicalAnd") == 0;
    uint32_t x = as_f32(c, c->in[0]);
    if (no)
        x = mf_g_unary(c->b, MF_UNARY_AFFINE, -1, 1, x);
    else if (c->in_count > 1)
        x = mf_g_binary(c->b, both ? MF_MIN : MF_MAX, x, as_f32(c, c->in[1]));
    one(c, mf_g_cast(c->b, x, MF_U8));
}

static void op_any(mf_layer_call *c)
{
    bool all = strcmp(c->layer->class_name, "All") == 0;
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank;
    uint32_t axes = axes_of(mf_json_get(c->config, "axis"), rank);
    uint32_t y = mf_g_reduce(c->b, all ? MF_REDUCE_MIN : MF_REDUCE_MAX, as_f32(c, c->in[0]), axes,
                             mf_json_get_bool(c->config, "keepdims", false));
    one(c, mf_g_cast(c->b, y, MF_U8));
}

/* condition * x + (1 - condition) * y */
static void op_where(mf_layer_call *c)
{
    operand a = argument(c, 1), z = argument(c, 2);
    if (!c->in_count || (!a.constant && a.tensor == MF_NONE) || (!z.constant && z.tensor == MF_NONE)) {
        mf_lower_unsupported(c, "where without its two values");
        return;
    }
    uint32_t yes = mf_g_cast(c->b, c->in[0], c->compute), no = mf_g_unary(c->b, MF_UNARY_AFFINE, -1, 1, yes);
    uint32_t x = is_number(a) ? mf_g_unary(c->b, MF_UNARY_AFFINE, number_of(a), 0, yes)
                              : mf_g_binary(c->b, MF_MUL, yes,
                                            a.tensor != MF_NONE ? mf_g_cast(c->b, a.tensor, c->compute)
                                                                : mf_constant(c, a.constant));
    uint32_t y = is_number(z) ? mf_g_unary(c->b, MF_UNARY_AFFINE, number_of(z), 0, no)
                              : mf_g_binary(c->b, MF_MUL, no,
                                            z.tensor != MF_NONE ? mf_g_cast(c->b, z.tensor, c->compute)
                                                                : mf_constant(c, z.constant));
    one(c, mf_g_binary(c->b, MF_ADD, x, y));
}

const mf_class_row mf_operation_rows[] = {
    {"Add", op_add, 0, "binary"},
    {"Subtract", op_subtract, 0, "binary"},
    {"Multiply", op_multiply, 0, "binary"},
    {"Divide", op_divide, 0, "binary"},
    {"TrueDivide", op_divide, 0, "binary"},
    {"Maximum", op_maximum, 0, "binary"},
    {"Minimum", op_minimum, 0, "binary"},
    {"Power", op_power, 0, "binary, or a unary for a number"},
    {"SquaredDifference", op_squared_difference, 0, "binary"},
    {"Matmul", op_matmul, 0, "matmul"},
    {"Einsum", op_einsum, 0, "transposes and matmul; two operands"},
    {"Gelu", op_gelu, 0, "unary"},
    {"LeakyRelu", op_leaky_relu, 0, "unary"},
    {"Elu", op_elu, 0, "unary"},
    {"Celu", op_elu, 0, "unary"},
    {"ReLU", mf_lower_relu, 0, "unary"},
    {"LeakyReLU", op_leaky_relu, 0, "unary"},
    {"ELU", mf_lower_elu, 0, "unary"},
    {"Clip", op_clip, 0, "unary"},
    {"Log1p", op_log1p, 0, "two unaries"},
    {"Softmax", op_softmax, 0, "softmax"},
    {"LogSoftmax", op_softmax, 0, "softmax"},
    {"Cast", op_cast, MF_CLASS_KEEPS_TYPES, "cast"},
    {"Identity", mf_lower_identity, MF_CLASS_KEEPS_TYPES, "nothing"},
    {"Equal", op_compare, MF_CLASS_KEEPS_TYPES, "unaries"},
    {"NotEqual", op_compare, MF_CLASS_KEEPS_TYPES, "unaries"},
    {"Greater", op_compare, MF_CLASS_KEEPS_TYPES, "unaries"},
    {"GreaterEqual", op_compare, MF_CLASS_KEEPS_TYPES, "unaries"},
    {"Less", op_compare, MF_CLASS_KEEPS_TYPES, "unaries"},
    {"LessEqual", op_compare, MF_CLASS_KEEPS_TYPES, "unaries"},
    {"LogicalAnd", op_logical, MF_CLASS_KEEPS_TYPES, "binary"},
    {"LogicalOr", op_logical, MF_CLASS_KEEPS_TYPES, "binary"},
    {"LogicalNot", op_logical, MF_CLASS_KEEPS_TYPES, "unary"},
    {"Any", op_any, MF_CLASS_KEEPS_TYPES, "reduce"},
    {"All", op_any, MF_CLASS_KEEPS_TYPES, "reduce"},
    {"Where", op_where, MF_CLASS_KEEPS_TYPES, "binaries"},
    {"Mean", op_reduce, 0, "reduce"},
    {"Sum", op_reduce, 0, "reduce"},
    {"Max", op_reduce, 0, "reduce"},
    {"Amax", op_reduce, 0, "reduce"},
    {"Min", op_reduce, 0, "reduce"},
    {"Amin", op_reduce, 0, "reduce"},
    {"Prod", op_reduce, 0, "reduce"},
    {"Norm", op_reduce, 0, "reduce; order 2"},
    {"Var", op_variance, 0, "reduce, subtract, square, reduce"},
    {"Std", op_variance, 0, "reduce, subtract, square, reduce, sqrt"},
};
const uint32_t mf_operation_row_count = sizeof mf_operation_rows / sizeof *mf_operation_rows;

const mf_class_row *mf_operation_find(const char *name)
{
    static const mf_class_row unary_row = {"unary", op_unary, 0, "unary"};
    for (size_t i = 0; i < sizeof mf_operation_rows / sizeof *mf_operation_rows; i++)
        if (strcmp(mf_operation_rows[i].name, name) == 0)
            return &mf_operation_rows[i];
    for (size_t i = 0; i < sizeof unaries / sizeof *unaries; i++)
        if (strcmp(unaries[i].name, name) == 0)
            return &unary_row;
    return mf_shape_operation_find(name);
}
