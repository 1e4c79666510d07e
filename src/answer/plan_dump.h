/* plan_dump.h: the training step of a plan, written out. */
#ifndef MF_ANSWER_PLAN_DUMP_H
#define MF_ANSWER_PLAN_DUMP_H

#include "plan/plan.h"

#include <stdio.h>

/* Text: one line a step, with every operand's shape and place. dot: the graph for Graphviz. */
void mf_plan_dump(FILE *file, const mf_plan *plan, bool dot);

#endif
