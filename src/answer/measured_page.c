/*
 * measured_page.c: see measured_page.h.
 *
 *     bytes |- - - - - - - - - limit      measured bytes as an area, one column a sample; the plan's and the limit's lines
 *           |_ _ _ _ _ _ _ _ _ planned    over it, which have steps where a lower limit made another plan; epochs as ticks
 *           |  _______________            on the axis
 *           |_|
 *           +----------------- seconds
 *
 * The page is read back and not made again: a second plan would cost the time of the first, and for a limit that was not
 * given (what is available) it would be another one.
 */
#include "answer/measured_page.h"

#include "answer/report_page.h"
#include "base/error.h"
#include "base/os.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>

enum { LEFT = 78, RIGHT = 992, TOP = 26, BOTTOM = 292 };

/* ---- readings --------------------------------------------------------------------------------------------- */

void mf_measured_init(mf_measured *m)
{
    memset(m, 0xff, sizeof *m);
    m->count = m->filled = 0;
    m->each = 1;
}

/* The higher of two, with what each says of epochs and of its own moment. */
static mf_measured_sample higher(const mf_measured_sample *a, const mf_measured_sample *b)
{
    mf_measured_sample s = b->bytes > a->bytes ? *b : *a;
    s.seconds = a->seconds; /* a column begins where its stretch does */
    s.planned_bytes = b->planned_bytes;
    s.limit_bytes = b->limit_bytes;
    s.epoch_end = a->epoch_end || b->epoch_end;
    return s;
}

void mf_measured_add(mf_measured *m, const mf_measured_sample *reading)
{
    if (m->count && m->filled < m->each) {
        m->samples[m->count - 1] = higher(&m->samples[m->count - 1], reading);
        m->filled++;
        return;
    }
    if (m->count == MF_MEASURED_SAMPLES) {
        for (uint32_t i = 0; i < MF_MEASURED_SAMPLES / 2; i++)
            m->samples[i] = higher(&m->samples[2 * i], &m->samples[2 * i + 1]);
        m->count /= 2;
        m->each *= 2;
    }
    m->samples[m->count++] = *reading;
    m->filled = 1;
}

/* ---- the drawing ------------------------------------------------------------------------------------------ */

typedef struct chart {
    const mf_measured *m;
    double seconds; /* at the right edge */
    uint64_t top;   /* bytes at the upper edge */
} chart;

static void put_size(FILE *f, uint64_t bytes)
{
    char text[24];
    fputs(memfit_size_format(bytes, text, sizeof text), f);
}

static double x_of(const chart *c, uint32_t sample)
{
    double seconds = sample < c->m->count ? c->m->samples[sample].seconds : c->seconds;
    return LEFT + (RIGHT - LEFT) * seconds / c->seconds;
}

static double y_of(const chart *c, uint64_t bytes)
{
    return BOTTOM - (double)(BOTTOM - TOP) * (double)bytes / (double)c->top;
}

/* A limit far above everything would press the curve onto the axis: it is then said below. */
static chart scale(const mf_measured *m)
{
    uint64_t most = 1, limit = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        const mf_measured_sample *s = &m->samples[i];
        most = s->bytes > most ? s->bytes : most;
        most = s->planned_bytes > most ? s->planned_bytes : most;
        limit = s->limit_bytes > limit ? s->limit_bytes : limit;
    }
    if (limit > most && limit < most + most / 2)
        most = limit;
    double last = m->samples[m->count - 1].seconds, step = m->count > 1 ? last / (m->count - 1) : 1;
    return (chart){m, last + (step > 0 ? step : 1e-3), most + most / 20 + 1};
}

static void put_area(FILE *f, const chart *c)
{
    fprintf(f, "<path fill=\"%s\" fill-opacity=\"0.6\" d=\"M%d %d", mf_page_colour(MEMFIT_KIND_ACTIVATIONS), LEFT,
            BOTTOM);
    for (uint32_t i = 0; i < c->m->count; i++)
        fprintf(f, "H%.1fV%.1f", x_of(c, i), y_of(c, c->m->samples[i].bytes));
    fprintf(f, "H%dV%dZ\"><title>measured</title></path>\n", RIGHT, BOTTOM);
}

static uint64_t value_of(const mf_measured_sample *s, bool limit)
{
    return limit ? s->limit_bytes : s->planned_bytes;
}

/* One line where the value stays as it is; the first and every other one says how much. */
static void put_line(FILE *f, const chart *c, bool limit)
{
    const mf_measured *m = c->m;
    for (uint32_t i = 0, next; i < m->count; i = next) {
        uint64_t bytes = value_of(&m->samples[i], limit);
        for (next = i + 1; next < m->count && value_of(&m->samples[next], limit) == bytes;)
            next++;
        if (!bytes || bytes > c->top)
            continue;
        double y = y_of(c, bytes);
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-width=\"1.5\"%s/>"
                "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" style=\"fill:%s\">%s ",
                x_of(c, i), x_of(c, next), y, y, limit ? "#dc2626" : "currentColor",
                limit ? "" : " stroke-dasharray=\"6 4\"", limit ? x_of(c, i) + 4 : x_of(c, next) - 4,
                limit ? y - 5 : y + 15, limit ? "start" : "end", limit ? "var(--bad)" : "currentColor",
                limit ? "limit" : "planned");
        put_size(f, bytes);
        fputs("</text>\n", f);
    }
}

static void put_grid(FILE *f, const chart *c)
{
    uint64_t step = 1;
    while (step < c->top / 6 + 1)
        step *= 2;
    for (uint64_t bytes = 0; bytes <= c->top; bytes += step) {
        double y = y_of(c, bytes);
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#94a3b8\" stroke-opacity=\"0.35\"/>",
                LEFT, RIGHT, y, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8, y + 4);
        if (bytes)
            put_size(f, bytes);
        else
            fputc('0', f);
        fputs("</text>\n", f);
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">start</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.3g seconds</text>\n",
            LEFT, BOTTOM + 20, RIGHT, BOTTOM + 20, c->m->samples[c->m->count - 1].seconds);
}

/* Ticks of epochs, and what each column says when it is pointed at. */
static void put_columns(FILE *f, const chart *c)
{
    for (uint32_t i = 0; i < c->m->count; i++)
        if (c->m->samples[i].epoch_end)
            fprintf(f, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"currentColor\"/>\n", x_of(c, i + 1),
                    x_of(c, i + 1), BOTTOM, BOTTOM + 6);
    fputs("<g fill=\"#000\" fill-opacity=\"0\">\n", f);
    for (uint32_t i = 0; i < c->m->count; i++) {
        const mf_measured_sample *s = &c->m->samples[i];
        fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>%.3g s, %lld step%s: ", x_of(c, i),
                TOP, x_of(c, i + 1) - x_of(c, i), BOTTOM - TOP, s->seconds, (long long)s->step,
                s->step == 1 ? "" : "s");
        put_size(f, s->bytes);
        fputs(" measured", f);
        if (s->planned_bytes) {
            fputs(" of ", f);
            put_size(f, s->planned_bytes);
            fputs(" planned", f);
        }
        fputs("</title></rect>\n", f);
    }
    fputs("</g>\n", f);
}

static void put_chart(FILE *f, const mf_measured *m)
{
    chart c = scale(m);
    uint64_t limit = m->samples[m->count - 1].limit_bytes;
    fputs(
        "<div class=\"wide\"><svg viewBox=\"0 0 1000 320\" role=\"img\" aria-label=\"measured memory over time, beside "
        "what was planned and the limit\">\n",
        f);
    put_area(f, &c);
    put_grid(f, &c);
    put_line(f, &c, false);
    put_line(f, &c, true);
    put_columns(f, &c);
    fputs("</svg></div>\n<p class=\"dim\">The area is what the process held, the dashed line what the plan promised. ",
          f);
    fputs(m->each > 1 ? "Each column shows the highest of its readings. Ticks are ends of epochs."
                      : "Ticks are ends of epochs.",
          f);
    if (limit > c.top) {
        fputs(" The limit, ", f);
        put_size(f, limit);
        fputs(", is far above this picture.", f);
    }
    fputs("</p>\n", f);
}

/* ---- the section ------------------------------------------------------------------------------------------ */

static void put_row(FILE *f, const char *name, uint64_t bytes, const char *more)
{
    if (!bytes)
        return;
    fprintf(f, "<tr><td>%s</td><td>", name);
    put_size(f, bytes);
    fprintf(f, "%s</td></tr>\n", more);
}

static void put_figures(FILE *f, const mf_measured_run *run)
{
    fputs("<div class=\"wide\"><table class=\"facts\">\n", f);
    put_row(f, "measured", run->measured_bytes, " at most, the whole process");
    put_row(f, "planned", run->planned_bytes, ", fixed cost and arena");
    put_row(f, "limit", run->limit_bytes, "");
    put_row(f, "fixed cost", run->fixed_bytes, ", measured after every operation had run once");
    put_row(f, "arena", run->arena_bytes, "");
    if (run->arena_bytes)
        put_row(f, "arena used", run->arena_used_bytes,
                run->arena_used_bytes == run->arena_bytes ? ", to the byte" : "");
    fprintf(f, "<tr><td>steps</td><td>%lld", (long long)run->steps);
    if (run->step_ms > 0)
        fprintf(f, ", %.3g ms each", run->step_ms);
    if (run->allocations >= 0)
        fprintf(f, ", %lld allocations in them", (long long)run->allocations);
    fputs("</td></tr>\n</table></div>\n", f);
}

static void put_verdict(FILE *f, const mf_measured_run *run)
{
    fprintf(f, "<section><h2>%s</h2>\n", run->title);
    if (run->measured_bytes && run->planned_bytes) {
        bool within = run->measured_bytes <= run->planned_bytes;
        fputs("<p>The process held at most ", f);
        put_size(f, run->measured_bytes);
        fputs("; the plan it ran with promised ", f);
        put_size(f, run->planned_bytes);
        fprintf(f, ": <span class=\"%s\">", within ? "good" : "bad");
        put_size(f, within ? run->planned_bytes - run->measured_bytes : run->measured_bytes - run->planned_bytes);
        fprintf(f, " %s</span>.</p>\n", within ? "below" : "above");
    }
    for (const char *line = run->message; line && *line;) {
        char text[1024];
        size_t n = strcspn(line, "\n");
        snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), line);
        fputs("<p>", f);
        mf_page_put_text(f, text);
        fputs("</p>\n", f);
        line += n + (line[n] == '\n');
    }
}

/* Where `words` stand in the page; NULL: they do not. */
static const char *find(const mf_mapping *page, const char *words)
{
    return page->bytes ? memmem(page->data, page->bytes, words, strlen(words)) : NULL;
}

memfit_status mf_measured_write(const char *path, const mf_measured *m, const mf_measured_run *run, memfit_error *err)
{
    mf_mapping page;
    memfit_status status = mf_os_map_file(path, &page, err);
    if (status)
        return status;
    const char *begin = find(&page, MF_MEASURED_BEGIN), *end = find(&page, MF_MEASURED_END);
    mf_outfile out;
    if (!begin || !end || end < begin)
        status = mf_fail(err, MEMFIT_NOT_FOUND,
                         "%s is no longer the page of this run's plan: it stays as it is\n"
                         "somebody changed it while the run went on",
                         path);
    else
        status = mf_os_out_open(&out, path, err);
    if (!status) {
        size_t before = (size_t)(begin - (const char *)page.data) + strlen(MF_MEASURED_BEGIN);
        FILE *f = out.file;
        fwrite(page.data, 1, before, f);
        put_verdict(f, run);
        if (m->count)
            put_chart(f, m);
        if (run->steps || run->measured_bytes)
            put_figures(f, run);
        fputs("</section>\n", f);
        fwrite(end, 1, page.bytes - (size_t)(end - (const char *)page.data), f);
        if (ferror(f)) {
            status = mf_fail(err, MEMFIT_IO, "%s: writing failed: %s", path, strerror(errno));
            mf_os_out_abandon(&out);
        } else {
            status = mf_os_out_commit(&out, err);
        }
    }
    mf_os_unmap_file(&page);
    return status;
}
