/* The compatibility tables, row by row, as NVIDIA's and TensorFlow's pages state them, and the rules at their edges. */
#include "test.h"

#include "diagnose/rules.h"

static void expect_driver(const char *name, unsigned update, const char *wanted)
{
    mf_version v = mf_version_parse(name), driver = {{0}};
    if (!mf_driver_of_toolkit(v.part[0], v.part[1], update, &driver) ||
        mf_version_compare(driver, mf_version_parse(wanted)) != 0) {
        char text[32];
        fprintf(stderr, "CUDA %s update %u: %s, wanted %s\n", name, update,
                mf_version_format(driver, text, sizeof text), wanted);
        fail();
    }
}

static void test_drivers(void **state)
{
    (void)state;
    static const struct {
        const char *toolkit;
        unsigned update;
        const char *driver;
    } rows[] = {
        {"10.0", 0, "410.48"},    {"10.1", 0, "418.39"},     {"10.2", 0, "440.33"},    {"11.0", 0, "450.51.05"},
        {"11.0", 1, "450.51.06"}, {"11.1", 0, "455.23"},     {"11.1", 1, "455.32"},    {"11.2", 0, "460.27.03"},
        {"11.2", 1, "460.32.03"}, {"11.2", 2, "460.32.03"},  {"11.3", 0, "465.19.01"}, {"11.4", 0, "470.42.01"},
        {"11.4", 1, "470.57.02"}, {"11.4", 2, "470.57.02"},  {"11.4", 3, "470.82.01"}, {"11.4", 4, "470.82.01"},
        {"11.5", 0, "495.29.05"}, {"11.6", 0, "510.39.01"},  {"11.6", 1, "510.47.03"}, {"11.6", 2, "510.47.03"},
        {"11.7", 0, "515.43.04"}, {"11.7", 1, "515.48.07"},  {"11.8", 0, "520.61.05"}, {"12.0", 0, "525.60.13"},
        {"12.0", 1, "525.85.12"}, {"12.1", 0, "530.30.02"},  {"12.1", 1, "530.30.02"}, {"12.2", 0, "535.54.03"},
        {"12.2", 1, "535.86.09"}, {"12.2", 2, "535.104.05"}, {"12.3", 0, "545.23.06"}, {"12.3", 1, "545.23.08"},
        {"12.4", 0, "550.54.14"}, {"12.4", 1, "550.54.15"},  {"12.5", 0, "555.42.02"}, {"12.5", 1, "555.42.06"},
        {"12.6", 0, "560.28.03"}, {"12.6", 1, "560.35.03"},  {"12.6", 2, "560.35.03"}, {"12.6", 3, "560.35.05"},
        {"12.8", 0, "570.26"},    {"12.8", 1, "570.124.06"}, {"12.9", 0, "575.51.03"}, {"12.9", 1, "575.57.08"},
        {"13.0", 0, "580.65.06"}, {"13.0", 1, "580.82.07"},  {"13.0", 2, "580.95.05"}, {"13.1", 0, "590.44.01"},
        {"13.1", 1, "590.48.01"}, {"13.2", 0, "595.45.04"},  {"13.2", 1, "595.58.03"}, {"13.2", 2, "595.71.05"},
        {"13.3", 0, "610.43.02"}, {"13.3", 1, "610.43.02"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect_driver(rows[i].toolkit, rows[i].update, rows[i].driver);
        /* Its own driver runs it fully; one that is a little older does not. */
        mf_version v = mf_version_parse(rows[i].toolkit), wanted, own = mf_version_parse(rows[i].driver);
        assert_int_equal(mf_driver_for_toolkit(own, v.part[0], v.part[1], &wanted), MF_DRIVER_OK);
        if (rows[i].update)
            continue;
        own.part[1]--;
        assert_int_not_equal(mf_driver_for_toolkit(own, v.part[0], v.part[1], &wanted), MF_DRIVER_OK);
    }
    mf_version none;
    assert_false(mf_driver_of_toolkit(12, 7, 0, &none)); /* there was no 12.7 */
    assert_false(mf_driver_of_toolkit(9, 0, 0, &none));
}

/* Minor-version compatibility starts at a full version, not at a branch. */
static void test_minor_versions(void **state)
{
    (void)state;
    static const struct {
        const char *driver, *toolkit;
        mf_driver_state state;
        const char *wanted;
    } rows[] = {
        {"450.80.02", "11.8", MF_DRIVER_MINOR, "520.61.05"},   {"450.80.01", "11.8", MF_DRIVER_TOO_OLD, "450.80.02"},
        {"450.79.99", "11.2", MF_DRIVER_TOO_OLD, "450.80.02"}, {"450.51.05", "11.0", MF_DRIVER_OK, "450.51.05"},
        {"525.60.13", "12.9", MF_DRIVER_MINOR, "575.51.03"},   {"525.60.12", "12.0", MF_DRIVER_TOO_OLD, "525.60.13"},
        {"535.104.05", "12.2", MF_DRIVER_OK, "535.54.03"},     {"580.65.06", "13.0", MF_DRIVER_OK, "580.65.06"},
        {"580.65.05", "13.0", MF_DRIVER_TOO_OLD, "580.65.06"}, {"580.159.04", "13.2", MF_DRIVER_MINOR, "595.45.04"},
        {"580.159.04", "12.8", MF_DRIVER_OK, "570.26"},        {"610.43.02", "10.0", MF_DRIVER_OK, "410.48"},
        {"418.38", "10.1", MF_DRIVER_TOO_OLD, "418.39"},       {"580.65.06", "13.9", MF_DRIVER_MINOR, "580.65.06"},
        {"575.57.08", "13.0", MF_DRIVER_TOO_OLD, "580.65.06"}, {"520.61.05", "12.0", MF_DRIVER_TOO_OLD, "525.60.13"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mf_version v = mf_version_parse(rows[i].toolkit), wanted = {{0}};
        mf_driver_state got = mf_driver_for_toolkit(mf_version_parse(rows[i].driver), v.part[0], v.part[1], &wanted);
        if (got != rows[i].state || mf_version_compare(wanted, mf_version_parse(rows[i].wanted)) != 0)
            fail_msg("driver %s, CUDA %s: state %d, wanted %d", rows[i].driver, rows[i].toolkit, got, rows[i].state);
    }
}

static void test_newest(void **state)
{
    (void)state;
    static const struct {
        const char *driver, *cuda;
    } rows[] = {{"580.159.04", "13.0"}, {"570.26", "12.8"},    {"570.25", "12.6"}, {"525.60.13", "12.0"},
                {"450.51.05", "11.0"},  {"610.43.02", "13.3"}, {"400.0", "0.0"},   {"999.0", "13.3"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(mf_version_compare(mf_newest_cuda_of_driver(mf_version_parse(rows[i].driver)),
                                            mf_version_parse(rows[i].cuda)),
                         0);
}

static void test_tensorflow(void **state)
{
    (void)state;
    static const struct {
        unsigned minor;
        const char *cuda, *cudnn, *python_most, *floor, *toolkit;
    } rows[] = {
        {0, "10.0", "7.4", "3.7", "410.48", "410.48"},         {1, "10.1", "7.6", "3.7", "418.39", "418.39"},
        {2, "10.1", "7.6", "3.8", "418.39", "418.39"},         {3, "10.1", "7.6", "3.8", "418.39", "418.39"},
        {4, "11.0", "8.0", "3.8", "450.80.02", "450.51.05"},   {5, "11.2", "8.1", "3.9", "450.80.02", "460.27.03"},
        {6, "11.2", "8.1", "3.9", "450.80.02", "460.27.03"},   {7, "11.2", "8.1", "3.9", "450.80.02", "460.27.03"},
        {8, "11.2", "8.1", "3.10", "450.80.02", "460.27.03"},  {9, "11.2", "8.1", "3.10", "450.80.02", "460.27.03"},
        {10, "11.2", "8.1", "3.10", "450.80.02", "460.27.03"}, {11, "11.2", "8.1", "3.10", "450.80.02", "460.27.03"},
        {12, "11.8", "8.6", "3.11", "450.80.02", "520.61.05"}, {13, "11.8", "8.6", "3.11", "450.80.02", "520.61.05"},
        {14, "11.8", "8.7", "3.11", "450.80.02", "520.61.05"}, {15, "12.2", "8.9", "3.11", "525.60.13", "535.54.03"},
        {16, "12.3", "8.9", "3.12", "525.60.13", "545.23.06"}, {17, "12.3", "8.9", "3.12", "525.60.13", "545.23.06"},
        {18, "12.5", "9.3", "3.12", "525.60.13", "555.42.02"}, {19, "12.5", "9.3", "3.12", "525.60.13", "555.42.02"},
        {20, "12.5", "9.3", "3.13", "525.60.13", "555.42.02"}, {21, "12.5", "9.3", "3.13", "525.60.13", "555.42.02"},
    };
    static const char *const python_least[] = {"2.7", "2.7", "3.5", "3.5", "3.6", "3.6", "3.6", "3.7",
                                               "3.7", "3.7", "3.7", "3.7", "3.8", "3.8", "3.9", "3.9",
                                               "3.9", "3.9", "3.9", "3.9", "3.9", "3.10"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const mf_tensorflow_build *b = mf_tensorflow_build_of(rows[i].minor);
        assert_non_null(b);
        assert_int_equal(mf_version_compare(b->cuda, mf_version_parse(rows[i].cuda)), 0);
        assert_int_equal(mf_version_compare(b->cudnn, mf_version_parse(rows[i].cudnn)), 0);
        assert_int_equal(mf_version_compare(b->python_most, mf_version_parse(rows[i].python_most)), 0);
        assert_int_equal(mf_version_compare(b->python_least, mf_version_parse(python_least[i])), 0);
        mf_version wanted, floor = mf_version_parse(rows[i].floor), own = mf_version_parse(rows[i].toolkit);
        assert_int_not_equal(mf_driver_for_toolkit(floor, b->cuda.part[0], b->cuda.part[1], &wanted),
                             MF_DRIVER_TOO_OLD);
        assert_int_equal(mf_driver_for_toolkit(own, b->cuda.part[0], b->cuda.part[1], &wanted), MF_DRIVER_OK);
    }
    assert_null(mf_tensorflow_build_of(22));
}

static void test_cudnn(void **state)
{
    (void)state;
    static const struct {
        const char *cudnn, *cuda;
        unsigned capability;
        const char *driver; /* NULL: not supported */
    } rows[] = {
        {"8.9.7", "12.2", 90, "525.60.13"},  {"8.9.0", "12.0", 50, "525.60.13"},   {"8.9.7", "12.3", 90, NULL},
        {"8.9.7", "11.0", 50, "450.80.02"},  {"8.9.7", "11.8", 90, "450.80.02"},   {"8.9.7", "12.2", 100, NULL},
        {"9.0.0", "12.0", 50, "525.60.13"},  {"9.5.1", "12.6", 90, "525.60.13"},   {"9.5.1", "12.8", 90, NULL},
        {"9.5.1", "11.8", 90, "450.80.02"},  {"9.0.0", "11.0", 75, "450.80.02"},   {"9.5.1", "12.6", 120, NULL},
        {"9.5.1", "12.6", 37, NULL},         {"9.10.2", "12.8", 100, "570.26"},    {"9.10.2", "12.9", 120, "570.26"},
        {"9.10.2", "12.6", 100, NULL},       {"9.10.2", "12.9", 90, "525.60.13"},  {"9.10.2", "12.0", 50, "525.60.13"},
        {"9.10.2", "11.8", 90, "450.80.02"}, {"9.10.2", "11.7", 90, NULL},         {"9.10.2", "12.8", 37, NULL},
        {"9.17.0", "13.0", 90, "580.65.06"}, {"9.17.0", "13.1", 75, "580.65.06"},  {"9.17.0", "13.0", 70, NULL},
        {"9.17.1", "12.9", 120, "570.26"},   {"9.17.0", "12.6", 100, NULL},        {"9.17.0", "12.0", 75, "525.60.13"},
        {"9.17.0", "12.4", 61, NULL},        {"9.17.0", "11.8", 90, NULL},         {"9.19.0", "13.0", 90, "580.65.06"},
        {"9.21.1", "12.9", 90, "525.60.13"}, {"9.23.1", "12.8", 120, "570.26"},    {"9.23.1", "11.8", 80, NULL},
        {"9.19.0", "12.9", 70, NULL},        {"9.23.1", "13.3", 121, "580.65.06"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(mf_cudnn_known(mf_version_parse(rows[i].cudnn)));
        const mf_cudnn_row *r =
            mf_cudnn_row_of(mf_version_parse(rows[i].cudnn), mf_version_parse(rows[i].cuda), rows[i].capability);
        if (!r != !rows[i].driver)
            fail_msg("cuDNN %s, CUDA %s, capability %u", rows[i].cudnn, rows[i].cuda, rows[i].capability);
        if (r)
            assert_int_equal(mf_version_compare(r->driver, mf_version_parse(rows[i].driver)), 0);
    }
    assert_false(mf_cudnn_known(mf_version_parse("7.6.5"))); /* not in the matrix: nothing is claimed */
    assert_false(mf_cudnn_known(mf_version_parse("9.14.0")));
    assert_false(mf_cudnn_known(mf_version_parse("9.99.0")));
}

static void test_generations(void **state)
{
    (void)state;
    static const struct {
        unsigned capability;
        const char *first, *last;
    } rows[] = {
        {30, NULL, "10.2"},    {32, NULL, "10.2"},   {35, NULL, "11.8"},   {37, NULL, "11.8"},   {50, "7.0", "12.9"},
        {52, "7.0", "12.9"},   {53, "7.0", "12.9"},  {60, "8.0", "12.9"},  {61, "8.0", "12.9"},  {62, "8.0", "12.9"},
        {70, "9.0", "12.9"},   {72, "9.1", "12.9"},  {75, "10.0", "0.0"},  {80, "11.0", "0.0"},  {86, "11.1", "0.0"},
        {87, "11.4", "0.0"},   {88, "13.0", "0.0"},  {89, "11.8", "0.0"},  {90, "11.8", "0.0"},  {100, "12.8", "0.0"},
        {101, "12.8", "12.9"}, {103, "12.9", "0.0"}, {107, "13.4", "0.0"}, {110, "13.0", "0.0"}, {120, "12.8", "0.0"},
        {121, "12.9", "0.0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mf_version first, last;
        assert_true(mf_toolkits_of_capability(rows[i].capability, &first, &last));
        if (rows[i].first)
            assert_int_equal(mf_version_compare(first, mf_version_parse(rows[i].first)), 0);
        assert_int_equal(mf_version_compare(last, mf_version_parse(rows[i].last)), 0);
    }
    mf_version first, last;
    assert_false(mf_toolkits_of_capability(95, &first, &last));
}

static void test_versions(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(mf_version_format(mf_version_parse("580.65.06"), text, sizeof text), "580.65.06");
    assert_string_equal(mf_version_format(mf_version_parse("570.26"), text, sizeof text), "570.26");
    assert_string_equal(mf_version_format(mf_version_parse("2.11.0+cu130"), text, sizeof text), "2.11");
    assert_string_equal(mf_version_format(mf_version_parse("9.10.2"), text, sizeof text), "9.10.2");
    assert_string_equal(mf_version_format(mf_version_parse("nonsense"), text, sizeof text), "0.0");
    assert_true(mf_version_compare(mf_version_parse("9.10"), mf_version_parse("9.9")) > 0);
    assert_true(mf_version_compare(mf_version_parse(NULL), mf_version_parse("")) == 0);
}

static void test_reserve(void **state)
{
    (void)state;
    const uint64_t mib = UINT64_C(1) << 20, gib = UINT64_C(1) << 30;
    assert_int_equal(mf_tensorflow_reserve(61, 8 * gib), 500 * mib);
    assert_int_equal(mf_tensorflow_reserve(70, 8 * gib), 1050 * mib);
    assert_int_equal(mf_tensorflow_reserve(80, 8 * gib), 1536 * mib);
    assert_int_equal(mf_tensorflow_reserve(90, 8 * gib), 1800 * mib);
    assert_int_equal(mf_tensorflow_reserve(90, gib), 225 * mib);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drivers),    cmocka_unit_test(test_minor_versions), cmocka_unit_test(test_newest),
        cmocka_unit_test(test_tensorflow), cmocka_unit_test(test_cudnn),          cmocka_unit_test(test_generations),
        cmocka_unit_test(test_versions),   cmocka_unit_test(test_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
