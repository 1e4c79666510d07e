/* cmd_plan.c: memfit plan: options, cards, and the answer shown. The work is memfit/plan.h's. */
#include "cli/cli.h"
#include "base/visible.h"

#include "base/error.h"
#include "cli/plan_kept.h"
#include "cli/plan_trace.h"
#include "memfit/plan.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_PLANS = 16, LONGEST = 256 };

typedef struct plan_arguments {
    memfit_plan_options options;
    const char *batches, *precisions, *cards, *dump, *html;
    const char *save, *diff, *baseline;
    double tolerance;
    bool fail_unless_as_asked;
    cli_list dims, assume;
    int64_t threads, chunks;
    bool curve;
} plan_arguments;

static int list_cards(const cli_common *common)
{
    memfit_card card = MEMFIT_CARD;
    char memory[24], fixed[24];
    mf_json_writer w;
    if (common->json) {
        mf_json_begin(&w, stdout);
        mf_json_open(&w, NULL, '{');
        mf_json_open(&w, "cards", '[');
    } else {
        mf_print(stdout, "%-16s %-24s %10s %11s %5s %8s\n", "name", "card", "memory", "fixed cost", "GB/s", "TFLOP/s");
    }
    for (size_t i = 0; memfit_card_at(i, &card); i++) {
        if (common->json) {
            mf_json_open(&w, NULL, '{');
            mf_json_put_string(&w, "name", card.name);
            mf_json_put_string(&w, "title", card.title);
            mf_json_put_u64(&w, "memory_bytes", card.memory_bytes);
            mf_json_put_u64(&w, "fixed_bytes", card.fixed_bytes);
            mf_json_put_double(&w, "bandwidth_gbs", card.bandwidth_gbs);
            mf_json_put_double(&w, "fp32_tflops", card.fp32_tflops);
            mf_json_put_double(&w, "fp16_tflops", card.fp16_tflops);
            mf_json_close(&w, '}');
        } else {
            mf_print(stdout, "%-16s %-24s %10s %11s %5.0f %8.1f\n", card.name, card.title,
                     memfit_size_format(card.memory_bytes, memory, sizeof memory),
                     memfit_size_format(card.fixed_bytes, fixed, sizeof fixed), card.bandwidth_gbs, card.fp32_tflops);
        }
    }
    if (common->json) {
        mf_json_close(&w, ']');
        mf_json_close(&w, '}');
        mf_json_end(&w);
    }
    return CLI_DONE;
}

static bool to_standard_output(void *ctx, const char *text, size_t bytes)
{
    (void)ctx;
    return fwrite(text, 1, bytes, stdout) == bytes;
}

/* The whole text; under --quiet the verdict, unless more was asked for. Of several plans that is the table. */
static void print_plan(const cli_common *common, const plan_arguments *a, const memfit_plan *plan, bool several)
{
    if (!common->quiet || common->verbose || a->curve)
        memfit_plan_print(plan, stdout, common->verbose);
    else if (!several)
        memfit_plan_write(plan, MEMFIT_PLAN_VERDICT, to_standard_output, NULL, NULL);
    if (several && !common->quiet)
        putchar('\n');
}

/* Files that are written, and plans that were kept. */
static int use_files(const cli_common *common, const plan_arguments *a, memfit_plan **plans, size_t count, bool *within)
{
    memfit_error err = {0};
    memfit_status status = MEMFIT_OK;
    const char *wrote[] = {NULL, NULL, NULL};
    if (a->dump && (status = memfit_plan_dump_graph(plans[0], a->dump, &err)) == MEMFIT_OK)
        wrote[0] = a->dump;
    if (status == MEMFIT_OK && a->html &&
        (status = memfit_plan_write_html((const memfit_plan *const *)plans, count, a->html, &err)) == MEMFIT_OK)
        wrote[1] = a->html;
    if (status == MEMFIT_OK && a->save && (status = cli_plan_save(plans[0], a->save, &err)) == MEMFIT_OK)
        wrote[2] = a->save;
    if (status == MEMFIT_OK && a->baseline)
        status = cli_plan_within(plans[0], a->baseline, a->tolerance, within, &err);
    for (int i = 0; i < 3; i++)
        if (wrote[i])
            cli_note(common, "memfit: wrote %s", wrote[i]);
    return status == MEMFIT_OK ? CLI_DONE : cli_report(common, &err);
}

static int show(const cli_common *common, const plan_arguments *a, memfit_plan **plans, size_t count)
{
    memfit_plan_summary summary = MEMFIT_PLAN_SUMMARY;
    bool fits = true, known = true, within = true;
    for (size_t i = 0; i < count; i++) {
        memfit_plan_get_summary(plans[i], &summary, NULL);
        bool other = summary.runtime_given && strcmp(summary.runtime, "memfit") != 0;
        fits = fits && (other ? summary.in_framework_fits != MEMFIT_FRAMEWORK_NO : summary.fits);
        fits = fits && (!a->fail_unless_as_asked || summary.as_asked_fits);
        known = known && (!other || summary.in_framework_fits != MEMFIT_FRAMEWORK_UNKNOWN);
        if (!common->json && !a->diff && (count == 1 || common->verbose))
            print_plan(common, a, plans[i], count > 1);
    }
    memfit_error err = {0};
    if (a->diff && cli_plan_diff(plans[0], a->diff, common->json, &err) != MEMFIT_OK)
        return cli_report(common, &err);
    if (count > 1)
        memfit_plan_compare((const memfit_plan *const *)plans, count, stdout, common->json);
    else if (common->json && !a->diff)
        memfit_plan_print_json(plans[0], stdout);
    int status = use_files(common, a, plans, count, &within);
    return status != CLI_DONE ? status : !fits || !within ? CLI_NO_FIT : known ? CLI_DONE : CLI_UNSUPPORTED;
}

/* The parts of "a,b,c", in place; one NULL part when there is no list. */
static size_t parts_of(char *text, const char **parts)
{
    size_t count = 0;
    for (char *rest = text; *text && rest && count < MOST_PLANS + 1;)
        parts[count++] = strsep(&rest, ",");
    if (!count)
        parts[count++] = NULL;
    return count;
}

/* One plan for each card, precision and batch. */
static int plan_all(const cli_command *command, const cli_common *common, const char *model, plan_arguments *a)
{
    char cards[LONGEST * 4], precisions[LONGEST], batches[LONGEST];
    const char *card[MOST_PLANS + 1], *precision[MOST_PLANS + 1], *batch[MOST_PLANS + 1];
    snprintf(cards, sizeof cards, "%s", a->cards ? a->cards : "");
    snprintf(precisions, sizeof precisions, "%s", a->precisions ? a->precisions : "");
    snprintf(batches, sizeof batches, "%s", a->batches ? a->batches : "");
    size_t n = parts_of(cards, card), m = parts_of(precisions, precision), k = parts_of(batches, batch);
    for (size_t i = 0; i < n; i++)
        if (card[i] && !*card[i])
            return cli_usage_error(command, "--for %s: a name is missing beside a comma", a->cards);
    if (n * m * k > MOST_PLANS)
        return cli_usage_error(command, "%zu plans were asked for: at most %d make a table", n * m * k, MOST_PLANS);
    if (n * m * k > 1 && (a->save || a->diff || a->baseline || a->dump))
        return cli_usage_error(command, "--save, --diff, --baseline and --dump-graph take one plan, not %zu",
                               n * m * k);
    memfit_plan *plans[MOST_PLANS];
    size_t count = 0;
    int status = CLI_DONE;
    for (size_t i = 0; i < n * m * k && status == CLI_DONE; i++) {
        memfit_error err = {0};
        const char *samples = batch[i % k];
        a->options.card = card[i / (m * k)];
        a->options.precision = precision[i / k % m];
        if (samples)
            a->options.batch = strtoll(samples, NULL, 10);
        if (memfit_plan_create(model, &a->options, &plans[count], &err) != MEMFIT_OK)
            status = cli_report(common, &err);
        else
            count++;
    }
    if (status == CLI_DONE)
        status = show(common, a, plans, count);
    for (size_t i = 0; i < count; i++)
        memfit_plan_destroy(plans[i]);
    return status;
}

int cli_plan(const cli_command *command, int argc, char **argv)
{
    plan_arguments a = {0};
    cli_common common;
    a.options = (memfit_plan_options)MEMFIT_PLAN_OPTIONS;
    memfit_plan_options *o = &a.options;
    const cli_binding bindings[] = {
        CLI_BIND("--batch-size", &a.batches),
        CLI_BIND("--memory", &o->memory),
        CLI_BIND("--for", &a.cards),
        CLI_BIND("--device", &o->device),
        CLI_BIND("--optimizer", &o->optimizer),
        CLI_BIND("--loss", &o->loss),
        CLI_BIND("--precision", &a.precisions),
        CLI_BIND("--gradient-accumulation", &o->pieces),
        CLI_BIND("--recompute", &o->no_recompute),
        CLI_BIND("--chunked-loss", &a.chunks),
        CLI_BIND("--allow-changed-numerics", &o->allow_changed_numerics),
        CLI_BIND("--allow-nondeterministic", &o->allow_nondeterministic),
        CLI_BIND("--validation-batch-size", &o->validation_batch),
        CLI_BIND("--samples", &o->samples),
        CLI_BIND("--input-shape", &o->input_shape),
        CLI_BIND("--dim", &a.dims),
        CLI_BIND("--assume", &a.assume),
        CLI_BIND("--threads", &a.threads),
        CLI_BIND("--curve", &a.curve),
        CLI_BIND("--dump-graph", &a.dump),
        CLI_BIND("--html", &a.html),
        CLI_BIND("--runtime", &o->runtime),
        CLI_BIND("--save", &a.save),
        CLI_BIND("--diff", &a.diff),
        CLI_BIND("--baseline", &a.baseline),
        CLI_BIND("--tolerance", &a.tolerance),
        CLI_BIND("--fail-unless-as-asked", &a.fail_unless_as_asked),
        {0},
    };
    int status =
        cli_parse(command, argc, argv, bindings, &common,
                  "Exit status: 0 the plan fits, 3 it does not, 4 a layer is not supported, 5 the file is bad.\n");
    if (status != CLI_DONE || common.help)
        return status;
    if (a.cards && strcmp(a.cards, "list") == 0)
        return list_cards(&common);
    if (a.cards && !*a.cards) /* a variable of a script that is not set: not this machine's cpu */
        return cli_usage_error(command, "--for needs a value: CARD[,CARD]");
    if (!common.operand_count)
        return cli_usage_error(command, "%s memfit %s", command->question, command->usage);
    o->dims = a.dims.items;
    o->dim_count = a.dims.count;
    o->assume = a.assume.items;
    o->assume_count = a.assume.count;
    o->threads = (unsigned)a.threads;
    o->loss_chunks = (unsigned)a.chunks;
    o->curve_points = a.curve ? 20 : 0;
    if (!cli_is_trace(common.operands[0]))
        return plan_all(command, &common, common.operands[0], &a);
    if ((a.cards && strchr(a.cards, ',')) || a.batches || a.precisions || a.save || a.diff || a.baseline || a.html ||
        a.dump)
        return cli_usage_error(command,
                               "of a recorded step one card can be asked about: --for CARD, --memory, --runtime torch; "
                               "batch and precision are those it was recorded with");
    o->card = a.cards;
    return cli_plan_trace(&common, common.operands[0], o);
}
