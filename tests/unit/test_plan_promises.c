/*
 * test_plan_promises.c: what plans for different limits promise together, each made by itself:
 *
 *     more memory is never slower, and what fits less fits more
 *     no plan at any limit needs less than the bound says
 *     what is said to be needed is enough
 *     a host with little memory to plan in gets a plan that fits, if not the fastest
 */
#include "plan_graphs.h"

#include "plan/fit/fit.h"

/* Half of an operation's time grows with the batch, so that pieces cost something, now more, now less. */
static memfit_status growing_cost(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    memfit_status status = odd_cost(NULL, graph, op, cost, err);
    double small = *(const double *)ctx;
    cost->methods[0].time_us *= small + (1 - small) * (double)graph->batch / 32;
    return status;
}

typedef struct bed {
    recipe r;
    double small; /* the part of the time that does not grow */
    mf_graph_source source;
    mf_cost_source cost;
    mf_plan_options options;
} bed;

static void bed_make(bed *b, uint32_t seed)
{
    *b = (bed){.r = {.seed = seed, .depth = 6 + seed % 19, .branches = seed % 3}, .small = 0.02 * (seed % 16)};
    b->source = (mf_graph_source){&b->r, make_graph};
    b->cost = (mf_cost_source){.ctx = &b->small, .query = growing_cost, .alignment = 64};
    mf_plan_options_default(&b->options);
    b->options.batch = 24 + seed % 17;
    b->options.quick = seed % 8 != 1; /* the full search takes ten times as long */
    b->options.with_validation = b->options.with_prediction = seed % 2;
    b->options.recompute = seed % 7 == 0 ? MF_RECOMPUTE_OFF : MF_RECOMPUTE_AUTO;
}

static memfit_status plan_within(bed *b, uint64_t limit, mf_plan **plan, memfit_error *err)
{
    *plan = NULL;
    b->options.limit_bytes = limit;
    return mf_plan_make(NULL, &b->source, &b->options, &b->cost, plan, err);
}

static uint64_t bound_of(bed *b)
{
    memfit_error err = {0};
    uint64_t bound;
    mf_fitter fitter;
    mf_fitter_init(&fitter, NULL, &b->source, &b->options, &b->cost);
    assert_ok(mf_fitter_bound(&fitter, b->options.batch, &bound, &err), err);
    mf_fitter_free(&fitter);
    return bound;
}

static uint32_t seeds(void)
{
    return getenv("MEMFIT_LONG_TESTS") ? 400 : 10;
}

static void more_memory_is_never_slower(void **state)
{
    (void)state;
    enum { LIMITS = 16 };
    uint32_t fitting = 0, recomputing = 0, pieces = 0;
    for (uint32_t seed = 0; seed < seeds(); seed++) {
        memfit_error err = {0};
        bed b;
        mf_plan *plan;
        bed_make(&b, seed);
        assert_ok(plan_within(&b, 0, &plan, &err), err);
        uint64_t asked = plan->peak_bytes, bound = bound_of(&b);
        double asked_us = plan->time_us, last_us = 0;
        mf_plan_destroy(plan);
        assert_true(bound <= asked);
        for (uint32_t i = 0; i <= LIMITS; i++) {
            uint64_t limit = bound + (asked - bound) * i / LIMITS;
            memfit_status status = plan_within(&b, limit, &plan, &err);
            if (status == MEMFIT_DOES_NOT_FIT && !last_us)
                continue;
            if (status != MEMFIT_OK)
                fail_msg("seed %u: %llu bytes are not enough where less was: %s", seed, (unsigned long long)limit,
                         err.message);
            double us = plan->time_us > asked_us ? plan->time_us : asked_us;
            if (last_us && us > last_us)
                fail_msg("seed %u: %g us in %llu bytes (%lld pieces, %u again), %g us in less", seed, us,
                         (unsigned long long)limit, (long long)plan->pieces, plan->recomputed_ops, last_us);
            assert_true(plan->peak_bytes >= bound && plan->peak_bytes <= limit);
            last_us = us;
            fitting++;
            recomputing += plan->recomputed_ops > 0;
            pieces += plan->pieces > 1;
            mf_plan_destroy(plan);
        }
        assert_true(last_us == asked_us);
    }
    printf("%u plans, %u recompute, %u in pieces\n", fitting, recomputing, pieces);
    assert_true(recomputing > fitting / 20 && pieces > fitting / 20);
}

/* Whatever the limit, the bytes a refusal names are enough. */
static void what_is_needed_is_enough(void **state)
{
    (void)state;
    uint32_t refused = 0;
    for (uint32_t seed = 0; seed < seeds(); seed++) {
        bed b;
        bed_make(&b, seed);
        uint64_t bound = bound_of(&b);
        for (uint32_t i = 1; i < 5; i++) {
            memfit_error err = {0}, again = {0};
            mf_plan *plan;
            memfit_status status = plan_within(&b, bound * i / 4, &plan, &err);
            mf_plan_destroy(plan);
            if (status == MEMFIT_OK)
                break;
            assert_int_equal(status, MEMFIT_DOES_NOT_FIT);
            assert_true(err.requested_bytes > b.options.limit_bytes);
            status = plan_within(&b, err.requested_bytes, &plan, &again);
            if (status != MEMFIT_OK)
                fail_msg("seed %u: given the %llu bytes that were needed: %s", seed,
                         (unsigned long long)err.requested_bytes, again.message);
            mf_plan_destroy(plan);
            refused++;
        }
    }
    assert_true(refused > seeds());
}

static memfit_status plan_in(bed *b, uint64_t host_bytes, uint64_t *peak, memfit_error *err)
{
    mf_limit_host host;
    mf_plan *plan = NULL;
    mf_limit_host_init(&host, NULL, host_bytes);
    b->options.pass_over = true;
    memfit_status status = mf_plan_make(&host.host, &b->source, &b->options, &b->cost, &plan, err);
    if (status == MEMFIT_OK)
        assert_true(plan->fits && plan->peak_bytes <= b->options.limit_bytes);
    mf_plan_destroy(plan);
    assert_int_equal(host.live_bytes, 0);
    *peak = host.peak_bytes;
    return status;
}

/* One way whose search has no room is not the end: with more room for it there is always a plan where with less one was. */
static void little_room_to_plan_in(void **state)
{
    (void)state;
    enum { ROOMS = 12, LIMITS = 4 };
    uint32_t cut_short = 0, found = 0;
    for (uint32_t seed = 0; seed < seeds(); seed++) {
        memfit_error err = {0};
        bed b;
        mf_plan *plan;
        bed_make(&b, seed);
        assert_ok(plan_within(&b, 0, &plan, &err), err);
        uint64_t asked = plan->peak_bytes, bound = bound_of(&b), most, peak;
        mf_plan_destroy(plan);
        for (uint32_t i = 1; i < LIMITS; i++) {
            bool there_was = false;
            b.options.limit_bytes = bound + (asked - bound) * i / LIMITS;
            if (plan_in(&b, UINT64_MAX, &most, &err) != MEMFIT_OK)
                continue;
            for (uint32_t k = 1; k < ROOMS; k++) {
                memfit_status status = plan_in(&b, most * k / ROOMS, &peak, &err);
                if (status != MEMFIT_OK && (status != MEMFIT_NO_HOST_MEMORY || there_was))
                    fail_msg("seed %u, limit %u, room %u: %s", seed, i, k, err.message);
                there_was = status == MEMFIT_OK;
                cut_short += !there_was;
                found += there_was;
            }
        }
    }
    printf("%u plans in little room, %u had too little\n", found, cut_short);
    assert_true(found > cut_short / 4 && cut_short > 0);
}

typedef struct counted {
    recipe *r;
    uint32_t graphs;
} counted;

static memfit_status make_counted(void *ctx, const memfit_host *host, mf_mode mode, int64_t batch, bool accumulate,
                                  mf_graph **graph, memfit_error *err)
{
    counted *c = ctx;
    c->graphs++;
    return make_graph(c->r, host, mode, batch, accumulate, graph, err);
}

/* However far it lies from the batch that was asked for, few graphs are made to find it. */
static void the_largest_batch_is_found_in_few_looks(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < seeds(); seed++)
        for (uint64_t limit = 1 << 20; limit < (uint64_t)1 << 34; limit <<= 4) {
            memfit_error err = {0};
            bed b;
            bed_make(&b, seed);
            counted c = {&b.r, 0};
            b.source = (mf_graph_source){&c, make_counted};
            mf_fitter fitter;
            int64_t batch;
            bool fits, next_fits;
            mf_fitter_init(&fitter, NULL, &b.source, &b.options, &b.cost);
            assert_ok(mf_fitter_largest(&fitter, false, b.options.batch, limit, &batch, &err), err);
            uint32_t graphs = c.graphs;
            if (batch > 0 && batch < 1 << 24) {
                assert_ok(mf_fitter_fits(&fitter, batch, false, 1, limit, &fits, &err), err);
                assert_ok(mf_fitter_fits(&fitter, batch + 1, false, 1, limit, &next_fits, &err), err);
                assert_true(fits && !next_fits);
            }
            mf_fitter_free(&fitter);
            if (graphs > 24)
                fail_msg("seed %u, limit %llu: %u graphs to find batch %lld", seed, (unsigned long long)limit, graphs,
                         (long long)batch);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_memory_is_never_slower),
        cmocka_unit_test(what_is_needed_is_enough),
        cmocka_unit_test(little_room_to_plan_in),
        cmocka_unit_test(the_largest_batch_is_found_in_few_looks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
