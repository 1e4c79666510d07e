/*
 * trace_import.c: memfit's own trace files and CSV traces into the common event stream.
 *
 * A trace file that was closed has its number of cells and a checksum in the header, and any difference is damage. One
 * that was not (the program was killed) has neither: what is there is read, a cell or name cut in the middle ends it, and the
 * ring gives what had not got that far.
 *
 * CSV: columns time_us, op (alloc or free), id, bytes; stream, kind, owner and device when they are there. Times must
 * not go back, an id is allocated before it is freed, and is freed with the bytes it was allocated with.
 */
#include "base/csv.h"
#include "base/error.h"
#include "trace/trace_sink.h"

#include <inttypes.h>
#include <string.h>
#include <zlib.h>

/* ---- trace files ------------------------------------------------------------------------------------------ */

typedef struct cells {
    const unsigned char *data;
    uint64_t count;
    bool cut, blocks;          /* blocks: there are cells that say where events come from (version 2) */
    const unsigned char *ring; /* of a file that was not closed; NULL: none */
    /* Of the ring's shards: how many of their events are among the cells, and the time of the last. */
    uint64_t covered[MF_TRACE_MOST_SHARDS], until_ns[MF_TRACE_MOST_SHARDS];
} cells;

static memfit_status check_sum(const cells *c, uint32_t want, memfit_error *err)
{
    uint32_t crc = 0;
    for (uint64_t at = 0, step; at < c->count * MF_TRACE_CELL; at += step) {
        step = c->count * MF_TRACE_CELL - at;
        step = step > 1 << 30 ? 1 << 30 : step;
        crc = (uint32_t)crc32(crc, c->data + at, (uInt)step);
    }
    if (crc != want)
        return mf_fail(err, MEMFIT_DAMAGED, "the checksum is wrong: %08x, but the header says %08x", crc, want);
    return MEMFIT_OK;
}

/* The ring between header and cells: as large as it says, and it ends where the cells begin. */
static memfit_status check_ring(const unsigned char *data, uint64_t cells_at, memfit_error *err)
{
    mf_trace_ring ring;
    if (cells_at < MF_TRACE_RING_CELLS_AT)
        return mf_fail(err, MEMFIT_DAMAGED, "byte 48: cells begin at %" PRIu64 ", inside the ring", cells_at);
    memcpy(&ring, data, sizeof ring);
    uint64_t events = ring.shard_events, shards = ring.shard_count;
    if (!shards || shards > MF_TRACE_MOST_SHARDS || !events || events > MF_TRACE_MOST_RING || events & (events - 1) ||
        ring.newer > 1 || MF_TRACE_RING_CELLS_AT + shards * events * MF_TRACE_CELL > cells_at)
        return mf_fail(err, MEMFIT_DAMAGED, "byte %zu: a ring of %" PRIu64 " shards of %" PRIu64 " events is none",
                       sizeof(mf_trace_header), shards, events);
    return MEMFIT_OK;
}

static memfit_status read_header(const void *data, size_t bytes, cells *c, memfit_error *err)
{
    mf_trace_header h;
    if (bytes < sizeof h)
        return mf_fail(err, MEMFIT_DAMAGED, "byte %zu: the file ends inside its header", bytes);
    memcpy(&h, data, sizeof h);
    if (!h.version || h.version > MF_TRACE_VERSION)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "a trace of version %u; this memfit reads versions 1 to %d\na newer memfit may read it",
                       h.version, MF_TRACE_VERSION);
    if (h.cell_bytes != MF_TRACE_CELL)
        return mf_fail(err, MEMFIT_DAMAGED, "byte 12: cells of %u bytes; version %u has cells of %d", h.cell_bytes,
                       h.version, MF_TRACE_CELL);
    c->blocks = h.version > 1;
    uint64_t at = c->blocks ? h.cells_at : sizeof h;
    if (at < sizeof h || at > bytes || at % MF_TRACE_CELL)
        return mf_fail(err, MEMFIT_DAMAGED, "byte 48: cells begin at %" PRIu64 " of %zu bytes", at, bytes);
    if (c->blocks && h.closed > 1)
        return mf_fail(err, MEMFIT_DAMAGED, "byte 56: closed is %" PRIu64 ", neither 0 nor 1", h.closed);
    c->data = (const unsigned char *)data + at;
    c->count = (bytes - at) / MF_TRACE_CELL;
    c->cut = c->blocks ? !h.closed : !h.cells;
    if (c->cut && h.cells)
        return mf_fail(err, MEMFIT_DAMAGED, "byte 16: %" PRIu64 " cells in a file that was not closed", h.cells);
    if (c->cut && at > sizeof h) {
        c->ring = data;
        return check_ring(data, at, err);
    }
    if (c->cut)
        return MEMFIT_OK;
    if (h.cells != c->count || (bytes - at) % MF_TRACE_CELL)
        return mf_fail(err, MEMFIT_DAMAGED, "byte %zu: the file ends here, but its header speaks of %" PRIu64 " cells",
                       bytes, h.cells);
    return check_sum(c, h.crc32, err);
}

/* How many cells a name takes; 0 when the cell is not the begin of one. */
static uint64_t name_cells(const memfit_event *e)
{
    return e->op == MF_TRACE_NAME ? 1 + (e->bytes + MF_TRACE_CELL - 1) / MF_TRACE_CELL : 0;
}

/* A name that has another for its caller (its number in `id`) is a frame of a stack: the name of the whole is "called < caller <
 * its caller", as far as a name goes. `at` has each name's first cell + 1. */
static size_t join_frames(const cells *c, const uint64_t *at, uint64_t most, memfit_event e, const char *text,
                          char joined[MF_TRACE_MOST_NAME])
{
    size_t used = e.bytes;
    memcpy(joined, text, e.bytes);
    while (e.id && e.id <= most && at[e.id] && used < MF_TRACE_MOST_NAME) { /* a circle fills the name, and ends */
        const unsigned char *cell = c->data + (at[e.id] - 1) * MF_TRACE_CELL;
        memcpy(&e, cell, sizeof e);
        size_t room = MF_TRACE_MOST_NAME - used;
        if (!e.bytes || e.bytes + 3 > room)
            break;
        memcpy(joined + used, " < ", 3);
        memcpy(joined + used + 3, cell + MF_TRACE_CELL, e.bytes);
        used += 3 + e.bytes;
    }
    return used;
}

/* Where each name is, by the file's numbers: `at` has room for `most`. */
static memfit_status find_names(const cells *c, uint64_t *at, uint64_t most, memfit_error *err)
{
    for (uint64_t i = 0; i < c->count; i++) {
        memfit_event e;
        memcpy(&e, c->data + i * MF_TRACE_CELL, sizeof e);
        uint64_t n = name_cells(&e);
        if (!n)
            continue;
        if (n > c->count - i && c->cut)
            break;
        if (n > c->count - i || e.bytes > MF_TRACE_MOST_NAME || !e.name || e.name > most)
            return mf_fail(err, MEMFIT_DAMAGED, "cell %" PRIu64 ": a name of %" PRIu64 " bytes and number %u", i,
                           (uint64_t)e.bytes, e.name);
        at[e.name] = i + 1;
        i += n - 1;
    }
    return MEMFIT_OK;
}

/* First walk: the names, by the file's numbers. `numbers` and `at` have room for `most`. */
static memfit_status collect_names(mf_trace_builder *b, const cells *c, uint32_t *numbers, uint64_t *at, uint64_t most,
                                   memfit_error *err)
{
    memfit_status found = find_names(c, at, most, err);
    if (found)
        return found;
    for (uint64_t i = 0; i < c->count; i++) {
        memfit_event e;
        memcpy(&e, c->data + i * MF_TRACE_CELL, sizeof e);
        uint64_t n = name_cells(&e);
        if (!n)
            continue;
        if (n > c->count - i && c->cut)
            break;
        char joined[MF_TRACE_MOST_NAME];
        size_t bytes = join_frames(c, at, most, e, (const char *)c->data + (i + 1) * MF_TRACE_CELL, joined);
        memfit_status status = mf_trace_builder_name(b, joined, bytes, &numbers[e.name], err);
        if (status)
            return status;
        i += n - 1;
    }
    return MEMFIT_OK;
}

static memfit_status add_event(mf_trace_builder *b, memfit_event *e, const uint32_t *numbers, uint64_t most,
                               uint64_t place, memfit_error *err)
{
    if (memfit_event_op_name(e->op)[0] == '?')
        return mf_fail(err, MEMFIT_DAMAGED, "cell %" PRIu64 ": %u is no kind of event", place, e->op);
    if (e->kind >= MEMFIT_KIND_COUNT || e->bytes >> 48)
        return mf_fail(err, MEMFIT_DAMAGED, "cell %" PRIu64 ": kind %u and %" PRIu64 " bytes are no memory", place,
                       e->kind, e->bytes);
    if (e->name > most || (e->name && !numbers[e->name]))
        return mf_fail(err, MEMFIT_DAMAGED, "cell %" PRIu64 ": name %u is used but never given", place, e->name);
    e->name = e->name ? numbers[e->name] : 0;
    uint8_t stream;
    memfit_status status = mf_trace_builder_stream(b, e->stream, &stream, err);
    if (status)
        return status;
    e->stream = stream;
    return mf_trace_builder_add(b, e, place, err);
}

/* Events are numbered within their shard: those of a block count up from its first. */
typedef struct block {
    uint32_t shard;
    uint64_t next, left;
} block;

static memfit_status open_block(const cells *c, const memfit_event *e, uint64_t place, block *k, memfit_error *err)
{
    if (!c->blocks || e->name >= MF_TRACE_MOST_SHARDS || e->bytes > MF_TRACE_MOST_RING || e->id > UINT64_MAX - e->bytes)
        return mf_fail(err, MEMFIT_DAMAGED, "cell %" PRIu64 ": a block of %" PRIu64 " events of shard %u", place,
                       e->bytes, e->name);
    *k = (block){e->name, e->id, e->bytes};
    return MEMFIT_OK;
}

static memfit_status collect_events(mf_trace_builder *b, cells *c, const uint32_t *numbers, uint64_t most,
                                    memfit_error *err)
{
    block k = {0};
    for (uint64_t i = 0; i < c->count; i++) {
        memfit_event e;
        memcpy(&e, c->data + i * MF_TRACE_CELL, sizeof e);
        uint64_t n = name_cells(&e);
        if (n) {
            i += n - 1; /* past the end for a name that is cut: the loop ends */
            continue;
        }
        if (e.op == MF_TRACE_END) {
            b->trace->ended_ns = b->trace->ended_ns ? b->trace->ended_ns : e.time_ns;
            continue;
        }
        memfit_status status =
            e.op == MF_TRACE_BLOCK ? open_block(c, &e, i, &k, err) : add_event(b, &e, numbers, most, i, err);
        if (status)
            return status;
        if (e.op != MF_TRACE_BLOCK && k.left) {
            c->covered[k.shard] = ++k.next;
            c->until_ns[k.shard] = e.time_ns;
            k.left--;
        }
    }
    return MEMFIT_OK;
}

/* What was put and had not been written: the ring's newest events, as far as they are not among the cells. */
static memfit_status collect_ring(mf_trace_builder *b, const cells *c, const uint32_t *numbers, uint64_t most,
                                  memfit_error *err)
{
    mf_trace_ring ring;
    memcpy(&ring, c->ring, sizeof ring);
    uint64_t events = ring.shard_events;
    mf_clock_line line = {ring.start_ticks, 0, ring.look[ring.newer].ticks, ring.look[ring.newer].ns};
    for (uint32_t s = 0; s < ring.shard_count; s++) {
        const unsigned char *first = c->ring + MF_TRACE_RING_CELLS_AT + s * events * MF_TRACE_CELL;
        uint64_t put = ring.shards[s].put, from = put > events ? put - events : 0;
        for (uint64_t i = from > c->covered[s] ? from : c->covered[s]; i < put; i++) {
            memfit_event e;
            memcpy(&e, first + (i & (events - 1)) * MF_TRACE_CELL, sizeof e);
            e.time_ns = mf_clock_ns(&line, e.time_ns);
            if (e.time_ns < c->until_ns[s]) /* another line of the clock: a moment must not change the order */
                e.time_ns = c->until_ns[s];
            memfit_status status = add_event(b, &e, numbers, most, c->count + i - from, err);
            if (status)
                return status;
        }
    }
    return MEMFIT_OK;
}

memfit_status mf_trace_read_file(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                 memfit_error *err)
{
    cells c = {0};
    memfit_status status = read_header(data, bytes, &c, err);
    if (status)
        return status;
    mf_trace_builder b;
    status = mf_trace_builder_begin(&b, host, MEMFIT_TRACE_MEMFIT, MF_TRACE_REPAIR, "cell", c.count, err);
    if (status)
        return status;
    b.trace->info.cut = c.cut;
    /* Name numbers count from 1 and each takes a cell, so there cannot be more than cells. */
    uint32_t *numbers = mf_host_zalloc(host, (c.count + 1) * sizeof *numbers);
    uint64_t *at = mf_host_zalloc(host, (c.count + 1) * sizeof *at);
    status = numbers && at ? collect_names(&b, &c, numbers, at, c.count, err)
                           : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace's names");
    mf_host_free(host, at, (c.count + 1) * sizeof *at);
    if (!status)
        status = collect_events(&b, &c, numbers, c.count, err);
    if (!status && c.ring)
        status = collect_ring(&b, &c, numbers, c.count, err);
    mf_host_free(host, numbers, (c.count + 1) * sizeof *numbers);
    if (status) {
        mf_trace_builder_abandon(&b);
        return status;
    }
    return mf_trace_builder_end(&b, trace, err);
}

/* ---- CSV -------------------------------------------------------------------------------------------------- */

typedef struct columns {
    unsigned time, op, id, bytes, stream, kind, owner, device;
    bool has_stream, has_kind, has_owner, has_device;
} columns;

static memfit_status find_columns(const mf_csv *csv, columns *c, memfit_error *err)
{
    static const char hint[] =
        "give a memfit trace, a PyTorch memory snapshot (.pickle) or a CSV trace, which begins with the line "
        "time_us,op,id,bytes,stream";
    memfit_status status = mf_csv_column(csv, "time_us", &c->time, err);
    if (!status)
        status = mf_csv_column(csv, "op", &c->op, err);
    if (!status)
        status = mf_csv_column(csv, "id", &c->id, err);
    if (!status)
        status = mf_csv_column(csv, "bytes", &c->bytes, err);
    if (status && err && !err->hint[0])
        memcpy(err->hint, hint, sizeof hint);
    c->has_stream = mf_csv_find(csv, "stream", &c->stream);
    c->has_kind = mf_csv_find(csv, "kind", &c->kind);
    c->has_owner = mf_csv_find(csv, "owner", &c->owner);
    c->has_device = mf_csv_find(csv, "device", &c->device);
    return status;
}

static memfit_status read_op(const mf_csv *csv, unsigned column, memfit_event *e, memfit_error *err)
{
    const char *op = mf_csv_string(csv, column);
    if (strcmp(op, "alloc") == 0)
        e->op = MEMFIT_EVENT_ALLOC;
    else if (strcmp(op, "free") == 0)
        e->op = MEMFIT_EVENT_FREE;
    else
        return mf_csv_fail(csv, column, err, "is neither alloc nor free");
    return MEMFIT_OK;
}

static memfit_status read_extras(mf_trace_builder *b, const mf_csv *csv, const columns *c, memfit_event *e,
                                 memfit_error *err)
{
    uint64_t value;
    memfit_status status = MEMFIT_OK;
    if (c->has_stream) {
        uint8_t stream = 0;
        status = mf_csv_u64(csv, c->stream, &value, err);
        if (!status)
            status = mf_trace_builder_stream(b, value, &stream, err);
        if (status)
            return status;
        e->stream = stream;
    }
    if (c->has_device) {
        status = mf_csv_u64(csv, c->device, &value, err);
        if (status)
            return status;
        if (value > 255)
            return mf_csv_fail(csv, c->device, err, "is more than 255");
        e->device = (uint8_t)value;
    }
    e->kind = MEMFIT_KIND_OTHER;
    if (c->has_kind) {
        const char *text = mf_csv_string(csv, c->kind);
        unsigned kind = 0;
        while (kind < MEMFIT_KIND_COUNT && strcmp(text, memfit_kind_name((memfit_kind)kind)) != 0)
            kind++;
        if (kind == MEMFIT_KIND_COUNT && *text)
            return mf_csv_fail(csv, c->kind, err, "is no kind of memory");
        e->kind = (uint8_t)(*text ? kind : MEMFIT_KIND_OTHER);
    }
    uint32_t name = 0;
    if (c->has_owner)
        status =
            mf_trace_builder_name(b, mf_csv_string(csv, c->owner), strlen(mf_csv_string(csv, c->owner)), &name, err);
    e->name = name;
    return status;
}

static memfit_status read_row(mf_trace_builder *b, const mf_csv *csv, const columns *c, uint64_t *time_us,
                              memfit_error *err)
{
    uint64_t time, id, bytes;
    memfit_event e = {0};
    memfit_status status = mf_csv_u64(csv, c->time, &time, err);
    if (!status)
        status = read_op(csv, c->op, &e, err);
    if (!status)
        status = mf_csv_u64(csv, c->id, &id, err);
    if (!status)
        status = mf_csv_u64(csv, c->bytes, &bytes, err);
    if (status)
        return status;
    if (time < *time_us)
        return mf_csv_fail(csv, c->time, err, "goes back: the line before has %" PRIu64, *time_us);
    if (time > UINT64_MAX / 1000)
        return mf_csv_fail(csv, c->time, err, "is too large");
    if (bytes >> 48)
        return mf_csv_fail(csv, c->bytes, err, "is more than 256 TiB");
    *time_us = time;
    e.time_ns = time * 1000;
    e.id = id;
    e.bytes = bytes;
    status = read_extras(b, csv, c, &e, err);
    return status ? status : mf_trace_builder_add(b, &e, csv->line, err);
}

static uint64_t count_lines(const char *text, size_t bytes)
{
    uint64_t lines = 0;
    for (const char *p = text; (p = memchr(p, '\n', bytes - (size_t)(p - text))); p++)
        lines++;
    return lines;
}

memfit_status mf_trace_read_csv(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                memfit_error *err)
{
    mf_csv csv;
    columns c;
    mf_csv_open(&csv, data, bytes);
    memfit_status status = mf_csv_header(&csv, err);
    if (!status)
        status = find_columns(&csv, &c, err);
    if (status)
        return status;
    mf_trace_builder b;
    status = mf_trace_builder_begin(&b, host, MEMFIT_TRACE_CSV, MF_TRACE_STRICT, "line", count_lines(data, bytes), err);
    if (status)
        return status;
    uint64_t time_us = 0;
    bool more = true;
    while (!status && more) {
        status = mf_csv_next(&csv, &more, err);
        if (!status && more)
            status = read_row(&b, &csv, &c, &time_us, err);
    }
    if (!status && !b.trace->info.events)
        status = mf_fail(err, MEMFIT_DAMAGED, "line 2: the trace has no events");
    if (status) {
        mf_trace_builder_abandon(&b);
        return status;
    }
    return mf_trace_builder_end(&b, trace, err);
}
