/*
 * epoch_log.h: what is written beside the model while training: a CSV log as Keras's CSVLogger writes it, and TensorBoard
 * event files. Opened before the first step, with buffers of their own: writing allocates nothing.
 */
#ifndef MF_TRAIN_EPOCH_LOG_H
#define MF_TRAIN_EPOCH_LOG_H

#include "base/memory.h"
#include "memfit/train.h"

typedef struct mf_events mf_events;

/* resumed: the epoch a run goes on in, whose log is continued (rows of that epoch and later are written anew, and
 * TensorBoard drops what it has of them); -1: a new log. */
memfit_status mf_events_create(const memfit_host *host, const char *csv, const char *tensorboard, int64_t resumed,
                               mf_events **events, memfit_error *err);
void mf_events_destroy(mf_events *events);
/* A line of the log and scalars of an epoch; memory in bytes as epoch_memory. */
memfit_status mf_events_epoch(mf_events *events, const memfit_train_event *event, memfit_error *err);

#endif
