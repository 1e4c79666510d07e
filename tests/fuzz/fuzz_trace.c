/*
 * fuzz_trace.c: any bytes as a trace: our own file (closed or not), CSV or snapshot. What is accepted passes its check.
 * The first byte chooses whether a header of ours is put in front (T), or a ring (R), so that the cells themselves are reached.
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

/* A file that was not closed, with a small ring in front of its cells: the first eight bytes are how many events the ring's
 * shard has had, the next its cells as far as they go, the rest the file's. */
static void try_ring(const uint8_t *data, size_t bytes)
{
    enum { EVENTS = 16, RING = EVENTS * MF_TRACE_CELL, FRONT = MF_TRACE_RING_CELLS_AT + RING };
    if (bytes < 8)
        return;
    mf_trace_ring ring = {.header = {.version = MF_TRACE_VERSION, .cell_bytes = MF_TRACE_CELL, .cells_at = FRONT},
                          .shard_count = 1,
                          .shard_events = EVENTS,
                          .look = {{1000, 1000}}};
    memcpy(ring.header.magic, MF_TRACE_MAGIC, 8);
    memcpy(&ring.shards[0].put, data, 8);
    data += 8, bytes -= 8;
    char *whole = calloc(1, FRONT + bytes);
    size_t in_ring = bytes < RING ? bytes : RING;
    memcpy(whole, &ring, sizeof ring);
    memcpy(whole + MF_TRACE_RING_CELLS_AT, data, in_ring);
    memcpy(whole + FRONT, data + in_ring, bytes - in_ring);
    try_one(whole, FRONT + bytes - in_ring);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes && data[0] == 'R') {
        try_ring(data + 1, bytes - 1);
        return 0;
    }
    if (!bytes || data[0] != 'T') {
        try_one(data, bytes);
        return 0;
    }
    mf_trace_header header = {
        .version = MF_TRACE_VERSION, .cell_bytes = MF_TRACE_CELL, .cells_at = sizeof(mf_trace_header)};
    memcpy(header.magic, MF_TRACE_MAGIC, 8);
    char *whole = malloc(sizeof header + bytes);
    memcpy(whole, &header, sizeof header);
    memcpy(whole + sizeof header, data + 1, bytes - 1);
    try_one(whole, sizeof header + bytes - 1);
    free(whole);
    return 0;
}
