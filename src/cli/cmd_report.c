/*
 * cmd_report.c: memfit report: a recorded trace as people read it, or two traces and what differs.
 */
#include "cli/cli.h"
#include "cli/terminal.h"

#include "answer/report_export.h"
#include "answer/report_page.h"
#include "base/chart.h"

#include <string.h>

typedef struct report {
    cli_common common;
    bool with_names;
    mf_report_model model;
    const char *html, *perfetto, *viz, *tensorboard, *flame;
    mf_report *reports[2];
    unsigned count;
    mf_report_difference difference;
} report;

static memfit_status open_all(report *r, memfit_error *err)
{
    mf_report_options o = {.with_names = r->with_names, .to_compare = r->common.operand_count == 2};
    for (int i = 0; i < r->common.operand_count; i++) {
        memfit_status status = mf_report_open(r->common.operands[i], &o, &r->reports[i], err);
        if (!status)
            status = mf_report_replay(r->reports[i], NULL, 0, err);
        if (!status && r->model.path)
            status = mf_report_plan(r->reports[i], &r->model, err);
        if (status)
            return status;
        r->count++;
    }
    return r->count == 2 ? mf_report_compare(r->reports[0], r->reports[1], &r->difference, err) : MEMFIT_OK;
}

static void show(const report *r)
{
    mf_report_view view = {.report = r->reports[0],
                           .other = r->reports[1],
                           .difference = r->count == 2 ? &r->difference : NULL,
                           .columns = cli_terminal_width(),
                           .utf8 = mf_chart_utf8(),
                           .quiet = r->common.quiet,
                           .verbose = r->common.verbose};
    if (r->common.json)
        mf_report_put_json(stdout, &view);
    else
        mf_report_print(stdout, &view);
}

static memfit_status write_all(report *r, memfit_error *err)
{
    const mf_report_difference *d = r->count == 2 ? &r->difference : NULL;
    const mf_report *first = r->reports[0];
    memfit_status status = MEMFIT_OK;
    if (r->html)
        status = mf_report_write_page(r->html, r->reports[0], r->reports[1], d, err);
    if (!status && r->perfetto)
        status = mf_report_write_perfetto(first, r->perfetto, err);
    if (!status && r->viz)
        status = mf_report_write_viz(first, r->viz, err);
    if (!status && r->tensorboard)
        status = mf_report_write_tensorboard(first, r->tensorboard, err);
    if (!status && r->flame)
        status = mf_report_write_flame(first, r->flame, err);
    return status;
}

static const char help[] = "TRACE is a memfit trace (train --trace, run --trace, MEMFIT_TRACE), a PyTorch\n"
                           "memory snapshot (.pickle), a CSV trace\n"
                           "(time_us,op,id,bytes,stream,kind,owner), or a folder of them, one a process.\n"
                           "With two the difference is shown.\n"
                           "Names are shown without the folders of files, unless --with-names.\n";

int cli_report_trace(const cli_command *command, int argc, char **argv)
{
    report r = {0};
    const cli_binding bindings[] = {CLI_BIND("--with-names", &r.with_names),
                                    CLI_BIND("--model", &r.model.path),
                                    CLI_BIND("--batch-size", &r.model.batch),
                                    CLI_BIND("--html", &r.html),
                                    CLI_BIND("--perfetto", &r.perfetto),
                                    CLI_BIND("--memory-viz", &r.viz),
                                    CLI_BIND("--tensorboard", &r.tensorboard),
                                    CLI_BIND("--flame", &r.flame),
                                    {0}};
    int status = cli_parse(command, argc, argv, bindings, &r.common, help);
    if (status || r.common.help)
        return status;
    if (r.common.operand_count == 2 && (r.perfetto || r.viz || r.tensorboard || r.flame))
        return cli_usage_error(
            command, "--perfetto, --memory-viz, --tensorboard and --flame are for one trace; --html shows two");
    memfit_error err;
    if (open_all(&r, &err) || write_all(&r, &err))
        status = cli_report(&r.common, &err);
    else
        show(&r);
    mf_report_difference_free(&r.difference);
    for (int i = 0; i < 2; i++)
        mf_report_close(r.reports[i]);
    return status;
}
