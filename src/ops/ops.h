/*
 * ops.h: what an operation does. Each backend (reference, cpu, cuda) is one table {query, prepare, run, ...}; the
 * executor is the same for all. A kernel is prepared once for one operation of one graph and then run any number of
 * times without allocating. Operands come as addresses in the plan's arena.
 *
 * All addresses here are the device's: the caller of a backend never follows them. What differs from run to run lies in
 * device memory too (mf_run_scalars), so that a run can be recorded once and launched again: `run` may depend on its
 * kernel, its operands' addresses and the address of the scalars, never on what they hold. Nothing that `prepare` does
 * depends on scalars. Work is queued on the stream given and done in its order; where a stream is always done (cpu) it
 * is done when `run` returns.
 *
 *   host                                             device, in the order of the stream
 *   upload the host's part of the scalars ─────────> scalars
 *   inputs ────────────────────────────────────────> feeds' tensors
 *   run, run, run ... (or one launch of a record) ─> variables, loss, overflow flag
 *   after the last piece: end_step ────────────────> the device's part of the scalars: iteration, loss scale, sums
 *   now and then: copy out, asked for, not waited for
 */
#ifndef MF_OPS_OPS_H
#define MF_OPS_OPS_H

#include "base/philox.h"
#include "device/device.h"
#include "plan/plan.h"

#include <stddef.h>

/* What changes from run to run; it lies in device memory. */
typedef struct mf_run_scalars {
    /* The host's part, copied in before each piece of a batch. */
    uint64_t seed;         /* key of the random generator */
    uint64_t first_sample; /* index within the whole batch of this piece's first sample */
    double batch_samples;  /* of the whole batch: what losses divide by */
    double weight_sum;     /* of the whole batch's sample weights, when there are any */
    double learning_rate;  /* of this step, schedule applied */
    uint64_t group_steps;  /* Keras's own accumulation: steps whose gradients are added before an update; 0 is 1 */

    /* The device's part, changed by end_step; the host writes it when a run begins. */
    uint64_t step;                /* key of the random generator; counts steps that were not skipped */
    uint64_t iteration;           /* optimizer's t - 1: step / group_steps */
    double loss_scale;            /* float16: gradients are scaled by it; 0 is 1 */
    uint64_t good_steps;          /* since the last overflow */
    uint64_t steps;               /* in all, skipped ones too */
    double loss;                  /* the last step's or batch's */
    double loss_sum, loss_weight; /* of the steps whose loss was finite: loss times samples, samples */
    double seen_sum, seen_weight; /* the same of batches nothing is learned from: validation, evaluation */
    uint64_t diverged_at; /* `steps` after the first step with a loss that is not finite and not for overflow; 0 */
    double diverged_loss;
} mf_run_scalars;

#define MF_SCALARS_HOST_BYTES offsetof(mf_run_scalars, step) /* of the host's part */

typedef struct mf_operands {
    void **in, **out; /* NULL for absent ones */
    void *workspace;
    bool recomputed; /* not the first run of the operation in this step: it must have no side effects */
} mf_operands;

/* What end_step is given, all in device memory. */
typedef struct mf_step_end {
    mf_run_scalars *scalars;
    const float *loss;     /* of the batch */
    const float *overflow; /* not 0: a gradient was not finite and the update was left out; NULL: the model has none */
    bool learns;           /* a training step; else only seen_sum and seen_weight change */
} mf_step_end;

typedef struct mf_kernel mf_kernel; /* begins with a pointer to its backend's own data */
typedef struct mf_backend mf_backend;

typedef struct mf_backend_table {
    const char *name;
    void (*destroy)(mf_backend *backend);
    /* The menu of methods to run an operation (plan/cost.h). */
    memfit_status (*query)(mf_backend *backend, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err);
    /* `method`: one of those that query answered for this operation; NULL: the first. */
    memfit_status (*prepare)(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method,
                             mf_kernel **kernel, memfit_error *err);
    /* Optional: `prepare` will be called for this operation and method. Who hears of many before the first is prepared can
     * make them ready side by side. */
    void (*announce)(mf_backend *backend, const mf_graph *graph, uint32_t op, const mf_method *method);
    memfit_status (*run)(mf_kernel *kernel, const mf_operands *operands, const mf_run_scalars *scalars,
                         mf_stream stream, memfit_error *err);
    /* Optional, both or none: kernels of which one launch runs many. Those with the same `batch` may be run as one, where none
     * touches what another writes; NULL: this one runs by itself. */
    const void *(*batch)(mf_kernel *kernel);
    memfit_status (*run_batch)(mf_kernel *const *kernels, const mf_operands *const *operands, uint32_t count,
                               const mf_run_scalars *scalars, mf_stream stream, memfit_error *err);
    void (*release)(mf_backend *backend, mf_kernel *kernel);
    /* After the last piece of a batch: what mf_scalars_end_step says, in the stream's order. */
    memfit_status (*end_step)(mf_backend *backend, const mf_step_end *end, mf_stream stream, memfit_error *err);
    /* Optional: takes over an operation that follows this kernel's everywhere and changes its only output in place. The
     * result is the same bits and the workspace no larger; false: nothing has changed. */
    bool (*absorb)(mf_backend *backend, mf_kernel *kernel, const mf_graph *graph, uint32_t next);
} mf_backend_table;

struct mf_backend {
    const mf_backend_table *table;
    const memfit_host *host;
    unsigned threads;
    uint64_t alignment;    /* of every tensor; 0: 64 */
    mf_group_taker groups; /* which operations it runs as one (graph/group.h); takes == NULL: none */
    bool wide_menus;       /* methods are timed, or have been: menus may have what only a clock can rank */
    bool loose_menus;      /* menus may have methods that add in no fixed order */
    char made_by[200];     /* the card and the libraries that compute, with versions; empty: this program alone */
    char note[300];        /* something prepared runs slower than planned, and why; empty: nothing does */
};

/* Plain C for every kind, in float and double: the oracle. In this backend F32 tensors are float, F64 double. */
memfit_status mf_reference_create(const memfit_host *host, mf_backend **backend, memfit_error *err);
/* Own vectorised kernels, and oneDNN where the build has it; what both lack falls to the reference operations
 * (cost.reference). INVALID when MEMFIT_ISA names no instruction set. */
memfit_status mf_cpu_create(const memfit_host *host, unsigned threads, mf_backend **backend, memfit_error *err);
/* `inner`, a backend of the host's memory, on the far device (device.h). It owns `inner` from then on. */
memfit_status mf_far_create(const memfit_host *host, mf_device *device, mf_backend *inner, mf_backend **backend,
                            memfit_error *err);
/* `inner`, a backend of the host's memory, with groups run member by member. It owns `inner` from then on. `groups`: what
 * it says it takes; NULL: nothing, it only runs them. */
memfit_status mf_members_create(const memfit_host *host, mf_backend *inner, const mf_group_taker *groups,
                                mf_backend **backend, memfit_error *err);
/* On a device of kind "cuda", which must outlive the backend: own kernels compiled by NVRTC, products by cuBLASLt where it is
 * found. NOT_FOUND names the library that is missing. */
memfit_status mf_cuda_create(const memfit_host *host, mf_device *device, mf_backend **backend, memfit_error *err);
/* What that backend runs as one, and the workspace that its own kernels take: known without a card. */
extern const mf_group_taker mf_cuda_groups;
uint64_t mf_cuda_own_workspace(const mf_graph *graph, uint32_t op);
/* The end of a step in plain C, for backends whose memory is the host's, and for those that must do the same. Dynamic loss
 * scaling is Keras's: halved at an overflow, doubled after 2,000 good steps. */
memfit_status mf_scalars_end_step(mf_backend *backend, const mf_step_end *end, mf_stream stream, memfit_error *err);
/* What CHECK_FINITE divides gradients by: the loss scale, and the steps whose gradients were added. */
static inline double mf_scalars_unscale(const mf_run_scalars *s)
{
    return (s->loss_scale == 0 ? 1 : s->loss_scale) * (double)(s->group_steps ? s->group_steps : 1);
}
/* The backend as a cost source. */
void mf_backend_cost_source(mf_backend *backend, mf_cost_source *source);

#endif
