/*
 * pack_search.h: the exact search, for one component of a problem and one capacity. Private to the pack_*.c files.
 * What it does is told in pack_search.c; pack_solve.c decides which searches are run.
 */
#ifndef MF_PACK_PACK_SEARCH_H
#define MF_PACK_PACK_SEARCH_H

#include "pack/pack_internal.h"

typedef enum { MF_PACK_FAILED, MF_PACK_FOUND, MF_PACK_STOPPED } mf_pack_verdict;

/* Where to branch: among the valleys of the skyline, which section. */
typedef enum mf_pack_rule {
    MF_PACK_FEWEST,       /* the fewest choices, then the least slack */
    MF_PACK_TIGHTEST,     /* the least slack, then the fewest choices */
    MF_PACK_FORCED_LOW,   /* a forced one, else the lowest, then the least slack */
    MF_PACK_FORCED_TIGHT, /* a forced one, else the least slack, then the lowest */
    MF_PACK_LOWEST,       /* the lowest, then the fewest choices */
    MF_PACK_FORCED_FIRST, /* a forced one, else the first in time */
    MF_PACK_RULE_COUNT
} mf_pack_rule;

/* The instance: one component. Sections count from 0; sizes and offsets are in units that fit 30 bits. */
typedef struct mf_pack_part {
    uint32_t *items; /* numbers of the problem's items, whole-life ones left out */
    uint32_t count;
    uint32_t first_section, sections;
    uint64_t base;   /* units: the height of its whole-life items, which lie at the bottom */
    uint64_t bound;  /* units, the base included */
    uint64_t height; /* units: of the best packing known */
} mf_pack_part;

typedef struct mf_pack_known mf_pack_known;
typedef struct mf_pack_search mf_pack_search;
struct mf_pack_search {
    const mf_pack_problem *problem;
    uint64_t scale; /* problem units per search unit: 1 unless the sizes are too large for 30 bits */

    /* The part in hand, by local number: the order in which choices are tried. */
    int32_t count, sections;
    int32_t *s0, *s1, *size, *align;
    uint32_t *twin; /* the same for items that can be exchanged */
    uint32_t *item; /* the problem's number */

    /* State. */
    int32_t *at;                              /* of an unplaced item: the lowest offset it can still have */
    int32_t *offset;                          /* of a placed one */
    int32_t *crossing;                        /* by border: unplaced items that live across it */
    int32_t *floor, *top, *choices, *run_end; /* by section, of the node in hand */
    int32_t *stack;
    size_t stack_used, stack_size;
    mf_pack_known *known; /* states proven hopeless */
    unsigned known_bits;
    uint64_t salt;

    int32_t capacity;
    mf_pack_rule rule;
    bool can_shift; /* no alignments: a stack may be moved up or down by any amount */
    uint64_t nodes, node_limit;
    bool (*sweep)(const mf_pack_search *, const int32_t *list, int32_t count, int32_t a, int32_t b);
    bool (*stop)(void *ctx);
    void *stop_ctx;
    mf_pack_pair *pairs, *scratch;
};

/* Room for parts of up to `count` items and `sections` sections, and for 2^known_bits hopeless states. What is not the
 * arena's is freed by destroy, also after a failure. */
memfit_status mf_pack_search_init(mf_pack_search *search, const mf_pack_problem *problem, mf_arena *arena, size_t count,
                                  size_t sections, uint64_t scale, unsigned known_bits, memfit_error *err);
void mf_pack_search_destroy(mf_pack_search *search);

/* How the choices at a branch are ordered: up to three letters, each descending: T largest load crossed, W life,
 * Z size, A area, C sections, L birth, U death, R random. */
typedef struct mf_pack_config {
    const char *order;
    mf_pack_rule rule;
    bool reversed; /* time runs backwards */
    double noise;  /* 0: none; keys are scaled by up to this part, at random */
    uint64_t seed;
} mf_pack_config;

void mf_pack_search_load(mf_pack_search *search, const mf_pack_part *part, const mf_pack_config *config);

/* Is there a packing of the loaded part with at most `capacity` search units (above the base)? FOUND: search->offset
 * by local number. FAILED: there is none. STOPPED: not known, the node limit or stop() ended it. */
mf_pack_verdict mf_pack_search_run(mf_pack_search *search, int32_t capacity, uint64_t node_limit);

#endif
