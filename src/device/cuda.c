/*
 * cuda.c: an NVIDIA card as a device, through the driver API found at run time.
 *
 * context: the primary one, so that cuDNN, cuBLAS and frameworks in the same process share it. Every call makes it
 * current and restores what was current before: the caller's thread does not notice.
 *
 * graphs: while a stream is captured into a CUDA graph the driver refuses many calls to every thread, and a refused call
 * can end the capture. None of ours ends one, so each call is made in the relaxed mode. record_begin to record_end
 * capture a stream of our own; a recording is an instantiated graph, uploaded, so that launching it takes nothing.
 *
 * memory: VMM: cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess. A created handle is mapped as a whole (the
 * driver's rule). Unmapping is not ordered with streams: the pool unmaps only what no stream can touch.
 *
 * fixed cost: what the process pays for context and libraries, as NVML shows it; measured when the device is opened and
 * again when memory is created (every few milliseconds at most); it only ever grows.
 *
 * identity: the UUID, since CUDA's index is not NVML's under CUDA_VISIBLE_DEVICES.
 *
 * Where a card or driver lacks VMM (before CUDA 10.2; some virtual cards) the device is plain: addresses and memory are
 * one cuMemAlloc, taken when a pool is made and freed when it ends. Limits hold as they do otherwise; growth, trimming
 * and moving pages are lost, so blocks can end up with enough free between them and no place (docs/device.md).
 *
 * It is long because every function of the device's table stands here, beside the context they share.
 */
#include "device/device.h"

#include "base/error.h"
#include "base/os.h"
#include "device/cuda_card.h"
#include "device/cuda_driver.h"
#include "device/cuda_processes.h"

#include <stdio.h>
#include <string.h>

enum { MOST_PEERS = 64 };

typedef struct cuda {
    mf_device base;
    mf_device_table table; /* what this card and driver can do */
    mf_cuda_driver driver;
    mf_card_processes processes;
    cu_device device;
    cu_context context;
    cu_allocation_prop prop;
    cu_access_desc access[MOST_PEERS]; /* who may use mapped memory: the card itself, then others */
    size_t access_count;
    _Atomic uint64_t created; /* bytes alive by create */
    _Atomic uint64_t measured_us;
    _Atomic(mf_stream) recorded; /* the stream that is being recorded; NO_STREAM: none */
} cuda;

#define NO_STREAM ((mf_stream)-1)

enum { MEASURE_EVERY_US = 5000, PLAIN_GRANULARITY = 2 << 20 };

/* Brings the fixed cost up to date; it only ever grows. */
static void measure_fixed(cuda *c)
{
    uint64_t now = mf_os_now_us(), last = atomic_load(&c->measured_us);
    if (!c->processes.nvml || now - last < MEASURE_EVERY_US ||
        !atomic_compare_exchange_strong(&c->measured_us, &last, now))
        return;
    uint64_t created = atomic_load(&c->created), own = mf_card_processes_own(&c->processes);
    uint64_t fixed = own > created ? own - created + c->base.granularity : 0, known = atomic_load(&c->base.fixed_bytes);
    if (created != atomic_load(&c->created)) /* another thread was creating or releasing meanwhile */
        return;
    while (fixed > known && !atomic_compare_exchange_weak(&c->base.fixed_bytes, &known, fixed))
        continue;
}

/* ---- the context, made current for the length of a call --------------------------------------------------- */

/* What a call leaves as it found it. */
typedef struct call_state {
    bool pushed;
    int mode; /* of stream capture, this thread's; -1: the driver knows none */
} call_state;

static call_state enter(cuda *c, cu_result *code)
{
    call_state state = {.mode = -1};
    cu_context now = NULL;
    if (c->driver.ctx_get_current(&now) != CU_SUCCESS || now != c->context) {
        *code = c->driver.ctx_push(c->context);
        state.pushed = *code == CU_SUCCESS;
    }
    int mode = CU_CAPTURE_MODE_RELAXED;
    if (*code == CU_SUCCESS && c->driver.capture_mode && c->driver.capture_mode(&mode) == CU_SUCCESS)
        state.mode = mode;
    return state;
}

static void leave(cuda *c, call_state state)
{
    cu_context old;
    if (state.mode >= 0)
        c->driver.capture_mode(&state.mode);
    if (state.pushed)
        c->driver.ctx_pop(&old);
}

/* Runs `call`, a driver call in the right context, and returns its status. */
#define IN_CONTEXT(c, what, call)                                                                                      \
    do {                                                                                                               \
        cu_result code_ = CU_SUCCESS;                                                                                  \
        call_state state_ = enter((c), &code_);                                                                        \
        if (code_ == CU_SUCCESS)                                                                                       \
            code_ = (call);                                                                                            \
        leave((c), state_);                                                                                            \
        return code_ == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(&(c)->driver, code_, (what), err);                       \
    } while (0)

/* ---- what works on the card beside us (cuda_card.h) -------------------------------------------------------- */

memfit_status mf_cuda_card_of(mf_device *device, mf_cuda_card *card, memfit_error *err)
{
    if (strcmp(device->table->kind, "cuda") != 0)
        return mf_fail(err, MEMFIT_INVALID, "device %s is not a CUDA card", device->name);
    cuda *c = (cuda *)device;
    int major = 0, minor = 0;
    cu_result code = c->driver.device_attribute(&major, CU_ATTRIBUTE_CAPABILITY_MAJOR, c->device);
    if (code == CU_SUCCESS)
        code = c->driver.device_attribute(&minor, CU_ATTRIBUTE_CAPABILITY_MINOR, c->device);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "describing the card", err);
    *card = (mf_cuda_card){.device = device, .driver = &c->driver, .capability = 10 * major + minor};
    return MEMFIT_OK;
}

memfit_status mf_cuda_enter(const mf_cuda_card *card, mf_cuda_call *call, memfit_error *err)
{
    cu_result code = CU_SUCCESS;
    call_state state = enter((cuda *)card->device, &code);
    *call = (mf_cuda_call){.pushed = state.pushed, .mode = state.mode};
    return code == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(card->driver, code, "taking the card's context", err);
}

void mf_cuda_leave(const mf_cuda_card *card, mf_cuda_call call)
{
    leave((cuda *)card->device, (call_state){.pushed = call.pushed, .mode = call.mode});
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static memfit_status cuda_memory(mf_device *device, uint64_t *total, uint64_t *free_bytes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    size_t t = 0, f = 0;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.memory_info(&f, &t);
    leave(c, state);
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
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.reserve(&at, bytes, alignment, 0, 0);
    leave(c, state);
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
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.create(&handle, bytes, &c->prop, 0);
    leave(c, state);
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
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.release(physical);
    leave(c, state);
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
    call_state state = enter(c, &code);
    bool aligned = true;
    if (code == CU_SUCCESS)
        code = c->driver.mem_alloc(&at, bytes);
    if (code == CU_SUCCESS && alignment && at % alignment) { /* never seen: large allocations begin at a page */
        aligned = false;
        c->driver.mem_free(at);
    }
    leave(c, state);
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
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.mem_free(address);
    leave(c, state);
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

/* ---- streams, events, bytes ------------------------------------------------------------------------------- */

static cu_stream to_stream(mf_stream stream)
{
    return (cu_stream)(uintptr_t)stream;
}

static cu_event to_event(mf_event event)
{
    return (cu_event)(uintptr_t)event;
}

static memfit_status cuda_stream_create(mf_device *device, mf_stream *stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_stream s = NULL;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.stream_create(&s, CU_STREAM_NON_BLOCKING);
    leave(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "making a stream", err);
    *stream = (mf_stream)(uintptr_t)s;
    return MEMFIT_OK;
}

static memfit_status cuda_stream_destroy(mf_device *device, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "ending a stream", c->driver.stream_destroy(to_stream(stream)));
}

static memfit_status cuda_stream_wait(mf_device *device, mf_stream stream, mf_event event, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "making a stream wait", c->driver.stream_wait(to_stream(stream), to_event(event), 0));
}

/* No external event here, other than in cuda_event_record: in a capture it becomes an edge of the graph. */
static memfit_status cuda_stream_follow(mf_device *device, mf_stream stream, mf_stream before, mf_event event,
                                        memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_record(to_event(event), to_stream(before));
    if (code == CU_SUCCESS)
        code = c->driver.stream_wait(to_stream(stream), to_event(event), 0);
    leave(c, state);
    return code == CU_SUCCESS ? MEMFIT_OK : mf_cuda_fail(&c->driver, code, "making a stream follow another", err);
}

static memfit_status cuda_stream_sync(mf_device *device, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "waiting for a stream", c->driver.stream_sync(to_stream(stream)));
}

static memfit_status make_event(cuda *c, unsigned flags, mf_event *event, memfit_error *err)
{
    cu_event e = NULL;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_create(&e, flags);
    leave(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "making an event", err);
    *event = (mf_event)(uintptr_t)e;
    return MEMFIT_OK;
}

static memfit_status cuda_event_create(mf_device *device, mf_event *event, memfit_error *err)
{
    return make_event((cuda *)device, CU_EVENT_DISABLE_TIMING, event, err);
}

static memfit_status cuda_timer_create(mf_device *device, mf_event *event, memfit_error *err)
{
    return make_event((cuda *)device, 0, event, err);
}

static memfit_status cuda_timer_between(mf_device *device, mf_event from, mf_event to, double *us, memfit_error *err)
{
    cuda *c = (cuda *)device;
    float ms = 0;
    cu_result code = c->driver.event_elapsed ? CU_SUCCESS : CU_ERROR_NOT_SUPPORTED;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_elapsed(&ms, to_event(from), to_event(to));
    leave(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "reading the time between two events", err);
    *us = (double)ms * 1e3;
    return MEMFIT_OK;
}

static memfit_status cuda_event_destroy(mf_device *device, mf_event event, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "ending an event", c->driver.event_destroy(to_event(event)));
}

static memfit_status cuda_event_record(mf_device *device, mf_event event, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    if (atomic_load(&c->recorded) == stream)
        IN_CONTEXT(c, "recording an event in a graph",
                   c->driver.event_record_external(to_event(event), to_stream(stream), CU_EVENT_RECORD_EXTERNAL));
    IN_CONTEXT(c, "recording an event", c->driver.event_record(to_event(event), to_stream(stream)));
}

static memfit_status cuda_event_done(mf_device *device, mf_event event, bool *done, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.event_query(to_event(event));
    leave(c, state);
    if (code != CU_SUCCESS && code != CU_ERROR_NOT_READY)
        return mf_cuda_fail(&c->driver, code, "asking for an event", err);
    *done = code == CU_SUCCESS;
    return MEMFIT_OK;
}

static memfit_status cuda_event_sync(mf_device *device, mf_event event, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "waiting for an event", c->driver.event_sync(to_event(event)));
}

static memfit_status cuda_device_sync(mf_device *device, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "waiting for the card", c->driver.ctx_sync());
}

/* Asked for every request and every event: it is quick. */
static memfit_status cuda_capturing(mf_device *device, mf_stream stream, bool *yes, memfit_error *err)
{
    cuda *c = (cuda *)device;
    int status = CU_CAPTURE_STATUS_NONE;
    if (c->driver.stream_capturing) {
        cu_result code = CU_SUCCESS;
        cu_context now = NULL;
        bool current = c->driver.ctx_get_current(&now) == CU_SUCCESS && now == c->context;
        call_state state = current ? (call_state){.mode = -1} : enter(c, &code);
        if (code == CU_SUCCESS)
            code = c->driver.stream_capturing(to_stream(stream), &status);
        leave(c, state);
        if (code != CU_SUCCESS)
            return mf_cuda_fail(&c->driver, code, "asking whether a stream is captured", err);
    }
    *yes = status != CU_CAPTURE_STATUS_NONE;
    return MEMFIT_OK;
}

static memfit_status cuda_copy_in(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                                  memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "copying to the device", c->driver.copy_in(to, from, bytes, to_stream(stream)));
}

static memfit_status cuda_copy_out(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                                   memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "copying from the device", c->driver.copy_out(to, from, bytes, to_stream(stream)));
}

static memfit_status cuda_copy(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "copying on the device", c->driver.copy(to, from, bytes, to_stream(stream)));
}

static memfit_status cuda_fill(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                               memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "filling device memory", c->driver.fill(to, byte, bytes, to_stream(stream)));
}

/* ---- host memory, recordings ------------------------------------------------------------------------------ */

static memfit_status cuda_host_take(mf_device *device, uint64_t bytes, void **memory, memfit_error *err)
{
    cuda *c = (cuda *)device;
    void *taken = NULL;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.host_alloc(&taken, bytes, 0);
    leave(c, state);
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
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        c->driver.host_free(memory);
    leave(c, state);
}

static memfit_status cuda_record_begin(mf_device *device, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    mf_stream none = NO_STREAM;
    if (!atomic_compare_exchange_strong(&c->recorded, &none, stream))
        return mf_fail(err, MEMFIT_CONFLICT, "a stream is being recorded already");
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        code = c->driver.capture_begin(to_stream(stream), CU_CAPTURE_MODE_RELAXED);
    leave(c, state);
    if (code == CU_SUCCESS)
        return MEMFIT_OK;
    atomic_store(&c->recorded, NO_STREAM);
    return mf_cuda_fail(&c->driver, code, "beginning to record a stream", err);
}

static memfit_status cuda_record_end(mf_device *device, mf_stream stream, mf_recording *record, memfit_error *err)
{
    cuda *c = (cuda *)device;
    cu_graph graph = NULL;
    cu_graph_exec exec = NULL;
    cu_result code = CU_SUCCESS;
    call_state state = enter(c, &code);
    cu_result ended = c->driver.capture_end(to_stream(stream), &graph);
    int captured = 0;
    if (ended != CU_SUCCESS && !graph && c->driver.stream_capturing &&
        c->driver.stream_capturing(to_stream(stream), &captured) == CU_SUCCESS && captured) /* it was refused */
        c->driver.capture_end(to_stream(stream), &graph);
    code = code == CU_SUCCESS ? ended : code;
    atomic_store(&c->recorded, NO_STREAM);
    if (code == CU_SUCCESS)
        code = c->driver.graph_make(&exec, graph, 0);
    if (code == CU_SUCCESS && c->driver.graph_upload)
        code = c->driver.graph_upload(exec, to_stream(stream));
    if (code == CU_SUCCESS)
        code = c->driver.stream_sync(to_stream(stream));
    if (graph)
        c->driver.graph_destroy(graph);
    if (code != CU_SUCCESS && exec)
        c->driver.graph_exec_destroy(exec);
    leave(c, state);
    if (code != CU_SUCCESS)
        return mf_cuda_fail(&c->driver, code, "making a graph of a stream", err);
    *record = (mf_recording)(uintptr_t)exec;
    return MEMFIT_OK;
}

static memfit_status cuda_record_launch(mf_device *device, mf_recording record, mf_stream stream, memfit_error *err)
{
    cuda *c = (cuda *)device;
    IN_CONTEXT(c, "launching a graph", c->driver.graph_launch((cu_graph_exec)(uintptr_t)record, to_stream(stream)));
}

static void cuda_record_destroy(mf_device *device, mf_recording record)
{
    cuda *c = (cuda *)device;
    cu_result code = CU_SUCCESS;
    if (!record)
        return;
    call_state state = enter(c, &code);
    if (code == CU_SUCCESS)
        c->driver.graph_exec_destroy((cu_graph_exec)(uintptr_t)record);
    leave(c, state);
}

static size_t cuda_others(mf_device *device, char (*text)[128], uint64_t *bytes, size_t most)
{
    return mf_card_processes_others(&((cuda *)device)->processes, text, bytes, most);
}

static uint64_t cuda_own_bytes(mf_device *device)
{
    return mf_card_processes_own(&((cuda *)device)->processes);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static void cuda_destroy(mf_device *device)
{
    cuda *c = (cuda *)device;
    mf_device_end(device);
    c->driver.primary_release(c->device);
    mf_card_processes_end(&c->processes);
    mf_host_free(device->host, c, sizeof *c);
}

#define STREAMS_AND_BYTES                                                                                              \
    .stream_create = cuda_stream_create, .stream_destroy = cuda_stream_destroy, .stream_wait = cuda_stream_wait,       \
    .stream_sync = cuda_stream_sync, .stream_follow = cuda_stream_follow, .event_create = cuda_event_create,           \
    .event_destroy = cuda_event_destroy, .event_record = cuda_event_record, .event_done = cuda_event_done,             \
    .event_sync = cuda_event_sync, .timer_create = cuda_timer_create, .timer_between = cuda_timer_between,             \
    .host_take = cuda_host_take, .host_give = cuda_host_give, .record_begin = cuda_record_begin,                       \
    .record_end = cuda_record_end, .record_launch = cuda_record_launch, .record_destroy = cuda_record_destroy,         \
    .device_sync = cuda_device_sync, .capturing = cuda_capturing, .copy_in = cuda_copy_in, .copy_out = cuda_copy_out,  \
    .copy = cuda_copy, .fill = cuda_fill, .others = cuda_others, .own_bytes = cuda_own_bytes,

static const mf_device_table cuda_table = {.kind = "cuda",
                                           .destroy = cuda_destroy,
                                           .memory = cuda_memory,
                                           .reserve = cuda_reserve,
                                           .unreserve = cuda_unreserve,
                                           .create = cuda_create,
                                           .release = cuda_release,
                                           .map = cuda_map,
                                           .access = cuda_access,
                                           .unmap = cuda_unmap,
                                           .open_to = cuda_open_to,
                                           STREAMS_AND_BYTES};

static const mf_device_table plain_table = {.kind = "cuda",
                                            .destroy = cuda_destroy,
                                            .memory = cuda_memory,
                                            .reserve = plain_reserve,
                                            .unreserve = plain_unreserve,
                                            .create = plain_create,
                                            .release = plain_release,
                                            .map = plain_map,
                                            .access = plain_nothing,
                                            .unmap = plain_nothing,
                                            STREAMS_AND_BYTES};

static void format_uuid(const cu_uuid *uuid, char text[64])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, 64, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The table without what the driver lacks. */
static void choose_table(cuda *c, const mf_device_table *whole)
{
    const mf_cuda_driver *d = &c->driver;
    c->table = *whole;
    c->base.table = &c->table;
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
        choose_table(c, &plain_table);
        c->base.plain = true;
        c->base.granularity = PLAIN_GRANULARITY;
        return MEMFIT_OK;
    }
    choose_table(c, &cuda_table);
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
    if (p->unlisted && !cuda_memory(&c->base, &total, &free_bytes, NULL))
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
    memfit_status status = mf_device_init(&c->base, &cuda_table, options->host, err);
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
