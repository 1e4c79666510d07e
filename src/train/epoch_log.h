/*
 * epoch_log.h: what is written beside the model while training: a CSV log as Keras's CSVLogger writes it, and TensorBoard
 * event files. They have buffers of their own: writing allocates nothing.
 */
#ifndef MF_TRAIN_EPOCH_LOG_H
#define MF_TRAIN_EPOCH_LOG_H

#include "base/memory.h"
#include "memfit/train.h"

typedef struct mf_events mf_events;

/* Takes the memory. NULL for both paths: *events is NULL, and the other functions do nothing. */
memfit_status mf_events_create(const memfit_host *host, const char *csv, const char *tensorboard, mf_events **events,
                               memfit_error *err);
/* Opens the files: once it is certain that there will be steps, for a log that is there is replaced. resumed: the epoch
 * a run goes on in, whose log is continued (rows of that epoch and later are written anew, and TensorBoard drops what it
 * has of them); -1: a new log. */
memfit_status mf_events_open(mf_events *events, int64_t resumed, memfit_error *err);
void mf_events_destroy(mf_events *events);
/* A line of the log and scalars of an epoch; memory in bytes as epoch_memory. */
memfit_status mf_events_epoch(mf_events *events, const memfit_train_event *event, memfit_error *err);

#endif
