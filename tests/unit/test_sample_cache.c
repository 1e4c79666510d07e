/* test_sample_cache.c: samples kept in a file and in memory, arrays kept as they were unpacked: found again, never wrong,
 * whatever became of the file. */
#include "data_files.h"

#include "base/memory.h"
#include "data/sample_cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { SAMPLES = 50, ELEMENTS = 37 };

static _Atomic int made;
static uint64_t version;

/* A source whose samples are made here, so that how often can be counted. */
static memfit_status make(const mf_source *source, const mf_array *array, int64_t index, mf_worker *worker, void *out,
                          memfit_error *err)
{
    (void)source, (void)worker;
    made++;
    if (index == SAMPLES - 1)
        return err ? (err->code = MEMFIT_DAMAGED) : MEMFIT_DAMAGED;
    for (uint64_t i = 0; i < array->sample_bytes / 4; i++)
        ((uint32_t *)out)[i] = (uint32_t)(index * 1000 + (int64_t)i + array->column * 77);
    return MEMFIT_OK;
}

static void stamp(const mf_source *source, mf_stamp *to)
{
    (void)source;
    mf_stamp_number(to, version);
}

static const mf_maker maker = {.make = make, .stamp = stamp};

static mf_source *new_source(void)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    const mf_shape x = {.rank = 2, .dim = {SAMPLES, ELEMENTS}}, y = {.rank = 1, .dim = {SAMPLES}};
    assert_ok(mf_source_synthetic(NULL, SAMPLES, 0, &s, &err), err);
    s->maker = &maker;
    assert_ok(mf_source_add_made(s, "x", MF_I32, &x, 0, &err), err);
    assert_ok(mf_source_add_made(s, "y", MF_I32, &y, 1, &err), err);
    return s;
}

static void is_right(const mf_source *s, int64_t index)
{
    uint32_t out[ELEMENTS] = {0};
    memfit_error err = {0};
    assert_ok(mf_source_make(s, &s->arrays[0], index, NULL, out, &err), err);
    for (int i = 0; i < ELEMENTS; i++)
        assert_int_equal(out[i], index * 1000 + i);
    assert_ok(mf_source_make(s, &s->arrays[1], index, NULL, out, &err), err);
    assert_int_equal(out[0], index * 1000 + 77);
}

/* How many samples had to be made to read all but the last, which cannot be. */
static int read_all(const mf_source *s)
{
    made = 0;
    for (int64_t i = 0; i < SAMPLES - 1; i++)
        is_right(s, i);
    return made;
}

static mf_source *with_file(const char *name)
{
    mf_source *s = new_source();
    memfit_error err = {0};
    assert_ok(mf_cache_open_file(s, test_path(name), NULL, &err), err);
    return s;
}

static void a_file_serves_the_next_run(void **state)
{
    (void)state;
    const int all = 2 * (SAMPLES - 1);
    uint32_t out[ELEMENTS];
    mf_source *s = with_file("a.cache");
    assert_int_equal(read_all(s), all);
    assert_int_equal(read_all(s), 0);
    assert_int_not_equal(mf_source_make(s, &s->arrays[0], SAMPLES - 1, NULL, out, NULL), MEMFIT_OK);
    assert_int_not_equal(mf_source_make(s, &s->arrays[0], SAMPLES - 1, NULL, out, NULL), MEMFIT_OK); /* not kept */
    assert_int_equal(mf_cache_read_counts(s).found, all);
    mf_source_close(s);
    s = with_file("a.cache");
    assert_int_equal(read_all(s), 0);
    mf_source_close(s);
    version++;
    s = with_file("a.cache"); /* another stamp: made anew */
    assert_int_equal(read_all(s), all);
    mf_source_close(s);
    s = with_file("a.cache");
    s->arrays[0].sample_bytes -= 4; /* another size of samples */
    memfit_error err = {0};
    mf_cache_close(s);
    assert_ok(mf_cache_open_file(s, test_path("a.cache"), NULL, &err), err);
    made = 0;
    assert_ok(mf_source_make(s, &s->arrays[0], 3, NULL, out, &err), err);
    assert_int_equal(made, 1);
    mf_source_close(s);
}

static void mixed_samples_are_kept_by_file(void **state)
{
    (void)state;
    uint32_t order[SAMPLES];
    mf_source *s = with_file("m.cache");
    read_all(s);
    for (uint32_t i = 0; i < SAMPLES; i++)
        order[i] = (i + 7) % (SAMPLES - 1);
    s->mixed = order;
    uint32_t out[ELEMENTS];
    memfit_error err = {0};
    made = 0;
    assert_ok(mf_source_make(s, &s->arrays[0], 5, NULL, out, &err), err);
    assert_int_equal(made, 0);
    assert_int_equal(out[0], 12000);
    s->mixed = NULL;
    mf_source_close(s);
}

/* Whatever bytes change, and wherever the file ends: the samples are right. */
static void damage_costs_only_time(void **state)
{
    (void)state;
    struct stat st;
    uint32_t r = 12345;
    mf_source *s = with_file("d.cache");
    read_all(s);
    mf_source_close(s);
    assert_int_equal(stat(test_path("d.cache"), &st), 0);
    for (int round = 0; round < 300; round++) {
        FILE *f = fopen(test_path("d.cache"), "r+b");
        for (int k = 0; k < 4; k++) {
            r = r * 1664525 + 1013904223;
            fseek(f, (long)(8 + r % (uint32_t)(st.st_size - 8)), SEEK_SET); /* not the magic: that is refused */
            fputc((int)(r >> 24), f);
        }
        fclose(f);
        if (round % 10 == 9)
            assert_int_equal(truncate(test_path("d.cache"), 8 + r % (uint32_t)st.st_size), 0);
        s = with_file("d.cache");
        read_all(s);
        assert_int_equal(read_all(s), 0);
        mf_source_close(s);
    }
}

static void other_files_stay(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_source *s = new_source();
    write_file("precious", "precious", 8);
    assert_int_equal(mf_cache_open_file(s, test_path("precious"), NULL, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "is not a cache of memfit"));
    assert_int_equal(mf_cache_open_file(s, test_path("no/such/folder"), NULL, &err), MEMFIT_NOT_FOUND);
    assert_int_equal(mf_cache_open_file(s, test_path("."), NULL, &err), MEMFIT_INVALID);
    char text[16] = "";
    FILE *f = fopen(test_path("precious"), "rb");
    assert_int_equal(fread(text, 1, sizeof text, f), 8);
    fclose(f);
    assert_string_equal(text, "precious");
    write_file("empty", "", 0);
    assert_ok(mf_cache_open_file(s, test_path("empty"), NULL, &err), err);
    mf_source_close(s);
}

static void memory_holds_what_fits(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_source *s = new_source();
    mf_cache_mark(s, &s->arrays[0]);
    mf_cache_mark(s, &s->arrays[0]); /* once */
    mf_cache_mark(s, &s->arrays[1]);
    assert_ok(mf_cache_take_memory(s, 1 << 20, &err), err);
    mf_cache_counts c = mf_cache_read_counts(s);
    assert_int_equal(c.memory_samples, SAMPLES);
    assert_true(c.memory_bytes <= 1 << 20);
    assert_int_equal(read_all(s), 2 * (SAMPLES - 1));
    assert_int_equal(read_all(s), 0);
    assert_int_equal(mf_cache_drop_memory(s), c.memory_bytes);
    assert_int_equal(mf_cache_drop_memory(s), 0);
    assert_int_equal(read_all(s), 2 * (SAMPLES - 1));
    /* 10 samples and the two pages that are left */
    assert_ok(mf_cache_take_memory(s, 10 * (192 + 64 + 2) + 8192, &err), err);
    c = mf_cache_read_counts(s);
    assert_int_equal(c.memory_samples, 10);
    assert_int_equal(read_all(s), 2 * (SAMPLES - 1));
    assert_int_equal(read_all(s), 2 * (SAMPLES - 1 - 10));
    mf_cache_drop_memory(s);
    assert_ok(mf_cache_take_memory(s, 100, &err), err);
    assert_int_equal(mf_cache_read_counts(s).memory_bytes, 0);
    mf_source_close(s);
}

static void *read_many(void *ctx)
{
    for (int64_t i = 0; i < 40 * (SAMPLES - 1); i++)
        is_right(ctx, i * 31 % (SAMPLES - 1));
    return NULL;
}

static void threads_share_it(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_source *s = with_file("t.cache");
    mf_cache_mark(s, &s->arrays[0]);
    assert_ok(mf_cache_take_memory(s, 1 << 20, &err), err);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_many, s), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    mf_source_close(s);
}

/* ---- arrays ------------------------------------------------------------------------------------------------ */

static void write_table(void)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "a,b,label\n");
    for (int i = 0; i < 40; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%d.5,%d,%d\n", i, 3 * i, i % 4);
    write_file("t.csv", text, (size_t)n);
}

static memfit_status open_table(const memfit_host *host, mf_source **s, memfit_error *err)
{
    const mf_source_wish wish = {.cache = test_path("t.arrays")};
    char data[1024];
    snprintf(data, sizeof data, "%s", test_path("t.csv"));
    return mf_source_open_as(host, data, &wish, NULL, s, err);
}

static void table_is_right(void)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(open_table(NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, 40);
    for (int64_t i = 0; i < 40; i++) {
        float x[2], y;
        mf_source_read(s, mf_source_find(s, "x"), i, x);
        mf_source_read(s, mf_source_find(s, "y"), i, &y);
        assert_true(x[0] == (float)i + 0.5f && x[1] == (float)(3 * i) && y == (float)(i % 4));
    }
    mf_source_close(s);
}

static void arrays_are_whole_or_unpacked_again(void **state)
{
    (void)state;
    struct stat st;
    write_table();
    table_is_right();
    table_is_right();
    assert_int_equal(stat(test_path("t.arrays"), &st), 0);
    unsigned char *file = malloc((size_t)st.st_size);
    FILE *f = fopen(test_path("t.arrays"), "rb");
    assert_int_equal(fread(file, 1, (size_t)st.st_size, f), st.st_size);
    fclose(f);
    for (size_t at = 8; at < (size_t)st.st_size; at += at < 400 ? 1 : 13) {
        file[at] ^= 0x55;
        write_file("t.arrays", file, (size_t)st.st_size);
        table_is_right();
        file[at] ^= 0x55;
    }
    for (size_t n = 8; n < (size_t)st.st_size; n += 61) {
        write_file("t.arrays", file, n);
        table_is_right();
    }
    free(file);
}

static void lack_of_memory_is_survived(void **state)
{
    (void)state;
    write_table();
    for (int kept = 0; kept < 2; kept++) {
        if (!kept)
            unlink(test_path("t.arrays"));
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_source *s = NULL;
            memfit_error err = {0};
            mf_fault_host_init(&fault, NULL, n, true);
            memfit_status status = open_table(&fault.host, &s, &err);
            if (status == MEMFIT_OK)
                mf_source_close(s);
            assert_int_equal(fault.live_bytes, 0);
            if (status == MEMFIT_OK)
                break;
            assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
            assert_true(n < 100);
        }
        table_is_right();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_serves_the_next_run),
        cmocka_unit_test(mixed_samples_are_kept_by_file),
        cmocka_unit_test(damage_costs_only_time),
        cmocka_unit_test(other_files_stay),
        cmocka_unit_test(memory_holds_what_fits),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(arrays_are_whole_or_unpacked_again),
        cmocka_unit_test(lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
