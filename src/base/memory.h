/*
 * memory.h: host memory. Everything memfit keeps on the host comes from a memfit_host, passed down explicitly;
 * libc's malloc is named only in memory.c.
 *
 * Most objects are built once and dropped whole: they live in an mf_arena, a list of growing blocks, and one
 * mf_arena_destroy frees them. Growing arrays that live outside an arena use mf_host_resize directly.
 */
#ifndef MF_BASE_MEMORY_H
#define MF_BASE_MEMORY_H

#include "memfit/base.h"

/* The default host: libc. Never NULL. */
const memfit_host *mf_host_default(void);

/* `host` may be NULL everywhere below: the default. */
void *mf_host_alloc(const memfit_host *host, size_t bytes); /* not cleared; NULL on failure */
void *mf_host_zalloc(const memfit_host *host, size_t bytes);
void *mf_host_resize(const memfit_host *host, void *ptr, size_t old_bytes, size_t new_bytes);
void mf_host_free(const memfit_host *host, void *ptr, size_t bytes);
/* Gives memory that libc's allocator holds unused back to the system. */
void mf_host_trim(void);

/* A host that fails its Nth call (0: never), once or for ever after, and counts what is outstanding: for fault tests
 * and leak checks. Wraps `parent`. Thread-safe. */
typedef struct mf_fault_host {
    memfit_host host; /* pass &fault.host */
    const memfit_host *parent;
    uint64_t fail_at; /* 1 is the next call that asks for memory */
    bool for_ever;
    uint64_t calls;
    int64_t live_bytes;
    int64_t live_count;
} mf_fault_host;
void mf_fault_host_init(mf_fault_host *fault, const memfit_host *parent, uint64_t fail_at, bool for_ever);

/* A host with a limit: what is live through it, and what libc adds to each piece, stays at or below `limit_bytes`. While
 * a piece is resized its old and its new bytes count. What was refused for the limit is remembered, so that whoever set
 * it can say how much was needed. Wraps `parent`. Thread-safe, but for changing the limit.
 *
 * With mf_limit_host_watch the limit is the process's: what that holds beside the live bytes (holes in libc's heap, what
 * others took) is asked for again and again while bytes are handed out, and counts as well. */
typedef struct mf_limit_host {
    memfit_host host; /* pass &limit.host */
    const memfit_host *parent;
    uint64_t limit_bytes; /* may be changed at any time; what is live stays */
    uint64_t live_bytes, peak_bytes;
    uint64_t refused_bytes;            /* the last piece refused for the limit; 0: none was */
    uint64_t (*sample)(void);          /* what the process holds; NULL: not watched */
    uint64_t process_bytes, beside;    /* its limit; what it held beside live bytes when watching began */
    uint64_t handed_out, sample_after; /* since the last sample; when the next one is due */
} mf_limit_host;
void mf_limit_host_init(mf_limit_host *limit, const memfit_host *parent, uint64_t limit_bytes);
/* From now on the whole process, as `sample` sees it, stays at or below `process_bytes`; UINT64_MAX: no limit at all. */
void mf_limit_host_watch(mf_limit_host *limit, uint64_t process_bytes, uint64_t (*sample)(void));

typedef struct mf_arena_block mf_arena_block;
typedef struct mf_arena {
    const memfit_host *host;
    mf_arena_block *blocks;
    uint64_t bytes;       /* taken from the host */
    uint64_t limit_bytes; /* refuses to grow past this; 0: no limit */
} mf_arena;

void mf_arena_init(mf_arena *arena, const memfit_host *host);
void mf_arena_destroy(mf_arena *arena); /* frees all; the struct may be used again */
/* Cleared memory aligned to 16 bytes; NULL on failure. Zero bytes give a valid pointer. */
void *mf_arena_alloc(mf_arena *arena, size_t bytes);
/* Checks count * size for overflow. */
void *mf_arena_array(mf_arena *arena, size_t count, size_t size);
char *mf_arena_strdup(mf_arena *arena, const char *text);
char *mf_arena_strndup(mf_arena *arena, const char *text, size_t bytes);
char *mf_arena_printf(mf_arena *arena, const char *format, ...) MEMFIT_PRINTF(2, 3);

#define MF_NEW(arena, type)          ((type *)mf_arena_alloc((arena), sizeof(type)))
#define MF_NEW_ARRAY(arena, type, n) ((type *)mf_arena_array((arena), (size_t)(n), sizeof(type)))

/* Makes room for one more element in a host array: *array of `size`-byte elements, *capacity of them allocated,
 * `count` in use. False on failure, and nothing has changed. */
bool mf_grow(const memfit_host *host, void *array_ptr, size_t *capacity, size_t count, size_t size);

#endif
