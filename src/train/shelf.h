/*
 * shelf.h: a training set that stays on the device. Where the limit leaves room for all of it, the device keeps each
 * sample once it has arrived; from then on it goes from the shelf to the slot (stage.h) without the host, in any order.
 *
 *     first time    host: fill --> set --copy in--> slot --> shelf
 *     afterwards                            shelf --> slot
 *
 * The bytes are the same, so the results are. Samples that are made (decoded, augmented by workers) are never kept.
 */
#ifndef MF_TRAIN_SHELF_H
#define MF_TRAIN_SHELF_H

#include "device/device.h"

enum { MF_SHELF_FEEDS = 16 };

typedef struct mf_shelf {
    const memfit_host *host;
    mf_device *device;
    mf_address base; /* 0: none */
    mf_physical memory;
    uint64_t bytes; /* whole granules */
    uint32_t feeds;
    int64_t samples;
    uint64_t each[MF_SHELF_FEEDS], at[MF_SHELF_FEEDS]; /* by feed: bytes of a sample, where the first lies */
    unsigned char *there;                              /* by sample */
} mf_shelf;

/* The bytes that so many samples take; 0 where they are no samples to keep: too many feeds, or so small that copying them
 * one by one is no gain. */
uint64_t mf_shelf_bytes(const mf_device *device, const uint64_t *each, uint32_t feeds, int64_t samples);
/* OK without one where the device has no room. */
memfit_status mf_shelf_take(mf_shelf *shelf, const memfit_host *host, mf_device *device, const uint64_t *each,
                            uint32_t feeds, int64_t samples, memfit_error *err);
void mf_shelf_give(mf_shelf *shelf);

static inline mf_address mf_shelf_at(const mf_shelf *s, uint32_t feed, int64_t sample)
{
    return s->base + s->at[feed] + (uint64_t)sample * s->each[feed];
}

#endif
