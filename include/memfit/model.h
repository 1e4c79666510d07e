/*
 * memfit/model.h: models: Keras files in and out, and a builder for people without Python.
 *
 * A model is read from a .keras file (Keras 2.12 to 3.x), a legacy .h5, an unpacked .keras folder or the text that
 * model.to_json() gives; the file's contents decide, not its name. Or it is built, layer by layer:
 *
 *     memfit_model *m;
 *     memfit_model_create_sequential(NULL, "digits", &m, &err);
 *     memfit_model_add_input(m, 3, (const int64_t[]){32, 32, 1});
 *     memfit_model_add_conv2d(m, 64, 3, "same", "relu");
 *     memfit_model_add_max_pool2d(m, 2);
 *     memfit_model_add_flatten(m);
 *     memfit_model_add_dense(m, 10, "softmax");
 *     memfit_model_compile(m, "adam", 0, "sparse_categorical_crossentropy", "accuracy");
 *     if (memfit_model_save(m, "digits.keras", &err))
 *         fprintf(stderr, "%s\n", err.message);
 *
 * The first thing that goes wrong while building is remembered: every later call fails too, and memfit_model_finish,
 * memfit_model_save and whatever else uses the model say what it was. So the calls above need no checks of their own.
 *
 * A model that was read from a file, saved or used cannot be added to: MEMFIT_MISUSE, and nothing changes.
 *
 * A model is used by one thread at a time.
 */
#ifndef MEMFIT_MODEL_H
#define MEMFIT_MODEL_H

#include "memfit/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct memfit_model memfit_model;

/* ---- files ------------------------------------------------------------------------------------------------ */

/* MEMFIT_NOT_FOUND for a missing file; MEMFIT_DAMAGED, with the place, for a file that is no model or a broken one;
 * MEMFIT_UNSUPPORTED, with the way on, for a subclassed model, whose file holds no architecture. Layers that hold
 * Python code (Lambda, custom classes) do not stop a model from loading: see memfit_layer_info. `host` may be NULL.
 * Since 0.1. */
MEMFIT_API memfit_status memfit_model_load(const memfit_host *host, const char *path, memfit_model **model,
                                           memfit_error *err);

/* Writes the model: a .keras file, or the HDF5 form when it was read from one. The file appears whole or not at all.
 * Real Keras loads it. A built model gets its first weights here, by its initializers, when it has none yet.
 * Since 0.1. */
MEMFIT_API memfit_status memfit_model_save(memfit_model *model, const char *path, memfit_error *err);

/* Accepts NULL. Since 0.1. */
MEMFIT_API void memfit_model_destroy(memfit_model *model);

/* ---- looking at a model ----------------------------------------------------------------------------------- */

/* Since 0.1. */
MEMFIT_API const char *memfit_model_name(memfit_model *model);
/* Layers and operation nodes, nested models counted as one. Since 0.1. */
MEMFIT_API uint32_t memfit_model_layer_count(memfit_model *model);
/* Elements of all stored weights, nested models included; 0 when there are none. Since 0.1. */
MEMFIT_API uint64_t memfit_model_stored_parameters(memfit_model *model);
/* "3.15.1"; "" when unknown. Since 0.1. */
MEMFIT_API const char *memfit_model_keras_version(memfit_model *model);

typedef struct memfit_layer_info {
    size_t size; /* sizeof(memfit_layer_info): MEMFIT_LAYER_INFO */
    const char *name, *class_name;
    bool trainable;
    uint64_t stored_parameters;
    const char *unsupported; /* why it cannot be run ("a Lambda layer holds Python code ..."), or NULL */
} memfit_layer_info;
#define MEMFIT_LAYER_INFO MEMFIT_INIT(memfit_layer_info)

/* MEMFIT_INVALID for an index that is too high. The texts live as long as the model. Since 0.1. */
MEMFIT_API memfit_status memfit_model_layer(memfit_model *model, uint32_t index, memfit_layer_info *info,
                                            memfit_error *err);

/* ---- building --------------------------------------------------------------------------------------------- */

/* Since 0.1, as all below. */
MEMFIT_API memfit_status memfit_model_create_sequential(const memfit_host *host, const char *name, memfit_model **model,
                                                        memfit_error *err);

/* The shape of one sample, without the batch: {28, 28, 1}. Must come first. */
MEMFIT_API memfit_status memfit_model_add_input(memfit_model *model, uint32_t rank, const int64_t *shape);

/* Activations are Keras's names: "relu", "softmax", "tanh" ...; NULL is none. Padding: "same" or "valid" (NULL). */
MEMFIT_API memfit_status memfit_model_add_dense(memfit_model *model, int64_t units, const char *activation);
MEMFIT_API memfit_status memfit_model_add_conv2d(memfit_model *model, int64_t filters, int64_t kernel,
                                                 const char *padding, const char *activation);
MEMFIT_API memfit_status memfit_model_add_max_pool2d(memfit_model *model, int64_t pool);
MEMFIT_API memfit_status memfit_model_add_average_pool2d(memfit_model *model, int64_t pool);
MEMFIT_API memfit_status memfit_model_add_global_average_pool2d(memfit_model *model);
MEMFIT_API memfit_status memfit_model_add_flatten(memfit_model *model);
MEMFIT_API memfit_status memfit_model_add_dropout(memfit_model *model, double rate);
MEMFIT_API memfit_status memfit_model_add_batch_norm(memfit_model *model);
MEMFIT_API memfit_status memfit_model_add_activation(memfit_model *model, const char *activation);
MEMFIT_API memfit_status memfit_model_add_embedding(memfit_model *model, int64_t words, int64_t width);
MEMFIT_API memfit_status memfit_model_add_lstm(memfit_model *model, int64_t units, bool return_sequences);

/* Any layer class of Keras, with its configuration as Keras writes it; what is left out has Keras's default:
 *     memfit_model_add_layer(m, "Conv2D", "{\"filters\": 64, \"kernel_size\": [3, 3], \"strides\": [2, 2]}"); */
MEMFIT_API memfit_status memfit_model_add_layer(memfit_model *model, const char *class_name, const char *config_json);

/* Optimizer and loss by Keras's names; learning_rate 0 is the optimizer's own default; metrics a list set apart by
 * commas, or NULL. */
MEMFIT_API memfit_status memfit_model_compile(memfit_model *model, const char *optimizer, double learning_rate,
                                              const char *loss, const char *metrics);

/* The seed of the first weights; 0 at the start. Only before they are made. */
MEMFIT_API memfit_status memfit_model_set_seed(memfit_model *model, uint64_t seed);

/* Ends the building and makes the first weights; done by itself when the model is saved or used. Reports what went
 * wrong while building. */
MEMFIT_API memfit_status memfit_model_finish(memfit_model *model, memfit_error *err);

#ifdef __cplusplus
}
#endif
#endif
