/*
 * unary.c: every function of one number, its value and its slope, in double: one place for what an activation means.
 * The formulas are those of Keras 3 on TensorFlow, also where a function is not smooth (relu has slope 0 at 0, relu6 on
 * its borders). From the output alone clip and hard_tanh cannot tell the border from what lies beyond: slope 0 there,
 * where TensorFlow has 1.
 *
 * alpha, beta by function: LEAKY_RELU slope; ELU, CELU alpha; CLIP least and greatest; SOFT_SHRINK, HARD_SHRINK
 * threshold; THRESHOLD threshold and the value below it; SQUAREPLUS b; AFFINE alpha*x + beta; POW exponent.
 */
#include "ops/reference/reference.h"

#include <math.h>

static const double selu_alpha = 1.6732632423543772848170429916717;
static const double selu_scale = 1.0507009873554804934193349852946;

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double clip(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x; /* NaN passes */
}

static double sign(double x)
{
    return (x > 0) - (x < 0);
}

double mf_unary_value(mf_unary function, double alpha, double beta, double x)
{
    switch (function) {
    case MF_UNARY_LINEAR:
    case MF_UNARY_COUNT:
        return x;
    case MF_UNARY_RELU:
        return x < 0 ? 0 : x;
    case MF_UNARY_LEAKY_RELU:
        return x > 0 ? x : alpha * x;
    case MF_UNARY_ELU:
        return x > 0 ? x : alpha * expm1(x);
    case MF_UNARY_SELU:
        return x > 0 ? selu_scale * x : selu_scale * selu_alpha * expm1(x);
    case MF_UNARY_CELU:
        return x > 0 ? x : alpha * expm1(x / alpha);
    case MF_UNARY_SIGMOID:
        return sigmoid(x);
    case MF_UNARY_HARD_SIGMOID:
        return clip(x + 3, 0, 6) / 6;
    case MF_UNARY_HARD_SIGMOID_FIFTH:
        return clip(0.2 * x + 0.5, 0, 1);
    case MF_UNARY_TANH:
        return tanh(x);
    case MF_UNARY_HARD_TANH:
        return clip(x, -1, 1);
    case MF_UNARY_SOFTPLUS:
        return softplus(x);
    case MF_UNARY_SOFTSIGN:
        return x / (1 + fabs(x));
    case MF_UNARY_SILU:
        return x * sigmoid(x);
    case MF_UNARY_HARD_SILU:
        return x * clip(x + 3, 0, 6) / 6;
    case MF_UNARY_GELU:
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    case MF_UNARY_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case MF_UNARY_MISH:
        return x * tanh(softplus(x));
    case MF_UNARY_EXP:
        return exp(x);
    case MF_UNARY_LOG:
        return log(x);
    case MF_UNARY_LOG1P:
        return log1p(x);
    case MF_UNARY_EXPM1:
        return expm1(x);
    case MF_UNARY_LOG_SIGMOID:
        return -softplus(-x);
    case MF_UNARY_SQRT:
        return sqrt(x);
    case MF_UNARY_RSQRT:
        return 1 / sqrt(x);
    case MF_UNARY_SQUARE:
        return x * x;
    case MF_UNARY_ABS:
        return fabs(x);
    case MF_UNARY_NEG:
        return -x;
    case MF_UNARY_RECIPROCAL:
        return 1 / x;
    case MF_UNARY_CLIP:
        return clip(x, alpha, beta);
    case MF_UNARY_TANH_SHRINK:
        return x - tanh(x);
    case MF_UNARY_SOFT_SHRINK:
        return x > alpha ? x - alpha : x < -alpha ? x + alpha : 0;
    case MF_UNARY_HARD_SHRINK:
        return fabs(x) > alpha ? x : 0;
    case MF_UNARY_SQUAREPLUS:
        return (x + sqrt(x * x + alpha)) / 2;
    case MF_UNARY_SPARSE_PLUS:
        return x <= -1 ? 0 : x < 1 ? 0.25 * (x + 1) * (x + 1) : x;
    case MF_UNARY_SPARSE_SIGMOID:
        return x <= -1 ? 0 : x >= 1 ? 1 : 0.5 * (x + 1);
    case MF_UNARY_THRESHOLD:
        return x > alpha ? x : beta;
    case MF_UNARY_SIN:
        return sin(x);
    case MF_UNARY_COS:
        return cos(x);
    case MF_UNARY_AFFINE:
        return alpha * x + beta;
    case MF_UNARY_POW:
        return pow(x, alpha);
    case MF_UNARY_RELU6:
        return clip(x, 0, 6);
    case MF_UNARY_SIGN:
        return sign(x);
    case MF_UNARY_FLOOR:
        return floor(x);
    case MF_UNARY_ERF:
        return erf(x);
    }
    return x;
}

static double slope_from_output(mf_unary function, double alpha, double beta, double y)
{
    switch (function) {
    case MF_UNARY_LINEAR:
        return 1;
    case MF_UNARY_RELU:
        return y > 0;
    case MF_UNARY_LEAKY_RELU:
        return y > 0 ? 1 : alpha;
    case MF_UNARY_ELU:
        return y > 0 ? 1 : y + alpha;
    case MF_UNARY_SELU:
        return y > 0 ? selu_scale : y + selu_scale * selu_alpha;
    case MF_UNARY_CELU:
        return y > 0 ? 1 : y / alpha + 1;
    case MF_UNARY_SIGMOID:
        return y * (1 - y);
    case MF_UNARY_HARD_SIGMOID:
        return y > 0 && y < 1 ? 1.0 / 6 : 0;
    case MF_UNARY_HARD_SIGMOID_FIFTH:
        return y > 0 && y < 1 ? 0.2 : 0;
    case MF_UNARY_TANH:
        return 1 - y * y;
    case MF_UNARY_HARD_TANH:
        return y > -1 && y < 1;
    case MF_UNARY_CLIP:
        return y > alpha && y < beta;
    case MF_UNARY_SOFTSIGN:
        return (1 - fabs(y)) * (1 - fabs(y));
    case MF_UNARY_SOFT_SHRINK:
    case MF_UNARY_HARD_SHRINK:
        return y != 0;
    case MF_UNARY_SOFTPLUS:
        return -expm1(-y);
    case MF_UNARY_EXP:
        return y;
    case MF_UNARY_SQRT:
        return 0.5 / y;
    case MF_UNARY_RSQRT:
        return -0.5 * y * y * y;
    case MF_UNARY_RECIPROCAL:
        return -y * y;
    case MF_UNARY_NEG:
        return -1;
    case MF_UNARY_AFFINE:
        return alpha;
    case MF_UNARY_RELU6:
        return y > 0 && y < 6;
    case MF_UNARY_SIGN:
    case MF_UNARY_FLOOR:
        return 0;
    default:
        return NAN;
    }
}

bool mf_unary_slope_by_output(mf_unary function)
{
    double slope = slope_from_output(function, 1, 1, 0.5);
    return slope == slope;
}

static double gelu_tanh_slope(double x)
{
    double c = 0.7978845608028654, t = tanh(c * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

static double mish_slope(double x)
{
    double t = tanh(softplus(x));
    return t + x * (1 - t * t) * sigmoid(x);
}

/* Functions whose slope is most plainly said of the input; the others go by their output. */
static double slope_from_input(mf_unary function, double alpha, double beta, double x)
{
    double s;
    switch (function) {
    case MF_UNARY_HARD_TANH:
        return x >= -1 && x <= 1;
    case MF_UNARY_SOFTPLUS:
        return sigmoid(x);
    case MF_UNARY_LEAKY_RELU:
        return x > 0 ? 1 : alpha;
    case MF_UNARY_SOFTSIGN:
        s = 1 + fabs(x);
        return 1 / (s * s);
    case MF_UNARY_SILU:
        s = sigmoid(x);
        return s * (1 + x * (1 - s));
    case MF_UNARY_HARD_SILU:
        return clip(x + 3, 0, 6) / 6 + (x > -3 && x < 3 ? x / 6 : 0);
    case MF_UNARY_GELU:
        return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * 0.3989422804014327;
    case MF_UNARY_GELU_TANH:
        return gelu_tanh_slope(x);
    case MF_UNARY_MISH:
        return mish_slope(x);
    case MF_UNARY_LOG:
        return 1 / x;
    case MF_UNARY_LOG1P:
        return 1 / (1 + x);
    case MF_UNARY_EXPM1:
        return exp(x);
    case MF_UNARY_LOG_SIGMOID:
        return sigmoid(-x);
    case MF_UNARY_SQUARE:
        return 2 * x;
    case MF_UNARY_ABS:
        return sign(x);
    case MF_UNARY_CLIP:
        return x >= alpha && x <= beta;
    case MF_UNARY_TANH_SHRINK:
        s = tanh(x);
        return s * s;
    case MF_UNARY_SOFT_SHRINK:
    case MF_UNARY_HARD_SHRINK:
        return fabs(x) > alpha;
    case MF_UNARY_SQUAREPLUS:
        return 0.5 * (1 + x / sqrt(x * x + alpha));
    case MF_UNARY_SPARSE_PLUS:
        return x <= -1 ? 0 : x < 1 ? 0.5 * (x + 1) : 1;
    case MF_UNARY_SPARSE_SIGMOID:
        return x <= -1 || x >= 1 ? 0 : 0.5;
    case MF_UNARY_THRESHOLD:
        return x > alpha;
    case MF_UNARY_SIN:
        return cos(x);
    case MF_UNARY_COS:
        return -sin(x);
    case MF_UNARY_POW:
        return alpha * pow(x, alpha - 1);
    case MF_UNARY_ERF:
        return 1.1283791670955126 * exp(-x * x);
    default:
        return slope_from_output(function, alpha, beta, mf_unary_value(function, alpha, beta, x));
    }
}

double mf_unary_slope(mf_unary function, double alpha, double beta, bool from_output, double x)
{
    return from_output ? slope_from_output(function, alpha, beta, x) : slope_from_input(function, alpha, beta, x);
}

double mf_unary_default_alpha(mf_unary function)
{
    switch (function) {
    case MF_UNARY_LEAKY_RELU:
        return 0.2;
    case MF_UNARY_SOFT_SHRINK:
    case MF_UNARY_HARD_SHRINK:
        return 0.5;
    case MF_UNARY_SQUAREPLUS:
        return 4;
    default:
        return 1;
    }
}
