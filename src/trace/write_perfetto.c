/*
 * write_perfetto.c: a trace for ui.perfetto.dev: track events in protocol buffers (perfetto/trace/track_event).
 *
 *     process "memfit: run.trace"
 *       live bytes                a counter, a value for every change
 *       live: activations ...     the same by kind, where there are several
 *       reserved, limit           where the trace says so
 *       steps                     a slice each
 *       refused                   an instant each
 *
 * The first packet is the process's, whose name begins with "memfit": that is how the guard of outputs knows our files.
 */
#include "base/error.h"
#include "base/os.h"
#include "trace/protobuf.h"
#include "trace/trace.h"
#include "trace/trace_write.h"

#include <errno.h>
#include <string.h>

/* Fields, by the names in perfetto's .proto files. */
enum {
    TRACE_PACKET = 1,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_EVENT = 11,
    PACKET_TRACK = 60,
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    PROCESS_PID = 1,
    PROCESS_NAME = 6,
    COUNTER_UNIT = 3,
    UNIT_BYTES = 3,
    EVENT_TYPE = 9,
    EVENT_TRACK = 11,
    EVENT_NAME = 23,
    EVENT_VALUE = 30,
    SLICE_BEGIN = 1,
    SLICE_END = 2,
    INSTANT = 3,
    COUNTER = 4,
};
enum { PROCESS = 1, LIVE, RESERVED, LIMIT, STEPS, REFUSED, KINDS = 16 }; /* tracks */
enum { ROOM = 2048 };

static void put_packet(FILE *f, const mf_proto *packet)
{
    unsigned char head[16];
    mf_proto p = {head, sizeof head, 0};
    mf_proto_head(&p, TRACE_PACKET, packet->length);
    fwrite(head, 1, p.length, f);
    fwrite(packet->data, 1, packet->length, f);
}

static void put_track(FILE *f, uint64_t uuid, const char *name, bool counter)
{
    unsigned char a[ROOM], b[ROOM], c[ROOM];
    mf_proto track = {a, ROOM, 0}, inner = {b, ROOM, 0}, packet = {c, ROOM, 0};
    mf_proto_number(&track, TRACK_UUID, uuid);
    if (uuid == PROCESS) {
        mf_proto_number(&inner, PROCESS_PID, 1);
        mf_proto_text(&inner, PROCESS_NAME, name);
        mf_proto_message(&track, TRACK_PROCESS, &inner);
    } else {
        mf_proto_text(&track, TRACK_NAME, name);
        mf_proto_number(&track, TRACK_PARENT, PROCESS);
    }
    if (counter) {
        mf_proto_number(&inner, COUNTER_UNIT, UNIT_BYTES);
        mf_proto_message(&track, TRACK_COUNTER, &inner);
    }
    mf_proto_message(&packet, PACKET_TRACK, &track);
    mf_proto_number(&packet, PACKET_SEQUENCE, 1);
    put_packet(f, &packet);
}

static void put_event(FILE *f, uint64_t time_ns, unsigned type, uint64_t track, uint64_t value, const char *name)
{
    unsigned char a[ROOM], b[ROOM];
    mf_proto event = {a, ROOM, 0}, packet = {b, ROOM, 0};
    mf_proto_number(&event, EVENT_TYPE, type);
    mf_proto_number(&event, EVENT_TRACK, track);
    if (type == COUNTER)
        mf_proto_number(&event, EVENT_VALUE, value);
    if (name)
        mf_proto_text(&event, EVENT_NAME, name);
    mf_proto_number(&packet, PACKET_TIMESTAMP, time_ns);
    mf_proto_number(&packet, PACKET_SEQUENCE, 1);
    mf_proto_message(&packet, PACKET_EVENT, &event);
    put_packet(f, &packet);
}

typedef struct totals {
    uint64_t live, kinds[MEMFIT_KIND_COUNT], reserved;
    unsigned kinds_used;
    bool has_reserved, has_limit;
} totals;

static totals look(const mf_trace_view *v)
{
    totals t = {0};
    bool used[MEMFIT_KIND_COUNT] = {0};
    for (uint64_t i = 0; i < v->trace->info.events; i++) {
        const memfit_event *e = &v->trace->events[i];
        if (e->device != v->device)
            continue;
        t.kinds_used += e->op == MEMFIT_EVENT_ALLOC && !used[e->kind];
        used[e->kind] |= e->op == MEMFIT_EVENT_ALLOC;
        t.has_reserved |= e->op == MEMFIT_EVENT_MAP || e->op == MEMFIT_EVENT_UNMAP;
        t.has_limit |= e->op == MEMFIT_EVENT_LIMIT;
    }
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        t.kinds[k] = used[k]; /* which tracks there are; counted from 0 afterwards */
    return t;
}

static void put_tracks(FILE *f, const mf_trace_view *v, totals *t)
{
    char name[256];
    snprintf(name, sizeof name, "memfit: %s", v->title);
    put_track(f, PROCESS, name, false);
    put_track(f, LIVE, "live bytes", true);
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++) {
        snprintf(name, sizeof name, "live: %s", memfit_kind_name((memfit_kind)k));
        if (t->kinds_used > 1 && t->kinds[k])
            put_track(f, KINDS + k, name, true);
        t->kinds[k] = 0;
    }
    if (t->has_reserved)
        put_track(f, RESERVED, "reserved", true);
    if (t->has_limit)
        put_track(f, LIMIT, "limit", true);
    if (v->step_count)
        put_track(f, STEPS, "steps", false);
    put_track(f, REFUSED, "refused", false);
}

static void put_change(FILE *f, const mf_trace_view *v, totals *t, const memfit_event *e)
{
    char text[1024], name[1200];
    switch (e->op) {
    case MEMFIT_EVENT_ALLOC:
    case MEMFIT_EVENT_FREE: {
        uint64_t change = e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        t->live += change;
        t->kinds[e->kind] += change;
        put_event(f, e->time_ns, COUNTER, LIVE, t->live, NULL);
        if (t->kinds_used > 1)
            put_event(f, e->time_ns, COUNTER, KINDS + e->kind, t->kinds[e->kind], NULL);
        break;
    }
    case MEMFIT_EVENT_MAP:
    case MEMFIT_EVENT_UNMAP:
        t->reserved += e->op == MEMFIT_EVENT_MAP ? e->bytes : 0 - e->bytes;
        put_event(f, e->time_ns, COUNTER, RESERVED, t->reserved, NULL);
        break;
    case MEMFIT_EVENT_LIMIT:
        put_event(f, e->time_ns, COUNTER, LIMIT, e->bytes, NULL);
        break;
    case MEMFIT_EVENT_FAIL:
        snprintf(name, sizeof name, "%s refused %s", memfit_size_format(e->bytes, text, 24),
                 mf_trace_view_name(v, e->name, text + 32, sizeof text - 32));
        put_event(f, e->time_ns, INSTANT, REFUSED, 0, name);
        break;
    default:
        break;
    }
}

static void put_all(FILE *f, const mf_trace_view *v)
{
    totals t = look(v);
    uint32_t step = 0;
    uint64_t last_ns = 0;
    put_tracks(f, v, &t);
    t.reserved = v->reserved_before;
    if (t.has_reserved && t.reserved)
        put_event(f, 0, COUNTER, RESERVED, t.reserved, NULL);
    for (uint64_t i = 0; i < v->trace->info.events; i++) {
        const memfit_event *e = &v->trace->events[i];
        for (; step < v->step_count && v->steps[step] <= i; step++) {
            char name[32];
            snprintf(name, sizeof name, "step %u", step + 1);
            if (step)
                put_event(f, e->time_ns, SLICE_END, STEPS, 0, NULL);
            put_event(f, e->time_ns, SLICE_BEGIN, STEPS, 0, name);
        }
        last_ns = e->time_ns;
        if (e->device == v->device)
            put_change(f, v, &t, e);
    }
    if (step)
        put_event(f, last_ns, SLICE_END, STEPS, 0, NULL);
}

memfit_status mf_trace_write_perfetto(const mf_trace_view *view, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    put_all(out.file, view);
    if (!ferror(out.file))
        return mf_os_out_commit(&out, err);
    status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", path, strerror(errno));
    mf_os_out_abandon(&out);
    return status;
}
