/*
 * open.c: devices by name, what all devices share, and the public functions that only pass on to the table.
 *
 * The registry is one table; a new kind of device is one row.
 */
#include "device/device.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/os.h"

#include <stdlib.h>
#include <string.h>

typedef struct kind_row {
    const char *kind;
    memfit_status (*open)(const memfit_device_options *options, unsigned index, mf_device **device, memfit_error *err);
    /* Writes info about device `index`; false when there is none. Opens nothing that costs device memory. */
    bool (*describe)(unsigned index, memfit_device_info *info);
} kind_row;

static bool describe_cpu(unsigned index, memfit_device_info *info)
{
    if (index)
        return false;
    *info = (memfit_device_info){.name = "cpu", .model = "this machine's memory"};
    info->total_bytes = mf_os_total_memory();
    info->free_bytes = mf_os_available_memory();
    info->granularity_bytes = mf_os_page_bytes();
    return true;
}

static bool describe_sim(unsigned index, memfit_device_info *info)
{
    if (index)
        return false;
    *info = (memfit_device_info){.name = "sim", .model = "simulated device, no memory behind it"};
    info->total_bytes = info->free_bytes = UINT64_C(16) << 30;
    info->granularity_bytes = UINT64_C(2) << 20;
    return true;
}

static const kind_row kinds[] = {
    {"cpu", mf_device_open_cpu, describe_cpu},
    {"sim", mf_device_open_sim, describe_sim},
    {"cuda", mf_device_open_cuda, mf_device_describe_cuda},
    {"gpu", mf_device_open_cuda, NULL}, /* what people type */
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

/* ---- the common part -------------------------------------------------------------------------------------- */

memfit_status mf_device_init(mf_device *device, const mf_device_table *table, const memfit_host *host,
                             memfit_error *err)
{
    device->table = table;
    device->host = host;
    device->process = mf_os_process();
    atomic_store(&device->budget.room_bytes, UINT64_MAX);
    if (pthread_mutex_init(&device->lock, NULL))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "%s: no lock to be had", table->kind);
    return MEMFIT_OK;
}

void mf_device_end(mf_device *device)
{
    if (device->free_pools)
        device->free_pools(device);
    pthread_mutex_destroy(&device->lock);
}

bool mf_device_of_parent(const mf_device *device)
{
    return device->process != mf_os_process();
}

uint64_t mf_device_now_us(mf_device *device)
{
    if (device->table->now_us)
        return device->table->now_us(device);
    return mf_os_now_us() + atomic_load_explicit(&device->skipped_us, memory_order_relaxed);
}

bool mf_budget_take(mf_budget *budget, uint64_t bytes)
{
    uint64_t taken = atomic_load(&budget->taken_bytes);
    do {
        uint64_t room = atomic_load(&budget->room_bytes);
        if (bytes > room || taken > room - bytes)
            return false;
    } while (!atomic_compare_exchange_weak(&budget->taken_bytes, &taken, taken + bytes));
    return true;
}

void mf_budget_give(mf_budget *budget, uint64_t bytes)
{
    atomic_fetch_sub(&budget->taken_bytes, bytes);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static memfit_status no_such_kind(const char *name, memfit_error *err)
{
    return mf_fail(err, MEMFIT_NOT_FOUND, "device %s: no such kind of device\nThere are: cpu, sim, cuda:N", name);
}

memfit_status memfit_device_open(const char *name, const memfit_device_options *given, memfit_device **device,
                                 memfit_error *err)
{
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    memfit_status status = mf_abi_read(&options, given, "MEMFIT_DEVICE_OPTIONS", err);
    if (status)
        return status;
    if (!name || !device)
        return mf_fail(err, MEMFIT_INVALID, "device: %s is NULL", name ? "the place for the result" : "the name");
    const char *colon = strchr(name, ':');
    size_t length = colon ? (size_t)(colon - name) : strlen(name);
    char *end = NULL;
    unsigned long index = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (colon && (colon[1] < '0' || colon[1] > '9' || *end || index > 1023))
        return mf_fail(err, MEMFIT_INVALID, "device %s: after the colon must be a number from 0 to 1023", name);
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (strlen(kinds[i].kind) != length || strncmp(kinds[i].kind, name, length))
            continue;
        status = kinds[i].open(&options, (unsigned)index, device, err);
        if (!status)
            snprintf((*device)->opened_as, sizeof(*device)->opened_as, index ? "%s:%lu" : "%s", kinds[i].kind, index);
        return status;
    }
    return no_such_kind(name, err);
}

memfit_status memfit_device_close(memfit_device *device, memfit_error *err)
{
    if (!device)
        return MEMFIT_OK;
    if (mf_device_of_parent(device))
        return mf_fail(err, MEMFIT_MISUSE, "device %s: opened before fork, and it stays with the parent",
                       device->opened_as);
    pthread_mutex_lock(&device->lock);
    bool used = device->pool_count != 0;
    pthread_mutex_unlock(&device->lock);
    if (used)
        return mf_fail(err, MEMFIT_MISUSE, "device %s: closed while pools on it are alive\nDestroy the pools first",
                       device->opened_as);
    device->table->destroy(device);
    return MEMFIT_OK;
}

memfit_status memfit_device_get_info(memfit_device *device, memfit_device_info *info, memfit_error *err)
{
    if (!device || !info)
        return mf_fail(err, MEMFIT_INVALID, "device info: NULL");
    memfit_status status = mf_abi_check(info, "MEMFIT_DEVICE_INFO", err);
    if (status)
        return status;
    memfit_device_info out = {.fixed_bytes = device->fixed_bytes, .granularity_bytes = device->granularity};
    status = device->table->memory(device, &out.total_bytes, &out.free_bytes, err);
    if (status)
        return status;
    memcpy(out.name, device->opened_as, sizeof device->opened_as);
    memcpy(out.model, device->name, sizeof out.model);
    memcpy(out.uuid, device->uuid, sizeof out.uuid);
    out.pools_bytes = atomic_load(&device->budget.pools_bytes);
    out.set_aside_bytes = atomic_load(&device->budget.slices_bytes);
    mf_abi_write(info, &out, sizeof out);
    return MEMFIT_OK;
}

memfit_status memfit_device_list(memfit_device_info *list, size_t stride, size_t most, size_t *count, memfit_error *err)
{
    if (!count || (most && (!list || stride <= sizeof(size_t))))
        return mf_fail(err, MEMFIT_INVALID, "device list: NULL, or a stride of %zu", stride);
    size_t n = 0;
    for (size_t i = 0; i < KIND_COUNT; i++) {
        memfit_device_info info = MEMFIT_DEVICE_INFO;
        for (unsigned index = 0; kinds[i].describe && kinds[i].describe(index, &info); index++, n++)
            if (n < most) {
                info.size = stride;
                mf_abi_put(list, stride, n, &info, sizeof info);
            }
    }
    *count = n;
    return MEMFIT_OK;
}

memfit_status memfit_device_advance(memfit_device *device, uint64_t microseconds, memfit_error *err)
{
    if (!device)
        return mf_fail(err, MEMFIT_INVALID, "device advance: no device");
    if (device->table->advance_us)
        device->table->advance_us(device, microseconds);
    else
        atomic_fetch_add(&device->skipped_us, microseconds);
    return MEMFIT_OK;
}

/* ---- passing on ------------------------------------------------------------------------------------------- */

memfit_status memfit_stream_create(memfit_device *device, memfit_stream *stream, memfit_error *err)
{
    if (!device || !stream)
        return mf_fail(err, MEMFIT_INVALID, "stream: NULL");
    return device->table->stream_create(device, stream, err);
}

memfit_status memfit_stream_destroy(memfit_device *device, memfit_stream stream, memfit_error *err)
{
    if (!device)
        return mf_fail(err, MEMFIT_INVALID, "stream: no device");
    return device->table->stream_destroy(device, stream, err);
}

memfit_status memfit_stream_sync(memfit_device *device, memfit_stream stream, memfit_error *err)
{
    if (!device)
        return mf_fail(err, MEMFIT_INVALID, "stream: no device");
    return device->table->stream_sync(device, stream, err);
}

memfit_status memfit_device_copy_in(memfit_device *device, memfit_address to, const void *from, uint64_t bytes,
                                    memfit_stream stream, memfit_error *err)
{
    if (!device || (bytes && !from))
        return mf_fail(err, MEMFIT_INVALID, "copy: NULL");
    return device->table->copy_in(device, to, from, bytes, stream, err);
}

memfit_status memfit_device_copy_out(memfit_device *device, void *to, memfit_address from, uint64_t bytes,
                                     memfit_stream stream, memfit_error *err)
{
    if (!device || (bytes && !to))
        return mf_fail(err, MEMFIT_INVALID, "copy: NULL");
    return device->table->copy_out(device, to, from, bytes, stream, err);
}

memfit_status memfit_device_fill(memfit_device *device, memfit_address to, unsigned char byte, uint64_t bytes,
                                 memfit_stream stream, memfit_error *err)
{
    if (!device)
        return mf_fail(err, MEMFIT_INVALID, "fill: no device");
    return device->table->fill(device, to, byte, bytes, stream, err);
}
