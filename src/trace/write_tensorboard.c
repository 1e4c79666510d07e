/*
 * write_tensorboard.c: a trace as an XSpace, for TensorBoard's profile plugin (xprof), tool "memory profile".
 *
 *     XSpace { plane "/host:CPU" { line { event MemoryAllocation | MemoryDeallocation { stats } ... } names of events, stats } }
 *
 * What the plugin reads of an event: allocator_name (what is selected), bytes_allocated, bytes_reserved (drawn as
 * stack, so 0), bytes_available, fragmentation, peak_bytes_in_use, requested_bytes, allocation_bytes, addr (matches frees to
 * allocations), tf_op (our owner), region_type (our kind), data_type, shape, group_id (the step; one for all, so that the
 * table at the peak holds every live buffer). Names of owners stand once, as names of stats, and are referred to.
 *
 * The line and the plane begin with their length: the events are made twice, the first time only counted.
 */
#include "base/error.h"
#include "base/os.h"
#include "trace/protobuf.h"
#include "trace/trace.h"
#include "trace/trace_write.h"

#include <errno.h>
#include <string.h>

enum { SPACE_PLANES = 1, PLANE_NAME = 2, PLANE_LINES = 3, PLANE_EVENTS = 4, PLANE_STATS = 5 };
enum { LINE_ID = 1, LINE_NAME = 2, LINE_EVENTS = 4, EVENT_METADATA = 1, EVENT_OFFSET_PS = 2, EVENT_STATS = 4 };
enum {
    STAT_METADATA = 1,
    STAT_DOUBLE = 2,
    STAT_INT = 4,
    STAT_REF = 7,
    META_ID = 1,
    META_NAME = 2,
    MAP_KEY = 1,
    MAP_VALUE = 2
};
enum { ALLOCATION = 1, DEALLOCATION = 2, ROOM = 4096 };

/* Numbers of the stats' names; owners and kinds follow. */
#define STATS(X)                                                                                                       \
    X(allocator_name)                                                                                                  \
    X(bytes_allocated)                                                                                                 \
    X(bytes_reserved)                                                                                                  \
    X(bytes_available)                                                                                                 \
    X(fragmentation)                                                                                                   \
    X(peak_bytes_in_use)                                                                                               \
    X(requested_bytes)                                                                                                 \
    X(allocation_bytes)                                                                                                \
    X(addr)                                                                                                            \
    X(tf_op)                                                                                                           \
    X(region_type)                                                                                                     \
    X(data_type)                                                                                                       \
    X(shape)                                                                                                           \
    X(group_id)
enum {
    NO_STAT,
#define X(name) S_##name,
    STATS(X)
#undef X
        ALLOCATOR, /* the name of ours */
    EMPTY,         /* a shape that is not known */
    FIRST_KIND = 32,
    FIRST_NAME = 64,
};
static const char *const stat_names[] = {"",
#define X(name) #name,
                                         STATS(X)
#undef X
                                             "memfit",
                                         "(not known)"};

typedef struct state {
    uint64_t live, peak, most; /* most: of the whole trace, which counts as the capacity */
} state;

/* ---- names ------------------------------------------------------------------------------------------------ */

static void put_meta(mf_proto *p, unsigned field, uint64_t id, const char *name)
{
    unsigned char a[ROOM], b[ROOM];
    mf_proto value = {a, ROOM, 0}, entry = {b, ROOM, 0};
    mf_proto_number(&value, META_ID, id);
    mf_proto_text(&value, META_NAME, name);
    mf_proto_number(&entry, MAP_KEY, id);
    mf_proto_message(&entry, MAP_VALUE, &value);
    mf_proto_message(p, field, &entry);
}

/* Every name the events refer to, one after the other to `f`, or counted when it is NULL. */
static uint64_t put_names(FILE *f, const mf_trace_view *v)
{
    uint64_t bytes = 0;
    for (uint64_t i = 1; i < FIRST_NAME + (uint64_t)v->trace->info.names; i++) {
        unsigned char a[ROOM];
        char text[1024];
        mf_proto p = {a, ROOM, 0};
        const char *name = NULL;
        if (i < sizeof stat_names / sizeof *stat_names)
            name = stat_names[i];
        else if (i >= FIRST_KIND && i < FIRST_KIND + MEMFIT_KIND_COUNT)
            name = memfit_kind_name((memfit_kind)(i - FIRST_KIND));
        else if (i >= FIRST_NAME)
            name = mf_trace_view_name(v, (uint32_t)(i - FIRST_NAME), text, sizeof text);
        if (!name)
            continue;
        put_meta(&p, PLANE_STATS, i, *name ? name : "(no name)");
        if (f)
            fwrite(a, 1, p.length, f);
        bytes += p.length;
    }
    return bytes;
}

/* ---- events ----------------------------------------------------------------------------------------------- */

static void put_stat(mf_proto *event, unsigned stat, unsigned type, uint64_t value)
{
    unsigned char a[32];
    mf_proto p = {a, sizeof a, 0};
    mf_proto_number(&p, STAT_METADATA, stat);
    if (type == STAT_DOUBLE) { /* only 0 is needed: eight zero bytes */
        mf_proto_varint(&p, STAT_DOUBLE << 3 | 1);
        for (int i = 0; i < 8; i++)
            mf_proto_byte(&p, 0);
    } else {
        mf_proto_number(&p, type, value);
    }
    mf_proto_message(event, EVENT_STATS, &p);
}

static void make_event(mf_proto *p, const memfit_event *e, state *s)
{
    bool alloc = e->op == MEMFIT_EVENT_ALLOC;
    s->live += alloc ? e->bytes : 0 - e->bytes;
    s->peak = s->live > s->peak ? s->live : s->peak;
    mf_proto_number(p, EVENT_METADATA, alloc ? ALLOCATION : DEALLOCATION);
    mf_proto_number(p, EVENT_OFFSET_PS, e->time_ns * 1000);
    put_stat(p, S_allocator_name, STAT_REF, ALLOCATOR);
    put_stat(p, S_bytes_allocated, STAT_INT, s->live);
    put_stat(p, S_bytes_reserved, STAT_INT, 0);
    put_stat(p, S_bytes_available, STAT_INT, s->most - s->live);
    put_stat(p, S_fragmentation, STAT_DOUBLE, 0);
    put_stat(p, S_peak_bytes_in_use, STAT_INT, s->peak);
    put_stat(p, S_requested_bytes, STAT_INT, e->bytes);
    put_stat(p, S_allocation_bytes, STAT_INT, e->bytes);
    put_stat(p, S_addr, STAT_INT, e->id + 1);
    if (!alloc)
        return;
    put_stat(p, S_tf_op, STAT_REF, FIRST_NAME + (uint64_t)e->name);
    put_stat(p, S_region_type, STAT_REF, FIRST_KIND + (uint64_t)e->kind);
    put_stat(p, S_data_type, STAT_INT, 0);
    put_stat(p, S_shape, STAT_REF, EMPTY);
    put_stat(p, S_group_id, STAT_INT, 1);
}

static uint64_t put_events(FILE *f, const mf_trace_view *v)
{
    uint64_t bytes = 0, now = 0;
    state s = {0};
    for (uint64_t i = 0; i < v->trace->info.events; i++) {
        const memfit_event *e = &v->trace->events[i];
        if (e->device != v->device || (e->op != MEMFIT_EVENT_ALLOC && e->op != MEMFIT_EVENT_FREE))
            continue;
        now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        s.most = now > s.most ? now : s.most;
    }
    for (uint64_t i = 0; i < v->trace->info.events; i++) {
        const memfit_event *e = &v->trace->events[i];
        if (e->device != v->device || (e->op != MEMFIT_EVENT_ALLOC && e->op != MEMFIT_EVENT_FREE))
            continue;
        unsigned char a[512], b[16];
        mf_proto event = {a, sizeof a, 0}, head = {b, sizeof b, 0};
        make_event(&event, e, &s);
        mf_proto_head(&head, LINE_EVENTS, event.length);
        if (f) {
            fwrite(b, 1, head.length, f);
            fwrite(a, 1, event.length, f);
        }
        bytes += head.length + event.length;
    }
    return bytes;
}

/* ---- the file --------------------------------------------------------------------------------------------- */

static void put_all(FILE *f, const mf_trace_view *v)
{
    unsigned char a[64], b[ROOM], c[16], d[16];
    mf_proto line = {a, sizeof a, 0}, plane = {b, ROOM, 0}, head = {c, sizeof c, 0}, line_head = {d, sizeof d, 0};
    uint64_t events = put_events(NULL, v), names = put_names(NULL, v);
    mf_proto_number(&line, LINE_ID, 1);
    mf_proto_text(&line, LINE_NAME, "memory");
    mf_proto_text(&plane, PLANE_NAME, "/host:CPU");
    put_meta(&plane, PLANE_EVENTS, ALLOCATION, "MemoryAllocation");
    put_meta(&plane, PLANE_EVENTS, DEALLOCATION, "MemoryDeallocation");
    mf_proto_head(&line_head, PLANE_LINES, line.length + events);
    mf_proto_head(&head, SPACE_PLANES, plane.length + names + line_head.length + line.length + events);
    fwrite(c, 1, head.length, f);
    fwrite(b, 1, plane.length, f);
    put_names(f, v);
    fwrite(d, 1, line_head.length, f);
    fwrite(a, 1, line.length, f);
    put_events(f, v);
}

memfit_status mf_trace_write_tensorboard(const mf_trace_view *view, const char *folder, memfit_error *err)
{
    static const char *const parts[] = {"", "/plugins", "/plugins/profile", "/plugins/profile/memfit"};
    char path[MF_MOST_PATH];
    memfit_status status = MEMFIT_OK;
    if (strlen(folder) > MF_MOST_PATH - 64)
        return mf_fail(err, MEMFIT_INVALID, "%s: the path is too long", folder);
    for (size_t i = 0; !status && i < sizeof parts / sizeof *parts; i++) {
        snprintf(path, sizeof path, "%s%s", folder, parts[i]);
        status = mf_os_make_folder(path, err);
    }
    if (status)
        return status;
    snprintf(path, sizeof path, "%s/plugins/profile/memfit/memfit.xplane.pb", folder);
    mf_outfile out;
    status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    put_all(out.file, view);
    if (!ferror(out.file))
        return mf_os_out_commit(&out, err);
    status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", path, strerror(errno));
    mf_os_out_abandon(&out);
    return status;
}
