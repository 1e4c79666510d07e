/* run_story.h: what `memfit run` tells about requests that the limit refused. */
#ifndef MF_CLI_RUN_STORY_H
#define MF_CLI_RUN_STORY_H

#include "base/json.h"
#include "memfit/run.h"

/* The story: of the last request that was refused for good if the program failed; one line for each that got it later. */
void cli_tell_denials(const memfit_run *run, const memfit_run_result *result);
/* Of a program that failed for lack of memory without a refusal of ours: who held what when most was held. */
void cli_tell_held(const memfit_run_result *result);
/* "held_bytes": ..., "held": [...] */
void cli_put_held(mf_json_writer *w, const memfit_run_result *result);
/* "denied": [...] */
void cli_put_denials(mf_json_writer *w, const memfit_run *run, const memfit_run_result *result);

#endif
