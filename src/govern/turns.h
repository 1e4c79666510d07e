/*
 * turns.h: jobs of a share that do not fit together: one uses the cards, the others are suspended, by turns.
 *
 * The driver can take a process off its cards: cuCheckpointProcessLock holds its calls, Checkpoint copies its memory to
 * the host and gives the card's back, Restore and Unlock undo both. Every job's own `memfit run` does that to its own
 * processes, in a thread; the share says whose turn it is (share.h).
 *
 *     waits ──turn──> runs ──time is up, another waits──> suspended ──turn──> runs ...
 *
 * A process gets its first memory when its job has the turn (preload_ask.c waits). When a job dies, the next one gets
 * its turn. A job that cannot be suspended (the driver says why) keeps the cards to its end.
 */
#ifndef MF_GOVERN_TURNS_H
#define MF_GOVERN_TURNS_H

#include "base/memory.h"
#include "govern/share.h"
#include "memfit/run.h"

typedef struct mf_turns mf_turns;

/* Whether this machine can: UNSUPPORTED with the reason: no driver, one before CUDA 12.8 (570), or too little host memory for a
 * copy of `limit_bytes`. Starts no thread, and no context. */
memfit_status mf_turns_check(uint64_t limit_bytes, memfit_error *err);
memfit_status mf_turns_begin(const memfit_host *host, mf_share *share, mf_turns **turns, memfit_error *err);
/* The program has ended. */
void mf_turns_end(mf_turns *turns, memfit_run_result *result);

#endif
