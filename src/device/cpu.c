/*
 * cpu.c: this machine's memory as a device with a capacity.
 *
 *     memfd   one sparse file in memory; a handle is a range of it, populated when created, its pages punched out
 *             when released
 *     reserve an inaccessible anonymous mapping; map puts a range of the file over a part of it, unmap puts the
 *             inaccessible mapping back
 *
 * So memory really comes and goes page by page, and one range can be taken from one address to another, as on a GPU.
 * Creation populates: what is created is there, and cannot turn into a SIGBUS later. Offsets in the file only grow (a
 * sparse file is 2^62 bytes long), so handles created one after the other are neighbours in the file, and the kernel
 * joins them to one mapping when they are mapped side by side: a pool of 100 GiB stays far below the limit of 65,530
 * mappings.
 *
 * Dropped: one memfd a handle (runs into the limit of open files at 2 GiB), and private anonymous memory moved by
 * mremap (moves, but cannot be kept unmapped, and the capacity is not populated).
 *
 * Work on a cpu "stream" is done when the call returns.
 */
#include "device/device.h"

#include "base/error.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct cpu {
    mf_device base;
    int fd;
    uint64_t capacity;
    _Atomic uint64_t used;
    _Atomic uint64_t next_offset;
    _Atomic uint64_t unchecked; /* created since the system was last asked what it still has */
    _Atomic uint64_t next_id;
} cpu;

enum { CHECK_EVERY = 64 << 20 };

static memfit_status cpu_memory(mf_device *device, uint64_t *total, uint64_t *free_bytes, memfit_error *err)
{
    cpu *c = (cpu *)device;
    (void)err;
    uint64_t used = c->used + device->fixed_bytes, available = mf_os_available_memory();
    uint64_t left = used < c->capacity ? c->capacity - used : 0;
    *total = c->capacity;
    *free_bytes = left < available ? left : available;
    return MEMFIT_OK;
}

static memfit_status cpu_reserve(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                                 memfit_error *err)
{
    if (!bytes || bytes % device->granularity || bytes >= UINT64_C(1) << 47)
        return mf_fail(err, MEMFIT_INVALID, "cpu: cannot reserve %llu bytes of addresses", (unsigned long long)bytes);
    uint64_t slack = alignment > device->granularity ? alignment : 0;
    char *p = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_DEVICE, "cpu: reserving %llu bytes of addresses: %s", (unsigned long long)bytes,
                       strerror(errno));
    char *start = p;
    if (slack) {
        start = (char *)(((uintptr_t)p + alignment - 1) / alignment * alignment);
        if (start != p)
            munmap(p, (size_t)(start - p));
        if (start + bytes != p + bytes + slack)
            munmap(start + bytes, (size_t)(p + bytes + slack - (start + bytes)));
    }
    *address = (mf_address)(uintptr_t)start;
    return MEMFIT_OK;
}

static memfit_status cpu_unreserve(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device;
    if (munmap((void *)(uintptr_t)address, bytes))
        return mf_fail(err, MEMFIT_DEVICE, "cpu: giving addresses back: %s", strerror(errno));
    return MEMFIT_OK;
}

/* Takes `bytes` of the capacity; the system's own memory is asked for every 64 MiB. */
static memfit_status take(cpu *c, uint64_t bytes, memfit_error *err)
{
    uint64_t used = c->used;
    do {
        uint64_t with_fixed = used + c->base.fixed_bytes;
        if (with_fixed > c->capacity || bytes > c->capacity - with_fixed)
            return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "cpu: %llu bytes asked, %llu of %llu free",
                           (unsigned long long)bytes,
                           (unsigned long long)(with_fixed < c->capacity ? c->capacity - with_fixed : 0),
                           (unsigned long long)c->capacity);
    } while (!atomic_compare_exchange_weak(&c->used, &used, used + bytes));
    if (atomic_fetch_add(&c->unchecked, bytes) + bytes < CHECK_EVERY)
        return MEMFIT_OK;
    atomic_store(&c->unchecked, 0);
    uint64_t available = mf_os_available_memory();
    if (available >= bytes + CHECK_EVERY)
        return MEMFIT_OK;
    atomic_fetch_sub(&c->used, bytes);
    atomic_store(&c->unchecked, CHECK_EVERY);
    return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "cpu: %llu bytes asked, the system has %llu left",
                   (unsigned long long)bytes, (unsigned long long)available);
}

static memfit_status cpu_create(mf_device *device, uint64_t bytes, mf_physical *physical, memfit_error *err)
{
    cpu *c = (cpu *)device;
    if (!bytes || bytes % device->granularity)
        return mf_fail(err, MEMFIT_MISUSE, "cpu: create of %llu bytes: not whole pages", (unsigned long long)bytes);
    memfit_status status = take(c, bytes, err);
    if (status)
        return status;
    uint64_t offset = atomic_fetch_add(&c->next_offset, bytes);
    int failed;
    do
        failed = fallocate(c->fd, 0, (off_t)offset, (off_t)bytes);
    while (failed && errno == EINTR);
    if (failed) {
        int why = errno;
        atomic_fetch_sub(&c->used, bytes);
        return mf_fail(err, why == ENOMEM || why == ENOSPC ? MEMFIT_OUT_OF_MEMORY : MEMFIT_DEVICE,
                       "cpu: creating %llu bytes: %s", (unsigned long long)bytes, strerror(why));
    }
    *physical = offset / device->granularity + 1;
    return MEMFIT_OK;
}

static off_t offset_of(mf_device *device, mf_physical physical)
{
    return (off_t)((physical - 1) * device->granularity);
}

static memfit_status cpu_release(mf_device *device, mf_physical physical, uint64_t bytes, memfit_error *err)
{
    cpu *c = (cpu *)device;
    if (fallocate(c->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset_of(device, physical), (off_t)bytes))
        return mf_fail(err, MEMFIT_DEVICE, "cpu: giving pages back: %s", strerror(errno));
    atomic_fetch_sub(&c->used, bytes);
    return MEMFIT_OK;
}

static memfit_status cpu_map(mf_device *device, mf_address address, uint64_t bytes, mf_physical physical,
                             memfit_error *err)
{
    cpu *c = (cpu *)device;
    void *p =
        mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, c->fd, offset_of(device, physical));
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_DEVICE, "cpu: mapping pages: %s", strerror(errno));
    return MEMFIT_OK;
}

static memfit_status cpu_access(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device;
    if (mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE))
        return mf_fail(err, MEMFIT_DEVICE, "cpu: making pages accessible: %s", strerror(errno));
    madvise((void *)(uintptr_t)address, bytes,
            MADV_DONTFORK); /* shared memory: a child would write into the parent's */
    return MEMFIT_OK;
}

static memfit_status cpu_unmap(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device;
    void *p = mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (p == MAP_FAILED)
        return mf_fail(err, MEMFIT_DEVICE, "cpu: unmapping pages: %s", strerror(errno));
    return MEMFIT_OK;
}

/* ---- streams and events: numbers, always done ---------------------------------------------------------------- */

static memfit_status new_id(mf_device *device, uint64_t *id, memfit_error *err)
{
    (void)err;
    *id = atomic_fetch_add(&((cpu *)device)->next_id, 1) + 1;
    return MEMFIT_OK;
}

static memfit_status nothing(mf_device *device, uint64_t id, memfit_error *err)
{
    (void)device, (void)id, (void)err;
    return MEMFIT_OK;
}

static memfit_status nothing_two(mf_device *device, uint64_t a, uint64_t b, memfit_error *err)
{
    (void)device, (void)a, (void)b, (void)err;
    return MEMFIT_OK;
}

static memfit_status cpu_event_done(mf_device *device, mf_event event, bool *done, memfit_error *err)
{
    (void)device, (void)event, (void)err;
    *done = true;
    return MEMFIT_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static memfit_status cpu_copy_in(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                                 memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memcpy((void *)(uintptr_t)to, from, bytes);
    return MEMFIT_OK;
}

static memfit_status cpu_copy_out(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                                  memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memcpy(to, (const void *)(uintptr_t)from, bytes);
    return MEMFIT_OK;
}

static memfit_status cpu_copy(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                              memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return MEMFIT_OK;
}

static memfit_status cpu_fill(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                              memfit_error *err)
{
    (void)device, (void)stream, (void)err;
    if (bytes)
        memset((void *)(uintptr_t)to, byte, bytes);
    return MEMFIT_OK;
}

static void cpu_destroy(mf_device *device)
{
    cpu *c = (cpu *)device;
    const memfit_host *host = device->host;
    if (c->fd >= 0)
        close(c->fd);
    mf_device_end(device);
    mf_host_free(host, c, sizeof *c);
}

static const mf_device_table cpu_table = {
    .kind = "cpu",
    .destroy = cpu_destroy,
    .memory = cpu_memory,
    .reserve = cpu_reserve,
    .unreserve = cpu_unreserve,
    .create = cpu_create,
    .release = cpu_release,
    .map = cpu_map,
    .access = cpu_access,
    .unmap = cpu_unmap,
    .stream_create = new_id,
    .stream_destroy = nothing,
    .stream_wait = nothing_two,
    .stream_sync = nothing,
    .event_create = new_id,
    .event_destroy = nothing,
    .event_record = nothing_two,
    .event_done = cpu_event_done,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_out,
    .copy = cpu_copy,
    .fill = cpu_fill,
};

memfit_status mf_device_open_cpu(const memfit_device_options *options, unsigned index, mf_device **device,
                                 memfit_error *err)
{
    if (index)
        return mf_fail(err, MEMFIT_NOT_FOUND, "cpu:%u: there is one cpu device, cpu", index);
    if (options->granularity_bytes)
        return mf_fail(err, MEMFIT_INVALID, "cpu: the granularity is the system's and cannot be set");
    mf_os_memory memory;
    memfit_status status = mf_os_process_memory(&memory, err);
    if (status)
        return status;
    cpu *c = mf_host_zalloc(options->host, sizeof *c);
    if (!c)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "cpu: no host memory");
    status = mf_device_init(&c->base, &cpu_table, options->host, err);
    if (status) {
        mf_host_free(options->host, c, sizeof *c);
        return status;
    }
    c->base.granularity = mf_os_page_bytes();
    c->base.reachable = true;
    c->base.fixed_bytes = options->fixed_bytes ? options->fixed_bytes : memory.rss_anon + memory.rss_shmem;
    c->capacity = options->capacity_bytes ? options->capacity_bytes : mf_os_available_memory() + c->base.fixed_bytes;
    c->unchecked = CHECK_EVERY;
    memcpy(c->base.name, "cpu", sizeof "cpu");
    c->fd = memfd_create("memfit", MFD_CLOEXEC);
    if (c->fd < 0 || ftruncate(c->fd, (off_t)(UINT64_C(1) << 62))) {
        status = mf_fail(err, MEMFIT_DEVICE, "cpu: a file in memory: %s", strerror(errno));
        cpu_destroy(&c->base);
        return status;
    }
    *device = &c->base;
    return MEMFIT_OK;
}
