/*
 * memfit/pack.h: buffers of known size and lifetime, packed into one arena.
 *
 * Each buffer is live over a half-open stretch of time [lower, upper) and needs `size` bytes at one offset for all of
 * it. Two buffers whose lifetimes overlap must not overlap in address. The packer looks for offsets whose highest end,
 * the height, is small; no packing can be lower than the largest sum of sizes live at one time, the max load.
 *
 *     memfit_pack_buffer b[] = {{.lower = 0, .upper = 3, .size = 4096}, {.lower = 2, .upper = 5, .size = 8192}};
 *     memfit_pack_options options = MEMFIT_PACK_OPTIONS;
 *     memfit_pack_result result = MEMFIT_PACK_RESULT;
 *     if (memfit_pack(b, 2, &options, &result, &err) == MEMFIT_OK && result.optimal) ...   // b[i].offset is set
 *
 * An answer is always given: the best packing found and the distance to the bound. All functions may be called from
 * any thread; a call may start threads of its own and joins them before it returns.
 */
#ifndef MEMFIT_PACK_H
#define MEMFIT_PACK_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memfit_pack_buffer {
    int64_t lower, upper; /* live on [lower, upper); lower == upper is never live and gets offset 0 */
    uint64_t size;        /* bytes; 0 gets offset 0 */
    uint64_t alignment;   /* of the offset; 0 and 1 are the same; need not be a power of two */
    uint64_t offset;      /* the answer; where `fixed` is set, the question */
    bool fixed;           /* the offset is given and kept */
} memfit_pack_buffer;

typedef enum memfit_pack_effort {
    MEMFIT_PACK_QUICK,     /* a few greedy orders: a millisecond for a thousand buffers */
    MEMFIT_PACK_PORTFOLIO, /* more orders and dives, until the bound or the time limit. Without one: until so much was
                            * done, some 20 ms + 30 us a buffer, and the answer is the same on any machine */
    MEMFIT_PACK_EXACT,     /* and then the exact search, until it is proven or the time is up (or 60 s) */
} memfit_pack_effort;

/* What is known while a long run goes on; called from the thread that called memfit_pack, some times a second. */
typedef struct memfit_pack_progress {
    uint64_t height, bound; /* the best so far, and what no packing can beat */
    uint64_t nodes;         /* of the exact search */
    double seconds;
} memfit_pack_progress;

typedef struct memfit_pack_options {
    size_t size;             /* sizeof(memfit_pack_options): MEMFIT_PACK_OPTIONS */
    const memfit_host *host; /* NULL: the default */
    memfit_pack_effort effort;
    uint64_t capacity;      /* stop at the first packing of at most this height; 0: make it as low as possible */
    uint64_t time_limit_us; /* 0: as said at memfit_pack_effort. Two greedy orders always run to their end */
    unsigned threads;       /* 0: one per processor, at most 8 */
    uint64_t seed;          /* of the randomised parts; with one thread and no time limit reached, runs repeat */
    bool (*progress)(void *ctx, const memfit_pack_progress *progress); /* may be NULL; false ends the run early */
    void *progress_ctx;
} memfit_pack_options;

#define MEMFIT_PACK_OPTIONS MEMFIT_INIT_2(memfit_pack_options, effort, MEMFIT_PACK_PORTFOLIO, seed, 1)

typedef struct memfit_pack_result {
    size_t size;       /* sizeof(memfit_pack_result): MEMFIT_PACK_RESULT */
    uint64_t height;   /* the highest end of a buffer, in bytes */
    uint64_t max_load; /* the largest sum of sizes live at one time */
    uint64_t bound;    /* what no packing can beat: max_load, or more (alignment, fixed buffers, a finished search) */
    bool solved;       /* a packing within the capacity; without a capacity always true */
    bool optimal;      /* proven: height == bound */
    bool impossible;   /* proven: no packing has the given capacity */
    double seconds;
    uint64_t nodes;     /* of the exact search */
    const char *method; /* what found the packing: "greedy", "improved" or "search" */
} memfit_pack_result;
#define MEMFIT_PACK_RESULT MEMFIT_INIT(memfit_pack_result)

/* Packs: writes every buffer's offset and the result. A capacity that is not met is no failure: the best packing is
 * there, `solved` is false. MEMFIT_INVALID names a buffer that makes no sense, or two fixed ones that collide;
 * MEMFIT_NO_HOST_MEMORY changes nothing. `options` may be NULL: the defaults (portfolio, smallest height). Since 0.1.
 */
MEMFIT_API memfit_status memfit_pack(memfit_pack_buffer *buffers, size_t count, const memfit_pack_options *options,
                                     memfit_pack_result *result, memfit_error *err);

/* Checks a packing by other means than it was made: no two live buffers overlap, offsets are aligned, ends are within
 * `capacity` (0: any). MEMFIT_INVALID names the first offenders. *height, when given, is the highest end. Since 0.1. */
MEMFIT_API memfit_status memfit_pack_validate(const memfit_pack_buffer *buffers, size_t count, uint64_t capacity,
                                              uint64_t *height, memfit_error *err);

/* ---- files ------------------------------------------------------------------------------------------------ */

/* A table of buffers as a CSV file, one row each, the first row naming the columns, in any order:
 *
 *     lower, upper   live on [lower, upper)        or   start, end   live on [start, end], the end included
 *     size           bytes
 *     id             a name (optional)
 *     alignment      of the offset (optional; empty: 1)
 *     offset         a fixed offset (optional; empty: to be found)
 *
 * Other columns are kept when the table is written. */
typedef struct memfit_pack_file memfit_pack_file;

enum {
    MEMFIT_PACK_FILE_REPACK = 1, /* offsets in the file are not fixed: find new ones */
};

/* Reads a table. NOT_FOUND for a missing file; DAMAGED names line and column. host may be NULL. Since 0.1. */
MEMFIT_API memfit_status memfit_pack_file_open(memfit_pack_file **file, const char *path, unsigned flags,
                                               const memfit_host *host, memfit_error *err);
/* Its buffers, to be packed in place. Since 0.1. */
MEMFIT_API memfit_pack_buffer *memfit_pack_file_buffers(memfit_pack_file *file, size_t *count);
/* The id of a buffer, or its row's number as text. Lives as long as the file. Since 0.1. */
MEMFIT_API const char *memfit_pack_file_id(const memfit_pack_file *file, size_t index);
/* Writes the table with the buffers' offsets in the column `offset`, which is added if it is not there. The target is
 * whole or untouched, and may be the file that was read. Since 0.1. */
MEMFIT_API memfit_status memfit_pack_file_write(const memfit_pack_file *file, const char *path, memfit_error *err);
MEMFIT_API void memfit_pack_file_close(memfit_pack_file *file);

#ifdef __cplusplus
}
#endif
#endif
