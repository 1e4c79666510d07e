/*
 * cuda.c: an NVIDIA card as a device, through the driver API found at run time: opening it and what it is. Its memory is
 * in cuda_memory.c, its streams and graphs in cuda_streams.c.
 *
 * context: the primary one, so that cuDNN, cuBLAS and frameworks in the same process share it. Every call makes it
 * current and restores what was current before: the caller's thread does not notice.
 *
 * identity: the UUID, since CUDA's index is not NVML's under CUDA_VISIBLE_DEVICES.
 */
#include "base/error.h"
#include "device/cuda_inner.h"

#include <stdio.h>
#include <string.h>

enum { PLAIN_GRANULARITY = 2 << 20 };

/* ---- what works on the card beside us (cuda_card.h) -------------------------------------------------------- */

memfit_status mf_cuda_card_of(mf_device *device, mf_cuda_card *card, memfit_error *err)
{
    if (strcmp(device->table->kind, "cuda") != 0)
        return mf_fail(err, MEMFIT_INVALID, "device %s is not a CUDA card", device->name);
    cuda *c = (cuda *)device;
    int major = 0, minor = 0, many = 0;
    cu_result code = c->driver.device_attribute(&major, CU_ATTRIBUTE_CAPABILITY_MAJOR, c->device);
    if (code == CU_SUCCESS)
        code = c->driver.device_attribute(&minor, CU_ATTRIBUTE_CAPABILITY_MINOR, c->device);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "describing the card", err);
    if (c->driver.device_attribute(&many, CU_ATTRIBUTE_MULTIPROCESSORS, c->device) != CU_SUCCESS)
        many = 0;
    *card = (mf_cuda_card){
        .device = device, .driver = &c->driver, .capability = 10 * major + minor, .multiprocessors = many};
    return MEMFIT_OK;
}

memfit_status mf_cuda_enter(const mf_cuda_card *card, mf_cuda_call *call, memfit_error *err)
{
    cu_result code = CU_SUCCESS;
    *call = mf_cuda_begin((cuda *)card->device, &code);
    return code == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(card->driver, code, "taking the card's context", err);
}

void mf_cuda_leave(const mf_cuda_card *card, mf_cuda_call call)
{
    mf_cuda_end((cuda *)card->device, call);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static size_t cuda_others(mf_device *device, char (*text)[128], uint64_t *bytes, size_t most)
{
    return mf_card_processes_others(&((cuda *)device)->processes, text, bytes, most);
}

static uint64_t cuda_own_bytes(mf_device *device)
{
    return mf_card_processes_own(&((cuda *)device)->processes);
}

static void cuda_destroy(mf_device *device)
{
    cuda *c = (cuda *)device;
    mf_device_end(device);
    c->driver.primary_release(c->device);
    mf_card_processes_end(&c->processes);
    mf_host_free(device->host, c, sizeof *c);
}

static void format_uuid(const cu_uuid *uuid, char text[64])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, 64, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The table without what the driver lacks. */
static void choose_table(cuda *c, bool plain)
{
    const mf_cuda_driver *d = &c->driver;
    mf_cuda_memory_table(&c->table, plain);
    mf_cuda_stream_table(&c->table);
    if (!d->event_elapsed) {
        c->table.timer_create = NULL;
        c->table.timer_between = NULL;
    }
    bool pinned = d->host_alloc && d->host_free;
    if (!pinned) {
        c->table.host_take = NULL;
        c->table.host_give = NULL;
    }
    if (!pinned || !d->capture_begin || !d->capture_end || !d->graph_make || !d->graph_launch ||
        !d->graph_exec_destroy || !d->graph_destroy || !d->event_record_external) {
        c->table.record_begin = NULL;
        c->table.record_end = NULL;
        c->table.record_launch = NULL;
        c->table.record_destroy = NULL;
    }
}

/* Name, identity and the properties of its memory. */
static memfit_status describe_card(cuda *c, unsigned index, memfit_error *err)
{
    int count = 0, vmm = 0;
    cu_uuid uuid;
    cu_result code = c->driver.device_count(&count);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "counting the cards", err);
    if ((int)index >= count)
        return mf_fail(err, MEMFIT_NOT_FOUND,
                       "cuda:%u: the driver shows %d card%s\nsee nvidia-smi -L, and CUDA_VISIBLE_DEVICES", index, count,
                       count == 1 ? "" : "s");
    code = c->driver.device_get(&c->device, (int)index);
    if (code == CU_SUCCESS)
        code = c->driver.device_name(c->base.name, sizeof c->base.name, c->device);
    if (code == CU_SUCCESS && c->driver.device_uuid && c->driver.device_uuid(&uuid, c->device) == CU_SUCCESS)
        format_uuid(&uuid, c->base.uuid);
    if (code == CU_SUCCESS)
        code = c->driver.device_attribute(&vmm, CU_ATTRIBUTE_VMM_SUPPORTED, c->device);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "describing the card", err);
    if (!vmm || !c->driver.create || !c->driver.map || !c->driver.access || !c->driver.unmap || !c->driver.reserve ||
        !c->driver.granularity) {
        choose_table(c, true);
        c->base.plain = true;
        c->base.granularity = PLAIN_GRANULARITY;
        return MEMFIT_OK;
    }
    choose_table(c, false);
    c->prop = (cu_allocation_prop){.type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, c->device}};
    c->access[0] = (cu_access_desc){{CU_LOCATION_DEVICE, c->device}, CU_ACCESS_READ_WRITE};
    c->access_count = 1;
    size_t granularity = 0;
    code = c->driver.granularity(&granularity, &c->prop, CU_GRANULARITY_MINIMUM);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "asking for the page size", err);
    c->base.granularity = granularity;
    return MEMFIT_OK;
}

/* The card is full before we have anything on it: by whom. */
static memfit_status no_room_for_context(cuda *c, const mf_nvml_card *card, memfit_error *err)
{
    enum { NAMED = 3 };
    char who[NAMED][128], has[24], all[24], list[400] = "";
    uint64_t bytes[NAMED];
    size_t count = mf_card_processes_others(&c->processes, who, bytes, NAMED), used = 0;
    for (size_t i = 0; i < count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s %s", i ? ", " : "; it is held by ", who[i],
                                 memfit_size_format(bytes[i], has, sizeof has));
    char left[80] = "";
    if (card->memory_known)
        snprintf(left, sizeof left, ", of %s it has %s free", memfit_size_format(card->total_bytes, all, sizeof all),
                 memfit_size_format(card->free_bytes, has, sizeof has));
    memfit_status status = mf_fail(err, MEMFIT_OUT_OF_MEMORY,
                                   "the card has no room for a context (CUDA_ERROR_OUT_OF_MEMORY)%s%s\n"
                                   "end one of its processes, or wait for it: memfit ps shows them",
                                   left, list);
    if (err)
        err->cause = MEMFIT_CAUSE_TAKEN_BY_OTHERS;
    return status;
}

/* Takes the context and measures what it costs: NVML's figure for the process, else what the card lost meanwhile. Of a
 * part of a card NVML shows neither; there it is what is taken, since parts are given to one process. */
static memfit_status take_context(cuda *c, memfit_error *err)
{
    mf_nvml_card before = {0}, after = {0};
    mf_card_processes *p = &c->processes;
    mf_card_processes_begin(p, c->base.host, c->base.uuid);
    if (p->nvml)
        mf_nvml_card_get(p->nvml, p->index, &before, NULL);
    cu_result code = c->driver.primary_retain(&c->context, c->device);
    if (code != CU_SUCCESS) {
        memfit_status status = code == CU_ERROR_OUT_OF_MEMORY
                                   ? no_room_for_context(c, &before, err)
                                   : mf_cuda_fail(&c->driver, code, "making a context on the card", err);
        mf_card_processes_end(p);
        return status;
    }
    uint64_t fixed = mf_card_processes_own(p), total = 0, free_bytes = 0;
    if (!fixed && p->nvml && before.memory_known && !mf_nvml_card_get(p->nvml, p->index, &after, NULL) &&
        after.used_bytes > before.used_bytes)
        fixed = after.used_bytes - before.used_bytes;
    if (p->unlisted && !c->table.memory(&c->base, &total, &free_bytes, NULL))
        fixed = total - free_bytes;
    atomic_store(&c->base.fixed_bytes, fixed ? fixed + c->base.granularity : 0);
    return MEMFIT_OK;
}

memfit_status mf_device_open_cuda(const memfit_device_options *options, unsigned index, mf_device **device,
                                  memfit_error *err)
{
    if (options->capacity_bytes || options->granularity_bytes || options->fixed_bytes)
        return mf_fail(err, MEMFIT_INVALID,
                       "cuda: capacity, granularity and fixed cost are the card's, they cannot be set\nto use less, "
                       "set the pool's limit");
    cuda *c = mf_host_zalloc(options->host, sizeof *c);
    if (!c)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "cuda: no host memory for the device");
    c->table =
        (mf_device_table){.kind = "cuda", .destroy = cuda_destroy, .others = cuda_others, .own_bytes = cuda_own_bytes};
    memfit_status status = mf_device_init(&c->base, &c->table, options->host, err);
    if (status) {
        mf_host_free(options->host, c, sizeof *c);
        return status;
    }
    atomic_store(&c->recorded, NO_STREAM);
    status = mf_cuda_open(mf_finder_default(), &c->driver, err);
    if (!status)
        status = describe_card(c, index, err);
    if (!status)
        status = take_context(c, err);
    if (status) {
        mf_device_end(&c->base);
        mf_host_free(options->host, c, sizeof *c);
        return status;
    }
    *device = &c->base;
    return MEMFIT_OK;
}

bool mf_device_describe_cuda(unsigned index, memfit_device_info *info)
{
    mf_cuda_driver driver;
    int count = 0;
    cu_device device;
    cu_uuid uuid;
    size_t total = 0;
    if (mf_cuda_open(mf_finder_default(), &driver, NULL) || driver.device_count(&count) != CU_SUCCESS ||
        (int)index >= count)
        return false;
    *info = (memfit_device_info){0};
    snprintf(info->name, sizeof info->name, "cuda:%u", index);
    if (driver.device_get(&device, (int)index) != CU_SUCCESS ||
        driver.device_name(info->model, sizeof info->model, device) != CU_SUCCESS)
        return false;
    if (driver.device_uuid && driver.device_uuid(&uuid, device) == CU_SUCCESS)
        format_uuid(&uuid, info->uuid);
    if (driver.device_total(&total, device) == CU_SUCCESS)
        info->total_bytes = total;
    info->granularity_bytes = UINT64_C(2) << 20;
    return true;
}
