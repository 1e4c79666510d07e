/* lower_merge.c: layers of several inputs. Ranks may differ where Keras broadcasts. */
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
    if (needs(c, 1))
        one(c, sum(c));
}

void mf_lower_average(mf_layer_call *c)
{
    if (needs(c, 1))
        one(c, mf_g_unary(c->b, MF_UNARY_AFFINE, 1.0 / c->in_count, 0, sum(c)));
}

void mf_lower_subtract(mf_layer_call *c)
{
    if (needs(c, 2))
        one(c, mf_g_binary(c->b, MF_SUB, c->in[0], c->in[1]));
}

void mf_lower_multiply(mf_layer_call *c)
{
    if (needs(c, 1))
        one(c, fold(c, MF_MUL));
}

void mf_lower_maximum(mf_layer_call *c)
{
    if (needs(c, 1))
        one(c, fold(c, MF_MAX));
}

void mf_lower_minimum(mf_layer_call *c)
{
    if (needs(c, 1))
        one(c, fold(c, MF_MIN));
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
