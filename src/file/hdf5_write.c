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
#include "file/hdf5_write_inner.h"
#include "base/sort.h"

#include "base/error.h"
#include "base/bytes.h"
#include "file/hdf5_inner.h"

#include <stdio.h>
#include <string.h>

enum { MOST_LIST_BYTES = 64512 };

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

static uint64_t take(mf_h5_writer *w, uint64_t bytes)
{
    uint64_t at = w->next;
    w->next += pad8(bytes);
    return at;
}

/* ---- placing ---------------------------------------------------------------------------------------------- */

static bool named_below(const void *a, const void *b)
{
    return strcmp((*(mf_h5_node *const *)a)->name, (*(mf_h5_node *const *)b)->name) < 0;
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
    mf_sort_in_place(g->sorted, g->count, sizeof *g->sorted, named_below);
    return true;
}

static void place(mf_h5_writer *w, mf_h5_node *n)
{
    if (n->is_old || w->failed)
        return;
    n->header_at = take(w, mf_h5_header_bytes(n));
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
    n->symbols_at = take(w, n->symbol_nodes * mf_h5_symbol_node_bytes(w));
    uint64_t below = n->symbol_nodes;
    do {
        n->level_count[n->levels] = below ? (below + 2 * w->internal_k - 1) / (2 * w->internal_k) : 1;
        below = n->level_count[n->levels];
        n->level_at[n->levels++] = take(w, below * mf_h5_tree_node_bytes(w));
    } while (below > 1 && n->levels < MOST_TREE_LEVELS);
    for (size_t i = 0; i < n->count; i++)
        place(w, n->sorted[i]);
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
    mf_h5_emit(w, w->root);
    if (w->heap_count)
        mf_h5_emit_global_heap(w, heap_bytes);
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
    mf_h5_put_superblock(w->block, w, end);
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
    mf_h5_put_superblock(superblock, w, end);
    mf_image_add(image, superblock, SUPERBLOCK_BYTES);
    if ((st = add_patched(old, SUPERBLOCK_BYTES, patches, patch_count, image, err)))
        return st;
    mf_image_pad(image, w->block_at - old->bytes);
    return add_arrays(w, image, err);
}
