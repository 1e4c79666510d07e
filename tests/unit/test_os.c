/*
 * test_os.c: files are written whole or not at all. The calls that matter are taken over here: they keep a record of
 * their order, and fail, stop short or are interrupted when told to.
 */
#include "test.h"

#include "base/os.h"
#include "device/device.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct {
    char journal[64]; /* w: a write, s: a file synced, d: a folder synced, r: renamed */
    size_t shortest;  /* a write takes no more than this; 0: all */
    int interrupted;  /* so many writes are, first */
    int fail;         /* 'w', 's', 'r' or 'f' (fallocate) fails from now on */
    int why;
    bool no_links;  /* it has them, and cannot give them one */
    bool all_named; /* the file system has no files without a name */
} system_calls;

static void note(char what)
{
    size_t n = strlen(system_calls.journal);
    if (n + 1 < sizeof system_calls.journal)
        system_calls.journal[n] = what;
}

static bool fails(int what)
{
    if (system_calls.fail != what)
        return false;
    errno = system_calls.why;
    return true;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (fd > 2) {
        if (system_calls.interrupted) {
            system_calls.interrupted--;
            errno = EINTR;
            return -1;
        }
        if (fails('w'))
            return -1;
        note('w');
        if (system_calls.shortest && bytes > system_calls.shortest)
            bytes = system_calls.shortest;
    }
    return syscall(SYS_write, fd, data, bytes);
}

int fsync(int fd)
{
    struct stat st;
    bool folder = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    if (!folder && fails('s'))
        return -1;
    note(folder ? 'd' : 's');
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    if (fails('r'))
        return -1;
    note('r');
    return (int)syscall(SYS_rename, from, to);
}

int open64(const char *name, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (system_calls.all_named && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    if (system_calls.no_links) {
        errno = EPERM;
        return -1;
    }
    return (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    return fails('f') ? -1 : (int)syscall(SYS_fallocate, fd, mode, at, bytes);
}

static char folder[64], path[96];

static int make_folder(void **state)
{
    (void)state;
    memset(&system_calls, 0, sizeof system_calls);
    snprintf(folder, sizeof folder, "/tmp/memfit-os-XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    return !f || fputs("old", f) < 0 || fclose(f) != 0;
}

/* Removing the folder fails when a temporary file was left in it. */
static int drop_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void file_holds(const char *text)
{
    char got[256] = "";
    assert_true(mf_os_read_text(path, got, sizeof got));
    assert_string_equal(got, text);
}

static memfit_status write_raw(const char *text, memfit_error *err)
{
    mf_rawfile out;
    memfit_status status = mf_os_raw_open(&out, path, err);
    if (status == MEMFIT_OK && (status = mf_os_raw_write(&out, text, strlen(text), err)) != MEMFIT_OK)
        mf_os_raw_abandon(&out);
    else if (status == MEMFIT_OK)
        status = mf_os_raw_commit(&out, err);
    return status;
}

static memfit_status write_stream(const char *text, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status == MEMFIT_OK) {
        fputs(text, out.file);
        status = mf_os_out_commit(&out, err);
    }
    return status;
}

/* The bytes are on the disk before the name points at them, and the name before success is reported. */
static void synced_before_and_after_the_rename(void **state)
{
    (void)state;
    memfit_error err;
    assert_ok(write_raw("new", &err), err);
    assert_string_equal(system_calls.journal, "wsrd");
    file_holds("new");
    memset(system_calls.journal, 0, sizeof system_calls.journal);
    assert_ok(write_stream("newer", &err), err);
    const char *tail = strchr(system_calls.journal, 's'); /* stdio may write by a call of its own */
    assert_non_null(tail);
    assert_string_equal(tail, "srd");
    file_holds("newer");
}

static void short_and_interrupted_writes_are_continued(void **state)
{
    (void)state;
    memfit_error err;
    system_calls.shortest = 3;
    system_calls.interrupted = 2;
    assert_ok(write_raw("ten bytes.", &err), err);
    assert_string_equal(system_calls.journal, "wwwwsrd");
    file_holds("ten bytes.");
}

static void what_was_there_survives_a_failure(void **state)
{
    (void)state;
    static const struct {
        int fail, why;
        const char *says;
    } cases[] = {{'w', ENOSPC, "No space left"}, {'s', EIO, "Input/output"}, {'r', EACCES, "Permission"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memfit_error err;
        system_calls.fail = cases[i].fail;
        system_calls.why = cases[i].why;
        assert_int_equal(write_raw("new", &err), MEMFIT_IO);
        assert_non_null(strstr(err.message, cases[i].says));
        if (cases[i].fail != 'w') {
            assert_int_equal(write_stream("new", &err), MEMFIT_IO);
            assert_non_null(strstr(err.message, cases[i].says));
        }
        file_holds("old");
    }
}

/* Who may write to the folder cannot make memfit write through a link, or into a file, laid where it will write next:
 * the name is another each time, and a name that is taken is refused. */
static void temporary_names_cannot_be_foreseen(void **state)
{
    (void)state;
    memfit_error err;
    mf_rawfile raw, again;
    mf_outfile out;
    assert_ok(mf_os_raw_open(&raw, path, &err), err);
    assert_ok(mf_os_raw_open(&again, path, &err), err);
    assert_ok(mf_os_out_open(&out, path, &err), err);
    assert_string_not_equal(raw.temporary, again.temporary);
    assert_string_not_equal(raw.temporary, out.temporary);
    char pid[32];
    snprintf(pid, sizeof pid, ".%ld.", (long)getpid());
    assert_null(strstr(raw.temporary + strlen(path), pid));
    mf_os_raw_abandon(&raw);
    mf_os_raw_abandon(&again);
    mf_os_out_abandon(&out);
    file_holds("old");
}

static unsigned files_in_folder(void)
{
    unsigned n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* What a killed process left goes with the next write to the same target; what a living one writes stays, and so does
 * every other file, however much its name is like that of a temporary. */
static void what_the_dead_left_is_removed(void **state)
{
    (void)state;
    memfit_error err;
    static const char *const others[] = {"file.0123456789abcdef.tmp", "file.0123456789abcdeX.memfit.tmp",
                                         "file2.0123456789abcdef.memfit.tmp", "file.0123456789abcdef0.memfit.tmp"};
    enum { OTHERS = sizeof others / sizeof *others };
    char name[OTHERS][128];
    for (int i = 0; i < OTHERS; i++) {
        snprintf(name[i], sizeof name[i], "%.60s/%s", folder, others[i]);
        close(open(name[i], O_CREAT | O_WRONLY, 0666));
    }
    for (int way = 0; way < 2; way++) {
        system_calls.all_named = true; /* a file with a name from its start is what a kill leaves */
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        pid_t dead = fork();
        if (dead == 0) {
            mf_rawfile out;
            _exit(mf_os_raw_open(&out, path, NULL) == MEMFIT_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(dead, NULL, 0), dead);
        pid_t living = fork();
        if (living == 0) {
            mf_rawfile out;
            char byte = mf_os_raw_open(&out, path, NULL) == MEMFIT_OK;
            syscall(SYS_write, ready[1], &byte, 1);
            pause();
        }
        char byte = 0;
        assert_int_equal(read(ready[0], &byte, 1), 1);
        assert_int_equal(byte, 1);
        close(ready[0]);
        close(ready[1]);
        assert_int_equal(files_in_folder(), 1 + OTHERS + 2);
        system_calls.all_named = false;
        if (way)
            assert_ok(mf_os_raw_probe(path, &err), err);
        else
            assert_ok(write_stream("new", &err), err);
        assert_int_equal(files_in_folder(), 1 + OTHERS + 1);
        kill(living, SIGKILL);
        assert_int_equal(waitpid(living, NULL, 0), living);
        assert_ok(mf_os_raw_probe(path, &err), err);
        assert_int_equal(files_in_folder(), 1 + OTHERS);
    }
    for (int i = 0; i < OTHERS; i++)
        assert_int_equal(unlink(name[i]), 0);
}

/* Where the file system has files without a name, nothing of a file that is being written can be left at all. */
static void a_file_being_written_has_no_name(void **state)
{
    (void)state;
    memfit_error err;
    for (int way = 0; way < 3; way++) {
        const bool all_named = way == 1;
        system_calls.all_named = all_named;
        system_calls.no_links = way == 2;
        mf_rawfile raw;
        assert_ok(mf_os_raw_open(&raw, path, &err), err);
        assert_ok(mf_os_raw_write(&raw, "new", 3, &err), err);
        if (!all_named && raw.named)
            print_message("this file system has no files without a name\n");
        assert_int_equal(files_in_folder(), raw.named ? 2 : 1);
        assert_true(raw.named || !all_named);
        assert_ok(mf_os_raw_commit(&raw, &err), err);
        assert_int_equal(files_in_folder(), 1);
        file_holds("new");
        assert_ok(write_stream("old", &err), err);
        assert_int_equal(files_in_folder(), 1);
        file_holds("old");
        assert_ok(mf_os_raw_open(&raw, path, &err), err);
        mf_os_raw_abandon(&raw);
        assert_int_equal(files_in_folder(), 1);
    }
}

static unsigned mode_of(const char *name)
{
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    return st.st_mode & 0777;
}

/* A file that only its owner may read is not opened to others by writing it anew, not even while it is written. */
static void permissions_stay(void **state)
{
    (void)state;
    memfit_error err;
    static const mode_t modes[] = {0600, 0640, 0666};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        mf_rawfile raw;
        assert_ok(mf_os_raw_open(&raw, path, &err), err);
        struct stat st;
        assert_int_equal(fstat(raw.descriptor, &st), 0);
        assert_int_equal(st.st_mode & 0777, modes[i]);
        assert_ok(mf_os_raw_commit(&raw, &err), err);
        assert_int_equal(mode_of(path), modes[i]);
        assert_ok(write_stream("new", &err), err);
        assert_int_equal(mode_of(path), modes[i]);
    }
}

/* Memory the system refuses after all is not booked. */
static void a_refused_page_is_not_counted(void **state)
{
    (void)state;
    memfit_device *device;
    memfit_error err;
    memfit_device_options o = MEMFIT_DEVICE_OPTIONS;
    o.capacity_bytes = 1 << 30;
    assert_ok(memfit_device_open("cpu", &o, &device, &err), err);
    memfit_device_info before = MEMFIT_DEVICE_INFO, after = MEMFIT_DEVICE_INFO;
    assert_ok(memfit_device_get_info(device, &before, &err), err);
    system_calls.fail = 'f';
    system_calls.why = ENOMEM;
    mf_physical page;
    for (int i = 0; i < 200; i++) /* booked, they would be twice the capacity */
        assert_int_equal(device->table->create(device, 10 << 20, &page, &err), MEMFIT_OUT_OF_MEMORY);
    system_calls.fail = 0;
    assert_ok(device->table->create(device, 10 << 20, &page, &err), err);
    assert_ok(device->table->release(device, page, 10 << 20, &err), err);
    assert_ok(memfit_device_get_info(device, &after, &err), err);
    assert_int_equal(before.total_bytes, after.total_bytes);
    assert_ok(memfit_device_close(device, &err), err);
}

/* Pipes and devices are refused by name, without waiting for somebody at the other end. */
static void only_files_are_mapped(void **state)
{
    (void)state;
    mf_mapping map;
    memfit_error err;
    char pipe[96];
    snprintf(pipe, sizeof pipe, "%.60s/pipe", folder);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(mf_os_map_file(pipe, &map, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "is a pipe, not a regular file"));
    assert_int_equal(unlink(pipe), 0);
    assert_int_equal(mf_os_map_file("/dev/zero", &map, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "/dev/zero is a character device"));
    assert_int_equal(mf_os_map_file("-", &map, &err), MEMFIT_NOT_FOUND);
    assert_non_null(strstr(err.hint, "standard input"));
}

/* Files that were read are counted by the kernel, and dropped when memory is short: they are no use of memory. */
static void reclaimable_is_not_used(void **state)
{
    (void)state;
    const char *v2 = "anon 1000\nfile 5000\nkernel 10\ninactive_file 3000\nactive_file 1500\nfile_dirty 200\n"
                     "file_writeback 100\nslab_reclaimable 50\n";
    const char *v1 = "cache 5000\ninactive_file 1\nactive_file 1\ndirty 7\ntotal_inactive_file 3000\n"
                     "total_active_file 1500\ntotal_dirty 300\n";
    assert_int_equal(mf_os_cgroup_used(10000, v2), 10000 - 3000 - 1500 - 50 + 300);
    assert_int_equal(mf_os_cgroup_used(10000, v1), 10000 - 4500 + 300);
    assert_int_equal(mf_os_cgroup_used(100, v2), 0);
    assert_int_equal(mf_os_cgroup_used(10000, ""), 10000);
    assert_int_equal(mf_os_cgroup_used(10000, "inactive_file_x 5\nxinactive_file 5\n"), 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reclaimable_is_not_used),
        cmocka_unit_test_setup_teardown(synced_before_and_after_the_rename, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(short_and_interrupted_writes_are_continued, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(what_was_there_survives_a_failure, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(temporary_names_cannot_be_foreseen, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(what_the_dead_left_is_removed, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_file_being_written_has_no_name, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(only_files_are_mapped, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(permissions_stay, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_refused_page_is_not_counted, make_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
