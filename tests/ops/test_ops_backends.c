/*
 * test_ops_backends.c: every other backend against the reference: outputs and gradients of all the small graphs in
 * float, norm-wise. A kind that the CPU backend has kernels for must run on them somewhere: a backend that declined
 * everything would agree perfectly. What it leaves to the reference operations it shares out to threads, however small.
 */
#include "opcheck.h"

#include "cli/count_alloc.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels/kernels.h"

static mf_backend *reference, *other;
static unsigned own[MF_OP_COUNT], handed_on[MF_OP_COUNT];

static void count_kinds(opcheck *c)
{
    for (uint32_t i = 0; i < c->graph->op_count; i++) {
        mf_cost cost = {0};
        memfit_error err = {0};
        assert_ok(other->table->query(other, c->graph, i, &cost, &err), err);
        assert_true(cost.supported);
        const mf_op *op = &c->graph->ops[i];
        if (!op->out_count || op->out[0] == MF_NONE || c->graph->tensors[op->out[0]].dtype == MF_F32)
            (cost.reference ? handed_on : own)[op->kind]++; /* constants of other types are small */
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

static void kernels_serve(void **state)
{
    (void)state;
    unsigned of_its_own = 0, left = 0, without = 0;
    for (int kind = 0; kind < MF_OP_COUNT; kind++) {
        of_its_own += own[kind];
        left += handed_on[kind];
        if (cpu_rule_of((mf_op_kind)kind) && handed_on[kind] && !own[kind]) {
            printf("%s is always left to the reference\n", mf_kind_name((mf_op_kind)kind));
            without++;
        }
    }
    printf("%s: %u operations of its own, %u left to the reference\n", other->table->name, of_its_own, left);
    assert_int_equal(without, 0);
    assert_true(of_its_own > 8 * left);
}

/* Samples are converted by every thread of a team, each by itself: no team within the team. */
static void casts_in_a_team_take_no_memory(void **state)
{
    enum { N = 3 * MF_K_GRAIN, TEAM = 3 };
    static double from[N];
    static float to[TEAM][N];
    uint64_t before = 0;
    int wrong = 0;
    for (int i = 0; i < N; i++)
        from[i] = i / 4.0;
    for (int run = 0; run < 3; run++) {
        if (run == 1) /* the first made the team */
            before = cli_allocation_count(NULL) + cli_reserve_count();
#pragma omp parallel for num_threads(TEAM) schedule(static) reduction(+ : wrong)
        for (int i = 0; i < TEAM; i++)
            wrong += !mf_kernels()->cast(MF_F64, from, MF_F32, to[i], N, 1);
    }
    assert_int_equal(wrong, 0);
    for (int i = 0; i < N; i++)
        assert_true(to[0][i] == (float)from[i] && to[TEAM - 1][i] == (float)from[i]);
    if (cli_allocations_are_counted())
        assert_int_equal(cli_allocation_count(NULL) + cli_reserve_count(), before);
    (void)state;
}

int main(void)
{
    memfit_error err = {0};
    if (test_isa_is_missing())
        return 77;
    if (mf_reference_create(NULL, &reference, &err) != MEMFIT_OK || mf_cpu_create(NULL, 3, &other, &err) != MEMFIT_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    ((cpu_backend *)other)->share_from = 0;
    struct CMUnitTest tests[32];
    for (size_t i = 0; i < opcheck_case_count; i++)
        tests[i] = (struct CMUnitTest){.name = opcheck_cases[i].name,
                                       .test_func = agrees_with_the_reference,
                                       .initial_state = (void *)&opcheck_cases[i]};
    tests[opcheck_case_count] = (struct CMUnitTest){.name = "kernels_serve", .test_func = kernels_serve};
    tests[opcheck_case_count + 1] =
        (struct CMUnitTest){.name = "casts_in_a_team", .test_func = casts_in_a_team_take_no_memory};
    int failed = _cmocka_run_group_tests("backends", tests, opcheck_case_count + 2, NULL, NULL);
    other->table->destroy(other);
    reference->table->destroy(reference);
    return failed;
}
