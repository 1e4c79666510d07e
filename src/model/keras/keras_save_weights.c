/*
 * keras_save_weights.c: the weights of a file to save: the old bytes with arrays replaced in place and a new optimizer
 * group behind, or all arrays in a new HDF5 image.
 */
#include "model/keras/keras_save_inner.h"
#include "base/sort.h"

#include <stdio.h>
#include <string.h>

enum { MOST_PATH = 1024 };

/* ---- finding arrays --------------------------------------------------------------------------------------- */

/* The layer of that path; nested models' names stand before a slash. */
static const mf_layer *find_layer(const mf_model *m, const char *path)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const mf_layer *l = &m->layers[i];
        size_t n = strlen(l->name);
        if (strcmp(l->name, path) == 0)
            return l;
        if (l->inner && strncmp(l->name, path, n) == 0 && path[n] == '/') {
            const mf_layer *inner = find_layer(l->inner, path + n + 1);
            if (inner)
                return inner;
        }
    }
    return NULL;
}

static const mf_stored *find_stored(const mf_layer *l, const char *path)
{
    for (uint32_t i = 0; i < l->stored_count; i++)
        if (strcmp(l->stored[i].path, path) == 0)
            return &l->stored[i];
    return NULL;
}

static bool same_array(const mf_stored *stored, const mf_save_array *a)
{
    return stored->dtype == a->dtype && mf_shape_equal(&stored->shape, &a->shape);
}

/* True when the stored bytes lie in the weights file itself, so that they can be replaced there. */
static bool is_in_file(const mf_model *m, const mf_stored *stored)
{
    const unsigned char *p = stored->data;
    return m->hdf5 && (!stored->bytes || (p >= m->hdf5->data && p + stored->bytes <= m->hdf5->data + m->hdf5->bytes));
}

static memfit_status check_weight(saving *s, const mf_save_array *a, const mf_stored **stored)
{
    const mf_layer *l = find_layer(s->model, a->layer);
    if (!l)
        return mf_fail(s->err, MEMFIT_INVALID, "the model has no layer %.200s", a->layer);
    if (a->dtype == MF_BOOL)
        return mf_fail(s->err, MEMFIT_UNSUPPORTED, "%.200s/%.80s: booleans are not saved", a->layer, a->path);
    *stored = find_stored(l, a->path);
    if (*stored && !same_array(*stored, a)) {
        char had[128], has[128];
        return mf_fail(s->err, MEMFIT_INVALID, "%.200s/%.80s is %s %s in the file, and %s %s is to be saved", a->layer,
                       a->path, mf_dtype_name((*stored)->dtype), mf_shape_format(&(*stored)->shape, had, sizeof had),
                       mf_dtype_name(a->dtype), mf_shape_format(&a->shape, has, sizeof has));
    }
    return MEMFIT_OK;
}

/* ---- replacing in place ----------------------------------------------------------------------------------- */

static void add_patch(saving *s, const mf_stored *stored, const void *data)
{
    if (stored->bytes)
        s->patches[s->patch_count++] =
            (mf_patch){(uint64_t)((const unsigned char *)stored->data - s->model->hdf5->data), data, stored->bytes};
}

static bool patch_below(const void *a, const void *b)
{
    return ((const mf_patch *)a)->at < ((const mf_patch *)b)->at;
}

static bool can_patch_optimizer(const saving *s)
{
    const mf_save_options *o = s->options;
    if (o->optimizer_count != s->model->optimizer_count)
        return false;
    for (uint32_t i = 0; i < o->optimizer_count; i++)
        if (!same_array(&s->model->optimizer[i], &o->optimizer[i]) || !is_in_file(s->model, &s->model->optimizer[i]))
            return false;
    return true;
}

/* The loss-scaling optimizer's own arrays: as given, else as stored, else as it starts. */
static mf_save_array outer_array(const saving *s, uint32_t index)
{
    static const int64_t none = 0;
    static const float rate = 0, scale = 32768;
    const mf_save_array fresh[MF_KERAS_OUTER_ARRAYS] = {{.dtype = MF_I64, .data = &none},
                                                        {.dtype = MF_F32, .data = &rate},
                                                        {.dtype = MF_I64, .data = &none},
                                                        {.dtype = MF_F32, .data = &scale}};
    const void *given = index == 2 ? (const void *)s->options->scale_steps : index == 3 ? s->options->loss_scale : NULL;
    if (given)
        return (mf_save_array){.dtype = fresh[index].dtype, .data = given};
    if (index >= s->model->outer_optimizer_count)
        return fresh[index];
    const mf_stored *stored = &s->model->outer_optimizer[index];
    return (mf_save_array){.dtype = stored->dtype, .shape = stored->shape, .data = stored->data};
}

/* Array i of the optimizer: as given, else as stored. */
static mf_save_array optimizer_array(const saving *s, uint32_t i)
{
    if (s->options->optimizer_count)
        return s->options->optimizer[i];
    const mf_stored *stored = &s->model->optimizer[i];
    return (mf_save_array){.dtype = stored->dtype, .shape = stored->shape, .data = stored->data};
}

static bool add_numbered(saving *s, mf_h5_node *group, uint32_t number, const mf_save_array *a, const char **name)
{
    *name = mf_arena_printf(s->arena, "%u", number);
    return *name && mf_h5_array(&s->writer, group, *name, a->dtype, &a->shape, a->data);
}

/* A new optimizer group: by number in .keras; in .h5 with the list of names that Keras goes by. Under mixed_float16
 * Keras wraps the optimizer and stores it twice. */
static memfit_status describe_optimizer(saving *s)
{
    uint32_t given = s->options->optimizer_count ? s->options->optimizer_count : s->model->optimizer_count;
    bool is_h5 = s->model->container == MF_CONTAINER_HDF5;
    const mf_json *scaling, *compile = s->options->compile ? s->options->compile : s->model->compile;
    mf_keras_optimizer(compile, &scaling);
    bool wrapped = scaling || strcmp(s->model->dtype_policy, "mixed_float16") == 0 ||
                   (s->model->outer_optimizer_count && compile == s->model->compile);
    uint32_t own = wrapped ? MF_KERAS_OUTER_ARRAYS : 0, count = own + given;
    mf_h5_node *group = mf_h5_group(&s->writer, s->writer.root, is_h5 ? "optimizer_weights" : "optimizer/vars");
    const char **names = MF_NEW_ARRAY(s->arena, const char *, count), *ignored;
    if (!group || !names)
        return no_memory(s);
    mf_h5_node *inner =
        wrapped && !is_h5 ? mf_h5_group(&s->writer, s->writer.root, "optimizer/inner_optimizer/vars") : NULL;
    for (uint32_t i = 0; i < count; i++) {
        mf_save_array a = i < own ? outer_array(s, i) : optimizer_array(s, i - own);
        if (!add_numbered(s, group, i, &a, &names[i]) ||
            (inner && i >= own && !add_numbered(s, inner, i - own, &a, &ignored)))
            return no_memory(s);
    }
    if (is_h5)
        mf_h5_texts(&s->writer, group, "weight_names", names, count);
    return MEMFIT_OK;
}

memfit_status mf_save_patches(saving *s, bool *fits)
{
    const mf_save_options *o = s->options;
    if (!(s->patches =
              MF_NEW_ARRAY(s->arena, mf_patch,
                           (size_t)o->weight_count + 2 * (size_t)o->optimizer_count + MF_KERAS_OUTER_ARRAYS + 1)))
        return no_memory(s);
    *fits = s->model->hdf5 && mf_h5_can_extend(s->model->hdf5);
    for (uint32_t i = 0; i < o->weight_count; i++) {
        const mf_stored *stored = NULL;
        memfit_status st = check_weight(s, &o->weights[i], &stored);
        if (st)
            return st;
        if (!stored || !is_in_file(s->model, stored))
            *fits = false;
        if (*fits)
            add_patch(s, stored, o->weights[i].data);
    }
    return MEMFIT_OK;
}

static void patch_optimizer(saving *s)
{
    for (uint32_t i = 2; i < MF_KERAS_OUTER_ARRAYS && i < s->model->outer_optimizer_count; i++) {
        const mf_stored *stored = &s->model->outer_optimizer[i];
        mf_save_array a = outer_array(s, i);
        if (a.data != stored->data && same_array(stored, &a) && is_in_file(s->model, stored))
            add_patch(s, stored, a.data);
    }
    for (uint32_t i = 0; i < s->options->optimizer_count; i++) {
        const mf_stored *stored = &s->model->optimizer[i];
        add_patch(s, stored, s->options->optimizer[i].data);
        if (i + MF_KERAS_OUTER_ARRAYS >= s->model->outer_optimizer_count)
            continue;
        const mf_stored *again = &s->model->outer_optimizer[i + MF_KERAS_OUTER_ARRAYS];
        if (again->data != stored->data && again->bytes == stored->bytes && is_in_file(s->model, again))
            add_patch(s, again, s->options->optimizer[i].data);
    }
}

memfit_status mf_save_extended(saving *s)
{
    const mf_save_options *o = s->options;
    memfit_status st = MEMFIT_OK;
    if (o->optimizer_count && can_patch_optimizer(s)) {
        patch_optimizer(s);
    } else if (o->optimizer_count && (st = describe_optimizer(s))) {
        return st;
    }
    mf_sort_in_place(s->patches, s->patch_count, sizeof(mf_patch), patch_below);
    return mf_h5_layout_extended(&s->writer, s->model->hdf5, s->patches, s->patch_count, &s->saver->image, s->err);
}

/* ---- a fresh weights file --------------------------------------------------------------------------------- */

static memfit_status describe_layers(saving *s, const mf_model *m, const char *names, const char *prefix);

static memfit_status describe_layer(saving *s, const mf_layer *l, const char *name, const char *group)
{
    mf_h5_node *node = mf_h5_group(&s->writer, s->writer.root, group);
    if (!node)
        return no_memory(s);
    for (uint32_t i = 0; i < l->stored_count; i++) {
        const mf_stored *d = &l->stored[i];
        bool given = false;
        for (uint32_t w = 0; w < s->options->weight_count; w++)
            given |=
                strcmp(s->options->weights[w].layer, name) == 0 && strcmp(s->options->weights[w].path, d->path) == 0;
        if (!given && !mf_h5_array(&s->writer, node, d->path, d->dtype, &d->shape, d->data))
            return no_memory(s);
    }
    for (uint32_t w = 0; w < s->options->weight_count; w++) {
        const mf_save_array *a = &s->options->weights[w];
        if (strcmp(a->layer, name) == 0 && !mf_h5_array(&s->writer, node, a->path, a->dtype, &a->shape, a->data))
            return no_memory(s);
    }
    return MEMFIT_OK;
}

static memfit_status describe_layers(saving *s, const mf_model *m, const char *names, const char *prefix)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const mf_layer *l = &m->layers[i];
        char key[512], name[MOST_PATH], group[MOST_PATH];
        if (!mf_keras_layer_key(m, i, key, sizeof key) || l->twin_model) /* stored where it comes first */
            continue;
        bool wrapper = l->inner && mf_json_get(l->config, "layer");
        const char *slash = l->inner ? "/" : "";
        if (snprintf(name, sizeof name, "%s%s%s", names, l->name, slash) >= MOST_PATH ||
            snprintf(group, sizeof group, "%slayers/%s%s%s", prefix, key, wrapper ? "/layer" : "", slash) >= MOST_PATH)
            return mf_fail(s->err, MEMFIT_INVALID, "layer %.80s: its name is too long", l->name);
        memfit_status st;
        if (l->inner) {
            st = describe_layers(s, l->inner, name, group);
        } else {
            st = describe_layer(s, l, name, group);
        }
        if (st)
            return st;
    }
    return MEMFIT_OK;
}

memfit_status mf_save_fresh(saving *s)
{
    memfit_status st = describe_layers(s, s->model, "", "");
    if (st)
        return st;
    if ((s->options->optimizer_count || s->model->optimizer_count) && (st = describe_optimizer(s)))
        return st;
    return mf_h5_layout(&s->writer, &s->saver->image, s->err);
}
