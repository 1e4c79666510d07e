/*
 * listing.c: see listing.h. A class is walked folder by folder; what is found is sorted within its folder, and the folders
 * of a class by their paths, as Python sorts them (by code point, which is by byte in UTF-8).
 */
#include "data/listing.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NO_CLASS UINT32_MAX

typedef struct walk {
    mf_listing *l;
    uint32_t in_class;
    uint32_t folder; /* place of its path */
    bool classes;    /* sub-folders are classes: files beside them do not count */
} walk;

static memfit_status no_memory(memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the list of files");
}

static memfit_status keep_name(mf_listing *l, const char *folder, const char *name, uint32_t *place, memfit_error *err)
{
    size_t a = folder && *folder ? strlen(folder) + 1 : 0, n = strlen(name) + 1, from = 0;
    bool inside = folder && folder >= l->names && folder < l->names + l->name_bytes;
    if (inside)
        from = (size_t)(folder - l->names); /* the block may move */
    if (l->name_bytes + a + n > UINT32_MAX)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "the names of the files take more than 4 GiB\nuse TFRecord files instead");
    while (l->name_bytes + a + n > l->name_room) {
        size_t room = l->name_room ? l->name_room + l->name_room / 2 : 4096;
        char *p = mf_host_resize(l->host, l->names, l->name_room, room);
        if (!p)
            return no_memory(err);
        l->names = p;
        l->name_room = room;
    }
    *place = (uint32_t)l->name_bytes;
    if (a) {
        memcpy(l->names + l->name_bytes, inside ? l->names + from : folder, a - 1);
        l->names[l->name_bytes + a - 1] = '/';
    }
    memcpy(l->names + l->name_bytes + a, name, n);
    l->name_bytes += a + n;
    return MEMFIT_OK;
}

/* As Keras's list of formats has it, and WebP. */
static bool is_picture(const char *name)
{
    static const char *const endings[] = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t m = strlen(endings[i]);
        if (n >= m && strcasecmp(name + n - m, endings[i]) == 0)
            return true;
    }
    return false;
}

static memfit_status add_folder(mf_listing *l, uint32_t path, uint32_t in_class, memfit_error *err)
{
    if (!mf_grow(l->host, &l->folders, &l->folder_room, l->folder_count, sizeof *l->folders))
        return no_memory(err);
    l->folders[l->folder_count++] = (mf_listing_folder){path, 0, in_class, 0};
    return MEMFIT_OK;
}

static memfit_status on_entry(void *ctx, const char *name, mf_entry_type type, memfit_error *err)
{
    walk *w = ctx;
    mf_listing *l = w->l;
    uint32_t place;
    if (w->classes) {
        if ((type != MF_ENTRY_FOLDER && type != MF_ENTRY_LINKED_FOLDER) || *name == '.')
            return MEMFIT_OK;
        if (!mf_grow(l->host, &l->classes, &l->class_room, l->class_count, sizeof *l->classes))
            return no_memory(err);
        memfit_status status = keep_name(l, NULL, name, &place, err);
        if (status == MEMFIT_OK)
            l->classes[l->class_count++] = place;
        return status;
    }
    if (type == MF_ENTRY_FOLDER) { /* not a link to one: that might lead back here */
        memfit_status status = keep_name(l, l->names + w->folder, name, &place, err);
        return status == MEMFIT_OK ? add_folder(l, place, w->in_class, err) : status;
    }
    if (type == MF_ENTRY_LINKED_FOLDER)
        return MEMFIT_OK;
    if (!is_picture(
            name)) { /* a broken link by a picture's name is one that cannot be read, and told when its turn comes */
        if (!l->others++)
            snprintf(l->other, sizeof l->other, "%s", name);
        return MEMFIT_OK;
    }
    if (!mf_grow(l->host, &l->files, &l->file_room, l->count, sizeof *l->files))
        return no_memory(err);
    memfit_status status = keep_name(l, NULL, name, &place, err);
    if (status == MEMFIT_OK)
        l->files[l->count++] = place;
    return status;
}

static int by_name(const void *a, const void *b, void *names)
{
    return strcmp((const char *)names + *(const uint32_t *)a, (const char *)names + *(const uint32_t *)b);
}

static int by_path(const void *a, const void *b, void *names)
{
    return by_name(&((const mf_listing_folder *)a)->path, &((const mf_listing_folder *)b)->path, names);
}

/* A list by names: heads first. Names in a folder share their beginning ("IMG_2019"), so the eight bytes behind what all
 * of them share decide nearly every comparison without going to the names. */
typedef struct keyed {
    uint64_t key;
    uint32_t place;
} keyed;

static int by_key(const void *a, const void *b, void *names)
{
    const keyed *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : by_name(&x->place, &y->place, names);
}

static memfit_status sort_names(mf_listing *l, uint32_t *places, size_t count, memfit_error *err)
{
    size_t common = count ? strlen(l->names + places[0]) : 0;
    for (size_t i = 1; i < count; i++) {
        const char *a = l->names + places[0], *b = l->names + places[i];
        size_t n = 0;
        while (n < common && a[n] == b[n])
            n++;
        common = n;
    }
    keyed *list = mf_host_alloc(l->host, (count + 1) * sizeof *list);
    if (!list)
        return no_memory(err);
    for (size_t i = 0; i < count; i++) {
        const char *p = l->names + places[i] + common;
        uint64_t key = 0;
        for (int b = 0; b < 8; b++) {
            key = key << 8 | (unsigned char)*p;
            p += *p != 0;
        }
        list[i] = (keyed){key, places[i]};
    }
    qsort_r(list, count, sizeof *list, by_key, l->names);
    for (size_t i = 0; i < count; i++)
        places[i] = list[i].place;
    mf_host_free(l->host, list, (count + 1) * sizeof *list);
    return MEMFIT_OK;
}

/* One folder's files, at the end of the list. */
static memfit_status list_one(mf_listing *l, const char *root, size_t folder, memfit_error *err)
{
    char path[MF_MOST_PATH];
    walk w = {.l = l, .in_class = l->folders[folder].in_class, .folder = l->folders[folder].path};
    const char *name = l->names + w.folder;
    if (snprintf(path, sizeof path, "%s%s%s", root, *name ? "/" : "", name) >= (int)sizeof path)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%.200s...: the path is too long", path);
    size_t first = l->count;
    l->folders[folder].first = (int64_t)first;
    memfit_status status = mf_os_list_folder(path, on_entry, &w, err);
    return status == MEMFIT_OK ? sort_names(l, l->files + first, l->count - first, err) : status;
}

/* Folders were met in the order of the walk: theirs by path is wanted, and their files with them. */
static memfit_status sort_folders(mf_listing *l, size_t from, int64_t first_file, memfit_error *err)
{
    size_t n = l->folder_count - from, files = l->count - (size_t)first_file;
    if (n < 2)
        return MEMFIT_OK;
    uint32_t *copy = mf_host_alloc(l->host, (files + 1) * sizeof *copy);
    mf_listing_folder *was = mf_host_alloc(l->host, n * sizeof *was);
    if (!copy || !was) {
        mf_host_free(l->host, copy, (files + 1) * sizeof *copy);
        mf_host_free(l->host, was, n * sizeof *was);
        return no_memory(err);
    }
    memcpy(copy, l->files + first_file, files * sizeof *copy);
    for (size_t i = 0; i < n; i++)
        l->folders[from + i].met = (uint32_t)i;
    memcpy(was, l->folders + from, n * sizeof *was);
    qsort_r(l->folders + from, n, sizeof *was, by_path, l->names);
    size_t at = (size_t)first_file;
    for (size_t i = from; i < l->folder_count; i++) {
        size_t w = l->folders[i].met;
        size_t begin = (size_t)was[w].first, end = w + 1 < n ? (size_t)was[w + 1].first : l->count;
        memcpy(l->files + at, copy + (begin - (size_t)first_file), (end - begin) * sizeof *copy);
        l->folders[i].first = (int64_t)at;
        at += end - begin;
    }
    mf_host_free(l->host, copy, (files + 1) * sizeof *copy);
    mf_host_free(l->host, was, n * sizeof *was);
    return MEMFIT_OK;
}

/* A folder and all below it. */
static memfit_status list_tree(mf_listing *l, const char *root, uint32_t path, uint32_t in_class, memfit_error *err)
{
    size_t from = l->folder_count;
    int64_t first = (int64_t)l->count;
    memfit_status status = add_folder(l, path, in_class, err);
    for (size_t i = from; status == MEMFIT_OK && i < l->folder_count; i++)
        status = list_one(l, root, i, err);
    return status == MEMFIT_OK ? sort_folders(l, from, first, err) : status;
}

static memfit_status list_all(mf_listing *l, const char *root, bool by_class, memfit_error *err)
{
    walk w = {.l = l, .classes = true};
    uint32_t empty;
    memfit_status status = keep_name(l, NULL, "", &empty, err);
    if (status != MEMFIT_OK || !by_class)
        return status == MEMFIT_OK ? list_tree(l, root, empty, NO_CLASS, err) : status;
    status = mf_os_list_folder(root, on_entry, &w, err);
    if (status == MEMFIT_OK)
        status = sort_names(l, l->classes, l->class_count, err);
    l->class_first = mf_host_zalloc(l->host, (l->class_count + 1) * sizeof *l->class_first);
    if (status == MEMFIT_OK && !l->class_first)
        status = no_memory(err);
    for (size_t c = 0; status == MEMFIT_OK && c < l->class_count; c++) {
        l->class_first[c] = (int64_t)l->count;
        status = list_tree(l, root, l->classes[c], (uint32_t)c, err);
    }
    if (status == MEMFIT_OK)
        l->class_first[l->class_count] = (int64_t)l->count;
    return status;
}

/* What doubling took too much goes back. */
static void fit(mf_listing *l)
{
    char *names = mf_host_resize(l->host, l->names, l->name_room, l->name_bytes);
    if (names) {
        l->names = names;
        l->name_room = l->name_bytes;
    }
    uint32_t *files =
        l->count ? mf_host_resize(l->host, l->files, l->file_room * sizeof *files, l->count * sizeof *files) : NULL;
    if (files) {
        l->files = files;
        l->file_room = l->count;
    }
}

memfit_status mf_listing_make(const memfit_host *host, const char *root, bool by_class, mf_listing *l,
                              memfit_error *err)
{
    *l = (mf_listing){.host = host};
    memfit_status status = list_all(l, root, by_class, err);
    if (status != MEMFIT_OK)
        mf_listing_drop(l);
    else
        fit(l);
    return status;
}

void mf_listing_drop(mf_listing *l)
{
    mf_host_free(l->host, l->names, l->name_room);
    mf_host_free(l->host, l->files, l->file_room * sizeof *l->files);
    mf_host_free(l->host, l->folders, l->folder_room * sizeof *l->folders);
    if (l->class_first)
        mf_host_free(l->host, l->class_first, (l->class_count + 1) * sizeof *l->class_first);
    mf_host_free(l->host, l->classes, l->class_room * sizeof *l->classes);
    *l = (mf_listing){.host = l->host};
}

bool mf_listing_path(const mf_listing *l, int64_t file, char *path, size_t room)
{
    size_t low = 0, high = l->folder_count;
    while (high - low >
           1) { /* the last folder that begins at or before the file; empty ones begin where the next does */
        size_t middle = (low + high) / 2;
        if (l->folders[middle].first <= file)
            low = middle;
        else
            high = middle;
    }
    const char *folder = l->names + l->folders[low].path, *name = l->names + l->files[file];
    int n = snprintf(path, room, "%s%s%s", folder, *folder ? "/" : "", name);
    return n > 0 && (size_t)n < room;
}

uint64_t mf_listing_bytes(const mf_listing *l)
{
    return l->name_room + l->file_room * sizeof *l->files + l->folder_room * sizeof *l->folders;
}
