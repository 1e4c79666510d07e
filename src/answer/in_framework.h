/* in_framework.h: the question of answer.h asked about somebody else's program: what the step takes there, the largest
 * batch and input that hold at the band's upper end, and what to change, as lines of code for that program. */
#ifndef MF_ANSWER_IN_FRAMEWORK_H
#define MF_ANSWER_IN_FRAMEWORK_H

#include "model/lower/model_graphs.h"
#include "plan/frameworks/frameworks.h"
#include "plan/plan.h"

enum { MF_MOST_LINES = 8 };

typedef struct mf_framework_line {
    char line[200]; /* to paste; tried on the model */
    uint64_t peak_bytes, low_bytes, high_bytes;
    mf_framework_fits fits;
    mf_numerics numerics;
} mf_framework_line;

typedef struct mf_in_framework {
    mf_runtime runtime; /* MEMFIT: the question was about memfit alone */
    bool given;         /* by --runtime: the exit status follows it */
    bool known;         /* there is an estimate; else `reason` says why not */
    char reason[240];
    mf_framework_estimate estimate;
    int64_t max_batch;  /* 0: not even one sample */
    char max_input[48]; /* "448,448,3"; empty: the model takes no other size, or none was looked for */
    mf_framework_line lines[MF_MOST_LINES];
    uint32_t line_count;
} mf_in_framework;

typedef struct mf_framework_question {
    mf_runtime runtime;
    bool given;
    bool card; /* the place is a card; else nothing is known about it */
    mf_framework_place place;
} mf_framework_question;

/* `more`: largest batch, largest input and lines of code as well. */
memfit_status mf_in_framework_make(const memfit_host *host, const mf_model *model, const mf_lower_options *lower,
                                   int64_t batch, const mf_framework_question *question, bool more,
                                   mf_in_framework *result, memfit_error *err);

#endif
