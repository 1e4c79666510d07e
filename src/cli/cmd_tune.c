/* cmd_tune.c: memfit tune: times what a card's libraries offer, once, for the plans that follow. */
#include "cli/train_cli.h"

#include "base/os.h"
#include "base/visible.h"
#include "base/words.h"

static const char help[] = "Training finds the times by itself: they are kept beside the compiled kernels,\n"
                           "and hold for this card and these versions of driver and libraries. With --out\n"
                           "they go to FILE, and MEMFIT_TIMES=FILE uses them.\n";

typedef struct tune_cli {
    train_cli base; /* first: notes and the limit take it for one */
    double last_told;
    bool line_open; /* a progress line stands at the terminal */
} tune_cli;

/* One line that is written over on a terminal; elsewhere a note every ten seconds. */
static void tell(void *ctx, const memfit_train_event *e)
{
    tune_cli *cli = ctx;
    bool terminal = mf_os_terminal_columns(stderr) > 0;
    if (e->seconds - cli->last_told < (terminal ? 0.25 : 10))
        return;
    cli->last_told = e->seconds;
    fputs(terminal ? "\r" : "", stderr);
    mf_print(stderr, "timing: operation %lld of %lld, %llu methods, %.0f s", (long long)e->step, (long long)e->steps,
             (unsigned long long)e->iteration, e->seconds);
    fputs(terminal ? "   " : "\n", stderr);
    cli->line_open = terminal;
}

static void print_json(const memfit_tune_result *r)
{
    mf_json_writer w;
    mf_json_begin(&w, stdout);
    mf_json_open(&w, NULL, '{');
    mf_json_put_string(&w, "made_by", r->made_by);
    mf_json_put_u64(&w, "operations", r->operations);
    mf_json_put_u64(&w, "menus", r->menus);
    mf_json_put_u64(&w, "methods", r->methods);
    mf_json_put_u64(&w, "refused", r->refused);
    mf_json_put_double(&w, "ranked_ms", r->ranked_ms);
    mf_json_put_double(&w, "tuned_ms", r->tuned_ms);
    mf_json_put_double(&w, "seconds", r->seconds);
    mf_json_put_string(&w, "out", r->path);
    mf_json_close(&w, '}');
    mf_json_end(&w);
}

int cli_tune(const cli_command *command, int argc, char **argv)
{
    tune_cli all = {0};
    train_cli *cli = &all.base;
    memfit_train_options *o = &cli->o;
    *o = (memfit_train_options)MEMFIT_TRAIN_OPTIONS;
    const cli_binding bindings[] = {CLI_BIND("--batch-size", &o->batch),
                                    CLI_BIND("--device", &cli->device),
                                    CLI_BIND("--precision", &o->precision),
                                    CLI_BIND("--out", &o->out),
                                    CLI_BIND("--allow-nondeterministic", &o->allow_nondeterministic),
                                    {0}};
    int status = cli_parse(command, argc, argv, bindings, &cli->common, help);
    if (status != CLI_DONE || cli->common.help)
        return status;
    if (!cli->device || mf_words_cpu(cli->device))
        return cli_usage_error(command, "--device cuda is missing: on cpu every operation has one way");
    o->model = cli->common.operands[0];
    o->data = "synthetic";
    status = train_cli_resolve(command, cli);
    if (status != CLI_DONE)
        return status;
    memfit_tune_result r = MEMFIT_TUNE_RESULT;
    memfit_error err = {0};
    if (!cli->common.quiet)
        o->progress = tell;
    train_cli_catch_signals(cli);
    memfit_status done = memfit_tune(o, &r, &err);
    fputs(all.line_open ? "\n" : "", stderr);
    train_cli_end(cli);
    if (done != MEMFIT_OK) {
        status = cli_report(&cli->common, &err);
        if (done == MEMFIT_INTERRUPTED)
            train_cli_end_by_signal();
        return status;
    }
    if (cli->common.json)
        print_json(&r);
    else
        mf_print(
            stdout,
            "%u methods of %u operations timed in %.1f s: %.3f ms a step by the libraries' own rank, %.3f ms by the "
            "times\nwritten: %s\nfor %s\n",
            r.methods, r.menus, r.seconds, r.ranked_ms, r.tuned_ms, r.path, r.made_by);
    return CLI_DONE;
}
