/* ref_pointwise.c: functions of one and two tensors element by element, with broadcasting, and their gradients. */
#include "ops/reference/reference.h"

#include "base/error.h"

#include <math.h>

static double binary_value(mf_binary function, double a, double b)
{
    switch (function) {
    case MF_ADD:
        return a + b;
    case MF_SUB:
        return a - b;
    case MF_MUL:
        return a * b;
    case MF_DIV:
        return a / b;
    case MF_MAX:
        return a >= b || a != a ? a : b;
    case MF_MIN:
        return a <= b || a != a ? a : b;
    case MF_POW:
        return pow(a, b);
    case MF_SQUARED_DIFFERENCE:
        return (a - b) * (a - b);
    }
    return 0;
}

/* d value / d a (side 0) or d b (side 1). Equal operands of max and min: all goes to a, as in TensorFlow. */
static double binary_slope(mf_binary function, unsigned side, double a, double b)
{
    switch (function) {
    case MF_ADD:
        return 1;
    case MF_SUB:
        return side ? -1 : 1;
    case MF_MUL:
        return side ? a : b;
    case MF_DIV:
        return side ? -a / (b * b) : 1 / b;
    case MF_MAX:
        return (a >= b) != (side != 0);
    case MF_MIN:
        return (a <= b) != (side != 0);
    case MF_POW:
        if (side)
            return a > 0 ? pow(a, b) * log(a) : 0;
        return b * pow(a, b - 1);
    case MF_SQUARED_DIFFERENCE:
        return side ? 2 * (b - a) : 2 * (a - b);
    }
    return 0;
}

static bool is_true(mf_compare function, double a, double b)
{
    switch (function) {
    case MF_EQUAL:
        return a == b;
    case MF_NOT_EQUAL:
        return a != b;
    case MF_LESS:
        return a < b;
    case MF_LESS_EQUAL:
        return a <= b;
    case MF_GREATER:
        return a > b;
    default:
        return a >= b;
    }
}

uint64_t mf_ref_binary_grad_scratch(const mf_graph *graph, const mf_op *op)
{
    /* sums of broadcast operands are kept in double: PRELU_GRAD's alpha, BINARY_GRAD's smaller side */
    uint32_t t = op->kind == MF_OP_PRELU_GRAD ? op->in[2] : op->out[0];
    return t == MF_NONE ? 0 : mf_shape_count(&graph->tensors[t].shape) * sizeof(double);
}

#define REF_DOUBLE 0
#include "ops/reference/pointwise_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/pointwise_body.h"
