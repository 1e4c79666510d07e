/* cuda_card_engine.h: the CUDA backend on a real card. */
#ifndef MF_OPS_CUDA_CARD_ENGINE_H
#define MF_OPS_CUDA_CARD_ENGINE_H

#include "device/cuda_card.h"
#include "ops/cuda/cuda_engine.h"

memfit_status cuda_card_engine_create(const memfit_host *host, mf_device *device, cuda_engine **engine,
                                      memfit_error *err);

#endif
