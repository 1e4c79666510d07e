/*
 * walk.c: looking at a pool without changing it: its blocks, its figures, and whether all its structures agree.
 */
#include "pool/blocks.h"
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/lanes.h"
#include "pool/ledger.h"
#include "pool/pages.h"
#include "pool/repeat.h"
#include "pool/slab.h"

#include "base/abi.h"
#include "base/error.h"

#include <string.h>

/* ---- blocks ------------------------------------------------------------------------------------------------- */

static memfit_stream stream_of(const memfit_pool *pool, unsigned lane)
{
    uint64_t stream = lane ? pool->lane[lane]->clock.stream : pool->home;
    return stream == UINT64_MAX ? 0 : stream;
}

static memfit_block_info describe_block(const memfit_pool *pool, const mf_block *b)
{
    uint64_t tag = mf_block_tag(b);
    uint32_t owner = MF_TAG_OWNER(tag);
    return (memfit_block_info){.address = pool->range + b->start,
                               .bytes = b->bytes - MF_TAG_REST(tag),
                               .taken_bytes = b->bytes,
                               .owner = owner,
                               .kind = mf_owner_at(pool, owner)->kind,
                               .stream = stream_of(pool, b->lane),
                               .mark = MF_TAG_MARK(tag)};
}

static memfit_block_info describe_slot(const memfit_pool *pool, const mf_slab *slab, uint32_t index, uint64_t word)
{
    uint32_t owner = MF_SLOT_OWNER(word);
    return (memfit_block_info){.address = pool->range + slab->start + (uint64_t)index * slab->slot_bytes,
                               .bytes = MF_SLOT_ASKED(word),
                               .taken_bytes = slab->slot_bytes,
                               .owner = owner,
                               .kind = mf_owner_at(pool, owner)->kind,
                               .stream = stream_of(pool, slab->lane),
                               .mark = word >> MF_SLOT_MARK_SHIFT & MF_SLOT_MARK_MOST};
}

static bool walk_span(memfit_pool *pool, const mf_span *span, bool (*fn)(void *, const memfit_block_info *), void *ctx)
{
    for (unsigned i = 0; i < 32; i++) {
        mf_slab *slab = span->slab[i];
        for (uint32_t k = 0; slab && k < slab->slots; k++) {
            uint64_t word = mf_slot_load(slab, k);
            if (!(word & MF_SLOT_LIVE))
                continue;
            memfit_block_info info = describe_slot(pool, slab, k, word);
            if (!fn(ctx, &info))
                return false;
        }
    }
    return true;
}

void mf_pool_walk_blocks_locked(memfit_pool *pool, bool (*fn)(void *ctx, const memfit_block_info *block), void *ctx)
{
    for (mf_block *b = pool->first; b; b = b->after) {
        if (b->state == MF_SPAN && !walk_span(pool, b->span, fn, ctx))
            return;
        if (!mf_block_live(b))
            continue;
        memfit_block_info info = describe_block(pool, b);
        if (!fn(ctx, &info))
            return;
    }
}

memfit_status memfit_pool_each_block(memfit_pool *pool, bool (*fn)(void *ctx, const memfit_block_info *block),
                                     void *ctx, memfit_error *err)
{
    if (!fn)
        return mf_fail(err, MEMFIT_INVALID, "pool blocks: NULL");
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_pool_walk_blocks_locked(pool, fn, ctx);
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

static bool in_slab(memfit_pool *pool, const mf_slab *slab, uint64_t offset, memfit_block_info *out)
{
    uint32_t index = mf_slab_index(slab, offset - slab->start);
    uint64_t word = index < slab->slots ? mf_slot_load(slab, index) : 0;
    if (!(word & MF_SLOT_LIVE))
        return false;
    memfit_block_info info = describe_slot(pool, slab, index, word);
    if (pool->range + offset - info.address >= (info.bytes ? info.bytes : 1))
        return false;
    *out = info;
    return true;
}

/* At once for the beginning of a block or any address in a slab; others are looked for one by one. */
bool mf_pool_find_locked(memfit_pool *pool, memfit_address address, memfit_block_info *out)
{
    uint64_t offset = address - pool->range;
    if (offset >= pool->range_bytes)
        return false;
    uintptr_t cell = mf_cell_load(pool, offset);
    if (cell)
        return in_slab(pool, mf_cell_slab(cell), offset, out);
    const mf_block *b = mf_table_find(pool, offset);
    for (const mf_block *other = pool->first; !b && other; other = other->after)
        if (other->state == MF_LIVE && offset - other->start < other->bytes)
            b = other;
    if (!b || !mf_block_live(b))
        return false;
    memfit_block_info info = describe_block(pool, b);
    if (offset - b->start >= (info.bytes ? info.bytes : 1))
        return false;
    *out = info;
    return true;
}

memfit_status memfit_pool_find(memfit_pool *pool, memfit_address address, memfit_block_info *block, memfit_error *err)
{
    memfit_block_info found = MEMFIT_BLOCK_INFO;
    memfit_status status = mf_abi_check(block, "MEMFIT_BLOCK_INFO", err);
    if (!status)
        status = mf_pool_enter(pool, err);
    if (status)
        return status;
    if (mf_pool_find_locked(pool, address, &found))
        mf_abi_write(block, &found, sizeof found);
    else
        status = mf_fail(err, MEMFIT_MISUSE, "pool %s: %#llx lies in no live block", pool->name,
                         (unsigned long long)address);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- figures ------------------------------------------------------------------------------------------------ */

static bool is_mapped(const memfit_pool *pool, uint64_t page)
{
    return page < pool->pages.covered && (pool->pages.mapped[page / 64] >> (page % 64) & 1);
}

/* The longest stretch of a gap that has memory behind it. */
static uint64_t backed_bytes(const memfit_pool *pool, uint64_t start, uint64_t end)
{
    uint64_t longest = 0, run = 0, shift = pool->pages.shift;
    for (uint64_t page = start >> shift; page << shift < end && page < pool->pages.top; page++) {
        uint64_t from = page << shift > start ? page << shift : start;
        uint64_t to = (page + 1) << shift < end ? (page + 1) << shift : end;
        run = is_mapped(pool, page) ? run + (to - from) : 0;
        if (run > longest)
            longest = run;
    }
    return longest;
}

/* What lies free between the blocks, as it would be if threads kept none. Looking must not change anything: not where
 * the next block goes, either. So what is kept is not given back first, but counted as a hole. */
typedef struct gaps {
    uint64_t largest_bytes; /* with memory behind it */
    uint64_t idle;          /* pages */
    uint64_t kept_bytes;    /* of the gaps: in the threads' caches */
} gaps;

static void close_gap(const memfit_pool *pool, gaps *g, uint64_t start, uint64_t end, bool waits)
{
    const mf_pages *p = &pool->pages;
    uint64_t first = (start + p->bytes - 1) >> p->shift, past = end >> p->shift;
    uint64_t bytes = start < end ? backed_bytes(pool, start, end) : 0;
    if (bytes > g->largest_bytes)
        g->largest_bytes = bytes;
    if (past > p->top)
        past = p->top;
    if (first < past && !waits)
        g->idle += past - first - mf_pages_missing(pool, first << p->shift, (past - first) << p->shift);
}

static gaps find_gaps(memfit_pool *pool)
{
    gaps g = {0};
    uint64_t start = 0;
    for (const mf_block *b = pool->first; b; b = b->after) {
        bool kept = b->state == MF_LIVE && !mf_block_live(b);
        g.kept_bytes += kept ? b->bytes : 0;
        if (kept || (b->state == MF_HOLE && !b->lane))
            continue;
        close_gap(pool, &g, start, b->start, false);
        start = b->start + b->bytes;
        if (b->state == MF_HOLE) /* a stream's own */
            close_gap(pool, &g, b->start, start, true);
    }
    close_gap(pool, &g, start, pool->range_bytes, false);
    return g;
}

static uint64_t waiting_slot_bytes(const memfit_pool *pool)
{
    uint64_t bytes = pool->fence.held_slot_bytes;
    for (unsigned i = 1; i < pool->lane_count; i++)
        for (size_t k = 0; k < pool->lane[i]->slot_wait_count; k++)
            bytes += pool->lane[i]->slot_waits[k].ref.slab->slot_bytes;
    return bytes;
}

/* What the device would give this pool beyond what it has, as far as the budget knows. */
static uint64_t budget_room(const memfit_pool *pool)
{
    const mf_budget *budget = &pool->device->budget;
    uint64_t room = atomic_load(&budget->room_bytes), taken = atomic_load(&budget->taken_bytes);
    return pool->options.slice ? UINT64_MAX : room > taken ? room - taken : 0;
}

static void fill_pages(memfit_pool *pool, memfit_pool_info *info)
{
    const mf_pages *p = &pool->pages;
    gaps g = find_gaps(pool);
    info->page_bytes = p->bytes;
    info->reserved_bytes = p->reserved * p->bytes;
    info->reserved_peak_bytes = p->reserved_peak * p->bytes;
    info->idle_bytes = (g.idle + p->spare_count) * p->bytes;
    info->largest_free_bytes = g.largest_bytes;
    uint64_t cached = mf_caches_bytes(pool);
    info->cached_bytes = cached + g.kept_bytes;
    info->pending_bytes = mf_lanes_pending_bytes(pool);
    uint64_t slots = pool->slab_bytes - pool->slab_free_bytes - cached - waiting_slot_bytes(pool);
    uint64_t taken = pool->block_bytes - g.kept_bytes + slots, held = info->reserved_bytes - info->idle_bytes;
    info->padding_bytes = taken > info->in_use_bytes ? taken - info->in_use_bytes : 0;
    info->pinned_bytes = held > taken + info->pending_bytes ? held - taken - info->pending_bytes : 0;
    uint64_t limit = mf_pages_limit(pool), room = budget_room(pool) / p->bytes;
    uint64_t most = limit < p->reserved || limit - p->reserved < room ? limit : p->reserved + room;
    uint64_t used = held / p->bytes;
    info->available_bytes = most > used ? (most - used) * p->bytes : 0;
    if (info->available_bytes < info->largest_free_bytes)
        info->available_bytes = info->largest_free_bytes;
}

memfit_status memfit_pool_get_info(memfit_pool *pool, memfit_pool_info *out, memfit_error *err)
{
    memfit_status status = mf_abi_check(out, "MEMFIT_POOL_INFO", err);
    if (!status)
        status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_ledger_fold_all(pool);
    memfit_pool_info info = {.policy = pool->policy,
                             .limit_bytes = pool->limit_bytes,
                             .soft_limit_bytes = pool->soft_limit_bytes,
                             .fixed_bytes = mf_fixed_bytes(pool),
                             .in_use_bytes = pool->total.now,
                             .in_use_peak_bytes = pool->total.peak,
                             .blocks = pool->total.allocations - pool->total.frees,
                             .allocations = pool->total.allocations,
                             .frees = pool->total.frees,
                             .failures = pool->failures,
                             .remaps = pool->remaps,
                             .remapped_pages = pool->remapped_pages,
                             .created_pages = pool->created_pages,
                             .released_pages = pool->released_pages,
                             .stream_waits = pool->stream_waits,
                             .moving_us = pool->moving_us,
                             .metadata_bytes = sizeof *pool + pool->host_bytes + pool->arena.bytes,
                             .marks = pool->marks,
                             .owners = pool->owner_count};
    memcpy(info.name, pool->name, sizeof info.name);
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++) {
        info.kind_bytes[k] = pool->kind[k].now;
        info.kind_peak_bytes[k] = pool->kind[k].peak;
    }
    fill_pages(pool, &info);
    pthread_mutex_unlock(&pool->lock);
    mf_abi_write(out, &info, sizeof info);
    return MEMFIT_OK;
}

/* ---- do all structures agree? ------------------------------------------------------------------------------- */

#define BROKEN(...) return mf_fail(err, MEMFIT_INTERNAL, __VA_ARGS__)

static memfit_status check_slab(memfit_pool *pool, const mf_span *span, const mf_slab *slab, unsigned at,
                                memfit_error *err)
{
    unsigned free_slots = 0;
    for (unsigned i = 0; i < MF_SLAB_SLOTS / 64; i++)
        free_slots += (unsigned)__builtin_popcountll(slab->free_bits[i]);
    if (slab->span != span || slab->start != span->block->start + at * (uint64_t)MF_SLAB || slab->lane != span->lane)
        BROKEN("check: a slab does not know where it is");
    if (free_slots != slab->free || slab->free >= slab->slots)
        BROKEN("check: a slab of class %u has %u free bits, counts %u of %u", slab->size_class, free_slots, slab->free,
               slab->slots);
    for (uint32_t k = 0; k < slab->slots; k++) {
        bool is_free = slab->free_bits[k / 64] >> (k % 64) & 1;
        if (is_free && mf_slot_load(slab, k))
            BROKEN("check: a free slot is live");
    }
    unsigned listed = 0;
    for (const mf_slab *s = pool->lane[slab->lane]->partial[slab->size_class]; s; s = s->after)
        listed += s == slab;
    if (listed != (slab->free != 0))
        BROKEN("check: a slab with %u free slots is listed %u times", slab->free, listed);
    if (mf_cell_load(pool, slab->start) != mf_slab_cell(slab))
        BROKEN("check: the cell of a slab shows something else");
    return MEMFIT_OK;
}

static memfit_status check_block(memfit_pool *pool, const mf_block *b, memfit_error *err)
{
    if (b->start % MF_UNIT || b->bytes % MF_UNIT || !b->bytes)
        BROKEN("check: a block of %llu bytes at %llu", (unsigned long long)b->bytes, (unsigned long long)b->start);
    if ((b == pool->tail) != !b->after || (b == pool->tail && (b->state != MF_HOLE || b->lane)))
        BROKEN("check: the last block is not the tail, or the tail is somebody's");
    if (b->after && (b->after->before != b || b->after->start != b->start + b->bytes))
        BROKEN("check: blocks do not follow each other at %llu", (unsigned long long)b->start);
    uint64_t word = atomic_load_explicit(&((mf_block *)b)->word, memory_order_relaxed);
    if (b->state == MF_LIVE ? word != (b->start | MF_WORD_LIVE) && word != (b->start | MF_WORD_KEPT) : word != 0)
        BROKEN("check: a block's word is not its own at %llu", (unsigned long long)b->start);
    if (b->state == MF_HOLE) {
        if (b->after && b->after->state == MF_HOLE && b->after->lane == b->lane &&
            mf_is_apart(pool, b->after) == mf_is_apart(pool, b))
            BROKEN("check: two holes side by side at %llu", (unsigned long long)b->start);
        if (b == pool->tail)
            return MEMFIT_OK;
        const mf_block *found = b;
        while (found->bin_before)
            found = found->bin_before;
        bool in_bin = false;
        for (unsigned level = 0; level < MF_LEVELS; level++)
            for (unsigned step = 0; step < MF_STEPS; step++)
                in_bin = in_bin || mf_bins_of(pool, b)->first[level][step] == found;
        if (!in_bin)
            BROKEN("check: a hole of %llu bytes is in no bin", (unsigned long long)b->bytes);
        return MEMFIT_OK;
    }
    if (mf_pages_missing(pool, b->start, b->bytes))
        BROKEN("check: a live block without memory at %llu", (unsigned long long)b->start);
    if (b->state == MF_LIVE && mf_table_find(pool, b->start) != b)
        BROKEN("check: a live block is not in the table");
    memfit_status status = MEMFIT_OK;
    if (b->state == MF_SPAN) {
        unsigned slabs = (unsigned)(pool->span_bytes / MF_SLAB);
        if (b->span->block != b || b->start % pool->span_bytes)
            BROKEN("check: a span does not know where it is");
        for (unsigned i = 0; i < slabs && !status; i++) {
            bool is_free = b->span->free_slabs >> i & 1;
            if (is_free == (b->span->slab[i] != NULL))
                BROKEN("check: slab %u of a span is both free and not", i);
            if (!is_free)
                status = check_slab(pool, b->span, b->span->slab[i], i, err);
        }
    }
    return status;
}

static memfit_status check_pages(memfit_pool *pool, memfit_error *err)
{
    const mf_pages *p = &pool->pages;
    uint64_t idle = 0, mapped = 0, unclean = 0, spare = 0;
    mf_block *b = pool->first;
    for (uint64_t page = 0; page < p->covered; page++) {
        while (b->after && b->after->start <= page << p->shift)
            b = b->after;
        bool whole = b->state == MF_HOLE && !b->lane && (page + 1) << p->shift <= b->start + b->bytes;
        bool is_idle = p->idle[page / 64] >> (page % 64) & 1, there = is_mapped(pool, page);
        if (is_idle != (whole && there))
            BROKEN("check: page %llu is %s", (unsigned long long)page,
                   is_idle ? "called idle" : "idle, and not known so");
        if (there != (p->handle[page] != NULL) || (there && page >= p->top))
            BROKEN("check: page %llu: mapped and handle disagree", (unsigned long long)page);
        if (there && (p->handle[page]->page > page || page >= p->handle[page]->page + p->handle[page]->pages))
            BROKEN("check: page %llu: its handle is elsewhere", (unsigned long long)page);
        idle += is_idle;
        mapped += there;
    }
    for (mf_handle *h = p->unclean; h; h = h->next)
        unclean += h->pages;
    for (unsigned tier = 0; tier < p->tiers; tier++)
        for (mf_handle *h = p->spare[tier]; h; h = h->next)
            spare += h->pages;
    for (unsigned i = 0; i < p->shadow_count; i++)
        if (is_mapped(pool, p->shadow[i].page) || !p->shadow[i].handle->shadows)
            BROKEN("check: page %llu has a shadow and more", (unsigned long long)p->shadow[i].page);
    if (idle != p->idle_count || mapped != p->mapped_count || spare != p->spare_count ||
        p->reserved != mapped + spare + unclean)
        BROKEN("check: pages: reserved %llu, mapped %llu of %llu, idle %llu of %llu, spare %llu of %llu",
               (unsigned long long)p->reserved, (unsigned long long)mapped, (unsigned long long)p->mapped_count,
               (unsigned long long)idle, (unsigned long long)p->idle_count, (unsigned long long)spare,
               (unsigned long long)p->spare_count);
    return MEMFIT_OK;
}

typedef struct sums {
    uint64_t bytes, blocks;
    uint64_t kind[MEMFIT_KIND_COUNT];
} sums;

static bool add_up(void *ctx, const memfit_block_info *block)
{
    sums *s = ctx;
    s->bytes += block->bytes;
    s->blocks++;
    s->kind[block->kind] += block->bytes;
    return true;
}

static memfit_status check_ledger(memfit_pool *pool, memfit_error *err)
{
    sums s = {0};
    uint64_t owners = 0;
    mf_ledger_fold_all(pool);
    mf_pool_walk_blocks_locked(pool, add_up, &s);
    for (uint32_t i = 0; i < pool->owner_count; i++)
        owners += mf_owner_at(pool, i)->account.now;
    if (s.bytes != pool->total.now || s.blocks != pool->total.allocations - pool->total.frees || owners != s.bytes)
        BROKEN("check: ledger: %llu bytes are live, owners hold %llu, the total is %llu", (unsigned long long)s.bytes,
               (unsigned long long)owners, (unsigned long long)pool->total.now);
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        if (s.kind[k] != pool->kind[k].now || pool->kind[k].peak < pool->kind[k].now)
            BROKEN("check: ledger: kind %s", memfit_kind_name((memfit_kind)k));
    return MEMFIT_OK;
}

typedef struct kept_blocks {
    memfit_error *err;
    memfit_status status;
} kept_blocks;

static void check_kept(memfit_pool *pool, mf_cache *cache, void *ctx)
{
    kept_blocks *k = ctx;
    for (uint32_t i = 0; i < cache->kept_count && !k->status; i++) {
        const mf_block *b = cache->kept[i].block;
        if (b->state != MF_LIVE || b->bytes != cache->kept[i].bytes || mf_block_live(b) ||
            mf_table_find(pool, b->start) != b)
            k->status = mf_fail(k->err, MEMFIT_INTERNAL, "check: a thread keeps a block at %llu that is not to be kept",
                                (unsigned long long)b->start);
    }
}

memfit_status mf_pool_check(memfit_pool *pool, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    kept_blocks kept = {err, MEMFIT_OK};
    mf_caches_each(pool, check_kept, &kept);
    status = kept.status;
    uint64_t bytes = 0, pending = 0;
    for (mf_block *b = pool->first; b && !status; b = b->after) {
        status = check_block(pool, b, err);
        bytes += b->bytes;
        if ((b->state == MF_HOLE && b->lane) || b->state == MF_HELD)
            pending += b->bytes;
    }
    if (!status && bytes != pool->range_bytes)
        status = mf_fail(err, MEMFIT_INTERNAL, "check: blocks do not cover the range");
    if (!status && pending + waiting_slot_bytes(pool) != mf_lanes_pending_bytes(pool))
        status = mf_fail(err, MEMFIT_INTERNAL, "check: bytes that wait for streams do not add up");
    if (!status)
        status = check_pages(pool, err);
    if (!status)
        status = check_ledger(pool, err);
    if (!status && !mf_repeat_check(pool, err))
        status = MEMFIT_INTERNAL;
    pthread_mutex_unlock(&pool->lock);
    return status;
}
