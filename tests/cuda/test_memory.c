/* test_memory.c: see engines.h. */
#include "engines.h"

#include "base/error.h"
#include "device/device.h"

#include <string.h>

static memfit_status host_up(test_memory *m, uint64_t at, const void *from, uint64_t bytes, memfit_error *err)
{
    (void)err;
    memcpy(m->base + at, from, bytes);
    return MEMFIT_OK;
}

static memfit_status host_fill(test_memory *m, uint64_t at, unsigned char byte, uint64_t bytes, memfit_error *err)
{
    (void)err;
    memset(m->base + at, byte, bytes);
    return MEMFIT_OK;
}

static memfit_status host_down(test_memory *m, void *to, uint64_t at, uint64_t bytes, memfit_error *err)
{
    (void)err;
    memcpy(to, m->base + at, bytes);
    return MEMFIT_OK;
}

void host_memory(test_memory *m, void *base)
{
    *m = (test_memory){.base = base, .up = host_up, .fill = host_fill, .down = host_down};
}

static memfit_status card_up(test_memory *m, uint64_t at, const void *from, uint64_t bytes, memfit_error *err)
{
    mf_device *d = m->device;
    return d->table->copy_in(d, (mf_address)(uintptr_t)m->base + at, from, bytes, 0, err);
}

static memfit_status card_fill(test_memory *m, uint64_t at, unsigned char byte, uint64_t bytes, memfit_error *err)
{
    mf_device *d = m->device;
    return bytes ? d->table->fill(d, (mf_address)(uintptr_t)m->base + at, byte, bytes, 0, err) : MEMFIT_OK;
}

static memfit_status card_down(test_memory *m, void *to, uint64_t at, uint64_t bytes, memfit_error *err)
{
    mf_device *d = m->device;
    memfit_status status =
        bytes ? d->table->copy_out(d, to, (mf_address)(uintptr_t)m->base + at, bytes, 0, err) : MEMFIT_OK;
    return status ? status : d->table->stream_sync(d, 0, err);
}

memfit_status card_memory(test_memory *m, void *device, uint64_t bytes, memfit_error *err)
{
    mf_device *d = device;
    mf_address at = 0;
    mf_physical physical = 0;
    bytes = (bytes + d->granularity - 1) / d->granularity * d->granularity;
    memfit_status status = d->table->reserve(d, bytes, 0, &at, err);
    if (status == MEMFIT_OK)
        status = d->table->create(d, bytes, &physical, err);
    if (status == MEMFIT_OK)
        status = d->table->map(d, at, bytes, physical, err);
    if (status == MEMFIT_OK)
        status = d->table->access(d, at, bytes, err);
    *m = (test_memory){
        .base = (char *)(uintptr_t)at, .up = card_up, .fill = card_fill, .down = card_down, .device = device};
    return status;
}
