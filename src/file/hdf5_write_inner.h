/* hdf5_write_inner.h: what laying out an HDF5 file (hdf5_write.c) and writing its structures (hdf5_emit.c) share. */
#ifndef MF_FILE_HDF5_WRITE_INNER_H
#define MF_FILE_HDF5_WRITE_INNER_H

#include "file/hdf5_write.h"

enum { MOST_TREE_LEVELS = 8, SUPERBLOCK_BYTES = 96 };

typedef struct attribute attribute;
struct attribute {
    attribute *next;
    const char *name;
    const char *text;         /* a text in the heap ... */
    const char *const *texts; /* ... or a list of fixed strings of `width` bytes */
    size_t count;
    unsigned width;
    unsigned heap_index;
    const unsigned char *raw; /* ... or a message copied from an old file, whole */
    uint64_t raw_bytes;
    unsigned raw_type, raw_flags;
};

struct mf_h5_node {
    mf_h5_node *next; /* sibling */
    const char *name;
    attribute *attributes;
    uint64_t header_at; /* also set for links to old objects */
    bool is_array, is_old;
    /* groups */
    mf_h5_node *first;
    size_t count;
    mf_h5_node **sorted;
    uint64_t *name_offsets;
    uint64_t heap_at, heap_data_bytes, symbols_at, symbol_nodes;
    unsigned levels;
    uint64_t level_at[MOST_TREE_LEVELS], level_count[MOST_TREE_LEVELS];
    /* arrays */
    mf_h5_node *next_array;
    mf_dtype dtype;
    mf_shape shape;
    const void *data;
    uint64_t data_at, data_bytes;
};

static inline uint64_t pad8(uint64_t n)
{
    return (n + 7) & ~(uint64_t)7;
}

/* Sizes follow from counts. */
uint64_t mf_h5_header_bytes(const mf_h5_node *n);
uint64_t mf_h5_tree_node_bytes(const mf_h5_writer *w);
uint64_t mf_h5_symbol_node_bytes(const mf_h5_writer *w);
/* Writes the structures of `n` and what is below it into the writer's block, at the addresses they were given. */
void mf_h5_emit(const mf_h5_writer *w, const mf_h5_node *n);
void mf_h5_emit_global_heap(const mf_h5_writer *w, uint64_t bytes);
void mf_h5_put_superblock(unsigned char *p, const mf_h5_writer *w, uint64_t end);

#endif
