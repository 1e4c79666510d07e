/*
 * keras_weights.c: which stored array belongs to which layer of a .keras file.
 *
 * Keras addresses weights by class, not by name: layers/<key>/vars/<i>, where <key> is the class in snake case with
 * _1, _2 ... for the second, third layer of that class in the model's order. Below a layer come its parts:
 * cell/vars/0, forward_layer/cell/vars/0, query_dense/vars/0; below a nested model again layers/<key>.
 * Known variations:
 *     2.12 to 2.14    _layer_checkpoint_dependencies/<key>, and the suffixes skip numbers (conv2d, conv2d_2, conv2d_4):
 *                     only their order counts
 *     Windows         a backslash inside a link's name instead of a level: "layers\dense"
 *     private parts   _query_dense in some releases, query_dense in others
 *
 * So the whole file is flattened first into a sorted list of normal paths, and layers take what lies below their
 * prefix. The list costs some 100 bytes an array and spares a second implementation of each variation.
 */
#include "model/keras/keras_inner.h"
#include "base/sort.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_LEVELS = 24, MOST_PATH = 1024 };

/* ---- names ------------------------------------------------------------------------------------------------ */

static bool is_upper(char c)
{
    return c >= 'A' && c <= 'Z';
}

static bool is_lower(char c)
{
    return c >= 'a' && c <= 'z';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Keras: drop what is no word character; an underscore before each capital followed by a lower-case letter, then
 * between lower-case and capital; all lower case. */
bool mf_keras_snake_case(const char *name, char *out, size_t out_bytes)
{
    size_t n = 0;
    char last = 0;
    if (strcmp(name, "GroupQueryAttention") == 0) /* configurations have its public name, weights that of its class */
        name = "GroupedQueryAttention";
    for (const char *p = name; *p; p++) {
        if (!is_upper(*p) && !is_lower(*p) && !is_digit(*p) && *p != '_' && !((unsigned char)*p & 0x80))
            continue;
        bool before_word = is_upper(*p) && is_lower(p[1]), after_lower = is_upper(*p) && is_lower(last);
        if (n + 3 > out_bytes)
            return false;
        if (n && (before_word || after_lower))
            out[n++] = '_';
        out[n++] = is_upper(*p) ? (char)(*p + 32) : *p;
        last = *p;
    }
    if (!out_bytes)
        return false;
    out[n] = 0;
    return true;
}

/* Compares paths with runs of digits by value: vars/2 before vars/10. '/' sorts first, so that a prefix's entries
 * stand together. */
static int compare_paths(const char *a, const char *b)
{
    while (*a && *b) {
        if (is_digit(*a) && is_digit(*b)) {
            while (*a == '0' && is_digit(a[1]))
                a++;
            while (*b == '0' && is_digit(b[1]))
                b++;
            size_t na = strspn(a, "0123456789"), nb = strspn(b, "0123456789");
            int order = na != nb ? (na < nb ? -1 : 1) : strncmp(a, b, na);
            if (order)
                return order;
            a += na;
            b += nb;
            continue;
        }
        if (*a != *b) {
            if (*a == '/' || *b == '/')
                return *a == '/' ? -1 : 1;
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        }
        a++;
        b++;
    }
    return *a ? 1 : *b ? -1 : 0;
}

static bool path_below(const void *a, const void *b)
{
    return compare_paths(((const mf_keras_entry *)a)->path, ((const mf_keras_entry *)b)->path) < 0;
}

/* ---- flattening ------------------------------------------------------------------------------------------- */

/* Appends a link's name to a path: backslashes become levels, leading underscores go, the old root gets its new name.
 * False when it does not fit. */
static bool append_name(char *path, size_t *length, const char *name, bool plain)
{
    if (!plain && strcmp(name, "_layer_checkpoint_dependencies") == 0)
        name = "layers?"; /* marks the suffixes as unreliable */
    if (*length && *length + 1 < MOST_PATH)
        path[(*length)++] = '/';
    bool start = true;
    for (; *name; name++) {
        if (start && *name == '_' && !plain)
            continue;
        char c = *name == '\\' && !plain ? '/' : *name;
        start = c == '/';
        if (*length + 1 >= MOST_PATH)
            return false;
        path[(*length)++] = c;
    }
    path[*length] = 0;
    return true;
}

static memfit_status add_entry(mf_keras_table *t, const char *path, uint64_t address)
{
    if (t->count == t->capacity) {
        size_t more = t->capacity ? 2 * t->capacity : 32;
        mf_keras_entry *e = MF_NEW_ARRAY(t->arena, mf_keras_entry, more);
        if (!e)
            return mf_keras_no_memory(t->err);
        if (t->count)
            memcpy(e, t->entries, t->count * sizeof *e);
        t->entries = e;
        t->capacity = more;
    }
    const char *copy = mf_arena_strdup(t->arena, path);
    if (!copy)
        return mf_keras_no_memory(t->err);
    t->entries[t->count++] = (mf_keras_entry){copy, address, false};
    return MEMFIT_OK;
}

static memfit_status flatten(mf_keras_table *t, uint64_t address, char *path, size_t length, unsigned level)
{
    mf_hdf5_group group;
    memfit_status st = mf_hdf5_group_open(t->file, t->arena, address, &group, t->err);
    if (st)
        return st;
    if (level == MOST_LEVELS)
        return mf_fail(t->err, MEMFIT_DAMAGED, "%.120s: groups nested more than %d deep", t->file->name, MOST_LEVELS);
    for (size_t i = 0; i < group.count; i++) {
        size_t longer = length;
        bool is_dataset;
        if (!append_name(path, &longer, group.links[i].name, t->plain))
            return mf_fail(t->err, MEMFIT_DAMAGED, "%.120s: a path longer than %d bytes", t->file->name, MOST_PATH);
        if ((st = mf_hdf5_is_dataset(t->file, group.links[i].address, &is_dataset, t->err)))
            return st;
        st = is_dataset ? add_entry(t, path, group.links[i].address)
                        : flatten(t, group.links[i].address, path, longer, level + 1);
        if (st)
            return st;
        path[length] = 0;
    }
    return MEMFIT_OK;
}

/* The run of entries below `prefix` (which ends in '/'). */
static void find_below(const mf_keras_table *t, const char *prefix, size_t *first, size_t *end)
{
    size_t n = strlen(prefix), low = 0, high = t->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_paths(t->entries[middle].path, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = low;
    while (low < t->count && strncmp(t->entries[low].path, prefix, n) == 0)
        low++;
    *end = low;
}

/* ---- arrays ----------------------------------------------------------------------------------------------- */

static bool map_dtype(const mf_hdf5_dataset *d, bool marked_bfloat16, mf_dtype *dtype)
{
    static const mf_dtype ints[] = {MF_I8, MF_I16, MF_I32, MF_I64}, uints[] = {MF_U8, MF_U16, MF_U32, MF_U64};
    unsigned log = d->element_bytes == 1 ? 0 : d->element_bytes == 2 ? 1 : d->element_bytes == 4 ? 2 : 3;
    if (d->element_bytes == 2 && (marked_bfloat16 || d->kind == MF_HDF5_BFLOAT)) {
        *dtype = MF_BF16;
        return true;
    }
    switch (d->kind) {
    case MF_HDF5_FLOAT:
        *dtype = log == 1 ? MF_F16 : log == 2 ? MF_F32 : MF_F64;
        return true;
    case MF_HDF5_INT:
        *dtype = ints[log];
        return true;
    case MF_HDF5_UINT:
        *dtype = uints[log];
        return true;
    case MF_HDF5_BOOL:
        *dtype = MF_BOOL;
        return true;
    default:
        return false;
    }
}

/* Weights are nearly always contiguous; a chunked array (a file repacked by somebody) is unpacked into the arena. */
static memfit_status array_bytes(mf_arena *arena, const mf_hdf5_dataset *d, const void **data, memfit_error *err)
{
    if (d->storage == MF_HDF5_IN_PLACE || !d->bytes) {
        *data = d->data;
        return MEMFIT_OK;
    }
    void *out = mf_arena_alloc(arena, d->bytes);
    if (!out)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for an array of %" PRIu64 " bytes", d->bytes);
    mf_hdf5_reader *reader;
    memfit_status st = mf_hdf5_reader_open(d, arena->host, &reader, err);
    if (st)
        return st;
    st = mf_hdf5_reader_rows(reader, 0, d->rank ? d->shape[0] : 1, out, err);
    mf_hdf5_reader_close(reader);
    *data = out;
    return st;
}

memfit_status mf_keras_stored(mf_arena *arena, mf_hdf5 *file, uint64_t address, const char *path, mf_stored *stored,
                              memfit_error *err)
{
    mf_hdf5_dataset d;
    memfit_status st = mf_hdf5_dataset_open(file, address, &d, err);
    if (st)
        return st;
    const char *mark = "";
    memfit_error ignored;
    if (d.element_bytes == 2 && d.kind != MF_HDF5_INT && d.kind != MF_HDF5_UINT &&
        mf_hdf5_attribute_text(file, arena, address, "dtype", &mark, &ignored))
        mark = "";
    mf_stored s = {.path = path, .bytes = d.bytes, .shape.rank = d.rank};
    if (!map_dtype(&d, strcmp(mark, "bfloat16") == 0, &s.dtype))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "an array of an element type that no weight has");
    for (unsigned i = 0; i < d.rank; i++)
        s.shape.dim[i] = (int64_t)d.shape[i];
    if ((st = array_bytes(arena, &d, &s.data, err)))
        return st;
    *stored = s;
    return MEMFIT_OK;
}

static memfit_status take_entries(mf_keras_table *t, const char *prefix, mf_stored **stored, uint32_t *count)
{
    size_t first, end, skip = strlen(prefix);
    find_below(t, prefix, &first, &end);
    if (first == end || !t->entries)
        return MEMFIT_OK;
    if (!(*stored = MF_NEW_ARRAY(t->arena, mf_stored, end - first)))
        return mf_keras_no_memory(t->err);
    for (size_t i = first; i < end; i++) {
        mf_keras_entry *e = &t->entries[i];
        memfit_status st =
            mf_keras_stored(t->arena, t->file, e->address, e->path + skip, &(*stored)[i - first], t->err);
        if (st)
            return mf_error_prefix(t->err, st, "%.200s", e->path);
        e->claimed = true;
    }
    *count = (uint32_t)(end - first);
    return MEMFIT_OK;
}

/* ---- layers ----------------------------------------------------------------------------------------------- */

/* The nth key of a class where only the order counts: walks the entries below `prefix`. False when there is none. */
static bool nth_key(const mf_keras_table *t, const char *prefix, const char *class_key, uint32_t nth, char *key,
                    size_t bytes)
{
    size_t first, end, skip = strlen(prefix), n = strlen(class_key), last = 0;
    char seen[MOST_PATH] = "";
    find_below(t, prefix, &first, &end);
    for (size_t i = first; i < end; i++) {
        const char *p = t->entries[i].path + skip;
        size_t length = strcspn(p, "/");
        if (length == last && strncmp(p, seen, length) == 0)
            continue;
        memcpy(seen, p, length);
        last = length;
        bool plain = length == n && strncmp(p, class_key, n) == 0;
        bool numbered = length > n + 1 && strncmp(p, class_key, n) == 0 && p[n] == '_' &&
                        strspn(p + n + 1, "0123456789") == length - n - 1;
        if (!plain && !numbered)
            continue;
        if (nth-- == 0)
            return (size_t)snprintf(key, bytes, "%.*s", (int)length, p) < bytes;
    }
    return false;
}

static memfit_status match_model(mf_keras_table *t, mf_model *m, const char *prefix);

bool mf_keras_layer_key(const mf_model *m, uint32_t index, char *key, size_t bytes)
{
    const mf_layer *layer = &m->layers[index];
    char class_key[256];
    if (layer->is_operation || strcmp(layer->class_name, "InputLayer") == 0)
        return false;
    /* A custom class is saved under its plain name. */
    const char *plain = strrchr(layer->class_name, '>');
    if (!mf_keras_snake_case(plain ? plain + 1 : layer->class_name, class_key, sizeof class_key))
        return false;
    uint32_t nth = layer->class_ordinal;
    int n = nth ? snprintf(key, bytes, "%s_%u", class_key, nth) : snprintf(key, bytes, "%s", class_key);
    return n > 0 && (size_t)n < bytes;
}

static memfit_status match_layer(mf_keras_table *t, mf_model *m, uint32_t index, const char *prefix, bool by_order)
{
    mf_layer *layer = &m->layers[index];
    char key[MOST_PATH], below[MOST_PATH];
    if (!mf_keras_layer_key(m, index, key, sizeof key))
        return MEMFIT_OK;
    if (by_order) {
        char class_key[256];
        const char *plain = strrchr(layer->class_name, '>');
        if (!mf_keras_snake_case(plain ? plain + 1 : layer->class_name, class_key, sizeof class_key) ||
            !nth_key(t, prefix, class_key, layer->class_ordinal, key, sizeof key))
            return MEMFIT_OK;
    }
    bool wrapper = layer->inner && mf_json_get(layer->config, "layer"); /* around a model */
    if (snprintf(below, sizeof below, "%s%s/%s", prefix, key, wrapper ? "layer/" : "") >= (int)sizeof below)
        return MEMFIT_OK;
    if (layer->inner)
        return match_model(t, layer->inner, below);
    return take_entries(t, below, &layer->stored, &layer->stored_count);
}

static memfit_status match_model(mf_keras_table *t, mf_model *m, const char *prefix)
{
    char plain[MOST_PATH], marked[MOST_PATH];
    if (snprintf(plain, sizeof plain, "%slayers/", prefix) >= (int)sizeof plain ||
        snprintf(marked, sizeof marked, "%slayers?/", prefix) >= (int)sizeof marked)
        return MEMFIT_OK;
    size_t first, end;
    find_below(t, marked, &first, &end);
    bool by_order = first < end;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        memfit_status st = match_layer(t, m, i, by_order ? marked : plain, by_order);
        if (st)
            return st;
    }
    return MEMFIT_OK;
}

memfit_status mf_keras_table_make(mf_keras_table *t, uint64_t root)
{
    char path[MOST_PATH] = "";
    memfit_status st = flatten(t, root, path, 0, 0);
    if (!st)
        mf_sort_in_place(t->entries, t->count, sizeof(mf_keras_entry), path_below);
    return st;
}

mf_keras_entry *mf_keras_table_find(const mf_keras_table *t, const char *path)
{
    size_t low = 0, high = t->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_paths(t->entries[middle].path, path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < t->count && compare_paths(t->entries[low].path, path) == 0; low++)
        if (strcmp(t->entries[low].path, path) == 0)
            return &t->entries[low];
    return NULL;
}

void mf_keras_unwrap_optimizer(mf_model *m)
{
    const mf_stored *s = m->optimizer;
    if (m->optimizer_count <= MF_KERAS_OUTER_ARRAYS)
        return;
    for (unsigned i = 0; i <= MF_KERAS_OUTER_ARRAYS; i++)
        if (s[i].shape.rank || (i % 2 == 0) != (s[i].dtype == MF_I64 || s[i].dtype == MF_I32))
            return;
    m->outer_optimizer = m->optimizer;
    m->outer_optimizer_count = m->optimizer_count;
    m->optimizer += MF_KERAS_OUTER_ARRAYS;
    m->optimizer_count -= MF_KERAS_OUTER_ARRAYS;
}

/* Keras 3 stores a wrapped optimizer twice, behind its wrapper's arrays and by itself, and loads the latter last. */
static memfit_status match_optimizer(mf_keras_table *t, mf_model *m)
{
    mf_stored *inner = NULL;
    uint32_t inner_count = 0;
    memfit_status st = take_entries(t, "optimizer/vars/", &m->optimizer, &m->optimizer_count);
    if (!st)
        st = take_entries(t, "optimizer/inner_optimizer/vars/", &inner, &inner_count);
    if (st)
        return st;
    mf_keras_unwrap_optimizer(m);
    if (m->outer_optimizer && inner_count) {
        m->optimizer = inner;
        m->optimizer_count = inner_count;
    }
    return MEMFIT_OK;
}

memfit_status mf_keras_match_weights(mf_arena *arena, mf_model *model, mf_hdf5 *file, memfit_error *err)
{
    mf_keras_table t = {.arena = arena, .err = err, .file = file};
    memfit_status st = mf_keras_table_make(&t, file->root);
    if (st)
        return st;
    if ((st = match_model(&t, model, "")) || (st = match_optimizer(&t, model)))
        return st;
    for (size_t i = 0; i < t.count; i++)
        model->unclaimed_count += !t.entries[i].claimed && strncmp(t.entries[i].path, "layers", 6) == 0;
    return mf_keras_share_weights(arena, model, err);
}

/* ---- shared layers ----------------------------------------------------------------------------------------
 *
 * A layer or model used on two levels of nesting is in the configuration on both. Keras marks what it has written before
 * with a number, though mostly only the second time, and stores its weights once, where it comes first. So what is
 * marked and has no weights is the one layer before it of the same class and name; where there are several, none.
 */

#define SEVERAL 0x80000000u
typedef struct shared_table { /* open addressing, at most half full */
    mf_model **models;
    uint32_t *indexes; /* with SEVERAL: there are more of that class and name */
    size_t slots;
} shared_table;

static size_t count_layers(const mf_model *m, bool marked)
{
    size_t n = 0;
    for (uint32_t i = 0; i < m->layer_count; i++)
        n += (!marked || m->layers[i].is_marked) + (m->layers[i].inner ? count_layers(m->layers[i].inner, marked) : 0);
    return n;
}

static bool has_weights(const mf_layer *l)
{
    if (l->stored_count)
        return true;
    for (uint32_t i = 0; l->inner && i < l->inner->layer_count; i++)
        if (has_weights(&l->inner->layers[i]))
            return true;
    return false;
}

static uint32_t hash_text(uint32_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

/* The slot of a layer of this class and name, or a free one. The model and index stay those of the first. */
static size_t slot_of(const shared_table *t, const mf_layer *l)
{
    size_t at = hash_text(hash_text(2166136261u, l->name) * 31, l->class_name) & (t->slots - 1);
    for (; t->models[at]; at = (at + 1) & (t->slots - 1)) {
        const mf_layer *other = &t->models[at]->layers[t->indexes[at] & ~SEVERAL];
        if (strcmp(other->name, l->name) == 0 && strcmp(other->class_name, l->class_name) == 0)
            break;
    }
    return at;
}

/* In the order of the configuration, as Keras walks when it saves. A layer is known only behind all it holds, so that no
 * model can come to hold itself. */
static void share(shared_table *t, mf_model *m)
{
    for (uint32_t i = 0; i < m->layer_count; i++) {
        mf_layer *l = &m->layers[i];
        size_t at = slot_of(t, l);
        mf_layer *first = t->models[at] && !(t->indexes[at] & SEVERAL) ? &t->models[at]->layers[t->indexes[at]] : NULL;
        if (first && l->is_marked && !first->inner == !l->inner && !has_weights(l)) {
            l->twin_model = t->models[at];
            l->twin = t->indexes[at];
            l->inner = first->inner;
            l->stored = first->stored;
            l->stored_count = first->stored_count;
            continue;
        }
        if (l->inner)
            share(t, l->inner);
        if (!has_weights(l))
            continue;
        at = slot_of(t, l);
        t->indexes[at] = t->models[at] ? t->indexes[at] | SEVERAL : i;
        t->models[at] = t->models[at] ? t->models[at] : m;
    }
}

memfit_status mf_keras_share_weights(mf_arena *arena, mf_model *model, memfit_error *err)
{
    if (!count_layers(model, true))
        return MEMFIT_OK;
    shared_table t = {.slots = 16};
    while (t.slots < 2 * count_layers(model, false))
        t.slots *= 2;
    t.models = MF_NEW_ARRAY(arena, mf_model *, t.slots);
    t.indexes = MF_NEW_ARRAY(arena, uint32_t, t.slots);
    if (!t.models || !t.indexes)
        return mf_keras_no_memory(err);
    share(&t, model);
    return MEMFIT_OK;
}
