/*
 * cmd_replay.c: memfit replay: an allocation trace through a pool.
 *
 * The trace is played twice, on a fresh pool each time. The first run is timed and asks nothing but what the trace
 * asks. The second reads the pool's figures between events, for the picture. On sim, whose clock is a model, it must give
 * every buffer the address it had before: a pool that places by anything but the requests themselves is found here. On a
 * card what moving pages took in the first run is not what it takes in the second, and addresses may differ.
 *
 * The trace's time goes by on every device: a card's clock skips what its program did between two events.
 *
 * Physical memory is what the pool holds, and is compared with what the device says is taken.
 */
#include "cli/cli.h"

#include "base/chart.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"
#include "memfit/explanation.h"
#include "memfit/trace.h"

#include <inttypes.h>
#include <string.h>

enum { SAMPLES = 4096, PICTURE_BYTES = 1 << 16 };

typedef struct replay {
    const char *path, *device_name, *memory, *policy_name, *page;
    cli_common common;
    memfit_policy policy;
    uint64_t page_bytes, memory_bytes;
    memfit_trace *trace;
    memfit_trace_info info;
    const memfit_event *events;
    uint64_t event_count;
    unsigned device_number; /* of the trace's devices, the one replayed */
    uint64_t replayed;      /* events of it that allocate or free */
    uint64_t peak_live_bytes;
    memfit_address *addresses; /* by buffer; 0 is none */
    memfit_owner *owners;      /* by name and kind */
    memfit_stream *streams;
    memfit_device *device;
    mf_arena arena;
} replay;

/* What one run gave. */
typedef struct outcome {
    memfit_pool_info pool;
    uint64_t failed;
    uint64_t address_hash;
    bool repeats; /* a second run gave the same addresses */
    uint64_t ns;
    memfit_error first_failure;
    memfit_explanation why;
    uint64_t first_failure_at;
} outcome;

typedef struct picture {
    uint64_t *live, *physical; /* SAMPLES each, over time */
} picture;

/* ---- setting up ------------------------------------------------------------------------------------------- */

static int read_options(replay *r, const cli_command *command)
{
    if (strcmp(r->policy_name, "growth") == 0)
        r->policy = MEMFIT_POLICY_GROWTH;
    else if (strcmp(r->policy_name, "preallocate") == 0)
        r->policy = MEMFIT_POLICY_PREALLOCATE;
    else
        return cli_usage_error(command, "--policy %s: must be growth or preallocate", r->policy_name);
    memfit_error err;
    if (memfit_size_parse(r->page, 0, &r->page_bytes, &err))
        return cli_usage_error(command, "--page: %s", err.message);
    if (r->page_bytes < 4096 || r->page_bytes & (r->page_bytes - 1))
        return cli_usage_error(command, "--page %s: must be a power of two, at least 4KiB", r->page);
    return CLI_DONE;
}

static bool moves_memory(const replay *r, const memfit_event *e)
{
    return (e->op == MEMFIT_EVENT_ALLOC || e->op == MEMFIT_EVENT_FREE) && e->device == r->device_number;
}

static bool is_sim(const replay *r)
{
    return strcmp(r->device_name, "sim") == 0;
}

/* The busiest device of the trace, and its totals. */
static void choose_device(replay *r)
{
    uint64_t counts[256] = {0}, now = 0;
    for (uint64_t i = 0; i < r->event_count; i++)
        counts[r->events[i].device]++;
    for (unsigned d = 1; d < 256; d++)
        if (counts[d] > counts[r->device_number])
            r->device_number = d;
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (!moves_memory(r, e))
            continue;
        r->replayed++;
        now += e->op == MEMFIT_EVENT_ALLOC ? e->bytes : 0 - e->bytes;
        r->peak_live_bytes = now > r->peak_live_bytes ? now : r->peak_live_bytes;
    }
    if (counts[r->device_number] < r->info.events)
        cli_note(&r->common, "the trace has several devices; device %u, the busiest, is replayed", r->device_number);
}

/* sim gets room for whatever may come; with --memory in bytes just that, so that a percentage is of something real. */
static memfit_status open_device(replay *r, memfit_error *err)
{
    memfit_device_options o = MEMFIT_DEVICE_OPTIONS;
    if (is_sim(r)) {
        uint64_t whole = 16ull << 30;
        while ((whole / 2 < r->peak_live_bytes || whole < r->page_bytes) && whole < 1ull << 62)
            whole *= 2;
        if (r->memory && !strchr(r->memory, '%')) {
            uint64_t memory;
            memfit_status status = memfit_size_parse(r->memory, 0, &memory, err);
            if (status)
                return status;
            whole = memory > whole ? (memory + r->page_bytes - 1) / r->page_bytes * r->page_bytes : whole;
        }
        o.capacity_bytes = whole;
        o.granularity_bytes = r->page_bytes;
    }
    memfit_status status = memfit_device_open(r->device_name, &o, &r->device, err);
    if (status == MEMFIT_NOT_FOUND) /* of the machine, not of a file that was named */
        return err->code = MEMFIT_DEVICE;
    if (status)
        return status;
    memfit_device_info info = MEMFIT_DEVICE_INFO;
    status = memfit_device_get_info(r->device, &info, err);
    if (!status && r->memory)
        status = memfit_size_parse(r->memory, info.total_bytes, &r->memory_bytes, err);
    if (!status && r->memory && !r->memory_bytes)
        status = mf_fail(err, MEMFIT_INVALID, "--memory %s: nothing fits into that", r->memory);
    if (!status && r->page_bytes < info.granularity_bytes)
        r->page_bytes = info.granularity_bytes;
    return status;
}

static memfit_status prepare(replay *r, memfit_error *err)
{
    memfit_status status = memfit_trace_load(r->path, NULL, &r->trace, err);
    if (status)
        return status;
    r->info = (memfit_trace_info)MEMFIT_TRACE_INFO;
    memfit_trace_describe(r->trace, &r->info, NULL);
    r->events = memfit_trace_events(r->trace, &r->event_count);
    choose_device(r);
    if (!r->replayed)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: the trace allocates nothing", r->path);
    status = open_device(r, err);
    if (status)
        return status;
    r->addresses = MF_NEW_ARRAY(&r->arena, memfit_address, r->info.buffers);
    r->owners = MF_NEW_ARRAY(&r->arena, memfit_owner, (uint64_t)r->info.names * MEMFIT_KIND_COUNT);
    r->streams = MF_NEW_ARRAY(&r->arena, memfit_stream, r->info.streams);
    if (!r->addresses || !r->owners || !r->streams)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to replay %" PRIu64 " buffers", r->info.buffers);
    for (uint32_t i = 1; !status && i < r->info.streams; i++)
        status = memfit_stream_create(r->device, &r->streams[i], err);
    return status;
}

static memfit_status make_pool(replay *r, memfit_pool **pool, memfit_error *err)
{
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.name = "replay";
    o.policy = r->policy;
    o.limit_bytes = r->memory_bytes;
    o.page_bytes = r->page_bytes;
    o.purge_ms = MEMFIT_PURGE_NEVER; /* a replay takes no time, so a delay would mean nothing */
    o.ignore_environment = true;
    memfit_status status = memfit_pool_create(r->device, &o, pool, err);
    for (uint64_t i = 0; !status && i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (e->op != MEMFIT_EVENT_ALLOC || !e->name)
            continue;
        memfit_owner *owner = &r->owners[(uint64_t)e->name * MEMFIT_KIND_COUNT + e->kind];
        if (!*owner)
            status = memfit_pool_owner(*pool, (memfit_kind)e->kind, memfit_trace_name(r->trace, e->name), owner, err);
    }
    return status;
}

/* ---- playing ---------------------------------------------------------------------------------------------- */

static memfit_status play_event(replay *r, memfit_pool *pool, const memfit_event *e, uint64_t index, outcome *out,
                                memfit_error *err)
{
    memfit_stream stream = r->streams[e->stream];
    if (e->op == MEMFIT_EVENT_FREE) {
        memfit_address address = r->addresses[e->id]; /* kept: a buffer lives once */
        return address ? memfit_pool_free_on(pool, address, stream, err) : MEMFIT_OK;
    }
    memfit_owner owner = e->name ? r->owners[(uint64_t)e->name * MEMFIT_KIND_COUNT + e->kind] : 0;
    memfit_status status = memfit_pool_alloc_on(pool, e->bytes, 0, owner, stream, &r->addresses[e->id], err);
    if (status != MEMFIT_OUT_OF_MEMORY)
        return status;
    r->addresses[e->id] = 0;
    if (!out->failed++) {
        out->first_failure = *err;
        out->first_failure_at = index;
        memfit_pool_explain(pool, &out->why, NULL);
    }
    return MEMFIT_OK;
}

/* One sample: both curves at this moment, and the device asked whether it agrees. */
static memfit_status sample(replay *r, memfit_pool *pool, picture *pic, uint64_t time_ns, memfit_error *err)
{
    memfit_pool_info info = MEMFIT_POOL_INFO;
    memfit_device_info device = MEMFIT_DEVICE_INFO;
    memfit_status status = memfit_pool_get_info(pool, &info, err);
    if (!status && is_sim(r)) /* nobody else takes memory there: the two must be equal. A card takes long to say */
        status = memfit_device_get_info(r->device, &device, err);
    if (status)
        return status;
    uint64_t taken = device.total_bytes - device.free_bytes;
    if (is_sim(r) && taken != info.reserved_bytes)
        return mf_fail(err, MEMFIT_INTERNAL, "the pool says it holds %" PRIu64 " bytes, the device %" PRIu64,
                       info.reserved_bytes, taken);
    uint64_t span = r->info.duration_ns ? r->info.duration_ns : 1;
    size_t at = (size_t)((double)time_ns / (double)span * (SAMPLES - 1));
    pic->live[at] = info.in_use_bytes > pic->live[at] ? info.in_use_bytes : pic->live[at];
    pic->physical[at] = info.reserved_bytes > pic->physical[at] ? info.reserved_bytes : pic->physical[at];
    return MEMFIT_OK;
}

/* Of every buffer's address, relative to the first one: pools may lie elsewhere each time. */
static uint64_t hash_addresses(const replay *r)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    memfit_address first = 0;
    for (uint64_t i = 0; i < r->info.buffers; i++) {
        memfit_address address = r->addresses[i];
        first = first ? first : address;
        hash = (hash ^ (address ? address - first + 1 : 0)) * 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    return hash;
}

/* The device's clock comes to the time of an event. On sim nothing else moves it on; a real one has gone on meanwhile. */
static memfit_status come_to(replay *r, uint64_t began_us, uint64_t time_us, uint64_t *skipped_us, memfit_error *err)
{
    uint64_t now_us = *skipped_us + (is_sim(r) ? 0 : mf_os_now_us() - began_us);
    if (time_us <= now_us)
        return MEMFIT_OK;
    *skipped_us += time_us - now_us;
    return memfit_device_advance(r->device, time_us - now_us, err);
}

/* Plays the whole trace on a fresh pool. `pic` NULL: nothing is asked of the pool in between. */
static memfit_status play(replay *r, picture *pic, outcome *out, memfit_error *err)
{
    *out = (outcome){.pool = MEMFIT_POOL_INFO, .why = MEMFIT_EXPLANATION};
    memset(r->addresses, 0, r->info.buffers * sizeof *r->addresses);
    memset(r->owners, 0, (size_t)r->info.names * MEMFIT_KIND_COUNT * sizeof *r->owners);
    memfit_pool *pool = NULL;
    memfit_status status = make_pool(r, &pool, err);
    uint64_t every = r->replayed / SAMPLES + 1, started = mf_os_now_ns(), began_us = mf_os_now_us();
    uint64_t count = 0, skipped_us = 0;
    for (uint64_t i = 0; !status && i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (!moves_memory(r, e))
            continue;
        status = come_to(r, began_us, e->time_ns / 1000, &skipped_us, err);
        if (!status)
            status = play_event(r, pool, e, i, out, err);
        if (pic && !status && count++ % every == 0)
            status = sample(r, pool, pic, e->time_ns, err);
    }
    out->ns = mf_os_now_ns() - started;
    out->address_hash = hash_addresses(r);
    if (!status)
        status = memfit_pool_get_info(pool, &out->pool, err);
    memfit_pool_destroy(pool);
    return status;
}

/* ---- showing ---------------------------------------------------------------------------------------------- */

static double ratio_of(const replay *r, const outcome *out)
{
    return r->peak_live_bytes ? (double)out->pool.reserved_peak_bytes / (double)r->peak_live_bytes : 1;
}

static void write_json(const replay *r, const outcome *out)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "trace", r->path);
    mf_json_put_string(&w, "device", r->device_name);
    mf_json_put_string(&w, "policy", r->policy_name);
    mf_json_put_u64(&w, "page_bytes", out->pool.page_bytes);
    mf_json_put_u64(&w, "memory_bytes", out->pool.limit_bytes);
    mf_json_put_u64(&w, "events", r->replayed);
    mf_json_put_u64(&w, "buffers", r->info.buffers);
    mf_json_put_u64(&w, "peak_live_bytes", r->peak_live_bytes);
    mf_json_put_u64(&w, "peak_physical_bytes", out->pool.reserved_peak_bytes);
    mf_json_put_double(&w, "ratio", ratio_of(r, out));
    mf_json_put_u64(&w, "failed", out->failed);
    mf_json_put_u64(&w, "remaps", out->pool.remaps);
    mf_json_put_u64(&w, "remapped_pages", out->pool.remapped_pages);
    mf_json_put_double(&w, "ns_per_event", (double)out->ns / (double)r->replayed);
    mf_json_put_u64(&w, "created_pages", out->pool.created_pages);
    mf_json_put_u64(&w, "released_pages", out->pool.released_pages);
    mf_json_put_u64(&w, "metadata_bytes", out->pool.metadata_bytes);
    mf_json_put_u64(&w, "before_buffers", r->info.before_buffers);
    mf_json_put_u64(&w, "repaired", r->info.repaired);
    char hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, out->address_hash);
    mf_json_put_string(&w, "addresses", hash);
    mf_json_put_bool(&w, "repeats", out->repeats);
    if (out->failed) {
        mf_json_open(&w, "first_failure", '{');
        mf_json_put_u64(&w, "event", out->first_failure_at);
        mf_json_put_u64(&w, "request_bytes", out->first_failure.requested_bytes);
        mf_json_put_string(&w, "cause", memfit_cause_name(out->first_failure.cause));
        mf_json_put_string(&w, "message", out->first_failure.message);
        mf_json_put_string(&w, "hint", out->first_failure.hint);
        mf_json_close(&w, '}');
    }
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

/* Samples into as many columns as the picture has: the largest of those that fall into one; gaps carry on. */
static void squeeze(const uint64_t *samples, uint64_t *columns, unsigned count)
{
    uint64_t last = 0;
    for (unsigned c = 0; c < count; c++) {
        uint64_t most = 0;
        for (unsigned i = c * SAMPLES / count; i < (c + 1) * SAMPLES / count; i++)
            most = samples[i] > most ? samples[i] : most;
        last = columns[c] = most ? most : last;
    }
}

static void draw(const replay *r, const picture *pic)
{
    static const char legend_utf8[] = "█ live  ░ held beyond it", legend_ascii[] = "# live  . held beyond it";
    mf_chart_options o = {.columns = mf_os_terminal_columns(stdout), .rows = 12, .utf8 = mf_chart_utf8()};
    uint64_t live[MF_CHART_MOST_COLUMNS], physical[MF_CHART_MOST_COLUMNS];
    char text[1 << 14], end[80];
    mf_text out;
    mf_text_init(&out, text, sizeof text);
    unsigned count = mf_chart_samples(&o);
    squeeze(pic->live, live, count);
    squeeze(pic->physical, physical, count);
    snprintf(end, sizeof end, "%s  %.3g s", o.utf8 ? legend_utf8 : legend_ascii, (double)r->info.duration_ns / 1e9);
    mf_chart_area area = {.filled = live, .outline = physical, .count = count, .left = "0 s", .right = end};
    area.line_bytes = r->memory_bytes;
    mf_chart_draw_area(&out, &area, &o);
    fputs(text, stdout);
}

static void print(const replay *r, const outcome *out, const picture *pic)
{
    char a[24], b[24];
    mf_print(stdout, "%s: %s events, %s buffers\n", r->path, mf_format_count(r->replayed, a, sizeof a),
             mf_format_count(r->info.buffers, b, sizeof b));
    if (!r->common.quiet) {
        mf_print(stdout, "\n");
        draw(r, pic);
        mf_print(stdout, "\n");
    }
    mf_print(stdout, "peak live      %s\n", memfit_size_format(r->peak_live_bytes, a, sizeof a));
    mf_print(stdout, "peak physical  %s, ratio %.4f (%s pages, %s, %s)\n",
             memfit_size_format(out->pool.reserved_peak_bytes, a, sizeof a), ratio_of(r, out),
             memfit_size_format(out->pool.page_bytes, b, sizeof b), r->policy_name, r->device_name);
    mf_print(stdout, "limit          %s\n", memfit_size_format(out->pool.limit_bytes, a, sizeof a));
    mf_print(stdout, "failed         %" PRIu64 "\n", out->failed);
    mf_print(stdout, "remaps         %" PRIu64 " allocations moved %" PRIu64 " pages (%.2f %% of the events)\n",
             out->pool.remaps, out->pool.remapped_pages, 100 * (double)out->pool.remaps / (double)r->replayed);
    mf_print(stdout, "time           %.0f ns an event\n", (double)out->ns / (double)r->replayed);
    if (r->info.before_buffers)
        mf_print(stdout, "before         %" PRIu64 " buffers were there when the recording began\n",
                 r->info.before_buffers);
}

static memfit_status replay_all(replay *r, outcome *out, memfit_error *err)
{
    memfit_status status = prepare(r, err);
    if (status)
        return status;
    picture pic = {MF_NEW_ARRAY(&r->arena, uint64_t, SAMPLES), MF_NEW_ARRAY(&r->arena, uint64_t, SAMPLES)};
    if (!pic.live || !pic.physical)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the picture");
    outcome second;
    status = play(r, NULL, out, err);
    if (!status)
        status = play(r, &pic, &second, err);
    if (status)
        return status;
    out->repeats = second.address_hash == out->address_hash && second.failed == out->failed;
    if (!out->repeats && is_sim(r))
        return mf_fail(err, MEMFIT_INTERNAL, "two runs of the same trace gave different addresses");
    if (r->common.json)
        write_json(r, out);
    else
        print(r, out, &pic);
    return MEMFIT_OK;
}

static void finish(replay *r)
{
    for (uint32_t i = 1; r->streams && i < r->info.streams; i++)
        if (r->streams[i])
            memfit_stream_destroy(r->device, r->streams[i], NULL);
    memfit_device_close(r->device, NULL);
    memfit_trace_destroy(r->trace);
    mf_arena_destroy(&r->arena);
}

static const char help[] = "TRACE is a CSV trace (time_us,op,id,bytes,stream), a memfit trace file or a\n"
                           "PyTorch memory snapshot (.pickle).\n"
                           "ratio is the pool's largest physical memory over the trace's largest sum of\n"
                           "live bytes; 1 is ideal.\n";

int cli_replay(const cli_command *command, int argc, char **argv)
{
    replay r = {.device_name = "sim", .policy_name = "growth", .page = "2MiB"};
    const cli_binding bindings[] = {CLI_BIND("--device", &r.device_name),
                                    CLI_BIND("--memory", &r.memory),
                                    CLI_BIND("--policy", &r.policy_name),
                                    CLI_BIND("--page", &r.page),
                                    {0}};
    int status = cli_parse(command, argc, argv, bindings, &r.common, help);
    if (status || r.common.help)
        return status;
    r.path = r.common.operands[0];
    status = read_options(&r, command);
    if (status)
        return status;
    mf_arena_init(&r.arena, NULL);
    memfit_error err;
    outcome out;
    if (replay_all(&r, &out, &err))
        status = cli_report(&r.common, &err);
    else if (out.failed) {
        fflush(stdout);
        mf_print(stderr, "memfit: %" PRIu64 " of the trace's allocations failed; the first: %s\n", out.failed,
                 out.first_failure.message);
        if (out.first_failure.hint[0])
            mf_print(stderr, "  %s\n", out.first_failure.hint);
        if (!r.common.json && !r.common.quiet) {
            static char text[MEMFIT_EXPLANATION_TEXT];
            fputc('\n', stderr);
            fputs(memfit_explanation_text(&out.why, mf_os_terminal_columns(stderr), mf_chart_utf8(), text, sizeof text),
                  stderr);
        }
        status = CLI_NO_FIT;
    }
    finish(&r);
    return status;
}
