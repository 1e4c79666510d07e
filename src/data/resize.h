/*
 * resize.h: rows of a picture in, a sample of the asked size out: tf.image.resize(method="bilinear"), which is what
 * keras.utils.image_dataset_from_directory does by default (half-pixel centres, no antialiasing), to the bit.
 *
 * A row of the result needs two rows of the picture. Each of these is stretched or squeezed sideways once, and the two
 * are mixed: the picture itself is never held. Rows between those that are needed are not looked at.
 */
#ifndef MF_DATA_RESIZE_H
#define MF_DATA_RESIZE_H

#include "base/tensor.h"
#include "file/picture.h"

typedef struct mf_resize {
    uint32_t height, width, channels; /* of the result */
    mf_dtype dtype;                   /* MF_F32, or MF_U8: rounded */
    void *out;
    /* of the picture that is under way */
    uint32_t from_height, from_width, next_in, next_out;
    uint32_t *low, *high; /* for each column: the elements at its left and right */
    float *share;         /* of the right one, for each element of the result's row */
    uint32_t inner,
        outer; /* three channels: columns from inner to before outer have their right pixel beside the left */
    const struct mf_resize_kernels *fast;
    float *rows[2]; /* sideways done: of picture rows held[0] and held[1] */
    int64_t held[2];
} mf_resize;

/* A sink that fills resize->out; the struct's first fields are set by the caller. */
mf_picture_sink mf_resize_sink(mf_resize *resize);
/* Taken from the room for each picture. */
uint64_t mf_resize_room_bytes(uint32_t width, uint32_t channels);
/* Whether all of the result was written: a picture that ended early leaves some of it as it was. */
bool mf_resize_is_whole(const mf_resize *resize);

/* Faster ways of the same operations in the same order, so to the same bits; NULL where this processor has none. */
typedef struct mf_resize_kernels {
    /* Columns of three channels from *x on, as many as it does at a time, to before `end`, of rows whose 8 bytes from each
     * low on may be read. */
    void (*sideways)(const unsigned char *row, const uint32_t *low, const float *share, uint32_t *x, uint32_t end,
                     float *out);
    /* Two such rows mixed, to floats; to rounded bytes. */
    void (*mix)(const float *top, const float *bottom, float share, size_t n, float *out);
    void (*round)(const float *top, const float *bottom, float share, size_t n, unsigned char *out);
} mf_resize_kernels;
const mf_resize_kernels *mf_resize_avx2(void);

#endif
