/* repeat.h: repeat.c: the same requests again and again, packed as a whole. */
#ifndef MF_POOL_REPEAT_H
#define MF_POOL_REPEAT_H

#include "pool/state.h"

void mf_repeat_begin(memfit_pool *pool);              /* requests are noted from now on: there are several streams, */
void mf_repeat_needed(memfit_pool *pool, bool grows); /* or pages were missing, and the pool has to grow */
void mf_repeat_end(memfit_pool *pool);

/* Where a request goes while requests are noted. */
typedef enum mf_seat {
    MF_SEAT_NONE,  /* no plan: to the best fit */
    MF_SEAT,       /* to *start, in *hole: the plan's place, */
    MF_SEAT_ABOVE, /* or, since that is taken, one above all of them, if the pool need not grow for it; */
    MF_SEAT_APART, /* or one away from the plan's blocks */
} mf_seat;
mf_seat mf_repeat_next(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block **hole,
                       uint64_t *start);
mf_block *mf_repeat_above(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, uint64_t *start);
void mf_repeat_put(memfit_pool *pool, mf_block *block, unsigned lane);
void mf_repeat_end_of(memfit_pool *pool, const mf_block *block, bool held);

static inline void mf_repeat_note(memfit_pool *pool, mf_block *block, unsigned lane) /* one that was just cut */
{
    if (pool->repeat)
        mf_repeat_put(pool, block, lane);
}
static inline void mf_repeat_gone(memfit_pool *pool, const mf_block *block, bool held) /* before it becomes a hole */
{
    if (pool->repeat)
        mf_repeat_end_of(pool, block, held);
}
double mf_repeat_restless(const memfit_pool *pool); /* 0 to 1: for how long packed steps have gone on moving pages */
uint64_t mf_repeat_pages(const memfit_pool *pool);  /* that a step's places take, at most; 0: none known */
bool mf_repeat_seats(const memfit_pool *pool, uint64_t page); /* is a place of theirs in this page? */
bool mf_repeat_plans(const memfit_pool *pool);                /* blocks go where a plan says */
unsigned mf_repeat_kinds(const memfit_pool *pool);            /* of steps that are packed */
bool mf_repeat_check(memfit_pool *pool, memfit_error *err);

#endif
