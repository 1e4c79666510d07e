/*
 * test_lower_layers.c: one small model for every layer class and option (tools/make_layer_fixtures.py): Keras's shapes
 * and parameter counts, and sound graphs in every mode, in pieces and in mixed precision; and what is trained where models and layers are frozen.
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

/* Of models loaded by Keras 3.15.1: how many weights load_model(...).trainable_variables has. */
#define NAMED(class, name, config) "{\"class_name\":\"" class "\",\"config\":{\"name\":\"" name "\"" config "}}"
#define OFF                        ",\"trainable\":false"
#define ON                         ",\"trainable\":true"
#define DENSE(name, flag)          NAMED("Dense", name, flag ",\"units\":3")
#define TWO(flag)                  flag ",\"layers\":[" INPUT("4") "," DENSE("a", OFF) "," DENSE("b", ON) "]"
#define CALLED(class, name, config, from)                                                                              \
    "{\"class_name\":\"" class "\",\"name\":\"" name "\",\"config\":{\"name\":\"" name "\"" config                     \
                               "},\"inbound_nodes\":[" from "]}"
#define FUNCTION(flag)                                                                                                 \
    flag ",\"layers\":[" CALLED("InputLayer", "x", ",\"batch_shape\":[null,4]", "") "," CALLED(                        \
        "Dense", "a", OFF ",\"units\":3",                                                                              \
        "[[\"x\",0,0,{}]]") "," CALLED("Dense", "b", ON ",\"units\":3",                                                \
                                       "[[\"a\",0,0,{}]]") "],\"input_layers\":[[\"x\",0,0]],\"output_layers\":[["     \
                                                           "\"b\",0,0]]"
#define STEPS(wrapper) NAMED("Sequential", "s", ",\"layers\":[" INPUT("5,4") "," wrapper "]")

static void a_layers_own_flag_decides(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t trained;
    } cases[] = {
        {NAMED("Sequential", "s", TWO(OFF)), 2},
        {NAMED("Functional", "f", FUNCTION(OFF)), 0},
        {NAMED("Functional", "f", FUNCTION(ON)), 2},
        {NAMED("Sequential", "s",
               OFF ",\"layers\":[" INPUT("4") "," NAMED("Sequential", "i", TWO(OFF)) "," DENSE("c", ON) "]"),
         4},
        {NAMED("Sequential", "s",
               OFF ",\"layers\":[" INPUT("4") "," NAMED("Functional", "i", FUNCTION(OFF)) "," DENSE("c", OFF) "]"),
         2},
        {STEPS(NAMED("TimeDistributed", "t", OFF ",\"layer\":" DENSE("d", ON))), 2},
        {STEPS(NAMED("TimeDistributed", "t", ON ",\"layer\":" DENSE("d", OFF))), 0},
        {STEPS(NAMED("TimeDistributed", "t", OFF ",\"layer\":" NAMED("Sequential", "i", TWO(OFF)))), 2},
        {STEPS(NAMED("RNN", "r", OFF ",\"cell\":" NAMED("LSTMCell", "c", ON ",\"units\":3"))), 3},
        {STEPS(NAMED("Bidirectional", "b",
                     OFF ",\"layer\":" NAMED("LSTM", "l", ON ",\"units\":3") ",\"backward_layer\":" NAMED(
                         "LSTM", "m", OFF ",\"units\":3,\"go_backwards\":true"))),
         3},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char *text = NULL;
        assert_true(asprintf(&text, "%.*s,\"compile_config\":{\"optimizer\":\"sgd\",\"loss\":\"mse\"}}",
                             (int)strlen(cases[k].text) - 1, cases[k].text) > 0);
        mf_model *model = model_from_text(text);
        mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
        mf_graph *g = lower_ok(model, &options);
        if (count_kind(g, MF_OP_UPDATE) != cases[k].trained)
            fail_msg("%s: %u weights are trained, not %u", cases[k].text, count_kind(g, MF_OP_UPDATE),
                     cases[k].trained);
        mf_graph_destroy(g);
        mf_model_destroy(model);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layer), cmocka_unit_test(a_layers_own_flag_decides)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
