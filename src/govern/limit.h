/* limit.h: what `memfit run` does for a limit: the share's file, the library that is loaded into the program. */
#ifndef MF_GOVERN_LIMIT_H
#define MF_GOVERN_LIMIT_H

#include "govern/share.h"
#include "memfit/run.h"

typedef struct mf_limit {
    mf_share share;
    uint64_t bytes;
    char folder[128], path[160]; /* the share's */
    char library[4096];
} mf_limit;

/* NOT_FOUND without the library, UNSUPPORTED for a command it cannot be loaded into, IO when there is no place for the
 * share. `library` NULL: looked for beside this program, then in ../lib. */
memfit_status mf_limit_begin(mf_limit *limit, uint64_t bytes, const char *library, const char *command,
                             memfit_error *err);
/* In the child that becomes the program. */
void mf_limit_set_environment(const mf_limit *limit);
void mf_limit_result(const mf_limit *limit, memfit_run_result *result);
void mf_limit_end(mf_limit *limit);

#endif
