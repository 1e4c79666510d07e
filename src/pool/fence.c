/*
 * fence.c: when is freed memory safe? Blocks used on further streams, CUDA graphs, an end that waits. Events are in
 * clock.c.
 *
 * A block that was used on further streams (memfit_pool_use_on) is held when it is freed: an event is put behind the
 * work of each of those streams at once, and the block becomes a hole of the freeing stream's lane when all are done.
 *
 * CUDA graphs. Work captured into a graph runs whenever the graph is launched, on any stream. So memory handed out
 * while a stream is captured has a lane of its own: what is freed there can be had by the same graph (and by graphs
 * that share its pool), and by nobody else before the graph is released and the device has come to rest.
 */
#include "pool/blocks.h"
#include "pool/calls.h"
#include "pool/lanes.h"
#include "pool/slab.h"

#include "base/error.h"

#include <string.h>

/* Streams that are known are waited for one by one: what other pools' streams do is no concern of this one. */
static bool streams_past(memfit_pool *pool)
{
    const mf_device_table *table = pool->device->table;
    if (pool->fence.unnamed_streams)
        return false;
    if (!pool->multi)
        return pool->home == MF_NO_STREAM || !table->stream_sync(pool->device, pool->home, NULL);
    for (unsigned i = 1; i < pool->lane_count; i++) {
        const mf_lane *lane = pool->lane[i];
        if (lane->used && (lane->graph || table->stream_sync(pool->device, lane->clock.stream, NULL)))
            return false;
    }
    return true;
}

bool mf_fence_settled(memfit_pool *pool)
{
    const mf_device_table *table = pool->device->table;
    for (int i = 0; i < 2; i++) /* twice: a passing fault must not leak */
        if (streams_past(pool) || !table->device_sync || !table->device_sync(pool->device, NULL))
            return true;
    return false;
}

/* ---- blocks used on further streams --------------------------------------------------------------------------- */

struct mf_used {
    uint64_t offset;
    mf_use *uses;
    mf_block *block; /* held: a block, */
    mf_slab *slab;   /* or a slot */
    uint32_t index;
    unsigned lane;   /* a held block: the lane it was freed on, */
    uint64_t serial; /* and that lane's serial then */
    mf_used *next;
};

static mf_used **find_used(const memfit_pool *pool, uint64_t offset)
{
    const mf_fence *f = &pool->fence;
    if (!f->used_count)
        return NULL;
    mf_used **at = &f->bucket[offset / MF_UNIT * 0x9e3779b97f4a7c15u >> 32 & (f->buckets - 1)];
    while (*at && (*at)->offset != offset)
        at = &(*at)->next;
    return *at ? at : NULL;
}

static void put_used(mf_fence *f, mf_used *u)
{
    mf_used **at = &f->bucket[u->offset / MF_UNIT * 0x9e3779b97f4a7c15u >> 32 & (f->buckets - 1)];
    u->next = *at;
    *at = u;
}

static bool grow_buckets(memfit_pool *pool)
{
    mf_fence *f = &pool->fence;
    if (f->used_count < f->buckets)
        return true;
    mf_fence more = *f;
    more.buckets = f->buckets ? f->buckets * 2 : 64;
    more.bucket = mf_host_zalloc(pool->host, more.buckets * sizeof *more.bucket);
    if (!more.bucket)
        return false;
    for (size_t i = 0; i < f->buckets; i++)
        for (mf_used *u = f->bucket[i], *next; u; u = next) {
            next = u->next;
            put_used(&more, u);
        }
    mf_host_free(pool->host, f->bucket, f->buckets * sizeof *f->bucket);
    pool->host_bytes += (more.buckets - f->buckets) * sizeof *more.bucket;
    *f = more;
    return true;
}

static void drop_use(mf_fence *f, mf_use *use)
{
    use->next = f->unused_uses;
    f->unused_uses = use;
}

static void drop_used(mf_fence *f, mf_used *u)
{
    u->next = f->unused;
    f->unused = u;
}

static mf_use *new_use(memfit_pool *pool)
{
    mf_use *use = pool->fence.unused_uses;
    if (use)
        pool->fence.unused_uses = use->next;
    else
        use = MF_NEW(&pool->arena, mf_use);
    return use;
}

static mf_used *new_used(memfit_pool *pool)
{
    mf_used *u = pool->fence.unused;
    if (u)
        pool->fence.unused = u->next;
    else
        u = MF_NEW(&pool->arena, mf_used);
    return u;
}

static memfit_status note_use(memfit_pool *pool, uint64_t offset, mf_stream stream, memfit_error *err)
{
    mf_fence *f = &pool->fence;
    mf_used **at = find_used(pool, offset), *u = at ? *at : NULL;
    for (mf_use *use = u ? u->uses : NULL; use; use = use->next)
        if (use->stream == stream)
            return MEMFIT_OK;
    mf_use *use = new_use(pool);
    if (use && !u) {
        u = grow_buckets(pool) ? new_used(pool) : NULL;
        if (u) {
            *u = (mf_used){.offset = offset};
            put_used(f, u);
            f->used_count++;
        }
    }
    if (!use || !u) {
        if (use)
            drop_use(f, use);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory to note that a block is used on a stream",
                       pool->name);
    }
    *use = (mf_use){.stream = stream, .next = u->uses};
    u->uses = use;
    return MEMFIT_OK;
}

memfit_status memfit_pool_use_on(memfit_pool *pool, memfit_address address, memfit_stream stream, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    memfit_block_info block = MEMFIT_BLOCK_INFO;
    unsigned lane;
    if (!mf_pool_find_locked(pool, address, &block))
        status = mf_fail(err, MEMFIT_MISUSE,
                         "pool %s: use of %#llx on a stream, which is no live block: freed already, or never allocated",
                         pool->name, (unsigned long long)address);
    if (!status) /* turns to several lanes when it is the second stream */
        status = mf_lane_of(pool, stream, &lane, err);
    if (!status && pool->multi)
        status = note_use(pool, block.address - pool->range, stream, err);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

bool mf_fence_names(const memfit_pool *pool, mf_stream stream)
{
    const mf_fence *f = &pool->fence;
    for (size_t i = 0; f->used_count && i < f->buckets; i++)
        for (const mf_used *u = f->bucket[i]; u; u = u->next)
            for (const mf_use *use = u->uses; use; use = use->next)
                if (use->stream == stream)
                    return true;
    return false;
}

void mf_fence_forget_stream(memfit_pool *pool, mf_stream stream)
{
    mf_fence *f = &pool->fence;
    for (size_t i = 0; f->used_count && i < f->buckets; i++)
        for (mf_used *u = f->bucket[i]; u; u = u->next)
            for (mf_use **at = &u->uses; *at;) {
                mf_use *use = *at;
                if (use->stream != stream) {
                    at = &use->next;
                    continue;
                }
                *at = use->next;
                drop_use(f, use);
            }
}

/* ---- held blocks ---------------------------------------------------------------------------------------------- */

/* Puts an event behind the work of each further stream and counts on it. The freeing stream itself is not waited for.
 * What is past at once is dropped. On failure the uses are as they were. */
static memfit_status await_uses(memfit_pool *pool, mf_used *u, unsigned lane, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    for (mf_use *use = u->uses; use && !status; use = use->next) { /* lanes first: making one may fail */
        pool->lane[lane]->waits++; /* so that no lane we need is reclaimed for another */
        status = mf_lane_of(pool, use->stream, &use->lane, err);
        pool->lane[lane]->waits--;
        if (!status)
            pool->lane[use->lane]->waits++;
        else
            use->lane = 0;
    }
    for (mf_use *use = u->uses; use && status; use = use->next) {
        if (!use->lane)
            break;
        pool->lane[use->lane]->waits--;
    }
    if (status)
        return status;
    for (mf_use **at = &u->uses; *at;) {
        mf_use *use = *at;
        mf_lane *further = pool->lane[use->lane];
        use->serial = use->lane == lane ? 0 : ++further->clock.serial;
        if (use->serial)
            mf_clock_record(pool, &further->clock);
        if (use->serial)
            mf_clock_look(pool, &further->clock);
        if (further->clock.safe < use->serial) {
            at = &use->next;
            continue;
        }
        *at = use->next;
        further->waits--;
        drop_use(&pool->fence, use);
    }
    return MEMFIT_OK;
}

/* Also wait for the freeing stream itself: its slot goes to another lane's slab. */
static memfit_status await_self(memfit_pool *pool, mf_used *u, unsigned lane, memfit_error *err)
{
    mf_use *use = new_use(pool);
    if (!use)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory to note a free", pool->name);
    mf_clock *clock = &pool->lane[lane]->clock;
    clock->serial++;
    mf_clock_record(pool, clock);
    *use = (mf_use){.stream = clock->stream, .lane = lane, .serial = clock->serial, .next = u->uses};
    u->uses = use;
    pool->lane[lane]->waits++;
    return MEMFIT_OK;
}

/* Takes the record of a block's uses out of the table, when something is still to wait for. */
static memfit_status take_used(memfit_pool *pool, uint64_t offset, unsigned lane, mf_used **out, memfit_error *err)
{
    mf_fence *f = &pool->fence;
    mf_used **at = find_used(pool, offset);
    *out = NULL;
    if (!at)
        return MEMFIT_OK;
    mf_used *u = *at;
    memfit_status status = await_uses(pool, u, lane, err);
    if (status)
        return status;
    *at = u->next;
    f->used_count--;
    if (u->uses)
        *out = u;
    else
        drop_used(f, u);
    return MEMFIT_OK;
}

static void keep_held(mf_fence *f, mf_used *u)
{
    u->next = f->held;
    f->held = u;
}

memfit_status mf_fence_hold_block(memfit_pool *pool, mf_block *block, unsigned lane, bool *held, memfit_error *err)
{
    mf_used *u;
    *held = false;
    memfit_status status = take_used(pool, block->start, lane, &u, err);
    if (status || !u)
        return status;
    u->block = block;
    u->slab = NULL;
    u->lane = lane;
    u->serial = lane ? ++pool->lane[lane]->clock.serial : 0;
    pool->fence.held_bytes += block->bytes;
    keep_held(&pool->fence, u);
    *held = true;
    return MEMFIT_OK;
}

memfit_status mf_fence_hold_slot(memfit_pool *pool, mf_slab *slab, uint32_t index, unsigned lane, bool *held,
                                 memfit_error *err)
{
    mf_used *u;
    *held = false;
    uint64_t offset = slab->start + (uint64_t)index * slab->slot_bytes;
    memfit_status status = take_used(pool, offset, lane, &u, err);
    if (status || !u)
        return status;
    if (lane && slab->lane != lane && (status = await_self(pool, u, lane, err))) {
        while (u->uses) { /* rather wait too long than not at all: the block stays live, with no use forgotten */
            mf_use *use = u->uses;
            u->uses = use->next;
            pool->lane[use->lane]->waits--;
            note_use(pool, offset, use->stream, NULL);
            drop_use(&pool->fence, use);
        }
        drop_used(&pool->fence, u);
        return status;
    }
    if (lane && slab->lane == lane) /* when its slab is empty the page waits for this, too */
        pool->lane[lane]->clock.serial++;
    u->block = NULL;
    u->slab = slab;
    u->index = index;
    u->lane = 0;
    pool->fence.held_slot_bytes += slab->slot_bytes;
    keep_held(&pool->fence, u);
    *held = true;
    return MEMFIT_OK;
}

static void let_go(memfit_pool *pool, mf_used *u)
{
    mf_fence *f = &pool->fence;
    if (u->block) {
        f->held_bytes -= u->block->bytes;
        mf_block_drop(pool, u->block, u->lane, u->serial);
    } else {
        f->held_slot_bytes -= u->slab->slot_bytes;
        mf_slab_give(pool, (mf_slot_ref){u->slab, u->index});
    }
    drop_used(f, u);
}

bool mf_fence_holds(const memfit_pool *pool, unsigned lane)
{
    const mf_used *u = pool->fence.held;
    while (u && (!u->block || u->lane != lane))
        u = u->next;
    return u;
}

bool mf_fence_release_held(memfit_pool *pool)
{
    bool any = false;
    for (mf_used **at = &pool->fence.held; *at;) {
        mf_used *u = *at;
        for (mf_use **use = &u->uses; *use;) {
            mf_lane *lane = pool->lane[(*use)->lane];
            if (lane->clock.safe < (*use)->serial) {
                use = &(*use)->next;
                continue;
            }
            mf_use *past = *use;
            *use = past->next;
            lane->waits--;
            drop_use(&pool->fence, past);
        }
        if (u->uses) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        let_go(pool, u);
        any = true;
    }
    return any;
}

void mf_fence_forget_lane(memfit_pool *pool, unsigned lane)
{
    mf_fence_release_held(pool);
    for (mf_used *u = pool->fence.held; u; u = u->next)
        if (u->block && u->lane == lane)
            u->lane = 0, u->serial = 0;
}

void mf_fence_each_held(const memfit_pool *pool, void (*fn)(void *ctx, mf_block *block, mf_slab *slab), void *ctx)
{
    for (const mf_used *u = pool->fence.held; u; u = u->next)
        fn(ctx, u->block, u->slab);
}

void mf_fence_end(memfit_pool *pool)
{
    mf_fence *f = &pool->fence;
    mf_host_free(pool->host, f->bucket, f->buckets * sizeof *f->bucket);
    *f = (mf_fence){0};
}

/* ---- CUDA graphs ------------------------------------------------------------------------------------------------ */

bool mf_fence_is_graph(const memfit_pool *pool, unsigned lane)
{
    return lane && pool->lane[lane]->graph;
}

static unsigned graph_lane(const memfit_pool *pool, uint64_t graph)
{
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && pool->lane[i]->graph && pool->lane[i]->graph_id == graph && !pool->lane[i]->leaving)
            return i;
    return 0;
}

memfit_status mf_fence_lane(memfit_pool *pool, mf_stream stream, unsigned *lane, memfit_error *err)
{
    mf_device *device = pool->device;
    bool yes = false;
    if (!device->table->capturing || device->table->capturing(device, stream, &yes, NULL) || !yes)
        return mf_lane_of(pool, stream, lane, err);
    if (!pool->fence.open_graphs)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "pool %s: stream %#llx is being captured into a CUDA graph, and no graph was announced: its "
                       "memory would be handed out again while the graph still uses it\nCall memfit_pool_graph_begin "
                       "before the capture (PyTorch: set the functions that docs/pytorch.md names)",
                       pool->name, (unsigned long long)stream);
    if (pool->fence.open_graphs > 1)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "pool %s: two CUDA graphs are being captured at once\nCapture one after the other", pool->name);
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && pool->lane[i]->graph && pool->lane[i]->open)
            *lane = i;
    return MEMFIT_OK;
}

memfit_status memfit_pool_graph_begin(memfit_pool *pool, uint64_t graph, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    unsigned number = graph_lane(pool, graph);
    if (!number)
        status = mf_lane_for_graph(pool, graph, &number, err);
    if (!status) {
        pool->lane[number]->references++;
        pool->fence.open_graphs += !pool->lane[number]->open++;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static memfit_status no_graph(const memfit_pool *pool, uint64_t graph, memfit_error *err)
{
    return mf_fail(err, MEMFIT_MISUSE, "pool %s: no graph %llu", pool->name, (unsigned long long)graph);
}

memfit_status memfit_pool_graph_end(memfit_pool *pool, uint64_t graph, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    unsigned number = graph_lane(pool, graph);
    if (!number || !pool->lane[number]->open)
        status = no_graph(pool, graph, err);
    else if (!--pool->lane[number]->open)
        pool->fence.open_graphs--;
    pthread_mutex_unlock(&pool->lock);
    return status;
}

bool mf_fence_retire_graphs(memfit_pool *pool)
{
    const mf_device_table *table = pool->device->table;
    bool leaving = false;
    for (unsigned i = 1; i < pool->lane_count; i++)
        leaving |= pool->lane[i]->used && pool->lane[i]->leaving;
    if (!leaving || pool->fence.open_graphs || (table->device_sync && table->device_sync(pool->device, NULL)))
        return false;
    for (unsigned i = 1; i < pool->lane_count; i++)
        if (pool->lane[i]->used && pool->lane[i]->leaving)
            mf_lane_forget(pool, i);
    return true;
}

memfit_status memfit_pool_graph_release(memfit_pool *pool, uint64_t graph, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    unsigned number = graph_lane(pool, graph);
    if (!number) {
        status = no_graph(pool, graph, err);
    } else if (pool->lane[number]->references <= pool->lane[number]->open) {
        status = mf_fail(err, MEMFIT_MISUSE, "pool %s: graph %llu is released while it is captured", pool->name,
                         (unsigned long long)graph);
    } else if (!--pool->lane[number]->references) {
        pool->lane[number]->leaving = true;
        mf_fence_retire_graphs(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}
