/* lower.h: from a model to a step graph. */
#ifndef MF_MODEL_LOWER_H
#define MF_MODEL_LOWER_H

#include "graph/graph.h"
#include "model/model.h"

typedef struct mf_assumption { /* --assume LAYER=SHAPE[:BYTES] */
    const char *layer;
    mf_shape shape; /* without the batch */
    uint64_t bytes;
} mf_assumption;

typedef struct mf_known_shape {
    const char *input;
    mf_shape sample; /* without the batch */
} mf_known_shape;

typedef struct mf_lower_options {
    mf_mode mode;
    int64_t batch;               /* of this graph: the piece, when the asked batch is split */
    bool accumulate;             /* gradients are kept over pieces */
    const char *optimizer;       /* name, or NULL: from the file, else adam (assumed) */
    const char *loss;            /* name, or NULL: from the file, else one that fits the output (assumed) */
    const char *precision;       /* "float32", "mixed_float16", "mixed_bfloat16", or NULL: as the file's policies say */
    mf_shape input_shape;        /* rank 0: from the file; else without the batch, for the first input */
    const mf_known_shape *known; /* of the data at hand, by input: what neither file nor options say is as there */
    uint32_t known_count;
    const char *const *dim_names; /* --dim NAME=N: by input name */
    const int64_t *dim_values;
    uint32_t dim_count;
    const mf_assumption *assumptions;
    uint32_t assumption_count;
    bool sample_weights; /* targets come with weights */
    bool token_weights;  /* one for each row of a prediction, not for each sample */
    uint32_t chunks;     /* the last layer and a softmax cross-entropy behind it in so many chunks of rows, where that
                            can be (graph->chunks says); 0 or 1: whole */
    bool
        keys_checked; /* an earlier graph of this model looked at the layers' settings: that takes a fifth of the time */
    bool plain;       /* a yardstick: nothing merged, backward keeps what plain gradients read (build.h) */
    mf_dtype
        input_dtype;     /* of the data as it arrives (uint8 stays uint8 until used); MF_DTYPE_COUNT: the model's own */
    bool front;          /* training: leading random layers are not in the graph (graph/front.h) */
    uint64_t own_inputs; /* bit i: input i does arrive in the model's own type; so do those beyond 64 */
} mf_lower_options;

/* UNSUPPORTED names the layer and the way on. The graph keeps pointers into the model: destroy it first. */
memfit_status mf_lower(const memfit_host *host, const mf_model *model, const mf_lower_options *options,
                       mf_graph **graph, memfit_error *err);

/* The optimizer's variables in the order of Keras's own list, behind iteration and (graph->keeps_rate) learning rate:
 * averages, accumulators, slots. `variables` has room for graph->variable_count; returns how many there are. */
uint32_t mf_keras_optimizer_order(const mf_graph *graph, uint32_t *variables);

#endif
