/*
 * explain.c: why a request failed, in short: the figures and the largest owners.
 */
#include "pool/state.h"

#include "base/error.h"

#include <string.h>

memfit_status mf_explain_init(memfit_pool *pool, memfit_error *err)
{
    (void)pool, (void)err;
    return MEMFIT_OK;
}

void mf_explain_end(memfit_pool *pool)
{
    (void)pool;
}

static memfit_cause cause_of(const memfit_pool *pool)
{
    switch (pool->refusal) {
    case MF_REFUSED_BUDGET:
        return MEMFIT_CAUSE_OTHER_LOGICAL_DEVICE;
    case MF_REFUSED_DEVICE:
        return MEMFIT_CAUSE_TAKEN_BY_OTHERS;
    case MF_REFUSED_STREAM:
        return MEMFIT_CAUSE_PENDING_STREAM;
    default:
        return mf_lanes_pending_bytes(pool) ? MEMFIT_CAUSE_PENDING_STREAM : MEMFIT_CAUSE_LIMIT;
    }
}

memfit_status mf_pool_explain_failure(memfit_pool *pool, const mf_request *request, memfit_error *err)
{
    if (pool->refusal == MF_REFUSED_HOST)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool %s: no host memory to note a block of %llu bytes", pool->name,
                       (unsigned long long)request->bytes);
    char a[24], b[24], c[24];
    uint64_t reserved = pool->pages.reserved * pool->pages.bytes;
    mf_fail(err, MEMFIT_OUT_OF_MEMORY, "pool %s: %s asked by %s do not fit: limit %s, in use %s", pool->name,
            memfit_size_format(request->bytes, a, sizeof a), mf_owner_at(pool, request->owner)->name,
            memfit_size_format(pool->limit_bytes, b, sizeof b), memfit_size_format(pool->total.now, c, sizeof c));
    if (err) {
        err->cause = cause_of(pool);
        err->requested_bytes = request->bytes;
        err->limit_bytes = pool->limit_bytes;
        err->in_use_bytes = pool->total.now;
        err->reserved_bytes = reserved;
    }
    return MEMFIT_OUT_OF_MEMORY;
}
