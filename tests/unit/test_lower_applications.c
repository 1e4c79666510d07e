/*
 * test_lower_applications.c: every keras.applications model, as real Keras describes it
 * (tools/make_application_fixtures.py): number of parameters, and class, output shape and parameters of every layer, in
 * the step graph and again in the answer of a plan; training steps in float32 and mixed precision obey every rule of
 * the graph.
 */
#include "lower_fixture.h"

#include "base/os.h"
#include "memfit/plan.h"

#include <dirent.h>
#include <unistd.h>

static double best_build_ms(const mf_model *model, const mf_lower_options *options)
{
    double best = 1e9;
    for (int k = 0; k < 5; k++) {
        uint64_t start = mf_os_now_ns();
        mf_graph *g = NULL;
        memfit_error err;
        assert_ok(mf_lower(NULL, model, options, &g, &err), err);
        double ms = (double)(mf_os_now_ns() - start) * 1e-6;
        mf_graph_destroy(g);
        best = ms < best ? ms : best;
    }
    return best;
}

/* The size to build at, of a model that leaves it open; else rank 0. */
static mf_shape open_shape(const mf_json *expected)
{
    mf_shape shape = {0};
    const mf_json *dims = mf_json_get(expected, "input_shape");
    for (const mf_json *d = dims ? dims->first : NULL; d; d = d->next)
        shape.dim[shape.rank++] = d->integer;
    return shape;
}

static void lower_model(const char *name)
{
    char *text = fixture_text(name), *rest = text, *line = next_line(&rest);
    mf_arena arena;
    mf_json *expected;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, line, strlen(line), &expected, &err), err);
    mf_model *model = model_from_text(next_line(&rest));
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *g = NULL;
    options.input_shape = open_shape(expected);
    if (options.input_shape.rank) {
        mf_lower_options without = lower_options(MF_MODE_TRAIN, 2);
        assert_int_not_equal(mf_lower(NULL, model, &without, &g, &err), MEMFIT_OK);
        assert_non_null(strstr(err.hint, "--input-shape"));
    }
    g = lower_ok(model, &options);
    check_against_keras(g, expected);
    uint32_t ops = g->op_count;
    mf_graph_destroy(g);
    if (getenv("MEMFIT_TIMES"))
        printf("%-20s %5u operations, %6.2f ms\n", mf_json_get_string(expected, "name", "?"), ops,
               best_build_ms(model, &options));
    options.precision = "mixed_float16";
    g = lower_ok(model, &options);
    assert_true(g->needs_loss_scale);
    mf_graph_destroy(g);
    options.precision = NULL;
    options.batch = 1;
    options.accumulate = true;
    mf_graph_destroy(lower_ok(model, &options));
    options.accumulate = false;
    options.mode = MF_MODE_PREDICT;
    mf_graph_destroy(lower_ok(model, &options));
    mf_model_destroy(model);
    mf_arena_destroy(&arena);
    free(text);
}

/* Every layer Keras lists, with its class, its output shape and its parameters, in the object of `memfit plan --json`.
 */
static void check_plan_layers(const mf_json *plan, const mf_json *expected)
{
    const mf_json *have = mf_json_get(plan, "layers")->first;
    for (const mf_json *want = mf_json_get(expected, "layers")->first; want; want = want->next) {
        const char *name = mf_json_string(mf_json_at(want, 0), "");
        while (have && strcmp(mf_json_get_string(have, "name", ""), name) != 0)
            have = have->next; /* the InputLayer of a nested Sequential model, which Keras does not list */
        if (!have)
            fail_msg("the plan has no layer '%s'", name);
        assert_string_equal(mf_json_get_string(have, "class", ""), mf_json_string(mf_json_at(want, 1), ""));
        const mf_json *shape = mf_json_get(have, "output_shape"), *said = mf_json_at(want, 2);
        if (said->type == MF_JSON_ARRAY) {
            assert_int_equal(shape->count, said->count);
            for (size_t d = 1; d < said->count; d++)
                assert_int_equal(mf_json_at(shape, d)->integer, mf_json_at(said, d)->integer);
        }
        assert_int_equal(mf_json_get_integer(have, "parameter_bytes", -1),
                         4 * mf_json_integer(mf_json_at(want, 3), -1));
    }
}

static void plan_model(const char *name)
{
    char *text = fixture_text(name), *rest = text, *line = next_line(&rest), *answer = NULL;
    char path[] = "/tmp/memfit-application-XXXXXX.json", size[64] = "";
    mf_arena arena;
    mf_json *expected, *said;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, line, strlen(line), &expected, &err), err);
    mf_shape open = open_shape(expected);
    FILE *file = fdopen(mkstemps(path, 5), "w");
    assert_non_null(file);
    fputs(next_line(&rest), file);
    assert_int_equal(fclose(file), 0);
    memfit_plan_options o = MEMFIT_PLAN_OPTIONS;
    o.card = "h200";
    o.quick = true;
    if (open.rank) {
        snprintf(size, sizeof size, "%d,%d,%d", (int)open.dim[0], (int)open.dim[1], (int)open.dim[2]);
        o.input_shape = size;
    }
    memfit_plan *plan;
    assert_ok(memfit_plan_create(path, &o, &plan, &err), err);
    unlink(path);
    memfit_plan_summary s = MEMFIT_PLAN_SUMMARY;
    memfit_plan_get_summary(plan, &s, NULL);
    assert_true(s.fits && s.lower_bound_bytes <= s.peak_bytes);
    assert_int_equal(s.parameter_count, mf_json_get_integer(expected, "parameters", -1));
    size_t bytes;
    FILE *stream = open_memstream(&answer, &bytes);
    memfit_plan_print_json(plan, stream);
    fclose(stream);
    memfit_plan_destroy(plan);
    assert_ok(mf_json_parse(&arena, answer, bytes, &said, &err), err);
    check_plan_layers(said, expected);
    free(answer);
    mf_arena_destroy(&arena);
    free(text);
}

static void for_every_application(void (*visit)(const char *name))
{
    const char *source = getenv("MEMFIT_SOURCE");
    if (!source)
        skip();
    char folder[1024], name[512];
    snprintf(folder, sizeof folder, "%s/tests/fixtures/applications", source);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    uint32_t count = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".gz"))
            continue;
        snprintf(name, sizeof name, "applications/%s", e->d_name);
        visit(name);
        count++;
    }
    closedir(dir);
    assert_int_equal(count, 40);
}

static void every_application_is_lowered(void **state)
{
    (void)state;
    for_every_application(lower_model);
}

static void every_application_plans(void **state)
{
    (void)state;
    for_every_application(plan_model);
}

/* A configuration is lowered at any size. That of a live model is not where a Dense behind Flatten was built for one; where a
 * mean over the image comes before it, any size will do. */
static void a_live_model_keeps_its_sizes(void **state)
{
    (void)state;
    static const char mark[] = "{\"memfit\": {\"weights\": \"live\"}, ";
    const struct {
        const char *file;
        bool live, takes;
    } models[] = {{"applications/VGG16.gz", false, true},
                  {"applications/VGG16.gz", true, false},
                  {"applications/ResNet50.gz", true, true}};
    if (!getenv("MEMFIT_SOURCE"))
        skip();
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *text = fixture_text(models[i].file), *rest = text, *config;
        next_line(&rest);
        config = next_line(&rest);
        char *marked = malloc(strlen(config) + sizeof mark);
        assert_non_null(marked);
        sprintf(marked, "%s%s", models[i].live ? mark : "{", config + 1);
        mf_model *model = model_from_text(marked);
        mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
        mf_graph *g = NULL;
        memfit_error err;
        for (int64_t side = 224; side <= 320; side += 96) {
            options.input_shape = (mf_shape){.rank = 3, .dim = {side, side, 3}};
            memfit_status status = mf_lower(NULL, model, &options, &g, &err);
            if (side == 224 || models[i].takes) {
                assert_ok(status, err);
                mf_graph_destroy(g);
            } else {
                assert_int_equal(status, MEMFIT_INVALID);
                assert_non_null(strstr(err.message, "'fc1' was built for 25088 values a sample and gets 51200"));
                assert_non_null(strstr(err.hint, "--input-shape"));
            }
        }
        mf_model_destroy(model);
        free(marked);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_application_is_lowered),
        cmocka_unit_test(every_application_plans),
        cmocka_unit_test(a_live_model_keeps_its_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
