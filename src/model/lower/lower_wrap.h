/* lower_wrap.h: calling a layer that is described inside another one's configuration. */
#ifndef MF_MODEL_LOWER_WRAP_H
#define MF_MODEL_LOWER_WRAP_H

#include "model/lower/lower_inner.h"

/* Fills `layer` and `call` for the wrapped layer; its weights are stored under prefix. Inputs stay those of c. */
bool mf_wrapped_layer(mf_layer_call *c, const mf_json *object, const char *prefix, mf_layer *layer,
                      mf_layer_call *call);

#endif
