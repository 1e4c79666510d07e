/* oom_programs.h: what programs beside the three frameworks print when a card has no room, memfit itself among them. */
#ifndef MF_DIAGNOSE_OOM_PROGRAMS_H
#define MF_DIAGNOSE_OOM_PROGRAMS_H

#include "diagnose/oom_log.h"

void mf_oom_read_programs(const char *line, mf_oom_facts *facts);
/* When all lines are read: words that count only where nothing else said more. */
void mf_oom_end_programs(mf_oom_facts *facts);
/* Decides when the facts are of such a program; false otherwise. */
bool mf_oom_program_cause(const mf_oom_facts *facts, memfit_diagnosis *diagnosis);

#endif
