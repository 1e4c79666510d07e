/*
 * measured_page.h: what a training measured, put into the page of its plan.
 *
 * The page of a plan holds two comments, one behind the other. `memfit train --html` puts a section between them: at the
 * start that the run goes on, at its end what was measured. A run that is killed leaves the first.
 */
#ifndef MF_ANSWER_MEASURED_PAGE_H
#define MF_ANSWER_MEASURED_PAGE_H

#include "memfit/base.h"

#define MF_MEASURED_BEGIN "<!-- measured -->\n"
#define MF_MEASURED_END   "<!-- end of measured -->\n"

enum { MF_MEASURED_SAMPLES = 256 };

/* The highest moment of a stretch of the run. */
typedef struct mf_measured_sample {
    double seconds; /* since the run began */
    int64_t step;   /* updates made by then */
    uint64_t bytes, planned_bytes, limit_bytes;
    bool epoch_end; /* an epoch ended in the stretch */
} mf_measured_sample;

typedef struct mf_measured {
    mf_measured_sample samples[MF_MEASURED_SAMPLES];
    uint32_t count;
    uint32_t each;   /* readings that one sample stands for; a power of two */
    uint32_t filled; /* readings in the last sample */
} mf_measured;

/* How a run stands. NULL and 0: not known, or not so. */
typedef struct mf_measured_run {
    const char *title;   /* "Running", "Trained", "Stopped", "Failed" */
    const char *message; /* why it ended, as far as there is something to say */
    uint64_t planned_bytes, measured_bytes, fixed_bytes, arena_bytes, arena_used_bytes, limit_bytes;
    int64_t steps, allocations; /* allocations -1: not measured */
    double step_ms;
} mf_measured_run;

/* Touches every byte, so that readings cost no memory later. */
void mf_measured_init(mf_measured *m);
/* Takes one reading; allocates nothing. Of so many that they do not fit, neighbours become one: the higher. */
void mf_measured_add(mf_measured *m, const mf_measured_sample *reading);
/* Replaces the section in the page at `path`. NOT_FOUND when it is no longer the page of a plan: it then stays as it is. */
memfit_status mf_measured_write(const char *path, const mf_measured *m, const mf_measured_run *run, memfit_error *err);

#endif
