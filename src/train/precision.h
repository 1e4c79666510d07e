/* precision.h: what 16 bits save against float32, or that they save nothing. */
#ifndef MF_TRAIN_PRECISION_H
#define MF_TRAIN_PRECISION_H

#include "model/lower/model_graphs.h"
#include "plan/plan.h"

/* One step as asked, in one piece and without recomputation. */
typedef struct mf_as_asked {
    uint64_t peak_bytes;
    double time_us;
} mf_as_asked;

/* The model's own precision or the one it is given: a "mixed_..." policy, or NULL when it computes in float32. */
const char *mf_precision_in_use(const mf_model_graphs *graphs);
/* Plans the step as asked in `precision`. The plan does not have to fit. */
memfit_status mf_precision_plan(const memfit_host *host, const mf_model_graphs *graphs, const char *precision,
                                const mf_plan_options *options, const mf_cost_source *cost, mf_as_asked *as_asked,
                                memfit_error *err);
/* "mixed_bfloat16 saves 1.20 GiB: ..."; slowdown is the time in `precision` over that in float32. Returns text. */
char *mf_precision_text(const char *precision, uint64_t peak_bytes, uint64_t float32_peak_bytes, double slowdown,
                        char *text, size_t room);

#endif
