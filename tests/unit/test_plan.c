/* test_plan.c: lifetimes, placing, recomputation and the plan's own check, on small random graphs with real gradients.
 */
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

/* Twenty budgets up to what is asked: every plan holds and fits; more memory is never slower, less is never bigger. */
static void test_budgets_are_kept(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t seeds = getenv("MEMFIT_LONG_TESTS") ? 300 : 25, fitting = 0;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        recipe r = {.seed = seed, .depth = seed % 3 ? 12 : 24, .branches = true};
        mf_graph_source source = {&r, make_graph};
        mf_plan_options options;
        mf_plan_options_default(&options);
        options.batch = 64;
        options.with_validation = options.with_prediction = false;
        mf_fitter fitter;
        mf_fit_entry *entry;
        mf_fitter_init(&fitter, NULL, &source, &options, &odd);
        assert_ok(mf_fitter_entry(&fitter, MF_MODE_TRAIN, 64, false, &entry, &err), err);
        double last = 1e30;
        uint64_t peak = 0;
        for (uint64_t part = 1; part <= 20; part++) {
            mf_way way = {.batch = 64,
                          .pieces = 1,
                          .recompute = true,
                          .limit_bytes = entry->variables_end + entry->order->keep.peak * part / 20};
            mf_plan *plan;
            assert_ok(mf_fitter_try(&fitter, &way, &plan, &err), err);
            if (!plan->fits) {
                assert_true(last == 1e30); /* what a smaller budget could, a larger one can */
            } else {
                assert_true(plan->peak_bytes <= way.limit_bytes);
                assert_ok(mf_plan_check(plan, &err), err);
                assert_true(plan->time_us <= last);
                assert_true(plan->peak_bytes >= peak);
                assert_int_equal(plan->numerics, MF_BITWISE);
                last = plan->time_us;
                peak = plan->peak_bytes;
                fitting++;
            }
            mf_plan_destroy(plan);
        }
        assert_true(last < 1e30);
        mf_fitter_free(&fitter);
    }
    assert_true(fitting > 6 * seeds);
}

/* The whole road, from options to a plan or a refusal that says what stands in the way. */
static void test_a_limit_is_kept_or_refused(void **state)
{
    (void)state;
    memfit_error err = {0};
    for (uint32_t seed = 0; seed < 4; seed++) {
        recipe r = {.seed = seed, .depth = 24, .branches = true};
        mf_plan_options options;
        mf_plan_options_default(&options);
        options.batch = 64;
        options.pieces = 1;
        options.quick = seed % 2;
        mf_plan *whole = make_plan(&r, &options, &err);
        assert_non_null(whole);
        for (uint64_t part = 2; part <= 10; part += 4) {
            options.limit_bytes = whole->variables_end + (whole->peak_bytes - whole->variables_end) * part / 10;
            mf_plan *plan = make_plan(&r, &options, &err);
            if (plan)
                assert_true(plan->peak_bytes <= options.limit_bytes);
            else
                assert_int_equal(err.code, MEMFIT_DOES_NOT_FIT);
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
        assert_ok(mf_bounds_recompute(NULL, flow, q.peak, 2000, &extra, &err), err);
        assert_true(extra == 0);
        mf_sequence_free(&q);
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
    }
}

/* Every allocation fails, alone and with all that follow. */
static void test_lack_of_memory(void **state)
{
    (void)state;
    uint64_t tried = 0, refused = 0;
    recipe r = {.seed = 5, .depth = 5, .branches = true};
    mf_graph_source source = {&r, make_graph};
    mf_plan_options options;
    mf_plan_options_default(&options);
    options.batch = 8;
    options.quick = true; /* the same allocations, fewer steps between them */
    memfit_error err = {0};
    mf_plan *plan = make_plan(&r, &options, &err);
    assert_non_null(plan);
    options.limit_bytes = plan->peak_bytes * 8 / 10;
    mf_plan_destroy(plan);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1;; n++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, for_ever);
            plan = NULL;
            memfit_status status = mf_plan_make(&fault.host, &source, &options, &odd, &plan, &err);
            bool reached = fault.calls >= n;
            tried++;
            refused += status != MEMFIT_OK;
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
    print_message("%llu allocations failed, one by one and from there on; %llu made the plan fail\n",
                  (unsigned long long)tried, (unsigned long long)refused);
    assert_true(refused > 100);
}

/* The same within the search for recomputations, in a graph that is not small: bounds and what they would keep. */
static void test_the_search_lacks_memory(void **state)
{
    (void)state;
    enum { WORK = 200000 };
    recipe r = {.seed = 1, .depth = 14, .branches = true};
    memfit_error err = {0};
    mf_graph *graph;
    mf_flow *flow;
    uint64_t tried = 0;
    assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 8, false, &graph, &err), err);
    assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
    for (uint64_t n = 1, reached = 1; reached; n += 1 + n / 64, tried++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, false);
        mf_tradeoff *t = NULL;
        memfit_status status = mf_tradeoff_create(&fault.host, flow, WORK, &t, &err);
        reached = fault.calls >= n;
        assert_int_equal(status, reached ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OK);
        mf_tradeoff_destroy(t);
        assert_int_equal(fault.live_bytes, 0);
    }
    print_message("%llu allocations of a search failed\n", (unsigned long long)tried - 1);
    mf_flow_destroy(flow);
    mf_graph_destroy(graph);
}

/* Every part of the search ends with the work it was given, give or take a sequence. */
static void test_the_search_ends_by_work(void **state)
{
    (void)state;
    enum { WORK = 20000 };
    for (uint32_t depth = 4; depth < 40; depth += 3) {
        recipe r = {.seed = depth, .depth = depth, .branches = true};
        memfit_error err = {0};
        mf_graph *graph;
        mf_flow *flow;
        mf_tradeoff *t = NULL;
        assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 8, false, &graph, &err), err);
        assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
        assert_ok(mf_tradeoff_create(NULL, flow, WORK, &t, &err), err);
        if (t->work > WORK + WORK / 2 + 1000)
            fail_msg("%u operations, %u gaps: work %llu of %d", flow->order_count, t->gap_count,
                     (unsigned long long)t->work, WORK);
        mf_tradeoff_destroy(t);
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
    }
}

/* ---- another order (flow_order.c) ------------------------------------------------------------------------- */

/* Who wrote what an operation reads, and where in its turn among the writers of one storage it stands: an account of an
 * order that shares nothing with flow_order.c. Two orders with the same account give the same bits. */
static uint64_t account(const mf_flow *flow, const uint32_t *order)
{
    const mf_graph *g = flow->graph;
    uint32_t slots = flow->cell_count + g->variable_count;
    uint64_t *version = calloc(slots + 1, sizeof *version), sum = 0;
    for (uint32_t i = 0; i < flow->order_count; i++) {
        uint32_t o = order[i];
        uint64_t seen = o + 1;
        for (uint32_t k = flow->read_at[o]; k < flow->read_at[o + 1]; k++)
            seen = seen * 1099511628211u + version[flow->reads[k]];
        for (uint32_t k = flow->var_at[o]; k < flow->var_at[o + 1]; k++)
            seen = seen * 1099511628211u + version[flow->cell_count + (flow->vars[k] & ~MF_FLOW_WRITES)];
        for (uint32_t k = flow->write_at[o]; k < flow->write_at[o + 1]; k++)
            version[flow->writes[k]] = version[flow->writes[k]] * 31 + o + 1;
        for (uint32_t k = flow->var_at[o]; k < flow->var_at[o + 1]; k++)
            if (flow->vars[k] & MF_FLOW_WRITES) {
                uint64_t *v = &version[flow->cell_count + (flow->vars[k] & ~MF_FLOW_WRITES)];
                *v = *v * 31 + o + 1;
            }
        sum += seen * seen; /* the order itself does not count */
    }
    free(version);
    return sum;
}

static uint64_t peak_of(const mf_flow *flow)
{
    memfit_error err = {0};
    mf_sequence q;
    assert_ok(mf_sequence_init(&q, NULL, flow, &err), err);
    assert_ok(mf_sequence_build(&q, flow, NULL, &err), err);
    uint64_t peak = q.peak;
    mf_sequence_free(&q);
    return peak;
}

/* The greedy order is one of the same operations that gives the same bits; what is planned never needs more than the
 * graph's own order does; and an order that breaks a dependency is seen. */
static void test_other_orders_hold(void **state)
{
    (void)state;
    memfit_error err = {0};
    uint32_t lower = 0, broken = 0;
    for (uint32_t seed = 0; seed < 300; seed++) {
        recipe r = {.seed = seed, .depth = 3 + seed % 28, .branches = true};
        mf_graph_source source = {&r, make_graph};
        mf_mode mode = seed % 4 == 3 ? MF_MODE_PREDICT : MF_MODE_TRAIN;
        int64_t batch = 1 + seed % 5 * 16;
        mf_graph *graph;
        mf_flow *flow, *other;
        assert_ok(make_graph(&r, NULL, mode, batch, false, &graph, &err), err);
        assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
        uint32_t *order = calloc(flow->order_count + 1, sizeof *order), n = flow->order_count;
        bool holds;
        assert_ok(mf_flow_order_greedy(NULL, flow, order, &err), err);
        assert_ok(mf_flow_order_holds(NULL, flow, order, &holds, &err), err);
        assert_true(holds);
        assert_true(account(flow, order) == account(flow, flow->order));
        assert_ok(mf_flow_reorder(NULL, flow, order, &other, &err), err);
        uint64_t natural = peak_of(flow), greedy = peak_of(other);
        mf_flow_destroy(other);
        mf_plan_options options;
        mf_plan_options_default(&options);
        mf_fitter fitter;
        mf_fit_entry *entry;
        mf_fitter_init(&fitter, NULL, &source, &options, &odd);
        assert_ok(mf_fitter_entry(&fitter, mode, batch, false, &entry, &err), err);
        assert_true(entry->order->keep.peak <= natural);
        assert_true(!entry->own == !(greedy + natural / 200 < natural));
        assert_true(account(flow, entry->order->flow->order) == account(flow, flow->order));
        lower += entry->own != NULL;
        mf_fitter_free(&fitter);
        uint32_t random = seed, a = next_random(&random) % n, b = next_random(&random) % n, moved = order[a];
        order[a] = order[b];
        order[b] = moved;
        assert_ok(mf_flow_order_holds(NULL, flow, order, &holds, &err), err);
        if (holds)
            assert_true(account(flow, order) == account(flow, flow->order));
        else
            broken++;
        order[0] = order[n - 1]; /* one twice, one not at all */
        assert_ok(mf_flow_order_holds(NULL, flow, order, &holds, &err), err);
        assert_true(!holds || n == 1);
        free(order);
        mf_flow_destroy(flow);
        mf_graph_destroy(graph);
    }
    print_message("another order needs less in %u of 300 graphs; %u of 300 exchanges were refused\n", lower, broken);
    assert_true(lower > 30 && broken > 100);
}

static void test_orders_lack_memory(void **state)
{
    (void)state;
    memfit_error err = {0};
    recipe r = {.seed = 5, .depth = 20, .branches = true};
    mf_graph *graph;
    mf_flow *flow;
    assert_ok(make_graph(&r, NULL, MF_MODE_TRAIN, 1, false, &graph, &err), err);
    assert_ok(mf_flow_create(NULL, graph, &odd, &flow, &err), err);
    uint32_t *order = calloc(flow->order_count + 1, sizeof *order);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (uint64_t n = 1, reached = 1; reached; n++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, for_ever);
            mf_flow *other = NULL;
            bool holds = false;
            memfit_status status = mf_flow_order_greedy(&fault.host, flow, order, &err);
            if (status == MEMFIT_OK)
                status = mf_flow_order_holds(&fault.host, flow, order, &holds, &err);
            if (status == MEMFIT_OK)
                status = mf_flow_reorder(&fault.host, flow, order, &other, &err);
            reached = fault.calls >= n;
            assert_int_equal(status, reached ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OK);
            assert_true(reached || holds);
            mf_flow_destroy(other);
            assert_int_equal(fault.live_bytes, 0);
        }
    free(order);
    mf_flow_destroy(flow);
    mf_graph_destroy(graph);
}

/* The same where orders are chosen: a batch that finds another order, and one that takes it over. */
static void test_choosing_orders_lacks_memory(void **state)
{
    (void)state;
    memfit_error err = {0};
    recipe r = {.depth = 20, .branches = true};
    mf_graph_source source = {&r, make_graph};
    mf_plan_options options;
    mf_plan_options_default(&options);
    bool taken_over = false;
    for (r.seed = 0; r.seed < 100 && !taken_over; r.seed++)
        for (uint64_t n = 1, reached = 1; reached; n++) {
            mf_fault_host fault;
            mf_fault_host_init(&fault, NULL, n, false);
            mf_fitter fitter;
            mf_fit_entry *one, *two;
            mf_fitter_init(&fitter, &fault.host, &source, &options, &odd);
            memfit_status status = mf_fitter_entry(&fitter, MF_MODE_TRAIN, 1, false, &one, &err);
            if (status == MEMFIT_OK)
                status = mf_fitter_entry(&fitter, MF_MODE_TRAIN, 2, false, &two, &err);
            reached = fault.calls >= n;
            assert_int_equal(status, reached ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OK);
            if (!reached)
                taken_over = one->own && two->own;
            mf_fitter_free(&fitter);
            assert_int_equal(fault.live_bytes, 0);
        }
    assert_true(taken_over);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_plans_hold),
        cmocka_unit_test(test_budgets_are_kept),
        cmocka_unit_test(test_a_limit_is_kept_or_refused),
        cmocka_unit_test(test_pieces_and_rest),
        cmocka_unit_test(test_loads_and_bounds),
        cmocka_unit_test(test_lack_of_memory),
        cmocka_unit_test(test_the_search_lacks_memory),
        cmocka_unit_test(test_the_search_ends_by_work),
        cmocka_unit_test(test_other_orders_hold),
        cmocka_unit_test(test_orders_lack_memory),
        cmocka_unit_test(test_choosing_orders_lacks_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
