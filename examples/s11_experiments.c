/*
 * s11_experiments.c: ten experiments in one process. Each builds "a model", trains and drops it; the third mistake of
 * the list is made on purpose: a clone of every second model is kept. Marks between experiments name the owner that
 * grows.
 *
 *     s11_experiments [cuda]
 */
#include "memfit/pool.h"

#include <stdio.h>

enum { EXPERIMENTS = 10, LAYERS = 4 };

static memfit_status experiment(memfit_pool *pool, int keep_clone, memfit_error *err)
{
    memfit_owner layers, clones;
    memfit_address weights[LAYERS], clone;
    memfit_status status = memfit_pool_owner(pool, MEMFIT_KIND_PARAMETERS, "model", &layers, err);
    if (!status)
        status = memfit_pool_owner(pool, MEMFIT_KIND_PARAMETERS, "best model so far", &clones, err);
    for (int i = 0; i < LAYERS && !status; i++)
        status = memfit_pool_alloc(pool, (uint64_t)(i + 1) << 20, layers, &weights[i], err);
    if (!status && keep_clone)
        status = memfit_pool_alloc(pool, 10 << 20, clones, &clone, err); /* and nobody frees it */
    for (int i = 0; i < LAYERS && !status; i++)
        status = memfit_pool_free(pool, weights[i], err);
    return status;
}

static void leaked(void *ctx, const memfit_owner_info *owners, size_t count)
{
    (void)ctx;
    for (size_t i = 0; i < count; i++)
        printf("still alive at the end: %s \"%s\", %llu blocks, %llu bytes\n", memfit_kind_name(owners[i].kind),
               owners[i].name, (unsigned long long)owners[i].blocks, (unsigned long long)owners[i].bytes);
}

int main(int argc, char **argv)
{
    memfit_error err;
    memfit_device *device;
    memfit_pool *pool;
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_device_options card = MEMFIT_DEVICE_OPTIONS;
    if (argc < 2)
        card.capacity_bytes = UINT64_C(1) << 30;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.on_leak = leaked;
    memfit_status status = memfit_device_open(argc < 2 ? "cpu" : argv[1], &card, &device, &err);
    if (!status)
        status = memfit_pool_create(device, &options, &pool, &err);
    for (int forgetful = 0; forgetful < 2 && !status; forgetful++) {
        uint64_t start = 0;
        status = memfit_pool_mark(pool, &start, &err);
        for (int i = 0; i < EXPERIMENTS && !status; i++) {
            status = experiment(pool, forgetful, &err);
            if (!status)
                status = memfit_pool_mark(pool, NULL, &err);
        }
        memfit_owner_info grown[4];
        size_t count = 0;
        if (!status)
            status = memfit_pool_growth(pool, start, grown, sizeof *grown, 4, &count, &err);
        if (!status)
            status = memfit_pool_get_info(pool, &info, &err);
        if (status)
            break;
        printf("%s: %llu bytes in use after %d experiments\n", forgetful ? "clones kept" : "clean",
               (unsigned long long)info.in_use_bytes, EXPERIMENTS);
        for (size_t i = 0; i < count; i++)
            printf("  grows: \"%s\" by %llu bytes, at %u marks in a row\n", grown[i].name,
                   (unsigned long long)grown[i].bytes, grown[i].grown_marks);
        if (count != (size_t)forgetful)
            return 1;
    }
    if (status) {
        fprintf(stderr, "s11_experiments: %s\n", err.message);
        return 1;
    }
    memfit_pool_destroy(pool);
    return memfit_device_close(device, &err) != MEMFIT_OK;
}
