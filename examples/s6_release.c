/*
 * s6_release.c: y = x * x for a 1024 x 1024 matrix, x dropped inside the function that computes y, and outside of it.
 * Released means released: the ledger shows the bytes gone at that moment, not when a collector gets to it.
 *
 *     s6_release [cuda]        a card's memory is not the host's to write: there only the ledger is looked at
 */
#include "memfit/pool.h"

#include <stdio.h>

enum { N = 1024 };
#define BYTES ((uint64_t)N * N * sizeof(float))

static float *make(memfit_pool *pool, const char *name, memfit_error *err)
{
    memfit_owner owner;
    memfit_address address;
    if (memfit_pool_owner(pool, MEMFIT_KIND_ACTIVATIONS, name, &owner, err) ||
        memfit_pool_alloc(pool, BYTES, owner, &address, err))
        return NULL;
    return (float *)(uintptr_t)address;
}

static uint64_t in_use(memfit_pool *pool)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    return memfit_pool_get_info(pool, &info, NULL) ? 0 : info.in_use_bytes;
}

/* x ends here when `drop_inside` says so: after its last use, before the caller goes on. */
static float *square(memfit_pool *pool, float *x, bool near, int drop_inside, memfit_error *err)
{
    float *y = make(pool, "y", err);
    for (uint64_t i = 0; y && near && i < (uint64_t)N * N; i++)
        y[i] = x[i] * x[i];
    if (y && drop_inside && memfit_pool_free(pool, (uintptr_t)x, err))
        return NULL;
    return y;
}

int main(int argc, char **argv)
{
    bool near = argc < 2;
    memfit_error err = {0};
    memfit_device *device;
    memfit_pool *pool;
    memfit_device_options card = MEMFIT_DEVICE_OPTIONS;
    if (near)
        card.capacity_bytes = UINT64_C(1) << 30;
    if (memfit_device_open(near ? "cpu" : argv[1], &card, &device, &err) ||
        memfit_pool_create(device, NULL, &pool, &err))
        goto failed;
    for (int inside = 0; inside < 2; inside++) {
        float *x = make(pool, "x", &err), *y;
        if (!x)
            goto failed;
        for (uint64_t i = 0; near && i < (uint64_t)N * N; i++)
            x[i] = (float)(i % 7);
        uint64_t before = in_use(pool);
        y = square(pool, x, near, inside, &err);
        if (!y || (near && y[6] != 36.0f))
            goto failed;
        uint64_t after = in_use(pool);
        if (!inside && memfit_pool_free(pool, (uintptr_t)x, &err))
            goto failed;
        printf("x dropped %s: %llu bytes before y, %llu after, %llu with x gone\n", inside ? "inside " : "outside",
               (unsigned long long)before, (unsigned long long)after, (unsigned long long)in_use(pool));
        if (in_use(pool) != BYTES || memfit_pool_free(pool, (uintptr_t)y, &err) || in_use(pool))
            goto failed;
    }
    memfit_pool_destroy(pool);
    return memfit_device_close(device, &err) != MEMFIT_OK;
failed:
    fprintf(stderr, "s6_release: %s\n", err.message);
    return 1;
}
