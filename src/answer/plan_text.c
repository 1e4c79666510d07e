/*
 * plan_text.c: the answer as people read it: verdict first, then where the bytes are, then what to change. -v adds the
 * bounds, the phases, the layers and the timeline. Plain text without colour: it is also what the documentation shows
 * and what the tests compare.
 */
#include "answer/plan_text.h"

#include "base/text.h"
#include "base/visible.h"
#include "train/precision.h"

#include <string.h>

enum { BAR = 64, CURVE_WIDTH = 12, CHART_WIDTH = 64, CHART_HEIGHT = 10 };

static const char *size_text(uint64_t bytes, char *text)
{
    return memfit_size_format(bytes, text, 24);
}

static const char *numerics_text(mf_numerics numerics)
{
    switch (numerics) {
    case MF_BITWISE:
        return "same results to the bit (bitwise)";
    case MF_REORDERED:
        return "same maths, different rounding (reordered)";
    default:
        return "different maths (changed)";
    }
}

/* ---- verdict ---------------------------------------------------------------------------------------------- */

static void print_means(FILE *f, const mf_plan *plan)
{
    const char *and = "";
    if (plan->pieces > 1) {
        mf_print(f, " in %lld micro-batches of %lld sample%s", (long long)plan->pieces,
                 (long long)plan->phases[0].batch, plan->phases[0].batch == 1 ? "" : "s");
        and = " and";
    }
    if (plan->chunks > 1) {
        mf_print(f, "%s with the last layer and its loss in %u chunks", and, plan->chunks);
        and = " and";
    }
    if (plan->recomputed_ops) {
        mf_print(f, "%s by recomputing %u operation%s", and, plan->recomputed_ops,
                 plan->recomputed_ops == 1 ? "" : "s");
        and = " and";
    }
    if (plan->validation_split)
        mf_print(f, "%s with validation in smaller batches", and);
}

static const char *band_text(const mf_framework_estimate *x, char *text, size_t bytes)
{
    char low[24], high[24];
    snprintf(text, bytes, "%s to %s, %s", size_text(x->low_bytes, low), size_text(x->high_bytes, high), x->basis);
    return text;
}

/* The program the user is going to run comes first; memfit's own answer follows it. */
static void print_framework_verdict(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    static const char *const words[] = {"DOES NOT FIT", "TIGHT", "FITS"};
    const mf_in_framework *in = &a->framework;
    const mf_framework_estimate *x = &in->estimate;
    const char *title = mf_runtime_title(in->runtime);
    char peak[24], limit[24], own[24], rest[24], band[80];
    if (in->runtime == MF_RUNTIME_MEMFIT)
        return;
    if (!in->known) {
        mf_print(f, "NOT KNOWN in %s: %s.\n", title, in->reason);
        return;
    }
    mf_print(f, "%s in %s: batch %lld takes about %s (%s) of %s", words[x->fits], title, (long long)a->plan->batch,
             size_text(x->peak_bytes, peak), band_text(x, band, sizeof band), size_text(c->memory_bytes, limit));
    if (x->fits == MF_FRAMEWORK_TIGHT)
        mf_print(f, ", which lies inside that estimate%s",
                 in->runtime == MF_RUNTIME_JAX && x->peak_bytes > c->memory_bytes
                     ? ": XLA computes again what it has no room for"
                     : "");
    else if (x->fits == MF_FRAMEWORK_NO)
        mf_print(f, ", %s too much", size_text(x->peak_bytes - c->memory_bytes, rest));
    mf_print(f, "; in memfit %s: %s%s.\n", size_text(a->plan->peak_bytes, own), a->fits ? "fits" : "does not fit",
             in->given ? "" : ". The exit status is memfit's; --runtime asks for another's");
}

static void print_framework(FILE *f, const mf_answer *a)
{
    const mf_in_framework *in = &a->framework;
    const mf_framework_estimate *x = &in->estimate;
    char live[24], pool[24], fixed[24], peak[24];
    if (!in->known)
        return;
    mf_print(f, "\n  in %s (%s)\n", mf_runtime_title(in->runtime), mf_runtime_version(in->runtime));
    mf_print(f, "  memory    %s of tensors at the peak, %s held for them, %s fixed cost\n",
             size_text(x->live_bytes, live), size_text(x->pool_bytes, pool), size_text(x->fixed_bytes, fixed));
    if (in->max_batch)
        mf_print(f, "  batch     %lld is the largest that fits by the band's upper end%s%s\n", (long long)in->max_batch,
                 in->max_input[0] ? "; largest input " : "", in->max_input);
    for (uint32_t i = 0; i < in->line_count; i++)
        mf_print(f, "  %-9s %10s  %s\n",
                 in->lines[i].fits == MF_FRAMEWORK_YES  ? "fits"
                 : in->lines[i].fits == MF_FRAMEWORK_NO ? "too much"
                                                        : "tight",
                 size_text(in->lines[i].peak_bytes, peak), in->lines[i].line);
    if (in->line_count && a->fits)
        mf_print(f, "  %-9s %10s  memfit train MODEL --data SOURCE --batch-size %lld\n", "fits",
                 size_text(a->plan->peak_bytes, peak), (long long)a->plan->batch);
}

void mf_answer_print_verdict(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    print_framework_verdict(f, a, c);
    char need[24], limit[24], rest[24], under[48] = "";
    const mf_plan *plan = a->plan;
    size_text(c->memory_bytes, limit);
    if (a->assumed_count)
        snprintf(under, sizeof under, " (%u layer%s assumed)", a->assumed_count, a->assumed_count > 1 ? "s" : "");
    if (a->fits && a->as_asked_fits && plan->pieces <= 1 && plan->chunks <= 1) {
        mf_print(f, "FITS in memfit as asked%s: batch %lld needs %s of %s, %s to spare.\n", under,
                 (long long)plan->batch, size_text(plan->peak_bytes, need), limit,
                 size_text(c->memory_bytes - plan->peak_bytes, rest));
        return;
    }
    if (a->fits) {
        mf_print(f, "FITS in memfit, but not as asked%s: batch %lld", under, (long long)plan->batch);
        print_means(f, plan);
        mf_print(f, " needs %s of %s, %s to spare.\n", size_text(plan->peak_bytes, need), limit,
                 size_text(c->memory_bytes - plan->peak_bytes, rest));
    } else {
        mf_print(f, "DOES NOT FIT in memfit%s: batch %lld needs at least %s", under, (long long)plan->batch,
                 mf_format_need(plan->peak_bytes, need, sizeof need));
        if (plan->pieces > 1 || plan->chunks > 1 || plan->recomputed_ops)
            print_means(f, plan);
        mf_print(f, ", %s more than the limit of %s.\n", size_text(plan->peak_bytes - c->memory_bytes, rest), limit);
    }
    if (a->as_asked_fits)
        mf_print(f, "As asked (the batch at once, nothing recomputed) it fits: %s.\n",
                 size_text(a->as_asked_peak_bytes, need));
    else
        mf_print(f, "As asked (the batch at once, nothing recomputed) it does not fit: %s, %s too much.\n",
                 size_text(a->as_asked_peak_bytes, need), size_text(a->as_asked_peak_bytes - c->memory_bytes, rest));
    if (!a->fits)
        mf_print(f, "Why: %s.\n", a->obstacle);
}

/* What is not known of the model and was given instead: the verdict rests on it. */
static void print_assumed(FILE *f, const mf_answer *a)
{
    for (uint32_t i = 0; i < a->assumed_count; i++) {
        const mf_assumed_layer *l = &a->assumed[i];
        mf_shape shape = {.rank = l->output_shape.rank ? l->output_shape.rank - 1 : 0};
        char text[128], bytes[24], weights[24];
        for (uint32_t d = 0; d < shape.rank; d++)
            shape.dim[d] = l->output_shape.dim[d + 1];
        mf_print(f,
                 "  assumed   layer %s (%s) makes %s a sample, takes %s beside it and has %s of weights (--assume)\n",
                 l->name, l->class_name, mf_shape_format(&shape, text, sizeof text), size_text(l->bytes, bytes),
                 size_text(l->parameter_bytes, weights));
    }
}

static void print_facts(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    char count[32], fixed[24], memory[24], peak[24];
    const mf_plan *plan = a->plan;
    mf_print(f, "\n  model     %s: %u layer%s, %s parameters; optimizer %s%s, loss %s%s\n",
             c->model->name ? c->model->name : c->path, a->layer_count ? a->layer_count - 1 : 0,
             a->layer_count == 2 ? "" : "s", mf_format_count(a->parameter_count, count, sizeof count), a->optimizer,
             a->optimizer_assumed ? " (assumed)" : "", a->loss, a->loss_assumed ? " (assumed)" : "");
    print_assumed(f, a);
    mf_print(f, "  device    %s: %s, of which %s fixed cost", c->device, size_text(c->memory_bytes, memory),
             size_text(plan->fixed_bytes, fixed));
    if (c->margin_percent)
        mf_print(f, " (%s, +-%u %%)", c->basis, c->margin_percent);
    else
        mf_print(f, " (%s)", c->basis);
    mf_print(f, "\n  peak      %s at %s\n", size_text(plan->peak_bytes, peak), a->peak_at);
    if (plan->phases[0].graph->left_out)
        mf_print(f, "  note      the model uses %s, which memfit can plan but not train with\n",
                 plan->phases[0].graph->left_out);
    if (a->slowdown > 1.0005 || plan->numerics != MF_BITWISE)
        mf_print(f, "  cost      %.2f times the time of the unconstrained step; %s\n", a->slowdown,
                 numerics_text(plan->numerics));
    if (a->float32_peak_bytes) {
        char text[200];
        mf_print(f, "  precision %s\n",
                 mf_precision_text(a->precision, a->as_asked_peak_bytes, a->float32_peak_bytes, a->precision_slowdown,
                                   text, sizeof text));
    }
    if (plan->unpredicted_bytes)
        mf_print(f, "  note      predicting one sample is no part of this plan: with all its logits that takes %s\n",
                 size_text(plan->unpredicted_bytes, peak));
    if (a->max_batch >= 1 << 24) {
        mf_print(f, "  batch     any up to %d fits at once\n", 1 << 24);
    } else if (a->max_batch) {
        mf_print(f, "  batch     %lld is the largest that fits at once (%lld was tried and does not)",
                 (long long)a->max_batch, (long long)a->max_batch + 1);
        if (a->max_batch_chunks > 1)
            mf_print(f, ", the last layer in %u chunks", a->max_batch_chunks);
        if (a->max_batch_as_asked != a->max_batch)
            mf_print(f, "; %lld with nothing recomputed", (long long)a->max_batch_as_asked);
        fputc('\n', f);
    }
}

/* ---- bar and owners --------------------------------------------------------------------------------------- */

static const struct {
    memfit_kind kind;
    char letter;
} bar_parts[] = {{MEMFIT_KIND_FIXED, 'F'},     {MEMFIT_KIND_PARAMETERS, 'P'},  {MEMFIT_KIND_OPTIMIZER, 'O'},
                 {MEMFIT_KIND_GRADIENTS, 'G'}, {MEMFIT_KIND_ACTIVATIONS, 'A'}, {MEMFIT_KIND_INPUTS, 'I'},
                 {MEMFIT_KIND_WORKSPACE, 'W'}, {MEMFIT_KIND_PADDING, '-'}};
enum { PARTS = sizeof bar_parts / sizeof *bar_parts };

/* One cell a share of the larger of limit and peak; a part that is there at all shows where it can. */
static void print_bar(FILE *f, const mf_answer *a, const mf_answer_context *c)
{
    uint64_t peak = a->plan->peak_bytes, whole = peak > c->memory_bytes ? peak : c->memory_bytes, sum = 0;
    char bar[BAR + 1], text[24];
    int at = 0;
    memset(bar, '.', BAR);
    bar[BAR] = '\0';
    for (int i = 0; i < PARTS && whole; i++) {
        sum += a->breakdown[bar_parts[i].kind];
        int end = (int)((double)sum / (double)whole * BAR + 0.5);
        while (at < end && at < BAR)
            bar[at++] = bar_parts[i].letter;
    }
    int limit = (int)((double)c->memory_bytes / (double)whole * BAR + 0.5);
    mf_print(f, "\n  [%.*s%s%s]\n", limit, bar, limit < BAR ? "|" : "", bar + limit);
    int shown = 0;
    for (int i = 0; i < PARTS; i++) {
        uint64_t bytes = a->breakdown[bar_parts[i].kind];
        if (!bytes)
            continue;
        mf_print(f, shown % 3 == 0 && shown ? "\n  %c %-11s %10s" : "  %c %-11s %10s", bar_parts[i].letter,
                 memfit_kind_name(bar_parts[i].kind), size_text(bytes, text));
        shown++;
    }
    fputc('\n', f);
}

static void print_owners(FILE *f, const mf_answer *a)
{
    char text[24];
    mf_print(f, "\n  largest tensors at the peak, by layer\n");
    for (uint32_t i = 0; i < a->owner_count; i++)
        mf_print(f, "  %12s  %-12s %s%s%s%s\n", size_text(a->owners[i].bytes, text),
                 memfit_kind_name(a->owners[i].kind), a->owners[i].layer, a->owners[i].class_name ? " (" : "",
                 a->owners[i].class_name ? a->owners[i].class_name : "", a->owners[i].class_name ? ")" : "");
}

static void print_suggestions(FILE *f, const mf_answer *a)
{
    char text[24];
    if (!a->suggestion_count)
        return;
    mf_print(f, "\n                 peak    time  numerics   what to change\n");
    for (uint32_t i = 0; i < a->suggestion_count; i++) {
        const mf_suggestion *s = &a->suggestions[i];
        mf_print(f, "  %-8s %10s %6.2fx  %-9s  %s\n", s->fits ? "fits" : "too much", size_text(s->peak_bytes, text),
                 s->slowdown, mf_numerics_name(s->numerics), s->change);
    }
}

/* ---- the curve -------------------------------------------------------------------------------------------- */

/* The same plan as for the budget before: it says nothing new. */
static bool is_repeated(const mf_answer *a, uint32_t i)
{
    const mf_curve_point *p = &a->curve[i], *before = i ? p - 1 : NULL;
    return before && p->fits == before->fits &&
           (!p->fits || (p->peak_bytes == before->peak_bytes && p->slowdown == before->slowdown));
}

static void print_curve(FILE *f, const mf_answer *a)
{
    char budget[24], peak[24];
    if (!a->curve_count)
        return;
    double most = 1;
    for (uint32_t i = 0; i < a->curve_count; i++)
        if (a->curve[i].fits && a->curve[i].slowdown > most)
            most = a->curve[i].slowdown;
    mf_print(f, "\n  memory against time\n      budget        peak    time  batches  recomputed  numerics\n");
    for (uint32_t i = 0; i < a->curve_count; i++) {
        const mf_curve_point *p = &a->curve[i];
        if (is_repeated(a, i))
            continue;
        mf_print(f, "  %10s  ", size_text(p->budget_bytes, budget));
        if (!p->fits) {
            mf_print(f, "%10s  no plan\n", "-");
            continue;
        }
        int width = most > 1 ? (int)((p->slowdown - 1) / (most - 1) * CURVE_WIDTH + 0.5) : 0;
        mf_print(f, "%10s %6.3fx %8lld %11u  %-9s |%.*s*", size_text(p->peak_bytes, peak), p->slowdown,
                 (long long)p->pieces, p->recomputed, mf_numerics_name(p->numerics), width, "            ");
        if (p->chunks > 1)
            mf_print(f, "  last layer in %u chunks", p->chunks);
        fputc('\n', f);
    }
}

/* ---- -v --------------------------------------------------------------------------------------------------- */

static void print_bounds(FILE *f, const mf_answer *a)
{
    char x[24], y[24];
    const mf_plan *plan = a->plan;
    mf_print(f, "\n  bounds (fixed cost and variables included)\n");
    mf_print(f,
             "  %12s  any plan with these micro-batches: the hungriest operation alone; this plan is %.2f times that\n",
             size_text(a->lower_bound_bytes, x), (double)plan->peak_bytes / (double)a->lower_bound_bytes);
    mf_print(f, "  %12s  any packing of these operations; this one is %.4f times that\n",
             size_text(a->packing_bound_bytes, x), (double)plan->peak_bytes / (double)a->packing_bound_bytes);
    mf_print(f, "  %12s  any plan with these micro-batches and nothing recomputed\n",
             size_text(a->save_set_bound_bytes, y));
    if (a->recompute_bound > 1)
        mf_print(f, "  %11.3fx  time no recomputation in this room can beat; this plan takes %.3fx\n",
                 a->recompute_bound, a->slowdown);
}

/* Where memory was short: is the loss in chunks, and if not, why? */
static void print_loss(FILE *f, const mf_answer *a)
{
    const mf_plan *plan = a->plan;
    const mf_graph *g = plan->phases[0].graph;
    char bytes[24];
    if (plan->chunks > 1)
        mf_print(f, "\n  the last layer and its loss: %u chunks of %lld rows, whose logits would be %s whole\n",
                 plan->chunks, (long long)((g->logits_rows + plan->chunks - 1) / plan->chunks),
                 size_text(g->logits_bytes, bytes));
    else if (!a->as_asked_fits && g->logits_bytes)
        mf_print(f, "\n  the last layer and its loss: whole, %s of logits\n", size_text(g->logits_bytes, bytes));
    else if (!a->as_asked_fits && g->whole_why)
        mf_print(f, "\n  the last layer and its loss: whole, as %s\n", g->whole_why);
}

static void print_phases(FILE *f, const mf_plan *plan)
{
    char arena[24];
    mf_print(f, "\n  phase                 batch  runs  operations  recomputed       arena\n");
    for (uint32_t p = 0; p < plan->phase_count; p++) {
        const mf_phase *phase = &plan->phases[p];
        mf_print(f, "  %-18s %8lld %5lld %11u %11u %11s\n", mf_phase_name(phase->role), (long long)phase->batch,
                 (long long)phase->repeat, phase->step_count, phase->recomputed, size_text(phase->bytes, arena));
    }
}

static void print_layers(FILE *f, const mf_answer *a)
{
    char shape[64], parameters[24], saved[24];
    mf_print(f, "\n  %10s %10s  layer (class) output\n", "parameters", "saved");
    for (uint32_t i = 1; i < a->layer_count; i++) {
        mf_shape s = a->layers[i].output_shape;
        if (s.rank)
            s.dim[0] = -1;
        mf_print(f, "  %10s %10s  %s (%s) %s\n", size_text(a->layers[i].parameter_bytes, parameters),
                 size_text(a->layers[i].saved_bytes, saved), a->layers[i].name, a->layers[i].class_name,
                 mf_shape_format(&s, shape, sizeof shape));
    }
}

/* Bytes live at each step of the phase with the peak, as a picture. */
static void print_timeline(FILE *f, const mf_answer *a)
{
    const mf_plan *plan = a->plan;
    const mf_phase *phase = &plan->phases[a->peak_phase];
    uint64_t column[CHART_WIDTH] = {0};
    if (!phase->step_count)
        return;
    uint32_t width = phase->step_count < CHART_WIDTH ? phase->step_count : CHART_WIDTH;
    for (uint32_t x = 0; x < width; x++) { /* the highest step of each column would hide detail cheaply: sample three */
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t step = (uint32_t)(((uint64_t)x * 3 + k) * phase->step_count / (3ull * width));
            if (k == 1 && (uint64_t)phase->peak_step * width / phase->step_count == x)
                step = phase->peak_step;
            uint64_t sum = plan->fixed_bytes + plan->variables_end;
            for (uint32_t i = 0; i < phase->placed_count; i++) {
                const mf_placed *p = &phase->placed[i];
                if (p->first <= step && step <= p->last && !(p->handed_on && p->last == step))
                    sum += p->bytes;
            }
            if (sum > column[x])
                column[x] = sum;
        }
    }
    char text[24];
    mf_print(f, "\n  bytes in use over the %u operations of %s\n", phase->step_count, mf_phase_name(phase->role));
    for (int y = CHART_HEIGHT; y > 0; y--) {
        mf_print(f, "  %10s |", y == CHART_HEIGHT ? size_text(plan->peak_bytes, text) : "");
        for (uint32_t x = 0; x < width; x++)
            fputc((double)column[x] >= (double)plan->peak_bytes * ((double)y - 0.5) / CHART_HEIGHT ? '#' : ' ', f);
        fputc('\n', f);
    }
    mf_print(f, "  %10s +%.*s\n", "0", (int)width,
             "------------------------------------------------------------------------------------");
}

void mf_answer_print(FILE *f, const mf_answer *a, const mf_answer_context *c, bool detail)
{
    mf_answer_print_verdict(f, a, c);
    print_framework(f, a);
    print_facts(f, a, c);
    print_bar(f, a, c);
    print_owners(f, a);
    print_suggestions(f, a);
    print_curve(f, a);
    if (!detail)
        return;
    print_bounds(f, a);
    print_phases(f, a->plan);
    print_loss(f, a);
    print_layers(f, a);
    print_timeline(f, a);
}

/* ---- several cards ---------------------------------------------------------------------------------------- */

static const char *precision_of(const mf_answer *a)
{
    const char *name = a->precision ? a->precision : "float32";
    return strncmp(name, "mixed_", 6) == 0 ? name + 6 : name;
}

static void print_row(FILE *f, const mf_answer *a, const mf_answer_context *c, uint64_t peak, const char *verdict,
                      int64_t largest)
{
    char x[24];
    mf_print(f, "  %-20.20s %6lld %-8s %10s %-8s %8lld", c->device, (long long)a->plan->batch, precision_of(a),
             size_text(peak, x), verdict, (long long)largest);
}

/* One row a plan and engine: what the framework takes, then memfit. */
void mf_answers_compare(FILE *f, uint32_t count, mf_answer *const *answers, const mf_answer_context *contexts)
{
    static const char *const words[] = {"too much", "tight", "fits"};
    static const char head[] = "  %-20.20s  batch precision     peak            largest%s\n";
    const mf_in_framework *first = &answers[0]->framework;
    char x[24];
    if (first->runtime != MF_RUNTIME_MEMFIT) {
        mf_print(f, "in %s\n", mf_runtime_title(first->runtime));
        mf_print(f, head, "card", "");
    }
    for (uint32_t i = 0; i < count && first->runtime != MF_RUNTIME_MEMFIT; i++) {
        const mf_in_framework *in = &answers[i]->framework;
        if (in->known)
            print_row(f, answers[i], &contexts[i], in->estimate.peak_bytes, words[in->estimate.fits], in->max_batch);
        else
            mf_print(f, "  %-20.20s %6lld %-8s  not known", contexts[i].device, (long long)answers[i]->plan->batch,
                     precision_of(answers[i]));
        fputc('\n', f);
    }
    mf_print(f, first->runtime != MF_RUNTIME_MEMFIT ? "\nin memfit\n" : "in memfit\n");
    mf_print(f, head, "card", "        step");
    for (uint32_t i = 0; i < count; i++) {
        const mf_answer *a = answers[i];
        print_row(f, a, &contexts[i], a->plan->peak_bytes,
                  !a->fits           ? "too much"
                  : a->as_asked_fits ? "fits"
                                     : "fits *",
                  a->max_batch);
        mf_print(f, " %8.1f ms\n", a->plan->time_us / 1000);
    }
    mf_print(f, "\nlimit:");
    for (uint32_t i = 0; i < count; i++)
        if (!i || strcmp(contexts[i].device, contexts[i - 1].device) != 0)
            mf_print(f, "%s %s on %s", i ? "," : "", size_text(contexts[i].memory_bytes, x), contexts[i].device);
    mf_print(f, "; *: with micro-batches or recomputation\n");
}
