/* cmd_plan.c: memfit plan: options, cards, and the answer shown. The work is memfit/plan.h's. */
#include "cli/cli.h"

#include "base/error.h"
#include "memfit/plan.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CARDS = 8 };

typedef struct plan_arguments {
    memfit_plan_options options;
    const char *cards, *accumulation, *chunks, *recompute, *dump, *html;
    char *dims[CLI_MOST_LIST], *assume[CLI_MOST_LIST];
    int64_t threads;
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
        printf("%-18s %-26s %12s %12s %10s %10s\n", "name", "card", "memory", "fixed cost", "GB/s", "TFLOP/s");
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
            printf("%-18s %-26s %12s %12s %10.0f %10.1f\n", card.name, card.title,
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

/* "auto", "off" or a number of pieces. */
static int read_accumulation(const cli_command *command, plan_arguments *a)
{
    const char *text = a->accumulation;
    if (!text || strcmp(text, "auto") == 0)
        return CLI_DONE;
    if (strcmp(text, "off") == 0) {
        a->options.pieces = 1;
        return CLI_DONE;
    }
    char *end;
    long long n = strtoll(text, &end, 10);
    if (end == text || *end || n < 1)
        return cli_usage_error(command, "--gradient-accumulation %s: auto, off or a number of pieces is wanted", text);
    a->options.pieces = n;
    return CLI_DONE;
}

static int read_arguments(const cli_command *command, plan_arguments *a)
{
    int status = read_accumulation(command, a);
    if (status == CLI_DONE)
        status = cli_read_chunks(command, a->chunks, &a->options.loss_chunks);
    if (status)
        return status;
    if (a->recompute && strcmp(a->recompute, "off") == 0)
        a->options.no_recompute = true;
    else if (a->recompute && strcmp(a->recompute, "auto") != 0)
        return cli_usage_error(command, "--recompute %s: auto or off is wanted", a->recompute);
    if (a->options.batch < 1)
        return cli_usage_error(command, "--batch-size 0: at least 1 is wanted");
    status = cli_check_threads(command, a->threads);
    if (status)
        return status;
    size_t cards = a->cards ? 1 : 0;
    for (const char *p = a->cards; p && *p; p++)
        cards += *p == ',';
    if (cards > MOST_CARDS)
        return cli_usage_error(command, "--for names %zu cards: at most %d go side by side", cards, MOST_CARDS);
    a->options.threads = (unsigned)a->threads;
    a->options.curve_points = a->curve ? 20 : 0;
    return CLI_DONE;
}

static int show(const cli_common *common, const plan_arguments *a, memfit_plan **plans, size_t count)
{
    memfit_plan_summary summary = MEMFIT_PLAN_SUMMARY;
    bool fits = true;
    for (size_t i = 0; i < count; i++) {
        memfit_plan_get_summary(plans[i], &summary, NULL);
        fits = fits && summary.fits;
        if (!common->json) {
            memfit_plan_print(plans[i], stdout, common->verbose);
            if (count > 1)
                putchar('\n');
        }
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
    return fits ? CLI_DONE : CLI_NO_FIT;
}

/* One plan for the device, or one for each card of "a,b". */
static int plan_all(const cli_common *common, const char *model, plan_arguments *a)
{
    cli_name_missing_unit(common, a->options.memory);
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
    const cli_option options[] = {
        {"--batch-size|--batch|-b", CLI_COUNT, &o->batch, "N", "samples an update sees (32)"},
        {"--memory", CLI_SIZE, &o->memory, "SIZE", "limit for the process: 8GiB, 80%"},
        {"--for", CLI_STRING, &a.cards, "CARD[,CARD]", "plan for a card of the table; `list` shows it"},
        {"--device", CLI_STRING, &o->device, "cpu|cuda[:I]", "plan for this machine's device (cpu)"},
        {"--optimizer", CLI_STRING, &o->optimizer, "NAME", "in place of the file's"},
        {"--loss", CLI_STRING, &o->loss, "NAME", "in place of the file's"},
        {"--precision", CLI_STRING, &o->precision, "NAME", "float32, mixed_float16 or mixed_bfloat16"},
        {"--gradient-accumulation", CLI_STRING, &a.accumulation, "auto|off|K", "pieces of the batch (auto)"},
        {"--recompute|--remat", CLI_STRING, &a.recompute, "auto|off", "drop and compute again to save memory (auto)"},
        {"--chunked-loss", CLI_STRING, &a.chunks, "auto|off|K", "chunks of the last layer and its loss (auto)"},
        {"--allow-changed-numerics", CLI_FLAG, &o->allow_changed_numerics, NULL,
         "let the planner change the mathematics"},
        {"--validation-batch-size", CLI_COUNT, &o->validation_batch, "N", "of validation and prediction"},
        {"--input-shape", CLI_STRING, &o->input_shape, "H,W,C", "of the first input"},
        {"--dim", CLI_STRING, NULL, "NAME=N", "an open dimension of an input (may be repeated)"},
        {"--assume", CLI_STRING, NULL, "LAYER=SHAPE[:BYTES]", "stands in for a layer that cannot be read"},
        {"--threads", CLI_COUNT, &a.threads, "N", "of the CPU (all)"},
        {"--curve", CLI_FLAG, &a.curve, NULL, "memory against time for 20 budgets"},
        {"--dump-graph", CLI_STRING, &a.dump, "FILE", "write the step as text, or for Graphviz (.dot)"},
        {"--html", CLI_STRING, &a.html, "FILE", "write a page for the browser"},
        {0},
    };
    const char *operands[1] = {0};
    int count = 0, status = cli_take_list(command, &argc, argv, "--dim", "NAME=N", a.dims, &o->dim_count);
    if (status == CLI_DONE)
        status = cli_take_list(command, &argc, argv, "--assume", "LAYER=SHAPE[:BYTES]", a.assume, &o->assume_count);
    o->dims = (const char *const *)a.dims;
    o->assume = (const char *const *)a.assume;
    if (status == CLI_DONE)
        status =
            cli_parse(command, argc, argv, options, &common, operands, 0, 1, &count,
                      "Exit status: 0 the plan fits, 3 it does not, 4 a layer is not supported, 5 the file is bad.\n");
    if (status != CLI_DONE || common.help)
        return status;
    if (a.cards && strcmp(a.cards, "list") == 0)
        return list_cards(&common);
    if (!count)
        return cli_usage_error(command, "which model? memfit %s", command->usage);
    status = read_arguments(command, &a);
    return status == CLI_DONE ? plan_all(&common, operands[0], &a) : status;
}
