/*
 * bench_pool.c: the pool's figures, with glibc's malloc, jemalloc and mimalloc as peers in the same run. The peers are
 * opened at run time, so that all live in one process; one that is missing is left out.
 *
 * Times are the best of several rounds: the machine is shared, and only the best round is about the code.
 *
 * It is long because every figure of the pool is made here, and replays have the same devices and options.
 */
#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "device/sim.h"
#include "fakes/fake_cuda.h"
#include "memfit/torch.h"
#include "memfit/trace.h"
#include "plan/frameworks/pools.h"
#include "pool/state.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
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
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = capacity;
    must(memfit_device_open("sim", &options, &device, &err), &err);
    return device;
}

static memfit_pool *open_pool(memfit_device *device, uint64_t limit)
{
    memfit_error err;
    memfit_pool *pool;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
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
    return (UINT64_C(1) << power) + (next(seed) & ((UINT64_C(1) << power) - 1));
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

enum { DRAWN = 4096 };
typedef struct draw {
    uint32_t which, bytes;
} draw;

/* Frees a block chosen at random and asks for one of another size, so many times. */
static __attribute__((noinline)) void churn(memfit_pool *pool, memfit_address *live, const draw *draws)
{
    memfit_error err;
    for (unsigned i = 0; i < DRAWN; i++) {
        memfit_address *at = &live[draws[i].which];
        must(memfit_pool_free(pool, *at, &err), &err);
        must(memfit_pool_alloc(pool, draws[i].bytes, 0, at, &err), &err);
    }
}

/* The time of a pair, over `times` batches. The numbers are drawn while the clock stands. */
static double churns(memfit_pool *pool, memfit_address *live, uint64_t *seed, unsigned times)
{
    draw draws[DRAWN];
    uint64_t ns = 0;
    for (unsigned t = 0; t < times; t++) {
        for (unsigned i = 0; i < DRAWN; i++) {
            draws[i].which = (uint32_t)(next(seed) % LIVE);
            draws[i].bytes = (uint32_t)random_size(seed);
        }
        uint64_t start = ran_ns();
        churn(pool, live, draws);
        ns += ran_ns() - start;
    }
    return (double)ns / times / DRAWN;
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
    churns(pool, live, &seed, 75); /* until it has settled */
    double best = 1e9;
    for (unsigned r = 0; r < 12 * ROUNDS; r++) {
        double ns = churns(pool, live, &seed, 5);
        best = ns < best ? ns : best;
    }
    uint64_t clock = mf_os_now_ns();
    for (unsigned i = 0; i < 100000; i++)
        mf_os_now_ns();
    clock = (mf_os_now_ns() - clock) / 100000;
    memfit_pool_info before = MEMFIT_POOL_INFO, info = MEMFIT_POOL_INFO;
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

/*
 * Two threads against one says nothing by itself: the two processors of a rented machine may be the two halves of one
 * core, now and then or always, and then nothing runs twice as fast on both. So things that share no memory run in the
 * same rounds:
 *
 *     apart      two threads, each with a pool and a device of its own: the difference is what sharing a pool costs
 *     counting   two threads that only count: what the machine has to give
 *     mimalloc   the peer, as it is
 *
 * Rounds are short and take turns, so that all meet the machine in the same states; the best of each counts. Threads
 * warm up, wait for each other and time themselves.
 */
enum { TURNS = 25, SHORT = 150000 };
typedef enum job { JOB_POOL, JOB_PEER, JOB_COUNT } job;

typedef struct worker {
    job what;
    memfit_pool *pool;
    const peer *peer;
    uint64_t bytes;
    _Atomic unsigned *waiting;  /* threads that are not ready yet */
    uint64_t began, ended, ran; /* ns */
} worker;

static void do_job(const worker *w, unsigned pairs)
{
    memfit_error err;
    uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6;
    switch (w->what) {
    case JOB_POOL:
        for (unsigned i = 0; i < pairs; i++) {
            memfit_address address;
            must(memfit_pool_alloc(w->pool, w->bytes, 0, &address, &err), &err);
            must(memfit_pool_free(w->pool, address, &err), &err);
        }
        break;
    case JOB_PEER:
        for (unsigned i = 0; i < pairs; i++) {
            void *volatile q = w->peer->alloc(w->bytes);
            w->peer->release(q);
        }
        break;
    case JOB_COUNT: /* as wide as the processor goes, about as long as a pair */
        for (uint64_t i = 0; i < (uint64_t)pairs * 16; i++) {
            a += i;
            b ^= i;
            c += b;
            d ^= a;
            e += i;
            f -= i;
            __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
        }
        break;
    }
}

static void *work(void *ctx)
{
    worker *w = ctx;
    do_job(w, SHORT / 8);
    atomic_fetch_sub(w->waiting, 1);
    while (atomic_load(w->waiting)) {}
    uint64_t ran = ran_ns();
    w->began = mf_os_now_ns();
    do_job(w, SHORT);
    w->ended = mf_os_now_ns();
    w->ran = ran_ns() - ran;
    return NULL;
}

typedef struct rate {
    double wall; /* million pairs a second */
    double ran;  /* the same, if every thread had a processor to itself */
} rate;

/* One round. The second thread works on `other` if the job is a pool's. */
static void round_of(rate *best, unsigned threads, job what, memfit_pool *pool, memfit_pool *other, const peer *with,
                     uint64_t bytes)
{
    pthread_t t[2];
    worker w[2];
    _Atomic unsigned waiting = threads;
    uint64_t began = UINT64_MAX, ended = 0, ran = 0;
    for (unsigned i = 0; i < threads; i++) {
        w[i] = (worker){.what = what, .pool = i ? other : pool, .peer = with, .bytes = bytes, .waiting = &waiting};
        if (pthread_create(&t[i], NULL, work, &w[i]))
            exit(1);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(t[i], NULL);
        began = w[i].began < began ? w[i].began : began;
        ended = w[i].ended > ended ? w[i].ended : ended;
        ran += w[i].ran;
    }
    double wall = (double)SHORT * threads / (double)(ended - began) * 1e3;
    double alone = (double)SHORT * threads * threads / (double)ran * 1e3;
    best->wall = wall > best->wall ? wall : best->wall;
    best->ran = alone > best->ran ? alone : best->ran;
}

static void two_threads(const peer *peers, size_t peer_count)
{
    static const uint64_t sizes[] = {256, 4096, 32768, 65536, MiB};
    const peer *mimalloc = peer_count == 3 ? &peers[2] : &peers[0];
    memfit_device *device = open_sim(UINT64_C(4) << 30), *another = open_sim(UINT64_C(4) << 30);
    memfit_pool *pool = open_pool(device, 0), *other = open_pool(another, 0);
    printf("\nthreads (million pairs a second by the wall; two over one, by the wall and by time run)\n"
           "%10s%8s%8s%14s%16s%16s%16s\n",
           "bytes", "one", "two", "ratio", "apart", mimalloc->name, "counting");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        char text[24];
        uint64_t bytes = sizes[s];
        rate one = {0}, two = {0}, apart = {0}, peer_one = {0}, peer_two = {0}, count_one = {0}, count_two = {0};
        for (unsigned i = 0; i < TURNS; i++) {
            round_of(&one, 1, JOB_POOL, pool, NULL, NULL, bytes);
            round_of(&two, 2, JOB_POOL, pool, pool, NULL, bytes);
            round_of(&apart, 2, JOB_POOL, pool, other, NULL, bytes);
            round_of(&peer_one, 1, JOB_PEER, NULL, NULL, mimalloc, bytes);
            round_of(&peer_two, 2, JOB_PEER, NULL, NULL, mimalloc, bytes);
            round_of(&count_one, 1, JOB_COUNT, NULL, NULL, NULL, bytes);
            round_of(&count_two, 2, JOB_COUNT, NULL, NULL, NULL, bytes);
        }
        printf("%10s%8.1f%8.1f%8.2f%6.2f%10.2f%6.2f%10.2f%6.2f%10.2f%6.2f\n",
               memfit_size_format(bytes, text, sizeof text), one.wall, two.wall, two.wall / one.wall, two.ran / one.ran,
               apart.wall / one.wall, apart.ran / one.ran, peer_two.wall / peer_one.wall, peer_two.ran / peer_one.ran,
               count_two.wall / count_one.wall, count_two.ran / count_one.ran);
    }
    memfit_pool_destroy(pool);
    memfit_pool_destroy(other);
    memfit_device_close(device, NULL);
    memfit_device_close(another, NULL);
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
    memfit_pool_info info = MEMFIT_POOL_INFO;
    must(memfit_pool_get_info(pool, &info, &err), &err);
    printf("\nmetadata at a mean size of 1 MiB: %.4f %% of the bytes managed (%llu of %llu)\n",
           100.0 * (double)info.metadata_bytes / (double)info.in_use_bytes, (unsigned long long)info.metadata_bytes,
           (unsigned long long)info.in_use_bytes);
    memfit_pool_destroy(pool);
    memfit_device_close(device, NULL);
}

/* ---- PyTorch's calls ------------------------------------------------------------------------------------------ */

enum { TENSORS = 250, INPUTS = 3, TORCH_STEPS = 400 };

typedef struct fake_driver {
    void (*state)(fake_cuda_state *);
    int (*stream_create)(void **stream, unsigned flags);
    int (*ctx_push)(void *context);
} fake_driver;

/* A step as a model has it: forward, most stay, a part is temporary; backward, in the other order. With several streams
 * the inputs come on a side stream, and are used on the main one. Returns the calls it made. */
static unsigned torch_step(void *main_stream, void *side, const uint64_t *bytes)
{
    void *kept[TENSORS], *input[INPUTS];
    unsigned calls = 0, n = 0;
    for (unsigned i = 0; side && i < INPUTS; i++) {
        input[i] = memfit_torch_alloc(6 << 20, 0, side);
        memfit_torch_record_stream(input[i], main_stream);
    }
    for (unsigned i = 0; i < TENSORS; i++) {
        void *one = memfit_torch_alloc((ssize_t)bytes[i], 0, main_stream);
        if (i % 3)
            kept[n++] = one;
        else
            memfit_torch_free(one, (ssize_t)bytes[i], 0, main_stream);
    }
    for (unsigned i = TENSORS; i--;)
        if (i % 3)
            memfit_torch_free(kept[--n], (ssize_t)bytes[i], 0, main_stream);
    for (unsigned i = 0; side && i < INPUTS; i++)
        memfit_torch_free(input[i], 6 << 20, 0, side);
    calls += 2 * TENSORS + (side ? 3 * INPUTS : 0);
    return calls;
}

static void torch_turns(const char *name, const fake_driver *driver, void *main_stream, void *side,
                        const uint64_t *bytes)
{
    double best = 1e9, worst = 0;
    fake_cuda_state before, after;
    unsigned calls = 0;
    for (unsigned i = 0; i < 20; i++)
        torch_step(main_stream, side, bytes);
    driver->state(&before);
    for (unsigned r = 0; r < ROUNDS; r++) {
        uint64_t start = ran_ns();
        unsigned now = 0;
        for (unsigned i = 0; i < TORCH_STEPS; i++)
            now += torch_step(main_stream, side, bytes);
        double ns = (double)(ran_ns() - start) / now;
        best = ns < best ? ns : best;
        worst = ns > worst ? ns : worst;
        calls += now;
    }
    driver->state(&after);
    printf("%-34s %7.1f to %7.1f ns a call, %.3f calls of the driver each\n", name, best, worst,
           (double)(after.calls - before.calls) / calls);
}

/* On the fake driver, whose library is named: the times have its cost in them, the driver's calls are as on a card. */
static void torch_calls(const char *library)
{
    setenv("MEMFIT_LIB_CUDA", library, 1);
    setenv("MEMFIT_LIB_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
    setenv("FAKE_CUDA_BYTES", "17179869184", 1);
    void *handle = dlopen(library, RTLD_NOW), *first, *own, *side;
    fake_driver driver;
    if (!handle || !(first = memfit_torch_alloc(1000, 0, NULL)))
        return (void)fprintf(stderr, "bench_pool torch: %s is no fake driver\n", library);
    memfit_torch_free(first, 1000, 0, NULL);
    *(void **)&driver.state = dlsym(handle, "fake_cuda_get");
    *(void **)&driver.stream_create = dlsym(handle, "cuStreamCreate");
    *(void **)&driver.ctx_push = dlsym(handle, "cuCtxPushCurrent_v2");
    driver.ctx_push((void *)(uintptr_t)0x1000); /* as PyTorch's runtime does */
    uint64_t bytes[2][TENSORS], seed = 1;
    for (unsigned i = 0; i < TENSORS; i++) {
        bytes[0][i] = 512 << next(&seed) % 6;
        bytes[1][i] = (uint64_t)65536 << next(&seed) % 8;
    }
    driver.stream_create(&own, 1);
    driver.stream_create(&side, 1);
    torch_turns("default stream, small", &driver, NULL, NULL, bytes[0]);
    torch_turns("default stream, 64 KiB to 8 MiB", &driver, NULL, NULL, bytes[1]);
    torch_turns("and a side stream, small", &driver, NULL, side, bytes[0]);
    torch_turns("and a side stream, 64 KiB to 8 MiB", &driver, NULL, side, bytes[1]);
    torch_turns("a stream of its own, 64 KiB to 8 MiB", &driver, own, side, bytes[1]);
}

/* ---- steps of a recorded program ------------------------------------------------------------------------------ */

/* A pool as PyTorch's, with the settings of torch.c; opening and unmapping a handle takes its price. */
static memfit_pool *torch_pool(memfit_device *device, uint64_t handle_us)
{
    memfit_error err;
    memfit_pool *pool;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.bulk_bytes = 32 * MiB, o.slack = 0.0025, o.no_thread_caches = true, o.ignore_environment = true;
    must(memfit_pool_create(device, &o, &pool, &err), &err);
    pool->pages.part = 512;
    mf_sim_handle_us(device, handle_us);
    return pool;
}

/* The device's work, and a program that queues it: it needs a part of the time the device needs, and is ahead by no more than so
 * much. What it spends on moving pages or waits for takes from its lead; when none is left the device is idle. */
typedef struct leader {
    uint64_t most_us, lead_us, idle_us;
    double part;
} leader;

/* The device has work for `us` more. */
static void queue(leader *l, memfit_device *device, uint64_t us)
{
    memfit_error err;
    uint64_t room = l->most_us > l->lead_us ? l->most_us - l->lead_us : 0,
             ahead = (uint64_t)((double)us * (1 - l->part));
    ahead = ahead < room ? ahead : room;
    must(memfit_device_advance(device, us - ahead, &err), &err);
    l->lead_us += ahead;
    if (l->most_us)
        mf_sim_lag_us(device, 0, l->lead_us ? l->lead_us : 1);
}

/* The program spent so long on something else. */
static void spend(leader *l, memfit_device *device, uint64_t us)
{
    if (!us)
        return;
    l->idle_us += us > l->lead_us ? us - l->lead_us : 0;
    l->lead_us -= us < l->lead_us ? us : l->lead_us;
    if (l->most_us)
        mf_sim_lag_us(device, 0, l->lead_us ? l->lead_us : 1);
}

/* Plays a trace of one stream through a pool as PyTorch's, on sim: each handle that is opened or unmapped takes its price, and the
 * device is so far behind the program: always, or at most, where the program needs a given part of the device's time. Shows what it
 * holds, what moving pages took of the time, and what of that the device waited for, in the first half and in the second; with a
 * part what it was really idle. */
static void steps(const char *path, uint64_t handle_us, uint64_t lag_us, double part)
{
    memfit_error err;
    memfit_trace *trace;
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    must(memfit_trace_load(path, NULL, &trace, &err), &err);
    must(memfit_trace_describe(trace, &info, &err), &err);
    uint64_t count, live = 0, peak = 0, now_us = 0, moving[2] = {0}, lost[2] = {0}, moved = 0, then_us = 1;
    const memfit_event *e = memfit_trace_events(trace, &count);
    memfit_address *at = calloc(info.buffers, sizeof *at);
    memfit_device *device = open_sim(64 * 1024 * MiB);
    memfit_pool *pool = torch_pool(device, handle_us);
    leader l = {.most_us = lag_us, .lead_us = part < 1 ? 0 : lag_us, .part = part};
    if (lag_us)
        mf_sim_lag_us(device, 0, lag_us);
    for (uint64_t i = 0; i < count; i++, e++) {
        queue(&l, device, e->time_ns / 1000 - now_us);
        now_us = e->time_ns / 1000;
        uint64_t began = mf_device_now_us(device);
        if (e->op == MEMFIT_EVENT_ALLOC) {
            must(memfit_pool_alloc(pool, e->bytes, 0, &at[e->id], &err), &err);
            live += e->bytes;
            peak = live > peak ? live : peak;
        } else if (e->op == MEMFIT_EVENT_FREE) {
            must(memfit_pool_free(pool, at[e->id], &err), &err);
            live -= e->bytes;
        }
        if (part < 1)
            spend(&l, device, mf_device_now_us(device) - began);
        if (i == count / 2) {
            moving[0] = pool->moving_us;
            lost[0] = part < 1 ? l.idle_us : pool->lost_us;
            moved = pool->remapped_pages;
            then_us = now_us;
        }
    }
    moving[1] = pool->moving_us - moving[0];
    lost[1] = (part < 1 ? l.idle_us : pool->lost_us) - lost[0];
    must(mf_pool_check(pool, &err), &err);
    uint64_t reserved = pool->pages.reserved_peak << pool->pages.shift, later = now_us - then_us;
    double first = 100.0 / (double)then_us, second = 100.0 / (double)(later ? later : 1);
    printf("%-30s %4llu us %5llu lag  %.4f of %5.2f GiB  moving %5.2f %% %5.2f %%  lost %5.2f %% %5.2f %%  pages %llu "
           "%llu\n",
           path, (unsigned long long)handle_us, (unsigned long long)lag_us, (double)reserved / (double)peak,
           (double)peak / 1073741824.0, (double)moving[0] * first, (double)moving[1] * second, (double)lost[0] * first,
           (double)lost[1] * second, (unsigned long long)moved, (unsigned long long)(pool->remapped_pages - moved));
    memfit_trace_destroy(trace);
    memfit_pool_destroy(pool);
    must(memfit_device_close(device, &err), &err);
    free(at);
}

/* ---- a program ahead of the device ------------------------------------------------------------------------------ */

enum { QUEUE = 1000 }; /* kernels that the driver takes before the program waits */

enum { STREAMS = 16 };

typedef struct runner { /* a program and what its streams have to do, by one clock */
    uint64_t now, end[STREAMS], queue[STREAMS][QUEUE], queued[STREAMS];
} runner;

/* The program queues work for a stream, and waits where the stream's queue is full. */
static void run_on(runner *r, int stream, uint64_t work)
{
    uint64_t *full = &r->queue[stream][r->queued[stream]++ % QUEUE];
    r->now = r->now > *full ? r->now : *full;
    r->end[stream] = (r->end[stream] > r->now ? r->end[stream] : r->now) + work;
    *full = r->end[stream];
}

static uint64_t runs_until(const runner *r)
{
    uint64_t end = r->now;
    for (int i = 0; i < STREAMS; i++)
        end = r->end[i] > end ? r->end[i] : end;
    return end;
}

/* The most that PyTorch's own allocator with expandable segments would hold for the same requests, by its model. */
static uint64_t expandable_holds(const memfit_event *e, uint64_t count, uint64_t buffers)
{
    memfit_error err;
    mf_pool_result r = {0};
    mf_tape tape;
    uint32_t *block = calloc(buffers, sizeof *block);
    mf_tape_init(&tape, mf_host_default(), 512);
    for (uint64_t i = 0; i < count; i++, e++)
        if (e->op == MEMFIT_EVENT_ALLOC)
            block[e->id] = mf_tape_take(&tape, e->bytes, MEMFIT_KIND_ACTIVATIONS, 0);
        else if (e->op == MEMFIT_EVENT_FREE)
            mf_tape_drop(&tape, block[e->id]);
    if (tape.failed)
        must(mf_fail(&err, MEMFIT_NO_HOST_MEMORY, "no memory to follow a trace"), &err);
    must(mf_pool_run(&tape, MF_POOL_EXPANDABLE, 0, &r, &err), &err);
    mf_tape_destroy(&tape);
    free(block);
    return r.reserved_bytes;
}

/* Plays a trace of one stream whose times are the device's through a pool as PyTorch's, on sim. A request takes the program
 * HOST_US, so it runs ahead where kernels are long, and the device waits where they are short. After every so many requests
 * (0: never) it waits for the device, as a program that looks at its loss does, and pauses. Shows what the pool holds and
 * what expandable segments would, and the time beside that of a pool whose calls take none, in all and in the second half. */
static void ahead(const char *path, uint64_t handle_us, uint64_t host_us, uint64_t wait_every, uint64_t pause_us)
{
    memfit_error err;
    memfit_trace *trace;
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    must(memfit_trace_load(path, NULL, &trace, &err), &err);
    must(memfit_trace_describe(trace, &info, &err), &err);
    uint64_t count, live = 0, peak = 0, before_us = 0, half = 0, ideal_half = 0;
    const memfit_event *e = memfit_trace_events(trace, &count);
    memfit_address *at = calloc(info.buffers, sizeof *at);
    runner *real = calloc(2, sizeof *real), *free_of_cost = real + 1; /* in microseconds */
    memfit_device *device = open_sim(64 * 1024 * MiB);
    memfit_pool *pool = torch_pool(device, handle_us);
    uint64_t began = mf_device_now_us(device);
    for (uint64_t i = 0; i < count; i++, e++) {
        uint64_t work = e->time_ns / 1000 - before_us;
        before_us += work;
        if (e->op == MEMFIT_EVENT_FREE) {
            must(memfit_pool_free(pool, at[e->id], &err), &err);
            live -= e->bytes;
        }
        if (e->op != MEMFIT_EVENT_ALLOC) {
            real->end[0] += work;
            free_of_cost->end[0] += work;
            continue;
        }
        free_of_cost->now += host_us;
        run_on(free_of_cost, 0, work);
        uint64_t then = mf_device_now_us(device) - began;
        real->now = then + host_us;
        run_on(real, 0, work);
        must(memfit_device_advance(device, real->now - then, &err), &err);
        if (wait_every && real->queued[0] % wait_every == 0) {
            if (real->end[0] > real->now)
                must(memfit_device_advance(device, real->end[0] - real->now, &err), &err);
            if (free_of_cost->end[0] > free_of_cost->now)
                free_of_cost->now = free_of_cost->end[0];
            mf_sim_lag_us(device, 0, 1);
            must(memfit_device_advance(device, pause_us, &err), &err);
            free_of_cost->now += pause_us;
            real->now = mf_device_now_us(device) - began;
            real->end[0] = real->end[0] > real->now ? real->end[0] : real->now;
        }
        mf_sim_lag_us(device, 0, real->end[0] - real->now + 1);
        must(memfit_pool_alloc(pool, e->bytes, 0, &at[e->id], &err), &err);
        live += e->bytes;
        peak = live > peak ? live : peak;
        if (i < count / 2) {
            real->now = mf_device_now_us(device) - began;
            half = runs_until(real);
            ideal_half = runs_until(free_of_cost);
        }
    }
    uint64_t other = expandable_holds(e - count, count, info.buffers);
    real->now = mf_device_now_us(device) - began;
    uint64_t end = runs_until(real), ideal = runs_until(free_of_cost);
    must(mf_pool_check(pool, &err), &err);
    printf("%-30s %4llu us %4llu us  %.4f (%.4f) of %5.2f GiB  time %.4f, later %.4f, of %.2f s  "
           "moving %.2f %%  lost %.2f %%  pages %llu\n",
           path, (unsigned long long)handle_us, (unsigned long long)host_us,
           (double)(pool->pages.reserved_peak << pool->pages.shift) / (double)peak, (double)other / (double)peak,
           (double)peak / 1073741824.0, (double)end / (double)ideal,
           (double)(end - half) / (double)(ideal - ideal_half), (double)ideal / 1e6,
           100.0 * (double)pool->moving_us / (double)ideal, 100.0 * (double)pool->lost_us / (double)ideal,
           (unsigned long long)pool->remapped_pages);
    memfit_trace_destroy(trace);
    memfit_pool_destroy(pool);
    must(memfit_device_close(device, &err), &err);
    free(real);
    free(at);
}

/* ---- requests recorded on a card (torch_shim.c) ----------------------------------------------------------------- */

typedef struct said { /* a line of the file */
    uint64_t us, bytes;
    uint32_t id, order;
    int stream;
    char op;
} said;

/* How far a stream was behind is written down later than it was so. */
static int earlier(const void *a, const void *b)
{
    const said *x = a, *y = b;
    if (x->us != y->us)
        return x->us < y->us ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static said *read_shim(const char *path, size_t *count, uint32_t *ids)
{
    FILE *file = fopen(path, "r");
    size_t room = 0, n = 0;
    said *all = NULL, one = {0};
    unsigned long long us, bytes;
    uint64_t latest = 0;
    while (file && fscanf(file, "%llu %c %u %llu %d", &us, &one.op, &one.id, &bytes, &one.stream) == 5) {
        if (n == room && !(all = realloc(all, (room = room ? 2 * room : 65536) * sizeof *all)))
            exit(1);
        if (one.stream < 0 || one.stream >= STREAMS || !strchr("aful", one.op))
            continue;
        latest = one.op != 'l' && us > latest ? us : latest; /* two threads may have written in the other order */
        one.us = one.op == 'l' ? us : latest, one.bytes = bytes, one.order = (uint32_t)n;
        *ids = one.id > *ids ? one.id : *ids;
        all[n++] = one;
    }
    if (!n)
        fprintf(stderr, "bench_pool play: %s has no requests\n", path), exit(1);
    fclose(file);
    qsort(all, n, sizeof *all, earlier);
    *count = n;
    return all;
}

/* Plays such a file through a pool as PyTorch's, on sim: streams are as far behind as they were. */
static void play(const char *path, uint64_t handle_us)
{
    size_t count;
    uint32_t ids = 0;
    memfit_error err;
    said *all = read_shim(path, &count, &ids);
    struct {
        memfit_address at;
        uint64_t bytes;
    } *blocks = calloc((size_t)ids + 1, sizeof *blocks);
    memfit_device *device = open_sim(139 * 1024 * MiB);
    memfit_pool *pool = torch_pool(device, handle_us);
    memfit_stream streams[STREAMS] = {0};
    for (int i = 1; i < STREAMS; i++)
        must(memfit_stream_create(device, &streams[i], &err), &err);
    uint64_t now_us = all[0].us, half_us = now_us + (all[count - 1].us - now_us) / 2, live = 0, peak = 0;
    uint64_t moving = 0, lost = 0, length = half_us - now_us + 1;
    for (const said *s = all; s < all + count; s++) {
        if (s->us > now_us)
            must(memfit_device_advance(device, s->us - now_us, &err), &err);
        if (now_us <= half_us)
            moving = pool->moving_us, lost = pool->lost_us;
        now_us = s->us > now_us ? s->us : now_us;
        if (s->op == 'l') {
            mf_sim_lag_us(device, streams[s->stream], s->bytes);
        } else if (s->op == 'a') {
            must(memfit_pool_alloc_on(pool, s->bytes, 0, 0, streams[s->stream], &blocks[s->id].at, &err), &err);
            live += blocks[s->id].bytes = s->bytes;
            peak = live > peak ? live : peak;
        } else if (blocks[s->id].at && s->op == 'u') {
            must(memfit_pool_use_on(pool, blocks[s->id].at, streams[s->stream], &err), &err);
        } else if (blocks[s->id].at) {
            must(memfit_pool_free_on(pool, blocks[s->id].at, streams[s->stream], &err), &err);
            live -= blocks[s->id].bytes;
            blocks[s->id].at = 0;
        }
    }
    must(mf_pool_check(pool, &err), &err);
    double part = 100.0 / (double)length;
    printf(
        "%-30s %4llu us  %.4f of %5.2f GiB  moving %5.2f %% %5.2f %%  lost %5.2f %% %5.2f %%  pages %llu  waits %llu\n",
        path, (unsigned long long)handle_us, (double)(pool->pages.reserved_peak << pool->pages.shift) / (double)peak,
        (double)peak / 1073741824.0, (double)moving * part, (double)(pool->moving_us - moving) * part,
        (double)lost * part, (double)(pool->lost_us - lost) * part, (unsigned long long)pool->remapped_pages,
        (unsigned long long)pool->stream_waits);
    memfit_pool_destroy(pool);
    must(memfit_device_close(device, &err), &err);
    free(blocks);
    free(all);
}

/* ---- programs with several streams, recorded without a card (torch_record.py) ------------------------------------- */

typedef struct stream_race {
    memfit_device *device;
    memfit_pool *pool;
    memfit_stream streams[STREAMS];
    runner real, ideal; /* in nanoseconds; the pool of the second takes no time */
    struct {
        memfit_address at;
        uint64_t bytes;
    } * blocks;
    uint64_t began_us, live, peak;
} stream_race;

typedef struct entry { /* a line of the file */
    unsigned long long us, bytes;
    unsigned id;
    int stream;
    char op;
} entry;

static bool read_entry(FILE *file, entry *e)
{
    return fscanf(file, "%llu %c %u %llu %d", &e->us, &e->op, &e->id, &e->bytes, &e->stream) == 5 && e->stream >= 0 &&
           e->stream < STREAMS && strchr("afukwh", e->op) && (e->op != 'w' || e->id < STREAMS);
}

/* The program's or a stream's own work, or a wait: no request. */
static void go_on(stream_race *x, const entry *e, uint64_t host_us)
{
    memfit_error err;
    runner *both[] = {&x->real, &x->ideal};
    uint64_t then = x->real.now;
    for (unsigned i = 0; i < 2; i++) {
        runner *r = both[i];
        if (e->op == 'w')
            r->end[e->stream] = r->end[e->id] > r->end[e->stream] ? r->end[e->id] : r->end[e->stream];
        else
            r->now += e->op == 'h' ? e->bytes : host_us * 1000;
        if (e->op == 'k')
            run_on(r, e->stream, e->bytes);
    }
    must(memfit_device_advance(x->device, (x->real.now - then) / 1000, &err), &err);
}

static void request(stream_race *x, const entry *e)
{
    memfit_error err;
    for (int i = 0; i < STREAMS; i++)
        mf_sim_lag_us(x->device, x->streams[i],
                      x->real.end[i] > x->real.now ? (x->real.end[i] - x->real.now) / 1000 + 1 : 1);
    if (e->op == 'a' && !x->blocks[e->id].at) {
        must(memfit_pool_alloc_on(x->pool, e->bytes, 0, 0, x->streams[e->stream], &x->blocks[e->id].at, &err), &err);
        x->live += x->blocks[e->id].bytes = e->bytes;
        x->peak = x->live > x->peak ? x->live : x->peak;
    } else if (e->op == 'u' && x->blocks[e->id].at) {
        must(memfit_pool_use_on(x->pool, x->blocks[e->id].at, x->streams[e->stream], &err), &err);
    } else if (e->op == 'f' && x->blocks[e->id].at) {
        must(memfit_pool_free_on(x->pool, x->blocks[e->id].at, x->streams[e->stream], &err), &err);
        x->live -= x->blocks[e->id].bytes;
        x->blocks[e->id].at = 0;
    }
}

/* Plays such a file through a pool as PyTorch's, on sim. An operation takes the program HOST_US, so it runs ahead where kernels
 * are long. Streams do not slow each other. Shows the same as `ahead`, but for expandable segments. */
static void race_streams(const char *path, uint64_t handle_us, uint64_t host_us)
{
    FILE *file = fopen(path, "r");
    memfit_error err;
    entry e;
    size_t lines = 0, ids = 0;
    uint64_t half_us = 0, half = 0, ideal_half = 0, lost = 0, moved = 0;
    if (!file)
        fprintf(stderr, "bench_pool race: %s cannot be read\n", path), exit(1);
    for (; read_entry(file, &e); lines++) {
        ids = e.id > ids ? e.id : ids;
        half_us = e.us / 2;
    }
    if (!lines || !feof(file))
        fprintf(stderr, "bench_pool race: %s: line %zu is no request\n", path, lines + 1), exit(1);
    rewind(file);
    stream_race *x = calloc(1, sizeof *x);
    x->blocks = calloc(ids + 1, sizeof *x->blocks);
    x->device = open_sim(139 * 1024 * MiB);
    x->pool = torch_pool(x->device, handle_us);
    x->began_us = mf_device_now_us(x->device);
    for (int i = 1; i < STREAMS; i++)
        must(memfit_stream_create(x->device, &x->streams[i], &err), &err);
    while (read_entry(file, &e)) {
        x->real.now = (mf_device_now_us(x->device) - x->began_us) * 1000;
        if (strchr("afu", e.op))
            request(x, &e);
        else
            go_on(x, &e, host_us);
        if (e.us < half_us) {
            x->real.now = (mf_device_now_us(x->device) - x->began_us) * 1000;
            half = runs_until(&x->real), ideal_half = runs_until(&x->ideal);
            lost = x->pool->lost_us, moved = x->pool->remapped_pages;
        }
    }
    fclose(file);
    x->real.now = (mf_device_now_us(x->device) - x->began_us) * 1000;
    must(mf_pool_check(x->pool, &err), &err);
    const memfit_pool *p = x->pool;
    double end = (double)runs_until(&x->real), best = (double)runs_until(&x->ideal), later = best - (double)ideal_half;
    printf("%-30s %4llu us %4llu us  %.4f of %5.2f GiB  time %.4f, later %.4f, of %.2f s  moving %.2f %%  lost %.2f %% "
           "later %.2f %%  pages %llu, later %llu  waits %llu\n",
           path, (unsigned long long)handle_us, (unsigned long long)host_us,
           (double)(p->pages.reserved_peak << p->pages.shift) / (double)x->peak, (double)x->peak / 1073741824.0,
           end / best, (end - (double)half) / later, best / 1e9, 1e5 * (double)p->moving_us / best,
           1e5 * (double)p->lost_us / best, 1e5 * (double)(p->lost_us - lost) / later,
           (unsigned long long)p->remapped_pages, (unsigned long long)(p->remapped_pages - moved),
           (unsigned long long)p->stream_waits);
    memfit_pool_destroy(x->pool);
    must(memfit_device_close(x->device, &err), &err);
    free(x->blocks);
    free(x);
}

/* bench_pool [NAME]: all, or one of hot, random, threads, tracing, metadata; or torch LIBRARY, with the fake driver; or
 * steps TRACE HANDLE_US LAG_US [PART]; or ahead TRACE HANDLE_US HOST_US [WAIT_EVERY [PAUSE_US]]; or play REQUESTS
 * HANDLE_US; or race REQUESTS HANDLE_US HOST_US. */
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
        two_threads(peers, n);
    if (!only || !strcmp(only, "tracing"))
        tracing();
    if (!only || !strcmp(only, "metadata"))
        metadata();
    if (argc > 2 && !strcmp(only, "torch"))
        torch_calls(argv[2]);
    if (argc > 4 && !strcmp(only, "steps"))
        steps(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), argc > 5 ? strtod(argv[5], NULL) : 1);
    if (argc > 4 && !strcmp(only, "ahead"))
        ahead(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
              argc > 5 ? strtoull(argv[5], NULL, 10) : 0, argc > 6 ? strtoull(argv[6], NULL, 10) : 0);
    if (argc > 3 && !strcmp(only, "play"))
        play(argv[2], strtoull(argv[3], NULL, 10));
    if (argc > 4 && !strcmp(only, "race"))
        race_streams(argv[2], strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10));
    return 0;
}
