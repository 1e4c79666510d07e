/*
 * onednn_conv.c: convolutions in three directions, as stages:
 *
 *     forward       w --reorder--> [w'] ; x, [w'], bias --conv--> y
 *     data gradient w --reorder--> [w'] ; dy, [w'] --conv--> dx
 *                   or, where that is faster, w --turn--> [t] --reorder--> [t'] ; dy, [t'] --forward conv--> dx
 *     weight grad.  x, dy --conv--> [dw'], [db'] ; [dw'] --reorder (+ sum)--> dw ; [db'] --reorder + sum--> db
 *
 * Where the library's layout happens to be the plain one, the reorder is left out and the operand used directly.
 *
 * Facts behind the choices (measured): `auto` may choose Winograd, which needs megabytes of scratch and loses
 * accuracy, so convolution_direct is asked for; convolution's weight gradient refuses a `sum` post-op, so accumulation
 * happens in the reorder back to the plain layout. With a stride of 1 the data gradient is a forward convolution with
 * the weights' taps in reverse order and channels exchanged, for which 2.x has the newer kernels (brgconv): 4 to 16 %
 * faster from 16 columns on, twice as fast at 28x28 with 512 channels, slower below (1.1 at 14x14, 1.3 at 7x7), and no
 * gain for 1x1.
 */
#include "ops/cpu/dnn/onednn_build.h"

#include <string.h>
typedef struct conv_layouts {
    dnnl_memory_desc_t src, dst, bias;
    dnnl_memory_desc_t plain;   /* weights as Keras keeps them */
    dnnl_memory_desc_t weights; /* the same, layout left to the library */
    mf_dnn_conv_desc desc;
} conv_layouts;

static void drop_layouts(conv_layouts *l)
{
    dnnl_memory_desc_t *all[] = {&l->src, &l->dst, &l->bias, &l->plain, &l->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mf_dnn_layout_drop(all[i]);
}

static dnnl_status_t describe(const mf_dnn_conv *c, conv_layouts *l)
{
    int d = c->dims, rank = d + 2;
    const dnnl_data_type_t type = dnnl_f32;
    dnnl_dims_t dims, strides;
    dnnl_status_t s = dnnl_success;
    for (int side = 0; side < 2 && s == dnnl_success; side++) {
        const int64_t *space = side ? c->out : c->in;
        int64_t channels = side ? c->out_channels : c->in_channels;
        dims[0] = c->batch;
        dims[1] = channels;
        strides[1] = 1;
        int64_t step = channels;
        for (int i = d - 1; i >= 0; i--) {
            dims[2 + i] = space[i];
            strides[2 + i] = step;
            step *= space[i];
        }
        strides[0] = step;
        s = mf_dnn_layout_strided(side ? &l->dst : &l->src, rank, dims, type, strides);
    }
    /* Weights (k..., I/g, O): logical order [g,] O/g, I/g, k... */
    int g = c->groups > 1, wrank = rank + g;
    int64_t ig = c->in_channels / c->groups, og = c->out_channels / c->groups;
    if (g) {
        dims[0] = c->groups;
        strides[0] = og;
    }
    dims[g] = og;
    strides[g] = 1;
    dims[g + 1] = ig;
    strides[g + 1] = c->out_channels;
    int64_t step = ig * c->out_channels;
    for (int i = d - 1; i >= 0; i--) {
        dims[g + 2 + i] = c->kernel[i];
        strides[g + 2 + i] = step;
        step *= c->kernel[i];
    }
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&l->plain, wrank, dims, type, strides);
    if (s == dnnl_success)
        s = mf_dnn_layout_any(&l->weights, wrank, dims, type);
    dnnl_dims_t bias = {c->out_channels}, one = {1};
    if (s == dnnl_success)
        s = mf_dnn_layout_strided(&l->bias, 1, bias, type, one);
    mf_dnn_conv_desc *desc = &l->desc;
    desc->src = MF_DNN_LAYOUT(l->src);
    desc->dst = MF_DNN_LAYOUT(l->dst);
    desc->weights = MF_DNN_LAYOUT(l->weights);
    desc->bias = c->bias ? MF_DNN_LAYOUT(l->bias) : NULL;
    for (int i = 0; i < d; i++) {
        desc->strides[i] = c->stride[i];
        desc->dilates[i] = c->dilation[i] - 1;
        desc->left[i] = c->before[i];
        /* The library wants padding that accounts for every output exactly. */
        desc->right[i] =
            (c->out[i] - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1 - c->in[i] - c->before[i];
    }
    return s;
}

/* The weights as the primitive wants them: the operand itself, or a reordered copy in the workspace. */
static dnnl_status_t weights_in(dnn_builder *b, const conv_layouts *l, mf_dnn_layout wanted, int operand,
                                dnn_argument *weights)
{
    *weights = (dnn_argument){DNNL_ARG_WEIGHTS, wanted, operand, 0};
    if (dnnl_memory_desc_equal(wanted, MF_DNN_LAYOUT(l->plain)))
        return dnnl_success;
    weights->operand = DNN_IN_WORKSPACE;
    weights->offset = dnn_take(b, dnnl_memory_desc_get_size(wanted));
    return dnn_add_reorder(b, MF_DNN_LAYOUT(l->plain), (dnn_argument){.operand = operand}, wanted, *weights, false);
}

static dnnl_status_t make_forward(dnn_builder *b, const mf_dnn_conv *c, const conv_layouts *l, dnnl_primitive_desc_t pd)
{
    dnn_argument weights;
    dnnl_status_t s = weights_in(b, l, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), 1, &weights);
    if (s != dnnl_success)
        return s;
    dnn_argument args[4] = {
        {DNNL_ARG_SRC, l->desc.src, 0, 0}, weights, {DNNL_ARG_DST, l->desc.dst, c->bias ? 3 : 2, 0}};
    if (c->bias)
        args[3] = (dnn_argument){DNNL_ARG_BIAS, l->desc.bias, 2, 0};
    return dnn_add_stage(b, pd, args, c->bias ? 4 : 3);
}

static dnnl_status_t make_grad_data(dnn_builder *b, const conv_layouts *l, dnnl_primitive_desc_t pd)
{
    dnn_argument weights;
    dnnl_status_t s = weights_in(b, l, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0), 1, &weights);
    if (s != dnnl_success)
        return s;
    dnn_argument args[3] = {{DNNL_ARG_DIFF_DST, l->desc.dst, 0, 0}, weights, {DNNL_ARG_DIFF_SRC, l->desc.src, 2, 0}};
    return dnn_add_stage(b, pd, args, 3);
}

static dnnl_status_t make_grad_weights(dnn_builder *b, const mf_dnn_conv *c, const conv_layouts *l,
                                       dnnl_primitive_desc_t pd)
{
    mf_dnn_layout got = dnnl_primitive_desc_query_md(pd, dnnl_query_diff_weights_md, 0), bias = l->desc.bias;
    mf_dnn_layout plain = MF_DNN_LAYOUT(l->plain);
    dnn_argument dw = {DNNL_ARG_DIFF_WEIGHTS, got, 2, 0}, db = {DNNL_ARG_DIFF_BIAS, bias, 3, 0};
    bool direct = !c->accumulate && dnnl_memory_desc_equal(got, plain);
    if (!direct) {
        dw.operand = DNN_IN_WORKSPACE;
        dw.offset = dnn_take(b, dnnl_memory_desc_get_size(got));
    }
    if (c->bias && c->accumulate) {
        db.operand = DNN_IN_WORKSPACE;
        db.offset = dnn_take(b, dnnl_memory_desc_get_size(bias));
    }
    dnn_argument args[4] = {{DNNL_ARG_SRC, l->desc.src, 0, 0}, {DNNL_ARG_DIFF_DST, l->desc.dst, 1, 0}, dw, db};
    dnnl_status_t s = dnn_add_stage(b, pd, args, c->bias ? 4 : 3);
    if (s == dnnl_success && !direct)
        s = dnn_add_reorder(b, got, dw, plain, (dnn_argument){.operand = 2}, c->accumulate);
    if (s == dnnl_success && c->bias && c->accumulate)
        s = dnn_add_reorder(b, bias, db, bias, (dnn_argument){.operand = 3}, true);
    return s;
}

/* The forward convolution that computes this data gradient, if the library is likely to be faster at it. */
static bool turned_conv(const mf_dnn_conv *c, mf_dnn_conv *turned)
{
    enum { FEWEST_COLUMNS = 16 };
    *turned = *c;
    turned->direction = MF_DNN_FORWARD;
    turned->in_channels = c->out_channels;
    turned->out_channels = c->in_channels;
    int64_t taps = 1;
    for (int i = 0; i < c->dims; i++) {
        if (c->stride[i] != 1 || c->dilation[i] != 1 || c->before[i] > c->kernel[i] - 1)
            return false;
        turned->in[i] = c->out[i];
        turned->out[i] = c->in[i];
        turned->before[i] = c->kernel[i] - 1 - c->before[i];
        taps *= c->kernel[i];
    }
    return DNNL_VERSION_MAJOR < 3 && c->dims == 2 && c->groups == 1 && taps > 1 && c->in[1] >= FEWEST_COLUMNS &&
           c->out[1] >= FEWEST_COLUMNS && c->in_channels >= 16 && c->out_channels >= 16;
}

static bool is_new_kernel(dnnl_primitive_desc_t pd)
{
    return strncmp(dnn_name_of(pd), "brgconv", 7) == 0;
}

static dnnl_status_t add_turned(dnn_builder *b, const mf_dnn_conv *c, const conv_layouts *l, dnnl_primitive_desc_t pd)
{
    uint64_t tap_bytes = (uint64_t)(c->in_channels * c->out_channels) * sizeof(float), taps = 1;
    for (int i = 0; i < c->dims; i++)
        taps *= (uint64_t)c->kernel[i];
    uint64_t copy = dnn_take(b, taps * tap_bytes);
    if (b->made) {
        dnn_stage *st = &b->made->stages[b->made->count++];
        st->operand[0] = 1;
        st->offset[1] = copy;
        st->taps = taps;
        st->tap_bytes = tap_bytes;
    }
    mf_dnn_layout wanted = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnn_argument from = {DNNL_ARG_WEIGHTS, MF_DNN_LAYOUT(l->plain), DNN_IN_WORKSPACE, copy};
    dnn_argument weights = {DNNL_ARG_WEIGHTS, wanted, DNN_IN_WORKSPACE, dnn_take(b, dnnl_memory_desc_get_size(wanted))};
    dnnl_status_t s = dnn_add_reorder(b, MF_DNN_LAYOUT(l->plain), from, wanted, weights, false);
    dnn_argument args[3] = {{DNNL_ARG_SRC, l->desc.src, 0, 0}, weights, {DNNL_ARG_DST, l->desc.dst, 2, 0}};
    return s == dnnl_success ? dnn_add_stage(b, pd, args, 3) : s;
}

/* Sets `served` when the data gradient was made this way. */
static dnnl_status_t make_turned(dnn_builder *b, const mf_dnn_conv *c, dnnl_primitive_attr_t attr, bool *served)
{
    mf_dnn_conv turned;
    *served = false;
    if (!turned_conv(c, &turned))
        return dnnl_success;
    conv_layouts l = {0};
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s = describe(&turned, &l);
    if (s == dnnl_success) { /* the operand's own order: the channels are exchanged by its strides alone */
        int64_t i = c->in_channels, o = c->out_channels;
        dnnl_dims_t dims = {i, o, c->kernel[0], c->kernel[1]}, strides = {o, 1, c->kernel[1] * i * o, i * o};
        mf_dnn_layout_drop(&l.plain);
        s = mf_dnn_layout_strided(&l.plain, 4, dims, dnnl_f32, strides);
    }
    if (s == dnnl_success)
        s = mf_dnn_desc_forward(&pd, b->engine->engine, &l.desc, attr, dnn_takes_nothing);
    *served = s == dnnl_success && is_new_kernel(pd);
    if (*served)
        s = add_turned(b, &turned, &l, pd);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    drop_layouts(&l);
    return s == dnnl_unimplemented && !*served ? dnnl_success : s;
}

/* The newer kernels make code for each way a row meets the padding. With taps far apart there are many: 0.75 to 0.9 MiB
 * of code for one layer of a small dilated net, ten times what all its tensors took; the older ones have one. And they
 * keep 1 to 4 KiB for each column of a row: 16 MiB of a run over three layers of 16,000 columns, whose tensors took 20;
 * there the older ones are 0 to 4 % slower. Pictures have rows enough for this to be little. */
static bool is_compact(const_dnnl_primitive_desc_t pd)
{
    const char *name = dnn_name_of(pd);
    return dnn_takes_nothing(pd) && (strncmp(name, "brgconv", 7) != 0 || strncmp(name, "brgconv_1x1", 11) == 0);
}

static bool is_dilated(const mf_dnn_conv *c)
{
    for (int i = 0; i < c->dims; i++)
        if (c->dilation[i] > 1)
            return true;
    return false;
}

static bool is_long(const mf_dnn_conv *c)
{
    enum { MOST_COLUMNS = 512 };
    return c->dims == 1 && c->out[0] > MOST_COLUMNS;
}

/* 3.7.2 (brg_conv_fwd:avx512_core) reads beyond the rows of a picture of one channel where each row has one place and the
 * stride is not 1: numbers that nothing in the operands explains. */
static bool is_misread(const mf_dnn_conv *c)
{
    const int last = c->dims - 1;
    return DNNL_VERSION_MAJOR >= 3 && c->in_channels == c->groups && c->out[last] == 1 && c->stride[last] > 1;
}

static bool is_older(const_dnnl_primitive_desc_t pd)
{
    return dnn_takes_nothing(pd) && strncmp(dnn_name_of(pd), "brg", 3) != 0;
}

static dnnl_status_t make_conv(dnn_builder *b, const mf_dnn_conv *c, const conv_layouts *l, dnnl_primitive_attr_t attr)
{
    dnnl_engine_t engine = b->engine->engine;
    dnnl_primitive_desc_t forward, pd;
    bool served = false;
    dnnl_status_t s = c->direction == MF_DNN_GRAD_DATA ? make_turned(b, c, attr, &served) : dnnl_success;
    if (s != dnnl_success || served)
        return s;
    mf_dnn_suits suits = is_misread(c) ? is_older : is_dilated(c) || is_long(c) ? is_compact : dnn_takes_nothing;
    s = mf_dnn_desc_forward(&forward, engine, &l->desc, attr, c->direction == MF_DNN_FORWARD ? suits : NULL);
    if (s != dnnl_success)
        return s;
    if (c->direction == MF_DNN_FORWARD) {
        s = make_forward(b, c, l, forward);
    } else if (c->direction == MF_DNN_GRAD_DATA) {
        s = mf_dnn_desc_grad_data(&pd, engine, &l->desc, attr, forward, dnn_takes_nothing);
    } else {
        s = mf_dnn_desc_grad_weights(&pd, engine, &l->desc, attr, forward, dnn_takes_nothing);
    }
    if (s == dnnl_success && c->direction != MF_DNN_FORWARD) {
        s = c->direction == MF_DNN_GRAD_DATA ? make_grad_data(b, l, pd) : make_grad_weights(b, c, l, pd);
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_primitive_desc_destroy(forward);
    return s;
}

static bool is_countable_conv(const mf_dnn_conv *c)
{
    int64_t in = c->in_channels, out = c->out_channels, taps = c->in_channels;
    bool fits = dnn_is_countable(c->batch) && dnn_is_countable(in) && dnn_is_countable(out);
    for (int i = 0; i < c->dims && fits; i++) {
        int64_t reach;
        fits = dnn_is_countable(c->stride[i]) && dnn_is_countable(c->dilation[i]) && dnn_is_countable(c->in[i]) &&
               dnn_is_countable(c->out[i]) && dnn_is_countable(c->kernel[i]) && dnn_is_countable(in *= c->in[i]) &&
               dnn_is_countable(out *= c->out[i]) && dnn_is_countable(taps *= c->kernel[i]) &&
               !__builtin_mul_overflow(c->kernel[i], c->dilation[i], &reach) && dnn_is_countable(reach) &&
               c->before[i] >= INT32_MIN && c->before[i] <= INT32_MAX;
    }
    return fits;
}

static bool is_small_conv(const mf_dnn_conv *c)
{
    double in = (double)(c->batch * c->in_channels), out = (double)(c->batch * c->out_channels);
    double taps = (double)(c->in_channels / c->groups);
    for (int i = 0; i < c->dims; i++) {
        in *= (double)c->in[i];
        out *= (double)c->out[i];
        taps *= (double)c->kernel[i];
    }
    return dnn_is_small(2 * out * taps, 4 * (in + out + taps * (double)c->out_channels));
}

/* ---- what it takes ----------------------------------------------------------------------------------------- */

static int64_t most_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static mf_dnn_row_kind row_kind_of(const mf_dnn_conv *c)
{
    enum { FAR_COLUMNS = 8 }; /* of padding: beyond that the newer kernels do as with taps apart */
    mf_dnn_conv turned;
    int64_t taps = 1, pad = 0;
    for (int i = 0; i < c->dims; i++) {
        int64_t reach = (c->out[i] - 1) * c->stride[i] + (c->kernel[i] - 1) * c->dilation[i] + 1;
        taps *= c->kernel[i];
        pad = most_of(pad, most_of(c->before[i], reach - c->in[i] - c->before[i]));
    }
    if (taps == 1)
        return MF_DNN_ROW_ONE_TAP;
    if (is_long(c) && pad < FAR_COLUMNS && !is_dilated(c))
        return MF_DNN_ROW_LONG;
    if (pad >= FAR_COLUMNS || (pad > 0 && is_dilated(c)))
        return MF_DNN_ROW_FAR;
    if (is_dilated(c))
        return MF_DNN_ROW_APART;
    if (c->direction == MF_DNN_GRAD_DATA)
        return turned_conv(c, &turned) ? MF_DNN_ROW_TURNED : MF_DNN_ROW_GRAD_DATA;
    return c->direction == MF_DNN_FORWARD ? MF_DNN_ROW_FORWARD : MF_DNN_ROW_GRAD_WEIGHTS;
}

static uint64_t columns_of(const mf_dnn_conv *c)
{
    return (uint64_t)most_of(c->in[c->dims - 1], c->out[c->dims - 1]);
}

uint64_t mf_dnn_conv_making(const mf_dnn_conv *c)
{
    mf_dnn_conv turned;
    const mf_dnn_row_kind kinds[3] = {
        row_kind_of(c), turned_conv(c, &turned) ? MF_DNN_ROW_TURNED : MF_DNN_ROW_GRAD_DATA, MF_DNN_ROW_GRAD_WEIGHTS};
    uint64_t most = 0;
    for (int i = 0; i < 3; i++) { /* a gradient in a special case may still be made as the others are */
        const mf_dnn_row row = mf_dnn_row_of(kinds[i]);
        uint64_t bytes = row.base + row.column * columns_of(c);
        bytes = row.most && bytes > row.most ? row.most : bytes;
        if (bytes > most && (i == 0 || (int)c->direction == i))
            most = bytes;
        if (kinds[i] == MF_DNN_ROW_LONG && row.column)
            break;
    }
    return most;
}

/* Of what making takes for a column the newer forward kernels keep two thirds. Narrow rows are in the fixed figures. */
uint64_t mf_dnn_conv_wide(const mf_dnn_conv *c)
{
    enum { NARROW = 48 };
    const mf_dnn_row_kind kind = row_kind_of(c);
    const uint64_t columns = columns_of(c);
    const mf_dnn_row row = mf_dnn_row_of(kind);
    if ((kind != MF_DNN_ROW_FORWARD && kind != MF_DNN_ROW_TURNED) || is_long(c) || columns <= NARROW || row.most)
        return 0;
    return (columns - NARROW) * row.column / 3 * 2;
}

memfit_status mf_dnn_conv_make(mf_dnn_engine *engine, const mf_dnn_conv *conv, mf_dnn **made, uint64_t *workspace_bytes,
                               memfit_error *err)
{
    dnn_builder b;
    if (!is_countable_conv(conv))
        return dnn_too_large("convolution", err);
    memfit_status status = dnn_begin(&b, engine, made != NULL, is_small_conv(conv), err);
    if (status != MEMFIT_OK)
        return status;
    conv_layouts l = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s = describe(conv, &l);
    if (s == dnnl_success)
        s = dnn_make_attr(false, conv->relu, 1, &attr);
    if (s == dnnl_success)
        s = make_conv(&b, conv, &l, attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    drop_layouts(&l);
    return dnn_finish(&b, s, "convolution", made, workspace_bytes, err);
}
