/*
 * fake_nvml.c: a libnvidia-ml.so.1 without a driver behind it. What it shows is in environment variables, read at
 * nvmlInit:
 *
 *   FAKE_NVML_INIT        code nvmlInit returns (18: the kernel module is of another version; 9: not loaded)
 *   FAKE_NVML_CARDS       how many cards, default 1; card i has 8 (i + 1) GiB
 *   FAKE_NVML_PROCESSES   "card:pid:MiB[:g],..."; MiB "na" is a reading that is not available; g is a display client
 *   FAKE_NVML_LATE        the same, of processes that come when their kind has been listed once
 *   FAKE_NVML_FILE        a file with the same, of processes that come and go: read at each listing
 *   FAKE_NVML_UUID        card 0's identity, default GPU-00000000-0000-0000-0000-000000000000
 *   FAKE_NVML_VERSION     1, 2 or 3 (default): the newest process list the library has; older ones only answer
 *   FAKE_NVML_MEMORY      "na": memory is not supported (unified memory, WSL); "v1": no nvmlDeviceGetMemoryInfo_v2
 *   FAKE_NVML_CAPABILITY  "90" (default): 9.0; "na": not supported
 *   FAKE_NVML_MODE        compute mode, default 0
 *   FAKE_NVML_MIG, FAKE_NVML_DISPLAY   1 or 0; unset: not supported
 *   FAKE_NVML_US          how long listing compute processes takes: where they hold many handles, milliseconds
 *   FAKE_NVML_THREAD      1: starts a thread that stays, as the real one may, with the signals its starter had
 *
 * As on an H200: 615 MiB are reserved (the older memory reading counts them as used), the driver takes 3 1/4 MiB and
 * 5 5/8 MiB a context that no process shows; a process without a reading holds 700 MiB. The versioned entry points
 * cannot be hidden at run time, so an older library's answer NOT_SUPPORTED, or FUNCTION_NOT_FOUND, comes from them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, FUNCTION_NOT_FOUND = 13, MOST = 64 };
#define MIB           1048576ull
#define NOT_AVAILABLE (~0ull)

typedef struct {
    unsigned card, pid, display;
    unsigned long long bytes;
} process;

static struct {
    unsigned cards, version;
    process list[MOST];
    unsigned count;
    unsigned known, listings; /* of the list: there from the beginning; how often compute processes were listed */
} fake;

static const char *setting(const char *name, const char *fallback)
{
    const char *value = getenv(name);
    return value && *value ? value : fallback;
}

static void read_processes(const char *text)
{
    while (*text && fake.count < MOST) {
        char *end;
        process *p = &fake.list[fake.count++];
        p->card = (unsigned)strtoul(text, &end, 10);
        p->pid = (unsigned)strtoul(end + (*end == ':'), &end, 10);
        end += *end == ':';
        if (strncmp(end, "na", 2) == 0) {
            p->bytes = NOT_AVAILABLE;
            end += 2;
        } else {
            p->bytes = strtoull(end, &end, 10) * MIB;
        }
        p->display = strncmp(end, ":g", 2) == 0;
        end += p->display ? 2 : 0;
        text = end + (*end == ',');
    }
}

static void read_file(void)
{
    char text[1024];
    FILE *f = getenv("FAKE_NVML_FILE") ? fopen(getenv("FAKE_NVML_FILE"), "r") : NULL;
    if (!f)
        return;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    fake.count = fake.known;
    read_processes(text);
}

static void *stay(void *arg)
{
    for (;;)
        pause();
    return arg;
}

int nvmlInit_v2(void)
{
    pthread_t thread;
    if (getenv("FAKE_NVML_THREAD") && pthread_create(&thread, NULL, stay, NULL) == 0)
        pthread_detach(thread);
    fake.cards = (unsigned)atoi(setting("FAKE_NVML_CARDS", "1"));
    fake.version = (unsigned)atoi(setting("FAKE_NVML_VERSION", "3"));
    fake.count = fake.listings = 0;
    read_processes(setting("FAKE_NVML_PROCESSES", ""));
    fake.known = fake.count;
    read_processes(setting("FAKE_NVML_LATE", ""));
    return atoi(setting("FAKE_NVML_INIT", "0"));
}

int nvmlShutdown(void)
{
    return OK;
}

const char *nvmlErrorString(int code)
{
    return code == 18  ? "Driver/library version mismatch"
           : code == 9 ? "Driver Not Loaded"
           : code == 3 ? "Not Supported"
                       : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "%s", setting("FAKE_NVML_DRIVER", "580.159.04"));
    return OK;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "13.580.159.04");
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 13000;
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = fake.cards;
    return OK;
}

/* A handle is the card's number, from 1 on. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index >= fake.cards)
        return INVALID;
    *device = (void *)(size_t)(index + 1);
    return OK;
}

static unsigned card_of(void *device)
{
    return (unsigned)(size_t)device - 1;
}

int nvmlDeviceGetName(void *device, char *text, unsigned bytes)
{
    snprintf(text, bytes, "Fake GPU %u", card_of(device));
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned bytes)
{
    const char *first = card_of(device) ? NULL : getenv("FAKE_NVML_UUID");
    if (first)
        snprintf(text, bytes, "%s", first);
    else
        snprintf(text, bytes, "GPU-00000000-0000-0000-0000-%012u", card_of(device));
    return OK;
}

typedef struct {
    unsigned long long total, free, used;
} memory_v1;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

static void fill_memory(unsigned card, memory_v2 *m)
{
    m->total = 8192 * MIB * (card + 1);
    m->reserved = 615 * MIB;
    m->used = 0;
    unsigned contexts = 0;
    for (unsigned i = 0; i < fake.count; i++)
        if (fake.list[i].card == card) {
            m->used += fake.list[i].bytes != NOT_AVAILABLE ? fake.list[i].bytes : 700 * MIB;
            contexts += !fake.list[i].display;
        }
    if (contexts)
        m->used += 13 * MIB / 4 + contexts * 45 * MIB / 8;
    m->free = m->total - m->used - m->reserved;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *memory)
{
    memory_v2 m;
    if (strcmp(setting("FAKE_NVML_MEMORY", ""), "na") == 0)
        return NOT_SUPPORTED;
    fill_memory(card_of(device), &m);
    memory->total = m.total;
    memory->free = m.free;
    memory->used = m.used + m.reserved; /* the older reading does not tell them apart */
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory)
{
    const char *how = setting("FAKE_NVML_MEMORY", "");
    if (strcmp(how, "na") == 0 || strcmp(how, "v1") == 0)
        return NOT_SUPPORTED;
    if (memory->version != (sizeof *memory | 2u << 24))
        return INVALID;
    fill_memory(card_of(device), memory);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    (void)device;
    const char *text = setting("FAKE_NVML_CAPABILITY", "90");
    if (strcmp(text, "na") == 0)
        return NOT_SUPPORTED;
    *major = atoi(text) / 10;
    *minor = atoi(text) % 10;
    return OK;
}

int nvmlDeviceGetComputeMode(void *device, int *mode)
{
    (void)device;
    *mode = atoi(setting("FAKE_NVML_MODE", "0"));
    return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending)
{
    (void)device;
    const char *text = getenv("FAKE_NVML_MIG");
    if (!text)
        return NOT_SUPPORTED;
    *now = *pending = (unsigned)atoi(text);
    return OK;
}

int nvmlDeviceGetEccMode(void *device, int *now, int *pending)
{
    (void)device;
    const char *text = getenv("FAKE_NVML_ECC");
    if (!text)
        return NOT_SUPPORTED;
    *now = *pending = atoi(text);
    return OK;
}

int nvmlDeviceGetDisplayActive(void *device, int *active)
{
    (void)device;
    const char *text = getenv("FAKE_NVML_DISPLAY");
    if (!text)
        return NOT_SUPPORTED;
    *active = atoi(text);
    return OK;
}

/* ---- processes in three layouts ---- */

typedef struct {
    unsigned pid;
    unsigned long long bytes;
} process_v1;
typedef struct {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} process_v2;

static int list_processes(void *device, unsigned *count, void *out, unsigned layout, unsigned display)
{
    if (fake.version < layout)
        return FUNCTION_NOT_FOUND;
    read_file();
    unsigned n = 0, shown = fake.listings ? fake.count : fake.known;
    fake.listings += !display;
    unsigned us = (unsigned)atoi(setting("FAKE_NVML_US", "0"));
    if (us && !display)
        usleep(us);
    for (unsigned i = 0; i < shown; i++) {
        const process *p = &fake.list[i];
        if (p->card != card_of(device) || p->display != display)
            continue;
        if (n == *count)
            return INSUFFICIENT_SIZE;
        if (layout == 1) {
            ((process_v1 *)out)[n].pid = p->pid;
            ((process_v1 *)out)[n].bytes = p->bytes;
        } else {
            ((process_v2 *)out)[n] = (process_v2){p->pid, p->bytes, ~0u, ~0u};
        }
        n++;
    }
    *count = n;
    return OK;
}

unsigned fake_nvml_listings(void) /* of compute processes since nvmlInit, for a test that asks */
{
    return fake.listings;
}

#define LISTS(suffix, layout)                                                                                          \
    int nvmlDeviceGetComputeRunningProcesses##suffix(void *device, unsigned *count, void *out)                         \
    {                                                                                                                  \
        return list_processes(device, count, out, layout, 0);                                                          \
    }                                                                                                                  \
    int nvmlDeviceGetGraphicsRunningProcesses##suffix(void *device, unsigned *count, void *out)                        \
    {                                                                                                                  \
        return list_processes(device, count, out, layout, 1);                                                          \
    }
LISTS(, 1)
LISTS(_v2, 2)
LISTS(_v3, 3)
