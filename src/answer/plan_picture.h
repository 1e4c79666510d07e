/*
 * plan_picture.h: the drawings of a plan's page: bytes in use over the operations of a step, and memory against time.
 */
#ifndef MF_ANSWER_PLAN_PICTURE_H
#define MF_ANSWER_PLAN_PICTURE_H

#include "answer/plan_text.h"

enum { MF_PICTURE_PARTS = 8 };
extern const memfit_kind mf_picture_parts[MF_PICTURE_PARTS]; /* kinds from the bottom of a stack to its top */

/* Bytes in use of a phase, fixed cost and variables included, the highest of the operations that fall into each of at most
 * MF_ANSWER_CURVE columns. Returns how many; 0 when there is no memory for it. */
uint32_t mf_picture_totals(const memfit_host *host, const mf_plan *plan, const mf_phase *phase, uint64_t *totals);

/* The phase with the peak, stacked by kind, the step as asked behind it where that is another; every column says on hover
 * which operation of which layer it shows. */
memfit_status mf_picture_put_timeline(FILE *f, const memfit_host *host, const mf_answer *a, const mf_answer_context *c,
                                      memfit_error *err);
/* Peaks and times of --curve as points of one line. */
void mf_picture_put_curve(FILE *f, const mf_answer *a);

#endif
