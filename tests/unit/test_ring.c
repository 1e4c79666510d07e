/* test_ring.c: samples made ahead by workers: order, beginning anew, samples that cannot be made, what they take. */
#include "data_files.h"

#include "feed_graph.h"

#include "base/memory.h"

#include <stdatomic.h>

enum { SAMPLES = 1000, BATCH = 16 };

/* Sample i of array 0 is i, i + 0.5; of array 1 the number i + 7. Those in `bad` cannot be made. */
static _Atomic int64_t bad[4] = {-1, -1, -1, -1};
static atomic_int made;

static memfit_status make(const mf_source *source, const mf_array *array, int64_t index, mf_worker *worker, void *out,
                          memfit_error *err)
{
    (void)source;
    (void)worker;
    atomic_fetch_add(&made, 1);
    for (int i = 0; i < 4; i++)
        if (bad[i] == index) {
            *err = (memfit_error){.code = MEMFIT_DAMAGED};
            snprintf(err->message, sizeof err->message, "sample %lld is damaged", (long long)index);
            return MEMFIT_DAMAGED;
        }
    if (array->column == 1) {
        *(int64_t *)out = index + 7;
    } else {
        ((float *)out)[0] = (float)index;
        ((float *)out)[1] = (float)index + 0.5f;
    }
    return MEMFIT_OK;
}

static const mf_maker maker = {.make = make};

typedef struct scene {
    mf_source *source;
    mf_graph *graph;
    mf_feeder *feeder;
    mf_ring *ring;
} scene;

static scene begin(unsigned workers, int64_t slots, int64_t skip, bool both_made, bool shuffle)
{
    scene s = {0};
    memfit_error err = {0};
    mf_shape x = {.rank = 2, .dim = {SAMPLES, 2}}, y = {.rank = 2, .dim = {SAMPLES, 1}};
    assert_ok(mf_source_synthetic(NULL, SAMPLES, 1, &s.source, &err), err);
    assert_ok(mf_source_add_made(s.source, "x", MF_F32, &x, 0, &err), err);
    if (both_made)
        assert_ok(mf_source_add_made(s.source, "y", MF_I64, &y, 1, &err), err);
    else
        assert_ok(mf_source_add_generated(s.source, "y", MF_I32, &y, 1, 1000000, &err), err);
    s.source->maker = &maker;
    s.graph = graph_of((mf_shape){.rank = 2, .dim = {4, 2}}, (mf_shape){.rank = 2, .dim = {4, 1}});
    mf_feeder_options f = {.shuffle = shuffle, .targets = true};
    assert_ok(mf_feeder_create(NULL, s.source, s.graph, &f, &s.feeder, &err), err);
    mf_ring_options r = {.workers = workers,
                         .slots = slots,
                         .slot_bytes = s.feeder->slot_bytes,
                         .room_bytes = 1024,
                         .spare_bytes = s.feeder->spare_bytes,
                         .skip_most = skip};
    assert_ok(mf_ring_create(NULL, &r, &s.ring, &err), err);
    mf_feeder_use_ring(s.feeder, s.ring);
    mf_ring_warm_up(s.ring, s.feeder);
    mf_feeder_shuffle(s.feeder, 5, 0);
    for (int i = 0; i < 4; i++)
        bad[i] = -1;
    return s;
}

static void end(scene *s)
{
    mf_feeder_destroy(s->feeder);
    mf_ring_destroy(s->ring);
    mf_source_close(s->source);
    drop_graph(s->graph);
}

static void expect(scene *s, int64_t first, int64_t count)
{
    static float x[SAMPLES * 2];
    static int32_t y[SAMPLES];
    memfit_error err = {0};
    assert_ok(mf_feeder_fill(s->feeder, 1, first, count, y, &err), err);
    assert_ok(mf_feeder_fill(s->feeder, 0, first, count, x, &err), err);
    for (int64_t i = 0; i < count; i++) {
        float want = (float)mf_feeder_sample(s->feeder, first + i);
        assert_true(x[2 * i] == want && x[2 * i + 1] == want + 0.5f);
        if (s->feeder->made_links == 2)
            assert_int_equal(y[i], (int)want + 7);
    }
}

/* Every sample once and in its place, whatever the number of workers, slots and samples asked for at a time. */
static void every_sample_in_its_place(void **state)
{
    (void)state;
    static const struct {
        unsigned workers;
        int64_t slots, piece;
        bool both;
    } cases[] = {{1, 1, 1, false}, {1, 16, 16, true}, {2, 16, 7, false},    {3, 40, 16, true},
                 {4, 5, 5, true},  {2, 3, 64, false}, {8, 1000, 100, true}, {2, 2000, 1000, false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        scene s = begin(cases[c].workers, cases[c].slots, 0, cases[c].both, c % 2);
        for (int epoch = 0; epoch < 2; epoch++) {
            mf_feeder_shuffle(s.feeder, 5, (uint64_t)epoch);
            for (int64_t p = 0; p < SAMPLES; p += cases[c].piece)
                expect(&s, p, p + cases[c].piece < SAMPLES ? cases[c].piece : SAMPLES - p);
        }
        end(&s);
    }
}

/* Made ahead, but not beyond the slots; each once. */
static void no_more_than_the_slots(void **state)
{
    (void)state;
    scene s = begin(2, BATCH, 0, false, false);
    memfit_error err = {0};
    atomic_store(&made, 0);
    assert_ok(mf_feeder_wait(s.feeder, 0, BATCH, &err), err);
    usleep(20000);
    assert_int_equal(atomic_load(&made), BATCH);
    for (int64_t p = 0; p < 10 * BATCH; p += BATCH)
        expect(&s, p, BATCH);
    assert_ok(mf_feeder_wait(s.feeder, 10 * BATCH, BATCH, &err), err);
    assert_int_equal(atomic_load(&made), 11 * BATCH);
    assert_int_equal(mf_ring_read_times(s.ring).made, 11 * BATCH);
    end(&s);
}

static void any_position_may_come_next(void **state)
{
    (void)state;
    scene s = begin(2, 20, 0, true, true);
    static const int64_t places[] = {500, 508, 3, 990, 0, 8, 16, 900, 24};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        expect(&s, places[i], 8);
    end(&s);
}

static void what_cannot_be_made_is_told_in_its_turn(void **state)
{
    (void)state;
    scene s = begin(3, BATCH, 0, false, false);
    memfit_error err = {0};
    bad[0] = 21;
    bad[1] = 25;
    expect(&s, 0, BATCH);
    assert_int_equal(mf_feeder_wait(s.feeder, BATCH, BATCH, &err), MEMFIT_DAMAGED);
    assert_string_equal(err.message, "sample 21 is damaged");
    assert_non_null(strstr(err.hint, "--skip-bad"));
    expect(&s, BATCH, 5); /* those before it are there */
    bad[0] = bad[1] = -1;
    mf_ring_stop(s.ring);
    expect(&s, BATCH, BATCH);
    end(&s);
}

static void what_cannot_be_made_is_left_out(void **state)
{
    (void)state;
    scene s = begin(3, BATCH, 3, true, false);
    memfit_error err = {0};
    float x[2 * BATCH];
    int32_t y[BATCH];
    bad[0] = 5;
    bad[1] = 6;
    bad[2] = SAMPLES - 1;
    for (int round = 0; round < 2; round++) {
        assert_ok(mf_feeder_fill(s.feeder, 0, 0, BATCH, x, &err), err);
        assert_ok(mf_feeder_fill(s.feeder, 1, 0, BATCH, y, &err), err);
        for (int i = 0; i < BATCH; i++) {
            int want = i == 5 || i == 6 ? 7 : i; /* the next that can be made */
            assert_int_equal((int)x[2 * i], want);
            assert_int_equal(y[i], want + 7);
        }
        assert_ok(mf_feeder_fill(s.feeder, 0, SAMPLES - 1, 1, x, &err), err);
        assert_ok(mf_feeder_fill(s.feeder, 1, SAMPLES - 1, 1, y, &err), err);
        assert_true(x[0] == 0 && y[0] == 7);
        assert_int_equal(mf_ring_read_times(s.ring).skipped, 3);
    }
    bad[3] = 40;
    assert_int_equal(mf_feeder_wait(s.feeder, 32, BATCH, &err), MEMFIT_DAMAGED);
    assert_string_equal(err.message, "sample 40 is damaged");
    assert_non_null(strstr(err.hint, "3 samples"));
    end(&s);
}

/* Labels that are not made are those of the samples that are. */
static void labels_follow_what_took_the_place(void **state)
{
    (void)state;
    scene s = begin(2, BATCH, 1, false, false);
    memfit_error err = {0};
    float x[2 * BATCH];
    int32_t y[BATCH], want[BATCH];
    for (int late = 0; late < 2; late++) {
        bad[0] = -1;
        mf_ring_stop(s.ring);
        assert_ok(mf_feeder_fill(s.feeder, 1, 0, BATCH, want, &err), err);
        bad[0] = 9;
        mf_ring_stop(s.ring);
        for (int i = 0; i < 2; i++)
            assert_ok(i == late ? mf_feeder_fill(s.feeder, 1, 0, BATCH, y, &err)
                                : mf_feeder_fill(s.feeder, 0, 0, BATCH, x, &err),
                      err);
        assert_true(x[2 * 9] == 10 && y[9] == want[10] && y[8] == want[8]);
    }
    end(&s);
}

static void all_are_bad(void **state)
{
    (void)state;
    scene s = begin(2, 4, 10, false, false);
    memfit_error err = {0};
    s.feeder->samples = 3;
    for (int i = 0; i < 4; i++)
        bad[i] = i;
    mf_ring_stop(s.ring);
    assert_int_equal(mf_feeder_wait(s.feeder, 0, 3, &err), MEMFIT_DAMAGED);
    end(&s);
}

static void making_survives_lack_of_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1; n < 100; n++) {
        mf_fault_host fault;
        mf_ring *ring = NULL;
        memfit_error err = {0};
        const mf_ring_options o = {
            .workers = 2, .slots = 4, .slot_bytes = 64, .room_bytes = 1024, .spare_bytes = 8, .skip_most = 2};
        mf_fault_host_init(&fault, NULL, n, true);
        memfit_status status = mf_ring_create(&fault.host, &o, &ring, &err);
        if (status == MEMFIT_OK) {
            assert_true(mf_ring_bytes(ring) >= (uint64_t)fault.live_bytes - 160000); /* decoders' own, a few KiB each */
            mf_ring_destroy(ring);
            assert_int_equal(fault.live_bytes, 0);
            assert_true(n > 10);
            return;
        }
        assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
        assert_int_equal(fault.live_bytes, 0);
    }
    fail();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_in_its_place),
        cmocka_unit_test(no_more_than_the_slots),
        cmocka_unit_test(any_position_may_come_next),
        cmocka_unit_test(what_cannot_be_made_is_told_in_its_turn),
        cmocka_unit_test(what_cannot_be_made_is_left_out),
        cmocka_unit_test(labels_follow_what_took_the_place),
        cmocka_unit_test(all_are_bad),
        cmocka_unit_test(making_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
