/* test_keras.c: reading Keras files as people saved them. */
#include "test.h"

#include "base/os.h"
#include "base/text.h"
#include "file/hdf5_write.h"
#include "file/zip.h"
#include "model/model.h"

#include <math.h>

/* Parameters stored for a model and what it nests. */
static uint64_t stored_parameters(const mf_model *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const mf_layer *l = &m->layers[i];
        for (uint32_t s = 0; s < l->stored_count; s++) {
            assert_int_equal(l->stored[s].bytes,
                             mf_shape_count(&l->stored[s].shape) * mf_dtype_bytes(l->stored[s].dtype));
            n += mf_shape_count(&l->stored[s].shape);
        }
        n += l->inner ? stored_parameters(l->inner) : 0;
    }
    return n;
}

/* File, then how many layers, parameters and optimizer arrays Keras has for it. */
static const struct {
    const char *file;
    uint32_t layers;
    uint64_t parameters;
    uint32_t optimizer;
    memfit_status status;
    const char *says;
} samples[] = {
    {"00VALAK00__fastapi-docker-tensorflow__model.keras", 8, 13089, 17, MEMFIT_OK, ""},
    {"123Cryptic__diabetes_detection__model.keras", 8, 9729, 21, MEMFIT_OK, ""},
    {"14shreyas04__Phishing-URL-Detection__model.keras", 8, 62326, 16, MEMFIT_OK, ""},
    {"2024-AI-EXPO__AI-testv_1__model_v1_16.keras", 6, 44229, 16, MEMFIT_OK, ""},
    {"2mdtln__FlowNet-ANN__final_model.keras", 8, 10786, 18, MEMFIT_OK, ""},
    {"404error-010__ANN-Churn-Classification__model.keras", 4, 2945, 14, MEMFIT_OK, ""},
    {"57cell__nlf-classifier__best_model.keras", 7, 76545, 13, MEMFIT_OK, ""},
    {"98mprice__mario-level-generator__model.keras", 4, 80791, 5, MEMFIT_OK, ""},
    {"ALbaghdadi__Eye_State_detection__model.keras", 12, 102465, 33, MEMFIT_OK, ""},
    {"Abinash7G__SentimentAnalysis__best_model.keras", 6, 94154, 18, MEMFIT_OK, ""},
    {"Aditya1026-05__Crypto-Currency-Price-Predictor-LSTM__model.keras", 5, 117619, 22, MEMFIT_OK, ""},
    {"Adityasenthil__SudokuCVEngine__model.keras", 9, 93322, 22, MEMFIT_OK, ""},
    {"AkshatP0285__NLP_Assignment_2__best_model.keras", 8, 468825, 26, MEMFIT_OK, ""},
    {"Alberto-Del-Puerto__DNN-Based-Classification-EEG__finally_model_without_audio00.keras", 10, 174337, 26, MEMFIT_OK,
     ""},
    {"Alex-Elias__hit-song__model.keras", 4, 751, 13, MEMFIT_OK, ""},
    {"Alexanderms36__HumanGlaucoma__model.keras", 4, 417, 13, MEMFIT_OK, ""},
    {"AlgoDM-Fall2023-Team2__Visual-Search-Using-Variational-Autoencoders__model.keras", 0, 0, 0, MEMFIT_UNSUPPORTED,
     "VAE"},
    {"Aman-21k__cnn-fashion-mnist-classifier__model.keras", 9, 121930, 18, MEMFIT_OK, ""},
    {"Ashutosh27ind__ner-lstm-iob2__model.keras", 6, 207267, 20, MEMFIT_OK, ""},
    {"Azahramirez__prediccionconTransformers__transformer.keras", 23, 1317, 38, MEMFIT_OK, ""},
    {"Bigkatoan__Medical-MNIST-Kaggle__model.keras", 10, 121974, 21, MEMFIT_OK, ""},
    {"Ollie-Gullery__Real-Time-Audio-Classification__model.keras", 13, 25921, 33, MEMFIT_OK, ""},
    {"PiotrexOG__ECG__model.keras", 18, 79857, 90, MEMFIT_OK, ""},
    {"Requiem5032__mosquitoes-classification__deploy_model.keras", 17, 38082, 29, MEMFIT_OK, ""},
    {"keras-team__keras__pre_pr22362_nested_container.keras", 0, 0, 0, MEMFIT_UNSUPPORTED, "NestedDenseModel"},
};

static void real_files_read_as_keras_reads_them(void **state)
{
    (void)state;
    if (!test_shared_data())
        skip();
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/keras/%s", test_shared_data(), samples[i].file);
        mf_model *m = NULL;
        memfit_error err;
        memfit_status st = mf_model_load_flags(NULL, path, MF_LOAD_VERIFY, &m, &err);
        if (st != samples[i].status)
            fail_msg("%s: %s", path, st ? err.message : "read, yet it should not be");
        if (st) {
            assert_non_null(strstr(err.message, samples[i].says));
            assert_true(err.hint[0]);
            continue;
        }
        if (stored_parameters(m) != samples[i].parameters || m->layer_count != samples[i].layers)
            fail_msg("%s: %llu parameters, %u layers", path, (unsigned long long)stored_parameters(m), m->layer_count);
        assert_int_equal(m->optimizer_count, samples[i].optimizer);
        assert_int_equal(m->unclaimed_count, 0);
        assert_non_null(m->compile);
        mf_model_destroy(m);
    }
}

static const char *fixture(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/tests/fixtures/%s", getenv("MEMFIT_SOURCE") ? getenv("MEMFIT_SOURCE") : ".", name);
    return path;
}

static double element(const mf_stored *s, uint64_t i)
{
    const unsigned char *p = (const unsigned char *)s->data + i * mf_dtype_bytes(s->dtype);
    if (s->dtype == MF_F32) {
        float f;
        memcpy(&f, p, 4);
        return (double)f;
    }
    if (s->dtype == MF_BF16) {
        uint32_t bits = (uint32_t)(p[0] | p[1] << 8) << 16;
        float f;
        memcpy(&f, &bits, 4);
        return (double)f;
    }
    if (s->dtype == MF_F16) {
        unsigned bits = (unsigned)(p[0] | p[1] << 8), e = bits >> 10 & 31;
        double m = e ? 1024 + (bits & 1023) : (bits & 1023);
        return (bits >> 15 ? -1 : 1) * ldexp(m, (e ? (int)e : 1) - 25);
    }
    return 0;
}

static double stored_sum(const mf_model *m)
{
    double sum = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        for (uint32_t s = 0; s < m->layers[i].stored_count; s++)
            for (uint64_t e = 0; e < mf_shape_count(&m->layers[i].stored[s].shape); e++)
                sum += element(&m->layers[i].stored[s], e);
        sum += m->layers[i].inner ? stored_sum(m->layers[i].inner) : 0;
    }
    return sum;
}

/* Layers as Keras lists them: operations are no layers, and a Sequential hides its InputLayer. */
static const mf_layer *nth_layer(const mf_model *m, size_t n)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const mf_layer *l = &m->layers[i];
        if (l->is_operation || (strcmp(m->class_name, "Sequential") == 0 && strcmp(l->class_name, "InputLayer") == 0))
            continue;
        if (n-- == 0)
            return l;
    }
    return NULL;
}

static void compare_layers(const mf_model *m, const mf_json *expected, bool with_weights)
{
    size_t n = 0;
    const mf_json *layers = mf_json_get(expected, "layers");
    for (const mf_json *want = layers->first; want; want = want->next, n++) {
        const mf_layer *l = nth_layer(m, n);
        assert_non_null(l);
        assert_string_equal(l->name, mf_json_string(mf_json_at(want, 0), ""));
        assert_string_equal(l->class_name, mf_json_string(mf_json_at(want, 1), ""));
        if (with_weights) {
            mf_layer copy = *l;
            mf_model one = {.layers = &copy, .layer_count = 1};
            assert_int_equal(stored_parameters(&one), mf_json_integer(mf_json_at(want, 3), -1));
        }
    }
    assert_null(nth_layer(m, n));
}

static mf_json *read_json(mf_arena *arena, mf_mapping *map, const char *path)
{
    mf_json *root = NULL;
    memfit_error err;
    assert_ok(mf_os_map_file(path, map, &err), err);
    assert_ok(mf_json_parse(arena, (const char *)map->data, map->bytes, &root, &err), err);
    return root;
}

static void fixtures_match_what_keras_says(void **state)
{
    (void)state;
    mf_arena arena;
    mf_mapping map;
    mf_arena_init(&arena, NULL);
    const mf_json *all = read_json(&arena, &map, fixture("keras/expected.json"));
    for (const mf_json *want = all->first; want; want = want->next) {
        char name[256];
        snprintf(name, sizeof name, "keras/%s", want->key);
        mf_model *m;
        memfit_error err;
        assert_ok(mf_model_load_flags(NULL, fixture(name), MF_LOAD_VERIFY, &m, &err), err);
        assert_string_equal(m->class_name, mf_json_get_string(want, "class", ""));
        assert_string_equal(m->name, mf_json_get_string(want, "name", ""));
        assert_string_equal(m->keras_version, "3.15.1");
        assert_int_equal(stored_parameters(m), mf_json_get_integer(want, "parameters", -1));
        assert_int_equal(m->unclaimed_count, 0);
        compare_layers(m, want, true);
        double sum = 0;
        const mf_json *weights = mf_json_get(want, "weights");
        for (const mf_json *w = weights->first; w; w = w->next)
            sum += mf_json_number(mf_json_at(w, 2), NAN);
        assert_true(fabs(stored_sum(m) - sum) < 1e-4);
        if (m->optimizer_count)
            assert_int_equal(m->outer_optimizer ? m->outer_optimizer_count : m->optimizer_count,
                             mf_json_get_integer(want, "optimizer_variables", -1));
        mf_model_destroy(m);
    }
    mf_os_unmap_file(&map);
    mf_arena_destroy(&arena);
}

static mf_model *load_fixture(const char *name)
{
    mf_model *m = NULL;
    memfit_error err;
    assert_ok(mf_model_load(NULL, fixture(name), &m, &err), err);
    return m;
}

static void code_in_files_is_marked_not_run(void **state)
{
    (void)state;
    mf_model *m = load_fixture("keras/lambda_layer.keras");
    assert_string_equal(m->layers[2].class_name, "Lambda");
    assert_non_null(strstr(m->layers[2].unsupported, "Python code"));
    assert_null(m->layers[1].unsupported);
    assert_int_equal(m->layers[3].stored_count, 2);
    mf_model_destroy(m);
    m = load_fixture("keras/custom_layer.keras");
    assert_non_null(strstr(m->layers[2].unsupported, "mine>Doubling"));
    assert_int_equal(m->layers[2].stored_count, 1);
    mf_model_destroy(m);
}

static void calls_are_resolved(void **state)
{
    (void)state;
    mf_model *m = load_fixture("keras/functional_shared.keras");
    assert_int_equal(m->input_count, 2);
    assert_int_equal(m->output_count, 2);
    const mf_layer *shared = NULL, *times = NULL;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        if (strcmp(m->layers[i].name, "shared") == 0)
            shared = &m->layers[i];
        if (strcmp(m->layers[i].class_name, "Multiply") == 0)
            times = &m->layers[i];
    }
    assert_int_equal(shared->call_count, 2);
    assert_int_not_equal(shared->calls[0].args[0].layer, shared->calls[1].args[0].layer);
    assert_true(times->is_operation);
    assert_int_equal(times->calls[0].arg_count, 2);
    assert_int_equal(times->calls[0].args[1].layer, MF_NONE);
    assert_true(mf_json_number(times->calls[0].args[1].constant, 0) == 2.0);
    mf_model_destroy(m);

    m = load_fixture("keras/nested_output.keras");
    assert_int_equal(m->output_count, 2);
    assert_int_equal(m->outputs[0].call, 0);
    assert_int_equal(m->outputs[1].call, 1);
    mf_model_destroy(m);
}

/* Under mixed_float16 the optimizer is wrapped; its own arrays still come first. */
static void wrapped_optimizers_are_unwrapped(void **state)
{
    (void)state;
    mf_model *m = load_fixture("keras/mixed.keras");
    assert_string_equal(m->dtype_policy, "mixed_float16");
    assert_int_equal(m->outer_optimizer_count, 14);
    assert_int_equal(m->optimizer_count, 10);
    assert_int_equal(*(const unsigned char *)m->optimizer[0].data, 4); /* iterations */
    assert_int_equal(m->optimizer[2].shape.rank, 2);
    mf_model_destroy(m);
}

static void unknown_shapes_stay_unknown(void **state)
{
    (void)state;
    mf_model *m = load_fixture("keras/dense_unbuilt.keras");
    assert_string_equal(m->layers[0].class_name, "InputLayer");
    assert_null(mf_json_get(m->layers[0].config, "batch_shape"));
    mf_model_destroy(m);
}

/* Keras 2's way to write calls, with constants, keywords and a nested model counted from 1. */
static const char old_functional[] =
    "{\"class_name\": \"Functional\", \"keras_version\": \"2.11.0\", \"config\": {\"name\": \"m\", \"layers\": ["
    "{\"class_name\": \"InputLayer\", \"config\": {\"batch_input_shape\": [null, 4], \"name\": \"in\"}, \"name\": "
    "\"in\", "
    "\"inbound_nodes\": []},"
    "{\"class_name\": \"Functional\", \"name\": \"inner\", \"config\": {\"name\": \"inner\", \"trainable\": true, "
    "\"layers\": ["
    "{\"class_name\": \"InputLayer\", \"config\": {\"batch_input_shape\": [null, 4], \"name\": \"x\"}, \"name\": "
    "\"x\", "
    "\"inbound_nodes\": []},"
    "{\"class_name\": \"Dense\", \"config\": {\"name\": \"d\", \"trainable\": false, \"units\": 4}, \"name\": \"d\", "
    "\"inbound_nodes\": [[[\"x\", 0, 0, {}]]]}], \"input_layers\": [[\"x\", 0, 0]], \"output_layers\": [[\"d\", 0, "
    "0]]}, "
    "\"inbound_nodes\": [[[\"in\", 0, 0, {}]]]},"
    "{\"class_name\": \"TFOpLambda\", \"config\": {\"name\": \"tf.math.multiply\", \"trainable\": true, \"function\": "
    "\"math.multiply\"}, \"name\": \"mul\", \"inbound_nodes\": [[\"inner\", 1, 0, {\"y\": 3.5}]]},"
    "{\"class_name\": \"Add\", \"config\": {\"name\": \"add\", \"trainable\": true}, \"name\": \"add\", "
    "\"inbound_nodes\": "
    "[[[\"mul\", 0, 0, {}], [\"in\", 0, 0, {\"mask\": [\"inner\", 1, 0]}]]]}],"
    "\"input_layers\": [\"in\", 0, 0], \"output_layers\": [[\"inner\", 1, 0], [\"add\", 0, 0]]}}";

static void old_calls_are_read(void **state)
{
    (void)state;
    mf_model *m;
    memfit_error err;
    assert_ok(mf_model_load_bytes(NULL, old_functional, sizeof old_functional - 1, 0, &m, &err), err);
    assert_int_equal(m->layer_count, 4);
    assert_false(m->layers[1].inner->layers[1].trainable);
    const mf_call *mul = m->layers[2].calls, *add = m->layers[3].calls;
    assert_int_equal(mul->args[0].layer, 1);
    assert_int_equal(mul->args[0].call, 0);
    assert_string_equal(mul->args[1].name, "y");
    assert_true(mf_json_number(mul->args[1].constant, 0) == 3.5);
    assert_int_equal(add->arg_count, 3);
    assert_int_equal(add->args[0].list, 2);
    assert_string_equal(add->args[2].name, "mask");
    assert_int_equal(add->args[2].layer, 1);
    assert_int_equal(m->input_count, 1);
    assert_int_equal(m->outputs[0].call, 0);
    mf_model_destroy(m);
}

/* Wrappers around wrappers make a weight's path long: it is refused where no path could be, and never overruns. */
static void wrappers_without_end_are_refused(void **state)
{
    (void)state;
    enum { LEVELS = 20 };
    static char config[16384];
    mf_text text;
    mf_text_init(&text, config, sizeof config);
    mf_text_add(&text, "{\"class_name\": \"Sequential\", \"config\": {\"name\": \"s\", \"layers\": [");
    for (int i = 0; i < LEVELS; i++)
        mf_text_add(
            &text,
            "{\"class_name\": \"Bidirectional\", \"config\": {\"name\": \"b%d\", \"trainable\": true, \"layer\": ", i);
    mf_text_add(&text, "{\"class_name\": \"LSTM\", \"config\": {\"name\": \"l\", \"units\": 2}}");
    for (int i = 0; i < LEVELS; i++)
        mf_text_add(&text, "}}");
    mf_text_add(&text, "]}}");
    assert_true(text.length < sizeof config);

    mf_arena arena;
    mf_h5_writer w;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    mf_h5_begin(&w, &arena);
    static const float value = 1;
    const mf_shape shape = {.rank = 1, .dim = {1}};
    static const char *const weights[] = {"kernel:0"}, *const layers[] = {"b0"};
    mf_h5_text(&w, w.root, "model_config", config);
    mf_h5_node *group = mf_h5_group(&w, w.root, "model_weights");
    mf_h5_texts(&w, group, "layer_names", layers, 1);
    mf_h5_node *layer = mf_h5_group(&w, group, "b0");
    mf_h5_texts(&w, layer, "weight_names", weights, 1);
    mf_h5_array(&w, layer, "kernel:0", MF_F32, &shape, &value);
    mf_image image = {.arena = &arena};
    assert_ok(mf_h5_layout(&w, &image, &err), err);
    unsigned char *file = malloc(image.bytes), *p = file;
    for (size_t i = 0; i < image.count; p += image.segments[i++].bytes)
        memcpy(p, image.segments[i].data, image.segments[i].bytes);

    mf_model *m;
    assert_int_equal(mf_model_load_bytes(NULL, file, image.bytes, 0, &m, &err), MEMFIT_DAMAGED);
    assert_non_null(strstr(err.message, "layer b0 is wrapped too many times"));
    free(file);
    mf_arena_destroy(&arena);
}

/* What people hand in by mistake, and what they are told. */
static void junk_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        memfit_status status;
        const char *says;
    } cases[] = {
        {"", MEMFIT_DAMAGED, "empty"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", MEMFIT_DAMAGED, "Git LFS"},
        {"<!DOCTYPE html><html></html>", MEMFIT_DAMAGED, "web page"},
        {"PK\3\4 and no more of the archive", MEMFIT_DAMAGED, "cut short"},
        {"\211HDF\r\n\032\n", MEMFIT_DAMAGED, "superblock"},
        {"{\"class_name\": \"Sequential\"", MEMFIT_DAMAGED, "line 1"},
        {"{}", MEMFIT_DAMAGED, "names no class"},
        {"{\"class_name\": \"Sequential\", \"config\": {\"layers\": []}}", MEMFIT_DAMAGED, "no layers"},
        {"{\"class_name\": \"Functional\", \"config\": {\"layers\": [{\"class_name\": \"Dense\", \"name\": \"d\", "
         "\"inbound_nodes\": [[[\"ghost\", 0, 0, {}]]]}]}}",
         MEMFIT_DAMAGED, "ghost"},
        {"{\"class_name\": \"Mine\", \"module\": null, \"registered_name\": \"me>Mine\", \"config\": {}}",
         MEMFIT_UNSUPPORTED, "me>Mine"},
        {"\x01\x02\x03\x04", MEMFIT_DAMAGED, "01 02 03 04"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf_model *m = NULL;
        memfit_error err;
        assert_int_equal(mf_model_load_bytes(NULL, cases[i].text, strlen(cases[i].text), 0, &m, &err), cases[i].status);
        assert_null(m);
        if (!strstr(err.message, cases[i].says))
            fail_msg("case %zu: %s", i, err.message);
    }
}

/* Every cut and many flipped bits of every fixture: an answer, never a crash, and no memory left behind. */
static void damage_is_survived(void **state)
{
    (void)state;
    static const char *const files[] = {"keras/dense_adam.keras", "keras/dense_adam.h5", "keras/nested.keras",
                                        "keras/bfloat.keras"};
    uint64_t random = 88172645463325252ull;
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        mf_mapping map;
        memfit_error err;
        assert_ok(mf_os_map_file(fixture(files[f]), &map, &err), err);
        unsigned char *copy = malloc(map.bytes);
        for (unsigned round = 0; round < 600; round++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            memcpy(copy, map.data, map.bytes);
            uint64_t bytes = map.bytes;
            if (round & 1)
                bytes = random % map.bytes;
            else
                copy[random % map.bytes] ^= (unsigned char)(1u << (random >> 60 & 7));
            mf_fault_host host;
            mf_fault_host_init(&host, NULL, 0, false);
            mf_model *m = NULL;
            memfit_status st = mf_model_load_bytes(&host.host, copy, bytes, MF_LOAD_VERIFY, &m, &err);
            if (st) {
                assert_true(err.message[0]);
                assert_true(st == MEMFIT_DAMAGED || st == MEMFIT_UNSUPPORTED);
            }
            mf_model_destroy(m);
            assert_int_equal(host.live_count, 0);
            assert_int_equal(host.live_bytes, 0);
        }
        free(copy);
        mf_os_unmap_file(&map);
    }
}

/* A host that counts what is out and refuses more than `most`: a damaged size must not become an allocation. */
typedef struct capped {
    memfit_host host;
    uint64_t live, most;
} capped;

static void *capped_resize(void *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    capped *c = ctx;
    if (new_bytes > old_bytes && c->live + (new_bytes - old_bytes) > c->most)
        return NULL;
    if (!new_bytes) {
        mf_host_free(NULL, ptr, old_bytes);
        c->live -= old_bytes;
        return NULL;
    }
    void *out = mf_host_resize(NULL, ptr, old_bytes, new_bytes);
    if (out)
        c->live += new_bytes - old_bytes;
    return out;
}

/* Is the byte one that a check sum covers: inside a member that is read (config, settings, weights)? */
static bool is_covered(const mf_mapping *map, uint64_t at)
{
    mf_zip zip;
    mf_arena arena;
    bool covered = false;
    mf_arena_init(&arena, NULL);
    if (mf_zip_open(&zip, &arena, map->data, map->bytes, NULL) == MEMFIT_OK)
        for (size_t i = 0; i < zip.count; i++)
            covered |= at >= zip.members[i].data_at && at - zip.members[i].data_at < zip.members[i].packed_bytes &&
                       (strcmp(zip.members[i].name, "config.json") == 0 ||
                        strcmp(zip.members[i].name, "model.weights.h5") == 0);
    mf_arena_destroy(&arena);
    return covered;
}

/* The same for the real files: cut anywhere, and with a bit flipped anywhere. A cut is always noticed; a bit always
 * where a check sum covers it, which HDF5 files without an archive around them do not have. */
static void damaged_real_files_are_survived(void **state)
{
    (void)state;
    uint64_t random = 1234567890123456789ull;
    if (!test_shared_data())
        skip();
    for (size_t f = 0; f < sizeof samples / sizeof *samples; f++) {
        char path[1024];
        mf_mapping map;
        memfit_error err;
        snprintf(path, sizeof path, "%s/keras/%s", test_shared_data(), samples[f].file);
        assert_ok(mf_os_map_file(path, &map, &err), err);
        unsigned char *copy = malloc(map.bytes);
        memcpy(copy, map.data, map.bytes);
        const char *many = getenv("MEMFIT_DAMAGE_ROUNDS");
        for (unsigned round = 0; round < (many ? (unsigned)atoi(many) : 30u); round++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            uint64_t at = random % map.bytes;
            unsigned char bit = (unsigned char)(1u << (random >> 60 & 7));
            mf_model *m = NULL;
            if (round & 1) { /* a cut is always noticed */
                assert_true(mf_model_load_bytes(NULL, copy, at, MF_LOAD_VERIFY, &m, &err) != MEMFIT_OK);
                assert_true(err.code == MEMFIT_DAMAGED && err.message[0]);
                continue;
            }
            copy[at] ^= bit;
            capped host = {.most = 4 * map.bytes + (16u << 20)};
            host.host = (memfit_host){capped_resize, &host};
            memfit_status st = mf_model_load_bytes(&host.host, copy, map.bytes, MF_LOAD_VERIFY, &m, &err);
            if (st != MEMFIT_OK)
                assert_true((err.code == MEMFIT_DAMAGED || err.code == MEMFIT_UNSUPPORTED) && err.message[0]);
            if (samples[f].status == MEMFIT_OK && is_covered(&map, at) &&
                (st == MEMFIT_OK || err.code != MEMFIT_DAMAGED))
                fail_msg("%s: bit %u of byte %llu is not noticed", samples[f].file, bit, (unsigned long long)at);
            mf_model_destroy(m);
            assert_int_equal(host.live, 0);
            copy[at] ^= bit;
        }
        free(copy);
        mf_os_unmap_file(&map);
    }
}

static void every_lack_of_memory_is_survived(void **state)
{
    (void)state;
    static const char *const files[] = {"keras/attention.keras", "keras/recurrent.h5"};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++)
        for (unsigned once = 0; once < 2; once++)
            for (uint64_t n = 1;; n++) {
                mf_fault_host host;
                mf_fault_host_init(&host, NULL, n, !once);
                mf_model *m = NULL;
                memfit_error err;
                memfit_status st = mf_model_load(&host.host, fixture(files[f]), &m, &err);
                mf_model_destroy(m);
                assert_int_equal(host.live_count, 0);
                if (!st)
                    break;
                assert_int_equal(st, MEMFIT_NO_HOST_MEMORY);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_files_read_as_keras_reads_them),
        cmocka_unit_test(fixtures_match_what_keras_says),
        cmocka_unit_test(code_in_files_is_marked_not_run),
        cmocka_unit_test(calls_are_resolved),
        cmocka_unit_test(unknown_shapes_stay_unknown),
        cmocka_unit_test(wrapped_optimizers_are_unwrapped),
        cmocka_unit_test(old_calls_are_read),
        cmocka_unit_test(wrappers_without_end_are_refused),
        cmocka_unit_test(junk_is_named),
        cmocka_unit_test(damage_is_survived),
        cmocka_unit_test(damaged_real_files_are_survived),
        cmocka_unit_test(every_lack_of_memory_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
