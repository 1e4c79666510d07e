/*
 * mini_driver.c: a libcuda.so.1 and libnvidia-ml.so.1 in one, small enough to know by heart, for the governor's tests: every
 * class of allocation, what the card holds counted by itself (the oracle), cuGetProcAddress with versions, errors on demand.
 *
 * A card of FAKE_DRIVER_BYTES (64 GiB). Nothing is backed by memory: addresses are numbers. Driver functions call dlsym
 * inside cuInit, as the real ones do.
 *
 *     fake_used()      bytes the card has given out now (of this process)
 *     fake_fail(code)  the next allocating call answers this and gives nothing
 *     FAKE_DRIVER_LOCKS  a folder: a process whose number is a file's name there is locked, its calls wait
 *     FAKE_DRIVER_FULL  a file: while it is there nobody can be restored, for want of memory
 *     FAKE_DRIVER_VERSION, FAKE_DRIVER_CHECKPOINT  what cuDriverGetVersion and cuCheckpointProcessCheckpoint answer
 *     fake_map(bytes, flags)  memory of the host that the driver maps for itself; MAP_POPULATE: the copy of a suspended process
 *     fake_faults()    breaches: a free of what was not given, a destroyed pool with memory
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum {
    OUT_OF_MEMORY = 2,
    INVALID = 1,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
    ROWS = 1 << 16,
    PAGE = 2 << 20
};

typedef struct row {
    uint64_t key, bytes, handle; /* handle: of a mapping */
    uint32_t references, maps;
    enum { NONE, LINEAR, HANDLE, MAPPING, ARRAY, POOL, POOLED } type;
} row;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row rows[ROWS];
static uint64_t used, next_key = 0x700000000000, pool_bytes, pool_live;
static uint64_t freed_key, freed_bytes;
static int fail_next, faults, begun;

EXPORT uint64_t fake_used(void)
{
    pthread_mutex_lock(&lock);
    uint64_t now = used;
    pthread_mutex_unlock(&lock);
    return now;
}
EXPORT void fake_fail(int code)
{
    fail_next = code;
}
EXPORT int fake_faults(void)
{
    return faults;
}
EXPORT void *fake_map(size_t bytes, int flags)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static uint64_t total(void)
{
    const char *text = getenv("FAKE_DRIVER_BYTES");
    return text ? strtoull(text, NULL, 10) : UINT64_C(64) << 30;
}

static row *find(uint64_t key, int type)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].type == (unsigned)type && rows[i].key == key)
            return &rows[i];
    return NULL;
}

static uint64_t rounded(uint64_t bytes)
{
    return bytes < 1 << 20 ? bytes : (bytes + PAGE - 1) / PAGE * PAGE;
}

/* ---- processes are suspended by others: a file says of which state one is ---- */

static bool lock_path(int pid, char *path, size_t bytes)
{
    const char *folder = getenv("FAKE_DRIVER_LOCKS");
    return folder && snprintf(path, bytes, "%s/%d", folder, pid) < (int)bytes;
}
static int set_state(int pid, int from, int to)
{
    char path[256], now = 0;
    if (!begun || !lock_path(pid, path, sizeof path))
        return begun ? NOT_SUPPORTED : 3;
    FILE *f = fopen(path, "r");
    now = f ? (char)fgetc(f) : '0';
    if (f)
        fclose(f);
    if (now != '0' + from)
        return ILLEGAL_STATE;
    if (!to)
        return unlink(path) ? ILLEGAL_STATE : 0;
    f = fopen(path, "w");
    if (!f)
        return NOT_SUPPORTED;
    fputc('0' + to, f);
    return fclose(f) ? NOT_SUPPORTED : 0;
}
static void wait_while_locked(void)
{
    char path[256];
    while (lock_path(getpid(), path, sizeof path) && access(path, F_OK) == 0)
        usleep(1000);
}
static int number(const char *name, int usual)
{
    const char *text = getenv(name);
    return text ? atoi(text) : usual;
}
EXPORT int cuDriverGetVersion(int *version)
{
    *version = number("FAKE_DRIVER_VERSION", 13000);
    return 0;
}
EXPORT int cuCheckpointProcessLock(int pid, const void *options)
{
    (void)options;
    return set_state(pid, 0, 1);
}
EXPORT int cuCheckpointProcessCheckpoint(int pid, const void *options)
{
    (void)options;
    int code = number("FAKE_DRIVER_CHECKPOINT", 0);
    return code ? code : set_state(pid, 1, 2);
}
EXPORT int cuCheckpointProcessRestore(int pid, const void *options)
{
    (void)options;
    const char *full = getenv("FAKE_DRIVER_FULL");
    return full && access(full, F_OK) == 0 ? OUT_OF_MEMORY : set_state(pid, 2, 1);
}
EXPORT int cuCheckpointProcessUnlock(int pid, const void *options)
{
    (void)options;
    return set_state(pid, 1, 0);
}

/* The lock is held. */
static int give(uint64_t bytes, int type, uint64_t *key)
{
    if (fail_next) {
        int code = fail_next;
        fail_next = 0;
        return code;
    }
    if (!bytes)
        return INVALID;
    if (bytes > total() - used)
        return OUT_OF_MEMORY;
    for (int i = 0; i < ROWS; i++)
        if (rows[i].type == NONE) {
            bool again = freed_bytes == bytes && freed_key; /* as drivers do: what was free a moment ago comes again */
            *key = again ? freed_key : next_key;
            next_key += again ? 0 : (bytes + PAGE - 1) / PAGE * PAGE;
            freed_key = 0;
            rows[i] = (row){.key = *key, .bytes = bytes, .references = 1, .type = (unsigned)type};
            used += bytes;
            return 0;
        }
    return OUT_OF_MEMORY;
}

static int locked_give(uint64_t bytes, int type, uint64_t *key)
{
    wait_while_locked();
    pthread_mutex_lock(&lock);
    int code = give(bytes, type, key);
    pthread_mutex_unlock(&lock);
    return code;
}

static int take_back(uint64_t key, int type)
{
    wait_while_locked();
    pthread_mutex_lock(&lock);
    row *r = find(key, type);
    if (r) {
        used -= r->bytes;
        r->type = NONE;
        freed_key = key;
        freed_bytes = r->bytes;
    } else {
        faults++;
    }
    pthread_mutex_unlock(&lock);
    return r ? 0 : INVALID;
}

EXPORT int cuInit(unsigned flags)
{
    (void)flags;
    /* As drivers do: they look up names while they start. */
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    bool found = self && dlsym(self, "cuGetExportTable") && dlsym(self, "cuInit") && dlsym(self, "cuMemAlloc_v2");
    if (self)
        dlclose(self);
    begun = 1;
    return found ? 0 : 999;
}
EXPORT int cuDeviceGetCount(int *count)
{
    *count = 1;
    return begun ? 0 : 3;
}
EXPORT int cuGetExportTable(const void **table, const void *id)
{
    (void)table, (void)id;
    return NOT_FOUND;
}
EXPORT int cuDeviceGetUuid_v2(unsigned char id[16], int device)
{
    memset(id, 0, 16);
    id[15] = (unsigned char)device;
    return device ? INVALID : 0;
}
EXPORT int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}
EXPORT int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    return locked_give(rounded(bytes), LINEAR, pointer);
}
EXPORT int cuMemAllocManaged(uint64_t *pointer, size_t bytes, unsigned flags)
{
    return flags ? locked_give(rounded(bytes), LINEAR, pointer) : INVALID;
}
EXPORT int cuMemAllocPitch_v2(uint64_t *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    size_t row_bytes = (width + 511) / 512 * 512;
    int code = locked_give(rounded(row_bytes * height), LINEAR, pointer);
    if (!code)
        *pitch = row_bytes;
    return code;
}

/* The one pool keeps what it has until it is trimmed. */
static int pooled(uint64_t *pointer, size_t bytes)
{
    pthread_mutex_lock(&lock);
    uint64_t room = pool_bytes - pool_live, n = rounded(bytes), key = 0,
             more = n > room ? (n - room + PAGE - 1) / PAGE * PAGE : 0;
    int code = bytes ? 0 : INVALID;
    if (!code && (fail_next || more > total() - used)) {
        code = fail_next ? fail_next : OUT_OF_MEMORY;
        fail_next = 0;
    }
    if (!code) {
        code = give(n, POOLED, &key);
        used -= code ? 0 : n;
    }
    if (!code) {
        pool_bytes += more;
        used += more;
        pool_live += n;
        *pointer = key;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
EXPORT int cuMemAllocAsync(uint64_t *pointer, size_t bytes, void *stream)
{
    (void)stream;
    return pooled(pointer, bytes);
}
EXPORT int cuMemAllocAsync_ptsz(uint64_t *pointer, size_t bytes, void *stream)
{
    (void)stream;
    int code = pooled(pointer, bytes);
    return code;
}
EXPORT int cuMemFreeAsync(uint64_t pointer, void *stream)
{
    (void)stream;
    pthread_mutex_lock(&lock);
    row *r = find(pointer, POOLED);
    if (r) {
        pool_live -= r->bytes;
        r->type = NONE;
    } else {
        faults++;
    }
    pthread_mutex_unlock(&lock);
    return r ? 0 : INVALID;
}
EXPORT int cuDeviceGetMemPool(void **pool, int device)
{
    *pool = (void *)0x9000;
    return device ? INVALID : 0;
}
EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    if (pool != (void *)0x9000 || (attribute != 5 && attribute != 7))
        return INVALID;
    *(uint64_t *)value = attribute == 5 ? pool_bytes : pool_live;
    return 0;
}
EXPORT int cuMemPoolTrimTo(void *pool, size_t keep)
{
    if (pool != (void *)0x9000)
        return INVALID;
    pthread_mutex_lock(&lock);
    uint64_t least = (pool_live + PAGE - 1) / PAGE * PAGE;
    least = least > keep ? least : keep;
    if (pool_bytes > least) {
        used -= pool_bytes - least;
        pool_bytes = least;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT int cuMemFree_v2(uint64_t pointer)
{
    return pointer ? take_back(pointer, LINEAR) : 0;
}

EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const int *properties, unsigned long long flags)
{
    (void)flags;
    return properties && bytes % PAGE == 0 ? locked_give(bytes, HANDLE, handle) : INVALID;
}
static void end_handle(row *r)
{
    if (r && !r->references && !r->maps) {
        used -= r->bytes;
        r->type = NONE;
    }
}
EXPORT int cuMemRelease(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    row *r = find(handle, HANDLE);
    bool good = r && r->references;
    if (good) {
        r->references--;
        end_handle(r);
    } else {
        faults++;
    }
    pthread_mutex_unlock(&lock);
    return good ? 0 : INVALID;
}
EXPORT int cuMemMap(uint64_t pointer, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    row *r = find(handle, HANDLE);
    bool good = r && !offset && bytes == r->bytes && !find(pointer, MAPPING);
    for (int i = 0; good && i < ROWS; i++)
        if (rows[i].type == NONE) {
            rows[i] = (row){.key = pointer, .handle = handle, .bytes = bytes, .type = MAPPING};
            r->maps++;
            break;
        }
    pthread_mutex_unlock(&lock);
    return good ? 0 : INVALID;
}
EXPORT int cuMemUnmap(uint64_t pointer, size_t bytes)
{
    pthread_mutex_lock(&lock);
    uint64_t done = 0;
    while (done < bytes) {
        row *m = find(pointer + done, MAPPING);
        if (!m || m->bytes > bytes - done)
            break;
        done += m->bytes;
        row *r = find(m->handle, HANDLE);
        m->type = NONE;
        r->maps--;
        end_handle(r);
    }
    faults += done != bytes;
    pthread_mutex_unlock(&lock);
    return done == bytes ? 0 : INVALID;
}
EXPORT int cuMemRetainAllocationHandle(uint64_t *handle, void *address)
{
    pthread_mutex_lock(&lock);
    row *m = find((uint64_t)(uintptr_t)address, MAPPING);
    if (m) {
        *handle = m->handle;
        find(m->handle, HANDLE)->references++;
    }
    pthread_mutex_unlock(&lock);
    return m ? 0 : INVALID;
}

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} array_3d;
EXPORT int cuArray3DCreate_v2(void **array, const array_3d *a)
{
    uint64_t key;
    int code =
        locked_give(rounded(a->width * (a->height ? a->height : 1) * (a->depth ? a->depth : 1) * 4), ARRAY, &key);
    if (!code)
        *array = (void *)(uintptr_t)key;
    return code;
}
EXPORT int cuArrayDestroy(void *array)
{
    return take_back((uint64_t)(uintptr_t)array, ARRAY);
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *all)
{
    if (free_bytes)
        *free_bytes = total() - used;
    if (all)
        *all = total();
    return 0;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = total();
    return device ? INVALID : 0;
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
    pthread_mutex_lock(&lock);
    memset(rows, 0, sizeof rows);
    used = pool_bytes = pool_live = 0;
    pthread_mutex_unlock(&lock);
    return device ? INVALID : 0;
}

/* By name, version and stream flag, as the driver: the newest of that version, a per-thread twin where asked for. */
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found);
EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
static int lookup(const char *name, void **function, int version, uint64_t flags)
{
    static const struct {
        const char *name;
        int since;
        bool per_thread;
        void *function;
    } known[] = {
        {"cuInit", 2000, false, (void *)cuInit},
        {"cuMemAlloc", 3020, false, (void *)cuMemAlloc_v2},
        {"cuMemFree", 3020, false, (void *)cuMemFree_v2},
        {"cuMemAllocPitch", 3020, false, (void *)cuMemAllocPitch_v2},
        {"cuMemAllocManaged", 6000, false, (void *)cuMemAllocManaged},
        {"cuMemAllocAsync", 11020, false, (void *)cuMemAllocAsync},
        {"cuMemAllocAsync", 11020, true, (void *)cuMemAllocAsync_ptsz},
        {"cuMemFreeAsync", 11020, false, (void *)cuMemFreeAsync},
        {"cuMemCreate", 10020, false, (void *)cuMemCreate},
        {"cuMemGetInfo", 3020, false, (void *)cuMemGetInfo_v2},
        {"cuDeviceTotalMem", 3020, false, (void *)cuDeviceTotalMem_v2},
        {"cuGetProcAddress", 11030, false, (void *)cuGetProcAddress},
        {"cuGetProcAddress", 12000, false, (void *)cuGetProcAddress_v2},
    };
    *function = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0 && known[i].since <= version && (!known[i].per_thread || flags == 2))
            *function = known[i].function;
    return *function ? 0 : NOT_FOUND;
}
EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return lookup(name, function, version, flags);
}
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found)
{
    int code = lookup(name, function, version, flags);
    if (found)
        *found = code ? 1 : 0;
    return code;
}
