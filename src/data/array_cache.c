/*
 * array_cache.c: arrays that were unpacked or converted when a file was opened, kept for the next run (sample_cache.h has
 * the head):
 *
 *   head 64 | list of arrays | array | array | ...        each array begins at a multiple of 64
 *   list:    a fixed part and three texts for each array: name, why it cannot be used, what to do about it
 *
 * The file is written whole beside its place and renamed. The list has a check sum, and so has each array, verified when
 * it is opened for up to MF_VERIFY_QUICK_BYTES in all. Damaged: told, and unpacked again.
 */
#include "data/sample_cache.h"

#include "base/error.h"
#include "file/tfrecord.h"
#include "file/zip.h"

#include <string.h>

enum { ALIGNED = 64, MOST_ARRAYS = 4096, MOST_TEXT = 4096 };

typedef struct entry {
    uint64_t at, bytes;
    int64_t dim[MF_MOST_DIMS];
    uint32_t rank, dtype, crc;
    int32_t why;
    uint32_t text_bytes[3]; /* each with its final 0; 0: there is none */
    uint32_t zero;
} entry;

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static uint64_t stamp_of(const mf_source *source, const mf_source_wish *wish)
{
    mf_stamp stamp = {0};
    const char *slash = strrchr(source->path, '/');
    mf_stamp_file(&stamp, -1, source->path, slash ? slash + 1 : source->path);
    mf_stamp_number(&stamp, (uint64_t)wish->inputs);
    mf_stamp_add(&stamp, wish->features ? wish->features : "", wish->features ? strlen(wish->features) : 0);
    mf_stamp_add(&stamp, memfit_version(), strlen(memfit_version()));
    return stamp.value;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static entry entry_of(const mf_array *a, const char *texts[3])
{
    entry e = {.rank = a->shape.rank, .dtype = (uint32_t)a->dtype, .why = (int32_t)a->why};
    texts[0] = a->name;
    texts[1] = a->unusable;
    texts[2] = a->unusable ? a->hint : NULL;
    for (int i = 0; i < 3; i++)
        e.text_bytes[i] = texts[i] ? (uint32_t)strlen(texts[i]) + 1 : 0;
    memcpy(e.dim, a->shape.dim, sizeof e.dim);
    e.bytes = a->data ? a->sample_bytes * (uint64_t)(a->shape.rank ? a->shape.dim[0] : 0) : 0;
    e.crc = e.bytes ? mf_crc32c(a->data, e.bytes) : 0;
    return e;
}

static uint64_t list_bytes(const mf_source *source)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < source->count; i++) {
        const mf_array *a = &source->arrays[i];
        bytes += sizeof(entry) + strlen(a->name) + 1;
        bytes += a->unusable ? strlen(a->unusable) + 1 : 0;
        bytes += a->unusable && a->hint ? strlen(a->hint) + 1 : 0;
    }
    return bytes;
}

/* The list into `list`; returns the size of the whole file. */
static uint64_t write_list(const mf_source *source, unsigned char *list, uint64_t bytes)
{
    uint64_t at = aligned(MF_CACHE_HEAD_BYTES + bytes);
    for (uint32_t i = 0; i < source->count; i++) {
        const char *texts[3];
        entry e = entry_of(&source->arrays[i], texts);
        e.at = at;
        at += aligned(e.bytes);
        memcpy(list, &e, sizeof e);
        list += sizeof e;
        for (int k = 0; k < 3; k++) {
            if (e.text_bytes[k])
                memcpy(list, texts[k], e.text_bytes[k]);
            list += e.text_bytes[k];
        }
    }
    return at;
}

static memfit_status write_padded(mf_rawfile *file, const void *data, uint64_t bytes, uint64_t to, memfit_error *err)
{
    static const unsigned char zeros[ALIGNED];
    memfit_status status = mf_os_raw_write(file, data, bytes, err);
    return status == MEMFIT_OK && to > bytes ? mf_os_raw_write(file, zeros, to - bytes, err) : status;
}

static memfit_status write_file(const mf_source *source, const char *path, uint64_t stamp, unsigned char *list,
                                uint64_t bytes, memfit_error *err)
{
    mf_rawfile file;
    mf_cache_head head;
    uint64_t whole = write_list(source, list, bytes);
    mf_cache_fill_head(&head, MF_CACHE_OF_ARRAYS, stamp, bytes, whole, mf_crc32c(list, bytes));
    memfit_status status = mf_os_raw_open(&file, path, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_os_raw_write(&file, &head, sizeof head, err);
    if (status == MEMFIT_OK)
        status = write_padded(&file, list, bytes, aligned(sizeof head + bytes) - sizeof head, err);
    for (uint32_t i = 0; i < source->count && status == MEMFIT_OK; i++) {
        const mf_array *a = &source->arrays[i];
        uint64_t n = a->data ? a->sample_bytes * (uint64_t)a->shape.dim[0] : 0;
        if (n)
            status = write_padded(&file, a->data, n, aligned(n), err);
    }
    if (status == MEMFIT_OK)
        return mf_os_raw_commit(&file, err);
    mf_os_raw_abandon(&file);
    return status;
}

memfit_status mf_cache_write_arrays(const mf_source *source, const mf_source_wish *wish, const mf_log *log,
                                    memfit_error *err)
{
    memfit_error failed = {0};
    const uint64_t bytes = list_bytes(source);
    unsigned char *list = mf_host_zalloc(source->arena.host, bytes + 1);
    if (!list)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the cache of %s", source->path);
    memfit_status status = write_file(source, wish->cache, stamp_of(source, wish), list, bytes, &failed);
    mf_host_free(source->arena.host, list, bytes + 1);
    if (status == MEMFIT_OK)
        mf_log_write(log, MF_LOG_NOTE, "%s keeps the arrays of %s as they were unpacked", wish->cache, source->path);
    else
        mf_log_write(log, MF_LOG_NOTE, "the cache was not written: %s", failed.message);
    return MEMFIT_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* A text of the list: ended by 0 and nowhere before. */
static bool is_text(const unsigned char *p, uint32_t bytes)
{
    return bytes == 0 || (bytes <= MOST_TEXT && p[bytes - 1] == 0 && strlen((const char *)p) + 1 == bytes);
}

static bool is_sound(const entry *e, const mf_mapping *file)
{
    mf_shape shape = {.rank = e->rank};
    if (e->rank > MF_MOST_DIMS || e->dtype >= MF_DTYPE_COUNT || !e->text_bytes[0])
        return false;
    if (e->text_bytes[1])
        return e->why != MEMFIT_OK;
    for (uint32_t d = 0; d < e->rank; d++) {
        if (e->dim[d] < 0)
            return false;
        shape.dim[d] = e->dim[d];
    }
    uint64_t count = mf_shape_count(&shape);
    return e->rank && count <= UINT64_MAX / 16 && e->bytes == count * mf_dtype_bytes((mf_dtype)e->dtype) &&
           e->at % ALIGNED == 0 && e->at <= file->bytes && e->bytes <= file->bytes - e->at;
}

/* The array of one entry, whose texts are at `text`. */
static memfit_status add_entry(mf_source *source, const entry *e, const char *text, const mf_mapping *file,
                               memfit_error *err)
{
    if (e->text_bytes[1]) {
        memfit_error why = {.code = (memfit_status)e->why};
        snprintf(why.message, sizeof why.message, "%s", text + e->text_bytes[0]);
        if (e->text_bytes[2])
            snprintf(why.hint, sizeof why.hint, "%s", text + e->text_bytes[0] + e->text_bytes[1]);
        return mf_source_add_unusable(source, text, &why, err);
    }
    mf_shape shape = {.rank = e->rank};
    memcpy(shape.dim, e->dim, sizeof e->dim);
    return mf_source_add(source, text, (mf_dtype)e->dtype, &shape, file->data + e->at, e->bytes, err);
}

/* *sound becomes false where the file is damaged. */
static memfit_status read_list(mf_source *source, const mf_mapping *file, uint64_t bytes, bool *sound,
                               memfit_error *err)
{
    const unsigned char *p = file->data + MF_CACHE_HEAD_BYTES, *end = p + bytes;
    uint64_t verified = 0;
    for (unsigned n = 0; p < end; n++) {
        entry e;
        if ((uint64_t)(end - p) < sizeof e || n == MOST_ARRAYS)
            return *sound = false, MEMFIT_OK;
        memcpy(&e, p, sizeof e);
        p += sizeof e;
        const unsigned char *texts = p;
        for (int k = 0; k < 3; k++) {
            if (e.text_bytes[k] > (uint64_t)(end - p) || !is_text(p, e.text_bytes[k]))
                return *sound = false, MEMFIT_OK;
            p += e.text_bytes[k];
        }
        if (!is_sound(&e, file))
            return *sound = false, MEMFIT_OK;
        verified += e.bytes;
        if (!e.text_bytes[1] && verified <= MF_VERIFY_QUICK_BYTES && mf_crc32c(file->data + e.at, e.bytes) != e.crc)
            return *sound = false, MEMFIT_OK;
        memfit_status status = add_entry(source, &e, (const char *)texts, file, err);
        if (status != MEMFIT_OK)
            return status;
    }
    return MEMFIT_OK;
}

memfit_status mf_cache_open_arrays(mf_source *source, const mf_source_wish *wish, const mf_log *log, bool *found,
                                   memfit_error *err)
{
    mf_cache_head head, want;
    mf_mapping file;
    int descriptor;
    *found = false;
    memfit_status status = mf_cache_may_replace(wish->cache, err);
    if (status != MEMFIT_OK || mf_os_peek(wish->cache, &head, sizeof head) < sizeof head)
        return status;
    mf_cache_fill_head(&want, MF_CACHE_OF_ARRAYS, stamp_of(source, wish), head.samples, head.whole_bytes,
                       head.list_crc);
    if (memcmp(&want, &head, sizeof head) != 0)
        return MEMFIT_OK;
    status = mf_os_map_watched(wish->cache, &file, &descriptor, err);
    if (status != MEMFIT_OK)
        return status;
    bool sound = file.bytes >= head.whole_bytes && file.bytes >= sizeof head &&
                 head.samples <= file.bytes - sizeof head &&
                 mf_crc32c(file.data + sizeof head, head.samples) == head.list_crc;
    if (sound)
        status = read_list(source, &file, head.samples, &sound, err);
    if (sound && status == MEMFIT_OK && source->count) {
        source->mappings[0] = file;
        source->mapping_count = 1;
        source->descriptor = descriptor;
        *found = true;
        mf_log_write(log, MF_LOG_NOTE, "the arrays of %s are taken from %s", source->path, wish->cache);
        return MEMFIT_OK;
    }
    source->count = 0;
    mf_os_unmap_file(&file);
    mf_os_unwatch(descriptor);
    if (status == MEMFIT_OK)
        mf_log_write(log, MF_LOG_NOTE, "%s is damaged: made anew", wish->cache);
    return status;
}
