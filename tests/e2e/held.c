/*
 * held.c: runs a command and tells the most memory of its own (RssAnon + RssShmem) that it held, from outside:
 *
 *     held FILE COMMAND...      writes the bytes to FILE; the exit status is the command's (128 + n after a signal)
 *
 * Polling misses what lasts less than a time slice. Memory grows at any instruction, but falls only by a system call:
 * munmap, madvise, brk, mremap, a mapping put over another, a file that is cut, the end of the process. So the command
 * is stopped at the entry of these calls alone (a seccomp filter that asks its tracer), and /proc/PID/status is read
 * there: every peak is just before a fall. Where tracing is not allowed, it is polled, and FILE says "polled" as well.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned long long peak;

static void look(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kb, sum = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kb) == 1 || sscanf(line, "RssShmem: %llu", &kb) == 1)
            sum += kb * 1024;
    if (f)
        fclose(f);
    if (sum > peak)
        peak = sum;
}

/* Asks the tracer before calls that can lower what a process holds; all others pass. */
static int install_filter(void)
{
/* At place `at` of the program below, which has its last two answers at 11 and 12. */
#define ASK(at, call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 11 - (at)-1, 0)
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ASK(1, munmap),
        ASK(2, madvise),
        ASK(3, brk),
        ASK(4, mremap),
        ASK(5, fallocate),
        ASK(6, ftruncate),
        ASK(7, exit_group),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 12 - 8 - 1),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static pid_t begin(char **command, int *go)
{
    int ready[2];
    if (pipe(ready) != 0)
        exit(125);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        close(ready[1]);
        if (read(ready[0], &byte, 1) == 1 && byte == 't' && install_filter() != 0)
            _exit(125);
        close(ready[0]);
        execvp(command[0], command);
        _exit(127);
    }
    close(ready[0]);
    *go = ready[1];
    return pid;
}

static int trace(pid_t pid)
{
    int status;
    for (pid_t who; (who = waitpid(-1, &status, __WALL)) > 0;) {
        if (who == pid && (WIFEXITED(status) || WIFSIGNALED(status)))
            return status;
        if (!WIFSTOPPED(status))
            continue;
        int event = status >> 16, signal = WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP || event == PTRACE_EVENT_EXIT)
            look(pid);
        ptrace(PTRACE_CONT, who, NULL, (void *)(long)(event ? 0 : signal));
    }
    return 125 << 8;
}

static int poll_until_end(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        look(pid);
        usleep(200);
    }
    return status;
}

int main(int argc, char **argv)
{
    int go;
    if (argc < 3) {
        fprintf(stderr, "held FILE COMMAND...\n");
        return 125;
    }
    pid_t pid = begin(argv + 2, &go);
    int traced = !getenv("HELD_POLLS") && ptrace(PTRACE_SEIZE, pid, NULL,
                                                 (void *)(long)(PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE |
                                                                PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL)) == 0;
    signal(SIGPIPE, SIG_IGN);
    if (write(go, traced ? "t" : "p", 1) != 1)
        return 125;
    close(go);
    int status = traced ? trace(pid) : poll_until_end(pid);
    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 125;
    fprintf(out, "%llu%s\n", peak, traced ? "" : " polled");
    fclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
