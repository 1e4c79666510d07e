/*
 * precision.c: a step in 16 bits against the same step in float32. Devices that do not compute in 16 bits widen them
 * into workspace around each operation, so the saving can be small or negative: both are planned and compared.
 */
#include "train/precision.h"

#include "plan/fit/fit.h"

#include <stdio.h>
#include <string.h>

const char *mf_precision_in_use(const mf_model_graphs *graphs)
{
    const char *precision = graphs->options.precision ? graphs->options.precision : graphs->model->dtype_policy;
    return precision && strncmp(precision, "mixed_", 6) == 0 ? precision : NULL;
}

memfit_status mf_precision_plan(const memfit_host *host, const mf_model_graphs *graphs, const char *precision,
                                const mf_plan_options *options, const mf_cost_source *cost, mf_as_asked *as_asked,
                                memfit_error *err)
{
    mf_model_graphs wanted = *graphs;
    mf_graph_source source;
    mf_fitter fitter;
    wanted.options.precision = precision;
    mf_model_graph_source(&wanted, &source);
    mf_fitter_init(&fitter, host, &source, options, cost);
    mf_way way = {.batch = options->batch, .pieces = 1, .limit_bytes = options->limit_bytes};
    mf_plan *plan = NULL;
    memfit_status status = mf_fitter_try(&fitter, &way, &plan, err);
    if (status == MEMFIT_OK)
        *as_asked = (mf_as_asked){plan->peak_bytes, plan->time_us};
    mf_plan_destroy(plan);
    mf_fitter_free(&fitter);
    return status;
}

/* Savings below this share of the peak are called none: plans of two graphs differ by as much without a reason. */
enum { LEAST_SAVING_PERCENT = 5 };

char *mf_precision_text(const char *precision, uint64_t peak_bytes, uint64_t float32_peak_bytes, double slowdown,
                        char *text, size_t room)
{
    char wide[24], own[24], saved[24];
    memfit_size_format(float32_peak_bytes, wide, sizeof wide);
    memfit_size_format(peak_bytes, own, sizeof own);
    uint64_t less = float32_peak_bytes > peak_bytes ? float32_peak_bytes - peak_bytes : 0;
    if (less && less * 100 >= float32_peak_bytes * LEAST_SAVING_PERCENT)
        snprintf(text, room, "%s saves %s: %s as asked, in float32 %s; estimated at %.2f times its time", precision,
                 memfit_size_format(less, saved, sizeof saved), own, wide, slowdown);
    else
        snprintf(text, room, "%s is not worth it here: %s as asked, in float32 %s; estimated at %.2f times its time",
                 precision, own, wide, slowdown);
    return text;
}
