/* plan_trace.h: `memfit plan` asked about a recorded step instead of a model. */
#ifndef MF_CLI_PLAN_TRACE_H
#define MF_CLI_PLAN_TRACE_H

#include "cli/cli.h"
#include "memfit/plan.h"

/* By its first bytes: a memfit trace, or the CSV form. */
bool cli_is_trace(const char *path);
int cli_plan_trace(const cli_common *common, const char *path, const memfit_plan_options *options);

#endif
