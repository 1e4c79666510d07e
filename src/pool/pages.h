/* pages.h: pages.c, page_bits.c: physical memory; shadows.c: which idle pages are past, with one stream; old mappings. */
#ifndef MF_POOL_PAGES_H
#define MF_POOL_PAGES_H

#include "pool/state.h"

bool mf_pages_init(memfit_pool *pool);
void mf_pages_end(memfit_pool *pool);
uint64_t mf_pages_missing(const memfit_pool *pool, uint64_t start, uint64_t bytes); /* not mapped */
typedef enum mf_growth {                   /* when pages are missing, none more are made than */
                         MF_GROW_NOT,      /* what is surely wanted: the peak in use */
                         MF_GROW_TO_SOFT,  /* the soft limit allows */
                         MF_GROW_TO_LIMIT, /* the limit allows */
} mf_growth;
/* Puts memory behind [start, start + bytes), a place in a hole for a lane's stream. A part of the hole may become the
 * lane's own; then *hole is that. On failure nothing else has changed that can be seen; pool->refusal says why. Needs four
 * records in reserve. */
memfit_status mf_pages_back(memfit_pool *pool, mf_block **hole, uint64_t start, uint64_t bytes, unsigned lane,
                            mf_growth growth, memfit_error *err);
/* Would the pool hold no more than its peak in use and all the slack there can be, with new pages there? */
bool mf_pages_in_slack(const memfit_pool *pool, uint64_t start, uint64_t bytes);
uint64_t mf_pages_easily(const memfit_pool *pool); /* how many it may hold while there is time for moving */
bool mf_pages_easy(memfit_pool *pool, uint64_t start, uint64_t bytes);    /* and the slack it may have just now? */
void mf_pages_give_back_made(memfit_pool *pool);                          /* what this request made and could not use */
void mf_pages_set_idle(memfit_pool *pool, uint64_t first, uint64_t past); /* those of [first, past) that are mapped */
void mf_pages_clear_idle(memfit_pool *pool, uint64_t first, uint64_t past);
/* With several streams: the pages of [start, end) were freed by a lane when its serial was this. */
void mf_pages_stamp(memfit_pool *pool, uint64_t start, uint64_t end, unsigned lane, uint64_t serial);
bool mf_page_past(const memfit_pool *pool, uint64_t page, unsigned lane); /* is that lane's stream past it? */
uint64_t mf_pages_limit(const memfit_pool *pool);                         /* how many the limit allows */
uint64_t mf_pages_idle(const memfit_pool *pool);                          /* idle or spare */
uint64_t mf_pages_loose(const memfit_pool *pool); /* of them: not part of a bulk handle with live bytes */
/* Gives back until at most keep pages are reserved. Returns how many went. */
uint64_t mf_pages_trim(memfit_pool *pool, uint64_t keep);
memfit_status mf_pages_fill(memfit_pool *pool, memfit_error *err); /* preallocate */
void mf_pages_purge(memfit_pool *pool);

/* ---- shadows.c ---- */
static inline bool mf_pages_stamped(const memfit_pool *pool) /* are pages stamped just now? */
{
    return pool->frees_central < pool->pages.stamp_until;
}
mf_clock *mf_pages_clock(memfit_pool *pool); /* of the only stream */
void mf_pages_note_free(memfit_pool *pool);  /* after a free: puts an event behind it when one is due */
uint64_t mf_pages_past(memfit_pool *pool);   /* pages stamped so or lower can be unmapped now */
bool mf_pages_wait(memfit_pool *pool);       /* waits until more are; false: nothing to wait for, or not possible */
bool mf_pages_wait_some(memfit_pool *pool);  /* the same, but only while the device has enough to do behind that */
/* A handle, all idle, is taken for use elsewhere before it is past: the mapping stays as a shadow. False: not possible
 * here. */
bool mf_shadow_leave(memfit_pool *pool, mf_handle *handle);
bool mf_shadow_room(memfit_pool *pool); /* for one more */
void mf_shadow_add(memfit_pool *pool, mf_handle *handle, uint64_t page, unsigned lane, uint64_t serial);
void mf_shadows_forget_lane(memfit_pool *pool, unsigned lane); /* its stream is past everything, and goes */
/* Undoes the shadows at [first, end), waiting when it must; the others as far as they are past. False: some are left
 * at [first, end). */
bool mf_shadows_clear(memfit_pool *pool, uint64_t first, uint64_t end);
void mf_shadows_look(memfit_pool *pool); /* how far are the streams? Before the next two */
/* How many pages are missing at [first, past) that no old mapping can give back. *wait: others are in their place, and the
 * device is not past them. */
uint64_t mf_shadows_needs(const memfit_pool *pool, uint64_t first, uint64_t past, bool *wait);
/* The same if it is fewer than so many, and no wait; otherwise `than`. */
uint64_t mf_shadows_fewer(const memfit_pool *pool, uint64_t first, uint64_t past, uint64_t than);
uint64_t mf_shadows_switch(memfit_pool *pool, uint64_t first, uint64_t past); /* gives back those that can; how many */
uint64_t mf_beyond_shadows(const memfit_pool *pool, const mf_block *hole);    /* where the last one in it ends */
void mf_shadows_sweep(memfit_pool *pool, uint64_t first, uint64_t past); /* those of [first, past) that are past go */
bool mf_shadows_over(const memfit_pool *pool, uint64_t first, uint64_t past); /* is there one at [first, past)? */
bool mf_shadows_end(memfit_pool *pool);   /* when everything on the device is past; false: some are left */
bool mf_pages_settled(memfit_pool *pool); /* every idle page can be unmapped; waits when it must and may */

#endif
