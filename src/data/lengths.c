/* lengths.c: see lengths.h. */
#include "data/lengths.h"

#include "base/error.h"

#include <string.h>

memfit_status mf_lengths_make(mf_source *source, int64_t samples, memfit_error *err)
{
    unsigned char *data;
    if (source->lengths)
        return MEMFIT_OK;
    memfit_status status = mf_os_spool_map((uint64_t)samples * sizeof *source->lengths, &data, err);
    if (status != MEMFIT_OK)
        return status;
    source->lengths = (uint32_t *)(void *)data;
    source->length_bytes = (uint64_t)samples * sizeof *source->lengths;
    return MEMFIT_OK;
}

/* ---- values and row splits --------------------------------------------------------------------------------- */

static const char suffix[] = "_row_splits";

/* MF_I32 or MF_I64; files align nothing. */
static int64_t split_at(mf_dtype dtype, const void *splits, int64_t i)
{
    int64_t wide;
    int32_t narrow;
    if (dtype == MF_I32) {
        memcpy(&narrow, (const unsigned char *)splits + (uint64_t)i * sizeof narrow, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const unsigned char *)splits + (uint64_t)i * sizeof wide, sizeof wide);
    return wide;
}

static memfit_status check_splits(const mf_source *source, const mf_array *splits, const mf_array *values,
                                  int64_t *longest, memfit_error *err)
{
    const int64_t n = splits->shape.dim[0] - 1;
    int64_t before = split_at(splits->dtype, splits->data, 0);
    *longest = 1;
    if (before != 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s: %s begins with %lld, not 0", source->path, splits->name,
                       (long long)before);
    for (int64_t i = 1; i <= n; i++) {
        const int64_t at = split_at(splits->dtype, splits->data, i);
        if (at < before || at > values->shape.dim[0])
            return mf_fail(err, MEMFIT_DAMAGED, "%s: %s[%lld] is %lld: must be from %lld to %lld", source->path,
                           splits->name, (long long)i, (long long)at, (long long)before,
                           (long long)values->shape.dim[0]);
        *longest = at - before > *longest ? at - before : *longest;
        before = at;
    }
    if (before != values->shape.dim[0])
        return mf_fail(err, MEMFIT_DAMAGED, "%s: %s ends with %lld, but %s has %lld steps", source->path, splits->name,
                       (long long)before, values->name, (long long)values->shape.dim[0]);
    if (*longest > INT32_MAX)
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s: a sequence of %lld steps", source->path, (long long)*longest);
    return MEMFIT_OK;
}

static memfit_status make_ragged(mf_source *source, const mf_array *splits, mf_array *a, memfit_error *err)
{
    const int64_t n = splits->shape.dim[0] - 1;
    int64_t longest;
    memfit_status status = check_splits(source, splits, a, &longest, err);
    if (status == MEMFIT_OK && source->lengths && source->length_bytes != (uint64_t)n * sizeof *source->lengths)
        status = mf_fail(err, MEMFIT_DAMAGED, "%s: %s has %lld samples, others have another number", source->path,
                         splits->name, (long long)n);
    if (status == MEMFIT_OK)
        status = mf_lengths_make(source, n, err);
    if (status != MEMFIT_OK)
        return status;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t length =
            (uint32_t)(split_at(splits->dtype, splits->data, i + 1) - split_at(splits->dtype, splits->data, i));
        source->lengths[i] = length > source->lengths[i] ? length : source->lengths[i];
    }
    const uint64_t step = a->sample_bytes; /* of what was one sample */
    a->step_count = (uint64_t)a->shape.dim[0];
    memmove(a->shape.dim + 2, a->shape.dim + 1, (a->shape.rank - 1) * sizeof *a->shape.dim);
    a->shape.rank++;
    a->shape.dim[0] = n;
    a->shape.dim[1] = longest;
    a->values = a->data;
    a->data = NULL;
    a->splits = splits->data;
    a->split_dtype = splits->dtype;
    a->step_bytes = step;
    a->sample_bytes = step * (uint64_t)longest;
    a->ragged = true;
    return MEMFIT_OK;
}

memfit_status mf_lengths_by_splits(mf_source *source, const mf_log *log, memfit_error *err)
{
    for (uint32_t i = 0; i < source->count; i++) {
        const mf_array *splits = &source->arrays[i];
        const size_t n = strlen(splits->name), tail = sizeof suffix - 1;
        if (n <= tail || strcmp(splits->name + n - tail, suffix) != 0 || splits->unusable || !splits->data ||
            splits->shape.rank != 1 || splits->shape.dim[0] < 2 || (splits->dtype != MF_I64 && splits->dtype != MF_I32))
            continue;
        for (uint32_t j = 0; j < source->count; j++) {
            mf_array *a = &source->arrays[j];
            if (a->unusable || !a->data || a->ragged || a->names || strlen(a->name) != n - tail ||
                memcmp(a->name, splits->name, n - tail) != 0 || a->shape.rank + 1 > MF_MOST_DIMS)
                continue;
            memfit_status status = make_ragged(source, splits, a, err);
            if (status != MEMFIT_OK)
                return status;
            mf_log_write(log, MF_LOG_DETAIL, "%s: %s has %lld sequences of up to %lld steps", source->path, a->name,
                         (long long)a->shape.dim[0], (long long)a->shape.dim[1]);
        }
    }
    return MEMFIT_OK;
}

void mf_lengths_read(const mf_array *a, int64_t index, void *out, uint64_t bytes)
{
    const uint64_t from = (uint64_t)split_at(a->split_dtype, a->splits, index);
    const uint64_t to = (uint64_t)split_at(a->split_dtype, a->splits, index + 1);
    /* Verified when the file was opened; a file that was changed since must not lead elsewhere. */
    const uint64_t has = from <= to && to <= a->step_count ? (to - from) * a->step_bytes : 0;
    const uint64_t n = has < bytes ? has : bytes;
    if (n)
        memcpy(out, a->values + from * a->step_bytes, n);
    memset((unsigned char *)out + n, 0, bytes - n);
}

/* ---- padded already ---------------------------------------------------------------------------------------- */

/* Behind its last step that is not 0. */
static uint32_t used_steps(const unsigned char *sample, uint64_t bytes, uint64_t step)
{
    while (bytes && !sample[bytes - 1])
        bytes--;
    return (uint32_t)((bytes + step - 1) / step);
}

memfit_status mf_lengths_measure(mf_source *source, const mf_array *a, memfit_error *err)
{
    if (source->lengths)
        return MEMFIT_OK;
    const int64_t steps = a->shape.rank > 1 ? a->shape.dim[1] : 1;
    const bool copied = a->made && !a->picture; /* without a worker's decoders */
    if ((!a->data && !copied) || steps < 1 || steps > INT32_MAX)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "--bucket: the lengths of %s in %s cannot be told\n"
                       "save x with x_row_splits in one .npz file, or lists of different lengths as TFRecord",
                       a->name, source->path);
    const memfit_host *host = source->arena.host;
    unsigned char *room = copied ? mf_host_alloc(host, a->sample_bytes) : NULL;
    memfit_status status = copied && !room ? mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory to read %s", source->path)
                                           : mf_lengths_make(source, source->samples, err);
    const uint64_t step = a->sample_bytes / (uint64_t)steps;
    for (int64_t i = 0; status == MEMFIT_OK && i < source->samples; i++) {
        const unsigned char *sample = copied ? room : a->data + (uint64_t)i * a->sample_bytes;
        /* What cannot be read is told when its turn comes; until then it may be of any length. */
        const bool read = !copied || mf_source_make(source, a, i, NULL, room, NULL) == MEMFIT_OK;
        source->lengths[i] = read ? used_steps(sample, a->sample_bytes, step) : (uint32_t)steps;
    }
    mf_host_free(host, room, a->sample_bytes);
    return status;
}

/* ---- the lengths to plan for ------------------------------------------------------------------------------- */

enum { MOST_BINS = 256 };

typedef struct bins {
    int64_t top[MOST_BINS], count[MOST_BINS]; /* the longest in each, and how many are in it and below */
    double steps;                             /* of all samples */
    uint32_t n;
} bins;

/* Bins of equal width; empty ones are left out. */
static void sort_into_bins(const uint32_t *lengths, int64_t samples, bins *b)
{
    uint32_t longest = 1;
    *b = (bins){.n = 0};
    for (int64_t i = 0; i < samples; i++) {
        longest = lengths[i] > longest ? lengths[i] : longest;
        b->steps += lengths[i];
    }
    for (int64_t i = 0; i < samples; i++) {
        const uint32_t length = lengths[i] ? lengths[i] : 1;
        const uint64_t bin = (uint64_t)(length - 1) * MOST_BINS / longest;
        b->count[bin]++;
        b->top[bin] = length > b->top[bin] ? length : b->top[bin];
    }
    int64_t below = 0;
    for (uint32_t i = 0; i < MOST_BINS; i++)
        if (b->count[i]) {
            below += b->count[i];
            b->top[b->n] = b->top[i];
            b->count[b->n++] = below;
        }
}

/* The least number of steps for the samples of bins 0 to j with k lengths, by the last length's predecessor: dynamic
 * programming over all of them, 256 x 256 x k. */
uint32_t mf_lengths_choose(const uint32_t *lengths, int64_t samples, uint32_t most, int64_t *bounds, double *padding)
{
    bins b;
    sort_into_bins(lengths, samples, &b);
    double cost[MF_MOST_LENGTHS][MOST_BINS];
    uint8_t from[MF_MOST_LENGTHS][MOST_BINS];
    most = most < b.n ? most : b.n;
    most = most < MF_MOST_LENGTHS ? most : MF_MOST_LENGTHS;
    for (uint32_t k = 0; k < most; k++)
        for (uint32_t j = 0; j < b.n; j++) {
            cost[k][j] = (double)b.count[j] * (double)b.top[j]; /* one length for all */
            from[k][j] = 0;
            for (uint32_t i = 0; k && i < j; i++) {
                const double c = cost[k - 1][i] + (double)(b.count[j] - b.count[i]) * (double)b.top[j];
                if (c < cost[k][j]) {
                    cost[k][j] = c;
                    from[k][j] = (uint8_t)(i + 1);
                }
            }
        }
    uint32_t count = 0;
    if (!most)
        return 0;
    *padding = 1 - b.steps / cost[most - 1][b.n - 1];
    for (uint32_t k = most, j = b.n; j > 0 && k > 0; k--) {
        bounds[count++] = b.top[j - 1];
        j = from[k - 1][j - 1];
    }
    return count;
}
