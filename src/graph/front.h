/*
 * front.h: the leading operations of a model's input, taken out of the step graph so that whoever makes the samples can do
 * them ahead: random changes of images (the Random* layers), with the casts and scalings before the last of them. Each looks
 * at one sample alone, has no gradient and no variables.
 *
 *     x (u8) -> cast -> scale -> flip -> rotate -> T -> conv ...            T (the feed) -> conv ...
 *                                                                           front: cast, scale, flip, rotate
 *
 * The numbers stay the same: random operations draw by seed, layer, step and the sample's place in its batch, wherever they
 * run.
 */
#ifndef MF_GRAPH_FRONT_H
#define MF_GRAPH_FRONT_H

#include "graph/graph.h"

typedef struct mf_front_step {
    mf_op_kind kind;
    mf_attr attr;
    mf_dtype dtype; /* of its result */
    mf_shape shape; /* of its result, with the graph's batch */
} mf_front_step;

typedef struct mf_front {
    mf_dtype dtype; /* of samples as they arrive */
    mf_shape shape; /* with the graph's batch */
    uint32_t count;
    mf_front_step steps[];
} mf_front;

#endif
