/* report_parts.h: the parts a report is built of, for report.c; see report.h. */
#ifndef MF_ANSWER_REPORT_PARTS_H
#define MF_ANSWER_REPORT_PARTS_H

#include "answer/report.h"

/* Steps from marks, or from the curve; needs the device and the peak. */
memfit_status mf_report_find_steps(mf_report *r, memfit_error *err);
/* First and last bytes of every owner over the steps, who grows; needs owners and steps. */
memfit_status mf_report_find_growth(mf_report *r, memfit_error *err);
/* `text` without the folders of files in it: "f (/home/me/a.py:3)" is "f (a.py:3)". Written to out, which is as large. */
void mf_report_hide_folders(const char *text, char *out);

#endif
