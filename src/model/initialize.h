/*
 * initialize.h: first values of weights, by Keras's initializers.
 *
 * The numbers come from a counter-based generator keyed by seed and stream (one stream a variable), so they do not
 * depend on the order in which variables are made, on threads or on the device. They are not Keras's own numbers:
 * those hang on its backend's generator; the distributions are the same.
 */
#ifndef MF_MODEL_INITIALIZE_H
#define MF_MODEL_INITIALIZE_H

#include "base/json.h"
#include "graph/graph.h"

/* Fills `out` (float32, float64, float16, bfloat16; integers for constants only). `initializer` is a name
 * ("glorot_uniform", "he_normal", "zeros" ...), an object {class_name, config}, or NULL: all `constant`. `host` gives
 * working memory to "orthogonal" only. UNSUPPORTED names an initializer that is not known. */
memfit_status mf_initializer(const memfit_host *host, const mf_json *initializer, double constant,
                             const mf_shape *shape, mf_dtype dtype, uint64_t seed, uint32_t stream, void *out,
                             memfit_error *err);

/* The first value of a graph's variable: its stored array (converted when the types differ), else its initializer,
 * else its `initial` value. `index` is the variable's, and the stream. `out` has room for the variable's bytes. */
memfit_status mf_variable_initialize(const memfit_host *host, const mf_graph *graph, uint32_t index, uint64_t seed,
                                     void *out, memfit_error *err);

/* One element of an array as a number, and back; integers are rounded to nearest. */
double mf_element_get(const void *array, mf_dtype dtype, uint64_t index);
void mf_element_set(void *array, mf_dtype dtype, uint64_t index, double value);

#endif
