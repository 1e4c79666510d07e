/* host_limit.c: see host_limit.h. */
#include "govern/host_limit.h"

#include "base/error.h"
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUP_NAME "memfit-run-"
static const char hint[] = "systemd-run --user --scope -p MemoryMax=SIZE memfit run ... limits it where systemd may";

static bool write_text(const char *folder, const char *file, const char *text)
{
    char path[2560];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    int code = errno;
    if (fd >= 0)
        close(fd);
    errno = code;
    return good;
}

static bool has(const char *folder, const char *file)
{
    char path[2560];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return access(path, F_OK) == 0;
}

/* The folder of our own memory group: version 2's where it has the controller, else version 1's. */
static bool find_own(const char *root, char *folder, size_t bytes, bool *v2)
{
    char file[2304], groups[4096], *save = NULL;
    bool found = false;
    snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
    if (!mf_os_read_text(file, groups, sizeof groups))
        return false;
    for (char *line = strtok_r(groups, "\n", &save); line && !found; line = strtok_r(NULL, "\n", &save)) {
        const char *memory = strstr(line, ":memory:");
        bool second = strncmp(line, "0::", 3) == 0;
        if (!second && !memory)
            continue;
        const char *path = second ? line + 3 : memory + 8;
        snprintf(folder, bytes, "%s/sys/fs/cgroup%s%.1800s", root, second ? "" : "/memory",
                 strcmp(path, "/") ? path : "");
        found = second ? has(folder, "cgroup.controllers") : has(folder, "memory.limit_in_bytes");
        *v2 = second;
    }
    return found;
}

/* Groups of memfits that were killed; one that somebody still runs in cannot be taken away. */
static void sweep(const char *own)
{
    DIR *list = opendir(own);
    for (struct dirent *e; list && (e = readdir(list));) {
        char path[2560];
        pid_t pid =
            strncmp(e->d_name, GROUP_NAME, strlen(GROUP_NAME)) == 0 ? (pid_t)atoi(e->d_name + strlen(GROUP_NAME)) : 0;
        snprintf(path, sizeof path, "%s/%.200s", own, e->d_name);
        if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH)
            rmdir(path);
    }
    if (list)
        closedir(list);
}

static memfit_status make_group(mf_host_limit *limit, const char *own, memfit_error *err)
{
    snprintf(limit->folder, sizeof limit->folder, "%.2200s/" GROUP_NAME "%ld", own, (long)getpid());
    if (mkdir(limit->folder, 0755) != 0) {
        int code = errno;
        limit->folder[0] = 0;
        return mf_fail(err, MEMFIT_UNSUPPORTED, "no memory group can be made below ours (%s): %s\n%s", own,
                       strerror(code), hint);
    }
    if (limit->v2 && !has(limit->folder, "memory.max"))
        write_text(own, "cgroup.subtree_control", "+memory"); /* only a group without processes of its own may */
    const char *file = limit->v2 ? "memory.max" : "memory.limit_in_bytes";
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, limit->bytes);
    if (!has(limit->folder, file))
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "our group (%s) is not to be divided: it has processes of its own, or memory is not delegated "
                       "to it\n%s",
                       own, hint);
    if (!write_text(limit->folder, file, text))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s/%s cannot be set: %s\n%s", limit->folder, file, strerror(errno),
                       hint);
    /* What goes to a swap file would not be limited; where swapping is not counted there is nothing to say. */
    write_text(limit->folder, limit->v2 ? "memory.swap.max" : "memory.memsw.limit_in_bytes", limit->v2 ? "0" : text);
    return MEMFIT_OK;
}

memfit_status mf_host_limit_begin(mf_host_limit *limit, uint64_t bytes, const char *root, memfit_error *err)
{
    char own[2304];
    *limit = (mf_host_limit){.bytes = bytes};
    if (!find_own(root, own, sizeof own, &limit->v2))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "this process has no memory cgroup that it sees\n%s", hint);
    sweep(own);
    memfit_status status = make_group(limit, own, err);
    if (status)
        mf_host_limit_end(limit);
    return status;
}

bool mf_host_limit_enter(const mf_host_limit *limit)
{
    char pid[24];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    return !limit->folder[0] || write_text(limit->folder, "cgroup.procs", pid);
}

uint64_t mf_host_limit_kills(const mf_host_limit *limit)
{
    char path[2560], text[4096];
    snprintf(path, sizeof path, "%s/%s", limit->folder, limit->v2 ? "memory.events" : "memory.oom_control");
    if (!limit->folder[0] || !mf_os_read_text(path, text, sizeof text))
        return 0;
    const char *at = strstr(text, "oom_kill ");
    return at ? strtoull(at + strlen("oom_kill "), NULL, 10) : 0;
}

void mf_host_limit_end(mf_host_limit *limit)
{
    if (limit->folder[0])
        rmdir(limit->folder);
    limit->folder[0] = 0;
}
