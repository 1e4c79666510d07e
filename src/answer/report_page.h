/* report_page.h: a report as a page for the browser. */
#ifndef MF_ANSWER_REPORT_PAGE_H
#define MF_ANSWER_REPORT_PAGE_H

#include "answer/report_bands.h"

/* One file without scripts from elsewhere, fonts or addresses. Replays the traces for the pool's curve. The file is written
 * whole or not at all. */
memfit_status mf_report_write_page(const char *path, mf_report *report, mf_report *other,
                                   const mf_report_difference *difference, memfit_error *err);

/* ---- report_tables.c: what is readable without scripts ---- */

/* Text for HTML: made visible, nothing in it is markup. */
void mf_page_put_text(FILE *f, const char *text);
const char *mf_page_colour(memfit_kind kind);
/* The curve as a drawing, stacked by kind. */
memfit_status mf_page_put_curve(FILE *f, const mf_report *r, memfit_error *err);
void mf_page_put_owners(FILE *f, const mf_report *r);
void mf_page_put_held(FILE *f, const mf_report *r);
void mf_page_put_growth(FILE *f, const mf_report *r);
void mf_page_put_pool(FILE *f, const mf_report *r);
void mf_page_put_difference(FILE *f, const mf_report *a, const mf_report *b, const mf_report_difference *d);

#endif
