/*
 * oom_trace.c: a failure that was recorded: PyTorch's memory snapshots and memfit's own traces.
 *
 *     events  .............................. FAIL (the last)
 *     live    what was allocated and not freed up to there, by owner: a stack of the program
 *     replay  the same requests, and then the one that failed, in a memfit pool on the device that only counts
 *
 * The replay tells fragmentation from shortage: if the pool needs no more than the framework had taken from the card
 * already, plus what it could still have taken, the bytes were there. The device has no memory behind it, so that any
 * trace can be replayed anywhere.
 *
 * Growth is told from the lowest points: the events are cut into windows, and what is live at the lowest point of each
 * rises from window to window when something is kept. Peaks say nothing: the first step of a training often has the
 * highest.
 */
#include "diagnose/oom_log.h"
#include "diagnose/oom_text.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/memory.h"
#include "trace/pickle.h"
#include "base/text.h"
#include "memfit/device.h"
#include "memfit/pool.h"
#include "memfit/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WINDOWS = 8, LEAST_FOR_GROWTH = 64, PAGE = 2 << 20, MEMORY_FACTOR = 96 };

typedef struct story {
    const memfit_trace *trace;
    memfit_trace_info info;
    const memfit_event *events;
    uint64_t count; /* events up to the failure, or all */
    const memfit_event *failure;
    unsigned device;    /* where it failed, else the busiest */
    uint64_t in_use;    /* at the failure */
    uint64_t reserved;  /* taken from the card at the failure */
    uint64_t limit;     /* memfit's traces */
    uint64_t card_free; /* PyTorch's snapshots; UINT64_MAX unknown */
    uint64_t needed;    /* by memfit's pool */
    unsigned rises;     /* of WINDOWS - 1 */
    uint64_t low_first, low_last;
    mf_arena arena;
} story;

/* ---- what happened ---------------------------------------------------------------------------------------- */

static void find_failure(story *s)
{
    uint64_t counts[256] = {0};
    for (uint64_t i = 0; i < s->count; i++) {
        counts[s->events[i].device]++;
        if (s->events[i].op == MEMFIT_EVENT_FAIL)
            s->failure = &s->events[i];
    }
    for (unsigned d = 1; d < 256; d++)
        if (counts[d] > counts[s->device])
            s->device = d;
    if (s->failure) {
        s->device = s->failure->device;
        s->count = (uint64_t)(s->failure - s->events);
    }
}

/* Live bytes, and the lowest point of each window. */
static void walk(story *s)
{
    uint64_t live = 0, mapped = 0, low[WINDOWS], moves = 0, at = 0;
    for (unsigned w = 0; w < WINDOWS; w++)
        low[w] = UINT64_MAX;
    for (uint64_t i = 0; i < s->count; i++)
        moves += s->events[i].device == s->device && s->events[i].op == MEMFIT_EVENT_ALLOC;
    for (uint64_t i = 0; i < s->count; i++) {
        const memfit_event *e = &s->events[i];
        if (e->device != s->device)
            continue;
        if (e->op == MEMFIT_EVENT_ALLOC) {
            unsigned w = (unsigned)(at++ * WINDOWS / (moves ? moves : 1));
            low[w] = live < low[w] ? live : low[w];
            live += e->bytes;
        } else if (e->op == MEMFIT_EVENT_FREE) {
            live -= e->bytes < live ? e->bytes : live;
        } else if (e->op == MEMFIT_EVENT_MAP) {
            mapped += e->bytes;
        } else if (e->op == MEMFIT_EVENT_UNMAP) {
            mapped -= e->bytes < mapped ? e->bytes : mapped;
        } else if (e->op == MEMFIT_EVENT_LIMIT) {
            s->limit = e->bytes;
        }
    }
    s->in_use = live;
    s->reserved = mapped > live ? mapped : live;
    if (moves < LEAST_FOR_GROWTH)
        return;
    for (unsigned w = 1; w < WINDOWS; w++)
        s->rises += low[w] > low[w - 1];
    s->low_first = low[1]; /* window 0 begins with nothing */
    s->low_last = low[WINDOWS - 1];
}

/* Says whose bytes rose most since a quarter of the events. */
static void name_growth(const story *s, memfit_diagnosis *d, const uint64_t *early, const uint64_t *late)
{
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t n = 1; n < s->info.names; n++)
        if (late[n] > early[n] && late[n] - early[n] > most) {
            most = late[n] - early[n];
            best = n;
        }
    char a[24];
    size_t used = strlen(d->evidence);
    if (best)
        snprintf(d->evidence + used, sizeof d->evidence - used, "; %s of it by %.120s",
                 memfit_size_format(most, a, sizeof a), memfit_trace_name(s->trace, best));
}

/* What is live at the failure, by name, largest first. */
static memfit_status list_owners(story *s, memfit_diagnosis *d, memfit_error *err)
{
    uint64_t *by_name = MF_NEW_ARRAY(&s->arena, uint64_t, s->info.names + 1);
    uint64_t *blocks = MF_NEW_ARRAY(&s->arena, uint64_t, s->info.names + 1);
    uint64_t *early = MF_NEW_ARRAY(&s->arena, uint64_t, s->info.names + 1); /* after a quarter of the events */
    uint32_t *name_of = MF_NEW_ARRAY(&s->arena, uint32_t, s->info.buffers + 1);
    if (!by_name || !blocks || !early || !name_of)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the owners of %" PRIu64 " buffers", s->info.buffers);
    memset(by_name, 0, (s->info.names + 1) * sizeof *by_name);
    memset(early, 0, (s->info.names + 1) * sizeof *early);
    memset(blocks, 0, (s->info.names + 1) * sizeof *blocks);
    memset(name_of, 0, (s->info.buffers + 1) * sizeof *name_of);
    for (uint64_t i = 0; i < s->count; i++) {
        const memfit_event *e = &s->events[i];
        if (i == s->count / 4)
            memcpy(early, by_name, (s->info.names + 1) * sizeof *early);
        if (e->device != s->device)
            continue;
        if (e->op == MEMFIT_EVENT_ALLOC) {
            name_of[e->id] = e->name;
            by_name[e->name] += e->bytes;
            blocks[e->name]++;
        } else if (e->op == MEMFIT_EVENT_FREE && blocks[name_of[e->id]]) {
            by_name[name_of[e->id]] -= e->bytes;
            blocks[name_of[e->id]]--;
        }
    }
    if (d->cause == MEMFIT_DIAGNOSIS_GROWING)
        name_growth(s, d, early, by_name);
    for (unsigned k = 0; k + 2 < MEMFIT_DIAGNOSIS_OWNERS; k++) {
        uint32_t best = 0;
        for (uint32_t n = 0; n < s->info.names; n++)
            best = by_name[n] > by_name[best] ? n : best;
        if (!by_name[best])
            break;
        const char *name = memfit_trace_name(s->trace, best);
        mf_oom_own(d, by_name[best], "%s", name[0] ? name : "no stack recorded");
        by_name[best] = 0;
    }
    if (s->reserved > s->in_use)
        mf_oom_own(d, s->reserved - s->in_use, "taken from the card, but free");
    return MEMFIT_OK;
}

/* ---- the same in memfit's pool ---------------------------------------------------------------------------- */

static memfit_status play(story *s, memfit_pool *pool, memfit_device *device, memfit_error *err)
{
    memfit_address *addresses = MF_NEW_ARRAY(&s->arena, memfit_address, s->info.buffers + 1);
    memfit_stream *streams = MF_NEW_ARRAY(&s->arena, memfit_stream, s->info.streams + 1);
    memfit_status status = MEMFIT_OK;
    if (!addresses || !streams)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to replay %" PRIu64 " buffers", s->info.buffers);
    memset(addresses, 0, (s->info.buffers + 1) * sizeof *addresses);
    memset(streams, 0, (s->info.streams + 1) * sizeof *streams);
    for (uint32_t i = 1; !status && i < s->info.streams; i++)
        status = memfit_stream_create(device, &streams[i], err);
    for (uint64_t i = 0; !status && i < s->count; i++) {
        const memfit_event *e = &s->events[i];
        if (e->device != s->device || !e->bytes)
            continue;
        if (e->op == MEMFIT_EVENT_ALLOC)
            status = memfit_pool_alloc_on(pool, e->bytes, 0, 0, streams[e->stream], &addresses[e->id], err);
        else if (e->op == MEMFIT_EVENT_FREE && addresses[e->id])
            status = memfit_pool_free_on(pool, addresses[e->id], streams[e->stream], err);
    }
    memfit_address last;
    if (!status && s->failure && s->failure->bytes)
        status = memfit_pool_alloc_on(pool, s->failure->bytes, 0, 0, streams[s->failure->stream], &last, err);
    return status;
}

static memfit_status replay(story *s, memfit_error *err)
{
    uint64_t whole = UINT64_C(1) << 34, request = s->failure ? s->failure->bytes : 0;
    if (s->info.peak_live_bytes > UINT64_C(1) << 58 || request > UINT64_C(1) << 58)
        return mf_fail(err, MEMFIT_DAMAGED, "the recording asks for more than 256 PiB");
    while (whole < (s->info.peak_live_bytes + request) * 2)
        whole *= 2;
    memfit_device_options o = MEMFIT_DEVICE_OPTIONS;
    o.capacity_bytes = whole;
    o.granularity_bytes = PAGE;
    o.host = s->arena.host;
    memfit_device *device = NULL;
    memfit_pool *pool = NULL;
    memfit_status status = memfit_device_open("sim", &o, &device, err);
    if (status)
        return status;
    memfit_pool_options p = MEMFIT_POOL_OPTIONS;
    p.page_bytes = PAGE;
    p.purge_ms = MEMFIT_PURGE_NEVER;
    p.ignore_environment = true;
    status = memfit_pool_create(device, &p, &pool, err);
    if (!status)
        status = play(s, pool, device, err);
    memfit_pool_info info = MEMFIT_POOL_INFO;
    if (!status && (status = memfit_pool_get_info(pool, &info, err)) == MEMFIT_OK)
        s->needed = info.reserved_peak_bytes;
    memfit_pool_destroy(pool);
    memfit_status closed = memfit_device_close(device, status ? NULL : err);
    if (status == MEMFIT_OUT_OF_MEMORY) /* the device is twice as large as it need be: it was the pool's own memory */
        status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to replay the recording");
    return status ? status : closed;
}

/* ---- what only the snapshot says -------------------------------------------------------------------------- */

static bool is_true(const mf_pickle *v)
{
    return v && v->type == MF_PICKLE_BOOL && v->integer;
}

/* Settings, what was free on the card at the failure, and what PyTorch had taken: the history is a window, so the
 * segments at the end count, and the window's maps and unmaps after the failure are taken back. */
static void read_snapshot(story *s, const mf_pickle *root, mf_oom_facts *f)
{
    const mf_pickle *settings = mf_pickle_get(root, "allocator_settings");
    const mf_pickle *conf = mf_pickle_get(settings, "PYTORCH_CUDA_ALLOC_CONF");
    f->expandable_on = is_true(mf_pickle_get(settings, "expandable_segments"));
    if (conf && conf->type == MF_PICKLE_STRING && conf->count && conf->count < 60) {
        snprintf(f->settings[0], sizeof f->settings[0], "PYTORCH_CUDA_ALLOC_CONF=%.*s", (int)conf->count, conf->data);
        f->setting_count = 1;
        f->async_on = strstr(f->settings[0], "backend:cudaMallocAsync") != NULL;
    }
    const mf_pickle *trace = mf_pickle_at(mf_pickle_get(root, "device_traces"), s->device);
    for (size_t i = 0; i < mf_pickle_length(trace); i++) {
        const mf_pickle *e = mf_pickle_at(trace, i);
        if (mf_pickle_is(mf_pickle_get(e, "action"), "oom"))
            s->card_free = mf_pickle_unsigned(mf_pickle_get(e, "device_free"), UINT64_MAX);
    }
    uint64_t end = 0;
    const mf_pickle *segments = mf_pickle_get(root, "segments");
    for (size_t i = 0; i < mf_pickle_length(segments); i++) {
        const mf_pickle *g = mf_pickle_at(segments, i);
        uint64_t bytes = mf_pickle_unsigned(mf_pickle_get(g, "total_size"), 0);
        if (mf_pickle_unsigned(mf_pickle_get(g, "device"), 0) == s->device && bytes < UINT64_C(1) << 48)
            end += bytes;
    }
    for (uint64_t i = s->count; i < s->info.events; i++) {
        const memfit_event *e = &s->events[i];
        if (e->device != s->device)
            continue;
        if (e->op == MEMFIT_EVENT_MAP)
            end -= e->bytes < end ? e->bytes : end;
        else if (e->op == MEMFIT_EVENT_UNMAP)
            end += e->bytes;
    }
    s->reserved = end > s->in_use ? end : s->in_use;
}

/* ---- the cause -------------------------------------------------------------------------------------------- */

static void conclude(story *s, memfit_diagnosis *d)
{
    char a[24], b[24], c[24], e[24];
    uint64_t request = s->failure ? s->failure->bytes : 0, idle = s->reserved - s->in_use;
    bool torch = s->info.source == MEMFIT_TRACE_TORCH;
    bool card_knows = s->card_free != UINT64_MAX;
    /* What could be had without taking anything away from anybody. */
    uint64_t had =
        s->limit && !torch ? s->limit : s->reserved + (card_knows && s->card_free < request ? s->card_free : 0);
    memfit_size_format(request, a, sizeof a);
    if (!s->failure)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_UNKNOWN, 0, "a recording that goes on until the failure",
                      "nothing failed in this recording; at its end %s is in use of %s taken",
                      memfit_size_format(s->in_use, b, sizeof b), memfit_size_format(s->reserved, c, sizeof c));
    else if (s->rises == WINDOWS - 1 && s->low_last > 2 * s->low_first && s->low_last * 2 > s->in_use)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_GROWING, 0.9, "",
                      "what is kept between steps rose without a break, from %s to %s; %s was asked then",
                      memfit_size_format(s->low_first, b, sizeof b), memfit_size_format(s->low_last, c, sizeof c), a);
    else if (s->needed <= had && (torch ? idle >= request : true))
        mf_oom_decide(
            d, MEMFIT_DIAGNOSIS_FRAGMENTATION, 0.97, "",
            "%s was asked while %s lay free, scattered: the same trace needs %s with memfit's pool, %s had been taken",
            a, memfit_size_format(idle, b, sizeof b), memfit_size_format(s->needed, c, sizeof c),
            memfit_size_format(s->reserved, e, sizeof e));
    else if (card_knows && s->card_free >= request)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.95, "",
                      "%s was asked and %s was free on the card: a limit of this process refused", a,
                      memfit_size_format(s->card_free, b, sizeof b));
    else if (s->limit)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.85, "the device's size (memfit doctor)",
                      "%s was asked with %s in use, of a limit of %s", a, memfit_size_format(s->in_use, b, sizeof b),
                      memfit_size_format(s->limit, c, sizeof c));
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, card_knows ? 0.75 : 0.6,
                      "who else was on the card (memfit ps while it runs)",
                      "%s was asked with %s in use%s%s: packing them better would not have made room", a,
                      memfit_size_format(s->in_use, b, sizeof b), card_knows ? " and free on the card " : "",
                      card_knows ? memfit_size_format(s->card_free, c, sizeof c) : "");
}

static void fill(story *s, memfit_diagnosis *d, mf_oom_facts *f)
{
    bool torch = s->info.source == MEMFIT_TRACE_TORCH;
    memset(d, 0, sizeof *d);
    snprintf(d->framework, sizeof d->framework, "%s", torch ? "pytorch" : "memfit");
    snprintf(d->source, sizeof d->source, "%s", torch ? "snapshot" : "trace");
    f->framework = torch ? "pytorch" : "memfit";
    d->request_bytes = f->request = s->failure ? s->failure->bytes : 0;
    d->in_use_bytes = f->in_use = s->in_use;
    d->reserved_bytes = f->reserved = s->reserved;
    d->limit_bytes = f->limit = s->limit;
    d->card_free_bytes = s->card_free == UINT64_MAX ? 0 : s->card_free;
    d->replay_bytes = s->needed;
    if (s->failure)
        snprintf(d->line, sizeof d->line, "%s", memfit_trace_name(s->trace, s->failure->name));
}

static memfit_status explain_trace(const memfit_host *host, const memfit_trace *trace, const mf_pickle *root,
                                   memfit_diagnosis *d, memfit_error *err)
{
    story s = {.trace = trace, .card_free = UINT64_MAX};
    mf_oom_facts f;
    memset(&f, 0, sizeof f);
    s.info = (memfit_trace_info)MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &s.info, NULL);
    s.events = memfit_trace_events(trace, &s.count);
    mf_arena_init(&s.arena, host);
    find_failure(&s);
    walk(&s);
    if (root)
        read_snapshot(&s, root, &f);
    memfit_status status = replay(&s, err);
    if (!status) {
        fill(&s, d, &f);
        conclude(&s, d);
        status = list_owners(&s, d, err);
    }
    if (!status)
        mf_oom_suggest(&f, d);
    mf_arena_destroy(&s.arena);
    return status;
}

/* ---- told apart by content -------------------------------------------------------------------------------- */

static bool is_pickle(const unsigned char *p, size_t bytes)
{
    return bytes > 2 && p[0] == 0x80 && p[1] >= 2 && p[1] <= 5;
}

static memfit_status explain_plain(const memfit_host *host, const void *data, size_t bytes, memfit_diagnosis *diagnosis,
                                   memfit_error *err)
{
    bool pickle = is_pickle(data, bytes);
    if (!pickle && !memfit_trace_begins(data, bytes))
        return mf_explain_log(data, bytes, diagnosis, err);
    memfit_trace *trace = NULL;
    memfit_status status = memfit_trace_read(data, bytes, host, &trace, err);
    if (status)
        return status;
    mf_arena arena;
    mf_pickle_tree tree = {0};
    mf_arena_init(&arena, host);
    arena.limit_bytes = (uint64_t)bytes * MEMORY_FACTOR + (2 << 20);
    if (pickle)
        status = mf_pickle_read(&arena, data, bytes, &tree, err);
    if (!status)
        status = explain_trace(host, trace, tree.root, diagnosis, err);
    mf_arena_destroy(&arena);
    memfit_trace_destroy(trace);
    return status;
}

memfit_status mf_explain(const memfit_host *host, const void *data, size_t bytes, memfit_diagnosis *diagnosis,
                         memfit_error *err)
{
    mf_oom_text plain;
    memfit_status status = mf_oom_text_open(host, data, bytes, &plain, err);
    if (!status)
        status = explain_plain(host, plain.data, plain.bytes, diagnosis, err);
    mf_oom_text_close(&plain);
    return status;
}

memfit_status memfit_explain(const void *data, size_t bytes, memfit_diagnosis *diagnosis, memfit_error *err)
{
    memfit_diagnosis found = MEMFIT_DIAGNOSIS;
    memfit_status status = mf_abi_check(diagnosis, "MEMFIT_DIAGNOSIS", err);
    if (!status)
        status = mf_explain(NULL, data, bytes, &found, err);
    if (!status)
        mf_abi_write(diagnosis, &found, sizeof found);
    return status;
}
