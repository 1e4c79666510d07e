/* lower_shape.c: layers that only move data: reshaping, padding, cropping, repeating, resizing. */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

static void bad(mf_layer_call *c, const char *what)
{
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %s", c->layer->name, what);
}

void mf_lower_flatten(mf_layer_call *c)
{
    uint32_t x = mf_channels_last(c, c->in[0]);
    mf_shape shape = mf_g_shape(c->b, x);
    int64_t count = 1;
    for (uint32_t i = 1; i < shape.rank; i++)
        count *= shape.dim[i];
    one(c, mf_g_view(c->b, x, mf_shape2(shape.dim[0], count)));
}

void mf_lower_reshape(mf_layer_call *c)
{
    const mf_json *target = mf_json_get(c->config, "target_shape");
    mf_shape x = mf_g_shape(c->b, c->in[0]), y = {.rank = 1, .dim = {x.dim[0]}};
    if (!target || target->type != MF_JSON_ARRAY || target->count + 1 > MF_MOST_DIMS || x.rank < 1) {
        bad(c, "target_shape is no shape");
        return;
    }
    int64_t known = 1, all = 1;
    uint32_t open = MF_NONE;
    for (uint32_t i = 1; i < x.rank; i++)
        all *= x.dim[i];
    for (uint32_t i = 0; i < target->count; i++) {
        int64_t d = mf_json_integer(mf_json_at(target, i), -1);
        y.dim[y.rank] = d;
        if (d < 0 && open == MF_NONE)
            open = y.rank;
        else if (d < 0 || d > INT32_MAX || known > INT64_MAX / (d + 1)) {
            bad(c, "target_shape is no shape");
            return;
        } else
            known *= d;
        y.rank++;
    }
    if (open != MF_NONE) {
        if (!known || all % known) {
            bad(c, "target_shape does not divide the input");
            return;
        }
        y.dim[open] = all / known;
    } else if (known != all) {
        char from[96], to[96];
        mf_build_fail(c->b, MEMFIT_DAMAGED,
                      "layer '%s': %s cannot be reshaped to %s: %lld values a sample are not %lld", c->layer->name,
                      mf_shape_format(&x, from, sizeof from), mf_shape_format(&y, to, sizeof to), (long long)all,
                      (long long)known);
        return;
    }
    one(c, mf_g_view(c->b, c->in[0], y));
}

void mf_lower_permute(mf_layer_call *c)
{
    const mf_json *dims = mf_json_get(c->config, "dims");
    uint32_t rank = mf_g_shape(c->b, c->in[0]).rank, perm[MF_MOST_DIMS] = {0};
    if (!dims || dims->count + 1 != rank) {
        bad(c, "dims does not fit the input");
        return;
    }
    for (uint32_t i = 1; i < rank; i++)
        perm[i] = (uint32_t)mf_json_integer(mf_json_at(dims, i - 1), 0);
    one(c, mf_g_transpose(c->b, c->in[0], perm));
}

void mf_lower_repeat_vector(mf_layer_call *c)
{
    mf_shape x = mf_g_shape(c->b, c->in[0]);
    int64_t n = mf_json_get_integer(c->config, "n", 0);
    if (x.rank != 2 || n < 1) {
        bad(c, "needs vectors and n of at least 1");
        return;
    }
    uint32_t y = mf_g_view(c->b, c->in[0], mf_shape3(x.dim[0], 1, x.dim[1]));
    one(c, mf_g_broadcast(c->b, y, mf_shape3(x.dim[0], n, x.dim[1]), 1));
}

/* [[top, bottom], [left, right]], [[a, b]], [h, w] or n, as `count` pairs. */
static bool read_pairs(const mf_json *config, const char *key, uint32_t count, int64_t (*pairs)[2])
{
    const mf_json *value = mf_json_get(config, key);
    for (uint32_t i = 0; i < count; i++)
        pairs[i][0] = pairs[i][1] = 1;
    if (mf_json_is_null(value))
        return true;
    for (uint32_t i = 0; i < count; i++) {
        const mf_json *item = value->type == MF_JSON_ARRAY ? mf_json_at(value, i) : value;
        if (count == 1 && value->type == MF_JSON_ARRAY && value->count == 2)
            item = value; /* one dimension: [left, right] */
        if (!item)
            return false;
        bool pair = item->type == MF_JSON_ARRAY && item->count == 2;
        pairs[i][0] = mf_json_integer(pair ? mf_json_at(item, 0) : item, -1);
        pairs[i][1] = mf_json_integer(pair ? mf_json_at(item, 1) : item, -1);
        if (pairs[i][0] < 0 || pairs[i][1] < 0 || pairs[i][0] > INT32_MAX || pairs[i][1] > INT32_MAX)
            return false;
    }
    return true;
}

void mf_lower_zero_padding(mf_layer_call *c)
{
    uint32_t x = mf_channels_last(c, c->in[0]), rank = mf_g_shape(c->b, x).rank;
    int64_t pairs[3][2], before[MF_MOST_DIMS] = {0}, after[MF_MOST_DIMS] = {0};
    if (rank < 3 || rank > 5 || !read_pairs(c->config, "padding", rank - 2, pairs)) {
        bad(c, "padding does not fit the input");
        return;
    }
    for (uint32_t i = 0; i + 2 < rank; i++) {
        before[i + 1] = pairs[i][0];
        after[i + 1] = pairs[i][1];
    }
    one(c, mf_channels_back(c, mf_g_pad(c->b, x, before, after, NULL, 0, 0)));
}

void mf_lower_cropping(mf_layer_call *c)
{
    uint32_t x = mf_channels_last(c, c->in[0]);
    mf_shape shape = mf_g_shape(c->b, x), y = shape;
    int64_t pairs[3][2], begin[MF_MOST_DIMS] = {0};
    if (shape.rank < 3 || shape.rank > 5 || !read_pairs(c->config, "cropping", shape.rank - 2, pairs)) {
        bad(c, "cropping does not fit the input");
        return;
    }
    for (uint32_t i = 0; i + 2 < shape.rank; i++) {
        begin[i + 1] = pairs[i][0];
        y.dim[i + 1] -= pairs[i][0] + pairs[i][1];
        if (y.dim[i + 1] < 1) {
            bad(c, "cropping leaves nothing");
            return;
        }
    }
    one(c, mf_channels_back(c, mf_g_slice(c->b, x, begin, y.dim, NULL)));
}

/* Repeats along one axis by a view with an axis of 1, a broadcast, and a view back. */
static uint32_t repeat(mf_layer_call *c, uint32_t x, uint32_t axis, int64_t times)
{
    mf_shape shape = mf_g_shape(c->b, x), wide = {.rank = shape.rank + 1}, tall;
    if (times == 1 || wide.rank > MF_MOST_DIMS)
        return x;
    for (uint32_t i = 0; i < wide.rank; i++)
        wide.dim[i] = i <= axis ? shape.dim[i] : i == axis + 1 ? 1 : shape.dim[i - 1];
    tall = wide;
    tall.dim[axis + 1] = times;
    shape.dim[axis] *= times;
    return mf_g_view(c->b, mf_g_broadcast(c->b, mf_g_view(c->b, x, wide), tall, 1), shape);
}

uint32_t mf_interpolation(const char *name)
{
    static const char *const names[] = {"nearest", "bilinear", "bicubic", "area", "lanczos3"};
    for (uint32_t i = 0; i < 5; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return MF_NONE;
}

void mf_lower_up_sampling(mf_layer_call *c)
{
    uint32_t x = mf_channels_last(c, c->in[0]);
    mf_shape shape = mf_g_shape(c->b, x);
    int64_t size[3] = {2, 2, 2};
    if (shape.rank < 3 || shape.rank > 5 || !mf_config_ints(c->config, "size", shape.rank - 2, 2, size)) {
        bad(c, "size does not fit the input");
        return;
    }
    for (uint32_t i = 0; i + 2 < shape.rank; i++)
        if (size[i] < 1 || size[i] > INT32_MAX) {
            bad(c, "size must be at least 1");
            return;
        }
    uint32_t method = mf_interpolation(mf_json_get_string(c->config, "interpolation", "nearest"));
    if (method == MF_NONE) {
        mf_lower_unsupported(c, "this interpolation is not known");
        return;
    }
    if (shape.rank == 4)
        x = mf_g_resize(c->b, x, shape.dim[1] * size[0], shape.dim[2] * size[1], method, false, true);
    else
        for (uint32_t i = 0; i + 2 < shape.rank; i++)
            x = repeat(c, x, i + 1, size[i]);
    one(c, mf_channels_back(c, x));
}
