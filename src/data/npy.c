/*
 * npy.c: NumPy's .npy arrays and .npz archives.
 *
 * A .npy is a magic number, a version, a header that is a Python dictionary of three known keys, and raw bytes:
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (1797, 8, 8), }
 * The dictionary is read by a small reader of just that form. Arrays in Fortran order or of the other byte order are
 * rewritten once into a temporary file. What has no numbers (text, objects, dates) is refused by name, but only when
 * it is asked for: archives often hold the classes' names beside the data.
 */
#include "base/error.h"
#include "data/labels.h"
#include "data/npy.h"
#include "data/source.h"
#include "base/bytes.h"
#include "file/zip.h"

#include <stdlib.h>
#include <string.h>

static bool type_of(const char *descr, mf_dtype *dtype)
{
    static const struct {
        const char *text;
        mf_dtype type;
    } known[] = {{"<f4", MF_F32}, {"<f8", MF_F64}, {"<f2", MF_F16}, {"|u1", MF_U8},  {"|i1", MF_I8},  {"|b1", MF_BOOL},
                 {"<i2", MF_I16}, {"<u2", MF_U16}, {"<i4", MF_I32}, {"<u4", MF_U32}, {"<i8", MF_I64}, {"<u8", MF_U64}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(descr, known[i].text) == 0) {
            *dtype = known[i].type;
            return true;
        }
    return false;
}

/* The text after 'key': in a header, or NULL. */
static const char *value_of(const char *header, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *p = strstr(header, quoted);
    if (!p)
        return NULL;
    p += strlen(quoted);
    return p + strspn(p, " ");
}

static memfit_status read_shape(const char *p, mf_shape *shape, const char *where, memfit_error *err)
{
    *shape = (mf_shape){0};
    if (!p || *p != '(')
        return mf_fail(err, MEMFIT_DAMAGED, "%s: the header has no shape", where);
    for (p++;;) {
        p += strspn(p, " ,L");
        if (*p == ')')
            return MEMFIT_OK;
        char *end;
        long long d = strtoll(p, &end, 10);
        if (end == p || d < 0 || shape->rank == MF_MOST_DIMS)
            return mf_fail(err, MEMFIT_DAMAGED, "%s: the header's shape cannot be read", where);
        shape->dim[shape->rank++] = d;
        p = end;
    }
}

/* Everything but the type, which is left as its text: "<f4", "<U10", or "" when it is a structure. */
static memfit_status read_head(const unsigned char *data, uint64_t bytes, const char *where, mf_npy_head *head,
                               char type[16], memfit_error *err)
{
    if (bytes < 12 || memcmp(data, "\x93NUMPY", 6) != 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s is not a NumPy array (no \\x93NUMPY at its start)", where);
    unsigned major = data[6];
    uint64_t at = major == 1 ? 10 : 12, length = major == 1 ? mf_le16(data + 8) : mf_le32(data + 8);
    char text[1024];
    if (major < 1 || major > 3 || length > bytes - at || length >= sizeof text)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: the header of the NumPy array is damaged (byte %llu)", where,
                       (unsigned long long)(major < 1 || major > 3 ? 6 : 8));
    memcpy(text, data + at, length);
    text[length] = 0;
    head->data_at = at + length;
    const char *descr = value_of(text, "descr"), *order = value_of(text, "fortran_order");
    type[0] = 0;
    if (descr && *descr == '\'') {
        size_t n = strcspn(descr + 1, "'");
        snprintf(type, 16, "%.*s", (int)(n < 15 ? n : 15), descr + 1);
    }
    head->swapped = type[0] == '>';
    if (head->swapped)
        type[0] = '<';
    head->fortran = order && strncmp(order, "True", 4) == 0;
    return read_shape(value_of(text, "shape"), &head->shape, where, err);
}

memfit_status mf_npy_read_head(const unsigned char *data, uint64_t bytes, const char *where, mf_npy_head *head,
                               memfit_error *err)
{
    char type[16];
    memfit_status status = read_head(data, bytes, where, head, type, err);
    if (status != MEMFIT_OK || type_of(type, &head->dtype))
        return status;
    bool text_like = type[0] && strchr("USOa", type[1]);
    return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: elements of type %s are not read\n%s", where,
                   type[0] ? type : "(structured)",
                   text_like ? "numbers are needed; numpy.unique(y, return_inverse=True)[1] numbers names from 0"
                             : "save it as float32, uint8 or int32");
}

/* Row by row and in this machine's byte order. */
static void rewrite(const mf_npy_head *head, const unsigned char *from, unsigned char *to)
{
    uint64_t size = mf_dtype_bytes(head->dtype), count = mf_shape_count(&head->shape);
    uint64_t step[MF_MOST_DIMS], at[MF_MOST_DIMS] = {0}, rank = head->shape.rank, stride = size;
    for (uint64_t d = 0; d < rank; d++) {
        step[d] = stride;
        stride *= (uint64_t)head->shape.dim[d];
    }
    for (uint64_t i = 0, offset = 0; i < count; i++) {
        const unsigned char *element = from + (head->fortran ? offset : i * size);
        for (uint64_t b = 0; b < size; b++)
            to[i * size + b] = element[head->swapped ? size - 1 - b : b];
        for (uint64_t d = rank; d-- > 0;) { /* the last axis turns fastest */
            offset += step[d];
            if (++at[d] < (uint64_t)head->shape.dim[d])
                break;
            offset -= step[d] * at[d];
            at[d] = 0;
        }
    }
}

static memfit_status add_npy(mf_source *source, const char *name, const unsigned char *data, uint64_t bytes,
                             const mf_log *log, memfit_error *err)
{
    mf_npy_head head;
    char where[256], text[24];
    snprintf(where, sizeof where, "%.180s (%.60s)", source->path, name);
    memfit_status status = mf_npy_read_head(data, bytes, where, &head, err);
    if (status != MEMFIT_OK)
        return status;
    data += head.data_at;
    bytes -= head.data_at;
    uint64_t count = mf_shape_count(&head.shape), size = mf_dtype_bytes(head.dtype);
    head.fortran = head.fortran && head.shape.rank > 1;
    head.swapped = head.swapped && size > 1;
    bool whole = count <= UINT64_MAX / 16 && count * size <= bytes; /* mf_source_add says what is wrong */
    if (whole && count && (head.fortran || head.swapped)) {
        unsigned char *out;
        status = mf_source_spool(source, count * size, &out, err);
        if (status != MEMFIT_OK)
            return status;
        mf_log_write(log, MF_LOG_NOTE, "%s is stored %s; rewritten to a temporary file of %s", where,
                     head.fortran ? "in Fortran order" : "with the other byte order",
                     memfit_size_format(count * size, text, sizeof text));
        rewrite(&head, data, out);
        data = out;
        bytes = count * size;
    }
    return mf_source_add(source, name, head.dtype, &head.shape, data, bytes, err);
}

/* UTF-8 of one code point. */
static size_t put_utf8(uint32_t c, char *out)
{
    if (c < 0x80)
        return out[0] = (char)c, 1;
    if (c < 0x800)
        return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63)),
               3;
    out[0] = (char)(0xf0 | (c >> 18 & 7));
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}

/* The text of one element, ended where its zeros begin: bytes ("S"), or code points of four bytes ("U"). */
static size_t element_text(const unsigned char *p, uint64_t units, bool wide, bool swapped, char *out)
{
    size_t n = 0;
    for (uint64_t i = 0; i < units; i++) {
        uint32_t c = wide ? mf_le32(p + 4 * i) : p[i];
        c = wide && swapped ? __builtin_bswap32(c) : c;
        if (!c)
            break;
        if (wide)
            n += put_utf8(c, out + n);
        else
            out[n++] = (char)c;
    }
    return n;
}

memfit_status mf_source_npy_texts(mf_source *source, const char *name, const unsigned char *data, uint64_t bytes,
                                  bool *texts, memfit_error *err)
{
    mf_npy_head head;
    char type[16], text[4 * MF_LABELS_MOST_BYTES];
    *texts = false;
    if (read_head(data, bytes, source->path, &head, type, NULL) != MEMFIT_OK || !type[0] || !strchr("USa", type[1]))
        return MEMFIT_OK;
    const bool wide = type[1] == 'U';
    const uint64_t units = strtoull(type + 2, NULL, 10), size = units * (wide ? 4 : 1);
    const mf_shape *s = &head.shape;
    if (!(s->rank == 1 || (s->rank == 2 && s->dim[1] == 1)) || !units || units > MF_LABELS_MOST_BYTES)
        return MEMFIT_OK;
    const uint64_t count = (uint64_t)s->dim[0];
    if (!count || count > (bytes - head.data_at) / size)
        return MEMFIT_OK; /* what is wrong with it is told when it is asked for */
    unsigned char *codes;
    mf_labels labels;
    memfit_status status = mf_source_spool(source, count * sizeof(int32_t), &codes, err);
    mf_labels_begin(&labels, source);
    for (uint64_t i = 0; i < count && status == MEMFIT_OK; i++) {
        size_t n = element_text(data + head.data_at + i * size, units, wide, head.swapped, text);
        status = mf_labels_number(&labels, text, n, (int32_t *)(void *)codes + i, err);
    }
    if (status != MEMFIT_OK) {
        mf_labels_drop(&labels);
        return status == MEMFIT_UNSUPPORTED ? MEMFIT_OK : status;
    }
    *texts = true;
    return mf_labels_end(&labels, name, (int32_t *)(void *)codes, (int64_t)count, source->classes_given, err);
}

memfit_status mf_source_npy(mf_source *source, const char *name, const unsigned char *data, uint64_t bytes,
                            const mf_log *log, memfit_error *err)
{
    memfit_error why;
    memfit_status status = add_npy(source, name, data, bytes, log, &why);
    if (status == MEMFIT_UNSUPPORTED) {
        bool texts = false;
        status = mf_source_npy_texts(source, name, data, bytes, &texts, err);
        return status != MEMFIT_OK || texts ? status : mf_source_add_unusable(source, name, &why, err);
    }
    if (status != MEMFIT_OK && err)
        *err = why;
    return status;
}

/* A stored member is used where it lies, in the shuffled order of samples, so that its check sum can only be computed
 * in a pass of its own. That is done where it takes a second at most; the file is in memory for training then. */
static bool verify_now(const mf_zip_member *m, uint64_t *verified)
{
    *verified += m->bytes;
    return *verified <= MF_VERIFY_QUICK_BYTES;
}

memfit_status mf_source_npz(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                            memfit_error *err)
{
    mf_zip zip;
    uint64_t verified = 0;
    memfit_status status = mf_zip_open(&zip, &source->arena, data, bytes, err);
    if (status != MEMFIT_OK)
        return mf_error_prefix(err, status, "%s", source->path);
    for (size_t i = 0; i < zip.count && status == MEMFIT_OK; i++) {
        const mf_zip_member *m = &zip.members[i];
        size_t n = strlen(m->name);
        if (n < 5 || strcmp(m->name + n - 4, ".npy") != 0)
            continue;
        char *name = mf_arena_strndup(&source->arena, m->name, n - 4);
        if (!name)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
        const unsigned char *member = data + m->data_at;
        if (m->method != 0) {
            unsigned char *unpacked = NULL;
            char text[24];
            if ((status = mf_zip_unpackable(m, err)))
                return mf_error_prefix(err, status, "%s", source->path);
            mf_log_write(log, MF_LOG_NOTE,
                         "%s: %s is compressed; unpacked to a temporary file of %s, to be read in any order",
                         source->path, name, memfit_size_format(m->bytes, text, sizeof text));
            status = mf_source_spool(source, m->bytes, &unpacked, err);
            if (status == MEMFIT_OK && (status = mf_zip_unpack(&zip, m, source->arena.host, unpacked, err)))
                mf_error_prefix(err, status, "%s", source->path);
            member = unpacked;
        } else if (verify_now(m, &verified) && (status = mf_zip_read(&zip, m, &source->arena, true, &member, err))) {
            return mf_error_prefix(err, status, "%s", source->path);
        }
        if (status == MEMFIT_OK)
            status = mf_source_npy(source, name, member, m->bytes, log, err);
    }
    return status;
}
