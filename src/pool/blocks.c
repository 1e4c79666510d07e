/*
 * blocks.c: the address range as a list of blocks without gaps, holes sorted into bins, and the two tables that
 * lead from an address to what begins there: cells for slabs, read without the lock, and a hash table for live blocks.
 *
 * Bins: two levels, power of two and 32 steps in it, one bit each. Finding a hole is two bit scans and a look at no
 * more than 16 entries of one list: near enough to best fit that no trace can tell the difference (measured: 1.0045
 * against 1.0041 physical per live byte on the worst trace), and the cost does not grow with the number of holes.
 *
 * Invariants: blocks cover the range; two neighbouring holes are never of the same lane; the tail is the last block, a
 * hole of lane 0 that is in no bin; a cell shows the slab that it is (mf_slab_cell), or 0.
 *
 * Tried and dropped: holes split into parts with and without memory behind them, backed parts preferred. Fewer moves
 * (0.4 %), but a hole cut that way no longer fits the block that left it, and training asks for the same sizes again
 * and again: up to 9.5 % of memory pinned in half-used pages.
 */
#include "pool/blocks.h"
#include "pool/pages.h"

#include <string.h>

enum { RECORDS_AT_ONCE = 64 };

bool mf_blocks_make(memfit_pool *pool, unsigned count)
{
    while (pool->unused_block_count < count) {
        /* one more than are used, so that each can begin a line of the cache */
        uintptr_t memory = (uintptr_t)MF_NEW_ARRAY(&pool->arena, mf_block, RECORDS_AT_ONCE + 1);
        if (!memory)
            return false;
        mf_block *more = (mf_block *)((memory + sizeof(mf_block) - 1) & ~(uintptr_t)(sizeof(mf_block) - 1));
        for (unsigned i = 0; i < RECORDS_AT_ONCE; i++) {
            more[i].after = pool->unused_blocks;
            pool->unused_blocks = &more[i];
        }
        pool->unused_block_count += RECORDS_AT_ONCE;
    }
    return true;
}

/* Its word is 0; the rest is as it was. */
static mf_block *new_record(memfit_pool *pool)
{
    mf_block *block = pool->unused_blocks;
    pool->unused_blocks = block->after;
    pool->unused_block_count--;
    return block;
}

static void drop_record(memfit_pool *pool, mf_block *block)
{
    block->after = pool->unused_blocks;
    pool->unused_blocks = block;
    pool->unused_block_count++;
}

bool mf_blocks_init(memfit_pool *pool)
{
    size_t leaves = (size_t)(pool->range_bytes >> MF_LEAF_SHIFT) + 1;
    pool->leaf = mf_host_zalloc(pool->host, leaves * sizeof *pool->leaf);
    if (!pool->leaf)
        return false;
    pool->host_bytes += leaves * sizeof *pool->leaf;
    if (!mf_blocks_reserve(pool, 2))
        return false;
    pool->tail = new_record(pool);
    pool->tail->after = NULL;
    pool->tail->bytes = pool->range_bytes;
    pool->first = pool->tail;
    pool->apart = MF_BEYOND;
    return true;
}

/* ---- from address to block ---------------------------------------------------------------------------------- */

bool mf_cells_reserve(memfit_pool *pool, uint64_t offset, uint64_t bytes)
{
    for (uint64_t i = offset >> MF_LEAF_SHIFT; i <= (offset + bytes - 1) >> MF_LEAF_SHIFT; i++) {
        if (atomic_load_explicit(&pool->leaf[i], memory_order_relaxed))
            continue;
        uintptr_t *leaf = mf_host_zalloc(pool->host, MF_LEAF_CELLS * sizeof *leaf);
        if (!leaf)
            return false;
        pool->host_bytes += MF_LEAF_CELLS * sizeof *leaf;
        atomic_store_explicit(&pool->leaf[i], leaf, memory_order_release);
    }
    return true;
}

void mf_cell_store(memfit_pool *pool, uint64_t offset, uintptr_t value)
{
    uintptr_t *leaf = atomic_load_explicit(&pool->leaf[offset >> MF_LEAF_SHIFT], memory_order_relaxed);
    _Atomic uintptr_t *cell = (_Atomic uintptr_t *)&leaf[offset >> MF_CELL_SHIFT & (MF_LEAF_CELLS - 1)];
    atomic_store_explicit(cell, value, memory_order_release);
}

/* The table is read without the lock (mf_table_peek). A reader that comes at the wrong moment misses what it looks for,
 * or finds a key with another's block; both are noticed, and it looks again with the lock. Keys lie in the table itself
 * because the records they stand for are all over the memory. */
static void entry_put(struct mf_entry *entry, uint64_t key, mf_block *block)
{
    atomic_store_explicit(&entry->block, block, memory_order_release);
    atomic_store_explicit(&entry->key, key, memory_order_release);
}

static uint64_t entry_key(struct mf_entry *entry)
{
    return atomic_load_explicit(&entry->key, memory_order_relaxed);
}

static mf_block *entry_block(struct mf_entry *entry)
{
    return atomic_load_explicit(&entry->block, memory_order_relaxed);
}

static void table_put(mf_table *table, mf_block *block)
{
    uint64_t i = mf_table_home(table, block->start);
    while (entry_key(&table->entry[i]))
        i = (i + 1) & (table->size - 1);
    entry_put(&table->entry[i], block->start + 1, block);
}

static size_t table_bytes(uint64_t size)
{
    return sizeof(mf_table) + size * sizeof(struct mf_entry);
}

bool mf_table_grow(memfit_pool *pool)
{
    mf_table *old = atomic_load_explicit(&pool->table, memory_order_relaxed);
    uint64_t size = old ? old->size * 2 : 256;
    mf_table *table = mf_host_zalloc(pool->host, table_bytes(size));
    if (!table)
        return false;
    table->size = size;
    table->shift = 64 - (unsigned)__builtin_ctzll(size);
    table->older = old;
    for (uint64_t i = 0; old && i < old->size; i++)
        if (entry_key(&old->entry[i]))
            table_put(table, entry_block(&old->entry[i]));
    atomic_store_explicit(&pool->table, table, memory_order_release);
    pool->host_bytes += table_bytes(size);
    return true;
}

void mf_tables_end(memfit_pool *pool)
{
    for (mf_table *table = atomic_load(&pool->table), *older; table; table = older) {
        older = table->older;
        mf_host_free(pool->host, table, table_bytes(table->size));
    }
}

void mf_table_add(memfit_pool *pool, mf_block *block)
{
    table_put(atomic_load_explicit(&pool->table, memory_order_relaxed), block);
    pool->table_used++;
}

mf_block *mf_table_find(const memfit_pool *pool, uint64_t offset)
{
    mf_table *table = atomic_load_explicit(&((memfit_pool *)pool)->table, memory_order_relaxed);
    if (!table)
        return NULL;
    uint64_t i = mf_table_home(table, offset);
    while (entry_key(&table->entry[i]) && entry_key(&table->entry[i]) != offset + 1)
        i = (i + 1) & (table->size - 1);
    return entry_key(&table->entry[i]) ? entry_block(&table->entry[i]) : NULL;
}

/* Closes the gap by moving back whatever would not be found across it. */
void mf_table_remove(memfit_pool *pool, mf_block *block)
{
    mf_table *table = atomic_load_explicit(&pool->table, memory_order_relaxed);
    uint64_t most = table->size - 1, gap = mf_table_home(table, block->start);
    while (entry_key(&table->entry[gap]) != block->start + 1)
        gap = (gap + 1) & most;
    for (uint64_t i = (gap + 1) & most, key; (key = entry_key(&table->entry[i])); i = (i + 1) & most) {
        if (((i - mf_table_home(table, key - 1)) & most) < ((i - gap) & most))
            continue;
        entry_put(&table->entry[gap], key, entry_block(&table->entry[i]));
        gap = i;
    }
    entry_put(&table->entry[gap], 0, NULL);
    pool->table_used--;
}

/* ---- bins --------------------------------------------------------------------------------------------------- */

static void bin_of(uint64_t bytes, unsigned *level, unsigned *step)
{
    uint64_t units = bytes / MF_UNIT;
    if (units < MF_STEPS) {
        *level = 0;
        *step = (unsigned)units;
        return;
    }
    unsigned power = 63 - (unsigned)__builtin_clzll(units);
    *level = power - MF_STEP_BITS + 1;
    *step = (unsigned)(units >> (power - MF_STEP_BITS)) & (MF_STEPS - 1);
}

void mf_bins_add(mf_bins *bins, mf_block *hole)
{
    unsigned level, step;
    bin_of(hole->bytes, &level, &step);
    mf_block **first = &bins->first[level][step];
    hole->bin_before = NULL;
    hole->bin_after = *first;
    if (*first)
        (*first)->bin_before = hole;
    *first = hole;
    bins->levels |= UINT64_C(1) << level;
    bins->steps[level] |= UINT64_C(1) << step;
}

void mf_bins_remove(mf_bins *bins, mf_block *hole)
{
    if (hole->bin_after)
        hole->bin_after->bin_before = hole->bin_before;
    if (hole->bin_before) {
        hole->bin_before->bin_after = hole->bin_after;
        return;
    }
    unsigned level, step;
    bin_of(hole->bytes, &level, &step);
    bins->first[level][step] = hole->bin_after;
    if (hole->bin_after)
        return;
    bins->steps[level] &= ~(UINT64_C(1) << step);
    if (!bins->steps[level])
        bins->levels &= ~(UINT64_C(1) << level);
}

/* The first bin behind this one that has a hole; NULL: none. */
static mf_block *next_bin(const mf_bins *bins, unsigned level, unsigned step)
{
    uint64_t steps = step + 1 < MF_STEPS ? bins->steps[level] >> (step + 1) << (step + 1) : 0;
    if (!steps) {
        uint64_t levels = bins->levels >> level >> 1 << level << 1;
        if (!levels)
            return NULL;
        level = (unsigned)__builtin_ctzll(levels);
        steps = bins->steps[level];
    }
    return bins->first[level][__builtin_ctzll(steps)];
}

/* Looks without the lock, as a hint to the processor only: what it finds may be out of date. */
__attribute__((no_sanitize("thread"))) void mf_bins_warm(const mf_bins *bins, uint64_t bytes)
{
    unsigned level, step;
    bin_of(bytes, &level, &step);
    if (level >= MF_LEVELS)
        return;
    __builtin_prefetch(__atomic_load_n(&bins->first[level][step], __ATOMIC_RELAXED), 1);
    if (step + 1 < MF_STEPS)
        __builtin_prefetch(__atomic_load_n(&bins->first[level][step + 1], __ATOMIC_RELAXED), 1);
}

/* The smallest of the first entries that is large enough; of equal ones the lowest, so that the same holes give the same
 * places whatever was freed last (a generator and a discriminator by turns: 1.10 of the live bytes instead of 1.15). What
 * is too small is too large by nearly 2^64, so one comparison serves. */
static mf_block *best_of(mf_block *hole, uint64_t bytes)
{
    mf_block *best = NULL;
    uint64_t least = UINT64_C(1) << 63;
    for (unsigned i = 0; hole && i < MF_LOOK; i++, hole = hole->bin_after) {
        uint64_t over = hole->bytes - bytes;
        bool better = over < least || (over == least && best && hole->start < best->start);
        best = better ? hole : best;
        least = better ? over : least;
    }
    return best;
}

mf_block *mf_bins_fit(const mf_bins *bins, uint64_t bytes)
{
    unsigned level, step;
    bin_of(bytes, &level, &step);
    if (level >= MF_LEVELS)
        return NULL;
    mf_block *best = best_of(bins->first[level][step], bytes);
    if (best)
        return best;
    return best_of(next_bin(bins, level, step), bytes);
}

mf_block *mf_bins_next(const mf_bins *bins, const mf_block *hole, uint64_t bytes)
{
    unsigned level, step;
    bin_of(hole ? hole->bytes : bytes, &level, &step);
    if (level >= MF_LEVELS)
        return NULL;
    mf_block *next = hole ? hole->bin_after : bins->first[level][step];
    while (next && next->bytes < bytes) /* in the first bin */
        next = next->bin_after;
    return next ? next : next_bin(bins, level, step);
}

/* ---- cutting and joining ------------------------------------------------------------------------------------ */

static void put_hole(memfit_pool *pool, mf_block *hole)
{
    if (hole != pool->tail)
        mf_bins_add(mf_bins_of(pool, hole), hole);
}

static void take_hole(memfit_pool *pool, mf_block *hole)
{
    if (hole != pool->tail)
        mf_bins_remove(mf_bins_of(pool, hole), hole);
}

mf_block *mf_block_cut(memfit_pool *pool, mf_block *hole, uint64_t start, uint64_t bytes, mf_block_state state)
{
    uint64_t end = hole->start + hole->bytes;
    if (hole->lane)
        pool->lane[hole->lane]->pending_bytes -= bytes;
    take_hole(pool, hole);
    if (start > hole->start) { /* a part in front stays a hole */
        mf_block *front = new_record(pool);
        front->start = hole->start;
        front->bytes = start - hole->start;
        front->before = hole->before;
        front->after = hole;
        front->serial = hole->serial;
        front->lane = hole->lane;
        front->state = MF_HOLE;
        if (hole->before)
            hole->before->after = front;
        else
            pool->first = front;
        hole->before = front;
        mf_bins_add(mf_bins_of(pool, front), front);
    }
    mf_block *block = hole;
    if (start + bytes < end) { /* a part behind: the record stays the hole's, so that the tail stays the tail */
        block = new_record(pool);
        block->before = hole->before;
        block->after = hole;
        if (hole->before)
            hole->before->after = block;
        else
            pool->first = block;
        hole->before = block;
        hole->start = start + bytes;
        hole->bytes = end - hole->start;
        put_hole(pool, hole);
    }
    block->start = start;
    block->bytes = bytes;
    block->state = (uint8_t)state;
    block->lane = 0;
    block->serial = 0;
    mf_pages_clear_idle(pool, start >> pool->pages.shift, ((start + bytes - 1) >> pool->pages.shift) + 1);
    return block;
}

/* Takes `gone` into `kept`, its neighbour. */
static void join(memfit_pool *pool, mf_block *kept, mf_block *gone)
{
    if (gone->start < kept->start) {
        kept->start = gone->start;
        kept->before = gone->before;
        if (gone->before)
            gone->before->after = kept;
        else
            pool->first = kept;
    } else {
        kept->after = gone->after;
        if (gone->after)
            gone->after->before = kept;
    }
    kept->bytes += gone->bytes;
    if (gone->serial > kept->serial)
        kept->serial = gone->serial;
    drop_record(pool, gone);
}

static bool joins(const memfit_pool *pool, const mf_block *neighbour, const mf_block *hole)
{
    return neighbour && neighbour->state == MF_HOLE && neighbour->lane == hole->lane &&
           mf_is_apart(pool, neighbour) == mf_is_apart(pool, hole);
}

/* A hole in no bin yet: joins it with its neighbours and puts it where it belongs. */
static mf_block *settle(memfit_pool *pool, mf_block *hole)
{
    if (joins(pool, hole->before, hole)) {
        take_hole(pool, hole->before);
        join(pool, hole, hole->before);
    }
    if (joins(pool, hole->after, hole)) {
        mf_block *after = hole->after;
        take_hole(pool, after);
        if (after == pool->tail) {
            join(pool, after, hole);
            hole = after;
        } else {
            join(pool, hole, after);
        }
    }
    put_hole(pool, hole);
    return hole;
}

/* Marks as idle the pages that [start, end) has completed inside `hole`. */
static void complete_pages(memfit_pool *pool, const mf_block *hole, uint64_t start, uint64_t end)
{
    uint64_t shift = pool->pages.shift, past = (UINT64_C(1) << shift) - 1;
    uint64_t first = (hole->start + past) >> shift, last = (hole->start + hole->bytes) >> shift;
    if (first < start >> shift)
        first = start >> shift;
    if (last > (end + past) >> shift)
        last = (end + past) >> shift;
    if (first < last)
        mf_pages_set_idle(pool, first, last);
}

void mf_block_drop(memfit_pool *pool, mf_block *block, unsigned lane, uint64_t serial)
{
    uint64_t start = block->start, end = start + block->bytes;
    block->state = MF_HOLE;
    block->lane = (uint8_t)lane;
    block->serial = serial & MF_SERIAL_MOST;
    pool->frees_central++;
    if (lane)
        pool->lane[lane]->pending_bytes += block->bytes;
    mf_block *hole = settle(pool, block);
    if (!lane)
        complete_pages(pool, hole, start, end);
    else
        mf_pages_stamp(pool, start, end, lane, serial);
}

mf_block *mf_holes_join(memfit_pool *pool, mf_block *first, mf_block *last, unsigned lane, uint64_t bytes)
{
    uint64_t shift = pool->pages.shift;
    if (last == pool->tail && last->start + bytes > mf_tail_most(pool))
        bytes = mf_tail_most(pool) - last->start;
    if (!bytes) { /* there is nothing to be had of it */
        last = last->before;
        bytes = last->bytes;
    }
    if (!last->lane &&
        bytes < last->bytes) { /* only a part of it: the rest stays everybody's; the tail stays the tail */
        mf_block *part = mf_block_cut(pool, last, last->start, bytes, MF_HOLE);
        mf_bins_add(mf_bins_of(pool, part), part);
        first = first == last ? part : first;
        last = part;
    }
    for (mf_block *b = first, *next;; b = next) {
        next = b->after;
        take_hole(pool, b);
        if (b->lane != lane) {
            mf_pages_clear_idle(pool, b->start >> shift, ((b->start + b->bytes - 1) >> shift) + 1);
            pool->lane[lane]->pending_bytes += b->bytes;
            b->lane = (uint8_t)lane;
            b->serial = 0;
        }
        bool end = b == last;
        if (b != first)
            join(pool, first, b);
        if (end)
            break;
    }
    return settle(pool, first);
}

mf_block *mf_hole_claim(memfit_pool *pool, mf_block *hole, uint64_t start, uint64_t bytes, unsigned lane)
{
    if (hole == pool->tail && start + bytes > mf_tail_most(pool))
        bytes = mf_tail_most(pool) - start;
    mf_block *part = mf_block_cut(pool, hole, start, bytes, MF_HOLE);
    part->lane = (uint8_t)lane;
    part->serial = pool->lane[lane]->clock.serial & MF_SERIAL_MOST;
    pool->lane[lane]->pending_bytes += bytes;
    return settle(pool, part);
}

mf_block *mf_hole_release(memfit_pool *pool, mf_block *hole)
{
    uint64_t start = hole->start, end = start + hole->bytes;
    take_hole(pool, hole);
    pool->lane[hole->lane]->pending_bytes -= hole->bytes;
    hole->lane = 0;
    hole->serial = 0;
    mf_block *joined = settle(pool, hole);
    complete_pages(pool, joined, start, end);
    return joined;
}
