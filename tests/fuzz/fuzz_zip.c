/*
 * fuzz_zip.c: any bytes as an archive: every member is read and checked.
 */
#include "file/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mf_arena arena;
    mf_zip zip;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    arena.limit_bytes = 64u << 20;
    if (mf_zip_open(&zip, &arena, data, bytes, &err) == MEMFIT_OK)
        for (size_t i = 0; i < zip.count && i < 16; i++) {
            const unsigned char *content;
            mf_zip_read(&zip, &zip.members[i], &arena, true, &content, &err);
        }
    mf_arena_destroy(&arena);
    return 0;
}
