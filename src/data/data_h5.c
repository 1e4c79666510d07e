/*
 * data_h5.c: data sets of an HDF5 file: those of the root group (x, y, or as the model names them), and of the groups in it
 * by their paths (train/x). Which of several is meant is the business of source_names.c.
 */
#include "base/error.h"
#include "data/labels.h"
#include "data/source.h"
#include "file/hdf5.h"

#include <string.h>

enum { MOST_DEPTH = 8, MOST_DATASETS = 4096, HEAP_STEPS = 512 };

static bool type_of(const mf_hdf5_dataset *d, mf_dtype *dtype)
{
    switch (d->kind) {
    case MF_HDF5_FLOAT:
        *dtype = d->element_bytes == 2 ? MF_F16 : d->element_bytes == 4 ? MF_F32 : MF_F64;
        return d->element_bytes == 2 || d->element_bytes == 4 || d->element_bytes == 8;
    case MF_HDF5_INT:
        *dtype = d->element_bytes == 1   ? MF_I8
                 : d->element_bytes == 2 ? MF_I16
                 : d->element_bytes == 4 ? MF_I32
                                         : MF_I64;
        return d->element_bytes == 1 || d->element_bytes == 2 || d->element_bytes == 4 || d->element_bytes == 8;
    case MF_HDF5_UINT:
        *dtype = d->element_bytes == 1   ? MF_U8
                 : d->element_bytes == 2 ? MF_U16
                 : d->element_bytes == 4 ? MF_U32
                                         : MF_U64;
        return d->element_bytes == 1 || d->element_bytes == 2 || d->element_bytes == 4 || d->element_bytes == 8;
    case MF_HDF5_BOOL:
        *dtype = MF_BOOL;
        return d->element_bytes == 1;
    default:
        return false;
    }
}

/* Chunks and filters: decoded once, in order, into a temporary file. */
static memfit_status unpack(mf_source *source, const char *name, const mf_hdf5_dataset *d, const mf_log *log,
                            unsigned char **data, memfit_error *err)
{
    unsigned char *out;
    char text[24];
    mf_log_write(log, MF_LOG_NOTE, "%s: %s is stored %s; unpacked to a temporary file of %s, to be read in any order",
                 source->path, name, d->swapped ? "with the other byte order" : "in chunks",
                 memfit_size_format(d->bytes, text, sizeof text));
    memfit_status status = mf_source_spool(source, d->bytes, &out, err);
    mf_hdf5_reader *reader = NULL;
    if (status == MEMFIT_OK)
        status = mf_hdf5_reader_open(d, source->arena.host, &reader, err);
    /* An array may claim any number of rows that hold nothing. */
    uint64_t rows = !d->bytes ? 0 : d->rank ? d->shape[0] : 1, row_bytes = rows ? d->bytes / rows : 0;
    for (uint64_t at = 0; at < rows && status == MEMFIT_OK;) {
        uint64_t n = rows - at < 64 ? rows - at : 64;
        status = mf_hdf5_reader_rows(reader, at, n, out + at * row_bytes, err);
        at += n;
    }
    if (reader)
        mf_hdf5_reader_close(reader);
    *data = out;
    return status;
}

static void turn_round(unsigned char *data, uint64_t count, unsigned size)
{
    for (uint64_t i = 0; i < count; i++, data += size)
        for (unsigned a = 0, b = size - 1; a < b; a++, b--) {
            unsigned char swap = data[a];
            data[a] = data[b];
            data[b] = swap;
        }
}

/* Texts, one for each sample, become labels. */
static memfit_status add_texts(mf_source *source, const char *name, mf_hdf5_dataset *d, const unsigned char *data,
                               memfit_error *err)
{
    mf_labels labels;
    unsigned char *codes;
    memfit_error why = {0};
    memfit_status status = mf_source_spool(source, d->elements * sizeof(int32_t), &codes, err);
    if (status != MEMFIT_OK)
        return status;
    mf_labels_begin(&labels, source);
    d->file->steps += d->elements * HEAP_STEPS; /* each is looked for in a heap of some dozens */
    for (uint64_t i = 0; i < d->elements && status == MEMFIT_OK; i++) {
        const char *text;
        uint64_t bytes;
        status = mf_hdf5_text(d->file, d, data + i * d->element_bytes, &text, &bytes, &why);
        if (status == MEMFIT_OK)
            status = mf_labels_number(&labels, text, bytes, (int32_t *)(void *)codes + i, &why);
    }
    if (status == MEMFIT_OK)
        return mf_labels_end(&labels, name, (int32_t *)(void *)codes, (int64_t)d->elements, source->classes_given, err);
    mf_labels_drop(&labels);
    if (status == MEMFIT_UNSUPPORTED) {
        mf_error_prefix(&why, status, "%s: %s", source->path, name);
        return mf_source_add_unusable(source, name, &why, err);
    }
    if (err)
        *err = why;
    return status;
}

static bool has_texts(const mf_hdf5_dataset *d)
{
    return (d->kind == MF_HDF5_STRING || d->kind == MF_HDF5_VLEN_STRING) && d->elements &&
           d->storage != MF_HDF5_NO_DATA && (d->rank == 1 || (d->rank == 2 && d->shape[1] == 1));
}

static memfit_status add_dataset(mf_source *source, const char *name, mf_hdf5_dataset *d, const mf_log *log,
                                 memfit_error *err)
{
    mf_dtype dtype = MF_U8;
    mf_shape shape = {.rank = d->rank};
    if (!has_texts(d) && !type_of(d, &dtype)) {
        memfit_error why;
        mf_fail(&why, MEMFIT_UNSUPPORTED,
                "%s: %s has elements of a type that is not read\nsave it as float32, uint8 or int32", source->path,
                name);
        return mf_source_add_unusable(source, name, &why, err);
    }
    for (unsigned i = 0; i < d->rank; i++)
        shape.dim[i] = (int64_t)d->shape[i];
    const unsigned char *data = d->data;
    if (d->storage != MF_HDF5_IN_PLACE || d->swapped) {
        unsigned char *out = NULL;
        memfit_status status = unpack(source, name, d, log, &out, err);
        if (status != MEMFIT_OK)
            return status;
        if (d->swapped)
            turn_round(out, d->elements, d->element_bytes);
        data = out;
    }
    return has_texts(d) ? add_texts(source, name, d, data, err)
                        : mf_source_add(source, name, dtype, &shape, data, d->bytes, err);
}

typedef struct reading {
    mf_source *source;
    mf_hdf5 *file;
    const mf_log *log;
    const char *wanted; /* --features: what else there is need not be unpacked; NULL: all */
    unsigned datasets;
} reading;

static bool is_wanted(const reading *r, const char *path)
{
    size_t n = strlen(path);
    for (const char *p = r->wanted; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        const char *equals = p + strcspn(p, "=,"), *from = *equals == '=' ? equals + 1 : p;
        if (strcspn(from, ",") == n && memcmp(from, path, n) == 0)
            return true;
    }
    return !r->wanted;
}

static memfit_status read_one(reading *r, const char *path, uint64_t address, memfit_error *err)
{
    mf_hdf5_dataset d;
    memfit_error why;
    if (!is_wanted(r, path))
        return MEMFIT_OK;
    if (r->datasets++ == MOST_DATASETS)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s holds more than %d arrays\n--features x=...,y=... names those to use", r->source->path,
                       MOST_DATASETS);
    memfit_status status = mf_hdf5_dataset_open(r->file, address, &d, &why);
    if (status == MEMFIT_OK)
        return d.rank > 0 ? add_dataset(r->source, path, &d, r->log, err) : MEMFIT_OK;
    if (status == MEMFIT_UNSUPPORTED) /* told when it is asked for: it may stand beside the data */
        return mf_source_add_unusable(r->source, path, &why, err);
    if (err)
        *err = why;
    return status;
}

static memfit_status read_group(reading *r, const char *prefix, uint64_t address, unsigned depth, memfit_error *err)
{
    mf_hdf5_group group;
    memfit_status status = mf_hdf5_group_open(r->file, &r->source->arena, address, &group, err);
    for (size_t i = 0; status == MEMFIT_OK && i < group.count; i++) {
        bool is_dataset = false;
        const mf_hdf5_link *link = &group.links[i];
        const char *path = *prefix ? mf_arena_printf(&r->source->arena, "%s/%s", prefix, link->name) : link->name;
        if (!path)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", r->source->path);
        status = mf_hdf5_is_dataset(r->file, link->address, &is_dataset, err);
        if (status == MEMFIT_OK && is_dataset)
            status = read_one(r, path, link->address, err);
        else if (status == MEMFIT_OK && depth < MOST_DEPTH)
            status = read_group(r, path, link->address, depth + 1, err);
    }
    return status;
}

memfit_status mf_source_h5(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                           memfit_error *err)
{
    mf_hdf5 file;
    reading r = {.source = source, .file = &file, .log = log, .wanted = source->features_given};
    memfit_status status = mf_hdf5_open(&file, data, bytes, source->path, err);
    file.either_order = true;
    return status == MEMFIT_OK ? read_group(&r, "", file.root, 0, err) : status;
}
