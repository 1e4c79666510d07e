/*
 * zip_read.c: archives in memory.
 *
 *   [local header | data] ... [directory: one record a member] [zip64 end record, its locator] [end record]
 *
 * Everything is found from the end record at the back; local headers are consulted only for where a member's data
 * begins. Bytes before the first member (a self-extracting stub) shift all offsets and are allowed for.
 * Invariant after mf_zip_open: each member's [data_at, data_at + packed_bytes) lies inside the archive.
 */
#include "file/zip.h"

#include "base/error.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <zlib.h>

enum { END_BYTES = 22, CENTRAL_BYTES = 46, LOCAL_BYTES = 30, LOCATOR_BYTES = 20, END64_BYTES = 56 };
static const uint32_t end_magic = 0x06054b50, central_magic = 0x02014b50, local_magic = 0x04034b50,
                      locator_magic = 0x07064b50, end64_magic = 0x06064b50;

/* A member may grow this many times when inflated; small ones are exempt. */
enum { MOST_EXPANSION = 100 };
static const uint64_t expansion_exempt_bytes = 64u << 20;

bool mf_zip_sniff(const unsigned char *data, uint64_t bytes)
{
    return bytes >= 4 && data[0] == 'P' && data[1] == 'K' &&
           ((data[2] == 3 && data[3] == 4) || (data[2] == 5 && data[3] == 6) || (data[2] == 7 && data[3] == 8));
}

uint32_t mf_crc32(uint32_t crc, const void *data, uint64_t bytes)
{
    const unsigned char *p = data;
    while (bytes) {
        uInt piece = bytes > (1u << 30) ? 1u << 30 : (uInt)bytes;
        crc = (uint32_t)crc32(crc, p, piece);
        p += piece;
        bytes -= piece;
    }
    return crc;
}

/* ---- the end records -------------------------------------------------------------------------------------- */

typedef struct end_info {
    uint64_t at; /* of the first end record: the directory ends there */
    uint64_t count, directory_bytes, directory_at;
} end_info;

static memfit_status find_end(const mf_zip *zip, end_info *end, memfit_error *err)
{
    if (zip->bytes < END_BYTES)
        return mf_fail(err, MEMFIT_DAMAGED, "the archive is cut short: %" PRIu64 " bytes", zip->bytes);
    uint64_t last = zip->bytes - END_BYTES, lowest = last > 65535 ? last - 65535 : 0;
    for (uint64_t at = last;; at--) {
        const unsigned char *p = zip->data + at;
        if (mf_le32(p) == end_magic && mf_le16(p + 20) <= zip->bytes - at - END_BYTES) {
            if (mf_le16(p + 4) != mf_le16(p + 6) && mf_le16(p + 4) != 0xFFFF)
                return mf_fail(err, MEMFIT_UNSUPPORTED, "the archive is split over several files");
            *end = (end_info){at, mf_le16(p + 10), mf_le32(p + 12), mf_le32(p + 16)};
            return MEMFIT_OK;
        }
        if (at == lowest)
            return mf_fail(err, MEMFIT_DAMAGED,
                           "the archive's end record is missing: the file is cut short (%" PRIu64 " bytes are there)",
                           zip->bytes);
    }
}

static memfit_status find_end64(const mf_zip *zip, end_info *end, memfit_error *err)
{
    bool wanted = end->count == 0xFFFF || end->directory_bytes == UINT32_MAX || end->directory_at == UINT32_MAX;
    if (!wanted || end->at < LOCATOR_BYTES)
        return MEMFIT_OK;
    const unsigned char *locator = zip->data + end->at - LOCATOR_BYTES;
    if (mf_le32(locator) != locator_magic)
        return MEMFIT_OK;
    uint64_t at = mf_le64(locator + 8);
    /* With bytes before the archive the recorded offset is too low: the record then stands right before its locator. */
    if (at > zip->bytes || zip->bytes - at < END64_BYTES || mf_le32(zip->data + at) != end64_magic) {
        if (end->at < LOCATOR_BYTES + END64_BYTES)
            return mf_fail(err, MEMFIT_DAMAGED, "the zip64 end record is missing");
        at = end->at - LOCATOR_BYTES - END64_BYTES;
    }
    const unsigned char *p = zip->data + at;
    if (mf_le32(p) != end64_magic)
        return mf_fail(err, MEMFIT_DAMAGED, "the zip64 end record is missing");
    *end = (end_info){at, mf_le64(p + 32), mf_le64(p + 40), mf_le64(p + 48)};
    return MEMFIT_OK;
}

/* ---- the directory ---------------------------------------------------------------------------------------- */

/* Replaces the 32-bit fields that are all ones by those of the zip64 extra field. */
static bool read_zip64(const unsigned char *extra, unsigned extra_bytes, mf_zip_member *m, uint64_t *local_at)
{
    const unsigned char *end = extra + extra_bytes;
    while (end - extra >= 4) {
        unsigned id = mf_le16(extra), n = mf_le16(extra + 2);
        const unsigned char *p = extra + 4;
        if (n > (unsigned)(end - p))
            return false;
        extra = p + n;
        if (id != 1)
            continue;
        uint64_t *const fields[] = {&m->bytes, &m->packed_bytes, local_at};
        for (unsigned i = 0; i < 3; i++) {
            if (*fields[i] != UINT32_MAX)
                continue;
            if (extra - p < 8)
                return false;
            *fields[i] = mf_le64(p);
            p += 8;
        }
    }
    return true;
}

/* Finds where the data begins, which only the local header knows. */
static memfit_status locate(const mf_zip *zip, mf_zip_member *m, uint64_t local_at, memfit_error *err)
{
    if (local_at > zip->bytes || zip->bytes - local_at < LOCAL_BYTES || mf_le32(zip->data + local_at) != local_magic)
        return mf_fail(err, MEMFIT_DAMAGED, "member %.80s: no local header at byte %" PRIu64, m->name, local_at);
    const unsigned char *p = zip->data + local_at;
    m->local_crc_at = mf_le16(p + 6) & 8 ? 0 : local_at + 14;
    m->data_at = local_at + LOCAL_BYTES + mf_le16(p + 26) + mf_le16(p + 28);
    if (m->data_at > zip->bytes || m->packed_bytes > zip->bytes - m->data_at)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "member %.80s: %" PRIu64 " bytes at %" PRIu64 " reach beyond the file's end", m->name,
                       m->packed_bytes, m->data_at);
    if (m->method == 0 && m->bytes != m->packed_bytes)
        return mf_fail(err, MEMFIT_DAMAGED, "member %.80s: stored, yet its two sizes differ", m->name);
    return MEMFIT_OK;
}

static memfit_status read_record(const mf_zip *zip, mf_arena *arena, uint64_t *at, uint64_t end, uint64_t shift,
                                 mf_zip_member *m, memfit_error *err)
{
    const unsigned char *p = zip->data + *at;
    if (end - *at < CENTRAL_BYTES || mf_le32(p) != central_magic)
        return mf_fail(err, MEMFIT_DAMAGED, "the archive's directory is damaged at byte %" PRIu64, *at);
    unsigned name_bytes = mf_le16(p + 28), extra_bytes = mf_le16(p + 30), comment_bytes = mf_le16(p + 32);
    uint64_t whole = (uint64_t)CENTRAL_BYTES + name_bytes + extra_bytes + comment_bytes;
    if (end - *at < whole)
        return mf_fail(err, MEMFIT_DAMAGED, "the archive's directory is damaged at byte %" PRIu64, *at);
    *m = (mf_zip_member){.method = mf_le16(p + 10),
                         .crc = mf_le32(p + 16),
                         .packed_bytes = mf_le32(p + 20),
                         .bytes = mf_le32(p + 24),
                         .central_crc_at = *at + 16};
    uint64_t local_at = mf_le32(p + 42);
    if (!(m->name = mf_arena_strndup(arena, (const char *)p + CENTRAL_BYTES, name_bytes)))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the archive's directory");
    if (mf_le16(p + 8) & 1)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "member %.80s is encrypted", m->name);
    if (!read_zip64(p + CENTRAL_BYTES + name_bytes, extra_bytes, m, &local_at) || local_at > UINT64_MAX - shift)
        return mf_fail(err, MEMFIT_DAMAGED, "member %.80s: its zip64 field is damaged", m->name);
    *at += whole;
    return locate(zip, m, local_at + shift, err);
}

static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

/* Two members of one name: programs differ in which of them they read, so that one file would be two. */
static memfit_status refuse_doubles(const mf_zip *zip, const memfit_host *host, memfit_error *err)
{
    size_t slots = 16;
    while (slots < 2 * zip->count)
        slots *= 2;
    uint32_t *table = mf_host_zalloc(host, slots * sizeof *table); /* 1 + the member's number */
    if (!table)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the archive's directory");
    memfit_status st = MEMFIT_OK;
    for (size_t i = 0; i < zip->count && !st; i++) {
        size_t at = hash_name(zip->members[i].name) & (slots - 1);
        for (; table[at] && !st; at = (at + 1) & (slots - 1))
            if (strcmp(zip->members[table[at] - 1].name, zip->members[i].name) == 0)
                st = mf_fail(err, MEMFIT_DAMAGED, "the archive holds two members named %.80s\nmake it again",
                             zip->members[i].name);
        table[at] = (uint32_t)i + 1;
    }
    mf_host_free(host, table, slots * sizeof *table);
    return st;
}

memfit_status mf_zip_open(mf_zip *zip, mf_arena *arena, const unsigned char *data, uint64_t bytes, memfit_error *err)
{
    mf_zip z = {.data = data, .bytes = bytes};
    end_info end = {0};
    memfit_status st = find_end(&z, &end, err);
    if (!st)
        st = find_end64(&z, &end, err);
    if (st)
        return st;
    if (end.directory_bytes > end.at || end.directory_at > end.at - end.directory_bytes)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "the archive's directory (%" PRIu64 " bytes at %" PRIu64
                       ") reaches beyond the end record at %" PRIu64,
                       end.directory_bytes, end.directory_at, end.at);
    uint64_t at = end.at - end.directory_bytes, shift = at - end.directory_at;
    if (end.count > end.directory_bytes / CENTRAL_BYTES)
        return mf_fail(err, MEMFIT_DAMAGED, "the archive's directory is too small for %" PRIu64 " members", end.count);
    z.members = MF_NEW_ARRAY(arena, mf_zip_member, end.count);
    if (!z.members)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the archive's directory");
    for (; z.count < end.count; z.count++)
        if ((st = read_record(&z, arena, &at, end.at, shift, &z.members[z.count], err)))
            return st;
    if ((st = refuse_doubles(&z, arena->host, err)))
        return st;
    *zip = z;
    return MEMFIT_OK;
}

const mf_zip_member *mf_zip_find(const mf_zip *zip, const char *name)
{
    for (size_t i = 0; i < zip->count; i++)
        if (strcmp(zip->members[i].name, name) == 0)
            return &zip->members[i];
    return NULL;
}

/* ---- members ---------------------------------------------------------------------------------------------- */

/* zlib's memory comes from the host too; the size stands before each piece, since the host wants it back. */
static void *zlib_alloc(void *opaque, uInt count, uInt size)
{
    size_t bytes = (size_t)count * size + 16;
    size_t *p = mf_host_alloc(opaque, bytes);
    if (!p)
        return NULL;
    *p = bytes;
    return (char *)p + 16;
}

static void zlib_free(void *opaque, void *ptr)
{
    size_t *p = (size_t *)(void *)((char *)ptr - 16);
    mf_host_free(opaque, p, *p);
}

static memfit_status inflate_member(const mf_zip *zip, const mf_zip_member *m, const memfit_host *host,
                                    unsigned char *out, memfit_error *err)
{
    z_stream s = {.zalloc = zlib_alloc, .zfree = zlib_free, .opaque = (void *)(uintptr_t)host};
    if (inflateInit2(&s, -MAX_WBITS) != Z_OK)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to unpack member %.80s", m->name);
    uint64_t in_left = m->packed_bytes, out_left = m->bytes;
    s.next_in = (Bytef *)(uintptr_t)(zip->data + m->data_at);
    s.next_out = out;
    int rc = Z_OK;
    while (rc == Z_OK) {
        uInt in_now = in_left > UINT_MAX ? UINT_MAX : (uInt)in_left,
             out_now = out_left > UINT_MAX ? UINT_MAX : (uInt)out_left;
        s.avail_in = in_now;
        s.avail_out = out_now;
        rc = inflate(&s, Z_NO_FLUSH);
        in_left -= in_now - s.avail_in;
        out_left -= out_now - s.avail_out;
    }
    inflateEnd(&s);
    if (rc == Z_MEM_ERROR)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to unpack member %.80s", m->name);
    if (rc != Z_STREAM_END || out_left)
        return mf_fail(err, MEMFIT_DAMAGED, "member %.80s: its compressed data is damaged near byte %" PRIu64, m->name,
                       m->data_at + m->packed_bytes - in_left);
    return MEMFIT_OK;
}

static memfit_status check_crc(const mf_zip_member *m, const unsigned char *data, memfit_error *err)
{
    uint32_t crc = mf_crc32(0, data, m->bytes);
    if (crc == m->crc)
        return MEMFIT_OK;
    return mf_fail(err, MEMFIT_DAMAGED,
                   "member %.80s (%" PRIu64 " bytes at %" PRIu64 "): check sum %08" PRIx32 ", recorded %08" PRIx32,
                   m->name, m->packed_bytes, m->data_at, crc, m->crc);
}

memfit_status mf_zip_unpackable(const mf_zip_member *member, memfit_error *err)
{
    if (member->method != 8)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "member %.80s is packed by method %u\nunpack it and pack it again with the "
                       "method stored or deflated",
                       member->name, member->method);
    /* Deflate cannot do better than 1032:1; a bigger claim is a lie and takes no memory. */
    if (member->bytes / 1032 > member->packed_bytes + 1)
        return mf_fail(err, MEMFIT_DAMAGED, "member %.80s claims %" PRIu64 " bytes, more than it can hold",
                       member->name, member->bytes);
    return MEMFIT_OK;
}

memfit_status mf_zip_unpack(const mf_zip *zip, const mf_zip_member *member, const memfit_host *host, unsigned char *out,
                            memfit_error *err)
{
    memfit_status st = mf_zip_unpackable(member, err);
    if (!st)
        st = inflate_member(zip, member, host, out, err);
    return st ? st : check_crc(member, out, err);
}

memfit_status mf_zip_read(const mf_zip *zip, const mf_zip_member *member, mf_arena *arena, bool verify,
                          const unsigned char **data, memfit_error *err)
{
    memfit_status st = MEMFIT_OK;
    if (member->method == 0) {
        const unsigned char *p = zip->data + member->data_at;
        if (verify && (st = check_crc(member, p, err)))
            return st;
        *data = p;
        return MEMFIT_OK;
    }
    if ((st = mf_zip_unpackable(member, err)))
        return st;
    if (member->bytes > expansion_exempt_bytes && member->bytes / MOST_EXPANSION > member->packed_bytes)
        return mf_fail(err, MEMFIT_DAMAGED, "member %.80s claims to grow from %" PRIu64 " to %" PRIu64 " bytes",
                       member->name, member->packed_bytes, member->bytes);
    unsigned char *out = mf_arena_alloc(arena, member->bytes);
    if (!out)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for member %.80s of %" PRIu64 " bytes", member->name,
                       member->bytes);
    if ((st = mf_zip_unpack(zip, member, arena->host, out, err)))
        return st;
    *data = out;
    return MEMFIT_OK;
}
