/*
 * test_pool_invariants.c: what must hold on every device and under every policy. Each test below runs for all of
 * setups[].
 */
#include "test.h"

#include "base/os.h"
#include "device/sim.h"
#include "pool/pool.h"

#include <pthread.h>

#define MiB (UINT64_C(1) << 20)

typedef struct setup {
    const char *device;
    memfit_policy policy;
    bool caches;
    uint64_t page;
    bool debug;
} setup;

static const setup setups[] = {
    {"sim", MEMFIT_POLICY_GROWTH, true, 2 * MiB, false},    {"sim", MEMFIT_POLICY_PREALLOCATE, true, 2 * MiB, false},
    {"sim", MEMFIT_POLICY_GROWTH, false, 2 * MiB, false},   {"sim", MEMFIT_POLICY_GROWTH, true, 8 * MiB, false},
    {"cpu", MEMFIT_POLICY_GROWTH, true, 2 * MiB, false},    {"cpu", MEMFIT_POLICY_PREALLOCATE, true, 2 * MiB, false},
    {"cpu", MEMFIT_POLICY_GROWTH, false, 65536, false},     {"cpu", MEMFIT_POLICY_GROWTH, true, 2 * MiB, true},
    {"cpu", MEMFIT_POLICY_PREALLOCATE, false, 65536, true},
};
enum { SETUPS = sizeof setups / sizeof *setups };

/* With MEMFIT_TEST_DEVICE=cuda the same suite runs on a card instead (or on the fake driver). */
static const setup cuda_setups[] = {
    {"cuda", MEMFIT_POLICY_GROWTH, true, 2 * MiB, false},
    {"cuda", MEMFIT_POLICY_PREALLOCATE, true, 2 * MiB, false},
    {"cuda", MEMFIT_POLICY_GROWTH, false, 2 * MiB, false},
    {"cuda", MEMFIT_POLICY_GROWTH, true, 8 * MiB, false},
};
enum { CUDA_SETUPS = sizeof cuda_setups / sizeof *cuda_setups };

static bool on_cuda(void)
{
    const char *device = getenv("MEMFIT_TEST_DEVICE");
    return device && !strcmp(device, "cuda");
}

typedef struct place {
    const setup *s;
    memfit_device *device;
    memfit_pool *pool;
    uint64_t fixed, limit_pages;
} place;

static memfit_error err;

static void open_device(place *p, const setup *s, uint64_t capacity)
{
    *p = (place){.s = s};
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    bool sim = !strcmp(s->device, "sim");
    if (on_cuda()) {
        memfit_device_info info = MEMFIT_DEVICE_INFO;
        assert_ok(memfit_device_open(s->device, NULL, &p->device, &err), err);
        assert_ok(memfit_device_get_info(p->device, &info, &err), err);
        p->fixed = info.fixed_bytes;
        return;
    }
    options.fixed_bytes = 3 * MiB;
    options.capacity_bytes = capacity + options.fixed_bytes;
    if (sim)
        options.granularity_bytes = s->page < 2 * MiB ? s->page : 2 * MiB;
    assert_ok(memfit_device_open(s->device, &options, &p->device, &err), err);
    p->fixed = options.fixed_bytes;
}

static memfit_pool *make_pool(place *p, uint64_t limit, bool slice)
{
    memfit_pool *pool;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.policy = p->s->policy;
    options.page_bytes = p->s->page;
    options.limit_bytes = limit;
    options.no_thread_caches = !p->s->caches;
    options.debug = p->s->debug;
    options.slice = slice;
    options.ignore_environment = true;
    assert_ok(memfit_pool_create(p->device, &options, &pool, &err), err);
    return pool;
}

static void open_place(place *p, const setup *s, uint64_t bytes)
{
    open_device(p, s, bytes);
    p->pool = make_pool(p, bytes + p->fixed, false);
    p->limit_pages = bytes / s->page;
}

static void close_place(place *p)
{
    assert_ok(mf_pool_check(p->pool, &err), err);
    memfit_pool_destroy(p->pool);
    if (!strcmp(p->s->device, "sim")) {
        mf_sim_counts counts = mf_sim_get(p->device);
        assert_int_equal(counts.physical_bytes, 0);
        assert_int_equal(counts.mapped_bytes, 0);
        assert_int_equal(counts.reserved_bytes, 0);
    }
    assert_ok(memfit_device_close(p->device, &err), err);
}

static memfit_pool_info info_of(memfit_pool *pool)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(pool, &info, &err), err);
    return info;
}

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * 0x9e3779b97f4a7c15u >> 20;
}

/* ---- no overlap: every block keeps its own pattern ----------------------------------------------------------- */

static void no_overlap(const setup *s)
{
    enum { LIVE = 200 };
    place p;
    open_place(&p, s, 64 * MiB);
    memfit_address at[LIVE] = {0};
    uint64_t bytes[LIVE], seed = 42;
    bool real = !strcmp(s->device, "cpu");
    for (unsigned i = 0; i < 4000; i++) {
        unsigned k = (unsigned)(next(&seed) % LIVE);
        if (at[k]) {
            for (uint64_t j = 0; real && j < bytes[k]; j += bytes[k] < 4096 ? 1 : 509)
                assert_int_equal(((unsigned char *)(uintptr_t)at[k])[j], k);
            assert_ok(memfit_pool_free(p.pool, at[k], &err), err);
            at[k] = 0;
            continue;
        }
        bytes[k] = next(&seed) % (next(&seed) % 4 ? 20000 : 2 * MiB);
        if (memfit_pool_alloc(p.pool, bytes[k], 0, &at[k], &err)) {
            assert_int_equal(err.code, MEMFIT_OUT_OF_MEMORY);
            at[k] = 0;
            continue;
        }
        assert_int_equal(at[k] % 256, 0);
        for (unsigned j = 0; j < LIVE; j++)
            assert_true(j == k || !at[j] || at[j] + bytes[j] <= at[k] || at[k] + bytes[k] <= at[j]);
        assert_ok(memfit_device_fill(p.device, at[k], (unsigned char)k, bytes[k], 0, &err), err);
        memfit_block_info block = MEMFIT_BLOCK_INFO;
        assert_ok(memfit_pool_find(p.pool, at[k] + (bytes[k] ? bytes[k] - 1 : 0), &block, &err), err);
        assert_int_equal(block.address, at[k]);
        assert_int_equal(block.bytes, bytes[k]);
    }
    close_place(&p);
}

static void alignment(const setup *s)
{
    place p;
    open_place(&p, s, 64 * MiB);
    for (uint64_t a = 1; a <= 8 * MiB; a *= 2)
        for (uint64_t bytes = 1; bytes <= 4 * MiB; bytes = bytes * 7 + 1) {
            memfit_address x, y;
            assert_ok(memfit_pool_alloc_on(p.pool, 100, 0, 0, 0, &x, &err), err);
            assert_ok(memfit_pool_alloc_on(p.pool, bytes, a, 0, 0, &y, &err), err);
            assert_int_equal(y % (a < 256 ? 256 : a), 0);
            assert_ok(memfit_pool_free(p.pool, y, &err), err);
            assert_ok(memfit_pool_free(p.pool, x, &err), err);
        }
    memfit_address x;
    assert_int_equal(memfit_pool_alloc_on(p.pool, 100, 3, 0, 0, &x, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 100, UINT64_C(1) << 63, 0, 0, &x, &err), MEMFIT_OUT_OF_MEMORY);
    close_place(&p);
}

static void zero_and_huge(const setup *s)
{
    place p;
    open_place(&p, s, 16 * MiB);
    memfit_address a, b;
    assert_ok(memfit_pool_alloc(p.pool, 0, 0, &a, &err), err);
    assert_ok(memfit_pool_alloc(p.pool, 0, 0, &b, &err), err);
    assert_true(a && b && a != b);
    static const uint64_t huge[] = {16 * MiB + 1,     UINT64_C(1) << 40, INT64_MAX,
                                    UINT64_MAX - 300, UINT64_MAX - 1,    UINT64_MAX};
    for (unsigned i = 0; i < sizeof huge / sizeof *huge; i++) {
        memfit_address c = 77;
        assert_int_equal(memfit_pool_alloc(p.pool, huge[i], 0, &c, &err), MEMFIT_OUT_OF_MEMORY);
        assert_int_equal(c, 77);
        assert_int_equal(memfit_pool_alloc_on(p.pool, huge[i], 4096, 0, 0, &c, &err), MEMFIT_OUT_OF_MEMORY);
        assert_int_equal(err.requested_bytes, huge[i]);
    }
    assert_ok(memfit_pool_free(p.pool, a, &err), err);
    assert_ok(memfit_pool_free(p.pool, b, &err), err);
    /* and all of it, to the last page */
    uint64_t most = 16 * MiB - (s->debug ? 256 : 0);
    assert_ok(memfit_pool_alloc(p.pool, most, 0, &a, &err), err);
    assert_int_equal(memfit_pool_alloc(p.pool, s->debug ? 1 : 1, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_pool_free(p.pool, a, &err), err);
    close_place(&p);
}

static void coalescing(const setup *s)
{
    enum { N = 64 };
    place p;
    open_place(&p, s, 64 * MiB);
    memfit_address first = 0, at[N];
    for (unsigned cycle = 0; cycle < (s->debug ? 6u : 1024u); cycle++) {
        for (unsigned i = 0; i < N; i++)
            assert_ok(memfit_pool_alloc(p.pool, 500000 + 256 * (cycle % 3), 0, &at[i], &err), err);
        if (cycle % 3 == 0 && (s->debug || cycle > 100)) { /* what comes again and again has found its places */
            if (!first)
                first = at[0];
            assert_int_equal(at[0], first);
        }
        for (unsigned i = 0; i < N; i += 2)
            assert_ok(memfit_pool_free(p.pool, at[i], &err), err);
        for (unsigned i = 1; i < N; i += 2)
            assert_ok(memfit_pool_free(p.pool, at[i], &err), err);
    }
    memfit_address all;
    assert_ok(memfit_pool_alloc(p.pool, 64 * MiB - 256, 0, &all, &err), err);
    assert_ok(memfit_pool_free(p.pool, all, &err), err);
    close_place(&p);
}

/* Half of everything freed, a hole after each survivor: with pages that move, the other half can be had in one piece.
 */
static void survivors(const setup *s)
{
    enum { MOST = 4096 };
    place p;
    uint64_t bytes = 64 * MiB, page = s->page < MiB ? MiB : s->page;
    open_place(&p, s, bytes);
    memfit_address at[MOST], whole;
    unsigned n = 0;
    uint64_t guard = s->debug ? 256 : 0;
    while (n < MOST && !memfit_pool_alloc(p.pool, page - guard, 0, &at[n], &err))
        n++;
    assert_int_equal(n, bytes / page);
    for (unsigned i = 0; i < n; i += 2)
        assert_ok(memfit_pool_free(p.pool, at[i], &err), err);
    assert_ok(memfit_pool_alloc(p.pool, (n + 1) / 2 * page - guard, 0, &whole, &err), err);
    assert_int_equal(info_of(p.pool).reserved_bytes, bytes);
    assert_ok(memfit_pool_free(p.pool, whole, &err), err);
    /* One small survivor in each page pins it: refused, but the pages without one can be had. */
    for (unsigned i = 1; i < n; i += 2)
        assert_ok(memfit_pool_free(p.pool, at[i], &err), err);
    memfit_address tiny[MOST], filler[MOST];
    unsigned pages = (unsigned)(bytes / s->page);
    if (s->page >= 2 * MiB) {
        for (unsigned i = 0; i < pages; i++) {
            assert_ok(memfit_pool_alloc(p.pool, 40000, 0, &tiny[i], &err), err);
            assert_ok(
                memfit_pool_alloc(p.pool, s->page - ((40000 + guard + 255) / 256 * 256) - guard, 0, &filler[i], &err),
                err);
        }
        for (unsigned i = 0; i < pages; i++)
            assert_ok(memfit_pool_free(p.pool, filler[i], &err), err);
        assert_int_equal(memfit_pool_alloc(p.pool, s->page, 0, &whole, &err), MEMFIT_OUT_OF_MEMORY);
        assert_true(info_of(p.pool).pinned_bytes > bytes / 2);
        assert_ok(memfit_pool_free(p.pool, tiny[0], &err), err);
        assert_ok(memfit_pool_alloc(p.pool, s->page - guard, 0, &whole, &err), err);
    }
    close_place(&p);
}

/* ---- threads -------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, BOX = 64 };

typedef struct race {
    memfit_pool *pool;
    uint64_t ops, seed;
    _Atomic uint64_t *box; /* blocks put down by one thread and freed by another */
    _Atomic uint64_t refused;
} race;

static void *race_main(void *ctx)
{
    race *r = ctx;
    memfit_error local;
    for (uint64_t i = 0; i < r->ops; i++) {
        uint64_t bytes = next(&r->seed) % 8 ? next(&r->seed) % 9000 : next(&r->seed) % (3 * MiB);
        memfit_address a;
        memfit_status status = memfit_pool_alloc(r->pool, bytes, 0, &a, &local);
        if (status) {
            if (status != MEMFIT_OUT_OF_MEMORY)
                return (void *)1;
            atomic_fetch_add(&r->refused, 1);
            a = 0;
        }
        uint64_t old = atomic_exchange(&r->box[next(&r->seed) % BOX], a);
        if (old && memfit_pool_free(r->pool, old, &local))
            return (void *)2;
    }
    return NULL;
}

/* The long run is for the first setup only: it is about the limit, which knows no device. */
static uint64_t race_operations(const setup *s)
{
    const char *text = getenv("MEMFIT_TEST_OPS");
    return text && s == setups ? strtoull(text, NULL, 10) : 40000;
}

static void threads(const setup *s)
{
    place p;
    if (s->debug)
        return;
    open_place(&p, s, 16 * MiB);
    _Atomic uint64_t box[BOX] = {0};
    race r[THREADS];
    pthread_t t[THREADS];
    uint64_t refused = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        r[i] = (race){p.pool, race_operations(s) / THREADS, 1000 + i, box, 0};
        assert_int_equal(pthread_create(&t[i], NULL, race_main, &r[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(t[i], &result);
        assert_null(result);
        refused += r[i].refused;
    }
    assert_true(refused > 0);
    assert_ok(mf_pool_check(p.pool, &err), err);
    memfit_pool_info info = info_of(p.pool);
    assert_true(info.reserved_peak_bytes + p.fixed <= info.limit_bytes);
    if (!strcmp(s->device, "sim"))
        assert_true(mf_sim_get(p.device).physical_peak_bytes <= 16 * MiB);
    for (unsigned i = 0; i < BOX; i++)
        if (box[i])
            assert_ok(memfit_pool_free(p.pool, box[i], &err), err);
    assert_int_equal(info_of(p.pool).in_use_bytes, 0);
    close_place(&p);
}

/* ---- streams -------------------------------------------------------------------------------------------------- */

static void streams(const setup *s)
{
    place p;
    open_place(&p, s, on_cuda() ? 32 * MiB : 16 * MiB); /* a card's streams cost memory themselves */
    bool sim = !strcmp(s->device, "sim");
    memfit_stream one, two;
    assert_ok(memfit_stream_create(p.device, &one, &err), err);
    assert_ok(memfit_stream_create(p.device, &two, &err), err);
    memfit_address a, b, c;
    assert_ok(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, one, &a, &err), err);
    if (sim)
        mf_sim_hold(p.device, one, true);
    assert_ok(memfit_pool_free_on(p.pool, a, one, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, one, &b, &err), err); /* the same stream: at once */
    assert_int_equal(a, b);
    assert_ok(memfit_pool_free_on(p.pool, b, one, &err), err);
    if (sim) {
        assert_int_equal(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, two, &c, &err), MEMFIT_OUT_OF_MEMORY);
        assert_int_equal(err.cause, MEMFIT_CAUSE_PENDING_STREAM);
        assert_true(info_of(p.pool).pending_bytes >= 12 * MiB);
        mf_sim_hold(p.device, one, false);
    }
    assert_ok(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, two, &c, &err), err);
    assert_ok(memfit_pool_free_on(p.pool, c, two, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 500, 0, 0, one, &a, &err), err);
    assert_ok(memfit_pool_free_on(p.pool, a, two, &err), err);
    assert_ok(memfit_pool_forget_stream(p.pool, one, &err), err);
    assert_ok(memfit_pool_forget_stream(p.pool, two, &err), err);
    assert_ok(memfit_stream_destroy(p.device, one, &err), err);
    assert_ok(memfit_stream_destroy(p.device, two, &err), err);
    close_place(&p);
}

/* ---- limits --------------------------------------------------------------------------------------------------- */

static void limit_moves(const setup *s)
{
    place p;
    open_place(&p, s, 64 * MiB);
    memfit_address a, b;
    uint64_t guard = s->debug ? 256 : 0;
    assert_ok(memfit_pool_alloc(p.pool, 32 * MiB - guard, 0, &a, &err), err);
    assert_int_equal(memfit_pool_set_limit(p.pool, 16 * MiB + p.fixed, false, &err), MEMFIT_CONFLICT);
    assert_int_equal(err.limit_bytes, 32 * MiB + p.fixed);
    assert_int_equal(info_of(p.pool).limit_bytes, 64 * MiB + p.fixed);
    assert_ok(memfit_pool_set_limit(p.pool, 32 * MiB + p.fixed, false, &err), err);
    assert_int_equal(info_of(p.pool).reserved_bytes, 32 * MiB);
    assert_int_equal(memfit_pool_alloc(p.pool, 8 * MiB, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_pool_set_limit(p.pool, 16 * MiB + p.fixed, true, &err), err);
    assert_int_equal(memfit_pool_alloc(p.pool, 1 * MiB, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_pool_free(p.pool, a, &err), err);
    assert_true(info_of(p.pool).reserved_bytes <= 16 * MiB);
    assert_ok(memfit_pool_alloc(p.pool, 16 * MiB - guard, 0, &a, &err), err);
    assert_ok(memfit_pool_set_limit(p.pool, 64 * MiB + p.fixed, false, &err), err);
    assert_ok(memfit_pool_alloc(p.pool, 40 * MiB, 0, &b, &err), err);
    assert_int_equal(memfit_pool_set_limit(p.pool, UINT64_C(1) << 50, false, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_set_limit(p.pool, 1024, false, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_set_limit(p.pool, p.fixed, false, &err),
                     p.fixed < s->page ? MEMFIT_INVALID : MEMFIT_OUT_OF_MEMORY);
    close_place(&p);
}

/* A card's size cannot be chosen: a slice that never takes a page sets aside all but so many bytes, the first pool's
 * among them. */
static memfit_pool *leave_on_card(place *p, uint64_t bytes)
{
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_device_get_info(p->device, &info, &err), err);
    memfit_pool *pool;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = (info.total_bytes - info.fixed_bytes - bytes) & ~(2 * MiB - 1);
    options.slice = true;
    options.ignore_environment = true;
    assert_ok(memfit_pool_create(p->device, &options, &pool, &err), err);
    return pool;
}

static void slices(const setup *s)
{
    place p;
    open_device(&p, s, 48 * MiB);
    p.pool = make_pool(&p, 16 * MiB + p.fixed, true); /* the first pays the fixed cost */
    memfit_pool *rest_of_card = on_cuda() ? leave_on_card(&p, 48 * MiB) : NULL;
    memfit_pool *other = make_pool(&p, 16 * MiB, true), *rest = make_pool(&p, 16 * MiB, false), *none;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = 24 * MiB;
    options.page_bytes = s->page;
    options.slice = true;
    options.ignore_environment = true;
    assert_int_equal(memfit_pool_create(p.device, &options, &none, &err), MEMFIT_CONFLICT);
    uint64_t guard = s->debug ? 256 : 0;
    memfit_address a, b, c;
    assert_ok(memfit_pool_alloc(p.pool, 16 * MiB - guard, 0, &a, &err), err);
    assert_int_equal(memfit_pool_alloc(p.pool, 40000, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
    /* a pool that is no slice gets only what was not set aside, used or not */
    if (s->policy == MEMFIT_POLICY_GROWTH) {
        assert_ok(memfit_pool_set_limit(rest, 40 * MiB, false, &err), err);
        assert_int_equal(memfit_pool_alloc(rest, 24 * MiB, 0, &c, &err), MEMFIT_OUT_OF_MEMORY);
        assert_int_equal(err.cause, MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE);
    }
    assert_ok(memfit_pool_alloc(rest, 16 * MiB - guard, 0, &c, &err), err);
    assert_ok(memfit_pool_alloc(other, 16 * MiB - guard, 0, &b, &err), err);
    assert_int_equal(memfit_pool_free(other, a, &err), MEMFIT_MISUSE);
    memfit_pool_destroy(rest);
    memfit_pool_destroy(other);
    memfit_pool_destroy(rest_of_card);
    close_place(&p);
}

/* ---- 100 lives ------------------------------------------------------------------------------------------------ */

static void lives(const setup *s)
{
    place p;
    uint64_t after_first = 0;
    mf_os_memory memory;
    open_device(&p, s, 64 * MiB);
    for (unsigned i = 0; i < 100; i++) {
        p.pool = make_pool(&p, 12 * MiB + p.fixed, false);
        memfit_address at[16];
        for (unsigned k = 0; k < 16; k++) {
            assert_ok(memfit_pool_alloc(p.pool, k * 50000, 0, &at[k], &err), err);
            assert_ok(memfit_device_fill(p.device, at[k], 1, k * 50000, 0, &err), err);
        }
        for (unsigned k = 0; k < 16; k += 2)
            assert_ok(memfit_pool_free(p.pool, at[k], &err), err);
        memfit_pool_destroy(p.pool);
        assert_int_equal(memfit_pool_free(p.pool, at[1], &err), MEMFIT_MISUSE);
        assert_ok(mf_os_process_memory(&memory, &err), err);
        if (i == 20)
            after_first = memory.rss_anon + memory.rss_shmem;
    }
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_device_get_info(p.device, &info, &err), err);
    assert_int_equal(info.pools_bytes, 0);
    assert_int_equal(info.set_aside_bytes, 0);
    if (on_cuda()) { /* the driver has shared memory of its own */
        assert_ok(memfit_device_close(p.device, &err), err);
        return;
    }
    assert_int_equal(memory.rss_shmem, 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what was freed */
    assert_true(memory.rss_anon + memory.rss_shmem <= after_first + 65536);
#endif
    (void)after_first;
    assert_ok(memfit_device_close(p.device, &err), err);
}

#define EVERYWHERE(name)                                                                                               \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for (unsigned i = 0; i < (on_cuda() ? CUDA_SETUPS : SETUPS); i++)                                              \
            name(on_cuda() ? &cuda_setups[i] : &setups[i]);                                                            \
    }
EVERYWHERE(no_overlap)
EVERYWHERE(alignment)
EVERYWHERE(zero_and_huge)
EVERYWHERE(coalescing)
EVERYWHERE(survivors)
EVERYWHERE(threads)
EVERYWHERE(streams)
EVERYWHERE(limit_moves)
EVERYWHERE(slices)
EVERYWHERE(lives)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_overlap), cmocka_unit_test(test_alignment),   cmocka_unit_test(test_zero_and_huge),
        cmocka_unit_test(test_coalescing), cmocka_unit_test(test_survivors),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_streams),    cmocka_unit_test(test_limit_moves), cmocka_unit_test(test_slices),
        cmocka_unit_test(test_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
