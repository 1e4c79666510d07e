/* attentions.h: ATTENTION and its gradient by cuDNN (device/cudnn.h), for the CUDA backend. */
#ifndef MF_OPS_CUDA_ATTENTIONS_H
#define MF_OPS_CUDA_ATTENTIONS_H

#include "device/cuda_card.h"
#include "device/cudnn.h"
#include "ops/cuda/cuda_engine.h"

/* The attention as cuDNN is asked for it; false: not one it takes (float32, masks, dropout, gradients that are added up). */
bool cuda_attention_of(const mf_graph *graph, const mf_op *op, mf_cudnn_attention *attention);
memfit_status cuda_attention_methods(mf_cudnn *dnn, const mf_cuda_card *card, const mf_graph *graph, const mf_op *op,
                                     mf_cost *cost, memfit_error *err);
memfit_status cuda_attention_call(mf_cudnn *dnn, const mf_cuda_card *card, const memfit_host *host,
                                  const mf_graph *graph, const mf_op *op, const mf_method *method, cuda_call **call,
                                  memfit_error *err);

#endif
