/*
 * csv.h: comma separated values, read row by row without allocating.
 *
 * The first row names the columns; every other row has as many fields. Fields may be quoted ("a,b", "" for a quote
 * inside), rows may end in LF or CRLF, empty rows are skipped, a byte order mark is passed over. Spaces around a field
 * do not count. What is bounded: MF_CSV_MOST_COLUMNS columns, MF_CSV_MOST_ROW bytes in a row. Errors are DAMAGED and
 * name line and column:
 *
 *     line 12, column 4 ("bytes"): "12k" is not a whole number
 *
 *     mf_csv csv;
 *     mf_csv_open(&csv, text, bytes);
 *     mf_csv_header(&csv, err);  mf_csv_column(&csv, "size", &size, err);
 *     while (mf_csv_next(&csv, &more, err) == MEMFIT_OK && more)
 *         mf_csv_u64(&csv, size, &value, err);
 */
#ifndef MF_BASE_CSV_H
#define MF_BASE_CSV_H

#include "memfit/base.h"

enum { MF_CSV_MOST_COLUMNS = 32, MF_CSV_MOST_ROW = 4096 };

typedef struct mf_csv {
    const char *text, *end, *at;
    uint64_t line;    /* of the current row, from 1 */
    uint64_t at_line; /* of the next one */
    unsigned columns;
    unsigned fields; /* in the current row */
    /* The current row's fields and the header's names, zero-terminated, inside `row` and `header`. */
    const char *field[MF_CSV_MOST_COLUMNS];
    const char *name[MF_CSV_MOST_COLUMNS];
    char row[MF_CSV_MOST_ROW + 2 * MF_CSV_MOST_COLUMNS];
    char header[MF_CSV_MOST_ROW + 2 * MF_CSV_MOST_COLUMNS];
} mf_csv;

void mf_csv_open(mf_csv *csv, const char *text, size_t bytes);
memfit_status mf_csv_header(mf_csv *csv, memfit_error *err);
/* The index of a column; DAMAGED with the nearest name when there is none. */
memfit_status mf_csv_column(const mf_csv *csv, const char *name, unsigned *index, memfit_error *err);
/* The same for a column that may be missing: false then. */
bool mf_csv_find(const mf_csv *csv, const char *name, unsigned *index);
/* Reads the next row; *more is false at the end. */
memfit_status mf_csv_next(mf_csv *csv, bool *more, memfit_error *err);

const char *mf_csv_string(const mf_csv *csv, unsigned column);
memfit_status mf_csv_u64(const mf_csv *csv, unsigned column, uint64_t *value, memfit_error *err);
memfit_status mf_csv_i64(const mf_csv *csv, unsigned column, int64_t *value, memfit_error *err);
/* DAMAGED at this place: mf_csv_fail(csv, column, err, "must grow"). The field's text is quoted in front. */
memfit_status mf_csv_fail(const mf_csv *csv, unsigned column, memfit_error *err, const char *format, ...)
    MEMFIT_PRINTF(4, 5);

#endif
