/*
 * picture_png.c: PNG by libpng, the only file that knows it. The library's memory (its structures, zlib's window) comes
 * from the job's room; chunks that say nothing of pixels are skipped unread, so that none can fill it.
 *
 * Values are those of TensorFlow's decoder: 16 bits are cut to 8, palettes and few bits expanded, alpha and transparent
 * colours left out unless four channels are asked for, no gamma.
 */
#include "file/picture.h"

#include "base/error.h"

#ifdef MF_HAVE_PNG

#include <png.h>
#include <string.h>

typedef struct reader {
    const mf_picture_job *job;
    memfit_error *err;
    memfit_status status;
} reader;

static void *take(png_structp png, png_alloc_size_t bytes)
{
    return mf_room_take(((reader *)png_get_mem_ptr(png))->job->room, bytes);
}

static void give(png_structp png, png_voidp p)
{
    (void)png;
    (void)p;
}

static _Noreturn void on_error(png_structp png, png_const_charp text)
{
    reader *r = png_get_error_ptr(png);
    if (r->status == MEMFIT_OK)
        r->status = r->job->room->refused ? mf_picture_no_room(r->job, r->err)
                                          : mf_fail(r->err, MEMFIT_DAMAGED, "%s: %s", r->job->in->name, text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void on_read(png_structp png, png_bytep out, size_t count)
{
    reader *r = png_get_io_ptr(png);
    if (!mf_picture_read(r->job->in, out, count)) {
        r->status = mf_picture_cut_off(r->job, r->err);
        png_error(png, "cut off");
    }
}

/* What is done to pixels on their way; the order is libpng's own. */
static void set_up(png_structp png, png_infop info, uint32_t channels)
{
    int type = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
    bool grey = !(type & PNG_COLOR_MASK_COLOR), transparent = png_get_valid(png, info, PNG_INFO_tRNS) != 0;
    if (depth == 16)
        png_set_strip_16(png);
    png_set_packing(png);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png);
    if (grey && depth < 8)
        png_set_expand_gray_1_2_4_to_8(png);
    if (channels == 4 && transparent)
        png_set_tRNS_to_alpha(png);
    else if (channels == 4 && !(type & PNG_COLOR_MASK_ALPHA))
        png_set_add_alpha(png, 255, PNG_FILLER_AFTER);
    else if (channels != 4)
        png_set_strip_alpha(png);
    if (channels == 1 && !grey)
        png_set_rgb_to_gray(png, PNG_ERROR_ACTION_NONE, 0.299, 0.587);
    if (channels > 1 && grey)
        png_set_gray_to_rgb(png);
}

static void decode(reader *r, png_structp png, png_infop info)
{
    const mf_picture_job *job = r->job;
    png_set_read_fn(png, r, on_read);
    png_set_user_limits(png, MF_PICTURE_MOST_SIDE, MF_PICTURE_MOST_SIDE);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    if (job->channels == 4)
        png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_AS_DEFAULT, (png_const_bytep) "tRNS", 1);
    png_read_info(png, info);
    set_up(png, info, job->channels);
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    uint32_t width = png_get_image_width(png, info), height = png_get_image_height(png, info);
    size_t row_bytes = png_get_rowbytes(png, info);
    if (row_bytes != (size_t)width * job->channels)
        png_error(png, "its rows do not become pixels");
    r->status = job->sink->begin(job->sink->ctx, width, height, job->room, r->err);
    if (r->status != MEMFIT_OK)
        png_error(png, "refused");
    size_t kept = passes > 1 ? height : 1;
    unsigned char *rows = mf_room_take(job->room, row_bytes * kept);
    if (!rows)
        png_error(png, "no room");
    if (passes > 1)
        memset(rows, 0, row_bytes * kept);
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < height; y++) {
            png_read_row(png, rows + (passes > 1 ? y * row_bytes : 0), NULL);
            if (passes == 1)
                job->sink->row(job->sink->ctx, rows);
        }
    for (uint32_t y = 0; passes > 1 && y < height; y++)
        job->sink->row(job->sink->ctx, rows + y * row_bytes);
    png_read_end(png, NULL); /* the check sum of the last part */
}

memfit_status mf_png_decode(const mf_picture_job *job, memfit_error *err)
{
    reader r = {.job = job, .err = err};
    png_structp png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning, &r, take, give);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info)
        return job->room->refused
                   ? mf_picture_no_room(job, err)
                   : mf_fail(err, MEMFIT_INTERNAL, "%s: libpng is not the one of its header", job->in->name);
    if (setjmp(png_jmpbuf(png)) == 0)
        decode(&r, png, info);
    png_destroy_read_struct(&png, &info, NULL);
    return r.status;
}

#else

memfit_status mf_png_decode(const mf_picture_job *job, memfit_error *err)
{
    return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: built without libpng", job->in->name);
}

#endif
