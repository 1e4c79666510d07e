/* test_pool_moves.c: when pages move, and what has to be waited for, with one stream: the ages of pages, on sim. */
#include "test.h"

#include "device/sim.h"
#include "pool/pool.h"

#define MiB (UINT64_C(1) << 20)

static memfit_error err;

typedef struct place {
    memfit_device *device;
    memfit_pool *pool;
} place;

static place open_place(uint64_t limit, bool no_wait)
{
    place p;
    memfit_device_options options = memfit_device_options_default();
    options.capacity_bytes = UINT64_C(1) << 30;
    assert_ok(memfit_device_open("sim", &options, &p.device, &err), err);
    memfit_pool_options o = memfit_pool_options_default();
    o.limit_bytes = limit;
    o.no_stream_wait = no_wait;
    o.ignore_environment = true;
    assert_ok(memfit_pool_create(p.device, &o, &p.pool, &err), err);
    return p;
}

static void close_place(place *p)
{
    assert_ok(mf_pool_check(p->pool, &err), err);
    memfit_pool_destroy(p->pool);
    assert_int_equal(mf_sim_get(p->device).events, 0);
    assert_ok(memfit_device_close(p->device, &err), err);
}

static memfit_address get(place *p, uint64_t bytes)
{
    memfit_address a;
    assert_ok(memfit_pool_alloc(p->pool, bytes, 0, &a, &err), err);
    return a;
}

static void drop(place *p, memfit_address a)
{
    assert_ok(memfit_pool_free(p->pool, a, &err), err);
}

static uint64_t calls(place *p, mf_call call)
{
    return mf_sim_get(p->device).calls[call];
}

/* Frees that are past are moved without a wait, later ones are waited for by their mark, never by the whole stream. */
static void marks_are_waited_for(void **state)
{
    (void)state;
    enum { PAIRS = 40 };
    place p = open_place(160 * MiB, false);
    memfit_address kept[PAIRS], holes[PAIRS];
    for (unsigned i = 0; i < PAIRS; i++) { /* 80 pages: the limit; every second one becomes a hole of one page */
        holes[i] = get(&p, 2 * MiB);
        kept[i] = get(&p, 2 * MiB);
    }
    drop(&p, holes[0]);
    drop(&p, holes[1]);
    memfit_address first = get(&p, 4 * MiB); /* the first move: no marks yet, the stream is waited for */
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC), 1);
    for (unsigned i = 2; i < 34; i++) /* two marks */
        drop(&p, holes[i]);
    assert_int_equal(calls(&p, MF_CALL_EVENT_RECORD), 2);
    memfit_address second = get(&p, 20 * MiB); /* past: no wait */
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC), 1);
    assert_int_equal(calls(&p, MF_CALL_EVENT_SYNC), 0);
    mf_sim_hold(p.device, 0, true);
    for (unsigned i = 34; i < PAIRS; i++)
        drop(&p, holes[i]);
    memfit_address third = get(&p, 40 * MiB); /* the rest of those before the hold: no wait either */
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC) + calls(&p, MF_CALL_EVENT_SYNC), 1);
    memfit_address none;
    assert_int_equal(memfit_pool_alloc(p.pool, 16 * MiB, 0, &none, &err), MEMFIT_OUT_OF_MEMORY);
    mf_sim_hold(p.device, 0, false);
    memfit_address fourth = get(&p, 16 * MiB);
    assert_ok(mf_pool_check(p.pool, &err), err);
    drop(&p, first);
    drop(&p, second);
    drop(&p, third);
    drop(&p, fourth);
    for (unsigned i = 0; i < PAIRS; i++)
        drop(&p, kept[i]);
    close_place(&p);
}

/* More frees than marks: the newest mark moves on, and all is found again. */
static void marks_run_out(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, false);
    memfit_address a = get(&p, 30 * MiB), b = get(&p, 2 * MiB), c = get(&p, 30 * MiB);
    drop(&p, a);
    drop(&p, c);
    memfit_address d = get(&p, 60 * MiB); /* moves, and begins to mark */
    drop(&p, d);
    drop(&p, get(&p, 4 * MiB)); /* pages come to where the next ones go */
    mf_sim_hold(p.device, 0, true);
    for (unsigned i = 0; i < 3000; i++)
        drop(&p, get(&p, 4 * MiB));
    mf_sim_hold(p.device, 0, false);
    d = get(&p, 62 * MiB);
    drop(&p, d);
    drop(&p, b);
    close_place(&p);
}

static void without_waiting(void **state)
{
    (void)state;
    place p = open_place(16 * MiB, true);
    memfit_address a = get(&p, 4 * MiB), b = get(&p, 4 * MiB), c = get(&p, 4 * MiB), d = get(&p, 4 * MiB), e;
    mf_sim_hold(p.device, 0, true);
    drop(&p, a);
    drop(&p, c);
    assert_int_equal(memfit_pool_alloc(p.pool, 8 * MiB, 0, &e, &err), MEMFIT_OUT_OF_MEMORY);
    mf_sim_hold(p.device, 0, false);
    e = get(&p, 8 * MiB);
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC), 0);
    drop(&p, b);
    drop(&p, d);
    drop(&p, e);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_waited_for),
        cmocka_unit_test(marks_run_out),
        cmocka_unit_test(without_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
