/*
 * fake_cuda.c: a libcuda.so.1 without a card, for the functions memfit calls (device/cuda_driver.h). Device memory is a
 * memfd: a handle is a range of it, mapping shows it at an address, so bytes written through one mapping are seen
 * through another, and touching what is not mapped or not opened by cuMemSetAccess is a SIGSEGV, as a GPU's illegal
 * access would be.
 *
 * Rules of the real driver that it keeps (conformance_cuda.c runs on both):
 *   - a handle is mapped whole, at offset 0, on free reserved addresses aligned to 2 MiB
 *   - unmapping takes whole mappings; memory lives until it is released and unmapped everywhere
 *   - access only to ranges mapped without a hole; reserved addresses are freed only when nothing is mapped there
 *   - sizes are multiples of 2 MiB; creating beyond the card's free memory is error 2
 *   - while a stream is captured it is not waited for, and events recorded on it are not asked about
 *   - what is captured runs when its graph is launched, each time with the bytes its pinned memory has then
 *   - a stream that waits for captured work is captured, too, and must be waited for before the capture ends
 * and one that the driver does not check: memory that work in flight touches is not unmapped. Copies and fills on a held
 * stream are queued, and done when the stream is let go; so who hands out memory too early sees the wrong bytes.
 * Every breach is answered with the driver's code and counted.
 *
 * It is long because one lock guards one state that every call looks at: which bytes are where, who may touch them, and
 * what is in flight. Cut in two, each half would have to show the other all of it.
 *
 * Settings: FAKE_CUDA_DEVICES (1), FAKE_CUDA_BYTES (1 GiB a device), FAKE_CUDA_VERSION (13000), FAKE_CUDA_CONTEXT
 * (bytes a context costs, 64 MiB), FAKE_CUDA_NO_VMM, FAKE_CUDA_INIT (code cuInit answers).
 */
#include "fake_cuda.h"

#include "device/cuda_driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum {
    PAGE = 2 << 20,
    MOST_HANDLES = 65536,
    MOST_MAPPINGS = 65536,
    MOST_RESERVATIONS = 256,
    MOST_DEVICES = 8,
    MOST_EVENTS = 65536,
    MOST_STREAMS = 256,
    MOST_QUEUED = 65536,
    MOST_GRAPHS = 64,
    MOST_PINNED = 256,
    MOST_NAMES = 128
};
enum { CAPTURE_UNSUPPORTED = 900, NOT_CAPTURED = 901, CAPTURED_EVENT = 907, UNJOINED = 904 };

typedef struct {
    uint64_t bytes, offset;
    int device;
    unsigned references, maps; /* gone when both are 0 */
} handle_row;
typedef struct {
    uint64_t address, bytes;
    uint32_t handle;
    bool open;
    unsigned open_to; /* a bit a device */
} mapping_row;
typedef struct {
    uint64_t address, bytes;
} range_row;

static struct {
    pthread_mutex_t lock;
    bool initialised;
    int fd;
    uint64_t file_end;
    handle_row handles[MOST_HANDLES]; /* a handle's number is its index + 1 */
    uint32_t handle_count;
    mapping_row mappings[MOST_MAPPINGS];
    uint32_t mapping_count;
    range_row reservations[MOST_RESERVATIONS];
    uint32_t reservation_count;
    range_row plain[MOST_RESERVATIONS];
    uint32_t plain_count;
    uint64_t used[MOST_DEVICES], foreign;
    unsigned contexts[MOST_DEVICES];
    struct {
        bool alive, held, captured;
        bool forked, apart;  /* captured since it waited for a captured event; and nobody has waited for it since */
    } streams[MOST_STREAMS]; /* 0 is the default stream */
    struct {
        bool alive, waiting; /* waiting: recorded on a held stream */
        bool captured, timed;
        uint32_t stream;
    } events[MOST_EVENTS];
    uint32_t event_count;
    uint64_t modules; /* loaded so far */
    struct queued {
        uint32_t stream;
        enum { FILL, COPY_IN, COPY_OUT, COPY, EVENT } what;
        uint64_t to, from, bytes; /* EVENT: to is its number */
        unsigned char byte;
        void *staged; /* COPY_IN: the bytes, taken at once as the driver does with pageable memory */
    } queue[MOST_QUEUED];
    uint32_t queue_count;
    struct graph {
        bool alive, whole;   /* whole: instantiated, or waiting for it */
        struct queued *work; /* COPY_IN reads the host's memory when it is launched */
        uint32_t count, room;
    } graphs[MOST_GRAPHS];                /* a graph and what is instantiated of it are two of them */
    uint32_t captured_into[MOST_STREAMS]; /* by stream: graph + 1; 0: by fake_cuda_capture, work is lost */
    void *pinned[MOST_PINNED];
    char fail_name[64];
    uint64_t fail_nth;
    int fail_code;
    bool fail_for_ever;
    uint64_t calls, broken;
    struct {
        const char *name;
        uint64_t calls;
    } counted[MOST_NAMES]; /* by function, in the order they were first called */
    char first_broken[160];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static __thread cu_context stack[16];
static __thread int depth;

static uint64_t setting(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : fallback;
}

/* A driver without memory still gives back, and knows its contexts. */
static bool gives_back(const char *name)
{
    static const char *const words[] = {"Destroy", "Free", "Release", "Unmap", "Unload", "Current"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i]))
            return true;
    return false;
}

static uint64_t *count_of(const char *name)
{
    unsigned i = 0;
    while (i < MOST_NAMES - 1 && fake.counted[i].name && strcmp(fake.counted[i].name, name) != 0)
        i++;
    fake.counted[i].name = name;
    return &fake.counted[i].calls;
}

/* Counts the call and says with which code it must fail, if it must. */
static int planned_failure(const char *name)
{
    fake.calls++;
    ++*count_of(name);
    if (!fake.fail_nth || (fake.fail_name[0] && strcmp(fake.fail_name, name) != 0))
        return 0;
    if (fake.fail_nth > 1) {
        fake.fail_nth--;
        return 0;
    }
    if (!fake.fail_for_ever)
        fake.fail_nth = 0;
    return fake.fail_code == CU_ERROR_OUT_OF_MEMORY && !fake.fail_name[0] && gives_back(name) ? 0 : fake.fail_code;
}

static void breach(const char *name, const char *words)
{
    if (!fake.broken++)
        snprintf(fake.first_broken, sizeof fake.first_broken, "%s: %s", name, words);
}

/* Every counted function begins with ENTER and ends with LEAVE; in between, code is its answer. */
#define ENTER(function)                                                                                                \
    pthread_mutex_lock(&fake.lock);                                                                                    \
    const char *name = (function);                                                                                     \
    int code = planned_failure(name);                                                                                  \
    if (code == 0 && !fake.initialised && strcmp(name, "cuInit") != 0)                                                 \
        code = CU_ERROR_NOT_INITIALIZED;                                                                               \
    if (code != 0)                                                                                                     \
    goto leave
#define LEAVE                                                                                                          \
    leave:                                                                                                             \
    pthread_mutex_unlock(&fake.lock);                                                                                  \
    return code
#define RULE(condition, answer, words)                                                                                 \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            breach(name, (words));                                                                                     \
            code = (answer);                                                                                           \
            goto leave;                                                                                                \
        }                                                                                                              \
    } while (0)
#define REFUSE(condition)                                                                                              \
    do {                                                                                                               \
        if (condition) {                                                                                               \
            code = CU_ERROR_OUT_OF_MEMORY;                                                                             \
            goto leave;                                                                                                \
        }                                                                                                              \
    } while (0)
#define NEED_CONTEXT RULE(depth > 0, CU_ERROR_INVALID_CONTEXT, "no context is current")

/* ---- start, devices, contexts ----------------------------------------------------------------------------- */

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    ENTER("cuInit");
    code = (int)setting("FAKE_CUDA_INIT", 0);
    if (code)
        goto leave;
    if (fake.fd < 0)
        fake.fd = memfd_create("fake-card", MFD_CLOEXEC);
    fake.initialised = true;
    fake.streams[0].alive = true;
    LEAVE;
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = (int)setting("FAKE_CUDA_VERSION", 13000);
    return 0;
}

EXPORT int cuGetErrorName(int code, const char **text)
{
    *text = code == 2    ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == 1  ? "CUDA_ERROR_INVALID_VALUE"
            : code == 34 ? "CUDA_ERROR_STUB_LIBRARY"
                         : "CUDA_ERROR_FAKE";
    return 0;
}

EXPORT int cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount");
    *count = (int)setting("FAKE_CUDA_DEVICES", 1);
    LEAVE;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    ENTER("cuDeviceGet");
    RULE(ordinal >= 0 && ordinal < (int)setting("FAKE_CUDA_DEVICES", 1), CU_ERROR_INVALID_DEVICE, "no such device");
    *device = ordinal;
    LEAVE;
}

EXPORT int cuDeviceGetName(char *text, int length, int device)
{
    ENTER("cuDeviceGetName");
    snprintf(text, (size_t)length, "Fake Card %d", device);
    LEAVE;
}

EXPORT int cuDeviceGetUuid_v2(cu_uuid *uuid, int device)
{
    ENTER("cuDeviceGetUuid_v2");
    memset(uuid, 0xA0 + device, sizeof *uuid);
    LEAVE;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    ENTER("cuDeviceTotalMem_v2");
    *bytes = setting("FAKE_CUDA_BYTES", 1ull << 30);
    LEAVE;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    ENTER("cuDeviceGetAttribute");
    static const int h200[][2] = {
        {13, 1980000}, {16, 132}, {36, 3201000}, {37, 6016}, {38, 62914560}}; /* clocks in kHz */
    *value = attribute == CU_ATTRIBUTE_VMM_SUPPORTED      ? !getenv("FAKE_CUDA_NO_VMM")
             : attribute == CU_ATTRIBUTE_CAPABILITY_MAJOR ? 9
                                                          : 0;
    for (size_t i = 0; i < sizeof h200 / sizeof *h200; i++)
        if (attribute == h200[i][0])
            *value = h200[i][1];
    LEAVE;
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER("cuDeviceCanAccessPeer");
    RULE(device != peer, CU_ERROR_INVALID_DEVICE, "a card is no peer of itself");
    *can = !getenv("FAKE_CUDA_NO_PEER");
    LEAVE;
}

static uint64_t card_free(int device)
{
    uint64_t total = setting("FAKE_CUDA_BYTES", 1ull << 30);
    uint64_t used = fake.used[device] + (device == 0 ? fake.foreign : 0);
    return used < total ? total - used : 0;
}

EXPORT int cuDevicePrimaryCtxRetain(cu_context *context, int device)
{
    ENTER("cuDevicePrimaryCtxRetain");
    if (!fake.contexts[device]) {
        uint64_t cost = setting("FAKE_CUDA_CONTEXT", 64 << 20);
        REFUSE(cost > card_free(device));
        fake.used[device] += cost;
    }
    fake.contexts[device]++;
    *context = (cu_context)(uintptr_t)(0x1000 + device);
    LEAVE;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    ENTER("cuDevicePrimaryCtxRelease_v2");
    RULE(fake.contexts[device], CU_ERROR_INVALID_CONTEXT, "released more often than retained");
    if (!--fake.contexts[device])
        fake.used[device] -= setting("FAKE_CUDA_CONTEXT", 64 << 20);
    LEAVE;
}

EXPORT int cuCtxGetCurrent(cu_context *context)
{
    *context = depth ? stack[depth - 1] : NULL;
    return 0;
}

EXPORT int cuCtxPushCurrent_v2(cu_context context)
{
    ENTER("cuCtxPushCurrent_v2");
    RULE(depth < 16, CU_ERROR_INVALID_VALUE, "the context stack is full");
    stack[depth++] = context;
    LEAVE;
}

EXPORT int cuCtxPopCurrent_v2(cu_context *context)
{
    if (!depth)
        return CU_ERROR_INVALID_CONTEXT;
    *context = stack[--depth];
    return 0;
}

static int current_device(void)
{
    return (int)((uintptr_t)stack[depth - 1] - 0x1000);
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER("cuMemGetInfo_v2");
    NEED_CONTEXT;
    *total = setting("FAKE_CUDA_BYTES", 1ull << 30);
    *free_bytes = card_free(current_device());
    LEAVE;
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

EXPORT int cuMemAlloc_v2(cu_address *address, size_t bytes)
{
    ENTER("cuMemAlloc_v2");
    NEED_CONTEXT;
    uint64_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    RULE(bytes && fake.plain_count < MOST_RESERVATIONS, CU_ERROR_INVALID_VALUE, "no bytes asked");
    REFUSE(whole > card_free(current_device()));
    char *p = mmap(NULL, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REFUSE(p == MAP_FAILED);
    size_t before = (PAGE - (uintptr_t)p % PAGE) % PAGE; /* from a page on, as the driver does for large ones */
    if (before)
        munmap(p, before);
    munmap(p + before + whole, PAGE - before);
    p += before;
    fake.used[current_device()] += whole;
    fake.plain[fake.plain_count++] = (range_row){(uintptr_t)p, whole};
    *address = (uintptr_t)p;
    LEAVE;
}

/* Does work in flight touch these addresses? */
static bool in_flight(uint64_t address, uint64_t bytes)
{
    for (uint32_t i = 0; i < fake.queue_count; i++) {
        const struct queued *q = &fake.queue[i];
        bool to = q->what != COPY_OUT && q->to < address + bytes && address < q->to + q->bytes;
        bool from = q->what >= COPY_OUT && q->from < address + bytes && address < q->from + q->bytes;
        if (to || from)
            return true;
    }
    return false;
}

EXPORT int cuMemFree_v2(cu_address address)
{
    ENTER("cuMemFree_v2");
    NEED_CONTEXT;
    uint32_t i = 0;
    while (i < fake.plain_count && fake.plain[i].address != address)
        i++;
    RULE(i < fake.plain_count, CU_ERROR_INVALID_VALUE, "not an address cuMemAlloc gave");
    RULE(!in_flight(address, fake.plain[i].bytes), CU_ERROR_INVALID_VALUE, "work in flight touches this memory");
    munmap((void *)(uintptr_t)address, fake.plain[i].bytes);
    fake.used[current_device()] -= fake.plain[i].bytes;
    fake.plain[i] = fake.plain[--fake.plain_count];
    LEAVE;
}

static bool known_properties(const cu_allocation_prop *prop)
{
    return prop->type == CU_ALLOCATION_PINNED && prop->location.type == CU_LOCATION_DEVICE && prop->location.id >= 0 &&
           prop->location.id < MOST_DEVICES;
}

EXPORT int cuMemGetAllocationGranularity(size_t *bytes, const cu_allocation_prop *prop, int option)
{
    (void)option;
    ENTER("cuMemGetAllocationGranularity");
    RULE(known_properties(prop), CU_ERROR_INVALID_VALUE, "unknown properties");
    *bytes = PAGE;
    LEAVE;
}

EXPORT int cuMemAddressReserve(cu_address *address, size_t bytes, size_t alignment, cu_address wish,
                               unsigned long long flags)
{
    ENTER("cuMemAddressReserve");
    RULE(bytes && bytes % PAGE == 0 && flags == 0 && wish == 0 && (alignment & (alignment - 1)) == 0,
         CU_ERROR_INVALID_VALUE, "size, alignment or flags");
    REFUSE(fake.reservation_count == MOST_RESERVATIONS);
    uint64_t align = alignment > PAGE ? alignment : PAGE;
    char *p = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REFUSE(p == MAP_FAILED);
    char *start = (char *)(((uintptr_t)p + align - 1) / align * align);
    if (start > p)
        munmap(p, (size_t)(start - p));
    if (start < p + align)
        munmap(start + bytes, (size_t)(p + align - start));
    fake.reservations[fake.reservation_count++] = (range_row){(uintptr_t)start, bytes};
    *address = (uintptr_t)start;
    LEAVE;
}

static bool mapped_in(uint64_t address, uint64_t bytes)
{
    for (uint32_t i = 0; i < fake.mapping_count; i++)
        if (fake.mappings[i].address < address + bytes && address < fake.mappings[i].address + fake.mappings[i].bytes)
            return true;
    return false;
}

EXPORT int cuMemAddressFree(cu_address address, size_t bytes)
{
    ENTER("cuMemAddressFree");
    uint32_t i = 0;
    while (i < fake.reservation_count && fake.reservations[i].address != address)
        i++;
    RULE(i < fake.reservation_count && fake.reservations[i].bytes == bytes, CU_ERROR_INVALID_VALUE,
         "not a whole reservation");
    RULE(!mapped_in(address, bytes), CU_ERROR_INVALID_VALUE, "something is still mapped there");
    munmap((void *)(uintptr_t)address, bytes);
    fake.reservations[i] = fake.reservations[--fake.reservation_count];
    LEAVE;
}

EXPORT int cuMemCreate(cu_handle *handle, size_t bytes, const cu_allocation_prop *prop, unsigned long long flags)
{
    ENTER("cuMemCreate");
    RULE(bytes && bytes % PAGE == 0 && flags == 0, CU_ERROR_INVALID_VALUE, "size is no multiple of 2 MiB");
    RULE(known_properties(prop), CU_ERROR_INVALID_VALUE, "unknown properties");
    REFUSE(bytes > card_free(prop->location.id));
    uint32_t i = 0;
    while (i < fake.handle_count && (fake.handles[i].references || fake.handles[i].maps))
        i++;
    REFUSE(i == MOST_HANDLES || ftruncate(fake.fd, (off_t)(fake.file_end + bytes)));
    fake.handles[i] = (handle_row){bytes, fake.file_end, prop->location.id, 1, 0};
    fake.file_end += bytes;
    if (i == fake.handle_count)
        fake.handle_count++;
    fake.used[prop->location.id] += bytes;
    *handle = i + 1;
    LEAVE;
}

static void drop_if_gone(handle_row *h)
{
    if (h->references || h->maps)
        return;
    fallocate(fake.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)h->offset, (off_t)h->bytes);
    fake.used[h->device] -= h->bytes;
    h->bytes = 0;
}

static handle_row *handle_of(cu_handle handle)
{
    return handle && handle <= fake.handle_count && fake.handles[handle - 1].references ? &fake.handles[handle - 1]
                                                                                        : NULL;
}

EXPORT int cuMemRelease(cu_handle handle)
{
    ENTER("cuMemRelease");
    handle_row *h = handle_of(handle);
    RULE(h, CU_ERROR_INVALID_VALUE, "no such handle");
    h->references--;
    drop_if_gone(h);
    LEAVE;
}

EXPORT int cuMemMap(cu_address address, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags)
{
    ENTER("cuMemMap");
    handle_row *h = handle_of(handle);
    RULE(h, CU_ERROR_INVALID_VALUE, "no such handle");
    RULE(offset == 0 && flags == 0 && bytes == h->bytes, CU_ERROR_INVALID_VALUE, "a handle is mapped whole");
    uint32_t i = 0;
    while (i < fake.reservation_count &&
           !(address >= fake.reservations[i].address &&
             address + bytes <= fake.reservations[i].address + fake.reservations[i].bytes))
        i++;
    RULE(i < fake.reservation_count && address % PAGE == 0, CU_ERROR_INVALID_VALUE,
         "addresses that are not reserved, or not aligned");
    RULE(!mapped_in(address, bytes), CU_ERROR_INVALID_VALUE, "something is mapped there already");
    REFUSE(fake.mapping_count == MOST_MAPPINGS);
    fake.mappings[fake.mapping_count++] = (mapping_row){address, bytes, (uint32_t)handle - 1, false, 0};
    h->maps++;
    LEAVE;
}

static bool inside(const mapping_row *m, uint64_t address, uint64_t bytes)
{
    return m->address >= address && m->address + m->bytes <= address + bytes;
}

/* Do whole mappings cover the range without a hole? They never overlap, so a sum tells. */
static bool covered(uint64_t address, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < fake.mapping_count; i++)
        if (inside(&fake.mappings[i], address, bytes))
            sum += fake.mappings[i].bytes;
    return bytes && sum == bytes;
}

EXPORT int cuMemSetAccess(cu_address address, size_t bytes, const cu_access_desc *desc, size_t count)
{
    ENTER("cuMemSetAccess");
    unsigned devices = 0;
    for (size_t i = 0; i < count; i++) {
        RULE(desc[i].flags == CU_ACCESS_READ_WRITE && desc[i].location.id < MOST_DEVICES, CU_ERROR_INVALID_VALUE,
             "unknown access");
        devices |= 1u << desc[i].location.id;
    }
    RULE(devices, CU_ERROR_INVALID_VALUE, "access for nobody");
    RULE(covered(address, bytes), CU_ERROR_INVALID_VALUE, "not everything there is mapped");
    for (uint32_t i = 0; i < fake.mapping_count; i++) {
        mapping_row *m = &fake.mappings[i];
        if (!inside(m, address, bytes))
            continue;
        mmap((void *)(uintptr_t)m->address, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fake.fd,
             (off_t)fake.handles[m->handle].offset);
        m->open = true;
        m->open_to = devices;
    }
    LEAVE;
}

EXPORT int cuMemUnmap(cu_address address, size_t bytes)
{
    ENTER("cuMemUnmap");
    RULE(!in_flight(address, bytes), CU_ERROR_INVALID_VALUE, "work in flight touches this memory");
    if (bytes && !mapped_in(address, bytes)) { /* the driver takes this for done */
        breach(name, "nothing is mapped there");
        goto leave;
    }
    RULE(covered(address, bytes), CU_ERROR_INVALID_VALUE, "not whole mappings");
    for (uint32_t i = 0; i < fake.mapping_count;) {
        mapping_row m = fake.mappings[i];
        if (!inside(&m, address, bytes)) {
            i++;
            continue;
        }
        mmap((void *)(uintptr_t)m.address, m.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
        fake.handles[m.handle].maps--;
        drop_if_gone(&fake.handles[m.handle]);
        fake.mappings[i] = fake.mappings[--fake.mapping_count];
    }
    LEAVE;
}

/* ---- streams, events, bytes ------------------------------------------------------------------------------- */

static bool stream_known(cu_stream stream)
{
    return (uintptr_t)stream < MOST_STREAMS && fake.streams[(uintptr_t)stream].alive;
}

EXPORT int cuStreamCreate(cu_stream *stream, unsigned flags)
{
    (void)flags;
    ENTER("cuStreamCreate");
    NEED_CONTEXT;
    uintptr_t i = 1;
    while (i < MOST_STREAMS && fake.streams[i].alive)
        i++;
    REFUSE(i == MOST_STREAMS);
    fake.streams[i].alive = true;
    fake.streams[i].held = fake.streams[i].captured = false;
    fake.streams[i].forked = fake.streams[i].apart = false;
    *stream = (cu_stream)i;
    LEAVE;
}

EXPORT int cuStreamDestroy_v2(cu_stream stream)
{
    ENTER("cuStreamDestroy_v2");
    RULE(stream && stream_known(stream), CU_ERROR_INVALID_VALUE, "no such stream");
    fake.streams[(uintptr_t)stream].alive = false;
    LEAVE;
}

static void do_now(const struct queued *q)
{
    if (q->what == EVENT)
        fake.events[q->to].waiting = false;
    else if (q->what == FILL)
        memset((void *)(uintptr_t)q->to, q->byte, q->bytes);
    else if (q->what == COPY_IN)
        memcpy((void *)(uintptr_t)q->to, q->staged, q->bytes);
    else
        memmove((void *)(uintptr_t)q->to, (const void *)(uintptr_t)q->from, q->bytes);
    free(q->staged);
}

static void let_go(uintptr_t stream)
{
    fake.streams[stream].held = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < fake.queue_count; i++)
        if (fake.queue[i].stream == stream)
            do_now(&fake.queue[i]);
        else
            fake.queue[kept++] = fake.queue[i];
    fake.queue_count = kept;
    for (uint32_t i = 0; i < fake.event_count; i++)
        if (fake.events[i].stream == stream)
            fake.events[i].waiting = false;
}

EXPORT int cuStreamSynchronize(cu_stream stream)
{
    ENTER("cuStreamSynchronize");
    RULE(stream_known(stream), CU_ERROR_INVALID_VALUE, "no such stream");
    RULE(!fake.streams[(uintptr_t)stream].captured, CAPTURE_UNSUPPORTED, "the stream is captured");
    let_go((uintptr_t)stream); /* who waits for a held stream finds it done: a test must not hang */
    LEAVE;
}

EXPORT int cuCtxSynchronize(void)
{
    ENTER("cuCtxSynchronize");
    NEED_CONTEXT;
    for (uintptr_t i = 0; i < MOST_STREAMS; i++)
        RULE(!fake.streams[i].alive || !fake.streams[i].captured, CAPTURE_UNSUPPORTED, "a stream is captured");
    for (uintptr_t i = 0; i < MOST_STREAMS; i++)
        if (fake.streams[i].alive)
            let_go(i);
    LEAVE;
}

EXPORT int cuStreamIsCapturing(cu_stream stream, int *status)
{
    ENTER("cuStreamIsCapturing");
    RULE(stream_known(stream), CU_ERROR_INVALID_VALUE, "no such stream");
    *status = fake.streams[(uintptr_t)stream].captured;
    LEAVE;
}

static __thread int capture_mode;

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return 0;
}

EXPORT int cuEventCreate(cu_event *event, unsigned flags)
{
    ENTER("cuEventCreate");
    NEED_CONTEXT;
    uint32_t i = 0;
    while (i < fake.event_count && fake.events[i].alive)
        i++;
    REFUSE(i == MOST_EVENTS);
    if (i == fake.event_count)
        fake.event_count++;
    fake.events[i].alive = true;
    fake.events[i].waiting = fake.events[i].captured = false;
    fake.events[i].timed = !(flags & CU_EVENT_DISABLE_TIMING);
    *event = (cu_event)(uintptr_t)(i + 1);
    LEAVE;
}

static bool event_known(cu_event event)
{
    uintptr_t i = (uintptr_t)event;
    return i && i <= fake.event_count && fake.events[i - 1].alive;
}

EXPORT int cuEventDestroy_v2(cu_event event)
{
    ENTER("cuEventDestroy_v2");
    RULE(event_known(event), CU_ERROR_INVALID_VALUE, "no such event");
    fake.events[(uintptr_t)event - 1].alive = false;
    LEAVE;
}

EXPORT int cuEventRecord(cu_event event, cu_stream stream)
{
    ENTER("cuEventRecord");
    RULE(event_known(event) && stream_known(stream), CU_ERROR_INVALID_VALUE, "no such event or stream");
    fake.events[(uintptr_t)event - 1].stream = (uint32_t)(uintptr_t)stream;
    fake.events[(uintptr_t)event - 1].waiting = fake.streams[(uintptr_t)stream].held;
    fake.events[(uintptr_t)event - 1].captured = fake.streams[(uintptr_t)stream].captured;
    LEAVE;
}

EXPORT int cuEventQuery(cu_event event)
{
    ENTER("cuEventQuery");
    RULE(event_known(event), CU_ERROR_INVALID_VALUE, "no such event");
    RULE(!fake.events[(uintptr_t)event - 1].captured, CAPTURED_EVENT, "the event was captured into a graph");
    code = fake.events[(uintptr_t)event - 1].waiting ? CU_ERROR_NOT_READY : 0;
    LEAVE;
}

EXPORT int cuEventSynchronize(cu_event event)
{
    ENTER("cuEventSynchronize");
    RULE(event_known(event), CU_ERROR_INVALID_VALUE, "no such event");
    if (fake.events[(uintptr_t)event - 1].waiting)
        let_go(fake.events[(uintptr_t)event - 1].stream);
    LEAVE;
}

EXPORT int cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
    (void)flags;
    ENTER("cuStreamWaitEvent");
    RULE(event_known(event) && stream_known(stream), CU_ERROR_INVALID_VALUE, "no such event or stream");
    uint32_t before = fake.events[(uintptr_t)event - 1].stream, s = (uint32_t)(uintptr_t)stream;
    if (fake.events[(uintptr_t)event - 1].captured && s != before) {
        if (!fake.streams[s].captured) { /* what waits for captured work is captured, too */
            fake.streams[s].captured = fake.streams[s].forked = fake.streams[s].apart = true;
            fake.captured_into[s] = fake.captured_into[before];
        }
        fake.streams[before].apart = false;
    }
    LEAVE;
}

/* Is every byte there mapped and open? */
static bool usable(uint64_t address, uint64_t bytes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < fake.mapping_count; i++) {
        const mapping_row *m = &fake.mappings[i];
        uint64_t end = m->address + m->bytes, a = m->address > address ? m->address : address;
        uint64_t b = end < address + bytes ? end : address + bytes;
        if (m->open && a < b)
            sum += b - a;
    }
    for (uint32_t i = 0; i < fake.plain_count; i++)
        if (address >= fake.plain[i].address && address + bytes <= fake.plain[i].address + fake.plain[i].bytes)
            return true;
    return sum == bytes;
}

enum { ILLEGAL_ADDRESS = 700 };

/* What is captured does not run, it becomes a part of the graph. */
static void keep(struct graph *g, struct queued q, const void *from)
{
    if (g->count == g->room) {
        g->room = g->room ? 2 * g->room : 64;
        g->work = realloc(g->work, g->room * sizeof *g->work);
    }
    q.from = q.what == COPY_IN ? (uintptr_t)from : q.from;
    g->work[g->count++] = q;
}

/* Done at once, or queued on a stream that is held. */
static void submit(cu_stream stream, struct queued q, const void *from)
{
    q.stream = (uint32_t)(uintptr_t)stream;
    if (fake.streams[q.stream].captured) {
        fake.streams[q.stream].apart = fake.streams[q.stream].forked;
        if (fake.captured_into[q.stream])
            keep(&fake.graphs[fake.captured_into[q.stream] - 1], q, from);
        return;
    }
    if (q.what == COPY_IN) {
        q.staged = malloc(q.bytes + 1);
        memcpy(q.staged, from, q.bytes);
    }
    if (fake.streams[q.stream].held && fake.queue_count < MOST_QUEUED)
        fake.queue[fake.queue_count++] = q;
    else
        do_now(&q);
}

EXPORT int cuMemcpyHtoDAsync_v2(cu_address to, const void *from, size_t bytes, cu_stream stream)
{
    ENTER("cuMemcpyHtoDAsync_v2");
    RULE(stream_known(stream) && usable(to, bytes), ILLEGAL_ADDRESS, "copy to memory that is not there");
    submit(stream, (struct queued){.what = COPY_IN, .to = to, .bytes = bytes}, from);
    LEAVE;
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, cu_address from, size_t bytes, cu_stream stream)
{
    ENTER("cuMemcpyDtoHAsync_v2");
    RULE(stream_known(stream) && usable(from, bytes), ILLEGAL_ADDRESS, "copy from memory that is not there");
    submit(stream, (struct queued){.what = COPY_OUT, .to = (uintptr_t)to, .from = from, .bytes = bytes}, NULL);
    LEAVE;
}

EXPORT int cuMemcpyDtoDAsync_v2(cu_address to, cu_address from, size_t bytes, cu_stream stream)
{
    ENTER("cuMemcpyDtoDAsync_v2");
    RULE(stream_known(stream) && usable(from, bytes) && usable(to, bytes), ILLEGAL_ADDRESS,
         "copy of memory that is not there");
    submit(stream, (struct queued){.what = COPY, .to = to, .from = from, .bytes = bytes}, NULL);
    LEAVE;
}

EXPORT int cuMemsetD8Async(cu_address to, unsigned char byte, size_t bytes, cu_stream stream)
{
    ENTER("cuMemsetD8Async");
    RULE(stream_known(stream) && usable(to, bytes), ILLEGAL_ADDRESS, "fill of memory that is not there");
    submit(stream, (struct queued){.what = FILL, .to = to, .bytes = bytes, .byte = byte}, NULL);
    LEAVE;
}

/* ---- graphs, pinned memory -------------------------------------------------------------------------------- */

static uint32_t new_graph(void)
{
    for (uint32_t i = 0; i < MOST_GRAPHS; i++)
        if (!fake.graphs[i].alive) {
            fake.graphs[i] = (struct graph){.alive = true};
            return i + 1;
        }
    return 0;
}

static struct graph *graph_of(const void *handle)
{
    uintptr_t i = (uintptr_t)handle;
    return i && i <= MOST_GRAPHS && fake.graphs[i - 1].alive ? &fake.graphs[i - 1] : NULL;
}

EXPORT int cuStreamBeginCapture_v2(cu_stream stream, int mode)
{
    (void)mode;
    ENTER("cuStreamBeginCapture_v2");
    RULE(stream && stream_known(stream), CAPTURE_UNSUPPORTED, "no such stream, or one that cannot be captured");
    RULE(!fake.streams[(uintptr_t)stream].captured, CU_ERROR_ILLEGAL_STATE, "the stream is captured already");
    uint32_t graph = new_graph();
    REFUSE(!graph);
    fake.streams[(uintptr_t)stream].captured = true;
    fake.captured_into[(uintptr_t)stream] = graph;
    LEAVE;
}

EXPORT int cuStreamEndCapture(cu_stream stream, cu_graph *graph)
{
    ENTER("cuStreamEndCapture");
    RULE(stream_known(stream) && fake.streams[(uintptr_t)stream].captured, CU_ERROR_ILLEGAL_STATE,
         "the stream is not captured");
    uint32_t into = fake.captured_into[(uintptr_t)stream];
    bool joined = true;
    for (uint32_t i = 0; i < MOST_STREAMS; i++)
        if (i == (uintptr_t)stream || (into && fake.streams[i].captured && fake.captured_into[i] == into)) {
            joined = joined && !fake.streams[i].apart;
            fake.captured_into[i] = 0;
            fake.streams[i].captured = fake.streams[i].apart = fake.streams[i].forked = false;
        }
    *graph = (cu_graph)(uintptr_t)(joined ? into : 0);
    if (!joined) { /* the graph is gone with it */
        free(fake.graphs[into - 1].work);
        fake.graphs[into - 1] = (struct graph){0};
    }
    if (!joined)
        code = UNJOINED; /* no breach: whoever gives a capture up in the middle has not waited */
    LEAVE;
}

EXPORT int cuGraphInstantiateWithFlags(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    (void)flags;
    ENTER("cuGraphInstantiateWithFlags");
    const struct graph *from = graph_of(graph);
    RULE(from && !from->whole, CU_ERROR_INVALID_VALUE, "no such graph");
    uint32_t made = new_graph();
    REFUSE(!made);
    struct graph *to = &fake.graphs[made - 1];
    to->whole = true;
    for (uint32_t i = 0; i < from->count; i++)
        keep(to, from->work[i], (const void *)(uintptr_t)from->work[i].from);
    *exec = (cu_graph_exec)(uintptr_t)made;
    LEAVE;
}

EXPORT int cuGraphUpload(cu_graph_exec exec, cu_stream stream)
{
    ENTER("cuGraphUpload");
    RULE(graph_of(exec) && graph_of(exec)->whole && stream_known(stream), CU_ERROR_INVALID_VALUE, "no such graph");
    LEAVE;
}

EXPORT int cuGraphLaunch(cu_graph_exec exec, cu_stream stream)
{
    ENTER("cuGraphLaunch");
    const struct graph *g = graph_of(exec);
    RULE(g && g->whole && stream_known(stream), CU_ERROR_INVALID_VALUE, "no such graph");
    for (uint32_t i = 0; i < g->count; i++) {
        struct queued q = g->work[i];
        if (q.what == EVENT) {
            fake.events[q.to].stream = (uint32_t)(uintptr_t)stream;
            fake.events[q.to].waiting = fake.streams[(uintptr_t)stream].held;
            continue;
        }
        submit(stream, q, (const void *)(uintptr_t)q.from);
    }
    LEAVE;
}

static int end_graph(const char *function, void *handle, bool whole)
{
    ENTER(function);
    struct graph *g = graph_of(handle);
    RULE(g && g->whole == whole, CU_ERROR_INVALID_VALUE, "no such graph");
    free(g->work);
    *g = (struct graph){0};
    LEAVE;
}

EXPORT int cuGraphExecDestroy(cu_graph_exec exec)
{
    return end_graph("cuGraphExecDestroy", exec, true);
}

EXPORT int cuGraphDestroy(cu_graph graph)
{
    return end_graph("cuGraphDestroy", graph, false);
}

/* Recorded in a graph it is done when that has run. */
EXPORT int cuEventRecordWithFlags(cu_event event, cu_stream stream, unsigned flags)
{
    if (flags != CU_EVENT_RECORD_EXTERNAL)
        return cuEventRecord(event, stream);
    ENTER("cuEventRecordWithFlags");
    RULE(event_known(event) && stream_known(stream), CU_ERROR_INVALID_VALUE, "no such event or stream");
    RULE(fake.streams[(uintptr_t)stream].captured, CU_ERROR_ILLEGAL_STATE, "the stream is not captured");
    submit(stream, (struct queued){.what = EVENT, .to = (uintptr_t)event - 1}, NULL);
    LEAVE;
}

EXPORT int cuEventElapsedTime(float *milliseconds, cu_event from, cu_event to)
{
    ENTER("cuEventElapsedTime");
    RULE(event_known(from) && event_known(to), CU_ERROR_INVALID_VALUE, "no such event");
    RULE(fake.events[(uintptr_t)from - 1].timed && fake.events[(uintptr_t)to - 1].timed, CU_ERROR_INVALID_HANDLE,
         "an event that keeps no time");
    if (fake.events[(uintptr_t)from - 1].waiting || fake.events[(uintptr_t)to - 1].waiting)
        code = CU_ERROR_NOT_READY;
    else
        *milliseconds = 0.001f;
    LEAVE;
}

EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER("cuMemHostAlloc");
    NEED_CONTEXT;
    uint32_t i = 0;
    *memory = NULL;
    while (i < MOST_PINNED && fake.pinned[i])
        i++;
    REFUSE(i == MOST_PINNED || (bytes && !(fake.pinned[i] = malloc(bytes))));
    *memory = bytes ? fake.pinned[i] : NULL;
    LEAVE;
}

EXPORT int cuMemFreeHost(void *memory)
{
    ENTER("cuMemFreeHost");
    uint32_t i = 0;
    while (i < MOST_PINNED && (!memory || fake.pinned[i] != memory))
        i++;
    RULE(i < MOST_PINNED, CU_ERROR_INVALID_VALUE, "this memory is not pinned");
    free(memory);
    fake.pinned[i] = NULL;
    LEAVE;
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

#ifdef FAKE_KERNELS /* a second library: they are loaded and launched, and do nothing */
EXPORT int cuModuleLoadData(cu_module *module, const void *image)
{
    ENTER("cuModuleLoadData");
    NEED_CONTEXT;
    RULE(image, CU_ERROR_INVALID_VALUE, "there is no image");
    *module = (cu_module)(uintptr_t)++fake.modules;
    LEAVE;
}

EXPORT int cuModuleUnload(cu_module module)
{
    ENTER("cuModuleUnload");
    RULE(module, CU_ERROR_INVALID_VALUE, "no module");
    LEAVE;
}

EXPORT int cuModuleGetFunction(cu_function *function, cu_module module, const char *kernel)
{
    ENTER("cuModuleGetFunction");
    RULE(module && kernel, CU_ERROR_INVALID_VALUE, "no module, or no name");
    *function = (cu_function)module;
    LEAVE;
}

EXPORT int cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, cu_stream stream, void **arguments,
                          void **extra)
{
    (void)shared, (void)arguments, (void)extra;
    ENTER("cuLaunchKernel");
    NEED_CONTEXT;
    RULE(function && stream_known(stream), CU_ERROR_INVALID_VALUE, "no function, or no such stream");
    RULE(grid_x && grid_y && grid_z && grid_y <= 65535 && grid_z <= 65535 && block_x * block_y * block_z > 0 &&
             block_x * block_y * block_z <= 1024,
         CU_ERROR_INVALID_VALUE, "a grid or block of such a size cannot be launched");
    LEAVE;
}
#endif

/* ---- for tests -------------------------------------------------------------------------------------------- */

EXPORT void fake_cuda_fail(const char *function, uint64_t nth, int code, bool for_ever)
{
    pthread_mutex_lock(&fake.lock);
    snprintf(fake.fail_name, sizeof fake.fail_name, "%s", function ? function : "");
    fake.fail_nth = nth;
    fake.fail_code = code;
    fake.fail_for_ever = for_ever;
    pthread_mutex_unlock(&fake.lock);
}

EXPORT void fake_cuda_get(fake_cuda_state *state)
{
    pthread_mutex_lock(&fake.lock);
    *state = (fake_cuda_state){.mappings = fake.mapping_count,
                               .reservations = fake.reservation_count,
                               .calls = fake.calls,
                               .broken = fake.broken};
    memcpy(state->first_broken, fake.first_broken, sizeof state->first_broken);
    for (int i = 0; i < MOST_DEVICES; i++)
        state->contexts += fake.contexts[i];
    for (uint32_t i = 0; i < fake.handle_count; i++)
        if (fake.handles[i].references || fake.handles[i].maps) {
            state->handles++;
            state->handle_bytes += fake.handles[i].bytes;
        }
    for (uint32_t i = 0; i < fake.plain_count; i++)
        state->plain_bytes += fake.plain[i].bytes;
    for (int i = 1; i < MOST_STREAMS; i++)
        state->streams += fake.streams[i].alive;
    for (uint32_t i = 0; i < fake.event_count; i++)
        state->events += fake.events[i].alive;
    for (uint32_t i = 0; i < MOST_GRAPHS; i++)
        state->graphs += fake.graphs[i].alive;
    for (uint32_t i = 0; i < MOST_PINNED; i++)
        state->pinned += fake.pinned[i] != NULL;
    pthread_mutex_unlock(&fake.lock);
}

EXPORT void fake_cuda_reset_counts(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.calls = fake.broken = 0;
    memset(fake.counted, 0, sizeof fake.counted);
    fake.first_broken[0] = 0;
    pthread_mutex_unlock(&fake.lock);
}

EXPORT uint64_t fake_cuda_count(const char *name)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t calls = 0;
    for (unsigned i = 0; i < MOST_NAMES && fake.counted[i].name; i++)
        if (strcmp(fake.counted[i].name, name) == 0)
            calls = fake.counted[i].calls;
    pthread_mutex_unlock(&fake.lock);
    return calls;
}

EXPORT void fake_cuda_foreign(uint64_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    fake.foreign = bytes;
    pthread_mutex_unlock(&fake.lock);
}

EXPORT unsigned fake_cuda_open_to(uint64_t address)
{
    unsigned devices = 0;
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < fake.mapping_count; i++)
        if (address - fake.mappings[i].address < fake.mappings[i].bytes)
            devices = fake.mappings[i].open_to;
    pthread_mutex_unlock(&fake.lock);
    return devices;
}

EXPORT void fake_cuda_capture(uint64_t stream, bool captured)
{
    pthread_mutex_lock(&fake.lock);
    if (stream < MOST_STREAMS)
        fake.streams[stream].captured = captured;
    pthread_mutex_unlock(&fake.lock);
}

EXPORT void fake_cuda_hold(uint64_t stream, bool held)
{
    pthread_mutex_lock(&fake.lock);
    if (stream < MOST_STREAMS) {
        if (held)
            fake.streams[stream].held = true;
        else
            let_go(stream);
    }
    pthread_mutex_unlock(&fake.lock);
}
