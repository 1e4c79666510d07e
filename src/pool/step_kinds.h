/* step_kinds.h: repeat.c and step_kinds.c: what is known of steps that come again. */
#ifndef MF_POOL_STEP_KINDS_H
#define MF_POOL_STEP_KINDS_H

#include "pool/seats.h"

enum {
    MF_TAPE = 32768, /* requests remembered, a power of two */
    MF_KINDS = 64,   /* of steps */
    MF_RISES = 32,
    MF_LIVE_UNIT = 65536,
};

typedef struct mf_note { /* a request on the tape */
    uint32_t units;      /* MF_UNITs */
    uint32_t life;       /* as in mf_want */
    uint32_t live;       /* MF_LIVE_UNITs of this tape's blocks in use with it, */
    uint32_t before;     /* and before it */
    bool held;
} mf_note;

typedef struct mf_spent { /* when a step began, and what moving pages and waiting had taken until then */
    uint64_t us, moving_us, waited_us;
} mf_spent;

typedef struct mf_kind {
    mf_want *wants; /* NULL: none */
    uint32_t count;
    uint32_t seen;
    uint32_t missed; /* seats that were taken this time */
    uint32_t bad;    /* times in a row with such */
    bool packed;
    bool again;    /* when that was done the next was of the same kind: what outlives it has its places, too */
    bool fresh;    /* packed, and not followed yet */
    uint64_t used; /* the step it was last seen */
    uint64_t top, pages;
    uint64_t pages_at[2]; /* among what stays, above it; 0: not known */
} mf_kind;

struct mf_repeat {
    unsigned lane;            /* whose requests */
    uint64_t in_use;          /* bytes of blocks on the tape */
    uint64_t count;           /* requests noted, by this tape and those before it */
    uint64_t first;           /* the first on this tape */
    uint64_t needed;          /* the count when pages were last missing, or a kind was last followed */
    uint64_t grew;            /* the count when the pool last had to grow */
    uint64_t searched, ended; /* when it was last looked for where steps end, and when one did */
    uint32_t low, high;       /* MF_LIVE_UNITs: between these a step rises and falls; none known: high is 0 */
    uint64_t begun;           /* the request the step at work began with, */
    uint64_t before_began;    /* and the one before it */
    mf_spent begun_at, before_at;
    unsigned restless,
        calm; /* steps in which moving took too long although they were packed; the last ones in which it did not */
    bool seen_whole;     /* that one, from its beginning, */
    uint32_t began_low;  /* where the use was as low as this, */
    uint32_t before_low; /* or this */
    uint64_t arrived;    /* the last request that was looked at, and one */
    bool risen;
    uint64_t rose, rises;       /* where the rise at work began, and how many there were */
    uint64_t rise[MF_RISES];    /* sizes of the last ones, as a number, */
    uint64_t rose_at[MF_RISES]; /* and where they ended */
    unsigned group, left;       /* rises that are one step, and how many are to come */
    unsigned regular;           /* of so many the last ones were three times the same; 0: of none */
    unsigned broken;            /* times that others came within such a step */
    uint64_t steps, again;      /* of kinds that were known */
    uint64_t strewn;            /* pages that small blocks of a step not known were to be given above all places */
    uint64_t newest;            /* the step when a kind that had no places last got some */
    uint64_t maybe;             /* a bit for each kind that the step at work may be */
    uint64_t top;               /* where the highest seat of all kinds ends */
    uint64_t pages;             /* the most that one of them takes */
    uint64_t from;              /* the lowest address of a seat */
    uint32_t all_wants;
    uint64_t *seats; /* a bit for each page that a seat lies in */
    uint64_t seat_pages;
    mf_kind kinds[MF_KINDS];
    mf_note tape[MF_TAPE];
};
_Static_assert(MF_KINDS == 64, "a bit each");

static inline mf_note *mf_note_at(mf_repeat *r, uint64_t request)
{
    return &r->tape[request & (MF_TAPE - 1)];
}

/* Is the step behind the one at work of the same kind? */
static inline bool mf_repeat_next_alike(const mf_repeat *r)
{
    return r->regular && r->group % r->regular == 0;
}

void mf_kind_drop(memfit_pool *pool, mf_kind *k);
mf_kind *mf_kind_add(memfit_pool *pool, uint64_t begun,
                     uint32_t count);                              /* of requests on the tape; NULL: no host memory */
mf_kind *mf_kind_of(mf_repeat *r, uint64_t begun, uint64_t count); /* with the same sizes; NULL: none */
void mf_kind_learn(mf_repeat *r, mf_kind *k, uint64_t begun);      /* it came once more, */
bool mf_kind_crosses(const mf_kind *k);                            /* something that has an end outlives it, */
bool mf_kind_outlives(const mf_kind *k, uint64_t requests);        /* or lives for longer than so many */
void mf_kind_pack(memfit_pool *pool, mf_kind *k);                  /* and gets its places, if that helps */
bool mf_kind_check(const memfit_pool *pool, const mf_kind *k, memfit_error *err);

#endif
