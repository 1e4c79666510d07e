/* trace_plan.h: the place of a question without a model: memfit_plan_trace asks about a card alone. */
#ifndef MF_ANSWER_TRACE_PLAN_H
#define MF_ANSWER_TRACE_PLAN_H

#include "memfit/plan.h"
#include "plan/frameworks/frameworks.h"

/* The card that the options name, as other programs find it. INVALID when they name none. */
memfit_status mf_plan_find_place(const memfit_plan_options *options, mf_framework_place *place, char *title,
                                 size_t bytes, memfit_error *err);

#endif
