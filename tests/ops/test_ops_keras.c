/*
 * test_ops_keras.c: models saved by Keras run here as they ran there: outputs, losses, gradients, statistics, metrics
 * and optimizers, each tensor norm-wise against Keras's own figures (1e-5; 1e-4 for recurrent layers and chains of
 * normalization; mixed precision 4e-3 and 3e-2). Every fixture runs on every backend of this build. A gradient that is
 * zero but for rounding (a bias before a normalization) is measured against the norm of all gradients.
 *
 *     test_ops_keras [BACKEND [PART-OF-NAME]]      one backend, the fixtures whose name contains the part, with figures
 */
#include "fixture_run.h"

static mf_backend *backend;
static const char *only_part;
static bool verbose;
static unsigned ran, refused;
static double worst;
static char worst_name[128];

/* Recurrent layers and chains of normalization sum in another order than TensorFlow does, over and over. */
static double tolerance_of(const char *name)
{
    if (strstr(name, "mixed")) /* 16 bits: eight or eleven of them significant */
        return strstr(name, "bfloat16") ? 3e-2 : 4e-3;
    static const char *const loose[] = {"rnn",  "lstm",      "gru", "bidirectional",
                                        "norm", "attention", "mha", "transformer"};
    for (size_t i = 0; i < sizeof loose / sizeof *loose; i++)
        if (strstr(name, loose[i]))
            return 1e-4;
    return 1e-5;
}

static unsigned failures;

static void expect_near(const fixture *f, const char *what, double distance)
{
    if (verbose)
        printf("    %-12s %.2e\n", what, distance);
    if (distance > worst) {
        worst = distance;
        snprintf(worst_name, sizeof worst_name, "%s %s", f->name, what);
    }
    if (!(distance <= tolerance_of(f->name))) {
        fprintf(stderr, "%s: %s: %s is off by %.3g\n", backend->table->name, f->name, what, distance);
        failures++;
    }
}

static memfit_status check_layer(const fixture *f, memfit_error *err)
{
    return fixture_check(f, backend, expect_near, 0, err);
}

/* Feeds Keras's own gradients for five steps to the operations of the update. */
static memfit_status check_optimizer(const fixture *f, memfit_error *err)
{
    fixture_run r;
    /* no inputs are stored: the batch does not matter */
    memfit_status status = fixture_begin(f, backend, MF_MODE_TRAIN, 1, &r, err);
    for (uint32_t step = 0; status == MEMFIT_OK && step < 5; step++) {
        mf_run_scalars s = mf_interpret_scalars(r.graph, fixture_value(fixture_find(f, "rate"), 0));
        s.iteration = s.step = step;
        for (uint32_t i = 0; fixture_find(f, "key%u", i); i++) {
            const fixture_array *g = fixture_find(f, "grad%u.%u", step, i);
            uint32_t t = fixture_gradient(r.graph, fixture_variable(r.graph, fixture_find(f, "key%u", i), g->count));
            assert_int_not_equal(t, MF_NONE);
            mf_ref_convert(r.graph->tensors[t].dtype, mf_interpret_data(r.it, t), g->dtype, g->data, g->count);
        }
        status = mf_interpret_run_phase(r.it, &s, MF_UPDATE_PHASE, err);
    }
    for (uint32_t i = 0; status == MEMFIT_OK && fixture_find(f, "var%u", i); i++) {
        const fixture_array *var = fixture_find(f, "var%u", i), *ema = fixture_find(f, "ema%u", i);
        uint32_t v = fixture_variable(r.graph, fixture_find(f, "key%u", i), var->count);
        char what[32];
        snprintf(what, sizeof what, "var%u", i);
        expect_near(f, what, fixture_distance(r.it, r.graph, r.graph->variables[v].tensor, var, 0));
        for (uint32_t k = 0; ema && k < r.graph->variable_count; k++)
            if (r.graph->variables[k].role == MF_VAR_EMA && r.graph->variables[k].parameter == v)
                expect_near(f, "average", fixture_distance(r.it, r.graph, r.graph->variables[k].tensor, ema, 0));
    }
    fixture_end(&r);
    return status;
}

/* What a metric's state amounts to. */
static double metric_result(const mf_op *op, const mf_tensor *t, const void *state)
{
    double a = mf_ref_load(t->dtype, state, 0), b = mf_ref_load(t->dtype, state, 1);
    switch (op->attr.metric.function) {
    case MF_METRIC_PRECISION:
    case MF_METRIC_RECALL:
        return a + b == 0 ? 0 : a / (a + b);
    case MF_METRIC_METRIC_RMSE:
        return b == 0 ? 0 : sqrt(a / b);
    default:
        return b == 0 ? 0 : a / b;
    }
}

/* Area under the curve of true over false positives, by trapezoids, as Keras adds it up. */
static double area_under_curve(const mf_tensor *t, const void *state)
{
    uint64_t n = mf_shape_count(&t->shape) / 4;
    double area = 0, x = 0, y = 0;
    for (uint64_t i = 0; i < n; i++) {
        double tp = mf_ref_load(t->dtype, state, i), fp = mf_ref_load(t->dtype, state, n + i);
        double tn = mf_ref_load(t->dtype, state, 2 * n + i), fn = mf_ref_load(t->dtype, state, 3 * n + i);
        double rate = tp + fn == 0 ? 0 : tp / (tp + fn), alarm = fp + tn == 0 ? 0 : fp / (fp + tn);
        if (i > 0)
            area += (x - alarm) * (y + rate) / 2;
        x = alarm;
        y = rate;
    }
    return area;
}

static memfit_status check_metrics(const fixture *f, memfit_error *err)
{
    fixture_run r;
    int64_t half = fixture_rows(f) / 2;
    memfit_status status = fixture_begin(f, backend, MF_MODE_EVALUATE, half, &r, err);
    double loss = 0;
    for (int64_t k = 0; status == MEMFIT_OK && k < 2; k++) {
        uint32_t t = r.graph->variables[r.graph->loss_variable].tensor;
        mf_run_scalars s = fixture_scalars(f, &r, 0);
        fixture_feed(f, r.it, r.graph, k * half);
        mf_ref_store(r.graph->tensors[t].dtype, mf_interpret_data(r.it, t), 0, 0);
        status = mf_interpret_run(r.it, &s, true, true, err);
        loss += mf_ref_load(r.graph->tensors[t].dtype, mf_interpret_data(r.it, t), 0) / 2;
    }
    if (status == MEMFIT_OK) {
        double wanted = fixture_value(fixture_find(f, "metric:loss"), 0);
        expect_near(f, "loss", fabs(loss - wanted) / fabs(wanted));
    }
    for (uint32_t i = 0; status == MEMFIT_OK && i < r.graph->op_count; i++) {
        const mf_op *op = &r.graph->ops[i];
        if (op->kind != MF_OP_METRIC)
            continue;
        const mf_tensor *t = &r.graph->tensors[op->out[0]];
        const mf_variable *v = &r.graph->variables[t->variable];
        const char *name = strrchr(v->name, '/') ? strrchr(v->name, '/') + 1 : v->name;
        const fixture_array *wanted = fixture_find(f, "metric:%s", name);
        if (!wanted)
            fail_msg("%s: Keras has no metric called %s", f->name, v->name);
        void *state = mf_interpret_data(r.it, op->out[0]);
        double value =
            op->attr.metric.function == MF_METRIC_AUC ? area_under_curve(t, state) : metric_result(op, t, state);
        expect_near(f, name, fabs(value - fixture_value(wanted, 0)));
    }
    fixture_end(&r);
    return status;
}

static void run_set(const char *archive, memfit_status (*check)(const fixture *f, memfit_error *err))
{
    fixture_set set;
    if (!fixture_set_open(&set, archive))
        skip();
    unsigned before = failures, unexpected = 0;
    for (size_t i = 0; i < set.count; i++) {
        if (only_part && !strstr(set.names[i], only_part))
            continue;
        if (verbose)
            printf("  %s\n", set.names[i]);
        fixture f;
        memfit_error err = {0};
        memfit_status status = fixture_open(&f, &set, set.names[i], &err);
        if (status == MEMFIT_OK)
            status = check(&f, &err);
        fixture_close(&f);
        ran++;
        if (status) {
            refused++;
            printf("%s: %s: %s\n", backend->table->name, set.names[i], err.message);
            unexpected++;
        }
    }
    fixture_set_close(&set);
    printf("%s: %s: %u run, %u not supported, worst %.2e (%s)\n", backend->table->name, archive, ran, refused, worst,
           worst_name);
    ran = refused = 0;
    worst = 0;
    assert_int_equal(failures, before);
    assert_int_equal(unexpected, 0);
}

static void layers_agree_with_keras(void **state)
{
    (void)state;
    run_set("layers", check_layer);
}

static void losses_agree_with_keras(void **state)
{
    (void)state;
    run_set("losses", check_layer);
}

static void metrics_agree_with_keras(void **state)
{
    (void)state;
    run_set("metrics", check_metrics);
}

static void optimizers_agree_with_keras(void **state)
{
    (void)state;
    run_set("optimizers", check_optimizer);
}

/* Random layers by their distribution: the mean of many training steps is what inference gives, and the variance what
 * the layer's rate or deviation says. The learning rate is 0. */
static void check_distribution(const fixture_set *set, const char *name, double relative, double absolute)
{
    enum { STEPS = 600 };
    fixture f;
    memfit_error err = {0};
    fixture_run r;
    assert_ok(fixture_open(&f, set, name, &err), err);
    assert_ok(fixture_begin(&f, backend, MF_MODE_TRAIN, fixture_rows(&f), &r, &err), err);
    uint32_t out = r.graph->outputs[0];
    const fixture_array *still = fixture_find(&f, "out0");
    assert_int_not_equal(out, MF_NONE);
    double *sum = calloc(still->count, sizeof *sum), *square = calloc(still->count, sizeof *square);
    for (uint64_t k = 0; k < STEPS; k++) {
        mf_run_scalars s = fixture_scalars(&f, &r, 0);
        s.seed = 77;
        s.step = k;
        fixture_feed(&f, r.it, r.graph, 0);
        assert_ok(mf_interpret_run(r.it, &s, true, true, &err), err);
        for (uint64_t i = 0; i < still->count; i++) {
            double d =
                mf_ref_load(r.graph->tensors[out].dtype, mf_interpret_data(r.it, out), i) - fixture_value(still, i);
            sum[i] += d / STEPS;
            square[i] += d * d / STEPS;
        }
    }
    double bias = 0, variance = 0, wanted = 0;
    for (uint64_t i = 0; i < still->count; i++) {
        bias += sum[i] * sum[i];
        variance += square[i];
        wanted += relative * fixture_value(still, i) * fixture_value(still, i) + absolute;
    }
    if (fabs(variance / wanted - 1) > 0.1 || bias > 2 * wanted / STEPS)
        fail_msg("%s: variance %g instead of %g, bias %g", name, variance, wanted, bias);
    free(sum);
    free(square);
    fixture_end(&r);
    fixture_close(&f);
}

static void random_layers_follow_their_distribution(void **state)
{
    (void)state;
    fixture_set set;
    if (!fixture_set_open(&set, "layers"))
        skip();
    check_distribution(&set, "inference_dropout", 0.4 / 0.6, 0);
    check_distribution(&set, "inference_spatialdropout2d", 0.4 / 0.6, 0);
    check_distribution(&set, "inference_spatialdropout1d", 0.4 / 0.6, 0);
    check_distribution(&set, "inference_spatialdropout3d", 0.4 / 0.6, 0);
    check_distribution(&set, "inference_stochasticdepth", 0.4 / 0.6, 0);
    check_distribution(&set, "inference_gaussiandropout", 0.3 / 0.7, 0);
    check_distribution(&set, "inference_gaussiannoise", 0, 0.3 * 0.3);
    fixture_set_close(&set);
}

static void mixed_precision_agrees_with_keras(void **state)
{
    (void)state;
    run_set("mixed", check_layer);
}

static memfit_status make_backend(const char *name, memfit_error *err)
{
    return strcmp(name, "cpu") == 0 ? mf_cpu_create(NULL, 2, &backend, err) : mf_reference_create(NULL, &backend, err);
}

int main(int argc, char **argv)
{
    const char *names[] = {"reference", "cpu"};
    int failed = 0;
    only_part = argc > 2 ? argv[2] : NULL;
    verbose = argc > 2;
    for (size_t i = 0; i < 2; i++) {
        memfit_error err = {0};
        if ((argc > 1 && strcmp(argv[1], names[i]) != 0) || make_backend(names[i], &err) != MEMFIT_OK)
            continue;
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(layers_agree_with_keras),
            cmocka_unit_test(losses_agree_with_keras),
            cmocka_unit_test(metrics_agree_with_keras),
            cmocka_unit_test(optimizers_agree_with_keras),
            cmocka_unit_test(mixed_precision_agrees_with_keras),
            cmocka_unit_test(random_layers_follow_their_distribution),
        };
        failed += cmocka_run_group_tests_name(names[i], tests, NULL, NULL);
        backend->table->destroy(backend);
    }
    return failed;
}
