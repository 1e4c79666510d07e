/*
 * oom_killer.h: did the kernel's out-of-memory killer strike while a program ran?
 *
 * There are three witnesses; we believe the best that speaks. The kernel's log names the process. The counter of our
 * own memory cgroup (or of one above it) grew. The counter of the whole machine grew. The last two say only that some
 * process was killed, so they count only together with a process of ours that died of SIGKILL.
 */
#ifndef MF_GOVERN_OOM_KILLER_H
#define MF_GOVERN_OOM_KILLER_H

#include "memfit/base.h"

typedef struct mf_oom_watch {
    const char *root;        /* "" for this machine; a folder that holds another's files (tests) */
    int log;                 /* /dev/kmsg at its end as it was when the watch began; -1: may not be read */
    uint64_t group, machine; /* counters at the beginning; UINT64_MAX: there is none */
    uint64_t group_limit;    /* the tightest of our cgroups; UINT64_MAX: none */
} mf_oom_watch;

typedef struct mf_oom_verdict {
    bool struck;
    unsigned pid; /* as the kernel numbers it; 0: not told */
    char evidence[256];
    uint64_t limit_bytes; /* of the cgroup that was full; 0: the machine, or not known */
} mf_oom_verdict;

void mf_oom_watch_begin(mf_oom_watch *watch, const char *root);
/* `ours` tells whether a process was one of the program's; `killed`: one of ours died of SIGKILL, as far as we know. */
void mf_oom_watch_end(mf_oom_watch *watch, bool (*ours)(void *ctx, unsigned pid), void *ctx, bool killed,
                      mf_oom_verdict *verdict);

#endif
