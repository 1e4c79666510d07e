/*
 * oom_host.c: when the machine's memory ends, a program hears of it in one of four ways:
 *
 *   refused   malloc or mmap says no: numpy's and Python's MemoryError, std::bad_alloc, errno 12. The kernel overcommits,
 *             so it refuses only what is absurd, or what a limit of the process (ulimit -v) forbids
 *   killed    signal 9, and no word of its own. Only the shell, a parent process or a log of the kernel tells
 *   group     the same by the limit of a container, a job or a unit (cgroup): the kernel and schedulers say so
 *   shared    /dev/shm is full: a bus error, or "no space left" where shared memory is named
 *
 * A kill without a reason is the machine's: the text of a container's is the same, so the answer says how to find out.
 */
#include "diagnose/oom_host.h"

#include "base/text.h"
#include "diagnose/oom_words.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

static void ended(mf_oom_facts *f, mf_host_end end, const char *text)
{
    if (f->failed && !f->host_end) /* something else failed before: this only follows from it */
        return;
    if (f->host_end >= end) /* ends are ordered by how much they say */
        return;
    f->failed = f->host = true;
    f->host_end = end;
    snprintf(f->host_text, sizeof f->host_text, "%s", text);
}

/* ---- refused ---- */

static void read_refused(const char *line, mf_oom_facts *f)
{
    uint64_t bytes;
    if (strstr(line, " for an array with shape") && mf_oom_size_after(line, "Unable to allocate ", &bytes)) {
        if (!f->failed) {
            f->request = bytes;
            f->array = true;
            f->wide_numbers = strstr(line, "type float64") || strstr(line, "type int64") || strstr(line, "complex128");
        }
        ended(f, MF_HOST_REFUSED, "numpy was refused an array");
        return;
    }
    if (strstr(line, "Cannot allocate memory") && !f->failed)
        mf_oom_size_after(line, "unable to mmap ", &f->request);
    if (strstr(line, "malloc of size ") && strstr(line, " failed")) { /* Arrow */
        if (!f->failed)
            mf_oom_size_after(line, "malloc of size ", &f->request);
        ended(f, MF_HOST_REFUSED, "Arrow was refused memory");
    }
    if (strstr(line, "WinError 1455") || strstr(line, "paging file is too small")) {
        f->no_pages |= !f->failed || f->host_end;
        f->worker |= f->no_pages; /* each worker of a loader loads the libraries once more */
        ended(f, MF_HOST_REFUSED, "the paging file is too small");
    }
    if (strstr(line, "C error: out of memory"))
        ended(f, MF_HOST_REFUSED, "pandas was refused memory");
    if (strncmp(line, "MemoryError", 11) == 0 && !isalpha((unsigned char)line[11]))
        ended(f, MF_HOST_REFUSED, "Python's MemoryError");
    else if (strstr(line, "std::bad_alloc"))
        ended(f, MF_HOST_REFUSED, "std::bad_alloc");
    else if (strstr(line, "Cannot allocate memory"))
        ended(f, MF_HOST_REFUSED, "the system's \"Cannot allocate memory\"");
}

/* ---- killed ---- */

/* "Killed" alone; make's "*** [train] Killed"; bash's "train.sh: line 3: 2711 Killed   python3 ..." and "[1]+  Killed  ..."; zsh's "[1]  2711 killed ..." */
static bool shell_says_killed(const char *line)
{
    const char *start = line + strspn(line, " \t");
    size_t length = strcspn(start, "\r\n");
    while (length && start[length - 1] == ' ')
        length--;
    if ((length == 6 && strncmp(start, "Killed", 6) == 0) || (length == 9 && strncmp(start, "Killed: 9", 9) == 0))
        return true;
    if (length > 8 && strncmp(start + length - 8, "] Killed", 8) == 0)
        return true;
    const char *word = strstr(start, " Killed ");
    if (word && strstr(start, ": line ") && strstr(start, ": line ") < word)
        return true;
    return *start == '[' && isdigit((unsigned char)start[1]) && start[2] == ']' && (word || strstr(start, " killed "));
}

/* "exit code 137", "Exit Code:    137", "ExitCode":137: 128 and signal 9; "exit code -9" as Python has it. */
static bool exit_says_killed(const char *line)
{
    static const char *const numbers[] = {"137", "-9"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(numbers[i]);
        const char *p = strcasestr(line, "exit");
        while (p && (p = strstr(p + 1, numbers[i])))
            if (!isdigit((unsigned char)p[n]) && p[n] != '.' && !isalnum((unsigned char)p[-1]) && p[-1] != '.')
                return true;
    }
    return false;
}

static void read_killed(const char *line, mf_oom_facts *f)
{
    static const char *const phrases[] = {"is killed by signal: Killed",
                                          "signal 9 (Killed)",
                                          "Signal 9 (SIGKILL)",
                                          "signal SIGKILL",
                                          "Signals.SIGKILL",
                                          "SIGKILL(-9)",
                                          "status=9/KILL",
                                          "killed by the OOM killer",
                                          "after using all available RAM",
                                          "kernel appears to have died",
                                          "running low on memory",
                                          "process pool was terminated abruptly"};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (strstr(line, phrases[i]))
            ended(f, MF_HOST_KILLED, phrases[i]);
    if (strstr(line, "DataLoader worker") && strstr(line, "exited unexpectedly"))
        ended(f, MF_HOST_KILLED, "a worker of the data loader exited unexpectedly");
    if (shell_says_killed(line))
        ended(f, MF_HOST_KILLED, "the shell's \"Killed\"");
    else if (exit_says_killed(line))
        ended(f, MF_HOST_KILLED, "exit status 137: signal 9");
    f->worker |= strstr(line, "DataLoader worker") != NULL;
}

/* Jobs, containers and units that say themselves that it was their limit. */
static void read_group(const char *line, mf_oom_facts *f)
{
    static const char *const phrases[] = {"OOMKilled",
                                          "oom_kill event",
                                          "oom-kill event",
                                          "cgroup out-of-memory handler",
                                          "Exceeded job memory limit",
                                          "exceeded memory limit",
                                          "TERM_MEMLIMIT",
                                          "PBS: job killed: mem",
                                          "Memory cgroup out of memory",
                                          "constraint=CONSTRAINT_MEMCG",
                                          "cgroup memory limit of",
                                          "exceeded 95% memory budget"};
    /* "OUT_OF_ME+" and "0:125" of sacct, and the subject of Slurm's mail. */
    if (strstr(line, " OUT_OF_ME+ ") ||
        (strstr(line, "OUT_OF_MEMORY") && (strstr(line, "0:125") || strstr(line, "Slurm "))))
        ended(f, MF_HOST_GROUP, "Slurm's OUT_OF_MEMORY");
    if (strncmp(line, "srun: error: ", 13) == 0 && strstr(line, ": Out Of Memory"))
        ended(f, MF_HOST_GROUP, "Slurm's \"Out Of Memory\"");
    if (strstr(line, "OOMKilled\":false") || strstr(line, "OOMKilled\": false"))
        return;
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (strstr(line, phrases[i]))
            ended(f, MF_HOST_GROUP, phrases[i]);
    /* HTCondor: "Job has gone over cgroup memory limit of 8192 megabytes." */
    const char *limit = strstr(line, "cgroup memory limit of ");
    if (limit && strstr(limit, " megabytes") && f->host_end == MF_HOST_GROUP)
        f->limit = strtoull(limit + 23, NULL, 10) % (UINT64_C(1) << 40) << 20;
}

/* "    Limits:" and below it "      memory:  8Gi", of kubectl describe. */
static void read_limits(const char *line, mf_oom_facts *f)
{
    const char *word = line + strspn(line, " ");
    if (strncmp(word, "Limits:", 7) == 0)
        f->in_limits = true;
    else if (f->in_limits && strncmp(word, "memory:", 7) == 0)
        mf_oom_size(word + 7, &f->group_limit);
    else if (f->in_limits && !strstr(word, ": "))
        f->in_limits = false;
}

/* ---- the kernel's report ---- */

static uint64_t kib_after(const char *line, const char *phrase)
{
    const char *p = strstr(line, phrase);
    uint64_t kib = p ? strtoull(p + strlen(phrase), NULL, 10) : 0;
    return kib < UINT64_MAX / 1024 ? kib * 1024 : 0;
}

/* "[  28867]     0 28867   254885    79746 ... python": pid, uid, group, addresses and resident pages. */
static void read_task(const char *line, mf_oom_facts *f)
{
    const char *open = NULL;
    for (const char *p = line; (p = strchr(p, '[')); p++) /* behind dmesg's time, which has a dot in it */
        open = p;
    if (!open)
        return;
    char *end;
    unsigned long pid = strtoul(open + 1, &end, 10);
    if (!pid || *end != ']')
        return;
    unsigned long long fields[4]; /* uid, tgid, total_vm, rss */
    for (int i = 0; i < 4; i++) {
        char *start = end + 1;
        fields[i] = strtoull(start, &end, 10);
        if (end == start)
            return;
    }
    uint64_t bytes = fields[3] < UINT64_MAX / 4096 ? fields[3] * 4096 : 0;
    if (bytes <= f->task_bytes)
        return;
    f->task_bytes = bytes;
    f->task_pid = (unsigned)pid;
    const char *name = line + strlen(line);
    while (name > end && name[-1] != ' ')
        name--;
    snprintf(f->task_name, sizeof f->task_name, "%.*s", (int)strcspn(name, "\r\n"), name);
}

static void read_kernel(const char *line, mf_oom_facts *f)
{
    if (strstr(line, "total_vm") && strstr(line, "tgid")) {
        f->in_kernel_table = true;
        f->task_bytes = 0;
        return;
    }
    if (strstr(line, "oom-kill:constraint"))
        f->in_kernel_table = false;
    if (f->in_kernel_table)
        read_task(line, f);
    uint64_t usage = kib_after(line, "memory: usage "), limit = kib_after(line, "kB, limit ");
    if (usage && limit) {
        f->in_use = usage;
        f->limit = limit;
    }
    const char *victim = strstr(line, "Killed process ");
    if (victim && strstr(line, "anon-rss:")) {
        f->victim_pid = (unsigned)strtoul(victim + 15, NULL, 10);
        f->victim_bytes = kib_after(line, "anon-rss:") + kib_after(line, "shmem-rss:");
    }
    /* Programs that kill before the kernel has to: systemd-oomd, earlyoom, Kubernetes. */
    if (strstr(line, "systemd-oomd") && strstr(line, "Killed ") && strstr(line, " due to memory ")) {
        mf_oom_size_after(line, "due to memory used (", &f->in_use);
        mf_oom_size_after(line, ") / total (", &f->limit);
        ended(f, MF_HOST_MACHINE, "systemd-oomd killed it before the machine's memory ended");
    }
    const char *early = strstr(line, "VmRSS ");
    if (early && strstr(line, "sending SIG") && strstr(line, " to process ")) {
        f->victim_pid = (unsigned)strtoul(strstr(line, " to process ") + 12, NULL, 10);
        mf_oom_size(early + 6, &f->victim_bytes);
        ended(f, MF_HOST_MACHINE, "earlyoom ended it before the machine's memory ended");
    }
    if (strstr(line, " low on resource: memory")) {
        mf_oom_size_after(line, " was using ", &f->in_use);
        ended(f, MF_HOST_MACHINE, "Kubernetes evicted it: the node ran low on memory");
    }
    if (!strstr(line, "Out of memory: Kill"))
        return;
    if (f->task_pid && f->task_pid != f->victim_pid && !f->process_count) {
        f->processes[0].pid = f->task_pid;
        f->processes[0].bytes = f->task_bytes;
        f->process_count = 1;
    }
    ended(f, MF_HOST_MACHINE, "Out of memory: Killed process");
}

/* ---- shared memory ---- */

static void read_shared(const char *line, mf_oom_facts *f)
{
    f->names_shared |= strstr(line, "/dev/shm") || strstr(line, "shared_memory") || strstr(line, "shared memory") ||
                       strstr(line, "</torch_");
    bool full = strstr(line, "No space left on device") && f->names_shared;
    if (full || strstr(line, "out of shared memory") || strstr(line, "insufficient shared memory"))
        ended(f, MF_HOST_SHARED, "shared memory (/dev/shm) is full");
    else if (strstr(line, "Bus error") || strstr(line, "bus error"))
        ended(f, MF_HOST_SHARED, "a bus error: /dev/shm had no page for what was written to it");
}

void mf_oom_read_host(const char *line, mf_oom_facts *f)
{
    read_refused(line, f);
    read_killed(line, f);
    read_group(line, f);
    read_limits(line, f);
    read_kernel(line, f);
    read_shared(line, f);
}

/* ---- what it means ---- */

static const char *size(uint64_t bytes, char text[24])
{
    return memfit_size_format(bytes, text, 24);
}

static void refused_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24];
    if (f->no_pages)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.8, "",
                      "%s: Windows gives out no more than memory and paging file hold together", f->host_text);
    else if (!f->request)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.5, "ulimit -v, and how much was asked (memfit doctor)",
                      "%s: the system gives addresses freely, so it was a limit of the process, or an absurd request",
                      f->host_text);
    else if (f->request < 4 * GIB)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.7, "ulimit -v, and vm.overcommit_memory (memfit doctor)",
                      "the system refused no more than %s: it does that to a process with a limit",
                      size(f->request, a));
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, f->request > 256 * GIB ? 0.9 : 0.6,
                      "the machine's memory, ulimit -v and the container's limit (memfit doctor)",
                      "%s: %s in one piece was refused by the host's memory", f->host_text, size(f->request, a));
}

static void machine_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24], b[24];
    if (f->task_pid && f->task_pid != f->victim_pid && f->task_bytes > 2 * f->victim_bytes)
        mf_oom_decide(
            d, MEMFIT_DIAGNOSIS_OTHER_PROCESS, 0.85, "",
            "the machine's memory ended and the kernel killed process %u with %s, while process %u (%s) holds "
            "%s",
            f->victim_pid, size(f->victim_bytes, a), f->task_pid, f->task_name, size(f->task_bytes, b));
    else if (strncmp(f->host_text, "Out of memory", 13) != 0)
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.85, "", "%s%s%s", f->host_text,
                      f->victim_bytes || f->in_use ? "; in use were " : "",
                      f->victim_bytes || f->in_use ? size(f->victim_bytes ? f->victim_bytes : f->in_use, a) : "");
    else
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.9, "",
                      "the machine's memory ended and the kernel killed process %u, which held %s", f->victim_pid,
                      size(f->victim_bytes, a));
}

bool mf_oom_host_cause(const mf_oom_facts *f, memfit_diagnosis *d)
{
    char a[24];
    switch (f->host_end) {
    case MF_HOST_NONE:
        return false;
    case MF_HOST_REFUSED:
        refused_cause(f, d);
        break;
    case MF_HOST_KILLED:
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_TOO_LARGE, 0.5,
                      "dmesg -T | grep -i 'killed process' (a container's limit says \"Memory cgroup\" there)",
                      "%s: it was killed from outside, without an error of its own; the kernel does that when the "
                      "host's memory ends",
                      f->host_text);
        break;
    case MF_HOST_MACHINE:
        machine_cause(f, d);
        break;
    case MF_HOST_GROUP:
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, 0.95, "",
                      "%s: the memory limit of its container, job or unit killed it%s%s", f->host_text,
                      d->limit_bytes ? ", at " : "", d->limit_bytes ? size(d->limit_bytes, a) : "");
        break;
    case MF_HOST_SHARED:
        mf_oom_decide(d, MEMFIT_DIAGNOSIS_LIMIT, f->names_shared ? 0.95 : 0.6,
                      f->names_shared ? "" : "df -h /dev/shm while it runs", "%s", f->host_text);
        break;
    }
    return true;
}
