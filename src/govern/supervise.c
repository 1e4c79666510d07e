/*
 * supervise.c: starts a program and stays with it to its end.
 *
 *     memfit ── fork ──> program ──> its workers ...          all in the caller's session and process group, with the
 *       │  signals: blocked, read one by one, handed on       caller's terminal: Control-C and Control-Z reach the
 *       │  standard error: through relay.h                    program from the kernel, once
 *       │  memory: a thread of its own, watch.h
 *       └─ the end: drain, end what is left (or name it), give back the program's status
 *
 * Signals that a terminal sends go to the whole process group, so the program has them already (si_code SI_KERNEL);
 * those that somebody sends to memfit are handed on. memfit stops when the program has stopped, and goes on with it. It
 * is the program's shadow in one more way: killed with SIGKILL, it takes the program along (PR_SET_PDEATHSIG).
 *
 * The end. After an abnormal end, processes that are below memfit and in its session are left over: SIGTERM, grace,
 * SIGKILL. After status 0 they are named, and live on if the caller does not want otherwise. Those with a session of their
 * own are daemons and none of our business.
 */
#include "memfit/run.h"

#include "base/abi.h"
#include "base/error.h"
#include "base/os.h"
#include "govern/holdings.h"
#include "govern/host_limit.h"
#include "govern/oom_killer.h"
#include "govern/limit.h"
#include "govern/relay.h"
#include "govern/tree.h"
#include "govern/turns.h"
#include "govern/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINGER_US = 250000, LOOK_MS = 20, AFTER_KILL_US = 2000000 };

struct memfit_run {
    memfit_run_options options;
    memfit_run_result result;
    mf_relay relay;
    mf_watch *watch;
    mf_turns *turns;
    mf_oom_watch oom;
    mf_tree tree;
    mf_limit limit;
    mf_host_limit host_limit;
    pid_t program;
    int ending;           /* readable when the program has ended; -1: not to be had */
    int signals;          /* a descriptor to read them from */
    sigset_t mask_before; /* the caller's */
    bool child_ignored;   /* the caller ignored SIGCHLD; the program must too */
    bool ended;           /* the program */
    bool interrupted;     /* after the program's end somebody wants us gone */
    uint64_t begin_us;
    uint64_t maxrss_bytes; /* of the program and what it waited for */
};

/* ---- growth ----------------------------------------------------------------------------------------------- */

/* What makes a framework take memory as it needs it. A variable is set only when none of its group is: who wrote one has
 * decided. PyTorch reads the second of its names since 2.9 and warns about the first when it stands alone. */
static const struct {
    const char *name, *value, *other;
} growing[] = {
    {"TF_FORCE_GPU_ALLOW_GROWTH", "true", NULL},
    {"XLA_PYTHON_CLIENT_PREALLOCATE", "false", "XLA_CLIENT_MEM_FRACTION"},
    {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "PYTORCH_ALLOC_CONF"},
    {"PYTORCH_ALLOC_CONF", "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF"},
    {"CUDA_MODULE_LOADING", "LAZY", NULL},
};

static void set_growth(void)
{
    enum { COUNT = sizeof growing / sizeof *growing };
    bool free[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        free[i] = !getenv(growing[i].name) && !(growing[i].other && getenv(growing[i].other));
    for (size_t i = 0; i < COUNT; i++)
        if (free[i])
            setenv(growing[i].name, growing[i].value, 1);
}

/* ---- the program's start ---------------------------------------------------------------------------------- */

static _Noreturn void become_program(memfit_run *run, int parent, int failure)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(125); /* memfit was killed before it could be said */
    if (dup2(run->relay.child, 2) < 0)
        _exit(125);
    if (run->child_ignored)
        signal(SIGCHLD, SIG_IGN);
    if (run->options.growth)
        set_growth();
    if (run->options.device) { /* CUDA counts the fastest first, unless it is told otherwise */
        setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
        setenv("CUDA_VISIBLE_DEVICES", run->options.device, 1);
    }
    if (mf_limit_is_wanted(&run->options))
        mf_limit_set_environment(&run->limit);
    if (!mf_host_limit_enter(&run->host_limit))
        _exit(125);
    sigprocmask(SIG_SETMASK, &run->mask_before, NULL);
    execvp(run->options.command[0], (char *const *)(uintptr_t)run->options.command);
    int code = errno;
    ssize_t put = write(failure, &code, sizeof code);
    _exit(put == (ssize_t)sizeof code ? 127 : 125);
}

static memfit_status start_program(memfit_run *run, memfit_error *err)
{
    int ends[2], code = 0, parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return mf_fail(err, MEMFIT_IO, "no pipe for a new process: %s", strerror(errno));
    run->program = fork();
    if (run->program == 0)
        become_program(run, parent, ends[1]);
    close(ends[1]);
    close(run->relay.child);
    run->relay.child = -1;
    if (run->program < 0) {
        close(ends[0]);
        return mf_fail(err, MEMFIT_IO, "no new process: %s", strerror(errno));
    }
    run->ending = (int)syscall(SYS_pidfd_open, run->program, 0);
    ssize_t n;
    while ((n = read(ends[0], &code, sizeof code)) < 0 && errno == EINTR)
        ;
    close(ends[0]);
    run->result.start_error = n == (ssize_t)sizeof code ? code : 0;
    return MEMFIT_OK;
}

/* ---- while it runs ---------------------------------------------------------------------------------------- */

static void note_end(memfit_run *run, int status, const struct rusage *use)
{
    memfit_run_result *r = &run->result;
    run->ended = true;
    r->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    r->status = r->signal ? 128 + r->signal : WEXITSTATUS(status);
    if (r->start_error)
        r->status = r->start_error == ENOENT ? 127 : 126;
    run->maxrss_bytes = (uint64_t)use->ru_maxrss << 10;
}

/* The shell sees us stop when the program has stopped, and wakes the whole group. */
static void stop_with_it(memfit_run *run)
{
    kill(getpid(), SIGSTOP);
    kill(run->program, SIGCONT);
}

static void reap(memfit_run *run)
{
    int status;
    struct rusage use;
    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG | WUNTRACED, &use)) > 0;) {
        if (pid != run->program)
            continue; /* an orphan's end */
        if (WIFSTOPPED(status))
            stop_with_it(run);
        else
            note_end(run, status, &use);
    }
}

static void hand_on(memfit_run *run, const struct signalfd_siginfo *info)
{
    int sig = (int)info->ssi_signo;
    bool from_kernel = info->ssi_code == SI_KERNEL, from_us = info->ssi_pid == (uint32_t)getpid();
    if (sig == SIGCHLD && info->ssi_code != SI_USER && info->ssi_code != SI_QUEUE)
        return;
    if (sig == SIGWINCH)
        mf_relay_resize(&run->relay);
    if (run->ended) {
        run->interrupted |= sig == SIGINT || sig == SIGTERM || sig == SIGHUP || sig == SIGQUIT;
        return;
    }
    if (from_us || (from_kernel && sig != SIGWINCH)) /* the program has had it, or it was our own broken pipe */
        return;
    kill(run->program, sig);
}

static void read_signals(memfit_run *run)
{
    struct signalfd_siginfo info[8];
    for (ssize_t n; (n = read(run->signals, info, sizeof info)) > 0;)
        for (size_t i = 0; i < (size_t)n / sizeof *info; i++)
            hand_on(run, &info[i]);
    reap(run);
}

/* Waits for something to happen, at most `most_ms`, and lets it happen. */
static void turn(memfit_run *run, int most_ms)
{
    struct pollfd wait[4] = {{run->signals, POLLIN, 0}, {run->ended ? -1 : run->ending, POLLIN, 0}};
    mf_relay_poll(&run->relay, wait + 2);
    if (poll(wait, 4, most_ms) < 0 && errno != EINTR)
        mf_os_yield();
    for (int i = 0; i < 64 && mf_relay_step(&run->relay); i++)
        ;
    read_signals(run);
}

/* ---- its end ---------------------------------------------------------------------------------------------- */

/* How many are left; with a signal, how many got it. */
static unsigned signal_left(memfit_run *run, int sig)
{
    unsigned count = 0;
    int session = getsid(0);
    if (mf_tree_look(&run->tree, getpid(), NULL))
        return 0;
    for (size_t i = 0; i < run->tree.count; i++) {
        const mf_tree_process *p = &run->tree.list[i];
        if (!mf_tree_is_left(p, session))
            continue;
        count++;
        if (sig)
            mf_tree_signal(p, sig);
        if (sig == SIGTERM)
            mf_tree_signal(p, SIGCONT); /* one that is stopped could not end */
    }
    return count;
}

/* True when nobody is left. */
static bool wait_for_left(memfit_run *run, uint64_t until_us)
{
    while (signal_left(run, 0)) {
        if (mf_os_now_us() >= until_us)
            return false;
        turn(run, LOOK_MS);
    }
    return true;
}

static void end_left(memfit_run *run)
{
    unsigned count = signal_left(run, SIGTERM);
    if (!count)
        return;
    run->result.ended = count;
    if (wait_for_left(run, mf_os_now_us() + run->options.grace_ms * 1000ull))
        return;
    uint64_t until = mf_os_now_us() + AFTER_KILL_US;
    while (signal_left(run, SIGKILL) && mf_os_now_us() < until) /* again: one of them may have forked */
        turn(run, LOOK_MS);
}

/* Workers often end a moment after their parent: only those that stay are named. */
static void name_left(memfit_run *run)
{
    memfit_run_result *r = &run->result;
    int session = getsid(0);
    if (wait_for_left(run, mf_os_now_us() + LINGER_US))
        return;
    for (size_t i = 0; i < run->tree.count && r->leftover_count < MEMFIT_RUN_PROCESSES; i++) {
        const mf_tree_process *p = &run->tree.list[i];
        if (!mf_tree_is_left(p, session))
            continue;
        memfit_run_process *left = &r->leftovers[r->leftover_count++];
        *left = (memfit_run_process){.pid = (unsigned)p->pid, .host_peak_bytes = mf_process_memory(p->pid)};
        mf_process_name(p->pid, left->name, sizeof left->name);
    }
}

static bool was_ours(void *ctx, unsigned pid)
{
    const memfit_run *run = ctx;
    if (pid == (unsigned)run->program)
        return true;
    for (size_t i = 0; i < run->result.process_count; i++)
        if (run->result.processes[i].pid == pid)
            return true;
    return false;
}

static void drain(memfit_run *run)
{
    mf_relay_drain(&run->relay);
    while (!mf_relay_drained(&run->relay) && !run->interrupted)
        turn(run, LOOK_MS);
    mf_relay_go_on(&run->relay);
}

static void finish(memfit_run *run)
{
    memfit_run_result *r = &run->result;
    drain(run);
    if (!r->start_error && r->status != 0)
        end_left(run);
    else if (!r->start_error)
        name_left(run);
    if (r->leftover_count && run->options.end_leftovers)
        end_left(run);
    drain(run);
    r->seconds = (double)(mf_os_now_us() - run->begin_us) / 1e6;
    mf_watch_end(run->watch, r);
    if (mf_limit_is_wanted(&run->options))
        mf_limit_result(&run->limit, r);
    if (!r->host_peak_sampled) {
        r->host_peak_bytes = run->maxrss_bytes;
        r->host_peak_processes = 1;
    }
    mf_oom_verdict verdict;
    mf_oom_watch_end(&run->oom, was_ours, run, r->signal == SIGKILL || r->status == 128 + SIGKILL, &verdict);
    r->out_of_memory = verdict.struck && r->status != 0;
    memcpy(r->oom_evidence, verdict.evidence, sizeof r->oom_evidence);
    r->oom_limit_bytes = verdict.limit_bytes;
    uint64_t kills = mf_host_limit_kills(&run->host_limit);
    r->host_limit_bytes = run->host_limit.bytes;
    if (kills && r->status != 0) { /* nobody knows better than the group itself */
        if (!r->out_of_memory)
            snprintf(r->oom_evidence, sizeof r->oom_evidence, "the group of --host-memory counts %llu killed",
                     (unsigned long long)kills);
        r->out_of_memory = true;
        r->oom_limit_bytes = run->host_limit.bytes;
        if (r->host_peak_bytes < run->host_limit.bytes) /* it was full; too short for the samples */
            r->host_peak_bytes = run->host_limit.bytes;
    }
    mf_relay_leave(&run->relay);
}

/* ---- the call --------------------------------------------------------------------------------------------- */

static memfit_status block_signals(memfit_run *run, memfit_error *err)
{
    sigset_t all;
    sigfillset(&all);
    struct sigaction child;
    sigaction(SIGCHLD, NULL, &child);
    run->child_ignored = child.sa_handler == SIG_IGN;
    if (run->child_ignored) /* or the kernel would keep the program's status from us */
        signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &all, &run->mask_before);
    run->signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signals < 0) {
        memfit_status status = mf_fail(err, MEMFIT_IO, "signals cannot be read: %s", strerror(errno));
        sigprocmask(SIG_SETMASK, &run->mask_before, NULL);
        return status;
    }
    return MEMFIT_OK;
}

static memfit_status run_to_its_end(memfit_run *run, memfit_error *err)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    mf_oom_watch_begin(&run->oom, "");
    run->begin_us = mf_os_now_us();
    memfit_status status = start_program(run, err);
    if (status)
        return status;
    if (!run->result.start_error) /* no thread exists before the fork; without one the program runs unwatched */
        mf_watch_begin(run->options.host, run->options.sample_ms,
                       mf_limit_is_wanted(&run->options) ? &run->limit.share : NULL, run->limit.facts, &run->watch,
                       NULL);
    if (!run->result.start_error && run->options.turns_s) {
        status = mf_turns_begin(run->options.host, &run->limit.share, &run->turns, err);
        if (status)
            kill(run->program, SIGKILL); /* it would wait for a turn that never comes */
    }
    /* A thread that some library started before us with its signals unblocked may swallow our SIGCHLD: the end is seen by
     * `ending` too, and whatever else was missed once a second. */
    while (!run->ended)
        turn(run, 1000);
    if (run->ending >= 0)
        close(run->ending);
    mf_turns_end(run->turns, &run->result);
    finish(run);
    return status;
}

memfit_status memfit_run_command(const memfit_run_options *options, memfit_run **run, memfit_error *err)
{
    memfit_run_options o = MEMFIT_RUN_OPTIONS;
    memfit_status status = mf_abi_read(&o, options, "MEMFIT_RUN_OPTIONS", err);
    if (status)
        return status;
    if (!o.command || !o.command[0])
        return mf_fail(err, MEMFIT_INVALID, "there is no command to run");
    if (!o.sample_ms)
        return mf_fail(err, MEMFIT_INVALID, "memory cannot be looked at every 0 ms");
    memfit_run *r = mf_host_zalloc(o.host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to run a program");
    r->options = o;
    r->tree.host = o.host;
    r->signals = r->ending = -1;
    r->oom.log = -1;
    r->relay.source = r->relay.child = -1;
    if (o.turns_s && !o.share)
        status = mf_fail(err, MEMFIT_INVALID, "turns are taken by jobs of a share");
    if (!status && mf_limit_is_wanted(&o))
        status = mf_limit_begin(&r->limit, &o, err);
    if (!status && o.host_limit_bytes)
        status = mf_host_limit_begin(&r->host_limit, o.host_limit_bytes, "", err);
    if (!status)
        status = mf_relay_open(&r->relay, o.host, 2, err);
    if (!status)
        status = block_signals(r, err);
    if (!status) {
        status = run_to_its_end(r, err);
        close(r->signals);
    }
    r->options.command = NULL; /* the caller's */
    if (!status) {
        *run = r;
        return MEMFIT_OK;
    }
    memfit_run_destroy(r);
    return status;
}

memfit_status memfit_run_get(const memfit_run *run, memfit_run_result *result, memfit_error *err)
{
    memfit_status status = mf_abi_check(result, "MEMFIT_RUN_RESULT", err);
    if (!status)
        mf_abi_write(result, &run->result, sizeof run->result);
    return status;
}

memfit_status memfit_run_denial_get(const memfit_run *run, size_t index, memfit_run_denial *denial, memfit_error *err)
{
    memfit_run_denial d;
    memfit_status status = mf_abi_check(denial, "MEMFIT_RUN_DENIAL", err);
    if (!status)
        status = mf_limit_denial(&run->limit, index, &d, err);
    if (!status)
        mf_abi_write(denial, &d, sizeof d);
    return status;
}

/* Who holds what now, from the share beside the facts; without one it is not told. */
static void read_held(memfit_run *r, const char *path)
{
    char share_path[4096];
    const char *slash = strrchr(path, '/');
    mf_share share = {.slot = -1};
    mf_holdings now = {0};
    snprintf(share_path, sizeof share_path, "%.*sshare", slash ? (int)(slash + 1 - path) : 0, path);
    if (mf_share_open(share_path, &share))
        return;
    mf_holdings_look(&now, r->limit.facts, &share);
    uint64_t limit = share.file->limit_bytes[now.card];
    r->result.limit_bytes = limit == UINT64_MAX ? 0 : limit;
    mf_share_close(&share);
    mf_limit_held(&now, &r->result);
}

memfit_status memfit_run_read(const char *path, const memfit_host *host, memfit_run **run, memfit_error *err)
{
    if (access(path, F_OK) != 0)
        return mf_fail(err, MEMFIT_NOT_FOUND, "%s: %s", path, strerror(errno));
    memfit_run *r = mf_host_zalloc(host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory to read %s", path);
    r->options.host = r->tree.host = host;
    r->relay.source = r->relay.child = r->limit.folder_lock = -1;
    r->limit.share.slot = -1;
    r->limit.facts = mf_facts_open(path);
    if (!r->limit.facts) {
        mf_host_free(host, r, sizeof *r);
        return mf_fail(err, MEMFIT_INVALID, "%s is no file of facts of memfit.limit, or another user's", path);
    }
    read_held(r, path);
    uint32_t denials = __atomic_load_n(&r->limit.facts->denial_count, __ATOMIC_ACQUIRE);
    r->result.refused = denials;
    r->result.denial_count = denials < MF_FACTS_DENIALS ? denials : MF_FACTS_DENIALS;
    r->result.status = 1; /* who asks wants the story of a failure */
    *run = r;
    return MEMFIT_OK;
}

const char *memfit_run_stderr(const memfit_run *run, size_t *bytes)
{
    *bytes = run->relay.kept_bytes;
    return run->relay.kept_bytes ? run->relay.kept : "";
}

void memfit_run_destroy(memfit_run *run)
{
    if (!run)
        return;
    mf_relay_close(&run->relay);
    if (mf_limit_is_wanted(&run->options))
        mf_limit_end(&run->limit);
    else
        mf_facts_close(run->limit.facts);
    mf_host_limit_end(&run->host_limit);
    mf_tree_drop(&run->tree);
    mf_host_free(run->options.host, run, sizeof *run);
}
