/* preload_ask.c: the driver's and NVML's functions that report memory, and the driver's own way to its functions. They
 * report the card as the job may see it. */
#include "govern/preload.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* A job that takes turns has the cards to itself when it has them, so it neither takes memory nor looks for it before. */
void mf_govern_wait_turn(mf_share *share)
{
    mf_share_file *f = share->file;
    const struct timespec pause = {0, 2000000};
    int saved = errno;
    if (share->job && f->jobs[share->job - 1].turns_s) { /* from now on: who imports for a minute needs no turn */
        __atomic_store_n(&f->jobs[share->job - 1].wants, 1, __ATOMIC_RELEASE);
        mf_govern_huge_pages();
    }
    while (share->job && f->jobs[share->job - 1].turns_s && __atomic_load_n(&f->turn, __ATOMIC_ACQUIRE) != share->job &&
           mf_share_lives(__atomic_load_n(&f->jobs[share->job - 1].owner, __ATOMIC_ACQUIRE)))
        nanosleep(&pause, NULL);
    errno = saved;
}

/* The card as the job may see it. */
static bool limited(mf_share *share, unsigned card, uint64_t *total, uint64_t *free_bytes)
{
    if (!share || card == MF_SHARE_CARDS)
        return false;
    uint64_t limit = __atomic_load_n(&share->file->limit_bytes[card], __ATOMIC_ACQUIRE);
    if (limit >= *total)
        return false;
    mf_share_tidy(share); /* what the dead had is free */
    uint64_t used = mf_share_in_use(share, card);
    uint64_t fixed = mf_govern_fixed_due(card);
    uint64_t left = limit > used + fixed ? limit - used - fixed : 0;
    *total = limit;
    *free_bytes = *free_bytes < left ? *free_bytes : left;
    return true;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    int (*real)(size_t *, size_t *) = CALL(cuMemGetInfo_v2, int (*)(size_t *, size_t *));
    size_t f = 0, t = 0;
    mf_share *share = mf_govern_share();
    if (!real)
        return NOT_INITIALIZED;
    if (!share)
        return real(free_bytes, total);
    int code = real(&f, &t);
    uint64_t wide_total = t, wide_free = f;
    if (code)
        return code;
    mf_govern_wait_turn(share);
    limited(share, mf_govern_current_card(share), &wide_total, &wide_free);
    if (free_bytes)
        *free_bytes = (size_t)wide_free;
    if (total)
        *total = (size_t)wide_total;
    return code;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int ordinal)
{
    int (*real)(size_t *, int) = CALL(cuDeviceTotalMem_v2, int (*)(size_t *, int));
    int code = real ? real(bytes, ordinal) : NOT_INITIALIZED;
    mf_share *share = mf_govern_share();
    if (code || !share || !bytes)
        return code;
    uint64_t total = *bytes, none = UINT64_MAX;
    limited(share, mf_govern_card_of(share, ordinal), &total, &none);
    *bytes = (size_t)total;
    return code;
}

static unsigned nvml_card(mf_share *share, void *handle)
{
    int (*uuid)(void *, char *, unsigned) = (int (*)(void *, char *, unsigned))mf_govern_driver("nvmlDeviceGetUUID");
    char text[96];
    return uuid && uuid(handle, text, sizeof text) == 0 ? mf_share_card(share, mf_share_id(text)) : MF_SHARE_CARDS;
}

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory_v2;

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, nvml_memory *memory)
{
    int (*real)(void *, nvml_memory *) = CALL(nvmlDeviceGetMemoryInfo, int (*)(void *, nvml_memory *));
    mf_share *share = mf_govern_share();
    int code = real ? real(handle, memory) : 1;
    if (code || !share || !memory)
        return code;
    uint64_t total = memory->total, free_bytes = memory->free;
    if (limited(share, nvml_card(share, handle), &total, &free_bytes))
        *memory = (nvml_memory){total, free_bytes, total - free_bytes};
    return code;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, nvml_memory_v2 *memory)
{
    int (*real)(void *, nvml_memory_v2 *) = CALL(nvmlDeviceGetMemoryInfo_v2, int (*)(void *, nvml_memory_v2 *));
    mf_share *share = mf_govern_share();
    int code = real ? real(handle, memory) : 1;
    if (code || !share || !memory)
        return code;
    uint64_t total = memory->total, free_bytes = memory->free;
    if (limited(share, nvml_card(share, handle), &total, &free_bytes))
        *memory = (nvml_memory_v2){memory->version, total, 0, free_bytes, total - free_bytes};
    return code;
}

/* ---- the driver's own way to its functions ---------------------------------------------------------------- */

/* The driver answers by name, version and flags; ours is chosen by the address it gave, so neither can be got wrong. */
EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    int (*real)(const char *, void **, int, uint64_t) =
        CALL(cuGetProcAddress, int (*)(const char *, void **, int, uint64_t));
    int code = real ? real(name, function, version, flags) : NOT_INITIALIZED;
    if (!code && function)
        *function = mf_govern_mapped(*function);
    return code;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found)
{
    int (*real)(const char *, void **, int, uint64_t, int *) =
        CALL(cuGetProcAddress_v2, int (*)(const char *, void **, int, uint64_t, int *));
    int code = real ? real(name, function, version, flags, found) : NOT_INITIALIZED;
    if (!code && function)
        *function = mf_govern_mapped(*function);
    return code;
}
