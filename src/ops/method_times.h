/*
 * method_times.h: what methods of operations were seen to take, by `memfit tune`: a file that a plan may be made from
 * instead of the library's own rank. It holds for the card and the libraries that it was made with (mf_backend.made_by);
 * for others it is as if it were not there. The same file gives the same plan: no clock runs when one is made.
 *
 *     memfit tune 1
 *     made by NVIDIA H200, sm_90, ...
 *     1f0c...9a 77e1...02 41.250          an operation, one of its methods, microseconds
 *     ...
 *     end 214 8c41...                     lines, and a sum over all before
 */
#ifndef MF_OPS_METHOD_TIMES_H
#define MF_OPS_METHOD_TIMES_H

#include "ops/ops.h"

typedef struct mf_method_times mf_method_times;

/* Equal for operations that do the same work on other bytes: kind, settings, types and shapes. */
uint64_t mf_op_likeness(const mf_graph *graph, const mf_op *op);

memfit_status mf_method_times_create(const memfit_host *host, const char *made_by, mf_method_times **times,
                                     memfit_error *err);
/* NOT_FOUND; DAMAGED: it is no such file, or not whole; CONFLICT: it was made by another card or other libraries. */
memfit_status mf_method_times_read(const memfit_host *host, const char *path, const char *made_by,
                                   mf_method_times **times, memfit_error *err);
memfit_status mf_method_times_write(const mf_method_times *times, const char *path, memfit_error *err);
void mf_method_times_destroy(mf_method_times *times);

memfit_status mf_method_times_add(mf_method_times *times, uint64_t likeness, const mf_method *method, double us,
                                  memfit_error *err);
/* Microseconds; negative: not known. */
double mf_method_times_find(const mf_method_times *times, uint64_t likeness, const mf_method *method);
uint64_t mf_method_times_count(const mf_method_times *times);
uint64_t mf_method_times_hash(const mf_method_times *times); /* of all of it */

/* The menus of `inner` with these times in place of its own, where all methods of a menu are known. `times` and `inner`
 * must outlive it. */
typedef struct mf_timed_source {
    mf_cost_source inner;
    const mf_method_times *times;
} mf_timed_source;
void mf_timed_cost_source(mf_timed_source *timed, mf_cost_source *source);

#endif
