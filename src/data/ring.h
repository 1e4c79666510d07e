/*
 * ring.h: samples made ahead, by threads of their own, while a step computes.
 *
 *   positions   ... released ........ ready ........ being made ........ next ... end
 *                      |<---------------- slots of the ring ----------------->|
 *                   the step copies from here         workers claim from here
 *
 * A slot holds one sample: every made array of it, in the type its tensor has. Workers take positions in order, so the
 * step, which takes them in order too, waits for the oldest first. A slot is free again when the step has copied it: with
 * as many slots as a batch has samples, the next batch is made while this one computes, and more slots only even out
 * pictures of unequal size. So the automatic depth is one batch.
 *
 * All threads, slots and rooms are there from its making on. Where a position is taken up (the begin of an epoch, after
 * resuming, validation) does not matter to it: whoever asks for another position than the next begins anew there.
 *
 * A sample that cannot be made ends the run when the step asks for it, with its name; or, up to `skip_most` of them, is
 * left out: the next sample of the source that can be made takes its place, which is the same one every time.
 *
 * Threads: one consumer; its calls are not for several threads. Workers call nothing of the consumer's.
 */
#ifndef MF_DATA_RING_H
#define MF_DATA_RING_H

#include "base/log.h"
#include "base/memory.h"

typedef struct mf_ring mf_ring;
struct mf_feeder;

typedef struct mf_ring_options {
    unsigned workers; /* 1 or more */
    int64_t slots;
    uint64_t slot_bytes, room_bytes, spare_bytes; /* of a sample; of a worker (worker.h) */
    const struct mf_front_kit *front; /* what workers do to samples behind that (front_work.h); NULL: nothing */
    int64_t skip_most;
    const mf_log *log; /* told what is left out, by the consumer's thread; must outlive the ring */
} mf_ring_options;

/* What the workers did and the step waited, since the ring was made. */
typedef struct mf_ring_times {
    uint64_t wait_ns, make_ns; /* of the consumer; of all workers together */
    int64_t made, skipped;
} mf_ring_times;

/* Everything it will ever take, but for the decoders' few KiB. */
uint64_t mf_ring_estimate(const mf_ring_options *options);
memfit_status mf_ring_create(const memfit_host *host, const mf_ring_options *options, mf_ring **ring,
                             memfit_error *err);
void mf_ring_destroy(mf_ring *ring);
/* Every worker makes a sample of the feeder once: code and tables that are there only when used are there then. What is
 * wrong with these samples is told when their turn comes. */
void mf_ring_warm_up(mf_ring *ring, struct mf_feeder *feeder);
/* No sample is being made, and none will be until the next mf_ring_wait: the order may change, feeders may go. */
void mf_ring_stop(mf_ring *ring);
/* Positions first .. first + count of the feeder are made, and stay so until they are released. count is at most
 * mf_ring_slots. The status of the first that could not be made. */
memfit_status mf_ring_wait(mf_ring *ring, struct mf_feeder *feeder, int64_t first, int64_t count, memfit_error *err);
int64_t mf_ring_slots(const mf_ring *ring);
/* Of a position that is made. */
const unsigned char *mf_ring_slot(const mf_ring *ring, int64_t position);
/* Which sample it holds: another than the order says where that was left out. Of a position for which mf_ring_know says
 * yes: it is made, waited for if need be, or was released so lately that it is remembered. */
bool mf_ring_know(mf_ring *ring, struct mf_feeder *feeder, int64_t first, int64_t count);
int64_t mf_ring_sample(const mf_ring *ring, int64_t position);
/* Positions below this are not needed any more. */
void mf_ring_release(mf_ring *ring, int64_t position);
bool mf_ring_skips(const mf_ring *ring);
unsigned mf_ring_workers(const mf_ring *ring);
uint64_t mf_ring_bytes(const mf_ring *ring);
mf_ring_times mf_ring_read_times(mf_ring *ring);

#endif
