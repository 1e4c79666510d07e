/* builder.h: the public model object, from inside. */
#ifndef MF_MODEL_BUILDER_H
#define MF_MODEL_BUILDER_H

#include "memfit/model.h"
#include "model/model.h"

/* The model itself, finished; NULL with the error filled when building failed. It belongs to `model`. */
mf_model *mf_model_of(memfit_model *model, memfit_error *err);

/* Gives every layer of a model without weights its first ones, made by its initializers, as stored arrays in the
 * model's arena. Does nothing for arrays that are there. */
memfit_status mf_model_make_weights(const memfit_host *host, mf_model *model, uint64_t seed, memfit_error *err);

#endif
