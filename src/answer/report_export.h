/* report_export.h: a report's trace in the formats of other viewers; see trace/trace_write.h. */
#ifndef MF_ANSWER_REPORT_EXPORT_H
#define MF_ANSWER_REPORT_EXPORT_H

#include "answer/report.h"

memfit_status mf_report_write_viz(const mf_report *r, const char *path, memfit_error *err);
memfit_status mf_report_write_perfetto(const mf_report *r, const char *path, memfit_error *err);
memfit_status mf_report_write_tensorboard(const mf_report *r, const char *folder, memfit_error *err);
/* Folded stacks of the bytes at the peak, a line an owner: "memfit;activations;main (train.py:7);forward (model.py:41) 1048576".
 * flamegraph.pl, inferno and speedscope draw them. */
memfit_status mf_report_write_flame(const mf_report *r, const char *path, memfit_error *err);

#endif
