/*
 * memfit/device.h: where memory comes from. A device is opened by name:
 *
 *     "cpu"       this machine's memory, as pages really mapped and given back; its capacity can be set, so that a
 *                 machine without a GPU behaves like a small card
 *     "sim"       no memory behind it, any capacity: for replaying traces and for tests
 *     "cuda:1"    a CUDA card ("cuda" is "cuda:0"); found at run time, never linked
 *
 * A device may be used from any thread. It must outlive the pools made on it.
 */
#ifndef MEMFIT_DEVICE_H
#define MEMFIT_DEVICE_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memfit_device memfit_device;

typedef uint64_t memfit_address; /* of device memory; on cpu it is a pointer: (float *)(uintptr_t)address */
typedef uint64_t memfit_stream;  /* a queue of work on the device; 0 is the default stream */

typedef struct memfit_device_options {
    size_t size;                /* sizeof(memfit_device_options) */
    const memfit_host *host;    /* host memory; NULL: libc */
    uint64_t capacity_bytes;    /* cpu, sim: how much the device holds. 0: cpu what this process may still take,
                                   sim 16 GiB. cuda: must be 0 (the card says) */
    uint64_t granularity_bytes; /* sim: of physical memory. 0: sim 2 MiB; cpu and cuda: must be 0 */
    uint64_t fixed_bytes;       /* cost of context and libraries. sim: pretended, 0 is none; cpu: 0 is what this
                                   process holds already; cuda: must be 0 (measured) */
} memfit_device_options;

#define MEMFIT_DEVICE_OPTIONS MEMFIT_INIT(memfit_device_options)

/* NOT_FOUND when there is no such device (the message lists those there are), UNSUPPORTED when this build or machine
 * lacks what the kind needs, INVALID for an option that makes no sense for it. `options` may be NULL. Since 0.1. */
MEMFIT_API memfit_status memfit_device_open(const char *name, const memfit_device_options *options,
                                            memfit_device **device, memfit_error *err);

/* MISUSE while pools on it are alive, and nothing happens then. NULL is fine. Since 0.1. */
MEMFIT_API memfit_status memfit_device_close(memfit_device *device, memfit_error *err);

typedef struct memfit_device_info {
    size_t size;          /* sizeof(memfit_device_info): MEMFIT_DEVICE_INFO */
    char name[128];       /* what one passes to memfit_device_open: "cpu", "cuda:0" */
    char model[128];      /* "NVIDIA H200", ... */
    char uuid[64];        /* identity; empty where there is none */
    uint64_t total_bytes; /* physical memory */
    uint64_t free_bytes;  /* not taken by anyone now */
    uint64_t fixed_bytes; /* what this process pays before its first byte: context, libraries */
    uint64_t granularity_bytes;
    uint64_t pools_bytes;     /* physical memory held by this process's pools on this device object */
    uint64_t set_aside_bytes; /* limits of its logical devices (see memfit_pool_options.slice) */
} memfit_device_info;
#define MEMFIT_DEVICE_INFO MEMFIT_INIT(memfit_device_info)

/* Since 0.1. */
MEMFIT_API memfit_status memfit_device_get_info(memfit_device *device, memfit_device_info *info, memfit_error *err);

/* What can be opened here: at most `most` entries, `stride` bytes apart, are written, *count is how many there are.
 * Opens nothing that costs device memory; fixed_bytes and free_bytes may be 0 where only opening would tell. Since 0.1.
 */
MEMFIT_API memfit_status memfit_device_list(memfit_device_info *list, size_t stride, size_t most, size_t *count,
                                            memfit_error *err);

/* The device's clock goes on by so much. On sim it goes by no other way; on the others time passes by itself, and this is
 * for who plays a recording faster than it was: its pools take the time as gone by (pages idle since, time for moving
 * some). Since 0.2. */
MEMFIT_API memfit_status memfit_device_advance(memfit_device *device, uint64_t microseconds, memfit_error *err);

/* ---- streams and bytes ------------------------------------------------------------------------------------ */

/* Since 0.1. */
MEMFIT_API memfit_status memfit_stream_create(memfit_device *device, memfit_stream *stream, memfit_error *err);
/* Pools must hold no block freed on it that still waits; see memfit_pool_forget_stream. Since 0.1. */
MEMFIT_API memfit_status memfit_stream_destroy(memfit_device *device, memfit_stream stream, memfit_error *err);
/* Waits until everything queued is done. Since 0.1. */
MEMFIT_API memfit_status memfit_stream_sync(memfit_device *device, memfit_stream stream, memfit_error *err);

/* In stream order. On cpu and sim they are done at return. sim has no bytes: out gives zeros. Since 0.1. */
MEMFIT_API memfit_status memfit_device_copy_in(memfit_device *device, memfit_address to, const void *from,
                                               uint64_t bytes, memfit_stream stream, memfit_error *err);
MEMFIT_API memfit_status memfit_device_copy_out(memfit_device *device, void *to, memfit_address from, uint64_t bytes,
                                                memfit_stream stream, memfit_error *err);
MEMFIT_API memfit_status memfit_device_fill(memfit_device *device, memfit_address to, unsigned char byte,
                                            uint64_t bytes, memfit_stream stream, memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
