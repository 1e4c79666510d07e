/*
 * device.h: the one table every device fills. A device is addresses, physical pages, and streams:
 *
 *     reserve --> an address range, nothing behind it
 *     create  --> physical memory of `granularity` bytes or a multiple: a handle
 *     map     --> handle appears at an address inside a reservation (whole handles only, CUDA's rule)
 *     access  --> makes mapped addresses usable; may cover many handles in one call
 *     unmap, release: the way back. Memory exists until it is unmapped everywhere and released.
 *
 * Devices: cpu (memfd pages really mapped; settable capacity), sim (no memory behind it; counts, models the cost of each
 * call, fails on demand), cuda (the driver API); near (the process's own memory, what training on cpu lives in) and far
 * (cpu memory whose addresses the host cannot follow, for tests). Code above this header never asks which one it has.
 *
 * Threads: every function may be called from any thread; the device locks what it must. Map and unmap are not ordered
 * with streams: the caller unmaps only what no stream can still touch. Every function leaves things as they were when
 * it fails.
 */
#ifndef MF_DEVICE_DEVICE_H
#define MF_DEVICE_DEVICE_H

#include "base/memory.h"
#include "memfit/device.h"

#include <pthread.h>
#include <stdatomic.h>

typedef memfit_address mf_address; /* on cpu a pointer */
typedef uint64_t mf_physical;      /* handle of created memory; 0 is none */
typedef memfit_stream mf_stream;   /* 0 is the default stream */
typedef uint64_t mf_event;         /* 0 is none */
typedef uint64_t mf_recording;     /* recorded work of a stream; 0 is none */

typedef struct memfit_device mf_device;

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
    /* Optional: from now on access makes mapped addresses usable by another device of the same kind, too. UNSUPPORTED:
     * that one cannot reach this one's memory. NULL: there are no others. */
    memfit_status (*open_to)(mf_device *device, mf_device *other, memfit_error *err);

    /* Streams and events. On cpu and sim a stream is a counter that the test advances, or that is always done. */
    memfit_status (*stream_create)(mf_device *device, mf_stream *stream, memfit_error *err);
    memfit_status (*stream_destroy)(mf_device *device, mf_stream stream, memfit_error *err);
    memfit_status (*stream_wait)(mf_device *device, mf_stream stream, mf_event event, memfit_error *err);
    memfit_status (*stream_sync)(mf_device *device, mf_stream stream, memfit_error *err);
    /* Optional: `stream` goes on when `before` has done what it has by now; while one of them is recorded, so is the other
     * from then on, and that of the recorded stream must follow in the end. `event` is used for it and for nothing else.
     * NULL: streams do their work as it is queued. */
    memfit_status (*stream_follow)(mf_device *device, mf_stream stream, mf_stream before, mf_event event,
                                   memfit_error *err);
    memfit_status (*event_create)(mf_device *device, mf_event *event, memfit_error *err);
    memfit_status (*event_destroy)(mf_device *device, mf_event event, memfit_error *err);
    memfit_status (*event_record)(mf_device *device, mf_event event, mf_stream stream, memfit_error *err);
    memfit_status (*event_done)(mf_device *device, mf_event event, bool *done, memfit_error *err);
    /* Optional: returns when the event is done. NULL: the caller waits for the stream. */
    memfit_status (*event_sync)(mf_device *device, mf_event event, memfit_error *err);
    /* Optional, both or none: events that keep the time, and the time between two of them that are done. */
    memfit_status (*timer_create)(mf_device *device, mf_event *event, memfit_error *err);
    memfit_status (*timer_between)(mf_device *device, mf_event from, mf_event to, double *us, memfit_error *err);
    /* Optional: returns when all streams are done. NULL: they always are. */
    memfit_status (*device_sync)(mf_device *device, memfit_error *err);
    /* Optional: is work on the stream recorded into a graph instead of run? Then no event may be recorded on it that is
     * asked about later, and it must not be waited for. NULL: never. */
    memfit_status (*capturing)(mf_device *device, mf_stream stream, bool *yes, memfit_error *err);

    /* Bytes, in stream order. */
    memfit_status (*copy_in)(mf_device *device, mf_address to, const void *from, uint64_t bytes, mf_stream stream,
                             memfit_error *err);
    memfit_status (*copy_out)(mf_device *device, void *to, mf_address from, uint64_t bytes, mf_stream stream,
                              memfit_error *err);
    memfit_status (*copy)(mf_device *device, mf_address to, mf_address from, uint64_t bytes, mf_stream stream,
                          memfit_error *err);
    memfit_status (*fill)(mf_device *device, mf_address to, unsigned char byte, uint64_t bytes, mf_stream stream,
                          memfit_error *err);

    /* Optional: host memory from and to which copies run without a wait (pinned). NULL: any memory is as good. */
    memfit_status (*host_take)(mf_device *device, uint64_t bytes, void **memory, memfit_error *err);
    void (*host_give)(mf_device *device, void *memory, uint64_t bytes);

    /* Optional, all four or none: the work of a stream recorded once and launched as a whole any number of times. From
     * begin to end nothing that is queued on the stream runs; what was recorded runs when it is launched, on any stream,
     * with the addresses it was recorded with, those of host memory too: that must be host_take's, and must stay. An
     * event recorded meanwhile is recorded again by each launch. A failed end leaves the stream as it was before begin.
     * One stream is recorded at a time. */
    memfit_status (*record_begin)(mf_device *device, mf_stream stream, memfit_error *err);
    memfit_status (*record_end)(mf_device *device, mf_stream stream, mf_recording *record, memfit_error *err);
    memfit_status (*record_launch)(mf_device *device, mf_recording record, mf_stream stream, memfit_error *err);
    void (*record_destroy)(mf_device *device, mf_recording record);

    /* Optional (may be NULL): other processes that hold this device's memory, largest first, as text "name (pid)
     * bytes". */
    size_t (*others)(mf_device *device, char (*text)[128], uint64_t *bytes, size_t most);

    /* Optional: bytes of the device that this process holds now, as the system counts them; 0: it cannot be told. */
    uint64_t (*own_bytes)(mf_device *device);

    /* Optional: the clock by which idle pages age, in microseconds. NULL: the monotonic clock. sim's is its model's, so
     * that a replay is the same every time. */
    uint64_t (*now_us)(mf_device *device);
    void (*advance_us)(mf_device *device, uint64_t us); /* where the clock is a model; else NULL */
} mf_device_table;

/*
 * The budget: what the pools of one device may take together. Reserve-then-commit: a pool adds what it wants, and takes
 * it back when the sum is over. Never over, not even for an instant, whatever the threads do.
 *
 *     room = capacity - fixed cost
 *     slices + shared <= room        slices: limits of logical devices, used or not; shared: pages of all other pools
 */
typedef struct mf_budget {
    _Atomic uint64_t room_bytes;   /* UINT64_MAX: only the device itself refuses */
    _Atomic uint64_t taken_bytes;  /* slices + shared */
    _Atomic uint64_t slices_bytes; /* of it: limits set aside */
    _Atomic uint64_t pools_bytes;  /* physical bytes held by pools, slices' included: for reports */
} mf_budget;

bool mf_budget_take(mf_budget *budget, uint64_t bytes); /* false: no room, nothing changed */
void mf_budget_give(mf_budget *budget, uint64_t bytes);

typedef struct memfit_pool mf_pool_link;

/* Every device begins with this. mf_device_init fills it. */
struct memfit_device {
    const mf_device_table *table;
    const memfit_host *host;
    uint64_t granularity;         /* of physical memory and mapping: 2 MiB on CUDA */
    _Atomic uint64_t fixed_bytes; /* what the process pays before its first byte: context, libraries; a device may
                                     correct it while it runs */
    char name[128];               /* "NVIDIA H200", "cpu", ... */
    char uuid[64];                /* identity; empty where there is none */
    char opened_as[32];           /* "cuda:0" */
    _Atomic uint64_t skipped_us;  /* added to the monotonic clock (memfit_device_advance) */

    bool reachable; /* the host may follow its addresses */
    bool hollow;    /* no bytes behind the addresses (sim) */
    bool plain; /* cannot map memory where it likes: reserve takes the memory itself, at most what the caller may have,
                    and map, access and unmap inside it change nothing. It is back when the addresses are. */

    mf_budget budget;
    pthread_mutex_t lock;                  /* guards the lists of pools */
    mf_pool_link *pools;                   /* alive and whole, oldest first; linked by the pool layer */
    mf_pool_link *payer;                   /* the pool that pays the fixed cost */
    unsigned pool_count;                   /* those that are being made or ended among them */
    long process;                          /* that opened it */
    mf_pool_link *dead_pools;              /* shells of destroyed ones, so that their misuse can be told */
    void (*free_pools)(mf_device *device); /* set by the pool layer; frees the shells when the device goes */
};

/* Fills the common part; the table's own fields (granularity, name, ...) are the device's to set. */
memfit_status mf_device_init(mf_device *device, const mf_device_table *table, const memfit_host *host,
                             memfit_error *err);
void mf_device_end(mf_device *device); /* the last thing a table's destroy does before it frees its own memory */

uint64_t mf_device_now_us(mf_device *device);
bool mf_device_of_parent(const mf_device *device); /* it was opened before fork: this process must leave it alone */

/* The openers, one a kind. `index` is the number after the colon. */
memfit_status mf_device_open_cpu(const memfit_device_options *options, unsigned index, mf_device **device,
                                 memfit_error *err);
memfit_status mf_device_open_sim(const memfit_device_options *options, unsigned index, mf_device **device,
                                 memfit_error *err);
memfit_status mf_device_open_cuda(const memfit_device_options *options, unsigned index, mf_device **device,
                                  memfit_error *err);
/* The process's own memory, plain: nothing to open or to close. What is reserved ends at a page
 * that no access survives; access makes pages resident. */
mf_device *mf_device_near(void);
/* The cpu's memory, at addresses that trap: bytes come and go through copies only. */
memfit_status mf_device_open_far(const memfit_host *host, mf_device **device, memfit_error *err);
/* Where the far device's own work finds its bytes: this much above their addresses. Only a backend may know. */
uint64_t mf_device_far_shift(const mf_device *device);
/* How often the host has waited for a far device, over all of them: for tests. */
uint64_t mf_device_far_waits(void);
/* While the far device records: keeps up to 64 bytes, to be given to `what` at each launch, and returns true. False: it
 * does not record, the caller does its work now. */
typedef memfit_status mf_far_do(mf_device *device, const void *with, mf_stream stream, memfit_error *err);
bool mf_device_far_keep(mf_device *device, mf_far_do *what, const void *with, size_t bytes);
bool mf_device_describe_cuda(unsigned index, memfit_device_info *info);

#endif
