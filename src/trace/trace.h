/*
 * trace.h: the inside of memfit/trace.h, for the pool's hot path and for the importers.
 *
 * File:  header (64 bytes) | ring, of a file that was recorded | cell | cell | ...          little-endian
 *        A cell (32 bytes) is a memfit_event, or, with op MF_TRACE_NAME, the begin of a name: its number in `name`, its
 *        length in `bytes`, its text in the cells that follow; with op MF_TRACE_BLOCK it says where the events that follow
 *        come from: `bytes` events of shard `name`, the first of which was that shard's event number `id`.
 *        Names come before the events that use them, or after: a reader collects them first.
 *
 * The ring is the recorder's own memory (trace_sink.c): the file is mapped, so what was put there is in the file when the
 * process is killed. A reader of a file that was not closed takes the cells, and then from the ring what is not among them.
 */
#ifndef MF_TRACE_TRACE_H
#define MF_TRACE_TRACE_H

#include "base/memory.h"
#include "base/os.h"
#include "memfit/trace.h"

enum {
    MF_TRACE_VERSION = 2, /* 1 had neither ring nor blocks, and no flag for closed: cells == 0 was not closed */
    MF_TRACE_CELL = 32,
    MF_TRACE_END = 252,         /* op of a cell: the process ended at `time_ns`, and all it held was free */
    MF_TRACE_BLOCK = 253,       /* op of a cell that says where the events behind it come from */
    MF_TRACE_NAME = 255,        /* op of a name cell */
    MF_TRACE_STILL_THERE = 254, /* importers: `id` is alive at the end, whether or not its allocation was seen */
    MF_TRACE_MOST_STREAMS = 256,
    MF_TRACE_MOST_NAME = 255,
    MF_TRACE_MOST_SHARDS = 16,
    MF_TRACE_USER_NAMES = 65536,
};
#define MF_TRACE_MAGIC "MEMFITTR"

typedef struct mf_trace_header {
    char magic[8];
    uint32_t version;
    uint32_t cell_bytes;
    uint64_t cells;        /* only when closed */
    uint64_t lost;         /* events the writer had to drop */
    uint64_t unix_time_us; /* when the trace began */
    uint32_t crc32;        /* of all cells; only when closed */
    uint32_t process;      /* its number; 0: not said */
    uint64_t cells_at;     /* where they begin; version 1: 0, they begin behind the header */
    uint64_t closed;       /* 1, or 0: the writer did not come to that */
} mf_trace_header;
_Static_assert(sizeof(mf_trace_header) == 64, "the header is 64 bytes in every version");
_Static_assert(sizeof(memfit_event) == MF_TRACE_CELL, "an event is one cell");

/* ---- the recorder's ring ---- */

/* Threads are spread over shards, so that recording threads seldom meet; each shard has its lock and its cells. Time is
 * kept in ticks of the fastest clock there is and turned into nanoseconds when events leave the ring. */
typedef struct mf_trace_shard {
    uint32_t lock;
    uint32_t padding;
    uint64_t put;     /* events ever put here */
    uint64_t drained; /* of these, gone to the file */
    memfit_event *cells;
    uint64_t mask;
    uint64_t pad[11]; /* two cache lines of its own */
} mf_trace_shard;

/* The front of a recorded file, mapped by its recorder. Behind it the shards' cells, at MF_TRACE_RING_CELLS_AT, one shard
 * after the other. Two looks at both clocks turn ticks into nanoseconds; the newer one is written to the pair that `newer`
 * does not name, so that a kill in between leaves a whole pair. */
typedef struct mf_trace_ring {
    mf_trace_header header;
    uint32_t shard_count;
    uint32_t newer;        /* 0 or 1 */
    uint64_t shard_events; /* a power of two */
    uint64_t start_ticks;  /* at nanosecond 0 */
    struct {
        uint64_t ticks, ns;
    } look[2];
    uint64_t padding;
    mf_trace_shard shards[MF_TRACE_MOST_SHARDS];
} mf_trace_ring;
enum { MF_TRACE_RING_CELLS_AT = 4096, MF_TRACE_MOST_RING = 8192 /* events of a shard in a file's ring */ };
_Static_assert(sizeof(mf_trace_shard) == 128, "shards lie in files");
_Static_assert(sizeof(mf_trace_ring) <= MF_TRACE_RING_CELLS_AT, "the ring's cells begin on a page");

struct memfit_recorder {
    const memfit_host *host;
    uint64_t block_bytes;
    mf_trace_shard *shards;
    uint32_t shard_mask;
    bool to_file;
    struct mf_trace_names *names;
    struct mf_trace_sink *sink; /* the file; NULL for a ring in memory */
    mf_trace_ring *ring;        /* the file's, mapped; NULL: the ring is in memory */
    uint64_t start_ticks, start_ns, start_unix_us;
    /* Kept for whoever records here: whose numbers these are, and their names and streams in ours. */
    void *user;
    uint32_t *user_names;       /* MF_TRACE_USER_NAMES of them; 0: not asked for yet */
    uint64_t user_streams[256]; /* by number; 0: none */
};

/* As memfit_recorder_create, but options.path is left alone until mf_recorder_open_file: before the first event, by the
 * one thread that has the recorder then. */
memfit_status mf_recorder_create_later(const memfit_recorder_options *options, memfit_recorder **recorder,
                                       memfit_error *err);
memfit_status mf_recorder_open_file(memfit_recorder *recorder, memfit_error *err);

static inline uint64_t mf_trace_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return mf_os_now_ns();
#endif
}

void mf_trace_shard_wait(mf_trace_shard *shard);
/* A recorder with a file: makes room when the ring is full, looks at the clocks now and then. The shard's lock is held. */
void mf_trace_tend(memfit_recorder *recorder, mf_trace_shard *shard);
enum { MF_TRACE_TEND = 256 }; /* every so many events */

static inline mf_trace_shard *mf_trace_shard_of_thread(const memfit_recorder *recorder)
{
#if defined(__x86_64__) || defined(__aarch64__)
    uintptr_t thread = (uintptr_t)__builtin_thread_pointer();
#else
    uintptr_t thread = 0;
#endif
    return &recorder->shards[(thread >> 12 ^ thread >> 18) & recorder->shard_mask];
}

/* Records one event. `rest` is name | op << 32 | kind << 40 | stream << 48 | device << 56. */
static inline void mf_trace_put_words(memfit_recorder *recorder, uint64_t id, uint64_t bytes, uint64_t rest)
{
    mf_trace_shard *shard = mf_trace_shard_of_thread(recorder);
    if (__atomic_exchange_n(&shard->lock, 1, __ATOMIC_ACQUIRE))
        mf_trace_shard_wait(shard);
    if (recorder->to_file && (shard->put & (MF_TRACE_TEND - 1)) == 0)
        mf_trace_tend(recorder, shard);
    uint64_t words[4] = {mf_trace_ticks(), id, bytes, rest}, put = shard->put;
    __builtin_memcpy(&shard->cells[put & shard->mask], words, sizeof words);
    __atomic_store_n(&shard->put, put + 1, __ATOMIC_RELEASE); /* a kill before this and there is no such event */
    __atomic_store_n(&shard->lock, 0, __ATOMIC_RELEASE);
}

static inline void mf_trace_put(memfit_recorder *recorder, memfit_event_op op, uint64_t id, uint64_t bytes,
                                memfit_kind kind, uint32_t name, uint8_t stream)
{
    mf_trace_put_words(recorder, id, bytes, name | (uint64_t)op << 32 | (uint64_t)kind << 40 | (uint64_t)stream << 48);
}

memfit_status mf_recorder_check(memfit_recorder *recorder, memfit_error *err);

/* ---- traces being built by the importers ---- */

struct memfit_trace {
    mf_arena arena;
    memfit_trace_info info;
    memfit_event *events;
    const char **names;
    uint64_t ended_ns; /* when the process ended; 0: not said */
};

/* What to do with events that contradict each other. */
typedef enum {
    MF_TRACE_STRICT, /* DAMAGED, by the place's number: CSV */
    MF_TRACE_REPAIR, /* buffers freed but never seen to be allocated were there before; a second allocation of an id
                        ends the first */
} mf_trace_rule;

typedef struct mf_trace_builder {
    memfit_trace *trace;
    mf_trace_rule rule;
    uint64_t capacity;
    uint32_t names_capacity;
    uint32_t *name_slots; /* hash of the names, 1-based; 0 is empty */
    uint32_t name_slot_count;
    uint64_t *places;       /* where each event came from, for errors */
    const char *place_word; /* "line", "event" */
    uint64_t *streams;      /* raw numbers, by ours */
} mf_trace_builder;

/* A new empty trace; `expected` events are foreseen. */
memfit_status mf_trace_builder_begin(mf_trace_builder *b, const memfit_host *host, memfit_trace_source source,
                                     mf_trace_rule rule, const char *place_word, uint64_t expected, memfit_error *err);
/* Adds an event; id is any number. `place` is the line or number it came from. */
memfit_status mf_trace_builder_add(mf_trace_builder *b, const memfit_event *event, uint64_t place, memfit_error *err);
/* The number of a name, added when new. */
memfit_status mf_trace_builder_name(mf_trace_builder *b, const char *text, size_t bytes, uint32_t *name,
                                    memfit_error *err);
/* Our number for a stream of theirs, which may be a pointer; 0 stays 0. */
memfit_status mf_trace_builder_stream(mf_trace_builder *b, uint64_t raw, uint8_t *stream, memfit_error *err);
/* Puts events in order of time, numbers buffers densely, checks, counts. Ends the builder: on failure the trace is
 * gone too. */
memfit_status mf_trace_builder_end(mf_trace_builder *b, memfit_trace **trace, memfit_error *err);
void mf_trace_builder_abandon(mf_trace_builder *b);

memfit_status mf_trace_read_file(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                 memfit_error *err);
memfit_status mf_trace_read_csv(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                memfit_error *err);
memfit_status mf_trace_read_torch(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                  memfit_error *err);
/* Ids dense, every free after its allocation, totals as the info says. */
memfit_status mf_trace_check(const memfit_trace *trace, memfit_error *err);

#endif
