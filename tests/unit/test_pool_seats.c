/*
 * test_pool_seats.c: the blocks of a step, all of their lives known, packed (seats.c): close to what the fullest moment needs, no
 * two that live together on each other, and the same again.
 */
#include "stream_place.h"

#include "pool/repeat.h"
#include "pool/seats.h"

/* The blocks of 1 MiB and more of a step of a denoising network, as recorded on a card: 64 KiB units, and how many of these
 * requests it lives for. At its fullest moment the step has 1,053 pages in use; by size, area and life alone, without
 * regard to that moment, it takes 1,087. */
static const struct {
    uint32_t units, life;
} denoising[] = {
    {72, 167},   {72, 3},    {72, 2},     {72, 164},   {1152, 163}, {1152, 161}, {1152, 159}, {1152, 3},  {2306, 1},
    {1152, 152}, {1152, 6},  {1152, 149}, {1152, 147}, {1152, 3},   {2306, 1},   {1152, 140}, {288, 138}, {288, 136},
    {288, 134},  {576, 3},   {867, 1},    {576, 126},  {576, 6},    {576, 123},  {576, 121},  {576, 3},   {1254, 1},
    {576, 114},  {144, 112}, {144, 110},  {144, 108},  {144, 3},    {294, 1},    {144, 100},  {144, 6},   {144, 97},
    {144, 95},   {144, 3},   {294, 1},    {144, 36},   {144, 88},   {432, 2},    {432, 74},   {144, 73},  {144, 66},
    {144, 2},    {144, 29},  {576, 2},    {1152, 57},  {1152, 55},  {1152, 53},  {288, 3},    {1446, 1},  {288, 45},
    {288, 6},    {288, 42},  {288, 40},   {288, 3},    {578, 1},    {288, 16},   {1152, 2},   {2304, 31}, {2304, 29},
    {2304, 27},  {1152, 3},  {3459, 1},   {1152, 19},  {1152, 6},   {1152, 16},  {1152, 14},  {1152, 3},  {2306, 1},
    {1152, 8},   {72, 5},    {1225, 1},   {72, 92},    {72, 1},     {72, 3},     {1152, 9},   {1256, 1},  {1152, 4},
    {2306, 1},   {2391, 1},  {1152, 2},   {1152, 6},   {2304, 71},  {28, 1},     {2304, 4},   {3459, 1},  {3524, 1},
    {2304, 2},   {2304, 1},  {288, 8},    {1152, 1},   {288, 3},    {646, 1},    {288, 2},    {288, 6},   {1152, 44},
    {55, 1},     {1152, 4},  {1446, 1},   {12168, 1},  {1152, 2},   {1152, 1},   {144, 30},   {576, 1},   {144, 3},
    {144, 8},    {72, 1},    {144, 6},    {144, 8},    {144, 6},    {144, 4},    {144, 1},    {385, 1},   {144, 4},
    {144, 4},    {144, 4},   {144, 4},    {144, 4},    {144, 4},    {432, 4},    {432, 1},    {432, 1},   {432, 3},
    {864, 1},    {144, 1},   {144, 4},    {294, 1},    {420, 1},    {144, 2},    {144, 6},    {144, 8},   {54, 1},
    {144, 4},    {294, 1},   {420, 1},    {144, 2},    {144, 1},    {576, 2},    {576, 8},    {576, 4},   {1254, 1},
    {1284, 1},   {576, 2},   {576, 6},    {288, 8},    {27, 1},     {288, 4},    {867, 1},    {1062, 1},  {288, 2},
    {288, 1},    {1152, 2},  {1152, 7},   {1152, 4},   {2306, 1},   {2391, 1},   {1152, 2},   {1152, 5},  {1152, 6},
    {1152, 4},   {2306, 1},  {2391, 1},   {1152, 2},   {1152, 1}};
enum { DENOISING = sizeof denoising / sizeof *denoising, FULLEST = 1053 };

/* A network that makes winter of summer, trained on what another made: units of 256 bytes, and how long each lived. In the eight
 * ways alone it takes 327 pages; when what ends highest goes first, what its fullest moment needs. */
static const struct {
    uint32_t units, life;
} season[] = {
    {294912, 84}, {313455, 1}, {294912, 2},  {294912, 80}, {147456, 74}, {443016, 1},  {147456, 2}, {147456, 70},
    {73728, 64},  {223776, 1}, {73728, 2},   {73728, 60},  {73728, 54},  {152640, 1},  {73728, 2},  {73728, 50},
    {73728, 44},  {152640, 1}, {73728, 2},   {73728, 40},  {73728, 34},  {152640, 1},  {73728, 2},  {73728, 30},
    {147456, 3},  {225792, 1}, {147456, 22}, {294912, 3},  {443520, 1},  {294912, 14}, {18432, 3},  {313455, 1},
    {18432, 7},   {18432, 5},  {18432, 1},   {18432, 3},   {18432, 2},   {18432, 2},   {18432, 4},  {294912, 4},
    {313455, 1},  {313455, 1}, {294912, 5},  {147456, 5},  {1152, 48},   {443520, 1},  {443520, 1}, {147456, 5},
    {73728, 5},   {4608, 43},  {225792, 1},  {225792, 1},  {73728, 2},   {73728, 5},   {73728, 5},  {5184, 37},
    {152640, 1},  {152640, 1}, {73728, 2},   {73728, 5},   {73728, 5},   {5184, 31},   {152640, 1}, {152640, 1},
    {73728, 2},   {73728, 5},  {73728, 5},   {5184, 25},   {152640, 1},  {152640, 1},  {73728, 2},  {73728, 5},
    {147456, 5},  {2592, 19},  {223776, 1},  {223776, 1},  {147456, 2},  {147456, 5},  {294912, 5}, {648, 13},
    {443016, 1},  {443016, 1}, {294912, 2},  {294912, 2},  {313455, 1},  {648, 7},     {2592, 6},   {5184, 5},
    {5184, 4},    {5184, 3},   {4608, 2},    {1152, 1}};
enum { SEASON = sizeof season / sizeof *season, SEASON_FULLEST = 311 };

/* Packs a step three times, and looks that no two that live together lie on each other. Returns the pages it takes. */
static uint64_t pack(mf_want *wants, uint32_t count)
{
    static mf_claim claims[1024];
    static mf_rank ranks[512];
    static uint64_t loads[MF_SEAT_LOADS * 512], starts[512];
    assert_true(count <= 512);
    mf_packing p = {.wants = wants, .count = count, .shift = 21, .claims = claims, .ranks = ranks, .loads = loads};
    for (unsigned again = 0; again < 3; again++) {
        mf_seats_pack(&p);
        for (uint32_t a = 0; a < count; a++)
            for (uint32_t b = a + 1; b < count && b < a + wants[a].life; b++)
                assert_true(wants[a].start + wants[a].units * (uint64_t)MF_UNIT <= wants[b].start ||
                            wants[b].start + wants[b].units * (uint64_t)MF_UNIT <= wants[a].start);
        for (uint32_t a = 0; a < count; a++) {
            assert_true(!again || wants[a].start == starts[a]); /* and the same again */
            starts[a] = wants[a].start;
            assert_true(wants[a].start + wants[a].units * (uint64_t)MF_UNIT <= p.top);
        }
    }
    return p.pages;
}

static void what_ends_highest_goes_first(void **state)
{
    (void)state;
    static mf_want wants[SEASON];
    for (uint32_t i = 0; i < SEASON; i++)
        wants[i] = (mf_want){.units = season[i].units, .life = season[i].life};
    assert_int_equal(pack(wants, SEASON), SEASON_FULLEST);
}

static void a_step_is_packed_close_to_its_fullest(void **state)
{
    (void)state;
    static mf_want wants[DENOISING];
    for (uint32_t i = 0; i < DENOISING; i++)
        wants[i] = (mf_want){.units = denoising[i].units * (65536 / MF_UNIT), .life = denoising[i].life};
    assert_in_range(pack(wants, DENOISING), FULLEST, FULLEST + FULLEST / 64);
}

/* Forward, each result stays; backward, in the other order: one way is enough, and no other is tried. */
static void packing_ends_where_it_is_close(void **state)
{
    (void)state;
    enum { LAYERS = 400, COUNT = 2 * LAYERS };
    static mf_want wants[COUNT];
    static mf_claim claims[3 * COUNT];
    static mf_rank ranks[COUNT];
    static uint64_t loads[MF_SEAT_LOADS * COUNT];
    for (uint32_t i = 0; i < COUNT; i++)
        wants[i] = (mf_want){.units = 20000 + i * 37 % 4000, .life = i < LAYERS ? COUNT - 2 * i : 2};
    mf_packing p = {.wants = wants, .count = COUNT, .shift = 21, .claims = claims, .ranks = ranks, .loads = loads};
    mf_seats_pack(&p);
    assert_in_range(p.pages, p.least, p.least + p.least / 100);
    assert_in_range(p.work, COUNT, COUNT * COUNT); /* one way looks at half as many */
}

/* Two models by turns of 2,100 requests, with results that stay until their gradients come, and workspaces: no more than a page above
 * what the fullest moment needs in the mean (two in the last way alone, which was the only one of long steps). */
static void long_steps_are_packed_close(void **state)
{
    (void)state;
    enum { SHAPES = 24, LAYERS = 350, MODEL = 3 * LAYERS, COUNT = 2 * MODEL };
    static mf_want wants[COUNT];
    static mf_claim claims[3 * COUNT];
    static mf_rank ranks[COUNT];
    static uint64_t loads[MF_SEAT_LOADS * COUNT];
    uint64_t pages = 0, least = 0;
    for (uint32_t shape = 0; shape < SHAPES; shape++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t k = i % MODEL, layer = k < 2 * LAYERS ? k / 2 : MODEL - 1 - k;
            uint32_t model = (shape + 1) * 2654435761u + 40503u + 977 * (i / MODEL);
            uint32_t size = (1 + layer * model % 61) * (shape % 3 ? 1000 : 300);
            bool result = k < 2 * LAYERS && k % 2;
            wants[i] = k == 0   ? (mf_want){.units = 60000, .life = MODEL} /* the batch stays until the model's next */
                       : result ? (mf_want){.units = size, .life = MODEL - layer - k}
                                : (mf_want){.units = k < 2 * LAYERS ? 2 * size : size, .life = 2};
        }
        mf_packing p = {.wants = wants,
                        .count = COUNT,
                        .again = true,
                        .shift = 21,
                        .claims = claims,
                        .ranks = ranks,
                        .loads = loads};
        mf_seats_pack(&p);
        pages += p.pages;
        least += p.least;
    }
    assert_in_range(pages, least, least + SHAPES);
}

/* No way is close: the time is bounded all the same. */
static void packing_ends_after_some_work(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    static mf_want wants[COUNT];
    static mf_claim claims[3 * COUNT];
    static mf_rank ranks[COUNT];
    static uint64_t loads[MF_SEAT_LOADS * COUNT];
    uint32_t seed = 1;
    for (uint32_t i = 0; i < COUNT; i++) {
        seed = seed * 1664525 + 1013904223;
        wants[i] = (mf_want){.units = 1000 + (seed >> 8) % 60000, .life = 1 + (seed >> 20) % 400};
        wants[i].life = wants[i].life < COUNT - i ? wants[i].life : COUNT - i;
    }
    mf_packing p = {.wants = wants, .count = COUNT, .shift = 21, .claims = claims, .ranks = ranks, .loads = loads};
    mf_seats_pack(&p);
    assert_true(p.pages > p.least);
    assert_in_range(p.work, COUNT, 1 << 23);
}

/* Two kinds by turns, one of many small blocks, which fill the gaps among what stays, one of few large ones, which do not: each is
 * packed well by itself, and together they would take one and a half times as much. Above all that stays they share their pages. */
static void kinds_share_their_pages(void **state)
{
    (void)state;
    enum { STAY = 20, MANY = 160, FEW = 40, LARGE = 6, STEPS = 60 };
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.slack = 0.0025;
    place p = open_with(o);
    memfit_address stay[STAY], gap[STAY], block[MANY];
    for (unsigned i = 0; i < STAY; i++) {
        assert_ok(memfit_pool_alloc_on(p.pool, 4 * MiB, 0, 0, p.main, &stay[i], &err), err);
        assert_ok(memfit_pool_alloc_on(p.pool, 20 * MiB, 0, 0, p.main, &gap[i], &err), err);
    }
    for (unsigned i = 0; i < STAY; i++)
        drop(&p, gap[i], p.main);
    mf_sim_handle_us(p.device, 40);
    uint64_t pages = 0;
    for (unsigned i = 0; i < STEPS; i++) {
        pages = i == STEPS / 2 ? p.pool->remapped_pages : pages;
        mf_repeat_needed(p.pool, i < 8); /* what gives steps their places */
        unsigned count = i % 2 ? FEW : MANY;
        for (unsigned k = 0; k < count; k++) {
            uint64_t bytes = i % 2 && k + LARGE >= FEW ? 60 * MiB : 5 * MiB / 2;
            assert_ok(memfit_pool_alloc_on(p.pool, bytes, 0, 0, p.main, &block[k], &err), err);
            assert_ok(memfit_device_advance(p.device, 100, &err), err);
        }
        while (count)
            drop(&p, block[--count], p.main);
    }
    memfit_pool_info info = look(&p);
    assert_int_equal(mf_repeat_kinds(p.pool), 2);
    assert_true(info.reserved_peak_bytes < info.in_use_peak_bytes / 100 * 101 && info.remapped_pages == pages);
    for (unsigned i = 0; i < STAY; i++)
        drop(&p, stay[i], p.main);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_packed_close_to_its_fullest), cmocka_unit_test(what_ends_highest_goes_first),
        cmocka_unit_test(packing_ends_where_it_is_close),        cmocka_unit_test(long_steps_are_packed_close),
        cmocka_unit_test(packing_ends_after_some_work),          cmocka_unit_test(kinds_share_their_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
