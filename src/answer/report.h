/*
 * report.h: what a recorded trace says: when memory was fullest, who held it, for how long, and what grows.
 *
 *     trace --open--> mf_report --+--> report_text.c   the terminal
 *                                 +--> report_json.c   --json
 *                                 +--> report_page.c   --html, by way of report_bands.c (rows by columns of time)
 *                                 +--> report_export.c the formats of other viewers
 *
 * An owner is a kind and a name. A trace without names is told by sizes: "buffers of 4,096 bytes". Of a trace with several
 * devices the busiest is reported, as memfit replay does. Sums are exact: owners at the peak add up to the peak, and the
 * differences of two reports to the difference of their peaks.
 *
 * Steps are the trace's marks of one name. Without marks they are found: memory that falls by half of what it usually
 * moves and rises again has ended a step.
 */
#ifndef MF_ANSWER_REPORT_H
#define MF_ANSWER_REPORT_H

#include "base/memory.h"
#include "memfit/plan.h"
#include "memfit/trace.h"

#include <stdio.h>

enum { MF_REPORT_FAILS = 64 /* refusals that are kept one by one */, MF_REPORT_NO_OWNER = 0xffffffff };

typedef struct mf_report_owner {
    const char *name; /* as it is shown: without folders, unless names were asked for */
    memfit_kind kind;
    uint64_t peak_bytes; /* at the trace's peak */
    uint64_t most_bytes; /* its own largest */
    uint64_t end_bytes;  /* never freed */
    uint64_t longest_ns; /* of one of its buffers */
    double byte_seconds; /* bytes times the time they were held */
    /* From step to step: live bytes at the first step that counts and at the last, how often they rose and fell. */
    uint64_t first_bytes, last_bytes;
    uint32_t rises, falls;
    bool growing;
} mf_report_owner;

typedef struct mf_report_step {
    uint64_t event; /* the first one of it */
    uint64_t time_ns;
    uint64_t begin_bytes, peak_bytes;
} mf_report_step;

typedef struct mf_report_fail {
    uint64_t event, time_ns, bytes;
    const char *name;
} mf_report_fail;

/* What memfit's pool would have held for the same requests. */
typedef struct mf_report_pool {
    bool known;
    uint64_t physical_bytes; /* the most */
    uint64_t *columns;       /* the most in each column of mf_report_bands, or NULL */
} mf_report_pool;

/* What a plan of the model would have held: its arena, and the trace's own fixed cost, where it has one. */
typedef struct mf_report_planned {
    bool known;
    const char *model;
    int64_t batch;
    uint64_t as_asked_bytes; /* at once, nothing recomputed */
    uint64_t limited_bytes;  /* inside the trace's limit; 0: it has none, or no plan is that small */
    int64_t micro_batches;   /* of the latter, as the rest */
    uint32_t recomputed;
    double slowdown;
    memfit_numerics numerics;
} mf_report_planned;

typedef struct mf_report {
    mf_arena arena;
    bool with_names;
    const char *title; /* the file's name, with its folders only when names were asked for */
    memfit_trace *trace;
    memfit_trace_info info;
    const memfit_event *events;
    uint64_t event_count;
    unsigned device, device_count;
    uint32_t left_out; /* files of a folder that are no traces */
    uint64_t moved;    /* events that allocate or free on the device */
    uint64_t buffers;  /* of it */
    uint64_t peak_bytes, peak_event, peak_ns, end_bytes, duration_ns;
    uint64_t kind_bytes[MEMFIT_KIND_COUNT]; /* at the peak */
    mf_report_owner *owners;                /* most bytes at the peak first */
    uint32_t owner_count;
    uint32_t *owner_of; /* by buffer */
    bool by_size;       /* the trace has no names */
    mf_report_step *steps;
    uint32_t step_count;
    bool steps_found;      /* in the curve: there are no marks */
    uint32_t growing;      /* owners */
    uint32_t growth_steps; /* over which they were compared */
    uint32_t *held;        /* owners, most byte seconds first */
    mf_report_fail fails[MF_REPORT_FAILS];
    uint64_t fail_count;
    uint64_t limit_bytes;         /* the lowest that was set; 0: none is known */
    uint64_t reserved_peak_bytes; /* physical memory taken by whoever was recorded; 0: not recorded */
    uint64_t reserved_before;     /* at least as much was there before the recording began */
    mf_report_pool pool;
    mf_report_planned planned;
} mf_report;

typedef struct mf_report_options {
    const memfit_host *host;
    bool with_names; /* folders of files stay in names */
    bool to_compare; /* with another run, whose processes have other numbers */
} mf_report_options;

/* A trace, a snapshot, or a folder of traces: one a process, merged. DAMAGED when nothing is allocated in it. */
memfit_status mf_report_open(const char *path, const mf_report_options *options, mf_report **report, memfit_error *err);
void mf_report_close(mf_report *report);
/* Does this event change the live bytes of the reported device? */
static inline bool mf_report_moves(const mf_report *r, const memfit_event *e)
{
    return (e->op == MEMFIT_EVENT_ALLOC || e->op == MEMFIT_EVENT_FREE) && e->device == r->device;
}
/* The step an event belongs to, from 1; 0: before the first. */
uint32_t mf_report_step_of(const mf_report *r, uint64_t event);
/* Live bytes over time into `count` columns: the highest of each. `reserved` may be NULL. */
void mf_report_curve(const mf_report *r, unsigned count, uint64_t *live, uint64_t *reserved);

/* Replays the trace through a pool on the device `sim`; fills report->pool. `at` NULL: its peak only; else also the most
 * it held in each of `columns` columns, whose first events these are. */
memfit_status mf_report_replay(mf_report *r, const uint64_t *at, uint32_t columns, memfit_error *err);

typedef struct mf_report_model {
    const char *path;
    int64_t batch; /* 0: plan's own default */
} mf_report_model;

/* Plans the model and fills report->planned (report_plan.c). */
memfit_status mf_report_plan(mf_report *r, const mf_report_model *model, memfit_error *err);
/* The same in words; empty when it is not known. */
void mf_report_planned_text(const mf_report *r, char *text, size_t bytes);

/* ---- two reports ---- */

typedef struct mf_report_change {
    const char *name;
    memfit_kind kind;
    uint64_t before, after; /* bytes at each peak; they differ */
} mf_report_change;

typedef struct mf_report_difference {
    mf_arena arena;
    int64_t peak_bytes; /* the second's peak less the first's */
    mf_report_change *changes;
    uint32_t count; /* largest first */
} mf_report_difference;

memfit_status mf_report_compare(const mf_report *before, const mf_report *after, mf_report_difference *difference,
                                memfit_error *err);
void mf_report_difference_free(mf_report_difference *difference);

/* ---- showing ---- */

/* What is to be printed; `other` and `difference` NULL: one trace. */
typedef struct mf_report_view {
    const mf_report *report, *other;
    const mf_report_difference *difference;
    unsigned columns; /* of the terminal; 0: 80 */
    bool utf8, quiet, verbose;
} mf_report_view;

void mf_report_print(FILE *file, const mf_report_view *view);
/* The first sentences: peak, when, who; and what would help. */
void mf_report_verdict(const mf_report *r, char *text, size_t bytes);
void mf_report_advice(const mf_report *r, char *text, size_t bytes);
void mf_report_put_json(FILE *file, const mf_report_view *view);

#endif
