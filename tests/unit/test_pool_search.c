/*
 * test_pool_search.c: what looking for a place finds by the bin, the word and the old mapping, beside walks over all blocks
 * and pages. On sim, with a program that moves pages and is ahead of the device.
 */
#include "pool/lanes.h"

#include "stream_place.h"

#include "pool/blocks.h"
#include "pool/page_bits.h"
#include "pool/pages.h"

enum { MOST = 220 };

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (*seed >> 33) % below;
}

/* All holes of nobody that are large enough, each once, and none in a bin before that of one that came earlier. */
static void bins_have_all_holes(memfit_pool *pool, uint64_t bytes)
{
    uint64_t walked = 0, sum = 0, found = 0, found_sum = 0, largest = 0;
    for (const mf_block *b = pool->first; b; b = b->after)
        if (b->state == MF_HOLE && b != pool->tail && !b->lane && !mf_is_apart(pool, b) && b->bytes >= bytes) {
            walked++;
            sum += b->start;
        }
    for (const mf_block *b = NULL; (b = mf_bins_next(&pool->lane[0]->bins, b, bytes));) {
        assert_true(b->state == MF_HOLE && b->bytes >= bytes);
        assert_true(b->bytes >= largest - largest / 32); /* a bin is a 32nd wide at most */
        largest = b->bytes > largest ? b->bytes : largest;
        found++;
        found_sum += b->start;
    }
    assert_int_equal(found, walked);
    assert_true(found_sum == sum);
}

/* Can the page be had back from its old mapping: is all of its handle idle where it is, and neither half in the place? */
static bool comes_back(const mf_pages *p, const struct mf_shadow *s, uint64_t first, uint64_t past)
{
    const mf_handle *h = s->handle;
    if (!h->mapped || s->page < first || s->page + h->pages > past)
        return false;
    for (uint64_t page = h->page; page < h->page + h->pages; page++)
        if (!mf_bit(p->idle, page) || (page >= first && page < past))
            return false;
    return true;
}

static void needs_are_as_walked(const memfit_pool *pool, uint64_t first, uint64_t past, uint64_t than)
{
    const mf_pages *p = &pool->pages;
    uint64_t bare = 0, needs = 0;
    bool waits = false, wait;
    for (uint64_t page = first; page < past; page++) {
        bool covered = page < p->covered;
        if (covered && mf_bit(p->mapped, page))
            continue;
        const struct mf_shadow *s = covered && p->alias[page] ? &p->shadow[p->alias[page] - 1] : NULL;
        bare += !s;
        if (s && comes_back(p, s, first, past))
            continue;
        needs++;
        for (uint64_t i = 0; s && i < s->handle->pages; i++)
            waits = waits || (!s->lane && p->freed[s->page + i] > p->past_age);
    }
    assert_int_equal(mf_bits_bare(pool, first << p->shift, (past - first) << p->shift), bare);
    assert_int_equal(mf_shadows_needs(pool, first, past, &wait), needs);
    assert_true(wait == waits);
    assert_int_equal(mf_shadows_fewer(pool, first, past, than), waits || needs > than ? than : needs);
    uint64_t one_by_one = 0, mapped = MF_BEYOND;
    for (uint64_t page = first; page < past; page++) {
        one_by_one += mf_bit_bare(p, page);
        mapped = page < p->covered && mf_bit(p->mapped, page) ? page : mapped;
    }
    assert_int_equal(one_by_one, bare);
    assert_true(mf_bits_highest_mapped(pool, first, past) == mapped);
}

static void look_around(place *p, uint64_t *seed)
{
    const mf_pages *pages = &p->pool->pages;
    bins_have_all_holes(p->pool, 1 + draw(seed, 12 * MiB));
    mf_shadows_look(p->pool);
    for (unsigned i = 0; i < 12; i++) {
        uint64_t first = draw(seed, pages->top + 3);
        needs_are_as_walked(p->pool, first, first + 1 + draw(seed, i % 2 ? 12 : 150), draw(seed, 40));
    }
}

static void searches_find_what_walks_find(void **state)
{
    (void)state;
    uint64_t old_mappings = 0, moved = 0;
    for (uint64_t round = 1; round <= 24; round++) {
        memfit_pool_options o = MEMFIT_POOL_OPTIONS;
        o.limit_bytes = 512 * MiB;
        o.slack = round % 2 ? 0.0025 : 0;
        o.bulk_bytes = round % 3 ? 16 * MiB : 0;
        place p = open_with(o);
        uint64_t seed = round;
        memfit_address list[MOST];
        unsigned count = 0;
        mf_sim_lag_us(p.device, p.main, 20000);
        for (unsigned step = 0; step < 2500; step++) {
            if (count < MOST && (count < 20 || draw(&seed, 100) < 52)) {
                uint64_t bytes = UINT64_C(1) << (15 + draw(&seed, 9));
                bytes += draw(&seed, bytes);
                if (!memfit_pool_alloc_on(p.pool, bytes, 0, 0, p.main, &list[count], &err)) {
                    kernel(&p, list[count], bytes, p.main);
                    count++;
                }
            }
            for (unsigned i = draw(&seed, 150) ? 1 : 60; i-- && count > 20;) { /* now and then many at once */
                unsigned which = (unsigned)draw(&seed, count);
                if (draw(&seed, 2) && i == 0)
                    continue;
                drop(&p, list[which], p.main);
                list[which] = list[--count];
            }
            assert_ok(memfit_device_advance(p.device, draw(&seed, 300), &err), err);
            old_mappings += p.pool->pages.shadow_count > 0;
            if (step % 8 == 0)
                look_around(&p, &seed);
        }
        assert_ok(mf_pool_check(p.pool, &err), err);
        moved += look(&p).remapped_pages;
        mf_sim_lag_us(p.device, p.main, 0);
        while (count)
            drop(&p, list[--count], p.main);
        close_place(&p);
    }
    assert_true(old_mappings > 10000 && moved > 1500); /* there was something to find */
}

/* A pool in two of whose streams a block lives, and the lane of the first. */
static place open_two(unsigned *lane, memfit_address *a, memfit_address *b)
{
    place p = open_with((memfit_pool_options)MEMFIT_POOL_OPTIONS);
    assert_ok(memfit_pool_alloc_on(p.pool, 3 * MiB, 0, 0, p.main, a, &err), err);
    assert_ok(memfit_pool_alloc_on(p.pool, 3 * MiB, 0, 0, p.side, b, &err), err);
    assert_ok(mf_lane_for(p.pool, p.main, lane, &err), err);
    assert_true(mf_blocks_reserve(p.pool, 4));
    return p;
}

/* A stream takes all there is up to the end of the range. The tail stays the last block and nobody's: it is in no bin, and what
 * is in it would not be found when the stream is past. */
static void the_tail_is_nobodys(void **state)
{
    (void)state;
    for (unsigned joined = 0; joined < 3; joined++) {
        unsigned lane;
        memfit_address a, b;
        place p = open_two(&lane, &a, &b);
        mf_block *tail = p.pool->tail;
        uint64_t start = tail->start, end = start + tail->bytes, from = end - 4 * MiB;
        if (joined) {
            from = joined == 1 ? from : end - MF_UNIT; /* all but a unit of it is the stream's already */
            mf_block *hole = mf_hole_claim(p.pool, tail, start, from - start, lane);
            mf_holes_join(p.pool, hole, tail, lane, tail->bytes);
        } else {
            mf_hole_claim(p.pool, tail, from, end - from, lane);
        }
        assert_ok(mf_pool_check(p.pool, &err), err);
        assert_true(p.pool->tail->start > start && p.pool->tail->start >= from);
        mf_lanes_wait(p.pool);
        assert_true(p.pool->tail->start <= from);
        drop(&p, a, p.main);
        drop(&p, b, p.side);
        close_place(&p);
    }
}

/* Two pages and a little more are left. Two that are to lie at the beginning of a page would take all up to the end. */
static void the_tail_is_never_all_taken(void **state)
{
    (void)state;
    unsigned lane;
    memfit_address a, b, c;
    place p = open_two(&lane, &a, &b);
    mf_sim_hold(p.device, p.main, true); /* nothing of the first stream's becomes anybody's */
    kernel(&p, a, 3 * MiB, p.main);
    drop(&p, a, p.main);
    p.pool->apart = MF_BEYOND;
    mf_block *tail = p.pool->tail, *between = tail->before->before; /* from the first stream's block to the second's */
    uint64_t end = tail->start + tail->bytes, page = p.pool->pages.bytes;
    assert_true(between->state == MF_HOLE && !between->lane);
    mf_hole_claim(p.pool, between, between->start, between->bytes, lane);
    assert_true(mf_blocks_reserve(p.pool, 4));
    mf_hole_claim(p.pool, tail, tail->start, end - 2 * page - MF_UNIT - tail->start, lane);
    assert_ok(memfit_pool_alloc_on(p.pool, page, 0, 0, p.side, &c, &err), err);
    assert_ok(mf_pool_check(p.pool, &err), err);
    assert_true(c - p.pool->range >= end - 2 * page - MF_UNIT);
    drop(&p, c, p.side);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 2 * page, page, 0, p.side, &c, &err), MEMFIT_OUT_OF_MEMORY);
    assert_ok(mf_pool_check(p.pool, &err), err);
    mf_sim_hold(p.device, p.main, false);
    drop(&p, b, p.side);
    close_place(&p);
}

/* The last page of the range has been used when a second stream comes. */
static void a_used_tail_becomes_a_stream(void **state)
{
    (void)state;
    place p = open_with((memfit_pool_options)MEMFIT_POOL_OPTIONS);
    memfit_address a, b;
    assert_ok(memfit_pool_alloc_on(p.pool, 3 * MiB, 0, 0, p.main, &a, &err), err);
    mf_block *tail = p.pool->tail;
    uint64_t page = p.pool->pages.bytes, last = tail->start + tail->bytes - page;
    assert_ok(mf_pages_back(p.pool, &tail, last, page, 0, MF_GROW_TO_LIMIT, &err), err);
    mf_pages_set_idle(p.pool, last / page, last / page + 1);
    assert_ok(memfit_pool_alloc_on(p.pool, 3 * MiB, 0, 0, p.side, &b, &err), err);
    assert_ok(mf_pool_check(p.pool, &err), err);
    drop(&p, a, p.main);
    drop(&p, b, p.side);
    close_place(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(searches_find_what_walks_find),
        cmocka_unit_test(the_tail_is_nobodys),
        cmocka_unit_test(the_tail_is_never_all_taken),
        cmocka_unit_test(a_used_tail_becomes_a_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
