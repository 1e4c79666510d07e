/*
 * test_lower_refused.c: what a model file must not ask for: shapes that do not go together, values of the wrong type,
 * sizes without end, metrics that do not suit their targets. Each is refused by name, with the status that says whose
 * fault it is, and none is taken for a default.
 */
#include "lower_models.h"

#define COMPILED "{\"optimizer\":\"sgd\",\"loss\":\"mse\"}"

static memfit_status lower_text(const char *text, mf_mode mode, memfit_error *err)
{
    mf_model *model = NULL;
    mf_graph *g = NULL;
    mf_lower_options options = lower_options(mode, 2);
    *err = (memfit_error){0};
    memfit_status status = mf_model_load_bytes(NULL, text, strlen(text), 0, &model, err);
    if (status == MEMFIT_OK)
        status = mf_lower(NULL, model, &options, &g, err);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    return status;
}

static void expect_refused(const char *layers, const char *compile, memfit_status wanted, const char *part)
{
    memfit_error err;
    char *text = sequential_text(layers, compile);
    memfit_status status = lower_text(text, MF_MODE_TRAIN, &err);
    if (status != wanted || !strstr(err.message, part))
        fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", layers, (int)status, err.message, (int)wanted, part);
    free(text);
}

static void values_of_the_wrong_type(void **state)
{
    (void)state;
    static const struct {
        const char *layer, *says;
    } wrong[] = {
        {LAYER("MaxPooling2D", "l", ",\"pool_size\":2,\"strides\":0"), "strides = 0 must be whole numbers from 1"},
        {LAYER("MaxPooling2D", "l", ",\"pool_size\":[2,0]"), "pool_size = [...] must be whole numbers"},
        {LAYER("AveragePooling2D", "l", ",\"padding\":-1"), "padding = -1 must be one of valid same"},
        {LAYER("Conv2D", "l", ",\"filters\":2,\"kernel_size\":3,\"data_format\":5"), "data_format = 5 must be one of"},
        {LAYER("Conv2D", "l", ",\"filters\":2.5,\"kernel_size\":3"), "filters = 2.5 must be a whole number"},
        {LAYER("Conv2D", "l", ",\"filters\":2,\"kernel_size\":\"3\""), "kernel_size = \"3\" must be whole numbers"},
        {LAYER("Dropout", "l", ",\"rate\":\"x\""), "rate = \"x\" must be a number from 0 to 1"},
        {LAYER("Dropout", "l", ",\"rate\":1.5"), "rate = 1.5 must be a number from 0 to 1"},
        {LAYER("Dense", "l", ",\"units\":0"), "units = 0 must be a whole number"},
        {LAYER("Dense", "l", ""), "layer 'l': units is missing"},
        {LAYER("Conv1D", "l", ",\"filters\":2,\"kernel_size\":3"),
         "layer 'l': Conv1D needs an input of 3 dimensions, batch included, and gets (2, 6, 6, 4)"},
        {LAYER("LSTM", "l", ",\"units\":2"), "LSTM needs an input of 3 dimensions, batch included"},
        {LAYER("Reshape", "l", ",\"target_shape\":[7]"),
         "(2, 6, 6, 4) cannot be reshaped to (2, 7): 144 values a sample are not 7"},
        {LAYER("Dense", "l", ",\"units\":4294967296"),
         "units = 4.29497e+09 must be a whole number from 1 to 2147483647"},
        {LAYER("Dense", "l", ",\"units\":2,\"use_bias\":\"no\""), "use_bias = \"no\" must be true or false"},
        {LAYER("LayerNormalization", "l", ",\"axis\":9"), "axis is out of range"},
        {LAYER("LayerNormalization", "l", ",\"axis\":[1,1]"), "axis is out of range"},
        {LAYER("BatchNormalization", "l", ",\"epsilon\":\"small\""), "epsilon = \"small\" must be a number"},
        {LAYER("Softmax", "l", ",\"axis\":7"), "axis is out of range"},
        {LAYER("SeparableConv2D", "l", ",\"filters\":2,\"kernel_size\":3,\"depth_multiplier\":9223372036854775807"),
         "depth_multiplier"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char both[1024];
        snprintf(both, sizeof both, "%s,%s", INPUT("6,6,4"), wrong[i].layer);
        expect_refused(both, COMPILED, MEMFIT_DAMAGED, wrong[i].says);
    }
}

#define TENSOR(layer) "{\"class_name\":\"__keras_tensor__\",\"config\":{\"keras_history\":[\"" layer "\",0,0]}}"
#define NODE(class, name, config, args, kwargs)                                                                        \
    "{\"module\":\"keras.layers\",\"class_name\":\"" class "\",\"config\":{\"name\":\"" name "\"" config               \
                                                           "},\"name\":\"" name                                        \
                                                           "\",\"inbound_nodes\":[{\"args\":[" args                    \
                                                           "],\"kwargs\":{" kwargs "}}]}"
#define FEED(name, shape)                                                                                              \
    "{\"module\":\"keras.layers\",\"class_name\":\"InputLayer\",\"config\":{\"name\":\"" name                          \
    "\",\"batch_shape\":[null," shape "],\"dtype\":\"float32\"},\"name\":\"" name "\",\"inbound_nodes\":[]}"

static char *functional_text(const char *layers, const char *inputs, const char *output, const char *compile)
{
    char *text = NULL;
    int n =
        asprintf(&text,
                 "{\"module\":\"keras\",\"class_name\":\"Functional\",\"config\":{\"name\":\"m\",\"trainable\":true,"
                 "\"layers\":[%s],\"input_layers\":[%s],\"output_layers\":[[\"%s\",0,0]]},\"compile_config\":%s}",
                 layers, inputs, output, compile);
    assert_true(n > 0);
    return text;
}

/* States and masks of another size were read past their end. */
static void states_and_masks_have_their_shapes(void **state)
{
    (void)state;
    static const char *const layers[] = {
        FEED("x", "5,4") "," FEED("h", "3") "," NODE("GRU", "r", ",\"units\":8", TENSOR("x"),
                                                     "\"initial_state\":" TENSOR("h")),
        FEED("x", "5,4") "," FEED("h", "3") "," NODE("SimpleRNN", "r", ",\"units\":8", TENSOR("x"),
                                                     "\"initial_state\":" TENSOR("h")),
        FEED("x", "5,4") "," FEED("h", "3") "," NODE("LSTM", "r", ",\"units\":8", TENSOR("x"),
                                                     "\"initial_state\":[" TENSOR("h") "," TENSOR("h") "]"),
        FEED("x", "5,4") "," FEED("h", "3") "," NODE("LSTM", "r", ",\"units\":3", TENSOR("x"), "\"mask\":" TENSOR("h")),
        FEED("x", "5,4") "," FEED("h", "5,1") "," NODE("GRU", "r", ",\"units\":3", TENSOR("x"),
                                                       "\"mask\":" TENSOR("h")),
    };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        memfit_error err;
        char *text = functional_text(layers[i], "[\"x\",0,0],[\"h\",0,0]", "r", COMPILED);
        for (mf_mode mode = 0; mode < 3; mode++) {
            memfit_status status = lower_text(text, mode, &err);
            if (status != MEMFIT_DAMAGED || (!strstr(err.message, "state") && !strstr(err.message, "mask")))
                fail_msg("%s: status %d, %s", layers[i], (int)status, err.message);
        }
        free(text);
    }
}

/* A model called twice on each of many levels: 2^n calls from a file of n models. */
static void calls_do_not_multiply_without_end(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) { /* with operations, and with none at all */
        char *inner = NULL;
        memfit_error err;
        const char *leaf =
            kind ? NODE("Identity", "f", "", TENSOR("i"), "") : NODE("Dense", "f", ",\"units\":2", TENSOR("i"), "");
        assert_true(
            asprintf(&inner,
                     "{\"module\":\"keras\",\"class_name\":\"Functional\",\"config\":{\"name\":\"f0\",\"layers\":[%s,"
                     "%s],\"input_layers\":[[\"i\",0,0]],\"output_layers\":[[\"f\",0,0]]}",
                     FEED("i", "2"), leaf) > 0);
        for (int level = 1; level <= 22; level++) {
            char *outer = NULL;
            assert_true(
                asprintf(&outer,
                         "{\"module\":\"keras\",\"class_name\":\"Functional\",\"config\":{\"name\":\"f%d\",\"layers\":["
                         "%s,%s,\"name\":\"f%d\",\"inbound_nodes\":[{\"args\":[{\"class_name\":\"__keras_tensor__\","
                         "\"config\":{\"keras_history\":[\"i\",0,0]}}],\"kwargs\":{}},{\"args\":[{\"class_name\":"
                         "\"__keras_tensor__\",\"config\":{\"keras_history\":[\"f%d\",0,0]}}],\"kwargs\":{}}]}],"
                         "\"input_layers\":[[\"i\",0,0]],\"output_layers\":[[\"f%d\",1,0]]}",
                         level, FEED("i", "2"), inner, level - 1, level - 1, level - 1) > 0);
            free(inner);
            inner = outer;
        }
        char *text = NULL;
        assert_true(asprintf(&text, "%s}", inner) > 0);
        memfit_status status = lower_text(text, MF_MODE_PREDICT, &err);
        if (status != MEMFIT_UNSUPPORTED || !strstr(err.message, "more than 250000"))
            fail_msg("status %d: %s", (int)status, err.message);
        free(inner);
        free(text);
    }
}

/* Labels have one number a row: a metric that compares numbers would read past their end. */
static void metrics_suit_their_targets(void **state)
{
    (void)state;
    static const char *const dense[] = {
        "mae", "mse", "AUC", "Precision", "Recall", "binary_accuracy", "categorical_accuracy", "RootMeanSquaredError"};
    const char *layers = INPUT("4") "," LAYER("Dense", "l", ",\"units\":3,\"activation\":\"softmax\"");
    char compile[256];
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        snprintf(compile, sizeof compile,
                 "{\"optimizer\":\"sgd\",\"loss\":\"sparse_categorical_crossentropy\",\"metrics\":[\"%s\"]}", dense[i]);
        expect_refused(layers, compile, MEMFIT_UNSUPPORTED, dense[i]);
    }
    expect_refused(layers, "{\"optimizer\":\"sgd\",\"loss\":\"mse\",\"metrics\":[\"sparse_categorical_accuracy\"]}",
                   MEMFIT_UNSUPPORTED, "sparse_categorical_accuracy");
    memfit_error err;
    char *text = sequential_text(
        layers, "{\"optimizer\":\"sgd\",\"loss\":\"sparse_categorical_crossentropy\",\"metrics\":[\"accuracy\"]}");
    assert_ok(lower_text(text, MF_MODE_TRAIN, &err), err);
    free(text);
}

static void counts_have_an_end(void **state)
{
    (void)state;
    char *compile = malloc(1 << 20), *p = compile;
    p += sprintf(p, "{\"optimizer\":\"sgd\",\"loss\":\"mse\",\"metrics\":[");
    for (int i = 0; i < 10000; i++)
        p += sprintf(p, "%s\"mae\"", i ? "," : "");
    sprintf(p, "]}");
    expect_refused(INPUT("4") "," LAYER("Dense", "l", ",\"units\":3"), compile, MEMFIT_UNSUPPORTED, "256 metrics");
    free(compile);
}

/* An enormous window that may hang over covers everything: it is what a smaller one is. */
static void enormous_windows(void **state)
{
    (void)state;
    char *text = sequential_text(
        INPUT("6,6,2") "," LAYER("MaxPooling2D", "l", ",\"pool_size\":2147483647,\"padding\":\"same\""), COMPILED);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_PREDICT, 2);
    mf_graph *g = lower_ok(model, &options);
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_POOL_MAX)
            assert_true(g->ops[i].attr.window.kernel[0] <= 48 && g->ops[i].attr.window.kernel[1] <= 48);
    assert_int_equal(count_kind(g, MF_OP_POOL_MAX), 1);
    assert_int_equal(g->tensors[g->outputs[0]].shape.dim[1], 1);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

static void assumptions_name_a_layer(void **state)
{
    (void)state;
    char *text =
        sequential_text(INPUT("8") "," LAYER("Lambda", "twist", "") "," LAYER("Dense", "b", ",\"units\":2"), COMPILED);
    mf_model *model = model_from_text(text);
    mf_assumption wrong[2] = {{.layer = "twist", .shape = {.rank = 1, .dim = {3}}},
                              {.layer = "twister", .shape = {.rank = 1, .dim = {3}}}};
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 4);
    options.assumptions = wrong;
    options.assumption_count = 2;
    mf_graph *g = NULL;
    memfit_error err = {0};
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "--assume twister"));
    /* the layer's stored weights are trained like any others */
    float values[6] = {1, 2, 3, 4, 5, 6};
    mf_stored stored = {
        .path = "vars/0", .dtype = MF_F32, .shape = {.rank = 2, .dim = {2, 3}}, .data = values, .bytes = sizeof values};
    model->layers[1].stored = &stored;
    model->layers[1].stored_count = 1;
    options.assumption_count = 1;
    g = lower_ok(model, &options);
    assert_int_equal(count_kind(g, MF_OP_UPDATE), 3);
    assert_int_equal(g->layers[2].parameter_count, 6);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

#define CUSTOM(class, registered, config)                                                                              \
    "{\"module\":null,\"class_name\":\"" class "\",\"registered_name\":\"" registered "\",\"config\":{" config "}}"
#define DENSE(config) LAYER("Dense", "d", ",\"units\":2" config)

/* A class of the author that is called like one of Keras's is not taken for it, registered or not. */
static void classes_of_the_author(void **state)
{
    (void)state;
    static const struct {
        const char *layers, *compile, *says;
    } wrong[] = {
        {INPUT("3") "," DENSE(""), "{\"optimizer\":" CUSTOM("Adam", "mine>Adam", "") ",\"loss\":\"mse\"}",
         "optimizer 'mine>Adam' is not known"},
        {INPUT("3") "," DENSE(""), "{\"optimizer\":" CUSTOM("Adam", "Adam", "") ",\"loss\":\"mse\"}",
         "optimizer 'Custom>Adam' is not known"},
        {INPUT("3") "," DENSE(""),
         "{\"optimizer\":\"sgd\",\"loss\":" CUSTOM("MeanSquaredError", "mine>MeanSquaredError", "") "}",
         "loss 'mine>MeanSquaredError' is not known"},
        {INPUT("3") "," DENSE(""),
         "{\"optimizer\":\"sgd\",\"loss\":{\"module\":\"builtins\",\"class_name\":\"function\",\"config\":\"mine>mse\","
         "\"registered_name\":\"function\"}}",
         "loss 'mine>mse' is not known"},
        {INPUT("3") "," DENSE(",\"activation\":" CUSTOM("ReLU", "mine>ReLU", "")), COMPILED,
         "activation 'mine>ReLU' is not known"},
        {INPUT("4,3") "," LAYER("RNN", "r", ",\"cell\":" CUSTOM("LSTMCell", "mine>LSTMCell", "\"units\":2")), COMPILED,
         "this cell is not supported"},
        {INPUT("4,3") "," LAYER("TimeDistributed", "t", ",\"layer\":" CUSTOM("Dense", "Dense", "\"units\":2")),
         COMPILED, "Custom>Dense"},
        {INPUT("3") "," CUSTOM("Dense", "mine>Dense", "\"name\":\"d\",\"trainable\":true,\"units\":2"), COMPILED,
         "(Dense): mine>Dense is a class of the model's author"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_refused(wrong[i].layers, wrong[i].compile, MEMFIT_UNSUPPORTED, wrong[i].says);
    memfit_error err;
    mf_model *model = NULL;
    const char *whole = CUSTOM("Sequential", "mine>Sequential", "\"name\":\"m\",\"layers\":[" INPUT("3") "]");
    assert_int_equal(mf_model_load_bytes(NULL, whole, strlen(whole), 0, &model, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mine>Sequential is a class of the model's author"));
}

/* Such parts can be planned with, and are named; the class Accuracy is not the word "accuracy". */
static void parts_left_out(void **state)
{
    (void)state;
    memfit_error err;
    mf_model *model = NULL;
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    char *text = sequential_text(
        INPUT("3") "," DENSE(",\"activation\":\"softmax\",\"kernel_regularizer\":" CUSTOM("L2", "L2", "\"l2\":0.1")),
        "{\"optimizer\":\"sgd\",\"loss\":\"categorical_crossentropy\",\"metrics\":[\"accuracy\",{\"module\":"
        "\"keras.metrics\",\"class_name\":\"Accuracy\",\"config\":{\"name\":\"accuracy\"},\"registered_name\":null}"
        "," CUSTOM("MeanAbsoluteError", "mine>MeanAbsoluteError", "\"name\":\"mae\"") "]}");
    assert_ok(mf_model_load_bytes(NULL, text, strlen(text), 0, &model, &err), err);
    mf_graph *g = lower_ok(model, &options);
    assert_string_equal(g->left_out, "regularizer 'Custom>L2' of layer 'd'");
    assert_string_equal(g->ignored_metrics, "Accuracy, mine>MeanAbsoluteError");
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_the_wrong_type),
        cmocka_unit_test(states_and_masks_have_their_shapes),
        cmocka_unit_test(calls_do_not_multiply_without_end),
        cmocka_unit_test(metrics_suit_their_targets),
        cmocka_unit_test(counts_have_an_end),
        cmocka_unit_test(enormous_windows),
        cmocka_unit_test(assumptions_name_a_layer),
        cmocka_unit_test(classes_of_the_author),
        cmocka_unit_test(parts_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
