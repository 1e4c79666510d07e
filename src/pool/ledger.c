/*
 * ledger.c: who holds what. Every block has an owner, every owner a kind; three accounts move with each block: the
 * owner's, the kind's and the total.
 *
 * The pool's accounts change under its lock. What a thread does in its cache goes to tallies of its own: the change
 * since the last fold, and the highest it stood. Folding makes
 *
 *     peak = max(peak, now + top)      now += change      top = change = 0
 *
 * Whenever a thread takes the pool's lock for an owner it folds that owner's three tallies first. So with one thread
 * every account passes through every value it really had, and peaks are exact. With several the sum of "now" is exact.
 * A thread whose tally of an owner rises by 64 KiB folds it, and before the total reaches a new peak the tallies of
 * threads that have freed more than that are folded in: so the total's peak is off by 64 KiB a thread at most. An
 * owner's or a kind's may be too high by what other threads have freed and keep.
 */
#include "pool/cache.h"
#include "pool/calls.h"
#include "pool/ledger.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- owners ------------------------------------------------------------------------------------------------- */

static uint64_t hash_owner(memfit_kind kind, const char *name)
{
    uint64_t h = 1469598103934665603u ^ (uint64_t)kind;
    for (size_t i = 0; i < 63 && name[i]; i++)
        h = (h ^ (unsigned char)name[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static bool same_owner(const mf_owner *o, memfit_kind kind, const char *name)
{
    return o->kind == kind && !strncmp(o->name, name, sizeof o->name - 1);
}

static uint32_t *find_entry(uint32_t *table, size_t size, const memfit_pool *pool, memfit_kind kind, const char *name)
{
    size_t i = (size_t)hash_owner(kind, name) & (size - 1);
    while (table[i] && !same_owner(mf_owner_at(pool, table[i] - 1), kind, name))
        i = (i + 1) & (size - 1);
    return &table[i];
}

static bool grow_table(memfit_pool *pool)
{
    size_t size = pool->owner_table_size ? pool->owner_table_size * 2 : 64;
    uint32_t *table = mf_host_zalloc(pool->host, size * sizeof *table);
    if (!table)
        return false;
    for (uint32_t i = 0; i < pool->owner_count; i++) {
        const mf_owner *o = mf_owner_at(pool, i);
        *find_entry(table, size, pool, o->kind, o->name) = i + 1;
    }
    mf_host_free(pool->host, pool->owner_table, pool->owner_table_size * sizeof *table);
    pool->host_bytes += (size - pool->owner_table_size) * sizeof *table;
    pool->owner_table = table;
    pool->owner_table_size = size;
    return true;
}

static memfit_status add_owner(memfit_pool *pool, memfit_kind kind, const char *name, uint32_t *out, memfit_error *err)
{
    uint32_t id = pool->owner_count;
    if (id == MF_OWNERS_MOST)
        return mf_fail(err, MEMFIT_INVALID, "pool %s: no more than %d owners\nName layers or call sites, not steps",
                       pool->name, MF_OWNERS_MOST);
    if (id * 2 >= pool->owner_table_size && !grow_table(pool))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for an owner", pool->name);
    mf_owner **chunk = &pool->owner_chunk[id / MF_OWNER_CHUNK];
    if (!*chunk)
        *chunk = MF_NEW_ARRAY(&pool->arena, mf_owner, MF_OWNER_CHUNK);
    if (!*chunk)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for an owner", pool->name);
    mf_owner *o = mf_owner_at(pool, id);
    o->kind = kind;
    strncpy(o->name, name, sizeof o->name - 1);
    *find_entry(pool->owner_table, pool->owner_table_size, pool, kind, name) = id + 1;
    atomic_store_explicit(&pool->owner_count, id + 1, memory_order_release);
    *out = id;
    return MEMFIT_OK;
}

void mf_ledger_set_mark(memfit_pool *pool, uint64_t mark)
{
    uint64_t slots = mark < MF_SLOT_MARK_MOST ? mark : MF_SLOT_MARK_MOST;
    uint64_t blocks = mark < UINT32_MAX ? mark : UINT32_MAX;
    atomic_store_explicit(&pool->slot_bits, MF_SLOT_LIVE | slots << MF_SLOT_MARK_SHIFT, memory_order_relaxed);
    atomic_store_explicit(&pool->tag_bits, blocks << 32, memory_order_relaxed);
}

memfit_status mf_ledger_init(memfit_pool *pool, memfit_error *err)
{
    uint32_t unnamed;
    mf_ledger_set_mark(pool, 0);
    return add_owner(pool, MEMFIT_KIND_OTHER, "unnamed", &unnamed, err);
}

void mf_ledger_end(memfit_pool *pool)
{
    mf_host_free(pool->host, pool->owner_table, pool->owner_table_size * sizeof *pool->owner_table);
    pool->owner_table = NULL;
    pool->owner_table_size = 0;
}

memfit_status memfit_pool_owner(memfit_pool *pool, memfit_kind kind, const char *name, memfit_owner *owner,
                                memfit_error *err)
{
    if ((unsigned)kind >= MEMFIT_KIND_COUNT || !name || !owner)
        return mf_fail(err, MEMFIT_INVALID, "pool owner: %s", name && owner ? "no such kind" : "NULL");
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    char known[sizeof((mf_owner *)0)->name];
    mf_utf8_copy(known, sizeof known, name);
    uint32_t id = *find_entry(pool->owner_table, pool->owner_table_size, pool, kind, known);
    if (id)
        *owner = id - 1;
    else
        status = add_owner(pool, kind, known, owner, err);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

/* ---- accounts ----------------------------------------------------------------------------------------------- */

static void account_add(mf_account *a, uint64_t bytes)
{
    a->now += bytes;
    a->allocations++;
    if (a->now > a->peak)
        a->peak = a->now;
}

static void account_sub(mf_account *a, uint64_t bytes)
{
    a->now -= bytes;
    a->frees++;
}

/* Have other threads freed so much that what looks like a new peak may be none? */
static bool others_freed(memfit_pool *pool)
{
    for (mf_cache *c = pool->caches; c; c = c->next)
        if (atomic_load_explicit(&c->total.now, memory_order_relaxed) < -MF_DRIFT)
            return true;
    return false;
}

void mf_ledger_add(memfit_pool *pool, uint32_t owner, uint64_t bytes)
{
    if (pool->total.now + bytes > pool->total.peak && others_freed(pool))
        mf_ledger_fold_all(pool);
    mf_owner *o = mf_owner_at(pool, owner);
    account_add(&o->account, bytes);
    account_add(&pool->kind[o->kind], bytes);
    account_add(&pool->total, bytes);
}

void mf_ledger_sub(memfit_pool *pool, uint32_t owner, uint64_t bytes)
{
    mf_owner *o = mf_owner_at(pool, owner);
    account_sub(&o->account, bytes);
    account_sub(&pool->kind[o->kind], bytes);
    account_sub(&pool->total, bytes);
}

static void fold(mf_account *a, mf_tally *t)
{
    int64_t now = atomic_load_explicit(&t->now, memory_order_relaxed);
    int64_t top = atomic_load_explicit(&t->top, memory_order_relaxed);
    int64_t high = (int64_t)a->now + top;
    if (high > 0 && (uint64_t)high > a->peak)
        a->peak = (uint64_t)high;
    a->now = (uint64_t)((int64_t)a->now + now);
    atomic_store_explicit(&t->now, 0, memory_order_relaxed);
    atomic_store_explicit(&t->top, 0, memory_order_relaxed);
}

static void fold_owner(memfit_pool *pool, mf_owner *o, mf_owner_tally *t)
{
    uint64_t allocations = atomic_load_explicit(&t->allocations, memory_order_relaxed);
    uint64_t frees = atomic_load_explicit(&t->frees, memory_order_relaxed);
    if (!allocations && !frees)
        return;
    fold(&o->account, &t->bytes);
    mf_account *all[] = {&o->account, &pool->kind[o->kind], &pool->total};
    for (unsigned i = 0; i < 3; i++) {
        all[i]->allocations += allocations;
        all[i]->frees += frees;
    }
    atomic_store_explicit(&t->allocations, 0, memory_order_relaxed);
    atomic_store_explicit(&t->frees, 0, memory_order_relaxed);
}

void mf_ledger_fold_one(memfit_pool *pool, mf_cache *cache, uint32_t owner)
{
    mf_owner *o = mf_owner_at(pool, owner);
    if (owner < cache->owner_known)
        fold_owner(pool, o, &cache->owner[owner]);
    fold(&pool->kind[o->kind], &cache->kind[o->kind]);
    fold(&pool->total, &cache->total);
}

void mf_ledger_fold(memfit_pool *pool, mf_cache *cache)
{
    for (uint32_t i = 0; i < cache->owner_known; i++)
        fold_owner(pool, mf_owner_at(pool, i), &cache->owner[i]);
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        fold(&pool->kind[k], &cache->kind[k]);
    fold(&pool->total, &cache->total);
}

static void fold_cache(memfit_pool *pool, mf_cache *cache, void *unused)
{
    (void)unused;
    mf_ledger_fold(pool, cache);
}

void mf_ledger_fold_all(memfit_pool *pool)
{
    mf_caches_each(pool, fold_cache, NULL);
}

memfit_status memfit_pool_reset_peaks(memfit_pool *pool, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_ledger_fold_all(pool);
    for (uint32_t i = 0; i < pool->owner_count; i++)
        mf_owner_at(pool, i)->account.peak = mf_owner_at(pool, i)->account.now;
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        pool->kind[k].peak = pool->kind[k].now;
    pool->total.peak = pool->total.now;
    pool->pages.reserved_peak = pool->pages.reserved;
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

/* ---- lists of owners: written straight into the caller's array, largest first, without allocating ------------- */

static memfit_owner_info describe(const memfit_pool *pool, uint32_t id)
{
    const mf_owner *o = mf_owner_at(pool, id);
    memfit_owner_info info = {.owner = id,
                              .kind = o->kind,
                              .bytes = o->account.now,
                              .peak_bytes = o->account.peak,
                              .blocks = o->account.allocations - o->account.frees,
                              .allocations = o->account.allocations,
                              .grown_marks = o->grown};
    memcpy(info.name, o->name, sizeof info.name);
    return info;
}

static bool comes_before(const memfit_owner_info *a, const memfit_owner_info *b)
{
    return a->bytes != b->bytes ? a->bytes > b->bytes : a->owner < b->owner;
}

/* The caller's array, whose elements may be longer or shorter than ours. */
typedef struct owner_list {
    memfit_owner_info *list;
    size_t stride, most, kept;
} owner_list;

static memfit_status list_sane(const owner_list *l, const size_t *count, memfit_error *err)
{
    if (!count || (l->most && (!l->list || l->stride < offsetof(memfit_owner_info, reserved))))
        return mf_fail(err, MEMFIT_INVALID, "list of owners: NULL, or a stride of %zu", l->stride);
    return MEMFIT_OK;
}

static memfit_owner_info *element(const owner_list *l, size_t i)
{
    return (memfit_owner_info *)((char *)l->list + i * l->stride);
}

/* Keeps the largest of what is offered, sorted by insertion. */
static void offer(owner_list *l, const memfit_owner_info *info)
{
    if (!l->most || (l->kept == l->most && !comes_before(info, element(l, l->most - 1))))
        return;
    size_t at = l->kept < l->most ? l->kept++ : l->most - 1;
    while (at && comes_before(info, element(l, at - 1))) {
        memcpy(element(l, at), element(l, at - 1), l->stride);
        at--;
    }
    mf_abi_put(l->list, l->stride, at, info, sizeof *info);
}

static memfit_status list_owners(memfit_pool *pool, bool live_only, owner_list l, size_t *count, memfit_error *err)
{
    memfit_status status = list_sane(&l, count, err);
    if (!status)
        status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_ledger_fold_all(pool);
    size_t n = 0;
    for (uint32_t i = 0; i < pool->owner_count; i++) {
        memfit_owner_info info = describe(pool, i);
        if (live_only && !info.blocks)
            continue;
        n++;
        offer(&l, &info);
    }
    pthread_mutex_unlock(&pool->lock);
    *count = n;
    return MEMFIT_OK;
}

memfit_status memfit_pool_owners(memfit_pool *pool, memfit_owner_info *list, size_t stride, size_t most, size_t *count,
                                 memfit_error *err)
{
    return list_owners(pool, false, (owner_list){list, stride, most, 0}, count, err);
}

memfit_status memfit_pool_leaks(memfit_pool *pool, memfit_owner_info *list, size_t stride, size_t most, size_t *count,
                                memfit_error *err)
{
    return list_owners(pool, true, (owner_list){list, stride, most, 0}, count, err);
}

void mf_ledger_report_leaks(memfit_pool *pool)
{
    enum { MOST = 64 };
    memfit_owner_info list[MOST];
    owner_list l = {list, sizeof *list, MOST, 0};
    pthread_mutex_lock(&pool->lock);
    mf_ledger_fold_all(pool);
    for (uint32_t i = 0; i < pool->owner_count; i++) {
        memfit_owner_info info = describe(pool, i);
        if (info.blocks)
            offer(&l, &info);
    }
    pthread_mutex_unlock(&pool->lock); /* it may ask the pool */
    if (l.kept && pool->options.on_leak)
        pool->options.on_leak(pool->options.on_leak_ctx, list, l.kept);
}

/* ---- marks -------------------------------------------------------------------------------------------------- */

memfit_status memfit_pool_mark(memfit_pool *pool, uint64_t *mark, memfit_error *err)
{
    memfit_status status = mf_pool_enter(pool, err);
    if (status)
        return status;
    mf_ledger_fold_all(pool);
    for (uint32_t i = 0; i < pool->owner_count; i++) {
        mf_owner *o = mf_owner_at(pool, i);
        o->grown = o->account.now > o->at_mark ? o->grown + 1 : 0;
        o->at_mark = o->account.now;
    }
    uint64_t number = atomic_fetch_add_explicit(&pool->marks, 1, memory_order_relaxed) + 1;
    mf_ledger_set_mark(pool, number);
    if (mark)
        *mark = number;
    mf_pool_tell(pool, &(mf_pool_event){.op = MF_POOL_MARK, .bytes = number});
    pthread_mutex_unlock(&pool->lock);
    return MEMFIT_OK;
}

typedef struct since {
    uint64_t mark;
    memfit_owner_info *list; /* one an owner, by number */
} since;

static bool add_since(void *ctx, const memfit_block_info *block)
{
    since *s = ctx;
    if (block->mark >= s->mark) {
        s->list[block->owner].bytes += block->bytes;
        s->list[block->owner].blocks++;
    }
    return true;
}

memfit_status memfit_pool_growth(memfit_pool *pool, uint64_t mark, memfit_owner_info *list, size_t stride, size_t most,
                                 size_t *count, memfit_error *err)
{
    owner_list l = {list, stride, most, 0};
    memfit_status status = list_sane(&l, count, err);
    if (!status)
        status = mf_pool_enter(pool, err);
    if (status)
        return status;
    uint32_t owners = pool->owner_count;
    since s = {mark, mf_host_zalloc(pool->host, owners * sizeof *s.list)};
    if (!s.list) {
        pthread_mutex_unlock(&pool->lock);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory for the list", pool->name);
    }
    mf_ledger_fold_all(pool);
    mf_pool_walk_blocks_locked(pool, add_since, &s);
    size_t n = 0;
    for (uint32_t i = 0; i < owners; i++) {
        if (!s.list[i].blocks)
            continue;
        memfit_owner_info info = describe(pool, i);
        info.bytes = s.list[i].bytes;
        info.blocks = s.list[i].blocks;
        n++;
        offer(&l, &info);
    }
    mf_host_free(pool->host, s.list, owners * sizeof *s.list);
    pthread_mutex_unlock(&pool->lock);
    *count = n;
    return MEMFIT_OK;
}
