/*
 * test_pool_model.c: a pool against a naive model of it, by random operations.
 *
 * The model knows for every 256 bytes whether they are live and which stream freed them, and for every page how many
 * live blocks touch it. It says when a request may fail: only if the pages with a live byte, and the request's own, are
 * more than the limit allows. Everything else is compared: addresses never overlap and are aligned, accounts add up to
 * the byte, physical memory is never above the limit.
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

enum { UNIT = 256, OWNERS = 12, STREAMS = 4, CONFIGURATIONS = 9 };

typedef struct live_block {
    memfit_address address;
    uint64_t bytes;
    uint32_t owner, mark;
} live_block;

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
        if (!any_held && m->used_pages + need <= m->limit) {
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
    assert_int_equal(info.reserved_bytes, mf_sim_get(m->device).physical_bytes);
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
    uint64_t r = rnd(m) % 8, limit;
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
    default:
        if (!m->many_streams)
            break;
        m->held[stream] = !m->held[stream];
        mf_sim_hold(m->device, m->stream[stream], m->held[stream]);
        m->generation[stream]++;
    }
}

/* roomy: few blocks, and pages are made rather than moved, so that threads keep blocks all the time. */
static void open_model(model *m, uint64_t page, uint64_t capacity, bool many_streams, bool caches, bool roomy,
                       uint64_t seed)
{
    memfit_error err;
    memfit_device_options device = MEMFIT_DEVICE_OPTIONS;
    device.capacity_bytes = capacity;
    device.granularity_bytes = page;
    *m = (model){.page = page, .capacity = capacity, .many_streams = many_streams, .seed = seed};
    assert_ok(memfit_device_open("sim", &device, &m->device, &err), err);
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.page_bytes = page;
    options.limit_bytes = capacity;
    options.no_thread_caches = !caches;
    options.slack = roomy ? 1.0 : 0.0;
    options.ignore_environment = true;
    assert_ok(memfit_pool_create(m->device, &options, &m->pool, &err), err);
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

static void run(uint64_t page, uint64_t capacity, bool many_streams, bool caches, bool roomy, uint64_t seed,
                uint64_t ops)
{
    model m;
    open_model(&m, page, capacity, many_streams, caches, roomy, seed);
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
        if (i % 5000 == 0)
            growing = !growing;
        if (i % check_every == 0)
            check_all(&m);
        assert_true(mf_sim_get(m.device).physical_bytes <= capacity);
    }
    uint64_t fails = m.fails, misuses = m.misuses, again = m.again;
    close_model(&m);
    if (getenv("MEMFIT_TEST_OPS"))
        printf("page %llu KiB, capacity %llu MiB, streams %d, caches %d: %llu operations, %llu requests and %llu frees "
               "refused rightly, %llu large blocks had again at once\n",
               (unsigned long long)page >> 10, (unsigned long long)capacity >> 20, many_streams ? STREAMS : 1, caches,
               (unsigned long long)ops, (unsigned long long)fails, (unsigned long long)misuses,
               (unsigned long long)again);
}

static uint64_t operations(void)
{
    const char *text = getenv("MEMFIT_TEST_OPS");
    return text ? strtoull(text, NULL, 10) / CONFIGURATIONS : 30000;
}

static void test_model(void **state)
{
    (void)state;
    const char *slice = getenv("MEMFIT_TEST_SLICE");
    uint64_t ops = operations(), seed = 88172645463325252u;
    seed += slice ? strtoull(slice, NULL, 10) * 0x9e3779b97f4a7c15u : 0;
    for (unsigned caches = 0; caches < 2; caches++)
        for (unsigned streams = 0; streams < 2; streams++) {
            run(65536, 8 << 20, streams, caches, false, seed++, ops);
            run(2 << 20, 96 << 20, streams, caches, false, seed++, ops);
        }
    run(2 << 20, 256 << 20, false, true, true, seed++, ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
