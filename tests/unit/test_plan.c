/* test_plan.c: lifetimes, placing, recomputation and the plan's own check, on small random graphs with real gradients.
 */
#include "test.h"

#include "graph/build.h"
#include "plan/bounds.h"
#include "plan/fit.h"
#include "plan/pack.h"
#include "plan/recompute.h"

/* ---- random graphs ---------------------------------------------------------------------------------------- */

typedef struct recipe {
    uint32_t seed;
    uint32_t depth;  /* forward operations, about */
    bool batch_norm; /* claim trainable BatchNormalization */
    bool branches;
} recipe;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static uint32_t add_weight(mf_build *b, int64_t rows, int64_t columns)
{
    mf_variable v = {.name = "w",
                     .role = MF_VAR_PARAMETER,
                     .kind = MEMFIT_KIND_PARAMETERS,
                     .trainable = true,
                     .dtype = MF_F32,
                     .shape = {.rank = 2, .dim = {rows, columns}},
                     .parameter = MF_NONE};
    return mf_g_use(b, mf_g_variable(b, &v));
}

/* Dense and pointwise layers in a chain with skips, mean of the result as loss, plain updates. */
static memfit_status make_graph(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                mf_graph **graph, memfit_error *err)
{
    const recipe *r = ctx;
    uint32_t random = r->seed * 2654435761u + 1;
    mf_build b;
    mf_build_begin(&b, host, err);
    uint32_t weights[32], weight_count = 0, older = MF_NONE;
    b.layer = mf_build_layer(&b, "in", "InputLayer");
    uint32_t x = mf_g_input(&b, "x", MF_F32, (mf_shape){.rank = 2, .dim = {batch, 16}});
    b.phase = MF_FORWARD;
    for (uint32_t i = 0; i < r->depth && mf_build_ok(&b); i++) {
        char name[24];
        snprintf(name, sizeof name, "layer_%u", i);
        b.layer = mf_build_layer(&b, name, "Dense");
        uint32_t what = next_random(&random) % 4;
        int64_t width = mf_g_shape(&b, x).dim[1];
        if (what == 0 && weight_count < 30) {
            int64_t to = 8 << next_random(&random) % 4;
            weights[weight_count] = add_weight(&b, width, to);
            x = mf_g_matmul(&b, x, weights[weight_count++], MF_NONE, false, false, 1);
            older = MF_NONE;
        } else if (what == 1) {
            x = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, x);
        } else if (what == 2) {
            if (r->branches)
                older = x;
            x = mf_g_unary(&b, MF_UNARY_GELU, 0, 0, x);
        } else if (older != MF_NONE) {
            x = mf_g_binary(&b, MF_ADD, x, older);
            older = MF_NONE;
        } else {
            x = mf_g_unary(&b, MF_UNARY_TANH, 0, 0, x);
        }
    }
    if (!weight_count) {
        weights[weight_count++] = add_weight(&b, mf_g_shape(&b, x).dim[1], 8);
        x = mf_g_matmul(&b, x, weights[0], MF_NONE, false, false, 1);
    }
    if (mode == MF_MODE_TRAIN) {
        b.phase = MF_BACKWARD;
        b.kind = MEMFIT_KIND_GRADIENTS;
        uint32_t dy = mf_g_fill(&b, MF_F32, mf_g_shape(&b, x), 1), gradients[32];
        mf_g_backward(&b, 1, &x, &dy, weight_count, weights, gradients);
        b.phase = MF_UPDATE_PHASE;
        for (uint32_t i = 0; i < weight_count && mf_build_ok(&b); i++) {
            uint32_t in[2] = {weights[i], gradients[i]};
            mf_attr attr = {.update = {.optimizer = MF_OPTIMIZER_SGD}};
            mf_g_op_in_place(&b, MF_OP_UPDATE, &attr, 2, in, 1, in);
        }
    }
    memfit_status status;
    if (mode == MF_MODE_TRAIN)
        status = mf_build_end(&b, graph);
    else
        status = mf_build_end_keeping(&b, 1, &x, graph);
    if (status == MEMFIT_OK) {
        (*graph)->mode = mode;
        (*graph)->batch = batch;
        (*graph)->accumulate = accumulate;
        (*graph)->uses_batch_norm = r->batch_norm;
    }
    return status;
}

/* Times that differ, and a workspace for every matrix product. */
static memfit_status odd_cost(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    (void)ctx;
    (void)err;
    const mf_op *o = &graph->ops[op];
    *cost = (mf_cost){.supported = true, .deterministic = true, .time_us = 1 + (op * 7) % 5};
    if (o->kind == MF_OP_MATMUL) {
        cost->workspace_bytes = 100 * (uint64_t)graph->batch;
        cost->time_us += 20;
    }
    return MEMFIT_OK;
}

static const mf_cost_source odd = {.query = odd_cost, .alignment = 64};

static mf_plan *make_plan(const recipe *r, const mf_plan_options *options, memfit_error *err)
{
    mf_graph_source source = {(void *)r, make_graph};
    mf_plan *plan = NULL;
    memfit_status status = mf_plan_make(NULL, &source, options, &odd, &plan, err);
    return status == MEMFIT_OK ? plan : NULL;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void test_random_plans_hold(void **state)
{
    (void)state;
    memfit_error err = {0};
    for (uint32_t seed = 0; seed < 200; seed++) {
        recipe r = {.seed = seed, .depth = 2 + seed % 20, .branches = seed % 2};
        mf_plan_options options;
        mf_plan_options_default(&options);
        options.batch = 1 + seed % 7;
        mf_plan *plan = make_plan(&r, &options, &err);
        if (!plan)
            fail_msg("seed %u: %s", seed, err.message);
        assert_ok(mf_plan_check(plan, &err), err);
        assert_int_equal(plan->peak_bytes, plan->fixed_bytes + plan->arena_bytes);
        assert_int_equal(plan->pieces, 1);
        assert_int_equal(plan->recomputed_ops, 0);
        for (uint32_t p = 0; p < plan->phase_count; p++)
            assert_true(plan->phases[p].bytes >= plan->variables_end + plan->phases[p].load_bytes);
        mf_plan_destroy(plan);
    }
}

/* Every budget between the least and what is asked: the plan holds, fits, and more memory is never slower. */
static void test_budgets_are_kept(void **state)
{
    (void)state;
    memfit_error err = {0};
    for (uint32_t seed = 0; seed < 40; seed++) {
        recipe r = {.seed = seed, .depth = 24, .branches = true};
        mf_plan_options options;
        mf_plan_options_default(&options);
        options.batch = 64;
        options.pieces = 1;
        options.with_validation = options.with_prediction = false;
        mf_plan *whole = make_plan(&r, &options, &err);
        assert_non_null(whole);
        double last = 1e30;
        for (int part = 4; part <= 10; part++) {
            options.limit_bytes = whole->variables_end + (whole->peak_bytes - whole->variables_end) * part / 10;
            mf_plan *plan = make_plan(&r, &options, &err);
            if (!plan) {
                assert_int_equal(err.code, MEMFIT_DOES_NOT_FIT);
                assert_true(last == 1e30); /* what a smaller budget could, a larger one can */
                continue;
            }
            assert_true(plan->peak_bytes <= options.limit_bytes);
            assert_ok(mf_plan_check(plan, &err), err);
            assert_true(plan->time_us <= last);
            assert_int_equal(plan->numerics, MF_BITWISE);
            last = plan->time_us;
            mf_plan_destroy(plan);
        }
        mf_plan_destroy(whole);
    }
}

static void test_pieces_and_rest(void **state)
{
    (void)state;
    memfit_error err = {0};
    recipe r = {.seed = 3, .depth = 12, .branches = true};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 10;
    options.pieces = 4; /* pieces of 3, 3, 3 and 1 */
    options.samples = 24;
    mf_plan *plan = make_plan(&r, &options, &err);
    if (!plan)
        fail_msg("%s", err.message);
    assert_int_equal(plan->pieces, 4);
    assert_int_equal(plan->numerics, MF_REORDERED);
    assert_int_equal(plan->phases[0].role, MF_PHASE_TRAIN);
    assert_int_equal(plan->phases[0].batch, 3);
    assert_int_equal(plan->phases[0].repeat, 3);
    assert_int_equal(plan->phases[1].role, MF_PHASE_TRAIN_REST);
    assert_int_equal(plan->phases[1].batch, 1);
    assert_int_equal(plan->phases[2].role, MF_PHASE_LAST_BATCH); /* 4 samples left: 3 and 1 */
    assert_int_equal(plan->phases[2].batch * plan->phases[2].repeat + plan->phases[3].batch, 4);
    mf_plan_destroy(plan);
    r.batch_norm = true;
    plan = make_plan(&r, &options, &err);
    assert_non_null(plan);
    assert_int_equal(plan->numerics, MF_CHANGED);
    mf_plan_destroy(plan);
    /* the planner itself never splits a batch under BatchNormalization, unless allowed */
    options.pieces = 0;
    options.samples = 0;
    options.recompute = MF_RECOMPUTE_OFF;
    options.batch = 64;
    mf_plan *whole = make_plan(&r, &options, &err);
    assert_non_null(whole);
    options.limit_bytes = whole->peak_bytes * 6 / 10;
    mf_plan_destroy(whole);
    assert_null(make_plan(&r, &options, &err));
    assert_int_equal(err.code, MEMFIT_DOES_NOT_FIT);
    options.allow_changed = true;
    plan = make_plan(&r, &options, &err);
    assert_non_null(plan);
    assert_true(plan->pieces > 1 && plan->peak_bytes <= options.limit_bytes);
    assert_int_equal(plan->numerics, MF_CHANGED);
    mf_plan_destroy(plan);
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

/* ---- against brute force ---------------------------------------------------------------------------------- */

/* All subsets of the gaps: the least time below a budget. */
static void brute_force(const mf_flow *flow, mf_sequence *q, mf_choice *choice, const uint32_t *gaps, uint32_t count,
                        uint64_t budget, double *best)
{
    memfit_error err;
    *best = 1e30;
    for (uint32_t mask = 0; mask < 1u << count; mask++) {
        for (uint32_t i = 0; i < count; i++)
            choice->drop[gaps[i]] = mask >> i & 1;
        assert_ok(mf_sequence_build(q, flow, choice, &err), err);
        if (q->valid && q->peak <= budget && q->time_us < *best)
            *best = q->time_us;
    }
}

static void test_search_against_brute_force(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t compared = 0, equal = 0;
    double worst = 1;
    for (uint32_t seed = 0; seed < 60; seed++) {
        recipe r = {.seed = seed, .depth = 4 + seed % 8, .branches = true};
        mf_graph *graph;
        mf_flow *flow;
        mf_sequence q;
        mf_tradeoff *t;
        mf_arena arena;
        mf_choice choice;
        assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 16, false, &graph, &err), err);
        assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
        assert_ok(mf_sequence_init(&q, NULL, flow, &err), err);
        mf_arena_init(&arena, NULL);
        assert_ok(mf_choice_make(&arena, flow, &choice, &err), err);
        assert_ok(mf_tradeoff_create(NULL, flow, &t, &err), err);
        uint32_t gaps[12], count = 0;
        for (uint32_t c = 0; c < flow->cell_count; c++)
            for (uint32_t k = flow->use_at[c]; k + 1 < flow->use_at[c + 1] && count < 12; k++)
                if (flow->cells[c].repeatable && flow->uses[k + 1] - flow->uses[k] > 1)
                    gaps[count++] = k;
        uint64_t high = t->stops[0].load;
        for (int part = 5; part <= 10; part++) {
            uint64_t budget = high * part / 10;
            double best;
            bool fits;
            brute_force(flow, &q, &choice, gaps, count, budget, &best);
            assert_ok(mf_tradeoff_fit(t, budget, &fits, &err), err);
            if (best == 1e30)
                continue;
            compared++;
            if (!fits)
                fail_msg("seed %u budget %d/10: brute force fits, the search does not", seed, part);
            double ratio = t->sequence.time_us / best;
            equal += ratio <= 1.0001;
            worst = ratio > worst ? ratio : worst;
        }
        mf_tradeoff_destroy(t);
        mf_arena_destroy(&arena);
        mf_sequence_free(&q);
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
    }
    print_message("%u budgets compared, %u equal to brute force, worst %.4f\n", compared, equal, worst);
    assert_true(compared > 80);
    assert_true(worst <= 1.01);
}

/* The sum of live bytes, counted step by step from the lives, is what the sequence says; bounds are below it. */
static void test_loads_and_bounds(void **state)
{
    (void)state;
    memfit_error err = {0};
    for (uint32_t seed = 0; seed < 60; seed++) {
        recipe r = {.seed = seed, .depth = 2 + seed % 10, .branches = true};
        mf_graph *graph;
        mf_flow *flow;
        mf_sequence q;
        assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 8, false, &graph, &err), err);
        assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
        assert_ok(mf_sequence_init(&q, NULL, flow, &err), err);
        assert_ok(mf_sequence_build(&q, flow, NULL, &err), err);
        uint64_t peak = 0;
        for (uint32_t run = 0; run < q.run_count; run++) {
            uint64_t sum = flow->workspace[q.runs[run].op];
            for (uint32_t i = 0; i < q.life_count; i++)
                if (q.lives[i].birth <= run && run <= q.lives[i].death &&
                    !(q.lives[i].handed_on && q.lives[i].death == run))
                    sum += flow->cells[q.lives[i].cell].bytes;
            assert_int_equal(sum, q.load[run]);
            peak = sum > peak ? sum : peak;
        }
        assert_int_equal(peak, q.peak);
        mf_bounds bounds;
        mf_bounds_make(flow, &bounds);
        assert_true(bounds.working_set_bytes <= q.peak);
        assert_true(bounds.save_set_bytes <= q.peak);
        double extra;
        assert_ok(mf_bounds_recompute(NULL, flow, q.peak, &extra, &err), err);
        assert_true(extra == 0);
        mf_sequence_free(&q);
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
    }
}

static void test_lack_of_memory(void **state)
{
    (void)state;
    recipe r = {.seed = 5, .depth = 8, .branches = true};
    mf_graph_source source = {&r, make_graph};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 8;
    memfit_error err = {0};
    mf_plan *plan = make_plan(&r, &options, &err);
    assert_non_null(plan);
    options.limit_bytes = plan->peak_bytes * 8 / 10;
    mf_plan_destroy(plan);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1;; n += 1 + n / 40) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, for_ever);
            plan = NULL;
            memfit_status status = mf_plan_make(&fault.host, &source, &options, &odd, &plan, &err);
            bool reached = fault.calls >= n;
            if (reached && status == MEMFIT_OK)
                mf_plan_destroy(plan);
            else if (reached)
                assert_int_equal(status, MEMFIT_NO_HOST_MEMORY);
            else
                mf_plan_destroy(plan);
            assert_int_equal(fault.live_bytes, 0);
            if (!reached)
                break;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans_hold),
        cmocka_unit_test(test_budgets_are_kept),
        cmocka_unit_test(test_pieces_and_rest),
        cmocka_unit_test(test_a_shrunk_tensor_is_found),
        cmocka_unit_test(test_an_update_before_a_reader_is_refused),
        cmocka_unit_test(test_the_check_sees_damage),
        cmocka_unit_test(test_search_against_brute_force),
        cmocka_unit_test(test_loads_and_bounds),
        cmocka_unit_test(test_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
