/*
 * zip_write.c: the headers of an archive whose members' sizes and check sums are known.
 *
 * Members are stored, or copied packed from another archive. A local header's extra field (id 0x6d66, "fm") pads so
 * that the data starts at a multiple of the alignment asked for; readers skip fields they do not know. Zip64 fields
 * appear only where a number needs more than 32 bits, so ordinary files look as Python's zipfile writes them.
 */
#include "file/zip.h"

#include "base/bytes.h"

#include <string.h>

enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, END64_BYTES = 56, LOCATOR_BYTES = 20, PAD_ID = 0x6d66 };

static bool is_large(const mf_zip_entry *e)
{
    return e->bytes >= UINT32_MAX || e->packed_bytes >= UINT32_MAX;
}

static uint64_t central_extra_bytes(const mf_zip_entry *e)
{
    uint64_t fields = (is_large(e) ? 16u : 0u) + (e->header_at >= UINT32_MAX ? 8u : 0u);
    return fields ? 4 + fields : 0;
}

uint64_t mf_zip_layout(mf_zip_entry *entries, size_t count, uint64_t alignment, uint64_t *directory_at)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        mf_zip_entry *e = &entries[i];
        uint64_t head = LOCAL_BYTES + strlen(e->name) + (is_large(e) ? 20u : 0u);
        uint64_t data = at + head;
        if (alignment > 1 && data % alignment) {
            data += 4; /* the padding field's own header */
            data = mf_round_up(data, alignment);
        }
        e->header_at = at;
        e->data_at = data;
        at = data + e->packed_bytes;
    }
    *directory_at = at;
    bool large = at >= UINT32_MAX || count >= UINT16_MAX;
    for (size_t i = 0; i < count; i++)
        at += CENTRAL_BYTES + strlen(entries[i].name) + central_extra_bytes(&entries[i]);
    large |= at - *directory_at >= UINT32_MAX;
    return at + END_BYTES + (large ? END64_BYTES + LOCATOR_BYTES : 0);
}

static uint64_t low32(uint64_t n)
{
    return n >= UINT32_MAX ? UINT32_MAX : n;
}

/* What local header and directory have in common: version to names' lengths. */
static unsigned char *put_common(unsigned char *p, const mf_zip_entry *e, uint64_t extra_bytes)
{
    p = mf_put_le(p, is_large(e) ? 45 : 20, 2);
    p = mf_put_le(p, 0, 2);
    p = mf_put_le(p, e->method, 2);
    p = mf_put_le(p, 0x00210000, 4); /* 1980-01-01, as for all files that are to be reproducible */
    p = mf_put_le(p, e->crc, 4);
    p = mf_put_le(p, is_large(e) ? UINT32_MAX : e->packed_bytes, 4);
    p = mf_put_le(p, is_large(e) ? UINT32_MAX : e->bytes, 4);
    p = mf_put_le(p, strlen(e->name), 2);
    return mf_put_le(p, extra_bytes, 2);
}

void mf_zip_local_header(const mf_zip_entry *e, unsigned char *out)
{
    uint64_t extra = e->data_at - e->header_at - LOCAL_BYTES - strlen(e->name);
    unsigned char *p = mf_put_le(out, 0x04034b50, 4);
    p = put_common(p, e, extra);
    memcpy(p, e->name, strlen(e->name));
    p += strlen(e->name);
    if (is_large(e)) {
        p = mf_put_le(p, 1, 2);
        p = mf_put_le(p, 16, 2);
        p = mf_put_le(p, e->bytes, 8);
        p = mf_put_le(p, e->packed_bytes, 8);
        extra -= 20;
    }
    if (extra) {
        p = mf_put_le(p, PAD_ID, 2);
        p = mf_put_le(p, extra - 4, 2);
        memset(p, 0, extra - 4);
    }
}

static unsigned char *put_record(unsigned char *p, const mf_zip_entry *e)
{
    p = mf_put_le(p, 0x02014b50, 4);
    p = mf_put_le(p, is_large(e) ? 45 : 20, 2);
    p = put_common(p, e, central_extra_bytes(e));
    p = mf_put_le(p, 0, 2 + 2 + 2);  /* no comment, disk 0, no attributes */
    p = mf_put_le(p, 0x01800000, 4); /* rw------- */
    p = mf_put_le(p, low32(e->header_at), 4);
    memcpy(p, e->name, strlen(e->name));
    p += strlen(e->name);
    uint64_t extra = central_extra_bytes(e);
    if (!extra)
        return p;
    p = mf_put_le(p, 1, 2);
    p = mf_put_le(p, extra - 4, 2);
    if (is_large(e)) {
        p = mf_put_le(p, e->bytes, 8);
        p = mf_put_le(p, e->packed_bytes, 8);
    }
    return e->header_at >= UINT32_MAX ? mf_put_le(p, e->header_at, 8) : p;
}

void mf_zip_directory(const mf_zip_entry *entries, size_t count, uint64_t directory_at, unsigned char *out)
{
    unsigned char *p = out;
    for (size_t i = 0; i < count; i++)
        p = put_record(p, &entries[i]);
    uint64_t bytes = (uint64_t)(p - out);
    if (directory_at >= UINT32_MAX || count >= UINT16_MAX || bytes >= UINT32_MAX) {
        p = mf_put_le(p, 0x06064b50, 4);
        p = mf_put_le(p, END64_BYTES - 12, 8);
        p = mf_put_le(p, 45, 2);
        p = mf_put_le(p, 45, 2);
        p = mf_put_le(p, 0, 8);
        p = mf_put_le(p, count, 8);
        p = mf_put_le(p, count, 8);
        p = mf_put_le(p, bytes, 8);
        p = mf_put_le(p, directory_at, 8);
        p = mf_put_le(p, 0x07064b50, 4);
        p = mf_put_le(p, 0, 4);
        p = mf_put_le(p, directory_at + bytes, 8);
        p = mf_put_le(p, 1, 4);
    }
    p = mf_put_le(p, 0x06054b50, 4);
    p = mf_put_le(p, 0, 4);
    p = mf_put_le(p, count >= UINT16_MAX ? UINT16_MAX : count, 2);
    p = mf_put_le(p, count >= UINT16_MAX ? UINT16_MAX : count, 2);
    p = mf_put_le(p, low32(bytes), 4);
    p = mf_put_le(p, low32(directory_at), 4);
    mf_put_le(p, 0, 2);
}
