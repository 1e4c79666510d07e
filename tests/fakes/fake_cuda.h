/* fake_cuda.h: what a test may ask of the fake driver beyond CUDA's own functions; exported by this folder's
 * libcuda.so.1. */
#ifndef MF_TESTS_FAKE_CUDA_H
#define MF_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fake_cuda_state {
    uint64_t contexts; /* retained primary contexts, over all devices */
    uint64_t handles;  /* created and not yet gone: unreleased, or still mapped */
    uint64_t handle_bytes;
    uint64_t mappings;
    uint64_t reservations;
    uint64_t plain_bytes; /* by cuMemAlloc */
    uint64_t streams, events;
    uint64_t graphs;        /* captured or instantiated, and not ended */
    uint64_t pinned;        /* pieces of host memory */
    uint64_t calls;         /* of any counted function since the last reset */
    uint64_t broken;        /* calls that broke a rule of the driver (and were answered with its error) */
    char first_broken[160]; /* the first of them, in words */
} fake_cuda_state;

/* The Nth call (1 is the next) of `name`, or of any function when NULL, answers `code`; all after it too when for_ever.
 * nth 0: none. */
void fake_cuda_fail(const char *name, uint64_t nth, int code, bool for_ever);
void fake_cuda_get(fake_cuda_state *state);
void fake_cuda_reset_counts(void);
uint64_t fake_cuda_count(const char *name); /* calls of one counted function since then */
/* Bytes another process holds on device 0. */
void fake_cuda_foreign(uint64_t bytes);
/* A held stream does not move: copies and fills on it are queued, and events recorded on it are not done, until it is let
 * go; so does whoever waits for it. */
void fake_cuda_hold(uint64_t stream, bool held);
/* The devices that may use an address, a bit each. */
unsigned fake_cuda_open_to(uint64_t address);
/* As between cuStreamBeginCapture and cuStreamEndCapture: nothing on the stream runs. */
void fake_cuda_capture(uint64_t stream, bool captured);

#endif
