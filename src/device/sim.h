/*
 * sim.h: the handles a test has on the simulated device. It keeps no bytes, but it is a strict referee: it refuses
 * whatever the real drivers refuse (mapping over a mapping, half a handle, memory in use released), and what they do not
 * refuse but nobody survives: unmapping memory that work in flight touches, touching from one stream what another has
 * not finished with, asking for an event that was captured into a graph. These are counted as violations.
 */
#ifndef MF_DEVICE_SIM_H
#define MF_DEVICE_SIM_H

#include "device/device.h"

/* Calls of the table, with the modelled cost of each in nanoseconds: per call and per granule, from measurements on an
 * H200 with 2 MiB handles. */
#define MF_CALL_LIST(X)                                                                                                \
    X(MEMORY, "memory", 1000, 0)                                                                                       \
    X(RESERVE, "reserve", 2000, 0)                                                                                     \
    X(UNRESERVE, "unreserve", 2000, 0)                                                                                 \
    X(CREATE, "create", 7300, 700)                                                                                     \
    X(RELEASE, "release", 5000, 700)                                                                                   \
    X(MAP, "map", 1050, 0)                                                                                             \
    X(ACCESS, "access", 8000, 700)                                                                                     \
    X(UNMAP, "unmap", 9000, 700)                                                                                       \
    X(STREAM_CREATE, "stream_create", 5000, 0)                                                                         \
    X(STREAM_DESTROY, "stream_destroy", 5000, 0)                                                                       \
    X(STREAM_WAIT, "stream_wait", 500, 0)                                                                              \
    X(STREAM_SYNC, "stream_sync", 3000, 0)                                                                             \
    X(EVENT_CREATE, "event_create", 500, 0)                                                                            \
    X(EVENT_DESTROY, "event_destroy", 500, 0)                                                                          \
    X(EVENT_RECORD, "event_record", 600, 0)                                                                            \
    X(EVENT_DONE, "event_done", 400, 0)                                                                                \
    X(EVENT_SYNC, "event_sync", 3000, 0)                                                                               \
    X(DEVICE_SYNC, "device_sync", 3000, 0)                                                                             \
    X(COPY, "copy", 3000, 0)

typedef enum mf_call {
    MF_CALL_ANY, /* for mf_sim_fail: whatever the call */
#define X(name, text, call_ns, granule_ns) MF_CALL_##name,
    MF_CALL_LIST(X)
#undef X
        MF_CALL_COUNT
} mf_call;

typedef struct mf_sim_counts {
    uint64_t calls[MF_CALL_COUNT]; /* [MF_CALL_ANY]: all */
    uint64_t physical_bytes, physical_peak_bytes;
    uint64_t mapped_bytes;
    uint64_t reserved_bytes; /* address space */
    uint64_t handles, streams, events;
    uint64_t time_ns;    /* modelled */
    uint64_t violations; /* of what work in flight needs */
} mf_sim_counts;

mf_sim_counts mf_sim_get(mf_device *device);
/* The nth call (1 is the next) of this kind fails with MEMFIT_DEVICE (create: OUT_OF_MEMORY), once or for ever. nth 0:
 * never again. */
void mf_sim_fail(mf_device *device, mf_call call, uint64_t nth, bool for_ever);
/* What opening and unmapping take for each handle, together, beside the calls. On an H200 the work is by the handle. */
void mf_sim_handle_us(mf_device *device, uint64_t us);
/* What other processes hold of the card. */
void mf_sim_set_foreign(mf_device *device, uint64_t bytes);
/* A held stream does nothing until it is let go: copies and fills on it stay in flight, its events stay open and
 * waiting for it fails. */
void mf_sim_hold(mf_device *device, mf_stream stream, bool held);
/* A stream that lags is held, but an event on it is done so long after it was recorded, and waiting for it takes until
 * then. 0: it does not, and all its work is done. */
void mf_sim_lag_us(mf_device *device, mf_stream stream, uint64_t us);
/* While a stream is captured its work becomes part of a graph: nothing on it runs, and it must not be waited for. */
void mf_sim_capture(mf_device *device, mf_stream stream, bool captured);
void mf_sim_advance_us(mf_device *device, uint64_t us);
/* True when every structure agrees with the others. */
bool mf_sim_check(mf_device *device, memfit_error *err);

#endif
