/* source.c: opening data files, and the parts every format shares. */
#include "data/source.h"

#include "base/error.h"
#include "data/lengths.h"
#include "data/sample_cache.h"
#include "file/gzip.h"
#include "file/hdf5.h"
#include "file/tfrecord.h"
#include "file/zip.h"
#include "ops/ops.h"

#include <string.h>
#include <strings.h>

static memfit_status append(mf_source *source, const char *name, mf_array array, memfit_error *err)
{
    array.name = mf_arena_strdup(&source->arena, name);
    if (!array.name ||
        !mf_grow(source->arena.host, &source->arrays, &source->capacity, source->count, sizeof *source->arrays))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
    source->arrays[source->count++] = array;
    return MEMFIT_OK;
}

memfit_status mf_source_add_unusable(mf_source *source, const char *name, const memfit_error *why, memfit_error *err)
{
    char *text = mf_arena_strdup(&source->arena, why->message), *hint = mf_arena_strdup(&source->arena, why->hint);
    if (!text || !hint)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
    return append(source, name, (mf_array){.unusable = text, .hint = hint, .why = why->code}, err);
}

memfit_status mf_source_add(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                            const unsigned char *data, uint64_t bytes, memfit_error *err)
{
    memfit_error why;
    uint64_t count = mf_shape_count(shape), size = mf_dtype_bytes(dtype);
    if (shape->rank < 1) {
        mf_fail(&why, MEMFIT_DAMAGED, "%s: array %s is a single number: the first axis must count samples",
                source->path, name);
        return mf_source_add_unusable(source, name, &why, err);
    }
    if (count == UINT64_MAX || count > UINT64_MAX / 16 || count * size > bytes)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: array %s is cut off: %llu bytes where its shape needs %llu\n"
                       "the file is truncated; copy or make it again",
                       source->path, name, (unsigned long long)bytes, (unsigned long long)(count * size));
    return append(source, name,
                  (mf_array){.dtype = dtype,
                             .shape = *shape,
                             .sample_bytes = shape->dim[0] ? count / (uint64_t)shape->dim[0] * size : 0,
                             .data = data},
                  err);
}

/* Deflate packs 1032 : 1 at best, and no other way of storing numbers that is read here does better: a file that claims
 * more leaves most of its arrays unwritten, and they would fill the disk with zeros. */
enum { MOST_EXPANSION = 1032, EXPANSION_EXEMPT_BYTES = 1 << 20 };

memfit_status mf_source_spool(mf_source *source, uint64_t bytes, unsigned char **data, memfit_error *err)
{
    uint64_t file_bytes = source->mappings[0].bytes;
    char claimed[24], has[24];
    source->spooled_bytes += bytes < UINT64_MAX - source->spooled_bytes ? bytes : UINT64_MAX - source->spooled_bytes;
    if (source->spooled_bytes > EXPANSION_EXEMPT_BYTES && source->spooled_bytes / MOST_EXPANSION > file_bytes)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s claims arrays of %s, but a file of %s cannot hold them: they were never written\n"
                       "write the data into them, or leave them out",
                       source->path, memfit_size_format(source->spooled_bytes, claimed, sizeof claimed),
                       memfit_size_format(file_bytes, has, sizeof has));
    if (source->mapping_count == MF_SOURCE_MOST_MAPPINGS)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s has more than %d arrays", source->path, MF_SOURCE_MOST_MAPPINGS);
    memfit_status status = mf_os_spool_map(bytes, data, err);
    if (status != MEMFIT_OK)
        return status;
    source->mappings[source->mapping_count++] = (mf_mapping){*data, bytes};
    return MEMFIT_OK;
}

memfit_status mf_source_refuse(const mf_array *array, memfit_error *err)
{
    return mf_fail(err, array->why, "%s\n%s", array->unusable, array->hint ? array->hint : "");
}

const mf_array *mf_source_find(const mf_source *source, const char *name)
{
    for (uint32_t i = 0; i < source->count; i++)
        if (strcmp(source->arrays[i].name, name) == 0)
            return &source->arrays[i];
    return NULL;
}

/* The array whose length is the number of samples: the inputs, by the usual names, or the first that can be used. */
static const mf_array *leading_array(const mf_source *source)
{
    static const char *const names[] = {"x", "X", "x_train", "X_train", "images", "data"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const mf_array *a = mf_source_find(source, names[i]);
        if (a && !a->unusable)
            return a;
    }
    for (uint32_t i = 0; i < source->count; i++)
        if (!source->arrays[i].unusable)
            return &source->arrays[i];
    return NULL;
}

/* Arrays of another length than the inputs stay, to be refused when they are asked for. */
static memfit_status agree(mf_source *source, const mf_log *log, memfit_error *err)
{
    if (!source->count)
        return mf_fail(err, MEMFIT_DAMAGED, "%s holds no arrays\nmemfit reads arrays named x and y", source->path);
    const mf_array *first = leading_array(source);
    if (!first)
        return mf_source_refuse(&source->arrays[0], err);
    source->samples = first->shape.dim[0];
    if (source->samples == 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s holds no samples: the first axis has length 0", source->path);
    for (uint32_t i = 0; i < source->count; i++) {
        mf_array *a = &source->arrays[i];
        if (a->unusable || a->shape.dim[0] == source->samples)
            continue;
        a->why = MEMFIT_DAMAGED;
        a->unusable = mf_arena_printf(&source->arena, "%s: %s has %lld samples, %s has %lld", source->path, first->name,
                                      (long long)source->samples, a->name, (long long)a->shape.dim[0]);
        if (!a->unusable)
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
        mf_log_write(log, MF_LOG_DETAIL, "%s", a->unusable);
    }
    return MEMFIT_OK;
}

static bool one_hot_like(const mf_array *a)
{
    return a->shape.rank == 2 && a->shape.dim[1] > 2 && strcmp(a->name, "y") == 0 && a->dtype == MF_F32;
}

/* Wasteful types are named once: float64 and one-hot labels. */
static void name_waste(const mf_source *source, const mf_log *log)
{
    for (uint32_t i = 0; i < source->count; i++) {
        const mf_array *a = &source->arrays[i];
        char text[24];
        if (a->unusable || strchr(a->name, '/')) /* what lies in a group is found by a shorter name too */
            continue;
        if (a->dtype == MF_F64)
            mf_log_write(log, MF_LOG_NOTE,
                         "%s: %s is float64; training uses float32, so half of its %s is read for nothing",
                         source->path, a->name,
                         memfit_size_format(a->sample_bytes * (uint64_t)source->samples, text, sizeof text));
        else if (one_hot_like(a) && a->data) {
            bool hot = true;
            for (int64_t s = 0; s < source->samples && s < 64 && hot; s++) {
                const unsigned char *row = a->data + (uint64_t)s * a->sample_bytes; /* files align nothing */
                int ones = 0;
                for (int64_t j = 0; j < a->shape.dim[1]; j++) {
                    float v;
                    memcpy(&v, row + 4 * j, 4);
                    hot = hot && (v == 0 || v == 1);
                    ones += v == 1;
                }
                hot = hot && ones == 1;
            }
            if (hot)
                mf_log_write(log, MF_LOG_NOTE,
                             "%s: %s is one-hot: whole-number labels with a sparse loss take %lld times less",
                             source->path, a->name, (long long)a->shape.dim[1]);
        }
    }
}

bool mf_source_is_table(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcasecmp(path + n - 4, ".csv") == 0;
}

static memfit_status read_by_kind(mf_source *source, int64_t inputs, const mf_log *log, memfit_error *err)
{
    const unsigned char *data = source->mappings[0].data;
    uint64_t bytes = source->mappings[0].bytes;
    if (bytes == 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s is empty", source->path);
    if (bytes >= 6 && memcmp(data, "\x93NUMPY", 6) == 0)
        return mf_source_npy(source, "x", data, bytes, log, err);
    if (mf_zip_sniff(data, bytes))
        return mf_source_npz(source, data, bytes, log, err);
    if (mf_hdf5_sniff(data, bytes))
        return mf_source_h5(source, data, bytes, log, err);
    if (mf_source_is_table(source->path))
        return mf_source_csv(source, data, bytes, inputs, log, err);
    return mf_fail(err, MEMFIT_DAMAGED,
                   "%s is neither .npy, .npz, .h5, .csv nor TFRecord (by its first bytes and its name)\n"
                   "a folder of images by class is data, too",
                   source->path);
}

static memfit_status new_source(const memfit_host *host, const char *path, mf_source **source, memfit_error *err)
{
    mf_source *s = mf_host_zalloc(host, sizeof *s);
    if (!s)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", path);
    s->descriptor = -1;
    mf_arena_init(&s->arena, host);
    s->path = mf_arena_strdup(&s->arena, path);
    if (!s->path) {
        mf_host_free(host, s, sizeof *s);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", path);
    }
    *source = s;
    return MEMFIT_OK;
}

memfit_status mf_source_open(const memfit_host *host, const char *path, const mf_log *log, mf_source **source,
                             memfit_error *err)
{
    return mf_source_open_table(host, path, 0, log, source, err);
}

/* How a source is opened: by what lies there, not by its name. */
typedef enum { OF_FILE, OF_PICTURES, OF_RECORDS, OF_PATTERN, OF_PARTS, OF_STREAM } opening;

static bool is_of_records(const char *path, const unsigned char *first, uint64_t n)
{
    const char *dot = strrchr(path, '.');
    bool named = dot && strncasecmp(dot, ".tfrec", 6) == 0;
    return n && (named || mf_tfrecord_sniff(first, n) || (first[0] == 0x1f && mf_gzip_sniff(first, n)));
}

/* The first file of a pattern tells what all are. */
static memfit_status look_at(void *ctx, const char *path, memfit_error *err)
{
    unsigned char first[64];
    uint64_t n = mf_os_peek(path, first, sizeof first);
    *(bool *)ctx = n && !is_of_records(path, first, n);
    return mf_fail(err, MEMFIT_INTERRUPTED, "one is enough");
}

static opening way_to_open(const char *path)
{
    unsigned char first[64];
    if (strcmp(path, "-") == 0)
        return OF_STREAM;
    if (mf_os_is_folder(path))
        return OF_PICTURES;
    uint64_t n = mf_os_peek(path, first, sizeof first);
    if (n == 0 && strpbrk(path, "*?[{")) {
        bool arrays = false;
        mf_os_glob(path, look_at, &arrays, NULL);
        return arrays ? OF_PARTS : OF_PATTERN;
    }
    return is_of_records(path, first, n) ? OF_RECORDS : OF_FILE;
}

/* A file whose arrays were all unpacked is not read any more: whatever becomes of it is no concern of ours. */
static void let_go(mf_source *source)
{
    mf_mapping *file = &source->mappings[0];
    for (uint32_t i = 0; i < source->count; i++) {
        const unsigned char *data = source->arrays[i].data;
        if (data >= file->data && data <= file->data + file->bytes) {
            source->stored_bytes = file->bytes;
            source->stored_in = source->path;
            return;
        }
    }
    mf_os_unmap_file(file);
    mf_os_unwatch(source->descriptor);
    source->descriptor = -1;
}

static bool has_names(const mf_source *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->arrays[i].names)
            return true;
    return false;
}

/* What had to be unpacked goes to the cache, where it comes from the next time. */
static memfit_status open_file(mf_source *s, const mf_source_wish *wish, const mf_log *log, memfit_error *err)
{
    bool found = false;
    memfit_status status = wish->cache ? mf_cache_open_arrays(s, wish, log, &found, err) : MEMFIT_OK;
    if (status != MEMFIT_OK || found)
        return status;
    status = mf_os_map_watched(s->path, &s->mappings[0], &s->descriptor, err);
    if (status == MEMFIT_OK) {
        s->mapping_count = 1;
        status = read_by_kind(s, wish->inputs, log, err);
    }
    if (status == MEMFIT_OK)
        status = mf_source_settle_names(s, err);
    if (status == MEMFIT_OK && wish->cache && s->spooled_bytes && !has_names(s)) /* which it has no place for */
        status = mf_cache_write_arrays(s, wish, log, err);
    if (status == MEMFIT_OK)
        let_go(s);
    return status;
}

memfit_status mf_source_open_as(const memfit_host *host, const char *path, const mf_source_wish *wish,
                                const mf_log *log, mf_source **source, memfit_error *err)
{
    mf_source *s = NULL;
    const opening way = way_to_open(path);
    memfit_status status = new_source(host, path, &s, err);
    if (status != MEMFIT_OK)
        return status;
    s->classes_given = wish->classes;
    s->features_given = way == OF_FILE ? wish->features : NULL; /* parts see to it themselves, records have their own */
    if (way == OF_PICTURES)
        status = mf_source_pictures(s, wish, log, err);
    else if (way == OF_STREAM)
        status = mf_source_stream(s, wish->unlabelled, log, err);
    else if (way == OF_FILE)
        status = open_file(s, wish, log, err);
    else if (way == OF_PARTS)
        status = mf_source_parts(s, wish, log, err);
    else
        status = mf_source_tfrecord(s, wish, way == OF_PATTERN, log, err);
    if (status == MEMFIT_OK && way == OF_FILE)
        status = mf_lengths_by_splits(s, log, err);
    if (status == MEMFIT_OK)
        status = agree(s, log, err);
    if (status == MEMFIT_OK && wish->cache)
        status = mf_cache_open_file(s, wish->cache, log, err);
    if (status != MEMFIT_OK) {
        mf_source_close(s);
        return status;
    }
    name_waste(s, log);
    *source = s;
    return MEMFIT_OK;
}

memfit_status mf_source_open_table(const memfit_host *host, const char *path, int64_t inputs, const mf_log *log,
                                   mf_source **source, memfit_error *err)
{
    const mf_source_wish wish = {.inputs = inputs};
    return mf_source_open_as(host, path, &wish, log, source, err);
}

void mf_source_close(mf_source *source)
{
    if (!source)
        return;
    for (uint32_t i = 0; i < source->mapping_count; i++)
        mf_os_unmap_file(&source->mappings[i]);
    mf_os_unwatch(source->descriptor);
    mf_cache_close(source);
    if (source->lengths)
        mf_os_spool_unmap((unsigned char *)source->lengths, source->length_bytes);
    if (source->maker && source->maker->close)
        source->maker->close(source);
    const memfit_host *host = source->arena.host;
    mf_host_free(host, source->arrays, source->capacity * sizeof *source->arrays);
    mf_arena_destroy(&source->arena);
    mf_host_free(host, source, sizeof *source);
}

memfit_status mf_source_still_whole(const mf_source *source, memfit_error *err)
{
    uint64_t had = source->mapping_count ? source->mappings[0].bytes : 0;
    uint64_t has = source->descriptor >= 0 ? mf_os_watched_bytes(source->descriptor) : had;
    if (has >= had)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_DAMAGED,
                   "%s became shorter while it was read: %llu bytes, it had %llu\n"
                   "write new data to another name, then rename it: a file in use stays as it is then",
                   source->path, (unsigned long long)has, (unsigned long long)had);
}

memfit_status mf_source_check(const mf_source *source, memfit_error *err)
{
    for (uint32_t i = 0; i < source->count; i++) {
        const mf_array *a = &source->arrays[i];
        if (a->unusable)
            continue;
        if (a->shape.dim[0] != source->samples)
            return mf_fail(err, MEMFIT_INTERNAL, "array %s: samples differ", a->name);
        bool inside = !a->data || a->sample_bytes == 0; /* rows that hold nothing lie nowhere */
        for (uint32_t m = 0; m < source->mapping_count && !inside; m++) {
            const mf_mapping *map = &source->mappings[m]; /* empty: of a file that was let go */
            inside = map->bytes && a->data >= map->data &&
                     a->data + a->sample_bytes * (uint64_t)source->samples <= map->data + map->bytes;
        }
        if (!inside)
            return mf_fail(err, MEMFIT_INTERNAL, "array %s: bytes outside its mapping", a->name);
    }
    return MEMFIT_OK;
}

/* ---- synthetic -------------------------------------------------------------------------------------------- */

memfit_status mf_source_synthetic(const memfit_host *host, int64_t samples, uint64_t seed, mf_source **source,
                                  memfit_error *err)
{
    memfit_status status = new_source(host, "synthetic", source, err);
    if (status == MEMFIT_OK) {
        (*source)->samples = samples;
        (*source)->seed = seed;
    }
    return status;
}

memfit_status mf_source_add_generated(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                                      uint32_t generator, int64_t classes, memfit_error *err)
{
    memfit_status status = mf_source_add(source, name, dtype, shape, NULL, UINT64_MAX, err);
    if (status == MEMFIT_OK) {
        source->arrays[source->count - 1].generator = generator;
        source->arrays[source->count - 1].classes = classes;
    }
    return status;
}

memfit_status mf_source_add_made(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                                 uint32_t column, memfit_error *err)
{
    memfit_status status = mf_source_add(source, name, dtype, shape, NULL, UINT64_MAX, err);
    if (status == MEMFIT_OK && !source->arrays[source->count - 1].unusable) {
        source->arrays[source->count - 1].made = true;
        source->arrays[source->count - 1].column = column;
    }
    return status;
}

void mf_source_one_hot(mf_source *source, int64_t classes)
{
    for (uint32_t i = 0; i < source->count; i++) {
        mf_array *a = &source->arrays[i];
        if ((a->generator != 3 && !a->names) || a->classes || a->unusable)
            continue;
        if (a->data) {
            a->codes = (const int32_t *)(const void *)a->data;
            a->data = NULL;
            a->generator = 3;
        }
        a->classes = classes;
        a->dtype = MF_F32;
        a->shape = (mf_shape){.rank = 2, .dim = {a->shape.dim[0], classes}};
        a->sample_bytes = (uint64_t)classes * sizeof(float);
    }
}

static int64_t class_of(const mf_source *source, int64_t index)
{
    uint32_t low = 0, high = source->class_count;
    index = source->mixed ? source->mixed[index] : index;
    while (high - low > 1) { /* the last class that begins at or before it: empty ones begin where the next does */
        uint32_t middle = (low + high) / 2;
        if (source->class_first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void put(mf_dtype dtype, void *out, uint64_t i, double v)
{
    switch (dtype) {
    case MF_F32:
        ((float *)out)[i] = (float)v;
        break;
    case MF_F64:
        ((double *)out)[i] = v;
        break;
    case MF_U8:
    case MF_BOOL:
        ((uint8_t *)out)[i] = (uint8_t)v;
        break;
    case MF_I32:
    case MF_U32:
        ((int32_t *)out)[i] = (int32_t)v;
        break;
    case MF_I64:
    case MF_U64:
        ((int64_t *)out)[i] = (int64_t)v;
        break;
    default:
        memset((char *)out + i * mf_dtype_bytes(dtype), 0, mf_dtype_bytes(dtype));
        break;
    }
}

static uint32_t key_of(const mf_source *source, const mf_array *a)
{
    return (uint32_t)(a - source->arrays) + 0x5eed;
}

void mf_source_read_part(const mf_source *source, const mf_array *a, int64_t index, uint64_t first, uint64_t count,
                         void *out)
{
    double top = a->dtype == MF_U8 ? 256 : a->classes > 0 ? (double)a->classes : 1;
    uint32_t r[4] = {0};
    for (uint64_t i = 0; i < count; i++) {
        if (i % 4 == 0)
            mf_philox(source->seed, key_of(source, a), 0, (uint64_t)index, (first + i) / 4, r);
        double u = (double)(r[i % 4] >> 8) * 0x1p-24;
        put(a->dtype, out, i, a->generator == 1 || a->dtype == MF_U8 ? (double)(int64_t)(u * top) : u);
    }
}

static void generate(const mf_source *source, const mf_array *a, int64_t index, void *out)
{
    uint64_t n = a->sample_bytes / mf_dtype_bytes(a->dtype);
    uint32_t r[4];
    if (a->generator == 3) {
        int64_t label = a->codes ? a->codes[index] : class_of(source, index);
        for (uint64_t i = 0; i < n; i++)
            put(a->dtype, out, i, a->classes ? (double)((int64_t)i == label) : (double)label);
        return;
    }
    if (a->generator == 2) {
        mf_philox(source->seed, key_of(source, a), 0, (uint64_t)index, 0, r);
        for (uint64_t i = 0; i < n; i++) /* one-hot along the last axis */
            put(a->dtype, out, i, (int64_t)(i % (uint64_t)a->classes) == (int64_t)(r[0] % (uint32_t)a->classes));
        return;
    }
    mf_source_read_part(source, a, index, 0, n, out);
}

void mf_source_read(const mf_source *source, const mf_array *array, int64_t index, void *out)
{
    if (array->data)
        memcpy(out, array->data + (uint64_t)index * array->sample_bytes, array->sample_bytes);
    else if (array->ragged)
        mf_lengths_read(array, index, out, array->sample_bytes);
    else
        generate(source, array, index, out);
}
