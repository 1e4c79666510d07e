/*
 * test_lower_applications.c: every keras.applications model, as real Keras describes it
 * (tools/make_application_fixtures.py): number of parameters, and class, output shape and parameters of every layer;
 * training steps in float32 and mixed precision obey every rule of the graph.
 */
#include "lower_fixture.h"

#include "base/os.h"

#include <dirent.h>

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

static void one_model(const char *name)
{
    char *text = fixture_text(name), *rest = text, *line = next_line(&rest);
    mf_arena arena;
    mf_json *expected;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, line, strlen(line), &expected, &err), err);
    mf_model *model = model_from_text(next_line(&rest));
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *g = lower_ok(model, &options);
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
    char folder[1024], name[512];
    snprintf(folder, sizeof folder, "%s/tests/fixtures/applications", source);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    uint32_t count = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!strstr(e->d_name, ".gz"))
            continue;
        snprintf(name, sizeof name, "applications/%s", e->d_name);
        one_model(name);
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
