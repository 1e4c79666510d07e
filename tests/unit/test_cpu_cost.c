/*
 * test_cpu_cost.c: what the CPU backend says of operations that it is only asked about: their times, what their code
 * takes, and sizes that could never run.
 */
#include "cpu_build.h"
#include "test.h"

#include "graph/build.h"
#include "lower_models.h"
#include "ops/cpu/cpu_fixed.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/dnn/onednn.h"

static void begin(mf_build *b, memfit_error *err)
{
    assert_ok(mf_build_begin(b, NULL, err), *err);
}

typedef struct estimates {
    double conv, after, alone; /* us: a convolution, the activation behind it, one that stands alone */
} estimates;

static estimates estimate(int64_t batch, unsigned threads)
{
    mf_build b;
    memfit_error err = {0};
    mf_graph *graph;
    mf_backend *backend;
    begin(&b, &err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, shape(4, batch, 24, 24, 32));
    mf_window win = {.dims = 2, .kernel = {3, 3}, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
    assert_true(mf_window_pad(&win, "same", (int64_t[]){24, 24}));
    uint32_t y = mf_g_conv(&b, x, weight(&b, "w", shape(4, 3, 3, 32, 64)), MF_NONE, &win);
    uint32_t z = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_unary(&b, MF_UNARY_RELU, 0, 0, y));
    assert_ok(mf_build_end_keeping(&b, 1, &z, &graph), err);
    assert_ok(mf_cpu_create(NULL, threads, &backend, &err), err);
    estimates e = {0};
    unsigned unary = 0;
    for (uint32_t i = 0; i < graph->op_count; i++) {
        mf_cost cost;
        assert_ok(backend->table->query(backend, graph, i, &cost, &err), err);
        if (graph->ops[i].kind == MF_OP_CONV)
            e.conv = cost.methods[0].time_us;
        if (graph->ops[i].kind == MF_OP_UNARY)
            *(unary++ ? &e.alone : &e.after) = cost.methods[0].time_us;
    }
    backend->table->destroy(backend);
    mf_graph_destroy(graph);
    return e;
}

/* More samples take longer, each of them less long while they stay in the caches; a second thread helps where there is
 * much to do and hinders where there is little; what becomes part of the operation before takes no time. */
static void estimated_times(void **state)
{
    (void)state;
    estimates last = {0};
    for (int64_t batch = 1; batch <= 4; batch *= 2) {
        estimates one = estimate(batch, 1), two = estimate(batch, 2);
        assert_true(one.after == 0 && one.alone > 0 && one.conv > one.alone);
        assert_true(one.conv > last.conv && one.alone > last.alone);
        assert_true(batch == 1 || (one.conv < 2 * last.conv && one.alone < 2 * last.alone));
        assert_true(two.conv < one.conv && two.conv > one.conv / 2);
        last = one;
    }
    estimates many = estimate(256, 1);
    assert_true(many.alone > 64 * last.alone); /* fetched from memory */
}

static double metric_us(mf_metric function)
{
    memfit_error err = {0};
    mf_build b;
    mf_graph *graph;
    mf_backend *backend;
    mf_cost cost;
    begin(&b, &err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, shape(2, 256, 256, 0, 0));
    uint32_t y = mf_g_input(&b, "y", MF_F32, shape(2, 256, 256, 0, 0));
    uint32_t state = weight(&b, "state", function == MF_METRIC_AUC ? shape(2, 4, 200, 0, 0) : shape(1, 2, 0, 0, 0));
    mf_attr attr = {.metric = {.function = function, .threshold = 0.5}};
    mf_g_op_in_place(&b, MF_OP_METRIC, &attr, 4, (uint32_t[]){x, y, MF_NONE, state}, 1, &state);
    assert_ok(mf_build_end(&b, &graph), err);
    assert_ok(mf_cpu_create(NULL, 1, &backend, &err), err);
    assert_ok(backend->table->query(backend, graph, graph->op_count - 1, &cost, &err), err);
    backend->table->destroy(backend);
    mf_graph_destroy(graph);
    return cost.methods[0].time_us;
}

/* Measured: 279 us beside 11. */
static void metrics_have_their_price(void **state)
{
    (void)state;
    assert_true(metric_us(MF_METRIC_AUC) > 10 * metric_us(MF_METRIC_METRIC_MAE));
}

/* ---- what only asking can reach ---- */

/* Sizes around 2^32 are asked about, never run: the library divides by what wraps to zero there. */
static void enormous_sizes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {(1ll << 30) - 1, 1ll << 30, INT32_MAX,      1ll << 31,
                                    (1ll << 32) - 1, 1ll << 32, (1ll << 33) + 5};
    mf_backend *backend;
    memfit_error err = {0};
    assert_ok(mf_cpu_create(NULL, 2, &backend, &err), err);
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++) {
        mf_build b;
        mf_graph *graph;
        int64_t n = sizes[i / 4];
        begin(&b, &err);
        uint32_t y;
        if (i % 4 < 2) {
            uint32_t x = mf_g_input(&b, "x", MF_F32, shape(2, i % 4 ? n : 3, 4, 0, 0));
            y = mf_g_matmul(&b, x, weight(&b, "w", shape(2, 4, i % 4 ? 3 : n, 0, 0)), MF_NONE, false, false, 1);
        } else {
            uint32_t x = mf_g_input(&b, "x", MF_F32, shape(3, 1, i % 4 == 2 ? n : 16, 2, 0));
            mf_window win = {.dims = 1, .kernel = {3}, .stride = {1}, .dilation = {1}, .groups = 1};
            assert_true(mf_window_pad(&win, "same", (int64_t[]){i % 4 == 2 ? n : 16}));
            y = mf_g_conv(&b, x, weight(&b, "w", shape(3, 3, 2, i % 4 == 2 ? 4 : n, 0)), MF_NONE, &win);
        }
        assert_ok(mf_build_end_keeping(&b, 1, &y, &graph), err);
        for (uint32_t op = 0; op < graph->op_count; op++) {
            mf_cost cost;
            assert_ok(backend->table->query(backend, graph, op, &cost, &err), err);
            assert_true(cost.supported && !cost.reference);
        }
        mf_graph_destroy(graph);
    }
    backend->table->destroy(backend);
}

static uint64_t counted_bytes(const char *second)
{
    char *layers, *text;
    assert_true(asprintf(&layers, "%s,%s,%s", INPUT("12,12,8"),
                         LAYER("Conv2D", "a", ",\"filters\":8,\"kernel_size\":[3,3],\"padding\":\"same\""),
                         second) > 0);
    text = sequential_text(layers, NULL);
    mf_model *model = model_from_text(text);
    mf_lower_options o = lower_options(MF_MODE_EVALUATE, 4);
    o.loss = "mse";
    mf_graph *g = lower_ok(model, &o);
    mf_cpu_seen seen = {{0}};
    uint64_t bytes = mf_cpu_graph_bytes(g, &seen);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
    free(layers);
    return bytes;
}

/* Kernels of equal shapes share their code only when their windows are equal too. */
static void code_is_counted_once_for_equal_windows(void **state)
{
    (void)state;
#define SECOND(options) LAYER("Conv2D", "b", ",\"filters\":8,\"kernel_size\":[3,3],\"padding\":\"same\"" options)
    uint64_t same = counted_bytes(SECOND("")), apart = counted_bytes(SECOND(",\"dilation_rate\":[2,2]"));
    if (mf_dnn_compiles())
        assert_true(apart > same + (32 << 10));
    else
        assert_int_equal(apart, same);
}

int main(void)
{
    if (test_isa_is_missing())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimated_times),
        cmocka_unit_test(metrics_have_their_price),
        cmocka_unit_test(enormous_sizes),
        cmocka_unit_test(code_is_counted_once_for_equal_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
