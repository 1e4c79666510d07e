/* moves.h: pages that are taken from where nothing is live; for pages.c and place.c. */
#ifndef MF_POOL_MOVES_H
#define MF_POOL_MOVES_H

#include "pool/state.h"

/* Unmaps [first, past), whole handles, all idle; they become spare. */
bool mf_pages_unmap(memfit_pool *pool, uint64_t first, uint64_t past);
/* Makes up to `want` idle pages stamped `age` or lower spare, keeping off [from, to). Returns how many it got: a bulk
 * handle may give more, if `more` is allowed. */
uint64_t mf_pages_recycle(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to, uint64_t age, bool more);
/* Makes up to `want` idle pages spare: first those that the device is past with, then others while they can stay mapped
 * where they are as well. If it must, it also takes larger handles that are not past, and waits until more are. False:
 * it is not possible to wait for those that are left. */
bool mf_moves_idle(memfit_pool *pool, uint64_t want, uint64_t first, uint64_t past, bool must);
/* Makes up to `want` pages spare that lie in the holes of streams and that those are past with, keeping off [from, to): a hole
 * is as young as its youngest byte, its pages are not. Returns how many. */
uint64_t mf_moves_past(memfit_pool *pool, uint64_t want, uint64_t from, uint64_t to);
/* Maps up to `want` pages from a lane's holes behind [start, start + bytes), a place in a hole, where pages are missing and
 * lie in the hole wholly. If there are any, that part of the hole becomes the lane's own, and *hole is that. Returns how
 * many. Needs two records in reserve. */
uint64_t mf_moves_own(memfit_pool *pool, mf_block **hole, unsigned lane, uint64_t want, uint64_t start, uint64_t bytes);

void mf_moves_tidy(memfit_pool *pool);             /* looks how far streams are; old mappings go when there are many */
bool mf_moves_allowed(memfit_pool *pool);          /* is there time left for moving pages? */
bool mf_moves_plenty(const memfit_pool *pool);     /* is it early, and are three quarters of that left? */
double mf_moves_spent(const memfit_pool *pool);    /* how much of the second half of it is spent: from 0 to 1 */
void mf_moves_asked(memfit_pool *pool);            /* at every request, before anything else */
void mf_moves_look(memfit_pool *pool);             /* how far the device is: before such time, and now and then */
void mf_moves_owe(memfit_pool *pool, uint64_t us); /* time the program was held up, since the last look */
void mf_moves_charge(memfit_pool *pool, uint64_t us); /* time that went into it, since the last look */

#endif
