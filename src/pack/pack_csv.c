/*
 * pack_csv.c: tables of buffers, in and out.
 *
 * The text stays mapped while the file is open: the buffers hold the numbers, and writing reads the text a second time,
 * row by row, so that columns this program knows nothing about come back as they were.
 */
#include "pack/pack.h"

#include "base/csv.h"
#include "base/error.h"
#include "base/os.h"

#include <inttypes.h>
#include <string.h>

struct memfit_pack_file {
    const memfit_host *host;
    mf_arena names;
    mf_mapping mapping; /* empty when the text is the caller's */
    const char *text;
    size_t bytes;
    mf_pack_buffer *buffers;
    const char **ids;
    size_t count, buffer_capacity, id_capacity;
};

typedef struct columns {
    unsigned lower, upper, size, id, alignment, offset;
    bool inclusive, has_id, has_alignment, has_offset;
} columns;

static memfit_status find_columns(const mf_csv *csv, columns *c, memfit_error *err)
{
    *c = (columns){0};
    memfit_status status;
    c->inclusive = !mf_csv_find(csv, "lower", &c->lower) && mf_csv_find(csv, "start", &c->lower);
    if (!c->inclusive && (status = mf_csv_column(csv, "lower", &c->lower, err)))
        return status;
    if ((status = mf_csv_column(csv, c->inclusive ? "end" : "upper", &c->upper, err)) ||
        (status = mf_csv_column(csv, "size", &c->size, err)))
        return status;
    c->has_id = mf_csv_find(csv, "id", &c->id);
    c->has_alignment = mf_csv_find(csv, "alignment", &c->alignment);
    c->has_offset = mf_csv_find(csv, "offset", &c->offset);
    if (!c->has_offset && csv->columns == MF_CSV_MOST_COLUMNS)
        return mf_fail(err, MEMFIT_DAMAGED, "line 1: %u columns leave no room for one more, \"offset\"", csv->columns);
    return MEMFIT_OK;
}

static memfit_status read_buffer(const mf_csv *csv, const columns *c, unsigned flags, mf_pack_buffer *b,
                                 memfit_error *err)
{
    const int64_t latest = INT64_MAX / 4;
    const uint64_t most = UINT64_C(1) << 60;
    memfit_status status;
    *b = (mf_pack_buffer){0};
    if ((status = mf_csv_i64(csv, c->lower, &b->lower, err)) || (status = mf_csv_i64(csv, c->upper, &b->upper, err)) ||
        (status = mf_csv_u64(csv, c->size, &b->size, err)))
        return status;
    if (b->lower < -latest || b->lower > latest)
        return mf_csv_fail(csv, c->lower, err, "is out of range");
    if (b->upper < -latest || b->upper >= latest)
        return mf_csv_fail(csv, c->upper, err, "is out of range");
    if (c->inclusive)
        b->upper++;
    if (b->upper < b->lower)
        return mf_csv_fail(csv, c->upper, err, "is before the beginning of this lifetime, %" PRId64, b->lower);
    if (b->size > most)
        return mf_csv_fail(csv, c->size, err, "is out of range");
    if (c->has_alignment && *mf_csv_string(csv, c->alignment)) {
        if ((status = mf_csv_u64(csv, c->alignment, &b->alignment, err)))
            return status;
        if (b->alignment == 0 || b->alignment > most)
            return mf_csv_fail(csv, c->alignment, err, "is no alignment");
    }
    if (c->has_offset && *mf_csv_string(csv, c->offset) && !(flags & MEMFIT_PACK_FILE_REPACK)) {
        if ((status = mf_csv_u64(csv, c->offset, &b->offset, err)))
            return status;
        if (b->offset > most)
            return mf_csv_fail(csv, c->offset, err, "is out of range");
        b->fixed = true;
    }
    return MEMFIT_OK;
}

static memfit_status open_table(const memfit_pack_file *f, mf_csv *csv, columns *c, memfit_error *err)
{
    mf_csv_open(csv, f->text, f->bytes);
    memfit_status status = mf_csv_header(csv, err);
    return status ? status : find_columns(csv, c, err);
}

static memfit_status read_rows(memfit_pack_file *f, unsigned flags, memfit_error *err)
{
    mf_csv csv;
    columns c;
    memfit_status status = open_table(f, &csv, &c, err);
    if (status)
        return status;
    uint64_t sum = 0;
    for (bool more;;) {
        if ((status = mf_csv_next(&csv, &more, err)) || !more)
            return status;
        mf_pack_buffer b;
        if ((status = read_buffer(&csv, &c, flags, &b, err)))
            return status;
        if ((sum += b.size + b.alignment + b.offset) > UINT64_C(1) << 61)
            return mf_csv_fail(&csv, c.size, err, "and the sizes before it pass 2^61 bytes");
        const char *id = c.has_id ? mf_arena_strdup(&f->names, mf_csv_string(&csv, c.id))
                                  : mf_arena_printf(&f->names, "%zu", f->count);
        if (!id || !mf_grow(f->host, &f->buffers, &f->buffer_capacity, f->count, sizeof *f->buffers) ||
            !mf_grow(f->host, &f->ids, &f->id_capacity, f->count, sizeof *f->ids))
            return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "line %" PRIu64 ": the host is out of memory", csv.line);
        f->ids[f->count] = id;
        f->buffers[f->count++] = b;
    }
}

memfit_status mf_pack_file_parse(memfit_pack_file **file, const char *text, size_t bytes, unsigned flags,
                                 const memfit_host *host, memfit_error *err)
{
    memfit_pack_file *f = mf_host_zalloc(host, sizeof *f);
    if (!f)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "the host is out of memory");
    f->host = host;
    f->text = text;
    f->bytes = bytes;
    mf_arena_init(&f->names, host);
    memfit_status status = read_rows(f, flags, err);
    if (status)
        memfit_pack_file_close(f);
    else
        *file = f;
    return status;
}

memfit_status memfit_pack_file_open(memfit_pack_file **file, const char *path, unsigned flags, const memfit_host *host,
                                    memfit_error *err)
{
    mf_mapping mapping;
    memfit_status status = mf_os_map_file(path, &mapping, err);
    if (status)
        return status;
    status = mf_pack_file_parse(file, (const char *)mapping.data, (size_t)mapping.bytes, flags, host, err);
    if (status) {
        mf_os_unmap_file(&mapping);
        return mf_error_prefix(err, status, "%s", path);
    }
    (*file)->mapping = mapping;
    return MEMFIT_OK;
}

mf_pack_buffer *memfit_pack_file_buffers(memfit_pack_file *f, size_t *count)
{
    *count = f->count;
    return f->buffers;
}

const char *memfit_pack_file_id(const memfit_pack_file *f, size_t index)
{
    return index < f->count ? f->ids[index] : "";
}

static void put_field(FILE *out, const char *text)
{
    if (!text[strcspn(text, ",\"\r\n")]) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

/* One row; `offset` in its column, or behind the last. */
static void put_row(FILE *out, const char *const *fields, unsigned count, bool has_offset, unsigned column,
                    const char *offset)
{
    for (unsigned i = 0; i < count; i++) {
        if (i)
            fputc(',', out);
        put_field(out, has_offset && i == column ? offset : fields[i]);
    }
    if (!has_offset)
        fprintf(out, ",%s", offset);
    fputc('\n', out);
}

memfit_status mf_pack_file_print(const memfit_pack_file *f, FILE *out, memfit_error *err)
{
    mf_csv csv;
    columns c;
    memfit_status status = open_table(f, &csv, &c, err);
    if (status)
        return status;
    put_row(out, csv.name, csv.columns, c.has_offset, c.offset, "offset");
    for (size_t i = 0; i < f->count; i++) {
        bool more;
        if ((status = mf_csv_next(&csv, &more, err)))
            return status;
        if (!more)
            return mf_fail(err, MEMFIT_IO, "the table was changed while it was open");
        char offset[24];
        snprintf(offset, sizeof offset, "%" PRIu64, f->buffers[i].offset);
        put_row(out, csv.field, csv.fields, c.has_offset, c.offset, offset);
    }
    return MEMFIT_OK;
}

memfit_status memfit_pack_file_write(const memfit_pack_file *f, const char *path, memfit_error *err)
{
    mf_outfile out;
    memfit_status status = mf_os_out_open(&out, path, err);
    if (status)
        return status;
    if ((status = mf_pack_file_print(f, out.file, err))) {
        mf_os_out_abandon(&out);
        return status;
    }
    return mf_os_out_commit(&out, err);
}

void memfit_pack_file_close(memfit_pack_file *f)
{
    if (!f)
        return;
    const memfit_host *host = f->host;
    mf_arena_destroy(&f->names);
    mf_host_free(host, f->buffers, f->buffer_capacity * sizeof *f->buffers);
    mf_host_free(host, f->ids, f->id_capacity * sizeof *f->ids);
    if (f->mapping.data)
        mf_os_unmap_file(&f->mapping);
    mf_host_free(host, f, sizeof *f);
}
