/*
 * fuzz_trace.c: any bytes as a trace: our own file (closed or not), CSV or snapshot. What is accepted passes its check.
 * The first byte chooses whether a header of ours is put in front, so that the cells themselves are reached.
 */
#include "trace/trace.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void try_one(const void *data, size_t bytes)
{
    memfit_trace *trace = NULL;
    memfit_error err;
    memfit_status status = memfit_trace_read(data, bytes, NULL, &trace, &err);
    if (status == MEMFIT_OK && mf_trace_check(trace, &err) != MEMFIT_OK)
        abort();
    if (status != MEMFIT_OK && status != MEMFIT_DAMAGED && status != MEMFIT_UNSUPPORTED)
        abort();
    memfit_trace_destroy(trace);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes || data[0] != 'T') {
        try_one(data, bytes);
        return 0;
    }
    mf_trace_header header = {.version = MF_TRACE_VERSION, .cell_bytes = MF_TRACE_CELL};
    memcpy(header.magic, MF_TRACE_MAGIC, 8);
    char *whole = malloc(sizeof header + bytes);
    memcpy(whole, &header, sizeof header);
    memcpy(whole + sizeof header, data + 1, bytes - 1);
    try_one(whole, sizeof header + bytes - 1);
    free(whole);
    return 0;
}
