/*
 * cache.c: what a thread has at hand, so that most requests take no lock: for each small size a magazine of free slots,
 * and a few larger blocks it has just freed.
 *
 *   magazines   A slot in a magazine is taken as far as its slab is concerned. A thread frees into its own magazine
 *               whatever thread the slot came from. When a magazine is empty half of it is filled from the slabs, when
 *               it is full half of it goes back.
 *   kept        A kept block is where it was, in the list and in the table; its word says that it is free. Only a
 *               request of exactly its size can have it, so nothing is cut and nothing is wasted. Whatever takes the
 *               pool's lock gives back first what its own thread keeps: with one thread every placement sees the same
 *               holes as without caches, in the same order. Other threads' blocks are given back before pages are made
 *               or moved for a request, and before anything is counted.
 *
 * A cache is entered by its thread a few hundred million times a second and by others hardly ever, so it has a lock
 * with one side that is nearly free: the thread stores `busy`, then looks at `wanted`; the other stores `wanted`, makes
 * every running thread pass a memory barrier (a system call), then waits until not `busy`. Either the thread sees that
 * it is wanted, or the other sees that it is busy. Where the system has no such call the thread's side needs a fence.
 * The other holds the pool's lock; a thread that finds itself wanted waits for that lock, not here.
 *
 * A cache belongs to a thread by a pthread key of the pool; when the thread ends, everything goes back and the cache
 * waits for the next thread. Without a key (the system has 1,024) a pool works without caches.
 *
 * Measured: the spin lock each cache had before (an exchange) was half of a hot pair's 21 ns.
 */
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/ledger.h"
#include "pool/slab.h"

#include "base/os.h"

#include <string.h>

enum { MAGAZINE_BYTES = 65536, LINE = 64 };

void mf_caches_init(memfit_pool *pool)
{
    pool->fenced = !mf_os_barrier_ready();
    if (pool->options.no_thread_caches || pool->debug || pthread_key_create(&pool->key, mf_cache_detach))
        return;
    pool->have_key = true;
    atomic_store(&pool->cached, true);
    atomic_store(&pool->keeps, true);
}

static uint32_t magazine_size(unsigned size_class)
{
    uint32_t n = MAGAZINE_BYTES / mf_class_bytes(size_class);
    return n > MF_MAGAZINE ? MF_MAGAZINE : n;
}

static size_t cache_bytes(void)
{
    size_t items = 0;
    for (unsigned c = 0; c < MF_CLASSES; c++)
        items += magazine_size(c);
    return sizeof(mf_cache) + items * sizeof(mf_at_hand) + 2 * LINE; /* no line is shared with another thread's */
}

static mf_cache *new_cache(memfit_pool *pool)
{
    void *memory = mf_host_zalloc(pool->device->host, cache_bytes()); /* it may outlive the pool */
    if (!memory)
        return NULL;
    mf_cache *cache = (mf_cache *)(((uintptr_t)memory + LINE - 1) & ~(uintptr_t)(LINE - 1));
    cache->memory = memory;
    cache->pool = pool;
    mf_at_hand *item = cache->items;
    for (unsigned c = 0; c < MF_CLASSES; c++) {
        cache->magazine[c] = (mf_magazine){.most = magazine_size(c), .item = item};
        item += magazine_size(c);
    }
    cache->next = pool->caches;
    pool->caches = cache;
    pool->host_bytes += cache_bytes();
    return cache;
}

static void show(memfit_pool *pool, mf_cache *cache)
{
    uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
    atomic_store_explicit(&cache->thread, thread, memory_order_relaxed);
    atomic_store_explicit(&pool->cache_at[(thread >> 6) * 0x9e3779b97f4a7c15u >> (64 - 6)], cache,
                          memory_order_release);
}

mf_cache *mf_cache_find(memfit_pool *pool)
{
    mf_cache *cache = pool->have_key ? pthread_getspecific(pool->key) : NULL;
    if (cache) /* another thread's has taken its place in the table */
        show(pool, cache);
    return cache;
}

mf_cache *mf_cache_attach(memfit_pool *pool)
{
    mf_cache *found = mf_cache_find(pool);
    if (found)
        return found;
    pthread_mutex_lock(&pool->lock);
    mf_cache *cache = pool->caches;
    while (cache && cache->in_use)
        cache = cache->next;
    if (!cache)
        cache = new_cache(pool);
    if (cache && pthread_setspecific(pool->key, cache))
        cache = NULL;
    if (cache) {
        cache->in_use = true;
        show(pool, cache);
    }
    pthread_mutex_unlock(&pool->lock);
    return cache;
}

/* ---- other threads' caches ---------------------------------------------------------------------------------- */

/* Calls fn inside every cache. */
void mf_caches_each(memfit_pool *pool, void (*fn)(memfit_pool *pool, mf_cache *cache, void *ctx), void *ctx)
{
    mf_cache *mine = mf_cache_mine(pool);
    bool others = false;
    for (mf_cache *c = pool->caches; c; c = c->next)
        if (c->in_use && c != mine) {
            atomic_store_explicit(&c->wanted, true, memory_order_relaxed);
            others = true;
        }
    if (others)
        atomic_thread_fence(memory_order_seq_cst);
    if (others && !pool->fenced)
        mf_os_barrier();
    for (mf_cache *c = pool->caches; c; c = c->next) {
        if (c == mine)
            mf_cache_enter(pool, c);
        else
            for (unsigned i = 1; atomic_load_explicit(&c->busy, memory_order_acquire); i++)
                if (i % 64 == 0)
                    mf_os_yield();
        fn(pool, c, ctx);
        if (c == mine)
            mf_cache_leave(c);
        else
            atomic_store_explicit(&c->wanted, false, memory_order_release);
    }
}

/* ---- giving back -------------------------------------------------------------------------------------------- */

static void give_blocks(memfit_pool *pool, mf_cache *cache, void *unused)
{
    (void)unused;
    uint32_t count = atomic_load_explicit(&cache->kept_count, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) /* in the order they were freed */
        mf_block_give(pool, cache->kept[i].block, 0);
    atomic_store_explicit(&cache->kept_count, 0, memory_order_relaxed);
}

void mf_cache_flush(memfit_pool *pool, mf_cache *cache, void *unused)
{
    give_blocks(pool, cache, unused);
    for (unsigned c = 0; c < MF_CLASSES; c++) {
        mf_magazine *m = &cache->magazine[c];
        while (m->count)
            mf_slab_give(pool, mf_slot_of(pool, &m->item[--m->count]));
    }
    mf_ledger_fold(pool, cache);
}

void mf_cache_settle(memfit_pool *pool, uint32_t owner)
{
    mf_cache *cache = mf_cache_mine(pool);
    if (!cache)
        return;
    mf_cache_enter(pool, cache);
    uint32_t count = atomic_load_explicit(&cache->kept_count, memory_order_relaxed);
    if (count) { /* its neighbours are wanted next, and lie all over the memory. (Not when it is freed: they may be the
                    blocks that other threads are at work with.) */
        __builtin_prefetch(cache->kept[0].block->before, 1);
        __builtin_prefetch(cache->kept[0].block->after, 1);
    }
    mf_ledger_fold_one(pool, cache, owner);
    if (count)
        give_blocks(pool, cache, NULL);
    mf_cache_leave(cache);
}

bool mf_caches_keep(const memfit_pool *pool)
{
    for (mf_cache *c = pool->caches; c; c = c->next)
        if (atomic_load_explicit(&c->kept_count, memory_order_relaxed))
            return true;
    return false;
}

bool mf_caches_settle(memfit_pool *pool)
{
    bool any = mf_caches_keep(pool);
    if (any) {
        mf_caches_each(pool, give_blocks, NULL);
        pool->settles++;
    }
    return any;
}

void mf_caches_reclaim(memfit_pool *pool)
{
    mf_caches_each(pool, mf_cache_flush, NULL);
}

/* Called by the system when a thread ends: maybe while its pool ends, or in a child of fork. */
void mf_cache_detach(void *value)
{
    mf_cache *cache = value;
    memfit_pool *pool = cache->pool;
    if (atomic_load(&pool->magic) != MF_POOL_ALIVE)
        return;
    pthread_mutex_lock(&pool->lock);
    if (atomic_load(&pool->magic) != MF_POOL_ALIVE) {
        pthread_mutex_unlock(&pool->lock);
        return;
    }
    mf_cache_enter(pool, cache);
    mf_cache_flush(pool, cache, NULL);
    mf_cache_leave(cache);
    cache->in_use = false;
    atomic_store_explicit(&cache->thread, 0, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
}

void mf_caches_drop_idle(memfit_pool *pool)
{
    for (mf_cache **at = &pool->caches; *at;) {
        mf_cache *c = *at;
        mf_host_free(pool->host, c->owner, c->owner_capacity * sizeof *c->owner);
        c->owner = NULL;
        if (c->in_use) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        mf_host_free(pool->device->host, c->memory, cache_bytes());
    }
}

void mf_caches_end(memfit_pool *pool, const memfit_host *host)
{
    while (pool->caches) {
        mf_cache *c = pool->caches;
        pool->caches = c->next;
        mf_host_free(host, c->memory, cache_bytes());
    }
}

/* ---- accounts ----------------------------------------------------------------------------------------------- */

/* Room for the tallies of all owners there are. */
static bool reserve_tallies(memfit_pool *pool, mf_cache *cache, uint32_t owners)
{
    if (owners <= cache->owner_capacity)
        return true;
    uint32_t more = cache->owner_capacity ? cache->owner_capacity : 32;
    while (more < owners)
        more *= 2;
    mf_owner_tally *tallies = mf_host_zalloc(pool->host, more * sizeof *tallies);
    if (!tallies)
        return false;
    mf_cache_enter(pool, cache);
    mf_ledger_fold(pool, cache); /* they start from nothing again */
    mf_owner_tally *old = cache->owner;
    uint32_t old_capacity = cache->owner_capacity;
    cache->owner = tallies;
    cache->owner_capacity = more;
    cache->owner_known = 0;
    mf_cache_leave(cache);
    mf_host_free(pool->host, old, old_capacity * sizeof *old);
    pool->host_bytes += (more - old_capacity) * sizeof *tallies;
    return true;
}

void mf_cache_meet_owners(memfit_pool *pool, mf_cache *cache)
{
    uint32_t owners = atomic_load_explicit(&pool->owner_count, memory_order_relaxed);
    if (!reserve_tallies(pool, cache, owners))
        return;
    for (uint32_t i = cache->owner_known; i < owners; i++)
        cache->owner[i].kind = mf_owner_at(pool, i)->kind;
    cache->owner_known = owners;
}

static void add_bytes(memfit_pool *pool, mf_cache *cache, void *ctx)
{
    (void)pool;
    for (unsigned k = 0; k < MF_CLASSES; k++)
        *(uint64_t *)ctx += (uint64_t)cache->magazine[k].count * mf_class_bytes(k);
}

uint64_t mf_caches_bytes(memfit_pool *pool)
{
    uint64_t bytes = 0;
    mf_caches_each(pool, add_bytes, &bytes);
    return bytes;
}
