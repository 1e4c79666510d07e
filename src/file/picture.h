/*
 * picture.h: pictures from strangers: JPEG, PNG, BMP, WebP and the first frame of a GIF, decoded row by row.
 *
 *   file or bytes ──> mf_picture_input ──> decoder of its format ──> rows, top to bottom ──> whoever resizes them
 *                     (a 64 KiB buffer)   (memory from a room)      (channels bytes a pixel)
 *
 * No picture is held whole unless its format needs it: progressive JPEG (coefficients), interlaced PNG, interlaced GIF, WebP.
 * Every byte a decoder takes comes from its room, a block of fixed size that is emptied before each picture: decoding
 * allocates nothing, and a picture that needs more is refused by name with the bytes it needs. So a bomb (a small file
 * that claims 50,000 x 50,000 pixels) costs no more than its header.
 *
 * Values are those of tf.image.decode_image: fancy upsampling, 16 bits cut to 8, palettes to colours, alpha left out,
 * EXIF rotation not applied. One library, one file: picture_jpeg.c (libjpeg-turbo), picture_png.c (libpng), picture_webp.c
 * (libwebp); each may be missing from a build, and a picture of that kind then is UNSUPPORTED with the package's name.
 */
#ifndef MF_FILE_PICTURE_H
#define MF_FILE_PICTURE_H

#include "memfit/base.h"

typedef enum {
    MF_PICTURE_UNKNOWN,
    MF_PICTURE_JPEG,
    MF_PICTURE_PNG,
    MF_PICTURE_BMP,
    MF_PICTURE_GIF,
    MF_PICTURE_WEBP
} mf_picture_kind;

enum { MF_PICTURE_BUFFER_BYTES = 64 << 10, MF_PICTURE_MOST_SIDE = 1 << 16 };

/* A block whose parts are taken one after another and given back all at once. */
typedef struct mf_room {
    unsigned char *base;
    uint64_t bytes, used, peak;
    uint64_t refused; /* what would have sufficed for the last request that did not fit; 0: none */
} mf_room;
void *mf_room_take(mf_room *room, uint64_t bytes); /* aligned to 64, not cleared; NULL when it is full */

/* Encoded bytes: all there already (`data`), or read from a descriptor through `buffer`. */
typedef struct mf_picture_input {
    const char *name; /* for messages */
    const unsigned char *data;
    uint64_t bytes, at; /* of data; where reading goes on */
    int descriptor;     /* -1: data */
    unsigned char *buffer;
    uint64_t buffer_begin; /* place of the buffer's first byte in the file */
} mf_picture_input;
/* The next bytes: how many, and where; 0 at the end. Valid until the next call. */
uint64_t mf_picture_next(mf_picture_input *in, const unsigned char **bytes);
/* Exactly `count` bytes; false when there are not so many. */
bool mf_picture_read(mf_picture_input *in, void *out, uint64_t count);
bool mf_picture_seek(mf_picture_input *in, uint64_t at);
mf_picture_kind mf_picture_sniff(const unsigned char *data, uint64_t bytes);
const char *mf_picture_kind_name(mf_picture_kind kind);

/* Rows go here. `begin` is called once, before the first; both may refuse. */
typedef struct mf_picture_sink {
    void *ctx;
    memfit_status (*begin)(void *ctx, uint32_t width, uint32_t height, mf_room *room, memfit_error *err);
    void (*row)(void *ctx, const unsigned char *row);
} mf_picture_sink;

/* What a header tells. */
typedef struct mf_picture_head {
    mf_picture_kind kind;
    uint32_t width, height, channels;
    bool whole;          /* decoding holds all of it */
    uint64_t room_bytes; /* that decoding takes, from above */
} mf_picture_head;

typedef struct mf_picture_decoder mf_picture_decoder;
/* One for each thread. */
memfit_status mf_picture_decoder_create(const memfit_host *host, mf_picture_decoder **decoder, memfit_error *err);
void mf_picture_decoder_destroy(mf_picture_decoder *decoder);
/* A decoder that can make a picture smaller by a power of two on the way (JPEG, 2 to 8 times) may do so while both sides
 * stay at least as large as this: quicker, other values. Zero: every pixel. */
typedef struct mf_picture_size {
    uint32_t width, height;
} mf_picture_size;
/* Decodes one picture of any kind into rows of `channels` (1, 3 or 4) bytes a pixel. DAMAGED, UNSUPPORTED (a kind that
 * is not built in), OUT_OF_MEMORY (the room is too small: err->requested_bytes says what would do). */
memfit_status mf_picture_decode(mf_picture_decoder *decoder, mf_picture_input *in, uint32_t channels,
                                mf_picture_size least, mf_room *room, const mf_picture_sink *sink, memfit_error *err);
/* Reads no more than the header. */
memfit_status mf_picture_look(mf_picture_input *in, mf_picture_head *head, memfit_error *err);
/* Is a library for this kind built in? */
bool mf_picture_has(mf_picture_kind kind);

/* ---- inside src/file: one function a format ---- */
typedef struct mf_picture_job {
    mf_picture_input *in;
    uint32_t channels;
    mf_picture_size least;
    mf_room *room;
    const mf_picture_sink *sink;
} mf_picture_job;
typedef struct mf_jpeg mf_jpeg;
memfit_status mf_jpeg_create(const memfit_host *host, mf_jpeg **jpeg, memfit_error *err);
void mf_jpeg_destroy(mf_jpeg *jpeg);
memfit_status mf_jpeg_decode(mf_jpeg *jpeg, const mf_picture_job *job, memfit_error *err);
memfit_status mf_png_decode(const mf_picture_job *job, memfit_error *err);
memfit_status mf_webp_decode(const mf_picture_job *job, memfit_error *err);
memfit_status mf_bmp_decode(const mf_picture_job *job, memfit_error *err);
memfit_status mf_gif_decode(const mf_picture_job *job, memfit_error *err);
/* The message when a room was too small. */
memfit_status mf_picture_no_room(const mf_picture_job *job, memfit_error *err);
memfit_status mf_picture_cut_off(const mf_picture_job *job, memfit_error *err);
/* DAMAGED or UNSUPPORTED when there is not a picture of that size. */
memfit_status mf_picture_check_size(const mf_picture_input *in, uint64_t width, uint64_t height, memfit_error *err);

#endif
