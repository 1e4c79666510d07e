/*
 * write_viz.c: a trace as a memory snapshot of PyTorch's, for pytorch.org/memory_viz and torch.cuda._memory_viz.
 *
 *     { "segments": [ one that covers every address, with the blocks alive at the end ],
 *       "device_traces": [ [ {action, addr, size, stream, time_us, frames} ... ] per device ] }
 *
 * Written with the instructions that the viewer's own reader has (protocol 2). Lists are filled by a thousand, because it
 * passes each batch as arguments of one call. An owner's frames are written once and referred to afterwards.
 *
 * A loaded trace has numbers for buffers, no addresses: each gets one here, the last that was freed of its size, else a new
 * one. The viewer looks up every block in a segment, so all addresses of a device lie in one segment. What it has no action
 * for (marks, limits, pages taken and moved) goes as "annotate", which it passes over and PyTorch's reader prints;
 * trace_torch.c reads all of it back.
 */
#include "base/error.h"
#include "base/os.h"
#include "trace/trace.h"
#include "trace/trace_write.h"
#include "trace/torch_frames.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1000, KEY_COUNT = 40, FIRST_FRAMES = 64, ALIGN = 512 };
#define FIRST_ADDRESS (1ull << 32)

/* Free addresses of one size. */
typedef struct size_class {
    uint64_t bytes;
    uint64_t *free_list;
    size_t count, capacity;
} size_class;

typedef struct block {
    uint64_t address, bytes; /* as placed */
    uint64_t asked;
    uint32_t name;
    uint8_t kind, stream, device;
    bool alive;
} block;

typedef struct writer {
    FILE *f;
    const mf_trace_view *view;
    const memfit_trace *trace;
    mf_arena arena;
    const char *keys[KEY_COUNT]; /* strings in the pickle's memo, by their place */
    bool *framed;                /* by name and kind: in the memo */
    block *blocks;               /* by buffer */
    size_class *classes;         /* hash table */
    uint64_t class_mask, class_count;
    uint64_t next[256], used[256]; /* by device: the next new address; was it used at all */
    uint32_t batch;
} writer;

/* ---- instructions ----------------------------------------------------------------------------------------- */

static void put_u32(FILE *f, uint32_t v)
{
    unsigned char b[4] = {(unsigned char)v, (unsigned char)(v >> 8), (unsigned char)(v >> 16),
                          (unsigned char)(v >> 24)};
    fwrite(b, 1, 4, f);
}

static void put_text(FILE *f, const char *text, size_t bytes)
{
    fputc('X', f); /* BINUNICODE */
    put_u32(f, (uint32_t)bytes);
    fwrite(text, 1, bytes, f);
}

static void put_integer(FILE *f, uint64_t v)
{
    if (v < 1ull << 31) {
        fputc('J', f); /* BININT */
        put_u32(f, (uint32_t)v);
        return;
    }
    unsigned char b[9];
    unsigned n = 0;
    for (; v; v >>= 8)
        b[n++] = (unsigned char)v;
    if (b[n - 1] & 128)
        b[n++] = 0; /* it is signed */
    fputc(0x8a, f); /* LONG1 */
    fputc((int)n, f);
    fwrite(b, 1, n, f);
}

static void remember(FILE *f, uint32_t place)
{
    fputc('r', f); /* LONG_BINPUT */
    put_u32(f, place);
}

static void recall(FILE *f, uint32_t place)
{
    fputc('j', f); /* LONG_BINGET */
    put_u32(f, place);
}

/* A string of ours, which comes again and again. */
static void put_key(writer *w, const char *key)
{
    for (uint32_t i = 0; i < KEY_COUNT; i++)
        if (!w->keys[i]) {
            w->keys[i] = key;
            put_text(w->f, key, strlen(key));
            remember(w->f, i);
            return;
        } else if (w->keys[i] == key) { /* constants: the same one mostly has the same address */
            recall(w->f, i);
            return;
        }
    put_text(w->f, key, strlen(key));
}

static void put_number(writer *w, const char *key, uint64_t value)
{
    put_key(w, key);
    put_integer(w->f, value);
}

/* Lists: a mark, items, and a closing instruction for each batch of them. */
static void open_list(writer *w)
{
    fputs("](", w->f); /* EMPTY_LIST MARK */
    w->batch = 0;
}

static void next_item(writer *w)
{
    if (++w->batch < BATCH)
        return;
    fputs("e(", w->f); /* APPENDS MARK */
    w->batch = 0;
}

static void close_list(writer *w)
{
    fputc('e', w->f);
}

/* ---- frames ----------------------------------------------------------------------------------------------- */

/* Text as UTF-8, whatever the trace had: a byte that is none becomes a question mark, as the readers insist on it. */
static void put_clean(FILE *f, const char *text, size_t n)
{
    char clean[1024];
    size_t m = 0;
    for (size_t i = 0; i < n && m + 4 < sizeof clean;) {
        unsigned step = mf_trace_utf8_step(text + i, n - i);
        if (step)
            memcpy(clean + m, text + i, step);
        else
            clean[m] = '?';
        m += step ? step : 1;
        i += step ? step : 1;
    }
    put_text(f, clean, m);
}

static void put_frame(writer *w, const mf_torch_frame *frame)
{
    fputs("}(", w->f); /* EMPTY_DICT MARK */
    put_key(w, "name");
    put_clean(w->f, frame->name, frame->name_bytes);
    put_key(w, "filename");
    put_clean(w->f, frame->file, frame->file_bytes);
    put_number(w, "line", frame->line);
    fputc('u', w->f); /* SETITEMS */
}

static void put_frames(writer *w, uint32_t name, unsigned kind)
{
    uint32_t place = name * MEMFIT_KIND_COUNT + kind;
    put_key(w, "frames");
    if (w->framed[place]) {
        recall(w->f, FIRST_FRAMES + place);
        return;
    }
    mf_torch_frame frames[MF_TORCH_MOST_FRAMES];
    char text[2 * MF_TRACE_MOST_NAME];
    unsigned count = mf_torch_split(mf_trace_view_name(w->view, name, text, sizeof text), frames);
    fputc(']', w->f);
    remember(w->f, FIRST_FRAMES + place);
    w->framed[place] = true;
    fputc('(', w->f);
    for (unsigned i = 0; i < count; i++)
        put_frame(w, &frames[i]);
    if (kind != MEMFIT_KIND_OTHER) {
        const char *word = memfit_kind_name((memfit_kind)kind);
        put_frame(w, &(mf_torch_frame){word, strlen(word), MF_TORCH_KIND_FILE, strlen(MF_TORCH_KIND_FILE), 0});
    }
    fputc('e', w->f);
}

/* ---- addresses -------------------------------------------------------------------------------------------- */

static size_class *class_of(writer *w, uint64_t bytes, unsigned device)
{
    uint64_t key = bytes | (uint64_t)device << 56, at = key * 0x9e3779b97f4a7c15ull >> 32;
    for (at &= w->class_mask; w->classes[at].bytes && w->classes[at].bytes != key; at = (at + 1) & w->class_mask)
        continue;
    w->classes[at].bytes = key;
    return &w->classes[at];
}

static void place(writer *w, const memfit_event *e)
{
    uint64_t bytes = (e->bytes + ALIGN - 1) / ALIGN * ALIGN;
    bytes = bytes ? bytes : ALIGN;
    size_class *c = class_of(w, bytes, e->device);
    uint64_t address = c->count ? c->free_list[--c->count] : FIRST_ADDRESS + w->next[e->device];
    if (address == FIRST_ADDRESS + w->next[e->device])
        w->next[e->device] += bytes;
    w->blocks[e->id] = (block){address, bytes, e->bytes, e->name, e->kind, e->stream, e->device, true};
}

static bool unplace(writer *w, uint64_t id)
{
    block *b = &w->blocks[id];
    size_class *c = class_of(w, b->bytes, b->device);
    if (!mf_grow(w->arena.host, &c->free_list, &c->capacity, c->count, sizeof *c->free_list))
        return false;
    c->free_list[c->count++] = b->address;
    b->alive = false;
    return true;
}

/* ---- events ----------------------------------------------------------------------------------------------- */

static void put_head(writer *w, const char *action, const memfit_event *e, uint64_t address, uint64_t bytes)
{
    fputs("}(", w->f);
    put_key(w, "action");
    put_key(w, action);
    put_number(w, "addr", address);
    put_number(w, "size", bytes);
    put_number(w, "stream", e->stream);
    put_number(w, "time_us", e->time_ns / 1000);
}

static void put_note(writer *w, const memfit_event *e)
{
    char text[2 * MF_TRACE_MOST_NAME];
    put_head(w, "annotate", e, e->id, e->bytes);
    bool mark = e->op == MEMFIT_EVENT_MARK;
    put_frames(w, mark ? 0 : e->name, e->kind);
    put_key(w, "user_metadata");
    if (mark) {
        const char *name = mf_trace_view_name(w->view, e->name, text, sizeof text);
        put_clean(w->f, name, strlen(name));
    } else {
        snprintf(text, sizeof text, MF_TORCH_NOTE "%s", memfit_event_op_name(e->op));
        put_text(w->f, text, strlen(text));
    }
}

static bool put_event(writer *w, const memfit_event *e)
{
    const block *b = &w->blocks[e->op == MEMFIT_EVENT_FREE || e->op == MEMFIT_EVENT_FREE_ASKED ? e->id : 0];
    switch (e->op) {
    case MEMFIT_EVENT_ALLOC:
        place(w, e);
        put_head(w, "alloc", e, w->blocks[e->id].address, e->bytes);
        put_frames(w, e->name, e->kind);
        break;
    case MEMFIT_EVENT_FREE_ASKED:
        put_head(w, "free_requested", e, b->address, e->bytes);
        put_frames(w, e->name, e->kind);
        break;
    case MEMFIT_EVENT_FREE:
        put_head(w, "free_completed", e, b->address, b->asked);
        put_frames(w, b->name, b->kind);
        if (!unplace(w, e->id))
            return false;
        break;
    case MEMFIT_EVENT_FAIL:
        put_head(w, "oom", e, 0, e->bytes);
        put_number(w, "device_free", 0);
        put_frames(w, e->name, e->kind);
        break;
    default:
        put_note(w, e);
    }
    fputc('u', w->f);
    return true;
}

/* The events of one device; the first entry says when time begins, as a reader takes the earliest for 0. */
static bool put_device(writer *w, unsigned device)
{
    open_list(w);
    put_head(w, "snapshot", &(memfit_event){0}, 0, 0);
    fputc('u', w->f);
    for (uint64_t i = 0; i < w->trace->info.events; i++) {
        const memfit_event *e = &w->trace->events[i];
        if (e->device != device)
            continue;
        next_item(w);
        if (!put_event(w, e))
            return false;
    }
    close_list(w);
    return true;
}

/* ---- what is there at the end ----------------------------------------------------------------------------- */

static void put_block(writer *w, uint64_t address, uint64_t bytes, const block *b)
{
    next_item(w);
    fputs("}(", w->f);
    put_number(w, "address", address);
    put_number(w, "size", bytes);
    put_number(w, "requested_size", b ? b->asked : 0);
    put_key(w, "state");
    put_key(w, b ? "active_allocated" : "inactive");
    if (b)
        put_frames(w, b->name, b->kind);
    else {
        put_key(w, "frames");
        fputc(']', w->f);
    }
    fputc('u', w->f);
}

static int by_address(const void *a, const void *b)
{
    uint64_t x = (*(const block *const *)a)->address, y = (*(const block *const *)b)->address;
    return x < y ? -1 : x > y;
}

/* Blocks follow one another without a gap: older readers count addresses from sizes. */
static bool put_segment(writer *w, unsigned device)
{
    uint64_t count = 0, live = 0, asked = 0, at = FIRST_ADDRESS;
    const block **alive = MF_NEW_ARRAY(&w->arena, const block *, w->trace->info.buffers + 1);
    if (!alive)
        return false;
    for (uint64_t i = 0; i < w->trace->info.buffers; i++)
        if (w->blocks[i].alive && w->blocks[i].device == device) {
            alive[count++] = &w->blocks[i];
            live += w->blocks[i].bytes;
            asked += w->blocks[i].asked;
        }
    qsort(alive, count, sizeof *alive, by_address);
    fputs("}(", w->f);
    put_number(w, "device", device);
    put_number(w, "address", FIRST_ADDRESS);
    put_number(w, "total_size", w->next[device]);
    put_number(w, "allocated_size", live);
    put_number(w, "active_size", live);
    put_number(w, "requested_size", asked);
    put_number(w, "stream", 0);
    put_key(w, "segment_type");
    put_key(w, "large");
    put_key(w, "frames");
    fputc(']', w->f);
    put_key(w, "blocks");
    open_list(w);
    for (uint64_t i = 0; i < count; i++) {
        if (alive[i]->address > at)
            put_block(w, at, alive[i]->address - at, NULL);
        put_block(w, alive[i]->address, alive[i]->bytes, alive[i]);
        at = alive[i]->address + alive[i]->bytes;
    }
    if (at < FIRST_ADDRESS + w->next[device])
        put_block(w, at, FIRST_ADDRESS + w->next[device] - at, NULL);
    close_list(w);
    fputc('u', w->f);
    return true;
}

static bool put_all(writer *w)
{
    unsigned devices = 0;
    for (uint64_t i = 0; i < w->trace->info.events; i++) {
        unsigned d = w->trace->events[i].device;
        devices = d + 1 > devices ? d + 1 : devices;
        w->used[d] |= w->trace->events[i].op == MEMFIT_EVENT_ALLOC;
    }
    fputs("\x80\x02}(", w->f); /* PROTO 2 EMPTY_DICT MARK */
    put_key(w, "device_traces");
    fputs("](", w->f);
    for (unsigned d = 0; d < devices; d++)
        if (!put_device(w, d))
            return false;
    fputc('e', w->f);
    put_key(w, "segments");
    fputs("](", w->f);
    for (unsigned d = 0; d < devices; d++)
        if (w->used[d] && !put_segment(w, d))
            return false;
    fputs("eu.", w->f); /* APPENDS SETITEMS STOP */
    return true;
}

static bool prepare(writer *w)
{
    uint64_t slots = 64;
    while (slots < 2 * (w->trace->info.buffers + 1))
        slots *= 2;
    w->class_mask = slots - 1;
    w->classes = MF_NEW_ARRAY(&w->arena, size_class, slots);
    w->blocks = MF_NEW_ARRAY(&w->arena, block, w->trace->info.buffers + 1);
    w->framed = MF_NEW_ARRAY(&w->arena, bool, (uint64_t)w->trace->info.names *MEMFIT_KIND_COUNT);
    return w->classes && w->blocks && w->framed;
}

memfit_status mf_trace_write_viz(const mf_trace_view *view, const char *path, memfit_error *err)
{
    const memfit_host *host = view->trace->arena.host;
    writer *w = mf_host_zalloc(host, sizeof *w);
    if (!w)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to write a snapshot");
    w->view = view;
    w->trace = view->trace;
    mf_arena_init(&w->arena, host);
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (!status) {
        w->f = out.file;
        if (!prepare(w) || !put_all(w))
            status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to write a snapshot of %" PRIu64 " events",
                             w->trace->info.events);
        else if (ferror(out.file))
            status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", path, strerror(errno));
        if (status)
            mf_os_out_abandon(&out);
        else
            status = mf_os_out_commit(&out, err);
    }
    for (uint64_t i = 0; w->classes && i <= w->class_mask; i++)
        mf_host_free(host, w->classes[i].free_list, w->classes[i].capacity * sizeof(uint64_t));
    mf_arena_destroy(&w->arena);
    mf_host_free(host, w, sizeof *w);
    return status;
}
