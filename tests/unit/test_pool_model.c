/*
 * test_pool_model.c: a pool against a naive model of it, by random operations.
 *
 * The model knows for every 256 bytes whether they are live and which stream freed them, and for every page how many
 * live blocks touch it. It says when a request may fail: only if the pages with a live byte, and the request's own, are
 * more than the limit allows. Everything else is compared: addresses never overlap and are aligned, accounts add up to
 * the byte, physical memory is never above the limit.
 *
 * With several streams work is queued on blocks as well, on the stream that asked and on others (memfit_pool_use_on), on
 * streams that stand still for a while: sim counts as a violation whatever such work does not survive. There may be a
 * function that frees blocks when memory is short, a soft limit that changes, a logical device beside the pool that must
 * have its bytes at any time, and handles of several pages.
 *
 * Sizes are random, but one request in six repeats the size of a block just freed, so that blocks threads keep are met
 * often. Frees of what is not live (twice, inside a block, outside the pool) must be refused and change nothing.
 *
 * Short as a test. For a long run: MEMFIT_TEST_OPS=100000000 build/tests/test_pool_model. MEMFIT_TEST_SLICE=i gives
 * other random numbers for every i: slices can run side by side and be added up.
 */
#include "test.h"

#include "base/os.h"
#include "device/sim.h"
#include "pool/pool.h"

enum { UNIT = 256, OWNERS = 12, STREAMS = 4, CONFIGURATIONS = 17 };

typedef struct live_block {
    memfit_address address;
    uint64_t bytes;
    uint32_t owner, mark;
    unsigned stream;     /* whose work is in flight on it, */
    uint32_t generation; /* since then; 0: none */
    bool used;           /* and the pool was told so */
} live_block;

typedef struct setup {
    uint64_t page, capacity;
    bool streams, caches;
    bool roomy; /* few blocks, and pages are made rather than moved, so that threads keep blocks all the time */
    bool pressure, soft, bulk, slack;
    uint64_t slice;
} setup;

typedef struct model {
    memfit_device *device;
    memfit_pool *pool;
    memfit_address base; /* lowest address ever seen, rounded down to the pool's range */
    uint64_t page, capacity, limit, most_live;
    uint64_t units, pages;
    uint64_t *live_bits;
    uint32_t *freed_by; /* per unit: stream << 24 | generation; 0: nobody who matters */
    uint16_t *page_users;
    uint64_t used_pages;
    live_block *blocks;
    size_t count;
    uint64_t freed_bytes[4]; /* sizes freed of late */
    memfit_address freed_at; /* the last block freed */
    uint64_t in_use, peak, owner_bytes[OWNERS], owner_blocks[OWNERS];
    memfit_owner owner[OWNERS];
    memfit_stream stream[STREAMS];
    uint32_t generation[STREAMS];
    bool held[STREAMS];
    bool many_streams;
    setup with;
    memfit_pool *slice;
    memfit_address slice_block;
    uint64_t relieved, uses;
    uint64_t seed, marks, fails, misuses, again;
} model;

static uint64_t rnd(model *m)
{
    m->seed ^= m->seed << 13;
    m->seed ^= m->seed >> 7;
    m->seed ^= m->seed << 17;
    return m->seed * 0x9e3779b97f4a7c15u >> 16;
}

static uint64_t random_size(model *m)
{
    uint64_t r = rnd(m) % 100;
    if (rnd(m) % 6 == 0)
        return m->freed_bytes[rnd(m) % 4];
    if (r < 3)
        return 0;
    if (r < 50)
        return 1 + rnd(m) % 4096;
    if (r < 75)
        return 1 + rnd(m) % 65536;
    if (r < 95)
        return 1 + rnd(m) % (m->page * 2);
    return 1 + rnd(m) % (m->page * 12);
}

/* The 64 bits that [from, to) covers of word w. */
static uint64_t mask(uint64_t w, uint64_t from, uint64_t to)
{
    uint64_t low = w * 64 < from ? from - w * 64 : 0, high = (w + 1) * 64 > to ? (w + 1) * 64 - to : 0;
    return UINT64_MAX << low & UINT64_MAX >> high;
}

static void mark_live(model *m, const live_block *b, bool live)
{
    uint64_t offset = b->address - m->base, from = offset / UNIT,
             to = (offset + b->bytes + UNIT - 1 + !b->bytes) / UNIT;
    assert_true(offset % UNIT == 0 && to <= m->units);
    for (uint64_t w = from / 64; w * 64 < to; w++) {
        uint64_t bits = mask(w, from, to);
        if (live)
            assert_true(!(m->live_bits[w] & bits));
        m->live_bits[w] ^= bits;
    }
    for (uint64_t p = offset / m->page; p <= (offset + (b->bytes ? b->bytes - 1 : 0)) / m->page; p++) {
        if (live)
            m->used_pages += !m->page_users[p]++;
        else
            m->used_pages -= !--m->page_users[p];
    }
    uint64_t bytes = live ? b->bytes : 0 - b->bytes;
    m->in_use += bytes;
    m->owner_bytes[b->owner] += bytes;
    m->owner_blocks[b->owner] += live ? 1 : UINT64_MAX;
    if (m->in_use > m->peak)
        m->peak = m->in_use;
}

/* No unit of the block may have been freed on another stream that has not got there yet. */
static void check_streams(model *m, const live_block *b, unsigned stream)
{
    memfit_block_info info = MEMFIT_BLOCK_INFO;
    assert_int_equal(memfit_pool_find(m->pool, b->address, &info, NULL), MEMFIT_OK);
    assert_true(info.address == b->address && info.bytes == b->bytes && info.owner == m->owner[b->owner]);
    uint64_t from = (b->address - m->base) / UNIT, to = from + info.taken_bytes / UNIT;
    for (uint64_t u = from; u < to; u++) {
        uint32_t by = m->freed_by[u] >> 24, generation = m->freed_by[u] & 0xffffff;
        if (m->freed_by[u] && by - 1 != stream)
            assert_true(generation != m->generation[by - 1] || !m->held[by - 1]);
        m->freed_by[u] = 0;
    }
}

/* Is work on the block in flight? On which stream it may be freed or touched then. */
static bool in_flight(const model *m, const live_block *b)
{
    return b->generation && m->held[b->stream] && m->generation[b->stream] == b->generation;
}

/* Work on a block: on its stream, or on another that the pool is told of, before or after. */
static void do_kernel(model *m, live_block *b, unsigned stream, bool tell)
{
    memfit_error err;
    if (!b->bytes || (in_flight(m, b) && b->stream != stream))
        return; /* two streams would have to wait for each other */
    bool first = rnd(m) % 2;
    if (tell && first)
        assert_ok(memfit_pool_use_on(m->pool, b->address, m->stream[stream], &err), err);
    uint64_t at = rnd(m) % b->bytes, bytes = b->bytes - at < 256 ? b->bytes - at : 256;
    assert_ok(memfit_device_fill(m->device, b->address + at, 1, bytes, m->stream[stream], &err), err);
    if (tell && !first)
        assert_ok(memfit_pool_use_on(m->pool, b->address + at, m->stream[stream], &err), err);
    if (!in_flight(m, b))
        b->used = false;
    b->stream = stream;
    b->generation = m->generation[stream];
    b->used |= tell;
    m->uses += tell;
}

static uint64_t allowed_pages(const model *m)
{
    uint64_t room = (m->capacity - m->with.slice) / m->page;
    return m->limit < room ? m->limit : room;
}

static void do_alloc(model *m)
{
    live_block b = {.bytes = random_size(m), .owner = (uint32_t)(rnd(m) % OWNERS), .mark = (uint32_t)m->marks};
    unsigned stream = m->many_streams ? (unsigned)(rnd(m) % STREAMS) : 0;
    uint64_t alignment = rnd(m) % 16 ? 0 : UINT64_C(256) << rnd(m) % 8;
    memfit_error err;
    memfit_status status =
        memfit_pool_alloc_on(m->pool, b.bytes, alignment, m->owner[b.owner], m->stream[stream], &b.address, &err);
    if (status == MEMFIT_OUT_OF_MEMORY) {
        m->fails++;
        bool any_held = false;
        for (unsigned i = 0; i < STREAMS; i++)
            any_held = any_held || m->held[i];
        uint64_t need = (b.bytes + m->page - 1 + !b.bytes) / m->page;
        if (!any_held && !m->with.bulk && m->used_pages + need <= allowed_pages(m)) {
            fprintf(stderr, "failed with room: %llu bytes, %llu pages used, %llu allowed: %s\n",
                    (unsigned long long)b.bytes, (unsigned long long)m->used_pages, (unsigned long long)m->limit,
                    err.message);
            fail();
        }
        return;
    }
    assert_ok(status, err);
    if (!m->base)
        m->base = b.address / (UINT64_C(1) << 40) * (UINT64_C(1) << 40);
    assert_true(!alignment || b.address % alignment == 0);
    m->again += b.address == m->freed_at && b.bytes > 32768;
    mark_live(m, &b, true);
    if (m->many_streams)
        check_streams(m, &b, stream);
    b.stream = stream; /* it may be memory that this stream, which is behind, has freed before */
    b.generation = m->generation[stream];
    if (m->many_streams && rnd(m) % 4 == 0)
        do_kernel(m, &b, stream, false);
    m->blocks[m->count++] = b;
}

static void do_free(model *m)
{
    if (!m->count)
        return;
    size_t i = rnd(m) % m->count;
    live_block b = m->blocks[i];
    m->blocks[i] = m->blocks[--m->count];
    unsigned stream = m->many_streams ? (unsigned)(rnd(m) % STREAMS) : 0;
    if (in_flight(m, &b) && !b.used) /* freed on another stream it would have to be told of */
        stream = b.stream;
    memfit_error err;
    memfit_block_info info = MEMFIT_BLOCK_INFO;
    if (m->many_streams)
        assert_ok(memfit_pool_find(m->pool, b.address, &info, &err), err);
    assert_ok(memfit_pool_free_on(m->pool, b.address, m->stream[stream], &err), err);
    m->freed_bytes[rnd(m) % 4] = b.bytes;
    m->freed_at = b.address;
    mark_live(m, &b, false);
    if (!m->many_streams || !m->held[stream])
        return;
    uint64_t from = (b.address - m->base) / UNIT, to = from + info.taken_bytes / UNIT;
    for (uint64_t u = from; u < to; u++)
        m->freed_by[u] = (stream + 1) << 24 | m->generation[stream];
}

/* Frees some blocks when the pool is short, now and then. */
static uint64_t relieve(void *ctx, memfit_pool *pool, uint64_t wanted, bool hard)
{
    model *m = ctx;
    (void)pool, (void)wanted, (void)hard;
    uint64_t before = m->in_use;
    for (unsigned i = 0; m->count && i < 3; i++)
        do_free(m);
    m->relieved++;
    return rnd(m) % 3 ? before - m->in_use : 0;
}

/* A logical device has its bytes whatever the pool beside it does. */
static void do_slice(model *m)
{
    memfit_error err;
    if (!m->slice)
        return;
    if (m->slice_block) {
        assert_ok(memfit_pool_free(m->slice, m->slice_block, &err), err);
        m->slice_block = 0;
        if (rnd(m) % 2)
            assert_ok(memfit_pool_trim(m->slice, 0, NULL, &err), err);
    } else {
        assert_ok(memfit_pool_alloc(m->slice, m->with.slice, 0, &m->slice_block, &err), err);
    }
}

/* Frees that must be refused. */
static void do_misuse(model *m)
{
    memfit_error err;
    memfit_address at = m->freed_at;
    if (!at)
        return;
    uint64_t unit = (at - m->base) / UNIT;
    switch (rnd(m) % 3) {
    case 0: /* twice, unless another block begins there now */
        if (m->live_bits[unit / 64] >> (unit % 64) & 1)
            return;
        break;
    case 1: /* inside a block */
        at = m->count ? m->blocks[rnd(m) % m->count].address + 1 + rnd(m) % (UNIT - 1) : at + 1;
        break;
    default:
        at = m->base + m->capacity * 64;
    }
    assert_int_equal(memfit_pool_free(m->pool, at, &err), MEMFIT_MISUSE);
    m->misuses++;
}

static void check_all(model *m)
{
    memfit_error err;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_owner_info owners[OWNERS + 1];
    size_t n;
    assert_ok(mf_pool_check(m->pool, &err), err);
    assert_true(mf_sim_check(m->device, &err));
    assert_ok(memfit_pool_get_info(m->pool, &info, &err), err);
    assert_int_equal(info.in_use_bytes, m->in_use);
    assert_int_equal(info.blocks, m->count);
    assert_int_equal(info.in_use_peak_bytes, m->peak);
    memfit_pool_info other = MEMFIT_POOL_INFO;
    if (m->slice)
        assert_ok(memfit_pool_get_info(m->slice, &other, &err), err);
    assert_int_equal(info.reserved_bytes + other.reserved_bytes, mf_sim_get(m->device).physical_bytes);
    assert_int_equal(mf_sim_get(m->device).violations, 0);
    assert_ok(memfit_pool_owners(m->pool, owners, sizeof *owners, OWNERS + 1, &n, &err), err);
    for (size_t i = 0; i < n; i++)
        for (unsigned k = 0; k < OWNERS; k++)
            if (m->owner[k] == owners[i].owner) {
                assert_int_equal(owners[i].bytes, m->owner_bytes[k]);
                assert_int_equal(owners[i].blocks, m->owner_blocks[k]);
            }
}

static void do_odd(model *m)
{
    memfit_error err;
    uint64_t r = rnd(m) % 11, limit;
    unsigned stream = (unsigned)(rnd(m) % STREAMS);
    switch (r) {
    case 0:
    case 1:
        limit = (8 + rnd(m) % (m->capacity / m->page - 7));
        if (memfit_pool_set_limit(m->pool, limit * m->page, false, &err) == MEMFIT_OK)
            m->limit = limit;
        else
            assert_true(err.code == MEMFIT_CONFLICT || err.code == MEMFIT_OUT_OF_MEMORY);
        break;
    case 2:
        if (memfit_pool_trim(m->pool, rnd(m) % m->capacity, NULL, &err))
            assert_int_equal(err.code, MEMFIT_CONFLICT);
        break;
    case 3:
        (void)memfit_pool_set_policy(m->pool, rnd(m) % 2 ? MEMFIT_POLICY_GROWTH : MEMFIT_POLICY_PREALLOCATE, &err);
        break;
    case 4:
        assert_ok(memfit_pool_mark(m->pool, &m->marks, &err), err);
        break;
    case 5:
        assert_ok(memfit_pool_flush_thread(m->pool, &err), err);
        mf_sim_advance_us(m->device, rnd(m) % 30000000);
        break;
    case 6:
        if (m->with.soft)
            (void)memfit_pool_set_soft_limit(m->pool, (rnd(m) % (m->limit + 1)) * m->page, &err);
        break;
    case 7:
        if (!m->many_streams || !stream)
            break;
        m->held[stream] = false;
        mf_sim_hold(m->device, m->stream[stream], false);
        m->generation[stream]++;
        assert_ok(memfit_pool_forget_stream(m->pool, m->stream[stream], &err), err);
        break;
    default:
        if (!m->many_streams)
            break;
        m->held[stream] = !m->held[stream];
        mf_sim_hold(m->device, m->stream[stream], m->held[stream]);
        m->generation[stream]++;
    }
}

static void open_model(model *m, const setup *with, uint64_t seed)
{
    memfit_error err;
    uint64_t page = with->page, capacity = with->capacity;
    bool many_streams = with->streams, roomy = with->roomy;
    memfit_device_options device = MEMFIT_DEVICE_OPTIONS;
    device.capacity_bytes = capacity;
    device.granularity_bytes = page;
    *m = (model){.page = page, .capacity = capacity, .many_streams = many_streams, .seed = seed, .with = *with};
    for (unsigned i = 0; i < STREAMS; i++)
        m->generation[i] = 1;
    assert_ok(memfit_device_open("sim", &device, &m->device, &err), err);
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.page_bytes = page;
    options.ignore_environment = true;
    options.limit_bytes = capacity;
    options.no_thread_caches = !with->caches;
    options.slack = roomy ? 1.0 : with->slack ? 0.02 : 0.0;
    options.bulk_bytes = with->bulk ? 4 * page : 0;
    assert_ok(memfit_pool_create(m->device, &options, &m->pool, &err), err);
    if (with->slice) {
        options.slice = true;
        options.bulk_bytes = 0;
        options.limit_bytes = with->slice;
        assert_ok(memfit_pool_create(m->device, &options, &m->slice, &err), err);
    }
    if (with->pressure)
        assert_ok(memfit_pool_on_pressure(m->pool, relieve, m, &err), err);
    m->limit = capacity / page;
    m->units = capacity * 17 / UNIT;
    m->live_bits = calloc(m->units / 64 + 1, 8);
    m->freed_by = calloc(m->units + 1, sizeof *m->freed_by);
    m->page_users = calloc(capacity * 17 / page + 1, sizeof *m->page_users);
    m->most_live = roomy ? 160 : capacity / 8192;
    m->blocks = calloc(m->most_live + 1, sizeof *m->blocks);
    for (unsigned i = 0; i < OWNERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "owner %u", i);
        assert_ok(memfit_pool_owner(m->pool, (memfit_kind)(i % MEMFIT_KIND_COUNT), name, &m->owner[i], &err), err);
    }
    for (unsigned i = 1; many_streams && i < STREAMS; i++)
        assert_ok(memfit_stream_create(m->device, &m->stream[i], &err), err);
}

static void close_model(model *m)
{
    memfit_error err;
    while (m->count)
        do_free(m);
    check_all(m);
    for (unsigned i = 0; i < STREAMS; i++) /* the end waits for all of them */
        mf_sim_hold(m->device, m->stream[i], false);
    memfit_pool_destroy(m->pool);
    memfit_pool_destroy(m->slice);
    mf_sim_counts counts = mf_sim_get(m->device);
    assert_int_equal(counts.physical_bytes, 0);
    assert_int_equal(counts.reserved_bytes, 0);
    assert_int_equal(counts.events, 0);
    assert_ok(memfit_device_close(m->device, &err), err);
    free(m->live_bits);
    free(m->freed_by);
    free(m->page_users);
    free(m->blocks);
}

static void run(const setup *with, uint64_t seed, uint64_t ops)
{
    model m;
    uint64_t capacity = with->capacity;
    open_model(&m, with, seed);
    bool growing = true;
    uint64_t check_every = ops / 64 < 2000 ? 200 : ops / 64;
    for (uint64_t i = 0; i < ops; i++) {
        uint64_t r = rnd(&m) % 1000;
        if (r < 4 && rnd(&m) % 8 == 0)
            do_odd(&m);
        else if (m.count < m.most_live && (growing ? r < 560 : r < 440))
            do_alloc(&m);
        else
            do_free(&m);
        if (r == 999)
            do_misuse(&m);
        if (r % 100 == 50)
            do_slice(&m);
        if (m.many_streams && m.count && r % 16 == 3)
            do_kernel(&m, &m.blocks[rnd(&m) % m.count], (unsigned)(rnd(&m) % STREAMS), true);
        if (i % 5000 == 0)
            growing = !growing;
        if (i % check_every == 0)
            check_all(&m);
        assert_true(mf_sim_get(m.device).physical_bytes <= capacity);
    }
    uint64_t fails = m.fails, misuses = m.misuses, again = m.again;
    if (with->pressure)
        assert_true(m.relieved > 0);
    if (with->streams)
        assert_true(m.uses > ops / 100);
    close_model(&m);
    if (getenv("MEMFIT_TEST_OPS"))
        printf("page %llu KiB, capacity %llu MiB, streams %d, caches %d: %llu operations, %llu requests and %llu frees "
               "refused rightly, %llu large blocks had again at once\n",
               (unsigned long long)with->page >> 10, (unsigned long long)capacity >> 20, with->streams ? STREAMS : 1,
               with->caches, (unsigned long long)ops, (unsigned long long)fails, (unsigned long long)misuses,
               (unsigned long long)again);
}

static uint64_t operations(void)
{
    const char *text = getenv("MEMFIT_TEST_OPS");
    return text ? strtoull(text, NULL, 10) / CONFIGURATIONS : 20000;
}

static void test_model(void **state)
{
    (void)state;
    const char *slice = getenv("MEMFIT_TEST_SLICE");
    uint64_t ops = operations(), seed = 88172645463325252u;
    seed += slice ? strtoull(slice, NULL, 10) * 0x9e3779b97f4a7c15u : 0;
    for (unsigned i = 0; i < 16; i++) {
        setup with = {.page = i % 2 ? 2 << 20 : 65536, .capacity = i % 2 ? 96 << 20 : 8 << 20, .streams = i / 2 % 2};
        with.caches = i / 4 % 2;
        with.slack = i % 3 == 0;
        if (i >= 8) { /* the same, with everything else */
            with.pressure = with.soft = true;
            with.bulk = i / 4 % 2;
            with.slice = with.capacity / 4;
        }
        run(&with, seed++, ops);
    }
    run(&(setup){.page = 2 << 20, .capacity = 256 << 20, .caches = true, .roomy = true}, seed++, ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
