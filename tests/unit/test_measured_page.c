/* test_measured_page.c: readings of a run in bounded room, none of the highest lost; the section in a page. */
#include "test.h"

#include "answer/measured_page.h"

static mf_measured_sample reading(uint64_t i, uint64_t bytes)
{
    return (mf_measured_sample){.seconds = (double)i * 0.5, .step = (int64_t)i, .bytes = bytes, .planned_bytes = 900};
}

/* However many come: the highest is there, times rise, the first is the first, what was said of epochs is kept. */
static void the_highest_is_kept(void **ctx)
{
    static mf_measured m;
    (void)ctx;
    for (uint64_t count = 1; count < 5000; count += 1 + count / 7) {
        const uint64_t high = count * 2 / 3, ended = count / 3;
        mf_measured_init(&m);
        for (uint64_t i = 0; i < count; i++) {
            mf_measured_sample s = reading(i, i == high ? 1000 : 10 + i % 7);
            s.epoch_end = i == ended;
            mf_measured_add(&m, &s);
        }
        uint64_t most = 0, epochs = 0;
        assert_in_range(m.count, count < MF_MEASURED_SAMPLES ? count : MF_MEASURED_SAMPLES / 2, MF_MEASURED_SAMPLES);
        for (uint32_t i = 0; i < m.count; i++) {
            most = m.samples[i].bytes > most ? m.samples[i].bytes : most;
            epochs += m.samples[i].epoch_end;
            assert_true(i == 0 || m.samples[i].seconds > m.samples[i - 1].seconds);
        }
        assert_int_equal(most, 1000);
        assert_int_equal(epochs, 1);
        assert_true(m.samples[0].seconds == 0);
    }
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static char *read_text(const char *path)
{
    static char text[200000];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

/* The section is replaced as often as one likes; what stands around it stays; names are text. */
static void a_section_is_replaced(void **ctx)
{
    static mf_measured m;
    const char *path = test_path("page.html");
    memfit_error err;
    (void)ctx;
    mf_measured_init(&m);
    for (uint64_t i = 0; i < 3; i++)
        mf_measured_add(&m, &(mf_measured_sample){.seconds = (double)i, .bytes = 500 + i, .planned_bytes = 900});
    write_text(path, "before\n" MF_MEASURED_BEGIN MF_MEASURED_END "after\n");
    mf_measured_run run = {.title = "One", .message = "<b>&\"\x1b[31m\nthe second line", .allocations = -1};
    assert_ok(mf_measured_write(path, &(mf_measured){0}, &run, &err), err);
    char *text = read_text(path);
    assert_int_equal(strncmp(text, "before\n" MF_MEASURED_BEGIN, 7 + strlen(MF_MEASURED_BEGIN)), 0);
    assert_non_null(strstr(text, "<h2>One</h2>"));
    assert_non_null(strstr(text, "&lt;b&gt;&amp;&quot;"));
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "<p>the second line</p>"));
    assert_null(strstr(text, "<svg"));
    run = (mf_measured_run){.title = "Two", .steps = 3, .measured_bytes = 502, .planned_bytes = 900, .allocations = 0};
    assert_ok(mf_measured_write(path, &m, &run, &err), err);
    text = read_text(path);
    assert_null(strstr(text, "One"));
    assert_non_null(strstr(text, "502 B"));
    assert_non_null(strstr(text, "398 B below"));
    assert_non_null(strstr(text, "<svg"));
    assert_string_equal(strstr(text, MF_MEASURED_END), MF_MEASURED_END "after\n");
}

/* A file that is something else by now stays as it is. */
static void another_file_stays(void **ctx)
{
    static const char *const texts[] = {"", "a page\n", MF_MEASURED_BEGIN "cut", MF_MEASURED_END MF_MEASURED_BEGIN};
    const char *path = test_path("other.html");
    memfit_error err;
    (void)ctx;
    mf_measured_run run = {.title = "One"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text(path, texts[i]);
        assert_int_equal(mf_measured_write(path, &(mf_measured){0}, &run, &err), MEMFIT_NOT_FOUND);
        assert_string_equal(read_text(path), texts[i]);
    }
    assert_int_equal(mf_measured_write(test_path("none.html"), &(mf_measured){0}, &run, &err), MEMFIT_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_highest_is_kept), cmocka_unit_test(a_section_is_replaced),
                                       cmocka_unit_test(another_file_stays)};
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
