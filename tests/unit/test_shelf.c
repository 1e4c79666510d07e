/* test_shelf.c: where samples lie that stay on a device; every refusal of the device leaves nothing behind. */
#include "test.h"

#include "device/device.h"
#include "device/sim.h"
#include "train/shelf.h"

static mf_device *open_sim(void)
{
    mf_device *device = NULL;
    memfit_error err = {0};
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    assert_ok(mf_device_open_sim(&options, 0, &device, &err), err);
    return device;
}

static void only_large_samples_are_kept(void **state)
{
    (void)state;
    mf_device *d = open_sim();
    const uint64_t images[2] = {100 << 10, 4}, words[2] = {4096, 4};
    uint64_t many[MF_SHELF_FEEDS + 1];
    for (uint32_t i = 0; i <= MF_SHELF_FEEDS; i++)
        many[i] = 1 << 20;
    assert_int_equal(mf_shelf_bytes(d, words, 2, 1000), 0);
    assert_int_equal(mf_shelf_bytes(d, images, 2, 0), 0);
    assert_int_equal(mf_shelf_bytes(d, many, MF_SHELF_FEEDS + 1, 3), 0);
    uint64_t bytes = mf_shelf_bytes(d, images, 2, 33);
    assert_true(bytes >= 33 * ((100 << 10) + 4) && bytes % d->granularity == 0);
    memfit_device_close(d, NULL);
}

static void samples_have_places_of_their_own(void **state)
{
    (void)state;
    mf_device *d = open_sim();
    memfit_error err = {0};
    mf_shelf s;
    const uint64_t each[2] = {100 << 10, 4};
    assert_ok(mf_shelf_take(&s, NULL, d, each, 2, 33, &err), err);
    assert_int_equal(mf_shelf_at(&s, 0, 32) + each[0], mf_shelf_at(&s, 0, 0) + 33 * each[0]);
    assert_true(mf_shelf_at(&s, 1, 0) >= mf_shelf_at(&s, 0, 32) + each[0]);
    assert_true(mf_shelf_at(&s, 1, 32) + each[1] <= s.base + s.bytes);
    for (int64_t i = 0; i < 33; i++)
        assert_int_equal(s.there[i], 0);
    mf_shelf_give(&s);
    mf_shelf_give(&s); /* nothing is there any more */
    assert_int_equal(mf_sim_get(d).physical_bytes, 0);
    assert_int_equal(mf_sim_get(d).reserved_bytes, 0);
    memfit_device_close(d, NULL);
}

/* Memory that is refused is done without; any other failure is one. */
static void refusals_leave_nothing(void **state)
{
    (void)state;
    const uint64_t each[1] = {1 << 20};
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        mf_device *d = open_sim();
        memfit_error err = {0};
        mf_shelf s;
        mf_sim_fail(d, MF_CALL_ANY, nth, false);
        memfit_status status = mf_shelf_take(&s, NULL, d, each, 1, 8, &err);
        mf_sim_fail(d, MF_CALL_ANY, 0, false);
        done = status == MEMFIT_OK && s.base;
        assert_true(status == MEMFIT_OK || status == MEMFIT_DEVICE || status == MEMFIT_OUT_OF_MEMORY);
        assert_true(done || (!s.base && !s.bytes && !s.there));
        mf_shelf_give(&s);
        assert_int_equal(mf_sim_get(d).physical_bytes, 0);
        assert_int_equal(mf_sim_get(d).mapped_bytes, 0);
        assert_int_equal(mf_sim_get(d).reserved_bytes, 0);
        memfit_device_close(d, NULL);
        assert_true(nth < 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_large_samples_are_kept),
        cmocka_unit_test(samples_have_places_of_their_own),
        cmocka_unit_test(refusals_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
