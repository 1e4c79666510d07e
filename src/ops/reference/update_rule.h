/* update_rule.h: what one element's update is, for every optimizer; included (without guard) with REAL and FN defined.
 * The CUDA backend compiles this text too, so it keeps to what C and C++ share. */
/* The constants of one update. */
typedef struct FN(rule) {
    const mf_update_attr *a;
    double rate, t, alpha, power_1, power_2;
    double u, u_next, product, product_next; /* nadam */
} FN(rule);

static double FN(power)(double base, double t)
{
#if REF_DOUBLE
    return pow(base, t);
#else
    return (double)powf((float)base, (float)t);
#endif
}

static FN(rule) FN(rule_of)(const mf_ref_call *call)
{
    const mf_update_attr *a = &call->op->attr.update;
    FN(rule)
    r = {.a = a, .rate = (double)(REAL)call->scalars->learning_rate, .t = (double)call->scalars->iteration + 1};
    r.power_1 = FN(power)(a->beta_1, r.t);
    r.power_2 = FN(power)(a->beta_2, r.t);
    r.alpha = r.rate * sqrt((double)(REAL)(1 - r.power_2)) / (double)(REAL)(1 - r.power_1);
    if (a->optimizer == MF_OPTIMIZER_NADAM) {
        r.u = a->beta_1 * (1 - 0.5 * pow(0.96, r.t));
        r.u_next = a->beta_1 * (1 - 0.5 * pow(0.96, r.t + 1));
        r.product = nadam_product(a->beta_1, r.t);
        r.product_next = r.product * r.u_next;
    }
    return r;
}

static double FN(sgd)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    if (!s[0])
        return w - r->rate * g;
    double m = *s[0] = (REAL)(r->a->momentum * (double)*s[0] - r->rate * g);
    return r->a->nesterov ? w + r->a->momentum * m - r->rate * g : w + m;
}

static double FN(rmsprop)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    const mf_update_attr *a = r->a;
    REAL *momentum = a->momentum > 0 ? s[1] : NULL, *average = a->centered ? s[a->momentum > 0 ? 2 : 1] : NULL;
    double v = *s[0] = (REAL)(a->rho * (double)*s[0] + (1 - a->rho) * g * g);
    if (average) {
        *average = (REAL)(a->rho * (double)*average + (1 - a->rho) * g);
        v -= square((double)*average);
    }
    double step = r->rate * g / sqrt(v + a->epsilon);
    if (!momentum)
        return w - step;
    *momentum = (REAL)(a->momentum * (double)*momentum + step);
    return w - (double)*momentum;
}

static void FN(moments)(const FN(rule) * r, double g, REAL *s[4])
{
    *s[0] = (REAL)((double)*s[0] + (g - (double)*s[0]) * (1 - r->a->beta_1));
    *s[1] = (REAL)((double)*s[1] + (g * g - (double)*s[1]) * (1 - r->a->beta_2));
}

static double FN(adam)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    FN(moments)(r, g, s);
    double v = (double)*s[1];
    if (r->a->amsgrad && s[2])
        v = *s[2] = (REAL)fmax((double)*s[2], v);
    return w - (double)*s[0] * r->alpha / (sqrt(v) + r->a->epsilon);
}

static double FN(nadam)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    FN(moments)(r, g, s);
    double m = r->u_next * (double)*s[0] / (1 - r->product_next) + (1 - r->u) * g / (1 - r->product);
    double v = (double)*s[1] / (double)(REAL)(1 - r->power_2);
    return w - m * r->rate / (sqrt(v) + r->a->epsilon);
}

static double FN(adamax)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    *s[0] = (REAL)((double)*s[0] + (g - (double)*s[0]) * (1 - r->a->beta_1));
    *s[1] = (REAL)fmax(r->a->beta_2 * (double)*s[1], fabs(g));
    return w - r->rate * (double)*s[0] / ((double)(REAL)(1 - r->power_1) * ((double)*s[1] + r->a->epsilon));
}

static double FN(adadelta)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    double rho = r->a->rho, e = r->a->epsilon;
    *s[0] = (REAL)(rho * (double)*s[0] + (1 - rho) * g * g);
    double delta = -sqrt((double)*s[1] + e) * g / sqrt((double)*s[0] + e);
    *s[1] = (REAL)(rho * (double)*s[1] + (1 - rho) * delta * delta);
    return w + r->rate * delta;
}

static double FN(lion)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    double m = (double)*s[0], direction = m * r->a->beta_1 + g * (1 - r->a->beta_1);
    *s[0] = (REAL)(m * r->a->beta_2 + g * (1 - r->a->beta_2));
    return w - r->rate * ((direction > 0) - (direction < 0));
}

static double FN(ftrl)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    const mf_update_attr *a = r->a;
    double power = -a->learning_rate_power, l2 = a->l2 + a->beta / (2 * r->rate), before = (double)*s[0];
    double after = before + g * g, used = g + 2 * a->l2_shrinkage * w;
    double linear = (double)*s[1] + used - (pow(after, power) - pow(before, power)) / r->rate * w;
    double quadratic = pow(after, power) / r->rate + 2 * l2, clipped = fmin(fmax(linear, -a->l1), a->l1);
    *s[0] = (REAL)after;
    *s[1] = (REAL)linear;
    return (clipped - linear) / quadratic;
}

static double FN(one_element)(const FN(rule) * r, double w, double g, REAL *s[4])
{
    switch (r->a->optimizer) {
    case MF_OPTIMIZER_SGD:
        return FN(sgd)(r, w, g, s);
    case MF_OPTIMIZER_RMSPROP:
        return FN(rmsprop)(r, w, g, s);
    case MF_OPTIMIZER_ADAM:
    case MF_OPTIMIZER_ADAMW:
        return FN(adam)(r, w, g, s);
    case MF_OPTIMIZER_NADAM:
        return FN(nadam)(r, w, g, s);
    case MF_OPTIMIZER_ADAMAX:
        return FN(adamax)(r, w, g, s);
    case MF_OPTIMIZER_ADAGRAD:
        *s[0] = (REAL)((double)*s[0] + g * g);
        return w - r->rate * g / sqrt((double)*s[0] + r->a->epsilon);
    case MF_OPTIMIZER_ADADELTA:
        return FN(adadelta)(r, w, g, s);
    case MF_OPTIMIZER_LION:
        return FN(lion)(r, w, g, s);
    case MF_OPTIMIZER_FTRL:
        return FN(ftrl)(r, w, g, s);
    default:
        return w;
    }
}
