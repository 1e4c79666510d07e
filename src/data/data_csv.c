/*
 * data_csv.c: tables of numbers.
 *
 *   columns   separated by ';' if the first row has one, else by tabs, else by ','; a field in quotes may have one in it
 *   header    a first row without any number, or one whose words stand over a row of numbers
 *   targets   a column named y, label, target or class; else, when the model takes `inputs` columns, what is behind
 *             those (none when predicting); else the last column
 *
 * A target that is a word in the first row of values is a text everywhere: the words are numbered (labels.h).
 *
 * Lines before the first row that begin with # are comments. True and False are 1 and 0. Rows are read twice: once to
 * count, once to convert into a temporary file, so that a table of any length is read in constant memory and in any
 * order.
 *
 * Dropped: a first row is a header as soon as one field is no number. It made a first sample with a missing value
 * vanish without a word.
 */
#include "base/error.h"
#include "base/text.h"
#include "data/labels.h"
#include "data/source.h"

#include <string.h>
#include <strings.h>

enum { MOST_FIELD = 64, MOST_COLUMNS = 65536 };

typedef struct table {
    const char *path;
    const char *at, *end;
    uint64_t line;
    char separator;
    bool names; /* the first row: names of columns in quotes may have line ends in them */
    int64_t columns, first_target, targets;
    mf_labels *labels; /* the only target is a text; NULL: a number */
} table;

static bool ends_line(char c)
{
    return c == '\n' || c == '\r';
}

/* One field; *last is true when the row ends after it. A field that is too long for a number is cut. Quotes count where a
 * field begins with one; within such, two of them are one. */
static void next_field(table *t, char *field, bool *last)
{
    size_t n = 0;
    bool quoted = false, was_quoted = false;
    const char *p = t->at;
    for (; p < t->end && ((t->names && quoted) || !ends_line(*p)) && (quoted || *p != t->separator); p++) {
        if (*p == '"' && (quoted || (!n && !was_quoted))) {
            const bool twice = quoted && p + 1 < t->end && p[1] == '"';
            if (!twice) {
                quoted = !quoted;
                was_quoted = true;
                continue;
            }
            p++;
        }
        if (n + 1 < MOST_FIELD && (n || *p != ' '))
            field[n++] = *p ? *p : '?'; /* zero bytes are what a crash leaves of a file: no end of a number */
        else if (*p != ' ')
            field[MOST_FIELD - 2] = '~'; /* too long: no number whatever it begins with */
    }
    while (n && field[n - 1] == ' ') /* blanks around a field do not count; within one, "5 6" is no number */
        n--;
    field[n] = 0;
    *last = p >= t->end || ends_line(*p);
    if (p + 1 < t->end && p[0] == '\r' && p[1] == '\n')
        p++;
    t->at = p < t->end ? p + 1 : p;
}

/* Lines of nothing but blanks. */
static void skip_empty(table *t)
{
    for (const char *p = t->at; p < t->end && (ends_line(*p) || *p == ' ' || (*p == '\t' && t->separator != '\t'));) {
        bool line_end = ends_line(*p);
        if (p + 1 < t->end && p[0] == '\r' && p[1] == '\n')
            p++;
        p++;
        if (line_end) {
            t->line++;
            t->at = p;
        } else if (p == t->end) {
            t->at = p;
        }
    }
}

static bool is_number(const char *field, double *value)
{
    char *end;
    *value = mf_text_to_double(field, &end);
    if (end != field && *end == 0)
        return true;
    *value = strcasecmp(field, "true") == 0;
    return *value != 0 || strcasecmp(field, "false") == 0;
}

/* Numbers, missing values and words in the row at t->at. */
static void count_fields(table t, int64_t *numbers, int64_t *missing, int64_t *words)
{
    char field[MOST_FIELD];
    double v;
    *numbers = *missing = *words = 0;
    for (bool last = t.at >= t.end; !last;) {
        next_field(&t, field, &last);
        bool gone = !field[0] || !strcasecmp(field, "na") || !strcasecmp(field, "null") || !strcasecmp(field, "none");
        ++*(is_number(field, &v) ? numbers : gone ? missing : words);
    }
}

static bool has_header(const table *t)
{
    int64_t numbers, missing, words, below, none, no;
    count_fields(*t, &numbers, &missing, &words);
    if (numbers == 0)
        return words > 0;
    table next = *t;
    char field[MOST_FIELD];
    for (bool last = false; !last;)
        next_field(&next, field, &last);
    next.names = false;
    skip_empty(&next);
    count_fields(next, &below, &none, &no);
    return words > 0 && missing == 0 && below == numbers + words && none == 0 && no == 0;
}

static void find_separator(table *t)
{
    t->separator = ',';
    bool quoted = false; /* from where a field begins: line ends are protected, too */
    for (const char *p = t->at; p < t->end && (quoted || !ends_line(*p)); p++) {
        if (*p == '"' && (quoted || p == t->at || strchr(",;\t ", p[-1])))
            quoted = !quoted;
        else if (!quoted && (*p == ';' || (*p == '\t' && t->separator == ',')))
            t->separator = *p;
    }
}

/* Looks at the first row: its width, whether it names the columns, which ones are targets. */
static memfit_status first_row(table *t, int64_t inputs, memfit_error *err)
{
    static const char *const names[] = {"y", "label", "target", "class"};
    char field[MOST_FIELD];
    find_separator(t);
    t->names = true;
    bool header = has_header(t), last = false;
    const char *start = t->at;
    t->first_target = -1;
    for (t->columns = 0; !last && t->columns < MOST_COLUMNS; t->columns++) {
        next_field(t, field, &last);
        for (size_t i = 0; header && i < sizeof names / sizeof *names; i++)
            if (strcasecmp(field, names[i]) == 0)
                t->first_target = t->columns;
    }
    if (!last)
        return mf_fail(err, MEMFIT_UNSUPPORTED,
                       "%s has more than %d columns\nsave it as arrays x and y of a .npz or .h5 file", t->path,
                       MOST_COLUMNS);
    t->targets = 1;
    if (t->first_target < 0 && inputs > 0 && inputs <= t->columns) {
        t->first_target = inputs;
        t->targets = t->columns - inputs;
    } else if (t->first_target < 0) {
        t->first_target = t->columns - 1;
    }
    if (t->columns < 2 && t->targets)
        return mf_fail(err, MEMFIT_DAMAGED, "%s has one column: at least one input and one target are needed", t->path);
    t->names = false;
    for (const char *p = start; header && p < t->at; p++)
        t->line += *p == '\n' || (*p == '\r' && (p + 1 == t->end || p[1] != '\n'));
    if (!header)
        t->at = start;
    return MEMFIT_OK;
}

static memfit_status not_a_number(const table *t, int64_t column, const char *field, memfit_error *err)
{
    const char *hint = "numbers are needed: replace names by numbers from 0 (pandas.factorize), dates by days";
    if (!field[0] || !strcasecmp(field, "na") || !strcasecmp(field, "n/a") || !strcasecmp(field, "null") ||
        !strcasecmp(field, "none") || !strcmp(field, "?"))
        hint = "a value is missing: fill it in, or drop the row";
    else if (strspn(field, "0123456789,+-eE") == strlen(field) && strchr(field, ','))
        hint = "is the comma meant as a decimal point? Numbers are read with a point";
    return mf_fail(err, MEMFIT_DAMAGED, "%s, line %llu, column %lld: \"%s\" is not a number\n%s", t->path,
                   (unsigned long long)t->line, (long long)column + 1, field, hint);
}

/* Whether the target of the row at t->at is a word: all of them are then. */
static bool has_text_target(table t)
{
    char field[MOST_FIELD];
    double v;
    bool last = t.at >= t.end;
    skip_empty(&t);
    for (int64_t c = 0; !last && t.targets == 1; c++) {
        next_field(&t, field, &last);
        if (c == t.first_target)
            return field[0] && !is_number(field, &v) && strcasecmp(field, "na") != 0 && strcasecmp(field, "nan") != 0 &&
                   strcasecmp(field, "null") != 0 && strcasecmp(field, "none") != 0;
    }
    return false;
}

static memfit_status take_label(const table *t, const char *field, float *code, memfit_error *err)
{
    int32_t number = 0;
    size_t n = strlen(field);
    if (!n || n >= MOST_FIELD - 1)
        return mf_fail(err, MEMFIT_DAMAGED, "%s, line %llu: %s", t->path, (unsigned long long)t->line,
                       n ? "a label is longer than 62 bytes" : "a label is missing");
    memfit_status status = mf_labels_number(t->labels, field, n, &number, err);
    memcpy(code, &number, sizeof number);
    return status == MEMFIT_OK ? status : mf_error_prefix(err, status, "%s", t->path);
}

static memfit_status convert(table *t, int64_t rows, float *x, float *y, memfit_error *err)
{
    char field[MOST_FIELD];
    for (int64_t r = 0; r < rows; r++) {
        skip_empty(t);
        bool last = false;
        int64_t c = 0;
        for (; !last; c++) {
            double v = 0;
            next_field(t, field, &last);
            if (t->labels && c == t->first_target) {
                memfit_status status = take_label(t, field, y++, err);
                if (status != MEMFIT_OK)
                    return status;
                continue;
            }
            if (c < t->columns && !is_number(field, &v))
                return not_a_number(t, c, field, err);
            if (c < t->columns && c >= t->first_target && c < t->first_target + t->targets)
                *y++ = (float)v;
            else if (c < t->columns)
                *x++ = (float)v;
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
        while (t.at < t.end && !ends_line(*t.at))
            t.at++;
        rows++;
    }
}

memfit_status mf_source_csv(mf_source *source, const unsigned char *data, uint64_t bytes, int64_t inputs,
                            const mf_log *log, memfit_error *err)
{
    (void)log;
    table t = {
        .path = source->path, .at = (const char *)data, .end = (const char *)data + bytes, .line = 1, .separator = ','};
    if (bytes >= 2 && (memcmp(data, "\xff\xfe", 2) == 0 || memcmp(data, "\xfe\xff", 2) == 0))
        return mf_fail(err, MEMFIT_UNSUPPORTED, "%s is text of 16 bits a character (UTF-16)\nsave it as UTF-8",
                       source->path);
    if (bytes >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0)
        t.at += 3;
    for (skip_empty(&t); t.at < t.end && *t.at == '#'; skip_empty(&t))
        while (t.at < t.end && !ends_line(*t.at))
            t.at++;
    memfit_status status = first_row(&t, inputs, err);
    if (status != MEMFIT_OK)
        return status;
    int64_t rows = count_rows(t), wide = t.columns - t.targets;
    if (rows == 0)
        return mf_fail(err, MEMFIT_DAMAGED, "%s holds no rows", source->path);
    unsigned char *space;
    uint64_t x_bytes = (uint64_t)rows * (uint64_t)wide * 4, y_bytes = (uint64_t)rows * (uint64_t)t.targets * 4;
    mf_labels labels;
    mf_labels_begin(&labels, source);
    t.labels = has_text_target(t) ? &labels : NULL;
    status = mf_source_spool(source, x_bytes + y_bytes, &space, err);
    if (status == MEMFIT_OK)
        status = convert(&t, rows, (float *)(void *)space, (float *)(void *)(space + x_bytes), err);
    mf_shape sx = {.rank = 2, .dim = {rows, wide}}, sy = {.rank = t.targets > 1 ? 2 : 1, .dim = {rows, t.targets}};
    if (status == MEMFIT_OK)
        status = mf_source_add(source, "x", MF_F32, &sx, space, x_bytes, err);
    if (status == MEMFIT_OK && t.labels)
        return mf_labels_end(&labels, "y", (int32_t *)(void *)(space + x_bytes), rows, source->classes_given, err);
    mf_labels_drop(&labels);
    if (status == MEMFIT_OK && t.targets)
        status = mf_source_add(source, "y", MF_F32, &sy, space + x_bytes, y_bytes, err);
    return status;
}
