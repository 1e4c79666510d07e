/*
 * fence.h: when is freed memory safe? The only part of a pool that knows events (clock.c, fence.c).
 *
 *     clock    of one stream: a serial that counts what was freed there, and the events that stand behind some of them.
 *              Everything up to `safe` is past: no work queued before it can still run.
 *     use      a live block is also used on a further stream (memfit_pool_use_on)
 *     held     a freed block whose further streams are not past it: neither live nor a hole
 *     graph    memory of a CUDA graph: handed out while a stream is captured, its own until the graph is released
 *
 * Lanes (lanes.c) and old mappings (shadows.c) ask clocks; nobody else records, queries or waits for anything.
 */
#ifndef MF_POOL_FENCE_H
#define MF_POOL_FENCE_H

#include "device/device.h"
#include "memfit/pool.h"

enum {
    MF_EVENTS = 64,     /* in flight, a clock */
    MF_QUEUED_US = 300, /* of the device's work behind an event, so that waiting for it costs the device nothing */
};

typedef struct mf_block mf_block;
typedef struct mf_slab mf_slab;
typedef struct mf_used mf_used;

typedef struct mf_clock {
    mf_stream stream;
    uint64_t serial;   /* counts what was freed on the stream */
    uint64_t recorded; /* the serial the newest event stands behind */
    uint64_t safe;     /* the serial known to be past */
    struct {
        mf_event event;
        uint64_t serial;
        uint64_t at_us;   /* when it was recorded, */
        uint64_t owed_us; /* and all that was ever owed by then (moves.c) */
        bool timed;       /* it keeps the time (clock.c) */
    } waiting[MF_EVENTS]; /* in flight, oldest first; several may stand behind the same serial */
    struct {
        mf_event event[MF_EVENTS];
        unsigned count;
    } spare[2]; /* plain ones, and those that keep the time */
    unsigned waiting_count;
    /* Where events can keep the time: */
    mf_event timer;        /* the newest done of those that do; 0: none */
    uint64_t timer_us;     /* when that was done */
    uint64_t timed_at_us;  /* when the newest of them was recorded */
    uint64_t last_us;      /* when the newest event that was done was, at the earliest; 0: none was; */
    uint64_t last_owed_us; /* and all that was owed when it was recorded */
    bool known;            /* it was done then, not later */
} mf_clock;

bool mf_clock_asks(const memfit_pool *pool); /* enough time is owed to ask for what became of it */
/* An event behind the present serial. False: none could be recorded (the stream is being captured, or a fault). */
bool mf_clock_record(memfit_pool *pool, mf_clock *clock);
void mf_clock_look(memfit_pool *pool, mf_clock *clock); /* moves `safe` on as far as the device has come */
/* Waits until `safe` has reached the serial. False: waiting is not allowed or not possible now. */
bool mf_clock_wait(memfit_pool *pool, mf_clock *clock, uint64_t serial);
bool mf_clock_wait_next(memfit_pool *pool, mf_clock *clock); /* until it has moved on at all */
/* How much longer than for its oldest event the device has to do, at least: the program took so long to queue it, and is
 * ahead. */
uint64_t mf_clock_queued_us(const mf_clock *clock);
void mf_clock_end(memfit_pool *pool, mf_clock *clock);
/* How far the program is ahead of the device at least, on the stream that most is freed on: since when what the device is
 * at has been queued. Where events keep the time, what is owed is settled, too: see settle in clock.c. */
uint64_t mf_fence_lead_us(memfit_pool *pool);
bool mf_fence_keeps_time(const memfit_pool *pool);

typedef struct mf_use {
    mf_stream stream;
    unsigned lane;   /* once freed: whose clock is waited for, */
    uint64_t serial; /* and how far */
    struct mf_use *next;
} mf_use;

typedef struct mf_fence {
    mf_used **bucket; /* live blocks with uses, by offset */
    size_t buckets, used_count;
    mf_used *held; /* freed ones */
    uint64_t held_bytes, held_slot_bytes;
    mf_used *unused;
    mf_use *unused_uses;
    unsigned open_graphs;
    bool unnamed_streams; /* a lane was given to another stream: live blocks may be used on one that is not known */
} mf_fence;

/* All of the following: pool->lock held. */
bool mf_fence_settled(memfit_pool *pool); /* waits until no stream can use the pool any more; false: it could not */
void mf_fence_end(memfit_pool *pool);

/* The lane for a request on a stream: a graph's while the stream is captured, otherwise the stream's own. */
memfit_status mf_fence_lane(memfit_pool *pool, mf_stream stream, unsigned *lane, memfit_error *err);
bool mf_fence_is_graph(const memfit_pool *pool, unsigned lane);

/* Takes a freed block or slot whose further streams are not past it. Returns true if it is held; false: there is
 * nothing to wait for, and the caller frees it as always. A failure leaves the block live. */
memfit_status mf_fence_hold_block(memfit_pool *pool, mf_block *block, unsigned lane, bool *held, memfit_error *err);
memfit_status mf_fence_hold_slot(memfit_pool *pool, mf_slab *slab, uint32_t index, unsigned lane, bool *held,
                                 memfit_error *err);
bool mf_fence_holds(const memfit_pool *pool, unsigned lane);    /* a block that comes back to this lane */
bool mf_fence_release_held(memfit_pool *pool);                  /* those that nothing waits for any more; false: none */
void mf_fence_forget_lane(memfit_pool *pool, unsigned lane);    /* its stream is past everything, and goes */
bool mf_fence_names(const memfit_pool *pool, mf_stream stream); /* is a live block used on it? */
void mf_fence_forget_stream(memfit_pool *pool, mf_stream stream);
/* Of every held block. */
void mf_fence_each_held(const memfit_pool *pool, void (*fn)(void *ctx, mf_block *block, mf_slab *slab), void *ctx);

/* Before everything is waited for: graphs that were released go as soon as the device can be waited for. */
bool mf_fence_retire_graphs(memfit_pool *pool);

#endif
