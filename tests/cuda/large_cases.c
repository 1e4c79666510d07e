/* large_cases.c: see large_cases.h. Sizes are odd on purpose: no tile, block or vector divides them. */
#include "large_cases.h"

#include "graph/augment.h"
#include "graph/passes/optimizer.h"

#define SHAPE opcheck_shape

static void matmul(opcheck *c, int variant)
{
    static const int64_t sizes[][3] = {{129, 67, 301}, {1, 513, 70}, {300, 1, 33}, {64, 256, 128}};
    const int64_t *s = sizes[variant];
    uint32_t a = opcheck_input(c, SHAPE(2, s[0], s[1], 0, 0, 0), -1, 1),
             b = opcheck_input(c, SHAPE(2, s[1], s[2], 0, 0, 0), -1, 1);
    uint32_t bias = opcheck_input(c, SHAPE(1, s[2], 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_matmul(&c->b, a, b, bias, false, false, 1));
    uint32_t p = opcheck_input(c, SHAPE(4, 3, 5, s[0], s[1] + 1, 0), -1, 1);
    uint32_t q = opcheck_input(c, SHAPE(4, 3, 5, 19, s[1] + 1, 0), -1, 1);
    opcheck_output(c, mf_g_matmul(&c->b, p, q, MF_NONE, false, true, 0.125));
}

/* Products that add to what is there, single numbers and vectors among them. */
static void adding(opcheck *c, int variant)
{
    static const int64_t sizes[][3] = {{1, 45, 1}, {1, 45, 7}, {9, 45, 1}, {33, 129, 65}, {1, 4097, 1}, {128, 256, 64}};
    const int64_t *s = sizes[variant];
    uint32_t a = opcheck_constant(c, c->dtype, SHAPE(2, s[1], s[0], 0, 0, 0), -1, 1, false);
    uint32_t b = opcheck_constant(c, c->dtype, SHAPE(2, s[1], s[2], 0, 0, 0), -1, 1, false);
    mf_variable v = {.name = "sum",
                     .role = MF_VAR_GRADIENT,
                     .kind = MEMFIT_KIND_GRADIENTS,
                     .dtype = c->dtype,
                     .shape = SHAPE(2, s[0], s[2], 0, 0, 0),
                     .parameter = MF_NONE};
    uint32_t sum = mf_g_use(&c->b, mf_g_variable(&c->b, &v));
    mf_attr attr = {.matmul = {.trans_a = true, .scale = 1}};
    mf_g_clear(&c->b, sum, 0.75);
    mf_g_op_in_place(&c->b, MF_OP_MATMUL, &attr, 3, (uint32_t[]){a, b, MF_NONE}, 1, &sum);
    if (mf_build_ok(&c->b))
        c->b.graph->ops[c->b.graph->op_count - 1].accumulate = true;
}

/* A few rows and columns over a long axis, forward and both gradients. */
static void thin(opcheck *c, int variant)
{
    static const int64_t sizes[][3] = {{3, 10, 70001}, {33, 10, 65541}, {1, 1, 66000}, {70, 16, 65536}};
    const int64_t *s = sizes[variant];
    uint32_t x = opcheck_input(c, SHAPE(2, s[0], s[2], 0, 0, 0), -1, 1);
    uint32_t w = opcheck_input(c, SHAPE(2, s[2], s[1], 0, 0, 0), -1, 1);
    uint32_t bias = variant % 2 ? MF_NONE : opcheck_input(c, SHAPE(1, s[1], 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_matmul(&c->b, x, w, bias, false, false, variant == 1 ? 0.5 : 1));
}

static void conv(opcheck *c, int variant)
{
    static const struct {
        int64_t n, h, w, in, out, kernel, stride, dilation, groups;
        const char *padding;
    } v[] = {{3, 17, 19, 8, 16, 3, 1, 1, 1, "same"},    {2, 30, 31, 3, 24, 7, 2, 1, 1, "same"},
             {2, 14, 14, 32, 64, 1, 1, 1, 1, "valid"},  {2, 15, 13, 24, 24, 3, 1, 1, 24, "same"},
             {2, 16, 16, 16, 32, 3, 2, 1, 4, "valid"},  {2, 12, 18, 5, 7, 3, 1, 2, 1, "same"},
             {2, 9, 11, 144, 144, 3, 1, 1, 144, "same"}};
    mf_window w = {.dims = 2,
                   .kernel = {v[variant].kernel, v[variant].kernel},
                   .stride = {v[variant].stride, v[variant].stride},
                   .dilation = {v[variant].dilation, v[variant].dilation},
                   .groups = v[variant].groups};
    assert_true(mf_window_pad(&w, v[variant].padding, (int64_t[]){v[variant].h, v[variant].w}));
    uint32_t x = opcheck_input(c, SHAPE(4, v[variant].n, v[variant].h, v[variant].w, v[variant].in, 0), -1, 1);
    uint32_t k = opcheck_input(
        c, SHAPE(4, v[variant].kernel, v[variant].kernel, v[variant].in / v[variant].groups, v[variant].out, 0), -1, 1);
    uint32_t bias = variant % 2 ? MF_NONE : opcheck_input(c, SHAPE(1, v[variant].out, 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_conv(&c->b, x, k, bias, &w));
}

/* One cell seen, many channels made few; forward and gradients. */
static void few_results(opcheck *c, int variant)
{
    static const int64_t sizes[][5] = {{2, 13, 17, 64, 1}, {3, 9, 7, 16, 3}, {1, 33, 40, 96, 4}, {2, 21, 37, 256, 2}};
    const int64_t *s = sizes[variant];
    mf_window w = {.dims = 2, .kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    uint32_t x = opcheck_input(c, SHAPE(4, s[0], s[1], s[2], s[3], 0), -1, 1);
    uint32_t k = opcheck_input(c, SHAPE(4, 1, 1, s[3], s[4], 0), -1, 1);
    uint32_t bias = variant == 1 ? MF_NONE : opcheck_input(c, SHAPE(1, s[4], 0, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_conv(&c->b, x, k, bias, &w));
}

static void reduce(opcheck *c, int variant)
{
    static const struct {
        int64_t dim[3];
        uint32_t axes;
    } v[] = {{{1, 1, 70001}, 4}, {{5003, 1, 7}, 1}, {{7, 901, 33}, 2}, {{33, 65, 129}, 5}, {{3000, 40, 1}, 2}};
    uint32_t x = opcheck_input(c, mf_shape_make(3, v[variant / 3].dim), 0.2, 1.5);
    static const mf_reduce functions[] = {MF_REDUCE_SUM, MF_REDUCE_MEAN, MF_REDUCE_MAX};
    opcheck_output(c, mf_g_reduce(&c->b, functions[variant % 3], x, v[variant / 3].axes, variant % 2));
}

static void softmax(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, variant < 4 ? SHAPE(2, 37, 1003, 0, 0, 0) : SHAPE(3, 3, 130, 130, 0, 0), -3, 3);
    if (variant == 4)
        opcheck_output(c, mf_g_softmax_causal(&c->b, x));
    else if (variant == 3)
        opcheck_output(c, mf_g_sparsemax(&c->b, x, 1));
    else
        opcheck_output(c, mf_g_softmax(&c->b, x, variant < 2, variant == 1));
}

static void norm(opcheck *c, int variant)
{
    uint32_t mean, variance;
    uint32_t x = opcheck_input(c, SHAPE(4, 6, 21, 23, 36, 0), -1, 3);
    uint32_t gamma = opcheck_input(c, SHAPE(1, 36, 0, 0, 0, 0), 0.5, 2),
             beta = opcheck_input(c, SHAPE(1, 36, 0, 0, 0, 0), -1, 1);
    if (variant == 0)
        opcheck_output(c, mf_g_batch_norm(&c->b, x, gamma, beta, 1e-3, &mean, &variance));
    else
        opcheck_output(c, mf_g_layer_norm(&c->b, x, gamma, beta, 1e-3, 1, variant == 2 ? 4 : 0, variant == 3));
}

static void pool(opcheck *c, int variant)
{
    mf_window w = {.dims = 2, .kernel = {3, 3}, .stride = {2, 2}, .dilation = {1, 1}, .groups = 1};
    assert_true(mf_window_pad(&w, "same", (int64_t[]){33, 17}));
    uint32_t x = opcheck_input(c, SHAPE(4, 3, 33, 17, 19, 0), -1, 1);
    opcheck_output(c, variant ? mf_g_pool_avg(&c->b, x, &w) : mf_g_pool_max(&c->b, x, &w));
}

static void loss(opcheck *c, int variant)
{
    static const mf_loss functions[] = {MF_LOSS_SCCE_LOGITS, MF_LOSS_CCE_LOGITS, MF_LOSS_MSE, MF_LOSS_HINGE};
    mf_loss f = functions[variant];
    uint32_t pred = opcheck_input(c, SHAPE(2, 517, 203, 0, 0, 0), -2, 2);
    uint32_t target = f == MF_LOSS_SCCE_LOGITS
                          ? opcheck_constant(c, MF_I32, SHAPE(1, 517, 0, 0, 0, 0), 0, 203, true)
                          : opcheck_constant(c, c->dtype, SHAPE(2, 517, 203, 0, 0, 0), 0, 2, f == MF_LOSS_HINGE);
    if (f == MF_LOSS_CCE_LOGITS)
        target = mf_g_softmax(&c->b, target, 1, false);
    mf_variable v = {
        .name = "loss", .role = MF_VAR_LOSS, .kind = MEMFIT_KIND_OTHER, .dtype = c->dtype, .parameter = MF_NONE};
    c->loss = mf_g_use(&c->b, mf_g_variable(&c->b, &v));
    mf_attr attr = {.loss = {.function = f, .weight = 0.7, .axis = 1}};
    mf_g_op_in_place(&c->b, MF_OP_LOSS, &attr, 4, (uint32_t[]){pred, target, MF_NONE, c->loss}, 1, &c->loss);
}

static void gather(opcheck *c, int variant)
{
    uint32_t table = opcheck_input(c, SHAPE(2, 321, 129, 0, 0, 0), -1, 1);
    /* variant 1: a few rows have most of them */
    uint32_t index = opcheck_constant(c, MF_I32, SHAPE(2, variant ? 70 : 7, 91, 0, 0, 0), 0, variant ? 5 : 321, true);
    opcheck_output(c, mf_g_gather(&c->b, table, index));
}

static void pointwise(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, SHAPE(4, 5, 31, 33, 17, 0), -2, 2),
             y = opcheck_input(c, SHAPE(3, 31, 1, 17, 0, 0), -2, 2);
    uint32_t r = mf_g_unary(&c->b, variant ? MF_UNARY_GELU : MF_UNARY_RELU, 0, 0,
                            mf_g_binary(&c->b, variant ? MF_MUL : MF_ADD, x, y));
    r = mf_g_dropout(&c->b, r, 0.3, 5, 0);
    opcheck_output(c, mf_g_transpose(&c->b, r, (uint32_t[]){0, 2, 3, 1}));
    c->masks = variant;
}

static void recurrent(opcheck *c, int variant)
{
    uint32_t z = opcheck_input(c, SHAPE(3, 5, 9, 4 * 130, 0, 0), -1, 1),
             u = opcheck_input(c, SHAPE(2, 130, 4 * 130, 0, 0, 0), -0.1, 0.1);
    mf_rnn_result r = mf_g_lstm(&c->b, z, u, MF_NONE, MF_NONE, MF_NONE, variant, MF_UNARY_TANH, MF_UNARY_SIGMOID);
    opcheck_output(c, r.sequence);
}

/* Units that the matrix units take, samples that do not fill a block: plain, backwards, with states and a mask, both. */
static void lstm_tiles(opcheck *c, int variant)
{
    static const int64_t of[] = {32, 96, 256};
    const int64_t n = of[variant / 4], batch = variant / 4 == 0 ? 19 : 5, time = variant / 4 == 0 ? 3 : 7;
    bool states = variant & 2;
    uint32_t z = opcheck_input(c, SHAPE(3, batch, time, 4 * n, 0, 0), -1, 1),
             u = opcheck_input(c, SHAPE(2, n, 4 * n, 0, 0, 0), -0.2, 0.2), h0 = MF_NONE, c0 = MF_NONE, mask = MF_NONE;
    if (states) {
        h0 = opcheck_input(c, SHAPE(2, batch, n, 0, 0, 0), -1, 1);
        c0 = opcheck_input(c, SHAPE(2, batch, n, 0, 0, 0), -1, 1);
        mask = opcheck_constant(c, MF_U8, SHAPE(2, batch, time, 0, 0, 0), 0, 2, true);
    }
    mf_rnn_result r = mf_g_lstm(&c->b, z, u, h0, c0, mask, variant & 1, MF_UNARY_TANH, MF_UNARY_SIGMOID);
    opcheck_output(c, r.sequence);
    if (states)
        opcheck_output(c, r.last_cell);
}

static void augment(opcheck *c, int variant)
{
    static const double a[MF_AUGMENT_COUNT][8] = {{3},
                                                  {-0.1, 0.1, 0, 0, 0, 0, 0.5, 0},
                                                  {-0.2, 0.3, -0.1, 0.2, 1, 1, 0.5, 1},
                                                  {-0.2, 0.2, -0.3, 0.3, 0, 2, 0.25, 0},
                                                  {-0.3, 0.3, -0.2, 0.2, 0, 3, 0, 0},
                                                  {0.5, 1.5, 0, 1},
                                                  {-0.2, 0.2, 0, 1},
                                                  {0},
                                                  {0.5},
                                                  {0.5, 0, 0, 1}};
    uint32_t x = opcheck_constant(c, c->dtype, SHAPE(4, 5, 13, 11, 3, 0), 0, 1, false);
    mf_attr attr = {.augment = {.function = (uint32_t)variant, .key = 9}};
    memcpy(attr.augment.a, a[variant], sizeof attr.augment.a);
    bool crop = variant == MF_AUGMENT_CROP;
    mf_typed out = {c->dtype, crop ? SHAPE(4, 5, 9, 7, 3, 0) : SHAPE(4, 5, 13, 11, 3, 0)};
    uint32_t y;
    mf_g_op(&c->b, MF_OP_AUGMENT, &attr, 1, &x, 1, &out, &y);
    opcheck_output(c, y);
}

static void random_numbers(opcheck *c, int variant)
{
    opcheck_output(c, mf_g_random(&c->b, c->dtype, SHAPE(3, 7, 33, 5, 0, 0), (uint32_t)variant % 4, 0.25, 0.75, 11,
                                  variant < 4 ? 0 : 2));
}

/* Parameters and slots are inputs that are changed in place. */
static void update(opcheck *c, int variant)
{
    static const uint32_t slots[MF_OPTIMIZER_COUNT] = {1, 3, 3, 2, 3, 2, 1, 2, 3, 1, 2, 2};
    mf_optimizer_settings settings;
    mf_optimizer optimizer = (mf_optimizer)(variant / 2);
    mf_optimizer_defaults(optimizer, &settings);
    mf_attr attr = {.update = settings.update};
    attr.update.momentum =
        optimizer == MF_OPTIMIZER_SGD || optimizer == MF_OPTIMIZER_RMSPROP ? 0.9 : attr.update.momentum;
    attr.update.centered = attr.update.amsgrad = true;
    attr.update.nesterov = variant % 2;
    attr.update.has_weight_decay = variant % 2;
    attr.update.weight_decay = 0.01;
    mf_shape shape = variant % 2 ? SHAPE(3, 3, 41, 53, 0, 0) : SHAPE(1, 4099, 0, 0, 0, 0);
    uint32_t in[8], out[5], n = 0;
    for (uint32_t i = 0; i < 2 + slots[optimizer]; i++) {
        mf_shape s = shape;
        bool factored = optimizer == MF_OPTIMIZER_ADAFACTOR && shape.rank > 1;
        if (i >= 2 && factored && i - 2 == 0)
            s = SHAPE(2, 3, 41, 0, 0, 0);
        if (i >= 2 && factored && i - 2 == 1)
            s = SHAPE(2, 3, 53, 0, 0, 0);
        if (optimizer == MF_OPTIMIZER_ADAFACTOR && !factored && i - 2 < 2 && i >= 2) {
            in[n++] = MF_NONE;
            continue;
        }
        if (optimizer == MF_OPTIMIZER_NADAM && i == 4)
            s = SHAPE(0, 0, 0, 0, 0, 0);
        mf_variable v = {.name = "v",
                         .role = i == 0 ? MF_VAR_PARAMETER : MF_VAR_SLOT,
                         .kind = MEMFIT_KIND_OTHER,
                         .dtype = c->dtype == MF_F64 ? MF_F64 : MF_F32,
                         .shape = s,
                         .parameter = MF_NONE,
                         .initial = 0};
        if (i == 1)
            in[n++] = opcheck_constant(c, v.dtype, s, -1, 1, false);
        else
            in[n++] = mf_g_use(&c->b, mf_g_variable(&c->b, &v));
    }
    uint32_t outs = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i != 1)
            out[outs++] = in[i];
    /* something in the parameters and slots before they are changed */
    for (uint32_t i = 0; i < outs; i++)
        if (out[i] != MF_NONE)
            mf_g_clear(&c->b, out[i], 0.25);
    mf_g_op_in_place(&c->b, MF_OP_UPDATE, &attr, n, in, outs, out);
}

/* SGD and Adam of float32 variables, the gradient in 16 bits where the case is: less than a vector, a rest behind vectors, many
 * blocks. */
static void quick_update(opcheck *c, int variant)
{
    static const int64_t sizes[] = {3, 9001, 2200004};
    static const uint32_t slots[] = {0, 1, 1, 2, 2};
    int form = variant % 5;
    mf_attr attr = {.update = {.optimizer = form < 3    ? MF_OPTIMIZER_SGD
                                            : form == 3 ? MF_OPTIMIZER_ADAM
                                                        : MF_OPTIMIZER_ADAMW,
                               .momentum = form == 0 ? 0 : 0.9,
                               .nesterov = form == 2,
                               .beta_1 = 0.9,
                               .beta_2 = 0.999,
                               .epsilon = 1e-7,
                               .has_weight_decay = form == 2 || form == 4,
                               .weight_decay = 0.01}};
    mf_shape shape = SHAPE(1, sizes[variant / 5], 0, 0, 0, 0);
    uint32_t in[4], out[3], outs = 0;
    for (uint32_t i = 0; i < 2 + slots[form]; i++) {
        mf_variable v = {.name = "v",
                         .role = i == 0 ? MF_VAR_PARAMETER : MF_VAR_SLOT,
                         .kind = MEMFIT_KIND_OTHER,
                         .dtype = c->dtype == MF_F64 ? MF_F64 : MF_F32,
                         .shape = shape,
                         .parameter = MF_NONE};
        in[i] = i == 1 ? opcheck_constant(c, c->dtype, shape, -1, 1, false) : mf_g_use(&c->b, mf_g_variable(&c->b, &v));
        if (i != 1)
            out[outs++] = in[i];
    }
    for (uint32_t i = 0; i < outs; i++)
        mf_g_clear(&c->b, out[i], 0.25);
    mf_g_op_in_place(&c->b, MF_OP_UPDATE, &attr, 2 + slots[form], in, outs, out);
}

/* A weight in 16 bits, and a moving average. */
static void weights(opcheck *c, int variant)
{
    mf_shape shape = SHAPE(1, variant ? 70003 : 5, 0, 0, 0, 0);
    mf_variable v = {.name = "v", .kind = MEMFIT_KIND_OTHER, .dtype = MF_F32, .shape = shape, .parameter = MF_NONE};
    uint32_t w = mf_g_use(&c->b, mf_g_variable(&c->b, &v)), value = opcheck_constant(c, MF_F32, shape, -1, 1, false);
    mf_g_clear(&c->b, w, 0.3);
    mf_g_moving_average(&c->b, value, w, 0.9);
    if (c->dtype != MF_F32)
        opcheck_output(c, mf_g_cast(&c->b, w, c->dtype));
}

/* Moves that leave the last axis alone: several elements go as one where its size allows. */
static void moves(opcheck *c, int variant)
{
    int64_t last = variant == 0 ? 8 : variant == 1 ? 6 : 5;
    uint32_t x = opcheck_input(c, SHAPE(4, 3, 5, 7, last, 0), -1, 1),
             y = opcheck_input(c, SHAPE(4, 3, 2, 7, last, 0), -1, 1);
    opcheck_output(c, mf_g_transpose(&c->b, x, (uint32_t[]){0, 2, 1, 3}));
    opcheck_output(c,
                   mf_g_slice(&c->b, x, (int64_t[]){0, 1, 2, 0}, (int64_t[]){3, 2, 3, last}, (int64_t[]){1, 2, 1, 1}));
    opcheck_output(c,
                   mf_g_pad(&c->b, x, (int64_t[]){0, 1, 2, 0}, (int64_t[]){0, 0, 1, 0}, (int64_t[]){0, 0, 0, 0}, 0, 0));
    opcheck_output(c, mf_g_concat(&c->b, 2, (uint32_t[]){x, y}, 1));
    opcheck_output(c, mf_g_concat(&c->b, 2, (uint32_t[]){y, y}, 3));
}

/* Rows that are no multiple of 16 bytes long in 16 bits, in each of the factors and the result, with bias and without; its
 * gradients turn them around. */
static void odd_product(opcheck *c, int variant)
{
    static const int64_t all[][3] = {{130, 72, 131}, {128, 129, 128}, {257, 64, 1001}, {96, 131, 77}};
    const int64_t *n = all[variant % 4];
    bool deep = variant >= 4;
    uint32_t x = opcheck_input(c, deep ? SHAPE(3, 2, n[0], n[1], 0, 0) : SHAPE(2, n[0], n[1], 0, 0, 0), -1, 1);
    uint32_t w = opcheck_input(c, SHAPE(2, n[1], n[2], 0, 0, 0), -1, 1);
    uint32_t bias = variant % 2 ? opcheck_input(c, SHAPE(1, n[2], 0, 0, 0, 0), -1, 1) : MF_NONE;
    opcheck_output(c, mf_g_matmul(&c->b, x, w, bias, false, false, 1));
}

const opcheck_case large_cases[] = {
    {"thin product", thin, 4},
    {"odd product", odd_product, 8},
    {"large matmul", matmul, 4},
    {"adding matmul", adding, 6},
    {"large conv", conv, 7},
    {"few results", few_results, 4},
    {"large reduce", reduce, 15},
    {"large softmax", softmax, 5},
    {"large norm", norm, 4},
    {"large pool", pool, 2},
    {"large loss", loss, 4},
    {"quick update", quick_update, 15},
    {"weights", weights, 2},
    {"large moves", moves, 3},
    {"large gather", gather, 2},
    {"large pointwise", pointwise, 2},
    {"large recurrent", recurrent, 2},
    {"lstm tiles", lstm_tiles, 12},
    {"augment", augment, MF_AUGMENT_COUNT},
    {"random", random_numbers, 8},
    {"update", update, 2 * MF_OPTIMIZER_COUNT},
};
const size_t large_case_count = sizeof large_cases / sizeof *large_cases;
