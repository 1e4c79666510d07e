/* trace_merge.h: the traces of several processes as one. */
#ifndef MF_TRACE_TRACE_MERGE_H
#define MF_TRACE_TRACE_MERGE_H

#include "memfit/trace.h"

enum { MF_TRACE_MOST_MERGED = 1024 };

/* Every file of a folder, sorted by name, each the trace of a process. Times are those since the first of them began, where
 * the files say when that was (memfit's own); a name gets the file's in front: "rank-1: conv1". Files whose names begin with
 * a point are passed over. NOT_FOUND: there is none. */
memfit_status mf_trace_merge_folder(const char *folder, const memfit_host *host, memfit_trace **trace,
                                    memfit_error *err);
/* The same of the files PATH.PID.CARD that `memfit run --trace PATH` leaves, when there is no file PATH. */
bool mf_trace_is_run(const char *path);
memfit_status mf_trace_merge_run(const char *path, const memfit_host *host, memfit_trace **trace, memfit_error *err);

#endif
