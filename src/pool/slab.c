/*
 * slab.c: sizes up to 32 KiB. A span is a page (2 MiB at most) cut into slabs of 64 KiB; a slab is slots of one size.
 *
 *     span  |slab 1 KiB|slab 256 B|free|slab 1 KiB|free|...        slab  |slot|slot|slot|...
 *
 * 30 classes: steps of 256 bytes up to 4 KiB, eight a doubling up to 8 KiB, then the sixth to the half of a slab. A
 * slot's word (owner, bytes asked, mark) lies beside the slab on the host, never on the device.
 *
 * A span lies on a page boundary and in one page, so that it pins no page without a live byte. An empty slab goes back
 * to its span at once, an empty span becomes a hole at once; the threads' magazines keep this from happening too often.
 */
#include "pool/blocks.h"
#include "pool/slab.h"

#include "base/error.h"

#include <string.h>

#define SHAPE(units)                                                                                                   \
    {                                                                                                                  \
        (units) * MF_UNIT, ((UINT32_C(1) << 24) + (units)-1) / (units), MF_SLAB / ((units)*MF_UNIT)                    \
    }
const mf_slab_shape mf_slab_shapes[MF_CLASSES] = {
    SHAPE(1),  SHAPE(2),  SHAPE(3),  SHAPE(4),  SHAPE(5),  SHAPE(6),  SHAPE(7),  SHAPE(8),  SHAPE(9),  SHAPE(10),
    SHAPE(11), SHAPE(12), SHAPE(13), SHAPE(14), SHAPE(15), SHAPE(16), SHAPE(18), SHAPE(20), SHAPE(22), SHAPE(24),
    SHAPE(26), SHAPE(28), SHAPE(30), SHAPE(32), SHAPE(36), SHAPE(42), SHAPE(51), SHAPE(64), SHAPE(85), SHAPE(128),
};

uint32_t mf_class_bytes(unsigned size_class)
{
    return mf_slab_shapes[size_class].slot_bytes;
}

void mf_classes_init(memfit_pool *pool)
{
    unsigned c = 0;
    for (unsigned bytes = 0; bytes <= MF_SMALL_MOST; bytes += MF_UNIT) {
        while (mf_slab_shapes[c].slot_bytes < bytes)
            c++;
        pool->class_of[bytes / MF_UNIT] = (unsigned char)c;
    }
}

/* ---- spans -------------------------------------------------------------------------------------------------- */

static void link_span(mf_lane *lane, mf_span *span)
{
    span->before = NULL;
    span->after = lane->spans;
    if (lane->spans)
        lane->spans->before = span;
    lane->spans = span;
}

static void unlink_span(mf_lane *lane, mf_span *span)
{
    if (span->after)
        span->after->before = span->before;
    if (span->before)
        span->before->after = span->after;
    else
        lane->spans = span->after;
}

static uint32_t all_slabs(const memfit_pool *pool)
{
    unsigned slabs = (unsigned)(pool->span_bytes / MF_SLAB);
    return slabs == 32 ? UINT32_MAX : (UINT32_C(1) << slabs) - 1;
}

static mf_span *new_span(memfit_pool *pool, unsigned lane, bool grow_soft, memfit_error *err)
{
    mf_span *span = pool->unused_spans;
    if (span)
        pool->unused_spans = span->after;
    else
        span = MF_NEW(&pool->arena, mf_span);
    if (!span) {
        pool->refusal = MF_REFUSED_HOST;
        return NULL;
    }
    mf_block *block = mf_place(pool, pool->span_bytes, pool->span_bytes, lane, MF_SPAN, grow_soft, err);
    if (!block) {
        span->after = pool->unused_spans;
        pool->unused_spans = span;
        return NULL;
    }
    *span = (mf_span){.block = block, .lane = (uint8_t)lane};
    span->free_slabs = all_slabs(pool);
    block->span = span;
    block->lane = (uint8_t)lane;
    link_span(pool->lane[lane], span);
    return span;
}

/* ---- slabs -------------------------------------------------------------------------------------------------- */

static void link_slab(memfit_pool *pool, mf_slab *slab)
{
    mf_slab **first = &pool->lane[slab->lane]->partial[slab->size_class];
    slab->before = NULL;
    slab->after = *first;
    if (*first)
        (*first)->before = slab;
    *first = slab;
}

static void unlink_slab(memfit_pool *pool, mf_slab *slab)
{
    if (slab->after)
        slab->after->before = slab->before;
    if (slab->before)
        slab->before->after = slab->after;
    else
        pool->lane[slab->lane]->partial[slab->size_class] = slab->after;
}

/* Side by side, as they are made: the explanation walks over all of them. */
static mf_slab *new_slab_record(memfit_pool *pool, unsigned size_class)
{
    mf_slab *slab = pool->unused_slabs[size_class];
    if (slab) {
        pool->unused_slabs[size_class] = slab->after;
        return slab;
    }
    size_t bytes = sizeof *slab + mf_slab_shapes[size_class].slots * sizeof slab->word[0];
    bytes = (bytes + MF_SLAB_ALIGN - 1) & ~(size_t)(MF_SLAB_ALIGN - 1);
    char *left = pool->slab_records_end - pool->slab_records < (ptrdiff_t)bytes ? NULL : pool->slab_records;
    if (!left) {
        enum { AT_ONCE = 8192 };
        left = mf_arena_alloc(&pool->arena, AT_ONCE);
        if (!left)
            return NULL;
        pool->slab_records_end = left + AT_ONCE;
        left += -(uintptr_t)left & (MF_SLAB_ALIGN - 1);
    }
    pool->slab_records = left + bytes;
    return (mf_slab *)left;
}

static void drop_slab_record(memfit_pool *pool, mf_slab *slab)
{
    slab->after = pool->unused_slabs[slab->size_class];
    pool->unused_slabs[slab->size_class] = slab;
}

static mf_slab *new_slab(memfit_pool *pool, unsigned size_class, unsigned lane, bool grow_soft, memfit_error *err)
{
    mf_slab *slab = new_slab_record(pool, size_class);
    if (!slab) {
        pool->refusal = MF_REFUSED_HOST;
        return NULL;
    }
    slab->size_class = (uint16_t)size_class;
    mf_span *span = pool->lane[lane]->spans;
    if (!span)
        span = new_span(pool, lane, grow_soft, err);
    if (!span) {
        drop_slab_record(pool, slab);
        return NULL;
    }
    unsigned at = (unsigned)__builtin_ctz(span->free_slabs);
    span->free_slabs &= span->free_slabs - 1;
    if (!span->free_slabs)
        unlink_span(pool->lane[lane], span);
    span->slab[at] = slab;
    slab->start = span->block->start + at * (uint64_t)MF_SLAB;
    slab->slot_bytes = mf_class_bytes(size_class);
    slab->slots = slab->free = (uint16_t)mf_slab_shapes[size_class].slots;
    slab->lane = (uint8_t)lane;
    slab->span = span;
    memset(slab->free_bits, 0, sizeof slab->free_bits);
    for (unsigned i = 0; i < slab->slots; i++) {
        slab->free_bits[i / 64] |= UINT64_C(1) << (i % 64);
        mf_slot_store(slab, i, 0);
    }
    link_slab(pool, slab);
    pool->slab_free_bytes += MF_SLAB;
    pool->slab_bytes += MF_SLAB;
    mf_cell_store(pool, slab->start, mf_slab_cell(slab));
    return slab;
}

static void drop_slab(memfit_pool *pool, mf_slab *slab)
{
    mf_span *span = slab->span;
    unsigned lane = slab->lane, at = (unsigned)((slab->start - span->block->start) / MF_SLAB);
    mf_cell_store(pool, slab->start, 0);
    unlink_slab(pool, slab);
    pool->slab_free_bytes -= MF_SLAB;
    pool->slab_bytes -= MF_SLAB;
    drop_slab_record(pool, slab);
    span->slab[at] = NULL;
    if (!span->free_slabs)
        link_span(pool->lane[lane], span);
    span->free_slabs |= UINT32_C(1) << at;
    if (span->free_slabs != all_slabs(pool))
        return;
    unlink_span(pool->lane[lane], span);
    mf_block *block = span->block;
    span->after = pool->unused_spans;
    pool->unused_spans = span;
    mf_block_drop(pool, block, lane, pool->lane[lane]->clock.serial);
}

/* ---- slots -------------------------------------------------------------------------------------------------- */

bool mf_slab_take(memfit_pool *pool, unsigned size_class, unsigned lane, bool grow_soft, mf_slot_ref *ref,
                  memfit_error *err)
{
    mf_slab *slab = pool->lane[lane]->partial[size_class];
    if (!slab && lane)
        slab = pool->lane[0]->partial[size_class]; /* of a stream that is gone: safe for all */
    if (!slab)
        slab = new_slab(pool, size_class, lane, grow_soft, err);
    if (!slab)
        return false;
    unsigned word = 0;
    while (!slab->free_bits[word])
        word++;
    unsigned index = word * 64 + (unsigned)__builtin_ctzll(slab->free_bits[word]);
    slab->free_bits[word] &= slab->free_bits[word] - 1;
    if (!--slab->free)
        unlink_slab(pool, slab);
    pool->slab_free_bytes -= slab->slot_bytes;
    *ref = (mf_slot_ref){slab, index};
    return true;
}

void mf_slab_give(memfit_pool *pool, mf_slot_ref ref)
{
    mf_slab *slab = ref.slab;
    slab->free_bits[ref.index / 64] |= UINT64_C(1) << (ref.index % 64);
    if (!slab->free++)
        link_slab(pool, slab);
    pool->slab_free_bytes += slab->slot_bytes;
    if (slab->free == slab->slots)
        drop_slab(pool, slab);
}
