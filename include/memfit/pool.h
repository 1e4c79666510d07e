/*
 * memfit/pool.h: an allocator of device memory whose limit holds and whose failures explain themselves.
 *
 *     memfit_device *device;
 *     memfit_pool *pool;
 *     memfit_pool_options options = MEMFIT_POOL_OPTIONS;
 *     options.limit_bytes = 4ull << 30;
 *     memfit_device_open("cpu", NULL, &device, &err);
 *     memfit_pool_create(device, &options, &pool, &err);
 *     memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, "block1/conv", &owner, &err);
 *     memfit_pool_alloc(pool, bytes, owner, &address, &err);
 *     memfit_pool_free(pool, address, &err);
 *
 * How it works. A pool owns one long range of addresses and the physical pages (2 MiB) mapped into it. Blocks are
 * placed at multiples of 256 bytes, so neighbours share pages at their ends. When no hole is large enough, pages that
 * hold no live byte are taken out of where they are and mapped where they are needed. So a request fails only if the
 * pages that hold a live byte, plus the pages the request needs, are more than the limit allows.
 *
 * Words. in use: bytes of live blocks, as asked for. reserved: physical memory the pool holds. limit: what reserved
 * plus the device's fixed cost may reach. pinned: free bytes that cannot be recycled because a live block shares their
 * page. peak: the highest value since creation or memfit_pool_reset_peaks.
 *
 * Threads: every function may be called from any thread; a block may be freed by another thread than asked for it.
 * Misuse (double free, foreign pointer, wrong pool, a destroyed pool) is reported as MEMFIT_MISUSE; nothing happens.
 *
 * fork: pools and devices stay with the parent. In the child every call with such a handle gives MISUSE (destroy does
 * nothing), and on cpu the addresses of blocks are not mapped; the child opens a device of its own. fork may be called
 * while other threads use the pool. Signals: no function may be called from a handler.
 *
 * Callbacks: pressure functions and on_leak run without a lock and may call the pool; the function given to
 * memfit_pool_each_block runs under the pool's lock and must not.
 */
#ifndef MEMFIT_POOL_H
#define MEMFIT_POOL_H

#include "memfit/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memfit_pool memfit_pool;
typedef uint32_t memfit_owner; /* from memfit_pool_owner; 0 is "unnamed", of kind other */

/* ---- options ---------------------------------------------------------------------------------------------- */

typedef enum memfit_policy {
    MEMFIT_POLICY_GROWTH,      /* takes pages when needed, gives idle ones back */
    MEMFIT_POLICY_PREALLOCATE, /* takes everything up to the limit at once and keeps it */
} memfit_policy;

#define MEMFIT_PURGE_NEVER UINT64_MAX

/* One owner's account, also used for leaks and growth. */
typedef struct memfit_owner_info {
    memfit_owner owner;
    memfit_kind kind;
    char name[64];
    uint64_t bytes; /* in use now (or: leaked; or: grown) */
    uint64_t peak_bytes;
    uint64_t blocks;      /* live blocks now */
    uint64_t allocations; /* ever */
    uint32_t grown_marks; /* at how many marks in a row this owner had more than at the mark before */
    uint32_t reserved0;
    uint64_t reserved[4];
} memfit_owner_info;

typedef struct memfit_pool_options {
    size_t size;             /* sizeof(memfit_pool_options) */
    const memfit_host *host; /* host memory; NULL: the device's */
    const char *name;        /* in messages; NULL: "pool" */
    memfit_policy policy;
    uint64_t limit_bytes;      /* 0: see limit_fraction */
    double limit_fraction;     /* of the device's memory, 0 < f <= 1; 0 and limit_bytes 0: all that is free now.
                                  Both given is a CONFLICT. */
    bool slice;                /* a logical device: the limit is set aside, no other pool on this device gets it */
    uint64_t soft_limit_bytes; /* 0: none. Above it the pool reclaims and calls back before it grows */
    uint64_t page_bytes;       /* the recycling quantum, a power of two; 0: 2 MiB, or the device's granularity */
    uint64_t bulk_bytes;       /* growth in large pieces of up to this size while memory is plentiful: faster on CUDA,
                                  recycled as a whole. 0: never */
    uint64_t purge_ms;         /* pages idle for so long are given back; MEMFIT_PURGE_NEVER; default 10,000 */
    bool keep_idle;            /* purge, but never below the soft limit */
    bool no_thread_caches;     /* every call takes the lock: for tests and for exact snapshots */
    bool no_stream_wait;       /* fail instead of waiting for other streams' pending frees */
    bool debug;                /* poison what is free, guard the end of every block (not on sim) */
    bool ignore_environment;   /* do not read MEMFIT_* */
    /* Called by memfit_pool_destroy when blocks are still live: one entry an owner, largest first. It may call the pool,
     * but not destroy it. May be NULL. */
    void (*on_leak)(void *ctx, const memfit_owner_info *owners, size_t count);
    void *on_leak_ctx;
    double slack; /* by how much of the peak in use the pool may hold more before it moves pages instead of making new
                     ones. Moving takes time: at most a hundredth of the elapsed time while the limit leaves room to
                     grow, whatever the slack */
} memfit_pool_options;

#define MEMFIT_POOL_OPTIONS MEMFIT_INIT_1(memfit_pool_options, purge_ms, 10000)

/* INVALID: an option that makes no sense (a limit above the device, or below one page: the message says what may have
 * been meant). CONFLICT: options against each other, against MEMFIT_* variables, or slices that do not fit together.
 * OUT_OF_MEMORY: the fixed cost alone is over the limit, or preallocation is refused. `options` may be NULL. Since 0.1.
 */
MEMFIT_API memfit_status memfit_pool_create(memfit_device *device, const memfit_pool_options *options,
                                            memfit_pool **pool, memfit_error *err);

/* Waits for all streams of the device and gives everything back; live blocks are gone, reported to options.on_leak. NULL
 * is fine. No other call may be running on it. Later calls with this handle give MISUSE as long as the device is open. Since 0.1. */
MEMFIT_API void memfit_pool_destroy(memfit_pool *pool);

/* ---- allocating ------------------------------------------------------------------------------------------- */

/* A block of at least `bytes` (0 is allowed: a distinct address), aligned to 256. OUT_OF_MEMORY carries the
 * explanation in *err; see memfit_pool_explain for the long form. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_alloc(memfit_pool *pool, uint64_t bytes, memfit_owner owner,
                                           memfit_address *address, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_free(memfit_pool *pool, memfit_address address, memfit_error *err);

/* With a stream and an alignment (a power of two; 0: 256). A block freed on a stream can be had at once by a request on
 * that stream; on others after the work queued so far is done. So who frees a block on another stream than it was asked for on lets
 * that stream wait for the first, or calls memfit_pool_use_on. The two above use stream 0. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_alloc_on(memfit_pool *pool, uint64_t bytes, uint64_t alignment, memfit_owner owner,
                                              memfit_stream stream, memfit_address *address, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_free_on(memfit_pool *pool, memfit_address address, memfit_stream stream,
                                             memfit_error *err);
/* The live block is also used by work on a further stream: once it is freed nobody has it again before that stream, too,
 * has come as far as it has at the free. May be called as often as one likes, before or after the work is queued, until
 * the block is freed (MISUSE after that); a use on the stream it is freed on changes nothing. Any address inside the
 * block will do. PyTorch's record_stream. Since 0.2. */
MEMFIT_API memfit_status memfit_pool_use_on(memfit_pool *pool, memfit_address address, memfit_stream stream,
                                            memfit_error *err);

/* CUDA graphs. Work captured into a graph runs whenever the graph is launched, so its memory must stay its own. `graph`
 * is any number of the caller's. Between begin and end, requests on streams that are being captured are met with memory
 * set aside for the graph; what is freed of it can be had again by the same graph only (or by a later capture under the
 * same number: graphs that are never launched side by side can share it). Release, once for every begin, when the graphs
 * are destroyed: the device is waited for, and what was freed is everybody's again. Without begin, requests on a stream
 * that is captured are UNSUPPORTED. MISUSE: no such graph, or released while captured. Since 0.2. */
MEMFIT_API memfit_status memfit_pool_graph_begin(memfit_pool *pool, uint64_t graph, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_graph_end(memfit_pool *pool, uint64_t graph, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_graph_release(memfit_pool *pool, uint64_t graph, memfit_error *err);

/* To be called before a stream is destroyed: waits for it and forgets it. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_forget_stream(memfit_pool *pool, memfit_stream stream, memfit_error *err);

typedef struct memfit_block_info {
    size_t size;            /* sizeof(memfit_block_info): MEMFIT_BLOCK_INFO */
    memfit_address address; /* of the block's first byte */
    uint64_t bytes;         /* as asked */
    uint64_t taken_bytes;   /* address space it really takes */
    memfit_owner owner;
    memfit_kind kind;
    memfit_stream stream;
    uint64_t mark; /* the number of marks set before it was allocated */
} memfit_block_info;
#define MEMFIT_BLOCK_INFO MEMFIT_INIT(memfit_block_info)

/* The live block an address lies in; MISUSE when none does. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_find(memfit_pool *pool, memfit_address address, memfit_block_info *block,
                                          memfit_error *err);

/* ---- settings that change while the pool is in use -------------------------------------------------------- */

/* Upwards: at once (INVALID above the device, CONFLICT when slices do not fit together). Downwards: idle pages are
 * given back, and a soft limit above it comes down with it. If pages with live bytes alone are above the new limit the
 * answer is CONFLICT with the lowest limit that would do in err->limit_bytes, and nothing has changed, unless
 * `when_freed`: then the new limit holds for every request from now on, and pages are given back as they become idle.
 * CONFLICT also when idle pages should go and cannot (the device refuses, or a stream may still use them and
 * no_stream_wait is set): the limit stays, and *err says how many bytes went before. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_set_limit(memfit_pool *pool, uint64_t limit_bytes, bool when_freed,
                                               memfit_error *err);
/* The same with a fraction of the device's memory, 0 < fraction <= 1 (INVALID otherwise). Since 0.1. */
MEMFIT_API memfit_status memfit_pool_set_limit_fraction(memfit_pool *pool, double fraction, bool when_freed,
                                                        memfit_error *err);
/* 0: none. CONFLICT above the limit, or under preallocate. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_set_soft_limit(memfit_pool *pool, uint64_t soft_limit_bytes, memfit_error *err);
/* To preallocate: takes the pages up to the limit, or fails and stays as it was; CONFLICT while there is a soft limit.
 * To growth: idle pages fall under the purge delay again. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_set_policy(memfit_pool *pool, memfit_policy policy, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_set_purge(memfit_pool *pool, uint64_t purge_ms, memfit_error *err);
/* The options of these names; both hold from the next purge and the next request on. INVALID: a slack that is no
 * fraction. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_set_keep_idle(memfit_pool *pool, bool keep_idle, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_set_slack(memfit_pool *pool, double slack, memfit_error *err);

/* Gives idle pages back until at most `keep_bytes` are reserved; *released_bytes (may be NULL) is what went. CONFLICT
 * under preallocate. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_trim(memfit_pool *pool, uint64_t keep_bytes, uint64_t *released_bytes,
                                          memfit_error *err);
/* Lets the pool do what is due: poll streams, purge. Any allocation does it too, now and then. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_poll(memfit_pool *pool, memfit_error *err);
/* Returns what this thread's cache holds to the pool. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_flush_thread(memfit_pool *pool, memfit_error *err);

/* Called, with no lock held, before the pool passes its soft limit (hard false) or fails (hard true). It may free
 * blocks of this pool. Returns how many bytes it freed; 0 means it cannot help. */
typedef uint64_t (*memfit_pressure_fn)(void *ctx, memfit_pool *pool, uint64_t wanted_bytes, bool hard);
/* At most 8, called in the order added. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_on_pressure(memfit_pool *pool, memfit_pressure_fn fn, void *ctx,
                                                 memfit_error *err);
MEMFIT_API memfit_status memfit_pool_off_pressure(memfit_pool *pool, memfit_pressure_fn fn, void *ctx,
                                                  memfit_error *err);

/* ---- the ledger ------------------------------------------------------------------------------------------- */

/* Finds or makes the owner of this kind and name (cut at 63 bytes). At most 65,535 of them. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_owner(memfit_pool *pool, memfit_kind kind, const char *name, memfit_owner *owner,
                                           memfit_error *err);

typedef struct memfit_pool_info {
    size_t size; /* sizeof(memfit_pool_info): MEMFIT_POOL_INFO */
    char name[64];
    memfit_policy policy;
    uint64_t limit_bytes, soft_limit_bytes;
    uint64_t page_bytes;
    uint64_t fixed_bytes; /* the part of the device's fixed cost that counts against this limit */
    uint64_t in_use_bytes, in_use_peak_bytes;
    uint64_t reserved_bytes, reserved_peak_bytes;
    uint64_t idle_bytes;         /* reserved pages without a live byte: what trim can give back */
    uint64_t pinned_bytes;       /* free bytes in pages that hold a live one */
    uint64_t padding_bytes;      /* in live blocks beyond what was asked: alignment, size classes, guards */
    uint64_t cached_bytes;       /* free, in threads' caches; counted in pinned or idle, too */
    uint64_t pending_bytes;      /* freed, waiting for a stream */
    uint64_t largest_free_bytes; /* the largest hole with pages behind it */
    uint64_t available_bytes;    /* the largest request that would succeed now */
    uint64_t blocks, allocations, frees, failures;
    uint64_t remaps; /* allocations that had to move pages */
    uint64_t remapped_pages, created_pages, released_pages;
    uint64_t stream_waits;
    uint64_t metadata_bytes; /* host memory the pool itself takes */
    uint64_t marks;
    uint64_t owners;
    uint64_t kind_bytes[MEMFIT_KIND_PLACES], kind_peak_bytes[MEMFIT_KIND_PLACES];
    uint64_t moving_us; /* time that went into moving pages, by the device's clock */
} memfit_pool_info;
#define MEMFIT_POOL_INFO MEMFIT_INIT(memfit_pool_info)

/* Counters are always on. "Now" is exact. Peaks are exact while one thread allocates; with several the total's may be
 * off by 64 KiB a thread, an owner's or a kind's too high by what other threads freed last (eight blocks each at most).
 * Looking changes nothing, not even where later blocks go. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_get_info(memfit_pool *pool, memfit_pool_info *info, memfit_error *err);
MEMFIT_API memfit_status memfit_pool_reset_peaks(memfit_pool *pool, memfit_error *err);

/* Owners, most bytes first; at most `most` are written, `stride` bytes apart, *count is how many there are. Since 0.1.
 */
MEMFIT_API memfit_status memfit_pool_owners(memfit_pool *pool, memfit_owner_info *list, size_t stride, size_t most,
                                            size_t *count, memfit_error *err);
/* The same, only those with live blocks: what would leak if the pool ended now. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_leaks(memfit_pool *pool, memfit_owner_info *list, size_t stride, size_t most,
                                           size_t *count, memfit_error *err);

/* Every live block in address order; stops when fn returns false. fn runs under the pool's lock and must not call this
 * pool. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_each_block(memfit_pool *pool,
                                                bool (*fn)(void *ctx, const memfit_block_info *block), void *ctx,
                                                memfit_error *err);

/* A mark is a moment to compare with: the end of a step, of a cell, of an experiment. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_mark(memfit_pool *pool, uint64_t *mark, memfit_error *err);
/* What is alive now and was allocated after `mark`, by owner, most bytes first; bytes and blocks count only those.
 * grown_marks names owners that grow at every mark. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_growth(memfit_pool *pool, uint64_t mark, memfit_owner_info *list, size_t stride,
                                            size_t most, size_t *count, memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
