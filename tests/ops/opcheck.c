/* opcheck.c: see opcheck.h. */
#include "opcheck.h"

#include "ops/reference/reference.h"

uint32_t opcheck_constant(opcheck *c, mf_dtype dtype, mf_shape shape, double low, double high, bool whole)
{
    assert_true(c->input_count < OPCHECK_MOST);
    uint32_t i = c->input_count++;
    c->inputs[i] = mf_g_input(&c->b, "x", dtype, shape);
    c->low[i] = low;
    c->high[i] = high;
    c->whole[i] = whole;
    return c->inputs[i];
}

uint32_t opcheck_input(opcheck *c, mf_shape shape, double low, double high)
{
    uint32_t t = opcheck_constant(c, c->dtype, shape, low, high, false);
    c->wanted[c->input_count - 1] = true;
    return t;
}

void opcheck_output(opcheck *c, uint32_t tensor)
{
    assert_true(c->output_count < OPCHECK_MOST);
    c->outputs[c->output_count++] = tensor;
}

/* Numbers the final graph's tensors: everything the harness looks at is a root. */
static void finish(opcheck *c, memfit_error *err)
{
    uint32_t roots[4 * OPCHECK_MOST + 1], n = 0, wanted[OPCHECK_MOST], gradients[OPCHECK_MOST], wanted_count = 0;
    for (uint32_t i = 0; i < c->output_count; i++)
        c->dys[i] = mf_g_input(&c->b, "dy", c->dtype, mf_g_shape(&c->b, c->outputs[i]));
    for (uint32_t i = 0; i < c->input_count; i++)
        if (c->wanted[i])
            wanted[wanted_count++] = c->inputs[i];
    mf_g_backward(&c->b, c->output_count, c->outputs, c->dys, wanted_count, wanted, gradients);
    if (c->masks)
        mf_g_mask(&c->b, 1);
    for (uint32_t i = 0; i < c->input_count; i++)
        roots[n++] = c->inputs[i];
    for (uint32_t i = 0; i < c->output_count; i++) {
        roots[n++] = c->outputs[i];
        roots[n++] = c->dys[i];
    }
    for (uint32_t i = 0; i < wanted_count; i++)
        roots[n++] = gradients[i];
    roots[n++] = c->loss;
    uint32_t kept[4 * OPCHECK_MOST + 1], count = 0;
    for (uint32_t i = 0; i < n; i++)
        if (roots[i] != MF_NONE)
            kept[count++] = roots[i];
    assert_ok(mf_build_end_keeping(&c->b, count, kept, &c->graph), *err);
    count = 0;
    for (uint32_t i = 0; i < n; i++)
        roots[i] = roots[i] == MF_NONE ? MF_NONE : kept[count++];
    n = 0;
    for (uint32_t i = 0; i < c->input_count; i++)
        c->inputs[i] = roots[n++];
    for (uint32_t i = 0; i < c->output_count; i++) {
        c->outputs[i] = roots[n++];
        c->dys[i] = roots[n++];
    }
    for (uint32_t i = 0; i < c->input_count; i++)
        c->gradients[i] = c->wanted[i] ? roots[n++] : MF_NONE;
    c->loss = roots[n++];
}

void opcheck_begin(opcheck *c, const opcheck_case *k, int variant, mf_dtype dtype, mf_backend *backend)
{
    memfit_error err = {0};
    *c = (opcheck){.dtype = dtype, .loss = MF_NONE};
    mf_build_begin(&c->b, NULL, &err);
    k->build(c, variant);
    finish(c, &err);
    assert_ok(mf_graph_check(c->graph, &err), err);
    c->graph->batch = 2;
    assert_ok(mf_interpret_create(NULL, c->graph, backend, &c->run, &err), err);
}

void opcheck_end(opcheck *c)
{
    mf_interpret_destroy(c->run);
    mf_graph_destroy(c->graph);
}

uint64_t opcheck_count(const opcheck *c, uint32_t tensor)
{
    return mf_shape_count(&c->graph->tensors[tensor].shape);
}

double opcheck_get(opcheck *c, uint32_t tensor, uint64_t i)
{
    return mf_ref_load(c->graph->tensors[tensor].dtype, mf_interpret_data(c->run, tensor), i);
}

void opcheck_set(opcheck *c, uint32_t tensor, uint64_t i, double value)
{
    mf_ref_store(c->graph->tensors[tensor].dtype, mf_interpret_data(c->run, tensor), i, value);
}

void opcheck_fill(opcheck *c, uint64_t seed)
{
    uint32_t words[4];
    for (uint32_t k = 0; k < c->input_count + c->output_count; k++) {
        bool input = k < c->input_count;
        uint32_t t = input ? c->inputs[k] : c->dys[k - c->input_count];
        double low = input ? c->low[k] : -1, high = input ? c->high[k] : 1;
        for (uint64_t i = 0; i < opcheck_count(c, t); i++) {
            mf_philox(seed, k, 0, 0, i, words);
            double v = low + (high - low) * (words[0] >> 8) * 0x1p-24;
            v = input && c->whole[k] ? floor(v) : (double)(float)v; /* the same in both types */
            opcheck_set(c, t, i, v);
        }
    }
}

void opcheck_run(opcheck *c)
{
    memfit_error err = {0};
    mf_run_scalars scalars = mf_interpret_scalars(c->graph, 0.1);
    scalars.weight_sum = 2.5;
    if (c->loss != MF_NONE)
        opcheck_set(c, c->loss, 0, 0);
    assert_ok(mf_interpret_run(c->run, &scalars, true, true, &err), err);
}

double opcheck_total(opcheck *c)
{
    double sum = c->loss == MF_NONE ? 0 : opcheck_get(c, c->loss, 0);
    for (uint32_t k = 0; k < c->output_count; k++)
        for (uint64_t i = 0; i < opcheck_count(c, c->outputs[k]); i++)
            sum += opcheck_get(c, c->outputs[k], i) * opcheck_get(c, c->dys[k], i);
    return sum;
}

double opcheck_distance(opcheck *a, uint32_t ta, opcheck *b, uint32_t tb)
{
    double error = 0, norm = 0;
    for (uint64_t i = 0; i < opcheck_count(a, ta); i++) {
        double x = opcheck_get(a, ta, i), y = opcheck_get(b, tb, i);
        error += (x - y) * (x - y);
        norm += y * y;
    }
    return norm == 0 ? sqrt(error) : sqrt(error / norm);
}
