/*
 * bench_pool.c: the pool's figures, with glibc's malloc, jemalloc and mimalloc as peers in the same run. The peers are
 * opened at run time, so that all live in one process; one that is missing is left out.
 *
 * Times are the best of several rounds: the machine is shared, and only the best round is about the code.
 */
#include "base/os.h"
#include "base/text.h"
#include "device/sim.h"
#include "memfit/trace.h"
#include "pool/pool.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7, PAIRS = 400000, LIVE = 10000 };
#define MiB (UINT64_C(1) << 20)

typedef struct peer {
    const char *name;
    void *(*alloc)(size_t bytes);
    void (*release)(void *p);
} peer;

static size_t open_peers(peer *peers)
{
    static const struct {
        const char *name, *file, *alloc, *release;
    } rows[] = {
        {"jemalloc", "libjemalloc.so.2", "malloc", "free"},
        {"mimalloc", "libmimalloc.so.2", "mi_malloc", "mi_free"},
    };
    size_t n = 0;
    peers[n++] = (peer){"glibc", malloc, free};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        void *library = dlopen(rows[i].file, RTLD_NOW | RTLD_LOCAL);
        if (!library)
            continue;
        peer p = {.name = rows[i].name};
        *(void **)&p.alloc = dlsym(library, rows[i].alloc);
        *(void **)&p.release = dlsym(library, rows[i].release);
        if (p.alloc && p.release)
            peers[n++] = p;
    }
    return n;
}

/* Time this thread really ran: the machine is shared. */
static uint64_t ran_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(memfit_status status, const memfit_error *err)
{
    if (!status)
        return;
    fprintf(stderr, "bench_pool: %s\n", err->message);
    exit(1);
}

static memfit_device *open_sim(uint64_t capacity)
{
    memfit_error err;
    memfit_device *device;
    memfit_device_options options = memfit_device_options_default();
    options.capacity_bytes = capacity;
    must(memfit_device_open("sim", &options, &device, &err), &err);
    return device;
}

static memfit_pool *open_pool(memfit_device *device, uint64_t limit)
{
    memfit_error err;
    memfit_pool *pool;
    memfit_pool_options options = memfit_pool_options_default();
    options.limit_bytes = limit;
    options.ignore_environment = true;
    must(memfit_pool_create(device, &options, &pool, &err), &err);
    return pool;
}

/* ---- hot pairs ---------------------------------------------------------------------------------------------- */

static double pool_pair(memfit_pool *pool, memfit_owner owner, uint64_t bytes, unsigned pairs)
{
    memfit_error err;
    double best = 1e9;
    for (unsigned r = 0; r < ROUNDS; r++) {
        uint64_t start = ran_ns();
        for (unsigned i = 0; i < pairs; i++) {
            memfit_address a;
            must(memfit_pool_alloc(pool, bytes, owner, &a, &err), &err);
            must(memfit_pool_free(pool, a, &err), &err);
        }
        double ns = (double)(ran_ns() - start) / pairs;
        best = ns < best ? ns : best;
    }
    return best;
}

static double peer_pair(const peer *p, uint64_t bytes, unsigned pairs)
{
    double best = 1e9;
    for (unsigned r = 0; r < ROUNDS; r++) {
        uint64_t start = ran_ns();
        for (unsigned i = 0; i < pairs; i++) {
            void *volatile q = p->alloc(bytes);
            p->release(q);
        }
        double ns = (double)(ran_ns() - start) / pairs;
        best = ns < best ? ns : best;
    }
    return best;
}

static void hot_pairs(const peer *peers, size_t peer_count)
{
    static const uint64_t sizes[] = {256, 1024, 4096, 16384, 32768, 65536, MiB, 16 * MiB, 256 * MiB};
    memfit_device *device = open_sim(UINT64_C(4) << 30);
    memfit_pool *pool = open_pool(device, 0);
    memfit_owner owner;
    memfit_error err;
    must(memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "bench", &owner, &err), &err);
    printf("hot pair, one thread, ledger on (ns a pair)\n%10s%10s", "bytes", "memfit");
    for (size_t i = 0; i < peer_count; i++)
        printf("%10s", peers[i].name);
    printf("\n");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char text[24];
        unsigned pairs = sizes[s] > 65536 ? PAIRS / 10 : PAIRS;
        printf("%10s%10.1f", memfit_size_format(sizes[s], text, sizeof text), pool_pair(pool, owner, sizes[s], pairs));
        for (size_t i = 0; i < peer_count; i++)
            printf("%10.1f", peer_pair(&peers[i], sizes[s], pairs));
        printf("\n");
    }
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
}

/* ---- random sizes ------------------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * 0x9e3779b97f4a7c15u >> 11;
}

/* Even over the logarithm, from 256 B to 1 GiB. */
static uint64_t random_size(uint64_t *seed)
{
    uint64_t power = 8 + next(seed) % 22;
    return (UINT64_C(1) << power) + next(seed) % (UINT64_C(1) << power);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void random_sizes(void)
{
    memfit_error err;
    memfit_device *device = open_sim(UINT64_C(8) << 40);
    memfit_pool *pool = open_pool(device, 0);
    static memfit_address live[LIVE];
    static uint32_t times[400000];
    enum { TIMED = sizeof times / sizeof *times };
    uint64_t seed = 12345;
    for (unsigned i = 0; i < LIVE; i++)
        must(memfit_pool_alloc(pool, random_size(&seed), 0, &live[i], &err), &err);
    for (unsigned i = 0; i < 300000; i++) { /* until it has settled */
        unsigned k = (unsigned)(next(&seed) % LIVE);
        must(memfit_pool_free(pool, live[k], &err), &err);
        must(memfit_pool_alloc(pool, random_size(&seed), 0, &live[k], &err), &err);
    }
    double best = 1e9;
    for (unsigned r = 0; r < ROUNDS; r++) {
        uint64_t start = ran_ns();
        for (unsigned i = 0; i < TIMED / 4; i++) {
            unsigned k = (unsigned)(next(&seed) % LIVE);
            must(memfit_pool_free(pool, live[k], &err), &err);
            must(memfit_pool_alloc(pool, random_size(&seed), 0, &live[k], &err), &err);
        }
        double ns = (double)(ran_ns() - start) / (TIMED / 4);
        best = ns < best ? ns : best;
    }
    uint64_t clock = mf_os_now_ns();
    for (unsigned i = 0; i < 100000; i++)
        mf_os_now_ns();
    clock = (mf_os_now_ns() - clock) / 100000;
    memfit_pool_info before, info;
    must(memfit_pool_get_info(pool, &before, &err), &err);
    for (unsigned i = 0; i < TIMED; i++) {
        unsigned k = (unsigned)(next(&seed) % LIVE);
        uint64_t bytes = random_size(&seed), start = mf_os_now_ns();
        must(memfit_pool_free(pool, live[k], &err), &err);
        must(memfit_pool_alloc(pool, bytes, 0, &live[k], &err), &err);
        uint64_t ns = mf_os_now_ns() - start;
        times[i] = (uint32_t)(ns > clock ? ns - clock : 0);
    }
    must(memfit_pool_get_info(pool, &info, &err), &err);
    qsort(times, TIMED, sizeof *times, by_value);
    printf("\nrandom sizes 256 B to 1 GiB on sim, %d live: %.0f ns a pair; p50 %u, p99 %u, p99.9 %u ns; moved pages in "
           "%.2f %% of the pairs; physical / live %.4f\n",
           LIVE, best, times[TIMED / 2], times[TIMED / 100 * 99], times[TIMED / 1000 * 999],
           100.0 * (double)(info.remaps - before.remaps) / TIMED,
           (double)info.reserved_peak_bytes / (double)info.in_use_peak_bytes);
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
}

/* ---- threads ------------------------------------------------------------------------------------------------ */

typedef struct worker {
    memfit_pool *pool;
    uint64_t bytes;
    unsigned pairs;
    uint64_t ran; /* ns */
} worker;

static void *work(void *ctx)
{
    worker *w = ctx;
    memfit_error err;
    uint64_t start = ran_ns();
    for (unsigned i = 0; i < w->pairs; i++) {
        memfit_address a;
        must(memfit_pool_alloc(w->pool, w->bytes, 0, &a, &err), &err);
        must(memfit_pool_free(w->pool, a, &err), &err);
    }
    w->ran = ran_ns() - start;
    return NULL;
}

typedef struct rate {
    double wall; /* million pairs a second */
    double ran;  /* the same, if every thread had a processor to itself */
} rate;

static rate million_pairs(memfit_pool *pool, unsigned threads, uint64_t bytes, unsigned pairs)
{
    rate best = {0, 0};
    for (unsigned r = 0; r < ROUNDS; r++) {
        pthread_t t[16];
        worker w[16];
        uint64_t start = mf_os_now_ns(), ran = 0;
        for (unsigned i = 0; i < threads; i++) {
            w[i] = (worker){pool, bytes, pairs, 0};
            pthread_create(&t[i], NULL, work, &w[i]);
        }
        for (unsigned i = 0; i < threads; i++) {
            pthread_join(t[i], NULL);
            ran += w[i].ran;
        }
        double wall = (double)pairs * threads / (double)(mf_os_now_ns() - start) * 1e3;
        double alone = (double)pairs * threads * threads / (double)ran * 1e3;
        best.wall = wall > best.wall ? wall : best.wall;
        best.ran = alone > best.ran ? alone : best.ran;
    }
    return best;
}

/* On a machine with other work the clock on the wall measures that work; time really run does not, but it does not see
 * threads that sleep waiting for each other. Both are printed. */
static void two_threads(void)
{
    static const uint64_t sizes[] = {256, 4096, 32768, 65536, MiB};
    memfit_device *device = open_sim(UINT64_C(4) << 30);
    memfit_pool *pool = open_pool(device, 0);
    printf("\nthreads (million pairs a second, by the wall and by time run)\n%10s%10s%10s%10s%10s%10s%10s\n", "bytes",
           "one", "two", "ratio", "one", "two", "ratio");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char text[24];
        rate one = million_pairs(pool, 1, sizes[s], PAIRS), two = million_pairs(pool, 2, sizes[s], PAIRS);
        printf("%10s%10.1f%10.1f%10.2f%10.1f%10.1f%10.2f\n", memfit_size_format(sizes[s], text, sizeof text), one.wall,
               two.wall, two.wall / one.wall, one.ran, two.ran, two.ran / one.ran);
    }
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
}

/* ---- tracing ------------------------------------------------------------------------------------------------ */

static void tracing(void)
{
    memfit_error err;
    memfit_device *device = open_sim(UINT64_C(4) << 30);
    memfit_pool *pool = open_pool(device, 0);
    memfit_recorder *recorder;
    must(memfit_recorder_create(NULL, &recorder, &err), &err);
    double off = pool_pair(pool, 0, 4096, PAIRS);
    must(memfit_pool_record(pool, recorder, &err), &err);
    double on = pool_pair(pool, 0, 4096, PAIRS);
    must(memfit_pool_record(pool, NULL, &err), &err);
    printf("\ntracing: %.1f ns a pair without, %.1f with: %.1f ns an event\n", off, on, (on - off) / 2);
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
    memfit_recorder_destroy(recorder);
}

/* ---- metadata ----------------------------------------------------------------------------------------------- */

static void metadata(void)
{
    memfit_error err;
    memfit_device *device = open_sim(UINT64_C(64) << 30);
    memfit_pool *pool = open_pool(device, 0);
    uint64_t seed = 7;
    memfit_address a;
    for (unsigned i = 0; i < 20000; i++) /* a mean of 1 MiB */
        must(memfit_pool_alloc(pool, next(&seed) % (2 * MiB), 0, &a, &err), &err);
    memfit_pool_info info;
    must(memfit_pool_get_info(pool, &info, &err), &err);
    printf("\nmetadata at a mean size of 1 MiB: %.4f %% of the bytes managed (%llu of %llu)\n",
           100.0 * (double)info.metadata_bytes / (double)info.in_use_bytes, (unsigned long long)info.metadata_bytes,
           (unsigned long long)info.in_use_bytes);
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
}

/* bench_pool [NAME]: all, or one of hot, random, threads, tracing, metadata. */
int main(int argc, char **argv)
{
    peer peers[4];
    size_t n = open_peers(peers);
    const char *only = argc > 1 ? argv[1] : NULL;
    if (n < 3 &&
        !getenv("GLIBC_TUNABLES")) { /* jemalloc wants more thread-local memory than a library opened late gets */
        setenv("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=65536", 1);
        execv("/proc/self/exe", argv);
    }
    if (!only || !strcmp(only, "hot"))
        hot_pairs(peers, n);
    if (!only || !strcmp(only, "random"))
        random_sizes();
    if (!only || !strcmp(only, "threads"))
        two_threads();
    if (!only || !strcmp(only, "tracing"))
        tracing();
    if (!only || !strcmp(only, "metadata"))
        metadata();
    return 0;
}
