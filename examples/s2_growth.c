/*
 * s2_growth.c: memory growth on every device that can be opened, switched at any time.
 *
 * The pool starts by taking everything (preallocate), is switched to growth while blocks are live, gives back what is
 * idle, and is switched back.
 */
#include "memfit/pool.h"

#include <stdio.h>

static void show(memfit_pool *pool, const char *when)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    char in_use[24], reserved[24];
    if (memfit_pool_get_info(pool, &info, NULL) == MEMFIT_OK)
        printf("  %-28s in use %10s, reserved %10s\n", when,
               memfit_size_format(info.in_use_bytes, in_use, sizeof in_use),
               memfit_size_format(info.reserved_bytes, reserved, sizeof reserved));
}

static memfit_status use(memfit_device *device, memfit_error *err)
{
    memfit_pool *pool;
    memfit_pool_options options = MEMFIT_POOL_OPTIONS;
    options.policy = MEMFIT_POLICY_PREALLOCATE;
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    memfit_status status = memfit_device_get_info(device, &info, err);
    options.limit_bytes = info.fixed_bytes + (256u << 20); /* a limit covers context and libraries, too */
    if (!status)
        status = memfit_pool_create(device, &options, &pool, err);
    if (status)
        return status;
    memfit_address a, b;
    show(pool, "preallocated");
    status = memfit_pool_alloc(pool, 10 << 20, 0, &a, err);
    if (!status)
        status = memfit_pool_alloc(pool, 100 << 20, 0, &b, err);
    if (!status)
        status = memfit_pool_set_policy(pool, MEMFIT_POLICY_GROWTH, err);
    if (!status)
        status = memfit_pool_free(pool, b, err);
    if (!status)
        status = memfit_pool_trim(pool, 0, NULL, err);
    show(pool, "growth, idle given back");
    if (!status)
        status = memfit_pool_alloc(pool, 50 << 20, 0, &b, err);
    show(pool, "grown by 50 MiB");
    if (!status)
        status = memfit_pool_set_policy(pool, MEMFIT_POLICY_PREALLOCATE, err);
    show(pool, "everything taken again");
    memfit_pool_destroy(pool);
    return status;
}

int main(void)
{
    memfit_error err;
    memfit_device_info list[16];
    size_t count = 0;
    memfit_status status = memfit_device_list(list, sizeof *list, 16, &count, &err);
    for (size_t i = 0; i < count && i < 16 && !status; i++) {
        memfit_device *device;
        memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
        if (list[i].name[0] != 'c' || list[i].name[1] != 'u') /* a card says itself how much it holds */
            options.capacity_bytes = 512u << 20;
        printf("%s: %s\n", list[i].name, list[i].model);
        status = memfit_device_open(list[i].name, &options, &device, &err);
        if (!status)
            status = use(device, &err);
        if (!status)
            status = memfit_device_close(device, &err);
    }
    if (status)
        fprintf(stderr, "s2_growth: %s\n%s\n", err.message, err.hint);
    return status != MEMFIT_OK;
}
