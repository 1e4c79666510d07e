/*
 * test_plan_offload.c: plans that keep the optimizer's slots in host memory: the arena has two windows in their place, as large
 * as the largest updates need; every plan passes the plan's own check, and the check finds windows that are damaged.
 */
#include "lower_fixture.h"

#include "model/lower/model_graphs.h"
#include "plan/cards.h"
#include "plan/fit/plan_place.h"
#include "plan/roofline.h"

typedef struct network {
    char *text;
    mf_model *model;
    mf_model_graphs graphs;
    mf_graph_source source;
    mf_roofline roofline;
    mf_cost_source cost;
} network;

static const char *const names[] = {"applications/MobileNet.gz", "applications/ResNet50.gz"};

static void network_open(network *n, const char *name, const char *optimizer)
{
    *n = (network){0};
    n->text = fixture_text(name);
    if (!n->text)
        skip();
    char *rest = n->text;
    next_line(&rest); /* what is expected of it */
    n->model = model_from_text(next_line(&rest));
    n->graphs.model = n->model;
    n->graphs.options.optimizer = optimizer;
    n->graphs.options.input_dtype = MF_DTYPE_COUNT;
    mf_model_graph_source(&n->graphs, &n->source);
    mf_roofline_for_card(&n->roofline, mf_card_find("v100"));
    mf_roofline_cost_source(&n->roofline, &n->cost);
}

static void network_close(network *n)
{
    mf_model_destroy(n->model);
    free(n->text);
}

static memfit_status plan_of(network *n, bool offload, int64_t batch, uint64_t limit, mf_plan **plan, memfit_error *err)
{
    mf_plan_options o;
    mf_plan_options_default(&o);
    o.with_validation = o.with_prediction = false;
    o.batch = batch;
    o.limit_bytes = limit;
    o.offload = offload;
    return mf_plan_make(NULL, &n->source, &o, &n->cost, plan, err);
}

static uint64_t slots_of(const mf_plan *plan)
{
    const mf_graph *g = plan->phases[0].graph;
    uint64_t bytes = 0;
    for (uint32_t v = 0; v < plan->variable_count; v++)
        if (mf_variable_is_offloaded(g, v))
            bytes += (plan->variable_bytes[v] + plan->alignment - 1) / plan->alignment * plan->alignment;
    return bytes;
}

static void windows_take_the_place_of_slots(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        network n;
        memfit_error err = {0};
        mf_plan *as_asked, *offloaded;
        network_open(&n, names[i], "adam");
        assert_ok(plan_of(&n, false, 4, 0, &as_asked, &err), err);
        assert_ok(plan_of(&n, true, 4, 0, &offloaded, &err), err);
        assert_ok(mf_plan_check(offloaded, &err), err);
        uint64_t windows = offloaded->window_bytes[0] + offloaded->window_bytes[1], slots = slots_of(as_asked);
        assert_int_equal(as_asked->offloaded_bytes, 0);
        assert_int_equal(offloaded->offloaded_bytes, slots);
        assert_true(windows > 0 && windows < slots / 2);
        assert_int_equal(as_asked->variables_end - offloaded->variables_end, slots - windows);
        assert_true(offloaded->arena_bytes < as_asked->arena_bytes && offloaded->time_us >= as_asked->time_us);
        assert_int_equal(offloaded->numerics, as_asked->numerics);
        mf_plan_destroy(as_asked);
        mf_plan_destroy(offloaded);
        network_close(&n);
    }
}

/* What does not fit without it may fit with it; what fits is within its limit, and never needs more. */
static void limits_are_kept(void **state)
{
    (void)state;
    network n;
    memfit_error err = {0};
    mf_plan *least;
    unsigned fitted = 0, only_so = 0;
    network_open(&n, names[0], "adam");
    assert_int_equal(plan_of(&n, true, 4, 1, &least, &err), MEMFIT_DOES_NOT_FIT);
    uint64_t need = err.requested_bytes;
    for (uint64_t limit = need / 2; limit < need * 3; limit += need / 3) {
        mf_plan *a = NULL, *b = NULL;
        memfit_status plain = plan_of(&n, false, 4, limit, &a, &err), with = plan_of(&n, true, 4, limit, &b, &err);
        assert_true(with == MEMFIT_OK || with == MEMFIT_DOES_NOT_FIT);
        assert_false(plain == MEMFIT_OK && with != MEMFIT_OK);
        if (with == MEMFIT_OK) {
            assert_true(b->peak_bytes <= limit);
            assert_ok(mf_plan_check(b, &err), err);
        }
        fitted += with == MEMFIT_OK;
        only_so += with == MEMFIT_OK && plain != MEMFIT_OK;
        mf_plan_destroy(a);
        mf_plan_destroy(b);
    }
    assert_true(fitted > 3 && only_so > 0);
    network_close(&n);
}

/* A slot out of its window, a window that is too small or overlaps: found. */
static void damage_is_found(void **state)
{
    (void)state;
    network n;
    memfit_error err = {0};
    network_open(&n, names[0], "adam");
    for (unsigned how = 0; how < 6; how++) {
        mf_plan *p;
        assert_ok(plan_of(&n, true, 2, 0, &p, &err), err);
        uint32_t v = 0;
        while (!p->variable_windows[v])
            v++;
        uint32_t largest = v;
        for (uint32_t i = v; i < p->variable_count; i++)
            if (p->variable_windows[i] && p->variable_offsets[i] + p->variable_bytes[i] >
                                              p->variable_offsets[largest] + p->variable_bytes[largest])
                largest = i;
        if (how == 0)
            p->window_bytes[p->variable_windows[largest] - 1] -= p->alignment;
        else if (how == 1)
            p->variable_windows[v] = 0;
        else if (how == 2)
            p->variable_windows[v] = (uint8_t)(3 - p->variable_windows[v]);
        else if (how == 3)
            p->windows[1] = p->windows[0];
        else if (how == 4)
            p->variable_offsets[v] += 1;
        else
            p->windows[0] -= p->alignment;
        assert_int_equal(mf_plan_check(p, &err), MEMFIT_INVALID);
        mf_plan_destroy(p);
    }
    network_close(&n);
}

/* An optimizer without state has nothing to offload. */
static void nothing_to_offload(void **state)
{
    (void)state;
    network n;
    memfit_error err = {0};
    mf_plan *a, *b;
    network_open(&n, names[0], "sgd");
    assert_ok(plan_of(&n, false, 2, 0, &a, &err), err);
    assert_ok(plan_of(&n, true, 2, 0, &b, &err), err);
    assert_ok(mf_plan_check(b, &err), err);
    assert_int_equal(b->offloaded_bytes, slots_of(a));
    assert_true(b->arena_bytes <= a->arena_bytes);
    mf_plan_destroy(a);
    mf_plan_destroy(b);
    network_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_take_the_place_of_slots),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(nothing_to_offload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
