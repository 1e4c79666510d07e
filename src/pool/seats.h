/* seats.h: seats.c: where the blocks of a step go when all of their lives are known. */
#ifndef MF_POOL_SEATS_H
#define MF_POOL_SEATS_H

#include "pool/state.h"

#define MF_NO_SEAT UINT64_MAX

typedef struct mf_want { /* a request of a step */
    uint64_t start;      /* where it goes; MF_NO_SEAT: nowhere in particular */
    uint64_t other;      /* or there, when it outlives the next of its kind; MF_NO_SEAT: nowhere else */
    uint64_t near;       /* where the nearest block below began, when it last went there; MF_NO_SEAT: not known */
    uint32_t units;      /* MF_UNITs */
    uint32_t life;       /* requests made while it lived, and itself; 0: it outlives the next step */
    bool held;           /* when it was freed another stream still used it */
} mf_want;

typedef struct mf_claim { /* addresses, and whose they are */
    uint64_t start, end;
    uint32_t want, life; /* MF_NOBODY: of something that stays */
} mf_claim;
#define MF_NOBODY UINT32_MAX

static inline bool mf_want_seated(const mf_want *w)
{
    return w->life && !w->held;
}

typedef struct mf_rank {
    uint64_t load, weight;
    uint32_t life, want;
} mf_rank;

typedef struct mf_packing {
    mf_want *wants; /* `start` is set of all but the first `fixed`, whose starts are given */
    uint32_t count, fixed;
    bool
        again; /* the same step comes next; otherwise what outlives it has no seat: it could be in the way of any other */
    unsigned shift;   /* of a page */
    mf_claim *claims; /* addresses that are not to be had, in the order of their starts; room for twice `count` more */
    size_t claimed;   /* how many */
    mf_rank *ranks;   /* room for `count` */
    uint64_t *loads;  /* room for MF_SEAT_LOADS times `count` */
    uint64_t from;    /* the lowest address of a seat */
    uint64_t top;     /* where the highest seat ends; */
    uint64_t pages;   /* pages that seats, and what stays, lie in; */
    uint64_t least;   /* no packing takes fewer, but for parts of pages; */
    uint64_t work, most_work; /* claims looked at, and after how many no further way is tried */
} mf_packing;
enum { MF_SEAT_LOADS = 6 };
void mf_seats_pack(mf_packing *p);
void mf_seats_keep(mf_packing *p);      /* the seats, beside a second packing of the same wants; */
void mf_seats_take_kept(mf_packing *p); /* instead of that */

#endif
