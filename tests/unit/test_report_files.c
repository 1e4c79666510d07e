/* test_report_files.c: what memfit report writes: a trace for memory_viz that comes back, and every output with memory that fails. */
#include "test.h"

#include "answer/report_export.h"
#include "answer/report_page.h"
#include "trace/torch_frames.h"
#include "trace/trace.h"
#include "trace/trace_write.h"

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
}

/* ---- other viewers ---------------------------------------------------------------------------------------- */

/* Every op, two devices, streams, names that are stacks and names that are not. */
static memfit_trace *make_odd(uint64_t seed)
{
    static const char *const names[] = {"",
                                        "conv1/kernel",
                                        "f (a.py:3) < g (b.py:9)",
                                        "f (a.py:3) < g",
                                        "x (y.py:007)",
                                        "h (<stdin>:1)",
                                        "f (a.py:3) < g (b.py:9) < h (c.py:1) < i (d.py:2)",
                                        "\xff(",
                                        "a;b<c>"};
    mf_trace_builder b;
    memfit_error err;
    uint64_t time = 5000, alive[64] = {0}, count = 0, next = 1;
    state = seed;
    assert_ok(mf_trace_builder_begin(&b, NULL, MEMFIT_TRACE_MEMFIT, MF_TRACE_REPAIR, "event", 64, &err), err);
    for (int i = 0; i < 3000; i++) {
        static const uint8_t others[] = {MEMFIT_EVENT_FAIL,  MEMFIT_EVENT_MAP,   MEMFIT_EVENT_UNMAP,
                                         MEMFIT_EVENT_REMAP, MEMFIT_EVENT_LIMIT, MEMFIT_EVENT_MARK};
        const char *name = names[draw(sizeof names / sizeof *names)];
        memfit_event e = {.time_ns = (time += draw(3) * 1000), .kind = (uint8_t)draw(MEMFIT_KIND_COUNT)};
        uint64_t k = count ? draw(count) : 0, what = draw(10);
        if (what < 4 && count < 64) {
            e.op = MEMFIT_EVENT_ALLOC;
            e.id = alive[count++] = next++;
            e.bytes = draw(5) * 700;
            e.device = e.id % 5 == 0;
            e.stream = (uint8_t)(e.id % 3);
        } else if (what < 8 && count) {
            e.op = what == 4 ? MEMFIT_EVENT_FREE_ASKED : MEMFIT_EVENT_FREE;
            e.id = alive[k];
            e.device = e.id % 5 == 0;
            e.stream = (uint8_t)(e.id % 3);
            e.bytes = 0;
            if (what != 4)
                alive[k] = alive[--count];
        } else {
            e.op = others[draw(sizeof others)];
            e.id = e.op == MEMFIT_EVENT_MAP || e.op == MEMFIT_EVENT_UNMAP || e.op == MEMFIT_EVENT_REMAP ? draw(1 << 20)
                                                                                                        : 0;
            e.bytes = e.op == MEMFIT_EVENT_MARK ? 0 : draw(1 << 20);
            name = e.op == MEMFIT_EVENT_MARK ? "step" : name;
        }
        assert_ok(mf_trace_builder_stream(&b, e.stream, &e.stream, &err), err);
        if (e.op != MEMFIT_EVENT_FREE && e.op != MEMFIT_EVENT_FREE_ASKED)
            assert_ok(mf_trace_builder_name(&b, name, strlen(name), &e.name, &err), err);
        assert_ok(mf_trace_builder_add(&b, &e, 0, &err), err);
    }
    memfit_trace *trace;
    assert_ok(mf_trace_builder_end(&b, &trace, &err), err);
    return trace;
}

static uint64_t next_of(const memfit_event *e, uint64_t count, uint64_t i, unsigned device)
{
    while (i < count && e[i].device != device)
        i++;
    return i;
}

/* By device: events of two devices within one microsecond may change places. Buffers are numbered by first use, so their
 * numbers are compared through a table. */
static void check_same(const memfit_trace *a, const memfit_trace *b)
{
    uint64_t n, m;
    const memfit_event *x = memfit_trace_events(a, &n), *y = memfit_trace_events(b, &m);
    assert_int_equal(n, m);
    uint64_t *twin = calloc(n + 1, sizeof *twin);
    for (unsigned d = 0; d < 2; d++)
        for (uint64_t i = next_of(x, n, 0, d), j = next_of(y, m, 0, d); i < n || j < m;
             i = next_of(x, n, i + 1, d), j = next_of(y, m, j + 1, d)) {
            assert_true(i < n && j < m);
            bool of_buffer = x[i].op >= MEMFIT_EVENT_ALLOC && x[i].op <= MEMFIT_EVENT_FREE_ASKED;
            assert_int_equal(x[i].op, y[j].op);
            assert_int_equal(x[i].time_ns / 1000, y[j].time_ns / 1000);
            if (x[i].op == MEMFIT_EVENT_ALLOC)
                twin[x[i].id] = y[j].id;
            if (x[i].op != MEMFIT_EVENT_FREE_ASKED) {
                assert_int_equal(x[i].bytes, y[j].bytes);
                assert_int_equal(x[i].kind, y[j].kind);
                const char *p = memfit_trace_name(a, x[i].name), *q = memfit_trace_name(b, y[j].name);
                if (*p != (char)0xff) /* no UTF-8: comes back as a question mark */
                    assert_string_equal(p, q);
            }
            assert_int_equal(of_buffer ? twin[x[i].id] : x[i].op == MEMFIT_EVENT_FAIL ? 0 : x[i].id, y[j].id);
            assert_int_equal(x[i].stream, y[j].stream);
        }
    free(twin);
}

static void test_viz_comes_back(void **s)
{
    (void)s;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        memfit_trace *a = make_odd(seed), *b = NULL;
        memfit_error err;
        assert_ok(mf_trace_write_viz(&(mf_trace_view){.trace = a, .title = "t"}, test_path("v"), &err), err);
        assert_ok(memfit_trace_load(test_path("v"), NULL, &b, &err), err);
        assert_ok(mf_trace_check(b, &err), err);
        check_same(a, b);
        memfit_trace_destroy(a);
        memfit_trace_destroy(b);
    }
}

static void test_frames(void **s)
{
    (void)s;
    mf_torch_frame f[MF_TORCH_MOST_FRAMES];
    assert_int_equal(mf_torch_split("", f), 0);
    assert_int_equal(mf_torch_split("f (a.py:3) < g (b.py:9)", f), 2);
    assert_int_equal(f[1].line, 9);
    assert_memory_equal(f[1].file, "b.py", f[1].file_bytes);
    static const char *const whole[] = {"conv/kernel", "f (a.py:03)", "f (a.py:3) < g", "f (a/b.py:1)",
                                        "(a.py:3)",    "f (a.c:3)",   "f (a.py:)",      "f (<memfit>:0)"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        assert_int_equal(mf_torch_split(whole[i], f), 1);
        assert_int_equal(f[0].name_bytes, strlen(whole[i]));
        assert_string_equal(f[0].file, MF_TORCH_NAME_FILE);
    }
}

/* Every allocation fails in turn: no file, nothing kept. */
static void test_outputs_fault(void **s)
{
    (void)s;
    memfit_trace *odd = make_odd(11);
    assert_ok(memfit_trace_save(odd, test_path("t"), NULL), (memfit_error){0});
    memfit_trace_destroy(odd);
    for (int which = 0; which < 5; which++)
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_report *r = NULL;
            memfit_error err;
            mf_fault_host_init(&fault, NULL, 0, true);
            assert_ok(mf_report_open(test_path("t"), &(mf_report_options){.host = &fault.host}, &r, &err), err);
            fault.fail_at = fault.calls + n;
            unlink(test_path("o"));
            memfit_status status = which == 0   ? mf_report_write_page(test_path("o"), r, NULL, NULL, &err)
                                   : which == 1 ? mf_report_write_viz(r, test_path("o"), &err)
                                   : which == 2 ? mf_report_write_perfetto(r, test_path("o"), &err)
                                   : which == 3 ? mf_report_write_tensorboard(r, test_path("tb"), &err)
                                                : mf_report_write_flame(r, test_path("o"), &err);
            mf_report_close(r);
            assert_int_equal(fault.live_count, 0);
            if (!status)
                break;
            assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
            assert_int_not_equal(access(test_path("o"), F_OK), 0);
            assert_true(n < 1000);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_viz_comes_back),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_outputs_fault),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
