/* test_pool.c: the pool through its public functions. */
#include "test.h"

#include "device/sim.h"
#include "memfit/pool.h"

static void test_first_steps(void **state)
{
    (void)state;
    memfit_error err;
    const char *names[] = {"sim", "cpu"};
    for (int i = 0; i < 2; i++) {
        memfit_device_options options = memfit_device_options_default();
        options.capacity_bytes = UINT64_C(256) << 20;
        memfit_device *device;
        memfit_pool *pool;
        assert_ok(memfit_device_open(names[i], &options, &device, &err), err);
        assert_ok(memfit_pool_create(device, NULL, &pool, &err), err);
        memfit_address a, b;
        assert_ok(memfit_pool_alloc(pool, 1000, 0, &a, &err), err);
        assert_ok(memfit_pool_alloc(pool, 3 << 20, 0, &b, &err), err);
        assert_ok(memfit_device_fill(device, b, 7, 3 << 20, 0, &err), err);
        assert_true(a + 1000 <= b || b + (3 << 20) <= a);
        assert_int_equal(memfit_pool_alloc(pool, UINT64_C(1) << 40, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
        assert_ok(memfit_pool_free(pool, a, &err), err);
        memfit_pool_destroy(pool);
        assert_ok(memfit_device_close(device, &err), err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
