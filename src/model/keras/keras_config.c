/*
 * keras_config.c: from a model's JSON to layers and calls.
 * Sequential: a list of layers, each called on the one before.
 * Functional: layers in order of depth, each with its calls ("inbound_nodes"), which name the calls they take their
 * inputs from: [layer, node, tensor]. Two encodings exist:
 *     Keras 3   {"args": [...], "kwargs": {...}} with tensors as {"class_name": "__keras_tensor__", "config":
 *               {"keras_history": [layer, node, tensor]}} anywhere inside
 *     Keras 2   [[layer, node, tensor, kwargs], ...]; kwargs may hold [layer, node, tensor] again
 * A layer that is itself a Functional model has a node of its own construction in Keras 2, so its calls count from 1
 * there, and in both versions in the model's input_layers and output_layers (Keras 3 keeps that for old readers).
 * Calls refer to layers by index; references may point forward (shared layers), so all layers are made before the
 * first call is read. Unknown and custom layers are kept and marked: whether that is an error is the caller's affair.
 */
#include "model/keras/keras_inner.h"

#include <stdio.h>
#include <string.h>

typedef struct builder {
    mf_arena *arena;
    memfit_error *err;
    mf_model *model;
    bool old_nodes;  /* Keras 2 encoding seen */
    uint32_t *slots; /* hash from layer name to index + 1 */
    uint32_t slot_count;
    unsigned depth;
} builder;

static memfit_status build(mf_arena *arena, mf_model *model, const mf_json *object, const char *policy, unsigned depth,
                           memfit_error *err);

bool mf_keras_is_model_class(const char *class_name)
{
    return strcmp(class_name, "Sequential") == 0 || strcmp(class_name, "Functional") == 0 ||
           strcmp(class_name, "Model") == 0;
}

/* ---- layers ----------------------------------------------------------------------------------------------- */

static bool starts_with(const char *text, const char *prefix)
{
    return text && strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_operation(const mf_layer *layer)
{
    static const char *const places[] = {"keras.src.ops", "keras.ops", "keras.src.activations", "keras.activations"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (starts_with(layer->module, places[i]))
            return true;
    /* Keras 3 leaves the module out of .h5 files; every layer says whether it is trainable, no operation does. */
    return !layer->module && layer->config && layer->config->type == MF_JSON_OBJECT &&
           !mf_json_get(layer->config, "trainable") && strcmp(layer->class_name, "InputLayer") != 0 &&
           !mf_keras_is_model_class(layer->class_name);
}

/* Why a layer cannot be understood from its name alone, or NULL. Code in a file is never run. */
static const char *why_unsupported(mf_arena *arena, const mf_layer *layer)
{
    if (strcmp(layer->class_name, "Lambda") == 0)
        return "a Lambda layer holds Python code, which is not run";
    if (!strchr(layer->class_name, '>') && !mf_keras_is_custom(layer->module, layer->registered_name))
        return NULL;
    const char *shown = layer->registered_name && *layer->registered_name ? layer->registered_name : layer->class_name;
    return mf_arena_printf(arena, "%s is a class of the model's author, whose code is not in the file", shown);
}

static const char *dtype_policy(mf_arena *arena, const mf_json *dtype, const char *inherited)
{
    if (!dtype || dtype->type == MF_JSON_NULL)
        return inherited;
    if (dtype->type == MF_JSON_STRING)
        return dtype->string;
    const mf_json *config = mf_json_get(dtype, "config");
    const char *mode = mf_json_get_string(config, "mode", NULL);
    if (mode)
        return mf_arena_printf(arena, "%s_from_%s", mode, mf_json_get_string(config, "source_name", "float32"));
    return mf_json_get_string(config, "name", inherited);
}

static memfit_status build_inner(builder *b, mf_layer *layer, const mf_json *object)
{
    if (b->depth + 1 > MF_KERAS_MOST_NESTING)
        return mf_fail(b->err, MEMFIT_UNSUPPORTED, "layer %.80s: models nested more than %d deep", layer->name,
                       MF_KERAS_MOST_NESTING);
    mf_model *inner = MF_NEW(b->arena, mf_model);
    if (!inner)
        return mf_keras_no_memory(b->err);
    inner->keras_version = b->model->keras_version;
    inner->container = b->model->container;
    inner->frozen = b->model->frozen;
    memfit_status st = build(b->arena, inner, object, layer->dtype_policy, b->depth + 1, b->err);
    if (st)
        return mf_error_prefix(b->err, st, "in %.80s", layer->name);
    layer->inner = inner;
    return MEMFIT_OK;
}

/* Reads what all layers have; `object` is the layer's entry in the list. */
static memfit_status read_layer(builder *b, const mf_json *object, size_t index, mf_layer *layer, const char *policy)
{
    const mf_json *config = mf_json_get(object, "config");
    const char *class_name = mf_json_get_string(object, "class_name", NULL);
    if (!class_name)
        return mf_fail(b->err, MEMFIT_DAMAGED, "layer %zu has no class_name", index);
    const char *name = mf_json_get_string(object, "name", mf_json_get_string(config, "name", NULL));
    if (!name && !(name = mf_arena_printf(b->arena, "layer_%zu", index)))
        return mf_keras_no_memory(b->err);
    *layer = (mf_layer){.name = name,
                        .class_name = class_name,
                        .module = mf_json_get_string(object, "module", NULL),
                        .registered_name = mf_json_get_string(object, "registered_name", NULL),
                        .config = config,
                        .build_config = mf_json_get(object, "build_config"),
                        .trainable = !b->model->frozen && mf_json_get_bool(config, "trainable", true)};
    if (mf_keras_is_custom(layer->module, layer->registered_name) && strchr(class_name, '>'))
        layer->class_name = strchr(class_name, '>') + 1; /* marked below: the name as Keras shows it will do */
    layer->is_marked = mf_json_get(object, "shared_object_id") != NULL;
    layer->dtype_policy = dtype_policy(b->arena, mf_json_get(config, "dtype"), policy);
    layer->is_operation = is_operation(layer);
    if (!layer->dtype_policy)
        return mf_keras_no_memory(b->err);
    /* Keras's own application layers are registered under their plain name. */
    if (!layer->is_operation)
        layer->unsupported = why_unsupported(b->arena, layer);
    if (layer->unsupported)
        return MEMFIT_OK;
    if (mf_keras_is_model_class(class_name))
        return build_inner(b, layer, object);
    const mf_json *wrapped = mf_json_get(config, "layer");
    if (wrapped && mf_keras_is_model_class(mf_json_get_string(wrapped, "class_name", "")))
        return build_inner(b, layer, wrapped);
    return MEMFIT_OK;
}

/* ---- names to layers -------------------------------------------------------------------------------------- */

static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

static uint32_t find_layer(const builder *b, const char *name)
{
    for (uint32_t i = hash_name(name) & (b->slot_count - 1);; i = (i + 1) & (b->slot_count - 1)) {
        if (!b->slots[i])
            return MF_NONE;
        if (strcmp(b->model->layers[b->slots[i] - 1].name, name) == 0)
            return b->slots[i] - 1;
    }
}

static memfit_status index_layers(builder *b)
{
    b->slot_count = 16;
    while (b->slot_count < 2 * b->model->layer_count)
        b->slot_count *= 2;
    if (!(b->slots = MF_NEW_ARRAY(b->arena, uint32_t, b->slot_count)))
        return mf_keras_no_memory(b->err);
    for (uint32_t n = 0; n < b->model->layer_count; n++) {
        const char *name = b->model->layers[n].name;
        if (find_layer(b, name) != MF_NONE)
            return mf_fail(b->err, MEMFIT_DAMAGED, "two layers are named %.80s", name);
        uint32_t i = hash_name(name) & (b->slot_count - 1);
        while (b->slots[i])
            i = (i + 1) & (b->slot_count - 1);
        b->slots[i] = n + 1;
    }
    return MEMFIT_OK;
}

/* Numbers the layers of each class: Keras names stored weights that way. */
static memfit_status number_classes(builder *b)
{
    mf_model *m = b->model;
    uint32_t slots = 16;
    while (slots < 2 * m->layer_count)
        slots *= 2;
    uint32_t *last = MF_NEW_ARRAY(b->arena, uint32_t, slots); /* the class's latest layer + 1 */
    if (!last)
        return mf_keras_no_memory(b->err);
    for (uint32_t n = 0; n < m->layer_count; n++) {
        mf_layer *l = &m->layers[n];
        if (l->is_operation)
            continue;
        uint32_t i = hash_name(l->class_name) & (slots - 1);
        while (last[i] && strcmp(m->layers[last[i] - 1].class_name, l->class_name) != 0)
            i = (i + 1) & (slots - 1);
        l->class_ordinal = last[i] ? m->layers[last[i] - 1].class_ordinal + 1 : 0;
        last[i] = n + 1;
    }
    return MEMFIT_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* A list [name, node, tensor, ...], as references are written. */
static bool looks_like_reference(const mf_json *v)
{
    return v && v->type == MF_JSON_ARRAY && v->count >= 3 && v->first->type == MF_JSON_STRING &&
           v->first->next->type == MF_JSON_NUMBER && v->first->next->next->type == MF_JSON_NUMBER;
}

static const mf_json *keras_tensor(const mf_json *v)
{
    if (!v || v->type != MF_JSON_OBJECT || strcmp(mf_json_get_string(v, "class_name", ""), "__keras_tensor__") != 0)
        return NULL;
    const mf_json *history = mf_json_get(mf_json_get(v, "config"), "keras_history");
    return looks_like_reference(history) ? history : NULL;
}

/* `counts_from_one`: this reference counts a nested model's calls from 1. */
static memfit_status resolve(builder *b, const mf_json *reference, bool counts_from_one, mf_tensor_ref *ref)
{
    const char *name = reference->first->string;
    int64_t node = mf_json_integer(reference->first->next, -1),
            tensor = mf_json_integer(reference->first->next->next, -1);
    uint32_t layer = find_layer(b, name);
    if (layer == MF_NONE)
        return mf_fail(b->err, MEMFIT_DAMAGED, "an input refers to layer %.80s, which is not there", name);
    const mf_layer *l = &b->model->layers[layer];
    if (counts_from_one && l->inner && !mf_json_get(l->config, "layer") && node > 0)
        node--;
    if (node < 0 || node >= l->call_count || tensor < 0 || tensor > UINT16_MAX)
        return mf_fail(b->err, MEMFIT_DAMAGED, "an input refers to call %lld of layer %.80s, which has %u calls",
                       (long long)node, name, l->call_count);
    *ref = (mf_tensor_ref){layer, (uint32_t)node, (uint32_t)tensor};
    return MEMFIT_OK;
}

typedef struct arg_list {
    mf_call_arg *args;
    uint32_t count, capacity;
} arg_list;

static memfit_status push_arg(builder *b, arg_list *list, mf_call_arg arg)
{
    if (list->count == list->capacity) {
        uint32_t more = list->capacity ? 2 * list->capacity : 4;
        mf_call_arg *args = MF_NEW_ARRAY(b->arena, mf_call_arg, more);
        if (!args)
            return mf_keras_no_memory(b->err);
        if (list->count)
            memcpy(args, list->args, list->count * sizeof *args);
        list->args = args;
        list->capacity = more;
    }
    list->args[list->count++] = arg;
    return MEMFIT_OK;
}

static memfit_status push_tensor(builder *b, arg_list *list, const mf_json *reference, const char *name, bool from_one)
{
    mf_tensor_ref ref = {0};
    memfit_status st = resolve(b, reference, from_one, &ref);
    if (st)
        return st;
    return push_arg(b, list, (mf_call_arg){.layer = ref.layer, .call = ref.call, .tensor = ref.tensor, .name = name});
}

static bool holds_tensor(const mf_json *v)
{
    if (keras_tensor(v))
        return true;
    if (v->type == MF_JSON_ARRAY || v->type == MF_JSON_OBJECT)
        for (const mf_json *m = v->first; m; m = m->next)
            if (holds_tensor(m))
                return true;
    return false;
}

/* One argument in Keras 3's encoding: a tensor, a structure of tensors (flattened), or a constant. */
static memfit_status push_value(builder *b, arg_list *list, const mf_json *v, const char *name)
{
    const mf_json *history = keras_tensor(v);
    if (history)
        return push_tensor(b, list, history, name, false);
    if ((v->type != MF_JSON_ARRAY && v->type != MF_JSON_OBJECT) || !holds_tensor(v))
        return push_arg(b, list, (mf_call_arg){.layer = MF_NONE, .name = name, .constant = v});
    uint32_t first = list->count;
    for (const mf_json *m = v->first; m; m = m->next) {
        memfit_status st = push_value(b, list, m, name);
        if (st)
            return st;
    }
    if (list->count > first)
        list->args[first].list = list->count - first;
    return MEMFIT_OK;
}

static memfit_status read_new_call(builder *b, const mf_json *node, mf_call *call)
{
    arg_list list = {0};
    memfit_status st;
    const mf_json *args = mf_json_get(node, "args"), *kwargs = mf_json_get(node, "kwargs");
    for (const mf_json *v = args ? args->first : NULL; v; v = v->next)
        if ((st = push_value(b, &list, v, NULL)))
            return st;
    for (const mf_json *v = kwargs ? kwargs->first : NULL; v; v = v->next)
        if ((st = push_value(b, &list, v, v->key)))
            return st;
    *call = (mf_call){list.args, list.count, kwargs};
    return MEMFIT_OK;
}

/* A keyword argument of Keras 2: a reference, a list of them, or a constant. ["_CONSTANT_VALUE", -1, value] is a
 * constant in a tensor's place. */
static memfit_status push_old_value(builder *b, arg_list *list, const mf_json *v, const char *name)
{
    if (v->type == MF_JSON_ARRAY && v->count >= 3 && v->first->type == MF_JSON_STRING &&
        strcmp(v->first->string, "_CONSTANT_VALUE") == 0)
        return push_arg(b, list, (mf_call_arg){.layer = MF_NONE, .name = name, .constant = v->first->next->next});
    if (looks_like_reference(v) && find_layer(b, v->first->string) != MF_NONE)
        return push_tensor(b, list, v, name, true);
    bool references = v->type == MF_JSON_ARRAY && v->count;
    for (const mf_json *m = v->type == MF_JSON_ARRAY ? v->first : NULL; m; m = m->next)
        references &= looks_like_reference(m) && find_layer(b, m->first->string) != MF_NONE;
    if (!references)
        return push_arg(b, list, (mf_call_arg){.layer = MF_NONE, .name = name, .constant = v});
    uint32_t first = list->count;
    for (const mf_json *m = v->first; m; m = m->next) {
        memfit_status st = push_tensor(b, list, m, name, true);
        if (st)
            return st;
    }
    list->args[first].list = list->count - first;
    return MEMFIT_OK;
}

static memfit_status read_old_call(builder *b, const mf_json *node, mf_call *call)
{
    arg_list list = {0};
    memfit_status st;
    /* One input alone may stand without the outer list. */
    bool single = looks_like_reference(node);
    const mf_json *kwargs = NULL;
    for (const mf_json *entry = single ? node : node->first; entry; entry = single ? NULL : entry->next) {
        if (entry->type != MF_JSON_ARRAY || entry->count < 3 || entry->first->type != MF_JSON_STRING)
            return mf_fail(b->err, MEMFIT_DAMAGED, "an inbound node is no [layer, node, tensor]");
        bool constant = strcmp(entry->first->string, "_CONSTANT_VALUE") == 0;
        if (!constant && !looks_like_reference(entry))
            return mf_fail(b->err, MEMFIT_DAMAGED, "an inbound node is no [layer, node, tensor]");
        if ((st = constant ? push_old_value(b, &list, entry, NULL) : push_tensor(b, &list, entry, NULL, true)))
            return st;
        const mf_json *more = mf_json_at(entry, 3);
        if (more && more->type == MF_JSON_OBJECT && more->count)
            kwargs = more;
    }
    if (list.count > 1)
        list.args[0].list = list.count;
    for (const mf_json *v = kwargs ? kwargs->first : NULL; v; v = v->next)
        if ((st = push_old_value(b, &list, v, v->key)))
            return st;
    *call = (mf_call){list.args, list.count, kwargs};
    return MEMFIT_OK;
}

/* Calls are counted before they are read, since references may point forward. */
static memfit_status count_calls(builder *b, const mf_json *object, mf_layer *layer)
{
    const mf_json *nodes = mf_json_get(object, "inbound_nodes");
    size_t count = nodes && nodes->type == MF_JSON_ARRAY ? nodes->count : 0;
    if (strcmp(layer->class_name, "InputLayer") == 0)
        count = 1;
    if (!(layer->calls = MF_NEW_ARRAY(b->arena, mf_call, count)))
        return mf_keras_no_memory(b->err);
    layer->call_count = (uint32_t)count;
    return MEMFIT_OK;
}

static memfit_status read_calls(builder *b, const mf_json *object, mf_layer *layer)
{
    if (strcmp(layer->class_name, "InputLayer") == 0)
        return MEMFIT_OK;
    const mf_json *nodes = mf_json_get(object, "inbound_nodes");
    uint32_t i = 0;
    for (const mf_json *node = nodes ? nodes->first : NULL; node && i < layer->call_count; node = node->next, i++) {
        memfit_status st;
        if (node->type == MF_JSON_OBJECT) {
            st = read_new_call(b, node, &layer->calls[i]);
        } else if (node->type == MF_JSON_ARRAY && node->count) {
            b->old_nodes = true;
            st = read_old_call(b, node, &layer->calls[i]);
        } else {
            st = mf_fail(b->err, MEMFIT_DAMAGED, "inbound node %u is empty", i);
        }
        if (st)
            return mf_error_prefix(b->err, st, "layer %.80s", layer->name);
    }
    return MEMFIT_OK;
}

/* ---- functional models ------------------------------------------------------------------------------------ */

static size_t count_references(const mf_json *v)
{
    if (looks_like_reference(v))
        return 1;
    size_t n = 0;
    if (v && (v->type == MF_JSON_ARRAY || v->type == MF_JSON_OBJECT))
        for (const mf_json *m = v->first; m; m = m->next)
            n += count_references(m);
    return n;
}

/* input_layers and output_layers: references in any nesting of lists and dicts. */
static memfit_status read_references(builder *b, const mf_json *v, mf_tensor_ref *refs, uint32_t *count)
{
    if (looks_like_reference(v)) {
        uint32_t layer = find_layer(b, v->first->string);
        /* Keras 3 counts the calls of a nested Sequential from 0, Keras 2 from 1. */
        bool sequential = layer != MF_NONE && strcmp(b->model->layers[layer].class_name, "Sequential") == 0;
        return resolve(b, v, !sequential || b->old_nodes, &refs[(*count)++]);
    }
    if (v->type == MF_JSON_ARRAY || v->type == MF_JSON_OBJECT)
        for (const mf_json *m = v->first; m; m = m->next) {
            memfit_status st = read_references(b, m, refs, count);
            if (st)
                return st;
        }
    return MEMFIT_OK;
}

static memfit_status read_ends(builder *b, const mf_json *config, const char *key, mf_tensor_ref **refs,
                               uint32_t *count)
{
    const mf_json *ends = mf_json_get(config, key);
    size_t n = count_references(ends);
    if (!n)
        return mf_fail(b->err, MEMFIT_DAMAGED, "the model has no %s", key);
    if (!(*refs = MF_NEW_ARRAY(b->arena, mf_tensor_ref, n)))
        return mf_keras_no_memory(b->err);
    memfit_status st = read_references(b, ends, *refs, count);
    return st ? mf_error_prefix(b->err, st, "%s", key) : MEMFIT_OK;
}

/* Outputs in a dict are known by its keys: losses, metrics and data name them so. */
static memfit_status read_output_keys(builder *b, const mf_json *ends)
{
    mf_model *m = b->model;
    uint32_t i = 0;
    if (!ends || ends->type != MF_JSON_OBJECT || ends->count != m->output_count)
        return MEMFIT_OK;
    if (!(m->output_keys = MF_NEW_ARRAY(b->arena, const char *, m->output_count + 1)))
        return mf_keras_no_memory(b->err);
    for (const mf_json *v = ends->first; v; v = v->next)
        m->output_keys[i++] = v->key;
    return MEMFIT_OK;
}

static memfit_status build_functional(builder *b, const mf_json *config, const char *policy)
{
    mf_model *m = b->model;
    const mf_json *layers = mf_json_get(config, "layers");
    if (!layers || layers->type != MF_JSON_ARRAY || !layers->count)
        return mf_fail(b->err, MEMFIT_DAMAGED, "the configuration lists no layers");
    if (!(m->layers = MF_NEW_ARRAY(b->arena, mf_layer, layers->count)))
        return mf_keras_no_memory(b->err);
    memfit_status st;
    for (const mf_json *o = layers->first; o; o = o->next, m->layer_count++)
        if ((st = read_layer(b, o, m->layer_count, &m->layers[m->layer_count], policy)) ||
            (st = count_calls(b, o, &m->layers[m->layer_count])))
            return st;
    if ((st = index_layers(b)) || (st = number_classes(b)))
        return st;
    uint32_t i = 0;
    for (const mf_json *o = layers->first; o; o = o->next, i++)
        if ((st = read_calls(b, o, &m->layers[i])))
            return st;
    if ((st = read_ends(b, config, "input_layers", &m->inputs, &m->input_count)))
        return st;
    st = read_ends(b, config, "output_layers", &m->outputs, &m->output_count);
    return st ? st : read_output_keys(b, mf_json_get(config, "output_layers"));
}

/* ---- sequential models ------------------------------------------------------------------------------------ */

/* An InputLayer for a model whose file has none: its shape stands on the first layer (Keras 2) or beside the list. */
static memfit_status add_input(builder *b, const mf_json *config, const mf_json *first, mf_layer *layer)
{
    const mf_json *first_config = mf_json_get(first, "config");
    const mf_json *shape = mf_json_get(first_config, "batch_input_shape");
    if (mf_json_is_null(shape))
        shape = mf_json_get(first_config, "batch_shape");
    if (mf_json_is_null(shape))
        shape = mf_json_get(config, "build_input_shape");
    if (mf_json_is_null(shape) && !mf_keras_is_model_class(mf_json_get_string(first, "class_name", "")))
        shape = mf_json_get(mf_json_get(first, "build_config"), "input_shape");
    mf_json *made = mf_json_new(b->arena, MF_JSON_OBJECT);
    const char *dtype = mf_json_get_string(first_config, "dtype", "float32");
    if (strncmp(dtype, "mixed_", 6) == 0)
        dtype = "float32";
    bool ok = mf_json_add(b->arena, made, "name", mf_json_new_string(b->arena, "input_layer")) &&
              mf_json_add(b->arena, made, "dtype", mf_json_new_string(b->arena, dtype));
    if (ok && !mf_json_is_null(shape) && shape->type == MF_JSON_ARRAY) {
        mf_json *copy = MF_NEW(b->arena, mf_json);
        if (copy) {
            *copy = *shape;
            copy->next = NULL;
        }
        ok = mf_json_add(b->arena, made, "batch_shape", copy);
    }
    if (!ok)
        return mf_keras_no_memory(b->err);
    *layer = (mf_layer){.name = "input_layer",
                        .class_name = "InputLayer",
                        .module = "keras.layers",
                        .config = made,
                        .trainable = true,
                        .dtype_policy = "float32"};
    return MEMFIT_OK;
}

static memfit_status chain_calls(builder *b)
{
    mf_model *m = b->model;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        mf_layer *l = &m->layers[i];
        l->calls = MF_NEW(b->arena, mf_call);
        if (!l->calls)
            return mf_keras_no_memory(b->err);
        l->call_count = 1;
        if (i == 0)
            continue;
        mf_call_arg *arg = l->calls->args = MF_NEW(b->arena, mf_call_arg);
        if (!arg)
            return mf_keras_no_memory(b->err);
        l->calls->arg_count = 1;
        arg->layer = i - 1;
    }
    m->inputs = MF_NEW(b->arena, mf_tensor_ref);
    m->outputs = MF_NEW(b->arena, mf_tensor_ref);
    if (!m->inputs || !m->outputs)
        return mf_keras_no_memory(b->err);
    m->input_count = m->output_count = 1;
    m->outputs->layer = m->layer_count - 1;
    return MEMFIT_OK;
}

static memfit_status build_sequential(builder *b, const mf_json *config, const char *policy)
{
    mf_model *m = b->model;
    /* Keras up to 2.2 wrote the bare list. */
    const mf_json *layers = config && config->type == MF_JSON_ARRAY ? config : mf_json_get(config, "layers");
    if (!layers || layers->type != MF_JSON_ARRAY || !layers->count)
        return mf_fail(b->err, MEMFIT_DAMAGED, "the configuration lists no layers");
    if (!(m->layers = MF_NEW_ARRAY(b->arena, mf_layer, layers->count + 1)))
        return mf_keras_no_memory(b->err);
    memfit_status st;
    if (strcmp(mf_json_get_string(layers->first, "class_name", ""), "InputLayer") != 0) {
        if ((st = add_input(b, config, layers->first, &m->layers[0])))
            return st;
        m->layer_count = 1;
    }
    size_t index = 0;
    for (const mf_json *o = layers->first; o; o = o->next, m->layer_count++, index++)
        if ((st = read_layer(b, o, index, &m->layers[m->layer_count], policy)))
            return st;
    memfit_status numbered = number_classes(b);
    return numbered ? numbered : chain_calls(b);
}

/* ---- either ----------------------------------------------------------------------------------------------- */

static memfit_status build(mf_arena *arena, mf_model *model, const mf_json *object, const char *policy, unsigned depth,
                           memfit_error *err)
{
    builder b = {.arena = arena, .err = err, .model = model, .depth = depth};
    const mf_json *config = mf_json_get(object, "config");
    const char *class_name = mf_json_get_string(object, "class_name", NULL);
    if (!class_name)
        return mf_fail(err, MEMFIT_DAMAGED, "the configuration names no class");
    model->name = mf_json_get_string(config, "name", mf_json_get_string(object, "name", "model"));
    model->config = config;
    policy = dtype_policy(arena, mf_json_get(config, "dtype"), policy);
    if (!policy)
        return mf_keras_no_memory(err);
    model->dtype_policy = policy;
    if (strcmp(class_name, "Sequential") == 0) {
        model->class_name = "Sequential";
        return build_sequential(&b, config, policy);
    }
    model->class_name = "Functional";
    /* A model that Keras 3 loaded trains a layer by that layer's own flag. Of the models' flags only that of a functional
     * model counts, and only of the outermost: Sequential.from_config leaves its out. */
    if (!depth)
        model->frozen = !mf_json_get_bool(config, "trainable", true);
    return build_functional(&b, config, policy);
}

memfit_status mf_keras_build(mf_arena *arena, mf_model *model, const mf_json *object, memfit_error *err)
{
    return build(arena, model, object, "float32", 0, err);
}
