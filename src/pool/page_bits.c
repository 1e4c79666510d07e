/*
 * page_bits.c: three bits a page, mapped, idle and shadowed, and beside them whose handle it is and since when it is idle. They are
 * kept by the word: most blocks have all their pages in one, and a block of a gigabyte in eight.
 *
 *     pages     0 1 2 3 4 5 6 7 ...
 *     mapped    1 1 1 1 0 0 1 1        there is memory behind it
 *     idle      0 0 1 1 0 0 0 1        and nobody needs it there; never set where mapped is not
 *     shadowed  0 0 0 0 1 0 0 0        an old mapping is still to be undone (shadows.c); never set where mapped is
 *     top, idle_top                    nothing is set above
 *
 * The six tables are one piece of host memory. They grow by doubling, as far as the highest page ever mapped.
 */
#include "pool/page_bits.h"
#include "pool/pages.h"

#include <string.h>

/* The bits of a word that are of [first, past). */
static inline uint64_t mask_of(uint64_t word, uint64_t first, uint64_t past)
{
    uint64_t mask = word == first / 64 ? UINT64_MAX << (first % 64) : UINT64_MAX;
    return word == (past - 1) / 64 ? mask & UINT64_MAX >> (63 - (past - 1) % 64) : mask;
}

/* Without the instruction, which not every x86-64 has, the compiler calls a function. */
static inline uint64_t ones(uint64_t x)
{
    if (!x || x == UINT64_MAX)
        return x ? 64 : 0;
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56;
}

size_t mf_bits_bytes(uint64_t pages)
{
    return (size_t)(pages / 64 * 3 * sizeof(uint64_t) +
                    pages * (sizeof(mf_handle *) + sizeof(uint64_t) + sizeof(uint16_t)));
}

bool mf_bits_cover(memfit_pool *pool, uint64_t past)
{
    mf_pages *p = &pool->pages;
    if (past <= p->covered)
        return true;
    uint64_t more = p->covered ? p->covered : 1024;
    while (more < past)
        more *= 2;
    size_t words = (size_t)(more / 64), old = (size_t)(p->covered / 64);
    uint64_t *mapped = mf_host_zalloc(pool->host, mf_bits_bytes(more));
    if (!mapped)
        return false;
    uint64_t *idle = mapped + words;
    uint64_t *shadowed = idle + words;
    uint64_t *freed = shadowed + words;
    mf_handle **handle = (mf_handle **)(freed + more);
    uint16_t *alias = (uint16_t *)(handle + more);
    if (old) {
        memcpy(mapped, p->mapped, old * sizeof *mapped);
        memcpy(idle, p->idle, old * sizeof *idle);
        memcpy(shadowed, p->shadowed, old * sizeof *shadowed);
        memcpy(freed, p->freed, p->covered * sizeof *freed);
        memcpy(handle, p->handle, p->covered * sizeof *handle);
        memcpy(alias, p->alias, p->covered * sizeof *alias);
    }
    mf_host_free(pool->host, p->mapped, mf_bits_bytes(p->covered));
    pool->host_bytes += mf_bits_bytes(more) - mf_bits_bytes(p->covered);
    p->mapped = mapped;
    p->idle = idle;
    p->shadowed = shadowed;
    p->freed = freed;
    p->handle = handle;
    p->alias = alias;
    p->covered = more;
    return true;
}

/* Most blocks have pages in one word of the bitmaps only. */
static inline bool in_one_word(const mf_pages *p, uint64_t first, uint64_t past)
{
    return first / 64 == (past - 1) / 64 && past <= p->covered;
}

uint64_t mf_pages_missing(const memfit_pool *pool, uint64_t start, uint64_t bytes)
{
    const mf_pages *p = &pool->pages;
    uint64_t first = start >> p->shift, past = ((start + bytes - 1) >> p->shift) + 1;
    if (in_one_word(p, first, past)) {
        uint64_t gone = ~p->mapped[first / 64] & mask_of(first / 64, first, past);
        return gone ? ones(gone) : 0;
    }
    uint64_t missing = past > p->covered ? past - (first > p->covered ? first : p->covered) : 0;
    if (past > p->covered)
        past = p->covered;
    for (uint64_t w = first / 64; w * 64 < past; w++) {
        uint64_t gone = ~p->mapped[w] & mask_of(w, first, past);
        if (gone)
            missing += ones(gone);
    }
    return missing;
}

uint64_t mf_bits_count_idle(const memfit_pool *pool, uint64_t first, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    uint64_t count = 0;
    if (past > p->covered)
        past = p->covered;
    for (uint64_t w = first / 64; w * 64 < past; w++)
        count += ones(p->idle[w] & mask_of(w, first, past));
    return count;
}

void mf_pages_set_idle(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    bool stamps = mf_pages_stamped(pool);
    if (!stamps && in_one_word(p, first, past)) {
        uint64_t w = first / 64, more = p->mapped[w] & mask_of(w, first, past) & ~p->idle[w];
        p->idle[w] |= more;
        p->idle_count += ones(more);
        p->idle_top = more && w > p->idle_top ? w : p->idle_top;
        return;
    }
    if (past > p->covered)
        past = p->covered;
    for (uint64_t w = first / 64; w * 64 < past; w++) {
        uint64_t more = p->mapped[w] & mask_of(w, first, past) & ~p->idle[w];
        p->idle[w] |= more;
        p->idle_count += ones(more);
        if (more && w > p->idle_top)
            p->idle_top = w;
        while (more && stamps) { /* in runs: a large block has hundreds of pages */
            unsigned from = (unsigned)__builtin_ctzll(more), past_run = 64;
            if (~(more >> from))
                past_run = from + (unsigned)__builtin_ctzll(~(more >> from));
            for (unsigned i = from; i < past_run; i++)
                p->freed[w * 64 + i] = pool->frees_central;
            more = past_run < 64 ? more >> past_run << past_run : 0;
        }
    }
    mf_pages_note_free(pool);
}

void mf_pages_clear_idle(memfit_pool *pool, uint64_t first, uint64_t past)
{
    mf_pages *p = &pool->pages;
    if (in_one_word(p, first, past)) {
        uint64_t less = p->idle[first / 64] & mask_of(first / 64, first, past);
        if (!less)
            return;
        p->idle[first / 64] ^= less;
        p->idle_count -= ones(less);
    } else {
        if (past > p->covered)
            past = p->covered;
        for (uint64_t w = first / 64; w * 64 < past; w++) {
            uint64_t less = p->idle[w] & mask_of(w, first, past);
            p->idle[w] ^= less;
            p->idle_count -= ones(less);
        }
    }
    if (p->idle_count + p->spare_count < p->low_idle)
        p->low_idle = p->idle_count + p->spare_count;
}

uint64_t mf_bits_highest_idle(memfit_pool *pool, uint64_t below)
{
    mf_pages *p = &pool->pages;
    if (!p->covered || !below)
        return MF_BEYOND;
    uint64_t w = (below - 1) / 64;
    if (w > p->idle_top)
        w = p->idle_top;
    for (;; w--) {
        uint64_t bits = p->idle[w] & mask_of(w, 0, below);
        if (bits)
            return w * 64 + 63 - (uint64_t)__builtin_clzll(bits);
        if (w == p->idle_top && !p->idle[w] && w)
            p->idle_top--;
        if (!w)
            return MF_BEYOND;
    }
}

void mf_bits_set_shadow(memfit_pool *pool, uint64_t first, uint64_t past, bool on)
{
    for (uint64_t i = first; i < past; i++) {
        uint64_t bit = UINT64_C(1) << (i % 64), *word = &pool->pages.shadowed[i / 64];
        *word = on ? *word | bit : *word & ~bit;
    }
}

bool mf_shadows_over(const memfit_pool *pool, uint64_t first, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    if (past > p->covered)
        past = p->covered;
    for (uint64_t w = first / 64; p->shadow_count && first < past && w <= (past - 1) / 64; w++)
        if (p->shadowed[w] & mask_of(w, first, past))
            return true;
    return false;
}

/* Of [first, past), below what is covered. */
static uint64_t highest(const uint64_t *bits, uint64_t first, uint64_t past)
{
    for (uint64_t w = (past - 1) / 64 + 1; w-- > first / 64;) {
        uint64_t set = bits[w] & mask_of(w, first, past);
        if (set)
            return w * 64 + 63 - (uint64_t)__builtin_clzll(set);
    }
    return MF_BEYOND;
}

uint64_t mf_bits_highest_shadow(const memfit_pool *pool, uint64_t first, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    past = past < p->covered ? past : p->covered;
    return p->shadow_count && first < past ? highest(p->shadowed, first, past) : MF_BEYOND;
}

uint64_t mf_bits_highest_mapped(const memfit_pool *pool, uint64_t first, uint64_t past)
{
    const mf_pages *p = &pool->pages;
    past = past < p->top ? past : p->top;
    return first < past ? highest(p->mapped, first, past) : MF_BEYOND;
}

uint64_t mf_bits_bare(const memfit_pool *pool, uint64_t start, uint64_t bytes)
{
    const mf_pages *p = &pool->pages;
    uint64_t first = start >> p->shift, past = ((start + bytes - 1) >> p->shift) + 1;
    uint64_t bare = past > p->covered ? past - (first > p->covered ? first : p->covered) : 0;
    past = past < p->covered ? past : p->covered;
    for (uint64_t w = first / 64; w * 64 < past; w++) {
        uint64_t bits = ~(p->mapped[w] | p->shadowed[w]) & mask_of(w, first, past);
        bare += bits ? ones(bits) : 0;
    }
    return bare;
}

/* A page that another lane was the last to free is not known to be past. */
static uint64_t stamp_of(unsigned lane, uint64_t serial)
{
    _Static_assert(MF_LANES <= 256, "a lane is eight bits of a stamp");
    return serial << 8 | lane;
}

void mf_pages_stamp(memfit_pool *pool, uint64_t start, uint64_t end, unsigned lane, uint64_t serial)
{
    mf_pages *p = &pool->pages;
    uint64_t past = ((end - 1) >> p->shift) + 1;
    uint64_t stamp = stamp_of(lane, serial);
    for (uint64_t i = start >> p->shift; i < past && i < p->covered; i++)
        if ((p->freed[i] & 0xff) != lane ||
            p->freed[i] < stamp) /* a block that was held was freed before its neighbour */
            p->freed[i] = stamp;
}

bool mf_page_past(const memfit_pool *pool, uint64_t page, unsigned lane)
{
    uint64_t stamp = pool->pages.freed[page];
    return (stamp & 0xff) == lane && stamp <= stamp_of(lane, pool->lane[lane]->clock.safe);
}
