/*
 * data_parts.c: several files of arrays or tables as one source ('part-*.npz', 'train-?.csv'), in the order of their names,
 * one behind the other. Each is opened as it would be alone; a sample is copied out of its file by a worker, so pages that
 * are not in memory are waited for by workers and not by the step.
 *
 * What the first file has, all must have: an array that is missing, of another type or of other samples somewhere is told
 * with the file when it is asked for. Labels that were texts have one numbering for all files. Sequences are as long as the
 * longest of all files; what a file's own are shorter is 0.
 */
#include "data/labels.h"
#include "data/lengths.h"
#include "data/source.h"
#include "data/worker.h"

#include "base/error.h"

#include <string.h>

enum { MOST_PARTS = 1 << 16, MOST_WATCHED = 256, ROOM_BYTES = 64 };

typedef struct part {
    mf_source *source;
    int64_t first;
} part;

typedef struct parts {
    mf_source *source;
    const mf_source_wish *wish; /* while opening */
    const mf_log *log;
    part *list;
    size_t count, room;
    /* Of text labels: the final number of each part's own ones, by array and part. */
    int32_t **codes;
    uint32_t arrays;
} parts;

static memfit_status no_memory(const mf_source *source, memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
}

static size_t part_of(const parts *p, int64_t index)
{
    size_t low = 0, high = p->count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (p->list[middle].first <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void name_of(const mf_source *source, int64_t index, char *text, size_t room)
{
    const parts *p = source->made_of;
    const part *at = &p->list[part_of(p, index)];
    snprintf(text, room, "%s: sample %lld", at->source->path, (long long)(index - at->first));
}

static memfit_status make(const mf_source *source, const mf_array *array, int64_t index, mf_worker *worker, void *out,
                          memfit_error *err)
{
    (void)worker;
    const parts *p = source->made_of;
    size_t n = part_of(p, index);
    const part *at = &p->list[n];
    memfit_status status = mf_source_still_whole(at->source, err);
    if (status != MEMFIT_OK)
        return status;
    const mf_array *own = mf_source_find(at->source, array->name);
    const int32_t *codes = p->codes[(size_t)array->column * p->count + n];
    if (!codes) {
        mf_source_read(at->source, own, index - at->first, out);
        memset((unsigned char *)out + own->sample_bytes, 0, array->sample_bytes - own->sample_bytes);
        return MEMFIT_OK;
    }
    int32_t label;
    mf_source_read(at->source, own, index - at->first, &label);
    label = codes[label];
    for (int64_t i = 0; i < array->classes; i++) /* one-hot */
        ((float *)out)[i] = i == label;
    if (!array->classes)
        memcpy(out, &label, sizeof label);
    return MEMFIT_OK;
}

static void close_parts(mf_source *source)
{
    parts *p = source->made_of;
    for (size_t i = 0; i < p->count; i++)
        mf_source_close(p->list[i].source);
    mf_host_free(source->arena.host, p->list, p->room * sizeof *p->list);
}

static const mf_maker maker = {make, name_of, close_parts, NULL};

static memfit_status add_part(void *ctx, const char *path, memfit_error *err)
{
    parts *p = ctx;
    mf_source *source = p->source;
    mf_source_wish wish = *p->wish;
    wish.cache = NULL;
    wish.classes = NULL; /* numbers are settled for all parts together */
    if (p->count == MOST_PARTS)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s matches more than %d files", source->path, MOST_PARTS);
    if (!mf_grow(source->arena.host, &p->list, &p->room, p->count, sizeof *p->list))
        return no_memory(source, err);
    part *n = &p->list[p->count];
    memfit_status status =
        mf_source_open_as(source->arena.host, path, &wish, p->count ? NULL : p->log, &n->source, err);
    if (status != MEMFIT_OK)
        return status;
    n->first = p->count ? n[-1].first + n[-1].source->samples : 0;
    p->count++;
    source->stored_bytes += n->source->stored_bytes;
    source->stored_in = n->source->path;
    if (n->source->maker)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: %s is neither a file of arrays nor a table", source->path, path);
    if (p->count > MOST_WATCHED) { /* descriptors are few */
        mf_os_unwatch(n->source->descriptor);
        n->source->descriptor = -1;
    }
    return MEMFIT_OK;
}

/* ---- arrays ----------------------------------------------------------------------------------------------- */

static bool is_alike(const mf_array *a, const mf_array *b)
{
    bool alike =
        a->dtype == b->dtype && a->shape.rank == b->shape.rank && !a->names == !b->names && a->ragged == b->ragged;
    for (uint32_t d = a->ragged ? 2 : 1; alike && d < a->shape.rank; d++)
        alike = a->shape.dim[d] == b->shape.dim[d];
    return alike;
}

/* What is wrong with the array of this name in some file; false: nothing. */
static bool is_refused(const parts *p, const mf_array *a, memfit_error *why)
{
    const char *first = p->list[0].source->path;
    for (size_t i = 0; i < p->count; i++) {
        const mf_array *b = mf_source_find(p->list[i].source, a->name);
        const char *path = p->list[i].source->path;
        if (b && b->unusable)
            mf_source_refuse(b, why);
        else if (!b)
            mf_fail(why, MEMFIT_DAMAGED, "%s has no array %s, which %s has", path, a->name, first);
        else if (!is_alike(a, b))
            mf_fail(why, MEMFIT_DAMAGED, "%s: array %s has another type or other samples than in %s", path, a->name,
                    first);
        else
            continue;
        return true;
    }
    return false;
}

/* One numbering for the texts of all parts: each part's own number -> the final one. */
static memfit_status settle_codes(parts *p, const mf_array *a, uint32_t column, memfit_error *err)
{
    mf_source *source = p->source;
    mf_labels labels;
    uint64_t total = 0, at = 0;
    for (size_t i = 0; i < p->count; i++)
        total += mf_source_find(p->list[i].source, a->name)->name_count;
    int32_t *codes = MF_NEW_ARRAY(&source->arena, int32_t, total + 1);
    memfit_status status = codes ? MEMFIT_OK : no_memory(source, err);
    mf_labels_begin(&labels, source);
    for (size_t i = 0; i < p->count && status == MEMFIT_OK; i++) {
        const mf_array *b = mf_source_find(p->list[i].source, a->name);
        p->codes[(size_t)column * p->count + i] = codes + at;
        for (uint32_t k = 0; k < b->name_count && status == MEMFIT_OK; k++, at++)
            status = mf_labels_number(&labels, b->names[k], strlen(b->names[k]), &codes[at], err);
    }
    if (status == MEMFIT_OK)
        return mf_labels_end(&labels, a->name, codes, (int64_t)total, source->classes_given, err);
    mf_labels_drop(&labels);
    return status;
}

static memfit_status add_array(parts *p, const mf_array *a, uint32_t column, memfit_error *err)
{
    mf_source *source = p->source;
    memfit_error why;
    if (is_refused(p, a, &why))
        return mf_source_add_unusable(source, a->name, &why, err);
    mf_shape shape = a->shape;
    shape.dim[0] = p->list[p->count - 1].first + p->list[p->count - 1].source->samples;
    for (size_t i = 0; a->ragged && i < p->count; i++) {
        const int64_t steps = mf_source_find(p->list[i].source, a->name)->shape.dim[1];
        shape.dim[1] = steps > shape.dim[1] ? steps : shape.dim[1];
    }
    if (!a->names) {
        memfit_status added = mf_source_add_made(source, a->name, a->dtype, &shape, column, err);
        if (added == MEMFIT_OK)
            source->arrays[source->count - 1].ragged = a->ragged;
        return added;
    }
    memfit_status status = settle_codes(p, a, column, err); /* adds an array over the numbers; it becomes the labels' */
    if (status != MEMFIT_OK)
        return status;
    mf_array *y = &source->arrays[source->count - 1];
    y->made = true;
    y->column = column;
    y->data = NULL;
    y->shape = shape;
    return MEMFIT_OK;
}

/* Of all samples, where they differ in some file. */
static memfit_status join_lengths(parts *p, memfit_error *err)
{
    bool any = false;
    for (size_t i = 0; i < p->count; i++)
        any |= p->list[i].source->lengths != NULL;
    if (!any)
        return MEMFIT_OK;
    const part *last = &p->list[p->count - 1];
    memfit_status status = mf_lengths_make(p->source, last->first + last->source->samples, err);
    for (size_t i = 0; i < p->count && status == MEMFIT_OK; i++) {
        const mf_source *s = p->list[i].source;
        if (s->lengths)
            memcpy(p->source->lengths + p->list[i].first, s->lengths, (size_t)s->samples * sizeof *s->lengths);
    }
    return status;
}

memfit_status mf_source_parts(mf_source *source, const mf_source_wish *wish, const mf_log *log, memfit_error *err)
{
    parts *p = MF_NEW(&source->arena, parts);
    if (!p)
        return no_memory(source, err);
    *p = (parts){.source = source, .wish = wish, .log = log};
    source->made_of = p;
    source->maker = &maker;
    source->room_bytes = ROOM_BYTES;
    memfit_status status = mf_os_glob(source->path, add_part, p, err);
    if (status != MEMFIT_OK)
        return status;
    const mf_source *first = p->list[0].source;
    p->arrays = first->count;
    p->codes = MF_NEW_ARRAY(&source->arena, int32_t *, (size_t)first->count * p->count + 1);
    if (!p->codes)
        return no_memory(source, err);
    memset((void *)p->codes, 0, ((size_t)first->count * p->count + 1) * sizeof *p->codes);
    for (uint32_t i = 0; i < first->count && status == MEMFIT_OK; i++)
        status = add_array(p, &first->arrays[i], i, err);
    if (status == MEMFIT_OK)
        status = join_lengths(p, err);
    if (status == MEMFIT_OK)
        mf_log_write(log, MF_LOG_NOTE, "%s: %zu files", source->path, p->count);
    return status;
}
