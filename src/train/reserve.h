/*
 * reserve.h: the one reservation a training lives in, and how it is measured.
 *
 *     base                                        base + bytes
 *     [ arena: patterned, then used ............. ][ guard page: any touch traps ]
 *
 * The pattern is a function of the address, so a byte that changed is seen whatever was written. "Used" is what the
 * law says: the end of the highest tensor range whose bytes changed.
 */
#ifndef MF_TRAIN_RESERVE_H
#define MF_TRAIN_RESERVE_H

#include "memfit/base.h"

typedef struct mf_reservation {
    unsigned char *base;
    uint64_t bytes;        /* of the arena */
    unsigned char *mapped; /* what munmap gets */
    uint64_t mapped_bytes;
    bool populated;
} mf_reservation;

/* Address space only. OUT_OF_MEMORY, at once, when the machine or the cgroup cannot give as much: the numbers are in
 * err. */
memfit_status mf_reserve(uint64_t bytes, mf_reservation *reservation, memfit_error *err);
/* The largest reservation that would be granted now; 0: none. */
uint64_t mf_reserve_most(void);
void mf_unreserve(mf_reservation *reservation);
/* Makes every page resident: in one call where the system has one, which is faster than a fault for each. */
void mf_reserve_populate(mf_reservation *reservation);
/* Bytes of it that are resident: none before mf_reserve_populate, all after. */
uint64_t mf_reserve_resident(const mf_reservation *reservation);
/* Writes the pattern. */
void mf_reserve_pattern(mf_reservation *reservation);
/* Has any byte of [from, to) changed since the pattern? */
bool mf_reserve_changed(const mf_reservation *reservation, uint64_t from, uint64_t to);

#endif
