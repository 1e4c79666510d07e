/*
 * reserve.h: the one reservation a training lives in, and how it is measured.
 *
 *     side                base                                        base + bytes
 *     [ scalars, if far  ][ arena: patterned, then used ............. ][ unmapped: any touch traps ]
 *
 * The pattern is a function of the offset, so a byte that changed is seen whatever was written. "Used" is what the
 * law says: the end of the highest tensor range whose bytes changed.
 */
#ifndef MF_TRAIN_RESERVE_H
#define MF_TRAIN_RESERVE_H

#include "device/device.h"

enum { MF_RESERVE_SIDE_BYTES = 1024, MF_RESERVE_BOUNCE_BYTES = 256 << 10 };

typedef struct mf_reservation {
    mf_device *device;
    mf_address base;
    uint64_t bytes;    /* of the arena */
    mf_address side;   /* MF_RESERVE_SIDE_BYTES of the device's memory; 0 where the host's own will do */
    mf_address mapped; /* what was reserved, whole granules */
    uint64_t mapped_bytes;
    mf_physical physical; /* 0: none yet, or the device's addresses have memory of their own */
    bool populated;
    unsigned char
        *bounce; /* MF_RESERVE_BOUNCE_BYTES of host memory that the device copies from and to; NULL: not needed */
} mf_reservation;

/* Addresses only. OUT_OF_MEMORY, at once, when the device cannot give as much: the numbers are in err. */
memfit_status mf_reserve(mf_device *device, uint64_t bytes, mf_reservation *reservation, memfit_error *err);
/* The largest reservation that would be granted now; 0: none. */
uint64_t mf_reserve_most(mf_device *device);
void mf_unreserve(mf_reservation *reservation);
/* Makes every page resident. */
memfit_status mf_reserve_populate(mf_reservation *reservation, memfit_error *err);
/* Bytes of it that are resident: none before mf_reserve_populate, all after. */
uint64_t mf_reserve_resident(const mf_reservation *reservation);
/* Writes the pattern. */
memfit_status mf_reserve_pattern(mf_reservation *reservation, memfit_error *err);
/* Has any byte of [from, to) changed since the pattern? */
bool mf_reserve_changed(const mf_reservation *reservation, uint64_t from, uint64_t to);

#endif
