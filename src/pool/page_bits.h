/* page_bits.h: the tables of pages, for pages.c; what the rest of the pool asks of them is in state.h. */
#ifndef MF_POOL_PAGE_BITS_H
#define MF_POOL_PAGE_BITS_H

#include "pool/state.h"

static inline bool mf_bit(const uint64_t *bits, uint64_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}
size_t mf_bits_bytes(uint64_t pages);                 /* of the tables for so many */
bool mf_bits_cover(memfit_pool *pool, uint64_t past); /* makes them reach so far; false: no host memory, as before */
uint64_t mf_bits_count_idle(const memfit_pool *pool, uint64_t first, uint64_t past);
uint64_t mf_bits_highest_idle(memfit_pool *pool, uint64_t below);                        /* MF_BEYOND: none */
uint64_t mf_bits_highest_shadow(const memfit_pool *pool, uint64_t first, uint64_t past); /* MF_BEYOND: none */
uint64_t mf_bits_highest_mapped(const memfit_pool *pool, uint64_t first, uint64_t past); /* MF_BEYOND: none */
/* Pages of a place that are neither mapped nor have an old mapping. */
uint64_t mf_bits_bare(const memfit_pool *pool, uint64_t start, uint64_t bytes);
static inline uint64_t mf_bit_bare(const mf_pages *p, uint64_t page) /* one of them */
{
    return page >= p->covered || !(mf_bit(p->mapped, page) || mf_bit(p->shadowed, page));
}
void mf_bits_set_shadow(memfit_pool *pool, uint64_t first, uint64_t past, bool on);

#endif
