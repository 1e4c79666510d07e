/*
 * test_fence.c: when freed memory is safe, on sim, which counts as a violation whatever work in flight does not survive:
 * memory unmapped under it, or touched by another stream.
 */
#include "stream_place.h"

static place open_place(uint64_t limit, void (*change)(memfit_pool_options *o))
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.limit_bytes = limit;
    if (change)
        change(&o);
    return open_with(o);
}

static memfit_address get(place *p, uint64_t bytes, memfit_stream stream)
{
    memfit_address a = 0;
    assert_ok(memfit_pool_alloc_on(p->pool, bytes, 0, 0, stream, &a, &err), err);
    return a;
}

static void use(place *p, memfit_address a, memfit_stream stream)
{
    assert_ok(memfit_pool_use_on(p->pool, a, stream, &err), err);
}

static uint64_t pending(place *p)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(p->pool, &info, &err), err);
    return info.pending_bytes;
}

/* Whatever can be had now is touched on the main stream: sim refuses if the side stream is not done with it. */
static void touch_all_there_is(place *p, uint64_t bytes, unsigned count)
{
    memfit_address a[64];
    for (unsigned i = 0; i < count; i++) {
        a[i] = get(p, bytes, p->main);
        kernel(p, a[i], bytes, p->main);
    }
    for (unsigned i = 0; i < count; i++)
        drop(p, a[i], p->main);
}

static const uint64_t sizes[] = {256, 20000, 32768, 40000, 3 * MiB, 7 * MiB + 512};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- used on a further stream --------------------------------------------------------------------------------- */

/* The order of PyTorch: allocated and freed on one stream, used on another, recorded before or after that use. */
static void a_used_block_waits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SIZES * 4; i++) {
        place p = open_place(256 * MiB, NULL);
        uint64_t bytes = sizes[i % SIZES];
        bool record_first = i / SIZES & 1, know_side_before = i / SIZES & 2;
        if (know_side_before)
            drop(&p, get(&p, 1000, p.side), p.side);
        memfit_address a = get(&p, bytes, p.main);
        mf_sim_hold(p.device, p.side, true);
        if (record_first)
            use(&p, a, p.side);
        kernel(&p, a, bytes, p.side);
        if (!record_first)
            use(&p, a, p.side);
        drop(&p, a, p.main);
        memfit_block_info info = MEMFIT_BLOCK_INFO;
        assert_int_equal(memfit_pool_find(p.pool, a, &info, &err), MEMFIT_MISUSE);
        assert_int_equal(memfit_pool_use_on(p.pool, a, p.side, &err), MEMFIT_MISUSE);
        assert_int_equal(memfit_pool_free_on(p.pool, a, p.main, &err), MEMFIT_MISUSE);
        assert_true(pending(&p) >= bytes);
        assert_ok(mf_pool_check(p.pool, &err), err);
        touch_all_there_is(&p, bytes, 12);
        mf_sim_hold(p.device, p.side, false);
        assert_ok(memfit_pool_poll(p.pool, &err), err);
        assert_ok(memfit_pool_poll(p.pool, &err), err);
        assert_int_equal(p.pool->fence.held_bytes + p.pool->fence.held_slot_bytes, 0);
        close_place(&p);
    }
}

/* The pages of a block that waits are not taken for another either, though the pool is short of them. */
static void its_pages_stay(void **state)
{
    (void)state;
    place p = open_place(16 * MiB, NULL);
    memfit_address a = get(&p, 8 * MiB, p.main), b;
    mf_sim_hold(p.device, p.side, true);
    kernel(&p, a, 8 * MiB, p.side);
    use(&p, a, p.side);
    drop(&p, a, p.main);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, p.main, &b, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(err.cause, MEMFIT_CAUSE_PENDING_STREAM);
    assert_ok(memfit_pool_trim(p.pool, 0, NULL, &err), err);
    mf_sim_hold(p.device, p.side, false);
    b = get(&p, 12 * MiB, p.main);
    kernel(&p, b, 12 * MiB, p.main);
    drop(&p, b, p.main);
    close_place(&p);
}

static void several_streams_use_it(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, NULL);
    memfit_address a = get(&p, 5 * MiB, p.main);
    for (unsigned i = 0; i < 3; i++) { /* as often as one likes */
        use(&p, a, p.side);
        use(&p, a + 100, p.third); /* any address in it */
        use(&p, a, p.main);
    }
    mf_sim_hold(p.device, p.side, true);
    mf_sim_hold(p.device, p.third, true);
    kernel(&p, a, 5 * MiB, p.side);
    kernel(&p, a + 2 * MiB, 0, p.third);
    drop(&p, a, p.main);
    mf_sim_hold(p.device, p.third, false);
    assert_ok(memfit_pool_poll(p.pool, &err), err);
    assert_true(pending(&p) >= 5 * MiB); /* the other is still at it */
    touch_all_there_is(&p, 5 * MiB, 3);
    mf_sim_hold(p.device, p.side, false);
    assert_ok(memfit_pool_poll(p.pool, &err), err);
    touch_all_there_is(&p, 5 * MiB, 4);
    close_place(&p);
}

/* Freed on the stream that used it: nothing to wait for there; the one that asked for it has to wait as always. */
static void freed_on_the_stream_that_used_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SIZES; i++) {
        place p = open_place(64 * MiB, NULL);
        uint64_t bytes = sizes[i];
        memfit_address a = get(&p, bytes, p.main);
        use(&p, a, p.side);
        mf_sim_hold(p.device, p.side, true);
        kernel(&p, a, bytes, p.side);
        drop(&p, a, p.side);
        memfit_address b = get(&p, bytes, p.side);
        kernel(&p, b, bytes, p.side);
        touch_all_there_is(&p, bytes, 5);
        mf_sim_hold(p.device, p.side, false);
        drop(&p, b, p.side);
        close_place(&p);
    }
}

/* Both streams are behind. When the further one is past, the block is the freeing stream's again, and nobody else's. */
static void the_freeing_stream_counts_too(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SIZES; i++) {
        place p = open_place(64 * MiB, NULL);
        uint64_t bytes = sizes[i];
        drop(&p, get(&p, 1000, p.third), p.third);
        drop(&p, get(&p, 1000, p.side), p.side);
        memfit_address a = get(&p, bytes, p.main);
        use(&p, a, p.side);
        mf_sim_hold(p.device, p.main, true);
        mf_sim_hold(p.device, p.side, true);
        kernel(&p, a, bytes, p.main);
        drop(&p, a, p.main);
        mf_sim_hold(p.device, p.side, false);
        for (unsigned k = 0; k < 3; k++)
            assert_ok(memfit_pool_poll(p.pool, &err), err);
        for (unsigned k = 0; k < 6; k++) {
            memfit_stream s = k % 2 ? p.third : p.side;
            kernel(&p, get(&p, bytes, s), bytes, s);
        }
        kernel(&p, get(&p, bytes, p.main), bytes, p.main);
        mf_sim_hold(p.device, p.main, false);
        close_place(&p);
    }
}

static void a_use_on_the_only_stream_is_nothing(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, NULL);
    memfit_address a = get(&p, 3 * MiB, p.main);
    use(&p, a, p.main);
    assert_false(p.pool->multi);
    drop(&p, a, p.main);
    assert_int_equal(get(&p, 3 * MiB, p.main), a);
    close_place(&p);
}

static void a_stream_that_used_it_goes(void **state)
{
    (void)state;
    for (unsigned before_free = 0; before_free < 2; before_free++) {
        place p = open_place(64 * MiB, NULL);
        memfit_address a = get(&p, 3 * MiB, p.main), b = get(&p, 3000, p.main);
        use(&p, a, p.side);
        use(&p, b, p.side);
        if (before_free) {
            assert_ok(memfit_pool_forget_stream(p.pool, p.side, &err), err);
            assert_ok(memfit_stream_destroy(p.device, p.side, &err), err);
        }
        mf_sim_hold(p.device, p.side, !before_free);
        drop(&p, a, p.main);
        drop(&p, b, p.main);
        mf_sim_hold(p.device, p.side, false);
        if (!before_free) {
            assert_ok(memfit_pool_forget_stream(p.pool, p.side, &err), err);
            assert_ok(memfit_stream_destroy(p.device, p.side, &err), err);
        }
        assert_int_equal(p.pool->fence.held_bytes + p.pool->fence.held_slot_bytes, 0);
        assert_ok(mf_pool_check(p.pool, &err), err);
        close_place(&p);
    }
}

/* A stream that was destroyed without a word: the device is waited for instead, and nothing is lost. */
static void a_stream_goes_without_a_word(void **state)
{
    (void)state;
    place p = open_place(16 * MiB, NULL);
    memfit_address a = get(&p, 8 * MiB, p.main);
    use(&p, a, p.side);
    drop(&p, get(&p, 4 * MiB, p.side), p.side);
    assert_ok(memfit_stream_destroy(p.device, p.side, &err), err);
    drop(&p, a, p.main);
    drop(&p, get(&p, 15 * MiB, p.main), p.main);
    close_place(&p);
}

static void no_wait(memfit_pool_options *o)
{
    o->no_stream_wait = true;
}

static void without_waiting(void **state)
{
    (void)state;
    place p = open_place(16 * MiB, no_wait);
    memfit_address a = get(&p, 12 * MiB, p.main), b;
    use(&p, a, p.side);
    mf_sim_hold(p.device, p.side, true);
    kernel(&p, a, 12 * MiB, p.side);
    drop(&p, a, p.main);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, p.main, &b, &err), MEMFIT_OUT_OF_MEMORY);
    mf_sim_hold(p.device, p.side, false);
    assert_ok(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, p.main, &b, &err), err);
    close_place(&p);
}

static void misuse_is_told(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, NULL);
    memfit_address a = get(&p, 3 * MiB, p.main);
    assert_int_equal(memfit_pool_use_on(p.pool, 12345, p.side, &err), MEMFIT_MISUSE);
    assert_int_equal(memfit_pool_use_on(NULL, a, p.side, &err), MEMFIT_INVALID);
    drop(&p, a, p.main);
    assert_int_equal(memfit_pool_use_on(p.pool, a, p.side, &err), MEMFIT_MISUSE);
    assert_non_null(strstr(err.message, "freed already"));
    close_place(&p);
}

/* ---- memory of all streams ------------------------------------------------------------------------------------ */

/* What one stream is done with, another has, before new memory is made for it. */
static void streams_share(void **state)
{
    (void)state;
    place p = open_place(256 * MiB, NULL);
    drop(&p, get(&p, 1000, p.side), p.side);
    for (unsigned i = 0; i < 20; i++) {
        memfit_stream s = i % 2 ? p.main : p.side;
        memfit_address a = get(&p, 40 * MiB, s);
        kernel(&p, a, 40 * MiB, s);
        drop(&p, a, s);
    }
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(p.pool, &info, &err), err);
    assert_true(info.reserved_peak_bytes <= 44 * MiB);
    close_place(&p);
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void the_end_waits(void **state)
{
    (void)state;
    for (unsigned streams = 1; streams < 3; streams++) {
        place p = open_place(64 * MiB, NULL);
        memfit_address a = get(&p, 3 * MiB, p.main);
        if (streams == 2)
            drop(&p, get(&p, 3 * MiB, p.side), p.side);
        kernel(&p, a, 3 * MiB, p.main);
        uint64_t before = mf_sim_get(p.device).calls[MF_CALL_STREAM_SYNC];
        memfit_pool_destroy(p.pool);
        mf_sim_counts c = mf_sim_get(p.device);
        assert_true(c.calls[MF_CALL_STREAM_SYNC] >= before + streams);
        assert_int_equal(c.physical_bytes, 0);
        assert_ok(memfit_device_close(p.device, &err), err);
    }
}

/* A stream that cannot be waited for keeps its memory: nothing is unmapped under it. */
static void the_end_takes_nothing_from_a_stream_at_work(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, NULL);
    memfit_address a = get(&p, 3 * MiB, p.main);
    mf_sim_hold(p.device, p.main, true);
    kernel(&p, a, 3 * MiB, p.main);
    memfit_pool_destroy(p.pool);
    mf_sim_counts c = mf_sim_get(p.device);
    assert_int_equal(c.violations, 0);
    assert_int_equal(c.calls[MF_CALL_UNMAP], 0);
    assert_true(c.physical_bytes >= 3 * MiB);
    mf_sim_hold(p.device, p.main, false);
    assert_ok(memfit_device_close(p.device, &err), err);
}

/* ---- many streams ------------------------------------------------------------------------------------------------ */

static void more_streams_than_lanes(void **state)
{
    (void)state;
    place p = open_place(256 * MiB, NULL);
    memfit_address kept[300];
    memfit_stream streams[300];
    for (unsigned i = 0; i < 300; i++) {
        assert_ok(memfit_stream_create(p.device, &streams[i], &err), err);
        kept[i] = get(&p, 5000 + i, streams[i]);
        memfit_address a = get(&p, MiB, streams[i]);
        use(&p, a, streams[i / 2]);
        drop(&p, a, streams[i]);
        assert_ok(mf_pool_check(p.pool, &err), err);
    }
    for (unsigned i = 0; i < 300; i++)
        drop(&p, kept[i], streams[299 - i]);
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(p.pool, &info, &err), err);
    assert_int_equal(info.in_use_bytes, 0);
    assert_true(info.reserved_peak_bytes < 200 * MiB); /* with a page for each stream it would be 600 */
    close_place(&p);
}

/* All lanes have work: one stream is waited for; if none can be, the block stays live and can be freed later. */
static void more_streams_at_work_than_lanes(void **state)
{
    (void)state;
    place p = open_place(512 * MiB, NULL);
    memfit_stream streams[80];
    memfit_address a[80];
    unsigned refused = 0;
    for (unsigned i = 0; i < 80; i++) {
        assert_ok(memfit_stream_create(p.device, &streams[i], &err), err);
        a[i] = get(&p, 2 * MiB, p.main);
    }
    for (unsigned i = 0; i < 80; i++)
        mf_sim_hold(p.device, streams[i], true);
    for (unsigned i = 0; i < 80; i++)
        refused += memfit_pool_free_on(p.pool, a[i], streams[i], &err) != MEMFIT_OK ? 1 : (a[i] = 0, 0);
    assert_int_equal(refused, 80 - (MF_LANES - 1)); /* lane 0 is everybody's */
    assert_ok(mf_pool_check(p.pool, &err), err);
    for (unsigned i = 0; i < 80; i++)
        mf_sim_hold(p.device, streams[i], false);
    for (unsigned i = 0; i < 80; i++)
        if (a[i])
            drop(&p, a[i], streams[i]);
    close_place(&p);
}

/* ---- CUDA graphs ---------------------------------------------------------------------------------------------- */

static void capture_is_refused_unless_announced(void **state)
{
    (void)state;
    place p = open_place(64 * MiB, NULL);
    memfit_address a;
    drop(&p, get(&p, 3 * MiB, p.side), p.main);
    mf_sim_capture(p.device, p.side, true);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 3 * MiB, 0, 0, p.side, &a, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "captured"));
    mf_sim_capture(p.device, p.side, false);
    a = get(&p, 3 * MiB, p.side);
    drop(&p, a, p.side);
    close_place(&p);
}

/* What a graph was given is nobody else's before it is released, freed or not; and its own at once. */
static void a_graph_keeps_its_memory(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SIZES; i++) {
        place p = open_place(256 * MiB, NULL);
        uint64_t bytes = sizes[i];
        drop(&p, get(&p, bytes, p.main), p.main);
        assert_ok(memfit_pool_graph_begin(p.pool, 7, &err), err);
        mf_sim_capture(p.device, p.side, true);
        memfit_address a = get(&p, bytes, p.side), b;
        drop(&p, a, p.side);
        assert_int_equal(get(&p, bytes, p.side), a); /* stream order holds inside the graph */
        b = get(&p, bytes, p.side);                  /* a result, which lives on */
        drop(&p, a, p.side);
        drop(&p, get(&p, 2 * MiB, p.main), p.main); /* eager work goes on meanwhile */
        mf_sim_capture(p.device, p.side, false);
        assert_ok(memfit_pool_graph_end(p.pool, 7, &err), err);
        memfit_address eager[8];
        for (unsigned k = 0; k < 8; k++) {
            eager[k] = get(&p, bytes, k % 2 ? p.side : p.main);
            assert_true(eager[k] != a && eager[k] != b);
        }
        assert_ok(memfit_pool_trim(p.pool, 0, NULL, &err), err);
        kernel(&p, a, bytes, p.third); /* the graph is launched: what it uses must be there */
        for (unsigned k = 0; k < 8; k++)
            drop(&p, eager[k], k % 2 ? p.side : p.main);
        assert_ok(memfit_pool_graph_begin(p.pool, 7, &err), err); /* a second graph that shares it */
        mf_sim_capture(p.device, p.side, true);
        assert_int_equal(get(&p, bytes, p.side), a);
        drop(&p, a, p.side);
        mf_sim_capture(p.device, p.side, false);
        assert_ok(memfit_pool_graph_end(p.pool, 7, &err), err);
        assert_ok(memfit_pool_graph_release(p.pool, 7, &err), err); /* of the first */
        for (unsigned k = 0; k < 8; k++)
            assert_true((eager[k] = get(&p, bytes, p.main)) != a);
        for (unsigned k = 0; k < 8; k++)
            drop(&p, eager[k], p.main);
        assert_ok(memfit_pool_graph_release(p.pool, 7, &err), err);
        assert_int_equal(memfit_pool_graph_release(p.pool, 7, &err), MEMFIT_MISUSE);
        drop(&p, b, p.main); /* a result may outlive the graph */
        assert_ok(memfit_pool_poll(p.pool, &err), err);
        assert_int_equal(pending(&p), 0);
        close_place(&p);
    }
}

/* Events are not recorded on a stream that is captured, and it is not waited for; what waits for it waits longer. */
static void a_captured_stream_is_left_alone(void **state)
{
    (void)state;
    place p = open_place(16 * MiB, NULL);
    memfit_address a = get(&p, 8 * MiB, p.main), b;
    use(&p, a, p.side);
    assert_ok(memfit_pool_graph_begin(p.pool, 1, &err), err);
    mf_sim_capture(p.device, p.side, true);
    drop(&p, a, p.main);
    assert_ok(memfit_pool_poll(p.pool, &err), err);
    assert_int_equal(memfit_pool_alloc_on(p.pool, 12 * MiB, 0, 0, p.main, &b, &err), MEMFIT_OUT_OF_MEMORY);
    assert_int_equal(memfit_pool_graph_release(p.pool, 1, &err), MEMFIT_MISUSE); /* while it is captured */
    mf_sim_capture(p.device, p.side, false);
    assert_ok(memfit_pool_graph_end(p.pool, 1, &err), err);
    b = get(&p, 12 * MiB, p.main);
    drop(&p, b, p.main);
    assert_ok(memfit_pool_graph_release(p.pool, 1, &err), err);
    close_place(&p);
}

/* A graph is released while another is captured: its memory comes back when the device can be waited for. */
static void release_can_wait(void **state)
{
    (void)state;
    place p = open_place(32 * MiB, NULL);
    for (uint64_t graph = 1; graph < 3; graph++) {
        assert_ok(memfit_pool_graph_begin(p.pool, graph, &err), err);
        mf_sim_capture(p.device, p.side, true);
        drop(&p, get(&p, 10 * MiB, p.side), p.side);
        if (graph == 2)
            assert_ok(memfit_pool_graph_release(p.pool, 1, &err), err);
        assert_true(pending(&p) >= graph * 10 * MiB);
        mf_sim_capture(p.device, p.side, false);
        assert_ok(memfit_pool_graph_end(p.pool, graph, &err), err);
    }
    drop(&p, get(&p, 20 * MiB, p.main), p.main);
    assert_int_equal(pending(&p), 20 * MiB + 10 * MiB);
    assert_ok(memfit_pool_graph_release(p.pool, 2, &err), err);
    drop(&p, get(&p, 31 * MiB, p.main), p.main);
    close_place(&p);
}

static void two_captures_at_once_are_refused(void **state)
{
    (void)state;
    place p = open_place(32 * MiB, NULL);
    memfit_address a;
    assert_ok(memfit_pool_graph_begin(p.pool, 1, &err), err);
    assert_ok(memfit_pool_graph_begin(p.pool, 2, &err), err);
    mf_sim_capture(p.device, p.side, true);
    assert_int_equal(memfit_pool_alloc_on(p.pool, MiB, 0, 0, p.side, &a, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "at once"));
    mf_sim_capture(p.device, p.side, false);
    close_place(&p);
}

/* ---- the referee itself ---------------------------------------------------------------------------------------- */

static void sim_sees(void **state)
{
    (void)state;
    place p = open_place(32 * MiB, NULL);
    memfit_address a = get(&p, 4 * MiB, p.main);
    mf_sim_hold(p.device, p.side, true);
    kernel(&p, a, MiB, p.side);
    assert_int_equal(memfit_device_fill(p.device, a + 1000, 0, 10, p.main, &err), MEMFIT_MISUSE);
    assert_ok(memfit_device_fill(p.device, a + MiB, 0, MiB, p.main, &err), err);
    assert_int_equal(p.device->table->unmap(p.device, p.pool->range, 2 * MiB, &err), MEMFIT_MISUSE);
    assert_int_equal(mf_sim_get(p.device).violations, 2);
    mf_sim_hold(p.device, p.side, false);
    assert_ok(memfit_device_fill(p.device, a + 1000, 0, 10, p.main, &err), err);
    mf_event event;
    bool done;
    assert_ok(p.device->table->event_create(p.device, &event, &err), err);
    mf_sim_capture(p.device, p.side, true);
    assert_ok(p.device->table->event_record(p.device, event, p.side, &err), err);
    assert_int_equal(p.device->table->event_done(p.device, event, &done, &err), MEMFIT_MISUSE);
    assert_int_not_equal(p.device->table->stream_sync(p.device, p.side, &err), MEMFIT_OK);
    assert_int_equal(mf_sim_get(p.device).violations, 4);
    mf_sim_capture(p.device, p.side, false);
    assert_ok(p.device->table->event_destroy(p.device, event, &err), err);
    memfit_pool_destroy(p.pool);
    assert_ok(memfit_device_close(p.device, &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_sees),
        cmocka_unit_test(a_used_block_waits),
        cmocka_unit_test(its_pages_stay),
        cmocka_unit_test(several_streams_use_it),
        cmocka_unit_test(freed_on_the_stream_that_used_it),
        cmocka_unit_test(the_freeing_stream_counts_too),
        cmocka_unit_test(a_use_on_the_only_stream_is_nothing),
        cmocka_unit_test(a_stream_that_used_it_goes),
        cmocka_unit_test(a_stream_goes_without_a_word),
        cmocka_unit_test(without_waiting),
        cmocka_unit_test(misuse_is_told),
        cmocka_unit_test(streams_share),
        cmocka_unit_test(the_end_waits),
        cmocka_unit_test(the_end_takes_nothing_from_a_stream_at_work),
        cmocka_unit_test(more_streams_than_lanes),
        cmocka_unit_test(more_streams_at_work_than_lanes),
        cmocka_unit_test(capture_is_refused_unless_announced),
        cmocka_unit_test(a_graph_keeps_its_memory),
        cmocka_unit_test(a_captured_stream_is_left_alone),
        cmocka_unit_test(release_can_wait),
        cmocka_unit_test(two_captures_at_once_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
