/*
 * picture_jpeg.c: JPEG by libjpeg-turbo (or libjpeg), the only file that knows it.
 *
 * The library asks its memory manager, a table of functions that the caller may replace (jpeglib.h), for everything it
 * needs. Here that table takes from the job's room: what lives for one picture from the room itself, which is emptied
 * before the next one; tables that stay (quantization, Huffman) from a small block of the decoder's. The library's own
 * manager serves only while the decoder is made and dropped. Virtual arrays, the coefficients of a progressive picture,
 * are in the room as a whole.
 *
 * Values are those of TensorFlow's decoder: the library's default transform, fancy upsampling, ink (CMYK) turned to
 * colours without a profile, a file that ends early is an error, extraneous bytes are not.
 */
#include "file/picture.h"

#include "base/error.h"
#include "base/memory.h"

#ifdef MF_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it before */
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum { PERMANENT_BYTES = 32 << 10, ROW_ALIGNMENT = 64, MOST_SCANS = 512 };

/* The library knows these types by name only: they are its memory manager's own. */
struct jvirt_sarray_control {
    JSAMPARRAY rows;
    JDIMENSION wide, high;
    boolean zero;
    struct jvirt_sarray_control *next;
};
struct jvirt_barray_control {
    JBLOCKARRAY rows;
    JDIMENSION wide, high;
    boolean zero;
    struct jvirt_barray_control *next;
};

struct mf_jpeg {
    const memfit_host *host;
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_memory_mgr memory, *own; /* ours; the library's */
    struct jpeg_progress_mgr progress;
    jvirt_sarray_ptr samples; /* asked for, not made yet */
    jvirt_barray_ptr blocks;
    unsigned char permanent[PERMANENT_BYTES];
    size_t permanent_used;
    const mf_picture_job *job;
    jmp_buf failed;
    memfit_status status;
    memfit_error *err;
};

static mf_jpeg *of(j_common_ptr cinfo)
{
    return cinfo->client_data;
}

/* ---- errors ----------------------------------------------------------------------------------------------- */

static _Noreturn void fail(mf_jpeg *j, memfit_status status)
{
    j->status = status;
    longjmp(j->failed, 1);
}

static void on_error(j_common_ptr cinfo)
{
    mf_jpeg *j = of(cinfo);
    char text[JMSG_LENGTH_MAX];
    cinfo->err->format_message(cinfo, text);
    fail(j, mf_fail(j->err, MEMFIT_DAMAGED, "%s: %s", j->job->in->name, text));
}

static void on_message(j_common_ptr cinfo, int level)
{
    (void)cinfo;
    (void)level; /* warnings: as TensorFlow, go on with what there is */
}

static void on_output(j_common_ptr cinfo)
{
    (void)cinfo;
}

/* Each scan of a progressive file goes over the whole picture: thousands of empty ones would take hours. */
static void on_progress(j_common_ptr cinfo)
{
    mf_jpeg *j = of(cinfo);
    if (cinfo->is_decompressor && ((j_decompress_ptr)cinfo)->input_scan_number > MOST_SCANS)
        fail(j, mf_fail(j->err, MEMFIT_DAMAGED, "%s: more than %d scans\nno program writes so many", j->job->in->name,
                        MOST_SCANS));
}

/* ---- memory ----------------------------------------------------------------------------------------------- */

static void *take(mf_jpeg *j, int pool, size_t bytes)
{
    if (pool == JPOOL_PERMANENT) {
        size_t at = (j->permanent_used + 63) & ~(size_t)63;
        if (bytes > PERMANENT_BYTES || at + bytes > PERMANENT_BYTES)
            fail(j, mf_fail(j->err, MEMFIT_DAMAGED, "%s: more tables than a JPEG may have", j->job->in->name));
        j->permanent_used = at + bytes;
        return j->permanent + at;
    }
    void *p = mf_room_take(j->job->room, bytes);
    if (!p)
        fail(j, mf_picture_no_room(j->job, j->err));
    return p;
}

static void *alloc_bytes(j_common_ptr cinfo, int pool, size_t bytes)
{
    return take(of(cinfo), pool, bytes);
}

/* Vector code reads and writes rows to the end of their last lane. */
static JSAMPARRAY alloc_sarray(j_common_ptr cinfo, int pool, JDIMENSION wide, JDIMENSION high)
{
    size_t row = ((size_t)wide + 2 * ROW_ALIGNMENT - 1) / (2 * ROW_ALIGNMENT) * (2 * ROW_ALIGNMENT);
    JSAMPARRAY rows = take(of(cinfo), pool, high * sizeof *rows);
    unsigned char *data = take(of(cinfo), pool, row * high);
    for (JDIMENSION i = 0; i < high; i++)
        rows[i] = data + row * i;
    return rows;
}

static JBLOCKARRAY alloc_barray(j_common_ptr cinfo, int pool, JDIMENSION wide, JDIMENSION high)
{
    JBLOCKARRAY rows = take(of(cinfo), pool, high * sizeof *rows);
    JBLOCK *data = take(of(cinfo), pool, sizeof(JBLOCK) * wide * high);
    for (JDIMENSION i = 0; i < high; i++)
        rows[i] = data + (size_t)wide * i;
    return rows;
}

static jvirt_sarray_ptr request_sarray(j_common_ptr cinfo, int pool, boolean zero, JDIMENSION wide, JDIMENSION high,
                                       JDIMENSION access)
{
    (void)access;
    mf_jpeg *j = of(cinfo);
    jvirt_sarray_ptr v = take(j, pool, sizeof *v);
    *v = (struct jvirt_sarray_control){.wide = wide, .high = high, .zero = zero, .next = j->samples};
    return j->samples = v;
}

static jvirt_barray_ptr request_barray(j_common_ptr cinfo, int pool, boolean zero, JDIMENSION wide, JDIMENSION high,
                                       JDIMENSION access)
{
    (void)access;
    mf_jpeg *j = of(cinfo);
    jvirt_barray_ptr v = take(j, pool, sizeof *v);
    *v = (struct jvirt_barray_control){.wide = wide, .high = high, .zero = zero, .next = j->blocks};
    return j->blocks = v;
}

static void realize(j_common_ptr cinfo)
{
    mf_jpeg *j = of(cinfo);
    for (jvirt_sarray_ptr v = j->samples; v; v = v->next) {
        v->rows = alloc_sarray(cinfo, JPOOL_IMAGE, v->wide, v->high);
        for (JDIMENSION i = 0; v->zero && i < v->high; i++)
            memset(v->rows[i], 0, v->wide);
    }
    for (jvirt_barray_ptr v = j->blocks; v; v = v->next) {
        v->rows = alloc_barray(cinfo, JPOOL_IMAGE, v->wide, v->high);
        if (v->zero && v->high)
            memset(v->rows[0], 0, sizeof(JBLOCK) * v->wide * v->high);
    }
    j->samples = NULL;
    j->blocks = NULL;
}

static JSAMPARRAY access_sarray(j_common_ptr cinfo, jvirt_sarray_ptr v, JDIMENSION first, JDIMENSION count,
                                boolean writable)
{
    (void)writable;
    if (!v->rows || (uint64_t)first + count > v->high)
        ERREXIT(cinfo, JERR_BAD_VIRTUAL_ACCESS);
    return v->rows + first;
}

static JBLOCKARRAY access_barray(j_common_ptr cinfo, jvirt_barray_ptr v, JDIMENSION first, JDIMENSION count,
                                 boolean writable)
{
    (void)writable;
    if (!v->rows || (uint64_t)first + count > v->high)
        ERREXIT(cinfo, JERR_BAD_VIRTUAL_ACCESS);
    return v->rows + first;
}

static void free_pool(j_common_ptr cinfo, int pool)
{
    (void)pool; /* the room is emptied before the next picture */
    of(cinfo)->samples = NULL;
    of(cinfo)->blocks = NULL;
}

static void self_destruct(j_common_ptr cinfo)
{
    (void)cinfo;
}

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static void nothing(j_decompress_ptr cinfo)
{
    (void)cinfo;
}

static boolean fill(j_decompress_ptr cinfo)
{
    mf_jpeg *j = of((j_common_ptr)cinfo);
    const unsigned char *bytes;
    uint64_t n = mf_picture_next(j->job->in, &bytes);
    if (!n)
        fail(j, mf_picture_cut_off(j->job, j->err));
    j->source.next_input_byte = bytes;
    j->source.bytes_in_buffer = n;
    return TRUE;
}

static void skip(j_decompress_ptr cinfo, long count)
{
    mf_jpeg *j = of((j_common_ptr)cinfo);
    while (count > 0 && (unsigned long)count > j->source.bytes_in_buffer) {
        count -= (long)j->source.bytes_in_buffer;
        fill(cinfo);
    }
    if (count > 0) {
        j->source.next_input_byte += count;
        j->source.bytes_in_buffer -= (size_t)count;
    }
}

/* ---- decoding --------------------------------------------------------------------------------------------- */

memfit_status mf_jpeg_create(const memfit_host *host, mf_jpeg **jpeg, memfit_error *err)
{
    mf_jpeg *j = mf_host_zalloc(host, sizeof *j);
    if (!j)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to decode pictures");
    j->host = host;
    j->err = err;
    j->cinfo.err = jpeg_std_error(&j->errors);
    j->cinfo.client_data = j;
    j->errors.error_exit = on_error;
    j->errors.emit_message = on_message;
    j->errors.output_message = on_output;
    mf_picture_input none = {.name = "libjpeg", .descriptor = -1};
    const mf_picture_job job = {.in = &none};
    j->job = &job;
    if (setjmp(j->failed)) {
        jpeg_destroy_decompress(&j->cinfo);
        mf_host_free(host, j, sizeof *j);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to decode pictures");
    }
    jpeg_create_decompress(&j->cinfo);
    j->cinfo.client_data = j;
    j->own = j->cinfo.mem;
    j->memory = *j->own;
    j->memory.alloc_small = alloc_bytes;
    j->memory.alloc_large = alloc_bytes;
    j->memory.alloc_sarray = alloc_sarray;
    j->memory.alloc_barray = alloc_barray;
    j->memory.request_virt_sarray = request_sarray;
    j->memory.request_virt_barray = request_barray;
    j->memory.realize_virt_arrays = realize;
    j->memory.access_virt_sarray = access_sarray;
    j->memory.access_virt_barray = access_barray;
    j->memory.free_pool = free_pool;
    j->memory.self_destruct = self_destruct;
    j->cinfo.mem = &j->memory;
    j->source = (struct jpeg_source_mgr){.init_source = nothing,
                                         .fill_input_buffer = fill,
                                         .skip_input_data = skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = nothing};
    j->cinfo.src = &j->source;
    j->progress.progress_monitor = on_progress;
    j->cinfo.progress = &j->progress;
    j->job = NULL;
    *jpeg = j;
    return MEMFIT_OK;
}

void mf_jpeg_destroy(mf_jpeg *j)
{
    if (!j)
        return;
    j->cinfo.mem = j->own;
    jpeg_destroy_decompress(&j->cinfo);
    mf_host_free(j->host, j, sizeof *j);
}

/* Ink to colours as TensorFlow does it: Adobe's files hold it inverted. */
static void ink_to_colours(const unsigned char *in, unsigned char *out, uint32_t width, uint32_t channels, bool adobe)
{
    for (uint32_t x = 0; x < width; x++, in += 4, out += channels) {
        int k = in[3], rgb[3];
        for (int i = 0; i < 3; i++)
            rgb[i] = adobe ? k * in[i] / 255 : (255 - k) * (255 - in[i]) / 255;
        if (channels == 1)
            out[0] = (unsigned char)((rgb[0] * 299 + rgb[1] * 587 + rgb[2] * 114 + 500) / 1000);
        for (uint32_t i = 0; channels > 1 && i < channels; i++)
            out[i] = (unsigned char)(i < 3 ? rgb[i] : 255);
    }
}

static void add_alpha(const unsigned char *in, unsigned char *out, uint32_t width)
{
    for (uint32_t x = 0; x < width; x++) {
        memcpy(out + 4 * (size_t)x, in + 3 * (size_t)x, 3);
        out[4 * (size_t)x + 3] = 255;
    }
}

/* The library makes a picture 2, 4 or 8 times smaller by transforming fewer coefficients. */
static unsigned scale_of(const struct jpeg_decompress_struct *c, mf_picture_size least)
{
    unsigned scale = 1;
    while (least.width && least.height && scale < 8 && c->image_width / (2 * scale) >= least.width &&
           c->image_height / (2 * scale) >= least.height)
        scale *= 2;
    return scale;
}

static void decode(mf_jpeg *j)
{
    struct jpeg_decompress_struct *c = &j->cinfo;
    const mf_picture_job *job = j->job;
    jpeg_read_header(c, TRUE);
    bool ink = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    c->out_color_space = ink ? JCS_CMYK : job->channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    if (!ink && job->channels == 1 && c->jpeg_color_space == JCS_UNKNOWN)
        c->out_color_space = c->jpeg_color_space;
    c->dct_method =
        JDCT_IFAST; /* what TensorFlow takes: other values than the slow one by up to 8, at twice its speed */
    c->scale_num = 1;
    c->scale_denom = scale_of(c, job->least);
    jpeg_start_decompress(c);
    memfit_status status = mf_picture_check_size(job->in, c->output_width, c->output_height, j->err);
    if (status == MEMFIT_OK)
        status = job->sink->begin(job->sink->ctx, c->output_width, c->output_height, job->room, j->err);
    if (status != MEMFIT_OK)
        fail(j, status);
    /* Not aligned: to aligned rows libjpeg-turbo writes past the caches, and whoever resizes them waits for memory. */
    const size_t row_bytes = (size_t)c->output_width * (size_t)c->output_components;
    unsigned char *row = (unsigned char *)take(j, JPOOL_IMAGE, row_bytes + 3 * ROW_ALIGNMENT) + 8;
    bool as_is = !ink && (uint32_t)c->output_components == job->channels;
    if (!as_is && !ink && !(c->output_components == 3 && job->channels == 4))
        fail(j, mf_fail(j->err, MEMFIT_UNSUPPORTED, "%s: a JPEG of %d channels", job->in->name, c->output_components));
    unsigned char *other = as_is ? row : take(j, JPOOL_IMAGE, (size_t)c->output_width * job->channels);
    while (c->output_scanline < c->output_height) {
        JSAMPROW rows[1] = {row};
        if (jpeg_read_scanlines(c, rows, 1) != 1)
            fail(j, mf_picture_cut_off(job, j->err));
        if (ink)
            ink_to_colours(row, other, c->output_width, job->channels, c->saw_Adobe_marker);
        else if (!as_is)
            add_alpha(row, other, c->output_width);
        job->sink->row(job->sink->ctx, other);
    }
}

memfit_status mf_jpeg_decode(mf_jpeg *j, const mf_picture_job *job, memfit_error *err)
{
    j->job = job;
    j->err = err;
    j->status = MEMFIT_OK;
    j->source.bytes_in_buffer = 0;
    if (setjmp(j->failed) == 0)
        decode(j);
    jpeg_abort_decompress(&j->cinfo);
    j->job = NULL;
    return j->status;
}

#else

/* Never called: mf_picture_has says no. */
memfit_status mf_jpeg_create(const memfit_host *host, mf_jpeg **jpeg, memfit_error *err)
{
    (void)host;
    *jpeg = NULL;
    return mf_fail(err, MEMFIT_UNSUPPORTED, "built without libjpeg");
}

void mf_jpeg_destroy(mf_jpeg *jpeg)
{
    (void)jpeg;
}

memfit_status mf_jpeg_decode(mf_jpeg *jpeg, const mf_picture_job *job, memfit_error *err)
{
    (void)jpeg;
    (void)job;
    return mf_fail(err, MEMFIT_UNSUPPORTED, "built without libjpeg");
}

#endif
