/* A share that several jobs have by its name: who makes it, who may not join, what is left when everybody was killed. NAMED_KILLS:
 * how many jobs are killed (10,000 by hand). */
#include "test.h"

#include "govern/named.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define GIB (UINT64_C(1) << 30)
static memfit_error err;

static void in_folder(void)
{
    setenv("XDG_RUNTIME_DIR", test_folder(), 1);
}

static const char *path_of(const char *name)
{
    static char path[512];
    in_folder();
    assert_int_equal(mf_named_path(name, path, sizeof path, &err), MEMFIT_OK);
    return path;
}

static memfit_status join(const char *name, uint64_t bytes, mf_share *share)
{
    char path[512];
    memfit_status status = mf_named_path(name, path, sizeof path, &err);
    return status ? status : mf_named_join(path, name, bytes, 0, share, &err);
}

static bool is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- coming and going ------------------------------------------------------------------------------------- */

static void the_first_makes_it_the_last_takes_it_away(void **state)
{
    (void)state;
    const char *path = path_of("one");
    mf_share a, b;
    assert_int_equal(join("one", 0, &a), MEMFIT_NOT_FOUND);
    assert_non_null(strstr(err.message, "no share"));
    assert_false(is_there(path));
    assert_int_equal(join("one", 12 * GIB, &a), MEMFIT_OK);
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(join("one", 0, &b), MEMFIT_OK);
    assert_int_not_equal(a.job, b.job);
    assert_int_equal(mf_share_ask(&a, 0, 8 * GIB, 0), MF_SHARE_OK);
    mf_share_take(&a, 0, 8 * GIB, 8 * GIB);
    assert_int_equal(mf_share_ask(&b, 0, 5 * GIB, 0), MF_SHARE_REFUSED);
    assert_int_equal(mf_share_ask(&b, 0, 4 * GIB, 0), MF_SHARE_OK);
    assert_int_equal(b.file->slots[b.slot].job, b.job);
    mf_share_drop(&b, 0, 4 * GIB);
    mf_named_leave(path, &a);
    assert_true(is_there(path));
    mf_named_leave(path, &b);
    assert_false(is_there(path));
    mf_share none = {.slot = -1};
    mf_named_leave(path, &none);
}

static void another_size_is_a_conflict(void **state)
{
    (void)state;
    const char *path = path_of("size");
    mf_share a, b;
    assert_int_equal(join("size", 12 * GIB, &a), MEMFIT_OK);
    assert_int_equal(join("size", 8 * GIB, &b), MEMFIT_CONFLICT);
    assert_non_null(strstr(err.message, "12.00 GiB"));
    assert_non_null(strstr(err.hint, "--set size"));
    assert_int_equal(a.file->limit_bytes[0], 12 * GIB);
    assert_int_equal(join("size", 12 * GIB, &b), MEMFIT_OK);
    mf_named_leave(path, &b);
    mf_named_leave(path, &a);
}

static void it_is_set_while_jobs_run(void **state)
{
    (void)state;
    const char *path = path_of("set");
    mf_share a;
    memfit_share_state now = MEMFIT_SHARE_STATE;
    assert_int_equal(memfit_share_set("set", GIB, &now, &err), MEMFIT_NOT_FOUND);
    assert_int_equal(memfit_share_set("..", GIB, &now, &err), MEMFIT_INVALID);
    assert_int_equal(join("set", 12 * GIB, &a), MEMFIT_OK);
    assert_int_equal(mf_share_ask(&a, 3, 9 * GIB, 0), MF_SHARE_OK);
    mf_share_take(&a, 3, 9 * GIB, 9 * GIB);
    assert_int_equal(memfit_share_set("set", 0, &now, &err), MEMFIT_OK); /* only asked */
    assert_true(now.before_bytes == 12 * GIB);
    assert_int_equal(memfit_share_set("set", 8 * GIB, &now, &err), MEMFIT_OK);
    assert_true(now.before_bytes == 12 * GIB && now.in_use_bytes == 9 * GIB && now.jobs == 1);
    assert_int_equal(mf_share_ask(&a, 3, 1, 0), MF_SHARE_REFUSED); /* what is held stays; nobody gets more */
    mf_share_give_back(&a, 3, 2 * GIB);
    assert_int_equal(mf_share_ask(&a, 3, GIB, 0), MF_SHARE_OK);
    assert_int_equal(memfit_share_set("set", 16 * GIB, NULL, &err), MEMFIT_OK);
    mf_share_drop(&a, 3, GIB);
    assert_int_equal(mf_share_ask(&a, 3, 9 * GIB, 0), MF_SHARE_OK);
    mf_named_leave(path, &a);
    assert_int_equal(memfit_share_set("set", GIB, &now, &err), MEMFIT_NOT_FOUND);
}

/* ---- what is not joined ----------------------------------------------------------------------------------- */

static void names_that_are_none(void **state)
{
    (void)state;
    char path[512], small[8], long_name[80];
    memset(long_name, 'a', 65);
    long_name[65] = 0;
    in_folder();
    const char *const bad[] = {"", ".", "..", ".a", "-a", "a/b", "../x", "a b", "a\nb", "\xc3\xa4", long_name};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(mf_named_path(bad[i], path, sizeof path, &err), MEMFIT_INVALID);
    assert_int_equal(mf_named_path("a", small, sizeof small, &err), MEMFIT_INVALID);
    assert_int_equal(mf_named_path("Team_1.a-b", path, sizeof path, &err), MEMFIT_OK);
}

static void strange_files_are_not_joined(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("odd"));
    mf_share a, b;
    assert_int_equal(symlink("/etc/passwd", path), 0);
    assert_int_equal(join("odd", GIB, &a), MEMFIT_IO);
    assert_non_null(strstr(err.message, "this user alone"));
    assert_int_equal(memfit_share_set("odd", GIB, NULL, &err), MEMFIT_IO);
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "something else\n", 15), 15);
    close(fd);
    assert_int_equal(join("odd", GIB, &a), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "damaged"));
    assert_non_null(strstr(err.hint, "remove"));
    unlink(path);
    assert_int_equal(join("odd", GIB, &a), MEMFIT_OK);
    for (int other = -1; other <= 1; other += 2) {
        a.file->version += (uint32_t)other;
        assert_int_equal(join("odd", GIB, &b), MEMFIT_DAMAGED);
        assert_non_null(strstr(err.message, "another version"));
        assert_int_equal(memfit_share_set("odd", 2 * GIB, NULL, &err), MEMFIT_DAMAGED);
        assert_int_equal(a.file->limit_bytes[0], GIB);
        a.file->version -= (uint32_t)other;
    }
    chmod(path, 0666);
    assert_int_equal(join("odd", GIB, &b), MEMFIT_IO);
    chmod(path, 0600);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        assert_int_equal(join("odd", GIB, &b), MEMFIT_IO);
        assert_non_null(strstr(err.hint, "another user"));
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    mf_named_leave(path, &a);
    assert_false(is_there(path));
}

static void strange_folders_are_not_used(void **state)
{
    (void)state;
    char base[300], folder[320], path[512];
    snprintf(base, sizeof base, "%s", test_path("runtime"));
    snprintf(folder, sizeof folder, "%s/memfit", base);
    setenv("XDG_RUNTIME_DIR", base, 1);
    assert_int_equal(mf_named_path("a", path, sizeof path, &err), MEMFIT_IO); /* there is no such place */
    assert_non_null(strstr(err.hint, "XDG_RUNTIME_DIR"));
    assert_int_equal(mkdir(base, 0700), 0);
    assert_int_equal(symlink("/tmp", folder), 0);
    assert_int_equal(mf_named_path("a", path, sizeof path, &err), MEMFIT_IO);
    unlink(folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    chmod(folder, 0777);
    assert_int_equal(mf_named_path("a", path, sizeof path, &err), MEMFIT_IO);
    assert_non_null(strstr(err.message, "this user alone"));
    chmod(folder, 0700);
    if (geteuid() == 0) {
        assert_int_equal(chown(folder, 12345, (gid_t)-1), 0);
        assert_int_equal(mf_named_path("a", path, sizeof path, &err), MEMFIT_IO);
        assert_int_equal(chown(folder, 0, (gid_t)-1), 0);
    } else {
        mf_share a;
        chmod(folder, 0500);
        assert_int_equal(join("a", GIB, &a), MEMFIT_IO);
        chmod(folder, 0700);
    }
    assert_int_equal(mf_named_path("a", path, sizeof path, &err), MEMFIT_OK);
    rmdir(folder);
    rmdir(base);
}

/* No space: nothing half made is left. */
static void a_full_folder_is_told(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("full"));
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
        mf_share a;
        _exit(join("full", GIB, &a) == MEMFIT_IO && strstr(err.message, "no space") ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_false(is_there(path));
    char part[600];
    snprintf(part, sizeof part, "%s.%ld", path, (long)pid);
    assert_false(is_there(part));
}

/* One that stands still with the lock: told within a second or so, not waited for. */
static void a_stopped_holder_is_told(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("held"));
    mf_share a, b;
    assert_int_equal(join("held", GIB, &a), MEMFIT_OK);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(join("held", 0, &b), MEMFIT_CONFLICT);
    assert_non_null(strstr(err.message, "stands still"));
    close(fd);
    mf_named_leave(path, &a);
}

/* ---- kills ------------------------------------------------------------------------------------------------ */

static _Noreturn void be_job(unsigned seed)
{
    for (;;) {
        mf_share a;
        if (join("storm", 1000, &a))
            _exit(1);
        for (int i = 0; i < 20; i++) {
            uint64_t bytes = 1 + (unsigned)rand_r(&seed) % 300;
            if (mf_share_ask(&a, 0, bytes, 1000))
                continue;
            mf_share_take(&a, 0, bytes, bytes);
            if (rand_r(&seed) % 2)
                mf_share_give_back(&a, 0, bytes);
        }
        mf_named_leave(path_of("storm"), &a);
    }
}

/* Jobs come, go and are killed at any moment. In the end there is room for all of it again, and nothing is left behind. */
static void killed_jobs_leave_nothing(void **state)
{
    (void)state;
    enum { JOBS = 4 };
    int kills = getenv("NAMED_KILLS") ? atoi(getenv("NAMED_KILLS")) : 100;
    char path[512];
    snprintf(path, sizeof path, "%s", path_of("storm"));
    pid_t pids[JOBS] = {0};
    unsigned seed = 3;
    for (int k = 0; k < kills + JOBS; k++) {
        int p = k % JOBS;
        if (pids[p]) {
            usleep((unsigned)rand_r(&seed) % 3000);
            kill(pids[p], SIGKILL);
            int status;
            assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
            assert_true(WIFSIGNALED(status)); /* none gave up */
        }
        pids[p] = k < kills ? fork() : 0;
        if (k < kills && pids[p] == 0)
            be_job((unsigned)k);
    }
    mf_share a;
    assert_int_equal(join("storm", 2000, &a), MEMFIT_OK); /* nobody lives: it is made anew */
    assert_int_equal(mf_share_ask(&a, 0, 2000, 0), MF_SHARE_OK);
    mf_named_leave(path, &a);
    assert_false(is_there(path));
}

static void no_more_jobs_than_rows(void **state)
{
    (void)state;
    const char *path = path_of("many");
    mf_share a, b;
    assert_int_equal(join("many", GIB, &a), MEMFIT_OK);
    for (int j = 1; j < MF_SHARE_JOBS; j++)
        a.file->jobs[j].owner = mf_share_self();
    assert_int_equal(join("many", 0, &b), MEMFIT_CONFLICT);
    a.file->jobs[9].owner = (uint64_t)0x7ffffff0 << 32 | 2; /* nobody */
    a.file->turn = 10;
    assert_int_equal(join("many", 0, &b), MEMFIT_OK);
    assert_int_equal(b.job, 10);
    assert_int_equal(a.file->turn, 0); /* the dead one's turn is over */
    for (int j = 1; j < MF_SHARE_JOBS; j++)
        a.file->jobs[j].owner = 0;
    mf_named_leave(path, &b);
    mf_named_leave(path, &a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_makes_it_the_last_takes_it_away),
        cmocka_unit_test(another_size_is_a_conflict),
        cmocka_unit_test(it_is_set_while_jobs_run),
        cmocka_unit_test(names_that_are_none),
        cmocka_unit_test(strange_files_are_not_joined),
        cmocka_unit_test(strange_folders_are_not_used),
        cmocka_unit_test(a_full_folder_is_told),
        cmocka_unit_test(a_stopped_holder_is_told),
        cmocka_unit_test(killed_jobs_leave_nothing),
        cmocka_unit_test(no_more_jobs_than_rows),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
