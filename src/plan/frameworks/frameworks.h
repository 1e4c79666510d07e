/*
 * frameworks.h: what a training step would take in somebody else's program: TensorFlow, PyTorch or JAX under Keras 3.
 *
 *   plain step graph --execution model--> tape of allocations --allocator's model--> pool
 *                                                                  + fixed cost      = peak, with a band
 *
 * Each part has its own error; they add up to the band. Nothing here runs a framework: bench/frameworks does, and sets
 * these figures beside the measured ones.
 */
#ifndef MF_PLAN_FRAMEWORKS_H
#define MF_PLAN_FRAMEWORKS_H

#include "graph/graph.h"
#include "plan/frameworks/pools.h"

typedef enum {
    MF_RUNTIME_MEMFIT,
    MF_RUNTIME_TENSORFLOW,
    MF_RUNTIME_TORCH,
    MF_RUNTIME_JAX,
    MF_RUNTIME_COUNT
} mf_runtime;

const char *mf_runtime_name(mf_runtime runtime);    /* "torch", as typed */
const char *mf_runtime_title(mf_runtime runtime);   /* "PyTorch", for people */
const char *mf_runtime_version(mf_runtime runtime); /* what was modelled: "PyTorch 2.11, Keras 3.15" */
/* Also pytorch, tf and keras's names; false when unknown. */
bool mf_runtime_parse(const char *text, mf_runtime *runtime);

typedef enum { MF_FRAMEWORK_NO, MF_FRAMEWORK_TIGHT, MF_FRAMEWORK_YES } mf_framework_fits;
const char *mf_framework_fits_name(mf_framework_fits fits); /* "no", "tight", "yes" */

/* Where it would run. */
typedef struct mf_framework_place {
    uint64_t limit_bytes;          /* of the card, or the part of it that was asked for */
    uint64_t fixed_bytes;          /* gone on this card before a program's first tensor: driver, context, handles */
    uint32_t fixed_margin_percent; /* how far that may be off */
    uint32_t capability;           /* compute capability times ten */
    bool cpu;             /* no card: memory of the machine, fixed_bytes not looked at; TensorFlow alone is known */
    bool no_products;     /* the program never calls cuBLAS, which takes some of the card for itself */
    bool no_convolutions; /* nor cuDNN */
    bool recurrent;       /* Keras's LSTM or GRU is in it: cuDNN takes some more for those */
    bool transposed;      /* transposed convolutions: cuDNN allocates for itself while they run, beside the pool */
    bool rough;           /* what does not fit need not be told exactly: for searches, which ask often */
    bool measured;        /* the card that the frameworks were measured on */
    bool recorded;        /* the tape is a recording: of workspaces a rule is known, not the size */
} mf_framework_place;

typedef struct mf_framework_estimate {
    mf_runtime runtime;
    const char *basis;    /* "measured": on this very card; "table": on another; "modelled": never on a card */
    uint64_t least_bytes; /* live bytes that it can do with, slower; 0: not known to be less */
    uint64_t peak_bytes, low_bytes, high_bytes;
    uint64_t live_bytes;                 /* of tensors, by the framework's own counter */
    uint64_t pool_bytes;                 /* what its allocator takes for them */
    uint64_t fixed_bytes;                /* driver, context, libraries, kernels */
    uint64_t workspace_bytes;            /* of libraries, within the pool */
    uint64_t weight_bytes;               /* weights and their state where known to the byte: the band is of the rest */
    uint64_t by_kind[MEMFIT_KIND_COUNT]; /* of the live bytes at their peak; all 0 where the model does not tell */
    uint64_t pool_less, pool_more;       /* what unknown workspaces, or sizes near these, change in the pool */
    mf_framework_fits fits;
    bool at_least; /* pool_bytes is the least it gets by with, because it is short of memory */
} mf_framework_estimate;

/* `graph` is a plain training step (mf_lower_options.plain). */
memfit_status mf_framework_predict(const memfit_host *host, mf_runtime runtime, const mf_graph *graph,
                                   const mf_framework_place *place, mf_framework_estimate *estimate, memfit_error *err);

/* What one cuBLAS handle takes of a card of this compute capability. */
uint64_t mf_framework_blas_bytes(uint32_t capability);

/* The same from a tape, for PyTorch programs whose step was recorded. */
memfit_status mf_framework_from_tape(const mf_tape *tape, uint64_t workspace_bytes, const mf_framework_place *place,
                                     mf_framework_estimate *estimate, memfit_error *err);

#endif
