/* cmd_plan.c: memfit plan: options, cards, and the answer shown. The work is memfit/plan.h's. */
#include "cli/cli.h"
#include "base/visible.h"

#include "base/error.h"
#include "memfit/plan.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CARDS = 8 };

typedef struct plan_arguments {
    memfit_plan_options options;
    const char *cards, *dump, *html;
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
        mf_print(stdout, "%-18s %-26s %12s %12s %10s %10s\n", "name", "card", "memory", "fixed cost", "GB/s",
                 "TFLOP/s");
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
            mf_print(stdout, "%-18s %-26s %12s %12s %10.0f %10.1f\n", card.name, card.title,
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

/* "8GB" stands for any card of that size. */
static bool names_size(const char *card, size_t n)
{
    char text[32];
    uint64_t bytes;
    snprintf(text, sizeof text, "%.*s", (int)n, card);
    return n < sizeof text && memfit_size_parse(text, UINT64_MAX >> 2, &bytes, NULL) == MEMFIT_OK;
}

static int check_cards(const cli_command *command, const char *cards)
{
    size_t count = 0;
    for (const char *p = cards; p; count++) {
        size_t n = strcspn(p, ",");
        if (names_size(p, n))
            return cli_unsupported(command, "memfit plan --for SIZE, any card of that size, is not built yet",
                                   "--for CARD --memory SIZE plans for a slice of a card; --for list shows the cards");
        p = p[n] ? p + n + 1 : NULL;
    }
    return count <= MOST_CARDS
               ? CLI_DONE
               : cli_usage_error(command, "--for names %zu cards: at most %d go side by side", count, MOST_CARDS);
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

static int show(const cli_common *common, const plan_arguments *a, memfit_plan **plans, size_t count)
{
    memfit_plan_summary summary = MEMFIT_PLAN_SUMMARY;
    bool fits = true, known = true;
    for (size_t i = 0; i < count; i++) {
        memfit_plan_get_summary(plans[i], &summary, NULL);
        bool other = summary.runtime_given && strcmp(summary.runtime, "memfit") != 0;
        fits = fits && (other ? summary.in_framework_fits != MEMFIT_FRAMEWORK_NO : summary.fits);
        known = known && (!other || summary.in_framework_fits != MEMFIT_FRAMEWORK_UNKNOWN);
        if (!common->json)
            print_plan(common, a, plans[i], count > 1);
    }
    if (count > 1)
        memfit_plan_compare((const memfit_plan *const *)plans, count, stdout, common->json);
    else if (common->json)
        memfit_plan_print_json(plans[0], stdout);
    if (a->dump) {
        memfit_error err;
        if (memfit_plan_dump_graph(plans[0], a->dump, &err) != MEMFIT_OK)
            return cli_report(common, &err);
        cli_note(common, "memfit: wrote %s", a->dump);
    }
    if (a->html) {
        memfit_error err;
        if (memfit_plan_write_html((const memfit_plan *const *)plans, count, a->html, &err) != MEMFIT_OK)
            return cli_report(common, &err);
        cli_note(common, "memfit: wrote %s", a->html);
    }
    return !fits ? CLI_NO_FIT : known ? CLI_DONE : CLI_UNSUPPORTED;
}

/* One plan for the device, or one for each card of "a,b". */
static int plan_all(const cli_common *common, const char *model, plan_arguments *a)
{
    memfit_plan *plans[MOST_CARDS];
    size_t count = 0;
    int status = CLI_DONE;
    char cards[1024];
    snprintf(cards, sizeof cards, "%s", a->cards ? a->cards : "");
    char *rest = cards;
    do {
        char *name = a->cards ? strsep(&rest, ",") : NULL;
        memfit_error err = {0};
        a->options.card = name;
        if (memfit_plan_create(model, &a->options, &plans[count], &err) != MEMFIT_OK)
            status = cli_report(common, &err);
        else
            count++;
    } while (status == CLI_DONE && a->cards && rest && count < MOST_CARDS);
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
        CLI_BIND("--batch-size", &o->batch),
        CLI_BIND("--memory", &o->memory),
        CLI_BIND("--for", &a.cards),
        CLI_BIND("--device", &o->device),
        CLI_BIND("--optimizer", &o->optimizer),
        CLI_BIND("--loss", &o->loss),
        CLI_BIND("--precision", &o->precision),
        CLI_BIND("--gradient-accumulation", &o->pieces),
        CLI_BIND("--recompute", &o->no_recompute),
        CLI_BIND("--chunked-loss", &a.chunks),
        CLI_BIND("--allow-changed-numerics", &o->allow_changed_numerics),
        CLI_BIND("--validation-batch-size", &o->validation_batch),
        CLI_BIND("--input-shape", &o->input_shape),
        CLI_BIND("--dim", &a.dims),
        CLI_BIND("--assume", &a.assume),
        CLI_BIND("--threads", &a.threads),
        CLI_BIND("--curve", &a.curve),
        CLI_BIND("--dump-graph", &a.dump),
        CLI_BIND("--html", &a.html),
        CLI_BIND("--runtime", &o->runtime),
        {0},
    };
    int status =
        cli_parse(command, argc, argv, bindings, &common,
                  "Exit status: 0 the plan fits, 3 it does not, 4 a layer is not supported, 5 the file is bad.\n");
    if (status != CLI_DONE || common.help)
        return status;
    if (a.cards && strcmp(a.cards, "list") == 0)
        return list_cards(&common);
    if (!common.operand_count)
        return cli_usage_error(command, "%s memfit %s", command->question, command->usage);
    o->dims = a.dims.items;
    o->dim_count = a.dims.count;
    o->assume = a.assume.items;
    o->assume_count = a.assume.count;
    o->threads = (unsigned)a.threads;
    o->loss_chunks = (unsigned)a.chunks;
    o->curve_points = a.curve ? 20 : 0;
    status = check_cards(command, a.cards);
    return status == CLI_DONE ? plan_all(&common, common.operands[0], &a) : status;
}
