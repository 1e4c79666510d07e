/* pools_vary.c: how much a pool hangs on chance: on workspaces that are known by a rule only, and on sizes (pools.h). */
#include "base/error.h"
#include "plan/frameworks/pools.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

/* Seen beside the rules for 1,429 convolutions on an H200: none in most, sums over parts of 1 to 16 MiB more, or up to 6
 * less where the rule counts them. */
enum { TURNS = 24, LESS_MIB = 6, MORE_MIB = 16 };

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static uint64_t another_size(uint64_t bytes, uint32_t turn)
{
    uint64_t chance = mixed(bytes * 64 + turn);
    if (!turn || chance % 3 == 0)
        return bytes;
    uint64_t more = (chance >> 8) % ((LESS_MIB + MORE_MIB) * MIB);
    return bytes + more > (LESS_MIB + 1) * MIB ? bytes + more - LESS_MIB * MIB : bytes;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

memfit_status mf_pool_vary(const mf_tape *tape, mf_pool_model model, mf_pool_spread *spread, memfit_error *err)
{
    mf_tape other = *tape;
    uint64_t pools[TURNS];
    other.blocks = mf_host_alloc(tape->host, (tape->block_count + 1) * sizeof *other.blocks);
    if (!other.blocks)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to vary a tape");
    memfit_status status = MEMFIT_OK;
    for (uint32_t turn = 0; turn < TURNS && status == MEMFIT_OK; turn++) {
        mf_pool_result r;
        memcpy(other.blocks, tape->blocks, tape->block_count * sizeof *other.blocks);
        for (size_t b = 0; b < tape->block_count; b++)
            if (other.blocks[b].guessed)
                other.blocks[b].bytes = another_size(other.blocks[b].bytes, turn);
        status = mf_pool_run(&other, model, 0, &r, err);
        pools[turn] = r.reserved_bytes;
    }
    mf_host_free(tape->host, other.blocks, (tape->block_count + 1) * sizeof *other.blocks);
    if (status != MEMFIT_OK)
        return status;
    qsort(pools, TURNS, sizeof *pools, by_size);
    *spread = (mf_pool_spread){.low_bytes = pools[0], .middle_bytes = pools[TURNS / 2], .high_bytes = pools[TURNS - 1]};
    return MEMFIT_OK;
}

/* Which hole a request finds changes with a few MiB here and there. With 94 to 97 % of its sizes Xception's pool (19 pictures
 * in bf16) has holes of 6 % of its live bytes, with all of them 16, with 103 % 13; on a card it had 5. VGG's have 27 to 29 % in
 * all of these, and had 29. */
static const double near_sizes[] = {0.90, 0.92, 0.96, 1.04};

static bool of_batch(memfit_kind kind)
{
    return kind != MEMFIT_KIND_PARAMETERS && kind != MEMFIT_KIND_OPTIMIZER && kind != MEMFIT_KIND_GRADIENTS;
}

memfit_status mf_pool_near(const mf_tape *tape, mf_pool_model model, const mf_pool_result *alone,
                           mf_pool_spread *spread, memfit_error *err)
{
    mf_tape other = *tape;
    double live = (double)alone->live_bytes, least = (double)alone->reserved_bytes, most = least;
    other.blocks = mf_host_alloc(tape->host, (tape->block_count + 1) * sizeof *other.blocks);
    if (!other.blocks)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to vary a tape");
    memfit_status status = MEMFIT_OK;
    for (size_t turn = 0; turn < sizeof near_sizes / sizeof *near_sizes && status == MEMFIT_OK; turn++) {
        mf_pool_result r;
        memcpy(other.blocks, tape->blocks, tape->block_count * sizeof *other.blocks);
        for (size_t b = 0; b < tape->block_count; b++)
            if (of_batch(other.blocks[b].kind))
                other.blocks[b].bytes = (uint64_t)((double)other.blocks[b].bytes * near_sizes[turn]);
        status = mf_pool_run(&other, model, 0, &r, err);
        if (status != MEMFIT_OK || !r.live_bytes)
            continue;
        double pool = live * ((double)r.reserved_bytes / (double)r.live_bytes);
        least = pool < least ? pool : least;
        most = pool > most ? pool : most;
    }
    mf_host_free(tape->host, other.blocks, (tape->block_count + 1) * sizeof *other.blocks);
    if (status == MEMFIT_OK)
        *spread = (mf_pool_spread){
            .low_bytes = (uint64_t)least, .middle_bytes = alone->reserved_bytes, .high_bytes = (uint64_t)most};
    return status;
}
