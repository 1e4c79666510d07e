/*
 * test_pool_apart.c: steps that repeat beside other streams, and what is not to lie among the main stream's blocks lies apart
 * (apart.c). On sim, with streams that can be held back: whatever work in flight does not survive is a violation.
 */
#include "train_place.h"

#include "pool/cache.h"
#include "pool/moves.h"
#include "pool/pages.h"
#include "pool/repeat.h"

/* ---- several streams -------------------------------------------------------------------------------------------- */

/* Inputs come on a side stream, a result is read on a third that is steps behind: after some steps no page moves and none is
 * made. */
static void side_streams_come_to_rest(void **state)
{
    (void)state;
    unsigned plans = 0;
    for (uint32_t seed = 1; seed <= 16; seed++) {
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.slack = 0.01;
        step s = {.p = open_with(o), .seed = seed, .side = true};
        s.kept[0] = hold(&s, 3 * MiB, s.p.main);
        memfit_pool_info before = {0};
        for (unsigned i = 0; i < 40; i++) {
            mf_sim_hold(s.p.device, s.p.third, i % 3 != 0); /* two steps behind, then none */
            train_step(&s, 0);
            assert_ok(mf_pool_check(s.p.pool, &err), err);
            if (i == 30)
                before = look(&s.p);
        }
        memfit_pool_info after = look(&s.p);
        plans += mf_repeat_plans(s.p.pool);
        assert_int_equal(after.created_pages, before.created_pages);
        assert_int_equal(after.remapped_pages, before.remapped_pages);
        mf_sim_hold(s.p.device, s.p.third, false);
        leave(&s, s.kept[0]);
        close_place(&s.p);
    }
    assert_true(plans > 0); /* the others need none */
}

/* Kinds in any order on a stream that is behind, inputs and results on others that are behind by other times: pages go where
 * they are wanted as soon as their stream is past them, and not before (sim sees it). */
static void kinds_beside_lagging_streams(void **state)
{
    (void)state;
    for (uint32_t round = 1; round <= 12; round++) {
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.slack = 0.01;
        step s = {.p = open_with(o), .side = true};
        memfit_stream streams[] = {s.p.main, s.p.side, s.p.third};
        s.kept[0] = hold(&s, 3 * MiB, s.p.main);
        uint32_t dice = round;
        for (unsigned i = 0; i < 3; i++)
            mf_sim_lag_us(s.p.device, streams[i], 1 + (round * (i + 3) * 2654435761u >> 8) % 20000);
        uint64_t before = 0;
        for (unsigned i = 0; i < 80; i++) {
            dice = dice * 1664525 + 1013904223;
            s.seed = 1 + (dice >> 24) % 3;
            train_step(&s, 0);
            assert_ok(mf_pool_check(s.p.pool, &err), err);
            assert_ok(memfit_device_advance(s.p.device, 100 + dice % 3000, &err), err);
            assert_int_equal(mf_sim_get(s.p.device).violations, 0);
            before = i == 60 ? look(&s.p).created_pages : before;
        }
        assert_true(look(&s.p).created_pages <= before + before / 8); /* what is in flight at its most may come late */
        for (unsigned i = 0; i < 3; i++)
            mf_sim_lag_us(s.p.device, streams[i], 0);
        leave(&s, s.kept[0]);
        for (unsigned i = 0; i < 3; i++)
            assert_ok(memfit_stream_sync(s.p.device, streams[i], &err), err);
        close_place(&s.p);
    }
}

/* A side stream's block lies beyond all of the main stream's, so that a hole of the main stream's stays whole. */
static void side_blocks_lie_apart(void **state)
{
    (void)state;
    step s = {.p = open_with((memfit_pool_options)MEMFIT_POOL_OPTIONS)};
    memfit_address large = hold(&s, 40 * MiB, s.p.main), wall = hold(&s, 2 * MiB, s.p.main);
    leave(&s, large);
    memfit_address theirs = hold(&s, 3 * MiB, s.p.side);
    assert_true(theirs - s.p.pool->range >= s.p.pool->apart);
    uint64_t created = look(&s.p).created_pages;
    assert_int_equal(hold(&s, 40 * MiB, s.p.main), large);
    assert_true(look(&s.p).created_pages <= created + 2); /* but for pages that went over */
    /* at the limit what lies apart serves everybody */
    drop(&s.p, theirs, s.p.side);
    leave(&s, large);
    leave(&s, wall);
    assert_ok(memfit_pool_set_limit(s.p.pool, 64 * MiB, false, &err), err);
    memfit_address all = hold(&s, 62 * MiB, s.p.main);
    leave(&s, all);
    all = hold(&s, 62 * MiB, s.p.side);
    drop(&s.p, all, s.p.side);
    close_place(&s.p);
}

/* A program whose work is on a second stream: after a long time that one is the main one. */
static void the_main_stream_is_found(void **state)
{
    (void)state;
    step s = {.p = open_with((memfit_pool_options)MEMFIT_POOL_OPTIONS)};
    memfit_address first = hold(&s, 3 * MiB, s.p.main), other = hold(&s, 3 * MiB, s.p.side);
    assert_true(other - s.p.pool->range >= s.p.pool->apart);
    for (unsigned i = 0; i < 20000; i++) {
        memfit_address a = 0;
        assert_ok(memfit_pool_alloc_on(s.p.pool, 100000, 0, 0, s.p.side, &a, &err), err);
        drop(&s.p, a, s.p.side);
    }
    memfit_address now = hold(&s, 3 * MiB, s.p.side), theirs = hold(&s, 3 * MiB, s.p.main);
    assert_true(now - s.p.pool->range < s.p.pool->apart);
    assert_true(theirs - s.p.pool->range >= s.p.pool->apart);
    leave(&s, first);
    leave(&s, theirs);
    drop(&s.p, now, s.p.side);
    drop(&s.p, other, s.p.side);
    close_place(&s.p);
}

/* ---- pages -------------------------------------------------------------------------------------------------------- */

/* A hole with pages at its upper end only: what would have to move or make some at its start goes further up. */
static void a_block_goes_where_the_pages_are(void **state)
{
    (void)state;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.slack = 0.01;
    step s = {.p = open_with(o)};
    memfit_address low = hold(&s, 40 * MiB, s.p.main), high = hold(&s, 40 * MiB, s.p.main),
                   wall = hold(&s, 2 * MiB, s.p.main);
    leave(&s, low);
    memfit_address more = hold(&s, 30 * MiB, s.p.main),
                   top = hold(&s, 30 * MiB, s.p.main); /* the lower pages go there */
    leave(&s, high);
    leave(&s, more);
    memfit_pool_info before = look(&s.p);
    memfit_address again = hold(&s, 36 * MiB, s.p.main);
    memfit_pool_info after = look(&s.p);
    assert_int_equal(after.created_pages, before.created_pages);
    assert_int_equal(after.remapped_pages, before.remapped_pages);
    leave(&s, again);
    leave(&s, top);
    leave(&s, wall);
    close_place(&s.p);
}

/* A handle of several pages that begins below the place and ends in it is not taken away for that very place. */
static void no_page_of_the_place_is_taken(void **state)
{
    (void)state;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.bulk_bytes = 8 * MiB; /* four pages */
    step s = {.p = open_with(o)};
    memfit_address a = hold(&s, 8 * MiB, s.p.main), b = hold(&s, 8 * MiB, s.p.main);
    leave(&s, a);
    leave(&s, b);
    memfit_pool *pool = s.p.pool;
    pthread_mutex_lock(&pool->lock);
    mf_caches_reclaim(pool); /* what this thread keeps */
    assert_int_equal(pool->pages.idle_count, 8);
    for (uint64_t from = 1; from <= 4;
         from++) { /* the place is [from, 8): the handle at 0 reaches into it but for the last */
        assert_int_equal(mf_pages_recycle(pool, 4, from, 8, UINT64_MAX, true), from < 4 ? 0 : 4);
        assert_int_equal(mf_pages_missing(pool, 8 * MiB, 8 * MiB), 0);
    }
    pthread_mutex_unlock(&pool->lock);
    close_place(&s.p);
}

/* Inputs are made on a side stream, in room that is wanted only meanwhile, three ahead of a main stream that is one and a half steps
 * behind. What holds another one would hold more than a tenth beside what is in use. What was freed comes back to the side stream:
 * it is waited for, the device has more to do meanwhile, and no page moves. */
static void inputs_come_back_before_pages_do(void **state)
{
    (void)state;
    enum { STEPS = 200, BLOCKS = 24, STEP_US = 6000, AHEAD = 3 };
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.slack = 0.0025;
    place p = open_with(o);
    memfit_address input[AHEAD + 1] = {0}, room, layer[BLOCKS], model;
    assert_ok(memfit_pool_alloc_on(p.pool, 100 * MiB, 0, 0, p.main, &model, &err), err);
    mf_sim_lag_us(p.device, p.main, STEP_US * 3 / 2);
    mf_sim_lag_us(p.device, p.side, 500);
    uint64_t pages = 0;
    for (unsigned i = 0; i < STEPS + AHEAD; i++) {
        pages = i == STEPS / 2 ? p.pool->remapped_pages : pages;
        if (input[0])
            drop(&p, input[0], p.side);
        memmove(input, input + 1, AHEAD * sizeof *input);
        input[AHEAD] = 0;
        if (i < STEPS) {
            assert_ok(memfit_pool_alloc_on(p.pool, 24 * MiB, 0, 0, p.side, &room, &err), err);
            assert_ok(memfit_pool_alloc_on(p.pool, 16 * MiB, 0, 0, p.side, &input[AHEAD], &err), err);
            drop(&p, room, p.side);
            assert_ok(memfit_pool_use_on(p.pool, input[AHEAD], p.main, &err), err);
        }
        for (unsigned k = 0; k < BLOCKS; k++) {
            assert_ok(memfit_pool_alloc_on(p.pool, 10 * MiB, 0, 0, p.main, &layer[k], &err), err);
            assert_ok(memfit_device_advance(p.device, STEP_US / BLOCKS, &err), err);
        }
        for (unsigned k = BLOCKS; k--;)
            drop(&p, layer[k], p.main);
    }
    memfit_pool_info info = look(&p);
    assert_true(info.reserved_peak_bytes < info.in_use_peak_bytes / 10 * 11);
    assert_true(info.stream_waits && info.remapped_pages == pages && !p.pool->lost_us);
    drop(&p, model, p.main);
    mf_sim_lag_us(p.device, p.main, 0);
    mf_sim_lag_us(p.device, p.side, 0);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(side_streams_come_to_rest),
        cmocka_unit_test(kinds_beside_lagging_streams),
        cmocka_unit_test(side_blocks_lie_apart),
        cmocka_unit_test(the_main_stream_is_found),
        cmocka_unit_test(a_block_goes_where_the_pages_are),
        cmocka_unit_test(no_page_of_the_place_is_taken),
        cmocka_unit_test(inputs_come_back_before_pages_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
