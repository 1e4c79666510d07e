/*
 * test_pool_lead.c: a program that is ahead of the device: what it spends meanwhile on moving pages and on waiting is not
 * lost, and what is in flight is waited for rather than held many times over. On sim, whose streams lag. It is long because
 * all of it needs the same scenes of a device that is behind.
 */
#include "pool/lanes.h" /* before the tests' own err */

#include "stream_place.h"

#include "pool/moves.h"
#include "pool/pages.h"

static place open_place(double slack)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.slack = slack;
    return open_with(o);
}

/* Holes and blocks of a page by turns, once the holes are dropped. */
static void take_pairs(place *p, memfit_address *holes, memfit_address *kept, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_ok(memfit_pool_alloc_on(p->pool, 2 * MiB, 0, 0, p->main, &holes[i], &err), err);
        assert_ok(memfit_pool_alloc_on(p->pool, 2 * MiB, 0, 0, p->main, &kept[i], &err), err);
    }
}

static void drop_all(place *p, const memfit_address *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        drop(p, list[i], p->main);
}

/* Looks twice: from then on it is known when the device was done. */
static void look_twice(place *p)
{
    for (unsigned i = 0; i < 2; i++) {
        mf_moves_look(p->pool);
        assert_ok(memfit_device_advance(p->device, 1000, &err), err);
    }
}

/* Looks again when the device is past all that was queued before, without being idle between. */
static void go_past(place *p, memfit_address freed, uint64_t owed)
{
    const mf_pages *pages = &p->pool->pages;
    assert_ok(memfit_device_advance(p->device, 25000, &err), err);
    drop(p, freed, p->main); /* more work, and an event behind it */
    mf_moves_look(p->pool);
    assert_ok(memfit_device_advance(p->device, 15000, &err), err);
    mf_moves_look(p->pool);
    assert_int_equal(pages->owed_us, owed);
    assert_ok(memfit_device_advance(p->device, 15000, &err), err);
    mf_moves_look(p->pool);
    assert_int_equal(pages->owed_us, 0);
    assert_int_equal(p->pool->lost_us, 0);
    assert_ok(memfit_device_advance(p->device, 200000, &err), err); /* idle since long */
    mf_moves_look(p->pool);
    assert_int_equal(p->pool->lost_us, 0);
}

/* A program that looks at its loss waits until the device is past all it queued, long after it last asked for memory. The device
 * is at work meanwhile: what was spent on moving pages before is not lost by it. */
static void what_a_program_waits_for_is_not_lost(void **state)
{
    (void)state;
    enum { PAIRS = 40 };
    place p = open_place(0);
    memfit_address kept[PAIRS], holes[PAIRS], large;
    take_pairs(&p, holes, kept, PAIRS);
    look_twice(&p);
    mf_sim_handle_us(p.device, 100);
    mf_sim_lag_us(p.device, p.main, 50000); /* the device has that much to do */
    drop_all(&p, holes, PAIRS);
    assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &large, &err), err);
    assert_true(p.pool->remaps == 1 && p.pool->pages.owed_us > 500);
    mf_sim_lag_us(p.device, p.main, 90000); /* more is queued, and waited for */
    drop(&p, large, p.main);
    mf_moves_look(p.pool);
    assert_ok(memfit_device_advance(p.device, 90000, &err), err);
    mf_moves_look(p.pool);
    assert_in_range(p.pool->lost_us, 0, 100);
    mf_sim_lag_us(p.device, p.main, 0);
    drop_all(&p, kept, PAIRS);
    close_place(&p);
}

/* A program is held up, queues some more and pauses, while the device is not yet past the first: the pause is its own affair,
 * however long nobody looks. */
static void a_pause_loses_nothing(void **state)
{
    (void)state;
    enum { PAIRS = 40, MORE = 10, FREES = 80 };
    place p = open_place(0);
    memfit_address kept[PAIRS], holes[PAIRS], large, small;
    take_pairs(&p, holes, kept, PAIRS);
    look_twice(&p);
    mf_sim_handle_us(p.device, 100);
    mf_sim_lag_us(p.device, p.main, 20000); /* the device has that much to do, all the time */
    drop_all(&p, holes, PAIRS);
    assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &large, &err), err);
    assert_true(p.pool->remaps == 1 && p.pool->pages.owed_us > 500);
    for (unsigned i = 0; i < MORE; i++) {
        for (unsigned k = 0; k < FREES; k++) {
            assert_ok(memfit_pool_alloc_on(p.pool, 65536, 0, 0, p.main, &small, &err), err);
            drop(&p, small, p.main);
        }
        assert_ok(memfit_device_advance(p.device, 1000, &err), err);
    }
    mf_moves_look(p.pool);
    assert_true(p.pool->pages.owed_us > 500);
    assert_ok(memfit_device_advance(p.device, 1000000, &err), err);
    mf_moves_look(p.pool);
    assert_int_equal(p.pool->pages.owed_us, 0);
    assert_in_range(p.pool->lost_us, 0, 100);
    mf_sim_lag_us(p.device, p.main, 0);
    drop(&p, large, p.main);
    drop_all(&p, kept, PAIRS);
    close_place(&p);
}

static void ask_and_drop(place *p, memfit_stream stream, unsigned times)
{
    memfit_address small;
    for (unsigned i = 0; i < times; i++) {
        assert_ok(memfit_pool_alloc_on(p->pool, 65536, 0, 0, stream, &small, &err), err);
        drop(p, small, stream);
        mf_moves_look(p->pool);
    }
}

/* More is freed on the side stream at last, where nothing was done for long: that says nothing of the device. */
static void another_main_stream_loses_nothing(void **state)
{
    (void)state;
    place p = open_place(0);
    mf_sim_lag_us(p.device, p.main, 60000);
    ask_and_drop(&p, p.main, 1);
    ask_and_drop(&p, p.side, 20);
    look_twice(&p); /* the side stream was done then */
    for (unsigned i = 0; i < 100; i++) {
        ask_and_drop(&p, p.main, 1);
        assert_ok(memfit_device_advance(p.device, 50000, &err), err);
    }
    uint64_t lost = p.pool->lost_us;
    mf_moves_owe(p.pool, 5000);
    ask_and_drop(&p, p.side, 200);
    assert_int_equal(p.pool->lost_us, lost);
    mf_sim_lag_us(p.device, p.main, 0);
    close_place(&p);
}

/* A pool that has spent its time on moving pages may hold a tenth; not any more when the program was at work for a while. That it
 * was there, and asked for nothing, earns nothing. */
static void what_was_spent_is_earned_again(void **state)
{
    (void)state;
    enum { PAIRS = 40, LATER_US = 20000000, NOT, RESTS, WORKS };
    for (unsigned way = NOT; way <= WORKS; way++) {
        place p = open_place(0.01);
        memfit_address kept[PAIRS], holes[PAIRS], large;
        take_pairs(&p, holes, kept, PAIRS);
        drop_all(&p, holes, PAIRS);
        uint64_t reserved = p.pool->pages.reserved, every_us = way == WORKS ? LATER_US / 400 : LATER_US;
        p.pool->pages.move_credit_us = -2000;
        for (uint64_t us = 0; way != NOT && us < LATER_US; us += every_us) {
            assert_ok(memfit_device_advance(p.device, every_us, &err), err);
            ask_and_drop(&p, p.main, 1);
        }
        assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &large, &err), err);
        assert_true(way == WORKS ? p.pool->pages.reserved == reserved : p.pool->pages.reserved > reserved + PAIRS / 10);
        drop(&p, large, p.main);
        drop_all(&p, kept, PAIRS);
        close_place(&p);
    }
}

/* Time spent on moving while the device has work is lost only when the device falls idle before it is past what was queued by
 * then, and no more of it than the device was idle. */
static void what_the_device_does_not_wait_for_is_not_lost(void **state)
{
    (void)state;
    enum { PAIRS = 40 };
    /* idle; idle later; with more work then; each with events that keep the time, and without */
    for (unsigned i = 0; i < 6; i++) {
        unsigned busy = i / 2;
        place p = open_place(0);
        mf_device_table untimed = *p.device->table;
        const mf_device_table *timed = p.device->table;
        untimed.timer_create = NULL;
        untimed.timer_between = NULL;
        if (i % 2)
            p.device->table = &untimed;
        mf_pages *pages = &p.pool->pages;
        memfit_address kept[PAIRS], holes[PAIRS], odd, large;
        take_pairs(&p, holes, kept, PAIRS);
        if (busy)
            mf_sim_lag_us(p.device, p.main, 50000);
        drop_all(&p, holes, PAIRS);
        /* a first look at the device */
        assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, p.main, &odd, &err), err);
        assert_ok(memfit_device_advance(p.device, 10000, &err), err);
        int64_t before = pages->move_credit_us;
        assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &large, &err), err);
        uint64_t moving = p.pool->moving_us;
        assert_true(moving > 0 && p.pool->remaps == 1);
        if (!busy) {
            assert_int_equal(pages->owed_us, 0);
            assert_true(pages->move_credit_us <= before - (int64_t)moving + 1);
        } else if (busy == 2) {
            go_past(&p, kept[0], moving);
            mf_sim_lag_us(p.device, p.main, 0);
        } else {
            assert_int_equal(pages->owed_us, moving);
            assert_true(pages->move_credit_us >= before);
            assert_ok(memfit_device_advance(p.device, 20000, &err), err); /* still at work, with no more to do */
            mf_sim_lag_us(p.device, p.main, 30000);
            mf_moves_look(p.pool);
            assert_int_equal(pages->owed_us, moving);
            assert_ok(memfit_device_advance(p.device, 100000, &err), err); /* idle since long */
            before = pages->move_credit_us;
            mf_moves_look(p.pool);
            assert_int_equal(pages->owed_us, 0);
            assert_int_equal(pages->move_credit_us, before - (int64_t)moving);
            mf_sim_lag_us(p.device, p.main, 0);
        }
        drop(&p, large, p.main);
        drop(&p, odd, p.main);
        drop_all(&p, kept + (busy == 2), PAIRS - (busy == 2));
        p.device->table = timed;
        close_place(&p);
    }
}

/* Most of a hole has pages, the rest of it old mappings that the device is not past: a block as large as the hole waits for
 * those, with slack, rather than take the pages elsewhere. */
static void a_hole_with_pages_is_waited_for(void **state)
{
    (void)state;
    place p = open_place(0.01);
    enum { SMALL = 8 };
    memfit_address a, b, c, kept, more, whole, small[SMALL];
    assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &a, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, p.main, &b, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 42 * MiB, 0, 0, p.main, &c, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, p.main, &kept, &err), err);
    for (unsigned i = 0; i < SMALL; i++)
        assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, p.main, &small[i], &err), err);
    mf_sim_lag_us(p.device, p.main, 50000);
    drop(&p, a, p.main);
    assert_ok(memfit_pool_alloc_on(p.pool, 48 * MiB, 0, 0, p.main, &more, &err), err); /* takes what a had */
    uint64_t moved = p.pool->remapped_pages;
    assert_int_equal(moved, 20);
    assert_ok(memfit_device_advance(p.device, 10000, &err), err);
    drop(&p, b, p.main);
    drop(&p, c, p.main);
    for (unsigned i = 0; i < SMALL; i++) { /* the device has more and more to do */
        assert_ok(memfit_device_advance(p.device, 1000, &err), err);
        drop(&p, small[i], p.main);
        mf_moves_look(p.pool); /* an event behind that */
    }
    assert_ok(memfit_pool_alloc_on(p.pool, 84 * MiB, 0, 0, p.main, &whole, &err), err);
    assert_true(whole == a);
    assert_true(p.pool->remapped_pages <= moved + SMALL);
    assert_int_equal(p.pool->lost_us, 0);
    assert_ok(mf_pool_check(p.pool, &err), err);
    drop(&p, whole, p.main);
    drop(&p, more, p.main);
    drop(&p, kept, p.main);
    mf_sim_lag_us(p.device, p.main, 0);
    close_place(&p);
}

/* A program that runs many steps ahead of the device, its inputs on a side stream: with slack the pool waits, where the
 * device has enough to do, rather than hold the inputs of all those steps. */
static void in_flight_inputs_are_waited_for(void **state)
{
    (void)state;
    enum { STEPS = 60, LAYERS = 12, STEP_US = 6000 };
    for (unsigned with = 0; with < 2; with++) {
        place p = open_place(with ? 0.01 : 0);
        mf_sim_lag_us(p.device, p.main, 60000);
        mf_sim_lag_us(p.device, p.side, 1000);
        for (unsigned i = 0; i < STEPS; i++) {
            memfit_address input = 0, layer[LAYERS];
            assert_ok(memfit_pool_alloc_on(p.pool, 8 * MiB, 0, 0, p.side, &input, &err), err);
            assert_ok(memfit_pool_use_on(p.pool, input, p.main, &err), err);
            kernel(&p, input, 8 * MiB, p.main);
            for (unsigned k = 0; k < LAYERS; k++) {
                assert_ok(memfit_pool_alloc_on(p.pool, 10 * MiB, 0, 0, p.main, &layer[k], &err), err);
                kernel(&p, layer[k], 10 * MiB, p.main);
                assert_ok(memfit_device_advance(p.device, STEP_US / LAYERS, &err), err);
            }
            drop(&p, input, p.side);
            for (unsigned k = 0; k < LAYERS; k++)
                drop(&p, layer[k], p.main);
        }
        memfit_pool_info info = look(&p);
        double ratio = (double)info.reserved_peak_bytes / (double)info.in_use_peak_bytes;
        assert_int_equal(p.pool->pages.owed_all_us > 100000 + p.pool->moving_us, with); /* waits are owed like moves */
        assert_false(mf_lanes_wait_some(p.pool, 100000)); /* there is less to do behind any event */
        assert_true(mf_lanes_wait_some(p.pool, MF_QUEUED_US));
        assert_true(with ? ratio < 1.26 && info.stream_waits > 0 : ratio > 1.6);
        assert_true(p.pool->lost_us < 200); /* before more was freed on the main stream than on the other */
        mf_sim_lag_us(p.device, p.main, 0);
        mf_sim_lag_us(p.device, p.side, 0);
        close_place(&p);
    }
}

/* A device that is further behind than there are events: the pool still knows how far it is. */
static void far_behind_it_is_known_how_far(void **state)
{
    (void)state;
    enum { FREES = 5 * MF_EVENTS, LAG_US = 1000 * FREES };
    place p = open_place(0);
    memfit_address a;
    assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, p.main, &a, &err), err);
    drop(&p, a, p.main);
    mf_sim_lag_us(p.device, p.main, LAG_US);
    mf_clock clock = {.stream = p.main};
    for (unsigned i = 0; i < FREES; i++) {
        clock.serial++;
        assert_true(mf_clock_record(p.pool, &clock));
        assert_ok(memfit_device_advance(p.device, 1000, &err), err);
    }
    for (unsigned part = 1; part < 4; part++) {
        assert_ok(memfit_device_advance(p.device, LAG_US / 4, &err), err);
        mf_clock_look(p.pool, &clock);
        assert_true(clock.safe <= FREES * part / 4 + 1 && clock.safe + FREES / 8 > FREES * part / 4);
        assert_true(mf_clock_queued_us(&clock) > MF_QUEUED_US);
    }
    assert_true(mf_clock_wait(p.pool, &clock, clock.serial));
    assert_int_equal(mf_clock_queued_us(&clock), 0);
    mf_clock_end(p.pool, &clock);
    mf_sim_lag_us(p.device, p.main, 0);
    close_place(&p);
}

/* More pages are moved than there can be old mappings, while the device is far behind: it is waited for, as it has enough to do.
 * The pool does not grow, and no time is lost by that. */
static void old_mappings_that_run_out_are_waited_for(void **state)
{
    (void)state;
    enum { PAIRS = MF_SHADOWS + 64, FEW = 128 };
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = UINT64_C(64) << 30;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.ignore_environment = o.no_thread_caches = true;
    memfit_device *device;
    memfit_pool *pool;
    assert_ok(memfit_device_open("sim", &options, &device, &err), err);
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    static memfit_address kept[PAIRS], hole[PAIRS];
    memfit_address few, large;
    for (unsigned i = 0; i < PAIRS; i++) {
        assert_ok(memfit_pool_alloc(pool, 2 * MiB, 0, &hole[i], &err), err);
        assert_ok(memfit_pool_alloc(pool, 2 * MiB, 0, &kept[i], &err), err);
    }
    mf_sim_lag_us(device, 0, 300000);
    for (unsigned i = 0; i < FEW; i++)
        assert_ok(memfit_pool_free(pool, hole[i], &err), err);
    assert_ok(memfit_pool_alloc(pool, FEW * 2 * MiB, 0, &few, &err), err); /* from now on events are put behind frees */
    for (unsigned i = FEW; i < PAIRS; i++) {
        assert_ok(memfit_pool_free(pool, hole[i], &err), err);
        assert_ok(memfit_device_advance(device, 100, &err), err);
    }
    uint64_t reserved = pool->pages.reserved;
    assert_ok(memfit_pool_alloc(pool, (PAIRS - FEW) * 2 * MiB, 0, &large, &err), err);
    assert_int_equal(pool->pages.reserved, reserved);
    assert_true(pool->stream_waits > 0 && pool->lost_us == 0);
    assert_ok(mf_pool_check(pool, &err), err);
    mf_sim_lag_us(device, 0, 0);
    memfit_pool_destroy(pool);
    assert_int_equal(mf_sim_get(device).violations, 0);
    assert_ok(memfit_device_close(device, &err), err);
}

/* ---- which events keep the time ------------------------------------------------------------------------------- */

enum { EVENTS = 1024, HOLES = 40 };

static const mf_device_table *real;
static struct {
    bool timed[EVENTS]; /* by event */
    unsigned plain, timers;
} put;

static memfit_status make_plain(mf_device *device, mf_event *event, memfit_error *e)
{
    memfit_status status = real->event_create(device, event, e);
    if (!status)
        put.timed[*event % EVENTS] = false;
    return status;
}

static memfit_status make_timer(mf_device *device, mf_event *event, memfit_error *e)
{
    memfit_status status = real->timer_create(device, event, e);
    if (!status)
        put.timed[*event % EVENTS] = true;
    return status;
}

static memfit_status count_record(mf_device *device, mf_event event, mf_stream stream, memfit_error *e)
{
    *(put.timed[event % EVENTS] ? &put.timers : &put.plain) += 1;
    return real->event_record(device, event, stream, e);
}

static memfit_status only_timers(mf_device *device, mf_event from, mf_event to, double *us, memfit_error *e)
{
    assert_true(put.timed[from % EVENTS] && put.timed[to % EVENTS]);
    return real->timer_between(device, from, to, us, e);
}

/* A place whose events are counted, by kind. */
static place open_counted(mf_device_table *table)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.no_thread_caches = true; /* every free is counted */
    place p = open_with(o);
    real = p.device->table;
    *table = *real;
    table->event_create = make_plain;
    table->timer_create = make_timer;
    table->event_record = count_record;
    table->timer_between = only_timers;
    p.device->table = table;
    return p;
}

static void close_counted(place *p)
{
    p->device->table = real;
    close_place(p);
}

/* With an event behind every 64th. */
static void free_many(place *p, unsigned count)
{
    memfit_address small;
    p->pool->pages.stamp_until = UINT64_MAX;
    while (count--) {
        assert_ok(memfit_pool_alloc_on(p->pool, 65536, 0, 0, p->main, &small, &err), err);
        drop(p, small, p->main);
        assert_ok(memfit_device_advance(p->device, 10, &err), err);
    }
}

/* Only those of looks, which stand before and after every move, and what is put while something is owed: such an event
 * holds the device up. What is lost is found all the same: the device is idle, at once, soon, or not for long. */
static void events_keep_the_time_where_it_is_asked_for(void **state)
{
    (void)state;
    static const uint64_t lag_us[] = {0, 5, 300, 20000};
    for (unsigned i = 0; i < 4; i++) {
        mf_device_table table;
        place p = open_counted(&table);
        memfit_address kept[HOLES], holes[HOLES], large, other;
        take_pairs(&p, holes, kept, HOLES);
        free_many(&p, 1); /* its page is there from now on */
        mf_sim_lag_us(p.device, p.main, lag_us[i]);
        put.plain = put.timers = 0;
        free_many(&p, 640);
        assert_true(put.plain >= 9 && !put.timers);
        drop_all(&p, holes, HOLES);
        put.plain = put.timers = 0;
        mf_sim_handle_us(p.device, 100);
        assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &large, &err), err);
        uint64_t moving = p.pool->moving_us, lost = moving > lag_us[i] ? moving - lag_us[i] : 0;
        assert_true(p.pool->remaps == 1 && moving > 500);
        assert_true(put.timers >= 2 && put.timers <= 4 && put.plain <= 2);
        put.plain = put.timers = 0;
        if (!lost) {
            assert_int_equal(p.pool->pages.owed_us, moving);
            for (unsigned late = 0; late < 2; late++) { /* one a millisecond is enough */
                put.plain = put.timers = 0;
                assert_ok(memfit_device_advance(p.device, late * 1000, &err), err);
                free_many(&p, 1);
                assert_true(mf_clock_record(p.pool, mf_pages_clock(p.pool)));
                assert_true(late ? put.timers && !put.plain : put.plain && !put.timers);
            }
            free_many(&p, 640); /* owed all the time: looked at now and then */
            assert_true(put.timers >= 9);
            assert_ok(memfit_device_advance(p.device, 15000, &err), err); /* it is past the move, with more to do */
        } else {
            free_many(&p, 100);
        }
        mf_moves_look(p.pool);
        uint64_t more = p.pool->moving_us - moving; /* for a page of the small ones */
        lost += more > lag_us[i] ? more - lag_us[i] : 0;
        assert_in_range(p.pool->lost_us, lost > 50 ? lost - 50 : lost, lost ? lost + 50 : 0);
        assert_int_equal(p.pool->pages.owed_us, 0);
        p.pool->pages.owed_us = i % 2 ? 50 : 0; /* too little to ask for */
        free_many(&p, 1);
        put.plain = put.timers = 0;
        free_many(&p, 640);
        assert_true(put.plain >= 9 && !put.timers);
        mf_sim_lag_us(p.device, p.main, 0);
        assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, p.main, &other, &err), err);
        drop(&p, other, p.main);
        drop(&p, large, p.main);
        drop_all(&p, kept, HOLES);
        close_counted(&p);
    }
}

/* Of plain events it is not known when they were done. Time is owed with no look before, and the device, which is
 * behind, was at work meanwhile: nothing is lost, whether it is looked at often or once. */
static void behind_plain_events_nothing_is_lost(void **state)
{
    (void)state;
    for (unsigned looks = 0; looks < 2; looks++) {
        mf_device_table table;
        place p = open_counted(&table);
        free_many(&p, 1); /* its page is there from now on */
        look_twice(&p);
        mf_sim_lag_us(p.device, p.main, 20000);
        free_many(&p, 640);
        assert_ok(memfit_device_advance(p.device, 5000, &err), err);
        mf_moves_owe(p.pool, 5000);
        assert_int_equal(p.pool->pages.owed_us, 5000);
        for (unsigned i = 0; i < 20; i++) {
            free_many(&p, 200);
            if (looks || i == 19)
                mf_moves_look(p.pool);
        }
        assert_int_equal(p.pool->lost_us, 0);
        assert_int_equal(p.pool->pages.owed_us, 0);
        mf_sim_lag_us(p.device, p.main, 0);
        close_counted(&p);
    }
}

/* So many events are in flight that some have to go, those before and after a move, too. */
static void where_events_had_to_go_nothing_is_lost(void **state)
{
    (void)state;
    mf_device_table table;
    place p = open_counted(&table);
    memfit_address kept[HOLES], holes[HOLES], large;
    take_pairs(&p, holes, kept, HOLES);
    free_many(&p, 1);
    look_twice(&p);
    mf_sim_lag_us(p.device, p.main, 200000);
    drop_all(&p, holes, HOLES);
    free_many(&p, 5000);
    assert_int_equal(mf_pages_clock(p.pool)->waiting_count, MF_EVENTS);
    mf_sim_handle_us(p.device, 100);
    assert_ok(memfit_pool_alloc_on(p.pool, 40 * MiB, 0, 0, p.main, &large, &err), err);
    assert_true(p.pool->remaps == 1 && p.pool->pages.owed_us > 500);
    for (unsigned i = 0; i < 25; i++)
        free_many(&p, 1000);
    assert_int_equal(p.pool->lost_us, 0);
    assert_int_equal(p.pool->pages.owed_us, 0);
    mf_sim_lag_us(p.device, p.main, 0);
    drop(&p, large, p.main);
    drop_all(&p, kept, HOLES);
    close_counted(&p);
}

/* ---- at random, against a list ------------------------------------------------------------------------------ */

enum { MOST = 64 };

typedef struct live {
    memfit_address address;
    uint64_t bytes;
    memfit_stream stream;
} live;

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % below;
}

static void take(place *p, live *list, unsigned *count, memfit_stream stream, uint64_t bytes)
{
    live *l = &list[*count];
    *l = (live){0, bytes, stream};
    assert_ok(memfit_pool_alloc_on(p->pool, bytes, 0, 0, stream, &l->address, &err), err);
    for (unsigned i = 0; i < *count; i++)
        assert_true(l->address >= list[i].address + list[i].bytes || list[i].address >= l->address + bytes);
    kernel(p, l->address, bytes, stream); /* sim sees whether another stream is not done with it */
    ++*count;
}

/* Three streams that lag by different times, blocks that two of them use, all sizes: whatever the pool waits for, moves and
 * hands out, no work in flight is touched. The kernels on a further stream come when the first is past, as a program
 * would see to. */
static void streams_that_lag_at_random(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 24; round++) {
        place p = open_place(round % 2 ? 0.01 : 0);
        memfit_stream streams[] = {p.main, p.side, p.third};
        uint64_t seed = 77 + round;
        live list[MOST];
        unsigned count = 0;
        for (unsigned i = 0; i < 3; i++)
            mf_sim_lag_us(p.device, streams[i], 1 + draw(&seed, 30000));
        for (unsigned step = 0; step < 1500; step++) {
            memfit_stream stream = streams[draw(&seed, 10) < 7 ? 0 : draw(&seed, 3)];
            if (count < MOST && (count < 8 || draw(&seed, 2))) {
                uint64_t bytes = UINT64_C(1) << (8 + draw(&seed, 15));
                take(&p, list, &count, stream, bytes + draw(&seed, bytes));
            } else {
                live *l = &list[draw(&seed, count)];
                if (l->stream != stream && !draw(&seed, 2)) { /* a further stream uses it, behind the first */
                    assert_ok(memfit_stream_sync(p.device, l->stream, &err), err);
                    assert_ok(memfit_pool_use_on(p.pool, l->address, stream, &err), err);
                    kernel(&p, l->address, l->bytes, stream);
                }
                drop(&p, l->address, l->stream);
                *l = list[--count];
            }
            assert_ok(memfit_device_advance(p.device, draw(&seed, 400), &err), err);
            if (step % 100 == 0)
                assert_ok(mf_pool_check(p.pool, &err), err);
        }
        assert_int_equal(mf_sim_get(p.device).violations, 0);
        while (count) {
            count--;
            drop(&p, list[count].address, list[count].stream);
        }
        for (unsigned i = 0; i < 3; i++)
            mf_sim_lag_us(p.device, streams[i], 0);
        close_place(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_device_does_not_wait_for_is_not_lost),
        cmocka_unit_test(what_a_program_waits_for_is_not_lost),
        cmocka_unit_test(a_pause_loses_nothing),
        cmocka_unit_test(another_main_stream_loses_nothing),
        cmocka_unit_test(what_was_spent_is_earned_again),
        cmocka_unit_test(a_hole_with_pages_is_waited_for),
        cmocka_unit_test(in_flight_inputs_are_waited_for),
        cmocka_unit_test(far_behind_it_is_known_how_far),
        cmocka_unit_test(old_mappings_that_run_out_are_waited_for),
        cmocka_unit_test(events_keep_the_time_where_it_is_asked_for),
        cmocka_unit_test(behind_plain_events_nothing_is_lost),
        cmocka_unit_test(where_events_had_to_go_nothing_is_lost),
        cmocka_unit_test(streams_that_lag_at_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
