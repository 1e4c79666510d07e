/* lower_weights.c: weights as variables, and reading a layer's configuration. */
#include "model/lower/lower_inner.h"

#include "base/error.h"
#include "model/lower/lower_compile.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

mf_shape mf_shape1(int64_t a)
{
    return (mf_shape){.rank = 1, .dim = {a}};
}

mf_shape mf_shape2(int64_t a, int64_t b)
{
    return (mf_shape){.rank = 2, .dim = {a, b}};
}

mf_shape mf_shape3(int64_t a, int64_t b, int64_t c)
{
    return (mf_shape){.rank = 3, .dim = {a, b, c}};
}

mf_shape mf_shape4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (mf_shape){.rank = 4, .dim = {a, b, c, d}};
}

bool mf_config_ints(const mf_json *config, const char *key, uint32_t count, int64_t fallback, int64_t *values)
{
    const mf_json *value = mf_json_get(config, key);
    for (uint32_t i = 0; i < count; i++)
        values[i] = fallback;
    if (mf_json_is_null(value))
        return true;
    if (value->type == MF_JSON_NUMBER) {
        for (uint32_t i = 0; i < count; i++)
            values[i] = mf_json_integer(value, fallback);
        return true;
    }
    if (value->type != MF_JSON_ARRAY || value->count != count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        values[i] = mf_json_integer(mf_json_at(value, i), fallback);
    return true;
}

uint32_t mf_axis(int64_t axis, uint32_t rank)
{
    if (axis < 0)
        axis += rank;
    return axis >= 0 && axis < rank ? (uint32_t)axis : MF_NONE;
}

const char *mf_config_name(const mf_json *value)
{
    if (mf_json_is_null(value))
        return NULL;
    if (value->type == MF_JSON_STRING)
        return value->string;
    const char *class_name = mf_json_get_string(value, "class_name", NULL);
    if (class_name && strcmp(class_name, "function") == 0)
        return mf_json_get_string(value, "config", class_name);
    return class_name;
}

static bool channels_first(const mf_layer_call *c)
{
    return strcmp(mf_json_get_string(c->config, "data_format", "channels_last"), "channels_first") == 0;
}

uint32_t mf_channels_last(mf_layer_call *c, uint32_t x)
{
    uint32_t rank = mf_g_shape(c->b, x).rank, perm[MF_MOST_DIMS] = {0};
    if (!channels_first(c) || rank < 3)
        return x;
    for (uint32_t i = 1; i + 1 < rank; i++)
        perm[i] = i + 1;
    perm[rank - 1] = 1;
    return mf_g_transpose(c->b, x, perm);
}

uint32_t mf_channels_back(mf_layer_call *c, uint32_t y)
{
    uint32_t rank = mf_g_shape(c->b, y).rank, perm[MF_MOST_DIMS] = {0};
    if (!channels_first(c) || rank < 3)
        return y;
    perm[1] = rank - 1;
    for (uint32_t i = 2; i < rank; i++)
        perm[i] = i - 1;
    return mf_g_transpose(c->b, y, perm);
}

uint32_t mf_random_key(mf_layer_call *c)
{
    return c->b->next_key++;
}

/* ---- weights ---- */

/* "l2", {"class_name": "L2", "config": {"l2": 0.01}}, L1, L1L2. */
bool mf_read_regularizer(mf_layer_call *c, const mf_json *value, double *l1_factor, double *l2_factor)
{
    const char *name = mf_config_name(value);
    if (!name)
        return false;
    const mf_json *config = mf_json_get(value, "config");
    bool l1 = strcasecmp(name, "l1") == 0, l2 = strcasecmp(name, "l2") == 0;
    if (!l1 && !l2 && strcasecmp(name, "l1l2") != 0 && strcasecmp(name, "l1_l2") != 0) {
        c->b->graph->left_out = mf_arena_printf(&c->b->graph->arena, "regularizer '%s' of layer '%s'", name,
                                                c->b->graph->layers[c->graph_layer].name);
        if (!c->b->graph->left_out)
            mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for a regularizer");
        return false;
    }
    *l1_factor = l2 ? 0 : mf_json_get_number(config, "l1", l1 ? 0.01 : 0);
    *l2_factor = l1 ? 0 : mf_json_get_number(config, "l2", l2 ? 0.01 : 0);
    return true;
}

/* {"class_name": "MaxNorm", "config": {"max_value": 2, "axis": 0}} or "max_norm". False when it is none that is known.
 */
static bool read_constraint(const mf_json *value, uint32_t rank, mf_constraint *c)
{
    char name[32];
    const mf_json *config = mf_json_get(value, "config"), *axis = mf_json_get(config, "axis");
    mf_plain_name(mf_config_name(value) ? mf_config_name(value) : "", name, sizeof name);
    *c = (mf_constraint){.kind = MF_CONSTRAINT_NORM, .axes = axis ? 0 : 1, .rate = 1};
    if (strcmp(name, "nonneg") == 0)
        c->kind = MF_CONSTRAINT_NON_NEGATIVE;
    else if (strcmp(name, "unitnorm") == 0)
        c->kind = MF_CONSTRAINT_UNIT_NORM;
    else if (strcmp(name, "maxnorm") == 0)
        c->high = mf_json_get_number(config, "max_value", 2);
    else if (strcmp(name, "minmaxnorm") == 0) {
        c->low = mf_json_get_number(config, "min_value", 0);
        c->high = mf_json_get_number(config, "max_value", 1);
        c->rate = mf_json_get_number(config, "rate", 1);
    } else
        return false;
    bool list = axis && axis->type == MF_JSON_ARRAY;
    for (const mf_json *a = list ? axis->first : axis; a; a = list ? a->next : NULL) {
        uint32_t n = mf_axis(mf_json_integer(a, 0), rank);
        if (n == MF_NONE)
            return false;
        c->axes |= 1u << n;
    }
    return rank > 0 || c->kind == MF_CONSTRAINT_NON_NEGATIVE;
}

/* "kernel_regularizer" and "kernel_initializer" have a sister "kernel_constraint". */
static void constraint(mf_layer_call *c, const mf_weight_spec *spec, mf_variable *v)
{
    const char *sister = spec->regularizer ? spec->regularizer : spec->initializer;
    const char *end = sister ? strrchr(sister, '_') : NULL;
    char key[64];
    if (!end)
        return;
    snprintf(key, sizeof key, "%.*s_constraint", (int)(end - sister), sister);
    const mf_json *value = mf_json_get(c->config, key);
    if (mf_json_is_null(value) || read_constraint(value, v->shape.rank, &v->constraint))
        return;
    v->constraint = (mf_constraint){0};
    c->b->graph->left_out = "a weight constraint of its own";
}

static const mf_stored *stored_at(mf_layer_call *c, const char *path, const mf_shape *shape)
{
    for (uint32_t i = 0; i < c->layer->stored_count; i++) {
        const mf_stored *s = &c->layer->stored[i];
        if (strcmp(s->path, path) != 0)
            continue;
        if (!mf_shape_equal(&s->shape, shape)) {
            char a[128], b[128];
            const bool given = c->lo->options->input_shape.rank || c->lo->options->dim_count;
            mf_build_fail(c->b, given ? MEMFIT_INVALID : MEMFIT_DAMAGED,
                          given ? "layer '%s': stored weight %s is %s, the layer's is %s\n"
                                  "the shape given with --input-shape or --dim does not suit the weights"
                                : "layer '%s': stored weight %s is %s, the layer's is %s",
                          c->layer->name, path, mf_shape_format(&s->shape, a, sizeof a),
                          mf_shape_format(shape, b, sizeof b));
            return NULL;
        }
        return s;
    }
    return NULL;
}

static void make_variable(mf_layer_call *c, const mf_weight_spec *spec, const mf_shape *shape)
{
    mf_graph *g = c->b->graph;
    mf_graph_layer *entry = &g->layers[c->graph_layer];
    mf_variable v = {.role = spec->frozen ? MF_VAR_STATISTIC : MF_VAR_PARAMETER,
                     .kind = MEMFIT_KIND_PARAMETERS,
                     .trainable = c->trainable && !spec->frozen,
                     .dtype = spec->integer ? MF_I32 : c->variable,
                     .shape = *shape,
                     .parameter = MF_NONE,
                     .initial = spec->initial};
    v.name = mf_arena_printf(&g->arena, "%s/%s", entry->name, spec->name);
    v.path = mf_arena_printf(&g->arena, "%svars/%u", c->prefix, c->paths);
    if (!v.name || !v.path) {
        mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the weights");
        return;
    }
    for (uint32_t i = 0; i < shape->rank; i++)
        if (shape->dim[i] < 0) {
            mf_build_fail(c->b, MEMFIT_INVALID, "layer '%s': a weight's size is not known", entry->name);
            return;
        }
    if (spec->regularizer)
        mf_read_regularizer(c, mf_json_get(c->config, spec->regularizer), &v.l1, &v.l2);
    constraint(c, spec, &v);
    v.stored = stored_at(c, v.path, shape);
    if (!v.stored && c->layer->must_be_stored && mf_build_ok(c->b)) {
        mf_build_fail(c->b, MEMFIT_DAMAGED,
                      "layer '%s': its weight %s (%s) is not in the file, which holds weights of other layers\n"
                      "Keras refuses such a file too: save the model again",
                      entry->name, spec->name, v.path);
        return;
    }
    v.initializer = spec->initializer ? mf_json_get(c->config, spec->initializer) : NULL;
    if (mf_json_is_null(v.initializer) && spec->otherwise &&
        !(v.initializer = mf_json_new_string(&g->arena, spec->otherwise))) {
        mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the weights");
        return;
    }
    uint64_t count = mf_shape_count(shape);
    entry->parameter_count += count;
    entry->trainable_count += v.trainable ? count : 0;
    uint32_t variable = mf_g_variable(c->b, &v);
    if (c->lo->first_variable[c->graph_layer] == MF_NONE)
        c->lo->first_variable[c->graph_layer] = variable;
}

uint32_t mf_weight(mf_layer_call *c, const mf_weight_spec *spec, mf_shape shape)
{
    if (!mf_build_ok(c->b))
        return MF_NONE;
    mf_graph *g = c->b->graph;
    uint32_t first = c->lo->first_variable[c->graph_layer], variable = first + c->weights;
    if (first == MF_NONE || variable >= g->variable_count || g->variables[variable].layer != c->graph_layer) {
        make_variable(c, spec, &shape);
        variable = g->variable_count - 1;
    } else if (!mf_shape_equal(&g->variables[variable].shape, &shape))
        return mf_build_fail(c->b, MEMFIT_INVALID, "layer '%s' is called on inputs of different shapes",
                             c->layer->name);
    if (!mf_build_ok(c->b))
        return MF_NONE;
    c->weights++;
    c->paths++;
    uint32_t tensor = mf_g_use(c->b, variable);
    return spec->keep ? tensor : mf_g_cast(c->b, tensor, c->compute);
}

uint32_t mf_stored_weight(mf_layer_call *c, const mf_stored *stored)
{
    mf_graph *g = c->b->graph;
    uint32_t first = c->lo->first_variable[c->graph_layer], variable = first + c->weights++;
    if (!mf_build_ok(c->b))
        return MF_NONE;
    if (first == MF_NONE || variable >= g->variable_count || g->variables[variable].layer != c->graph_layer) {
        mf_graph_layer *entry = &g->layers[c->graph_layer];
        bool real =
            stored->dtype == MF_F32 || stored->dtype == MF_F64 || stored->dtype == MF_F16 || stored->dtype == MF_BF16;
        mf_variable v = {.role = real ? MF_VAR_PARAMETER : MF_VAR_STATISTIC,
                         .kind = MEMFIT_KIND_PARAMETERS,
                         .name = mf_arena_printf(&g->arena, "%s/%s", entry->name, stored->path),
                         .path = stored->path,
                         .trainable = real && c->trainable,
                         .dtype = stored->dtype,
                         .shape = stored->shape,
                         .parameter = MF_NONE,
                         .stored = stored};
        if (!v.name)
            return mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for the weights");
        entry->parameter_count += mf_shape_count(&v.shape);
        entry->trainable_count += v.trainable ? mf_shape_count(&v.shape) : 0;
        variable = mf_g_variable(c->b, &v);
        if (first == MF_NONE)
            c->lo->first_variable[c->graph_layer] = variable;
    }
    return mf_g_use(c->b, variable);
}

/* ---- constants ---- */

static uint64_t flatten(const mf_json *value, float *numbers, uint64_t room, uint32_t depth, mf_shape *shape)
{
    uint64_t n = 0;
    if (value->type != MF_JSON_ARRAY) {
        if (room)
            numbers[0] = (float)mf_json_number(value, value->type == MF_JSON_BOOL ? value->boolean : 0);
        return 1;
    }
    if (depth >= MF_MOST_DIMS)
        return 0;
    if (shape->rank <= depth)
        shape->rank = depth + 1;
    shape->dim[depth] = (int64_t)value->count;
    for (const mf_json *v = value->first; v; v = v->next)
        n += flatten(v, numbers ? numbers + n : NULL, room > n ? room - n : 0, depth + 1, shape);
    return n;
}

/* The values lie in the graph like a stored weight, so that whoever fills variables needs no second way. */
uint32_t mf_constant(mf_layer_call *c, const mf_json *value)
{
    mf_graph *g = c->b->graph;
    if (!mf_build_ok(c->b))
        return MF_NONE;
    if (value && value->type == MF_JSON_OBJECT)
        value = mf_json_get(mf_json_get(value, "config"), "value");
    if (!value || (value->type != MF_JSON_ARRAY && value->type != MF_JSON_NUMBER && value->type != MF_JSON_BOOL))
        return mf_build_fail(c->b, MEMFIT_UNSUPPORTED, "layer '%s': a constant that is no number or list",
                             c->layer->name);
    uint32_t first = c->lo->first_variable[c->graph_layer], variable = first + c->weights;
    if (first == MF_NONE || variable >= g->variable_count || g->variables[variable].layer != c->graph_layer) {
        mf_shape shape = {0};
        uint64_t count = flatten(value, NULL, 0, 0, &shape);
        float *numbers = MF_NEW_ARRAY(&g->arena, float, count + 1);
        mf_stored *stored = MF_NEW(&g->arena, mf_stored);
        char *name = mf_arena_printf(&g->arena, "%s/constant", g->layers[c->graph_layer].name);
        if (!numbers || !stored || !name)
            return mf_build_fail(c->b, MEMFIT_NO_HOST_MEMORY, "no host memory for a constant");
        if (count != mf_shape_count(&shape))
            return mf_build_fail(c->b, MEMFIT_DAMAGED, "layer '%s': a constant with ragged lists", c->layer->name);
        flatten(value, numbers, count, 0, &shape);
        *stored =
            (mf_stored){.path = "", .dtype = MF_F32, .shape = shape, .data = numbers, .bytes = count * sizeof(float)};
        mf_variable v = {.name = name,
                         .path = "",
                         .role = MF_VAR_CONSTANT,
                         .kind = MEMFIT_KIND_OTHER,
                         .dtype = MF_F32,
                         .shape = shape,
                         .parameter = MF_NONE,
                         .stored = stored};
        variable = mf_g_variable(c->b, &v);
        if (first == MF_NONE)
            c->lo->first_variable[c->graph_layer] = variable;
    }
    c->weights++;
    return mf_g_cast(c->b, mf_g_use(c->b, variable), c->compute);
}

uint32_t mf_kernel_weight(mf_layer_call *c, mf_shape shape)
{
    static const mf_weight_spec spec = {.name = "kernel",
                                        .initializer = "kernel_initializer",
                                        .otherwise = "glorot_uniform",
                                        .regularizer = "kernel_regularizer"};
    return mf_weight(c, &spec, shape);
}

uint32_t mf_bias_weight(mf_layer_call *c, int64_t count)
{
    static const mf_weight_spec spec = {
        .name = "bias", .initializer = "bias_initializer", .regularizer = "bias_regularizer"};
    if (!mf_json_get_bool(c->config, "use_bias", true))
        return MF_NONE;
    return mf_weight(c, &spec, mf_shape1(count));
}
