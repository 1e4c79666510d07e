/*
 * plan_html.c: the answer as a page: verdict, where the bytes are, bytes in use over the step, what to change, layers.
 *
 *   verdict        [green: fits | amber: fits, not as asked | red: does not fit]
 *   measured       of a training: put there when it ends (measured_page.h)
 *   bar            one part a kind, the limit as a line
 *   cards          several answers: side by side
 *   timeline       over the operations of the phase with the peak, and the curve of budgets (plan_picture.c)
 *   tables         owners at the peak, suggestions, curve, phases and bounds, layers
 *
 * The page is also well-formed XML, which is how the tests read it. No scripts, no fonts, no addresses: it can be sent
 * by mail and opened in ten years. Dropped: a rectangle for every tensor (offset against time), which took megabytes
 * for large models and could not be read.
 */
#include "answer/plan_html.h"

#include "answer/measured_page.h"
#include "answer/plan_picture.h"
#include "answer/report_page.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"

#include <string.h>

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
    fprintf(f, "<span class=\"dot\" style=\"background:%s\"></span>%s", mf_page_colour(kind), memfit_kind_name(kind));
}

/* ---- head ------------------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light "
    "dark;--ink:#0f172a;--dim:#475569;--line:#e2e8f0;--page:#f8fafc;--card:#fff;--bar:#ccfbf1;--good:#15803d;--bad:#"
    "b91c1c}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e2e8f0;--dim:#a8b5c7;--line:#334155;--page:#0f172a;--card:#1e293b;"
    "--bar:#134e4a;--good:#86efac;--bad:#fca5a5}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 "
    "system-ui,sans-serif}\n"
    "main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}h1{font-size:24px;margin:0 0 "
    "2px;overflow-wrap:break-word}\n"
    "h2{font-size:16px;margin:0 0 12px}.sub,.dim{color:var(--dim)}.sub{margin:0 0 18px}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin:14px 0}\n"
    ".verdict{border-left:8px solid}.verdict p{margin:4px 0;overflow-wrap:break-word}.verdict "
    ".word{font-size:20px;font-weight:650}\n"
    ".yes{border-left-color:#16a34a}.other{border-left-color:#d97706}.no{border-left-color:#dc2626}\n"
    ".good{color:var(--good);font-weight:600;white-space:nowrap}.bad{color:var(--bad);font-weight:600;white-space:"
    "nowrap}\n"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\n"
    "th{font-weight:600;color:var(--dim);text-align:left;white-space:nowrap;border-bottom:1px solid "
    "var(--line);padding:4px 18px 4px 0}\n"
    "td{padding:4px 18px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}\n"
    ".n{text-align:right;white-space:nowrap;width:1%}tr:last-child td{border-bottom:0}.facts "
    "td:first-child{color:var(--dim);"
    "white-space:nowrap;width:8em}\n"
    ".stack{display:flex;height:34px;border-radius:6px;overflow:hidden;background:var(--line)}.stack "
    "div{min-width:1px}\n"
    ".limit{position:relative;height:20px;font-size:12px;color:var(--dim)}.limit span{position:absolute;right:0}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 22px;margin-top:10px}.legend span b{font-weight:600}\n"
    ".dot{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}\n"
    "svg{width:100%;min-width:860px;height:auto;display:block}svg text{font:12px "
    "system-ui,sans-serif;fill:var(--dim)}\n"
    "rect:hover{fill:var(--ink);fill-opacity:.16}\n"
    ".saved{background:linear-gradient(var(--bar),var(--bar)) right/0 100% no-repeat}\n"
    "@media(max-width:700px){main{padding:16px 8px 40px}section{padding:12px 10px}td,th{padding-right:10px}.facts "
    "td:first-child{width:auto;white-space:normal}.n{width:auto}}\n";

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
        char *status = strstr(line, " The exit status is"); /* nobody who reads a page has one */
        if (status)
            *status = '\0';
        fprintf(f, "<p class=\"%s\">", name);
        mf_page_put_text(f, line);
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
    fputs("<section><h2>The step</h2>\n<div class=\"wide\"><table class=\"facts\">\n", f);
    put_fact(f, "model");
    mf_page_put_text(f, c->path);
    fprintf(f, ": %u layers, %s parameters</td></tr>\n", a->layer_count ? a->layer_count - 1 : 0,
            mf_format_count(a->parameter_count, count, sizeof count));
    put_fact(f, "training");
    fprintf(f, "batch %lld, optimizer ", (long long)plan->batch);
    mf_page_put_text(f, a->optimizer);
    fprintf(f, "%s, loss ", a->optimizer_assumed ? " (assumed)" : "");
    mf_page_put_text(f, a->loss);
    fprintf(f, "%s</td></tr>\n", a->loss_assumed ? " (assumed)" : "");
    for (uint32_t i = 0; i < a->assumed_count; i++) {
        char shape[128];
        put_fact(f, "assumed");
        mf_page_put_text(f, a->assumed[i].name);
        fprintf(f, " makes %s with the batch and takes ",
                mf_shape_format(&a->assumed[i].output_shape, shape, sizeof shape));
        put_size(f, a->assumed[i].bytes);
        fputs(" beside it</td></tr>\n", f);
    }
    put_fact(f, "device");
    mf_page_put_text(f, c->device);
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
    fputs("</table></div></section>\n", f);
}

/* ---- where the bytes are ---------------------------------------------------------------------------------- */

static void put_breakdown(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    uint64_t peak = a->plan->peak_bytes, whole = peak > c->memory_bytes ? peak : c->memory_bytes;
    fputs("<section><h2>At the peak</h2>\n<div class=\"stack\">\n", f);
    for (int i = 0; i < MF_PICTURE_PARTS && whole; i++)
        if (a->breakdown[mf_picture_parts[i]]) {
            fprintf(f, "<div title=\"%s: ", memfit_kind_name(mf_picture_parts[i]));
            put_size(f, a->breakdown[mf_picture_parts[i]]);
            fprintf(f, "\" style=\"width:%.3f%%;background:%s\"></div>\n",
                    100 * (double)a->breakdown[mf_picture_parts[i]] / (double)whole,
                    mf_page_colour(mf_picture_parts[i]));
        }
    fprintf(f, "</div>\n<div class=\"limit\"><span style=\"right:%.3f%%\">limit ",
            100 - 100 * (double)c->memory_bytes / (double)(whole ? whole : 1));
    put_size(f, c->memory_bytes);
    fputs(" &#x25B4;</span></div>\n<div class=\"legend\">\n", f);
    for (int i = 0; i < MF_PICTURE_PARTS; i++)
        if (a->breakdown[mf_picture_parts[i]]) {
            fputs("<span>", f);
            put_dot(f, mf_picture_parts[i]);
            fputs(" <b>", f);
            put_size(f, a->breakdown[mf_picture_parts[i]]);
            fputs("</b></span>\n", f);
        }
    fputs("</div>\n<h2 style=\"margin-top:18px\">Largest tensors, by layer</h2>\n<div class=\"wide\"><table>\n", f);
    for (uint32_t i = 0; i < a->owner_count; i++) {
        const mf_owner *o = &a->owners[i];
        fputs("<tr>", f);
        put_size_cell(f, o->bytes);
        fputs("<td>", f);
        put_dot(f, o->kind);
        fputs("</td><td>", f);
        mf_page_put_text(f, o->layer);
        fputs("</td><td class=\"dim\">", f);
        mf_page_put_text(f, o->class_name ? o->class_name : "");
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div></section>\n", f);
}

/* ---- tables ----------------------------------------------------------------------------------------------- */

static void put_suggestions(FILE *f, const mf_answer *a)
{
    if (!a->suggestion_count)
        return;
    fputs("<section><h2>What to change</h2>\n<div class=\"wide\"><table><tr><th></th><th class=\"n\">peak</th><th "
          "class=\"n\">time</th>"
          "<th>numerics</th><th>change</th></tr>\n",
          f);
    for (uint32_t i = 0; i < a->suggestion_count; i++) {
        const mf_suggestion *s = &a->suggestions[i];
        fputs(s->fits ? "<tr><td class=\"good\">fits</td>" : "<tr><td class=\"bad\">too much</td>", f);
        put_size_cell(f, s->peak_bytes);
        fprintf(f, "<td class=\"n\">%.2fx</td><td>%s</td><td>", s->slowdown, mf_numerics_name(s->numerics));
        mf_page_put_text(f, s->change);
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div></section>\n", f);
}

static void put_curve(FILE *f, const mf_answer *a)
{
    if (!a->curve_count)
        return;
    fputs("<section><h2>Memory against time</h2>\n", f);
    mf_picture_put_curve(f, a);
    fputs("<div class=\"wide\"><table><tr><th class=\"n\">budget</th><th class=\"n\">peak</th>"
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
    fputs("</table></div></section>\n", f);
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
    fputs("<section><h2>Phases and bounds</h2>\n<div class=\"wide\"><table><tr><th>phase</th><th "
          "class=\"n\">batch</th><th "
          "class=\"n\">runs</th>"
          "<th class=\"n\">operations</th><th class=\"n\">recomputed</th><th class=\"n\">arena</th></tr>\n",
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
    fputs("</table></div>\n<div class=\"wide\"><table style=\"margin-top:14px\">\n", f);
    put_bound(f, plan->peak_bytes, "this plan");
    put_bound(f, a->packing_bound_bytes, "no packing of these operations is lower");
    put_bound(f, a->save_set_bound_bytes, "no plan with these micro-batches and nothing recomputed is lower");
    put_bound(f, a->lower_bound_bytes, "no plan with these micro-batches is lower: the hungriest operation alone");
    fputs("</table></div></section>\n", f);
}

static void put_layers(FILE *f, const mf_answer *a)
{
    char shape[96];
    uint64_t most = 1;
    for (uint32_t i = 1; i < a->layer_count; i++)
        most = a->layers[i].saved_bytes > most ? a->layers[i].saved_bytes : most;
    fputs("<section><h2>Layers</h2>\n<div class=\"wide\"><table><tr><th>layer</th><th>class</th><th>output</th><th "
          "class=\"n\">parameters</th>"
          "<th class=\"n\">kept for backward</th></tr>\n",
          f);
    for (uint32_t i = 1; i < a->layer_count; i++) {
        const mf_layer_row *row = &a->layers[i];
        mf_shape s = row->output_shape;
        if (s.rank)
            s.dim[0] = -1;
        fputs("<tr><td>", f);
        mf_page_put_text(f, row->name);
        fputs("</td><td class=\"dim\">", f);
        mf_page_put_text(f, row->class_name);
        fputs("</td><td>", f);
        mf_page_put_text(f, mf_shape_format(&s, shape, sizeof shape));
        fputs("</td>", f);
        put_size_cell(f, row->parameter_bytes);
        fprintf(f, "<td class=\"n saved\" style=\"background-size:%.1f%% 100%%\">",
                100 * (double)row->saved_bytes / (double)most);
        put_size(f, row->saved_bytes);
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div></section>\n", f);
}

/* Several cards, or several of anything: one row each, before the pages of each. */
static void put_side_by_side(FILE *f, uint32_t count, mf_answer *const *answers, const mf_answer_context *contexts)
{
    fputs("<section><h2>Side by side, in memfit</h2>\n<div class=\"wide\"><table><tr><th></th><th>planned for</th><th "
          "class=\"n\">needs</th><th class=\"n\">of</th><th class=\"n\">as asked</th><th class=\"n\">time</th><th "
          "class=\"n\">largest batch</th></tr>\n",
          f);
    for (uint32_t i = 0; i < count; i++) {
        const mf_answer *a = answers[i];
        fputs(a->fits ? "<tr><td class=\"good\">fits</td><td>" : "<tr><td class=\"bad\">too much</td><td>", f);
        mf_page_put_text(f, contexts[i].device);
        fputs("</td>", f);
        put_size_cell(f, a->plan->peak_bytes);
        put_size_cell(f, contexts[i].memory_bytes);
        fprintf(f, "<td class=\"n %s\">", a->as_asked_fits ? "good" : "bad");
        put_size(f, a->as_asked_peak_bytes);
        fprintf(f, "</td><td class=\"n\">%.2fx</td><td class=\"n\">", a->slowdown);
        if (a->max_batch && a->max_batch < 1 << 24)
            fprintf(f, "%lld", (long long)a->max_batch);
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div></section>\n", f);
}

memfit_status mf_answers_print_html(FILE *f, const memfit_host *host, uint32_t count, mf_answer *const *answers,
                                    const mf_answer_context *contexts, memfit_error *err)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>memfit plan: ",
          f);
    const char *name = count && contexts[0].model->name ? contexts[0].model->name : "model";
    mf_page_put_text(f, name);
    fprintf(f, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
    if (count > 1)
        put_side_by_side(f, count, answers, contexts);
    for (uint32_t i = 0; i < count; i++) {
        fputs(i ? "<h1 style=\"margin-top:40px\">" : "<h1>", f);
        mf_page_put_text(f, name);
        fputs("</h1>\n<p class=\"sub\">planned for ", f);
        mf_page_put_text(f, contexts[i].device);
        fputs("</p>\n", f);
        put_verdict(f, answers[i], &contexts[i]);
        if (!i)
            fputs(MF_MEASURED_BEGIN MF_MEASURED_END, f);
        put_breakdown(f, answers[i], &contexts[i]);
        memfit_status status = mf_picture_put_timeline(f, host, answers[i], &contexts[i], err);
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
