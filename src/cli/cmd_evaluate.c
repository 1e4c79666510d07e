/* cmd_evaluate.c: memfit evaluate. */
#include "cli/count_alloc.h"
#include "cli/train_cli.h"

int cli_evaluate(const cli_command *command, int argc, char **argv)
{
    train_cli_short_spin(argv);
    train_cli cli = {0};
    memfit_train_options *o = &cli.o;
    memfit_train_options_default(o);
    const cli_option options[] = {
        {"--data", CLI_STRING, &o->data, "SOURCE", "samples: .npy, .npz, .h5, .csv or synthetic[:N]"},
        {"--batch-size|--batch|-b", CLI_COUNT, &o->batch, "N", "samples at a time (32)"},
        {"--memory", CLI_SIZE, &cli.memory, "SIZE", "limit of the whole process"},
        {"--device", CLI_STRING, &cli.device, "cpu|cuda[:I]", "where to run (cpu)"},
        {"--loss", CLI_STRING, &o->loss, "NAME", "instead of the file's"},
        {"--precision", CLI_STRING, &o->precision, "NAME", "float32, mixed_float16 or mixed_bfloat16"},
        {"--input-shape", CLI_STRING, &cli.input_shape, "H,W,C", "for models that leave it open"},
        {"--threads", CLI_COUNT, &cli.threads, "N", "all processors"},
        {0}};
    const char *operands[1] = {0};
    int status = cli_parse(command, argc, argv, options, &cli.common, operands, 1, 1, NULL, NULL);
    if (status != CLI_DONE || cli.common.help)
        return status;
    o->model = operands[0];
    if (!o->data)
        return cli_usage_error(command, "--data SOURCE is missing: a file, or synthetic");
    status = train_cli_resolve(command, &cli);
    if (status != CLI_DONE)
        return status;
    memfit_train_result result;
    memfit_error err = {0};
    cli_reserve_begin();
    memfit_status done = memfit_evaluate(o, &result, &err);
    cli_reserve_end();
    if (done != MEMFIT_OK)
        return cli_report(&cli.common, &err);
    train_cli_print(&cli, &result, "evaluated");
    return CLI_DONE;
}
