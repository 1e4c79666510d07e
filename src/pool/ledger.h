/* ledger.h: ledger.c: whose the bytes are. */
#ifndef MF_POOL_LEDGER_H
#define MF_POOL_LEDGER_H

#include "pool/state.h"

memfit_status mf_ledger_init(memfit_pool *pool, memfit_error *err);
void mf_ledger_end(memfit_pool *pool);
static inline mf_owner *mf_owner_at(const memfit_pool *pool, uint32_t owner)
{
    return &pool->owner_chunk[owner / MF_OWNER_CHUNK][owner % MF_OWNER_CHUNK];
}
void mf_ledger_add(memfit_pool *pool, uint32_t owner, uint64_t bytes); /* pool->lock held, this thread settled */
void mf_ledger_sub(memfit_pool *pool, uint32_t owner, uint64_t bytes);
void mf_ledger_fold(memfit_pool *pool, mf_cache *cache);                     /* all of a cache's, inside it */
void mf_ledger_fold_one(memfit_pool *pool, mf_cache *cache, uint32_t owner); /* this owner's, kind's and the total */
void mf_ledger_fold_all(memfit_pool *pool);                                  /* every cache's; pool->lock held */
void mf_ledger_report_leaks(memfit_pool *pool);
void mf_ledger_set_mark(memfit_pool *pool, uint64_t mark); /* for what is handed out from now on */

#endif
