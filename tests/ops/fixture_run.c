/* fixture_run.c: see fixture_run.h. */
#include "fixture_run.h"

#include "base/error.h"

int64_t fixture_rows(const fixture *f)
{
    return fixture_find(f, "x0")->shape.dim[0];
}

memfit_status fixture_begin(const fixture *f, mf_backend *backend, mf_mode mode, int64_t batch, fixture_run *r,
                            memfit_error *err)
{
    mf_lower_options options = {.mode = mode,
                                .batch = batch,
                                .accumulate = mode == MF_MODE_TRAIN,
                                .sample_weights = mode != MF_MODE_PREDICT && fixture_find(f, "w") != NULL,
                                .input_dtype = MF_DTYPE_COUNT};
    *r = (fixture_run){0};
    memfit_status status = mf_lower(NULL, f->model, &options, &r->graph, err);
    if (status == MEMFIT_OK && mode == MF_MODE_TRAIN && r->graph->left_out)
        status = mf_fail(err, MEMFIT_UNSUPPORTED, "left out: %s", r->graph->left_out);
    if (status == MEMFIT_OK)
        status = mf_graph_check(r->graph, err);
    if (status == MEMFIT_OK)
        status = mf_interpret_create(NULL, r->graph, backend, &r->it, err);
    if (status == MEMFIT_OK)
        status = mf_interpret_start(r->it, err);
    return status;
}

void fixture_end(fixture_run *r)
{
    mf_interpret_destroy(r->it);
    mf_graph_destroy(r->graph);
}

mf_run_scalars fixture_scalars(const fixture *f, const fixture_run *r, double rate)
{
    mf_run_scalars s = mf_interpret_scalars(r->graph, rate);
    const fixture_array *w = fixture_find(f, "w");
    s.weight_sum = w ? 0 : (double)r->graph->batch;
    for (uint64_t i = 0; w && i < w->count; i++)
        s.weight_sum += fixture_value(w, i);
    return s;
}

/* Feeds what Keras was fed; an input or target of another size is a wrong model. */
static bool feed(const fixture *f, const fixture_run *r, fixture_judge *judge)
{
    for (uint32_t i = 0; i < r->graph->feed_count; i++)
        if (!fixture_fits(f, r->graph, i)) {
            judge(f, r->graph->feeds[i].name, INFINITY);
            return false;
        }
    fixture_feed(f, r->it, r->graph, 0);
    return true;
}

static memfit_status check_outputs(const fixture *f, mf_backend *backend, fixture_judge *judge, memfit_error *err)
{
    fixture_run r;
    memfit_status status = fixture_begin(f, backend, MF_MODE_PREDICT, fixture_rows(f), &r, err);
    if (status == MEMFIT_OK) {
        mf_run_scalars s = fixture_scalars(f, &r, 0);
        if (!feed(f, &r, judge)) {
            fixture_end(&r);
            return MEMFIT_OK;
        }
        status = mf_interpret_run(r.it, &s, true, true, err);
    }
    for (uint32_t i = 0; status == MEMFIT_OK && i < r.graph->output_count; i++) {
        const fixture_array *wanted = fixture_find(f, "out%u", i);
        char what[32];
        snprintf(what, sizeof what, "out%u", i);
        bool same = mf_shape_equal(&r.graph->tensors[r.graph->outputs[i]].shape, &wanted->shape);
        judge(f, what, same ? fixture_distance(r.it, r.graph, r.graph->outputs[i], wanted, 0) : INFINITY);
    }
    fixture_end(&r);
    return status;
}

uint32_t fixture_gradient(const mf_graph *graph, uint32_t parameter)
{
    for (uint32_t i = 0; i < graph->variable_count; i++)
        if (graph->variables[i].role == MF_VAR_GRADIENT && graph->variables[i].parameter == parameter)
            return graph->variables[i].tensor;
    return MF_NONE;
}

static void check_variables(const fixture *f, fixture_run *r, fixture_judge *judge, double small)
{
    double all = 0;
    for (uint32_t i = 0; fixture_find(f, "grad%u", i); i++)
        all += pow(fixture_norm(fixture_find(f, "grad%u", i)), 2);
    for (uint32_t i = 0; fixture_find(f, "grad%u", i); i++) {
        const fixture_array *g = fixture_find(f, "grad%u", i);
        uint32_t v = fixture_variable(r->graph, fixture_find(f, "key%u", i), g->count);
        uint32_t t = v == MF_NONE ? MF_NONE : fixture_gradient(r->graph, v);
        if (t == MF_NONE && fixture_norm(g) == 0)
            continue; /* nothing reaches it, and Keras says so too */
        char what[32];
        snprintf(what, sizeof what, "grad%u", i);
        if (t == MF_NONE) {
            judge(f, what, INFINITY);
            continue;
        }
        double rounding = strstr(f->name, "mixed") ? 5e-2 : 1e-4;
        double norm = fixture_norm(g), floor = norm < rounding * sqrt(all) ? sqrt(all) : small * sqrt(all);
        judge(f, what, fixture_distance(r->it, r->graph, t, g, floor));
    }
    for (uint32_t i = 0; fixture_find(f, "stat%u", i); i++) {
        const fixture_array *s = fixture_find(f, "stat%u", i);
        uint32_t v = fixture_variable(r->graph, fixture_find(f, "statkey%u", i), s->count);
        char what[32];
        snprintf(what, sizeof what, "stat%u", i);
        if (v != MF_NONE && r->graph->variables[v].tensor != MF_NONE)
            judge(f, what, fixture_distance(r->it, r->graph, r->graph->variables[v].tensor, s, 0));
    }
}

static memfit_status check_step(const fixture *f, mf_backend *backend, fixture_judge *judge, double small,
                                memfit_error *err)
{
    fixture_run r;
    memfit_status status = fixture_begin(f, backend, MF_MODE_TRAIN, fixture_rows(f), &r, err);
    if (status == MEMFIT_OK) {
        mf_run_scalars s = fixture_scalars(f, &r, 0.01);
        if (!feed(f, &r, judge)) {
            fixture_end(&r);
            return MEMFIT_OK;
        }
        status = mf_interpret_run(r.it, &s, true, true, err);
    }
    if (status == MEMFIT_OK) {
        uint32_t loss = r.graph->variables[r.graph->loss_variable].tensor;
        judge(f, "loss", fixture_distance(r.it, r.graph, loss, fixture_find(f, "loss"), 1e-2));
        check_variables(f, &r, judge, small);
    }
    fixture_end(&r);
    return status;
}

memfit_status fixture_check(const fixture *f, mf_backend *backend, fixture_judge *judge, double small,
                            memfit_error *err)
{
    memfit_status status = check_outputs(f, backend, judge, err);
    return status == MEMFIT_OK && fixture_find(f, "loss") ? check_step(f, backend, judge, small, err) : status;
}
