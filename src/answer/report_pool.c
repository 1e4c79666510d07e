/*
 * report_pool.c: what memfit's pool would have held for the same requests.
 *
 * The trace is played on the device `sim`, which has addresses and pages but no memory, with the trace's own time; the pool
 * grows as it needs to, in pages of 2 MiB. Only its figures are read, so the play changes nothing anywhere.
 */
#include "answer/report.h"

#include "base/error.h"
#include "memfit/pool.h"

#include <string.h>

enum { PAGE_BYTES = 2 << 20 };

typedef struct play {
    mf_arena arena;
    memfit_device *device;
    memfit_pool *pool;
    memfit_address *addresses; /* by buffer */
    memfit_stream *streams;
    uint64_t clock_us;
} play;

static memfit_status open_play(play *p, const mf_report *r, memfit_error *err)
{
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = 16ull << 30;
    while (d.capacity_bytes / 2 < r->peak_bytes && d.capacity_bytes < 1ull << 62)
        d.capacity_bytes *= 2;
    d.granularity_bytes = PAGE_BYTES;
    memfit_status status = memfit_device_open("sim", &d, &p->device, err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.name = "report";
    o.policy = MEMFIT_POLICY_GROWTH;
    o.page_bytes = PAGE_BYTES;
    o.purge_ms = MEMFIT_PURGE_NEVER;
    o.ignore_environment = true;
    if (!status)
        status = memfit_pool_create(p->device, &o, &p->pool, err);
    if (status)
        return status;
    p->addresses = MF_NEW_ARRAY(&p->arena, memfit_address, r->info.buffers + 1);
    p->streams = MF_NEW_ARRAY(&p->arena, memfit_stream, r->info.streams + 1);
    if (!p->addresses || !p->streams)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to replay a trace");
    for (uint32_t i = 1; !status && i < r->info.streams; i++)
        status = memfit_stream_create(p->device, &p->streams[i], err);
    return status;
}

static void close_play(play *p, uint32_t streams)
{
    memfit_pool_destroy(p->pool);
    for (uint32_t i = 1; p->streams && i < streams; i++)
        if (p->streams[i])
            memfit_stream_destroy(p->device, p->streams[i], NULL);
    memfit_device_close(p->device, NULL);
    mf_arena_destroy(&p->arena);
}

static memfit_status play_event(play *p, const memfit_event *e, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    if (e->time_ns / 1000 > p->clock_us) {
        status = memfit_device_advance(p->device, e->time_ns / 1000 - p->clock_us, err);
        p->clock_us = e->time_ns / 1000;
    }
    if (status)
        return status;
    memfit_stream stream = p->streams[e->stream];
    if (e->op == MEMFIT_EVENT_ALLOC)
        return memfit_pool_alloc_on(p->pool, e->bytes, 0, 0, stream, &p->addresses[e->id], err);
    return p->addresses[e->id] ? memfit_pool_free_on(p->pool, p->addresses[e->id], stream, err) : MEMFIT_OK;
}

static memfit_status held_now(play *p, uint64_t *most, memfit_error *err)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_status status = memfit_pool_get_info(p->pool, &info, err);
    if (!status && info.reserved_bytes > *most)
        *most = info.reserved_bytes;
    return status;
}

/* A pool that grows and gives nothing back holds the most at the end of a column. */
static memfit_status play_all(play *p, mf_report *r, const uint64_t *at, uint32_t columns, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    uint32_t column = 0;
    for (uint64_t i = 0; !status && i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        for (; !status && at && column + 1 < columns && at[column + 1] <= i; column++)
            status = held_now(p, &r->pool.columns[column], err);
        if (!status && mf_report_moves(r, e))
            status = play_event(p, e, err);
    }
    for (; !status && at && column < columns; column++)
        status = held_now(p, &r->pool.columns[column], err);
    return status;
}

memfit_status mf_report_replay(mf_report *r, const uint64_t *at, uint32_t columns, memfit_error *err)
{
    play p = {0};
    mf_arena_init(&p.arena, r->arena.host);
    r->pool.columns = at ? MF_NEW_ARRAY(&r->arena, uint64_t, columns) : NULL;
    memfit_status status = at && !r->pool.columns ? mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to replay a trace")
                                                  : open_play(&p, r, err);
    if (!status)
        status = play_all(&p, r, at, columns, err);
    memfit_pool_info info = MEMFIT_POOL_INFO;
    if (!status)
        status = memfit_pool_get_info(p.pool, &info, err);
    if (!status) {
        r->pool.known = true;
        r->pool.physical_bytes = info.reserved_peak_bytes;
    } else {
        r->pool.columns = NULL;
    }
    close_play(&p, r->info.streams);
    return status;
}
