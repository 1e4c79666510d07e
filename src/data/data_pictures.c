/*
 * data_pictures.c: a folder of images as a source: x, pictures decoded and resized on demand, and y, the number of the
 * sub-folder they lie in (see listing.h for the order, resize.h for the numbers). Nothing of a picture is kept.
 *
 * How much memory a decoder needs follows from a picture's header. The headers of up to MOST_LOOKED files, spread over the
 * listing, are read when the folder is opened; workers get room for the largest of them, and half as much again where not
 * all were read. A picture that needs more is refused by name, and the message says how to give more.
 */
#include "data/listing.h"
#include "data/numpy_shuffle.h"
#include "data/resize.h"
#include "data/sample_cache.h"
#include "data/source.h"
#include "data/worker.h"

#include "base/error.h"

#include <errno.h>
#include <string.h>

enum { MOST_LOOKED = 1024, LEAST_ROOM_BYTES = 512 << 10, KERAS_SIDE = 256 };

typedef struct pictures {
    mf_listing listing;
    int root; /* descriptor of the folder */
    uint32_t height, width, channels;
    mf_dtype dtype;
    bool scaled;
    uint32_t *mixed; /* see mf_source */
} pictures;

static int64_t file_of(const pictures *p, int64_t index)
{
    return p->mixed ? p->mixed[index] : index;
}

static void name_of(const mf_source *source, int64_t index, char *text, size_t room)
{
    const pictures *p = source->made_of;
    char path[MF_MOST_PATH];
    bool whole = mf_listing_path(&p->listing, file_of(p, index), path, sizeof path);
    snprintf(text, room, "%s/%s", source->path, whole ? path : "?");
}

static memfit_status open_picture(const mf_source *source, int64_t index, mf_picture_input *in, char *name, size_t room,
                                  unsigned char *buffer, memfit_error *err)
{
    const pictures *p = source->made_of;
    char path[MF_MOST_PATH];
    name_of(source, index, name, room);
    *in = (mf_picture_input){.name = name, .descriptor = -1, .buffer = buffer};
    if (mf_listing_path(&p->listing, file_of(p, index), path, sizeof path))
        in->descriptor = mf_os_open_in(p->root, path);
    if (in->descriptor >= 0)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_DAMAGED, "%s cannot be read: %s\nit was there when the folder was listed", name,
                   errno == EINVAL ? "it is not a regular file" : strerror(errno));
}

static memfit_status make(const mf_source *source, const mf_array *array, int64_t index, mf_worker *w, void *out,
                          memfit_error *err)
{
    const pictures *p = source->made_of;
    char name[512];
    mf_picture_input in;
    mf_resize resize = {
        .height = p->height, .width = p->width, .channels = p->channels, .dtype = array->dtype, .out = out};
    const mf_picture_sink sink = mf_resize_sink(&resize);
    memfit_status status = open_picture(source, index, &in, name, sizeof name, w->buffer, err);
    if (status != MEMFIT_OK)
        return status;
    const mf_picture_size least = {p->scaled ? p->width : 0, p->height};
    w->room.used = 0;
    status = mf_picture_decode(w->decoder, &in, p->channels, least, &w->room, &sink, err);
    if (status == MEMFIT_OK && !mf_resize_is_whole(&resize))
        status = mf_fail(err, MEMFIT_DAMAGED, "%s ends before its last row", name);
    mf_os_unwatch(in.descriptor);
    return status;
}

static void close_pictures(mf_source *source)
{
    pictures *p = source->made_of;
    mf_os_unwatch(p->root);
    mf_host_free(source->arena.host, p->mixed, p->listing.count * sizeof *p->mixed);
    mf_listing_drop(&p->listing);
}

/* In the order of the listing: a split mixes samples, not files. */
static void stamp(const mf_source *source, mf_stamp *to)
{
    const pictures *p = source->made_of;
    char path[MF_MOST_PATH];
    mf_stamp_number(to, p->height);
    mf_stamp_number(to, p->width);
    mf_stamp_number(to, p->channels);
    mf_stamp_number(to, p->scaled);
    for (size_t i = 0; i < p->listing.count; i++)
        if (mf_listing_path(&p->listing, (int64_t)i, path, sizeof path))
            mf_stamp_file(to, p->root, path, path);
}

static const mf_maker maker = {make, name_of, close_pictures, stamp};

/* Room for the largest of the pictures looked at. What is wrong with one is told when its turn comes. */
static memfit_status look_at_headers(mf_source *source, memfit_error *err)
{
    const pictures *p = source->made_of;
    const int64_t count = (int64_t)p->listing.count, looked = count < MOST_LOOKED ? count : MOST_LOOKED;
    unsigned char *buffer = mf_host_alloc(source->arena.host, MF_PICTURE_BUFFER_BYTES);
    if (!buffer)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
    uint64_t most = LEAST_ROOM_BYTES;
    for (int64_t i = 0; i < looked; i++) {
        char name[512];
        memfit_error ignored;
        mf_picture_input in;
        mf_picture_head head;
        if (open_picture(source, i * count / looked, &in, name, sizeof name, buffer, &ignored) != MEMFIT_OK)
            continue;
        if (mf_picture_look(&in, &head, &ignored) == MEMFIT_OK && head.room_bytes > most)
            most = head.room_bytes;
        mf_os_unwatch(in.descriptor);
    }
    mf_host_free(source->arena.host, buffer, MF_PICTURE_BUFFER_BYTES);
    most += looked < count ? most / 2 : 0;
    source->room_bytes = most + mf_resize_room_bytes(p->width, p->channels);
    return MEMFIT_OK;
}

static memfit_status say_what_is_there(const mf_source *source, const mf_source_wish *wish, const mf_log *log,
                                       memfit_error *err)
{
    const pictures *p = source->made_of;
    const mf_listing *l = &p->listing;
    if (!wish->unlabelled && l->class_count == 0)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s has no sub-folders: images must lie in one folder for each class\n"
                       "%s/cats/1.jpg, %s/dogs/2.jpg; the classes are numbered in the order of their names",
                       source->path, source->path, source->path);
    if (l->count == 0)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s holds no images: no file below it ends in .jpg, .jpeg, .png, .bmp, .gif or .webp%s%s",
                       source->path, l->others ? "; there is " : "", l->others ? l->other : "");
    if (l->others)
        mf_log_write(log, MF_LOG_WARNING, "%s: %lld files that are no images by their ending are left out, as %s",
                     source->path, (long long)l->others, l->other);
    for (size_t c = 0; c < l->class_count; c++)
        if (l->class_first[c] == l->class_first[c + 1])
            mf_log_write(log, MF_LOG_WARNING, "%s: class %s has no images", source->path, l->names + l->classes[c]);
    mf_log_write(log, MF_LOG_DETAIL, "%s: %lld images of %lld classes", source->path, (long long)l->count,
                 (long long)l->class_count);
    return MEMFIT_OK;
}

/* Files are listed class by class: without this the last classes alone would be held out. */
static memfit_status mix(mf_source *source, uint32_t seed, memfit_error *err)
{
    pictures *p = source->made_of;
    p->mixed = mf_host_alloc(source->arena.host, p->listing.count * sizeof *p->mixed);
    if (!p->mixed)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the order of %lld images",
                       (long long)p->listing.count);
    for (size_t i = 0; i < p->listing.count; i++)
        p->mixed[i] = (uint32_t)i;
    mf_numpy_shuffle(p->mixed, p->listing.count, seed);
    source->mixed = p->mixed;
    return MEMFIT_OK;
}

/* The folders' names are the labels'. */
static memfit_status name_classes(mf_source *source, memfit_error *err)
{
    const pictures *p = source->made_of;
    const mf_listing *l = &p->listing;
    const char **names = MF_NEW_ARRAY(&source->arena, const char *, l->class_count + 1);
    if (!names)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
    for (size_t c = 0; c < l->class_count; c++)
        names[c] = l->names + l->classes[c];
    source->arrays[source->count - 1].names = names;
    source->arrays[source->count - 1].name_count = (uint32_t)l->class_count;
    return MEMFIT_OK;
}

memfit_status mf_source_pictures(mf_source *source, const mf_source_wish *wish, const mf_log *log, memfit_error *err)
{
    pictures *p = MF_NEW(&source->arena, pictures);
    if (!p)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
    *p = (pictures){.root = mf_os_open_folder(source->path),
                    .height = (uint32_t)(wish->height ? wish->height : KERAS_SIDE),
                    .width = (uint32_t)(wish->width ? wish->width : KERAS_SIDE),
                    .channels = (uint32_t)(wish->channels ? wish->channels : 3),
                    .scaled = wish->scaled,
                    .dtype = wish->bytes ? MF_U8 : MF_F32};
    if (p->root < 0)
        return mf_fail(err, MEMFIT_NOT_FOUND, "%s: %s", source->path, strerror(errno));
    source->made_of = p;
    source->maker = &maker;
    memfit_status status = mf_listing_make(source->arena.host, source->path, !wish->unlabelled, &p->listing, err);
    if (status == MEMFIT_OK)
        status = say_what_is_there(source, wish, log, err);
    if (status == MEMFIT_OK && wish->split)
        status = mix(source, wish->seed, err);
    if (status == MEMFIT_OK)
        status = look_at_headers(source, err);
    if (status != MEMFIT_OK)
        return status;
    if (wish->decode_bytes)
        source->room_bytes = wish->decode_bytes;
    const int64_t n = (int64_t)p->listing.count;
    const mf_shape x = {.rank = 4, .dim = {n, p->height, p->width, p->channels}}, y = {.rank = 1, .dim = {n}};
    status = mf_source_add_made(source, "x", p->dtype, &x, 0, err);
    if (status == MEMFIT_OK)
        source->arrays[source->count - 1].picture = true;
    source->class_first = p->listing.class_first;
    source->class_count = (uint32_t)p->listing.class_count;
    if (status == MEMFIT_OK && !wish->unlabelled)
        status = mf_source_add_generated(source, "y", MF_I32, &y, 3, 0, err);
    return status == MEMFIT_OK && !wish->unlabelled ? name_classes(source, err) : status;
}
