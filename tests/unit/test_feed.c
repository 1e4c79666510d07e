/* test_feed.c: binding arrays to a graph's feeds, the order of samples, weights. */
#include "data_files.h"
#include "feed_graph.h"

static void feeds_are_bound(void **state)
{
    (void)state;
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_synthetic(NULL, 10, 3, &s, &err), err);
    mf_shape x = {.rank = 3, .dim = {10, 4, 4}}, y = {.rank = 1, .dim = {10}};
    assert_ok(mf_source_add_generated(s, "x", MF_U8, &x, 0, 0, &err), err);
    assert_ok(mf_source_add_generated(s, "y", MF_I64, &y, 1, 5, &err), err);

    /* A missing last axis of size 1 is added, types are converted. */
    mf_graph *g = graph_of((mf_shape){.rank = 4, .dim = {2, 4, 4, 1}}, (mf_shape){.rank = 2, .dim = {2, 1}});
    mf_feeder_options o = {.shuffle = true, .targets = true};
    mf_feeder *f = NULL;
    assert_ok(mf_feeder_create(NULL, s, g, &o, &f, &err), err);
    mf_feeder_shuffle(f, 7, 1);
    uint32_t seen = 0, first[10];
    for (int i = 0; i < 10; i++) {
        seen |= 1u << f->order[i];
        first[i] = f->order[i];
    }
    assert_int_equal(seen, 1023);
    mf_feeder_shuffle(f, 7, 2);
    assert_memory_not_equal(first, f->order, sizeof first);
    mf_feeder_shuffle(f, 7, 1);
    assert_memory_equal(first, f->order, sizeof first);
    float images[32];
    int32_t labels[2];
    assert_ok(mf_feeder_fill(f, 0, 4, 2, images, &err), err);
    assert_ok(mf_feeder_fill(f, 1, 4, 2, labels, &err), err);
    uint8_t raw[16];
    int64_t label;
    mf_source_read(s, mf_source_find(s, "x"), first[5], raw);
    mf_source_read(s, mf_source_find(s, "y"), first[5], &label);
    for (int i = 0; i < 16; i++)
        assert_true(images[16 + i] == (float)raw[i]);
    assert_true(labels[1] == label && label >= 0 && label < 5);
    mf_feeder_destroy(f);
    free(g->feeds);
    g->feeds = NULL;
    g->feed_count = 0;
    mf_graph_destroy(g);

    /* Any other shape is an error that names layer, expected and given shape. */
    g = graph_of((mf_shape){.rank = 4, .dim = {2, 5, 4, 1}}, (mf_shape){.rank = 1, .dim = {2}});
    assert_int_equal(mf_feeder_create(NULL, s, g, &o, &f, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "layer image expects samples of shape (5, 4, 1)"));
    assert_non_null(strstr(err.message, "(4, 4)"));
    free(g->feeds);
    g->feeds = NULL;
    g->feed_count = 0;
    mf_graph_destroy(g);
    mf_source_close(s);
}

/* Every sample once, in another order each epoch, the same order for the same epoch. */
static void check_order(mf_feeder *f, int64_t samples)
{
    uint8_t *seen = calloc(1, (size_t)samples);
    int64_t in_place = 0, like_before = 0, wrong = 0, *before = malloc(64 * sizeof *before);
    mf_feeder_shuffle(f, 7, 1);
    for (int64_t i = 0; i < 64; i++)
        before[i] = mf_feeder_sample(f, i);
    mf_feeder_shuffle(f, 7, 2);
    for (int64_t i = 0; i < samples; i++) {
        int64_t at = mf_feeder_sample(f, i);
        if (at < 0 || at >= samples || seen[at]++)
            wrong++;
        in_place += at == i;
        like_before += i < 64 && at == before[i];
    }
    assert_int_equal(wrong, 0);
    assert_true(in_place < 20); /* one on average */
    assert_true(like_before < 4);
    mf_feeder_shuffle(f, 7, 1);
    for (int64_t i = 0; i < 64; i++)
        assert_int_equal(mf_feeder_sample(f, i), before[i]);
    free(before);
    free(seen);
}

/* More samples than a list is worth: the order takes no memory, unless a run is resumed that had a list. */
static void long_orders_are_computed(void **state)
{
    (void)state;
    static const int64_t counts[] = {1000, MF_FEEDER_MOST_LISTED, MF_FEEDER_MOST_LISTED + 1, 2000003};
    mf_graph *g = graph_of((mf_shape){.rank = 2, .dim = {2, 4}}, (mf_shape){.rank = 1, .dim = {2}});
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int listed = 0; listed < 2; listed++) {
            mf_source *s = NULL;
            memfit_error err = {0};
            mf_feeder *f = NULL;
            mf_shape x = {.rank = 2, .dim = {counts[i], 4}}, y = {.rank = 1, .dim = {counts[i]}};
            mf_limit_host host;
            mf_limit_host_init(&host, NULL, UINT64_MAX);
            assert_ok(mf_source_synthetic(&host.host, counts[i], 3, &s, &err), err);
            assert_ok(mf_source_add_generated(s, "x", MF_F32, &x, 0, 0, &err), err);
            assert_ok(mf_source_add_generated(s, "y", MF_I64, &y, 1, 5, &err), err);
            mf_feeder_options o = {.shuffle = true, .targets = true, .listed = listed};
            assert_ok(mf_feeder_create(&host.host, s, g, &o, &f, &err), err);
            bool has_list = listed || counts[i] <= MF_FEEDER_MOST_LISTED;
            assert_int_equal(f->order != NULL, has_list);
            assert_true(has_list || host.peak_bytes < 32 << 10);
            check_order(f, counts[i]);
            mf_feeder_destroy(f);
            mf_source_close(s);
            assert_int_equal(host.live_bytes, 0);
        }
    drop_graph(g);
}

/* Neighbours in an order that is computed are no neighbours in the data: of 4096 pairs those that begin in the same
 * sixteenth of the data are about a sixteenth. */
static void computed_orders_look_random(void **state)
{
    (void)state;
    enum { SAMPLES = 3000000, PAIRS = 4096 };
    mf_feeder f = {.samples = SAMPLES, .shuffled = true};
    for (uint64_t epoch = 0; epoch < 8; epoch++) {
        mf_feeder_shuffle(&f, 1, epoch);
        unsigned together = 0, parts[16] = {0};
        for (int64_t i = 0; i < PAIRS; i++) {
            int64_t a = mf_feeder_sample(&f, 2 * i) * 16 / SAMPLES, b = mf_feeder_sample(&f, 2 * i + 1) * 16 / SAMPLES;
            together += a == b;
            parts[a]++;
        }
        assert_in_range(together, 256 - 80, 256 + 80); /* five standard deviations */
        for (int i = 0; i < 16; i++)
            assert_in_range(parts[i], 256 - 80, 256 + 80);
    }
}

/* Weights that are no numbers, or not one a sample, are refused where they count; predictions do not look at them. */
static void unusable_weights_are_not_read(void **state)
{
    (void)state;
    mf_graph *g = graph_of((mf_shape){.rank = 2, .dim = {2, 4}}, (mf_shape){.rank = 1, .dim = {2}});
    mf_source *s = NULL;
    memfit_error err = {0}, why = {.code = MEMFIT_UNSUPPORTED, .message = "weights of text"};
    assert_ok(mf_source_synthetic(NULL, 10, 3, &s, &err), err);
    mf_shape x = {.rank = 2, .dim = {10, 4}}, y = {.rank = 1, .dim = {10}};
    assert_ok(mf_source_add_generated(s, "x", MF_F32, &x, 0, 0, &err), err);
    assert_ok(mf_source_add_generated(s, "y", MF_I64, &y, 1, 5, &err), err);
    assert_ok(mf_source_add_unusable(s, "sample_weight", &why, &err), err);
    mf_feeder_options o = {.targets = true};
    mf_feeder *f = NULL;
    assert_int_equal(mf_feeder_create(NULL, s, g, &o, &f, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "weights of text"));
    o.targets = false;
    assert_ok(mf_feeder_create(NULL, s, g, &o, &f, &err), err);
    assert_true(mf_feeder_weight_sum(f, 0, 10) == 10);
    mf_feeder_destroy(f);
    mf_source_close(s);
    drop_graph(g);
}

/* ---- block shuffle ---------------------------------------------------------------------------------------- */

static mf_feeder blocks_of(int64_t samples, int64_t block, int64_t window, uint64_t epoch)
{
    mf_feeder f = {.samples = samples, .first = 3, .shuffled = true, .block = block, .window = window};
    mf_feeder_shuffle(&f, 11, epoch);
    return f;
}

/* Every sample once, whatever the sizes; a window takes whole blocks of neighbours. */
static void block_shuffle_takes_every_sample_once(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{10, 1, 5},     {10, 3, 6},     {11, 3, 6},     {100, 7, 21},
                                       {101, 10, 100}, {1000, 10, 50}, {1003, 10, 50}, {4099, 64, 512},
                                       {5000, 1, 100}, {999, 100, 300}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t n = sizes[k][0], block = sizes[k][1], window = sizes[k][2];
        mf_feeder f = blocks_of(n, block, window, 4);
        unsigned char *seen = calloc((size_t)n, 1);
        int64_t moved = 0;
        for (int64_t first = 0; first < n; first += window) {
            int64_t *in_block = calloc((size_t)(n / block + 2), sizeof *in_block);
            const int64_t count = n - first < window ? n - first : window;
            for (int64_t p = first; p < first + count; p++) {
                int64_t s = mf_feeder_sample(&f, p) - 3;
                assert_true(s >= 0 && s < n && !seen[s]);
                seen[s] = 1;
                in_block[s / block]++;
                moved += s != p;
            }
            const int64_t last = (n / block - 1) / (window / block) * window; /* has what fills no block, too */
            for (int64_t b = 0; b < n / block && first < last; b++)
                assert_true(in_block[b] == 0 || in_block[b] == block);
            free(in_block);
        }
        assert_true(moved > n / 2);
        free(seen);
    }
}

static void block_shuffle_follows_seed_and_epoch(void **state)
{
    (void)state;
    mf_feeder a = blocks_of(1003, 10, 50, 1), again = blocks_of(1003, 10, 50, 1), next = blocks_of(1003, 10, 50, 2);
    int64_t same = 0, first_of_window = 0;
    for (int64_t p = 0; p < 1003; p++) {
        assert_int_equal(mf_feeder_sample(&a, p), mf_feeder_sample(&again, p));
        same += mf_feeder_sample(&a, p) == mf_feeder_sample(&next, p);
        first_of_window += mf_feeder_sample(&a, p) % 10 == mf_feeder_sample(&a, p + (p + 50 < 1003 ? 50 : 0)) % 10;
    }
    assert_true(same < 50);
    assert_true(first_of_window < 500); /* windows are mixed each in its own way */
}

static void blocks_are_chosen_where_reading_is_slow(void **state)
{
    (void)state;
    const uint64_t gib = (uint64_t)1 << 30;
    int64_t block, window;
    assert_false(mf_order_choose(3 * gib, 1 << 20, 8 * gib, true, &block, &window));    /* memory holds it */
    assert_false(mf_order_choose(100 * gib, 1 << 20, 8 * gib, false, &block, &window)); /* 100 KiB each */
    assert_false(mf_order_choose(0, 1000, 8 * gib, true, &block, &window));             /* not read in place */
    assert_true(mf_order_choose(100 * gib, 1 << 20, 8 * gib, true, &block, &window));
    assert_int_equal(block, 10);
    assert_int_equal(window, 5240); /* half a GiB of 100 KiB each, in whole blocks */
    assert_true(mf_order_choose(100 * gib, 1 << 30, 8 * gib, false, &block, &window)); /* 100 bytes: 40 in a page */
    assert_int_equal(block, 10485);
    block = 0, window = 1000;
    mf_order_round(100000, &block, &window);
    assert_int_equal(block, 62);
    assert_int_equal(window, 992);
    block = 0, window = 1000;
    mf_order_round(900, &block, &window);
    assert_true(block == 0 && window == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feeds_are_bound),
        cmocka_unit_test(long_orders_are_computed),
        cmocka_unit_test(computed_orders_look_random),
        cmocka_unit_test(unusable_weights_are_not_read),
        cmocka_unit_test(block_shuffle_takes_every_sample_once),
        cmocka_unit_test(block_shuffle_follows_seed_and_epoch),
        cmocka_unit_test(blocks_are_chosen_where_reading_is_slow),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
