/* oom_host.h: failures of the machine's memory: who was killed, who was refused, and what shared memory lacked. */
#ifndef MF_DIAGNOSE_OOM_HOST_H
#define MF_DIAGNOSE_OOM_HOST_H

#include "diagnose/oom_log.h"

void mf_oom_read_host(const char *line, mf_oom_facts *facts);
/* Decides when the facts are of the host and of no framework's allocator; false otherwise. */
bool mf_oom_host_cause(const mf_oom_facts *facts, memfit_diagnosis *diagnosis);

#endif
