/* test_trace.c: the recorder, trace files, and the importers. */
#include "test.h"

#include "trace/trace.h"
#include "memfit/pool.h"

#include <pthread.h>

static char scratch[256];

static const char *fixture(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/tests/fixtures/traces/%s", getenv("MEMFIT_SOURCE"), name);
    return path;
}

static int make_scratch(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "/tmp/memfit-trace-%d", (int)getpid());
    return 0;
}

static int drop_scratch(void **state)
{
    (void)state;
    unlink(scratch);
    return 0;
}

static memfit_trace *load(const char *path)
{
    memfit_trace *trace = NULL;
    memfit_error err;
    assert_ok(memfit_trace_load(path, NULL, &trace, &err), err);
    assert_ok(mf_trace_check(trace, &err), err);
    return trace;
}

static memfit_recorder *recorder_of(uint64_t events, const char *path)
{
    memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
    o.events = events;
    o.path = path;
    memfit_recorder *r = NULL;
    memfit_error err;
    assert_ok(memfit_recorder_create(&o, &r, &err), err);
    return r;
}

static void put(memfit_recorder *r, memfit_event_op op, uint64_t id, uint64_t bytes, const char *owner)
{
    mf_trace_put(r, op, id, bytes, MEMFIT_KIND_ACTIVATIONS, memfit_recorder_name(r, owner), 3);
}

/* A short life: two buffers, one of which takes over the other's address. */
static void record_some(memfit_recorder *r)
{
    put(r, MEMFIT_EVENT_ALLOC, 0x1000, 100, "conv1");
    put(r, MEMFIT_EVENT_ALLOC, 0x2000, 1ull << 40, "a name of more than thirty-two bytes, so of several cells");
    put(r, MEMFIT_EVENT_FREE, 0x1000, 100, "conv1");
    put(r, MEMFIT_EVENT_ALLOC, 0x1000, 50, "conv2");
    memfit_recorder_mark(r, "step 2");
    put(r, MEMFIT_EVENT_FAIL, 0, 1ull << 41, "conv3");
}

static void check_some(const memfit_trace *trace)
{
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_int_equal(info.events, 6);
    assert_int_equal(info.buffers, 3);
    assert_true(info.peak_live_bytes == (1ull << 40) + 100);
    assert_true(info.end_live_bytes == (1ull << 40) + 50);
    assert_int_equal(info.failures, 1);
    assert_int_equal(info.before_buffers, 0);
    uint64_t count;
    const memfit_event *e = memfit_trace_events(trace, &count);
    assert_int_equal(e[2].op, MEMFIT_EVENT_FREE);
    assert_int_equal(e[2].id, e[0].id);
    assert_int_equal(e[3].id, 2);
    assert_int_equal(e[3].stream, 1); /* 3 in the recording: numbered by first use, 0 is the default stream */
    assert_int_equal(e[3].kind, MEMFIT_KIND_ACTIVATIONS);
    assert_string_equal(memfit_trace_name(trace, e[1].name),
                        "a name of more than thirty-two bytes, so of several cells");
    assert_string_equal(memfit_trace_name(trace, e[4].name), "step 2");
    assert_string_equal(memfit_trace_name(trace, e[5].name), "conv3");
    assert_string_equal(memfit_trace_name(trace, 99), "");
}

static void ring_is_saved_and_loaded(void **state)
{
    (void)state;
    memfit_recorder *r = recorder_of(64, NULL);
    memfit_error err;
    record_some(r);
    assert_ok(mf_recorder_check(r, &err), err);
    assert_ok(memfit_recorder_save(r, scratch, &err), err);
    memfit_recorder_destroy(r);
    memfit_trace *trace = load(scratch);
    check_some(trace);
    /* Saved again from the loaded form, it is the same. */
    assert_ok(memfit_trace_save(trace, scratch, &err), err);
    memfit_trace *again = load(scratch);
    check_some(again);
    uint64_t n;
    const memfit_event *a = memfit_trace_events(trace, &n), *b = memfit_trace_events(again, &n);
    assert_memory_equal(a, b, n * sizeof *a);
    memfit_trace_destroy(trace);
    memfit_trace_destroy(again);
}

static void ring_keeps_the_newest(void **state)
{
    (void)state;
    memfit_recorder *r = recorder_of(16, NULL);
    memfit_error err;
    for (uint64_t i = 0; i < 100; i++)
        put(r, i % 2 ? MEMFIT_EVENT_FREE : MEMFIT_EVENT_ALLOC, 0x100 + i / 2, 256, "x");
    uint64_t count, lost;
    memfit_recorder_counts(r, &count, &lost);
    assert_int_equal(count, 100);
    assert_int_equal(lost, 84);
    assert_ok(mf_recorder_check(r, &err), err);
    assert_ok(memfit_recorder_save(r, scratch, &err), err);
    memfit_trace *trace = load(scratch);
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_int_equal(info.events, 16);
    assert_int_equal(info.buffers, 8);
    assert_int_equal(info.end_live_bytes, 0);
    memfit_trace_destroy(trace);
    memfit_recorder_destroy(r);
    assert_int_equal(memfit_recorder_close(NULL, NULL), MEMFIT_OK); /* as every close */
}

static void files_take_all_events(void **state)
{
    (void)state;
    memfit_recorder *r = recorder_of(16, scratch);
    memfit_error err;
    for (uint64_t i = 0; i < 1000; i++)
        put(r, i % 2 ? MEMFIT_EVENT_FREE : MEMFIT_EVENT_ALLOC, 0x100 + i / 2, 256, i < 500 ? "early" : "late");
    assert_int_equal(memfit_recorder_save(r, scratch, &err), MEMFIT_CONFLICT);
    assert_ok(memfit_recorder_close(r, &err), err);
    put(r, MEMFIT_EVENT_ALLOC, 1, 1, "x"); /* after the end: lost, not harmful */
    memfit_recorder_destroy(r);
    memfit_trace *trace = load(scratch);
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_int_equal(info.events, 1000);
    assert_int_equal(info.names, 3);
    assert_false(info.cut);
    memfit_trace_destroy(trace);
    memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
    o.path = "/nonexistent/folder/trace";
    assert_int_equal(memfit_recorder_create(&o, &r, &err), MEMFIT_IO);
}

static void *thread_puts(void *arg)
{
    memfit_recorder *r = arg;
    for (uint64_t i = 0; i < 20000; i++) {
        char name[16];
        snprintf(name, sizeof name, "owner %u", (unsigned)(i % 7));
        uint64_t id = (uint64_t)(uintptr_t)&i + (i << 48);
        put(r, MEMFIT_EVENT_ALLOC, id, 512, name);
        put(r, MEMFIT_EVENT_FREE, id, 512, name);
    }
    return NULL;
}

static void threads_record_together(void **state)
{
    (void)state;
    for (int sharded = 0; sharded < 2; sharded++) {
        memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
        o.events = 256;
        o.shards = sharded ? 4 : 1;
        o.path = scratch;
        memfit_recorder *r;
        memfit_error err;
        assert_ok(memfit_recorder_create(&o, &r, &err), err);
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, thread_puts, r);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        assert_ok(memfit_recorder_close(r, &err), err);
        memfit_recorder_destroy(r);
        memfit_trace *trace = load(scratch);
        memfit_trace_info info = MEMFIT_TRACE_INFO;
        memfit_trace_describe(trace, &info, NULL);
        assert_int_equal(info.events, 120000);
        assert_int_equal(info.buffers, 60000);
        assert_int_equal(info.end_live_bytes, 0);
        assert_true(info.peak_live_bytes <= 3 * 512);
        memfit_trace_destroy(trace);
    }
}

static void names_run_out_quietly(void **state)
{
    (void)state;
    memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
    o.names = 4;
    memfit_recorder *r;
    memfit_error err;
    assert_ok(memfit_recorder_create(&o, &r, &err), err);
    assert_int_equal(memfit_recorder_name(r, "a"), 1);
    assert_int_equal(memfit_recorder_name(r, "b"), 2);
    assert_int_equal(memfit_recorder_name(r, "a"), 1);
    assert_int_equal(memfit_recorder_name(r, "c"), 3);
    assert_int_equal(memfit_recorder_name(r, "d"), 0);
    assert_int_equal(memfit_recorder_name(r, "b"), 2);
    assert_int_equal(memfit_recorder_name(r, ""), 0);
    memfit_recorder_destroy(r);
    o.events = 0;
    assert_int_equal(memfit_recorder_create(&o, &r, &err), MEMFIT_INVALID);
    o = (memfit_recorder_options)MEMFIT_RECORDER_OPTIONS;
    o.shards = 17;
    assert_int_equal(memfit_recorder_create(&o, &r, &err), MEMFIT_INVALID);
    o = (memfit_recorder_options)MEMFIT_RECORDER_OPTIONS;
    o.size = 3;
    assert_int_equal(memfit_recorder_create(&o, &r, &err), MEMFIT_INVALID);
}

/* The file of record_some, as bytes. */
static unsigned char *trace_bytes(size_t *bytes)
{
    memfit_error err;
    memfit_recorder *r = recorder_of(64, NULL);
    record_some(r);
    assert_ok(memfit_recorder_save(r, scratch, &err), err);
    memfit_recorder_destroy(r);
    mf_mapping m;
    assert_ok(mf_os_map_file(scratch, &m, &err), err);
    unsigned char *copy = malloc(m.bytes);
    memcpy(copy, m.data, m.bytes);
    *bytes = m.bytes;
    mf_os_unmap_file(&m);
    return copy;
}

static void damage_is_found(void **state)
{
    (void)state;
    size_t n;
    unsigned char *data = trace_bytes(&n);
    memfit_trace *trace;
    memfit_error err;
    for (size_t i = 0; i < n;
         i++) { /* one byte changed, anywhere: every field but the clock and the spare ones counts */
        if ((i >= 24 && i < 40) || (i >= 44 && i < 48))
            continue;
        data[i] ^= 0x5a;
        memfit_status status = memfit_trace_read(data, n, NULL, &trace, &err);
        if (status == MEMFIT_OK)
            fail_msg("a changed byte %zu goes unnoticed", i);
        assert_true(status == MEMFIT_DAMAGED || status == MEMFIT_UNSUPPORTED);
        data[i] ^= 0x5a;
    }
    for (size_t i = 0; i < n; i++)
        assert_int_equal(memfit_trace_read(data, i, NULL, &trace, &err), MEMFIT_DAMAGED);
    data[8] = 3;
    assert_int_equal(memfit_trace_read(data, n, NULL, &trace, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "version 3"));
    free(data);
}

/* A program that was killed: no number of cells, no checksum, the end missing. Every cut is read as far as it goes. */
static void unclosed_files_are_read_as_far_as_they_go(void **state)
{
    (void)state;
    size_t n;
    unsigned char *data = trace_bytes(&n);
    memset(data + 16, 0, 8); /* how many cells */
    memset(data + 56, 0, 8); /* closed */
    uint64_t last = 0;
    for (size_t cut = 64; cut <= n; cut++) {
        memfit_trace *trace;
        memfit_error err;
        memfit_status status = memfit_trace_read(data, cut, NULL, &trace, &err);
        assert_ok(status, err);
        assert_ok(mf_trace_check(trace, &err), err);
        memfit_trace_info info = MEMFIT_TRACE_INFO;
        memfit_trace_describe(trace, &info, NULL);
        assert_true(info.cut);
        assert_true(info.events >= last);
        last = info.events;
        memfit_trace_destroy(trace);
    }
    assert_int_equal(last, 6);
    free(data);
}

static void what_was_there_before_is_put_first(void **state)
{
    (void)state;
    memfit_recorder *r = recorder_of(64, NULL);
    memfit_error err;
    put(r, MEMFIT_EVENT_ALLOC, 5, 10, "x");
    put(r, MEMFIT_EVENT_FREE, 7, 1000, "x"); /* never seen */
    put(r, MEMFIT_EVENT_ALLOC, 5, 30, "x");  /* its free was not seen */
    put(r, MEMFIT_EVENT_FREE, 5, 30, "x");
    put(r, MEMFIT_EVENT_FREE, 5, 20, "x"); /* a second free of it: another one from before */
    assert_ok(memfit_recorder_save(r, scratch, &err), err);
    memfit_recorder_destroy(r);
    memfit_trace *trace = load(scratch);
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_int_equal(info.before_buffers, 2);
    assert_int_equal(info.before_bytes, 1020);
    assert_int_equal(info.repaired, 1);
    assert_int_equal(info.buffers, 4);
    assert_int_equal(info.events, 8);
    assert_int_equal(info.peak_live_bytes, 1030);
    assert_int_equal(info.end_live_bytes, 0);
    memfit_trace_destroy(trace);
}

static void snapshots_are_imported(void **state)
{
    (void)state;
    for (unsigned protocol = 0; protocol <= 4; protocol += 2) {
        char name[64];
        snprintf(name, sizeof name, "snapshot-p%u.pickle", protocol);
        memfit_trace *trace = load(fixture(name));
        memfit_trace_info info = MEMFIT_TRACE_INFO;
        memfit_trace_describe(trace, &info, NULL);
        assert_int_equal(info.source, MEMFIT_TRACE_TORCH);
        /* Before the window: the 1 MiB freed in it and the 6 MiB alive at its end. */
        assert_int_equal(info.before_buffers, 2);
        assert_int_equal(info.before_bytes, 7 << 20);
        assert_int_equal(info.buffers, 5);
        assert_int_equal(info.peak_live_bytes, 13 << 20);
        assert_int_equal(info.end_live_bytes, 11 << 20);
        assert_int_equal(info.failures, 1);
        assert_int_equal(info.streams, 2);
        assert_int_equal(info.duration_ns, 80 * 1000);
        uint64_t count;
        const memfit_event *e = memfit_trace_events(trace, &count);
        for (uint64_t i = 0; i < count; i++)
            if (e[i].op == MEMFIT_EVENT_FAIL) {
                assert_int_equal(e[i].bytes, 100 << 20);
                assert_string_equal(memfit_trace_name(trace, e[i].name), "forward (model.py:41) < main (run.py:7)");
            }
        memfit_trace_destroy(trace);
    }
}

static void other_pickles_are_no_traces(void **state)
{
    (void)state;
    memfit_trace *trace;
    memfit_error err;
    assert_int_equal(memfit_trace_load(fixture("values-p4.pickle"), NULL, &trace, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "no PyTorch memory snapshot"));
    assert_int_equal(memfit_trace_load(fixture("object.pickle"), NULL, &trace, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "GLOBAL"));
    assert_int_equal(memfit_trace_load(fixture("missing"), NULL, &trace, &err), MEMFIT_NOT_FOUND);
    assert_int_equal(memfit_trace_read("", 0, NULL, &trace, &err), MEMFIT_DAMAGED);
    assert_int_equal(memfit_trace_read("\1\0\2", 3, NULL, &trace, &err), MEMFIT_DAMAGED);
}

static void csv_is_imported(void **state)
{
    (void)state;
    static const char text[] = "time_us,op,id,bytes,stream,kind,owner\n"
                               "5,alloc,900,1000,0,parameters,dense\n"
                               "6,alloc,901,24,77,,\n"
                               "6,free,900,1000,0,parameters,dense\n"
                               "7,alloc,900,0,0,gradients,dense\n";
    memfit_trace *trace;
    memfit_error err;
    assert_ok(memfit_trace_read(text, sizeof text - 1, NULL, &trace, &err), err);
    assert_ok(mf_trace_check(trace, &err), err);
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_int_equal(info.events, 4);
    assert_int_equal(info.buffers, 3);
    assert_int_equal(info.peak_live_bytes, 1024);
    assert_int_equal(info.streams, 2);
    uint64_t count;
    const memfit_event *e = memfit_trace_events(trace, &count);
    assert_int_equal(e[0].kind, MEMFIT_KIND_PARAMETERS);
    assert_string_equal(memfit_trace_name(trace, e[0].name), "dense");
    assert_int_equal(e[1].kind, MEMFIT_KIND_OTHER);
    assert_int_equal(e[1].stream, 1);
    memfit_trace_destroy(trace);
}

static void csv_errors_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *rows, *message;
    } cases[] = {
        {"", "line 2: the trace has no events"},
        {"0,alloc,1,5,0\n0,alloc,1,5,0\n", "line 3: id 1 is allocated, but it is alive already"},
        {"0,alloc,1,5,0\n0,free,2,5,0\n", "line 3: id 2 is freed, but it is not alive"},
        {"0,alloc,1,5,0\n0,free,1,6,0\n", "line 3: id 1 is freed with 6 bytes, but it has 5"},
        {"9,alloc,1,5,0\n8,free,1,5,0\n", "line 3, column 1 (\"time_us\"): \"8\" goes back"},
        {"0,grab,1,5,0\n", "line 2, column 2 (\"op\"): \"grab\" is neither"},
        {"0,alloc,1,5GB,0\n", "line 2, column 4 (\"bytes\"): \"5GB\" is not"},
        {"0,alloc,1,999999999999999999,0\n", "is more than 256 TiB"},
        {"0,alloc,1,5\n", "line 2: 4 fields"},
        {"99999999999999999999,alloc,1,5,0\n", "too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        memfit_trace *trace;
        memfit_error err;
        snprintf(text, sizeof text, "time_us,op,id,bytes,stream\n%s", cases[i].rows);
        assert_int_equal(memfit_trace_read(text, strlen(text), NULL, &trace, &err), MEMFIT_DAMAGED);
        if (!strstr(err.message, cases[i].message))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].message, err.message);
    }
    memfit_trace *trace;
    memfit_error err;
    assert_int_equal(memfit_trace_read("hello world\n", 12, NULL, &trace, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.hint, "time_us,op,id,bytes,stream"));
}

static void recorded_traces_have_their_known_totals(void **state)
{
    (void)state;
    const char *folder = test_shared_data();
    if (!folder)
        skip();
    static const struct {
        const char *name;
        uint64_t events, buffers, peak;
    } known[] = {{"torch-resnet-fixed.csv", 12841, 6422, 5932527920},
                 {"torch-varying-images.csv", 53130, 26565, 6730051568},
                 {"torch-varying-sequences.csv", 68784, 34392, 11975352328}};
    for (size_t i = 0; i < 3; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/traces/%s", folder, known[i].name);
        memfit_trace *trace = load(path);
        memfit_trace_info info = MEMFIT_TRACE_INFO;
        memfit_trace_describe(trace, &info, NULL);
        assert_int_equal(info.events, known[i].events);
        assert_int_equal(info.buffers, known[i].buffers);
        assert_true(info.peak_live_bytes == known[i].peak);
        memfit_trace_destroy(trace);
    }
}

static void failing_memory_leaks_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"generated.csv", "snapshot-p4.pickle", NULL};
    size_t n;
    free(trace_bytes(&n));
    for (size_t i = 0; i < 3; i++) {
        const char *path = names[i] ? fixture(names[i]) : scratch;
        bool done = false;
        for (uint64_t at = 1; !done; at++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, at, at % 2);
            memfit_trace *trace = NULL;
            memfit_error err;
            memfit_status status = memfit_trace_load(path, &fault.host, &trace, &err);
            done = fault.calls < at;
            assert_int_equal(status, done ? MEMFIT_OK : MEMFIT_NO_HOST_MEMORY);
            memfit_trace_destroy(trace);
            assert_int_equal(fault.live_count, 0);
            assert_int_equal(fault.live_bytes, 0);
        }
    }
    mf_fault_host fault;
    mf_fault_host_init(&fault, NULL, 1, true);
    memfit_recorder_options o = MEMFIT_RECORDER_OPTIONS;
    o.host = &fault.host;
    memfit_recorder *r;
    memfit_error err;
    assert_int_equal(memfit_recorder_create(&o, &r, &err), MEMFIT_NO_HOST_MEMORY);
    mf_fault_host_init(&fault, NULL, 0, false);
    assert_ok(memfit_recorder_create(&o, &r, &err), err);
    assert_int_equal(fault.live_bytes, memfit_recorder_estimate(&o));
    uint64_t calls = fault.calls;
    record_some(r);
    assert_int_equal(fault.calls, calls); /* recording allocates nothing */
    memfit_recorder_destroy(r);
    assert_int_equal(fault.live_count, 0);
}

/* What a pool records is what its ledger says. */
static void pools_record_themselves(void **state)
{
    (void)state;
    memfit_error err;
    memfit_device *device;
    memfit_pool *pool, *other;
    memfit_device_options d = MEMFIT_DEVICE_OPTIONS;
    d.capacity_bytes = 64 << 20;
    assert_ok(memfit_device_open("sim", &d, &device, &err), err);
    memfit_pool_options o = MEMFIT_POOL_OPTIONS;
    o.ignore_environment = true;
    assert_ok(memfit_pool_create(device, &o, &pool, &err), err);
    assert_ok(memfit_pool_create(device, &o, &other, &err), err);
    memfit_recorder *r = recorder_of(65536, NULL);
    assert_ok(memfit_pool_record(pool, r, &err), err);
    assert_int_equal(memfit_pool_record(other, r, &err), MEMFIT_CONFLICT);
    memfit_owner owners[3];
    for (unsigned i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer %u", i);
        assert_ok(memfit_pool_owner(pool, MEMFIT_KIND_GRADIENTS, name, &owners[i], &err), err);
    }
    memfit_address held[64] = {0}, address;
    for (unsigned i = 0; i < 2000; i++) {
        unsigned k = i * 7919 % 64;
        if (held[k])
            assert_ok(memfit_pool_free(pool, held[k], &err), err);
        assert_ok(memfit_pool_alloc(pool, 100 + i * 37 % 300000, owners[i % 3], &held[k], &err), err);
    }
    assert_int_equal(memfit_pool_alloc(pool, 80 << 20, owners[2], &address, &err), MEMFIT_OUT_OF_MEMORY);
    memfit_pool_info ledger = MEMFIT_POOL_INFO;
    assert_ok(memfit_pool_get_info(pool, &ledger, &err), err);
    assert_ok(memfit_pool_record(pool, NULL, &err), err);
    assert_ok(memfit_pool_alloc(pool, 1000, 0, &address, &err), err); /* no longer recorded */
    assert_ok(memfit_recorder_save(r, scratch, &err), err);
    memfit_trace *trace = load(scratch);
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_int_equal(info.buffers, 2000);
    assert_int_equal(info.end_live_bytes, ledger.in_use_bytes);
    assert_int_equal(info.peak_live_bytes, ledger.in_use_peak_bytes);
    assert_int_equal(info.failures, 1);
    assert_int_equal(info.names, 4);
    assert_int_equal(info.before_buffers, 0);
    uint64_t count, mapped = 0;
    const memfit_event *e = memfit_trace_events(trace, &count);
    for (uint64_t i = 0; i < count; i++)
        mapped += e[i].op == MEMFIT_EVENT_MAP ? e[i].bytes : 0;
    assert_true(mapped >= ledger.reserved_peak_bytes);
    memfit_trace_destroy(trace);
    memfit_recorder_destroy(r);
    memfit_pool_destroy(pool);
    memfit_pool_destroy(other);
    assert_ok(memfit_device_close(device, &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pools_record_themselves),
        cmocka_unit_test(ring_is_saved_and_loaded),
        cmocka_unit_test(ring_keeps_the_newest),
        cmocka_unit_test(files_take_all_events),
        cmocka_unit_test(threads_record_together),
        cmocka_unit_test(names_run_out_quietly),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(unclosed_files_are_read_as_far_as_they_go),
        cmocka_unit_test(what_was_there_before_is_put_first),
        cmocka_unit_test(snapshots_are_imported),
        cmocka_unit_test(other_pickles_are_no_traces),
        cmocka_unit_test(csv_is_imported),
        cmocka_unit_test(csv_errors_name_the_line),
        cmocka_unit_test(recorded_traces_have_their_known_totals),
        cmocka_unit_test(failing_memory_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, make_scratch, drop_scratch);
}
