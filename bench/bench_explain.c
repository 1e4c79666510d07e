/*
 * bench_explain.c: what recording and explaining cost. Best of several runs, in the thread's own CPU time, so that
 * other jobs on the machine disturb as little as they can.
 *
 *   recorder     one event into the ring
 *   pair         alloc + free of a small block on sim, without and with a recorder
 *   explanation  of a failure with 100,000 live allocations: small ones, large ones, both; without the search for a
 * place that comes before it
 */
#include "trace/trace.h"
#include "pool/calls.h"
#include "pool/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LIVE = 100000, RUNS = 25 };

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static memfit_pool *open_pool(memfit_device **device)
{
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    memfit_pool *pool;
    memfit_error err;
    d.capacity_bytes = UINT64_C(256) << 30;
    o.limit_bytes = UINT64_C(200) << 30;
    o.ignore_environment = true;
    if (memfit_device_open("sim", &d, device, &err) || memfit_pool_create(*device, &o, &pool, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return NULL;
    }
    return pool;
}

static void close_pool(memfit_device *device, memfit_pool *pool)
{
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
}

static double bench_put(void)
{
    memfit_recorder *r;
    double best = 1e9;
    if (memfit_recorder_create(NULL, &r, NULL))
        return 0;
    for (int run = 0; run < RUNS; run++) {
        double start = cpu_ns();
        for (uint64_t i = 0; i < 1000000; i++)
            mf_trace_put(r, MEMFIT_EVENT_ALLOC, i, 256, MEMFIT_KIND_OTHER, 0, 0);
        double ns = (cpu_ns() - start) / 1e6;
        best = ns < best ? ns : best;
    }
    memfit_recorder_destroy(r);
    return best;
}

static double bench_pair(bool recorded)
{
    memfit_device *device;
    memfit_pool *pool = open_pool(&device);
    memfit_recorder *r = NULL;
    memfit_owner owner = 0;
    memfit_address address;
    double best = 1e9;
    if (!pool || (recorded && memfit_recorder_create(NULL, &r, NULL)))
        return 0;
    memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "layer", &owner, NULL);
    if (recorded)
        memfit_pool_record(pool, r, NULL);
    for (int run = 0; run < RUNS; run++) {
        double start = cpu_ns();
        for (int i = 0; i < 200000; i++) {
            memfit_pool_alloc(pool, 1024, owner, &address, NULL);
            memfit_pool_free(pool, address, NULL);
        }
        double ns = (cpu_ns() - start) / 2e5;
        best = ns < best ? ns : best;
    }
    close_pool(device, pool);
    memfit_recorder_destroy(r);
    return best;
}

static uint64_t size_of(int mode)
{
    bool small = mode == 0 || (mode == 2 && rand() % 2);
    return small ? 100 + (uint64_t)rand() % 30000 : 40000 + (uint64_t)rand() % 1900000;
}

/* Twice as many blocks as wanted, of which half are freed at random. */
static void fill(memfit_pool *pool, int mode)
{
    static memfit_address list[2 * LIVE];
    memfit_owner owners[200];
    char name[32];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "layer %d", i);
        memfit_pool_owner(pool, (memfit_kind)(i % MEMFIT_KIND_COUNT), name, &owners[i], NULL);
    }
    for (int i = 0; i < 2 * LIVE; i++)
        memfit_pool_alloc(pool, size_of(mode), owners[rand() % 200], &list[i], NULL);
    for (int live = 2 * LIVE; live > LIVE;) {
        int k = rand() % (2 * LIVE);
        if (list[k]) {
            memfit_pool_free(pool, list[k], NULL);
            list[k] = 0;
            live--;
        }
    }
}

static void bench_explanation(int mode, const char *what)
{
    memfit_device *device;
    memfit_pool *pool = open_pool(&device);
    memfit_error err = {0};
    memfit_address address;
    if (!pool)
        return;
    srand(1);
    fill(pool, mode);
    mf_request request = {.bytes = UINT64_C(199) << 30};
    memfit_pool_alloc(pool, request.bytes, 0, &address, &err);
    double best = 1e18;
    for (int run = 0; run < RUNS; run++) {
        pthread_mutex_lock(&pool->lock);
        double start = cpu_ns();
        mf_pool_explain_failure(pool, &request, &err);
        double ns = cpu_ns() - start;
        pthread_mutex_unlock(&pool->lock);
        best = ns < best ? ns : best;
    }
    printf("explanation, %d live %-12s %6.2f ms   %s\n", LIVE, what, best / 1e6, memfit_cause_name(err.cause));
    close_pool(device, pool);
}

int main(void)
{
    printf("recorder, one event               %6.1f ns\n", bench_put());
    double plain = bench_pair(false), recorded = bench_pair(true);
    printf("pair                              %6.1f ns\n", plain);
    printf("pair, recorded (two events)       %6.1f ns, %.1f ns an event more\n", recorded, (recorded - plain) / 2);
    bench_explanation(0, "small");
    bench_explanation(1, "large");
    bench_explanation(2, "of both");
    return 0;
}
