/*
 * watch.h: memory of a program's processes while it runs: on the host by /proc, on the cards by NVML.
 *
 * A thread of its own looks ten times a second, so that opening the management library (which can take a second) holds
 * up neither the program's output nor its signals. Looking takes at most a tenth of a processor: where there are
 * very many processes, or the driver is slow to answer, it looks less often.
 */
#ifndef MF_GOVERN_WATCH_H
#define MF_GOVERN_WATCH_H

#include "base/memory.h"
#include "govern/facts.h"
#include "govern/share.h"
#include "memfit/run.h"

typedef struct mf_watch mf_watch;

/* Watches everything below this process from now on. With a share (may be NULL): what a process has on a card beyond what is
 * charged there is charged too, as soon as it is seen, and who held most is kept from the facts. */
memfit_status mf_watch_begin(const memfit_host *host, uint32_t sample_ms, mf_share *share, const mf_facts *facts,
                             mf_watch **watch, memfit_error *err);
/* Stops, and writes what was seen: samples, host and card peaks, processes. */
void mf_watch_end(mf_watch *watch, memfit_run_result *result);

#endif
