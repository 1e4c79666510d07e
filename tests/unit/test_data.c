/* test_data.c: data sources of every format, broken ones, binding to a graph's feeds, shuffling. */
#include "test.h"

#include "data/feed.h"
#include "graph/build.h"

#include <zlib.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/memfit-data-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int drop_folder(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

static size_t npy(unsigned char *out, const char *descr, const char *shape, const void *data, size_t bytes)
{
    char head[118];
    int n = snprintf(head, sizeof head, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
    memset(head + n, ' ', sizeof head - (size_t)n);
    head[117] = '\n';
    memcpy(out, "\x93NUMPY\x01\x00\x76\x00", 10);
    memcpy(out + 10, head, sizeof head);
    memcpy(out + 128, data, bytes);
    return 128 + bytes;
}

static void expect_failure(const char *name, memfit_status status, const char *text)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_int_equal(mf_source_open(NULL, path_of(name), NULL, &s, &err), status);
    if (!strstr(err.message, text))
        fail_msg("%s: \"%s\" does not say \"%s\"", name, err.message, text);
}

static void arrays_are_read(void **state)
{
    (void)state;
    unsigned char file[1024];
    float values[6] = {1, 2, 3, 4, 5, 6};
    write_file("a.npy", file, npy(file, "<f4", "3, 2", values, sizeof values));
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_open(NULL, path_of("a.npy"), NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, 3);
    assert_string_equal(s->arrays[0].name, "x");
    float row[2];
    mf_source_read(s, &s->arrays[0], 1, row);
    assert_true(row[0] == 3 && row[1] == 4);
    mf_source_close(s);

    write_file("cut.npy", file, npy(file, "<f4", "3, 2", values, sizeof values) - 4);
    expect_failure("cut.npy", MEMFIT_DAMAGED, "cut off");
    write_file("type.npy", file, npy(file, "<c8", "3", values, sizeof values));
    expect_failure("type.npy", MEMFIT_UNSUPPORTED, "<c8");
    write_file("none.npy", file, npy(file, "<f4", "0, 2", values, 0));
    expect_failure("none.npy", MEMFIT_DAMAGED, "no samples");
    write_file("empty.npy", file, 0);
    expect_failure("empty.npy", MEMFIT_DAMAGED, "empty");
    write_file("junk.npy", "hello", 5);
    expect_failure("junk.npy", MEMFIT_DAMAGED, "neither");
    expect_failure("nowhere.npy", MEMFIT_NOT_FOUND, "nowhere");
}

static void tables_are_read(void **state)
{
    (void)state;
    static const char good[] = "a,b,label\r\n1,2,0\r\n\r\n3.5,-4e1,1\r\n";
    write_file("t.csv", good, sizeof good - 1);
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_open(NULL, path_of("t.csv"), NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, 2);
    float x[2], y;
    mf_source_read(s, mf_source_find(s, "x"), 1, x);
    mf_source_read(s, mf_source_find(s, "y"), 1, &y);
    assert_true(x[0] == 3.5f && x[1] == -40 && y == 1);
    mf_source_close(s);
    static const char bad[] = "1,2,3\n4,five,6\n";
    write_file("bad.csv", bad, sizeof bad - 1);
    expect_failure("bad.csv", MEMFIT_DAMAGED, "line 2, column 2: \"five\"");
    static const char ragged[] = "1,2,3\n4,5\n";
    write_file("ragged.csv", ragged, sizeof ragged - 1);
    expect_failure("ragged.csv", MEMFIT_DAMAGED, "2 columns");
}

static mf_graph *graph_of(mf_shape x, mf_shape y)
{
    mf_build b;
    memfit_error err = {0};
    mf_graph *g = NULL;
    assert_ok(mf_build_begin(&b, NULL, &err), err);
    uint32_t roots[2] = {mf_g_input(&b, "image", MF_F32, x), mf_g_input(&b, "class", MF_I32, y)};
    assert_ok(mf_build_end_keeping(&b, 2, roots, &g), err);
    g->feeds = calloc(2, sizeof *g->feeds);
    g->feeds[0] = (mf_feed){"image", roots[0], 0, 0};
    g->feeds[1] = (mf_feed){"class", roots[1], 1, 0};
    g->feed_count = 2;
    return g;
}

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

static void opening_survives_lack_of_memory(void **state)
{
    (void)state;
    unsigned char file[1024];
    float values[6] = {1, 2, 3, 4, 5, 6};
    write_file("m.npy", file, npy(file, "<f4", "3, 2", values, sizeof values));
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, false);
        mf_source *s = NULL;
        memfit_status status = mf_source_open(&fault.host, path_of("m.npy"), NULL, &s, NULL);
        if (status == MEMFIT_OK)
            mf_source_close(s);
        assert_int_equal(fault.live_count, 0);
        if (status == MEMFIT_OK)
            break;
        assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_read),
        cmocka_unit_test(tables_are_read),
        cmocka_unit_test(feeds_are_bound),
        cmocka_unit_test(opening_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
