/* schedule.h: learning rates that change with the iteration, as Keras's schedules define them. */
#ifndef MF_TRAIN_SCHEDULE_H
#define MF_TRAIN_SCHEDULE_H

#include "base/json.h"

typedef enum {
    MF_RATE_CONSTANT,
    MF_RATE_EXPONENTIAL,
    MF_RATE_INVERSE_TIME,
    MF_RATE_POLYNOMIAL,
    MF_RATE_COSINE,
    MF_RATE_COSINE_RESTARTS,
    MF_RATE_PIECEWISE
} mf_rate_kind;

typedef struct mf_schedule {
    mf_rate_kind kind;
    double initial, rate, steps, end, power, alpha, t_mul, m_mul;
    double warmup_target, warmup_steps;
    bool staircase, cycle, warmup;
    const mf_json *boundaries, *values;
} mf_schedule;

/* From an optimizer's "learning_rate": a number or a schedule object. UNSUPPORTED names an unknown one. */
memfit_status mf_schedule_read(const mf_json *learning_rate, double fallback, mf_schedule *schedule, memfit_error *err);
double mf_schedule_at(const mf_schedule *schedule, uint64_t iteration);

#endif
