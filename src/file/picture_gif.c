/*
 * picture_gif.c: the first frame of a GIF, as Keras takes it. Pixels are numbers of a palette, packed by Lempel, Ziv and
 * Welch's method with codes of up to 12 bits: each code names a string, made of an earlier string and one more pixel.
 * What of the screen the frame leaves free is black.
 */
#include "file/picture.h"

#include "base/error.h"

#include <string.h>

enum { MOST_CODES = 4096, MOST_SEGMENTS = 100000 };

typedef struct gif {
    const mf_picture_job *job;
    unsigned char palette[256][3];
    uint32_t screen_width, screen_height;
    uint32_t left, top, width, height;
    bool interlaced;
    unsigned char *pixels; /* of the frame */
    unsigned char block[255];
    uint32_t block_bytes, block_at;
    uint32_t bits, bit_count;
    bool ended;
    uint16_t prefix[MOST_CODES];
    unsigned char suffix[MOST_CODES], stack[MOST_CODES];
} gif;

static uint32_t two(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* ---- codes ------------------------------------------------------------------------------------------------ */

static int next_byte(gif *g)
{
    if (g->block_at == g->block_bytes) {
        unsigned char n;
        if (g->ended || !mf_picture_read(g->job->in, &n, 1) || n == 0 || !mf_picture_read(g->job->in, g->block, n)) {
            g->ended = true;
            return -1;
        }
        g->block_bytes = n;
        g->block_at = 0;
    }
    return g->block[g->block_at++];
}

static int next_code(gif *g, uint32_t size)
{
    while (g->bit_count < size) {
        int byte = next_byte(g);
        if (byte < 0)
            return -1;
        g->bits |= (uint32_t)byte << g->bit_count;
        g->bit_count += 8;
    }
    int code = (int)(g->bits & ((1u << size) - 1));
    g->bits >>= size;
    g->bit_count -= size;
    return code;
}

/* False when the codes end early or make no sense. */
static bool unpack(gif *g, uint32_t least)
{
    const uint32_t clear = 1u << least, end = clear + 1;
    uint32_t size = least + 1, next = end + 1;
    int before = -1;
    unsigned char first = 0;
    const uint64_t count = (uint64_t)g->width * g->height;
    for (uint64_t at = 0; at < count;) {
        int code = next_code(g, size);
        if (code < 0 || (uint32_t)code == end)
            return false;
        if ((uint32_t)code == clear) {
            size = least + 1;
            next = end + 1;
            before = -1;
            continue;
        }
        if ((uint32_t)code > next || (before < 0 && (uint32_t)code >= clear) ||
            ((uint32_t)code == next && next >= MOST_CODES))
            return false;
        uint32_t depth = 0, c = (uint32_t)code;
        if (c == next) { /* the string that is only just made: the one before and its own first pixel */
            g->stack[depth++] = first;
            c = (uint32_t)before;
        }
        while (c > end && depth < MOST_CODES - 1) {
            g->stack[depth++] = g->suffix[c];
            c = g->prefix[c];
        }
        if (c >= clear)
            return false;
        first = (unsigned char)c;
        g->stack[depth++] = first;
        while (depth && at < count)
            g->pixels[at++] = g->stack[--depth];
        if (before >= 0 && next < MOST_CODES) {
            g->prefix[next] = (uint16_t)before;
            g->suffix[next] = first;
            next++;
            if (next == 1u << size && size < 12)
                size++;
        }
        before = code;
    }
    return true;
}

/* ---- the file --------------------------------------------------------------------------------------------- */

static bool skip_blocks(mf_picture_input *in)
{
    unsigned char n;
    for (int i = 0; i < MOST_SEGMENTS; i++) {
        if (!mf_picture_read(in, &n, 1))
            return false;
        if (n == 0)
            return true;
        if (!mf_picture_seek(in, in->at + n))
            return false;
    }
    return false;
}

static bool read_palette(gif *g, unsigned char flags)
{
    return !(flags & 0x80) || mf_picture_read(g->job->in, g->palette, 3u << ((flags & 7) + 1));
}

/* To the first frame. */
static bool find_frame(gif *g)
{
    unsigned char h[13], kind, d[9];
    mf_picture_input *in = g->job->in;
    if (!mf_picture_seek(in, 0) || !mf_picture_read(in, h, sizeof h))
        return false;
    g->screen_width = two(h + 6);
    g->screen_height = two(h + 8);
    if (!read_palette(g, h[10]))
        return false;
    for (int i = 0; i < MOST_SEGMENTS; i++) {
        if (!mf_picture_read(in, &kind, 1))
            return false;
        if (kind == 0x21) {
            if (!mf_picture_read(in, &kind, 1) || !skip_blocks(in))
                return false;
            continue;
        }
        if (kind != 0x2c || !mf_picture_read(in, d, sizeof d))
            return false;
        g->left = two(d);
        g->top = two(d + 2);
        g->width = two(d + 4);
        g->height = two(d + 6);
        g->interlaced = d[8] & 0x40;
        return read_palette(g, d[8]);
    }
    return false;
}

/* Which row of the file holds row y of the frame: every eighth row first, then those between. */
static uint32_t stored_row(const gif *g, uint32_t y)
{
    if (!g->interlaced)
        return y;
    const uint32_t eighths = (g->height + 7) / 8, fourths = (g->height + 3) / 8, halves = (g->height + 1) / 4;
    if (y % 8 == 0)
        return y / 8;
    if (y % 8 == 4)
        return eighths + y / 8;
    if (y % 4 == 2)
        return eighths + fourths + y / 4;
    return eighths + fourths + halves + y / 2;
}

/* A row without anything of the frame: black, and opaque. */
static void clear_row(const gif *g, unsigned char *row)
{
    memset(row, 0, (size_t)g->screen_width * g->job->channels);
    for (uint32_t x = 0; g->job->channels == 4 && x < g->screen_width; x++)
        row[4 * (size_t)x + 3] = 255;
}

/* The frame's part of a row; the rest of it is clear. */
static void put_row(const gif *g, uint32_t y, unsigned char *row)
{
    const uint32_t channels = g->job->channels;
    const uint32_t end = g->left + g->width < g->screen_width ? g->left + g->width : g->screen_width;
    const unsigned char *in = g->pixels + (size_t)stored_row(g, y) * g->width;
    for (uint32_t x = g->left; x < end; x++) {
        const unsigned char *rgb = g->palette[in[x - g->left]];
        if (channels == 1)
            row[x] = (unsigned char)((rgb[0] * 299 + rgb[1] * 587 + rgb[2] * 114 + 500) / 1000);
        else
            memcpy(row + (size_t)x * channels, rgb, 3);
    }
}

/* A small frame on a screen that claims to be huge costs little more than the frame. */
static void put_rows(const gif *g, unsigned char *row)
{
    clear_row(g, row);
    for (uint32_t y = 0; y < g->screen_height; y++) {
        if (y >= g->top && y < g->top + g->height)
            put_row(g, y - g->top, row);
        else if (y == g->top + g->height)
            clear_row(g, row);
        g->job->sink->row(g->job->sink->ctx, row);
    }
}

memfit_status mf_gif_decode(const mf_picture_job *job, memfit_error *err)
{
    gif *g = mf_room_take(job->room, sizeof *g);
    if (!g)
        return mf_picture_no_room(job, err);
    memset(g, 0, sizeof *g);
    g->job = job;
    if (!find_frame(g))
        return mf_fail(err, MEMFIT_DAMAGED, "%s: no frame is found in this GIF", job->in->name);
    memfit_status status = mf_picture_check_size(job->in, g->width, g->height, err);
    if (status == MEMFIT_OK)
        status = mf_picture_check_size(job->in, g->screen_width, g->screen_height, err);
    if (status == MEMFIT_OK)
        status = job->sink->begin(job->sink->ctx, g->screen_width, g->screen_height, job->room, err);
    if (status != MEMFIT_OK)
        return status;
    g->pixels = mf_room_take(job->room, (uint64_t)g->width * g->height);
    unsigned char *row = g->pixels ? mf_room_take(job->room, (uint64_t)g->screen_width * job->channels) : NULL;
    if (!row)
        return mf_picture_no_room(job, err);
    unsigned char least;
    if (!mf_picture_read(job->in, &least, 1) || least < 1 || least > 11 || !unpack(g, least))
        return mf_fail(err, MEMFIT_DAMAGED, "%s: the pixels of this GIF end early or are damaged, at byte %llu",
                       job->in->name, (unsigned long long)job->in->at);
    put_rows(g, row);
    return MEMFIT_OK;
}
