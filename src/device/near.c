/*
 * near.c: the process's own memory as a device without a state: what training on cpu lives in. Anonymous memory, on
 * large pages where the system gives them (a memfd's are slower), taken by reserve and made resident by access.
 *
 *     address                        + bytes
 *     [ anonymous, readable, writable ][ guard page: any touch traps ]
 */
#include "device/device.h"

#include "base/error.h"
#include "base/os.h"

#include <string.h>

static memfit_status near_memory(mf_device *device, uint64_t *total, uint64_t *free_bytes, memfit_error *err)
{
    (void)device, (void)err;
    *total = mf_os_total_memory();
    *free_bytes = mf_os_available_memory();
    return MEMFIT_OK;
}

static memfit_status near_reserve(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                                  memfit_error *err)
{
    (void)alignment;
    unsigned char *p;
    uint64_t mapped;
    if (!bytes || bytes % mf_os_page_bytes())
        return mf_fail(err, MEMFIT_INVALID, "%s: cannot reserve %llu bytes", device->table->kind,
                       (unsigned long long)bytes);
    memfit_status status = mf_os_reserve(bytes, &p, &mapped, err);
    if (status == MEMFIT_OK)
        *address = (mf_address)(uintptr_t)p;
    return status;
}

static memfit_status near_unreserve(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device, (void)err;
    mf_os_unreserve((unsigned char *)(uintptr_t)address, bytes + mf_os_page_bytes());
    return MEMFIT_OK;
}

/* Clearing pages is most of the start of a large model, and goes as fast as there are threads. */
static memfit_status near_access(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device, (void)err;
    enum { PART = 16 << 20 };
    unsigned char *p = (unsigned char *)(uintptr_t)address;
#pragma omp parallel for schedule(dynamic) if (bytes > PART)
    for (uint64_t at = 0; at < bytes; at += PART)
        mf_os_populate(p + at, bytes - at < PART ? bytes - at : PART);
    return MEMFIT_OK;
}

/* ---- streams and events: always done ------------------------------------------------------------------------ */

static memfit_status near_id(mf_device *device, uint64_t *id, memfit_error *err)
{
    (void)device, (void)err;
    *id = 1;
    return MEMFIT_OK;
}

static memfit_status near_nothing(mf_device *device, uint64_t id, memfit_error *err)
{
    (void)device, (void)id, (void)err;
    return MEMFIT_OK;
}

static memfit_status near_nothing_two(mf_device *device, uint64_t a, uint64_t b, memfit_error *err)
{
    (void)device, (void)a, (void)b, (void)err;
    return MEMFIT_OK;
}

static memfit_status near_done(mf_device *device, mf_event event, bool *done, memfit_error *err)
{
    (void)device, (void)event, (void)err;
    *done = true;
    return MEMFIT_OK;
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

static memfit_status near_copy_in(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                                  memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memcpy((void *)(uintptr_t)to, from, bytes);
    return MEMFIT_OK;
}

static memfit_status near_copy_out(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                                   memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memcpy(to, (const void *)(uintptr_t)from, bytes);
    return MEMFIT_OK;
}

static memfit_status near_copy(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return MEMFIT_OK;
}

static memfit_status near_fill(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memset((void *)(uintptr_t)to, byte, bytes);
    return MEMFIT_OK;
}

static void near_destroy(mf_device *device)
{
    (void)device;
}

static const mf_device_table near_table = {
    .kind = "near",
    .destroy = near_destroy,
    .memory = near_memory,
    .reserve = near_reserve,
    .unreserve = near_unreserve,
    .access = near_access,
    .stream_create = near_id,
    .stream_destroy = near_nothing,
    .stream_wait = near_nothing_two,
    .stream_sync = near_nothing,
    .event_create = near_id,
    .event_destroy = near_nothing,
    .event_record = near_nothing_two,
    .event_done = near_done,
    .copy_in = near_copy_in,
    .copy_out = near_copy_out,
    .copy = near_copy,
    .fill = near_fill,
};

mf_device *mf_device_near(void)
{
    static mf_device near_device = {
        .table = &near_table, .name = "this machine's memory", .opened_as = "cpu", .reachable = true, .plain = true};
    near_device.granularity = mf_os_page_bytes(); /* the same every time */
    return &near_device;
}
