/* test_chart.c: areas and bars: exact pictures in small, widths that hold in general. */
#include "test.h"

#include "base/chart.h"

static void area_in_ascii(void **state)
{
    (void)state;
    char text[2048];
    mf_text out;
    mf_text_init(&out, text, sizeof text);
    uint64_t filled[] = {0, 512, 1024, 2048}, outline[] = {0, 1024, 2048, 2048};
    mf_chart_area area = {.filled = filled, .outline = outline, .count = 4, .left = "0 s", .right = "1 s"};
    mf_chart_options o = {.columns = 32, .rows = 4};
    mf_chart_draw_area(&out, &area, &o);
    assert_string_equal(text, "  2.00 KiB |          .....#####\n"
                              "           |          .....#####\n"
                              "  1.00 KiB |     .....##########\n"
                              "           |     ###############\n"
                              "       0 B +--------------------\n"
                              "            0 s              1 s\n");
}

static void area_in_blocks(void **state)
{
    (void)state;
    char text[4096];
    mf_text out;
    mf_text_init(&out, text, sizeof text);
    uint64_t filled[20];
    for (unsigned i = 0; i < 20; i++)
        filled[i] = i;
    mf_chart_area area = {.filled = filled, .count = 20, .line_bytes = 32};
    mf_chart_options o = {.columns = 32, .rows = 2, .utf8 = true};
    mf_chart_draw_area(&out, &area, &o);
    assert_string_equal(text, "      32 B │──────────────────▁▁\n"
                              "           │  ▁▁▂▂▃▃▄▄▅▅▆▆▇▇████\n"
                              "       0 B └────────────────────\n"
                              "                                \n");
}

static void bars_are_cut_at_their_sum(void **state)
{
    (void)state;
    char text[2048];
    mf_text out;
    mf_text_init(&out, text, sizeof text);
    mf_chart_bar bars[] = {{"activations", {512, 256, 256}, 3}, {"w", {1}, 1}, {"none", {0}, 1}};
    mf_chart_options o = {.columns = 40};
    mf_chart_draw_bars(&out, bars, 3, 1024, &o);
    assert_string_equal(text, "activations ########====+++++   1.00 KiB\n"
                              "w           |                        1 B\n"
                              "none                                 0 B\n");
}

/* Whatever is drawn, no line is wider than asked, and the text is not cut in a buffer of a known size. */
static void pictures_stay_inside_their_width(void **state)
{
    (void)state;
    static char text[1 << 16];
    for (unsigned columns = 0; columns < 260; columns += 7)
        for (int utf8 = 0; utf8 < 2; utf8++)
            for (unsigned count = 0; count < 300; count += 37) {
                mf_chart_options o = {.columns = columns, .rows = columns % 50, .utf8 = utf8};
                uint64_t filled[300], outline[300];
                for (unsigned i = 0; i < 300; i++) {
                    filled[i] = i % 3 ? UINT64_MAX / (i + 1) : 0;
                    outline[i] = filled[i] | 1;
                }
                mf_text out;
                mf_text_init(&out, text, sizeof text);
                mf_chart_area area = {filled, outline, count, columns % 2 ? 1ull << 63 : 0, "here", "a longer end"};
                mf_chart_draw_area(&out, &area, &o);
                mf_chart_bar bars[] = {
                    {"a label that is far longer than any third of a terminal line would allow", {1, 2, 3}, 3},
                    {"\xc3\xa4\xc3\xb6", {UINT64_MAX}, 1}};
                mf_chart_draw_bars(&out, bars, 2, count, &o);
                assert_true(out.length < sizeof text);
                unsigned most = columns ? columns : 80;
                most = most < MF_CHART_LEAST_COLUMNS ? MF_CHART_LEAST_COLUMNS : most;
                for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
                    assert_true(mf_text_width(line) <= most);
            }
}

static void utf8_is_read_from_the_environment(void **state)
{
    (void)state;
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    unsetenv("LANG");
    assert_false(mf_chart_utf8());
    setenv("LANG", "de_DE.UTF-8", 1);
    assert_true(mf_chart_utf8());
    setenv("LC_CTYPE", "C.utf8", 1);
    assert_true(mf_chart_utf8());
    setenv("LC_ALL", "C", 1);
    assert_false(mf_chart_utf8());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(area_in_ascii),
        cmocka_unit_test(area_in_blocks),
        cmocka_unit_test(bars_are_cut_at_their_sum),
        cmocka_unit_test(pictures_stay_inside_their_width),
        cmocka_unit_test(utf8_is_read_from_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
