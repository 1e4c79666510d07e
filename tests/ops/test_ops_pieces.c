/*
 * test_ops_pieces.c: a batch in pieces is the batch: loss, gradients and updated parameters of every fixture model
 * agree to 1e-12 in double on the reference operations, and its gradients norm-wise to 1e-5 in float on the fast ones
 * (random layers included: a sample draws the same numbers in any piece). Models with trainable BatchNormalization are
 * left out: there pieces are other mathematics.
 */
#include "fixture.h"

static mf_backend *backend;
static bool in_double;

typedef struct running {
    mf_graph *graph;
    mf_interpreter *it;
} running;

static memfit_status begin(const fixture *f, int64_t batch, running *r, memfit_error *err)
{
    mf_lower_options options = {.mode = MF_MODE_TRAIN,
                                .batch = batch,
                                .accumulate = true,
                                .sample_weights = fixture_find(f, "w") != NULL,
                                .input_dtype = MF_DTYPE_COUNT};
    *r = (running){0};
    memfit_status status = mf_lower(NULL, f->model, &options, &r->graph, err);
    if (status)
        return status;
    if (in_double)
        mf_graph_widen(r->graph);
    assert_ok(mf_graph_check(r->graph, err), *err);
    status = mf_interpret_create(NULL, r->graph, backend, &r->it, err);
    return status == MEMFIT_OK ? mf_interpret_start(r->it, err) : status;
}

static void end(running *r)
{
    mf_interpret_destroy(r->it);
    mf_graph_destroy(r->graph);
}

static void run_pieces(const fixture *f, running *r, int64_t rows)
{
    memfit_error err = {0};
    int64_t pieces = rows / r->graph->batch;
    const fixture_array *w = fixture_find(f, "w");
    mf_run_scalars s = mf_interpret_scalars(r->graph, 0.1);
    s.batch_samples = (double)rows;
    s.weight_sum = w ? 0 : (double)rows;
    for (uint64_t i = 0; w && i < w->count; i++)
        s.weight_sum += fixture_value(w, i);
    for (int64_t p = 0; p < pieces; p++) {
        s.first_sample = (uint64_t)(p * r->graph->batch);
        fixture_feed(f, r->it, r->graph, p * r->graph->batch);
        assert_ok(mf_interpret_run(r->it, &s, p == 0, p == pieces - 1, &err), err);
    }
}

static double value(const running *r, uint32_t tensor, uint64_t i)
{
    const void *data = mf_interpret_data(r->it, tensor);
    return in_double ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* ||a - b|| and ||b|| of variable v, which has the same number in both graphs. */
static double apart(const running *a, const running *b, uint32_t v, double *norm)
{
    uint32_t ta = a->graph->variables[v].tensor, tb = b->graph->variables[v].tensor;
    *norm = 0;
    if (ta == MF_NONE || tb == MF_NONE)
        return ta == tb ? 0 : INFINITY;
    double error = 0;
    for (uint64_t i = 0; i < mf_shape_count(&a->graph->tensors[ta].shape); i++) {
        double x = value(a, ta, i), y = value(b, tb, i);
        error += (x - y) * (x - y);
        *norm += y * y;
    }
    *norm = sqrt(*norm);
    return sqrt(error);
}

/* A gradient that is zero but for rounding is measured against the norm of all. */
static double gradients_norm(const running *a, const running *b)
{
    double all = 0, norm;
    for (uint32_t v = 0; v < b->graph->variable_count; v++)
        if (b->graph->variables[v].role == MF_VAR_GRADIENT) {
            apart(a, b, v, &norm);
            all += norm * norm;
        }
    return sqrt(all);
}

static unsigned compare(const fixture *f, double *worst)
{
    running whole, parts;
    memfit_error err = {0};
    int64_t rows = fixture_find(f, "x0")->shape.dim[0];
    unsigned compared = 0;
    memfit_status a = begin(f, rows, &whole, &err), b = begin(f, 1, &parts, &err);
    if (a == MEMFIT_OK && b == MEMFIT_OK && !whole.graph->uses_batch_norm) {
        run_pieces(f, &whole, rows);
        run_pieces(f, &parts, rows);
        compared = 1;
        double floor = in_double ? 0 : 1e-2 * gradients_norm(&parts, &whole), most = in_double ? 1e-12 : 1e-5;
        for (uint32_t v = 0; v < whole.graph->variable_count; v++) {
            mf_var_role role = whole.graph->variables[v].role;
            if (role != MF_VAR_GRADIENT && (!in_double || (role != MF_VAR_PARAMETER && role != MF_VAR_LOSS)))
                continue;
            double norm, error = apart(&parts, &whole, v, &norm), d;
            norm = fmax(norm, floor);
            d = norm < 1e-10 ? error : error / norm;
            *worst = d > *worst ? d : *worst;
            if (!(d <= most))
                fail_msg("%s: %s differs by %g", f->name, whole.graph->variables[v].name, d);
        }
    }
    end(&whole);
    end(&parts);
    return compared;
}

static void pieces_are_the_whole(void **state)
{
    fixture_set set;
    if (!fixture_set_open(&set, *state))
        skip();
    unsigned compared = 0;
    double worst = 0;
    for (size_t i = 0; i < set.count; i++) {
        fixture f;
        memfit_error err = {0};
        if (fixture_open(&f, &set, set.names[i], &err) == MEMFIT_OK && fixture_find(&f, "y0"))
            compared += compare(&f, &worst);
        fixture_close(&f);
    }
    printf("%s: %u models, worst %.1e\n", (const char *)*state, compared, worst);
    assert_true(compared > set.count / 2);
    fixture_set_close(&set);
}

int main(void)
{
    memfit_error err = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(pieces_are_the_whole, "layers"),
        cmocka_unit_test_prestate(pieces_are_the_whole, "losses"),
    };
    if (mf_reference_create(NULL, &backend, &err) != MEMFIT_OK)
        return 1;
    in_double = true;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend->table->destroy(backend);
    if (mf_cpu_create(NULL, 2, &backend, &err) != MEMFIT_OK)
        return failed;
    in_double = false;
    failed += cmocka_run_group_tests(tests, NULL, NULL);
    backend->table->destroy(backend);
    return failed;
}
