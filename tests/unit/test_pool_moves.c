/* test_pool_moves.c: when pages move, with one stream, on sim: what has to be waited for, and steps that repeat. */
#include "test.h"

#include "device/sim.h"
#include "pool/pool.h"
#include "pool/state.h"

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
    /* whoever wants the old addresses has to wait */
    drop(&p, large[0]);
    assert_int_equal(memfit_pool_alloc(p.pool, 2 * MiB, 0, &again, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(err.cause, MEMFIT_CAUSE_PENDING_STREAM);
    mf_sim_hold(p.device, 0, false);
    again = get(&p, 2 * MiB);
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
        for (unsigned i = 0; i < 8; i++)
            if (have[i])
                drop(&p, a[i]);
        drop_all(&p, 16, kept);
        assert_ok(memfit_pool_trim(p.pool, 0, NULL, &err), err);
        assert_int_equal(mf_sim_get(p.device).physical_bytes, 0);
        assert_int_equal(mf_sim_get(p.device).mapped_bytes, 0);
        close_place(&p);
    }
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
    assert_int_equal(memfit_pool_alloc(p.pool, 4 * MiB, 0, &e, &err), MEMFIT_OUT_OF_MEMORY);
    mf_sim_hold(p.device, 0, false);
    e = get(&p, 4 * MiB);
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

/* A place in which equal steps move pages until their blocks are packed. */
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

static void equal_steps_stop_moving(void **state)
{
    (void)state;
    unsigned restless = 0; /* runs that go on moving pages as long as there is no plan */
    for (uint32_t seed = 1; seed <= 8; seed++) {
        uint64_t addresses[2];
        for (unsigned run = 0; run < 2; run++) {
            step s;
            memfit_address more[4];
            place p = crowded(&s, more, seed);
            train_step(&p, &s, 0);
            uint64_t first = remaps(&p);
            train_step(&p, &s, 0);
            train_step(&p, &s, 0);
            restless += remaps(&p) > first + 1;
            for (unsigned i = 0; i < 8; i++)
                train_step(&p, &s, 0);
            uint64_t before = remaps(&p);
            for (unsigned i = 0; i < 10; i++) {
                train_step(&p, &s, 0);
                assert_ok(mf_pool_check(p.pool, &err), err);
            }
            assert_int_equal(remaps(&p), before);
            addresses[run] = s.addresses;
            leave_crowded(&p, &s, more);
        }
        assert_true(addresses[0] == addresses[1]); /* the range begins at the same address in every sim */
    }
    assert_true(restless >= 4);
}

/* A step is 121 requests. Where the batch outlives the next of its kind a turn is two of them, else one. A plan is
 * there after the fifth step, never before the third is over, and ends not far above the peak in use: all as measured,
 * so that a change for the worse shows. */
static void plans_are_low(void **state)
{
    (void)state;
    for (unsigned whole = 0; whole < 2; whole++) {
        unsigned plans = 0;
        double sum = 0, worst = 0;
        for (uint32_t seed = 1; seed <= 60; seed++) {
            step s;
            memfit_address more[4];
            uint64_t top = 0;
            place p = crowded(&s, more, seed);
            s.whole = whole;
            for (unsigned i = 0; i < 6; i++) {
                assert_true(i > 3 || !mf_repeat_plans(p.pool));
                train_step(&p, &s, 0);
            }
            uint32_t turn = mf_repeat_turn(p.pool, &top);
            memfit_pool_info info = MEMFIT_POOL_INFO;
            assert_ok(memfit_pool_get_info(p.pool, &info, &err), err);
            assert_true(turn == 0 || turn == (whole ? 121 : 242));
            double over = turn ? (double)top / (double)info.in_use_peak_bytes : 0;
            plans += turn != 0;
            sum += over;
            worst = over > worst ? over : worst;
            leave_crowded(&p, &s, more);
        }
        assert_int_equal(plans, whole ? 13 : 14);
        assert_true(sum / plans < 1.011 && worst < 1.031);
    }
}

/* Other sizes end the plan, and a new one is found; so does a block in the way, and a second stream ends it for good.
 */
static void plans_end_and_come_back(void **state)
{
    (void)state;
    const uint32_t others[] = {8, 14, 17, 19}; /* after a plan for 5 their steps move pages, too */
    step s;
    memfit_address more[4], way, stream_block;
    for (unsigned k = 0; k < 4; k++) {
        place p = crowded(&s, more, 5);
        for (unsigned i = 0; i < 8; i++)
            train_step(&p, &s, 0);
        assert_true(mf_repeat_plans(p.pool));
        s.seed = others[k];
        train_step(&p, &s, 0);
        assert_false(mf_repeat_plans(p.pool));
        for (unsigned i = 0; i < 8; i++)
            train_step(&p, &s, 0);
        assert_true(mf_repeat_plans(p.pool));
        assert_ok(mf_pool_check(p.pool, &err), err);
        leave_crowded(&p, &s, more);
    }
    place p = crowded(&s, more, 5);
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned i = 0; i < 8; i++) {
            train_step(&p, &s, round * 4096);
            assert_ok(mf_pool_check(p.pool, &err), err);
        }
        way = get(&p, 3 * MiB);
        train_step(&p, &s, round * 4096);
        drop(&p, way);
    }
    memfit_stream stream;
    assert_ok(memfit_stream_create(p.device, &stream, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 100000, 0, 0, stream, &stream_block, &err), err);
    train_step(&p, &s, 0);
    assert_null(p.pool->repeat);
    assert_ok(mf_pool_check(p.pool, &err), err);
    assert_ok(memfit_pool_free_on(p.pool, stream_block, stream, &err), err);
    leave_crowded(&p, &s, more);
}

/* The same sizes as planned, but aligned: a place in the plan that is not will not do. */
static void plans_keep_alignments(void **state)
{
    (void)state;
    step s;
    memfit_address more[4];
    place p = crowded(&s, more, 5);
    for (unsigned i = 0; i < 8; i++)
        train_step(&p, &s, 0);
    assert_true(mf_repeat_plans(p.pool));
    s.alignment = 4096;
    train_step(&p, &s, 0);
    assert_ok(mf_pool_check(p.pool, &err), err);
    leave_crowded(&p, &s, more);
}

/* What the pool says it takes of the host, beyond what it took: the same whatever the plans do. */
static int64_t uncounted(place *p, const mf_fault_host *fault)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(p->pool, &info, &err), err);
    return (int64_t)info.metadata_bytes - fault->live_bytes;
}

/* Host memory that fails while a plan is made: no plan, nothing else. */
static void plans_need_no_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 12; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, UINT64_MAX, false);
        place p;
        step s = {.seed = 5};
        memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
        options.capacity_bytes = UINT64_C(1) << 30;
        assert_ok(memfit_device_open("sim", &options, &p.device, &err), err);
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.limit_bytes = 256 * MiB;
        o.host = &fault.host;
        o.ignore_environment = true;
        assert_ok(memfit_pool_create(p.device, &o, &p.pool, &err), err);
        for (unsigned i = 0; i < 2; i++) /* tables have grown, pages have moved */
            train_step(&p, &s, 0);
        assert_true(remaps(&p) > 0);
        int64_t constant = uncounted(&p, &fault);
        uint64_t before = fault.calls;
        fault.fail_at = before + n;
        for (unsigned i = 0; i < 6; i++) {
            train_step(&p, &s, 0);
            assert_int_equal(uncounted(&p, &fault), constant);
        }
        assert_true(fault.calls > before);
        train_step(&p, &s, 4096); /* ends the plan */
        assert_int_equal(uncounted(&p, &fault), constant);
        drop(&p, s.batch);
        close_place(&p);
        assert_int_equal(fault.live_bytes, 0);
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
        cmocka_unit_test(equal_steps_stop_moving),
        cmocka_unit_test(plans_are_low),
        cmocka_unit_test(plans_keep_alignments),
        cmocka_unit_test(plans_end_and_come_back),
        cmocka_unit_test(plans_need_no_memory),
        cmocka_unit_test(random_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
