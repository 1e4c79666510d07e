/* ref_random.c: random tensors and dropout. A sample's element has a number of its own wherever the sample lies in the
 * batch and however often it is drawn: pieces and recomputation see the same mask. */
#include "ops/reference/draw.h"
#include "ops/reference/reference.h"

#include <math.h>

/* Strides of the index within a sample: axes that share a draw have stride 0; axis 0 is the sample. Returns the number
 * of draws of a sample. */
static int64_t draw_strides(const mf_shape *shape, uint32_t shared, int64_t stride[MF_MOST_DIMS])
{
    int64_t step = 1;
    for (uint32_t i = shape->rank; i-- > 0;) {
        bool skip = i == 0 || (shared >> i & 1);
        stride[i] = skip ? 0 : step;
        step *= skip ? 1 : shape->dim[i];
    }
    return step;
}

static double draw_number(mf_draw *draw, const mf_attr *attr, uint64_t index)
{
    switch (attr->random.distribution) {
    case 1:
        return attr->random.mean + attr->random.scale * mf_draw_normal(draw, index);
    case 2:
        return mf_draw_uniform(draw, index) >= attr->random.rate;
    case 3:
        return attr->random.mean + attr->random.scale * mf_draw_truncated_normal(draw, index);
    default:
        return attr->random.mean + (attr->random.scale - attr->random.mean) * mf_draw_uniform(draw, index);
    }
}

/* One walk for both: the number of each element goes to the visitor's loop in the body below. */
typedef struct draw_walk {
    mf_draw draw;
    int64_t stride[MF_MOST_DIMS], at[MF_MOST_DIMS];
    const mf_shape *shape;
    bool one_sample; /* the batch shares its draws */
    uint64_t first_sample;
} draw_walk;

static void walk_begin(draw_walk *w, const mf_ref_call *call)
{
    *w = (draw_walk){.shape = call->out[0].shape, .first_sample = call->scalars->first_sample};
    draw_strides(w->shape, call->op->attr.random.shared_axes, w->stride);
    w->one_sample = (call->op->attr.random.shared_axes & 1) != 0;
    mf_draw_begin(&w->draw, call->scalars, call->op->attr.random.key, w->one_sample ? 0 : w->first_sample);
}

static uint64_t walk_index(const draw_walk *w)
{
    return (uint64_t)mf_ref_dot(w->at, w->stride, w->shape->rank);
}

static void walk_next(draw_walk *w, const mf_ref_call *call)
{
    int64_t before = w->at[0];
    mf_ref_next(w->shape, w->at);
    if (w->at[0] != before && !w->one_sample)
        mf_draw_begin(&w->draw, call->scalars, call->op->attr.random.key, w->first_sample + (uint64_t)w->at[0]);
}

#define REF_DOUBLE 0
#include "ops/reference/random_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/random_body.h"
