/* test_lower.c: from models to step graphs: the common layers, modes, losses, updates, numbering, lack of memory. */
#include "lower_helper.h"

#include <dirent.h>

static const char cnn[] =
    INPUT("28,28,1") "," LAYER("Conv2D", "conv", ",\"filters\":8,\"kernel_size\":[3,3],\"strides\":[1,1],\"padding\":\"same\",\"activation\":\"relu\"") "," LAYER(
        "BatchNormalization", "bn", ",\"axis\":[-1]") "," LAYER("MaxPooling2D", "pool",
                                                                ",\"pool_size\":[2,2],\"strides\":[2,2],\"padding\":"
                                                                "\"valid\"") "," LAYER("Flatten",
                                                                                       "flat", "") "," LAYER("Dropout",
                                                                                                             "drop",
                                                                                                             ",\"rate\""
                                                                                                             ":0.5") "," LAYER("Dense",
                                                                                                                               "out",
                                                                                                                               ",\"units\":10,\"activation\":\"softmax\"");
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
        cmocka_unit_test(real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
