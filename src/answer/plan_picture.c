/*
 * plan_picture.c: see plan_picture.h.
 *
 *     bytes |  ..........          each column stands for some operations and shows the highest of them whole, so the
 *           |  :     ____:         picture never mixes two moments; areas are painted from the highest sum down, so each
 *           |  : ___|    |___      needs its upper edge only. The dots are the step as asked, where the plan is another.
 *           |___|            |__
 *           +------------------- operations
 */
#include "answer/plan_picture.h"

#include "answer/report_page.h"
#include "base/error.h"
#include "base/memory.h"

#include <string.h>

enum { LEFT = 78, RIGHT = 992, TOP = 26, BOTTOM = 292 };

const memfit_kind mf_picture_parts[MF_PICTURE_PARTS] = {
    MEMFIT_KIND_FIXED,  MEMFIT_KIND_PARAMETERS,  MEMFIT_KIND_OPTIMIZER, MEMFIT_KIND_GRADIENTS,
    MEMFIT_KIND_INPUTS, MEMFIT_KIND_ACTIVATIONS, MEMFIT_KIND_WORKSPACE, MEMFIT_KIND_PADDING};

static void put_size(FILE *f, uint64_t bytes)
{
    char text[24];
    fputs(memfit_size_format(bytes, text, sizeof text), f);
}

/* ---- bytes by operation ----------------------------------------------------------------------------------- */

typedef struct timeline {
    uint64_t (*live)[MEMFIT_KIND_COUNT]; /* by operation, then by column */
    uint32_t *shown;                     /* by column: the operation it shows */
    uint32_t steps, columns;
    uint64_t top; /* bytes at the upper edge of the picture */
} timeline;

static bool take_timeline(const memfit_host *host, const mf_phase *phase, timeline *t)
{
    t->steps = phase->step_count;
    t->columns = t->steps < MF_ANSWER_CURVE ? t->steps : MF_ANSWER_CURVE;
    t->live = mf_host_zalloc(host, t->steps * sizeof *t->live);
    t->shown = mf_host_zalloc(host, MF_ANSWER_CURVE * sizeof *t->shown);
    return t->live && t->shown;
}

static void leave_timeline(const memfit_host *host, timeline *t)
{
    mf_host_free(host, t->live, t->steps * sizeof *t->live);
    mf_host_free(host, t->shown, MF_ANSWER_CURVE * sizeof *t->shown);
}

/* Bytes of every kind at every operation, by differences; then the highest of every column in its place. */
static void fill_timeline(timeline *t, const mf_plan *plan, const mf_phase *phase)
{
    for (uint32_t i = 0; i < phase->placed_count; i++) {
        const mf_placed *p = &phase->placed[i];
        uint32_t end = p->handed_on ? p->last : p->last + 1;
        t->live[p->first][p->kind] += p->bytes;
        if (end < t->steps)
            t->live[end][p->kind] -= p->bytes; /* wraps, and is made up for by the sums below */
    }
    uint64_t base[MEMFIT_KIND_COUNT] = {0};
    base[MEMFIT_KIND_FIXED] = plan->fixed_bytes;
    for (uint32_t v = 0; v < plan->variable_count; v++)
        base[plan->variable_kinds[v]] += plan->variable_bytes[v];
    uint64_t now[MEMFIT_KIND_COUNT], highest = 0;
    memcpy(now, base, sizeof now);
    for (uint32_t s = 0, column = MF_NONE; s < t->steps; s++) {
        uint64_t sum = 0;
        for (int k = 0; k < MEMFIT_KIND_COUNT; k++)
            sum += now[k] += t->live[s][k];
        uint32_t x = (uint32_t)((uint64_t)s * t->columns / t->steps); /* never behind s: the place was read already */
        if (x != column || sum > highest) {
            memcpy(t->live[x], now, sizeof now);
            t->shown[x] = s;
            highest = sum;
            column = x;
        }
    }
}

static uint64_t sum_to(const timeline *t, uint32_t column, int part)
{
    uint64_t sum = 0;
    for (int i = 0; i <= part; i++)
        sum += t->live[column][mf_picture_parts[i]];
    return sum;
}

uint32_t mf_picture_totals(const memfit_host *host, const mf_plan *plan, const mf_phase *phase, uint64_t *totals)
{
    timeline t = {0};
    uint32_t columns = 0;
    if (phase->step_count && take_timeline(host, phase, &t)) {
        fill_timeline(&t, plan, phase);
        columns = t.columns;
        for (uint32_t x = 0; x < columns; x++)
            totals[x] = sum_to(&t, x, MF_PICTURE_PARTS - 1);
    }
    leave_timeline(host, &t);
    return columns;
}

/* ---- the timeline ----------------------------------------------------------------------------------------- */

static double x_of(const timeline *t, double column)
{
    return LEFT + (RIGHT - LEFT) * column / t->columns;
}

static double y_of(const timeline *t, uint64_t bytes)
{
    return BOTTOM - (double)(BOTTOM - TOP) * (double)bytes / (double)t->top;
}

/* Training as asked stands behind training only. */
static bool has_as_asked(const mf_answer *a)
{
    return a->as_asked_columns && a->peak_phase == 0;
}

/* The step as asked, behind all else. */
static void put_as_asked(FILE *f, const timeline *t, const mf_answer *a)
{
    if (!has_as_asked(a))
        return;
    fprintf(f, "<path fill=\"#94a3b8\" fill-opacity=\"0.25\" stroke=\"#94a3b8\" stroke-dasharray=\"4 3\" d=\"M%d %d",
            LEFT, BOTTOM);
    for (uint32_t x = 0; x < a->as_asked_columns; x++)
        fprintf(f, "H%.1fV%.1f", LEFT + (RIGHT - LEFT) * (double)x / a->as_asked_columns, y_of(t, a->as_asked_live[x]));
    fprintf(f, "H%dV%dZ\"><title>as asked: ", RIGHT, BOTTOM);
    put_size(f, a->as_asked_peak_bytes);
    fputs("</title></path>\n", f);
}

/* The areas, the highest sum first, so that each covers the lower part of the one before. */
static void put_areas(FILE *f, const timeline *t)
{
    for (int part = MF_PICTURE_PARTS - 1; part >= 0; part--) {
        bool any = false;
        for (uint32_t x = 0; x < t->columns && !any; x++)
            any = t->live[x][mf_picture_parts[part]];
        if (!any)
            continue;
        fprintf(f, "<path fill=\"%s\" d=\"M%d %d", mf_page_colour(mf_picture_parts[part]), LEFT, BOTTOM);
        double last = -1;
        for (uint32_t x = 0; x < t->columns; x++) {
            double y = y_of(t, sum_to(t, x, part));
            if (y != last)
                fprintf(f, "H%.1fV%.1f", x_of(t, x), y);
            last = y;
        }
        fprintf(f, "H%dV%dZ\"><title>%s</title></path>\n", RIGHT, BOTTOM, memfit_kind_name(mf_picture_parts[part]));
    }
}

/* Lines at powers of two, or whole multiples of one: at most six. */
static void put_grid(FILE *f, const timeline *t)
{
    uint64_t step = 1;
    while (step < t->top / 6 + 1)
        step *= 2;
    for (uint64_t bytes = 0; bytes <= t->top; bytes += step) {
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#94a3b8\" stroke-opacity=\"0.35\"/>",
                LEFT, RIGHT, y_of(t, bytes), y_of(t, bytes));
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 8, y_of(t, bytes) + 4);
        if (bytes)
            put_size(f, bytes);
        else
            fputc('0', f);
        fputs("</text>\n", f);
    }
}

/* A column that can be pointed at: what runs there, and how much is in use. */
static void put_hover(FILE *f, const timeline *t, const mf_phase *phase)
{
    const mf_graph *g = phase->graph;
    fputs("<g fill=\"#000\" fill-opacity=\"0\">\n", f);
    for (uint32_t x = 0; x < t->columns; x++) {
        uint32_t s = t->shown[x];
        const mf_op *op = &g->ops[phase->steps[s].op];
        fprintf(f, "<rect x=\"%.1f\" y=\"%d\" width=\"%.2f\" height=\"%d\"><title>operation %u of %u: %s of layer ",
                x_of(t, x), TOP, (double)(RIGHT - LEFT) / t->columns, BOTTOM - TOP, s + 1, t->steps,
                mf_kind_name(op->kind));
        mf_page_put_text(f, op->layer < g->layer_count ? g->layers[op->layer].name : "");
        fprintf(f, "%s; ", phase->steps[s].recomputed ? ", recomputed" : "");
        put_size(f, sum_to(t, x, MF_PICTURE_PARTS - 1));
        fputs("</title></rect>\n", f);
    }
    fputs("</g>\n", f);
}

static void put_marks(FILE *f, const timeline *t, const mf_answer *a, const mf_answer_context *c, const mf_phase *phase)
{
    const mf_graph *g = phase->graph;
    uint32_t back = 0;
    while (back < t->steps && g->ops[phase->steps[back].op].phase != MF_BACKWARD)
        back++;
    double scale = (double)t->columns / t->steps, split = x_of(t, back * scale);
    fprintf(f, "<text x=\"%d\" y=\"%d\">forward</text>", LEFT, BOTTOM + 20);
    if (back < t->steps)
        fprintf(f,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"#94a3b8\" stroke-dasharray=\"3 4\"/>"
                "<text x=\"%.1f\" y=\"%d\">backward and updates</text>",
                split, split, TOP, BOTTOM + 8, split + 4, BOTTOM + 20);
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%u operations</text>\n", RIGHT, BOTTOM + 20, t->steps);
    if (c->memory_bytes <= t->top) {
        double y = y_of(t, c->memory_bytes);
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dc2626\" stroke-width=\"1.5\"/>", LEFT,
                RIGHT, y, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" style=\"fill:var(--bad)\">limit ", LEFT + 4, y - 5);
        put_size(f, c->memory_bytes);
        fputs("</text>\n", f);
    }
    double x = x_of(t, (phase->peak_step + 0.5) * scale);
    bool right = x > (LEFT + RIGHT) / 2.0;
    fprintf(f,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"currentColor\" stroke-width=\"1.5\"/>"
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\" style=\"fill:currentColor;font-weight:600\">peak: ",
            x, x, TOP - 8, BOTTOM, right ? x - 6 : x + 6, TOP - 10, right ? "end" : "start");
    mf_page_put_text(f, a->peak_at);
    fputs("</text>\n", f);
}

memfit_status mf_picture_put_timeline(FILE *f, const memfit_host *host, const mf_answer *a, const mf_answer_context *c,
                                      memfit_error *err)
{
    const mf_plan *plan = a->plan;
    const mf_phase *phase = &plan->phases[a->peak_phase];
    uint64_t most =
        a->as_asked_columns && a->as_asked_peak_bytes > plan->peak_bytes ? a->as_asked_peak_bytes : plan->peak_bytes;
    timeline t = {.top = most + most / 20 + 1};
    if (!phase->step_count)
        return MEMFIT_OK;
    if (c->memory_bytes > t.top && c->memory_bytes < most + most / 2)
        t.top = c->memory_bytes + c->memory_bytes / 20;
    if (!take_timeline(host, phase, &t)) {
        leave_timeline(host, &t);
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the timeline of %u operations", phase->step_count);
    }
    fill_timeline(&t, plan, phase);
    fprintf(f,
            "<section><h2>Bytes in use over one step of %s</h2>\n<div class=\"wide\"><svg viewBox=\"0 0 1000 320\" "
            "role=\"img\">\n",
            mf_phase_name(phase->role));
    put_as_asked(f, &t, a);
    put_areas(f, &t);
    put_grid(f, &t);
    put_hover(f, &t, phase);
    put_marks(f, &t, a, c, phase);
    fputs("</svg></div>\n", f);
    if (has_as_asked(a)) {
        fputs("<p class=\"dim\">Behind it, dashed: the step as asked, ", f);
        put_size(f, a->as_asked_peak_bytes);
        fputs(".</p>\n", f);
    }
    if (c->memory_bytes > t.top) {
        fputs("<p class=\"dim\">The limit, ", f);
        put_size(f, c->memory_bytes);
        fputs(", is far above this picture.</p>\n", f);
    }
    fputs("</section>\n", f);
    leave_timeline(host, &t);
    return MEMFIT_OK;
}

/* ---- memory against time ---------------------------------------------------------------------------------- */

void mf_picture_put_curve(FILE *f, const mf_answer *a)
{
    uint64_t low = UINT64_MAX, high = 0;
    double slow = 1;
    for (uint32_t i = 0; i < a->curve_count; i++)
        if (a->curve[i].fits) {
            low = a->curve[i].peak_bytes < low ? a->curve[i].peak_bytes : low;
            high = a->curve[i].peak_bytes > high ? a->curve[i].peak_bytes : high;
            slow = a->curve[i].slowdown > slow ? a->curve[i].slowdown : slow;
        }
    if (low >= high)
        return; /* one point is no curve */
    double span = slow - 1 > 0.01 ? slow - 1 : 0.01;
    fputs("<div class=\"wide\"><svg viewBox=\"0 0 1000 320\" role=\"img\">\n", f);
    fprintf(f,
            "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#94a3b8\"/><line x1=\"%d\" x2=\"%d\" y1=\"%d\" "
            "y2=\"%d\" stroke=\"#94a3b8\"/>\n",
            LEFT, RIGHT, BOTTOM, BOTTOM, LEFT, LEFT, TOP, BOTTOM);
    fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
            mf_page_colour(MEMFIT_KIND_ACTIVATIONS));
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < a->curve_count; i++) {
            const mf_curve_point *p = &a->curve[i];
            double x = LEFT + (RIGHT - LEFT - 20) * (double)(p->peak_bytes - low) / (double)(high - low);
            double y = BOTTOM - (BOTTOM - TOP) * (p->slowdown - 1) / span;
            if (p->fits && !pass)
                fprintf(f, "%.1f,%.1f ", x, y);
            else if (p->fits) {
                fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"><title>", x, y,
                        mf_page_colour(MEMFIT_KIND_ACTIVATIONS));
                put_size(f, p->peak_bytes);
                fprintf(f, ", %.3f times as long</title></circle>\n", p->slowdown);
            }
        }
        if (!pass)
            fputs("\"/>\n", f);
    }
    fprintf(f, "<text x=\"%d\" y=\"%d\">", LEFT, BOTTOM + 20);
    put_size(f, low);
    fprintf(f, "</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">", RIGHT, BOTTOM + 20);
    put_size(f, high);
    fprintf(f,
            "</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">1x</text><text x=\"%d\" y=\"%d\" "
            "text-anchor=\"end\">%.2fx</text>\n</svg></div>\n",
            LEFT - 8, BOTTOM + 4, LEFT - 8, TOP + 4, 1 + span);
}
