/*
 * chart.h: pictures for a terminal, made of characters, written into the caller's text.
 *
 *     5.5 GiB |              ▂▅▇░          An area: live bytes filled, what is held beyond them shaded.
 *             |       ▃▅▇▅▇████░
 *         0 B |▁▃▅▇█████████████
 *             0 s            12.8 s
 *
 *     activations  ██████████████████▊      3.2 GiB      A bar: parts one after another, each with its own character.
 *
 * Block characters when `utf8`, otherwise # and . and the like. Nothing is wider than `columns`.
 */
#ifndef MF_BASE_CHART_H
#define MF_BASE_CHART_H

#include "base/text.h"

enum { MF_CHART_LEAST_COLUMNS = 30, MF_CHART_MOST_COLUMNS = 200, MF_CHART_MOST_ROWS = 40, MF_CHART_PARTS = 6 };

typedef struct mf_chart_options {
    unsigned columns; /* of the whole picture; 0: 80 */
    unsigned rows;    /* of an area's plot; 0: 10 */
    bool utf8;
} mf_chart_options;

/* Does the terminal speak UTF-8? From LC_ALL, LC_CTYPE and LANG, in this order. */
bool mf_chart_utf8(void);
/* How many samples an area of these options shows: its plot's columns. */
unsigned mf_chart_samples(const mf_chart_options *options);

typedef struct mf_chart_area {
    const uint64_t *filled;   /* `count` samples, bytes */
    const uint64_t *outline;  /* the same, at least as large; NULL: none */
    unsigned count;           /* at most mf_chart_samples(); fewer are stretched */
    uint64_t line_bytes;      /* a level to mark, such as the limit; 0: none */
    const char *left, *right; /* texts under the plot's ends */
} mf_chart_area;
void mf_chart_draw_area(mf_text *out, const mf_chart_area *area, const mf_chart_options *options);

/* One bar. Parts are bytes, the sum of all shown as text behind. `whole_bytes` is what the plot's full width means. */
typedef struct mf_chart_bar {
    const char *label;
    uint64_t parts[MF_CHART_PARTS];
    unsigned part_count;
} mf_chart_bar;
void mf_chart_draw_bars(mf_text *out, const mf_chart_bar *bars, unsigned count, uint64_t whole_bytes,
                        const mf_chart_options *options);

#endif
