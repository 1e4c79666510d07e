/*
 * test_ops_backends.c: every other backend against the reference: outputs and gradients of all the small graphs in
 * float, norm-wise. What a backend hands to the reference operations counts as agreeing.
 */
#include "opcheck.h"

static mf_backend *reference, *other;
static unsigned own, handed_on;

static void count_kinds(opcheck *c)
{
    for (uint32_t i = 0; i < c->graph->op_count; i++) {
        mf_cost cost = {0};
        memfit_error err = {0};
        assert_ok(other->table->query(other, c->graph, i, &cost, &err), err);
        assert_true(cost.supported);
        *(cost.reference ? &handed_on : &own) += 1;
    }
}

static void agrees_with_the_reference(void **state)
{
    const opcheck_case *k = *state;
    for (int v = 0; v < k->variants; v++) {
        opcheck a, b;
        opcheck_begin(&a, k, v, MF_F32, other);
        opcheck_begin(&b, k, v, MF_F32, reference);
        count_kinds(&a);
        opcheck_fill(&a, 11);
        opcheck_fill(&b, 11);
        opcheck_run(&a);
        opcheck_run(&b);
        opcheck_run(&a); /* a second run must not depend on the first */
        if (a.loss != MF_NONE && opcheck_distance(&a, a.loss, &b, b.loss) > 1e-5)
            fail_msg("%s variant %d: loss %g instead of %g", k->name, v, opcheck_get(&a, a.loss, 0),
                     opcheck_get(&b, b.loss, 0));
        for (uint32_t i = 0; i < a.output_count; i++)
            if (!(opcheck_distance(&a, a.outputs[i], &b, b.outputs[i]) <= 1e-5))
                fail_msg("%s variant %d output %u: off by %g", k->name, v, i,
                         opcheck_distance(&a, a.outputs[i], &b, b.outputs[i]));
        for (uint32_t i = 0; i < a.input_count; i++)
            if (a.gradients[i] != MF_NONE && !(opcheck_distance(&a, a.gradients[i], &b, b.gradients[i]) <= 1e-5))
                fail_msg("%s variant %d gradient %u: off by %g", k->name, v, i,
                         opcheck_distance(&a, a.gradients[i], &b, b.gradients[i]));
        opcheck_end(&a);
        opcheck_end(&b);
    }
}

int main(void)
{
    memfit_error err = {0};
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK)
        return 1;
    if (mf_cpu_create(NULL, 2, &other, &err) != MEMFIT_OK) {
        printf("only the reference operations in this build: %s\n", err.message);
        reference->table->destroy(reference);
        return 0;
    }
    struct CMUnitTest tests[32];
    for (size_t i = 0; i < opcheck_case_count; i++)
        tests[i] = (struct CMUnitTest){.name = opcheck_cases[i].name,
                                       .test_func = agrees_with_the_reference,
                                       .initial_state = (void *)&opcheck_cases[i]};
    int failed = _cmocka_run_group_tests("backends", tests, opcheck_case_count, NULL, NULL);
    printf("%s: %u operations of its own, %u handed to the reference\n", other->table->name, own, handed_on);
    other->table->destroy(other);
    reference->table->destroy(reference);
    return failed;
}
