/* test_method_times.c: times of methods: kept, found, read back; files that are damaged or another card's. */
#include "test.h"

#include "base/memory.h"
#include "ops/method_times.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static mf_method method(unsigned char number)
{
    return (mf_method){.id = {1, number}, .time_us = 100 + number, .deterministic = true};
}

static mf_method_times *make(const memfit_host *host, unsigned count, memfit_error *err)
{
    mf_method_times *times = NULL;
    if (mf_method_times_create(host, "a card, of 1", &times, err) != MEMFIT_OK)
        return NULL;
    for (unsigned i = 0; i < count; i++) {
        mf_method m = method((unsigned char)(i % 7));
        if (mf_method_times_add(times, (i / 7) * 7919 % 1009, &m, 1.5 * i, err) != MEMFIT_OK) {
            mf_method_times_destroy(times);
            return NULL;
        }
    }
    return times;
}

static void kept_and_read_back(void **state)
{
    (void)state;
    memfit_error err;
    mf_method_times *times = make(NULL, 1000, &err), *back = NULL;
    assert_int_equal(mf_method_times_count(times), 1000);
    assert_ok(mf_method_times_write(times, path, &err), err);
    assert_ok(mf_method_times_read(NULL, path, "a card, of 1", &back, &err), err);
    assert_int_equal(mf_method_times_count(back), 1000);
    assert_true(mf_method_times_hash(back) == mf_method_times_hash(times));
    for (unsigned i = 0; i < 1000; i++) {
        mf_method m = method((unsigned char)(i % 7));
        assert_true(mf_method_times_find(back, (i / 7) * 7919 % 1009, &m) == 1.5 * i);
    }
    mf_method other = method(9);
    assert_true(mf_method_times_find(back, 0, &other) < 0);
    other = method(1);
    assert_true(mf_method_times_find(back, 123456, &other) < 0);
    mf_method_times_destroy(back);
    back = NULL;
    assert_int_equal(mf_method_times_read(NULL, path, "a card, of 2", &back, &err), MEMFIT_CONFLICT);
    assert_non_null(strstr(err.message, "a card, of 1"));
    unlink(path);
    assert_int_equal(mf_method_times_read(NULL, path, "a card, of 1", &back, &err), MEMFIT_NOT_FOUND);
    assert_null(back);
    mf_method_times_destroy(times);
}

static void put_file(const char *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

/* Cut anywhere, or with any byte another: refused, never taken for what it is not. */
static void damaged_files_are_refused(void **state)
{
    (void)state;
    memfit_error err;
    mf_method_times *times = make(NULL, 9, &err), *back = NULL;
    static char data[4096], changed[4096];
    assert_ok(mf_method_times_write(times, path, &err), err);
    FILE *f = fopen(path, "rb");
    size_t bytes = fread(data, 1, sizeof data, f);
    fclose(f);
    assert_true(bytes > 300 && bytes < sizeof data);
    for (size_t n = 0; n < bytes; n++) {
        put_file(data, n);
        assert_true(mf_method_times_read(NULL, path, "a card, of 1", &back, &err) != MEMFIT_OK);
    }
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 8; bit += 5) {
            memcpy(changed, data, bytes);
            changed[i] = (char)(changed[i] ^ 1 << bit);
            put_file(changed, bytes);
            memfit_status status = mf_method_times_read(NULL, path, "a card, of 1", &back, &err);
            if (status == MEMFIT_OK) { /* the other case of a hexadecimal digit says the same */
                assert_true(mf_method_times_hash(back) == mf_method_times_hash(times));
                mf_method_times_destroy(back);
            }
        }
    mf_method_times_destroy(times);
    unlink(path);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_method_times *times = make(NULL, 600, &err);
    assert_ok(mf_method_times_write(times, path, &err), err);
    mf_method_times_destroy(times);
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, false);
        mf_method_times *made = make(&fault.host, 600, &err), *back = NULL;
        memfit_status status = mf_method_times_read(&fault.host, path, "a card, of 1", &back, &err);
        mf_method_times_destroy(made);
        mf_method_times_destroy(back);
        assert_int_equal(fault.live_bytes, 0);
        assert_true(status == MEMFIT_OK || status == MEMFIT_NO_HOST_MEMORY);
        if (fault.calls < n)
            break;
        assert_true(!made || status != MEMFIT_OK);
    }
    unlink(path);
}

/* ---- menus -------------------------------------------------------------------------------------------------- */

static memfit_status three_methods(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    (void)ctx, (void)graph, (void)op, (void)err;
    *cost = (mf_cost){.supported = true, .method_count = 3, .methods = {method(0), method(1), method(2)}};
    return MEMFIT_OK;
}

static void menus_get_these_times(void **state)
{
    (void)state;
    memfit_error err;
    mf_method_times *times = NULL;
    uint32_t in[1] = {0}, out[1] = {1};
    mf_tensor tensors[2] = {{.dtype = MF_F32, .shape = {.rank = 1, .dim = {4}}},
                            {.dtype = MF_F32, .shape = {.rank = 1, .dim = {4}}}};
    mf_op op = {.kind = MF_OP_MATMUL, .in = in, .in_count = 1, .out = out, .out_count = 1};
    mf_graph graph = {.ops = &op, .op_count = 1, .tensors = tensors, .tensor_count = 2};
    assert_ok(mf_method_times_create(NULL, "x", &times, &err), err);
    mf_timed_source timed = {.inner = {.query = three_methods, .alignment = 256}, .times = times};
    mf_cost_source source;
    mf_cost cost;
    mf_timed_cost_source(&timed, &source);
    assert_int_equal(source.alignment, 256);
    const double us[3] = {30, 10, 20};
    for (unsigned char i = 0; i < 3;
         i++) { /* what tuning left out, as it is hopeless or was refused, stands behind the rest */
        assert_ok(source.query(source.ctx, &graph, 0, &cost, &err), err);
        assert_int_equal(mf_cost_choose(&cost, source.rules, UINT64_MAX), i < 2 ? 0 : 1);
        for (unsigned k = i; k < 3 && i > 0; k++)
            assert_true(cost.methods[k].time_us > us[0] && cost.methods[k].time_us < 2 * us[0]);
        mf_method m = method(i);
        assert_ok(mf_method_times_add(times, mf_op_likeness(&graph, &op), &m, us[i], &err), err);
    }
    assert_ok(source.query(source.ctx, &graph, 0, &cost, &err), err);
    assert_int_equal(mf_cost_choose(&cost, source.rules, UINT64_MAX), 1);
    assert_true(cost.methods[2].time_us == 20);
    tensors[0].shape.dim[0] = 5; /* another operation */
    assert_ok(source.query(source.ctx, &graph, 0, &cost, &err), err);
    assert_int_equal(mf_cost_choose(&cost, source.rules, UINT64_MAX), 0);
    mf_method_times_destroy(times);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/memfit-times-%ld", (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_and_read_back),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(menus_get_these_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
