/* test_pool_moves.c: when pages move, with one stream, on sim: what has to be waited for, and what it may cost. */
#include "test.h"

#include "device/sim.h"
#include "pool/moves.h"
#include "pool/pages.h"
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
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = UINT64_C(1) << 30;
    assert_ok(memfit_device_open("sim", &options, &p.device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
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

/* Blocks of a page each; what lies between the kept ones can become holes of one page. */
static void in_turn(place *p, unsigned pairs, memfit_address *holes, memfit_address *kept)
{
    for (unsigned i = 0; i < pairs; i++) {
        holes[i] = get(p, 2 * MiB);
        kept[i] = get(p, 2 * MiB);
    }
}

static void drop_all(place *p, unsigned count, const memfit_address *blocks)
{
    for (unsigned i = 0; i < count; i++)
        drop(p, blocks[i]);
}

static uint64_t calls(place *p, mf_call call)
{
    return mf_sim_get(p->device).calls[call];
}

/* Pages move while the stream stands still: they are mapped at both places until it is past. */
static void moves_need_no_wait(void **state)
{
    (void)state;
    enum { PAIRS = 40 };
    place p = open_place(160 * MiB, false);
    memfit_address kept[PAIRS], holes[PAIRS], large[3], again;
    in_turn(&p, PAIRS, holes, kept); /* 80 pages: the limit; every second one becomes a hole of one page */
    mf_sim_hold(p.device, 0, true);
    drop_all(&p, 36, holes);
    large[0] = get(&p, 4 * MiB);
    large[1] = get(&p, 24 * MiB);
    large[2] = get(&p, 44 * MiB);
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC) + calls(&p, MF_CALL_EVENT_SYNC), 0);
    assert_true(mf_sim_get(p.device).mapped_bytes == 160 * MiB + 72 * MiB);
    assert_ok(mf_pool_check(p.pool, &err), err);
    /* a page that is free again is where it was before it moved without any call */
    drop(&p, large[0]);
    uint64_t before = calls(&p, MF_CALL_MAP) + calls(&p, MF_CALL_UNMAP);
    again = get(&p, 2 * MiB);
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC) + calls(&p, MF_CALL_EVENT_SYNC), 0);
    assert_int_equal(calls(&p, MF_CALL_MAP) + calls(&p, MF_CALL_UNMAP), before);
    bool was = false;
    for (unsigned i = 0; i < 36; i++)
        was = was || again == holes[i];
    assert_true(was);
    mf_sim_hold(p.device, 0, false);
    assert_ok(mf_pool_check(p.pool, &err), err);
    drop(&p, again);
    drop(&p, large[1]);
    drop(&p, large[2]);
    drop_all(&p, PAIRS, kept);
    for (unsigned i = 36; i < PAIRS; i++)
        drop(&p, holes[i]);
    assert_ok(memfit_pool_trim(p.pool, 0, NULL, &err), err);
    assert_int_equal(mf_sim_get(p.device).mapped_bytes, 0);
    assert_int_equal(mf_sim_get(p.device).physical_bytes, 0);
    close_place(&p);
}

/* A second stream comes while pages are mapped twice; and a pool ends so. */
static void shadows_and_streams(void **state)
{
    (void)state;
    for (unsigned end = 0; end < 2; end++) {
        place p = open_place(64 * MiB, false);
        memfit_address kept[16], holes[16], large, other, old[8];
        in_turn(&p, 16, holes, kept);
        mf_sim_hold(p.device, 0, true);
        drop_all(&p, 16, holes);
        large = get(&p, 16 * MiB);
        mf_sim_hold(p.device, 0, false);
        memfit_stream stream;
        assert_ok(memfit_stream_create(p.device, &stream, &err), err);
        if (!end) {
            assert_ok(memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, stream, &other, &err), err);
            for (unsigned i = 0; i < 7; i++)
                old[i] = get(&p, 2 * MiB);
            assert_ok(mf_pool_check(p.pool, &err), err);
            drop_all(&p, 7, old);
            assert_ok(memfit_pool_free_on(p.pool, other, stream, &err), err);
            drop(&p, large);
            drop_all(&p, 16, kept);
        }
        close_place(&p);
    }
}

/* A second stream comes while the first stands still: what is mapped twice stays so until the first is past it. */
static void shadows_outlast_a_second_stream(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, false);
    memfit_address kept[16], holes[16], other;
    in_turn(&p, 16, holes, kept);
    mf_sim_hold(p.device, 0, true);
    drop_all(&p, 16, holes);
    memfit_address large = get(&p, 16 * MiB);
    assert_int_equal(mf_sim_get(p.device).mapped_bytes, 80 * MiB);
    memfit_stream stream;
    assert_ok(memfit_stream_create(p.device, &stream, &err), err);
    bool have = memfit_pool_alloc_on(p.pool, 2 * MiB, 0, 0, stream, &other, &err) == MEMFIT_OK;
    assert_true(mf_sim_get(p.device).mapped_bytes >= 80 * MiB);
    assert_ok(mf_pool_check(p.pool, &err), err);
    mf_sim_hold(p.device, 0, false);
    if (have)
        assert_ok(memfit_pool_free_on(p.pool, other, stream, &err), err);
    drop(&p, large);
    drop_all(&p, 16, kept);
    close_place(&p);
}

/* Pages side by side that are mapped twice: one of them is past, the other is not and stays. */
static void shadows_go_one_by_one(void **state)
{
    (void)state;
    static const unsigned second[][3] = {{11, 13, 14}, {2, 5, 7}};
    for (unsigned n = 0; n < 2; n++) {
        place p = open_place(64 * MiB, false);
        memfit_address kept[16], holes[16];
        in_turn(&p, 16, holes, kept); /* hole 8 is right above block 7 */
        mf_sim_hold(p.device, 0, true);
        drop(&p, holes[8]);
        drop(&p, holes[12]);
        get(&p, 4 * MiB);
        assert_int_equal(mf_sim_get(p.device).mapped_bytes, 68 * MiB);
        mf_sim_hold(p.device, 0, false); /* past those two */
        mf_sim_hold(p.device, 0, true);
        for (unsigned i = 0; i < 3; i++)
            drop(&p, kept[second[n][i]]);
        get(&p, 6 * MiB);
        assert_true(mf_sim_get(p.device).mapped_bytes >= 70 * MiB);
        assert_ok(mf_pool_check(p.pool, &err), err);
        mf_sim_hold(p.device, 0, false);
        close_place(&p);
    }
}

/* Every call of the device fails, once or from then on, while pages move: all of them are found again. */
static void moves_may_fail(void **state)
{
    (void)state;
    unsigned met = 0, refused = 0;
    for (uint64_t n = 1; n < 40; n++) {
        place p = open_place(64 * MiB, false);
        memfit_address kept[16], holes[16], a[8];
        bool have[8] = {false};
        in_turn(&p, 16, holes, kept);
        drop_all(&p, 16, holes);
        mf_sim_fail(p.device, MF_CALL_ANY, n, n % 2);
        for (unsigned i = 0; i < 8; i++)
            have[i] = memfit_pool_alloc(p.pool, (1 + i % 3 * 3) * MiB, 0, &a[i], &err) == MEMFIT_OK;
        mf_sim_fail(p.device, MF_CALL_ANY, 0, false);
        assert_ok(mf_pool_check(p.pool, &err), err);
        for (unsigned i = 0; i < 8; i++) {
            met += have[i];
            refused += !have[i];
            drop(&p, have[i] ? a[i] : get(&p, (1 + i % 3 * 3) * MiB)); /* what failed works once the fault is gone */
        }
        drop_all(&p, 16, kept);
        assert_ok(memfit_pool_trim(p.pool, 0, NULL, &err), err);
        assert_int_equal(mf_sim_get(p.device).physical_bytes, 0);
        assert_int_equal(mf_sim_get(p.device).mapped_bytes, 0);
        close_place(&p);
    }
    assert_true(met > 100 && refused > 20);
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
    assert_true(p.pool->lane[0]->clock.waiting_count <= MF_EVENTS);
    mf_sim_hold(p.device, 0, false);
    d = get(&p, 62 * MiB);
    drop(&p, d);
    drop(&p, b);
    close_place(&p);
}

/* Marks that are done vouch for what was freed before them, and for nothing behind: those pages are still in use. */
static void marks_vouch_for_what_is_before_them(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, false);
    memfit_address a = get(&p, 30 * MiB), b = get(&p, 2 * MiB), c = get(&p, 30 * MiB);
    drop(&p, a);
    drop(&p, c);
    drop(&p, get(&p, 60 * MiB)); /* moves, and begins to mark */
    for (unsigned i = 0; i < 200; i++)
        drop(&p, get(&p, 4 * MiB));
    uint64_t before = p.pool->frees_central;
    mf_sim_hold(p.device, 0, true);
    for (unsigned i = 0; i < 10; i++)
        drop(&p, get(&p, 4 * MiB));
    assert_true(p.pool->frees_central > before);
    uint64_t past = mf_pages_past(p.pool);
    assert_true(past > 0 && past <= before);
    mf_sim_hold(p.device, 0, false);
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
    e = get(&p, 8 * MiB); /* moved all the same */
    drop(&p, e);
    e = get(&p, 4 * MiB);
    assert_true(e == a || e == c); /* its pages are back without any call */
    mf_sim_hold(p.device, 0, false);
    assert_int_equal(calls(&p, MF_CALL_STREAM_SYNC) + calls(&p, MF_CALL_EVENT_SYNC), 0);
    drop(&p, b);
    drop(&p, d);
    drop(&p, e);
    close_place(&p);
}

/* ---- steps that repeat ---------------------------------------------------------------------------------------- */

enum { LAYERS = 40 };

typedef struct step {
    memfit_address kept, batch; /* from step to step: the batch is given up only when the next one is there */
    uint64_t addresses;         /* of all blocks, as one number */
    uint32_t seed;              /* of the sizes */
    uint64_t alignment;
    bool whole; /* the batch goes with its step */
} step;

static bool hold_one(place *p, step *s, uint64_t bytes, memfit_address *a)
{
    if (memfit_pool_alloc_on(p->pool, bytes, s->alignment, 0, 0, a, &err))
        return false;
    assert_true(!s->alignment || *a % s->alignment == 0);
    s->addresses = (s->addresses ^ *a) * UINT64_C(0x9e3779b97f4a7c15);
    return true;
}

static uint64_t layer_bytes(const step *s, unsigned i)
{
    return 40000 + ((i + 1) * (s->seed * 2654435761u + 40503u) >> 7) % 5000000;
}

/* Forward: a result and a short-lived workspace a layer. Backward: two gradients, and the results go one by one. */
static void train_step(place *p, step *s, uint64_t odd)
{
    memfit_address results[LAYERS], batch, work, gradient, last = 0;
    assert_true(hold_one(p, s, 5000000, &batch));
    if (s->batch)
        drop(p, s->batch);
    s->batch = batch;
    for (unsigned i = 0; i < LAYERS; i++) {
        assert_true(hold_one(p, s, layer_bytes(s, i) * 3 / 2 + odd, &work));
        assert_true(hold_one(p, s, layer_bytes(s, i), &results[i]));
        drop(p, work);
    }
    for (unsigned i = LAYERS; i-- > 0;) {
        assert_true(hold_one(p, s, layer_bytes(s, i), &gradient));
        if (last)
            drop(p, last);
        drop(p, results[i]);
        last = gradient;
    }
    drop(p, last);
    if (s->whole) {
        drop(p, s->batch);
        s->batch = 0;
    }
}

static uint64_t remaps(place *p)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(p->pool, &info, &err), err);
    return info.remaps;
}

/* A place in which equal steps would move pages all the time. */
static place crowded(step *s, memfit_address *more, uint32_t seed)
{
    place p = open_place(256 * MiB, false);
    *s = (step){.seed = seed};
    for (unsigned i = 0; i < 4; i++)
        more[i] = get(&p, 700000 + i * 100000);
    memfit_address hole = get(&p, 9 * MiB);
    s->kept = get(&p, 300000);
    drop(&p, hole);
    return p;
}

static void leave_crowded(place *p, step *s, memfit_address *more)
{
    for (unsigned i = 0; i < 4; i++)
        drop(p, more[i]);
    if (s->batch)
        drop(p, s->batch);
    drop(p, s->kept);
    close_place(p);
}

/* What the driver's calls have cost so far, by sim's model, in microseconds. */
static uint64_t driver_us(place *p, uint64_t advanced_us)
{
    return mf_sim_get(p->device).time_ns / 1000 - advanced_us;
}

/* Steps of 30 ms: whatever the sizes, over any second no more than a hundredth goes into moving pages, and the pool
 * stays near what is in use. */
static void moving_takes_a_hundredth(void **state)
{
    (void)state;
    enum { STEPS = 200, STEP_US = 30000, SECOND = 34 };
    double sum = 0;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        step s;
        memfit_address more[4];
        place p = crowded(&s, more, seed);
        uint64_t spent[STEPS + 1], made[STEPS + 1];
        memfit_pool_info info = MEMFIT_POOL_INFO;
        for (unsigned i = 0; i < STEPS; i++) {
            assert_ok(memfit_pool_get_info(p.pool, &info, &err), err);
            spent[i] = driver_us(&p, (uint64_t)i * STEP_US);
            made[i] = info.created_pages;
            train_step(&p, &s, 0);
            assert_ok(memfit_device_advance(p.device, STEP_US, &err), err);
            if (i < SECOND || made[i] != made[i - SECOND]) /* new pages cost time, too, but once */
                continue;
            uint64_t elapsed = SECOND * STEP_US + spent[i] - spent[i - SECOND];
            assert_true(spent[i] - spent[i - SECOND] <= elapsed / 100 + MF_MOVE_WINDOW / MF_MOVE_SHARE);
        }
        assert_ok(memfit_pool_get_info(p.pool, &info, &err), err);
        assert_int_equal(info.created_pages, made[STEPS / 2]); /* it settles */
        double ratio = (double)info.reserved_peak_bytes / (double)info.in_use_peak_bytes;
        assert_true(ratio < 1.13);
        sum += ratio;
        leave_crowded(&p, &s, more);
    }
    assert_true(sum / 20 < 1.085); /* as measured with fifty pages, so that a change for the worse shows */
}

/* There is more time at the beginning. It is used up, not saved: afterwards there is never more than of ten seconds. */
static void the_beginning_has_more_time(void **state)
{
    (void)state;
    enum { USUAL = MF_MOVE_WINDOW / MF_MOVE_SHARE, SHORT = 1000 };
    place p = open_place(64 * MiB, false);
    int64_t *left = &p.pool->pages.move_credit_us;
    assert_int_equal(*left, MF_MOVE_FIRST * USUAL);
    assert_true(MF_MOVE_FIRST > 1 && mf_moves_plenty(p.pool));
    assert_ok(memfit_device_advance(p.device, 60000000, &err), err);
    assert_true(mf_moves_allowed(p.pool));
    assert_int_equal(*left, MF_MOVE_FIRST * USUAL); /* none is added */
    mf_moves_charge(p.pool, USUAL);
    assert_ok(memfit_device_advance(p.device, 2 * USUAL, &err), err);
    mf_moves_look(p.pool);
    assert_true(!mf_moves_plenty(p.pool)); /* a plan may take more than the slack now */
    *left = USUAL - SHORT;
    assert_ok(memfit_device_advance(p.device, 60000000, &err), err);
    assert_true(mf_moves_allowed(p.pool));
    assert_int_equal(*left, USUAL);
    close_place(&p);
}

/* No time passes but the driver's own: after what is allowed at the start the pool grows, up to the limit; at the limit it
 * moves, whatever it costs, and nothing fails. */
static void at_the_limit_it_moves(void **state)
{
    (void)state;
    enum { PAIRS = 200 };
    for (unsigned tight = 0; tight < 2; tight++) {
        place p = open_place(tight ? 800 * MiB : 1024 * MiB, false);
        memfit_address kept[PAIRS], holes[PAIRS], large[30];
        in_turn(&p, PAIRS, holes, kept);
        drop_all(&p, PAIRS, holes);
        p.pool->pages.move_credit_us = 0;
        uint64_t before = remaps(&p);
        memfit_pool_info info = MEMFIT_POOL_INFO;
        for (unsigned i = 0; i < 30; i++)
            large[i] = get(&p, 6 * MiB); /* no hole has so much */
        assert_ok(memfit_pool_get_info(p.pool, &info, &err), err);
        if (tight) {
            assert_true(remaps(&p) >= before + 30);
            assert_int_equal(info.reserved_bytes, 800 * MiB);
        } else {
            assert_true(remaps(&p) <= before + 3); /* a hundredth of what making pages took */
            assert_true(info.reserved_bytes >= 960 * MiB);
        }
        drop_all(&p, 30, large);
        drop_all(&p, PAIRS, kept);
        close_place(&p);
    }
}

/* ---- random steps --------------------------------------------------------------------------------------------- */

enum { MOST_REQUESTS = 100, MOST_LIVE = 512 };

typedef struct history {
    place p;
    uint64_t random;
    unsigned requests;
    uint64_t bytes[MOST_REQUESTS];
    unsigned life[MOST_REQUESTS];
    struct {
        memfit_address at;
        uint64_t bytes;
        unsigned until;
    } live[MOST_LIVE];
    unsigned count, now;
    bool faults;
} history;

static unsigned below(history *h, unsigned n)
{
    h->random = h->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)((h->random >> 33) % n);
}

static void begin_history(history *h, uint64_t seed)
{
    *h = (history){.random = seed * 77777 + 5};
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = UINT64_C(1) << 30;
    assert_ok(memfit_device_open("sim", &options, &h->p.device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.ignore_environment = true;
    o.page_bytes = below(h, 3) ? 2 * MiB : 8 * MiB;
    o.limit_bytes = (120 + below(h, 200)) * MiB;
    o.slack = below(h, 4) ? 0 : 0.009;
    o.no_thread_caches = below(h, 5) == 0;
    o.no_stream_wait = below(h, 6) == 0;
    o.bulk_bytes = below(h, 5) ? 0 : 32 * MiB;
    assert_ok(memfit_pool_create(h->p.device, &o, &h->p.pool, &err), err);
    h->requests = 20 + below(h, MOST_REQUESTS - 20);
    h->faults = below(h, 3) == 0;
    for (unsigned i = 0; i < h->requests; i++) {
        h->bytes[i] = below(h, 3) ? 33000 + below(h, 3000000) : 1 + below(h, 9000000);
        h->life[i] = 1 + below(h, below(h, 4) ? 8 : h->requests + 3);
        if (below(h, 12) == 0)
            h->life[i] = 100000; /* in the first step: for ever */
    }
}

static void free_old(history *h)
{
    for (unsigned k = 0; k < h->count;) {
        if (h->live[k].until > h->now) {
            k++;
            continue;
        }
        drop(&h->p, h->live[k].at);
        h->live[k] = h->live[--h->count];
    }
}

static void one_request(history *h, unsigned i, bool first, bool odd)
{
    uint64_t bytes = h->bytes[i] + (odd && below(h, 10) == 0 ? below(h, 100000) : 0);
    memfit_address a;
    if (h->faults && below(h, 40) == 0)
        mf_sim_fail(h->p.device, MF_CALL_ANY, 1 + below(h, 6), false);
    if (h->count == MOST_LIVE || memfit_pool_alloc(h->p.pool, bytes, 0, &a, &err)) {
        mf_sim_hold(h->p.device, 0, false);
        return;
    }
    for (unsigned k = 0; k < h->count; k++)
        assert_true(a + bytes <= h->live[k].at || h->live[k].at + h->live[k].bytes <= a);
    if (!h->faults)
        assert_ok(memfit_device_fill(h->p.device, a, 1, bytes, 0, &err), err); /* there is memory behind all of it */
    unsigned life = h->life[i] == 100000 && !first ? 5 : h->life[i];
    h->live[h->count].at = a;
    h->live[h->count].bytes = bytes;
    h->live[h->count++].until = h->now + life;
}

/* Steps of equal requests, now and then with others among them, on a stream that stops and goes; the device fails in a
 * third of the runs; now and then memory is given back, and a second stream comes. */
static void random_steps(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        history h;
        begin_history(&h, seed);
        unsigned steps = 14 + below(&h, 20);
        for (unsigned k = 0; k < steps; k++) {
            bool odd = below(&h, 8) == 0;
            mf_sim_hold(h.p.device, 0, below(&h, 5) == 0);
            for (unsigned i = 0; i < h.requests; i++, h.now++) {
                free_old(&h);
                one_request(&h, i, k == 0, odd);
            }
            mf_sim_fail(h.p.device, MF_CALL_ANY, 0, false);
            assert_ok(mf_pool_check(h.p.pool, &err), err);
            assert_true(mf_sim_check(h.p.device, &err));
            if (below(&h, 12) == 0)
                memfit_pool_trim(h.p.pool, below(&h, 100) * MiB, NULL, &err);
            memfit_stream stream;
            memfit_address a;
            if (k > 10 && below(&h, 25) == 0 && !memfit_stream_create(h.p.device, &stream, &err) &&
                !memfit_pool_alloc_on(h.p.pool, 3 * MiB, 0, 0, stream, &a, &err))
                assert_ok(memfit_pool_free_on(h.p.pool, a, stream, &err), err);
        }
        mf_sim_hold(h.p.device, 0, false);
        h.now = UINT32_MAX;
        free_old(&h);
        close_place(&h.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_need_no_wait),
        cmocka_unit_test(marks_vouch_for_what_is_before_them),
        cmocka_unit_test(shadows_outlast_a_second_stream),
        cmocka_unit_test(shadows_go_one_by_one),
        cmocka_unit_test(shadows_and_streams),
        cmocka_unit_test(moves_may_fail),
        cmocka_unit_test(marks_run_out),
        cmocka_unit_test(without_waiting),
        cmocka_unit_test(moving_takes_a_hundredth),
        cmocka_unit_test(the_beginning_has_more_time),
        cmocka_unit_test(at_the_limit_it_moves),
        cmocka_unit_test(random_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
