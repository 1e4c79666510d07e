/*
 * hdf5_group.c: the links of a group.
 *
 * Old style (all that Keras writes): a symbol table message points at a B-tree and a heap of names.
 *     B-tree node, level n: keys and children, down to level 0, whose children are
 *     symbol nodes (SNOD), each up to 2 * leaf K entries {offset of the name in the heap, address of the header}
 * New style: link messages in the header itself. Groups with many links keep them in a fractal heap, which is refused.
 *
 * The links are copied to the caller's arena once; keys are not used to search, since a listing is wanted anyway and
 * is sorted already.
 */
#include "file/hdf5_inner.h"

enum { MOST_LEVELS = 16 };

typedef struct lister {
    mf_hdf5 *file;
    mf_arena *arena;
    mf_hdf5_group group;
    size_t capacity;
    uint64_t names_at, names_bytes; /* the local heap's data */
    memfit_error *err;
} lister;

static memfit_status add_link(lister *l, const char *name, uint64_t bytes, uint64_t address)
{
    mf_hdf5_group *g = &l->group;
    if (g->count == l->capacity) {
        size_t more = l->capacity ? 2 * l->capacity : 8;
        mf_hdf5_link *links = MF_NEW_ARRAY(l->arena, mf_hdf5_link, more);
        if (!links)
            return mf_fail(l->err, MEMFIT_NO_HOST_MEMORY, "%.120s: no memory for a group's links", l->file->name);
        if (g->count)
            memcpy(links, g->links, g->count * sizeof *links);
        g->links = links;
        l->capacity = more;
    }
    char *copy = mf_arena_strndup(l->arena, name, bytes);
    if (!copy)
        return mf_fail(l->err, MEMFIT_NO_HOST_MEMORY, "%.120s: no memory for a group's links", l->file->name);
    int order = g->count ? strcmp(g->links[g->count - 1].name, copy) : -1;
    if (order == 0)
        return mf_fail(l->err, MEMFIT_DAMAGED, "%.120s: a group holds two objects named %.80s", l->file->name, copy);
    if (order > 0)
        g->sorted = false;
    g->links[g->count++] = (mf_hdf5_link){copy, address};
    return MEMFIT_OK;
}

/* ---- old style -------------------------------------------------------------------------------------------- */

static memfit_status open_heap(lister *l, uint64_t at)
{
    mf_hdf5 *f = l->file;
    if (!mf_hdf5_inside(f, at, 8) || memcmp(f->data + at, "HEAP", 4) != 0)
        return mf_hdf5_damaged(f, at, l->err, "no heap of names here");
    mf_run run = {f->data + at + 8, f->data + f->bytes, false};
    l->names_bytes = mf_run_length(&run, f);
    mf_run_length(&run, f); /* free list */
    l->names_at = mf_run_address(&run, f);
    if (run.bad || !mf_hdf5_inside(f, l->names_at, l->names_bytes))
        return mf_hdf5_damaged(f, at, l->err, "a heap of names reaches beyond the file's end");
    return MEMFIT_OK;
}

static memfit_status list_symbols(lister *l, uint64_t at)
{
    mf_hdf5 *f = l->file;
    if (!mf_hdf5_inside(f, at, 8) || memcmp(f->data + at, "SNOD", 4) != 0)
        return mf_hdf5_damaged(f, at, l->err, "no symbol node here");
    unsigned count = mf_le16(f->data + at + 6);
    mf_run run = {f->data + at + 8, f->data + f->bytes, false};
    for (unsigned i = 0; i < count; i++) {
        memfit_status st = mf_hdf5_step(f, 1, l->err);
        if (st)
            return st;
        uint64_t name = mf_run_address(&run, f), address = mf_run_address(&run, f), cache = mf_run_take(&run, 4);
        mf_run_skip(&run, 4 + 16);
        if (run.bad || name >= l->names_bytes)
            return mf_hdf5_damaged(f, at, l->err, "symbol %u of a symbol node is damaged", i);
        const char *text = (const char *)f->data + l->names_at + name;
        const char *zero = memchr(text, 0, l->names_bytes - name);
        if (!zero)
            return mf_hdf5_damaged(f, at, l->err, "the name of symbol %u has no end", i);
        if (cache == 2)
            return mf_hdf5_fail(f, at, MEMFIT_UNSUPPORTED, l->err, "'%.60s' is a soft link", text);
        if ((st = add_link(l, text, (uint64_t)(zero - text), address)))
            return st;
    }
    return MEMFIT_OK;
}

/* `level` is what the node must say; -1 at the top. */
static memfit_status list_tree(lister *l, uint64_t at, int level)
{
    mf_hdf5 *f = l->file;
    memfit_status st = mf_hdf5_step(f, 1, l->err);
    if (st)
        return st;
    if (!mf_hdf5_inside(f, at, 8) || memcmp(f->data + at, "TREE", 4) != 0 || f->data[at + 4] != 0)
        return mf_hdf5_damaged(f, at, l->err, "no group index here");
    int here = f->data[at + 5];
    if (here >= MOST_LEVELS || (level >= 0 && here != level))
        return mf_hdf5_damaged(f, at, l->err, "a group index node of level %d in the wrong place", here);
    unsigned count = mf_le16(f->data + at + 6);
    mf_run run = {f->data + at + 8, f->data + f->bytes, false};
    mf_run_skip(&run, 2 * (uint64_t)f->offset_bytes); /* siblings */
    for (unsigned i = 0; i < count; i++) {
        mf_run_skip(&run, f->length_bytes); /* key */
        uint64_t child = mf_run_address(&run, f);
        if (run.bad)
            return mf_hdf5_damaged(f, at, l->err, "a group index node reaches beyond the file's end");
        if ((st = here ? list_tree(l, child, here - 1) : list_symbols(l, child)))
            return st;
    }
    return MEMFIT_OK;
}

static memfit_status list_old(lister *l, const mf_hdf5_message *m)
{
    mf_run run = m->body;
    uint64_t tree = mf_run_address(&run, l->file), heap = mf_run_address(&run, l->file);
    if (run.bad)
        return mf_hdf5_damaged(l->file, m->at, l->err, "a symbol table message is damaged");
    memfit_status st = open_heap(l, heap);
    return st ? st : list_tree(l, tree, -1);
}

/* ---- new style -------------------------------------------------------------------------------------------- */

static memfit_status list_link(lister *l, const mf_hdf5_message *m)
{
    mf_run run = m->body;
    unsigned version = (unsigned)mf_run_take(&run, 1), flags = (unsigned)mf_run_take(&run, 1);
    unsigned type = flags & 8 ? (unsigned)mf_run_take(&run, 1) : 0;
    mf_run_skip(&run, (flags & 4 ? 8u : 0u) + (flags & 16 ? 1u : 0u));
    uint64_t bytes = mf_run_take(&run, 1u << (flags & 3));
    const char *name = (const char *)run.p;
    mf_run_skip(&run, bytes);
    if (run.bad || version != 1)
        return mf_hdf5_damaged(l->file, m->at, l->err, "a link message is damaged");
    if (type != 0)
        return mf_hdf5_fail(l->file, m->at, MEMFIT_UNSUPPORTED, l->err, "'%.*s' is a %s link",
                            (int)(bytes < 60 ? bytes : 60), name, type == 1 ? "soft" : "external");
    uint64_t address = mf_run_address(&run, l->file);
    if (run.bad)
        return mf_hdf5_damaged(l->file, m->at, l->err, "a link message is damaged");
    return add_link(l, name, bytes, address);
}

static memfit_status check_link_info(lister *l, const mf_hdf5_message *m)
{
    mf_run run = m->body;
    mf_run_skip(&run, 1);
    unsigned flags = (unsigned)mf_run_take(&run, 1);
    mf_run_skip(&run, flags & 1 ? 8 : 0);
    uint64_t heap = mf_run_address(&run, l->file);
    if (run.bad)
        return mf_hdf5_damaged(l->file, m->at, l->err, "a link information message is damaged");
    if (heap != MF_HDF5_UNDEFINED)
        return mf_hdf5_fail(l->file, m->at, MEMFIT_UNSUPPORTED, l->err,
                            "a group with its links in a fractal heap\nwrite the file with libver='earliest', or "
                            "convert it: h5repack --low=0 --high=0 OLD NEW");
    return MEMFIT_OK;
}

/* ---- both ------------------------------------------------------------------------------------------------- */

memfit_status mf_hdf5_group_open(mf_hdf5 *file, mf_arena *arena, uint64_t address, mf_hdf5_group *group,
                                 memfit_error *err)
{
    lister l = {.file = file, .arena = arena, .group.sorted = true, .err = err};
    mf_hdf5_walk walk;
    mf_hdf5_message m = {0};
    bool more = true, is_group = false;
    memfit_status st = mf_hdf5_walk_begin(&walk, file, address, err);
    while (!st && !(st = mf_hdf5_walk_next(&walk, &m, &more, err)) && more) {
        if (m.type == MF_HDF5_MSG_SYMBOL_TABLE)
            st = list_old(&l, &m);
        else if (m.type == MF_HDF5_MSG_LINK)
            st = list_link(&l, &m);
        else if (m.type == MF_HDF5_MSG_LINK_INFO)
            st = check_link_info(&l, &m);
        else
            continue;
        is_group = true;
    }
    if (st)
        return st;
    if (!is_group)
        return mf_hdf5_damaged(file, address, err, "a group must be here, and this is none");
    *group = l.group;
    return MEMFIT_OK;
}

uint64_t mf_hdf5_group_find(const mf_hdf5_group *group, const char *name)
{
    if (!group->sorted) {
        for (size_t i = 0; i < group->count; i++)
            if (strcmp(group->links[i].name, name) == 0)
                return group->links[i].address;
        return 0;
    }
    for (size_t low = 0, high = group->count; low < high;) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(group->links[middle].name, name);
        if (order == 0)
            return group->links[middle].address;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

memfit_status mf_hdf5_find(mf_hdf5 *file, mf_arena *arena, uint64_t from, const char *path, uint64_t *address,
                           memfit_error *err)
{
    uint64_t at = from;
    while (*path) {
        size_t n = strcspn(path, "/");
        if (n) {
            char name[1024];
            if (n >= sizeof name)
                return mf_fail(err, MEMFIT_NOT_FOUND, "%.120s: '%.60s...' is not there", file->name, path);
            memcpy(name, path, n);
            name[n] = 0;
            mf_hdf5_group group = {0};
            memfit_status st = mf_hdf5_group_open(file, arena, at, &group, err);
            if (st)
                return st;
            if (!(at = mf_hdf5_group_find(&group, name)))
                return mf_fail(err, MEMFIT_NOT_FOUND, "%.120s: '%.200s' is not there", file->name, name);
        }
        path += n;
        path += *path == '/';
    }
    *address = at;
    return MEMFIT_OK;
}
