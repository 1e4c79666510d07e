/*
 * test_pool_settings.c: what can be set when a pool is made, by variables, and while it is in use: every way to the
 * same setting gives the same answer, a refusal changes nothing, and an answer that says so is true.
 */
#include "test.h"

#include "device/sim.h"
#include "pool/pool.h"

#include <math.h>
#include <stddef.h>

#define MiB (UINT64_C(1) << 20)

static memfit_error err;

static memfit_device *open_costly_sim(uint64_t capacity, uint64_t fixed)
{
    memfit_device *device;
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = capacity;
    options.fixed_bytes = fixed;
    assert_ok(memfit_device_open("sim", &options, &device, &err), err);
    return device;
}

static memfit_device *open_sim(uint64_t capacity)
{
    return open_costly_sim(capacity, 0);
}

static memfit_pool *open_pool(memfit_device *device, memfit_pool_options options)
{
    memfit_pool *pool;
    options.purge_ms = options.purge_ms == 10000 ? MEMFIT_PURGE_NEVER : options.purge_ms;
    assert_ok(memfit_pool_create(device, &options, &pool, &err), err);
    return pool;
}

static memfit_pool_info info_of(memfit_pool *pool)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(pool, &info, &err), err);
    return info;
}

static memfit_address get(memfit_pool *pool, uint64_t bytes)
{
    memfit_address a;
    assert_ok(memfit_pool_alloc(pool, bytes, 0, &a, &err), err);
    return a;
}

static void drop(memfit_pool *pool, memfit_address a)
{
    assert_ok(memfit_pool_free(pool, a, &err), err);
}

static void end(memfit_pool *pool, memfit_device *device)
{
    assert_ok(mf_pool_check(pool, &err), err);
    memfit_pool_destroy(pool);
    assert_ok(memfit_device_close(device, &err), err);
}

static void says(const char *word)
{
    if (!strstr(err.message, word) && !strstr(err.hint, word))
        fail_msg("\"%s\" / \"%s\" does not say \"%s\"", err.message, err.hint, word);
}

/* ---- pairs that contradict each other ------------------------------------------------------------------------- */

/* A soft limit and preallocate: the same words from create, from set_soft_limit and from set_policy. */
static void soft_limit_and_preallocate(void **state)
{
    (void)state;
    memfit_device *device = open_sim(64 * MiB);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    memfit_pool *pool;
    o.limit_bytes = 32 * MiB, o.soft_limit_bytes = 16 * MiB, o.policy = MEMFIT_POLICY_PREALLOCATE;
    assert_int_equal(memfit_pool_create(device, &o, &pool, &err), MEMFIT_CONFLICT);
    says("soft limit");
    o.policy = MEMFIT_POLICY_GROWTH;
    pool = open_pool(device, o);
    assert_int_equal(memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, &err), MEMFIT_CONFLICT);
    says("soft limit");
    assert_int_equal(info_of(pool).policy, MEMFIT_POLICY_GROWTH);
    assert_int_equal(info_of(pool).reserved_bytes, 0);
    assert_ok(memfit_pool_set_soft_limit(pool, 0, &err), err);
    assert_ok(memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, &err), err);
    assert_int_equal(memfit_pool_set_soft_limit(pool, 16 * MiB, &err), MEMFIT_CONFLICT);
    says("soft limit");
    assert_int_equal(info_of(pool).soft_limit_bytes, 0);
    assert_ok(memfit_pool_set_soft_limit(pool, 0, &err), err);
    end(pool, device);
}

/* Above the limit, also when the limit is all the device has. */
static void soft_limit_above_the_limit(void **state)
{
    (void)state;
    memfit_device *device = open_sim(64 * MiB);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    memfit_pool *pool;
    o.soft_limit_bytes = 65 * MiB;
    assert_int_equal(memfit_pool_create(device, &o, &pool, &err), MEMFIT_CONFLICT);
    says("above the limit");
    o.soft_limit_bytes = 64 * MiB;
    pool = open_pool(device, o);
    assert_int_equal(memfit_pool_set_soft_limit(pool, 64 * MiB + 1, &err), MEMFIT_CONFLICT);
    assert_ok(memfit_pool_set_limit(pool, 32 * MiB, false, &err), err); /* it comes down with the limit */
    assert_int_equal(info_of(pool).soft_limit_bytes, 32 * MiB);
    end(pool, device);
}

/* ---- the limit, downwards -------------------------------------------------------------------------------------- */

/* A large piece is given back as a whole or not at all: its idle pages do not count as such, and nothing else goes
 * either when that is not enough. */
static void limit_between_large_pieces(void **state)
{
    (void)state;
    memfit_device *device = open_sim(256 * MiB);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.bulk_bytes = 16 * MiB;
    memfit_pool *pool = open_pool(device, o);
    drop(pool, get(pool, 64 * MiB));
    memfit_address a = get(pool, 2 * MiB);
    memfit_pool_info before = info_of(pool), after;
    assert_int_equal(before.reserved_bytes, 64 * MiB);
    assert_int_equal(memfit_pool_set_limit(pool, 8 * MiB, false, &err), MEMFIT_CONFLICT);
    after = info_of(pool);
    assert_int_equal(after.reserved_bytes, before.reserved_bytes);
    assert_int_equal(after.limit_bytes, before.limit_bytes);
    assert_int_equal(err.limit_bytes, 16 * MiB); /* the lowest that would do, and it does */
    assert_ok(memfit_pool_set_limit(pool, err.limit_bytes, false, &err), err);
    assert_int_equal(info_of(pool).reserved_bytes, 16 * MiB);
    drop(pool, a);
    assert_ok(memfit_pool_set_limit(pool, 2 * MiB, false, &err), err);
    assert_int_equal(info_of(pool).reserved_bytes, 0);
    end(pool, device);
}

/* The device takes some pages back and refuses the next: the limit stays, and what went is said. */
static void limit_refused_half_way(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        memfit_device *device = open_sim(64 * MiB);
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.limit_bytes = 32 * MiB;
        o.policy = all ? MEMFIT_POLICY_PREALLOCATE : MEMFIT_POLICY_GROWTH;
        memfit_pool *pool = open_pool(device, o);
        drop(pool, get(pool, 32 * MiB));
        mf_sim_fail(device, MF_CALL_RELEASE, 3, true);
        assert_int_equal(memfit_pool_set_limit(pool, 16 * MiB, false, &err), MEMFIT_CONFLICT);
        mf_sim_fail(device, MF_CALL_RELEASE, 0, false);
        assert_int_equal(info_of(pool).limit_bytes, 32 * MiB);
        assert_int_equal(info_of(pool).reserved_bytes, (all ? 32 : 28) * MiB); /* preallocate: taken again */
        says(all ? "as it was" : "4194304 bytes of idle pages");
        assert_ok(memfit_pool_set_limit(pool, 16 * MiB, false, &err), err);
        assert_int_equal(info_of(pool).reserved_bytes, 16 * MiB);
        end(pool, device);
    }
}

/* ---- the purge's timer ------------------------------------------------------------------------------------------ */

/* A policy that is refused, or is in force already, does not put the purge off. */
static void policy_leaves_the_timer(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        memfit_device *device = open_sim(256 * MiB);
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.purge_ms = 1000;
        memfit_pool *pool = open_pool(device, o), *other = open_pool(device, (memfit_pool_options)MEMFIT_POOL_OPTIONS);
        drop(pool, get(pool, 64 * MiB));
        get(other, 64 * MiB);
        mf_sim_advance_us(device, 1100000);
        assert_ok(memfit_pool_poll(pool, &err), err); /* an interval begins in which nothing is used */
        mf_sim_advance_us(device, 900000);
        memfit_policy policy = again ? MEMFIT_POLICY_GROWTH : MEMFIT_POLICY_PREALLOCATE;
        assert_int_equal(memfit_pool_set_policy(pool, policy, &err), again ? MEMFIT_OK : MEMFIT_OUT_OF_MEMORY);
        assert_int_equal(info_of(pool).reserved_bytes, 64 * MiB);
        mf_sim_advance_us(device, 200000);
        assert_ok(memfit_pool_poll(pool, &err), err);
        assert_int_equal(info_of(pool).reserved_bytes, 0);
        memfit_pool_destroy(other);
        end(pool, device);
    }
}

/* ---- variables ---------------------------------------------------------------------------------------------- */

typedef struct variable {
    const char *name, *value;
    memfit_status status;
    const char *word;
} variable;

static void numbers_that_are_none(void **state)
{
    (void)state;
    static const variable rows[] = {
        {"MEMFIT_PURGE_MS", "18446744073709551616", MEMFIT_INVALID, "MEMFIT_PURGE_MS"},
        {"MEMFIT_PURGE_MS", "99999999999999999999999", MEMFIT_INVALID, "MEMFIT_PURGE_MS"},
        {"MEMFIT_PURGE_MS", "18446744073709551615", MEMFIT_INVALID, "never"},
        {"MEMFIT_PURGE_MS", "18446744073709551615x", MEMFIT_INVALID, "never"},
        {"MEMFIT_PURGE_MS", "-1", MEMFIT_INVALID, "never"},
        {"MEMFIT_PURGE_MS", "+1", MEMFIT_INVALID, "never"},
        {"MEMFIT_PURGE_MS", "1.5", MEMFIT_INVALID, "never"},
        {"MEMFIT_PURGE_MS", "18446744073709551614", MEMFIT_OK, ""},
        {"MEMFIT_PURGE_MS", "0", MEMFIT_OK, ""},
        {"MEMFIT_MEMORY", "99999999999999999999", MEMFIT_INVALID, "MEMFIT_MEMORY"},
        {"MEMFIT_MEMORY", "0", MEMFIT_INVALID, "MEMFIT_MEMORY"},
        {"MEMFIT_MEMORY", "0%", MEMFIT_INVALID, "MEMFIT_MEMORY"},
        {"MEMFIT_MEMORY", "-1GiB", MEMFIT_INVALID, "MEMFIT_MEMORY"},
        {"MEMFIT_SOFT_LIMIT", "99999999999999999999", MEMFIT_INVALID, "MEMFIT_SOFT_LIMIT"},
        {"MEMFIT_SOFT_LIMIT", "65MiB", MEMFIT_CONFLICT, "soft limit"},
        {"MEMFIT_SOFT_LIMIT", "50%", MEMFIT_OK, ""},
        {"MEMFIT_PAGE", "18446744073709551616", MEMFIT_INVALID, "MEMFIT_PAGE"},
        {"MEMFIT_BULK", "18446744073709551616", MEMFIT_INVALID, "MEMFIT_BULK"},
        {"MEMFIT_SLACK", "99999999999999999999%", MEMFIT_INVALID, "MEMFIT_SLACK"},
        {"MEMFIT_SLACK", "5", MEMFIT_INVALID, "percentage"},
        {"MEMFIT_SLACK", "1KiB", MEMFIT_INVALID, "percentage"},
        {"MEMFIT_SLACK", "0.02", MEMFIT_INVALID, "MEMFIT_SLACK"},
    };
    memfit_device *device = open_sim(64 * MiB);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memfit_pool *pool = NULL;
        setenv(rows[i].name, rows[i].value, 1);
        memfit_status status = memfit_pool_create(device, NULL, &pool, &err);
        unsetenv(rows[i].name);
        if (status != rows[i].status)
            fail_msg("%s=%s: %s %s", rows[i].name, rows[i].value, memfit_status_name(status), err.message);
        if (status)
            says(rows[i].word);
        memfit_pool_destroy(pool);
    }
    assert_ok(memfit_device_close(device, &err), err);
}

/* 1 turns an option on, 0 leaves it off and contradicts a program that turns it on, anything else is refused. */
static void flags(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t at;
    } rows[] = {
        {"MEMFIT_SLICE", offsetof(memfit_pool_options, slice)},
        {"MEMFIT_KEEP_IDLE", offsetof(memfit_pool_options, keep_idle)},
        {"MEMFIT_NO_THREAD_CACHES", offsetof(memfit_pool_options, no_thread_caches)},
        {"MEMFIT_NO_STREAM_WAIT", offsetof(memfit_pool_options, no_stream_wait)},
        {"MEMFIT_DEBUG", offsetof(memfit_pool_options, debug)},
    };
    memfit_device *device = open_sim(64 * MiB);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memfit_pool *pool = NULL;
        memfit_pool_options off = (memfit_pool_options)MEMFIT_POOL_OPTIONS, on = off;
        ((bool *)&on)[rows[i].at] = true;
        setenv(rows[i].name, "0", 1);
        assert_int_equal(memfit_pool_create(device, &on, &pool, &err), MEMFIT_CONFLICT);
        says(rows[i].name);
        assert_ok(memfit_pool_create(device, &off, &pool, &err), err);
        memfit_pool_destroy(pool);
        setenv(rows[i].name, "1", 1);
        assert_ok(memfit_pool_create(device, &on, &pool, &err), err);
        memfit_pool_destroy(pool);
        assert_ok(memfit_pool_create(device, &off, &pool, &err), err);
        memfit_pool_destroy(pool);
        setenv(rows[i].name, "yes", 1);
        assert_int_equal(memfit_pool_create(device, &off, &pool, &err), MEMFIT_INVALID);
        says("0 or 1");
        unsetenv(rows[i].name);
    }
    assert_ok(memfit_device_close(device, &err), err);
}

static memfit_pool *open_with(memfit_device *device, const char *name, memfit_pool_options options)
{
    setenv(name, "1", 1);
    memfit_pool *pool = open_pool(device, options);
    unsetenv(name);
    return pool;
}

/* And each does what the option does. */
static void flags_do_something(void **state)
{
    (void)state;
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    memfit_device *device = open_sim(64 * MiB);
    memfit_pool *pool, *other;
    memfit_address a;
    o.limit_bytes = 48 * MiB;
    pool = open_with(device, "MEMFIT_SLICE", o);
    other = open_pool(device, o);
    assert_int_equal(memfit_pool_alloc(other, 17 * MiB, 0, &a, &err), MEMFIT_OUT_OF_MEMORY);
    memfit_pool_destroy(other);
    memfit_pool_destroy(pool);

    for (int off = 0; off < 2; off++) {
        pool = off ? open_with(device, "MEMFIT_NO_THREAD_CACHES", o) : open_pool(device, o);
        drop(pool, get(pool, 1000));
        assert_true((info_of(pool).cached_bytes == 0) == (off == 1));
        memfit_pool_destroy(pool);
    }
    pool = open_with(device, "MEMFIT_NO_STREAM_WAIT", o);
    drop(pool, get(pool, 32 * MiB));
    mf_sim_hold(device, 0, true);
    assert_int_equal(memfit_pool_set_limit(pool, 16 * MiB, false, &err), MEMFIT_CONFLICT);
    says("as it was");
    assert_int_equal(info_of(pool).reserved_bytes, 32 * MiB);
    mf_sim_hold(device, 0, false);
    assert_ok(memfit_pool_set_limit(pool, 16 * MiB, false, &err), err);
    memfit_pool_destroy(pool);

    o.soft_limit_bytes = 16 * MiB;
    pool = open_with(device, "MEMFIT_KEEP_IDLE", o);
    drop(pool, get(pool, 32 * MiB));
    assert_ok(memfit_pool_set_purge(pool, 1000, &err), err);
    for (int i = 0; i < 4; i++) {
        mf_sim_advance_us(device, 1100000);
        assert_ok(memfit_pool_poll(pool, &err), err);
    }
    assert_int_equal(info_of(pool).reserved_bytes, 16 * MiB);
    assert_ok(memfit_pool_set_keep_idle(pool, false, &err), err); /* and off again, while in use */
    mf_sim_advance_us(device, 1100000);
    assert_ok(memfit_pool_poll(pool, &err), err);
    assert_int_equal(info_of(pool).reserved_bytes, 0);
    end(pool, device);
}

/* ---- setters ------------------------------------------------------------------------------------------------ */

static void limit_as_a_fraction(void **state)
{
    (void)state;
    memfit_device *device = open_sim(64 * MiB);
    memfit_pool *pool = open_pool(device, (memfit_pool_options)MEMFIT_POOL_OPTIONS);
    static const double none[] = {0.0, -0.5, 1.0001, NAN, INFINITY};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(memfit_pool_set_limit_fraction(pool, none[i], true, &err), MEMFIT_INVALID);
        says("at most 1");
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        memfit_pool *other;
        o.limit_fraction = none[i];
        if (none[i] != 0.0)
            assert_int_equal(memfit_pool_create(device, &o, &other, &err), MEMFIT_INVALID);
    }
    assert_int_equal(memfit_pool_set_limit_fraction(pool, 0.001, false, &err), MEMFIT_INVALID); /* not a page */
    assert_int_equal(info_of(pool).limit_bytes, 64 * MiB);
    assert_ok(memfit_pool_set_limit_fraction(pool, 0.5, false, &err), err);
    assert_int_equal(info_of(pool).limit_bytes, 32 * MiB);
    memfit_address a = get(pool, 24 * MiB), b;
    assert_int_equal(memfit_pool_set_limit_fraction(pool, 0.25, false, &err), MEMFIT_CONFLICT);
    assert_int_equal(err.limit_bytes, 24 * MiB);
    assert_int_equal(info_of(pool).limit_bytes, 32 * MiB);
    assert_ok(memfit_pool_set_limit_fraction(pool, 0.25, true, &err), err);
    assert_int_equal(memfit_pool_alloc(pool, MiB, 0, &b, &err), MEMFIT_OUT_OF_MEMORY);
    drop(pool, a);
    assert_int_equal(info_of(pool).limit_bytes, 16 * MiB);
    assert_ok(memfit_pool_set_limit_fraction(pool, 1, false, &err), err);
    get(pool, 64 * MiB);
    end(pool, device);
}

/* How much the pool takes, with holes of 6 MiB and a request of 8, before it moves pages. */
static void slack(void **state)
{
    (void)state;
    for (int much = 0; much < 2; much++) {
        memfit_device *device = open_sim(256 * MiB);
        memfit_pool *pool = open_pool(device, (memfit_pool_options)MEMFIT_POOL_OPTIONS);
        assert_int_equal(memfit_pool_set_slack(pool, 1.5, &err), MEMFIT_INVALID);
        assert_int_equal(memfit_pool_set_slack(pool, -1, &err), MEMFIT_INVALID);
        assert_int_equal(memfit_pool_set_slack(pool, NAN, &err), MEMFIT_INVALID);
        memfit_address at[8];
        for (unsigned i = 0; i < 8; i++)
            at[i] = get(pool, 6 * MiB);
        for (unsigned i = 0; i < 8; i += 2)
            drop(pool, at[i]);
        assert_ok(memfit_pool_set_slack(pool, much ? 1 : 0, &err), err);
        get(pool, 8 * MiB);
        assert_int_equal(info_of(pool).remaps, much ? 0 : 1);
        assert_int_equal(info_of(pool).reserved_bytes, (much ? 56 : 48) * MiB);
        end(pool, device);
    }
}

static void no_pool(void **state)
{
    (void)state;
    memfit_device *device = open_sim(64 * MiB);
    memfit_pool *pool = open_pool(device, (memfit_pool_options)MEMFIT_POOL_OPTIONS);
    assert_int_equal(memfit_pool_set_limit_fraction(NULL, 0.5, false, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_set_keep_idle(NULL, true, &err), MEMFIT_INVALID);
    assert_int_equal(memfit_pool_set_slack(NULL, 0.5, &err), MEMFIT_INVALID);
    memfit_pool_destroy(pool);
    assert_int_equal(memfit_pool_set_limit_fraction(pool, 0.5, false, &err), MEMFIT_MISUSE);
    assert_int_equal(memfit_pool_set_keep_idle(pool, true, &err), MEMFIT_MISUSE);
    assert_int_equal(memfit_pool_set_slack(pool, 0.5, &err), MEMFIT_MISUSE);
    assert_ok(memfit_device_close(device, &err), err);
}

static void refused(memfit_device *device, memfit_pool_options o, memfit_status want, const char *word)
{
    memfit_pool *pool = (memfit_pool *)1;
    assert_int_equal(memfit_pool_create(device, &o, &pool, &err), want);
    assert_ptr_equal(pool, (memfit_pool *)1);
    if (!strstr(err.message, word) && !strstr(err.hint, word))
        fail_msg("\"%s\" / \"%s\" does not say \"%s\"", err.message, err.hint, word);
}

static void options_that_make_no_sense(void **state)
{
    (void)state;
    memfit_device *device = open_costly_sim(64 * MiB, 4 * MiB);
    memfit_pool_options d = (memfit_pool_options)MEMFIT_POOL_OPTIONS, o = d;
    o.limit_bytes = 8 * MiB, o.limit_fraction = 0.5;
    refused(device, o, MEMFIT_CONFLICT, "fraction");
    o = d, o.limit_fraction = 1.5;
    refused(device, o, MEMFIT_INVALID, "1.5");
    o = d, o.limit_fraction = -0.1;
    refused(device, o, MEMFIT_INVALID, "-0.1");
    o = d, o.limit_bytes = (uint64_t)(0.8 * 1024 * 1024 * 1024); /* the slip: above this device */
    refused(device, o, MEMFIT_INVALID, "above the device");
    o = d, o.limit_bytes = 1024; /* the other slip: megabytes were meant */
    refused(device, o, MEMFIT_INVALID, "1024MiB");
    o = d, o.limit_bytes = 5 * MiB;
    refused(device, o, MEMFIT_OUT_OF_MEMORY, "fixed cost");
    o = d, o.page_bytes = 3 * MiB;
    refused(device, o, MEMFIT_INVALID, "power of two");
    o = d, o.page_bytes = 65536; /* below the device's granularity */
    refused(device, o, MEMFIT_INVALID, "granularity");
    o = d, o.bulk_bytes = 3 * MiB;
    refused(device, o, MEMFIT_INVALID, "bulk");
    o = d, o.limit_bytes = 16 * MiB, o.soft_limit_bytes = 17 * MiB;
    refused(device, o, MEMFIT_CONFLICT, "soft");
    o = d, o.policy = MEMFIT_POLICY_PREALLOCATE, o.soft_limit_bytes = 17 * MiB;
    refused(device, o, MEMFIT_CONFLICT, "preallocate");
    o = d, o.policy = (memfit_policy)7;
    refused(device, o, MEMFIT_INVALID, "policy");
    o = d, o.size = 3;
    refused(device, o, MEMFIT_INVALID, "size");
    o = d, o.limit_fraction = 0.5;
    memfit_pool *pool;
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    assert_int_equal(info_of(pool).limit_bytes, 32 * MiB);
    assert_int_equal(info_of(pool).fixed_bytes, 4 * MiB);
    assert_int_equal(memfit_device_close(device, &err), MEMFIT_MISUSE);
    end(pool, device);
}

static void variables(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value;
        memfit_status status;
        const char *word;
    } rows[] = {
        {"MEMFIT_MEMORY", "16MiB", MEMFIT_OK, ""},
        {"MEMFIT_MEMORY", "50%", MEMFIT_OK, ""},
        {"MEMFIT_MEMORY", "16 parsecs", MEMFIT_INVALID, "MEMFIT_MEMORY"},
        {"MEMFIT_MEMRY", "16MiB", MEMFIT_INVALID, "MEMFIT_MEMORY"},
        {"MEMFIT_HOST_MEMORY", "16MiB", MEMFIT_INVALID, "not a setting"},
        {"MEMFIT_LIB_CUDNN", "/no/such/file", MEMFIT_OK, ""},
        {"MEMFIT_LIB_CUDDN", "/no/such/file", MEMFIT_INVALID, "not a setting"},
        {"MEMFIT_BULK", "8MiB", MEMFIT_OK, ""},
        {"MEMFIT_BULK", "3MiB", MEMFIT_INVALID, "bulk"},
        {"MEMFIT_SLACK", "2%", MEMFIT_OK, ""},
        {"MEMFIT_SLACK", "200%", MEMFIT_INVALID, "MEMFIT_SLACK"},
        {"MEMFIT_POLICY", "preallocate", MEMFIT_OK, ""},
        {"MEMFIT_POLICY", "grow", MEMFIT_INVALID, "growth"},
        {"MEMFIT_PURGE_MS", "never", MEMFIT_OK, ""},
        {"MEMFIT_PURGE_MS", "soon", MEMFIT_INVALID, "never"},
        {"MEMFIT_PAGE", "4MiB", MEMFIT_OK, ""},
        {"MEMFIT_PAGE", "5MiB", MEMFIT_INVALID, "power of two"},
        {"MEMFIT_SOFT_LIMIT", "16MiB", MEMFIT_OK, ""},
        {"MEMFIT_DEBUG", "1", MEMFIT_OK, ""},
        {"MEMFIT_DEBUG", "yes", MEMFIT_INVALID, "0 or 1"},
    };
    memfit_device *device = open_sim(64 * MiB);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memfit_pool *pool = NULL;
        setenv(rows[i].name, rows[i].value, 1);
        memfit_status status = memfit_pool_create(device, NULL, &pool, &err);
        if (status != rows[i].status ||
            (status && !strstr(err.message, rows[i].word) && !strstr(err.hint, rows[i].word)))
            fail_msg("%s=%s: %s %s", rows[i].name, rows[i].value, memfit_status_name(status), err.message);
        if (!status && !strcmp(rows[i].name, "MEMFIT_MEMORY"))
            assert_int_equal(info_of(pool).limit_bytes, *rows[i].value == '1' ? 16 * MiB : 32 * MiB);
        memfit_pool_options o = MEMFIT_POOL_OPTIONS; /* the program says otherwise: a conflict, told */
        o.limit_bytes = 40 * MiB;
        memfit_pool *other;
        if (!strcmp(rows[i].name, "MEMFIT_MEMORY") && !status)
            assert_int_equal(memfit_pool_create(device, &o, &other, &err), MEMFIT_CONFLICT);
        memfit_pool_destroy(pool);
        o.ignore_environment = true;
        assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
        memfit_pool_destroy(pool);
        unsetenv(rows[i].name);
    }
    assert_ok(memfit_device_close(device, &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_make_no_sense),
        cmocka_unit_test(variables),
        cmocka_unit_test(soft_limit_and_preallocate),
        cmocka_unit_test(soft_limit_above_the_limit),
        cmocka_unit_test(limit_between_large_pieces),
        cmocka_unit_test(limit_refused_half_way),
        cmocka_unit_test(policy_leaves_the_timer),
        cmocka_unit_test(numbers_that_are_none),
        cmocka_unit_test(flags),
        cmocka_unit_test(flags_do_something),
        cmocka_unit_test(limit_as_a_fraction),
        cmocka_unit_test(slack),
        cmocka_unit_test(no_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
