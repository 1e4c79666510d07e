/*
 * hdf5_write.c: layout and structures of HDF5 files.
 *
 *   [superblock 96][structures: for each group its header, heap of names, index nodes, symbol nodes; for each array its
 *   header; one global heap with all texts][array data, each at a multiple of 8]
 *
 * Two passes over the tree: `place` gives every structure its address, `emit` writes it into one block. Sizes are
 * exact, since every structure's size follows from counts.
 *
 * A group of n links needs ceil(n / 2 leaf K) symbol nodes under an index of as many levels as it takes with 2 internal
 * K children a node. Key i+1 of an index node is the last name below child i; key 0 of the first is the empty name.
 */
#include "file/hdf5_write.h"

#include "base/error.h"
#include "base/bytes.h"
#include "file/hdf5_inner.h"

#include <stdio.h>
#include <string.h>

enum { MOST_TREE_LEVELS = 8, SUPERBLOCK_BYTES = 96, MOST_LIST_BYTES = 64512 };

typedef struct attribute attribute;
struct attribute {
    attribute *next;
    const char *name;
    const char *text;         /* a text in the heap ... */
    const char *const *texts; /* ... or a list of fixed strings of `width` bytes */
    size_t count;
    unsigned width;
    unsigned heap_index;
    const unsigned char *raw; /* ... or a message copied from an old file, whole */
    uint64_t raw_bytes;
    unsigned raw_type, raw_flags;
};

struct mf_h5_node {
    mf_h5_node *next; /* sibling */
    const char *name;
    attribute *attributes;
    uint64_t header_at; /* also set for links to old objects */
    bool is_array, is_old;
    /* groups */
    mf_h5_node *first;
    size_t count;
    mf_h5_node **sorted;
    uint64_t *name_offsets;
    uint64_t heap_at, heap_data_bytes, symbols_at, symbol_nodes;
    unsigned levels;
    uint64_t level_at[MOST_TREE_LEVELS], level_count[MOST_TREE_LEVELS];
    /* arrays */
    mf_h5_node *next_array;
    mf_dtype dtype;
    mf_shape shape;
    const void *data;
    uint64_t data_at, data_bytes;
};

static uint64_t pad8(uint64_t n)
{
    return (n + 7) & ~(uint64_t)7;
}

/* ---- images ----------------------------------------------------------------------------------------------- */

void mf_image_add(mf_image *image, const void *data, uint64_t bytes)
{
    if (!bytes || image->failed)
        return;
    if (image->count == image->capacity) {
        size_t more = image->capacity ? 2 * image->capacity : 64;
        mf_segment *s = MF_NEW_ARRAY(image->arena, mf_segment, more);
        if (!s) {
            image->failed = true;
            return;
        }
        if (image->count)
            memcpy(s, image->segments, image->count * sizeof *s);
        image->segments = s;
        image->capacity = more;
    }
    image->segments[image->count++] = (mf_segment){data, bytes};
    image->bytes += bytes;
}

void mf_image_pad(mf_image *image, uint64_t bytes)
{
    static const unsigned char zeros[4096];
    mf_image_add(image, zeros, bytes);
}

/* ---- describing ------------------------------------------------------------------------------------------- */

static mf_h5_node *new_node(mf_h5_writer *w, const char *name, size_t name_bytes)
{
    mf_h5_node *n = MF_NEW(w->arena, mf_h5_node);
    if (!n || !(n->name = mf_arena_strndup(w->arena, name, name_bytes))) {
        w->failed = true;
        return NULL;
    }
    return n;
}

void mf_h5_begin(mf_h5_writer *w, mf_arena *arena)
{
    *w = (mf_h5_writer){.arena = arena, .leaf_k = 4, .internal_k = 16};
    w->arrays_tail = &w->arrays;
    w->root = new_node(w, "", 0);
}

static mf_h5_node *child(mf_h5_writer *w, mf_h5_node *parent, const char *name, size_t bytes, bool make_new)
{
    if (!parent)
        return NULL;
    for (mf_h5_node *c = make_new ? NULL : parent->first; c; c = c->next)
        if (strncmp(c->name, name, bytes) == 0 && !c->name[bytes])
            return c;
    mf_h5_node *n = new_node(w, name, bytes);
    if (n) {
        n->next = parent->first;
        parent->first = n;
        parent->count++;
    }
    return n;
}

mf_h5_node *mf_h5_group(mf_h5_writer *w, mf_h5_node *parent, const char *path)
{
    while (parent && *path) {
        size_t n = strcspn(path, "/");
        if (n)
            parent = child(w, parent, path, n, false);
        path += n;
        path += *path == '/';
    }
    return parent;
}

mf_h5_node *mf_h5_array(mf_h5_writer *w, mf_h5_node *parent, const char *path, mf_dtype dtype, const mf_shape *shape,
                        const void *data)
{
    const char *slash = strrchr(path, '/');
    if (slash) {
        char *groups = mf_arena_strndup(w->arena, path, (size_t)(slash - path));
        if (!groups)
            w->failed = true;
        parent = groups ? mf_h5_group(w, parent, groups) : NULL;
        path = slash + 1;
    }
    mf_h5_node *n = child(w, parent, path, strlen(path), true);
    if (!n)
        return NULL;
    n->is_array = true;
    n->dtype = dtype;
    n->shape = *shape;
    n->data = data;
    n->data_bytes = mf_shape_count(shape) * mf_dtype_bytes(dtype);
    if (dtype == MF_BF16)
        mf_h5_text(w, n, "dtype", "bfloat16");
    return n;
}

static attribute *add_attribute(mf_h5_writer *w, mf_h5_node *node, const char *name)
{
    attribute *a = node ? MF_NEW(w->arena, attribute) : NULL;
    if (!a) {
        w->failed = true;
        return NULL;
    }
    a->name = name;
    attribute **link = &node->attributes;
    while (*link)
        link = &(*link)->next;
    return *link = a;
}

void mf_h5_text(mf_h5_writer *w, mf_h5_node *node, const char *name, const char *text)
{
    attribute *a = add_attribute(w, node, name);
    if (!a)
        return;
    a->text = text;
    a->heap_index = ++w->heap_count;
    w->heap_bytes += 16 + pad8(strlen(text));
}

void mf_h5_texts(mf_h5_writer *w, mf_h5_node *node, const char *name, const char *const *texts, size_t count)
{
    size_t width = 1;
    for (size_t i = 0; i < count; i++)
        width = strlen(texts[i]) > width ? strlen(texts[i]) : width;
    size_t most = width < MOST_LIST_BYTES ? MOST_LIST_BYTES / width : 1;
    for (size_t done = 0, part = 0; done < count || part == 0; part++) {
        const char *key = name;
        if (count > most && !(key = mf_arena_printf(w->arena, "%s%zu", name, part)))
            w->failed = true;
        attribute *a = add_attribute(w, node, key);
        if (!a || !key)
            return;
        a->texts = texts + done;
        a->count = count - done < most ? count - done : most;
        a->width = (unsigned)width;
        done += a->count;
    }
}

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

static uint64_t header_bytes(const mf_h5_node *n)
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

static uint64_t tree_node_bytes(const mf_h5_writer *w)
{
    return 24 + 8 * (4 * (uint64_t)w->internal_k + 1);
}

static uint64_t symbol_node_bytes(const mf_h5_writer *w)
{
    return 8 + 80 * (uint64_t)w->leaf_k;
}

static uint64_t take(mf_h5_writer *w, uint64_t bytes)
{
    uint64_t at = w->next;
    w->next += pad8(bytes);
    return at;
}

/* ---- placing ---------------------------------------------------------------------------------------------- */

static void sift(mf_h5_node **e, size_t root, size_t count)
{
    for (size_t c; (c = 2 * root + 1) < count; root = c) {
        if (c + 1 < count && strcmp(e[c]->name, e[c + 1]->name) < 0)
            c++;
        if (strcmp(e[root]->name, e[c]->name) >= 0)
            return;
        mf_h5_node *t = e[root];
        e[root] = e[c];
        e[c] = t;
    }
}

static bool sort_children(mf_h5_writer *w, mf_h5_node *g)
{
    g->sorted = MF_NEW_ARRAY(w->arena, mf_h5_node *, g->count);
    g->name_offsets = MF_NEW_ARRAY(w->arena, uint64_t, g->count);
    if (!g->sorted || !g->name_offsets)
        return false;
    size_t i = 0;
    for (mf_h5_node *c = g->first; c; c = c->next)
        g->sorted[i++] = c;
    for (i = g->count / 2; i-- > 0;)
        sift(g->sorted, i, g->count);
    for (i = g->count; i-- > 1;) {
        mf_h5_node *t = g->sorted[0];
        g->sorted[0] = g->sorted[i];
        g->sorted[i] = t;
        sift(g->sorted, 0, i);
    }
    return true;
}

static void place(mf_h5_writer *w, mf_h5_node *n)
{
    if (n->is_old || w->failed)
        return;
    n->header_at = take(w, header_bytes(n));
    if (n->is_array) {
        *w->arrays_tail = n;
        w->arrays_tail = &n->next_array;
        return;
    }
    if (!sort_children(w, n)) {
        w->failed = true;
        return;
    }
    uint64_t names = 8; /* the empty name */
    for (size_t i = 0; i < n->count; i++) {
        n->name_offsets[i] = names;
        names += pad8(strlen(n->sorted[i]->name) + 1);
    }
    n->heap_data_bytes = names;
    n->heap_at = take(w, 32 + names);
    n->symbol_nodes = (n->count + 2 * w->leaf_k - 1) / (2 * w->leaf_k);
    n->symbols_at = take(w, n->symbol_nodes * symbol_node_bytes(w));
    uint64_t below = n->symbol_nodes;
    do {
        n->level_count[n->levels] = below ? (below + 2 * w->internal_k - 1) / (2 * w->internal_k) : 1;
        below = n->level_count[n->levels];
        n->level_at[n->levels++] = take(w, below * tree_node_bytes(w));
    } while (below > 1 && n->levels < MOST_TREE_LEVELS);
    for (size_t i = 0; i < n->count; i++)
        place(w, n->sorted[i]);
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
    return mf_put_le(p, header_bytes(n) - 16, 8);
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
        unsigned char *p = put_text(at_address(w, n->symbols_at + s * symbol_node_bytes(w)), "SNOD");
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
            uint64_t node_bytes = tree_node_bytes(w), here = n->level_at[level] + t * node_bytes;
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
                    p, level ? n->level_at[level - 1] + c * node_bytes : n->symbols_at + c * symbol_node_bytes(w), 8);
                p = mf_put_le(p, last_name(w, n, under - 1), 8);
            }
        }
    }
}

static void emit(const mf_h5_writer *w, const mf_h5_node *n)
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
        emit(w, n->sorted[i]);
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

static void emit_global_heap(const mf_h5_writer *w, uint64_t bytes)
{
    unsigned char *start = at_address(w, w->heap_at), *p = put_text(start, "GCOL");
    p = mf_put_le(p, 1, 4);
    p = mf_put_le(p, bytes, 8);
    emit_texts(w, w->root, &p);
    uint64_t rest = bytes - (uint64_t)(p - start);
    if (rest >= 16)
        mf_put_le(p + 8, rest, 8); /* object 0: free space */
}

static void put_superblock(unsigned char *p, const mf_h5_writer *w, uint64_t end)
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

/* Places and emits all structures from w->next on, then the arrays; *end is the file's size. */
static memfit_status lay_out(mf_h5_writer *w, uint64_t *end, memfit_error *err)
{
    uint64_t heap_bytes = 16 + w->heap_bytes + 16;
    if (w->heap_count) {
        heap_bytes = heap_bytes < 4096 ? 4096 : heap_bytes;
        w->heap_at = take(w, heap_bytes);
    }
    if (w->root)
        place(w, w->root);
    if (w->failed || !w->root || w->heap_count > UINT16_MAX)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to lay out an HDF5 file");
    uint64_t at = w->next;
    for (mf_h5_node *a = w->arrays; a; a = a->next_array) {
        a->data_at = at;
        at += pad8(a->data_bytes);
    }
    *end = at;
    if (!(w->block = mf_arena_alloc(w->arena, w->next - w->block_at)))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to lay out an HDF5 file");
    emit(w, w->root);
    if (w->heap_count)
        emit_global_heap(w, heap_bytes);
    return MEMFIT_OK;
}

static memfit_status add_arrays(const mf_h5_writer *w, mf_image *image, memfit_error *err)
{
    mf_image_add(image, w->block, w->next - w->block_at);
    for (const mf_h5_node *a = w->arrays; a; a = a->next_array) {
        mf_image_add(image, a->data, a->data_bytes);
        mf_image_pad(image, pad8(a->data_bytes) - a->data_bytes);
    }
    return image->failed ? mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to lay out an HDF5 file") : MEMFIT_OK;
}

memfit_status mf_h5_layout(mf_h5_writer *w, mf_image *image, memfit_error *err)
{
    uint64_t end = 0;
    w->next = SUPERBLOCK_BYTES;
    memfit_status st = lay_out(w, &end, err);
    if (st)
        return st;
    put_superblock(w->block, w, end);
    return add_arrays(w, image, err);
}

/* ---- extending -------------------------------------------------------------------------------------------- */

bool mf_h5_can_extend(const mf_hdf5 *file)
{
    return file->base == 0 && file->bytes >= SUPERBLOCK_BYTES && file->data[8] == 0 && file->offset_bytes == 8 &&
           file->length_bytes == 8;
}

static bool has_attribute(const mf_h5_node *n, const char *name, uint64_t bytes)
{
    for (const attribute *a = n->attributes; a; a = a->next)
        if (!a->raw && strncmp(a->name, name, bytes) == 0 && strlen(a->name) == strnlen(name, bytes))
            return true;
    return false;
}

/* Copies the old root's messages, but for its index and for attributes that are replaced. */
static memfit_status keep_messages(mf_h5_writer *w, mf_hdf5 *old, memfit_error *err)
{
    mf_hdf5_walk walk;
    mf_hdf5_message m;
    bool more = true;
    memfit_status st = mf_hdf5_walk_begin(&walk, old, old->root, err);
    if (!st && walk.version != 1)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%.120s: its root group is in the newest form", old->name);
    while (!st && !(st = mf_hdf5_walk_next(&walk, &m, &more, err)) && more) {
        uint64_t bytes = (uint64_t)(m.body.end - m.body.p);
        if (m.type == 0 || m.type == MF_HDF5_MSG_SYMBOL_TABLE)
            continue;
        if (m.type == MF_HDF5_MSG_ATTRIBUTE && bytes > 8) {
            uint64_t name_bytes = mf_le16(m.body.p + 2);
            if (name_bytes <= bytes - 8 && has_attribute(w->root, (const char *)m.body.p + 8, name_bytes))
                continue;
        }
        attribute *a = add_attribute(w, w->root, "");
        if (!a)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to extend an HDF5 file");
        a->raw = m.body.p;
        a->raw_bytes = bytes;
        a->raw_type = m.type;
        a->raw_flags = old->data[m.at - 4];
    }
    return st;
}

static memfit_status keep_links(mf_h5_writer *w, mf_hdf5 *old, memfit_error *err)
{
    mf_hdf5_group group;
    memfit_status st = mf_hdf5_group_open(old, w->arena, old->root, &group, err);
    for (size_t i = 0; !st && i < group.count; i++) {
        size_t before = w->root->count;
        mf_h5_node *n = child(w, w->root, group.links[i].name, strlen(group.links[i].name), false);
        if (!n)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to extend an HDF5 file");
        if (w->root->count > before) { /* not replaced */
            n->is_old = true;
            n->header_at = group.links[i].address;
        }
    }
    return st;
}

/* The old bytes with the patches put in, from `from` on. */
static memfit_status add_patched(const mf_hdf5 *old, uint64_t from, const mf_patch *patches, size_t count,
                                 mf_image *image, memfit_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (patches[i].at < from || !mf_hdf5_inside(old, patches[i].at, patches[i].bytes))
            return mf_fail(err, MEMFIT_DAMAGED, "%.120s: two arrays share the same bytes", old->name);
        mf_image_add(image, old->data + from, patches[i].at - from);
        mf_image_add(image, patches[i].data, patches[i].bytes);
        from = patches[i].at + patches[i].bytes;
    }
    mf_image_add(image, old->data + from, old->bytes - from);
    return image->failed ? mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to lay out an HDF5 file") : MEMFIT_OK;
}

memfit_status mf_h5_layout_extended(mf_h5_writer *w, mf_hdf5 *old, const mf_patch *patches, size_t patch_count,
                                    mf_image *image, memfit_error *err)
{
    if (w->failed || !w->root)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to extend an HDF5 file");
    if (!w->root->count && !w->root->attributes)
        return add_patched(old, 0, patches, patch_count, image, err);
    uint64_t end = 0;
    w->leaf_k = mf_le16(old->data + 16);
    w->internal_k = mf_le16(old->data + 18);
    if (!w->leaf_k || !w->internal_k || w->leaf_k > 1024 || w->internal_k > 1024)
        return mf_fail(err, MEMFIT_DAMAGED, "%.120s: its superblock is damaged", old->name);
    memfit_status st = keep_messages(w, old, err);
    if (!st)
        st = keep_links(w, old, err);
    if (st)
        return st;
    w->next = w->block_at = pad8(old->bytes);
    unsigned char *superblock = mf_arena_alloc(w->arena, SUPERBLOCK_BYTES);
    if (!superblock)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to extend an HDF5 file");
    if ((st = lay_out(w, &end, err)))
        return st;
    put_superblock(superblock, w, end);
    mf_image_add(image, superblock, SUPERBLOCK_BYTES);
    if ((st = add_patched(old, SUPERBLOCK_BYTES, patches, patch_count, image, err)))
        return st;
    mf_image_pad(image, w->block_at - old->bytes);
    return add_arrays(w, image, err);
}
