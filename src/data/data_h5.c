/* data_h5.c: data sets of an HDF5 file: those in the root group (x, y, or as the model names them). */
#include "base/error.h"
#include "data/source.h"
#include "file/hdf5.h"

#include <string.h>

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
                            const unsigned char **data, memfit_error *err)
{
    unsigned char *out;
    char text[24];
    mf_log_write(log, MF_LOG_NOTE,
                 "%s: %s is stored in chunks; unpacked to a temporary file of %s, to be read in any order",
                 source->path, name, memfit_size_format(d->bytes, text, sizeof text));
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

static memfit_status add_dataset(mf_source *source, const char *name, const mf_hdf5_dataset *d, const mf_log *log,
                                 memfit_error *err)
{
    mf_dtype dtype;
    mf_shape shape = {.rank = d->rank};
    if (!type_of(d, &dtype)) {
        memfit_error why;
        mf_fail(&why, MEMFIT_UNSUPPORTED,
                "%s: %s has elements of a type that is not read\nsave it as float32, uint8 or int32", source->path,
                name);
        return mf_source_add_unusable(source, name, &why, err);
    }
    for (unsigned i = 0; i < d->rank; i++)
        shape.dim[i] = (int64_t)d->shape[i];
    const unsigned char *data = d->data;
    if (d->storage != MF_HDF5_IN_PLACE) {
        memfit_status status = unpack(source, name, d, log, &data, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return mf_source_add(source, name, dtype, &shape, data, d->bytes, err);
}

memfit_status mf_source_h5(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                           memfit_error *err)
{
    mf_hdf5 file;
    mf_hdf5_group group;
    const char *inner = NULL; /* what is no data set: a group, which is not looked into */
    memfit_status status = mf_hdf5_open(&file, data, bytes, source->path, err);
    if (status == MEMFIT_OK)
        status = mf_hdf5_group_open(&file, &source->arena, file.root, &group, err);
    for (size_t i = 0; status == MEMFIT_OK && i < group.count; i++) {
        bool is_dataset = false;
        mf_hdf5_dataset d;
        status = mf_hdf5_is_dataset(&file, group.links[i].address, &is_dataset, err);
        if (status == MEMFIT_OK && !is_dataset)
            inner = inner ? inner : group.links[i].name;
        if (status != MEMFIT_OK || !is_dataset)
            continue;
        memfit_error why;
        status = mf_hdf5_dataset_open(&file, group.links[i].address, &d, &why);
        if (status == MEMFIT_OK && d.rank > 0)
            status = add_dataset(source, group.links[i].name, &d, log, err);
        else if (status == MEMFIT_UNSUPPORTED) /* told when it is asked for: it may stand beside the data */
            status = mf_source_add_unusable(source, group.links[i].name, &why, err);
        else if (status != MEMFIT_OK && err)
            *err = why;
    }
    if (status == MEMFIT_OK && !source->count && inner)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s holds no arrays at its root, where they are looked for: only groups, such as %.60s\n"
                       "copy them there: f[\"x\"] = f[\"%.60s/x\"]",
                       source->path, inner, inner);
    return status;
}
