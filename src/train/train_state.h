/*
 * train_state.h: the bytes of variables: parameters, statistics, the optimizer's slots, metrics, gradients that last. Only
 * this file reads and writes them, through the device's copies and in the order of its stream: the host follows no address.
 *
 * A plan has no room for variables that its steps do not need (weights that no loss reaches, an optimizer's state where
 * nothing is trained): mf_state_has is false, reading gives nothing and writing is left out.
 */
#ifndef MF_TRAIN_TRAIN_STATE_H
#define MF_TRAIN_TRAIN_STATE_H

#include "train/trainer.h"

bool mf_state_has(const mf_trainer *t, uint32_t variable);
uint64_t mf_state_bytes(const mf_trainer *t, uint32_t variable); /* of the variable, held or not */
/* `bytes` from the variable's byte `at` on. False, and nothing happens, when the plan does not hold it. */
bool mf_state_read(const mf_trainer *t, uint32_t variable, uint64_t at, void *to, uint64_t bytes);
bool mf_state_write(mf_trainer *t, uint32_t variable, uint64_t at, const void *from, uint64_t bytes);
void mf_state_clear(mf_trainer *t, uint32_t variable);
void mf_state_copy(mf_trainer *t, uint32_t from, uint32_t to); /* variables of one shape and type */
/* First values of all: stored in the file, or by their initializers. */
memfit_status mf_state_initialize(mf_trainer *t, memfit_error *err);

/* Everything that must outlive a plan, in order of the variables' numbers: to `space` and back. */
uint64_t mf_state_all_bytes(const mf_trainer *t);
void mf_state_save_all(const mf_trainer *t, unsigned char *space);
void mf_state_load_all(mf_trainer *t, const unsigned char *space);

/* A tensor at the end of its phase: a prediction's result. False when it is not there. */
bool mf_state_read_tensor(const mf_trainer *t, uint32_t phase, uint32_t tensor, uint64_t at, void *to, uint64_t bytes);

/* Where the writer of files has a variable fetched from while it writes; NULL: not held. It is an address of the device's:
 * mf_state_fetch gets its bytes, between steps only. */
const void *mf_state_for_writer(const mf_trainer *t, uint32_t variable);
mf_address mf_state_address(const mf_trainer *t, uint32_t variable); /* 0: not held */
memfit_status mf_state_fetch(const mf_trainer *t, mf_address from, void *to, uint64_t bytes, memfit_error *err);

#endif
