/* oom_series.h: memory printed step after step. */
#ifndef MF_DIAGNOSE_OOM_SERIES_H
#define MF_DIAGNOSE_OOM_SERIES_H

#include "diagnose/oom_log.h"

void mf_oom_read_series(const char *line, mf_oom_facts *facts);

#endif
