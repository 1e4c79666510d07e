/*
 * lanes.c: memory and streams. A block freed on a stream may be used by work queued later on that stream at once; for
 * others it must first be certain that the stream has come so far.
 *
 *   one stream seen   everything is in lane 0; no event is ever recorded. Only unmapping pages needs certainty, and
 *                     waits for that stream when something was freed since it last did.
 *   several           each stream has a lane with holes and slabs of its own. A free counts the lane's serial up. An
 *                     event recorded behind serial s, once done, makes everything freed up to s safe for all: holes
 *                     move to lane 0. Events are recorded only when someone looks for memory (poll), never by a free.
 *
 * A slot freed on another stream than its slab's waits in a list of the freeing lane.
 *
 * Dropped: an event with every free (a driver call of 0.6 us on a path of 20 ns), and letting the asking stream wait on
 * the device for the other's event (hides a dependency between streams that the program did not ask for).
 */
#include "pool/state.h"

#include "base/error.h"

#include <string.h>

static mf_lane *new_lane(memfit_pool *pool, mf_stream stream)
{
    mf_lane *lane = mf_host_zalloc(pool->host, sizeof *lane);
    if (lane) {
        lane->stream = stream;
        lane->used = true;
        pool->host_bytes += sizeof *lane;
    }
    return lane;
}

memfit_status mf_lanes_init(memfit_pool *pool, memfit_error *err)
{
    pool->home = MF_NO_STREAM;
    pool->lane[0] = new_lane(pool, MF_NO_STREAM);
    if (!pool->lane[0])
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory", pool->name);
    pool->lane_count = 1;
    return MEMFIT_OK;
}

void mf_lanes_end(memfit_pool *pool)
{
    mf_device *device = pool->device;
    for (unsigned i = 0; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        for (unsigned k = 0; k < lane->waiting_count; k++)
            device->table->event_destroy(device, lane->waiting[k].event, NULL);
        for (unsigned k = 0; k < lane->spare_event_count; k++)
            device->table->event_destroy(device, lane->spare_events[k], NULL);
        mf_host_free(pool->host, lane->slot_waits, lane->slot_wait_capacity * sizeof *lane->slot_waits);
        mf_host_free(pool->host, lane, sizeof *lane);
        pool->lane[i] = NULL;
    }
    pool->lane_count = 0;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

static bool get_event(memfit_pool *pool, mf_lane *lane, mf_event *event)
{
    if (lane->spare_event_count) {
        *event = lane->spare_events[--lane->spare_event_count];
        return true;
    }
    return !pool->device->table->event_create(pool->device, event, NULL);
}

static void put_event(mf_lane *lane, mf_event event)
{
    lane->spare_events[lane->spare_event_count++] = event;
}

static void record(memfit_pool *pool, mf_lane *lane)
{
    mf_event event;
    if (lane->serial == lane->recorded || lane->waiting_count == MF_EVENTS)
        return;
    if (!get_event(pool, lane, &event))
        return;
    if (pool->device->table->event_record(pool->device, event, lane->stream, NULL)) {
        put_event(lane, event);
        return;
    }
    lane->waiting[lane->waiting_count++] = (mf_waiting){event, lane->serial};
    lane->recorded = lane->serial;
}

static void look(memfit_pool *pool, mf_lane *lane)
{
    bool done = true;
    while (lane->waiting_count && done) {
        if (pool->device->table->event_done(pool->device, lane->waiting[0].event, &done, NULL))
            done = false;
        if (!done)
            return;
        lane->safe = lane->waiting[0].serial;
        mf_event event = lane->waiting[0].event;
        lane->waiting_count--;
        memmove(lane->waiting, lane->waiting + 1, lane->waiting_count * sizeof *lane->waiting);
        put_event(lane, event);
    }
}

/* ---- what has become safe ----------------------------------------------------------------------------------- */

static bool release_slots(memfit_pool *pool, mf_lane *lane)
{
    size_t kept = 0;
    for (size_t i = 0; i < lane->slot_wait_count; i++) {
        struct mf_slot_wait w = lane->slot_waits[i];
        if (w.serial > lane->safe) {
            lane->slot_waits[kept++] = w;
            continue;
        }
        lane->pending_bytes -= w.ref.slab->slot_bytes;
        mf_slab_give(pool, w.ref);
    }
    bool any = kept < lane->slot_wait_count;
    lane->slot_wait_count = kept;
    return any;
}

static bool release_holes(memfit_pool *pool, mf_lane *lane)
{
    bool any = false;
    for (uint64_t levels = lane->bins.levels; levels; levels &= levels - 1) {
        unsigned level = (unsigned)__builtin_ctzll(levels);
        for (uint64_t steps = lane->bins.steps[level]; steps; steps &= steps - 1)
            for (mf_block *hole = lane->bins.first[level][__builtin_ctzll(steps)], *next; hole; hole = next) {
                next = hole->bin_after;
                if (hole->serial <= lane->safe) {
                    mf_hole_release(pool, hole);
                    any = true;
                }
            }
    }
    return any;
}

static bool release_safe(memfit_pool *pool, mf_lane *lane)
{
    bool slots = release_slots(pool, lane); /* first: they may make holes */
    return release_holes(pool, lane) || slots;
}

/* Twice: a slot freed on one stream may empty a span of another's, whose hole then waits for that other. */
void mf_lanes_poll(memfit_pool *pool, bool with_events)
{
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 1; i < pool->lane_count; i++) {
            mf_lane *lane = pool->lane[i];
            if (!lane->used || !lane->pending_bytes)
                continue;
            if (with_events)
                record(pool, lane);
            look(pool, lane);
            release_safe(pool, lane);
        }
}

bool mf_lanes_wait(memfit_pool *pool)
{
    bool any = false;
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 1; i < pool->lane_count; i++) {
            mf_lane *lane = pool->lane[i];
            if (!lane->used || !lane->pending_bytes)
                continue;
            pool->stream_waits++;
            if (pool->device->table->stream_sync(pool->device, lane->stream, NULL))
                continue;
            look(pool, lane);
            lane->safe = lane->serial;
            any |= release_safe(pool, lane);
        }
    return any;
}

bool mf_lanes_safe_to_unmap(memfit_pool *pool)
{
    if (pool->multi || pool->home == MF_NO_STREAM || pool->pages.synced_frees == pool->frees_central)
        return true;
    mf_device *device = pool->device;
    if (pool->options.no_stream_wait) {
        bool done = false;
        mf_event event;
        if (!get_event(pool, pool->lane[0], &event))
            return false;
        if (device->table->event_record(device, event, pool->home, NULL) ||
            device->table->event_done(device, event, &done, NULL))
            done = false;
        put_event(pool->lane[0], event);
        if (!done)
            return false;
    } else {
        pool->stream_waits++;
        if (device->table->stream_sync(device, pool->home, NULL))
            return false;
    }
    pool->pages.synced_frees = pool->frees_central;
    return true;
}

uint64_t mf_lanes_pending_bytes(const memfit_pool *pool)
{
    uint64_t bytes = 0;
    for (unsigned i = 1; i < pool->lane_count; i++)
        bytes += pool->lane[i]->pending_bytes;
    return bytes;
}

memfit_status mf_lane_wait_slot(memfit_pool *pool, unsigned number, mf_slot_ref ref, memfit_error *err)
{
    mf_lane *lane = pool->lane[number];
    size_t before = lane->slot_wait_capacity;
    if (!mf_grow(pool->host, &lane->slot_waits, &lane->slot_wait_capacity, lane->slot_wait_count,
                 sizeof *lane->slot_waits))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory to note a free", pool->name);
    pool->host_bytes += (lane->slot_wait_capacity - before) * sizeof *lane->slot_waits;
    lane->slot_waits[lane->slot_wait_count++] = (struct mf_slot_wait){ref, lane->serial};
    lane->pending_bytes += ref.slab->slot_bytes;
    return MEMFIT_OK;
}

/* ---- from one stream to several ------------------------------------------------------------------------------ */

static void move_slabs(memfit_pool *pool, unsigned from, unsigned to)
{
    mf_lane *a = pool->lane[from], *b = pool->lane[to];
    for (mf_block *block = pool->first; block; block = block->after) {
        if (block->state != MF_SPAN || block->lane != from)
            continue;
        block->lane = block->span->lane = (uint8_t)to;
        for (unsigned i = 0; i < 32; i++)
            if (block->span->slab[i])
                block->span->slab[i]->lane = (uint8_t)to;
    }
    for (unsigned c = 0; c < MF_CLASSES; c++) {
        mf_slab **end = &b->partial[c], *before = NULL;
        while (*end) {
            before = *end;
            end = &(*end)->after;
        }
        *end = a->partial[c];
        if (*end)
            (*end)->before = before;
        a->partial[c] = NULL;
    }
    mf_span **end = &b->spans, *before = NULL;
    while (*end) {
        before = *end;
        end = &(*end)->after;
    }
    *end = a->spans;
    if (*end)
        (*end)->before = before;
    a->spans = NULL;
}

/* The part of the tail that may have been used becomes a hole, so that it can wait like the others. */
static void cut_tail(memfit_pool *pool)
{
    uint64_t top = pool->pages.top << pool->pages.shift;
    if (top <= pool->tail->start)
        return;
    mf_block *used = mf_block_cut(pool, pool->tail, pool->tail->start, top - pool->tail->start, MF_LIVE);
    used->state = MF_HOLE;
    mf_bins_add(&pool->lane[0]->bins, used);
}

static void holes_to_lane(memfit_pool *pool, unsigned to)
{
    uint64_t shift = pool->pages.shift;
    mf_lane *lane = pool->lane[to];
    for (mf_block *b = pool->first; b != pool->tail; b = b->after) {
        if (b->state != MF_HOLE || b->lane)
            continue;
        mf_bins_remove(&pool->lane[0]->bins, b);
        b->lane = (uint8_t)to;
        b->serial = lane->serial & MF_SERIAL_MOST;
        mf_bins_add(&lane->bins, b);
        lane->pending_bytes += b->bytes;
        mf_pages_clear_idle(pool, b->start >> shift, ((b->start + b->bytes - 1) >> shift) + 1);
    }
}

static memfit_status make_lane(memfit_pool *pool, mf_stream stream, unsigned *number, memfit_error *err)
{
    for (unsigned i = 1; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        if (lane->used)
            continue;
        lane->used = true;
        lane->stream = stream;
        *number = i;
        return MEMFIT_OK;
    }
    if (pool->lane_count == MF_LANES)
        return mf_fail(err, MEMFIT_INVALID,
                       "pool %s: more than %d streams\nCall memfit_pool_forget_stream for those that are gone",
                       pool->name, MF_LANES - 1);
    mf_lane *lane = new_lane(pool, stream);
    if (!lane)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for a stream", pool->name);
    *number = pool->lane_count;
    pool->lane[pool->lane_count++] = lane;
    return MEMFIT_OK;
}

static memfit_status become_multi(memfit_pool *pool, mf_stream second, unsigned *number, memfit_error *err)
{
    unsigned home, other;
    if (!mf_blocks_reserve(pool, 2))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for a stream", pool->name);
    memfit_status status = make_lane(pool, pool->home, &home, err);
    if (status)
        return status;
    status = make_lane(pool, second, &other, err);
    if (status) {
        pool->lane[home]->used = false;
        return status;
    }
    atomic_store(&pool->cached, false);
    atomic_store(&pool->keeps, false);
    mf_pass_set(pool);
    mf_caches_reclaim(pool);
    pool->multi = true;
    mf_ages_settle(pool, 0, UINT64_MAX);
    pool->lane[home]->serial++;
    cut_tail(pool);
    holes_to_lane(pool, home);
    move_slabs(pool, 0, home);
    for (mf_block *b = pool->first; b; b = b->after)
        if (b->state == MF_LIVE)
            b->lane = (uint8_t)home;
    *number = other;
    return MEMFIT_OK;
}

memfit_status mf_lane_for(memfit_pool *pool, mf_stream stream, unsigned *number, memfit_error *err)
{
    if (!pool->multi) {
        *number = 0;
        if (pool->home == MF_NO_STREAM) {
            atomic_store(&pool->home, stream);
            mf_pass_set(pool);
        }
        return pool->home == stream ? MEMFIT_OK : become_multi(pool, stream, number, err);
    }
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && pool->lane[i]->stream == stream) {
            *number = i;
            return MEMFIT_OK;
        }
    return make_lane(pool, stream, number, err);
}

memfit_status memfit_pool_forget_stream(memfit_pool *pool, memfit_stream stream, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    unsigned number = 0;
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && pool->lane[i]->stream == stream)
            number = i;
    if (number || (!pool->multi && pool->home == stream))
        status = pool->device->table->stream_sync(pool->device, stream, err);
    if (!status && number) {
        mf_lane *lane = pool->lane[number];
        look(pool, lane);
        lane->safe = lane->serial;
        release_safe(pool, lane);
        move_slabs(pool, number, 0);
        for (mf_block *b = pool->first; b; b = b->after)
            if (b->state == MF_LIVE && b->lane == number)
                b->lane = 0;
        lane->used = false;
    } else if (!status && !pool->multi && pool->home == stream) {
        pool->pages.synced_frees = pool->frees_central;
        atomic_store(&pool->home, MF_NO_STREAM);
        mf_pass_set(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}
