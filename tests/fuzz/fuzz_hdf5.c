/* fuzz_hdf5.c: any bytes as an HDF5 file: all groups, attributes and arrays are visited and read, once within a limit of
 * host memory as runs have one, once without. */
#include "file/hdf5.h"

#include <stdlib.h>

static void visit(mf_hdf5 *file, mf_arena *arena, uint64_t address, unsigned depth)
{
    mf_hdf5_group group;
    memfit_error err;
    const char *const *list;
    size_t count;
    mf_hdf5_attribute_texts(file, arena, address, "names", &list, &count, &err);
    if (depth > 3 || mf_hdf5_group_open(file, arena, address, &group, &err))
        return;
    for (size_t i = 0; i < group.count && i < 64; i++) {
        mf_hdf5_dataset d;
        mf_hdf5_reader *reader;
        if (mf_hdf5_dataset_open(file, group.links[i].address, &d, &err)) {
            visit(file, arena, group.links[i].address, depth + 1);
            continue;
        }
        if (d.bytes > 1u << 16 || mf_hdf5_reader_open(&d, arena->host, &reader, &err))
            continue;
        void *out = malloc(d.bytes + 1);
        uint64_t rows = d.rank ? d.shape[0] : 1;
        mf_hdf5_reader_rows(reader, 0, rows, out, &err);
        mf_hdf5_reader_rows(reader, rows / 2, rows - rows / 2, out, &err);
        free(out);
        mf_hdf5_reader_close(reader);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    for (int limited = 0; limited < 2; limited++) {
        mf_arena arena;
        mf_hdf5 file;
        memfit_error err;
        mf_limit_host host;
        mf_limit_host_init(&host, NULL, limited ? 32u << 10 : UINT64_MAX);
        mf_arena_init(&arena, &host.host);
        if (mf_hdf5_open(&file, data, bytes, "fuzz", &err) == MEMFIT_OK)
            visit(&file, &arena, file.root, 0);
        mf_arena_destroy(&arena);
        /* What is taken is in proportion to the file: its structures are read in a bounded number of steps. */
        if (host.live_bytes || host.peak_bytes > (16u << 20) + 4096 * (uint64_t)bytes)
            abort();
    }
    return 0;
}
