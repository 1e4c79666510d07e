/* test_base.c: sizes, errors, JSON, arenas. */
#include "test.h"

#include "base/fold.h"
#include "base/sort.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"

#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"4096", 4096},       {"512MiB", 512ull << 20},
                {"8GiB", 8ull << 30}, {"1.5GB", 1500000000},
                {"80%", 800},         {"0", 0},
                {"1 KiB", 1024},      {"2gib", 2ull << 30},
                {"1T", 1ull << 40},   {"100%", 1000},
                {"12.5%", 125},       {"9007199254740993", 9007199254740993ull}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 1;
        memfit_error err;
        assert_ok(memfit_size_parse(good[i].text, 1000, &bytes, &err), err);
        assert_int_equal(bytes, good[i].bytes);
    }
    static const char *const bad[] = {"",        "x",   "-5",  "5 parsecs", "101%",  "1.5",
                                      "1e99GiB", "nan", "inf", "0x10",      "5GiBs", "99999999TiB"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 7;
        memfit_error err;
        assert_int_equal(memfit_size_parse(bad[i], 1000, &bytes, &err), MEMFIT_INVALID);
        assert_int_equal(bytes, 7);
        assert_true(err.message[0]);
    }
    uint64_t bytes;
    assert_int_equal(memfit_size_parse("50%", 0, &bytes, NULL), MEMFIT_INVALID);
}

static void sizes_are_written(void **state)
{
    (void)state;
    char t[24];
    assert_string_equal(memfit_size_format(0, t, sizeof t), "0 B");
    assert_string_equal(memfit_size_format(1023, t, sizeof t), "1023 B");
    assert_string_equal(memfit_size_format(1536, t, sizeof t), "1.50 KiB");
    assert_string_equal(memfit_size_format(UINT64_MAX, t, sizeof t), "16.00 EiB");
    assert_string_equal(mf_format_need(1536, t, sizeof t), "1.50 KiB");
    assert_string_equal(mf_format_need(1537, t, sizeof t), "1.51 KiB");
    for (uint64_t n = 1000, back; n < (uint64_t)1 << 50; n += n / 97 + 1) { /* as written it suffices */
        assert_int_equal(memfit_size_parse(mf_format_need(n, t, sizeof t), 0, &back, NULL), MEMFIT_OK);
        assert_true(back >= n && back - n <= n / 50);
    }
    assert_string_equal(mf_format_count(1234567, t, sizeof t), "1,234,567");
}

static void errors_carry_message_and_hint(void **state)
{
    (void)state;
    memfit_error err;
    assert_int_equal(mf_fail(&err, MEMFIT_INVALID, "no %s\ndo %d", "good", 7), MEMFIT_INVALID);
    assert_string_equal(err.message, "no good");
    assert_string_equal(err.hint, "do 7");
    assert_int_equal(mf_error_prefix(&err, err.code, "file %s", "x"), err.code);
    assert_int_equal(mf_error_prefix(NULL, MEMFIT_DAMAGED, "file %s", "x"), MEMFIT_DAMAGED);
    assert_string_equal(err.message, "file x: no good");
    assert_int_equal(mf_fail(NULL, MEMFIT_IO, "nothing to fill"), MEMFIT_IO);
    assert_string_equal(memfit_status_name(MEMFIT_OUT_OF_MEMORY), "OUT_OF_MEMORY");
    assert_string_equal(memfit_status_name((memfit_status)-99), "?");
}

static void json_round_trip(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [1, -2.5, 1e3, true, false, null, \"x\\u00e9\\n\\ud83d\\ude00\"], \"b\": "
                               "{\"c\": NaN, \"d\": -Infinity}}";
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    memfit_error err;
    mf_json *root;
    assert_ok(mf_json_parse(&arena, text, strlen(text), &root, &err), err);
    const mf_json *a = mf_json_get(root, "a");
    assert_int_equal(a->count, 7);
    assert_int_equal(mf_json_integer(mf_json_at(a, 0), 0), 1);
    assert_true(mf_json_number(mf_json_at(a, 1), 0) == -2.5);
    assert_true(mf_json_bool(mf_json_at(a, 3), false));
    assert_true(mf_json_is_null(mf_json_at(a, 5)));
    assert_string_equal(mf_json_string(mf_json_at(a, 6), ""), "x\xC3\xA9\n\xF0\x9F\x98\x80");
    assert_true(isnan(mf_json_get_number(mf_json_get(root, "b"), "c", 0)));
    assert_true(mf_json_get_number(mf_json_get(root, "b"), "d", 0) == -INFINITY);
    assert_null(mf_json_get(mf_json_get(mf_json_get(root, "x"), "y"), "z"));
    size_t n;
    char *out = mf_json_print(&arena, root, &n);
    assert_string_equal(out, "{\"a\": [1, -2.5, 1000.0, true, false, null, \"x\\u00e9\\n\\ud83d\\ude00\"], \"b\": "
                             "{\"c\": NaN, \"d\": -Infinity}}");
    mf_arena_destroy(&arena);
}

static void json_numbers_are_exact(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t integer; /* 7: none */
        bool is_integer;
    } cases[] = {{"9223372036854775807", INT64_MAX, true},
                 {"-9223372036854775808", INT64_MIN, true},
                 {"1234567890123456789", 1234567890123456789, true},
                 {"9223372036854775808", 7, false},
                 {"3.0", 3, false},
                 {"1e6", 1000000, false},
                 {"3.5", 7, false},
                 {"1e300", 7, false},
                 {"Infinity", 7, false},
                 {"-Infinity", 7, false},
                 {"NaN", 7, false},
                 {"true", 7, false}};
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf_json *root;
        memfit_error err;
        assert_ok(mf_json_parse(&arena, cases[i].text, strlen(cases[i].text), &root, &err), err);
        assert_int_equal(mf_json_integer(root, 7), cases[i].integer);
        assert_int_equal(root->is_integer, cases[i].is_integer);
        if (cases[i].is_integer)
            assert_string_equal(mf_json_print(&arena, root, NULL), cases[i].text);
    }
    mf_arena_destroy(&arena);
}

/* Makes a locale whose decimal point is a comma and puts it in force; false where the C library wants none of it. */
static bool set_comma(char *folder)
{
    /* glibc's compiled LC_NUMERIC: magic, number of items, their offsets, the items. */
    static const struct {
        uint32_t magic, count, at[6];
        char point[4], separator[4], grouping[4];
        uint32_t wide_point, wide_separator;
        char codeset[8];
    } file = {0x20031115 ^ LC_NUMERIC, 6, {32, 36, 40, 44, 48, 52}, ",", "", "\177", ',', 0, "UTF-8"};
    char path[96];
    snprintf(path, sizeof path, "%s/comma", folder);
    memfit_error err;
    assert_ok(mf_os_make_folder(path, &err), err);
    snprintf(path, sizeof path, "%s/comma/LC_NUMERIC", folder);
    FILE *f = fopen(path, "wb");
    assert_int_equal(fwrite(&file, sizeof file, 1, f), 1);
    fclose(f);
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_NUMERIC, "comma") && *localeconv()->decimal_point == ',';
}

static void files_do_not_depend_on_the_locale(void **state)
{
    (void)state;
    char folder[] = "/tmp/memfit-base-XXXXXX", text[64], command[96];
    assert_non_null(mkdtemp(folder));
    bool comma = set_comma(folder);
    if (comma) {
        mf_arena arena;
        mf_arena_init(&arena, NULL);
        memfit_error err;
        mf_json *root;
        assert_ok(mf_json_parse(&arena, "[0.001, 1e-3]", 13, &root, &err), err);
        assert_true(mf_json_number(mf_json_at(root, 0), 0) == 0.001 && mf_json_number(mf_json_at(root, 1), 0) == 0.001);
        assert_string_equal(mf_json_print(&arena, root, NULL), "[0.001, 0.001]");
        uint64_t bytes;
        assert_ok(memfit_size_parse("1.5GB", 0, &bytes, &err), err);
        assert_int_equal(bytes, 1500000000);
        mf_text_put_double(text, sizeof text, 9, 0.5);
        assert_string_equal(text, "0.5");
        assert_int_equal(snprintf(text, sizeof text, "%g", 0.5), 3);
        assert_string_equal(text, "0,5"); /* and the program's own locale is as it was */
        mf_arena_destroy(&arena);
    }
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    if (!comma)
        skip();
}

static void arenas_keep_their_limit(void **state)
{
    (void)state;
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    arena.limit_bytes = 10000;
    assert_non_null(mf_arena_alloc(&arena, 100));
    assert_null(mf_arena_alloc(&arena, 9000)); /* a first block of 4096 is there already */
    assert_non_null(mf_arena_alloc(&arena, 5000));
    while (mf_arena_alloc(&arena, 500))
        assert_true(arena.bytes <= arena.limit_bytes);
    assert_true(arena.bytes <= arena.limit_bytes);
    mf_arena_destroy(&arena);
}

/* A host hears back the sizes it was asked for, zero included. */
static void hosts_hear_the_same_sizes(void **state)
{
    (void)state;
    mf_fault_host host;
    mf_fault_host_init(&host, NULL, 0, false);
    void *p = mf_host_alloc(&host.host, 0);
    p = mf_host_resize(&host.host, p, 0, 100);
    p = mf_host_resize(&host.host, p, 100, 0);
    assert_int_equal(host.live_count, 1);
    mf_host_free(&host.host, p, 0);
    assert_int_equal(host.live_bytes, 0);
    assert_int_equal(host.live_count, 0);
}

static void json_errors_name_the_place(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "{",        "[1,]", "{\"a\"}",   "\"x",
                                      "[1 2]", "01x",      "tru",  "[\"\\q\"]", "[\"\\u0000\"]",
                                      "1 2",   "\"\x80\"", "-",    "1.",        "1e"};
    mf_arena arena;
    mf_arena_init(&arena, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memfit_error err;
        mf_json *root;
        assert_int_equal(mf_json_parse(&arena, bad[i], strlen(bad[i]), &root, &err), MEMFIT_DAMAGED);
        assert_non_null(strstr(err.message, "line 1"));
    }
    char deep[2 * MF_JSON_MOST_DEPTH + 2];
    memset(deep, '[', MF_JSON_MOST_DEPTH + 1);
    memset(deep + MF_JSON_MOST_DEPTH + 1, ']', MF_JSON_MOST_DEPTH + 1);
    mf_json *root;
    assert_int_equal(mf_json_parse(&arena, deep + 1, 2 * MF_JSON_MOST_DEPTH, &root, NULL), MEMFIT_OK);
    memfit_error err;
    assert_int_equal(mf_json_parse(&arena, deep, sizeof deep, &root, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "nested too deeply"));
    mf_arena_destroy(&arena);
}

static void arenas_survive_failing_hosts(void **state)
{
    (void)state;
    static const char text[] = "{\"layers\": [{\"name\": \"a\"}, {\"name\": \"b\"}]}";
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, for_ever);
            mf_arena arena;
            mf_arena_init(&arena, &fault.host);
            mf_json *root;
            memfit_status st = mf_json_parse(&arena, text, strlen(text), &root, NULL);
            mf_arena_destroy(&arena);
            assert_int_equal(fault.live_bytes, 0);
            assert_int_equal(fault.live_count, 0);
            if (st == MEMFIT_OK)
                break;
            assert_int_equal(st, MEMFIT_NO_HOST_MEMORY);
        }
}

static void files_are_written_whole(void **state)
{
    (void)state;
    char path[] = "/tmp/memfit-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    mf_outfile out;
    memfit_error err;
    assert_ok(mf_os_out_open(&out, path, &err), err);
    fputs("hello", out.file);
    assert_ok(mf_os_out_commit(&out, &err), err);
    mf_mapping map;
    assert_ok(mf_os_map_file(path, &map, &err), err);
    assert_int_equal(map.bytes, 5);
    mf_os_unmap_file(&map);
    assert_int_equal(mf_os_map_file("/tmp", &map, &err), MEMFIT_DAMAGED);
    remove(path);
    assert_int_equal(mf_os_map_file(path, &map, &err), MEMFIT_NOT_FOUND);
    assert_int_equal(mf_os_out_open(&out, "/nonexistent/folder/file", &err), MEMFIT_IO);
}

static void large_memory_is_reserved_and_spooled(void **state)
{
    (void)state;
    memfit_error err = {0};
    unsigned char *p;
    uint64_t mapped = 0, page = mf_os_page_bytes();
    assert_ok(mf_os_reserve(3 * page + 1, &p, &mapped, &err), err);
    assert_int_equal(mapped, 5 * page); /* rounded up, and the page that traps */
    mf_os_populate(p, 4 * page);
    assert_int_equal(p[4 * page - 1], 0);
    p[4 * page - 1] = 7;
    mf_os_unreserve(p, mapped);
    uint64_t large = 2 << 20,
             bytes = 3 * large + 5 * page; /* begins where a large page does, ends where it was asked to */
    assert_ok(mf_os_reserve(bytes, &p, &mapped, &err), err);
    assert_int_equal(mapped, bytes + page);
    assert_int_equal((uintptr_t)p % large, 0);
    mf_os_populate(p, bytes);
    p[0] = p[bytes - 1] = 7;
    mf_os_unreserve(p, mapped);
    assert_int_equal(mf_os_reserve(1ull << 60, &p, &mapped, &err), MEMFIT_OUT_OF_MEMORY);

    assert_ok(mf_os_spool_map(100000, &p, &err), err);
    memset(p, 5, 100000);
    assert_int_equal(p[99999], 5);
    mf_os_spool_unmap(p, 100000);
    assert_ok(mf_os_spool_map(0, &p, &err), err);
    mf_os_spool_unmap(p, 0);
}

static void small_files_and_limits_are_read(void **state)
{
    (void)state;
    char text[16];
    memfit_error err = {0};
    assert_true(mf_os_read_text("/proc/self/stat", text, sizeof text)); /* longer than the buffer: its begin */
    assert_int_equal(text[15], 0);
    assert_false(mf_os_read_text("/nonexistent", text, sizeof text));
    assert_false(mf_os_read_text("/dev/null", text, sizeof text));
    assert_int_equal(mf_os_file_bytes("/nonexistent"), 0);
    assert_ok(mf_os_make_folder("/tmp", &err), err); /* there already */
    assert_int_equal(mf_os_make_folder("/nonexistent/folder", &err), MEMFIT_IO);
    assert_true(mf_os_available_memory() > 0 && mf_os_soft_limit() > 0);
    assert_true(mf_os_counter_error_bytes() < 1ull << 30);
    assert_true(mf_os_unix_time() > 1.6e9);
    mf_os_host_name(text, sizeof text);
    assert_true(text[0] && strlen(text) < sizeof text);
}

static void a_limited_host_keeps_its_limit(void **state)
{
    (void)state;
    mf_limit_host limit;
    mf_limit_host_init(&limit, NULL, 1000);
    void *a = mf_host_alloc(&limit.host, 400), *b = mf_host_alloc(&limit.host, 400);
    assert_true(a && b);
    assert_null(mf_host_alloc(&limit.host, 400));
    assert_true(limit.refused_bytes >= 400 && limit.refused_bytes < 500);
    assert_null(mf_host_resize(&limit.host, a, 400, 500)); /* both count while bytes are moved */
    assert_null(mf_host_alloc(&limit.host, SIZE_MAX - 4));
    mf_host_free(&limit.host, b, 400);
    assert_non_null(a = mf_host_resize(&limit.host, a, 400, 500));
    mf_host_free(&limit.host, a, 500);
    assert_int_equal(limit.live_bytes, 0);
    assert_true(limit.peak_bytes >= 800 && limit.peak_bytes <= 1000);
}

static uint64_t process_holds;
static uint64_t sample_process(void)
{
    return process_holds;
}

/* What the process holds beside the live bytes counts: what it held before, and what holes in the heap add later. */
static void a_watching_host_keeps_the_process_within_its_limit(void **state)
{
    (void)state;
    enum { PIECE = 100 << 10 };
    mf_limit_host limit;
    mf_limit_host_init(&limit, NULL, UINT64_MAX);
    process_holds = 1 << 20;
    mf_limit_host_watch(&limit, (1 << 20) + 3 * PIECE + 1000, sample_process);
    void *a = mf_host_alloc(&limit.host, PIECE), *b = mf_host_alloc(&limit.host, PIECE);
    assert_true(a && b); /* untouched pages are not in the sample: what was handed out counts nevertheless */
    assert_null(mf_host_alloc(&limit.host, 2 * PIECE));
    assert_true(limit.refused_bytes >= 2 * PIECE);
    process_holds = (1 << 20) + 3 * PIECE; /* one of them is a hole */
    assert_null(mf_host_alloc(&limit.host, PIECE));
    process_holds = (1 << 20) + 2 * PIECE; /* it was given back */
    void *c = mf_host_alloc(&limit.host, PIECE);
    assert_non_null(c);
    mf_limit_host_watch(&limit, UINT64_MAX, sample_process);
    void *d = mf_host_alloc(&limit.host, 10 * PIECE);
    assert_non_null(d);
    assert_int_equal(limit.refused_bytes, 0);
    mf_host_free(&limit.host, a, PIECE);
    mf_host_free(&limit.host, b, PIECE);
    mf_host_free(&limit.host, c, PIECE);
    mf_host_free(&limit.host, d, 10 * PIECE);
    assert_int_equal(limit.live_bytes, 0);
}

/* The formatter is printf, but for what strings hold. */
static void visible_text_is_formatted_as_printf_does(void **state)
{
    (void)state;
    char want[256], got[256];
#define SAME(...)                                                                                                      \
    do {                                                                                                               \
        int n = snprintf(want, sizeof want, __VA_ARGS__);                                                              \
        assert_int_equal(mf_format(got, sizeof got, __VA_ARGS__), n);                                                  \
        assert_string_equal(got, want);                                                                                \
    } while (0)
    SAME("plain %% text");
    SAME("%d %i %5d|%-5d|%05d|%+d|%.3d", -1, 2, 3, 4, 5, 6, 7);
    SAME("%u %x %#X %o %hu %hhu", 4000000000u, 255u, 255u, 8u, (unsigned short)70, (unsigned char)200);
    SAME("%ld %lu %lld %llu %zu %jd %td", -1L, ULONG_MAX, LLONG_MIN, ULLONG_MAX, SIZE_MAX, (intmax_t)-5, (ptrdiff_t)-6);
    SAME("%" PRIx64 " %016llx %08" PRIx32, UINT64_MAX, 0x1234ull, (uint32_t)77);
    SAME("%f %.2f %10.4f|%-10.1f|%g %.17g %e %+.4e %.0f", 1.5, 2.345, 3.0, 4.0, 1e-9, 0.1, 1e300, -2.0, 0.5);
    SAME("%s|%10s|%-10s|%.3s|%10.3s|%.*s|%*s|%-*s", "abc", "def", "ghi", "jklmn", "opqrs", 2, "tuvw", 6, "xy", 6, "z");
    SAME("%c%c%5c", 'a', 'b', 'c');
    SAME("%*d|%-*d|%.*f", 6, 1, 6, 2, 3, 1.23456);
    SAME("%s", "K\xc3\xa4se \xe2\x82\xac \xf0\x9f\x98\x80");
#undef SAME
    char small[8];
    assert_int_equal(mf_format(small, sizeof small, "%s and more", "twelve"), 15);
    assert_string_equal(small, "twelve ");
    assert_int_equal(mf_format(NULL, 0, "%d", 1234), 4);
}

static void strings_cannot_control_a_terminal(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"a\x1b[31mb", "a\\x1b[31mb"},
        {"a\nb\tc\rd\x7f\x01", "a\\nb\\tc\\rd\\x7f\\x01"},
        {"a\xc2\x9b"
         "31m",
         "a\\u009b31m"},                                               /* C1, as UTF-8 */
        {"a\x9b", "a\\x9b"},                                           /* and as a byte */
        {"\xe2\x80\xae\xe2\x81\xa7\xd8\x9c", "\\u202e\\u2067\\u061c"}, /* directions */
        {"\xe2\x80\xa8", "\\u2028"},
        {"\xc0\x80\xed\xa0\x80\xf5\x80\x80\x80", "\\xc0\\x80\\xed\\xa0\\x80\\xf5\\x80\\x80\\x80"}, /* no UTF-8 */
        {"\xe2\x82", "\\xe2\\x82"},                                                                /* cut off */
        {"\\n stays", "\\n stays"},
    };
    char got[128], again[128];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mf_format(got, sizeof got, "%s", cases[i].text), strlen(cases[i].shown));
        assert_string_equal(got, cases[i].shown);
        mf_format(again, sizeof again, "%s", got);
        assert_string_equal(again, got);
    }
    mf_format(got, sizeof got, "%c|%5s|%-5s|", 27, "\n", "\n");
    assert_string_equal(got, "\\x1b|   \\n|\\n   |");
    mf_format(got, sizeof got, "%.4s|%.5s", "K\xc3\xa4\xe2\x82\xac", "K\xc3\xa4\xe2\x82\xac"); /* no half characters */
    assert_string_equal(got, "K\xc3\xa4|K\xc3\xa4");

    memfit_error err;
    mf_fail(&err, MEMFIT_DAMAGED, "layer %s\ndo %s", "one\nFORGED", "two\n\x1b");
    assert_string_equal(err.message, "layer one\\nFORGED");
    assert_string_equal(err.hint, "do two\\n\\x1b");
    mf_error_prefix(&err, MEMFIT_DAMAGED, "%s", "x\n");
    assert_string_equal(err.message, "x\\n: layer one\\nFORGED");
}

static bool keep_folded(void *ctx, const char *text, size_t bytes)
{
    strncat(ctx, text, bytes);
    return true;
}

static void is_folded(unsigned columns, const char *line, const char *wanted)
{
    char got[2048] = "";
    assert_true(mf_fold_line(line, strlen(line), columns, keep_folded, got));
    assert_string_equal(got, wanted);
}

static void long_lines_break_between_words(void **state)
{
    (void)state;
    is_folded(0, "a line of any length", "a line of any length\n");
    is_folded(20, "exactly twenty cells", "exactly twenty cells\n");
    is_folded(19, "exactly twenty cells", "exactly twenty\n  cells\n");
    is_folded(20, "", "\n");
    is_folded(30, "  --epochs N  passes over the data (1)", "  --epochs N  passes over the\n              data (1)\n");
    is_folded(20, "a word_that_is_longer_than_the_line stays", "a\nword_that_is_longer_than_the_line\nstays\n");
    is_folded(20, "  12. an item of a list", "  12. an item of a\n      list\n");
    is_folded(24, "  fits  words that_need_more_room end", "  fits  words\n    that_need_more_room\n    end\n");
    is_folded(10, "\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88 cells 12",
              "\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88\xe2\x96\x88 cells\n  12\n");
}

/* Any text: no line too long unless it is one word, no word lost or broken. */
static void folding_keeps_words(void **state)
{
    (void)state;
    unsigned seed = 1;
    for (int round = 0; round < 20000; round++) {
        char line[200], got[4096] = "";
        size_t n = 0;
        unsigned columns = 20 + (seed = seed * 1103515245 + 12345) / 65536 % 60;
        while (n < sizeof line - 1 && (seed = seed * 1103515245 + 12345) / 65536 % 150)
            line[n++] = "    ab"[(seed = seed * 1103515245 + 12345) / 65536 % (round % 3 ? 6 : 5)];
        line[n] = 0;
        assert_true(mf_fold_line(line, n, columns, keep_folded, got));
        char *words[2] = {line, got}, *rest[2], *next[2];
        for (char *l = got, *end; (end = strchr(l, '\n')); l = end + 1)
            assert_true((size_t)(end - l) <= columns ||
                        !memchr(l + strspn(l, " "), ' ', (size_t)(end - l) - strspn(l, " ")));
        do {
            for (int k = 0; k < 2; k++, words[k - 1] = NULL)
                next[k] = strtok_r(words[k], " \n", &rest[k]);
            assert_true(!next[0] == !next[1] && (!next[0] || strcmp(next[0], next[1]) == 0));
        } while (next[0]);
    }
}

static bool int_below(const void *a, const void *b)
{
    return *(const int *)a < *(const int *)b;
}

/* Every arrangement of up to 7 numbers, equal ones among them. */
static void sorts_in_place(void **state)
{
    (void)state;
    for (int count = 0; count <= 7; count++) {
        int arrangements = 1;
        for (int i = 0; i < count; i++)
            arrangements *= 4;
        for (int k = 0; k < arrangements; k++) {
            int items[8], seen[4] = {0}, rest = k;
            for (int i = 0; i < count; i++, rest /= 4)
                seen[items[i] = rest % 4]++;
            items[count] = -7; /* not its own */
            mf_sort_in_place(items, (size_t)count, sizeof *items, int_below);
            for (int i = 0; i < count; i++) {
                seen[items[i]]--;
                assert_true(i == 0 || items[i - 1] <= items[i]);
            }
            assert_true(!seen[0] && !seen[1] && !seen[2] && !seen[3] && items[count] == -7);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sorts_in_place),
        cmocka_unit_test(long_lines_break_between_words),
        cmocka_unit_test(folding_keeps_words),
        cmocka_unit_test(visible_text_is_formatted_as_printf_does),
        cmocka_unit_test(strings_cannot_control_a_terminal),
        cmocka_unit_test(a_limited_host_keeps_its_limit),
        cmocka_unit_test(a_watching_host_keeps_the_process_within_its_limit),
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(sizes_are_written),
        cmocka_unit_test(errors_carry_message_and_hint),
        cmocka_unit_test(json_round_trip),
        cmocka_unit_test(json_numbers_are_exact),
        cmocka_unit_test(files_do_not_depend_on_the_locale),
        cmocka_unit_test(hosts_hear_the_same_sizes),
        cmocka_unit_test(arenas_keep_their_limit),
        cmocka_unit_test(json_errors_name_the_place),
        cmocka_unit_test(arenas_survive_failing_hosts),
        cmocka_unit_test(files_are_written_whole),
        cmocka_unit_test(large_memory_is_reserved_and_spooled),
        cmocka_unit_test(small_files_and_limits_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
