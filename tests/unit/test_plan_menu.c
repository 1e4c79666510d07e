/* test_plan_menu.c: several methods for one operation: which one is taken, and that it reaches the step. */
#include "plan_graphs.h"

#include <string.h>

static mf_method method(unsigned char id, uint64_t workspace, double us)
{
    return (mf_method){.id = {id}, .workspace_bytes = workspace, .time_us = us, .deterministic = true};
}

static mf_cost menu(void)
{
    mf_cost cost = {.supported = true, .method_count = 4};
    cost.methods[0] = method(1, 4096, 20);
    cost.methods[1] = method(2, 1 << 20, 10);
    cost.methods[2] = method(3, 0, 90);
    cost.methods[3] = method(4, 64, 90);
    return cost;
}

static void takes_the_fastest_that_fits(void **state)
{
    (void)state;
    mf_cost cost = menu();
    mf_method_rules rules = {false, false};
    assert_int_equal(mf_cost_choose(&cost, rules, UINT64_MAX), 1);
    assert_int_equal(mf_cost_choose(&cost, rules, 1 << 20), 1);
    assert_int_equal(mf_cost_choose(&cost, rules, (1 << 20) - 1), 0);
    assert_int_equal(mf_cost_choose(&cost, rules, 4095), 2); /* the first of two that take as long */
    assert_int_equal(mf_cost_choose(&cost, rules, 0), 2);
    cost.methods[2].workspace_bytes = 128;
    assert_int_equal(mf_cost_choose(&cost, rules, 0), 3); /* none fits: the least bytes, whatever the time */
    cost.method_count = 1;
    assert_int_equal(mf_cost_choose(&cost, rules, 0), 0);
}

static void keeps_to_the_rules(void **state)
{
    (void)state;
    mf_cost cost = menu();
    cost.methods[1].deterministic = false;
    assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){false, false}, UINT64_MAX), 0);
    assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){true, false}, UINT64_MAX), 1);
    cost.methods[1].numerics = MF_CHANGED;
    assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){true, false}, UINT64_MAX), 0);
    assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){true, true}, UINT64_MAX), 1);
    for (uint32_t i = 0; i < cost.method_count; i++)
        cost.methods[i].deterministic = false;
    assert_int_equal(mf_cost_choose(&cost, (mf_method_rules){false, true}, UINT64_MAX), 1); /* it must run somehow */
}

/* Two methods for a product, one for all else. The ids say which operation they were answered for. */
static memfit_status two_methods(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    (void)ctx, (void)err;
    *cost = mf_cost_one(0, 2);
    if (graph->ops[op].kind != MF_OP_MATMUL)
        return MEMFIT_OK;
    cost->method_count = 2;
    cost->methods[0] = method((unsigned char)(op + 1), 64, 9);
    cost->methods[1] = method((unsigned char)(op + 101), 640, 5);
    return MEMFIT_OK;
}

/* A product is fast with 16 MiB. */
static memfit_status large_and_small(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    (void)ctx, (void)err;
    *cost = mf_cost_one(0, 2);
    if (graph->ops[op].kind != MF_OP_MATMUL)
        return MEMFIT_OK;
    cost->method_count = 2;
    cost->methods[0] = method(1, 16 << 20, 5);
    cost->methods[1] = method(2, 64, 9);
    cost->methods[1].numerics = MF_REORDERED;
    return MEMFIT_OK;
}

/* A product is faster in no fixed order. */
static memfit_status loose_and_fixed(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    memfit_status status = two_methods(ctx, graph, op, cost, err);
    if (cost->method_count == 2)
        cost->methods[1].deterministic = false;
    return status;
}

/* A plan that adds in no fixed order says so. */
static void no_fixed_order_is_reordered(void **state)
{
    (void)state;
    recipe r = {.seed = 5, .depth = 12};
    mf_graph_source source = {&r, make_graph};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 8;
    for (int allowed = 0; allowed < 2; allowed++) {
        mf_cost_source cost = {.query = loose_and_fixed, .alignment = 64, .rules = {.allow_nondeterministic = allowed}};
        mf_plan *plan;
        memfit_error err = {0};
        assert_ok(mf_plan_make(NULL, &source, &options, &cost, &plan, &err), err);
        assert_int_equal(plan->numerics, allowed ? MF_REORDERED : MF_BITWISE);
        for (uint32_t i = 0; i < plan->phases[0].step_count; i++)
            if (plan->phases[0].steps[i].method)
                assert_int_equal(plan->phases[0].steps[i].method->deterministic, !allowed);
        mf_plan_destroy(plan);
    }
}

static void the_step_carries_the_choice(void **state)
{
    (void)state;
    recipe r = {.seed = 5, .depth = 12};
    mf_graph_source source = {&r, make_graph};
    mf_cost_source cost = {.query = two_methods, .alignment = 64};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 8;
    mf_plan *plan;
    memfit_error err = {0};
    assert_ok(mf_plan_make(NULL, &source, &options, &cost, &plan, &err), err);
    assert_ok(mf_plan_check(plan, &err), err);
    const mf_phase *phase = &plan->phases[0];
    unsigned products = 0;
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_step *step = &phase->steps[i];
        bool product = phase->graph->ops[step->op].kind == MF_OP_MATMUL;
        products += product;
        assert_int_equal(step->method != NULL, product);
        if (product) {
            assert_int_equal(step->method->id[0], (unsigned char)(step->op + 101));
            assert_int_equal(step->workspace_bytes, 640);
        }
    }
    assert_true(products > 2);
    mf_plan_destroy(plan);
}

/* Memory is short: the smaller method, and the plan says that its sums are others. */
static void a_limit_takes_the_smaller_method(void **state)
{
    (void)state;
    recipe r = {.seed = 5, .depth = 12};
    mf_graph_source source = {&r, make_graph};
    mf_cost_source cost = {.query = large_and_small, .alignment = 64};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 8;
    mf_plan *plan;
    memfit_error err = {0};
    for (int tight = 0; tight < 2; tight++) {
        options.limit_bytes = tight ? 4 << 20 : 64 << 20;
        assert_ok(mf_plan_make(NULL, &source, &options, &cost, &plan, &err), err);
        assert_ok(mf_plan_check(plan, &err), err);
        assert_true(plan->arena_bytes <= options.limit_bytes);
        assert_int_equal(plan->numerics, tight ? MF_REORDERED : MF_BITWISE);
        for (uint32_t i = 0; i < plan->phases[0].step_count; i++)
            if (plan->phases[0].steps[i].method)
                assert_int_equal(plan->phases[0].steps[i].method->id[0], tight ? 2 : 1);
        mf_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_fastest_that_fits),      cmocka_unit_test(keeps_to_the_rules),
        cmocka_unit_test(no_fixed_order_is_reordered),      cmocka_unit_test(the_step_carries_the_choice),
        cmocka_unit_test(a_limit_takes_the_smaller_method),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
