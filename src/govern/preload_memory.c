/*
 * preload_memory.c: the driver's functions that take and give back device memory, with the job's limit in front.
 *
 * Each asks the share for the bytes, calls the driver, and books what the driver gave (or drops what it did not). A
 * refusal is CUDA_ERROR_OUT_OF_MEMORY with nothing else changed, like the driver's own. A free always goes to the
 * driver, and the caller gets the driver's answer. What no call reports (context, modules, the driver's own) is charged
 * beforehand, at the first allocation on a card; whoever watches the job corrects it (share.h: beside).
 */
#include "govern/preload.h"
#include "memfit/trace.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
enum {
    WAIT_US = 100000,
    POOL_RESERVED = 5, /* CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT */
    POOL_USED = 7,     /* CU_MEMPOOL_ATTR_USED_MEM_CURRENT */
    LOCATION_DEVICE = 1,
    MOST_ORDINALS = 64,
    MOST_POOLS = 16,
    PAGE = 2 << 20,
};
/* A context with its libraries' modules: 524 MiB on an H200, less on smaller cards. */
#define FIXED_BYTES (576 * MIB)

typedef uint64_t device_pointer;
typedef int device;

/* ---- cards ------------------------------------------------------------------------------------------------ */

static uint32_t card_known[MOST_ORDINALS];  /* by the driver's number: the share's + 1 */
static uint32_t card_fixed[MF_SHARE_CARDS]; /* this process's fixed cost is charged there */

uint64_t mf_govern_fixed_due(unsigned card)
{
    return __atomic_load_n(&card_fixed[card], __ATOMIC_ACQUIRE) ? 0 : FIXED_BYTES;
}

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

void mf_govern_forget(void)
{
    memset(card_fixed, 0, sizeof card_fixed);
    pthread_mutex_init(&pool_lock, NULL);
}

unsigned mf_govern_card_of(mf_share *share, int ordinal)
{
    if (ordinal < 0 || ordinal >= MOST_ORDINALS)
        return MF_SHARE_CARDS;
    uint32_t known = __atomic_load_n(&card_known[ordinal], __ATOMIC_ACQUIRE);
    if (known)
        return known - 1;
    int (*uuid)(unsigned char[16], device) = (int (*)(unsigned char[16], device))mf_govern_driver("cuDeviceGetUuid_v2");
    if (!uuid)
        uuid = (int (*)(unsigned char[16], device))mf_govern_driver("cuDeviceGetUuid");
    unsigned char id[16];
    if (!uuid || uuid(id, ordinal))
        return MF_SHARE_CARDS;
    unsigned card = mf_share_card(share, mf_share_id_of(id));
    __atomic_store_n(&card_known[ordinal], card + 1, __ATOMIC_RELEASE);
    return card;
}

unsigned mf_govern_current_card(mf_share *share)
{
    static int (*get)(device *);
    int (*ask)(device *) = __atomic_load_n(&get, __ATOMIC_ACQUIRE);
    device ordinal;
    if (!ask) {
        ask = (int (*)(device *))mf_govern_driver("cuCtxGetDevice");
        __atomic_store_n(&get, ask, __ATOMIC_RELEASE);
    }
    return ask && ask(&ordinal) == 0 ? mf_govern_card_of(share, ordinal) : MF_SHARE_CARDS;
}

/* ---- asking ----------------------------------------------------------------------------------------------- */

typedef struct request {
    mf_share *share; /* NULL: it passes uncounted */
    unsigned card, memory_class;
    uint64_t bytes;
    uintptr_t caller; /* of the driver's function */
} request;
#define REQUEST(name)                                                                                                  \
    (request)                                                                                                          \
    {                                                                                                                  \
        .memory_class = MF_MEMORY_##name, .caller = (uintptr_t)__builtin_return_address(0)                             \
    }

/* The first of a process on a card takes its fixed cost along. */
static bool ask_fixed(mf_share *share, unsigned card)
{
    if (__atomic_exchange_n(&card_fixed[card], 1, __ATOMIC_ACQ_REL))
        return true;
    if (mf_share_ask(share, card, FIXED_BYTES, WAIT_US) == MF_SHARE_OK) {
        mf_share_take(share, card, FIXED_BYTES, FIXED_BYTES);
        uint32_t owner = mf_govern_owner(card, MF_MEMORY_CONTEXT, FIXED_BYTES, 0);
        mf_govern_owns(owner, (int64_t)FIXED_BYTES, 1);
        mf_govern_note(MEMFIT_EVENT_ALLOC, card, 1, FIXED_BYTES, owner);
        return true;
    }
    __atomic_store_n(&card_fixed[card], 0, __ATOMIC_RELEASE);
    return false;
}

/* False: refused. */
static bool ask(request *r, unsigned card, uint64_t bytes)
{
    int saved = errno;
    mf_share *share = mf_govern_share();
    r->share = share;
    r->card = card;
    r->bytes = bytes;
    if (!share || card == MF_SHARE_CARDS) {
        r->share = NULL;
        return true;
    }
    mf_govern_wait_turn(share);
    bool begun = ask_fixed(share, card);
    mf_govern_look_beside(share, card);
    mf_govern_note_beside(share, card);
    mf_share_result result = begun ? mf_share_ask(share, card, bytes, WAIT_US) : MF_SHARE_REFUSED;
    if (result == MF_SHARE_OK) {
        mf_govern_granted(share, card, bytes);
    } else {
        mf_govern_denied(share, card, r->memory_class, bytes, result == MF_SHARE_BUSY, r->caller);
        mf_govern_note(MEMFIT_EVENT_FAIL, card, 0, bytes, 0);
    }
    errno = saved;
    return result == MF_SHARE_OK;
}

static bool ask_here(request *r, uint64_t bytes)
{
    mf_share *share = mf_govern_share();
    return ask(r, share ? mf_govern_current_card(share) : MF_SHARE_CARDS, bytes);
}

/* The driver has answered: `code` 0 means that it gave `held` bytes under `key`. */
static int settle(const request *r, int code, uint64_t key, uint64_t held)
{
    if (!r->share)
        return code;
    if (code) {
        mf_share_drop(r->share, r->card, r->bytes);
        return code;
    }
    mf_share_take(r->share, r->card, r->bytes, held);
    uint32_t owner = mf_govern_owner(r->card, r->memory_class, held, r->caller);
    mf_govern_put(&(mf_govern_block){.key = key, .bytes = held, .card = r->card, .owner = owner, .references = 1});
    mf_govern_owns(owner, (int64_t)held, 1);
    mf_govern_note(MEMFIT_EVENT_ALLOC, r->card, key, held, owner);
    return code;
}

static void give_back(const mf_govern_block *block)
{
    mf_share *share = mf_govern_share();
    if (!share)
        return;
    mf_share_give_back(share, block->card, block->bytes);
    mf_govern_owns(block->owner, -(int64_t)block->bytes, -1);
    mf_govern_note(MEMFIT_EVENT_FREE, block->card, block->key, block->bytes, block->owner);
}

/* ---- linear ----------------------------------------------------------------------------------------------- */

/* A request of a megabyte or more gets pages of its own. */
static uint64_t in_pages(uint64_t bytes)
{
    return bytes < MIB || bytes > UINT64_MAX - PAGE ? bytes : (bytes + PAGE - 1) / PAGE * PAGE;
}

EXPORT int cuMemAlloc_v2(device_pointer *pointer, size_t bytes)
{
    int (*real)(device_pointer *, size_t) = CALL(cuMemAlloc_v2, int (*)(device_pointer *, size_t));
    request r = REQUEST(LINEAR);
    if (!real)
        return NOT_INITIALIZED;
    if (!ask_here(&r, in_pages(bytes)))
        return OUT_OF_MEMORY;
    int code = real(pointer, bytes);
    return settle(&r, code, code ? 0 : *pointer, r.bytes);
}

EXPORT int cuMemAllocPitch_v2(device_pointer *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    typedef int (*function)(device_pointer *, size_t *, size_t, size_t, unsigned);
    function real = CALL(cuMemAllocPitch_v2, function);
    request r = REQUEST(LINEAR);
    if (!real)
        return NOT_INITIALIZED;
    uint64_t row = (width + 511) / 512 * 512;
    if (!ask_here(&r, height && row > UINT64_MAX / height ? UINT64_MAX / 2 : in_pages(row * height)))
        return OUT_OF_MEMORY;
    int code = real(pointer, pitch, width, height, element);
    return settle(&r, code, code ? 0 : *pointer, code ? 0 : in_pages(*pitch * height));
}

EXPORT int cuMemAllocManaged(device_pointer *pointer, size_t bytes, unsigned flags)
{
    typedef int (*function)(device_pointer *, size_t, unsigned);
    function real = CALL(cuMemAllocManaged, function);
    request r = REQUEST(MANAGED);
    if (!real)
        return NOT_INITIALIZED;
    if (!ask_here(&r, in_pages(bytes)))
        return OUT_OF_MEMORY;
    int code = real(pointer, bytes, flags);
    return settle(&r, code, code ? 0 : *pointer, r.bytes);
}

/* Out of the table before the driver may give the address to another thread; back into it when it refuses. */
EXPORT int cuMemFree_v2(device_pointer pointer)
{
    int (*real)(device_pointer) = CALL(cuMemFree_v2, int (*)(device_pointer));
    mf_govern_block block;
    if (!real)
        return NOT_INITIALIZED;
    bool known = pointer && mf_govern_share() && mf_govern_take(pointer, &block);
    int code = real(pointer);
    if (known && code)
        mf_govern_put(&block);
    else if (known)
        give_back(&block);
    return code;
}

/* ---- pools: what counts is what they have reserved --------------------------------------------------------- */

static uint64_t pool_attribute(void *pool, int attribute)
{
    typedef int (*function)(void *, int, void *);
    static function known;
    function get = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
    uint64_t value = 0;
    if (!get) {
        get = (function)mf_govern_driver("cuMemPoolGetAttribute");
        __atomic_store_n(&known, get, __ATOMIC_RELEASE);
    }
    return pool && get && get(pool, attribute, &value) == 0 ? value : 0;
}

static void *pools_seen[MOST_POOLS];

static void see_pool(void *pool)
{
    for (int i = 0; i < MOST_POOLS; i++) {
        void *none = NULL;
        if (__atomic_compare_exchange_n(&pools_seen[i], &none, pool, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
            none == pool)
            return;
    }
}

uint64_t mf_govern_pool_unused(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < MOST_POOLS; i++) {
        void *pool = __atomic_load_n(&pools_seen[i], __ATOMIC_ACQUIRE);
        uint64_t reserved = pool_attribute(pool, POOL_RESERVED), used = pool_attribute(pool, POOL_USED);
        sum += reserved > used ? reserved - used : 0;
    }
    return sum;
}

/* The pool's block holds what is charged for it now. */
static void true_up(void *pool, unsigned card, uintptr_t caller)
{
    mf_share *share = mf_govern_share();
    mf_govern_block block = {.key = (uint64_t)(uintptr_t)pool, .card = card, .references = 1};
    if (!share || !pool || card == MF_SHARE_CARDS)
        return;
    pthread_mutex_lock(&pool_lock); /* or one thread would take the block from under another */
    uint64_t reserved = pool_attribute(pool, POOL_RESERVED);
    bool known = mf_govern_take(block.key, &block);
    if (!known) {
        block.owner = mf_govern_owner(card, MF_MEMORY_POOL, reserved, caller);
        see_pool(pool);
    }
    if (reserved > block.bytes)
        mf_share_take(share, block.card, 0, reserved - block.bytes);
    else
        mf_share_give_back(share, block.card, block.bytes - reserved);
    if (reserved != block.bytes) { /* a pool that grows is another buffer to a reader of the trace */
        mf_govern_owns(block.owner, (int64_t)(reserved - block.bytes), !known);
        if (block.bytes)
            mf_govern_note(MEMFIT_EVENT_FREE, card, block.key, block.bytes, block.owner);
        if (reserved)
            mf_govern_note(MEMFIT_EVENT_ALLOC, card, block.key, reserved, block.owner);
    }
    block.bytes = reserved;
    mf_govern_put(&block);
    pthread_mutex_unlock(&pool_lock);
}

typedef int (*pool_allocator)(device_pointer *, size_t, void *, void *);

static void *default_pool(void)
{
    typedef int (*get_device)(device *);
    typedef int (*get_pool)(void **, device);
    get_device here = (get_device)mf_govern_driver("cuCtxGetDevice");
    get_pool pool_of = (get_pool)mf_govern_driver("cuDeviceGetMemPool");
    device ordinal;
    void *pool = NULL;
    return here && pool_of && here(&ordinal) == 0 && pool_of(&pool, ordinal) == 0 ? pool : NULL;
}

/* The pool took more than was foreseen, past the limit: what it gave goes back, and the pool shrinks again. */
static int undo(void *pool, unsigned card, device_pointer pointer, void *stream, uint64_t before)
{
    int (*release)(device_pointer, void *) = (int (*)(device_pointer, void *))mf_govern_driver("cuMemFreeAsync");
    int (*wait)(void *) = (int (*)(void *))mf_govern_driver("cuStreamSynchronize");
    int (*trim)(void *, size_t) = CALL(cuMemPoolTrimTo, int (*)(void *, size_t));
    if (!release || release(pointer, stream))
        return 0;
    if (wait)
        wait(stream);
    if (trim)
        trim(pool, (size_t)before);
    true_up(pool, card, 0);
    return OUT_OF_MEMORY;
}

/* Only what the pool has no room for is asked for. */
static int from_pool(pool_allocator real, bool named, device_pointer *pointer, size_t bytes, void *pool, void *stream,
                     request r)
{
    mf_share *share = mf_govern_share();
    if (!real)
        return NOT_INITIALIZED;
    if (!share)
        return named ? real(pointer, bytes, pool, stream)
                     : ((int (*)(device_pointer *, size_t, void *))(void *)real)(pointer, bytes, stream);
    void *from = named ? pool : default_pool();
    uint64_t reserved = pool_attribute(from, POOL_RESERVED), used = pool_attribute(from, POOL_USED);
    uint64_t room = reserved > used ? reserved - used : 0, wanted = in_pages(bytes);
    if (!ask_here(&r, wanted > room ? wanted - room : 0))
        return OUT_OF_MEMORY;
    device_pointer got = 0;
    int code = named ? real(&got, bytes, pool, stream)
                     : ((int (*)(device_pointer *, size_t, void *))(void *)real)(&got, bytes, stream);
    if (!code && r.share)
        true_up(from, r.card, r.caller); /* before the request is dropped: never missing in between */
    if (r.share)
        mf_share_drop(r.share, r.card, r.bytes);
    if (!code && r.share && pool_attribute(from, POOL_RESERVED) > reserved &&
        mf_share_in_use(share, r.card) > __atomic_load_n(&share->file->limit_bytes[r.card], __ATOMIC_ACQUIRE))
        code = undo(from, r.card, got, stream, reserved);
    if (!code)
        *pointer = got;
    return code;
}

EXPORT int cuMemAllocAsync(device_pointer *pointer, size_t bytes, void *stream)
{
    return from_pool(CALL(cuMemAllocAsync, pool_allocator), false, pointer, bytes, NULL, stream, REQUEST(POOL));
}

EXPORT int cuMemAllocAsync_ptsz(device_pointer *pointer, size_t bytes, void *stream)
{
    return from_pool(CALL(cuMemAllocAsync_ptsz, pool_allocator), false, pointer, bytes, NULL, stream, REQUEST(POOL));
}

EXPORT int cuMemAllocFromPoolAsync(device_pointer *pointer, size_t bytes, void *pool, void *stream)
{
    return from_pool(CALL(cuMemAllocFromPoolAsync, pool_allocator), true, pointer, bytes, pool, stream, REQUEST(POOL));
}

EXPORT int cuMemAllocFromPoolAsync_ptsz(device_pointer *pointer, size_t bytes, void *pool, void *stream)
{
    return from_pool(CALL(cuMemAllocFromPoolAsync_ptsz, pool_allocator), true, pointer, bytes, pool, stream,
                     REQUEST(POOL));
}

EXPORT int cuMemPoolTrimTo(void *pool, size_t keep)
{
    int (*real)(void *, size_t) = CALL(cuMemPoolTrimTo, int (*)(void *, size_t));
    int code = real ? real(pool, keep) : NOT_INITIALIZED;
    if (!code && mf_govern_share())
        true_up(pool, mf_govern_current_card(mf_govern_share()), (uintptr_t)__builtin_return_address(0));
    return code;
}

EXPORT int cuMemPoolDestroy(void *pool)
{
    int (*real)(void *) = CALL(cuMemPoolDestroy, int (*)(void *));
    mf_govern_block block;
    bool known = mf_govern_share() && mf_govern_take((uint64_t)(uintptr_t)pool, &block);
    int code = real ? real(pool) : NOT_INITIALIZED;
    if (known && code)
        mf_govern_put(&block);
    else if (known)
        give_back(&block);
    for (int i = 0; !code && i < MOST_POOLS; i++) {
        void *gone = pool;
        __atomic_compare_exchange_n(&pools_seen[i], &gone, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    return code;
}

/* ---- physical pages: gone when neither handle nor mapping is left ------------------------------------------- */

typedef struct properties { /* CUmemAllocationProp, as far as we read */
    int type, handle_types, location_type, location_id;
} properties;

EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const properties *wanted, unsigned long long flags)
{
    typedef int (*function)(uint64_t *, size_t, const properties *, unsigned long long);
    function real = CALL(cuMemCreate, function);
    mf_share *share = mf_govern_share();
    request r = REQUEST(VIRTUAL);
    if (!real)
        return NOT_INITIALIZED;
    unsigned card = share && wanted && wanted->location_type == LOCATION_DEVICE
                        ? mf_govern_card_of(share, wanted->location_id)
                        : MF_SHARE_CARDS;
    if (!ask(&r, card, bytes))
        return OUT_OF_MEMORY;
    int code = real(handle, bytes, wanted, flags);
    return settle(&r, code, code ? 0 : *handle, bytes);
}

static int counted(int code, uint64_t handle, int references, int maps)
{
    mf_govern_block block;
    if (!code && mf_govern_share() && mf_govern_count(handle, references, maps, &block))
        give_back(&block);
    return code;
}

EXPORT int cuMemRelease(uint64_t handle)
{
    int (*real)(uint64_t) = CALL(cuMemRelease, int (*)(uint64_t));
    return real ? counted(real(handle), handle, -1, 0) : NOT_INITIALIZED;
}

/* A mapping remembers its handle under its address, which no allocation has while it is mapped. */
EXPORT int cuMemMap(device_pointer pointer, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    typedef int (*function)(device_pointer, size_t, size_t, uint64_t, unsigned long long);
    function real = CALL(cuMemMap, function);
    int code = real ? real(pointer, bytes, offset, handle, flags) : NOT_INITIALIZED;
    if (!code && mf_govern_share())
        mf_govern_put(&(mf_govern_block){.key = pointer, .bytes = handle, .card = MF_SHARE_CARDS});
    return counted(code, handle, 0, 1);
}

EXPORT int cuMemUnmap(device_pointer pointer, size_t bytes)
{
    int (*real)(device_pointer, size_t) = CALL(cuMemUnmap, int (*)(device_pointer, size_t));
    int code = real ? real(pointer, bytes) : NOT_INITIALIZED;
    /* One call may unmap several mappings that lie behind each other; each begins on a page. */
    mf_govern_block mapping;
    for (uint64_t at = 0; !code && mf_govern_share() && at < bytes; at += PAGE)
        if (mf_govern_take(pointer + at, &mapping))
            counted(0, mapping.bytes, 0, -1);
    return code;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *handle, void *address)
{
    typedef int (*function)(uint64_t *, void *);
    function real = CALL(cuMemRetainAllocationHandle, function);
    int code = real ? real(handle, address) : NOT_INITIALIZED;
    return counted(code, code ? 0 : *handle, 1, 0);
}

/* ---- arrays ----------------------------------------------------------------------------------------------- */

typedef struct array_2d {
    size_t width, height;
    int format;
    unsigned channels;
} array_2d;
typedef struct array_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} array_3d;

/* Bytes of an element by the number of its format: 8, 16 or 32 bits; what we do not know is taken for 16 bytes. */
static uint64_t element_bytes(int format, unsigned channels)
{
    static const struct {
        int format, bytes;
    } known[] = {{1, 1}, {2, 2}, {3, 4}, {8, 1}, {9, 2}, {10, 4}, {16, 2}, {32, 4}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].format == format)
            return (uint64_t)known[i].bytes * (channels ? channels : 1);
    return 16;
}

static uint64_t array_bytes(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned channels)
{
    double bytes = (double)width * (double)(height ? height : 1) * (double)(depth ? depth : 1) *
                   (double)element_bytes(format, channels);
    return bytes < 9e18 ? in_pages((uint64_t)bytes) : UINT64_MAX / 2;
}

static int array_create(int (*real)(void **, const void *), void **array, const void *wanted, uint64_t bytes,
                        request *r)
{
    if (!real)
        return NOT_INITIALIZED;
    if (!ask_here(r, bytes))
        return OUT_OF_MEMORY;
    int code = real(array, wanted);
    return settle(r, code, code ? 0 : (uint64_t)(uintptr_t)*array, r->bytes);
}

EXPORT int cuArrayCreate_v2(void **array, const array_2d *a)
{
    return array_create(CALL(cuArrayCreate_v2, int (*)(void **, const void *)), array, a,
                        a ? array_bytes(a->width, a->height, 1, a->format, a->channels) : 0, &REQUEST(ARRAY));
}

EXPORT int cuArray3DCreate_v2(void **array, const array_3d *a)
{
    return array_create(CALL(cuArray3DCreate_v2, int (*)(void **, const void *)), array, a,
                        a ? array_bytes(a->width, a->height, a->depth, a->format, a->channels) : 0, &REQUEST(ARRAY));
}

static int array_destroy(int (*real)(void *), void *array)
{
    mf_govern_block block;
    if (!real)
        return NOT_INITIALIZED;
    bool known = mf_govern_share() && mf_govern_take((uint64_t)(uintptr_t)array, &block);
    int code = real(array);
    if (known && code)
        mf_govern_put(&block);
    else if (known)
        give_back(&block);
    return code;
}

EXPORT int cuArrayDestroy(void *array)
{
    return array_destroy(CALL(cuArrayDestroy, int (*)(void *)), array);
}

EXPORT int cuMipmappedArrayDestroy(void *array)
{
    return array_destroy(CALL(cuMipmappedArrayDestroy, int (*)(void *)), array);
}

EXPORT int cuMipmappedArrayCreate(void **array, const array_3d *a, unsigned levels)
{
    typedef int (*function)(void **, const array_3d *, unsigned);
    function real = CALL(cuMipmappedArrayCreate, function);
    request r = REQUEST(ARRAY);
    if (!real)
        return NOT_INITIALIZED;
    uint64_t bytes = a ? array_bytes(a->width, a->height, a->depth, a->format, a->channels) : 0;
    if (!ask_here(&r, levels > 1 ? bytes + bytes / 3
                                 : bytes)) /* each level has a quarter of the one before, or an eighth */
        return OUT_OF_MEMORY;
    int code = real(array, a, levels);
    return settle(&r, code, code ? 0 : (uint64_t)(uintptr_t)*array, r.bytes);
}

/* ---- a context's end takes everything along ------------------------------------------------------------------ */

static int reset(int (*real)(device), device ordinal)
{
    mf_share *share = mf_govern_share();
    int code = real ? real(ordinal) : NOT_INITIALIZED;
    unsigned card = share && !code ? mf_govern_card_of(share, ordinal) : MF_SHARE_CARDS;
    if (card == MF_SHARE_CARDS)
        return code;
    mf_share_give_back(share, card, mf_govern_take_all(card));
    mf_govern_owns_nothing(card);
    return code;
}

EXPORT int cuDevicePrimaryCtxReset(device ordinal)
{
    return reset(CALL(cuDevicePrimaryCtxReset, int (*)(device)), ordinal);
}

EXPORT int cuDevicePrimaryCtxReset_v2(device ordinal)
{
    return reset(CALL(cuDevicePrimaryCtxReset_v2, int (*)(device)), ordinal);
}
