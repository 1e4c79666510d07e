/*
 * test_saves.c: what backward keeps. A network with everything the rewrites look for (an activation behind a
 * normalization, an activation before a maximum pooling, padded or not, convolutions over a concatenation) is built
 * plain and rewritten, and both are run on the reference operations and on the CPU backend: the same gradients, bit for
 * bit where the rewrite says so, and fewer bytes kept.
 */
#include "graph_parts.h"

#include "graph/build.h"
#include "ops/interpret.h"
#include "plan/flow/flow.h"

#include <math.h>

enum { PARAMETERS = 9, GRADIENTS = PARAMETERS };

typedef struct network {
    bool plain;
    bool joined; /* ends with a convolution over a concatenation; else over one branch, padded to the same size */
    bool shared; /* what the activation makes has a second reader */
    mf_unary activation;
    int64_t pool, stride; /* of the first pooling */
    mf_graph *graph;
    uint32_t gradients[GRADIENTS];
} network;

static mf_window window_of(int64_t kernel, int64_t stride, bool same)
{
    mf_window w = {.dims = 2, .groups = 1};
    for (uint32_t i = 0; i < 2; i++) {
        w.kernel[i] = kernel;
        w.stride[i] = stride;
        w.dilation[i] = 1;
        w.before[i] = w.after[i] = same ? kernel / 2 : 0;
    }
    return w;
}

/* x (2,12,12,3): conv, norm + activation, pool; conv + activation, pad, pool; both joined, conv over the whole. */
static void build(network *n)
{
    memfit_error err = {0};
    mf_build b;
    mf_build_begin(&b, NULL, &err);
    b.layer = mf_build_layer(&b, "all", "Test");
    b.kind = MEMFIT_KIND_ACTIVATIONS;
    mf_window three = window_of(3, 1, true), pool = window_of(n->pool, n->stride, false),
              padded = window_of(3, 2, false);
    uint32_t p[PARAMETERS] = {
        parameter(&b, dims(4, 3, 3, 3, 5)), parameter(&b, dims(1, 5, 0, 0, 0)), parameter(&b, dims(1, 5, 0, 0, 0)),
        parameter(&b, dims(4, 3, 3, 3, 4)), parameter(&b, dims(1, 4, 0, 0, 0)), parameter(&b, dims(4, 3, 3, 9, 6)),
        parameter(&b, dims(1, 6, 0, 0, 0)), parameter(&b, dims(4, 3, 3, 6, 2)), parameter(&b, dims(1, 2, 0, 0, 0))};
    uint32_t x = mf_g_input(&b, "x", MF_F32, dims(4, 2, 12, 12, 3)), mean, variance;
    b.phase = MF_FORWARD;
    uint32_t left = mf_g_batch_norm(&b, mf_g_conv(&b, x, p[0], MF_NONE, &three), p[1], p[2], 1e-3, &mean, &variance);
    left = mf_g_unary(&b, n->activation, 0, 0, left);
    uint32_t again = n->shared ? mf_g_reduce(&b, MF_REDUCE_MEAN, left, 6, false) : MF_NONE;
    left = mf_g_pool_max(&b, left, &pool);
    uint32_t right = mf_g_unary(&b, n->activation, 0, 0, mf_g_conv(&b, x, p[3], p[4], &three));
    int64_t one[4] = {0, 1, 1, 0}, none[4] = {0};
    right = mf_g_pool_max(&b, mf_g_pad(&b, right, one, one, none, 0, 0), &padded);
    int64_t size[4] = {2, 5, 5, 5}, from[4] = {0};
    left = mf_g_slice(&b, left, from, size, NULL);
    size[3] = 4;
    right = mf_g_slice(&b, right, from, size, NULL);
    uint32_t joined = n->joined ? mf_g_concat(&b, 2, (uint32_t[]){left, right}, 3)
                                : mf_g_binary(&b, MF_ADD, mf_g_pad(&b, left, none, (int64_t[]){0, 0, 0, 4}, none, 0, 0),
                                              mf_g_pad(&b, right, (int64_t[]){0, 0, 0, 5}, none, none, 0, 0));
    uint32_t y = mf_g_unary(&b, MF_UNARY_RELU, 0, 0, mf_g_conv(&b, joined, p[5], p[6], &three));
    y = mf_g_conv(&b, y, p[7], p[8], &three);
    if (again != MF_NONE)
        y = mf_g_binary(
            &b, MF_ADD, y,
            mf_g_broadcast(&b, mf_g_view(&b, mf_g_reduce(&b, MF_REDUCE_MEAN, again, 2, false), dims(4, 2, 1, 1, 1)),
                           dims(4, 2, 5, 5, 2), 1));
    uint32_t dy = mf_g_input(&b, "dy", MF_F32, dims(4, 2, 5, 5, 2));
    b.plain = n->plain;
    if (!n->plain)
        mf_g_fuse(&b, 0, NULL);
    b.phase = MF_BACKWARD;
    mf_g_backward(&b, 1, &y, &dy, PARAMETERS, p, n->gradients);
    assert_ok(mf_build_end_keeping(&b, GRADIENTS, n->gradients, &n->graph), err);
    n->graph->mode = MF_MODE_TRAIN;
    n->graph->batch = 2;
    assert_ok(mf_graph_check(n->graph, &err), err);
}

static uint32_t count_kind(const mf_graph *g, mf_op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        n += g->ops[i].kind == kind;
    return n;
}

/* Noise that is the same for the same number of a variable or input, whatever the graph. */
static void noise(float *v, uint64_t count, uint32_t seed)
{
    uint32_t s = seed * 747796405u + 2891336453u;
    for (uint64_t i = 0; i < count; i++) {
        s = s * 1664525u + 1013904223u;
        v[i] = (float)((int32_t)(s >> 8) - (1 << 23)) / (float)(1 << 23);
    }
}

static mf_interpreter *run(const network *n, mf_backend *backend)
{
    memfit_error err = {0};
    mf_interpreter *it;
    assert_ok(mf_interpret_create(NULL, n->graph, backend, &it, &err), err);
    assert_ok(mf_interpret_start(it, &err), err);
    uint32_t inputs = 0;
    for (uint32_t v = 0; v < n->graph->variable_count; v++)
        if (n->graph->variables[v].tensor != MF_NONE) /* the last convolution's result is not needed: nor its bias */
            noise(mf_interpret_data(it, n->graph->variables[v].tensor), mf_shape_count(&n->graph->variables[v].shape),
                  v);
    for (uint32_t o = 0; o < n->graph->op_count; o++)
        if (n->graph->ops[o].kind == MF_OP_INPUT) {
            const mf_tensor *t = &n->graph->tensors[n->graph->ops[o].out[0]];
            noise(mf_interpret_data(it, n->graph->ops[o].out[0]), mf_shape_count(&t->shape), 100 + inputs++);
        }
    mf_run_scalars scalars = mf_interpret_scalars(n->graph, 0.1);
    assert_ok(mf_interpret_run(it, &scalars, true, true, &err), err);
    return it;
}

/* The largest difference of the gradients over their norm; 0 only when all are equal. */
static double difference(const network *a, mf_interpreter *x, const network *b, mf_interpreter *y)
{
    double worst = 0;
    for (uint32_t i = 0; i < GRADIENTS; i++) {
        const float *u = mf_interpret_data(x, a->gradients[i]), *v = mf_interpret_data(y, b->gradients[i]);
        double error = 0, norm = 0;
        for (uint64_t k = 0; k < mf_shape_count(&a->graph->tensors[a->gradients[i]].shape); k++) {
            error += ((double)u[k] - (double)v[k]) * ((double)u[k] - (double)v[k]);
            norm += (double)v[k] * (double)v[k];
        }
        assert_true(norm > 0 && isfinite(norm));
        double d = sqrt(error / norm);
        worst = d > worst ? d : worst;
    }
    return worst;
}

static uint64_t peak_of(const network *n)
{
    memfit_error err = {0};
    mf_flow *flow;
    mf_sequence q;
    assert_ok(mf_flow_create(NULL, n->graph, NULL, &flow, &err), err);
    assert_ok(mf_sequence_init(&q, NULL, flow, &err), err);
    assert_ok(mf_sequence_build(&q, flow, NULL, &err), err);
    uint64_t peak = q.peak;
    mf_sequence_free(&q);
    mf_flow_destroy(flow);
    return peak;
}

static void compare(mf_backend *backend, network *n, double tolerance)
{
    network plain = *n;
    plain.plain = true;
    build(&plain);
    build(n);
    mf_interpreter *x = run(n, backend), *y = run(&plain, backend);
    double d = difference(n, x, &plain, y);
    if (!(d <= tolerance))
        fail_msg("%s: activation %d, pool %lld/%lld, joined %d: gradients differ by %g", backend->table->name,
                 (int)n->activation, (long long)n->pool, (long long)n->stride, n->joined, d);
    mf_interpret_destroy(x);
    mf_interpret_destroy(y);
    mf_graph_destroy(plain.graph);
}

typedef memfit_status (*maker)(mf_backend **backend, memfit_error *err);

static memfit_status make_reference(mf_backend **backend, memfit_error *err)
{
    return mf_reference_create(NULL, backend, err);
}

static memfit_status make_fast(mf_backend **backend, memfit_error *err)
{
    return mf_cpu_create(NULL, 2, backend, err);
}

/* Merged normalizations and slopes taken before the pooling: the same numbers. Gradients by parts of a concatenation:
 * the same sums. */
static void rewrites_keep_every_bit(void **state)
{
    (void)state;
    const maker makers[] = {make_reference, make_fast};
    for (size_t m = 0; m < 2; m++) {
        mf_backend *backend;
        memfit_error err = {0};
        memfit_status status = makers[m](&backend, &err);
        if (status == MEMFIT_UNSUPPORTED)
            continue;
        assert_ok(status, err);
        for (int i = 0; i < 16; i++) {
            network n = {.activation = i % 2 ? MF_UNARY_RELU6 : MF_UNARY_RELU,
                         .pool = i & 2 ? 3 : 2,
                         .stride = 2,
                         .shared = i & 4,
                         .joined = i & 8};
            /* a library may sum in another order when the shape is another */
            compare(backend, &n, n.joined && m ? 1e-6 : 0);
            mf_graph_destroy(n.graph);
        }
        backend->table->destroy(backend);
    }
}

static void what_they_leave_out_is_gone(void **state)
{
    (void)state;
    network plain = {.plain = true, .joined = true, .activation = MF_UNARY_RELU, .pool = 2, .stride = 2}, n = plain,
            shared = plain;
    n.plain = shared.plain = false;
    shared.shared = true;
    build(&plain);
    build(&n);
    build(&shared);
    assert_int_equal(count_kind(plain.graph, MF_OP_UNARY), 3);
    assert_int_equal(count_kind(n.graph, MF_OP_UNARY), 2);
    assert_int_equal(count_kind(n.graph, MF_OP_UNARY_GRAD), 3);
    for (uint32_t o = 0; o < n.graph->op_count; o++) /* no slope at full size but the last activation's */
        if (n.graph->ops[o].kind == MF_OP_UNARY_GRAD)
            assert_true(n.graph->tensors[n.graph->ops[o].out[0]].shape.dim[1] <= 6);
    bool large = false; /* with a second reader it must stay */
    for (uint32_t o = 0; o < shared.graph->op_count; o++)
        large |= shared.graph->ops[o].kind == MF_OP_UNARY_GRAD &&
                 shared.graph->tensors[shared.graph->ops[o].out[0]].shape.dim[1] == 12;
    assert_true(large);
    assert_int_equal(count_kind(plain.graph, MF_OP_CONV_GRAD_WEIGHTS) + 1,
                     count_kind(n.graph, MF_OP_CONV_GRAD_WEIGHTS));
    for (uint32_t o = 0; o < n.graph->op_count; o++) /* backward reads the parts, not the concatenation */
        for (uint32_t k = 0; n.graph->ops[o].kind == MF_OP_CONV_GRAD_WEIGHTS && k < 1; k++)
            assert_int_not_equal(n.graph->tensors[n.graph->ops[o].in[0]].shape.dim[3], 9);
    assert_true(peak_of(&n) < peak_of(&plain));
    mf_graph_destroy(plain.graph);
    mf_graph_destroy(n.graph);
    mf_graph_destroy(shared.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewrites_keep_every_bit),
        cmocka_unit_test(what_they_leave_out_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
