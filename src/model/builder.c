/*
 * builder.c: the public model object: files, looking, and the C builder.
 *
 * The builder makes the same JSON that Keras writes, {class_name: Sequential, config: {layers: [...]}, compile_config},
 * and reads it back with the reader: one way in, so a built model behaves in every respect like one from a file. Layer
 * names are Keras's: dense, dense_1, ... First weights come from the lowered graph, which knows every class's
 * variables.
 */
#include "model/builder.h"

#include "base/abi.h"
#include "base/error.h"
#include "graph/passes/optimizer.h"
#include "model/initialize.h"
#include "model/keras/keras_inner.h"
#include "model/lower/lower.h"
#include "model/keras/keras_save.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct memfit_model {
    const memfit_host *host;
    mf_model *model; /* read, or built and finished */
    /* building */
    mf_arena arena;
    mf_json *layers;
    mf_json *compile;
    const char *name;
    char *text; /* the finished configuration */
    uint64_t seed;
    memfit_error first; /* the first failure; code OK while there is none */
};

/* ---- files and looking ------------------------------------------------------------------------------------ */

static memfit_model *new_object(const memfit_host *host)
{
    memfit_model *m = mf_host_zalloc(host, sizeof *m);
    if (m) {
        m->host = host;
        mf_arena_init(&m->arena, host);
    }
    return m;
}

memfit_status memfit_model_load(const memfit_host *host, const char *path, memfit_model **model, memfit_error *err)
{
    memfit_model *m = new_object(host);
    if (!m)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a model");
    memfit_status st = mf_model_load_flags(host, path, MF_LOAD_VERIFY, &m->model, err);
    if (st) {
        memfit_model_destroy(m);
        return st;
    }
    *model = m;
    return MEMFIT_OK;
}

void memfit_model_destroy(memfit_model *m)
{
    if (!m)
        return;
    mf_model_destroy(m->model);
    mf_arena_destroy(&m->arena);
    mf_host_free(m->host, m, sizeof *m);
}

memfit_status memfit_model_save(memfit_model *model, const char *path, memfit_error *err)
{
    mf_model *m = mf_model_of(model, err);
    return m ? mf_model_save(model->host, m, NULL, path, err) : model->first.code;
}

const char *memfit_model_name(memfit_model *model)
{
    mf_model *m = mf_model_of(model, NULL);
    return m ? m->name : "";
}

uint32_t memfit_model_layer_count(memfit_model *model)
{
    mf_model *m = mf_model_of(model, NULL);
    return m ? m->layer_count : 0;
}

static uint64_t layer_parameters(const mf_layer *l)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->stored_count; i++)
        n += mf_shape_count(&l->stored[i].shape);
    for (uint32_t i = 0; l->inner && i < l->inner->layer_count; i++)
        n += layer_parameters(&l->inner->layers[i]);
    return n;
}

uint64_t memfit_model_stored_parameters(memfit_model *model)
{
    mf_model *m = mf_model_of(model, NULL);
    uint64_t n = 0;
    for (uint32_t i = 0; m && i < m->layer_count; i++)
        n += layer_parameters(&m->layers[i]);
    return n;
}

const char *memfit_model_keras_version(memfit_model *model)
{
    mf_model *m = mf_model_of(model, NULL);
    return m && m->keras_version ? m->keras_version : "";
}

memfit_status memfit_model_layer(memfit_model *model, uint32_t index, memfit_layer_info *info, memfit_error *err)
{
    mf_model *m = mf_model_of(model, err);
    if (!m)
        return model->first.code;
    if (index >= m->layer_count)
        return mf_fail(err, MEMFIT_INVALID, "layer %u of a model with %u layers", index, m->layer_count);
    memfit_status status = mf_abi_check(info, "MEMFIT_LAYER_INFO", err);
    if (status)
        return status;
    const mf_layer *l = &m->layers[index];
    memfit_layer_info out = {.name = l->name,
                             .class_name = l->class_name,
                             .trainable = l->trainable,
                             .stored_parameters = layer_parameters(l),
                             .unsupported = l->unsupported};
    mf_abi_write(info, &out, sizeof out);
    return MEMFIT_OK;
}

/* ---- building --------------------------------------------------------------------------------------------- */

memfit_status memfit_model_create_sequential(const memfit_host *host, const char *name, memfit_model **model,
                                             memfit_error *err)
{
    memfit_model *m = new_object(host);
    if (m) {
        m->layers = mf_json_new(&m->arena, MF_JSON_ARRAY);
        m->name = mf_arena_strdup(&m->arena, name ? name : "sequential");
    }
    if (!m || !m->layers || !m->name) {
        memfit_model_destroy(m);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a model");
    }
    *model = m;
    return MEMFIT_OK;
}

/* Remembers the first failure. */
static memfit_status keep_failure(memfit_model *m, memfit_status status, const char *format, ...) MEMFIT_PRINTF(3, 4);
static memfit_status keep_failure(memfit_model *m, memfit_status status, const char *format, ...)
{
    if (m->model)
        return MEMFIT_MISUSE;
    if (m->first.code)
        return m->first.code;
    va_list args;
    va_start(args, format);
    mf_vfail(&m->first, status, format, args);
    va_end(args);
    return status;
}

/* How many layers of that class there are: the suffix of the next one's name. */
static unsigned count_class(const memfit_model *m, const char *class_name)
{
    unsigned n = 0;
    for (const mf_json *l = m->layers->first; l; l = l->next)
        n += strcmp(mf_json_get_string(l, "class_name", ""), class_name) == 0;
    return n;
}

static bool put_text(mf_arena *a, mf_json *o, const char *key, const char *text)
{
    return mf_json_add(a, o, key, text ? mf_json_new_string(a, text) : mf_json_new(a, MF_JSON_NULL));
}

/* Appends {module, class_name, config, registered_name: null}; config gets a name, trainable and dtype. */
static memfit_status append_layer(memfit_model *m, const char *class_name, mf_json *config)
{
    mf_arena *a = &m->arena;
    char base[128], name[160];
    if (!mf_keras_snake_case(class_name, base, sizeof base))
        return keep_failure(m, MEMFIT_INVALID, "a class name of %zu characters", strlen(class_name));
    unsigned n = count_class(m, class_name);
    if (strcmp(class_name, "InputLayer") == 0)
        snprintf(name, sizeof name, "input_layer");
    else if (n)
        snprintf(name, sizeof name, "%s_%u", base, n);
    else
        snprintf(name, sizeof name, "%s", base);
    mf_json *layer = mf_json_new(a, MF_JSON_OBJECT);
    bool ok = config && layer;
    if (ok && !mf_json_get(config, "name"))
        ok = put_text(a, config, "name", name);
    if (ok && strcmp(class_name, "InputLayer") != 0 && !mf_json_get(config, "trainable"))
        ok = mf_json_add(a, config, "trainable", mf_json_new_bool(a, true));
    if (ok && !mf_json_get(config, "dtype"))
        ok = put_text(a, config, "dtype", "float32");
    ok = ok && put_text(a, layer, "module", "keras.layers") && put_text(a, layer, "class_name", class_name) &&
         mf_json_add(a, layer, "config", config) && put_text(a, layer, "registered_name", NULL) &&
         mf_json_add(a, m->layers, NULL, layer);
    return ok ? MEMFIT_OK : keep_failure(m, MEMFIT_NO_HOST_MEMORY, "no memory for a layer");
}

static bool may_add(memfit_model *m, const char *class_name)
{
    if (m->first.code)
        return false;
    if (!m->layers->count && strcmp(class_name, "InputLayer") != 0)
        keep_failure(m, MEMFIT_MISUSE, "%s: the first layer must be the input", class_name);
    return !m->first.code;
}

memfit_status memfit_model_add_layer(memfit_model *m, const char *class_name, const char *config_json)
{
    memfit_error err;
    mf_json *config;
    if (m->model) /* finished, or read from a file: nothing changes */
        return MEMFIT_MISUSE;
    if (!may_add(m, class_name))
        return m->first.code;
    if (mf_json_parse(&m->arena, config_json ? config_json : "{}", strlen(config_json ? config_json : "{}"), &config,
                      &err))
        return keep_failure(m, err.code == MEMFIT_DAMAGED ? MEMFIT_INVALID : err.code, "%.60s: its configuration: %s",
                            class_name, err.message);
    if (config->type != MF_JSON_OBJECT)
        return keep_failure(m, MEMFIT_INVALID, "%.60s: its configuration is no object", class_name);
    return append_layer(m, class_name, config);
}

/* As memfit_model_add_layer with the configuration printed; texts in it are checked by the callers. */
static memfit_status add_printed(memfit_model *m, const char *class_name, const char *format, ...) MEMFIT_PRINTF(3, 4);
static memfit_status add_printed(memfit_model *m, const char *class_name, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return memfit_model_add_layer(m, class_name, text);
}

/* A name that can stand in JSON as it is. */
static const char *checked_name(memfit_model *m, const char *name, const char *fallback)
{
    if (!name)
        return fallback;
    if (!*name || strlen(name) > 60 ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != strlen(name)) {
        keep_failure(m, MEMFIT_INVALID, "'%.60s' is no name of an activation or padding", name);
        return fallback;
    }
    return name;
}

static memfit_status check_positive(memfit_model *m, const char *class_name, const char *what, int64_t value)
{
    return value > 0 ? m->first.code
                     : keep_failure(m, MEMFIT_INVALID, "%s: %s is %lld, must be at least 1", class_name, what,
                                    (long long)value);
}

memfit_status memfit_model_add_input(memfit_model *m, uint32_t rank, const int64_t *shape)
{
    mf_arena *a = &m->arena;
    if (m->model)
        return MEMFIT_MISUSE;
    if (!may_add(m, "InputLayer"))
        return m->first.code;
    if (m->layers->count)
        return keep_failure(m, MEMFIT_MISUSE, "a sequential model has one input");
    if (!rank || rank >= MF_MOST_DIMS)
        return keep_failure(m, MEMFIT_INVALID, "an input of %u dimensions", rank);
    mf_json *config = mf_json_new(a, MF_JSON_OBJECT), *dims = mf_json_new(a, MF_JSON_ARRAY);
    bool ok = config && dims && mf_json_add(a, dims, NULL, mf_json_new(a, MF_JSON_NULL));
    for (uint32_t i = 0; i < rank && ok; i++) {
        if (shape[i] < 1)
            return keep_failure(m, MEMFIT_INVALID, "the input's dimension %u is %lld, must be at least 1", i,
                                (long long)shape[i]);
        ok = mf_json_add(a, dims, NULL, mf_json_new_integer(a, shape[i]));
    }
    ok = ok && mf_json_add(a, config, "batch_shape", dims) &&
         mf_json_add(a, config, "sparse", mf_json_new_bool(a, false));
    return ok ? append_layer(m, "InputLayer", config) : keep_failure(m, MEMFIT_NO_HOST_MEMORY, "no memory for a layer");
}

#define INITIALIZER(name)                                                                                              \
    "{\"module\": \"keras.initializers\", \"class_name\": \"" name "\", \"config\": {}, \"registered_name\": null}"
#define WEIGHTS "\"kernel_initializer\": " INITIALIZER("GlorotUniform") ", \"bias_initializer\": " INITIALIZER("Zeros")

memfit_status memfit_model_add_dense(memfit_model *m, int64_t units, const char *activation)
{
    check_positive(m, "Dense", "units", units);
    return add_printed(m, "Dense", "{\"units\": %lld, \"activation\": \"%s\", \"use_bias\": true, " WEIGHTS "}",
                       (long long)units, checked_name(m, activation, "linear"));
}

memfit_status memfit_model_add_conv2d(memfit_model *m, int64_t filters, int64_t kernel, const char *padding,
                                      const char *activation)
{
    check_positive(m, "Conv2D", "filters", filters);
    check_positive(m, "Conv2D", "kernel", kernel);
    return add_printed(m, "Conv2D",
                       "{\"filters\": %lld, \"kernel_size\": [%lld, %lld], \"strides\": [1, 1], \"padding\": \"%s\", "
                       "\"data_format\": \"channels_last\", \"dilation_rate\": [1, 1], \"groups\": 1, \"activation\": "
                       "\"%s\", \"use_bias\": true, " WEIGHTS "}",
                       (long long)filters, (long long)kernel, (long long)kernel, checked_name(m, padding, "valid"),
                       checked_name(m, activation, "linear"));
}

static memfit_status add_pool(memfit_model *m, const char *class_name, int64_t pool)
{
    check_positive(m, class_name, "pool", pool);
    return add_printed(m, class_name,
                       "{\"pool_size\": [%lld, %lld], \"padding\": \"valid\", \"strides\": [%lld, %lld], "
                       "\"data_format\": \"channels_last\"}",
                       (long long)pool, (long long)pool, (long long)pool, (long long)pool);
}

memfit_status memfit_model_add_max_pool2d(memfit_model *m, int64_t pool)
{
    return add_pool(m, "MaxPooling2D", pool);
}

memfit_status memfit_model_add_average_pool2d(memfit_model *m, int64_t pool)
{
    return add_pool(m, "AveragePooling2D", pool);
}

memfit_status memfit_model_add_global_average_pool2d(memfit_model *m)
{
    return add_printed(m, "GlobalAveragePooling2D", "{\"data_format\": \"channels_last\", \"keepdims\": false}");
}

memfit_status memfit_model_add_flatten(memfit_model *m)
{
    return add_printed(m, "Flatten", "{\"data_format\": \"channels_last\"}");
}

memfit_status memfit_model_add_dropout(memfit_model *m, double rate)
{
    if (!(rate >= 0 && rate < 1))
        keep_failure(m, MEMFIT_INVALID, "Dropout: rate %g, must be from 0 to below 1", rate);
    return add_printed(m, "Dropout", "{\"rate\": %.17g, \"seed\": null, \"noise_shape\": null}", rate);
}

memfit_status memfit_model_add_batch_norm(memfit_model *m)
{
    return add_printed(
        m, "BatchNormalization",
        "{\"axis\": -1, \"momentum\": 0.99, \"epsilon\": 0.001, \"center\": true, \"scale\": true, "
        "\"beta_initializer\": " INITIALIZER("Zeros") ", \"gamma_initializer\": " INITIALIZER(
            "Ones") ", \"moving_mean_initializer\": " INITIALIZER("Zeros") ", "
                                                                           "\"moving_variance_initializer\":"
                                                                           " " INITIALIZER("Ones") "}");
}

memfit_status memfit_model_add_activation(memfit_model *m, const char *activation)
{
    return add_printed(m, "Activation", "{\"activation\": \"%s\"}", checked_name(m, activation, "linear"));
}

memfit_status memfit_model_add_embedding(memfit_model *m, int64_t words, int64_t width)
{
    check_positive(m, "Embedding", "words", words);
    check_positive(m, "Embedding", "width", width);
    return add_printed(
        m, "Embedding",
        "{\"input_dim\": %lld, \"output_dim\": %lld, \"mask_zero\": false, \"embeddings_initializer\": "
        "{\"module\": \"keras.initializers\", \"class_name\": \"RandomUniform\", \"config\": {\"minval\": "
        "-0.05, \"maxval\": 0.05, \"seed\": null}, \"registered_name\": null}}",
        (long long)words, (long long)width);
}

memfit_status memfit_model_add_lstm(memfit_model *m, int64_t units, bool return_sequences)
{
    check_positive(m, "LSTM", "units", units);
    return add_printed(m, "LSTM",
                       "{\"units\": %lld, \"return_sequences\": %s, \"return_state\": false, \"go_backwards\": false, "
                       "\"stateful\": false, \"unroll\": false, \"activation\": \"tanh\", \"recurrent_activation\": "
                       "\"sigmoid\", \"use_bias\": true, \"unit_forget_bias\": true, " WEIGHTS
                       ", \"recurrent_initializer\": " INITIALIZER("Orthogonal") "}",
                       (long long)units, return_sequences ? "true" : "false");
}

/* ---- compiling -------------------------------------------------------------------------------------------- */

/* Keras's class of each optimizer. */
static const char *const optimizers[MF_OPTIMIZER_COUNT] = {
    [MF_OPTIMIZER_SGD] = "SGD",         [MF_OPTIMIZER_RMSPROP] = "RMSprop",   [MF_OPTIMIZER_ADAM] = "Adam",
    [MF_OPTIMIZER_ADAMW] = "AdamW",     [MF_OPTIMIZER_NADAM] = "Nadam",       [MF_OPTIMIZER_ADAMAX] = "Adamax",
    [MF_OPTIMIZER_ADAGRAD] = "Adagrad", [MF_OPTIMIZER_ADADELTA] = "Adadelta", [MF_OPTIMIZER_ADAFACTOR] = "Adafactor",
    [MF_OPTIMIZER_LION] = "Lion",       [MF_OPTIMIZER_FTRL] = "Ftrl",         [MF_OPTIMIZER_LAMB] = "Lamb"};

static bool put_metrics(mf_arena *a, mf_json *compile, const char *metrics)
{
    mf_json *list = mf_json_new(a, MF_JSON_ARRAY);
    for (const char *p = metrics ? metrics : ""; *p; p += *p == ',') {
        size_t n = strcspn(p, ","), skip = strspn(p, " ");
        size_t length = n;
        while (length > skip && p[length - 1] == ' ')
            length--;
        char *name = length > skip ? mf_arena_strndup(a, p + skip, length - skip) : NULL;
        if (length > skip && (!name || !mf_json_add(a, list, NULL, mf_json_new_string(a, name))))
            return false;
        p += n;
    }
    return mf_json_add(a, compile, "metrics", metrics ? list : mf_json_new(a, MF_JSON_NULL));
}

memfit_status memfit_model_compile(memfit_model *m, const char *optimizer, double learning_rate, const char *loss,
                                   const char *metrics)
{
    mf_arena *a = &m->arena;
    mf_optimizer which;
    if (m->first.code)
        return m->first.code;
    if (m->model)
        return MEMFIT_MISUSE;
    if (!mf_optimizer_parse(optimizer, &which))
        return keep_failure(m, MEMFIT_INVALID, "optimizer '%.60s' is not known", optimizer);
    if (!(learning_rate >= 0 && learning_rate < 1e30))
        return keep_failure(m, MEMFIT_INVALID, "a learning rate of %g", learning_rate);
    mf_json *config = mf_json_new(a, MF_JSON_OBJECT), *object = mf_json_new(a, MF_JSON_OBJECT);
    m->compile = mf_json_new(a, MF_JSON_OBJECT);
    bool ok =
        config && object && m->compile && put_text(a, config, "name", mf_optimizer_name(which)) &&
        mf_json_add(a, config, "learning_rate",
                    mf_json_new_number(a, learning_rate > 0 ? learning_rate : mf_optimizer_learning_rate(which))) &&
        put_text(a, object, "module", "keras.optimizers") && put_text(a, object, "class_name", optimizers[which]) &&
        mf_json_add(a, object, "config", config) && put_text(a, object, "registered_name", NULL) &&
        mf_json_add(a, m->compile, "optimizer", object) && put_text(a, m->compile, "loss", loss) &&
        put_text(a, m->compile, "loss_weights", NULL) && put_metrics(a, m->compile, metrics) &&
        put_text(a, m->compile, "weighted_metrics", NULL) &&
        mf_json_add(a, m->compile, "run_eagerly", mf_json_new_bool(a, false)) &&
        mf_json_add(a, m->compile, "steps_per_execution", mf_json_new_integer(a, 1)) &&
        mf_json_add(a, m->compile, "jit_compile", mf_json_new_bool(a, false));
    return ok ? MEMFIT_OK : keep_failure(m, MEMFIT_NO_HOST_MEMORY, "no memory for the compile settings");
}

memfit_status memfit_model_set_seed(memfit_model *m, uint64_t seed)
{
    if (m->model)
        return MEMFIT_MISUSE;
    m->seed = seed;
    return m->first.code;
}

/* ---- finishing -------------------------------------------------------------------------------------------- */

static mf_layer *find_layer(mf_model *m, const char *path)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        mf_layer *l = &m->layers[i];
        size_t n = strlen(l->name);
        if (strcmp(l->name, path) == 0)
            return l;
        if (l->inner && strncmp(l->name, path, n) == 0 && path[n] == '/') {
            mf_layer *inner = find_layer(l->inner, path + n + 1);
            if (inner)
                return inner;
        }
    }
    return NULL;
}

static memfit_status make_variable(const memfit_host *host, mf_model *model, const mf_graph *graph, uint32_t index,
                                   uint64_t seed, memfit_error *err)
{
    const mf_variable *v = &graph->variables[index];
    mf_layer *layer = v->path && v->layer < graph->layer_count ? find_layer(model, graph->layers[v->layer].name) : NULL;
    if (!layer || v->stored)
        return MEMFIT_OK;
    mf_stored *list = MF_NEW_ARRAY(&model->arena, mf_stored, layer->stored_count + 1);
    uint64_t bytes = mf_shape_count(&v->shape) * mf_dtype_bytes(v->dtype);
    void *data = mf_arena_alloc(&model->arena, bytes);
    const char *path = mf_arena_strdup(&model->arena, v->path);
    if (!list || !data || !path)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the first weights");
    memfit_status st = mf_variable_initialize(host, graph, index, seed, data, err);
    if (st)
        return st;
    if (layer->stored_count)
        memcpy(list, layer->stored, layer->stored_count * sizeof *list);
    list[layer->stored_count++] =
        (mf_stored){.path = path, .dtype = v->dtype, .shape = v->shape, .data = data, .bytes = bytes};
    layer->stored = list;
    return MEMFIT_OK;
}

memfit_status mf_model_make_weights(const memfit_host *host, mf_model *model, uint64_t seed, memfit_error *err)
{
    mf_graph *graph;
    mf_lower_options options = {.mode = MF_MODE_PREDICT, .batch = 1, .input_dtype = MF_DTYPE_COUNT};
    memfit_status st = mf_lower(host, model, &options, &graph, err);
    if (st)
        return st;
    model->arena.limit_bytes = 0; /* weights are as large as the model wants */
    for (uint32_t i = 0; i < graph->variable_count && !st; i++)
        if (graph->variables[i].role == MF_VAR_PARAMETER || graph->variables[i].role == MF_VAR_STATISTIC)
            st = make_variable(host, model, graph, i, seed, err);
    mf_graph_destroy(graph);
    return st;
}

static mf_json *whole_object(memfit_model *m)
{
    mf_arena *a = &m->arena;
    mf_json *config = mf_json_new(a, MF_JSON_OBJECT), *object = mf_json_new(a, MF_JSON_OBJECT), *shape;
    const mf_json *input = mf_json_get(mf_json_get(m->layers->first, "config"), "batch_shape");
    if (!config || !object || !(shape = MF_NEW(a, mf_json)))
        return NULL;
    *shape = *input;
    shape->next = NULL;
    bool ok = put_text(a, config, "name", m->name) && mf_json_add(a, config, "trainable", mf_json_new_bool(a, true)) &&
              put_text(a, config, "dtype", "float32") && mf_json_add(a, config, "layers", m->layers) &&
              mf_json_add(a, config, "build_input_shape", shape) && put_text(a, object, "module", "keras") &&
              put_text(a, object, "class_name", "Sequential") && mf_json_add(a, object, "config", config) &&
              put_text(a, object, "registered_name", NULL) &&
              (!m->compile || mf_json_add(a, object, "compile_config", m->compile));
    return ok ? object : NULL;
}

static memfit_status finish(memfit_model *m, memfit_error *err)
{
    if (m->layers->count < 2)
        return mf_fail(err, MEMFIT_INVALID, "the model has no layers");
    mf_json *object = whole_object(m);
    size_t bytes = 0;
    if (!object || !(m->text = mf_json_print(&m->arena, object, &bytes)))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a model");
    mf_model *model;
    memfit_status st = mf_model_load_bytes(m->host, m->text, bytes, 0, &model, err);
    if (st)
        return st;
    if ((st = mf_model_make_weights(m->host, model, m->seed, err))) {
        mf_model_destroy(model);
        return st;
    }
    m->model = model;
    return MEMFIT_OK;
}

memfit_status memfit_model_finish(memfit_model *m, memfit_error *err)
{
    if (!m->first.code && !m->model) {
        memfit_error own;
        if (finish(m, &own))
            m->first = own;
    }
    if (m->first.code && err)
        *err = m->first;
    return m->first.code;
}

mf_model *mf_model_of(memfit_model *model, memfit_error *err)
{
    return memfit_model_finish(model, err) == MEMFIT_OK ? model->model : NULL;
}
