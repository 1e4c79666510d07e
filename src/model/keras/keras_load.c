/*
 * keras_load.c: opens a model file of any kind.
 *
 *   ZIP archive       .keras of Keras 2.12 to 3.x: config.json, metadata.json, model.weights.h5
 *   HDF5              legacy .h5, under any name (many files called .keras are HDF5)
 *   folder            an unpacked .keras
 *   text              model.to_json(), or a config.json alone: no weights
 *
 * The file is sniffed, never trusted by its name. It stays mapped as long as the model lives; weights are used in
 * place. Memory is bounded in proportion to the file, whatever the file claims.
 */
#include "model/keras/foreign.h"
#include "model/keras/keras_inner.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t most_config_bytes = 256u << 20;
enum { MOST_UNPACKED_IN_MEMORY = 1 << 20 };
enum { BYTES_A_JSON_BYTE = 64 }; /* a tree node is about 100 bytes, the shortest value with its comma two */

typedef struct loader {
    const memfit_host *host;
    mf_model *model;
    mf_arena *arena;
    unsigned flags;
    memfit_error *err;
} loader;

static void set_limit(loader *l, uint64_t file_bytes)
{
    uint64_t counted = file_bytes < most_config_bytes ? file_bytes : most_config_bytes;
    l->arena->limit_bytes = (64u << 20) + counted * BYTES_A_JSON_BYTE;
}

/* ---- the configuration ------------------------------------------------------------------------------------ */

/* Subclassed models carry no architecture: nothing can be planned from them. */
static memfit_status check_class(loader *l, const mf_json *object)
{
    const char *class_name = mf_json_get_string(object, "class_name", NULL);
    if (!class_name || object->type != MF_JSON_OBJECT)
        return mf_fail(l->err, MEMFIT_DAMAGED, "the configuration is not a Keras model: it names no class");
    if (mf_keras_is_model_class(class_name))
        return MEMFIT_OK;
    const char *registered = mf_json_get_string(object, "registered_name", class_name);
    if (mf_json_get(mf_json_get(object, "config"), "layers"))
        return mf_fail(l->err, MEMFIT_UNSUPPORTED,
                       "%.100s is a class of the model's author, derived from a Keras model\nin Python: m = "
                       "keras.Model(model.inputs, model.outputs); m.save('plain.keras')",
                       registered);
    return mf_fail(l->err, MEMFIT_UNSUPPORTED,
                   "%.100s is a subclassed model: its file holds no architecture, only its author's Python code "
                   "does\nrebuild it with the functional API and save that, or save keras.Model(inputs, "
                   "model.call(inputs))",
                   registered);
}

static memfit_status use_config(loader *l, mf_json *object)
{
    if (!mf_keras_name_custom(l->arena, object))
        return mf_keras_no_memory(l->err);
    memfit_status st = check_class(l, object);
    if (st)
        return st;
    l->model->root = object;
    bool failed = false;
    if (!l->model->compile)
        l->model->compile = mf_keras_compile(l->arena, mf_json_get(object, "compile_config"), &failed);
    if (failed)
        return mf_keras_no_memory(l->err);
    if (!l->model->keras_version)
        l->model->keras_version = mf_json_get_string(object, "keras_version", "");
    return mf_keras_build(l->arena, l->model, object, l->err);
}

static memfit_status parse_config(loader *l, const unsigned char *text, uint64_t bytes, const char *name)
{
    mf_json *root;
    if (bytes > most_config_bytes)
        return mf_fail(l->err, MEMFIT_DAMAGED, "%s: %" PRIu64 " bytes", name, bytes);
    memfit_status st = mf_json_parse(l->arena, (const char *)text, bytes, &root, l->err);
    if (!st)
        st = use_config(l, root);
    return st ? mf_error_prefix(l->err, st, "%s", name) : MEMFIT_OK;
}

static memfit_status parse_metadata(loader *l, const unsigned char *text, uint64_t bytes)
{
    mf_json *root;
    memfit_status st = mf_json_parse(l->arena, (const char *)text, bytes, &root, l->err);
    if (st)
        return mf_error_prefix(l->err, st, "metadata.json");
    l->model->keras_version = mf_json_get_string(root, "keras_version", NULL);
    return MEMFIT_OK;
}

static bool has_weights(const mf_model *m)
{
    for (uint32_t i = 0; i < m->layer_count; i++)
        if (m->layers[i].stored_count || (m->layers[i].inner && has_weights(m->layers[i].inner)))
            return true;
    return false;
}

/* A file without any weights is a model that was never trained; one with some must have all, as Keras holds it. */
static void want_weights(mf_model *m)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        m->layers[i].must_be_stored = true;
        if (m->layers[i].inner && !m->layers[i].twin_model)
            want_weights(m->layers[i].inner);
    }
}

/* ---- containers ------------------------------------------------------------------------------------------- */

static memfit_status use_weights(loader *l, const unsigned char *data, uint64_t bytes, const char *name)
{
    mf_hdf5 *file = MF_NEW(l->arena, mf_hdf5);
    if (!file)
        return mf_keras_no_memory(l->err);
    memfit_status st = mf_hdf5_open(file, data, bytes, name, l->err);
    l->model->hdf5 = file;
    return st ? st : mf_keras_match_weights(l->arena, l->model, file, l->err);
}

/* Somebody packed the archive again: weights that could be used in place are unpacked beside it, not in memory. */
static memfit_status unpack_weights(loader *l, const mf_zip *zip, const mf_zip_member *m, const unsigned char **data)
{
    unsigned char *out;
    memfit_status st = mf_zip_unpackable(m, l->err);
    if (st || (st = mf_os_spool_map(m->bytes, &out, l->err)))
        return st;
    l->model->unpacked = (mf_mapping){out, m->bytes};
    *data = out;
    return mf_zip_unpack(zip, m, l->host, out, l->err);
}

static memfit_status zip_weights(loader *l, const mf_zip *zip)
{
    const mf_zip_member *m = mf_zip_find(zip, "model.weights.h5");
    const unsigned char *data;
    if (!m) {
        for (size_t i = 0; i < zip->count; i++)
            if (strstr(zip->members[i].name, ".weights.npz") || strstr(zip->members[i].name, ".weights.json"))
                return mf_fail(l->err, MEMFIT_UNSUPPORTED,
                               "weights stored as %.80s\nsave the model with Keras's default "
                               "settings: model.save('model.keras')",
                               zip->members[i].name);
        return MEMFIT_OK;
    }
    bool verify =
        (l->flags & MF_LOAD_VERIFY) || ((l->flags & MF_LOAD_VERIFY_QUICK) && m->bytes <= MF_VERIFY_QUICK_BYTES);
    memfit_status st = m->method != 0 && m->bytes > MOST_UNPACKED_IN_MEMORY
                           ? unpack_weights(l, zip, m, &data)
                           : mf_zip_read(zip, m, l->arena, verify, &data, l->err);
    return st ? st : use_weights(l, data, m->bytes, "model.weights.h5");
}

static memfit_status load_zip(loader *l)
{
    mf_zip zip;
    const unsigned char *text;
    memfit_status st = mf_zip_open(&zip, l->arena, l->model->mapping.data, l->model->mapping.bytes, l->err);
    if (st)
        return st;
    l->model->container = MF_CONTAINER_KERAS_ZIP;
    const mf_zip_member *config = mf_zip_find(&zip, "config.json"), *metadata = mf_zip_find(&zip, "metadata.json");
    size_t arrays = 0;
    for (size_t i = 0; i < zip.count; i++) {
        size_t n = strlen(zip.members[i].name);
        arrays += n > 4 && strcmp(zip.members[i].name + n - 4, ".npy") == 0;
    }
    if (!config && arrays)
        return mf_fail(l->err, MEMFIT_DAMAGED,
                       "this is a NumPy archive (.npz): arrays, no model\n"
                       "give it as data: memfit train MODEL --data FILE.npz");
    if (!config)
        return mf_fail(l->err, MEMFIT_DAMAGED, "the archive holds no config.json: no Keras model%s",
                       mf_zip_find(&zip, "saved_model.pb") ? " (a SavedModel; save it as .keras)" : "");
    if (metadata && ((st = mf_zip_read(&zip, metadata, l->arena, true, &text, l->err)) ||
                     (st = parse_metadata(l, text, metadata->bytes))))
        return st;
    if (config->bytes > most_config_bytes)
        return mf_fail(l->err, MEMFIT_DAMAGED, "config.json claims %" PRIu64 " bytes", config->bytes);
    if ((st = mf_zip_read(&zip, config, l->arena, true, &text, l->err)) ||
        (st = parse_config(l, text, config->bytes, "config.json")))
        return st;
    return l->flags & MF_LOAD_NO_WEIGHTS ? MEMFIT_OK : zip_weights(l, &zip);
}

static memfit_status load_hdf5(loader *l)
{
    mf_hdf5 *file = MF_NEW(l->arena, mf_hdf5);
    mf_json *config;
    if (!file)
        return mf_keras_no_memory(l->err);
    l->model->container = MF_CONTAINER_HDF5;
    l->model->hdf5 = file;
    memfit_status st = mf_hdf5_open(file, l->model->mapping.data, l->model->mapping.bytes, "the HDF5 file", l->err);
    if (!st)
        st = mf_keras_legacy_config(l->arena, file, &config, &l->model->compile, &l->model->keras_version, l->err);
    if (st)
        return st;
    if ((st = use_config(l, config)))
        return mf_error_prefix(l->err, st, "model_config");
    return l->flags & MF_LOAD_NO_WEIGHTS ? MEMFIT_OK : mf_keras_legacy_weights(l->arena, l->model, file, l->err);
}

/* Files people take for models: say what they are. */
static memfit_status refuse_text(loader *l)
{
    const mf_mapping *m = &l->model->mapping;
    const char *text = (const char *)m->data;
    if (m->bytes > 30 && memcmp(text, "version https://git-lfs", 23) == 0)
        return mf_fail(l->err, MEMFIT_DAMAGED, "a Git LFS pointer, not the model itself\nrun: git lfs pull");
    if (m->bytes == 0)
        return mf_fail(l->err, MEMFIT_DAMAGED, "the file is empty");
    if (m->bytes > 14 && (memcmp(text, "<!DOCTYPE html", 14) == 0 || memcmp(text, "<html", 5) == 0))
        return mf_fail(l->err, MEMFIT_DAMAGED, "a web page, not a model: the download went wrong");
    return mf_fail(l->err, MEMFIT_DAMAGED,
                   "neither a .keras archive, nor HDF5, nor JSON (it begins with %02x %02x %02x %02x)", m->data[0],
                   m->bytes > 1 ? m->data[1] : 0, m->bytes > 2 ? m->data[2] : 0, m->bytes > 3 ? m->data[3] : 0);
}

static memfit_status load_mapped(loader *l)
{
    const mf_mapping *m = &l->model->mapping;
    set_limit(l, m->bytes);
    memfit_status foreign = mf_foreign_model(m->data, m->bytes, l->err);
    if (foreign)
        return foreign;
    if (mf_zip_sniff(m->data, m->bytes))
        return load_zip(l);
    if (mf_hdf5_sniff(m->data, m->bytes))
        return load_hdf5(l);
    uint64_t i = m->bytes >= 3 && memcmp(m->data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (i < m->bytes && strchr(" \t\r\n", m->data[i]) && m->data[i])
        i++;
    if (i < m->bytes && m->data[i] == '{') {
        l->model->container = MF_CONTAINER_JSON;
        return parse_config(l, m->data, m->bytes, "JSON");
    }
    return refuse_text(l);
}

/* An unpacked .keras: config.json is mapped only while it is read, the weights for good. */
static memfit_status load_folder(loader *l, const char *path)
{
    char name[4096];
    mf_mapping text;
    l->model->container = MF_CONTAINER_FOLDER;
    set_limit(l, most_config_bytes);
    snprintf(name, sizeof name, "%s/metadata.json", path);
    memfit_status st = MEMFIT_OK;
    if (mf_os_map_file(name, &text, NULL) == MEMFIT_OK) {
        st = parse_metadata(l, text.data, text.bytes);
        mf_os_unmap_file(&text);
    }
    if (st)
        return st;
    snprintf(name, sizeof name, "%s/config.json", path);
    if ((st = mf_os_map_file(name, &text, l->err))) {
        snprintf(name, sizeof name, "%s/saved_model.pb", path);
        if (st != MEMFIT_NOT_FOUND)
            return st;
        if (mf_os_file_bytes(name))
            return mf_fail(
                l->err, MEMFIT_UNSUPPORTED,
                "a SavedModel: a TensorFlow program, not a Keras model\nload it in Keras and save it as .keras");
        return mf_fail(l->err, MEMFIT_NOT_FOUND,
                       "a folder without config.json: no model\n"
                       "name a .keras or .h5 file, or a folder that a .keras file was unpacked to");
    }
    st = parse_config(l, text.data, text.bytes, "config.json");
    mf_os_unmap_file(&text);
    snprintf(name, sizeof name, "%s/model.weights.h5", path);
    if (st || l->flags & MF_LOAD_NO_WEIGHTS || mf_os_map_watched(name, &l->model->mapping, &l->model->descriptor, NULL))
        return st;
    return use_weights(l, l->model->mapping.data, l->model->mapping.bytes, "model.weights.h5");
}

/* ---- public ----------------------------------------------------------------------------------------------- */

static mf_model *new_model(const memfit_host *host)
{
    mf_model *m = mf_host_zalloc(host, sizeof *m);
    if (m) {
        mf_arena_init(&m->arena, host);
        m->descriptor = -1;
    }
    return m;
}

memfit_status mf_model_load_bytes(const memfit_host *host, const void *data, uint64_t bytes, unsigned flags,
                                  mf_model **model, memfit_error *err)
{
    memfit_error own;
    mf_model *m = new_model(host);
    if (!m)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a model");
    m->mapping = (mf_mapping){data, bytes};
    m->borrowed = true;
    loader l = {host, m, &m->arena, flags, err ? err : &own};
    memfit_status st = load_mapped(&l);
    if (!st && flags & MF_LOAD_VERIFY && has_weights(m))
        want_weights(m);
    if (st) {
        mf_model_destroy(m);
        return st;
    }
    *model = m;
    return MEMFIT_OK;
}

memfit_status mf_model_load_flags(const memfit_host *host, const char *path, unsigned flags, mf_model **model,
                                  memfit_error *err)
{
    memfit_error own;
    mf_model *m = new_model(host);
    loader l = {host, m, m ? &m->arena : NULL, flags, err ? err : &own};
    if (!m || !(m->path = mf_arena_strdup(&m->arena, path))) {
        mf_model_destroy(m);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for a model");
    }
    memfit_status st;
    if (mf_os_is_folder(path)) {
        st = load_folder(&l, path);
        if (st)
            mf_error_prefix(l.err, st, "%.200s", path);
    } else if (!(st = mf_os_map_watched(path, &m->mapping, &m->descriptor, l.err)) && (st = load_mapped(&l))) {
        mf_error_prefix(l.err, st, "%.200s", path);
    }
    m->stamp = mf_os_watched_stamp(m->descriptor);
    if (!st && flags & MF_LOAD_VERIFY && has_weights(m))
        want_weights(m);
    if (st) {
        mf_model_destroy(m);
        return st;
    }
    *model = m;
    return MEMFIT_OK;
}

memfit_status mf_model_load(const memfit_host *host, const char *path, mf_model **model, memfit_error *err)
{
    return mf_model_load_flags(host, path, 0, model, err);
}

memfit_status mf_model_unchanged(const mf_model *m, memfit_error *err)
{
    if (m->descriptor < 0 || mf_os_watched_stamp(m->descriptor) == m->stamp)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_DAMAGED,
                   "%.200s was written to while it was in use\n"
                   "write a new model to another name, then rename it: a file in use stays as it is then",
                   m->path);
}

void mf_model_destroy(mf_model *m)
{
    if (!m)
        return;
    mf_os_unwatch(m->descriptor);
    const memfit_host *host = m->arena.host;
    if (m->mapping.data && !m->borrowed)
        mf_os_unmap_file(&m->mapping);
    mf_os_unmap_file(&m->unpacked);
    mf_arena_destroy(&m->arena);
    mf_host_free(host, m, sizeof *m);
}
