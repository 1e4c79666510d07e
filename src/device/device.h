/*
 * device.h: the one table every device fills. A device is addresses, physical pages, and streams:
 *
 *     reserve --> an address range, nothing behind it
 *     create  --> physical memory of `granularity` bytes or a multiple: a handle
 *     map     --> handle appears at an address inside a reservation (whole handles only, CUDA's rule)
 *     access  --> makes mapped addresses usable; may cover many handles in one call
 *     unmap, release: the way back. Memory exists until it is unmapped everywhere and released.
 *
 * Three devices: cpu (memfd pages really mapped; settable capacity), sim (no memory behind it; counts, models the cost
 * of each call, fails on demand), cuda (the driver API). Code above this header never asks which one it has.
 *
 * Threads: every function may be called from any thread; the device locks what it must. Map and unmap are not ordered
 * with streams: the caller unmaps only what no stream can still touch. Every function leaves things as they were when
 * it fails.
 */
#ifndef MF_DEVICE_DEVICE_H
#define MF_DEVICE_DEVICE_H

#include "base/memory.h"
#include "memfit/base.h"

typedef uint64_t mf_address;  /* on cpu a pointer */
typedef uint64_t mf_physical; /* handle of created memory; 0 is none */
typedef uint64_t mf_stream;   /* 0 is the default stream */
typedef uint64_t mf_event;    /* 0 is none */

typedef struct mf_device mf_device;

typedef struct mf_device_table {
    const char *kind; /* "cpu", "sim", "cuda" */
    void (*destroy)(mf_device *device);

    /* Physical memory: total and free now, by all processes. */
    memfit_status (*memory)(mf_device *device, uint64_t *total_bytes, uint64_t *free_bytes, memfit_error *err);

    memfit_status (*reserve)(mf_device *device, uint64_t bytes, uint64_t alignment, mf_address *address,
                             memfit_error *err);
    memfit_status (*unreserve)(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err);
    memfit_status (*create)(mf_device *device, uint64_t bytes, mf_physical *physical, memfit_error *err);
    memfit_status (*release)(mf_device *device, mf_physical physical, uint64_t bytes, memfit_error *err);
    memfit_status (*map)(mf_device *device, mf_address address, uint64_t bytes, mf_physical physical,
                         memfit_error *err);
    memfit_status (*access)(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err);
    memfit_status (*unmap)(mf_device *device, mf_address address, uint64_t bytes, memfit_error *err);

    /* Streams and events. On cpu and sim a stream is a counter that the test advances, or that is always done. */
    memfit_status (*stream_create)(mf_device *device, mf_stream *stream, memfit_error *err);
    memfit_status (*stream_destroy)(mf_device *device, mf_stream stream, memfit_error *err);
    memfit_status (*stream_wait)(mf_device *device, mf_stream stream, mf_event event, memfit_error *err);
    memfit_status (*stream_sync)(mf_device *device, mf_stream stream, memfit_error *err);
    memfit_status (*event_create)(mf_device *device, mf_event *event, memfit_error *err);
    memfit_status (*event_destroy)(mf_device *device, mf_event event, memfit_error *err);
    memfit_status (*event_record)(mf_device *device, mf_event event, mf_stream stream, memfit_error *err);
    memfit_status (*event_done)(mf_device *device, mf_event event, bool *done, memfit_error *err);

    /* Bytes, in stream order. */
    memfit_status (*copy_in)(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                             memfit_error *err);
    memfit_status (*copy_out)(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                              memfit_error *err);
    memfit_status (*copy)(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                          memfit_error *err);
    memfit_status (*fill)(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                          memfit_error *err);

    /* Optional (may be NULL): other processes that hold this device's memory, largest first, as text "name (pid)
     * bytes". */
    size_t (*others)(mf_device *device, char (*text)[128], uint64_t *bytes, size_t most);
} mf_device_table;

/* Every device begins with this. */
struct mf_device {
    const mf_device_table *table;
    const memfit_host *host;
    uint64_t granularity; /* of physical memory and mapping: 2 MiB on CUDA */
    uint64_t fixed_bytes; /* what the process pays before its first byte: context, libraries */
    char name[128];       /* "NVIDIA H200", "cpu", ... */
    char uuid[64];        /* identity; empty where there is none */
};

#endif
