/*
 * test_pool_threads.c: what threads have at hand: blocks they keep, tallies of their own, caches that others take back.
 * Nothing of it may be seen from outside: not in the figures, not by a request that needs the memory, not by a limit.
 */
#include "test.h"

#include "base/os.h"
#include "device/sim.h"
#include "pool/pool.h"
#include "pool/state.h"

#include <pthread.h>
#include <stdatomic.h>

#define MiB (UINT64_C(1) << 20)
enum { THREADS = 4, BLOCKS = 2000 };

static memfit_error err;

typedef struct world {
    memfit_device *device;
    memfit_pool *pool;
    memfit_owner a, b;
} world;

static world begin(uint64_t limit)
{
    world w;
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = limit;
    assert_ok(memfit_device_open("sim", &d, &w.device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.limit_bytes = limit;
    o.ignore_environment = true;
    assert_ok(memfit_pool_create(w.device, &o, &w.pool, &err), err);
    assert_ok(memfit_pool_owner(w.pool, MEMFIT_KIND_GRADIENTS, "a", &w.a, &err), err);
    assert_ok(memfit_pool_owner(w.pool, MEMFIT_KIND_ACTIVATIONS, "b", &w.b, &err), err);
    return w;
}

static void end(world *w)
{
    assert_ok(mf_pool_check(w->pool, &err), err);
    memfit_pool_destroy(w->pool);
    assert_ok(memfit_device_close(w->device, &err), err);
}

static memfit_address get(memfit_pool *pool, uint64_t bytes, memfit_owner owner)
{
    memfit_error e;
    memfit_address at;
    assert_ok(memfit_pool_alloc(pool, bytes, owner, &at, &e), e);
    return at;
}

static memfit_pool_info info_of(memfit_pool *pool)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(pool, &info, &err), err);
    return info;
}

static bool count_block(void *ctx, const memfit_block_info *block)
{
    (void)block;
    ++*(unsigned *)ctx;
    return true;
}

/* A kept block is free in every respect, and the next request of its size has it. */
static void test_kept(void **state)
{
    (void)state;
    world w = begin(64 * MiB);
    memfit_block_info block = MEMFIT_BLOCK_INFO;
    unsigned blocks = 0;
    memfit_address at = get(w.pool, 3 * MiB, w.a);
    uint64_t reserved = info_of(w.pool).reserved_bytes;
    assert_ok(memfit_pool_free(w.pool, at, &err), err);
    memfit_pool_info info = info_of(w.pool);
    assert_int_equal(info.in_use_bytes, 0);
    assert_int_equal(info.blocks, 0);
    assert_int_equal(info.idle_bytes, reserved);
    assert_int_equal(info.available_bytes, 64 * MiB);
    assert_ok(memfit_pool_each_block(w.pool, count_block, &blocks, &err), err);
    assert_int_equal(blocks, 0);
    assert_int_equal(memfit_pool_find(w.pool, at, &block, &err), MEMFIT_MISUSE);
    assert_int_equal(memfit_pool_free(w.pool, at, &err), MEMFIT_MISUSE);
    assert_non_null(strstr(err.message, "freed twice"));
    at = get(w.pool, 3 * MiB, w.a); /* what was freed has gone back by now: again */
    assert_ok(memfit_pool_free(w.pool, at, &err), err);
    assert_ok(memfit_pool_mark(w.pool, NULL, &err), err);
    assert_int_equal(get(w.pool, 3 * MiB - 200, w.b), at);
    assert_ok(memfit_pool_find(w.pool, at + 5, &block, &err), err);
    assert_int_equal(block.bytes, 3 * MiB - 200);
    assert_int_equal(block.taken_bytes, 3 * MiB);
    assert_int_equal(block.owner, w.b);
    assert_int_equal(block.kind, MEMFIT_KIND_ACTIVATIONS);
    assert_int_equal(block.mark, 1);
    assert_ok(memfit_pool_free(w.pool, at, &err), err);
    uint64_t released;
    assert_ok(memfit_pool_trim(w.pool, 0, &released, &err), err);
    assert_int_equal(released, reserved);
    end(&w);
}

/* ---- another thread keeps them -------------------------------------------------------------------------------- */

typedef struct keeper {
    world *w;
    unsigned blocks;
    uint64_t bytes;
    atomic_int step; /* 1: it keeps its blocks; 2: it may go on; 3: it has them again; 4: it may end */
} keeper;

static void wait_for(atomic_int *step, int value)
{
    while (atomic_load(step) != value)
        mf_os_yield();
}

static void *keep(void *ctx)
{
    keeper *k = ctx;
    memfit_address at[8];
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < k->blocks; i++)
            at[i] = get(k->w->pool, k->bytes, k->w->a);
        if (round)
            break;
        for (unsigned i = 0; i < k->blocks; i++)
            assert_int_equal(memfit_pool_free(k->w->pool, at[i], NULL), MEMFIT_OK);
        atomic_store(&k->step, 1);
        wait_for(&k->step, 2);
    }
    atomic_store(&k->step, 3);
    wait_for(&k->step, 4);
    for (unsigned i = 0; i < k->blocks; i++)
        assert_int_equal(memfit_pool_free(k->w->pool, at[i], NULL), MEMFIT_OK);
    return NULL;
}

/* What a thread keeps serves others before a page is made for them; the peak is what was in use at once. */
static void test_kept_by_another(void **state)
{
    (void)state;
    world w = begin(64 * MiB);
    keeper k = {.w = &w, .blocks = 6, .bytes = 5 * MiB};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep, &k), 0);
    wait_for(&k.step, 1);
    uint64_t reserved = info_of(w.pool).reserved_bytes;
    assert_int_equal(info_of(w.pool).idle_bytes, reserved);
    memfit_address at = get(w.pool, 28 * MiB, w.b); /* more than is left outside, less than is kept */
    assert_int_equal(info_of(w.pool).reserved_bytes, reserved);
    assert_ok(mf_pool_check(w.pool, &err), err);
    assert_int_equal(info_of(w.pool).in_use_peak_bytes, 30 * MiB);
    atomic_store(&k.step, 2);
    wait_for(&k.step, 3);
    assert_int_equal(info_of(w.pool).in_use_bytes, 58 * MiB);
    assert_int_equal(info_of(w.pool).in_use_peak_bytes, 58 * MiB);
    assert_ok(memfit_pool_free(w.pool, at, &err), err);
    atomic_store(&k.step, 4);
    pthread_join(thread, NULL);
    assert_int_equal(info_of(w.pool).in_use_bytes, 0);
    end(&w);
}

/* Peaks after a reset: what comes back from a thread's cache counts like any other. */
static void test_peaks(void **state)
{
    (void)state;
    world w = begin(64 * MiB);
    keeper k = {.w = &w, .blocks = 2, .bytes = 7 * MiB};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep, &k), 0);
    wait_for(&k.step, 1);
    memfit_address at = get(w.pool, 9 * MiB, w.b);
    assert_ok(memfit_pool_free(w.pool, at, &err), err);
    assert_ok(memfit_pool_reset_peaks(w.pool, &err), err);
    assert_int_equal(info_of(w.pool).in_use_peak_bytes, 0);
    at = get(w.pool, 9 * MiB, w.b);
    atomic_store(&k.step, 2);
    wait_for(&k.step, 3);
    assert_ok(memfit_pool_free(w.pool, at, &err), err);
    atomic_store(&k.step, 4);
    pthread_join(thread, NULL);
    assert_int_equal(info_of(w.pool).in_use_peak_bytes, 23 * MiB);
    end(&w);
}

/* A limit lowered below use: what is freed goes back at once. */
static void test_limit_when_freed(void **state)
{
    (void)state;
    world w = begin(64 * MiB);
    memfit_address at[6];
    for (unsigned i = 0; i < 6; i++)
        at[i] = get(w.pool, 8 * MiB, w.a);
    assert_ok(memfit_pool_set_limit(w.pool, 16 * MiB, true, &err), err);
    for (unsigned i = 0; i < 4; i++) {
        assert_ok(memfit_pool_free(w.pool, at[i], &err), err);
        assert_int_equal(info_of(w.pool).reserved_bytes, (5 - i) * 8 * MiB);
    }
    assert_ok(memfit_pool_free(w.pool, at[4], &err), err);
    assert_int_equal(info_of(w.pool).reserved_bytes, 16 * MiB);
    assert_ok(memfit_pool_free(w.pool, at[5], &err), err);
    end(&w);
}

/* ---- races ------------------------------------------------------------------------------------------------------ */

typedef struct racer {
    world *w;
    const memfit_address *at;
    _Atomic unsigned *next; /* the block both are about to free */
    unsigned char ok[BLOCKS];
    unsigned misuse;
} racer;

/* Frees every block, each at the same instant as the other thread, as far as that can be had. */
static void *free_all(void *ctx)
{
    racer *r = ctx;
    memfit_address warm = get(r->w->pool, 100000, r->w->a); /* so that this thread has a cache */
    (void)memfit_pool_free(r->w->pool, warm, NULL);
    for (unsigned i = 0; i < BLOCKS; i++) {
        atomic_fetch_add(r->next, 1);
        for (unsigned spins = 0; atomic_load(r->next) < 2 * (i + 1); spins++)
            if (spins % 256 == 255) /* the other may have no processor */
                mf_os_yield();
        memfit_status status = memfit_pool_free(r->w->pool, r->at[i], NULL);
        r->ok[i] = status == MEMFIT_OK;
        r->misuse += status == MEMFIT_MISUSE;
    }
    return NULL;
}

/* Two threads free the same blocks at once: each is freed once, and one of the two is told. */
static void free_by_two(const uint64_t *sizes, unsigned size_count)
{
    static memfit_address at[BLOCKS];
    static racer r[2];
    world w = begin(512 * MiB);
    pthread_t threads[2];
    _Atomic unsigned next = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        at[i] = get(w.pool, sizes[i % size_count], w.b);
    for (unsigned i = 0; i < 2; i++) {
        r[i] = (racer){.w = &w, .at = at, .next = &next};
        assert_int_equal(pthread_create(&threads[i], NULL, free_all, &r[i]), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_int_equal(r[0].ok[i] + r[1].ok[i], 1);
    assert_int_equal(r[0].misuse + r[1].misuse, BLOCKS);
    memfit_pool_info info = info_of(w.pool);
    assert_int_equal(info.in_use_bytes, 0);
    assert_int_equal(info.blocks, 0);
    for (unsigned i = 0; i < BLOCKS; i++) /* nobody has the same place as another: the check at the end sees */
        at[i] = get(w.pool, sizes[i % size_count], w.a);
    assert_ok(mf_pool_check(w.pool, &err), err);
    for (unsigned i = 0; i < BLOCKS; i++)
        assert_ok(memfit_pool_free(w.pool, at[i], &err), err);
    end(&w);
}

static void test_freed_by_two(void **state)
{
    (void)state;
    static const uint64_t blocks[] = {65536, 69632, 100000, 3 * MiB / 16}, slots[] = {1, 300, 1024, 4096, 16384, 32768};
    static const uint64_t both[] = {256, 65536, 32768, 33000, 700, 140000};
    free_by_two(blocks, 4);
    free_by_two(slots, 6);
    free_by_two(both, 6);
}

static void *pairs(void *ctx)
{
    racer *r = ctx;
    static const uint64_t sizes[] = {300, 40000, 3000, 3 * MiB, 700000, 40000, 3 * MiB};
    memfit_address at[3] = {0};
    uint64_t seed = 1 + atomic_fetch_add(r->next, 1);
    for (unsigned i = 0; i < 4 * BLOCKS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        unsigned k = (unsigned)(seed >> 33) % 3;
        if (at[k])
            assert_int_equal(memfit_pool_free(r->w->pool, at[k], NULL), MEMFIT_OK);
        at[k] = get(r->w->pool, sizes[(seed >> 40) % 7], (seed >> 50) % 2 ? r->w->a : r->w->b);
    }
    for (unsigned k = 0; k < 3; k++)
        if (at[k])
            assert_int_equal(memfit_pool_free(r->w->pool, at[k], NULL), MEMFIT_OK);
    atomic_fetch_add(r->next, 1000);
    return NULL;
}

typedef struct crowd {
    world *w;
    _Atomic memfit_address seen[64]; /* live, or were once */
    _Atomic unsigned next;
} crowd;

/* Asks, and frees what it or anybody else was given: perhaps twice, perhaps while it is given to a third. */
static void *free_anything(void *ctx)
{
    crowd *c = ctx;
    static const uint64_t sizes[] = {300, 16384, 40000, 32768, 3000, 700000, 40000};
    uint64_t seed = 1 + atomic_fetch_add(&c->next, 1);
    for (unsigned i = 0; i < 4 * BLOCKS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memfit_address at = atomic_load(&c->seen[(seed >> 33) % 64]);
        memfit_status status = at ? memfit_pool_free(c->w->pool, at, NULL) : MEMFIT_OK;
        assert_true(status == MEMFIT_OK || status == MEMFIT_MISUSE);
        if (seed >> 41 & 1)
            atomic_store(&c->seen[(seed >> 42) % 64], get(c->w->pool, sizes[(seed >> 50) % 7], c->w->a));
    }
    return NULL;
}

/* However wrong the program is, the pool stays whole. */
static void test_freed_by_anybody(void **state)
{
    (void)state;
    world w = begin(512 * MiB);
    crowd c = {.w = &w};
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, free_anything, &c), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_ok(mf_pool_check(w.pool, &err), err);
    memfit_pool_info info = info_of(w.pool);
    unsigned blocks = 0;
    assert_ok(memfit_pool_each_block(w.pool, count_block, &blocks, &err), err);
    assert_int_equal(blocks, info.blocks);
    end(&w);
}

/* Threads at work while another looks, trims, marks and changes the limit and the other settings. */
static void test_looked_at(void **state)
{
    (void)state;
    world w = begin(128 * MiB);
    _Atomic unsigned next = 0;
    racer r = {.w = &w, .next = &next};
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pairs, &r), 0);
    for (unsigned i = 0; atomic_load(&next) < 1000 * THREADS; i++) {
        memfit_pool_info info = info_of(w.pool);
        assert_true(info.reserved_bytes <= 128 * MiB);
        assert_true(info.in_use_bytes <= info.reserved_bytes);
        if (i % 3 == 0)
            assert_ok(memfit_pool_trim(w.pool, i % 2 ? 0 : 32 * MiB, NULL, &err), err);
        if (i % 5 == 0)
            assert_ok(memfit_pool_mark(w.pool, NULL, &err), err);
        if (i % 7 == 0)
            (void)memfit_pool_set_limit(w.pool, (96 + i % 32) * MiB, false, &err);
        if (i % 13 == 0) {
            assert_ok(memfit_pool_set_slack(w.pool, i % 2 ? 0.05 : 0, &err), err);
            assert_ok(memfit_pool_set_keep_idle(w.pool, i % 2, &err), err);
            assert_ok(memfit_pool_set_soft_limit(w.pool, (i % 2) * 64 * MiB, &err), err);
            assert_ok(memfit_pool_set_purge(w.pool, i % 3, &err), err);
        }
        if (i % 11 == 0)
            assert_ok(memfit_pool_poll(w.pool, &err), err);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(info_of(w.pool).in_use_bytes, 0);
    assert_int_equal(info_of(w.pool).blocks, 0);
    end(&w);
}

/* A backward pass frees large blocks in a thread of its own; the next forward pass asks for others. */
enum { STEPS = 64, LAYERS = 4, CALLS = 20000 };

typedef struct passes {
    world *w;
    memfit_address blocks[LAYERS];
    atomic_int step; /* even: the forward pass is at work; odd: the backward pass */
} passes;

static void *backward(void *ctx)
{
    passes *p = ctx;
    for (int step = 0; step < STEPS; step++) {
        wait_for(&p->step, 2 * step + 1);
        for (unsigned i = 0; i < LAYERS; i++) {
            memfit_address gradient = get(p->w->pool, 3 * MiB + i * 65536, p->w->b);
            assert_int_equal(memfit_pool_free(p->w->pool, p->blocks[i], NULL), MEMFIT_OK);
            assert_int_equal(memfit_pool_free(p->w->pool, gradient, NULL), MEMFIT_OK);
        }
        atomic_store(&p->step, 2 * step + 2);
    }
    return NULL;
}

static void who_must_give_back_often_keeps_nothing(void **state)
{
    (void)state;
    world w = begin(1024 * MiB);
    passes p = {.w = &w};
    memfit_address all = get(w.pool, 256 * MiB, w.a); /* so that no page is missing later */
    assert_ok(memfit_pool_free(w.pool, all, &err), err);
    for (unsigned i = 0; i < CALLS; i++) { /* of more sizes than are kept */
        memfit_address at = get(w.pool, (i % 16 + 1) * MiB, w.a);
        assert_ok(memfit_pool_free(w.pool, at, &err), err);
    }
    assert_true(atomic_load(&w.pool->keeps));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, backward, &p), 0);
    for (int step = 0; step < STEPS; step++) {
        for (unsigned i = 0; i < LAYERS; i++)
            p.blocks[i] = get(w.pool, 4 * MiB + i * 65536, w.a);
        atomic_store(&p.step, 2 * step + 1);
        wait_for(&p.step, 2 * step + 2);
    }
    pthread_join(thread, NULL);
    assert_false(atomic_load(&w.pool->keeps));
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_must_give_back_often_keeps_nothing),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_kept_by_another),
        cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_limit_when_freed),
        cmocka_unit_test(test_freed_by_two),
        cmocka_unit_test(test_freed_by_anybody),
        cmocka_unit_test(test_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
