/*
 * terminal.c: see terminal.h.
 *
 * The commands and the library print lines of any length without colour: that is what files, tests and the documentation
 * get. Here, in one place for all of them, a stream is put in front of the terminal (fopencookie; glibc lets a program
 * assign stdout and stderr) that folds each line (base/fold.h) and colours the words a line begins with.
 */
#include "cli/terminal.h"

#include "base/fold.h"
#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST_LINE = 4096, NARROWEST = 20, WIDEST = 1000 };

typedef struct view {
    int fd;
    unsigned columns; /* 0: any */
    bool colour;
    bool begun; /* the start of this line was flushed: the rest follows as it is */
    size_t used;
    char line[LONGEST_LINE];
    char buffer[LONGEST_LINE];
} view;

static bool put(void *ctx, const char *text, size_t bytes)
{
    const view *v = ctx;
    while (bytes) {
        ssize_t n = write(v->fd, text, bytes);
        if (n < 0)
            return false;
        text += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* ---- colour ----------------------------------------------------------------------------------------------- */

static const struct {
    const char *word, *code;
} coloured[] = {{"DOES NOT FIT", "31;1"}, {"TIGHT", "33;1"}, {"FITS", "32;1"}, {"NOT KNOWN", "33;1"},
                {"too much ", "31"},      {"tight ", "33"},  {"fits ", "32"},  {"bad ", "31;1"},
                {"note ", "33"},          {"ok ", "32"},     {"memfit:", "1"}};

/* The code of the word a line begins with, and where that word ends; NULL: none. */
static const char *colour_of(const char *line, size_t bytes, size_t *from, size_t *to)
{
    for (*from = 0; *from < bytes && line[*from] == ' ';)
        ++*from;
    for (size_t i = 0; i < sizeof coloured / sizeof *coloured; i++) {
        size_t n = strlen(coloured[i].word);
        if (bytes - *from >= n && memcmp(line + *from, coloured[i].word, n) == 0) {
            *to = *from + n;
            return coloured[i].code;
        }
    }
    return NULL;
}

static bool put_coloured(view *v, const char *line, size_t bytes)
{
    char start[16];
    size_t from, to;
    const char *code = v->colour ? colour_of(line, bytes, &from, &to) : NULL;
    if (!code)
        return put(v, line, bytes);
    int n = snprintf(start, sizeof start, "\033[%sm", code);
    return put(v, line, from) && put(v, start, (size_t)n) && put(v, line + from, to - from) && put(v, "\033[0m", 4) &&
           put(v, line + to, bytes - to);
}

/* The first piece that folding hands over is the line's beginning; colour adds no cells. */
static bool put_piece(void *ctx, const char *text, size_t bytes)
{
    view *v = ctx;
    if (v->begun)
        return put(v, text, bytes);
    v->begun = true;
    return put_coloured(v, text, bytes);
}

/* ---- the stream ------------------------------------------------------------------------------------------- */

/* What is drawn over (progress) was made for the width; the last of it stays, and is folded as any line. */
static bool end_line(view *v)
{
    const char *drawn = memrchr(v->line, '\r', v->used);
    size_t before = drawn ? (size_t)(drawn - v->line) + 1 : 0;
    bool as_it_is = (v->begun && !drawn) || memchr(v->line + before, '\033', v->used - before);
    v->begun = v->begun && !drawn;
    bool ok = put(v, v->line, before);
    ok = ok && (as_it_is ? put(v, v->line + before, v->used - before) && put(v, "\n", 1)
                         : mf_fold_line(v->line + before, v->used - before, v->columns, put_piece, v));
    v->begun = false;
    v->used = 0;
    return ok;
}

static bool put_begun(view *v)
{
    bool ok = put(v, v->line, v->used);
    v->begun = true;
    v->used = 0;
    return ok;
}

/* Lines come whole: the stream is line-buffered. What comes without its end was flushed, and is wanted now. */
static ssize_t write_view(void *cookie, const char *data, size_t bytes)
{
    view *v = cookie;
    bool ok = true;
    for (size_t i = 0; i < bytes && ok; i++) {
        if (data[i] == '\n') {
            ok = end_line(v);
            continue;
        }
        if (v->used == LONGEST_LINE)
            ok = put_begun(v);
        v->line[v->used++] = data[i];
    }
    if (ok && v->used)
        ok = put_begun(v);
    return ok ? (ssize_t)bytes : 0; /* 0, not -1: fopencookie's word for an error */
}

static unsigned width_of(FILE *file)
{
    unsigned columns = mf_os_terminal_columns(file);
    const char *given = getenv("COLUMNS");
    long asked = columns || !given ? 0 : strtol(given, NULL, 10);
    return columns ? columns : asked >= NARROWEST && asked <= WIDEST ? (unsigned)asked : 0;
}

unsigned cli_terminal_width(void)
{
    return width_of(stdout);
}

static bool is_coloured(FILE *file, const char *word)
{
    const char *no = getenv("NO_COLOR"), *yes = getenv("CLICOLOR"), *force = getenv("CLICOLOR_FORCE"),
               *term = getenv("TERM");
    if (word && strcmp(word, "auto") != 0)
        return strcmp(word, "always") == 0;
    if (no && *no)
        return false;
    if (force && *force && strcmp(force, "0") != 0)
        return true;
    return mf_os_terminal_columns(file) && !(yes && strcmp(yes, "0") == 0) && !(term && strcmp(term, "dumb") == 0);
}

/* The stream in front of `file`, or `file` itself where nothing is to be done. */
static FILE *look_through(FILE *file, int fd, view *v, const char *colour)
{
    *v = (view){.fd = fd, .columns = width_of(file), .colour = is_coloured(file, colour)};
    if (!v->columns && !v->colour)
        return file;
    FILE *seen = fopencookie(v, "w", (cookie_io_functions_t){.write = write_view});
    if (!seen)
        return file;
    setvbuf(seen, v->buffer, _IOLBF, sizeof v->buffer);
    return seen;
}

void cli_terminal_begin(bool json, const char *colour)
{
    static view out, err;
    if (!json)
        stdout = look_through(stdout, STDOUT_FILENO, &out, colour);
    stderr = look_through(stderr, STDERR_FILENO, &err, colour);
}
