/* cuda_card.h: for what works on a card beside its memory (kernels, libraries): the driver behind a device, and its
 * context, made current for the length of a call. */
#ifndef MF_DEVICE_CUDA_CARD_H
#define MF_DEVICE_CUDA_CARD_H

#include "device/cuda_driver.h"
#include "device/device.h"

typedef struct mf_cuda_card {
    mf_device *device;
    const mf_cuda_driver *driver;
    int capability;      /* 90: compute capability 9.0 */
    int multiprocessors; /* 0: not known */
} mf_cuda_card;

typedef struct mf_cuda_call { /* what a call leaves as it found it */
    bool pushed;
    int mode;
} mf_cuda_call;

/* INVALID when the device is none of CUDA's. The card is the device's for as long as that lives. */
memfit_status mf_cuda_card_of(mf_device *device, mf_cuda_card *card, memfit_error *err);
memfit_status mf_cuda_enter(const mf_cuda_card *card, mf_cuda_call *call, memfit_error *err);
void mf_cuda_leave(const mf_cuda_card *card, mf_cuda_call call);

#endif
