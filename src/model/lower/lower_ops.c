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

/* The leading axes of both, broadcast; false when they do not go together. */
static bool joint_batches(const mf_shape *x, const mf_shape *y, mf_shape *joint)
{
    uint32_t a = x->rank - 2, z = y->rank - 2, n = a > z ? a : z;
    *joint = (mf_shape){.rank = n};
    for (uint32_t i = 0; i < n; i++) {
        int64_t p = i + a < n ? 1 : x->dim[i + a - n], q = i + z < n ? 1 : y->dim[i + z - n];
        if (p != q && p != 1 && q != 1)
            return false;
        joint->dim[i] = p == 1 ? q : p;
    }
    return true;
}

/* x with these leading axes before its last two. */
static uint32_t with_batches(mf_layer_call *c, uint32_t x, const mf_shape *batches)
{
    mf_shape s = mf_g_shape(c->b, x), view = {.rank = batches->rank + 2}, wide = *batches;
    for (uint32_t i = 0; i < view.rank; i++)
        view.dim[i] = i + s.rank < view.rank ? 1 : s.dim[i + s.rank - view.rank];
    wide.dim[wide.rank++] = s.dim[s.rank - 2];
    wide.dim[wide.rank++] = s.dim[s.rank - 1];
    x = mf_g_view(c->b, x, view);
    return mf_shape_equal(&view, &wide) ? x : mf_g_broadcast(c->b, x, wide, 1);
}

/* numpy's rules: a vector is a row on the left and a column on the right; leading axes are broadcast. */
static void op_matmul(mf_layer_call *c)
{
    operand a = argument(c, 0), z = argument(c, 1);
    uint32_t x = a.tensor != MF_NONE || !a.constant ? a.tensor : mf_constant(c, a.constant);
    uint32_t y = z.tensor != MF_NONE || !z.constant ? z.tensor : mf_constant(c, z.constant);
    mf_shape xs = mf_g_shape(c->b, x), ys = mf_g_shape(c->b, y), batches, out;
    if (x == MF_NONE || y == MF_NONE || !xs.rank || !ys.rank) {
        mf_lower_unsupported(c, "needs two tensors of rank 1 or more");
        return;
    }
    bool row = xs.rank == 1, column = ys.rank == 1;
    xs = row ? mf_shape2(1, xs.dim[0]) : xs;
    ys = column ? mf_shape2(ys.dim[0], 1) : ys;
    x = mf_g_view(c->b, x, xs);
    y = mf_g_view(c->b, y, ys);
    if (!joint_batches(&xs, &ys, &batches) || batches.rank + 2 > MF_MOST_DIMS) {
        mf_lower_unsupported(c, "leading axes that do not go together");
        return;
    }
    if (ys.rank > 2)
        y = with_batches(c, y, &batches);
    if (ys.rank > 2 || xs.rank - 2 != batches.rank)
        x = with_batches(c, x, &batches);
    uint32_t made = mf_g_matmul(c->b, x, y, MF_NONE, false, false, 1);
    out = mf_g_shape(c->b, made);
    if (mf_build_ok(c->b) && column)
        out.rank--;
    if (mf_build_ok(c->b) && row) {
        uint32_t at = out.rank - (column ? 1 : 2);
        for (uint32_t i = at; i + 1 < out.rank; i++)
            out.dim[i] = out.dim[i + 1];
        out.rank--;
    }
    one(c, mf_g_view(c->b, made, out));
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
    {"Log1p", MF_UNARY_LOG1P, 0, 0},
    {"Expm1", MF_UNARY_EXPM1, 0, 0},
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

/* A factor before or behind: log2 x = log x / log 2. */
static void op_of_base(mf_layer_call *c)
{
    if (strcmp(c->layer->class_name, "Exp2") == 0)
        one(c, mf_g_unary(c->b, MF_UNARY_EXP, 0, 0, mf_g_unary(c->b, MF_UNARY_AFFINE, M_LN2, 0, c->in[0])));
    else
        one(c, mf_g_unary(c->b, MF_UNARY_AFFINE, strcmp(c->layer->class_name, "Log2") == 0 ? M_LOG2E : M_LOG10E, 0,
                          mf_g_unary(c->b, MF_UNARY_LOG, 0, 0, c->in[0])));
}

/* Functions with a setting of their own. */
static void op_shrink(mf_layer_call *c)
{
    static const struct {
        const char *name;
        mf_unary function;
        const char *alpha, *beta;
        double otherwise;
    } functions[] = {{"HardShrink", MF_UNARY_HARD_SHRINK, "threshold", NULL, 0.5},
                     {"SoftShrink", MF_UNARY_SOFT_SHRINK, "threshold", NULL, 0.5},
                     {"Squareplus", MF_UNARY_SQUAREPLUS, "b", NULL, 4},
                     {"Threshold", MF_UNARY_THRESHOLD, "threshold", "default_value", 0}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, c->layer->class_name) == 0)
            one(c, mf_g_unary(c->b, functions[i].function,
                              mf_json_get_number(c->config, functions[i].alpha, functions[i].otherwise),
                              functions[i].beta ? mf_json_get_number(c->config, functions[i].beta, 0) : 0, c->in[0]));
}

static void op_named(mf_layer_call *c)
{
    if (strcmp(c->layer->class_name, "Glu") == 0 && mf_json_get_integer(c->config, "axis", -1) != -1)
        mf_lower_unsupported(c, "glu over another axis than the last");
    else
        one(c, mf_activation_named(c, strcmp(c->layer->class_name, "Glu") == 0 ? "glu" : "sparse_sigmoid", c->in[0]));
}

static void op_softmax(mf_layer_call *c)
{
    const mf_json *value = mf_json_get(c->config, "axis");
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, axis = mf_axis(mf_json_integer(value, INT64_MAX), rank);
    if (!value)
        axis = rank - 1;
    if (axis == MF_NONE) {
        mf_lower_unsupported(c, "softmax over other than one axis");
        return;
    }
    one(c, mf_g_softmax(c->b, c->in[0], axis, strcmp(c->layer->class_name, "LogSoftmax") == 0));
}

static void op_cast(mf_layer_call *c)
{
    mf_dtype dtype = strcmp(c->layer->class_name, "Cast") == 0 ? c->compute : mf_g_dtype(c->b, c->in[0]);
    const char *name = mf_config_name(mf_json_get(c->config, "dtype"));
    const mf_json *object = mf_json_get(c->config, "dtype");
    if (object && object->type == MF_JSON_OBJECT)
        name = mf_json_get_string(mf_json_get(object, "config"), "name", name);
    if (name && !mf_dtype_parse(name, &dtype)) {
        mf_lower_unsupported(c, "this type is not known");
        return;
    }
    one(c, dtype == MF_BOOL ? mf_mask_truth(c->b, c->in[0]) : mf_g_cast(c->b, c->in[0], dtype));
}

/* ---- reductions ---- */

/* axis: null (all), a number or a list, as a bit mask; fails when one is out of range. */
static bool axes_of(mf_layer_call *c, const mf_json *axis, uint32_t *axes)
{
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank;
    mf_json single = axis ? *axis : (mf_json){0};
    single.next = NULL;
    *axes = mf_json_is_null(axis) ? (1u << rank) - 1 : 0;
    for (const mf_json *v = *axes || mf_json_is_null(axis) ? NULL
                            : axis->type == MF_JSON_ARRAY  ? axis->first
                                                           : &single;
         v; v = v->next) {
        uint32_t a = mf_axis(mf_json_integer(v, INT64_MAX), rank);
        if (a == MF_NONE) {
            mf_build_fail(c->b, MEMFIT_DAMAGED, "operation '%s': axis is out of range", c->layer->name);
            return false;
        }
        *axes |= 1u << a;
    }
    return true;
}

static void op_reduce(mf_layer_call *c)
{
    static const struct {
        const char *name;
        mf_reduce function;
    } reductions[] = {{"Mean", MF_REDUCE_MEAN}, {"Sum", MF_REDUCE_SUM}, {"Max", MF_REDUCE_MAX},
                      {"Amax", MF_REDUCE_MAX},  {"Min", MF_REDUCE_MIN}, {"Amin", MF_REDUCE_MIN},
                      {"Prod", MF_REDUCE_PROD}};
    uint32_t axes;
    if (!axes_of(c, mf_json_get(c->config, "axis"), &axes))
        return;
    for (size_t i = 0; i < sizeof reductions / sizeof *reductions; i++)
        if (strcmp(reductions[i].name, c->layer->class_name) == 0)
            one(c, mf_g_reduce(c->b, reductions[i].function, c->in[0], axes,
                               mf_json_get_bool(c->config, "keepdims", false)));
}

/* Orders: null and "fro", the root of the sum of squares; of one axis also 1, 2 and the greatest, "inf". */
static void op_norm(mf_layer_call *c)
{
    const mf_json *order = mf_json_get(c->config, "ord");
    bool keep = mf_json_get_bool(c->config, "keepdims", false), absolute = false, known = true;
    uint32_t axes, x = c->in[0];
    mf_reduce function = MF_REDUCE_L2;
    if (!axes_of(c, mf_json_get(c->config, "axis"), &axes))
        return;
    bool one_axis = axes && !(axes & (axes - 1));
    if (mf_json_is_null(order) || strcmp(mf_json_string(order, ""), "fro") == 0)
        known = mf_json_is_null(order) || !one_axis;
    else if (one_axis && order->type == MF_JSON_NUMBER &&
             (order->number == 1 || order->number == 2 || isinf(order->number))) {
        absolute = order->number != 2;
        function = order->number == 1   ? MF_REDUCE_SUM
                   : order->number == 2 ? MF_REDUCE_L2
                   : order->number > 0  ? MF_REDUCE_MAX
                                        : MF_REDUCE_MIN;
    } else
        known = false;
    if (!known) {
        mf_lower_unsupported(c, "a norm of this order over these axes");
        return;
    }
    if (absolute)
        x = mf_g_unary(c->b, MF_UNARY_ABS, 0, 0, x);
    one(c, mf_g_reduce(c->b, function, x, axes, keep));
}

/* log of the sum of exponentials, from the greatest on */
static void op_logsumexp(mf_layer_call *c)
{
    uint32_t axes, x = c->in[0];
    bool keep = mf_json_get_bool(c->config, "keepdims", false);
    if (!axes_of(c, mf_json_get(c->config, "axis"), &axes))
        return;
    uint32_t most = mf_g_reduce(c->b, MF_REDUCE_MAX, x, axes, true);
    uint32_t sum = mf_g_reduce(c->b, MF_REDUCE_SUM,
                               mf_g_unary(c->b, MF_UNARY_EXP, 0, 0, mf_g_binary(c->b, MF_SUB, x, most)), axes, true);
    uint32_t y = mf_g_binary(c->b, MF_ADD, most, mf_g_unary(c->b, MF_UNARY_LOG, 0, 0, sum));
    one(c, keep ? y : mf_g_reduce(c->b, MF_REDUCE_SUM, y, axes, false));
}

/* mean of squared differences from the mean */
static void op_variance(mf_layer_call *c)
{
    uint32_t axes;
    if (!axes_of(c, mf_json_get(c->config, "axis"), &axes))
        return;
    uint32_t centred = mf_g_binary(c->b, MF_SUB, c->in[0], mf_g_reduce(c->b, MF_REDUCE_MEAN, c->in[0], axes, true));
    uint32_t y = mf_g_reduce(c->b, MF_REDUCE_MEAN, mf_g_unary(c->b, MF_UNARY_SQUARE, 0, 0, centred), axes,
                             mf_json_get_bool(c->config, "keepdims", false));
    one(c, strcmp(c->layer->class_name, "Std") == 0 ? mf_g_unary(c->b, MF_UNARY_SQRT, 0, 0, y) : y);
}

/* ---- truth: comparisons give 0 or 1 in U8 ---- */

static bool is_floating(mf_dtype dtype)
{
    return dtype == MF_F32 || dtype == MF_F16 || dtype == MF_BF16 || dtype == MF_F64;
}

/* Operand i in the type comparisons are made in. */
static uint32_t comparable(mf_layer_call *c, operand o)
{
    if (o.tensor == MF_NONE)
        return mf_constant(c, o.constant);
    return mf_g_cast(c->b, o.tensor, is_floating(c->compute) ? c->compute : MF_F32);
}

static void op_compare(mf_layer_call *c)
{
    static const struct {
        const char *name;
        mf_compare function, turned; /* turned: with the operands exchanged */
    } comparisons[] = {{"Equal", MF_EQUAL, MF_EQUAL},    {"NotEqual", MF_NOT_EQUAL, MF_NOT_EQUAL},
                       {"Less", MF_LESS, MF_GREATER},    {"LessEqual", MF_LESS_EQUAL, MF_GREATER_EQUAL},
                       {"Greater", MF_GREATER, MF_LESS}, {"GreaterEqual", MF_GREATER_EQUAL, MF_LESS_EQUAL}};
    operand a = argument(c, 0), z = argument(c, 1);
    if ((a.tensor == MF_NONE && !a.constant) || (z.tensor == MF_NONE && !z.constant) ||
        (a.tensor == MF_NONE && z.tensor == MF_NONE)) {
        mf_lower_unsupported(c, "a comparison without its two operands");
        return;
    }
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++) {
        if (strcmp(comparisons[i].name, c->layer->class_name) != 0)
            continue;
        if (is_number(z))
            one(c, mf_g_compare(c->b, comparisons[i].function, comparable(c, a), MF_NONE, number_of(z)));
        else if (is_number(a))
            one(c, mf_g_compare(c->b, comparisons[i].turned, comparable(c, z), MF_NONE, number_of(a)));
        else
            one(c, mf_g_compare(c->b, comparisons[i].function, comparable(c, a), comparable(c, z), 0));
    }
}

static void op_logical(mf_layer_call *c)
{
    const char *name = c->layer->class_name;
    uint32_t x = mf_mask_truth(c->b, c->in[0]);
    if (strcmp(name, "LogicalNot") == 0) {
        one(c, mf_g_compare(c->b, MF_EQUAL, x, MF_NONE, 0));
        return;
    }
    if (c->in_count < 2) {
        mf_lower_unsupported(c, "a logical operation with other than two tensors");
        return;
    }
    uint32_t y = mf_mask_truth(c->b, c->in[1]);
    if (strcmp(name, "LogicalXor") == 0)
        one(c, mf_g_compare(c->b, MF_NOT_EQUAL, x, y, 0));
    else
        one(c, mf_g_binary(c->b, strcmp(name, "LogicalAnd") == 0 ? MF_MIN : MF_MAX, x, y));
}

static void op_any(mf_layer_call *c)
{
    bool all = strcmp(c->layer->class_name, "All") == 0;
    uint32_t axes, x = mf_g_cast(c->b, mf_mask_truth(c->b, c->in[0]), MF_F32);
    if (!axes_of(c, mf_json_get(c->config, "axis"), &axes))
        return;
    uint32_t y =
        mf_g_reduce(c->b, all ? MF_REDUCE_MIN : MF_REDUCE_MAX, x, axes, mf_json_get_bool(c->config, "keepdims", false));
    one(c, mf_g_cast(c->b, y, MF_U8));
}

/* What is not taken may be infinite: nothing is computed with it. */
static void op_where(mf_layer_call *c)
{
    operand a = argument(c, 1), z = argument(c, 2);
    if (!c->in_count || argument(c, 0).tensor == MF_NONE || (!a.constant && a.tensor == MF_NONE) ||
        (!z.constant && z.tensor == MF_NONE)) {
        mf_lower_unsupported(c, "where without its condition and two values");
        return;
    }
    mf_dtype dtype = is_floating(c->compute) ? c->compute : MF_F32;
    uint32_t yes = is_number(a)          ? MF_NONE
                   : a.tensor != MF_NONE ? mf_g_cast(c->b, a.tensor, dtype)
                                         : mf_constant(c, a.constant);
    uint32_t no = is_number(z)          ? MF_NONE
                  : z.tensor != MF_NONE ? mf_g_cast(c->b, z.tensor, dtype)
                                        : mf_constant(c, z.constant);
    one(c, mf_g_select(c->b, mf_mask_truth(c->b, c->in[0]), yes, is_number(a) ? number_of(a) : 0, no,
                       is_number(z) ? number_of(z) : 0, dtype));
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
    {"Log2", op_of_base, 0, "two unaries"},
    {"Log10", op_of_base, 0, "two unaries"},
    {"Exp2", op_of_base, 0, "two unaries"},
    {"HardShrink", op_shrink, 0, "unary"},
    {"SoftShrink", op_shrink, 0, "unary"},
    {"Squareplus", op_shrink, 0, "unary"},
    {"Threshold", op_shrink, 0, "unary"},
    {"SparseSigmoid", op_named, 0, "two unaries"},
    {"Glu", op_named, 0, "slices, unary, binary"},
    {"Softmax", op_softmax, 0, "softmax"},
    {"LogSoftmax", op_softmax, 0, "softmax"},
    {"Cast", op_cast, MF_CLASS_KEEPS_TYPES, "cast"},
    {"Identity", mf_lower_identity, MF_CLASS_KEEPS_TYPES, "nothing"},
    {"ConvertToTensor", op_cast, MF_CLASS_KEEPS_TYPES, "cast"},
    {"Equal", op_compare, MF_CLASS_KEEPS_TYPES, "compare"},
    {"NotEqual", op_compare, MF_CLASS_KEEPS_TYPES, "compare"},
    {"Greater", op_compare, MF_CLASS_KEEPS_TYPES, "compare"},
    {"GreaterEqual", op_compare, MF_CLASS_KEEPS_TYPES, "compare"},
    {"Less", op_compare, MF_CLASS_KEEPS_TYPES, "compare"},
    {"LessEqual", op_compare, MF_CLASS_KEEPS_TYPES, "compare"},
    {"LogicalAnd", op_logical, MF_CLASS_KEEPS_TYPES, "binary"},
    {"LogicalOr", op_logical, MF_CLASS_KEEPS_TYPES, "binary"},
    {"LogicalXor", op_logical, MF_CLASS_KEEPS_TYPES, "compare"},
    {"LogicalNot", op_logical, MF_CLASS_KEEPS_TYPES, "compare"},
    {"Any", op_any, MF_CLASS_KEEPS_TYPES, "reduce"},
    {"All", op_any, MF_CLASS_KEEPS_TYPES, "reduce"},
    {"Where", op_where, MF_CLASS_KEEPS_TYPES, "select"},
    {"Mean", op_reduce, 0, "reduce"},
    {"Sum", op_reduce, 0, "reduce"},
    {"Max", op_reduce, 0, "reduce"},
    {"Amax", op_reduce, 0, "reduce"},
    {"Min", op_reduce, 0, "reduce"},
    {"Amin", op_reduce, 0, "reduce"},
    {"Prod", op_reduce, 0, "reduce"},
    {"Norm", op_norm, 0, "reduce; orders 1, 2, inf, fro"},
    {"Logsumexp", op_logsumexp, 0, "reduce, binary, unary"},
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
