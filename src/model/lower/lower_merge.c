/* lower_merge.c: layers of several inputs. */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

static bool needs(mf_layer_call *c, uint32_t count)
{
    if (c->in_count >= count)
        return true;
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s' needs %u inputs and has %u", c->layer->name, count, c->in_count);
    return false;
}

/* Keras brings all inputs to one rank by axes of 1 behind the batch. */
static bool same_rank(mf_layer_call *c)
{
    uint32_t most = 0, *in = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, c->in_count + 1);
    uint32_t *masks = MF_NEW_ARRAY(&c->lo->scratch, uint32_t, c->in_count + 1);
    for (uint32_t i = 0; i < c->in_count; i++)
        most = mf_g_shape(c->b, c->in[i]).rank > most ? mf_g_shape(c->b, c->in[i]).rank : most;
    if (!in || !masks) {
        mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory to build the step graph");
        return false;
    }
    c->out_masks[0] = mf_mask_merged(c);
    for (uint32_t i = 0; i < c->in_count; i++) {
        mf_shape s = mf_g_shape(c->b, c->in[i]);
        for (; s.rank && s.rank < most; s.rank++) {
            memmove(&s.dim[2], &s.dim[1], (s.rank - 1) * sizeof *s.dim);
            s.dim[1] = 1;
        }
        masks[i] = mf_g_shape(c->b, c->in[i]).rank == most ? c->in_masks[i] : MF_NONE;
        in[i] = mf_g_view(c->b, c->in[i], s);
    }
    c->in = in;
    c->in_masks = masks;
    return mf_build_ok(c->b);
}

static bool all_equal(const mf_layer_call *c)
{
    mf_shape first = mf_g_shape(c->b, c->in[0]);
    for (uint32_t i = 1; i < c->in_count; i++) {
        mf_shape other = mf_g_shape(c->b, c->in[i]);
        if (!mf_shape_equal(&first, &other))
            return false;
    }
    return true;
}

static uint32_t fold(mf_layer_call *c, mf_binary function)
{
    uint32_t y = c->in[0];
    for (uint32_t i = 1; i < c->in_count; i++)
        y = mf_g_binary(c->b, function, y, c->in[i]);
    return y;
}

static uint32_t sum(mf_layer_call *c)
{
    return c->in_count > 2 && all_equal(c) ? mf_g_sum_n(c->b, c->in_count, c->in) : fold(c, MF_ADD);
}

void mf_lower_add(mf_layer_call *c)
{
    if (needs(c, 1) && same_rank(c))
        one(c, sum(c));
}

void mf_lower_average(mf_layer_call *c)
{
    if (needs(c, 1) && same_rank(c))
        one(c, mf_g_unary(c->b, MF_UNARY_AFFINE, 1.0 / c->in_count, 0, sum(c)));
}

void mf_lower_subtract(mf_layer_call *c)
{
    if (needs(c, 2) && same_rank(c))
        one(c, mf_g_binary(c->b, MF_SUB, c->in[0], c->in[1]));
}

/* The mask of input i with axes of 1 up to its rank, or MF_NONE. Expanded inputs have lost theirs, as in Keras. */
static uint32_t wide_mask(mf_layer_call *c, uint32_t i)
{
    uint32_t rank = mf_g_shape(c->b, c->in[i]).rank, mask = mf_mask_truth(c->b, c->in_masks[i]);
    if (mask == MF_NONE)
        return MF_NONE;
    if (mf_g_shape(c->b, mask).rank + 1 != rank)
        return mf_lower_unsupported(c, "its mask must have one dimension less than its input");
    return mf_mask_expanded(c, mask, rank);
}

/* What does not count is 1 in the product, and the product 0 where nothing counts. */
void mf_lower_multiply(mf_layer_call *c)
{
    uint32_t y = MF_NONE;
    if (!needs(c, 1) || !same_rank(c))
        return;
    for (uint32_t i = 0; i < c->in_count && mf_build_ok(c->b); i++) {
        uint32_t mask = wide_mask(c, i), x = mask == MF_NONE ? c->in[i] : mf_g_keep(c->b, mask, c->in[i], 1, false);
        y = i ? mf_g_binary(c->b, MF_MUL, y, x) : x;
    }
    uint32_t rank = mf_g_shape(c->b, y).rank, all = c->out_masks[0];
    one(c, all == MF_NONE ? y : mf_g_keep(c->b, mf_mask_expanded(c, all, rank), y, 0, false));
}

/* Of two where one does not count, the other is taken. */
static void extreme(mf_layer_call *c, mf_binary function)
{
    if (!needs(c, 1) || !same_rank(c))
        return;
    uint32_t y = c->in[0], so_far = wide_mask(c, 0);
    for (uint32_t i = 1; i < c->in_count && mf_build_ok(c->b); i++) {
        uint32_t mask = wide_mask(c, i), x = c->in[i];
        if (mask != MF_NONE)
            x = mf_g_select(c->b, mask, x, 0, y, 0, mf_g_dtype(c->b, x));
        if (so_far != MF_NONE)
            y = mf_g_select(c->b, so_far, y, 0, x, 0, mf_g_dtype(c->b, x));
        so_far = mask != MF_NONE && so_far != MF_NONE ? mf_g_binary(c->b, MF_MAX, so_far, mask) : MF_NONE;
        y = mf_g_binary(c->b, function, y, x);
    }
    one(c, y);
}

void mf_lower_maximum(mf_layer_call *c)
{
    extreme(c, MF_MAX);
}

void mf_lower_minimum(mf_layer_call *c)
{
    extreme(c, MF_MIN);
}

void mf_lower_concatenate(mf_layer_call *c)
{
    if (!needs(c, 1))
        return;
    uint32_t axis = mf_axis(mf_json_get_integer(c->config, "axis", -1), mf_g_shape(c->b, c->in[0]).rank);
    if (axis == MF_NONE) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axis is out of range", c->layer->name);
        return;
    }
    if (!c->layer->is_operation)
        c->out_masks[0] = mf_mask_concatenated(c, axis);
    one(c, mf_g_concat(c->b, c->in_count, c->in, axis));
}

/* Moves `axis` to be the last. */
static uint32_t to_last(mf_layer_call *c, uint32_t x, uint32_t axis)
{
    uint32_t rank = mf_g_shape(c->b, x).rank, perm[MF_MOST_DIMS] = {0}, n = 0;
    for (uint32_t i = 0; i < rank; i++)
        if (i != axis)
            perm[n++] = i;
    perm[n] = axis;
    return mf_g_transpose(c->b, x, perm);
}

static uint32_t unit_length(mf_layer_call *c, uint32_t x, uint32_t axis)
{
    uint32_t s = mf_g_reduce(c->b, MF_REDUCE_SUM, mf_g_unary(c->b, MF_UNARY_SQUARE, 0, 0, x), 1u << axis, true);
    s = mf_g_unary(c->b, MF_UNARY_RSQRT, 0, 0, mf_g_unary(c->b, MF_UNARY_CLIP, 1e-12, 3e38, s));
    return mf_g_binary(c->b, MF_MUL, x, s);
}

/* Batched product over one axis of each: (N, a..., k) by (N, b..., k) gives (N, a..., b...). */
void mf_lower_dot(mf_layer_call *c)
{
    if (!needs(c, 2))
        return;
    int64_t axes[2];
    mf_shape a = mf_g_shape(c->b, c->in[0]), b = mf_g_shape(c->b, c->in[1]);
    if (!mf_config_ints(c->config, "axes", 2, -1, axes)) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axes are no pair", c->layer->name);
        return;
    }
    uint32_t i = mf_axis(axes[0], a.rank), k = mf_axis(axes[1], b.rank);
    if (a.rank < 2 || b.rank < 2 || !i || !k || i == MF_NONE || k == MF_NONE || a.rank + b.rank - 2 > MF_MOST_DIMS) {
        mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': axes do not fit the inputs", c->layer->name);
        return;
    }
    uint32_t x = c->in[0], y = c->in[1];
    if (mf_json_get_bool(c->config, "normalize", false)) {
        x = unit_length(c, x, i);
        y = unit_length(c, y, k);
    }
    x = to_last(c, x, i);
    y = to_last(c, y, k);
    mf_shape xs = mf_g_shape(c->b, x), ys = mf_g_shape(c->b, y), out = {.rank = 1, .dim = {a.dim[0]}};
    int64_t m = 1, n = 1, depth = a.dim[i];
    for (uint32_t d = 1; d + 1 < xs.rank; d++)
        m *= out.dim[out.rank++] = xs.dim[d];
    for (uint32_t d = 1; d + 1 < ys.rank; d++)
        n *= out.dim[out.rank++] = ys.dim[d];
    if (out.rank == 1)
        out.dim[out.rank++] = 1;
    x = mf_g_view(c->b, x, mf_shape3(a.dim[0], m, depth));
    y = mf_g_view(c->b, y, mf_shape3(b.dim[0], n, b.dim[k]));
    one(c, mf_g_view(c->b, mf_g_matmul(c->b, x, y, MF_NONE, false, true, 1), out));
}
