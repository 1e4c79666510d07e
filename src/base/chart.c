/*
 * chart.c: areas and bars of characters.
 *
 * An area's cell is filled in eighths: a sample of v bytes at a scale of top bytes for rows * 8 eighths. The filled
 * part is drawn over the outline's, which is shaded in whole cells: a cell shows how much of it is live, or that it is
 * held. ASCII has two levels, a cell is filled when at least half of it is.
 *
 * A bar's parts are cut at cumulated bytes, so that rounding never makes the bar longer than its sum.
 */
#include "base/chart.h"

#include <stdlib.h>
#include <string.h>

enum { LABEL = 10, TAIL = 11 };

static const char *const eighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char *const parts_utf8[MF_CHART_PARTS] = {"█", "▓", "▒", "░", "▚", "·"};
static const char *const parts_ascii[MF_CHART_PARTS] = {"#", "=", "+", "-", ":", "."};

bool mf_chart_utf8(void)
{
    static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

static unsigned width_of(const mf_chart_options *options)
{
    unsigned columns = options->columns ? options->columns : 80;
    if (columns < MF_CHART_LEAST_COLUMNS)
        columns = MF_CHART_LEAST_COLUMNS;
    return columns > MF_CHART_MOST_COLUMNS ? MF_CHART_MOST_COLUMNS : columns;
}

static unsigned rows_of(const mf_chart_options *options)
{
    unsigned rows = options->rows ? options->rows : 10;
    return rows > MF_CHART_MOST_ROWS ? MF_CHART_MOST_ROWS : rows;
}

unsigned mf_chart_samples(const mf_chart_options *options)
{
    return width_of(options) - LABEL - 2;
}

/* floor(a * b / c) without overflow. */
static uint64_t scale(uint64_t a, uint64_t b, uint64_t c)
{
    return c ? (uint64_t)((unsigned __int128)a * b / c) : 0;
}

static void repeat(mf_text *out, const char *what, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        mf_text_add(out, "%s", what);
}

/* The character of one cell: `filled` and `outline` are heights in eighths, `base` the cell's lower edge. */
static const char *area_cell(uint64_t filled, uint64_t outline, uint64_t line, uint64_t base, bool utf8)
{
    uint64_t inside = filled <= base ? 0 : filled - base >= 8 ? 8 : filled - base;
    bool held = outline > base + 3;
    bool marked = line > base && line <= base + 8;
    if (!utf8)
        return inside >= 4 ? "#" : held ? "." : marked ? "-" : " ";
    if (inside == 8 || (inside && !held))
        return eighths[inside];
    if (held)
        return inside >= 4 ? eighths[inside] : "░";
    return marked ? "─" : " ";
}

static void row_label(mf_text *out, uint64_t top, unsigned row, unsigned rows)
{
    char text[24] = "";
    if (row == 0)
        memfit_size_format(top, text, sizeof text);
    else if (row == rows / 2 && rows >= 4)
        memfit_size_format(scale(top, rows - row, rows), text, sizeof text);
    mf_text_add(out, "%*s ", LABEL, text);
}

void mf_chart_draw_area(mf_text *out, const mf_chart_area *area, const mf_chart_options *options)
{
    unsigned width = mf_chart_samples(options), rows = rows_of(options);
    uint64_t top = area->line_bytes;
    for (unsigned i = 0; i < area->count; i++) {
        top = area->filled[i] > top ? area->filled[i] : top;
        top = area->outline && area->outline[i] > top ? area->outline[i] : top;
    }
    if (!top)
        top = 1;
    uint64_t line = scale(area->line_bytes, rows * 8, top);
    for (unsigned row = 0; row < rows; row++) {
        uint64_t base = (uint64_t)(rows - 1 - row) * 8;
        row_label(out, top, row, rows);
        mf_text_add(out, "%s", options->utf8 ? "│" : "|");
        for (unsigned x = 0; x < width && area->count; x++) {
            unsigned i = (unsigned)scale(x, area->count, width);
            uint64_t filled = scale(area->filled[i], rows * 8, top);
            uint64_t outline = area->outline ? scale(area->outline[i], rows * 8, top) : 0;
            mf_text_add(out, "%s", area_cell(filled, outline, line, base, options->utf8));
        }
        mf_text_add(out, "\n");
    }
    const char *left = area->left ? area->left : "", *right = area->right ? area->right : "";
    mf_text_add(out, "%*s %s", LABEL, "0 B", options->utf8 ? "└" : "+");
    repeat(out, options->utf8 ? "─" : "-", width);
    size_t used = mf_text_width(left) + mf_text_width(right);
    mf_text_add(out, "\n%*s  %s", LABEL, "", left);
    repeat(out, " ", used < width ? width - (unsigned)used : 1);
    mf_text_add(out, "%s\n", right);
}

/* A label in exactly `cells` cells, cut at a character's edge. */
static void put_label(mf_text *out, const char *label, unsigned cells)
{
    unsigned n = 0;
    const char *p = label;
    while (*p && n < cells) {
        size_t step = 1;
        while (((unsigned char)p[step] & 0xc0) == 0x80)
            step++;
        p += step;
        n++;
    }
    mf_text_add(out, "%.*s", (int)(p - label), label);
    repeat(out, " ", cells - n);
}

void mf_chart_draw_bars(mf_text *out, const mf_chart_bar *bars, unsigned count, uint64_t whole_bytes,
                        const mf_chart_options *options)
{
    unsigned columns = width_of(options), label = 4;
    for (unsigned i = 0; i < count; i++) {
        unsigned w = (unsigned)mf_text_width(bars[i].label);
        label = w > label ? w : label;
    }
    label = label > columns / 3 ? columns / 3 : label;
    unsigned plot = columns - label - 1 - TAIL;
    for (unsigned i = 0; i < count; i++) {
        put_label(out, bars[i].label, label);
        mf_text_add(out, " ");
        uint64_t sum = 0;
        unsigned drawn = 0;
        for (unsigned p = 0; p < bars[i].part_count && p < MF_CHART_PARTS; p++) {
            sum += bars[i].parts[p];
            uint64_t end = scale(sum, plot, whole_bytes);
            unsigned stop = end > plot ? plot : (unsigned)end;
            repeat(out, options->utf8 ? parts_utf8[p] : parts_ascii[p], stop - drawn);
            drawn = stop;
        }
        /* What is there but thinner than a cell still shows. */
        if (!drawn && sum) {
            mf_text_add(out, "%s", options->utf8 ? "▏" : "|");
            drawn = 1;
        }
        char text[24];
        repeat(out, " ", plot - drawn);
        mf_text_add(out, " %*s\n", TAIL - 1, memfit_size_format(sum, text, sizeof text));
    }
}
