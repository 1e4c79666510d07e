/*
 * model.h: a model as it was saved: layers, calls, stored weights, compile settings. Nothing here knows what a layer
 * does; lower.h turns a model into a step graph. The model lives in one arena and keeps its file mapped: stored weights
 * point into the mapping.
 */
#ifndef MF_MODEL_MODEL_H
#define MF_MODEL_MODEL_H

#include "base/json.h"
#include "base/os.h"
#include "graph/graph.h"

typedef struct mf_model mf_model;

/* One argument of a call: a tensor made by another layer's call, or a constant. */
typedef struct mf_call_arg {
    uint32_t layer;          /* index into model->layers, MF_NONE for a constant */
    uint32_t call;           /* which call of that layer */
    uint32_t tensor;         /* which of its outputs */
    const char *name;        /* keyword, or NULL for positional */
    const mf_json *constant; /* number, list, null ... when layer is MF_NONE */
    uint32_t list;           /* the first member of a list of tensors says how many there are; else 0 */
} mf_call_arg;

/* An InputLayer has one call without arguments. A list or tuple that holds no tensor is one constant. Positional
 * arguments come first, then the named ones: tensors and constants given by keyword. */

typedef struct mf_call {
    mf_call_arg *args; /* in order; lists of tensors are flattened */
    uint32_t arg_count;
    const mf_json *kwargs; /* raw, e.g. {"training": false}; may be NULL */
} mf_call;

typedef struct mf_layer {
    const char *name;
    const char *class_name;      /* "Dense", "Conv2D"; an operation node's class, e.g. "Add" */
    uint32_t class_ordinal;      /* how many layers of its class come before it in its model: 2 for the third Dense */
    const char *module;          /* "keras.layers", "keras.src.ops.numpy"; may be NULL */
    const char *registered_name; /* "package>Name" of a custom class; may be NULL */
    const mf_json *config;       /* may be NULL */
    const mf_json *build_config; /* may be NULL */
    bool is_operation;           /* a node that is no layer: x + y */
    bool trainable; /* own flag, in a model that is not frozen; a model's or wrapper's does not count inside it */
    const char *dtype_policy; /* "float32", "mixed_float16", ...; never NULL */
    const char *unsupported;  /* why this layer cannot be understood (Lambda, custom class), or NULL */
    mf_model *inner;          /* nested Sequential or Functional, also the one inside a wrapper (TimeDistributed) */
    mf_call *calls;
    uint32_t call_count;
    mf_stored *stored;
    uint32_t stored_count;
    /* A layer or model used on two levels of nesting is in the configuration twice, and its weights are in the file
     * once, where it comes first: twin_model->layers[twin] has them, and both are one. NULL: it is by itself. */
    bool is_marked; /* as one that the file may hold twice */
    const mf_model *twin_model;
    uint32_t twin;
    bool must_be_stored; /* the file holds weights of this model: what this layer has must be among them */
} mf_layer;

/* A reference to an output of a call, as in the model's inputs and outputs. */
typedef struct mf_tensor_ref {
    uint32_t layer, call, tensor;
} mf_tensor_ref;

typedef enum {
    MF_CONTAINER_NONE,
    MF_CONTAINER_KERAS_ZIP,
    MF_CONTAINER_HDF5,
    MF_CONTAINER_JSON,
    MF_CONTAINER_FOLDER
} mf_container;

struct mf_model {
    mf_arena arena; /* owned by the outermost model; nested ones share it (their arena is empty) */
    mf_mapping mapping;
    mf_mapping unpacked; /* weights of an archive that was packed again: in a temporary file */
    mf_container container;
    const char *path;
    const char *keras_version;
    const char *name;
    const char *class_name; /* "Sequential", "Functional" */
    mf_layer *layers;       /* Sequential models get calls too: each layer called on the one before. An InputLayer is
                               put in front where the file has none; its batch_shape is missing when nobody knows it */
    uint32_t layer_count;
    mf_tensor_ref *inputs, *outputs;
    const char **output_keys; /* of outputs in a dict, by output; NULL when they are in none */
    uint32_t input_count, output_count;
    const mf_json *config;
    const mf_json *compile; /* compile_config in Keras 3's form, or NULL when not compiled */
    mf_stored *optimizer;   /* optimizer/vars/<i> in numeric order */
    uint32_t optimizer_count;
    mf_stored *outer_optimizer; /* mixed_float16: the loss-scaling optimizer's own four arrays (iteration, rate, steps
                                   since the last change, scale), then those of `optimizer` once more; NULL otherwise */
    uint32_t outer_optimizer_count;
    const char *dtype_policy; /* of the model itself */
    bool frozen;              /* the outermost, a functional one, says that nothing of it is trained */
    const mf_json *root;      /* the whole configuration object; NULL for nested models */
    struct mf_hdf5 *hdf5;     /* the file the stored arrays lie in, or NULL */
    bool borrowed;            /* the mapping belongs to somebody else */
    int descriptor;           /* of the mapped file, and what it was like: see mf_model_unchanged; -1: none */
    uint64_t stamp;
    uint32_t unclaimed_count; /* arrays in the weights file that belong to no layer */
};

/* Reads any container. UNSUPPORTED for subclassed models, DAMAGED for junk; the message names the place. */
memfit_status mf_model_load(const memfit_host *host, const char *path, mf_model **model, memfit_error *err);

enum {
    MF_LOAD_VERIFY = 1,       /* for computing with it: the check sum of the stored weights is computed, a pass over
                                 them, and where there are weights none may be missing (see must_be_stored) */
    MF_LOAD_NO_WEIGHTS = 2,   /* architecture and settings only */
    MF_LOAD_VERIFY_QUICK = 4, /* as VERIFY when that takes a second at most: weights up to MF_VERIFY_QUICK_BYTES */
};
memfit_status mf_model_load_flags(const memfit_host *host, const char *path, unsigned flags, mf_model **model,
                                  memfit_error *err);
/* The same from memory, which must outlive the model. */
memfit_status mf_model_load_bytes(const memfit_host *host, const void *data, uint64_t bytes, unsigned flags,
                                  mf_model **model, memfit_error *err);
/* The file is mapped as long as the model lives: before it is read again, long after it was opened, this asks whether
 * somebody has written to it in place meanwhile (DAMAGED; reading on could be a signal, or give bytes of two files).
 * Replaced by renaming, as memfit and most programs save, it stays readable as it was. */
memfit_status mf_model_unchanged(const mf_model *model, memfit_error *err);
void mf_model_destroy(mf_model *model);

/* The optimizer of compile settings (may be NULL). A LossScaleOptimizer around it is looked through; *scaling (may be
 * NULL) is then its configuration, else NULL. */
const mf_json *mf_keras_optimizer(const mf_json *compile, const mf_json **scaling);

#endif
