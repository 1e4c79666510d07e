/*
 * keras_legacy.c: models in plain HDF5, as Keras 1 to 3 write them for .h5.
 *
 *   attributes of the root   model_config, training_config (JSON), keras_version
 *   model_weights            layer_names; a group a layer, by its name, with weight_names
 *   .../<layer>/<weight>     the arrays; weight names hold slashes ("conv2d/kernel:0")
 *   optimizer_weights        weight_names, arrays
 *
 * Here layers go by name and arrays by order: trainable first, then the rest, which is the order of "vars" in .keras
 * files. A nested model's arrays lie flat in its group, all trainable ones first, so each is given to the inner layer
 * whose name is a part of the array's. The result has the paths of .keras files: "vars/0", "cell/vars/1".
 */
#include "base/text.h"
#include "model/keras/keras_inner.h"

#include <stdio.h>
#include <string.h>

/* ---- attributes ------------------------------------------------------------------------------------------- */

static memfit_status json_attribute(mf_arena *arena, mf_hdf5 *file, const char *name, mf_json **root, memfit_error *err)
{
    const char *text;
    memfit_status st = mf_hdf5_attribute_text(file, arena, file->root, name, &text, err);
    if (st)
        return st;
    st = mf_json_parse(arena, text, strlen(text), root, err);
    return st ? mf_error_prefix(err, st, "attribute %s", name) : MEMFIT_OK;
}

memfit_status mf_keras_legacy_config(mf_arena *arena, mf_hdf5 *file, mf_json **model_config, const mf_json **compile,
                                     const char **keras_version, memfit_error *err)
{
    mf_json *training;
    bool failed = false;
    memfit_status st = json_attribute(arena, file, "model_config", model_config, err);
    if (st == MEMFIT_NOT_FOUND) {
        mf_hdf5_group root;
        if ((st = mf_hdf5_group_open(file, arena, file->root, &root, err)))
            return st;
        mf_hdf5_dataset names;
        bool weights = mf_hdf5_group_find(&root, "layers") ||
                       mf_hdf5_group_find(&root, "_layer_checkpoint_dependencies") ||
                       mf_hdf5_attribute_open(file, file->root, "layer_names", &names, NULL) == MEMFIT_OK;
        if (weights)
            return mf_fail(err, MEMFIT_UNSUPPORTED,
                           "the file holds weights only, no architecture\nsave the whole "
                           "model: model.save('model.keras')");
        return mf_fail(err, MEMFIT_DAMAGED, "an HDF5 file, but no Keras model: it has no attribute model_config");
    }
    if (st)
        return st;
    st = json_attribute(arena, file, "training_config", &training, err);
    if (st && st != MEMFIT_NOT_FOUND)
        return st;
    if (!st && !mf_keras_name_custom(arena, training))
        return mf_keras_no_memory(err);
    if (!st && !(*compile = mf_keras_compile(arena, training, &failed)) && failed)
        return mf_keras_no_memory(err);
    if (mf_hdf5_attribute_text(file, arena, file->root, "keras_version", keras_version, err) != MEMFIT_OK)
        *keras_version = NULL;
    return MEMFIT_OK;
}

/* A list of names; long ones are split over name0, name1 ... */
static memfit_status name_list(mf_arena *arena, mf_hdf5 *file, uint64_t address, const char *name,
                               const char *const **texts, size_t *count, memfit_error *err)
{
    memfit_status st = mf_hdf5_attribute_texts(file, arena, address, name, texts, count, err);
    if (st != MEMFIT_NOT_FOUND)
        return st;
    const char **all = NULL;
    *count = 0;
    for (unsigned part = 0; part < 10000; part++) {
        char key[64];
        const char *const *some;
        size_t n;
        snprintf(key, sizeof key, "%s%u", name, part);
        st = mf_hdf5_attribute_texts(file, arena, address, key, &some, &n, err);
        if (st == MEMFIT_NOT_FOUND && part)
            break;
        if (st)
            return st;
        const char **joined = MF_NEW_ARRAY(arena, const char *, *count + n);
        if (!joined)
            return mf_keras_no_memory(err);
        if (*count)
            memcpy(joined, all, *count * sizeof *all);
        if (n)
            memcpy(joined + *count, some, n * sizeof *some);
        all = joined;
        *count += n;
    }
    *texts = all;
    return MEMFIT_OK;
}

/* ---- paths ------------------------------------------------------------------------------------------------ */

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(word, *list) == 0)
            return true;
    return false;
}

/* True when `part` is one of the components of `path`. */
static bool has_component(const char *path, const char *part)
{
    size_t n = strlen(part);
    for (const char *p = path; *p; p += strcspn(p, "/"), p += *p == '/')
        if (strcspn(p, "/") == n && strncmp(p, part, n) == 0)
            return true;
    return false;
}

static bool attention_path(const char *weight, mf_text *out)
{
    static const struct {
        const char *part, *path;
    } parts[] = {
        {"query", "query_dense"}, {"key", "key_dense"}, {"value", "value_dense"}, {"attention_output", "output_dense"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (has_component(weight, parts[i].part)) {
            mf_text_add(out, "%s/vars/%d", parts[i].path, strstr(weight, "bias") ? 1 : 0);
            return true;
        }
    return false;
}

/* Where array `index` of `count` stands in a .keras file, for a layer of that class. Wrappers nest: the text is cut
 * where there are more than it has room for. */
static void keras_path(const char *class_name, const mf_json *config, const char *weight, uint32_t index,
                       uint32_t count, mf_text *out)
{
    static const char *const recurrent[] = {"LSTM",       "GRU",        "SimpleRNN",  "RNN",
                                            "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", NULL};
    for (;;) {
        const mf_json *wrapped = mf_json_get(config, "layer");
        const char *inner = mf_json_get_string(wrapped, "class_name", NULL);
        if (!inner)
            break;
        if (strcmp(class_name, "Bidirectional") == 0) {
            bool back = index >= count / 2;
            mf_text_add(out, back ? "backward_layer/" : "forward_layer/");
            index -= back ? count / 2 : 0;
            count /= 2;
        } else {
            mf_text_add(out, "layer/");
        }
        class_name = inner;
        config = mf_json_get(wrapped, "config");
    }
    if (strcmp(class_name, "MultiHeadAttention") != 0 || !attention_path(weight, out))
        mf_text_add(out, is_one_of(class_name, recurrent) ? "cell/vars/%u" : "vars/%u", index);
}

/* ---- layers ----------------------------------------------------------------------------------------------- */

typedef struct legacy {
    mf_arena *arena;
    memfit_error *err;
    mf_hdf5 *file;
    mf_keras_table table; /* of model_weights, or of the root */
} legacy;

/* Some weights of a group, as indexes into its list of names. */
typedef struct chosen {
    const char *const *names;
    uint32_t *which;
    uint32_t count;
} chosen;

static memfit_status give(legacy *g, mf_layer *layer, const char *group, const chosen *c)
{
    if (!c->count)
        return MEMFIT_OK;
    if (!(layer->stored = MF_NEW_ARRAY(g->arena, mf_stored, c->count)))
        return mf_keras_no_memory(g->err);
    for (uint32_t i = 0; i < c->count; i++) {
        char full[1024], path[256];
        const char *weight = c->names[c->which[i]];
        snprintf(full, sizeof full, "%s/%s", group, weight);
        mf_keras_entry *e = mf_keras_table_find(&g->table, full);
        if (!e)
            return mf_fail(g->err, MEMFIT_DAMAGED, "layer %.80s lists an array %.100s, which is not in the file",
                           layer->name, weight);
        mf_text text;
        mf_text_init(&text, path, sizeof path);
        keras_path(layer->class_name, layer->config, weight, i, c->count, &text);
        if (text.length >= text.capacity)
            return mf_fail(g->err, MEMFIT_DAMAGED, "layer %.80s is wrapped too many times", layer->name);
        const char *kept = mf_arena_strdup(g->arena, path);
        if (!kept)
            return mf_keras_no_memory(g->err);
        memfit_status st = mf_keras_stored(g->arena, g->file, e->address, kept, &layer->stored[i], g->err);
        if (st)
            return mf_error_prefix(g->err, st, "%.200s", full);
        e->claimed = true;
    }
    layer->stored_count = c->count;
    return MEMFIT_OK;
}

/* Hands a nested model's flat list to its layers. Recurses for models inside models. */
static memfit_status give_inner(legacy *g, mf_model *inner, const char *group, const chosen *all)
{
    chosen some = {.names = all->names, .which = MF_NEW_ARRAY(g->arena, uint32_t, all->count)};
    if (!some.which)
        return mf_keras_no_memory(g->err);
    for (uint32_t i = 0; i < inner->layer_count; i++) {
        mf_layer *layer = &inner->layers[i];
        memfit_status st;
        if (layer->inner && !mf_json_get(layer->config, "layer")) {
            if ((st = give_inner(g, layer->inner, group, all)))
                return st;
            continue;
        }
        some.count = 0;
        for (uint32_t w = 0; w < all->count; w++)
            if (has_component(all->names[all->which[w]], layer->name))
                some.which[some.count++] = all->which[w];
        if ((st = give(g, layer, group, &some)))
            return st;
    }
    return MEMFIT_OK;
}

static memfit_status give_layer(legacy *g, const mf_hdf5_group *groups, mf_layer *layer)
{
    uint64_t address = mf_hdf5_group_find(groups, layer->name);
    if (!address || layer->is_operation)
        return MEMFIT_OK;
    size_t count;
    chosen c = {0};
    memfit_status st = name_list(g->arena, g->file, address, "weight_names", &c.names, &count, g->err);
    if (st == MEMFIT_NOT_FOUND)
        return MEMFIT_OK;
    if (st)
        return st;
    if (!(c.which = MF_NEW_ARRAY(g->arena, uint32_t, count)))
        return mf_keras_no_memory(g->err);
    for (; c.count < count; c.count++)
        c.which[c.count] = c.count;
    if (layer->inner)
        return give_inner(g, layer->inner, layer->name, &c);
    return give(g, layer, layer->name, &c);
}

/* ---- the optimizer ---------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *tail)
{
    size_t n = strlen(text), m = strlen(tail);
    return n >= m && strcmp(text + n - m, tail) == 0;
}

/* Keras before 2.11 stored all first moments, then all second ones; later files alternate. Brings the old order into
 * the new one. `rank[i]` is the place of name i. */
static void order_moments(const char *const *names, size_t count, uint32_t *rank)
{
    size_t first_m = count, first_v = count, m = 0, v = 0;
    for (size_t i = 0; i < count; i++) {
        rank[i] = (uint32_t)i;
        if (ends_with(names[i], "/m:0")) {
            first_m = first_m == count ? i : first_m;
            m++;
        } else if (ends_with(names[i], "/v:0")) {
            first_v = first_v == count ? i : first_v;
            v++;
        }
    }
    if (!m || m != v || first_v != first_m + m || first_v + v != count)
        return;
    for (size_t i = 0; i < m; i++) {
        rank[first_m + i] = (uint32_t)(first_m + 2 * i);
        rank[first_v + i] = (uint32_t)(first_m + 2 * i + 1);
    }
}

static memfit_status give_optimizer(legacy *g, mf_model *model, uint64_t address)
{
    const char *const *names;
    size_t count;
    mf_keras_table t = {.arena = g->arena, .err = g->err, .file = g->file, .plain = true};
    memfit_status st = name_list(g->arena, g->file, address, "weight_names", &names, &count, g->err);
    if (st == MEMFIT_NOT_FOUND)
        return MEMFIT_OK;
    if (st || (st = mf_keras_table_make(&t, address)))
        return st;
    uint32_t *rank = MF_NEW_ARRAY(g->arena, uint32_t, count);
    mf_stored *stored = MF_NEW_ARRAY(g->arena, mf_stored, count);
    if (!rank || !stored)
        return mf_keras_no_memory(g->err);
    order_moments(names, count, rank);
    for (size_t i = 0; i < count; i++) {
        mf_keras_entry *e = mf_keras_table_find(&t, names[i]);
        if (!e)
            return mf_fail(g->err, MEMFIT_DAMAGED, "the optimizer lists an array %.100s, which is not in the file",
                           names[i]);
        if ((st = mf_keras_stored(g->arena, g->file, e->address, names[i], &stored[rank[i]], g->err)))
            return mf_error_prefix(g->err, st, "optimizer_weights/%.200s", names[i]);
    }
    model->optimizer = stored;
    model->optimizer_count = (uint32_t)count;
    mf_keras_unwrap_optimizer(model);
    return MEMFIT_OK;
}

memfit_status mf_keras_legacy_weights(mf_arena *arena, mf_model *model, mf_hdf5 *file, memfit_error *err)
{
    legacy g = {.arena = arena, .err = err, .file = file};
    mf_hdf5_group root, groups;
    memfit_status st = mf_hdf5_group_open(file, arena, file->root, &root, err);
    if (st)
        return st;
    uint64_t weights = mf_hdf5_group_find(&root, "model_weights"),
             optimizer = mf_hdf5_group_find(&root, "optimizer_weights");
    if (weights) {
        g.table = (mf_keras_table){.arena = arena, .err = err, .file = file, .plain = true};
        if ((st = mf_hdf5_group_open(file, arena, weights, &groups, err)) ||
            (st = mf_keras_table_make(&g.table, weights)))
            return st;
        for (uint32_t i = 0; i < model->layer_count; i++)
            if ((st = give_layer(&g, &groups, &model->layers[i])))
                return st;
        for (size_t i = 0; i < g.table.count; i++)
            model->unclaimed_count += !g.table.entries[i].claimed;
    }
    return optimizer ? give_optimizer(&g, model, optimizer) : MEMFIT_OK;
}
