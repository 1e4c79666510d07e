/*
 * hdf5.h: HDF5 files, as far as Keras models and h5py's data files need them.
 *
 * Reader: works on an image in memory (a mapping, or a member of a .keras archive, which is stored uncompressed), is
 * bounds-checked everywhere and takes no memory but what the caller's arena or host gives (large chunks are unpacked in
 * temporary files). Read: superblocks 0 to 3, object headers of both versions, groups as symbol tables or as compact
 * links, attributes with numbers, fixed and variable-length strings, contiguous, compact and chunked (version 1 B-tree)
 * storage with the deflate, shuffle, fletcher32 and LZF filters, integers and floats (big-endian ones where the caller
 * turns them round), booleans.
 * Everything else is refused with UNSUPPORTED and its name; links out of the file (soft, external, virtual datasets)
 * are refused always.
 *
 * A file can be made to lead its reader in circles: each open file has a budget of steps in proportion to its size,
 * and running out of it is DAMAGED.
 */
#ifndef MF_FILE_HDF5_H
#define MF_FILE_HDF5_H

#include "base/memory.h"

enum { MF_HDF5_MOST_RANK = 8, MF_HDF5_MOST_FILTERS = 8 };

typedef struct mf_hdf5 {
    const unsigned char *data; /* from the superblock's base address on */
    uint64_t bytes;
    uint64_t base;    /* of `data` in the image given */
    const char *name; /* for messages */
    unsigned offset_bytes, length_bytes;
    uint64_t root;     /* address of the root group's header */
    uint64_t steps;    /* left of the budget */
    bool either_order; /* big-endian elements are described (`swapped`), not refused: for who turns them round */
} mf_hdf5;

bool mf_hdf5_sniff(const unsigned char *data, uint64_t bytes);

/* `name` is put into messages; it and `data` must outlive the file. */
memfit_status mf_hdf5_open(mf_hdf5 *file, const unsigned char *data, uint64_t bytes, const char *name,
                           memfit_error *err);

/* ---- groups ----------------------------------------------------------------------------------------------- */

typedef struct mf_hdf5_link {
    const char *name; /* zero-terminated */
    uint64_t address; /* of the object's header */
} mf_hdf5_link;

typedef struct mf_hdf5_group {
    mf_hdf5_link *links;
    size_t count;
    bool sorted;
} mf_hdf5_group;

/* All links of the group whose header is at `address`. An object that is no group gives DAMAGED. */
memfit_status mf_hdf5_group_open(mf_hdf5 *file, mf_arena *arena, uint64_t address, mf_hdf5_group *group,
                                 memfit_error *err);
/* The link's object, or 0. */
uint64_t mf_hdf5_group_find(const mf_hdf5_group *group, const char *name);

/* Follows a path of names between slashes, from the group at `from`. NOT_FOUND names the missing part. */
memfit_status mf_hdf5_find(mf_hdf5 *file, mf_arena *arena, uint64_t from, const char *path, uint64_t *address,
                           memfit_error *err);

/* ---- datasets --------------------------------------------------------------------------------------------- */

typedef enum mf_hdf5_kind {
    MF_HDF5_FLOAT, /* IEEE, 2, 4 or 8 bytes */
    MF_HDF5_BFLOAT,
    MF_HDF5_INT, /* 1 to 8 bytes, two's complement */
    MF_HDF5_UINT,
    MF_HDF5_BOOL,        /* an enumeration over one byte */
    MF_HDF5_STRING,      /* fixed length, element_bytes each */
    MF_HDF5_VLEN_STRING, /* element_bytes in place, text in a heap */
    MF_HDF5_RAW          /* opaque or bit field, element_bytes each */
} mf_hdf5_kind;

typedef enum mf_hdf5_storage { MF_HDF5_IN_PLACE, MF_HDF5_CHUNKED, MF_HDF5_NO_DATA } mf_hdf5_storage;

typedef struct mf_hdf5_filter {
    unsigned id;    /* 1 deflate, 2 shuffle, 3 fletcher32, 32000 lzf */
    uint32_t value; /* shuffle: bytes of an element */
} mf_hdf5_filter;

typedef struct mf_hdf5_dataset {
    mf_hdf5 *file;
    uint64_t address;
    mf_hdf5_kind kind;
    unsigned element_bytes;
    bool swapped; /* big-endian: only where the file's either_order is set */
    unsigned rank;
    uint64_t shape[MF_HDF5_MOST_RANK];
    uint64_t elements;
    uint64_t bytes; /* elements * element_bytes */
    mf_hdf5_storage storage;
    const unsigned char *data; /* MF_HDF5_IN_PLACE */
    uint64_t chunk_index;      /* MF_HDF5_CHUNKED: address of the B-tree; ~0 when no chunk was written */
    uint32_t chunk[MF_HDF5_MOST_RANK];
    uint64_t chunk_bytes;
    unsigned filters;
    mf_hdf5_filter filter[MF_HDF5_MOST_FILTERS]; /* in the order applied when writing */
    unsigned char fill[8];                       /* one element, where the file names it; else zero */
} mf_hdf5_dataset;

/* True when the object at `address` has a data layout. */
memfit_status mf_hdf5_is_dataset(mf_hdf5 *file, uint64_t address, bool *is_dataset, memfit_error *err);
memfit_status mf_hdf5_dataset_open(mf_hdf5 *file, uint64_t address, mf_hdf5_dataset *dataset, memfit_error *err);

/* Reads rows (along the first axis; a scalar is one row) of a dataset however it is stored. Everything it needs is
 * taken at open: reading allocates nothing. Chunks above 1 MiB are unpacked in temporary files. One chunk, decoded, is kept, so that reading in order decodes each chunk
 * once (and once for each row of chunks across). */
typedef struct mf_hdf5_reader mf_hdf5_reader;
memfit_status mf_hdf5_reader_open(const mf_hdf5_dataset *dataset, const memfit_host *host, mf_hdf5_reader **reader,
                                  memfit_error *err);
memfit_status mf_hdf5_reader_rows(mf_hdf5_reader *reader, uint64_t first, uint64_t count, void *out, memfit_error *err);
uint64_t mf_hdf5_reader_bytes(const mf_hdf5_reader *reader); /* host memory it holds */
void mf_hdf5_reader_close(mf_hdf5_reader *reader);

/* The text of one element of a data set of strings, not ended by 0. */
memfit_status mf_hdf5_text(mf_hdf5 *file, const mf_hdf5_dataset *dataset, const unsigned char *element,
                           const char **text, uint64_t *bytes, memfit_error *err);

/* ---- attributes ------------------------------------------------------------------------------------------- */

/* NOT_FOUND when the object has none of that name. */
memfit_status mf_hdf5_attribute_open(mf_hdf5 *file, uint64_t address, const char *name, mf_hdf5_dataset *attribute,
                                     memfit_error *err);
/* One string (a scalar, or an array of one). *text is a copy in the arena, zero-terminated. */
memfit_status mf_hdf5_attribute_text(mf_hdf5 *file, mf_arena *arena, uint64_t address, const char *name,
                                     const char **text, memfit_error *err);
/* A list of strings. An empty list may be stored with any type. */
memfit_status mf_hdf5_attribute_texts(mf_hdf5 *file, mf_arena *arena, uint64_t address, const char *name,
                                      const char *const **texts, size_t *count, memfit_error *err);

#endif
