/*
 * pool.h: what the rest of memfit may know of a pool beyond include/memfit/pool.h: walking its state, checking it,
 * copying it, and hooks. The structures themselves are in pool/state.h, for the files of this folder only.
 *
 * For the explanation of a failure (explain.c):
 *     mf_pool_explain_failure   is called by the pool, with the pool's lock held, when a request has failed
 *     mf_pool_walk_*            live blocks and pages, in a fixed order, without allocating
 */
#ifndef MF_POOL_POOL_H
#define MF_POOL_POOL_H

#include "device/device.h"
#include "memfit/pool.h"

/* A request as the pool sees it. */
typedef struct mf_request {
    uint64_t bytes, alignment;
    memfit_owner owner;
    memfit_stream stream;
    bool runs; /* the stream is known not to be captured */
} mf_request;

/* As memfit_pool_alloc_on, for a caller that has just found the stream not to be captured: the device is not asked again. */
memfit_status mf_pool_alloc_running(memfit_pool *pool, uint64_t bytes, memfit_owner owner, memfit_stream stream,
                                    memfit_address *address, memfit_error *err);

/* The functions below take the pool's lock unless their name ends in _locked. */
/* Every live block in address order, until fn returns false. */
void mf_pool_walk_blocks_locked(memfit_pool *pool, bool (*fn)(void *ctx, const memfit_block_info *block), void *ctx);

/* Every invariant of every structure; INTERNAL with the first that is broken. Costs a walk over everything. */
memfit_status mf_pool_check(memfit_pool *pool, memfit_error *err);

/* The pool's memory, now and later, is usable by another device of the same kind, too. UNSUPPORTED: not possible between
 * these two. */
memfit_status mf_pool_open_to(memfit_pool *pool, mf_device *other, memfit_error *err);

/* One event of a pool, as the trace sees it. */
typedef enum mf_pool_op {
    MF_POOL_ALLOC,
    MF_POOL_FREE,
    MF_POOL_FAIL,
    MF_POOL_MAP,
    MF_POOL_RELEASE,
    MF_POOL_MARK
} mf_pool_op;
typedef struct mf_pool_event {
    mf_pool_op op;
    memfit_owner owner;
    memfit_stream stream;
    memfit_address address;
    uint64_t bytes; /* as asked; MAP, RELEASE: physical bytes; MARK: its number */
} mf_pool_event;
typedef void (*mf_pool_hook)(void *ctx, const mf_pool_event *event);
/* NULL: none. Called on every event from whatever thread, under a lock: it must not call the pool. When this returns
 * nobody is inside the one that was set before. */
void mf_pool_set_hook(memfit_pool *pool, mf_pool_hook hook, void *ctx);

#endif
