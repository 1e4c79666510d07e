/*
 * checkpoint.h: writing the model back, while training and at its end. The writer is made once, before the fixed cost
 * is measured; writing allocates nothing. A checkpoint is the .keras file with one more member, which holds what Keras
 * has no place for: data position, generator seed, loss scale, waiting counters, the state of metrics.
 */
#ifndef MF_TRAIN_CHECKPOINT_H
#define MF_TRAIN_CHECKPOINT_H

#include "train/trainer.h"

typedef struct mf_checkpoint mf_checkpoint;

/* Needs the executor: arrays point into the arena. */
memfit_status mf_checkpoint_create(mf_trainer *t, mf_checkpoint **checkpoint, memfit_error *err);
void mf_checkpoint_destroy(mf_checkpoint *checkpoint);
/* With `state`, as a checkpoint that can be resumed; else plainly the trained model. */
memfit_status mf_checkpoint_write(mf_checkpoint *checkpoint, const char *path, bool state, memfit_error *err);
/* Reads the extra member of the model the trainer has loaded; NOT_FOUND when it is no checkpoint. After the variables
 * have got their first values. */
memfit_status mf_checkpoint_restore(mf_trainer *t, memfit_error *err);
/* Before a validation, which uses the metrics too: their states are kept for a checkpoint written meanwhile. The first
 * makes the place for it (with the executor there, before the fixed cost is measured). */
memfit_status mf_checkpoint_metrics_place(mf_trainer *t, memfit_error *err);
void mf_checkpoint_keep_metrics(mf_trainer *t);
/* How the run that wrote this model's checkpoint was set up; all zero when it is none. */
mf_resumed mf_checkpoint_settings(mf_model *model);

#endif
