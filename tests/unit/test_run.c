/* memfit run as its caller sees it: statuses, signals both ways, terminals. The program it runs is this one, told by its
 * first argument what to do. */
#include "test.h"

#include "govern/host_limit.h"
#include "govern/oom_killer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>

static const char *self;

/* ---- the program ------------------------------------------------------------------------------------------ */

/* Waits for a signal that may be caught, and ends with its number. */
static int wait_for_signal(void)
{
    sigset_t all;
    siginfo_t info;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    if (write(1, "r", 1) != 1)
        return 200;
    return sigwaitinfo(&all, &info);
}

static volatile sig_atomic_t interrupts;
static void count_interrupt(int signal)
{
    (void)signal;
    interrupts++;
}

/* Until it has been quiet for 300 ms after the first one. */
static int count_interrupts(void)
{
    struct sigaction count = {.sa_handler = count_interrupt};
    sigaction(SIGINT, &count, NULL);
    if (write(1, "r", 1) != 1)
        return 200;
    for (int quiet = 0; quiet < 3; quiet = interrupts ? quiet + 1 : 0)
        usleep(100000);
    return interrupts;
}

/* Waits until standard error's terminal has this many columns. */
static int wait_for_columns(int columns)
{
    struct winsize size = {0};
    if (!isatty(2))
        return 201;
    if (write(1, "r", 1) != 1)
        return 200;
    for (int i = 0; i < 100 && size.ws_col != columns; i++) {
        usleep(20000);
        ioctl(2, TIOCGWINSZ, &size);
    }
    return size.ws_col == columns ? 0 : 202;
}

static int print_signals(void)
{
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "SigBlk", 6) == 0 || strncmp(line, "SigIgn", 6) == 0)
            fputs(line, stdout);
    return f ? fclose(f) : 1;
}

static int program(char **argv)
{
    int n = argv[2] ? atoi(argv[2]) : 0;
    if (strcmp(argv[1], "--exit") == 0)
        return n;
    if (strcmp(argv[1], "--raise") == 0)
        return raise(n);
    if (strcmp(argv[1], "--wait") == 0)
        return wait_for_signal();
    if (strcmp(argv[1], "--count") == 0)
        return count_interrupts();
    if (strcmp(argv[1], "--columns") == 0)
        return wait_for_columns(n);
    if (strcmp(argv[1], "--signals") == 0)
        return print_signals();
    static const char text[] = "one\ntwo\r\n\x1b[31mred\x1b[0m\tand\xff\x01 more\n";
    return write(2, text, sizeof text - 1) == (ssize_t)sizeof text - 1 ? 0 : 1;
}

/* ---- running it ------------------------------------------------------------------------------------------- */

/* Starts `memfit run -q -- this program WHAT N` (or the program alone) with standard output in a pipe. */
static pid_t start(bool through_memfit, const char *what, int n, int *out)
{
    char number[16];
    snprintf(number, sizeof number, "%d", n);
    const char *const all[] = {getenv("MEMFIT"), "run", "-q", "--", self, what, number, NULL};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], 1);
        setpgid(0, 0); /* a group without a parent in its session cannot be stopped by SIGTSTP */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const char *const *argv = all + (through_memfit ? 0 : 4);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    close(ends[1]);
    *out = ends[0];
    return pid;
}

static void wait_ready(int out)
{
    char c = 0;
    struct pollfd ready = {out, POLLIN, 0};
    assert_int_equal(poll(&ready, 1, 20000), 1);
    assert_int_equal(read(out, &c, 1), 1);
    assert_int_equal(c, 'r');
}

static int status_of(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void every_status(void **state)
{
    (void)state;
    for (int n = 0; n < 256; n++) {
        int out;
        pid_t pid = start(true, "--exit", n, &out);
        assert_int_equal(status_of(pid), n);
        close(out);
    }
}

/* What a signal does to a program that does nothing about it. */
static bool is_ignored(int n)
{
    return n == SIGCHLD || n == SIGCONT || n == SIGURG || n == SIGWINCH;
}

static bool stops(int n)
{
    return n == SIGSTOP || n == SIGTSTP || n == SIGTTIN || n == SIGTTOU;
}

static void every_signal_of_the_program(void **state)
{
    (void)state;
    for (int n = 1; n <= 31; n++) {
        int out, status;
        pid_t pid = start(true, "--raise", n, &out);
        if (stops(n)) { /* memfit stops with it, as the shell expects, and goes on with it */
            assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
            assert_true(WIFSTOPPED(status));
            kill(pid, SIGCONT);
        }
        assert_int_equal(status_of(pid), is_ignored(n) || stops(n) ? 0 : 128 + n);
        close(out);
    }
}

static void every_signal_to_memfit(void **state)
{
    (void)state;
    for (int n = 1; n <= 31; n++) {
        if (n == SIGKILL || n == SIGSTOP)
            continue;
        int out;
        pid_t pid = start(true, "--wait", 0, &out);
        wait_ready(out);
        kill(pid, n);
        assert_int_equal(status_of(pid), n);
        close(out);
    }
}

/* SIGKILL cannot be handed on; the program goes with its shadow. Its end of the pipe closes when it is dead. */
static void killed_memfit_takes_it_along(void **state)
{
    (void)state;
    int out, status;
    char c;
    pid_t pid = start(true, "--wait", 0, &out);
    wait_ready(out);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    struct pollfd end = {out, POLLIN, 0};
    assert_int_equal(poll(&end, 1, 20000), 1);
    assert_int_equal(read(out, &c, 1), 0);
    close(out);
}

static size_t read_all(int fd, char *text, size_t bytes)
{
    size_t got = 0;
    for (ssize_t n; got < bytes && (n = read(fd, text + got, bytes - got)) > 0;)
        got += (size_t)n;
    close(fd);
    return got;
}

/* nohup's SIGHUP, a caller's blocked signals: as they were, also a SIGCHLD that is ignored. */
static void dispositions_as_before(void **state)
{
    (void)state;
    struct sigaction hang_up, child, ignore = {.sa_handler = SIG_IGN};
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    char with[512], without[512];
    int out;
    sigprocmask(SIG_BLOCK, &blocked, &before);
    sigaction(SIGHUP, &ignore, &hang_up);
    sigaction(SIGCHLD, &ignore, &child);
    start(true, "--signals", 0, &out);
    size_t n = read_all(out, with, sizeof with);
    start(false, "--signals", 0, &out);
    assert_int_equal(read_all(out, without, sizeof without), n);
    sigaction(SIGCHLD, &child, NULL);
    sigaction(SIGHUP, &hang_up, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    assert_true(n > 40);
    assert_memory_equal(with, without, n);
}

/* ---- terminals -------------------------------------------------------------------------------------------- */

/* What a shell does for a job: a process group of its own in the foreground, and when it stops, SIGCONT to the group. Ends
 * with the job's status, and 100 more when it was stopped meanwhile. */
static int be_its_shell(char *const *argv)
{
    int status, stopped = 0;
    signal(SIGTTOU, SIG_IGN);
    pid_t job = fork();
    if (job == 0) {
        setpgid(0, 0);
        tcsetpgrp(0, getpid());
        signal(SIGTTOU, SIG_DFL);
        execv(argv[0], argv);
        _exit(99);
    }
    setpgid(job, job);
    tcsetpgrp(0, job);
    while (waitpid(job, &status, WUNTRACED) == job && WIFSTOPPED(status)) {
        stopped = 100;
        kill(-job, SIGCONT);
    }
    return WEXITSTATUS(status) + stopped;
}

/* The same in a session of its own whose terminal is a pseudo-terminal: *master is the user's side. Standard output stays
 * a pipe. */
static pid_t start_in_terminal(bool through_memfit, const char *what, int n, int *out, int *master)
{
    char number[16], name[64];
    snprintf(number, sizeof number, "%d", n);
    const char *const all[] = {getenv("MEMFIT"), "run", "-q", "--", self, what, number, NULL};
    int ends[2];
    *master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(*master >= 0);
    assert_int_equal(grantpt(*master), 0);
    assert_int_equal(unlockpt(*master), 0);
    assert_int_equal(ptsname_r(*master, name, sizeof name), 0);
    struct winsize size = {.ws_row = 24, .ws_col = 77};
    ioctl(*master, TIOCSWINSZ, &size);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setsid();
        int slave = open(name, O_RDWR); /* becomes the controlling terminal */
        dup2(slave, 0);
        dup2(ends[1], 1);
        dup2(slave, 2);
        const char *const *argv = all + (through_memfit ? 0 : 4);
        _exit(be_its_shell((char *const *)(uintptr_t)argv));
    }
    close(ends[1]);
    *out = ends[0];
    return pid;
}

static void control_c_comes_once(void **state)
{
    (void)state;
    int out, master;
    pid_t pid = start_in_terminal(true, "--count", 0, &out, &master);
    wait_ready(out);
    assert_int_equal(write(master, "\003", 1), 1);
    assert_int_equal(status_of(pid), 1);
    close(out);
    close(master);
}

static void standard_error_stays_a_terminal(void **state)
{
    (void)state;
    int out, master;
    pid_t pid = start_in_terminal(true, "--columns", 77, &out, &master);
    assert_int_equal(status_of(pid), 0);
    close(out);
    close(master);
    pid = start_in_terminal(true, "--columns", 123, &out, &master);
    wait_ready(out);
    struct winsize size = {.ws_row = 40, .ws_col = 123};
    ioctl(master, TIOCSWINSZ, &size);
    assert_int_equal(status_of(pid), 0);
    close(out);
    close(master);
}

/* What the user's screen gets is what it would get without memfit. */
static void terminal_gets_the_same_bytes(void **state)
{
    (void)state;
    char text[2][512];
    size_t bytes[2] = {0};
    for (int k = 0; k < 2; k++) {
        int out, master;
        pid_t pid = start_in_terminal(k, "--text", 0, &out, &master);
        for (ssize_t n; (n = read(master, text[k] + bytes[k], sizeof text[k] - bytes[k])) > 0;)
            bytes[k] += (size_t)n;
        assert_int_equal(status_of(pid), 0);
        close(out);
        close(master);
    }
    assert_true(bytes[0] > 20);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(text[0], text[1], bytes[0]);
}

/* Control-Z stops the program and memfit; the shell's SIGCONT to the group wakes both. */
static void control_z_stops_and_goes_on(void **state)
{
    (void)state;
    int out, master;
    pid_t pid = start_in_terminal(true, "--count", 0, &out, &master);
    wait_ready(out);
    assert_int_equal(write(master, "\032", 1), 1); /* its shell wakes it at once, and says so by 100 */
    usleep(300000);
    assert_int_equal(write(master, "\003", 1), 1);
    assert_int_equal(status_of(pid), 101);
    close(out);
    close(master);
}

/* ---- the out-of-memory killer ----------------------------------------------------------------------------- */

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/machine/%s", test_folder(), name);
    for (char *p = path + strlen(test_folder()) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool is_4711(void *ctx, unsigned pid)
{
    (void)ctx;
    return pid == 4711;
}

static mf_oom_verdict judge(bool killed, const char *file, const char *text)
{
    char root[128];
    mf_oom_watch watch;
    mf_oom_verdict verdict;
    snprintf(root, sizeof root, "%s/machine", test_folder());
    mf_oom_watch_begin(&watch, root);
    if (file)
        put(file, text);
    mf_oom_watch_end(&watch, is_4711, NULL, killed, &verdict);
    return verdict;
}

static void out_of_memory_killer(void **state)
{
    (void)state;
    put("proc/self/cgroup", "4:memory:/jobs/one\n0::/user/job\n");
    put("proc/vmstat", "pgfault 7\noom_kill 3\n");
    put("sys/fs/cgroup/user/job/memory.events", "low 0\noom 1\noom_kill 2\noom_group_kill 0\n");
    put("sys/fs/cgroup/user/job/memory.max", "max\n");
    put("sys/fs/cgroup/user/memory.max", "8589934592\n");
    put("sys/fs/cgroup/memory/jobs/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
    put("dev/kmsg", "6,1,1,-;Out of memory: Killed process 4711 (old) total-vm:9kB, anon-rss:8kB\n");
    assert_false(judge(true, NULL, NULL).struck); /* all of that was before */
    assert_false(judge(true, "proc/vmstat", "pgfault 9\noom_kill 3\n").struck);
    assert_true(judge(true, "proc/vmstat", "pgfault 9\noom_kill 4\n").struck);
    assert_false(judge(false, "proc/vmstat", "pgfault 9\noom_kill 5\n").struck); /* nobody of ours died of it */
    mf_oom_verdict v = judge(true, "sys/fs/cgroup/user/job/memory.events", "oom_kill 3\n");
    assert_true(v.struck);
    assert_true(v.limit_bytes == UINT64_C(8589934592));
    assert_true(judge(true, "sys/fs/cgroup/memory/jobs/memory.oom_control", "oom_kill 2\n").struck);
    /* The log names it, whatever else is known; others it names are none of ours. */
    char root[128];
    mf_oom_watch watch;
    snprintf(root, sizeof root, "%s/machine", test_folder());
    mf_oom_watch_begin(&watch, root);
    FILE *log = fopen(test_path("machine/dev/kmsg"), "a");
    assert_non_null(log);
    fputs("6,2,2,-;Memory cgroup out of memory: Killed process 99 (other) total-vm:9kB\n"
          "6,3,3,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:9kB, anon-rss:8kB\n",
          log);
    fclose(log);
    mf_oom_watch_end(&watch, is_4711, NULL, false, &v);
    assert_true(v.struck);
    assert_int_equal(v.pid, 4711);
    assert_true(v.limit_bytes == UINT64_C(8589934592));
    assert_non_null(strstr(v.evidence, "4711 (python3)"));
    /* A machine that tells nothing. */
    mf_oom_watch_begin(&watch, "/nonexistent");
    mf_oom_watch_end(&watch, is_4711, NULL, true, &v);
    assert_false(v.struck);
}

/* Where no group can be made it is refused with the reason, and nothing is left; where one can, e2e/test_run.sh takes too much. */
static void a_group_that_cannot_be_made_is_refused(void **state)
{
    (void)state;
    char root[128], left[192];
    mf_host_limit limit;
    memfit_error err;
    snprintf(root, sizeof root, "%s/machine", test_folder());
    assert_int_equal(mf_host_limit_begin(&limit, 1 << 20, "/nonexistent", &err), MEMFIT_UNSUPPORTED);
    put("proc/self/cgroup", "7:cpu:/\n0::/scope\n");
    assert_int_equal(mf_host_limit_begin(&limit, 1 << 20, root, &err), MEMFIT_UNSUPPORTED); /* no such folder here */
    assert_non_null(strstr(err.message, "no memory cgroup"));
    put("sys/fs/cgroup/scope/cgroup.controllers",
        "cpu memory pids\n"); /* a file system that makes no files in a new folder */
    snprintf(left, sizeof left, "%s/sys/fs/cgroup/scope/memfit-run-999999998", root);
    assert_int_equal(mkdir(left, 0755), 0); /* of a memfit that is dead */
    assert_int_equal(mf_host_limit_begin(&limit, 1 << 20, root, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "not to be divided"));
    assert_string_equal(limit.folder, "");
    assert_int_not_equal(access(left, F_OK), 0);
    snprintf(left, sizeof left, "%s/sys/fs/cgroup/scope/memfit-run-%ld", root, (long)getpid());
    assert_int_not_equal(access(left, F_OK), 0);
    assert_true(mf_host_limit_enter(&limit)); /* no group: nothing to enter */
    assert_int_equal(mf_host_limit_kills(&limit), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return program(argv);
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0 || !getenv("MEMFIT"))
        return 77;
    self = path;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status),
        cmocka_unit_test(every_signal_of_the_program),
        cmocka_unit_test(every_signal_to_memfit),
        cmocka_unit_test(killed_memfit_takes_it_along),
        cmocka_unit_test(dispositions_as_before),
        cmocka_unit_test(control_c_comes_once),
        cmocka_unit_test(standard_error_stays_a_terminal),
        cmocka_unit_test(terminal_gets_the_same_bytes),
        cmocka_unit_test(control_z_stops_and_goes_on),
        cmocka_unit_test(out_of_memory_killer),
        cmocka_unit_test(a_group_that_cannot_be_made_is_refused),
    };
    for (int i = 1; i < 32; i++) /* whatever runs the test may ignore some: nohup does */
        signal(i, SIG_DFL);
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_drop);
}
