/* test_front.c: leading random operations taken out of a graph, and done by a worker instead, a sample at a time: the same
 * numbers as the graph's. */
#include "data/feed.h"
#include "graph/augment.h"
#include "graph/build.h"
#include "ops/interpret.h"
#include "test.h"

enum { BATCH = 5, HEIGHT = 11, WIDTH = 9, CHANNELS = 3, SAMPLE = HEIGHT * WIDTH * CHANNELS };

static uint32_t augment(mf_build *b, mf_augment function, uint32_t x, mf_shape shape, const double *a, uint32_t key)
{
    mf_attr attr = {.augment = {.function = function, .key = key}};
    mf_typed type = {.dtype = mf_g_dtype(b, x), .shape = shape};
    memcpy(attr.augment.a, a, 8 * sizeof *a);
    return mf_g_op(b, MF_OP_AUGMENT, &attr, 1, &x, 1, &type, NULL);
}

typedef enum { PLAIN, READ_TWICE, KEPT, NOT_RANDOM } wish;

/* u8 -> cast -> scale -> flip -> rotate -> crop -> negate */
static mf_graph *make(wish w, mf_dtype arrives, mf_dtype compute, bool front)
{
    mf_build b;
    mf_graph *g = NULL;
    memfit_error err = {0};
    const mf_shape shape = {.rank = 4, .dim = {BATCH, HEIGHT, WIDTH, CHANNELS}};
    const mf_shape small = {.rank = 4, .dim = {BATCH, HEIGHT - 3, WIDTH - 2, CHANNELS}};
    assert_ok(mf_build_begin(&b, NULL, &err), err);
    b.graph->batch = BATCH;
    uint32_t x = mf_g_input(&b, "image", arrives, shape);
    mf_feed *feeds = malloc(sizeof *feeds);
    *feeds = (mf_feed){.name = "image", .tensor = x};
    b.graph->feeds = feeds;
    b.graph->feed_count = 1;
    uint32_t y = mf_g_unary(&b, MF_UNARY_AFFINE, 1 / 255.0, -0.5, mf_g_cast(&b, x, compute)), kept = y;
    if (w != NOT_RANDOM) {
        y = augment(&b, MF_AUGMENT_FLIP, y, shape, (double[8]){3}, 7);
        y = augment(&b, MF_AUGMENT_ROTATION, y, shape, (double[8]){-0.2, 0.2}, 8);
        y = augment(&b, MF_AUGMENT_CROP, y, small, (double[8]){0}, 9);
    }
    uint32_t roots[2] = {mf_g_unary(&b, MF_UNARY_NEG, 0, 0, y), kept};
    if (w == READ_TWICE)
        roots[1] = mf_g_unary(&b, MF_UNARY_SQUARE, 0, 0, kept);
    if (front)
        mf_g_front(&b, w == KEPT, &kept);
    assert_ok(mf_build_end_keeping(&b, w == PLAIN || w == NOT_RANDOM ? 1 : 2, roots, &g), err);
    g->outputs = NULL;
    assert_ok(mf_graph_check(g, &err), err);
    return g;
}

static void drop(mf_graph *g)
{
    free(g->feeds);
    g->feeds = NULL;
    g->feed_count = 0;
    mf_graph_destroy(g);
}

static void what_can_be_taken_is_taken(void **state)
{
    (void)state;
    mf_graph *whole = make(PLAIN, MF_U8, MF_F32, false), *g = make(PLAIN, MF_U8, MF_F32, true);
    const mf_front *front = g->feeds[0].front;
    assert_non_null(front);
    assert_null(whole->feeds[0].front);
    assert_int_equal(whole->op_count, g->op_count + 5);
    assert_int_equal(front->count, 5);
    assert_int_equal(front->dtype, MF_U8);
    assert_int_equal(front->shape.dim[1], HEIGHT);
    const mf_tensor *fed = &g->tensors[g->feeds[0].tensor];
    assert_int_equal(fed->dtype, MF_F32);
    assert_int_equal(fed->shape.dim[1], HEIGHT - 3);
    assert_int_equal(g->storages[fed->storage].kind, MEMFIT_KIND_INPUTS);
    assert_int_equal(g->ops[fed->producer].kind, MF_OP_INPUT);
    drop(whole);
    drop(g);
}

/* Others read what lies between, or nothing random is there: all stays. */
static void what_others_read_stays(void **state)
{
    (void)state;
    static const wish wishes[] = {READ_TWICE, KEPT, NOT_RANDOM};
    for (size_t i = 0; i < 3; i++) {
        mf_graph *whole = make(wishes[i], MF_U8, MF_F32, false), *g = make(wishes[i], MF_U8, MF_F32, true);
        assert_null(g->feeds[0].front);
        assert_int_equal(whole->op_count, g->op_count);
        drop(whole);
        drop(g);
    }
}

static void fill(unsigned char *data, mf_dtype dtype, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes / mf_dtype_bytes(dtype); i++)
        if (dtype == MF_F32)
            ((float *)(void *)data)[i] = (float)(i * 37 % 256) + 0.25f;
        else
            data[i] = (unsigned char)(i * 37 % 256);
}

/* The graph's own kernels, shared out to two threads, against a sample at a time. */
static void workers_have_the_graphs_numbers(void **state)
{
    (void)state;
    static const mf_dtype types[][2] = {{MF_U8, MF_F32}, {MF_F32, MF_F32}, {MF_U8, MF_BF16}};
    for (size_t c = 0; c < 3; c++) {
        memfit_error err = {0};
        mf_backend *backend = NULL, *one = NULL;
        mf_interpreter *it = NULL;
        mf_front_kit *kit = NULL;
        mf_front_hand *hand = NULL;
        mf_graph *whole = make(PLAIN, types[c][0], types[c][1], false),
                 *g = make(PLAIN, types[c][0], types[c][1], true);
        assert_ok(mf_cpu_create(NULL, 2, &backend, &err), err);
        assert_ok(mf_interpret_create(NULL, whole, backend, &it, &err), err);
        const uint64_t each = SAMPLE * mf_dtype_bytes(types[c][0]);
        fill(mf_interpret_data(it, whole->feeds[0].tensor), types[c][0], BATCH * each);
        unsigned char *given = malloc(BATCH * each);
        memcpy(given, mf_interpret_data(it, whole->feeds[0].tensor), BATCH * each);
        mf_run_scalars s = mf_interpret_scalars(whole, 0.1);
        s.seed = 4;
        s.step = 77;
        assert_ok(mf_interpret_run(it, &s, true, true, &err), err);
        uint32_t crop = MF_NONE;
        for (uint32_t i = 0; i < whole->op_count; i++)
            if (whole->ops[i].kind == MF_OP_AUGMENT)
                crop = whole->ops[i].out[0];
        assert_ok(mf_cpu_create(NULL, 1, &one, &err), err);
        assert_ok(mf_front_kit_create(NULL, g->feeds[0].front, one, &kit, &err), err);
        drop(g); /* the kit has a copy */
        assert_ok(mf_front_hand_create(kit, &hand, &err), err);
        const uint64_t done = mf_front_out_bytes(kit);
        unsigned char *out = malloc(done);
        for (int64_t i = BATCH - 1; i >= 0; i--) {
            memcpy(mf_front_input(hand), given + (uint64_t)i * each, each);
            assert_ok(mf_front_work(hand, 4, 77, (uint64_t)i, out, &err), err);
            assert_memory_equal(out, (unsigned char *)mf_interpret_data(it, crop) + (uint64_t)i * done, done);
        }
        assert_ok(mf_front_work(hand, 4, 78, 0, out, &err), err); /* another step draws other numbers */
        assert_true(memcmp(out, mf_interpret_data(it, crop), done) != 0);
        free(out);
        free(given);
        mf_front_hand_destroy(hand);
        mf_front_kit_destroy(kit);
        mf_interpret_destroy(it);
        backend->table->destroy(backend);
        one->table->destroy(one);
        drop(whole);
    }
}

/* By several workers through a ring: whichever makes it, a sample is that of its step and its place in the batch, in the next
 * epoch and when a run goes on in the middle of one, too. 22 samples in batches of 5: the last batch has 2. */
static void workers_know_step_and_place(void **state)
{
    (void)state;
    enum { SAMPLES = 22 };
    memfit_error err = {0};
    mf_source *source = NULL;
    mf_backend *one = NULL;
    mf_feeder *feeder = NULL;
    mf_ring *ring = NULL;
    mf_front_kit *kit = NULL;
    mf_front_hand *hand = NULL;
    mf_graph *g = make(PLAIN, MF_U8, MF_F32, true);
    mf_shape shape = {.rank = 4, .dim = {SAMPLES, HEIGHT, WIDTH, CHANNELS}};
    assert_ok(mf_source_synthetic(NULL, SAMPLES, 3, &source, &err), err);
    assert_ok(mf_source_add_generated(source, "image", MF_U8, &shape, 0, 0, &err), err);
    assert_ok(mf_cpu_create(NULL, 1, &one, &err), err);
    mf_feeder_options f = {.shuffle = true, .front_backend = one};
    assert_ok(mf_feeder_create(NULL, source, g, &f, &feeder, &err), err);
    mf_ring_options r = {.workers = 3,
                         .slots = 7,
                         .slot_bytes = feeder->slot_bytes,
                         .spare_bytes = feeder->spare_bytes,
                         .room_bytes = 64,
                         .front = feeder->front};
    assert_ok(mf_ring_create(NULL, &r, &ring, &err), err);
    mf_feeder_use_ring(feeder, ring);
    mf_ring_warm_up(ring, feeder);
    assert_ok(mf_front_kit_create(NULL, g->feeds[0].front, one, &kit, &err), err);
    assert_ok(mf_front_hand_create(kit, &hand, &err), err);
    const uint64_t done = mf_front_out_bytes(kit);
    unsigned char *got = malloc(BATCH * done), *want = malloc(done);
    static const struct {
        uint64_t epoch, step;
        int64_t position;
    } runs[] = {{0, 0, 0}, {1, 5, 0}, {1, 8, 15}};
    for (size_t k = 0; k < 3; k++) {
        uint64_t step = runs[k].step;
        mf_feeder_shuffle(feeder, 9, runs[k].epoch);
        mf_feeder_begin_steps(feeder, 9, step, runs[k].position, BATCH);
        for (int64_t p = runs[k].position; p < SAMPLES; p += BATCH, step++) {
            const int64_t count = SAMPLES - p < BATCH ? SAMPLES - p : BATCH;
            assert_ok(mf_feeder_wait(feeder, p, count, &err), err);
            assert_ok(mf_feeder_fill(feeder, 0, p, count, got, &err), err);
            for (int64_t i = 0; i < count; i++) {
                mf_source_read(source, &source->arrays[0], mf_feeder_sample(feeder, p + i), mf_front_input(hand));
                assert_ok(mf_front_work(hand, 9, step, (uint64_t)i, want, &err), err);
                assert_memory_equal(got + (uint64_t)i * done, want, done);
            }
        }
    }
    free(got);
    free(want);
    mf_front_hand_destroy(hand);
    mf_front_kit_destroy(kit);
    mf_ring_destroy(ring);
    mf_feeder_use_ring(feeder, NULL);
    mf_feeder_destroy(feeder);
    one->table->destroy(one);
    mf_source_close(source);
    drop(g);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    mf_graph *g = make(PLAIN, MF_U8, MF_F32, true);
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        memfit_error err = {0};
        mf_front_kit *kit = NULL;
        mf_front_hand *hand = NULL;
        mf_fault_host host;
        mf_backend *backend = NULL;
        mf_fault_host_init(&host, NULL, n, false);
        memfit_status status = mf_cpu_create(&host.host, 1, &backend, &err);
        if (status == MEMFIT_OK)
            status = mf_front_kit_create(&host.host, g->feeds[0].front, backend, &kit, &err);
        if (status == MEMFIT_OK)
            status = mf_front_hand_create(kit, &hand, &err);
        done = status == MEMFIT_OK;
        if (!done)
            assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
        mf_front_hand_destroy(hand);
        mf_front_kit_destroy(kit);
        if (backend)
            backend->table->destroy(backend);
        assert_int_equal(host.live_bytes, 0);
        assert_true(n < 1000);
    }
    drop(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_be_taken_is_taken),      cmocka_unit_test(what_others_read_stays),
        cmocka_unit_test(workers_have_the_graphs_numbers), cmocka_unit_test(workers_know_step_and_place),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
