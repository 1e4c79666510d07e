/* trace_merge.h: the traces of several processes as one. */
#ifndef MF_TRACE_TRACE_MERGE_H
#define MF_TRACE_TRACE_MERGE_H

#include "memfit/trace.h"

enum { MF_TRACE_MOST_MERGED = 1024 };

/* Every trace of a folder, sorted by name, each of one process. Times are those since the first of them began, where the
 * files say when that was (memfit's own); a name gets the file's in front: "rank-1: conv1". Steps are those of the first
 * file that has marks. Files that neither begin as a trace nor are called one (.trace, .csv, .pickle) are left out and
 * counted; those whose names begin with a point are passed over. NOT_FOUND: there is no trace. */
memfit_status mf_trace_merge_folder(const char *folder, const memfit_host *host, memfit_trace **trace,
                                    uint32_t *left_out, memfit_error *err);
/* The same of the files PATH.PID.CARD that `memfit run --trace PATH` leaves, when there is no file PATH: "process 4242: ...",
 * or, where two runs are to be compared, by the order in which they began: "process 1: ...". */
bool mf_trace_is_run(const char *path);
memfit_status mf_trace_merge_run(const char *path, bool by_order, const memfit_host *host, memfit_trace **trace,
                                 memfit_error *err);

#endif
