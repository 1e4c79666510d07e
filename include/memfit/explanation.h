/*
 * memfit/explanation.h: why a request to a pool failed, and what would have made it succeed.
 *
 *     if (memfit_pool_alloc(pool, bytes, owner, &address, &err) == MEMFIT_OUT_OF_MEMORY) {
 *         memfit_explanation why = MEMFIT_EXPLANATION;
 *         char text[MEMFIT_EXPLANATION_TEXT];
 *         memfit_pool_explain(pool, &why, NULL);
 *         fputs(memfit_explanation_text(&why, 80, false, text, sizeof text), stderr);
 *     }
 *
 * The explanation is made at the moment of failure, in memory the pool set apart when it was created: nothing is
 * allocated. The short form is in memfit_error; this is the long one.
 *
 * The cause is the first of these whose removal alone would have let the request succeed: work on a stream that has not
 * finished, small blocks that pin pages, the rounding to pages, the pool's limit, other logical devices, other
 * processes. If no single one would, it is the outermost that has to go: the device is too small, others hold it,
 * another logical device holds it, the limit.
 *
 * Every action named was tried on a copy of the pool's state, and the request succeeded there. Cheapest first: those
 * that cost nothing, then those that change a setting, then those that take something away.
 */
#ifndef MEMFIT_EXPLANATION_H
#define MEMFIT_EXPLANATION_H

#include "memfit/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Name, text. `bytes` of an action is by how much; `frees_bytes` what the pool, or the device, gains by it. */
#define MEMFIT_ACTION_LIST(X)                                                                                          \
    X(NONE, "none")                   /* nothing helps */                                                              \
    X(WAIT, "wait-for-stream")        /* let `stream` finish: memfit_stream_sync. Gains: pages it keeps */             \
    X(TRIM, "trim-other-pool")        /* memfit_pool_trim of the pool `name`. Gains: its idle pages */                 \
    X(FREE_SMALL, "free-survivors")   /* free, or move, the blocks memfit_pool_each_survivor names. Gains: pages */    \
    X(MOVE_LIMIT, "move-limit")       /* lower the limit of the pool `name` by `bytes`, raise this one's as needed */  \
    X(RAISE_LIMIT, "raise-limit")     /* memfit_pool_set_limit, by `bytes` more */                                     \
    X(FREE_OWNER, "free-owner")       /* free all blocks of `owner`. Gains: the pages only it holds */                 \
    X(SMALLER, "smaller-request")     /* ask for `bytes` less; or for that many in a piece of its own, later */        \
    X(OTHERS, "ask-other-processes")  /* others must give back `bytes`; `name` is the largest of them */               \
    X(LARGER_DEVICE, "larger-device") /* a device with `bytes` more */

typedef enum memfit_action_kind {
#define X(name, text) MEMFIT_ACTION_##name,
    MEMFIT_ACTION_LIST(X)
#undef X
        MEMFIT_ACTION_COUNT
} memfit_action_kind;

/* "raise-limit", ... Since 0.1. */
MEMFIT_API const char *memfit_action_name(memfit_action_kind kind);

typedef struct memfit_action {
    memfit_action_kind kind;
    uint64_t bytes;
    uint64_t frees_bytes;
    uint64_t limit_bytes; /* MOVE_LIMIT, RAISE_LIMIT: this pool's limit afterwards */
    uint64_t blocks;      /* FREE_SMALL, FREE_OWNER: how many */
    uint64_t live_bytes;  /* and how many bytes they hold: what it costs */
    memfit_owner owner;   /* FREE_OWNER; FREE_SMALL: of most of them */
    memfit_stream stream; /* WAIT; or MEMFIT_EVERY_STREAM */
    char name[64];        /* of the owner, the pool, the process */
    uint64_t reserved[4];
} memfit_action;

#define MEMFIT_EVERY_STREAM UINT64_MAX

enum { MEMFIT_EXPLANATION_OWNERS = 8, MEMFIT_EXPLANATION_ACTIONS = 4, MEMFIT_EXPLANATION_TEXT = 8192 };

typedef struct memfit_explanation {
    size_t size;      /* sizeof(memfit_explanation): MEMFIT_EXPLANATION */
    uint64_t failure; /* the pool's number of this failure, from 1 */
    memfit_cause cause;
    char pool[64], device[128];
    /* the request */
    uint64_t request_bytes, request_alignment;
    memfit_owner request_owner;
    memfit_kind request_kind;
    char request_name[64];
    memfit_stream request_stream;
    uint64_t needed_bytes; /* new pages it would have taken at its best place */
    /* the pool, as in memfit_pool_info */
    memfit_policy policy;
    uint64_t page_bytes;
    uint64_t limit_bytes, fixed_bytes, in_use_bytes, reserved_bytes;
    uint64_t live_pages_bytes; /* pages that hold a live byte */
    uint64_t idle_bytes, pending_bytes, pinned_bytes;
    uint64_t small_pages_bytes; /* pages that hold only blocks of at most 64 KiB */
    uint64_t small_live_bytes;  /* and what those hold */
    uint64_t largest_hole_bytes, available_bytes;
    /* the device */
    uint64_t device_bytes, device_free_bytes, other_pools_bytes, others_bytes;
    uint64_t set_aside_bytes; /* by other logical devices, not in use by them */
    char other_process[128];  /* the largest, where the device tells; else empty */
    /* who holds it */
    uint64_t kind_bytes[MEMFIT_KIND_PLACES];
    memfit_owner_info owners[MEMFIT_EXPLANATION_OWNERS]; /* most bytes first */
    uint32_t owner_count;                                /* of them filled */
    uint64_t owners_in_all;                              /* with live blocks */
    /* what would have worked, cheapest first */
    memfit_action actions[MEMFIT_EXPLANATION_ACTIONS];
    uint32_t action_count;
} memfit_explanation;
#define MEMFIT_EXPLANATION MEMFIT_INIT(memfit_explanation)

/* The last failure's. NOT_FOUND when there was none. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_explain(memfit_pool *pool, memfit_explanation *explanation, memfit_error *err);

/* The blocks that the action MEMFIT_ACTION_FREE_SMALL of the last failure means, as long as they live; stops when fn
 * returns false. fn runs under the pool's lock and must not call this pool. Since 0.1. */
MEMFIT_API memfit_status memfit_pool_each_survivor(memfit_pool *pool,
                                                   bool (*fn)(void *ctx, const memfit_block_info *block), void *ctx,
                                                   memfit_error *err);

/* As text of at most 60 lines, `columns` wide (0: 80), with block characters if `utf8`. Returns `text`, which
 * MEMFIT_EXPLANATION_TEXT bytes always suffice for. Since 0.1. */
MEMFIT_API char *memfit_explanation_text(const memfit_explanation *explanation, unsigned columns, bool utf8, char *text,
                                         size_t text_bytes);
/* As one JSON object. Since 0.1. */
MEMFIT_API char *memfit_explanation_json(const memfit_explanation *explanation, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
