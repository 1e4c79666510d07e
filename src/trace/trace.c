/*
 * trace.c: the recorder.
 *
 *     thread --> its shard: | lock | put | cells, a ring of 32-byte events |      all in one block taken at creation,
 *                                                                                 or in the file (trace_sink.h)
 *
 * An event costs an uncontended exchange, the clock's register and one store of 32 bytes. Tried and dropped: a
 * lock-free ring (fetch-and-add for a place, a sequence number to commit): the same cost when alone, and a thread
 * stalled for a whole lap writes over a newer event. Time is kept in ticks; when events leave a ring they are turned
 * into nanoseconds by the line through the last two looks at both clocks, so a clock that is not exactly constant does
 * no harm.
 *
 * A trace file is written in place, not beside and renamed as other outputs are: after a crash its events are wanted.
 */
#include "trace/trace_sink.h"

#include "base/abi.h"
#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

void mf_trace_shard_wait(mf_trace_shard *shard)
{
    mf_trace_lock(&shard->lock);
}

const char *memfit_event_op_name(unsigned op)
{
    switch (op) {
#define X(number, name, text)                                                                                          \
    case number:                                                                                                       \
        return text;
        MEMFIT_EVENT_LIST(X)
#undef X
    default:
        return "?";
    }
}

/* ---- creation --------------------------------------------------------------------------------------------- */

static uint64_t power_of_two(uint64_t n)
{
    uint64_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* Where the parts lie inside the one block. */
typedef struct layout {
    uint64_t events, shards, names;
    uint64_t users_at, shards_at, names_at, slots_at, offsets_at, text_at, sink_at, cells_at, bytes;
} layout;

static layout lay_out(const memfit_recorder_options *o)
{
    uint64_t events = o->events;
    if (o->path) /* a ring in a file need only hold what comes between two writes */
        events = events < 2 * MF_TRACE_TEND    ? 2 * MF_TRACE_TEND
                 : events > MF_TRACE_MOST_RING ? MF_TRACE_MOST_RING
                                               : events;
    layout l = {.events = power_of_two(events), .shards = power_of_two(o->shards), .names = power_of_two(o->names)};
    uint64_t at = (sizeof(memfit_recorder) + 127) & ~127ull;
    l.users_at = at, at += MF_TRACE_USER_NAMES * sizeof(uint32_t);
    l.shards_at = at, at += l.shards * sizeof(mf_trace_shard);
    l.names_at = at, at += sizeof(struct mf_trace_names);
    l.offsets_at = at, at += l.names * sizeof(uint64_t);
    l.slots_at = at, at += 2 * l.names * sizeof(uint32_t);
    l.text_at = at, at += l.names * 64;
    l.sink_at = at = (at + 15) & ~15ull;
    at += o->path ? sizeof(struct mf_trace_sink) : 0;
    l.cells_at = at = (at + 63) & ~63ull;
    l.bytes = at + l.shards * l.events * sizeof(memfit_event);
    return l;
}

static memfit_status read_options(const memfit_recorder_options *given, memfit_recorder_options *o, memfit_error *err)
{
    *o = (memfit_recorder_options)MEMFIT_RECORDER_OPTIONS;
    memfit_status status = mf_abi_read(o, given, "MEMFIT_RECORDER_OPTIONS", err);
    if (status)
        return status;
    if (!o->events || o->events > 1ull << 32)
        return mf_fail(err, MEMFIT_INVALID, "a recorder of %" PRIu64 " events: 1 to 2^32 are possible", o->events);
    if (!o->names || o->names > 1u << 20)
        return mf_fail(err, MEMFIT_INVALID, "a recorder of %u names: 1 to 2^20 are possible", o->names);
    if (!o->shards || o->shards > MF_TRACE_MOST_SHARDS)
        return mf_fail(err, MEMFIT_INVALID, "a recorder of %u shards: 1 to %d are possible", o->shards,
                       MF_TRACE_MOST_SHARDS);
    return MEMFIT_OK;
}

uint64_t memfit_recorder_estimate(const memfit_recorder_options *options)
{
    memfit_recorder_options o;
    return read_options(options, &o, NULL) ? 0 : lay_out(&o).bytes + 63;
}

static uint64_t unix_time_us(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

memfit_status mf_recorder_create_later(const memfit_recorder_options *options, memfit_recorder **recorder,
                                       memfit_error *err)
{
    memfit_recorder_options o;
    memfit_status status = read_options(options, &o, err);
    if (status)
        return status;
    layout l = lay_out(&o);
    char *block = mf_host_zalloc(o.host, l.bytes + 63);
    if (!block)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no %" PRIu64 " bytes for a recorder of %" PRIu64 " events", l.bytes,
                       l.events * l.shards);
    memfit_recorder *r = (memfit_recorder *)block;
    r->host = o.host;
    r->block_bytes = l.bytes + 63;
    r->user_names = (uint32_t *)(block + l.users_at);
    r->shards = (mf_trace_shard *)(block + l.shards_at);
    r->shard_mask = (uint32_t)l.shards - 1;
    r->names = (struct mf_trace_names *)(block + l.names_at);
    *r->names = (struct mf_trace_names){.capacity = (uint32_t)l.names,
                                        .text_bytes = l.names * 64,
                                        .at = (uint64_t *)(block + l.offsets_at),
                                        .slots = (uint32_t *)(block + l.slots_at),
                                        .text = block + l.text_at};
    char *cells = (char *)(((uintptr_t)block + l.cells_at + 63) & ~(uintptr_t)63);
    for (uint64_t i = 0; i < l.shards; i++) {
        r->shards[i].cells = (memfit_event *)cells + i * l.events;
        r->shards[i].mask = l.events - 1;
    }
    r->start_ticks = mf_trace_ticks();
    r->start_ns = mf_os_now_ns();
    r->start_unix_us = unix_time_us();
    if (o.path) {
        r->to_file = true;
        r->sink = (struct mf_trace_sink *)(block + l.sink_at);
        status = mf_trace_sink_init(r, o.path, err);
        if (status) {
            mf_host_free(o.host, block, r->block_bytes);
            return status;
        }
    }
    *recorder = r;
    return MEMFIT_OK;
}

memfit_status memfit_recorder_create(const memfit_recorder_options *options, memfit_recorder **recorder,
                                     memfit_error *err)
{
    memfit_recorder *r;
    memfit_status status = mf_recorder_create_later(options, &r, err);
    if (status)
        return status;
    status = mf_recorder_open_file(r, err);
    if (status)
        memfit_recorder_destroy(r);
    else
        *recorder = r;
    return status;
}

void memfit_recorder_destroy(memfit_recorder *recorder)
{
    if (!recorder)
        return;
    memfit_recorder_close(recorder, NULL);
    mf_trace_sink_destroy(recorder);
    mf_host_free(recorder->host, recorder, recorder->block_bytes);
}

/* ---- files written at once ------------------------------------------------------------------------------------- */

typedef struct cell_writer {
    FILE *file;
    uint32_t crc;
    uint64_t cells;
    bool failed;
} cell_writer;

static void write_cells(cell_writer *w, const void *cells, size_t count)
{
    if (w->failed)
        return;
    if (fwrite(cells, MF_TRACE_CELL, count, w->file) != count) {
        w->failed = true;
        return;
    }
    w->crc = (uint32_t)crc32(w->crc, cells, (uInt)(count * MF_TRACE_CELL));
    w->cells += count;
}

static void write_name(cell_writer *w, uint32_t number, const char *text)
{
    memfit_event cells[MF_TRACE_NAME_CELLS];
    write_cells(w, cells, mf_trace_name_cells(number, text, cells));
}

static bool write_header(FILE *file, const cell_writer *w, uint64_t lost, uint64_t unix_us)
{
    mf_trace_header header;
    mf_trace_header_fill(&header, sizeof header, unix_us);
    header.cells = w->cells;
    header.lost = lost;
    header.crc32 = w->crc;
    header.closed = 1;
    return fseek(file, 0, SEEK_SET) == 0 && fwrite(&header, sizeof header, 1, file) == 1;
}

/* A file written at once: its header comes last, when the cells are counted. */
static memfit_status begin_save(mf_outfile *out, const char *path, cell_writer *w, memfit_error *err)
{
    memfit_status status = mf_os_out_open(out, path, err);
    if (status)
        return status;
    mf_trace_header blank = {0};
    *w = (cell_writer){.file = out->file, .failed = fwrite(&blank, sizeof blank, 1, out->file) != 1};
    return MEMFIT_OK;
}

static memfit_status end_save(mf_outfile *out, const cell_writer *w, uint64_t lost, uint64_t unix_us, memfit_error *err)
{
    if (!w->failed && write_header(out->file, w, lost, unix_us))
        return mf_os_out_commit(out, err);
    memfit_status status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", out->path, strerror(errno));
    mf_os_out_abandon(out);
    return status;
}

/* ---- names ------------------------------------------------------------------------------------------------ */

static uint32_t hash_text(const char *text, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h ^ h >> 15;
}

/* The names' lock is held. */
static uint32_t find_or_add_name(memfit_recorder *r, const char *text, size_t n)
{
    struct mf_trace_names *names = r->names;
    uint32_t mask = 2 * names->capacity - 1, i = hash_text(text, n) & mask;
    for (; names->slots[i]; i = (i + 1) & mask) {
        const char *old = names->text + names->at[names->slots[i]];
        if (strlen(old) == n && memcmp(old, text, n) == 0)
            return names->slots[i];
    }
    if (names->count + 1 >= names->capacity || names->text_bytes - names->used < n + 1)
        return 0;
    uint32_t number = ++names->count;
    names->slots[i] = number;
    names->at[number] = names->used;
    memcpy(names->text + names->used, text, n);
    names->text[names->used + n] = 0;
    names->used += n + 1;
    if (r->sink)
        mf_trace_sink_name(r, number);
    return number;
}

uint32_t memfit_recorder_name(memfit_recorder *recorder, const char *text)
{
    size_t n = text ? strnlen(text, MF_TRACE_MOST_NAME) : 0;
    if (!n)
        return 0;
    mf_trace_lock(&recorder->names->lock);
    uint32_t number = find_or_add_name(recorder, text, n);
    mf_trace_unlock(&recorder->names->lock);
    return number;
}

/* ---- recording -------------------------------------------------------------------------------------------- */

void memfit_recorder_put(memfit_recorder *recorder, const memfit_event *event)
{
    uint64_t words[4];
    memcpy(words, event, sizeof words);
    mf_trace_put_words(recorder, words[1], words[2], words[3]);
}

void memfit_recorder_mark(memfit_recorder *recorder, const char *name)
{
    mf_trace_put(recorder, MEMFIT_EVENT_MARK, 0, 0, MEMFIT_KIND_OTHER, memfit_recorder_name(recorder, name), 0);
}

void memfit_recorder_counts(const memfit_recorder *recorder, uint64_t *put, uint64_t *lost)
{
    *put = *lost = 0;
    for (uint32_t i = 0; i <= recorder->shard_mask; i++) {
        mf_trace_shard *s = &recorder->shards[i];
        mf_trace_lock(&s->lock);
        *put += s->put;
        if (!recorder->sink && s->put > s->mask + 1)
            *lost += s->put - s->mask - 1;
        mf_trace_unlock(&s->lock);
    }
    if (recorder->sink) {
        mf_trace_lock(&recorder->sink->lock);
        *lost += recorder->sink->lost;
        mf_trace_unlock(&recorder->sink->lock);
    }
}

/* Events of all shards in order of time; every shard's lock is held. */
static void write_merged(memfit_recorder *r, cell_writer *w, const mf_clock_line *line)
{
    uint64_t next[MF_TRACE_MOST_SHARDS] = {0};
    for (uint32_t i = 0; i <= r->shard_mask; i++)
        next[i] = r->shards[i].put > r->shards[i].mask + 1 ? r->shards[i].put - r->shards[i].mask - 1 : 0;
    for (;;) {
        const memfit_event *first = NULL;
        uint32_t from = 0;
        for (uint32_t i = 0; i <= r->shard_mask; i++) {
            const mf_trace_shard *s = &r->shards[i];
            if (next[i] < s->put && (!first || s->cells[next[i] & s->mask].time_ns < first->time_ns)) {
                first = &s->cells[next[i] & s->mask];
                from = i;
            }
        }
        if (!first)
            return;
        memfit_event e = *first;
        e.time_ns = mf_clock_ns(line, e.time_ns);
        write_cells(w, &e, 1);
        next[from]++;
    }
}

memfit_status memfit_recorder_save(memfit_recorder *recorder, const char *path, memfit_error *err)
{
    if (recorder->sink)
        return mf_fail(err, MEMFIT_CONFLICT, "this recorder writes to %s already", recorder->sink->path);
    uint64_t put, lost;
    memfit_recorder_counts(recorder, &put, &lost);
    mf_outfile out;
    cell_writer w;
    memfit_status status = begin_save(&out, path, &w, err);
    if (status)
        return status;
    mf_trace_lock(&recorder->names->lock);
    for (uint32_t i = 1; i <= recorder->names->count; i++)
        write_name(&w, i, recorder->names->text + recorder->names->at[i]);
    mf_trace_unlock(&recorder->names->lock);
    for (uint32_t i = 0; i <= recorder->shard_mask; i++)
        mf_trace_lock(&recorder->shards[i].lock);
    mf_clock_line line = {recorder->start_ticks, 0, mf_trace_ticks(), mf_os_now_ns() - recorder->start_ns};
    write_merged(recorder, &w, &line);
    for (uint32_t i = 0; i <= recorder->shard_mask; i++)
        mf_trace_unlock(&recorder->shards[i].lock);
    return end_save(&out, &w, lost, recorder->start_unix_us, err);
}

memfit_status mf_recorder_check(memfit_recorder *recorder, memfit_error *err)
{
    for (uint32_t i = 0; i <= recorder->shard_mask; i++) {
        const mf_trace_shard *s = &recorder->shards[i];
        if (s->drained > s->put || (s->mask & (s->mask + 1)))
            return mf_fail(err, MEMFIT_INTERNAL, "shard %u: %" PRIu64 " drained of %" PRIu64, i, s->drained, s->put);
        uint64_t kept = s->put < s->mask + 1 ? s->put : s->mask + 1, last = 0;
        for (uint64_t k = s->put - kept; k < s->put; k++) {
            const memfit_event *e = &s->cells[k & s->mask];
            if (e->time_ns < last)
                return mf_fail(err, MEMFIT_INTERNAL, "shard %u: time goes back at event %" PRIu64, i, k);
            if (e->name > recorder->names->count)
                return mf_fail(err, MEMFIT_INTERNAL, "shard %u: event %" PRIu64 " has name %u of %u", i, k, e->name,
                               recorder->names->count);
            last = e->time_ns;
        }
    }
    return MEMFIT_OK;
}

/* ---- a loaded trace as a file ----------------------------------------------------------------------------- */

memfit_status memfit_trace_save(const memfit_trace *trace, const char *path, memfit_error *err)
{
    mf_outfile out;
    cell_writer w;
    memfit_status status = begin_save(&out, path, &w, err);
    if (status)
        return status;
    for (uint32_t i = 1; i < trace->info.names; i++)
        write_name(&w, i, trace->names[i]);
    for (uint64_t i = 0; i < trace->info.events; i++)
        write_cells(&w, &trace->events[i], 1);
    return end_save(&out, &w, 0, 0, err);
}
