/*
 * say_precision.c: prints before a training starts what 16 bits save, or that they save nothing. It makes plans of its
 * own, as asked and without a limit, because a limit may have bent the plan to be admitted.
 */
#include "base/error.h"
#include "train/precision.h"
#include "train/trainer.h"

memfit_status mf_trainer_say_precision(mf_trainer *t, memfit_error *err)
{
    const char *precision = mf_precision_in_use(&t->graphs);
    if (t->mode != MF_MODE_TRAIN || !t->options->note || !precision)
        return MEMFIT_OK;
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = t->batch;
    options.limit_bytes = (uint64_t)1 << 60; /* none: as asked */
    options.with_validation = options.with_prediction = false;
    mf_as_asked own, wide;
    memfit_status status = mf_precision_plan(t->host, &t->graphs, precision, &options, &t->cost, &own, err);
    if (status == MEMFIT_OK)
        status = mf_precision_plan(t->host, &t->graphs, "float32", &options, &t->cost, &wide, err);
    if (status != MEMFIT_OK) /* what stands in its way is reported where the plan to be used is made */
        return status == MEMFIT_NO_HOST_MEMORY ? status : MEMFIT_OK;
    char text[200];
    mf_precision_text(precision, own.peak_bytes, wide.peak_bytes, wide.time_us > 0 ? own.time_us / wide.time_us : 1,
                      text, sizeof text);
    mf_log_write(&t->log, MF_LOG_NOTE, "%s (without the fixed cost)", text);
    mf_trainer_note_start(t);
    return MEMFIT_OK;
}
