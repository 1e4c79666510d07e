/*
 * test_dnn_reads.c: what lies around the operands of a convolution or a product decides nothing. Each of many small random
 * ones runs with its operands and its workspace in zeros, in NaNs and in huge numbers, and gives the same bits. Libraries load
 * whole vectors and mask what is beyond; where a mask is forgotten the result depends on the neighbours.
 */
#include "test.h"

#include "base/memory.h"
#include "ops/cpu/dnn/onednn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { AROUND = 1024, MOST = 1 << 16, OPERANDS = 4, FILLS = 3 };

static uint64_t drawn = 88172645463325252ull;

static int64_t draw(int64_t least, int64_t most)
{
    drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
    return least + (int64_t)(drawn % (uint64_t)(most - least + 1));
}

/* Operands, then the workspace; the first `inputs` are given, the others written. */
typedef struct subject {
    uint64_t count[OPERANDS];
    int operands, inputs;
} subject;

static float *place[FILLS][OPERANDS + 1];

static void surround(float *at, uint64_t count, float fill, bool given)
{
    for (uint64_t i = 0; i < count + 2 * AROUND; i++)
        at[i] = fill;
    for (uint64_t i = 0; given && i < count; i++)
        at[AROUND + i] = (float)((i * 37 + count) % 64) / 32 - 1;
}

/* The same bits whatever lies around? */
static bool is_alone(mf_dnn *made, const subject *s)
{
    static const float fills[FILLS] = {0, NAN, 1e30f};
    for (int f = 0; f < FILLS; f++) {
        void *at[OPERANDS];
        for (int i = 0; i < s->operands; i++) {
            surround(place[f][i], s->count[i], fills[f], i < s->inputs);
            at[i] = place[f][i] + AROUND;
        }
        surround(place[f][OPERANDS], MOST, fills[f], false);
        assert_int_equal(mf_dnn_run(made, at, place[f][OPERANDS] + AROUND, NULL), MEMFIT_OK);
    }
    bool same = true;
    for (int f = 1; f < FILLS; f++)
        for (int i = s->inputs; i < s->operands; i++)
            same &= !memcmp(place[0][i] + AROUND, place[f][i] + AROUND, s->count[i] * sizeof(float));
    return same;
}

static void draw_conv(mf_dnn_conv *c, subject *s)
{
    *c = (mf_dnn_conv){.direction = (mf_dnn_direction)draw(0, 2),
                       .dims = (int)draw(1, 3),
                       .batch = draw(1, 3),
                       .in_channels = draw(1, 5),
                       .out_channels = draw(1, 20),
                       .groups = 1};
    c->bias = c->direction != MF_DNN_GRAD_DATA && draw(0, 1);
    if (draw(0, 2) == 0) /* what convolutions of one channel are made of */
        c->in_channels = 1;
    uint64_t x = (uint64_t)(c->batch * c->in_channels), y = (uint64_t)(c->batch * c->out_channels);
    uint64_t w = (uint64_t)(c->in_channels * c->out_channels);
    for (int i = 0; i < c->dims; i++) {
        c->kernel[i] = draw(1, 4);
        c->in[i] = draw(c->kernel[i], c->kernel[i] + (c->dims == 3 ? 3 : 8));
        c->stride[i] = draw(1, 3);
        c->dilation[i] = 1;
        c->before[i] = draw(0, 1) ? (c->kernel[i] - 1) / 2 : 0;
        c->out[i] = (c->in[i] + 2 * c->before[i] - c->kernel[i]) / c->stride[i] + 1;
        c->after[i] = (c->out[i] - 1) * c->stride[i] + c->kernel[i] - c->in[i] - c->before[i];
        x *= (uint64_t)c->in[i], y *= (uint64_t)c->out[i], w *= (uint64_t)c->kernel[i];
    }
    const uint64_t b = (uint64_t)c->out_channels;
    if (c->direction == MF_DNN_FORWARD)
        *s = c->bias ? (subject){{x, w, b, y}, 4, 3} : (subject){{x, w, y}, 3, 2};
    else if (c->direction == MF_DNN_GRAD_DATA)
        *s = (subject){{y, w, x}, 3, 2};
    else
        *s = (subject){{x, y, w, b}, c->bias ? 4 : 3, 2};
}

static mf_dnn_engine *engine;

static void convolutions(void **state)
{
    (void)state;
    for (int n = 0; n < 1500; n++) {
        mf_dnn_conv c;
        subject s;
        mf_dnn *made = NULL;
        uint64_t workspace;
        draw_conv(&c, &s);
        if (mf_dnn_conv_make(engine, &c, &made, &workspace, NULL) != MEMFIT_OK || workspace / sizeof(float) > MOST) {
            mf_dnn_destroy(made);
            continue;
        }
        if (!is_alone(made, &s))
            fail_msg("the %dth: direction %d, %d dimensions, %d channels to %d, row of %d to %d, %d taps, stride %d", n,
                     (int)c.direction, c.dims, (int)c.in_channels, (int)c.out_channels, (int)c.in[c.dims - 1],
                     (int)c.out[c.dims - 1], (int)c.kernel[c.dims - 1], (int)c.stride[c.dims - 1]);
        mf_dnn_destroy(made);
    }
}

static void products(void **state)
{
    (void)state;
    for (int n = 0; n < 500; n++) {
        mf_dnn_matmul m = {
            .batch_a = 1, .batch_b = 1, .m = draw(1, 20), .n = draw(1, 40), .k = draw(1, 40), .scale = 1};
        m.trans_a = draw(0, 1), m.trans_b = draw(0, 1), m.bias = draw(0, 3) == 0;
        mf_dnn *made = NULL;
        uint64_t workspace, a = (uint64_t)(m.m * m.k), b = (uint64_t)(m.k * m.n), c = (uint64_t)(m.m * m.n);
        if (mf_dnn_matmul_make(engine, &m, &made, &workspace, NULL) != MEMFIT_OK)
            continue;
        subject s = m.bias ? (subject){{a, b, (uint64_t)m.n, c}, 4, 3} : (subject){{a, b, c}, 3, 2};
        assert_true(workspace / sizeof(float) <= MOST);
        if (!is_alone(made, &s))
            fail_msg("the %dth: %d x %d x %d, %d%d", n, (int)m.m, (int)m.k, (int)m.n, m.trans_a, m.trans_b);
        mf_dnn_destroy(made);
    }
}

int main(void)
{
    if (!mf_dnn_compiles())
        return 77; /* own kernels alone */
    for (int f = 0; f < FILLS; f++)
        for (int i = 0; i <= OPERANDS; i++)
            if (posix_memalign((void **)&place[f][i], 64, (MOST + 2 * AROUND) * sizeof(float)))
                return 1;
    if (mf_dnn_engine_create(mf_host_default(), 2, NULL, &engine, NULL) != MEMFIT_OK)
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(convolutions), cmocka_unit_test(products)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    mf_dnn_engine_destroy(engine);
    for (int f = 0; f < FILLS; f++)
        for (int i = 0; i <= OPERANDS; i++)
            free(place[f][i]);
    return failed;
}
