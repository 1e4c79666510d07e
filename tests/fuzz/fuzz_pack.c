/*
 * fuzz_pack.c: any bytes as a table of buffers: read, packed quickly, checked, written, read again.
 */
#include "pack/pack.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    memfit_error err;
    memfit_pack_file *file;
    if (mf_pack_file_parse(&file, (const char *)data, size, 0, NULL, &err))
        return 0;
    size_t count;
    mf_pack_buffer *b = memfit_pack_file_buffers(file, &count);
    mf_pack_options o = MEMFIT_PACK_OPTIONS;
    o.effort = size & 1 ? MEMFIT_PACK_QUICK : MEMFIT_PACK_PORTFOLIO;
    o.time_limit_us = 2000;
    mf_pack_result r;
    if (count < 500 && size < 3500 && mf_pack(NULL, b, count, &o, &r, &err) == MEMFIT_OK) {
        uint64_t height;
        if (mf_pack_check(NULL, b, count, r.height, &height, &err) || height != r.height || r.bound > r.height)
            abort();
        char *text = NULL;
        size_t bytes = 0;
        FILE *f = open_memstream(&text, &bytes);
        memfit_pack_file *again;
        if (!f || mf_pack_file_print(file, f, &err) || fclose(f) ||
            mf_pack_file_parse(&again, text, bytes, MEMFIT_PACK_FILE_REPACK, NULL, &err))
            abort();
        memfit_pack_file_close(again);
        free(text);
    }
    memfit_pack_file_close(file);
    return 0;
}
