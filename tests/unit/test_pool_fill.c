/*
 * test_pool_fill.c: what taking a large pool at once asks of the driver, counted: on sim at the size of a whole card, on
 * the fake driver at a size it can hold. And that asking NVML for the fixed cost meanwhile takes a small part of the time,
 * however long an answer takes: the driver walks over all handles for it. Then both at once: two pools of a card in two
 * threads, each with a stream that is captured now and then, and limits that change meanwhile.
 */
#include "test.h"

#include "base/os.h"
#include "device/cuda_driver.h"
#include "device/sim.h"
#include "fakes/fake_cuda_load.h"
#include "pool/pages.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define MiB UINT64_C(1048576)
#define GiB (1024 * MiB)

static void (*fail_call)(const char *, uint64_t, int, bool);
static void (*get_state)(fake_cuda_state *);
static void (*reset_counts)(void);
static uint64_t (*count_calls)(const char *);
static void (*capture)(uint64_t, bool);

static int load_fake(void **state)
{
    (void)state;
    setenv("FAKE_CUDA_BYTES", "9663676416", 1); /* 9 GiB */
    void *library = open_fake_driver();
    *(void **)&fail_call = need(library, "fake_cuda_fail");
    *(void **)&get_state = need(library, "fake_cuda_get");
    *(void **)&reset_counts = need(library, "fake_cuda_reset_counts");
    *(void **)&count_calls = need(library, "fake_cuda_count");
    *(void **)&capture = need(library, "fake_cuda_capture");
    return 0;
}

/* By one block under growth, and by preallocating: one handle a page, or fewer where bulk handles are allowed; access for
 * all of it in one call, and one call to unmap it. */
static const struct fill {
    uint64_t bytes, bulk;
    uint64_t handles;
} fills[] = {
    {110 * GiB, 0, 56320},
    {110 * GiB, 32 * MiB, 16720}, /* the last quarter of the limit in pages */
    {110 * GiB, 1024 * MiB, 1376},
};

static void a_whole_card_is_one_access(void **state)
{
    (void)state;
    memfit_error err;
    for (unsigned i = 0; i < 2 * sizeof fills / sizeof *fills; i++) {
        const struct fill *f = &fills[i / 2];
        memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
        d.capacity_bytes = 140 * GiB;
        memfit_device *device;
        assert_ok(memfit_device_open("sim", &d, &device, &err), err);
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.limit_bytes = f->bytes, o.bulk_bytes = f->bulk, o.ignore_environment = true;
        o.policy = i % 2 ? MEMFIT_POLICY_PREALLOCATE : MEMFIT_POLICY_GROWTH;
        memfit_pool *pool;
        memfit_address at;
        assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
        assert_ok(memfit_pool_alloc(pool, f->bytes, 0, &at, &err), err);
        mf_sim_counts c = mf_sim_get(device);
        assert_int_equal(c.physical_bytes, f->bytes);
        assert_int_equal(c.calls[MF_CALL_CREATE], f->handles);
        assert_int_equal(c.calls[MF_CALL_MAP], c.calls[MF_CALL_CREATE]);
        assert_int_equal(c.calls[MF_CALL_ACCESS], 1);
        assert_ok(mf_pool_check(pool, &err), err);
        assert_true(mf_sim_check(device, &err));
        assert_ok(memfit_pool_free(pool, at, &err), err);
        memfit_pool_destroy(pool);
        c = mf_sim_get(device);
        assert_int_equal(c.calls[MF_CALL_UNMAP], 1);
        assert_int_equal(c.physical_bytes, 0);
        assert_ok(memfit_device_close(device, &err), err);
    }
}

static memfit_pool *pool_on(memfit_device *device, memfit_policy policy, memfit_status *status, memfit_error *err)
{
    memfit_pool *pool = NULL;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.limit_bytes = 8 * GiB, o.policy = policy, o.ignore_environment = true;
    *status = memfit_pool_create(device, &o, &pool, err);
    return *status ? NULL : pool;
}

/* The driver's own calls; and when one in the middle is refused, nothing is left of the others. */
static void the_driver_refuses_in_the_middle(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    memfit_status status;
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    reset_counts();
    memfit_pool *pool = pool_on(device, MEMFIT_POLICY_PREALLOCATE, &status, &err);
    assert_ok(status, err);
    uint64_t pages = pool->pages.reserved;
    assert_in_range(pages, 4000, 4096); /* the fixed cost is within the limit */
    assert_int_equal(count_calls("cuMemCreate"), pages);
    assert_int_equal(count_calls("cuMemMap"), pages);
    assert_int_equal(count_calls("cuMemSetAccess"), 1);
    memfit_pool_destroy(pool);
    assert_int_equal(count_calls("cuMemUnmap"), 1);
    assert_int_equal(count_calls("cuMemRelease"), pages);
    static const char *const calls[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};
    for (unsigned i = 0; i < 2 * sizeof calls / sizeof *calls; i++) {
        bool later = i % 2;
        pool = later ? pool_on(device, MEMFIT_POLICY_GROWTH, &status, &err) : NULL;
        fail_call(calls[i / 2], i / 2 == 2 ? 1 : pages / 2, i / 2 ? 999 : CU_ERROR_OUT_OF_MEMORY, false);
        if (!later)
            pool = pool_on(device, MEMFIT_POLICY_PREALLOCATE, &status, &err);
        else
            status = memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, &err);
        fail_call(NULL, 0, 0, false);
        assert_int_equal(status, i / 2 ? MEMFIT_DEVICE : MEMFIT_OUT_OF_MEMORY);
        fake_cuda_state s;
        get_state(&s);
        assert_int_equal(s.handles, 0);
        assert_int_equal(s.mappings, 0);
        assert_int_equal(s.broken, 0);
        if (!later)
            continue;
        assert_int_equal(pool->pages.reserved, 0);
        assert_ok(mf_pool_check(pool, &err), err);
        assert_ok(memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, &err), err);
        assert_int_equal(pool->pages.reserved, pages);
        assert_ok(mf_pool_check(pool, &err), err);
        memfit_pool_destroy(pool);
    }
    assert_ok(memfit_device_close(device, &err), err);
    driver_holds_nothing(get_state);
}

static const char *use_nvml(const char *answer_us)
{
    const char *path = getenv("FAKE_NVML_LIBRARY");
    assert_non_null(path);
    char mine[64];
    snprintf(mine, sizeof mine, "0:%d:300", (int)getpid());
    setenv("MEMFIT_LIB_NVML", path, 1);
    setenv("FAKE_NVML_UUID", "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", 1);
    setenv("FAKE_NVML_PROCESSES", mine, 1);
    setenv("FAKE_NVML_US", answer_us, 1);
    return path;
}

/* An answer of NVML's takes longer than the time between two: then they become fewer. */
static void asking_takes_a_tenth_of_the_time(void **state)
{
    (void)state;
    enum { ANSWER_US = 6000, PAGES = 2000 };
    const char *path = use_nvml("6000");
    unsigned (*listings)(void);
    *(void **)&listings = need(dlopen(path, RTLD_NOW), "fake_nvml_listings");
    memfit_error err;
    memfit_device *device;
    memfit_status status;
    memfit_address at;
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    memfit_pool *pool = pool_on(device, MEMFIT_POLICY_GROWTH, &status, &err);
    assert_ok(status, err);
    uint64_t began = mf_os_now_us(), before = listings();
    assert_ok(memfit_pool_alloc(pool, PAGES * 2 * MiB, 0, &at, &err), err);
    uint64_t took = mf_os_now_us() - began, asked = listings() - before;
    assert_true(asked <= 1 + took / (10 * ANSWER_US));
    assert_ok(memfit_pool_free(pool, at, &err), err);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
    unsetenv("FAKE_NVML_US");
    driver_holds_nothing(get_state);
}

/* ---- two pools at once ---------------------------------------------------------------------------------------- */

typedef struct player {
    memfit_device *device;
    memfit_pool *pool;
    memfit_stream stream;
    unsigned seed, refused, failed;
} player;

static unsigned draw(player *p)
{
    p->seed = p->seed * 1664525 + 1013904223;
    return p->seed >> 8;
}

/* A captured stream is refused whatever the way, and the default stream is not captured meanwhile. */
static void try_captured(player *p)
{
    memfit_address a;
    capture(p->stream, true);
    p->failed += memfit_pool_alloc_on(p->pool, 3 * MiB, 0, 0, p->stream, &a, NULL) != MEMFIT_UNSUPPORTED;
    bool free_stream = !memfit_pool_alloc_on(p->pool, 4096, 0, 0, 0, &a, NULL);
    p->failed += !free_stream || memfit_pool_free_on(p->pool, a, 0, NULL);
    capture(p->stream, false);
    p->refused++;
}

static void *play(void *ctx)
{
    enum { TURNS = 1500, LIVE = 24 };
    player *p = ctx;
    memfit_address at[LIVE] = {0};
    for (unsigned i = 0; i < TURNS; i++) {
        unsigned k = draw(p) % LIVE;
        memfit_stream stream = draw(p) % 3 ? 0 : p->stream;
        if (at[k]) {
            p->failed += memfit_pool_free_on(p->pool, at[k], stream, NULL) != MEMFIT_OK;
            at[k] = 0;
        } else {
            uint64_t bytes = (uint64_t)(1 + draw(p) % 40) * 150000;
            memfit_status status = draw(p) % 2 ? memfit_pool_alloc_on(p->pool, bytes, 0, 0, stream, &at[k], NULL)
                                               : mf_pool_alloc_running(p->pool, bytes, 0, stream, &at[k], NULL);
            p->failed += status != MEMFIT_OK && status != MEMFIT_OUT_OF_MEMORY;
        }
        if (i % 50 == 7)
            p->failed += memfit_pool_set_limit(p->pool, (i % 100 == 7 ? 420 : 600) * MiB, true, NULL) != MEMFIT_OK;
        if (i % 100 == 31)
            try_captured(p);
        if (i % 300 == 91)
            p->failed += mf_pool_check(p->pool, NULL) != MEMFIT_OK;
    }
    for (unsigned k = 0; k < LIVE; k++)
        p->failed += at[k] && memfit_pool_free_on(p->pool, at[k], 0, NULL) != MEMFIT_OK;
    return NULL;
}

static void two_pools_in_two_threads(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    use_nvml("100");
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    player players[2] = {{.device = device, .seed = 1}, {.device = device, .seed = 2}};
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++) {
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.limit_bytes = 600 * MiB, o.bulk_bytes = i ? 8 * MiB : 0, o.ignore_environment = true;
        assert_ok(memfit_pool_create(device, &o, &players[i].pool, &err), err);
        assert_ok(memfit_stream_create(device, &players[i].stream, &err), err);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, play, &players[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(players[i].failed, 0);
        assert_true(players[i].refused > 0);
        assert_ok(mf_pool_check(players[i].pool, &err), err);
    }
    pid_t child = fork(); /* the pools stay with the parent */
    if (!child) {
        memfit_address a;
        _exit(mf_pool_alloc_running(players[0].pool, 4096, 0, 0, &a, NULL) == MEMFIT_MISUSE ? 0 : 1);
    }
    int rc = -1;
    assert_true(child > 0 && waitpid(child, &rc, 0) == child);
    assert_int_equal(rc, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(mf_pool_check(players[i].pool, &err), err);
        memfit_pool_destroy(players[i].pool);
        assert_ok(memfit_stream_destroy(device, players[i].stream, &err), err);
    }
    assert_ok(memfit_device_close(device, &err), err);
    unsetenv("FAKE_NVML_US");
    driver_holds_nothing(get_state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_card_is_one_access),
        cmocka_unit_test(the_driver_refuses_in_the_middle),
        cmocka_unit_test(asking_takes_a_tenth_of_the_time),
        cmocka_unit_test(two_pools_in_two_threads),
    };
    return cmocka_run_group_tests(tests, load_fake, NULL);
}
