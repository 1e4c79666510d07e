/*
 * data_tfrecord.c: TFRecord files as a source, one or many (a pattern, in the order of their names): every feature of the
 * records' tf.train.Example is an array.
 *
 *   shards: mapped (packed ones unpacked once into a temporary file)      index: where each record begins, 8 bytes a record
 *           in an unlinked temporary file, so none of it is the process's own memory
 *
 * Opening reads the headers of all records, and the first record whole: which features there are, their types and lengths.
 * A picture becomes an image of the model's size, another text its bytes, numbers are what they are. Whatever a record has
 * otherwise is told when it is used, with file, record and byte. Records are verified by their check sums then.
 *
 * The file is long because opening, measuring and making share the table of columns.
 */
#include "data/labels.h"
#include "data/lengths.h"
#include "data/resize.h"
#include "data/sample_cache.h"
#include "data/source.h"
#include "data/worker.h"

#include "base/error.h"
#include "file/gzip.h"
#include "file/tfrecord.h"

#include <string.h>

enum { MOST_WATCHED = 256, MOST_FEATURES = 256, MOST_LOOKED = 256, LEAST_ROOM_BYTES = 512 << 10, KERAS_SIDE = 256 };

typedef struct shard {
    const char *path;
    mf_mapping file;
    uint64_t bytes; /* of records in it: a packed file may hold none */
    int descriptor;
    int64_t first; /* record of the source */
} shard;

typedef struct column {
    const char *feature;
    mf_feature_kind kind;
    bool picture, ragged;
    uint64_t count; /* of numbers, or bytes; ragged: the most */
    uint64_t least;
    uint64_t each; /* numbers of a step, where that is a sequence: 1, but for mf_tfrecord_use */
    bool used;     /* by the model, as mf_tfrecord_use says */
} column;

typedef struct records {
    mf_source *source;
    shard *shards;
    size_t shard_count, shard_room;
    int64_t count;
    uint64_t *places; /* of all records in their shards; in a temporary file */
    uint64_t place_bytes;
    column columns[MOST_FEATURES];
    uint32_t column_count;
    uint32_t height, width, channels;
    bool bytes, scaled, lengths;
    bool any_used;
    const char *wanted; /* --features */
} records;

static memfit_status no_memory(const mf_source *source, memfit_error *err)
{
    return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to open %s", source->path);
}

/* ---- records ---------------------------------------------------------------------------------------------- */

static const shard *shard_of(const records *r, int64_t index)
{
    size_t low = 0, high = r->shard_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (r->shards[middle].first <= index)
            low = middle;
        else
            high = middle;
    }
    return &r->shards[low];
}

static void name_of(const mf_source *source, int64_t index, char *text, size_t room)
{
    const records *r = source->made_of;
    const shard *s = shard_of(r, index);
    snprintf(text, room, "%s: record %lld (byte %llu)", s->path, (long long)(index - s->first),
             (unsigned long long)r->places[index]);
}

static memfit_status record_at(const records *r, int64_t index, mf_tfrecord *record, memfit_error *err)
{
    const shard *s = shard_of(r, index);
    if (s->descriptor >= 0 && mf_os_watched_bytes(s->descriptor) < s->file.bytes)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s became shorter while it was read\n"
                       "write new data to another name, then rename it: a file in use stays as it is then",
                       s->path);
    return mf_tfrecord_at(s->file.data, s->file.bytes, r->places[index], true, s->path, record, err);
}

/* ---- lengths ---------------------------------------------------------------------------------------------- */

typedef struct measuring {
    records *r;
    uint32_t *length; /* of this record: the most that any list of numbers has which differs; NULL: not wanted yet */
} measuring;

static bool measure_feature(void *ctx, const mf_feature *f)
{
    const measuring *m = ctx;
    const int64_t n = mf_feature_count(f);
    for (uint32_t i = 0; i < m->r->column_count && n >= 0; i++) {
        column *c = &m->r->columns[i];
        if (strlen(c->feature) != f->name_bytes || memcmp(c->feature, f->name, f->name_bytes) != 0 ||
            c->kind != f->kind || f->kind == MF_FEATURE_BYTES)
            continue;
        if (!m->length) {
            c->count = (uint64_t)n > c->count ? (uint64_t)n : c->count;
            c->least = (uint64_t)n < c->least ? (uint64_t)n : c->least;
        }
        const uint64_t steps = ((uint64_t)n + c->each - 1) / c->each;
        if (m->length && c->ragged && (c->used || !m->r->any_used) && steps > *m->length)
            *m->length = steps < INT32_MAX ? (uint32_t)steps : INT32_MAX;
    }
    return true;
}

/* Lists of numbers whose lengths differ among these records, `step` apart, are ragged. What is wrong with a record is told
 * when it is used. */
static bool find_ragged(records *r, int64_t step)
{
    bool any = false;
    measuring m = {r, NULL};
    for (int64_t i = 0; i < r->count; i += step) {
        mf_tfrecord record;
        memfit_error ignored;
        if (record_at(r, i, &record, &ignored) == MEMFIT_OK)
            mf_example_walk(record.data, record.bytes, measure_feature, &m);
    }
    for (uint32_t i = 0; i < r->column_count; i++)
        any |= r->columns[i].ragged = r->columns[i].least != r->columns[i].count;
    return any;
}

static void note_lengths(records *r)
{
    for (int64_t i = 0; i < r->count; i++) {
        mf_tfrecord record;
        memfit_error ignored;
        measuring m = {r, &r->source->lengths[i]};
        r->source->lengths[i] = 0;
        if (record_at(r, i, &record, &ignored) == MEMFIT_OK)
            mf_example_walk(record.data, record.bytes, measure_feature, &m);
    }
}

/* All records are looked at only where some of them differ, or where somebody wants to know. */
static memfit_status measure_records(records *r, bool wanted, memfit_error *err)
{
    const int64_t step = r->count > MOST_LOOKED ? r->count / MOST_LOOKED : 1;
    for (uint32_t i = 0; i < r->column_count; i++)
        r->columns[i].least = r->columns[i].count;
    if (!find_ragged(r, wanted ? 1 : step))
        return MEMFIT_OK;
    if (step > 1 && !wanted)
        find_ragged(r, 1);
    memfit_status status = mf_lengths_make(r->source, r->count, err);
    if (status == MEMFIT_OK)
        note_lengths(r);
    return status;
}

/* ---- making ----------------------------------------------------------------------------------------------- */

static memfit_status differs(const mf_source *source, int64_t index, const column *c, const char *how,
                             memfit_error *err)
{
    char name[512];
    name_of(source, index, name, sizeof name);
    return mf_fail(err, MEMFIT_DAMAGED, "%s: feature %s %s", name, c->feature, how);
}

static memfit_status make_picture(const mf_source *source, int64_t index, mf_dtype dtype, const unsigned char *data,
                                  uint64_t bytes, mf_worker *w, void *out, memfit_error *err)
{
    const records *r = source->made_of;
    char name[512];
    name_of(source, index, name, sizeof name);
    mf_picture_input in = {.name = name, .descriptor = -1, .data = data, .bytes = bytes};
    mf_resize resize = {.height = r->height, .width = r->width, .channels = r->channels, .dtype = dtype, .out = out};
    const mf_picture_sink sink = mf_resize_sink(&resize);
    const mf_picture_size least = {r->scaled ? r->width : 0, r->height};
    w->room.used = 0;
    memfit_status status = mf_picture_decode(w->decoder, &in, r->channels, least, &w->room, &sink, err);
    if (status == MEMFIT_OK && !mf_resize_is_whole(&resize))
        status = mf_fail(err, MEMFIT_DAMAGED, "%s ends before its last row", name);
    return status;
}

/* What it has, then zeros. */
static memfit_status make_ragged(const mf_source *source, int64_t index, const column *c, const mf_feature *f,
                                 void *out, memfit_error *err)
{
    const uint64_t each = c->kind == MF_FEATURE_FLOAT ? sizeof(float) : sizeof(int64_t);
    const int64_t n = mf_feature_count(f);
    if (n > 0 && (uint64_t)n % c->each) {
        char how[96];
        snprintf(how, sizeof how, "has %lld numbers, but a step of the model's input has %llu", (long long)n,
                 (unsigned long long)c->each);
        return differs(source, index, c, how, err);
    }
    if (n < 0 || (uint64_t)n > c->count ||
        !(c->kind == MF_FEATURE_FLOAT ? mf_feature_floats(f, out, (uint64_t)n) : mf_feature_ints(f, out, (uint64_t)n)))
        return differs(source, index, c, "cannot be read, or is longer than when the file was opened", err);
    memset((unsigned char *)out + (uint64_t)n * each, 0, (c->count - (uint64_t)n) * each);
    return MEMFIT_OK;
}

static memfit_status make(const mf_source *source, const mf_array *array, int64_t index, mf_worker *w, void *out,
                          memfit_error *err)
{
    const records *r = source->made_of;
    const column *c = &r->columns[array->column];
    mf_tfrecord record;
    mf_feature f;
    bool damaged;
    memfit_status status = record_at(r, index, &record, err);
    if (status != MEMFIT_OK)
        return status;
    if (!mf_example_find(record.data, record.bytes, c->feature, &f, &damaged))
        return differs(source, index, c,
                       damaged ? "cannot be read: the record is not a tf.train.Example" : "is missing", err);
    if (f.kind != c->kind)
        return differs(source, index, c, "has another type than in the first record", err);
    const unsigned char *data = NULL;
    uint64_t bytes = 0;
    if (c->ragged)
        return make_ragged(source, index, c, &f, out, err);
    static const char another_length[] = "has another length than in the first record";
    switch (c->kind) {
    case MF_FEATURE_FLOAT:
        return mf_feature_floats(&f, out, c->count) ? MEMFIT_OK : differs(source, index, c, another_length, err);
    case MF_FEATURE_INT:
        return mf_feature_ints(&f, out, c->count) ? MEMFIT_OK : differs(source, index, c, another_length, err);
    default:
        if (!mf_feature_bytes(&f, &data, &bytes))
            return differs(source, index, c, "is not exactly one text", err);
        if (c->picture)
            return make_picture(source, index, array->dtype, data, bytes, w, out, err);
        if (bytes != c->count)
            return differs(source, index, c, another_length, err);
        memcpy(out, data, bytes);
        return MEMFIT_OK;
    }
}

static void close_records(mf_source *source)
{
    records *r = source->made_of;
    for (size_t i = 0; i < r->shard_count; i++) {
        mf_os_unmap_file(&r->shards[i].file);
        mf_os_unwatch(r->shards[i].descriptor);
    }
    if (r->places)
        mf_os_spool_unmap((unsigned char *)r->places, r->place_bytes);
    mf_host_free(source->arena.host, r->shards, r->shard_room * sizeof *r->shards);
}

static void stamp(const mf_source *source, mf_stamp *to)
{
    const records *r = source->made_of;
    mf_stamp_number(to, r->height);
    mf_stamp_number(to, r->width);
    mf_stamp_number(to, r->channels);
    mf_stamp_number(to, r->scaled);
    for (uint32_t i = 0; i < source->count; i++)
        if (source->arrays[i].made) {
            const column *c = &r->columns[source->arrays[i].column];
            mf_stamp_add(to, c->feature, strlen(c->feature));
            mf_stamp_number(to, c->picture);
        }
    for (size_t i = 0; i < r->shard_count; i++) {
        const char *path = r->shards[i].path, *slash = strrchr(path, '/');
        mf_stamp_file(to, -1, path, slash ? slash + 1 : path);
    }
}

static const mf_maker maker = {make, name_of, close_records, stamp};

/* ---- opening: files --------------------------------------------------------------------------------------- */

/* A packed file is unpacked twice: to know its size, and into a file of that size. */
static memfit_status unpack(const records *r, shard *s, memfit_error *err)
{
    const memfit_host *host = r->source->arena.host;
    uint64_t bytes = 0, again = 0;
    unsigned char *out;
    memfit_status status = mf_gzip_unpack(host, s->file.data, s->file.bytes, s->path, NULL, 0, &bytes, err);
    if (status == MEMFIT_OK)
        status = mf_os_spool_map(bytes ? bytes : 1, &out, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_gzip_unpack(host, s->file.data, s->file.bytes, s->path, out, bytes, &again, err);
    mf_os_unmap_file(&s->file);
    mf_os_unwatch(s->descriptor);
    s->descriptor = -1;
    s->file = (mf_mapping){out, bytes ? bytes : 1};
    s->bytes = bytes;
    return status;
}

static memfit_status add_shard(void *ctx, const char *path, memfit_error *err)
{
    records *r = ctx;
    mf_source *source = r->source;
    if (!mf_grow(source->arena.host, &r->shards, &r->shard_room, r->shard_count, sizeof *r->shards))
        return no_memory(source, err);
    shard *s = &r->shards[r->shard_count];
    *s = (shard){.path = mf_arena_strdup(&source->arena, path), .descriptor = -1};
    if (!s->path)
        return no_memory(source, err);
    memfit_status status = mf_os_map_watched(path, &s->file, &s->descriptor, err);
    if (status != MEMFIT_OK)
        return status;
    r->shard_count++;
    s->bytes = s->file.bytes;
    source->stored_bytes += s->file.bytes;
    source->stored_in = s->path;
    if (mf_gzip_sniff(s->file.data, s->file.bytes) && !mf_tfrecord_sniff(s->file.data, s->file.bytes))
        status = unpack(r, s, err);
    if (r->shard_count > MOST_WATCHED) { /* descriptors are few */
        mf_os_unwatch(s->descriptor);
        s->descriptor = -1;
    }
    return status;
}

/* One pass over the headers: counts them, or with `places` writes down where they begin. */
static memfit_status walk_records(records *r, uint64_t *places, memfit_error *err)
{
    int64_t n = 0;
    for (size_t i = 0; i < r->shard_count; i++) {
        shard *s = &r->shards[i];
        s->first = n;
        for (uint64_t at = 0; at < s->bytes;) {
            mf_tfrecord record;
            memfit_status status = mf_tfrecord_at(s->file.data, s->file.bytes, at, false, s->path, &record, err);
            if (status != MEMFIT_OK)
                return status;
            if (places)
                places[n] = at;
            n++;
            at = record.next;
        }
    }
    r->count = n;
    return MEMFIT_OK;
}

static memfit_status index_records(records *r, memfit_error *err)
{
    memfit_status status = walk_records(r, NULL, err);
    if (status != MEMFIT_OK)
        return status;
    if (r->count == 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s holds no records", r->source->path);
    unsigned char *places;
    r->place_bytes = (uint64_t)r->count * sizeof *r->places;
    status = mf_os_spool_map(r->place_bytes, &places, err);
    if (status != MEMFIT_OK)
        return status;
    r->places = (uint64_t *)(void *)places;
    return walk_records(r, r->places, err);
}

/* ---- opening: features ------------------------------------------------------------------------------------- */

/* Texts as labels: every record is looked at once, for the names and the number of each. */
static memfit_status add_labels(records *r, const char *name, const column *c, memfit_error *err)
{
    mf_source *source = r->source;
    const uint64_t bytes = (uint64_t)r->count * sizeof(int32_t);
    unsigned char *data;
    mf_labels labels;
    if (source->mapping_count == MF_SOURCE_MOST_MAPPINGS)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: too many features of texts", source->path);
    memfit_status status = mf_os_spool_map(bytes, &data, err);
    if (status != MEMFIT_OK)
        return status;
    source->mappings[source->mapping_count++] = (mf_mapping){data, bytes};
    int32_t *codes = (int32_t *)(void *)data;
    mf_labels_begin(&labels, source);
    for (int64_t i = 0; i < r->count && status == MEMFIT_OK; i++) {
        const shard *s = shard_of(r, i);
        mf_tfrecord record;
        mf_feature f;
        bool damaged;
        const unsigned char *text = NULL;
        uint64_t n = 0;
        status = mf_tfrecord_at(s->file.data, s->file.bytes, r->places[i], false, s->path, &record, err);
        if (status == MEMFIT_OK && (!mf_example_find(record.data, record.bytes, c->feature, &f, &damaged) ||
                                    f.kind != MF_FEATURE_BYTES || !mf_feature_bytes(&f, &text, &n)))
            status = differs(source, i, c, "is not exactly one text", err);
        if (status == MEMFIT_OK)
            status = mf_labels_number(&labels, (const char *)text, n, &codes[i], err);
    }
    if (status != MEMFIT_OK) {
        mf_labels_drop(&labels);
        return status;
    }
    return mf_labels_end(&labels, name, codes, r->count, source->classes_given, err);
}

static memfit_status add_array(records *r, const char *name, uint32_t number, memfit_error *err)
{
    const column *c = &r->columns[number];
    const int64_t n = r->count;
    if (c->kind == MF_FEATURE_BYTES && !c->picture && strcmp(name, "y") == 0)
        return add_labels(r, name, c, err);
    mf_shape shape = {.rank = c->count == 1 && !c->ragged ? 1 : 2, .dim = {n, (int64_t)c->count}};
    if (c->picture)
        shape = (mf_shape){.rank = 4, .dim = {n, r->height, r->width, r->channels}};
    mf_dtype dtype = c->picture                    ? (r->bytes ? MF_U8 : MF_F32)
                     : c->kind == MF_FEATURE_FLOAT ? MF_F32
                     : c->kind == MF_FEATURE_INT   ? MF_I64
                                                   : MF_U8;
    memfit_status status = mf_source_add_made(r->source, name, dtype, &shape, number, err);
    if (status == MEMFIT_OK) {
        r->source->arrays[r->source->count - 1].picture = c->picture;
        r->source->arrays[r->source->count - 1].ragged = c->ragged;
    }
    return status;
}

typedef struct reading {
    records *r;
    memfit_status status;
    memfit_error *err;
} reading;

static bool add_column(void *ctx, const mf_feature *f)
{
    reading *in = ctx;
    records *r = in->r;
    const unsigned char *text = NULL;
    uint64_t bytes = 0;
    int64_t count = mf_feature_count(f);
    column c = {.kind = f->kind, .count = count > 0 ? (uint64_t)count : 0, .each = 1};
    if (r->column_count == MOST_FEATURES || count < 1)
        return true; /* none of a variable length can be used anyway */
    if (f->kind == MF_FEATURE_BYTES) {
        if (!mf_feature_bytes(f, &text, &bytes) || !bytes)
            return true;
        c.picture = mf_picture_sniff(text, bytes) != MF_PICTURE_UNKNOWN;
        c.count = bytes;
    }
    c.feature = mf_arena_strndup(&r->source->arena, f->name, f->name_bytes);
    if (!c.feature) {
        in->status = no_memory(r->source, in->err);
        return false;
    }
    for (uint32_t i = 0; i < r->column_count; i++)
        if (strcmp(r->columns[i].feature, c.feature) == 0)
            return true;
    r->columns[r->column_count++] = c;
    return true;
}

static uint32_t find_column(const records *r, const char *name, size_t bytes)
{
    for (uint32_t i = 0; i < r->column_count; i++)
        if (strlen(r->columns[i].feature) == bytes && memcmp(r->columns[i].feature, name, bytes) == 0)
            return i;
    return r->column_count;
}

static void list_features(const records *r, char *text, size_t room)
{
    size_t n = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < r->column_count && n + 80 < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%.60s", i ? ", " : "", r->columns[i].feature);
}

/* "x=image/encoded,y=label": array and feature; a name alone is both. */
static memfit_status add_wanted(records *r, memfit_error *err)
{
    char name[256], text[400];
    for (const char *p = r->wanted; *p;) {
        size_t n = strcspn(p, ","), equals = strcspn(p, "=,");
        const char *feature = equals < n ? p + equals + 1 : p;
        size_t feature_bytes = equals < n ? n - equals - 1 : n;
        snprintf(name, sizeof name, "%.*s", (int)(equals < n ? equals : n), p);
        uint32_t c = find_column(r, feature, feature_bytes);
        list_features(r, text, sizeof text);
        if (c == r->column_count)
            return mf_fail(err, MEMFIT_INVALID, "--features: the first record of %s has no feature %.*s\nit has %s",
                           r->source->path, (int)feature_bytes, feature, text);
        memfit_status status = add_array(r, name, c, err);
        if (status != MEMFIT_OK)
            return status;
        p += n + (p[n] == ',');
    }
    return MEMFIT_OK;
}

/* Which feature is the input: one of a usual name, or the only picture; the target: a usual name, or the only whole number. */
static uint32_t guess(const records *r, bool target)
{
    static const char *const inputs[] = {"x", "image/encoded", "image", "image_raw", "images", "features", "data"};
    static const char *const targets[] = {"y", "image/class/label", "label", "labels", "class", "target"};
    const char *const *names = target ? targets : inputs;
    size_t count = target ? sizeof targets / sizeof *targets : sizeof inputs / sizeof *inputs;
    for (size_t i = 0; i < count; i++) {
        uint32_t c = find_column(r, names[i], strlen(names[i]));
        if (c < r->column_count)
            return c;
    }
    uint32_t found = r->column_count, matches = 0;
    for (uint32_t i = 0; i < r->column_count; i++) {
        const column *c = &r->columns[i];
        if (target ? c->kind == MF_FEATURE_INT && c->count == 1 : c->picture) {
            found = i;
            matches++;
        }
    }
    return matches == 1 ? found : r->column_count;
}

static memfit_status add_all(records *r, const mf_log *log, memfit_error *err)
{
    memfit_status status = MEMFIT_OK;
    uint32_t x = guess(r, false), y = guess(r, true);
    if (x < r->column_count)
        status = add_array(r, "x", x, err);
    if (status == MEMFIT_OK && y < r->column_count && y != x)
        status = add_array(r, "y", y, err);
    if (x < r->column_count && y < r->column_count)
        mf_log_write(log, MF_LOG_DETAIL, "%s: x is %s, y is %s", r->source->path, r->columns[x].feature,
                     r->columns[y].feature);
    for (uint32_t i = 0; status == MEMFIT_OK && i < r->column_count; i++)
        if (!mf_source_find(r->source, r->columns[i].feature))
            status = add_array(r, r->columns[i].feature, i, err);
    return status;
}

static void look_at_pictures(records *r)
{
    uint64_t most = LEAST_ROOM_BYTES;
    const int64_t looked = r->count < MOST_LOOKED ? r->count : MOST_LOOKED;
    bool any = false;
    for (uint32_t i = 0; i < r->column_count; i++)
        any |= r->columns[i].picture;
    for (int64_t i = 0; any && i < looked; i++) {
        mf_tfrecord record;
        memfit_error ignored;
        if (record_at(r, i * r->count / looked, &record, &ignored) != MEMFIT_OK)
            continue;
        for (uint32_t c = 0; c < r->column_count; c++) {
            mf_feature f;
            mf_picture_head head;
            mf_picture_input in = {.name = "", .descriptor = -1};
            bool damaged;
            if (r->columns[c].picture &&
                mf_example_find(record.data, record.bytes, r->columns[c].feature, &f, &damaged) &&
                mf_feature_bytes(&f, &in.data, &in.bytes) && mf_picture_look(&in, &head, &ignored) == MEMFIT_OK &&
                head.room_bytes > most)
                most = head.room_bytes;
        }
    }
    most += looked < r->count ? most / 2 : 0;
    r->source->room_bytes = any ? most + mf_resize_room_bytes(r->width, r->channels) : 64;
}

static memfit_status read_features(records *r, const mf_log *log, memfit_error *err)
{
    mf_tfrecord first;
    memfit_status status = record_at(r, 0, &first, err);
    reading in = {r, MEMFIT_OK, err};
    if (status != MEMFIT_OK)
        return status;
    if (mf_example_is_sequence(first.data, first.bytes))
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s: the records are of tf.train.SequenceExample\n"
                       "write each sample as a tf.train.Example: a sequence is a list of all its numbers, as "
                       "tf.io.FixedLenSequenceFeature reads it",
                       r->shards[0].path);
    if (!mf_example_walk(first.data, first.bytes, add_column, &in) || (in.status == MEMFIT_OK && !r->column_count))
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: the first record is not a tf.train.Example with features\n"
                       "records of another kind are not read: write each sample as an Example",
                       r->shards[0].path);
    if (in.status != MEMFIT_OK)
        return in.status;
    look_at_pictures(r);
    status = measure_records(r, r->lengths, err);
    if (status != MEMFIT_OK)
        return status;
    return r->wanted ? add_wanted(r, err) : add_all(r, log, err);
}

void mf_tfrecord_use(mf_source *source, const mf_array *array, const mf_shape *step)
{
    const uint64_t each = mf_shape_count(step);
    if (source->maker != &maker || !array->made || array->picture)
        return;
    records *r = source->made_of;
    column *c = &r->columns[array->column];
    c->used = r->any_used = true;
    if (!step->rank || array->shape.rank != 2 || c->kind == MF_FEATURE_BYTES || step->rank + 2 > MF_MOST_DIMS ||
        each < 1 || each > c->count || (!c->ragged && c->count % each))
        return;                        /* what does not fit is told where shapes are compared */
    c->count = c->count / each * each; /* a list that is longer has no whole steps, which is told when it is used */
    c->each = each;
    for (mf_array *a = source->arrays; a < source->arrays + source->count; a++) { /* it may have two names */
        if (!a->made || &r->columns[a->column] != c)
            continue;
        a->shape.rank = step->rank + 2;
        a->shape.dim[1] = (int64_t)(c->count / each);
        memcpy(a->shape.dim + 2, step->dim, step->rank * sizeof *step->dim);
        a->sample_bytes = c->count * mf_dtype_bytes(a->dtype);
    }
}

void mf_tfrecord_settle_lengths(mf_source *source)
{
    if (source->maker != &maker || !source->lengths)
        return;
    records *r = source->made_of;
    bool others = false, any = false;
    for (uint32_t i = 0; i < r->column_count; i++) {
        const column *c = &r->columns[i];
        others |= c->ragged && (c->each > 1 || (r->any_used && !c->used));
        any |= c->ragged && (c->used || !r->any_used);
    }
    if (others && any)
        note_lengths(r);
    if (any)
        return;
    mf_os_spool_unmap((unsigned char *)source->lengths, source->length_bytes); /* nobody's */
    source->lengths = NULL;
    source->length_bytes = 0;
}

memfit_status mf_source_tfrecord(mf_source *source, const mf_source_wish *wish, bool pattern, const mf_log *log,
                                 memfit_error *err)
{
    records *r = MF_NEW(&source->arena, records);
    if (!r)
        return no_memory(source, err);
    *r = (records){.source = source,
                   .height = (uint32_t)(wish->height ? wish->height : KERAS_SIDE),
                   .width = (uint32_t)(wish->width ? wish->width : KERAS_SIDE),
                   .channels = (uint32_t)(wish->channels ? wish->channels : 3),
                   .bytes = wish->bytes,
                   .scaled = wish->scaled,
                   .lengths = wish->lengths,
                   .wanted = wish->features};
    source->made_of = r;
    source->maker = &maker;
    source->flat = true;
    memfit_status status = pattern ? mf_os_glob(source->path, add_shard, r, err) : add_shard(r, source->path, err);
    if (status == MEMFIT_OK)
        status = index_records(r, err);
    if (status == MEMFIT_OK)
        status = read_features(r, log, err);
    if (status == MEMFIT_OK && wish->decode_bytes)
        source->room_bytes = wish->decode_bytes;
    return status;
}
