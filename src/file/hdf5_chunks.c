/*
 * hdf5_chunks.c: reading rows of a dataset, whatever its storage.
 *
 * Chunked storage: the array is cut into boxes of equal size, each stored whole (boxes at the rim too), packed by a
 * pipeline of filters, and found through a version 1 B-tree whose keys are the boxes' offsets. At open the tree is read
 * into a sorted list {number of the box in row-major order, place, packed size, filters skipped}; reading looks boxes
 * up there. A box that is not in the list was never written and holds the fill value.
 *
 * Memory: the list (24 bytes a box), a buffer of one box, another where filters follow each other, zlib's state: all
 * taken at open, so that a data pipeline reads inside a training step without allocating. The last box decoded is kept.
 * People store a whole array as one box: buffers above a mebibyte lie in a temporary file.
 *
 * Tried and dropped: a cache of several boxes. Readers of training data go through rows in order or ask for whole runs
 * of rows; with rows drawn at random no cache of a size that one would plan for helps.
 */
#include "base/os.h"
#include "file/hdf5_inner.h"

#include <zlib.h>

enum { ZLIB_POOL_BYTES = 64 * 1024, MOST_TREE_LEVELS = 16, MOST_BOX_IN_MEMORY = 1 << 20 };

typedef struct box {
    uint64_t number;
    uint64_t at; /* address */
    uint32_t bytes;
    uint32_t skipped; /* bit i: filter i was not applied */
} box;

struct mf_hdf5_reader {
    const memfit_host *host;
    mf_hdf5_dataset d;
    uint64_t row_bytes;               /* of the array: elements behind the first axis */
    uint64_t grid[MF_HDF5_MOST_RANK]; /* boxes along each axis */
    box *boxes;
    size_t count, capacity;
    unsigned char *decoded, *spare; /* chunk_bytes each; spare: NULL with one filter at most */
    uint64_t decoded_number;        /* which box `decoded` holds; ~0: none */
    z_stream zlib;
    bool zlib_ready;
    size_t zlib_used;
    unsigned char *zlib_pool;
};

/* ---- the list of boxes ------------------------------------------------------------------------------------ */

static memfit_status add_box(mf_hdf5_reader *r, uint64_t at_key, mf_run *key, uint64_t at, memfit_error *err)
{
    mf_hdf5_dataset *d = &r->d;
    box b = {.at = at, .bytes = (uint32_t)mf_run_take(key, 4), .skipped = (uint32_t)mf_run_take(key, 4)};
    for (unsigned i = 0; i < d->rank; i++) {
        uint64_t offset = mf_run_take(key, 8);
        /* Boxes beyond the shape are left over when a dataset was shrunk. */
        if (key->bad || offset % d->chunk[i] || offset / d->chunk[i] >= r->grid[i])
            return mf_hdf5_damaged(d->file, at_key, err, "a chunk outside its array");
        b.number = b.number * r->grid[i] + offset / d->chunk[i];
    }
    if (!mf_hdf5_inside(d->file, at, b.bytes))
        return mf_hdf5_damaged(d->file, at_key, err, "a chunk reaches beyond the file's end");
    if (r->count && b.number <= r->boxes[r->count - 1].number)
        return mf_hdf5_damaged(d->file, at_key, err, "chunks are out of order");
    if (!mf_grow(r->host, &r->boxes, &r->capacity, r->count, sizeof *r->boxes))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "%.120s: no memory for the list of chunks", d->file->name);
    r->boxes[r->count++] = b;
    return MEMFIT_OK;
}

static memfit_status list_boxes(mf_hdf5_reader *r, uint64_t at, int level, memfit_error *err)
{
    mf_hdf5 *f = r->d.file;
    memfit_status st = mf_hdf5_step(f, 1, err);
    if (st)
        return st;
    if (!mf_hdf5_inside(f, at, 8) || memcmp(f->data + at, "TREE", 4) != 0 || f->data[at + 4] != 1)
        return mf_hdf5_damaged(f, at, err, "no chunk index here");
    int here = f->data[at + 5];
    if (here >= MOST_TREE_LEVELS || (level >= 0 && here != level))
        return mf_hdf5_damaged(f, at, err, "a chunk index node of level %d in the wrong place", here);
    unsigned count = mf_le16(f->data + at + 6), key_bytes = 8 + 8 * (r->d.rank + 1);
    mf_run run = {f->data + at + 8, f->data + f->bytes, false};
    mf_run_skip(&run, 2 * (uint64_t)f->offset_bytes);
    for (unsigned i = 0; i < count; i++) {
        mf_run key = {run.p, run.p, false};
        mf_run_skip(&run, key_bytes);
        uint64_t child = mf_run_address(&run, f);
        if (run.bad)
            return mf_hdf5_damaged(f, at, err, "a chunk index node reaches beyond the file's end");
        key.end = key.p + key_bytes;
        if ((st = mf_hdf5_step(f, 1, err)) ||
            (st = here ? list_boxes(r, child, here - 1, err) : add_box(r, at, &key, child, err)))
            return st;
    }
    return MEMFIT_OK;
}

/* ---- filters ---------------------------------------------------------------------------------------------- */

/* zlib takes its state once, from a pool of ours; inflate is then only reset. */
static void *pool_alloc(void *opaque, uInt count, uInt size)
{
    mf_hdf5_reader *r = opaque;
    size_t bytes = ((size_t)count * size + 15) & ~(size_t)15;
    if (bytes > ZLIB_POOL_BYTES - r->zlib_used)
        return NULL;
    void *p = r->zlib_pool + r->zlib_used;
    r->zlib_used += bytes;
    return p;
}

static void pool_free(void *opaque, void *ptr)
{
    (void)opaque;
    (void)ptr;
}

static memfit_status open_zlib(mf_hdf5_reader *r, memfit_error *err)
{
    if (!(r->zlib_pool = mf_host_alloc(r->host, ZLIB_POOL_BYTES)))
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to unpack chunks");
    r->zlib = (z_stream){.zalloc = pool_alloc, .zfree = pool_free, .opaque = r};
    if (inflateInit(&r->zlib) != Z_OK)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to unpack chunks");
    r->zlib_ready = true;
    return MEMFIT_OK;
}

static bool undo_deflate(mf_hdf5_reader *r, const unsigned char *in, uint64_t bytes, unsigned char *out, uint64_t *made)
{
    if (inflateReset(&r->zlib) != Z_OK)
        return false;
    r->zlib.next_in = (Bytef *)(uintptr_t)in;
    r->zlib.avail_in = (uInt)bytes;
    r->zlib.next_out = out;
    r->zlib.avail_out = (uInt)r->d.chunk_bytes;
    int rc = inflate(&r->zlib, Z_FINISH);
    *made = r->d.chunk_bytes - r->zlib.avail_out;
    return rc == Z_STREAM_END;
}

/* LZF: a byte below 32 starts that many + 1 literal bytes; else a copy: 3 bits of length, 13 bits of distance. */
static bool undo_lzf(const unsigned char *in, uint64_t bytes, unsigned char *out, uint64_t room, uint64_t *made)
{
    const unsigned char *end = in + bytes;
    uint64_t n = 0;
    while (in < end) {
        unsigned control = *in++;
        if (control < 32) {
            uint64_t run = control + 1u;
            if (run > (uint64_t)(end - in) || run > room - n)
                return false;
            memcpy(out + n, in, run);
            in += run;
            n += run;
            continue;
        }
        uint64_t length = control >> 5;
        if (length == 7) {
            if (in == end)
                return false;
            length += *in++;
        }
        if (in == end)
            return false;
        uint64_t distance = ((uint64_t)(control & 31) << 8 | *in++) + 1;
        length += 2;
        if (distance > n || length > room - n)
            return false;
        for (; length; length--, n++) /* may overlap itself: that is how runs are packed */
            out[n] = out[n - distance];
    }
    *made = n;
    return true;
}

static void undo_shuffle(const unsigned char *in, uint64_t bytes, uint64_t element, unsigned char *out)
{
    uint64_t count = bytes / element;
    if (!count) /* an element larger than the chunk: nothing was shuffled */
        element = 0;
    for (uint64_t b = 0; b < element; b++)
        for (uint64_t i = 0; i < count; i++)
            out[i * element + b] = in[b * count + i];
    memcpy(out + count * element, in + count * element, bytes - count * element);
}

/* Undoes the filters of box b, last one first, into r->decoded. */
static memfit_status decode(mf_hdf5_reader *r, const box *b, memfit_error *err)
{
    const mf_hdf5_dataset *d = &r->d;
    const unsigned char *in = d->file->data + b->at;
    uint64_t bytes = b->bytes;
    r->decoded_number = UINT64_MAX;
    for (unsigned i = d->filters; i-- > 0;) {
        if (b->skipped >> i & 1)
            continue;
        unsigned char *out = in == r->decoded ? r->spare : r->decoded;
        bool ok = true;
        switch (d->filter[i].id) {
        case 1:
            ok = undo_deflate(r, in, bytes, out, &bytes);
            break;
        case 2:
            ok = bytes <= d->chunk_bytes;
            if (ok)
                undo_shuffle(in, bytes, d->filter[i].value ? d->filter[i].value : d->element_bytes, out);
            break;
        case 3: /* a check sum behind the data */
            if (bytes >= 4) {
                bytes -= 4;
                continue;
            }
            ok = false;
            break;
        default:
            ok = undo_lzf(in, bytes, out, d->chunk_bytes, &bytes);
        }
        if (!ok)
            return mf_hdf5_damaged(d->file, b->at, err, "a chunk's packed data is damaged");
        in = out;
    }
    if (bytes != d->chunk_bytes)
        return mf_hdf5_damaged(d->file, b->at, err, "a chunk of %" PRIu64 " bytes instead of %" PRIu64, bytes,
                               d->chunk_bytes);
    if (in == r->spare) {
        r->spare = r->decoded;
        r->decoded = (unsigned char *)(uintptr_t)in;
    } else if (in != r->decoded) {
        memcpy(r->decoded, in, bytes);
    }
    r->decoded_number = b->number;
    return MEMFIT_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static memfit_status open_buffer(const mf_hdf5_reader *r, unsigned char **buffer, memfit_error *err)
{
    const uint64_t bytes = r->d.chunk_bytes;
    if (bytes > MOST_BOX_IN_MEMORY)
        return mf_os_spool_map(bytes, buffer, err);
    *buffer = mf_host_alloc(r->host, bytes);
    return *buffer ? MEMFIT_OK
                   : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for chunks of %" PRIu64 " bytes", bytes);
}

static void close_buffer(const mf_hdf5_reader *r, unsigned char *buffer)
{
    if (buffer && r->d.chunk_bytes > MOST_BOX_IN_MEMORY)
        mf_os_spool_unmap(buffer, r->d.chunk_bytes);
    else
        mf_host_free(r->host, buffer, r->d.chunk_bytes);
}

static memfit_status open_boxes(mf_hdf5_reader *r, memfit_error *err)
{
    mf_hdf5_dataset *d = &r->d;
    uint64_t boxes = 1;
    for (unsigned i = 0; i < d->rank; i++) {
        r->grid[i] = (d->shape[i] + d->chunk[i] - 1) / d->chunk[i];
        if (__builtin_mul_overflow(boxes, r->grid[i], &boxes))
            return mf_hdf5_damaged(d->file, d->address, err, "an array with too many chunks");
    }
    if (d->chunk_index == MF_HDF5_UNDEFINED)
        return MEMFIT_OK;
    memfit_status st = list_boxes(r, d->chunk_index, -1, err);
    if (st || !r->count)
        return st;
    /* Deflate packs at most 1032:1; a chunk that claims more is a lie, and no memory is taken for it. */
    uint64_t most = 0;
    bool packed = false;
    for (size_t i = 0; i < r->count; i++)
        most = r->boxes[i].bytes > most ? r->boxes[i].bytes : most;
    for (unsigned i = 0; i < d->filters; i++)
        packed |= d->filter[i].id == 1 || d->filter[i].id == 32000;
    if (d->chunk_bytes / (packed ? 1032 : 1) > most + 1)
        return mf_hdf5_damaged(d->file, d->address, err, "chunks of %" PRIu64 " bytes cannot come from %" PRIu64,
                               d->chunk_bytes, most);
    st = open_buffer(r, &r->decoded, err);
    if (!st && d->filters > 1)
        st = open_buffer(r, &r->spare, err);
    return !st && packed ? open_zlib(r, err) : st;
}

memfit_status mf_hdf5_reader_open(const mf_hdf5_dataset *dataset, const memfit_host *host, mf_hdf5_reader **reader,
                                  memfit_error *err)
{
    mf_hdf5_reader *r = mf_host_zalloc(host, sizeof *r);
    if (!r)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to read %.120s", dataset->file->name);
    r->host = host;
    r->d = *dataset;
    r->decoded_number = UINT64_MAX;
    r->row_bytes = dataset->element_bytes;
    for (unsigned i = 1; i < dataset->rank; i++)
        if (__builtin_mul_overflow(r->row_bytes, dataset->shape[i], &r->row_bytes)) {
            mf_hdf5_reader_close(r);
            return mf_hdf5_damaged(dataset->file, dataset->address, err, "an array too large for any machine");
        }
    memfit_status st = dataset->storage == MF_HDF5_CHUNKED && dataset->elements ? open_boxes(r, err) : MEMFIT_OK;
    if (st) {
        mf_hdf5_reader_close(r);
        return st;
    }
    *reader = r;
    return MEMFIT_OK;
}

uint64_t mf_hdf5_reader_bytes(const mf_hdf5_reader *r)
{
    uint64_t buffers = r->d.chunk_bytes > MOST_BOX_IN_MEMORY ? 0 : (r->decoded ? 1u : 0u) + (r->spare ? 1u : 0u);
    return sizeof *r + r->capacity * sizeof *r->boxes + buffers * r->d.chunk_bytes +
           (r->zlib_pool ? ZLIB_POOL_BYTES : 0);
}

void mf_hdf5_reader_close(mf_hdf5_reader *r)
{
    if (!r)
        return;
    if (r->zlib_ready)
        inflateEnd(&r->zlib);
    mf_host_free(r->host, r->zlib_pool, ZLIB_POOL_BYTES);
    close_buffer(r, r->decoded);
    close_buffer(r, r->spare);
    mf_host_free(r->host, r->boxes, r->capacity * sizeof *r->boxes);
    mf_host_free(r->host, r, sizeof *r);
}

/* ---- rows ------------------------------------------------------------------------------------------------- */

static void fill_rows(const mf_hdf5_reader *r, uint64_t bytes, unsigned char *out)
{
    static const unsigned char zero[8];
    if (r->d.element_bytes > 8 || memcmp(r->d.fill, zero, 8) == 0) {
        memset(out, 0, bytes);
        return;
    }
    for (uint64_t i = 0; i + r->d.element_bytes <= bytes; i += r->d.element_bytes)
        memcpy(out + i, r->d.fill, r->d.element_bytes);
}

/* Copies what box b has of rows [first, first + count) to out, which begins with row `first`. */
static void copy_box(const mf_hdf5_reader *r, const uint64_t *corner, uint64_t first, uint64_t count,
                     unsigned char *out)
{
    const mf_hdf5_dataset *d = &r->d;
    uint64_t from[MF_HDF5_MOST_RANK] = {0}, size[MF_HDF5_MOST_RANK] = {0}, at[MF_HDF5_MOST_RANK] = {0};
    for (unsigned i = 0; i < d->rank; i++) {
        uint64_t end = corner[i] + d->chunk[i];
        size[i] = (end < d->shape[i] ? end : d->shape[i]) - corner[i];
    }
    if (corner[0] < first) {
        from[0] = first - corner[0];
        size[0] -= from[0];
    }
    if (corner[0] + from[0] + size[0] > first + count)
        size[0] = first + count - corner[0] - from[0];
    unsigned last = d->rank - 1;
    uint64_t run = size[last] * d->element_bytes;
    for (;;) {
        uint64_t source = 0, target = 0;
        for (unsigned i = 0; i < d->rank; i++) {
            source = source * d->chunk[i] + from[i] + at[i];
            target = target * d->shape[i] + corner[i] + from[i] + at[i] - (i ? 0 : first);
        }
        memcpy(out + target * d->element_bytes, r->decoded + source * d->element_bytes, run);
        unsigned axis = last; /* the last axis is copied whole */
        while (axis > 0 && ++at[axis - 1] == size[axis - 1])
            at[--axis] = 0;
        if (axis == 0)
            return;
    }
}

static memfit_status read_boxes(mf_hdf5_reader *r, uint64_t first, uint64_t count, unsigned char *out,
                                memfit_error *err)
{
    const mf_hdf5_dataset *d = &r->d;
    uint64_t across = 1;
    for (unsigned i = 1; i < d->rank; i++)
        across *= r->grid[i];
    uint64_t low = first / d->chunk[0] * across, high = ((first + count - 1) / d->chunk[0] + 1) * across;
    size_t i = 0;
    for (size_t a = 0, b = r->count; a < b;) {
        size_t middle = a + (b - a) / 2;
        if (r->boxes[middle].number < low)
            i = a = middle + 1;
        else
            i = b = middle;
    }
    size_t end = i;
    while (end < r->count && r->boxes[end].number < high)
        end++;
    if (end - i < high - low)
        fill_rows(r, count * r->row_bytes, out);
    for (; i < end; i++) {
        const box *b = &r->boxes[i];
        uint64_t corner[MF_HDF5_MOST_RANK] = {0}, rest = b->number;
        for (unsigned k = d->rank; k-- > 0; rest /= r->grid[k])
            corner[k] = rest % r->grid[k] * d->chunk[k];
        memfit_status st = r->decoded_number == b->number ? MEMFIT_OK : decode(r, b, err);
        if (st)
            return st;
        copy_box(r, corner, first, count, out);
    }
    return MEMFIT_OK;
}

memfit_status mf_hdf5_reader_rows(mf_hdf5_reader *r, uint64_t first, uint64_t count, void *out, memfit_error *err)
{
    uint64_t rows = r->d.rank ? r->d.shape[0] : 1;
    if (first > rows || count > rows - first)
        return mf_fail(err, MEMFIT_INVALID, "rows %" PRIu64 " to %" PRIu64 " of an array with %" PRIu64 " rows", first,
                       first + count, rows);
    if (!count || !r->d.bytes)
        return MEMFIT_OK;
    if (r->d.storage == MF_HDF5_IN_PLACE)
        memcpy(out, r->d.data + first * r->row_bytes, count * r->row_bytes);
    else if (r->d.storage == MF_HDF5_NO_DATA)
        fill_rows(r, count * r->row_bytes, out);
    else
        return read_boxes(r, first, count, out, err);
    return MEMFIT_OK;
}
