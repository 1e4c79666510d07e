/* bench_draw.h: what the programs share that time methods and groups on shapes drawn at random. */
#ifndef MF_TESTS_CUDA_BENCH_DRAW_H
#define MF_TESTS_CUDA_BENCH_DRAW_H

#include <stdint.h>
#include <time.h>

static uint64_t random_state = 1;

static inline uint32_t below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % n;
}

static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
