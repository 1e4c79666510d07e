/* test_tfrecord.c: TFRecord files as data (fixtures by tools/make_tfrecord_fixtures.py), damaged and hostile ones. */
#include "data_files.h"

#include "base/memory.h"
#include "data/source.h"
#include "data/worker.h"
#include "file/gzip.h"
#include "file/tfrecord.h"

enum { MOST = 64 << 10 };

static const char *fixture(const char *name)
{
    static char path[2][2048];
    static unsigned next;
    const char *root = getenv("MEMFIT_SOURCE");
    if (!root)
        skip();
    snprintf(path[next % 2], sizeof path[0], "%s/tests/fixtures/%s", root, name);
    return path[next++ % 2];
}

static size_t read_fixture(const char *name, unsigned char *data)
{
    FILE *f = fopen(fixture(name), "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, MOST, f);
    fclose(f);
    return n;
}

static memfit_status make(const mf_source *s, const char *array, int64_t index, void *out, memfit_error *err)
{
    mf_worker *w;
    assert_ok(mf_worker_create(NULL, s->room_bytes, 0, &w, err), *err);
    memfit_status status = s->maker->make(s, mf_source_find(s, array), index, w, out, err);
    mf_worker_destroy(w);
    return status;
}

static void check_sums(void **state)
{
    (void)state;
    unsigned char zeros[32] = {0};
    assert_int_equal(mf_crc32c((const unsigned char *)"123456789", 9), 0xe3069283);
    assert_int_equal(mf_crc32c(zeros, 32), 0x8a9136aa); /* RFC 3720 */
    assert_int_equal(mf_crc32c(zeros, 0), 0);
}

static void numbers_are_read(void **state)
{
    (void)state;
    mf_source *s, *want;
    memfit_error err = {0};
    assert_ok(mf_source_open(NULL, fixture("tfrecord/numbers.tfrecord"), NULL, &s, &err), err);
    assert_ok(mf_source_open(NULL, fixture("tfrecord/numbers.npz"), NULL, &want, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    assert_int_equal(s->samples, want->samples);
    for (int64_t i = 0; i < s->samples; i++) {
        float x[6], raw[6], y_x[6];
        int64_t y, want_y;
        assert_ok(make(s, "x", i, x, &err), err);
        assert_ok(make(s, "y", i, &y, &err), err);
        assert_ok(make(s, "raw", i, raw, &err), err);
        mf_source_read(want, mf_source_find(want, "x"), i, y_x);
        mf_source_read(want, mf_source_find(want, "y"), i, &want_y);
        assert_memory_equal(x, y_x, sizeof x);
        assert_memory_equal(raw, y_x, sizeof x);
        assert_int_equal(y, want_y);
    }
    mf_source_close(s);
    mf_source_close(want);
}

/* The same pictures as in the folder they were made from, over two files and packed. */
static void pictures_in_records(void **state)
{
    (void)state;
    static const char *const forms[] = {"tfrecord/two-*.tfrecord", "tfrecord/packed.tfrecord.gz"};
    enum { HIGH = 24, WIDE = 20 };
    static float a[HIGH * WIDE * 3], b[HIGH * WIDE * 3];
    if (!mf_picture_has(MF_PICTURE_JPEG) || !mf_picture_has(MF_PICTURE_PNG)) {
        print_message("skipped: built without libjpeg or libpng\n");
        skip();
    }
    for (int form = 0; form < 2; form++) {
        mf_source *s, *folder;
        memfit_error err = {0};
        const mf_source_wish wish = {.height = HIGH, .width = WIDE};
        assert_ok(mf_source_open_as(NULL, fixture(forms[form]), &wish, NULL, &s, &err), err);
        assert_ok(mf_source_open_as(NULL, fixture("pictures"), &wish, NULL, &folder, &err), err);
        assert_int_equal(s->samples, folder->samples);
        assert_null(mf_source_find(s, "z"));
        for (int64_t i = 0; i < s->samples; i++) {
            int64_t label;
            int32_t want;
            assert_ok(make(s, "x", i, a, &err), err);
            assert_ok(make(folder, "x", i, b, &err), err);
            assert_memory_equal(a, b, sizeof a);
            assert_ok(make(s, "y", i, &label, &err), err);
            mf_source_read(folder, mf_source_find(folder, "y"), i, &want);
            assert_int_equal(label, want);
        }
        mf_source_close(s);
        mf_source_close(folder);
    }
}

static void features_can_be_named(void **state)
{
    (void)state;
    mf_source *s;
    memfit_error err = {0};
    const mf_source_wish good = {.features = "x=raw,label=y"}, bad = {.features = "x=picture"};
    assert_ok(mf_source_open_as(NULL, fixture("tfrecord/numbers.tfrecord"), &good, NULL, &s, &err), err);
    assert_int_equal(s->count, 2);
    assert_int_equal(mf_source_find(s, "x")->dtype, MF_U8);
    assert_int_equal(mf_source_find(s, "label")->dtype, MF_I64);
    mf_source_close(s);
    assert_int_equal(mf_source_open_as(NULL, fixture("tfrecord/numbers.tfrecord"), &bad, NULL, &s, &err),
                     MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "no feature picture"));
    assert_non_null(strstr(err.hint, "raw"));
}

/* ---- damage ----------------------------------------------------------------------------------------------- */

static void refuse(const unsigned char *data, size_t bytes, const char *text)
{
    mf_source *s;
    memfit_error err = {0};
    write_file("bad.tfrecord", data, bytes);
    assert_int_equal(mf_source_open(NULL, test_path("bad.tfrecord"), NULL, &s, &err), MEMFIT_DAMAGED);
    if (!strstr(err.message, text) || !strstr(err.message, "bad.tfrecord"))
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
}

/* Writes a length with its check sum, as a liar would. */
static void put_length(unsigned char *p, uint64_t length)
{
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(length >> 8 * i);
    uint32_t crc = mf_crc32c(p, 8);
    crc = (crc >> 15 | crc << 17) + 0xa282ead8u;
    for (int i = 0; i < 4; i++)
        p[8 + i] = (unsigned char)(crc >> 8 * i);
}

static void damage_is_named(void **state)
{
    (void)state;
    static unsigned char data[MOST], copy[MOST];
    size_t n = read_fixture("tfrecord/numbers.tfrecord", data);
    mf_tfrecord first;
    memfit_error err = {0};
    assert_ok(mf_tfrecord_at(data, n, 0, true, "f", &first, &err), err);
    refuse(data, n - 3, "is cut off: the record at byte");
    refuse(data, (size_t)first.next + 5, "has no header");
    refuse((const unsigned char *)"this is a text, not a record", 28, "byte 0");
    memcpy(copy, data, n);
    copy[first.next + 2] ^= 1;
    refuse(copy, n, "the check sum of its length is wrong");
    const uint64_t lies[] = {(uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 15, n, n - 12};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(copy, data, n);
        put_length(copy, lies[i]);
        refuse(copy, n, "is cut off: the record at byte 0 claims");
    }
    /* In the middle of a record: when it is used. */
    memcpy(copy, data, n);
    copy[first.next + 30] ^= 1;
    write_file("bad.tfrecord", copy, n);
    mf_source *s;
    float x[6];
    assert_ok(mf_source_open(NULL, test_path("bad.tfrecord"), NULL, &s, &err), err);
    assert_ok(make(s, "x", 0, x, &err), err);
    assert_int_equal(make(s, "x", 1, x, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "its check sum is wrong"));
    /* While it is used. */
    assert_int_equal(truncate(test_path("bad.tfrecord"), 200), 0);
    assert_int_equal(make(s, "x", 2, x, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "became shorter"));
    mf_source_close(s);
    n = read_fixture("tfrecord/packed.tfrecord.gz", data);
    refuse(data, n / 2, "packed, and cut off");
    data[n / 2] ^= 0x55;
    refuse(data, n, "packed, and");
    write_file("none.tfrecord", data, 0);
    assert_int_equal(mf_source_open(NULL, test_path("none.tfrecord"), NULL, &s, &err), MEMFIT_DAMAGED);
    assert_int_equal(mf_source_open(NULL, test_path("nothing-*.tfrecord"), NULL, &s, &err), MEMFIT_NOT_FOUND);
    assert_non_null(strstr(err.message, "matches no file"));
}

/* Any bit of an Example may be wrong: it is refused or read, never beyond its end. */
static void examples_of_any_bytes(void **state)
{
    (void)state;
    static unsigned char data[MOST];
    size_t n = read_fixture("tfrecord/numbers.tfrecord", data);
    mf_tfrecord first;
    memfit_error err = {0};
    assert_ok(mf_tfrecord_at(data, n, 0, true, "f", &first, &err), err);
    unsigned char *copy = malloc(first.bytes);
    for (uint64_t bit = 0; bit < first.bytes * 8; bit++) {
        float x[6];
        int64_t y;
        bool damaged;
        mf_feature f;
        memcpy(copy, first.data, first.bytes);
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        if (mf_example_find(copy, first.bytes, "x", &f, &damaged))
            mf_feature_floats(&f, x, 6);
        if (mf_example_find(copy, first.bytes, "y", &f, &damaged))
            mf_feature_ints(&f, &y, 1);
    }
    for (uint64_t cut = 0; cut < first.bytes; cut++) {
        mf_feature f;
        bool damaged;
        unsigned char *part = malloc(cut + 1);
        memcpy(part, first.data, cut);
        mf_example_find(part, cut, "y", &f, &damaged);
        free(part);
    }
    free(copy);
}

static bool count_values(void *ctx, const mf_feature *f)
{
    *(int64_t *)ctx += 1 + mf_feature_count(f);
    return true;
}

/* Features without a value, and an Example without features. */
static void nothing_is_read_as_nothing(void **state)
{
    (void)state;
    int64_t count = 0;
    static const unsigned char empty_entry[] = {0x0a, 2, 0x0a, 0},
                               no_list[] = {0x0a, 7, 0x0a, 5, 0x0a, 1, 'x', 0x12, 0};
    assert_true(mf_example_walk(empty_entry, sizeof empty_entry, count_values, &count));
    assert_true(mf_example_walk(no_list, sizeof no_list, count_values, &count));
    assert_int_equal(count, 2);
    assert_true(mf_example_walk(no_list, 0, count_values, &count));
    assert_int_equal(count, 2);
}

static void records_that_differ(void **state)
{
    (void)state;
    static unsigned char data[MOST];
    size_t a = read_fixture("tfrecord/numbers.tfrecord", data);
    size_t b = read_fixture("tfrecord/two-0.tfrecord", data + a);
    mf_source *s;
    memfit_error err = {0};
    float x[6];
    write_file("mixed.tfrecord", data, a + b);
    assert_ok(mf_source_open(NULL, test_path("mixed.tfrecord"), NULL, &s, &err), err);
    assert_int_equal(s->samples, 49);
    assert_int_equal(make(s, "x", 40, x, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "record 40 (byte"));
    assert_non_null(strstr(err.message, "feature x is missing"));
    mf_source_close(s);
}

static void opening_survives_lack_of_memory(void **state)
{
    (void)state;
    static const char *const forms[] = {"tfrecord/numbers.tfrecord", "tfrecord/two-*.tfrecord",
                                        "tfrecord/packed.tfrecord.gz"};
    for (int form = 0; form < 3; form++) {
        const char *path = fixture(forms[form]);
        memfit_status status = MEMFIT_NO_HOST_MEMORY;
        for (uint64_t n = 1; status != MEMFIT_OK; n++) {
            mf_fault_host fault;
            mf_source *s = NULL;
            memfit_error err = {0};
            const mf_source_wish wish = {0};
            mf_fault_host_init(&fault, NULL, n, true);
            status = mf_source_open_as(&fault.host, path, &wish, NULL, &s, &err);
            if (status == MEMFIT_OK)
                mf_source_close(s);
            else
                assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
            assert_int_equal(fault.live_bytes, 0);
            assert_true(n < 100);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_sums),
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(pictures_in_records),
        cmocka_unit_test(features_can_be_named),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(examples_of_any_bytes),
        cmocka_unit_test(nothing_is_read_as_nothing),
        cmocka_unit_test(records_that_differ),
        cmocka_unit_test(opening_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
