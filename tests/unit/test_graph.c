/* test_graph.c: building graphs, shapes, the backward pass, what vanishes, and lack of memory. */
#include "graph_parts.h"

#include "graph/passes/optimizer.h"

#include "graph/build.h"

static mf_window window_of(uint32_t d, int64_t kernel, int64_t stride, const char *padding, const int64_t *spatial)
{
    mf_window w = {.dims = d, .groups = 1};
    for (uint32_t i = 0; i < d; i++) {
        w.kernel[i] = kernel;
        w.stride[i] = stride;
        w.dilation[i] = 1;
    }
    assert_true(mf_window_pad(&w, padding, spatial));
    return w;
}

/* conv, relu, pool, flatten, dense; gradients of kernel, bias and weights */
static memfit_status small_network(const memfit_host *host, mf_graph **graph, uint32_t *gradients, memfit_error *err)
{
    mf_build b;
    mf_build_begin(&b, host, err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, dims(4, 2, 8, 8, 3));
    uint32_t k = parameter(&b, dims(4, 3, 3, 3, 4)), c = parameter(&b, dims(1, 4, 0, 0, 0));
    mf_window same = window_of(2, 3, 1, "same", (int64_t[]){8, 8});
    mf_window pool = window_of(2, 2, 2, "valid", (int64_t[]){8, 8});
    uint32_t y = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_conv(&b, x, k, c, &same));
    y = mf_g_pool_max(&b, y, &pool);
    y = mf_g_view(&b, y, dims(2, 2, 64, 0, 0));
    uint32_t w = parameter(&b, dims(2, 64, 5, 0, 0));
    y = mf_g_matmul(&b, y, w, MF_NONE, false, false, 1);
    mf_g_unary(&b, MF_UNARY_TANH, 0, 0, y); /* dead */
    uint32_t loss = mf_g_reduce(&b, MF_REDUCE_SUM, y, 3, false);
    uint32_t one = mf_g_fill(&b, MF_F32, (mf_shape){0}, 1);
    mf_g_backward(&b, 1, &loss, &one, 3, (uint32_t[]){k, c, w}, gradients);
    return mf_build_end_keeping(&b, 3, gradients, graph);
}

static uint32_t count_kind(const mf_graph *g, mf_op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        n += g->ops[i].kind == kind;
    return n;
}

static void backward_pass_of_a_small_network(void **state)
{
    (void)state;
    mf_graph *g = NULL;
    memfit_error err;
    uint32_t d[3];
    assert_ok(small_network(NULL, &g, d, &err), err);
    assert_ok(mf_graph_check(g, &err), err);
    assert_int_equal(count_kind(g, MF_OP_CONV_GRAD_WEIGHTS), 1);
    assert_int_equal(count_kind(g, MF_OP_CONV_GRAD_DATA), 0); /* nothing wants the input's gradient */
    assert_int_equal(count_kind(g, MF_OP_POOL_MAX_GRAD), 1);
    assert_int_equal(count_kind(g, MF_OP_UNARY), 1); /* the dead tanh is gone */
    mf_shape k = dims(4, 3, 3, 3, 4), c = dims(1, 4, 0, 0, 0), w = dims(2, 64, 5, 0, 0);
    assert_true(mf_shape_equal(&g->tensors[d[0]].shape, &k));
    assert_true(mf_shape_equal(&g->tensors[d[1]].shape, &c));
    assert_true(mf_shape_equal(&g->tensors[d[2]].shape, &w));
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_UNARY_GRAD) {
            assert_true(g->ops[i].attr.unary.from_output);
            assert_int_equal(mf_kind(MF_OP_UNARY_GRAD)->inplace_in, 0);
        }
    mf_graph_destroy(g);
}

/* What an optimizer is when the file says no more than its name: Keras 3's get_config() of each. */
static void optimizer_defaults_are_kerass(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double rate;
        mf_update_attr u;
    } rows[] = {
        {"sgd", 0.01, {0}},
        {"rmsprop", 0.001, {.rho = 0.9, .epsilon = 1e-7}},
        {"adam", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
        {"adamw", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7, .weight_decay = 0.004}},
        {"nadam", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
        {"adamax", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
        {"adagrad", 0.001, {.epsilon = 1e-7, .initial = 0.1}},
        {"adadelta", 0.001, {.rho = 0.95, .epsilon = 1e-7}},
        {"adafactor",
         0.001,
         {.beta_2 = -0.8, .epsilon = 1e-30, .epsilon_2 = 0.001, .clip_threshold = 1, .relative_step = 1}},
        {"lion", 0.001, {.beta_1 = 0.9, .beta_2 = 0.99}},
        {"ftrl", 0.001, {.learning_rate_power = -0.5, .initial = 0.1}},
        {"lamb", 0.001, {.beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7}},
    };
    assert_int_equal(sizeof rows / sizeof *rows, MF_OPTIMIZER_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mf_optimizer which;
        mf_optimizer_settings s;
        assert_true(mf_optimizer_parse(rows[i].name, &which));
        mf_optimizer_defaults(which, &s);
        const mf_update_attr *a = &s.update, *b = &rows[i].u;
        if (mf_optimizer_learning_rate(which) != rows[i].rate || a->momentum != b->momentum || a->rho != b->rho ||
            a->beta_1 != b->beta_1 || a->beta_2 != b->beta_2 || a->epsilon != b->epsilon ||
            a->weight_decay != b->weight_decay || a->l1 != b->l1 || a->l2 != b->l2 ||
            a->l2_shrinkage != b->l2_shrinkage || a->learning_rate_power != b->learning_rate_power ||
            a->initial != b->initial || a->relative_step != b->relative_step || a->epsilon_2 != b->epsilon_2 ||
            a->clip_threshold != b->clip_threshold || a->beta != b->beta || a->nesterov || a->centered || a->amsgrad ||
            s.ema_momentum != 0.99)
            fail_msg("%s: other defaults than Keras has", rows[i].name);
    }
}

static void every_failing_allocation_is_survived(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, true);
        mf_graph *g = NULL;
        memfit_error err;
        uint32_t d[3];
        memfit_status s = small_network(&fault.host, &g, d, &err);
        if (s == MEMFIT_OK) {
            mf_graph_destroy(g);
            assert_int_equal(fault.live_count, 0);
            assert_true(n > 5);
            break;
        }
        assert_int_equal(s, MEMFIT_NO_HOST_MEMORY);
        assert_null(g);
        assert_int_equal(fault.live_count, 0);
    }
}

/* A ReLU that is padded before a convolution reads it: backward needs its slope only. */
static memfit_status masked_network(const memfit_host *host, mf_graph **graph, memfit_error *err)
{
    mf_build b;
    uint32_t gradients[2];
    mf_build_begin(&b, host, err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, dims(4, 2, 8, 8, 3));
    uint32_t k = parameter(&b, dims(4, 3, 3, 3, 4)), l = parameter(&b, dims(4, 3, 3, 4, 4));
    mf_window same = window_of(2, 3, 1, "same", (int64_t[]){8, 8}),
              valid = window_of(2, 3, 1, "valid", (int64_t[]){10, 10});
    uint32_t y = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_conv(&b, x, k, MF_NONE, &same));
    const int64_t one_each[4] = {0, 1, 1, 0}, none[4] = {0};
    y = mf_g_conv(&b, mf_g_pad(&b, y, one_each, one_each, none, 0, 0), l, MF_NONE, &valid);
    uint32_t loss = mf_g_reduce(&b, MF_REDUCE_SUM, mf_g_unary(&b, MF_UNARY_RELU, 0, 0, y), 15, false);
    uint32_t one = mf_g_fill(&b, MF_F32, (mf_shape){0}, 1);
    mf_g_backward(&b, 1, &loss, &one, 2, (uint32_t[]){k, l}, gradients);
    mf_g_mask(&b, 1);
    return mf_build_end_keeping(&b, 2, gradients, graph);
}

static void slopes_are_kept_as_bits(void **state)
{
    (void)state;
    mf_graph *g = NULL;
    memfit_error err;
    assert_ok(masked_network(NULL, &g, &err), err);
    assert_ok(mf_graph_check(g, &err), err);
    assert_int_equal(count_kind(g, MF_OP_MASK), 2);
    assert_int_equal(count_kind(g, MF_OP_MASK_GRAD), 2);
    assert_int_equal(count_kind(g, MF_OP_UNARY_GRAD), 0);
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_MASK) { /* right behind the activation, one bit for each number */
            assert_int_equal(g->tensors[g->ops[i].in[0]].producer, i - 1);
            assert_int_equal(g->tensors[g->ops[i].out[0]].shape.dim[0], 2 * 8 * 8 * 4 / 8);
        }
    mf_graph_destroy(g);
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, true);
        g = NULL;
        memfit_status s = masked_network(&fault.host, &g, &err);
        mf_graph_destroy(g);
        assert_int_equal(fault.live_count, 0);
        if (s == MEMFIT_OK)
            break;
        assert_int_equal(s, MEMFIT_NO_HOST_MEMORY);
        assert_null(g);
    }
}

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    mf_build b;
    memfit_error err;
    mf_graph *g = NULL;
    mf_build_begin(&b, NULL, &err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, dims(2, 2, 3, 0, 0));
    uint32_t y = mf_g_input(&b, "y", MF_F32, dims(2, 4, 5, 0, 0));
    uint32_t z = mf_g_matmul(&b, x, y, MF_NONE, false, false, 1);
    assert_int_equal(z, MF_NONE);
    assert_int_equal(mf_g_unary(&b, MF_UNARY_RELU, 0, 0, x), MF_NONE); /* sticky */
    assert_int_equal(mf_build_end(&b, &g), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "(2, 3) times (4, 5)"));
    assert_null(g);
}

static void padding_is_kerass(void **state)
{
    (void)state;
    static const struct {
        int64_t in, kernel, stride, dilation, before, after, out;
    } same[] = {{224, 7, 2, 1, 2, 3, 112}, {8, 3, 1, 1, 1, 1, 8}, {8, 2, 1, 1, 0, 1, 8},
                {5, 1, 2, 1, 0, 0, 3},     {7, 3, 1, 2, 2, 2, 7}, {10, 3, 3, 1, 1, 1, 4}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        mf_window w = {.dims = 1,
                       .kernel = {same[i].kernel},
                       .stride = {same[i].stride},
                       .dilation = {same[i].dilation},
                       .groups = 1};
        assert_true(mf_window_pad(&w, "same", &same[i].in));
        assert_int_equal(w.before[0], same[i].before);
        assert_int_equal(w.after[0], same[i].after);
        assert_int_equal(mf_window_out(&w, 0, same[i].in), same[i].out);
    }
    mf_window w = {.dims = 1, .kernel = {3}, .stride = {1}, .dilation = {2}, .groups = 1};
    assert_true(mf_window_pad(&w, "causal", (int64_t[]){9}));
    assert_int_equal(w.before[0], 4);
    assert_int_equal(mf_window_out(&w, 0, 9), 9);
    assert_false(mf_window_pad(&w, "full", (int64_t[]){9}));
}

/* ---- random graphs ---- */

typedef struct rng {
    uint64_t state;
} rng;

static uint32_t draw(rng *r, uint32_t below)
{
    r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(r->state >> 33) % below;
}

enum { POOL = 64 };

/* One random operation on images and vectors made so far; MF_NONE when the draw does not fit. */
static uint32_t random_op(mf_build *b, rng *r, const uint32_t *made, uint32_t count)
{
    uint32_t x = made[draw(r, count)], y = made[draw(r, count)];
    mf_shape s = mf_g_shape(b, x), t = mf_g_shape(b, y);
    int64_t begin[4] = {0}, size[4], pad[4] = {0, 1, 0, 0};
    switch (draw(r, 12)) {
    case 0:
        return mf_g_unary(b, (mf_unary)(1 + draw(r, 8)), 0.5, 0, x);
    case 1:
        return mf_shape_equal(&s, &t) ? mf_g_binary(b, (mf_binary)draw(r, 8), x, y) : MF_NONE;
    case 2:
        return s.rank ? mf_g_reduce(b, (mf_reduce)draw(r, 6), x, 1 + draw(r, (1u << s.rank) - 1), true) : MF_NONE;
    case 3:
        return s.rank ? mf_g_softmax(b, x, s.rank - 1, draw(r, 2)) : MF_NONE;
    case 4:
        if (s.rank != 4)
            return MF_NONE;
        return mf_g_transpose(b, x, (uint32_t[][4]){{0, 2, 1, 3}, {0, 3, 1, 2}, {0, 1, 2, 3}}[draw(r, 3)]);
    case 5:
        for (uint32_t i = 0; i < s.rank; i++)
            size[i] = i == 1 && s.dim[i] > 1 ? s.dim[i] - 1 : s.dim[i];
        return s.rank ? mf_g_slice(b, x, begin, size, NULL) : MF_NONE;
    case 6:
        return s.rank >= 2 ? mf_g_pad(b, x, pad, pad, NULL, 0, 0) : MF_NONE;
    case 7:
        return mf_shape_equal(&s, &t) && s.rank ? mf_g_concat(b, 2, (uint32_t[]){x, y}, s.rank - 1) : MF_NONE;
    case 8: {
        if (s.rank != 4 || s.dim[1] < 3 || s.dim[2] < 3)
            return MF_NONE;
        mf_window w = window_of(2, 3, 1 + draw(r, 2), draw(r, 2) ? "same" : "valid", &s.dim[1]);
        uint32_t k = parameter(b, dims(4, 3, 3, s.dim[3], 1 + draw(r, 4)));
        return mf_g_conv(b, x, k, MF_NONE, &w);
    }
    case 9: {
        if (s.rank != 4 || s.dim[1] < 2 || s.dim[2] < 2)
            return MF_NONE;
        mf_window w = window_of(2, 2, 2, "valid", &s.dim[1]);
        return draw(r, 2) ? mf_g_pool_max(b, x, &w) : mf_g_pool_avg(b, x, &w);
    }
    case 10:
        return s.rank >= 2 ? mf_g_layer_norm(b, x, MF_NONE, MF_NONE, 1e-3, 1, 0, draw(r, 2)) : MF_NONE;
    default:
        return mf_g_dropout(b, x, 0.5, draw(r, 9), 0);
    }
}

/* Whatever is built, its backward pass is sound and gives every parameter a gradient of its own shape. */
static void random_graphs_are_sound(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        rng r = {seed};
        mf_build b;
        memfit_error err;
        mf_build_begin(&b, NULL, &err);
        uint32_t made[POOL], count = 0, wanted[POOL], gradients[POOL], parameters = 0;
        made[count++] = mf_g_input(&b, "x", MF_F32, dims(4, 2, 7, 6, 3));
        made[count++] = parameter(&b, dims(4, 2, 7, 6, 3));
        for (uint32_t tries = 0; tries < 60 && count < POOL; tries++) {
            uint32_t y = random_op(&b, &r, made, count);
            if (y != MF_NONE)
                made[count++] = y;
        }
        assert_true(mf_build_ok(&b));
        uint32_t y = made[count - 1], dy = mf_g_fill(&b, MF_F32, mf_g_shape(&b, y), 1);
        for (uint32_t i = 0; i < b.graph->variable_count && parameters < POOL; i++)
            wanted[parameters++] = b.graph->variables[i].tensor;
        mf_g_backward(&b, 1, &y, &dy, parameters, wanted, gradients);
        if (seed % 2)
            mf_g_mask(&b, 1);
        for (uint32_t i = 0; i < parameters; i++)
            if (gradients[i] != MF_NONE) {
                mf_shape p = mf_g_shape(&b, wanted[i]), d = mf_g_shape(&b, gradients[i]);
                assert_true(mf_shape_equal(&p, &d));
            }
        mf_graph *g = NULL;
        assert_ok(mf_build_end_keeping(&b, parameters, gradients, &g), err);
        assert_ok(mf_graph_check(g, &err), err);
        for (uint32_t i = 0; i < g->op_count; i++) { /* costs are finite, in-place pairs of equal size */
            double flops, bytes;
            mf_op_cost(g, &g->ops[i], &flops, &bytes);
            assert_true(flops >= 0 && bytes >= 0 && flops < 1e12);
        }
        mf_graph_destroy(g);
    }
}

/* The check finds what is wrong: a reader of a parameter behind its update, an operand not yet written, a bad shape. */
static void damaged_graphs_are_found(void **state)
{
    (void)state;
    memfit_error err;
    mf_graph *g = NULL;
    uint32_t d[3];
    assert_ok(small_network(NULL, &g, d, &err), err);
    for (uint32_t i = 0; i + 1 < g->op_count; i++) { /* any operation that reads the one before, exchanged with it */
        bool reads = false;
        for (uint32_t k = 0; k < g->ops[i + 1].in_count; k++)
            reads |= g->ops[i + 1].in[k] == g->ops[i].out[0] && g->ops[i].kind != MF_OP_VIEW &&
                     g->ops[i + 1].kind != MF_OP_VIEW;
        if (!reads)
            continue;
        mf_op swap = g->ops[i];
        g->ops[i] = g->ops[i + 1];
        g->ops[i + 1] = swap;
        assert_int_equal(mf_graph_check(g, &err), MEMFIT_INTERNAL);
        g->ops[i + 1] = g->ops[i];
        g->ops[i] = swap;
    }
    assert_ok(mf_graph_check(g, &err), err);
    for (uint32_t i = 0; i < g->tensor_count; i++) {
        mf_tensor before = g->tensors[i];
        g->tensors[i].shape.dim[0] += 1;
        assert_true(mf_graph_check(g, &err) != MEMFIT_OK || before.shape.rank == 0);
        g->tensors[i] = before;
        g->tensors[i].storage = g->storage_count;
        assert_int_equal(mf_graph_check(g, &err), MEMFIT_INTERNAL);
        g->tensors[i] = before;
    }
    mf_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_pass_of_a_small_network),
        cmocka_unit_test(optimizer_defaults_are_kerass),
        cmocka_unit_test(every_failing_allocation_is_survived),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(padding_is_kerass),
        cmocka_unit_test(random_graphs_are_sound),
        cmocka_unit_test(damaged_graphs_are_found),
        cmocka_unit_test(slopes_are_kept_as_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
