/*
 * sim_flight.h: work that the simulated device has not done yet, and which bytes it will touch. A stream that is held
 * leaves its copies and fills in flight; taking memory away under them, or touching the same bytes from another stream
 * that does not wait for them, is what a pool must never cause.
 */
#ifndef MF_DEVICE_SIM_FLIGHT_H
#define MF_DEVICE_SIM_FLIGHT_H

#include "base/memory.h"

/* A part of one granule that work on a stream touches. */
typedef struct mf_flight {
    uint32_t stream;
    uint64_t at;       /* done when the stream's counter reaches this */
    uint64_t address;  /* of the granule */
    uint64_t physical; /* the granule, whatever address it is mapped at */
    uint64_t from, to; /* bytes in it */
} mf_flight;

typedef struct mf_flights {
    mf_flight *list;
    size_t count, capacity;
} mf_flights;

bool mf_flights_add(mf_flights *f, const memfit_host *host, const mf_flight *part);
/* Everything of the stream up to its counter is done. */
void mf_flights_land(mf_flights *f, uint32_t stream, uint64_t done);
/* Does any work in flight touch these addresses? */
const mf_flight *mf_flights_over(const mf_flights *f, uint64_t address, uint64_t bytes);
/* Does work of another stream touch these bytes? */
const mf_flight *mf_flights_against(const mf_flights *f, const mf_flight *part);
void mf_flights_end(mf_flights *f, const memfit_host *host);

#endif
