/* test_trace_ring.c: the recorder's file when its process is killed: nothing that was put is lost. Also the first version
 * of the format, and targets that cannot be mapped. */
#include "test.h"

#include "memfit/trace.h"
#include "trace/trace.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zlib.h>

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
    mf_trace_put(r, op, id, bytes, MEMFIT_KIND_ACTIVATIONS, memfit_recorder_name(r, owner), 0);
}

static void record_some(memfit_recorder *r)
{
    put(r, MEMFIT_EVENT_ALLOC, 0x1000, 100, "conv1");
    put(r, MEMFIT_EVENT_ALLOC, 0x2000, 1000, "a name of more than thirty-two bytes, so of several cells");
    put(r, MEMFIT_EVENT_FREE, 0x1000, 100, "conv1");
}

static void check_some(const memfit_trace *trace)
{
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    uint64_t count;
    const memfit_event *e = memfit_trace_events(trace, &count);
    assert_int_equal(count, 3);
    assert_int_equal(info.peak_live_bytes, 1100);
    assert_int_equal(info.end_live_bytes, 1000);
    assert_string_equal(memfit_trace_name(trace, e[0].name), "conv1");
}

/* As the first version wrote it: cells right behind the header, closed when it says how many. */
static void version_1_is_read(void **state)
{
    (void)state;
    struct {
        mf_trace_header header;
        memfit_event cells[6];
    } file = {.header = {.version = 1, .cell_bytes = 32, .cells = 6, .unix_time_us = 7}};
    memcpy(file.header.magic, MF_TRACE_MAGIC, 8);
    file.cells[0] = (memfit_event){.op = MF_TRACE_NAME, .name = 1, .bytes = 5};
    memcpy(&file.cells[1], "conv1", 5);
    file.cells[2] = (memfit_event){.time_ns = 1, .op = MEMFIT_EVENT_ALLOC, .id = 77, .bytes = 100, .name = 1};
    file.cells[3] = (memfit_event){.time_ns = 2, .op = MEMFIT_EVENT_ALLOC, .id = 78, .bytes = 10};
    file.cells[4] = (memfit_event){.time_ns = 3, .op = MEMFIT_EVENT_FREE, .id = 77, .bytes = 100, .name = 1};
    file.cells[5] = (memfit_event){.time_ns = 4, .op = MEMFIT_EVENT_FREE, .id = 78, .bytes = 10};
    file.header.crc32 = (uint32_t)crc32(0, (const Bytef *)file.cells, sizeof file.cells);
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace *trace;
    memfit_error err;
    for (int closed = 1; closed >= 0; closed--) {
        file.header.cells = closed ? 6 : 0;
        assert_ok(memfit_trace_read(&file, sizeof file, NULL, &trace, &err), err);
        memfit_trace_describe(trace, &info, NULL);
        assert_int_equal(info.events, 4);
        assert_int_equal(info.peak_live_bytes, 110);
        assert_int_equal(info.cut, !closed);
        assert_string_equal(memfit_trace_name(trace, 1), "conv1");
        memfit_trace_destroy(trace);
    }
    file.cells[5].op = MF_TRACE_BLOCK; /* the second version's */
    assert_int_equal(memfit_trace_read(&file, sizeof file, NULL, &trace, &err), MEMFIT_DAMAGED);
}

/* A name with another for its caller is a frame of a stack; its callers may stand before or behind it. */
static void frames_are_joined(void **state)
{
    (void)state;
    struct {
        mf_trace_header header;
        memfit_event cells[9];
    } file = {.header = {.version = 2, .cell_bytes = 32, .unix_time_us = 7, .cells_at = sizeof(mf_trace_header)}};
    memcpy(file.header.magic, MF_TRACE_MAGIC, 8);
    const struct {
        uint32_t number, parent;
        const char *text, *whole;
    } given[] = {{2, 3, "take", "take < layer < main"},
                 {3, 1, "layer", "layer < main"},
                 {1, 0, "main", "main"},
                 {4, 9, "alone", "alone"}}; /* no such caller */
    for (int i = 0; i < 4; i++) {
        size_t n = strlen(given[i].text);
        file.cells[2 * i] =
            (memfit_event){.op = MF_TRACE_NAME, .name = given[i].number, .bytes = n, .id = given[i].parent};
        memcpy(&file.cells[2 * i + 1], given[i].text, n);
    }
    for (int i = 0; i < 4; i++) {
        file.cells[8] = (memfit_event){.op = MEMFIT_EVENT_ALLOC, .id = 7, .bytes = 100, .name = given[i].number};
        memfit_trace *trace;
        memfit_error err;
        uint64_t count;
        assert_ok(memfit_trace_read(&file, sizeof file, NULL, &trace, &err), err);
        const memfit_event *e = memfit_trace_events(trace, &count);
        assert_int_equal(count, 1);
        assert_string_equal(memfit_trace_name(trace, e->name), given[i].whole);
        memfit_trace_destroy(trace);
    }
    file.cells[4].id = 2; /* main, called by take: a circle, as long as a name can be */
    memfit_trace *trace;
    memfit_error err;
    assert_ok(memfit_trace_read(&file, sizeof file, NULL, &trace, &err), err);
    for (uint32_t i = 1; i < 4; i++)
        assert_in_range(strlen(memfit_trace_name(trace, i)), 200, 255);
    memfit_trace_destroy(trace);
}

/* Records without end and says after each event how many there were: allocations and frees in turn, their bytes their
 * number. */
static _Noreturn void record_until_killed(const char *path, uint64_t *done)
{
    memfit_recorder *r = recorder_of(16, path); /* as small a ring as there is: it is emptied all the time */
    for (uint64_t i = 0;; i++) {
        put(r, i % 2 ? MEMFIT_EVENT_FREE : MEMFIT_EVENT_ALLOC, i / 2, i / 2 + 1, i % 50 < 25 ? "even" : "odd");
        __atomic_store_n(done, i + 1, __ATOMIC_RELEASE);
        if (i % 4096 == 4095) {
            char name[32]; /* and names come all the time, up to the most */
            snprintf(name, sizeof name, "owner %u", (unsigned)(i / 4096 % 2000));
            memfit_recorder_name(r, name);
        }
        if (i % 1024 == 1023)
            usleep(50); /* one that computes now and then: the file must not fill the disk */
    }
}

/* SIGKILL at a random moment: every event that was put is there, in order. TRACE_KILLS: how often (1,000 by hand). */
static void kills_lose_nothing(void **state)
{
    (void)state;
    int kills = getenv("TRACE_KILLS") ? atoi(getenv("TRACE_KILLS")) : 25;
    uint64_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), seen = 0;
    assert_true(done != MAP_FAILED);
    unsigned seed = 1;
    for (int k = 0; k < kills; k++) {
        *done = 0;
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            record_until_killed(test_path("trace"), done);
        while (!__atomic_load_n(done, __ATOMIC_ACQUIRE))
            usleep(100);
        usleep((unsigned)rand_r(&seed) % 20000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        uint64_t count, put_events = *done;
        memfit_trace *trace = load(test_path("trace"));
        const memfit_event *e = memfit_trace_events(trace, &count);
        memfit_trace_info info = MEMFIT_TRACE_INFO;
        memfit_trace_describe(trace, &info, NULL);
        assert_true(info.cut);
        assert_int_equal(info.repaired, 0);
        assert_in_range(count, put_events, put_events + 1);
        for (uint64_t i = 0; i < count; i++)
            if (e[i].bytes != i / 2 + 1 || e[i].op != (i % 2 ? MEMFIT_EVENT_FREE : MEMFIT_EVENT_ALLOC))
                fail_msg("kill %d: event %lu of %lu is wrong", k, (unsigned long)i, (unsigned long)count);
        assert_string_equal(memfit_trace_name(trace, e[0].name), "even");
        seen += count;
        memfit_trace_destroy(trace);
    }
    munmap(done, 4096);
    printf("%d kills, %lu events, none lost\n", kills, (unsigned long)seen);
}

/* A killed process's file, damaged or cut anywhere: read, or refused; never more than that. */
static void damaged_rings_are_refused_or_read(void **state)
{
    (void)state;
    uint64_t *done = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(done != MAP_FAILED);
    *done = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        record_until_killed(test_path("trace"), done);
    while (__atomic_load_n(done, __ATOMIC_ACQUIRE) < 700)
        usleep(100);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    munmap(done, 4096);
    mf_mapping m;
    memfit_error err;
    assert_ok(mf_os_map_file(test_path("trace"), &m, &err), err);
    size_t n = m.bytes < 40000 ? m.bytes : 40000; /* header, ring, the first blocks */
    unsigned char *data = malloc(n);
    memcpy(data, m.data, n);
    mf_os_unmap_file(&m);
    for (size_t i = 0; i < n; i += i < 256 ? 1 : 101)
        for (int bit = 0; bit < 2; bit++) {
            data[i] ^= bit ? 0x80 : 0x01;
            memfit_trace *trace;
            memfit_status status = memfit_trace_read(data, n, NULL, &trace, &err);
            if (status == MEMFIT_OK) {
                assert_ok(mf_trace_check(trace, &err), err);
                memfit_trace_destroy(trace);
            } else {
                assert_true(status == MEMFIT_DAMAGED || status == MEMFIT_UNSUPPORTED);
            }
            data[i] ^= bit ? 0x80 : 0x01;
        }
    for (size_t cut = 0; cut < n; cut += 97) {
        memfit_trace *trace;
        memfit_status status = memfit_trace_read(data, cut, NULL, &trace, &err);
        assert_true(status == MEMFIT_OK || status == MEMFIT_DAMAGED);
        if (status == MEMFIT_OK)
            memfit_trace_destroy(trace);
    }
    free(data);
}

/* What cannot be mapped gets the same cells. A child of fork leaves its parent's file alone. */
static void pipes_and_children(void **state)
{
    (void)state;
    memfit_error err;
    const char *path = test_path("pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        memfit_recorder *r = recorder_of(16, path);
        record_some(r);
        _exit(memfit_recorder_close(r, NULL) == MEMFIT_OK ? 0 : 1);
    }
    unsigned char bytes[8192];
    size_t n = 0;
    int fd = open(path, O_RDONLY), status;
    for (ssize_t got; (got = read(fd, bytes + n, sizeof bytes - n)) > 0;)
        n += (size_t)got;
    close(fd);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    memfit_trace *trace;
    assert_ok(memfit_trace_read(bytes, n, NULL, &trace, &err), err);
    check_some(trace);
    memfit_trace_destroy(trace);
    memfit_recorder *r = recorder_of(16, test_path("trace"));
    record_some(r);
    pid = fork();
    if (pid == 0) {
        memfit_recorder_destroy(r);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    trace = load(test_path("trace"));
    memfit_trace_info info = MEMFIT_TRACE_INFO;
    memfit_trace_describe(trace, &info, NULL);
    assert_true(info.cut); /* not closed by the child */
    memfit_trace_destroy(trace);
    assert_ok(memfit_recorder_close(r, &err), err);
    memfit_recorder_destroy(r);
    trace = load(test_path("trace"));
    check_some(trace);
    memfit_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_is_read),  cmocka_unit_test(frames_are_joined),
        cmocka_unit_test(kills_lose_nothing), cmocka_unit_test(damaged_rings_are_refused_or_read),
        cmocka_unit_test(pipes_and_children),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
