/*
 * test_config_keys.c: nothing in a configuration is dropped in silence. The keys of real Keras
 * (tests/fixtures/config_keys.json, written by tools/make_key_fixtures.py) against the table of lower_keys.c: every key
 * is known, every default is accepted, and every value that the table does not allow is refused by name, in models too.
 */
#include "lower_models.h"

#include "base/os.h"
#include "model/lower/lower_inner.h"
#include "model/lower/lower_keys.h"

static const struct {
    const char *name;
    mf_key_part part;
    uint32_t least;
} parts[] = {{"layers", MF_KEYS_LAYER, 100},
             {"losses", MF_KEYS_LOSS, 17},
             {"optimizers", MF_KEYS_OPTIMIZER, 12},
             {"metrics", MF_KEYS_METRIC, 11}};

static mf_json *keras_says(mf_arena *arena, mf_mapping *map)
{
    const char *source = getenv("MEMFIT_SOURCE");
    char path[2048];
    mf_json *root;
    memfit_error err;
    if (!source)
        skip();
    snprintf(path, sizeof path, "%s/tests/fixtures/config_keys.json", source);
    assert_ok(mf_os_map_file(path, map, &err), err);
    assert_ok(mf_json_parse(arena, (const char *)map->data, map->bytes, &root, &err), err);
    return root;
}

/* A configuration of one entry. */
static const mf_json *dropped_alone(mf_key_part part, const char *class_name, const char *key, mf_json value)
{
    mf_json config = {.type = MF_JSON_OBJECT, .count = 1};
    value.key = key;
    value.next = NULL;
    config.first = &value;
    return mf_dropped_key(part, class_name, &config) ? (const mf_json *)1 : NULL;
}

static void check_class(mf_key_part part, const mf_json *class)
{
    if (!mf_keys_known(part, class->key))
        fail_msg("%s has no row", class->key);
    const mf_json *dropped = mf_dropped_key(part, class->key, class);
    if (dropped)
        fail_msg("%s: the default of %s is refused", class->key, dropped->key);
    for (const mf_json *entry = class->first; entry; entry = entry->next) {
        mf_key_rule rule = mf_key_rule_of(part, class->key, entry->key);
        if (rule == MF_KEY_UNKNOWN)
            fail_msg("%s: %s of real Keras is not in the table", class->key, entry->key);
        mf_json odd = {.type = MF_JSON_STRING, .string = "something else"}, pair = {.type = MF_JSON_ARRAY, .count = 2};
        mf_json one = {.type = MF_JSON_NUMBER, .number = 17, .integer = 17, .is_integer = true}, two = one;
        one.next = &two;
        pair.first = &one;
        bool refused = dropped_alone(part, class->key, entry->key, odd) != NULL;
        bool also = dropped_alone(part, class->key, entry->key, pair) != NULL;
        assert_int_equal(refused, rule == MF_KEY_FIXED);
        assert_int_equal(also, rule == MF_KEY_FIXED);
    }
}

static void every_key_of_keras_is_known(void **state)
{
    (void)state;
    mf_arena arena;
    mf_mapping map;
    mf_arena_init(&arena, NULL);
    const mf_json *root = keras_says(&arena, &map);
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        uint32_t count = 0;
        for (const mf_json *class = mf_json_get(root, parts[p].name)->first; class; class = class->next, count++)
            check_class(parts[p].part, class);
        assert_true(count >= parts[p].least);
    }
    mf_os_unmap_file(&map);
    mf_arena_destroy(&arena);
}

/* Every class with a rule has a row of keys; keys that are not in it are refused unless they say nothing. */
static void every_rule_has_its_keys(void **state)
{
    (void)state;
    uint32_t count;
    const mf_class_row *rows = mf_class_table(&count);
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].rule && !mf_keys_known(MF_KEYS_LAYER, rows[i].name))
            fail_msg("%s has a rule and no keys", rows[i].name);
    mf_json number = {.type = MF_JSON_NUMBER, .number = 2}, nothing = {.type = MF_JSON_NULL};
    mf_json off = {.type = MF_JSON_BOOL}, on = {.type = MF_JSON_BOOL, .boolean = true}, none = {.type = MF_JSON_ARRAY};
    assert_non_null(dropped_alone(MF_KEYS_LAYER, "Dense", "of_tomorrow", number));
    assert_non_null(dropped_alone(MF_KEYS_LAYER, "Dense", "of_tomorrow", on));
    assert_null(dropped_alone(MF_KEYS_LAYER, "Dense", "of_tomorrow", nothing));
    assert_null(dropped_alone(MF_KEYS_LAYER, "Dense", "of_tomorrow", off));
    assert_null(dropped_alone(MF_KEYS_LAYER, "Dense", "of_tomorrow", none));
    assert_null(mf_dropped_key(MF_KEYS_LAYER, "Dense", NULL));
}

/* A model with this layer and these settings is refused, and the message has these words. */
static void refuses(const char *layers, const char *compile, const char *word, const char *other)
{
    char *text = sequential_text(layers, compile);
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *graph = NULL;
    memfit_error err;
    assert_int_equal(mf_lower(NULL, model, &options, &graph, &err), MEMFIT_UNSUPPORTED);
    if (!strstr(err.message, word) || !strstr(err.message, other))
        fail_msg("'%s' does not name %s and %s", err.message, word, other);
    mf_model_destroy(model);
    free(text);
}

#define DENSE INPUT("4") "," LAYER("Dense", "d", ",\"units\":3")

static void models_are_refused_by_name(void **state)
{
    (void)state;
    refuses(INPUT("4") "," LAYER("Dense", "d", ",\"units\":3,\"of_tomorrow\":2"), NULL, "'d' (Dense)",
            "of_tomorrow = 2");
    refuses(INPUT("4") "," LAYER("BatchNormalization", "norm", ",\"renorm\":true"), NULL, "'norm'", "renorm = true");
    refuses(INPUT("4,4,3") "," LAYER("Resizing", "r", ",\"height\":2,\"width\":2,\"antialias\":true"), NULL, "'r'",
            "antialias = true");
    refuses(INPUT("5,4") "," LAYER("TimeDistributed", "t",
                                   ",\"layer\":{\"module\":\"keras.layers\",\"class_name\":\"Dense\",\"config\":{"
                                   "\"name\":\"inner\",\"units\":2,\"quantization_config\":{\"bits\":4}}}"),
            NULL, "'t'", "quantization_config");
    refuses(DENSE, "{\"loss\":{\"class_name\":\"MeanSquaredError\",\"config\":{\"reduction\":\"none\"}}}",
            "loss 'MeanSquaredError'", "reduction = \"none\"");
    refuses(DENSE, "{\"loss\":{\"class_name\":\"CategoricalCrossentropy\",\"config\":{\"axis\":1}}}", "loss",
            "axis = 1");
    refuses(DENSE, "{\"loss\":\"mse\",\"optimizer\":{\"class_name\":\"SGD\",\"config\":{\"decay\":0.1}}}",
            "optimizer 'SGD'", "decay = 0.1");
}

/* A metric that cannot be computed as asked is left out by name, as unknown ones are: it costs no memory. */
static void metrics_are_left_out_by_name(void **state)
{
    (void)state;
    char *text = sequential_text(DENSE, "{\"loss\":\"mse\",\"optimizer\":\"sgd\",\"metrics\":[\"mae\","
                                        "{\"class_name\":\"AUC\",\"config\":{\"curve\":\"PR\"}},"
                                        "{\"class_name\":\"Precision\",\"config\":{\"thresholds\":[0.2,0.8]}},"
                                        "{\"class_name\":\"Recall\",\"config\":{\"thresholds\":[0.3]}}]}");
    mf_model *model = model_from_text(text);
    mf_lower_options options = lower_options(MF_MODE_TRAIN, 2);
    mf_graph *graph = lower_ok(model, &options);
    assert_string_equal(graph->ignored_metrics, "AUC (curve = \"PR\"), Precision (thresholds = [...])");
    uint32_t metrics = 0;
    for (uint32_t i = 0; i < graph->variable_count; i++)
        if (graph->variables[i].role == MF_VAR_METRIC) {
            metrics++;
            if (graph->variables[i].metric.function == MF_METRIC_RECALL)
                assert_true(graph->variables[i].metric.threshold == 0.3);
        }
    assert_int_equal(metrics, 2);
    mf_graph_destroy(graph);
    mf_model_destroy(model);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_keras_is_known),
        cmocka_unit_test(every_rule_has_its_keys),
        cmocka_unit_test(models_are_refused_by_name),
        cmocka_unit_test(metrics_are_left_out_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
