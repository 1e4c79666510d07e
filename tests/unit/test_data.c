/* test_data.c: data sources of every format, broken ones. */
#include "data_files.h"

#include "data/feed.h"
#include "graph/build.h"

#include <zlib.h>

static void expect_failure(const char *name, memfit_status status, const char *text)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_int_equal(mf_source_open(NULL, test_path(name), NULL, &s, &err), status);
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
    assert_ok(mf_source_open(NULL, test_path("a.npy"), NULL, &s, &err), err);
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

static void expect_values(const char *name, int64_t samples, size_t wide, const float *values)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    float row[16];
    assert_ok(mf_source_open(NULL, test_path(name), NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, samples);
    for (int64_t i = 0; i < samples; i++) {
        mf_source_read(s, &s->arrays[0], i, row);
        assert_memory_equal(row, values + (size_t)i * wide, wide * sizeof *row);
    }
    mf_source_close(s);
}

/* The other order of axes, the other order of bytes, both. */
static void other_orders_are_rewritten(void **state)
{
    (void)state;
    unsigned char file[1024], swapped[48];
    float rows[12], columns[12];
    for (int i = 0; i < 12; i++)
        rows[i] = (float)i * 1.25f;
    for (int i = 0; i < 2; i++) /* shape 2, 3, 2: the first axis turns fastest */
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 2; k++)
                columns[i + 2 * j + 6 * k] = rows[6 * i + 2 * j + k];
    write_file("f.npy", file, npy_ordered(file, "<f4", "2, 3, 2", true, columns, sizeof columns));
    expect_values("f.npy", 2, 6, rows);
    for (int i = 0; i < 48; i++)
        swapped[i] = ((const unsigned char *)rows)[i / 4 * 4 + 3 - i % 4];
    write_file("b.npy", file, npy(file, ">f4", "2, 3, 2", swapped, sizeof swapped));
    expect_values("b.npy", 2, 6, rows);
    for (int i = 0; i < 48; i++)
        swapped[i] = ((const unsigned char *)columns)[i / 4 * 4 + 3 - i % 4];
    write_file("fb.npy", file, npy_ordered(file, ">f4", "2, 3, 2", true, swapped, sizeof swapped));
    expect_values("fb.npy", 2, 6, rows);
    write_file("cut.npy", file, npy_ordered(file, ">f4", "2, 3, 2", true, swapped, sizeof swapped) - 1);
    expect_failure("cut.npy", MEMFIT_DAMAGED, "cut off");
}

static void expect_table(const char *text, int64_t inputs, int64_t samples, int64_t wide, float first, float target)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    float x[16], y = -1;
    write_file("form.csv", text, strlen(text));
    assert_ok(mf_source_open_table(NULL, test_path("form.csv"), inputs, NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, samples);
    const mf_array *a = mf_source_find(s, "x"), *b = mf_source_find(s, "y");
    assert_int_equal(a->shape.dim[1], wide);
    mf_source_read(s, a, 0, x);
    if (b)
        mf_source_read(s, b, 0, b->sample_bytes == sizeof y ? &y : x + 8);
    assert_true(x[0] == first && (y == target || (b && x[8] == target)));
    mf_source_close(s);
}

static void tables_of_many_forms(void **state)
{
    (void)state;
    expect_table("1,2,0\r3,4,1\r", 0, 2, 2, 1, 0);                         /* line ends of old */
    expect_table("1;2;0\n3;4;1\n", 0, 2, 2, 1, 0);                         /* other separators */
    expect_table("1\t2\t0\n\n  \n3\t4\t1\n", 0, 2, 2, 1, 0);               /* blank lines */
    expect_table("\"width, cm\",b,c\n\"1\", 2,0\n", 0, 1, 2, 1, 0);        /* quotes */
    expect_table("# made today\na,2019,y\n1,2,0\n", 0, 1, 2, 1, 0);        /* a comment; a number in the header */
    expect_table("y,a,b\n5,1,2\n6,3,4\n", 0, 2, 2, 1, 5);                  /* the target is named */
    expect_table("1,2,True\n3,4,false\n", 0, 2, 2, 1, 1);                  /* words for 1 and 0 */
    expect_table("1,2,0,1,0\n3,4,1,0,0\n", 2, 2, 2, 1, 0);                 /* several targets */
    expect_table("1,2\n3,4\n", 2, 2, 2, 1, -1);                            /* none */
    expect_table("\"a\nb\",\"c;\r\nd\",y\n1,2,0\n3,4,1\n", 0, 2, 2, 1, 0); /* line ends in names of columns */
    expect_table("a,5\",y\n1,2,0\n3,4,1\n", 0, 2, 2, 1, 0);                /* not in a name with an inch mark */
    expect_table("\"a \"\"b, c\"\"\",b,y\n1,2,0\n", 0, 1, 2, 1, 0);        /* quotes in quotes */
    static const char *const bad[][2] = {{"NA,2,3\n4,5,6\n", "line 1, column 1: \"NA\""},
                                         {"1,cat,2\n4,dog,5\n", "line 1, column 2: \"cat\""},
                                         {"a,b,c\n1,,3\n", "line 2, column 2: \"\""},
                                         {"\"a\nx\",b,c\n1,,3\n", "line 3, column 2: \"\""},
                                         {"1,5;2,5;0\n", "line 1, column 1: \"1,5\""},
                                         {"1,2,3\n4,5 6,7\n", "line 2, column 2: \"5 6\""},
                                         {"7\n8\n", "one column"},
                                         {"a,b,c\n", "no rows"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file("form.csv", bad[i][0], strlen(bad[i][0]));
        expect_failure("form.csv", MEMFIT_DAMAGED, bad[i][1]);
    }
    write_file("form.csv",
               "\xff\xfe"
               "1\0,\0",
               6);
    expect_failure("form.csv", MEMFIT_UNSUPPORTED, "UTF-16");
}

/* A file in use that becomes shorter is noticed before it is read. */
static void shorter_files_are_noticed(void **state)
{
    (void)state;
    unsigned char file[1024];
    float values[6] = {1, 2, 3, 4, 5, 6};
    mf_source *s = NULL;
    memfit_error err = {0};
    write_file("s.npy", file, npy(file, "<f4", "3, 2", values, sizeof values));
    assert_ok(mf_source_open(NULL, test_path("s.npy"), NULL, &s, &err), err);
    assert_ok(mf_source_still_whole(s, &err), err);
    assert_int_equal(truncate(test_path("s.npy"), 140), 0);
    assert_int_equal(mf_source_still_whole(s, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "became shorter"));
    mf_source_close(s);
}

/* A table was converted when it was opened: what becomes of its file afterwards does not matter. */
static void converted_files_are_let_go(void **state)
{
    (void)state;
    mf_source *s = NULL;
    memfit_error err = {0};
    write_file("gone.csv", "1,2,0\n3,4,1\n", 12);
    assert_ok(mf_source_open(NULL, test_path("gone.csv"), NULL, &s, &err), err);
    assert_int_equal(truncate(test_path("gone.csv"), 0), 0);
    assert_ok(mf_source_still_whole(s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    float row[2];
    mf_source_read(s, mf_source_find(s, "x"), 1, row);
    assert_true(row[0] == 3 && row[1] == 4);
    mf_source_close(s);
}

static void tables_are_read(void **state)
{
    (void)state;
    static const char good[] = "a,b,label\r\n1,2,0\r\n\r\n3.5,-4e1,1\r\n";
    write_file("t.csv", good, sizeof good - 1);
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_open(NULL, test_path("t.csv"), NULL, &s, &err), err);
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
    static const char zeros[] = "1,2\n3,4\0\0\0\n"; /* a crash left zero bytes in the file: not a 4 */
    write_file("zeros.csv", zeros, sizeof zeros - 1);
    expect_failure("zeros.csv", MEMFIT_DAMAGED, "line 2, column 2: \"4???\"");
    enum { COLUMNS = 65537 };
    static char wide[2 * COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        wide[2 * i] = '1';
        wide[2 * i + 1] = i + 1 < COLUMNS ? ',' : '\n';
    }
    write_file("wide.csv", wide, sizeof wide);
    expect_failure("wide.csv", MEMFIT_UNSUPPORTED, "more than 65536 columns");
}

/* Data sets of types that are not read are refused when they are asked for. */
static void hdf5_beside_the_data(void **state)
{
    (void)state;
    const char *root = getenv("MEMFIT_SOURCE");
    char path[2048];
    mf_source *s = NULL;
    memfit_error err = {0};
    if (!root)
        skip();
    snprintf(path, sizeof path, "%s/tests/fixtures/hdf5/beside.h5", root);
    assert_ok(mf_source_open(NULL, path, NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->count, 3);
    assert_int_equal(s->samples, 2);
    assert_null(mf_source_find(s, "x")->unusable);
    assert_int_equal(mf_source_find(s, "about")->why, MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(mf_source_find(s, "about")->unusable, "compound"));
    assert_non_null(strstr(mf_source_find(s, "deep")->unusable, "10 dimensions"));
    mf_source_close(s);
    snprintf(path, sizeof path, "%s/tests/fixtures/hdf5/compound.h5", root);
    assert_int_equal(mf_source_open(NULL, path, NULL, &s, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "compound"));
}

static size_t put(unsigned char *p, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)(i < sizeof value ? value >> 8 * i : 0);
    return bytes;
}

/* An archive of one member x.npy, its headers as told. */
static size_t archive(unsigned char *out, unsigned method, const void *data, size_t packed, uint32_t bytes,
                      uint32_t crc)
{
    size_t n = 0, central;
    for (int directory = 0; directory < 2; directory++) {
        central = n;
        n += put(out + n, directory ? 0x02014b50 : 0x04034b50, 4);
        n += put(out + n, 20, directory ? 4 : 2);
        n += put(out + n, 0, 2);
        n += put(out + n, method, 2);
        n += put(out + n, 0, 4);
        n += put(out + n, crc, 4);
        n += put(out + n, packed, 4);
        n += put(out + n, bytes, 4);
        n += put(out + n, 5, 4);
        n += directory ? put(out + n, 0, 14) : 0;
        memcpy(out + n, "x.npy", 5);
        n += 5;
        if (!directory) {
            memcpy(out + n, data, packed);
            n += packed;
        }
    }
    size_t end = n;
    n += put(out + n, 0x06054b50, 8);
    n += put(out + n, 0x00010001, 4);
    n += put(out + n, end - central, 4);
    n += put(out + n, central, 4);
    return n + put(out + n, 0, 2);
}

static void archives_are_read(void **state)
{
    (void)state;
    unsigned char array[1024], packed[1024], file[4096];
    float values[6] = {1, 2, 3, 4, 5, 6};
    size_t bytes = npy(array, "<f4", "3, 2", values, sizeof values);
    z_stream z = {.next_in = array, .avail_in = (uInt)bytes, .next_out = packed, .avail_out = sizeof packed};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    uint32_t crc = (uint32_t)crc32(0, array, (uInt)bytes);
    write_file("a.npz", file, archive(file, 8, packed, z.total_out, (uint32_t)bytes, crc));
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_open(NULL, test_path("a.npz"), NULL, &s, &err), err);
    float row[2];
    mf_source_read(s, mf_source_find(s, "x"), 2, row);
    assert_true(row[0] == 5 && row[1] == 6);
    mf_source_close(s);
    write_file("sum.npz", file, archive(file, 8, packed, z.total_out, (uint32_t)bytes, crc + 1));
    expect_failure("sum.npz", MEMFIT_DAMAGED, "check sum");
    write_file("cut.npz", file, archive(file, 8, packed, z.total_out - 3, (uint32_t)bytes, crc));
    expect_failure("cut.npz", MEMFIT_DAMAGED, "damaged");
    /* No disk is filled for a lie, and a method is called by its number. */
    write_file("bomb.npz", file, archive(file, 8, packed, z.total_out, UINT32_MAX - 1, crc));
    expect_failure("bomb.npz", MEMFIT_DAMAGED, "more than it can hold");
    write_file("lzma.npz", file, archive(file, 14, packed, z.total_out, (uint32_t)bytes, crc));
    expect_failure("lzma.npz", MEMFIT_UNSUPPORTED, "method 14");
    /* Stored members are used in place; a bit that turned is found all the same, and the member is named. */
    write_file("stored.npz", file, archive(file, 0, array, bytes, (uint32_t)bytes, crc));
    assert_ok(mf_source_open(NULL, test_path("stored.npz"), NULL, &s, &err), err);
    mf_source_close(s);
    array[bytes - 2] ^= 4;
    write_file("turned.npz", file, archive(file, 0, array, bytes, (uint32_t)bytes, crc));
    expect_failure("turned.npz", MEMFIT_DAMAGED, "member x.npy");
    expect_failure("turned.npz", MEMFIT_DAMAGED, "check sum");
}

/* An array in one packed chunk of 12 MiB is unpacked in a temporary file; many arrays take no more than they are. */
static void loading_stays_under_a_limit(void **state)
{
    (void)state;
    const char *root = getenv("MEMFIT_SOURCE");
    if (!root)
        skip();
    char path[2048];
    mf_source *s = NULL;
    memfit_error err = {0};
    mf_limit_host host;
    snprintf(path, sizeof path, "%s/tests/fixtures/hdf5/one_chunk.h5", root);
    mf_limit_host_init(&host, NULL, 256 << 10);
    assert_ok(mf_source_open(&host.host, path, NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, 49152);
    float image[64];
    for (int64_t i = 0; i < 49152; i += 4915) {
        mf_source_read(s, mf_source_find(s, "x"), i, image);
        for (int k = 0; k < 64; k++)
            assert_true(image[k] == (float)((i * 64 + k) % 17) / 16);
    }
    mf_source_close(s);
    assert_int_equal(host.live_bytes, 0);

    mf_limit_host_init(&host, NULL, 32 << 10);
    assert_int_equal(mf_source_open(&host.host, path, NULL, &s, &err), MEMFIT_NO_HOST_MEMORY);
    assert_true(host.refused_bytes > 0 && host.peak_bytes <= 32 << 10);
    assert_int_equal(host.live_bytes, 0);

    mf_limit_host_init(&host, NULL, 8 << 20);
    assert_ok(mf_source_synthetic(&host.host, 10, 3, &s, &err), err);
    for (int i = 0; i < 10000; i++) {
        char name[16];
        snprintf(name, sizeof name, "a%d", i);
        assert_ok(mf_source_add_generated(s, name, MF_F32, &(mf_shape){.rank = 1, .dim = {10}}, 0, 0, &err), err);
    }
    assert_non_null(mf_source_find(s, "a9999"));
    mf_source_close(s);
    assert_int_equal(host.live_bytes, 0);
}

/* Arrays that were never written take no disk for what they claim to be. */
static void claims_beyond_the_file_are_refused(void **state)
{
    (void)state;
    const char *root = getenv("MEMFIT_SOURCE");
    if (!root)
        skip();
    char path[2048];
    mf_source *s = NULL;
    memfit_error err = {0};
    snprintf(path, sizeof path, "%s/tests/fixtures/hdf5/unwritten.h5", root);
    assert_int_equal(mf_source_open(NULL, path, NULL, &s, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "claims arrays of 2.61 GiB"));
    assert_non_null(strstr(err.message, "never written"));
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
        memfit_status status = mf_source_open(&fault.host, test_path("m.npy"), NULL, &s, NULL);
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
        cmocka_unit_test(hdf5_beside_the_data),
        cmocka_unit_test(arrays_are_read),
        cmocka_unit_test(other_orders_are_rewritten),
        cmocka_unit_test(tables_are_read),
        cmocka_unit_test(tables_of_many_forms),
        cmocka_unit_test(archives_are_read),
        cmocka_unit_test(shorter_files_are_noticed),
        cmocka_unit_test(converted_files_are_let_go),
        cmocka_unit_test(loading_stays_under_a_limit),
        cmocka_unit_test(claims_beyond_the_file_are_refused),
        cmocka_unit_test(opening_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
