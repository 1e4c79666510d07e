/*
 * test_pool_life.c: pools that come and go beside others, threads that end, processes that fork, callbacks that call back.
 */
#include "test.h"

#include "base/json.h"
#include "base/memory.h"
#include "device/sim.h"
#include "memfit/explanation.h"
#include "memfit/pool.h"
#include "memfit/trace.h"
#include "pool/state.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define MiB (UINT64_C(1) << 20)

static memfit_error err;

static memfit_device *open_device(const char *name, uint64_t capacity)
{
    memfit_device *device;
    memfit_device_options o = MEMFIT_DEVICE_OPTIONS;
    o.capacity_bytes = capacity;
    if (strcmp(name, "cpu") == 0)
        o.fixed_bytes = 1;
    assert_ok(memfit_device_open(name, &o, &device, &err), err);
    return device;
}

static memfit_pool_options options(uint64_t limit)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.limit_bytes = limit;
    o.ignore_environment = true;
    return o;
}

static memfit_pool *make(memfit_device *device, uint64_t limit)
{
    memfit_pool *pool;
    memfit_pool_options o = options(limit);
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    return pool;
}

/* ---- two pools in two threads --------------------------------------------------------------------------------- */

typedef struct short_one {
    memfit_device *device;
    memfit_pool *pool;
    atomic_bool stop;
    atomic_uint refused;
} short_one;

/* Asks for more than there is, again and again: each time the other pools are looked at and asked to give back. */
static void *always_short(void *arg)
{
    short_one *s = arg;
    memfit_address a;
    memfit_error mine;
    while (!atomic_load(&s->stop))
        if (memfit_pool_alloc(s->pool, 100 * MiB, 0, &a, &mine) == MEMFIT_OK)
            memfit_pool_free(s->pool, a, &mine);
        else
            atomic_fetch_add(&s->refused, 1);
    return NULL;
}

static void pools_come_and_go_beside_a_short_one(void **state)
{
    (void)state;
    short_one s = {.device = open_device("sim", 128 * MiB)};
    s.pool = make(s.device, 128 * MiB);
    memfit_address most, a;
    assert_ok(memfit_pool_alloc(s.pool, 60 * MiB, 0, &most, &err), err);
    pthread_t thread;
    pthread_create(&thread, NULL, always_short, &s);
    for (unsigned i = 0; i < 3000 || atomic_load(&s.refused) < 100; i++) {
        memfit_pool *other = make(s.device, 64 * MiB);
        if (i % 2 && memfit_pool_alloc(other, 3 * MiB, 0, &a, &err) == MEMFIT_OK)
            assert_ok(memfit_pool_free(other, a, &err), err);
        memfit_pool_destroy(other);
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    memfit_pool_destroy(s.pool);
    assert_int_equal(mf_sim_get(s.device).physical_bytes, 0);
    assert_ok(memfit_device_close(s.device, &err), err);
}

/* The fixed cost is paid once, whoever comes first and whoever goes. */
static void one_pool_pays(void **state)
{
    (void)state;
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = 256 * MiB;
    d.fixed_bytes = 10 * MiB;
    memfit_device *device;
    assert_ok(memfit_device_open("sim", &d, &device, &err), err);
    memfit_pool *a = make(device, 100 * MiB), *b = make(device, 100 * MiB);
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(b, &info, &err), err);
    assert_int_equal(info.fixed_bytes, 0);
    memfit_pool_destroy(a);
    assert_ok(memfit_pool_get_info(b, &info, &err), err);
    assert_int_equal(info.fixed_bytes, 10 * MiB);
    memfit_pool_destroy(b);
    a = make(device, 100 * MiB);
    assert_ok(memfit_pool_get_info(a, &info, &err), err);
    assert_int_equal(info.fixed_bytes, 10 * MiB);
    memfit_pool_destroy(a);
    assert_ok(memfit_device_close(device, &err), err);
}

/* What a slice set aside comes back whole, though the fixed cost has grown meanwhile (libraries load late). */
static void a_slice_gives_back_what_it_took(void **state)
{
    (void)state;
    memfit_device *device = open_device("sim", 1024 * MiB);
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    for (unsigned i = 0; i < 12; i++) {
        memfit_pool_options o = options(400 * MiB);
        o.slice = true;
        memfit_pool *pool;
        assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
        atomic_fetch_add(&device->fixed_bytes, 10 * MiB);
        assert_ok(memfit_pool_set_limit(pool, 300 * MiB, false, &err), err);
        atomic_fetch_add(&device->fixed_bytes, 10 * MiB);
        memfit_pool_destroy(pool);
        assert_ok(memfit_device_get_info(device, &info, &err), err);
        assert_int_equal(info.set_aside_bytes, 0);
        assert_int_equal(atomic_load(&device->budget.taken_bytes), 0);
    }
    assert_ok(memfit_device_close(device, &err), err);
}

/* ---- pressure ------------------------------------------------------------------------------------------------- */

enum { SMALL = 2048 };

typedef struct hoard {
    memfit_address at[SMALL];
    unsigned count, calls;
    bool modest; /* says it freed nothing */
} hoard;

static uint64_t give_up(void *ctx, memfit_pool *pool, uint64_t wanted, bool hard)
{
    hoard *h = ctx;
    (void)wanted, (void)hard;
    h->calls++;
    uint64_t freed = 0;
    while (h->count) {
        memfit_error mine;
        assert_ok(memfit_pool_free(pool, h->at[--h->count], &mine), mine);
        freed += 30000;
    }
    return h->modest ? 0 : freed;
}

/* What a callback frees lands in the thread's cache; the request must have it all the same. */
static void a_callback_that_frees_enough(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        memfit_device *device = open_device("sim", 256 * MiB);
        memfit_pool_options o = options(16 * MiB);
        o.soft_limit_bytes = i % 2 ? 12 * MiB : 0;
        memfit_pool *pool;
        assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
        hoard h = {.modest = i / 2};
        assert_ok(memfit_pool_on_pressure(pool, give_up, &h, &err), err);
        memfit_address a;
        uint64_t bytes = 30000;
        while (h.count < 300 && !memfit_pool_alloc(pool, bytes, 0, &h.at[h.count], &err))
            h.count++;
        assert_int_equal(h.count, 300);
        assert_ok(memfit_pool_alloc(pool, 15 * MiB, 0, &a, &err), err);
        assert_true(h.calls >= 1);
        assert_ok(mf_pool_check(pool, &err), err);
        memfit_pool_destroy(pool);
        assert_ok(memfit_device_close(device, &err), err);
    }
}

/* ---- fork ------------------------------------------------------------------------------------------------------- */

/* Runs fn in a child; it must end by itself, with status 0. */
static void in_child(void (*fn)(void *ctx), void *ctx)
{
    pid_t pid = fork();
    if (!pid) {
        alarm(20);
        fn(ctx);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

typedef struct family {
    memfit_device *device;
    memfit_pool *pool;
    memfit_address large, small;
} family;

/* In a child no assertion may run: it would report for the parent. */
static void must(bool good, int code)
{
    if (!good)
        _exit(code);
}

static void child_of_cpu(void *ctx)
{
    family *f = ctx;
    memfit_address a;
    memfit_error mine;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_pool *pool;
    must(memfit_pool_alloc(f->pool, 100, 0, &a, &mine) == MEMFIT_MISUSE, 1);
    must(strstr(mine.message, "fork") != NULL, 2);
    must(memfit_pool_alloc(f->pool, 3 * MiB, 0, &a, &mine) == MEMFIT_MISUSE, 3);
    must(memfit_pool_free(f->pool, f->large, &mine) == MEMFIT_MISUSE, 4);
    must(memfit_pool_free(f->pool, f->small, &mine) == MEMFIT_MISUSE, 5);
    must(memfit_pool_trim(f->pool, 0, NULL, &mine) == MEMFIT_MISUSE, 6);
    must(memfit_pool_get_info(f->pool, &info, &mine) == MEMFIT_MISUSE, 7);
    must(memfit_pool_create(f->device, NULL, &pool, &mine) == MEMFIT_MISUSE, 8);
    must(strstr(mine.message, "fork") != NULL, 9);
    memfit_pool_destroy(f->pool);
    must(memfit_device_close(f->device, &mine) == MEMFIT_MISUSE, 10);
    /* and a device of its own serves it */
    memfit_device *device;
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = 64 * MiB;
    d.fixed_bytes = 1;
    memfit_pool_options o = options(32 * MiB);
    must(memfit_device_open("cpu", &d, &device, &mine) == MEMFIT_OK, 11);
    must(memfit_pool_create(device, &o, &pool, &mine) == MEMFIT_OK, 12);
    must(memfit_pool_alloc(pool, 5 * MiB, 0, &a, &mine) == MEMFIT_OK, 13);
    memset((void *)(uintptr_t)a, 0x77, 5 * MiB);
    memfit_pool_destroy(pool);
    must(memfit_device_close(device, &mine) == MEMFIT_OK, 14);
}

static void a_child_leaves_its_parent_alone(void **state)
{
    (void)state;
    family f = {.device = open_device("cpu", 128 * MiB)};
    f.pool = make(f.device, 64 * MiB);
    memfit_address idle;
    assert_ok(memfit_pool_alloc(f.pool, 10 * MiB, 0, &f.large, &err), err);
    assert_ok(memfit_pool_alloc(f.pool, 1000, 0, &f.small, &err), err);
    assert_ok(memfit_pool_alloc(f.pool, 10 * MiB, 0, &idle, &err), err);
    assert_ok(memfit_pool_free(f.pool, idle, &err), err);
    memset((void *)(uintptr_t)f.large, 0x11, 10 * MiB);
    memset((void *)(uintptr_t)f.small, 0x22, 1000);
    for (unsigned i = 0; i < 3; i++)
        in_child(child_of_cpu, &f);
    for (uint64_t i = 0; i < 10 * MiB; i += 4093)
        assert_int_equal(((unsigned char *)(uintptr_t)f.large)[i], 0x11);
    assert_int_equal(((unsigned char *)(uintptr_t)f.small)[999], 0x22);
    assert_ok(memfit_pool_alloc(f.pool, 20 * MiB, 0, &idle, &err), err);
    memset((void *)(uintptr_t)idle, 0x33, 20 * MiB);
    assert_ok(mf_pool_check(f.pool, &err), err);
    memfit_pool_destroy(f.pool);
    assert_ok(memfit_device_close(f.device, &err), err);
}

/* The bytes themselves are not the child's either: it has nothing there, and cannot spoil them by a stray write. */
static void a_child_has_no_bytes(void **state)
{
    (void)state;
    family f = {.device = open_device("cpu", 128 * MiB)};
    f.pool = make(f.device, 64 * MiB);
    assert_ok(memfit_pool_alloc(f.pool, 10 * MiB, 0, &f.large, &err), err);
    memset((void *)(uintptr_t)f.large, 0x11, 10 * MiB);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile unsigned char *)(uintptr_t)f.large = 0x99;
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(*(unsigned char *)(uintptr_t)f.large, 0x11);
    memfit_pool_destroy(f.pool);
    assert_ok(memfit_device_close(f.device, &err), err);
}

static void *hammer(void *arg)
{
    short_one *s = arg;
    memfit_error mine;
    while (!atomic_load(&s->stop)) {
        memfit_address a[4];
        for (unsigned i = 0; i < 4; i++)
            if (memfit_pool_alloc(s->pool, i % 2 ? 50000 : 300, 0, &a[i], &mine))
                a[i] = 0;
        for (unsigned i = 0; i < 4; i++)
            if (a[i])
                memfit_pool_free(s->pool, a[i], &mine);
    }
    return NULL;
}

static void child_of_busy(void *ctx)
{
    short_one *s = ctx;
    memfit_address a;
    memfit_error mine;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    must(memfit_pool_alloc(s->pool, 300, 0, &a, &mine) == MEMFIT_MISUSE, 1);
    must(memfit_pool_get_info(s->pool, &info, &mine) == MEMFIT_MISUSE, 2);
    memfit_pool_destroy(s->pool);
}

static void fork_while_others_are_inside(void **state)
{
    (void)state;
    short_one s = {.device = open_device("cpu", 128 * MiB)};
    s.pool = make(s.device, 64 * MiB);
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, hammer, &s);
    for (unsigned i = 0; i < 20; i++)
        in_child(child_of_busy, &s);
    atomic_store(&s.stop, true);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_ok(mf_pool_check(s.pool, &err), err);
    memfit_pool_destroy(s.pool);
    assert_ok(memfit_device_close(s.device, &err), err);
}

/* ---- threads that end ------------------------------------------------------------------------------------------- */

typedef struct leaver {
    memfit_pool *pool;
    pthread_barrier_t *ready;
} leaver;

static void *use_and_leave(void *arg)
{
    leaver *l = arg;
    memfit_address a;
    memfit_error mine;
    if (memfit_pool_alloc(l->pool, 1000, 0, &a, &mine) == MEMFIT_OK)
        memfit_pool_free(l->pool, a, &mine);
    pthread_barrier_wait(l->ready);
    return NULL; /* its cache goes back just while the pool ends */
}

static void threads_end_while_the_pool_does(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    memfit_device *device = open_device("sim", 256 * MiB);
    for (unsigned i = 0; i < 400; i++) {
        pthread_barrier_t ready;
        pthread_barrier_init(&ready, NULL, THREADS + 1);
        leaver l = {make(device, 64 * MiB), &ready};
        pthread_t threads[THREADS];
        for (unsigned k = 0; k < THREADS; k++)
            pthread_create(&threads[k], NULL, use_and_leave, &l);
        pthread_barrier_wait(&ready);
        memfit_pool_destroy(l.pool);
        for (unsigned k = 0; k < THREADS; k++)
            pthread_join(threads[k], NULL);
        pthread_barrier_destroy(&ready);
    }
    assert_ok(memfit_device_close(device, &err), err);
}

/* ---- leaks ------------------------------------------------------------------------------------------------------ */

typedef struct leaked {
    memfit_pool *pool;
    uint64_t bytes, in_use;
    size_t owners;
} leaked;

static void on_leak(void *ctx, const memfit_owner_info *owners, size_t count)
{
    leaked *l = ctx;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_error mine;
    for (size_t i = 0; i < count; i++)
        l->bytes += owners[i].bytes;
    l->owners = count;
    if (memfit_pool_get_info(l->pool, &info, &mine) == MEMFIT_OK) /* may ask the pool */
        l->in_use = info.in_use_bytes;
}

static void a_leak_is_told_without_a_lock(void **state)
{
    (void)state;
    memfit_device *device = open_device("sim", 256 * MiB);
    leaked l = {0};
    memfit_pool_options o = options(64 * MiB);
    o.on_leak = on_leak;
    o.on_leak_ctx = &l;
    assert_ok(memfit_pool_create(device, &o, &l.pool, &err), err);
    memfit_address a;
    assert_ok(memfit_pool_alloc(l.pool, 5000, 0, &a, &err), err);
    alarm(20);
    memfit_pool_destroy(l.pool);
    alarm(0);
    assert_int_equal(l.owners, 1);
    assert_int_equal(l.bytes, 5000);
    assert_int_equal(l.in_use, 5000);
    assert_ok(memfit_device_close(device, &err), err);
}

/* ---- recorders ------------------------------------------------------------------------------------------------ */

/* A recorder comes and goes while threads are at work, is destroyed at once, and serves one pool after the other. */
static void a_recorder_comes_and_goes(void **state)
{
    (void)state;
    short_one s = {.device = open_device("sim", 256 * MiB)};
    s.pool = make(s.device, 64 * MiB);
    memfit_pool *other = make(s.device, 64 * MiB);
    pthread_t threads[2];
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, hammer, &s);
    memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
    for (unsigned i = 0; i < 50; i++) {
        memfit_recorder *recorder;
        memfit_address a;
        assert_ok(memfit_recorder_create(&o, &recorder, &err), err);
        assert_ok(memfit_pool_record(s.pool, recorder, &err), err);
        assert_int_equal(memfit_pool_record(other, recorder, &err), MEMFIT_CONFLICT);
        usleep(200);
        assert_ok(memfit_pool_record(s.pool, NULL, &err), err);
        uint64_t put, lost, more;
        memfit_recorder_counts(recorder, &put, &lost);
        assert_ok(memfit_pool_record(other, recorder, &err), err);
        assert_ok(memfit_pool_alloc(other, 5000, 0, &a, &err), err);
        assert_ok(memfit_pool_free(other, a, &err), err);
        assert_ok(memfit_pool_record(other, NULL, &err), err);
        memfit_recorder_counts(recorder, &more, &lost);
        assert_true(more >= put + 2);
        memfit_recorder_destroy(recorder);
    }
    atomic_store(&s.stop, true);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    memfit_pool_destroy(other);
    memfit_pool_destroy(s.pool);
    assert_ok(memfit_device_close(s.device, &err), err);
}

/* ---- edges ------------------------------------------------------------------------------------------------------ */

static void trim_to_anything(void **state)
{
    (void)state;
    memfit_device *device = open_device("sim", 256 * MiB);
    memfit_pool *pool = make(device, 64 * MiB);
    memfit_address a;
    uint64_t gone = 1;
    assert_ok(memfit_pool_alloc(pool, 30 * MiB, 0, &a, &err), err);
    assert_ok(memfit_pool_free(pool, a, &err), err);
    assert_ok(memfit_pool_trim(pool, UINT64_MAX, &gone, &err), err);
    assert_int_equal(gone, 0);
    assert_ok(memfit_pool_trim(pool, 2 * MiB + 1, &gone, &err), err);
    assert_int_equal(gone, 26 * MiB);
    assert_ok(memfit_pool_trim(pool, 0, &gone, &err), err);
    assert_int_equal(gone, 4 * MiB);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
}

/* A name that is cut is cut between two letters, and bytes that are no UTF-8 do not break the JSON. */
static void names_stay_text(void **state)
{
    (void)state;
    static const char *const names[] = {"12345678901234567890123456789012345678901234567890123456789012\xc3\xa9",
                                        "a\xff\xc3z", "\xe2\x82"};
    for (size_t i = 0; i < 3; i++) {
        memfit_device *device = open_device("sim", 256 * MiB);
        memfit_pool *pool = make(device, 16 * MiB);
        memfit_owner owner;
        memfit_address a;
        assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_OTHER, names[i], &owner, &err), err);
        assert_ok(memfit_pool_alloc(pool, 8 * MiB, owner, &a, &err), err);
        assert_int_equal(memfit_pool_alloc(pool, 9 * MiB, owner, &a, &err), MEMFIT_OUT_OF_MEMORY);
        static memfit_explanation why = MEMFIT_EXPLANATION;
        static char text[MEMFIT_EXPLANATION_TEXT];
        assert_ok(memfit_pool_explain(pool, &why, &err), err);
        memfit_explanation_json(&why, text, sizeof text);
        mf_arena arena;
        mf_json *json;
        mf_arena_init(&arena, NULL);
        assert_ok(mf_json_parse(&arena, text, strlen(text), &json, &err), err);
        mf_arena_destroy(&arena);
        memfit_pool_destroy(pool);
        assert_ok(memfit_device_close(device, &err), err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pool_pays),
        cmocka_unit_test(a_slice_gives_back_what_it_took),
        cmocka_unit_test(a_callback_that_frees_enough),
        cmocka_unit_test(trim_to_anything),
        cmocka_unit_test(names_stay_text),
        cmocka_unit_test(a_leak_is_told_without_a_lock),
        cmocka_unit_test(a_child_leaves_its_parent_alone),
        cmocka_unit_test(a_child_has_no_bytes),
        cmocka_unit_test(fork_while_others_are_inside),
        cmocka_unit_test(threads_end_while_the_pool_does),
        cmocka_unit_test(a_recorder_comes_and_goes),
        cmocka_unit_test(pools_come_and_go_beside_a_short_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
