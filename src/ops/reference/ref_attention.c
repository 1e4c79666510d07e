/*
 * ref_attention.c: attention row by row: the scores of one query, their softmax, the sum of values; nothing of the size
 * of all scores is ever kept. Backward makes a row's weights again from its logarithm of sums:
 *
 *     p = exp(score - lse), or equal weights where all pairs are masked; with dropout w = p * keep / (1 - rate)
 *     dw = dy . v       D = sum of dw * w = dy . y
 *     dscore = p * (dw * keep / (1 - rate) - D)       0 where a mask put a number in the score's place
 *     dq += scale * dscore * k     dk += scale * dscore * q     dv += w * dy
 */
#include "ops/reference/draw.h"
#include "ops/reference/reference.h"

#include "graph/attention.h"

#include <math.h>

typedef struct attention_call {
    mf_attention_shape s;
    int64_t stride[MF_ATTENTION_MASKS][4];
    const unsigned char *mask[MF_ATTENTION_MASKS];
    mf_draw draw;
    double keep; /* what dropout multiplies by */
} attention_call;

static void attention_begin(attention_call *a, const mf_ref_call *call, uint32_t masks_at)
{
    *a = (attention_call){0};
    mf_attention_shape_of(call->graph, call->op, &a->s);
    double rate = call->op->attr.attention.rate;
    a->keep = rate < 1 ? 1 / (1 - rate) : 0;
    for (uint32_t i = 0; i < MF_ATTENTION_MASKS; i++)
        if (call->in[masks_at + i].data) {
            a->mask[i] = call->in[masks_at + i].data;
            mf_attention_mask_strides(&a->s, call->in[masks_at + i].shape, a->stride[i]);
        }
}

/* Is the score of this pair replaced? */
static bool attention_masked(const attention_call *a, const mf_attr *attr, int64_t n, int64_t h, int64_t t, int64_t s)
{
    bool masked = attr->attention.causal == 2 && s > t;
    for (uint32_t i = 0; i < MF_ATTENTION_MASKS; i++)
        masked |= a->mask[i] &&
                  !a->mask[i][n * a->stride[i][0] + h * a->stride[i][1] + t * a->stride[i][2] + s * a->stride[i][3]];
    return masked;
}

/* Keys that a query looks at. */
static int64_t attention_visible(const attention_call *a, const mf_attr *attr, int64_t t)
{
    return attr->attention.causal == 1 && t + 1 < a->s.keys ? t + 1 : a->s.keys;
}

static double attention_kept(attention_call *a, const mf_attr *attr, int64_t h, int64_t t, int64_t s)
{
    if (attr->attention.rate == 0)
        return 1;
    uint64_t index = (uint64_t)((h * a->s.queries + t) * a->s.keys + s);
    return mf_draw_uniform(&a->draw, index) >= attr->attention.rate ? a->keep : 0;
}

/* A row's scores; backward also sums of keys' and values' gradients. */
uint64_t mf_ref_attention_scratch(const mf_graph *graph, const mf_op *op)
{
    mf_attention_shape s;
    if (!mf_attention_shape_of(graph, op, &s))
        return 0;
    int64_t row = op->kind == MF_OP_ATTENTION ? s.keys + s.values : s.keys * (s.depth + s.values) + s.depth;
    return (uint64_t)row * sizeof(double);
}

#define REF_DOUBLE 0
#include "ops/reference/attention_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/attention_body.h"
