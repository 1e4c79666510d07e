/* tree.c: see tree.h. */
#include "govern/tree.h"

#include "base/error.h"
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* "PID (NAME) STATE PPID PGRP SESSION ...": the name may hold anything, so what follows begins behind the last ')'. */
static bool read_process(int pid, mf_tree_process *p)
{
    enum { START = 22 - 3 }; /* fields between the state and the start time */
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!mf_os_read_text(path, text, sizeof text))
        return false;
    char *rest = strrchr(text, ')');
    if (!rest || rest[1] != ' ')
        return false;
    *p = (mf_tree_process){.pid = pid, .state = rest[2]};
    int group;
    if (sscanf(rest + 3, "%d %d %d", &p->parent, &group, &p->session) != 3)
        return false;
    char *field = rest + 3;
    for (int i = 0; i < START && field; i++)
        field = strchr(field + 1, ' ');
    p->start_tick = field ? strtoull(field, NULL, 10) : 0;
    return true;
}

static const mf_tree_process *find(const mf_tree *t, int pid)
{
    size_t from = 0, to = t->count;
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (t->list[middle].pid < pid)
            from = middle + 1;
        else
            to = middle;
    }
    return from < t->count && t->list[from].pid == pid ? &t->list[from] : NULL;
}

static int by_pid(const void *a, const void *b)
{
    const mf_tree_process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

/* A child may have a smaller number than its parent, so the walk is repeated until it finds nothing new: as often as
 * the tree is deep at most. */
static void mark_below(mf_tree *t, int root)
{
    for (bool found = true; found;) {
        found = false;
        for (size_t i = 0; i < t->count; i++) {
            mf_tree_process *p = &t->list[i];
            const mf_tree_process *parent = p->below ? NULL : find(t, p->parent);
            if (parent && (parent->pid == root || parent->below))
                p->below = found = true;
        }
    }
}

memfit_status mf_tree_look(mf_tree *tree, int root, memfit_error *err)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        return mf_fail(err, MEMFIT_IO, "/proc: %s", strerror(errno));
    memfit_status status = MEMFIT_OK;
    tree->count = 0;
    for (struct dirent *entry; !status && (entry = readdir(folder));) {
        int pid = atoi(entry->d_name);
        if (pid <= 0)
            continue;
        if (!mf_grow(tree->host, &tree->list, &tree->capacity, tree->count, sizeof *tree->list))
            status = mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no host memory for a list of %zu processes", tree->count);
        else if (read_process(pid, &tree->list[tree->count]))
            tree->count++;
    }
    closedir(folder);
    qsort(tree->list, tree->count, sizeof *tree->list, by_pid);
    mark_below(tree, root);
    return status;
}

void mf_tree_drop(mf_tree *tree)
{
    mf_host_free(tree->host, tree->list, tree->capacity * sizeof *tree->list);
    *tree = (mf_tree){.host = tree->host};
}

bool mf_tree_is_left(const mf_tree_process *process, int session)
{
    return process->below && process->session == session && process->state != 'Z' && process->state != 'X';
}

bool mf_tree_signal(const mf_tree_process *process, int signal)
{
    int fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (fd < 0 && errno == ENOSYS) /* before Linux 5.3 */
        return kill(process->pid, signal) == 0;
    mf_tree_process now;
    bool sent = fd >= 0 && read_process(process->pid, &now) && now.start_tick == process->start_tick &&
                syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) == 0;
    if (fd >= 0)
        close(fd);
    return sent;
}

static uint64_t kib_of(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at ? strtoull(at + strlen(key), NULL, 10) << 10 : 0;
}

uint64_t mf_process_memory(int pid)
{
    char path[32], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    if (!mf_os_read_text(path, text, sizeof text))
        return 0;
    return kib_of(text, "\nRssAnon:") + kib_of(text, "\nRssShmem:");
}

/* Whether a file of /proc has this text; false too when it cannot be read, or has nothing: `any` says that. */
static bool has_text(const char *path, const char *what, bool *any)
{
    enum { MOST = 64 };
    char text[8192 + MOST + 1];
    size_t kept = 0, length = strlen(what);
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    *any = false;
    while (fd >= 0 && !found && (n = read(fd, text + kept, sizeof text - 1 - MOST)) > 0) {
        *any = true;
        kept += (size_t)n;
        text[kept] = 0;
        found = strstr(text, what) != NULL;
        size_t tail = kept < length - 1 ? kept : length - 1; /* it may lie across two reads */
        memmove(text, text + kept - tail, tail);
        kept = tail;
    }
    if (fd >= 0)
        close(fd);
    return found;
}

bool mf_process_is_without(int pid, const char *library)
{
    char path[32], status[4096];
    unsigned user = 0, effective = 0;
    bool any;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    const char *line = mf_os_read_text(path, status, sizeof status) ? strstr(status, "\nUid:") : NULL;
    if (!line || sscanf(line, "\nUid: %u %u", &user, &effective) != 2 || !mf_process_memory(pid))
        return false; /* it is gone, or going */
    if (effective != geteuid())
        return true;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    return !has_text(path, library, &any) && any;
}

void mf_process_name(int pid, char *name, size_t bytes)
{
    char path[32], text[512] = {0};
    snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    name[0] = 0;
    size_t length = 0;
    const char *end = text + (n > 0 ? n : 0);
    int words = 0;
    for (const char *word = text; word < end && words < 3; word += strlen(word) + 1, words++) {
        const char *slash = strrchr(word, '/'), *bare = slash && slash[1] ? slash + 1 : word;
        int put = snprintf(name + length, bytes - length, "%s%s", words ? " " : "", bare);
        length += put > 0 ? (size_t)put : 0;
        if (length >= bytes)
            return;
    }
    if (length)
        return;
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    if (mf_os_read_text(path, text, sizeof text))
        snprintf(name, bytes, "%.*s", (int)strcspn(text, "\n"), text);
}
