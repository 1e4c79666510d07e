/*
 * test_ops_chunks.c: the last layer and its loss in chunks of rows are the last layer and its loss. For every form of
 * such an end (Dense or EinsumDense, with and without bias, softmax or logits, labels or distributions, smoothing,
 * ignored labels, masks, sample weights, sums and means, frozen parts, one or many rows a sample, chunks that do not
 * divide the rows) loss, metrics, gradients and updated parameters agree with the whole to 1e-12 in double on the
 * reference operations, and gradients norm-wise to 1e-5 in float on the fast ones; under mixed precision to what its
 * 16 bits resolve. With pieces on top: to the same. Planned, with bytes reused and what is released set to NaN, it is
 * the unplanned graph to the bit.
 */
#include "test.h"

#include "base/philox.h"
#include "model/lower/lower.h"
#include "ops/interpret.h"
#include "model/lower/model_graphs.h"
#include "train/execute.h"

#include <math.h>

enum { BATCH = 6, STEPS = 9, WORDS = 11, CLASSES = 13, CHUNKS = 4 };

static mf_backend *backend;
static bool in_double;

typedef struct variant {
    const char *name, *body, *end, *loss;
    const char *policy; /* NULL: float32 */
    bool weights;
} variant;

#define LAYER(cls, name, rest)                                                                                         \
    "{\"module\":\"keras.layers\",\"class_name\":\"" cls "\",\"config\":{\"name\":\"" name "\"" rest "}}"
#define TOKENS                                                                                                         \
    LAYER("InputLayer", "in", ",\"batch_shape\":[null,9],\"dtype\":\"int32\"")                                         \
    "," LAYER("Embedding", "words", ",\"input_dim\":11,\"output_dim\":5")
#define MASKED                                                                                                         \
    LAYER("InputLayer", "in", ",\"batch_shape\":[null,9],\"dtype\":\"int32\"")                                         \
    "," LAYER("Embedding", "words", ",\"input_dim\":11,\"output_dim\":5,\"mask_zero\":true")
#define FROZEN                                                                                                         \
    LAYER("InputLayer", "in", ",\"batch_shape\":[null,9],\"dtype\":\"int32\"")                                         \
    "," LAYER("Embedding", "words", ",\"input_dim\":11,\"output_dim\":5,\"trainable\":false")
#define HIDDEN  "," LAYER("Dense", "hidden", ",\"units\":7,\"activation\":\"relu\"")
#define ROWS    LAYER("InputLayer", "in", ",\"batch_shape\":[null,9]") HIDDEN
#define SOFTMAX LAYER("Dense", "end", ",\"units\":13,\"activation\":\"softmax\"")
#define LOGITS  LAYER("Dense", "end", ",\"units\":13")
#define NO_BIAS LAYER("Dense", "end", ",\"units\":13,\"activation\":\"softmax\",\"use_bias\":false")
#define FIXED   LAYER("Dense", "end", ",\"units\":13,\"activation\":\"softmax\",\"trainable\":false")
#define APART   LOGITS "," LAYER("Activation", "soft", ",\"activation\":\"softmax\"")
#define EINSUM                                                                                                         \
    LAYER("EinsumDense", "end", ",\"equation\":\"abc,cd->abd\",\"output_shape\":[null,13],\"bias_axes\":\"d\"")
#define TRANSPOSED                                                                                                     \
    LAYER("EinsumDense", "end", ",\"equation\":\"abc,dc->abd\",\"output_shape\":[null,13],\"bias_axes\":\"d\"")
#define SPARSE     "\"sparse_categorical_crossentropy\""
#define DENSE      "\"categorical_crossentropy\""
#define OF(cls, c) "{\"class_name\":\"" cls "\",\"config\":{" c "}}"

static const variant variants[] = {
    {"softmax", TOKENS HIDDEN, SOFTMAX, SPARSE, NULL, false},
    {"softmax, weights", TOKENS HIDDEN, SOFTMAX, SPARSE, NULL, true},
    {"logits", TOKENS HIDDEN, LOGITS, OF("SparseCategoricalCrossentropy", "\"from_logits\":true"), NULL, true},
    {"apart", TOKENS HIDDEN, APART, SPARSE, NULL, false},
    {"no bias", TOKENS HIDDEN, NO_BIAS, SPARSE, NULL, false},
    {"einsum", TOKENS HIDDEN, EINSUM, OF("SparseCategoricalCrossentropy", "\"from_logits\":true"), NULL, true},
    {"transposed", TOKENS HIDDEN, TRANSPOSED, OF("SparseCategoricalCrossentropy", "\"from_logits\":true"), NULL, true},
    {"distributions", TOKENS HIDDEN, SOFTMAX, DENSE, NULL, true},
    {"smoothed", TOKENS HIDDEN, SOFTMAX, OF("CategoricalCrossentropy", "\"label_smoothing\":0.1"), NULL, false},
    {"sum", TOKENS HIDDEN, SOFTMAX, OF("SparseCategoricalCrossentropy", "\"reduction\":\"sum\""), NULL, true},
    {"weighted mean", TOKENS HIDDEN, SOFTMAX,
     OF("SparseCategoricalCrossentropy", "\"reduction\":\"mean_with_sample_weight\""), NULL, true},
    {"ignored", TOKENS HIDDEN, SOFTMAX, OF("SparseCategoricalCrossentropy", "\"ignore_class\":3"), NULL, true},
    {"masked", MASKED HIDDEN, SOFTMAX, SPARSE, NULL, true},
    {"masked, ignored", MASKED HIDDEN, SOFTMAX, OF("SparseCategoricalCrossentropy", "\"ignore_class\":3"), NULL, true},
    {"frozen body", FROZEN, SOFTMAX, SPARSE, NULL, false},
    {"frozen end", TOKENS HIDDEN, FIXED, SPARSE, NULL, false},
    {"one row each", ROWS, SOFTMAX, SPARSE, NULL, true},
    {"bfloat16", TOKENS HIDDEN, SOFTMAX, SPARSE, "mixed_bfloat16", true},
    {"float16", TOKENS HIDDEN, SOFTMAX, SPARSE, "mixed_float16", false},
};

typedef struct running {
    mf_graph *graph;
    mf_interpreter *it;
} running;

static double draw(uint32_t stream, uint64_t i)
{
    uint32_t words[4];
    mf_philox(5, stream, 0, i, 0, words);
    return words[0] / 4294967296.0;
}

/* The text must outlive the model. */
static mf_model *load(const variant *v)
{
    static char text[4096];
    snprintf(text, sizeof text,
             "{\"module\":\"keras\",\"class_name\":\"Sequential\",\"keras_version\":\"3.8.0\",\"config\":{\"name\":"
             "\"m\",\"layers\":[%s,%s]},"
             "\"compile_config\":{\"optimizer\":{\"class_name\":\"SGD\",\"config\":{\"momentum\":0.9}},\"loss\":%s,"
             "\"metrics\":[\"accuracy\"],\"weighted_metrics\":[\"%s\"]}}",
             v->body, v->end, v->loss,
             strstr(v->loss, "parse") ? "sparse_top_k_categorical_accuracy" : "top_k_categorical_accuracy");
    mf_model *model;
    memfit_error err = {0};
    assert_ok(mf_model_load_bytes(NULL, text, strlen(text), 0, &model, &err), err);
    return model;
}

static void put(mf_dtype dtype, void *data, uint64_t i, double value)
{
    if (dtype == MF_F64)
        ((double *)data)[i] = value;
    else if (dtype == MF_F32)
        ((float *)data)[i] = (float)value;
    else
        ((int32_t *)data)[i] = (int32_t)value;
}

static double get(const running *r, uint32_t tensor, uint64_t i)
{
    const void *data = mf_interpret_data(r->it, tensor);
    return r->graph->tensors[tensor].dtype == MF_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* What sample n, value i of a feed is: whole numbers for words and labels, else 0 to 1. */
static double fed(const mf_graph *g, uint32_t feed, uint64_t i)
{
    const mf_feed *f = &g->feeds[feed];
    double u = draw(100 + f->role, i);
    if (g->tensors[f->tensor].dtype == MF_I32)
        return floor(u * (f->role ? CLASSES : WORDS));
    return f->role == 2 ? 2 * u : f->role == 1 ? u / CLASSES * 2 : u - 0.5;
}

static running begin(const mf_model *model, const variant *v, int64_t batch, bool accumulate, uint32_t chunks,
                     mf_mode mode)
{
    memfit_error err = {0};
    running r = {0};
    mf_lower_options options = {.mode = mode,
                                .batch = batch,
                                .accumulate = accumulate,
                                .precision = v->policy,
                                .sample_weights = v->weights,
                                .chunks = chunks,
                                .input_dtype = MF_DTYPE_COUNT};
    assert_ok(mf_lower(NULL, model, &options, &r.graph, &err), err);
    if (in_double)
        mf_graph_widen(r.graph);
    assert_ok(mf_graph_check(r.graph, &err), err);
    assert_ok(mf_interpret_create(NULL, r.graph, backend, &r.it, &err), err);
    assert_ok(mf_interpret_start(r.it, &err), err);
    for (uint32_t i = 0; i < r.graph->variable_count; i++) {
        const mf_variable *var = &r.graph->variables[i];
        if (var->role == MF_VAR_PARAMETER && var->tensor != MF_NONE)
            for (uint64_t k = 0; k < mf_shape_count(&var->shape); k++)
                put(var->dtype, mf_interpret_data(r.it, var->tensor), k, draw(i, k) - 0.5);
    }
    return r;
}

static double weights_of(const mf_graph *g, uint32_t feed, int64_t samples)
{
    double sum = 0;
    for (int64_t i = 0; i < samples; i++)
        sum += fed(g, feed, (uint64_t)i);
    return sum;
}

static void step(running *r, int64_t pieces)
{
    memfit_error err = {0};
    mf_graph *g = r->graph;
    mf_run_scalars s = mf_interpret_scalars(g, 0.1);
    s.batch_samples = (double)(g->batch * pieces);
    s.weight_sum = s.batch_samples;
    s.loss_scale = g->needs_loss_scale ? 64 : 1;
    for (uint32_t f = 0; f < g->feed_count; f++)
        if (g->feeds[f].role == 2)
            s.weight_sum = weights_of(g, f, g->batch * pieces);
    for (int64_t p = 0; p < pieces; p++) {
        s.first_sample = (uint64_t)(p * g->batch);
        for (uint32_t f = 0; f < g->feed_count; f++) {
            const mf_tensor *t = &g->tensors[g->feeds[f].tensor];
            uint64_t count = mf_shape_count(&t->shape);
            for (uint64_t i = 0; i < count; i++)
                put(t->dtype, mf_interpret_data(r->it, g->feeds[f].tensor), i, fed(g, f, (uint64_t)p * count + i));
        }
        assert_ok(mf_interpret_run(r->it, &s, p == 0, p == pieces - 1, &err), err);
    }
}

static void end(running *r)
{
    mf_interpret_destroy(r->it);
    mf_graph_destroy(r->graph);
}

/* Largest ||a - b|| / ||b|| over the variables of a role. */
static double apart(const variant *v, const running *a, const running *b)
{
    double worst = 0, all = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < a->graph->variable_count; i++) {
            const mf_variable *x = &a->graph->variables[i], *y = &b->graph->variables[i];
            assert_int_equal(x->tensor == MF_NONE, y->tensor == MF_NONE);
            if (x->tensor == MF_NONE || (a->graph->tensors[x->tensor].dtype != MF_F32 && !in_double))
                continue;
            double error = 0, norm = 0;
            for (uint64_t k = 0; k < mf_shape_count(&x->shape); k++) {
                double p = get(a, x->tensor, k), q = get(b, y->tensor, k);
                error += (p - q) * (p - q);
                norm += q * q;
            }
            if (pass == 0) {
                all += x->role == MF_VAR_GRADIENT ? norm : 0;
                continue;
            }
            double floor = in_double ? 1e-10 : x->role == MF_VAR_GRADIENT ? 1e-2 * sqrt(all) : 1e-6;
            double d = sqrt(error) / fmax(sqrt(norm), floor);
            if (!(d <= (in_double ? 1e-12 : v->policy ? 2e-2 : 1e-5)))
                fail_msg("%s: %s differs by %g", v->name, x->name, d);
            worst = d > worst ? d : worst;
        }
    return worst;
}

static bool has_chunks(const variant *v, const mf_graph *g)
{
    uint64_t most = 0; /* no storage has room for all logits */
    for (uint32_t s = 0; s < g->storage_count; s++)
        if (g->storages[s].variable == MF_NONE && g->storages[s].kind != MEMFIT_KIND_INPUTS)
            most = g->storages[s].bytes > most ? g->storages[s].bytes : most;
    return g->chunks > 1 && (v->policy || most < (uint64_t)g->logits_rows * CLASSES * (in_double ? 8 : 4));
}

static void chunks_are_the_whole(void **state)
{
    (void)state;
    double worst = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const variant *v = &variants[i];
        mf_model *model = load(v);
        bool one_row = strcmp(v->name, "one row each") == 0;
        int64_t batch = one_row ? BATCH * STEPS : BATCH;
        for (uint32_t chunks = 2; chunks <= CHUNKS; chunks += 2)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                running whole = begin(model, v, batch, accumulate, 1, MF_MODE_TRAIN);
                running parts = begin(model, v, batch, accumulate, chunks, MF_MODE_TRAIN);
                assert_int_equal(whole.graph->chunks, 1);
                assert_int_equal(parts.graph->chunks, chunks);
                assert_true(parts.graph->logits_bytes >= (uint64_t)BATCH * STEPS * CLASSES * 4);
                assert_true(has_chunks(v, parts.graph));
                step(&whole, 1);
                step(&parts, 1);
                double d = apart(v, &parts, &whole);
                worst = d > worst && !v->policy ? d : worst;
                end(&whole);
                end(&parts);
            }
        running whole = begin(model, v, batch, false, 1, MF_MODE_EVALUATE);
        running parts = begin(model, v, batch, false, CHUNKS, MF_MODE_EVALUATE);
        assert_int_equal(parts.graph->chunks, CHUNKS);
        step(&whole, 1);
        step(&parts, 1);
        apart(v, &parts, &whole);
        end(&whole);
        end(&parts);
        mf_model_destroy(model);
    }
    printf("%s: %zu variants, worst %.1e but for 16 bits\n", in_double ? "double" : "float",
           sizeof variants / sizeof *variants, worst);
}

/* Pieces whose last layers are in chunks, against the whole batch: but for masks, which see the piece. */
static void chunks_of_pieces_are_the_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const variant *v = &variants[i];
        if (strcmp(v->name, "one row each") == 0)
            continue;
        mf_model *model = load(v);
        running whole = begin(model, v, BATCH, true, 1, MF_MODE_TRAIN);
        running parts = begin(model, v, BATCH / 3, true, 2, MF_MODE_TRAIN);
        assert_int_equal(parts.graph->chunks, 2);
        if (!whole.graph->uses_batch_norm) {
            step(&whole, 1);
            step(&parts, 3);
            apart(v, &parts, &whole);
        }
        end(&whole);
        end(&parts);
        mf_model_destroy(model);
    }
}

/* Nothing that could be chunked: the graph is the same as without asking, and says why. */
static void other_ends_stay_whole(void **state)
{
    (void)state;
    static const variant others[] = {
        {"squares", TOKENS HIDDEN, LOGITS, "\"mse\"", NULL, false},
        {"convolution", TOKENS,
         LAYER("Conv1D", "end", ",\"filters\":13,\"kernel_size\":[3],\"activation\":\"softmax\""), SPARSE, NULL, false},
        {"relu", TOKENS HIDDEN, LAYER("Dense", "end", ",\"units\":13,\"activation\":\"relu\""), SPARSE, NULL, false},
        {"two rows in one", TOKENS HIDDEN,
         LAYER("Dense", "end", ",\"units\":26") "," LAYER("Reshape", "rows", ",\"target_shape\":[18,13]"),
         OF("SparseCategoricalCrossentropy", "\"from_logits\":true"), NULL, false},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        mf_model *model = load(&others[i]);
        mf_graph *graphs[2];
        memfit_error err = {0};
        for (uint32_t k = 0; k < 2; k++) {
            mf_lower_options options = {
                .mode = MF_MODE_TRAIN, .batch = BATCH, .chunks = k * CHUNKS, .input_dtype = MF_DTYPE_COUNT};
            assert_ok(mf_lower(NULL, model, &options, &graphs[k], &err), err);
            assert_int_equal(graphs[k]->chunks, 1);
            assert_int_equal(graphs[k]->logits_bytes, 0);
            assert_non_null(graphs[k]->whole_why);
        }
        assert_int_equal(graphs[0]->op_count, graphs[1]->op_count);
        mf_graph_destroy(graphs[0]);
        mf_graph_destroy(graphs[1]);
        mf_model_destroy(model);
    }
}

/* A label that is none, in a later chunk: its sample is named as in the whole. */
static void a_wrong_label_names_its_sample(void **state)
{
    (void)state;
    mf_model *model = load(&variants[0]);
    for (uint32_t chunks = 1; chunks <= CHUNKS; chunks++) {
        memfit_error err = {0};
        running r = begin(model, &variants[0], BATCH, false, chunks, MF_MODE_TRAIN);
        mf_run_scalars s = mf_interpret_scalars(r.graph, 0.1);
        step(&r, 1);
        for (uint32_t f = 0; f < r.graph->feed_count; f++)
            if (r.graph->feeds[f].role == 1)
                put(r.graph->tensors[r.graph->feeds[f].tensor].dtype, mf_interpret_data(r.it, r.graph->feeds[f].tensor),
                    (BATCH - 2) * STEPS + 1, CLASSES + 4);
        assert_int_equal(mf_interpret_run(r.it, &s, true, true, &err), MEMFIT_DAMAGED);
        assert_non_null(strstr(err.message, "label 17 "));
        if (strstr(err.message, "of sample")) /* the fast operations name none */
            assert_non_null(strstr(err.message, "of sample 4:"));
        end(&r);
    }
    mf_model_destroy(model);
}

/* ---- plans ---- */

typedef struct planned {
    mf_model *model;
    mf_model_graphs graphs;
    mf_graph_source source;
    mf_cost_source cost;
    mf_plan_options options;
} planned;

static planned prepare(const variant *v, uint32_t chunks)
{
    planned p = {.model = load(v)};
    p.graphs = (mf_model_graphs){p.model,
                                 {.sample_weights = v->weights, .precision = v->policy, .input_dtype = MF_DTYPE_COUNT}};
    mf_plan_options_default(&p.options);
    p.options.batch = BATCH;
    p.options.chunks = chunks;
    p.options.with_validation = p.options.with_prediction = false;
    mf_backend_cost_source(backend, &p.cost);
    return p;
}

static memfit_status plan_of(planned *p, const memfit_host *host, mf_plan **plan, memfit_error *err)
{
    mf_model_graph_source(&p->graphs, &p->source);
    return mf_plan_make(host, &p->source, &p->options, &p->cost, plan, err);
}

static memfit_status fill(void *ctx, uint32_t feed, void *address, memfit_error *err)
{
    (void)err;
    const mf_graph *g = ctx;
    const mf_tensor *t = &g->tensors[g->feeds[feed].tensor];
    for (uint64_t i = 0; i < mf_shape_count(&t->shape); i++)
        put(t->dtype, address, i, fed(g, feed, i));
    return MEMFIT_OK;
}

/* Two steps by the plan and by the interpreter: every variable has the same bytes. */
static void hold_against(const variant *v, const mf_plan *plan, running *r)
{
    memfit_error err = {0};
    mf_executor *x;
    mf_graph *g = plan->phases[0].graph;
    unsigned char *base = NULL;
    assert_int_equal(posix_memalign((void **)&base, 4096, plan->arena_bytes + 4096), 0);
    memset(base, 0xff, plan->arena_bytes);
    assert_ok(mf_executor_create(NULL, backend, plan, base, &(mf_executor_options){.poison = true}, &x, &err), err);
    for (uint32_t i = 0; i < g->variable_count; i++)
        if (mf_executor_variable(x, i) && r->graph->variables[i].tensor != MF_NONE)
            memcpy(mf_executor_variable(x, i), mf_interpret_data(r->it, r->graph->variables[i].tensor),
                   mf_shape_count(&g->variables[i].shape) * mf_dtype_bytes(g->variables[i].dtype));
    mf_run_scalars s = mf_interpret_scalars(g, 0.1);
    s.loss_scale = g->needs_loss_scale ? 64 : 1;
    for (uint32_t f = 0; f < g->feed_count; f++)
        if (g->feeds[f].role == 2)
            s.weight_sum = weights_of(g, f, BATCH);
    for (int k = 0; k < 2; k++) {
        step(r, 1);
        assert_ok(mf_executor_write_scalars(x, &s, &err), err);
        assert_ok(mf_executor_run(x, 0, &s, (mf_piece){true, true, false, false}, fill, g, &err), err);
    }
    for (uint32_t i = 0; i < g->variable_count; i++)
        if (mf_executor_variable(x, i) && r->graph->variables[i].tensor != MF_NONE &&
            memcmp(mf_executor_variable(x, i), mf_interpret_data(r->it, r->graph->variables[i].tensor),
                   mf_shape_count(&g->variables[i].shape) * mf_dtype_bytes(g->variables[i].dtype)))
            fail_msg("%s: %s is not the same", v->name, g->variables[i].name);
    mf_executor_destroy(x);
    free(base);
}

static void plans_run_as_the_graph_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants && !in_double; i++) {
        const variant *v = &variants[i];
        if (strcmp(v->name, "one row each") == 0)
            continue;
        memfit_error err = {0};
        planned p = prepare(v, CHUNKS);
        mf_plan *plan, *less;
        assert_ok(plan_of(&p, NULL, &plan, &err), err);
        assert_int_equal(plan->chunks, CHUNKS);
        assert_int_equal(plan->numerics, MF_REORDERED);
        running r = begin(p.model, v, BATCH, false, CHUNKS, MF_MODE_TRAIN);
        hold_against(v, plan, &r);
        end(&r);
        p.options.limit_bytes = plan->peak_bytes - 64;
        if (plan_of(&p, NULL, &less, &err) == MEMFIT_OK) {
            r = begin(p.model, v, BATCH, false, CHUNKS, MF_MODE_TRAIN);
            if (less->pieces == 1)
                hold_against(v, less, &r);
            end(&r);
            mf_plan_destroy(less);
        }
        mf_plan_destroy(plan);
        mf_model_destroy(p.model);
    }
}

/* Rows written elsewhere, or a sum that begins anew: the checker sees it. */
static void the_checker_knows_chunks(void **state)
{
    (void)state;
    memfit_error err = {0};
    planned p = prepare(&variants[1], CHUNKS);
    mf_plan *plan;
    assert_ok(plan_of(&p, NULL, &plan, &err), err);
    const mf_phase *phase = &plan->phases[0];
    unsigned sums = 0, rows = 0;
    for (uint32_t i = 0; i < phase->step_count; i++) {
        const mf_op *op = &phase->graph->ops[phase->steps[i].op];
        const mf_tensor *out = op->out_count == 1 ? &phase->graph->tensors[op->out[0]] : NULL;
        if (!out || phase->graph->storages[out->storage].variable != MF_NONE || (!op->accumulate && !out->offset))
            continue;
        *(op->accumulate ? &sums : &rows) += 1;
        uint64_t *offset = &phase->steps[i].offsets[op->in_count];
        *offset -= 64;
        assert_int_equal(mf_plan_check(plan, &err), MEMFIT_INVALID);
        *offset += 64;
    }
    assert_ok(mf_plan_check(plan, &err), err);
    assert_int_equal(sums, 2 * (CHUNKS - 1)); /* of kernel and bias, in all chunks but the first */
    assert_int_equal(rows, CHUNKS - 1);       /* of the data gradient */
    mf_plan_destroy(plan);
    mf_model_destroy(p.model);
}

static void plans_lack_memory(void **state)
{
    (void)state;
    memfit_error err = {0};
    planned p = prepare(&variants[1], CHUNKS);
    for (uint64_t n = 1, reached = 1; reached; n += 1 + n / 64) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, false);
        mf_plan *plan = NULL;
        memfit_status status = plan_of(&p, &fault.host, &plan, &err);
        reached = fault.calls >= n;
        assert_int_equal(status, reached ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OK);
        mf_plan_destroy(plan);
        assert_int_equal(fault.live_bytes, 0);
    }
    for (uint64_t n = 1, reached = 1; reached; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, false);
        mf_lower_options options = {.mode = MF_MODE_TRAIN,
                                    .batch = BATCH,
                                    .accumulate = true,
                                    .chunks = CHUNKS,
                                    .precision = "mixed_bfloat16",
                                    .sample_weights = true,
                                    .input_dtype = MF_DTYPE_COUNT};
        mf_graph *graph = NULL;
        memfit_status status = mf_lower(&fault.host, p.model, &options, &graph, &err);
        reached = fault.calls >= n;
        assert_int_equal(status, reached ? MEMFIT_NO_HOST_MEMORY : MEMFIT_OK);
        if (status == MEMFIT_OK)
            mf_graph_destroy(graph);
        assert_int_equal(fault.live_bytes, 0);
    }
    mf_model_destroy(p.model);
}

int main(void)
{
    memfit_error err = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_are_the_whole),
        cmocka_unit_test(chunks_of_pieces_are_the_whole),
        cmocka_unit_test(other_ends_stay_whole),
        cmocka_unit_test(plans_run_as_the_graph_says),
        cmocka_unit_test(a_wrong_label_names_its_sample),
        cmocka_unit_test(the_checker_knows_chunks),
        cmocka_unit_test(plans_lack_memory),
    };
    if (mf_reference_create(NULL, &backend, &err) != MEMFIT_OK)
        return 1;
    in_double = true;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    in_double = false;
    failed += cmocka_run_group_tests(tests, NULL, NULL);
    backend->table->destroy(backend);
    if (mf_cpu_create(NULL, 2, &backend, &err) != MEMFIT_OK)
        return failed;
    failed += cmocka_run_group_tests(tests, NULL, NULL);
    backend->table->destroy(backend);
    return failed;
}
