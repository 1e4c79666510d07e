/* plan_kept.h: plans kept in files: --save, --diff and --baseline of memfit plan. */
#ifndef MF_CLI_PLAN_KEPT_H
#define MF_CLI_PLAN_KEPT_H

#include "cli/cli.h"
#include "memfit/plan.h"

/* The plan's JSON object behind a format and a version. */
memfit_status cli_plan_save(const memfit_plan *plan, const char *path, memfit_error *err);
/* What changed since: whole, then by layer; nothing is printed when nothing did. */
memfit_status cli_plan_diff(const memfit_plan *plan, const char *path, bool json, memfit_error *err);
/* Is the plan's peak within `tolerance` (0.02: 2 %) of the kept one's? With a runtime given to both, the band's upper
 * end there; else memfit's own peak. */
memfit_status cli_plan_within(const memfit_plan *plan, const char *path, double tolerance, bool *within,
                              memfit_error *err);

#endif
