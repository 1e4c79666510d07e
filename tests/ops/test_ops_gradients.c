/*
 * test_ops_gradients.c: the gradient graph of every kind against finite differences, in double on the reference
 * operations; the float kernels against the double ones; and that no kind was left out.
 */
#include "opcheck.h"

static mf_backend *reference;
static bool seen[MF_OP_COUNT];

/* (f(x + h) - f(x - h)) / 2h by two steps, extrapolated: error h^4. */
static double slope_at(opcheck *c, uint32_t tensor, uint64_t i, bool *smooth)
{
    double x = opcheck_get(c, tensor, i), h = 1e-3, d[2];
    for (int k = 0; k < 2; k++, h /= 2) {
        opcheck_set(c, tensor, i, x + h);
        opcheck_run(c);
        double up = opcheck_total(c);
        opcheck_set(c, tensor, i, x - h);
        opcheck_run(c);
        d[k] = (up - opcheck_total(c)) / (2 * h);
    }
    opcheck_set(c, tensor, i, x);
    *smooth = fabs(d[0] - d[1]) < 1e-4;
    return (4 * d[1] - d[0]) / 3;
}

/* Elements near a kink of the function have no slope to compare with: where two steps disagree. They must be few. */
static void check_input(opcheck *c, const char *name, int variant, uint32_t k)
{
    uint32_t g = c->gradients[k], x = c->inputs[k];
    uint64_t n = opcheck_count(c, x), skipped = 0;
    double error = 0, norm = 0, *analytic = calloc(n, sizeof *analytic);
    opcheck_run(c);
    for (uint64_t i = 0; i < n; i++)
        analytic[i] = g == MF_NONE ? 0 : opcheck_get(c, g, i);
    for (uint64_t i = 0; i < n; i++) {
        bool smooth;
        double d = slope_at(c, x, i, &smooth), e = fabs(d - analytic[i]);
        if (!smooth && skipped++ < 1 + n / 50)
            continue;
        error += e * e;
        norm += d * d;
    }
    free(analytic);
    if (sqrt(error) > 1e-7 * (1 + sqrt(norm)))
        fail_msg("%s variant %d input %u: off by %g of %g", name, variant, k, sqrt(error), sqrt(norm));
}

static void gradients_agree_with_differences(void **state)
{
    const opcheck_case *k = *state;
    for (int v = 0; v < k->variants; v++) {
        opcheck c;
        opcheck_begin(&c, k, v, MF_F64, reference);
        for (uint32_t i = 0; i < c.graph->op_count; i++)
            seen[c.graph->ops[i].kind] = true;
        opcheck_fill(&c, 3);
        for (uint32_t i = 0; i < c.input_count; i++)
            if (c.wanted[i])
                check_input(&c, k->name, v, i);
        opcheck_end(&c);
    }
}

static void float_agrees_with_double(void **state)
{
    const opcheck_case *k = *state;
    for (int v = 0; v < k->variants; v++) {
        opcheck f, d;
        opcheck_begin(&f, k, v, MF_F32, reference);
        opcheck_begin(&d, k, v, MF_F64, reference);
        for (uint32_t i = 0; i < f.graph->op_count; i++) /* casts vanish in double */
            seen[f.graph->ops[i].kind] |= f.graph->ops[i].kind == MF_OP_CAST;
        opcheck_fill(&f, 5);
        opcheck_fill(&d, 5);
        opcheck_run(&f);
        opcheck_run(&d);
        for (uint32_t i = 0; i < f.output_count; i++)
            if (opcheck_distance(&f, f.outputs[i], &d, d.outputs[i]) > 2e-6)
                fail_msg("%s variant %d output %u: %g", k->name, v, i,
                         opcheck_distance(&f, f.outputs[i], &d, d.outputs[i]));
        for (uint32_t i = 0; i < f.input_count; i++)
            if (f.gradients[i] != MF_NONE && opcheck_distance(&f, f.gradients[i], &d, d.gradients[i]) > 1e-5)
                fail_msg("%s variant %d gradient %u: %g", k->name, v, i,
                         opcheck_distance(&f, f.gradients[i], &d, d.gradients[i]));
        opcheck_end(&f);
        opcheck_end(&d);
    }
}

/* Every kind but those that have no gradient: random numbers, state, the update, and what
 * passes make after it: groups, and attention, whose gradient test_ops_attention sets against that of its parts. */
static void every_kind_was_checked(void **state)
{
    (void)state;
    static const mf_op_kind without[] = {
        MF_OP_ASSUMED,    MF_OP_RANDOM,      MF_OP_MOVING_AVERAGE, MF_OP_METRIC,        MF_OP_REGULARIZE, MF_OP_CLIP,
        MF_OP_SQUARE_SUM, MF_OP_CLIP_GLOBAL, MF_OP_CHECK_FINITE,   MF_OP_UPDATE,        MF_OP_EMA,        MF_OP_AUGMENT,
        MF_OP_FILL,       MF_OP_GROUP,       MF_OP_ATTENTION,      MF_OP_ATTENTION_GRAD};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++)
        seen[without[i]] = true;
    for (int i = 0; i < MF_OP_COUNT; i++)
        if (!seen[i])
            fail_msg("kind %d has no gradient check", i);
}

int main(void)
{
    memfit_error err = {0};
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK)
        return 1;
    struct CMUnitTest tests[64];
    size_t n = 0;
    for (size_t i = 0; i < opcheck_case_count; i++) {
        tests[n++] = (struct CMUnitTest){.name = opcheck_cases[i].name,
                                         .test_func = gradients_agree_with_differences,
                                         .initial_state = (void *)&opcheck_cases[i]};
        tests[n++] = (struct CMUnitTest){.name = opcheck_cases[i].name,
                                         .test_func = float_agrees_with_double,
                                         .initial_state = (void *)&opcheck_cases[i]};
    }
    tests[n++] = (struct CMUnitTest){.name = "every kind was checked", .test_func = every_kind_was_checked};
    int failed = _cmocka_run_group_tests("gradients", tests, n, NULL, NULL);
    reference->table->destroy(reference);
    return failed;
}
