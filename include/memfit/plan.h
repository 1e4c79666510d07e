/*
 * memfit/plan.h: will it fit? From a model file to a memory plan, before anything runs.
 *
 *     memfit_plan_options options = MEMFIT_PLAN_OPTIONS;
 *     options.batch = 256;
 *     options.card = "rtx-3080";
 *     memfit_plan *plan;
 *     if (memfit_plan_create("model.keras", &options, &plan, &err) == MEMFIT_OK) {
 *         memfit_plan_summary s = MEMFIT_PLAN_SUMMARY;
 *         memfit_plan_get_summary(plan, &s, &err);    // s.fits, s.peak_bytes, s.pieces ...
 *         memfit_plan_print(plan, stdout, false);     // what `memfit plan` prints
 *         memfit_plan_destroy(plan);
 *     }
 *
 * A plan covers the whole process: fixed cost of the device, parameters, optimizer state, gradients, activations,
 * inputs and workspaces, over training, validation, prediction and the last partial batch. Every figure comes from a
 * plan that was built and packed. A model that does not fit is no failure: the plan then holds the reason and what
 * would help. A plan never changes once it is made: any number of threads may read one, and make others.
 */
#ifndef MEMFIT_PLAN_H
#define MEMFIT_PLAN_H

#include "memfit/base.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memfit_plan memfit_plan;

typedef struct memfit_plan_options {
    size_t size;             /* sizeof(memfit_plan_options): MEMFIT_PLAN_OPTIONS */
    const memfit_host *host; /* NULL: the default */
    int64_t batch;           /* samples an update sees; 32 */
    const char *memory;      /* limit for the process: "8GiB", "80%"; NULL: what is available */
    const char *card;        /* plan for this card of the table; NULL: for `device` */
    const char *device;      /* "cpu" (the default), "cuda", "cuda:1" */
    const char *optimizer;   /* "adam"; NULL: from the file, else adam (named as assumed) */
    const char *loss;        /* likewise */
    const char *precision;   /* "float32", "mixed_float16", "mixed_bfloat16"; NULL: as the file says */
    int64_t pieces;          /* 0: as many as needed; 1: never split; K: exactly K */
    bool no_recompute;
    bool allow_changed_numerics; /* let the planner choose ways that change the mathematics */
    int64_t validation_batch;    /* 0: as batch */
    const char *input_shape;     /* "224,224,3" for the first input; NULL: from the file */
    const char *const *dims;     /* "NAME=N": open dimensions of the inputs; may be NULL */
    size_t dim_count;
    const char *const *assume; /* "LAYER=SHAPE[:BYTES]": stand-ins for layers that cannot be read; may be NULL */
    size_t assume_count;
    unsigned threads;      /* of the CPU backend; 0: all */
    unsigned curve_points; /* memory against time at this many budgets; 0: no curve */
    bool quick;            /* only the plan: no largest batch, no suggestions */
    unsigned loss_chunks;  /* of the last layer and its loss: 0: as many as needed; 1: whole; K: K, where it can be */
    const char *runtime;   /* whose program is asked about beside memfit's own: "memfit", "tensorflow", "torch", "jax";
                              NULL: tensorflow for a card, memfit for the cpu */
    int64_t samples;       /* of the training set, which may stay on a card beside a plan for `memory`; 0: unknown */
    bool allow_nondeterministic; /* as memfit_train_options has it. Since 0.2 */
} memfit_plan_options;

#define MEMFIT_PLAN_OPTIONS MEMFIT_INIT_1(memfit_plan_options, batch, 32)

/* Reads the model and plans. MEMFIT_OK whether it fits or not. MEMFIT_UNSUPPORTED names a layer that cannot be planned
 * and the way on; MEMFIT_NOT_FOUND and MEMFIT_DAMAGED say what is wrong with the file; MEMFIT_INVALID with an option.
 * Since 0.1. */
MEMFIT_API memfit_status memfit_plan_create(const char *model_path, const memfit_plan_options *options,
                                            memfit_plan **plan, memfit_error *err);
/* Accepts NULL. Since 0.1. */
MEMFIT_API void memfit_plan_destroy(memfit_plan *plan);

typedef enum memfit_numerics {
    MEMFIT_NUMERICS_BITWISE,   /* the identical operations on identical bytes */
    MEMFIT_NUMERICS_REORDERED, /* the same mathematics, summed in another order */
    MEMFIT_NUMERICS_CHANGED,   /* other mathematics */
} memfit_numerics;

/* Does a step fit in another program? Tight: the limit lies inside the estimate's own band. */
typedef enum memfit_framework_fits {
    MEMFIT_FRAMEWORK_UNKNOWN, /* there is no estimate */
    MEMFIT_FRAMEWORK_NO,
    MEMFIT_FRAMEWORK_TIGHT,
    MEMFIT_FRAMEWORK_YES,
} memfit_framework_fits;

typedef struct memfit_plan_summary {
    size_t size;        /* sizeof(memfit_plan_summary): MEMFIT_PLAN_SUMMARY */
    bool fits;          /* the plan returned, which may recompute or split the batch */
    bool as_asked_fits; /* in one piece with nothing recomputed */
    uint64_t as_asked_peak_bytes;
    uint64_t memory_bytes; /* the limit */
    uint64_t peak_bytes;   /* fixed + arena */
    uint64_t arena_bytes, fixed_bytes;
    uint64_t lower_bound_bytes;             /* no plan with these pieces is below */
    uint64_t breakdown[MEMFIT_KIND_PLACES]; /* at the peak; sums to peak_bytes */
    uint64_t parameter_count;
    int64_t batch, pieces, max_batch;
    uint32_t recomputed_ops;
    memfit_numerics numerics;
    double slowdown; /* against the unconstrained step on the same device, estimated */
    double plan_seconds;
    uint32_t loss_chunks; /* of the last layer and its loss in the plan returned; 1: whole */
    /* The same step in another program; all above is about memfit. */
    const char *runtime; /* "torch"; "memfit": none other was asked about */
    bool runtime_given;  /* it was named in the options, so that the verdict is the runtime's */
    memfit_framework_fits in_framework_fits;
    uint64_t in_framework_peak_bytes, in_framework_low_bytes, in_framework_high_bytes; /* 0: no estimate */
    int64_t in_framework_max_batch; /* holds at the band's upper end */
} memfit_plan_summary;
#define MEMFIT_PLAN_SUMMARY MEMFIT_INIT(memfit_plan_summary)

/* Since 0.1. */
MEMFIT_API memfit_status memfit_plan_get_summary(const memfit_plan *plan, memfit_plan_summary *summary,
                                                 memfit_error *err);

/* The text of `memfit plan`; detail: that of `memfit plan -v`. Since 0.1. */
MEMFIT_API void memfit_plan_print(const memfit_plan *plan, FILE *file, bool detail);
/* The object of `memfit plan --json`. Since 0.1. */
MEMFIT_API void memfit_plan_print_json(const memfit_plan *plan, FILE *file);
/* The same through a callback, for programs without a FILE. Since 0.1. */
typedef enum memfit_plan_form {
    MEMFIT_PLAN_TEXT,
    MEMFIT_PLAN_DETAIL,
    MEMFIT_PLAN_JSON,
    MEMFIT_PLAN_VERDICT, /* the first lines of the text alone: does it fit, and as asked? */
} memfit_plan_form;
MEMFIT_API memfit_status memfit_plan_write(const memfit_plan *plan, memfit_plan_form form, memfit_write_fn write,
                                           void *ctx, memfit_error *err);
/* Two or more plans of one model side by side: text, or one JSON object with a list "cards". Since 0.1. */
MEMFIT_API void memfit_plan_compare(const memfit_plan *const *plans, size_t count, FILE *file, bool json);
/* The step graph of the plan's training phase as text, or for Graphviz when the name ends in ".dot". Since 0.1. */
MEMFIT_API memfit_status memfit_plan_dump_graph(const memfit_plan *plan, const char *path, memfit_error *err);

/* The page of `memfit plan --html`: one file, nothing fetched, a section for each plan. Since 0.1. */
MEMFIT_API memfit_status memfit_plan_write_html(const memfit_plan *const *plans, size_t count, const char *path,
                                                memfit_error *err);

/* ---- a recorded step ---- */

enum { MEMFIT_TRACE_PLAN_OWNERS = 12 };

/* What a recorded training step of a PyTorch program takes of a card. */
typedef struct memfit_trace_plan {
    size_t size;      /* sizeof(memfit_trace_plan): MEMFIT_TRACE_PLAN */
    char device[64];  /* the card's name */
    char version[32]; /* whose allocator was followed */
    char basis[16];   /* "table" */
    memfit_framework_fits fits;
    uint64_t events;
    uint64_t memory_bytes;                      /* the limit */
    uint64_t peak_bytes, low_bytes, high_bytes; /* of the process: fixed + pool, and its band */
    uint64_t live_bytes;                        /* of tensors at the peak */
    uint64_t pool_bytes;                        /* what PyTorch's allocator takes for them */
    uint64_t fixed_bytes;                       /* context, libraries, kernels */
    uint64_t workspace_bytes;                   /* the largest of a library */
    uint64_t expandable_bytes;                  /* the peak with expandable segments, where that is less; else 0 */
    uint64_t by_kind[MEMFIT_KIND_PLACES];       /* of live_bytes */
    size_t owner_count;
    struct {
        char name[96];
        memfit_kind kind;
        uint64_t bytes;
    } owners[MEMFIT_TRACE_PLAN_OWNERS]; /* at the peak, largest first */
} memfit_trace_plan;
#define MEMFIT_TRACE_PLAN MEMFIT_INIT(memfit_trace_plan)

/* Reads a trace (memfit.torch_trace in Python writes one) and says what its program takes of the card that the options
 * name (card or device, memory). MEMFIT_OK whether it fits or not. Since 0.2. */
MEMFIT_API memfit_status memfit_plan_trace(const char *path, const memfit_plan_options *options,
                                           memfit_trace_plan *result, memfit_error *err);

/* ---- the table of cards ---- */

typedef struct memfit_card {
    size_t size; /* sizeof(memfit_card): MEMFIT_CARD */
    const char *name, *title;
    uint64_t memory_bytes; /* as nvidia-smi shows it */
    uint64_t fixed_bytes;  /* estimated; see docs/cards.md */
    double bandwidth_gbs, fp32_tflops, fp16_tflops;
} memfit_card;
#define MEMFIT_CARD MEMFIT_INIT(memfit_card)

/* Card number `index`, from 0; false past the end. Since 0.1. */
MEMFIT_API bool memfit_card_at(size_t index, memfit_card *card);

#ifdef __cplusplus
}
#endif
#endif
