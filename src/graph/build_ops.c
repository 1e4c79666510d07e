/* build_ops.c: one function for each kind that models are made of; see build.h. */
#include "graph/build.h"
#include "graph/kinds/kinds.h"

#include <math.h>
#include <string.h>

#define UNKNOWN ((mf_typed){.shape = {.rank = MF_NONE}})

static uint32_t one(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in)
{
    for (uint32_t i = 0; i < in_count && i < mf_kind(kind)->min_in; i++)
        if (in[i] == MF_NONE)
            return mf_build_fail(b, MEMFIT_INTERNAL, "%s: operand %u is missing", mf_kind_name(kind), i);
    return mf_g_op(b, kind, attr, in_count, in, 1, NULL, NULL);
}

static uint32_t shaped(mf_build *b, mf_op_kind kind, const mf_attr *attr, uint32_t in_count, const uint32_t *in,
                       mf_dtype dtype, mf_shape shape)
{
    return mf_g_op(b, kind, attr, in_count, in, 1, &(mf_typed){.dtype = dtype, .shape = shape}, NULL);
}

/* ---- structure ---- */

uint32_t mf_g_input(mf_build *b, const char *name, mf_dtype dtype, mf_shape shape)
{
    memfit_kind kind = b->kind;
    b->kind = MEMFIT_KIND_INPUTS;
    uint32_t x = shaped(b, MF_OP_INPUT, NULL, 0, NULL, dtype, shape);
    b->kind = kind;
    if (x != MF_NONE)
        b->graph->tensors[x].name = name;
    return x;
}

uint32_t mf_g_view(mf_build *b, uint32_t x, mf_shape shape)
{
    const mf_tensor *t = mf_g_tensor(b, x);
    if (!t || mf_shape_equal(&t->shape, &shape))
        return x;
    return shaped(b, MF_OP_VIEW, NULL, 1, &x, t->dtype, shape);
}

uint32_t mf_g_rows(mf_build *b, uint32_t x, int64_t first, int64_t count)
{
    const mf_tensor *t = mf_g_tensor(b, x);
    if (!t || (t->shape.rank && first == 0 && count == t->shape.dim[0]))
        return x;
    mf_shape shape = t->shape;
    shape.dim[0] = count;
    return shaped(b, MF_OP_VIEW, &(mf_attr){.view = {true, first}}, 1, &x, t->dtype, shape);
}

uint32_t mf_g_cast(mf_build *b, uint32_t x, mf_dtype dtype)
{
    const mf_tensor *t = mf_g_tensor(b, x);
    if (!t || t->dtype == dtype)
        return x;
    return shaped(b, MF_OP_CAST, NULL, 1, &x, dtype, t->shape);
}

uint32_t mf_g_fill(mf_build *b, mf_dtype dtype, mf_shape shape, double value)
{
    return shaped(b, MF_OP_FILL, &(mf_attr){.fill = {value}}, 0, NULL, dtype, shape);
}

void mf_g_clear(mf_build *b, uint32_t tensor, double value)
{
    mf_g_op_in_place(b, MF_OP_FILL, &(mf_attr){.fill = {value}}, 0, NULL, 1, &tensor);
}

uint32_t mf_g_transpose(mf_build *b, uint32_t x, const uint32_t *perm)
{
    uint32_t rank = mf_g_shape(b, x).rank;
    mf_attr attr = {0};
    bool same = true;
    for (uint32_t i = 0; i < rank; i++) {
        attr.transpose.perm[i] = perm[i];
        same &= perm[i] == i;
    }
    return same ? x : one(b, MF_OP_TRANSPOSE, &attr, 1, &x);
}

uint32_t mf_g_slice(mf_build *b, uint32_t x, const int64_t *begin, const int64_t *size, const int64_t *stride)
{
    mf_shape shape = mf_g_shape(b, x), y = shape;
    mf_attr attr = {0};
    bool same = true;
    for (uint32_t i = 0; i < shape.rank; i++) {
        attr.slice.begin[i] = begin[i];
        attr.slice.stride[i] = stride ? stride[i] : 1;
        y.dim[i] = size[i];
        same &= begin[i] == 0 && attr.slice.stride[i] == 1 && size[i] == shape.dim[i];
    }
    return same ? x : shaped(b, MF_OP_SLICE, &attr, 1, &x, mf_g_dtype(b, x), y);
}

uint32_t mf_g_pad(mf_build *b, uint32_t x, const int64_t *before, const int64_t *after, const int64_t *between,
                  double value, uint32_t mode)
{
    uint32_t rank = mf_g_shape(b, x).rank;
    mf_attr attr = {.pad = {.value = value, .mode = mode}};
    bool same = true;
    for (uint32_t i = 0; i < rank; i++) {
        attr.pad.before[i] = before[i];
        attr.pad.after[i] = after[i];
        attr.pad.between[i] = between ? between[i] : 0;
        same &= !before[i] && !after[i] && !attr.pad.between[i];
    }
    return same ? x : one(b, MF_OP_PAD, &attr, 1, &x);
}

uint32_t mf_g_concat(mf_build *b, uint32_t count, const uint32_t *x, uint32_t axis)
{
    if (count == 1)
        return x[0];
    return one(b, MF_OP_CONCAT, &(mf_attr){.concat = {axis}}, count, x);
}

uint32_t mf_g_broadcast(mf_build *b, uint32_t x, mf_shape shape, double scale)
{
    const mf_tensor *t = mf_g_tensor(b, x);
    if (t && mf_shape_equal(&t->shape, &shape))
        return scale == 1 ? x : mf_g_unary(b, MF_UNARY_AFFINE, scale, 0, x);
    return shaped(b, MF_OP_BROADCAST, &(mf_attr){.broadcast = {scale}}, 1, &x, mf_g_dtype(b, x), shape);
}

uint32_t mf_g_gather(mf_build *b, uint32_t table, uint32_t indices)
{
    return one(b, MF_OP_GATHER, NULL, 2, (uint32_t[]){table, indices});
}

uint32_t mf_g_resize(mf_build *b, uint32_t x, int64_t height, int64_t width, uint32_t method, bool align_corners,
                     bool half_pixel)
{
    mf_shape y = mf_g_shape(b, x);
    if (y.rank != 4)
        return mf_build_fail(b, MEMFIT_INVALID, "resizing needs images (N, H, W, C)");
    if (y.dim[1] == height && y.dim[2] == width)
        return x;
    y.dim[1] = height;
    y.dim[2] = width;
    mf_attr attr = {.resize = {.method = method, .align_corners = align_corners, .half_pixel = half_pixel}};
    return shaped(b, MF_OP_RESIZE, &attr, 1, &x, mf_g_dtype(b, x), y);
}

uint32_t mf_g_assumed(mf_build *b, uint32_t count, const uint32_t *x, mf_dtype dtype, mf_shape shape, uint64_t bytes)
{
    return shaped(b, MF_OP_ASSUMED, &(mf_attr){.assumed = {bytes}}, count, x, dtype, shape);
}

/* ---- linear ---- */

uint32_t mf_g_matmul(mf_build *b, uint32_t a, uint32_t c, uint32_t bias, bool trans_a, bool trans_b, double scale)
{
    mf_attr attr = {.matmul = {.trans_a = trans_a, .trans_b = trans_b, .scale = scale}};
    return one(b, MF_OP_MATMUL, &attr, 3, (uint32_t[]){a, c, bias});
}

uint32_t mf_g_conv(mf_build *b, uint32_t x, uint32_t w, uint32_t bias, const mf_window *window)
{
    return one(b, MF_OP_CONV, &(mf_attr){.window = *window}, 3, (uint32_t[]){x, w, bias});
}

uint32_t mf_g_conv_grad_data(mf_build *b, uint32_t dy, uint32_t w, uint32_t bias, const mf_window *window,
                             mf_shape x_shape)
{
    return shaped(b, MF_OP_CONV_GRAD_DATA, &(mf_attr){.window = *window}, 3, (uint32_t[]){dy, w, bias},
                  mf_g_dtype(b, dy), x_shape);
}

uint32_t mf_g_conv_grad_weights(mf_build *b, uint32_t x, uint32_t dy, const mf_window *window, mf_shape w_shape,
                                uint32_t *db)
{
    mf_typed types[2] = {{.dtype = mf_g_dtype(b, x), .shape = w_shape}, UNKNOWN};
    uint32_t out[2];
    types[1].absent = db == NULL;
    mf_g_op(b, MF_OP_CONV_GRAD_WEIGHTS, &(mf_attr){.window = *window}, 2, (uint32_t[]){x, dy}, 2, types, out);
    if (db)
        *db = out[1];
    return out[0];
}

bool mf_window_pad(mf_window *window, const char *padding, const int64_t *spatial)
{
    bool same = strcmp(padding, "same") == 0, causal = strcmp(padding, "causal") == 0;
    if (!same && !causal && strcmp(padding, "valid") != 0)
        return false;
    for (uint32_t i = 0; i < window->dims; i++) {
        int64_t reach = (window->kernel[i] - 1) * window->dilation[i];
        window->before[i] = window->after[i] = 0;
        if (causal)
            window->before[i] = reach;
        if (!same)
            continue;
        int64_t out = (spatial[i] + window->stride[i] - 1) / window->stride[i];
        int64_t pad = (out - 1) * window->stride[i] + reach + 1 - spatial[i];
        pad = pad > 0 ? pad : 0;
        window->before[i] = pad / 2;
        window->after[i] = pad - pad / 2;
    }
    return true;
}

int64_t mf_window_out(const mf_window *window, uint32_t dim, int64_t in)
{
    int64_t room =
        in + window->before[dim] + window->after[dim] - (window->kernel[dim] - 1) * window->dilation[dim] - 1;
    if (room < 0 || window->stride[dim] < 1 || window->dilation[dim] < 1)
        return 0;
    return room / window->stride[dim] + 1;
}

/* ---- pointwise ---- */

/* A number as a tensor of this type holds it. */
static double rounded(mf_dtype dtype, double x)
{
    uint32_t bits;
    float f = (float)x;
    if (dtype == MF_F64 || isinf(x) || isnan(x))
        return x;
    if (dtype == MF_F16) { /* 11 significant bits, the least step 2^-24; not every compiler has the type */
        if (x == 0 || fabs(x) >= 65520)
            return x == 0 ? x : copysign(INFINITY, x);
        double step = ldexp(1, (ilogb(x) < -14 ? -14 : ilogb(x)) - 10);
        return rint(x / step) * step;
    }
    if (dtype == MF_BF16) {
        memcpy(&bits, &f, sizeof bits);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
        memcpy(&f, &bits, sizeof f);
    }
    return (double)f;
}

uint32_t mf_g_unary(mf_build *b, mf_unary function, double alpha, double beta, uint32_t x)
{
    /* The slope of a clipped value is found from the value: it must be the bound, to the last bit. */
    if (function == MF_UNARY_CLIP) {
        alpha = rounded(mf_g_dtype(b, x), alpha);
        beta = rounded(mf_g_dtype(b, x), beta);
    }
    if (function == MF_UNARY_LINEAR || (function == MF_UNARY_AFFINE && alpha == 1 && beta == 0))
        return x;
    mf_attr attr = {.unary = {.function = function, .alpha = alpha, .beta = beta}};
    return one(b, MF_OP_UNARY, &attr, 1, &x);
}

uint32_t mf_g_binary(mf_build *b, mf_binary function, uint32_t a, uint32_t c)
{
    return one(b, MF_OP_BINARY, &(mf_attr){.binary = {.function = function}}, 2, (uint32_t[]){a, c});
}

uint32_t mf_g_compare(mf_build *b, mf_compare function, uint32_t a, uint32_t c, double value)
{
    mf_attr attr = {.compare = {.function = function, .value = value}};
    return one(b, MF_OP_COMPARE, &attr, c == MF_NONE ? 1 : 2, (uint32_t[]){a, c});
}

uint32_t mf_g_select(mf_build *b, uint32_t mask, uint32_t yes, double yes_value, uint32_t no, double no_value,
                     mf_dtype dtype)
{
    mf_attr attr = {.select = {.yes = yes_value, .no = no_value}};
    mf_typed type = {.dtype = dtype, .shape = {.rank = MF_NONE}};
    return mf_g_op(b, MF_OP_SELECT, &attr, 3, (uint32_t[]){mask, yes, no}, 1, &type, NULL);
}

uint32_t mf_g_keep(mf_build *b, uint32_t mask, uint32_t x, double otherwise, bool causal)
{
    mf_attr attr = {.select = {.no = otherwise, .causal = causal}};
    if (mask == MF_NONE)
        mask = mf_g_fill(b, MF_U8, (mf_shape){0}, 1);
    return mf_g_op(b, MF_OP_SELECT, &attr, 3, (uint32_t[]){mask, x, MF_NONE}, 1, NULL, NULL);
}

uint32_t mf_g_sum_n(mf_build *b, uint32_t count, const uint32_t *x)
{
    return count == 1 ? x[0] : one(b, MF_OP_SUM_N, NULL, count, x);
}

uint32_t mf_g_reduce(mf_build *b, mf_reduce function, uint32_t x, uint32_t axes, bool keep)
{
    return one(b, MF_OP_REDUCE, &(mf_attr){.reduce = {.function = function, .axes = axes, .keep = keep}}, 1, &x);
}

uint32_t mf_g_softmax(mf_build *b, uint32_t x, uint32_t axis, bool log)
{
    return one(b, MF_OP_SOFTMAX, &(mf_attr){.softmax = {.axis = axis, .log = log}}, 1, &x);
}

uint32_t mf_g_softmax_causal(mf_build *b, uint32_t x)
{
    uint32_t rank = mf_g_shape(b, x).rank;
    return one(b, MF_OP_SOFTMAX, &(mf_attr){.softmax = {.axis = rank ? rank - 1 : 0, .causal = true}}, 1, &x);
}

uint32_t mf_g_sparsemax(mf_build *b, uint32_t x, uint32_t axis)
{
    return one(b, MF_OP_SOFTMAX, &(mf_attr){.softmax = {.axis = axis, .sparse = true}}, 1, &x);
}

uint32_t mf_g_prelu(mf_build *b, uint32_t x, uint32_t alpha)
{
    return one(b, MF_OP_PRELU, NULL, 2, (uint32_t[]){x, alpha});
}

uint32_t mf_g_random(mf_build *b, mf_dtype dtype, mf_shape shape, uint32_t distribution, double a, double c,
                     uint32_t key, uint32_t shared_axes)
{
    mf_attr attr = {.random = {.mean = a,
                               .scale = c,
                               .rate = distribution == 2 ? a : 0,
                               .distribution = distribution,
                               .key = key,
                               .shared_axes = shared_axes}};
    return shaped(b, MF_OP_RANDOM, &attr, 0, NULL, dtype, shape);
}

uint32_t mf_g_dropout(mf_build *b, uint32_t x, double rate, uint32_t key, uint32_t shared_axes)
{
    if (rate <= 0)
        return x;
    mf_attr attr = {.random = {.rate = rate, .key = key, .shared_axes = shared_axes}};
    return one(b, MF_OP_DROPOUT, &attr, 1, &x);
}

/* ---- windows and normalization ---- */

uint32_t mf_g_pool_max(mf_build *b, uint32_t x, const mf_window *window)
{
    return mf_g_op(b, MF_OP_POOL_MAX, &(mf_attr){.window = *window}, 1, &x, 2, NULL, NULL);
}

uint32_t mf_g_pool_avg(mf_build *b, uint32_t x, const mf_window *window)
{
    return one(b, MF_OP_POOL_AVG, &(mf_attr){.window = *window}, 1, &x);
}

uint32_t mf_g_batch_norm(mf_build *b, uint32_t x, uint32_t gamma, uint32_t beta, double epsilon, uint32_t *mean,
                         uint32_t *variance)
{
    uint32_t out[3];
    mf_g_op(b, MF_OP_BATCH_NORM, &(mf_attr){.norm = {.epsilon = epsilon}}, 3, (uint32_t[]){x, gamma, beta}, 3, NULL,
            out);
    *mean = out[1];
    *variance = out[2];
    return out[0];
}

uint32_t mf_g_batch_norm_infer(mf_build *b, uint32_t x, uint32_t gamma, uint32_t beta, uint32_t mean, uint32_t variance,
                               double epsilon)
{
    return mf_g_op(b, MF_OP_BATCH_NORM_INFER, &(mf_attr){.norm = {.epsilon = epsilon}}, 5,
                   (uint32_t[]){x, gamma, beta, mean, variance}, 1, NULL, NULL);
}

void mf_g_moving_average(mf_build *b, uint32_t value, uint32_t state, double momentum)
{
    mf_g_op_in_place(b, MF_OP_MOVING_AVERAGE, &(mf_attr){.moving = {momentum}}, 2, (uint32_t[]){value, state}, 1,
                     &state);
}

uint32_t mf_g_layer_norm(mf_build *b, uint32_t x, uint32_t gamma, uint32_t beta, double epsilon, uint32_t axes,
                         uint32_t groups, bool rms)
{
    mf_attr attr = {.norm = {.epsilon = epsilon, .axes = axes, .groups = groups, .rms = rms}};
    mf_typed types[3] = {UNKNOWN, UNKNOWN, UNKNOWN};
    types[1].absent = rms;
    return mf_g_op(b, MF_OP_LAYER_NORM, &attr, 3, (uint32_t[]){x, gamma, beta}, 3, types, NULL);
}

/* ---- recurrent ---- */

static mf_attr rnn_attr(bool backwards, bool reset_after, mf_unary activation, mf_unary recurrent_activation)
{
    return (mf_attr){.rnn = {.backwards = backwards,
                             .reset_after = reset_after,
                             .sequences = true,
                             .activation = activation,
                             .recurrent_activation = recurrent_activation}};
}

mf_rnn_result mf_g_lstm(mf_build *b, uint32_t z, uint32_t u, uint32_t h0, uint32_t c0, uint32_t mask, bool backwards,
                        mf_unary activation, mf_unary recurrent_activation)
{
    mf_attr attr = rnn_attr(backwards, false, activation, recurrent_activation);
    uint32_t out[5];
    mf_g_op(b, MF_OP_LSTM, &attr, 5, (uint32_t[]){z, u, h0, c0, mask}, 5, NULL, out);
    return (mf_rnn_result){out[0], out[3], out[4]};
}

mf_rnn_result mf_g_gru(mf_build *b, uint32_t z, uint32_t u, uint32_t bias_u, uint32_t h0, uint32_t mask, bool backwards,
                       bool reset_after, mf_unary activation, mf_unary recurrent_activation)
{
    mf_attr attr = rnn_attr(backwards, reset_after, activation, recurrent_activation);
    uint32_t out[3];
    mf_g_op(b, MF_OP_GRU, &attr, 5, (uint32_t[]){z, u, bias_u, h0, mask}, 3, NULL, out);
    return (mf_rnn_result){out[0], out[2], MF_NONE};
}

mf_rnn_result mf_g_simple_rnn(mf_build *b, uint32_t z, uint32_t u, uint32_t h0, uint32_t mask, bool backwards,
                              mf_unary activation)
{
    mf_attr attr = rnn_attr(backwards, false, activation, MF_UNARY_LINEAR);
    uint32_t out[2];
    mf_g_op(b, MF_OP_SIMPLE_RNN, &attr, 4, (uint32_t[]){z, u, h0, mask}, 2, NULL, out);
    return (mf_rnn_result){out[0], out[1], MF_NONE};
}
