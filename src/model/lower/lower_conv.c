/* lower_conv.c: convolutions and pooling, one to three dimensions. Channels come last; channels_first is transposed. */
#include "model/lower/lower_inner.h"

#include "base/error.h"

#include <string.h>

static void one(mf_layer_call *c, uint32_t y)
{
    c->out[0] = y;
    c->out_count = 1;
}

/* The number of spatial dimensions is in the class name: Conv2D, MaxPooling1D. */
static uint32_t class_dims(const char *class_name)
{
    for (const char *p = class_name; p[0]; p++)
        if (p[0] >= '1' && p[0] <= '3' && p[1] == 'D')
            return (uint32_t)(p[0] - '0');
    return 2;
}

static bool bad(mf_layer_call *c, const char *what)
{
    mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': %s", c->layer->name, what);
    return false;
}

/* Kernel, strides, dilation; x has its channels last. */
static bool read_window(mf_layer_call *c, uint32_t x, mf_window *w)
{
    mf_shape shape = mf_g_shape(c->b, x);
    uint32_t d = class_dims(c->layer->class_name);
    *w = (mf_window){.dims = d, .groups = 1};
    if (shape.rank != d + 2)
        return mf_lower_wrong_rank(c, shape, d + 2);
    if (!mf_config_ints(c->config, "kernel_size", d, 0, w->kernel) ||
        !mf_config_ints(c->config, "strides", d, 1, w->stride) ||
        !mf_config_ints(c->config, "dilation_rate", d, 1, w->dilation))
        return bad(c, "kernel_size, strides or dilation_rate has the wrong length");
    for (uint32_t i = 0; i < d; i++)
        if (w->kernel[i] < 1 || w->kernel[i] > INT32_MAX || w->stride[i] < 1 || w->stride[i] > INT32_MAX ||
            w->dilation[i] < 1 || w->dilation[i] > INT32_MAX)
            return bad(c, "kernel_size, strides and dilation_rate must be at least 1");
    return true;
}

static bool pad_window(mf_layer_call *c, uint32_t x, mf_window *w)
{
    mf_shape shape = mf_g_shape(c->b, x);
    return mf_window_pad(w, mf_json_get_string(c->config, "padding", "valid"), &shape.dim[1]) ||
           bad(c, "padding is none of valid, same, causal");
}

static void finish(mf_layer_call *c, uint32_t y)
{
    y = mf_channels_back(c, y);
    one(c, mf_activation(c, mf_json_get(c->config, "activation"), y));
}

static int64_t channels(const mf_layer_call *c, uint32_t x)
{
    mf_shape shape = mf_g_shape(c->b, x);
    return shape.rank ? shape.dim[shape.rank - 1] : 0;
}

static mf_shape kernel_shape(const mf_window *w, int64_t in, int64_t out)
{
    mf_shape shape = {.rank = w->dims + 2};
    for (uint32_t i = 0; i < w->dims; i++)
        shape.dim[i] = w->kernel[i];
    shape.dim[w->dims] = in;
    shape.dim[w->dims + 1] = out;
    return shape;
}

void mf_lower_conv(mf_layer_call *c)
{
    mf_window w;
    uint32_t x = mf_channels_last(c, c->in[0]);
    if (!mf_build_ok(c->b) || !read_window(c, x, &w) || !pad_window(c, x, &w))
        return;
    int64_t filters = mf_json_get_integer(c->config, "filters", 0), in = channels(c, x);
    w.groups = mf_json_get_integer(c->config, "groups", 1);
    if (filters < 1 || w.groups < 1 || in % w.groups || filters % w.groups) {
        bad(c, "filters and groups do not go with the input's channels");
        return;
    }
    uint32_t kernel = mf_kernel_weight(c, kernel_shape(&w, in / w.groups, filters));
    finish(c, mf_g_conv(c->b, x, kernel, mf_bias_weight(c, filters), &w));
}

/* A grouped convolution with one group a channel: the kernel [k..., in, mult] seen as [k..., 1, in*mult]. */
static uint32_t depthwise(mf_layer_call *c, uint32_t x, mf_window *w, uint32_t kernel, uint32_t bias,
                          int64_t multiplier)
{
    w->groups = channels(c, x);
    return mf_g_conv(c->b, x, mf_g_view(c->b, kernel, kernel_shape(w, 1, w->groups * multiplier)), bias, w);
}

void mf_lower_depthwise_conv(mf_layer_call *c)
{
    static const mf_weight_spec spec = {
        .name = "kernel", .initializer = "depthwise_initializer", .regularizer = "depthwise_regularizer"};
    mf_window w;
    uint32_t x = mf_channels_last(c, c->in[0]);
    int64_t multiplier = mf_json_get_integer(c->config, "depth_multiplier", 1);
    if (!mf_build_ok(c->b) || !read_window(c, x, &w) || !pad_window(c, x, &w))
        return;
    if (multiplier < 1 || multiplier > INT32_MAX) {
        bad(c, "depth_multiplier must be at least 1");
        return;
    }
    int64_t in = channels(c, x);
    uint32_t kernel = mf_weight(c, &spec, kernel_shape(&w, in, multiplier));
    finish(c, depthwise(c, x, &w, kernel, mf_bias_weight(c, in * multiplier), multiplier));
}

void mf_lower_separable_conv(mf_layer_call *c)
{
    static const mf_weight_spec depth = {
        .name = "depthwise_kernel", .initializer = "depthwise_initializer", .regularizer = "depthwise_regularizer"};
    static const mf_weight_spec point = {
        .name = "pointwise_kernel", .initializer = "pointwise_initializer", .regularizer = "pointwise_regularizer"};
    mf_window w;
    uint32_t x = mf_channels_last(c, c->in[0]);
    int64_t multiplier = mf_json_get_integer(c->config, "depth_multiplier", 1);
    int64_t filters = mf_json_get_integer(c->config, "filters", 0), in = channels(c, x);
    if (!mf_build_ok(c->b) || !read_window(c, x, &w) || !pad_window(c, x, &w))
        return;
    if (multiplier < 1 || filters < 1 || multiplier > INT32_MAX || filters > INT32_MAX) {
        bad(c, "filters and depth_multiplier must be at least 1");
        return;
    }
    mf_window pointwise = {.dims = w.dims, .groups = 1};
    for (uint32_t i = 0; i < w.dims; i++)
        pointwise.kernel[i] = pointwise.stride[i] = pointwise.dilation[i] = 1;
    uint32_t first = mf_weight(c, &depth, kernel_shape(&w, in, multiplier));
    uint32_t second = mf_weight(c, &point, kernel_shape(&pointwise, in * multiplier, filters));
    uint32_t bias = mf_bias_weight(c, filters);
    uint32_t y = depthwise(c, x, &w, first, MF_NONE, multiplier);
    finish(c, mf_g_conv(c->b, y, second, bias, &pointwise));
}

/* The data gradient of the convolution that takes the (larger) result to the input. Keras's sizes: same: in*stride;
 * valid: (in-1)*stride + k + max(stride-k, 0); with output_padding, explicitly. */
static bool transposed_size(mf_layer_call *c, mf_window *w, mf_shape *y)
{
    const char *padding = mf_json_get_string(c->config, "padding", "valid");
    bool same = strcmp(padding, "same") == 0, given = !mf_json_is_null(mf_json_get(c->config, "output_padding"));
    int64_t extra[3];
    if (!mf_config_ints(c->config, "output_padding", w->dims, 0, extra))
        return bad(c, "output_padding has the wrong length");
    for (uint32_t i = 0; i < w->dims; i++) {
        int64_t in = y->dim[i + 1], k = (w->kernel[i] - 1) * w->dilation[i] + 1, s = w->stride[i], out;
        if (!given)
            out = same ? in * s : (in - 1) * s + k + (s > k ? s - k : 0);
        else
            out = same ? (in - 1) * s + k - 2 * (k / 2) + extra[i] : (in - 1) * s + k + extra[i];
        if (out < 1 || extra[i] < 0)
            return bad(c, "output_padding leaves nothing");
        /* the convolution from `out` back to `in`: total padding, the odd one behind */
        int64_t total = (in - 1) * s + k - out;
        int64_t before = same && total > 0 ? total / 2 : 0;
        w->before[i] = before;
        w->after[i] = total - before > 0 ? total - before : 0;
        y->dim[i + 1] = out;
    }
    return true;
}

void mf_lower_conv_transpose(mf_layer_call *c)
{
    mf_window w;
    uint32_t x = mf_channels_last(c, c->in[0]);
    int64_t filters = mf_json_get_integer(c->config, "filters", 0), in = channels(c, x);
    mf_shape y = mf_g_shape(c->b, x);
    if (!mf_build_ok(c->b) || !read_window(c, x, &w) || !transposed_size(c, &w, &y))
        return;
    if (filters < 1) {
        bad(c, "filters must be at least 1");
        return;
    }
    y.dim[y.rank - 1] = filters;
    uint32_t kernel = mf_kernel_weight(c, kernel_shape(&w, filters, in));
    finish(c, mf_g_conv_grad_data(c->b, x, kernel, mf_bias_weight(c, filters), &w, y));
}

/* ---- pooling ---- */

/* A window that covers the whole input wherever it stands does the same when it is smaller; the product of absurd sizes
 * would overflow, and every cell of it be visited. */
static void cut_window(mf_window *w, const mf_shape *x)
{
    for (uint32_t i = 0; i < w->dims; i++) {
        int64_t in = x->dim[i + 1], stride = w->stride[i] < in ? w->stride[i] : in;
        if (w->kernel[i] > 4 * (in + stride))
            w->kernel[i] = 4 * (in + stride);
    }
}

static void pool(mf_layer_call *c, bool most)
{
    uint32_t x = mf_channels_last(c, c->in[0]), d = class_dims(c->layer->class_name);
    mf_shape shape = mf_g_shape(c->b, x);
    mf_window w = {.dims = d, .groups = 1};
    if (!mf_build_ok(c->b))
        return;
    if (shape.rank != d + 2 || !mf_config_ints(c->config, "pool_size", d, 2, w.kernel) ||
        !mf_config_ints(c->config, "strides", d, 0, w.stride)) {
        bad(c, "pool_size or strides does not fit");
        return;
    }
    for (uint32_t i = 0; i < d; i++) {
        w.dilation[i] = 1;
        if (w.stride[i] == 0)
            w.stride[i] = w.kernel[i];
        if (w.kernel[i] < 1 || w.stride[i] < 1 || w.kernel[i] > INT32_MAX || w.stride[i] > INT32_MAX) {
            bad(c, "pool_size and strides must be at least 1");
            return;
        }
    }
    if (strcmp(mf_json_get_string(c->config, "padding", "valid"), "same") == 0)
        cut_window(&w, &shape);
    if (!pad_window(c, x, &w))
        return;
    one(c, mf_channels_back(c, most ? mf_g_pool_max(c->b, x, &w) : mf_g_pool_avg(c->b, x, &w)));
}

void mf_lower_max_pool(mf_layer_call *c)
{
    pool(c, true);
}

void mf_lower_average_pool(mf_layer_call *c)
{
    pool(c, false);
}

static void global_pool(mf_layer_call *c, mf_reduce function)
{
    uint32_t x = mf_channels_last(c, c->in[0]), rank = mf_g_shape(c->b, x).rank;
    bool keep = mf_json_get_bool(c->config, "keepdims", false);
    uint32_t axes = rank > 2 ? ((1u << (rank - 1)) - 1) & ~1u : 0;
    uint32_t y = mf_g_reduce(c->b, function, x, axes, keep);
    one(c, keep ? mf_channels_back(c, y) : y);
}

void mf_lower_global_average(mf_layer_call *c)
{
    if (c->mask != MF_NONE && mf_g_shape(c->b, c->in[0]).rank == 3) { /* the mean over the steps that count */
        bool keep = mf_json_get_bool(c->config, "keepdims", false);
        uint32_t x = mf_channels_last(c, c->in[0]), mask = mf_mask_expanded(c, mf_mask_truth(c->b, c->mask), 3);
        uint32_t count = mf_g_reduce(c->b, MF_REDUCE_SUM, mf_g_cast(c->b, mask, c->compute), 2, keep);
        uint32_t sum = mf_g_reduce(c->b, MF_REDUCE_SUM, mf_g_keep(c->b, mask, x, 0, false), 2, keep);
        uint32_t y = mf_g_binary(c->b, MF_DIV, sum, count);
        one(c, keep ? mf_channels_back(c, y) : y);
        return;
    }
    global_pool(c, MF_REDUCE_MEAN);
}

void mf_lower_global_max(mf_layer_call *c)
{
    global_pool(c, MF_REDUCE_MAX);
}
