/*
 * report.c: reads a trace and finds its peak and its owners. See report.h.
 *
 * Walks over the events, each in one direction and with memory by buffers and owners only:
 *   1  the busiest device, its totals, its peak, refusals, limits, reserved bytes
 *   2  every buffer's owner; each owner's largest, its bytes times time, and what it held at the peak
 *   3  steps and growth (report_steps.c)
 * An owner's bytes times time is the sum over its buffers of bytes times (end - begin): begins are subtracted and ends
 * added as they come, in 128 bits, so nothing is rounded before the end.
 */
#include "answer/report_parts.h"

#include "base/error.h"
#include "base/os.h"
#include "base/text.h"
#include "trace/trace_merge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char no_memory[] = "no memory to report on %" PRIu64 " events";

/* ---- the device and its totals ---------------------------------------------------------------------------- */

static void choose_device(mf_report *r)
{
    uint64_t counts[256] = {0};
    for (uint64_t i = 0; i < r->event_count; i++)
        counts[r->events[i].device]++;
    for (unsigned d = 0; d < 256; d++) {
        r->device_count += counts[d] > 0;
        if (counts[d] > counts[r->device])
            r->device = d;
    }
}

static void note_fail(mf_report *r, uint64_t i)
{
    const memfit_event *e = &r->events[i];
    if (r->fail_count < MF_REPORT_FAILS)
        r->fails[r->fail_count] = (mf_report_fail){i, e->time_ns, e->bytes, memfit_trace_name(r->trace, e->name)};
    r->fail_count++;
}

/* A recording that began late missed what was mapped before: at least so much that all live bytes have a place. */
static void find_totals(mf_report *r)
{
    uint64_t live = 0;
    int64_t mapped = 0, mapped_peak = 0, missing = 0;
    bool maps = false;
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (e->device != r->device)
            continue;
        switch (e->op) {
        case MEMFIT_EVENT_ALLOC:
            r->buffers++;
            live += e->bytes;
            if (live > r->peak_bytes) {
                r->peak_bytes = live;
                r->peak_event = i;
                r->peak_ns = e->time_ns;
            }
            break;
        case MEMFIT_EVENT_FREE:
            live -= e->bytes;
            break;
        case MEMFIT_EVENT_MAP:
            maps = true;
            mapped += (int64_t)e->bytes;
            mapped_peak = mapped > mapped_peak ? mapped : mapped_peak;
            break;
        case MEMFIT_EVENT_UNMAP:
            maps = true;
            mapped -= (int64_t)e->bytes;
            break;
        case MEMFIT_EVENT_LIMIT:
            if (e->bytes && (!r->limit_bytes || e->bytes < r->limit_bytes))
                r->limit_bytes = e->bytes;
            break;
        case MEMFIT_EVENT_FAIL:
            note_fail(r, i);
            break;
        default:
            break;
        }
        r->moved += mf_report_moves(r, e);
        /* Between a mapping and the buffers in it the order is the recorder's: only what stands at the next event counts. */
        if (e->op == MEMFIT_EVENT_ALLOC && (int64_t)live - mapped > missing)
            missing = (int64_t)live - mapped;
        if (mapped < 0 && -mapped > missing)
            missing = -mapped;
    }
    r->end_bytes = live;
    r->duration_ns = r->info.duration_ns;
    if (maps) {
        r->reserved_before = (uint64_t)missing;
        r->reserved_peak_bytes = (uint64_t)(mapped_peak + missing);
    }
}

/* ---- owners ----------------------------------------------------------------------------------------------- */

/* Owners by kind and name, or by kind and size; a hash table of their numbers. */
typedef struct owner_table {
    uint32_t *slots; /* number + 1; 0: empty */
    uint64_t *keys;  /* by owner: name or size */
    uint32_t mask;
    size_t capacity;
} owner_table;

static uint32_t hash_key(uint64_t key, unsigned kind)
{
    uint64_t h = (key * MEMFIT_KIND_COUNT + kind) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(h >> 32);
}

static bool grow_owners(mf_report *r, owner_table *t)
{
    size_t more = t->capacity ? t->capacity * 2 : 256;
    mf_report_owner *owners = MF_NEW_ARRAY(&r->arena, mf_report_owner, more);
    uint64_t *keys = owners ? MF_NEW_ARRAY(&r->arena, uint64_t, more) : NULL;
    uint32_t *slots = keys ? MF_NEW_ARRAY(&r->arena, uint32_t, 2 * more) : NULL;
    if (!slots || more > UINT32_MAX / 4)
        return false;
    t->mask = (uint32_t)(2 * more - 1);
    for (uint32_t i = 0; i < r->owner_count; i++) {
        owners[i] = r->owners[i];
        keys[i] = t->keys[i];
        uint32_t at = hash_key(keys[i], owners[i].kind) & t->mask;
        while (slots[at])
            at = (at + 1) & t->mask;
        slots[at] = i + 1;
    }
    r->owners = owners;
    t->keys = keys;
    t->slots = slots;
    t->capacity = more;
    return true;
}

static uint32_t owner_of(mf_report *r, owner_table *t, const memfit_event *e)
{
    if (r->owner_count == t->capacity && !grow_owners(r, t))
        return MF_REPORT_NO_OWNER;
    uint64_t key = r->by_size ? e->bytes : e->name;
    uint32_t at = hash_key(key, e->kind) & t->mask;
    for (; t->slots[at]; at = (at + 1) & t->mask) {
        uint32_t i = t->slots[at] - 1;
        if (t->keys[i] == key && r->owners[i].kind == (memfit_kind)e->kind)
            return i;
    }
    t->slots[at] = ++r->owner_count;
    t->keys[r->owner_count - 1] = key;
    r->owners[r->owner_count - 1] = (mf_report_owner){.kind = (memfit_kind)e->kind};
    return r->owner_count - 1;
}

/* Which owner each buffer has. */
static memfit_status find_owners(mf_report *r, owner_table *t, memfit_error *err)
{
    r->by_size = true;
    for (uint64_t i = 0; i < r->event_count && r->by_size; i++)
        r->by_size = r->events[i].op != MEMFIT_EVENT_ALLOC || !r->events[i].name;
    r->owner_of = MF_NEW_ARRAY(&r->arena, uint32_t, r->info.buffers + 1);
    if (!r->owner_of)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (e->op != MEMFIT_EVENT_ALLOC || e->device != r->device)
            continue;
        uint32_t owner = owner_of(r, t, e);
        if (owner == MF_REPORT_NO_OWNER)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
        r->owner_of[e->id] = owner;
    }
    return MEMFIT_OK;
}

/* What the walk knows of an owner beside what the report keeps. */
typedef struct running {
    uint64_t live;
    unsigned __int128 byte_ns;
} running;

static memfit_status walk_owners(mf_report *r, memfit_error *err)
{
    mf_arena scratch;
    mf_arena_init(&scratch, r->arena.host);
    running *now = MF_NEW_ARRAY(&scratch, running, r->owner_count + 1);
    uint64_t *began = MF_NEW_ARRAY(&scratch, uint64_t, r->info.buffers + 1);
    memfit_status status = now && began ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
    for (uint64_t i = 0; !status && i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (!mf_report_moves(r, e))
            continue;
        uint32_t k = r->owner_of[e->id];
        mf_report_owner *o = &r->owners[k];
        unsigned __int128 area = (unsigned __int128)e->bytes * e->time_ns;
        if (e->op == MEMFIT_EVENT_ALLOC) {
            now[k].live += e->bytes;
            now[k].byte_ns -= area;
            began[e->id] = e->time_ns;
            o->most_bytes = now[k].live > o->most_bytes ? now[k].live : o->most_bytes;
        } else {
            now[k].live -= e->bytes;
            now[k].byte_ns += area;
            uint64_t held = e->time_ns - began[e->id];
            o->longest_ns = held > o->longest_ns ? held : o->longest_ns;
            began[e->id] = UINT64_MAX;
        }
        if (i == r->peak_event)
            for (uint32_t j = 0; j < r->owner_count; j++) {
                r->owners[j].peak_bytes = now[j].live;
                r->kind_bytes[r->owners[j].kind] += now[j].live;
            }
    }
    for (uint64_t i = 0; !status && i < r->event_count; i++) { /* what is alive at the end was held until then */
        const memfit_event *e = &r->events[i];
        if (e->op != MEMFIT_EVENT_ALLOC || e->device != r->device || began[e->id] == UINT64_MAX)
            continue;
        mf_report_owner *o = &r->owners[r->owner_of[e->id]];
        uint64_t held = r->duration_ns - began[e->id];
        o->longest_ns = held > o->longest_ns ? held : o->longest_ns;
    }
    for (uint32_t k = 0; !status && k < r->owner_count; k++) {
        r->owners[k].end_bytes = now[k].live;
        now[k].byte_ns += (unsigned __int128)now[k].live * r->duration_ns;
        r->owners[k].byte_seconds = (double)now[k].byte_ns / 1e9;
    }
    mf_arena_destroy(&scratch);
    return status;
}

/* Names as they are shown. */
static memfit_status name_owners(mf_report *r, const owner_table *t, bool with_names, memfit_error *err)
{
    for (uint32_t i = 0; i < r->owner_count; i++) {
        const char *name = r->by_size ? "" : memfit_trace_name(r->trace, (uint32_t)t->keys[i]);
        char count[32], shorter[512];
        if (r->by_size) {
            name = mf_arena_printf(&r->arena, "buffers of %s bytes", mf_format_count(t->keys[i], count, sizeof count));
        } else if (!*name) {
            name = "(no name)";
        } else if (!with_names && strlen(name) < sizeof shorter) {
            mf_report_hide_folders(name, shorter);
            name = strcmp(name, shorter) == 0 ? name : mf_arena_strdup(&r->arena, shorter);
        }
        if (!name)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
        r->owners[i].name = name;
    }
    for (uint64_t i = 0; i < r->fail_count && i < MF_REPORT_FAILS; i++) {
        char shorter[512];
        if (with_names || strlen(r->fails[i].name) >= sizeof shorter)
            continue;
        mf_report_hide_folders(r->fails[i].name, shorter);
        if (!(r->fails[i].name = mf_arena_strdup(&r->arena, shorter)))
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
    }
    return MEMFIT_OK;
}

/* ---- order ------------------------------------------------------------------------------------------------ */

typedef struct ranked {
    mf_report_owner owner;
    uint32_t old;
} ranked;

static int by_peak(const void *a, const void *b)
{
    const mf_report_owner *x = &((const ranked *)a)->owner, *y = &((const ranked *)b)->owner;
    if (x->peak_bytes != y->peak_bytes)
        return x->peak_bytes < y->peak_bytes ? 1 : -1;
    if (x->most_bytes != y->most_bytes)
        return x->most_bytes < y->most_bytes ? 1 : -1;
    int names = strcmp(x->name, y->name);
    return names ? names : (int)x->kind - (int)y->kind;
}

static memfit_status sort_owners(mf_report *r, memfit_error *err)
{
    mf_arena scratch;
    mf_arena_init(&scratch, r->arena.host);
    ranked *list = MF_NEW_ARRAY(&scratch, ranked, r->owner_count + 1);
    uint32_t *place = MF_NEW_ARRAY(&scratch, uint32_t, r->owner_count + 1);
    memfit_status status = list && place ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
    for (uint32_t i = 0; !status && i < r->owner_count; i++)
        list[i] = (ranked){r->owners[i], i};
    if (!status)
        qsort(list, r->owner_count, sizeof *list, by_peak);
    for (uint32_t i = 0; !status && i < r->owner_count; i++) {
        r->owners[i] = list[i].owner;
        place[list[i].old] = i;
    }
    for (uint64_t i = 0; !status && i < r->info.buffers; i++)
        r->owner_of[i] = place[r->owner_of[i]];
    mf_arena_destroy(&scratch);
    return status;
}

typedef struct weighed {
    double byte_seconds;
    uint32_t owner;
} weighed;

static int by_weight(const void *a, const void *b)
{
    const weighed *x = a, *y = b;
    if (x->byte_seconds != y->byte_seconds)
        return x->byte_seconds < y->byte_seconds ? 1 : -1;
    return x->owner < y->owner ? -1 : x->owner > y->owner;
}

static memfit_status rank_held(mf_report *r, memfit_error *err)
{
    mf_arena scratch;
    mf_arena_init(&scratch, r->arena.host);
    weighed *list = MF_NEW_ARRAY(&scratch, weighed, r->owner_count + 1);
    r->held = MF_NEW_ARRAY(&r->arena, uint32_t, r->owner_count + 1);
    memfit_status status = list && r->held ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, no_memory, r->event_count);
    for (uint32_t i = 0; !status && i < r->owner_count; i++)
        list[i] = (weighed){r->owners[i].byte_seconds, i};
    if (!status)
        qsort(list, r->owner_count, sizeof *list, by_weight);
    for (uint32_t i = 0; !status && i < r->owner_count; i++)
        r->held[i] = list[i].owner;
    mf_arena_destroy(&scratch);
    return status;
}

/* ---- names without folders -------------------------------------------------------------------------------- */

static bool opens_path(char before)
{
    return before == 0 || strchr(" \t(\"'=:<>,;[{|", before) != NULL;
}

/* A path begins with / or with a letter, a colon and a backslash, where a word begins; it ends where a word ends. Of its
 * parts the last one stays. Names of layers such as conv/kernel do not begin so. */
void mf_report_hide_folders(const char *text, char *out)
{
    char before = 0;
    while (*text) {
        bool unix_path = *text == '/' && opens_path(before);
        bool drive =
            ((*text | 32) >= 'a' && (*text | 32) <= 'z') && text[1] == ':' && text[2] == '\\' && opens_path(before);
        bool home = *text == '~' && opens_path(before);
        if (!unix_path && !drive && !home) {
            *out++ = before = *text++;
            continue;
        }
        size_t n = strcspn(text, " \t()\"'<>,;[]{}|"), last = 0;
        for (size_t i = 0; i + 1 < n; i++)
            if (text[i] == '/' || text[i] == '\\')
                last = i + 1;
        memcpy(out, text + last, n - last);
        out += n - last;
        before = n ? text[n - 1] : before;
        text += n;
    }
    *out = 0;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static memfit_status build(mf_report *r, bool with_names, memfit_error *err)
{
    r->info = (memfit_trace_info)MEMFIT_TRACE_INFO;
    memfit_status status = memfit_trace_describe(r->trace, &r->info, err);
    if (status)
        return status;
    r->events = memfit_trace_events(r->trace, &r->event_count);
    choose_device(r);
    find_totals(r);
    if (!r->buffers)
        return mf_fail(err, MEMFIT_DAMAGED, "the trace allocates nothing");
    owner_table owners = {0};
    status = find_owners(r, &owners, err);
    if (!status)
        status = walk_owners(r, err);
    if (!status)
        status = name_owners(r, &owners, with_names, err);
    if (!status)
        status = sort_owners(r, err);
    if (!status)
        status = rank_held(r, err);
    if (!status)
        status = mf_report_find_steps(r, err);
    return status ? status : mf_report_find_growth(r, err);
}

memfit_status mf_report_open(const char *path, const mf_report_options *options, mf_report **report, memfit_error *err)
{
    mf_report *r = mf_host_zalloc(options->host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a report");
    r->with_names = options->with_names;
    mf_arena_init(&r->arena, options->host);
    memfit_status status =
        mf_os_is_folder(path)   ? mf_trace_merge_folder(path, options->host, &r->trace, &r->left_out, err)
        : mf_trace_is_run(path) ? mf_trace_merge_run(path, options->to_compare, options->host, &r->trace, err)
                                : memfit_trace_load(path, options->host, &r->trace, err);
    if (!status) {
        char shorter[MF_MOST_PATH];
        size_t n = strlen(path);
        while (n > 1 && path[n - 1] == '/')
            n--;
        const char *slash = memrchr(path, '/', n);
        const char *begin = options->with_names || !slash || n == 1 ? path : slash + 1;
        n -= (size_t)(begin - path);
        snprintf(shorter, sizeof shorter, "%.*s", (int)(n < sizeof shorter ? n : sizeof shorter - 1), begin);
        r->title = mf_arena_strdup(&r->arena, shorter);
        status = r->title ? build(r, options->with_names, err)
                          : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a report");
        if (status)
            mf_error_prefix(err, status, "%s", path);
    }
    if (status)
        mf_report_close(r);
    else
        *report = r;
    return status;
}

void mf_report_close(mf_report *report)
{
    if (!report)
        return;
    const memfit_host *host = report->arena.host;
    memfit_trace_destroy(report->trace);
    mf_arena_destroy(&report->arena);
    mf_host_free(host, report, sizeof *report);
}

/* ---- questions -------------------------------------------------------------------------------------------- */

uint32_t mf_report_step_of(const mf_report *r, uint64_t event)
{
    uint32_t low = 0, high = r->step_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (r->steps[middle].event <= event)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void mf_report_curve(const mf_report *r, unsigned count, uint64_t *live, uint64_t *reserved)
{
    uint64_t now = 0, held = r->reserved_before;
    unsigned column = 0;
    double scale = r->duration_ns ? (double)count / (double)r->duration_ns : 0;
    memset(live, 0, count * sizeof *live);
    if (reserved)
        memset(reserved, 0, count * sizeof *reserved);
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        unsigned at = (unsigned)((double)e->time_ns * scale);
        at = at >= count ? count - 1 : at;
        for (; column < at; column++) { /* what was there goes on into the next column */
            live[column + 1] = now;
            if (reserved)
                reserved[column + 1] = held;
        }
        if (e->device != r->device)
            continue;
        if (mf_report_moves(r, e))
            now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        else if (e->op == MEMFIT_EVENT_MAP || e->op == MEMFIT_EVENT_UNMAP)
            held += e->op == MEMFIT_EVENT_MAP ? e->bytes : 0 - e->bytes;
        live[at] = now > live[at] ? now : live[at];
        if (reserved)
            reserved[at] = held > reserved[at] ? held : reserved[at];
    }
    for (; column + 1 < count; column++) {
        live[column + 1] = now;
        if (reserved)
            reserved[column + 1] = held;
    }
}
