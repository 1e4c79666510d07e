/*
 * named.h: a share of several jobs, found by its name: where its file lies, who joins and leaves.
 *
 * The first job that names a share makes it and sets its size; the last one removes it. A share whose jobs were all
 * killed counts as none: the next job makes it anew. Joining, leaving and setting hold a lock on the file for some
 * microseconds (flock: a killed process gives it up); the processes inside never do.
 */
#ifndef MF_GOVERN_NAMED_H
#define MF_GOVERN_NAMED_H

#include "govern/share.h"
#include "memfit/run.h"

/* $XDG_RUNTIME_DIR/memfit, else /tmp/memfit-UID: for this user alone, or IO with the reason. */
memfit_status mf_named_path(const char *name, char *path, size_t bytes, memfit_error *err);

/* Joins, as a new job. `limit_bytes` 0: the share must be there (NOT_FOUND); else it makes the share, or must be what the share
 * has (CONFLICT). DAMAGED, and IO for one that is not this user's, name the file. `turns_s` 0: no turns. */
memfit_status mf_named_join(const char *path, const char *name, uint64_t limit_bytes, uint32_t turns_s, mf_share *share,
                            memfit_error *err);
/* Gives up the job's row, and closes. With the last job and process the file goes. */
void mf_named_leave(const char *path, mf_share *share);

#endif
