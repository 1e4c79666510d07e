/*
 * ref_norm.c: batch, layer and group normalization.
 *
 *   batch  x is (rows, channels); statistics per channel over all rows: mean, biased variance
 *   layer  x is (rows, inner); statistics per row; gamma and beta have one entry per inner element
 *   group  x is (N, positions, groups, channels/groups); statistics per (sample, group); gamma and beta per channel
 *
 * Layer and group are one walk over "sets": a set is what shares a mean. rms leaves the mean at 0. Gradients, with
 * xh = (x - mean) * rstd, g = dy * gamma and means over the set:   dx = rstd * (g - mean(g) - xh * mean(g * xh)),
 * without mean(g) under rms.
 */
#include "ops/reference/reference.h"

#include <math.h>

uint64_t mf_ref_norm_scratch(const mf_graph *graph, const mf_op *op)
{
    bool backward = op->kind == MF_OP_BATCH_NORM_GRAD || op->kind == MF_OP_BATCH_NORM_INFER_GRAD ||
                    op->kind == MF_OP_LAYER_NORM_GRAD;
    uint32_t x = op->in[backward ? 1 : 0];
    const mf_shape *s = &graph->tensors[x].shape;
    uint64_t entries = s->rank ? (uint64_t)s->dim[s->rank - 1] : 1;
    if ((op->kind == MF_OP_LAYER_NORM || op->kind == MF_OP_LAYER_NORM_GRAD) && op->attr.norm.groups == 0)
        entries = (uint64_t)mf_ref_span(s, s->rank - op->attr.norm.axes, s->rank);
    return 4 * entries * sizeof(double);
}

/* How x falls into sets. Element (s, p, c): x[sample][p][group][c] with s = (sample, group). */
typedef struct norm_sets {
    int64_t sets, positions, width; /* a set has positions * width elements */
    int64_t per_sample;             /* sets in a sample */
    int64_t position_step;          /* elements from one position to the next */
    int64_t entries;                /* of gamma and beta */
} norm_sets;

static norm_sets sets_of(const mf_attr *attr, const mf_shape *x)
{
    norm_sets n = {.positions = 1, .per_sample = 1};
    if (attr->norm.groups > 0) {
        int64_t channels = x->dim[x->rank - 1];
        n.per_sample = attr->norm.groups;
        n.width = channels / n.per_sample;
        n.positions = mf_ref_span(x, 1, x->rank - 1);
        n.position_step = n.entries = channels;
        n.sets = x->dim[0] * n.per_sample;
    } else {
        uint32_t first = x->rank - attr->norm.axes;
        n.width = n.position_step = n.entries = mf_ref_span(x, first, x->rank);
        n.sets = mf_ref_span(x, 0, first);
    }
    return n;
}

static int64_t set_start(const norm_sets *n, int64_t set)
{
    return set / n->per_sample * n->positions * n->position_step + set % n->per_sample * n->width;
}

/* Entry of gamma for the set's first element. */
static int64_t set_entry(const norm_sets *n, int64_t set)
{
    return set % n->per_sample * n->width;
}

#define REF_DOUBLE 0
#include "ops/reference/norm_body.h"
#undef REF_DOUBLE
#define REF_DOUBLE 1
#include "ops/reference/norm_body.h"
