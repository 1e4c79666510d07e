/*
 * picture_webp.c: WebP by libwebp, the only file that knows it.
 *
 * The library calls malloc, calloc and free by name and cannot be given others. So the build links a copy of its archive
 * in which these three names are replaced (tools/private_webp) by the functions below: they take from the room of the
 * picture that this thread decodes, which is emptied before the next one. Nothing of the library reaches the heap.
 * A room that is full ends the decoding by a jump: what the library does when memory is refused is not well tried (1.2.4
 * crashes while giving back the tables of an alpha plane), and there is nothing to give back.
 *
 * A WebP picture is decoded whole: the library needs all bytes of the file, and lossless ones all pixels. Values are
 * those of tf.io.decode_webp: fancy upsampling, alpha left out unless four channels are asked for, EXIF not applied.
 */
#include "file/picture.h"

#include "base/error.h"

#ifdef MF_HAVE_WEBP

#include <setjmp.h>
#include <string.h>

#include <webp/decode.h>

/* The picture under way. The library's calls have no place for a context, so it is the thread's. */
typedef struct picture {
    mf_room *room;
    jmp_buf full;
} picture;
static _Thread_local picture *now;

void *mf_webp_malloc(size_t bytes);
void *mf_webp_calloc(size_t count, size_t bytes);
void mf_webp_free(void *p);

void *mf_webp_malloc(size_t bytes)
{
    void *p = mf_room_take(now->room, bytes);
    if (!p)
        longjmp(now->full, 1);
    return p;
}

void *mf_webp_calloc(size_t count, size_t bytes)
{
    const size_t all = bytes && count > SIZE_MAX / bytes ? SIZE_MAX : count * bytes;
    return memset(mf_webp_malloc(all), 0, all);
}

void mf_webp_free(void *p)
{
    (void)p; /* the room is emptied before the next picture */
}

/* All bytes of the file: those in memory already, or read into the room. */
static memfit_status all_bytes(const mf_picture_job *job, const uint8_t **data, size_t *bytes, memfit_error *err)
{
    unsigned char head[12];
    mf_picture_input *in = job->in;
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, head, sizeof head))
        return mf_picture_cut_off(job, err);
    const uint64_t size =
        8 + ((uint64_t)head[4] | (uint64_t)head[5] << 8 | (uint64_t)head[6] << 16 | (uint64_t)head[7] << 24);
    mf_picture_seek(in, 0);
    *bytes = size;
    if (in->descriptor < 0) {
        *data = in->data;
        if (in->bytes < size) {
            in->at = in->bytes;
            return mf_picture_cut_off(job, err);
        }
        return MEMFIT_OK;
    }
    unsigned char *copy = mf_room_take(job->room, size);
    if (!copy)
        return mf_picture_no_room(job, err);
    if (!mf_picture_read(in, copy, size))
        return mf_picture_cut_off(job, err);
    *data = copy;
    return MEMFIT_OK;
}

static memfit_status not_decoded(const mf_picture_job *job, VP8StatusCode code, memfit_error *err)
{
    return mf_fail(err, code == VP8_STATUS_UNSUPPORTED_FEATURE ? MEMFIT_UNSUPPORTED : MEMFIT_DAMAGED,
                   "%s: this WebP %s", job->in->name,
                   code == VP8_STATUS_NOT_ENOUGH_DATA       ? "ends before its last pixel"
                   : code == VP8_STATUS_UNSUPPORTED_FEATURE ? "uses something libwebp does not know"
                                                            : "is damaged");
}

static memfit_status decode(const mf_picture_job *job, memfit_error *err)
{
    WebPDecoderConfig config;
    const uint8_t *data = NULL;
    size_t bytes = 0;
    memfit_status status = all_bytes(job, &data, &bytes, err);
    if (status != MEMFIT_OK)
        return status;
    if (!WebPInitDecoderConfig(&config))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: this libwebp is another one than memfit was built with",
                       job->in->name);
    VP8StatusCode code = WebPGetFeatures(data, bytes, &config.input);
    if (code != VP8_STATUS_OK)
        return not_decoded(job, code, err);
    if (config.input.has_animation)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s is an animation, which is not read\nsave its first picture alone",
                       job->in->name);
    const uint32_t width = (uint32_t)config.input.width, height = (uint32_t)config.input.height;
    const uint32_t channels = job->channels == 4 ? 4 : 3;
    status = mf_picture_check_size(job->in, width, height, err);
    if (status == MEMFIT_OK)
        status = job->sink->begin(job->sink->ctx, width, height, job->room, err);
    if (status != MEMFIT_OK)
        return status;
    const size_t stride = (size_t)width * channels;
    unsigned char *pixels = mf_room_take(job->room, stride * height);
    if (!pixels)
        return mf_picture_no_room(job, err);
    config.output.colorspace = channels == 4 ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = (WebPRGBABuffer){pixels, (int)stride, stride * height};
    code = WebPDecode(data, bytes, &config);
    if (code != VP8_STATUS_OK)
        return not_decoded(job, code, err);
    for (uint32_t y = 0; y < height; y++) {
        unsigned char *row = pixels + stride * y;
        for (uint32_t x = 0; job->channels == 1 && x < width; x++)
            row[x] = (unsigned char)((row[3 * x] * 299 + row[3 * x + 1] * 587 + row[3 * x + 2] * 114 + 500) / 1000);
        job->sink->row(job->sink->ctx, row);
    }
    return MEMFIT_OK;
}

memfit_status mf_webp_decode(const mf_picture_job *job, memfit_error *err)
{
    picture p = {.room = job->room};
    now = &p;
    if (setjmp(p.full))
        return mf_picture_no_room(job, err);
    return decode(job, err);
}

#else

/* Never called: mf_picture_has says no. */
memfit_status mf_webp_decode(const mf_picture_job *job, memfit_error *err)
{
    (void)job;
    return mf_fail(err, MEMFIT_UNSUPPORTED, "built without libwebp");
}

#endif
