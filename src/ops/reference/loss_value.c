/*
 * loss_value.c: every loss, for one row: the last axis of predictions and targets. One function gives the value and, if
 * asked, the slope by each prediction, in double; ref_loss.c walks the rows and applies weights and denominators.
 *
 * Formulas and corner cases (clipping at 1e-7, slopes on the border, ties) are those of Keras 3 on TensorFlow. Two to
 * know: cross-entropy from logits has slope softmax - target whatever the targets sum to, as TensorFlow computes it;
 * and hinge turns targets of 0 and 1 into -1 and 1 only if all targets are 0 or 1 (`binary_targets`, found by the
 * caller).
 */
#include "ops/reference/loss_value.h"

#include <math.h>

static const double epsilon = 1e-7;

static double target_at(const mf_loss_row *r, int64_t j)
{
    return mf_ref_load(r->target_dtype, r->target, (uint64_t)(r->first + j));
}

static double clip(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double sign(double x)
{
    return (x > 0) - (x < 0);
}

/* NaN passes, as in Keras's maximum: fmax would turn the loss of a model that has diverged into a good one. */
static double at_least(double x, double low)
{
    return x < low ? low : x;
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* Clipped binary cross-entropy of one probability. */
static double binary_entropy(const mf_loss_row *r, double p, double t, double *slope)
{
    double q = clip(p, epsilon, r->one_less);
    *slope = p >= epsilon && p <= r->one_less ? (1 - t) / (1 - q) - t / q : 0;
    return -(t * log(q) + (1 - t) * log(1 - q));
}

static double binary_focal(const mf_loss_row *r, double p, double t, double *slope)
{
    double entropy_slope, entropy = binary_entropy(r, p, t, &entropy_slope), gamma = r->gamma;
    double rest = 1 - (t * p + (1 - t) * (1 - p)); /* 1 - probability of the true class */
    double factor = pow(rest, gamma), weight = r->balanced ? t * r->alpha + (1 - t) * (1 - r->alpha) : 1;
    double factor_slope = gamma * pow(rest, gamma - 1) * (1 - 2 * t);
    *slope = weight * (factor_slope * entropy + factor * entropy_slope);
    return weight * factor * entropy;
}

/* Losses that are a mean (KL: a sum) of a function of one prediction and one target. */
static double element(const mf_loss_row *r, double p, double t, double *slope)
{
    double d = p - t, m;
    switch (r->function) {
    case MF_LOSS_MSE:
        *slope = 2 * d;
        return d * d;
    case MF_LOSS_MAE:
        *slope = sign(d);
        return fabs(d);
    case MF_LOSS_MAPE:
        m = fmax(fabs(t), epsilon);
        *slope = 100 * sign(d) / m;
        return 100 * fabs(d) / m;
    case MF_LOSS_MSLE:
        m = log(at_least(p, epsilon) + 1) - log(at_least(t, epsilon) + 1);
        *slope = p >= epsilon ? 2 * m / (p + 1) : 0;
        return m * m;
    case MF_LOSS_HUBER:
        *slope = fabs(d) <= r->delta ? d : r->delta * sign(d);
        return fabs(d) <= r->delta ? 0.5 * d * d : r->delta * fabs(d) - 0.5 * r->delta * r->delta;
    case MF_LOSS_LOG_COSH:
        *slope = tanh(d);
        return d + softplus(-2 * d) - M_LN2;
    case MF_LOSS_POISSON:
        *slope = 1 - t / (p + epsilon);
        return p - t * log(p + epsilon);
    case MF_LOSS_KL:
        t = clip(t, epsilon, 1);
        m = clip(p, epsilon, 1);
        *slope = p >= epsilon && p <= 1 ? -t / m : 0;
        return t * log(t / m);
    case MF_LOSS_HINGE:
    case MF_LOSS_SQUARED_HINGE:
        t = r->binary_targets ? 2 * t - 1 : t;
        m = at_least(1 - t * p, 0);
        if (r->function == MF_LOSS_SQUARED_HINGE) {
            *slope = -2 * m * t;
            return m * m;
        }
        *slope = 1 - t * p >= 0 ? -t : 0;
        return m;
    case MF_LOSS_BCE:
        return binary_entropy(r, p, t * (1 - r->smoothing) + 0.5 * r->smoothing, slope);
    case MF_LOSS_BCE_LOGITS:
        t = t * (1 - r->smoothing) + 0.5 * r->smoothing;
        *slope = sigmoid(p) - t;
        return fmax(p, 0) - p * t + log1p(exp(-fabs(p)));
    case MF_LOSS_BINARY_FOCAL:
        return binary_focal(r, p, t * (1 - r->smoothing) + 0.5 * r->smoothing, slope);
    default:
        *slope = 0;
        return 0;
    }
}

static double elements(const mf_loss_row *r)
{
    double sum = 0, share = r->function == MF_LOSS_KL ? 1 : 1 / (double)r->n;
    for (int64_t j = 0; j < r->n; j++) {
        double slope;
        sum += element(r, mf_loss_prediction(r, j), target_at(r, j), &slope);
        mf_loss_slope(r, j, slope * share);
    }
    return sum * share;
}

static double smoothed(const mf_loss_row *r, int64_t j)
{
    return target_at(r, j) * (1 - r->smoothing) + r->smoothing / (double)r->n;
}

/* log of the sum of exp over the row. */
static double log_sum_exp(const mf_loss_row *r)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < r->n; j++)
        most = fmax(most, mf_loss_prediction(r, j));
    for (int64_t j = 0; j < r->n; j++)
        sum += exp(mf_loss_prediction(r, j) - most);
    return most + log(sum);
}

static double categorical_logits(const mf_loss_row *r)
{
    double log_sum = log_sum_exp(r), value = 0;
    for (int64_t j = 0; j < r->n; j++) {
        double x = mf_loss_prediction(r, j) - log_sum, t = smoothed(r, j);
        value -= t != 0 ? t * x : 0;
        mf_loss_slope(r, j, exp(x) - t);
    }
    return value;
}

static double sparse_logits(const mf_loss_row *r)
{
    double log_sum = log_sum_exp(r), value = log_sum - mf_loss_prediction(r, r->label);
    for (int64_t j = 0; j < r->n; j++)
        mf_loss_slope(r, j, exp(mf_loss_prediction(r, j) - log_sum) - (j == r->label));
    return value;
}

/* Sparse cross-entropy from probabilities: the clipped ones, taken as exp(logits), renormalised by softmax. */
static double sparse_probabilities(const mf_loss_row *r)
{
    double sum = 0;
    for (int64_t j = 0; j < r->n; j++)
        sum += clip(mf_loss_prediction(r, j), epsilon, r->one_less);
    double value = log(sum) - log(clip(mf_loss_prediction(r, r->label), epsilon, r->one_less));
    for (int64_t j = 0; j < r->n; j++) {
        double p = mf_loss_prediction(r, j), q = clip(p, epsilon, r->one_less);
        mf_loss_slope(r, j, p == q ? (q / sum - (j == r->label)) / q : 0);
    }
    return value;
}

/* Value and slope by the clipped, renormalised probability. */
static double categorical_term(const mf_loss_row *r, double q, double t, double *slope)
{
    if (r->function != MF_LOSS_CATEGORICAL_FOCAL) {
        *slope = -t / q;
        return -t * log(q);
    }
    double factor = r->alpha * pow(1 - q, r->gamma), factor_slope = -r->alpha * r->gamma * pow(1 - q, r->gamma - 1);
    *slope = -t * (factor_slope * log(q) + factor / q);
    return -t * factor * log(q);
}

static double categorical_probabilities(const mf_loss_row *r)
{
    double sum = 0, value = 0, mixed = 0; /* mixed: what every slope gets through the common sum */
    for (int64_t j = 0; j < r->n; j++)
        sum += mf_loss_prediction(r, j);
    for (int64_t j = 0; j < r->n; j++) {
        double p = mf_loss_prediction(r, j) / sum, q = clip(p, epsilon, r->one_less), slope;
        value += categorical_term(r, q, smoothed(r, j), &slope);
        mixed += p == q ? slope * p : 0;
    }
    for (int64_t j = 0; j < r->n; j++) {
        double p = mf_loss_prediction(r, j) / sum, q = clip(p, epsilon, r->one_less), slope;
        categorical_term(r, q, smoothed(r, j), &slope);
        mf_loss_slope(r, j, ((p == q ? slope : 0) - mixed) / sum);
    }
    return value;
}

static double categorical_hinge(const mf_loss_row *r)
{
    double positive = 0, negative = -INFINITY, ties = 0;
    for (int64_t j = 0; j < r->n; j++) {
        double p = mf_loss_prediction(r, j), t = target_at(r, j);
        positive += t * p;
        negative = fmax(negative, (1 - t) * p);
    }
    for (int64_t j = 0; j < r->n; j++)
        ties += (1 - target_at(r, j)) * mf_loss_prediction(r, j) == negative;
    double margin = negative - positive + 1;
    for (int64_t j = 0; j < r->n; j++) {
        double t = target_at(r, j), rest = (1 - t) * mf_loss_prediction(r, j);
        mf_loss_slope(r, j, margin >= 0 ? (rest == negative ? (1 - t) / ties : 0) - t : 0);
    }
    return at_least(margin, 0);
}

static double cosine(const mf_loss_row *r)
{
    double pp = 0, tt = 0, pt = 0;
    for (int64_t j = 0; j < r->n; j++) {
        double p = mf_loss_prediction(r, j), t = target_at(r, j);
        pp += p * p;
        tt += t * t;
        pt += p * t;
    }
    double ip = fmin(1 / sqrt(pp), 1 / epsilon), it = fmin(1 / sqrt(tt), 1 / epsilon);
    bool capped = 1 / sqrt(pp) > 1 / epsilon;
    for (int64_t j = 0; j < r->n; j++) {
        double through_norm = capped ? 0 : mf_loss_prediction(r, j) * pt * ip * ip;
        mf_loss_slope(r, j, -it * ip * (target_at(r, j) - through_norm));
    }
    return -pt * ip * it;
}

double mf_loss_row_value(const mf_loss_row *r)
{
    switch (r->function) {
    case MF_LOSS_CCE:
    case MF_LOSS_CATEGORICAL_FOCAL:
        return categorical_probabilities(r);
    case MF_LOSS_CCE_LOGITS:
        return categorical_logits(r);
    case MF_LOSS_SCCE:
        return sparse_probabilities(r);
    case MF_LOSS_SCCE_LOGITS:
        return sparse_logits(r);
    case MF_LOSS_CATEGORICAL_HINGE:
        return categorical_hinge(r);
    case MF_LOSS_COSINE:
        return cosine(r);
    default:
        return elements(r);
    }
}
