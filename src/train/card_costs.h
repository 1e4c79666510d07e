/*
 * card_costs.h: what a card's backend answers, by the times of memfit tune where there are any, and what a run takes beside its
 * arena before that is measured: for training, and for plans that training is to follow.
 */
#ifndef MF_TRAIN_CARD_COSTS_H
#define MF_TRAIN_CARD_COSTS_H

#include "ops/method_times.h"
#include "ops/ops.h"

/* Where times for this backend are; false: nowhere, or they must not be used (MEMFIT_TIMES=off). */
bool mf_times_path(const mf_backend *backend, char *path, size_t room);
uint64_t mf_maker_hash(const char *made_by, uint64_t more);
/* Puts the times before `cost`, which answers the backend's menus; *times stays NULL where there are none. A file that
 * MEMFIT_TIMES names must be there and good; one that was only found is as if it were not there when it is not. */
memfit_status mf_times_take(const memfit_host *host, mf_backend *backend, mf_method_times **times,
                            mf_timed_source *timed, mf_cost_source *cost, memfit_error *err);

/* A card opened to be asked only. */
typedef struct mf_card_costs {
    mf_device *device;
    mf_backend *backend;
    mf_method_times *times;
    mf_timed_source timed;
    mf_cost_source cost;
} mf_card_costs;

/* As training opens it. The device stays open, and is in `costs`, where only the backend is not to be had (NOT_FOUND,
 * UNSUPPORTED: no NVRTC, a driver that loads no kernels). What was opened must be closed either way. */
memfit_status mf_card_costs_open(const memfit_host *host, const char *name, mf_card_costs *costs, memfit_error *err);
void mf_card_costs_close(mf_card_costs *costs);
/* What training assumes beside the arena where a limit is tight: what the process holds now, and what kernels and records of
 * a step of this batch take from above, of a rest of it and of a validation too, where `rest` and `validation` say so. */
memfit_status mf_card_costs_fixed(const mf_card_costs *costs, const memfit_host *host, const mf_graph_source *source,
                                  int64_t batch, bool rest, bool validation, uint64_t *bytes, memfit_error *err);
/* The limit where none is given. */
uint64_t mf_card_costs_most(const mf_card_costs *costs);

#endif
