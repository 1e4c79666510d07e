/*
 * say_precision.c: what 16 bits save, or that they do not, said before a training is under way. It takes plans of its
 * own, as asked and without a limit: the one to be admitted may be bent by it.
 */
#include "base/error.h"
#include "plan/answer.h"
#include "train/trainer.h"

#include <string.h>

memfit_status mf_trainer_say_precision(mf_trainer *t, memfit_error *err)
{
    const char *precision = t->graphs.options.precision ? t->graphs.options.precision : t->model->dtype_policy;
    if (t->mode != MF_MODE_TRAIN || !t->options->note || !precision || strncmp(precision, "mixed_", 6) != 0)
        return MEMFIT_OK;
    mf_question q = {.model = t->model, .lower = t->graphs.options, .cost = t->cost};
    mf_plan_options_default(&q.plan);
    q.plan.batch = t->batch;
    q.plan.limit_bytes = (uint64_t)1 << 60; /* none: as asked */
    q.plan.with_validation = q.plan.with_prediction = false;
    mf_answer *answer;
    memfit_status status = mf_answer_make(t->host, &q, &answer, err);
    if (status != MEMFIT_OK) /* whatever stands in its way is said where the plan to be used is made */
        return status == MEMFIT_NO_HOST_MEMORY ? status : MEMFIT_OK;
    char text[200];
    if (answer->float32_peak_bytes)
        mf_log_write(&t->log, MF_LOG_NOTE, "%s (without the fixed cost)", mf_precision_text(answer, text, sizeof text));
    mf_trainer_note_start(t);
    mf_answer_destroy(answer);
    return MEMFIT_OK;
}
