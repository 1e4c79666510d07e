/*
 * test_cuda.c: the cuda device and a pool on it, over the fake driver (tests/fakes/fake_cuda.c), whose path is in
 * FAKE_CUDA_LIBRARY.
 */
#include "test.h"

#include "base/memory.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include "fakes/fake_cuda_load.h"
#include "memfit/pool.h"
#include "pool/pool.h"

#define MIB (UINT64_C(1) << 20)

static void (*fail_call)(const char *, uint64_t, int, bool);
static void (*get_state)(fake_cuda_state *);
static void (*reset_counts)(void);
static void (*set_foreign)(uint64_t);
static void (*hold)(uint64_t, bool);

static int load_fake(void **state)
{
    (void)state;
    void *library = open_fake_driver();
    *(void **)&fail_call = need(library, "fake_cuda_fail");
    *(void **)&get_state = need(library, "fake_cuda_get");
    *(void **)&reset_counts = need(library, "fake_cuda_reset_counts");
    *(void **)&set_foreign = need(library, "fake_cuda_foreign");
    *(void **)&hold = need(library, "fake_cuda_hold");
    return 0;
}

static void nothing_left(void)
{
    driver_holds_nothing(get_state);
}

static void card_is_described(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    assert_ok(memfit_device_get_info(device, &info, &err), err);
    assert_string_equal(info.model, "Fake Card 0");
    assert_string_equal(info.uuid, "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0");
    assert_int_equal(info.granularity_bytes, 2 * MIB);
    assert_int_equal(info.total_bytes, 1024 * MIB);
    assert_int_equal(info.free_bytes, (1024 - 64) * MIB);
    assert_ok(memfit_device_close(device, &err), err);
    assert_int_equal(memfit_device_open("cuda:7", NULL, &device, &err), MEMFIT_NOT_FOUND);
    assert_non_null(strstr(err.message, "1 card"));
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = 1;
    assert_int_equal(memfit_device_open("cuda", &options, &device, &err), MEMFIT_INVALID);
    nothing_left();
}

static void refusals_name_the_cure(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    setenv("FAKE_CUDA_INIT", "34", 1);
    assert_int_equal(memfit_device_open("cuda", NULL, &device, &err), MEMFIT_DEVICE);
    assert_non_null(strstr(err.hint, "stub"));
    unsetenv("FAKE_CUDA_INIT");
    set_foreign(1000 * MIB); /* no room for the context */
    assert_int_equal(memfit_device_open("cuda", NULL, &device, &err), MEMFIT_OUT_OF_MEMORY);
    set_foreign(0);
    const char *fake = getenv("FAKE_CUDA_LIBRARY");
    setenv("MEMFIT_LIB_CUDA", "/nonexistent/libcuda.so.1", 1);
    if (!dlopen("libcuda.so.1", RTLD_NOW)) { /* no real driver to fall back to */
        assert_int_equal(memfit_device_open("cuda", NULL, &device, &err), MEMFIT_NOT_FOUND);
        assert_true(err.hint[0]);
    }
    setenv("MEMFIT_LIB_CUDA", fake, 1);
    nothing_left();
}

/* Remapping shows the same bytes elsewhere; a mapping that is gone cannot be copied from. */
static void pages_move(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *d;
    mf_address range;
    mf_physical page;
    uint64_t word = 0x0123456789abcdef, back = 0;
    assert_ok(memfit_device_open("cuda", NULL, &d, &err), err);
    assert_ok(d->table->reserve(d, 64 * MIB, 0, &range, &err), err);
    assert_ok(d->table->create(d, 4 * MIB, &page, &err), err);
    assert_ok(d->table->map(d, range, 4 * MIB, page, &err), err);
    assert_ok(d->table->access(d, range, 4 * MIB, &err), err);
    assert_ok(d->table->copy_in(d, range + 12345, &word, sizeof word, 0, &err), err);
    assert_ok(d->table->unmap(d, range, 4 * MIB, &err), err);
    assert_ok(d->table->map(d, range + 32 * MIB, 4 * MIB, page, &err), err);
    assert_ok(d->table->access(d, range + 32 * MIB, 4 * MIB, &err), err);
    assert_ok(d->table->copy_out(d, &back, range + 32 * MIB + 12345, sizeof back, 0, &err), err);
    assert_ok(d->table->stream_sync(d, 0, &err), err);
    assert_true(back == word);
    assert_ok(d->table->unmap(d, range + 32 * MIB, 4 * MIB, &err), err);
    assert_ok(d->table->release(d, page, 4 * MIB, &err), err);
    assert_ok(d->table->unreserve(d, range, 64 * MIB, &err), err);
    assert_int_equal(d->table->create(d, 2048 * MIB, &page, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_device_close(d, &err), err);
    nothing_left();
}

/* What a program does from start to end; any call may fail, and then everything is given back. */
static memfit_status scenario(const memfit_host *host, memfit_error *err)
{
    enum { BLOCKS = 10 };
    memfit_device *device = NULL;
    memfit_pool *pool = NULL;
    memfit_address blocks[BLOCKS] = {0};
    memfit_stream stream = 0;
    memfit_device_options device_options = MEMFIT_DEVICE_OPTIONS;
    device_options.host = host;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = 64 * MIB + 40 * MIB;
    options.ignore_environment = true;
    memfit_status status = memfit_device_open("cuda", &device_options, &device, err);
    if (!status)
        status = memfit_stream_create(device, &stream, err);
    if (!status)
        status = memfit_pool_create(device, &options, &pool, err);
    for (int i = 0; !status && i < BLOCKS; i++)
        status = memfit_pool_alloc_on(pool, (uint64_t)(i + 1) * 300001, 0, 0, i % 2 ? stream : 0, &blocks[i], err);
    for (int i = 0; !status && i < BLOCKS; i += 3)
        status = memfit_device_fill(device, blocks[i], (unsigned char)i, 4096, 0, err);
    for (int i = 0; !status && i < BLOCKS; i += 2) {
        status = memfit_pool_free_on(pool, blocks[i], 0, err);
        if (!status)
            blocks[i] = 0;
    }
    memfit_address large = 0;
    if (!status)
        status = memfit_pool_alloc_on(pool, 14 * MIB, 0, 0, stream, &large, err);
    if (!status)
        status = memfit_device_fill(device, large, 7, 14 * MIB, stream, err);
    fail_call(NULL, 0, 0, false); /* the way back may not be refused: that is the next test's subject */
    memfit_pool_destroy(pool);
    if (stream)
        memfit_stream_destroy(device, stream, NULL);
    memfit_device_close(device, NULL);
    return status;
}

static void fail_driver_calls(int code_count)
{
    static const int codes[] = {CU_ERROR_OUT_OF_MEMORY, 999};
    for (int c = 0; c < code_count; c++)
        for (int for_ever = 0; for_ever < 2; for_ever++)
            for (uint64_t n = 1;; n++) {
                memfit_error err = {0};
                reset_counts();
                fail_call(NULL, n, codes[c], for_ever);
                memfit_status status = scenario(NULL, &err);
                nothing_left();
                fake_cuda_state s;
                get_state(&s);
                if (status)
                    assert_true(err.message[0]);
                if (s.calls < n)
                    break;
            }
}

static void fail_host_allocations(void)
{
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            memfit_error err = {0};
            mf_fault_host_init(&fault, NULL, n, for_ever);
            reset_counts();
            memfit_status status = scenario(&fault.host, &err);
            nothing_left();
            assert_int_equal(fault.live_bytes, 0);
            if (fault.calls < n)
                break;
            if (status)
                assert_true(err.message[0]);
        }
}

static void every_driver_call_fails_once(void **state)
{
    (void)state;
    fail_driver_calls(2);
}

static void every_host_allocation_fails_once(void **state)
{
    (void)state;
    fail_host_allocations();
}

static memfit_pool *make_pool(memfit_device *device, uint64_t limit)
{
    memfit_pool *pool;
    memfit_error err;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = limit;
    options.ignore_environment = true;
    assert_ok(memfit_pool_create(device, &options, &pool, &err), err);
    return pool;
}

/* ---- bytes stay what they are while pages move and steps repeat ----------------------------------------------- */

enum { LAYERS = 20, EVERY = 700001 };

typedef struct tagged {
    memfit_address at;
    uint64_t bytes;
    unsigned char tag;
} tagged;

/* A byte every so often, and the last. */
static void write_tag(memfit_device *device, const tagged *b)
{
    memfit_error err;
    for (uint64_t i = 0; i < b->bytes; i += EVERY)
        assert_ok(memfit_device_fill(device, b->at + i, b->tag, 1, 0, &err), err);
    assert_ok(memfit_device_fill(device, b->at + b->bytes - 1, b->tag, 1, 0, &err), err);
}

/* Bytes read on a stream that may be behind: they are there when it is let go. */
static struct {
    unsigned char byte, tag;
} read_late[65536];
static size_t read_count;

static void read_byte(memfit_device *device, memfit_address at, unsigned char tag)
{
    memfit_error err;
    assert_true(read_count < sizeof read_late / sizeof *read_late);
    read_late[read_count].tag = tag;
    assert_ok(memfit_device_copy_out(device, &read_late[read_count++].byte, at, 1, 0, &err), err);
}

static void check_tag(memfit_device *device, const tagged *b)
{
    for (uint64_t i = 0; i < b->bytes; i += EVERY)
        read_byte(device, b->at + i, b->tag);
    read_byte(device, b->at + b->bytes - 1, b->tag);
}

static void catch_up(void)
{
    hold(0, false);
    for (size_t i = 0; i < read_count; i++)
        assert_int_equal(read_late[i].byte, read_late[i].tag);
    read_count = 0;
}

static tagged take_tagged(memfit_device *device, memfit_pool *pool, uint64_t bytes, unsigned *tags)
{
    memfit_error err;
    tagged b = {.bytes = bytes, .tag = (unsigned char)++*tags};
    assert_ok(memfit_pool_alloc(pool, bytes, 0, &b.at, &err), err);
    write_tag(device, &b);
    return b;
}

static void drop_tagged(memfit_device *device, memfit_pool *pool, tagged *b)
{
    memfit_error err;
    if (!b->at)
        return;
    check_tag(device, b);
    assert_ok(memfit_pool_free(pool, b->at, &err), err);
    b->at = 0;
}

static uint64_t layer_bytes(unsigned seed, unsigned i)
{
    return 40000 + ((i + 1) * (seed * 2654435761u + 40503u) >> 7) % 5000000;
}

static void tagged_step(memfit_device *device, memfit_pool *pool, unsigned seed, tagged *batch, unsigned *tags)
{
    tagged result[LAYERS], work, gradient = {0}, next = take_tagged(device, pool, 5000000, tags);
    drop_tagged(device, pool, batch);
    *batch = next;
    for (unsigned i = 0; i < LAYERS; i++) {
        work = take_tagged(device, pool, layer_bytes(seed, i) * 3 / 2, tags);
        result[i] = take_tagged(device, pool, layer_bytes(seed, i), tags);
        drop_tagged(device, pool, &work);
    }
    for (unsigned i = LAYERS; i-- > 0;) {
        next = take_tagged(device, pool, layer_bytes(seed, i), tags);
        drop_tagged(device, pool, &gradient);
        drop_tagged(device, pool, &result[i]);
        gradient = next;
    }
    drop_tagged(device, pool, &gradient);
}

static void bytes_stay_while_pages_move(void **state)
{
    (void)state;
    uint64_t remaps = 0;
    for (unsigned seed = 1; seed <= 6; seed++) {
        memfit_error err;
        memfit_device *device;
        memfit_pool_info info = MEMFIT_POOL_INFO;
        tagged batch = {0}, odd = {0};
        unsigned tags = 0;
        reset_counts();
        assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
        memfit_pool *pool = make_pool(device, 500 * MIB);
        for (unsigned i = 0; i < 14; i++) {
            if (i % 3 == 1)
                hold(0, true); /* the card falls behind */
            tagged_step(device, pool, seed, &batch, &tags);
            if (i % 3 == 2)
                catch_up();
            if (i == 10) /* something that was not in the plan, for a while */
                odd = take_tagged(device, pool, 7000000, &tags);
            assert_ok(mf_pool_check(pool, &err), err);
        }
        catch_up();
        assert_ok(memfit_pool_get_info(pool, &info, &err), err);
        remaps += info.remaps;
        drop_tagged(device, pool, &odd);
        drop_tagged(device, pool, &batch);
        catch_up();
        memfit_pool_destroy(pool);
        assert_ok(memfit_device_close(device, &err), err);
        nothing_left();
    }
    assert_true(remaps > 20);
}

/* ---- what the process pays ------------------------------------------------------------------------------------- */

/* The fixed cost, with these processes on the card: there before us, and come with our context. */
static uint64_t fixed_cost(const char *uuid, const char *there, const char *late)
{
    memfit_error err;
    memfit_device *device;
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    const char *library = getenv("FAKE_NVML_LIBRARY");
    assert_non_null(library);
    setenv("MEMFIT_LIB_NVML", library, 1);
    setenv("FAKE_NVML_UUID", uuid, 1);
    setenv("FAKE_NVML_PROCESSES", there, 1);
    setenv("FAKE_NVML_LATE", late, 1);
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    assert_ok(memfit_device_get_info(device, &info, &err), err);
    char text[1][128];
    uint64_t bytes[1] = {0};
    if (device->table->others(device, text, bytes, 1))
        assert_true(bytes[0] != 300 * MIB); /* we are not among the others */
    assert_ok(memfit_device_close(device, &err), err);
    setenv("MEMFIT_LIB_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
    return info.fixed_bytes;
}

static void own_memory_is_found(void **state)
{
    (void)state;
    const char *uuid = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0";
    char mine[64];
    snprintf(mine, sizeof mine, "0:999:500,0:%d:300", (int)getpid());
    assert_int_equal(fixed_cost(uuid, mine, ""), 302 * MIB);
    /* in a container we have another number there */
    assert_int_equal(fixed_cost(uuid, "0:999:500,0:998:700", "0:4711:300"), 302 * MIB);
    assert_int_equal(fixed_cost(uuid, "0:4711:300,0:5:90:g", ""), 302 * MIB);
    /* not to be told: what the card lost when the context came; nothing, if it was there before */
    assert_int_equal(fixed_cost(uuid, "0:999:500,0:998:700", ""), 0);
    /* a part of a card, which NVML does not list: what is taken of it */
    assert_int_equal(fixed_cost("GPU-11111111-a0a0-a0a0-a0a0-a0a0a0a0a0a0", "", ""), 66 * MIB);
    nothing_left();
}

/* No room even for a context: whose fault it is, is said. */
static void a_full_card_is_explained(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    setenv("MEMFIT_LIB_NVML", getenv("FAKE_NVML_LIBRARY"), 1);
    setenv("FAKE_NVML_UUID", "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0", 1);
    setenv("FAKE_NVML_PROCESSES", "0:999:500,0:998:700", 1);
    setenv("FAKE_NVML_LATE", "", 1);
    fail_call("cuDevicePrimaryCtxRetain", 1, 2, false);
    assert_int_equal(memfit_device_open("cuda", NULL, &device, &err), MEMFIT_OUT_OF_MEMORY);
    fail_call(NULL, 0, 0, false);
    setenv("MEMFIT_LIB_NVML", "/nonexistent/libnvidia-ml.so.1", 1);
    assert_int_equal(err.cause, MEMFIT_CAUSE_TAKEN_BY_OTHERS);
    assert_non_null(strstr(err.message, "no room for a context"));
    assert_non_null(strstr(err.message, "(pid 998) 700.00 MiB"));
    assert_non_null(strstr(err.message, "(pid 999) 500.00 MiB"));
    assert_non_null(strstr(err.hint, "memfit ps"));
    nothing_left();
}

/* ---- a driver without VMM ------------------------------------------------------------------------------------ */

static uint64_t plain_bytes(void)
{
    fake_cuda_state s;
    get_state(&s);
    assert_int_equal(s.mappings + s.reservations + s.handles, 0);
    return s.plain_bytes;
}

/* One allocation a pool, of its limit; the limit holds; nothing changes it; bytes stay what they were. */
static void plain_card(void **state)
{
    (void)state;
    memfit_error err;
    enum { BLOCKS = 24 };
    memfit_device *device;
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    memfit_pool_info pool_info = MEMFIT_POOL_INFO;
    memfit_address at[BLOCKS], a;
    reset_counts();
    setenv("FAKE_CUDA_NO_VMM", "1", 1);
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    assert_ok(memfit_device_get_info(device, &info, &err), err);
    memfit_pool *pool = make_pool(device, info.fixed_bytes + 64 * MIB);
    assert_int_equal(plain_bytes(), 64 * MIB);
    memfit_pool *other = make_pool(device, 32 * MIB); /* the first pays the fixed cost */
    assert_int_equal(plain_bytes(), 96 * MIB);
    for (int i = 0; i < BLOCKS; i++) {
        assert_ok(memfit_pool_alloc(pool, 2500000, 0, &at[i], &err), err);
        assert_ok(memfit_device_fill(device, at[i], (unsigned char)(i + 1), 2500000, 0, &err), err);
    }
    assert_int_equal(memfit_pool_alloc(pool, 8 * MIB, 0, &a, &err), MEMFIT_OUT_OF_MEMORY);
    for (int i = 0; i < BLOCKS; i += 2)
        assert_ok(memfit_pool_free(pool, at[i], &err), err);
    assert_int_equal(memfit_pool_alloc(pool, 8 * MIB, 0, &a, &err), MEMFIT_OUT_OF_MEMORY);
    assert_non_null(strstr(err.hint, "not in one range"));
    assert_ok(memfit_pool_alloc(pool, 2000000, 0, &a, &err), err);
    for (int i = 1; i < BLOCKS; i += 2) {
        unsigned char back[3] = {0};
        assert_ok(memfit_device_copy_out(device, back, at[i] + 2499997, 3, 0, &err), err);
        assert_true(back[0] == i + 1 && back[1] == i + 1 && back[2] == i + 1);
    }
    assert_int_equal(memfit_pool_set_limit(pool, info.fixed_bytes + 32 * MIB, false, &err), MEMFIT_UNSUPPORTED);
    assert_int_equal(memfit_pool_set_policy(pool, MEMFIT_POLICY_GROWTH, &err), MEMFIT_UNSUPPORTED);
    assert_int_equal(memfit_pool_trim(pool, 0, NULL, &err), MEMFIT_CONFLICT);
    assert_ok(memfit_pool_get_info(pool, &pool_info, &err), err);
    assert_int_equal(pool_info.reserved_bytes, 64 * MIB);
    assert_int_equal(pool_info.remaps, 0);
    memfit_stream stream;
    assert_ok(memfit_stream_create(device, &stream, &err), err); /* several streams, too */
    assert_ok(memfit_pool_alloc_on(other, 30 * MIB, 0, 0, stream, &a, &err), err);
    assert_ok(memfit_pool_free_on(other, a, stream, &err), err);
    assert_ok(memfit_pool_alloc_on(other, 30 * MIB, 0, 0, 0, &a, &err), err);
    assert_ok(mf_pool_check(pool, &err), err);
    assert_ok(mf_pool_check(other, &err), err);
    memfit_pool_destroy(other);
    assert_int_equal(plain_bytes(), 64 * MIB);
    memfit_pool_destroy(pool);
    pool = make_pool(device, 0); /* no limit: all that is free */
    assert_true(plain_bytes() > 900 * MIB);
    memfit_pool_destroy(pool);
    assert_ok(memfit_stream_destroy(device, stream, &err), err);
    assert_ok(memfit_device_close(device, &err), err);
    unsetenv("FAKE_CUDA_NO_VMM");
    nothing_left();
}

static void plain_card_with_faults(void **state)
{
    (void)state;
    setenv("FAKE_CUDA_NO_VMM", "1", 1);
    fail_driver_calls(1);
    fail_host_allocations();
    unsetenv("FAKE_CUDA_NO_VMM");
}

static void foreign_memory_is_seen(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    memfit_pool *pool;
    memfit_address a;
    reset_counts();
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = 800 * MIB;
    options.ignore_environment = true;
    assert_ok(memfit_pool_create(device, &options, &pool, &err), err);
    set_foreign(900 * MIB);
    assert_int_equal(memfit_pool_alloc(pool, 300 * MIB, 0, &a, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_pool_alloc(pool, 20 * MIB, 0, &a, &err), err);
    set_foreign(0);
    assert_ok(memfit_pool_alloc(pool, 300 * MIB, 0, &a, &err), err);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
    nothing_left();
}

/* Who plays a recording skips what its program did between two calls: to a pool that time has gone by. */
static void skipped_time_counts(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    memfit_address a;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    reset_counts();
    assert_ok(memfit_device_open("cuda", NULL, &device, &err), err);
    memfit_pool *pool = make_pool(device, 800 * MIB);
    assert_ok(memfit_pool_set_purge(pool, 3600000, &err), err);
    assert_ok(memfit_pool_alloc(pool, 64 * MIB, 0, &a, &err), err);
    assert_ok(memfit_pool_free(pool, a, &err), err);
    for (int i = 0; i < 2; i++) { /* in use at the beginning of the first interval, idle in all of the second */
        assert_ok(memfit_pool_get_info(pool, &info, &err), err);
        assert_int_equal(info.reserved_bytes, 64 * MIB);
        assert_ok(memfit_device_advance(device, UINT64_C(3700000000), &err), err);
        assert_ok(memfit_pool_poll(pool, &err), err);
    }
    assert_ok(memfit_pool_get_info(pool, &info, &err), err);
    assert_int_equal(info.reserved_bytes, 0);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
    nothing_left();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skipped_time_counts),
        cmocka_unit_test(own_memory_is_found),
        cmocka_unit_test(a_full_card_is_explained),
        cmocka_unit_test(card_is_described),
        cmocka_unit_test(refusals_name_the_cure),
        cmocka_unit_test(pages_move),
        cmocka_unit_test(every_driver_call_fails_once),
        cmocka_unit_test(every_host_allocation_fails_once),
        cmocka_unit_test(foreign_memory_is_seen),
        cmocka_unit_test(bytes_stay_while_pages_move),
        cmocka_unit_test(plain_card),
        cmocka_unit_test(plain_card_with_faults),
    };
    return cmocka_run_group_tests(tests, load_fake, NULL);
}
