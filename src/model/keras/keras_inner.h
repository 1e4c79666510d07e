/* keras_inner.h: what the files that read Keras models share. */
#ifndef MF_MODEL_KERAS_INNER_H
#define MF_MODEL_KERAS_INNER_H

#include "base/error.h"
#include "file/hdf5.h"
#include "model/model.h"
#include "file/zip.h"

enum { MF_KERAS_MOST_NESTING = 24 };

/* Builds layers, calls, inputs and outputs of `model` (whose arena pointer is `arena`) from a Sequential or Functional
 * object {class_name, config, ...}. Messages begin with the layer, nothing before it. */
memfit_status mf_keras_build(mf_arena *arena, mf_model *model, const mf_json *object, memfit_error *err);

bool mf_keras_is_model_class(const char *class_name);

/* Is a class of this module (may be NULL) and registered name (may be NULL) one that the model's author wrote? */
bool mf_keras_is_custom(const char *module, const char *registered_name);
/* Puts the package before the class name of every such object ("mine>Adam", "Custom>Adam" where none is given), so
 * that nothing takes it for Keras's class of that name. False on lack of memory. */
bool mf_keras_name_custom(mf_arena *arena, mf_json *value);

/* "MaxPooling2D" -> "max_pooling2d", as Keras names its groups. False when it does not fit. */
bool mf_keras_snake_case(const char *name, char *out, size_t out_bytes);

/* The key of layer `index` below "layers/": its class in snake case and its number. False for what has no key: the
 * InputLayer, operations. */
bool mf_keras_layer_key(const mf_model *model, uint32_t index, char *key, size_t bytes);

/* Gives each layer its stored arrays from a .keras weights file (root group at file->root). */
memfit_status mf_keras_match_weights(mf_arena *arena, mf_model *model, mf_hdf5 *file, memfit_error *err);

/* Gives layers that are used on two levels of nesting, and stored once, the weights of where they come first. */
memfit_status mf_keras_share_weights(mf_arena *arena, mf_model *model, memfit_error *err);

/* Legacy .h5: finds model_config and training_config ... */
memfit_status mf_keras_legacy_config(mf_arena *arena, mf_hdf5 *file, mf_json **model_config, const mf_json **compile,
                                     const char **keras_version, memfit_error *err);
/* ... and the weights. */
memfit_status mf_keras_legacy_weights(mf_arena *arena, mf_model *model, mf_hdf5 *file, memfit_error *err);

/* Every array of an HDF5 file by its path, sorted. `plain` keeps the names as they are; else the variations of .keras
 * files are smoothed out (see keras_weights.c). Set arena, err, file, plain before making it. */
typedef struct mf_keras_entry {
    const char *path;
    uint64_t address;
    bool claimed;
} mf_keras_entry;
typedef struct mf_keras_table {
    mf_arena *arena;
    memfit_error *err;
    mf_hdf5 *file;
    bool plain;
    mf_keras_entry *entries;
    size_t count, capacity;
} mf_keras_table;
memfit_status mf_keras_table_make(mf_keras_table *t, uint64_t root);
mf_keras_entry *mf_keras_table_find(const mf_keras_table *t, const char *path);

/* One dataset as a stored array: in place, or unpacked into the arena. */
memfit_status mf_keras_stored(mf_arena *arena, mf_hdf5 *file, uint64_t address, const char *path, mf_stored *stored,
                              memfit_error *err);

/* Under mixed_float16 an optimizer is wrapped in one that scales the loss, with four scalars of its own in front: sets
 * those apart as model->outer_optimizer, so that model->optimizer begins with the iteration count in every file. */
void mf_keras_unwrap_optimizer(mf_model *model);
enum { MF_KERAS_OUTER_ARRAYS = 4 };

/* compile_config in one form: training_config's keys renamed, old metric wrappers replaced by the function's name.
 * NULL for a model that was not compiled. NULL with *failed set on lack of memory. */
const mf_json *mf_keras_compile(mf_arena *arena, const mf_json *compile_config, bool *failed);

#define mf_keras_no_memory(err) mf_fail((err), MEMFIT_NO_HOST_MEMORY, "no memory to read the model")

#endif
