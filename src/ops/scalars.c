/* scalars.c: what a step leaves in the scalars (ops.h). A backend on a card has a kernel that does the same. */
#include "ops/ops.h"

#include <math.h>

enum { GOOD_STEPS = 2000 };

/* The update was left out: half the scale, and the step's random numbers once more. */
static void overflowed(mf_run_scalars *s)
{
    s->loss_scale = fmax(s->loss_scale / 2, 1);
    s->good_steps = 0;
}

static void counted(mf_run_scalars *s, bool scales)
{
    s->step++;
    s->iteration = s->step / (s->group_steps ? s->group_steps : 1);
    if (scales && ++s->good_steps >= GOOD_STEPS) {
        s->loss_scale *= 2;
        s->good_steps = 0;
    }
}

memfit_status mf_scalars_end_step(mf_backend *backend, const mf_step_end *end, mf_stream stream, memfit_error *err)
{
    (void)backend, (void)stream, (void)err;
    mf_run_scalars *s = end->scalars;
    s->loss = (double)*end->loss;
    if (!end->learns) {
        s->seen_sum += s->loss * s->batch_samples;
        s->seen_weight += s->batch_samples;
        return MEMFIT_OK;
    }
    bool overflow = end->overflow && *end->overflow != 0;
    s->steps++;
    if (isfinite(s->loss)) {
        s->loss_sum += s->loss * s->batch_samples;
        s->loss_weight += s->batch_samples;
    } else if (!overflow && !s->diverged_at) {
        s->diverged_at = s->steps;
        s->diverged_loss = s->loss;
    }
    if (overflow)
        overflowed(s);
    else
        counted(s, end->overflow != NULL);
    return MEMFIT_OK;
}
