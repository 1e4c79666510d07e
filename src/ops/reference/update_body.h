/* update_body.h: see ref_update.c. */
#include "ops/reference/real.h"

#include "ops/reference/update_rule.h"

/* Lamb: Adam's direction, scaled by the norms of parameter and direction. */
static void FN(lamb)(const FN(rule) * r, REAL *w, const REAL *g, REAL *m, REAL *v, uint64_t n)
{
    double w_square = 0, step_square = 0;
    double c1 = (double)(REAL)(1 - r->power_1), c2 = (double)(REAL)(1 - r->power_2);
    for (uint64_t i = 0; i < n; i++) {
        REAL *s[4] = {m + i, v + i};
        FN(moments)(r, (double)g[i], s);
        w_square += square((double)w[i]);
        step_square += square((double)m[i] / c1 / (sqrt((double)v[i] / c2) + r->a->epsilon));
    }
    double ratio = w_square > 0 && step_square > 0 ? sqrt(w_square / step_square) : 1;
    for (uint64_t i = 0; i < n; i++)
        w[i] = (REAL)((double)w[i] - ratio * r->rate * ((double)m[i] / c1) / (sqrt((double)v[i] / c2) + r->a->epsilon));
}

/* Adafactor's second moment of a matrix (the last two axes), kept as means of its rows and columns. */
static void FN(factored)(double beta, double epsilon, const REAL *g, REAL *rows, REAL *columns, REAL *v, int64_t m,
                         int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < m; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += square((double)g[i * n + j]) + epsilon;
        rows[i] = (REAL)(beta * (double)rows[i] + (1 - beta) * sum / (double)n);
        total += (double)rows[i];
    }
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t i = 0; i < m; i++)
            sum += square((double)g[i * n + j]) + epsilon;
        columns[j] = (REAL)(beta * (double)columns[j] + (1 - beta) * sum / (double)m);
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            v[i * n + j] = (REAL)((double)rows[i] / (total / (double)m) * (double)columns[j]);
}

static void FN(adafactor)(const FN(rule) * r, REAL *w, const REAL *g, const mf_ref_arg *slots, const mf_shape *shape)
{
    const mf_update_attr *a = r->a;
    double root = 1 / sqrt(r->t), rate = a->relative_step != 0 ? fmin(r->rate, root) : r->rate;
    double beta = 1 - FN(power)(r->t, a->beta_2), weight = 0, step = 0;
    uint64_t count = mf_shape_count(shape);
    REAL *v = slots[2].data;
    if (shape->rank >= 2) {
        int64_t m = shape->dim[shape->rank - 2], n = shape->dim[shape->rank - 1];
        for (int64_t k = 0; k < (int64_t)count / (m * n); k++)
            FN(factored)
        (beta, a->epsilon, g + k * m * n, (REAL *)slots[0].data + k * m, (REAL *)slots[1].data + k * n, v + k * m * n,
         m, n);
    } else
        for (uint64_t i = 0; i < count; i++)
            v[i] = (REAL)(beta * (double)v[i] + (1 - beta) * (square((double)g[i]) + a->epsilon));
    /* Where a row and a column have no gradient, as of a pixel that is always black and a unit that is off, v is below
     * the smallest float and 0: no gradient is no step then (in Keras all weights of the layer become NaN). */
    for (uint64_t i = 0; i < count; i++) {
        weight += square((double)w[i]);
        step += g[i] == 0 ? 0 : square((double)g[i]) / (double)v[i];
    }
    double alpha = fmax(a->epsilon_2, sqrt(weight / (double)count)) * fmin(rate, root);
    double clip = fmax(1, sqrt(step / (double)count) / a->clip_threshold);
    for (uint64_t i = 0; i < count; i++)
        w[i] = g[i] == 0 ? w[i] : (REAL)((double)w[i] - alpha * (double)g[i] / sqrt((double)v[i]) / clip);
}

static bool FN(is_set)(const mf_ref_call *call, uint32_t flag)
{
    return call->in_count > flag && call->in[flag].data && *(const REAL *)call->in[flag].data != 0;
}

KERNEL(update)
{
    (void)err;
    uint32_t slots = call->out_count - 1;
    for (uint32_t i = 0; i < call->out_count; i++) { /* in place, whatever the caller did */
        const mf_ref_arg *from = &call->in[i == 0 ? 0 : i + 1];
        if (call->out[i].data && from->data)
            memmove(call->out[i].data, from->data, from->count * sizeof(REAL));
    }
    if (FN(is_set)(call, 2 + slots))
        return MEMFIT_OK;
    FN(rule) r = FN(rule_of)(call);
    REAL *w = call->out[0].data;
    const REAL *g = call->in[1].data;
    uint64_t n = call->out[0].count;
    for (uint64_t i = 0; r.a->has_weight_decay && i < n; i++)
        w[i] = (REAL)((double)w[i] - (double)w[i] * r.a->weight_decay * r.rate);
    if (r.a->optimizer == MF_OPTIMIZER_LAMB)
        FN(lamb)(&r, w, g, call->out[1].data, call->out[2].data, n);
    else if (r.a->optimizer == MF_OPTIMIZER_ADAFACTOR)
        FN(adafactor)(&r, w, g, &call->out[1], call->out[0].shape);
    else
        for (uint64_t i = 0; i < n; i++) {
            REAL *s[4] = {NULL};
            for (uint32_t j = 0; j < slots && j < 4; j++)
                s[j] = call->out[1 + j].data ? (REAL *)call->out[1 + j].data + i : NULL;
            w[i] = (REAL)FN(one_element)(&r, (double)w[i], (double)g[i], s);
        }
    if (r.a->optimizer == MF_OPTIMIZER_NADAM && slots > 2) /* for the file: computed from t, never read */
        *(REAL *)call->out[3].data = (REAL)r.product;
    return MEMFIT_OK;
}

KERNEL(ema)
{
    (void)err;
    const REAL *param = call->in[0].data, *average = call->in[1].data;
    REAL *out = call->out[0].data;
    bool skip = FN(is_set)(call, 2);
    double m = call->scalars->iteration == 0 ? 0 : call->op->attr.ema.momentum;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        out[i] = skip ? average[i] : (REAL)(m * (double)average[i] + (1 - m) * (double)param[i]);
    return MEMFIT_OK;
}

static double FN(sum_of_squares)(const REAL *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += square((double)x[i]);
    return sum;
}

KERNEL(clip)
{
    (void)err;
    const REAL *g = call->in[0].data;
    REAL *out = call->out[0].data;
    double value = call->op->attr.clip.value, limit = call->op->attr.clip.norm, factor = 1;
    if (limit > 0)
        factor = limit / fmax(sqrt(FN(sum_of_squares)(g, call->in[0].count)), limit);
    for (uint64_t i = 0; i < call->out[0].count; i++) {
        double v = (double)g[i] * factor;
        out[i] = (REAL)(value > 0 ? (v < -value ? -value : v > value ? value : v) : v);
    }
    return MEMFIT_OK;
}

KERNEL(square_sum)
{
    (void)err;
    double sum = 0;
    for (uint32_t i = 0; i < call->in_count; i++)
        sum += call->in[i].data ? FN(sum_of_squares)(call->in[i].data, call->in[i].count) : 0;
    *(REAL *)call->out[0].data = (REAL)sum;
    return MEMFIT_OK;
}

KERNEL(clip_global)
{
    (void)err;
    const REAL *g = call->in[0].data;
    REAL *out = call->out[0].data;
    double norm = sqrt((double)*(const REAL *)call->in[1].data), limit = call->op->attr.clip.norm;
    double factor = limit > 0 ? limit / fmax(norm, limit) : 1;
    for (uint64_t i = 0; i < call->out[0].count; i++)
        out[i] = (REAL)((double)g[i] * factor);
    return MEMFIT_OK;
}

KERNEL(check_finite)
{
    (void)err;
    const REAL *g = call->in[0].data;
    REAL *out = call->out_count > 1 ? call->out[1].data : NULL;
    bool bad = *(const REAL *)call->in[1].data != 0;
    double scale = mf_scalars_unscale(call->scalars);
    for (uint64_t i = 0; i < call->in[0].count; i++) {
        bad = bad || !isfinite((double)g[i]);
        if (out)
            out[i] = (REAL)((double)g[i] / scale);
    }
    *(REAL *)call->out[0].data = bad;
    return MEMFIT_OK;
}
