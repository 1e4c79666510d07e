/*
 * plan_html.c: the answer as a page: verdict, where the bytes are, bytes in use over the step, what to change, layers.
 *
 *   verdict        [green: fits | amber: fits, not as asked | red: does not fit]
 *   bar            one part a kind, the limit as a line
 *   timeline       stacked by kind over the steps of the phase with the peak:
 *
 *     bytes |        ____          each column stands for some steps and shows the highest of them whole, so the
 *           |    ___|    |___      picture never mixes two moments; areas are painted from the highest sum down, so
 *           |___|            |__   each needs its upper edge only
 *           +------------------- steps
 *
 *   tables         owners at the peak, suggestions, curve, phases and bounds, layers
 *
 * The page is also well-formed XML, which is how the tests read it. No scripts, no fonts, no addresses: it can be sent
 * by mail and opened in ten years. Dropped: a rectangle for every tensor (offset against time), which took megabytes
 * for large models and could not be read.
 */
#include "answer/plan_html.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"

#include <string.h>

enum { COLUMNS = 400, LEFT = 78, RIGHT = 992, TOP = 26, BOTTOM = 292 };

static const struct {
    memfit_kind kind;
    const char *colour;
} parts[] = {{MEMFIT_KIND_FIXED, "#64748b"},     {MEMFIT_KIND_PARAMETERS, "#2563eb"},
             {MEMFIT_KIND_OPTIMIZER, "#7c3aed"}, {MEMFIT_KIND_GRADIENTS, "#d97706"},
             {MEMFIT_KIND_INPUTS, "#65a30d"},    {MEMFIT_KIND_ACTIVATIONS, "#0d9488"},
             {MEMFIT_KIND_WORKSPACE, "#e11d48"}, {MEMFIT_KIND_PADDING, "#cbd5e1"}};
enum { PARTS = sizeof parts / sizeof *parts };

static const char *colour_of(memfit_kind kind)
{
    for (int i = 0; i < PARTS; i++)
        if (parts[i].kind == kind)
            return parts[i].colour;
    return "#94a3b8";
}

/* Names come from files: nothing in them may be taken for markup. */
static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<')
            fputs("&lt;", f);
        else if (c == '>')
            fputs("&gt;", f);
        else if (c == '&')
            fputs("&amp;", f);
        else if (c == '"')
            fputs("&quot;", f);
        else
            fputc(c < 32 || c == 127 ? ' ' : c, f);
    }
}

static void put_size(FILE *f, uint64_t bytes)
{
    char text[24];
    fputs(memfit_size_format(bytes, text, sizeof text), f);
}

static void put_size_cell(FILE *f, uint64_t bytes)
{
    fputs("<td class=\"n\">", f);
    put_size(f, bytes);
    fputs("</td>", f);
}

static void put_dot(FILE *f, memfit_kind kind)
{
    fprintf(f, "<span class=\"dot\" style=\"background:%s\"></span>%s", colour_of(kind), memfit_kind_name(kind));
}

/* ---- head ------------------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light "
    "dark;--ink:#0f172a;--dim:#64748b;--line:#e2e8f0;--page:#f8fafc;--card:#fff;--bar:#ccfbf1}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--dim:#94a3b8;--line:#334155;--page:#0f172a;--card:#1e293b;"
    "--bar:#134e4a}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 "
    "system-ui,sans-serif}\n"
    "main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}h1{font-size:24px;margin:0 0 2px}\n"
    "h2{font-size:16px;margin:0 0 12px}.sub,.dim{color:var(--dim)}.sub{margin:0 0 18px}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:14px 0}\n"
    ".verdict{border-left:8px solid}.verdict p{margin:4px 0}.verdict .word{font-size:20px;font-weight:650}\n"
    ".yes{border-left-color:#16a34a}.other{border-left-color:#d97706}.no{border-left-color:#dc2626}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th{font-weight:600;color:var(--dim);text-align:left;white-space:nowrap;border-bottom:1px solid "
    "var(--line);padding:4px 18px 4px 0}\n"
    "td{padding:4px 18px 4px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}\n"
    ".n{text-align:right;white-space:nowrap;width:1%}tr:last-child td{border-bottom:0}.facts "
    "td:first-child{color:var(--dim);"
    "white-space:nowrap;width:8em}\n"
    ".stack{display:flex;height:34px;border-radius:6px;overflow:hidden;background:var(--line)}.stack "
    "div{min-width:1px}\n"
    ".limit{position:relative;height:20px;font-size:12px;color:var(--dim)}.limit span{position:absolute;right:0}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 22px;margin-top:10px}.legend span b{font-weight:600}\n"
    ".dot{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}\n"
    "svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:var(--dim)}\n"
    ".saved{background:linear-gradient(var(--bar),var(--bar)) right/0 100% no-repeat}\n";

static void put_verdict(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    char text[2048] = "";
    FILE *memory = fmemopen(text, sizeof text - 1, "w");
    if (memory) {
        mf_answer_print_verdict(memory, a, c);
        fclose(memory);
    }
    bool plain = a->fits && a->as_asked_fits && a->plan->pieces <= 1 && a->plan->chunks <= 1;
    fprintf(f, "<section class=\"verdict %s\">\n", plain ? "yes" : a->fits ? "other" : "no");
    const char *name = "word";
    for (char *line = text, *end; *line && (end = strchr(line, '\n')); line = end + 1, name = "more") {
        *end = '\0';
        fprintf(f, "<p class=\"%s\">", name);
        put_text(f, line);
        fputs("</p>\n", f);
    }
    fputs("</section>\n", f);
}

static void put_fact(FILE *f, const char *name)
{
    fprintf(f, "<tr><td>%s</td><td>", name);
}

static void put_facts(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    char count[32];
    const mf_plan *plan = a->plan;
    fputs("<section><h2>The step</h2>\n<table class=\"facts\">\n", f);
    put_fact(f, "model");
    put_text(f, c->path);
    fprintf(f, ": %u layers, %s parameters</td></tr>\n", a->layer_count ? a->layer_count - 1 : 0,
            mf_format_count(a->parameter_count, count, sizeof count));
    put_fact(f, "training");
    fprintf(f, "batch %lld, optimizer ", (long long)plan->batch);
    put_text(f, a->optimizer);
    fprintf(f, "%s, loss ", a->optimizer_assumed ? " (assumed)" : "");
    put_text(f, a->loss);
    fprintf(f, "%s</td></tr>\n", a->loss_assumed ? " (assumed)" : "");
    for (uint32_t i = 0; i < a->assumed_count; i++) {
        char shape[128];
        put_fact(f, "assumed");
        put_text(f, a->assumed[i].name);
        fprintf(f, " makes %s with the batch and takes ",
                mf_shape_format(&a->assumed[i].output_shape, shape, sizeof shape));
        put_size(f, a->assumed[i].bytes);
        fputs(" beside it</td></tr>\n", f);
    }
    put_fact(f, "device");
    put_text(f, c->device);
    fputs(": ", f);
    put_size(f, c->memory_bytes);
    fputs(", of which ", f);
    put_size(f, plan->fixed_bytes);
    fprintf(f, " fixed cost (%s", c->basis);
    if (c->margin_percent)
        fprintf(f, ", +-%u %%", c->margin_percent);
    fputs(")</td></tr>\n", f);
    put_fact(f, "cost");
    fprintf(f, "%.2f times the time of the unconstrained step (estimated); numerics %s</td></tr>\n", a->slowdown,
            mf_numerics_name(plan->numerics));
    if (plan->phases[0].graph->left_out) {
        put_fact(f, "note");
        fprintf(f, "the model uses %s, which memfit can plan but not train with</td></tr>\n",
                plan->phases[0].graph->left_out);
    }
    if (a->max_batch && a->max_batch < 1 << 24) {
        put_fact(f, "largest batch");
        fprintf(f, "%lld at once; %lld with nothing recomputed</td></tr>\n", (long long)a->max_batch,
                (long long)a->max_batch_as_asked);
    }
    fputs("</table></section>\n", f);
}

/* ---- where the bytes are ---------------------------------------------------------------------------------- */

static void put_breakdown(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    uint64_t peak = a->plan->peak_bytes, whole = peak > c->memory_bytes ? peak : c->memory_bytes;
    fputs("<section><h2>At the peak</h2>\n<div class=\"stack\">\n", f);
    for (int i = 0; i < PARTS && whole; i++)
        if (a->breakdown[parts[i].kind]) {
            fprintf(f, "<div title=\"%s: ", memfit_kind_name(parts[i].kind));
            put_size(f, a->breakdown[parts[i].kind]);
            fprintf(f, "\" style=\"width:%.3f%%;background:%s\"></div>\n",
                    100 * (double)a->breakdown[parts[i].kind] / (double)whole, parts[i].colour);
        }
    fprintf(f, "</div>\n<div class=\"limit\"><span style=\"right:%.3f%%\">limit ",
            100 - 100 * (double)c->memory_bytes / (double)(whole ? whole : 1));
    put_size(f, c->memory_bytes);
    fputs(" &#x25B4;</span></div>\n<div class=\"legend\">\n", f);
    for (int i = 0; i < PARTS; i++)
        if (a->breakdown[parts[i].kind]) {
            fputs("<span>", f);
            put_dot(f, parts[i].kind);
            fputs(" <b>", f);
            put_size(f, a->breakdown[parts[i].kind]);
            fputs("</b></span>\n", f);
        }
    fputs("</div>\n<h2 style=\"margin-top:18px\">Largest tensors, by layer</h2>\n<table>\n", f);
    for (uint32_t i = 0; i < a->owner_count; i++) {
        const mf_owner *o = &a->owners[i];
        fputs("<tr>", f);
        put_size_cell(f, o->bytes);
        fputs("<td>", f);
        put_dot(f, o->kind);
        fputs("</td><td>", f);
        put_text(f, o->layer);
        fputs("</td><td class=\"dim\">", f);
        put_text(f, o->class_name ? o->class_name : "");
        fputs("</td></tr>\n", f);
    }
    fputs("</table></section>\n", f);
}

/* ---- timeline --------------------------------------------------------------------------------------------- */

typedef struct timeline {
    uint64_t (*live)[MEMFIT_KIND_COUNT]; /* by step, then by column */
    uint32_t steps, columns;
    uint64_t top; /* bytes at the upper edge of the picture */
} timeline;

/* Bytes of every kind at every step, by differences; then the highest step of every column in its place. */
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
            highest = sum;
            column = x;
        }
    }
}

static double x_of(const timeline *t, double column)
{
    return LEFT + (RIGHT - LEFT) * column / t->columns;
}

static double y_of(const timeline *t, uint64_t bytes)
{
    return BOTTOM - (double)(BOTTOM - TOP) * (double)bytes / (double)t->top;
}

static uint64_t sum_to(const timeline *t, uint32_t column, int part)
{
    uint64_t sum = 0;
    for (int i = 0; i <= part; i++)
        sum += t->live[column][parts[i].kind];
    return sum;
}

/* The areas, the highest sum first, so that each covers the lower part of the one before. */
static void put_areas(FILE *f, const timeline *t)
{
    for (int part = PARTS - 1; part >= 0; part--) {
        bool any = false;
        for (uint32_t x = 0; x < t->columns && !any; x++)
            any = t->live[x][parts[part].kind];
        if (!any)
            continue;
        fprintf(f, "<path fill=\"%s\" d=\"M%d %d", parts[part].colour, LEFT, BOTTOM);
        double last = -1;
        for (uint32_t x = 0; x < t->columns; x++) {
            double y = y_of(t, sum_to(t, x, part));
            if (y != last)
                fprintf(f, "H%.1fV%.1f", x_of(t, x), y);
            last = y;
        }
        fprintf(f, "H%dV%dZ\"><title>%s</title></path>\n", RIGHT, BOTTOM, memfit_kind_name(parts[part].kind));
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
    fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%u steps</text>\n", RIGHT, BOTTOM + 20, t->steps);
    if (c->memory_bytes <= t->top) {
        double y = y_of(t, c->memory_bytes);
        fprintf(f, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dc2626\" stroke-width=\"1.5\"/>", LEFT,
                RIGHT, y, y);
        fprintf(f, "<text x=\"%d\" y=\"%.1f\" style=\"fill:#dc2626\">limit ", LEFT + 4, y - 5);
        put_size(f, c->memory_bytes);
        fputs("</text>\n", f);
    }
    double x = x_of(t, (phase->peak_step + 0.5) * scale);
    bool right = x > (LEFT + RIGHT) / 2.0;
    fprintf(f,
            "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"currentColor\" stroke-width=\"1.5\"/>"
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\" style=\"fill:currentColor;font-weight:600\">peak: ",
            x, x, TOP - 8, BOTTOM, right ? x - 6 : x + 6, TOP - 10, right ? "end" : "start");
    put_text(f, a->peak_at);
    fputs("</text>\n", f);
}

static memfit_status put_timeline(FILE *f, const memfit_host *host, const mf_answer *a, const mf_answer_context *c,
                                  memfit_error *err)
{
    const mf_plan *plan = a->plan;
    const mf_phase *phase = &plan->phases[a->peak_phase];
    timeline t = {.steps = phase->step_count, .top = plan->peak_bytes + plan->peak_bytes / 20 + 1};
    if (!t.steps)
        return MEMFIT_OK;
    t.columns = t.steps < COLUMNS ? t.steps : COLUMNS;
    if (c->memory_bytes > t.top && c->memory_bytes < plan->peak_bytes + plan->peak_bytes / 2)
        t.top = c->memory_bytes + c->memory_bytes / 20;
    size_t bytes = t.steps * sizeof *t.live;
    t.live = mf_host_zalloc(host, bytes);
    if (!t.live)
        return mf_fail(err, MEMFIT_NO_HOST_MEMORY, "no memory for the timeline of %u steps", t.steps);
    fill_timeline(&t, plan, phase);
    fprintf(f, "<section><h2>Bytes in use over one step of %s</h2>\n<svg viewBox=\"0 0 1000 320\" role=\"img\">\n",
            mf_phase_name(phase->role));
    put_areas(f, &t);
    put_grid(f, &t);
    put_marks(f, &t, a, c, phase);
    fputs("</svg>\n", f);
    if (c->memory_bytes > t.top) {
        fputs("<p class=\"dim\">The limit, ", f);
        put_size(f, c->memory_bytes);
        fputs(", is far above this picture.</p>\n", f);
    }
    fputs("</section>\n", f);
    mf_host_free(host, t.live, bytes);
    return MEMFIT_OK;
}

/* ---- tables ----------------------------------------------------------------------------------------------- */

static void put_suggestions(FILE *f, const mf_answer *a)
{
    if (!a->suggestion_count)
        return;
    fputs("<section><h2>What to change</h2>\n<table><tr><th></th><th class=\"n\">peak</th><th class=\"n\">time</th>"
          "<th>numerics</th><th>change</th></tr>\n",
          f);
    for (uint32_t i = 0; i < a->suggestion_count; i++) {
        const mf_suggestion *s = &a->suggestions[i];
        fprintf(f, "<tr><td>%s</td>", s->fits ? "fits" : "too much");
        put_size_cell(f, s->peak_bytes);
        fprintf(f, "<td class=\"n\">%.2fx</td><td>%s</td><td>", s->slowdown, mf_numerics_name(s->numerics));
        put_text(f, s->change);
        fputs("</td></tr>\n", f);
    }
    fputs("</table></section>\n", f);
}

static void put_curve(FILE *f, const mf_answer *a)
{
    if (!a->curve_count)
        return;
    fputs("<section><h2>Memory against time</h2>\n<table><tr><th class=\"n\">budget</th><th class=\"n\">peak</th>"
          "<th class=\"n\">time</th><th class=\"n\">micro-batches</th><th "
          "class=\"n\">recomputed</th><th>numerics</th></tr>\n",
          f);
    for (uint32_t i = 0; i < a->curve_count; i++) {
        const mf_curve_point *p = &a->curve[i];
        fputs("<tr>", f);
        put_size_cell(f, p->budget_bytes);
        if (p->fits) {
            put_size_cell(f, p->peak_bytes);
            fprintf(f, "<td class=\"n\">%.3fx</td><td class=\"n\">%lld</td><td class=\"n\">%u</td><td>%s</td></tr>\n",
                    p->slowdown, (long long)p->pieces, p->recomputed, mf_numerics_name(p->numerics));
        } else {
            fputs("<td class=\"n\">-</td><td colspan=\"4\">no plan</td></tr>\n", f);
        }
    }
    fputs("</table></section>\n", f);
}

static void put_bound(FILE *f, uint64_t bytes, const char *text)
{
    fputs("<tr>", f);
    put_size_cell(f, bytes);
    fprintf(f, "<td>%s</td></tr>\n", text);
}

static void put_phases(FILE *f, const mf_answer *a)
{
    const mf_plan *plan = a->plan;
    fputs("<section><h2>Phases and bounds</h2>\n<table><tr><th>phase</th><th class=\"n\">batch</th><th "
          "class=\"n\">runs</th>"
          "<th class=\"n\">steps</th><th class=\"n\">recomputed</th><th class=\"n\">arena</th></tr>\n",
          f);
    for (uint32_t p = 0; p < plan->phase_count; p++) {
        const mf_phase *phase = &plan->phases[p];
        fprintf(f,
                "<tr><td>%s</td><td class=\"n\">%lld</td><td class=\"n\">%lld</td><td class=\"n\">%u</td>"
                "<td class=\"n\">%u</td>",
                mf_phase_name(phase->role), (long long)phase->batch, (long long)phase->repeat, phase->step_count,
                phase->recomputed);
        put_size_cell(f, phase->bytes);
        fputs("</tr>\n", f);
    }
    fputs("</table>\n<table style=\"margin-top:14px\">\n", f);
    put_bound(f, plan->peak_bytes, "this plan");
    put_bound(f, a->packing_bound_bytes, "no packing of these steps is lower");
    put_bound(f, a->save_set_bound_bytes, "no plan with these micro-batches and nothing recomputed is lower");
    put_bound(f, a->lower_bound_bytes, "no plan with these micro-batches is lower: the hungriest operation alone");
    fputs("</table></section>\n", f);
}

static void put_layers(FILE *f, const mf_answer *a)
{
    char shape[96];
    uint64_t most = 1;
    for (uint32_t i = 1; i < a->layer_count; i++)
        most = a->layers[i].saved_bytes > most ? a->layers[i].saved_bytes : most;
    fputs("<section><h2>Layers</h2>\n<table><tr><th>layer</th><th>class</th><th>output</th><th "
          "class=\"n\">parameters</th>"
          "<th class=\"n\">kept for backward</th></tr>\n",
          f);
    for (uint32_t i = 1; i < a->layer_count; i++) {
        const mf_layer_row *row = &a->layers[i];
        mf_shape s = row->output_shape;
        if (s.rank)
            s.dim[0] = -1;
        fputs("<tr><td>", f);
        put_text(f, row->name);
        fputs("</td><td class=\"dim\">", f);
        put_text(f, row->class_name);
        fputs("</td><td>", f);
        put_text(f, mf_shape_format(&s, shape, sizeof shape));
        fputs("</td>", f);
        put_size_cell(f, row->parameter_bytes);
        fprintf(f, "<td class=\"n saved\" style=\"background-size:%.1f%% 100%%\">",
                100 * (double)row->saved_bytes / (double)most);
        put_size(f, row->saved_bytes);
        fputs("</td></tr>\n", f);
    }
    fputs("</table></section>\n", f);
}

memfit_status mf_answers_print_html(FILE *f, const memfit_host *host, uint32_t count, mf_answer *const *answers,
                                    const mf_answer_context *contexts, memfit_error *err)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>memfit plan: ",
          f);
    const char *name = count && contexts[0].model->name ? contexts[0].model->name : "model";
    put_text(f, name);
    fprintf(f, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
    for (uint32_t i = 0; i < count; i++) {
        fputs(i ? "<h1 style=\"margin-top:40px\">" : "<h1>", f);
        put_text(f, name);
        fputs("</h1>\n<p class=\"sub\">planned for ", f);
        put_text(f, contexts[i].device);
        fputs("</p>\n", f);
        put_verdict(f, answers[i], &contexts[i]);
        put_breakdown(f, answers[i], &contexts[i]);
        memfit_status status = put_timeline(f, host, answers[i], &contexts[i], err);
        if (status != MEMFIT_OK)
            return status;
        put_suggestions(f, answers[i]);
        put_curve(f, answers[i]);
        put_facts(f, answers[i], &contexts[i]);
        put_phases(f, answers[i]);
        put_layers(f, answers[i]);
    }
    fputs("</main>\n</body>\n</html>\n", f);
    return MEMFIT_OK;
}
