/* test_plan_chunks.c: which way the planner takes where the last layer may run in chunks, held against every single
 * way: what any of them can fit is fitted, and nothing much faster is passed over. */
#include "test.h"

#include "answer/answer.h"
#include "plan/fit/fit.h"
#include "model/lower/model_graphs.h"

/* Two hidden layers over the words of a sample, then a last layer of `words`. */
static const char *const text =
    "{\"module\":\"keras\",\"class_name\":\"Sequential\",\"config\":{\"name\":\"lm\",\"layers\":["
    "{\"module\":\"keras.layers\",\"class_name\":\"InputLayer\",\"config\":{\"name\":\"in\",\"batch_shape\":[null,%d,8]"
    ","
    "\"dtype\":\"float32\"}},"
    "{\"module\":\"keras.layers\",\"class_name\":\"Dense\",\"config\":{\"name\":\"a\",\"units\":%d,\"activation\":"
    "\"gelu\"}},"
    "{\"module\":\"keras.layers\",\"class_name\":\"Dense\",\"config\":{\"name\":\"b\",\"units\":%d,\"activation\":"
    "\"gelu\"}},"
    "{\"module\":\"keras.layers\",\"class_name\":\"Dense\",\"config\":{\"name\":\"end\",\"units\":%d,\"activation\":"
    "\"softmax\"}}]},"
    "\"compile_config\":{\"optimizer\":\"%s\",\"loss\":\"sparse_categorical_crossentropy\",\"metrics\":[]}}";

/* A start for every operation, then a microsecond for each thousand numbers written, ten for a matrix product. */
static memfit_status plain_cost(void *ctx, const mf_graph *graph, uint32_t op, mf_cost *cost, memfit_error *err)
{
    const mf_op *o = &graph->ops[op];
    (void)err;
    *cost = mf_cost_one(0, *(double *)ctx);
    for (uint32_t k = 0; k < o->out_count; k++)
        if (o->out[k] != MF_NONE)
            cost->methods[0].time_us +=
                (double)mf_shape_count(&graph->tensors[o->out[k]].shape) / 1000 * (o->kind == MF_OP_MATMUL ? 10 : 1);
    return MEMFIT_OK;
}

typedef struct bed {
    char text[2048];
    double start_us;
    mf_model *model;
    mf_model_graphs graphs;
    mf_graph_source source;
    mf_cost_source cost;
    mf_fitter fitter;
} bed;

static void bed_make(bed *b, int positions, int width, int words, double start_us, const mf_plan_options *options)
{
    memfit_error err = {0};
    snprintf(b->text, sizeof b->text, text, positions, width, width, words, "sgd");
    b->start_us = start_us;
    b->cost = (mf_cost_source){.query = plain_cost, .ctx = &b->start_us, .alignment = 64};
    assert_ok(mf_model_load_bytes(NULL, b->text, strlen(b->text), 0, &b->model, &err), err);
    b->graphs = (mf_model_graphs){.model = b->model};
    mf_model_graph_source(&b->graphs, &b->source);
    mf_fitter_init(&b->fitter, NULL, &b->source, options, &b->cost);
}

static void bed_drop(bed *b)
{
    mf_fitter_free(&b->fitter);
    mf_model_destroy(b->model);
}

static mf_plan_options training(int64_t batch)
{
    mf_plan_options o;
    mf_plan_options_default(&o);
    o.batch = batch;
    o.with_validation = o.with_prediction = false;
    return o;
}

static mf_plan *try_way(bed *b, int64_t pieces, uint32_t chunks, bool recompute, uint64_t limit)
{
    memfit_error err = {0};
    mf_way way = {.batch = b->fitter.options.batch,
                  .pieces = pieces,
                  .chunks = chunks,
                  .recompute = recompute,
                  .limit_bytes = limit};
    mf_plan *plan;
    assert_ok(mf_fitter_try(&b->fitter, &way, &plan, &err), err);
    return plan;
}

/* Over limits from a tenth of what is asked: is some way better than the one taken? */
static uint32_t sweep(bed *b, uint32_t *both)
{
    memfit_error err = {0};
    const mf_plan_options *o = &b->fitter.options;
    mf_plan *whole = try_way(b, 1, 1, false, 0);
    uint64_t high = whole->peak_bytes;
    double kept_us = whole->time_us;
    uint32_t fitted = 0;
    uint64_t bound;
    mf_plan_destroy(whole);
    assert_ok(mf_fitter_bound(&b->fitter, o->batch, &bound, &err), err);
    for (uint64_t part = 2; part < 20; part++) {
        uint64_t limit = high * part / 20;
        mf_plan *best;
        assert_ok(mf_fitter_best(&b->fitter, o->batch, limit, &best, &err), err);
        fitted += best->fits;
        assert_true(best->peak_bytes >= bound); /* in any pieces and chunks */
        *both += best->fits && best->pieces > 1 && best->chunks > 1;
        for (int64_t pieces = 1; pieces <= o->batch; pieces *= 2)
            for (uint32_t chunks = 1; chunks <= 8; chunks *= 2)
                for (int again = 0; again < 2; again++) {
                    if ((o->pieces && pieces != o->pieces) || (again && o->recompute == MF_RECOMPUTE_OFF))
                        continue;
                    mf_plan *plan = try_way(b, pieces, chunks, again, limit);
                    const char *how = again ? ", recomputing" : "";
                    if (plan->fits && !best->fits)
                        fail_msg("%d/20: %d pieces, %u chunks%s fit, but no plan was found", (int)part, (int)pieces,
                                 chunks, how);
                    bool bitwise = pieces == 1 && chunks == 1;
                    if (plan->fits && bitwise && best->numerics != MF_BITWISE)
                        assert_true(plan->time_us * 100 > best->time_us * 110); /* bits are worth a tenth */
                    bool dear = best->time_us > kept_us * 1.02 && best->numerics != MF_BITWISE;
                    bool tried = again ? pieces == 1 && chunks == 8 : pieces == 1 || chunks == 1;
                    if (plan->fits && dear && tried && !o->quick && plan->time_us * 1.02 < best->time_us)
                        fail_msg("%d/20: %d pieces, %u chunks%s take %g us, the plan (%d, %u) %g", (int)part,
                                 (int)pieces, chunks, how, plan->time_us, (int)best->pieces, best->chunks,
                                 best->time_us);
                    mf_plan_destroy(plan);
                }
        mf_plan_destroy(best);
    }
    return fitted;
}

static void test_no_way_is_passed_over(void **state)
{
    (void)state;
    uint32_t both = 0;
    for (int variant = 0; variant < 8; variant++) {
        mf_plan_options o = training(4);
        o.quick = variant >= 6; /* pieces first: what fits still does, but others may be faster */
        o.recompute = variant % 2 ? MF_RECOMPUTE_OFF : MF_RECOMPUTE_AUTO;
        o.pieces = variant == 4 || variant == 5 ? 2 : 0;
        bed b;
        bed_make(&b, 256, variant < 2 ? 64 : 256, variant < 2 ? 4096 : 2048, variant & 2 ? 50 : 1, &o);
        assert_true(sweep(&b, &both) > 4);
        bed_drop(&b);
    }
    assert_true(both > 0);
}

/* As many chunks as make the logits small beside the rest, none where they are small already. */
static void test_how_many_chunks(void **state)
{
    (void)state;
    memfit_error err = {0};
    const mf_fit_facts *whole;
    mf_plan_options o = training(4);
    bed b;
    bed_make(&b, 1024, 2048, 64, 1, &o);
    assert_ok(mf_fitter_facts(&b.fitter, MF_MODE_TRAIN, 4, false, 1, &whole, &err), err);
    assert_true(whole->logits_bytes > 0 && whole->logits_bytes < whole->kept_bytes / 20);
    assert_int_equal(mf_fitter_most_chunks(&b.fitter, whole), 1);
    bed_drop(&b);
    for (int width = 16; width <= 1024; width *= 4) {
        bed_make(&b, 1024, width, 4096, 1, &o);
        assert_ok(mf_fitter_facts(&b.fitter, MF_MODE_TRAIN, 4, false, 1, &whole, &err), err);
        uint64_t logits = whole->logits_bytes, rest = whole->kept_bytes - logits;
        uint32_t most = mf_fitter_most_chunks(&b.fitter, whole);
        assert_true(most >= 4 && most <= MF_MOST_CHUNKS);
        assert_true(most == MF_MOST_CHUNKS || logits / most <= rest / 16);
        assert_true(most == 4 || logits / (most / 2) > rest / 16);
        b.fitter.options.chunks = 3;
        assert_int_equal(mf_fitter_most_chunks(&b.fitter, whole), 3);
        b.fitter.options.chunks = 1;
        assert_int_equal(mf_fitter_most_chunks(&b.fitter, whole), 1);
        bed_drop(&b);
    }
}

/* What each chunk's kernels take is counted, and what a piece that is left over takes. */
static void test_fixed_bytes(void **state)
{
    (void)state;
    mf_plan_options o = training(10);
    o.fixed_bytes = 10000;
    o.chunk_bytes = 100;
    o.rest_bytes = 7;
    bed b;
    bed_make(&b, 64, 16, 512, 1, &o);
    static const struct {
        int64_t pieces;
        uint32_t chunks;
        uint64_t bytes;
    } ways[] = {{1, 1, 10000}, {1, 4, 10800}, {4, 1, 10007}, {5, 1, 10000}, {4, 2, 10607}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        mf_plan *plan = try_way(&b, ways[i].pieces, ways[i].chunks, false, 0);
        assert_int_equal(plan->chunks, ways[i].chunks);
        assert_int_equal(plan->fixed_bytes, ways[i].bytes);
        mf_plan_destroy(plan);
    }
    bed_drop(&b);
}

/* One sample is trained in chunks where its whole logits, which a prediction is, do not fit: the plan says so. */
static void test_a_prediction_that_does_not_fit(void **state)
{
    (void)state;
    mf_plan_options o = training(1);
    o.with_prediction = true;
    bed b;
    bed_make(&b, 1024, 16, 4096, 1, &o);
    mf_plan *whole = try_way(&b, 1, 1, false, 0);
    uint64_t limit = whole->peak_bytes / 2;
    mf_plan_destroy(whole);
    mf_plan *plan = try_way(&b, 1, 16, false, limit);
    assert_true(plan->fits && plan->chunks == 16);
    assert_true(plan->unpredicted_bytes > limit);
    for (uint32_t p = 0; p < plan->phase_count; p++)
        assert_int_not_equal(plan->phases[p].role, MF_PHASE_PREDICT);
    mf_plan_destroy(plan);
    bed_drop(&b);
}

/* Another training is suggested only where it needs less. */
static void test_suggestions_need_less(void **state)
{
    (void)state;
    memfit_error err = {0};
    mf_plan_options o = training(1);
    bed b;
    bed_make(&b, 1, 512, 16, 1, &o);
    o.limit_bytes = 1 << 20;
    mf_question question = {.model = b.model, .lower = b.graphs.options, .plan = o, .cost = b.cost};
    question.want_suggestions = true;
    mf_answer *answer;
    assert_ok(mf_answer_make(NULL, &question, &answer, &err), err);
    assert_false(answer->fits);
    assert_true(answer->suggestion_count > 0); /* the last layer only */
    for (uint32_t i = 0; i < answer->suggestion_count; i++) {
        if (answer->suggestions[i].numerics == MF_CHANGED)
            assert_true(answer->suggestions[i].peak_bytes < answer->as_asked_peak_bytes);
    }
    mf_answer_destroy(answer);
    bed_drop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_way_is_passed_over), cmocka_unit_test(test_how_many_chunks),
        cmocka_unit_test(test_fixed_bytes),           cmocka_unit_test(test_a_prediction_that_does_not_fit),
        cmocka_unit_test(test_suggestions_need_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
