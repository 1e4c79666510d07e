/*
 * source.h: where samples come from. A source is a set of named arrays whose first axis counts samples. However a file
 * stores them, after opening each array is one run of bytes that can be read in any order:
 *
 *   .npy, .npz (stored), .h5 (contiguous)   the file itself, mapped: nothing is copied, nothing held
 *   .npz (deflated), .h5 (chunks), .csv     unpacked once into an unlinked temporary file, which is mapped
 *   synthetic[:N]                           made on demand from a seed, never stored
 *
 * So a data set larger than memory trains in constant memory: its pages are the kernel's, shared and reclaimable, and
 * are not part of the process's own. Samples keep the type they have in the file.
 */
#ifndef MF_DATA_SOURCE_H
#define MF_DATA_SOURCE_H

#include "base/log.h"
#include "base/memory.h"
#include "base/os.h"
#include "base/tensor.h"

typedef struct mf_array {
    const char *name; /* "x", "y", or as the file names it */
    mf_dtype dtype;
    mf_shape shape;            /* dim[0] = samples */
    uint64_t sample_bytes;     /* of one sample */
    const unsigned char *data; /* NULL: made by a generator */
    uint32_t generator;        /* synthetic: 0 uniform in [0,1), 1 whole numbers below `classes`, 2 one-hot */
    int64_t classes;
    /* Not NULL: what is wrong with it, told with this status when somebody wants to use it. A file may hold more than a
     * model needs: names of classes, a second set of another length. */
    const char *unusable, *hint;
    memfit_status why;
} mf_array;

typedef struct mf_source mf_source;

enum { MF_SOURCE_MOST_MAPPINGS = 64 };

struct mf_source {
    mf_arena arena;
    const char *path;
    mf_array *arrays;
    uint32_t count;
    size_t capacity;
    int64_t samples;
    uint64_t seed; /* synthetic */
    mf_mapping mappings[MF_SOURCE_MOST_MAPPINGS];
    uint32_t mapping_count;
    uint64_t spooled_bytes; /* in temporary files */
    int descriptor;         /* of the first mapping's file, which may become shorter while it is read; -1: none */
};

/* `log` (may be NULL) is told once what was unpacked and which types waste memory. NOT_FOUND, DAMAGED and UNSUPPORTED
 * name the file, the array and the place. `inputs` is for tables: how many of the columns are inputs, the rest being
 * targets (0: all but one). "synthetic" sources are made by mf_source_synthetic. */
memfit_status mf_source_open_table(const memfit_host *host, const char *path, int64_t inputs, const mf_log *log,
                                   mf_source **source, memfit_error *err);
memfit_status mf_source_open(const memfit_host *host, const char *path, const mf_log *log, mf_source **source,
                             memfit_error *err); /* inputs 0 */
bool mf_source_is_table(const char *path);
void mf_source_close(mf_source *source);
/* An empty synthetic source of `samples`; arrays are added with mf_source_add_generated. */
memfit_status mf_source_synthetic(const memfit_host *host, int64_t samples, uint64_t seed, mf_source **source,
                                  memfit_error *err);
memfit_status mf_source_add_generated(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                                      uint32_t generator, int64_t classes, memfit_error *err);
/* NULL when there is none; what it returns may be unusable. */
const mf_array *mf_source_find(const mf_source *source, const char *name);
/* Why an array cannot be used; returns its status. */
memfit_status mf_source_refuse(const mf_array *array, memfit_error *err);
/* Sample `index` of the array into out (sample_bytes), in the array's own type. */
void mf_source_read(const mf_source *source, const mf_array *array, int64_t index, void *out);
/* DAMAGED when the file has become shorter than it was when it was opened: its arrays must not be read any more. One
 * system call, to be made before each piece is read. */
memfit_status mf_source_still_whole(const mf_source *source, memfit_error *err);
/* Every invariant: counts agree, bytes inside the mappings. */
memfit_status mf_source_check(const mf_source *source, memfit_error *err);

/* ---- inside src/data ---- */
/* Adds an array over bytes already mapped. */
memfit_status mf_source_add(mf_source *source, const char *name, mf_dtype dtype, const mf_shape *shape,
                            const unsigned char *data, uint64_t bytes, memfit_error *err);
/* An unlinked temporary file of `bytes`, mapped for writing; becomes one of the source's mappings. */
memfit_status mf_source_spool(mf_source *source, uint64_t bytes, unsigned char **data, memfit_error *err);
/* Adds the name of an array that cannot be used, with the reason. */
memfit_status mf_source_add_unusable(mf_source *source, const char *name, const memfit_error *why, memfit_error *err);
memfit_status mf_source_npy(mf_source *source, const char *name, const unsigned char *data, uint64_t bytes,
                            const mf_log *log, memfit_error *err);
memfit_status mf_source_npz(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                            memfit_error *err);
memfit_status mf_source_h5(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                           memfit_error *err);
/* `inputs`: how many of the columns are inputs; 0: all but one. */
memfit_status mf_source_csv(mf_source *source, const unsigned char *data, uint64_t bytes, int64_t inputs,
                            const mf_log *log, memfit_error *err);

#endif
