/*
 * trace_build.c: from events as they come to a trace that can be replayed.
 *
 *     importer --add--> events in order of arrival --end--> sorted by time, buffers numbered 0, 1, 2, ... by first use,
 *                                                           every free behind its allocation, totals counted
 *
 * Ids are any 64-bit numbers (addresses, mostly) and come back after a free; a hash table holds those alive. A
 * recording that began in the middle of things frees buffers nobody saw allocated: under MF_TRACE_REPAIR they are
 * allocated at time 0, so that live bytes are right from the first event on. Under MF_TRACE_STRICT any contradiction is
 * an error naming its place.
 *
 * Two walks with the same table: the first counts what is to be put in, the second writes the events.
 */
#include "trace/trace.h"

#include "base/abi.h"
#include "base/error.h"

#include <inttypes.h>
#include <string.h>

/* ---- ids alive -------------------------------------------------------------------------------------------- */

typedef struct live {
    uint64_t id;
    uint64_t bytes;
    uint64_t buffer; /* number + 1; 0: the slot was never used; TOMB: removed */
    uint32_t device;
    uint8_t stream;
    uint8_t kind;
    uint32_t name;
} live;
#define TOMB UINT64_MAX

typedef struct live_table {
    live *slots;
    uint64_t mask;
} live_table;

static uint64_t mix(uint64_t id, uint32_t device)
{
    uint64_t h = (id ^ (uint64_t)device << 56) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

static live *find(const live_table *t, uint64_t id, uint32_t device)
{
    for (uint64_t i = mix(id, device) & t->mask;; i = (i + 1) & t->mask) {
        live *s = &t->slots[i];
        if (!s->buffer)
            return NULL;
        if (s->buffer != TOMB && s->id == id && s->device == device)
            return s;
    }
}

/* There is always room: the table has twice as many slots as there are events. */
static live *insert(live_table *t, uint64_t id, uint32_t device)
{
    uint64_t i = mix(id, device) & t->mask;
    while (t->slots[i].buffer && t->slots[i].buffer != TOMB)
        i = (i + 1) & t->mask;
    t->slots[i] = (live){.id = id, .device = device};
    return &t->slots[i];
}

/* ---- adding ----------------------------------------------------------------------------------------------- */

memfit_status mf_trace_builder_begin(mf_trace_builder *b, const memfit_host *host, memfit_trace_source source,
                                     mf_trace_rule rule, const char *place_word, uint64_t expected, memfit_error *err)
{
    *b = (mf_trace_builder){.rule = rule, .place_word = place_word};
    memfit_trace *trace = mf_host_zalloc(host, sizeof *trace);
    if (!trace)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace");
    mf_arena_init(&trace->arena, host);
    trace->info = (memfit_trace_info){.source = source, .names = 1, .streams = 1};
    b->trace = trace;
    b->capacity = expected < 64 ? 64 : expected;
    trace->events = MF_NEW_ARRAY(&trace->arena, memfit_event, b->capacity);
    b->places = MF_NEW_ARRAY(&trace->arena, uint64_t, b->capacity);
    b->streams = MF_NEW_ARRAY(&trace->arena, uint64_t, MF_TRACE_MOST_STREAMS);
    if (trace->events && b->places && b->streams)
        return MEMFIT_OK;
    mf_trace_builder_abandon(b);
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace of %" PRIu64 " events", expected);
}

void mf_trace_builder_abandon(mf_trace_builder *b)
{
    memfit_trace_destroy(b->trace);
    b->trace = NULL;
}

static bool grow_events(mf_trace_builder *b)
{
    memfit_trace *t = b->trace;
    uint64_t more = b->capacity * 2;
    memfit_event *events = MF_NEW_ARRAY(&t->arena, memfit_event, more);
    uint64_t *places = events ? MF_NEW_ARRAY(&t->arena, uint64_t, more) : NULL;
    if (!places)
        return false;
    memcpy(events, t->events, b->capacity * sizeof *events);
    memcpy(places, b->places, b->capacity * sizeof *places);
    t->events = events;
    b->places = places;
    b->capacity = more;
    return true;
}

memfit_status mf_trace_builder_add(mf_trace_builder *b, const memfit_event *event, uint64_t place, memfit_error *err)
{
    memfit_trace *t = b->trace;
    if (t->info.events == b->capacity && !grow_events(b))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace of more than %" PRIu64 " events",
                       b->capacity);
    b->places[t->info.events] = place;
    t->events[t->info.events++] = *event;
    return MEMFIT_OK;
}

memfit_status mf_trace_builder_stream(mf_trace_builder *b, uint64_t raw, uint8_t *stream, memfit_error *err)
{
    memfit_trace_info *info = &b->trace->info;
    uint32_t i = 0;
    while (i < info->streams && b->streams[i] != raw)
        i++;
    if (i == MF_TRACE_MOST_STREAMS)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "more than %d different streams", MF_TRACE_MOST_STREAMS);
    if (i == info->streams)
        b->streams[info->streams++] = raw;
    *stream = (uint8_t)i;
    return MEMFIT_OK;
}

static uint32_t hash_text(const char *text, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h ^ h >> 15;
}

static bool grow_names(mf_trace_builder *b)
{
    memfit_trace *t = b->trace;
    uint32_t more = b->names_capacity ? b->names_capacity * 2 : 64;
    const char **names = MF_NEW_ARRAY(&t->arena, const char *, more);
    uint32_t *slots = names ? MF_NEW_ARRAY(&t->arena, uint32_t, 2 * (size_t)more) : NULL;
    if (!slots)
        return false;
    names[0] = "";
    for (uint32_t i = 1; i < t->info.names; i++) {
        names[i] = t->names[i];
        uint32_t at = hash_text(names[i], strlen(names[i])) & (2 * more - 1);
        while (slots[at])
            at = (at + 1) & (2 * more - 1);
        slots[at] = i;
    }
    t->names = names;
    b->name_slots = slots;
    b->names_capacity = more;
    b->name_slot_count = 2 * more;
    return true;
}

memfit_status mf_trace_builder_name(mf_trace_builder *b, const char *text, size_t bytes, uint32_t *name,
                                    memfit_error *err)
{
    memfit_trace *t = b->trace;
    if (bytes > MF_TRACE_MOST_NAME)
        bytes = MF_TRACE_MOST_NAME;
    *name = 0;
    if (!bytes)
        return MEMFIT_OK;
    /* Names are shown on terminals: control characters become dots. */
    char copy[MF_TRACE_MOST_NAME + 1];
    for (size_t i = 0; i < bytes; i++)
        copy[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '.' : text[i];
    copy[bytes] = 0;
    if (t->info.names >= b->names_capacity && !grow_names(b))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace's names");
    uint32_t mask = b->name_slot_count - 1, at = hash_text(copy, bytes) & mask;
    for (; b->name_slots[at]; at = (at + 1) & mask)
        if (strcmp(t->names[b->name_slots[at]], copy) == 0) {
            *name = b->name_slots[at];
            return MEMFIT_OK;
        }
    t->names[t->info.names] = mf_arena_strndup(&t->arena, copy, bytes);
    if (!t->names[t->info.names])
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace's names");
    b->name_slots[at] = *name = t->info.names++;
    return MEMFIT_OK;
}

/* ---- sorting ---------------------------------------------------------------------------------------------- */

/* Merge sort of events and their places by time; stable. Sorted input costs one look. */
static memfit_status sort_events(mf_trace_builder *b, memfit_error *err)
{
    memfit_trace *t = b->trace;
    uint64_t n = t->info.events;
    bool sorted = true;
    for (uint64_t i = 1; i < n && sorted; i++)
        sorted = t->events[i - 1].time_ns <= t->events[i].time_ns;
    if (sorted)
        return MEMFIT_OK;
    memfit_event *e = t->events, *e2 = MF_NEW_ARRAY(&t->arena, memfit_event, n);
    uint64_t *p = b->places, *p2 = MF_NEW_ARRAY(&t->arena, uint64_t, n);
    if (!e2 || !p2)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to sort a trace of %" PRIu64 " events", n);
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t lo = 0; lo < n; lo += 2 * width) {
            uint64_t mid = lo + width < n ? lo + width : n, hi = mid + width < n ? mid + width : n;
            for (uint64_t i = lo, j = mid, k = lo; k < hi; k++) {
                uint64_t from = i < mid && (j >= hi || e[i].time_ns <= e[j].time_ns) ? i++ : j++;
                e2[k] = e[from];
                p2[k] = p[from];
            }
        }
        memfit_event *es = e;
        e = e2, e2 = es;
        uint64_t *ps = p;
        p = p2, p2 = ps;
    }
    t->events = e;
    b->places = p;
    return MEMFIT_OK;
}

/* ---- numbering -------------------------------------------------------------------------------------------- */

/* What an event means for the buffer it names. */
typedef enum {
    PLAIN,      /* goes out as it is */
    OPENS,      /* an allocation of an id not alive */
    REOPENS,    /* an allocation of an id alive: the older one ends here */
    CLOSES,     /* a free of one alive */
    CLOSES_OLD, /* a free of one never seen: alive before */
    STAYS_OLD,  /* alive at the end, never seen: alive before */
    NOTHING,    /* said already */
} meaning;

static meaning read_event(const live_table *table, const memfit_event *e, live **found)
{
    *found = NULL;
    switch (e->op) {
    case MEMFIT_EVENT_ALLOC:
        *found = find(table, e->id, e->device);
        return *found ? REOPENS : OPENS;
    case MEMFIT_EVENT_FREE:
        *found = find(table, e->id, e->device);
        return *found ? CLOSES : CLOSES_OLD;
    case MF_TRACE_STILL_THERE:
        *found = find(table, e->id, e->device);
        return *found ? NOTHING : STAYS_OLD;
    case MEMFIT_EVENT_FREE_ASKED:
        *found = find(table, e->id, e->device);
        return PLAIN;
    default:
        return PLAIN;
    }
}

static memfit_status strict(const mf_trace_builder *b, uint64_t i, meaning m, const live *found, memfit_error *err)
{
    const memfit_event *e = &b->trace->events[i];
    if (m == REOPENS)
        return mf_fail(err, MEMFIT_DAMAGED, "%s %" PRIu64 ": id %" PRIu64 " is allocated, but it is alive already",
                       b->place_word, b->places[i], e->id);
    if (m == CLOSES_OLD)
        return mf_fail(err, MEMFIT_DAMAGED, "%s %" PRIu64 ": id %" PRIu64 " is freed, but it is not alive",
                       b->place_word, b->places[i], e->id);
    if (m == CLOSES && e->bytes && e->bytes != found->bytes)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s %" PRIu64 ": id %" PRIu64 " is freed with %" PRIu64 " bytes, but it has %" PRIu64,
                       b->place_word, b->places[i], e->id, (uint64_t)e->bytes, found->bytes);
    return MEMFIT_OK;
}

typedef struct number_walk {
    mf_trace_builder *b;
    live_table table;
    memfit_event *before; /* those alive before the recording, in order of their discovery */
    uint64_t befores, extra;
} number_walk;

/* First walk: finds who was there before, and how many ends must be put in. */
static memfit_status find_befores(number_walk *w, memfit_error *err)
{
    memfit_trace *t = w->b->trace;
    for (uint64_t i = 0; i < t->info.events; i++) {
        memfit_event *e = &t->events[i];
        live *found;
        meaning m = read_event(&w->table, e, &found);
        if (w->b->rule == MF_TRACE_STRICT) {
            memfit_status status = strict(w->b, i, m, found, err);
            if (status)
                return status;
        }
        if (m == OPENS) {
            live *fresh = insert(&w->table, e->id, e->device);
            fresh->buffer = 1;
            fresh->bytes = e->bytes;
        } else if (m == CLOSES) {
            found->buffer = TOMB;
        } else if (m == CLOSES_OLD || m == STAYS_OLD) {
            w->before[w->befores] = *e;
            w->before[w->befores].op = MEMFIT_EVENT_ALLOC;
            w->before[w->befores++].time_ns = 0;
            if (m == STAYS_OLD) { /* two of one id at the end: the second says nothing new */
                live *fresh = insert(&w->table, e->id, e->device);
                fresh->buffer = 1;
            }
        } else if (m == REOPENS) {
            w->extra++;
        }
    }
    return MEMFIT_OK;
}

static void count_live(memfit_trace_info *info, uint64_t *now, int64_t change)
{
    *now += (uint64_t)change;
    if (*now > info->peak_live_bytes)
        info->peak_live_bytes = *now;
}

/* Second walk: writes the events with their buffers' numbers. An id can be freed twice as `before` (freed, taken and
 * freed again, the second allocation lost), so befores are matched in order. */
static void write_numbered(number_walk *w, memfit_event *out)
{
    memfit_trace *t = w->b->trace;
    memfit_trace_info *info = &t->info;
    uint64_t n = info->events, k = 0, now = 0, next_before = 0;
    for (uint64_t i = 0; i < w->befores; i++) {
        out[k] = w->before[i];
        out[k++].id = info->buffers++;
        count_live(info, &now, (int64_t)w->before[i].bytes);
    }
    info->before_buffers = w->befores;
    info->before_bytes = now;
    for (uint64_t i = 0; i < n; i++) {
        memfit_event e = t->events[i];
        live *found;
        meaning m = read_event(&w->table, &e, &found);
        if (m == NOTHING || m == STAYS_OLD) {
            next_before += m == STAYS_OLD;
            if (m == STAYS_OLD)
                insert(&w->table, e.id, e.device)->buffer = 1;
            continue;
        }
        if (m == REOPENS) {
            out[k] = (memfit_event){.time_ns = e.time_ns,
                                    .id = found->buffer - 1,
                                    .bytes = found->bytes,
                                    .op = MEMFIT_EVENT_FREE,
                                    .kind = found->kind,
                                    .name = found->name,
                                    .stream = found->stream,
                                    .device = (uint8_t)found->device};
            k++;
            count_live(info, &now, -(int64_t)found->bytes);
            found->buffer = TOMB;
            info->repaired++;
            m = OPENS;
        }
        if (m == OPENS) {
            live *fresh = insert(&w->table, e.id, e.device);
            *fresh = (live){e.id, e.bytes, ++info->buffers, e.device, e.stream, e.kind, e.name};
            e.id = info->buffers - 1;
            count_live(info, &now, (int64_t)e.bytes);
        } else if (m == CLOSES) {
            e.id = found->buffer - 1;
            e.bytes = found->bytes;
            e.kind = found->kind;
            if (found->name)
                e.name = found->name;
            count_live(info, &now, -(int64_t)found->bytes);
            found->buffer = TOMB;
        } else if (m == CLOSES_OLD) {
            e.id = next_before;
            count_live(info, &now, -(int64_t)w->before[next_before].bytes);
            next_before++;
        } else if (e.op == MEMFIT_EVENT_FREE_ASKED) {
            if (!found)
                continue; /* of one from before: its FREE says all there is to say */
            e.id = found->buffer - 1;
        }
        info->failures += e.op == MEMFIT_EVENT_FAIL;
        out[k++] = e;
    }
    info->events = k;
    info->end_live_bytes = now;
    info->duration_ns = k ? out[k - 1].time_ns : 0;
    t->events = out;
}

static memfit_status number_buffers(mf_trace_builder *b, memfit_error *err)
{
    memfit_trace *t = b->trace;
    uint64_t n = t->info.events, slots = 64;
    while (slots < 2 * n + 2)
        slots *= 2;
    /* The table is scratch; it goes back before the trace is handed out. */
    mf_arena scratch;
    mf_arena_init(&scratch, t->arena.host);
    number_walk w = {.b = b, .table = {MF_NEW_ARRAY(&scratch, live, slots), slots - 1}};
    w.before = MF_NEW_ARRAY(&scratch, memfit_event, n + 1);
    memfit_status status = MEMFIT_OK;
    if (!w.table.slots || !w.before)
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to number a trace of %" PRIu64 " events", n);
    if (!status)
        status = find_befores(&w, err);
    if (!status) {
        memset(w.table.slots, 0, slots * sizeof *w.table.slots);
        memfit_event *out = MF_NEW_ARRAY(&t->arena, memfit_event, n + w.befores + w.extra + 1);
        if (out)
            write_numbered(&w, out);
        else
            status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace of %" PRIu64 " events", n);
    }
    mf_arena_destroy(&scratch);
    return status;
}

memfit_status mf_trace_builder_end(mf_trace_builder *b, memfit_trace **trace, memfit_error *err)
{
    memfit_status status = sort_events(b, err);
    if (!status)
        status = number_buffers(b, err);
    if (status) {
        mf_trace_builder_abandon(b);
        return status;
    }
    *trace = b->trace;
    b->trace = NULL;
    return MEMFIT_OK;
}

/* ---- the trace as an object ------------------------------------------------------------------------------- */

void memfit_trace_destroy(memfit_trace *trace)
{
    if (!trace)
        return;
    const memfit_host *host = trace->arena.host;
    mf_arena_destroy(&trace->arena);
    mf_host_free(host, trace, sizeof *trace);
}

const memfit_event *memfit_trace_events(const memfit_trace *trace, uint64_t *count)
{
    *count = trace->info.events;
    return trace->events;
}

const char *memfit_trace_name(const memfit_trace *trace, uint32_t name)
{
    return name && name < trace->info.names ? trace->names[name] : "";
}

memfit_status memfit_trace_describe(const memfit_trace *trace, memfit_trace_info *info, memfit_error *err)
{
    memfit_status status = mf_abi_check(info, "MEMFIT_TRACE_INFO", err);
    if (!status)
        mf_abi_write(info, &trace->info, sizeof trace->info);
    return status;
}

static bool is_binary(const void *data, size_t bytes)
{
    return bytes >= sizeof MF_TRACE_MAGIC - 1 && memcmp(data, MF_TRACE_MAGIC, sizeof MF_TRACE_MAGIC - 1) == 0;
}

bool memfit_trace_begins(const void *data, size_t bytes)
{
    static const char csv[] = "time_us,op,id,bytes";
    return is_binary(data, bytes) || (bytes >= sizeof csv - 1 && memcmp(data, csv, sizeof csv - 1) == 0);
}

memfit_status memfit_trace_read(const void *data, size_t bytes, const memfit_host *host, memfit_trace **trace,
                                memfit_error *err)
{
    if (!bytes)
        return mf_fail(err, MEMFIT_DAMAGED, "the file is empty");
    const unsigned char *p = data;
    if (is_binary(data, bytes))
        return mf_trace_read_file(data, bytes, host, trace, err);
    if (p[0] == 0x80 || p[0] == '(' || p[0] == '}')
        return mf_trace_read_torch(data, bytes, host, trace, err);
    if (memchr(p, 0, bytes < 512 ? bytes : 512))
        return mf_fail(err, MEMFIT_DAMAGED,
                       "byte 0: this is not a trace\ngive a memfit trace, a CSV trace or a PyTorch memory snapshot");
    return mf_trace_read_csv(data, bytes, host, trace, err);
}

memfit_status memfit_trace_load(const char *path, const memfit_host *host, memfit_trace **trace, memfit_error *err)
{
    mf_mapping mapping;
    memfit_status status = mf_os_map_file(path, &mapping, err);
    if (status)
        return status;
    status = memfit_trace_read(mapping.data, (size_t)mapping.bytes, host, trace, err);
    mf_os_unmap_file(&mapping);
    return status ? mf_error_prefix(err, status, "%s", path) : MEMFIT_OK;
}

memfit_status mf_trace_check(const memfit_trace *trace, memfit_error *err)
{
    const memfit_trace_info *info = &trace->info;
    mf_arena scratch;
    mf_arena_init(&scratch, trace->arena.host);
    /* By buffer: its bytes + 1 while alive, UINT64_MAX after. */
    uint64_t *state = MF_NEW_ARRAY(&scratch, uint64_t, info->buffers + 1);
    if (!state)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to check a trace");
    uint64_t now = 0, peak = 0, time = 0, bad = UINT64_MAX;
    for (uint64_t i = 0; i < info->events && bad == UINT64_MAX; i++) {
        const memfit_event *e = &trace->events[i];
        bool about_buffer = e->op >= MEMFIT_EVENT_ALLOC && e->op <= MEMFIT_EVENT_FREE_ASKED;
        if (e->time_ns < time || e->name >= info->names || e->kind >= MEMFIT_KIND_COUNT ||
            (about_buffer && e->id >= info->buffers))
            bad = i;
        else if (e->op == MEMFIT_EVENT_ALLOC && state[e->id])
            bad = i;
        else if (e->op == MEMFIT_EVENT_FREE && state[e->id] != e->bytes + 1ull)
            bad = i;
        else if (e->op == MEMFIT_EVENT_ALLOC)
            state[e->id] = e->bytes + 1ull, now += e->bytes;
        else if (e->op == MEMFIT_EVENT_FREE)
            state[e->id] = UINT64_MAX, now -= e->bytes;
        peak = now > peak ? now : peak;
        time = e->time_ns;
    }
    mf_arena_destroy(&scratch);
    if (bad != UINT64_MAX)
        return mf_fail(err, MEMFIT_INTERNAL, "event %" PRIu64 " of a loaded trace contradicts those before it", bad);
    if (peak != info->peak_live_bytes || now != info->end_live_bytes)
        return mf_fail(err, MEMFIT_INTERNAL, "a loaded trace's totals are wrong");
    return MEMFIT_OK;
}
