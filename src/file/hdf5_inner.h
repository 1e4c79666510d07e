/* hdf5_inner.h: what the files of the HDF5 reader share. */
#ifndef MF_FILE_HDF5_INNER_H
#define MF_FILE_HDF5_INNER_H

#include "base/error.h"
#include "base/bytes.h"
#include "file/hdf5.h"

#include <inttypes.h>
#include <string.h>

#define MF_HDF5_UNDEFINED UINT64_MAX

/* A failure at an address, counted from the start of the image as the user would look it up. */
#define mf_hdf5_damaged(file, at, err, ...) mf_hdf5_fail((file), (at), MEMFIT_DAMAGED, (err), __VA_ARGS__)
memfit_status mf_hdf5_fail(const mf_hdf5 *file, uint64_t at, memfit_status status, memfit_error *err,
                           const char *format, ...) MEMFIT_PRINTF(5, 6);

/* True when [at, at + bytes) lies in the file. */
static inline bool mf_hdf5_inside(const mf_hdf5 *file, uint64_t at, uint64_t bytes)
{
    return at <= file->bytes && bytes <= file->bytes - at;
}

/* Takes n steps of the budget. */
memfit_status mf_hdf5_step(mf_hdf5 *file, uint64_t n, memfit_error *err);

/* A run of bytes read from the front. Reading past the end gives zeros and sets `bad`. */
typedef struct mf_run {
    const unsigned char *p, *end;
    bool bad;
} mf_run;

static inline uint64_t mf_run_take(mf_run *run, unsigned n)
{
    if (run->bad || (uint64_t)(run->end - run->p) < n) {
        run->bad = true;
        return 0;
    }
    uint64_t v = mf_le_n(run->p, n);
    run->p += n;
    return v;
}

static inline void mf_run_skip(mf_run *run, uint64_t n)
{
    if (run->bad || (uint64_t)(run->end - run->p) < n)
        run->bad = true;
    else
        run->p += n;
}

/* An address or a length; all ones in the file's width is MF_HDF5_UNDEFINED. */
uint64_t mf_run_address(mf_run *run, const mf_hdf5 *file);
uint64_t mf_run_length(mf_run *run, const mf_hdf5 *file);

/* ---- object headers ---- */
enum {
    MF_HDF5_MSG_DATASPACE = 0x01,
    MF_HDF5_MSG_LINK_INFO = 0x02,
    MF_HDF5_MSG_DATATYPE = 0x03,
    MF_HDF5_MSG_FILL_OLD = 0x04,
    MF_HDF5_MSG_FILL = 0x05,
    MF_HDF5_MSG_LINK = 0x06,
    MF_HDF5_MSG_EXTERNAL = 0x07,
    MF_HDF5_MSG_LAYOUT = 0x08,
    MF_HDF5_MSG_FILTERS = 0x0B,
    MF_HDF5_MSG_ATTRIBUTE = 0x0C,
    MF_HDF5_MSG_CONTINUATION = 0x10,
    MF_HDF5_MSG_SYMBOL_TABLE = 0x11,
    MF_HDF5_MSG_ATTRIBUTE_INFO = 0x15
};

typedef struct mf_hdf5_message {
    unsigned type;
    bool shared; /* the body is a reference to another object */
    uint64_t at; /* address of the body */
    mf_run body;
} mf_hdf5_message;

enum { MF_HDF5_MOST_PIECES = 64 };
typedef struct mf_hdf5_walk {
    mf_hdf5 *file;
    uint64_t address; /* of the header */
    unsigned version;
    unsigned prefix_bytes; /* of a message */
    uint64_t at, end;      /* the piece being read */
    struct {
        uint64_t at, bytes;
    } pieces[MF_HDF5_MOST_PIECES]; /* continuations not read yet: a ring would do, but headers are small */
    unsigned piece, pieces_count;
} mf_hdf5_walk;

memfit_status mf_hdf5_walk_begin(mf_hdf5_walk *walk, mf_hdf5 *file, uint64_t address, memfit_error *err);
/* *more is false after the last message. Continuations are followed inside. */
memfit_status mf_hdf5_walk_next(mf_hdf5_walk *walk, mf_hdf5_message *message, bool *more, memfit_error *err);

/* Reads a vlen string's reference (16 bytes for 8-byte addresses) into the global heap: a pointer into the image. */
memfit_status mf_hdf5_heap_text(mf_hdf5 *file, const unsigned char *reference, const char **text, uint64_t *bytes,
                                memfit_error *err);

#endif
