/* trace_sink.c: see trace_sink.h. */
#include "trace/trace_sink.h"
#include "base/bytes.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { SPINS = 64, FIRST_LOOKS_NS = 100000 };

void mf_trace_lock(uint32_t *word)
{
    for (unsigned spins = 0; __atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE); spins++)
        if (spins >= SPINS)
            mf_os_yield();
}

void mf_trace_unlock(uint32_t *word)
{
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
}

uint64_t mf_clock_ns(const mf_clock_line *c, uint64_t ticks)
{
    if (ticks <= c->ticks0 || c->ticks1 <= c->ticks0 || c->ns1 < c->ns0)
        return c->ns0;
    double share = (double)(ticks - c->ticks0) / (double)(c->ticks1 - c->ticks0);
    double ns = share * (double)(c->ns1 - c->ns0);
    return c->ns0 + (ns < 9e18 ? (uint64_t)ns : UINT64_C(9000000000000000000)); /* ticks of a damaged file */
}

size_t mf_trace_name_cells(uint32_t number, const char *text, memfit_event cells[MF_TRACE_NAME_CELLS])
{
    size_t n = strnlen(text, MF_TRACE_MOST_NAME);
    memset(cells, 0, MF_TRACE_NAME_CELLS * sizeof *cells);
    cells[0] = (memfit_event){.op = MF_TRACE_NAME, .name = number, .bytes = n};
    memcpy(cells + 1, text, n);
    return 1 + (n + MF_TRACE_CELL - 1) / MF_TRACE_CELL;
}

void mf_trace_header_fill(mf_trace_header *header, uint64_t cells_at, uint64_t unix_us)
{
    *header = (mf_trace_header){.version = MF_TRACE_VERSION,
                                .cell_bytes = MF_TRACE_CELL,
                                .unix_time_us = unix_us,
                                .process = (uint32_t)mf_os_process_id(),
                                .cells_at = cells_at};
    memcpy(header->magic, MF_TRACE_MAGIC, 8);
}

/* ---- the file --------------------------------------------------------------------------------------------- */

static bool write_at(const struct mf_trace_sink *sink, const void *data, size_t bytes, uint64_t at)
{
    for (const char *p = data; bytes;) {
        ssize_t n = sink->in_order ? write(sink->file, p, bytes) : pwrite(sink->file, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return true;
}

/* The sink's lock is held. `events` of these cells are lost if they cannot be written. */
static void write_cells(struct mf_trace_sink *sink, const memfit_event *cells, size_t count, uint64_t events)
{
    bool good = !sink->failed && !sink->closed && sink->file >= 0;
    if (good && !write_at(sink, cells, count * MF_TRACE_CELL, sink->cells_at + sink->cells * MF_TRACE_CELL))
        sink->failed = true;
    if (!good || sink->failed) {
        sink->lost += events;
        return;
    }
    sink->crc = (uint32_t)crc32(sink->crc, (const Bytef *)cells, (uInt)(count * MF_TRACE_CELL));
    sink->cells += count;
}

static void look_at_clocks(memfit_recorder *r)
{
    mf_trace_ring *ring = r->ring;
    uint32_t next = !ring->newer;
    ring->look[next].ticks = mf_trace_ticks();
    ring->look[next].ns = mf_os_now_ns() - r->start_ns;
    __atomic_store_n(&ring->newer, next, __ATOMIC_RELEASE);
}

static void drain(memfit_recorder *r, mf_trace_shard *shard)
{
    struct mf_trace_sink *sink = r->sink;
    mf_trace_lock(&sink->lock);
    mf_clock_line line = {sink->last_ticks, sink->last_ns, mf_trace_ticks(), mf_os_now_ns() - r->start_ns};
    uint64_t done = shard->drained;
    while (done < shard->put) {
        uint64_t count = shard->put - done < MF_TRACE_SINK_CELLS - 1 ? shard->put - done : MF_TRACE_SINK_CELLS - 1;
        sink->buffer[0] =
            (memfit_event){.op = MF_TRACE_BLOCK, .name = (uint32_t)(shard - r->shards), .id = done, .bytes = count};
        for (uint64_t i = 0; i < count; i++) {
            memfit_event e = shard->cells[(done + i) & shard->mask];
            e.time_ns = mf_clock_ns(&line, e.time_ns);
            sink->buffer[1 + i] = e;
        }
        write_cells(sink, sink->buffer, 1 + count, count);
        done += count;
    }
    if (r->shard_mask == 0) { /* other shards may hold older events, which need the older line */
        sink->last_ticks = line.ticks1;
        sink->last_ns = line.ns1;
    }
    __atomic_store_n(&shard->drained, done, __ATOMIC_RELEASE); /* only now may the cells be used again */
    mf_trace_unlock(&sink->lock);
}

void mf_trace_tend(memfit_recorder *recorder, mf_trace_shard *shard)
{
    if (shard->put - shard->drained + MF_TRACE_TEND > shard->mask + 1)
        drain(recorder, shard);
    struct mf_trace_sink *sink = recorder->sink;
    mf_trace_lock(&sink->lock);
    if (recorder->ring && !sink->closed)
        look_at_clocks(recorder);
    mf_trace_unlock(&sink->lock);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

memfit_status mf_trace_sink_init(memfit_recorder *r, const char *path, memfit_error *err)
{
    r->sink->file = -1;
    if (strlen(path) >= sizeof r->sink->path)
        return mf_fail(err, MEMFIT_INVALID, "the trace's path is longer than %zu bytes", sizeof r->sink->path - 1);
    strcpy(r->sink->path, path);
    return MEMFIT_OK;
}

/* The ring moves from memory into the file. Disk space is taken at once: a full disk is an error here, not a signal later.
 * False: it cannot be mapped, or there is no space; the ring stays in memory. */
static bool map_ring(memfit_recorder *r)
{
    struct mf_trace_sink *sink = r->sink;
    uint64_t events = r->shards[0].mask + 1, shards = r->shard_mask + 1ull;
    uint64_t bytes = MF_TRACE_RING_CELLS_AT + shards * events * MF_TRACE_CELL, page = mf_os_page_bytes();
    bytes = mf_round_up(bytes, page);
    if (posix_fallocate(sink->file, 0, (off_t)bytes) != 0)
        return false;
    char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, sink->file, 0);
    if (mapped == MAP_FAILED)
        return false;
    mf_trace_ring *ring = (mf_trace_ring *)mapped;
    mf_trace_header_fill(&ring->header, bytes, r->start_unix_us);
    ring->shard_count = (uint32_t)shards;
    ring->shard_events = events;
    ring->start_ticks = r->start_ticks;
    for (uint64_t i = 0; i < shards; i++) {
        ring->shards[i] = r->shards[i];
        ring->shards[i].cells = (memfit_event *)(mapped + MF_TRACE_RING_CELLS_AT) + i * events;
    }
    r->shards = ring->shards;
    r->ring = ring;
    sink->mapped_bytes = bytes;
    sink->cells_at = bytes;
    while (mf_os_now_ns() - r->start_ns < FIRST_LOOKS_NS) /* far enough from the start to tell the clock's rate */
        ;
    look_at_clocks(r);
    return true;
}

static memfit_status open_file(memfit_recorder *r, memfit_error *err)
{
    struct mf_trace_sink *sink = r->sink;
    struct stat st;
    sink->file = open(sink->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (sink->file < 0 && (errno == EACCES || errno == EINVAL))
        sink->file = open(sink->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (sink->file < 0)
        return mf_fail(err, MEMFIT_IO, "%s: cannot be written: %s", sink->path, strerror(errno));
    sink->process = mf_os_process_id();
    sink->last_ticks = r->start_ticks;
    bool plain = fstat(sink->file, &st) == 0 && S_ISREG(st.st_mode);
    if (plain && map_ring(r))
        return MEMFIT_OK;
    sink->in_order = !plain;
    mf_trace_header header;
    mf_trace_header_fill(&header, sizeof header, r->start_unix_us);
    sink->cells_at = sizeof header;
    if ((!plain || ftruncate(sink->file, 0) == 0) && write_at(sink, &header, sizeof header, 0))
        return MEMFIT_OK;
    memfit_status status = mf_fail(err, MEMFIT_IO, "%s: cannot be written: %s", sink->path, strerror(errno));
    close(sink->file);
    sink->file = -1;
    return status;
}

static void write_name(memfit_recorder *r, uint32_t number)
{
    memfit_event cells[MF_TRACE_NAME_CELLS];
    write_cells(r->sink, cells, mf_trace_name_cells(number, r->names->text + r->names->at[number], cells), 0);
}

memfit_status mf_recorder_open_file(memfit_recorder *recorder, memfit_error *err)
{
    struct mf_trace_sink *sink = recorder->sink;
    if (!sink || sink->file >= 0)
        return MEMFIT_OK;
    memfit_status status = open_file(recorder, err);
    if (status)
        return status;
    mf_trace_lock(&sink->lock);
    for (uint32_t i = 1; i <= recorder->names->count; i++)
        write_name(recorder, i);
    mf_trace_unlock(&sink->lock);
    return MEMFIT_OK;
}

void mf_trace_sink_name(memfit_recorder *recorder, uint32_t number)
{
    struct mf_trace_sink *sink = recorder->sink;
    mf_trace_lock(&sink->lock);
    if (sink->file >= 0) /* those given before are written when it is opened */
        write_name(recorder, number);
    mf_trace_unlock(&sink->lock);
}

/* ---- closing ---------------------------------------------------------------------------------------------- */

static bool write_last_header(memfit_recorder *r)
{
    struct mf_trace_sink *sink = r->sink;
    mf_trace_header header;
    mf_trace_header_fill(&header, sink->cells_at, r->start_unix_us);
    header.cells = sink->cells;
    header.lost = sink->lost;
    header.crc32 = sink->crc;
    header.closed = 1;
    if (r->ring) {
        r->ring->header = header;
        return true;
    }
    return sink->in_order ? pwrite(sink->file, &header, sizeof header, 0) == (ssize_t)sizeof header || errno == ESPIPE
                          : write_at(sink, &header, sizeof header, 0);
}

memfit_status memfit_recorder_close(memfit_recorder *recorder, memfit_error *err)
{
    struct mf_trace_sink *sink = recorder ? recorder->sink : NULL;
    if (!sink || sink->file < 0 || sink->closed)
        return MEMFIT_OK;
    if (sink->process != mf_os_process_id()) { /* a child of fork has the descriptor, and no business with the file */
        sink->closed = true;
        return MEMFIT_OK;
    }
    for (uint32_t i = 0; i <= recorder->shard_mask; i++) {
        mf_trace_shard *shard = &recorder->shards[i];
        mf_trace_lock(&shard->lock);
        drain(recorder, shard);
        mf_trace_unlock(&shard->lock);
    }
    mf_trace_lock(&sink->lock);
    sink->closed = true;
    bool good = !sink->failed && write_last_header(recorder);
    good = close(sink->file) == 0 && good; /* the ring stays mapped: who records on writes to nobody's harm */
    mf_trace_unlock(&sink->lock);
    if (!good)
        return mf_fail(err, MEMFIT_IO, "%s: not everything could be written; %" PRIu64 " events are missing",
                       sink->path, sink->lost);
    return MEMFIT_OK;
}

void mf_trace_sink_destroy(memfit_recorder *recorder)
{
    if (recorder->ring)
        munmap(recorder->ring, recorder->sink->mapped_bytes);
    recorder->ring = NULL;
}
