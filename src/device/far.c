/*
 * far.c: cpu memory that the host cannot reach, so that a machine without a card finds every place that follows a
 * device's address.
 *
 *     host side    [ reserved: PROT_NONE, mapped or not ............ ]
 *                  |<------------------ shift ----------------->|
 *     own side                                                  [ the same pages, readable and writable ... ]
 *
 * Two ranges of addresses are taken when the device is opened. What is handed out lies in the first, where any access
 * traps; the device's copies and the backend's kernels (ops/far.c) add `shift` and find the same pages of the cpu
 * device's memfd in the second. Pages, handles and capacity are the cpu device's.
 *
 * It records as a card does: while it does, copies and the backend's operations are kept and not done; a launch does them.
 * So what must be in host memory of its own, or at the same place the next time, is found here too. MEMFIT_FAR_LOST=N loses
 * the device at the Nth launch: from then on every copy and launch fails.
 */
#include "device/device.h"

#include "base/error.h"
#include "base/os.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of each of the two ranges: more than any machine that runs tests has, little beside 2^47. */
#define RANGE_BYTES (UINT64_C(1) << 38)

typedef struct far_device {
    mf_device base;
    mf_device *cpu;
    char *ranges; /* both */
    _Atomic uint64_t next;
    struct tape *recorded;  /* NULL: nothing is */
    uint64_t launches_left; /* until the device is lost; 0: it never is */
    bool lost;
} far_device;

enum { WORK_BYTES = 64 };

typedef struct work {
    mf_far_do *what;
    alignas(16) unsigned char with[WORK_BYTES];
} work;

typedef struct tape {
    work *list;
    uint64_t count, room;
    bool lost; /* there was no memory for all of it */
} tape;

static mf_device *cpu_of(mf_device *device)
{
    return ((far_device *)device)->cpu;
}

uint64_t mf_device_far_shift(const mf_device *device)
{
    (void)device;
    return RANGE_BYTES;
}

static mf_address own(mf_address address)
{
    return address + RANGE_BYTES;
}

static memfit_status far_memory(mf_device *device, uint64_t *total, uint64_t *free_bytes, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    return cpu->table->memory(cpu, total, free_bytes, err);
}

/* Addresses are not handed out twice: what reads an arena that is gone traps as well. */
static memfit_status far_reserve(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                                 memfit_error *err)
{
    far_device *f = (far_device *)device;
    uint64_t step = alignment > device->granularity ? alignment : device->granularity;
    uint64_t need = bytes + step + device->granularity, at = atomic_fetch_add(&f->next, need);
    if (at + need > RANGE_BYTES)
        return mf_fail(err, MEMFIT_OUT_OF_MEMORY, "far: no addresses left");
    *address = ((mf_address)(uintptr_t)f->ranges + at + step - 1) / step * step;
    return MEMFIT_OK;
}

static memfit_status far_unreserve(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    (void)device, (void)address, (void)bytes, (void)err;
    return MEMFIT_OK;
}

static memfit_status far_create(mf_device *device, uint64_t bytes, mf_physical *physical, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    return cpu->table->create(cpu, bytes, physical, err);
}

static memfit_status far_release(mf_device *device, mf_physical physical, uint64_t bytes, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    return cpu->table->release(cpu, physical, bytes, err);
}

static memfit_status far_map(mf_device *device, mf_address address, uint64_t bytes, mf_physical physical,
                             memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    memfit_status status = cpu->table->map(cpu, address, bytes, physical, err); /* PROT_NONE, and stays so */
    return status == MEMFIT_OK ? cpu->table->map(cpu, own(address), bytes, physical, err) : status;
}

static memfit_status far_access(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    memfit_status status = cpu->table->access(cpu, own(address), bytes, err);
    if (status == MEMFIT_OK)
        mf_os_populate((unsigned char *)(uintptr_t)own(address), bytes);
    return status;
}

static memfit_status far_unmap(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    memfit_status status = cpu->table->unmap(cpu, address, bytes, err);
    return status == MEMFIT_OK ? cpu->table->unmap(cpu, own(address), bytes, err) : status;
}

/* ---- streams and events ------------------------------------------------------------------------------------- */

static memfit_status far_stream_create(mf_device *device, mf_stream *stream, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    return cpu->table->stream_create(cpu, stream, err);
}

static memfit_status far_event_create(mf_device *device, mf_event *event, memfit_error *err)
{
    mf_device *cpu = cpu_of(device);
    return cpu->table->event_create(cpu, event, err);
}

static memfit_status far_nothing(mf_device *device, uint64_t id, memfit_error *err)
{
    (void)device, (void)id, (void)err;
    return MEMFIT_OK;
}

static _Atomic uint64_t waits;

uint64_t mf_device_far_waits(void)
{
    return atomic_load(&waits);
}

static memfit_status far_sync(mf_device *device, uint64_t id, memfit_error *err)
{
    (void)device, (void)id, (void)err;
    atomic_fetch_add(&waits, 1);
    return MEMFIT_OK;
}

static memfit_status far_nothing_two(mf_device *device, uint64_t a, uint64_t b, memfit_error *err)
{
    (void)device, (void)a, (void)b, (void)err;
    return MEMFIT_OK;
}

static memfit_status far_done(mf_device *device, mf_event event, bool *done, memfit_error *err)
{
    (void)device, (void)event, (void)err;
    *done = true;
    return MEMFIT_OK;
}

/* ---- recordings --------------------------------------------------------------------------------------------- */

bool mf_device_far_keep(mf_device *device, mf_far_do *what, const void *with, size_t bytes)
{
    tape *t = ((far_device *)device)->recorded;
    if (!t)
        return false;
    MEMFIT_ASSERT(bytes <= WORK_BYTES);
    if (t->count == t->room) {
        uint64_t room = t->room ? 2 * t->room : 64;
        work *list = mf_host_resize(device->host, t->list, t->room * sizeof *list, room * sizeof *list);
        t->lost = t->lost || !list;
        if (!list)
            return true;
        t->list = list;
        t->room = room;
    }
    t->list[t->count].what = what;
    memcpy(t->list[t->count++].with, with, bytes);
    return true;
}

static void far_record_destroy(mf_device *device, mf_recording record)
{
    tape *t = (tape *)(uintptr_t)record;
    if (!t)
        return;
    if (t->list)
        mf_host_free(device->host, t->list, t->room * sizeof *t->list);
    mf_host_free(device->host, t, sizeof *t);
}

static memfit_status far_record_begin(mf_device *device, mf_stream stream, memfit_error *err)
{
    far_device *f = (far_device *)device;
    (void)stream;
    if (f->recorded)
        return mf_fail(err, MEMFIT_CONFLICT, "a stream is being recorded already");
    f->recorded = mf_host_zalloc(device->host, sizeof *f->recorded);
    return f->recorded ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "far: no host memory to record");
}

static memfit_status far_record_end(mf_device *device, mf_stream stream, mf_recording *record, memfit_error *err)
{
    far_device *f = (far_device *)device;
    tape *t = f->recorded;
    (void)stream;
    f->recorded = NULL;
    if (t->lost) {
        far_record_destroy(device, (mf_recording)(uintptr_t)t);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "far: no host memory to record");
    }
    *record = (mf_recording)(uintptr_t)t;
    return MEMFIT_OK;
}

static memfit_status is_lost(memfit_error *err)
{
    return mf_fail(err, MEMFIT_DEVICE, "far: the device is lost");
}

static memfit_status far_record_launch(mf_device *device, mf_recording record, mf_stream stream, memfit_error *err)
{
    const tape *t = (const tape *)(uintptr_t)record;
    far_device *f = (far_device *)device;
    f->lost = f->lost || (f->launches_left && --f->launches_left == 0);
    memfit_status status = f->lost ? is_lost(err) : MEMFIT_OK;
    for (uint64_t i = 0; i < t->count && status == MEMFIT_OK; i++)
        status = t->list[i].what(device, t->list[i].with, stream, err);
    return status;
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

/* Bytes on their way; host memory where it is not the device's. */
typedef struct transfer {
    mf_address to, from;
    uint64_t bytes;
    unsigned char byte;
} transfer;

static memfit_status do_copy_in(mf_device *device, const void *with, mf_stream stream, memfit_error *err)
{
    const transfer *t = with;
    mf_device *cpu = cpu_of(device);
    return cpu->table->copy_in(cpu, own(t->to), (const void *)(uintptr_t)t->from, t->bytes, stream, err);
}

static memfit_status do_copy_out(mf_device *device, const void *with, mf_stream stream, memfit_error *err)
{
    const transfer *t = with;
    mf_device *cpu = cpu_of(device);
    return cpu->table->copy_out(cpu, (void *)(uintptr_t)t->to, own(t->from), t->bytes, stream, err);
}

static memfit_status do_copy(mf_device *device, const void *with, mf_stream stream, memfit_error *err)
{
    const transfer *t = with;
    mf_device *cpu = cpu_of(device);
    return cpu->table->copy(cpu, own(t->to), own(t->from), t->bytes, stream, err);
}

static memfit_status do_fill(mf_device *device, const void *with, mf_stream stream, memfit_error *err)
{
    const transfer *t = with;
    mf_device *cpu = cpu_of(device);
    return cpu->table->fill(cpu, own(t->to), t->byte, t->bytes, stream, err);
}

/* At once, or when what is being recorded is launched. */
static memfit_status transfer_by(mf_device *device, mf_far_do *what, transfer t, mf_stream stream, memfit_error *err)
{
    if (((far_device *)device)->lost)
        return is_lost(err);
    return mf_device_far_keep(device, what, &t, sizeof t) ? MEMFIT_OK : what(device, &t, stream, err);
}

static memfit_status far_copy_in(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                                 memfit_error *err)
{
    return transfer_by(device, do_copy_in, (transfer){to, (uintptr_t)from, bytes, 0}, stream, err);
}

static memfit_status far_copy_out(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                                  memfit_error *err)
{
    return transfer_by(device, do_copy_out, (transfer){(uintptr_t)to, from, bytes, 0}, stream, err);
}

static memfit_status far_copy(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                              memfit_error *err)
{
    return transfer_by(device, do_copy, (transfer){to, from, bytes, 0}, stream, err);
}

static memfit_status far_fill(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                              memfit_error *err)
{
    return transfer_by(device, do_fill, (transfer){to, 0, bytes, byte}, stream, err);
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static void far_destroy(mf_device *device)
{
    far_device *f = (far_device *)device;
    const memfit_host *host = device->host;
    if (f->ranges)
        munmap(f->ranges, 2 * RANGE_BYTES);
    if (f->cpu)
        f->cpu->table->destroy(f->cpu);
    mf_device_end(device);
    mf_host_free(host, f, sizeof *f);
}

static const mf_device_table far_table = {
    .kind = "far",
    .destroy = far_destroy,
    .memory = far_memory,
    .reserve = far_reserve,
    .unreserve = far_unreserve,
    .create = far_create,
    .release = far_release,
    .map = far_map,
    .access = far_access,
    .unmap = far_unmap,
    .stream_create = far_stream_create,
    .stream_destroy = far_nothing,
    .stream_wait = far_nothing_two,
    .stream_sync = far_sync,
    .event_create = far_event_create,
    .event_destroy = far_nothing,
    .event_record = far_nothing_two,
    .event_done = far_done,
    .copy_in = far_copy_in,
    .copy_out = far_copy_out,
    .copy = far_copy,
    .fill = far_fill,
    .record_begin = far_record_begin,
    .record_end = far_record_end,
    .record_launch = far_record_launch,
    .record_destroy = far_record_destroy,
};

memfit_status mf_device_open_far(const memfit_host *host, mf_device **device, memfit_error *err)
{
    far_device *f = mf_host_zalloc(host, sizeof *f);
    if (!f)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "far: no host memory");
    memfit_status status = mf_device_init(&f->base, &far_table, host, err);
    if (status != MEMFIT_OK) {
        mf_host_free(host, f, sizeof *f);
        return status;
    }
    memfit_device_options options = MEMFIT_DEVICE_OPTIONS;
    options.host = host;
    status = mf_device_open_cpu(&options, 0, &f->cpu, err);
    void *p = status == MEMFIT_OK
                  ? mmap(NULL, 2 * RANGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                  : MAP_FAILED;
    if (status == MEMFIT_OK && p == MAP_FAILED)
        status = mf_fail(err, MEMFIT_DEVICE, "far: reserving addresses: %s", strerror(errno));
    if (status != MEMFIT_OK) {
        far_destroy(&f->base);
        return status;
    }
    const char *launches = getenv("MEMFIT_FAR_LOST");
    f->launches_left = launches ? strtoull(launches, NULL, 10) : 0;
    f->ranges = p;
    f->base.granularity = f->cpu->granularity;
    memcpy(f->base.name, "far", sizeof "far");
    memcpy(f->base.opened_as, "far", sizeof "far");
    *device = &f->base;
    return MEMFIT_OK;
}
