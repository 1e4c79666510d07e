/* opcheck_cases.c: the graphs: every kind that has a gradient, in the forms that matter (strides, padding, dilation,
 * groups, broadcasting, masks, both directions of time, every function of one number and every loss). */
#include "opcheck.h"

#define SHAPE opcheck_shape

static mf_window window_of(uint32_t dims, int64_t kernel, int64_t stride, int64_t dilation, const char *padding,
                           const int64_t *spatial)
{
    mf_window w = {.dims = dims, .groups = 1};
    for (uint32_t i = 0; i < dims; i++) {
        w.kernel[i] = kernel + (i == 1); /* not square */
        w.stride[i] = stride;
        w.dilation[i] = dilation;
    }
    assert_true(mf_window_pad(&w, padding, spatial));
    return w;
}

/* ---- linear ---- */
static void matmul(opcheck *c, int variant)
{
    bool ta = variant & 1, tb = variant & 2;
    if (variant < 4) { /* plain and batched with transposes */
        uint32_t a = opcheck_input(c, ta ? SHAPE(3, 2, 4, 3, 0, 0) : SHAPE(3, 2, 3, 4, 0, 0), -1, 1);
        uint32_t b = opcheck_input(c, tb ? SHAPE(3, 2, 5, 4, 0, 0) : SHAPE(3, 2, 4, 5, 0, 0), -1, 1);
        opcheck_output(c, mf_g_matmul(&c->b, a, b, MF_NONE, ta, tb, 0.5));
        return;
    }
    uint32_t a = opcheck_input(c, variant == 4 ? SHAPE(2, 6, 4, 0, 0, 0) : SHAPE(3, 2, 3, 4, 0, 0), -1, 1);
    uint32_t b = opcheck_input(c, tb ? SHAPE(2, 70, 4, 0, 0, 0) : SHAPE(2, 4, 70, 0, 0, 0), -1, 1);
    uint32_t bias = opcheck_input(c, SHAPE(1, 70, 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_matmul(&c->b, a, b, bias, false, tb, 1));
}

static void conv(opcheck *c, int variant)
{
    static const struct {
        uint32_t dims;
        int64_t kernel, stride, dilation, groups, in, out;
        const char *padding;
    } v[] = {
        {2, 3, 1, 1, 1, 3, 4, "same"},   {2, 3, 2, 1, 1, 3, 4, "same"},  {2, 2, 1, 2, 1, 2, 5, "valid"},
        {1, 3, 1, 2, 1, 3, 4, "causal"}, {3, 2, 1, 1, 1, 2, 3, "same"},  {2, 3, 1, 1, 2, 4, 6, "same"},
        {2, 3, 2, 1, 4, 4, 4, "same"},   {2, 3, 1, 1, 3, 3, 6, "valid"}, {2, 1, 1, 1, 1, 5, 70, "valid"},
    };
    int64_t spatial[3] = {6, 7, 4};
    mf_window w = window_of(v[variant].dims, v[variant].kernel, v[variant].stride, v[variant].dilation,
                            v[variant].padding, spatial);
    w.groups = v[variant].groups;
    mf_shape x = {.rank = v[variant].dims + 2}, k = {.rank = v[variant].dims + 2};
    x.dim[0] = 2;
    for (uint32_t i = 0; i < w.dims; i++) {
        x.dim[1 + i] = spatial[i];
        k.dim[i] = w.kernel[i];
    }
    x.dim[w.dims + 1] = v[variant].in;
    k.dim[w.dims] = v[variant].in / w.groups;
    k.dim[w.dims + 1] = v[variant].out;
    uint32_t tx = opcheck_input(c, x, -1, 1), tk = opcheck_input(c, k, -1, 1);
    uint32_t bias = opcheck_input(c, SHAPE(1, v[variant].out, 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_conv(&c->b, tx, tk, bias, &w));
}

/* The transposed convolution and its own gradients. */
static void conv_transposed(opcheck *c, int variant)
{
    int64_t spatial[2] = {6, 8};
    mf_window w = window_of(2, 3, variant ? 2 : 1, 1, variant == 2 ? "valid" : "same", spatial);
    mf_shape big = SHAPE(4, 2, 6, 8, 3, 0);
    uint32_t dy = opcheck_input(c, SHAPE(4, 2, mf_window_out(&w, 0, 6), mf_window_out(&w, 1, 8), 2, 0), -1, 1);
    uint32_t k = opcheck_input(c, SHAPE(4, 3, 4, 3, 2, 0), -1, 1),
             bias = opcheck_input(c, SHAPE(1, 3, 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_conv_grad_data(&c->b, dy, k, bias, &w, big));
}

/* ---- pointwise ---- */
static void unary(opcheck *c, int variant)
{
    mf_unary f = (mf_unary)variant;
    double low = -4.05, high = 4, alpha = 1, beta = 0;
    if (f == MF_UNARY_LOG || f == MF_UNARY_SQRT || f == MF_UNARY_RSQRT || f == MF_UNARY_RECIPROCAL ||
        f == MF_UNARY_POW || f == MF_UNARY_LOG1P)
        low = 0.3;
    if (f == MF_UNARY_LEAKY_RELU || f == MF_UNARY_SOFT_SHRINK || f == MF_UNARY_HARD_SHRINK || f == MF_UNARY_THRESHOLD)
        alpha = 0.3;
    if (f == MF_UNARY_CLIP) {
        alpha = -1;
        beta = 2;
    }
    if (f == MF_UNARY_ELU || f == MF_UNARY_CELU || f == MF_UNARY_SQUAREPLUS || f == MF_UNARY_POW)
        alpha = 1.7;
    if (f == MF_UNARY_RELU6)
        high = 9;
    if (f == MF_UNARY_AFFINE)
        beta = 3;
    uint32_t x = opcheck_input(c, SHAPE(2, 8, 25, 0, 0, 0), low, high);
    opcheck_output(c, mf_g_unary(&c->b, f, alpha, beta, x));
}

static void binary(opcheck *c, int variant)
{
    mf_binary f = (mf_binary)(variant / 3);
    static const int64_t shapes[3][2][4] = {
        {{2, 3, 4, 5}, {2, 3, 4, 5}}, {{2, 3, 4, 5}, {1, 3, 1, 5}}, {{2, 1, 4, 1}, {2, 3, 1, 5}}};
    double low = f == MF_DIV || f == MF_POW ? 0.4 : -1;
    uint32_t a = opcheck_input(c, mf_shape_make(4, shapes[variant % 3][0]), low, 2);
    uint32_t b = opcheck_input(c, mf_shape_make(4, shapes[variant % 3][1]), low, 2);
    opcheck_output(c, mf_g_binary(&c->b, f, a, b));
}

/* Chosen by a comparison; the variants leave out what numbers stand for, and look at broadcasts and the causal half. */
static void select_by(opcheck *c, int variant)
{
    uint32_t a = opcheck_input(c, SHAPE(3, 2, 4, 5, 0, 0), -1, 2), b = opcheck_input(c, SHAPE(3, 2, 1, 5, 0, 0), -1, 2);
    uint32_t by = mf_g_compare(&c->b, (mf_compare)(variant % 6), a, variant & 1 ? b : MF_NONE, 0.3);
    uint32_t narrow = mf_g_compare(&c->b, MF_LESS, b, MF_NONE, 0.5);
    opcheck_output(c, mf_g_select(&c->b, by, a, 0, b, 0, MF_F32));
    opcheck_output(c, mf_g_select(&c->b, narrow, a, 0, MF_NONE, -2, MF_F32));
    opcheck_output(c, mf_g_keep(&c->b, variant & 1 ? narrow : MF_NONE, b, 0.5, false));
    opcheck_output(c, mf_g_keep(&c->b, variant & 1 ? narrow : MF_NONE, a, 0.25, true));
}

static void reduce(opcheck *c, int variant)
{
    static const uint32_t axes[] = {1, 6, 4, 7};
    mf_reduce f = (mf_reduce)(variant / 4);
    uint32_t x = opcheck_input(c, SHAPE(3, 3, 4, 5, 0, 0), 0.2, 1.5);
    opcheck_output(c, mf_g_reduce(&c->b, f, x, axes[variant % 4], variant % 2));
}

static void softmax(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(3, 2, 4, 5, 0, 0), -1, 1);
    if (variant == 4)
        opcheck_output(c, mf_g_softmax_causal(&c->b, x));
    else if (variant == 5)
        opcheck_output(c, mf_g_sparsemax(&c->b, x, 2));
    else
        opcheck_output(c, mf_g_softmax(&c->b, x, variant & 1 ? 1 : 2, variant & 2));
}

static void prelu(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(4, 2, 3, 4, 5, 0), -1, 1);
    uint32_t alpha = opcheck_input(c, variant ? SHAPE(3, 1, 1, 5, 0, 0) : SHAPE(3, 3, 4, 5, 0, 0), 0, 1);
    opcheck_output(c, mf_g_prelu(&c->b, x, alpha));
}

static void sum_and_share(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(2, 3, 4, 0, 0, 0), -1, 1), y = opcheck_input(c, SHAPE(2, 3, 4, 0, 0, 0), -1, 1);
    uint32_t t = mf_g_unary(&c->b, MF_UNARY_TANH, 0, 0, x);
    if (variant)
        opcheck_output(c, mf_g_sum_n(&c->b, 3, (uint32_t[]){x, y, t}));
    else
        opcheck_output(c, mf_g_sum_n(&c->b, 4, (uint32_t[]){x, y, t, x})); /* x is read three times */
}

static void dropout(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(3, 3, 4, 5, 0, 0), -1, 1);
    opcheck_output(c, mf_g_dropout(&c->b, x, 0.4, 7, variant ? 2 : 0));
}

/* ---- structure ---- */
static void structure(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(3, 3, 4, 5, 0, 0), -1, 1), y = MF_NONE;
    switch (variant) {
    case 0:
        y = mf_g_transpose(&c->b, x, (uint32_t[]){2, 0, 1});
        break;
    case 1:
        y = mf_g_slice(&c->b, x, (int64_t[]){0, 1, 0}, (int64_t[]){3, 2, 5}, (int64_t[]){1, 2, 1});
        break;
    case 2:
        y = mf_g_pad(&c->b, x, (int64_t[]){0, 1, 2}, (int64_t[]){0, 2, 0}, (int64_t[]){0, 1, 0}, 0.5, 0);
        break;
    case 3:
        y = mf_g_concat(&c->b, 3,
                        (uint32_t[]){x, opcheck_input(c, SHAPE(3, 3, 2, 5, 0, 0), -1, 1),
                                     opcheck_input(c, SHAPE(3, 3, 1, 5, 0, 0), -1, 1)},
                        1);
        break;
    case 4:
        y = mf_g_broadcast(&c->b, mf_g_view(&c->b, x, SHAPE(4, 3, 4, 1, 5, 0)), SHAPE(4, 3, 4, 6, 5, 0), 0.5);
        break;
    case 5:
        y = mf_g_view(&c->b, x, SHAPE(2, 12, 5, 0, 0, 0));
        y = mf_g_unary(&c->b, MF_UNARY_SQUARE, 0, 0, y);
        break;
    case 6:
        y = mf_g_cast(&c->b, mf_g_cast(&c->b, x, MF_F64), c->dtype);
        break;
    default:
        y = mf_g_slice(&c->b, x, (int64_t[]){2, 0, 0}, (int64_t[]){3, 4, 5}, (int64_t[]){-1, 1, 1});
        break;
    }
    opcheck_output(c, y);
}

static void gather(opcheck *c, int variant)
{
    mf_dtype types[] = {MF_I32, MF_I64, MF_U8, MF_F32};
    uint32_t table = opcheck_input(c, SHAPE(2, 6, 3, 0, 0, 0), -1, 1);
    uint32_t index = opcheck_constant(c, types[variant], SHAPE(2, 2, 5, 0, 0, 0), 0, 6, true);
    opcheck_output(c, mf_g_gather(&c->b, table, index));
}

static void resize(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(4, 2, 4, 5, 2, 0), -1, 1);
    uint32_t method = (uint32_t)variant / 2;
    bool smaller = variant & 1;
    opcheck_output(c, mf_g_resize(&c->b, x, smaller ? 3 : 7, smaller ? 2 : 9, method, false, method != 3));
}

/* ---- windows ---- */
static void pool(opcheck *c, int variant)
{
    int64_t spatial[3] = {5, 6, 4};
    uint32_t dims = variant < 8 ? 2 : variant < 10 ? 1 : 3;
    mf_window w = window_of(dims, variant & 4 ? 3 : 2, variant & 2 ? 1 : 2, 1, variant & 4 ? "same" : "valid", spatial);
    mf_shape s = {.rank = dims + 2, .dim = {2}};
    for (uint32_t i = 0; i < dims; i++)
        s.dim[1 + i] = spatial[i];
    s.dim[dims + 1] = 3;
    w.count_padding = variant == 7;
    uint32_t x = opcheck_input(c, s, -1, 1);
    opcheck_output(c, variant & 1 ? mf_g_pool_avg(&c->b, x, &w) : mf_g_pool_max(&c->b, x, &w));
}

/* ---- normalization ---- */
static void batch_norm(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(4, 2, 3, 4, 5, 0), -1, 3), mean, variance;
    uint32_t gamma = variant & 1 ? MF_NONE : opcheck_input(c, SHAPE(1, 5, 0, 0, 0, 0), 0.5, 2);
    uint32_t beta = variant & 1 ? MF_NONE : opcheck_input(c, SHAPE(1, 5, 0, 0, 0, 0), -1, 1);
    if (variant < 2) {
        opcheck_output(c, mf_g_batch_norm(&c->b, x, gamma, beta, 1e-3, &mean, &variance));
        return;
    }
    mean = opcheck_constant(c, c->dtype, SHAPE(1, 5, 0, 0, 0, 0), 0, 2, false);
    variance = opcheck_constant(c, c->dtype, SHAPE(1, 5, 0, 0, 0, 0), 0.5, 2, false);
    opcheck_output(c, mf_g_batch_norm_infer(&c->b, x, gamma, beta, mean, variance, 1e-3));
}

static void layer_norm(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(4, 2, 3, 4, 6, 0), -1, 3);
    uint32_t groups = variant & 4 ? 3 : 0, axes = variant & 2 ? 2 : 1;
    mf_shape s = groups || axes == 1 ? SHAPE(1, 6, 0, 0, 0, 0) : SHAPE(2, 4, 6, 0, 0, 0);
    uint32_t gamma = variant == 3 ? MF_NONE : opcheck_input(c, s, 0.5, 2);
    uint32_t beta = variant == 3 ? MF_NONE : opcheck_input(c, s, -1, 1);
    opcheck_output(c, mf_g_layer_norm(&c->b, x, gamma, beta, 1e-3, axes, groups, variant & 1));
}

/* ---- recurrent ---- */
static void recurrent(opcheck *c, int variant)
{
    enum { N = 2, T = 4, U = 3 };
    int kind = variant % 4; /* lstm, gru reset after, gru reset before, simple */
    bool backwards = variant & 4, masked = variant & 8, started = variant & 16;
    int64_t gates = kind == 0 ? 4 : kind == 3 ? 1 : 3;
    uint32_t z = opcheck_input(c, SHAPE(3, N, T, gates * U, 0, 0), -1, 1);
    uint32_t u = opcheck_input(c, SHAPE(2, U, gates * U, 0, 0, 0), -1, 1);
    uint32_t h0 = started ? opcheck_input(c, SHAPE(2, N, U, 0, 0, 0), -1, 1) : MF_NONE;
    uint32_t c0 = started && kind == 0 ? opcheck_input(c, SHAPE(2, N, U, 0, 0, 0), -1, 1) : MF_NONE;
    uint32_t mask = masked ? opcheck_constant(c, MF_U8, SHAPE(2, N, T, 0, 0, 0), 0, 2, true) : MF_NONE;
    uint32_t bias = kind == 1 ? opcheck_input(c, SHAPE(1, 3 * U, 0, 0, 0, 0), -1, 1) : MF_NONE;
    mf_rnn_result r;
    if (kind == 0)
        r = mf_g_lstm(&c->b, z, u, h0, c0, mask, backwards, MF_UNARY_TANH, MF_UNARY_SIGMOID);
    else if (kind == 3)
        r = mf_g_simple_rnn(&c->b, z, u, h0, mask, backwards, MF_UNARY_TANH);
    else
        r = mf_g_gru(&c->b, z, u, bias, h0, mask, backwards, kind == 1, MF_UNARY_TANH, MF_UNARY_SIGMOID);
    if (variant & 64) {
        mf_op *op = &c->b.graph->ops[c->b.graph->op_count - 1];
        op->attr.rnn.recurrent_dropout = 0.4;
        op->attr.rnn.key = 7;
    }
    if (!(variant & 32))
        opcheck_output(c, r.sequence);
    opcheck_output(c, r.last);
    if (kind == 0)
        opcheck_output(c, r.last_cell);
}

/* ---- losses ---- */
static void loss(opcheck *c, int variant)
{
    mf_loss f = (mf_loss)(variant / 2);
    bool sparse = f == MF_LOSS_SCCE || f == MF_LOSS_SCCE_LOGITS, weighted = variant & 1;
    bool probabilities = f == MF_LOSS_BCE || f == MF_LOSS_CCE || f == MF_LOSS_SCCE || f == MF_LOSS_KL ||
                         f == MF_LOSS_BINARY_FOCAL || f == MF_LOSS_CATEGORICAL_FOCAL || f == MF_LOSS_POISSON ||
                         f == MF_LOSS_MSLE;
    bool one_hot = f == MF_LOSS_CCE || f == MF_LOSS_CCE_LOGITS;
    uint32_t pred = opcheck_input(c, SHAPE(3, 2, 3, 5, 0, 0), probabilities ? 0.1 : -2, probabilities ? 0.9 : 2);
    uint32_t target = sparse ? opcheck_constant(c, MF_I32, SHAPE(2, 2, 3, 0, 0, 0), 0, 5, true)
                             : opcheck_constant(c, c->dtype, SHAPE(3, 2, 3, 5, 0, 0), 0.05, 0.95, false);
    if (one_hot) /* must sum to 1 */
        target = mf_g_softmax(&c->b, target, 2, false);
    uint32_t weight = weighted ? opcheck_constant(c, c->dtype, SHAPE(1, 2, 0, 0, 0, 0), 0.5, 2, false) : MF_NONE;
    mf_variable v = {
        .name = "loss", .role = MF_VAR_LOSS, .kind = MEMFIT_KIND_OTHER, .dtype = c->dtype, .parameter = MF_NONE};
    c->loss = mf_g_use(&c->b, mf_g_variable(&c->b, &v));
    mf_attr attr = {.loss = {.function = f,
                             .weight = 0.7,
                             .delta = 0.8,
                             .alpha = 0.25,
                             .gamma = 2,
                             .label_smoothing = weighted && !one_hot ? 0.1 : 0,
                             .axis = 2,
                             .reduction = weighted ? 2 : 0,
                             .balanced = weighted}};
    mf_g_op_in_place(&c->b, MF_OP_LOSS, &attr, 4, (uint32_t[]){pred, target, weight, c->loss}, 1, &c->loss);
}

/* What backward needs for its slope only, kept as bits: padded, so that nothing else reads it there. */
static void mask(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(3, 3, 5, 7, 0, 0), -3, 9);
    uint32_t y = mf_g_unary(&c->b, variant ? MF_UNARY_RELU6 : MF_UNARY_RELU, 0, 0, x);
    opcheck_output(c, mf_g_pad(&c->b, y, (int64_t[]){0, 1, 0}, (int64_t[]){0, 1, 2}, (int64_t[]){0, 0, 0}, 0, 0));
    c->masks = true;
}

const opcheck_case opcheck_cases[] = {
    {"matmul", matmul, 7},
    {"conv", conv, 9},
    {"conv_transposed", conv_transposed, 3},
    {"unary", unary, MF_UNARY_COUNT},
    {"mask", mask, 2},
    {"binary", binary, 24},
    {"select", select_by, 6},
    {"reduce", reduce, 24},
    {"softmax", softmax, 6},
    {"prelu", prelu, 2},
    {"sum_and_share", sum_and_share, 2},
    {"dropout", dropout, 2},
    {"structure", structure, 8},
    {"gather", gather, 4},
    {"resize", resize, 10},
    {"pool", pool, 12},
    {"batch_norm", batch_norm, 4},
    {"layer_norm", layer_norm, 6},
    {"recurrent", recurrent, 128},
    {"loss", loss, 2 * MF_LOSS_COUNT},
};
const size_t opcheck_case_count = sizeof opcheck_cases / sizeof *opcheck_cases;
