/*
 * group_cases.c: see group_cases.h: what networks put behind each other, with channels that vectors divide and others; small
 * sizes, and such that several blocks share a channel's rows.
 */
#include "group_cases.h"

#define SHAPE opcheck_shape

static const int64_t sizes[][4] = {{2, 5, 7, 8},  {3, 4, 5, 13},  {4, 31, 33, 64},
                                   {2, 3, 3, 24}, {9, 17, 19, 3}, {40, 14, 14, 256}};

static mf_shape images(int variant)
{
    const int64_t *s = sizes[variant % 6];
    return SHAPE(4, s[0], s[1], s[2], s[3], 0);
}

static mf_shape channels(int variant)
{
    return SHAPE(1, sizes[variant % 6][3], 0, 0, 0, 0);
}

/* Statistics are float32 where the data has 16 bits; gamma and beta as well. */
static mf_dtype vector_type(const opcheck *c)
{
    return c->dtype == MF_F64 ? MF_F64 : MF_F32;
}

static uint32_t normalized(opcheck *c, uint32_t x, int variant)
{
    mf_dtype dtype = c->dtype;
    c->dtype = vector_type(c);
    uint32_t gamma = opcheck_input(c, channels(variant), 0.5, 1.5), beta = opcheck_input(c, channels(variant), -1, 1);
    c->dtype = dtype;
    uint32_t out[3];
    mf_attr attr = {.norm = {.epsilon = 1e-3}};
    mf_g_op(&c->b, MF_OP_BATCH_NORM, &attr, 3, (uint32_t[]){x, gamma, beta}, 3, NULL, out);
    return out[0];
}

/* The end of a residual block: normalization, sum with the shortcut, activation; and all of it backwards. */
static void residual(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, images(variant), -2, 3), shortcut = opcheck_input(c, images(variant), -1, 1);
    uint32_t s = mf_g_binary(&c->b, MF_ADD, normalized(c, x, variant), shortcut);
    opcheck_output(c, mf_g_unary(&c->b, variant < 6 ? MF_UNARY_RELU : MF_UNARY_SILU, 0, 0, s));
}

/* A normalization with its activation inside, between two products; backwards the activation's slope comes from x. */
static void activated(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, images(variant), -2, 3), out[3];
    mf_dtype dtype = c->dtype;
    c->dtype = vector_type(c);
    uint32_t gamma = opcheck_input(c, channels(variant), 0.5, 1.5), beta = opcheck_input(c, channels(variant), -1, 4);
    c->dtype = dtype;
    mf_attr attr = {.norm = {.epsilon = 1e-3, .activation = variant < 6 ? MF_UNARY_RELU : MF_UNARY_RELU6}};
    mf_g_op(&c->b, MF_OP_BATCH_NORM, &attr, 3, (uint32_t[]){x, gamma, beta}, 3, NULL, out);
    int64_t n = sizes[variant % 6][3];
    uint32_t w = opcheck_input(c, SHAPE(2, n, n, 0, 0, 0), -1, 1);
    opcheck_output(c, mf_g_matmul(&c->b, out[0], w, MF_NONE, false, false, 1));
}

/* Two branches, both normalized. */
static void branches(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, images(variant), -2, 3), other = opcheck_input(c, images(variant), 1, 4);
    uint32_t a = normalized(c, mf_g_unary(&c->b, MF_UNARY_TANH, 0, 0, x), variant), b = normalized(c, other, variant);
    uint32_t s = mf_g_unary(&c->b, MF_UNARY_RELU, 0, 0, mf_g_binary(&c->b, MF_ADD, a, b));
    opcheck_output(c, mf_g_binary(&c->b, MF_MUL, s, x));
    opcheck_output(c, s);
}

/* Pointwise chains with operands of every reach. */
static void pointwise(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, images(variant), -2, 2), bias = opcheck_input(c, channels(variant), -1, 1);
    uint32_t one = opcheck_input(c, SHAPE(1, 1, 0, 0, 0, 0), 0.5, 1);
    const int64_t *s = sizes[variant % 6];
    uint32_t rows = opcheck_input(c, SHAPE(4, s[0], 1, 1, s[3], 0), 0.5, 1);
    uint32_t y = mf_g_binary(&c->b, MF_ADD, x, bias);
    y = mf_g_unary(&c->b, variant % 2 ? MF_UNARY_GELU : MF_UNARY_SILU, 0, 0, y);
    y = mf_g_binary(&c->b, MF_MUL, y, variant % 3 ? one : rows);
    y = mf_g_binary(&c->b, MF_MAX, y, x);
    y = mf_g_unary(&c->b, MF_UNARY_AFFINE, 0.5, 0.25, y);
    opcheck_output(c, mf_g_binary(&c->b, MF_SUB, y, x));
}

/* From one type to another and on. */
static void casts(opcheck *c, int variant)
{
    uint32_t x = opcheck_input(c, images(variant), -2, 2);
    uint32_t y = mf_g_cast(&c->b, x, c->dtype == MF_F32 ? MF_BF16 : MF_F32);
    y = mf_g_cast(&c->b, mf_g_unary(&c->b, MF_UNARY_SQUARE, 0, 0, y), c->dtype);
    opcheck_output(c, mf_g_binary(&c->b, MF_ADD, y, x));
}

/* Attention as layers are lowered: heads by transpositions or not, masks, causal, dropout; sizes of one tile and of several,
 * heads that the matrix units take and others. */
static void attention(opcheck *c, int variant)
{
    static const int64_t all[][6] = {{2, 3, 5, 7, 8, 8},    {1, 2, 70, 130, 16, 24}, {2, 2, 200, 90, 64, 64},
                                     {1, 1, 33, 64, 40, 8}, {2, 4, 17, 19, 5, 3},    {1, 2, 257, 257, 64, 64}};
    const int64_t *n = all[variant % 6];
    int form = variant / 6; /* plain, causal, masks of keys and pairs with dropout, all of them with weights of 0 */
    bool moved = variant % 2 == 0;
    uint32_t in[3], masks[2];
    for (int i = 0; i < 3; i++) {
        int64_t steps = i ? n[3] : n[2], width = i == 2 ? n[5] : n[4];
        in[i] = opcheck_input(c, moved ? SHAPE(4, n[0], steps, n[1], width, 0) : SHAPE(4, n[0], n[1], steps, width, 0),
                              -1.5, 1.5);
        in[i] = moved ? mf_g_transpose(&c->b, in[i], (uint32_t[]){0, 2, 1, 3}) : in[i];
    }
    uint32_t p = mf_g_matmul(&c->b, in[0], in[1], MF_NONE, false, true, 1 / sqrt((double)n[4]));
    double large = c->dtype == MF_F16 ? -3e4 : -1e9;
    if (form > 1) {
        masks[0] = opcheck_constant(c, MF_U8, SHAPE(4, n[0], 1, 1, n[3], 0), 0, 3, true);
        masks[1] = opcheck_constant(c, MF_U8, SHAPE(4, 1, 1, n[2], n[3], 0), 0, 4, true);
        for (int i = 0; i < 2; i++)
            p = mf_g_keep(&c->b, masks[i], p, large, false);
        p = form == 3 ? mf_g_keep(&c->b, MF_NONE, p, large, true) : p;
    }
    p = form == 1 ? mf_g_softmax_causal(&c->b, p) : mf_g_softmax(&c->b, p, 3, false);
    for (int i = 0; i < 2 && form == 3; i++)
        p = mf_g_keep(&c->b, masks[i], p, 0, false);
    p = form == 3 ? mf_g_keep(&c->b, MF_NONE, p, 0, true) : p;
    p = mf_g_dropout(&c->b, p, form > 1 ? 0.25 : 0, 3, 0);
    uint32_t y = mf_g_matmul(&c->b, p, in[2], MF_NONE, false, false, 1);
    opcheck_output(c, moved ? mf_g_transpose(&c->b, y, (uint32_t[]){0, 2, 1, 3}) : y);
}

/* The first layers of a network: a convolution of few channels, an activation, the largest of 2 x 2; cells that the pooling
 * leaves out, padding, several tiles of a row, several blocks, all numbers of channels that go with threads. */
static void conv_pool(opcheck *c, int variant)
{
    static const int64_t all[][9] = {/* images, height, width, channels in, out, kernel, stride, before, bias */
                                     {2, 9, 10, 3, 8, 3, 1, 0, 1},    {3, 12, 7, 1, 32, 3, 1, 1, 1},
                                     {2, 21, 18, 4, 16, 3, 2, 1, 0},  {2, 8, 300, 3, 32, 3, 1, 0, 1},
                                     {40, 33, 35, 2, 64, 4, 1, 2, 1}, {1, 13, 150, 1, 256, 5, 1, 0, 1}};
    const int64_t *v = all[variant % 6];
    mf_window w = {.dims = 2,
                   .kernel = {v[5], v[5]},
                   .stride = {v[6], v[6]},
                   .dilation = {1, 1},
                   .before = {v[7], v[7]},
                   .after = {v[7], v[7]},
                   .groups = 1};
    mf_window pool = {.dims = 2, .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}, .groups = 1};
    uint32_t x = opcheck_constant(c, c->dtype, SHAPE(4, v[0], v[1], v[2], v[3], 0), -1, 1, false);
    uint32_t f = opcheck_input(c, SHAPE(4, v[5], v[5], v[3], v[4], 0), -1, 1);
    uint32_t bias = v[8] ? opcheck_input(c, SHAPE(1, v[4], 0, 0, 0, 0), -1, 1) : MF_NONE;
    static const mf_unary functions[] = {MF_UNARY_RELU, MF_UNARY_RELU6, MF_UNARY_LINEAR};
    uint32_t y = mf_g_conv(&c->b, x, f, bias, &w);
    if (variant / 6 < 2)
        y = mf_g_unary(&c->b, functions[variant / 6], 0, 0, y);
    opcheck_output(c, mf_g_pool_max(&c->b, y, &pool));
}

/* Maximum pooling behind an activation, windows apart and over each other, channels that vectors divide and others. */
static void pool_act(opcheck *c, int variant)
{
    static const int64_t all[][6] = {/* images, height, width, channels, kernel, stride */
                                     {2, 8, 10, 16, 2, 2},
                                     {3, 9, 7, 13, 2, 2},
                                     {2, 13, 11, 64, 3, 2},
                                     {1, 40, 37, 24, 3, 1}};
    const int64_t *v = all[variant % 4];
    mf_window w = {.dims = 2, .kernel = {v[4], v[4]}, .stride = {v[5], v[5]}, .dilation = {1, 1}, .groups = 1};
    uint32_t x = opcheck_input(c, SHAPE(4, v[0], v[1], v[2], v[3], 0), -2, 8);
    uint32_t z = mf_g_unary(&c->b, variant < 4 ? MF_UNARY_RELU : MF_UNARY_RELU6, 0, 0, x);
    opcheck_output(c, mf_g_pool_max(&c->b, z, &w));
}

/* What a residual network does around a layer normalization, backwards: its gradient, added to the path around it, summed for
 * the bias before it; rows that a part of a warp, some warps or the block have, and others. */
static void norm_back(opcheck *c, int variant)
{
    static const int64_t all[][3] = {{3, 5, 8}, {2, 7, 36}, {4, 33, 256}, {5, 301, 768}, {2, 3, 1030}, {3, 17, 2048}};
    const int64_t *v = all[variant % 6];
    mf_dtype dtype = c->dtype;
    uint32_t x = opcheck_input(c, SHAPE(3, v[0], v[1], v[2], 0, 0), -1, 1);
    uint32_t bias = opcheck_input(c, SHAPE(1, v[2], 0, 0, 0, 0), -1, 1);
    c->dtype = vector_type(c);
    uint32_t gamma = opcheck_input(c, SHAPE(1, v[2], 0, 0, 0, 0), 0.5, 1.5),
             beta = opcheck_input(c, SHAPE(1, v[2], 0, 0, 0, 0), -1, 1);
    c->dtype = dtype;
    uint32_t y = mf_g_binary(&c->b, MF_ADD, x, bias), other = variant % 4 == 3 ? MF_NONE : gamma;
    uint32_t n = mf_g_layer_norm(&c->b, y, other, beta, 1e-3, 1, 0, variant / 6 == 1);
    uint32_t z = mf_g_unary(&c->b, MF_UNARY_TANH, 0, 0, n);
    z = mf_g_binary(&c->b, MF_ADD, y, z);
    opcheck_output(c, variant / 6 == 2 ? mf_g_binary(&c->b, MF_MUL, z, y) : z);
}

/* The gradient of a convolution's bias, summed where its slopes are made: behind a normalization (where the terms cancel),
 * behind an activation, behind a normalization with the path around it (where they do not). */
static void bias_sums(opcheck *c, int variant)
{
    const int64_t *v = sizes[variant % 6];
    mf_window w = {.dims = 2, .kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    uint32_t x = opcheck_constant(c, c->dtype, SHAPE(4, v[0], v[1], v[2], 2, 0), -1, 1, false);
    uint32_t f = opcheck_input(c, SHAPE(4, 1, 1, 2, v[3], 0), -1, 1);
    uint32_t y = mf_g_conv(&c->b, x, f, opcheck_input(c, channels(variant), -1, 1), &w);
    uint32_t z = variant / 6 == 1 ? y : normalized(c, y, variant);
    if (variant / 6 < 2)
        z = mf_g_unary(&c->b, variant % 2 ? MF_UNARY_RELU6 : MF_UNARY_RELU, 0, 0, z);
    opcheck_output(c, variant / 6 == 2 ? mf_g_binary(&c->b, MF_MUL, z, y) : z);
}

/* Logits and their loss, with a number of classes that is no multiple of eight, few and many. */
static void filled_rows(opcheck *c, int variant)
{
    static const int64_t all[][3] = {{6, 16, 11}, {37, 24, 203}, {130, 32, 1003}}; /* rows, units, classes */
    const int64_t *v = all[variant % 3];
    uint32_t x = opcheck_input(c, SHAPE(2, v[0], v[1], 0, 0, 0), -1, 1);
    uint32_t w = opcheck_input(c, SHAPE(2, v[1], v[2], 0, 0, 0), -1, 1);
    uint32_t bias = variant < 3 ? MF_NONE : opcheck_input(c, SHAPE(1, v[2], 0, 0, 0, 0), -1, 1);
    uint32_t target = opcheck_constant(c, MF_I32, SHAPE(1, v[0], 0, 0, 0, 0), 0, (double)v[2], true);
    mf_variable loss = {
        .name = "loss", .role = MF_VAR_LOSS, .kind = MEMFIT_KIND_OTHER, .dtype = vector_type(c), .parameter = MF_NONE};
    c->loss = mf_g_use(&c->b, mf_g_variable(&c->b, &loss));
    mf_attr attr = {.loss = {.function = MF_LOSS_SCCE_LOGITS, .weight = 0.7, .axis = 1}};
    uint32_t y = mf_g_matmul(&c->b, x, w, bias, false, false, 1);
    if (variant % 2)
        y = mf_g_cast(&c->b, y, vector_type(c));
    mf_g_op_in_place(&c->b, MF_OP_LOSS, &attr, 4, (uint32_t[]){y, target, MF_NONE, c->loss}, 1, &c->loss);
}

const opcheck_case group_cases[] = {
    {"activated", activated, 12},       {"residual", residual, 12},  {"branches", branches, 6},
    {"pointwise chain", pointwise, 12}, {"casts", casts, 6},         {"conv pool", conv_pool, 18},
    {"bias sums", bias_sums, 18},       {"pool act", pool_act, 8},   {"filled rows", filled_rows, 6},
    {"norm back", norm_back, 18},       {"attention", attention, 24}};
const size_t group_case_count = sizeof group_cases / sizeof *group_cases;
