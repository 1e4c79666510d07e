/*
 * trace_merge.c: the traces of several processes as one. See trace_merge.h.
 *
 * Buffers of different files are different buffers whatever their numbers: a file's number goes into the upper bits. The
 * traces are loaded one after another, so that at most one of them is in memory beside what was merged.
 */
#include "trace/trace_merge.h"

#include "base/error.h"
#include "trace/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct one_file {
    const char *name, *path;
    uint64_t began_us; /* 0: not said */
} one_file;

/* What a file gave to the whole: events from .. to, of `buffers` buffers; when its process ended. */
typedef struct part {
    uint64_t from, to, buffers, ended_ns;
} part;

typedef struct files {
    mf_arena arena;
    const char *folder;
    const char *run; /* only RUN.PID.CARD; NULL: every trace */
    bool by_order;   /* processes have numbers from 1, not their own */
    one_file list[MF_TRACE_MOST_MERGED];
    part parts[MF_TRACE_MOST_MERGED];
    uint32_t count, left_out;
} files;

/* A time beyond all sense (the year 2262, where nanoseconds end) is no time. */
static const uint64_t latest_s = 9223372036;

/* The number of a process when the name is RUN.PID.CARD; NULL when it is not. */
static const char *process_of(const char *run, const char *name)
{
    size_t n = strlen(run), pid, card;
    if (strncmp(name, run, n) != 0 || name[n] != '.')
        return NULL;
    name += n + 1;
    pid = strspn(name, "0123456789");
    card = name[pid] == '.' ? strspn(name + pid + 1, "0123456789") : 0;
    return pid && card && !name[pid + 1 + card] ? name : NULL;
}

/* When a file of ours began; 0: not said. */
static uint64_t began_us(const char *path)
{
    mf_trace_header h;
    bool ours = mf_os_peek(path, &h, sizeof h) == sizeof h && memcmp(h.magic, MF_TRACE_MAGIC, sizeof h.magic) == 0;
    return ours && h.unix_time_us / 1000000 < latest_s ? h.unix_time_us : 0;
}

static bool is_called_trace(const char *name)
{
    static const char *const ends[] = {".trace", ".csv", ".pickle", ".pkl"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* By its content or by its name: one that is damaged is refused later, not passed over in silence. */
static bool may_be_trace(const char *name, const char *path)
{
    char head[64];
    return is_called_trace(name) || memfit_trace_begins(head, (size_t)mf_os_peek(path, head, sizeof head));
}

static memfit_status add_file(void *ctx, const char *name, mf_entry_type type, memfit_error *err)
{
    files *f = ctx;
    if (name[0] == '.' || type != MF_ENTRY_FILE || (f->run && !process_of(f->run, name)))
        return MEMFIT_OK;
    one_file one = {mf_arena_strdup(&f->arena, name), mf_arena_printf(&f->arena, "%s/%s", f->folder, name), 0};
    if (!one.name || !one.path)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the names of traces");
    if (!f->run && !may_be_trace(name, one.path)) {
        f->left_out++;
        return MEMFIT_OK;
    }
    if (f->count == MF_TRACE_MOST_MERGED)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "more than %d traces in one folder", MF_TRACE_MOST_MERGED);
    one.began_us = began_us(one.path);
    f->list[f->count++] = one;
    return MEMFIT_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const one_file *)a)->name, ((const one_file *)b)->name);
}

static int by_begin(const void *a, const void *b)
{
    const one_file *x = a, *y = b;
    return x->began_us != y->began_us ? (x->began_us > y->began_us) - (x->began_us < y->began_us) : by_name(a, b);
}

/* The name before ".trace", ".csv": what tells one process from another. */
static int stem_length(const char *name)
{
    const char *point = strrchr(name, '.');
    size_t n = point && point > name ? (size_t)(point - name) : strlen(name);
    return (int)(n < 64 ? n : 64);
}

static memfit_status merge_one(mf_trace_builder *b, const memfit_trace *t, const char *label, uint64_t number,
                               uint64_t offset_ns, bool *steps, memfit_error *err)
{
    uint64_t count;
    const memfit_event *events = memfit_trace_events(t, &count);
    uint32_t *names = mf_host_zalloc(b->trace->arena.host, t->info.names * sizeof *names);
    memfit_status status = names ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a trace's names");
    bool marks = false;
    for (uint32_t i = *label ? 0 : 1; !status && i < t->info.names; i++) {
        char text[MF_TRACE_MOST_NAME + 80];
        int n = snprintf(text, sizeof text, "%s%s%s", label, *label ? ": " : "", i ? t->names[i] : "(no name)");
        status = mf_trace_builder_name(b, text, (size_t)n, &names[i], err);
    }
    for (uint64_t i = 0; !status && i < count; i++) {
        memfit_event e = events[i];
        bool mark = e.op == MEMFIT_EVENT_MARK;
        e.time_ns += offset_ns;
        e.id |= number << 48;
        if (mark) /* a step of one process is a step of the job: the name stays as it is */
            status = mf_trace_builder_name(b, t->names[e.name], strlen(t->names[e.name]), &e.name, err);
        else
            e.name = names[e.name];
        if (!status)
            status = mf_trace_builder_stream(b, e.stream, &e.stream, err);
        marks |= mark;
        if (!status && !(mark && *steps))
            status = mf_trace_builder_add(b, &e, i, err);
    }
    *steps |= marks;
    mf_host_free(b->trace->arena.host, names, t->info.names * sizeof *names);
    return status;
}

/* What stands before the names of a file's owners. */
static void label_of(const files *f, uint32_t i, char *label, size_t bytes)
{
    const char *name = f->list[i].name;
    if (f->count == 1)
        label[0] = 0; /* nothing to tell apart */
    else if (f->run && f->by_order)
        snprintf(label, bytes, "process %u", i + 1);
    else if (f->run)
        snprintf(label, bytes, "process %d", atoi(process_of(f->run, name)));
    else
        snprintf(label, bytes, "%.*s", stem_length(name), name);
}

/* A process that has ended holds nothing, whatever it did not give back by itself. */
static memfit_status close_part(mf_trace_builder *b, const part *p, memfit_error *err)
{
    const uint64_t number = UINT64_C(0xffff) << 48;
    bool *freed = mf_host_zalloc(b->trace->arena.host, p->buffers + 1);
    memfit_status status = freed ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to merge traces");
    for (uint64_t i = p->from; !status && i < p->to; i++)
        if (b->trace->events[i].op == MEMFIT_EVENT_FREE)
            freed[b->trace->events[i].id & ~number] = true;
    for (uint64_t i = p->from; !status && i < p->to; i++) {
        memfit_event e = b->trace->events[i]; /* adding moves them */
        if (e.op != MEMFIT_EVENT_ALLOC || freed[e.id & ~number])
            continue;
        e.op = MEMFIT_EVENT_FREE;
        e.time_ns = p->ended_ns;
        status = mf_trace_builder_add(b, &e, i, err);
    }
    mf_host_free(b->trace->arena.host, freed, p->buffers + 1);
    return status;
}

/* The last to end keep what they held, as a single process does: that is what a report calls held at the end. */
static memfit_status close_parts(const files *f, mf_trace_builder *b, memfit_error *err)
{
    uint64_t last = 0, count = b->trace->info.events;
    for (uint64_t i = 0; i < count; i++)
        last = b->trace->events[i].time_ns > last ? b->trace->events[i].time_ns : last;
    memfit_status status = MEMFIT_OK;
    for (uint32_t i = 0; !status && i < f->count; i++)
        if (f->parts[i].ended_ns && f->parts[i].ended_ns < last)
            status = close_part(b, &f->parts[i], err);
    return status;
}

/* When its process ended, as the whole counts time: not before its last event, whatever the clocks say. */
static uint64_t end_of(const memfit_trace *t, uint64_t offset_ns)
{
    uint64_t end = t->ended_ns, count = t->info.events;
    if (end && count && t->events[count - 1].time_ns > end)
        end = t->events[count - 1].time_ns;
    return end ? end + offset_ns : 0;
}

static memfit_status merge_files(files *f, const memfit_host *host, mf_trace_builder *b, memfit_error *err)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < f->count; i++)
        first = f->list[i].began_us && f->list[i].began_us < first ? f->list[i].began_us : first;
    memfit_status status = MEMFIT_OK;
    bool steps = false;
    for (uint32_t i = 0; !status && i < f->count; i++) {
        char label[96];
        memfit_trace *one = NULL;
        uint64_t us = f->list[i].began_us;
        label_of(f, i, label, sizeof label);
        status = memfit_trace_load(f->list[i].path, host, &one, err);
        if (!status) {
            uint64_t offset_ns = us ? (us - first) * 1000 : 0;
            f->parts[i] = (part){b->trace->info.events, 0, one->info.buffers, end_of(one, offset_ns)};
            status = merge_one(b, one, label, i, offset_ns, &steps, err);
            f->parts[i].to = b->trace->info.events;
        }
        memfit_trace_destroy(one);
    }
    return status ? status : close_parts(f, b, err);
}

static memfit_status nothing_there(const files *f, memfit_error *err)
{
    if (!f->left_out)
        return mf_fail(err, MEMFIT_NOT_FOUND, "%s: the folder holds no files\na folder of traces has one a process",
                       f->folder);
    return mf_fail(err, MEMFIT_NOT_FOUND,
                   "%s: none of the folder's %u files is a trace\na folder of traces has one a process: memfit traces, "
                   "PyTorch snapshots (.pickle) or CSV traces",
                   f->folder, f->left_out);
}

static memfit_status merge(const char *folder, const char *run, bool by_order, const memfit_host *host,
                           memfit_trace **trace, uint32_t *left_out, memfit_error *err)
{
    files *f = mf_host_zalloc(host, sizeof *f);
    if (!f)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to merge traces");
    mf_arena_init(&f->arena, host);
    f->folder = folder;
    f->run = run;
    f->by_order = by_order;
    memfit_status status = mf_os_list_folder(folder, add_file, f, err);
    if (!status && !f->count)
        status = nothing_there(f, err);
    mf_trace_builder b = {0};
    if (!status) {
        qsort(f->list, f->count, sizeof *f->list, run ? by_begin : by_name);
        status = mf_trace_builder_begin(&b, host, MEMFIT_TRACE_MEMFIT, MF_TRACE_REPAIR, "event", 1024, err);
    }
    if (!status) {
        status = merge_files(f, host, &b, err);
        if (status)
            mf_trace_builder_abandon(&b);
        else
            status = mf_trace_builder_end(&b, trace, err);
    }
    if (!status && left_out)
        *left_out = f->left_out;
    mf_arena_destroy(&f->arena);
    mf_host_free(host, f, sizeof *f);
    return status;
}

memfit_status mf_trace_merge_folder(const char *folder, const memfit_host *host, memfit_trace **trace,
                                    uint32_t *left_out, memfit_error *err)
{
    return merge(folder, NULL, false, host, trace, left_out, err);
}

/* Folder and name of a path. */
static const char *split_path(const char *path, char folder[MF_MOST_PATH])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= MF_MOST_PATH)
        n = 0;
    if (slash)
        snprintf(folder, MF_MOST_PATH, "%.*s/", (int)n, path);
    else
        snprintf(folder, MF_MOST_PATH, ".");
    return slash ? slash + 1 : path;
}

memfit_status mf_trace_merge_run(const char *path, bool by_order, const memfit_host *host, memfit_trace **trace,
                                 memfit_error *err)
{
    char folder[MF_MOST_PATH];
    const char *run = split_path(path, folder);
    return merge(folder, run, by_order, host, trace, NULL, err);
}

static memfit_status find_run(void *ctx, const char *name, mf_entry_type type, memfit_error *err)
{
    const char **run = ctx;
    (void)err;
    if (*run && type == MF_ENTRY_FILE && process_of(*run, name))
        *run = NULL; /* there is one */
    return MEMFIT_OK;
}

bool mf_trace_is_run(const char *path)
{
    char folder[MF_MOST_PATH];
    mf_os_place place;
    const char *run = split_path(path, folder);
    if (mf_os_find_place(path, &place) && place.type != MF_PLACE_NONE)
        return false;
    return mf_os_list_folder(folder, find_run, &run, NULL) == MEMFIT_OK && !run;
}
