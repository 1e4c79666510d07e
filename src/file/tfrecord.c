/* tfrecord.c: see tfrecord.h. The check sum is crc32c (Castagnoli), by the processor's instruction where it has one, else by
 * a table of four bits at a time. */
#include "file/tfrecord.h"

#include "base/error.h"

#include <string.h>

/* ---- check sums ------------------------------------------------------------------------------------------- */

static uint32_t crc_by_bits(uint32_t crc, const unsigned char *p, uint64_t n)
{
    static const uint32_t nibbles[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                         0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                         0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    while (n--) {
        crc ^= *p++;
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t crc, const unsigned char *p, uint64_t n)
{
    uint64_t wide = crc, part;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&part, p, 8);
        wide = __builtin_ia32_crc32di(wide, part);
    }
    crc = (uint32_t)wide;
    while (n--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
#endif

uint32_t mf_crc32c(const unsigned char *data, uint64_t bytes)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_by_instruction(~0u, data, bytes);
#endif
    return ~crc_by_bits(~0u, data, bytes);
}

static uint32_t mask(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- records ---------------------------------------------------------------------------------------------- */

static uint64_t little(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

bool mf_tfrecord_sniff(const unsigned char *data, uint64_t bytes)
{
    return bytes >= 16 && little(data + 8, 4) == mask(mf_crc32c(data, 8));
}

memfit_status mf_tfrecord_at(const unsigned char *file, uint64_t bytes, uint64_t at, bool check, const char *name,
                             mf_tfrecord *record, memfit_error *err)
{
    const uint64_t left = bytes - at;
    if (left < 12)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s is cut off: the record at byte %llu has no header\ncopy or make it again", name,
                       (unsigned long long)at);
    const unsigned char *p = file + at;
    const uint64_t length = little(p, 8);
    if (little(p + 8, 4) != mask(mf_crc32c(p, 8)))
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s: the record at byte %llu is damaged: the check sum of its length is wrong\n"
                       "the file is damaged there, or it is not a TFRecord file",
                       name, (unsigned long long)at);
    if (length > left - 12 || left - 12 - length < 4)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s is cut off: the record at byte %llu claims %llu bytes, %llu are left\ncopy or make it again",
                       name, (unsigned long long)at, (unsigned long long)length, (unsigned long long)(left - 12));
    if (check && little(p + 12 + length, 4) != mask(mf_crc32c(p + 12, length)))
        return mf_fail(err, MEMFIT_DAMAGED, "%s: the record at byte %llu is damaged: its check sum is wrong", name,
                       (unsigned long long)at);
    *record = (mf_tfrecord){p + 12, length, at + 12 + length + 4};
    return MEMFIT_OK;
}

/* ---- protocol buffers -------------------------------------------------------------------------------------- */

typedef struct bytes_in {
    const unsigned char *at, *end;
} bytes_in;

static bool varint(bytes_in *in, uint64_t *value)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && in->at < in->end; shift += 7) {
        unsigned char b = *in->at++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *value = v;
            return true;
        }
    }
    return false;
}

/* The next field: its number, and its bytes where it has a length. Numbers of a fixed size are skipped over. */
static bool field(bytes_in *in, uint64_t *number, uint64_t *type, bytes_in *value)
{
    uint64_t key, n;
    if (!varint(in, &key))
        return false;
    *number = key >> 3;
    *type = key & 7;
    *value = (bytes_in){in->at, in->at};
    if (*type == 0)
        return varint(in, &n) && (value->end = in->at, true);
    if (*type == 2 ? !varint(in, &n) : *type != 1 && *type != 5)
        return false;
    n = *type == 2 ? n : *type == 1 ? 8 : 4;
    if (n > (uint64_t)(in->end - in->at))
        return false;
    *value = (bytes_in){in->at, in->at + n};
    in->at += n;
    return true;
}

/* Feature { bytes_list = 1, float_list = 2, int64_list = 3 }; each list { value = 1 }. */
static bool read_feature(bytes_in in, mf_feature *f)
{
    uint64_t number, type;
    bytes_in value;
    f->kind = MF_FEATURE_NONE;
    while (in.at < in.end) {
        if (!field(&in, &number, &type, &value))
            return false;
        if (type == 2 && number >= 1 && number <= 3) {
            f->kind = (mf_feature_kind)number;
            f->list = value.at;
            f->list_bytes = (uint64_t)(value.end - value.at);
        }
    }
    return true;
}

/* An entry of the map: key = 1, value = 2. */
static bool read_entry(bytes_in in, mf_feature *f)
{
    uint64_t number, type;
    bytes_in value;
    *f = (mf_feature){.name = "", .list = (const unsigned char *)""};
    while (in.at < in.end) {
        if (!field(&in, &number, &type, &value))
            return false;
        if (type == 2 && number == 1) {
            f->name = (const char *)value.at;
            f->name_bytes = (uint64_t)(value.end - value.at);
        } else if (type == 2 && number == 2 && !read_feature(value, f)) {
            return false;
        }
    }
    return true;
}

bool mf_example_walk(const unsigned char *data, uint64_t bytes, bool (*each)(void *ctx, const mf_feature *feature),
                     void *ctx)
{
    bytes_in example = {data, data + bytes}, features, entry;
    uint64_t number, type;
    while (example.at < example.end) {
        if (!field(&example, &number, &type, &features))
            return false;
        while (number == 1 && type == 2 && features.at < features.end) {
            mf_feature f;
            uint64_t n, t;
            if (!field(&features, &n, &t, &entry))
                return false;
            if (n != 1 || t != 2)
                continue;
            if (!read_entry(entry, &f))
                return false;
            if (!each(ctx, &f))
                return true;
        }
    }
    return true;
}

bool mf_example_is_sequence(const unsigned char *data, uint64_t bytes)
{
    bytes_in example = {data, data + bytes}, value;
    uint64_t number, type;
    while (example.at < example.end) {
        if (!field(&example, &number, &type, &value))
            return false;
        if (number == 2 && type == 2 && value.at < value.end)
            return true;
    }
    return false;
}

typedef struct search {
    const char *name;
    size_t bytes;
    mf_feature *found;
    bool is_found;
} search;

static bool compare(void *ctx, const mf_feature *f)
{
    search *s = ctx;
    if (f->name_bytes == s->bytes && memcmp(f->name, s->name, s->bytes) == 0) {
        *s->found = *f;
        s->is_found = true;
    }
    return true; /* of two of one name the last counts, as everywhere in protocol buffers */
}

bool mf_example_find(const unsigned char *data, uint64_t bytes, const char *name, mf_feature *feature, bool *damaged)
{
    search s = {name, strlen(name), feature, false};
    *damaged = !mf_example_walk(data, bytes, compare, &s);
    return s.is_found && !*damaged;
}

/* ---- values ----------------------------------------------------------------------------------------------- */

/* Numbers are packed (one field with all of them) or not (a field each). Returns how many there are, at most `most` of
 * them into out; -1 when damaged. */
static int64_t numbers(const mf_feature *f, float *floats, int64_t *ints, uint64_t most)
{
    bytes_in in = {f->list, f->list + f->list_bytes}, value;
    uint64_t number, type, count = 0, v;
    while (in.at < in.end) {
        if (!field(&in, &number, &type, &value))
            return -1;
        if (number != 1)
            continue;
        while (value.at < value.end) {
            if (f->kind == MF_FEATURE_FLOAT) {
                if (value.end - value.at < 4)
                    return -1;
                if (floats && count < most)
                    memcpy(floats + count, value.at, 4);
                value.at += 4;
            } else {
                if (!varint(&value, &v))
                    return -1;
                if (ints && count < most)
                    ints[count] = (int64_t)v;
            }
            count++;
        }
    }
    return (int64_t)count;
}

int64_t mf_feature_count(const mf_feature *f)
{
    if (f->kind == MF_FEATURE_FLOAT || f->kind == MF_FEATURE_INT)
        return numbers(f, NULL, NULL, 0);
    bytes_in in = {f->list, f->list + f->list_bytes}, value;
    uint64_t number, type;
    int64_t count = 0;
    while (in.at < in.end) {
        if (!field(&in, &number, &type, &value))
            return -1;
        count += number == 1 && type == 2;
    }
    return count;
}

bool mf_feature_bytes(const mf_feature *f, const unsigned char **data, uint64_t *bytes)
{
    bytes_in in = {f->list, f->list + f->list_bytes}, value;
    uint64_t number, type;
    int count = 0;
    while (f->kind == MF_FEATURE_BYTES && in.at < in.end) {
        if (!field(&in, &number, &type, &value))
            return false;
        if (number == 1 && type == 2) {
            *data = value.at;
            *bytes = (uint64_t)(value.end - value.at);
            count++;
        }
    }
    return count == 1;
}

bool mf_feature_floats(const mf_feature *f, float *out, uint64_t count)
{
    return f->kind == MF_FEATURE_FLOAT && numbers(f, out, NULL, count) == (int64_t)count;
}

bool mf_feature_ints(const mf_feature *f, int64_t *out, uint64_t count)
{
    return f->kind == MF_FEATURE_INT && numbers(f, NULL, out, count) == (int64_t)count;
}
