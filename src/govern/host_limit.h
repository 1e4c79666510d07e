/*
 * host_limit.h: a limit of the host's memory for a program and all it starts: a memory cgroup of its own below ours.
 *
 * The kernel enforces it: it kills a process that takes more and has nothing to give back (oom_killer.h reports that).
 * We can make the group where we may divide our own: as root, or where it was delegated to the user. Otherwise we
 * refuse with the reason.
 */
#ifndef MF_GOVERN_HOST_LIMIT_H
#define MF_GOVERN_HOST_LIMIT_H

#include "memfit/base.h"

typedef struct mf_host_limit {
    char folder[2304]; /* the group's; empty: none */
    bool v2;           /* of the cgroup file system */
    uint64_t bytes;
} mf_host_limit;

/* UNSUPPORTED with the reason where no group can be made. `root`: "" for this machine; a folder that holds another's files (tests). */
memfit_status mf_host_limit_begin(mf_host_limit *limit, uint64_t bytes, const char *root, memfit_error *err);
/* In the child that becomes the program: false, it is not in the group. */
bool mf_host_limit_enter(const mf_host_limit *limit);
/* How many the kernel has killed in the group. */
uint64_t mf_host_limit_kills(const mf_host_limit *limit);
/* Takes the group away, unless somebody still runs in it. */
void mf_host_limit_end(mf_host_limit *limit);

#endif
