/*
 * report_tables.c: the parts of a report's page that need no script: the curve as a drawing and the tables.
 *
 * The curve is stacked by kind: areas are painted from the highest sum down, so each needs its upper edge only. Every column
 * shows one whole moment, its highest.
 */
#include "answer/report_page.h"

#include "base/text.h"
#include "base/visible.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLUMNS = 300,
    WIDTH = 1000,
    HEIGHT = 260,
    LEFT = 76,
    RIGHT = 992,
    TOP = 12,
    BOTTOM = 234,
    ROWS = 20,
    MOST_CHANGES = 200
};

void mf_page_put_text(FILE *f, const char *text)
{
    char visible[4096];
    mf_format(visible, sizeof visible, "%s", text);
    for (const char *p = visible; *p; p++)
        switch (*p) {
        case '<':
            fputs("&lt;", f);
            break;
        case '>':
            fputs("&gt;", f);
            break;
        case '&':
            fputs("&amp;", f);
            break;
        case '"':
            fputs("&quot;", f);
            break;
        default:
            fputc(*p, f);
        }
}

const char *mf_page_colour(memfit_kind kind)
{
    static const char *const colours[MEMFIT_KIND_COUNT] = {
        [MEMFIT_KIND_PARAMETERS] = "#2563eb",  [MEMFIT_KIND_GRADIENTS] = "#d97706", [MEMFIT_KIND_OPTIMIZER] = "#7c3aed",
        [MEMFIT_KIND_ACTIVATIONS] = "#0d9488", [MEMFIT_KIND_INPUTS] = "#65a30d",    [MEMFIT_KIND_WORKSPACE] = "#e11d48",
        [MEMFIT_KIND_PADDING] = "#cbd5e1",     [MEMFIT_KIND_FIXED] = "#64748b",     [MEMFIT_KIND_OTHER] = "#0891b2"};
    return kind < MEMFIT_KIND_COUNT ? colours[kind] : "#94a3b8";
}

static const char *seconds_text(double ns, char *text, size_t bytes)
{
    snprintf(text, bytes, ns >= 1e10 ? "%.1f s" : ns >= 1e7 ? "%.3f s" : "%.3g ms", ns >= 1e7 ? ns / 1e9 : ns / 1e6);
    return text;
}

static void put_size(FILE *f, uint64_t bytes)
{
    char text[24];
    fputs(memfit_size_format(bytes, text, sizeof text), f);
}

static void put_signed(FILE *f, int64_t bytes)
{
    fputs(bytes < 0 ? "-" : "+", f);
    put_size(f, (uint64_t)llabs(bytes));
}

/* ---- the curve -------------------------------------------------------------------------------------------- */

static double x_of(const mf_report *r, uint64_t ns)
{
    return LEFT + (RIGHT - LEFT) * (r->duration_ns ? (double)ns / (double)r->duration_ns : 0);
}

static double y_of(uint64_t bytes, uint64_t top)
{
    return BOTTOM - (BOTTOM - TOP) * ((double)bytes / (double)top);
}

static void put_area(FILE *f, const mf_report *r, const mf_report_bands *b, uint32_t rows, uint64_t top)
{
    fprintf(f, "<path fill=\"%s\" d=\"M%d %d", mf_page_colour(b->row[rows - 1].kind), LEFT, BOTTOM);
    for (uint32_t c = 0; c < b->columns; c++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < rows; k++)
            sum += b->at[(uint64_t)k * b->columns + c];
        fprintf(f, "H%.1fV%.1f", x_of(r, b->times[c]), y_of(sum, top));
    }
    fprintf(f, "H%dV%dZ\"/>\n", RIGHT, BOTTOM);
}

memfit_status mf_page_put_curve(FILE *f, const mf_report *r, memfit_error *err)
{
    mf_report_bands b;
    memfit_status status =
        mf_report_cut(r, COLUMNS, 0, &b, err); /* no rows of their own: the rest of each kind is the kind */
    if (status)
        return status;
    char size[24], when[32];
    uint64_t top =
        r->limit_bytes > r->peak_bytes && r->limit_bytes < 4 * r->peak_bytes ? r->limit_bytes : r->peak_bytes;
    fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Live bytes over time\">\n", WIDTH, HEIGHT);
    fputs("<style>svg text{font:12px system-ui,sans-serif;fill:var(--dim)}</style>\n", f);
    for (uint32_t k = b.rows; k > 0; k--)
        put_area(f, r, &b, k, top);
    if (top == r->limit_bytes)
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#dc2626\" stroke-dasharray=\"8 4\"/>\n",
                LEFT, RIGHT, TOP, TOP);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>", LEFT - 6, TOP + 8,
            memfit_size_format(top, size, sizeof size));
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">0</text>", LEFT - 6, BOTTOM);
    fprintf(f, "<text x=\"%d\" y=\"%d\">0 s</text>", LEFT, BOTTOM + 18);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n</svg>\n", RIGHT, BOTTOM + 18,
            seconds_text((double)r->duration_ns, when, sizeof when));
    fputs("<ul class=\"legend\">", f);
    for (uint32_t k = 0; k < b.rows; k++) {
        fprintf(f, "<li><span class=\"dot\" style=\"background:%s\"></span>%s ", mf_page_colour(b.row[k].kind),
                memfit_kind_name(b.row[k].kind));
        put_size(f, r->kind_bytes[b.row[k].kind]);
        fputs("</li>", f);
    }
    fputs("</ul>\n", f);
    mf_report_bands_free(&b);
    return MEMFIT_OK;
}

/* ---- tables ----------------------------------------------------------------------------------------------- */

static void open_table(FILE *f, const char *title, const char *const *heads)
{
    fprintf(f, "<section><h2>%s</h2>\n<table><thead><tr><th>Owner</th><th class=\"wide\">Kind</th>", title);
    for (; *heads; heads++)
        fprintf(f, "<th class=\"n%s\">%s</th>", **heads == '*' ? " wide" : "",
                *heads + (**heads == '*')); /* *: where there is room */
    fputs("</tr></thead><tbody>\n", f);
}

static void put_owner(FILE *f, const char *name, memfit_kind kind)
{
    fputs("<tr><td class=\"name\" title=\"", f);
    mf_page_put_text(f, name);
    fprintf(f, "\"><span class=\"t\"><span class=\"dot\" style=\"background:%s\"></span>", mf_page_colour(kind));
    mf_page_put_text(f, name);
    fprintf(f, "</span></td><td class=\"wide\">%s</td>", memfit_kind_name(kind));
}

static void put_size_cell(FILE *f, uint64_t bytes)
{
    fputs("<td class=\"n\">", f);
    put_size(f, bytes);
    fputs("</td>", f);
}

static void put_wide_size_cell(FILE *f, uint64_t bytes)
{
    fputs("<td class=\"n wide\">", f);
    put_size(f, bytes);
    fputs("</td>", f);
}

static void close_table(FILE *f)
{
    fputs("</tbody></table></section>\n", f);
}

void mf_page_put_owners(FILE *f, const mf_report *r)
{
    static const char *const heads[] = {"At the peak", "Share", NULL};
    uint64_t rest = r->peak_bytes;
    uint32_t i = 0, count = 0;
    open_table(f, "At the peak", heads);
    while (count < r->owner_count && r->owners[count].peak_bytes)
        count++;
    for (; i < count && i < ROWS; i++) {
        const mf_report_owner *o = &r->owners[i];
        rest -= o->peak_bytes;
        put_owner(f, o->name, o->kind);
        put_size_cell(f, o->peak_bytes);
        fprintf(f, "<td class=\"n\">%.1f %%</td></tr>\n", 100 * (double)o->peak_bytes / (double)r->peak_bytes);
    }
    if (i < count) {
        fprintf(f, "<tr><td class=\"name\">%u more</td><td class=\"wide\"></td>", count - i);
        put_size_cell(f, rest);
        fprintf(f, "<td class=\"n\">%.1f %%</td></tr>\n", 100 * (double)rest / (double)r->peak_bytes);
    }
    fputs("<tr class=\"sum\"><td class=\"name\">all</td><td class=\"wide\"></td>", f);
    put_size_cell(f, r->peak_bytes);
    fputs("<td class=\"n\">100 %</td></tr>\n", f);
    close_table(f);
}

void mf_page_put_held(FILE *f, const mf_report *r)
{
    static const char *const heads[] = {"Mean", "Longest", NULL};
    char when[32];
    if (!r->duration_ns)
        return;
    open_table(f, "Held longest (bytes × time)", heads);
    for (uint32_t i = 0; i < r->owner_count && i < ROWS; i++) {
        const mf_report_owner *o = &r->owners[r->held[i]];
        put_owner(f, o->name, o->kind);
        put_size_cell(f, (uint64_t)(o->byte_seconds / ((double)r->duration_ns / 1e9)));
        fprintf(f, "<td class=\"n\">%s</td></tr>\n", seconds_text((double)o->longest_ns, when, sizeof when));
    }
    close_table(f);
}

void mf_page_put_growth(FILE *f, const mf_report *r)
{
    static const char *const heads[] = {"In all", "A step", NULL};
    if (!r->growing) {
        fputs("<section><h2>Growth from step to step</h2><p>", f);
        if (!r->step_count)
            fputs("The trace has no marks of steps, and its curve does not repeat.", f);
        else
            fprintf(f, "%u steps%s. %s", r->step_count, r->steps_found ? ", found in the curve" : "",
                    r->growth_steps ? "Nothing grows from one to the next." : "They are too few to say what grows.");
        fputs("</p></section>\n", f);
        return;
    }
    open_table(f, "Growth from step to step", heads);
    for (uint32_t i = 0, shown = 0; i < r->owner_count && shown < ROWS; i++) {
        const mf_report_owner *o = &r->owners[i];
        if (!o->growing)
            continue;
        shown++;
        uint64_t grown = o->last_bytes - o->first_bytes;
        put_owner(f, o->name, o->kind);
        fputs("<td class=\"n up\">+", f);
        put_size(f, grown);
        fputs("</td>", f);
        put_size_cell(f, grown / r->growth_steps);
        fputs("</tr>\n", f);
    }
    close_table(f);
}

void mf_page_put_pool(FILE *f, const mf_report *r)
{
    fputs("<section><h2>Live, reserved, and what memfit would have held</h2>\n<dl><dt>live at the peak</dt><dd>", f);
    put_size(f, r->peak_bytes);
    fputs("</dd>", f);
    if (r->reserved_peak_bytes) {
        fprintf(f, "<dt>reserved by the recorded allocator</dt><dd>%s", r->reserved_before ? "at least " : "");
        put_size(f, r->reserved_peak_bytes);
        fprintf(f, ", %.3f times as much</dd>", (double)r->reserved_peak_bytes / (double)r->peak_bytes);
    }
    if (r->pool.known) {
        fputs("<dt>memfit's pool, for the same requests</dt><dd>", f);
        put_size(f, r->pool.physical_bytes);
        fprintf(f, ", %.3f times as much</dd>", (double)r->pool.physical_bytes / (double)r->peak_bytes);
    }
    if (r->planned.known) {
        char text[1024];
        mf_report_planned_text(r, text, sizeof text);
        fputs("<dt>memfit's plan of the model</dt><dd>", f);
        mf_page_put_text(f, text);
        fputs("</dd>", f);
    }
    fputs("</dl></section>\n", f);
}

/* ---- two traces ------------------------------------------------------------------------------------------- */

static void put_step_pairs(FILE *f, const mf_report *a, const mf_report *b)
{
    uint32_t both = a->step_count < b->step_count ? a->step_count : b->step_count;
    if (!both)
        return;
    fputs("<section><h2>Step by step</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th "
          "class=\"n\">Step</th><th class=\"n\">First</th><th class=\"n\">Second</th>"
          "<th class=\"n\">Change</th></tr></thead><tbody>\n",
          f);
    for (uint32_t i = 0; i < both && i < MOST_CHANGES; i++) {
        fprintf(f, "<tr><td class=\"n\">%u</td>", i + 1);
        put_size_cell(f, a->steps[i].peak_bytes);
        put_size_cell(f, b->steps[i].peak_bytes);
        int64_t change = (int64_t)(b->steps[i].peak_bytes - a->steps[i].peak_bytes);
        fprintf(f, "<td class=\"n %s\">", change > 0 ? "up" : "down");
        put_signed(f, change);
        fputs("</td></tr>\n", f);
    }
    fputs("</tbody></table></div></section>\n", f);
}

void mf_page_put_difference(FILE *f, const mf_report *a, const mf_report *b, const mf_report_difference *d)
{
    static const char *const heads[] = {"*First", "*Second", "Change", NULL};
    if (!d->count) {
        fputs("<section id=\"difference\"><h2>Difference</h2><p>At their peaks every owner holds the "
              "same.</p></section>\n",
              f);
        return;
    }
    open_table(f, "Difference at the peaks", heads);
    int64_t rest = d->peak_bytes;
    uint32_t i = 0;
    for (; i < d->count && i < MOST_CHANGES; i++) {
        const mf_report_change *c = &d->changes[i];
        int64_t change = (int64_t)(c->after - c->before);
        rest -= change;
        put_owner(f, c->name, c->kind);
        put_wide_size_cell(f, c->before);
        put_wide_size_cell(f, c->after);
        fprintf(f, "<td class=\"n %s\" data-bytes=\"%" PRId64 "\">", change > 0 ? "up" : "down", change);
        put_signed(f, change);
        fputs("</td></tr>\n", f);
    }
    if (i < d->count) {
        fprintf(f,
                "<tr><td class=\"name\">%u more</td><td class=\"wide\"></td><td class=\"wide\"></td><td "
                "class=\"wide\"></td><td class=\"n\" data-bytes=\"%" PRId64 "\">",
                d->count - i, rest);
        put_signed(f, rest);
        fputs("</td></tr>\n", f);
    }
    fputs("<tr class=\"sum\"><td class=\"name\">all</td><td class=\"wide\"></td>", f);
    put_wide_size_cell(f, a->peak_bytes);
    put_wide_size_cell(f, b->peak_bytes);
    fprintf(f, "<td class=\"n\" id=\"peak-difference\" data-bytes=\"%" PRId64 "\">", d->peak_bytes);
    put_signed(f, d->peak_bytes);
    fputs("</td></tr>\n", f);
    close_table(f);
    put_step_pairs(f, a, b);
}
