/* cublaslt.h: matrix products by cuBLASLt, found at run time. Own prototypes: nothing of CUDA is needed to build. */
#ifndef MF_OPS_CUDA_CUBLASLT_H
#define MF_OPS_CUDA_CUBLASLT_H

#include "device/cuda_card.h"
#include "ops/cuda/cuda_engine.h"

typedef struct mf_cublaslt mf_cublaslt;

/* NOT_FOUND: the library is not there; products then take own kernels. */
memfit_status mf_cublaslt_open(const memfit_host *host, const mf_cuda_card *card, mf_cublaslt **lt, memfit_error *err);
size_t mf_cublaslt_version(const mf_cublaslt *lt); /* 130100: 13.1 */
void mf_cublaslt_close(mf_cublaslt *lt);

/* Ways for a MATMUL, one for each bound on the workspace that gives another algorithm; none where the library takes
 * neither its types nor its shape. Algorithms that add into the result in no fixed order are left out. */
memfit_status mf_cublaslt_methods(mf_cublaslt *lt, const mf_graph *graph, const mf_op *op, mf_cost *cost,
                                  memfit_error *err);
memfit_status mf_cublaslt_call(mf_cublaslt *lt, const mf_graph *graph, const mf_op *op, const mf_method *method,
                               cuda_call **call, memfit_error *err);

#endif
