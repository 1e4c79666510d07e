/*
 * test_lower_applications.c: every keras.applications model, as real Keras describes it
 * (tools/make_application_fixtures.py): number of parameters, and class, output shape and parameters of every layer;
 * training steps in float32 and mixed precision obey every rule of the graph.
 */
#include "lower_helper.h"

#include "base/os.h"

#include <dirent.h>
#include <zlib.h>

/* The two lines of a fixture: what is expected, and the model. */
static char *read_fixture(const char *path, char **model)
{
    gzFile file = gzopen(path, "rb");
    assert_non_null(file);
    size_t bytes = 0, room = 1 << 22;
    char *text = malloc(room);
    for (int n; (n = gzread(file, text + bytes, (unsigned)(room - bytes - 1))) > 0;)
        bytes += (size_t)n;
    gzclose(file);
    text[bytes] = 0;
    char *line = strchr(text, '\n');
    assert_non_null(line);
    *line = 0;
    *model = line + 1;
    return text;
}

static void check_layers(const mf_graph *g, const mf_json *expected)
{
    uint64_t parameters = 0, trainable = 0;
    uint32_t i = 1;
    for (const mf_json *l = mf_json_get(expected, "layers")->first; l; l = l->next, i++) {
        const char *name = mf_json_string(mf_json_at(l, 0), "");
        assert_true(i < g->layer_count);
        while (i < g->layer_count && strcmp(g->layers[i].name, name) != 0)
            i++; /* a nested Sequential's own InputLayer, which Keras does not list */
        if (i == g->layer_count)
            fail_msg("no layer '%s'", name);
        const mf_json *shape = mf_json_at(l, 2);
        if (shape && shape->type == MF_JSON_ARRAY) {
            if (shape->count != g->layers[i].output_shape.rank)
                fail_msg("layer '%s': rank %u", name, g->layers[i].output_shape.rank);
            for (uint32_t d = 1; d < shape->count; d++)
                if (mf_json_integer(mf_json_at(shape, d), -1) != g->layers[i].output_shape.dim[d])
                    fail_msg("layer '%s': dimension %u is %lld", name, d, (long long)g->layers[i].output_shape.dim[d]);
        }
        if (g->layers[i].parameter_count != (uint64_t)mf_json_integer(mf_json_at(l, 3), -1))
            fail_msg("layer '%s': %llu parameters", name, (unsigned long long)g->layers[i].parameter_count);
    }
    for (i = 0; i < g->layer_count; i++) {
        parameters += g->layers[i].parameter_count;
        trainable += g->layers[i].trainable_count;
    }
    assert_int_equal(parameters, mf_json_get_integer(expected, "parameters", 0));
    assert_int_equal(trainable, mf_json_get_integer(expected, "trainable", 0));
}

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

static void one_model(const char *path)
{
    char *model_text, *text = read_fixture(path, &model_text);
    mf_arena arena;
    mf_json *expected;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, text, strlen(text), &expected, &err), err);
    mf_model *model = model_from_text(model_text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *g = lower_ok(model, &options);
    check_layers(g, expected);
    uint32_t ops = g->op_count;
    mf_graph_destroy(g);
    if (getenv("MEMFIT_TIMES"))
        printf("%-20s %5u operations, %6.2f ms\n", mf_json_get_string(expected, "name", "?"), ops,
               best_build_ms(model, &options));
    options.precision = "mixed_float16";
    g = lower_ok(model, &options);
    assert_true(g->needs_loss_scale);
    mf_graph_destroy(g);
    options = lower_options(MF_MODE_TRAIN, 1);
    options.accumulate = true;
    mf_graph_destroy(lower_ok(model, &options));
    options = lower_options(MF_MODE_PREDICT, 1);
    mf_graph_destroy(lower_ok(model, &options));
    mf_model_destroy(model);
    mf_arena_destroy(&arena);
    free(text);
}

static void every_application(void **state)
{
    (void)state;
    const char *source = getenv("MEMFIT_SOURCE");
    if (!source)
        skip();
    char folder[1024], path[2048];
    snprintf(folder, sizeof folder, "%s/tests/fixtures/applications", source);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    uint32_t count = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".gz"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        one_model(path);
        count++;
    }
    closedir(dir);
    assert_true(count >= 38);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_application)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
