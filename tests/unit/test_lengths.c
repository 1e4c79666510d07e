/* test_lengths.c: sequences of different lengths: the lengths to pad to, values with row splits, batches of similar length. */
#include "data_files.h"
#include "feed_graph.h"

#include "data/lengths.h"

static uint32_t random_state;

static uint32_t draw(uint32_t below)
{
    return (random_state = random_state * 1664525 + 1013904223) % 0x10000 % below;
}

static int64_t padded_steps(const uint32_t *lengths, int n, const int64_t *bounds, uint32_t count)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        uint32_t k = 0;
        assert_true(bounds[0] >= lengths[i]);
        while (k + 1 < count && bounds[k + 1] >= lengths[i])
            k++;
        sum += bounds[k];
    }
    return sum;
}

/* Against all choices of three lengths. */
static void the_best_lengths_are_chosen(void **state)
{
    (void)state;
    random_state = 7;
    for (int round = 0; round < 200; round++) {
        uint32_t lengths[40], longest = 0;
        const int n = 1 + (int)draw(40);
        for (int i = 0; i < n; i++) {
            lengths[i] = draw(1 + draw(30));
            longest = lengths[i] > longest ? lengths[i] : longest;
        }
        int64_t bounds[MF_MOST_LENGTHS], steps = 0, best = INT64_MAX;
        double padding;
        const uint32_t count = mf_lengths_choose(lengths, n, 3, bounds, &padding);
        assert_true(count >= 1 && count <= 3 && bounds[0] == (longest ? longest : 1));
        for (uint32_t k = 1; k < count; k++)
            assert_true(bounds[k] < bounds[k - 1] && bounds[k] > 0);
        for (int64_t a = 1; a <= bounds[0]; a++)
            for (int64_t b = 1; b <= a; b++) {
                const int64_t all = padded_steps(lengths, n, (int64_t[]){bounds[0], a, b}, 3);
                best = all < best ? all : best;
            }
        const int64_t ours = padded_steps(lengths, n, bounds, count);
        assert_int_equal(ours, best);
        for (int i = 0; i < n; i++)
            steps += lengths[i];
        assert_true(padding > 1 - (double)steps / (double)ours - 1e-9 &&
                    padding < 1 - (double)steps / (double)ours + 1e-9);
    }
}

/* x: twelve values in sequences, with y beside them, as arrays of a file would be. */
static memfit_status split(const int64_t *splits, int64_t count, mf_source **source, memfit_error *err)
{
    static const int32_t values[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, y[4] = {0, 1, 0, 1};
    const mf_shape x = {.rank = 1, .dim = {12}}, s = {.rank = 1, .dim = {count}}, t = {.rank = 1, .dim = {4}};
    assert_ok(mf_source_synthetic(NULL, 4, 1, source, err), *err);
    assert_ok(mf_source_add(*source, "x", MF_I32, &x, (const void *)values, sizeof values, err), *err);
    assert_ok(mf_source_add(*source, "x_row_splits", MF_I64, &s, (const void *)splits, (uint64_t)count * 8, err), *err);
    assert_ok(mf_source_add(*source, "y", MF_I32, &t, (const void *)y, sizeof y, err), *err);
    return mf_lengths_by_splits(*source, NULL, err);
}

static void parts_of_values(void **state)
{
    (void)state;
    static const int64_t splits[5] = {0, 3, 3, 10, 12};
    mf_source *s;
    memfit_error err = {0};
    assert_ok(split(splits, 5, &s, &err), err);
    const mf_array *x = mf_source_find(s, "x");
    assert_true(x->ragged && !x->data && x->shape.rank == 2 && x->shape.dim[0] == 4 && x->shape.dim[1] == 7);
    static const uint32_t lengths[4] = {3, 0, 7, 2};
    assert_memory_equal(s->lengths, lengths, sizeof lengths);
    int32_t out[9];
    mf_source_read(s, x, 2, out);
    for (int i = 0; i < 7; i++)
        assert_int_equal(out[i], 4 + i);
    mf_lengths_read(x, 3, out, sizeof out); /* more than the longest has: zeros */
    assert_true(out[0] == 11 && out[1] == 12);
    for (int i = 2; i < 9; i++)
        assert_int_equal(out[i], 0);
    mf_lengths_read(x, 2, out, 2 * sizeof *out);
    assert_true(out[0] == 4 && out[1] == 5);
    mf_source_close(s);
}

static void splits_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        int64_t splits[5];
        const char *text;
    } cases[] = {{{1, 3, 3, 10, 12}, "begins with 1"},
                 {{0, 3, 2, 10, 12}, "x_row_splits[2] is 2"},
                 {{0, 3, 4, 13, 12}, "x_row_splits[3] is 13"},
                 {{0, 3, 4, 10, 11}, "ends with 11, but x has 12 steps"},
                 {{0, -1, 4, 10, 12}, "x_row_splits[1] is -1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf_source *s;
        memfit_error err = {0};
        assert_int_equal(split(cases[i].splits, 5, &s, &err), MEMFIT_DAMAGED);
        if (!strstr(err.message, cases[i].text))
            fail_msg("%s is not in %s", cases[i].text, err.message);
        mf_source_close(s);
    }
}

/* Every sample once; full batches are of one bucket but for the rests; what is not full is last; an order for each epoch. */
static void batches_of_similar_length(void **state)
{
    (void)state;
    enum { N = 1003, BATCH = 16, MOST = 20 };
    mf_source *s;
    memfit_error err = {0};
    static int32_t x[N * MOST], y[N];
    random_state = 3;
    memset(x, 0, sizeof x);
    for (int i = 0; i < N; i++)
        for (uint32_t n = 1 + draw(MOST), e = 0; e < n; e++)
            x[i * MOST + (int)e] = 1 + (int)draw(9);
    const mf_shape xs = {.rank = 2, .dim = {N, MOST}}, ys = {.rank = 1, .dim = {N}};
    assert_ok(mf_source_synthetic(NULL, N, 1, &s, &err), err);
    assert_ok(mf_source_add(s, "x", MF_I32, &xs, (const void *)x, sizeof x, &err), err);
    assert_ok(mf_source_add(s, "y", MF_I32, &ys, (const void *)y, sizeof y, &err), err);
    assert_ok(mf_lengths_measure(s, mf_source_find(s, "x"), &err), err);
    int64_t bounds[MF_MOST_LENGTHS];
    double padding;
    const uint32_t count = mf_lengths_choose(s->lengths, N, 4, bounds, &padding);
    assert_int_equal(count, 4);
    mf_graph *g[4];
    mf_feeder *f;
    for (uint32_t k = 0; k < 4; k++)
        g[k] = graph_of((mf_shape){.rank = 2, .dim = {BATCH, bounds[k]}}, (mf_shape){.rank = 1, .dim = {BATCH}});
    const mf_feeder_options o = {.shuffle = true, .targets = true, .bucket = BATCH, .bounds = bounds, .bound_count = 4};
    assert_ok(mf_feeder_create(NULL, s, g[0], &o, &f, &err), err);
    for (uint32_t k = 0; k < 4; k++)
        mf_feeder_note_length(f, k, g[k]);
    uint32_t before[N];
    int64_t at_length[4] = {0};
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint8_t seen[N] = {0};
        mf_feeder_shuffle(f, 5, epoch);
        if (epoch)
            assert_memory_not_equal(before, f->order, sizeof before);
        memcpy(before, f->order, sizeof before);
        for (int64_t at = 0; at < N; at += BATCH) {
            const int64_t n = N - at < BATCH ? N - at : BATCH;
            const uint32_t k = mf_feeder_choose_length(f, at, n);
            static float out[BATCH * MOST];
            at_length[k]++;
            assert_ok(mf_feeder_fill(f, 0, at, n, out, &err), err);
            for (int64_t i = 0; i < n; i++) {
                const int64_t sample = mf_feeder_sample(f, at + i);
                assert_int_equal(seen[sample]++, 0);
                assert_true(s->lengths[sample] <= bounds[k]);
                for (int64_t e = 0; e < bounds[k]; e++)
                    assert_true(out[i * bounds[k] + e] == (float)x[sample * MOST + e]);
            }
        }
        mf_feeder_shuffle(f, 5, epoch);
        assert_memory_equal(before, f->order, sizeof before);
    }
    for (uint32_t k = 0; k < 4; k++) /* of 62 full batches an epoch: as many as the bucket has, and few mixed ones */
        assert_true(at_length[k] >= 15);
    mf_feeder_destroy(f);
    for (uint32_t k = 0; k < 4; k++)
        drop_graph(g[k]);
    mf_source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_lengths_are_chosen),
        cmocka_unit_test(parts_of_values),
        cmocka_unit_test(splits_that_do_not_fit),
        cmocka_unit_test(batches_of_similar_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
