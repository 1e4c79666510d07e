/* hdf5_emit.c: the structures of an HDF5 file as bytes: headers, heaps, indexes, attributes. See hdf5_write.c. */
#include "file/hdf5_write_inner.h"

#include "base/bytes.h"
#include "file/hdf5_inner.h"

#include <string.h>

/* ---- sizes ------------------------------------------------------------------------------------------------ */

static uint64_t type_bytes(mf_dtype dtype)
{
    return dtype == MF_F32 || dtype == MF_F64 || dtype == MF_F16 || dtype == MF_BF16 ? 24 : 16;
}

static uint64_t attribute_body_bytes(const attribute *a)
{
    if (a->raw)
        return a->raw_bytes;
    uint64_t head = 8 + pad8(strlen(a->name) + 1);
    if (a->text)
        return head + 24 + 8 + 16;
    return head + 8 + 16 + pad8(a->count * a->width);
}

uint64_t mf_h5_header_bytes(const mf_h5_node *n)
{
    uint64_t bytes = 16;
    if (n->is_array)
        bytes += 8 + 8 + 8 * (uint64_t)n->shape.rank + 8 + type_bytes(n->dtype) + 8 + 8 + 8 + 24;
    else
        bytes += 8 + 16;
    for (const attribute *a = n->attributes; a; a = a->next)
        bytes += 8 + pad8(attribute_body_bytes(a));
    return bytes;
}

uint64_t mf_h5_tree_node_bytes(const mf_h5_writer *w)
{
    return 24 + 8 * (4 * (uint64_t)w->internal_k + 1);
}

uint64_t mf_h5_symbol_node_bytes(const mf_h5_writer *w)
{
    return 8 + 80 * (uint64_t)w->leaf_k;
}

/* ---- emitting --------------------------------------------------------------------------------------------- */

static unsigned char *at_address(const mf_h5_writer *w, uint64_t address)
{
    return w->block + (address - w->block_at);
}

static unsigned char *put_text(unsigned char *p, const char *text)
{
    while (*text)
        *p++ = (unsigned char)*text++;
    return p;
}

static unsigned char *put_message(unsigned char *p, unsigned type, unsigned flags, uint64_t body_bytes)
{
    p = mf_put_le(p, type, 2);
    p = mf_put_le(p, body_bytes, 2);
    return mf_put_le(p, flags, 4);
}

static void put_type(unsigned char *p, mf_dtype dtype)
{
    static const struct {
        mf_dtype dtype;
        unsigned sign, exponent_at, exponent_bits, mantissa_bits, bias;
    } floats[] = {{MF_F16, 15, 10, 5, 10, 15},
                  {MF_BF16, 15, 7, 8, 7, 127},
                  {MF_F32, 31, 23, 8, 23, 127},
                  {MF_F64, 63, 52, 11, 52, 1023}};
    uint64_t bytes = mf_dtype_bytes(dtype);
    for (size_t i = 0; i < 4; i++) {
        if (floats[i].dtype != dtype)
            continue;
        p = mf_put_le(p, 0x11, 1);
        p = mf_put_le(p, 0x20 | floats[i].sign << 8, 3);
        p = mf_put_le(p, bytes, 4);
        p = mf_put_le(p, 8 * bytes << 16, 4); /* bit offset 0, precision */
        p = mf_put_le(p, floats[i].exponent_at, 1);
        p = mf_put_le(p, floats[i].exponent_bits, 1);
        p = mf_put_le(p, 0, 1);
        p = mf_put_le(p, floats[i].mantissa_bits, 1);
        mf_put_le(p, floats[i].bias, 4);
        return;
    }
    bool is_signed = dtype == MF_I8 || dtype == MF_I16 || dtype == MF_I32 || dtype == MF_I64;
    p = mf_put_le(p, 0x10, 1);
    p = mf_put_le(p, is_signed ? 8 : 0, 3);
    p = mf_put_le(p, bytes, 4);
    mf_put_le(p, 8 * bytes << 16, 4);
}

static unsigned char *put_space(unsigned char *p, unsigned rank, const uint64_t *dims)
{
    p = mf_put_le(p, 1, 1);
    p = mf_put_le(p, rank, 1);
    p = mf_put_le(p, 0, 6);
    for (unsigned i = 0; i < rank; i++)
        p = mf_put_le(p, dims[i], 8);
    return p;
}

static void put_attribute(const mf_h5_writer *w, unsigned char *p, const attribute *a)
{
    if (a->raw) {
        memcpy(p, a->raw, a->raw_bytes);
        return;
    }
    unsigned char *q = mf_put_le(p, 1, 2);
    q = mf_put_le(q, strlen(a->name) + 1, 2);
    q = mf_put_le(q, a->text ? 20 : 8, 2);
    q = mf_put_le(q, a->text ? 8 : 16, 2);
    put_text(q, a->name);
    q += pad8(strlen(a->name) + 1);
    if (a->text) { /* a string of variable length, UTF-8, over characters of one byte; then a scalar; then its place */
        mf_put_le(q, 0x19, 1);
        mf_put_le(q + 1, 0x0101, 3);
        mf_put_le(q + 4, 16, 4);
        mf_put_le(q + 8, 0x10, 4);
        mf_put_le(q + 12, 1, 4);
        mf_put_le(q + 16, 8 << 16, 4);
        q = put_space(q + 24, 0, NULL);
        q = mf_put_le(q, strlen(a->text), 4);
        q = mf_put_le(q, w->heap_at, 8);
        mf_put_le(q, a->heap_index, 4);
        return;
    }
    uint64_t count = a->count;
    mf_put_le(q, 0x13, 1);
    mf_put_le(q + 1, 1, 3); /* padded with zeros */
    mf_put_le(q + 4, a->width, 4);
    q = put_space(q + 8, 1, &count);
    for (size_t i = 0; i < a->count; i++)
        put_text(q + i * a->width, a->texts[i]);
}

static unsigned char *emit_attributes(const mf_h5_writer *w, unsigned char *p, const mf_h5_node *n)
{
    for (const attribute *a = n->attributes; a; a = a->next) {
        uint64_t bytes = pad8(attribute_body_bytes(a));
        p = put_message(p, a->raw ? a->raw_type : MF_HDF5_MSG_ATTRIBUTE, a->raw ? a->raw_flags : 0, bytes);
        put_attribute(w, p, a);
        p += bytes;
    }
    return p;
}

static unsigned char *emit_prefix(const mf_h5_writer *w, const mf_h5_node *n, unsigned own_messages)
{
    unsigned messages = own_messages;
    for (const attribute *a = n->attributes; a; a = a->next)
        messages++;
    unsigned char *p = at_address(w, n->header_at);
    p = mf_put_le(p, 1, 2);
    p = mf_put_le(p, messages, 2);
    p = mf_put_le(p, 1, 4);
    return mf_put_le(p, mf_h5_header_bytes(n) - 16, 8);
}

static void emit_array(const mf_h5_writer *w, const mf_h5_node *n)
{
    unsigned char *p = emit_prefix(w, n, 4);
    uint64_t dims[MF_MOST_DIMS];
    for (unsigned i = 0; i < n->shape.rank; i++)
        dims[i] = (uint64_t)n->shape.dim[i];
    p = put_message(p, MF_HDF5_MSG_DATASPACE, 0, 8 + 8 * (uint64_t)n->shape.rank);
    p = put_space(p, n->shape.rank, dims);
    p = put_message(p, MF_HDF5_MSG_DATATYPE, 1, type_bytes(n->dtype)); /* flag 1: constant */
    put_type(p, n->dtype);
    p += type_bytes(n->dtype);
    p = put_message(p, MF_HDF5_MSG_FILL, 1, 8);
    p = mf_put_le(p, 0x01020202, 8); /* version 2, allocated late, written if set, the default value */
    p = put_message(p, MF_HDF5_MSG_LAYOUT, 0, 24);
    mf_put_le(p, 0x0103, 2);
    mf_put_le(p + 2, n->data_bytes ? n->data_at : MF_HDF5_UNDEFINED, 8);
    mf_put_le(p + 10, n->data_bytes, 8);
    emit_attributes(w, p + 24, n);
}

static void emit_heap(const mf_h5_writer *w, const mf_h5_node *n)
{
    unsigned char *p = put_text(at_address(w, n->heap_at), "HEAP");
    p = mf_put_le(p, 0, 4);
    p = mf_put_le(p, n->heap_data_bytes, 8);
    p = mf_put_le(p, 1, 8); /* no free block */
    p = mf_put_le(p, n->heap_at + 32, 8);
    for (size_t i = 0; i < n->count; i++)
        put_text(p + n->name_offsets[i], n->sorted[i]->name);
}

static void emit_symbols(const mf_h5_writer *w, const mf_h5_node *n)
{
    size_t span = 2 * (size_t)w->leaf_k;
    for (uint64_t s = 0; s < n->symbol_nodes; s++) {
        size_t first = s * span, end = first + span < n->count ? first + span : n->count;
        unsigned char *p = put_text(at_address(w, n->symbols_at + s * mf_h5_symbol_node_bytes(w)), "SNOD");
        p = mf_put_le(p, 1, 2);
        p = mf_put_le(p, end - first, 2);
        for (size_t i = first; i < end; i++) {
            p = mf_put_le(p, n->name_offsets[i], 8);
            p = mf_put_le(p, n->sorted[i]->header_at, 8);
            p += 24; /* nothing cached */
        }
    }
}

/* The name offset that ends symbol node s. */
static uint64_t last_name(const mf_h5_writer *w, const mf_h5_node *n, uint64_t s)
{
    uint64_t end = (s + 1) * 2 * w->leaf_k;
    return n->name_offsets[(end < n->count ? end : n->count) - 1];
}

static void emit_tree(const mf_h5_writer *w, const mf_h5_node *n)
{
    uint64_t span = 2 * (uint64_t)w->internal_k, below_span = 1; /* symbol nodes under one child */
    for (unsigned level = 0; level < n->levels; level++, below_span *= span) {
        uint64_t below = level ? n->level_count[level - 1] : n->symbol_nodes;
        for (uint64_t t = 0; t < n->level_count[level]; t++) {
            uint64_t first = t * span, end = first + span < below ? first + span : below;
            uint64_t node_bytes = mf_h5_tree_node_bytes(w), here = n->level_at[level] + t * node_bytes;
            unsigned char *p = put_text(at_address(w, here), "TREE");
            p = mf_put_le(p, 0, 1);
            p = mf_put_le(p, level, 1);
            p = mf_put_le(p, end - first, 2);
            p = mf_put_le(p, t ? here - node_bytes : MF_HDF5_UNDEFINED, 8);
            p = mf_put_le(p, t + 1 < n->level_count[level] ? here + node_bytes : MF_HDF5_UNDEFINED, 8);
            p = mf_put_le(p, first ? last_name(w, n, first * below_span - 1) : 0, 8);
            for (uint64_t c = first; c < end; c++) {
                uint64_t under = (c + 1) * below_span < n->symbol_nodes ? (c + 1) * below_span : n->symbol_nodes;
                p = mf_put_le(
                    p, level ? n->level_at[level - 1] + c * node_bytes : n->symbols_at + c * mf_h5_symbol_node_bytes(w),
                    8);
                p = mf_put_le(p, last_name(w, n, under - 1), 8);
            }
        }
    }
}

void mf_h5_emit(const mf_h5_writer *w, const mf_h5_node *n)
{
    if (n->is_old)
        return;
    if (n->is_array) {
        emit_array(w, n);
        return;
    }
    unsigned char *p = emit_prefix(w, n, 1);
    p = put_message(p, MF_HDF5_MSG_SYMBOL_TABLE, 0, 16);
    p = mf_put_le(p, n->level_at[n->levels - 1], 8);
    p = mf_put_le(p, n->heap_at, 8);
    emit_attributes(w, p, n);
    emit_heap(w, n);
    emit_symbols(w, n);
    emit_tree(w, n);
    for (size_t i = 0; i < n->count; i++)
        mf_h5_emit(w, n->sorted[i]);
}

static void emit_texts(const mf_h5_writer *w, const mf_h5_node *n, unsigned char **p)
{
    for (const attribute *a = n->attributes; a; a = a->next) {
        if (!a->text)
            continue;
        *p = mf_put_le(*p, a->heap_index, 2);
        *p = mf_put_le(*p, 1, 6);
        *p = mf_put_le(*p, strlen(a->text), 8);
        put_text(*p, a->text);
        *p += pad8(strlen(a->text));
    }
    for (const mf_h5_node *c = n->first; c; c = c->next)
        emit_texts(w, c, p);
}

void mf_h5_emit_global_heap(const mf_h5_writer *w, uint64_t bytes)
{
    unsigned char *start = at_address(w, w->heap_at), *p = put_text(start, "GCOL");
    p = mf_put_le(p, 1, 4);
    p = mf_put_le(p, bytes, 8);
    emit_texts(w, w->root, &p);
    uint64_t rest = bytes - (uint64_t)(p - start);
    if (rest >= 16)
        mf_put_le(p + 8, rest, 8); /* object 0: free space */
}

void mf_h5_put_superblock(unsigned char *p, const mf_h5_writer *w, uint64_t end)
{
    static const unsigned char signature[] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n', 0, 0, 0, 0, 0, 8, 8, 0};
    memcpy(p, signature, sizeof signature);
    mf_put_le(p + 16, w->leaf_k, 2);
    mf_put_le(p + 18, w->internal_k, 2);
    mf_put_le(p + 32, MF_HDF5_UNDEFINED, 8);
    mf_put_le(p + 40, end, 8);
    mf_put_le(p + 48, MF_HDF5_UNDEFINED, 8);
    mf_put_le(p + 64, w->root->header_at, 8);
    mf_put_le(p + 72, 1, 8); /* the root's index and names follow */
    mf_put_le(p + 80, w->root->level_at[w->root->levels - 1], 8);
    mf_put_le(p + 88, w->root->heap_at, 8);
}
