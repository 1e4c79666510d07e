/*
 * test_pool_fault.c: every public call of device and pool with the Nth host allocation failing, and with the Nth device
 * call failing, for every N, once and for ever. After each failure the state is what it was before the call; at the end
 * nothing has leaked.
 *
 * One scenario a call: it brings a pool into a state in which the call has much to do, arms the fault, calls, and
 * compares. N grows until the call gets through without meeting the fault.
 */
#include "test.h"

#include "base/memory.h"
#include "device/sim.h"
#include "memfit/explanation.h"
#include "pool/pool.h"

#define MiB (UINT64_C(1) << 20)
enum { KEPT = 40 };

typedef struct world {
    mf_fault_host host;
    memfit_device *device;
    memfit_pool *pool, *other;
    memfit_address at[KEPT];
    memfit_stream stream;
    memfit_address out;
    memfit_owner owner;
} world;

static memfit_error err;

static memfit_pool_options pool_options(void)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.limit_bytes = 64 * MiB;
    o.ignore_environment = true;
    return o;
}

/* A pool with live blocks, holes, idle pages, slabs, and memory short enough that growing means moving pages. */
static void build(world *w)
{
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    *w = (world){0};
    mf_fault_host_init(&w->host, NULL, 0, false);
    d.host = &w->host.host;
    d.capacity_bytes = 128 * MiB;
    assert_ok(memfit_device_open("sim", &d, &w->device, &err), err);
    memfit_pool_options o = pool_options();
    assert_ok(memfit_pool_create(w->device, &o, &w->pool, &err), err);
    o.limit_bytes = 0;
    o.limit_fraction = 0.25;
    assert_ok(memfit_pool_create(w->device, &o, &w->other, &err), err);
    assert_ok(memfit_stream_create(w->device, &w->stream, &err), err);
    assert_ok(memfit_pool_owner(w->pool, MEMFIT_KIND_GRADIENTS, "g", &w->owner, &err), err);
    for (unsigned i = 0; i < KEPT; i++)
        assert_ok(memfit_pool_alloc(w->pool, i % 3 ? i * 700 : 3 * MiB + i * 1000, 0, &w->at[i], &err), err);
    for (unsigned i = 0; i < KEPT; i += 2) {
        assert_ok(memfit_pool_free(w->pool, w->at[i], &err), err);
        w->at[i] = 0;
    }
}

/* `dead`: the device refused everything while a pool was being given back; only its own end clears that. */
static void raze(world *w, bool dead)
{
    mf_sim_fail(w->device, MF_CALL_ANY, 0, false);
    w->host.fail_at = 0;
    memfit_pool_destroy(w->pool);
    memfit_pool_destroy(w->other);
    assert_ok(memfit_stream_destroy(w->device, w->stream, &err), err);
    mf_sim_counts c = mf_sim_get(w->device);
    if (!dead) {
        assert_int_equal(c.physical_bytes, 0);
        assert_int_equal(c.mapped_bytes, 0);
        assert_int_equal(c.reserved_bytes, 0);
    }
    assert_int_equal(c.events, 0);
    assert_ok(memfit_device_close(w->device, &err), err);
    assert_int_equal(w->host.live_bytes, 0);
    assert_int_equal(w->host.live_count, 0);
}

/* ---- the calls ------------------------------------------------------------------------------------------------- */

static memfit_status call_alloc_small(world *w)
{
    return memfit_pool_alloc(w->pool, 20000, w->owner, &w->out, &err);
}
static memfit_status call_alloc_grow(world *w)
{
    return memfit_pool_alloc(w->pool, 30 * MiB, w->owner, &w->out, &err);
}
static memfit_status call_alloc_all(world *w) /* every page that is not live has to move */
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_status status = memfit_pool_get_info(w->pool, &info, &err);
    return status ? status : memfit_pool_alloc(w->pool, info.available_bytes, 0, &w->out, &err);
}
static memfit_status call_alloc_stream(world *w)
{
    return memfit_pool_alloc_on(w->pool, 5 * MiB, 4096, 0, w->stream, &w->out, &err);
}
static memfit_status call_alloc_other(world *w)
{
    return memfit_pool_alloc(w->other, 20 * MiB, 0, &w->out, &err);
}
static memfit_status call_free(world *w)
{
    memfit_status status = memfit_pool_free(w->pool, w->at[1], &err);
    if (!status)
        w->at[1] = 0;
    return status;
}
static memfit_status call_free_stream(world *w)
{
    memfit_status status = memfit_pool_free_on(w->pool, w->at[3], w->stream, &err);
    if (!status)
        w->at[3] = 0;
    return status;
}
static memfit_status call_owner(world *w)
{
    char name[16];
    for (unsigned i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "n%u", i);
        memfit_status status = memfit_pool_owner(w->pool, MEMFIT_KIND_INPUTS, name, &w->owner, &err);
        if (status)
            return status;
    }
    return MEMFIT_OK;
}
static memfit_status call_limit_down(world *w)
{
    return memfit_pool_set_limit(w->pool, 40 * MiB, false, &err);
}
static memfit_status call_limit_up(world *w)
{
    return memfit_pool_set_limit(w->pool, 80 * MiB, false, &err);
}
static memfit_status call_fraction_down(world *w)
{
    return memfit_pool_set_limit_fraction(w->pool, 0.3125, false, &err);
}
static memfit_status call_fraction_up(world *w)
{
    return memfit_pool_set_limit_fraction(w->pool, 0.625, false, &err);
}
static memfit_status call_keep_idle(world *w)
{
    return memfit_pool_set_keep_idle(w->pool, true, &err);
}
static memfit_status call_slack(world *w)
{
    return memfit_pool_set_slack(w->pool, 0.05, &err);
}
static memfit_status call_soft(world *w)
{
    return memfit_pool_set_soft_limit(w->pool, 30 * MiB, &err);
}
static memfit_status call_preallocate(world *w)
{
    return memfit_pool_set_policy(w->pool, MEMFIT_POLICY_PREALLOCATE, &err);
}
static memfit_status call_purge(world *w)
{
    return memfit_pool_set_purge(w->pool, 5, &err);
}
static memfit_status call_trim(world *w)
{
    return memfit_pool_trim(w->pool, 0, NULL, &err);
}
static memfit_status call_poll(world *w)
{
    mf_sim_advance_us(w->device, 60000000);
    return memfit_pool_poll(w->pool, &err);
}
static memfit_status call_flush(world *w)
{
    return memfit_pool_flush_thread(w->pool, &err);
}
static memfit_status call_forget(world *w)
{
    return memfit_pool_forget_stream(w->pool, 0, &err);
}
static memfit_status call_info(world *w)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    return memfit_pool_get_info(w->pool, &info, &err);
}
static memfit_status call_owners(world *w)
{
    memfit_owner_info list[4];
    size_t n;
    memfit_status status = memfit_pool_owners(w->pool, list, sizeof *list, 4, &n, &err);
    return status ? status : memfit_pool_leaks(w->pool, list, sizeof *list, 4, &n, &err);
}
static memfit_status call_growth(world *w)
{
    memfit_owner_info list[4];
    size_t n;
    return memfit_pool_growth(w->pool, 0, list, sizeof *list, 4, &n, &err);
}
static memfit_status call_mark(world *w)
{
    return memfit_pool_mark(w->pool, NULL, &err);
}
static memfit_status call_reset(world *w)
{
    return memfit_pool_reset_peaks(w->pool, &err);
}
static memfit_status call_find(world *w)
{
    memfit_block_info block = MEMFIT_BLOCK_INFO;
    return memfit_pool_find(w->pool, w->at[1], &block, &err);
}
static bool see_block(void *ctx, const memfit_block_info *block)
{
    return *(uint64_t *)ctx += block->bytes, true;
}
static memfit_status call_each_block(world *w)
{
    uint64_t bytes = 0;
    return memfit_pool_each_block(w->pool, see_block, &bytes, &err);
}
static uint64_t no_relief(void *ctx, memfit_pool *pool, uint64_t wanted_bytes, bool hard)
{
    (void)ctx, (void)pool, (void)wanted_bytes, (void)hard;
    return 0;
}
static memfit_status call_pressure(world *w)
{
    memfit_status status = memfit_pool_on_pressure(w->pool, no_relief, NULL, &err);
    return status ? status : memfit_pool_off_pressure(w->pool, no_relief, NULL, &err);
}
static memfit_status call_limit_when_freed(world *w)
{
    return memfit_pool_set_limit(w->pool, 10 * MiB, true, &err);
}
/* More than there is: refused and explained, and the explanation reads back. */
static memfit_status call_refused(world *w)
{
    memfit_address address;
    memfit_explanation why = MEMFIT_EXPLANATION;
    memfit_error refused;
    memfit_status status = memfit_pool_alloc(w->pool, 100 * MiB, w->owner, &address, &refused);
    if (status == MEMFIT_OUT_OF_MEMORY)
        return memfit_pool_explain(w->pool, &why, &err);
    err = refused;
    return status ? status : MEMFIT_INTERNAL;
}
static memfit_status call_sync(world *w)
{
    return memfit_stream_sync(w->device, w->stream, &err);
}
static memfit_status call_create(world *w)
{
    memfit_pool_options o = pool_options();
    o.policy = MEMFIT_POLICY_PREALLOCATE;
    o.limit_bytes = 20 * MiB;
    o.slice = true;
    memfit_pool *made;
    memfit_status status = memfit_pool_create(w->device, &o, &made, &err);
    if (!status)
        memfit_pool_destroy(made);
    return status;
}
static memfit_status call_create_growth(world *w)
{
    memfit_pool_options o = pool_options();
    o.limit_bytes = 0;
    memfit_pool *made;
    memfit_status status = memfit_pool_create(w->device, &o, &made, &err);
    if (!status)
        memfit_pool_destroy(made);
    return status;
}
static memfit_status call_open(world *w)
{
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.host = &w->host.host;
    memfit_device *made;
    memfit_status status = memfit_device_open("sim", &d, &made, &err);
    return status ? status : memfit_device_close(made, &err);
}
static memfit_status call_open_cpu(world *w)
{
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.host = &w->host.host;
    memfit_device *made;
    memfit_status status = memfit_device_open("cpu", &d, &made, &err);
    return status ? status : memfit_device_close(made, &err);
}
static memfit_status call_stream_create(world *w)
{
    memfit_stream s;
    memfit_status status = memfit_stream_create(w->device, &s, &err);
    if (status)
        return status;
    status = memfit_stream_destroy(w->device, s, &err);
    if (status) /* it is still there */
        return memfit_stream_destroy(w->device, s, NULL), status;
    return MEMFIT_OK;
}
static memfit_status call_device_info(world *w)
{
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    return memfit_device_get_info(w->device, &info, &err);
}
static memfit_status call_copy(world *w)
{
    char bytes[64] = {0};
    memfit_status status = memfit_device_copy_in(w->device, w->at[3], bytes, 64, 0, &err);
    return status ? status : memfit_device_copy_out(w->device, bytes, w->at[3], 64, 0, &err);
}

typedef struct call_row {
    const char *name;
    memfit_status (*call)(world *w);
    bool allocates; /* on success there is one more block, at w->out */
    bool makes_pool;
} call_row;

static const call_row calls[] = {
    {"alloc small", call_alloc_small, true},
    {"alloc growing", call_alloc_grow, true},
    {"alloc moving", call_alloc_all, true},
    {"alloc on a stream", call_alloc_stream, true},
    {"alloc in the other", call_alloc_other, false},
    {"free", call_free, false},
    {"free on a stream", call_free_stream, false},
    {"owner", call_owner, false},
    {"limit down", call_limit_down, false},
    {"limit up", call_limit_up, false},
    {"limit down, fraction", call_fraction_down, false},
    {"limit up, fraction", call_fraction_up, false},
    {"keep idle", call_keep_idle, false},
    {"slack", call_slack, false},
    {"soft limit", call_soft, false},
    {"preallocate", call_preallocate, false},
    {"purge", call_purge, false},
    {"trim", call_trim, false},
    {"poll", call_poll, false},
    {"flush", call_flush, false},
    {"forget a stream", call_forget, false},
    {"info", call_info, false},
    {"owners", call_owners, false},
    {"growth", call_growth, false},
    {"mark", call_mark, false},
    {"reset peaks", call_reset, false},
    {"find", call_find, false},
    {"each block", call_each_block, false},
    {"pressure", call_pressure, false},
    {"limit when freed", call_limit_when_freed, false},
    {"refused", call_refused, false},
    {"sync", call_sync, false},
    {"create", call_create, false, true},
    {"create growing", call_create_growth, false, true},
    {"open sim", call_open, false},
    {"open cpu", call_open_cpu, false},
    {"stream", call_stream_create, false},
    {"device info", call_device_info, false},
    {"copy", call_copy, false},
};

/* What must be the same after a call that failed. */
typedef struct memo {
    uint64_t in_use, blocks, limit, soft_limit, reserved, other_reserved;
    memfit_policy policy;
} memo;

static memo remember(world *w)
{
    memfit_pool_info a = MEMFIT_POOL_INFO, b = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(w->pool, &a, &err), err);
    assert_ok(memfit_pool_get_info(w->other, &b, &err), err);
    return (memo){.in_use = a.in_use_bytes,
                  .blocks = a.blocks,
                  .limit = a.limit_bytes,
                  .soft_limit = a.soft_limit_bytes,
                  .reserved = a.reserved_bytes,
                  .other_reserved = b.reserved_bytes,
                  .policy = a.policy};
}

static void compare(const call_row *row, uint64_t n, const memo *before, const memo *after, memfit_status status,
                    bool dead_device)
{
    bool same = before->in_use == after->in_use && before->blocks == after->blocks && before->limit == after->limit &&
                before->policy == after->policy && before->soft_limit == after->soft_limit;
    /* giving back idle pages on the way to a failure is no change anyone can miss */
    if (!dead_device) /* one that refuses everything for ever does not take pages back either */
        same = same && after->reserved <= before->reserved && after->other_reserved <= before->other_reserved;
    if (status == MEMFIT_CONFLICT && !dead_device && after->reserved < before->reserved) { /* but it is said */
        char went[64];
        snprintf(went, sizeof went, "%llu bytes of idle", (unsigned long long)(before->reserved - after->reserved));
        same = same && strstr(err.hint, went);
    }
    if (!same)
        fprintf(stderr, "%s, fault %llu: %s, but the state has changed: reserved %llu -> %llu, in use %llu -> %llu\n",
                row->name, (unsigned long long)n, memfit_status_name(status), (unsigned long long)before->reserved,
                (unsigned long long)after->reserved, (unsigned long long)before->in_use,
                (unsigned long long)after->in_use);
    assert_true(same);
}

/* Every block that should be live still is, to the byte of its address. */
static void blocks_are_there(world *w)
{
    for (unsigned i = 0; i < KEPT; i++) {
        memfit_block_info block = MEMFIT_BLOCK_INFO;
        if (!w->at[i])
            continue;
        assert_ok(memfit_pool_find(w->pool, w->at[i], &block, &err), err);
        assert_int_equal(block.address, w->at[i]);
        assert_ok(memfit_device_fill(w->device, block.address, 0, block.bytes, 0, &err), err);
    }
}

/* True: the fault was met. */
static bool one(const call_row *row, bool on_device, uint64_t n, bool for_ever)
{
    world w;
    build(&w);
    memo before = remember(&w);
    uint64_t calls_before = on_device ? mf_sim_get(w.device).calls[MF_CALL_ANY] : w.host.calls;
    if (on_device)
        mf_sim_fail(w.device, MF_CALL_ANY, n, for_ever);
    else {
        w.host.calls = calls_before = 0;
        w.host.fail_at = n;
        w.host.for_ever = for_ever;
    }
    memfit_status status = row->call(&w);
    uint64_t calls_after = on_device ? mf_sim_get(w.device).calls[MF_CALL_ANY] : w.host.calls;
    mf_sim_fail(w.device, MF_CALL_ANY, 0, false);
    w.host.fail_at = 0;
    memo after = remember(&w);
    if (status)
        compare(row, n, &before, &after, status, on_device && for_ever);
    else if (row->allocates)
        assert_int_equal(after.blocks, before.blocks + 1);
    blocks_are_there(&w);
    assert_ok(mf_pool_check(w.pool, &err), err);
    assert_ok(mf_pool_check(w.other, &err), err);
    assert_true(mf_sim_check(w.device, &err));
    /* and the call works once the fault is gone */
    if (status)
        assert_ok(row->call(&w), err);
    raze(&w, on_device && for_ever && row->makes_pool);
    return calls_after - calls_before >= n;
}

static uint64_t faults; /* met in all */

static void every_call(bool on_device, bool for_ever)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        uint64_t n = 1;
        while (one(&calls[i], on_device, n, for_ever))
            n++;
        faults += n - 1;
    }
}

static void test_host_once(void **state)
{
    (void)state;
    every_call(false, false);
}
static void test_host_for_ever(void **state)
{
    (void)state;
    every_call(false, true);
}
static void test_device_once(void **state)
{
    (void)state;
    every_call(true, false);
}
static void test_device_for_ever(void **state)
{
    (void)state;
    every_call(true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_once),
        cmocka_unit_test(test_host_for_ever),
        cmocka_unit_test(test_device_once),
        cmocka_unit_test(test_device_for_ever),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%zu calls, %llu faults\n", sizeof calls / sizeof *calls, (unsigned long long)faults);
    return failed;
}
