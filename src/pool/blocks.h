/* blocks.h: blocks.c: records, bins, splitting and joining; place.c: finding a place. */
#ifndef MF_POOL_BLOCKS_H
#define MF_POOL_BLOCKS_H

#include "pool/state.h"

bool mf_blocks_init(memfit_pool *pool);
bool mf_blocks_make(memfit_pool *pool, unsigned count);
static inline bool mf_blocks_reserve(memfit_pool *pool, unsigned count) /* so many records can be had without failing */
{
    return pool->unused_block_count >= count || mf_blocks_make(pool, count);
}
bool mf_table_grow(memfit_pool *pool);
static inline bool mf_table_reserve(memfit_pool *pool) /* room for one more live block */
{
    const mf_table *table = atomic_load_explicit(&pool->table, memory_order_relaxed);
    return (table && pool->table_used < table->size / 4) || mf_table_grow(pool);
}
void mf_table_add(memfit_pool *pool, mf_block *block);
void mf_table_remove(memfit_pool *pool, mf_block *block);
mf_block *mf_table_find(const memfit_pool *pool, uint64_t offset); /* the block that begins there, live or kept */
void mf_tables_end(memfit_pool *pool);
static inline uint64_t mf_table_home(const mf_table *table, uint64_t offset)
{
    return (offset / MF_UNIT * 0x9e3779b97f4a7c15u) >> table->shift;
}
static inline void mf_table_warm(const memfit_pool *pool, uint64_t offset) /* a block will be added there soon */
{
    const mf_table *table = atomic_load_explicit(&((memfit_pool *)pool)->table, memory_order_relaxed);
    if (table)
        __builtin_prefetch(&table->entry[mf_table_home(table, offset)], 1);
}
/* The same without the lock. May miss it, and what it finds may be another block: look at its word. */
static inline mf_block *mf_table_peek(memfit_pool *pool, uint64_t offset)
{
    mf_table *table = atomic_load_explicit(&pool->table, memory_order_acquire);
    if (!table)
        return NULL;
    for (uint64_t i = mf_table_home(table, offset), looks = 0; looks < 16; looks++, i = (i + 1) & (table->size - 1)) {
        uint64_t key = atomic_load_explicit(&table->entry[i].key, memory_order_acquire);
        if (key == offset + 1)
            return atomic_load_explicit(&table->entry[i].block, memory_order_acquire);
        if (!key)
            return NULL;
    }
    return NULL;
}
bool mf_cells_reserve(memfit_pool *pool, uint64_t offset, uint64_t bytes);
void mf_cell_store(memfit_pool *pool, uint64_t offset, uintptr_t value);
static inline bool mf_is_apart(const memfit_pool *pool, const mf_block *block)
{
    return block->start >= pool->apart;
}
static inline mf_bins *mf_bins_of(const memfit_pool *pool, const mf_block *hole)
{
    mf_lane *lane = pool->lane[hole->lane];
    return mf_is_apart(pool, hole) ? &lane->apart : &lane->bins;
}
void mf_bins_add(mf_bins *bins, mf_block *hole);
void mf_bins_remove(mf_bins *bins, mf_block *hole);
mf_block *mf_bins_fit(const mf_bins *bins, uint64_t bytes);
/* The holes of so many bytes and more, bin after bin: the one behind this one; NULL for the first. NULL: no more. */
mf_block *mf_bins_next(const mf_bins *bins, const mf_block *hole, uint64_t bytes);
void mf_bins_warm(const mf_bins *bins, uint64_t bytes); /* it will be asked for so many soon */
/* The tail can be cut as far as here: it stays the last block. */
static inline uint64_t mf_tail_most(const memfit_pool *pool)
{
    return pool->tail->start + pool->tail->bytes - MF_UNIT;
}
/* Cuts [start, start + bytes) out of a hole. Needs two records in reserve. */
mf_block *mf_block_cut(memfit_pool *pool, mf_block *hole, uint64_t start, uint64_t bytes, mf_block_state state);
/* Makes a hole of a block again, in a lane, and joins it with its neighbours there. */
void mf_block_drop(memfit_pool *pool, mf_block *block, unsigned lane, uint64_t serial);
/* Makes one hole of a lane from holes side by side, first to last, of that lane or of nobody. Of the last, if
 * it is nobody's, `bytes` are taken. Needs two records in reserve. */
mf_block *mf_holes_join(memfit_pool *pool, mf_block *first, mf_block *last, unsigned lane, uint64_t bytes);
/* Gives a part of a hole to a lane, as if its stream had freed it just now. Returns the hole it lies in. Needs two records
 * in reserve. */
mf_block *mf_hole_claim(memfit_pool *pool, mf_block *hole, uint64_t start, uint64_t bytes, unsigned lane);
/* Moves a hole from its lane to lane 0. Returns the joined hole. */
mf_block *mf_hole_release(memfit_pool *pool, mf_block *hole);

/* The block is live from here on; everything else about it is set. */
static inline void mf_block_hand_out(const memfit_pool *pool, mf_block *block, uint32_t owner, uint64_t asked)
{
    uint64_t bits = atomic_load_explicit(&pool->tag_bits, memory_order_relaxed);
    atomic_store_explicit(&block->tag, bits | (uint64_t)owner << 16 | (block->bytes - asked), memory_order_relaxed);
    atomic_store_explicit(&block->word, block->start | MF_WORD_LIVE, memory_order_release);
}

/* ---- place.c ---- */
mf_block *mf_place(memfit_pool *pool, uint64_t bytes, uint64_t alignment, unsigned lane, mf_block_state state,
                   bool grow_soft, memfit_error *err);

#endif
