/* test_graph.c: building graphs, shapes, the backward pass, what vanishes, and lack of memory. */
#include "test.h"

#include "graph/build.h"

static mf_shape dims(uint32_t rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return mf_shape_make(rank, (int64_t[]){a, b, c, d});
}

static uint32_t parameter(mf_build *b, const char *name, mf_shape shape)
{
    mf_variable v = {.name = name,
                     .role = MF_VAR_PARAMETER,
                     .kind = MEMFIT_KIND_PARAMETERS,
                     .trainable = true,
                     .dtype = MF_F32,
                     .shape = shape,
                     .parameter = MF_NONE};
    return mf_g_use(b, mf_g_variable(b, &v));
}

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
    uint32_t k = parameter(&b, "k", dims(4, 3, 3, 3, 4)), c = parameter(&b, "c", dims(1, 4, 0, 0, 0));
    mf_window same = window_of(2, 3, 1, "same", (int64_t[]){8, 8});
    mf_window pool = window_of(2, 2, 2, "valid", (int64_t[]){8, 8});
    uint32_t y = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_conv(&b, x, k, c, &same));
    y = mf_g_pool_max(&b, y, &pool);
    y = mf_g_view(&b, y, dims(2, 2, 64, 0, 0));
    uint32_t w = parameter(&b, "w", dims(2, 64, 5, 0, 0));
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
            assert_true(mf_op_may_alias(g, &g->ops[i], 0, 0));
            assert_false(mf_op_may_alias(g, &g->ops[i], 1, 0));
        }
    mf_graph_destroy(g);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backward_pass_of_a_small_network),
        cmocka_unit_test(every_failing_allocation_is_survived),
        cmocka_unit_test(wrong_shapes_are_refused),
        cmocka_unit_test(padding_is_kerass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
