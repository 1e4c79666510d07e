/* philox.h: random numbers from a counter: the same key and counter give the same numbers everywhere, in any order. */
#ifndef MF_BASE_PHILOX_H
#define MF_BASE_PHILOX_H

#include <stdint.h>

/* Philox 4x32-10. key = (seed, random layer), counter = (step, sample, index within the sample / 4). */
void mf_philox(uint64_t seed, uint32_t layer, uint64_t step, uint64_t sample, uint64_t block, uint32_t out[4]);

#endif
