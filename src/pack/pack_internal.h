/*
 * pack_internal.h: a packing problem as the solvers see it. Private to the pack_*.c files.
 *
 * Lengths are in units (the greatest common divisor of all sizes and alignments), times are sections. A section is a
 * maximal set of buffers live together: between a death and the next birth nothing new can collide, so time points in
 * between are dropped, and a lifetime is a range [s0, s1) of sections.
 *
 *     time      0    1    2    3    4    5          birth b  birth c  death b  birth d
 *     a         |-------------------|
 *     b              |----|                         sections: {a,b,c} and {a,c,d}: two, not five
 *     c                 |------------|
 *     d                     |------|
 */
#ifndef MF_PACK_PACK_INTERNAL_H
#define MF_PACK_PACK_INTERNAL_H

#include "base/os.h"
#include "pack/pack.h"

#define MF_PACK_NOWHERE UINT64_MAX

typedef struct mf_pack_item {
    uint32_t s0, s1;  /* sections [s0, s1) */
    uint32_t source;  /* index of its buffer */
    bool fixed;       /* at `offset` */
    bool whole;       /* lives through all of its component: goes to the bottom */
    uint64_t size;    /* units; rounded up to the alignment where all buffers share one */
    uint64_t align;   /* units, at least 1 */
    uint64_t offset;  /* of a fixed one */
    uint64_t life;    /* upper - lower */
    uint64_t crossed; /* the largest load among its sections */
} mf_pack_item;

typedef struct mf_pack_problem {
    const memfit_host *host;
    mf_arena arena;
    const mf_pack_buffer *buffers;
    size_t buffer_count;
    uint64_t unit; /* bytes */

    mf_pack_item *items; /* those with a size and a life, by birth */
    size_t count;
    size_t sections;
    uint64_t *load;       /* by section, units */
    uint64_t max_load;    /* bytes, unrounded: what is reported */
    uint64_t bound;       /* units: no packing of the items is lower */
    uint64_t bound_bytes; /* bytes: no packing of the buffers is lower */
    uint64_t pad_most;    /* bytes: the most that rounding added to one buffer */
    bool any_fixed, any_align;
} mf_pack_problem;

memfit_status mf_pack_problem_init(mf_pack_problem *problem, const memfit_host *host, const mf_pack_buffer *buffers,
                                   size_t count, memfit_error *err);
void mf_pack_problem_destroy(mf_pack_problem *problem);

/* Real height in bytes of offsets (in units, by item). */
uint64_t mf_pack_problem_height(const mf_pack_problem *problem, const uint64_t *offsets);

/* Stable sort of `order` (item numbers) by descending keys[item]; scratch holds `count` pairs. */
typedef struct mf_pack_pair {
    uint64_t key;
    uint32_t value;
} mf_pack_pair;
void mf_pack_sort(mf_pack_pair *pairs, mf_pack_pair *scratch, size_t count); /* ascending, stable */

/* When to stop: by the clock, or by work, where the same question is to have the same answer on any machine at any
 * load. A unit is about one entry looked at: a nanosecond or so. */
typedef struct mf_pack_pace {
    uint64_t work, most;
    uint64_t deadline_us; /* 0: none */
} mf_pack_pace;

static inline bool mf_pack_out_of_time(const mf_pack_pace *pace)
{
    return pace->deadline_us && mf_os_now_us() >= pace->deadline_us;
}

static inline bool mf_pack_is_late(const mf_pack_pace *pace)
{
    return pace->work >= pace->most || mf_pack_out_of_time(pace);
}

/* ---- greedy (pack_greedy.c) ---- */

/* What is placed, ordered by offset, in blocks that can be skipped by time. */
typedef struct mf_pack_shelf mf_pack_shelf;
typedef struct mf_pack_greedy {
    const mf_pack_problem *problem;
    mf_pack_shelf **blocks, **spare;
    size_t block_count, spare_count;
    uint32_t shift; /* sections to bits of a block's mask */
    uint32_t *order;
    const uint64_t *pinned;           /* NULL, or by item an offset that is given, MF_PACK_NOWHERE for the others */
    uint64_t *offsets;                /* of the last pass, by item */
    uint64_t *best;                   /* of the best pass */
    uint64_t best_height, best_bytes; /* its height in units, and the real one in bytes */
    mf_pack_pair *pairs, *scratch;
    uint64_t work; /* of all sorts and passes: see mf_pack_pace */
} mf_pack_greedy;

memfit_status mf_pack_greedy_init(mf_pack_greedy *greedy, const mf_pack_problem *problem, mf_arena *arena,
                                  memfit_error *err);
/* Makes greedy->offsets, of this height in units, the best if they are; false otherwise. */
bool mf_pack_greedy_keep(mf_pack_greedy *greedy, uint64_t height);
/* Fills greedy->order. */
void mf_pack_greedy_sort(mf_pack_greedy *greedy, mf_pack_order order, bool whole_first);
/* Places greedy->order; returns the height in units, or UINT64_MAX when it passed `give_up`. Keeps the best. */
uint64_t mf_pack_greedy_pass(mf_pack_greedy *greedy, bool best_fit, uint64_t give_up);

#endif
