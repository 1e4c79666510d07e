/*
 * keras_save.c: lays out the file a model is saved to, and writes it.
 *
 *   weights file   extended: the old bytes with arrays replaced in place, a new optimizer group behind
 *                  fresh:    all arrays in a new HDF5 image (no weights were there, or they cannot be replaced)
 *   archive        metadata.json, config.json, model.weights.h5, other members as they were, the extra member
 *
 * The file is a list of segments. Members whose contents change from write to write (weights, extra) get their check
 * sums computed over their segments before the headers are written: one pass for the sum, one for the file.
 *
 * Dropped: patching the archive itself in place (copy the file, overwrite, fix two check sums). It saved laying out
 * some 200 bytes of headers and could neither add a member nor handle archives written to a pipe, whose check sums
 * stand behind the data.
 */
#include "model/keras/keras_save.h"

#include "model/keras/keras_save_inner.h"

#include <stdio.h>
#include <string.h>

enum { MOST_MEMBERS = 4096, ALIGNMENT = 64, MOST_COPIED_BYTES = 1 << 20 };

/* ---- the configuration ------------------------------------------------------------------------------------ */

/* A copy of `object` with one member replaced or added. */
static mf_json *with_member(mf_arena *arena, const mf_json *object, const char *key, const mf_json *value)
{
    mf_json *made = mf_json_new(arena, MF_JSON_OBJECT);
    bool done = false;
    for (const mf_json *m = object->first; m; m = m->next) {
        bool hit = strcmp(m->key, key) == 0;
        mf_json *copy = MF_NEW(arena, mf_json);
        if (!copy)
            return NULL;
        *copy = hit ? *value : *m;
        copy->next = NULL;
        done |= hit;
        if (!mf_json_add(arena, made, m->key, copy))
            return NULL;
    }
    if (!done) {
        mf_json *copy = MF_NEW(arena, mf_json);
        if (!copy)
            return NULL;
        *copy = *value;
        copy->next = NULL;
        if (!mf_json_add(arena, made, key, copy))
            return NULL;
    }
    return made;
}

static char *config_text(saving *s, size_t *bytes)
{
    const mf_json *root = s->model->root;
    if (root && s->options->compile)
        root = with_member(s->arena, root, "compile_config", s->options->compile);
    return root ? mf_json_print(s->arena, root, bytes) : NULL;
}

/* compile settings as .h5 files have them. */
static memfit_status describe_training(saving *s)
{
    mf_json *made = mf_json_new(s->arena, MF_JSON_OBJECT);
    for (const mf_json *m = s->options->compile->first; m; m = m->next) {
        mf_json *copy = MF_NEW(s->arena, mf_json);
        if (!copy)
            return no_memory(s);
        *copy = *m;
        copy->next = NULL;
        if (!mf_json_add(s->arena, made, strcmp(m->key, "optimizer") == 0 ? "optimizer_config" : m->key, copy))
            return no_memory(s);
    }
    if (made && !mf_json_get(made, "loss_weights")) /* Keras reads this one without asking whether it is there */
        mf_json_add(s->arena, made, "loss_weights", mf_json_new(s->arena, MF_JSON_NULL));
    char *text = made ? mf_json_print(s->arena, made, NULL) : NULL;
    if (!text)
        return no_memory(s);
    mf_h5_text(&s->writer, s->writer.root, "training_config", text);
    return MEMFIT_OK;
}

/* ---- archives --------------------------------------------------------------------------------------------- */

static member *begin_member(saving *s, const char *name)
{
    member *m = &s->saver->members[s->saver->member_count++];
    *m = (member){.entry.name = name, .first = s->saver->image.count};
    return m;
}

static void end_member(saving *s, member *m, uint64_t bytes_before)
{
    m->end = s->saver->image.count;
    m->entry.bytes = m->entry.packed_bytes = s->saver->image.bytes - bytes_before;
}

static void add_plain(saving *s, const char *name, const void *data, uint64_t bytes)
{
    uint64_t before = s->saver->image.bytes;
    member *m = begin_member(s, name);
    mf_image_add(&s->saver->image, data, bytes);
    m->entry.crc = mf_crc32(0, data, bytes);
    end_member(s, m, before);
}

static void add_packed(saving *s, const mf_zip *zip, const mf_zip_member *old)
{
    uint64_t before = s->saver->image.bytes;
    member *m = begin_member(s, old->name);
    mf_image_add(&s->saver->image, zip->data + old->data_at, old->packed_bytes);
    end_member(s, m, before);
    m->entry.bytes = old->bytes;
    m->entry.method = old->method;
    m->entry.crc = old->crc;
}

static bool is_ours(const saving *s, const char *name)
{
    return strcmp(name, "metadata.json") == 0 || strcmp(name, "config.json") == 0 ||
           strcmp(name, "model.weights.h5") == 0 ||
           (s->options->extra_name && strcmp(name, s->options->extra_name) == 0);
}

static memfit_status add_configuration(saving *s, const mf_zip *zip)
{
    const mf_zip_member *metadata = mf_zip_find(zip, "metadata.json"), *config = mf_zip_find(zip, "config.json");
    size_t bytes;
    if (metadata) {
        add_packed(s, zip, metadata);
    } else { /* no date: the same training gives the same file */
        const char *version = s->model->keras_version && *s->model->keras_version ? s->model->keras_version : "3.10.0";
        char *text = mf_arena_printf(
            s->arena, "{\"keras_version\": \"%.40s\", \"date_saved\": \"1980-01-01@00:00:00\"}", version);
        if (!text)
            return no_memory(s);
        add_plain(s, "metadata.json", text, strlen(text));
    }
    if (config && !s->options->compile) {
        add_packed(s, zip, config);
        return MEMFIT_OK;
    }
    char *text = config_text(s, &bytes);
    if (!text)
        return no_memory(s);
    add_plain(s, "config.json", text, bytes);
    return MEMFIT_OK;
}

/* Puts headers before the members' segments and the directory behind: the image is rebuilt once. */
static memfit_status frame(saving *s)
{
    mf_saver *v = s->saver;
    mf_image bare = v->image, framed = {.arena = s->arena};
    if (!(v->entries = MF_NEW_ARRAY(s->arena, mf_zip_entry, v->member_count)))
        return no_memory(s);
    for (size_t i = 0; i < v->member_count; i++)
        v->entries[i] = v->members[i].entry;
    uint64_t whole = mf_zip_layout(v->entries, v->member_count, ALIGNMENT, &v->directory_at);
    for (size_t i = 0; i < v->member_count; i++) {
        member *m = &v->members[i];
        uint64_t header_bytes = v->entries[i].data_at - v->entries[i].header_at;
        if (!(m->header = mf_arena_alloc(s->arena, header_bytes)))
            return no_memory(s);
        mf_image_add(&framed, m->header, header_bytes);
        size_t first = framed.count;
        for (size_t k = m->first; k < m->end; k++)
            mf_image_add(&framed, bare.segments[k].data, bare.segments[k].bytes);
        m->first = first;
        m->end = framed.count;
    }
    if (!(v->directory = mf_arena_alloc(s->arena, whole - v->directory_at)))
        return no_memory(s);
    mf_image_add(&framed, v->directory, whole - v->directory_at);
    v->image = framed;
    return bare.failed || framed.failed ? no_memory(s) : MEMFIT_OK;
}

static memfit_status lay_out_zip(saving *s)
{
    mf_zip zip = {0};
    memfit_status st;
    if (s->model->container == MF_CONTAINER_KERAS_ZIP &&
        (st = mf_zip_open(&zip, s->arena, s->model->mapping.data, s->model->mapping.bytes, s->err)))
        return st;
    if (zip.count > MOST_MEMBERS)
        return mf_fail(s->err, MEMFIT_UNSUPPORTED, "an archive of %zu members", zip.count);
    s->saver->is_zip = true;
    if (!(s->saver->members = MF_NEW_ARRAY(s->arena, member, zip.count + 4)))
        return no_memory(s);
    if ((st = add_configuration(s, &zip)))
        return st;
    bool fits = false;
    if ((st = mf_save_patches(s, &fits)))
        return st;
    uint64_t before = s->saver->image.bytes;
    member *m = begin_member(s, "model.weights.h5");
    if ((st = fits ? mf_save_extended(s) : mf_save_fresh(s)))
        return st;
    end_member(s, m, before);
    m->changes = true;
    for (size_t i = 0; i < zip.count; i++)
        if (!is_ours(s, zip.members[i].name) && mf_zip_find(&zip, zip.members[i].name) == &zip.members[i])
            add_packed(s, &zip, &zip.members[i]);
    if (s->options->extra_name && s->options->extra) {
        add_plain(s, s->options->extra_name, s->options->extra, s->options->extra_bytes);
        s->saver->members[s->saver->member_count - 1].changes = true;
    }
    return frame(s);
}

/* Where an HDF5 file has its extra member: an array of bytes at its root. */
static memfit_status find_extra_array(const mf_model *m, mf_arena *arena, const char *name, mf_hdf5_dataset *found,
                                      memfit_error *err)
{
    uint64_t at;
    memfit_status st = mf_hdf5_find(m->hdf5, arena, m->hdf5->root, name, &at, err);
    if (!st)
        st = mf_hdf5_dataset_open(m->hdf5, at, found, err);
    if (!st && (found->storage != MF_HDF5_IN_PLACE || found->element_bytes != 1))
        st = mf_fail(err, MEMFIT_NOT_FOUND, "the file has no member %.80s", name);
    return st;
}

/* Replaced where it lies when it is as long; zeros where none is wanted: an extended file keeps its old bytes. */
static memfit_status add_extra_array(saving *s)
{
    const mf_save_options *o = s->options;
    mf_hdf5_dataset old;
    if (!o->extra_name)
        return MEMFIT_OK;
    bool there = find_extra_array(s->model, s->arena, o->extra_name, &old, NULL) == MEMFIT_OK && old.bytes;
    const void *data = o->extra;
    if (!data && !there)
        return MEMFIT_OK;
    if (!data && !(data = MF_NEW_ARRAY(s->arena, unsigned char, old.bytes)))
        return no_memory(s);
    if (there && (!o->extra || old.bytes == o->extra_bytes)) {
        s->patches[s->patch_count++] = (mf_patch){(uint64_t)(old.data - s->model->hdf5->data), data, old.bytes};
        return MEMFIT_OK;
    }
    mf_shape shape = {.rank = 1, .dim = {(int64_t)o->extra_bytes}};
    return mf_h5_array(&s->writer, s->writer.root, o->extra_name, MF_U8, &shape, data) ? MEMFIT_OK : no_memory(s);
}

static memfit_status lay_out_hdf5(saving *s)
{
    bool fits = false;
    memfit_status st = mf_save_patches(s, &fits);
    if (st)
        return st;
    if (!fits)
        return mf_fail(s->err, MEMFIT_UNSUPPORTED,
                       "this .h5 file cannot be extended: its arrays are packed, or it is in the "
                       "newest HDF5 form\nload it in Keras and save it as .keras first");
    if ((st = add_extra_array(s)))
        return st;
    if (s->options->compile && (st = describe_training(s)))
        return st;
    return mf_save_extended(s);
}

/* ---- independence of the old file -------------------------------------------------------------------------- */

static bool is_mapped(const mf_model *m, const mf_segment *segment)
{
    const unsigned char *p = segment->data;
    return !m->borrowed && p >= m->mapping.data && p < m->mapping.data + m->mapping.bytes;
}

/* What is taken over from the old file is copied: it is mapped, and whoever saves to its name while a training runs
 * would cut it off under the saver, or change bytes of the files still to be written. */
static memfit_status keep_old_bytes(saving *s)
{
    mf_saver *v = s->saver;
    uint64_t total = 0;
    for (size_t i = 0; i < v->image.count; i++)
        total += is_mapped(s->model, &v->image.segments[i]) ? v->image.segments[i].bytes : 0;
    unsigned char *to = NULL;
    if (total > MOST_COPIED_BYTES) {
        memfit_status st = mf_os_spool_map(total, &v->spooled, s->err);
        if (st)
            return st;
        v->spooled_bytes = total;
        to = v->spooled;
    } else if (total && !(to = mf_arena_alloc(s->arena, total))) {
        return no_memory(s);
    }
    for (size_t i = 0; i < v->image.count; i++) {
        mf_segment *segment = &v->image.segments[i];
        if (!is_mapped(s->model, segment))
            continue;
        memcpy(to, segment->data, segment->bytes);
        segment->data = to;
        to += segment->bytes;
    }
    return MEMFIT_OK;
}

static memfit_status take_fetch(saving *s)
{
    mf_saver *v = s->saver;
    const mf_save_options *o = s->options;
    v->fetch = o->fetch;
    v->fetch_ctx = o->fetch_ctx;
    v->far_from = o->far_from;
    v->far_bytes = o->far_bytes;
    v->chunk = o->fetch ? mf_arena_alloc(s->arena, MF_SAVE_CHUNK_BYTES) : NULL;
    if (v->chunk)
        memset(v->chunk, 0, MF_SAVE_CHUNK_BYTES); /* its pages are there before the first file is written */
    return o->fetch && !v->chunk ? no_memory(s) : MEMFIT_OK;
}

/* ---- public ----------------------------------------------------------------------------------------------- */

memfit_status mf_saver_create(const memfit_host *host, const mf_model *model, const mf_save_options *options,
                              mf_saver **saver, memfit_error *err)
{
    static const mf_save_options nothing;
    mf_saver *v = mf_host_zalloc(host, sizeof *v);
    if (!v)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to lay out the file to save");
    mf_arena_init(&v->arena, host);
    v->image.arena = &v->arena;
    saving s = {.saver = v, .arena = &v->arena, .model = model, .options = options ? options : &nothing, .err = err};
    mf_h5_begin(&s.writer, &v->arena);
    memfit_status st = take_fetch(&s);
    if (!st)
        st = model->container == MF_CONTAINER_HDF5 ? lay_out_hdf5(&s) : lay_out_zip(&s);
    if (!st)
        st = keep_old_bytes(&s);
    if (st) {
        mf_saver_destroy(v);
        return st;
    }
    *saver = v;
    return MEMFIT_OK;
}

/* Hands the bytes of a segment on: where they lie, or fetched chunk by chunk. */
static memfit_status each_part(mf_saver *v, const mf_segment *segment,
                               memfit_status (*use)(void *ctx, const void *data, uint64_t bytes, memfit_error *err),
                               void *ctx, memfit_error *err)
{
    const unsigned char *at = segment->data, *from = v->far_from;
    if (!v->fetch || at < from || (uint64_t)(at - from) >= v->far_bytes)
        return use(ctx, segment->data, segment->bytes, err);
    memfit_status st = MEMFIT_OK;
    for (uint64_t done = 0, n; done < segment->bytes && !st; done += n) {
        n = segment->bytes - done < MF_SAVE_CHUNK_BYTES ? segment->bytes - done : MF_SAVE_CHUNK_BYTES;
        st = v->fetch(v->fetch_ctx, at + done, v->chunk, n, err);
        if (!st)
            st = use(ctx, v->chunk, n, err);
    }
    return st;
}

static memfit_status add_to_crc(void *ctx, const void *data, uint64_t bytes, memfit_error *err)
{
    (void)err;
    *(uint32_t *)ctx = mf_crc32(*(uint32_t *)ctx, data, bytes);
    return MEMFIT_OK;
}

static memfit_status add_to_file(void *ctx, const void *data, uint64_t bytes, memfit_error *err)
{
    return mf_os_raw_write(ctx, data, bytes, err);
}

/* Check sums of what changes, then all headers. */
static memfit_status finish_headers(mf_saver *v, memfit_error *err)
{
    memfit_status st = MEMFIT_OK;
    for (size_t i = 0; i < v->member_count && !st; i++) {
        member *m = &v->members[i];
        if (m->changes) {
            uint32_t crc = 0;
            for (size_t k = m->first; k < m->end && !st; k++)
                st = each_part(v, &v->image.segments[k], add_to_crc, &crc, err);
            v->entries[i].crc = crc;
        }
        mf_zip_local_header(&v->entries[i], m->header);
    }
    mf_zip_directory(v->entries, v->member_count, v->directory_at, v->directory);
    return st;
}

memfit_status mf_saver_write(mf_saver *v, const char *path, memfit_error *err)
{
    mf_rawfile out;
    memfit_status st = v->is_zip ? finish_headers(v, err) : MEMFIT_OK;
    if (!st)
        st = mf_os_raw_open(&out, path, err);
    if (st)
        return st;
    for (size_t i = 0; i < v->image.count; i++)
        if ((st = each_part(v, &v->image.segments[i], add_to_file, &out, err))) {
            mf_os_raw_abandon(&out);
            return st;
        }
    return mf_os_raw_commit(&out, err);
}

uint64_t mf_saver_file_bytes(const mf_saver *v)
{
    return v->image.bytes;
}

uint64_t mf_saver_bytes(const mf_saver *v)
{
    return sizeof *v + v->arena.bytes;
}

void mf_saver_destroy(mf_saver *v)
{
    if (!v)
        return;
    const memfit_host *host = v->arena.host;
    if (v->spooled)
        mf_os_spool_unmap(v->spooled, v->spooled_bytes);
    mf_arena_destroy(&v->arena);
    mf_host_free(host, v, sizeof *v);
}

memfit_status mf_model_save(const memfit_host *host, const mf_model *model, const mf_save_options *options,
                            const char *path, memfit_error *err)
{
    mf_saver *saver = NULL;
    memfit_status st = mf_saver_create(host, model, options, &saver, err);
    if (st)
        return st;
    st = mf_saver_write(saver, path, err);
    mf_saver_destroy(saver);
    return st;
}

static memfit_status extra_array(mf_model *model, const char *name, const void **data, uint64_t *bytes,
                                 memfit_error *err)
{
    mf_hdf5_dataset found;
    memfit_status st = find_extra_array(model, &model->arena, name, &found, err);
    uint64_t zeros = 0;
    while (!st && zeros < found.bytes && found.data[zeros] == 0)
        zeros++;
    if (!st && zeros == found.bytes)
        st = mf_fail(err, MEMFIT_NOT_FOUND, "the file has no member %.80s", name);
    if (!st) {
        *data = found.data;
        *bytes = found.bytes;
    }
    return st;
}

memfit_status mf_model_extra(mf_model *model, const char *name, const void **data, uint64_t *bytes, memfit_error *err)
{
    mf_zip zip;
    const mf_zip_member *m = NULL;
    const unsigned char *p;
    memfit_status st = MEMFIT_OK;
    if (model->container == MF_CONTAINER_HDF5)
        return extra_array(model, name, data, bytes, err);
    if (model->container == MF_CONTAINER_KERAS_ZIP &&
        !(st = mf_zip_open(&zip, &model->arena, model->mapping.data, model->mapping.bytes, err)))
        m = mf_zip_find(&zip, name);
    if (st)
        return st;
    if (!m)
        return mf_fail(err, MEMFIT_NOT_FOUND, "the file has no member %.80s", name);
    if ((st = mf_zip_read(&zip, m, &model->arena, true, &p, err)))
        return st;
    *data = p;
    *bytes = m->bytes;
    return MEMFIT_OK;
}
