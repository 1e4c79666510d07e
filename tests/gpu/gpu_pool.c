/*
 * gpu_pool.c: the pool on a real card, checked and timed. Prints a table; exit status 1 when a check does not hold, 77
 * without a card.
 *
 *     gpu_pool [SECONDS]            how long to drive the pool to its limit (default 60)
 *     gpu_pool SECONDS LIMIT_GIB    only that, with this limit: for several processes at once
 *
 *   fixed      what NVML shows for this process before the first block, against the device's own figure
 *   pair       allocate and free, hot
 *   vmm        what each driver call costs
 *   growth     64 GiB from cold, in bulk handles
 *   trim       everything freed and trimmed: NVML back at the fixed cost
 *   patterns   every block is filled with its number by the card and read back before it is freed, under a limit that
 *              forces pages to move: a page shared or taken too early would show; several threads, a stream each
 *   behind     the same on one stream that is kept far behind the program: pages move while the card still works with
 *              them. What is read back is gathered on the card, so that nothing ever waits
 *   limit      NVML's figure sampled every 10 ms while the pool is driven to its limit
 *   slices     two logical devices, each held to its own limit
 *   refusal    a limit below the fixed cost
 */
#include "base/os.h"
#include "device/device.h"
#include "device/nvml.h"
#include "memfit/pool.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static mf_nvml *nvml;
static unsigned card;
static int broken;

static void row(const char *what, bool good, const char *format, ...) MEMFIT_PRINTF(3, 4);

static void row(const char *what, bool good, const char *format, ...)
{
    char text[240];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    broken += !good;
    printf("%-10s %-6s %s\n", what, good ? "ok" : "BROKEN", text);
    fflush(stdout);
}

static uint64_t own_bytes(void)
{
    mf_nvml_process list[64];
    size_t count = 0;
    if (mf_nvml_processes(nvml, card, list, 64, &count, NULL))
        return 0;
    for (size_t i = 0; i < count && i < 64; i++)
        if (list[i].pid == (unsigned)getpid())
            return list[i].bytes;
    return 0;
}

static memfit_pool *make_pool(memfit_device *device, uint64_t limit, uint64_t bulk, bool slice)
{
    memfit_pool *pool = NULL;
    memfit_error err;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = limit;
    options.bulk_bytes = bulk;
    options.slice = slice;
    options.ignore_environment = true;
    options.purge_ms = MEMFIT_PURGE_NEVER;
    if (memfit_pool_create(device, &options, &pool, &err)) {
        fprintf(stderr, "pool: %s\n", err.message);
        exit(1);
    }
    return pool;
}

/* ---- time ------------------------------------------------------------------------------------------------- */

static void pairs(memfit_device *device)
{
    static const uint64_t sizes[] = {256, 65536, MIB, 64 * MIB};
    memfit_pool *pool = make_pool(device, 8 * GIB, 0, false);
    char text[160] = "";
    for (size_t s = 0; s < 4; s++) {
        enum { N = 400000 };
        memfit_address a;
        double best = 1e9;
        for (int round = 0; round < 5; round++) {
            uint64_t start = mf_os_now_ns();
            for (int i = 0; i < N; i++)
                if (memfit_pool_alloc(pool, sizes[s], 0, &a, NULL) || memfit_pool_free(pool, a, NULL)) {
                    row("pair", false, "refused");
                    return;
                }
            double ns = (double)(mf_os_now_ns() - start) / N;
            best = ns < best ? ns : best;
        }
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%llu KiB %.1f ns", s ? ", " : "",
                 (unsigned long long)sizes[s] / 1024, best);
    }
    row("pair", true, "%s (goal 60 ns)", text);
    memfit_pool_destroy(pool);
}

/* What each driver call costs, by handle size. */
static void vmm_costs(memfit_device *d)
{
    static const uint64_t sizes[] = {2 * MIB, 64 * MIB, GIB};
    for (size_t k = 0; k < 3; k++) {
        enum { N = 16 };
        uint64_t bytes = sizes[k], t[6];
        mf_address range;
        mf_physical h[N];
        bool good = !d->table->reserve(d, N * bytes, 0, &range, NULL);
        t[0] = mf_os_now_ns();
        for (int i = 0; i < N; i++)
            good = good && !d->table->create(d, bytes, &h[i], NULL);
        t[1] = mf_os_now_ns();
        for (int i = 0; i < N; i++)
            good = good && !d->table->map(d, range + (uint64_t)i * bytes, bytes, h[i], NULL);
        t[2] = mf_os_now_ns();
        good = good && !d->table->access(d, range, N * bytes, NULL);
        t[3] = mf_os_now_ns();
        for (int i = 0; i < N; i++)
            good = good && !d->table->unmap(d, range + (uint64_t)i * bytes, bytes, NULL);
        t[4] = mf_os_now_ns();
        for (int i = 0; i < N; i++)
            good = good && !d->table->release(d, h[i], bytes, NULL);
        t[5] = mf_os_now_ns();
        good = good && !d->table->unreserve(d, range, N * bytes, NULL);
        row("vmm", good,
            "%4llu MiB: create %.1f, map %.1f, access %.1f (one call for %d), unmap %.1f, release %.1f us a handle",
            (unsigned long long)(bytes / MIB), (double)(t[1] - t[0]) / N / 1e3, (double)(t[2] - t[1]) / N / 1e3,
            (double)(t[3] - t[2]) / N / 1e3, N, (double)(t[4] - t[3]) / N / 1e3, (double)(t[5] - t[4]) / N / 1e3);
    }
}

static void growth_and_trim(memfit_device *device, uint64_t fixed, uint64_t free_bytes)
{
    enum { N = 64 };
    memfit_address blocks[N];
    memfit_error err = {0};
    uint64_t want = free_bytes > 70 * GIB ? GIB : free_bytes / 80 / (2 * MIB) * (2 * MIB);
    memfit_pool *pool = make_pool(device, fixed + (N + 2) * want, GIB, false);
    uint64_t start = mf_os_now_us();
    int n = 0;
    while (n < N && !memfit_pool_alloc(pool, want, 0, &blocks[n], &err))
        n++;
    double ms = (double)(mf_os_now_us() - start) / 1e3;
    row("growth", n == N, "%d x %llu MiB in %.1f ms (goal for 64 GiB: 100 ms)%s%s", n, (unsigned long long)(want / MIB),
        ms, n < N ? ": " : "", n < N ? err.message : "");
    for (int i = 0; i < n; i++)
        memfit_pool_free(pool, blocks[i], NULL);
    start = mf_os_now_us();
    memfit_pool_trim(pool, 0, NULL, &err);
    ms = (double)(mf_os_now_us() - start) / 1e3;
    uint64_t after = own_bytes();
    row("trim", after <= fixed + 2 * MIB, "process %llu MiB, fixed %llu MiB, given back in %.1f ms",
        (unsigned long long)(after / MIB), (unsigned long long)(fixed / MIB), ms);
    memfit_pool_destroy(pool);
}

/* The two policies and the purge as NVML sees them: all at once, only what is used, and back without being asked. */
static void policies(memfit_device *device, uint64_t fixed)
{
    uint64_t limit = fixed + 4 * GIB;
    memfit_error err = {0};
    memfit_address a = 0;
    memfit_pool *pool = make_pool(device, limit, GIB, false);
    uint64_t empty = own_bytes();
    bool good = !memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, &err);
    uint64_t whole = own_bytes();
    good = good && !memfit_pool_set_policy(pool, MEMFIT_POLICY_GROWTH, &err) && !memfit_pool_trim(pool, 0, NULL, &err);
    uint64_t again = own_bytes();
    row("preallocate", good && whole + 4 * MIB >= limit && whole <= limit && again <= fixed + 2 * MIB,
        "process %llu MiB, preallocated %llu of %llu MiB, growing again and trimmed %llu MiB%s%s",
        (unsigned long long)(empty / MIB), (unsigned long long)(whole / MIB), (unsigned long long)(limit / MIB),
        (unsigned long long)(again / MIB), good ? "" : ": ", good ? "" : err.message);
    good = !memfit_pool_set_purge(pool, 50, &err) && !memfit_pool_alloc(pool, 2 * GIB, 0, &a, &err);
    uint64_t used = own_bytes();
    good = good && !memfit_pool_free(pool, a, &err);
    uint64_t start = mf_os_now_us(), now = used;
    while (good && (now = own_bytes()) > fixed + 2 * MIB && mf_os_now_us() - start < 5000000) {
        usleep(10000);
        memfit_pool_poll(pool, NULL);
    }
    row("purge", good && used >= 2 * GIB && now <= fixed + 2 * MIB,
        "process %llu MiB in use, %llu MiB %.0f ms after the free, with a delay of 50 ms",
        (unsigned long long)(used / MIB), (unsigned long long)(now / MIB), (double)(mf_os_now_us() - start) / 1e3);
    memfit_pool_destroy(pool);
}

/* ---- patterns --------------------------------------------------------------------------------------------- */

typedef struct worker {
    memfit_device *device;
    memfit_pool *pool;
    unsigned seed;
    int rounds;
    uint64_t checked, refused, wrong;
} worker;

static uint64_t next_random(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static uint64_t bad_bytes(memfit_device *device, memfit_address at, uint64_t bytes, unsigned char want,
                          memfit_stream stream)
{
    unsigned char buffer[4096];
    uint64_t wrong = 0;
    if (memfit_device_copy_out(device, buffer, at, bytes, stream, NULL) || memfit_stream_sync(device, stream, NULL))
        return bytes;
    for (uint64_t i = 0; i < bytes; i++)
        wrong += buffer[i] != want;
    return wrong;
}

static void *work(void *argument)
{
    enum { SLOTS = 48 };
    worker *w = argument;
    struct {
        memfit_address at;
        uint64_t bytes;
        unsigned char mark;
    } slots[SLOTS] = {0};
    memfit_stream stream = 0;
    memfit_stream_create(w->device, &stream, NULL);
    for (int i = 0; i < w->rounds; i++) {
        int k = (int)(next_random(&w->seed) % SLOTS);
        if (slots[k].at) {
            uint64_t edge = slots[k].bytes < 4096 ? slots[k].bytes : 4096;
            uint64_t middle = slots[k].bytes > 8192 ? next_random(&w->seed) * 4096 % (slots[k].bytes - 4096) : 0;
            w->wrong += bad_bytes(w->device, slots[k].at, edge, slots[k].mark, stream);
            w->wrong += bad_bytes(w->device, slots[k].at + slots[k].bytes - edge, edge, slots[k].mark, stream);
            w->wrong += bad_bytes(w->device, slots[k].at + middle, edge, slots[k].mark, stream);
            w->checked++;
            memfit_pool_free_on(w->pool, slots[k].at, stream, NULL);
            slots[k].at = 0;
            continue;
        }
        uint64_t bytes =
            1 + next_random(&w->seed) * next_random(&w->seed) % (next_random(&w->seed) % 4 ? 3 * MIB : 40 * MIB);
        if (memfit_pool_alloc_on(w->pool, bytes, 0, 0, stream, &slots[k].at, NULL)) {
            slots[k].at = 0;
            w->refused++;
            continue;
        }
        slots[k].bytes = bytes;
        slots[k].mark = (unsigned char)(1 + next_random(&w->seed) % 255);
        memfit_device_fill(w->device, slots[k].at, slots[k].mark, bytes, stream, NULL);
    }
    for (int k = 0; k < SLOTS; k++)
        if (slots[k].at)
            memfit_pool_free_on(w->pool, slots[k].at, stream, NULL);
    memfit_stream_sync(w->device, stream, NULL);
    memfit_pool_forget_stream(w->pool, stream, NULL);
    memfit_stream_destroy(w->device, stream, NULL);
    return NULL;
}

static void patterns(memfit_device *device, uint64_t fixed)
{
    enum { THREADS = 4 };
    memfit_pool *pool = make_pool(device, fixed + 900 * MIB, 0, false);
    worker w[THREADS];
    pthread_t threads[THREADS];
    uint64_t checked = 0, refused = 0, wrong = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        w[i] = (worker){device, pool, 17 * i + 1, 6000, 0, 0, 0};
        pthread_create(&threads[i], NULL, work, &w[i]);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        checked += w[i].checked;
        refused += w[i].refused;
        wrong += w[i].wrong;
    }
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_pool_get_info(pool, &info, NULL);
    row("patterns", wrong == 0 && info.in_use_bytes == 0,
        "%llu blocks read back, %llu wrong bytes, %llu remaps of %llu pages, %llu refused at the limit",
        (unsigned long long)checked, (unsigned long long)wrong, (unsigned long long)info.remaps,
        (unsigned long long)info.remapped_pages, (unsigned long long)refused);
    memfit_pool_destroy(pool);
}

/* One stream, never waited for: before a block is freed three pieces of it are copied into a block of results. */
static void behind(memfit_device *device, uint64_t fixed)
{
    enum { SLOTS = 64, ROUNDS = 8000, PIECE = 1024, LOAD_EVERY = 40 };
    struct {
        memfit_address at;
        uint64_t bytes;
        unsigned char mark;
    } slots[SLOTS] = {0};
    static unsigned char marks[ROUNDS];
    uint64_t results_bytes = (uint64_t)ROUNDS * 3 * PIECE, load_bytes = 256 * MIB, checked = 0, refused = 0, wrong = 0;
    memfit_pool *pool = make_pool(device, fixed + results_bytes + load_bytes + 600 * MIB, 0, false);
    memfit_address results = 0, load = 0;
    memfit_stream stream = 0;
    unsigned seed = 3;
    bool good = !memfit_stream_create(device, &stream, NULL) &&
                !memfit_pool_alloc_on(pool, results_bytes, 0, 0, stream, &results, NULL) &&
                !memfit_pool_alloc_on(pool, load_bytes, 0, 0, stream, &load, NULL);
    for (int i = 0; good && i < ROUNDS; i++) {
        int k = (int)(next_random(&seed) % SLOTS);
        for (int l = 0; i % LOAD_EVERY == 0 && l < 64; l++) /* some milliseconds of work */
            good = good && !memfit_device_fill(device, load, 1, load_bytes, stream, NULL);
        if (slots[k].at) {
            uint64_t spots[3] = {0, slots[k].bytes - PIECE, next_random(&seed) * 512 % (slots[k].bytes - PIECE)};
            for (int s = 0; s < 3; s++)
                good = good && !device->table->copy(device, results + (checked * 3 + (uint64_t)s) * PIECE,
                                                    slots[k].at + spots[s], PIECE, stream, NULL);
            marks[checked++] = slots[k].mark;
            memfit_pool_free_on(pool, slots[k].at, stream, NULL);
            slots[k].at = 0;
            continue;
        }
        uint64_t bytes =
            PIECE + 1 + next_random(&seed) * next_random(&seed) % (next_random(&seed) % 4 ? 6 * MIB : 60 * MIB);
        if (memfit_pool_alloc_on(pool, bytes, 0, 0, stream, &slots[k].at, NULL)) {
            slots[k].at = 0;
            refused++;
            continue;
        }
        slots[k].bytes = bytes;
        slots[k].mark = (unsigned char)(1 + next_random(&seed) % 255);
        good = good && !memfit_device_fill(device, slots[k].at, slots[k].mark, bytes, stream, NULL);
    }
    unsigned char piece[3 * PIECE];
    for (uint64_t i = 0; good && i < checked; i++) {
        good = !memfit_device_copy_out(device, piece, results + i * sizeof piece, sizeof piece, stream, NULL) &&
               !memfit_stream_sync(device, stream, NULL);
        for (size_t b = 0; b < sizeof piece; b++)
            wrong += piece[b] != marks[i];
    }
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_pool_get_info(pool, &info, NULL);
    row("behind", good && wrong == 0 && checked > 0,
        "%llu blocks read back, %llu wrong bytes, %llu remaps of %llu pages, %llu waits, %llu refused at the limit",
        (unsigned long long)checked, (unsigned long long)wrong, (unsigned long long)info.remaps,
        (unsigned long long)info.remapped_pages, (unsigned long long)info.stream_waits, (unsigned long long)refused);
    memfit_pool_destroy(pool);
    memfit_stream_destroy(device, stream, NULL);
}

/* ---- limits ----------------------------------------------------------------------------------------------- */

typedef struct sampler {
    _Atomic bool stop;
    uint64_t highest, samples;
} sampler;

static void *sample(void *argument)
{
    sampler *s = argument;
    while (!s->stop) {
        uint64_t now = own_bytes();
        s->highest = now > s->highest ? now : s->highest;
        s->samples++;
        usleep(10000);
    }
    return NULL;
}

static void limits(memfit_device *device, uint64_t limit, int seconds)
{
    enum { SLOTS = 4096 };
    static memfit_address slots[SLOTS];
    uint64_t refused = 0, done = 0;
    memfit_pool *pool = make_pool(device, limit, 0, false);
    sampler s = {0};
    pthread_t thread;
    unsigned seed = 5;
    pthread_create(&thread, NULL, sample, &s);
    uint64_t end = mf_os_now_us() + (uint64_t)seconds * 1000000;
    while (mf_os_now_us() < end) {
        size_t k = next_random(&seed) % SLOTS;
        done++;
        if (slots[k]) {
            memfit_pool_free(pool, slots[k], NULL);
            slots[k] = 0;
        } else if (memfit_pool_alloc(pool, next_random(&seed) * next_random(&seed) % (16 * MIB) + 1, 0, &slots[k],
                                     NULL)) {
            slots[k] = 0;
            refused++;
        }
    }
    s.stop = true;
    pthread_join(thread, NULL);
    row("limit", s.highest <= limit && refused > 0,
        "limit %.3f GiB, highest of %llu samples %.3f GiB; %llu calls, %llu refused in %d s",
        (double)limit / (double)GIB, (unsigned long long)s.samples, (double)s.highest / (double)GIB,
        (unsigned long long)done, (unsigned long long)refused, seconds);
    memset(slots, 0, sizeof slots);
    memfit_pool_destroy(pool);
}

static void slices(memfit_device *device)
{
    memfit_pool *a = make_pool(device, 3 * GIB, 0, true), *b = make_pool(device, 2 * GIB, 0, true);
    memfit_address at;
    uint64_t got[2] = {0};
    memfit_pool *pools[2] = {a, b};
    for (int i = 0; i < 2; i++)
        while (!memfit_pool_alloc(pools[i], 64 * MIB, 0, &at, NULL))
            got[i] += 64 * MIB;
    memfit_pool_info ia = {0}, ib = {0};
    memfit_pool_get_info(a, &ia, NULL);
    memfit_pool_get_info(b, &ib, NULL);
    row("slices",
        ia.reserved_bytes + ia.fixed_bytes <= 3 * GIB && ib.reserved_bytes + ib.fixed_bytes <= 2 * GIB && got[0] &&
            got[1],
        "3 GiB slice gave %llu MiB, 2 GiB slice %llu MiB", (unsigned long long)(got[0] / MIB),
        (unsigned long long)(got[1] / MIB));
    memfit_pool_destroy(a);
    memfit_pool_destroy(b);
}

static void refusal(memfit_device *device, uint64_t fixed)
{
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    memfit_pool *pool = NULL;
    memfit_error err = {0};
    options.limit_bytes = fixed / 2;
    options.ignore_environment = true;
    memfit_status status = memfit_pool_create(device, &options, &pool, &err);
    row("refusal", status != MEMFIT_OK, "limit of half the fixed cost: %s", err.message);
    memfit_pool_destroy(pool);
}

int main(int argc, char **argv)
{
    int seconds = argc > 1 ? atoi(argv[1]) : 60;
    memfit_device *device = NULL;
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    memfit_error err;
    if (memfit_device_open("cuda", NULL, &device, &err)) {
        printf("gpu_pool: skipped: %s\n", err.message);
        return 77;
    }
    if (memfit_device_get_info(device, &info, &err) || mf_nvml_open(NULL, mf_finder_default(), &nvml, &err) ||
        mf_nvml_card_by_uuid(nvml, info.uuid, &card, &err)) {
        printf("gpu_pool: %s\n", err.message);
        return 1;
    }
    uint64_t shown = own_bytes();
    if (argc > 2) {
        limits(device, (uint64_t)atoi(argv[2]) * GIB, seconds);
        mf_nvml_close(nvml);
        memfit_device_close(device, NULL);
        return broken > 0;
    }
    printf("%s, %.1f GiB, %.1f GiB free\n", info.model, (double)info.total_bytes / (double)GIB,
           (double)info.free_bytes / (double)GIB);
    row("fixed", shown > 0 && shown <= info.fixed_bytes + 2 * MIB && info.fixed_bytes <= shown + 2 * MIB,
        "NVML shows %llu MiB, the device says %llu MiB", (unsigned long long)(shown / MIB),
        (unsigned long long)(info.fixed_bytes / MIB));
    refusal(device, info.fixed_bytes);
    pairs(device);
    vmm_costs(device);
    growth_and_trim(device, info.fixed_bytes, info.free_bytes);
    policies(device, info.fixed_bytes);
    patterns(device, info.fixed_bytes);
    behind(device, info.fixed_bytes);
    slices(device);
    limits(device, 12 * GIB, seconds);
    mf_nvml_close(nvml);
    memfit_device_close(device, NULL);
    printf("gpu_pool: %d broken\n", broken);
    return broken > 0;
}
