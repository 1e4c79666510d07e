/* test_builder.c: models built in C, their first weights, and the files they become. */
#include "test.h"

#include "graph/passes/optimizer.h"
#include "memfit/model.h"
#include "model/builder.h"
#include "model/initialize.h"

#include <math.h>

static const char *temporary(const char *name)
{
    static char path[1024];
    if (getenv("MEMFIT_KEEP_BUILT"))
        snprintf(path, sizeof path, "%s/%s.keras", getenv("MEMFIT_KEEP_BUILT"), name);
    else
        snprintf(path, sizeof path, "%s/memfit-build-%ld-%s.keras", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
                 (long)getpid(), name);
    return path;
}

/* Dense(10, relu) - Dense(2) on 10 numbers, Adam, mse. */
static memfit_model *small_dense(const memfit_host *host)
{
    memfit_model *m = NULL;
    memfit_error err;
    if (memfit_model_create_sequential(host, "s1", &m, &err))
        return NULL;
    memfit_model_add_input(m, 1, (const int64_t[]){10});
    memfit_model_add_dense(m, 10, "relu");
    memfit_model_add_dense(m, 2, NULL);
    memfit_model_compile(m, "adam", 0, "mse", NULL);
    return m;
}

/* Conv2D(32, 3, relu) - MaxPool - Flatten - Dense(10, softmax) on images of `side`. */
static memfit_model *one_convolution(int64_t side)
{
    memfit_model *m = NULL;
    memfit_error err;
    assert_ok(memfit_model_create_sequential(NULL, "s7", &m, &err), err);
    memfit_model_add_input(m, 3, (const int64_t[]){side, side, 3});
    memfit_model_add_conv2d(m, 32, 3, NULL, "relu");
    memfit_model_add_max_pool2d(m, 2);
    memfit_model_add_flatten(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "adam", 0, "mse", "accuracy, mae");
    return m;
}

/* Conv 64 - pool - 128 - GAP - Dense(10, softmax) on 128x128x3, all same relu. */
static memfit_model *pyramid(void)
{
    memfit_model *m = NULL;
    memfit_error err;
    assert_ok(memfit_model_create_sequential(NULL, "s9", &m, &err), err);
    memfit_model_add_input(m, 3, (const int64_t[]){128, 128, 3});
    memfit_model_add_conv2d(m, 64, 3, "same", "relu");
    memfit_model_add_max_pool2d(m, 2);
    memfit_model_add_conv2d(m, 128, 3, "same", "relu");
    memfit_model_add_batch_norm(m);
    memfit_model_add_dropout(m, 0.25);
    memfit_model_add_activation(m, "tanh");
    memfit_model_add_average_pool2d(m, 4);
    memfit_model_add_global_average_pool2d(m);
    memfit_model_add_dense(m, 10, "softmax");
    memfit_model_compile(m, "sgd", 0.1, "categorical_crossentropy", "accuracy");
    return m;
}

static void save_and_read_back(memfit_model *m, const char *name, uint32_t layers, uint64_t parameters)
{
    memfit_error err;
    memfit_model *back;
    const char *path = temporary(name);
    assert_ok(memfit_model_save(m, path, &err), err);
    assert_ok(memfit_model_load(NULL, path, &back, &err), err);
    assert_string_equal(memfit_model_name(back), memfit_model_name(m));
    assert_int_equal(memfit_model_layer_count(back), layers);
    assert_int_equal(memfit_model_stored_parameters(back), parameters);
    mf_model *a = mf_model_of(m, &err), *b = mf_model_of(back, &err);
    assert_int_equal(!a->compile, !b->compile);
    for (uint32_t i = 0; i < a->layer_count; i++) {
        memfit_layer_info info = {.size = sizeof info};
        assert_ok(memfit_model_layer(back, i, &info, &err), err);
        assert_string_equal(info.class_name, a->layers[i].class_name);
        assert_null(info.unsupported);
        assert_int_equal(a->layers[i].stored_count, b->layers[i].stored_count);
        for (uint32_t k = 0; k < a->layers[i].stored_count; k++)
            assert_memory_equal(a->layers[i].stored[k].data, b->layers[i].stored[k].data, a->layers[i].stored[k].bytes);
    }
    memfit_layer_info info = {.size = sizeof info};
    assert_int_equal(memfit_model_layer(back, layers, &info, &err), MEMFIT_INVALID);
    memfit_model_destroy(back);
    if (!getenv("MEMFIT_KEEP_BUILT"))
        unlink(path);
}

static void models_are_built_saved_and_read(void **state)
{
    (void)state;
    memfit_model *m = small_dense(NULL);
    save_and_read_back(m, "s1", 3, 132);
    memfit_model_destroy(m);
    m = one_convolution(32);
    save_and_read_back(m, "s7", 5, 896 + 15 * 15 * 32 * 10 + 10);
    memfit_model_destroy(m);
    m = pyramid();
    save_and_read_back(m, "s9", 10, 1792 + 73856 + 512 + 1290);
    assert_int_equal(memfit_model_add_flatten(m), MEMFIT_MISUSE);
    assert_int_equal(memfit_model_layer_count(m), 10);
    memfit_model_destroy(m);
}

static void any_class_can_be_added(void **state)
{
    (void)state;
    memfit_model *m = NULL;
    memfit_error err;
    assert_ok(memfit_model_create_sequential(NULL, "any", &m, &err), err);
    memfit_model_add_input(m, 3, (const int64_t[]){8, 8, 4});
    memfit_model_add_layer(m, "Conv2D",
                           "{\"filters\": 6, \"kernel_size\": [3, 3], \"strides\": [2, 2], \"padding\": \"same\"}");
    memfit_model_add_layer(m, "LayerNormalization", NULL);
    memfit_model_add_layer(m, "DepthwiseConv2D", "{\"kernel_size\": [3, 3], \"use_bias\": false}");
    memfit_model_add_flatten(m);
    memfit_model_add_dense(m, 1, NULL);
    save_and_read_back(m, "any", 6, 222 + 12 + 54 + 25);
    memfit_model_destroy(m);
}

static void recurrent_models_start_as_keras_starts_them(void **state)
{
    (void)state;
    memfit_model *m = NULL;
    memfit_error err;
    assert_ok(memfit_model_create_sequential(NULL, "words", &m, &err), err);
    memfit_model_add_input(m, 1, (const int64_t[]){12});
    memfit_model_add_embedding(m, 50, 8);
    memfit_model_add_lstm(m, 6, true);
    memfit_model_add_lstm(m, 4, false);
    memfit_model_add_dense(m, 1, "sigmoid");
    memfit_model_compile(m, "rmsprop", 0, "binary_crossentropy", "accuracy");
    save_and_read_back(m, "words", 5, 400 + 360 + 176 + 5);
    mf_model *inner = mf_model_of(m, &err);
    const mf_stored *bias = &inner->layers[2].stored[2];
    assert_string_equal(bias->path, "cell/vars/2");
    for (uint64_t i = 0; i < 24; i++) /* gates: input, forget, cell, output */
        assert_true(mf_element_get(bias->data, bias->dtype, i) == (i >= 6 && i < 12 ? 1 : 0));
    memfit_model_destroy(m);
}

static void mistakes_are_remembered(void **state)
{
    (void)state;
    memfit_error err;
    memfit_model *m = NULL;
    assert_ok(memfit_model_create_sequential(NULL, NULL, &m, &err), err);
    assert_int_equal(memfit_model_add_dense(m, 10, "relu"), MEMFIT_MISUSE);
    assert_int_equal(memfit_model_add_input(m, 1, (const int64_t[]){10}), MEMFIT_MISUSE);
    assert_int_equal(memfit_model_save(m, "/tmp/never.keras", &err), MEMFIT_MISUSE);
    assert_non_null(strstr(err.message, "first layer must be the input"));
    memfit_model_destroy(m);

    static const struct {
        int what;
        const char *says;
    } cases[] = {{0, "units is 0"},  {1, "rate 1"},    {2, "'re\"lu'"},  {3, "optimizer 'magic'"}, {4, "line 1"},
                 {5, "NoSuchLayer"}, {6, "one input"}, {7, "no layers"}, {8, "dimension 0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(memfit_model_create_sequential(NULL, "wrong", &m, &err), err);
        memfit_model_add_input(m, 1, (const int64_t[]){cases[i].what == 8 ? 0 : 10});
        if (cases[i].what != 7)
            memfit_model_add_dense(m, cases[i].what == 0 ? 0 : 4, cases[i].what == 2 ? "re\"lu" : "relu");
        if (cases[i].what == 1)
            memfit_model_add_dropout(m, 1);
        if (cases[i].what == 3)
            memfit_model_compile(m, "magic", 0, "mse", NULL);
        if (cases[i].what == 4)
            memfit_model_add_layer(m, "Dense", "{");
        if (cases[i].what == 5)
            memfit_model_add_layer(m, "NoSuchLayer", "{}");
        if (cases[i].what == 6)
            memfit_model_add_input(m, 1, (const int64_t[]){3});
        assert_true(memfit_model_finish(m, &err) != MEMFIT_OK);
        if (!strstr(err.message, cases[i].says))
            fail_msg("case %d: %s", cases[i].what, err.message);
        assert_int_equal(memfit_model_layer_count(m), 0);
        memfit_model_destroy(m);
    }
    assert_int_equal(memfit_model_load(NULL, "/nonexistent.keras", &m, &err), MEMFIT_NOT_FOUND);
    memfit_model_destroy(NULL);
}

static void every_lack_of_memory_is_survived(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        mf_fault_host host;
        memfit_error err;
        mf_fault_host_init(&host, NULL, n, false);
        memfit_model *m = small_dense(&host.host);
        memfit_status st = m ? memfit_model_finish(m, &err) : MEMFIT_NO_HOST_MEMORY;
        memfit_model_destroy(m);
        assert_int_equal(host.live_count, 0);
        if (!st)
            break;
        assert_int_equal(st, MEMFIT_NO_HOST_MEMORY);
    }
}

/* ---- initializers ----------------------------------------------------------------------------------------- */

enum { ROWS = 200, COLUMNS = 300, COUNT = ROWS * COLUMNS };
static float values[COUNT];

static void run(const char *json, const mf_shape *shape, uint64_t seed, uint32_t stream)
{
    mf_arena arena;
    mf_json *root;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    assert_ok(mf_json_parse(&arena, json, strlen(json), &root, &err), err);
    assert_ok(mf_initializer(NULL, root, 0, shape, MF_F32, seed, stream, values, &err), err);
    mf_arena_destroy(&arena);
}

static void distributions_are_keras_s(void **state)
{
    (void)state;
    const mf_shape matrix = {2, {ROWS, COLUMNS}}, kernel = {4, {3, 3, 16, 32}};
    static const struct {
        const char *json;
        double mean, deviation, most;
        bool kernel;
    } cases[] = {
        {"\"zeros\"", 0, 0, 0, false},
        {"{\"class_name\": \"Constant\", \"config\": {\"value\": 3}}", 3, 0, 3, false},
        {"\"glorot_uniform\"", 0, 0.0632455, 0.1095445, false},
        {"{\"class_name\": \"HeNormal\", \"config\": {}}", 0, 0.1, 0.2274, false},
        {"\"lecun_normal\"", 0, 0.0707107, 0.1608, false},
        {"{\"class_name\": \"RandomNormal\", \"config\": {\"mean\": 1, \"stddev\": 0.5}}", 1, 0.5, 4, false},
        {"\"uniform\"", 0, 0.0288675, 0.05, false},
        {"{\"class_name\": \"GlorotUniform\", \"config\": {\"seed\": null}}", 0, 0.0680414, 0.1178511, true},
        {"{\"class_name\": \"VarianceScaling\", \"config\": {\"scale\": 2, \"mode\": \"fan_out\", \"distribution\": "
         "\"untruncated_normal\"}}",
         0, 0.0833333, 0.5, true},
        {"{\"class_name\": \"GlorotUniform\", \"config\": {\"input_axes\": [0], \"output_axes\": [1]}}", 0, 0.0632455,
         0.1095446, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const mf_shape *shape = cases[i].kernel ? &kernel : &matrix;
        uint64_t n = mf_shape_count(shape);
        double sum = 0, square = 0, most = 0;
        run(cases[i].json, shape, 1, 0);
        for (uint64_t k = 0; k < n; k++) {
            sum += (double)values[k];
            square += (double)values[k] * (double)values[k];
            most = fmax(most, fabs((double)values[k]));
        }
        double mean = sum / (double)n, deviation = sqrt(fmax(0, square / (double)n - mean * mean));
        double slack = 5 * cases[i].deviation / sqrt((double)n) + 1e-9;
        if (fabs(mean - cases[i].mean) > slack || fabs(deviation - cases[i].deviation) > 2 * slack ||
            most > cases[i].most)
            fail_msg("%s: mean %g, deviation %g, most %g", cases[i].json, mean, deviation, most);
    }
}

static void streams_are_independent_and_repeatable(void **state)
{
    (void)state;
    const mf_shape shape = {1, {64}};
    float first[64];
    run("\"uniform\"", &shape, 7, 3);
    memcpy(first, values, sizeof first);
    run("\"uniform\"", &shape, 7, 3);
    assert_memory_equal(first, values, sizeof first);
    run("\"uniform\"", &shape, 7, 4);
    assert_memory_not_equal(first, values, sizeof first);
    run("\"uniform\"", &shape, 8, 3);
    assert_memory_not_equal(first, values, sizeof first);
}

static void orthogonal_is_orthogonal(void **state)
{
    (void)state;
    static const mf_shape shapes[] = {{2, {20, 80}}, {2, {80, 20}}, {4, {2, 2, 5, 30}}};
    for (size_t s = 0; s < 3; s++) {
        uint64_t columns = (uint64_t)shapes[s].dim[shapes[s].rank - 1], rows = mf_shape_count(&shapes[s]) / columns;
        run("\"orthogonal\"", &shapes[s], 5, 1);
        bool by_rows = rows < columns;
        for (uint64_t a = 0; a < (by_rows ? rows : columns); a++)
            for (uint64_t b = 0; b <= a; b++) {
                double dot = 0;
                for (uint64_t k = 0; k < (by_rows ? columns : rows); k++)
                    dot += by_rows ? (double)values[a * columns + k] * (double)values[b * columns + k]
                                   : (double)values[k * columns + a] * (double)values[k * columns + b];
                assert_true(fabs(dot - (a == b ? 1 : 0)) < 1e-6);
            }
    }
    memfit_error err;
    mf_json unknown = {.type = MF_JSON_STRING, .string = "sorcery"};
    assert_int_equal(mf_initializer(NULL, &unknown, 0, &shapes[0], MF_F32, 0, 0, values, &err), MEMFIT_UNSUPPORTED);
}

static void elements_convert_exactly(void **state)
{
    (void)state;
    static const double exact[] = {0, 1, -2, 0.5, 65504, -6.103515625e-5, 5.9604644775390625e-8, 1024.0};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        unsigned char cell[8];
        static const mf_dtype floats[] = {MF_F16, MF_F32, MF_F64};
        for (size_t t = 0; t < 3; t++) {
            mf_element_set(cell, floats[t], 0, exact[i]);
            assert_true(mf_element_get(cell, floats[t], 0) == exact[i]);
        }
    }
    unsigned char cell[8];
    mf_element_set(cell, MF_F16, 0, 2049); /* between 2048 and 2050: to even */
    assert_true(mf_element_get(cell, MF_F16, 0) == 2048);
    mf_element_set(cell, MF_F16, 0, 65520);
    assert_true(isinf(mf_element_get(cell, MF_F16, 0)));
    mf_element_set(cell, MF_BF16, 0, 1.00390625); /* half way: to even */
    assert_true(mf_element_get(cell, MF_BF16, 0) == 1.0);
    mf_element_set(cell, MF_I16, 0, -300.4);
    assert_true(mf_element_get(cell, MF_I16, 0) == -300);
}

/* Lion's rate was ten times too small here and right where a model file leaves it out. */
static void default_rates_are_those_of_keras(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double rate;
    } rates[] = {{"sgd", 0.01}, {"lion", 0.001}, {"adam", 0.001}, {"lamb", 0.001}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        mf_optimizer which;
        assert_true(mf_optimizer_parse(rates[i].name, &which));
        assert_true(mf_optimizer_learning_rate(which) == rates[i].rate);
        memfit_model *m = NULL;
        const mf_model *built;
        memfit_error err = {0};
        assert_ok(memfit_model_create_sequential(NULL, "rates", &m, &err), err);
        memfit_model_add_input(m, 1, (const int64_t[]){4});
        memfit_model_add_dense(m, 2, NULL);
        memfit_model_compile(m, rates[i].name, 0, "mse", NULL);
        assert_ok(memfit_model_finish(m, &err), err);
        built = mf_model_of(m, &err);
        assert_non_null(built);
        assert_true(mf_json_get_number(mf_json_get(mf_json_get(built->compile, "optimizer"), "config"), "learning_rate",
                                       0) == rates[i].rate);
        memfit_model_destroy(m);
    }
}

/* By all threads and one by one: the same numbers, also where the last block is not whole. */
static void uniform_weights_do_not_depend_on_threads(void **state)
{
    (void)state;
    enum { NUMBERS = 300001 };
    memfit_error err = {0};
    mf_json name = {.type = MF_JSON_STRING, .string = "glorot_uniform"};
    mf_shape shape = mf_shape_make(1, (int64_t[]){NUMBERS});
    float *quick = calloc(NUMBERS, sizeof *quick);
    double *slow = calloc(NUMBERS, sizeof *slow);
    assert_true(quick && slow);
    assert_ok(mf_initializer(NULL, &name, 0, &shape, MF_F32, 7, 3, quick, &err), err);
    assert_ok(mf_initializer(NULL, &name, 0, &shape, MF_F64, 7, 3, slow, &err), err);
    for (unsigned i = 0; i < NUMBERS; i++)
        assert_true(quick[i] == (float)slow[i] && quick[i] != 0);
    free(quick);
    free(slow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_weights_do_not_depend_on_threads),
        cmocka_unit_test(default_rates_are_those_of_keras),
        cmocka_unit_test(models_are_built_saved_and_read),
        cmocka_unit_test(any_class_can_be_added),
        cmocka_unit_test(recurrent_models_start_as_keras_starts_them),
        cmocka_unit_test(mistakes_are_remembered),
        cmocka_unit_test(every_lack_of_memory_is_survived),
        cmocka_unit_test(distributions_are_keras_s),
        cmocka_unit_test(streams_are_independent_and_repeatable),
        cmocka_unit_test(orthogonal_is_orthogonal),
        cmocka_unit_test(elements_convert_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
