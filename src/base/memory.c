/* memory.c: the only file that names libc's allocator; arenas and the failing host of the fault tests. */
#include "base/memory.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *libc_resize(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    (void)ctx;
    (void)old_bytes;
    if (!new_bytes) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_bytes);
}

const memfit_host *mf_host_default(void)
{
    static const memfit_host libc_host = {libc_resize, NULL};
    return &libc_host;
}

/* Zero bytes are asked for as one, so that NULL always means failure; the host hears the same number back. */
static const memfit_host *host_or_default(const memfit_host *host)
{
    return host ? host : mf_host_default();
}

void *mf_host_alloc(const memfit_host *host, size_t bytes)
{
    host = host_or_default(host);
    return host->resize(host->ctx, NULL, 0, bytes ? bytes : 1);
}

void *mf_host_zalloc(const memfit_host *host, size_t bytes)
{
    void *p = mf_host_alloc(host, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *mf_host_resize(const memfit_host *host, void *ptr, size_t old_bytes, size_t new_bytes)
{
    host = host_or_default(host);
    return host->resize(host->ctx, ptr, ptr && !old_bytes ? 1 : old_bytes, new_bytes ? new_bytes : 1);
}

void mf_host_free(const memfit_host *host, void *ptr, size_t bytes)
{
    if (!ptr)
        return;
    host = host_or_default(host);
    host->resize(host->ctx, ptr, bytes ? bytes : 1, 0);
}

void mf_host_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

bool mf_grow(const memfit_host *host, void *array_ptr, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 16;
    if (more > SIZE_MAX / 2 / size)
        return false;
    void **array = array_ptr;
    void *p = mf_host_resize(host, *array, *capacity * size, more * size);
    if (!p)
        return false;
    *array = p;
    *capacity = more;
    return true;
}

/* ---- the failing host ------------------------------------------------------------------------------------- */

static void *fault_resize(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    mf_fault_host *fault = ctx;
    if (new_bytes) {
        uint64_t call = __atomic_add_fetch(&fault->calls, 1, __ATOMIC_RELAXED);
        if (fault->fail_at && (call == fault->fail_at || (fault->for_ever && call > fault->fail_at)))
            return NULL;
    }
    void *p = fault->parent->resize(fault->parent->ctx, ptr, old_bytes, new_bytes);
    if (new_bytes && !p)
        return NULL;
    __atomic_add_fetch(&fault->live_bytes, (int64_t)new_bytes - (int64_t)(ptr ? old_bytes : 0), __ATOMIC_RELAXED);
    __atomic_add_fetch(&fault->live_count, (new_bytes ? 1 : 0) - (ptr ? 1 : 0), __ATOMIC_RELAXED);
    return p;
}

void mf_fault_host_init(mf_fault_host *fault, const memfit_host *parent, uint64_t fail_at, bool for_ever)
{
    *fault = (mf_fault_host){
        .host = {fault_resize, fault}, .parent = host_or_default(parent), .fail_at = fail_at, .for_ever = for_ever};
}

/* ---- the limited host ------------------------------------------------------------------------------------- */

enum {
    PIECE_OVERHEAD = 16,     /* libc's header, and half of its rounding */
    SAMPLE_BYTES = 64 << 10, /* asking takes microseconds: not for each piece, and seldom while there is much room */
    LEAST_SAMPLE_BYTES = 4 << 10
};

/* After how many bytes to ask again. Pieces that are freed meanwhile leave holes, and the process grows by what is taken
 * all the same: with little room, before that is used up. */
static uint64_t next_sample(uint64_t room)
{
    uint64_t after = room / 8 > SAMPLE_BYTES ? room / 8 : room / 2 < SAMPLE_BYTES ? room / 2 : SAMPLE_BYTES;
    return after > LEAST_SAMPLE_BYTES ? after : LEAST_SAMPLE_BYTES;
}

/* Sets the limit of live bytes from what the process holds. Pages that were handed out and not touched yet are missing
 * there: what was held when watching began is never taken for less. */
static void take_sample(mf_limit_host *limit)
{
    const uint64_t held = limit->sample(), live = __atomic_load_n(&limit->live_bytes, __ATOMIC_RELAXED);
    uint64_t beside = held > live ? held - live : 0;
    beside = beside > limit->beside ? beside : limit->beside;
    const uint64_t most = limit->process_bytes > beside ? limit->process_bytes - beside : 0;
    const uint64_t room = most > live ? most - live : 0;
    __atomic_store_n(&limit->limit_bytes, most, __ATOMIC_RELAXED);
    __atomic_store_n(&limit->sample_after, next_sample(room), __ATOMIC_RELAXED);
    __atomic_store_n(&limit->handed_out, 0, __ATOMIC_RELAXED);
}

static void *limit_resize(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    mf_limit_host *limit = ctx;
    const uint64_t less = ptr ? (uint64_t)old_bytes + PIECE_OVERHEAD : 0;
    const uint64_t more = new_bytes ? (uint64_t)new_bytes + PIECE_OVERHEAD : 0;
    if (limit->sample && more && __atomic_add_fetch(&limit->handed_out, more, __ATOMIC_RELAXED) >= limit->sample_after)
        take_sample(limit);
    uint64_t now = __atomic_add_fetch(&limit->live_bytes, more, __ATOMIC_RELAXED);
    void *p = NULL;
    if (more && (new_bytes > SIZE_MAX / 2 || now > limit->limit_bytes))
        __atomic_store_n(&limit->refused_bytes, more, __ATOMIC_RELAXED);
    else
        p = limit->parent->resize(limit->parent->ctx, ptr, old_bytes, new_bytes);
    bool done = p || !new_bytes;
    __atomic_sub_fetch(&limit->live_bytes, done ? less : more, __ATOMIC_RELAXED);
    if (done && now > limit->peak_bytes) /* for reports: a race may lose a little */
        limit->peak_bytes = now;
    return p;
}

void mf_limit_host_init(mf_limit_host *limit, const memfit_host *parent, uint64_t limit_bytes)
{
    *limit =
        (mf_limit_host){.host = {limit_resize, limit}, .parent = host_or_default(parent), .limit_bytes = limit_bytes};
}

void mf_limit_host_watch(mf_limit_host *limit, uint64_t process_bytes, uint64_t (*sample)(void))
{
    const uint64_t held = sample();
    limit->sample = process_bytes == UINT64_MAX ? NULL : sample;
    limit->limit_bytes = limit->process_bytes = process_bytes;
    limit->beside = held > limit->live_bytes ? held - limit->live_bytes : 0;
    limit->refused_bytes = 0;
    if (limit->sample)
        take_sample(limit);
}

/* ---- arenas ----------------------------------------------------------------------------------------------- */

struct mf_arena_block {
    mf_arena_block *next;
    size_t bytes; /* of the whole block */
    size_t used;  /* from the start of the block */
    size_t pad;
};

void mf_arena_init(mf_arena *arena, const memfit_host *host)
{
    *arena = (mf_arena){.host = host_or_default(host)};
}

void mf_arena_destroy(mf_arena *arena)
{
    for (mf_arena_block *b = arena->blocks, *next; b; b = next) {
        next = b->next;
        mf_host_free(arena->host, b, b->bytes);
    }
    arena->blocks = NULL;
    arena->bytes = 0;
}

void *mf_arena_alloc(mf_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 4)
        return NULL;
    size_t need = (bytes + 15) & ~(size_t)15;
    mf_arena_block *b = arena->blocks;
    if (!b || b->bytes - b->used < need) {
        size_t block = 4096;
        if (b)
            block = b->bytes * 2 < ((size_t)1 << 20) ? b->bytes * 2 : (size_t)1 << 20;
        if (block < need + sizeof *b)
            block = need + sizeof *b;
        if (arena->limit_bytes && arena->bytes + block > arena->limit_bytes) { /* what is left may do for this one */
            block = need + sizeof *b;
            if (arena->bytes + block > arena->limit_bytes)
                return NULL;
        }
        mf_arena_block *fresh = mf_host_alloc(arena->host, block);
        if (!fresh)
            return NULL;
        *fresh = (mf_arena_block){.bytes = block, .used = sizeof *fresh};
        arena->bytes += block;
        /* A block made for one large object goes behind the current one, whose rest stays usable. */
        if (b && block - sizeof *fresh - need < b->bytes - b->used) {
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            arena->blocks = fresh;
        }
        b = fresh;
    }
    void *p = (char *)b + b->used;
    b->used += need;
    memset(p, 0, need);
    return p;
}

void *mf_arena_array(mf_arena *arena, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / 4 / size)
        return NULL;
    return mf_arena_alloc(arena, count * size);
}

char *mf_arena_strndup(mf_arena *arena, const char *text, size_t bytes)
{
    char *p = mf_arena_alloc(arena, bytes + 1);
    if (p)
        memcpy(p, text, bytes);
    return p;
}

char *mf_arena_strdup(mf_arena *arena, const char *text)
{
    return mf_arena_strndup(arena, text, strlen(text));
}

char *mf_arena_printf(mf_arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *p = n < 0 ? NULL : mf_arena_alloc(arena, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, format, again);
    va_end(again);
    return p;
}
