/* lanes.h: lanes.c: holes and slabs by stream. */
#ifndef MF_POOL_LANES_H
#define MF_POOL_LANES_H

#include "pool/state.h"

memfit_status mf_lanes_init(memfit_pool *pool, memfit_error *err);
void mf_lanes_end(memfit_pool *pool);
/* The lane for a stream; makes it, and turns to several lanes when it is the second stream. */
memfit_status mf_lane_for(memfit_pool *pool, mf_stream stream, unsigned *lane, memfit_error *err);
static inline memfit_status mf_lane_of(memfit_pool *pool, mf_stream stream, unsigned *lane, memfit_error *err)
{
    *lane = 0;
    if (!pool->multi && atomic_load_explicit(&pool->home, memory_order_relaxed) == stream)
        return MEMFIT_OK;
    return mf_lane_for(pool, stream, lane, err);
}
/* What streams are past becomes everybody's. events: also put events behind what was freed so far. True: something
 * became free. */
bool mf_lanes_poll(memfit_pool *pool, bool events);
bool mf_lanes_poll_for(memfit_pool *pool,
                       unsigned lane);              /* the same for a request on a lane, whose own holes stay its own */
void mf_lanes_look(memfit_pool *pool);              /* how far streams are: nothing changes hands */
uint64_t mf_lanes_lead_us(const memfit_pool *pool); /* of the program, before the stream that is furthest behind */
/* Waits until the stream that has most to do is a bit further, and has so much to do behind that. False: there is none, or it may
 * not. */
bool mf_lanes_wait_some(memfit_pool *pool, uint64_t least_us);
bool mf_lanes_wait(memfit_pool *pool); /* waits for every stream; true when something became free */
memfit_status mf_lane_for_graph(memfit_pool *pool, uint64_t graph, unsigned *lane, memfit_error *err);
void mf_lane_forget(memfit_pool *pool, unsigned lane); /* its stream is past everything: what it has is everybody's */
memfit_status mf_lane_wait_slot(memfit_pool *pool, unsigned lane, mf_slot_ref ref, memfit_error *err);
uint64_t mf_lanes_pending_bytes(const memfit_pool *pool);

#endif
