/* stream_place.h: a pool on sim with three streams, for the tests of streams; it must end with nothing violated or left. */
#ifndef STREAM_PLACE_H
#define STREAM_PLACE_H

#include "test.h"

#include "device/sim.h"
#include "memfit/pool.h"
#include "pool/state.h"

#define MiB (UINT64_C(1) << 20)

typedef struct place {
    memfit_device *device;
    memfit_pool *pool;
    memfit_stream main, side, third;
} place;

static memfit_error err;

static inline place open_with(memfit_pool_options o)
{
    place p = {0};
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.capacity_bytes = UINT64_C(1) << 30;
    assert_ok(memfit_device_open("sim", &options, &p.device, &err), err);
    o.ignore_environment = true;
    assert_ok(memfit_pool_create(p.device, &o, &p.pool, &err), err);
    assert_ok(memfit_stream_create(p.device, &p.main, &err), err);
    assert_ok(memfit_stream_create(p.device, &p.side, &err), err);
    assert_ok(memfit_stream_create(p.device, &p.third, &err), err);
    return p;
}

static inline void close_place(place *p)
{
    assert_ok(mf_pool_check(p->pool, &err), err);
    memfit_pool_destroy(p->pool);
    mf_sim_counts c = mf_sim_get(p->device);
    assert_int_equal(c.violations, 0);
    assert_int_equal(c.events, 0);
    assert_int_equal(c.physical_bytes, 0);
    assert_int_equal(c.mapped_bytes, 0);
    assert_ok(memfit_device_close(p->device, &err), err);
}

/* A "kernel" is a fill: on a stream that is held it stays in flight until the stream is let go. */
static inline void kernel(place *p, memfit_address a, uint64_t bytes, memfit_stream stream)
{
    assert_ok(memfit_device_fill(p->device, a, 1, bytes, stream, &err), err);
}

static inline void drop(place *p, memfit_address a, memfit_stream stream)
{
    assert_ok(memfit_pool_free_on(p->pool, a, stream, &err), err);
}

static inline memfit_pool_info look(place *p)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    assert_ok(mf_pool_check(p->pool, &err), err);
    assert_ok(memfit_pool_get_info(p->pool, &info, &err), err);
    return info;
}

#endif
