/* test_pool.c: the pool's options, ledger, marks, pressure, purge, misuse and debug mode, through its public functions.
 */
#include "test.h"

#include "device/sim.h"
#include "memfit/trace.h"
#include "pool/pool.h"

#define MiB (UINT64_C(1) << 20)

static memfit_error err;

static memfit_device *open_sim(uint64_t capacity, uint64_t fixed)
{
    memfit_device *device;
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = capacity;
    options.fixed_bytes = fixed;
    assert_ok(memfit_device_open("sim", &options, &device, &err), err);
    return device;
}

static memfit_pool *open_pool(memfit_device *device, uint64_t limit)
{
    memfit_pool *pool;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = limit;
    assert_ok(memfit_pool_create(device, &options, &pool, &err), err);
    return pool;
}

static memfit_pool_info info_of(memfit_pool *pool)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(pool, &info, &err), err);
    return info;
}

static memfit_address get(memfit_pool *pool, uint64_t bytes, memfit_owner owner)
{
    memfit_address a;
    assert_ok(memfit_pool_alloc(pool, bytes, owner, &a, &err), err);
    return a;
}

static void drop(memfit_pool *pool, memfit_address a)
{
    assert_ok(memfit_pool_free(pool, a, &err), err);
}

static void end(memfit_pool *pool, memfit_device *device)
{
    if (pool)
        assert_ok(mf_pool_check(pool, &err), err);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
}

/* ---- options ------------------------------------------------------------------------------------------------ */

static void test_devices(void **state)
{
    (void)state;
    memfit_device *device = NULL;
    memfit_device_info list[8];
    size_t n;
    assert_ok(memfit_device_list(list, sizeof *list, 8, &n, &err), err);
    assert_true(n >= 2 && !strcmp(list[0].name, "cpu") && list[0].total_bytes > 0);
    assert_int_equal(memfit_device_open("cpus", NULL, &device, &err), MEMFIT_NOT_FOUND);
    assert_int_equal(memfit_device_open("cpu:1", NULL, &device, &err), MEMFIT_NOT_FOUND);
    assert_int_equal(memfit_device_open("sim:x", NULL, &device, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_device_open(NULL, NULL, &device, &err), MEMFIT_INVALID);
    memfit_device_options o = MEMFIT_DEVICE_OPTIONS;
    o.granularity_bytes = 12345;
    assert_int_equal(memfit_device_open("sim", &o, &device, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_device_open("cpu", &o, &device, &err), MEMFIT_INVALID);
    assert_null(device);
    assert_ok(memfit_device_close(NULL, &err), err);
}

/* The simulated device refuses what drivers refuse. */
static void test_referee(void **state)
{
    (void)state;
    memfit_device *d = open_sim(64 * MiB, 0);
    mf_address r;
    mf_physical p, q;
    assert_ok(d->table->reserve(d, 32 * MiB, 0, &r, &err), err);
    assert_ok(d->table->create(d, 4 * MiB, &p, &err), err);
    assert_ok(d->table->create(d, 2 * MiB, &q, &err), err);
    assert_int_equal(d->table->create(d, 3, &q, &err), MEMFIT_MISUSE);
    assert_int_equal(d->table->create(d, 60 * MiB, &q, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(d->table->access(d, r, 2 * MiB, &err), MEMFIT_MISUSE);
    assert_int_equal(d->table->map(d, r, 2 * MiB, p, &err), MEMFIT_MISUSE); /* half a handle */
    assert_ok(d->table->map(d, r, 4 * MiB, p, &err), err);
    assert_int_equal(d->table->map(d, r + 2 * MiB, 2 * MiB, q, &err), MEMFIT_MISUSE); /* over a mapping */
    assert_ok(d->table->map(d, r + 8 * MiB, 4 * MiB, p, &err), err);                  /* a second time is allowed */
    assert_ok(d->table->unmap(d, r + 8 * MiB, 4 * MiB, &err), err);
    assert_int_equal(d->table->map(d, r + 31 * MiB, 2 * MiB, q, &err), MEMFIT_MISUSE); /* off the end */
    assert_int_equal(d->table->release(d, p, 4 * MiB, &err), MEMFIT_MISUSE);           /* still mapped */
    assert_int_equal(d->table->unmap(d, r, 2 * MiB, &err), MEMFIT_MISUSE);             /* half a handle */
    assert_int_equal(memfit_device_fill(d, r, 0, 100, 0, &err), MEMFIT_MISUSE);        /* no access yet */
    assert_ok(d->table->access(d, r, 4 * MiB, &err), err);
    assert_ok(memfit_device_fill(d, r, 0, 4 * MiB, 0, &err), err);
    assert_int_equal(memfit_device_fill(d, r, 0, 4 * MiB + 1, 0, &err), MEMFIT_MISUSE);
    assert_int_equal(d->table->unreserve(d, r, 32 * MiB, &err), MEMFIT_MISUSE);
    assert_ok(d->table->unmap(d, r, 4 * MiB, &err), err);
    assert_ok(d->table->release(d, p, 4 * MiB, &err), err);
    assert_ok(d->table->release(d, q, 2 * MiB, &err), err);
    assert_ok(d->table->unreserve(d, r, 32 * MiB, &err), err);
    assert_true(mf_sim_check(d, &err));
    end(NULL, d);
}

/* ---- ledger ------------------------------------------------------------------------------------------------- */

static void test_ledger(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0);
    memfit_owner conv, grad, again;
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "conv", &conv, &err), err);
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_GRADIENTS, "conv", &grad, &err), err);
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "conv", &again, &err), err);
    assert_true(conv == again && conv != grad);
    drop(pool, get(pool, 1, conv));
    assert_int_equal(info_of(pool).in_use_peak_bytes, 1);
    assert_int_equal(info_of(pool).kind_peak_bytes[MEMFIT_KIND_ACTIVATIONS], 1);
    /* a peak made of small and large blocks in turn is exact to the byte */
    memfit_address small[100], large = get(pool, 5 * MiB, conv);
    for (unsigned i = 0; i < 100; i++)
        small[i] = get(pool, 100 + i, i % 2 ? conv : grad);
    uint64_t peak = info_of(pool).in_use_bytes;
    assert_int_equal(peak, 5 * MiB + 100 * 100 + 99 * 50);
    drop(pool, large);
    for (unsigned i = 0; i < 100; i++)
        drop(pool, small[i]);
    large = get(pool, 3 * MiB, conv);
    memfit_pool_info info = info_of(pool);
    assert_int_equal(info.in_use_peak_bytes, peak);
    assert_int_equal(info.kind_bytes[MEMFIT_KIND_ACTIVATIONS], 3 * MiB);
    assert_int_equal(info.kind_peak_bytes[MEMFIT_KIND_GRADIENTS], 50 * 100 + 49 * 50);
    assert_int_equal(info.kind_bytes[MEMFIT_KIND_GRADIENTS], 0);
    assert_int_equal(info.allocations - info.frees, 1);
    assert_ok(memfit_pool_reset_peaks(pool, &err), err);
    assert_int_equal(info_of(pool).in_use_peak_bytes, 3 * MiB);
    memfit_owner_info list[3];
    size_t n;
    assert_ok(memfit_pool_owners(pool, list, sizeof *list, 1, &n, &err), err);
    assert_true(n == 3 && list[0].owner == conv && list[0].bytes == 3 * MiB && list[0].blocks == 1);
    assert_ok(memfit_pool_leaks(pool, list, sizeof *list, 3, &n, &err), err);
    assert_int_equal(n, 1);
    memfit_address out = 5;
    assert_int_equal(memfit_pool_alloc(pool, 1, 99, &out, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_owner(pool, (memfit_kind)99, "x", &again, &err), MEMFIT_INVALID);
    end(pool, device);
}

static void peaks_are(memfit_pool *pool, memfit_owner owner, memfit_kind kind, uint64_t bytes)
{
    memfit_owner_info list[4];
    size_t n;
    memfit_pool_info info = info_of(pool);
    assert_int_equal(info.in_use_peak_bytes, bytes);
    assert_int_equal(info.kind_peak_bytes[kind], bytes);
    assert_ok(memfit_pool_owners(pool, list, sizeof *list, 4, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        assert_true(list[i].owner != owner || list[i].peak_bytes == bytes);
}

/* A peak is exact to the byte, whichever way it is reached: by the pool itself (large blocks) or by a thread's tally
 * (small ones), by much or by one byte; of the owner, the kind and the total. */
static void test_peaks_to_the_byte(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0);
    memfit_owner o;
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_WORKSPACE, "w", &o, &err), err);
    memfit_address kept = get(pool, 3 * MiB, o), a;
    static const uint64_t sizes[] = {7 * MiB, 7 * MiB + 1, 7 * MiB - 1, 7 * MiB + 2};
    uint64_t peak = 0;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        drop(pool, get(pool, sizes[i], o));
        if (peak < 3 * MiB + sizes[i])
            peak = 3 * MiB + sizes[i];
        peaks_are(pool, o, MEMFIT_KIND_WORKSPACE, peak);
    }
    a = get(pool, 7 * MiB + 2, o);
    for (unsigned i = 0; i < 3; i++) { /* one byte more each time, by the tally */
        memfit_address one = get(pool, 1 + i, o);
        peaks_are(pool, o, MEMFIT_KIND_WORKSPACE, peak + 1 + i);
        drop(pool, one);
    }
    peaks_are(pool, o, MEMFIT_KIND_WORKSPACE, peak + 3);
    drop(pool, a);
    drop(pool, kept);
    end(pool, device);
}

static void test_marks(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0);
    memfit_owner leaky, steady;
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_OTHER, "history", &leaky, &err), err);
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "step", &steady, &err), err);
    uint64_t marks[6];
    for (unsigned step = 0; step < 6; step++) {
        memfit_address a = get(pool, MiB, steady);
        get(pool, step % 2 ? 1000 : 100000, leaky);
        drop(pool, a);
        get(pool, 10, steady);
        drop(pool, get(pool, 10, steady));
        assert_ok(memfit_pool_mark(pool, &marks[step], &err), err);
    }
    memfit_owner_info list[4];
    size_t n;
    assert_ok(memfit_pool_growth(pool, marks[2], list, sizeof *list, 4, &n, &err), err);
    assert_int_equal(n, 2);
    assert_true(list[0].owner == leaky && list[0].bytes == 1000 + 100000 + 1000 && list[0].blocks == 3);
    assert_true(list[0].grown_marks == 6);
    assert_ok(memfit_pool_growth(pool, marks[5], list, sizeof *list, 4, &n, &err), err);
    assert_int_equal(n, 0);
    end(pool, device);
}

typedef struct leak_note {
    size_t count;
    char name[64];
    uint64_t bytes;
} leak_note;

static void on_leak(void *ctx, const memfit_owner_info *owners, size_t count)
{
    leak_note *note = ctx;
    note->count = count;
    memcpy(note->name, owners[0].name, sizeof note->name);
    note->bytes = owners[0].bytes;
}

static void test_leaks(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    leak_note note = {0};
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.on_leak = on_leak;
    o.on_leak_ctx = &note;
    memfit_pool *pool;
    memfit_owner owner;
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_PARAMETERS, "old model", &owner, &err), err);
    get(pool, 3 * MiB, owner);
    get(pool, 300, 0);
    memfit_pool_destroy(pool);
    assert_int_equal(note.count, 2);
    assert_string_equal(note.name, "old model");
    assert_int_equal(note.bytes, 3 * MiB);
    end(NULL, device);
}

/* ---- pressure, purge, trim ---------------------------------------------------------------------------------- */

typedef struct spare {
    memfit_address at;
    unsigned soft, hard;
} spare;

static uint64_t give_up(void *ctx, memfit_pool *pool, uint64_t wanted, bool hard)
{
    spare *s = ctx;
    assert_true(wanted > 0);
    if (hard)
        s->hard++;
    else
        s->soft++;
    if (!hard || !s->at)
        return 0;
    drop(pool, s->at);
    s->at = 0;
    return 8 * MiB;
}

static void test_pressure(void **state)
{
    (void)state;
    memfit_device *device = open_sim(64 * MiB, 0);
    memfit_pool *pool = open_pool(device, 32 * MiB);
    assert_int_equal(memfit_pool_set_soft_limit(pool, 40 * MiB, &err), MEMFIT_CONFLICT);
    assert_ok(memfit_pool_set_soft_limit(pool, 16 * MiB, &err), err);
    spare s = {get(pool, 8 * MiB, 0), 0, 0};
    assert_ok(memfit_pool_on_pressure(pool, give_up, &s, &err), err);
    get(pool, 8 * MiB, 0);
    assert_int_equal(s.soft + s.hard, 0);
    get(pool, 8 * MiB, 0); /* passes the soft limit: asked first, then allowed */
    assert_true(s.soft == 1 && s.hard == 0);
    get(pool, 16 * MiB, 0); /* would pass the limit: the spare block goes */
    assert_true(s.hard == 1 && !s.at);
    memfit_address a;
    assert_int_equal(memfit_pool_alloc(pool, 8 * MiB, 0, &a, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(memfit_pool_off_pressure(pool, give_up, &s, &err), err);
    assert_int_equal(memfit_pool_off_pressure(pool, give_up, &s, &err), MEMFIT_INVALID);
    assert_int_equal(info_of(pool).failures, 1);
    end(pool, device);
}

static void test_purge(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0);
    assert_ok(memfit_pool_set_purge(pool, 1000, &err), err);
    memfit_address a = get(pool, 64 * MiB, 0), b = get(pool, 32 * MiB, 0);
    drop(pool, a);
    assert_int_equal(info_of(pool).reserved_bytes, 96 * MiB);
    mf_sim_advance_us(device, 1100000);
    assert_ok(memfit_pool_poll(pool, &err), err); /* they were in use at the beginning of the interval */
    mf_sim_advance_us(device, 1100000);
    assert_ok(memfit_pool_poll(pool, &err), err);
    assert_int_equal(info_of(pool).reserved_bytes, 32 * MiB);
    assert_ok(memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, &err), err);
    assert_int_equal(info_of(pool).reserved_bytes, 256 * MiB);
    mf_sim_advance_us(device, 5000000);
    assert_ok(memfit_pool_poll(pool, &err), err);
    assert_int_equal(info_of(pool).reserved_bytes, 256 * MiB);
    uint64_t gone;
    assert_int_equal(memfit_pool_trim(pool, 0, &gone, &err), MEMFIT_CONFLICT);
    assert_ok(memfit_pool_set_policy(pool, MEMFIT_POLICY_GROWTH, &err), err);
    assert_ok(memfit_pool_trim(pool, 40 * MiB, &gone, &err), err);
    assert_int_equal(gone, 216 * MiB);
    drop(pool, b);
    end(pool, device);
}

/* All that the pool may ever hold beside the bytes in use rather than move pages, the slack and up to a tenth, is not given
 * back: steps have come to rest with it, and would move pages until it is made again (on an H200: from no page in 408
 * steps to 50 and more in every 24). */
static void test_purge_keeps_slack(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0);
    assert_ok(memfit_pool_set_purge(pool, 1000, &err), err);
    assert_ok(memfit_pool_set_slack(pool, 0.03, &err), err);
    memfit_address a = get(pool, 64 * MiB, 0), b = get(pool, 32 * MiB, 0);
    drop(pool, a);
    for (int i = 0; i < 3; i++) {
        mf_sim_advance_us(device, 1100000);
        assert_ok(memfit_pool_poll(pool, &err), err);
    }
    assert_int_equal(info_of(pool).reserved_bytes, 34 * MiB); /* and a tenth is less than two pages */
    drop(pool, b);
    for (int i = 0; i < 2; i++) {
        mf_sim_advance_us(device, 1100000);
        assert_ok(memfit_pool_poll(pool, &err), err);
    }
    assert_int_equal(info_of(pool).reserved_bytes, 0);
    end(pool, device);
}

/* The whole slack is there from the first request on: less of it while there is much time for moving made an H200 move
 * 851 pages of ResNet50 instead of 123, and hold more in the end. Beyond it pages move. */
static void test_slack_from_the_beginning(void **state)
{
    (void)state;
    for (unsigned little = 0; little < 2; little++) {
        memfit_device *device = open_sim(256 * MiB, 0);
        memfit_pool *pool = open_pool(device, 0);
        assert_ok(memfit_pool_set_slack(pool, little ? 0.01 : 0.05, &err), err);
        memfit_address a = get(pool, 100 * MiB, 0), b = get(pool, 4 * MiB, 0), c = get(pool, 4 * MiB, 0);
        drop(pool, b);
        b = get(pool, 6 * MiB, 0); /* of 110 MiB in use */
        assert_int_equal(info_of(pool).remapped_pages, little ? 2 : 0);
        assert_int_equal(info_of(pool).reserved_bytes, (little ? 110 : 114) * MiB);
        drop(pool, a), drop(pool, b), drop(pool, c);
        end(pool, device);
    }
}

/* Large handles are made while memory is plentiful, and broken when it is short. */
static void test_bulk(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.bulk_bytes = 32 * MiB;
    memfit_pool *pool;
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    memfit_address a = get(pool, 128 * MiB, 0);
    assert_int_equal(mf_sim_get(device).calls[MF_CALL_CREATE], 4);
    drop(pool, a);
    memfit_address small[12];
    for (unsigned i = 0; i < 12; i++)
        small[i] = get(pool, 7 * MiB, 0);
    assert_ok(mf_pool_check(pool, &err), err);
    a = get(pool, 100 * MiB, 0);
    for (unsigned i = 0; i < 12; i += 2)
        drop(pool, small[i]);
    assert_ok(mf_pool_check(pool, &err), err);
    drop(pool, a);
    a = get(pool, 200 * MiB - 40 * MiB, 0);
    end(pool, device);
}

/* Someone else's memory: the device refuses, and the pool says so. */
static void test_foreign(void **state)
{
    (void)state;
    memfit_device *device = open_sim(64 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0);
    memfit_address a = get(pool, 16 * MiB, 0), b;
    mf_sim_set_foreign(device, 40 * MiB);
    assert_int_equal(memfit_pool_alloc(pool, 16 * MiB, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(err.cause, MEMFIT_CAUSE_TAKEN_BY_OTHERS);
    drop(pool, a);
    b = get(pool, 16 * MiB, 0); /* its own pages are enough */
    mf_sim_set_foreign(device, 0);
    get(pool, 40 * MiB, 0);
    end(pool, device);
}

/* ---- misuse ------------------------------------------------------------------------------------------------- */

static void misuse(memfit_pool *pool, memfit_address a, const char *word)
{
    uint64_t before = info_of(pool).blocks;
    assert_int_equal(memfit_pool_free(pool, a, &err), MEMFIT_MISUSE);
    if (!strstr(err.message, word))
        fail_msg("\"%s\" does not say \"%s\"", err.message, word);
    assert_int_equal(info_of(pool).blocks, before);
}

static void test_misuse(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB, 0);
    memfit_pool *pool = open_pool(device, 0), *other = open_pool(device, 64 * MiB);
    memfit_address small = get(pool, 1000, 0), large = get(pool, 5 * MiB, 0), theirs = get(other, 100, 0);
    misuse(pool, 0, "no address of this pool");
    misuse(pool, 0x1234, "no address of this pool");
    misuse(pool, theirs, "belongs to pool");
    misuse(pool, small + 256, "inside the block");
    misuse(pool, large + 4096, "inside the block");
    misuse(pool, large + 100 * MiB, "never allocated");
    drop(pool, small);
    drop(pool, large);
    misuse(pool, small, "freed twice");
    misuse(pool, large, "freed twice");
    memfit_address out = 1;
    assert_int_equal(memfit_pool_alloc(NULL, 1, 0, &out, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_alloc(pool, 1, 0, NULL, &err), MEMFIT_INVALID);
    memfit_pool_destroy(other);
    assert_int_equal(memfit_pool_free(other, theirs, &err), MEMFIT_MISUSE);
    assert_int_equal(memfit_pool_alloc(other, 1, 0, &out, &err), MEMFIT_MISUSE);
    assert_non_null(strstr(err.message, "destroyed"));
    memfit_pool_destroy(other);
    end(pool, device);
}

static void test_debug(void **state)
{
    (void)state;
    memfit_device *device;
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = 512 * MiB;
    assert_ok(memfit_device_open("cpu", &d, &device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.debug = true;
    o.limit_fraction = 0.5;
    memfit_pool *pool;
    memfit_owner owner;
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_OTHER, "careless", &owner, &err), err);
    static const uint64_t sizes[] = {0, 1, 300, 32768, 100000, 3 * MiB};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p = (unsigned char *)(uintptr_t)get(pool, sizes[i], owner);
        for (uint64_t k = 0; k < sizes[i]; k++)
            assert_int_equal(p[k], 0xcd);
        memset(p, 1, sizes[i]);
        drop(pool, (uintptr_t)p);
        p = (unsigned char *)(uintptr_t)get(pool, sizes[i], owner);
        p[sizes[i]] = 7; /* one byte too far */
        assert_int_equal(memfit_pool_free(pool, (uintptr_t)p, &err), MEMFIT_MISUSE);
        assert_non_null(strstr(err.message, "careless"));
    }
    assert_int_equal(info_of(pool).blocks, 0);
    end(pool, device);
}

/* What a pool tells a recorder can be loaded and says the same as the ledger. */
static void test_record(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/memfit-test-pool-%d.trace", (int)getpid());
    for (unsigned by_variable = 0; by_variable < 2; by_variable++) {
        if (by_variable)
            setenv("MEMFIT_TRACE", path, 1);
        memfit_device *device = open_sim(256 * MiB, 0);
        memfit_pool *pool = open_pool(device, 0);
        unsetenv("MEMFIT_TRACE");
        memfit_recorder *recorder;
        assert_ok(memfit_recorder_create(NULL, &recorder, &err), err);
        if (!by_variable)
            assert_ok(memfit_pool_record(pool, recorder, &err), err);
        memfit_owner owner;
        assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "conv", &owner, &err), err);
        memfit_address a = get(pool, 3 * MiB, owner), b = get(pool, 300, owner);
        drop(pool, b);
        drop(pool, a);
        uint64_t peak = info_of(pool).in_use_peak_bytes;
        memfit_pool_destroy(pool);
        if (!by_variable)
            assert_ok(memfit_recorder_save(recorder, path, &err), err);
        memfit_recorder_destroy(recorder);
        memfit_trace *trace;
        assert_ok(memfit_trace_load(path, NULL, &trace, &err), err);
        memfit_trace_info info = MEMFIT_TRACE_INFO;
        memfit_trace_describe(trace, &info, NULL);
        assert_int_equal(info.peak_live_bytes, peak);
        assert_int_equal(info.buffers, 2);
        assert_int_equal(info.end_live_bytes, 0);
        memfit_trace_destroy(trace);
        unlink(path);
        end(NULL, device);
    }
}

/* The same operations give the same addresses. */
static void test_same_addresses(void **state)
{
    (void)state;
    uint64_t sum[2] = {0, 0};
    for (unsigned run = 0; run < 2; run++) {
        memfit_device *device = open_sim(256 * MiB, 0);
        memfit_pool *pool = open_pool(device, 200 * MiB);
        memfit_address at[64] = {0};
        uint32_t seed = 1;
        for (unsigned i = 0; i < 20000; i++) {
            seed = seed * 1664525u + 1013904223u;
            unsigned k = seed >> 26;
            if (at[k])
                drop(pool, at[k]);
            at[k] = 0;
            if (!memfit_pool_alloc(pool, (seed >> 3) % (seed % 3 ? 30000 : 8 * MiB), 0, &at[k], &err))
                sum[run] = sum[run] * 31 + at[k];
        }
        end(pool, device);
    }
    assert_int_equal(sum[0], sum[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_referee),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_leaks),
        cmocka_unit_test(test_pressure),
        cmocka_unit_test(test_purge),
        cmocka_unit_test(test_purge_keeps_slack),
        cmocka_unit_test(test_slack_from_the_beginning),
        cmocka_unit_test(test_bulk),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_debug),
        cmocka_unit_test(test_same_addresses),
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_peaks_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
