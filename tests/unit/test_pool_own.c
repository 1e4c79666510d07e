/*
 * test_pool_own.c: with several streams a request uses what its own stream freed, before the device is past it, and no
 * other stream gets a byte of it too early. sim counts as a violation whatever work in flight does not survive.
 */
#include "stream_place.h"

#include "pool/cache.h"

static place open_place(uint64_t bulk, double slack)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.bulk_bytes = bulk;
    o.slack = slack;
    return open_with(o);
}

static memfit_address get(place *p, uint64_t bytes, memfit_stream stream)
{
    memfit_address a = 0;
    assert_ok(memfit_pool_alloc_on(p->pool, bytes, 0, 0, stream, &a, &err), err);
    kernel(p, a, bytes, stream); /* uses it at once */
    return a;
}

/* Holes of three pages between blocks that stay; none is as long as the next request. */
enum { PAIRS = 8 };
static void in_turn(place *p, memfit_address *holes, memfit_address *kept, uint64_t bytes)
{
    for (unsigned i = 0; i < PAIRS; i++) {
        holes[i] = get(p, bytes, p->main);
        kept[i] = get(p, bytes, p->main);
    }
}

static void own_pages_move_at_once(void **state)
{
    (void)state;
    for (uint64_t bulk = 0; bulk <= 4 * MiB; bulk += 4 * MiB) {
        place p = open_place(bulk, 0);
        memfit_address holes[PAIRS], kept[PAIRS];
        drop(&p, get(&p, 2 * MiB, p.side), p.side);
        in_turn(&p, holes, kept, 6 * MiB);
        uint64_t created = look(&p).created_pages;
        mf_sim_hold(p.device, p.main, true);
        for (unsigned i = 0; i < PAIRS; i++)
            drop(&p, holes[i], p.main);
        memfit_address large = get(&p, 20 * MiB, p.main); /* ten pages */
        memfit_pool_info info = look(&p);
        assert_true(info.created_pages <= created + 1); /* the page that the side stream had may be another's */
        assert_true(info.remapped_pages >= 9);
        assert_int_equal(info.stream_waits, 0);
        /* nothing of the main stream's is the side stream's yet */
        memfit_address other = get(&p, 6 * MiB, p.side);
        assert_true(look(&p).created_pages > created);
        mf_sim_hold(p.device, p.main, false);
        drop(&p, other, p.side);
        drop(&p, large, p.main);
        for (unsigned i = 0; i < PAIRS; i++)
            drop(&p, kept[i], p.main);
        close_place(&p);
    }
}

/* Pages that moved leave old mappings; once those are past they are not in the way of the same stream's other pages. */
static void own_pages_move_over_old_mappings(void **state)
{
    (void)state;
    place p = open_place(0, 0);
    memfit_address holes[PAIRS], kept[PAIRS];
    in_turn(&p, holes, kept, 6 * MiB);
    memfit_address theirs = get(&p, 2 * MiB, p.side); /* there are two streams */
    mf_sim_hold(p.device, p.main, true);
    for (unsigned i = 0; i < 3; i++)
        drop(&p, holes[i], p.main);
    memfit_address large = get(&p, 18 * MiB, p.main), wall = get(&p, 2 * MiB, p.main); /* their nine pages */
    assert_true(look(&p).remapped_pages >= 8);
    mf_sim_hold(p.device, p.main, false);
    assert_ok(memfit_stream_sync(p.device, p.main, &err), err);
    mf_sim_hold(p.device, p.main, true);
    drop(&p, kept[0], p.main); /* where the pages were is one place now, and they are the stream's own once more */
    drop(&p, kept[1], p.main);
    drop(&p, large, p.main);
    uint64_t created = look(&p).created_pages;
    memfit_address again = get(&p, 30 * MiB, p.main);
    assert_int_equal(again, holes[0]);
    assert_int_equal(look(&p).created_pages, created);
    mf_sim_hold(p.device, p.main, false);
    drop(&p, again, p.main);
    drop(&p, wall, p.main);
    drop(&p, theirs, p.side);
    for (unsigned i = 2; i < PAIRS; i++)
        drop(&p, kept[i], p.main);
    for (unsigned i = 3; i < PAIRS; i++)
        drop(&p, holes[i], p.main);
    close_place(&p);
}

/* A page that moved under the end of a block is not full: what is left of it is the same stream's until it is past. */
static void rest_of_a_page_stays_with_its_stream(void **state)
{
    (void)state;
    place p = open_place(0, 0);
    memfit_address holes[PAIRS], kept[PAIRS], rest[12];
    drop(&p, get(&p, 2 * MiB, p.side), p.side);
    in_turn(&p, holes, kept, 6 * MiB);
    mf_sim_hold(p.device, p.main, true);
    for (unsigned i = 0; i < PAIRS; i++) {
        assert_ok(memfit_device_fill(p.device, holes[i], 2, 6 * MiB, p.main, &err), err);
        drop(&p, holes[i], p.main);
    }
    memfit_address large = get(&p, 20 * MiB + MiB / 2, p.main);
    for (unsigned i = 0; i < 12; i++) /* whatever is free beside it, another stream writes there now */
        rest[i] = get(&p, 96 * 1024, p.side);
    assert_int_equal(mf_sim_get(p.device).violations, 0);
    mf_sim_hold(p.device, p.main, false);
    for (unsigned i = 0; i < 12; i++)
        drop(&p, rest[i], p.side);
    drop(&p, large, p.main);
    for (unsigned i = 0; i < PAIRS; i++)
        drop(&p, kept[i], p.main);
    close_place(&p);
}

/* What another stream is done with is taken when the pool would grow otherwise, and not before. */
static void others_memory_comes_last(void **state)
{
    (void)state;
    place p = open_place(0, 0);
    memfit_address first = get(&p, 8 * MiB, p.main), wall = get(&p, 2 * MiB, p.main);
    memfit_address theirs = get(&p, 8 * MiB, p.side), end = get(&p, 2 * MiB, p.side);
    uint64_t created = look(&p).created_pages;
    drop(&p, theirs, p.side);
    drop(&p, first, p.main);
    memfit_address again = get(&p, 8 * MiB, p.main);
    assert_int_equal(again, first);
    memfit_address more = get(&p, 8 * MiB, p.main); /* the side stream is done with it */
    assert_int_equal(look(&p).created_pages, created);
    drop(&p, again, p.main);
    drop(&p, more, p.main);
    drop(&p, wall, p.main);
    drop(&p, end, p.side);
    close_place(&p);
}

/* Free memory side by side, a part of it everybody's and a part the stream's own, is one place. */
static void holes_side_by_side_are_one_place(void **state)
{
    (void)state;
    place p = open_place(0, 0);
    memfit_address past = get(&p, 8 * MiB, p.main), mine = get(&p, 8 * MiB, p.main), end = get(&p, 2 * MiB, p.main);
    drop(&p, get(&p, 2 * MiB, p.side), p.side); /* there are two streams */
    uint64_t created = look(&p).created_pages;
    drop(&p, past, p.main);
    assert_ok(memfit_pool_poll(p.pool, &err), err); /* everybody's */
    mf_sim_hold(p.device, p.main, true);
    drop(&p, mine, p.main); /* not past */
    memfit_address both = get(&p, 15 * MiB, p.main);
    assert_int_equal(both, past);
    memfit_pool_info info = look(&p);
    assert_int_equal(info.created_pages, created);
    assert_int_equal(info.remapped_pages, 0);
    mf_sim_hold(p.device, p.main, false);
    drop(&p, both, p.main);
    drop(&p, end, p.main);
    close_place(&p);
}

/* A request that fails takes nothing away from other streams. */
static void failure_claims_nothing(void **state)
{
    (void)state;
    place p = open_place(0, 0);
    memfit_address a = get(&p, 40 * MiB, p.side), b;
    assert_ok(memfit_pool_set_limit(p.pool, 64 * MiB, false, &err), err);
    memfit_address c = get(&p, 2 * MiB, p.main);
    drop(&p, a, p.side);
    mf_sim_hold(p.device, p.main, true);
    assert_ok(memfit_pool_poll(p.pool, &err), err);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 100 * MiB, 0, 0, p.main, &b, &err), MEMFIT_OUT_OF_MEMORY);
    b = get(&p, 60 * MiB, p.side);
    mf_sim_hold(p.device, p.main, false);
    drop(&p, b, p.side);
    drop(&p, c, p.main);
    close_place(&p);
}

/* A handle that is to be a part of the pool at most is a quarter of what it is made for at most, too: of all of that, to
 * its last page. */
static void handles_are_a_quarter_of_a_block(void **state)
{
    (void)state;
    place p = open_place(32 * MiB, 0);
    p.pool->pages.part = 4;
    memfit_address a = 0, b = 0;
    for (unsigned i = 0; i < 2; i++)
        assert_ok(memfit_pool_alloc(p.pool, i ? 32 * MiB : 128 * MiB, 0, i ? &b : &a, &err), err);
    mf_pages *pages = &p.pool->pages;
    uint64_t first = (b - p.pool->range) >> pages->shift;
    for (uint64_t i = first; i < first + 16; i++)
        assert_int_equal(pages->handle[i]->pages, 4); /* sixteen would fit, and would be a quarter of the pool */
    assert_ok(memfit_pool_free(p.pool, a, &err), err);
    assert_ok(memfit_pool_free(p.pool, b, &err), err);
    close_place(&p);
}

/* A long block is made of few handles; they move and break as they must. */
static void handles_come_in_sizes(void **state)
{
    (void)state;
    place p = open_place(32 * MiB, 0);
    memfit_address a = 0, b = 0, wall;
    assert_ok(memfit_pool_alloc(p.pool, 100 * MiB, 0, &a, &err), err);
    assert_int_equal(mf_sim_get(p.device).calls[MF_CALL_CREATE], 4); /* three of 16 pages, one of two */
    assert_ok(memfit_pool_alloc(p.pool, 2 * MiB, 0, &wall, &err), err);
    assert_ok(memfit_pool_free(p.pool, a, &err), err);
    assert_ok(memfit_pool_alloc(p.pool, 110 * MiB, 0, &b, &err), err); /* its own 55 pages, of those and five more */
    memfit_pool_info info = look(&p);
    assert_int_equal(info.reserved_bytes, 112 * MiB);
    assert_true(info.remapped_pages >= 50);
    assert_ok(memfit_pool_free(p.pool, b, &err), err);
    assert_ok(memfit_pool_free(p.pool, wall, &err), err);
    close_place(&p);
}

/* The same holes give the same places, in whatever order they came. */
static void of_equal_holes_the_lowest(void **state)
{
    (void)state;
    enum { HOLES = 4 };
    static const unsigned orders[][HOLES] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    for (unsigned k = 0; k < sizeof orders / sizeof *orders; k++) {
        place p = open_place(0, 0);
        memfit_address holes[HOLES], walls[HOLES], got[HOLES];
        drop(&p, get(&p, 2 * MiB, p.side), p.side); /* threads keep no blocks */
        for (unsigned i = 0; i < HOLES; i++) {
            holes[i] = get(&p, 3 * MiB, p.main);
            walls[i] = get(&p, 3 * MiB, p.main);
        }
        for (unsigned i = 0; i < HOLES; i++)
            drop(&p, holes[orders[k][i]], p.main);
        for (unsigned i = 0; i < HOLES; i++) {
            got[i] = get(&p, 3 * MiB, p.main);
            assert_int_equal(got[i], holes[i]);
        }
        for (unsigned i = 0; i < HOLES; i++) {
            drop(&p, got[i], p.main);
            drop(&p, walls[i], p.main);
        }
        close_place(&p);
    }
}

typedef struct keeper {
    place *p;
    memfit_address block;
    pthread_barrier_t freed, done;
} keeper;

static void *free_and_stay(void *ctx)
{
    keeper *k = ctx;
    memfit_error failure;
    memfit_address small;
    memfit_status status = memfit_pool_alloc(k->p->pool, 1000, 0, &small, &failure); /* it has a cache */
    status = status ? status : memfit_pool_free(k->p->pool, small, &failure);
    status = status ? status : memfit_pool_free(k->p->pool, k->block, &failure);
    pthread_barrier_wait(&k->freed);
    pthread_barrier_wait(&k->done);
    return status ? k : NULL;
}

/* A large request finds the block that another thread has freed and keeps, even where another hole has its pages. */
static void what_a_thread_keeps_is_a_place(void **state)
{
    (void)state;
    place p = open_place(0, 0);
    keeper k = {.p = &p};
    memfit_address wide, wall[2], got = 0;
    pthread_t thread;
    void *failed;
    assert_ok(memfit_pool_alloc(p.pool, 20 * MiB, 0, &k.block, &err), err);
    assert_ok(memfit_pool_alloc(p.pool, 2 * MiB, 0, &wall[0], &err), err);
    assert_ok(memfit_pool_alloc(p.pool, 24 * MiB, 0, &wide, &err), err);
    assert_ok(memfit_pool_alloc(p.pool, 2 * MiB, 0, &wall[1], &err), err);
    assert_ok(memfit_pool_free(p.pool, wide, &err), err);
    pthread_barrier_init(&k.freed, NULL, 2);
    pthread_barrier_init(&k.done, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, free_and_stay, &k), 0);
    pthread_barrier_wait(&k.freed);
    assert_true(mf_caches_keep(p.pool));
    assert_ok(memfit_pool_alloc(p.pool, 20 * MiB, 0, &got, &err), err);
    assert_int_equal(got, k.block);
    pthread_barrier_wait(&k.done);
    pthread_join(thread, &failed);
    assert_null(failed);
    pthread_barrier_destroy(&k.freed);
    pthread_barrier_destroy(&k.done);
    assert_ok(memfit_pool_free(p.pool, got, &err), err);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(memfit_pool_free(p.pool, wall[i], &err), err);
    close_place(&p);
}

/* With slack a place that has its pages comes before the best fit. */
static void slack_prefers_pages_that_are_there(void **state)
{
    (void)state;
    for (unsigned with = 0; with < 2; with++) {
        place p = open_place(0, with ? 0.01 : 0);
        memfit_address wide = 0, wall[2], tight = 0, taken = 0, got = 0;
        assert_ok(memfit_pool_alloc(p.pool, 20 * MiB, 0, &wide, &err), err);
        assert_ok(memfit_pool_alloc(p.pool, 2 * MiB, 0, &wall[0], &err), err);
        assert_ok(memfit_pool_alloc(p.pool, 12 * MiB, 0, &tight, &err), err);
        assert_ok(memfit_pool_alloc(p.pool, 2 * MiB, 0, &wall[1], &err), err);
        assert_ok(memfit_pool_free(p.pool, tight, &err), err);
        assert_ok(memfit_pool_alloc(p.pool, 14 * MiB, 0, &taken, &err), err); /* takes the hole's pages */
        assert_ok(memfit_pool_free(p.pool, wide, &err), err);
        uint64_t moved = look(&p).remapped_pages;
        assert_true(moved > 0);
        assert_ok(memfit_pool_alloc(p.pool, 12 * MiB, 0, &got, &err), err);
        assert_int_equal(got, with ? wide : tight);
        assert_true(with ? look(&p).remapped_pages == moved : look(&p).remapped_pages > moved);
        assert_ok(memfit_pool_free(p.pool, got, &err), err);
        assert_ok(memfit_pool_free(p.pool, taken, &err), err);
        for (unsigned i = 0; i < 2; i++)
            assert_ok(memfit_pool_free(p.pool, wall[i], &err), err);
        close_place(&p);
    }
}

/* A hole is as young as its youngest byte, its pages are not: those that their stream is past with serve another one. */
static void old_pages_of_a_young_hole(void **state)
{
    (void)state;
    place p = open_place(0, 0.01);
    drop(&p, get(&p, 2 * MiB, p.side), p.side);
    memfit_address first = get(&p, 20 * MiB, p.main), second = get(&p, 20 * MiB, p.main);
    drop(&p, first, p.main);
    unsigned lane = 1;
    while (p.pool->lane[lane]->clock.stream != p.main)
        lane++;
    mf_clock *clock = &p.pool->lane[lane]->clock;
    assert_true(mf_clock_record(p.pool, clock)); /* as someone does who looks for memory */
    mf_clock_look(p.pool, clock);
    mf_sim_hold(p.device, p.main, true);
    kernel(&p, second, 20 * MiB, p.main);
    drop(&p, second, p.main); /* one hole now, which waits for the second */
    uint64_t created = look(&p).created_pages;
    memfit_address theirs = get(&p, 16 * MiB, p.side);
    assert_true(look(&p).created_pages <= created + 1);
    assert_int_equal(mf_sim_get(p.device).violations, 0);
    memfit_address more = get(&p, 16 * MiB, p.side); /* of these none is past */
    assert_true(look(&p).created_pages >= created + 4);
    assert_int_equal(mf_sim_get(p.device).violations, 0);
    mf_sim_hold(p.device, p.main, false);
    drop(&p, theirs, p.side);
    drop(&p, more, p.side);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_pages_move_at_once),
        cmocka_unit_test(own_pages_move_over_old_mappings),
        cmocka_unit_test(rest_of_a_page_stays_with_its_stream),
        cmocka_unit_test(others_memory_comes_last),
        cmocka_unit_test(holes_side_by_side_are_one_place),
        cmocka_unit_test(failure_claims_nothing),
        cmocka_unit_test(handles_come_in_sizes),
        cmocka_unit_test(handles_are_a_quarter_of_a_block),
        cmocka_unit_test(what_a_thread_keeps_is_a_place),
        cmocka_unit_test(of_equal_holes_the_lowest),
        cmocka_unit_test(slack_prefers_pages_that_are_there),
        cmocka_unit_test(old_pages_of_a_young_hole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
