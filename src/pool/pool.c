/*
 * pool.c: a first pool: every block has pages of its own, kept in a list ordered by address.
 */
#include "pool/pool.h"

#include "base/error.h"

#include <string.h>

typedef struct block {
    struct block *next;
    mf_address address;
    uint64_t bytes, taken, mark;
    mf_physical physical;
    memfit_owner owner;
    memfit_stream stream;
} block;

typedef struct owner {
    memfit_owner_info info;
    uint64_t before;
} owner;

struct memfit_pool {
    mf_device *device;
    const memfit_host *host;
    pthread_mutex_t lock;
    memfit_pool_info info;
    mf_address range;
    uint64_t range_bytes;
    block *blocks;
    owner *owners;
    size_t owner_count, owner_capacity;
    mf_pool_hook hook;
    void *hook_ctx;
};

memfit_pool_options memfit_pool_options_default(void)
{
    return (memfit_pool_options){.size = sizeof(memfit_pool_options), .purge_ms = 10000};
}

memfit_status memfit_pool_create(memfit_device *device, const memfit_pool_options *options, memfit_pool **out,
                                 memfit_error *err)
{
    memfit_pool_options o = options ? *options : memfit_pool_options_default();
    uint64_t total, free_bytes;
    memfit_status status = device->table->memory(device, &total, &free_bytes, err);
    if (status)
        return status;
    memfit_pool *p = mf_host_zalloc(device->host, sizeof *p);
    if (!p)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no host memory");
    p->device = device;
    p->host = device->host;
    pthread_mutex_init(&p->lock, NULL);
    p->info.page_bytes = o.page_bytes ? o.page_bytes : UINT64_C(2) << 20;
    p->info.fixed_bytes = device->fixed_bytes;
    p->info.limit_bytes = o.limit_bytes            ? o.limit_bytes
                          : o.limit_fraction > 0.0 ? (uint64_t)((double)total * o.limit_fraction)
                                                   : free_bytes + device->fixed_bytes;
    p->range_bytes = (total * 16 + p->info.page_bytes - 1) / p->info.page_bytes * p->info.page_bytes;
    status = device->table->reserve(device, p->range_bytes, p->info.page_bytes, &p->range, err);
    if (!status && !mf_grow(p->host, &p->owners, &p->owner_capacity, 0, sizeof *p->owners))
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no host memory");
    if (status) {
        memfit_pool_destroy(p);
        return status;
    }
    p->owners[0] = (owner){.info = {.kind = MEMFIT_KIND_OTHER, .name = "unnamed"}};
    p->owner_count = 1;
    *out = p;
    return MEMFIT_OK;
}

void memfit_pool_destroy(memfit_pool *p)
{
    if (!p)
        return;
    while (p->blocks)
        memfit_pool_free(p, p->blocks->address, NULL);
    if (p->range)
        p->device->table->unreserve(p->device, p->range, p->range_bytes, NULL);
    mf_host_free(p->host, p->owners, p->owner_capacity * sizeof *p->owners);
    pthread_mutex_destroy(&p->lock);
    mf_host_free(p->host, p, sizeof *p);
}

memfit_status memfit_pool_owner(memfit_pool *p, memfit_kind kind, const char *name, memfit_owner *out,
                                memfit_error *err)
{
    pthread_mutex_lock(&p->lock);
    memfit_status status = MEMFIT_OK;
    size_t i = 0;
    while (i < p->owner_count && (p->owners[i].info.kind != kind || strncmp(p->owners[i].info.name, name, 63)))
        i++;
    if (i == p->owner_count && mf_grow(p->host, &p->owners, &p->owner_capacity, i, sizeof *p->owners)) {
        p->owners[i] = (owner){.info = {.owner = (memfit_owner)i, .kind = kind}};
        strncpy(p->owners[i].info.name, name, 63);
        p->owner_count++;
    }
    if (i == p->owner_count)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no host memory for an owner");
    else
        *out = (memfit_owner)i;
    pthread_mutex_unlock(&p->lock);
    return status;
}

static void count(memfit_pool *p, block *b, int sign)
{
    owner *o = &p->owners[b->owner];
    uint64_t bytes = sign > 0 ? b->bytes : 0 - b->bytes;
    o->info.bytes += bytes;
    o->info.blocks += (uint64_t)(int64_t)sign;
    p->info.blocks += (uint64_t)(int64_t)sign;
    p->info.in_use_bytes += bytes;
    p->info.kind_bytes[o->info.kind] += bytes;
    p->info.reserved_bytes += sign > 0 ? b->taken : 0 - b->taken;
    if (o->info.bytes > o->info.peak_bytes)
        o->info.peak_bytes = o->info.bytes;
    if (p->info.in_use_bytes > p->info.in_use_peak_bytes)
        p->info.in_use_peak_bytes = p->info.in_use_bytes;
    if (p->info.reserved_bytes > p->info.reserved_peak_bytes)
        p->info.reserved_peak_bytes = p->info.reserved_bytes;
}

static void tell(memfit_pool *p, mf_pool_op op, const block *b)
{
    if (p->hook)
        p->hook(p->hook_ctx, &(mf_pool_event){op, b->owner, b->stream, b->address, b->bytes});
}

memfit_status memfit_pool_alloc_on(memfit_pool *p, uint64_t bytes, uint64_t alignment, memfit_owner owner_id,
                                   memfit_stream stream, memfit_address *address, memfit_error *err)
{
    (void)alignment;
    uint64_t page = p->info.page_bytes, taken = (bytes + page - 1 + !bytes) / page * page;
    pthread_mutex_lock(&p->lock);
    memfit_status status = MEMFIT_OK;
    block *b = mf_host_zalloc(p->host, sizeof *b), **at = &p->blocks;
    mf_address place = p->range;
    for (; *at && (*at)->address - place < taken; at = &(*at)->next)
        place = (*at)->address + (*at)->taken;
    if (!b)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "pool: no host memory");
    else if (taken < bytes || p->info.reserved_bytes + p->info.fixed_bytes + taken > p->info.limit_bytes)
        status = mf_fail(err, MEMFIT_OUT_OF_MEMORY, "pool: %llu bytes asked, over the limit of %llu",
                         (unsigned long long)bytes, (unsigned long long)p->info.limit_bytes);
    else
        status = p->device->table->create(p->device, taken, &b->physical, err);
    if (!status) {
        status = p->device->table->map(p->device, place, taken, b->physical, err);
        if (!status && (status = p->device->table->access(p->device, place, taken, err)))
            p->device->table->unmap(p->device, place, taken, NULL);
        if (status)
            p->device->table->release(p->device, b->physical, taken, NULL);
    }
    if (!status) {
        *b = (block){*at, place, bytes, taken, p->info.marks, b->physical, owner_id, stream};
        *at = b;
        *address = place;
        p->info.allocations++;
        p->owners[owner_id].info.allocations++;
        count(p, b, 1);
        tell(p, MF_POOL_ALLOC, b);
    } else {
        p->info.failures++;
        mf_host_free(p->host, b, sizeof *b);
    }
    pthread_mutex_unlock(&p->lock);
    return status;
}

memfit_status memfit_pool_free_on(memfit_pool *p, memfit_address address, memfit_stream stream, memfit_error *err)
{
    (void)stream;
    pthread_mutex_lock(&p->lock);
    block **at = &p->blocks;
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    block *b = *at;
    if (b) {
        *at = b->next;
        p->device->table->unmap(p->device, b->address, b->taken, NULL);
        p->device->table->release(p->device, b->physical, b->taken, NULL);
        p->info.frees++;
        count(p, b, -1);
        tell(p, MF_POOL_FREE, b);
        mf_host_free(p->host, b, sizeof *b);
    }
    pthread_mutex_unlock(&p->lock);
    return b ? MEMFIT_OK : mf_fail(err, MEMFIT_MISUSE, "pool: %#llx is no live block", (unsigned long long)address);
}

memfit_status memfit_pool_alloc(memfit_pool *p, uint64_t bytes, memfit_owner o, memfit_address *a, memfit_error *err)
{
    return memfit_pool_alloc_on(p, bytes, 0, o, 0, a, err);
}

memfit_status memfit_pool_free(memfit_pool *p, memfit_address address, memfit_error *err)
{
    return memfit_pool_free_on(p, address, 0, err);
}

memfit_status memfit_pool_get_info(memfit_pool *p, memfit_pool_info *info, memfit_error *err)
{
    (void)err;
    pthread_mutex_lock(&p->lock);
    *info = p->info;
    pthread_mutex_unlock(&p->lock);
    return MEMFIT_OK;
}

memfit_status memfit_pool_owners(memfit_pool *p, memfit_owner_info *list, size_t most, size_t *n, memfit_error *err)
{
    (void)err;
    pthread_mutex_lock(&p->lock);
    *n = p->owner_count;
    for (size_t i = 0; i < most && i < *n; i++)
        list[i] = p->owners[i].info;
    pthread_mutex_unlock(&p->lock);
    return MEMFIT_OK;
}

void mf_pool_set_hook(memfit_pool *p, mf_pool_hook hook, void *ctx)
{
    p->hook = hook;
    p->hook_ctx = ctx;
}
