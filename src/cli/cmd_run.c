/* cmd_run.c: memfit run. */
#include "cli/cli.h"

int cli_run(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv);
}
