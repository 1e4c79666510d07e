/*
 * ops.h: what an operation does. Each backend (reference, cpu, cuda) is one table {query, prepare, run}; the
 * executor is the same for all. A kernel is prepared once for one operation of one graph and then run any number of
 * times without allocating. Operands come as addresses in the plan's arena.
 */
#ifndef MF_OPS_OPS_H
#define MF_OPS_OPS_H

#include "base/philox.h"
#include "plan/plan.h"

/* What changes from run to run; on CUDA a copy lies in device memory. */
typedef struct mf_run_scalars {
    uint64_t seed, step;   /* keys of the random generator; step counts updates */
    uint64_t first_sample; /* index within the whole batch of this piece's first sample */
    double batch_samples;  /* of the whole batch: what losses divide by */
    double weight_sum;     /* of the whole batch's sample weights, when there are any */
    double learning_rate;  /* of this step, schedule applied */
    double loss_scale;     /* float16: gradients are scaled by it; 1 otherwise */
    uint64_t iteration;    /* optimizer's t - 1 */
    bool recomputed;       /* this run must have no side effects */
    bool continues;        /* Keras's own accumulation, not the first step of a group: gradients are not cleared */
    bool holds;            /* not the last step of a group: no update */
} mf_run_scalars;

typedef struct mf_operands {
    void **in, **out; /* NULL for absent ones */
    void *workspace;
} mf_operands;

typedef struct mf_kernel mf_kernel; /* begins with a pointer to its backend's own data */
typedef struct mf_backend mf_backend;

typedef struct mf_backend_table {
    const char *name;
    void (*destroy)(mf_backend *backend);
    memfit_status (*query)(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err);
    memfit_status (*prepare)(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_kernel **kernel,
                             memfit_error *err);
    memfit_status (*run)(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                         memfit_error *err);
    void (*release)(mf_backend *backend, mf_kernel *kernel);
    /* Optional: takes over an operation that follows this kernel's everywhere and changes its only output in place. The
     * result is the same bits and the workspace no larger; false: nothing has changed. */
    bool (*absorb)(mf_backend *backend, mf_kernel *kernel, const mf_graph *graph, uint32_t next);
} mf_backend_table;

struct mf_backend {
    const mf_backend_table *table;
    const memfit_host *host;
    unsigned threads;
};

/* Plain C for every kind, in float and double: the oracle. In this backend F32 tensors are float, F64 double. */
memfit_status mf_reference_create(const memfit_host *host, mf_backend **backend, memfit_error *err);
/* Own vectorised kernels, and oneDNN where the build has it; what both lack falls to the reference operations
 * (cost.reference). INVALID when MEMFIT_ISA names no instruction set. */
memfit_status mf_cpu_create(const memfit_host *host, unsigned threads, mf_backend **backend, memfit_error *err);
/* The backend as a cost source. */
void mf_backend_cost_source(mf_backend *backend, mf_cost_source *source);

#endif
