/*
 * memfit/trace.h: what happened to memory, as a list of events; recorded, kept in files, read from elsewhere.
 *
 * One event is 32 bytes, the same in the recorder's ring, in a trace file and in a loaded trace. A trace file is a
 * header of 64 bytes, the ring of a recorder that writes to it, and cells of 32 bytes: events, and the names they refer
 * to. Its layout is in docs/trace.md.
 *
 *     memfit_recorder *recorder;                          memfit_trace *trace;
 *     memfit_recorder_create(NULL, &recorder, &err);      memfit_trace_load("run.trace", NULL, &trace, &err);
 *     ... a pool records into it ...                      const memfit_event *e = memfit_trace_events(trace, &count);
 *     memfit_recorder_save(recorder, "run.trace", &err);  memfit_trace_destroy(trace);
 */
#ifndef MEMFIT_TRACE_H
#define MEMFIT_TRACE_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- events ----------------------------------------------------------------------------------------------- */

/* Number, name, text, meaning. Numbers never change. */
#define MEMFIT_EVENT_LIST(X)                                                                                           \
    X(1, ALLOC, "alloc")           /* buffer `id` of `bytes` appears */                                                \
    X(2, FREE, "free")             /* buffer `id` is gone, its bytes can be used again */                              \
    X(3, FREE_ASKED, "free-asked") /* its owner has let go, work on `stream` still uses it; FREE follows */            \
    X(4, FAIL, "fail")             /* `bytes` were asked for and refused */                                            \
    X(5, MAP, "map")               /* `bytes` of physical memory were taken */                                         \
    X(6, UNMAP, "unmap")           /* `bytes` of physical memory were given back */                                    \
    X(7, REMAP, "remap")           /* `bytes` of physical memory moved to other addresses */                           \
    X(8, LIMIT, "limit")           /* the limit is `bytes` from here on */                                             \
    X(9, MARK, "mark")             /* a step, an epoch or an experiment begins: `name` */

typedef enum memfit_event_op {
#define X(number, name, text) MEMFIT_EVENT_##name = (number),
    MEMFIT_EVENT_LIST(X)
#undef X
} memfit_event_op;

/* "alloc", ...; "?" for a number that is none. Since 0.1. */
MEMFIT_API const char *memfit_event_op_name(unsigned op);

typedef struct memfit_event {
    uint64_t time_ns; /* since the trace began */
    uint64_t id;      /* of the buffer: its address while recording; in a loaded trace 0, 1, 2, ... by first use */
    uint64_t bytes;   /* below 2^48 */
    uint32_t name;    /* of the owner; 0 is none */
    uint8_t op;       /* memfit_event_op */
    uint8_t kind;     /* memfit_kind */
    uint8_t stream;   /* 0 is the default stream */
    uint8_t device;   /* its number */
} memfit_event;

/* ---- recording -------------------------------------------------------------------------------------------- */

/* Keeps the newest events in memory taken at creation, or, with a path, writes all of them to a file; what was put is
 * there even if the process is killed. Recording allocates nothing. Every function may be called from any thread, but not
 * in a child of fork. */
typedef struct memfit_recorder memfit_recorder;

typedef struct memfit_recorder_options {
    size_t size;             /* sizeof(memfit_recorder_options) */
    const memfit_host *host; /* NULL: the C library */
    uint64_t events;  /* how many are kept in memory, rounded up to a power of two; default 65,536 (2 MiB). With a
                              * path: of the ring in the file, from 512 to 8,192 */
    uint32_t names;   /* how many different names there is room for; default 4,096 */
    uint32_t shards;  /* rings of `events` each, up to 16, among which threads are spread; default 1 */
    const char *path; /* NULL: keep the newest only. Else: every event goes to this file */
} memfit_recorder_options;

#define MEMFIT_RECORDER_OPTIONS MEMFIT_INIT_3(memfit_recorder_options, events, 65536, names, 4096, shards, 1)
/* `options` NULL: the defaults. Since 0.1. */
MEMFIT_API memfit_status memfit_recorder_create(const memfit_recorder_options *options, memfit_recorder **recorder,
                                                memfit_error *err);
/* Bytes a recorder of these options takes. Since 0.1. */
MEMFIT_API uint64_t memfit_recorder_estimate(const memfit_recorder_options *options);
/* Closes the file, if there is one; its errors are told by memfit_recorder_close, which may be called before. */
MEMFIT_API void memfit_recorder_destroy(memfit_recorder *recorder);
/* The number for a name, the same for the same text: at most 255 bytes count. 0 when there is no room for more names;
 * their events then have no name. Since 0.1. */
MEMFIT_API uint32_t memfit_recorder_name(memfit_recorder *recorder, const char *text);
/* Records an event; its time is now, whatever time_ns says. Since 0.1. */
MEMFIT_API void memfit_recorder_put(memfit_recorder *recorder, const memfit_event *event);
/* Records a MARK: the begin of a step or an experiment. Since 0.1. */
MEMFIT_API void memfit_recorder_mark(memfit_recorder *recorder, const char *name);
/* How many events came, and how many of them are no longer there (overwritten, or not written). Since 0.1. */
MEMFIT_API void memfit_recorder_counts(const memfit_recorder *recorder, uint64_t *put, uint64_t *lost);
/* Writes what is in memory to a trace file, whole or not at all. Not for a recorder with a path: CONFLICT. */
MEMFIT_API memfit_status memfit_recorder_save(memfit_recorder *recorder, const char *path, memfit_error *err);
/* A pool records everything that happens to it from now on: requests, frees, refusals, pages, marks. NULL: no more.
 * CONFLICT when the recorder serves another pool; one that was stopped can serve the next. Other threads may use the pool
 * meanwhile. Stop before the recorder is destroyed. Since 0.1. */
struct memfit_pool;
MEMFIT_API memfit_status memfit_pool_record(struct memfit_pool *pool, memfit_recorder *recorder, memfit_error *err);
/* Completes the file of a recorder with a path; later events are lost. IO when anything could not be written. */
MEMFIT_API memfit_status memfit_recorder_close(memfit_recorder *recorder, memfit_error *err);

/* ---- traces ----------------------------------------------------------------------------------------------- */

/* A loaded trace: events in order of time, each buffer with one number for its life. Never changes. */
typedef struct memfit_trace memfit_trace;

typedef enum memfit_trace_source { MEMFIT_TRACE_MEMFIT, MEMFIT_TRACE_CSV, MEMFIT_TRACE_TORCH } memfit_trace_source;

typedef struct memfit_trace_info {
    size_t size; /* sizeof(memfit_trace_info): MEMFIT_TRACE_INFO */
    memfit_trace_source source;
    uint64_t events;          /* of every op */
    uint64_t buffers;         /* different ones; ids are below this number */
    uint64_t peak_live_bytes; /* largest sum of live buffers */
    uint64_t end_live_bytes;  /* never freed */
    uint64_t duration_ns;
    uint64_t before_buffers; /* alive before the recording began: allocated at time 0 here */
    uint64_t before_bytes;
    uint64_t repaired; /* events that contradicted each other and were made consistent or left out */
    uint64_t failures; /* FAIL events */
    uint32_t names;    /* name numbers are below this one */
    uint32_t streams;  /* stream numbers are below this one */
    bool cut;          /* the writer of the file never closed it; what it had written is here */
} memfit_trace_info;
#define MEMFIT_TRACE_INFO MEMFIT_INIT(memfit_trace_info)

/* Reads a memfit trace file, a CSV trace (time_us,op,id,bytes,stream) or a PyTorch memory snapshot (a pickle), told
 * apart by their content. DAMAGED names the line, byte or event, also of a pickle that is more than plain data;
 * UNSUPPORTED is a newer format version. `host` may be NULL. Since 0.1. */
MEMFIT_API memfit_status memfit_trace_load(const char *path, const memfit_host *host, memfit_trace **trace,
                                           memfit_error *err);
/* The same from memory; `data` is not needed afterwards. Since 0.1. */
MEMFIT_API memfit_status memfit_trace_read(const void *data, size_t bytes, const memfit_host *host,
                                           memfit_trace **trace, memfit_error *err);
/* Does it begin as a memfit trace or a CSV trace begins? Its first 64 bytes are enough. No word about PyTorch snapshots:
 * every pickle begins like them. Since 0.2. */
MEMFIT_API bool memfit_trace_begins(const void *data, size_t bytes);
MEMFIT_API void memfit_trace_destroy(memfit_trace *trace);
MEMFIT_API const memfit_event *memfit_trace_events(const memfit_trace *trace, uint64_t *count);
/* The text of a name number; "" for 0 and for numbers that are none. Lives as long as the trace. Since 0.1. */
MEMFIT_API const char *memfit_trace_name(const memfit_trace *trace, uint32_t name);
MEMFIT_API memfit_status memfit_trace_describe(const memfit_trace *trace, memfit_trace_info *info, memfit_error *err);
/* Writes it as a memfit trace file. Since 0.1. */
MEMFIT_API memfit_status memfit_trace_save(const memfit_trace *trace, const char *path, memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
