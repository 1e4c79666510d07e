/*
 * test_ops_plans.c: what the planner calls `bitwise` is. Every fixture model trains some steps on the fast operations
 *
 *     in its natural order, every tensor in bytes of its own, nothing in place       (the interpreter)
 *     by the plan that keeps everything: in place, in another order, bytes reused    (the executor, released bytes NaN)
 *     by plans for less memory: parts computed again
 *     by the same plans with operations joined into groups, run member by member     (graph/group.h)
 *     with updates at the end of the step instead of right after each gradient
 *     with backward reading what plain gradients read instead of the least           (left out: see below)
 *
 * and every parameter, statistic and slot must end with the same bytes. A convolution over a concatenation has its
 * gradients made part by part, whatever the limit: that alone is another order of sums, and compared norm-wise.
 */
#include "fixture.h"
#include "model/lower/model_graphs.h"
#include "train/execute.h"

enum { STEPS = 3 };

static mf_backend *backend, *grouped; /* the second: the same operations, with groups */

typedef struct trained {
    mf_graph *graph;
    mf_interpreter *it;
} trained;

static mf_run_scalars scalars_of(const fixture *f, const mf_graph *graph, uint64_t step)
{
    const fixture_array *w = fixture_find(f, "w");
    mf_run_scalars s = mf_interpret_scalars(graph, 0.01);
    s.batch_samples = (double)graph->batch;
    s.weight_sum = w ? 0 : s.batch_samples;
    for (uint64_t i = 0; w && i < w->count; i++)
        s.weight_sum += fixture_value(w, i);
    s.step = s.iteration = step;
    s.seed = 3;
    return s;
}

static mf_lower_options lowering(const fixture *f)
{
    return (mf_lower_options){.mode = MF_MODE_TRAIN,
                              .batch = fixture_find(f, "x0")->shape.dim[0],
                              .sample_weights = fixture_find(f, "w") != NULL,
                              .input_dtype = MF_DTYPE_COUNT};
}

static memfit_status interpret(const fixture *f, const mf_lower_options *options, trained *t, memfit_error *err)
{
    *t = (trained){0};
    memfit_status status = mf_lower(NULL, f->model, options, &t->graph, err);
    if (status == MEMFIT_OK)
        status = mf_interpret_create(NULL, t->graph, backend, &t->it, err);
    if (status == MEMFIT_OK)
        status = mf_interpret_start(t->it, err);
    for (uint64_t s = 0; status == MEMFIT_OK && s < STEPS; s++) {
        mf_run_scalars scalars = scalars_of(f, t->graph, s);
        fixture_feed(f, t->it, t->graph, 0);
        status = mf_interpret_run(t->it, &scalars, true, true, err);
    }
    return status;
}

static void end(trained *t)
{
    mf_interpret_destroy(t->it);
    mf_graph_destroy(t->graph);
}

static bool counts(const mf_variable *v)
{
    return v->tensor != MF_NONE && (v->role == MF_VAR_PARAMETER || v->role == MF_VAR_STATISTIC ||
                                    v->role == MF_VAR_SLOT || v->role == MF_VAR_EMA || v->role == MF_VAR_LOSS);
}

static uint64_t bytes_of(const mf_variable *v)
{
    return mf_shape_count(&v->shape) * mf_dtype_bytes(v->dtype);
}

typedef struct feeding {
    const fixture *f;
    const mf_graph *graph;
} feeding;

static memfit_status fill(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    (void)err;
    feeding *g = ctx;
    fixture_fill(g->f, g->graph, feed, 0, address);
    return MEMFIT_OK;
}

static bool takes_some(void *ctx, const mf_graph *graph, const uint32_t *ops, uint32_t count)
{
    (void)ctx;
    return count <= 2 + (graph->op_count + ops[0]) % 4;
}

/* Runs the plan and holds its variables against `whole`'s. */
static void run_plan(const fixture *f, const mf_plan *plan, const trained *whole, mf_backend *runs)
{
    memfit_error err = {0};
    mf_executor *x;
    unsigned char *base = NULL;
    assert_int_equal(posix_memalign((void **)&base, 4096, plan->arena_bytes + 4096), 0);
    memset(base, 0xff, plan->arena_bytes);
    assert_ok(mf_executor_create(NULL, runs, plan, base, &(mf_executor_options){.poison = true}, &x, &err), err);
    trained start;
    mf_lower_options options = lowering(f);
    assert_ok(mf_lower(NULL, f->model, &options, &start.graph, &err), err);
    assert_ok(mf_interpret_create(NULL, start.graph, backend, &start.it, &err), err);
    assert_ok(mf_interpret_start(start.it, &err), err);
    for (uint32_t v = 0; v < start.graph->variable_count; v++) {
        void *to = mf_executor_variable(x, v);
        if (to && start.graph->variables[v].tensor != MF_NONE)
            memcpy(to, mf_interpret_data(start.it, start.graph->variables[v].tensor),
                   bytes_of(&start.graph->variables[v]));
    }
    end(&start);
    feeding feed = {f, plan->phases[0].graph};
    for (uint64_t s = 0; s < STEPS; s++) {
        mf_run_scalars scalars = scalars_of(f, feed.graph, s);
        assert_ok(mf_executor_write_scalars(x, &scalars, &err), err);
        assert_ok(mf_executor_run(x, 0, &scalars, (mf_piece){true, true, false, false}, fill, &feed, &err), err);
    }
    for (uint32_t v = 0; v < whole->graph->variable_count; v++) {
        const mf_variable *variable = &whole->graph->variables[v];
        const void *mine = mf_executor_variable(x, v);
        if (counts(variable) && mine &&
            memcmp(mine, mf_interpret_data(whole->it, variable->tensor), bytes_of(variable)))
            fail_msg("%s: %s is not the same with %u operations computed again", f->name, variable->name,
                     plan->recomputed_ops);
    }
    mf_executor_destroy(x);
    free(base);
}

/* The plan that keeps everything, then smaller and smaller ones until none fits. Returns how many recomputed. */
static unsigned plans(const fixture *f, const trained *whole, mf_backend *runs)
{
    memfit_error err = {0};
    mf_model_graphs graphs = {.model = f->model, .options = lowering(f)};
    mf_graph_source source;
    mf_cost_source cost;
    mf_model_graph_source(&graphs, &source);
    mf_backend_cost_source(runs, &cost);
    mf_plan_options o;
    mf_plan_options_default(&o);
    o.batch = graphs.options.batch;
    o.pieces = 1;
    o.with_validation = o.with_prediction = false;
    unsigned recomputing = 0;
    uint32_t before = 0;
    for (uint64_t tried = 0, kept = 0; tried < 6; tried++) {
        mf_plan *plan;
        o.limit_bytes = kept * (20 - 2 * tried) / 20; /* 0: as much as it likes, then 90 %, 80 %, ... of that */
        memfit_status status = mf_plan_make(NULL, &source, &o, &cost, &plan, &err);
        if (status == MEMFIT_DOES_NOT_FIT)
            break;
        assert_ok(status, err);
        kept = kept ? kept : plan->peak_bytes;
        if (tried == 0 || plan->recomputed_ops != before) {
            run_plan(f, plan, whole, runs);
            recomputing += plan->recomputed_ops > 0;
        }
        before = plan->recomputed_ops;
        mf_plan_destroy(plan);
    }
    return recomputing;
}

static bool convolves_parts(const mf_graph *graph)
{
    for (uint32_t i = 0; i < graph->op_count; i++)
        if (graph->ops[i].kind == MF_OP_CONV && graph->tensors[graph->ops[i].in[0]].producer != MF_NONE &&
            graph->ops[graph->tensors[graph->ops[i].in[0]].producer].kind == MF_OP_CONCAT)
            return true;
    return false;
}

static void same(const fixture *f, const trained *whole, const trained *other, const char *what)
{
    bool near = convolves_parts(whole->graph);
    for (uint32_t v = 0; v < whole->graph->variable_count; v++) {
        const mf_variable *a = &whole->graph->variables[v], *b = &other->graph->variables[v];
        if (!counts(a) || b->tensor == MF_NONE)
            continue;
        const float *x = mf_interpret_data(whole->it, a->tensor), *y = mf_interpret_data(other->it, b->tensor);
        double error = 0, norm = 0;
        for (uint64_t i = 0; near && i < bytes_of(a) / 4; i++) {
            error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            norm += (double)y[i] * (double)y[i];
        }
        if (near ? error > 1e-10 * norm : memcmp(x, y, bytes_of(a)) != 0)
            fail_msg("%s: %s is not the same %s", f->name, a->name, what);
    }
}

static void every_plan_gives_the_same_bytes(void **state)
{
    fixture_set set;
    if (!fixture_set_open(&set, *state))
        skip();
    unsigned compared = 0, recomputed = 0;
    for (size_t i = 0; i < set.count; i++) {
        fixture f;
        memfit_error err = {0};
        trained whole, other;
        if (fixture_open(&f, &set, set.names[i], &err) == MEMFIT_OK && fixture_find(&f, "y0")) {
            mf_lower_options options = lowering(&f);
            if (interpret(&f, &options, &whole, &err) == MEMFIT_OK && !whole.graph->left_out) {
                compared++;
                recomputed += plans(&f, &whole, backend);
                plans(&f, &whole, grouped);
                options.accumulate = true;
                assert_ok(interpret(&f, &options, &other, &err), err);
                same(&f, &whole, &other, "with updates at the end");
                end(&other);
                options.accumulate = false;
                options.plain = true;
                assert_ok(interpret(&f, &options, &other, &err), err);
                same(&f, &whole, &other, "with plain gradients");
                end(&other);
            }
            end(&whole);
        }
        fixture_close(&f);
    }
    printf("%s: %u models, %u plans that recompute\n", (const char *)*state, compared, recomputed);
    assert_true(compared > set.count / 2);
    fixture_set_close(&set);
}

int main(void)
{
    memfit_error err = {0};
    if (mf_cpu_create(NULL, 2, &backend, &err) != MEMFIT_OK && mf_reference_create(NULL, &backend, &err) != MEMFIT_OK)
        return 1;
    mf_backend *inner = NULL;
    if ((mf_cpu_create(NULL, 2, &inner, &err) != MEMFIT_OK && mf_reference_create(NULL, &inner, &err) != MEMFIT_OK) ||
        mf_members_create(NULL, inner, &(mf_group_taker){.takes = takes_some, .narrow_losses = true}, &grouped, &err) !=
            MEMFIT_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_plan_gives_the_same_bytes, "layers"),
        cmocka_unit_test_prestate(every_plan_gives_the_same_bytes, "losses"),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    grouped->table->destroy(grouped);
    backend->table->destroy(backend);
    return failed;
}
