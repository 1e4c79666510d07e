/* norm_body.h: see ref_norm.c. */
#include "ops/reference/real.h"

static inline double FN(entry)(const REAL *values, int64_t i, double otherwise)
{
    return values ? (double)values[i] : otherwise;
}

/* y = (x - mean) * gamma / sqrt(variance + epsilon) + beta, through the activation. scratch: factor and offset of each
 * channel. */
static void FN(normalize)(const REAL *x, int64_t rows, int64_t channels, const REAL *gamma, const REAL *beta,
                          const REAL *mean, const REAL *variance, const mf_attr *attr, double *scratch, REAL *y)
{
    double *factor = scratch, *middle = scratch + channels, *offset = scratch + 2 * channels;
    for (int64_t c = 0; c < channels; c++) {
        factor[c] = FN(entry)(gamma, c, 1) / sqrt((double)variance[c] + attr->norm.epsilon);
        middle[c] = (double)mean[c];
        offset[c] = FN(entry)(beta, c, 0);
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < channels; c++) {
            double v = ((double)x[i * channels + c] - middle[c]) * factor[c] + offset[c];
            y[i * channels + c] = (REAL)mf_unary_value(attr->norm.activation, 0, 0, v);
        }
}

KERNEL(batch_norm)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0];
    int64_t channels = x->shape->dim[x->shape->rank - 1], rows = channels ? (int64_t)x->count / channels : 0;
    const REAL *v = x->data;
    REAL *mean = call->out[1].data, *variance = call->out[2].data;
    double *sum = call->scratch, *square = sum + channels;
    for (int64_t c = 0; c < 2 * channels; c++)
        sum[c] = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < channels; c++)
            sum[c] += (double)v[i * channels + c];
    for (int64_t c = 0; c < channels; c++)
        sum[c] /= (double)rows;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < channels; c++) {
            double d = (double)v[i * channels + c] - sum[c];
            square[c] += d * d;
        }
    for (int64_t c = 0; c < channels; c++) {
        mean[c] = (REAL)sum[c];
        variance[c] = (REAL)(square[c] / (double)rows);
    }
    FN(normalize)
    (v, rows, channels, call->in[1].data, call->in[2].data, mean, variance, &call->op->attr, call->scratch,
     call->out[0].data);
    return MEMFIT_OK;
}

KERNEL(batch_norm_infer)
{
    (void)err;
    const mf_ref_arg *x = &call->in[0];
    int64_t channels = x->shape->dim[x->shape->rank - 1], rows = channels ? (int64_t)x->count / channels : 0;
    FN(normalize)
    (x->data, rows, channels, call->in[1].data, call->in[2].data, call->in[3].data, call->in[4].data, &call->op->attr,
     call->scratch, call->out[0].data);
    return MEMFIT_OK;
}

/* Both gradients: with given statistics (infer) they are constants, otherwise functions of x. */
static void FN(batch_norm_back)(mf_ref_call *call, bool infer)
{
    const mf_ref_arg *x = &call->in[1];
    int64_t channels = x->shape->dim[x->shape->rank - 1], rows = channels ? (int64_t)x->count / channels : 0;
    const REAL *dy = call->in[0].data, *v = x->data, *mean = call->in[2].data, *variance = call->in[3].data;
    const REAL *gamma = call->in_count > 4 ? call->in[4].data : NULL;
    double *rstd = call->scratch, *sum = rstd + channels, *product = sum + channels;
    for (int64_t c = 0; c < channels; c++) {
        rstd[c] = 1 / sqrt((double)variance[c] + call->op->attr.norm.epsilon);
        sum[c] = product[c] = 0;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < channels; c++) {
            double d = (double)dy[i * channels + c];
            sum[c] += d;
            product[c] += d * ((double)v[i * channels + c] - (double)mean[c]) * rstd[c];
        }
    REAL *dx = call->out[0].data;
    for (int64_t i = 0; dx && i < rows; i++)
        for (int64_t c = 0; c < channels; c++) {
            double xh = ((double)v[i * channels + c] - (double)mean[c]) * rstd[c], d = (double)dy[i * channels + c];
            if (!infer)
                d -= (sum[c] + xh * product[c]) / (double)rows;
            dx[i * channels + c] = (REAL)(FN(entry)(gamma, c, 1) * rstd[c] * d);
        }
    REAL *dgamma = call->out_count > 1 ? call->out[1].data : NULL;
    REAL *dbeta = call->out_count > 2 ? call->out[2].data : NULL;
    for (int64_t c = 0; c < channels; c++) {
        if (dgamma)
            dgamma[c] = (REAL)product[c];
        if (dbeta)
            dbeta[c] = (REAL)sum[c];
    }
}

KERNEL(batch_norm_grad)
{
    (void)err;
    FN(batch_norm_back)(call, false);
    return MEMFIT_OK;
}

KERNEL(batch_norm_infer_grad)
{
    (void)err;
    FN(batch_norm_back)(call, true);
    return MEMFIT_OK;
}

KERNEL(moving_average)
{
    (void)err;
    const REAL *value = call->in[0].data, *state = call->in[1].data;
    REAL *out = call->out[0].data;
    double m = call->op->attr.moving.momentum;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        out[i] = call->recomputed ? state[i] : (REAL)(m * (double)state[i] + (1 - m) * (double)value[i]);
    return MEMFIT_OK;
}

/* Mean and 1/deviation of a set. */
static void FN(set_moments)(const norm_sets *n, const REAL *x, const mf_attr *attr, double *mean, double *rstd)
{
    double sum = 0, square = 0, count = (double)(n->positions * n->width);
    for (int64_t p = 0; !attr->norm.rms && p < n->positions; p++)
        for (int64_t c = 0; c < n->width; c++)
            sum += (double)x[p * n->position_step + c];
    *mean = sum / count;
    for (int64_t p = 0; p < n->positions; p++)
        for (int64_t c = 0; c < n->width; c++) {
            double d = (double)x[p * n->position_step + c] - *mean;
            square += d * d;
        }
    *rstd = 1 / sqrt(square / count + attr->norm.epsilon);
}

KERNEL(layer_norm)
{
    (void)err;
    norm_sets n = sets_of(&call->op->attr, call->in[0].shape);
    const REAL *gamma = call->in[1].data, *beta = call->in[2].data;
    for (int64_t s = 0; s < n.sets; s++) {
        int64_t start = set_start(&n, s), entry = set_entry(&n, s);
        const REAL *x = (const REAL *)call->in[0].data + start;
        REAL *y = (REAL *)call->out[0].data + start;
        double mean, rstd;
        FN(set_moments)(&n, x, &call->op->attr, &mean, &rstd);
        for (int64_t p = 0; p < n.positions; p++)
            for (int64_t c = 0; c < n.width; c++) {
                int64_t i = p * n.position_step + c;
                y[i] = (REAL)(((double)x[i] - mean) * rstd * FN(entry)(gamma, entry + c, 1) +
                              FN(entry)(beta, entry + c, 0));
            }
        if (call->out_count > 1 && call->out[1].data)
            ((REAL *)call->out[1].data)[s] = (REAL)mean;
        if (call->out_count > 2 && call->out[2].data)
            ((REAL *)call->out[2].data)[s] = (REAL)rstd;
    }
    return MEMFIT_OK;
}

/* One set: dx (may be NULL), and its part of dgamma and dbeta. */
static void FN(set_back)(const norm_sets *n, const REAL *dy, const REAL *x, double mean, double rstd, bool rms,
                         const REAL *gamma, double *dgamma, double *dbeta, REAL *dx)
{
    double sum = 0, product = 0, count = (double)(n->positions * n->width);
    for (int64_t p = 0; p < n->positions; p++)
        for (int64_t c = 0; c < n->width; c++) {
            int64_t i = p * n->position_step + c;
            double xh = ((double)x[i] - mean) * rstd, d = (double)dy[i], g = d * FN(entry)(gamma, c, 1);
            sum += g;
            product += g * xh;
            dgamma[c] += d * xh;
            dbeta[c] += d;
        }
    for (int64_t p = 0; dx && p < n->positions; p++)
        for (int64_t c = 0; c < n->width; c++) {
            int64_t i = p * n->position_step + c;
            double xh = ((double)x[i] - mean) * rstd, g = (double)dy[i] * FN(entry)(gamma, c, 1);
            dx[i] = (REAL)(rstd * (g - (rms ? 0 : sum / count) - xh * product / count));
        }
}

KERNEL(layer_norm_grad)
{
    (void)err;
    norm_sets n = sets_of(&call->op->attr, call->in[1].shape);
    const REAL *mean = call->in[2].data, *rstd = call->in[3].data;
    const REAL *gamma = call->in_count > 4 ? call->in[4].data : NULL;
    double *dgamma = call->scratch, *dbeta = dgamma + n.entries;
    for (int64_t i = 0; i < 2 * n.entries; i++)
        dgamma[i] = 0;
    for (int64_t s = 0; s < n.sets; s++) {
        int64_t start = set_start(&n, s), entry = set_entry(&n, s);
        FN(set_back)
        (&n, (const REAL *)call->in[0].data + start, (const REAL *)call->in[1].data + start, FN(entry)(mean, s, 0),
         (double)rstd[s], call->op->attr.norm.rms, gamma ? gamma + entry : NULL, dgamma + entry, dbeta + entry,
         call->out[0].data ? (REAL *)call->out[0].data + start : NULL);
    }
    for (int64_t i = 0; i < n.entries; i++) {
        if (call->out_count > 1 && call->out[1].data)
            ((REAL *)call->out[1].data)[i] = (REAL)dgamma[i];
        if (call->out_count > 2 && call->out[2].data)
            ((REAL *)call->out[2].data)[i] = (REAL)dbeta[i];
    }
    return MEMFIT_OK;
}
