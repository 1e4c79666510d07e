/* test_labels.c: texts as labels, arrays in groups, several files as one: numbers, names, and lack of memory. */
#include "data_files.h"

#include "base/memory.h"
#include "data/labels.h"

static const char *fixture(const char *name)
{
    static char path[2048];
    const char *root = getenv("MEMFIT_SOURCE");
    if (!root) {
        print_message("skipped: MEMFIT_SOURCE is not set\n");
        skip();
    }
    snprintf(path, sizeof path, "%s/tests/fixtures/labels/%s", root, name);
    return path;
}

static mf_source *open_as(const char *path, mf_source_wish wish)
{
    mf_source *s = NULL;
    memfit_error err = {0};
    assert_ok(mf_source_open_as(NULL, path, &wish, NULL, &s, &err), err);
    assert_ok(mf_source_check(s, &err), err);
    return s;
}

/* Thousands of names that come in any order: sorted by bytes, each sample its own. */
static void names_are_sorted(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    mf_source *s = NULL;
    memfit_error err = {0};
    mf_labels l;
    static int32_t codes[2 * COUNT];
    char text[32];
    assert_ok(mf_source_synthetic(NULL, 2 * COUNT, 0, &s, &err), err);
    mf_labels_begin(&l, s);
    for (int i = 0; i < 2 * COUNT; i++) {
        int n = snprintf(text, sizeof text, "n%05d", i * 7919 % COUNT);
        assert_ok(mf_labels_number(&l, text, (uint64_t)n, &codes[i], &err), err);
    }
    assert_ok(mf_labels_end(&l, "y", codes, 2 * COUNT, NULL, &err), err);
    const mf_array *y = mf_source_find(s, "y");
    assert_int_equal(y->name_count, COUNT);
    for (int i = 0; i < 2 * COUNT; i++) {
        assert_int_equal(codes[i], i * 7919 % COUNT);
        snprintf(text, sizeof text, "n%05d", codes[i]);
        assert_string_equal(y->names[codes[i]], text);
    }
    mf_source_close(s);
}

static void too_many_or_too_long_is_no_label(void **state)
{
    (void)state;
    mf_source *s = NULL;
    memfit_error err = {0};
    mf_labels l;
    int32_t code;
    char text[MF_LABELS_MOST_BYTES + 2];
    assert_ok(mf_source_synthetic(NULL, 1, 0, &s, &err), err);
    mf_labels_begin(&l, s);
    memset(text, 'a', sizeof text);
    assert_ok(mf_labels_number(&l, text, MF_LABELS_MOST_BYTES, &code, &err), err);
    assert_int_equal(mf_labels_number(&l, text, MF_LABELS_MOST_BYTES + 1, &code, &err), MEMFIT_UNSUPPORTED);
    assert_ok(mf_labels_number(&l, "", 0, &code, &err), err); /* the empty text is one */
    for (int i = 2; i < MF_LABELS_MOST; i++) {
        int n = snprintf(text, sizeof text, "%d", i);
        assert_ok(mf_labels_number(&l, text, (uint64_t)n, &code, &err), err);
    }
    assert_int_equal(mf_labels_number(&l, "one more", 8, &code, &err), MEMFIT_UNSUPPORTED);
    assert_ok(mf_labels_number(&l, "5", 1, &code, &err), err);
    mf_labels_drop(&l);
    mf_source_close(s);
}

static void given_names_keep_their_place(void **state)
{
    (void)state;
    const mf_source_wish wish = {.classes = "x,zero,vier,two,sieben,sechs,one,fünf,drei,acht,Neun,last"};
    mf_source *s = open_as(fixture("texts.npz"), wish), *sorted = open_as(fixture("texts.npz"), (mf_source_wish){0});
    const mf_array *y = mf_source_find(s, "y"), *z = mf_source_find(sorted, "y");
    assert_int_equal(y->name_count, 12);
    assert_string_equal(y->names[0], "x");
    assert_string_equal(y->names[11], "last");
    for (int64_t i = 0; i < s->samples; i++) {
        int32_t a, b;
        mf_source_read(s, y, i, &a);
        mf_source_read(sorted, z, i, &b);
        assert_int_equal(a, 10 - b);
        assert_string_equal(y->names[a], z->names[b]);
    }
    mf_source_close(sorted);
    mf_source_close(s);
}

static void arrays_in_groups_have_two_names(void **state)
{
    (void)state;
    mf_source *s = open_as(fixture("inner.h5"), (mf_source_wish){0});
    assert_ptr_equal(mf_source_find(s, "x")->data, mf_source_find(s, "data/in/x")->data);
    mf_source_close(s);
    s = open_as(fixture("groups.h5"), (mf_source_wish){0});
    assert_non_null(mf_source_find(s, "x")->unusable);
    mf_source_close(s);
    s = open_as(fixture("groups.h5"), (mf_source_wish){.features = "x=test/x,y=test/y"});
    assert_int_equal(s->samples, 7);
    assert_null(mf_source_find(s, "train/x")); /* not asked for, not read */
    mf_source_close(s);
}

/* A sample of each file where it begins and ends, and its name. */
static void parts_follow_each_other(void **state)
{
    (void)state;
    mf_source *whole = open_as(fixture("numbers.npz"), (mf_source_wish){0});
    mf_source *s = open_as(fixture("parts-*.npz"), (mf_source_wish){0});
    memfit_error err = {0};
    assert_int_equal(s->samples, 24);
    for (int64_t i = 0; i < 24; i++) {
        float a[64], b[64];
        int32_t label, want;
        char name[512];
        mf_source_read(whole, mf_source_find(whole, "x"), i, a);
        mf_source_read(whole, mf_source_find(whole, "y"), i, &want);
        assert_ok(mf_source_make(s, mf_source_find(s, "x"), i, NULL, b, &err), err);
        assert_ok(mf_source_make(s, mf_source_find(s, "y"), i, NULL, &label, &err), err);
        assert_memory_equal(a, b, sizeof a);
        assert_int_equal(label, want);
        s->maker->name(s, i, name, sizeof name);
        char tail[32];
        snprintf(tail, sizeof tail, "parts-%d.npz: sample %d", (int)i / 8, (int)i % 8);
        assert_string_equal(name + strlen(name) - strlen(tail), tail);
    }
    mf_source_close(s);
    mf_source_close(whole);
}

static void lack_of_memory_is_survived(void **state)
{
    (void)state;
    static const char *const names[] = {"texts.npz", "bytes.npz",   "texts.h5",  "inner.h5",
                                        "plain.csv", "parts-*.npz", "group-*.h5"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++)
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_source *s = NULL;
            memfit_error err = {0};
            const mf_source_wish wish = {.classes =
                                             f % 2 ? NULL : "Neun,acht,drei,fünf,one,sechs,sieben,two,vier,zero,a"};
            mf_fault_host_init(&fault, NULL, n, true);
            memfit_status status = mf_source_open_as(&fault.host, fixture(names[f]), &wish, NULL, &s, &err);
            if (status == MEMFIT_OK)
                mf_source_close(s);
            assert_int_equal(fault.live_bytes, 0);
            if (status == MEMFIT_OK)
                break;
            if (status != MEMFIT_NO_HOST_MEMORY)
                fail_msg("%s, allocation %d: %s", names[f], (int)n, err.message);
            assert_true(n < 1000);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_sorted),
        cmocka_unit_test(too_many_or_too_long_is_no_label),
        cmocka_unit_test(given_names_keep_their_place),
        cmocka_unit_test(arrays_in_groups_have_two_names),
        cmocka_unit_test(parts_follow_each_other),
        cmocka_unit_test(lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
