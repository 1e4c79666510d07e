/* keras_save_inner.h: a file to save while it is laid out: what keras_save.c and keras_save_weights.c share. */
#ifndef MF_MODEL_KERAS_SAVE_INNER_H
#define MF_MODEL_KERAS_SAVE_INNER_H

#include "file/hdf5_write.h"
#include "model/keras/keras_inner.h"
#include "model/keras/keras_save.h"

typedef struct member {
    mf_zip_entry entry;
    size_t first, end; /* segments */
    bool changes;      /* the check sum is computed at each write */
    unsigned char *header;
} member;

struct mf_saver {
    mf_arena arena;
    mf_image image;
    bool is_zip;
    member *members;
    mf_zip_entry *entries; /* as the directory wants them */
    size_t member_count;
    uint64_t directory_at;
    unsigned char *directory;
    unsigned char *spooled; /* bytes of the old file that are too many to hold in memory */
    uint64_t spooled_bytes;
    /* of the options */
    memfit_status (*fetch)(void *ctx, const void *from, void *to, uint64_t bytes, memfit_error *err);
    void *fetch_ctx;
    const void *far_from;
    uint64_t far_bytes;
    unsigned char *chunk; /* what was fetched last */
};

typedef struct saving {
    mf_saver *saver;
    mf_arena *arena;
    const mf_model *model;
    const mf_save_options *options;
    memfit_error *err;
    mf_patch *patches;
    size_t patch_count;
    mf_h5_writer writer;
} saving;

#define no_memory(s) mf_fail((s)->err, MEMFIT_NO_HOST_MEMORY, "no memory to lay out the file to save")

/* Puts all patches together. *fits is false when something cannot be replaced where it lies. */
memfit_status mf_save_patches(saving *s, bool *fits);

memfit_status mf_save_extended(saving *s);

memfit_status mf_save_fresh(saving *s);

#endif
