/* slab.h: slab.c: slots of slabs, and how an address shows its own. */
#ifndef MF_POOL_SLAB_H
#define MF_POOL_SLAB_H

#include "pool/state.h"

void mf_classes_init(memfit_pool *pool);
uint32_t mf_class_bytes(unsigned size_class);
/* A slot of the class, from a slab of the lane; NULL when no slab can be made. */
bool mf_slab_take(memfit_pool *pool, unsigned size_class, unsigned lane, bool may_grow, mf_slot_ref *ref,
                  memfit_error *err);
void mf_slab_give(memfit_pool *pool, mf_slot_ref ref);
static inline uint32_t mf_slab_index(const mf_slab *slab, uint64_t offset)
{
    return (uint32_t)((offset / MF_UNIT * mf_slab_shapes[slab->size_class].inverse) >> 24);
}

static inline uint64_t mf_slot_live(const memfit_pool *pool, uint32_t owner, uint64_t asked) /* its word */
{
    return atomic_load_explicit(&pool->slot_bits, memory_order_relaxed) | (uint64_t)owner << 17 | asked;
}
static inline uint64_t mf_slot_offset(mf_slot_ref ref)
{
    return ref.slab->start + (uint64_t)ref.index * ref.slab->slot_bytes;
}
static inline uintptr_t mf_slab_cell(const mf_slab *slab)
{
    return (uintptr_t)slab + slab->size_class + 1;
}
static inline mf_slab *mf_cell_slab(uintptr_t cell)
{
    return (mf_slab *)(cell & ~(uintptr_t)(MF_SLAB_ALIGN - 1));
}
static inline unsigned mf_cell_class(uintptr_t cell)
{
    return (unsigned)(cell & (MF_SLAB_ALIGN - 1)) - 1;
}
/* The slot that begins at an offset in the slab of a cell; false: none. The slab itself is not looked at. */
static inline bool mf_slot_at(uintptr_t cell, uint64_t offset, mf_slot_ref *ref)
{
    const mf_slab_shape *shape = &mf_slab_shapes[mf_cell_class(cell)];
    uint32_t inside = (uint32_t)offset & (MF_SLAB - 1);
    uint32_t index = (uint32_t)((uint64_t)(inside / MF_UNIT) * shape->inverse >> 24);
    *ref = (mf_slot_ref){mf_cell_slab(cell), index};
    return index < shape->slots && index * shape->slot_bytes == inside;
}
/* The slot of a magazine's item. */
static inline mf_slot_ref mf_slot_of(memfit_pool *pool, const mf_at_hand *item)
{
    mf_slot_ref ref;
    mf_slot_at(mf_cell_load(pool, item->offset), item->offset, &ref);
    return ref;
}

#endif
