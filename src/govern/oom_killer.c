/* oom_killer.c: see oom_killer.h. */
#include "govern/oom_killer.h"

#include "base/os.h"
#include "base/text.h"
#include "base/visible.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "KEY NUMBER" in a file of lines; UINT64_MAX when it is not there. */
static uint64_t read_counter(const char *root, const char *path, const char *key)
{
    char file[3072], text[8192];
    snprintf(file, sizeof file, "%s%s", root, path);
    if (!mf_os_read_text(file, text, sizeof text))
        return UINT64_MAX;
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == ' ')
            return strtoull(line + n + 1, NULL, 10);
    }
    return UINT64_MAX;
}

static uint64_t read_limit(const char *root, const char *path)
{
    char file[3072], text[64];
    snprintf(file, sizeof file, "%s%s", root, path);
    if (!mf_os_read_text(file, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    uint64_t bytes = strtoull(text, NULL, 10);
    return bytes < UINT64_C(1) << 60 ? bytes : UINT64_MAX;
}

static void add(uint64_t *sum, uint64_t n)
{
    if (n != UINT64_MAX)
        *sum = *sum == UINT64_MAX ? n : *sum + n;
}

/* The kills of our cgroup and of all above it, each of which may hold the limit. In version 2 a group counts what
 * happens below it, in version 1 it does not: a sum grows in both. */
static void read_groups(const char *root, uint64_t *kills, uint64_t *limit)
{
    char file[3072], groups[4096], *save = NULL;
    *kills = *limit = UINT64_MAX;
    snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
    if (!mf_os_read_text(file, groups, sizeof groups))
        return;
    for (char *line = strtok_r(groups, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bool v2 = strncmp(line, "0::", 3) == 0;
        char *memory = strstr(line, ":memory:"), path[2048];
        if (!v2 && !memory)
            continue;
        const char *top = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        snprintf(path, sizeof path, "%.2000s", v2 ? line + 3 : memory + 8);
        for (;;) { /* from the leaf up to the root */
            snprintf(file, sizeof file, "%s%s/%s", top, path, v2 ? "memory.events" : "memory.oom_control");
            add(kills, read_counter(root, file, "oom_kill"));
            snprintf(file, sizeof file, "%s%s/%s", top, path, v2 ? "memory.max" : "memory.limit_in_bytes");
            uint64_t here = read_limit(root, file);
            *limit = here < *limit ? here : *limit;
            char *slash = strrchr(path, '/');
            if (!slash)
                break;
            *slash = 0;
        }
    }
}

void mf_oom_watch_begin(mf_oom_watch *watch, const char *root)
{
    char path[3072];
    *watch = (mf_oom_watch){.root = root};
    snprintf(path, sizeof path, "%s/dev/kmsg", root);
    watch->log = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (watch->log >= 0 && lseek(watch->log, 0, SEEK_END) < 0) {
        close(watch->log);
        watch->log = -1;
    }
    read_groups(root, &watch->group, &watch->group_limit);
    watch->machine = read_counter(root, "/proc/vmstat", "oom_kill");
}

/* "6,1431,5260,-;Memory cgroup out of memory: Killed process 4711 (python3) total-vm:..., anon-rss:123kB, ..." A read
 * gives one record. Of the killed the last one of ours counts. */
static void read_log(mf_oom_watch *watch, bool (*ours)(void *ctx, unsigned pid), void *ctx, mf_oom_verdict *v)
{
    static const char killed[] = "Killed process ";
    char record[8192];
    for (;;) {
        ssize_t n = read(watch->log, record, sizeof record - 1);
        if (n < 0 && errno == EPIPE)
            continue; /* older records were overwritten */
        if (n <= 0)
            return;
        record[n] = 0;
        for (char *line = record, *next; line; line = next) { /* a plain file holds many lines */
            next = strchr(line, '\n');
            if (next)
                *next++ = 0;
            char *at = strstr(line, killed);
            if (!at || !strstr(line, "emory"))
                continue;
            unsigned pid = (unsigned)strtoul(at + sizeof killed - 1, NULL, 10);
            if (!ours(ctx, pid))
                continue;
            bool group = strstr(line, "cgroup") != NULL;
            v->struck = true;
            v->pid = pid;
            v->limit_bytes = group && watch->group_limit != UINT64_MAX ? watch->group_limit : 0;
            mf_format(v->evidence, sizeof v->evidence, "the kernel's log: %.*s", (int)strcspn(at, ","), at);
        }
    }
}

void mf_oom_watch_end(mf_oom_watch *watch, bool (*ours)(void *ctx, unsigned pid), void *ctx, bool killed,
                      mf_oom_verdict *verdict)
{
    *verdict = (mf_oom_verdict){0};
    if (watch->log >= 0) {
        read_log(watch, ours, ctx, verdict);
        close(watch->log);
    }
    watch->log = -1;
    if (verdict->struck)
        return;
    uint64_t group, limit, machine = read_counter(watch->root, "/proc/vmstat", "oom_kill");
    read_groups(watch->root, &group, &limit);
    bool in_group = watch->group != UINT64_MAX && group != UINT64_MAX && group > watch->group;
    bool anywhere = watch->machine != UINT64_MAX && machine != UINT64_MAX && machine > watch->machine;
    if (in_group && killed) {
        verdict->struck = true;
        verdict->limit_bytes = watch->group_limit != UINT64_MAX ? watch->group_limit : 0;
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "a process was killed by SIGKILL, and the count of kills of its cgroup grew meanwhile");
    } else if (anywhere && killed) {
        verdict->struck = true;
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "a process was killed by SIGKILL, and the machine's count of kills grew meanwhile");
    }
}
