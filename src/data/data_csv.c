/*
 * data_csv.c: tables of numbers. The last column, or those named y, label, target or class, are the targets; a header
 * row is recognised by not being numbers. Rows are read twice: once to count, once to convert into a temporary file,
 * so that a table of any length is read in constant memory and in any order.
 */
#include "base/error.h"
#include "data/source.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_FIELD = 64, MOST_COLUMNS = 65536 };

typedef struct table {
    const char *path;
    const char *at, *end;
    uint64_t line;
    int64_t columns, target;
} table;

/* One field; *last is true when the row ends after it. */
static bool next_field(table *t, char *field, bool *last)
{
    size_t n = 0;
    const char *p = t->at;
    while (p < t->end && *p != ',' && *p != ';' && *p != '\t' && *p != '\n' && *p != '\r') {
        if (n + 1 < MOST_FIELD && *p != '"' && *p != ' ')
            field[n++] = *p;
        p++;
    }
    field[n] = 0;
    *last = p >= t->end || *p == '\n' || *p == '\r';
    if (p < t->end && *p == '\r')
        p++;
    if (p < t->end)
        p++;
    t->at = p;
    return n > 0;
}

static void skip_empty(table *t)
{
    while (t->at < t->end && (*t->at == '\n' || *t->at == '\r')) {
        t->line += *t->at == '\n';
        t->at++;
    }
}

static bool is_number(const char *field, double *value)
{
    char *end;
    *value = strtod(field, &end);
    return end != field && *end == 0;
}

/* Looks at the first row: its width, whether it names the columns, which one is the target. */
static memfit_status first_row(table *t, bool *header, memfit_error *err)
{
    char field[MOST_FIELD];
    bool last = false;
    double v;
    const char *start = t->at;
    *header = false;
    t->columns = 0;
    t->target = -1;
    while (!last && t->columns < MOST_COLUMNS) {
        next_field(t, field, &last);
        if (!is_number(field, &v))
            *header = true;
        if (strcasecmp(field, "y") == 0 || strcasecmp(field, "label") == 0 || strcasecmp(field, "target") == 0 ||
            strcasecmp(field, "class") == 0)
            t->target = t->columns;
        t->columns++;
    }
    if (t->columns < 2)
        return mf_fail(err, MEMFIT_DAMAGED, "%s has one column: at least one input and one target are needed", t->path);
    if (t->target < 0)
        t->target = t->columns - 1;
    if (!*header)
        t->at = start;
    else
        t->line++;
    return MEMFIT_OK;
}

static memfit_status convert(table *t, int64_t rows, float *x, float *y, memfit_error *err)
{
    char field[MOST_FIELD];
    for (int64_t r = 0; r < rows; r++) {
        skip_empty(t);
        bool last = false;
        int64_t c = 0, k = 0;
        for (; !last; c++) {
            double v;
            next_field(t, field, &last);
            if (c < t->columns && !is_number(field, &v))
                return mf_fail(err, MEMFIT_DAMAGED, "%s, line %llu, column %lld: \"%s\" is not a number", t->path,
                               (unsigned long long)t->line, (long long)c + 1, field);
            if (c < t->columns && c == t->target)
                y[r] = (float)v;
            else if (c < t->columns)
                x[r * (t->columns - 1) + k++] = (float)v;
        }
        if (c != t->columns)
            return mf_fail(err, MEMFIT_DAMAGED, "%s, line %llu: %lld columns where the first row has %lld", t->path,
                           (unsigned long long)t->line, (long long)c, (long long)t->columns);
        t->line++;
    }
    return MEMFIT_OK;
}

static int64_t count_rows(table t)
{
    int64_t rows = 0;
    for (;;) {
        skip_empty(&t);
        if (t.at >= t.end)
            return rows;
        const char *nl = memchr(t.at, '\n', (size_t)(t.end - t.at));
        t.at = nl ? nl + 1 : t.end;
        rows++;
    }
}

memfit_status mf_source_csv(mf_source *source, const unsigned char *data, uint64_t bytes, const mf_log *log,
                            memfit_error *err)
{
    (void)log;
    table t = {.path = source->path, .at = (const char *)data, .end = (const char *)data + bytes, .line = 1};
    if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        t.at += 3;
    bool header;
    skip_empty(&t);
    memfit_status status = first_row(&t, &header, err);
    if (status != MEMFIT_OK)
        return status;
    int64_t rows = count_rows(t);
    if (rows == 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s holds no rows", source->path);
    unsigned char *space;
    uint64_t x_bytes = (uint64_t)rows * (uint64_t)(t.columns - 1) * 4, y_bytes = (uint64_t)rows * 4;
    status = mf_source_spool(source, x_bytes + y_bytes, &space, err);
    if (status == MEMFIT_OK)
        status = convert(&t, rows, (float *)(void *)space, (float *)(void *)(space + x_bytes), err);
    mf_shape sx = {.rank = 2, .dim = {rows, t.columns - 1}}, sy = {.rank = 1, .dim = {rows}};
    if (status == MEMFIT_OK)
        status = mf_source_add(source, "x", MF_F32, &sx, space, x_bytes, err);
    if (status == MEMFIT_OK)
        status = mf_source_add(source, "y", MF_F32, &sy, space + x_bytes, y_bytes, err);
    return status;
}
