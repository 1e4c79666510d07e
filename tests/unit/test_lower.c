/* test_lower.c: from models to step graphs: the common layers, modes, losses, updates, numbering, lack of memory. */
#include "lower_models.h"

#include <dirent.h>

static const char cnn[] =
    INPUT("28,28,1") "," LAYER("Conv2D", "conv", ",\"filters\":8,\"kernel_size\":[3,3],\"strides\":[1,1],\"padding\":\"same\",\"activation\":\"relu\"") "," LAYER(
        "BatchNormalization", "bn",
        ",\"axis\":[-1]") "," LAYER("MaxPooling2D", "pool",
                                    ",\"pool_size\":[2,2],\"strides\":[2,2],\"padding\":"
                                    "\"valid\"") "," LAYER("Flatten", "flat",
                                                           "") "," LAYER("Dropout", "drop",
                                                                         ",\"rate\""
                                                                         ":0.5") "," LAYER("Dense", "out",
                                                                                           ",\"units\":10,"
                                                                                           "\"activation\":"
                                                                                           "\"softmax\"");
static const char compiled[] =
    "{\"optimizer\":\"adam\",\"loss\":\"sparse_categorical_crossentropy\",\"metrics\":[\"accuracy\"]}";

static void a_cnn_becomes_a_training_step(void **state)
{
    (void)state;
    char *text = sequential_text(cnn, compiled);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 32);
    mf_graph *g = lower_ok(model, &options);
    assert_int_equal(count_kind(g, MF_OP_CONV), 1);
    assert_int_equal(count_kind(g, MF_OP_CONV_GRAD_WEIGHTS), 1);
    assert_int_equal(count_kind(g, MF_OP_CONV_GRAD_DATA), 0);
    assert_int_equal(count_kind(g, MF_OP_DROPOUT), 2);
    assert_int_equal(count_kind(g, MF_OP_UPDATE), 6);
    assert_int_equal(count_kind(g, MF_OP_MOVING_AVERAGE), 2);
    assert_int_equal(count_kind(g, MF_OP_METRIC), 1);
    assert_int_equal(count_kind(g, MF_OP_SOFTMAX), 1); /* the metric reads probabilities, the loss the logits */
    assert_int_equal(count_kind(g, MF_OP_SOFTMAX_GRAD), 0);
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_LOSS)
            assert_int_equal(g->ops[i].attr.loss.function, MF_LOSS_SCCE_LOGITS);
    assert_true(g->uses_batch_norm);
    assert_false(g->loss_assumed);
    assert_int_equal(g->feed_count, 2);
    mf_graph_destroy(g);
    options.mode = MF_MODE_PREDICT;
    g = lower_ok(model, &options);
    assert_int_equal(count_kind(g, MF_OP_DROPOUT), 0);
    assert_int_equal(count_kind(g, MF_OP_BATCH_NORM_INFER), 1);
    assert_int_equal(g->feed_count, 1);
    assert_true(g->outputs[0] != MF_NONE);
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_POOL_MAX)
            assert_int_equal(g->ops[i].out[1], MF_NONE); /* no index without a backward pass */
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

/* Weight gradients before data gradients; every update behind the last reader, and before the next layer's backward. */
static void updates_come_as_soon_as_they_can(void **state)
{
    (void)state;
    char *text = sequential_text(INPUT("4") "," LAYER("Dense", "a", ",\"units\":8,\"activation\":\"relu\"") "," LAYER(
                                     "Dense", "b", ",\"units\":3"),
                                 "{\"optimizer\":\"sgd\",\"loss\":\"mse\"}");
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *g = lower_ok(model, &options);
    uint32_t at[2] = {0, 0};
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_UPDATE)
            at[strcmp(g->layers[g->ops[i].layer].name, "a") == 0 ? 0 : 1] = i;
    assert_true(at[1] < at[0]);
    for (uint32_t i = at[1] + 1; i < at[0]; i++)
        assert_string_equal(g->layers[g->ops[i].layer].name, "a");
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

static void variables_are_numbered_alike(void **state)
{
    (void)state;
    char *text = sequential_text(cnn, compiled);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 32);
    mf_graph *first = lower_ok(model, &options);
    uint32_t unused = 0;
    for (uint32_t i = 0; i < first->variable_count; i++)
        unused += first->variables[i].tensor == MF_NONE;
    assert_int_equal(unused, 6 + 1); /* gradients and the flag of loss scaling */
    for (unsigned k = 0; k < 12; k++) {
        options.mode = (mf_mode)(k % 3);
        options.batch = 1 + k * 5;
        options.accumulate = k / 3 % 2;
        mf_graph *g = lower_ok(model, &options);
        assert_int_equal(g->variable_count, first->variable_count);
        for (uint32_t i = 0; i < g->variable_count; i++) {
            assert_string_equal(g->variables[i].name, first->variables[i].name);
            assert_true(mf_shape_equal(&g->variables[i].shape, &first->variables[i].shape));
            if (g->variables[i].role == MF_VAR_GRADIENT)
                assert_int_equal(g->variables[i].tensor != MF_NONE, options.accumulate && g->mode == MF_MODE_TRAIN);
        }
        mf_graph_destroy(g);
    }
    mf_graph_destroy(first);
    mf_model_destroy(model);
    free(text);
}

static void pieces_accumulate(void **state)
{
    (void)state;
    char *text = sequential_text(cnn, compiled);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 8);
    options.accumulate = true;
    mf_graph *g = lower_ok(model, &options);
    uint32_t clears = 0, adds = 0;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        clears += op->kind == MF_OP_FILL && op->when == MF_FIRST_PIECE;
        adds += op->accumulate;
        if (op->kind == MF_OP_UPDATE) {
            assert_int_equal(op->when, MF_LAST_PIECE);
            assert_true(g->storages[g->tensors[op->in[1]].storage].variable != MF_NONE);
        }
        if (op->kind == MF_OP_CONV_GRAD_WEIGHTS)
            assert_true(op->accumulate);
    }
    assert_int_equal(clears, 6 + 1); /* gradients and the loss */
    assert_int_equal(adds, 4);       /* conv kernel and bias, gamma and beta, dense kernel, dense bias */
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

static void frozen_layers_have_no_gradients(void **state)
{
    (void)state;
    char *text = sequential_text(
        INPUT("8,8,3") "," LAYER("Conv2D", "c", ",\"trainable\":false,\"filters\":4,\"kernel_size\":[3,3]") "," LAYER(
            "BatchNormalization", "bn",
            ",\"trainable\":false") "," LAYER("GlobalAveragePooling2D", "gap",
                                              "") "," LAYER("Dense", "d", ",\"units\":1,\"activation\":\"sigmoid\""),
        "{\"optimizer\":\"adam\",\"loss\":\"binary_crossentropy\"}");
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 4);
    mf_graph *g = lower_ok(model, &options);
    assert_int_equal(count_kind(g, MF_OP_UPDATE), 2);
    assert_int_equal(count_kind(g, MF_OP_CONV_GRAD_WEIGHTS), 0);
    assert_int_equal(count_kind(g, MF_OP_BATCH_NORM_INFER), 1);
    assert_int_equal(count_kind(g, MF_OP_BATCH_NORM), 0);
    assert_false(g->uses_batch_norm);
    assert_int_equal(count_kind(g, MF_OP_BROADCAST), 0);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

static void every_failing_allocation_is_survived(void **state)
{
    (void)state;
    char *text = sequential_text(cnn, compiled);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 4);
    for (uint64_t n = 1;; n++) {
        mf_fault_host fault;
        mf_fault_host_init(&fault, NULL, n, n % 2);
        mf_graph *g = NULL;
        memfit_error err;
        memfit_status s = mf_lower(&fault.host, model, &options, &g, &err);
        if (s == MEMFIT_OK) {
            mf_graph_destroy(g);
            assert_int_equal(fault.live_count, 0);
            assert_true(n > 10);
            break;
        }
        assert_int_equal(s, MEMFIT_NO_HOST_MEMORY);
        assert_null(g);
        assert_int_equal(fault.live_count, 0);
    }
    mf_model_destroy(model);
    free(text);
}

static void unknown_layers_are_named_and_can_be_assumed(void **state)
{
    (void)state;
    char *text = sequential_text(INPUT("8") "," LAYER("Dense", "a", ",\"units\":6") "," LAYER(
                                     "Lambda", "twist", "") "," LAYER("Dense", "b", ",\"units\":2"),
                                 "{\"optimizer\":\"adam\",\"loss\":\"mse\"}");
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 4);
    mf_graph *g = NULL;
    memfit_error err;
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'twist' (Lambda)"));
    assert_non_null(strstr(err.hint, "--assume twist=SHAPE[:BYTES]"));
    mf_assumption assumption = {.layer = "twist", .shape = {.rank = 2, .dim = {3, 5}}, .bytes = 1000};
    options.assumptions = &assumption;
    options.assumption_count = 1;
    g = lower_ok(model, &options);
    assert_int_equal(count_kind(g, MF_OP_ASSUMED), 2); /* forward and backward */
    assert_int_equal(count_kind(g, MF_OP_UPDATE), 4);
    for (uint32_t i = 0; i < g->layer_count; i++)
        if (strcmp(g->layers[i].name, "b") == 0)
            assert_int_equal(g->layers[i].output_shape.rank, 3);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

/* Sizes no machine has, in files made for it: refused, and nothing overflows on the way (the asan suite watches). */
static void absurd_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const layers[] = {
        LAYER("Repeat", "l", ",\"repeats\":2147483647,\"axis\":1"),
        LAYER("Split", "l", ",\"indices_or_sections\":[-9223372036854775807,5],\"axis\":1"),
        LAYER("Split", "l", ",\"indices_or_sections\":[6,3],\"axis\":1"),
        LAYER("Split", "l", ",\"indices_or_sections\":[9223372036854775807],\"axis\":1"),
        LAYER("Tile", "l", ",\"repeats\":[1,2147483647]"),
        LAYER("Squeeze", "l", ",\"axis\":9223372036854775807"),
        LAYER("ZeroPadding1D", "l", ",\"padding\":[9223372036854775807,1]"),
        LAYER("Reshape", "l", ",\"target_shape\":[9223372036854775807,-1]"),
        LAYER("RepeatVector", "l", ",\"n\":9223372036854775807"),
        LAYER("Dense", "l", ",\"units\":9223372036854775807")};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char both[1024];
        snprintf(both, sizeof both, "%s,%s", INPUT("4398046511104"), layers[i]);
        char *text = sequential_text(both, "{\"optimizer\":\"adam\",\"loss\":\"mse\"}");
        mf_model *model = model_from_text(text);
        mf_lower_options options = lower_options(MF_MODE_PREDICT, 1);
        mf_graph *g = NULL;
        memfit_error err = {0};
        if (mf_lower(NULL, model, &options, &g, &err) == MEMFIT_OK)
            fail_msg("%s was taken", layers[i]);
        assert_true(err.message[0]);
        mf_model_destroy(model);
        free(text);
    }
}

static void unknown_dimensions_are_asked_for(void **state)
{
    (void)state;
    char *text =
        sequential_text(INPUT("null,null,3") "," LAYER("Conv2D", "c", ",\"filters\":4,\"kernel_size\":[3,3]") "," LAYER(
                            "GlobalMaxPooling2D", "g", ""),
                        NULL);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *g = NULL;
    memfit_error err;
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.hint, "--input-shape"));
    options.input_shape = (mf_shape){.rank = 3, .dim = {20, 30, 3}};
    g = lower_ok(model, &options);
    assert_int_equal(g->tensors[g->feeds[0].tensor].shape.dim[2], 30);
    assert_true(g->loss_assumed && g->optimizer_assumed);
    mf_graph_destroy(g);
    options.input_shape = (mf_shape){.rank = 2, .dim = {20, 30}};
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_INVALID);
    options.input_shape = (mf_shape){.rank = 3, .dim = {2, 2, 3}}; /* too small for the kernel */
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "'c'"));
    static const char *const names[] = {"in"};
    static const int64_t values[] = {16};
    options = lower_options(MF_MODE_TRAIN, 2);
    options.dim_names = names;
    options.dim_values = values;
    options.dim_count = 1;
    options.input_dtype = MF_U8;
    g = lower_ok(model, &options);
    assert_int_equal(g->tensors[g->feeds[0].tensor].dtype, MF_U8);
    mf_graph_destroy(g);
    options.own_inputs = 1; /* others may arrive in bytes, this one does not */
    g = lower_ok(model, &options);
    assert_int_equal(g->tensors[g->feeds[0].tensor].dtype, MF_F32);
    options.own_inputs = 0;
    assert_int_equal(g->tensors[g->feeds[0].tensor].shape.dim[1], 16);
    mf_graph_destroy(g);
    static const char *const wrong[] = {"tokens"}; /* a name no input has is not passed over */
    options.input_shape = (mf_shape){.rank = 3, .dim = {20, 30, 3}};
    options.dim_names = wrong;
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "--dim tokens=16"));
    assert_string_equal(err.hint, "Its inputs: in");
    options.dim_names = names; /* nor is a size for an input that has none open; the size it has anyway is no slip */
    assert_int_equal(mf_lower(NULL, model, &options, &g, &err), MEMFIT_INVALID);
    assert_non_null(strstr(err.message, "--dim in=16: this input leaves no dimension open"));
    static const int64_t same[] = {30};
    options.dim_values = same;
    mf_graph_destroy(lower_ok(model, &options));
    mf_model_destroy(model);
    free(text);
}

/* Mixed precision: half the bytes for activations, float32 for weights, statistics, losses and gradients at the end. */
static void mixed_precision_casts(void **state)
{
    (void)state;
    char *text = sequential_text(cnn, compiled);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 8);
    options.precision = "mixed_float16";
    mf_graph *g = lower_ok(model, &options);
    assert_true(g->needs_loss_scale);
    uint32_t last_check = 0, first_update = MF_NONE;
    for (uint32_t i = 0; i < g->op_count; i++) {
        const mf_op *op = &g->ops[i];
        if (op->kind == MF_OP_CONV || op->kind == MF_OP_MATMUL || op->kind == MF_OP_CONV_GRAD_WEIGHTS)
            assert_int_equal(g->tensors[op->out[0]].dtype, MF_F16);
        if (op->kind == MF_OP_BATCH_NORM) { /* data as it is stored, computed in float32 */
            assert_int_equal(g->tensors[op->in[0]].dtype, MF_F16);
            assert_int_equal(g->tensors[op->in[1]].dtype, MF_F32);
            assert_int_equal(g->tensors[op->out[1]].dtype, MF_F32);
        }
        if (op->kind == MF_OP_LOSS)
            assert_int_equal(g->tensors[op->in[0]].dtype, MF_F32);
        if (op->kind == MF_OP_CHECK_FINITE)
            last_check = i;
        if (op->kind == MF_OP_UPDATE) {
            assert_int_equal(g->tensors[op->in[1]].dtype, MF_F32);
            assert_int_equal(op->in_count, 5); /* parameter, gradient, two slots, flag */
            first_update = first_update == MF_NONE ? i : first_update;
        }
    }
    assert_int_equal(count_kind(g, MF_OP_CHECK_FINITE), 6);
    assert_true(last_check < first_update); /* one gradient that is not finite skips them all */
    for (uint32_t i = 0; i < g->variable_count; i++)
        if (g->variables[i].role == MF_VAR_PARAMETER)
            assert_int_equal(g->variables[i].dtype, MF_F32);
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

/* Without a loss scale nothing stands between a gradient in 16 bits and its update: no float32 copy is made. */
static void narrow_gradients(void **state)
{
    (void)state;
    char *text = sequential_text(cnn, compiled);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 8);
    options.precision = "mixed_bfloat16";
    mf_graph *g = lower_ok(model, &options);
    uint32_t narrow = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == MF_OP_UPDATE) {
            const mf_tensor *t = &g->tensors[g->ops[i].in[1]];
            assert_int_not_equal(g->ops[t->producer].kind, MF_OP_CAST);
            assert_int_equal(g->storages[t->storage].kind, MEMFIT_KIND_GRADIENTS);
            narrow += t->dtype == MF_BF16;
        }
    assert_int_equal(narrow, 4); /* kernels and biases; scales and offsets of normalizations are float32 */
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

/* Clipping, averages, weight decay and Keras's own accumulation. */
static void optimizer_settings_are_obeyed(void **state)
{
    (void)state;
    static const struct {
        const char *optimizer;
        mf_op_kind kind;
        uint32_t count, slots;
        bool waits;
    } cases[] = {
        {"{\"class_name\":\"Adam\",\"config\":{\"clipnorm\":1.0}}", MF_OP_CLIP, 2, 2, false},
        {"{\"class_name\":\"Adam\",\"config\":{\"global_clipnorm\":1.0}}", MF_OP_CLIP_GLOBAL, 2, 2, true},
        {"{\"class_name\":\"SGD\",\"config\":{\"momentum\":0.9,\"use_ema\":true}}", MF_OP_EMA, 2, 1, false},
        {"{\"class_name\":\"Adam\",\"config\":{\"amsgrad\":true}}", MF_OP_UPDATE, 2, 3, false},
        {"{\"class_name\":\"Adafactor\",\"config\":{}}", MF_OP_UPDATE, 2, 3, false},
        {"{\"class_name\":\"Adam\",\"config\":{\"gradient_accumulation_steps\":4}}", MF_OP_UPDATE, 2, 2, true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char compile[512];
        snprintf(compile, sizeof compile, "{\"optimizer\":%s,\"loss\":\"mse\"}", cases[k].optimizer);
        char *text = sequential_text(INPUT("4") "," LAYER("Dense", "a", ",\"units\":8"), compile);
        mf_model *model = model_from_text(text);
        mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
        mf_graph *g = lower_ok(model, &options);
        assert_int_equal(count_kind(g, cases[k].kind), cases[k].count);
        uint32_t slots = 0, first_update = MF_NONE, last_gradient = 0;
        for (uint32_t i = 0; i < g->variable_count; i++)
            slots += g->variables[i].role == MF_VAR_SLOT;
        assert_int_equal(slots, cases[k].slots * 2);
        for (uint32_t i = 0; i < g->op_count; i++) {
            if (g->ops[i].kind == MF_OP_UPDATE && first_update == MF_NONE)
                first_update = i;
            if (g->ops[i].phase == MF_BACKWARD)
                last_gradient = i;
        }
        if (cases[k].waits)
            assert_true(first_update > last_gradient);
        assert_int_equal(g->accumulation_steps, k == 5 ? 4 : 0);
        mf_graph_destroy(g);
        mf_model_destroy(model);
        free(text);
    }
}

/* A mask that reaches the output weighs the loss. */
#define CELL "\"units\":5,\"activation\":\"tanh\",\"recurrent_activation\":\"sigmoid\""

/* Through recurrent layers that give sequences, whichever way their cell is written. */
static void masks_reach_the_loss(void **state)
{
    (void)state;
    static const char *const layers[] = {
        LAYER("LSTM", "l", "," CELL ",\"return_sequences\":true"),
        LAYER("RNN", "l",
              ",\"return_sequences\":true,\"cell\":{\"class_name\":\"LSTMCell\",\"config\":{\"name\":\"c\"," CELL "}}"),
        LAYER("Bidirectional", "l",
              ",\"layer\":{\"class_name\":\"LSTM\",\"config\":{\"name\":\"f\"," CELL ",\"return_sequences\":true}}")};
    for (size_t k = 0; k < sizeof layers / sizeof *layers; k++) {
        char all[2048];
        snprintf(all, sizeof all, "%s,%s,%s,%s",
                 LAYER("InputLayer", "in", ",\"batch_shape\":[null,7],\"dtype\":\"int32\""),
                 LAYER("Embedding", "e", ",\"input_dim\":9,\"output_dim\":4,\"mask_zero\":true"), layers[k],
                 LAYER("Dense", "d", ",\"units\":3,\"activation\":\"softmax\""));
        char *text = sequential_text(all, "{\"optimizer\":\"sgd\",\"loss\":\"sparse_categorical_crossentropy\"}");
        mf_model *model = model_from_text(text);
        mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
        mf_graph *g = lower_ok(model, &options);
        for (uint32_t i = 0; i < g->op_count; i++) {
            if (g->ops[i].kind == MF_OP_LOSS && g->ops[i].in[2] == MF_NONE)
                fail_msg("the loss has no mask behind %s", layers[k]);
            if (g->ops[i].kind == MF_OP_LSTM)
                assert_int_equal(g->tensors[g->ops[i].in[4]].dtype, MF_U8);
        }
        mf_graph_destroy(g);
        mf_model_destroy(model);
        free(text);
    }
}

/* Keras's names: a second metric of a name is told apart. */
static void metrics_have_names_of_their_own(void **state)
{
    (void)state;
    static const char *const expected[] = {"accuracy", "accuracy_1", "mae", "weighted_accuracy", "weighted_accuracy_1"};
    char *text = sequential_text(INPUT("4") "," LAYER("Dense", "a", ",\"units\":1"),
                                 "{\"optimizer\":\"sgd\",\"loss\":\"mse\",\"metrics\":[\"accuracy\",\"accuracy\"],"
                                 "\"weighted_metrics\":[\"mae\",\"accuracy\",\"accuracy\"]}");
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *g = lower_ok(model, &options);
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++) {
        uint32_t found = 0;
        for (uint32_t i = 0; i < g->variable_count; i++)
            found += g->variables[i].role == MF_VAR_METRIC && strcmp(g->variables[i].name, expected[k]) == 0;
        if (found != 1)
            fail_msg("%u metrics are named %s", found, expected[k]);
    }
    mf_graph_destroy(g);
    mf_model_destroy(model);
    free(text);
}

/* What the operations would refuse at the first step is said by the plan; a layer that is not trained may have it. */
static void recurrent_activations_without_a_slope(void **state)
{
    (void)state;
    static const char *const names[] = {"tanh",     "linear", "relu", "elu", "softplus",
                                        "softsign", "gelu",   "silu", "mish"};
    enum { FIRST_BAD = 6 };
    for (size_t k = 0; k < 4 * sizeof names / sizeof *names; k++) {
        const char *act = k & 1 ? names[k / 4] : "tanh", *gate = k & 1 ? "sigmoid" : names[k / 4];
        char all[1024];
        snprintf(all, sizeof all,
                 INPUT("4,3") "," LAYER("GRU", "g",
                                        ",\"units\":5,\"activation\":\"%s\",\"recurrent_activation\":\"%s\","
                                        "\"trainable\":%s") "," LAYER("Dense", "d", ",\"units\":1"),
                 act, gate, k & 2 ? "true" : "false");
        char *text = sequential_text(all, "{\"optimizer\":\"sgd\",\"loss\":\"mse\"}");
        mf_model *model = model_from_text(text);
        mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
        mf_graph *g = lower_ok(model, &options);
        if ((g->left_out != NULL) != (k / 4 >= FIRST_BAD && (k & 2)))
            fail_msg("activation %s, gates %s: %s", act, gate, g->left_out ? g->left_out : "nothing is left out");
        mf_graph_destroy(g);
        mf_model_destroy(model);
        free(text);
    }
}

/* Keras: logits of softmax and sigmoid go to whichever cross-entropy asks, and before what from_logits claims. A cast
 * between hides them from the loss they were not made for. */
static void every_cross_entropy_finds_the_logits(void **state)
{
    (void)state;
    static const struct {
        const char *activation, *loss, *policy;
        mf_loss expected;
    } cases[] = {
        {"softmax", "\"categorical_crossentropy\"", "", MF_LOSS_CCE_LOGITS},
        {"sigmoid", "\"categorical_crossentropy\"", "", MF_LOSS_CCE_LOGITS},
        {"softmax", "\"binary_crossentropy\"", "", MF_LOSS_BCE_LOGITS},
        {"sigmoid", "\"sparse_categorical_crossentropy\"", "", MF_LOSS_SCCE_LOGITS},
        {"softmax", "{\"class_name\":\"BinaryCrossentropy\",\"config\":{\"from_logits\":true}}", "",
         MF_LOSS_BCE_LOGITS},
        {"relu", "\"categorical_crossentropy\"", "", MF_LOSS_CCE},
        {"softmax", "\"categorical_crossentropy\"", ",\"dtype\":\"mixed_bfloat16\"", MF_LOSS_CCE_LOGITS},
        {"sigmoid", "\"categorical_crossentropy\"", ",\"dtype\":\"mixed_bfloat16\"", MF_LOSS_CCE},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char layers[512], compile[256];
        snprintf(layers, sizeof layers, INPUT("4") "," LAYER("Dense", "d", ",\"units\":3,\"activation\":\"%s\"%s"),
                 cases[k].activation, cases[k].policy);
        snprintf(compile, sizeof compile, "{\"optimizer\":\"sgd\",\"loss\":%s}", cases[k].loss);
        char *text = sequential_text(layers, compile);
        mf_model *model = model_from_text(text);
        mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
        mf_graph *g = lower_ok(model, &options);
        for (uint32_t i = 0; i < g->op_count; i++)
            if (g->ops[i].kind == MF_OP_LOSS && g->ops[i].attr.loss.function != cases[k].expected)
                fail_msg("case %zu: loss %d", k, (int)g->ops[i].attr.loss.function);
        assert_int_equal(count_kind(g, MF_OP_SOFTMAX_GRAD), 0); /* the loss's slope goes past the activation */
        mf_graph_destroy(g);
        mf_model_destroy(model);
        free(text);
    }
}

/* Every real file that can be read becomes a graph in every mode, or says what it lacks. */
static void real_files(void **state)
{
    (void)state;
    if (!test_shared_data())
        skip();
    char folder[512], path[1024];
    snprintf(folder, sizeof folder, "%s/keras", test_shared_data());
    DIR *dir = opendir(folder);
    if (!dir)
        skip();
    uint32_t lowered = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        mf_model *model;
        memfit_error err;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (!strstr(e->d_name, ".keras") && !strstr(e->d_name, ".h5"))
            continue;
        if (mf_model_load(NULL, path, &model, &err) != MEMFIT_OK)
            continue;
        for (unsigned k = 0; k < 6; k++) {
            mf_lower_options options = lower_options((mf_mode)(k % 3), 3);
            options.accumulate = k >= 3;
            mf_graph *g = NULL;
            memfit_status s = mf_lower(NULL, model, &options, &g, &err);
            if (s) {
                fprintf(stderr, "%s: %s\n", e->d_name, err.message);
                assert_true(s == MEMFIT_UNSUPPORTED || s == MEMFIT_INVALID);
                break;
            }
            assert_ok(mf_graph_check(g, &err), err);
            mf_graph_destroy(g);
            lowered++;
        }
        mf_model_destroy(model);
    }
    closedir(dir);
    assert_true(lowered > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cnn_becomes_a_training_step),
        cmocka_unit_test(updates_come_as_soon_as_they_can),
        cmocka_unit_test(variables_are_numbered_alike),
        cmocka_unit_test(pieces_accumulate),
        cmocka_unit_test(frozen_layers_have_no_gradients),
        cmocka_unit_test(every_failing_allocation_is_survived),
        cmocka_unit_test(unknown_layers_are_named_and_can_be_assumed),
        cmocka_unit_test(absurd_numbers_are_refused),
        cmocka_unit_test(unknown_dimensions_are_asked_for),
        cmocka_unit_test(mixed_precision_casts),
        cmocka_unit_test(narrow_gradients),
        cmocka_unit_test(optimizer_settings_are_obeyed),
        cmocka_unit_test(masks_reach_the_loss),
        cmocka_unit_test(metrics_have_names_of_their_own),
        cmocka_unit_test(recurrent_activations_without_a_slope),
        cmocka_unit_test(every_cross_entropy_finds_the_logits),
        cmocka_unit_test(real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
