/* test_report.c: memfit report's figures against a naive walk over random traces; two reports; names; widths. */
#include "test.h"

#include "answer/report_bands.h"
#include "answer/report_parts.h"
#include "trace/trace.h"

#include <dirent.h>

enum { MOST = 4000, OWNERS = 12 };

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
}

/* ---- random traces ---------------------------------------------------------------------------------------- */

/* Steps of random buffers; owner 0 keeps one more buffer each step when `leak`. */
static void write_random(const char *path, uint64_t seed, bool names, bool leak)
{
    static uint64_t alive[MOST], bytes[MOST];
    uint32_t count = 0;
    uint64_t time = 0, next = 0;
    mf_trace_builder b;
    memfit_error err;
    state = seed;
    assert_ok(mf_trace_builder_begin(&b, NULL, MEMFIT_TRACE_MEMFIT, MF_TRACE_REPAIR, "event", 64, &err), err);
    uint64_t steps = 4 + draw(8), each = 20 + draw(100);
    for (uint64_t s = 0; s < steps; s++) {
        char text[64];
        memfit_event mark = {.time_ns = time, .op = MEMFIT_EVENT_MARK};
        snprintf(text, sizeof text, "step %d", (int)s);
        assert_ok(mf_trace_builder_name(&b, text, strlen(text), &mark.name, &err), err);
        assert_ok(mf_trace_builder_add(&b, &mark, 0, &err), err);
        for (uint64_t i = 0; i < each; i++) {
            memfit_event e = {.time_ns = time += draw(1000), .kind = (uint8_t)draw(MEMFIT_KIND_COUNT)};
            bool kept = leak && i == 0;
            if (!kept && count && (draw(2) || count > MOST / 2)) {
                uint64_t k = draw(count);
                e.op = MEMFIT_EVENT_FREE;
                e.id = alive[k];
                e.bytes = bytes[k];
                alive[k] = alive[--count];
                bytes[k] = bytes[count];
            } else {
                e.op = MEMFIT_EVENT_ALLOC;
                e.id = next++;
                e.bytes = kept ? 1 << 22 : draw(1 << 20);
                e.kind = kept ? MEMFIT_KIND_ACTIVATIONS : e.kind;
                snprintf(text, sizeof text, "owner %d", kept ? 0 : (int)(1 + draw(OWNERS)));
                if (names)
                    assert_ok(mf_trace_builder_name(&b, text, strlen(text), &e.name, &err), err);
                if (!kept) {
                    alive[count] = e.id;
                    bytes[count++] = e.bytes;
                }
            }
            assert_ok(mf_trace_builder_add(&b, &e, 0, &err), err);
        }
        while (count > 3) { /* what a step ends with */
            memfit_event e = {
                .time_ns = time += draw(10), .op = MEMFIT_EVENT_FREE, .id = alive[--count], .bytes = bytes[count]};
            assert_ok(mf_trace_builder_add(&b, &e, 0, &err), err);
        }
    }
    memfit_trace *trace;
    assert_ok(mf_trace_builder_end(&b, &trace, &err), err);
    assert_ok(memfit_trace_save(trace, path, &err), err);
    memfit_trace_destroy(trace);
}

static mf_report *open_report(const char *path)
{
    mf_report *r = NULL;
    memfit_error err;
    assert_ok(mf_report_open(path, &(mf_report_options){0}, &r, &err), err);
    return r;
}

/* ---- the oracle: every buffer looked at again after every event -------------------------------------------- */

typedef struct buffer {
    uint64_t bytes, from, to; /* events: alive after `from`, no more after `to` */
    uint64_t from_ns, to_ns;
    uint32_t owner;
} buffer;

static buffer *read_buffers(const mf_report *r)
{
    buffer *list = calloc(r->info.buffers, sizeof *list);
    for (uint64_t i = 0; i < r->event_count; i++) {
        const memfit_event *e = &r->events[i];
        if (e->op == MEMFIT_EVENT_ALLOC)
            list[e->id] = (buffer){e->bytes, i, UINT64_MAX, e->time_ns, r->duration_ns, r->owner_of[e->id]};
        else if (e->op == MEMFIT_EVENT_FREE)
            list[e->id].to = i, list[e->id].to_ns = e->time_ns;
    }
    return list;
}

static uint64_t live_at(const mf_report *r, const buffer *b, uint64_t event, uint32_t owner)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < r->info.buffers; i++)
        if ((owner == MF_REPORT_NO_OWNER || b[i].owner == owner) && b[i].from <= event && event < b[i].to)
            sum += b[i].bytes;
    return sum;
}

static void check_owner(const mf_report *r, const buffer *b, uint32_t k)
{
    const mf_report_owner *o = &r->owners[k];
    uint64_t most = 0, longest = 0;
    double weight = 0;
    for (uint64_t i = 0; i < r->event_count; i += 1)
        if (mf_report_moves(r, &r->events[i]) && r->owner_of[r->events[i].id] == k) {
            uint64_t now = live_at(r, b, i, k);
            most = now > most ? now : most;
        }
    for (uint64_t i = 0; i < r->info.buffers; i++)
        if (b[i].owner == k) {
            weight += (double)b[i].bytes * (double)(b[i].to_ns - b[i].from_ns) / 1e9;
            longest = b[i].to_ns - b[i].from_ns > longest ? b[i].to_ns - b[i].from_ns : longest;
        }
    assert_int_equal(o->peak_bytes, live_at(r, b, r->peak_event, k));
    assert_int_equal(o->end_bytes, live_at(r, b, r->event_count - 1, k));
    assert_int_equal(o->most_bytes, most);
    assert_int_equal(o->longest_ns, longest);
    assert_true(o->byte_seconds <= weight * 1.000001 + 1e-9 && o->byte_seconds >= weight * 0.999999 - 1e-9);
    uint32_t rises = 0, falls = 0;
    for (uint32_t s = 2; s < r->step_count; s++) {
        uint64_t before = live_at(r, b, r->steps[s - 1].event, k), now = live_at(r, b, r->steps[s].event, k);
        rises += now > before;
        falls += now < before;
    }
    assert_int_equal(o->rises, rises);
    assert_int_equal(o->falls, falls);
    assert_int_equal(o->first_bytes, live_at(r, b, r->steps[1].event, k));
    assert_int_equal(o->last_bytes, live_at(r, b, r->steps[r->step_count - 1].event, k));
}

static void check_report(const mf_report *r)
{
    buffer *b = read_buffers(r);
    uint64_t peak = 0, sum = 0, kinds = 0;
    for (uint64_t i = 0; i < r->event_count; i++) {
        uint64_t now = live_at(r, b, i, MF_REPORT_NO_OWNER);
        assert_true(i != r->peak_event || now > peak); /* the first such moment */
        peak = now > peak ? now : peak;
    }
    assert_int_equal(r->peak_bytes, peak);
    assert_int_equal(r->peak_bytes, r->info.peak_live_bytes);
    for (uint32_t k = 0; k < r->owner_count; k++) {
        check_owner(r, b, k);
        sum += r->owners[k].peak_bytes;
    }
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        kinds += r->kind_bytes[k];
    assert_int_equal(sum, peak);
    assert_int_equal(kinds, peak);
    for (uint32_t s = 0; s < r->step_count; s++) {
        uint64_t end = s + 1 < r->step_count ? r->steps[s + 1].event : r->event_count, most = 0;
        for (uint64_t i = r->steps[s].event; i < end; i++) {
            uint64_t now = live_at(r, b, i, MF_REPORT_NO_OWNER);
            most = now > most ? now : most;
        }
        assert_int_equal(r->steps[s].peak_bytes, most);
        assert_int_equal(mf_report_step_of(r, r->steps[s].event), s + 1);
        assert_int_equal(mf_report_step_of(r, end - 1), s + 1);
    }
    uint64_t columns[37], highest = 0;
    mf_report_curve(r, 37, columns, NULL);
    for (int i = 0; i < 37; i++)
        highest = columns[i] > highest ? columns[i] : highest;
    assert_int_equal(highest, peak);
    free(b);
}

static void test_random(void **s)
{
    (void)s;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        write_random(test_path("t"), seed, seed % 3 != 0, seed % 2);
        mf_report *r = open_report(test_path("t"));
        assert_int_equal(r->by_size, seed % 3 == 0);
        check_report(r);
        mf_report_close(r);
    }
}

static void test_growth(void **s)
{
    (void)s;
    write_random(test_path("t"), 5, true, true);
    mf_report *r = open_report(test_path("t"));
    const mf_report_owner *grows = NULL;
    for (uint32_t k = 0; k < r->owner_count; k++)
        if (strcmp(r->owners[k].name, "owner 0") == 0)
            grows = &r->owners[k];
    assert_non_null(grows);
    assert_true(grows->growing);
    assert_int_equal(grows->last_bytes - grows->first_bytes, (uint64_t)r->growth_steps << 22);
    mf_report_close(r);
    write_random(test_path("t"), 5, true, false);
    r = open_report(test_path("t"));
    for (uint32_t k = 0; k < r->owner_count; k++)
        assert_string_not_equal(r->owners[k].name, "owner 0");
    mf_report_close(r);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Six rises and falls without a mark are six steps; without names owners are sizes. */
static void test_found_steps(void **s)
{
    (void)s;
    FILE *f = fopen(test_path("t.csv"), "w");
    fputs("time_us,op,id,bytes\n0,alloc,1000,500\n", f);
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < 10; k++)
            fprintf(f, "%d,alloc,%d,1000\n", i * 100 + k, i * 20 + k);
        for (int k = 9; k >= 0; k--)
            fprintf(f, "%d,free,%d,1000\n", i * 100 + 50, i * 20 + k);
        fprintf(f, "%d,alloc,%d,64\n", i * 100 + 51, 2000 + i);
    }
    fclose(f);
    mf_report *r = open_report(test_path("t.csv"));
    assert_true(r->by_size && r->steps_found);
    assert_int_equal(r->step_count, 6);
    assert_string_equal(r->owners[0].name, "buffers of 1,000 bytes");
    assert_int_equal(r->growing, 1);
    assert_int_equal(r->peak_bytes, 500 + 10000 + 5 * 64);
    mf_report_close(r);
}

/* ---- columns and rows ------------------------------------------------------------------------------------- */

static uint64_t read_varint(const unsigned char **p)
{
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        v |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128))
            return v;
    }
}

/* What the page's script does. */
static void check_series(const unsigned char **p, const uint64_t *want, const uint64_t *less, uint32_t count, bool sums)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < count;) {
        uint64_t z = read_varint(p), more = z ? 0 : read_varint(p);
        int64_t d = (int64_t)(z >> 1) ^ -(int64_t)(z & 1);
        last = sums ? last + (uint64_t)d : (uint64_t)d;
        for (uint64_t k = 0; k <= more; k++, i++)
            assert_int_equal(want[i], (less ? less[i] : 0) + last);
    }
}

static void check_bands(const mf_report *r, uint32_t columns, uint32_t rows)
{
    mf_report_bands b;
    memfit_error err;
    assert_ok(mf_report_cut(r, columns, rows, &b, &err), err);
    assert_true(b.columns <= columns && b.rows <= rows + MEMFIT_KIND_COUNT);
    uint64_t highest = 0;
    double area = 0, want = 0;
    for (uint32_t c = 0; c < b.columns; c++) {
        uint64_t sum = 0;
        assert_true(b.events[c] < b.events[c + 1] && b.times[c] <= b.times[c + 1]);
        assert_true(b.when[c] >= b.times[c] && b.when[c] <= b.times[c + 1]);
        for (uint32_t k = 0; k < b.rows; k++) {
            sum += b.at[k * b.columns + c];
            area += (double)b.mean[k * b.columns + c] * (double)(b.times[c + 1] - b.times[c]) / 1e9;
        }
        assert_int_equal(sum, b.total[c]);
        highest = sum > highest ? sum : highest;
    }
    for (uint32_t k = 0; k < r->owner_count; k++)
        want += r->owners[k].byte_seconds;
    assert_int_equal(highest, r->peak_bytes);
    assert_int_equal(b.total[b.peak], r->peak_bytes);
    assert_true(area <= want * 1.0001 + 1 && area >= want * 0.9999 - 1); /* means are whole bytes */
    unsigned char *data;
    size_t bytes;
    assert_ok(mf_report_pack(&b, NULL, &data, &bytes, &err), err);
    const unsigned char *p = data;
    check_series(&p, b.events, NULL, b.columns + 1, true);
    check_series(&p, b.times, NULL, b.columns + 1, true);
    check_series(&p, b.total, NULL, b.columns, true);
    check_series(&p, b.when, b.times, b.columns, false);
    for (uint32_t k = 0; k < b.rows; k++) {
        check_series(&p, &b.at[k * b.columns], NULL, b.columns, true);
        check_series(&p, &b.mean[k * b.columns], &b.at[k * b.columns], b.columns, false);
    }
    assert_ptr_equal(p, data + bytes);
    mf_report_bands_free(&b);
}

static void test_bands(void **s)
{
    (void)s;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        write_random(test_path("t"), seed, seed % 2, seed % 3 == 0);
        mf_report *r = open_report(test_path("t"));
        check_bands(r, 4096, 400);
        check_bands(r, 64, 5);
        check_bands(r, 10, 0);
        mf_report_close(r);
    }
}

/* ---- two reports ------------------------------------------------------------------------------------------ */

static void check_difference(const mf_report *a, const mf_report *b)
{
    mf_report_difference d;
    memfit_error err;
    assert_ok(mf_report_compare(a, b, &d, &err), err);
    int64_t sum = 0;
    for (uint32_t i = 0; i < d.count; i++) {
        assert_true(d.changes[i].before != d.changes[i].after);
        sum += (int64_t)(d.changes[i].after - d.changes[i].before);
    }
    assert_int_equal(d.peak_bytes, (int64_t)(b->peak_bytes - a->peak_bytes));
    assert_int_equal(sum, d.peak_bytes);
    if (a == b)
        assert_int_equal(d.count, 0);
    mf_report_difference_free(&d);
}

static void test_compare(void **s)
{
    (void)s;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        write_random(test_path("a"), seed, true, false);
        write_random(test_path("b"), seed + 100, seed % 4 != 0, true);
        mf_report *a = open_report(test_path("a")), *b = open_report(test_path("b"));
        check_difference(a, b);
        check_difference(b, a);
        check_difference(a, a);
        mf_report_close(a);
        mf_report_close(b);
    }
}

/* Recorded traces, where they are: each peak is the reader's own, every pair adds up. */
static void test_recorded(void **s)
{
    (void)s;
    char folder[4096], path[8192];
    mf_report *reports[64];
    unsigned count = 0;
    if (!test_shared_data())
        skip();
    snprintf(folder, sizeof folder, "%s/traces", test_shared_data());
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) && count < 64;)
        if (strstr(e->d_name, ".csv") || strstr(e->d_name, ".pickle")) {
            snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
            mf_report *r = reports[count++] = open_report(path);
            assert_int_equal(r->peak_bytes, r->info.peak_live_bytes);
        }
    if (d)
        closedir(d);
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < count; j++)
            check_difference(reports[i], reports[j]);
    for (unsigned i = 0; i < count; i++)
        mf_report_close(reports[i]);
}

/* ---- memory that fails, names, widths ---------------------------------------------------------------------- */

static void test_fault(void **s)
{
    (void)s;
    write_random(test_path("t"), 9, true, true);
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, true);
        mf_report *a = NULL;
        mf_report_difference d = {0};
        memfit_error err;
        memfit_status status = mf_report_open(test_path("t"), &(mf_report_options){.host = &fault.host}, &a, &err);
        if (!status)
            status = mf_report_compare(a, a, &d, &err);
        mf_report_difference_free(&d);
        mf_report_close(a);
        assert_int_equal(fault.live_count, 0);
        if (!status)
            break;
        assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
        assert_true(n < 10000);
    }
}

static void test_folders_are_hidden(void **s)
{
    (void)s;
    static const char *const pairs[][2] = {
        {"conv1/kernel", "conv1/kernel"},
        {"f (/home/me/a.py:3) < g (/b.py:1)", "f (a.py:3) < g (b.py:1)"},
        {"/home/me/run/", "run/"},
        {"~me/x.py", "x.py"},
        {"file:///home/me/x.py", "file:x.py"},
        {"C:\\Users\\me\\x.py: f", "x.py: f"},
        {"a / b", "a / b"},
        {"/", "/"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char out[128];
        mf_report_hide_folders(pairs[i][0], out);
        assert_string_equal(out, pairs[i][1]);
    }
    write_text(test_path("t.csv"), "time_us,op,id,bytes,owner\n0,alloc,0,8,f (/home/me/a.py:3)\n");
    mf_report *r = open_report(test_path("t.csv"));
    assert_string_equal(r->owners[0].name, "f (a.py:3)");
    assert_string_equal(r->title, "t.csv");
    mf_report_close(r);
    memfit_error err;
    assert_ok(mf_report_open(test_path("t.csv"), &(mf_report_options){.with_names = true}, &r, &err), err);
    assert_string_equal(r->owners[0].name, "f (/home/me/a.py:3)");
    mf_report_close(r);
}

static void check_width(const mf_report *a, const mf_report *b, unsigned columns, bool utf8)
{
    char *text = NULL;
    size_t bytes;
    mf_report_difference d = {0};
    memfit_error err;
    FILE *f = open_memstream(&text, &bytes);
    if (b)
        assert_ok(mf_report_compare(a, b, &d, &err), err);
    mf_report_print(
        f,
        &(mf_report_view){
            .report = a, .other = b, .difference = b ? &d : NULL, .columns = columns, .utf8 = utf8, .verbose = true});
    fclose(f);
    unsigned width = 0;
    for (char *p = text; *p; p++) {
        assert_true((unsigned char)*p >= 32 || *p == '\n');
        width = *p == '\n' ? 0 : width + (((unsigned char)*p & 0xc0) != 0x80);
        if (width > columns)
            fprintf(stderr, "%.*s\n", 200, p - width);
        assert_true(width <= columns);
    }
    mf_report_difference_free(&d);
    free(text);
}

static void test_width(void **s)
{
    (void)s;
    FILE *f = fopen(test_path("t.csv"), "w");
    fputs("time_us,op,id,bytes,kind,owner\n", f);
    for (int i = 0; i < 30; i++) {
        fprintf(f, "%d,alloc,%d,%d,activations,\"%d\xe2\x80\xae\x1b[31m", i * 1000, i, 1 << (i % 25), i);
        for (int k = 0; k < 10 * i; k++)
            fputs(i % 2 ? "<b>" : "日本", f);
        fputs("\"\n", f);
    }
    fclose(f);
    mf_report *a = open_report(test_path("t.csv"));
    write_random(test_path("t"), 3, true, true);
    mf_report *b = open_report(test_path("t"));
    memfit_error err;
    assert_ok(mf_report_replay(b, NULL, 0, &err), err);
    assert_true(b->pool.known && b->pool.physical_bytes >= b->peak_bytes);
    for (unsigned columns = 80; columns <= 120; columns += 20) {
        check_width(a, NULL, columns, true);
        check_width(b, NULL, columns, false);
        check_width(a, b, columns, true);
    }
    mf_report_close(a);
    mf_report_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),      cmocka_unit_test(test_growth),
        cmocka_unit_test(test_found_steps), cmocka_unit_test(test_bands),
        cmocka_unit_test(test_compare),     cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_fault),       cmocka_unit_test(test_folders_are_hidden),
        cmocka_unit_test(test_width),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
