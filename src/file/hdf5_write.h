/*
 * hdf5_write.h: HDF5 files written without the library, and existing ones extended.
 *
 * A file is described as a tree of groups and arrays; then its whole layout is computed, and the result is an mf_image:
 * a list of pieces of memory (one block of structures, the callers' arrays, padding) that written one after the other
 * are the file. Nothing is copied and nothing allocated when it is written, so a checkpoint can be written again and
 * again from the same image while the arrays change.
 *
 * What is written is what h5py writes by default: superblock 0, symbol tables, contiguous arrays, strings in a global
 * heap. Extending a file keeps its bytes and puts a new root group behind them.
 *
 * Lack of memory while describing is remembered and reported by the layout functions.
 */
#ifndef MF_FILE_HDF5_WRITE_H
#define MF_FILE_HDF5_WRITE_H

#include "base/tensor.h"
#include "file/hdf5.h"

/* Pieces of memory that make up a file, in order. */
typedef struct mf_segment {
    const void *data;
    uint64_t bytes;
} mf_segment;

typedef struct mf_image {
    mf_arena *arena;
    mf_segment *segments;
    size_t count, capacity;
    uint64_t bytes;
    bool failed; /* out of memory */
} mf_image;

void mf_image_add(mf_image *image, const void *data, uint64_t bytes);
void mf_image_pad(mf_image *image, uint64_t bytes); /* zeros, fewer than 4096 */

typedef struct mf_h5_node mf_h5_node;

typedef struct mf_h5_writer {
    mf_arena *arena;
    mf_h5_node *root;
    const mf_hdf5 *old; /* the file being extended, or NULL */
    unsigned leaf_k, internal_k;
    uint64_t next;                /* address of the next structure */
    unsigned char *block;         /* all structures */
    uint64_t block_at;            /* address of its first byte */
    uint64_t heap_at, heap_bytes; /* global heap with the texts */
    unsigned heap_count;
    mf_h5_node *arrays, **arrays_tail; /* in order of layout */
    bool failed;
} mf_h5_writer;

void mf_h5_begin(mf_h5_writer *w, mf_arena *arena);
/* A group inside `parent` (w->root at the top), made when it is not there; `path` may have several levels. */
mf_h5_node *mf_h5_group(mf_h5_writer *w, mf_h5_node *parent, const char *path);
/* An array; `path` may have several levels. `data` may change until the image is written. */
mf_h5_node *mf_h5_array(mf_h5_writer *w, mf_h5_node *parent, const char *path, mf_dtype dtype, const mf_shape *shape,
                        const void *data);
/* Attributes: a text of any length; a list of texts, cut into name0, name1 ... when it is long, as Keras does. The
 * strings must stay. */
void mf_h5_text(mf_h5_writer *w, mf_h5_node *node, const char *name, const char *text);
void mf_h5_texts(mf_h5_writer *w, mf_h5_node *node, const char *name, const char *const *texts, size_t count);

/* The file, added to `image`. */
memfit_status mf_h5_layout(mf_h5_writer *w, mf_image *image, memfit_error *err);

/* Replaces [at, at + bytes) of an old file by other memory of the same size. */
typedef struct mf_patch {
    uint64_t at;
    const void *data;
    uint64_t bytes;
} mf_patch;

/* True when the file can be extended: superblock 0 at byte 0, addresses of 8 bytes. */
bool mf_h5_can_extend(const mf_hdf5 *file);
/* The old file with `patches` (sorted, apart from each other) and with everything described in `w` added to its root
 * group: a group or attribute of the same name is replaced. Without anything described only the patches apply. */
memfit_status mf_h5_layout_extended(mf_h5_writer *w, mf_hdf5 *old, const mf_patch *patches, size_t patch_count,
                                    mf_image *image, memfit_error *err);

#endif
