/*
 * footprint.h: what a run takes of the memory its limit is about, as the operating system (on cpu) or NVML (on cuda)
 * counts it. One table for each kind of device; admission and the loop know nothing else of how memory is measured.
 */
#ifndef MF_TRAIN_FOOTPRINT_H
#define MF_TRAIN_FOOTPRINT_H

#include "device/device.h"
#include "plan/plan.h"

typedef struct mf_footprint {
    uint64_t (*sample)(mf_device *device);  /* bytes the process holds now; 0 when it cannot be told */
    void (*trim)(void);                     /* gives back what was freed and not returned */
    uint64_t (*error)(void);                /* how far `sample` may lie beside the truth */
    uint64_t (*fixed)(const mf_plan *plan); /* what a plan's records and kernels take beside its arena, from above */
    bool host;                              /* it is the host's memory: loading and planning count, too */
    uint64_t every_us;                      /* between samples while steps run */
} mf_footprint;

/* RssAnon + RssShmem of this process. */
extern const mf_footprint mf_footprint_cpu;
/* What the device says of this process: on cuda NVML's figure. */
extern const mf_footprint mf_footprint_device;

/* What kernels and records of so many steps take on a card, from above. */
uint64_t mf_footprint_card_bytes(uint64_t steps);

/* The limit when none is given: what the run could have, its own bytes included, less some for others. */
uint64_t mf_footprint_most(const mf_footprint *footprint, mf_device *device);

#endif
