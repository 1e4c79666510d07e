/*
 * zip.h: ZIP archives, as far as Keras files and .npz need them.
 *
 * Reading works on bytes in memory (a mapping): the member table goes to the caller's arena, stored members are used
 * in place, deflated ones are inflated into the arena. Zip64 is read. Encryption and other methods are refused by
 * name; sizes that no honest file has (bombs) are refused before any memory is taken.
 *
 * Writing is stored members only, streamed: sizes and check sums are known before the first byte is written, so
 * nothing is patched afterwards and nothing is allocated while writing.
 */
#ifndef MF_FILE_ZIP_H
#define MF_FILE_ZIP_H

#include "base/memory.h"

/* Check sums of up to so many bytes are computed while somebody waits: about a second. */
#define MF_VERIFY_QUICK_BYTES (UINT64_C(1) << 30)

typedef struct mf_zip_member {
    const char *name;        /* as stored, zero-terminated */
    unsigned method;         /* 0 stored, 8 deflated */
    uint32_t crc;            /* of the uncompressed bytes */
    uint64_t packed_bytes;   /* in the archive */
    uint64_t bytes;          /* uncompressed */
    uint64_t data_at;        /* offset of its first byte in the archive */
    uint64_t local_crc_at;   /* where the check sum stands: in the local header (0: in a data descriptor, not there) */
    uint64_t central_crc_at; /* and in the directory */
} mf_zip_member;

typedef struct mf_zip {
    const unsigned char *data;
    uint64_t bytes;
    mf_zip_member *members; /* in the directory's order */
    size_t count;
} mf_zip;

/* True when the bytes begin like an archive (also an empty or a spanned one). */
bool mf_zip_sniff(const unsigned char *data, uint64_t bytes);

/* DAMAGED with the offset for anything that contradicts itself, and for two members of one name; UNSUPPORTED for encryption, several disks. `data`
 * must outlive the result. */
memfit_status mf_zip_open(mf_zip *zip, mf_arena *arena, const unsigned char *data, uint64_t bytes, memfit_error *err);

/* The member of that name, or NULL. */
const mf_zip_member *mf_zip_find(const mf_zip *zip, const char *name);

/* The member's bytes: in place when stored, else inflated into the arena. With `verify` the check sum is computed,
 * which costs a pass over a stored member (an inflated one is always verified). */
memfit_status mf_zip_read(const mf_zip *zip, const mf_zip_member *member, mf_arena *arena, bool verify,
                          const unsigned char **data, memfit_error *err);

/* The same for a packed member into `out`, which has room for member->bytes; host (may be NULL) serves zlib. What
 * mf_zip_unpackable says is said first: before anything is taken for the bytes a member claims to have. */
memfit_status mf_zip_unpackable(const mf_zip_member *member, memfit_error *err);
memfit_status mf_zip_unpack(const mf_zip *zip, const mf_zip_member *member, const memfit_host *host, unsigned char *out,
                            memfit_error *err);

/* ---- writing ---------------------------------------------------------------------------------------------- */

/* One member of an archive to be written. Fill name, bytes, packed_bytes and method (of an entry that is stored the two
 * sizes are equal), call mf_zip_layout, then write for each member its header at header_at and its bytes at data_at,
 * after the last one the directory. Names must stay. */
typedef struct mf_zip_entry {
    const char *name;
    uint64_t bytes, packed_bytes;
    unsigned method; /* 0 stored, 8 deflated (bytes copied from another archive) */
    uint32_t crc;    /* needed when the headers are written, not for the layout */
    uint64_t header_at;
    uint64_t data_at;
} mf_zip_entry;

/* Sets header_at and data_at, and returns the archive's whole size. The data of each entry is aligned to
 * `alignment` (a power of two up to 4096, or 0) by an extra field, so that it can be mapped. *directory_at is where
 * the directory starts. */
uint64_t mf_zip_layout(mf_zip_entry *entries, size_t count, uint64_t alignment, uint64_t *directory_at);

/* The local header of an entry, data_at - header_at bytes. */
void mf_zip_local_header(const mf_zip_entry *entry, unsigned char *out);
/* The directory with its end records: (archive size - directory_at) bytes. */
void mf_zip_directory(const mf_zip_entry *entries, size_t count, uint64_t directory_at, unsigned char *out);

/* Check sum of a piece of bytes, continued from `crc` (0 at the start). */
uint32_t mf_crc32(uint32_t crc, const void *data, uint64_t bytes);

#endif
