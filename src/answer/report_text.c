/*
 * report_text.c: a report on a terminal: the verdict, the curve, who held memory at the peak, who held it longest, what
 * grows; of two traces, what differs. Nothing is wider than the terminal: sentences are wrapped between words, names cut
 * at their end. Names are made visible before they are cut, so that what is shown instead of a control character counts.
 */
#include "answer/report.h"

#include "base/chart.h"
#include "base/visible.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 10, MORE_ROWS = 40, NAME = 40, CHART_ROWS = 10 };

/* ---- widths ----------------------------------------------------------------------------------------------- */

/* Cells of a character: the scripts that take two. */
static unsigned cells_of(uint32_t c)
{
    static const uint32_t wide[][2] = {{0x1100, 0x115f}, {0x2e80, 0xa4cf},   {0xac00, 0xd7a3},
                                       {0xf900, 0xfaff}, {0xfe30, 0xfe6f},   {0xff00, 0xff60},
                                       {0xffe0, 0xffe6}, {0x1f300, 0x1faff}, {0x20000, 0x3fffd}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (c >= wide[i][0] && c <= wide[i][1])
            return 2;
    return 1;
}

/* Bytes of visible text that fit into `cells`; *used says how many of them. */
static size_t fitting(const char *text, unsigned cells, unsigned *used)
{
    size_t n = strlen(text), at = 0;
    *used = 0;
    while (at < n) {
        uint32_t code;
        bool plain;
        size_t step = mf_visible_step(text + at, n - at, &code, &plain);
        unsigned width = cells_of(code);
        if (*used + width > cells)
            break;
        *used += width;
        at += step;
    }
    return at;
}

/* A name in at most `cells` cells; what is cut ends in dots. */
static const char *cut_name(const char *name, unsigned cells, bool utf8, char *out, size_t bytes)
{
    char visible[2048];
    unsigned used;
    mf_format(visible, sizeof visible, "%s", name);
    size_t n = fitting(visible, cells, &used);
    if (!visible[n]) {
        snprintf(out, bytes, "%s", visible);
        return out;
    }
    const char *dots = utf8 ? "…" : "..";
    n = fitting(visible, cells > 2 ? cells - (utf8 ? 1 : 2) : 1, &used);
    snprintf(out, bytes, "%.*s%s", (int)n, visible, dots);
    return out;
}

/* Visible text, wrapped between words; lines after the first are indented. A word longer than a line has one to itself. */
static void print_wrapped(FILE *f, const char *text, unsigned columns, unsigned indent)
{
    unsigned at = 0;
    while (*text) {
        size_t n = strcspn(text, " \n");
        char word[1024];
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
        unsigned width;
        size_t fits = fitting(word, columns > indent ? columns - indent : 1, &width);
        word[fits] = 0;
        if (at && at + 1 + width > columns) {
            mf_print(f, "\n%*s", (int)indent, "");
            at = indent;
        } else if (at > 0 && at != indent) {
            mf_print(f, " ");
            at++;
        }
        mf_print(f, "%s", word);
        at += width;
        text += n;
        if (*text == '\n') {
            mf_print(f, "\n%*s", (int)indent, "");
            at = indent;
        }
        text += *text != 0;
    }
    mf_print(f, "\n");
}

/* ---- sentences -------------------------------------------------------------------------------------------- */

static const char *seconds_text(uint64_t ns, char *text, size_t bytes)
{
    if (ns >= 10000000000ull)
        snprintf(text, bytes, "%.1f s", (double)ns / 1e9);
    else if (ns >= 10000000)
        snprintf(text, bytes, "%.3f s", (double)ns / 1e9);
    else
        snprintf(text, bytes, "%.3g ms", (double)ns / 1e6);
    return text;
}

static void add(char *text, size_t bytes, const char *format, ...) MEMFIT_PRINTF(3, 4);
static void add(char *text, size_t bytes, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    mf_vformat(text + n, bytes - n, format, args);
    va_end(args);
}

void mf_report_verdict(const mf_report *r, char *text, size_t bytes)
{
    char size[24], when[32], name[256];
    *text = 0;
    add(text, bytes, "Peak %s, %s after the start", memfit_size_format(r->peak_bytes, size, sizeof size),
        seconds_text(r->peak_ns, when, sizeof when));
    uint32_t step = mf_report_step_of(r, r->peak_event);
    if (step)
        add(text, bytes, ", in step %u of %u", step, r->step_count);
    if (r->limit_bytes)
        add(text, bytes, ", of a limit of %s", memfit_size_format(r->limit_bytes, size, sizeof size));
    add(text, bytes, ". Held most then: ");
    for (uint32_t i = 0; i < 3 && i < r->owner_count && r->owners[i].peak_bytes; i++) {
        const mf_report_owner *o = &r->owners[i];
        const char *kind = o->kind == MEMFIT_KIND_OTHER ? "" : memfit_kind_name(o->kind);
        memfit_size_format(o->peak_bytes, size, sizeof size);
        add(text, bytes, "%s", i ? ", " : "");
        if (*kind && strcmp(o->name, "(no name)") == 0)
            add(text, bytes, "%s without a name (%s)", kind, size);
        else
            add(text, bytes, "%s (%s%s%s)", cut_name(o->name, NAME, true, name, sizeof name), kind, *kind ? ", " : "",
                size);
    }
    add(text, bytes, ".");
}

static void advise_fails(const mf_report *r, char *text, size_t bytes)
{
    char size[24], when[32], name[256];
    if (!r->fail_count)
        return;
    const mf_report_fail *f = &r->fails[0];
    add(text, bytes, "%" PRIu64 " request%s refused, the first for %s after %s", r->fail_count,
        r->fail_count == 1 ? " was" : "s were", memfit_size_format(f->bytes, size, sizeof size),
        seconds_text(f->time_ns, when, sizeof when));
    if (*f->name)
        add(text, bytes, " by %s", cut_name(f->name, NAME, true, name, sizeof name));
    add(text, bytes, ": memfit explain says why. ");
}

static void advise_growth(const mf_report *r, char *text, size_t bytes)
{
    const mf_report_owner *most = NULL;
    uint64_t grown = 0;
    for (uint32_t i = 0; i < r->owner_count; i++)
        if (r->owners[i].growing && r->owners[i].last_bytes - r->owners[i].first_bytes > grown) {
            most = &r->owners[i];
            grown = most->last_bytes - most->first_bytes;
        }
    if (!most)
        return;
    char size[24], name[256];
    const char *kind = most->kind == MEMFIT_KIND_OTHER ? NULL : memfit_kind_name(most->kind);
    add(text, bytes,
        "%s%s%s%s grows by %s a step: something keeps what it made, such as a list of losses that still hold their "
        "graph "
        "(append loss.item() instead). ",
        cut_name(most->name, NAME, true, name, sizeof name), kind ? " (" : "", kind ? kind : "", kind ? ")" : "",
        memfit_size_format(grown / r->growth_steps, size, sizeof size));
}

static void advise_reserved(const mf_report *r, char *text, size_t bytes)
{
    char a[24], b[24];
    double ratio = (double)r->reserved_peak_bytes / (double)r->peak_bytes;
    if (ratio < 1.1)
        return;
    add(text, bytes, "The allocator reserved %s, %.2f times the peak",
        memfit_size_format(r->reserved_peak_bytes, a, sizeof a), ratio);
    if (r->pool.known && r->pool.physical_bytes < r->reserved_peak_bytes)
        add(text, bytes, "; memfit's pool would have held %s", memfit_size_format(r->pool.physical_bytes, b, sizeof b));
    add(text, bytes, ". In PyTorch, PYTORCH_ALLOC_CONF=expandable_segments:True reserves less. ");
}

static void advise_kind(const mf_report *r, char *text, size_t bytes)
{
    static const char *const ways[MEMFIT_KIND_COUNT] = {
        [MEMFIT_KIND_ACTIVATIONS] = "a smaller batch, accumulated gradients or recomputation makes them smaller",
        [MEMFIT_KIND_OPTIMIZER] = "an optimizer with less state makes them smaller; a smaller batch does not",
        [MEMFIT_KIND_PARAMETERS] = "lower precision or fewer parameters makes them smaller; a smaller batch does not",
        [MEMFIT_KIND_GRADIENTS] = "updating each parameter as soon as its gradient is there lets gradients go early",
        [MEMFIT_KIND_WORKSPACE] = "a smaller batch or other algorithms of the library need less",
        [MEMFIT_KIND_FIXED] = "a process pays it before its first tensor, and nothing in the model makes it smaller",
    };
    for (unsigned k = 0; k < MEMFIT_KIND_COUNT; k++)
        if (ways[k] && r->kind_bytes[k] > r->peak_bytes / 2) {
            add(text, bytes, "%.0f %% of the peak is %s: %s. ", 100 * (double)r->kind_bytes[k] / (double)r->peak_bytes,
                k == MEMFIT_KIND_FIXED ? "fixed cost" : memfit_kind_name((memfit_kind)k), ways[k]);
            return;
        }
    if (r->growing)
        return; /* what grows comes first, and was named */
    double share = 100 * (double)r->owners[0].peak_bytes / (double)r->peak_bytes;
    if (share >= 25)
        add(text, bytes, "The first of them is %.0f %% of the peak: begin there. ", share);
    else
        add(text, bytes, "None stands out (the largest is %.1f %%): a smaller batch or recomputation lowers all. ",
            share);
}

void mf_report_advice(const mf_report *r, char *text, size_t bytes)
{
    *text = 0;
    advise_fails(r, text, bytes);
    advise_growth(r, text, bytes);
    advise_reserved(r, text, bytes);
    advise_kind(r, text, bytes);
    size_t n = strlen(text);
    if (n && text[n - 1] == ' ')
        text[n - 1] = 0;
}

/* ---- the curve -------------------------------------------------------------------------------------------- */

static void print_chart(FILE *f, const mf_report *r, const mf_report_view *v)
{
    mf_chart_options o = {.columns = v->columns, .rows = CHART_ROWS, .utf8 = v->utf8};
    uint64_t live[MF_CHART_MOST_COLUMNS], reserved[MF_CHART_MOST_COLUMNS];
    char text[1 << 14], end[128], when[32];
    mf_text out;
    mf_text_init(&out, text, sizeof text);
    unsigned count = mf_chart_samples(&o);
    bool has = r->reserved_peak_bytes > 0;
    mf_report_curve(r, count, live, reserved);
    for (unsigned i = 0; i < count; i++)
        reserved[i] = reserved[i] > live[i] ? reserved[i] : live[i];
    snprintf(end, sizeof end, "%s%s%s  %s", v->utf8 ? "█ live" : "# live",
             has ? (v->utf8 ? "  ░ reserved" : "  . reserved") : "",
             r->limit_bytes ? (v->utf8 ? "  ─ limit" : "  - limit") : "",
             seconds_text(r->duration_ns, when, sizeof when));
    mf_chart_area area = {
        .filled = live, .outline = has ? reserved : NULL, .count = count, .left = "0 s", .right = end};
    /* A limit far above everything would press the curve flat. */
    area.line_bytes = r->limit_bytes < 4 * r->peak_bytes ? r->limit_bytes : 0;
    mf_chart_draw_area(&out, &area, &o);
    mf_print(f, "\n");
    fputs(text, f);
}

/* ---- tables ----------------------------------------------------------------------------------------------- */

static unsigned row_limit(const mf_report_view *v)
{
    return v->verbose ? MORE_ROWS : ROWS;
}

/* One row: two figures, the kind, and as much of the name as fits. */
static void print_row(FILE *f, const mf_report_view *v, const char *first, const char *second, memfit_kind kind,
                      const char *name)
{
    char cut[1024];
    unsigned taken = 2 + 11 + 2 + 10 + 2 + 11 + 2;
    unsigned left = v->columns > taken + 8 ? v->columns - taken : 8;
    mf_print(f, "  %11s  %10s  %-11s  %s\n", first, second, memfit_kind_name(kind),
             cut_name(name, left, v->utf8, cut, sizeof cut));
}

static void print_owners(FILE *f, const mf_report *r, const mf_report_view *v)
{
    char size[24], share[24];
    uint32_t shown = 0, count = 0;
    uint64_t rest = r->peak_bytes;
    mf_print(f, "\nat the peak\n");
    while (count < r->owner_count && r->owners[count].peak_bytes)
        count++;
    for (; shown < count && shown < row_limit(v); shown++) {
        const mf_report_owner *o = &r->owners[shown];
        rest -= o->peak_bytes;
        snprintf(share, sizeof share, "%.1f %%", 100 * (double)o->peak_bytes / (double)r->peak_bytes);
        print_row(f, v, memfit_size_format(o->peak_bytes, size, sizeof size), share, o->kind, o->name);
    }
    if (shown < count)
        mf_print(f, "  %11s  %8.1f %%  %u more\n", memfit_size_format(rest, size, sizeof size),
                 100 * (double)rest / (double)r->peak_bytes, count - shown);
}

static void print_held(FILE *f, const mf_report *r, const mf_report_view *v)
{
    char size[24], when[32];
    if (!r->duration_ns)
        return;
    mf_print(f, "\nheld longest (mean over the trace; longest buffer)\n");
    for (uint32_t i = 0; i < r->owner_count && i < row_limit(v); i++) {
        const mf_report_owner *o = &r->owners[r->held[i]];
        double mean = o->byte_seconds / ((double)r->duration_ns / 1e9);
        print_row(f, v, memfit_size_format((uint64_t)mean, size, sizeof size),
                  seconds_text(o->longest_ns, when, sizeof when), o->kind, o->name);
    }
}

static void print_growth(FILE *f, const mf_report *r, const mf_report_view *v)
{
    char a[24], size[32], each[40];
    if (!r->step_count) {
        mf_print(f, "\nno steps: the trace has no marks, and its curve does not repeat\n");
        return;
    }
    mf_print(f, "\n%u step%s%s: ", r->step_count, r->step_count == 1 ? "" : "s",
             r->steps_found ? ", found in the curve" : "");
    if (!r->growing) {
        mf_print(f, "%s\n", r->growth_steps ? "nothing grows from one to the next" : "too few to say what grows");
        return;
    }
    mf_print(f, "growing (in all; a step)\n");
    uint32_t shown = 0;
    for (uint32_t i = 0; i < r->owner_count && shown < row_limit(v); i++) {
        const mf_report_owner *o = &r->owners[i];
        if (!o->growing)
            continue;
        uint64_t grown = o->last_bytes - o->first_bytes;
        snprintf(size, sizeof size, "+%s", memfit_size_format(grown, a, sizeof a));
        snprintf(each, sizeof each, "%s", memfit_size_format(grown / r->growth_steps, a, sizeof a));
        print_row(f, v, size, each, o->kind, o->name);
        shown++;
    }
    if (shown < r->growing)
        mf_print(f, "  and %u more\n", r->growing - shown);
}

static void print_pool(FILE *f, const mf_report *r, const mf_report_view *v)
{
    char a[24], text[1024] = "memfit's plan  ";
    mf_print(f, "\n");
    if (r->reserved_peak_bytes)
        mf_print(f, "reserved       %s%s, %.3f times the peak\n", r->reserved_before ? "at least " : "",
                 memfit_size_format(r->reserved_peak_bytes, a, sizeof a),
                 (double)r->reserved_peak_bytes / (double)r->peak_bytes);
    if (r->pool.known)
        mf_print(f, "memfit's pool  %s, %.3f times the peak\n", memfit_size_format(r->pool.physical_bytes, a, sizeof a),
                 (double)r->pool.physical_bytes / (double)r->peak_bytes);
    size_t n = strlen(text);
    mf_report_planned_text(r, text + n, sizeof text - n);
    if (text[n])
        print_wrapped(f, text, v->columns, (unsigned)n);
}

/* ---- the whole -------------------------------------------------------------------------------------------- */

static void print_head(FILE *f, const mf_report *r, const mf_report_view *v)
{
    char a[24], b[24], when[32], cut[256], text[1024];
    mf_print(f, "%s\n", cut_name(r->title, v->columns, v->utf8, cut, sizeof cut));
    snprintf(text, sizeof text, "%s events, %s buffers, %s", mf_format_count(r->moved, a, sizeof a),
             mf_format_count(r->buffers, b, sizeof b), seconds_text(r->duration_ns, when, sizeof when));
    if (r->device_count > 1)
        add(text, sizeof text, "; device %u, the busiest of %u", r->device, r->device_count);
    if (r->info.before_buffers)
        add(text, sizeof text, "; %" PRIu64 " of them were there when the recording began", r->info.before_buffers);
    if (r->info.cut)
        add(text, sizeof text, "; the recording was cut off");
    if (r->left_out)
        add(text, sizeof text, "; %u file%s of the folder %s", r->left_out, r->left_out == 1 ? "" : "s",
            r->left_out == 1 ? "is not a trace" : "are not traces");
    print_wrapped(f, text, v->columns, 0);
}

static void print_one(FILE *f, const mf_report *r, const mf_report_view *v)
{
    char text[2048];
    mf_report_verdict(r, text, sizeof text);
    if (v->quiet) {
        print_wrapped(f, text, v->columns, 0);
        return;
    }
    print_head(f, r, v);
    mf_print(f, "\n");
    print_wrapped(f, text, v->columns, 0);
    mf_report_advice(r, text, sizeof text);
    print_wrapped(f, text, v->columns, 0);
    print_chart(f, r, v);
    print_owners(f, r, v);
    print_held(f, r, v);
    print_growth(f, r, v);
    print_pool(f, r, v);
}

static const char *signed_size(int64_t bytes, char *text, size_t room)
{
    char size[24];
    snprintf(text, room, "%s%s", bytes < 0 ? "-" : "+", memfit_size_format((uint64_t)llabs(bytes), size, sizeof size));
    return text;
}

static void print_step_pairs(FILE *f, const mf_report *a, const mf_report *b, const mf_report_view *v)
{
    uint32_t both = a->step_count < b->step_count ? a->step_count : b->step_count;
    if (!both)
        return;
    mf_print(f, "\nstep    first's peak  second's peak   difference\n");
    for (uint32_t i = 0; i < both && i < row_limit(v); i++) {
        char x[24], y[24], d[32];
        mf_print(f, "%4u  %14s %14s %12s\n", i + 1, memfit_size_format(a->steps[i].peak_bytes, x, sizeof x),
                 memfit_size_format(b->steps[i].peak_bytes, y, sizeof y),
                 signed_size((int64_t)(b->steps[i].peak_bytes - a->steps[i].peak_bytes), d, sizeof d));
    }
    if (both > row_limit(v))
        mf_print(f, "      %u more\n", both - row_limit(v));
}

static void print_difference(FILE *f, const mf_report_view *v)
{
    const mf_report_difference *d = v->difference;
    char x[24], y[24], z[32], text[256], cut_a[256], cut_b[256];
    if (d->peak_bytes == 0)
        snprintf(text, sizeof text, "Both peaks are %s.", memfit_size_format(v->report->peak_bytes, x, sizeof x));
    else
        snprintf(text, sizeof text, "From %s to %s the peak changes by %s.",
                 memfit_size_format(v->report->peak_bytes, x, sizeof x),
                 memfit_size_format(v->other->peak_bytes, y, sizeof y), signed_size(d->peak_bytes, z, sizeof z));
    print_wrapped(f, text, v->columns, 0);
    if (v->quiet)
        return;
    mf_print(f, "first   %s\n", cut_name(v->report->title, v->columns - 8, v->utf8, cut_a, sizeof cut_a));
    mf_print(f, "second  %s\n", cut_name(v->other->title, v->columns - 8, v->utf8, cut_b, sizeof cut_b));
    if (!d->count) {
        mf_print(f, "\nAt their peaks every owner holds the same.\n");
        return;
    }
    mf_print(f, "\nat the peaks (change; in the second)\n");
    int64_t rest = d->peak_bytes;
    uint32_t shown = 0;
    for (; shown < d->count && shown < row_limit(v); shown++) {
        const mf_report_change *c = &d->changes[shown];
        int64_t change = (int64_t)(c->after - c->before);
        rest -= change;
        print_row(f, v, signed_size(change, z, sizeof z), memfit_size_format(c->after, x, sizeof x), c->kind, c->name);
    }
    if (shown < d->count)
        mf_print(f, "  %11s  %10s  %u more\n", signed_size(rest, z, sizeof z), "", d->count - shown);
    print_step_pairs(f, v->report, v->other, v);
}

void mf_report_print(FILE *file, const mf_report_view *view)
{
    mf_report_view v = *view;
    v.columns = v.columns ? v.columns : 80;
    v.columns = v.columns < MF_CHART_LEAST_COLUMNS ? MF_CHART_LEAST_COLUMNS : v.columns;
    if (v.difference)
        print_difference(file, &v);
    else
        print_one(file, v.report, &v);
}
