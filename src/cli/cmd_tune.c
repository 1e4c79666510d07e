/* cmd_tune.c: memfit tune. */
#include "cli/cli.h"

int cli_tune(const cli_command *command, int argc, char **argv)
{
    return cli_not_built(command, argc, argv);
}
