/* test_plan_check.c: the plan's own check finds what is broken on purpose: overlaps, updates before readers, results written over. */
#include "plan_graphs.h"

#include "plan/recompute/bounds.h"
#include "plan/fit/fit.h"
#include "plan/flow/flow_order.h"
#include "pack/pack.h"
#include "plan/recompute/recompute.h"

static mf_plan *make_plan(const recipe *r, const mf_plan_options *options, memfit_error *err)
{
    mf_graph_source source = {(void *)r, make_graph};
    mf_plan *plan = NULL;
    memfit_status status = mf_plan_make(NULL, &source, options, &odd, &plan, err);
    return status == MEMFIT_OK ? plan : NULL;
}

/* Moves one stay in the arena down by 64 bytes in all its steps: as if what lies below had been planned 64 too small.
 */
static void move_down(mf_phase *phase, const mf_placed *stay)
{
    const mf_graph *g = phase->graph;
    for (uint32_t i = stay->first; i <= stay->last; i++) {
        const mf_op *op = &g->ops[phase->steps[i].op];
        for (uint32_t k = 0; k < op->in_count + op->out_count; k++) {
            uint32_t tensor = k < op->in_count ? op->in[k] : op->out[k - op->in_count];
            if (tensor != MF_NONE && g->tensors[tensor].storage == stay->storage &&
                phase->steps[i].offsets[k] == stay->offset + g->tensors[tensor].offset)
                phase->steps[i].offsets[k] -= 64;
        }
    }
}

/* Does b lie right above a while both are live? */
static bool touching(const mf_placed *a, const mf_placed *b)
{
    return a->storage != MF_NONE && b->storage != MF_NONE && a->bytes > 64 && b->first <= a->last &&
           a->first <= b->last && a->offset + a->bytes == b->offset && !a->handed_on && !b->handed_on;
}

static void test_a_shrunk_tensor_is_found(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t tried = 0;
    for (uint32_t seed = 0; seed < 20; seed++) {
        recipe r = {.seed = seed, .depth = 10, .branches = true};
        mf_plan_options options;
        mf_plan_options_default(&options);
        options.with_validation = options.with_prediction = false;
        options.batch = 4;
        for (size_t pair = 0, pairs = 1; pair < pairs; pair++) {
            mf_plan *plan = make_plan(&r, &options, &err);
            assert_non_null(plan);
            mf_phase *phase = &plan->phases[0];
            pairs = (size_t)phase->placed_count * phase->placed_count;
            while (pair < pairs &&
                   !touching(&phase->placed[pair / phase->placed_count], &phase->placed[pair % phase->placed_count]))
                pair++;
            if (pair < pairs) {
                move_down(phase, &phase->placed[pair % phase->placed_count]);
                if (mf_plan_check(plan, &err) == MEMFIT_OK)
                    fail_msg("seed %u: pair %zu: a tensor was shrunk and nobody saw it", seed, pair);
                tried++;
            }
            mf_plan_destroy(plan);
        }
    }
    assert_true(tried > 50);
}

static void test_an_update_before_a_reader_is_refused(void **state)
{
    (void)state;
    memfit_error err = {0};
    recipe r = {.seed = 4, .depth = 10};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.with_validation = options.with_prediction = false;
    mf_plan *plan = make_plan(&r, &options, &err);
    assert_non_null(plan);
    mf_phase *phase = &plan->phases[0];
    uint32_t update = MF_NONE, reader = MF_NONE;
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_op *op = &phase->graph->ops[phase->steps[i].op];
        if (op->kind != MF_OP_UPDATE)
            continue;
        for (uint32_t j = 0; j < i && update == MF_NONE; j++)
            for (uint32_t k = 0; k < phase->graph->ops[phase->steps[j].op].in_count; k++)
                if (phase->graph->ops[phase->steps[j].op].in[k] == op->in[0]) {
                    update = i;
                    reader = j;
                }
    }
    assert_true(update != MF_NONE);
    mf_step moved = phase->steps[update];
    memmove(phase->steps + reader + 1, phase->steps + reader, (update - reader) * sizeof *phase->steps);
    phase->steps[reader] = moved;
    assert_int_equal(mf_plan_check(plan, &err), MEMFIT_INVALID);
    mf_plan_destroy(plan);
}

/* A position between use k of cell c and the next one whose operation touches a variable; MF_NONE: none. */
static uint32_t between(const mf_flow *flow, uint32_t k)
{
    for (uint32_t p = flow->uses[k] + 1; p < flow->uses[k + 1]; p++)
        if (flow->var_at[flow->order[p]] < flow->var_at[flow->order[p] + 1])
            return p;
    return MF_NONE;
}

/* What was made from a parameter cannot be made again behind the parameter's update: such a sequence says so. */
static void test_an_updated_parameter_is_not_read_again(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t tried = 0;
    for (uint32_t seed = 0; seed < 60; seed++) {
        recipe r = {.seed = seed, .depth = 10, .branches = true};
        mf_graph *graph;
        mf_flow *flow;
        mf_sequence q;
        mf_choice choice;
        assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 8, false, &graph, &err), err);
        assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
        assert_ok(mf_sequence_init(&q, NULL, flow, &err), err);
        assert_ok(mf_choice_make(&flow->arena, flow, &choice, &err), err);
        for (uint32_t c = 0; c < flow->cell_count; c++) {
            uint32_t maker = flow->cells[c].maker;
            if (!flow->cells[c].repeatable || flow->var_at[maker] == flow->var_at[maker + 1])
                continue;
            for (uint32_t k = flow->use_at[c]; k + 1 < flow->use_at[c + 1]; k++) {
                uint32_t p = between(flow, k);
                if (p == MF_NONE)
                    continue;
                choice.drop[k] = MF_DROP;
                assert_ok(mf_sequence_build(&q, flow, &choice, &err), err);
                assert_true(q.valid && q.again_count > 0);
                uint32_t *var = &flow->vars[flow->var_at[flow->order[p]]], kept = *var;
                *var = flow->vars[flow->var_at[maker]] | MF_FLOW_WRITES;
                assert_ok(mf_sequence_build(&q, flow, &choice, &err), err);
                assert_false(q.valid);
                *var = kept;
                choice.drop[k] = MF_KEEP;
                tried++;
            }
        }
        mf_sequence_free(&q);
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
    }
    assert_true(tried > 20);
}

/* The graph's own check as well: its operations stand in a valid order, and an update is behind every reader. */
static void test_the_graph_refuses_it_too(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t refused = 0;
    for (uint32_t seed = 0; seed < 20; seed++) {
        recipe r = {.seed = seed, .depth = 10, .branches = true};
        mf_graph *g;
        assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 8, false, &g, &err), err);
        assert_ok(mf_graph_check(g, &err), err);
        for (uint32_t u = 0; u < g->op_count; u++) {
            if (g->ops[u].kind != MF_OP_UPDATE)
                continue;
            for (uint32_t reader = 0; reader < g->op_count; reader++) {
                bool reads = false;
                for (uint32_t k = 0; k < g->ops[reader].in_count; k++)
                    reads |= g->ops[reader].in[k] == g->ops[u].in[0];
                if (!reads || reader == u)
                    continue;
                mf_op update = g->ops[u]; /* right before the reader, behind the gradient where that is there by then */
                memmove(&g->ops[reader + 1], &g->ops[reader], (u - reader) * sizeof update);
                g->ops[reader] = update;
                assert_int_equal(mf_graph_check(g, &err), MEMFIT_INTERNAL);
                refused += strstr(err.message, "after its update") != NULL;
                memmove(&g->ops[reader], &g->ops[reader + 1], (u - reader) * sizeof update);
                g->ops[u] = update;
            }
        }
        assert_ok(mf_graph_check(g, &err), err);
        mf_graph_destroy(g);
    }
    assert_true(refused > 10);
}

/* Damage of every sort to a good plan is found. */
static void test_the_check_sees_damage(void **state)
{
    (void)state;
    memfit_error err = {0};
    recipe r = {.seed = 7, .depth = 14, .branches = true};
    mf_plan_options options;
    mf_plan_options_default(&options);
    for (int damage = 0; damage < 8; damage++) {
        mf_plan *plan = make_plan(&r, &options, &err);
        assert_non_null(plan);
        mf_phase *phase = &plan->phases[0];
        mf_step *middle = &phase->steps[phase->step_count / 2];
        if (damage == 0)
            middle->offsets[0] += 1;
        else if (damage == 1)
            phase->step_count--;
        else if (damage == 2)
            middle->recomputed = true;
        else if (damage == 3)
            plan->arena_bytes += 64;
        else if (damage == 4)
            plan->peak_bytes++;
        else if (damage == 5)
            middle->offsets[phase->graph->ops[middle->op].in_count] = 0;
        else if (damage == 6)
            plan->variable_offsets[0] += 64;
        else
            phase->steps[phase->step_count - 1] = *middle;
        if (mf_plan_check(plan, &err) == MEMFIT_OK)
            fail_msg("damage %d was not seen", damage);
        mf_plan_destroy(plan);
    }
}

/* The shapes of a * b in a net that predicts: both round to one unit of the alignment, and the first dies there. */
typedef struct product {
    mf_shape a, b;
    bool rows; /* b is a's first row, repeated */
} product;

static memfit_status make_product(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                  mf_graph **graph, memfit_error *err)
{
    const product *p = ctx;
    mf_build b;
    mf_build_begin(&b, host, err);
    b.layer = mf_build_layer(&b, "multiply", "Multiply");
    uint32_t x = mf_g_unary(&b, MF_UNARY_TANH, 0, 0, mf_g_input(&b, "a", MF_F32, p->a));
    uint32_t y =
        p->rows ? mf_g_rows(&b, x, 0, 1) : mf_g_unary(&b, MF_UNARY_TANH, 0, 0, mf_g_input(&b, "b", MF_F32, p->b));
    uint32_t z = mf_g_unary(&b, MF_UNARY_EXP, 0, 0, mf_g_binary(&b, MF_MUL, x, y));
    memfit_status status = mf_build_end_keeping(&b, 1, &z, graph);
    if (status == MEMFIT_OK) {
        (*graph)->mode = mode;
        (*graph)->batch = batch;
        (*graph)->accumulate = accumulate;
    }
    return status;
}

/* Does the product lie where its operand `in` lay? With `force` it is put there. */
static bool overwrites(mf_plan *plan, uint32_t in, bool force)
{
    mf_phase *phase = &plan->phases[0];
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_op *op = &phase->graph->ops[phase->steps[i].op];
        if (op->kind != MF_OP_BINARY)
            continue;
        uint64_t *at = phase->steps[i].offsets;
        bool same = at[2] == at[in];
        for (uint32_t j = i; force && j < phase->step_count; j++) /* and its reader finds it there */
            for (uint32_t k = 0; k < phase->graph->ops[phase->steps[j].op].in_count; k++)
                if (phase->graph->ops[phase->steps[j].op].in[k] == op->out[0])
                    phase->steps[j].offsets[k] = at[in];
        if (force)
            at[2] = at[in];
        return same;
    }
    fail_msg("no product");
    return false;
}

static mf_plan *plan_product(const product *p)
{
    memfit_error err = {0};
    mf_graph_source source = {(void *)p, make_product};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 2;
    options.only = MF_MODE_PREDICT;
    mf_plan *plan;
    assert_ok(mf_plan_make(NULL, &source, &options, NULL, &plan, &err), err);
    return plan;
}

/* An operand that is repeated is read again after the first result is written: it is never written over, neither by the
 * planner nor past the check. One of the result's own shape is. */
static void test_a_repeated_operand_is_not_written_over(void **state)
{
    (void)state;
    static const struct {
        product p;
        uint32_t in;
        bool may, does;
    } cases[] = {
        {{{2, {2, 1}}, {2, {2, 8}}, false}, 0, false, false}, {{{2, {2, 8}}, {2, {2, 1}}, false}, 0, true, true},
        {{{2, {2, 8}}, {2, {2, 1}}, false}, 1, false, false}, {{{2, {2, 8}}, {2, {2, 8}}, false}, 0, true, true},
        {{{2, {2, 8}}, {2, {2, 8}}, false}, 1, true, false},  {{{2, {2, 4}}, {1, {4}}, false}, 1, false, false},
        {{{2, {2, 4}}, {2, {1, 4}}, true}, 0, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memfit_error err = {0};
        mf_plan *plan = plan_product(&cases[i].p);
        assert_ok(mf_plan_check(plan, &err), err);
        if (overwrites(plan, cases[i].in, true) != cases[i].does)
            fail_msg("case %zu: the planner %s the operand", i, cases[i].does ? "does not write over" : "writes over");
        if ((mf_plan_check(plan, &err) == MEMFIT_OK) != cases[i].may)
            fail_msg("case %zu: the check %s", i, cases[i].may ? "refuses" : "does not see it");
        mf_plan_destroy(plan);
    }
}

/* Two results, the second made from the first by the last operation of all. */
static memfit_status make_two_results(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                      mf_graph **graph, memfit_error *err)
{
    (void)ctx;
    mf_build b;
    mf_build_begin(&b, host, err);
    b.layer = mf_build_layer(&b, "two", "Model");
    uint32_t x = mf_g_input(&b, "x", MF_F32, dims(2, batch, 8, 0, 0)), *y = MF_NEW_ARRAY(&b.graph->arena, uint32_t, 2);
    y[0] = mf_g_unary(&b, MF_UNARY_TANH, 0, 0, x);
    y[1] = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, y[0]);
    b.graph->outputs = y;
    b.graph->output_count = 2;
    b.graph->mode = mode;
    b.graph->batch = batch;
    b.graph->accumulate = accumulate;
    return mf_build_end(&b, graph);
}

static void test_a_result_is_not_written_over(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_graph_source source = {NULL, make_two_results};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.only = MF_MODE_PREDICT;
    mf_plan *plan;
    assert_ok(mf_plan_make(NULL, &source, &options, NULL, &plan, &err), err);
    const mf_step *last = &plan->phases[0].steps[plan->phases[0].step_count - 1];
    assert_true(last->offsets[0] != last->offsets[1]);
    mf_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_shrunk_tensor_is_found),
        cmocka_unit_test(test_an_update_before_a_reader_is_refused),
        cmocka_unit_test(test_an_updated_parameter_is_not_read_again),
        cmocka_unit_test(test_the_graph_refuses_it_too),
        cmocka_unit_test(test_the_check_sees_damage),
        cmocka_unit_test(test_a_repeated_operand_is_not_written_over),
        cmocka_unit_test(test_a_result_is_not_written_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
