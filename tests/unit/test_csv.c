/* test_csv.c: the CSV reader: quoting, line ends, bounds, and errors that name their place. */
#include "test.h"

#include "base/csv.h"

static memfit_status open_text(mf_csv *csv, const char *text, memfit_error *err)
{
    mf_csv_open(csv, text, strlen(text));
    return mf_csv_header(csv, err);
}

static void rows_and_columns_are_read(void **state)
{
    (void)state;
    mf_csv csv;
    memfit_error err;
    bool more;
    assert_ok(
        open_text(&csv,
                  "\xef\xbb\xbf id ,\"a,\"\"b\"\"\", size\r\n\n 1 ,\"x y\" , -1.5e3\r\n  \n2,,18446744073709551615",
                  &err),
        err);
    assert_int_equal(csv.columns, 3);
    assert_string_equal(csv.name[0], "id");
    assert_string_equal(csv.name[1], "a,\"b\"");
    unsigned size, id;
    assert_ok(mf_csv_column(&csv, "size", &size, &err), err);
    assert_ok(mf_csv_column(&csv, "id", &id, &err), err);
    assert_false(mf_csv_find(&csv, "offset", &id));
    assert_ok(mf_csv_next(&csv, &more, &err), err);
    assert_true(more);
    assert_int_equal(csv.line, 3);
    assert_string_equal(mf_csv_string(&csv, 1), "x y");
    assert_string_equal(mf_csv_string(&csv, size), "-1.5e3");
    assert_ok(mf_csv_next(&csv, &more, &err), err);
    assert_true(more);
    assert_int_equal(csv.line, 5);
    assert_string_equal(mf_csv_string(&csv, 1), "");
    uint64_t large;
    assert_ok(mf_csv_u64(&csv, size, &large, &err), err);
    assert_true(large == UINT64_MAX);
    assert_ok(mf_csv_next(&csv, &more, &err), err);
    assert_false(more);
}

static void whole_numbers_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int u64, i64; /* accepted? */
    } cases[] = {{"0", 1, 1},
                 {"42", 1, 1},
                 {"-1", 0, 1},
                 {"+1", 0, 0},
                 {"1.0", 0, 0},
                 {"", 0, 0},
                 {"0x10", 0, 0},
                 {"12k", 0, 0},
                 {"1 2", 0, 0},
                 {"9223372036854775808", 1, 0},
                 {"18446744073709551616", 0, 0},
                 {"-9223372036854775808", 0, 1},
                 {"-9223372036854775809", 0, 0},
                 {"99999999999999999999999", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf_csv csv;
        memfit_error err;
        bool more;
        char text[64];
        uint64_t u = 7;
        int64_t s = 7;
        snprintf(text, sizeof text, "n,m\n%s,\n", cases[i].text);
        assert_ok(open_text(&csv, text, &err), err);
        assert_ok(mf_csv_next(&csv, &more, &err), err);
        assert_int_equal(mf_csv_u64(&csv, 0, &u, &err) == MEMFIT_OK, cases[i].u64);
        assert_int_equal(mf_csv_i64(&csv, 0, &s, &err) == MEMFIT_OK, cases[i].i64);
        assert_true(cases[i].u64 || u == 7);
        assert_true(cases[i].i64 || s == 7);
    }
}

static memfit_status read_all(const char *text, size_t bytes, memfit_error *err)
{
    mf_csv csv;
    mf_csv_open(&csv, text, bytes);
    unsigned column;
    uint64_t value;
    bool more = true;
    memfit_status status = mf_csv_header(&csv, err);
    if (!status)
        status = mf_csv_column(&csv, "size", &column, err);
    while (!status && more) {
        status = mf_csv_next(&csv, &more, err);
        if (!status && more)
            status = mf_csv_u64(&csv, column, &value, err);
    }
    return status;
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "line 1: the file is empty"},
        {"id,sise\n", "line 1: no column \"size\""},
        {"id,size\n1,2\n1,2,3\n", "line 3: 3 fields, but the header names 2 columns"},
        {"id,size\n1\n", "line 2: 1 field, but"},
        {"id,size\n1,2\n\n2,12k\n", "line 4, column 2 (\"size\"): \"12k\" is not a whole number"},
        {"id,size\n1,-2\n", "line 2, column 2 (\"size\"): \"-2\" is not"},
        {"id,size\n\"1,2\n", "line 2, column 1: a quoted field does not end"},
        {"id,size\n\"1\"x,2\n", "line 2, column 1: text after the closing quote"},
        {"id,size\n1,99999999999999999999\n", "is too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memfit_error err;
        assert_int_equal(read_all(cases[i].text, strlen(cases[i].text), &err), MEMFIT_DAMAGED);
        if (!strstr(err.message, cases[i].message))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].message, err.message);
    }
    memfit_error err;
    assert_int_equal(read_all("id,size\n1,\0002\n", 14, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "zero byte"));
}

static void rows_are_bounded(void **state)
{
    (void)state;
    memfit_error err;
    size_t n = 100000;
    char *text = malloc(n);
    memset(text, '7', n);
    memcpy(text, "size\n", 5);
    assert_int_equal(read_all(text, n, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "line 2: longer than"));
    text[5] = '"';
    assert_int_equal(read_all(text, n, &err), MEMFIT_DAMAGED);
    for (size_t i = 0; i < n; i++)
        text[i] = ',';
    assert_int_equal(read_all(text, n, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "more than 32 columns"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_columns_are_read),
        cmocka_unit_test(whole_numbers_are_read),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(rows_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
