/*
 * ref_reduce.c: sums and extremes over axes; softmax, log-softmax and sparsemax along one axis.
 *
 * A reduction walks x once per output element, in x's own order: the kept axes are the outer counter, the reduced ones
 * the inner. Equal maxima share the gradient equally, as in TensorFlow.
 */
#include "ops/reference/reference.h"

#include <math.h>

/* Splits a shape by a mask of axes: the kept part and the reduced part, each with its strides in the whole. */
typedef struct split_shape {
    mf_shape kept, gone;
    int64_t kept_stride[MF_MOST_DIMS], gone_stride[MF_MOST_DIMS];
    int64_t gone_count;
} split_shape;

static void split(const mf_shape *shape, uint32_t axes, split_shape *s)
{
    *s = (split_shape){.gone_count = 1};
    int64_t stride[MF_MOST_DIMS] = {0}, step = 1;
    for (uint32_t i = shape->rank; i-- > 0;) {
        stride[i] = step;
        step *= shape->dim[i];
    }
    for (uint32_t i = 0; i < shape->rank; i++) {
        bool gone = (axes >> i & 1) != 0;
        mf_shape *part = gone ? &s->gone : &s->kept;
        (gone ? s->gone_stride : s->kept_stride)[part->rank] = stride[i];
        part->dim[part->rank++] = shape->dim[i];
        if (gone)
            s->gone_count *= shape->dim[i];
    }
}

/* x as (outer, n, inner) around one axis. */
typedef struct around_axis {
    int64_t outer, n, inner;
} around_axis;

static around_axis around(const mf_shape *shape, uint32_t axis)
{
    return (around_axis){.outer = mf_ref_span(shape, 0, axis),
                         .n = shape->rank ? shape->dim[axis] : 1,
                         .inner = mf_ref_span(shape, axis + 1, shape->rank)};
}

#define REF_DOUBLE 0
#include "ops/reference/reduce_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/reduce_body.h"
