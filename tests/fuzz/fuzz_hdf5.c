/*
 * fuzz_hdf5.c: any bytes as an HDF5 file: all groups, attributes and arrays are visited and read.
 * sources: src/file/hdf5_header.c src/file/hdf5_group.c src/file/hdf5_dataset.c src/file/hdf5_chunks.c
 * sources: src/base/memory.c src/base/error.c
 */
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
        if (d.bytes > 1u << 16 || mf_hdf5_reader_open(&d, NULL, &reader, &err))
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
    mf_arena arena;
    mf_hdf5 file;
    memfit_error err;
    mf_arena_init(&arena, NULL);
    arena.limit_bytes = 64u << 20;
    if (mf_hdf5_open(&file, data, bytes, "fuzz", &err) == MEMFIT_OK)
        visit(&file, &arena, file.root, 0);
    mf_arena_destroy(&arena);
    return 0;
}
