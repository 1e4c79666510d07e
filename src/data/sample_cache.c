/* sample_cache.c: see sample_cache.h. */
#include "data/sample_cache.h"
#include "base/bytes.h"

#include "base/error.h"
#include "base/guard.h"
#include "file/tfrecord.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

enum { ALIGNED = 64 };

typedef enum { EMPTY, FILLING, FULL } state;

struct mf_cache {
    int descriptor; /* -1: no file */
    int64_t samples;
    _Atomic int64_t found, kept, refused;
    /* in memory */
    unsigned char *memory, *states; /* states: of (sample, array) */
    uint64_t memory_bytes, sample_bytes;
    int64_t memory_samples;
    uint32_t arrays;
};

typedef struct record {
    uint64_t number; /* index + 1 */
    uint32_t crc, array;
} record;

/* ---- stamps ----------------------------------------------------------------------------------------------- */

/* A multiply and a rotation for each 8 bytes: accidents are to be told apart, not attacks. */
void mf_stamp_number(mf_stamp *stamp, uint64_t number)
{
    uint64_t v = (stamp->value ^ number) * 0x9e3779b97f4a7c15u;
    stamp->value = (v << 29 | v >> 35) * 0xbf58476d1ce4e5b9u + 1;
}

void mf_stamp_add(mf_stamp *stamp, const void *data, uint64_t bytes)
{
    const unsigned char *p = data;
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, p + i, bytes - i < 8 ? bytes - i : 8);
        mf_stamp_number(stamp, word);
    }
    mf_stamp_number(stamp, bytes);
}

void mf_stamp_file(mf_stamp *stamp, int folder, const char *path, const char *name)
{
    uint64_t bytes = 0, changed = 0;
    mf_stamp_number(stamp, mf_os_stamp_in(folder, path, &bytes, &changed));
    mf_stamp_number(stamp, bytes);
    mf_stamp_number(stamp, changed);
    mf_stamp_add(stamp, name, strlen(name));
}

/* ---- making ----------------------------------------------------------------------------------------------- */

static mf_cache *cache_of(mf_source *source)
{
    if (source->cache)
        return source->cache;
    mf_cache *c = source->cache = mf_host_zalloc(source->arena.host, sizeof *c);
    if (c) {
        c->descriptor = -1;
        c->samples = source->samples;
    }
    return c;
}

static uint64_t record_bytes(const mf_array *a)
{
    return (sizeof(record) + a->sample_bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

void mf_cache_fill_head(mf_cache_head *head, uint32_t kind, uint64_t stamp, uint64_t samples, uint64_t whole_bytes,
                        uint64_t list_crc)
{
    *head = (mf_cache_head){.version = MF_CACHE_VERSION,
                            .kind = kind,
                            .stamp = stamp,
                            .samples = samples,
                            .whole_bytes = whole_bytes,
                            .list_crc = list_crc};
    memcpy(head->magic, MF_CACHE_MAGIC, sizeof head->magic);
    head->crc = mf_crc32c((const unsigned char *)head, offsetof(mf_cache_head, crc));
}

memfit_status mf_cache_may_replace(const char *path, memfit_error *err)
{
    mf_os_place place;
    if (!mf_os_find_place(path, &place))
        return mf_fail(err, MEMFIT_NOT_FOUND, "the cache %s cannot be made: its folder is not there", path);
    bool fine = place.type == MF_PLACE_NONE ||
                (place.type == MF_PLACE_FILE && (place.bytes == 0 || mf_guard_is_kind(path, MF_FILE_CACHE)));
    return fine ? MEMFIT_OK
                : mf_fail(err, MEMFIT_INVALID,
                          "%s is not a cache of memfit: it is left as it is\nname another file for --cache", path);
}

/* Where each array's records are, and the stamp of all that they follow from. */
static uint64_t lay_out(mf_source *source, mf_stamp *stamp)
{
    uint64_t at = MF_CACHE_HEAD_BYTES;
    for (uint32_t i = 0; i < source->count; i++) {
        mf_array *a = &source->arrays[i];
        if (!a->made)
            continue;
        a->cached_at = at;
        at += record_bytes(a) * (uint64_t)source->samples;
        mf_stamp_add(stamp, a->name, strlen(a->name));
        mf_stamp_number(stamp, a->dtype);
        mf_stamp_number(stamp, a->sample_bytes);
        mf_stamp_number(stamp, (uint64_t)source->samples);
    }
    mf_stamp_add(stamp, memfit_version(), strlen(memfit_version()));
    source->maker->stamp(source, stamp);
    return at;
}

static bool has_made(const mf_source *source)
{
    for (uint32_t i = 0; i < source->count; i++)
        if (source->arrays[i].made)
            return true;
    return false;
}

static memfit_status begin_file(const char *path, const mf_cache_head *head, memfit_error *err)
{
    mf_rawfile file;
    memfit_status status = mf_os_raw_open(&file, path, err);
    if (status != MEMFIT_OK)
        return status;
    status = mf_os_raw_write(&file, head, sizeof *head, err);
    if (status == MEMFIT_OK)
        return mf_os_raw_commit(&file, err);
    mf_os_raw_abandon(&file);
    return status;
}

memfit_status mf_cache_open_file(mf_source *source, const char *path, const mf_log *log, memfit_error *err)
{
    if (!has_made(source) || !source->maker->stamp)
        return MEMFIT_OK;
    memfit_status status = mf_cache_may_replace(path, err);
    if (status != MEMFIT_OK)
        return status;
    mf_cache *c = cache_of(source);
    if (!c)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the cache of samples");
    mf_stamp stamp = {0};
    mf_cache_head head, there;
    uint64_t whole = lay_out(source, &stamp);
    mf_cache_fill_head(&head, MF_CACHE_OF_SAMPLES, stamp.value, (uint64_t)source->samples, whole, 0);
    uint64_t n = mf_os_peek(path, &there, sizeof there);
    bool same = n == sizeof there && memcmp(&there, &head, sizeof head) == 0;
    if (!same)
        status = begin_file(path, &head, err);
    if (status == MEMFIT_OK && (c->descriptor = mf_os_open_update(path)) < 0)
        status = mf_fail(err, MEMFIT_IO, "the cache %s cannot be opened: %s", path, strerror(errno));
    if (status != MEMFIT_OK)
        return status;
    char text[24];
    if (same)
        mf_log_write(log, MF_LOG_NOTE, "samples made before are taken from %s", path);
    else
        mf_log_write(log, MF_LOG_NOTE, "%s: %s, up to %s", path,
                     n ? "made of other data or in another way; made anew" : "keeps samples once they are made",
                     memfit_size_format(whole, text, sizeof text));
    return MEMFIT_OK;
}

/* ---- in memory -------------------------------------------------------------------------------------------- */

void mf_cache_mark(mf_source *source, const mf_array *array)
{
    mf_array *a = &source->arrays[array - source->arrays];
    mf_cache *c = a->made && !a->kept_as ? cache_of(source) : NULL;
    if (!c)
        return;
    a->kept_as = ++c->arrays;
    a->kept_at = c->sample_bytes;
    c->sample_bytes += (a->sample_bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

memfit_status mf_cache_take_memory(mf_source *source, uint64_t most_bytes, memfit_error *err)
{
    mf_cache *c = source->cache;
    if (!c || !c->arrays || c->memory)
        return MEMFIT_OK;
    uint64_t each = c->sample_bytes + c->arrays, page = mf_os_page_bytes();
    most_bytes -= most_bytes < 2 * page ? most_bytes : 2 * page;
    uint64_t count = most_bytes / each;
    if (count > (uint64_t)c->samples)
        count = (uint64_t)c->samples;
    if (!count)
        return MEMFIT_OK;
    memfit_status status = mf_os_reserve(count * each, &c->memory, &c->memory_bytes, err);
    if (status != MEMFIT_OK)
        return status;
    mf_os_populate(c->memory, count * each);
    c->memory_samples = (int64_t)count;
    c->states = c->memory + count * c->sample_bytes;
    memset(c->states, EMPTY, count * c->arrays);
    return MEMFIT_OK;
}

uint64_t mf_cache_drop_memory(mf_source *source)
{
    mf_cache *c = source ? source->cache : NULL;
    uint64_t had = c ? mf_cache_read_counts(source).memory_bytes : 0;
    if (had)
        mf_os_unreserve(c->memory, c->memory_bytes);
    if (c) {
        c->memory = c->states = NULL;
        c->memory_bytes = 0;
        c->memory_samples = 0;
    }
    return had;
}

mf_cache_counts mf_cache_read_counts(const mf_source *source)
{
    mf_cache *c = source ? source->cache : NULL;
    if (!c)
        return (mf_cache_counts){0};
    uint64_t page = mf_os_page_bytes(), held = (uint64_t)c->memory_samples * (c->sample_bytes + c->arrays);
    return (mf_cache_counts){.found = c->found,
                             .kept = c->kept,
                             .refused = c->refused,
                             .memory_bytes = mf_round_up(held, page),
                             .memory_samples = c->memory_samples};
}

void mf_cache_close(mf_source *source)
{
    if (!source->cache)
        return;
    mf_cache_drop_memory(source);
    mf_os_unwatch(source->cache->descriptor);
    mf_host_free(source->arena.host, source->cache, sizeof *source->cache);
    source->cache = NULL;
}

/* ---- samples ---------------------------------------------------------------------------------------------- */

static bool read_all(int descriptor, void *out, uint64_t bytes, uint64_t at)
{
    for (uint64_t done = 0, n; done < bytes; done += n)
        if (!(n = mf_os_read_at(descriptor, (char *)out + done, bytes - done, at + done)))
            return false;
    return true;
}

static bool find_in_file(const mf_cache *c, const mf_array *a, int64_t file, uint32_t number, void *out)
{
    record head;
    uint64_t at = a->cached_at + (uint64_t)file * record_bytes(a);
    return read_all(c->descriptor, &head, sizeof head, at) && head.number == (uint64_t)file + 1 &&
           head.array == number && read_all(c->descriptor, out, a->sample_bytes, at + sizeof head) &&
           mf_crc32c(out, a->sample_bytes) == head.crc;
}

/* The sample first: a head says that there is one. */
static void put_into_file(mf_cache *c, const mf_array *a, int64_t file, uint32_t number, const void *sample)
{
    record head = {(uint64_t)file + 1, mf_crc32c(sample, a->sample_bytes), number};
    uint64_t at = a->cached_at + (uint64_t)file * record_bytes(a);
    if (mf_os_write_at(c->descriptor, sample, a->sample_bytes, at + sizeof head) &&
        mf_os_write_at(c->descriptor, &head, sizeof head, at))
        c->kept++;
    else
        c->refused++;
}

static unsigned char *state_of(const mf_cache *c, const mf_array *a, int64_t file)
{
    return a->kept_as && file < c->memory_samples ? c->states + (uint64_t)file * c->arrays + (a->kept_as - 1) : NULL;
}

memfit_status mf_source_make(const mf_source *source, const mf_array *a, int64_t index, mf_worker *worker, void *out,
                             memfit_error *err)
{
    mf_cache *c = source->cache;
    if (!c)
        return source->maker->make(source, a, index, worker, out, err);
    const int64_t file = source->mixed ? (int64_t)source->mixed[index] : index;
    const uint32_t number = (uint32_t)(a - source->arrays) + 1;
    unsigned char *s = state_of(c, a, file);
    unsigned char *place = s ? c->memory + (uint64_t)file * c->sample_bytes + a->kept_at : NULL;
    if (s && __atomic_load_n(s, __ATOMIC_ACQUIRE) == FULL) {
        memcpy(out, place, a->sample_bytes);
        c->found++;
        return MEMFIT_OK;
    }
    if (c->descriptor >= 0 && find_in_file(c, a, file, number, out)) {
        c->found++;
        return MEMFIT_OK;
    }
    memfit_status status = source->maker->make(source, a, index, worker, out, err);
    if (status != MEMFIT_OK)
        return status;
    if (c->descriptor >= 0)
        put_into_file(c, a, file, number, out);
    unsigned char empty = EMPTY;
    if (s && __atomic_compare_exchange_n(s, &empty, FILLING, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        memcpy(place, out, a->sample_bytes);
        __atomic_store_n(s, FULL, __ATOMIC_RELEASE);
        c->kept++;
    }
    return MEMFIT_OK;
}
