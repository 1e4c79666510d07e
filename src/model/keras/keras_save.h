/*
 * keras_save.h: models written back, and checkpoints.
 *
 * A .keras file keeps everything it came with: other members are copied, arrays are replaced where they lie, an
 * optimizer's state that is not in the file yet is put behind. A model that came without weights gets a new weights
 * file. A model that came as HDF5 goes back as HDF5, whatever its name. Real Keras loads the result, with weights,
 * optimizer state and iteration count.
 *
 * A saver is prepared once: it knows every byte's place and holds pointers to the arrays. Writing it allocates nothing
 * and may be repeated with new contents in the same arrays, so a training loop can write checkpoints between steps.
 */
#ifndef MF_MODEL_KERAS_SAVE_H
#define MF_MODEL_KERAS_SAVE_H

#include "model/model.h"

typedef struct mf_save_array {
    const char *layer; /* "conv2d"; "body/conv2d" inside the nested model "body"; unused for the optimizer */
    const char *path;  /* "vars/0", "cell/vars/1"; unused for the optimizer */
    mf_dtype dtype;
    mf_shape shape;
    const void *data; /* read whenever the file is written; by `fetch` where it lies in a device */
} mf_save_array;

typedef struct mf_save_options {
    const mf_save_array *weights; /* layers and arrays not named here keep their stored values */
    uint32_t weight_count;
    const mf_save_array
        *optimizer; /* in Keras's order: iteration, learning rate, slots; count 0: what is stored stays */
    uint32_t optimizer_count;
    const float *loss_scale;    /* mixed_float16: of the loss-scaling optimizer, and steps since it last changed; */
    const int64_t *scale_steps; /* NULL: as stored, else as it starts */
    const mf_json *compile;     /* replaces the compile settings; NULL: as they are */
    const char *extra_name;     /* one more member of a .keras, array of an .h5 (a checkpoint's state); NULL: none */
    const void *extra;          /* NULL: a member of that name is left out */
    uint64_t extra_bytes;
    /* Arrays from `far_from` on, `far_bytes` of addresses, are a device's, which the host cannot follow: they come by
     * `fetch`, MF_SAVE_CHUNK_BYTES at most at a time. NULL: there are none. */
    memfit_status (*fetch)(void *ctx, const void *from, void *to, uint64_t bytes, memfit_error *err);
    void *fetch_ctx;
    const void *far_from;
    uint64_t far_bytes;
} mf_save_options;

enum { MF_SAVE_CHUNK_BYTES = 256 << 10 };

typedef struct mf_saver mf_saver;

/* INVALID names an array that has no layer, or another type or shape than the stored one. The model, the options'
 * arrays and the extra bytes must outlive the saver. */
memfit_status mf_saver_create(const memfit_host *host, const mf_model *model, const mf_save_options *options,
                              mf_saver **saver, memfit_error *err);
/* Temporary file, fsync, rename: the file is there whole or not at all. Allocates nothing. */
memfit_status mf_saver_write(mf_saver *saver, const char *path, memfit_error *err);
uint64_t mf_saver_file_bytes(const mf_saver *saver);
uint64_t mf_saver_bytes(const mf_saver *saver); /* host memory it holds */
void mf_saver_destroy(mf_saver *saver);

/* All in one. */
memfit_status mf_model_save(const memfit_host *host, const mf_model *model, const mf_save_options *options,
                            const char *path, memfit_error *err);

/* The extra member of a checkpoint, checked; NOT_FOUND when the model's file has none. It lives as long as the model.
 */
memfit_status mf_model_extra(mf_model *model, const char *name, const void **data, uint64_t *bytes, memfit_error *err);

#endif
