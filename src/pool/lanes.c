/*
 * lanes.c: holes and slabs by stream. A block freed on a stream may be used by work queued later on that stream at once;
 * for others it must first be certain that the stream has come so far (fence.c).
 *
 *   one stream seen   everything is in lane 0. Only unmapping pages needs certainty (shadows.c).
 *   several           each stream has a lane with holes and slabs of its own. A free counts the lane's serial up. What
 *                     the lane's clock says is past moves to lane 0, which is everybody's. Events are recorded when
 *                     someone looks for memory, and now and then, never by a free.
 *
 * A slot freed on another stream than its slab's waits in a list of the freeing lane. When all lanes are taken, one
 * whose stream is past everything makes room for the new stream; if there is none, one stream is waited for.
 *
 * Dropped: an event with every free (a driver call of 0.6 us on a path of 20 ns), and letting the asking stream wait on
 * the device for the other's event (hides a dependency between streams that the program did not ask for).
 */
#include "pool/apart.h"
#include "pool/blocks.h"
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/lanes.h"
#include "pool/pages.h"
#include "pool/repeat.h"
#include "pool/slab.h"

#include "base/error.h"

#include <string.h>

static mf_lane *new_lane(memfit_pool *pool, mf_stream stream)
{
    mf_lane *lane = mf_host_zalloc(pool->host, sizeof *lane);
    if (lane) {
        lane->clock.stream = stream;
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
    for (unsigned i = 0; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        mf_clock_end(pool, &lane->clock);
        mf_host_free(pool->host, lane->slot_waits, lane->slot_wait_capacity * sizeof *lane->slot_waits);
        mf_host_free(pool->host, lane, sizeof *lane);
        pool->lane[i] = NULL;
    }
    pool->lane_count = 0;
}

/* ---- what has become safe ----------------------------------------------------------------------------------- */

static bool release_slots(memfit_pool *pool, mf_lane *lane)
{
    size_t kept = 0;
    for (size_t i = 0; i < lane->slot_wait_count; i++) {
        struct mf_slot_wait w = lane->slot_waits[i];
        if (w.serial > lane->clock.safe) {
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

static bool release_holes(memfit_pool *pool, const mf_lane *lane, const mf_bins *bins)
{
    bool any = false;
    for (uint64_t levels = bins->levels; levels; levels &= levels - 1) {
        unsigned level = (unsigned)__builtin_ctzll(levels);
        for (uint64_t steps = bins->steps[level]; steps; steps &= steps - 1)
            for (mf_block *hole = bins->first[level][__builtin_ctzll(steps)], *next; hole; hole = next) {
                next = hole->bin_after;
                if (hole->serial <= lane->clock.safe) {
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
    bool among = release_holes(pool, lane, &lane->bins), apart = release_holes(pool, lane, &lane->apart);
    return among || apart || slots;
}

static bool may_become_safe(const mf_lane *lane)
{
    return lane->used && !lane->graph && (lane->pending_bytes || lane->waits);
}

static void look_at_all(memfit_pool *pool, bool events)
{
    for (unsigned i = 1; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        if (!may_become_safe(lane))
            continue;
        if (events)
            mf_clock_record(pool, &lane->clock);
        mf_clock_look(pool, &lane->clock);
    }
}

/* Twice: a slot freed on one stream may empty a span of another's, whose hole then waits for that other. */
static bool poll(memfit_pool *pool, bool events, unsigned except)
{
    bool any = pool->multi && mf_fence_retire_graphs(pool);
    for (unsigned pass = 0; pass < 2; pass++) {
        look_at_all(pool, events);
        any |= mf_fence_release_held(pool);
        for (unsigned i = 1; i < pool->lane_count; i++)
            if (may_become_safe(pool->lane[i]))
                any |= i == except ? release_slots(pool, pool->lane[i]) : release_safe(pool, pool->lane[i]);
    }
    return any;
}

bool mf_lanes_poll(memfit_pool *pool, bool events)
{
    return poll(pool, events, 0);
}

bool mf_lanes_poll_for(memfit_pool *pool, unsigned lane)
{
    return poll(pool, true, lane);
}

void mf_lanes_look(memfit_pool *pool)
{
    look_at_all(pool, true);
    mf_fence_release_held(pool);
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (may_become_safe(pool->lane[i]))
            release_slots(pool, pool->lane[i]);
}

bool mf_lanes_wait(memfit_pool *pool)
{
    bool any = false;
    for (unsigned pass = 0; pass < 2; pass++) {
        for (unsigned i = 1; i < pool->lane_count; i++)
            if (may_become_safe(pool->lane[i]))
                mf_clock_wait(pool, &pool->lane[i]->clock, pool->lane[i]->clock.serial);
        any |= mf_fence_release_held(pool);
        for (unsigned i = 1; i < pool->lane_count; i++)
            if (may_become_safe(pool->lane[i]))
                any |= release_safe(pool, pool->lane[i]);
    }
    return any;
}

uint64_t mf_lanes_lead_us(const memfit_pool *pool)
{
    uint64_t now = mf_device_now_us(pool->device), most = 0;
    for (unsigned i = 1; i < pool->lane_count; i++) {
        const mf_clock *c = &pool->lane[i]->clock;
        uint64_t lead = may_become_safe(pool->lane[i]) && c->waiting_count ? now - c->waiting[0].at_us : 0;
        most = lead > most ? lead : most;
    }
    return most;
}

/* So much is queued behind the event that the device does not fall idle. */
bool mf_lanes_wait_some(memfit_pool *pool, uint64_t least_us)
{
    mf_lane *most = NULL;
    for (unsigned i = 1; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        if (may_become_safe(lane) && mf_clock_queued_us(&lane->clock) >= least_us &&
            (!most || mf_clock_queued_us(&lane->clock) > mf_clock_queued_us(&most->clock)))
            most = lane;
    }
    return most && mf_clock_wait_next(pool, &most->clock);
}

uint64_t mf_lanes_pending_bytes(const memfit_pool *pool)
{
    uint64_t bytes = pool->fence.held_bytes + pool->fence.held_slot_bytes;
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
    lane->slot_waits[lane->slot_wait_count++] = (struct mf_slot_wait){ref, ++lane->clock.serial};
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
    uint64_t top = pool->pages.top << pool->pages.shift, end = mf_tail_most(pool);
    top = top < end ? top : end;
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
        b->serial = lane->clock.serial & MF_SERIAL_MOST;
        mf_bins_add(&lane->bins, b);
        lane->pending_bytes += b->bytes;
        mf_pages_stamp(pool, b->start, b->start + b->bytes, to, b->serial);
        mf_pages_clear_idle(pool, b->start >> shift, ((b->start + b->bytes - 1) >> shift) + 1);
    }
}

/* Its stream is past everything: what it has is everybody's, and another stream can have it. */
void mf_lane_forget(memfit_pool *pool, unsigned number)
{
    mf_lane *lane = pool->lane[number];
    lane->clock.safe = lane->clock.serial;
    mf_fence_forget_lane(pool, number);
    mf_shadows_forget_lane(pool, number);
    release_safe(pool, lane);
    move_slabs(pool, number, 0);
    for (mf_block *b = pool->first; b; b = b->after)
        if (b->state == MF_LIVE && b->lane == number)
            b->lane = 0;
    mf_clock_end(pool, &lane->clock);
    lane->used = lane->graph = lane->leaving = false;
    lane->open = lane->references = 0;
}

static bool is_past(const mf_lane *lane)
{
    return lane->used && !lane->graph && !lane->waits && lane->clock.safe == lane->clock.serial;
}

/* A lane for another stream when all are taken: of a stream that is past everything, or will be when waited for. */
static void reclaim_lane(memfit_pool *pool)
{
    pool->fence.unnamed_streams = true;
    mf_lanes_poll(pool, true);
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (is_past(pool->lane[i])) {
            mf_lane_forget(pool, i);
            return;
        }
    for (unsigned i = 1; i < pool->lane_count; i++) {
        mf_lane *lane = pool->lane[i];
        if (lane->used && !lane->graph && !lane->waits && mf_clock_wait(pool, &lane->clock, lane->clock.serial)) {
            mf_lane_forget(pool, i);
            return;
        }
    }
}

static bool unused_lane(const memfit_pool *pool, unsigned *number)
{
    for (*number = 1; *number < pool->lane_count; ++*number)
        if (!pool->lane[*number]->used)
            return true;
    return false;
}

static memfit_status make_lane(memfit_pool *pool, mf_stream stream, unsigned *number, memfit_error *err)
{
    bool any = unused_lane(pool, number);
    if (!any && pool->lane_count == MF_LANES) {
        reclaim_lane(pool);
        any = unused_lane(pool, number);
    }
    if (any) {
        mf_lane *lane = pool->lane[*number];
        lane->used = true;
        lane->clock.stream = stream;
        return MEMFIT_OK;
    }
    if (pool->lane_count == MF_LANES)
        return mf_fail(err, MEMFIT_INVALID,
                       "pool %s: %d streams have memory that waits for them, and none can be waited for now\nCall "
                       "memfit_pool_forget_stream for those that are gone",
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
    if (pool->pages.shadow_count && /* old mappings are of the time of one stream */
        (pool->device->table->stream_sync(pool->device, pool->home, &pool->refused_by) || !mf_shadows_end(pool))) {
        pool->lane[home]->used = pool->lane[other]->used = false;
        return mf_fail(err, MEMFIT_DEVICE, "pool %s: a second stream: the first cannot be waited for now: %s",
                       pool->name, pool->refused_by.message);
    }
    atomic_store(&pool->cached, false);
    atomic_store(&pool->keeps, false);
    mf_pass_set(pool);
    mf_caches_reclaim(pool);
    pool->multi = true;
    pool->lane[home]->clock.serial++;
    cut_tail(pool);
    holes_to_lane(pool, home);
    move_slabs(pool, 0, home);
    for (mf_block *b = pool->first; b; b = b->after)
        if (b->state == MF_LIVE)
            b->lane = (uint8_t)home;
    *number = other;
    mf_apart_begin(pool);
    mf_repeat_begin(pool);
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
        if (pool->lane[i]->used && !pool->lane[i]->graph && pool->lane[i]->clock.stream == stream) {
            *number = i;
            return MEMFIT_OK;
        }
    return make_lane(pool, stream, number, err);
}

/* A lane of a CUDA graph. Its stream is nobody's: no clock ever says that it is past. */
memfit_status mf_lane_for_graph(memfit_pool *pool, uint64_t graph, unsigned *number, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    if (!pool->multi && pool->home == MF_NO_STREAM)
        status = mf_lane_for(pool, 0, number, err); /* lane 0 must be everybody's: there are two lanes at least */
    if (!status)
        status =
            pool->multi ? make_lane(pool, MF_NO_STREAM, number, err) : become_multi(pool, MF_NO_STREAM, number, err);
    if (status)
        return status;
    pool->lane[*number]->graph = true;
    pool->lane[*number]->graph_id = graph;
    return MEMFIT_OK;
}

memfit_status memfit_pool_forget_stream(memfit_pool *pool, memfit_stream stream, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    unsigned number = 0;
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && !pool->lane[i]->graph && pool->lane[i]->clock.stream == stream)
            number = i;
    bool home = !pool->multi && pool->home == stream;
    if (number || home || mf_fence_names(pool, stream))
        status = pool->device->table->stream_sync(pool->device, stream, err);
    if (!status && number)
        mf_lane_forget(pool, number);
    if (!status)
        mf_fence_forget_stream(pool, stream);
    if (!status && home) {
        pool->lane[0]->clock.safe = pool->frees_central;
        mf_clock_end(pool, &pool->lane[0]->clock);
        atomic_store(&pool->home, MF_NO_STREAM);
        mf_pass_set(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}
