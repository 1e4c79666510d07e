/*
 * test_abi.c: programs and libraries of different versions. A struct of another version is played by one that is
 * shorter or longer than ours; what lies behind it must stay as it was.
 */
#include "test.h"

#include "memfit/doctor.h"
#include "memfit/diagnosis.h"
#include "memfit/explanation.h"
#include "memfit/model.h"
#include "memfit/pack.h"
#include "memfit/plan.h"
#include "memfit/trace.h"
#include "memfit/train.h"

/* Structs without a size never change: a program compiled against another version has them on its stack. */
_Static_assert(sizeof(memfit_error) == 1344, "memfit_error has its size for ever");
_Static_assert(sizeof(memfit_host) == 16, "memfit_host has its size for ever");
_Static_assert(sizeof(memfit_event) == 32, "memfit_event has its size for ever");
_Static_assert(sizeof(memfit_owner_info) == 144, "memfit_owner_info has its size for ever");
_Static_assert(sizeof(memfit_action) == 160, "memfit_action has its size for ever");
_Static_assert(sizeof(memfit_pack_buffer) == 48, "memfit_pack_buffer has its size for ever");
_Static_assert(MEMFIT_KIND_COUNT <= MEMFIT_KIND_PLACES, "results have places for all kinds");

enum { CANARY = 0xa5 };

typedef struct fixture {
    memfit_device *device;
    memfit_pool *pool;
} fixture;

static fixture begin(void)
{
    fixture f;
    memfit_error err;
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = 64 << 20;
    assert_ok(memfit_device_open("sim", &d, &f.device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.ignore_environment = true;
    assert_ok(memfit_pool_create(f.device, &o, &f.pool, &err), err);
    return f;
}

static void end(fixture *f)
{
    memfit_pool_destroy(f->pool);
    memfit_device_close(f->device, NULL);
}

/* A result struct of every length a program of another version could have: nothing is written behind it. */
static void a_result_is_written_as_far_as_it_reaches(void **state)
{
    (void)state;
    fixture f = begin();
    memfit_error err;
    memfit_pool_info whole = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(f.pool, &whole, &err), err);
    for (size_t bytes = sizeof(size_t) + 1; bytes <= sizeof whole + 64; bytes++) {
        unsigned char room[sizeof whole + 128];
        memset(room, CANARY, sizeof room);
        memcpy(room, &bytes, sizeof bytes);
        assert_ok(memfit_pool_get_info(f.pool, (memfit_pool_info *)room, &err), err);
        size_t filled = bytes < sizeof whole ? bytes : sizeof whole, size;
        memcpy(&size, room, sizeof size);
        assert_int_equal(size, bytes);
        assert_memory_equal(room + sizeof size, (unsigned char *)&whole + sizeof size, filled - sizeof size);
        for (size_t i = filled; i < sizeof room; i++)
            assert_int_equal(room[i], CANARY);
    }
    end(&f);
}

static void a_size_nobody_set_is_refused(void **state)
{
    (void)state;
    fixture f = begin();
    memfit_error err;
    memfit_pool_info info;
    memset(&info, 0, sizeof info);
    assert_int_equal(memfit_pool_get_info(f.pool, &info, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.hint, "MEMFIT_POOL_INFO"));
    memset(&info, CANARY, sizeof info);
    assert_int_equal(memfit_pool_get_info(f.pool, &info, &err), MEMFIT_INVALID);
    memfit_device_info device;
    memset(&device, 0, sizeof device);
    assert_int_equal(memfit_device_get_info(f.device, &device, &err), MEMFIT_INVALID);
    memfit_block_info block = {0};
    assert_int_equal(memfit_pool_find(f.pool, 0, &block, &err), MEMFIT_INVALID);
    memfit_explanation why;
    memset(&why, 0, sizeof why);
    assert_int_equal(memfit_pool_explain(f.pool, &why, &err), MEMFIT_INVALID);
    memfit_train_options train = MEMFIT_TRAIN_OPTIONS;
    memfit_train_result result;
    memset(&result, 0, sizeof result);
    assert_int_equal(memfit_train(&train, &result, &err), MEMFIT_INVALID);
    memfit_diagnosis diagnosis;
    memset(&diagnosis, 0, sizeof diagnosis);
    assert_int_equal(memfit_explain_log("x", 1, &diagnosis, &err), MEMFIT_INVALID);
    memfit_pack_result packed;
    memset(&packed, 0, sizeof packed);
    assert_int_equal(memfit_pack(NULL, 0, NULL, &packed, &err), MEMFIT_INVALID);
    end(&f);
}

/* Options of an older program end early: the rest has its defaults. Of a newer one: zeros behind ours are fine, a
 * setting this library does not know is not. */
static void options_of_another_version(void **state)
{
    (void)state;
    fixture f = begin();
    memfit_error err;
    memfit_pool *pool;
    struct {
        memfit_pool_options o;
        uint64_t later;
    } newer = {.o = MEMFIT_POOL_OPTIONS};
    newer.o.size = sizeof newer;
    newer.o.ignore_environment = true;
    assert_ok(memfit_pool_create(f.device, &newer.o, &pool, &err), err);
    memfit_pool_destroy(pool);
    newer.later = 1;
    assert_int_equal(memfit_pool_create(f.device, &newer.o, &pool, &err), MEMFIT_UNSUPPORTED);

    memfit_pool_options older = MEMFIT_POOL_OPTIONS;
    older.size = offsetof(memfit_pool_options, slice); /* it knew host, name, policy and limits */
    older.limit_bytes = 32 << 20;
    older.slice = true; /* not part of what it has: bytes of something else */
    older.slack = -7;
    memset(&older.purge_ms, CANARY, sizeof older.purge_ms);
    assert_ok(memfit_pool_create(f.device, &older, &pool, &err), err);
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(pool, &info, &err), err);
    assert_int_equal(info.limit_bytes, 32 << 20);
    memfit_device_info device = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_device_get_info(f.device, &device, &err), err);
    assert_int_equal(device.set_aside_bytes, 0);
    memfit_pool_destroy(pool);
    end(&f);
}

/* Elements longer and shorter than ours keep their distance. */
static void arrays_have_the_callers_stride(void **state)
{
    (void)state;
    fixture f = begin();
    memfit_error err;
    enum { OWNERS = 5 };
    for (unsigned i = 0; i < OWNERS; i++) {
        char name[16];
        memfit_owner owner;
        memfit_address address;
        snprintf(name, sizeof name, "owner %u", i);
        assert_ok(memfit_pool_owner(f.pool, MEMFIT_KIND_OTHER, name, &owner, &err), err);
        assert_ok(memfit_pool_alloc(f.pool, 1000 * (1 + (i * 3) % OWNERS), owner, &address, &err), err);
    }
    static const size_t strides[] = {offsetof(memfit_owner_info, reserved), sizeof(memfit_owner_info),
                                     sizeof(memfit_owner_info) + 40};
    for (size_t s = 0; s < sizeof strides / sizeof *strides; s++) {
        const size_t stride = strides[s];
        unsigned char room[4 * (sizeof(memfit_owner_info) + 40)];
        memset(room, CANARY, sizeof room);
        size_t count;
        assert_ok(memfit_pool_leaks(f.pool, (memfit_owner_info *)room, stride, 3, &count, &err), err);
        assert_int_equal(count, OWNERS);
        for (uint64_t i = 0; i < 3; i++) {
            uint64_t bytes;
            memcpy(&bytes, room + i * stride + offsetof(memfit_owner_info, bytes), sizeof bytes);
            assert_int_equal(bytes, 1000 * (OWNERS - i));
        }
        for (size_t i = 3 * stride; i < sizeof room; i++)
            assert_int_equal(room[i], CANARY);
    }
    size_t count;
    memfit_owner_info list[2];
    assert_int_equal(memfit_pool_owners(f.pool, list, 8, 2, &count, &err), MEMFIT_INVALID);
    end(&f);
}

static void the_version_is_a_number_too(void **state)
{
    (void)state;
    unsigned major = MEMFIT_VERSION_NUMBER / 10000, minor = MEMFIT_VERSION_NUMBER / 100 % 100;
    char text[32];
    snprintf(text, sizeof text, "%u.%u.%u", major, minor, MEMFIT_VERSION_NUMBER % 100);
    assert_string_equal(text, memfit_version());
    assert_int_equal(memfit_version_number(), MEMFIT_VERSION_NUMBER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_result_is_written_as_far_as_it_reaches),
        cmocka_unit_test(a_size_nobody_set_is_refused),
        cmocka_unit_test(options_of_another_version),
        cmocka_unit_test(arrays_have_the_callers_stride),
        cmocka_unit_test(the_version_is_a_number_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
