/*
 * hdf5_dataset.c: what a dataset or an attribute is: element type, shape, storage, filters.
 *
 * A dataset is its header's messages: dataspace (shape), datatype, layout (where the bytes are), filters, fill value.
 * An attribute is one message that holds name, datatype, dataspace and bytes. Both end as an mf_hdf5_dataset.
 * Invariant: an in-place dataset's [data, data + bytes) lies inside the file.
 */
#include "file/hdf5_inner.h"

/* ---- types ------------------------------------------------------------------------------------------------ */

static const char *const class_names[] = {"integer", "float",    "time",      "string",      "bit field",
                                          "opaque",  "compound", "reference", "enumeration", "variable-length list",
                                          "array"};

static memfit_status refuse_type(const mf_hdf5 *f, uint64_t at, unsigned class, const char *why, memfit_error *err)
{
    return mf_hdf5_fail(f, at, MEMFIT_UNSUPPORTED, err, "elements of type %s%s%s",
                        class < 11 ? class_names[class] : "unknown", *why ? ", " : "", why);
}

static bool is_power_of_two(uint64_t n)
{
    return n && !(n & (n - 1));
}

static memfit_status read_integer(const mf_hdf5 *f, uint64_t at, uint32_t bits, mf_run *run, mf_hdf5_dataset *d,
                                  memfit_error *err)
{
    unsigned shift = (unsigned)mf_run_take(run, 2), precision = (unsigned)mf_run_take(run, 2);
    d->swapped = bits & 1 && d->element_bytes > 1;
    if (d->swapped && !f->either_order)
        return refuse_type(f, at, 0, "big-endian", err);
    if (d->element_bytes > 8 || !is_power_of_two(d->element_bytes) || shift || precision != 8 * d->element_bytes)
        return refuse_type(f, at, 0, "of an odd width", err);
    d->kind = bits & 8 ? MF_HDF5_INT : MF_HDF5_UINT;
    return MEMFIT_OK;
}

static memfit_status read_float(const mf_hdf5 *f, uint64_t at, uint32_t bits, mf_run *run, mf_hdf5_dataset *d,
                                memfit_error *err)
{
    static const struct {
        unsigned bytes, exponent_at, exponent_bits, mantissa_bits;
        uint32_t bias;
        mf_hdf5_kind kind;
    } known[] = {{2, 10, 5, 10, 15, MF_HDF5_FLOAT},
                 {4, 23, 8, 23, 127, MF_HDF5_FLOAT},
                 {8, 52, 11, 52, 1023, MF_HDF5_FLOAT},
                 {2, 7, 8, 7, 127, MF_HDF5_BFLOAT}};
    d->swapped = bits & 1;
    if (bits & 0x40 || (d->swapped && !f->either_order))
        return refuse_type(f, at, 1, "big-endian or VAX", err);
    mf_run_skip(run, 4); /* bit offset and precision follow from the rest */
    unsigned exponent_at = (unsigned)mf_run_take(run, 1), exponent_bits = (unsigned)mf_run_take(run, 1);
    mf_run_skip(run, 1);
    unsigned mantissa_bits = (unsigned)mf_run_take(run, 1);
    uint32_t bias = (uint32_t)mf_run_take(run, 4);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].bytes == d->element_bytes && known[i].exponent_at == exponent_at &&
            known[i].exponent_bits == exponent_bits && known[i].mantissa_bits == mantissa_bits &&
            known[i].bias == bias) {
            d->kind = known[i].kind;
            return MEMFIT_OK;
        }
    return refuse_type(f, at, 1, "of an odd layout", err);
}

static memfit_status read_type(const mf_hdf5 *f, mf_run *run, mf_hdf5_dataset *d, memfit_error *err)
{
    uint64_t at = (uint64_t)(run->p - f->data);
    unsigned first = (unsigned)mf_run_take(run, 1), class = first & 15;
    uint32_t bits = (uint32_t)mf_run_take(run, 3);
    d->element_bytes = (unsigned)mf_run_take(run, 4);
    if (run->bad || !d->element_bytes || d->element_bytes > 1u << 20)
        return mf_hdf5_damaged(f, at, err, "a type message is damaged");
    switch (class) {
    case 0:
        return read_integer(f, at, bits, run, d, err);
    case 1:
        return read_float(f, at, bits, run, d, err);
    case 3:
        d->kind = MF_HDF5_STRING;
        return MEMFIT_OK;
    case 4:
    case 5:
        d->kind = MF_HDF5_RAW;
        return MEMFIT_OK;
    case 8: /* an enumeration over one byte is how h5py stores booleans */
        if (d->element_bytes != 1)
            return refuse_type(f, at, class, "of more than a byte", err);
        d->kind = MF_HDF5_BOOL;
        return MEMFIT_OK;
    case 9:
        if ((bits & 15) != 1)
            return refuse_type(f, at, class, "", err);
        if (d->element_bytes != 8 + f->offset_bytes)
            return mf_hdf5_damaged(f, at, err, "a variable-length string of %u bytes", d->element_bytes);
        d->kind = MF_HDF5_VLEN_STRING;
        return MEMFIT_OK;
    default:
        return refuse_type(f, at, class, "", err);
    }
}

static memfit_status read_space(const mf_hdf5 *f, mf_run *run, mf_hdf5_dataset *d, memfit_error *err)
{
    uint64_t at = (uint64_t)(run->p - f->data);
    unsigned version = (unsigned)mf_run_take(run, 1), rank = (unsigned)mf_run_take(run, 1);
    mf_run_skip(run, 1); /* flags: the largest dimensions behind are of no interest */
    unsigned type = version == 2 ? (unsigned)mf_run_take(run, 1) : 0;
    mf_run_skip(run, version == 1 ? 5 : 0);
    if (run->bad || version < 1 || version > 2)
        return mf_hdf5_damaged(f, at, err, "a dataspace message is damaged");
    if (rank > MF_HDF5_MOST_RANK)
        return mf_hdf5_fail(f, at, MEMFIT_UNSUPPORTED, err, "an array of %u dimensions", rank);
    d->rank = rank;
    d->elements = type == 2 ? 0 : 1;
    for (unsigned i = 0; i < rank; i++) {
        d->shape[i] = mf_run_length(run, f);
        /* Sizes stay below 2^62, so that sums of two never wrap. */
        if (__builtin_mul_overflow(d->elements, d->shape[i], &d->elements) || d->elements >> 62 || d->shape[i] >> 62)
            return mf_hdf5_damaged(f, at, err, "an array too large for any machine");
    }
    if (run->bad)
        return mf_hdf5_damaged(f, at, err, "a dataspace message is damaged");
    return MEMFIT_OK;
}

/* ---- storage ---------------------------------------------------------------------------------------------- */

static memfit_status read_chunked(const mf_hdf5 *f, const mf_hdf5_message *m, mf_run *run, mf_hdf5_dataset *d,
                                  memfit_error *err)
{
    unsigned rank = (unsigned)mf_run_take(run, 1);
    d->chunk_index = mf_run_address(run, f);
    if (run->bad || rank < 2 || rank - 1 > MF_HDF5_MOST_RANK)
        return mf_hdf5_damaged(f, m->at, err, "chunks of %u dimensions", rank);
    d->chunk_bytes = 1;
    for (unsigned i = 0; i + 1 < rank; i++) {
        d->chunk[i] = (uint32_t)mf_run_take(run, 4);
        if (!d->chunk[i] || __builtin_mul_overflow(d->chunk_bytes, d->chunk[i], &d->chunk_bytes))
            return mf_hdf5_damaged(f, m->at, err, "chunks of an impossible size");
    }
    uint64_t element = mf_run_take(run, 4);
    if (run->bad || !element || __builtin_mul_overflow(d->chunk_bytes, element, &d->chunk_bytes) ||
        d->chunk_bytes > UINT32_MAX)
        return mf_hdf5_damaged(f, m->at, err, "chunks of an impossible size");
    d->storage = MF_HDF5_CHUNKED;
    return MEMFIT_OK;
}

/* The data's place is checked against the size once all messages are known; `d->bytes` holds the stored size here. */
static memfit_status read_layout(const mf_hdf5 *f, const mf_hdf5_message *m, mf_hdf5_dataset *d, memfit_error *err)
{
    mf_run run = m->body;
    unsigned version = (unsigned)mf_run_take(&run, 1), class = (unsigned)mf_run_take(&run, 1);
    if (run.bad)
        return mf_hdf5_damaged(f, m->at, err, "a layout message is damaged");
    if (version < 3 || version > 4)
        return mf_hdf5_fail(f, m->at, MEMFIT_UNSUPPORTED, err, "a layout message of version %u", version);
    if (class == 3)
        return mf_hdf5_fail(f, m->at, MEMFIT_UNSUPPORTED, err, "a virtual dataset (its data is in other files)");
    if (class == 2 && version == 4)
        return mf_hdf5_fail(f, m->at, MEMFIT_UNSUPPORTED, err,
                            "chunks indexed in the newest way\nwrite the file with libver='earliest', or convert it: "
                            "h5repack --low=0 --high=0 OLD NEW");
    if (class == 2)
        return read_chunked(f, m, &run, d, err);
    uint64_t at;
    if (class == 0) {
        d->bytes = mf_run_take(&run, 2);
        at = (uint64_t)(run.p - f->data);
    } else if (class == 1) {
        at = mf_run_address(&run, f);
        d->bytes = mf_run_length(&run, f);
    } else {
        return mf_hdf5_damaged(f, m->at, err, "a layout of class %u", class);
    }
    if (run.bad)
        return mf_hdf5_damaged(f, m->at, err, "a layout message is damaged");
    d->storage = MF_HDF5_NO_DATA; /* never written: all fill value */
    if (at != MF_HDF5_UNDEFINED && d->bytes) {
        if (!mf_hdf5_inside(f, at, d->bytes))
            return mf_hdf5_damaged(f, m->at, err,
                                   "an array of %" PRIu64 " bytes at %" PRIu64 " reaches beyond the file's end",
                                   d->bytes, at + f->base);
        d->storage = MF_HDF5_IN_PLACE;
        d->data = f->data + at;
    }
    return MEMFIT_OK;
}

static const char *filter_name(unsigned id)
{
    switch (id) {
    case 4:
        return "szip";
    case 5:
        return "nbit";
    case 6:
        return "scale-offset";
    case 307:
        return "bzip2";
    case 32001:
        return "blosc";
    case 32004:
        return "lz4";
    case 32008:
        return "bitshuffle";
    case 32015:
        return "zstandard";
    default:
        return "unknown";
    }
}

static memfit_status read_filters(const mf_hdf5 *f, const mf_hdf5_message *m, mf_hdf5_dataset *d, memfit_error *err)
{
    mf_run run = m->body;
    unsigned version = (unsigned)mf_run_take(&run, 1), count = (unsigned)mf_run_take(&run, 1);
    mf_run_skip(&run, version == 1 ? 6 : 0);
    if (run.bad || version < 1 || version > 2 || count > MF_HDF5_MOST_FILTERS)
        return mf_hdf5_damaged(f, m->at, err, "a filter message is damaged");
    for (unsigned i = 0; i < count; i++) {
        unsigned id = (unsigned)mf_run_take(&run, 2);
        unsigned name_bytes = version == 1 || id >= 256 ? (unsigned)mf_run_take(&run, 2) : 0;
        mf_run_skip(&run, 2); /* flags */
        unsigned values = (unsigned)mf_run_take(&run, 2);
        mf_run_skip(&run, version == 1 ? (name_bytes + 7u) & ~7u : name_bytes);
        uint32_t value = 0;
        for (unsigned v = 0; v < values; v++) {
            uint32_t x = (uint32_t)mf_run_take(&run, 4);
            value = v ? value : x;
        }
        mf_run_skip(&run, version == 1 && values & 1 ? 4 : 0);
        if (run.bad)
            return mf_hdf5_damaged(f, m->at, err, "a filter message is damaged");
        if ((id < 1 || id > 3) && id != 32000)
            return mf_hdf5_fail(
                f, m->at, MEMFIT_UNSUPPORTED, err,
                "data packed with the %s filter (number %u)\nstore it plain, or with compression='gzip'",
                filter_name(id), id);
        d->filter[d->filters++] = (mf_hdf5_filter){id, value};
    }
    return MEMFIT_OK;
}

static memfit_status read_fill(const mf_hdf5 *f, const mf_hdf5_message *m, mf_hdf5_dataset *d, memfit_error *err)
{
    mf_run run = m->body;
    unsigned version = (unsigned)mf_run_take(&run, 1), defined = 1;
    if (version == 3) {
        defined = (unsigned)mf_run_take(&run, 1) >> 5 & 1;
    } else if (version == 1 || version == 2) {
        mf_run_skip(&run, 2);
        defined = (unsigned)mf_run_take(&run, 1);
    } else {
        return mf_hdf5_damaged(f, m->at, err, "a fill value message is damaged");
    }
    uint64_t bytes = defined ? mf_run_take(&run, 4) : 0;
    if (run.bad && version != 1) /* version 1 may end before a size of zero */
        return mf_hdf5_damaged(f, m->at, err, "a fill value message is damaged");
    if (!run.bad && bytes && bytes <= sizeof d->fill && bytes <= (uint64_t)(run.end - run.p))
        memcpy(d->fill, run.p, bytes);
    return MEMFIT_OK;
}

/* ---- datasets --------------------------------------------------------------------------------------------- */

memfit_status mf_hdf5_is_dataset(mf_hdf5 *file, uint64_t address, bool *is_dataset, memfit_error *err)
{
    mf_hdf5_walk walk;
    mf_hdf5_message m;
    bool more = true, found = false;
    memfit_status st = mf_hdf5_walk_begin(&walk, file, address, err);
    while (!st && !(st = mf_hdf5_walk_next(&walk, &m, &more, err)) && more)
        found |= m.type == MF_HDF5_MSG_LAYOUT;
    if (!st)
        *is_dataset = found;
    return st;
}

/* Joins shape, type and storage, which may come in any order. */
static memfit_status settle(mf_hdf5_dataset *d, uint64_t at, memfit_error *err)
{
    uint64_t stored = d->bytes;
    if (__builtin_mul_overflow(d->elements, d->element_bytes, &d->bytes) || d->bytes >> 62)
        return mf_hdf5_damaged(d->file, at, err, "an array too large for any machine");
    if (d->storage == MF_HDF5_IN_PLACE && stored < d->bytes)
        return mf_hdf5_damaged(d->file, at, err, "an array of %" PRIu64 " bytes has only %" PRIu64 " bytes of storage",
                               d->bytes, stored);
    if (d->storage == MF_HDF5_CHUNKED) {
        uint64_t bytes = d->element_bytes;
        for (unsigned i = 0; i < d->rank; i++)
            bytes *= d->chunk[i]; /* zero where the chunks have fewer dimensions */
        if (bytes != d->chunk_bytes || !d->rank)
            return mf_hdf5_damaged(d->file, at, err, "chunks and array disagree about type or rank");
    }
    return MEMFIT_OK;
}

memfit_status mf_hdf5_dataset_open(mf_hdf5 *file, uint64_t address, mf_hdf5_dataset *dataset, memfit_error *err)
{
    mf_hdf5_dataset d = {.file = file, .address = address};
    bool more = true, has_space = false, has_type = false, has_layout = false;
    mf_hdf5_walk walk;
    mf_hdf5_message m;
    memfit_status st = mf_hdf5_walk_begin(&walk, file, address, err);
    while (!st && !(st = mf_hdf5_walk_next(&walk, &m, &more, err)) && more) {
        if (m.shared && (m.type == MF_HDF5_MSG_DATATYPE || m.type == MF_HDF5_MSG_DATASPACE))
            return mf_hdf5_fail(file, m.at, MEMFIT_UNSUPPORTED, err, "a type shared between datasets");
        if (m.type == MF_HDF5_MSG_DATASPACE) {
            st = read_space(file, &m.body, &d, err);
            has_space = true;
        } else if (m.type == MF_HDF5_MSG_DATATYPE) {
            st = read_type(file, &m.body, &d, err);
            has_type = true;
        } else if (m.type == MF_HDF5_MSG_LAYOUT && !has_layout) {
            st = read_layout(file, &m, &d, err);
            has_layout = true;
        } else if (m.type == MF_HDF5_MSG_FILTERS && !d.filters) {
            st = read_filters(file, &m, &d, err);
        } else if (m.type == MF_HDF5_MSG_FILL) {
            st = read_fill(file, &m, &d, err);
        } else if (m.type == MF_HDF5_MSG_EXTERNAL) {
            st = mf_hdf5_fail(file, m.at, MEMFIT_UNSUPPORTED, err, "a dataset whose data is in another file");
        }
    }
    if (st)
        return st;
    if (!has_space || !has_type || !has_layout)
        return mf_hdf5_damaged(file, address, err, "an array must be here, and this is none");
    if ((st = settle(&d, address, err)))
        return st;
    *dataset = d;
    return MEMFIT_OK;
}

/* ---- attributes ------------------------------------------------------------------------------------------- */

/* A part of an attribute message; version 1 pads each to 8 bytes. */
static mf_run take_part(mf_run *run, uint64_t bytes, bool padded)
{
    mf_run part = {run->p, run->p, run->bad};
    mf_run_skip(run, padded ? (bytes + 7) & ~(uint64_t)7 : bytes);
    if (run->bad)
        part.bad = true;
    else
        part.end = part.p + bytes;
    return part;
}

static memfit_status read_attribute(mf_hdf5 *f, const mf_hdf5_message *m, const char *name, bool *hit,
                                    mf_hdf5_dataset *attribute, memfit_error *err)
{
    mf_run run = m->body;
    unsigned version = (unsigned)mf_run_take(&run, 1), flags = (unsigned)mf_run_take(&run, 1);
    uint64_t name_bytes = mf_run_take(&run, 2), type_bytes = mf_run_take(&run, 2), space_bytes = mf_run_take(&run, 2);
    mf_run_skip(&run, version == 3 ? 1 : 0);
    mf_run text = take_part(&run, name_bytes, version == 1);
    if (run.bad || version < 1 || version > 3)
        return mf_hdf5_damaged(f, m->at, err, "an attribute message is damaged");
    size_t length = strnlen((const char *)text.p, name_bytes);
    *hit = length == strlen(name) && memcmp(text.p, name, length) == 0;
    if (!*hit)
        return MEMFIT_OK;
    if (version > 1 && flags & 3)
        return mf_hdf5_fail(f, m->at, MEMFIT_UNSUPPORTED, err, "attribute %.60s has a shared type", name);
    mf_run type = take_part(&run, type_bytes, version == 1), space = take_part(&run, space_bytes, version == 1);
    if (run.bad)
        return mf_hdf5_damaged(f, m->at, err, "attribute %.60s is damaged", name);
    mf_hdf5_dataset d = {.file = f, .address = m->at};
    memfit_status st = read_type(f, &type, &d, err);
    if (!st)
        st = read_space(f, &space, &d, err);
    if (st)
        return st;
    d.data = run.p;
    d.bytes = (uint64_t)(run.end - run.p);
    d.storage = MF_HDF5_IN_PLACE;
    if ((st = settle(&d, m->at, err)))
        return st;
    *attribute = d;
    return MEMFIT_OK;
}

static memfit_status check_attribute_info(mf_hdf5 *f, const mf_hdf5_message *m, const char *name, memfit_error *err)
{
    mf_run run = m->body;
    mf_run_skip(&run, 1);
    unsigned flags = (unsigned)mf_run_take(&run, 1);
    mf_run_skip(&run, flags & 1 ? 2 : 0);
    uint64_t heap = mf_run_address(&run, f);
    if (!run.bad && heap != MF_HDF5_UNDEFINED)
        return mf_hdf5_fail(f, m->at, MEMFIT_UNSUPPORTED, err, "attributes in a fractal heap (looking for %.60s)",
                            name);
    return MEMFIT_OK;
}

memfit_status mf_hdf5_attribute_open(mf_hdf5 *file, uint64_t address, const char *name, mf_hdf5_dataset *attribute,
                                     memfit_error *err)
{
    mf_hdf5_walk walk;
    mf_hdf5_message m, info = {0};
    bool more = true, hit = false;
    memfit_status st = mf_hdf5_walk_begin(&walk, file, address, err);
    while (!st && !(st = mf_hdf5_walk_next(&walk, &m, &more, err)) && more) {
        if (m.type == MF_HDF5_MSG_ATTRIBUTE_INFO)
            info = m;
        if (m.type != MF_HDF5_MSG_ATTRIBUTE)
            continue;
        if (m.shared)
            return mf_hdf5_fail(file, m.at, MEMFIT_UNSUPPORTED, err, "a shared attribute");
        st = read_attribute(file, &m, name, &hit, attribute, err);
        if (hit)
            return st;
    }
    if (!st && info.at)
        st = check_attribute_info(file, &info, name, err);
    return st ? st : mf_fail(err, MEMFIT_NOT_FOUND, "%.120s: no attribute %.60s", file->name, name);
}

memfit_status mf_hdf5_text(mf_hdf5 *file, const mf_hdf5_dataset *dataset, const unsigned char *element,
                           const char **text, uint64_t *bytes, memfit_error *err)
{
    *text = (const char *)element;
    *bytes = dataset->element_bytes;
    memfit_status st =
        dataset->kind == MF_HDF5_VLEN_STRING ? mf_hdf5_heap_text(file, element, text, bytes, err) : MEMFIT_OK;
    if (!st)
        *bytes = strnlen(*text, *bytes);
    return st;
}

static memfit_status attribute_string(mf_hdf5 *f, mf_arena *arena, const mf_hdf5_dataset *a, uint64_t index,
                                      const char **text, memfit_error *err)
{
    const char *s;
    uint64_t bytes;
    memfit_status st = mf_hdf5_text(f, a, a->data + index * a->element_bytes, &s, &bytes, err);
    if (st)
        return st;
    if (!(*text = mf_arena_strndup(arena, s, bytes)))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "%.120s: no memory for a text of %" PRIu64 " bytes", f->name, bytes);
    return MEMFIT_OK;
}

memfit_status mf_hdf5_attribute_texts(mf_hdf5 *file, mf_arena *arena, uint64_t address, const char *name,
                                      const char *const **texts, size_t *count, memfit_error *err)
{
    mf_hdf5_dataset a = {0};
    memfit_status st = mf_hdf5_attribute_open(file, address, name, &a, err);
    if (st)
        return st;
    if (a.elements && a.kind != MF_HDF5_STRING && a.kind != MF_HDF5_VLEN_STRING)
        return mf_hdf5_damaged(file, a.address, err, "attribute %.60s is no text", name);
    const char **list = MF_NEW_ARRAY(arena, const char *, a.elements);
    if (!list)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "%.120s: no memory for attribute %.60s", file->name, name);
    for (uint64_t i = 0; i < a.elements; i++)
        if ((st = attribute_string(file, arena, &a, i, &list[i], err)))
            return st;
    *texts = list;
    *count = a.elements;
    return MEMFIT_OK;
}

memfit_status mf_hdf5_attribute_text(mf_hdf5 *file, mf_arena *arena, uint64_t address, const char *name,
                                     const char **text, memfit_error *err)
{
    const char *const *list;
    size_t count = 0;
    memfit_status st = mf_hdf5_attribute_texts(file, arena, address, name, &list, &count, err);
    if (st)
        return st;
    if (count != 1)
        return mf_fail(err, MEMFIT_DAMAGED, "%.120s: attribute %.60s holds %zu texts", file->name, name, count);
    *text = list[0];
    return MEMFIT_OK;
}
