/*
 * torch.c: the functions PyTorch's CUDAPluggableAllocator calls, on one pool a card.
 *
 * State: PyTorch passes no context, so the pools hang on a process-wide table (the one place beside the loader where
 * memfit keeps such state). A slot is filled once under a lock and never changes: the hot path is one atomic load.
 * Pools are not destroyed at exit: PyTorch frees tensors until the very end, and the driver takes everything back. Only
 * a trace (MEMFIT_TRACE) is ended then, so that its last events reach the file.
 *
 * Failure: PyTorch does not look at a NULL result, it would run its kernels on address 0. Its native allocator throws
 * c10::OutOfMemoryError. We make the same exception through the C++ runtime that is in the process anyway: allocate it,
 * let c10's own constructor fill it, throw it with c10's own type information. No PyTorch header or library is needed
 * to build; if a symbol is missing (another PyTorch), its generic error function is called; without PyTorch NULL is
 * returned. The unwind tables every x86-64 object carries let the exception pass through these frames.
 */
#include "memfit/torch.h"

#include "base/error.h"
#include "memfit/explanation.h"
#include "memfit/pool.h"
#include "pool/calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CARDS = 64 };

/* The driver's work is by the handle, not by the byte: pages come in handles of up to 32 MiB where a block is long enough,
 * but none of more than a 512th of what the pool holds (handles.c): a few block ends at the peak, half a handle pinned at
 * each, are then half a hundredth of it. A quarter of a hundredth more memory than the peak in use is given for time. In
 * replays of 19 workloads a 256th and a hundredth held 1.0087 of the live bytes, a 512th and a quarter of that 1.0054, in 0.3 %
 * more of the first ten seconds. Threads keep no blocks: a backward pass has its own thread, and when both begin to keep blocks,
 * after 16,384 calls without a move, theirs lie elsewhere than before. On an H200 ResNet50 with changing images came to rest in
 * its first epoch, and moved pages again in steps 21 and 28 to 30. (It saves 15 ns on a small request, nothing on larger ones.)
 * MEMFIT_BULK, MEMFIT_SLACK and MEMFIT_NO_THREAD_CACHES override this. */
static const uint64_t BULK = UINT64_C(32) << 20, PART = 512;
static const double SLACK = 0.0025;

typedef struct card {
    memfit_device *device;
    memfit_pool *pool;
    memfit_owner owner;
} card;

static _Atomic(card *) cards[MOST_CARDS];
static card slots[MOST_CARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool ending_traces; /* under the lock */

/* ---- raising PyTorch's error ------------------------------------------------------------------------------ */

typedef struct source_location { /* c10::SourceLocation */
    const char *function, *file;
    uint32_t line;
} source_location;

typedef struct cxx_string { /* std::string of the C++11 ABI; longer than 15 characters: data is on the heap */
    char *data;
    size_t length;
    union {
        char local[16];
        size_t capacity;
    } u;
} cxx_string;

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

static void *find(const char *symbol)
{
    void *address = dlsym(RTLD_DEFAULT, symbol);
    if (address)
        return address;
    /* PyTorch's libraries may be loaded without RTLD_GLOBAL. */
    static const char *const libraries[] = {"libc10.so", "libc10_cuda.so", "libstdc++.so.6"};
    for (size_t i = 0; !address && i < sizeof libraries / sizeof *libraries; i++) {
        void *handle = dlopen(libraries[i], RTLD_NOLOAD | RTLD_LAZY);
        if (handle)
            address = dlsym(handle, symbol);
    }
    return address;
}

static void throw_out_of_memory(const char *message)
{
    typedef void constructor(void *self, source_location where, cxx_string *text);
    constructor *own = (constructor *)find("_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationE" STRING);
    constructor *base = (constructor *)find("_ZN3c105ErrorC1ENS_14SourceLocationE" STRING);
    void *type = find("_ZTIN3c1016OutOfMemoryErrorE");
    char *vtable = find("_ZTVN3c1016OutOfMemoryErrorE");
    void *(*new_exception)(size_t) = (void *(*)(size_t))find("__cxa_allocate_exception");
    void (*throw_it)(void *, void *, void (*)(void *)) =
        (void (*)(void *, void *, void (*)(void *)))find("__cxa_throw");
    void *(*new_bytes)(size_t) = (void *(*)(size_t))find("_Znwm");
    if ((!own && !base) || !type || !new_exception || !throw_it || !new_bytes)
        return;
    size_t length = strlen(message);
    cxx_string text = {.data = new_bytes(length + 17), .length = length, .u.capacity = length + 16};
    memcpy(text.data, message, length + 1);
    void *error = new_exception(1024); /* larger than any version's object */
    memset(error, 0, 1024);
    source_location where = {"memfit_torch_alloc", "memfit", 0};
    (own ? own : base)(error, where, &text);
    if (!own && vtable) {
        void *methods = vtable + 2 * sizeof(void *);
        memcpy(error, &methods, sizeof methods);
    }
    throw_it(error, type, (void (*)(void *))find("_ZN3c105ErrorD1Ev"));
}

static void raise_error(const char *message, bool out_of_memory)
{
    if (out_of_memory)
        throw_out_of_memory(message);
    typedef void check_fail(const char *function, const char *file, uint32_t line, const char *text);
    check_fail *fail = (check_fail *)find("_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
    if (fail)
        fail("memfit_torch_alloc", "memfit", 0, message);
}

/* ---- the pools -------------------------------------------------------------------------------------------- */

static void end_traces(void)
{
    for (unsigned i = 0; i < MOST_CARDS; i++) {
        card *c = atomic_load(&cards[i]);
        if (c)
            mf_trace_file_end(c->pool);
    }
}

/* PyTorch copies between cards as if every card could reach every address: each must be open to the others. */
static memfit_status open_to_each_other(card *c, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    for (unsigned i = 0; i < MOST_CARDS && !status; i++) {
        card *o = atomic_load(&cards[i]);
        if (!o || o == c)
            continue;
        status = mf_pool_open_to(o->pool, c->device, err);
        if (!status)
            status = mf_pool_open_to(c->pool, o->device, err);
    }
    return status;
}

static memfit_status open_card(int device, card **out, memfit_error *err)
{
    if (device < 0 || device >= MOST_CARDS)
        return mf_fail(err, MEMFIT_INVALID, "card number %d is out of range", device);
    memfit_status status = MEMFIT_OK;
    pthread_mutex_lock(&lock);
    card *c = atomic_load(&cards[device]);
    if (!c) {
        c = &slots[device];
        char name[32];
        snprintf(name, sizeof name, "cuda:%d", device);
        memfit_pool_options options = MEMFIT_POOL_OPTIONS;
        options.name = "pytorch";
        options.bulk_bytes = getenv("MEMFIT_BULK") ? 0 : BULK;
        options.slack = getenv("MEMFIT_SLACK") ? 0 : SLACK;
        options.no_thread_caches = !getenv("MEMFIT_NO_THREAD_CACHES");
        status = memfit_device_open(name, NULL, &c->device, err);
        if (!status) {
            status = memfit_pool_create(c->device, &options, &c->pool, err);
            if (!status && !getenv("MEMFIT_BULK"))
                c->pool->pages.part = PART;
            if (!status)
                status = memfit_pool_owner(c->pool, MEMFIT_KIND_OTHER, "pytorch", &c->owner, err);
            if (!status)
                status = open_to_each_other(c, err);
            if (status) {
                memfit_pool_destroy(c->pool);
                memfit_device_close(c->device, NULL);
                *c = (card){0};
            }
        }
        if (!status)
            atomic_store(&cards[device], c);
        if (!status && !ending_traces && getenv("MEMFIT_TRACE"))
            ending_traces = atexit(end_traces) == 0;
    }
    pthread_mutex_unlock(&lock);
    *out = c;
    return status;
}

static card *card_of(int device)
{
    return device >= 0 && device < MOST_CARDS ? atomic_load_explicit(&cards[device], memory_order_acquire) : NULL;
}

/* The explanation when there is one, else the error's own words. */
static void print_why(memfit_pool *pool, const char *words)
{
    static memfit_explanation why =
        MEMFIT_EXPLANATION; /* large; two threads that fail at once may mix their texts, nothing else */
    static char text[16384];
    if (pool && memfit_pool_explain(pool, &why, NULL) == MEMFIT_OK)
        fprintf(stderr, "%s\n", memfit_explanation_text(&why, 100, false, text, sizeof text));
    else
        fprintf(stderr, "memfit: %s\n", words);
}

/* A stream that is captured must not be served from a thread's cache: what is there may belong to nobody's graph. Once a
 * graph was announced the pool has no caches, and looks itself (fence.c). *runs: looked, and it is not captured. */
static memfit_status look_for_capture(const card *c, memfit_stream stream, bool *runs, memfit_error *err)
{
    const mf_device_table *table = c->device->table;
    bool captured = false;
    *runs = false;
    if (!table->capturing || !atomic_load_explicit(&c->pool->pass, memory_order_relaxed))
        return MEMFIT_OK;
    if (table->capturing(c->device, stream, &captured, NULL) || !captured) {
        *runs = true;
        return MEMFIT_OK;
    }
    return mf_fail(
        err, MEMFIT_UNSUPPORTED,
        "memfit: a CUDA graph is being captured, and PyTorch was not told to announce it: its memory would be "
        "handed out again while the graph still uses it\nSet memfit_torch_begin_pool, memfit_torch_end_pool "
        "and memfit_torch_release_pool as docs/pytorch.md shows");
}

/* ---- who asks ----------------------------------------------------------------------------------------------- */

/* The name this thread's requests go under, and the number it has on the card that was asked last. */
static _Thread_local struct {
    char name[64];
    const card *card;
    memfit_owner owner;
} asking;

void memfit_torch_owner(const char *name)
{
    snprintf(asking.name, sizeof asking.name, "%s", name ? name : "");
    asking.card = NULL;
}

/* "pytorch" where nobody said, and where the list of owners is full. */
static memfit_owner owner_on(const card *c)
{
    if (!asking.name[0])
        return c->owner;
    if (asking.card != c) {
        if (memfit_pool_owner(c->pool, MEMFIT_KIND_OTHER, asking.name, &asking.owner, NULL))
            asking.owner = c->owner;
        asking.card = c;
    }
    return asking.owner;
}

size_t memfit_torch_owners(int device, memfit_owner_info *list, size_t stride, size_t most)
{
    size_t count = 0;
    card *c = card_of(device);
    if (!c || memfit_pool_owners(c->pool, list, stride, most, &count, NULL))
        return 0;
    return count;
}

void *memfit_torch_alloc(ssize_t bytes, int device, void *stream)
{
    memfit_error err;
    memfit_address address = 0;
    memfit_status status = bytes < 0 ? mf_fail(&err, MEMFIT_INVALID, "a request of %zd bytes", bytes) : MEMFIT_OK;
    card *c = card_of(device);
    if (!status && !c)
        status = open_card(device, &c, &err);
    memfit_stream on = (memfit_stream)(uintptr_t)stream;
    bool runs;
    if (!status)
        status = look_for_capture(c, on, &runs, &err);
    if (!status)
        status = runs ? mf_pool_alloc_running(c->pool, (uint64_t)bytes, owner_on(c), on, &address, &err)
                      : memfit_pool_alloc_on(c->pool, (uint64_t)bytes, 0, owner_on(c), on, &address, &err);
    if (!status)
        return (void *)(uintptr_t)address;
    char text[2 * MEMFIT_ERROR_TEXT + 64];
    snprintf(text, sizeof text, "%s%s%s%s", status == MEMFIT_OUT_OF_MEMORY ? "CUDA out of memory. " : "", err.message,
             err.hint[0] ? "\n" : "", err.hint);
    print_why(status == MEMFIT_OUT_OF_MEMORY && c ? c->pool : NULL, text);
    raise_error(text, status == MEMFIT_OUT_OF_MEMORY);
    return NULL;
}

void memfit_torch_free(void *address, ssize_t bytes, int device, void *stream)
{
    (void)bytes;
    memfit_error err;
    card *c = card_of(device);
    if (!address || !c)
        return;
    if (memfit_pool_free_on(c->pool, (memfit_address)(uintptr_t)address, (memfit_stream)(uintptr_t)stream, &err))
        fprintf(stderr, "memfit: %s\n", err.message);
}

/* PyTorch says no card here; the address does. */
static card *card_with(memfit_address address)
{
    for (unsigned i = 0; i < MOST_CARDS; i++) {
        card *c = atomic_load_explicit(&cards[i], memory_order_acquire);
        if (c && address - c->pool->range < c->pool->range_bytes)
            return c;
    }
    return NULL;
}

void memfit_torch_record_stream(void *address, void *stream)
{
    memfit_error err;
    card *c = card_with((memfit_address)(uintptr_t)address);
    if (!c) /* not ours: memory of another library that PyTorch only wraps */
        return;
    memfit_status status =
        memfit_pool_use_on(c->pool, (memfit_address)(uintptr_t)address, (memfit_stream)(uintptr_t)stream, &err);
    if (!status)
        return;
    fprintf(stderr, "memfit: record_stream: %s\n", err.message);
    raise_error(err.message, false);
}

/* ---- CUDA graphs -------------------------------------------------------------------------------------------- */

/* PyTorch numbers its pools with two counters, of which one is 0. */
static uint64_t number_of(memfit_torch_pool_id id)
{
    return id.graph << 32 ^ id.user;
}

/* PyTorch announces a graph before anything was allocated on the card, too. */
static void graph_call(memfit_status (*call)(memfit_pool *, uint64_t, memfit_error *), int device,
                       memfit_torch_pool_id id)
{
    memfit_error err;
    card *c = card_of(device);
    memfit_status status = c ? MEMFIT_OK : open_card(device, &c, &err);
    if (!status)
        status = call(c->pool, number_of(id), &err);
    if (!status)
        return;
    fprintf(stderr, "memfit: %s\n", err.message);
    raise_error(err.message, false);
}

void memfit_torch_begin_pool(int device, memfit_torch_pool_id id, void *filter)
{
    (void)filter; /* a std::function that tells captured streams: we ask the driver */
    graph_call(memfit_pool_graph_begin, device, id);
}

void memfit_torch_end_pool(int device, memfit_torch_pool_id id)
{
    graph_call(memfit_pool_graph_end, device, id);
}

/* Called by destructors, so nothing is thrown; and PyTorch releases pools that no graph was captured into. */
void memfit_torch_release_pool(int device, memfit_torch_pool_id id)
{
    card *c = card_of(device);
    if (c)
        memfit_pool_graph_release(c->pool, number_of(id), NULL);
}

/* ---- figures ------------------------------------------------------------------------------------------------ */

size_t memfit_torch_stats(int device, uint64_t *values, size_t most)
{
    memfit_pool_info i = MEMFIT_POOL_INFO;
    memfit_device_info d = MEMFIT_DEVICE_INFO;
    card *c = card_of(device);
    if (c && memfit_pool_get_info(c->pool, &i, NULL) == MEMFIT_OK)
        memfit_device_get_info(c->device, &d, NULL);
    const uint64_t all[] = {i.in_use_bytes, i.in_use_peak_bytes, i.reserved_bytes, i.reserved_peak_bytes, d.fixed_bytes,
                            i.remaps,       i.remapped_pages,    i.created_pages,  i.stream_waits,        i.allocations,
                            i.failures,     i.moving_us};
    size_t count = sizeof all / sizeof *all;
    for (size_t k = 0; k < count && k < most; k++)
        values[k] = all[k];
    return count;
}

void memfit_torch_trim(int device)
{
    card *c = card_of(device);
    if (c)
        memfit_pool_trim(c->pool, 0, NULL, NULL);
}

void memfit_torch_reset_peaks(int device)
{
    card *c = card_of(device);
    if (c)
        memfit_pool_reset_peaks(c->pool, NULL);
}

void memfit_torch_empty_cache(void)
{
    for (int i = 0; i < MOST_CARDS; i++)
        memfit_torch_trim(i);
}
