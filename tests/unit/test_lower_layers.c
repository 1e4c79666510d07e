/*
 * test_lower_layers.c: one small model for every layer class and option (tools/make_layer_fixtures.py): Keras's shapes
 * and parameter counts, and sound graphs in every mode, in pieces and in mixed precision.
 */
#include "lower_fixture.h"

static const char *name;

static mf_graph *lower_named(const mf_model *model, const mf_lower_options *options)
{
    mf_graph *g = NULL;
    memfit_error err;
    if (mf_lower(NULL, model, options, &g, &err) != MEMFIT_OK)
        fail_msg("%s: %s", name, err.message);
    if (mf_graph_check(g, &err) != MEMFIT_OK)
        fail_msg("%s: %s", name, err.message);
    return g;
}

/* Every trained parameter is updated once; numbering does not depend on the mode. */
static void check_training(const mf_graph *train, const mf_graph *other)
{
    assert_int_equal(train->variable_count, other->variable_count);
    uint32_t trained = 0;
    for (uint32_t i = 0; i < train->variable_count; i++) {
        const mf_variable *v = &train->variables[i];
        assert_string_equal(v->name, other->variables[i].name);
        trained += v->role == MF_VAR_PARAMETER && v->trainable;
    }
    if (count_kind(train, MF_OP_UPDATE) != trained && strncmp(name, "op-", 3) != 0)
        fail_msg("%s: %u updates for %u parameters", name, count_kind(train, MF_OP_UPDATE), trained);
}

static void one_model(const mf_json *expected, const char *text)
{
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 3);
    mf_graph *train = lower_named(model, &options);
    check_against_keras(train, expected);
    for (unsigned k = 0; k < 8; k++) {
        static const char *const precisions[] = {NULL, "mixed_float16", "mixed_bfloat16", "float32"};
        options = lower_options(k < 4 ? MF_MODE_TRAIN : k & 1 ? MF_MODE_EVALUATE : MF_MODE_PREDICT, 2 + k);
        options.precision = precisions[k % 4];
        options.accumulate = k & 1;
        options.sample_weights = k & 2;
        mf_graph *g = lower_named(model, &options);
        check_training(train, g);
        const mf_json *outputs = mf_json_get(expected, "outputs");
        for (uint32_t i = 0; g->mode == MF_MODE_PREDICT && i < outputs->count; i++)
            check_shape(name, mf_json_at(outputs, i), &g->tensors[g->outputs[i]].shape);
        mf_graph_destroy(g);
    }
    mf_graph_destroy(train);
    mf_model_destroy(model);
}

static void every_layer(void **state)
{
    (void)state;
    char *text = fixture_text("layers.gz"), *rest = text, *line;
    if (!text)
        skip();
    uint32_t count = 0;
    while ((line = next_line(&rest))) {
        mf_arena arena;
        mf_json *expected;
        memfit_error err;
        mf_arena_init(&arena, NULL);
        assert_ok(mf_json_parse(&arena, line, strlen(line), &expected, &err), err);
        name = mf_json_get_string(expected, "name", "?");
        line = next_line(&rest);
        assert_non_null(line);
        one_model(expected, line);
        mf_arena_destroy(&arena);
        count++;
    }
    free(text);
    assert_true(count > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
