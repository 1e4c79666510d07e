/* lower_models.h: small models for the tests of lowering, written as the layers of a Sequential model. */
#ifndef MF_TESTS_LOWER_MODELS_H
#define MF_TESTS_LOWER_MODELS_H

#include "test.h"

#include "model/lower/lower.h"

/* Reads a model from the text of its config; the text must outlive it. */
static inline mf_model *model_from_text(const char *text)
{
    mf_model *model = NULL;
    memfit_error err;
    assert_ok(mf_model_load_bytes(NULL, text, strlen(text), 0, &model, &err), err);
    return model;
}

/* A Sequential model of these layers (JSON objects, comma separated), with compile settings or NULL. */
static inline char *sequential_text(const char *layers, const char *compile)
{
    char *text = NULL;
    int n =
        asprintf(&text,
                 "{\"module\":\"keras\",\"class_name\":\"Sequential\",\"config\":{\"name\":\"m\",\"trainable\":true,"
                 "\"dtype\":\"float32\",\"layers\":[%s]}%s%s}",
                 layers, compile ? ",\"compile_config\":" : "", compile ? compile : "");
    assert_true(n > 0);
    return text;
}

#define LAYER(class, name, config)                                                                                     \
    "{\"module\":\"keras.layers\",\"class_name\":\"" class "\",\"config\":{\"name\":\"" name "\"" config "}}"
#define INPUT(shape) LAYER("InputLayer", "in", ",\"batch_shape\":[null," shape "],\"dtype\":\"float32\"")

static inline mf_lower_options lower_options(mf_mode mode, int64_t batch)
{
    return (mf_lower_options){.mode = mode, .batch = batch, .input_dtype = MF_DTYPE_COUNT};
}

static inline uint32_t count_kind(const mf_graph *g, mf_op_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        n += g->ops[i].kind == kind;
    return n;
}

static inline mf_graph *lower_ok(const mf_model *model, const mf_lower_options *options)
{
    mf_graph *graph = NULL;
    memfit_error err;
    assert_ok(mf_lower(NULL, model, options, &graph, &err), err);
    assert_ok(mf_graph_check(graph, &err), err);
    return graph;
}

#endif
