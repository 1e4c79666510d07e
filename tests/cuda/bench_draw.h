/* bench_draw.h: what the programs share that time methods and groups on shapes drawn at random. */
#ifndef MF_TESTS_CUDA_BENCH_DRAW_H
#define MF_TESTS_CUDA_BENCH_DRAW_H

#include "device/device.h"

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

/* Queues the work once. */
typedef memfit_status (*bench_work)(void *what, mf_stream stream, memfit_error *err);

/* Microseconds of the work as a step has it: recorded several times in a row and launched as a whole, the least of four
 * launches, each of about 8 ms or of 12 times the work. Where one time takes far longer than `least` (0: nothing to
 * compare with) that one is all. Negative: it failed. */
static inline double bench_time(mf_device *d, bench_work work, void *what, double least, memfit_error *err)
{
    enum { ENOUGH_US = 8000, MOST_RUNS = 12, LEAST_RUNS = 2 };
    mf_stream stream = 0;
    mf_recording record = 0;
    double best = -1, start = 0;
    memfit_status status = d->table->stream_create(d, &stream, err);
    for (int i = 0; i < 2 && status == MEMFIT_OK; i++) { /* what is made at the first time is made */
        start = seconds();
        status = work(what, stream, err);
        status = status ? status : d->table->stream_sync(d, stream, err);
    }
    double one = (seconds() - start) * 1e6;
    bool far = least > 0 && one > 4 * least + 200;
    int runs = one * MOST_RUNS < ENOUGH_US ? MOST_RUNS : (int)(ENOUGH_US / one);
    runs = runs < LEAST_RUNS ? LEAST_RUNS : runs;
    if (status == MEMFIT_OK && far)
        best = one;
    if (!far) {
        status = status ? status : d->table->record_begin(d, stream, err);
        for (int i = 0; i < runs && status == MEMFIT_OK; i++)
            status = work(what, stream, err);
        status = status ? status : d->table->record_end(d, stream, &record, err);
    }
    for (int round = 0; round < 4 && status == MEMFIT_OK && !far; round++) {
        start = seconds();
        status = d->table->record_launch(d, record, stream, err);
        status = status ? status : d->table->stream_sync(d, stream, err);
        double us = (seconds() - start) * 1e6 / runs;
        best = status ? -1 : best < 0 || us < best ? us : best;
    }
    if (record)
        d->table->record_destroy(d, record);
    if (stream)
        d->table->stream_destroy(d, stream, NULL);
    return best;
}

#endif
