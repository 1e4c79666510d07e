/*
 * explain.h: the inside of the explanation: what it keeps in reserve, the survey of a pool, trials on a copy.
 *
 *     failure --> survey (one walk over blocks and slots) --> trial: the few numbers that decide whether a request fits
 *                                                              |  copied, one constraint taken away: the cause
 *                                                              |  copied, one action applied: does it fit now?
 *                                                              v
 *                 survey again, as if the action had been taken: the proof, and the bytes it frees
 */
#ifndef MF_POOL_EXPLAIN_H
#define MF_POOL_EXPLAIN_H

#include "memfit/explanation.h"
#include "pool/state.h"

enum {
    MF_SURVIVOR_MOST = 65536, /* bytes: larger blocks are no small survivors */
    MF_SURVIVOR_PAGES = 8192, /* pages a free-survivors action can name */
    MF_FINE_SHIFT = 16,       /* the finest pages a pool can have */
    MF_SPARSE_STEPS = 64,     /* how finely pages are told apart by how much they hold */
    MF_TOP_OWNERS = 16,
    MF_TOP_TABLE = 256,
};
#define MF_NOBODY UINT32_MAX
#define MF_MIXED  (UINT32_MAX - 1)

/* The numbers that decide, in pages. */
typedef struct mf_trial {
    uint64_t limit;    /* the limit allows so many */
    uint64_t used;     /* cannot be had: a live byte, or a stream */
    uint64_t place;    /* the request takes at its best place, beyond those used */
    uint64_t reserved; /* the pool holds */
    uint64_t device;   /* the device would give so many more to this pool */
    bool stuck;        /* idle pages cannot be moved: work on their stream has not finished */
    uint64_t missing;  /* stuck: pages without memory at the place that lacks the fewest */
    uint64_t spare;    /* stuck: pages that are mapped nowhere */
} mf_trial;
bool mf_trial_fits(const mf_trial *trial);

/* A survey counts as if these were gone. */
typedef struct mf_without {
    uint32_t owner;        /* MF_NOBODY: none */
    bool all_lanes;        /* nothing waits for any stream */
    unsigned lane;         /* or for this one's; 0: none */
    const uint32_t *pages; /* small blocks in these pages, ascending */
    uint32_t page_count;
} mf_without;

typedef struct mf_survey {
    uint64_t used_pages; /* live or waiting for a stream */
    uint64_t live_pages;
    uint64_t place_pages;   /* fewest new pages over all places; MF_BEYOND: no place */
    uint64_t missing_pages; /* fewest pages without memory over all places */
    uint64_t fit_bytes;     /* the largest request that `room` new pages would do for */
    uint64_t largest_hole;
    uint64_t taken_bytes; /* of live blocks, in units of 256 */
    uint64_t fine_pages;  /* used_pages, if pages had 64 KiB */
    uint64_t small_pages; /* hold small blocks only */
    uint64_t small_live_bytes, small_blocks;
    uint64_t small_block_bytes; /* taken by those in small pages that are no slots */
    uint64_t small_taken_bytes;
    uint32_t class_slots[MF_CLASSES]; /* live slots in small pages, by class */
    uint64_t lane_pages[MF_LANES];    /* wait for this lane only */
    uint64_t lanes_mixed_pages;
    uint32_t sparse[MF_SPARSE_STEPS + 1]; /* small pages by how much they hold */
    struct mf_top_owner {
        uint32_t owner;
        uint64_t bytes, pages, blocks; /* pages: held by nobody else */
    } top[MF_TOP_OWNERS];
    unsigned top_count;
    uint8_t top_at[MF_TOP_TABLE], top_next[MF_TOP_OWNERS + 1]; /* a hash of `top`: index + 1 */
    uint64_t owners;
} mf_survey;

typedef struct mf_explain {
    memfit_explanation last; /* failure 0: none yet */
    mf_request request;
    uint64_t need_bytes, need_alignment; /* what is looked for: a block, or the span of a small one */
    unsigned lane;
    uint64_t behind; /* lanes whose stream has not come so far: what is freed into them waits */
    mf_survey now, then;
    mf_trial base;
    /* the device, in pages of this pool */
    uint64_t device_total, device_free, budget_room;
    uint64_t aside_bytes;     /* what a slice could still set aside */
    uint64_t rounding;        /* bytes other pools lose to pages */
    uint64_t rounding_shared; /* of them those that are no slices */
    uint64_t free_bytes;      /* of the device, with what other pools give back when asked */
    /* free-survivors: the pages, and what is in them */
    uint32_t page[MF_SURVIVOR_PAGES];
    uint32_t page_count;
} mf_explain;

/* Walks everything; pool->lock is held. `room` is for fit_bytes. */
void mf_survey_take(memfit_pool *pool, const mf_explain *ex, const mf_without *without, uint64_t room,
                    mf_survey *survey);
/* The `want` small pages that hold the least: into ex->page. Returns how many. */
uint32_t mf_survey_sparse(memfit_pool *pool, mf_explain *ex, uint64_t want, memfit_action *action);
/* Calls fn for the live small blocks that touch ex->page. */
void mf_survey_each_survivor(memfit_pool *pool, const mf_explain *ex,
                             bool (*fn)(void *ctx, const memfit_block_info *block), void *ctx);

memfit_cause mf_explain_cause(memfit_pool *pool, mf_explain *ex);
void mf_explain_actions(memfit_pool *pool, mf_explain *ex);
/* One sentence that names an action. */
void mf_action_sentence(const memfit_explanation *ex, const memfit_action *action, char *text, size_t bytes);

#endif
