/*
 * test_cards.c: the table of cards against its sources. docs/cards.md is the page people check a figure on, so it is
 * read here as data: every card has its row, every row its card, and every figure that a formula gives is that figure.
 */
#include "test.h"

#include "base/memory.h"
#include "base/os.h"
#include "plan/cards.h"

#include <math.h>

enum { COLUMNS = 14 };
enum { NAME, MEMORY, BASIS, BUS, RATE, BANDWIDTH, SM, CORES, BOOST, FP32, RULE, HALF, FIXED, SOURCE };

/* One row of the page: its cells, trimmed, in place. False if the line is no row with COLUMNS cells. */
static bool cells_of(char *line, char *cell[COLUMNS])
{
    if (line[0] != '|')
        return false;
    int n = 0;
    for (char *p = line + 1; *p && n < COLUMNS; n++) {
        char *end = strchr(p, '|');
        if (!end)
            return false;
        *end = '\0';
        while (*p == ' ')
            p++;
        for (char *back = end - 1; back >= p && *back == ' '; back--)
            *back = '\0';
        cell[n] = p;
        p = end + 1;
    }
    return n == COLUMNS;
}

static void assert_near(const char *card, const char *what, double have, double want, double share)
{
    if (fabs(have - want) > share * want)
        fail_msg("%s: %s is %g, its formula gives %g", card, what, have, want);
}

static double reserve_of(uint32_t capability)
{
    switch (capability) {
    case 80:
        return 620;
    case 86:
        return 320;
    case 89:
        return 480;
    case 90:
        return 500;
    case 100:
    case 120:
        return 490;
    default:
        return 240;
    }
}

static void check_fixed(const mf_card *card, double sm, const char *cell)
{
    bool large = card->capability == 80 || card->capability == 90 || card->capability == 100;
    double rule = reserve_of(card->capability) + (large ? 4 : 3) * sm + 12;
    if (strstr(cell, "estimate"))
        assert_near(card->name, "fixed cost", card->fixed_mib, rule, 6 / rule);
    else
        assert_non_null(strstr(cell, "measured"));
}

static void check_half(const mf_card *card, char *cell[COLUMNS])
{
    const char *rule = cell[RULE];
    double fp32 = 2 * atof(cell[CORES]) * atof(cell[BOOST]) / 1e6;
    if (strcmp(rule, "as FP32") == 0)
        assert_near(card->name, "half", card->fp16_tflops, fp32, 0.03);
    else if (strcmp(rule, "2 x FP32") == 0)
        assert_near(card->name, "half", card->fp16_tflops, 2 * fp32, 0.03);
    else if (atof(rule) > 0)
        assert_near(card->name, "half", card->fp16_tflops, atof(cell[SM]) * atof(rule) * atof(cell[BOOST]) / 1e6, 0.01);
    else
        assert_true(strncmp(rule, "sheet ", 6) == 0 || strcmp(rule, "not checked") == 0);
    assert_true(card->bf16_tflops == (card->capability >= 80 ? card->fp16_tflops : 0));
}

static void check_row(char *cell[COLUMNS])
{
    const mf_card *card = mf_card_find(cell[NAME]);
    if (!card || strcmp(card->name, cell[NAME]) != 0)
        fail_msg("docs/cards.md has a row for %s, the program has not", cell[NAME]);
    assert_int_equal(card->memory_mib, atoi(cell[MEMORY]));
    assert_true(strcmp(cell[BASIS], "listing") == 0 || strcmp(cell[BASIS], "size") == 0 ||
                strcmp(cell[BASIS], "not checked") == 0);
    if (strcmp(cell[BASIS], "size") == 0)
        assert_int_equal(card->memory_mib % 1024, 0);
    assert_near(card->name, "bandwidth", card->bandwidth_gbs, atof(cell[BANDWIDTH]), 1e-9);
    if (strcmp(cell[BUS], "-") != 0)
        assert_near(card->name, "bandwidth", card->bandwidth_gbs, atof(cell[BUS]) * atof(cell[RATE]) / 8, 0.01);
    assert_near(card->name, "fp32", card->fp32_tflops, atof(cell[FP32]), 1e-9);
    assert_near(card->name, "fp32", card->fp32_tflops, 2 * atof(cell[CORES]) * atof(cell[BOOST]) / 1e6, 0.03);
    double lanes = atof(cell[CORES]) / atof(cell[SM]);
    assert_true(lanes == 64 || lanes == 128);
    assert_near(card->name, "half", card->fp16_tflops, atof(cell[HALF]), 1e-9);
    check_half(card, cell);
    assert_int_equal(card->fixed_mib, atoi(cell[FIXED]));
    check_fixed(card, atof(cell[SM]), cell[FIXED]);
    if (!strstr(cell[SOURCE], "https://"))
        fail_msg("%s has no source", card->name);
}

static void test_every_card_has_its_source(void **state)
{
    (void)state;
    char path[1024];
    const char *source = getenv("MEMFIT_SOURCE");
    snprintf(path, sizeof path, "%s/docs/cards.md", source ? source : ".");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    static char line[4096];
    uint32_t rows = 0;
    bool seen[256] = {false};
    while (fgets(line, sizeof line, file)) {
        char *cell[COLUMNS];
        if (!cells_of(line, cell) || strcmp(cell[NAME], "card") == 0 || cell[NAME][0] == '-')
            continue;
        check_row(cell);
        const mf_card *card = mf_card_find(cell[NAME]);
        uint32_t i = 0;
        while (mf_card_at(i) != card)
            i++;
        assert_true(i < 256 && !seen[i]);
        seen[i] = true;
        rows++;
    }
    fclose(file);
    assert_int_equal(rows, mf_card_count());
}

static void test_cards_are_sane_and_found(void **state)
{
    (void)state;
    assert_true(mf_card_count() >= 40);
    for (uint32_t i = 0; i < mf_card_count(); i++) {
        const mf_card *card = mf_card_at(i);
        assert_ptr_equal(mf_card_find(card->name), card);
        assert_ptr_equal(mf_card_find(card->title), card);
        assert_true(card->memory_mib > 2 * card->fixed_mib && card->fixed_mib >= 200);
        assert_true(card->bandwidth_gbs > 50 && card->fp32_tflops > 1 && card->fp16_tflops >= card->fp32_tflops);
    }
    assert_null(mf_card_at(mf_card_count()));
    assert_null(mf_card_find("voodoo-2"));
    assert_null(mf_card_find(""));
    assert_string_equal(mf_card_nearest("rtx-3081"), "rtx-3080");
    assert_non_null(mf_card_find("RTX 3080"));
    assert_non_null(mf_card_find("tesla_t4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_card_has_its_source),
        cmocka_unit_test(test_cards_are_sane_and_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
