/*
 * onednn.h: the adapter's face. All of oneDNN that memfit uses: convolution (three directions) and matrix products,
 * each compiled once into an mf_dnn, with the reorders its weight layout needs. Everything else in a step is memory
 * bound and served by own kernels (ops/cpu/kernels/kernels.h). A change of the library's interface touches one small file:
 * onednn_v2.c for 2.x (Debian 12), onednn_v3.c for 3.x; the build chooses by the version it finds.
 *
 * Layouts: activations are channels last (Keras's own). Weights arrive as Keras stores them (k..., in/groups, out); the
 * library chooses the layout it computes in, and the adapter reorders into planned workspace at each use. Plain weights
 * given directly would fall to the GEMM convolution, several times slower and with memory of its own.
 *
 * Memory: scratchpads are user-managed. workspace_bytes of a description is exact and known without creating anything
 * that stays.
 */
#ifndef MF_OPS_ONEDNN_H
#define MF_OPS_ONEDNN_H

#include "base/memory.h"
#include "base/tensor.h"

typedef struct mf_dnn mf_dnn;               /* one compiled primitive with its reorders */
typedef struct mf_dnn_engine mf_dnn_engine; /* the library's engine and stream */

/* Primitives are made and run for `threads` threads. `isa` caps the instruction set: sse2, avx2, avx512, or NULL. */
memfit_status mf_dnn_engine_create(const memfit_host *host, unsigned threads, const char *isa, mf_dnn_engine **engine,
                                   memfit_error *err);
void mf_dnn_engine_destroy(mf_dnn_engine *engine);
/* What the library takes of a process, from above, as it was counted with this version. */
typedef struct mf_dnn_takes {
    uint64_t start;                                     /* by being linked, before its first call */
    uint64_t product, forward, grad_data, grad_weights; /* kept for a shape */
    uint64_t making_product;                            /* while one is made, with what is dropped */
} mf_dnn_takes;
const mf_dnn_takes *mf_dnn_taken(void);
/* Is there a library that makes code for each shape? Own kernels keep nothing. */
bool mf_dnn_compiles(void);
/* While primitives are made, equal ones share code; afterwards the library need keep nothing. */
void mf_dnn_cache(bool on);

typedef enum { MF_DNN_FORWARD, MF_DNN_GRAD_DATA, MF_DNN_GRAD_WEIGHTS } mf_dnn_direction;

/* All tensors are float32. Operands in order: FORWARD x, w, [bias], y; GRAD_DATA dy, w, dx; GRAD_WEIGHTS x, dy, dw, [db]. */
typedef struct mf_dnn_conv {
    mf_dnn_direction direction;
    int dims; /* spatial, 1 to 3 */
    int64_t batch, in_channels, out_channels, groups;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], before[3], after[3];
    bool bias;
    bool accumulate; /* GRAD_WEIGHTS: dw += ..., db += ... */
    bool relu;       /* FORWARD: y = max(0, ...) */
} mf_dnn_conv;

/* What making this convolution takes, with what the library tries and drops on the way; from above. */
uint64_t mf_dnn_conv_making(const mf_dnn_conv *conv);
/* What it keeps beyond mf_dnn_takes because its rows are wide. */
uint64_t mf_dnn_conv_wide(const mf_dnn_conv *conv);

/* c = [relu of] scale * op(a) op(b) [+ bias] [+ c]; operands in order: a, b, [bias], c. Batches of 1 broadcast. */
typedef struct mf_dnn_matmul {
    int64_t batch_a, batch_b; /* equal, or one of them 1 */
    int64_t m, n, k;
    bool trans_a, trans_b;
    bool bias;
    bool accumulate, relu;
    double scale;
    int64_t row_a, row_b, row_c; /* elements from row to row as stored, where rows are part of wider ones; 0: dense */
} mf_dnn_matmul;

/* With `made` NULL only the workspace is computed. UNSUPPORTED when the library has no implementation that takes no
 * memory of its own while it runs, or when there is no library. */
memfit_status mf_dnn_conv_make(mf_dnn_engine *engine, const mf_dnn_conv *conv, mf_dnn **made, uint64_t *workspace_bytes,
                               memfit_error *err);
memfit_status mf_dnn_matmul_make(mf_dnn_engine *engine, const mf_dnn_matmul *matmul, mf_dnn **made,
                                 uint64_t *workspace_bytes, memfit_error *err);
void mf_dnn_destroy(mf_dnn *made);
memfit_status mf_dnn_run(mf_dnn *made, void *const *operands, void *workspace, memfit_error *err);

#endif
