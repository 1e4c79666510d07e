/*
 * cuda_memory.c: the memory of an NVIDIA card.
 *
 * VMM: cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess. A created handle is mapped as a whole (the driver's
 * rule). Unmapping is not ordered with streams: the pool unmaps only what no stream can touch.
 *
 * Where a card or driver lacks VMM (before CUDA 10.2; some virtual cards) the device is plain: addresses and memory are
 * one cuMemAlloc, taken when a pool is made and freed when it ends. Limits hold as they do otherwise; growth, trimming
 * and moving pages are lost, so blocks can end up with enough free between them and no place (docs/device.md).
 *
 * fixed cost: what the process pays for context and libraries, as NVML shows it; measured when the device is opened and
 * again when memory is created: every few milliseconds at most, and so that asking takes no more than a tenth of the time.
 * To answer, the driver walks over all that the process has on the card: the more handles, the longer. It only ever grows.
 */
#include "base/error.h"
#include "base/os.h"
#include "device/cuda_inner.h"

#include <string.h>

enum { MEASURE_EVERY_US = 5000, MEASURE_REST = 9 }; /* not again for so many times as long as it took */

/* Brings the fixed cost up to date; it only ever grows. */
static void measure_fixed(cuda *c)
{
    uint64_t now = mf_os_now_us(), due = atomic_load(&c->measure_at_us);
    if (!c->processes.nvml || now < due || !atomic_compare_exchange_strong(&c->measure_at_us, &due, UINT64_MAX))
        return;
    uint64_t created = atomic_load(&c->created), own = mf_card_processes_own(&c->processes);
    uint64_t after = mf_os_now_us(), rest = (after - now) * MEASURE_REST;
    atomic_store(&c->measure_at_us, after + (rest > MEASURE_EVERY_US ? rest : MEASURE_EVERY_US));
    uint64_t fixed = own > created ? own - created + c->base.granularity : 0, known = atomic_load(&c->base.fixed_bytes);
    if (created != atomic_load(&c->created)) /* another thread was creating or releasing meanwhile */
        return;
    while (fixed > known && !atomic_compare_exchange_weak(&c->base.fixed_bytes, &known, fixed))
        continue;
}

static memfit_status cuda_memory(mf_device *device, uint64_t *total, uint64_t *free_bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    size_t t = 0, f = 0;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.memory_info(&f, &t);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "asking for free memory", err);
    *total = t;
    *free_bytes = f;
    return MEMFIT_OK;
}

static memfit_status cuda_reserve(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                                  memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_address at = 0;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.reserve(&at, bytes, alignment, 0, 0);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "reserving addresses", err);
    *address = at;
    return MEMFIT_OK;
}

static memfit_status cuda_unreserve(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "giving addresses back", c->driver.unreserve(address, bytes));
}

static memfit_status cuda_create(mf_device *device, uint64_t bytes, mf_physical *physical, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_handle handle = 0;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.create(&handle, bytes, &c->prop, 0);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "creating device memory", err);
    *physical = handle;
    atomic_fetch_add(&c->created, bytes);
    measure_fixed(c);
    return MEMFIT_OK;
}

static memfit_status cuda_release(mf_device *device, mf_physical physical, uint64_t bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.release(physical);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "releasing device memory", err);
    atomic_fetch_sub(&c->created, bytes);
    return MEMFIT_OK;
}

static memfit_status cuda_map(mf_device *device, mf_address address, uint64_t bytes, mf_physical physical,
                              memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "mapping device memory", c->driver.map(address, bytes, 0, physical, 0));
}

static memfit_status cuda_access(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "opening mapped memory", c->driver.access(address, bytes, c->access, c->access_count));
}

static memfit_status cuda_unmap(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "unmapping device memory", c->driver.unmap(address, bytes));
}

static memfit_status cuda_open_to(mf_device *device, mf_device *other, memfit_error *err)
{
    cuda *c = (cuda *)device, *o = (cuda *)other;
    int can = 0;
    for (size_t i = 0; i < c->access_count; i++)
        if (c->access[i].location.id == o->device)
            return MEMFIT_OK;
    if (c->access_count == MOST_PEERS || !c->driver.can_access_peer ||
        c->driver.can_access_peer(&can, o->device, c->device) != CU_SUCCESS || !can)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "cuda:%d cannot reach the memory of cuda:%d\nUse one process a card (CUDA_VISIBLE_DEVICES)",
                       o->device, c->device);
    c->access[c->access_count++] = (cu_access_desc){{CU_LOCATION_DEVICE, o->device}, CU_ACCESS_READ_WRITE};
    return MEMFIT_OK;
}

/* ---- memory without VMM: one allocation is both addresses and pages ---------------------------------------- */

static memfit_status plain_reserve(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                                   memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_address at = 0;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    bool aligned = true;
    if (code == CU_SUCCESS)
        code = c->driver.mem_alloc(&at, bytes);
    if (code == CU_SUCCESS && alignment && at % alignment) { /* never seen: large allocations begin at a page */
        aligned = false;
        c->driver.mem_free(at);
    }
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "allocating device memory", err);
    if (!aligned)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "cuda: an allocation of %llu bytes is not aligned to %llu",
                       (unsigned long long)bytes, (unsigned long long)alignment);
    atomic_fetch_add(&c->created, bytes);
    measure_fixed(c);
    *address = at;
    return MEMFIT_OK;
}

static memfit_status plain_unreserve(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.mem_free(address);
    mf_cuda_end(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "freeing device memory", err);
    atomic_fetch_sub(&c->created, bytes);
    return MEMFIT_OK;
}

static memfit_status plain_create(mf_device *device, uint64_t bytes, mf_physical *physical, memfit_error *err)
{
    (void)device, (void)bytes, (void)err;
    *physical = 1;
    return MEMFIT_OK;
}

static memfit_status plain_release(mf_device *device, mf_physical physical, uint64_t bytes, memfit_error *err)
{
    (void)device, (void)physical, (void)bytes, (void)err;
    return MEMFIT_OK;
}

static memfit_status plain_map(mf_device *device, mf_address address, uint64_t bytes, mf_physical physical,
                               memfit_error *err)
{
    (void)device, (void)address, (void)bytes, (void)physical, (void)err;
    return MEMFIT_OK;
}

static memfit_status plain_nothing(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device, (void)address, (void)bytes, (void)err;
    return MEMFIT_OK;
}

/* ---- host memory that the card copies from --------------------------------------------------------------- */

static memfit_status cuda_host_take(mf_device *device, uint64_t bytes, void **memory, memfit_error *err)
{
    cuda *c = (cuda *)device;
    void *taken = NULL;
    cu_result code = CU_SUCCESS;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.host_alloc(&taken, bytes, 0);
    mf_cuda_end(c, state);
    if (code == CU_ERROR_OUT_OF_MEMORY)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory of %llu bytes that the card can copy from",
                       (unsigned long long)bytes);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "taking host memory", err);
    memset(taken, 0, bytes);
    *memory = taken;
    return MEMFIT_OK;
}

static void cuda_host_give(mf_device *device, void *memory, uint64_t bytes)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    (void)bytes;
    if (!memory)
        return;
    mf_cuda_call state = mf_cuda_begin(c, &code);
    if (code == CU_SUCCESS)
        c->driver.host_free(memory);
    mf_cuda_end(c, state);
}

void mf_cuda_memory_table(mf_device_table *table, bool plain)
{
    table->memory = cuda_memory;
    table->reserve = plain ? plain_reserve : cuda_reserve;
    table->unreserve = plain ? plain_unreserve : cuda_unreserve;
    table->create = plain ? plain_create : cuda_create;
    table->release = plain ? plain_release : cuda_release;
    table->map = plain ? plain_map : cuda_map;
    table->access = plain ? plain_nothing : cuda_access;
    table->unmap = plain ? plain_nothing : cuda_unmap;
    table->open_to = plain ? NULL : cuda_open_to;
    table->host_take = cuda_host_take;
    table->host_give = cuda_host_give;
}
