/*
 * trace_torch.c: PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot) into the common event stream.
 *
 *     { "segments":      [ {address, blocks: [{address?, size, state, frames}] , ...} ],      what is there at the end
 *       "device_traces": [ [ {action, addr, size, stream, time_us, frames} ... ] per device ] }   what happened before
 *
 * alloc and free_completed are our ALLOC and FREE, free_requested FREE_ASKED, segment_alloc and segment_map MAP,
 * segment_free and segment_unmap UNMAP, oom FAIL, annotate MARK. The history is a window: it may begin after the program did, so
 * blocks freed in it but not allocated in it, and blocks alive at its end that it does not know, were there before.
 *
 * A buffer's owner is its stack: the innermost Python frames outside of torch itself. Only plain data is read
 * (trace/pickle.h).
 */
#include "base/error.h"
#include "trace/pickle.h"
#include "trace/torch_frames.h"
#include "trace/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_KEYS = 64,     /* a record of more is not PyTorch's, and would make look-ups slow */
    CACHE = 4096,       /* of stacks already named; PyTorch shares equal ones */
    MEMORY_FACTOR = 96, /* the tree may take this many times the file, see pickle.h */
};

typedef struct import {
    mf_trace_builder b;
    uint64_t events;   /* of the device at hand, for errors */
    uint64_t first_us; /* the earliest time, subtracted */
    unsigned device;
    struct {
        const mf_pickle *frames;
        uint32_t name;
        memfit_kind kind;
    } cache[CACHE];
} import;

static bool is_record(const mf_pickle *p)
{
    return p && p->type == MF_PICKLE_DICT && p->count <= 2 * MOST_KEYS;
}

static bool contains(const mf_pickle *text, const char *part)
{
    return text && text->type == MF_PICKLE_STRING && memmem(text->data, text->count, part, strlen(part));
}

/* A file of Python's: "model.py", or what has no file: "<string>", "<stdin>", "<ipython-input-3>". */
static bool is_python(const mf_pickle *text)
{
    if (!text || text->type != MF_PICKLE_STRING || text->count < 4)
        return false;
    return memcmp(text->data + text->count - 3, ".py", 3) == 0 || text->data[0] == '<';
}

static bool is_users(const mf_pickle *file)
{
    return !contains(file, "/torch/") && !contains(file, "<frozen") && !contains(file, "/_contextlib.py");
}

static int shown(size_t bytes)
{
    return bytes < 60 ? (int)bytes : 60;
}

/* Appends "train_step (model.py:42)"; false when there is no room for all of it. */
static bool append_frame(char *text, size_t *length, size_t bytes, const mf_pickle *frame)
{
    const mf_pickle *file = mf_pickle_get(frame, "filename"), *function = mf_pickle_get(frame, "name");
    size_t start = file->count;
    while (start > 0 && file->data[start - 1] != '/')
        start--;
    bool named = function && function->type == MF_PICKLE_STRING;
    int n = snprintf(text + *length, bytes - *length, "%s%.*s (%.*s:%" PRId64 ")", *length ? " < " : "",
                     named ? shown(function->count) : 1, named ? function->data : "?", shown(file->count - start),
                     file->data + start, mf_pickle_integer(mf_pickle_get(frame, "line"), 0));
    bool fits = n > 0 && (size_t)n < bytes - *length;
    if (fits)
        *length += (size_t)n;
    text[*length] = 0;
    return fits;
}

/* A frame that write_viz.c made of a name or a kind. */
static bool take_ours(const mf_pickle *frame, const mf_pickle *file, char *text, size_t *length, memfit_kind *kind)
{
    const mf_pickle *word = mf_pickle_get(frame, "name");
    if (!word || word->type != MF_PICKLE_STRING)
        return false;
    if (mf_pickle_is(file, MF_TORCH_NAME_FILE)) {
        *length = word->count < MF_TRACE_MOST_NAME ? word->count : MF_TRACE_MOST_NAME;
        memcpy(text, word->data, *length);
        return true;
    }
    if (!mf_pickle_is(file, MF_TORCH_KIND_FILE))
        return false;
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        if (mf_pickle_is(word, memfit_kind_name((memfit_kind)k)))
            *kind = (memfit_kind)k;
    return true;
}

/* "train_step (model.py:42) < main (train.py:7)": the innermost frames that are the user's, callers after the called;
 * failing that, the innermost in Python. */
static memfit_status name_frames(import *in, const mf_pickle *frames, uint32_t *name, memfit_kind *kind,
                                 memfit_error *err)
{
    *name = 0;
    const mf_pickle *innermost = NULL;
    size_t n = mf_pickle_length(frames), look = n < 256 ? n : 256, length = 0;
    char text[MF_TRACE_MOST_NAME + 1] = "";
    unsigned taken = 0;
    for (size_t i = 0; i < look && taken <= MF_TORCH_STACK; i++) {
        const mf_pickle *frame = mf_pickle_at(frames, i);
        const mf_pickle *file = is_record(frame) ? mf_pickle_get(frame, "filename") : NULL;
        if (!is_python(file) || take_ours(frame, file, text, &length, kind))
            continue;
        if (!innermost)
            innermost = frame;
        if (taken == MF_TORCH_STACK)
            break;
        if (is_users(file) && append_frame(text, &length, sizeof text, frame))
            taken++;
    }
    if (!length && innermost)
        append_frame(text, &length, sizeof text, innermost);
    return length ? mf_trace_builder_name(&in->b, text, length, name, err) : MEMFIT_OK;
}

static memfit_status name_of(import *in, const mf_pickle *record, uint32_t *name, memfit_kind *kind, memfit_error *err)
{
    const mf_pickle *frames = mf_pickle_get(record, "frames");
    *name = 0;
    *kind = MEMFIT_KIND_OTHER;
    if (!mf_pickle_length(frames))
        return MEMFIT_OK;
    size_t slot = ((uintptr_t)frames >> 4) % CACHE;
    if (in->cache[slot].frames == frames) {
        *name = in->cache[slot].name;
        *kind = in->cache[slot].kind;
        return MEMFIT_OK;
    }
    memfit_status status = name_frames(in, frames, name, kind, err);
    in->cache[slot].frames = frames;
    in->cache[slot].name = *name;
    in->cache[slot].kind = *kind;
    return status;
}

static int action_op(const mf_pickle *action)
{
    static const struct {
        const char *text;
        int op;
    } actions[] = {{"alloc", MEMFIT_EVENT_ALLOC},
                   {"free_completed", MEMFIT_EVENT_FREE},
                   {"free", MEMFIT_EVENT_FREE}, /* written by versions before 2.1 */
                   {"free_requested", MEMFIT_EVENT_FREE_ASKED},
                   {"segment_alloc", MEMFIT_EVENT_MAP},
                   {"segment_map", MEMFIT_EVENT_MAP},
                   {"segment_free", MEMFIT_EVENT_UNMAP},
                   {"segment_unmap", MEMFIT_EVENT_UNMAP},
                   {"oom", MEMFIT_EVENT_FAIL},
                   {"annotate", MEMFIT_EVENT_MARK}};
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++)
        if (mf_pickle_is(action, actions[i].text))
            return actions[i].op;
    return 0;
}

/* A mark has its name in the record; a note of ours says what it is. */
static memfit_status read_note(import *in, const mf_pickle *record, int *op, uint32_t *name, memfit_error *err)
{
    static const size_t prefix = sizeof MF_TORCH_NOTE - 1;
    const mf_pickle *text = mf_pickle_get(record, "user_metadata");
    if (!text || text->type != MF_PICKLE_STRING)
        return MEMFIT_OK;
    if (text->count <= prefix || memcmp(text->data, MF_TORCH_NOTE, prefix) != 0) {
        *op = mf_pickle_unsigned(mf_pickle_get(record, "addr"), 0) ? 0 : *op; /* a note on a buffer is no mark */
        return mf_trace_builder_name(&in->b, text->data, text->count, name, err);
    }
    for (unsigned k = MEMFIT_EVENT_MAP; k < MEMFIT_EVENT_MARK; k++) {
        const char *word = memfit_event_op_name(k);
        if (strlen(word) == text->count - prefix && memcmp(word, text->data + prefix, strlen(word)) == 0)
            *op = (int)k;
    }
    return MEMFIT_OK;
}

static memfit_status add_event(import *in, const mf_pickle *record, uint64_t index, memfit_error *err)
{
    if (!is_record(record))
        return mf_fail(err, MEMFIT_DAMAGED, "device_traces[%u][%" PRIu64 "] is no dict", in->device, index);
    int op = action_op(mf_pickle_get(record, "action"));
    if (!op)
        return MEMFIT_OK; /* "snapshot", and what later versions may add */
    const mf_pickle *address = mf_pickle_get(record, "addr");
    uint64_t bytes = mf_pickle_unsigned(mf_pickle_get(record, "size"), UINT64_MAX);
    uint64_t id = mf_pickle_unsigned(address, UINT64_MAX);
    if (op == MEMFIT_EVENT_MARK && bytes == UINT64_MAX)
        bytes = 0;
    bool needs_address = op != MEMFIT_EVENT_FAIL && op != MEMFIT_EVENT_MARK;
    if (bytes >> 48 || (needs_address && id == UINT64_MAX))
        return mf_fail(err, MEMFIT_DAMAGED, "device_traces[%u][%" PRIu64 "] has no %s", in->device, index,
                       bytes >> 48 ? "size" : "addr");
    uint64_t time = mf_pickle_unsigned(mf_pickle_get(record, "time_us"), index) - in->first_us;
    memfit_event e = {.time_ns = (time < UINT64_MAX >> 11 ? time : 0) * 1000,
                      .id = id == UINT64_MAX || op == MEMFIT_EVENT_FAIL ? 0 : id,
                      .bytes = bytes,
                      .op = (uint8_t)op,
                      .kind = MEMFIT_KIND_OTHER,
                      .device = (uint8_t)in->device};
    uint8_t stream;
    uint32_t name = 0;
    memfit_kind kind = MEMFIT_KIND_OTHER;
    memfit_status status =
        mf_trace_builder_stream(&in->b, mf_pickle_unsigned(mf_pickle_get(record, "stream"), 0), &stream, err);
    bool note = op == MEMFIT_EVENT_MARK;
    if (!status && (op == MEMFIT_EVENT_ALLOC || op == MEMFIT_EVENT_FAIL || note))
        status = name_of(in, record, &name, &kind, err);
    if (!status && note)
        status = read_note(in, record, &op, &name, err);
    if (status || !op)
        return status;
    e.op = (uint8_t)op;
    e.kind = (uint8_t)kind;
    e.stream = stream;
    e.name = name;
    return mf_trace_builder_add(&in->b, &e, index, err);
}

/* The earliest time of all records, so that the trace begins at 0. */
static uint64_t first_time(const mf_pickle *traces)
{
    uint64_t first = UINT64_MAX;
    for (size_t d = 0; d < mf_pickle_length(traces); d++) {
        const mf_pickle *trace = mf_pickle_at(traces, d);
        for (size_t i = 0; i < mf_pickle_length(trace); i++) {
            const mf_pickle *record = mf_pickle_at(trace, i);
            uint64_t t =
                is_record(record) ? mf_pickle_unsigned(mf_pickle_get(record, "time_us"), UINT64_MAX) : UINT64_MAX;
            first = t < first ? t : first;
        }
    }
    return first == UINT64_MAX ? 0 : first;
}

/* Blocks alive at the end. Older versions give no block addresses: they follow one another from the segment's. */
static memfit_status add_segment(import *in, const mf_pickle *segment, size_t index, memfit_error *err)
{
    if (!is_record(segment))
        return mf_fail(err, MEMFIT_DAMAGED, "segments[%zu] is no dict", index);
    uint64_t address = mf_pickle_unsigned(mf_pickle_get(segment, "address"), UINT64_MAX);
    const mf_pickle *blocks = mf_pickle_get(segment, "blocks");
    uint8_t stream;
    memfit_status status =
        mf_trace_builder_stream(&in->b, mf_pickle_unsigned(mf_pickle_get(segment, "stream"), 0), &stream, err);
    for (size_t i = 0; !status && i < mf_pickle_length(blocks); i++) {
        const mf_pickle *block = mf_pickle_at(blocks, i);
        uint64_t bytes = is_record(block) ? mf_pickle_unsigned(mf_pickle_get(block, "size"), UINT64_MAX) : UINT64_MAX;
        if (bytes >> 48 || address == UINT64_MAX)
            return mf_fail(err, MEMFIT_DAMAGED, "segments[%zu] block %zu has no %s", index, i,
                           bytes >> 48 ? "size" : "address");
        uint64_t at = mf_pickle_unsigned(mf_pickle_get(block, "address"), address);
        address = at + bytes;
        const mf_pickle *state = mf_pickle_get(block, "state");
        if (!mf_pickle_is(state, "active_allocated") && !mf_pickle_is(state, "active_pending_free") &&
            !mf_pickle_is(state, "active_awaiting_free"))
            continue;
        memfit_event e = {.time_ns = UINT64_MAX,
                          .id = at,
                          .bytes = bytes,
                          .op = MF_TRACE_STILL_THERE,
                          .kind = MEMFIT_KIND_OTHER,
                          .stream = stream,
                          .device = (uint8_t)(mf_pickle_unsigned(mf_pickle_get(segment, "device"), 0) & 255)};
        uint32_t name = 0;
        memfit_kind kind;
        status = name_of(in, block, &name, &kind, err);
        e.name = name;
        e.kind = (uint8_t)kind;
        if (!status)
            status = mf_trace_builder_add(&in->b, &e, i, err);
    }
    return status;
}

static memfit_status add_all(import *in, const mf_pickle *root, memfit_error *err)
{
    const mf_pickle *traces = mf_pickle_get(root, "device_traces"), *segments = mf_pickle_get(root, "segments");
    in->first_us = first_time(traces);
    for (size_t d = 0; d < mf_pickle_length(traces); d++) {
        const mf_pickle *trace = mf_pickle_at(traces, d);
        if (d > 255 && mf_pickle_length(trace))
            return mf_fail(err, MEMFIT_DAMAGED, "device_traces[%zu]: more than 256 devices", d);
        in->device = (unsigned)d;
        for (size_t i = 0; i < mf_pickle_length(trace); i++) {
            memfit_status status = add_event(in, mf_pickle_at(trace, i), i, err);
            if (status)
                return status;
        }
    }
    for (size_t i = 0; i < mf_pickle_length(segments); i++) {
        memfit_status status = add_segment(in, mf_pickle_at(segments, i), i, err);
        if (status)
            return status;
    }
    if (!in->b.trace->info.events)
        return mf_fail(
            err, MEMFIT_DAMAGED,
            "the snapshot holds no events and no blocks\nrecord with torch.cuda.memory._record_memory_history() "
            "before _dump_snapshot()");
    return MEMFIT_OK;
}

static memfit_status import_tree(import *in, const mf_pickle *root, const memfit_host *host, memfit_trace **trace,
                                 memfit_error *err)
{
    if (!is_record(root) || (!mf_pickle_get(root, "device_traces") && !mf_pickle_get(root, "segments")))
        return mf_fail(err, MEMFIT_DAMAGED,
                       "a pickle, but no PyTorch memory snapshot: it has neither \"segments\" nor \"device_traces\"");
    memfit_status status =
        mf_trace_builder_begin(&in->b, host, MEMFIT_TRACE_TORCH, MF_TRACE_REPAIR, "event", 1024, err);
    if (status)
        return status;
    status = add_all(in, root, err);
    if (!status)
        return mf_trace_builder_end(&in->b, trace, err);
    mf_trace_builder_abandon(&in->b);
    return status;
}

memfit_status mf_trace_read_torch(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                  memfit_error *err)
{
    mf_arena arena;
    mf_arena_init(&arena, host);
    arena.limit_bytes = (uint64_t)bytes * MEMORY_FACTOR + (2 << 20);
    mf_pickle_tree tree;
    import *in = MF_NEW(&arena, import);
    memfit_status status = in ? mf_pickle_read(&arena, data, bytes, &tree, err)
                              : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to read a snapshot");
    if (status == MEMFIT_UNSUPPORTED) { /* PyTorch writes plain data: this is something else, not a newer snapshot */
        status = MEMFIT_DAMAGED;
        if (err)
            err->code = status;
    }
    if (!status)
        status = import_tree(in, tree.root, host, trace, err);
    mf_arena_destroy(&arena);
    return status;
}
