/* gzip.c: see gzip.h. */
#include "file/gzip.h"

#include "base/error.h"
#include "base/memory.h"

#include <limits.h>
#include <zlib.h>

enum { NOWHERE_BYTES = 16 << 10, EITHER_HEADER = MAX_WBITS + 32 };

bool mf_gzip_sniff(const unsigned char *d, uint64_t n)
{
    return n >= 18 && ((d[0] == 0x1f && d[1] == 0x8b) || (d[0] == 0x78 && (d[0] * 256 + d[1]) % 31 == 0));
}

/* zlib frees without saying how much it took: that stands before each piece. */
static void *take(void *ctx, uInt count, uInt size)
{
    size_t bytes = (size_t)count * size + 16;
    size_t *p = mf_host_alloc(ctx, bytes);
    if (!p)
        return NULL;
    *p = bytes;
    return (char *)p + 16;
}

static void give(void *ctx, void *address)
{
    size_t *p = (size_t *)(void *)((char *)address - 16);
    mf_host_free(ctx, p, *p);
}

memfit_status mf_gzip_unpack(const memfit_host *host, const unsigned char *data, uint64_t bytes, const char *name,
                             unsigned char *out, uint64_t room, uint64_t *unpacked, memfit_error *err)
{
    unsigned char nowhere[NOWHERE_BYTES];
    z_stream z = {.zalloc = take, .zfree = give, .opaque = (void *)(uintptr_t)host};
    uint64_t at = 0, done = 0;
    int rc = Z_OK;
    if (inflateInit2(&z, EITHER_HEADER) != Z_OK)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to unpack %s", name);
    while (at < bytes && (rc == Z_OK || rc == Z_STREAM_END)) {
        if (rc == Z_STREAM_END && inflateReset(&z) != Z_OK) /* another part follows */
            break;
        uInt in = bytes - at > UINT_MAX ? UINT_MAX : (uInt)(bytes - at), room_now = NOWHERE_BYTES;
        if (out)
            room_now = room - done > UINT_MAX ? UINT_MAX : (uInt)(room - done);
        z.next_in = (Bytef *)(uintptr_t)(data + at);
        z.avail_in = in;
        z.next_out = out ? out + done : nowhere;
        z.avail_out = room_now;
        rc = inflate(&z, Z_NO_FLUSH);
        at += in - z.avail_in;
        done += room_now - z.avail_out;
        if (rc == Z_OK && out && done == room && at < bytes && z.avail_out == 0 && z.avail_in == in)
            break; /* no progress */
    }
    inflateEnd(&z);
    if (rc != Z_STREAM_END)
        return mf_fail(err, rc == Z_MEM_ERROR ? MEMFIT_NO_HOST_MEMORY : MEMFIT_DAMAGED, "%s is %s at byte %llu", name,
                       rc == Z_OK || rc == Z_BUF_ERROR ? "packed, and cut off" : "packed, and damaged",
                       (unsigned long long)at);
    *unpacked = done;
    return MEMFIT_OK;
}
