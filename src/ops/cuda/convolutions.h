/* convolutions.h: CONV and its gradients by cuDNN (device/cudnn.h), for the CUDA backend. */
#ifndef MF_OPS_CUDA_CONVOLUTIONS_H
#define MF_OPS_CUDA_CONVOLUTIONS_H

#include "device/cuda_card.h"
#include "device/cudnn.h"
#include "ops/cuda/cuda_engine.h"

/* The convolution as cuDNN is asked for it; false: not one it could take (types, alignment). */
bool cuda_convolution_of(const mf_graph *graph, const mf_op *op, mf_cudnn_convolution *conv);

/* Ways for the menu: precompiled engines only, each with the workspace of what stands around it. */
memfit_status cuda_convolution_methods(mf_cudnn *dnn, const mf_cuda_card *card, const cuda_engine *engine,
                                       const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err);
/* Puts another way before cuDNN's first where that one leaves many multiprocessors without work at the end: a gradient of
 * filters whose tiles do not come out even, by a kernel that makes whole tiles, where the list has the same with shared
 * ones. True: it did. */
bool cuda_convolution_prefer(const mf_cudnn_convolution *conv, mf_cudnn_way *list, uint32_t count, int multiprocessors);
/* The same from cuDNN's list, for an operation of so many operations and bytes: what needs many times its operands' bytes
 * comes only where there is nothing else. `apart`: own kernels are quicker. */
void cuda_convolution_menu(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count, uint64_t own_at,
                           double flops, double bytes, bool apart, mf_cost *cost);
/* The list's ways that add in no fixed order, behind what the menu has: quicker than the fixed ones that stand behind
 * them in the list, slower than those before. */
void cuda_convolution_loose_menu(const mf_cudnn_convolution *conv, const mf_cudnn_way *list, uint32_t count,
                                 uint64_t own_at, double flops, double bytes, bool apart, mf_cost *cost);
memfit_status cuda_convolution_call(mf_cudnn *dnn, const mf_cuda_card *card, const memfit_host *host,
                                    const mf_graph *graph, uint32_t op, unsigned block, const mf_method *method,
                                    cuda_call **call, memfit_error *err);

#endif
