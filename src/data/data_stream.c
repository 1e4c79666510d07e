/*
 * data_stream.c: NumPy arrays from standard input, batch after batch, as any program can pipe them:
 *
 *     for x, y in dataset: numpy.save(sys.stdout.buffer, x); numpy.save(sys.stdout.buffer, y)
 *
 * Inputs and targets take turns (predictions need inputs alone); batches may differ in length, not in type or shape of a
 * sample. All of it goes to temporary files, one for inputs and one for targets, which are mapped when the stream has ended:
 * in constant memory, and from there on read in any order like any other file. A stream cannot be read twice, so a run of one
 * is not resumed.
 */
#include "data/npy.h"
#include "data/source.h"

#include "base/bytes.h"
#include "base/error.h"

#include <string.h>

enum { PART_BYTES = 64 << 10, MOST_HEADER = 1024 };

typedef struct stream {
    mf_source *source;
    mf_spool spools[2];
    mf_npy_head heads[2]; /* of the first batch; dim[0] counts all samples */
    unsigned arrays;      /* that take turns */
    uint64_t batches;
    unsigned char *part;
} stream;

/* The next array's header; *ended when there is none. */
static memfit_status next_head(stream *s, mf_npy_head *head, bool *ended, memfit_error *err)
{
    unsigned char *h = s->part;
    char where[80];
    snprintf(where, sizeof where, "standard input: array %llu", (unsigned long long)s->batches);
    uint64_t n = mf_os_read_input(h, 12);
    *ended = n == 0;
    if (*ended)
        return MEMFIT_OK;
    if (n < 12 || memcmp(h, "\x93NUMPY", 6) != 0)
        return mf_fail(err, MEMFIT_DAMAGED,
                       "%s is not a NumPy array\n"
                       "numpy.save(sys.stdout.buffer, batch) writes one; nothing else may be printed there",
                       where);
    uint64_t at = h[6] == 1 ? 10 : 12, length = h[6] == 1 ? mf_le16(h + 8) : mf_le32(h + 8);
    if (length > MOST_HEADER || mf_os_read_input(h + 12, at + length - 12) < at + length - 12)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: its header is cut off or damaged", where);
    memfit_status status = mf_npy_read_head(h, at + length, where, head, err);
    if (status == MEMFIT_OK && (head->swapped || (head->fortran && head->shape.rank > 1)))
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s is in Fortran order or of the other byte order\nwrite numpy.ascontiguousarray(batch)",
                       where);
    if (status == MEMFIT_OK && head->shape.rank < 1)
        return mf_fail(err, MEMFIT_DAMAGED, "%s is a single number: the first axis must count samples", where);
    return status;
}

static bool is_alike(const mf_npy_head *a, const mf_npy_head *b)
{
    bool alike = a->dtype == b->dtype && a->shape.rank == b->shape.rank;
    for (uint32_t d = 1; alike && d < a->shape.rank; d++)
        alike = a->shape.dim[d] == b->shape.dim[d];
    return alike;
}

static memfit_status take_array(stream *s, unsigned which, const mf_npy_head *head, memfit_error *err)
{
    mf_npy_head *first = &s->heads[which];
    if (s->batches < s->arrays)
        *first = *head;
    else if (!is_alike(first, head))
        return mf_fail(err, MEMFIT_DAMAGED,
                       "standard input: array %llu has another type or shape of samples than array %u",
                       (unsigned long long)s->batches, which);
    else
        first->shape.dim[0] += head->shape.dim[0];
    uint64_t count = mf_shape_count(&head->shape), left = count * mf_dtype_bytes(head->dtype);
    if (count > UINT64_MAX / 16)
        return mf_fail(err, MEMFIT_DAMAGED, "standard input: array %llu claims more bytes than there can be",
                       (unsigned long long)s->batches);
    while (left) {
        uint64_t n = left < PART_BYTES ? left : PART_BYTES;
        if (mf_os_read_input(s->part, n) < n)
            return mf_fail(err, MEMFIT_DAMAGED, "standard input ended in the middle of array %llu",
                           (unsigned long long)s->batches);
        memfit_status status = mf_os_spool_write(&s->spools[which], s->part, n, err);
        if (status != MEMFIT_OK)
            return status;
        left -= n;
    }
    return MEMFIT_OK;
}

static memfit_status take_all(stream *s, memfit_error *err)
{
    for (bool ended = false;; s->batches++) {
        mf_npy_head head;
        unsigned which = (unsigned)(s->batches % s->arrays);
        memfit_status status = next_head(s, &head, &ended, err);
        if (ended && s->batches == 0)
            return mf_fail(err, MEMFIT_DAMAGED, "standard input is empty\npipe NumPy arrays into it, or name a file");
        if (ended && which)
            return mf_fail(err, MEMFIT_DAMAGED,
                           "standard input ended with inputs that have no targets: they take turns, x, y, x, y");
        if (ended || status != MEMFIT_OK)
            return status;
        status = take_array(s, which, &head, err);
        if (status != MEMFIT_OK)
            return status;
    }
}

memfit_status mf_source_stream(mf_source *source, bool inputs_alone, const mf_log *log, memfit_error *err)
{
    static const char *const names[2] = {"x", "y"};
    stream s = {.source = source, .arrays = inputs_alone ? 1 : 2, .spools = {{.descriptor = -1}, {.descriptor = -1}}};
    char text[24];
    uint64_t bytes = 0;
    s.part = mf_host_alloc(source->arena.host, PART_BYTES);
    memfit_status status = s.part ? MEMFIT_OK : mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to read standard input");
    for (unsigned i = 0; i < s.arrays && status == MEMFIT_OK; i++)
        status = mf_os_spool_open(&s.spools[i], err);
    if (status == MEMFIT_OK)
        status = take_all(&s, err);
    for (unsigned i = 0; i < s.arrays && status == MEMFIT_OK; i++) {
        unsigned char *data;
        uint64_t n = s.spools[i].bytes;
        status = mf_os_spool_finish(&s.spools[i], &data, err);
        if (status != MEMFIT_OK)
            break;
        bytes += n;
        source->mappings[source->mapping_count++] = (mf_mapping){data, n ? n : 1};
        status = mf_source_add(source, names[i], s.heads[i].dtype, &s.heads[i].shape, data, n, err);
    }
    for (unsigned i = 0; i < s.arrays; i++)
        mf_os_spool_drop(&s.spools[i]);
    mf_host_free(source->arena.host, s.part, PART_BYTES);
    if (status == MEMFIT_OK)
        mf_log_write(log, MF_LOG_NOTE,
                     "standard input: %lld samples, kept in a temporary file of %s; such a run cannot be resumed",
                     (long long)s.heads[0].shape.dim[0], memfit_size_format(bytes, text, sizeof text));
    return status;
}
