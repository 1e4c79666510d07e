/* schedule.c: see schedule.h. Formulas of keras.optimizers.schedules. */
#include "train/schedule.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

memfit_status mf_schedule_read(const mf_json *json, double fallback, mf_schedule *s, memfit_error *err)
{
    static const struct {
        const char *name;
        mf_rate_kind kind;
    } known[] = {{"ExponentialDecay", MF_RATE_EXPONENTIAL},        {"InverseTimeDecay", MF_RATE_INVERSE_TIME},
                 {"PolynomialDecay", MF_RATE_POLYNOMIAL},          {"CosineDecay", MF_RATE_COSINE},
                 {"CosineDecayRestarts", MF_RATE_COSINE_RESTARTS}, {"PiecewiseConstantDecay", MF_RATE_PIECEWISE}};
    *s = (mf_schedule){.kind = MF_RATE_CONSTANT, .initial = fallback};
    if (mf_json_is_null(json))
        return MEMFIT_OK;
    if (json->type == MF_JSON_NUMBER) {
        s->initial = json->number;
        return MEMFIT_OK;
    }
    const char *name = mf_json_get_string(json, "class_name", "?");
    const mf_json *c = mf_json_get(json, "config");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) != 0)
            continue;
        *s = (mf_schedule){.kind = known[i].kind,
                           .initial = mf_json_get_number(c, "initial_learning_rate", fallback),
                           .rate = mf_json_get_number(c, "decay_rate", 0.96),
                           .steps = mf_json_get_number(c, "decay_steps", mf_json_get_number(c, "first_decay_steps", 1)),
                           .end = mf_json_get_number(c, "end_learning_rate", 1e-4),
                           .power = mf_json_get_number(c, "power", 1),
                           .alpha = mf_json_get_number(c, "alpha", 0),
                           .t_mul = mf_json_get_number(c, "t_mul", 2),
                           .m_mul = mf_json_get_number(c, "m_mul", 1),
                           .warmup = !mf_json_is_null(mf_json_get(c, "warmup_target")),
                           .warmup_target = mf_json_get_number(c, "warmup_target", 0),
                           .warmup_steps = mf_json_get_number(c, "warmup_steps", 0),
                           .staircase = mf_json_get_bool(c, "staircase", false),
                           .cycle = mf_json_get_bool(c, "cycle", false),
                           .boundaries = mf_json_get(c, "boundaries"),
                           .values = mf_json_get(c, "values")};
        if (s->kind != MF_RATE_PIECEWISE && !(s->steps > 0))
            return mf_fail(err, MEMFIT_DAMAGED,
                           "the learning-rate schedule %s has decay_steps %g: it must be more than 0\n"
                           "set a rate with --learning-rate",
                           name, s->steps);
        return MEMFIT_OK;
    }
    return mf_fail(err, MEMFIT_UNSUPPORTED,
                   "the learning-rate schedule %s is not known\nset a rate with --learning-rate", name);
}

static double cosine(const mf_schedule *s, double step)
{
    double from = s->initial;
    if (s->warmup) {
        if (step < s->warmup_steps)
            return s->initial + (s->warmup_target - s->initial) * step / s->warmup_steps;
        step -= s->warmup_steps;
        from = s->warmup_target;
    }
    double t = fmin(step, s->steps) / s->steps;
    return from * ((1 - s->alpha) * 0.5 * (1 + cos(M_PI * t)) + s->alpha);
}

static double restarts(const mf_schedule *s, double step)
{
    double done = step / s->steps, cycles = 0;
    if (s->t_mul == 1) {
        cycles = floor(done);
        done -= cycles;
    } else {
        cycles = floor(log(1 - done * (1 - s->t_mul)) / log(s->t_mul));
        double sum = (1 - pow(s->t_mul, cycles)) / (1 - s->t_mul);
        done = (done - sum) / pow(s->t_mul, cycles);
    }
    double m = pow(s->m_mul, cycles);
    return s->initial * ((1 - s->alpha) * 0.5 * m * (1 + cos(M_PI * done)) + s->alpha);
}

static double polynomial(const mf_schedule *s, double step)
{
    double steps = s->steps;
    if (s->cycle)
        steps *= step == 0 ? 1 : ceil(step / steps);
    else
        step = fmin(step, steps);
    return (s->initial - s->end) * pow(1 - step / steps, s->power) + s->end;
}

static double piecewise(const mf_schedule *s, double step)
{
    size_t i = 0;
    for (const mf_json *b = s->boundaries ? s->boundaries->first : NULL; b && step > b->number; b = b->next)
        i++;
    return mf_json_number(mf_json_at(s->values, i), s->initial);
}

double mf_schedule_at(const mf_schedule *s, uint64_t iteration)
{
    double step = (double)iteration, p = s->steps > 0 ? step / s->steps : 0;
    if (s->staircase)
        p = floor(p);
    switch (s->kind) {
    case MF_RATE_EXPONENTIAL:
        return s->initial * pow(s->rate, p);
    case MF_RATE_INVERSE_TIME:
        return s->initial / (1 + s->rate * p);
    case MF_RATE_POLYNOMIAL:
        return polynomial(s, step);
    case MF_RATE_COSINE:
        return cosine(s, step);
    case MF_RATE_COSINE_RESTARTS:
        return restarts(s, step);
    case MF_RATE_PIECEWISE:
        return piecewise(s, step);
    default:
        return s->initial;
    }
}
