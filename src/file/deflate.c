/* deflate.c: see deflate.h. zlib's own memory comes from the arena, too: it is small, and gone with it. */
#include "file/deflate.h"

#include "base/error.h"

#include <zlib.h>

static void *take(void *arena, uInt count, uInt size)
{
    return mf_arena_array(arena, count, size);
}

static void leave(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

memfit_status mf_deflate(mf_arena *arena, const void *data, size_t bytes, unsigned char **out, size_t *out_bytes,
                         memfit_error *err)
{
    if (bytes > 1u << 31)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%zu bytes are too many to compress at once", bytes);
    z_stream z = {.zalloc = take, .zfree = leave, .opaque = arena};
    static const char none[] = "no memory to compress %zu bytes";
    if (deflateInit(&z, 6) != Z_OK)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, none, bytes);
    size_t room = deflateBound(&z, bytes);
    unsigned char *space = mf_arena_alloc(arena, room);
    int done = Z_MEM_ERROR;
    if (space) {
        z.next_in = (Bytef *)(uintptr_t)data;
        z.avail_in = (uInt)bytes;
        z.next_out = space;
        z.avail_out = (uInt)room;
        done = deflate(&z, Z_FINISH);
    }
    deflateEnd(&z);
    if (done != Z_STREAM_END)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, none, bytes);
    *out = space;
    *out_bytes = z.total_out;
    return MEMFIT_OK;
}
