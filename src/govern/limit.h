/* limit.h: what `memfit run` does for a limit: the share's file, the library that is loaded into the program. */
#ifndef MF_GOVERN_LIMIT_H
#define MF_GOVERN_LIMIT_H

#include "govern/holdings.h"
#include "govern/share.h"
#include "memfit/run.h"

typedef struct mf_limit {
    mf_share share;
    bool named;       /* the share is one that other jobs may have too */
    char folder[128]; /* of this job alone */
    int folder_lock;  /* held while we live; -1 */
    char path[512];   /* the share's */
    char library[4096];
    bool linked; /* that is a link in our folder */
    char facts_path[160], trace[4096];
    mf_facts *facts;         /* the job's own */
    uint64_t refused_before; /* of a share that was there before us */
} mf_limit;

/* Whether anything has to be loaded into the program. */
bool mf_limit_is_wanted(const memfit_run_options *options);
/* NOT_FOUND without the library, UNSUPPORTED for a command it cannot be loaded into, CONFLICT inside another limit, IO when there is no place for the
 * share; named.h says what else a share's name may bring. `library` NULL: looked for beside this program, then in ../lib. */
memfit_status mf_limit_begin(mf_limit *limit, const memfit_run_options *options, memfit_error *err);
/* In the child that becomes the program. */
void mf_limit_set_environment(const mf_limit *limit);
void mf_limit_result(const mf_limit *limit, memfit_run_result *result);
/* Holdings as the report has them. */
void mf_limit_held(const mf_holdings *held, memfit_run_result *result);
memfit_status mf_limit_denial(const mf_limit *limit, size_t index, memfit_run_denial *denial, memfit_error *err);
void mf_limit_end(mf_limit *limit);

#endif
