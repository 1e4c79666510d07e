/*
 * csv.c: rows are copied field by field into a fixed buffer, so that fields are zero-terminated strings and quoting is
 * already undone. The copy costs less than the conversions that follow it; pointing into the text was tried and makes
 * every user carry lengths.
 *
 * Invariant between calls: text <= at <= end, and `at` is the start of a row or the end.
 */
#include "base/csv.h"

#include "base/error.h"
#include "base/visible.h"
#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 40 }; /* characters of a field shown in an error */

void mf_csv_open(mf_csv *csv, const char *text, size_t bytes)
{
    memset(csv, 0, sizeof *csv);
    csv->text = csv->at = text;
    csv->end = text + bytes;
    csv->at_line = 1;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        csv->at += 3;
}

static bool at_row_end(const mf_csv *csv)
{
    return csv->at == csv->end || *csv->at == '\n' ||
           (*csv->at == '\r' && csv->end - csv->at > 1 && csv->at[1] == '\n');
}

static void pass_row_end(mf_csv *csv)
{
    if (csv->at < csv->end && *csv->at == '\r')
        csv->at++;
    if (csv->at < csv->end)
        csv->at++;
    csv->at_line++;
}

/* Does the rest of this line hold nothing but blanks? Then passes it. */
static bool pass_blank_row(mf_csv *csv)
{
    const char *start = csv->at;
    while (csv->at < csv->end && (*csv->at == ' ' || *csv->at == '\t'))
        csv->at++;
    if (csv->at < csv->end && at_row_end(csv)) {
        pass_row_end(csv);
        return true;
    }
    if (csv->at != csv->end)
        csv->at = start;
    return false;
}

static memfit_status quoted(mf_csv *csv, unsigned column, char **out, const char *limit, memfit_error *err)
{
    for (csv->at++;; csv->at++) {
        if (csv->at == csv->end || *csv->at == '\n')
            return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ", column %u: a quoted field does not end", csv->line,
                           column + 1);
        if (*csv->at == '"') {
            csv->at++;
            if (csv->at == csv->end || *csv->at != '"')
                break;
        }
        if (*out == limit)
            return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ": longer than %d bytes", csv->line, MF_CSV_MOST_ROW);
        *(*out)++ = *csv->at;
    }
    while (csv->at < csv->end && (*csv->at == ' ' || *csv->at == '\t'))
        csv->at++;
    if (!at_row_end(csv) && *csv->at != ',')
        return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ", column %u: text after the closing quote", csv->line,
                       column + 1);
    return MEMFIT_OK;
}

static memfit_status plain(mf_csv *csv, unsigned column, char **out, const char *limit, memfit_error *err)
{
    const char *start = csv->at;
    while (!at_row_end(csv) && *csv->at != ',') {
        if (!*csv->at)
            return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ", column %u: a zero byte; this is not text file",
                           csv->line, column + 1);
        csv->at++;
    }
    const char *stop = csv->at;
    while (stop > start && (stop[-1] == ' ' || stop[-1] == '\t' || stop[-1] == '\r'))
        stop--;
    if (stop - start > limit - *out)
        return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ": longer than %d bytes", csv->line, MF_CSV_MOST_ROW);
    memcpy(*out, start, (size_t)(stop - start));
    *out += stop - start;
    return MEMFIT_OK;
}

/* One row into `buffer`, its fields into `field`. */
static memfit_status read_row(mf_csv *csv, char *buffer, const char **field, unsigned *count, memfit_error *err)
{
    csv->line = csv->at_line;
    char *out = buffer;
    unsigned n = 0;
    for (;;) {
        if (n == MF_CSV_MOST_COLUMNS)
            return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ": more than %d columns", csv->line,
                           MF_CSV_MOST_COLUMNS);
        while (csv->at < csv->end && (*csv->at == ' ' || *csv->at == '\t'))
            csv->at++;
        field[n] = out;
        /* Each field adds one closing zero, for which the buffer has room beyond the row's bytes. */
        const char *limit = buffer + MF_CSV_MOST_ROW + n;
        bool is_quoted = csv->at < csv->end && *csv->at == '"';
        memfit_status status = is_quoted ? quoted(csv, n, &out, limit, err) : plain(csv, n, &out, limit, err);
        if (status)
            return status;
        *out++ = 0;
        n++;
        if (csv->at == csv->end || *csv->at != ',')
            break;
        csv->at++;
    }
    pass_row_end(csv);
    *count = n;
    return MEMFIT_OK;
}

memfit_status mf_csv_header(mf_csv *csv, memfit_error *err)
{
    while (pass_blank_row(csv))
        ;
    if (csv->at == csv->end)
        return mf_fail(err, MEMFIT_DAMAGED, "line 1: the file is empty; it must begin with a row of column names");
    return read_row(csv, csv->header, csv->name, &csv->columns, err);
}

bool mf_csv_find(const mf_csv *csv, const char *name, unsigned *index)
{
    for (unsigned i = 0; i < csv->columns; i++)
        if (strcmp(csv->name[i], name) == 0) {
            *index = i;
            return true;
        }
    return false;
}

memfit_status mf_csv_column(const mf_csv *csv, const char *name, unsigned *index, memfit_error *err)
{
    if (mf_csv_find(csv, name, index))
        return MEMFIT_OK;
    const char *words[MF_CSV_MOST_COLUMNS + 1] = {0};
    for (unsigned i = 0; i < csv->columns; i++)
        words[i] = csv->name[i];
    const char *near = mf_nearest(name, words);
    if (near)
        return mf_fail(err, MEMFIT_DAMAGED, "line 1: no column \"%s\"\nis it the one called \"%.*s\"?", name, SHOWN,
                       near);
    return mf_fail(err, MEMFIT_DAMAGED, "line 1: no column \"%s\"", name);
}

memfit_status mf_csv_next(mf_csv *csv, bool *more, memfit_error *err)
{
    *more = false;
    while (pass_blank_row(csv))
        ;
    if (csv->at == csv->end)
        return MEMFIT_OK;
    memfit_status status = read_row(csv, csv->row, csv->field, &csv->fields, err);
    if (status)
        return status;
    if (csv->fields != csv->columns)
        return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ": %u field%s, but the header names %u column%s", csv->line,
                       csv->fields, csv->fields == 1 ? "" : "s", csv->columns, csv->columns == 1 ? "" : "s");
    *more = true;
    return MEMFIT_OK;
}

memfit_status mf_csv_fail(const mf_csv *csv, unsigned column, memfit_error *err, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    mf_vformat(text, sizeof text, format, args);
    va_end(args);
    const char *field = column < csv->fields ? csv->field[column] : "";
    return mf_fail(err, MEMFIT_DAMAGED, "line %" PRIu64 ", column %u (\"%.*s\"): \"%.*s\"%s %s", csv->line, column + 1,
                   SHOWN, column < csv->columns ? csv->name[column] : "", SHOWN, field,
                   strlen(field) > SHOWN ? "..." : "", text);
}

const char *mf_csv_string(const mf_csv *csv, unsigned column)
{
    return column < csv->fields ? csv->field[column] : "";
}

memfit_status mf_csv_u64(const mf_csv *csv, unsigned column, uint64_t *value, memfit_error *err)
{
    const char *text = mf_csv_string(csv, column);
    uint64_t n = 0;
    if (!*text)
        return mf_csv_fail(csv, column, err, "is not a whole number");
    for (const char *p = text; *p; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (*p < '0' || *p > '9')
            return mf_csv_fail(csv, column, err, "is not a whole number");
        if (n > (UINT64_MAX - digit) / 10)
            return mf_csv_fail(csv, column, err, "is too large");
        n = n * 10 + digit;
    }
    *value = n;
    return MEMFIT_OK;
}

memfit_status mf_csv_i64(const mf_csv *csv, unsigned column, int64_t *value, memfit_error *err)
{
    const char *text = mf_csv_string(csv, column);
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || !(*text == '-' || (*text >= '0' && *text <= '9')))
        return mf_csv_fail(csv, column, err, "is not a whole number");
    if (errno)
        return mf_csv_fail(csv, column, err, "is too large");
    *value = n;
    return MEMFIT_OK;
}
