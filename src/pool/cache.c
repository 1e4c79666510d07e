/*
 * cache.c: a thread's magazines: for each small size a stack of free slots, so that most requests take no lock anyone
 * else wants.
 *
 * A slot in a magazine is taken as far as its slab is concerned. A thread frees into its own magazine whatever thread
 * the slot came from. When a magazine is empty half of it is filled from the slabs, when it is full half of it goes
 * back. Each cache has a lock that only its thread takes, except when the pool takes everything back because memory is
 * short, or someone asks for exact numbers.
 *
 * A cache belongs to a thread by a pthread key of the pool; when the thread ends, its slots go back and the cache waits
 * for the next thread. Without a key (the system has 1,024) a pool works without caches.
 */
#include "pool/state.h"

#include <string.h>

enum { MAGAZINE_BYTES = 65536 };

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
    return sizeof(mf_cache) + items * sizeof(mf_slot_ref);
}

static mf_cache *new_cache(memfit_pool *pool)
{
    mf_cache *cache = mf_host_zalloc(pool->host, cache_bytes());
    if (!cache)
        return NULL;
    atomic_flag_clear(&cache->busy);
    cache->pool = pool;
    mf_slot_ref *item = cache->items;
    for (unsigned c = 0; c < MF_CLASSES; c++) {
        cache->magazine[c] = (mf_magazine){.most = magazine_size(c), .item = item};
        item += magazine_size(c);
    }
    cache->next = pool->caches;
    pool->caches = cache;
    pool->host_bytes += cache_bytes();
    return cache;
}

/* The first call of a thread. */
mf_cache *mf_cache_attach(memfit_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    mf_cache *cache = pool->caches;
    while (cache && cache->in_use)
        cache = cache->next;
    if (!cache)
        cache = new_cache(pool);
    if (cache && pthread_setspecific(pool->key, cache))
        cache = NULL;
    if (cache)
        cache->in_use = true;
    pthread_mutex_unlock(&pool->lock);
    return cache;
}

void mf_cache_flush(memfit_pool *pool, mf_cache *cache)
{
    for (unsigned c = 0; c < MF_CLASSES; c++) {
        mf_magazine *m = &cache->magazine[c];
        while (m->count)
            mf_slab_give(pool, m->item[--m->count]);
    }
    mf_ledger_fold(pool, cache);
}

void mf_caches_reclaim(memfit_pool *pool)
{
    for (mf_cache *c = pool->caches; c; c = c->next) {
        mf_cache_lock(c);
        mf_cache_flush(pool, c);
        mf_cache_unlock(c);
    }
}

/* Called by the system when a thread ends. */
void mf_cache_detach(void *value)
{
    mf_cache *cache = value;
    memfit_pool *pool = cache->pool;
    pthread_mutex_lock(&pool->lock);
    mf_cache_lock(cache);
    mf_cache_flush(pool, cache);
    mf_cache_unlock(cache);
    cache->in_use = false;
    pthread_mutex_unlock(&pool->lock);
}

void mf_caches_end(memfit_pool *pool)
{
    while (pool->caches) {
        mf_cache *c = pool->caches;
        pool->caches = c->next;
        mf_host_free(pool->host, c->owner, c->owner_capacity * sizeof *c->owner);
        mf_host_free(pool->host, c, cache_bytes());
    }
}

bool mf_cache_grow_owners(memfit_pool *pool, mf_cache *cache, uint32_t owner)
{
    if (owner < cache->owner_capacity)
        return true;
    uint32_t more = cache->owner_capacity ? cache->owner_capacity : 32;
    while (more <= owner)
        more *= 2;
    mf_tally *tallies = mf_host_zalloc(pool->host, more * sizeof *tallies);
    if (!tallies)
        return false;
    mf_cache_lock(cache);
    mf_ledger_fold(pool, cache); /* they start from nothing again */
    mf_tally *old = cache->owner;
    uint32_t old_capacity = cache->owner_capacity;
    cache->owner = tallies;
    cache->owner_capacity = more;
    mf_cache_unlock(cache);
    mf_host_free(pool->host, old, old_capacity * sizeof *old);
    pool->host_bytes += (more - old_capacity) * sizeof *tallies;
    return true;
}

uint64_t mf_caches_bytes(memfit_pool *pool)
{
    uint64_t bytes = 0;
    for (mf_cache *c = pool->caches; c; c = c->next) {
        mf_cache_lock(c);
        for (unsigned k = 0; k < MF_CLASSES; k++)
            bytes += (uint64_t)c->magazine[k].count * mf_class_bytes(k);
        mf_cache_unlock(c);
    }
    return bytes;
}
