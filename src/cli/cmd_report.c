/* cmd_report.c: memfit report. */
#include "cli/cli.h"

int cli_report_trace(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv);
}
