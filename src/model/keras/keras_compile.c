/*
 * keras_compile.c: compile settings in one form, that of Keras 3's compile_config.
 *
 * Old files differ in small ways: the optimizer is called optimizer_config; "lr" stands for learning_rate; metrics are
 * wrappers {"MeanMetricWrapper", fn: "categorical_accuracy"} and one list a single output's metrics once more.
 */
#include "model/keras/keras_inner.h"

#include <string.h>

/* A copy of one value: children are shared, links to siblings are not. */
static mf_json *copy_value(mf_arena *arena, const mf_json *v)
{
    mf_json *copy = MF_NEW(arena, mf_json);
    if (copy) {
        *copy = *v;
        copy->next = NULL;
    }
    return copy;
}

static mf_json *copy_optimizer(mf_arena *arena, const mf_json *v)
{
    const mf_json *config = mf_json_get(v, "config");
    mf_json *copy = mf_json_new(arena, MF_JSON_OBJECT), *fresh = mf_json_new(arena, MF_JSON_OBJECT);
    if (!config || mf_json_get(config, "learning_rate") || !mf_json_get(config, "lr"))
        return copy_value(arena, v);
    for (const mf_json *m = config->first; m; m = m->next)
        if (!mf_json_add(arena, fresh, strcmp(m->key, "lr") == 0 ? "learning_rate" : m->key, copy_value(arena, m)))
            return NULL;
    for (const mf_json *m = v->first; m; m = m->next)
        if (!mf_json_add(arena, copy, m->key, strcmp(m->key, "config") == 0 ? fresh : copy_value(arena, m)))
            return NULL;
    return copy;
}

static mf_json *copy_metric(mf_arena *arena, const mf_json *v)
{
    const mf_json *fn = mf_json_get(mf_json_get(v, "config"), "fn");
    if (strcmp(mf_json_get_string(v, "class_name", ""), "MeanMetricWrapper") == 0 && fn)
        return copy_value(arena, fn);
    if (v->type != MF_JSON_ARRAY && !(v->type == MF_JSON_OBJECT && !mf_json_get(v, "class_name")))
        return copy_value(arena, v);
    mf_json *copy = mf_json_new(arena, v->type);
    for (const mf_json *m = v->first; m; m = m->next)
        if (!mf_json_add(arena, copy, m->key, copy_metric(arena, m)))
            return NULL;
    return copy;
}

/* [[a, b]] -> [a, b] */
static const mf_json *flat_metrics(const mf_json *v)
{
    return v->type == MF_JSON_ARRAY && v->count == 1 && v->first->type == MF_JSON_ARRAY ? v->first : v;
}

const mf_json *mf_keras_compile(mf_arena *arena, const mf_json *compile_config, bool *failed)
{
    if (!compile_config || compile_config->type != MF_JSON_OBJECT || !compile_config->count)
        return NULL;
    mf_json *made = mf_json_new(arena, MF_JSON_OBJECT);
    for (const mf_json *m = compile_config->first; m; m = m->next) {
        const char *key = strcmp(m->key, "optimizer_config") == 0 ? "optimizer" : m->key;
        mf_json *value;
        if (strcmp(key, "optimizer") == 0 && m->type == MF_JSON_OBJECT)
            value = copy_optimizer(arena, m);
        else if (strcmp(key, "metrics") == 0 || strcmp(key, "weighted_metrics") == 0)
            value = copy_metric(arena, flat_metrics(m));
        else
            value = copy_value(arena, m);
        if (!mf_json_add(arena, made, key, value)) {
            *failed = true;
            return NULL;
        }
    }
    return made;
}

const mf_json *mf_keras_optimizer(const mf_json *compile, const mf_json **scaling)
{
    const mf_json *spec = mf_json_get(compile, "optimizer"), *config = mf_json_get(spec, "config");
    bool wrapped = strcmp(mf_json_get_string(spec, "class_name", ""), "LossScaleOptimizer") == 0;
    if (scaling)
        *scaling = wrapped ? config : NULL;
    return wrapped ? mf_json_get(config, "inner_optimizer") : spec;
}
