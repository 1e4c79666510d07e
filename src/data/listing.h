/*
 * listing.h: the files of a folder of classes, in the order of keras.utils.image_dataset_from_directory before it
 * shuffles: classes are the sub-folders sorted by name (not those that begin with a dot), the files of a class those of
 * its folder and of all folders below it, sorted by folder and name. Which files count is told by their ending.
 *
 * A file takes its name and four bytes; a path is put together when it is wanted.
 */
#ifndef MF_DATA_LISTING_H
#define MF_DATA_LISTING_H

#include "base/memory.h"
#include "base/os.h"

typedef struct mf_listing_folder {
    uint32_t path;     /* place of its name, from the root */
    int64_t first;     /* file of the listing; those of the next folder follow */
    uint32_t in_class; /* UINT32_MAX: none */
    uint32_t met;      /* while listing: its turn in the walk */
} mf_listing_folder;

typedef struct mf_listing {
    const memfit_host *host;
    char *names; /* of files and folders, each ended by 0 */
    size_t name_bytes, name_room;
    uint32_t *files; /* places of their names */
    size_t count, file_room;
    mf_listing_folder *folders; /* in the order of their files */
    size_t folder_count, folder_room;
    uint32_t *classes; /* places of their names */
    size_t class_count, class_room;
    int64_t *class_first; /* class_count + 1 */
    int64_t others;       /* files with another ending */
    char other[64];       /* one of them */
} mf_listing;

/* `by_class` false: every file from the root down, no classes. NO_HOST_MEMORY, NOT_FOUND, UNSUPPORTED (too many). */
memfit_status mf_listing_make(const memfit_host *host, const char *root, bool by_class, mf_listing *listing,
                              memfit_error *err);
void mf_listing_drop(mf_listing *listing);
/* The path of a file from the root; false when it does not fit. */
bool mf_listing_path(const mf_listing *listing, int64_t file, char *path, size_t room);
uint64_t mf_listing_bytes(const mf_listing *listing);

#endif
