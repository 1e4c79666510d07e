/*
 * test_cpu_ops.c: the CPU backend against the reference operations. Small networks are built with their backward pass;
 * the graph runs on the reference, and every single operation is run on the CPU backend too, on the same inputs:
 * outputs must agree norm-wise. Operations that accumulate are run twice. No run but the first may allocate.
 *
 * In 16 bits the same networks run with their tensors narrowed, and with parts so small (cpu_wide.c) that every
 * operation which can be divided is.
 *
 * It is long because one comparison serves every family of operations: each needs some thirty lines to build its cases.
 */
#include "cpu_build.h"
#include "test.h"

#include "base/memory.h"
#include "cli/count_alloc.h"
#include "graph/build.h"
#include "model/initialize.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/dnn/onednn.h"

#include <math.h>
#include <string.h>

typedef struct runner {
    const mf_graph *graph;
    mf_backend *fast, *reference;
    unsigned char **storage; /* one buffer for each storage */
    mf_run_scalars scalars;
    unsigned served; /* operations that did not fall back */
} runner;

static unsigned team = 2;
static mf_dtype stored = MF_F32; /* what tensors of test networks are narrowed to */
static uint64_t part_bytes;      /* of the float32 copies; 0: as the backend has it */
static uint64_t narrowing;       /* a random state: which tensors stay float32, what is added to */
static double rounding = 1e-7;   /* of results that are zero but for it: a layer normalized over one value */

static double random_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) * 0x1p-24 - 0.5;
}

static void *address(runner *r, uint32_t tensor)
{
    if (tensor == MF_NONE)
        return NULL;
    const mf_tensor *t = &r->graph->tensors[tensor];
    return r->storage[t->storage] + t->offset;
}

static uint64_t tensor_bytes(const mf_graph *g, uint32_t tensor)
{
    return mf_shape_count(&g->tensors[tensor].shape) * mf_dtype_bytes(g->tensors[tensor].dtype);
}

/* Not a byte more than asked for: a sanitizer sees who reads behind the end. */
static void *aligned(uint64_t bytes)
{
    void *p = NULL;
    assert_int_equal(posix_memalign(&p, 64, bytes ? bytes : 1), 0);
    return p;
}

/* Once before it counts, with the outputs as they were afterwards: threads are started, symbols are bound. */
static void warm_up(runner *r, mf_backend *b, uint32_t op, mf_kernel *kernel, const mf_operands *o)
{
    memfit_error err = {0};
    const mf_op *p = &r->graph->ops[op];
    void *kept[32] = {0};
    for (uint32_t i = 0; i < p->out_count; i++)
        if (o->out[i]) {
            kept[i] = aligned(tensor_bytes(r->graph, p->out[i]));
            memcpy(kept[i], o->out[i], tensor_bytes(r->graph, p->out[i]));
        }
    assert_ok(b->table->run(kernel, o, &r->scalars, 0, &err), err);
    for (uint32_t i = 0; i < p->out_count; i++)
        if (o->out[i]) {
            memcpy(o->out[i], kept[i], tensor_bytes(r->graph, p->out[i]));
            free(kept[i]);
        }
}

static void run_one(runner *r, mf_backend *b, uint32_t op, void **in, void **out)
{
    memfit_error err = {0};
    mf_cost cost;
    mf_kernel *kernel;
    assert_ok(b->table->query(b, r->graph, op, &cost, &err), err);
    assert_true(cost.supported);
    if (b == r->fast && !cost.reference)
        r->served++;
    assert_ok(b->table->prepare(b, r->graph, op, NULL, &kernel, &err), err);
    /* A guard behind the workspace: what was asked for must be enough. */
    unsigned char *workspace = aligned_alloc(64, ((cost.methods[0].workspace_bytes + 63) & ~63ull) + 128);
    memset(workspace, 0x5a, ((cost.methods[0].workspace_bytes + 63) & ~63ull) + 128);
    mf_operands operands = {in, out, workspace};
    if (b == r->fast)
        warm_up(r, b, op, kernel, &operands);
    uint64_t before = cli_allocation_count(NULL);
    cli_in_steps(NULL, true);
    memfit_status status = b->table->run(kernel, &operands, &r->scalars, 0, &err);
    cli_in_steps(NULL, false);
    if (cli_allocation_count(NULL) != before)
        fail_msg("%s on %s allocated %llu times", mf_kind_name(r->graph->ops[op].kind), b->table->name,
                 (unsigned long long)(cli_allocation_count(NULL) - before));
    assert_ok(status, err);
    for (uint64_t i = cost.methods[0].workspace_bytes; i < ((cost.methods[0].workspace_bytes + 63) & ~63ull) + 128; i++)
        assert_int_equal(workspace[i], 0x5a);
    b->table->release(b, kernel);
    free(workspace);
}

static void compare(runner *r, const mf_op *op, uint32_t o, const void *a, const void *b)
{
    const mf_tensor *t = &r->graph->tensors[op->out[o]];
    uint64_t n = mf_shape_count(&t->shape);
    if (t->dtype != MF_F32 && t->dtype != MF_F16 && t->dtype != MF_BF16) {
        if (t->dtype == MF_U8 || t->dtype == MF_I32)
            assert_memory_equal(a, b, n * mf_dtype_bytes(t->dtype));
        return;
    }
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < n; i++) {
        double x = mf_element_get(a, t->dtype, i), y = mf_element_get(b, t->dtype, i);
        if (stored == MF_F16 && !isfinite(y) && (x == y || (isnan(x) && isnan(y)))) /* beyond 65,504 */
            continue;
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    /* In 16 bits the last one may round the other way. */
    double most = t->dtype == MF_BF16 ? 8e-3 : t->dtype == MF_F16 ? 1e-3 : stored == MF_F32 ? 2e-6 : 5e-6;
    if (!(sqrt(difference) <= most * sqrt(norm) + rounding)) {
        fprintf(stderr, "%s output %u of layer %u: off by %g of %g (%llu elements, accumulate %d)\n",
                mf_kind_name(op->kind), o, op->layer, sqrt(difference), sqrt(norm), (unsigned long long)n,
                op->accumulate);
        fail();
    }
}

/* Runs the operation on both, from the same state; leaves the reference's result. */
static void step(runner *r, uint32_t index)
{
    const mf_op *op = &r->graph->ops[index];
    if (op->kind == MF_OP_INPUT || op->kind == MF_OP_VIEW)
        return;
    void *in[32], *out[32], *copy_in[32], *copy_out[32];
    for (uint32_t i = 0; i < op->in_count; i++) {
        in[i] = copy_in[i] = address(r, op->in[i]);
        if (in[i]) {
            copy_in[i] = aligned(tensor_bytes(r->graph, op->in[i]));
            memcpy(copy_in[i], in[i], tensor_bytes(r->graph, op->in[i]));
        }
    }
    for (uint32_t o = 0; o < op->out_count; o++) {
        out[o] = copy_out[o] = address(r, op->out[o]);
        if (!out[o])
            continue;
        copy_out[o] = NULL;
        for (uint32_t i = 0; i < op->in_count && !copy_out[o]; i++)
            if (op->in[i] == op->out[o])
                copy_out[o] = copy_in[i];
        if (!copy_out[o]) {
            copy_out[o] = aligned(tensor_bytes(r->graph, op->out[o]));
            memcpy(copy_out[o], out[o], tensor_bytes(r->graph, op->out[o]));
        }
    }
    for (int twice = 0; twice < (op->accumulate ? 2 : 1); twice++) {
        run_one(r, r->fast, index, copy_in, copy_out);
        run_one(r, r->reference, index, in, out);
    }
    for (uint32_t o = 0; o < op->out_count; o++)
        if (out[o])
            compare(r, op, o, copy_out[o], out[o]);
    for (uint32_t o = 0; o < op->out_count; o++) {
        bool shared = false;
        for (uint32_t i = 0; i < op->in_count; i++)
            shared = shared || copy_out[o] == copy_in[i];
        if (out[o] && !shared)
            free(copy_out[o]);
    }
    for (uint32_t i = 0; i < op->in_count; i++)
        if (in[i])
            free(copy_in[i]);
}

static void fill(runner *r)
{
    uint64_t state = 7;
    for (uint32_t i = 0; i < r->graph->tensor_count; i++) {
        const mf_tensor *t = &r->graph->tensors[i];
        if (t->producer != MF_NONE && r->graph->ops[t->producer].kind != MF_OP_INPUT)
            continue;
        uint64_t n = mf_shape_count(&t->shape);
        for (uint64_t j = 0; j < n; j++) {
            double v = random_value(&state);
            if (t->dtype == MF_F32 || t->dtype == MF_F16 || t->dtype == MF_BF16)
                mf_element_set(address(r, i), t->dtype, j,
                               !t->name                       ? v
                               : strstr(t->name, "positive")  ? v + 1
                               : strstr(t->name, "yes or no") ? v > 0
                                                              : v);
            else if (t->dtype == MF_I32)
                ((int32_t *)address(r, i))[j] = (int32_t)((v + 0.5) * 5);
            else if (t->dtype == MF_U8)
                ((uint8_t *)address(r, i))[j] = (uint8_t)((v + 0.5) * 255);
        }
    }
}

/* Most float tensors in 16 bits, some not; every other operation that can adds to what is there. */
static void narrow(mf_graph *g)
{
    bool *wide = calloc(g->tensor_count, sizeof *wide);
    for (uint32_t i = 0; i < g->tensor_count; i++)
        wide[i] = g->tensors[i].dtype != MF_F32 || random_value(&narrowing) > 0.4;
    for (uint32_t i = 0; i < g->op_count; i++) {
        mf_op *op = &g->ops[i];
        bool moves = op->kind == MF_OP_VIEW || op->kind == MF_OP_TRANSPOSE || op->kind == MF_OP_SLICE ||
                     op->kind == MF_OP_PAD || op->kind == MF_OP_CONCAT; /* what they move keeps its type */
        for (uint32_t j = 0; moves && j < op->in_count; j++)
            wide[op->in[j]] = wide[op->out[0]] = g->tensors[op->in[j]].dtype != MF_F32;
        if (!mf_kind(op->kind)->accumulates || random_value(&narrowing) > 0)
            continue;
        op->accumulate = true;
        for (uint32_t o = op->kind == MF_OP_CONV_GRAD_WEIGHTS ? 0 : 1; o < op->out_count; o++)
            if (op->out[o] != MF_NONE)
                g->storages[g->tensors[op->out[o]].storage].variable = 0;
    }
    for (uint32_t i = 0; i < g->tensor_count; i++)
        if (!wide[i]) {
            g->tensors[i].dtype = stored;
            g->tensors[i].offset /= 2;
        }
    free(wide);
}

static unsigned check_graph(mf_build *b, uint32_t root_count, uint32_t *roots)
{
    memfit_error err = {0};
    mf_graph *graph = NULL;
    b->err = &err;
    assert_ok(mf_build_end_keeping(b, root_count, roots, &graph), err);
    if (stored != MF_F32)
        narrow(graph);
    runner r = {.graph = graph,
                .scalars = {.seed = 11,
                            .step = 3,
                            .batch_samples = 6,
                            .weight_sum = 6,
                            .learning_rate = 0.01,
                            .loss_scale = 1,
                            .iteration = 4}};
    assert_ok(mf_cpu_create(NULL, team, &r.fast, &err), err);
    assert_ok(mf_reference_create(NULL, &r.reference, &err), err);
    if (part_bytes)
        ((cpu_backend *)r.fast)->part_bytes = part_bytes;
    r.storage = calloc(graph->storage_count, sizeof *r.storage);
    for (uint32_t i = 0; i < graph->storage_count; i++) {
        size_t bytes = (graph->storages[i].bytes + 127) & ~63ull;
        r.storage[i] = aligned_alloc(64, bytes);
        memset(r.storage[i], 0, bytes);
    }
    fill(&r);
    for (uint32_t i = 0; i < graph->op_count; i++)
        step(&r, i);
    for (uint32_t i = 0; i < graph->storage_count; i++)
        free(r.storage[i]);
    free(r.storage);
    r.fast->table->destroy(r.fast);
    r.reference->table->destroy(r.reference);
    mf_graph_destroy(graph);
    return r.served;
}

/* Backward from y with a random dy to everything wanted, keeping the gradients. */
static unsigned finish(mf_build *b, uint32_t y, uint32_t count, const uint32_t *wanted)
{
    mf_shape s = mf_g_shape(b, y);
    uint32_t dy = mf_g_input(b, "dy", MF_F32, s), roots[17];
    mf_g_backward(b, 1, &y, &dy, count, wanted, roots);
    if (stored != MF_F32)
        mf_g_mask(b, 0);
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        if (roots[i] != MF_NONE)
            roots[n++] = roots[i];
    roots[n++] = y;
    return check_graph(b, n, roots);
}

static void begin(mf_build *b, memfit_error *err)
{
    assert_ok(mf_build_begin(b, NULL, err), *err);
}

typedef struct conv_case {
    int64_t batch, in[2], channels, out_channels, kernel, stride, dilation, groups;
    const char *padding;
    bool bias;
} conv_case;

static void convolutions(void **state)
{
    (void)state;
    static const conv_case cases[] = {
        {6, {12, 10}, 3, 8, 3, 1, 1, 1, "same", true},
        {6, {12, 10}, 16, 32, 3, 2, 1, 1, "same", true},
        {6, {9, 9}, 16, 16, 3, 1, 2, 1, "valid", false},
        {6, {8, 8}, 32, 16, 1, 1, 1, 1, "valid", true},
        {6, {8, 8}, 16, 16, 3, 1, 1, 16, "same", true},
        {6, {11, 7}, 24, 24, 5, 2, 1, 24, "same", false},
        {6, {8, 8}, 16, 32, 3, 1, 1, 4, "same", true},
        {1, {5, 5}, 7, 5, 2, 1, 1, 1, "same", true},
        /* data gradients that run as forward convolutions with turned weights */
        {2, {18, 20}, 16, 24, 3, 1, 1, 1, "same", true},
        {2, {21, 23}, 32, 16, 5, 1, 1, 1, "valid", false},
        {2, {17, 19}, 24, 17, 2, 1, 1, 1, "same", true},
        {3, {30, 28}, 64, 48, 3, 1, 1, 1, "same", false},
        /* weight gradients three columns wide on a kernel of their own: by 64 and by 32 outputs, edges, one thread */
        {3, {9, 10}, 20, 64, 3, 1, 1, 1, "same", true},
        {2, {11, 7}, 12, 96, 3, 1, 1, 1, "same", true},
        {2, {9, 35}, 8, 128, 3, 1, 1, 1, "valid", true},
        {3, {4, 70}, 8, 32, 3, 1, 1, 1, "same", false},
        {1, {1, 2}, 8, 64, 3, 1, 1, 1, "same", true},
        {5, {2, 3}, 68, 192, 3, 1, 1, 1, "same", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const conv_case *c = &cases[i];
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        uint32_t x = mf_g_input(&b, "x", MF_F32, shape(4, c->batch, c->in[0], c->in[1], c->channels));
        uint32_t w = weight(&b, "w", shape(4, c->kernel, c->kernel, c->channels / c->groups, c->out_channels));
        uint32_t bias = c->bias ? weight(&b, "bias", shape(1, c->out_channels, 0, 0, 0)) : MF_NONE;
        mf_window win = {.dims = 2,
                         .kernel = {c->kernel, c->kernel},
                         .stride = {c->stride, c->stride},
                         .dilation = {c->dilation, c->dilation},
                         .groups = c->groups};
        assert_true(mf_window_pad(&win, c->padding, c->in));
        uint32_t y = mf_g_conv(&b, x, w, bias, &win);
        uint32_t wanted[3] = {x, w, bias};
        assert_true(finish(&b, y, c->bias ? 3 : 2, wanted) >= 3);
    }
}

static int64_t pick(uint64_t *state, int64_t from, int64_t to)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return from + (int64_t)((*state >> 33) % (uint64_t)(to - from + 1));
}

/* One to three dimensions, windows larger than their stride and smaller, dilated, in groups, each channel apart: few of
 * these have an implementation in the library that takes no memory of its own. Some are larger than a thread's share. */
static void odd_convolutions(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 60; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        int64_t dims = pick(&seed, 1, 3), groups = i % 3 ? 1 : pick(&seed, 2, 6);
        int64_t ig = i % 6 == 3 ? 1 : pick(&seed, 1, 20), og = i % 6 == 3 ? pick(&seed, 1, 2) : pick(&seed, 1, 40);
        groups = i % 12 == 3 ? 40 : groups;
        mf_shape x = {.rank = (uint32_t)dims + 2, .dim = {pick(&seed, 1, 5)}}, w = {.rank = (uint32_t)dims + 2};
        mf_window win = {.dims = (uint32_t)dims, .groups = groups};
        const char *padding = i % 2 ? "same" : "valid";
        for (int64_t d = 0; d < dims; d++) {
            win.kernel[d] = w.dim[d] = pick(&seed, 1, 4);
            win.stride[d] = pick(&seed, 1, 3);
            win.dilation[d] = pick(&seed, 1, i % 4 ? 3 : 1);
            x.dim[1 + d] = pick(&seed, 10, dims == 1 ? 90 : dims == 2 ? 24 : 13);
        }
        x.dim[1 + dims] = ig * groups;
        w.dim[dims] = ig;
        w.dim[1 + dims] = og * groups;
        assert_true(mf_window_pad(&win, padding, x.dim + 1));
        uint32_t tx = mf_g_input(&b, "x", MF_F32, x), tw = weight(&b, "w", w);
        uint32_t bias = i % 5 ? weight(&b, "bias", shape(1, og * groups, 0, 0, 0)) : MF_NONE;
        uint32_t y = mf_g_conv(&b, tx, tw, bias, &win), wanted[3] = {tx, tw, bias};
        assert_true(finish(&b, y, i % 5 ? 3 : 2, wanted) >= 3);
    }
}

/* The weight gradient three columns wide: neither the number of threads nor pieces of the batch change a bit. */
static void three_columns_bit_for_bit(void **state)
{
    (void)state;
    enum { SAMPLES = 3, IN = 9 * 10 * 20, OUT = 9 * 10 * 64, W = 9 * 20 * 64, B = 64 };
    const mf_kernel_table *t = mf_kernels();
    if (strcmp(t->name, "avx512") != 0)
        skip();
    mf_k_conv k = {SAMPLES, 20, 64, {9, 10}, {9, 10}, {3, 3}, {1, 1}, {1, 1}};
    assert_true(mf_k_three_serves(&k));
    static float x[SAMPLES * IN], dy[SAMPLES * OUT], wanted[W + B], got[W + B];
    uint64_t seed = 7;
    for (size_t i = 0; i < SAMPLES * IN; i++)
        x[i] = (float)random_value(&seed);
    for (size_t i = 0; i < SAMPLES * OUT; i++)
        dy[i] = (float)random_value(&seed);
    t->three_grad(&k, x, dy, wanted, wanted + W, false, 1);
    for (int threads = 2; threads <= MF_K_THREE_THREADS; threads++) {
        memset(got, 0xff, sizeof got);
        t->three_grad(&k, x, dy, got, got + W, false, threads);
        assert_memory_equal(got, wanted, sizeof got);
    }
    memset(got, 0xff, sizeof got);
    for (int n = 0; n < SAMPLES; n += (int)k.batch) {
        k.batch = n == 0 ? 1 : SAMPLES - 1;
        t->three_grad(&k, x + n * IN, dy + n * OUT, got, got + W, n > 0, 2);
    }
    assert_memory_equal(got, wanted, sizeof got);
}

static void products_and_functions(void **state)
{
    (void)state;
    for (int f = 0; f < MF_UNARY_COUNT; f++) {
        if (f == MF_UNARY_POW || f == MF_UNARY_LOG || f == MF_UNARY_LOG1P || f == MF_UNARY_SQRT ||
            f == MF_UNARY_RSQRT || f == MF_UNARY_RECIPROCAL)
            continue;
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        uint32_t x = mf_g_input(&b, "x", MF_F32, shape(2, 6, 33, 0, 0));
        uint32_t w = weight(&b, "w", shape(2, 33, 17, 0, 0)), bias = weight(&b, "bias", shape(1, 17, 0, 0, 0));
        uint32_t h = mf_g_matmul(&b, x, w, bias, false, false, 1);
        uint32_t y = mf_g_unary(&b, (mf_unary)f, 0.3, 0.7, mf_g_unary(&b, MF_UNARY_AFFINE, 6, 0.1, h));
        uint32_t wanted[3] = {x, w, bias};
        finish(&b, y, 3, wanted);
    }
    mf_build b;
    memfit_error err = {0};
    begin(&b, &err);
    uint32_t q = mf_g_input(&b, "q", MF_F32, shape(3, 6, 9, 8, 0)),
             k = mf_g_input(&b, "k", MF_F32, shape(3, 6, 7, 8, 0));
    uint32_t v = mf_g_input(&b, "v", MF_F32, shape(3, 6, 7, 5, 0));
    uint32_t s = mf_g_softmax(&b, mf_g_matmul(&b, q, k, MF_NONE, false, true, 0.35), 2, false);
    uint32_t y = mf_g_matmul(&b, s, v, MF_NONE, false, false, 1);
    uint32_t wanted[3] = {q, k, v};
    assert_true(finish(&b, y, 3, wanted) >= 8);
}

static void windows_and_norms(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        uint32_t x = mf_g_input(&b, "x", MF_F32, shape(4, 6, 9, 10, 13));
        uint32_t gamma = weight(&b, "gamma", shape(1, 13, 0, 0, 0)), beta = weight(&b, "beta", shape(1, 13, 0, 0, 0));
        mf_window win = {
            .dims = 2, .kernel = {i & 1 ? 3 : 2, 2}, .stride = {2, i & 2 ? 1 : 2}, .dilation = {1, 1}, .groups = 1};
        assert_true(mf_window_pad(&win, i & 1 ? "same" : "valid", (int64_t[]){9, 10}));
        uint32_t mean, variance;
        uint32_t h = i & 4 ? mf_g_layer_norm(&b, x, gamma, beta, 1e-3, 1, 0, i == 6)
                           : mf_g_batch_norm(&b, x, gamma, beta, 1e-3, &mean, &variance);
        uint32_t y = i & 2 ? mf_g_pool_max(&b, h, &win) : mf_g_pool_avg(&b, h, &win);
        y = mf_g_dropout(&b, y, 0.4, 5, 0);
        uint32_t wanted[3] = {x, gamma, beta};
        assert_true(finish(&b, y, 3, wanted) >= 6);
    }
}

static void recurrent(void **state)
{
    (void)state;
    static const mf_unary act[3] = {MF_UNARY_TANH, MF_UNARY_RELU, MF_UNARY_SIGMOID};
    static const mf_unary gate[3] = {MF_UNARY_SIGMOID, MF_UNARY_SIGMOID, MF_UNARY_TANH};
    for (int i = 0; i < 12; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        uint32_t z = mf_g_input(&b, "z", MF_F32, shape(3, 6, 5, 28, 0)), u = weight(&b, "u", shape(2, 7, 28, 0, 0));
        uint32_t h0 = i & 1 ? mf_g_input(&b, "h0", MF_F32, shape(2, 6, 7, 0, 0)) : MF_NONE;
        uint32_t c0 = i & 1 ? mf_g_input(&b, "c0", MF_F32, shape(2, 6, 7, 0, 0)) : MF_NONE;
        mf_rnn_result r = mf_g_lstm(&b, z, u, h0, c0, MF_NONE, i & 2, act[i / 4], gate[i / 4]);
        uint32_t wanted[4] = {z, u, h0, c0};
        assert_true(finish(&b, i % 4 == 3 ? r.last : r.sequence, i & 1 ? 4 : 2, wanted) >= 2);
    }
}

/* GRU and simple RNN, with and without a mask, run on kernels of their own in both directions. */
static void gated_and_simple(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        int64_t gates = i & 1 ? 3 : 1;
        uint32_t z = mf_g_input(&b, "z", MF_F32, shape(3, 6, 5, gates * 7, 0));
        uint32_t u = weight(&b, "u", shape(2, 7, gates * 7, 0, 0));
        uint32_t bias = weight(&b, "bias", shape(1, 21, 0, 0, 0));
        uint32_t mask = i & 2 ? mf_g_input(&b, "mask", MF_U8, shape(2, 6, 5, 0, 0)) : MF_NONE;
        mf_rnn_result r = i & 1
                              ? mf_g_gru(&b, z, u, bias, MF_NONE, mask, i & 4, true, MF_UNARY_TANH, MF_UNARY_SIGMOID)
                              : mf_g_simple_rnn(&b, z, u, MF_NONE, mask, i & 4, i & 4 ? MF_UNARY_RELU : MF_UNARY_TANH);
        uint32_t wanted[3] = {z, u, bias};
        assert_true(finish(&b, r.sequence, i & 1 ? 3 : 2, wanted) >= 2);
    }
}

/* Recurrent dropout, the reset before the product and hard sigmoids: a product for each gate; never the reference. */
static void recurrent_by_gate(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        int kind = i & 3; /* LSTM, GRU, GRU with the reset first, simple RNN */
        int64_t gates = kind == 0 ? 4 : kind == 3 ? 1 : 3;
        uint32_t z = mf_g_input(&b, "z", MF_F32, shape(3, 6, 5, gates * 7, 0));
        uint32_t u = weight(&b, "u", shape(2, 7, gates * 7, 0, 0));
        uint32_t bias = kind == 1 ? weight(&b, "bias", shape(1, 21, 0, 0, 0)) : MF_NONE;
        uint32_t mask = i & 4 ? mf_g_input(&b, "mask", MF_U8, shape(2, 6, 5, 0, 0)) : MF_NONE;
        uint32_t h0 = i & 8 ? mf_g_input(&b, "h0", MF_F32, shape(2, 6, 7, 0, 0)) : MF_NONE;
        mf_unary gate = i & 8 ? MF_UNARY_HARD_SIGMOID : i & 4 ? MF_UNARY_HARD_SIGMOID_FIFTH : MF_UNARY_SIGMOID;
        mf_rnn_result r = kind == 0   ? mf_g_lstm(&b, z, u, h0, MF_NONE, mask, i & 8, MF_UNARY_TANH, gate)
                          : kind == 3 ? mf_g_simple_rnn(&b, z, u, h0, mask, i & 8, MF_UNARY_TANH)
                                      : mf_g_gru(&b, z, u, bias, h0, mask, i & 8, kind == 1, MF_UNARY_TANH, gate);
        if (i & 16) {
            b.graph->ops[b.graph->op_count - 1].attr.rnn.recurrent_dropout = 0.3;
            b.graph->ops[b.graph->op_count - 1].attr.rnn.key = 5;
        }
        uint32_t wanted[4] = {z, u}, count = 2;
        if (bias != MF_NONE)
            wanted[count++] = bias;
        if (h0 != MF_NONE)
            wanted[count++] = h0;
        assert_true(finish(&b, i & 1 ? r.last : r.sequence, count, wanted) >= 2);
    }
}

static void moving_data(void **state)
{
    (void)state;
    mf_build b;
    memfit_error err = {0};
    begin(&b, &err);
    uint32_t x = mf_g_input(&b, "x", MF_F32, shape(4, 6, 5, 4, 8)),
             s = mf_g_input(&b, "s", MF_F32, shape(4, 6, 1, 1, 8));
    uint32_t t = mf_g_transpose(&b, x, (uint32_t[]){0, 2, 1, 3});
    uint32_t m = mf_g_binary(&b, MF_MUL, t, s);
    uint32_t p = mf_g_pad(&b, m, (int64_t[]){0, 1, 2, 0}, (int64_t[]){0, 0, 1, 0}, (int64_t[]){0, 0, 0, 0}, 0, 0);
    uint32_t part[2] = {p, mf_g_unary(&b, MF_UNARY_RELU, 0, 0, p)};
    uint32_t c = mf_g_concat(&b, 2, part, 3);
    uint32_t d = mf_g_slice(&b, c, (int64_t[]){0, 1, 0, 3}, (int64_t[]){6, 3, 4, 10}, (int64_t[]){1, 1, 2, 1});
    uint32_t y = mf_g_reduce(&b, MF_REDUCE_MEAN, d, 6, false);
    uint32_t wanted[2] = {x, s};
    assert_true(finish(&b, y, 2, wanted) >= 10);

    begin(&b, &err);
    uint32_t index = mf_g_input(&b, "index", MF_I32, shape(2, 6, 4, 0, 0)),
             table = weight(&b, "table", shape(2, 5, 7, 0, 0));
    y = mf_g_gather(&b, table, index);
    assert_true(finish(&b, y, 1, &table) >= 2);
}

static uint32_t state_variable(mf_build *b, const char *name, mf_shape s, mf_var_role role)
{
    return mf_g_use(b, mf_g_variable(b, &(mf_variable){.name = name,
                                                       .role = role,
                                                       .kind = MEMFIT_KIND_OPTIMIZER,
                                                       .dtype = MF_F32,
                                                       .shape = s,
                                                       .parameter = MF_NONE}));
}

static void losses_and_updates(void **state)
{
    (void)state;
    static const mf_loss losses[] = {MF_LOSS_MSE,        MF_LOSS_MAE,        MF_LOSS_HUBER,
                                     MF_LOSS_BCE_LOGITS, MF_LOSS_CCE_LOGITS, MF_LOSS_SCCE_LOGITS};
    static const mf_update_attr updates[] = {
        {.optimizer = MF_OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true},
        {.optimizer = MF_OPTIMIZER_SGD},
        {.optimizer = MF_OPTIMIZER_ADAM, .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7},
        {.optimizer = MF_OPTIMIZER_ADAM, .beta_1 = 0.9, .beta_2 = 0.999, .epsilon = 1e-7, .amsgrad = true},
        {.optimizer = MF_OPTIMIZER_RMSPROP, .rho = 0.9, .momentum = 0.5, .epsilon = 1e-7},
        {.optimizer = MF_OPTIMIZER_LION, .beta_1 = 0.9, .beta_2 = 0.99, .weight_decay = 0.01, .has_weight_decay = true},
    };
    static const uint32_t slots[] = {1, 0, 2, 3, 2, 1};
    int64_t columns = stored == MF_F32 ? 5 : 205; /* more than a part */
    for (size_t i = 0; i < 6; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        bool sparse = losses[i] == MF_LOSS_SCCE_LOGITS;
        uint32_t p = mf_g_input(&b, "p", MF_F32, shape(2, 6, columns, 0, 0));
        uint32_t t = mf_g_input(&b, "t", sparse ? MF_I32 : MF_F32, shape(sparse ? 1 : 2, 6, columns, 0, 0));
        uint32_t w = mf_g_input(&b, "w", MF_F32, shape(1, 6, 0, 0, 0));
        uint32_t loss = state_variable(&b, "loss", shape(0, 0, 0, 0, 0), MF_VAR_LOSS);
        mf_attr attr = {
            .loss = {
                .function = losses[i], .weight = 0.5, .delta = 0.1, .label_smoothing = sparse ? 0 : 0.1, .axis = 1}};
        uint32_t in[4] = {p, t, w, loss}, dp;
        mf_g_op_in_place(&b, MF_OP_LOSS, &attr, 4, in, 1, &loss);
        mf_typed type = {.dtype = MF_F32, .shape = shape(2, 6, columns, 0, 0)};
        mf_g_op(&b, MF_OP_LOSS_GRAD, &attr, 3, in, 1, &type, &dp);
        uint32_t param = weight(&b, "param", shape(2, 6, columns, 0, 0));
        mf_attr up = {.update = updates[i]};
        uint32_t uin[5] = {param, dp}, uout[4] = {param};
        static const char *const names[] = {"positive0", "positive1", "positive2"};
        for (uint32_t s = 0; s < slots[i]; s++)
            uin[2 + s] = uout[1 + s] = state_variable(&b, names[s], shape(2, 6, columns, 0, 0), MF_VAR_SLOT);
        mf_g_op_in_place(&b, MF_OP_UPDATE, &up, 2 + slots[i], uin, 1 + slots[i], uout);
        assert_true(check_graph(&b, 1, &dp) >= 3);
    }
}

/* Every metric, with weights and without, rows of one and of many, more than a thread's share; clipping likewise. */
static void metrics_and_clips(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{6, 4}, {700, 1}, {301, 70}, {40, 5000}, {1, 3}};
    for (int i = 0; i < 5 * MF_METRIC_COUNT; i++) {
        const int64_t *size = sizes[i / MF_METRIC_COUNT];
        mf_metric f = (mf_metric)(i % MF_METRIC_COUNT);
        bool sparse = f == MF_METRIC_SPARSE_CATEGORICAL_ACCURACY || f == MF_METRIC_SPARSE_TOP_K;
        if (f == MF_METRIC_LOSS_VALUE || (f == MF_METRIC_AUC && size[1] > 100))
            continue;
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        mf_shape s = shape(2, size[0], size[1], 0, 0);
        mf_shape cells = f == MF_METRIC_AUC ? shape(2, 4, 200, 0, 0) : shape(1, 2, 0, 0, 0);
        uint32_t in[4] = {mf_g_input(&b, "positive", MF_F32, s), MF_NONE, MF_NONE, MF_NONE};
        in[1] = sparse ? mf_g_input(&b, "label", MF_I32, shape(1, size[0], 0, 0, 0))
                       : mf_g_input(&b, "yes or no", MF_F32, s);
        in[2] = i & 1 ? mf_g_input(&b, "positive w", MF_F32, shape(1, size[0], 0, 0, 0)) : MF_NONE;
        in[3] = state_variable(&b, "state", cells, MF_VAR_METRIC);
        mf_attr attr = {.metric = {.function = f, .threshold = 0.9, .k = i % 3 ? 2 : 0}};
        mf_g_op_in_place(&b, MF_OP_METRIC, &attr, 4, in, 1, &in[3]);
        uint32_t norm = mf_g_input(&b, "positive n", MF_F32, shape(0, 0, 0, 0, 0));
        uint32_t g[2] = {state_variable(&b, "g", s, MF_VAR_GRADIENT), state_variable(&b, "h", s, MF_VAR_GRADIENT)};
        mf_attr clip = {.clip = {.value = i % 2 ? 0.2 : 0, .norm = i % 3 ? 0.5 : 0}};
        mf_g_op_in_place(&b, MF_OP_CLIP, &clip, 1, &g[0], 1, &g[0]);
        mf_g_op_in_place(&b, MF_OP_CLIP_GLOBAL, &clip, 2, (uint32_t[]){g[1], norm}, 1, &g[1]);
        assert_true(check_graph(&b, 0, NULL) >= 3);
    }
}

/* Sums over a batch have the same bits whatever the number of threads. */
static void sums_without_threads(void **state)
{
    (void)state;
    enum { ROWS = 67, COLUMNS = 911, N = ROWS * COLUMNS };
    static float p[N], t[N], w[ROWS], out[4][N];
    static int32_t label[ROWS];
    uint64_t seed = 5;
    for (int i = 0; i < N; i++) {
        p[i] = (float)random_value(&seed);
        t[i] = (float)(random_value(&seed) > 0);
    }
    for (int i = 0; i < ROWS; i++) {
        w[i] = (float)random_value(&seed) + 1;
        label[i] = (int32_t)pick(&seed, 0, COLUMNS - 1);
    }
    const mf_kernel_table *k = mf_kernels();
    mf_k_loss loss = {.rows = ROWS, .columns = COLUMNS, .rows_per_sample = 1, .factor = 1, .target_type = MF_I32};
    mf_k_metric m = {MF_METRIC_METRIC_MAE, ROWS, COLUMNS, 1, 0.1, 5, MF_I32};
    double first[6] = {0};
    for (int threads = 1; threads <= 4; threads++) {
        double got[6] = {0};
        loss.function = MF_LOSS_SCCE_LOGITS;
        got[0] = k->loss(&loss, p, label, w, threads);
        loss.function = MF_LOSS_MSE;
        got[1] = k->loss(&loss, p, t, NULL, threads);
        got[2] = k->square_sum(p, N, threads);
        got[3] = k->regularize(0.1, 0.2, 1, p, t, out[threads - 1], N, threads);
        k->metric(&m, p, t, w, got + 4, threads);
        if (threads == 1)
            memcpy(first, got, sizeof got);
        assert_memory_equal(got, first, sizeof got);
        assert_memory_equal(out[threads - 1], out[0], sizeof out[0]);
    }
}

/* What is left to the reference operations is shared out to the threads: the same numbers, gradients of what all samples
 * share added up. */
static void shared_out(void **state)
{
    (void)state;
    team = 3;
    for (int i = 0; i < 12; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        uint32_t x = mf_g_input(&b, "x", MF_F32, shape(4, 7, 12, 10, 8)), y = x, wanted[3] = {x}, count = 1;
        if (i < 2) {
            wanted[count++] = weight(&b, "alpha", i ? shape(3, 12, 10, 8, 0) : shape(3, 1, 1, 8, 0));
            y = mf_g_prelu(&b, x, wanted[1]);
        } else if (i < 5) {
            y = mf_g_resize(&b, x, 17, 9, (uint32_t)i - 2, false, true);
        } else if (i < 7) {
            wanted[count++] = weight(&b, "positive gamma", shape(1, 8, 0, 0, 0));
            wanted[count++] = weight(&b, "beta", shape(1, 8, 0, 0, 0));
            y = mf_g_layer_norm(&b, x, wanted[1], wanted[2], 1e-3, 1, i == 5 ? 2 : 8, false);
        } else if (i < 9) {
            y = mf_g_reduce(&b, i == 7 ? MF_REDUCE_L2 : MF_REDUCE_MAX, x, i == 7 ? 8 : 10, true);
        } else if (i < 11) {
            y = mf_g_dropout(&b, x, 0.3, 4, i == 9 ? 6 : 2);
        } else {
            wanted[count++] = weight(&b, "u", shape(2, 20, 80, 0, 0));
            wanted[0] = x = mf_g_input(&b, "z", MF_F32, shape(3, 7, 11, 80, 0));
            y = mf_g_lstm(&b, x, wanted[1], MF_NONE, MF_NONE, MF_NONE, false, MF_UNARY_SOFTSIGN, MF_UNARY_SIGMOID)
                    .sequence;
        }
        finish(&b, y, count, wanted);
    }
    static const mf_optimizer rules[] = {MF_OPTIMIZER_ADAMAX,   MF_OPTIMIZER_NADAM, MF_OPTIMIZER_ADAGRAD,
                                         MF_OPTIMIZER_ADADELTA, MF_OPTIMIZER_FTRL,  MF_OPTIMIZER_LAMB};
    static const uint32_t slots[] = {2, 3, 1, 2, 2, 2};
    static const char *const names[] = {"positive0", "positive1", "positive2"};
    for (int i = 0; i < 6; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        mf_shape s = shape(2, 101, 97, 0, 0), one = shape(0, 0, 0, 0, 0);
        uint32_t in[6] = {weight(&b, "w", s), mf_g_input(&b, "g", MF_F32, s)}, out[5] = {in[0]};
        mf_attr attr = {.update = {.optimizer = rules[i], .beta_1 = 0.9, .beta_2 = 0.99, .rho = 0.9, .epsilon = 1e-3}};
        attr.update.learning_rate_power = -0.5;
        for (uint32_t j = 0; j < slots[i]; j++)
            in[2 + j] = out[1 + j] = state_variable(&b, names[j], j == 2 ? one : s, MF_VAR_SLOT);
        mf_g_op_in_place(&b, MF_OP_UPDATE, &attr, 2 + slots[i], in, 1 + slots[i], out);
        uint32_t average = state_variable(&b, "average", s, MF_VAR_SLOT);
        mf_attr ema = {.ema = {.momentum = 0.99}};
        mf_g_op_in_place(&b, MF_OP_EMA, &ema, 2, (uint32_t[]){in[0], average}, 1, &average);
        check_graph(&b, 1, &in[1]);
    }
    team = 2;
}

/* ---- shapes at random: sizes of one, odd ones, more than a block, windows larger than what they slide over ---- */

static int64_t any_size(uint64_t *state)
{
    static const int64_t sizes[] = {1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33};
    return sizes[pick(state, 0, 11)];
}

static mf_shape any_shape(uint64_t *state, uint32_t rank)
{
    mf_shape s = {.rank = rank};
    for (uint32_t d = 0; d < rank; d++)
        s.dim[d] = d + 1 < rank ? pick(state, 1, 6) : any_size(state);
    return s;
}

static bool any_window(uint64_t *state, uint32_t dims, const int64_t *in, bool dilates, mf_window *win)
{
    *win = (mf_window){.dims = dims, .groups = 1, .count_padding = false};
    for (uint32_t d = 0; d < dims; d++) {
        win->kernel[d] = pick(state, 1, 4);
        win->stride[d] = pick(state, 1, 3);
        win->dilation[d] = 1;
    }
    if (dilates && pick(state, 0, 2) == 0)
        for (uint32_t d = 0; d < dims; d++) {
            win->stride[d] = 1;
            win->dilation[d] = pick(state, 1, 3);
        }
    if (!mf_window_pad(win, pick(state, 0, 1) ? "same" : "valid", in))
        return false;
    for (uint32_t d = 0; d < dims; d++)
        if (mf_window_out(win, d, in[d]) < 1)
            return false;
    return true;
}

static uint32_t any_convolution(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    static const int64_t channels[] = {1, 2, 3, 4, 5, 8, 16, 20, 32, 64, 96};
    uint32_t dims = (uint32_t)pick(state, 1, 3);
    mf_shape s = {.rank = dims + 2, .dim = {pick(state, 1, 3)}}, ws = {.rank = dims + 2};
    mf_window win;
    do
        for (uint32_t d = 0; d < dims; d++)
            s.dim[1 + d] = pick(state, 1, dims == 3 ? 5 : 12);
    while (!any_window(state, dims, s.dim + 1, true, &win));
    s.dim[dims + 1] = channels[pick(state, 0, 10)];
    ws.dim[dims] = s.dim[dims + 1];
    ws.dim[dims + 1] = channels[pick(state, 0, 10)];
    if (pick(state, 0, 4) == 0) { /* by channel */
        win.groups = s.dim[dims + 1];
        ws.dim[dims] = 1;
        ws.dim[dims + 1] = win.groups * pick(state, 1, 2);
    }
    memcpy(ws.dim, win.kernel, dims * sizeof *ws.dim);
    wanted[0] = mf_g_input(b, "x", MF_F32, s);
    wanted[1] = weight(b, "w", ws);
    wanted[2] = weight(b, "bias", shape(1, ws.dim[dims + 1], 0, 0, 0));
    return mf_g_conv(b, wanted[0], wanted[1], wanted[2], &win);
}

static uint32_t any_pooling(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    uint32_t dims = (uint32_t)pick(state, 1, 3);
    mf_shape s = any_shape(state, dims + 2);
    mf_window win;
    while (!any_window(state, dims, s.dim + 1, false, &win))
        ;
    win.count_padding = pick(state, 0, 1);
    wanted[0] = mf_g_input(b, "x", MF_F32, s);
    return pick(state, 0, 1) ? mf_g_pool_max(b, wanted[0], &win) : mf_g_pool_avg(b, wanted[0], &win);
}

static uint32_t any_norm(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    mf_shape s = any_shape(state, (uint32_t)pick(state, 2, 4));
    int64_t c = s.dim[s.rank - 1] = pick(state, 0, 9) ? s.dim[s.rank - 1] : 530; /* more columns than a block */
    uint32_t mean, variance, what = (uint32_t)pick(state, 0, 2);
    wanted[0] = mf_g_input(b, "x", MF_F32, s);
    wanted[1] = weight(b, "gamma", shape(1, c, 0, 0, 0));
    wanted[2] = weight(b, "beta", shape(1, c, 0, 0, 0));
    return what ? mf_g_layer_norm(b, wanted[0], wanted[1], wanted[2], 1e-3, 1, 0, what == 2)
                : mf_g_batch_norm(b, wanted[0], wanted[1], wanted[2], 1e-3, &mean, &variance);
}

static uint32_t any_pair(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    static const mf_binary functions[] = {MF_ADD, MF_SUB, MF_MUL, MF_MAX, MF_MIN, MF_SQUARED_DIFFERENCE};
    mf_shape s = any_shape(state, (uint32_t)pick(state, 1, 4)), x[2] = {s, s};
    for (int i = 0; i < 2; i++)
        for (uint32_t d = 0; d < s.rank; d++)
            x[i].dim[d] = pick(state, 0, 2) ? s.dim[d] : 1;
    wanted[0] = mf_g_input(b, "x", MF_F32, x[0]);
    wanted[1] = mf_g_input(b, "positive", MF_F32, x[1]);
    return mf_g_binary(b, functions[pick(state, 0, 5)], wanted[0], wanted[1]);
}

static uint32_t any_move(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    mf_shape s = any_shape(state, (uint32_t)pick(state, 1, 4));
    int64_t from[4], size[4], stride[4], between[4];
    uint32_t perm[4], x = wanted[0] = mf_g_input(b, "x", MF_F32, s);
    for (uint32_t d = 0; d < s.rank; d++) {
        perm[d] = d;
        stride[d] = pick(state, 1, 3);
        from[d] = pick(state, 0, s.dim[d] - 1);
        size[d] = pick(state, 1, (s.dim[d] - 1 - from[d]) / stride[d] + 1);
        between[d] = pick(state, 0, 1);
    }
    uint32_t a = (uint32_t)pick(state, 0, s.rank - 1), swap = perm[a];
    perm[a] = perm[0];
    perm[0] = swap;
    switch (pick(state, 0, 3)) {
    case 0:
        return mf_g_transpose(b, x, perm);
    case 1:
        return mf_g_slice(b, x, from, size, stride);
    case 2:
        return mf_g_pad(b, x, from, size, between, 0.5, 0);
    default:
        return mf_g_concat(b, 3, (uint32_t[]){x, mf_g_unary(b, MF_UNARY_TANH, 0, 0, x), x}, a);
    }
}

static uint32_t any_sum(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    static const mf_reduce functions[] = {MF_REDUCE_SUM, MF_REDUCE_MEAN, MF_REDUCE_MAX, MF_REDUCE_MIN};
    mf_shape s = any_shape(state, (uint32_t)pick(state, 1, 4));
    if (pick(state, 0, 5) == 0)
        s.dim[0] = 400;
    wanted[0] = mf_g_input(b, "x", MF_F32, s);
    uint32_t axes = (uint32_t)pick(state, 1, (1 << s.rank) - 1);
    if (pick(state, 0, 2) == 0)
        return mf_g_softmax(b, wanted[0], (uint32_t)pick(state, 0, s.rank - 1), pick(state, 0, 1));
    return mf_g_reduce(b, functions[pick(state, 0, 3)], wanted[0], axes, pick(state, 0, 1));
}

static uint32_t any_product(mf_build *b, uint64_t *state, uint32_t *wanted)
{
    bool ta = pick(state, 0, 1), tb = pick(state, 0, 1), many = pick(state, 0, 1),
         shared = !many || (!ta && pick(state, 0, 1));
    int64_t m = any_size(state), n = any_size(state), k = any_size(state), count = pick(state, 1, 4);
    mf_shape a = many ? shape(3, count, ta ? k : m, ta ? m : k, 0) : shape(2, ta ? k : m, ta ? m : k, 0, 0);
    mf_shape c = shared ? shape(2, tb ? n : k, tb ? k : n, 0, 0) : shape(3, count, tb ? n : k, tb ? k : n, 0);
    wanted[0] = mf_g_input(b, "x", MF_F32, a);
    wanted[1] = mf_g_input(b, "w", MF_F32, c);
    return mf_g_matmul(b, wanted[0], wanted[1], MF_NONE, ta, tb, pick(state, 0, 1) ? 1 : 0.25);
}

static void random_shapes(void **state)
{
    (void)state;
    static uint32_t (*const any[])(mf_build *, uint64_t *, uint32_t *) = {
        any_convolution, any_pooling, any_norm, any_pair, any_move, any_sum, any_product};
    enum { KINDS = sizeof any / sizeof *any };
    const char *rounds = getenv("MEMFIT_TEST_ROUNDS");
    rounding = 2e-5;
    for (uint64_t round = 0, most = rounds ? strtoull(rounds, NULL, 10) : 40 * KINDS; round < most; round++) {
        uint64_t random = round * 0x9E3779B97F4A7C15u + 5;
        random_value(&random);
        mf_build b;
        memfit_error err = {0};
        uint32_t wanted[3] = {MF_NONE, MF_NONE, MF_NONE}, count = 0;
        team = (unsigned)pick(&random, 1, 4);
        begin(&b, &err);
        uint32_t y = any[round % KINDS](&b, &random, wanted);
        while (count < 3 && wanted[count] != MF_NONE)
            count++;
        if (!mf_build_ok(&b))
            fail_msg("round %llu: %s", (unsigned long long)round, err.message);
        finish(&b, y, count, wanted);
    }
    team = 2;
    rounding = 1e-7;
}

/* Everything again in 16 bits, in parts of a few samples, of a few elements, and whole. */
static void sixteen_bits(void **state)
{
    static const uint64_t parts[] = {64, 1500, 20000};
    narrowing = 3;
    for (int i = 0; i < 3; i++) {
        stored = i == 1 ? MF_F16 : MF_BF16;
        part_bytes = parts[i];
        convolutions(state);
        products_and_functions(state);
        windows_and_norms(state);
        moving_data(state);
        losses_and_updates(state);
        random_shapes(state);
    }
    recurrent(state);
    stored = MF_F32;
    part_bytes = 0;
}

/* Extremes over a NaN are NaN wherever it stands: along a row, down columns, shared out over threads, of a pair. */
static void extremes_of_nan(void **state)
{
    (void)state;
    enum { ROWS = 300, COLUMNS = 70 };
    static float x[ROWS * COLUMNS], y[ROWS], workspace[4 * COLUMNS];
    const mf_kernel_table *k = mf_kernels();
    for (int at = 0; at < ROWS * COLUMNS; at += 41) {
        for (int i = 0; i < ROWS * COLUMNS; i++)
            x[i] = (float)(i % 13) - 6;
        x[at] = NAN;
        for (mf_reduce f = MF_REDUCE_MAX; f <= MF_REDUCE_MIN; f++) {
            k->reduce(f, x, y, ROWS, COLUMNS, 1, false, NULL, 2);
            for (int i = 0; i < ROWS; i++)
                assert_int_equal(isnan(y[i]) != 0, i == at / COLUMNS);
            k->reduce(f, x, y, 1, ROWS, COLUMNS, false, workspace, 4);
            for (int i = 0; i < COLUMNS; i++)
                assert_int_equal(isnan(y[i]) != 0, i == at % COLUMNS);
        }
    }
    float a[3] = {NAN, 1, 2}, b[3] = {1, NAN, 3}, c[3];
    mf_k_walk w = {.rank = 1, .size = {3}, .step = {{1}, {1}, {1}}};
    for (int f = 0; f < 2; f++) {
        k->binary(f ? MF_MAX : MF_MIN, &w, a, b, c, 1);
        assert_true(isnan(c[0]) && isnan(c[1]));
        assert_true(c[2] == (f ? 3.0f : 2.0f));
    }
}

/* Penalties of weights, with and without a gradient; indices that come as floats. */
static void penalties_and_indices(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        mf_build b;
        memfit_error err = {0};
        begin(&b, &err);
        uint32_t loss = state_variable(&b, "loss", shape(0, 0, 0, 0, 0), MF_VAR_LOSS);
        uint32_t w = weight(&b, "w", shape(2, 97, 91, 0, 0));
        uint32_t grad = i & 1 ? state_variable(&b, "grad", shape(2, 97, 91, 0, 0), MF_VAR_GRADIENT) : MF_NONE;
        mf_attr attr = {.regularize = {.l1 = i & 2 ? 0.01 : 0, .l2 = 0.02}};
        mf_g_op_in_place(&b, MF_OP_REGULARIZE, &attr, 3, (uint32_t[]){w, grad, loss}, 2, (uint32_t[]){grad, loss});
        uint32_t index = mf_g_cast(&b, mf_g_input(&b, "positive", MF_F32, shape(2, 6, 4, 0, 0)), MF_I32);
        assert_true(check_graph(&b, 1, &index) >= 2);
    }
}

int main(void)
{
    if (test_isa_is_missing())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions),
        cmocka_unit_test(odd_convolutions),
        cmocka_unit_test(products_and_functions),
        cmocka_unit_test(windows_and_norms),
        cmocka_unit_test(moving_data),
        cmocka_unit_test(losses_and_updates),
        cmocka_unit_test(metrics_and_clips),
        cmocka_unit_test(shared_out),
        cmocka_unit_test(sums_without_threads),
        cmocka_unit_test(recurrent),
        cmocka_unit_test(gated_and_simple),
        cmocka_unit_test(recurrent_by_gate),
        cmocka_unit_test(random_shapes),
        cmocka_unit_test(sixteen_bits),
        cmocka_unit_test(extremes_of_nan),
        cmocka_unit_test(penalties_and_indices),
        cmocka_unit_test(three_columns_bit_for_bit),
    };
    cli_reserve_begin(8);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
