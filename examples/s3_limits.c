/*
 * s3_limits.c: a limit of 80 % of the card, a logical device beside it, and the slip of mixing up bytes and megabytes:
 * named, not taken for "no limit".
 *
 *     s3_limits [cuda]
 *
 * The card is this machine's memory with a capacity of 512 MiB, so that the example runs anywhere; or the one that is
 * named.
 */
#include "memfit/pool.h"

#include <stdio.h>

#define MiB (UINT64_C(1) << 20)

static int failed(const memfit_error *err)
{
    fprintf(stderr, "s3_limits: %s\n%s\n", err->message, err->hint);
    return 1;
}

/* Both must be refused, and the message must help. */
static int slip(memfit_device *device, uint64_t limit)
{
    memfit_error err;
    memfit_pool *pool;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.limit_bytes = limit;
    if (memfit_pool_create(device, &options, &pool, &err) == MEMFIT_OK) {
        memfit_pool_destroy(pool);
        return 1;
    }
    printf("refused: %s\n    %s\n", err.message, err.hint);
    return 0;
}

int main(int argc, char **argv)
{
    memfit_error err;
    memfit_device *device;
    memfit_pool *most, *slice;
    memfit_device_options card = MEMFIT_DEVICE_OPTIONS;
    if (argc < 2) {
        card.capacity_bytes = 512 * MiB;
        card.fixed_bytes = 16 * MiB; /* what a context and its libraries would cost */
    }
    if (memfit_device_open(argc < 2 ? "cpu" : argv[1], &card, &device, &err))
        return failed(&err);

    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.name = "80 %";
    options.limit_fraction = 0.8;
    if (memfit_pool_create(device, &options, &most, &err))
        return failed(&err);
    options = (memfit_pool_options)MEMFIT_POOL_OPTIONS;
    options.name = "logical device";
    options.limit_bytes = 64 * MiB;
    options.slice = true;
    if (memfit_pool_create(device, &options, &slice, &err))
        return failed(&err);

    /* The limit covers the fixed cost: here 409 MiB less 16 are left for blocks, and not a page more. */
    memfit_address a, b;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_pool_get_info(most, &info, NULL);
    if (memfit_pool_alloc(most, (info.limit_bytes - info.fixed_bytes) / (8 * MiB) * (8 * MiB) - 8 * MiB, 0, &a, &err))
        return failed(&err);
    if (memfit_pool_alloc(most, 16 * MiB, 0, &b, &err) != MEMFIT_OUT_OF_MEMORY)
        return 1;
    printf("limit %llu, fixed %llu: %s\n", (unsigned long long)info.limit_bytes, (unsigned long long)info.fixed_bytes,
           err.message);

    /* The slice's share is there, whatever the other has taken. */
    if (memfit_pool_alloc(slice, 64 * MiB, 0, &b, &err))
        return failed(&err);
    printf("the logical device has its %llu bytes\n", (unsigned long long)(64 * MiB));

    if (slip(device, (uint64_t)(0.8 * 1024 * 1024 * 1024) * (argc < 2 ? 1 : MiB)) || slip(device, 64))
        return 1;
    memfit_pool_destroy(slice);
    memfit_pool_destroy(most);
    memfit_device_close(device, NULL);
    return 0;
}
